"""What is measured: a child process as a whole, or a stretch of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What the console script does, without needing it on a path.
PUBLISHER: Final = ("-c", "from publisher.cli.main import main; main()")
_SILENT: Final = (
    300  # seconds without an end after which a child is taken for stuck, a job in it given a millisecond more
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds by the clock and of both CPUs together; peak memory of the whole process, where it was one."""

    wall_s: float
    cpu_s: float
    peak_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A child that came to its end."""

    cost: Cost
    status: int
    out: str
    err: str


def run_python(arguments: Sequence[str | Path], folder: Path, *, patience_s: float = _SILENT) -> Ended:
    """Run this interpreter as a child and measure it alone. Its output goes through files: a pipe would need a reader.

    Linux lets a child's peak begin with what its parent had in memory when it started it. So this process stays small, and
    whatever takes much memory is done by a child.
    """
    out, err = folder / "child.out", folder / "child.err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, *map(str, arguments)], stdout=to_out, stderr=to_err, env=as_installed(os.environ)
        )
        deadline = began + patience_s
        while True:
            # wait4 tells the usage of this child; what subprocess waits with tells that of all of them.
            number, status, usage = os.wait4(child.pid, os.WNOHANG)
            if number:
                break
            if time.perf_counter() > deadline:
                child.kill()
            time.sleep(0.002)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024)
    return Ended(cost=cost, status=child.returncode, out=out.read_text(), err=err.read_text())


def as_installed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which modules are compiled once, as those of an installed package are: a start costs half of it."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Stretch:
    """Filled in when a `measured` block ends."""

    cost: Cost


@contextmanager
def measured() -> Iterator[Stretch]:
    """Measure a stretch of this process, all threads."""
    stretch = Stretch()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    yield stretch
    stretch.cost = Cost(wall_s=time.perf_counter() - wall_s, cpu_s=time.process_time() - cpu_s)
