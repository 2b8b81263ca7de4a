"""What an operation needs of a configured site; `cli/site.py` makes one of a configuration file.

Operations take a `Site` and ask it for what is live: a source, the ledger, a target. None of them
knows how a configuration file looks, or which class is behind a name.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from publisher.model.entry import ReceiverName
from publisher.model.errors import UsageError
from publisher.model.rates import Allocation, Charging, EnergyRules
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target
from publisher.transports.base import Credentials, Endpoint, Environment, Transport

if TYPE_CHECKING:
    from publisher.ledger.books import ChargeBook, History, MeasureBook
    from publisher.ledger.contract import Ledger
    from publisher.model.job import JobRecord
    from publisher.model.time import Month
    from publisher.publishing.round.live import LiveTarget
    from publisher.publishing.round.outcome import LostJobs, Outcome
    from publisher.sources.base import (
        BatchEntry,
        DatabaseEntry,
        ImportedFrom,
        LastReading,
        Namesake,
        NewestJob,
        Source,
        WritingOrder,
    )
    from publisher.sources.importers import BadLine, Importer, ImportReport, ImportRule, Retried
    from publisher.sources.statistics import Accounts, UsageReader

AnyTarget = TypeVar("AnyTarget", bound=Target)
log = logging.getLogger("publisher")

# Of whoever only looks, for a writer of the accounting data; then that is the answer.
LOCK_WAIT_S: Final = 2.0


class ProcessEnvironment(NamedTuple):
    """Everything that is not in the configuration and changes from run to run.

    `wait(seconds)` waits and says whether a stop was asked for. `parallel`: several targets are
    worked on at the same time (`publishing/publish.py`), rather than one after the other.
    `host` identifies this machine, '' where it does not say.
    """

    environment: Mapping[str, str]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    wait: Callable[[float], bool]
    chance: Callable[[], float] = random.random
    host: str = ""
    parallel: bool = False

    def of_transport(
        self,
        wait: Callable[[float], bool],
        signed: Callable[[str], bool],
        state_directory: Path | None,
    ) -> Environment:
        """What a transport needs of it."""
        return Environment(
            environment=self.environment,
            now=self.clock,
            clock=self.monotonic,
            chance=self.chance,
            wait=wait,
            signed=signed,
            state_directory=state_directory,
        )


class ListenAddress(Protocol):
    """Where the daemon answers Prometheus; its text is HOST:PORT."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class MetricsOutput(Protocol):
    """Where metrics go: a text file for the node exporter, a port of the daemon, or both."""

    @property
    def textfile(self) -> Path | None: ...
    @property
    def listen(self) -> ListenAddress | None: ...
    @property
    def all_instances(self) -> bool: ...


