"""Checks a usage record document before the wire: our own schema of it, and what SGAS asks beyond it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from lxml import etree

from publisher.formats.xml.text import ONE_SCHEMA_AT_A_TIME
from publisher.model.errors import Unfit

_UR: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
_RULE: Final = "ur-schema"


def check(payload: bytes) -> None:
    """Raises: Unfit naming the first fault and the record that has it."""
    try:
        payload.decode("utf-8")
        root = etree.fromstring(payload, etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False))
    except (UnicodeDecodeError, etree.XMLSyntaxError) as error:
        raise Unfit(_RULE, f"not well-formed: {error}") from error
    with ONE_SCHEMA_AT_A_TIME:
        schema = _schema()
        if not schema.validate(root):
            # The first says what is wrong with a value, the next ones where it stands; a record is a line.
            faults = list(dict.fromkeys(f"{fault.message}" for fault in schema.error_log))
            raise Unfit(_RULE, f"line {schema.error_log[0].line}: {'; '.join(faults[:4])}")
    seen: set[str] = set()
    for number, identity in enumerate(root.iter(f"{_UR}RecordIdentity"), start=1):
        record_id = str(identity.get(f"{_UR}recordId"))
        if record_id in seen:
            raise Unfit(_RULE, f"record {number}: {record_id!r} is in the document already; SGAS keeps the first")
        seen.add(record_id)


@cache
def _schema() -> etree.RelaxNG:
    path = files("publisher.formats") / "schemas" / "ogf_ur.rng"
    return etree.RelaxNG(etree.fromstring(path.read_bytes()))
