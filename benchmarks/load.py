"""What it costs to load an accounting database into the job store, and to compare it once more.

`python -m benchmarks.load FILE [--folder FOLDER]` loads the file, which may be one of a CE, into a
new store below the folder, and prints CPU time a job in microseconds (as this machine has it, and
as one that makes 6,000,000 small tuples a second), bytes a job, and the peak of memory; then the
CPU time of a load with nothing new, and of a comparison of the last three months.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from publisher.cli.main import CYCLES_AFTER
from publisher.jobs.store import JobStore, open_reader, open_store
from publisher.model.time import Window
from publisher.publishing.databases.load import Loading, LoadOptions
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import ArexSource, create

_TUPLES: Final = 200_000
_REFERENCE_S: Final = _TUPLES / 6_000_000
_TIMES: Final = 15
_MICROSECONDS: Final = 1e6


def main() -> None:
    """Load the file, and print a line a question."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("file", type=Path)
    asked.add_argument("--folder", type=Path, default=None)
    asked.add_argument("--zone", default="UTC", help="in which the CE writes (%(default)s)")
    arguments = asked.parse_args()
    gc.set_threshold(CYCLES_AFTER)  # as the program does
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "jobs.db"
        options = Options(databases=(str(arguments.file),), time_zone=arguments.zone)
        with closing(create(options, {})) as source:
            _measure(path, source, _last_end(arguments.file))


def _measure(path: Path, source: ArexSource, now: datetime) -> None:
    with closing(open_store(path)) as store:
        first_s = _load(store, source, now)
    with closing(open_reader(path)) as reader:
        jobs = reader.count(Window())
    size = path.stat().st_size / jobs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{jobs:,} jobs: {_each(first_s, jobs)}, {size:.0f} bytes a job, peak {peak:.0f} MiB")
    with closing(open_store(path)) as store:
        print(f"nothing new: {_load(store, source, now):.3f} s")
        later = now + timedelta(hours=25)
        print(f"three months compared: {_each(_load(store, source, later), jobs)}")


def _last_end(path: Path) -> datetime:
    with closing(sqlite3.connect(path)) as connection:
        (end,) = connection.execute("SELECT max(EndTime) FROM AAR").fetchone()
    return datetime.fromtimestamp(end, UTC)


def _load(store: JobStore, source: ArexSource, now: datetime) -> float:
    """Return the CPU time of a load. Raises: SystemExit when it fails."""
    began = time.process_time()
    failures = Loading(store, source, LoadOptions(frozenset(), "as it is"), now, _never).run()
    if failures:
        raise SystemExit("; ".join(failures))
    return time.process_time() - began


def _never() -> bool:
    return False


def _each(cpu_s: float, jobs: int) -> str:
    slower = _reference_s() / _REFERENCE_S
    each = cpu_s / jobs * _MICROSECONDS
    return f"{each:.1f} us CPU a job, {each / slower:.1f} on the reference, {cpu_s:.1f} s"


def _reference_s() -> float:
    """Return how long this machine takes for a fixed piece of work, on the average."""
    began = time.process_time()
    for _ in range(_TIMES):
        made = {number: (number, str(number)) for number in range(_TUPLES)}
        made.clear()
    return (time.process_time() - began) / _TIMES


if __name__ == "__main__":
    main()
