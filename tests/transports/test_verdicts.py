"""Verdicts: a test for each row of what the services can answer, and for what only looks like an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.transports.ams.responses import BIG, AmsAction, Decision, publish_verdict, token_of, token_verdict
from publisher.transports.http.exchange import (
    Answer,
    Failure,
    RequestFailure,
    envelope_message,
    plain,
    quoted,
    redacted,
)

SMALL = 10_000
HTML = b"<html><head><title>502</title></head><body><h1>502 Bad Gateway</h1>\nno server is available</body></html>"
NOISE = [b"", HTML, b"[]", b"null", b"{}", b'{"error": "no"}', b"\xff\xfe\x00", b"[" * 100_000, b"x" * 70_000]


def envelope(code: int, message: str, status: str = "X") -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "status": status}}, indent=3).encode()


def said(status: int, message: str) -> Answer:
    return Answer(status=status, body=envelope(status, message))


def published(answer: Answer | RequestFailure, length: int = SMALL) -> tuple[AmsAction, int, bool]:
    decision = publish_verdict(length, answer)
    assert len(decision.reason) <= 500
    return decision.action, decision.exit_status, decision.doubt


# ---- publish: argo-messaging's own words


def test_one_id_for_one_message_is_success() -> None:
    decision = publish_verdict(SMALL, Answer(status=200, body=b'{\n   "messageIds": [\n      "17"\n   ]\n}'))
    assert decision == Decision(action=AmsAction.ACCEPTED, remote_id="17")


@pytest.mark.parametrize(
    "body",
    [
        b'{"messageIds":["1"',
        HTML,
        b"",
        b"{}",
        b'{"messageIds":[]}',
        b'{"messageIds":["1","2"]}',
        b'{"messageIds":[1]}',
        b'{"messageIds":[""]}',
        b'{"messageIds":"1"}',
        b'{"messageIds":[" "]}',
        b'{"messageIds":["no id today"]}',
        b'{"messageIds":["<b>1</b>"]}',
        b'{"messageIds":[null]}',
        b'{"messageIds":{"0":"1"}}',
        b'{"messageIds":["1"],"error":{"code":503,"message":"maintenance"}}',
        b'{"status":"ok"}',
        b'{"error":"maintenance"}',
        b'["1"]',
        b"null",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_200_without_a_receipt_is_not_success(body: bytes) -> None:
    assert published(Answer(status=200, body=body)) == (AmsAction.RETRY, 75, True)


def test_200_with_a_cut_body_is_not_success() -> None:
    assert published(Answer(status=200, body=b'{"messageIds":["1"]}', complete=False)) == (AmsAction.RETRY, 75, True)


@pytest.mark.parametrize("status", [201, 202, 204])
def test_other_successes_are_no_receipts(status: int) -> None:
    assert published(Answer(status=status, body=b'{"messageIds":["1"]}')) == (AmsAction.RETRY, 75, True)


def test_401_asks_for_a_new_token() -> None:
    assert published(said(401, "Unauthorized")) == (AmsAction.REFRESH_TOKEN, 77, False)


def test_403_stops_the_target() -> None:
    decision = publish_verdict(SMALL, said(403, "Access to this resource is forbidden"))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 77)
    assert "ACL" in decision.reason


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (said(404, "project doesn't exist"), "check `project`"),
        (said(404, "Topic doesn't exist"), "check `topic`"),
        (Answer(status=404, body=b"404 page not found\n"), "check `url`"),
        (Answer(status=404, body=HTML), "check `url`"),
    ],
)
def test_404s_stop_the_target_and_are_told_apart(answer: Answer, advice: str) -> None:
    decision = publish_verdict(SMALL, answer)
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 78)
    assert advice in decision.reason


def test_400_is_about_the_message_perhaps() -> None:
    decision = publish_verdict(SMALL, said(400, "Invalid Message Arguments"))
    assert (decision.action, decision.exit_status, decision.certain) == (AmsAction.REFUSE_MESSAGE, 76, False)
    assert "Invalid Message Arguments" in decision.reason


@pytest.mark.parametrize("message", ["Invalid topic name", "Invalid project name"])
def test_400_about_the_address_stops_the_target(message: str) -> None:
    assert published(said(400, message)) == (AmsAction.STOP_TARGET, 78, False)


def test_400_about_a_broken_upload_is_tried_again() -> None:
    assert published(said(400, "Invalid Request Body")) == (AmsAction.RETRY, 75, False)


@pytest.mark.parametrize("body", [envelope(413, "Message size is too large"), HTML, b""])
def test_413_splits_whoever_says_it(body: bytes) -> None:
    assert published(Answer(status=413, body=body)) == (AmsAction.SPLIT, 76, False)


def test_backend_error_on_a_small_message_is_tried_again() -> None:
    assert published(said(500, "Backend Error"), BIG) == (AmsAction.RETRY, 75, True)


def test_backend_error_on_a_big_message_is_tried_once_more_and_then_split() -> None:
    assert published(said(500, "Backend Error"), BIG + 1) == (AmsAction.RETRY_THEN_SPLIT, 75, True)


@pytest.mark.parametrize(
    "answer", [said(500, "Internal error while querying datastore"), Answer(status=500, body=HTML)]
)
def test_other_500s_say_nothing_about_size(answer: Answer) -> None:
    assert published(answer, 900_000) == (AmsAction.RETRY, 75, True)


# ---- publish: the balancer's voice, and silence


@pytest.mark.parametrize(
    ("status", "doubt"), [(408, True), (429, False), (502, True), (503, False), (504, True), (599, True)]
)
@pytest.mark.parametrize("body", NOISE)
def test_passing_troubles_are_tried_again(status: int, doubt: bool, body: bytes) -> None:
    answer = Answer(status=status, headers={"retry-after": "7"}, body=body)
    assert published(answer) == (AmsAction.RETRY, 75, doubt)
    assert publish_verdict(SMALL, answer).asked == "7"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_stop_the_target(status: int) -> None:
    decision = publish_verdict(SMALL, Answer(status=status, headers={"location": "https://elsewhere.example.org/"}))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 78)
    assert "elsewhere.example.org" in decision.reason


@pytest.mark.parametrize("status", [402, 405, 409, 418, 451])
def test_answers_that_ams_never_gives_stop_the_target(status: int) -> None:
    assert published(Answer(status=status, body=HTML)) == (AmsAction.STOP_TARGET, 76, False)


SILENCE = [
    (Failure.NOT_SENT, AmsAction.RETRY, 75, False),
    (Failure.MAYBE_SENT, AmsAction.RETRY, 75, True),
    (Failure.OUR_CERTIFICATE, AmsAction.STOP_TARGET, 77, False),
    (Failure.THEIR_CERTIFICATE, AmsAction.STOP_TARGET, 77, False),
    (Failure.PROXY, AmsAction.STOP_TARGET, 78, False),
    (Failure.IMPOSSIBLE, AmsAction.STOP_TARGET, 78, False),
]


@pytest.mark.parametrize(("failure", "action", "exit_status", "doubt"), SILENCE)
def test_silence_on_publish(failure: Failure, action: AmsAction, exit_status: int, doubt: bool) -> None:
    silence = RequestFailure(failure=failure, reason="why")
    assert published(silence) == (action, exit_status, doubt)
    assert publish_verdict(SMALL, silence).reason == "why"


@pytest.mark.parametrize(("failure", "action", "exit_status", "_"), SILENCE)
def test_silence_of_authn_leaves_no_doubt(failure: Failure, action: AmsAction, exit_status: int, _: bool) -> None:
    decision = token_verdict(RequestFailure(failure=failure, reason="why"))
    assert (decision.action, decision.exit_status, decision.doubt) == (action, exit_status, False)


def test_every_failure_has_its_row() -> None:
    assert {row[0] for row in SILENCE} == set(Failure)


@given(st.integers(100, 599), st.binary(max_size=300), st.booleans(), st.integers(1, 1_400_000))
def test_no_answer_breaks_a_verdict_and_only_a_receipt_is_success(
    status: int, body: bytes, complete: bool, length: int
) -> None:
    answer = Answer(status=status, body=body, complete=complete)
    for decision in (publish_verdict(length, answer), token_verdict(answer)):
        assert decision.action is not AmsAction.ACCEPTED
        assert decision.reason
        assert decision.exit_status in (75, 76, 77, 78)


# ---- authn


def test_a_token() -> None:
    answer = Answer(status=200, body=b'{\n "token": "' + b"a1" * 32 + b'"\n}')
    assert token_verdict(answer) == Decision(action=AmsAction.ACCEPTED)
    assert token_of(answer) == "a1" * 32


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"token":""}',
        b'{"token":null}',
        b'{"token":7}',
        b'{"token":"a b"}',
        b'{"token":"a\\nb"}',
        HTML,
        b"",
        b"[]",
    ],
)
def test_200_without_a_usable_token_is_a_protocol_error(body: bytes) -> None:
    decision = token_verdict(Answer(status=200, body=body))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 76)
    assert "auth_url" in decision.reason


def test_a_token_that_broke_off_is_asked_for_again() -> None:
    assert token_verdict(Answer(status=200, body=b'{"token": "aaa', complete=False)).action is AmsAction.RETRY


@pytest.mark.parametrize(
    ("status", "message", "exit_status", "advice"),
    [
        (400, "No certificate provided", 77, "did not arrive"),
        (400, "lookup 10.0.0.1.in-addr.arpa.: no such host", 77, "reverse DNS"),
        (403, "x509: certificate is valid for a.example.org, not b.example.org", 77, "reverse DNS name"),
        (403, "x509: certificate relies on legacy Common Name field, use SANs instead", 77, "SAN"),
        (403, "Your certificate has expired", 77, "renew"),
        (403, "Your certificate is not active yet", 77, "clock"),
        (403, "Your certificate is invalid. No CRLDistributionPoints found on the certificate", 77, "CRL URL"),
        (403, "Your certificate has been revoked", 77, "new certificate"),
        (404, "Service-type was not found", 78, "auth_url"),
        (422, "Auth type: x509 is not yet supported.Supported:[oidc]", 78, "auth_url"),
        (404, "Host was not found", 78, "service_host"),
        (404, "Auth method was not found", 78, "operators"),
        (404, "Binding was not found", 77, "GOCDB"),
        (403, "something new", 77, "something new"),
        (404, "something new", 77, "something new"),
        (400, "something new", 77, "something new"),
    ],
)
def test_refusals_of_authn_come_with_advice(status: int, message: str, exit_status: int, advice: str) -> None:
    decision = token_verdict(said(status, message))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, exit_status)
    assert message in decision.reason
    assert advice in decision.reason


def test_an_address_that_authn_does_not_know() -> None:
    decision = token_verdict(Answer(status=404, body=b"404 page not found\n"))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 78)


@pytest.mark.parametrize(
    "answer",
    [
        said(500, "Internal Error: Could not access CRL URL"),
        said(500, 'Internal Error: {"error":{"code":404,"message":"User doesn\'t exist"}}'),
        Answer(status=502, body=HTML),
        Answer(status=503, headers={"retry-after": "9"}),
        Answer(status=504),
        Answer(status=408),
        Answer(status=429),
    ],
)
def test_authns_own_troubles_pass(answer: Answer) -> None:
    decision = token_verdict(answer)
    assert (decision.action, decision.exit_status, decision.doubt) == (AmsAction.RETRY, 75, False)
    assert decision.asked == answer.headers.get("retry-after", "")


def test_authn_redirects_are_not_followed() -> None:
    decision = token_verdict(Answer(status=302, headers={"location": "https://login.example.org"}))
    assert (decision.action, decision.exit_status) == (AmsAction.STOP_TARGET, 78)
    assert "auth_url" in decision.reason


# ---- words


def test_html_is_quoted_as_text() -> None:
    assert quoted(Answer(status=502, body=HTML)) == '502 "502 Bad Gateway no server is available"'
    assert quoted(Answer(status=502)) == "502 without a word"
    assert len(quoted(Answer(status=500, body=b"x" * 70_000))) < 220


def test_text_from_outside_cannot_forge_a_log_line() -> None:
    answer = said(403, "no\n2026-03-05 INFO delivered\x1b[2K")
    assert envelope_message(answer) == "no 2026-03-05 INFO delivered [2K"


def test_reasons_are_short_plain_and_without_secrets() -> None:
    assert plain("a\tb\r\n\u202ec", 500) == "a b c"
    assert len(plain("x" * 1000)) == 500
    assert redacted("token s3cret in s3cret", ["s3cret", ""]) == "token [withheld] in [withheld]"


def test_an_answers_repr_shows_neither_body_nor_headers() -> None:
    answer = Answer(status=200, headers={"set-cookie": "s3cret"}, body=b'{"token": "s3cret"}')
    assert "s3cret" not in repr(answer)
