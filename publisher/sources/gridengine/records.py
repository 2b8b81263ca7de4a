"""Accounting records of Grid Engine, in our units, from either of its two formats.

The colon-separated `accounting` of every generation has 43 to 74 columns and escapes nothing, and a
category (`-l cpu=24:00:00`) holds colons. So columns 0 to 38 are counted from the left, and the end
of the category is found by what follows it. Where a job's name or account holds colons, the numbers
after them are found. Grid Engine 9 writes one JSON object per line
(`accounting.jsonl`); unknown keys are ignored, since the vendor adds some in bug-fix releases.

Spec: accounting(5). Tried on 1,020 real lines of all widths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from publisher.sources.files.log_files import clean
from publisher.sources.gridengine.colon_names import UnclearNames, split_names

_SECOND: Final = 1_000_000  # µs
_MILLISECOND: Final = 1_000
_BELOW_MS: Final = 10**11  # as seconds, the year 5138
_BELOW_US: Final = 10**14
# 400,000 years: no clock and no CPU time reaches it, and 64 bits of the database hold it in µs.
_MOST_US: Final = 2**63 - 1
_MOST: Final = 2**53
_MOST_S: Final = _MOST / _SECOND
_FIRST_US: Final = 946_684_800 * _SECOND  # 2000: there was no Grid Engine before
_CLOCK_OFF_US: Final = 86_400 * _SECOND  # more than any time zone is from another
_NO_NAMES: Final = {"NONE": "", "UNKNOWN": "", "(null)": ""}
# Not people: the daemons sign themselves into `deleted_by` too.
_DAEMONS: Final = ("execd@", "qmaster@")


class BadGridEngineRecord(Exception):
    """A line that cannot be understood, and why."""


class StampUnit(StrEnum):
    """The unit of start and end times; `auto` tells it from their size."""

    AUTO = "auto"
    S = "s"
    MS = "ms"
    US = "us"


class GridEngineRecord(NamedTuple):
    """A record, as a tuple for speed. 0 and '' are unknown; times are µs since 1970 in UTC."""

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
        """Return whether there was a run, whatever `failed` says."""
        return self.started_us > 0 and self.ended_us >= self.started_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelRun:
    """One run of a parallel job: the job's own record, and those of its tasks by their start."""

    master: GridEngineRecord
    tasks: tuple[GridEngineRecord, ...]


def known(name: str) -> str:
    """Return a name, '' where the writer had none."""
    return _NO_NAMES.get(name, name)


_shown = "submission {}, start {}, end {}".format


def to_us(unit: StampUnit, submitted: int, started: int, ended: int) -> tuple[int, int, int]:
    """The three times in µs. All are in the unit of the greatest. Raises: BadGridEngineRecord."""
    # Most lines of Grid Engine 9 are done with here.
    in_order = 0 <= submitted <= ended and 0 <= started <= ended
    if in_order and unit is StampUnit.AUTO and _BELOW_US <= ended <= _MOST_US:
        return submitted, started, ended
    greatest = max(submitted, started, ended)
    if min(submitted, started, ended) < 0:
        raise BadGridEngineRecord(f"a time is before 1970: {_shown(submitted, started, ended)}")
    if unit is StampUnit.AUTO:
        unit = StampUnit.US
        if greatest < _BELOW_MS:
            unit = StampUnit.S
        elif greatest < _BELOW_US:
            unit = StampUnit.MS
    factor = {StampUnit.S: _SECOND, StampUnit.MS: _MILLISECOND, StampUnit.US: 1}[unit]
    if greatest * factor > _MOST_US:
        times = _shown(submitted, started, ended)
        raise BadGridEngineRecord(f"a time is beyond any calendar: {times}")
    return submitted * factor, started * factor, ended * factor


def sound_start(submitted: int, started: int, ended: int, ru_wall: int) -> int:
    """The start or, where a host had no clock yet, what `ru_wallclock` makes of the end. In µs.

    Such hosts begin in 1970, before the submission. A clock that is hours off is believed: it is so
    at the end too, and wall time is right. Raises: BadGridEngineRecord when nothing tells how long
    the job ran.
    """
    earliest = submitted - _CLOCK_OFF_US if submitted else _FIRST_US
    if not 0 < started <= ended or started >= earliest:
        return started
    if ru_wall and ended - ru_wall >= earliest:
        return ended - ru_wall
    began = datetime.fromtimestamp(started / _SECOND, UTC).strftime("%Y-%m-%d %H:%M")
    raise BadGridEngineRecord(
        f"started {began} UTC, long before it can have: its host's clock was wrong, "
        "and so is its wall time"
    )


