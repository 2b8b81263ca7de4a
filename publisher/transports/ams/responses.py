"""What an answer of AMS or authn means: pure functions, a table for each server family.

Three voices answer on these ports: argo-messaging and argo-api-authn, always with an error envelope
or the plain text of Go's router; and the balancer in front, with HTML or nothing. Their words are
distinguished by that.

Spec: argo-messaging 1.7.0 and devel, argo-api-authn eb23120.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from publisher.transports.base import CONFIGURATION, CREDENTIALS, LATER, REFUSED
from publisher.transports.http.exchange import (
    Answer,
    Failure,
    RequestFailure,
    envelope_message,
    parsed,
    quoted,
)

# Above this many characters of base64, AMS 1.7's "Backend Error" may be its way of saying too large
# (its check for 413 compares the producer's words, which have changed).
BIG: Final = 650_000


class AmsAction(StrEnum):
    """What to do now. `RETRY` repeats the same bytes; `RETRY_THEN_SPLIT` once, then splits."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    RETRY_THEN_SPLIT = "retry, then split"
    SPLIT = "split"
    REFUSE_MESSAGE = "refuse message"
    REFRESH_TOKEN = "refresh token"  # noqa: S105 - the name of an action
    STOP_TARGET = "stop target"


class Decision(NamedTuple):
    """An action and why. `doubt`: the request may have been carried out; `asked` is Retry-After.

    `certain` is False for a refusal that may be about all messages rather than this one.
    """

    action: AmsAction
    reason: str = ""
    exit_status: int = 0
    doubt: bool = False
    certain: bool = True
    remote_id: str = ""
    asked: str = ""


def _stop(exit_status: int, reason: str) -> Decision:
    return Decision(action=AmsAction.STOP_TARGET, exit_status=exit_status, reason=reason)


def _retry(reason: str, *, doubt: bool = False, asked: str = "") -> Decision:
    return Decision(
        action=AmsAction.RETRY, exit_status=LATER, reason=reason, doubt=doubt, asked=asked
    )


# Silence, whoever kept it. Lasting failures stop the target before anything leaves.
_SILENCE: Final[Mapping[Failure, Decision]] = {
    Failure.NOT_SENT: _retry(""),
    Failure.MAYBE_SENT: _retry("", doubt=True),
    Failure.OUR_CERTIFICATE: _stop(CREDENTIALS, ""),
    Failure.THEIR_CERTIFICATE: _stop(CREDENTIALS, ""),
    Failure.PROXY: _stop(CONFIGURATION, ""),
    Failure.IMPOSSIBLE: _stop(CONFIGURATION, ""),
}

# The balancer's and the machine's own troubles, the same on both ports: status -> whether the
# request may have gone through. 504 and 408 leave Kafka at work behind the client's back; 502 is
# AMS dying after Kafka accepted; 503 and 429 never got in.
_PASSING: Final[Mapping[int, bool]] = {
    **dict.fromkeys((408, 500, 502, 504), True),
    **dict.fromkeys((429, 503), False),
}

# argo-messaging's 404s for an absent project or topic; the router's own is no JSON.
_AMS_ABSENT: Final[Mapping[str, str]] = {
    "project doesn't exist": "check `project` of the target",
    "topic doesn't exist": "check `topic` of the target",
}
# argo-messaging's 400s about the address (checked before the token), not about the message.
_AMS_BAD_NAMES: Final = ("invalid topic name", "invalid project name")

# argo-api-authn's refusals: words of its message -> exit status and what helps. First match wins.
_AUTHN_REFUSALS: Final = (
    (
        "no certificate provided",
        CREDENTIALS,
        "the client certificate did not arrive; something in between ends TLS",
    ),
    (
        "no such host",
        CREDENTIALS,
        "this machine's address needs a reverse DNS name (think of IPv6), which the service checks",
    ),
    ("legacy common name", CREDENTIALS, "the certificate needs a subject alternative name (SAN)"),
    (
        "certificate is valid for",
        CREDENTIALS,
        "the reverse DNS name of this machine is not in the certificate",
    ),
    ("expired", CREDENTIALS, "renew the certificate"),
    ("not active yet", CREDENTIALS, "check this machine's clock and the certificate's first day"),
    (
        "crldistributionpoints",
        CREDENTIALS,
        "the certificate needs a CRL URL; ask the CA for another profile",
    ),
    ("revoked", CREDENTIALS, "get a new certificate"),
    ("service-type was not found", CONFIGURATION, "check `auth_url` of the target"),
    ("not yet supported", CONFIGURATION, "check `auth_url` of the target"),
    (
        "host was not found",
        CONFIGURATION,
        "`service_host` must be the name that the service is registered under, no alias",
    ),
    ("auth method was not found", CONFIGURATION, "ask the operators of the service"),
    (
        "binding was not found",
        CREDENTIALS,
        "register this host in GOCDB (service type gLite-APEL for jobs) "
        "with exactly this host DN; it takes up to 4 hours",
    ),
)

# Ids are decimal numbers; other words without blanks may come with another broker.
_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TOKEN: Final = re.compile(r"[!-~]{1,1024}")


def token_of(answer: Answer) -> str:
    """The token in an answer of authn, or '' when there is none that a header could carry."""
    document = parsed(answer.body)
    token = document.get("token") if isinstance(document, dict) else None
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else ""


def _is_passing(status: int) -> bool:
    """Whether it may go well the next time."""
    return status in _PASSING or status >= 500


