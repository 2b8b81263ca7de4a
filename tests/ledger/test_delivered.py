"""Delivered runs by place: exact whatever happens to the rows, small, and without look-ups by key where nothing happened."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.ledger import SqlLedger
from publisher.ledger.sqlite.connection import SqliteDatabase, open_ledger_file
from publisher.model.job import Epoch, JobId, JobKey, JobRecord, RowRef, job_key
from publisher.model.message import Cursor, Message, Progress, RecordColumns, message_of
from tests.support.jobs import RECEIVER, make_job, make_record

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDED = 1_794_000_000
Rows = dict[str, dict[int, tuple[int, int]]]  # by file and RecordID: a job, and how often it was restarted


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def ledger(tmp_path: Path, asked: list[str]) -> Iterator[SqlLedger]:
    path = tmp_path / "publishing.db"
    connection = open_ledger_file(path)
    connection.set_trace_callback(asked.append)
    opened = SqlLedger(SqliteDatabase(connection, path))
    begin(opened)
    yield opened
    opened.close()


def begin(ledger: SqlLedger) -> None:
    ledger.begin_round("egi", start_rule="all", start=None, selection_digest="", receiver=RECEIVER)


def job(number: int, row: int, file: str = "a.db", restarts: int = 0, wall_s: int = 60) -> JobRecord:
    return make_job(
        job_id=JobId(f"job{number}"),
        local_id=str(restarts),
        row=RowRef(database=file, record_id=row),
        submitted_at=Epoch(ENDED + number - 9_000),
        ended_at=Epoch(ENDED + number),
        wall_s=wall_s,
    )


def prepare(ledger: SqlLedger, *jobs: JobRecord, progress: Progress | None = None, at: int = 0) -> Message:
    records = RecordColumns.of(make_record(one, one.job_id.encode()) for one in jobs)
    payload = b"".join(records.contents)
    message = message_of(payload, "egi", "car", len(records), NOW + timedelta(seconds=at))
    ledger.prepare(message, records, progress or Progress(), "policy")
    return message


def deliver(ledger: SqlLedger, *jobs: JobRecord, at: int = 0) -> None:
    ledger.sent(prepare(ledger, *jobs, at=at), remote_id="", remote_ids={}, now=NOW)


def runs(*jobs: JobRecord) -> dict[JobKey, RowRef | None]:
    return {one.key: one.row for one in jobs}


def read_to(job: JobRecord) -> Progress:
    return Progress(cursors=(Cursor(database=job.row.database, record_id=job.row.record_id, anchor=job.job_id),))


def whole_table(asked: list[str]) -> list[str]:
    """Statements that went through all pages of a numbering."""
    return [text for text in asked if "SELECT id, message, runs" in text]


KEYS = st.binary(min_size=11, max_size=11).map(JobKey)
RUNS = st.dictionaries(
    KEYS,
    st.tuples(st.integers(-5, 2**33).map(Epoch), st.integers(0, 0xFFFFFF), st.integers(0, pages.BLOCK_ROWS - 1)),
    min_size=1,
)


@given(RUNS)
def test_what_is_packed_comes_back(found: Mapping[JobKey, tuple[Epoch, int, int]]) -> None:
    packed = pages.pack(list(found), *map(list, zip(*found.values(), strict=True)))
    assert len(packed) == pages.RUN_BYTES * len(found)
    assert pages.keys(packed) == list(found)
    assert list(pages.digests(packed)) == [pages.digest_of(key) for key in found]
    back = {one.key: (one.ended_at, one.fingerprint) for one in pages.unpack(7, packed, set(pages.digests(packed)))}
    assert back == {key: (max(0, min(end, 2**32 - 1)), said) for key, (end, said, _) in found.items()}
    assert list(pages.places(packed)) == [place for _, _, place in found.values()]
    assert list(pages.ends(packed)) == [end for end, _ in back.values()]


def test_text_that_is_not_unicode_has_a_key_too() -> None:
    assert job_key("a\udcff", "") != job_key("a", "")


def test_a_job_is_looked_up_in_the_block_of_its_row_only(ledger: SqlLedger, asked: list[str]) -> None:
    ledger.check_numbering("egi", "a.db", lambda _: True)
    deliver(ledger, *(job(number, number) for number in range(1, 3000, 7)))
    asked.clear()
    found = ledger.known("egi", runs(job(1, 1), job(8, 8), job(3, 3), job(9_999, 9_999)))
    assert found.keys() == {job(1, 1).key, job(8, 8).key}
    assert not whole_table(asked)


def test_rows_behind_everything_delivered_cost_one_statement_a_block(ledger: SqlLedger, asked: list[str]) -> None:
    ledger.check_numbering("egi", "a.db", lambda _: True)
    deliver(ledger, *(job(number, number) for number in range(1, 1000)))
    new = [job(number, pages.BLOCK_ROWS + number) for number in range(2048)]
    asked.clear()
    assert not ledger.known_at("egi", "a.db", [one.row.record_id for one in new], [one.key for one in new])
    assert sum("delivered_page" in text for text in asked) <= 3
    assert not whole_table(asked)


def test_the_latest_delivery_counts_and_every_one_is_traced(ledger: SqlLedger) -> None:
    ledger.check_numbering("egi", "a.db", lambda _: True)
    deliver(ledger, job(1, 1))
    deliver(ledger, job(1, 1, wall_s=99), at=1)
    deliver(ledger, job(1, 1, restarts=1), at=2)
    known = ledger.known("egi", runs(job(1, 1), job(1, 1, restarts=1)))
    assert known[job(1, 1).key].fingerprint == job(1, 1, wall_s=99).fingerprint
    assert len(known) == 2
    assert len(ledger.trace(JobId("job1"))) == 3
    (other,) = ledger.other_runs("egi", runs(job(1, 1)))[job(1, 1).key]
    assert other.fingerprint == job(1, 1, restarts=1).fingerprint


@pytest.mark.parametrize("checked", [True, False])
def test_a_database_that_was_renumbered_is_looked_up_by_key(ledger: SqlLedger, checked: bool) -> None:
    ledger.check_numbering("egi", "a.db", lambda _: True)
    ledger.sent(
        prepare(ledger, *(job(number, number) for number in range(1, 50)), progress=read_to(job(49, 49))),
        remote_id="",
        remote_ids={},
        now=NOW,
    )
    begin(ledger)
    if checked:
        ledger.check_numbering("egi", "a.db", lambda _: False)
    moved = [job(number, 5000 - number) for number in range(1, 60)]
    assert ledger.known("egi", runs(*moved)).keys() == {one.key for one in moved[:49]}
    assert (ledger.cursor("egi", "a.db") is None) == checked


def test_a_copy_of_a_database_beside_it_is_known(ledger: SqlLedger) -> None:
    for file in ("a.db", "b.db"):
        ledger.check_numbering("egi", file, lambda _: True)
    deliver(ledger, *(job(number, number) for number in range(1, 50)))
    beside = [job(number, 1000 + number, "b.db") for number in range(1, 60)]
    assert ledger.known("egi", runs(*beside)).keys() == {one.key for one in beside[:49]}


def test_rows_read_before_a_renumbering_in_the_round_are_found_after_it(ledger: SqlLedger) -> None:
    """The file is replaced while jobs of it wait in memory: under the new numbers their rows are those of others."""
    ledger.check_numbering("egi", "a.db", lambda _: True)
    waiting = [job(number, number) for number in range(1, 10)]
    ledger.check_numbering("egi", "a.db", lambda _: False, restarted=True)
    moved = [job(number, 7000 + number) for number in range(1, 10)]
    message = prepare(ledger, *waiting, progress=read_to(moved[-1]))
    ledger.sent(message, remote_id="", remote_ids={}, now=NOW)
    begin(ledger)
    ledger.check_numbering("egi", "a.db", lambda _: True)
    assert ledger.known("egi", runs(*moved)).keys() == {one.key for one in moved}
    there_now = [job(500 + number, number) for number in range(1, 10)]
    assert not ledger.known("egi", runs(*there_now))


def test_a_message_of_two_databases_has_pages_of_its_rows_in_each(tmp_path: Path, ledger: SqlLedger) -> None:
    rows = {"a.db": (9000, 3, 1), "b.db": (2, 20_000)}
    mixed = [job(row, row, file) for file, all_rows in rows.items() for row in all_rows]
    random.Random(2).shuffle(mixed)
    deliver(ledger, *mixed)
    with closing(sqlite3.connect(tmp_path / "publishing.db")) as database:
        found = database.execute(
            "SELECT file, block, runs FROM delivered_page JOIN numbering ON numbering.id = numbering ORDER BY file, block"
        ).fetchall()
    placed = [
        (file, block * pages.BLOCK_ROWS + place, end - ENDED)
        for file, block, packed in found
        for place, end in zip(pages.places(packed), pages.ends(packed), strict=True)
    ]
    assert placed == [(file, row, row) for file, all_rows in rows.items() for row in sorted(all_rows)]


@pytest.mark.parametrize("halved", [False, True])
def test_another_job_in_a_delivered_row_refutes_the_numbering(ledger: SqlLedger, halved: bool) -> None:
    """The row that was read last fits all the same: what stood elsewhere is looked up by key, from then on."""
    ledger.check_numbering("egi", "a.db", lambda _: True)
    before = [job(number, number * 50_000) for number in (1, 2, 3)]
    message = prepare(ledger, *before, progress=read_to(before[2]))
    if halved:
        whole = ledger.outstanding("egi")
        assert whole is not None
        halves = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
        ledger.split(whole, halves, narrowing=False)
    else:
        ledger.sent(message, remote_id="", remote_ids={}, now=NOW)
    begin(ledger)
    ledger.check_numbering("egi", "a.db", lambda _: True)
    swapped = [job(2, 50_000), job(1, 100_000), job(4, 4)]
    for one in (swapped[0], swapped[1]):
        assert ledger.known("egi", runs(one)).keys() == {one.key}
    deliver(ledger, swapped[2], at=5)
    begin(ledger)
    ledger.check_numbering("egi", "a.db", lambda _: True)
    assert ledger.known("egi", runs(*swapped, before[2])).keys() == {one.key for one in (*swapped, before[2])}


def test_halves_stay_where_their_whole_stood(ledger: SqlLedger) -> None:
    """Also when the rows were renumbered before it was cut in two."""
    ledger.check_numbering("egi", "a.db", lambda _: True)
    both = [job(1, 1), job(2, 2)]
    prepare(ledger, *both, progress=read_to(both[1]))
    begin(ledger)
    ledger.check_numbering("egi", "a.db", lambda _: False)
    whole = ledger.outstanding("egi")
    assert whole is not None
    halves = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
    ledger.split(whole, halves, narrowing=False)
    moved = [job(number, 40_000 + number) for number in (1, 2)]
    ledger.sent(halves[0][0], remote_id="", remote_ids={}, now=NOW)
    known = ledger.known("egi", runs(*moved))
    assert [known[one.key].settled for one in moved] == [True, False]


def test_many_look_ups_by_key_are_answered_by_an_index(ledger: SqlLedger, asked: list[str]) -> None:
    deliver(ledger, *(job(number, pages.BLOCK_ROWS * number) for number in range(300)))
    for number in range(40):
        one = job(number * 10, 999_999)
        assert ledger.known("egi", runs(one)).keys() == ({one.key} if number < 30 else set())
    assert len(whole_table(asked)) < 12
    late = job(5000, 3)
    deliver(ledger, late, at=1)
    assert ledger.known("egi", {late.key: None}).keys() == {late.key}
    prepare(ledger, job(6000, 4), at=2)
    ledger.give_up("egi", [], {})
    assert not ledger.known("egi", {job(6000, 4).key: None})


def test_a_ledger_that_is_only_read_looks_up_by_an_index_too(tmp_path: Path, ledger: SqlLedger) -> None:
    deliver(ledger, *(job(number, pages.BLOCK_ROWS * number) for number in range(300)))
    connection = open_ledger_file(tmp_path / "publishing.db", read_only=True)
    with closing(SqlLedger(SqliteDatabase(connection, tmp_path / "publishing.db"))) as reader:
        reader.check_numbering("egi", "a.db", lambda _: False)
        for number in range(40):
            assert reader.known("egi", runs(job(number, number + 7)))


class Databases:
    """Accounting databases that grow, are renumbered, copied and dropped, and jobs that are restarted."""

    def __init__(self, chance: random.Random) -> None:
        self.rows: Rows = {"a.db": {}}
        self._chance = chance
        self._jobs = 0

    def change(self) -> None:
        act = self._chance.choice(
            [self._grow, self._grow, self._grow, self._renumber, self._copy, self._drop, self._restart]
        )
        act(self._chance.choice(list(self.rows)))

    def _grow(self, file: str) -> None:
        for _ in range(self._chance.randint(1, 30)):
            self._jobs += 1
            last = max(self.rows[file], default=0)
            self.rows[file][last + self._chance.choice([1, 1, 1, 700])] = self._jobs, 0

    def _renumber(self, file: str) -> None:
        found = list(self.rows[file].values())
        kept = self._chance.sample(found, len(found) * 2 // 3)
        self.rows[file] = dict(enumerate(kept, self._chance.choice([1, 3])))

    def _copy(self, file: str) -> None:
        if len(self.rows) < 3:
            self._jobs += 1
            self.rows[f"copy{self._jobs}.db"] = {number + 5: one for number, one in self.rows[file].items()}

    def _drop(self, file: str) -> None:
        if len(self.rows) > 1:
            del self.rows[file]

    def _restart(self, file: str) -> None:
        found = self.rows[file]
        for number in self._chance.sample(list(found), min(5, len(found))):
            found[number] = found[number][0], found[number][1] + 1

    def fits(self, cursor: Cursor) -> bool:
        found = self.rows[cursor.database].get(cursor.record_id)
        return found is not None and cursor.anchor == f"job{found[0]}"

    def page(self, file: str) -> list[JobRecord]:
        walls = [60, 60, 61]
        return [
            job(number, row, file, restarts, wall_s=self._chance.choice(walls))
            for row, (number, restarts) in sorted(self.rows[file].items())
        ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.some(3)
def test_whatever_happens_to_rows_the_ledger_knows_what_was_delivered(ledger: SqlLedger, seed: int) -> None:
    """Against a plain dictionary."""
    chance = random.Random(seed)
    databases = Databases(chance)
    delivered: dict[JobKey, int] = {}
    for step in range(40):
        begin(ledger)
        databases.change()
        for file in list(databases.rows):
            ledger.check_numbering("egi", file, databases.fits)
            page = databases.page(file)
            known = ledger.known("egi", runs(*page))
            expected = {one.key: delivered[one.key] for one in page if one.key in delivered}
            assert {key: run.fingerprint for key, run in known.items()} == expected
            columns = ledger.known_at("egi", file, [one.row.record_id for one in page], [one.key for one in page])
            asked = {one.key for one in page}
            assert {key: run for key, run in columns.items() if key in asked} == known
            assert {key[:8] for key in columns} <= {key[:8] for key in asked}, "runs of these jobs"
            assert ledger.known("egi", {one.key: None for one in page}) == known
            going = [one for one in page if chance.random() < 0.7 and delivered.get(one.key) != one.fingerprint]
            if going:
                ledger.sent(
                    prepare(ledger, *going, progress=read_to(page[-1]), at=step), remote_id="", remote_ids={}, now=NOW
                )
                delivered |= {one.key: one.fingerprint for one in going}


def in_row_order(total: int) -> list[int]:
    return list(range(total))


def as_they_end(total: int) -> list[int]:
    """Jobs run for up to three days, rows are written when jobs are submitted, 50,000 a day, and a third of them are ours."""
    chance = random.Random(1)
    return sorted(range(0, 3 * total, 3), key=lambda row: row + chance.randrange(150_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "batch", "most"),
    [(in_row_order, 50, 27), (in_row_order, 1000, 25), (as_they_end, 170, 30)],
    ids=["a backlog to SGAS", "a backlog to APEL", "a round every five minutes"],
)
def test_a_delivered_job_takes_less_than_30_bytes_and_its_entry_120(
    tmp_path: Path, order: Callable[[int], list[int]], batch: int, most: int
) -> None:
    path = tmp_path / "publishing.db"
    total = 60_000
    rows = order(total)
    with closing(SqlLedger(SqliteDatabase(open_ledger_file(path), path))) as ledger:
        begin(ledger)
        ledger.check_numbering("egi", "a.db", lambda _: True)
        for start in range(0, total, batch):
            deliver(ledger, *(job(number, number) for number in rows[start : start + batch]), at=start)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    assert (path.stat().st_size - free * size) / total < most + 120
