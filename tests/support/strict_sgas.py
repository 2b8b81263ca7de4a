"""Reads usage records as SGAS LUTS does, and refuses what it refuses: rows of its database, or `Refused`.

Written from measurements of luts3-service 3.8.1 and HEAD, independent of the product: nothing of it is imported here.
Where the two differ, the stricter one is meant. A refusal is of the whole batch, as there.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from xml.etree.ElementTree import Element

URF: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
VO: Final = "{http://www.sgas.se/namespaces/2009/05/ur/vo}"
SGAS: Final = "{http://www.sgas.se/namespaces/2009/07/ur}"
TR: Final = "{http://www.sgas.se/namespaces/2010/10/filetransfer}"
DEISA: Final = "{http://rmis.deisa.org/acct}"
ARC: Final = "{http://www.nordugrid.org/ws/schemas/ur-arc}"
Row = dict[str, Any]

_INT4: Final = 2**31 - 1
_INT8: Final = 2**63 - 1
_LIMITS: Final = {
    "record_id": 1000,
    "global_job_id": 1000,
    "local_job_id": 500,
    "global_user_name": 1000,
    "local_user_id": 100,
    "vo_type": 100,
    "vo_name": 1000,
    "vo_issuer": 1000,
    "job_name": 1000,
    "status": 100,
    "project_name": 200,
    "submit_host": 200,
    "queue": 200,
    "machine_name": 200,
    "host": 2699,
}
_NOT_INDEXED: Final = frozenset(("job_name",))
_INDEX_BYTES: Final = 2_704
_LOCAL_ID: Final = 40  # 3.8.1; HEAD has 120
_DURATION: Final = re.compile(
    r"(-)?P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_UNITS: Final = (0, 0, 604_800, 86_400, 3_600, 60)
_STORAGE: Final = {"B": 1} | {unit: 1024**power for power, unit in enumerate(("KB", "MB", "GB", "TB", "PB", "EB"), 1)}
_BIT_UNITS: Final = frozenset(("b", "Kb", "Mb", "Gb", "Tb", "Pb", "Eb"))
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})?")


class Refused(Exception):
    """The server would answer 500 and store nothing of the batch; `rule` says why."""

    def __init__(self, rule: str, what: object = "") -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what!r}")


def read_ur(payload: bytes) -> list[Row]:
    """Rows as an empty database has them afterwards, in order. Raises: Refused, for the batch as a whole."""
    root = _parse(payload)
    if root.tag == f"{URF}JobUsageRecord":
        records = [root]
    elif root.tag == f"{URF}UsageRecords":
        records = list(root)
    else:
        raise Refused("root", root.tag)
    stored: dict[str, Row] = {}
    for record in records:
        if record.tag != f"{URF}JobUsageRecord":
            raise Refused("record", record.tag)
        _store(stored, _row(record))
    return list(stored.values())


def _parse(payload: bytes) -> Element:
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("not-utf-8", error) from error
    declared = re.match(r"<\?xml[^>]*encoding=[\"']([^\"']*)", text)
    if declared and declared[1].lower() != "utf-8":
        raise Refused("declared-encoding", declared[1])
    if "<!DOCTYPE" in text:
        raise Refused("doctype")
    try:
        return ElementTree.fromstring(payload)  # noqa: S314 - our own tests' documents, without a document type
    except ElementTree.ParseError as error:
        raise Refused("not-well-formed", error) from error


def _store(stored: dict[str, Row], row: Row) -> None:
    old = stored.get(row["record_id"])
    if old is not None and row["global_job_id"] in (old["global_job_id"], row["record_id"]):
        return
    if old is not None and (old["runtime_environments"] or old["transfers"]):
        raise Refused("replaces-a-row-with-children", row["record_id"])
    stored.pop(row["record_id"], None)
    stored[row["record_id"]] = row


def _row(record: Element) -> Row:
    row = (
        _identity(record)
        | _user(record)
        | _usage(record)
        | _place(record)
        | {
            "memory": [_memory(one) for one in record.iterfind(f"{URF}Memory")],
            "runtime_environments": _runtime_environments(record),
            "transfers": list(_transfers(record)),
        }
    )
    for column, limit in _LIMITS.items():
        _bounded(column, row[column], limit, indexed=column not in _NOT_INDEXED)
    if row["local_job_id"] and (row["local_job_id"].startswith("/") or len(row["local_job_id"]) > _LOCAL_ID):
        row["local_job_id"] = None
        row["record_id"] = row["global_job_id"]
    return row


def _identity(record: Element) -> Row:
    identity = record.find(f"{URF}RecordIdentity")
    record_id = None if identity is None else identity.get(f"{URF}recordId")
    created = _time_of("createTime", None if identity is None else identity.get(f"{URF}createTime"))
    if not record_id or created is None:
        raise Refused("record-identity", (record_id, created))
    local_id = _last(record, f"{URF}JobIdentity/{URF}LocalJobId")
    return {
        "record_id": record_id,
        "create_time": created,
        "global_job_id": _text(record, f"{URF}JobIdentity/{URF}GlobalJobId"),
        "local_job_id": None if local_id is None else _not_empty("LocalJobId", local_id.text),
        "job_name": _text(record, f"{URF}JobName"),
        "status": _text(record, f"{URF}Status"),
    }


def _user(record: Element) -> Row:
    who = f"{URF}UserIdentity"
    row: Row = {
        "global_user_name": _text(record, f"{who}/{URF}GlobalUserName"),
        "local_user_id": _text(record, f"{who}/{URF}LocalUserId"),
    } | dict.fromkeys(("vo_type", "vo_name", "vo_issuer"))
    row["vo_attributes"] = []
    vos = record.findall(f"{who}/{VO}VO")
    if len(vos) > 1:
        raise Refused("two-vos-are-merged", len(vos))
    if not vos or not (name := _text(vos[0], f"{VO}Name")):
        return row
    row |= {"vo_type": vos[0].get(f"{VO}type"), "vo_name": name, "vo_issuer": _text(vos[0], f"{VO}Issuer")}
    for attribute in vos[0].iterfind(f"{VO}Attribute"):
        pair = (_text(attribute, f"{VO}Group"), _text(attribute, f"{VO}Role"))
        for part in pair:
            _bounded("vo-attribute", part, 100)
        row["vo_attributes"].append(pair)
    return row


def _usage(record: Element) -> Row:
    spent = [_duration("CpuDuration", one.text) for one in record.iterfind(f"{URF}CpuDuration")]
    if len(spent) > 1 and None in spent:
        raise Refused("cpu-duration", spent)
    processors = _integer(record, f"{URF}Processors", _INT4)
    nodes = _integer(record, f"{URF}NodeCount", 2**15 - 1)
    if processors is None:
        processors, nodes = nodes, None
    exit_code = _last(record, f"{SGAS}ExitCode")
    if exit_code is not None and not re.fullmatch(r"-?\d+", (exit_code.text or "").strip()):
        raise Refused("exit-code", exit_code.text)
    return {
        "charge": _charge(record),
        "allocated": [
            (one.get(f"{SGAS}resourceType"), one.get(f"{SGAS}resourceAmount"))
            for one in record.iterfind(f"{SGAS}AllocResource")  # the server ignores it, its forks may read it
        ],
        "wall": _seconds(record, f"{URF}WallDuration"),
        "cpu": sum(value for value in spent if value is not None) if spent and spent[0] is not None else None,
        "user_time": _seconds(record, f"{SGAS}UserTime"),
        "kernel_time": _seconds(record, f"{SGAS}KernelTime"),
        "node_count": nodes,
        "processors": processors,
        "exit_code": None if exit_code is None else int(exit_code.text or "") % 256,
        "start_time": _time(record, f"{URF}StartTime"),
        "end_time": _time(record, f"{URF}EndTime"),
        "submit_time": _time(record, f"{DEISA}SubmitTime"),
    }


def _charge(record: Element) -> int | None:
    """A float there, and cut to a whole number of 32 bits."""
    found = _last(record, f"{URF}Charge")
    if found is None:
        return None
    if not re.fullmatch(r"-?\d+(\.\d+)?", (found.text or "").strip()):
        raise Refused("charge", found.text)
    if abs(int(float(found.text or ""))) > _INT4:
        raise Refused("out-of-range", found.text)
    return int(float(found.text or ""))


def _place(record: Element) -> Row:
    machine = _text(record, f"{URF}MachineName")
    if not machine:
        raise Refused("machine-name")
    return {
        "machine_name": machine,
        "submit_host": _text(record, f"{URF}SubmitHost"),
        "queue": _text(record, f"{URF}Queue"),
        "project_name": _text(record, f"{URF}ProjectName"),
        "host": _text(record, f"{URF}Host"),
    }


def _memory(element: Element) -> tuple[int | None, str, str]:
    """Bytes, metric, type; a type that the server does not know is stored as ''."""
    unit = element.get(f"{URF}storageUnit", "B")
    metric = element.get(f"{URF}metric", "total")
    if unit in _BIT_UNITS or metric not in ("total", "average", "min", "max"):
        raise Refused("memory", (unit, metric))
    text = _not_empty("Memory", element.text)
    if not re.fullmatch(r"\s*-?\d+\s*", text):
        raise Refused("memory", text)
    size = int(text) * _STORAGE.get(unit, 1)
    if size > _INT8:
        raise Refused("out-of-range", size)
    kind = element.get(f"{URF}type", "")
    return size, metric, kind if kind in ("shared", "physical", "dedicated") else ""


def _runtime_environments(record: Element) -> frozenset[str]:
    names = []
    for tag in (f"{ARC}RuntimeEnvironment", f"{SGAS}RuntimeEnvironment"):
        for one in record.iterfind(tag):
            names.append(_not_empty("RuntimeEnvironment", one.text))
            _bounded("runtime-environment", names[-1], 512)
    return frozenset(names)


def _transfers(record: Element) -> Iterator[Row]:
    for one in record.iterfind(f"{TR}FileTransfers/*"):
        kind = one.tag.removeprefix(TR)
        if kind not in ("FileDownload", "FileUpload"):
            continue
        url = _text(one, f"{TR}URL")
        if not url:
            raise Refused("transfer-without-url")
        _bounded("transfer-url", url, 2500)
        cached = _last(one, f"{TR}RetrievedFromCache")
        yield {
            "kind": kind,
            "url": url,
            "size": _integer(one, f"{TR}Size", _INT8),
            "start_time": _time(one, f"{TR}StartTime"),
            "end_time": _time(one, f"{TR}EndTime"),
            "from_cache": None
            if cached is None or kind == "FileUpload"
            else {"true": True, "false": False}.get(_not_empty("RetrievedFromCache", cached.text)),
        }


def _last(parent: Element, path: str) -> Element | None:
    """Of repeated elements the last counts."""
    found = parent.findall(path)
    return found[-1] if found else None


def _text(parent: Element, path: str) -> str | None:
    found = _last(parent, path)
    return None if found is None else found.text or None


def _not_empty(name: str, text: str | None) -> str:
    if not text:
        raise Refused("empty-element", name)
    return text


def _bounded(name: str, text: str | None, characters: int, *, indexed: bool = True) -> None:
    if text is not None and len(text) > characters:
        raise Refused("value-too-long", (name, len(text)))
    if text is not None and indexed and len(text.encode()) > _INDEX_BYTES:
        raise Refused("exceeds-btree", (name, len(text.encode())))


def _value(parent: Element, path: str, read: Callable[[str, str | None], Any]) -> Any:
    found = _last(parent, path)
    return None if found is None else read(path.rpartition("}")[2], found.text)


def _integer(parent: Element, path: str, most: int) -> int | None:
    def read(name: str, text: str | None) -> int | None:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", _not_empty(name, text)):
            return None
        value = int(text or "")
        if not -most - 1 <= value <= most:
            raise Refused("out-of-range", (name, value))
        return value

    found: int | None = _value(parent, path, read)
    return found


def _seconds(parent: Element, path: str) -> int | None:
    found: int | None = _value(parent, path, _duration)
    return found


def _duration(name: str, text: str | None) -> int | None:
    found = _DURATION.fullmatch(_not_empty(name, text))
    if not found or found[2] or found[3]:
        return None
    seconds = sum(unit * int(number or 0) for unit, number in zip(_UNITS, found.groups()[1:7], strict=True))
    seconds += int(float(found[8] or 0))
    if seconds > _INT4:
        raise Refused("out-of-range", (name, seconds))
    return -seconds if found[1] else seconds


def _time(parent: Element, path: str) -> int | None:
    found: int | None = _value(parent, path, _time_of)
    return found


def _time_of(name: str, text: str | None) -> int | None:
    """Epoch seconds; a time without a zone is UTC, a bad one NULL."""
    if not _TIME.fullmatch(_not_empty(name, text)):
        return None
    try:
        moment = datetime.fromisoformat((text or "").upper())
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
