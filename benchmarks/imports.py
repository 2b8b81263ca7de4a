"""Imports from other systems: files of so many records, read, read once more, and published.

`python -m benchmarks.imports NAME FOLDER RECORDS` makes the files: they are made piece by piece,
and still by a child.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks import ground
from benchmarks.ground import Receiver
from benchmarks.measure import PUBLISHER, run_python
from benchmarks.report import Line
from tests.support import gridengine_files, sacct_text, sonar_files

_PATIENCE_S: Final = 300
_JOBS_AT_ONCE: Final = 500
_RECORDS_A_JOB: Final = 10  # of Sonar: eight or nine, rounded up
_ENVELOPES_A_DAY: Final = 500
_EVERY_S: Final = 5  # a job begins; a million records are then of one week
CLUSTERS: Final = {
    "gridengine": gridengine_files.CLUSTER,
    "slurm": sacct_text.CLUSTER,
    "sonar": sonar_files.CLUSTER,
}
_TOLD: Final = {"gridengine": "Grid Engine", "slurm": "Slurm", "sonar": "Sonar"}


def imports(folder: Path, receiver: Receiver, records: int) -> Iterator[Line]:
    """For each system: a first import, one with nothing to do, and a round of publishing."""
    for name in CLUSTERS:
        files = folder / name
        files.mkdir()
        module = [sys.executable, "-m", "benchmarks.imports"]
        subprocess.run([*module, name, str(files), str(records)], check=True)
        config = _configuration(folder, name, receiver)
        group = f"Import of {_TOLD[name]}, {records:,} records"
        first, told = _import(folder, config, name, group, "first import", records)
        yield first
        yield _import(folder, config, name, group, "nothing to do", records)[0]
        yield _publish(folder, config, group, told["imported"])


def _configuration(folder: Path, name: str, receiver: Receiver) -> Path:
    path = ground.configuration(folder, folder, receiver.instead(name))
    site = yaml.safe_load(path.read_text())
    del site["source"]
    site["importers"] = {name: {"cluster": CLUSTERS[name]}}
    records = {"infrastructure": "local", "batch_server": CLUSTERS[name]}
    site["records"] |= records | {"statuses": ["completed", "failed", "aborted"]}
    path.write_text(yaml.safe_dump(site, sort_keys=False))
    return path


def _import(
    folder: Path, config: Path, name: str, group: str, line: str, records: int
) -> tuple[Line, dict[str, Any]]:
    print(f"# {group}: {line}", file=sys.stderr, flush=True)
    command = ("import", name, "--json")
    arguments: list[str | Path] = [*PUBLISHER, "--config", config, *command]
    ended = run_python([*arguments, folder / name], folder, patience_s=_PATIENCE_S + records / 1000)
    if ended.status:
        raise SystemExit(f"import {name} ended with {ended.status}:\n{ended.err[-4000:]}")
    told: dict[str, Any] = json.loads(ended.out)
    work = {key: told[key] for key in ("lines", "imported", "merged", "duplicates")}
    site = yaml.safe_load(config.read_text())
    work["database_bytes"] = Path(site["state"]).with_name("jobs.db").stat().st_size
    note = (
        f"{told['imported']:,} jobs, {work['database_bytes'] / told['imported']:,.0f} bytes each"
        if told["imported"]
        else ""
    )
    made = Line(
        group=group,
        name=line,
        count=told["lines"],
        unit="records",
        cost=ended.cost,
        note=note,
        work=work,
    )
    return made, told


def _publish(folder: Path, config: Path, group: str, jobs: int) -> Line:
    print(f"# {group}: published", file=sys.stderr, flush=True)
    command = ("--quiet", "publish", "--force", "--json")
    arguments: list[str | Path] = [*PUBLISHER, "--config", config, *command]
    ended = run_python(arguments, folder, patience_s=_PATIENCE_S + jobs / 1000)
    if ended.status not in (0, 65):
        raise SystemExit(f"publish ended with {ended.status}:\n{ended.err[-4000:]}")
    told: dict[str, Any] = json.loads(ended.out)["targets"]["bench"]
    work = {name: told[name] for name in ("messages", "records", "bytes", "quarantined")}
    return Line(
        group=group, name="then published", count=jobs, unit="jobs", cost=ended.cost, work=work
    )


def make(name: str, folder: Path, records: int) -> None:
    """Grid Engine's half in each format; Slurm's jobs with steps; Sonar's as a tree of days."""
    if name == "gridengine":
        every = islice(gridengine_files.entries(1, records), records)
        with (folder / "accounting").open("wb") as file:
            file.writelines(map(gridengine_files.colon, islice(every, records // 2)))
        with (folder / "accounting.jsonl").open("wb") as file:
            file.writelines(map(gridengine_files.jsonl, every))
        return
    if name == "slurm":
        with (folder / "sacct").open("wb") as file:
            file.write(sacct_text.text([]))
            for first in range(1, records + 1, _JOBS_AT_ONCE):
                lines = sacct_text.jobs_of(first, min(_JOBS_AT_ONCE, records + 1 - first), first)
                file.write(sacct_text.text(lines, header=False))
        return
    # The end of the files cuts a life off, and most of its jobs end late in it: at least half of
    # all jobs are whole.
    told = _until(_lives(min(_JOBS_AT_ONCE, max(1, records // _RECORDS_A_JOB // 2))), records)
    day = 0
    while envelopes := list(islice(told, _ENVELOPES_A_DAY)):
        day += 1
        tree = folder / "2026" / f"{day:04}"
        tree.mkdir(parents=True)
        (tree / "0+job-slurm.json").write_bytes(b"".join(envelopes))


def _lives(jobs: int) -> Iterator[bytes]:
    """Without end, in portions of so many jobs: a cluster's life is made as a whole."""
    number = 1
    while True:
        yield from sonar_files.collections(number, jobs, number, _EVERY_S)
        number += jobs


def _until(envelopes: Iterable[bytes], records: int) -> Iterator[bytes]:
    """Envelopes until they hold so many records."""
    for envelope in envelopes:
        yield envelope
        records -= envelope.count(b'"job_state"')
        if records <= 0:
            return


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
