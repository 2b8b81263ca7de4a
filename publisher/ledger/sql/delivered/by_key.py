"""Delivered runs by key, where nobody knows the rows that they stood in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.delivered.pages import PagedRun

# One table a numbering, indexed when it is filled: entry by entry the index would be written in no order.
TABLE: Final = "CREATE TEMPORARY TABLE pages_of_{} (digest BIGINT NOT NULL, page BIGINT NOT NULL)"
INDEX: Final = "CREATE INDEX page_in_{0} ON pages_of_{0} (digest)"
_ADD_TO_INDEX: Final = "INSERT INTO pages_of_{} (digest, page) VALUES (:digest, :page)"
_LOOK_UP: Final = "SELECT page FROM pages_of_{} WHERE digest = :digest"
_SCANS: Final = 8  # as many are cheaper than the index
_FEW_PAGES: Final = 100  # of these a scan is always cheap


class RunIndex:
    """Looks runs up in numberings whose rows nobody knows: the first times in all pages, then by an index of this process."""

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
