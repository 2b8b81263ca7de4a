"""A test a row: what an answer of SGAS, or of what stands before it, means."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from publisher.formats.sgas.ogf_ur import OgfUr
from publisher.transports.base import Verdict
from publisher.transports.credentials.host_certificate import SubjectNames
from publisher.transports.http.exchange import REASON_LENGTH, Answer, Failure, RequestFailure
from publisher.transports.sgas.responses import (
    SILENCES,
    STATUSES,
    WORDS,
    AnsweredBy,
    Sent,
    interpret,
    parse_error_page,
    sent_names,
    sent_records,
    service_paths,
)
from tests.fake_sgas.documents import document, global_id, numbered, record, record_id
from tests.fake_sgas.failures import PROCESSING_FAILED, Crash, nginx_page, page
from tests.support.jobs import make_job, make_policy
from tests.support.patience import bounded

SUBJECT = SubjectNames(comma="CN=ce.example.org,DC=org", slash="/DC=org/CN=ce.example.org")
SENT = Sent(payload=numbered([1, 2]), subject=SUBJECT)
BALANCER = b"<html><head><title>Oops</title></head><body>Something went wrong</body></html>"

DELIVERED, DOUBT, AGAIN = Verdict.DELIVERED, Verdict.IN_DOUBT, Verdict.RETRY_LATER
REFUSED, STOP, TOO_LARGE = Verdict.REFUSED, Verdict.STOP_TARGET, Verdict.TOO_LARGE


def traceback(kind: str, message: str) -> bytes:
    return page(Crash(kind, message), "H", "old").body


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status=status, body=body, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An answer and what must come out; `says` is part of the reason."""

    status: int
    body: bytes
    verdict: Verdict
    exit_status: int
    certain: bool = True
    says: str = ""


