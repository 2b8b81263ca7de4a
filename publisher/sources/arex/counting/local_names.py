"""What the batch system calls who runs a job, which A-REX and importers note beside its row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.statistics import LOCAL_NAMES, CountedJob

_NOTED: Final = (
    "(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = page.RecordID AND +x.InfoKey = '{}' AND x.InfoValue <> ''"
    " ORDER BY x.rowid{} LIMIT 1)"
)
_LOCAL_USER: Final = _NOTED.format("localuser", " DESC")  # USER or USER:ACCOUNT
NOTED: Final[Mapping[str, str]] = {
    "project": _NOTED.format("projectname", ""),
    "account": _LOCAL_USER,
    "local-user": _LOCAL_USER,
}
"""For each of `LOCAL_NAMES` the text in which it stands, of a row of `page`."""


def names_of_rows(by: str) -> str:
    return f"SELECT RecordID, {NOTED[by]} FROM (SELECT value AS RecordID FROM json_each(:rows)) AS page"


def local_name(noted: str, by: str) -> str:
    if by == "project":
        return noted
    user, _, account = noted.partition(":")
    return account if by == "account" else user


def with_local_names(
    connection: sqlite3.Connection, reader: RowReader, jobs: Sequence[tuple[Row, CountedJob]], by: str
) -> Sequence[tuple[Row, CountedJob]]:
    """The same jobs with the name that they are told apart `by`, if that is one of `LOCAL_NAMES`."""
    if by not in LOCAL_NAMES:
        return jobs
    noted = dict(connection.execute(names_of_rows(by), {"rows": json.dumps([row[0] for row, _ in jobs])}))
    return [(row, job._replace(local_name=local_name(reader.text(noted[row[0]]), by))) for row, job in jobs]
