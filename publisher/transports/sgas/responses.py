"""What an answer of SGAS means: one pure function over tables, with a comment per row.

One POST is one transaction, so nothing succeeds by half, and status 500 covers everything from a
bad record to a database that restarts: who answered, and in which words, decides. Only SGAS's own
words may condemn a record or this host's rights; nginx and balancers in front of it may not.

Measured on luts3-service 3.8.1 and its head of development, with
Twisted 18.9 and 25.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from html import unescape
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from lxml import etree

from publisher.transports.base import CONFIGURATION, CREDENTIALS, LATER, REFUSED, Receipt, Verdict
from publisher.transports.credentials.host_certificate import SubjectNames
from publisher.transports.http.exchange import Answer, Failure, RequestFailure, plain

WORDS_LENGTH: Final = 300
_SHOWN_LENGTH: Final = 200
_MOST_NAMES: Final = 3
# A traceback of 7 to 9 kB says at its beginning what went wrong; the rest only costs time.
_LOOKED_AT: Final = 16_384
_URF: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
_TAG: Final = re.compile(r"<[^>]*>")
_STYLE: Final = re.compile(r"<(style|script)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_ERROR: Final = re.compile(
    r'<div class="error">\s*<span>(.*?)</span>\s*:?\s*<span>(.*?)</span>', re.DOTALL
)
# How the server spells createTime in a record id that it makes up.
_CREATED: Final = "%Y %m %d %H:%M:%S"
_ROW_ID: Final = re.compile(r"[0-9]{1,20}")
# The beginning of a record of this package, with names in which nothing was escaped.
_BEGINS: Final = b"<JobUsageRecord>"
_NAMES: Final = re.compile(
    rb'<RecordIdentity urf:createTime="[^"]*" urf:recordId="([^"&]*)"/>'
    rb"<JobIdentity><GlobalJobId>([^<&]*)</GlobalJobId>"
).match


class AnsweredBy(StrEnum):
    """Who answers: SGAS (a traceback, Twisted's two words, plain text), nginx, or another."""

    TRACEBACK = "traceback"
    BARE = "Processing Failed"
    PLAIN = "plain text"
    NGINX = "nginx"
    FOREIGN = "another page"
    SILENCE = "nothing"


@dataclass(frozen=True, slots=True)
class ServerText:
    """Who answered, and its main line in ASCII: `Class: message`, or the title of a page."""

    speaker: AnsweredBy
    words: str


class SentRecord(NamedTuple):
    """What the server may name a record by, and what it authorises by."""

    record_id: str
    global_job_id: str
    machine_name: str
    create_time: str

    @property
    def replacement(self) -> str:
        """Return the record id that the server makes up where it rejects the LocalJobId."""
        if self.global_job_id:
            return self.global_job_id
        created = ""
        with suppress(ValueError):
            # Ours end in Z. Without a zone the server takes them for UTC.
            moment = datetime.fromisoformat(self.create_time)
            utc = moment.astimezone(UTC) if moment.tzinfo else moment
            created = f"{utc:{_CREATED}}"
        return f"{self.machine_name}:{created}"


def parse_error_page(body: bytes) -> ServerText:
    """Return who wrote an error page, and what it says; SGAS calls every Content-Type HTML."""
    text = body[:_LOOKED_AT].decode("utf-8", "replace").strip()
    if not text:
        return ServerText(AnsweredBy.SILENCE, "")
    if not text.startswith("<"):
        # PostgreSQL continues with DETAIL and CONTEXT, which hold the values of the row.
        return ServerText(AnsweredBy.PLAIN, plain(text.splitlines()[0], WORDS_LENGTH))
    if found := _ERROR.search(text):
        kind, message = (unescape(_TAG.sub("", part)) for part in found.groups())
        return ServerText(
            AnsweredBy.TRACEBACK,
            plain(f"{kind.strip().rpartition('.')[2]}: {message}", WORDS_LENGTH),
        )
    title = _TITLE.search(text)
    shown = title[1] if title else _TAG.sub(" ", _STYLE.sub(" ", text))
    words = plain(unescape(shown), WORDS_LENGTH)
    if "Processing Failed" in words:
        return ServerText(AnsweredBy.BARE, "Processing Failed")
    speaker = AnsweredBy.NGINX if "<center>nginx" in text else AnsweredBy.FOREIGN
    return ServerText(speaker, words)


def sent_records(payload: bytes) -> tuple[SentRecord, ...]:
    """The records of our payload, in order; none unless well-formed, which the server reports."""
    root = _parse(payload)
    if root is None:
        return ()
    sent = []
    for record in root.iter(f"{_URF}JobUsageRecord"):
        identity = record.find(f"{_URF}RecordIdentity")
        names = () if identity is None else identity.items()
        named = {str(name): str(value) for name, value in names}
        sent.append(
            SentRecord(
                record_id=named.get(f"{_URF}recordId", ""),
                global_job_id=record.findtext(f"{_URF}JobIdentity/{_URF}GlobalJobId") or "",
                machine_name=record.findtext(f"{_URF}MachineName") or "",
                create_time=named.get(f"{_URF}createTime", ""),
            )
        )
    return tuple(sent)


def sent_machines(payload: bytes) -> tuple[str, ...]:
    """Return the MachineName of every record of a payload of ours, in order."""
    return tuple(record.machine_name for record in sent_records(payload))


def sent_names(payload: bytes) -> tuple[tuple[str, str], ...]:
    """Return each record's recordId and what may replace it, in order; none unless well-formed.

    Records of our own writer are read by how it begins them (hot path): parsing them is slow.
    """
    found = [_NAMES(record) for record in payload.split(_BEGINS)[1:]]
    names = [(one[1].decode(), one[2].decode()) for one in found if one is not None]
    if len(names) == len(found) > 0 and all(job_id for _, job_id in names):
        return tuple(names)
    return tuple((record.record_id, record.replacement) for record in sent_records(payload))


def service_paths(body: bytes) -> Mapping[str, str] | None:
    """Name and path of every service in the service list; None when it is none.

    Only the path: the server makes host and port of its own headers, and behind an address
    translation they are wrong.
    """
    root = _parse(body)
    if root is None or etree.QName(root).localname != "services":
        return None
    found = {}
    for service in root.iter("{*}service"):
        name = (service.findtext("{*}name") or "").strip()
        try:
            path = urlsplit((service.findtext("{*}href") or "").strip()).path
        except ValueError:
            continue
        if name and path.startswith("/"):
            found[name] = path
    return found


def _parse(document: bytes) -> etree._Element | None:
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True
    )
    try:
        return etree.fromstring(document, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


class Hint(StrEnum):
    """What helps. `RIGHT` names the DN in both spellings and the MachineName, which SGAS needs."""

    NONE = ""
    RIGHT = "right"
    HOST_NAME = "host name"
    CERTIFICATE = "certificate"
    URL = "url"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """The verdict of a row, and the advice for the administrator."""

    verdict: Verdict
    exit_status: int
    advice: Hint = Hint.NONE
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was asked: the payload, and who asked."""

    payload: bytes
    subject: SubjectNames


_AGAIN: Final = ResponseRule(Verdict.RETRY_LATER, LATER)
_DOUBT: Final = ResponseRule(Verdict.IN_DOUBT, LATER)
_BAD_RECORD: Final = ResponseRule(Verdict.REFUSED, REFUSED)
_UNKNOWN: Final = ResponseRule(Verdict.REFUSED, REFUSED, certain=False)
_TOO_LARGE: Final = ResponseRule(Verdict.TOO_LARGE, REFUSED)


def _stop(exit_status: int, advice: Hint) -> ResponseRule:
    return ResponseRule(Verdict.STOP_TARGET, exit_status, advice)


_IN_BETWEEN: Final = (
    "; the records are sent again; check `url`, and any proxy or gateway between this host and SGAS"
)
# Not every MachineName is covered; which is not said, for the answer names all of them.
_MACHINE: Final = ResponseRule(Verdict.REFUSED, CREDENTIALS, Hint.RIGHT, certain=False)

# No answer at all. What nobody can repair by trying again stops the target before anything leaves.
SILENCES: Final[Mapping[Failure, ResponseRule]] = {
    Failure.NOT_SENT: _AGAIN,
    Failure.MAYBE_SENT: _DOUBT,  # SGAS finishes an insert whether or not the client waits
    Failure.OUR_CERTIFICATE: _stop(CREDENTIALS, Hint.CERTIFICATE),
    Failure.THEIR_CERTIFICATE: _stop(CREDENTIALS, Hint.NONE),
    Failure.PROXY: _stop(CONFIGURATION, Hint.NONE),
    Failure.IMPOSSIBLE: _stop(CONFIGURATION, Hint.NONE),
}

# Status and voice; a row without a voice is for all that have none of their own.
STATUSES: Final[Mapping[tuple[int, AnsweredBy | None], ResponseRule]] = {
    # nginx demands a certificate and does so over HTTP: TLS itself succeeds
    (400, AnsweredBy.NGINX): _stop(CREDENTIALS, Hint.CERTIFICATE),
    (400, None): _stop(REFUSED, Hint.FOREIGN),
    (401, None): _stop(CREDENTIALS, Hint.FOREIGN),
    # no `jobinsert` right at all
    (403, AnsweredBy.PLAIN): _stop(CREDENTIALS, Hint.RIGHT),
    # a firewall, or nginx with a list of addresses
    (403, None): _stop(REFUSED, Hint.FOREIGN),
    # a wrong path (also: a trailing slash, another case), or the service list's
    (404, None): _stop(CONFIGURATION, Hint.URL),
    (405, None): _stop(CONFIGURATION, Hint.URL),
    # a right, but not for a MachineName of the batch; where SGAS names it, see `_MACHINE`
    (406, None): _stop(CREDENTIALS, Hint.RIGHT),
    (408, None): _DOUBT,
    (413, None): _TOO_LARGE,
    (425, None): _AGAIN,
    (429, None): _AGAIN,
    # nginx itself, which has no room to keep the body for instance
    (500, AnsweredBy.NGINX): _AGAIN,
    # a balancer or a proxy: not SGAS's words, so no record is to blame
    (500, AnsweredBy.FOREIGN): _DOUBT,
    (500, AnsweredBy.SILENCE): _DOUBT,
    # Twisted 19.7 and newer keep the traceback to themselves
    (500, AnsweredBy.BARE): _UNKNOWN,
    # SGAS is down, or was killed at work: before its commit as a rule, but nobody knows
    (502, None): _DOUBT,
    # SGAS cannot reach its database
    (503, None): _AGAIN,
    # an insert of more than 60 s, which is committed all the same
    (504, None): _DOUBT,
}

_TRANSIENT_WORDS: Final = re.compile(
    r"FATAL|PANIC|connection|canceling statement|too many|deadlock detected|"
    r"could not (?:serialize|extend)|read-only|No space left|out of memory|"
    r"shutting down|starting up"
)
# Voice, words and ruling for a 500 of SGAS itself; the first row that matches counts.
WORDS: Final[tuple[tuple[AnsweredBy, re.Pattern[str], ResponseRule], ...]] = (
    # 3.8.1 at the first insert after its database restarted; the next one works
    (AnsweredBy.PLAIN, re.compile("insertJobUsageRecords"), _AGAIN),
    # PostgreSQL on a value. Before the transient words, which that value may hold.
    (
        AnsweredBy.PLAIN,
        re.compile(
            r"value too long|null value|out of range|violates|"
            r"invalid (?:input syntax|byte sequence)|exceeds btree"
        ),
        _BAD_RECORD,
    ),
    # a number too wide for its column has another type, and there is no function for such arguments
    (
        AnsweredBy.PLAIN,
        re.compile(r"function urcreate\(.*\b(?:bigint|numeric)\b.* does not exist"),
        _BAD_RECORD,
    ),
    # the same without such a type may be a server without its functions: every record fails
    (AnsweredBy.PLAIN, re.compile(r"function urcreate\("), _UNKNOWN),
    # Memory that is not a number, in a unit or with a metric that is not known
    (AnsweredBy.PLAIN, re.compile(r"for \*: 'NoneType'|SgasMemory"), _BAD_RECORD),
    # the database is up but unwilling: connections, password, standby, statement timeout
    (AnsweredBy.PLAIN, _TRANSIENT_WORDS, _AGAIN),
    # The right is there, but the CN of this host's DN is not a host name, or none that SGAS can
    # take out: then the head of development stumbles over its own message (`name 'identity' is not
    # defined`)
    (
        AnsweredBy.TRACEBACK,
        re.compile(
            r"\bFQDN\b|[Cc]ould not extract|name 'identity' is not defined|"
            r"(?<!['\"])\bidentity\b(?!['\"])"
        ),
        _stop(CREDENTIALS, Hint.HOST_NAME),
    ),
    # the parser fell over an empty element, no createTime or an odd number, or no MachineName
    (
        AnsweredBy.TRACEBACK,
        re.compile(
            r"^(?:ParseError|ExpatError|TypeError|AttributeError|OverflowError|ValueError|KeyError|"
            r"Unicode\w+Error):|faulty URs"
        ),
        _BAD_RECORD,
    ),
    # words that nobody has met yet: the record or the server, narrowing down will show
    (AnsweredBy.TRACEBACK, re.compile(""), _UNKNOWN),
    (AnsweredBy.PLAIN, re.compile(""), _UNKNOWN),
)


def interpret(answer: Answer | RequestFailure, sent: Sent) -> Receipt:
    """What became of a batch. The reason is one line of at most 500 characters, '' for success."""
    if isinstance(answer, RequestFailure):
        rule = SILENCES[answer.failure]
        return _receipt(rule, f"{answer.reason or 'no answer'}{_advice(rule.advice, sent, None)}")
    if answer.status == 200:
        return _accepted(answer, sent)
    error_page = parse_error_page(answer.body)
    if 300 <= answer.status < 400:
        where = plain(answer.headers.get("location", "")) or "nowhere"
        return _receipt(
            _stop(CONFIGURATION, Hint.URL),
            f"SGAS answered {answer.status} and points to {where[:200]}; "
            "redirects are not followed, correct `url`",
        )
    machines = _refused_machines(answer, error_page, sent)
    rule = _MACHINE if machines else _rule_for(answer.status, error_page)
    shown = error_page.words.replace('"', "'")  # so that where the quotation ends can be determined
    words = f'"{shown}"' if shown else "without a word"
    advice = _advice(rule.advice, sent, error_page)
    if rule.advice in (Hint.RIGHT, Hint.HOST_NAME):
        # Long, and worth more than the server's words, which name the same
        receipt = _receipt(rule, f"SGAS answered {answer.status}{advice}; it said {words}")
        return receipt._replace(refused_by=machines)
    return _receipt(rule, f"SGAS answered {answer.status} {words}{advice}")


def _refused_machines(answer: Answer, error_page: ServerText, sent: Sent) -> tuple[str, ...]:
    """Return the MachineName of every record, when SGAS refuses it; none for other 406s."""
    if answer.status != 406 or error_page.speaker is not AnsweredBy.PLAIN:
        return ()
    machines = sent_machines(sent.payload)
    return machines if any(name.encode() in answer.body for name in set(machines)) else ()


def _rule_for(status: int, error_page: ServerText) -> ResponseRule:
    rule = STATUSES.get((status, error_page.speaker)) or STATUSES.get((status, None))
    if rule is not None:
        return rule
    if status == 500:
        rows = (row for row in WORDS if row[0] is error_page.speaker)
        return next(rule for _, words, rule in rows if words.search(error_page.words))
    if 400 <= status < 500:
        return _stop(REFUSED, Hint.FOREIGN)
    return _DOUBT  # other 5xx are somebody's in between; other 2xx are nobody's receipt


def _receipt(rule: ResponseRule, reason: str) -> Receipt:
    return Receipt(
        verdict=rule.verdict,
        exit_status=rule.exit_status,
        certain=rule.certain,
        reason=plain(reason),
        doubt=rule.verdict is Verdict.IN_DOUBT,
    )


def _advice(advice: Hint, sent: Sent, error_page: ServerText | None) -> str:
    subject = sent.subject
    match advice:
        case Hint.RIGHT:
            names = sorted(set(sent_machines(sent.payload)))
            shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
            machines = f" for MachineName {shown}" if names else ""
            return (
                f'; its administrator must allow jobinsert{machines} to "{subject.comma}" or, '
                f'as older nginx spell it, "{subject.slash}"'
            )
        case Hint.HOST_NAME:
            return f"; {no_host_name(subject)}"
        case Hint.CERTIFICATE:
            question = "is it expired, or its CA unknown there?"
            return f"; the certificate of {subject.slash} is not accepted: {question}"
        case Hint.URL:
            insert = "the insert URL (https://HOST:6143/sgas/ur) or the one above it"
            return f"; is `url` of the target {insert}?"
        case Hint.FOREIGN:
            who = error_page.speaker if error_page else AnsweredBy.SILENCE
            what = "something in between refuses, nothing was set aside"
            return f" ({who}), which is not SGAS's wording; {what}"
        case _:
            return ""


def no_host_name(subject: SubjectNames) -> str:
    """Return what helps when SGAS finds no host name in the DN: no right does."""
    if "." not in subject.host or " " in subject.host:
        return (
            f'no right at SGAS helps: the CN of "{subject.comma}" is not a full host name; '
            "get a certificate whose CN is that of "
            "this host, and put it in place with its key"
        )
    return (
        f'no right at SGAS helps: it takes no host name out of "{subject.slash}"; '
        f"get a certificate whose DN ends in CN={subject.host}, "
        f'or ask its administrator to let nginx hand the DN on as "{subject.comma}" (RFC 2253)'
    )


def _accepted(answer: Answer, sent: Sent) -> Receipt:
    """Status 200 means that the transaction is committed, if it was SGAS that answered."""
    try:
        reply = json.loads(answer.body) if answer.complete else ...
    except (ValueError, RecursionError):
        reply = ...
    if reply is None:
        # The head of development after its database came back: stored, with the ids lost.
        return Receipt(verdict=Verdict.DELIVERED)
    records = sent_names(sent.payload)
    rows = _row_ids(reply)
    if rows is None or not rows.keys() <= {name for names in records for name in names}:
        what = "something else than a receipt for these records"
        how = what if answer.complete else "an answer that broke off"
        return _receipt(_DOUBT, f"SGAS answered 200 with {how}: {_beginning(answer)}{_IN_BETWEEN}")
    if missing := [names for names in records if rows.keys().isdisjoint(names)]:
        what = f"but names no row for {len(missing)} of {len(records)} records"
        return _receipt(
            ResponseRule(Verdict.IN_DOUBT, REFUSED),
            f"SGAS answered 200, {what}: {_beginning(answer)}{_IN_BETWEEN}",
        )
    return _stored(rows, records)


def _row_ids(reply: object) -> Mapping[str, str] | None:
    """Row ids by record id, or None when a reply is something else."""
    if not isinstance(reply, dict):
        return None
    rows = {name: "" if isinstance(row, bool) else str(row) for name, row in reply.items()}
    return rows if all(_ROW_ID.fullmatch(row) for row in rows.values()) else None


def _beginning(answer: Answer) -> str:
    """Return the beginning of an answer, and who seems to have written it."""
    error_page = parse_error_page(answer.body)
    words = error_page.words
    if error_page.speaker is AnsweredBy.PLAIN:  # JSON may have its braces on lines of their own
        words = plain(answer.body[:_LOOKED_AT].decode("utf-8", "replace"), _SHOWN_LENGTH)
    words = words[:_SHOWN_LENGTH].replace('"', "'")
    return f'"{words}" ({error_page.speaker})'


def _stored(rows: Mapping[str, str], records: tuple[tuple[str, str], ...]) -> Receipt:
    """Row ids by JobID, the GlobalJobId, where each record has one; copies of a record share it.

    The server renames records with a strange LocalJobId.
    """
    remote_ids: dict[str, str] = {}
    renamed = 0
    for record_id, job_id in records:
        is_renamed = record_id not in rows
        remote_ids[job_id] = rows[job_id if is_renamed else record_id]
        renamed += is_renamed
    found = f"SGAS keeps {renamed} of {len(records)} records under other ids than ours"
    note = found if renamed else ""
    return Receipt(verdict=Verdict.DELIVERED, remote_ids=remote_ids, reason=note)
