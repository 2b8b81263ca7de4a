"""Where the row of an imported job came from, for people who ask."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from publisher.model.job import JobId, RowRef
from publisher.sources.sqlite_readonly import CopyShelf, ReadOnlyFile

_IMPORTED: Final = "SELECT 1 FROM pragma_table_info('AAR') WHERE name = 'SourceKey'"
_ORIGIN: Final = """
    SELECT Source, SourceKey, coalesce((SELECT Path FROM ImportFile WHERE ImportFile.FileID = AAR.FileID), '')
    FROM AAR WHERE RecordID = ? AND JobID = ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The importer, its record's key, and where the file was last seen in which that stood ('': not known, or many)."""

    importer: str
    key: str
    file: str


def origin_of(row: RowRef, job_id: JobId, *, copies_below: Path) -> Origin | None:
    """None when A-REX wrote the row, or it is gone meanwhile. Raises: SourceError."""

    def ask(connection: sqlite3.Connection) -> Origin | None:
        imported = connection.execute(_IMPORTED).fetchone() is not None
        found = connection.execute(_ORIGIN, (row.record_id, job_id)).fetchone() if imported else None
        return None if found is None else Origin(importer=found[0], key=found[1], file=found[2])

    with closing(CopyShelf(copies_below)) as shelf, closing(ReadOnlyFile(row.database, shelf)) as file:
        return file.ask(ask)
