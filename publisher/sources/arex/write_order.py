"""Finished jobs in the order in which A-REX wrote their end.

RecordID is the order of submission and EndTime is the state file's; neither tells when a row was
written. The FINISHED event does: it is the last thing that is written of a job, and rowids of
JobEvents grow with each row. Of a job that passed FINISHED twice the last event counts, because
EndTime is of that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from publisher.model.job import Epoch
from publisher.sources.arex import queries
from publisher.sources.arex.values import stored_text, text_of, tolerant_text
from publisher.sources.base import WrittenJob
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile

_PAGE_ROWS: Final = 2000
# The unary plus keeps SQLite off the index of event keys: a page is a range of rowids, and a job
# has nine events or so.
IN_ORDER: Final = """
    SELECT finished.rowid, AAR.JobID, AAR.LocalJobID, AAR.EndTime, Status.Name, WLCGVOs.Name
    FROM JobEvents AS finished
    CROSS JOIN AAR ON AAR.RecordID = finished.RecordID
    LEFT JOIN Status ON Status.ID = AAR.StatusID
    LEFT JOIN WLCGVOs ON WLCGVOs.ID = AAR.VOID
    WHERE finished.rowid > :after AND +finished.EventKey = 'FINISHED' AND NOT EXISTS (
        SELECT 1 FROM JobEvents AS later
        WHERE later.RecordID = finished.RecordID AND later.rowid > finished.rowid
            AND +later.EventKey = 'FINISHED'
    )
    ORDER BY finished.rowid LIMIT :limit
"""


class ArexWritingOrder:
    """One accounting database, opened to be read once from its first job to its last."""

    def __init__(
        self, name: str, path: str, copies: CopyDirectory, *, page_rows: int = _PAGE_ROWS
    ) -> None:
        """Raises: SourceError."""
        self.name = name
        self._page_rows = page_rows
        self._file = ReadOnlyFile(path, copies)

    def close(self) -> None:
        self._file.close()

    def jobs(self) -> Iterator[WrittenJob]:
        """Jobs whose end is told, page by page in short transactions. Raises: SourceError."""
        after = 0
        while True:
            rows = self._file.ask(partial(self._page, after=after))
            for _, job_id, local_id, ended_at, status, vo in rows:
                if isinstance(ended_at, int) and ended_at > 0:
                    ids = text_of(job_id), text_of(local_id)
                    yield WrittenJob(*ids, Epoch(ended_at), text_of(status), text_of(vo))
            if len(rows) < self._page_rows:
                return
            after = rows[-1][0]

    def finished_among(self, job_ids: Sequence[str]) -> set[str]:
        """Which of some jobs, named as by `WrittenJob`, are finished here. Raises: SourceError."""
        named = {stored_text(job_id): job_id for job_id in job_ids}

        def read(connection: sqlite3.Connection) -> set[str]:
            found = connection.execute(queries.standing_among(len(named)), list(named))
            return {named[job_id] for job_id, finished in found if finished}

        return self._file.ask(read) if named else set()

    def _page(self, connection: sqlite3.Connection, after: int) -> list[tuple[Any, ...]]:
        connection.text_factory = tolerant_text
        return connection.execute(IN_ORDER, {"after": after, "limit": self._page_rows}).fetchall()
