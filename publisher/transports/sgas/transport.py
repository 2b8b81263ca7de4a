"""Delivery to SGAS: one batch a request over one kept-alive connection, a reaction to answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from publisher.model.errors import ConfigError
from publisher.model.message import Message
from publisher.transports.base import (
    CONFIGURATION,
    CREDENTIALS,
    REFUSED,
    Credentials,
    Environment,
    Receipt,
    Step,
    Verdict,
    own_options,
)
from publisher.transports.credentials.host_certificate import (
    HostCertificate,
    may_be_open,
    subject_names,
)
from publisher.transports.http.exchange import Answer, LazySession, RequestFailure, Retries, plain
from publisher.transports.http.tls import client_context, trust_described
from publisher.transports.sgas import Options
from publisher.transports.sgas.responses import (
    Sent,
    interpret,
    no_host_name,
    parse_error_page,
    sent_machines,
    service_paths,
)

_log: Final = logging.getLogger("publisher.transports")

# A limit learnt from a refusal is never taken for smaller than this: what is larger than a limit is
# set aside when it is a single record, and that shall be the service's word, not a guess.
SMALLEST_LIMIT: Final = 65_536
_BASE: Final = "/sgas"
_INSERT: Final = "/ur"
# The service of job records; its siblings take storage and the like
_REGISTRATION: Final = "Registration"
_NO_RECORDS: Final = b'<UsageRecords xmlns="http://schema.ogf.org/urf/2003/09/urf"/>'
_HEADERS: Final = {"Content-Type": "text/xml; charset=utf-8"}
_PASSING: Final = (Verdict.IN_DOUBT, Verdict.RETRY_LATER)


class SgasTransport:
    """A `Transport` to one SGAS server."""

    def __init__(self, options: object, credentials: Credentials, world: Environment) -> None:
        """Raises: CredentialError, ConfigError"""
        mine = self._options = own_options(options, Options)
        if found := mine.problems():
            raise ConfigError(found)
        allow_open_key = mine.allow_open_key or may_be_open(credentials.key, world.environment)
        certificate = HostCertificate(
            credentials,
            world.now(),
            allow_open_key=allow_open_key,
            subject_form=lambda name: subject_names(name).slash,
        )
        self._check, self.warnings = certificate.check, certificate.warnings
        self._subject = subject_names(certificate.subject)
        self._base, self._insert = _paths(mine.url)
        self._listed = False
        self._world, self._retries = world, Retries(mine, world)
        # By the MachineName that this host may not insert for
        self._refused: dict[str, Receipt] = {}
        self._limit = mine.batch_bytes
        (service,) = mine.endpoints(world.environment)
        trust = trust_described(credentials)
        self._session = LazySession(
            service, client_context(credentials), trust=trust, clock=world.clock
        )
        self.close = self._session.close

    def payload_limit(self) -> int:
        """The option, or less once the service has refused a size. The payload travels as it is."""
        return self._limit

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Deliver a batch. Raises: CredentialError, before sending, for an outdated certificate."""
        self._check(now)
        size = len(message.payload)
        if size > self._options.batch_bytes:
            limit = f"the limit of {self._options.batch_bytes} (`batch_bytes` of the target)"
            reason = f"{size} bytes are over {limit}"
            return Receipt(Verdict.TOO_LARGE, exit_status=REFUSED, reason=reason, attempts=0)
        sent = Sent(payload=message.payload, subject=self._subject)
        if (known := self._known_refusal(message.payload)) is not None:
            return known
        receipt = self._hand_over(message, sent)
        if len(set(receipt.refused_by)) == 1:
            self._refused[receipt.refused_by[0]] = receipt
        if receipt.verdict is Verdict.TOO_LARGE:
            self._limit = min(self._limit, max(SMALLEST_LIMIT, size // 2))
        return receipt

    def _hand_over(self, message: Message, sent: Sent) -> Receipt:
        """Try until something final is known, or patience ends."""
        attempts = bytes_sent = 0
        doubt = False
        while True:
            began = self._world.clock()
            attempts += 1
            answer = self._insert_answer(message.payload)
            if answer.may_have_arrived:
                bytes_sent += len(message.payload) * answer.tries
            receipt = interpret(answer, sent)
            # Of two tries the first may have been stored, whatever the second one met.
            doubt = doubt or receipt.doubt or answer.tries > 1
            verdict = receipt.verdict
            if verdict not in _PASSING:
                break
            reason, asked = receipt.reason, answer.retry_after
            if not self._retries.wait(message.id, attempts, reason, asked, since=began):
                verdict = Verdict.IN_DOUBT if doubt else Verdict.RETRY_LATER
                break
        doubt = doubt and verdict is not Verdict.DELIVERED
        return receipt._replace(
            verdict=verdict, attempts=attempts, bytes_sent=bytes_sent, doubt=doubt
        )

    def preflight(self) -> tuple[Step, ...]:
        """Certificate, service list, right to insert: up to the first that fails; stores nothing.

        An empty document proves the right, but not for the MachineName, which is in records.
        """
        nothing = Sent(payload=_NO_RECORDS, subject=self._subject)
        answer = self._session.exchange("GET", self._base)
        if not isinstance(answer, Answer) or answer.status != 200:
            receipt = interpret(answer, nothing)
            name = "certificate" if receipt.exit_status == CREDENTIALS else "services"
            return (Step(name, receipt.reason, exit_status=receipt.exit_status),)
        steps = [
            Step("certificate", f"accepted, as {self._subject.comma} or {self._subject.slash}")
        ]
        found = service_paths(answer.body) or {}
        if _REGISTRATION not in found:
            names = ", ".join(sorted(found)) or f'none: "{parse_error_page(answer.body).words}"'
            found_text = f"lists no service {_REGISTRATION} ({plain(names, 200)})"
            reason = f"{self._base} {found_text}; check `url` of the target"
            return (*steps, Step("services", reason, exit_status=CONFIGURATION))
        steps.append(Step("services", plain(", ".join(sorted(found)))))
        receipt = interpret(self._insert_answer(_NO_RECORDS), nothing)
        if receipt.verdict is Verdict.DELIVERED:
            answer_text = f"an empty document was taken at {self._insert}; "
            answer_text += "the MachineName is looked at in records only"
            return (*steps, Step("right to insert", answer_text))
        reason, exit_status = receipt.reason, receipt.exit_status
        if receipt.verdict is Verdict.REFUSED:  # there is no record in it that could be at fault
            exit_status = CREDENTIALS
            advice = f"ask its administrator about the entry of {self._subject.comma}"
            if "." not in self._subject.host:
                advice = no_host_name(self._subject)
            reason = f"{reason}, even to an empty document; {advice}"
        return (*steps, Step("right to insert", plain(reason), exit_status=exit_status))

    def _known_refusal(self, payload: bytes) -> Receipt | None:
        """The refusal of a message whose MachineName was refused alone in this round; else None.

        SGAS reads its list of rights once, when it starts, so asking again would bring nothing new.
        """
        if not self._refused:
            return None
        machines = sent_machines(payload)
        known = next((self._refused[name] for name in machines if name in self._refused), None)
        return known._replace(refused_by=machines, attempts=0, bytes_sent=0) if known else None

    def _insert_answer(self, payload: bytes) -> Answer | RequestFailure:
        """The answer to a POST; if the usual address has nothing, the service list is asked."""
        answer = self._session.exchange("POST", self._insert, payload, _HEADERS)
        if self._listed or not isinstance(answer, Answer) or answer.status not in (404, 405):
            return answer
        self._listed = True
        path = self._listed_path()
        if path in ("", self._insert):
            return answer
        _log.info("nothing takes records at %s; the service list names %s", self._insert, path)
        self._insert = path
        there = self._session.exchange("POST", self._insert, payload, _HEADERS)
        return replace(there, tries=max(answer.tries, there.tries))

    def _listed_path(self) -> str:
        """Where the service list says that job records go, or an empty string."""
        answer = self._session.exchange("GET", self._base)
        found: Mapping[str, str] | None = None
        if isinstance(answer, Answer) and answer.status == 200:
            found = service_paths(answer.body)
        return (found or {}).get(_REGISTRATION, "")


create: Final = SgasTransport


def _paths(url: str) -> tuple[str, str]:
    """Path of the service list and path for inserts; operators write either."""
    path = urlsplit(url).path.rstrip("/") or _BASE
    base = path.removesuffix(_INSERT) or _BASE
    return base, f"{base}{_INSERT}"
