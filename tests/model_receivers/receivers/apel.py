"""APEL's server: tables that replace by their keys, and a summariser that deletes nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tests.model_receivers.receivers.payloads import JOBS, NORMALISED, SUMMARIES, SYNC, Row, apel_rows

_TEXTS: Final = ("GlobalUserName", "VO", "VORole", "VOGroup", "SubmitHost")
Key = tuple[Any, ...]


class Total(NamedTuple):
    """What a row adds up to."""

    jobs: int = 0
    wall_s: int = 0
    cpu_s: int = 0

    def plus(self, other: Total, times: int = 1) -> Total:
        return Total(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


def sum_of(totals: Iterable[Total]) -> Total:
    held = Total()
    for total in totals:
        held = held.plus(total)
    return held


class SumKey(NamedTuple):
    """A row of the summed table: month and texts, as the server's collation compares them."""

    month: tuple[int, int]
    site: str
    user: str
    vo: str
    role: str
    group: str
    host: str
    infrastructure: str
    benchmark: str
    level: Decimal
    nodes: int
    processors: int


def collated(value: object) -> str:
    """Return a text as `latin1_swedish_ci` compares it: without case, accents and trailing blanks; None as 'None'."""
    text = "None" if value is None else str(value)
    plain = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
    return plain.casefold().rstrip(" ")


def month_of(end: int) -> tuple[int, int]:
    """Return year and month of an end time, in UTC."""
    moment = datetime.fromtimestamp(end, UTC)
    return moment.year, moment.month


class Apel:
    """One topic's records. `hybrid` is what the portal shows."""

    keeps_first = False

    def __init__(self) -> None:
        self.jobs: dict[Key, Row] = {}
        self.summaries: dict[SumKey, Row] = {}
        self.normalised: dict[SumKey, Row] = {}
        self.sync: dict[Key, Row] = {}
        self.hybrid: dict[SumKey, Total] = {}

    def take(self, payload: bytes) -> None:
        """Load a message: every row replaces the one under its key, the last of a message wins."""
        table, rows = apel_rows(payload)
        keeper: dict[str, tuple[dict[Any, Row], Callable[[Row], Any]]] = {
            JOBS: (self.jobs, job_key),
            SUMMARIES: (self.summaries, sum_key),
            NORMALISED: (self.normalised, sum_key),
            SYNC: (
                self.sync,
                lambda row: (collated(row["Site"]), collated(row.get("SubmitHost")), row["Year"], row["Month"]),
            ),
        }
        kept, key = keeper[table]
        kept.update((key(row), row) for row in rows)

    def summarise(self) -> None:
        """Run the three steps: jobs, then summaries, then normalised ones, each replacing rows under its keys."""
        sums: dict[SumKey, Total] = {}
        for row in self.jobs.values():
            key = sum_key(row)
            sums[key] = sums.get(key, Total()).plus(Total(1, row["WallDuration"], row["CpuDuration"]))
        self.hybrid |= sums
        for table in (self.summaries, self.normalised):
            self.hybrid |= {key: _total(row) for key, row in table.items()}

    def purge(self, before: tuple[int, int]) -> None:
        """Drop the job records of older months, as the server's partitions are for; sums stay."""
        self.jobs = {key: row for key, row in self.jobs.items() if month_of(row["EndTime"]) >= before}

    def delete_rows(self, rows: Iterable[SumKey]) -> None:
        """Carry out a ticket that names rows alone: what is left of their job records makes them again."""
        for table in (self.summaries, self.normalised, self.hybrid):
            for key in set(rows) & table.keys():
                del table[key]

    def delete(self, rows: Iterable[SumKey] = (), records: Iterable[Key] = ()) -> None:
        """Carry out a ticket: rows with all that they are made of, and records by name, whose rows are made again."""
        gone, named = set(rows), set(records)
        self.delete_rows(gone)
        without = {key: row for key, row in self.jobs.items() if key not in named and sum_key(row) not in gone}
        again = {sum_key(row) for key, row in self.jobs.items() if key not in without}
        self.jobs = without
        for key in again - self.summaries.keys() - self.normalised.keys():
            self.hybrid.pop(key, None)
        self.summarise()

    def delete_month(self, month: tuple[int, int]) -> None:
        """Delete everything of a month."""
        self.jobs = {key: row for key, row in self.jobs.items() if month_of(row["EndTime"]) != month}
        for table in (self.summaries, self.normalised, self.hybrid):
            for key in [key for key in table if key.month == month]:
                del table[key]

    def totals(self) -> dict[SumKey, Total]:
        """Return every row that counts jobs."""
        return {key: total for key, total in self.hybrid.items() if total.jobs}


def job_key(row: Row) -> Key:
    """Return the key of a job record: site, local id, end."""
    return collated(row["Site"]), collated(row["LocalJobId"]), row["EndTime"]


def sum_key(row: Row) -> SumKey:
    """Return the key under which a summary replaces and a job record is added up."""
    month = (row["Year"], row["Month"]) if "Year" in row else month_of(row["EndTime"])
    user, vo, role, group, host = (collated(row.get(name)) for name in _TEXTS)
    return SumKey(
        month=month,
        site=collated(row["Site"]),
        user=user,
        vo=vo,
        role=role,
        group=group,
        host=host,
        infrastructure=collated(row.get("InfrastructureType", row.get("Infrastructure"))),
        benchmark=collated(row.get("ServiceLevelType")),
        level=round(row.get("ServiceLevel", Decimal(0)), 3),
        nodes=row.get("NodeCount", 0),
        processors=row.get("Processors", 0),
    )


def _total(row: Row) -> Total:
    return Total(row["NumberOfJobs"], row["WallDuration"], row["CpuDuration"])
