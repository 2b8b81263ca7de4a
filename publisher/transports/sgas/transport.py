"""Delivery to SGAS: one batch a request over one kept-alive connection, and the right reaction to every answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from publisher.model.errors import CredentialError
from publisher.model.message import Message
from publisher.transports.base import Credentials, Environment, Receipt, Step, Verdict
from publisher.transports.credentials.host_certificate import ends_soon, load_certificate, load_key, validity
from publisher.transports.http.answers import Answer, Failure, RequestFailure, plain
from publisher.transports.http.lazy_session import LazySession
from publisher.transports.http.retry import RetrySchedule, asked_wait_s
from publisher.transports.http.tls import client_context, trust_described
from publisher.transports.sgas import Options, endpoints
from publisher.transports.sgas.dn import subject_names
from publisher.transports.sgas.responses import (
    CONFIGURATION,
    CREDENTIALS,
    REFUSED,
    Sent,
    interpret,
    no_host_name,
    parse_error_page,
    sent_machines,
    service_paths,
)

_log: Final = logging.getLogger("publisher.transports")

# A limit learnt from a refusal is never taken for smaller than this: what is larger than a limit is set aside when it is a
# single record, and that shall be the service's word, not a guess.
SMALLEST_LIMIT: Final = 65_536
_BASE: Final = "/sgas"
_INSERT: Final = "/ur"
_REGISTRATION: Final = "Registration"  # the service of job records; its siblings take storage and the like
_NO_RECORDS: Final = b'<UsageRecords xmlns="http://schema.ogf.org/urf/2003/09/urf"/>'
_HEADERS: Final = {"Content-Type": "text/xml; charset=utf-8"}
_PASSING: Final = (Verdict.IN_DOUBT, Verdict.RETRY_LATER)


class SgasTransport:
    """A `Transport` to one SGAS server."""

    def __init__(
        self, options: Options, credentials: Credentials, circumstances: Environment, *, allow_open_key: bool
    ) -> None:
        """Raises: CredentialError, ConfigError"""
        self._base, self._insert = _paths(options.url)
        self._listed = False
        self._options = options
        self._world = circumstances
        self._path = credentials.certificate
        certificate = load_certificate(credentials.certificate)
        load_key(credentials.key, certificate, allow_open=allow_open_key)
        self._begins, self._ends = validity(certificate)
        self._subject = subject_names(certificate.subject)
        self._schedule = RetrySchedule(attempts=options.attempts, budget_s=options.retry_budget_s)
        self._lost_s = 0.0
        self._refused: dict[str, Receipt] = {}  # by the MachineName that this host may not insert for
        self._limit = options.batch_bytes
        (service,) = endpoints(options, circumstances.environment)
        trust = trust_described(credentials)
        self._session = LazySession(service, client_context(credentials), trust=trust, clock=circumstances.clock)
        self._check(circumstances.now())

    def payload_limit(self) -> int:
        """The option, or less once the service has refused a size. The payload travels as it is."""
        return self._limit

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Deliver a batch and return the receipt.

        Raises: CredentialError before anything is sent, when the certificate has ended.
        """
        self._check(now)
        size = len(message.payload)
        if size > self._options.batch_bytes:
            reason = f"{size} bytes are over the limit of {self._options.batch_bytes} (`batch_bytes` of the target)"
            return Receipt(verdict=Verdict.TOO_LARGE, exit_status=REFUSED, reason=reason, attempts=0)
        sent = Sent(payload=message.payload, subject=self._subject)
        if (too_large := self._too_large(message.payload)) is not None:
            return too_large
        attempts = bytes_sent = 0
        doubt = False
        while True:
            began = self._world.clock()
            attempts += 1
            answer = self._insert_answer(message.payload)
            if isinstance(answer, Answer) or answer.failure is Failure.MAYBE_SENT:
                bytes_sent += size * answer.tries
            receipt = interpret(answer, sent)
            # Of two tries on two connections, the first may have been stored whatever the second one met.
            doubt = doubt or receipt.doubt or answer.tries > 1
            if receipt.verdict not in _PASSING:
                break
            self._lost_s += self._world.clock() - began
            if not self._wait_for_retry(answer, receipt, attempts, message):
                verdict = Verdict.IN_DOUBT if doubt else Verdict.RETRY_LATER
                receipt = replace(receipt, verdict=verdict)
                break
        if len(set(receipt.refused_by)) == 1:
            self._refused[receipt.refused_by[0]] = receipt
        if receipt.verdict is Verdict.TOO_LARGE:
            self._limit = min(self._limit, max(SMALLEST_LIMIT, size // 2))
        delivered = receipt.verdict is Verdict.DELIVERED
        return replace(receipt, attempts=attempts, bytes_sent=bytes_sent, doubt=doubt and not delivered)

    def preflight(self) -> tuple[Step, ...]:
        """Certificate, service list, right to insert, in this order up to the first that fails; stores nothing.

        An empty document proves the right, but not for the MachineName: SGAS looks at that only in records.
        """
        nothing = Sent(payload=_NO_RECORDS, subject=self._subject)
        answer = self._session.exchange("GET", self._base)
        if not isinstance(answer, Answer) or answer.status != 200:
            receipt = interpret(answer, nothing)
            name = "certificate" if receipt.exit_status == CREDENTIALS else "services"
            return (Step(name=name, answer=receipt.reason, exit_status=receipt.exit_status),)
        steps = [Step(name="certificate", answer=f"accepted, as {self._subject.comma} or {self._subject.slash}")]
        found = service_paths(answer.body) or {}
        if _REGISTRATION not in found:
            names = ", ".join(sorted(found)) or f'none: "{parse_error_page(answer.body).words}"'
            reason = f"{self._base} lists no service {_REGISTRATION} ({plain(names, 200)}); check `url` of the target"
            return (*steps, Step(name="services", answer=reason, exit_status=CONFIGURATION))
        steps.append(Step(name="services", answer=plain(", ".join(sorted(found)))))
        receipt = interpret(self._insert_answer(_NO_RECORDS), nothing)
        if receipt.verdict is Verdict.DELIVERED:
            answer_text = f"an empty document was taken at {self._insert}; the MachineName is looked at in records only"
            return (*steps, Step(name="right to insert", answer=answer_text))
        reason, exit_status = receipt.reason, receipt.exit_status
        if receipt.verdict is Verdict.REFUSED:  # there is no record in it that could be at fault
            exit_status = CREDENTIALS
            advice = f"ask its administrator about the entry of {self._subject.comma}"
            if "." not in self._subject.host:
                advice = no_host_name(self._subject)
            reason = f"{reason}, even to an empty document; {advice}"
        return (*steps, Step(name="right to insert", answer=plain(reason), exit_status=exit_status))

    def warnings(self, now: datetime) -> list[str]:
        """An expiry of the certificate within 30 days."""
        return list(ends_soon(self._path, self._subject.slash, self._ends, now))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _too_large(self, payload: bytes) -> Receipt | None:
        """The refusal of a message with a MachineName that was refused alone in this round; None when there is none.

        SGAS reads its list of rights once, when it starts, so that to ask again would tell nothing new.
        """
        if not self._refused:
            return None
        machines = sent_machines(payload)
        known = next((self._refused[name] for name in machines if name in self._refused), None)
        return replace(known, refused_by=machines, attempts=0, bytes_sent=0) if known else None

    def _check(self, now: datetime) -> None:
        """Raises: CredentialError"""
        who = f"the certificate {self._path} ({self._subject.slash})"
        if now >= self._ends:
            raise CredentialError(
                f"{who} expired on {self._ends:%Y-%m-%d %H:%M} UTC; get a new one from your CA and put it in place, "
                "nothing was sent"
            )
        if now < self._begins:
            raise CredentialError(
                f"{who} is not valid before {self._begins:%Y-%m-%d %H:%M} UTC; check this machine's clock, nothing was sent"
            )

    def _insert_answer(self, payload: bytes) -> Answer | RequestFailure:
        """The answer to a POST; where nothing is at the usual address, the service list is asked once for the right one."""
        answer = self._session.exchange("POST", self._insert, payload, _HEADERS)
        if self._listed or not isinstance(answer, Answer) or answer.status not in (404, 405):
            return answer
        self._listed = True
        path = self._listed_path()
        if path in ("", self._insert):
            return answer
        _log.info("nothing takes records at %s; the service list names %s", self._insert, path)
        self._insert = path
        return self._session.exchange("POST", self._insert, payload, _HEADERS)

    def _listed_path(self) -> str:
        """Where the service list says that job records go, or an empty string."""
        answer = self._session.exchange("GET", self._base)
        found: Mapping[str, str] | None = None
        if isinstance(answer, Answer) and answer.status == 200:
            found = service_paths(answer.body)
        return (found or {}).get(_REGISTRATION, "")

    def _wait_for_retry(
        self, answer: Answer | RequestFailure, receipt: Receipt, attempts: int, message: Message
    ) -> bool:
        """Wait for the next attempt; False when there shall be none."""
        asked = answer.headers.get("retry-after", "") if isinstance(answer, Answer) else ""
        wait_s = self._schedule.wait_s(
            attempts_made=attempts,
            spent_s=self._lost_s,
            chance=self._world.chance(),
            asked_s=asked_wait_s(asked, self._world.now()),
        )
        if wait_s is None:
            return False
        _log.info(
            "message %s: attempt %d of %d failed, the next in %.1f s: %s",
            message.id,
            attempts,
            self._schedule.attempts,
            wait_s,
            receipt.reason,
        )
        self._lost_s += wait_s
        return not self._world.wait(wait_s)


def _paths(url: str) -> tuple[str, str]:
    """Path of the service list and path for inserts; operators write either."""
    path = urlsplit(url).path.rstrip("/") or _BASE
    base = path.removesuffix(_INSERT) or _BASE
    return base, f"{base}{_INSERT}"
