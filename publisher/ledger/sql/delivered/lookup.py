"""Which runs were delivered: by place where a database's rows keep their numbers, else by key.

JobIDs are unique in an accounting database. So as long as its numbering holds, every delivery of a
job of it is in the block of its row, and a run that is not there was not delivered from there. That
the numbering holds is *shown*, never assumed: the row that was read last is still the same job
(`holds`, asked after a page was read), and no row from which a job was delivered has another one (a
database that was made anew may end with the same job). Otherwise another numbering begins.

What was delivered under other numberings (of databases that were renumbered, replaced, or stand
beside this one) is looked up by key: in all their pages, and after some such scans by an index of
them in a temporary table. Its memory is bounded, and it costs nothing where there is one database
with one numbering.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.delivered.pages import BLOCK_ROWS, PagedRun
from publisher.model.job import JOB_DIGEST_BYTES, JobKey, RowRef
from publisher.model.message import REMOVED, Cursor, PlacedRuns

# One table a numbering, indexed when filled: by single entries the index would be in no order.
TABLE: Final = "CREATE TEMPORARY TABLE pages_of_{} (digest BIGINT NOT NULL, page BIGINT NOT NULL)"
INDEX: Final = "CREATE INDEX page_in_{0} ON pages_of_{0} (digest)"
_ADD_TO_INDEX: Final = "INSERT INTO pages_of_{} (digest, page) VALUES (:digest, :page)"
_LOOK_UP: Final = "SELECT page FROM pages_of_{} WHERE digest = :digest"
_SCANS: Final = 8  # as many are cheaper than the index
_FEW_PAGES: Final = 100  # of these a scan is always cheap
_FEW_BLOCKS: Final = 4  # of these each is asked for
_REMEMBERED_BLOCKS: Final = 128  # of which the ends are known, 64 kB each


class RunIndex:
    """Looks runs up where nobody knows their rows: at first in all pages, then by an own index."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._scans: Counter[int] = Counter()
        self._indexed: dict[int, int] = {}  # the newest page of all when the index was extended

    def find(self, numbering: int, wanted: Collection[int]) -> Iterator[PagedRun]:
        """Every delivery of the jobs with these digests."""
        if numbering not in self._indexed and self._scans[numbering] < _SCANS:
            yield from self._scan(numbering, wanted)
            return
        self._extend(numbering)
        found: defaultdict[int, set[int]] = defaultdict(set)
        look_up = _LOOK_UP.format(numbering)
        for digest in wanted:
            for (page,) in self._database.execute(look_up, {"digest": digest}):
                found[page].add(digest)
        for number in sorted(found):
            if page := pages.by_id(self._database, numbering, number):
                yield from pages.unpack(*page, found[number])

    def _scan(self, numbering: int, wanted: Collection[int]) -> Iterator[PagedRun]:
        wanted = frozenset(wanted)
        scanned = 0
        for _, message, packed in pages.of_numbering(self._database, numbering):
            scanned += 1
            if not wanted.isdisjoint(pages.digests(packed)):
                yield from pages.unpack(message, packed, wanted)
        self._scans[numbering] += scanned > _FEW_PAGES

    def _extend(self, numbering: int) -> None:
        """Enter the pages that came since."""
        before = self._indexed.get(numbering, 0)
        newest = pages.newest(self._database)
        if newest == before:
            return
        add = _ADD_TO_INDEX.format(numbering)
        with self._database.snapshot():
            if not before:
                self._database.execute(TABLE.format(numbering))
            for number, _, packed in pages.of_numbering(self._database, numbering, before):
                self._database.execute_many(
                    add, ({"digest": digest, "page": number} for digest in pages.digests(packed))
                )
            if not before:
                self._database.execute(INDEX.format(numbering))
        self._indexed[numbering] = newest


_NUMBERINGS = """
SELECT id, file, EXISTS (SELECT 1 FROM delivered_page WHERE delivered_page.numbering = known.id)
FROM numbering AS known WHERE target = :target ORDER BY id"""
_Numbering = tuple[int, str, bool]  # its number, its file, and whether there are pages
_BEGIN = "INSERT INTO numbering (target, file) VALUES (:target, :file)"
_FORGET_CURSOR = "DELETE FROM reading WHERE target = :target AND file = :file"


