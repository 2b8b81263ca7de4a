"""Stretches of delivered entries: whatever is merged, each run's latest delivery is found, and nobody else's."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.ledger.sqlite import schema, stretches
from publisher.ledger.sqlite.absence import Absence
from publisher.ledger.sqlite.connection import SqliteDatabase
from publisher.ledger.sqlite.membership import KEY_BYTES, Membership, pack, unpack
from publisher.model.job import Epoch, JobKey, job_key
from publisher.model.message import Entry

TARGET = 1
FEW = [JobKey(bytes([high, 0, 0, low]) + bytes(7)) for high in (0, 1, 255) for low in range(5)]


class Shelf:
    """A ledger's tables, into which messages go that are settled at once."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(schema.TABLES)
        self.database = SqliteDatabase(self.connection, Path("none"))
        self.connection.execute("INSERT INTO target (id, name, start_rule, selection_digest) VALUES (1, 'egi', '', '')")
        self.absence = Absence()
        self.latest: dict[JobKey, Membership] = {}
        self.messages = 0

    def deliver(self, keys: Sequence[JobKey]) -> None:
        """A message of these runs, made into a stretch."""
        self.messages += 1
        packed = sorted(
            pack(Entry(key=key, ended_at=Epoch(self.messages), fingerprint=len(keys)), self.messages) for key in keys
        )
        self.connection.execute(
            "INSERT INTO message (id, target, message_id, state, format, records, bytes, digest, made_at)"
            " VALUES (?, 1, '', 2, '', ?, 0, x'', 0)",
            (self.messages, len(keys)),
        )
        self.connection.execute("INSERT INTO fresh VALUES (?, 1, ?)", (self.messages, b"".join(packed)))
        self.latest |= {JobKey(entry[:KEY_BYTES]): unpack(entry) for entry in packed}
        self.absence.covers = stretches.settle_fresh(self.database, TARGET, self.absence)

    def close(self) -> None:
        self.connection.close()

    def look_up(self, keys: Sequence[JobKey], *, by_absence: bool = True) -> dict[JobKey, Membership]:
        return stretches.look_up(self.database, TARGET, keys, self.absence if by_absence else None)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.sampled_from(FEW), min_size=1, max_size=9, unique=True), max_size=12))
def test_the_latest_delivery_is_found_after_any_merges_with_and_without_absences(messages: list[list[JobKey]]) -> None:
    with closing(Shelf()) as shelf:
        for keys in messages:
            shelf.deliver(keys)
        assert shelf.look_up(FEW) == shelf.look_up(FEW, by_absence=False) == shelf.latest


def test_merged_leaves_are_in_order_full_and_complete() -> None:
    rng = Random(1)
    with closing(Shelf()) as shelf:
        delivered: set[JobKey] = set()
        for count in (2_000, 700, 700, 3, 900, 500):
            keys = [job_key(str(rng.random()), "") for _ in range(count)]
            delivered.update(keys)
            shelf.deliver(keys)
        for stretch, count in shelf.connection.execute("SELECT id, entries FROM stretch").fetchall():
            leaves = [
                leaf
                for (leaf,) in shelf.connection.execute(
                    "SELECT entries FROM leaf WHERE stretch = ? ORDER BY first, id", (stretch,)
                )
            ]
            entries = [leaf[at : at + 22] for leaf in leaves for at in range(0, len(leaf), 22)]
            assert entries == sorted(entries)
            assert len(entries) == count
            assert {len(leaf) for leaf in leaves[:-1]} <= {180 * 22}
        assert shelf.look_up(sorted(delivered)) == shelf.latest
        assert len(shelf.latest) == 4_803


def test_a_run_delivered_more_often_than_a_leaf_holds_is_found_at_its_last() -> None:
    with closing(Shelf()) as shelf:
        for _ in range(400):
            shelf.deliver(FEW[:2])
        assert {one.message for one in shelf.look_up(FEW).values()} == {400}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(FEW), st.sampled_from(("", "by another", "fails"))), max_size=30))
def test_what_another_process_wrote_and_what_was_rolled_back_are_told_right(steps: list[tuple[JobKey, str]]) -> None:
    """An absence covers what its process wrote; a merge of both, and one that fails on its way, must not mislead it."""
    with closing(Shelf()) as shelf:
        for key, how in steps:
            if how == "by another":
                ours, shelf.absence = shelf.absence, Absence()
                shelf.deliver([key])
                shelf.absence = ours
            elif how == "fails":
                before = dict(shelf.latest)
                shelf.connection.execute("BEGIN")
                covers = shelf.absence.covers
                shelf.deliver([key])
                shelf.connection.execute("ROLLBACK")
                shelf.absence.covers, shelf.latest = covers, before
            else:
                shelf.deliver([key])
        assert shelf.look_up(FEW) == shelf.latest


@pytest.mark.parametrize("count", [1, 5, 180, 40_000])
def test_absence_never_denies_what_is_there_and_mostly_denies_what_is_not(count: int) -> None:
    keys = sorted(job_key(str(number), "") for number in range(count))
    absence = Absence()
    for key in keys:
        absence.add(key + bytes(11))
    assert absence.perhaps(keys) == keys
    strangers = [job_key(f"stranger {number}", "") for number in range(2_000)]
    assert len(absence.perhaps(strangers)) < 2_000 / 6


def test_new_runs_are_not_looked_up_in_the_leaves() -> None:
    with closing(Shelf()) as shelf:
        shelf.deliver([job_key(str(number), "") for number in range(20_000)])
        asked: list[str] = []
        shelf.connection.set_trace_callback(asked.append)
        assert shelf.look_up([job_key(f"stranger {number}", "") for number in range(1_000)]) == {}
        assert len([one for one in asked if "FROM leaf" in one]) < 1_000 / 6
