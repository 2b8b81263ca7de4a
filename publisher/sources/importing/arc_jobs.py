"""Jobs of this batch system that an ARC CE publishes itself, looked up in its accounting database."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError, UsageError
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile, check_readable

PUBLISHED: Final = "an ARC CE publishes it"
WAIT_S: Final = 86_400
# Numbers of the batch system come again after months or years; A-REX notices an end some minutes later, at times hours.
_APART_S: Final = 86_400
_AT_ONCE: Final = 500  # SQLite before 3.32 takes 999 parameters
_DAY_S: Final = 86_400

Run = tuple[str, int, int]  # the batch system's number, start and end as epoch seconds


class ArcJobs:
    """The accounting databases of the CEs in front of one batch system; there may be none."""

    def __init__(self, databases: Sequence[Path], wait_s: int, own: Path) -> None:
        """`own` is the database that is imported into: what cannot be shared is copied beside it.

        Raises: UsageError when it is one of them, SourceError when one cannot be read.
        """
        if own.resolve() in {path.resolve() for path in databases}:
            raise UsageError(f"{own}: is the database to write, and in arc_databases too; name A-REX's own there")
        self.wait_s = wait_s if databases else 0
        self.watching = bool(databases)
        self._copies = CopyDirectory(own.absolute().parent)
        self._files: list[ReadOnlyFile] = []
        try:
            for path in databases:
                check_arc_database(path)
                self._files.append(ReadOnlyFile(str(path), self._copies))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._copies.close()

    def may_still_come(self, ended_at: int, now: int) -> bool:
        """Whether a CE may not have written a job yet: it tells the batch system's number only when it has seen the end."""
        return self.watching and now - self.wait_s < ended_at <= now + _DAY_S

    def published(self, runs: Sequence[Run]) -> list[bool]:
        """Of each run, whether a CE has a job of that number which was there at that time. Raises: SourceError."""
        if not self.watching:
            return [False] * len(runs)
        numbers = sorted({number for number, _, _ in runs})
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for file in self._files:
            for start in range(0, len(numbers), _AT_ONCE):
                for number, submitted, ended in file.ask(_spans(file.path, numbers[start : start + _AT_ONCE])):
                    spans[number].append((submitted, ended))
        return [any(_overlap(span, start, end) for span in spans[number]) for number, start, end in runs]


def check_arc_database(path: Path) -> None:
    """Raises: SourceError when it cannot be read."""
    if not path.parent.exists() or (os.access(path.parent, os.X_OK) and not path.exists()):
        raise SourceError(
            f"{path}: there is no such file; correct arc_databases of the importer, or take it out if no ARC CE is there"
        )
    check_readable(str(path))


def _spans(path: str, numbers: Sequence[str]) -> Callable[[sqlite3.Connection], list[Run]]:
    """A question: numbers, submissions and ends (0: not seen yet) of the jobs that have one of these numbers."""
    question = f"""
        SELECT LocalJobID, CAST(SubmitTime AS INTEGER), CAST(EndTime AS INTEGER) FROM AAR
        WHERE LocalJobID IN ({", ".join("?" * len(numbers))})
    """

    def ask(connection: sqlite3.Connection) -> list[Run]:
        try:
            return [(number, begun or 0, ended or 0) for number, begun, ended in connection.execute(question, numbers)]
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            raise SourceError(f"{path}: holds no accounting tables: {error}; correct arc_databases") from error

    return ask


def _overlap(span: tuple[int, int], started_at: int, ended_at: int) -> bool:
    """A CE has a job from before it is submitted to after its end; one that it has not seen the end of is still there."""
    submitted, ended = span
    return submitted - _APART_S <= started_at and (not ended or ended_at <= ended + _APART_S)
