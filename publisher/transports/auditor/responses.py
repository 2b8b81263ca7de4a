"""What every answer of AUDITOR means. It has few: an empty 200, and 500 with one of two words.

A list is stored in one transaction, so one record that is there already keeps all others out,
whether AUDITOR says so by 500 `RECORD_EXISTS` or, where it is configured to ignore that, by 200
with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from publisher.transports.base import CONFIGURATION, CREDENTIALS, LATER, REFUSED
from publisher.transports.http.exchange import Answer, Failure, RequestFailure, parsed, quoted

_EXISTS: Final = b"RECORD_EXISTS"
# Where AUDITOR ignores existing records: "Record already exists, but the error was ignored ..."
_IGNORED: Final = "already exist"
# Status: whether the request may have been carried out all the same.
_PASSING: Final[Mapping[int, bool]] = {408: True, 429: False, 502: True, 503: False, 504: True}


class Handling(Enum):
    """What to do.

    `EXISTS`: a record of the list is there already, and nothing was stored. `ASK_HEALTH`: AUDITOR
    failed, which may be for its database or for a record that this one does not take.
    """

    STORED = "stored"
    EXISTS = "exists"
    RETRY = "retry"
    ASK_HEALTH = "ask for its health"
    TOO_LARGE = "too large"
    REFUSE = "refuse"
    STOP = "stop"


class Interpretation(NamedTuple):
    """`reason` is for people, `doubt` says that the records may have been stored."""

    action: Handling
    reason: str = ""
    exit_status: int = 0
    doubt: bool = False
    asked: str = ""


_SILENCE: Final[Mapping[Failure, Interpretation]] = {
    Failure.NOT_SENT: Interpretation(Handling.RETRY, "", LATER),
    Failure.MAYBE_SENT: Interpretation(Handling.RETRY, "", LATER, doubt=True),
    Failure.OUR_CERTIFICATE: Interpretation(Handling.STOP, "", CREDENTIALS),
    Failure.THEIR_CERTIFICATE: Interpretation(Handling.STOP, "", CREDENTIALS),
    Failure.PROXY: Interpretation(Handling.STOP, "", CONFIGURATION),
    Failure.IMPOSSIBLE: Interpretation(Handling.STOP, "", CONFIGURATION),
}


_RULES: Final = (
    "its administrator must put the CN of this host's certificate into `write_access_cn`"
)
_REFUSALS: Final[Mapping[int, tuple[Handling, int, str]]] = {
    400: (Handling.REFUSE, REFUSED, "it does not take this for a record"),
    401: (Handling.STOP, CREDENTIALS, _RULES),
    403: (Handling.STOP, CREDENTIALS, _RULES),
    413: (Handling.TOO_LARGE, REFUSED, "too large for the service"),
}
_NOBODY: Final = "no AUDITOR answers there; check `url` of the target"
_NO_AUDITOR: Final = (Handling.STOP, CONFIGURATION, _NOBODY)


def interpret(answer: Answer | RequestFailure, records: int) -> Interpretation:
    """What to do after handing over so many records."""
    if isinstance(answer, RequestFailure):
        return _SILENCE[answer.failure]._replace(reason=answer.reason)
    status, reason = answer.status, f"AUDITOR answered {quoted(answer)}"
    if status == 200:
        return _accepted(answer, records, reason)
    if status == 500 and answer.body.strip() == _EXISTS:
        return _there(records, reason)
    if status in _PASSING:
        doubt, asked = _PASSING[status], answer.retry_after
        return Interpretation(Handling.RETRY, reason, LATER, doubt=doubt, asked=asked)
    if status >= 500:
        asked = answer.retry_after
        return Interpretation(Handling.ASK_HEALTH, reason, LATER, doubt=True, asked=asked)
    handling, exit_status, advice = _REFUSALS.get(status, _NO_AUDITOR)
    return Interpretation(handling, f"{reason}: {advice}", exit_status)


def _there(records: int, reason: str) -> Interpretation:
    """One record is there already; of several, some are."""
    if records == 1:
        return Interpretation(Handling.STORED)
    return Interpretation(Handling.EXISTS, reason, REFUSED)


def is_bare(answer: Answer | RequestFailure) -> bool:
    """Whether this is the 200 of AUDITOR, which has no body and no Content-Type."""
    if not isinstance(answer, Answer) or answer.status != 200 or not answer.complete:
        return False
    return not answer.body and "content-type" not in answer.headers


def _is_warning(document: Mapping[str, object]) -> bool:
    """Whether AUDITOR says that it ignored a record because it exists."""
    return document.keys() == {"warning"} and _IGNORED in str(document["warning"]).lower()


def _accepted(answer: Answer, records: int, reason: str) -> Interpretation:
    if is_bare(answer):
        return Interpretation(Handling.STORED)
    document = parsed(answer.body) if answer.complete else None
    if isinstance(document, dict) and _is_warning(document):
        return _there(records, reason)
    reason = f"{reason}, which AUDITOR does not say: the records are sent again; check `url`"
    return Interpretation(Handling.RETRY, reason, LATER, doubt=True)