class Site(Protocol):
    """A configured site. What it opens, the caller closes.

    Whatever opens the ledger or a book raises LedgerError. `name` is as in GOCDB, `state` the
    publishing database. `statuses`, `policy`, `charging`, `power` and `allocations` are the site's
    own, whatever a target overrides. `after_round`: called with every outcome, in its thread.
    """

    @property
    def name(self) -> str: ...
    @property
    def configuration(self) -> Path: ...
    @property
    def instance(self) -> str:
        """Which of the ledgers of a shared database is the site's; '' for one of its own."""

    @property
    def ledger_name(self) -> str:
        """Its file, or its server and instance, for people."""

    @property
    def state(self) -> Path: ...
    @property
    def targets(self) -> Sequence[Target]: ...
    @property
    def statuses(self) -> frozenset[str]: ...
    @property
    def policy(self) -> RecordPolicy: ...
    @property
    def charging(self) -> Charging | None: ...
    @property
    def power(self) -> EnergyRules | None: ...
    @property
    def allocations(self) -> Sequence[Allocation]: ...
    @property
    def metrics(self) -> MetricsOutput | None: ...
    @property
    def batch_entries(self) -> Sequence[BatchEntry]: ...
    @property
    def database_entries(self) -> Sequence[DatabaseEntry]: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def targets_at_once(self) -> int:
        """How many receivers at the same time; 0: target by target, in the caller's thread."""

    @property
    def after_round(self) -> Sequence[Callable[[Site, Outcome], None]]: ...
    def clock(self) -> datetime:
        """Aware UTC."""

    def monotonic(self) -> float: ...
    def chance(self) -> float:
        """From 0 to 1, evenly."""

    def wait(self, seconds: float) -> bool:
        """Whether a stop was asked for meanwhile."""

    def source(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        """A writer is waited for at most `lock_wait_s`; `to_publish`: what a CE has stays known.

        Raises: SourceError.
        """

    def usage(self) -> UsageReader:
        """The source, to sum up what jobs used. Raises: ConfigError where its type cannot."""

    def accounts(self) -> Accounts:
        """The source, to look single jobs up. Raises: ConfigError where its type cannot."""

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        """One a database, opened; None where the order in which jobs were written is unknown."""

    def imported_from(self, job: JobRecord) -> ImportedFrom | None:
        """The record of another system that a job was made of; None for a job of A-REX.

        Raises: SourceError.
        """

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        """Where each value came from that a batch system's run joined to a job of A-REX.

        Raises: SourceError.
        """

    def importer(self, entry: BatchEntry, *, reading: bool = False) -> Importer:
        """`reading`: it will read, and leaves A-REX's jobs to the entry of that.

        Raises: ConfigError, SourceError.
        """

    def read_entry(self, entry: BatchEntry, check: Callable[[], object]) -> ImportReport | None:
        """Read what is new; None when another process has just done so.

        `check` raises what keeps it from being read; that is kept too. Raises: PublisherError.
        """

    def namesakes(self, entry: BatchEntry) -> Sequence[Namesake]:
        """Into which files that it names were read under another cluster. Raises: SourceError."""

    def last_reading(self, entry: BatchEntry) -> LastReading:
        """Raises: SourceError."""

    def database_files(self, entry: DatabaseEntry) -> Sequence[str]:
        """Raises: SourceError when one that the configuration names is missing."""

    def names_database(self, entry: DatabaseEntry, file: str) -> bool:
        """Whether the entry names this file, be it there or not."""

    def newest_job(self, database: str, *, lock_wait_s: float) -> NewestJob:
        """Of one of those databases. Raises: SourceError."""

    def retry_bad_lines(self, entry: BatchEntry) -> Retried | None:
        """Read the files with bad lines once more; None where there are none.

        Raises: PublisherError.
        """

    def source_of(self, entry: BatchEntry) -> Source:
        """The jobs of one batch system alone. Raises: SourceError."""

    def source_of_file(self, path: str) -> Source:
        """The jobs of one database, also of one that `source` does not name any more.

        Raises: SourceError.
        """

    def reading_alone(self, entry: BatchEntry) -> AbstractContextManager[object]:
        """Nobody else reads into its database meanwhile. Raises: LedgerError."""

    def last_pruned(self, entry: BatchEntry) -> datetime | None:
        """Raises: LedgerError, Busy."""

    def keep_pruned(self, entry: BatchEntry) -> None:
        """Raises: LedgerError, Busy."""

    def prune_rows(self, entry: BatchEntry, jobs: Sequence[JobRecord]) -> int:
        """How many of these jobs were taken out of its database. Raises: LedgerError, Busy."""

    def pruned_months(self, entry: BatchEntry) -> Sequence[Month]:
        """Raises: SourceError."""

    def bad_lines(self, entry: BatchEntry, limit: int) -> Sequence[BadLine]:
        """Raises: SourceError."""

    def ledger(self, *, dry_run: bool = False) -> Ledger:
        """For a dry run, one that reads the ledger and writes nothing."""

    def ledger_to_read(self) -> Ledger: ...
    def history(self) -> History: ...
    def other_instances(self) -> Iterator[Site]:
        """Those that share the database: of these only what is in their ledgers is to be asked for.

        Raises: UsageError where there is no such database, LedgerError.
        """

    def charge_book(self, *, to_read: bool = False) -> ChargeBook: ...
    def measure_book(self, *, to_read: bool = False) -> MeasureBook: ...
    def live(
        self, target: Target, *, dry_run: bool = False, accept_key_change: bool = False
    ) -> LiveTarget:
        """A target with its transport, not yet connected. Raises: CredentialError."""

    def beside(self, target: Target) -> Sequence[Target]:
        """The other targets of its receiver."""

    def take_over(self, target: Target, source: Source, ledger: Ledger) -> LostJobs | None:
        """What another publisher left and lost (takeover/adopt.py).

        Raises: SourceError, LedgerError.
        """

    def credentials(self) -> Credentials: ...
    def certificate_ends(self) -> datetime | None:
        """When the host certificate runs out; None where that cannot be read."""

    def receiver(self, target: Target) -> ReceiverName:
        """Where its rows accumulate, by its present address; a shadow has a receiver of its own."""

    def endpoints(self, target: Target) -> Sequence[Endpoint]:
        """The services that a target talks to. Raises: ConfigError."""

    def transport(self, target: Target) -> Transport:
        """Raises: CredentialError, ConfigError."""

    def selection_digest(self, target: Target) -> str:
        """Of what decides which jobs a target wants."""

    def settings_digest(self, target: Target) -> str:
        """Of what decides under which keys a target's jobs count, whatever the version."""

    def policy_digest(self, target: Target) -> str:
        """Of everything that decides how a target's records look."""


def choose(targets: Sequence[AnyTarget], names: Sequence[str]) -> list[AnyTarget]:
    """The targets of these names, all without any. Raises: UsageError for an unknown name."""
    by_name = {target.name: target for target in targets}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            hint = f"configured targets: {', '.join(by_name)}"
            if near:
                hint = f"did you mean {near[0]!r}?"
            raise UsageError(f"there is no target {name!r}; {hint}")
    return [target for target in targets if not names or target.name in names]