class DeliveredRuns:
    """The delivered pages of a publishing database, and what is known of their numberings."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # By target and file: the numbering that was shown to hold.
        self._shown: dict[tuple[int, str], int | None] = {}
        self._begun: set[int] = set()  # numberings of this round
        # Files that were renumbered while their rows waited in memory.
        self._displaced: set[tuple[int, str]] = set()
        self._in_round: int | None = None  # the target
        self._refuted: set[int] = set()  # numberings with a row that has another job now
        self._by_key = RunIndex(database)
        self._ends: dict[tuple[int, int], array[int]] = {}  # by numbering and block

    def find(self, target: int, runs: Mapping[JobKey, RowRef | None]) -> dict[JobKey, PagedRun]:
        """The latest delivery of each run; by the row where it is now, None for an unknown one."""
        found: dict[JobKey, PagedRun] = {}
        for file, blocks in _by_block(runs).items():
            deliveries = self._deliveries(target, file, blocks)
            _keep_latest(found, (one for one in deliveries if one.key in runs))
        return found

    def find_at(
        self, target: int, file: str, record_ids: Sequence[int], keys: Sequence[JobKey]
    ) -> dict[JobKey, PagedRun]:
        """The same for a page in columns, with every other run of the same jobs."""
        if not self._may_be_delivered(target, file, _blocks_of(record_ids)):
            return {}
        blocks: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for record_id, key in zip(record_ids, keys, strict=True):
            blocks[record_id // BLOCK_ROWS][record_id] = pages.digest_of(key)
        found: dict[JobKey, PagedRun] = {}
        _keep_latest(found, self._deliveries(target, file, blocks))
        return found

    def _may_be_delivered(self, target: int, file: str, blocks: Iterable[int]) -> bool:
        """Whether anything was delivered of rows of these blocks, as far as their numbers tell."""
        if not self.with_pages(target):
            return False
        current = self._only_numbering(target, file)
        if current is None:
            return True
        return any(pages.has_block(self._database, current, block) for block in blocks)

    def ends_at(
        self, target: int, file: str, record_ids: Sequence[int], is_settled: Callable[[int], bool]
    ) -> Sequence[int]:
        """By row, the end of the only run that was delivered from it, by a message that is settled.

        0 where there is no such run, and everywhere while rows of the file were delivered under
        other numberings.
        """
        current = self._only_numbering(target, file)
        if current is None:
            return [0] * len(record_ids)
        blocks = {row // BLOCK_ROWS for row in record_ids}
        if len(self._ends) > _REMEMBERED_BLOCKS:
            self._ends.clear()
        for block in blocks:
            if (current, block) not in self._ends:
                self._ends[current, block] = self._ends_of_block(current, block, is_settled)
        here = {block: self._ends[current, block] for block in blocks}
        return [here[row // BLOCK_ROWS][row % BLOCK_ROWS] for row in record_ids]

    def _only_numbering(self, target: int, file: str) -> int | None:
        """The numbering of a file that holds, where nothing was delivered under another one."""
        numberings = self._numberings(target)
        current = self._holding(target, file, numberings)
        others = any(has_pages for number, _, has_pages in numberings if number != current)
        return None if others else current

    def _ends_of_block(
        self, numbering: int, block: int, is_settled: Callable[[int], bool]
    ) -> array[int]:
        """The same for every row of a block."""
        found = array("Q", bytes(8 * BLOCK_ROWS))
        delivered = bytearray(BLOCK_ROWS)
        for message, packed in pages.of_block(self._database, numbering, block):
            settled = is_settled(message)
            columns = pages.places(packed), pages.ends(packed), pages.fingerprints(packed)
            for place, end, fingerprint in zip(*columns, strict=True):
                only = settled and not delivered[place] and fingerprint != REMOVED
                found[place] = end if only else 0
                delivered[place] = True
        return found

    def of_jobs(
        self, target: int, runs: Mapping[JobKey, RowRef | None]
    ) -> dict[bytes, dict[JobKey, PagedRun]]:
        """The latest delivery of every run of the jobs of these runs, by the job's digest."""
        found: dict[bytes, dict[JobKey, PagedRun]] = {key[:JOB_DIGEST_BYTES]: {} for key in runs}
        for file, blocks in _by_block(runs).items():
            for one in self._deliveries(target, file, blocks):
                _keep_latest(found[one.key[:JOB_DIGEST_BYTES]], [one])
        return found

    def everywhere(self, target: int, digest: bytes) -> list[PagedRun]:
        """Every delivery of every run of a job, in the order of messages."""
        wanted = {pages.digest_of(digest)}
        found = [
            one
            for numbering in self.with_pages(target)
            for _, message, packed in pages.of_numbering(self._database, numbering)
            if digest in packed
            for one in pages.unpack(message, packed, wanted)
        ]
        return sorted(found, key=lambda one: one.message)

    def elsewhere(
        self, target: int, numbering: int, wanted: Collection[int]
    ) -> Iterator[tuple[int, PagedRun]]:
        """Number and delivery of every run, under another numbering, of jobs by their digests."""
        for other in self.with_pages(target):
            if other != numbering:
                for one in self._by_key.find(other, wanted):
                    yield other, one

    def with_pages(self, target: int) -> list[int]:
        """The numberings of a target under which something was delivered, as they began."""
        return [number for number, _, has_pages in self._numberings(target) if has_pages]

    def _deliveries(
        self, target: int, file: str, blocks: Mapping[int, Mapping[int, int]]
    ) -> Iterator[PagedRun]:
        """Every delivery of every run of some jobs. `blocks`: their rows of now, and digests."""
        numberings = self._numberings(target)
        current = self._holding(target, file, numberings)
        others = [number for number, _, has_pages in numberings if has_pages]
        if current is not None:
            for block, rows in blocks.items():
                yield from self._of_block(current, block, rows)
            if current not in self._refuted and current in others:
                others.remove(current)
        if others:
            wanted = frozenset[int]().union(*(rows.values() for rows in blocks.values()))
            for number in others:
                yield from self._by_key.find(number, wanted)

    def _holding(self, target: int, file: str, numberings: Iterable[_Numbering]) -> int | None:
        """The numbering of a file, where it was shown to hold."""
        current = _current(numberings, file)
        is_shown = self._shown.get((target, file)) == current and current not in self._refuted
        return current if is_shown else None

    def _of_block(self, numbering: int, block: int, rows: Mapping[int, int]) -> Iterator[PagedRun]:
        wanted = frozenset(rows.values())
        lowest, highest = min(rows), max(rows)
        for message, packed in list(pages.of_block(self._database, numbering, block)):
            if pages.contradicts(packed, block, rows, lowest, highest):
                self._refuted.add(numbering)
            if not wanted.isdisjoint(pages.digests(packed)):
                yield from pages.unpack(message, packed, wanted)

    # Numberings

    def begin_round(self, target: int) -> None:
        """What was shown in an earlier round may be otherwise by now."""
        self._shown = {at: number for at, number in self._shown.items() if at[0] != target}
        self._displaced = {at for at in self._displaced if at[0] != target}
        self._begun.clear()
        self._in_round = target

    def is_in_round(self, target: int) -> bool:
        return target == self._in_round

    def holds(
        self,
        target: int,
        file: str,
        cursor: Cursor | None,
        fits: Callable[[Cursor], bool],
        *,
        restarted: bool,
    ) -> bool:
        """Whether the rows of a file still have the numbers under which they were delivered.

        `fits` looks for the row that was read last. `restarted`: reading began again, because
        another file was found.
        """
        numberings = self._numberings(target)
        current = _current(numberings, file)
        if restarted or current in self._refuted:
            return False
        if current is None or current in self._begun:
            holds = cursor is None or fits(cursor)
        elif cursor is None:
            holds = not any(has_pages for number, _, has_pages in numberings if number == current)
        else:
            holds = fits(cursor)
        if holds:
            self._shown[target, file] = current
        return holds

    def distrust(self, target: int, file: str) -> None:
        """Look everything of this file up by key."""
        self._shown.pop((target, file), None)

    def renumber(self, target: int, file: str) -> None:
        """Begin another numbering for a file; inside the caller's transaction.

        Rows of it that were read in this round, and wait to be written down, are not of the new.
        """
        if (target, file) in self._shown:
            self._displaced.add((target, file))
        self._database.execute(_FORGET_CURSOR, {"target": target, "file": file})
        self._shown[target, file] = self._begin(target, file)

    def _begin(self, target: int, file: str) -> int:
        number = self._database.insert_returning_id(_BEGIN, {"target": target, "file": file})
        self._begun.add(number)
        return number

    def _numberings(self, target: int) -> list[_Numbering]:
        return self._database.execute(_NUMBERINGS, {"target": target}).fetchall()

    # Writing, inside the caller's transaction

    def add(self, target: int, message: int, runs: PlacedRuns) -> None:
        """Runs that a message carries."""
        known = self._numberings(target)
        numberings = {file: self._to_write(target, file, known) for file in set(runs.files)}
        pages.write(self._database, message, runs, numberings)

    def _to_write(self, target: int, file: str, numberings: Sequence[_Numbering]) -> int:
        """The numbering of rows of a file that were read in this round, or before."""
        if (target, file) in self._displaced:
            file = ""
        current = _current(numberings, file)
        if current is None or current in self._refuted:
            current = self._begin(target, file)
            if (target, file) in self._shown:
                self._shown[target, file] = current
        return current


