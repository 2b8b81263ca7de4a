"""What jobs are told apart by that stands beside their rows: what the batch system calls who runs
them, and main FQANs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.statistics import CountedJob

_NOTED: Final = (
    "(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = page.RecordID AND +x.InfoKey = '{}' AND x.InfoValue <> ''"
    " ORDER BY x.rowid{} LIMIT 1)"
)
_FQAN_BESIDE: Final = """(
    SELECT AttrValue FROM AuthTokenAttributes AS t
    WHERE t.RecordID = page.RecordID AND +t.AttrKey = 'mainfqan' AND t.AttrValue <> '' ORDER BY t.rowid LIMIT 1
)"""
_FQAN_IN_ROW: Final = """(
    SELECT Name FROM AAR AS a JOIN FQANs ON FQANs.ID = a.FQANID WHERE a.RecordID = page.RecordID AND Name <> ''
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


def noted_as(by: str, layout: int) -> str:
    """Its key in `NOTED` for databases of a layout."""
    return "fqan 1" if (by, layout) == ("fqan", 1) else by


def names_of_rows(by: str) -> str:
    return f"SELECT RecordID, {NOTED[by]} FROM (SELECT value AS RecordID FROM json_each(:rows)) AS page"


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
    """The same jobs with the name that they are told apart `by`, if that stands beside their rows."""
    if by not in NOTED:
        return jobs
    noted = dict(
        connection.execute(
            names_of_rows(noted_as(by, reader.layout)),
            {"rows": json.dumps([row[0] for row, _ in jobs])},
        )
    )
    return [
        (row, job._replace(local_name=local_name(reader.text(noted[row[0]]), by)))
        for row, job in jobs
    ]
