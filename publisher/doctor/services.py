"""Certificate, CAs and services: who we are, whom we trust, what we can reach and may do there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from threading import Lock
from typing import Any, Final

from publisher.doctor.findings import Finding, PerfData, Question, State, not_asked
from publisher.model.errors import CredentialError, PublisherError
from publisher.policy.target import Target
from publisher.publishing.round.live import Sending
from publisher.publishing.site import ProcessEnvironment
from publisher.transports.base import Endpoint, Step, StepText
from publisher.transports.credentials.checks import (
    SOON,
    TOO_LATE,
    certificate_ends,
    check_credentials,
    check_trust,
    not_here,
)
from publisher.transports.http.reachability import reach

_WHY: Final[Mapping[str, str]] = {
    "certificate": "services know this host by it, and messages are signed with it",
    "certificate dates": "every service refuses a certificate outside its dates",
    "certificate purpose": "a certificate for something else is refused by services, "
    "and its signatures by APEL",
    "certificate profile": "some services insist on it",
    "subject": "exactly this must be registered",
    "key": "it signs messages; whoever has it can sign in this host's name",
    "CAs": "nothing is sent to a service whose certificate no trusted CA has issued",
    "our CA": "a service that trusts the same CAs would not know this host",
    "CRLs": "only a current list shows that a certificate was revoked",
    "name": "a service is found by its name",
    "connection": "records cannot go where no connection goes",
    "TLS": "no record is sent to a server without a valid certificate",
    "clock": "signatures, certificates and our end times depend on it",
}
_WHY_SETTINGS: Final = "its settings decide what the receiver gets"
_ELSE: Final = StepText("the transport needs this before it can send", "")
_CREDENTIAL_STEPS: Final = ("certificate", "certificate dates", "certificate purpose", "key")


def check_identity(
    sending: Sending, process: ProcessEnvironment, targets: Sequence[Target]
) -> Iterator[Finding | PerfData]:
    """The certificate, its key, and the CAs."""
    credentials, now = sending.credentials(), process.clock()
    options: list[Any] = [target.options for target in targets if _shows_certificate(target)]
    if not options:
        return
    open_key = all(getattr(one, "allow_open_key", False) for one in options)
    for step in check_credentials(credentials, now, process.environment, allow_open_key=open_key):
        yield _finding(step, "credentials")
    ends = certificate_ends(credentials)
    if ends is not None:
        soon, too_late = f"{SOON.days}:", f"{TOO_LATE.days}:"
        days = (ends - now).days
        yield PerfData(label="certificate_days", value=days, warn=soon, critical=too_late)
    for step in check_trust(credentials, now):
        yield _finding(step, "credentials")


Examined = dict[str, Future[tuple[Step, ...]]]
"""Each service is examined once, however many targets talk to it at the same time."""
_ONE_AT_A_TIME: Final = Lock()


def _ways(
    sending: Sending, process: ProcessEnvironment, target: Target, known: Examined
) -> Iterator[Finding]:
    try:
        for endpoint in sending.endpoints(target):
            yield from _way(sending, process, target, endpoint, known)
    except PublisherError as error:  # no CAs, or a proxy that is none
        yield Question("connection", target.name, _WHY["connection"]).error(
            error, "correct `url` or `proxy` of the target, or `ca` of the credentials"
        )


def check_services(
    sending: Sending,
    process: ProcessEnvironment,
    target: Target,
    identity: Callable[[], Sequence[Finding | PerfData]],
    known: Examined,
) -> Iterator[Finding]:
    """The way to each service of a target, and its answer. `identity` waits for credentials."""
    ways = list(_ways(sending, process, target, known))
    yield from ways
    why = "only the service itself can say whether it will take our records"
    question = Question("preflight", target.name, why)
    found = [one for one in identity() if isinstance(one, Finding) and one.state is State.FAILURE]
    unfit = [one for one in found if one.name in _CREDENTIAL_STEPS]
    if because := _reason_not_to_ask(sending, target, unfit, ways):
        yield not_asked(question, because)
    else:
        yield from _preflight(sending, process, target, question)


def _reason_not_to_ask(
    sending: Sending, target: Target, unfit: Sequence[Finding], ways: Sequence[Finding]
) -> str:
    """'' where the service can be asked."""
    shows_certificate = _shows_certificate(target)
    failed = [one for one in ways if one.state is State.FAILURE]
    if shows_certificate:
        failed = [*unfit, *failed]
    if failed:
        return f"of the finding about {failed[0].name} ({failed[0].part})"
    if shows_certificate and not_here(sending.credentials()) is not None:
        return "the key is available only to the service"
    return ""


def _way(
    sending: Sending,
    process: ProcessEnvironment,
    target: Target,
    endpoint: Endpoint,
    known: Examined,
) -> Iterator[Finding]:
    key = f"{endpoint.url} {endpoint.proxy}"
    with _ONE_AT_A_TIME:
        is_first = key not in known
        steps = known.setdefault(key, Future())
    if is_first:
        try:
            clocks = process.clock, process.monotonic
            steps.set_result(reach(endpoint, sending.credentials(), *clocks))
        except PublisherError as error:  # raised by `result`, for each target that asks
            steps.set_exception(error)
    for step in steps.result():
        yield _finding(step, f"{target.name}, {endpoint.name}")


def _preflight(
    sending: Sending, process: ProcessEnvironment, target: Target, question: Question
) -> Iterator[Finding]:
    try:
        with closing(sending.transport(target)) as transport:
            for step in transport.preflight():
                yield _answered(step, target)
            # Those of the certificate were reported above, in better words.
            for warning in transport.warnings(process.clock()):
                if not warning.startswith("the certificate "):
                    found, _, advice = warning.partition(": ")
                    doubt = Question("target", target.name, _WHY_SETTINGS)
                    yield doubt.warning(found, advice or "see publisher.yaml(5)")
    except CredentialError as error:
        yield question.error(error, "renew or correct the certificate or its key")


def _shows_certificate(target: Target) -> bool:
    """All but files that somebody else signs."""
    return getattr(target.options, "sign", None) is not False


def _finding(step: Step, part: str) -> Finding:
    return Question(step.name, part, _WHY[step.name]).step(step)


def _answered(step: Step, target: Target) -> Finding:
    """A step of the pre-flight check, in the words of the target's own transport."""
    texts: Mapping[str, StepText] = getattr(target.options, "step_texts", {})
    why, otherwise = texts.get(step.name, _ELSE)
    return Question(step.name, target.name, why).step(step, otherwise)
