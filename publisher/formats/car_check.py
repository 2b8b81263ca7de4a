"""Checks a CAR document before the wire: our own schema of CAR 1.2, and what APEL asks beyond it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from lxml import etree

from publisher.errors import Unfit
from publisher.model.benchmark import KINDS
from publisher.model.quality import NOT_GIVEN

_CAR: Final = "{http://eu-emi.eu/namespaces/2012/11/computerecord}"
_PKCS7: Final = (b"application/pkcs7-mime", b"application/x-pkcs7-mime")
_RULE: Final = "car-schema"


def check(payload: bytes) -> None:
    """Raises: Unfit naming the first fault and the record that has it."""
    if not payload.isascii():
        raise Unfit("not-ascii", "the document is not pure ASCII; APEL's receiver would stop")
    if not payload.startswith(b"<UsageRecord"):
        raise Unfit(_RULE, "the document does not begin with its root element; APEL would not know it")
    lowered = payload.lower()
    if any(name in lowered for name in _PKCS7):
        raise Unfit(
            "forbidden-text", "the document names a pkcs7-mime type; APEL's receiver would take it for encrypted"
        )
    try:
        root = etree.fromstring(payload, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except etree.XMLSyntaxError as error:
        raise Unfit(_RULE, f"not well-formed: {error}") from error
    schema = _schema()
    if not schema.validate(root):
        # The first says what is wrong with a value, the next ones where it stands; a record is a line.
        faults = list(dict.fromkeys(f"{fault.message}" for fault in schema.error_log))
        raise Unfit(_RULE, f"line {schema.error_log[0].line}: {'; '.join(faults[:4])}")
    for number, record in enumerate(root.iter(f"{_CAR}UsageRecord"), start=1):
        _check_record(number, record)


@cache
def _schema() -> etree.RelaxNG:
    path = files("publisher.formats") / "schemas" / "car.rng"
    return etree.RelaxNG(etree.fromstring(path.read_bytes()))


def _check_record(number: int, record: etree._Element) -> None:
    """What the schema cannot say. Spec: apel facts, 4.1, 4.2 and 4.7."""
    for name in ("Site", "JobIdentity/LocalJobId"):
        path = "/".join(f"{_CAR}{part}" for part in name.split("/"))
        if (record.findtext(path) or "").strip().lower() in NOT_GIVEN:
            raise Unfit(_RULE, f"record {number}: {name} is empty or says none")
    totals = [one for one in record.iterfind(f"{_CAR}CpuDuration") if one.get(f"{_CAR}usageType", "all") == "all"]
    if len(totals) != 1:
        raise Unfit(_RULE, f"record {number}: {len(totals)} CpuDurations for all usage, one is wanted")
    for level in record.iterfind(f"{_CAR}ServiceLevel"):
        kind = level.get(f"{_CAR}type", "")
        if kind.lower() not in KINDS:
            raise Unfit(_RULE, f"record {number}: ServiceLevel of type {kind!r}, which APEL does not know")
    # Both as written here: UTC to the second, so that text compares as time does
    if (record.findtext(f"{_CAR}EndTime") or "") < (record.findtext(f"{_CAR}StartTime") or ""):
        raise Unfit(_RULE, f"record {number}: it ends before it starts")
