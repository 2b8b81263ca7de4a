"""What a dry run adopts of another publisher is not kept in memory."""

from __future__ import annotations

import tracemalloc
from contextlib import closing
from hashlib import sha256

from publisher.ledger.sqlite.scratch import ScratchEntries
from publisher.model.entry import Entry, RecordKey, RowFields, RowKey, RunKey, Usage
from publisher.model.job import Epoch
from publisher.model.totals import BY_JURA

FIELDS = RowFields(b"row", "{}")
MONTH, END = 24_321, 1_794_000_000


def run_key(number: int) -> RunKey:
    return RunKey(sha256(str(number).encode()).digest()[:15])


def entry(number: int, wall_s: int = 60) -> Entry:
    record = RecordKey("SITE", "pre-", str(number), Epoch(END + number))
    return Entry(run_key(number), record, RowKey(MONTH, FIELDS), wall_s, 50, str(number).encode())


def test_entries_are_found_by_target_and_run() -> None:
    with closing(ScratchEntries()) as scratch:
        assert scratch.recorded("egi", [run_key(1)]) == {}
        scratch.add("egi", [entry(1), entry(2)])
        scratch.add("egi", [entry(1, wall_s=99)])
        scratch.add("other", [entry(3)])
        found = scratch.recorded("egi", [run_key(number) for number in range(5)])
        assert found.keys() == {run_key(1), run_key(2)}
        one, whole = found[run_key(1)], entry(1)
        assert (one.run, one.record, one.row, one.digest) == (whole.run, whole.record, whole.row.id, whole.digest)
        assert (one.usage, one.settings, one.pending, one.counts) == (Usage(1, 60, 50), BY_JURA, False, True)
        assert scratch.recorded("other", [run_key(1), run_key(3)]).keys() == {run_key(3)}


def test_memory_does_not_grow_with_entries() -> None:
    with closing(ScratchEntries()) as scratch:
        scratch.add("egi", map(entry, range(1_000)))
        tracemalloc.start()
        for start in range(0, 60_000, 10_000):
            scratch.add("egi", map(entry, range(start, start + 10_000)))
        left, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert left < 1_000_000  # 60,000 entries have some 40 MB
        assert len(scratch.recorded("egi", list(map(run_key, range(60_000))))) == 60_000
