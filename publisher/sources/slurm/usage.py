"""What a job's line and those of its steps report as used, and the CPU time that they add up to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from publisher.sources.slurm.values import NO_SIZE, kib, known_count, milliseconds

_USED_CPU: Final = re.compile(r"(?:^|,)cpu=([0-9:.-]+)")
_USED_MEMORY: Final = re.compile(r"(?:^|,)mem=0*[1-9]")
_SHORT_S: Final = 1  # a task that took longer shows memory, where Slurm measures anything

# What shows that a CPU time of 0 was measured: nothing, an exit code, or something else measured.
_NOTHING: Final = 0
_EXIT_CODE: Final = 1
_MEASURED: Final = 2


class StepUsage(NamedTuple):
    """What a step used; 0 is unknown, but for CPU times."""

    user_ms: int | None  # None: its line has no CPU time
    system_ms: int
    more_ms: int  # CPU time that stands in TRESUsageInTot only
    tasks: int
    memory_kib: int
    virtual_kib: int
    evidence: int


class CpuParts(NamedTuple):
    """CPU times of a job's line and of its steps together; None where the lines have none."""

    own_user_ms: int | None
    own_system_ms: int
    steps_user_ms: int | None
    steps_system_ms: int = 0
    steps_more_ms: int = 0
    evidence: int = _NOTHING


def step_usage(
    state: str,
    exit_code: str,
    tasks: str,
    memory: str,
    virtual: str,
    cpu: tuple[str, str, str],
    tres: str,
    *,
    shows_memory: bool,
) -> StepUsage:
    """Return what a step used. `cpu` are its UserCPU, SystemCPU and TotalCPU.

    Where the text has no column of memory, `shows_memory` is False, and an exit code has to do.
    """
    measured = cpu_of(*cpu)
    found = _USED_CPU.search(tres) if tres else None
    used_ms = milliseconds(found[1]) if found else None
    user_ms, system_ms = measured or (0, 0)
    more_ms = (used_ms or 0) - user_ms - system_ms
    more_ms *= more_ms >= 1000  # TRES has whole seconds: less than one more is the same time
    has_ended = exit_code != "" and state != "RESIZING"
    evidence = _EXIT_CODE if has_ended else _NOTHING
    if memory not in NO_SIZE or _USED_MEMORY.search(tres) or (has_ended and not shows_memory):
        evidence = _MEASURED
    known_ms = None if measured is None and used_ms is None else user_ms
    return StepUsage(
        known_ms,
        system_ms,
        more_ms,
        known_count(tasks),
        kib(memory),
        kib(virtual),
        evidence,
    )


def cpu_of(user: str, system: str, total: str) -> tuple[int, int] | None:
    """Return user and system milliseconds of a line; all are the user's where only TotalCPU is."""
    user_ms, system_ms = milliseconds(user), milliseconds(system)
    if user_ms is not None and system_ms is not None:
        return user_ms, system_ms
    total_ms = milliseconds(total)
    return None if total_ms is None else (total_ms, 0)


def with_steps(parts: CpuParts, steps: Iterable[StepUsage]) -> CpuParts:
    """Add the CPU times of more steps."""
    own_user_ms, own_system_ms, user_ms, system_ms, more_ms, evidence = parts
    for step in steps:
        if step.user_ms is not None:
            user_ms = (user_ms or 0) + step.user_ms
            system_ms += step.system_ms
            more_ms += step.more_ms
        evidence = max(evidence, step.evidence)
    return CpuParts(own_user_ms, own_system_ms, user_ms, system_ms, more_ms, evidence)


def cpu_time(parts: CpuParts, wall_s: int) -> tuple[int | None, int | None]:
    """Return user and system milliseconds: the job's, else the sum of its steps.

    Slurm may leave a step's CPU time out of TotalCPU: what TRESUsageInTot has more is added.
    Unknown where nobody measured: a job without a step, one whose node failed, of which no step
    has an exit code, and one of a cluster that gathers nothing.
    """
    own_user_ms, own_system_ms, steps_user_ms, steps_system_ms, more_ms, evidence = parts
    if own_user_ms is None and steps_user_ms is None:
        return None, None
    steps_ms = (steps_user_ms or 0) + steps_system_ms
    own_ms = (own_user_ms or 0) + own_system_ms
    user_ms, system_ms = own_user_ms or 0, own_system_ms
    if not own_ms:
        user_ms, system_ms = steps_user_ms or 0, steps_system_ms
    else:  # the job's line may have some of it already
        more_ms = min(more_ms, max(0, steps_ms + more_ms - own_ms))
    user_ms += more_ms
    short = wall_s <= _SHORT_S
    if user_ms or system_ms or evidence >= (_EXIT_CODE if short else _MEASURED):
        return user_ms, system_ms
    return None, None


def cpu_seconds(user_ms: int | None, system_ms: int | None) -> tuple[int, int]:
    """Return user and kernel seconds, whose sum is rounded; 0 where they are unknown."""
    kernel_ms = system_ms or 0
    total_s = ((user_ms or 0) + kernel_ms + 500) // 1000
    kernel_s = min(total_s, (kernel_ms + 500) // 1000)
    return total_s - kernel_s, kernel_s
