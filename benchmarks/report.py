"""What came out: lines of one table, and the same as JSON for comparing commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks.measure import Cost

COLUMNS: Final = ("", "count", "wall s", "CPU s", "a second", "µs CPU each", "peak MiB", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measurement: so many of `unit` at this cost, and counts of the work that was done."""

    group: str
    name: str
    count: float
    unit: str
    cost: Cost
    note: str = ""
    work: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.count / self.cost.wall_s if self.cost.wall_s else 0.0

    @property
    def cpu_us_each(self) -> float:
        return self.cost.cpu_s * 1e6 / self.count if self.count else 0.0


def table(lines: Sequence[Line]) -> str:
    """The lines under the headings of their groups."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    group = ""
    for line in lines:
        if line.group != group:
            group = line.group
            rows.append((group,))
        rows.append((f"  {line.name}", *_numbers(line), line.note))
    full = [row for row in rows if len(row) > 1]
    widths = [max(len(row[at]) for row in full) for at in range(len(COLUMNS))]
    return "\n".join(_aligned(row, widths) for row in rows)


def _numbers(line: Line) -> Iterator[str]:
    """Under the middle columns; '' for what was not measured, and for rates of a single thing."""
    yield f"{line.count:,.0f} {line.unit}"
    cost, several = line.cost, line.count > 1
    yield f"{cost.wall_s:.2f}" if cost.wall_s else ""
    yield f"{cost.cpu_s:.2f}" if cost.cpu_s else ""
    yield f"{line.rate:,.0f}" if several and cost.wall_s else ""
    yield f"{line.cpu_us_each:,.1f}" if several and cost.cpu_s else ""
    yield f"{cost.peak_mib:.0f}" if cost.peak_mib else ""


def as_json(lines: Iterable[Line], about: dict[str, Any]) -> dict[str, Any]:
    """`about` says on what machine and of how many jobs."""
    return {**about, "lines": [{**asdict(line), "rate": line.rate} for line in lines]}


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    if len(row) == 1:
        return row[0]
    first, *numbers, note = row
    cells = [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join((first.ljust(widths[0]), *cells, note)).rstrip()