def token_verdict(answer: Answer | RequestFailure) -> Decision:
    """What to do after asking authn for the token."""
    if isinstance(answer, RequestFailure):
        # Asking is harmless to repeat: there is no doubt to carry.
        return _silence(answer, doubt_matters=False)
    if 200 <= answer.status < 300:
        return _token_given(answer)
    if _is_passing(answer.status):
        return _retry(f"authn answered {quoted(answer)}", asked=answer.retry_after)
    if 300 <= answer.status < 400:
        return _redirect("authn", "auth_url", answer)
    message = envelope_message(answer)
    for words, exit_status, advice in _AUTHN_REFUSALS:
        if message and words in message.lower():
            return _stop(exit_status, f"authn answered {quoted(answer)}: {advice}")
    if answer.status == 404 and not message:
        advice = "no such address; check `auth_url` of the target"
        return _stop(CONFIGURATION, f"authn answered {quoted(answer)}: {advice}")
    return _stop(CREDENTIALS, f"authn answered {quoted(answer)}")


def _token_given(answer: Answer) -> Decision:
    """A success. Nothing of its body is quoted, however wrong it is: the token may be there."""
    if not answer.complete:
        what = f"but the answer broke off after {len(answer.body)} bytes"
        return _retry(f"authn answered {answer.status}, {what}")
    if answer.status == 200 and token_of(answer):
        return Decision(action=AmsAction.ACCEPTED)
    advice = "is `auth_url` of the target the right service?"
    return _stop(REFUSED, f"authn answered {answer.status} without a token; {advice}")


def publish_verdict(sent_base64_length: int, answer: Answer | RequestFailure) -> Decision:
    """What to do after handing over one message of this many base64 characters."""
    if isinstance(answer, RequestFailure):
        return _silence(answer)
    status, message = answer.status, envelope_message(answer).lower()
    if status == 200:
        return _accepted(answer)
    if status == 500 and message == "backend error" and sent_base64_length > BIG:
        reason = f"AMS answered {quoted(answer)} to {sent_base64_length} characters"
        reason += ", which may be too many"
        return Decision(AmsAction.RETRY_THEN_SPLIT, exit_status=LATER, reason=reason, doubt=True)
    if status == 413:
        reason = f"{quoted(answer)}: too large for the service"
        return Decision(AmsAction.SPLIT, exit_status=REFUSED, reason=reason)
    if _is_passing(status) or 200 < status < 300:
        doubt = _PASSING.get(status, True)
        return _retry(f"AMS answered {quoted(answer)}", doubt=doubt, asked=answer.retry_after)
    if 300 <= status < 400:
        return _redirect("AMS", "url", answer)
    return _refusal(answer, message)


def _refusal(answer: Answer, message: str) -> Decision:
    status, reason = answer.status, f"AMS answered {quoted(answer)}"
    if status == 401:
        return Decision(action=AmsAction.REFRESH_TOKEN, exit_status=CREDENTIALS, reason=reason)
    if status == 403:
        what = "authenticated, but this user may not publish to the topic (not in its ACL)"
        return _stop(CREDENTIALS, f"{reason}: {what}")
    if status == 404:
        default = "no such address; check `url` of the target: "
        default += "it must be AMS itself, not its token service"
        return _stop(CONFIGURATION, f"{reason}: {_AMS_ABSENT.get(message, default)}")
    if status == 400 and message.startswith(_AMS_BAD_NAMES):
        return _stop(CONFIGURATION, f"{reason}: check `project` and `topic` of the target")
    if status == 400 and message == "invalid request body":
        # The upload broke, the message was not judged
        return _retry(reason)
    if status == 400:
        # The body is well formed JSON by construction, so this may as well be about the topic (a
        # schema) or about AMS itself; and without an envelope it is the balancer's word. Only
        # messages that got through before show which.
        return Decision(AmsAction.REFUSE_MESSAGE, exit_status=REFUSED, reason=reason, certain=False)
    return _stop(REFUSED, f"{reason}, which is not an answer of AMS; ask its operators")


def _accepted(answer: Answer) -> Decision:
    document = parsed(answer.body) if answer.complete else None
    # Nothing but the ids: an error beside them is of a service that only resembles AMS.
    ids = None
    if isinstance(document, dict) and document.keys() == {"messageIds"}:
        ids = document["messageIds"]
    # One id for one message. AMS answers 200 and `[]` to a body without messages, and its client
    # library turns HTML into 200.
    if isinstance(ids, list) and len(ids) == 1 and _is_message_id(ids[0]):
        return Decision(action=AmsAction.ACCEPTED, remote_id=ids[0])
    reason = f"AMS answered {quoted(answer)}, which is not a receipt for one message"
    return _retry(reason, doubt=True)


def _is_message_id(value: object) -> bool:
    """Whether AMS may have made this id: an offset in its topic, or -1 when it cannot read one."""
    return isinstance(value, str) and _MESSAGE_ID.fullmatch(value) is not None


def _redirect(service: str, key: str, answer: Answer) -> Decision:
    where = answer.headers.get("location", "")[:120]
    return _stop(
        CONFIGURATION,
        f"{service} answered {answer.status} and points to {where or 'nowhere'}; "
        "redirects are not followed, for they would carry the token elsewhere; "
        f"check `{key}` of the target",
    )


def _silence(answer: RequestFailure, *, doubt_matters: bool = True) -> Decision:
    decision = _SILENCE[answer.failure]
    return decision._replace(reason=answer.reason, doubt=decision.doubt and doubt_matters)