def kib(count: float, factor: int) -> int:
    """Memory in KiB, of `factor` to the KiB; never below 0. Raises: BadGridEngineRecord."""
    # Of all tasks of a job 64 bits must hold the sum.
    if not -(2**63) < count < _MOST * factor:
        raise BadGridEngineRecord(f"{count!r} is not a size of memory")
    return int(count) // factor if count > 0 else 0


def usage(
    cpu_s: float, user_s: float, kernel_s: float, ru_wall_s: float, failed: int
) -> tuple[int, int, int, int]:
    """In µs: CPU time, the kernel's share, `ru_wallclock`; and whether the CPU time is incomplete.

    `cpu` is the greater of rusage and the daemon's own measurement, which covers processes that
    rusage misses. What the qmaster wrote for a host that was silent (failed 37) may have none: then
    rusage is all there is. Raises: BadGridEngineRecord.
    """
    # Also refuses what is not finite.
    are_times = 0 <= cpu_s < _MOST_S and 0 <= user_s < _MOST_S
    if not (are_times and 0 <= kernel_s < _MOST_S and 0 <= ru_wall_s < _MOST_S):
        times = f"{cpu_s!r}, {user_s!r}, {kernel_s!r} or {ru_wall_s!r}"
        raise BadGridEngineRecord(f"CPU time {times} is not a number of seconds")
    cpu_us, kernel_us = int(cpu_s * _SECOND + 0.5), int(kernel_s * _SECOND + 0.5)
    incomplete = 0
    if cpu_us == 0:
        cpu_us = int(user_s * _SECOND + 0.5) + kernel_us
        incomplete = int(failed == 37)
    return cpu_us, min(kernel_us, cpu_us), int(ru_wall_s * _SECOND + 0.5), incomplete


def check_range(job: int, task: int, slots: int, failed: int, exit_status: int) -> None:
    """Raises: BadGridEngineRecord for numbers that no Grid Engine writes."""
    if not (0 < job < _MOST and 0 <= task < _MOST and 0 <= slots < 2**31 and 0 <= failed < 2**31):
        numbers = f"job {job}, task {task}, slots {slots}, failed {failed}"
        raise BadGridEngineRecord(f"{numbers}: one is out of range")
    if not -(2**31) <= exit_status < 2**32:
        raise BadGridEngineRecord(f"exit status {exit_status} is out of range")


def deleted_by_person(name: str) -> int:
    """Return whether a person removed the job; daemons and reschedules sign here too."""
    return int(name != "" and known(name) != "" and not name.startswith(_DAEMONS))


_INTEGER: Final = r"-?[0-9]{1,19}"
_NUMBER: Final = r"-?[0-9]{1,19}(?:\.[0-9]{0,19})?(?:[eE][-+]?[0-9]{1,3})?"
_WORD: Final = r"[^:]*"
# 0 queue, host, group, owner, name, 5 job, account, priority, 8 submission, start, end, failed,
# exit status, 13 ru_wallclock, utime, stime, maxrss, 17 to 30 other rusage, 31 project, department,
# PE, slots, task, 36 cpu, mem, io. A line to which half of another is glued has a text where a
# number should be.
_NUMBERS: Final = (
    rf":{_NUMBER}:({_INTEGER}):({_INTEGER}):({_INTEGER}):({_INTEGER}):({_INTEGER}):"
    rf"({_NUMBER}):({_NUMBER}):({_NUMBER}):({_NUMBER}):(?:{_NUMBER}:){{14}}"
    rf"({_WORD}):({_WORD}):({_WORD}):({_INTEGER}):({_INTEGER}):({_NUMBER}):{_NUMBER}:{_NUMBER}:"
)
_NAMES: Final = rf"({_WORD}):({_WORD}):({_WORD}):({_WORD}):({_WORD}):({_INTEGER}):({_WORD})"
_LEFT: Final = re.compile(_NAMES + _NUMBERS, re.ASCII)
_AFTER_NAMES: Final = re.compile(_NUMBERS, re.ASCII)
# `n.host`, where the host is a name or an address: never a number such as 2048.000000.
_PE_TASK: Final = r"[0-9]+\.(?:[^:]*[A-Za-z][^:]*|[0-9]+(?:\.[0-9]+){3})"
# Column 39 and after: category, 40 iow, 41 pe_taskid, 42 maxvmem, and since 6.2 two whole numbers,
# then what the fork adds.
_ANCHOR: Final = re.compile(
    rf":{_NUMBER}:((?:NONE)?|{_PE_TASK}):({_NUMBER})(?::{_INTEGER}:{_INTEGER}(?=:|$)|$)", re.ASCII
)
_IS_REPORTING: Final = (
    "a line of the reporting file, which holds other records too: name the accounting file"
)
_REPORTING: Final = re.compile(r"[0-9]{9,16}:[a-z_]+:")
# A time has two colons; more than ten in a category are another record glued to it.
_MOST_COLONS: Final = 20
_LEAST_COLUMNS: Final = 43
# What forks add is 29 columns by now; two records glued together have more.
_MOST_ADDED: Final = 41


