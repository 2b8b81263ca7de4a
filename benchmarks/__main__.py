"""`make bench`: whole runs, the journey stage by stage, and the floors of this machine.

Nothing here judges a time: machines differ, and the floors of the same run say what to hold a
figure against.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import ground
from benchmarks.ground import Receiver
from benchmarks.imports import imports
from benchmarks.measure import PUBLISHER, Cost, run_python
from benchmarks.report import Line, as_json, table

NEW_JOBS: Final = 1_000
_STAGE_JOBS: Final = 100_000
_FORMATS: Final = ("summaries", "car", "ogf-ur")
STARTS: Final = (
    ("alone", ""),
    ("+ argparse, logging, sqlite3, PyYAML", "; import argparse, logging, sqlite3, yaml"),
    ("+ cryptography", "; from cryptography.hazmat.primitives.serialization import pkcs7"),
    ("+ requests", "; import requests"),
    ("+ lxml", "; from lxml import etree"),
)
_STARTED: Final = 5
_PATIENCE_S: Final = 300  # for any run, and a millisecond a job


def main(argv: list[str] | None = None) -> int:
    asked = _parser().parse_args(argv)
    directory = asked.directory or Path(tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="publisher-bench-", dir=directory) as folder:
        kept = directory if asked.keep else Path(folder)
        made = _ladder(asked.ladder, asked.only, kept, Path(folder)) if asked.ladder else None
        lines = list(made or _benchmark(asked.jobs, kept, Path(folder)))
    asked.jobs = max(asked.ladder or [asked.jobs])
    about = _about(asked.jobs)
    print(f"{asked.jobs:,} jobs; {about['machine']}; {about['when']}\n\n{table(lines)}")
    if asked.json:
        asked.json.write_text(json.dumps(as_json(lines, about), indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench BENCH=...", description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=100_000, help="in the database, to 10,000,000 (%(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="for databases and state: 1.8 kB a job (default: TMPDIR)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the database there for the next run"
    )
    parser.add_argument(
        "--ladder",
        type=int,
        nargs="+",
        metavar="JOBS",
        help="instead, the shape of the cost over databases of these sizes",
    )
    parser.add_argument(
        "--only",
        choices=_FORMATS,
        action="append",
        help="of a ladder: this format alone (may be repeated; default: all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    return parser


def _benchmark(jobs: int, kept: Path, folder: Path) -> Iterator[Line]:
    _say(f"making {jobs:,} jobs")
    database = ground.accounting(kept, jobs)
    with ground.stand_in(folder) as (faithful, tally):
        name = f"CAR to the stand-in of AMS, {jobs:,} jobs"
        yield from _whole_runs(folder, database, jobs, faithful, name)
        with ground.at_once(folder, faithful.credentials) as sink:
            config = ground.configuration(folder, database, sink)
            name = f"CAR to a sink that answers at once, {jobs:,} jobs"
            yield from _whole_runs(folder, database, jobs, sink, name)
            sgas, summaries = ground.sgas(sink), ground.summaries(sink)
            name = f"OGF-UR to such a sink, as SGAS answers, {jobs:,} jobs"
            yield from _whole_runs(folder, database, jobs, sgas, name)
            name = f"Summaries and sync to such a sink, {jobs:,} jobs"
            yield from _whole_runs(folder, database, jobs, summaries, name)
            yield from imports(folder, sink, jobs)
            few = min(jobs, _STAGE_JOBS)
            stages = list(_stages(folder, config, few))
            yield from stages
            config_of_summaries = ground.configuration(folder, database, summaries)
            yield from _stages(folder, config_of_summaries, jobs, "Summaries stage by stage")
            parts = list(_floors(folder, database, config, few))
            yield from parts
            yield _sum_of(parts, stages[-1])
            yield from _starts(folder)
    work = {"messages": tally.messages, "requests": tally.requests}
    free, group = Cost(wall_s=0.0, cpu_s=0.0), "Counted by the stand-in"
    requests = tally.requests
    yield Line(group=group, name="requests", count=requests, unit="in all", cost=free, work=work)


def _ladder(sizes: list[int], only: list[str] | None, kept: Path, folder: Path) -> Iterator[Line]:
    """The same rounds over growing databases: the first takes longer with each, others do not."""
    with (
        ground.stand_in(folder) as (faithful, _),
        ground.at_once(folder, faithful.credentials) as sink,
    ):
        receivers = {"summaries": ground.summaries(sink), "car": sink, "ogf-ur": ground.sgas(sink)}
        for jobs in sorted(sizes):
            _say(f"making {jobs:,} jobs")
            database = ground.accounting(kept, jobs)
            for form in only or _FORMATS:
                receiver = receivers[form].instead(str(jobs))
                name = f"{form}, {jobs:,} jobs"
                yield from _whole_runs(folder, database, jobs, receiver, name, sweep=False)


def _whole_runs(
    folder: Path, database: Path, jobs: int, receiver: Receiver, group: str, *, sweep: bool = True
) -> Iterator[Line]:
    """The real command in a process of its own; then `status` and `sync`.

    It meets all jobs, none, all to be looked at again, a thousand new ones.
    """
    config = ground.configuration(folder, database, receiver)
    yield _publish(folder, config, receiver, group, "first round", jobs, jobs)
    yield _publish(folder, config, receiver, group, "nothing to do", jobs, 0)
    if sweep:
        ground.a_day_passes(folder, receiver)
        yield _publish(folder, config, receiver, group, "a look at all rows", jobs, jobs)
    _say(f"{NEW_JOBS:,} new jobs")
    ground.add_new(database, NEW_JOBS)
    yield _publish(folder, config, receiver, group, f"{NEW_JOBS:,} new jobs", jobs, NEW_JOBS)
    for command in ("status", "sync") if receiver.target.get("sync") else ("status",):
        ended = run_python([*PUBLISHER, "--config", config, command, "--json"], folder)
        if ended.status:
            raise SystemExit(f"{command} ended with {ended.status}:\n{ended.err}")
        yield Line(group=group, name=command, count=1, unit="call", cost=ended.cost)
    ground.take_away_new(database, jobs)


def _publish(
    folder: Path, config: Path, receiver: Receiver, group: str, name: str, jobs: int, met: int
) -> Line:
    """One round. `jobs` are in the database, `met` those that it has to deal with."""
    _say(f"{group}: {name}")
    patience_s = _PATIENCE_S + jobs / 1000
    command = ("--quiet", "publish", "--force", "--json")
    arguments: list[str | Path] = [*PUBLISHER, "--config", config, *command]
    ended = run_python(arguments, folder, patience_s=patience_s)
    if ended.status not in (0, 65):
        raise SystemExit(f"publish ended with {ended.status}:\n{ended.err[-4000:]}")
    told: dict[str, Any] = json.loads(ended.out)["targets"]["bench"]
    work = {name: told[name] for name in ("messages", "records", "bytes", "quarantined")}
    work["state_bytes"] = ground.state_bytes(folder, receiver)
    note = ""
    if told["records"]:
        record_bytes = told["bytes"] / told["records"]
        note = f"{told['messages']:,} messages, {record_bytes:,.0f} bytes a record on the wire"
        note += f", {work['state_bytes'] / max(jobs, met):.1f} bytes of state a job"
    return Line(
        group=group, name=name, count=met, unit="jobs", cost=ended.cost, note=note, work=work
    )


def _stages(folder: Path, config: Path, jobs: int, group: str = "Stage by stage") -> Iterator[Line]:
    """A process of its own, so that the peaks of the children here stay theirs."""
    _say("stage by stage")
    before = 0.0
    for found in _child(["-m", "benchmarks.stages", config, str(jobs), folder], folder, jobs):
        cost = Cost(**found["cost"])
        added = (cost.cpu_s - before) * 1e6 / jobs
        before = cost.cpu_s
        yield Line(
            group=f"{group}, each with all above it",
            name=found["name"],
            count=jobs,
            unit="jobs",
            cost=cost,
            note=f"adds {added:.1f} µs CPU each",
            work=found["work"],
        )


def _starts(folder: Path) -> Iterator[Line]:
    """What no command can do without, each start with all above it."""
    code = "pass"
    for name, more in STARTS:
        code += more
        tries = [run_python(["-c", code], folder) for _ in range(_STARTED)]
        if any(ended.status for ended in tries):
            raise SystemExit(f"a start ended with an error:\n{tries[0].err}")
        least = min((ended.cost for ended in tries), key=lambda cost: cost.cpu_s)
        yield Line(
            group="Starts of Python, the least of five",
            name=name,
            count=1,
            unit="start",
            cost=least,
        )


def _floors(folder: Path, database: Path, config: Path, jobs: int) -> Iterator[Line]:
    _say("the floors")
    module = ("-m", "benchmarks.floors")
    for found in _child([*module, database, str(jobs), config, folder], folder, jobs):
        yield Line(
            group="Floors of this machine, one core",
            name=found["name"],
            count=found["count"],
            unit=found["unit"],
            cost=Cost(**found["cost"]),
        )


def _sum_of(parts: list[Line], whole: Line) -> Line:
    """What records would cost with each part of the work at its floor, one by one on one core."""
    payload_mb = whole.work["payload_bytes"] / 1e6
    amount = {
        "jobs": whole.count,
        "records": whole.count,
        "MB": payload_mb,
        "MB on the wire": payload_mb * 4 / 3,
    }
    parts = [part for part in parts if part.unit in amount]
    wall_s = sum(part.cost.wall_s / part.count * amount[part.unit] for part in parts)
    cpu_s = sum(part.cost.cpu_s / part.count * amount[part.unit] for part in parts)
    cost = Cost(wall_s=wall_s, cpu_s=cpu_s)
    note = f"the whole takes {whole.cost.cpu_s / cpu_s:.1f} times that CPU"
    return Line(
        group=parts[0].group,
        name="their sum",
        count=whole.count,
        unit="records",
        cost=cost,
        note=note,
    )


def _child(arguments: list[str | Path], folder: Path, jobs: int) -> list[dict[str, Any]]:
    ended = run_python(arguments, folder, patience_s=_PATIENCE_S + jobs / 100)
    if ended.status:
        raise SystemExit(f"{arguments[1]} ended with {ended.status}:\n{ended.err[-4000:]}")
    found: list[dict[str, Any]] = json.loads(ended.out)
    return found


def _about(jobs: int) -> dict[str, Any]:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"
    return {
        "jobs": jobs,
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{machine}, SQLite {sqlite3.sqlite_version}",
    }


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
