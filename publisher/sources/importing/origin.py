"""Where an imported job stood: the importer, its key there, and the file that it was read from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from publisher.model.job import JobRecord
from publisher.sources.base import ImportedFrom, Source
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile

_IMPORTED: Final = "SELECT 1 FROM pragma_table_info('AAR') WHERE name = 'SourceKey'"
_ORIGIN: Final = """
    SELECT Source, SourceKey, coalesce((SELECT Path FROM ImportFile WHERE ImportFile.FileID = AAR.FileID), '')
    FROM AAR WHERE RecordID = ? AND JobID = ?
"""


def origin_of(job: JobRecord, source: Source, *, copies_below: Path) -> ImportedFrom | None:
    """None when A-REX wrote the row, or it is gone meanwhile. The source is closed. Raises:
    SourceError.
    """

    def ask(connection: sqlite3.Connection) -> ImportedFrom | None:
        imported = connection.execute(_IMPORTED).fetchone() is not None
        found = (
            connection.execute(_ORIGIN, (job.row.record_id, job.job_id)).fetchone()
            if imported
            else None
        )
        return (
            None if found is None else ImportedFrom(importer=found[0], key=found[1], file=found[2])
        )

    with closing(source):
        file = source.databases().get(job.row.database)
    if file is None:
        return None
    with (
        closing(CopyDirectory(copies_below)) as copies,
        closing(ReadOnlyFile(file, copies)) as opened,
    ):
        return opened.ask(ask)