def read_colon(line: str, unit: StampUnit) -> GridEngineRecord:
    """Raises: BadGridEngineRecord."""
    columns, end = _columns(line)
    category, anchor = _category(line, end)
    queue, host, group, owner, name, job, account, *numbers = columns[:-6]
    project, department, pe, slots, task, cpu = columns[-6:]
    submitted, started, ended, failed, status = map(int, numbers[:5])
    ru_wall, user, kernel, ru_maxrss = map(float, numbers[5:])
    more = line[anchor.end() + 1 :].split(":") if anchor.end() < len(line) else []
    if len(more) > _MOST_ADDED:
        count = line.count(":") + 1
        raise BadGridEngineRecord(f"{count} columns: two records seem to be on one line")
    # Univa and Altair: job class, who removed it, maxrss, maxpss, submit host, ...
    removed_by, maxrss = (more[1], _added(more[2])) if len(more) >= 7 else ("", 0.0)
    names = (anchor[1], queue, host, owner, group, account, project, department, pe, name)
    return _record(
        unit,
        (*names, category, removed_by),
        (int(job), int(task), int(slots), failed, status),
        (submitted, started, ended),
        (float(cpu), user, kernel, ru_wall),
        (kib(maxrss, 1024) or kib(ru_maxrss, 1), kib(float(anchor[2]), 1024)),
    )


def _columns(line: str) -> tuple[Sequence[str], int]:
    """The columns before the category that are used, and its place. Raises: BadGridEngineRecord."""
    left = _LEFT.match(line)
    if left is not None:
        return left.groups(), left.end()
    numbers = None if _REPORTING.match(line) else _AFTER_NAMES.search(line)
    if numbers is None:
        raise BadGridEngineRecord(_why(line))
    try:
        names = split_names(line[: numbers.start()])
    except UnclearNames as unclear:
        raise BadGridEngineRecord(str(unclear)) from None
    return (*names, *numbers.groups()), numbers.end()


def _category(line: str, start: int) -> tuple[str, re.Match[str]]:
    """Return the category, and where it ends. Raises: BadGridEngineRecord."""
    anchor = _ANCHOR.search(line, start)
    if anchor is None:
        lacking = "the columns after the category (iow, pe_taskid, maxvmem)"
        raise BadGridEngineRecord(f"{lacking} are not to be found")
    category = line[start : anchor.start()]
    if category.count(":") > _MOST_COLONS:
        why = "the category has too many colons"
        raise BadGridEngineRecord(f"{why}: two records seem to be on one line")
    return category, anchor


def _added(text: str) -> float:
    """Return a number among the columns that a fork adds. Raises: BadGridEngineRecord."""
    try:
        return float(text)
    except ValueError:
        raise BadGridEngineRecord(f"{text[:40]!r} is not a number") from None


def _why(line: str) -> str:
    if _REPORTING.match(line):
        return _IS_REPORTING
    columns = line.count(":") + 1
    if columns < _LEAST_COLUMNS:
        return f"{columns} columns; an accounting record has {_LEAST_COLUMNS} to 74"
    return "a column that must be a number is not: it is torn, or not from Grid Engine"


_NOTHING: Final[dict[str, Any]] = {}
_decode: Final = JSONDecoder().raw_decode


