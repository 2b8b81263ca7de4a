"""What was met while sources were looked through: runs that were not are gone from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from publisher.jobs.tables.columns import Row, restored
from publisher.model.job import JobId, RowRef, part_of


class LostRun(NamedTuple):
    """A run that its source may have no longer: the number of its change, and its job."""

    change: int
    job_id: JobId


class Met:
    """What was met while sources were looked through: changes, a bit each, and whole parts.

    `rows` are those of jobs that are over, and of which something may still come.
    """

    def __init__(self) -> None:
        self._bits = bytearray()
        self.rows: set[RowRef] = set()
        self.parts: set[tuple[str, int]] = set()  # of a source, by number

    def add(self, changes: Iterable[int]) -> None:
        """Note that the runs with these changes were met."""
        for change in changes:
            byte = change >> 3
            if byte >= len(self._bits):
                self._bits.extend(bytes(byte + 4096 - len(self._bits)))
            self._bits[byte] |= 1 << (change & 7)

    def has(self, change: int, row: RowRef) -> bool:
        """Return whether a run was met by itself, not with its part."""
        byte = change >> 3
        is_met = byte < len(self._bits) and bool(self._bits[byte] >> (change & 7) & 1)
        return is_met or row in self.rows


def not_met_of(rows: Iterable[Row], names: Mapping[int, str], met: Met) -> list[LostRun]:
    """Return what was not met of rows of some sources (hot path: most are of known parts)."""
    numbers = {name: number for number, name in names.items()}
    parts = {(numbers[name], part) for name, part in met.parts if name in numbers}
    return [
        LostRun(change, JobId(restored([job_id])[0]))
        for change, source, record_id, job_id in rows
        if (source, part_of(record_id)) not in parts
        and source in names
        and not met.has(change, RowRef(names[source], record_id))
    ]
