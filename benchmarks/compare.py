"""Two runs of `make bench` side by side: `python -m benchmarks.compare BEFORE.json AFTER.json`.

Counts of work are compared exactly, and said where they changed. Times are of two moments on a
machine that may have had other things to do: judge them by the floors, which stand among them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Line = Mapping[str, Any]
_COLUMNS: Final = ("", "CPU s", "", "by", "wall s", "", "by", "peak MiB", "", "work that changed")


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """A table of the lines that both runs have, by group and name."""
    earlier = {(line["group"], line["name"]): line for line in before["lines"]}
    rows: list[tuple[str, ...]] = [_COLUMNS]
    group = ""
    for line in after["lines"]:
        was = earlier.get((line["group"], line["name"]))
        if was is None:
            continue
        if line["group"] != group:
            group = line["group"]
            rows.append((group,))
        rows.append(
            (
                f"  {line['name']}",
                *_costs(was["cost"], line["cost"]),
                "; ".join(_changed(was, line)),
            )
        )
    widths = [max(len(row[at]) for row in rows if len(row) > 1) for at in range(len(_COLUMNS))]
    return "\n".join(
        row[0]
        if len(row) == 1
        else "  ".join(
            (row[0].ljust(widths[0]), *_right(row[1:-1], widths[1:-1]), row[-1])
        ).rstrip()
        for row in rows
    )


def _costs(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in ("cpu_s", "wall_s"):
        yield f"{was[name]:.2f}"
        yield f"{now[name]:.2f}"
        yield f"{now[name] / was[name]:.2f}" if was[name] else ""
    for cost in (was, now):
        yield f"{cost['peak_mib']:.0f}" if cost["peak_mib"] else ""


def _changed(was: Line, now: Line) -> Iterator[str]:
    for name, count in now["work"].items():
        if name in was["work"] and was["work"][name] != count:
            yield f"{name} {was['work'][name]:,.0f} -> {count:,.0f}"


def _right(cells: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    return (text.rjust(width) for text, width in zip(cells, widths, strict=True))


def main() -> None:
    """Raises: SystemExit when two files are not given."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    before, after = (json.loads(Path(name).read_text()) for name in sys.argv[1:])
    for name, run in (("before", before), ("after", after)):
        print(f"{name}: {run['jobs']:,} jobs; {run['machine']}; {run['when']}")
    print(f"\n{compared(before, after)}")


if __name__ == "__main__":
    main()
