"""A backlog on two cores: another process reads and renders, this one asks the ledger and sends.

The other process can end at any moment: whoever reads its pages goes on by itself behind the last
of them. A page goes through the pipe as its length, and values that `marshal` knows.
"""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import threading
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import IO, Any, BinaryIO, Final, NamedTuple

from publisher.formats.base import JobFormat
from publisher.model.job import Epoch, RowRef, RunValues
from publisher.model.message import Cursor, OpenRow
from publisher.model.target import Selection
from publisher.pipeline.round.decision import Decider
from publisher.pipeline.round.rendering.kinds import KindFacts
from publisher.pipeline.round.rendering.pages import (
    PageRenderer,
    Records,
    RenderedPage,
    Unwanted,
    has_kinds,
)
from publisher.sources.base import Source

_PIPE_BYTES: Final = 2**20  # what a user may ask for; a page has as much
BUFFER_BYTES: Final = 2**17
_LENGTH_BYTES: Final = 8
# Records that are read or written at once: those of a page are more than `malloc` takes back.
_PIECE: Final = 50
_PLAIN: Final = 2  # of marshal's versions: what stands in a page twice is not looked for
# glibc: what held a page goes back to the system at once.
_SPARING: Final = {"MALLOC_MMAP_THRESHOLD_": "131072"}
# Of several targets with a backlog: each would take the memory of a process.
_ONE_AT_A_TIME: Final = threading.Lock()


class ReadOrder(NamedTuple):
    """What to read: everything of a database after a cursor, of jobs that ended since `start`."""

    database: str
    cursor: Cursor | None
    start: Epoch | None
    now: datetime

    def text(self) -> str:
        """As `order_from` takes it."""
        return json.dumps([self.database, self.cursor, self.start, self.now.isoformat()])


def order_from(text: str) -> ReadOrder:
    database, cursor, start, now = json.loads(text)
    return ReadOrder(database, cursor and Cursor(*cursor), start, datetime.fromisoformat(now))


# In the other process


def write_pages(
    job_format: JobFormat, decider: Decider, source: Source, order: ReadOrder, out: BinaryIO
) -> None:
    """Read and render to the end of the database; `out` is buffered: nothing is written in part.

    Raises: SourceError.
    """
    work = PageRenderer(job_format, decider, order.now)
    passed_over = None if order.start is None else partial(_unwanted, decider.selection)
    alike = has_kinds(job_format, decider)
    where = order.cursor, order.database, job_format.needs, order.now
    pages = source.since(*where, passed_over, alike=alike)
    for page in pages:
        rendered = work.rendered(page, order.database)
        packed = _packed(rendered)
        out.write(len(packed).to_bytes(_LENGTH_BYTES, "little"))
        out.write(packed)
        contents = rendered.records.contents
        for at in range(0, len(contents), _PIECE):
            out.write(b"".join(contents[at : at + _PIECE]))
        out.flush()


def _unwanted(selection: Selection, _: Sequence[int], runs: Sequence[RunValues]) -> list[bool]:
    return [not selection.wants(run) for run in runs]


def _packed(page: RenderedPage) -> bytes:
    """Everything of a page but its records, with their sizes, as `_page_from` takes it apart."""
    opened = [(one.row.record_id, one.finished_seen_at) for one in page.open]
    contents = page.records.contents
    *columns, kinds = page.records._replace(contents=[])
    records = (*columns, list(map(tuple, kinds)), list(map(len, contents)))
    cursor = None if page.cursor is None else tuple(page.cursor)
    head = cursor, page.rows_read, page.restarted, opened, page.left, tuple(page.unwanted)
    values: Any = (*head, records)
    return marshal.dumps(values, _PLAIN)


# In this process


def read_backlog(
    command: Sequence[str], start: Epoch | None, now: datetime, database: str, cursor: Cursor | None
) -> Iterator[RenderedPage]:
    """What is behind a cursor, of jobs ended since `start`, as far as another process comes."""
    return read_ahead(command, ReadOrder(database=database, cursor=cursor, start=start, now=now))


def read_ahead(command: Sequence[str], order: ReadOrder) -> Generator[RenderedPage, None, None]:
    """The pages of another process, as far as it comes; none while one reads for another target."""
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return
    try:
        yield from _pages_of(command, order)
    finally:
        _ONE_AT_A_TIME.release()


def _pages_of(command: Sequence[str], order: ReadOrder) -> Iterator[RenderedPage]:
    try:
        process = subprocess.Popen(
            [*command, order.text()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=BUFFER_BYTES,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_SPARING},
            pipesize=_PIPE_BYTES,
        )
    except OSError:  # no memory, or no right to make processes
        return
    with process:
        pipe = process.stdout
        try:
            while pipe is not None and (page := _next_page(pipe, order.database)) is not None:
                yield page
        finally:
            process.kill()


def _next_page(pipe: IO[bytes], database: str) -> RenderedPage | None:
    """None where the process ended, be it in the middle of a page."""
    length = int.from_bytes(pipe.read(_LENGTH_BYTES), "little")
    packed = pipe.read(length)
    if not packed or len(packed) < length:
        return None
    return _page_from(database, marshal.loads(packed), pipe)


def _page_from(database: str, packed: tuple[Any, ...], pipe: IO[bytes]) -> RenderedPage | None:
    cursor, rows_read, restarted, opened, left, unwanted, (*columns, kinds, sizes) = packed
    rows = [(RowRef(database=database, record_id=number), seen) for number, seen in opened]
    records = Records._make([*columns, list(map(KindFacts._make, kinds))])
    for at in range(0, len(sizes), _PIECE):
        ends = list(accumulate(sizes[at : at + _PIECE], initial=0))
        piece = pipe.read(ends[-1])
        if len(piece) < ends[-1]:
            return None
        records.contents.extend(map(piece.__getitem__, map(slice, ends, ends[1:])))
    return RenderedPage(
        jobs=(),
        open=tuple(OpenRow(row=row, finished_seen_at=seen) for row, seen in rows),
        cursor=cursor and Cursor(*cursor),
        rows_read=rows_read,
        restarted=restarted,
        database=database,
        records=records,
        unwanted=Unwanted(*unwanted),
        left=left,
    )
