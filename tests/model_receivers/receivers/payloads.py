"""Payloads as their receivers read them: one row a record, by the names that the receiver's tables have.

What a reader of the service refuses as a whole raises `Unreadable`; nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from lxml import etree

Row = dict[str, Any]

CAR: Final = "{http://eu-emi.eu/namespaces/2012/11/computerecord}"
URF: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
VO: Final = "{http://www.sgas.se/namespaces/2009/05/ur/vo}"
JOBS, SUMMARIES, NORMALISED, SYNC = "JobRecords", "Summaries", "NormalisedSummaries", "SyncRecords"
_PREFERRED: Final = ("hepscore23", "hepspec", "si2k")
_NOT_GIVEN: Final = ("", "none", "null")
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_NUMBERS: Final = ("WallDuration", "CpuDuration", "Processors", "NodeCount", "NumberOfJobs", "Month", "Year")
_TIMES: Final = ("StartTime", "EndTime", "EarliestEndTime", "LatestEndTime")


class Unreadable(Exception):
    """The service would refuse the message."""


def apel_rows(payload: bytes) -> tuple[str, list[Row]]:
    """Return the table and the rows of a message to APEL. Raises: Unreadable."""
    text = payload.decode("ascii")
    if text.startswith("<"):
        return JOBS, [_car_row(record) for record in etree.fromstring(payload).iter(f"{CAR}UsageRecord")]
    header, _, body = text.partition("\n")
    table, level = _of_header(header)
    records = [_keys(part) for part in body.split("%%") if part.strip()]
    return table, [level(record) for record in records]


def _of_header(header: str) -> tuple[str, Callable[[Row], Row]]:
    name, _, version = header.partition(":")
    match name, version.strip():
        case "APEL-individual-job-message", "v0.4":
            return JOBS, lambda row: _numbers(_with_group(_with_dictionary(row)))
        case "APEL-individual-job-message", _:
            return JOBS, lambda row: _numbers(_with_group(row))
        case "APEL-summary-job-message", "v0.2":
            return SUMMARIES, _numbers
        case "APEL-summary-job-message", "v0.4":
            return SUMMARIES, lambda row: _numbers(_with_dictionary(row))
        case "APEL-summary-job-message", "v0.3":
            return NORMALISED, _numbers
        case "APEL-normalised-summary-message", "v0.4":
            return NORMALISED, lambda row: _numbers(_normalised(row))
        case "APEL-sync-message", _:
            return SYNC, _numbers
    raise Unreadable(header)


def _keys(part: str) -> Row:
    row: Row = {}
    for line in part.strip().splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            raise Unreadable(line)
        if value.strip().lower() not in _NOT_GIVEN:
            row[key.strip()] = value.strip()
    return row


def _numbers(row: Row) -> Row:
    for key in row.keys() & {*_NUMBERS, *_TIMES}:
        row[key] = int(row[key])
    if "ServiceLevel" in row:
        row["ServiceLevel"] = Decimal(row["ServiceLevel"])
    return row


def _dictionary(text: str) -> tuple[str, str]:
    """Return the benchmark that the server keeps of a dictionary, in lower case, and its value."""
    found = {
        kind.strip().lower(): value.strip() for kind, _, value in (x.partition(":") for x in text[1:-1].split(","))
    }
    kind = next(kind for kind in _PREFERRED if kind in found)
    return kind, found[kind]


def _with_dictionary(row: Row) -> Row:
    row["ServiceLevelType"], row["ServiceLevel"] = _dictionary(row["ServiceLevel"])
    return row


def _normalised(row: Row) -> Row:
    for key in ("NormalisedWallDuration", "NormalisedCpuDuration"):
        row["ServiceLevelType"], row[key] = _dictionary(row[key])
    return row


def _with_group(row: Row) -> Row:
    """Fill VO, group and role from an FQAN: its last part with Role= is the role, the others are the group."""
    fqan = row.get("FQAN", "").split(";")[0]
    if fqan:
        parts = [part for part in fqan.split("/")[1:] if not part.startswith("Capability=")]
        role = next((part for part in parts if part.lower().startswith("role=")), None)
        groups = [part for part in parts if part != role]
        row["VO"] = groups[0] if fqan.startswith("/") else fqan
        row["VOGroup"], row["VORole"] = "/" + "/".join(groups), role or "None"
    return row


def _car_row(record: Any) -> Row:
    names = ("Site", "LocalJobId", "SubmitHost", "MachineName", "Queue", "GlobalUserName", "Processors", "NodeCount")
    row: Row = {name: _text(record, CAR + name) for name in names}
    row["VO"] = _text(record, f"{CAR}Group")
    kinds = [one for one in record.iter(f"{CAR}GroupAttribute") if one.get(f"{CAR}type") == "FQAN"]
    row["FQAN"] = kinds[0].text if kinds else None
    row["InfrastructureType"] = next(record.iter(f"{CAR}Infrastructure")).get(f"{CAR}type")
    level = next(record.iter(f"{CAR}ServiceLevel"), None)
    row["ServiceLevelType"] = "custom" if level is None else level.get(f"{CAR}type")
    row["ServiceLevel"] = "1" if level is None else level.text
    used = list(record.iter(f"{CAR}CpuDuration"))
    every = [one for one in used if one.get(f"{CAR}usageType") == "all"] or used
    row["CpuDuration"] = _seconds(every[0].text)
    row["WallDuration"] = _seconds(_text(record, f"{CAR}WallDuration"))
    for name in ("StartTime", "EndTime"):
        row[name] = _epoch(_text(record, CAR + name))
    return _numbers(_with_group({key: value for key, value in row.items() if value not in (None, "")}))


def sgas_rows(payload: bytes) -> list[Row]:
    """Return the usage records of a document for SGAS. Raises: Unreadable."""
    return list(map(_usage_row, etree.fromstring(payload).iter(f"{URF}JobUsageRecord")))


def _usage_row(record: Any) -> Row:
    identity = next(record.iter(f"{URF}RecordIdentity"))
    names = (
        "GlobalJobId",
        "LocalJobId",
        "GlobalUserName",
        "SubmitHost",
        "MachineName",
        "Queue",
        "Processors",
        "NodeCount",
    )
    row: Row = {name: _text(record, URF + name) for name in names}
    row["RecordId"] = identity.get(f"{URF}recordId")
    if not row["RecordId"] or not row["MachineName"]:
        raise Unreadable("a record without its id or MachineName")
    row["VO"] = _text(record, f"{VO}Name")
    row["WallDuration"] = _seconds(_text(record, f"{URF}WallDuration"))
    row["CpuDuration"] = sum(_seconds(one.text) for one in record.iter(f"{URF}CpuDuration"))
    row["EndTime"] = _epoch(_text(record, f"{URF}EndTime"))
    return _numbers({key: value for key, value in row.items() if value not in (None, "")})


def auditor_rows(payload: bytes) -> list[Row]:
    """Return the records of a list for AUDITOR, with wall time as its APEL plug-in takes it: stop less start."""
    return list(map(_auditor_row, json.loads(payload)))


def _auditor_row(record: Row) -> Row:
    amounts = {one["name"]: one["amount"] for one in record["components"]}
    texts = {name: values[0] for name, values in record["meta"].items() if values}
    start, stop = _epoch(record["start_time"]), _epoch(record["stop_time"])
    return {
        "RecordId": record["record_id"],
        "SubmitHost": texts.get("headnode"),
        "GlobalUserName": texts.get("subject"),
        "VO": texts.get("vo"),
        "Processors": amounts["Cores"],
        "NodeCount": amounts.get("NNodes"),
        "WallDuration": stop - start,
        "CpuDuration": amounts["TotalCPU"],
        "EndTime": stop,
    }


def _text(record: Any, name: str) -> str:
    return next((one.text or "" for one in record.iter(name)), "")


def _seconds(text: str | None) -> int:
    found = _DURATION.fullmatch(text or "")
    if found is None or text == "P":
        raise Unreadable(f"duration {text!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _epoch(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