CASES = {
    "no certificate": Case(
        status=400,
        body=nginx_page(400, "No required SSL certificate was sent"),
        verdict=STOP,
        exit_status=77,
        says="/DC=org/CN=ce.example.org is not accepted",
    ),
    "unknown CA": Case(
        status=400,
        body=nginx_page(400, "The SSL certificate error"),
        verdict=STOP,
        exit_status=77,
        says="The SSL certificate error",
    ),
    "bare 400": Case(status=400, body=b"", verdict=STOP, exit_status=76, says="something in between"),
    "401": Case(status=401, body=BALANCER, verdict=STOP, exit_status=77),
    "no right": Case(
        status=403, body=b"No right for CN=ce", verdict=STOP, exit_status=77, says="MachineName ce.example.org"
    ),
    "firewall": Case(status=403, body=nginx_page(403), verdict=STOP, exit_status=76, says="nothing was set aside"),
    "404": Case(status=404, body=BALANCER, verdict=STOP, exit_status=78, says="`url` of the target"),
    "405": Case(status=405, body=BALANCER, verdict=STOP, exit_status=78, says="`url` of the target"),
    "machine": Case(status=406, body=b"not for ce", verdict=STOP, exit_status=77, says="MachineName ce.example.org"),
    "408": Case(status=408, body=b"", verdict=DOUBT, exit_status=75),
    "413": Case(status=413, body=nginx_page(413), verdict=TOO_LARGE, exit_status=76),
    "425": Case(status=425, body=b"", verdict=AGAIN, exit_status=75),
    "429": Case(status=429, body=b"", verdict=AGAIN, exit_status=75),
    "418": Case(status=418, body=b"I'm a teapot", verdict=STOP, exit_status=76),
    "nginx 500": Case(status=500, body=nginx_page(500), verdict=AGAIN, exit_status=75),
    "foreign 500": Case(status=500, body=BALANCER, verdict=DOUBT, exit_status=75, says='500 "Oops"'),
    "silent 500": Case(status=500, body=b" \n", verdict=DOUBT, exit_status=75, says="without a word"),
    "bare 500": Case(
        status=500, body=PROCESSING_FAILED, verdict=REFUSED, exit_status=76, certain=False, says="Processing Failed"
    ),
    "502": Case(status=502, body=nginx_page(502), verdict=DOUBT, exit_status=75),
    "503": Case(status=503, body=b"currently unavailable", verdict=AGAIN, exit_status=75, says="currently unavailable"),
    "504": Case(status=504, body=nginx_page(504), verdict=DOUBT, exit_status=75),
    "520": Case(status=520, body=BALANCER, verdict=DOUBT, exit_status=75),
    "202": Case(status=202, body=b"{}", verdict=DOUBT, exit_status=75),
    # 500 in the words of SGAS, a case for each row of WORDS and more
    "release after a restart": Case(
        status=500,
        body=b"'NoneType' object has no attribute 'insertJobUsageRecords'",
        verdict=AGAIN,
        exit_status=75,
    ),
    "too long": Case(
        status=500,
        body=b"value too long for type character varying(200)\nCONTEXT:  PL/pgSQL function urcreate(text)",
        verdict=REFUSED,
        exit_status=76,
        says='"value too long for type character varying(200)"',
    ),
    "null value": Case(
        status=500,
        body=b'null value in column "create_time" violates not-null constraint\nDETAIL:  Failing row contains (1, connection).',
        verdict=REFUSED,
        exit_status=76,
    ),
    "smallint": Case(status=500, body=b"smallint out of range", verdict=REFUSED, exit_status=76),
    "foreign key": Case(
        status=500,
        body=b'update or delete on table "usagedata" violates foreign key constraint "x"\nDETAIL:  FATAL',
        verdict=REFUSED,
        exit_status=76,
    ),
    "syntax that quotes": Case(
        status=500,
        body=b'invalid input syntax for type integer: "FATAL connection"',
        verdict=REFUSED,
        exit_status=76,
    ),
    "index": Case(
        status=500, body=b"index row size 2712 exceeds btree version 4 maximum", verdict=REFUSED, exit_status=76
    ),
    "wide number": Case(
        status=500,
        body=b"function urcreate(unknown, bigint) does not exist\nLINE 1: SELECT urcreate ('ur-1')",
        verdict=REFUSED,
        exit_status=76,
    ),
    "no function": Case(
        status=500,
        body=b"function urcreate(unknown, unknown) does not exist",
        verdict=REFUSED,
        exit_status=76,
        certain=False,
    ),
    "memory": Case(
        status=500, body=b"unsupported operand type(s) for *: 'NoneType' and 'int'", verdict=REFUSED, exit_status=76
    ),
    "metric": Case(status=500, body=b"can't adapt type 'SgasMemory'", verdict=REFUSED, exit_status=76),
    "connections": Case(status=500, body=b"FATAL:  sorry, too many clients already\n", verdict=AGAIN, exit_status=75),
    "standby": Case(status=500, body=b"could not make a writable connection", verdict=AGAIN, exit_status=75),
    "timeout": Case(status=500, body=b"canceling statement due to statement timeout", verdict=AGAIN, exit_status=75),
    "new words": Case(
        status=500,
        body=b"relation does not exist",
        verdict=REFUSED,
        exit_status=76,
        certain=False,
        says="relation does",
    ),
    "common name": Case(
        status=500,
        body=traceback("Exception", "Could not extract FQDN from CN=Robot"),
        verdict=STOP,
        exit_status=77,
        says="CN=ce.example.org,DC=org",
    ),
    "identity": Case(status=500, body=traceback("KeyError", "no identity for subject"), verdict=STOP, exit_status=77),
    "identity as a value": Case(
        status=500,
        body=traceback("ValueError", "invalid literal for int(): 'identity'"),
        verdict=REFUSED,
        exit_status=76,
    ),
    "parser": Case(
        status=500,
        body=traceback("xml.etree.ElementTree.ParseError", "not well-formed (invalid token): line 3, column <9>"),
        verdict=REFUSED,
        exit_status=76,
        says="ParseError: not well-formed (invalid token): line 3, column <9>",
    ),
    "empty number": Case(
        status=500,
        body=traceback("TypeError", "expected string, got 'NoneType'"),
        verdict=REFUSED,
        exit_status=76,
        says="\"TypeError: expected string, got 'NoneType'\"",
    ),
    "faulty": Case(status=500, body=traceback("Exception", "There were faulty URs"), verdict=REFUSED, exit_status=76),
    "new traceback": Case(
        status=500,
        body=traceback("sgas.Whatever", "hm"),
        verdict=REFUSED,
        exit_status=76,
        certain=False,
        says="Whatever: hm",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_means(case: Case) -> None:
    receipt = interpret(answer(case.status, case.body), SENT)
    assert (receipt.verdict, receipt.exit_status, receipt.certain) == (case.verdict, case.exit_status, case.certain)
    assert receipt.doubt is (case.verdict is DOUBT)
    assert str(case.status) in receipt.reason
    assert case.says in receipt.reason
    assert receipt.remote_ids == {}


def test_every_row_has_a_case() -> None:
    by_status = {(case.status, parse_error_page(case.body).speaker) for case in CASES.values()}
    for status, speaker in STATUSES:
        voices = {pages for number, pages in by_status if number == status}
        own = {pages for number, pages in STATUSES if number == status and pages}
        assert voices & {speaker} if speaker else voices - own, (status, speaker)
    pages = [parse_error_page(case.body) for case in CASES.values() if case.status == 500]
    matched = [
        next((n for n, (speaker, words, _) in enumerate(WORDS) if speaker is h.speaker and words.search(h.words)), None)
        for h in pages
    ]
    assert set(range(len(WORDS))) <= set(matched)


@pytest.mark.parametrize("failure", Failure)
def test_every_silence_has_a_meaning(failure: Failure) -> None:
    receipt = interpret(RequestFailure(failure=failure, reason="the wire is cut"), SENT)
    expected = {Failure.NOT_SENT: AGAIN, Failure.MAYBE_SENT: DOUBT}.get(failure, STOP)
    assert (receipt.verdict, receipt.exit_status) == (expected, SILENCES[failure].exit_status)
    assert receipt.reason.startswith("the wire is cut")
    assert interpret(RequestFailure(failure=failure, reason=""), SENT).reason


# Hints


@pytest.mark.parametrize("body", [b"no", "nej, Åsa ".encode() * 300])
def test_a_missing_right_is_explained_with_both_dns_and_the_machines(body: bytes) -> None:
    machines = document(record(n, machine=f"ce{n}.example.org") for n in range(6))
    reason = interpret(answer(406, body), Sent(payload=machines, subject=SUBJECT)).reason
    for part in (SUBJECT.comma, SUBJECT.slash, "jobinsert", "ce0.example.org, ce1.example.org, ce2.example.org, ..."):
        assert part in reason
    assert len(reason) <= REASON_LENGTH


def test_long_names_do_not_push_the_hint_out() -> None:
    long = SubjectNames(
        comma="CN=ce.example.org," + "O=x," * 12 + "DC=org", slash="/DC=org" + "/O=x" * 12 + "/CN=ce.example.org"
    )
    reason = interpret(
        answer(403, b"No right to insert for " + long.comma.encode()), Sent(payload=SENT.payload, subject=long)
    ).reason
    assert f'"{long.comma}"' in reason
    assert f'"{long.slash}"' in reason


def test_a_redirect_is_not_followed_and_named() -> None:
    receipt = interpret(answer(301, b"", location="https://elsewhere.example.org/sgas/ur"), SENT)
    assert (receipt.verdict, receipt.exit_status) == (STOP, 78)
    assert "https://elsewhere.example.org/sgas/ur" in receipt.reason


# Success


def test_the_reply_gives_the_row_ids() -> None:
    receipt = interpret(answer(200, json.dumps({record_id(1): "17", record_id(2): 18}).encode()), SENT)
    assert (receipt.verdict, receipt.reason, receipt.exit_status) == (DELIVERED, "", 0)
    assert receipt.remote_ids == {global_id(1): "17", global_id(2): "18"}


def test_null_is_a_success() -> None:
    receipt = interpret(answer(200, b"null"), SENT)
    assert (receipt.verdict, dict(receipt.remote_ids)) == (DELIVERED, {})


def test_nothing_stored_is_a_success_for_nothing_sent() -> None:
    assert interpret(answer(200, b"{}"), Sent(payload=numbered([]), subject=SUBJECT)).verdict is DELIVERED
    receipt = interpret(answer(200, b"{}"), SENT)
    assert (receipt.verdict, receipt.exit_status) == (DOUBT, 76)
    assert "2 of 2" in receipt.reason


def test_rewritten_ids_are_found_again() -> None:
    receipt = interpret(answer(200, json.dumps({record_id(1): "1", global_id(2): "2"}).encode()), SENT)
    assert (receipt.verdict, dict(receipt.remote_ids)) == (DELIVERED, {global_id(1): "1", global_id(2): "2"})
    assert "1 of 2 records under other ids" in receipt.reason


def test_a_record_without_a_job_id_is_known_by_machine_and_creation_time() -> None:
    """The server's own spelling of the time, in UTC (the head of development, as its source has it)."""
    nameless = record(1).replace(b"<urf:GlobalJobId>" + global_id(1).encode() + b"</urf:GlobalJobId>", b"")
    name = "ce.example.org:2026 11 20 10:00:00"
    for created in (b"2026-11-20T10:00:00Z", b"2026-11-20T12:00:00+02:00", b"2026-11-20T10:00:00"):
        payload = document([nameless.replace(b"2026-11-20T10:00:00Z", created)])
        receipt = interpret(answer(200, json.dumps({name: "2"}).encode()), Sent(payload=payload, subject=SUBJECT))
        assert (receipt.verdict, dict(receipt.remote_ids)) == (DELIVERED, {name: "2"})
    assert interpret(answer(200, json.dumps({name: "2"}).encode()), SENT).verdict is DOUBT


GATEWAY = {
    "status": {"status": "ok"},
    "error": {"error": "maintenance"},
    "error envelope": {"error": {"code": 503, "message": "maintenance"}},
    "a number": {"code": "200"},
    "a number for each record": {"code": "200", "took": "17"},
    "ours and another": {record_id(1): "1", record_id(2): "2", "code": "200"},
    "ours and another's": {record_id(1): "1", record_id(3): "2"},
    "another machine's": {record_id(1): "1", "ce:2026 11 20 10:00:00": "2"},
    "the request, echoed": {record_id(1): record_id(1), record_id(2): record_id(2)},
    "truths": {record_id(1): True, record_id(2): True},
    "nulls": {record_id(1): None, record_id(2): None},
    "empty rows": {record_id(1): "", record_id(2): ""},
    "lists": {record_id(1): ["1"], record_id(2): ["2"]},
    "below nothing": {record_id(1): "-1", record_id(2): "2"},
    "a fraction": {record_id(1): 1.5, record_id(2): "2"},
}


@pytest.mark.parametrize("reply", GATEWAY.values(), ids=GATEWAY)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_a_gateway_is_no_receipt(reply: dict[str, object], indent: int | None) -> None:
    receipt = interpret(answer(200, json.dumps(reply, indent=indent).encode()), SENT)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (DOUBT, 75, True)
    assert dict(receipt.remote_ids) == {}
    beginning = json.dumps(reply, indent=indent)[:40].replace('"', "'")
    assert " ".join(beginning.split()) in receipt.reason
    assert "check `url`" in receipt.reason


def test_an_answer_that_leaves_a_record_out_is_in_doubt_and_shown() -> None:
    receipt = interpret(answer(200, json.dumps({record_id(1): "1"}).encode()), SENT)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (DOUBT, 76, True)
    assert "names no row for 1 of 2 records" in receipt.reason
    assert record_id(1) in receipt.reason


def test_what_is_shown_of_an_answer_is_bounded_and_printable() -> None:
    body = json.dumps({"\x1b[31mÅ": "x" * 100_000}, ensure_ascii=False).encode()
    assert re.fullmatch(r"[ -~]{1,500}", interpret(answer(200, body), SENT).reason)


def test_copies_share_a_key() -> None:
    twice = Sent(payload=document([record(1), record(1)]), subject=SUBJECT)
    receipt = interpret(answer(200, json.dumps({record_id(1): "1"}).encode()), twice)
    assert (receipt.verdict, dict(receipt.remote_ids), receipt.reason) == (DELIVERED, {global_id(1): "1"}, "")


@pytest.mark.parametrize("body", [b"", BALANCER, b"[]", b"17", b'"null"', b"\xff", b"[" * 100_000, b'{"a": "1"'])
def test_200_of_somebody_else_is_no_receipt(body: bytes) -> None:
    receipt = interpret(answer(200, body), SENT)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (DOUBT, 75, True)
    assert "200" in receipt.reason


def test_a_reply_that_broke_off_is_no_receipt() -> None:
    whole = Answer(status=200, body=b"null", complete=False)
    assert interpret(whole, SENT).verdict is DOUBT


# For whatever comes


@given(status=st.integers(100, 599), body=st.binary(max_size=300), complete=st.booleans())
@example(status=500, body=b"<", complete=True)
@example(status=500, body=b"<div class='error'>" * 50, complete=True)
def test_any_answer_has_a_meaning_and_a_reason(status: int, body: bytes, complete: bool) -> None:
    receipt = interpret(Answer(status=status, body=body, complete=complete), SENT)
    assert receipt.reason or receipt.verdict is DELIVERED
    assert re.fullmatch(r"[ -~]{0,500}", receipt.reason)
    assert (receipt.exit_status == 0) is (receipt.verdict is DELIVERED)
    if status != 200:
        assert receipt.verdict is not DELIVERED
    if receipt.verdict is DELIVERED:
        assert body.strip() == b"null"
    if receipt.verdict is REFUSED:
        assert status == 500


@pytest.mark.slow
def test_reading_a_hostile_page_is_quick() -> None:
    with bounded():
        for piece in ("<", "<style>", '<div class="error"><span>', "<title>", "&amp;", "identity'\""):
            parse_error_page((piece * 60_000)[:60_000].encode())
            interpret(answer(500, (piece * 60_000)[:60_000].encode()), SENT)


# The texts


def test_the_service_list_gives_paths_and_no_hosts() -> None:
    body = (
        b'<?xml version="1.0" encoding="UTF-8"?><services><service><name>Registration</name>'
        b"<href>https://inside:6180/sgas/ur</href></service><service><name>Query</name></service></services>"
    )
    assert service_paths(body) == {"Registration": "/sgas/ur"}


@pytest.mark.parametrize("body", [b"", BALANCER, b"<services", b'{"services": []}'])
def test_what_is_no_service_list(body: bytes) -> None:
    assert service_paths(body) is None


def test_entities_of_a_service_are_not_expanded() -> None:
    bomb = (
        b'<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b SYSTEM "file:///etc/passwd">]><services><service>'
        b"<name>Registration</name><href>/x&a;&b;</href></service></services>"
    )
    assert service_paths(bomb) in (None, {"Registration": "/x"})


def test_what_was_sent_is_read_from_the_payload() -> None:
    first, second = sent_records(document([record(1), record(2, machine="x.org", other_global_id="a&b")]))
    assert (first.record_id, first.global_job_id, first.machine_name) == (record_id(1), global_id(1), "ce.example.org")
    assert (second.global_job_id, second.machine_name) == ("a&b", "x.org")
    assert sent_records(b"<broken") == ()


@pytest.mark.parametrize("odd", ["plain", "a&b", 'x"y', "René", "<GlobalJobId>z</GlobalJobId>"])
def test_names_are_read_alike_from_our_own_spelling_and_from_any_other(odd: str) -> None:
    ours, now = OgfUr(), datetime(2026, 3, 6, tzinfo=UTC)
    jobs = [make_job(job_id="job1", job_name=odd), make_job(job_id="job2", local_id=odd, local_user=odd)]
    payload = ours.frame.join([ours.render(make_policy().describe(job), now) for job in jobs])
    parsed = tuple((one.record_id, one.replacement) for one in sent_records(payload))
    assert sent_names(payload) == parsed
    assert [job_id for _, job_id in parsed] == ["job1", "job2"]
    assert sent_names(payload.replace(b"><", b">\n<")) == parsed
    assert sent_names(document([record(1, other_global_id=odd)])) == ((record_id(1), odd),)
    assert sent_names(b"<broken") == ()


def test_voices() -> None:
    assert parse_error_page(PROCESSING_FAILED).speaker is AnsweredBy.BARE
    assert parse_error_page(nginx_page(502)).speaker is AnsweredBy.NGINX
    assert parse_error_page(nginx_page(502)).words == "502 Bad Gateway"
    assert parse_error_page(b"").speaker is AnsweredBy.SILENCE
