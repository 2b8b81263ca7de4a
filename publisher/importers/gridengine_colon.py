"""The colon-separated format of every generation of Grid Engine: `accounting`, 43 to 74 columns.

Nothing is escaped, and a category (`-l cpu=24:00:00`) holds colons. So columns 0 to 38 are counted from the left, and the place
where it ends is found by what follows it. Spec: other-sources facts, section 1.4 (tried on 1,020 real lines of all widths).
"""

from __future__ import annotations

import re
from typing import Final

from publisher.importers.gridengine_record import (
    Accounted,
    BadRecord,
    TimeUnit,
    check_range,
    deleted_by_person,
    kib,
    known,
    sound_start,
    to_us,
    usage,
)
from publisher.importers.texts import clean

_INTEGER: Final = r"-?[0-9]{1,19}"
_NUMBER: Final = r"-?[0-9]{1,19}(?:\.[0-9]{0,19})?(?:[eE][-+]?[0-9]{1,3})?"
_WORD: Final = r"[^:]*"
# 0 queue, host, group, owner, name, 5 job, account, priority, 8 submission, start, end, failed, exit status, 13 ru_wallclock,
# utime, stime, maxrss, 17 to 30 other rusage, 31 project, department, PE, slots, task, 36 cpu, mem, io. A line to which half of
# another is glued has a text where a number should be.
_LEFT: Final = re.compile(
    rf"({_WORD}):({_WORD}):({_WORD}):({_WORD}):({_WORD}):({_INTEGER}):({_WORD}):{_NUMBER}:"
    rf"({_INTEGER}):({_INTEGER}):({_INTEGER}):({_INTEGER}):({_INTEGER}):"
    rf"({_NUMBER}):({_NUMBER}):({_NUMBER}):({_NUMBER}):(?:{_NUMBER}:){{14}}"
    rf"({_WORD}):({_WORD}):({_WORD}):({_INTEGER}):({_INTEGER}):({_NUMBER}):{_NUMBER}:{_NUMBER}:",
    re.ASCII,
)
# `n.host`, where the host is a name or an address: never a number such as 2048.000000.
_PE_TASK: Final = r"[0-9]+\.(?:[^:]*[A-Za-z][^:]*|[0-9]+(?:\.[0-9]+){3})"
# Column 39 and after: category, 40 iow, 41 pe_taskid, 42 maxvmem, and since 6.2 two whole numbers, then what the fork adds.
_ANCHOR: Final = re.compile(
    rf":{_NUMBER}:((?:NONE)?|{_PE_TASK}):({_NUMBER})(?::{_INTEGER}:{_INTEGER}(?=:|$)|$)", re.ASCII
)
_REPORTING: Final = re.compile(r"[0-9]{9,16}:[a-z_]+:")
# A time has two colons; more than ten of them in one category are another record that was glued to it.
_MOST_COLONS: Final = 20
_LEAST_COLUMNS: Final = 43
# What forks add is 29 columns by now; a whole record behind those of another has more than any of them.
_MOST_ADDED: Final = 41


def read_colon(line: str, unit: TimeUnit) -> Accounted:
    """Raises: BadRecord."""
    left = _LEFT.match(line)
    if left is None:
        raise BadRecord(_why(line))
    category, anchor = _category(line, left.end())
    (queue, host, group, owner, name, job, account, *numbers, project, department, pe, slots, task, cpu) = left.groups()
    submitted, started, ended, failed, status = map(int, numbers[:5])
    ru_wall, user, kernel, ru_maxrss = map(float, numbers[5:])
    more = line[anchor.end() + 1 :].split(":") if anchor.end() < len(line) else []
    if len(more) > _MOST_ADDED:
        raise BadRecord(f"{line.count(':') + 1} columns: two records seem to stand in one line")
    # Univa and Altair: job class, who removed it, maxrss, maxpss, submit host, ...
    removed_by, maxrss = (more[1], _added(more[2])) if len(more) >= 7 else ("", 0.0)
    check_range(int(job), int(task), int(slots), failed, status)
    submitted, started, ended = to_us(unit, submitted, started, ended)
    cpu_us, kernel_us, ru_wall_us, incomplete = usage(float(cpu), user, kernel, ru_wall, failed)
    started = sound_start(submitted, started, ended, ru_wall_us)
    pe_task = anchor[1]
    if not line.isprintable():
        queue, host, group, owner, name, account = map(clean, (queue, host, group, owner, name, account))
        project, department, pe, category, pe_task = map(clean, (project, department, pe, category, pe_task))
    return Accounted(
        int(job),
        int(task),
        known(pe_task),
        known(queue),
        known(host),
        owner,
        group,
        account,
        known(project),
        known(department),
        known(pe),
        int(slots),
        name,
        known(category),
        submitted,
        started,
        ended,
        failed,
        status,
        deleted_by_person(removed_by),
        ru_wall_us,
        cpu_us,
        kernel_us,
        kib(maxrss, 1024) or kib(ru_maxrss, 1),
        kib(float(anchor[2]), 1024),
        incomplete,
    )


def _category(line: str, start: int) -> tuple[str, re.Match[str]]:
    """The category, and where it ends. Raises: BadRecord."""
    anchor = _ANCHOR.search(line, start)
    if anchor is None:
        raise BadRecord("the columns after the category (iow, pe_taskid, maxvmem) are not to be found")
    category = line[start : anchor.start()]
    if category.count(":") > _MOST_COLONS:
        raise BadRecord("the category has too many colons: two records seem to stand in one line")
    return category, anchor


def _added(text: str) -> float:
    """A number among the columns that a fork adds. Raises: BadRecord."""
    try:
        return float(text)
    except ValueError:
        raise BadRecord(f"{text[:40]!r} is no number") from None


def _why(line: str) -> str:
    if _REPORTING.match(line):
        return "a line of the reporting file, which holds other records too: name the accounting file"
    columns = line.count(":") + 1
    if columns < _LEAST_COLUMNS:
        return f"{columns} columns; an accounting record has {_LEAST_COLUMNS} to 74"
    return "a column that must be a number is none: it is torn, or not from Grid Engine"
