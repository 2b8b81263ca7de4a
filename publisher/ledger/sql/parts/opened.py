"""What the parts of one opened ledger share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from publisher.ledger.generation import GenerationFile, StateGuard, position
from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database, Parameters
from publisher.ledger.sql.sums import month_sums
from publisher.model.errors import LedgerError

_TARGET = "SELECT id FROM target WHERE name = :name"
_RECEIVER = "SELECT receiver FROM target WHERE name = :target"


@contextmanager
def sound(what: str) -> Iterator[None]:
    """Read values that were written whole. Raises: LedgerError where they are not any more."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise LedgerError(
            f"the ledger is damaged: {what} cannot be read; restore the last sound backup"
        ) from error


class Opened:
    """A publishing database, what is known of its targets, and the file beside it.

    `guard` compares the ledger with what this host knows of it. Not for use by several threads at
    once.
    """

    def __init__(self, database: Database, guard: StateGuard | None = None) -> None:
        self.database = database
        self.guard = guard
        self.working_on: dict[str, int] = {}  # receivers of targets that are worked on
        self.file: GenerationFile | None = None  # of the receiver that is worked on
        self.place = ""  # of that receiver
        self.entry_numbers = entries.Numbers()
        self._numbers: dict[str, int] = {}  # of targets, which keep theirs

    def first(self, statement: str, values: Parameters) -> Any:
        """Return the first row that is found; None where there is none."""
        with self.database.reading():
            return self.database.execute(statement, values).fetchone()

    def write(self, statement: str, values: Parameters) -> None:
        """Execute one statement, in a transaction of its own."""
        with self.database.atomic():
            self.database.execute(statement, values)

    @contextmanager
    def entering(self, to_settle: int = 0) -> Iterator[None]:
        """Enter something in one transaction; without it no number of it is known."""
        try:
            with self.database.atomic(to_settle=to_settle):
                yield
        except BaseException:
            self.entry_numbers.forget()
            raise

    def number(self, target: str) -> int | None:
        """Return the number of a target; None before its first round."""
        if target not in self._numbers:
            row = self.first(_TARGET, {"name": target})
            if row is None:
                return None
            with sound(f"the row of target {target}"):
                self._numbers[target] = int(row[0])
        return self._numbers[target]

    def known_number(self, target: str) -> int:
        """Return the number of a target that had a round."""
        if (number := self.number(target)) is None:
            raise KeyError(target)
        return number

    def receiver(self, target: str) -> int | None:
        """Return the receiver of a target: as it is worked on, or else as it last was."""
        if target in self.working_on:
            return self.working_on[target]
        row = self.first(_RECEIVER, {"target": target})
        return None if row is None else row[0]

    def known_receiver(self, target: str) -> int:
        """Return the receiver of a target that had a round."""
        if (number := self.receiver(target)) is None:
            raise KeyError(target)
        return number

    def begun(
        self, number: int, message_id: str, months: Collection[int], at: int | None = None
    ) -> None:
        """Have the file beside the ledger name what may be handed over from now on."""
        if self.file is not None:
            self.file.begun(number, message_id, months, at)

    def counts_changed(self) -> None:
        """Have the file beside the ledger record what counts now."""
        there = position(self.database, self.place)
        if self.file is not None and there is not None:
            with self.database.reading():
                months = month_sums.sums(self.database, there.receiver)
            self.file.counts(there.mark, months, there.closed)

    def follow(self) -> None:
        """Write the file beside the ledger, which has changed."""
        if self.file is not None:
            self.file.follow()


class LedgerPart:
    """One part of an opened ledger."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._database = opened.database
