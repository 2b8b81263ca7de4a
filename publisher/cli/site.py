"""Settings in, live objects out: the `Site` of a configuration, with the class behind each name.

A registry too: what only some commands need of a site is loaded when it is made live.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from publisher import __version__, config
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
from publisher.model.rates import Allocation, Charging, EnergyRules
from publisher.model.time import Window
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target
from publisher.publishing.databases.batch_systems import delivered_since
from publisher.publishing.site import MetricsOutput, ProcessEnvironment, Site
from publisher.sources import LRMS, READS_IMPORTED, importer_plugin, offered, source_plugin
from publisher.sources.base import BatchEntry, DatabaseEntry, JoinedEntry, Source
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
    from publisher.ledger.books import ChargeBook, History, MeasureBook
    from publisher.ledger.sql.database import Database
    from publisher.model.job import JobRecord
    from publisher.model.published import PublishedJob
    from publisher.model.time import Month
    from publisher.publishing.round.live import LiveTarget
    from publisher.publishing.round.outcome import LostJobs, Outcome
    from publisher.sources.base import ImportedFrom, LastReading, Namesake, NewestJob, WritingOrder
    from publisher.sources.importers import BadLine, Importer, ImportReport, ImportRule, Retried
    from publisher.sources.importing.arc.batch_runs import BatchRuns
    from publisher.sources.statistics import Accounts, UsageReader

MACHINE_ID: Final = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSite:
    """A configured site, ready to be made live piece by piece.

    `after_round` are called with each round's outcome, in its thread. `accepts` says whether a
    target's ledger is taken as it is, though it is not the one that this host knows.
    """

    settings: Settings
    process: ProcessEnvironment
    after_round: tuple[Callable[[Site, Outcome], None], ...] = ()
    accepts: Callable[[str], bool] = accepts_nothing

    @property
    def name(self) -> str:
        return self.settings.site

    @property
    def configuration(self) -> Path:
        return self.settings.path

    @property
    def state(self) -> Path:
        return self.settings.state

    @property
    def instance(self) -> str:
        """Which of the ledgers of a shared database is the site's; '' for one of its own."""
        return "" if self.settings.server is None else self.settings.server.instance

    @property
    def ledger_name(self) -> str:
        server = self.settings.server
        if server is None:
            return str(self.settings.state)
        return f"{server.address}, instance {server.instance}"

    @property
    def targets(self) -> Sequence[ConfiguredTarget]:
        return self.settings.targets

    @property
    def statuses(self) -> frozenset[str]:
        return frozenset(self.settings.records.statuses)

    @property
    def policy(self) -> RecordPolicy:
        return self.settings.policy

    @property
    def charging(self) -> Charging | None:
        return self.settings.records.charges

    @property
    def power(self) -> EnergyRules | None:
        return self.settings.records.power

    @property
    def allocations(self) -> Sequence[Allocation]:
        return self.settings.records.allocations

    @property
    def metrics(self) -> MetricsOutput | None:
        return self.settings.metrics

    @property
    def batch_entries(self) -> Sequence[BatchEntry]:
        return self.settings.batch_entries

    @property
    def database_entries(self) -> Sequence[DatabaseEntry]:
        return [
            DatabaseEntry(name=each.name, type=each.type, options=each.options)
            for each in self.settings.written
            if hasattr(source_plugin(each.type), "database_paths")
        ]

    @property
    def environment(self) -> Mapping[str, str]:
        return self.process.environment

    @property
    def targets_at_once(self) -> int:
        return self.settings.targets_at_once if self.process.parallel else 0

    def clock(self) -> datetime:
        return self.process.clock()

    def monotonic(self) -> float:
        return self.process.monotonic()

    def chance(self) -> float:
        return self.process.chance()

    def wait(self, seconds: float) -> bool:
        return self.process.wait(seconds)

    def source(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        """Raises: SourceError."""
        source = self._databases(lock_wait_s)
        if (runs := self._batch_runs(lock_wait_s, to_publish=to_publish)) is None:
            return source
        from publisher.sources.importing.arc.joined import JoinedSource

        return JoinedSource(source, runs, [str(entry.database) for entry in self.batch_entries])

    def _databases(self, lock_wait_s: float | None = None) -> Source:
        source = self.settings.source
        create = source_plugin(source.type).create
        return create(source.options, self.environment, lock_wait_s=lock_wait_s)

    def _batch_runs(
        self, lock_wait_s: float | None = None, *, to_publish: bool = False
    ) -> BatchRuns | None:
        """What is known of A-REX's jobs by the batch systems that CEs submit to."""
        if not (entries := self._joined_entries()):
            return None
        from publisher.sources.importing.arc.batch_runs import BatchRuns

        return BatchRuns(entries, self._copies, lock_wait_s, remembers=to_publish)

    def _counted(self, how: str, of: str) -> Any:
        source, runs = self.settings.source, self._batch_runs()
        joined = {} if runs is None else {"joined": runs}
        return offered(source.type, how, of)(source.options, self.environment, **joined)

    @property
    def _copies(self) -> Path:
        from publisher.sources.sqlite_reader import copies_directory

        return copies_directory(self.environment)

    def _joined_entries(self) -> Sequence[JoinedEntry]:
        """The batch systems that CEs submit to: `arc_databases: []` says that none does."""
        return [
            JoinedEntry(entry.name, LRMS[entry.type], entry.database, entry.join_wait_s, ces)
            for entry in (self.batch_entries if self.settings.written else ())
            if entry.in_rounds and (ces := entry.ces()) != frozenset()
        ]

    def database(self, *, to_read: bool = False) -> Database:
        return open_at(self.settings.server or self.settings.state, to_read=to_read)

    def ledger(self, *, dry_run: bool = False) -> Ledger:
        """The publishing database; for a dry_run one that only asks it. Raises: LedgerError."""
        if dry_run:
            from publisher.ledger.sql.dry_run import dry_run_ledger
            from publisher.ledger.sqlite.scratch import ScratchEntries

            return dry_run_ledger(self.database(to_read=True), ScratchEntries(), self._guard())
        return sql_ledger(self.database(), self._guard())

    def ledger_to_read(self) -> Ledger:
        return sql_ledger(self.database(to_read=True), self._guard())

    def _guard(self) -> StateGuard:
        return StateGuard(
            state=self.settings.state,
            shared=self.settings.server is not None,
            clock=self.clock,
            host=self.process.host,
            accepts=self.accepts,
        )

    def accepting_state(self, *, accept: bool) -> LiveSite:
        """The same site, which takes the ledger of each receiver as the first round finds it."""
        return replace(self, accepts=accepting_once(accept=accept))

    def other_instances(self) -> Iterator[LiveSite]:
        server = self.settings.server
        if server is None:
            advice = "publisher.yaml(5) explains a ledger in PostgreSQL"
            raise UsageError(f"one file has no other instances; {advice}")
        from publisher.ledger.postgres.connection import instances

        for name in instances(server.address):
            if name != server.instance:
                other = server._replace(instance=name)
                yield replace(self, settings=self.settings._replace(server=other))

    def charge_book(self, *, to_read: bool = False) -> ChargeBook:
        from publisher.ledger.sql.charges import SqlChargeBook

        return SqlChargeBook(self.database(to_read=to_read))

    def history(self) -> History:
        from publisher.ledger.sql.past.history import SqlHistory

        return SqlHistory(self.database(to_read=True))

    def usage(self) -> UsageReader:
        usage: UsageReader = self._counted("create_usage", "report")
        return usage

    def accounts(self) -> Accounts:
        accounts: Accounts = self._counted("create_statistics", "stats, job, export and complete")
        return accounts

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        opener = getattr(source_plugin(self.settings.source.type), "writing_order", None)
        return None if opener is None else opener(source, self.environment)

    def imported_from(self, job: JobRecord) -> ImportedFrom | None:
        from publisher.sources.importing.read_files import origin_of

        return origin_of(job, self._databases(), copies_below=self._copies)

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        if (runs := self._batch_runs()) is None:
            return ()
        from publisher.sources.importing.arc.joined import rules_of

        with closing(runs), closing(self._databases()) as source:
            as_it_is = source.find(job.job_id, frozenset(), self.clock()).jobs
            of_ce = runs.of_ce(source.databases().get(job.row.database, job.row.database))
            return [rule for one in as_it_is if one.row == job.row for rule in rules_of(one, of_ce)]

    def measure_book(self, *, to_read: bool = False) -> MeasureBook:
        from publisher.ledger.sql.past.history import SqlMeasureBook

        return SqlMeasureBook(self.database(to_read=to_read))

    def importer(self, entry: BatchEntry, *, reading: bool = False) -> Importer:
        """Raises: ConfigError for an unreadable map file, SourceError for a missing database."""
        options: Any = entry.options
        if reading and entry.in_rounds and self.settings.written and options.arc_databases is None:
            ces = self.database_entries
            paths = tuple(Path(file) for ce in ces for file in self.database_files(ce))
            options = replace(options, arc_databases=paths, arc_lrms=LRMS[entry.type])
        if reading:
            options = replace(options, arc_delivered=partial(delivered_since, self, entry))
        return importer_plugin(entry.type).create(options, self.environment, self.wait)

    def read_entry(self, entry: BatchEntry, check: Callable[[], object]) -> ImportReport | None:
        from publisher.sources.importing.batch_entry import read_entry

        importer = partial(self.importer, entry, reading=True)
        return read_entry(entry, importer, self.clock, self.wait, check)

    def namesakes(self, entry: BatchEntry) -> Sequence[Namesake]:
        from publisher.sources.importing.batch_entry import namesakes

        return namesakes(entry, self._copies)

    def last_reading(self, entry: BatchEntry) -> LastReading:
        from publisher.sources.importing.batch_entry import last_reading

        return last_reading(entry.database, self._copies)

    def database_files(self, entry: DatabaseEntry) -> Sequence[str]:
        ask: Callable[..., Sequence[str]] = offered(entry.type, "database_paths", "status")
        return ask(entry.options, self.environment)

    def names_database(self, entry: DatabaseEntry, file: str) -> bool:
        return bool(offered(entry.type, "names", "import")(entry.options, file))

    def newest_job(self, database: str, *, lock_wait_s: float) -> NewestJob:
        ask: Callable[..., NewestJob] = offered(self.settings.source.type, "newest_job", "status")
        return ask(database, self.environment, now=self.clock(), lock_wait_s=lock_wait_s)

    def retry_bad_lines(self, entry: BatchEntry) -> Retried | None:
        from publisher.sources.importing.batch_entry import retry

        return retry(entry, self.importer(entry, reading=True), self.clock, self.wait)

    def source_of(self, entry: BatchEntry) -> Source:
        plugin = source_plugin(READS_IMPORTED)
        return plugin.create(plugin.Options(imported=(str(entry.database),)), self.environment)

    def source_of_file(self, path: str) -> Source:
        source = self.settings.source
        only: Callable[..., object] = offered(source.type, "only_database", "source retire")
        return source_plugin(source.type).create(only(source.options, path), self.environment)

    def reading_alone(self, entry: BatchEntry) -> AbstractContextManager[object]:
        from publisher.sources.importing.batch_entry import alone

        return alone(entry.database, self.wait)

    def last_pruned(self, entry: BatchEntry) -> datetime | None:
        from publisher.sources.importing.prune import last_pruned

        return last_pruned(entry.database)

    def keep_pruned(self, entry: BatchEntry) -> None:
        from publisher.sources.importing.prune import keep_pruned

        keep_pruned(entry.database, self.clock())

    def prune_rows(self, entry: BatchEntry, jobs: Sequence[JobRecord]) -> int:
        from publisher.sources.importing.prune import prune_rows

        return prune_rows(entry.database, jobs)

    def pruned_months(self, entry: BatchEntry) -> Sequence[Month]:
        from publisher.sources.importing.prune import pruned_months

        return pruned_months(entry.database, self._copies)

    def bad_lines(self, entry: BatchEntry, limit: int) -> Sequence[BadLine]:
        from publisher.sources.importing.batch_entry import bad_lines

        return bad_lines(entry.database, limit, self._copies)

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
            start=target.start.begin(self.clock()),
            policy=target.policy,
            format=record_format(target.format),
            transport=transport,
            batch_records=target.batch_records or 0,
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
        read_as = self.settings.source, self.settings.batch_entries
        return _digest(target.policy, target.policy.identity.secret, *read_as)

    def selection_digest(self, target: Target) -> str:
        wanted = (target.statuses, target.vos or (), target.exclude_vos)
        return _digest(*map(sorted, wanted))

    def policy_digest(self, target: Target) -> str:
        secret = target.policy.identity.secret
        return _digest(__version__, target.format, target.type, target.policy, secret)

    def take_over(self, target: Target, source: Source, ledger: Ledger) -> LostJobs | None:
        from publisher.publishing.takeover.adopt import take_over

        return take_over(self, target, source, ledger)

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

        opens = partial(self.database, to_read=True)
        place = self.receiver(target).place
        return waiting_at_work(self.process.wait, opens, target.name, place)


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


def configured_site(path: Path, stop: threading.Event) -> LiveSite:
    """The site of a configuration file, on this host and in its time. Raises: ConfigError."""
    return LiveSite(
        settings=config.load(path, os.environ, host_name=socket.gethostname()),
        process=ProcessEnvironment(
            environment=os.environ,
            clock=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            wait=stop.wait,
            host=host_identity(MACHINE_ID),
            parallel=True,
        ),
        after_round=(_write_metrics,),
    )


def _write_metrics(site: Site, outcome: Outcome) -> None:
    if site.metrics is not None:
        import_module("publisher.reporting.metrics").after_round(site, outcome)


def _digest(*parts: object) -> str:
    """Of anything whose `repr` tells all of it; short, because it is compared, never read."""
    return sha256(repr(parts).encode()).hexdigest()[:16]
