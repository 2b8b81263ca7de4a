"""All that stands of one job, as JSON objects, tables and lines. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from publisher.model.job import Epoch, Transfer
from publisher.model.job_sheet import JobSheet, StoredEvent
from publisher.model.sgas import public_url
from publisher.results import when
from publisher.results_stats import duration, moment, size

Json = Mapping[str, Any]

EVENT_COLUMNS: Final = ("UTC", "CE's local time", "event")
TRANSFER_COLUMNS: Final = ("direction", "size (bytes)", "began (UTC)", "ended (UTC)", "seconds", "URL")
_DIRECTIONS: Final = {"download": "in", "cached": "in, from cache", "upload": "out"}


def job_json(sheet: JobSheet) -> Json:
    return {
        "job": sheet.job_id,
        "database": sheet.row.database,
        "record_id": sheet.row.record_id,
        "elsewhere": list(sheet.elsewhere),
        "local_id": sheet.local_id,
        "status": sheet.status,
        "in_progress": sheet.in_progress,
        "exit_code": sheet.exit_code,
        "submit_time": when(sheet.submitted_at),
        "start_time": when(sheet.started_at),
        "end_time": when(sheet.ended_at),
        "interface": sheet.interface,
        "endpoint": sheet.endpoint,
        "queue": sheet.queue,
        "user": sheet.user,
        "vo": sheet.vo,
        "fqan": sheet.fqan,
        "benchmark": sheet.benchmark,
        "nodes": sheet.node_count,
        "cores": sheet.cpu_count,
        "gpus": sheet.gpu_count,
        "memory_kib": sheet.memory_kib,
        "virtual_memory_kib": sheet.virtual_memory_kib,
        "wall_s": sheet.wall_s,
        "cpu_user_s": sheet.cpu_user_s,
        "cpu_kernel_s": sheet.cpu_kernel_s,
        "scratch_bytes": sheet.scratch_bytes,
        "stage_in_bytes": sheet.stage_in_bytes,
        "stage_out_bytes": sheet.stage_out_bytes,
        "rtes": list(sheet.runtime_environments),
        "attributes": [{"key": key, "value": value} for key, value in sheet.attributes],
        "extra": [{"key": key, "value": value} for key, value in sheet.extra],
        "oddities": list(sheet.oddities),
    }


def events_json(sheet: JobSheet, zone: str) -> Json:
    return {
        "job": sheet.job_id,
        "in_progress": sheet.in_progress,
        "zone": zone or None,
        "events": [
            {
                "event": event.key,
                "local_time": event.local_time,
                "utc": [when(each) for each in event.moments],
            }
            for event in sheet.events
        ],
    }


def transfers_json(sheet: JobSheet, *, full_urls: bool) -> Json:
    return {
        "job": sheet.job_id,
        "in_progress": sheet.in_progress,
        "transfers": [
            {
                "kind": each.kind,
                "url": _url(each, full_urls),
                "size_bytes": each.size_bytes,
                "start_time": when(each.started_at),
                "end_time": when(each.ended_at),
            }
            for each in sheet.transfers
        ],
    }


def heading(sheet: JobSheet) -> list[str]:
    """The job, where it stands, and whether it goes on."""
    lines = [f"job {sheet.job_id}"]
    if sheet.in_progress:
        lines.append("it is in progress: what it used is told when it has ended")
    return lines


def description_lines(sheet: JobSheet) -> list[str]:
    told = [
        ("status", sheet.status or "unknown"),
        ("batch id", sheet.local_id or "none"),
        ("user", sheet.user or "unknown"),
        ("VO", sheet.vo or "none"),
        ("FQAN", sheet.fqan or "none"),
        ("queue", sheet.queue or "unknown"),
        ("endpoint", sheet.endpoint or "unknown"),
        ("endpoint type", sheet.interface or "unknown"),
        ("submitted", moment(sheet.submitted_at)),
    ]
    if not sheet.in_progress:
        told += [
            ("started", moment(sheet.started_at)),
            ("ended", moment(sheet.ended_at)),
            ("exit code", "unknown" if sheet.exit_code is None else str(sheet.exit_code)),
        ]
    told += sheet.extra
    told += [("database", f"{sheet.row.database}, row {sheet.row.record_id}")]
    told += [("also in", path) for path in sheet.elsewhere]
    return _told(told)


def resource_lines(sheet: JobSheet) -> list[str]:
    """Each with its unit: memory is in KiB in the accounting data, sizes are in bytes."""
    if sheet.in_progress:
        return []
    told = [
        ("nodes", _count(sheet.node_count)),
        ("cores", _count(sheet.cpu_count)),
        *([("GPUs", _count(sheet.gpu_count))] if sheet.gpu_count is not None else []),
        ("memory", size(sheet.memory_kib, "KiB")),
        ("virtual memory", size(sheet.virtual_memory_kib, "KiB")),
        ("wall time", duration(sheet.wall_s)),
        ("CPU time, user", duration(sheet.cpu_user_s)),
        ("CPU time, kernel", duration(sheet.cpu_kernel_s)),
        ("scratch", size(sheet.scratch_bytes)),
        ("staged in", size(sheet.stage_in_bytes)),
        ("staged out", size(sheet.stage_out_bytes)),
        ("benchmark", sheet.benchmark or "none"),
    ]
    return _told(told)


def rte_lines(sheet: JobSheet) -> list[str]:
    return [f"runtime environment  {name}" for name in sheet.runtime_environments]


def token_lines(sheet: JobSheet) -> list[str]:
    return [f"token attribute  {key}: {value}" for key, value in sheet.attributes]


def oddity_lines(sheet: JobSheet) -> list[str]:
    return [f"cannot be read: {oddity}" for oddity in sheet.oddities]


def event_rows(sheet: JobSheet) -> list[tuple[str, ...]]:
    return [(_utc(event), event.local_time, event.key) for event in sheet.events]


def event_notes(zone: str) -> str:
    if zone:
        return f"local time is that of {zone} (source.time_zone)"
    return "local time is taken for that of this host; source.time_zone names the CE's if it is another"


def transfer_rows(sheet: JobSheet, *, full_urls: bool) -> list[tuple[str, ...]]:
    return [
        (
            _DIRECTIONS.get(each.kind, each.kind),
            "unknown" if each.size_bytes is None else f"{each.size_bytes:,}",
            moment(each.started_at),
            moment(each.ended_at),
            _seconds(each.started_at, each.ended_at),
            _url(each, full_urls),
        )
        for each in sheet.transfers
    ]


def _url(transfer: Transfer, full: bool) -> str:
    """URLs may hold passwords and signatures, and what is printed gets into tickets."""
    return transfer.url if full else public_url(transfer.url)


def _utc(event: StoredEvent) -> str:
    return " or ".join(when(each) or "" for each in event.moments) or "unknown"


def _seconds(started: Epoch | None, ended: Epoch | None) -> str:
    return "unknown" if started is None or ended is None else str(ended - started)


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _told(told: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in told) + 2
    return [f"{name:<{width}}{text}" for name, text in told]
