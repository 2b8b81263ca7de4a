"""Settings in, live objects out: the `Site` of a configuration, with the class behind each name.

A registry too: what only some commands need of a site is loaded when it is made live.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from publisher import __version__, config
from publisher.cli import progress
from publisher.cli.accounts import LiveAccounting, LiveBatchSystems, LiveCes
from publisher.config import ConfiguredTarget, Settings
from publisher.config.settings import LedgerServer
from publisher.config.targets import beside, receiver_name
from publisher.formats import frame_of, receiver_of, record_format
from publisher.ledger.contract import Ledger
from publisher.ledger.generation import StateGuard, accepting_once, accepts_nothing, host_identity
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read
from publisher.model.entry import ReceiverName
from publisher.model.errors import UsageError
from publisher.model.time import Window
from publisher.policy.records import SiteRecords
from publisher.policy.target import Target
from publisher.publishing.site import MetricsOutput, ProcessEnvironment, Site
from publisher.sources.base import Source, read_as
from publisher.transports import create_transport
from publisher.transports.base import (
    Credentials,
    DryRunTransport,
    Endpoint,
    Transport,
    TransportOptions,
    own_options,
)

if TYPE_CHECKING:
    from publisher.jobs.reader import StoreReader
    from publisher.ledger.books import ChargeBook, History, MeasureBook
    from publisher.ledger.sql.database import Database
    from publisher.model.job import JobRecord
    from publisher.model.published import PublishedJob
    from publisher.publishing.round.live import LiveTarget
    from publisher.publishing.round.outcome import LostJobs, Outcome

MACHINE_ID: Final = Path("/etc/machine-id")


class LiveLedgers(NamedTuple):
    """`Ledgers` of a configuration.

    `accepts` says whether a target's ledger is taken as it is, though it is not the one that this
    host knows.
    """

    settings: Settings
    process: ProcessEnvironment
    accepts: Callable[[str], bool] = accepts_nothing

    @property
    def instance(self) -> str:
        return "" if self.settings.server is None else self.settings.server.instance

    @property
    def name(self) -> str:
        server = self.settings.server
        if server is None:
            return str(self.settings.state)
        return f"{server.address}, instance {server.instance}"

    @property
    def state(self) -> Path:
        return self.settings.state

    def database(self, *, to_read: bool = False) -> Database:
        return open_at(self.settings.server or self.settings.state, to_read=to_read)

    def open(self, *, dry_run: bool = False) -> Ledger:
        """The publishing database; for a dry_run one that only asks it. Raises: LedgerError."""
        if dry_run:
            from publisher.ledger.sql.dry_run import dry_run_ledger
            from publisher.ledger.sqlite.scratch import ScratchEntries

            return dry_run_ledger(self.database(to_read=True), ScratchEntries(), self._guard())
        return sql_ledger(self.database(), self._guard())

    def to_read(self) -> Ledger:
        return sql_ledger(self.database(to_read=True), self._guard())

    def _guard(self) -> StateGuard:
        return StateGuard(
            state=self.settings.state,
            shared=self.settings.server is not None,
            clock=self.process.clock,
            host=self.process.host,
            accepts=self.accepts,
        )

    def others(self) -> Iterator[LiveLedgers]:
        server = self.settings.server
        if server is None:
            advice = "publisher.yaml(5) explains a ledger in PostgreSQL"
            raise UsageError(f"one file has no other instances; {advice}")
        from publisher.ledger.postgres.connection import instances

        for name in instances(server.address):
            if name != server.instance:
                other = server._replace(instance=name)
                yield self._replace(settings=self.settings._replace(server=other))

    def charge_book(self, *, to_read: bool = False) -> ChargeBook:
        from publisher.ledger.sql.charges import SqlChargeBook

        return SqlChargeBook(self.database(to_read=to_read))

    def history(self) -> History:
        from publisher.ledger.sql.past.history import SqlHistory

        return SqlHistory(self.database(to_read=True))

    def measure_book(self, *, to_read: bool = False) -> MeasureBook:
        from publisher.ledger.sql.past.history import SqlMeasureBook

        return SqlMeasureBook(self.database(to_read=to_read))


@dataclass(frozen=True, slots=True)
class LiveSending:
    """`Sending` of a configuration."""

    settings: Settings
    process: ProcessEnvironment
    ledgers: LiveLedgers

    def live(
        self, target: Target, *, dry_run: bool = False, accept_key_change: bool = False
    ) -> LiveTarget:
        """A target, live. Raises: CredentialError."""
        from publisher.publishing.round.live import LiveTarget

        transport = self.transport(target)
        transport = DryRunTransport(transport) if dry_run or target.shadow else transport
        return LiveTarget(
            name=target.name,
            selection=target.selection(Window()),
            start_rule=str(target.start),
            start=target.start.begin(self.process.clock()),
            policy=target.policy,
            format=record_format(target.format),
            transport=transport,
            batch_records=target.batch_records or 0,
            single_months=target.single_months,
            frame_of=frame_of,
            changed=receiver_of(target.format).on_change,
            sent_by_jura=sent_by_jura(target),
            accept_key_change=accept_key_change,
            selection_digest=self.selection_digest(target),
            policy_digest=self.policy_digest(target),
            settings=self.settings_digest(target),
            wire_digest=_digest(target.type, target.options),
            receiver=self.receiver(target),
            beside=self.beside(target),
        )

    def beside(self, target: Target) -> tuple[Target, ...]:
        return tuple(beside(target, self.settings.targets))

    def settings_digest(self, target: Target) -> str:
        imported = [one.options for one in self.settings.batch_entries]
        read = [read_as(one) for one in (self.settings.source.options, *imported)]
        return _digest(target.policy.of_keys(), target.policy.identity.secret, read)

    def selection_digest(self, target: Target) -> str:
        wanted = (target.statuses, target.vos or (), target.exclude_vos)
        return _digest(*map(sorted, wanted))

    def policy_digest(self, target: Target) -> str:
        secret = target.policy.identity.secret
        return _digest(__version__, target.format, target.type, target.policy, secret)

    def credentials(self) -> Credentials:
        found = self.settings.credentials
        return Credentials(certificate=found.certificate, key=found.key, ca=found.ca, crl=found.crl)

    def certificate_ends(self) -> datetime | None:
        from publisher.transports.credentials.checks import certificate_ends

        return certificate_ends(self.credentials())

    def receiver(self, target: Target) -> ReceiverName:
        return receiver_name(target)

    def endpoints(self, target: Target) -> tuple[Endpoint, ...]:
        return own_options(target.options, TransportOptions).endpoints(self.process.environment)

    def transport(self, target: Target) -> Transport:
        made_before = None if self.settings.server else self.settings.state.parent
        surroundings = self.process.of_transport(
            self._waiting(target), lambda name: receiver_of(name).signed, made_before
        )
        return create_transport(target.type, target.options, self.credentials(), surroundings)

    def _waiting(self, target: Target) -> Callable[[float], bool]:
        """Between two attempts at a message, another host may have taken the target over."""
        if self.settings.server is None:
            return self.process.wait
        from publisher.ledger.postgres.locks import waiting_at_work

        opens = partial(self.ledgers.database, to_read=True)
        place = self.receiver(target).place
        return waiting_at_work(self.process.wait, opens, target.name, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSite:
    """A configured site, ready to be made live part by part.

    `after_round` are called with each round's outcome, in its thread. `accepts` as `LiveLedgers`.
    """

    settings: Settings
    process: ProcessEnvironment
    after_round: tuple[Callable[[Site, Outcome], None], ...] = ()
    accepts: Callable[[str], bool] = accepts_nothing

    @property
    def configuration(self) -> Path:
        return self.settings.path

    @property
    def targets(self) -> Sequence[ConfiguredTarget]:
        return self.settings.targets

    @property
    def targets_at_once(self) -> int:
        return self.settings.targets_at_once if self.process.parallel else 0

    @property
    def keep_months(self) -> int:
        return self.settings.keep_months

    @property
    def metrics(self) -> MetricsOutput | None:
        return self.settings.metrics

    @property
    def records(self) -> SiteRecords:
        of = self.settings.records
        values = frozenset(of.statuses), self.settings.policy, of.charges, of.power, of.allocations
        return SiteRecords(self.settings.site, *values)

    @property
    def ledgers(self) -> LiveLedgers:
        return LiveLedgers(self.settings, self.process, self.accepts)

    @property
    def accounting(self) -> LiveAccounting:
        return LiveAccounting(self.settings, self.process)

    @property
    def ces(self) -> LiveCes:
        return LiveCes(self.settings, self.process, self.accounting)

    @property
    def batch_systems(self) -> LiveBatchSystems:
        return LiveBatchSystems(self.settings, self.process)

    @property
    def sending(self) -> LiveSending:
        return LiveSending(self.settings, self.process, self.ledgers)

    def accepting_state(self, *, accept: bool) -> LiveSite:
        """The same site, which takes the ledger of each receiver as the first round finds it."""
        return replace(self, accepts=accepting_once(accept=accept))

    def close_old_months(self) -> None:
        from publisher.publishing.takeover.old_months import prune_after_rounds

        prune_after_rounds(self)

    def take_over(
        self, target: Target, jobs: StoreReader, source: Source, ledger: Ledger
    ) -> LostJobs | None:
        from publisher.publishing.takeover.adopt import jobs_of_ces, take_over

        now = self.process.clock()
        jobs_ended = jobs_of_ces(jobs, source, now)
        order = self.accounting.writing_order(source)
        return take_over(target, jobs_ended, order, ledger, now)


def sent_by_jura(target: Target) -> Callable[[JobRecord], PublishedJob | None] | None:
    if target.jura_until is None:
        return None
    from publisher.publishing.takeover.jura import sent_by_jura_of

    return sent_by_jura_of(target)


def open_at(place: Path | LedgerServer, *, to_read: bool = False) -> Database:
    """A publishing database. Raises: LedgerError."""
    if isinstance(place, Path):
        return open_database_to_read(place) if to_read else open_database(place)
    from publisher.ledger.postgres import connection

    opens = connection.open_database_to_read if to_read else connection.open_database
    return opens(place.address, place.instance)


def configured_site(path: Path, stop: threading.Event, *, quiet: bool = True) -> LiveSite:
    """The site of a configuration file, on this host and in its time. Raises: ConfigError.

    Loads of its sources are shown on a terminal unless `quiet`.
    """
    return LiveSite(
        settings=config.load(path, os.environ, host_name=socket.gethostname()),
        process=ProcessEnvironment(
            environment=os.environ,
            clock=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            wait=stop.wait,
            host=host_identity(MACHINE_ID),
            parallel=True,
            loading=partial(progress.loading, quiet=quiet),
        ),
        after_round=(_write_metrics,),
    )


def _write_metrics(site: Site, outcome: Outcome) -> None:
    if site.metrics is not None:
        import_module("publisher.reporting.metrics").after_round(site, outcome)


def _digest(*parts: object) -> str:
    """Of anything whose `repr` tells all of it; short, because it is compared, never read."""
    return sha256(repr(parts).encode()).hexdigest()[:16]
