"""Reads CAR payloads as the APEL server does, and refuses what it refuses: rows of JobRecords, or `Refused`.

Written from measurements of SSM 4.0.0 and APEL 2.5.0, independent of the product: nothing of it is imported here.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

CAR: Final = "{http://eu-emi.eu/namespaces/2012/11/computerecord}"
Row = dict[str, Any]

_INT_MAX: Final = 2**31 - 1
_BENCHMARKS: Final = ("si2k", "hepspec", "hepscore23")
_LIMITS: Final = {
    "Site": 255,
    "SubmitHost": 255,
    "MachineName": 255,
    "Queue": 100,
    "LocalJobId": 255,
    "LocalUserId": 255,
    "GlobalUserName": 255,
    "FQAN": 255,
    "VO": 255,
    "VOGroup": 255,
    "VORole": 255,
    "InfrastructureDescription": 100,
    "InfrastructureType": 20,
}
_DURATION: Final = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?)?"
)
_UNITS: Final = (31_536_000, 2_628_000, 604_800, 86_400, 3_600, 60)


class Refused(Exception):
    """The receiver or the loader would refuse the message; `rule` says why."""

    def __init__(self, rule: str, what: object = "") -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}")


def read_car(payload: bytes, now: datetime) -> list[Row]:
    """Rows as the server stores them, in order. Raises: Refused, for the message as a whole."""
    _receive(payload)
    try:
        root = ElementTree.fromstring(payload)  # noqa: S314 - our own tests' documents, and nothing before the root
    except ElementTree.ParseError as error:
        raise Refused("not-well-formed", error) from error
    if root.tag == f"{CAR}UsageRecord":
        records = [root]
    elif root.tag == f"{CAR}UsageRecords":
        records = root.findall(f"{CAR}UsageRecord")
    else:
        raise Refused("root", root.tag)
    if not records:
        raise Refused("no-records")
    return [_row(record, now) for record in records]


def _receive(payload: bytes) -> None:
    """What stops the receiver, or makes the loader take the text for something else."""
    if not payload.isascii():
        raise Refused("not-ascii")
    if re.search(rb"application/(x-)?pkcs7-mime", payload, re.IGNORECASE):
        raise Refused("taken-for-encrypted")
    if re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", payload):  # CR too: alone it breaks the signature
        raise Refused("control-character")
    if b"<![CDATA[" in payload:
        raise Refused("cdata-reads-as-empty")
    body = re.sub(rb"^\s*<\?xml[^>]*\?>\s*", b"", payload)
    if not re.match(rb"<[A-Za-z_]", body):
        raise Refused("something-before-the-root", body[:40])


def _row(record: ElementTree.Element, now: datetime) -> Row:
    if strayed := [name for element in record.iter() for name in element.attrib if not name.startswith(CAR)]:
        raise Refused("unqualified-attribute", strayed[0])  # invisible to the loader, and invalid
    fqan = _attribute_of_group(record, "FQAN")
    if fqan is None:
        vo, group, role = (
            _text(record, "Group"),
            _attribute_of_group(record, "group"),
            _attribute_of_group(record, "role"),
        )
    else:
        vo, group, role = split_fqan(fqan)
    infrastructure = record.find(f".//{CAR}Infrastructure")
    said = {} if infrastructure is None else infrastructure.attrib
    kind, level = _service_level(record)
    row: Row = {
        "Site": _wanted(record, "Site"),
        "LocalJobId": _wanted(record, "LocalJobId"),
        **{
            name: _given(_text(record, name))
            for name in ("SubmitHost", "MachineName", "Queue", "LocalUserId", "GlobalUserName")
        },
        "FQAN": _given(fqan),
        "VO": _given(vo),
        "VOGroup": _given(group),
        "VORole": _given(role),
        "WallDuration": _counted("WallDuration", seconds(_wanted(record, "WallDuration"))),
        "CpuDuration": _counted("CpuDuration", seconds(_cpu(record))),
        "Processors": _counted("Processors", _number(_text(record, "Processors"))),
        "NodeCount": _counted("NodeCount", _number(_text(record, "NodeCount"))),
        "StartTime": epoch(_wanted(record, "StartTime")),
        "EndTime": epoch(_wanted(record, "EndTime")),
        "InfrastructureDescription": _given(said.get(f"{CAR}description")),
        "InfrastructureType": _given(said.get(f"{CAR}type")),
        "ServiceLevelType": kind,
        "ServiceLevel": level,
    }
    _check(row, now)
    return row


def _check(row: Row, now: datetime) -> None:
    for name, limit in _LIMITS.items():
        if len(row[name]) > limit:
            raise Refused("too-long", f"{name} {len(row[name])}")
    if row["EndTime"] < row["StartTime"]:
        raise Refused("end-before-start")
    if row["EndTime"] > (now + timedelta(days=2)).timestamp():
        raise Refused("end-in-future")


def _text(record: ElementTree.Element, name: str) -> str | None:
    """Text of the first such element anywhere in the record; not trimmed."""
    element = record.find(f".//{CAR}{name}")
    return None if element is None else "".join(element.itertext())


def _wanted(record: ElementTree.Element, name: str) -> str:
    text = _text(record, name)
    if text is None or _given(text) == "None":
        raise Refused("missing", name)
    return text


def _given(text: str | None) -> str:
    """What is not given is stored as the text None."""
    return "None" if text is None or text.lower() in ("", "none", "null") else text


def _attribute_of_group(record: ElementTree.Element, kind: str) -> str | None:
    """The first GroupAttribute of that type, in exactly that case."""
    for element in record.iter(f"{CAR}GroupAttribute"):
        if element.get(f"{CAR}type") == kind:
            return element.text
    return None


def _cpu(record: ElementTree.Element) -> str:
    elements = list(record.iter(f"{CAR}CpuDuration"))
    totals = [element for element in elements if element.get(f"{CAR}usageType") == "all"]
    if len(totals) > 1:
        raise Refused("two-cpu-totals")
    if not elements:
        raise Refused("missing", "CpuDuration")
    return (totals or elements)[0].text or ""


def _service_level(record: ElementTree.Element) -> tuple[str, Decimal]:
    element = record.find(f".//{CAR}ServiceLevel")
    # The server takes a record with neither type nor value for `custom` 1: a loss nobody is told of, so refused here.
    if element is None or not element.text or not element.get(f"{CAR}type"):
        raise Refused("benchmark")
    kind = element.get(f"{CAR}type", "")
    if kind.lower() not in _BENCHMARKS:
        raise Refused("benchmark", kind)
    try:
        level = Decimal(element.text).quantize(Decimal("0.001"))
    except InvalidOperation as error:
        raise Refused("benchmark", element.text) from error
    if not 0 <= level <= Decimal("9999999.999"):  # negative loads, and stops the summariser for all sites
        raise Refused("benchmark", element.text)
    return kind, level


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch(r"-?\d+", text):
        raise Refused("not-a-number", text)
    return int(text)


def _counted(name: str, number: int) -> int:
    if not 0 <= number <= _INT_MAX:
        raise Refused("out-of-range", f"{name} {number}")
    return number


def seconds(text: str) -> int:
    """Whole seconds of a duration; half a second goes to the even neighbour."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Refused("duration", text)
    *whole, last = match.groups()
    total = sum(int(number or 0) * unit for number, unit in zip(whole, _UNITS, strict=True))
    return total + int(Decimal((last or "0").replace(",", ".")).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def epoch(text: str) -> int:
    """Epoch seconds of an ISO time; without a zone it is UTC, and fractions are dropped."""
    if not re.match(r"\d{4}-?\d\d-?\d\d[T ]\d\d", text):
        raise Refused("time", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Refused("time", text) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).replace(microsecond=0).timestamp())


def split_fqan(text: str) -> tuple[str, str | None, str | None]:
    """VO, group and role that the server makes of an FQAN. Raises: Refused where what it makes is odd."""
    first = text.partition(";")[0]
    if not first.startswith("/"):
        return first, None, None
    parts = first.split("/")[1:]
    if not parts[0] or parts[0].lower().startswith("role="):
        raise Refused("odd-fqan", text)
    group: list[str] = []
    for part in parts:
        if part.lower().startswith("role="):
            return parts[0], "/" + "/".join(group), part
        group.append(part)
    return parts[0], "/" + "/".join(group), None
