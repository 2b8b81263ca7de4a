"""The one-line JSON format of Grid Engine 9: `accounting.jsonl`.

Spec: other-sources facts, section 1.2. Unknown keys are ignored: the vendor adds some in bug-fix releases.
"""

from __future__ import annotations

from json import JSONDecoder
from typing import Any, Final

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

_NOTHING: Final[dict[str, Any]] = {}
_decode: Final = JSONDecoder().raw_decode


def read_json(line: str, unit: TimeUnit) -> Accounted:
    """Raises: BadRecord."""
    try:
        entry, end = _decode(line)
    except (ValueError, RecursionError) as error:
        # Such as nothing in place of a number that is not finite (rapidjson), thousands of digits, thousands of brackets.
        raise BadRecord(f"not JSON: {error}") from None
    if entry.__class__ is not dict or (end != len(line) and line[end:].strip()):
        raise BadRecord("not one JSON object")
    if "type" in entry:
        raise BadRecord("a line of the reporting file, which holds other records too: name the accounting file")
    try:
        return _record(entry, unit)
    except KeyError as error:
        raise BadRecord(f"has no {error.args[0]}") from None
    except (TypeError, AttributeError, OverflowError) as error:
        raise BadRecord(f"a value is of the wrong kind: {error}") from None


def _record(entry: dict[str, Any], unit: TimeUnit) -> Accounted:
    get = entry.get
    job, task, slots = entry["job_number"], get("task_number", 0), get("slots", 1)
    failed, status = get("failed", 0), get("exit_status", 0)
    submitted, started, ended = get("submission_time", 0), entry["start_time"], entry["end_time"]
    if not (
        job.__class__ is task.__class__ is slots.__class__ is failed.__class__ is status.__class__ is int
        and submitted.__class__ is started.__class__ is ended.__class__ is int
    ):
        raise BadRecord("a number is no whole one")
    check_range(job, task, slots, failed, status)
    submitted, started, ended = to_us(unit, submitted, started, ended)
    texts: tuple[str, ...] = (
        *(get("pe_taskid", ""), get("qname", ""), get("hostname", ""), entry["owner"], get("group", "")),
        *(get("account", ""), get("project", ""), get("department", ""), get("granted_pe", "")),
        *(get("job_name", ""), get("category", ""), get("deleted_by", "")),
    )
    if not "".join(texts).isprintable():  # joining refuses what is no text
        texts = tuple(clean(text) for text in texts)
    pe_task, queue, host, owner, group, account, project, department, pe, name, category, deleted_by = texts

    measures = entry["usage"]
    rusage = measures.get("rusage", _NOTHING).get
    # `usage` up to 9.0.5, `eusage` since
    own = (measures["eusage"] if "eusage" in measures else measures.get("usage", _NOTHING)).get
    cpu_us, kernel_us, ru_wall_us, incomplete = usage(
        own("cpu", 0), rusage("ru_utime", 0), rusage("ru_stime", 0), rusage("ru_wallclock", 0), failed
    )
    started = sound_start(submitted, started, ended, ru_wall_us)
    return Accounted(
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
        category,
        submitted,
        started,
        ended,
        failed,
        status,
        deleted_by_person(deleted_by),
        ru_wall_us,
        cpu_us,
        kernel_us,
        kib(own("maxrss", 0), 1024) or kib(rusage("ru_maxrss", 0), 1),
        kib(own("maxvmem", 0), 1024),
        incomplete,
    )
