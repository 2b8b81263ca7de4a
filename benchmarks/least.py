"""The least of several runs of `make bench`: `python -m benchmarks.least RUN.json RUN.json ...`.

A machine that others share is half as fast again at one minute as at the next. Of each line this
takes the run in which it cost the least CPU, which is nearest to what the work itself costs; memory
is the most that any run took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost
from benchmarks.report import Line, table


def least(runs: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The first run's lines, each as cheap as ever. Raises: KeyError where a run lacks one."""
    costs = [{(line["group"], line["name"]): line["cost"] for line in run["lines"]} for run in runs]
    found = []
    for line in runs[0]["lines"]:
        tried = [run[line["group"], line["name"]] for run in costs]
        best = min(tried, key=lambda cost: float(cost["cpu_s"]))
        peaks = [cost["peak_mib"] for cost in tried if cost["peak_mib"]]
        cost = Cost(wall_s=best["wall_s"], cpu_s=best["cpu_s"], peak_mib=max(peaks, default=None))
        kept = {name: line[name] for name in ("group", "name", "count", "unit", "work")}
        found.append(Line(**kept, cost=cost))
    return found


def main() -> None:
    """Raises: SystemExit when no file is given."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    runs = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    about = runs[0]
    print(
        f"{about['jobs']:,} jobs; {about['machine']}; {about['when']}; "
        f"the least of {len(runs)} runs\n"
    )
    print(table(least(runs)))


if __name__ == "__main__":
    main()
