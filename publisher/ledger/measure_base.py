"""The contract of what was measured of targets, kept between rounds and processes: for metrics.

Questions only read; every move is one transaction. All of them raise: LedgerError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Measures = Mapping[tuple[str, str], float]
"""Values by the metric's name and its label, such as a verdict; the label is '' where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A value. `target` is '' for what is measured of the site as a whole."""

    target: str
    name: str
    label: str
    value: float


class MeasureBook(Protocol):
    """The last value of each gauge, and the sums of counters since there is a publishing database."""

    def measures(self) -> Sequence[Measure]:
        """Everything that is kept."""
        ...

    def delivered(self, target: str) -> tuple[int, int]:
        """Messages that a target accepted so far, and the records in them."""
        ...

    def note(self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]) -> None:
        """Gauges as they are now, what to add to counters, and the names of gauges of which nothing is known any more."""
        ...

    def close(self) -> None: ...
