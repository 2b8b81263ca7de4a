"""A configured site, by its parts; `cli/site.py` makes one of a configuration file.

Operations take the parts that they need. None of them knows how a configuration file looks, or
which class is behind a name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from publisher.model.errors import UsageError
from publisher.policy.records import SiteRecords
from publisher.policy.target import Target
from publisher.transports.base import Environment

if TYPE_CHECKING:
    from publisher.jobs.batch import SourceJobs
    from publisher.jobs.link import Linking
    from publisher.jobs.reader import StoreReader
    from publisher.jobs.store import JobStore
    from publisher.ledger.contract import Ledger, Ledgers
    from publisher.publishing.round.live import Sending
    from publisher.publishing.round.outcome import LostJobs, Outcome
    from publisher.sources.base import BatchEntry, Source, SourceList
    from publisher.sources.importers import Accounting, BatchSystems

AnyTarget = TypeVar("AnyTarget", bound=Target)

# Of whoever only looks, for a writer of the accounting data; then that is the answer.
LOCK_WAIT_S: Final = 2.0


class LoadObserver(Protocol):
    """Sees how far sources are loaded: rows of one after the other."""

    def begins(self, what: str, total: Callable[[], int]) -> None: ...
    def seen(self, more: int) -> None: ...


class _NoObserver:
    """Shows nothing."""

    def begins(self, what: str, total: Callable[[], int]) -> None: ...
    def seen(self, more: int) -> None: ...


NO_OBSERVER: Final = _NoObserver()


class ProcessEnvironment(NamedTuple):
    """Everything that is not in the configuration and changes from run to run.

    `wait(seconds)` waits and says whether a stop was asked for. `parallel`: several targets are
    worked on at the same time (`publishing/publish.py`), rather than one after the other.
    `host` identifies this machine, '' where it does not say. `loading` gives who sees a load.
    """

    environment: Mapping[str, str]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    wait: Callable[[float], bool]
    chance: Callable[[], float] = random.random
    host: str = ""
    parallel: bool = False
    loading: Callable[[], AbstractContextManager[LoadObserver]] = lambda: nullcontext(NO_OBSERVER)

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


class Ces(Protocol):
    """The CEs in front of batch systems, as linking needs them."""

    def has_ces(self, entry: BatchEntry) -> bool:
        """Return whether any CE submits to a batch system."""

    def part(self, store: JobStore, entry: BatchEntry) -> SourceJobs:
        """Return the part of the store that a batch system has. Raises: LedgerError."""

    def linking(self, store: JobStore, now: int, others: StoreReader | None) -> Linking | None:
        """Return the linking of a load; None of a site without batch systems.

        `others` has the jobs of CEs that are no sources.
        """

    @property
    def has_others(self) -> bool:
        """Whether batch systems name databases of CEs that are no sources."""

    def others(self) -> SourceList:
        """Return these, whose jobs others publish. Raises: SourceError where one is missing."""


class Site(Protocol):
    """A configured site by its parts, of which an operation takes those that it needs.

    `after_round`: called with every outcome, in its thread.
    """

    @property
    def configuration(self) -> Path: ...
    @property
    def targets(self) -> Sequence[Target]: ...

    @property
    def targets_at_once(self) -> int:
        """How many receivers at the same time; 0: target by target, in the caller's thread."""

    @property
    def keep_months(self) -> int:
        """Months after which jobs are summed up, and go from the job store; 0: never."""

    @property
    def metrics(self) -> MetricsOutput | None: ...
    @property
    def after_round(self) -> Sequence[Callable[[Site, Outcome], None]]: ...
    @property
    def process(self) -> ProcessEnvironment: ...
    @property
    def records(self) -> SiteRecords: ...
    @property
    def ledgers(self) -> Ledgers: ...
    @property
    def accounting(self) -> Accounting: ...
    @property
    def batch_systems(self) -> BatchSystems: ...
    @property
    def ces(self) -> Ces: ...
    @property
    def sending(self) -> Sending: ...

    def close_old_months(self) -> None:
        """Close and prune what is older than `keep`, once a day (takeover/old_months.py)."""

    def take_over(
        self, target: Target, jobs: StoreReader, source: Source, ledger: Ledger
    ) -> LostJobs | None:
        """What another publisher left and lost (takeover/adopt.py).

        Raises: SourceError, LedgerError.
        """


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
