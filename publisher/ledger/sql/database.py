"""What the statements of this folder need of a database, SQLite or PostgreSQL.

Statements have named parameters (`:name`) and keep to what both understand
(`tests/ledger/test_portable_sql.py` says what that leaves out). Everything that only one of them
knows is behind this Protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Parameters = Mapping[str, object]
NO_PARAMETERS: Final[Parameters] = {}
ANOTHER_CHARGES: Final = (
    "another run computes charges; `publisher charge --runs` shows it. "
    "This one stopped waiting on request"
)


def receiver_lock(receiver: int) -> str:
    """Return the name of a receiver's lock; no target is called so, as names begin otherwise."""
    return f"+receiver-{receiver}"


def receiver_is_busy(target: str, place: str, holder: str) -> str:
    """Return the text of a Busy; `holder`: process and target at work, '' where unknown."""
    by = f" ({holder})" if holder else ""
    what = f"another publisher is at work on its receiver, {place}{by}"
    return f"target {target}: {what}; this one leaves it alone"


class Rows(Protocol):
    """What a statement found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class ChargeLocks(Protocol):
    """Which runs of charges are alive, and which one is at work. All raise: LedgerError."""

    def hold(self, run: int) -> None:
        """Say that a run is alive."""

    def work(self, patience: Callable[[], bool]) -> None:
        """Be the one at work. Raises: Busy when another is and patience ends."""

    def leave(self, run: int) -> None:
        """The run is over: neither alive nor at work."""

    def is_alive(self, run: int) -> bool:
        """Whether the process of a run is there, this one or another."""

    def close(self) -> None: ...


class Database(Protocol):
    """One connection to a publishing database. Not for use by several threads at once."""

    def atomic(self, to_settle: int = 0) -> AbstractContextManager[None]:
        """A write transaction: it happens whole, or not at all on whatever is raised.

        `to_settle`: bytes of messages that it writes down, and that must be settled later whatever
        becomes of the disk. Raises: LedgerError.
        """

    def make_room(self, to_settle: int) -> None:
        """See, in a transaction, that so many bytes of it can be settled later, as `atomic` does.

        Raises: LedgerError.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Translates the errors of statements that only read. Raises: LedgerError."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Of one moment; only temporary tables may be written inside. Raises: LedgerError."""

    def execute(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Rows: ...

    def stream(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Iterator[Any]:
        """Rows that are too many for memory, read as they are wanted."""

    def execute_many(self, statement: str, parameters: Iterable[Parameters]) -> int:
        """Execute a statement for each; return how many rows they changed."""

    def insert_returning_id(self, statement: str, parameters: Parameters) -> int:
        """Insert one row; gives the `id` that it got."""

    def rows_were_copied(self, tables: Iterable[str]) -> None:
        """Rows with an `id` were entered into these tables: those to come get higher ones."""

    def learn_sizes(self, tables: Iterable[str]) -> None:
        """Many rows were entered into these tables in this transaction, to be looked up soon."""

    def target_lock(
        self, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """Hold a target's lock. Raises: Busy when another has it and patience ends; LedgerError."""

    def receiver_lock(
        self, receiver: int, place: str, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        """Hold the lock of a receiver for the work on a target of it; always before the target's.

        `place` is its address, for people.

        Raises: Busy when another has it and patience ends; LedgerError.
        """

    def charge_locks(self) -> ChargeLocks: ...

    def damage(self, *, quick: bool) -> list[str]:
        """What it finds wrong with its files; `quick`: in short time. Raises: LedgerError."""

    def close(self) -> None: ...