def read_json(line: str, unit: StampUnit) -> GridEngineRecord:
    """Raises: BadGridEngineRecord."""
    try:
        entry, end = _decode(line)
    except (ValueError, RecursionError) as error:
        # Such as nothing in place of a number that is not finite (rapidjson), thousands of digits,
        # thousands of brackets.
        raise BadGridEngineRecord(f"not JSON: {error}") from None
    if not isinstance(entry, dict) or (end != len(line) and line[end:].strip()):
        raise BadGridEngineRecord("not one JSON object")
    if "type" in entry:
        raise BadGridEngineRecord(_IS_REPORTING)
    try:
        return _read_entry(entry, unit)
    except KeyError as error:
        raise BadGridEngineRecord(f"has no {error.args[0]}") from None
    except (TypeError, AttributeError, OverflowError) as error:
        raise BadGridEngineRecord(f"a value is of the wrong kind: {error}") from None


def _read_entry(entry: dict[str, Any], unit: StampUnit) -> GridEngineRecord:
    get = entry.get
    job, task, slots = entry["job_number"], get("task_number", 0), get("slots", 1)
    failed, status = get("failed", 0), get("exit_status", 0)
    submitted, started, ended = get("submission_time", 0), entry["start_time"], entry["end_time"]
    numbers = job, task, slots, failed, status, submitted, started, ended
    if not all(type(number) is int for number in numbers):  # not JSON's `true`
        raise BadGridEngineRecord("a number is not a whole one")
    texts: tuple[str, ...] = (
        *(get("pe_taskid", ""), get("qname", ""), get("hostname", ""), entry["owner"]),
        *(get("group", ""), get("account", ""), get("project", ""), get("department", "")),
        *(get("granted_pe", ""), get("job_name", ""), get("category", ""), get("deleted_by", "")),
    )
    measures = entry["usage"]
    rusage = measures.get("rusage", _NOTHING).get
    # `usage` up to 9.0.5, `eusage` since
    own = (measures["eusage"] if "eusage" in measures else measures.get("usage", _NOTHING)).get
    resident_kib = kib(own("maxrss", 0), 1024) or kib(rusage("ru_maxrss", 0), 1)
    return _record(
        unit,
        texts,
        (job, task, slots, failed, status),
        (submitted, started, ended),
        (own("cpu", 0), rusage("ru_utime", 0), rusage("ru_stime", 0), rusage("ru_wallclock", 0)),
        (resident_kib, kib(own("maxvmem", 0), 1024)),
    )


def _record(
    unit: StampUnit,
    texts: tuple[str, ...],
    numbers: tuple[int, int, int, int, int],
    times: tuple[int, int, int],
    seconds: tuple[float, float, float, float],
    memory_kib: tuple[int, int],
) -> GridEngineRecord:
    """Of values as either format has them. Raises: BadGridEngineRecord; TypeError unless texts."""
    job, task, slots, failed, status = numbers
    check_range(*numbers)
    submitted, started, ended = to_us(unit, *times)
    if not "".join(texts).isprintable():
        texts = tuple(map(clean, texts))
    pe_task, queue, host, owner, group, account, *others = texts
    project, department, pe, name, category, deleted_by = others
    cpu_us, kernel_us, ru_wall_us, incomplete = usage(*seconds, failed)
    return GridEngineRecord(
        job,
        task,
        known(pe_task),
        known(queue),
        known(host),
        owner,
        group,
        account,
        known(project),
        known(department),
        known(pe),
        slots,
        name,
        known(category),
        submitted,
        sound_start(submitted, started, ended, ru_wall_us),
        ended,
        failed,
        status,
        deleted_by_person(deleted_by),
        ru_wall_us,
        cpu_us,
        kernel_us,
        *memory_kib,
        incomplete,
    )


_BEGINNING: Final = '{"job_number":'


def read_line(line: bytes, unit: StampUnit) -> tuple[list[GridEngineRecord], str]:
    """Return the records of a line, and what is wrong with it or ''.

    After a failed write the qmaster may glue records to a torn one: the whole ones are saved. Names
    are not always UTF-8; then they are Latin-1, in which every byte is a letter. A file that was on
    Windows ends its lines with CR LF.
    """
    line = line.removesuffix(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    try:
        if not text.startswith("{"):
            return [read_colon(text, unit)], ""
        return [read_json(text, unit)], ""
    except BadGridEngineRecord as bad:
        return _glued(text, unit), str(bad)


def _glued(text: str, unit: StampUnit) -> list[GridEngineRecord]:
    """Of a line with several beginnings, none inside of a record, where quotes have a backslash."""
    _, *rests = text.split(_BEGINNING)
    if len(rests) == 1 and text.startswith(_BEGINNING):
        return []
    records = []
    for rest in rests:
        try:
            records.append(read_json(_BEGINNING + rest, unit))
        except BadGridEngineRecord:
            continue  # the line is set aside as a whole
    return records
