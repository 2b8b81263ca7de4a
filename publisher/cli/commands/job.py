"""`job`: everything that the accounting data has on one job: info, events, transfers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from publisher.cli.commands import Context
from publisher.cli.commands.stats import add_database_file, add_output, chosen_database
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    duration,
    moment,
    moment_text,
    print_result,
    size,
)
from publisher.cli.parser import Form, add_action, add_actions, add_flag, add_job, add_json
from publisher.cli.sources import incomplete
from publisher.formats.sgas.values import public_url
from publisher.model.job import Epoch, Transfer
from publisher.model.text import NO_VO
from publisher.reporting.statistics import job_sheet
from publisher.sources.sheet import JobDetails, StoredEvent

_EVENT_COLUMNS: Final = ("UTC", "CE's local time", "event")
_TRANSFER_COLUMNS: Final = (
    *("direction", "size (bytes)"),
    *("began (UTC)", "ended (UTC)", "seconds", "URL"),
)
_DIRECTIONS: Final = {"download": "in", "cached": "in, from cache", "upload": "out"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    info = add_action(actions, "info", "who, where, when, and what it used")
    add_output(info, "all", *_PARTS, "json")
    text = "its changes of state, in UTC and in the CE's local time"
    events = add_action(actions, "events", text)
    transfers = add_action(actions, "transfers", "the files that were staged in and out")
    add_flag(transfers, "--full-urls", text="show passwords and signatures in URLs")
    for action in (info, events, transfers):
        add_database_file(action)
        add_job(action)
        add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = chosen_database(arguments, context.load())
    sheet = job_sheet(site, arguments.job, apart=bool(arguments.database_file))
    as_json, as_text = _answers(arguments, sheet.zone)
    form, rows = arguments.form, arguments.action
    if arguments.action == "info":
        form, rows = Form.JSON if arguments.output == "json" else form, ""
    print_result(sheet, as_json, as_text, form=form, rows=rows)
    if not arguments.database_file:
        incomplete(site)  # a later run of the job may be there; what was found is shown in full
    return 0


def _answers(
    arguments: argparse.Namespace, zone: str
) -> tuple[Callable[[JobDetails], Json], Callable[[JobDetails], Iterator[Part]]]:
    """What makes the answer of JSON, and of text."""
    match arguments.action:
        case "info":
            return _info_json, partial(_info_text, output=arguments.output)
        case "events":
            return partial(_events_json, zone=zone), partial(_events_text, zone=zone)
        case _:
            full = arguments.full_urls
            as_text = partial(_transfers_text, full_urls=full)
            return partial(_transfers_json, full_urls=full), as_text


def _info_json(sheet: JobDetails) -> Json:
    used = ("memory_kib", "virtual_memory_kib", "wall_s", "cpu_user_s", "cpu_kernel_s")
    staged = ("scratch_bytes", "stage_in_bytes", "stage_out_bytes")
    return {
        "job": sheet.job_id,
        "database": sheet.row.database,
        "record_id": sheet.row.record_id,
        **attributes(sheet, "elsewhere", "local_id", "status", "in_progress", "exit_code"),
        "submit_time": moment_text(sheet.submitted_at),
        "start_time": moment_text(sheet.started_at),
        "end_time": moment_text(sheet.ended_at),
        **attributes(sheet, "interface", "endpoint", "queue", "user", "vo", "fqan", "benchmark"),
        "nodes": sheet.node_count,
        "cores": sheet.cpu_count,
        "gpus": sheet.gpu_count,
        **attributes(sheet, *used, *staged),
        "rtes": sheet.runtime_environments,
        "attributes": [{"key": key, "value": value} for key, value in sheet.attributes],
        "extra": [{"key": key, "value": value} for key, value in sheet.extra],
        "oddities": sheet.oddities,
    }


def _info_text(sheet: JobDetails, output: str) -> Iterator[Part]:
    """Blocks of lines, an empty line between them."""
    chosen = list(_PARTS.values()) if output == "all" else [_PARTS[output]]
    oddities = [f"cannot be read: {oddity}" for oddity in sheet.oddities]
    blocks = [_heading(sheet), *(part(sheet) for part in chosen), oddities]
    yield from "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def _events_json(sheet: JobDetails, zone: str) -> Json:
    return {
        "job": sheet.job_id,
        "in_progress": sheet.in_progress,
        "zone": zone or None,
        "events": list(map(_event_json, sheet.events)),
    }


def _event_json(event: StoredEvent) -> Json:
    utc = list(map(moment_text, event.moments))
    return {"event": event.key, "local_time": event.local_time, "utc": utc}


def _events_text(sheet: JobDetails, zone: str) -> Iterator[Part]:
    yield from _heading(sheet)
    if sheet.events:
        rows = [(_utc(event), event.local_time, event.key) for event in sheet.events]
        yield TextTable(_EVENT_COLUMNS, rows)
        if zone:
            yield f"local times are in {zone} (source.time_zone)"
        else:
            advice = "set source.time_zone if the CE's is different"
            yield f"local times are assumed to be in this host's zone; {advice}"
    else:
        yield "no events are recorded"


def _transfers_json(sheet: JobDetails, *, full_urls: bool) -> Json:
    return {
        "job": sheet.job_id,
        "in_progress": sheet.in_progress,
        "transfers": [
            {
                "kind": each.kind,
                "url": _url(each, full_urls),
                "size_bytes": each.size_bytes,
                "start_time": moment_text(each.started_at),
                "end_time": moment_text(each.ended_at),
            }
            for each in sheet.transfers
        ],
    }


def _transfers_text(sheet: JobDetails, *, full_urls: bool) -> Iterator[Part]:
    yield from _heading(sheet)
    if sheet.transfers:
        yield TextTable(_TRANSFER_COLUMNS, _transfer_rows(sheet, full_urls=full_urls))
    else:
        yield "no file transfers are recorded"


def _transfer_rows(sheet: JobDetails, *, full_urls: bool) -> list[tuple[str, ...]]:
    return [
        (
            _DIRECTIONS.get(each.kind, each.kind),
            _count(each.size_bytes),
            moment(each.started_at),
            moment(each.ended_at),
            _seconds(each.started_at, each.ended_at),
            _url(each, full_urls),
        )
        for each in sheet.transfers
    ]


def _heading(sheet: JobDetails) -> list[str]:
    """The job, its state, and whether it continues."""
    lines = [f"job {sheet.job_id}"]
    if sheet.in_progress:
        lines.append("it is in progress: its usage is recorded when it ends")
    return lines


def _description_lines(sheet: JobDetails) -> list[str]:
    texts = (
        ("status", sheet.status, "unknown"),
        ("batch id", sheet.local_id, "none"),
        ("user", sheet.user, "unknown"),
        ("VO", sheet.vo, NO_VO),
        ("FQAN", sheet.fqan, "none"),
        ("queue", sheet.queue, "unknown"),
        ("endpoint", sheet.endpoint, "unknown"),
        ("endpoint type", sheet.interface, "unknown"),
    )
    fields = [(name, text or missing) for name, text, missing in texts]
    fields.append(("submitted", moment(sheet.submitted_at)))
    if not sheet.in_progress:
        fields += [
            ("started", moment(sheet.started_at)),
            ("ended", moment(sheet.ended_at)),
            ("exit code", "unknown" if sheet.exit_code is None else str(sheet.exit_code)),
        ]
    fields += sheet.extra
    fields += [("database", f"{sheet.row.database}, row {sheet.row.record_id}")]
    fields += [("also in", path) for path in sheet.elsewhere]
    return _aligned(fields)


def _resource_lines(sheet: JobDetails) -> list[str]:
    """Each with its unit: memory is in KiB in the accounting data, sizes are in bytes."""
    if sheet.in_progress:
        return []
    fields = [
        ("nodes", _count(sheet.node_count)),
        ("cores", _count(sheet.cpu_count)),
        *([] if sheet.gpu_count is None else [("GPUs", _count(sheet.gpu_count))]),
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
    return _aligned(fields)


def _url(transfer: Transfer, full: bool) -> str:
    """URLs may hold passwords and signatures, and what is printed gets into tickets."""
    return transfer.url if full else public_url(transfer.url)


def _utc(event: StoredEvent) -> str:
    return " or ".join(moment_text(each) or "" for each in event.moments) or "unknown"


def _seconds(started: Epoch | None, ended: Epoch | None) -> str:
    return "unknown" if started is None or ended is None else str(ended - started)


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _aligned(fields: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in fields) + 2
    return [f"{name:<{width}}{text}" for name, text in fields]


_PARTS: Final[Mapping[str, Callable[[JobDetails], Sequence[str]]]] = {
    "description": _description_lines,
    "resources": _resource_lines,
    "rtes": lambda sheet: [f"runtime environment  {name}" for name in sheet.runtime_environments],
    "authtokens": lambda sheet: [f"token attribute  {key}: {it}" for key, it in sheet.attributes],
}
