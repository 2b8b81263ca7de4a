"""Delivery to AUDITOR: lists of records, cut where some are there; a reaction to each answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from publisher.model.errors import ConfigError
from publisher.model.message import Message
from publisher.transports.auditor import Options
from publisher.transports.auditor.responses import Handling, Interpretation, interpret, is_bare
from publisher.transports.base import (
    LATER,
    REFUSED,
    Credentials,
    Environment,
    Receipt,
    Step,
    Verdict,
    own_options,
)
from publisher.transports.credentials.host_certificate import HostCertificate, may_be_open
from publisher.transports.http.exchange import Answer, LazySession, Retries, plain
from publisher.transports.http.tls import client_context, trust_described

SMALLEST_LIMIT: Final = 65_536
_ONE: Final = "/record"
_MANY: Final = "/records"
_HEALTH: Final = "/health_check"
_HEADERS: Final = {"Content-Type": "application/json"}
_VERDICTS: Final[Mapping[Handling, Verdict]] = {
    Handling.STORED: Verdict.DELIVERED,
    Handling.TOO_LARGE: Verdict.TOO_LARGE,
    Handling.REFUSE: Verdict.REFUSED,
    Handling.STOP: Verdict.STOP_TARGET,
}
Record = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Requests:
    """One message on its way, over all requests."""

    message: Message
    attempts: int = 1
    bytes_sent: int = 0
    doubt: bool = False
    is_partly_stored: bool = False


class AuditorTransport:
    """A `Transport` to one AUDITOR, over mutual TLS or, where the URL is http://, without."""

    def __init__(self, options: object, credentials: Credentials, world: Environment) -> None:
        """Raises: CredentialError, ConfigError"""
        mine = self._options = own_options(options, Options)
        if found := mine.problems():
            raise ConfigError(found)
        (service,) = mine.endpoints(world.environment)
        self._check: Callable[[datetime], None] = lambda now: None
        self.warnings: Callable[[datetime], list[str]] = lambda now: []
        context = None
        if service.url.startswith("https://"):
            allow_open = mine.allow_open_key or may_be_open(credentials.key, world.environment)
            certificate = HostCertificate(credentials, world.now(), allow_open_key=allow_open)
            self._check, self.warnings = certificate.check, certificate.warnings
            context = client_context(credentials)
        self._world, self._retries = world, Retries(mine, world)
        self._renamed = mine.renamed()
        self._limit = mine.batch_bytes
        trust = trust_described(credentials)
        self._session = LazySession(service, context, trust=trust, clock=world.clock)
        self.close = self._session.close

    def payload_limit(self) -> int:
        """The option, or less once a size was refused. Percent-encoded, bytes may become three."""
        return self._limit // 3 if self._options.encode_names else self._limit

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Deliver a list of records and return the receipt.

        Raises: CredentialError before anything is sent, when the certificate has ended.
        """
        self._check(now)
        size, limit = len(message.payload), self.payload_limit()
        if size > limit:
            reason = f"{size} bytes are over the limit of {limit} (from `batch_bytes`)"
            return Receipt(Verdict.TOO_LARGE, exit_status=REFUSED, reason=reason, attempts=0)
        records: list[Record] = json.loads(message.payload)
        body = message.payload
        if self._renamed or self._options.encode_names:
            records = [self._as_called_there(record) for record in records]
            body = _written(records)
        delivery = _Requests(message=message)
        if len(records) == 1:
            body = _written(records)
        decision = self._store(delivery, records, body)
        if decision.action is Handling.TOO_LARGE:
            self._limit = min(self._limit, max(SMALLEST_LIMIT, len(message.payload) // 2))
        return _receipt(decision, delivery)

    def preflight(self) -> tuple[Step, ...]:
        """Whether AUDITOR and its database are well and take an empty list; up to a trouble."""
        answer = self._session.exchange("GET", _HEALTH)
        # 403: its rules may not show it to those who write
        is_forbidden = isinstance(answer, Answer) and answer.status == 403
        if not is_bare(answer) and not is_forbidden:
            decision = interpret(answer, 0)
            exit_status = decision.exit_status or LATER
            return (Step("service", plain(decision.reason), exit_status=exit_status),)
        found = "AUDITOR answers" if is_forbidden else "AUDITOR and its database are well"
        service = Step("service", found)
        decision = interpret(self._session.exchange("POST", _MANY, b"[]", _HEADERS), 0)
        if decision.action is Handling.STORED:
            return (service, Step("right to insert", f"an empty list was taken at {_MANY}"))
        why, exit_status = plain(decision.reason), decision.exit_status
        return service, Step("right to insert", why, exit_status=exit_status)

    def _as_called_there(self, record: Record) -> Record:
        """A record with configured names, percent-encoded for an AUDITOR that takes no slashes."""
        encoded: Callable[[str], str] = _encoded if self._options.encode_names else str
        names = ((self._renamed.get(name, name), texts) for name, texts in record["meta"].items())
        meta = {encoded(name): list(map(encoded, texts)) for name, texts in names if name}
        return record | {"record_id": encoded(record["record_id"]), "meta": meta}

    def _store(self, delivery: _Requests, records: Sequence[Record], body: bytes) -> Interpretation:
        """Store these records in one request, or where some are there already, in halves."""
        decision = self._handed_over(delivery, len(records), body)
        if decision.action is not Handling.EXISTS:
            return decision
        middle = len(records) // 2
        for part in (records[:middle], records[middle:]):
            body = _written(part)
            decision = self._store(delivery, part, body)
            if decision.action is not Handling.STORED:
                break
            delivery.doubt = delivery.is_partly_stored = True  # until all of it is
        return decision

    def _handed_over(self, delivery: _Requests, records: int, body: bytes) -> Interpretation:
        """Try until something final is known, or patience ends."""
        failed = False
        while True:
            began = self._world.clock()
            decision = self._asked(delivery, records, body)
            failing = decision.action is Handling.ASK_HEALTH
            if decision.action is not Handling.RETRY and not failing:
                return decision
            if failing and failed and self._is_well():
                return decision
            failed = failing
            made, attempt = delivery.message, delivery.attempts
            if not self._retries.wait(
                made.id, attempt, decision.reason, decision.asked, since=began
            ):
                return decision._replace(action=Handling.RETRY)
            delivery.attempts += 1

    def _asked(self, delivery: _Requests, records: int, body: bytes) -> Interpretation:
        """One attempt."""
        path = _ONE if records == 1 else _MANY
        answer = self._session.exchange("POST", path, body, _HEADERS)
        decision = interpret(answer, records)
        if answer.may_have_arrived:
            delivery.bytes_sent += len(body) * answer.tries
        delivery.doubt = delivery.doubt or decision.doubt or answer.tries > 1
        return decision

    def _is_well(self) -> bool:
        """Whether AUDITOR reaches its database."""
        return is_bare(self._session.exchange("GET", _HEALTH))


create: Final = AuditorTransport


def _receipt(decision: Interpretation, delivery: _Requests) -> Receipt:
    certain = decision.action is not Handling.ASK_HEALTH
    if not certain:  # time after time, though all is well with its database
        decision = decision._replace(action=Handling.REFUSE, exit_status=REFUSED)
    later = Verdict.IN_DOUBT if delivery.doubt else Verdict.RETRY_LATER
    doubt = delivery.doubt and decision.action is not Handling.STORED
    if decision.action is Handling.REFUSE:
        # Had an earlier attempt been stored, AUDITOR would have said that the records exist.
        doubt = delivery.is_partly_stored
    return Receipt(
        verdict=_VERDICTS.get(decision.action, later),
        reason=plain(decision.reason),
        exit_status=decision.exit_status,
        bytes_sent=delivery.bytes_sent,
        attempts=delivery.attempts,
        doubt=doubt,
        certain=certain,
    )


def _written(records: Sequence[Record]) -> bytes:
    """A list, or one record alone."""
    content = records[0] if len(records) == 1 else records
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def _encoded(text: str) -> str:
    return quote(text, safe="")
