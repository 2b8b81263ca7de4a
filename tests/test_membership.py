"""Packed entries: what goes in comes out, in order, and never for another job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from publisher.ledger.sqlite.membership import (
    ENTRY_BYTES,
    LATEST_END,
    LEAF_ENTRIES,
    Membership,
    entries,
    latest,
    leaves,
    pack,
    pack_all,
    unpack,
)
from publisher.model.job import Epoch, JobKey, job_digest, job_key
from publisher.model.message import Entry, Values

KEYS = st.binary(min_size=11, max_size=11).map(JobKey)
ENTRIES = st.builds(
    Entry, key=KEYS, ended_at=st.integers(0, LATEST_END).map(Epoch), fingerprint=st.integers(0, 0xFFFFFF)
)


@given(ENTRIES, st.integers(1, 2**32 - 1))
def test_an_entry_survives_packing(entry: Entry, message: int) -> None:
    packed = pack(entry, message)
    assert len(packed) == ENTRY_BYTES == 22
    assert packed.startswith(entry.key)
    assert unpack(packed) == Membership(message=message, ended_at=entry.ended_at, fingerprint=entry.fingerprint)


@given(st.dictionaries(KEYS, st.tuples(st.integers(-9, 2**33).map(Epoch), st.integers(0, 0xFFFFFF)), max_size=9))
def test_many_are_packed_as_each_is(runs: dict[JobKey, Values]) -> None:
    each = [pack(Entry(key=key, ended_at=ended, fingerprint=made), 7) for key, (ended, made) in runs.items()]
    assert pack_all(runs, 7) == each


@given(st.lists(st.tuples(ENTRIES, st.integers(1, 9)), max_size=400), KEYS)
def test_the_latest_message_of_a_run_is_found_and_no_other(carried: list[tuple[Entry, int]], stranger: JobKey) -> None:
    leaf = b"".join(sorted(pack(entry, message) for entry, message in carried))
    for entry, _ in carried:
        newest = max(message for other, message in carried if other.key == entry.key)
        found = latest(leaf, entry.key)
        assert found is not None
        assert found.message == newest
    if all(entry.key != stranger for entry, _ in carried):
        assert latest(leaf, stranger) is None


def test_leaves_are_full_and_lose_nothing() -> None:
    packed = sorted(job_key(str(number), "") + bytes(11) for number in range(1000))
    cut = list(leaves(packed))
    assert [len(leaf) // ENTRY_BYTES for leaf in cut] == [LEAF_ENTRIES] * 5 + [100]
    assert [entry for leaf in cut for entry in entries(leaf)] == packed


def test_runs_of_a_job_share_its_digest_and_differ_in_the_rest() -> None:
    first, second = job_key("job", "1.batch"), job_key("job", "2.batch")
    assert first != second
    assert first[:8] == second[:8] == job_digest("job")
    assert job_key("job", "") != job_key("joc", "")


def test_text_that_is_not_unicode_still_has_a_key() -> None:
    assert len(job_key("a\udcff", "\udc80")) == 11
