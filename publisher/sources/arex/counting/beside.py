"""What stands beside rows and tells their jobs apart, or says whether a filter takes them.

What the batch system calls who runs a job, main FQANs, and attributes by name.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from publisher.sources.arex.names import NameTables
from publisher.sources.arex.queries import LISTED
from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.arex.values import stored_text
from publisher.sources.statistics import CountedJob

_NOTED: Final = """(
    SELECT InfoValue FROM JobExtraInfo AS x
    WHERE x.RecordID = page.RecordID AND +x.InfoKey = '{}' AND x.InfoValue <> ''
    ORDER BY x.rowid{} LIMIT 1
)"""
_FQAN_BESIDE: Final = """(
    SELECT AttrValue FROM AuthTokenAttributes AS t
    WHERE t.RecordID = page.RecordID AND +t.AttrKey = 'mainfqan' AND t.AttrValue <> ''
    ORDER BY t.rowid LIMIT 1
)"""
_FQAN_IN_ROW: Final = """(
    SELECT Name FROM AAR AS a JOIN FQANs ON FQANs.ID = a.FQANID
    WHERE a.RecordID = page.RecordID AND Name <> ''
)"""
_LOCAL_USER: Final = _NOTED.format("localuser", " DESC")  # USER or USER:ACCOUNT
NOTED: Final[Mapping[str, str]] = {
    "project": _NOTED.format("projectname", ""),
    "account": _LOCAL_USER,
    "local-user": _LOCAL_USER,
    "fqan": f"coalesce({_FQAN_IN_ROW}, {_FQAN_BESIDE})",
    "fqan 1": _FQAN_BESIDE,
}
"""The text in which it stands, of a row of `page`."""

# RecordID and one text of side rows of some jobs. The plus keeps SQLite off the index of keys: a
# page is some hundred jobs.
_KEYED: Final = f"WHERE {LISTED} AND +%s = CAST(:key AS TEXT)"
TOKEN: Final = f"SELECT RecordID, AttrValue FROM AuthTokenAttributes {_KEYED % 'AttrKey'}"
EXTRA: Final = f"SELECT RecordID, InfoValue FROM JobExtraInfo {_KEYED % 'InfoKey'}"
ENVIRONMENT: Final = f"SELECT RecordID, RTEName FROM RunTimeEnvironments WHERE {LISTED}"
TRANSFER_URL: Final = f"SELECT RecordID, URL FROM DataTransfers WHERE {LISTED}"
# Words of people for what A-REX calls otherwise; arcctl's help says `project`.
_ALSO: Final = {"project": ("projectname",), "nodename": ("nodenames",), "nodenames": ("nodename",)}


def noted_as(by: str, layout: int) -> str:
    """Its key in `NOTED` for databases of a layout."""
    return "fqan 1" if (by, layout) == ("fqan", 1) else by


def names_of_rows(by: str) -> str:
    return f"""
        SELECT RecordID, {NOTED[by]} FROM (SELECT value AS RecordID FROM json_each(:rows)) AS page
    """


def local_name(noted: str, by: str) -> str:
    if by in ("project", "fqan"):
        return noted
    user, _, account = noted.partition(":")
    return account if by == "account" else user


def with_local_names(
    connection: sqlite3.Connection,
    reader: RowReader,
    jobs: Sequence[tuple[Row, CountedJob]],
    by: str,
) -> Sequence[tuple[Row, CountedJob]]:
    """The same jobs with the name that they are told apart `by`, if that stands beside them."""
    if by not in NOTED:
        return jobs
    listed = {"rows": json.dumps([row[0] for row, _ in jobs])}
    noted = dict(connection.execute(names_of_rows(noted_as(by, reader.layout)), listed))
    return [
        (row, job._replace(local_name=local_name(reader.text(noted[row[0]]), by)))
        for row, job in jobs
    ]


def having(
    connection: sqlite3.Connection,
    reader: RowReader,
    names: NameTables,
    rows: Sequence[Row],
    attribute: str,
    values: frozenset[str],
) -> set[int]:
    """RecordIDs of the rows of which an attribute has one of the values."""
    # Schema 2 keeps these in AAR too.
    fqan, benchmark = (names.fqans, 7), (names.benchmarks, 10)
    in_row = {"vomsfqan": fqan, "mainfqan": fqan, "benchmark": benchmark}
    known, place = in_row.get(attribute, ({}, 0))
    found = {row[0] for row in rows if known.get(row[place]) in values - {""}}
    listed = json.dumps([row[0] for row in rows])
    for question, key in _questions(attribute):
        side = connection.execute(question, {"rows": listed, "key": key})
        found.update(record_id for record_id, text in side if reader.text(text) in values)
    return found


def _questions(attribute: str) -> Iterator[tuple[str, bytes]]:
    """Where an attribute may stand: questions with their key."""
    if attribute == "rte":
        yield ENVIRONMENT, b""
    elif attribute == "dtrurl":
        yield TRANSFER_URL, b""
    elif attribute == "vomsfqan":
        yield TOKEN, b"mainfqan"
        yield TOKEN, b"vomsfqan"
    else:
        for key in (attribute, *_ALSO.get(attribute, ())):
            yield EXTRA, stored_text(key)
            yield TOKEN, stored_text(key)
