"""One accounting record of Grid Engine, whichever format it was written in, in our units.

Spec: other-sources facts, sections 1.2 to 1.5 (read in the vendor's sources and on real files).
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

_SECOND: Final = 1_000_000  # µs
_MILLISECOND: Final = 1_000
_BELOW_MS: Final = 10**11  # as seconds, the year 5138
_BELOW_US: Final = 10**14
# 400,000 years: what no clock and no sum of CPU time reaches, and 64 bits of the database hold in µs.
_MOST_US: Final = 2**63 - 1
_MOST: Final = 2**53
_MOST_S: Final = _MOST / _SECOND
_FIRST_US: Final = 946_684_800 * _SECOND  # 2000: there was no Grid Engine before
_CLOCK_OFF_US: Final = 86_400 * _SECOND  # more than any time zone is from another
_NO_NAMES: Final = {"NONE": "", "UNKNOWN": "", "(null)": ""}
# Not people: the daemons sign themselves into `deleted_by` too.
_DAEMONS: Final = ("execd@", "qmaster@")


class BadRecord(Exception):
    """A line that cannot be understood, and why."""


class TimeUnit(StrEnum):
    """The unit of start and end times; `auto` tells it from their size."""

    AUTO = "auto"
    S = "s"
    MS = "ms"
    US = "us"


class Accounted(NamedTuple):
    """A record. 0 and '' are unknown, texts hold nothing that XML or SQLite cannot; times are µs since 1970 in UTC.

    A tuple, because there are millions: a frozen dataclass of this size takes 4 µs to make instead of 1.
    """

    job: int
    task: int  # of an array; 0: it is none
    pe_task: str  # `n.host` of a task of a tight parallel job, '' for the job itself
    queue: str
    host: str
    owner: str
    unix_group: str
    account: str
    project: str
    department: str
    pe: str
    slots: int
    name: str
    category: str
    submitted_us: int
    started_us: int
    ended_us: int
    failed: int
    exit_status: int
    deleted_by_user: int
    rusage_wall_us: int
    cpu_us: int
    kernel_us: int
    resident_kib: int
    virtual_kib: int
    cpu_incomplete: int  # the qmaster wrote it without the host's figures

    @property
    def ran(self) -> bool:
        """Whether there was a run, whatever `failed` says."""
        return self.started_us > 0 and self.ended_us >= self.started_us


def known(name: str) -> str:
    """A name, '' where the writer had none."""
    return _NO_NAMES.get(name, name)


def to_us(unit: TimeUnit, submitted: int, started: int, ended: int) -> tuple[int, int, int]:
    """The three times in µs. All are in the unit of the greatest. Raises: BadRecord."""
    # Most lines of Grid Engine 9 are done with here.
    if unit is TimeUnit.AUTO and 0 <= submitted <= ended and 0 <= started <= ended and _BELOW_US <= ended <= _MOST_US:
        return submitted, started, ended
    greatest = max(submitted, started, ended)
    if min(submitted, started, ended) < 0:
        raise BadRecord(f"a time is before 1970: submission {submitted}, start {started}, end {ended}")
    if unit is TimeUnit.AUTO:
        factor = _SECOND if greatest < _BELOW_MS else _MILLISECOND if greatest < _BELOW_US else 1
    else:
        factor = {TimeUnit.S: _SECOND, TimeUnit.MS: _MILLISECOND, TimeUnit.US: 1}[unit]
    if greatest * factor > _MOST_US:
        raise BadRecord(f"a time is beyond any calendar: submission {submitted}, start {started}, end {ended}")
    if factor == 1:
        return submitted, started, ended
    return submitted * factor, started * factor, ended * factor


def sound_start(submitted: int, started: int, ended: int, ru_wall: int) -> int:
    """The start, which may be wrong where a host had no clock yet: then what `ru_wallclock` makes of the end. All in µs.

    Such hosts begin in 1970, before the submission. A clock that is hours off is believed: it is so at the end too, and wall
    time is right. Raises: BadRecord when nothing tells how long the job ran.
    """
    earliest = submitted - _CLOCK_OFF_US if submitted else _FIRST_US
    if not 0 < started <= ended or started >= earliest:
        return started
    if ru_wall and ended - ru_wall >= earliest:
        return ended - ru_wall
    began = datetime.fromtimestamp(started / _SECOND, UTC).strftime("%Y-%m-%d %H:%M")
    raise BadRecord(
        f"started {began} UTC, long before it can have: its host's clock was wrong, and so is its wall time"
    )


def kib(count: float, factor: int) -> int:
    """Memory in KiB, of `factor` to the KiB; 0, unknown, for less than nothing. Raises: BadRecord."""
    if not -(2**63) < count < 2**63:
        raise BadRecord(f"{count!r} is no size of memory")
    return int(count) // factor if count > 0 else 0


def usage(cpu_s: float, user_s: float, kernel_s: float, ru_wall_s: float, failed: int) -> tuple[int, int, int, int]:
    """In µs: CPU time, the kernel's share of it, `ru_wallclock`; and whether the CPU time is incomplete. Raises: BadRecord.

    `cpu` is the greater of rusage and the daemon's own measurement, which covers processes that rusage misses. What the qmaster
    wrote for a host that was silent (failed 37) may have none: then rusage is all there is.
    """
    # Also refuses what is not finite.
    if not (0 <= cpu_s < _MOST_S and 0 <= user_s < _MOST_S and 0 <= kernel_s < _MOST_S and 0 <= ru_wall_s < _MOST_S):
        raise BadRecord(f"CPU time {cpu_s!r}, {user_s!r}, {kernel_s!r} or {ru_wall_s!r} is no number of seconds")
    cpu_us, kernel_us = int(cpu_s * _SECOND + 0.5), int(kernel_s * _SECOND + 0.5)
    incomplete = 0
    if cpu_us == 0:
        cpu_us = int(user_s * _SECOND + 0.5) + kernel_us
        incomplete = int(failed == 37)
    return cpu_us, min(kernel_us, cpu_us), int(ru_wall_s * _SECOND + 0.5), incomplete


def check_range(job: int, task: int, slots: int, failed: int, exit_status: int) -> None:
    """Raises: BadRecord for numbers that no Grid Engine writes."""
    if not (0 < job < _MOST and 0 <= task < _MOST and 0 <= slots < 2**31 and 0 <= failed < 2**31):
        raise BadRecord(f"job {job}, task {task}, slots {slots}, failed {failed}: one is out of range")
    if not -(2**31) <= exit_status < 2**32:
        raise BadRecord(f"exit status {exit_status} is out of range")


def deleted_by_person(name: str) -> int:
    """Whether a person removed the job; daemons and reschedules sign here too."""
    return int(name != "" and known(name) != "" and not name.startswith(_DAEMONS))
