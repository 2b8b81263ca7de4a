"""A line of an accounting file to a record, in whichever of the two formats it is written."""

from __future__ import annotations

from typing import Final

from publisher.importers.gridengine_colon import read_colon
from publisher.importers.gridengine_json import read_json
from publisher.importers.gridengine_record import Accounted, BadRecord, TimeUnit

_BEGINNING: Final = '{"job_number":'


def read_line(line: bytes, unit: TimeUnit) -> tuple[list[Accounted], str]:
    """The records of a line, and what is wrong with it or ''.

    After a failed write the qmaster may glue records to a torn one: the whole ones are saved. Names are not always UTF-8;
    then they are Latin-1, in which every byte is a letter.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    try:
        if not text.startswith("{"):
            return [read_colon(text, unit)], ""
        return [read_json(text, unit)], ""
    except BadRecord as bad:
        return _glued(text, unit), str(bad)


def _glued(text: str, unit: TimeUnit) -> list[Accounted]:
    """Of a line with several beginnings, none of which is inside of a record: there a quote has a backslash before it."""
    _, *rests = text.split(_BEGINNING)
    if len(rests) == 1 and text.startswith(_BEGINNING):
        return []
    records = []
    for rest in rests:
        try:
            records.append(read_json(_BEGINNING + rest, unit))
        except BadRecord:
            continue  # the line is set aside as a whole
    return records
