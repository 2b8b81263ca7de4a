"""What was asked for, beside what was measured.

`python -m benchmarks.asked`, a part of `make bench`, on three databases: ours, and the varied one
in both schemas. Each line is the least CPU of several runs (memory: the most), because other work
on the machine only ever adds; Ctrl-C ends it with what there is. Where the environment variable
ARC_SRC names a checkout of ARC, its own code runs on the same database between our runs. All is
normalised by what the machine does then: rate x yardstick / 0.20 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import ground
from benchmarks.arc import KINDS
from benchmarks.ground import Receiver
from benchmarks.measure import PUBLISHER, Cost, run_python

YARDSTICK_S: Final = 0.20  # of the machine on which the goals were set
# Not in a function, where it takes half as long.
_LOOP: Final = """
import time
s, began = 0, time.process_time()
for i in range(3_000_000): s += i % 7
print(time.process_time() - began)
"""
NEW_JOBS: Final = 1_000
DATABASES: Final = ("ours", "varied, schema 1", "varied, schema 2")
# Line, what was asked for, and what the line shows.
ASKED: Final = {
    "car: first round": ("40,000 records/s", "rate"),
    "ogf-ur: first round": ("25,000 records/s", "rate"),
    "summaries: first round": ("3 CPU s a million (schema 2), 6 (schema 1)", "million"),
    "car: nothing to do": ("0.2 s", "seconds"),
    "car: 1,000 new jobs": ("0.3 s", "seconds"),
    "summaries: sync --check": ("2 s a million", "million"),
    "car: stats": ("2 s a million", "million"),
    "car: export": ("40 µs a job", "each"),
    "car: status, all jobs waiting": ("0.3 CPU s", "seconds"),
}


@dataclass
class Least:
    """The cheapest of several runs by CPU, its time by the clock, and the most memory of any.

    Memory is the proportional set size of all its processes; of runs too short for that, the
    resident one of the first.
    """

    jobs: int
    costs: list[Cost] = field(default_factory=list)

    @property
    def best(self) -> Cost:
        return min(self.costs, key=lambda cost: cost.cpu_s)

    @property
    def peak_mib(self) -> float:
        return max(cost.pss_mib or cost.peak_mib or 0 for cost in self.costs)

    def shown(self, what: str, yardstick_s: float) -> str:
        scale = YARDSTICK_S / yardstick_s
        cpu_s, wall_s = self.best.cpu_s * scale, min(cost.wall_s for cost in self.costs) * scale
        memory = f"{self.peak_mib:.0f} MiB"
        if what == "rate":
            return f"{self.jobs / wall_s:,.0f}/s, {cpu_s / self.jobs * 1e6:.0f} µs CPU, {memory}"
        if what == "each":
            return f"{cpu_s / self.jobs * 1e6:.0f} µs CPU, {memory}"
        if what == "million":
            return f"{cpu_s / self.jobs * 1e6:.1f} CPU s a million, {memory}"
        return f"{cpu_s:.2f} CPU s, {memory}"


Found = dict[tuple[str, str], Least]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asked", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="in each database (%(default)s)")
    parser.add_argument(
        "--runs", type=int, default=3, help="of which the least counts (%(default)s)"
    )
    parser.add_argument("--directory", type=Path, help="for databases and state (default: TMPDIR)")
    asked = parser.parse_args(argv)
    directory = asked.directory or Path(tempfile.gettempdir())
    found: Found = {}
    yardsticks = []
    with tempfile.TemporaryDirectory(prefix="publisher-bench-", dir=directory) as folder:
        databases = {
            "ours": ground.accounting(Path(folder), asked.jobs),
            "varied, schema 1": ground.varied(Path(folder), asked.jobs, 1),
            "varied, schema 2": ground.varied(Path(folder), asked.jobs, 2),
        }
        with (
            ground.stand_in(Path(folder)) as (faithful, _),
            ground.at_once(Path(folder), faithful.credentials) as sink,
        ):
            try:
                for number in range(asked.runs):
                    for name, database in databases.items():
                        print(f"# run {number + 1}, {name}", file=sys.stderr, flush=True)
                        yardsticks.append(yardstick(Path(folder)))
                        _measure(Path(folder), name, database, asked.jobs, sink, found)
            except KeyboardInterrupt:
                print("# what there is by now:", file=sys.stderr)
    about = (
        f"{asked.jobs:,} jobs, the least of {asked.runs} runs, yardstick {min(yardsticks):.2f} s"
    )
    print(f"{about}, {datetime.now(UTC):%Y-%m-%d}\n\n{table(found, min(yardsticks))}")
    return 0


def yardstick(folder: Path) -> float:
    """The least CPU seconds here for a loop that took 0.20 s where the goals were set."""
    return float(run_python(["-c", _LOOP], folder).out)


def table(found: Found, yardstick_s: float) -> str:
    """A row for each thing that was asked for, in Markdown."""
    arc = "ARC, schema 1" if os.environ.get("ARC_SRC") else "ARC"
    rows: list[tuple[str, ...]] = [("", "asked", *DATABASES, arc), ("---",) * 6]
    for line, (goal, what) in ASKED.items():
        cells = [_cell(found.get((line, name)), what, yardstick_s) for name in DATABASES]
        theirs = ""
        if line.endswith("first round"):
            theirs = _cell(found.get((line, "ARC")), what, yardstick_s)
            if not os.environ.get("ARC_SRC"):
                theirs = "not run: ARC_SRC is not set"
        rows.append((line, goal, *cells, theirs))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(least: Least | None, what: str, yardstick_s: float) -> str:
    return "" if least is None else least.shown(what, yardstick_s)


def _runs(
    folder: Path, database: Path, jobs: int, sink: Receiver
) -> Iterator[tuple[str, int, Cost]]:
    """Line, jobs and cost of every command, each in a process of its own; state begins anew."""
    receivers = {"car": sink, "ogf-ur": ground.sgas(sink), "summaries": ground.summaries(sink)}
    publish = ("--quiet", "publish", "--json")
    for form, receiver in receivers.items():
        shutil.rmtree(ground.state_of(folder, receiver).parent, ignore_errors=True)
        config = ground.configuration(folder, database, receiver)
        if form == "car":
            yield (
                "car: status, all jobs waiting",
                jobs,
                _command(folder, config, "status", "--json"),
            )
        yield f"{form}: first round", jobs, _command(folder, config, *publish)
        if form == "summaries":
            yield (
                f"{form}: sync --check",
                jobs,
                _command(folder, config, "sync", "--check", "--months", "all", "--json"),
            )
        if form == "car":
            time.sleep(1)  # until the next round is due
            yield "car: nothing to do", jobs, _command(folder, config, *publish)
            yield "car: stats", jobs, _command(folder, config, "stats")
            yield (
                "car: export",
                jobs,
                _command(folder, config, "export", "--output", str(folder / "exported")),
            )
            ground.add_new(database, NEW_JOBS)
            yield f"car: {NEW_JOBS:,} new jobs", NEW_JOBS, _command(folder, config, *publish)
            ground.take_away_new(database, jobs)


def _measure(
    folder: Path, name: str, database: Path, jobs: int, sink: Receiver, found: Found
) -> None:
    for line, of_jobs, cost in _runs(folder, database, jobs, sink):
        found.setdefault((line, name), Least(of_jobs)).costs.append(cost)
    for line, cost in _arc(folder, database, sink) if "schema 1" in name else ():
        found.setdefault((line, "ARC"), Least(jobs)).costs.append(cost)


def _arc(folder: Path, database: Path, sink: Receiver) -> Iterator[tuple[str, Cost]]:
    """The same records by ARC's own code; nothing without it."""
    source = os.environ.get("ARC_SRC")
    certificate, key = sink.credentials["certificate"], sink.credentials["key"]
    for form, kind in KINDS.items() if source else ():
        arguments = ["-m", "benchmarks.arc", str(source), str(database), kind, certificate, key]
        ended = run_python(arguments, folder, patience_s=3600)
        if ended.status:
            raise SystemExit(f"ARC's code ended with {ended.status}:\n{ended.err[-2000:]}")
        yield f"{form}: first round", ended.cost


def _command(folder: Path, config: Path, *words: str) -> Cost:
    ended = run_python([*PUBLISHER, "--config", config, *words], folder, patience_s=3600)
    if ended.status not in (0, 65):
        raise SystemExit(f"{' '.join(words)} ended with {ended.status}:\n{ended.err[-2000:]}")
    return ended.cost


if __name__ == "__main__":
    sys.exit(main())