def _current(numberings: Iterable[_Numbering], file: str) -> int | None:
    """The numbering that a file has had last."""
    return max((number for number, name, _ in numberings if name == file), default=None)


def _blocks_of(record_ids: Sequence[int]) -> Collection[int]:
    """The blocks in which rows stand, and perhaps some between them."""
    if not record_ids:
        return ()
    between = range(min(record_ids) // BLOCK_ROWS, max(record_ids) // BLOCK_ROWS + 1)
    if len(between) <= _FEW_BLOCKS:
        return between
    return {record_id // BLOCK_ROWS for record_id in record_ids}


def _by_block(runs: Mapping[JobKey, RowRef | None]) -> dict[str, dict[int, dict[int, int]]]:
    """Digests of the jobs of some runs, by file, block and row."""
    found: dict[str, dict[int, dict[int, int]]] = {}
    for number, (key, row) in enumerate(runs.items()):
        file, record_id = ("", number) if row is None else (row.database, row.record_id)
        rows = found.setdefault(file, {}).setdefault(record_id // BLOCK_ROWS, {})
        rows[record_id] = pages.digest_of(key)
    return found


def _keep_latest(found: dict[JobKey, PagedRun], runs: Iterable[PagedRun]) -> None:
    for one in runs:
        before = found.get(one.key)
        if before is None or one.message >= before.message:
            found[one.key] = one
