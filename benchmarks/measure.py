"""What is measured: a child process as a whole, or a stretch of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What the console script does, without needing it on a path.
PUBLISHER: Final = ("-c", "from publisher.cli.main import main; main()")
# Seconds without an end after which a child is taken for stuck; each job in it gets a millisecond.
_SILENT: Final = 300
_SAMPLE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds by the clock and of both CPUs together; of a child also its peak memory.

    `peak_mib`: resident, of its largest process. `pss_mib`: of all its processes together, each
    shared page counted once.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float | None = None
    pss_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A child that came to its end."""

    cost: Cost
    status: int
    out: str
    err: str


def run_python(
    arguments: Sequence[str | Path], folder: Path, *, patience_s: float = _SILENT
) -> Ended:
    """Run this interpreter as a child and measure it alone.

    Its output goes through files: a pipe would need a reader. Linux lets a child's peak begin with
    what its parent had in memory when it started it. So this process stays small, and whatever
    takes much memory is done by a child.
    """
    out, err = folder / "child.out", folder / "child.err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=to_out,
            stderr=to_err,
            env=as_installed(os.environ),
        )
        deadline = began + patience_s
        pss_mib, sampled = 0.0, began
        while True:
            # wait4 tells the usage of this child, what subprocess waits with that of all of them.
            number, status, usage = os.wait4(child.pid, os.WNOHANG)
            if number:
                break
            now = time.perf_counter()
            if now > deadline:
                child.kill()
            if now > sampled + _SAMPLE_S:
                pss_mib, sampled = max(pss_mib, sum(map(_pss_mib, _family(child.pid)))), now
            time.sleep(0.002)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        pss_mib=pss_mib or None,
    )
    return Ended(cost=cost, status=child.returncode, out=out.read_text(), err=err.read_text())


def _family(process: int) -> Iterator[int]:
    """The process and all below it."""
    yield process
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it ended meanwhile
            for child in listed.read_text().split():
                yield from _family(int(child))


def _pss_mib(process: int) -> float:
    """Proportional set size (proc(5), smaps_rollup); 0 for a process that ended meanwhile."""
    with suppress(OSError):
        found = re.search(
            r"^Pss: +([0-9]+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE
        )
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def as_installed(environment: Mapping[str, str]) -> dict[str, str]:
    """Modules are compiled once, as an installed package's are: it is half of a start's cost."""
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
