"""Checks a usage record before the wire: our own schema of it, and what SGAS asks beyond it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from lxml import etree

from publisher.formats.xml.text import ONE_SCHEMA_AT_A_TIME
from publisher.model.errors import Unfit

_SCHEMA: Final = Path(__file__).parents[1] / "schemas" / "ogf_ur.rng"
_UR: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
_RNG: Final = "{http://relaxng.org/ns/structure/1.0}"
_CPU: Final = ("CpuDuration", "CpuTimes")
_RULE: Final = "ur-schema"


def check(payload: bytes) -> None:
    """Raises: Unfit naming the first fault and the record that has it."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        payload.decode("utf-8")
        root = etree.fromstring(payload, parser)
    except (UnicodeDecodeError, etree.XMLSyntaxError) as error:
        raise Unfit(_RULE, f"not well-formed: {error}") from error
    with ONE_SCHEMA_AT_A_TIME:
        if not _schema().validate(root):
            # What is optional in the midst of a record blurs what is reported of the rest.
            schema = _schema(with_cpu=True)
            schema.validate(root)
            # The first says what is wrong with a value, the next ones where; a record is a line.
            faults = list(dict.fromkeys(f"{fault.message}" for fault in schema.error_log))
            raise Unfit(_RULE, f"line {schema.error_log[0].line}: {'; '.join(faults[:4])}")
    seen: set[str] = set()
    for number, identity in enumerate(root.iter(f"{_UR}RecordIdentity"), start=1):
        record_id = str(identity.get(f"{_UR}recordId"))
        if record_id in seen:
            what = f"{record_id!r} is in the document already; SGAS keeps the first"
            raise Unfit(_RULE, f"record {number}: {what}")
        seen.add(record_id)


@cache
def _schema(*, with_cpu: bool = False) -> etree.RelaxNG:
    """`with_cpu`: CPU times must be there."""
    grammar = etree.fromstring(_SCHEMA.read_bytes())
    for reference in grammar.iterfind(f".//{_RNG}optional/{_RNG}ref") if with_cpu else ():
        optional = reference.getparent()
        around = None if optional is None else optional.getparent()
        if optional is not None and around is not None and reference.get("name") in _CPU:
            around.replace(optional, reference)
    return etree.RelaxNG(grammar)
