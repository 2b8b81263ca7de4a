"""Checks a CAR document before the wire: our schema of CAR 1.2, and what APEL asks beyond it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from lxml import etree

from publisher.formats.xml.text import ONE_SCHEMA_AT_A_TIME
from publisher.model.errors import Unfit
from publisher.model.rates import KINDS
from publisher.model.text import NOT_GIVEN

_SCHEMA: Final = Path(__file__).parents[1] / "schemas" / "car.xsd"
_CAR: Final = "{http://eu-emi.eu/namespaces/2012/11/computerecord}"
_PKCS7: Final = (b"application/pkcs7-mime", b"application/x-pkcs7-mime")
_RULE: Final = "car-schema"
_NAMES: Final = ("LocalJobId", "CpuDuration", "ServiceLevel", "EndTime", "StartTime", "Site")
_LOCAL_ID, _CPU, _LEVEL, _END, _START, _SITE = (f"{_CAR}{name}" for name in _NAMES)


def check(payload: bytes) -> None:
    """Raises: Unfit naming the first fault and the record that has it."""
    if not payload.isascii():
        raise Unfit("not-ascii", "the document is not pure ASCII; APEL's receiver would stop")
    if not payload.startswith(b"<UsageRecord"):
        what = "does not begin with its root element; APEL would not know it"
        raise Unfit(_RULE, f"the document {what}")
    lowered = payload.lower()
    if any(name in lowered for name in _PKCS7):
        what = "names a pkcs7-mime type; APEL's receiver would take it for encrypted"
        raise Unfit("forbidden-text", f"the document {what}")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(payload, parser)
    except etree.XMLSyntaxError as error:
        raise Unfit(_RULE, f"not well-formed: {error}") from error
    with ONE_SCHEMA_AT_A_TIME:
        schema = _schema()
        if not schema.validate(root):
            # The first says what is wrong with a value, the next ones where; a record is a line.
            log: Any = schema.error_log  # a sequence, which lxml-stubs do not know
            faults = list(dict.fromkeys(str(fault.message) for fault in log))
            raise Unfit(_RULE, f"line {log[0].line}: {'; '.join(faults[:4])}")
    _check_records(root)


@cache
def _schema() -> etree.XMLSchema:
    return etree.XMLSchema(etree.fromstring(_SCHEMA.read_bytes()))


def _check_records(root: etree._Element) -> None:
    """What the schema cannot say, in one pass over elements in the schema's order (hot path)."""
    number, totals, ended = 0, 0, ""
    for element in root.iter(_LOCAL_ID, _CPU, _LEVEL, _END, _START, _SITE):
        tag, text = element.tag, element.text or ""
        if tag == _CPU:
            totals += element.get(f"{_CAR}usageType", "all") == "all"
        elif tag == _LOCAL_ID:  # the first of them in a record
            number, totals = number + 1, 0
            _require_given(number, "JobIdentity/LocalJobId", text)
        elif tag == _LEVEL:
            _require_known(number, element.get(f"{_CAR}type", ""))
        elif tag == _END:
            ended = text
            if totals != 1:
                what = f"{totals} CpuDurations for all usage, one is wanted"
                raise Unfit(_RULE, f"record {number}: {what}")
        elif tag == _SITE:
            _require_given(number, "Site", text)
        # Both as written here: UTC to the second, so that text compares as time does
        elif ended < text:
            raise Unfit(_RULE, f"record {number}: it ends before it starts")


def _require_given(number: int, name: str, text: str) -> None:
    if text.strip().lower() in NOT_GIVEN:
        raise Unfit(_RULE, f"record {number}: {name} is empty or says none")


def _require_known(number: int, kind: str) -> None:
    if kind.lower() not in KINDS:
        what = f"ServiceLevel of type {kind!r}, which APEL does not know"
        raise Unfit(_RULE, f"record {number}: {what}")
