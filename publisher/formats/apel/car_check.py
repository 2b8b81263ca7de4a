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
_LOCAL_ID, _CPU, _LEVEL, _END, _START, _SITE = (
    f"{_CAR}{name}"
    for name in ("LocalJobId", "CpuDuration", "ServiceLevel", "EndTime", "StartTime", "Site")
)


def check(payload: bytes) -> None:
    """Raises: Unfit naming the first fault and the record that has it."""
    if not payload.isascii():
        raise Unfit("not-ascii", "the document is not pure ASCII; APEL's receiver would stop")
    if not payload.startswith(b"<UsageRecord"):
        raise Unfit(
            _RULE, "the document does not begin with its root element; APEL would not know it"
        )
    lowered = payload.lower()
    if any(name in lowered for name in _PKCS7):
        raise Unfit(
            "forbidden-text",
            "the document names a pkcs7-mime type; APEL's receiver would take it for encrypted",
        )
    try:
        root = etree.fromstring(
            payload, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
        )
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
        tag = element.tag
        if tag == _CPU:
            totals += element.get(f"{_CAR}usageType", "all") == "all"
        elif tag == _LOCAL_ID:  # the first of them in a record
            number, totals = number + 1, 0
            _require_given(number, "JobIdentity/LocalJobId", element)
        elif tag == _LEVEL:
            kind = element.get(f"{_CAR}type", "")
            if kind.lower() not in KINDS:
                raise Unfit(
                    _RULE,
                    f"record {number}: ServiceLevel of type {kind!r}, which APEL does not know",
                )
        elif tag == _END:
            ended = element.text or ""
            if totals != 1:
                raise Unfit(
                    _RULE, f"record {number}: {totals} CpuDurations for all usage, one is wanted"
                )
        elif tag == _SITE:
            _require_given(number, "Site", element)
        # Both as written here: UTC to the second, so that text compares as time does
        elif ended < (element.text or ""):
            raise Unfit(_RULE, f"record {number}: it ends before it starts")


def _require_given(number: int, name: str, element: etree._Element) -> None:
    if (element.text or "").strip().lower() in NOT_GIVEN:
        raise Unfit(_RULE, f"record {number}: {name} is empty or says none")
