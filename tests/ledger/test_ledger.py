"""The ledger's promises, on real files: whole writes, exact answers, small state."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.ledger.answers import Hold, MessageState
from publisher.ledger.contract import Ledger
from publisher.model.errors import Busy, LedgerError
from publisher.model.job import Epoch, JobId, JobRecord, RowRef, RunKey, SkippedJob, key_of, run_key
from publisher.model.message import (
    Message,
    Progress,
    Rendered,
    StoreCursor,
    message_of,
)
from tests.support.jobs import RECEIVER, make_job, make_record
from tests.support.ledgers import open_ledger, open_to_read

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "publishing.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = open_ledger(path)
    begin(opened)
    yield opened
    opened.close()


def begin(
    ledger: Ledger, target: str = "egi", *, rule: str = "month", start: int | None = 100, digest: str = "d"
) -> None:
    begins = None if start is None else Epoch(start)
    ledger.targets.begin_round(target, start_rule=rule, start=begins, selection_digest=digest, receiver=RECEIVER)


def job(number: int, local_id: str | None = None) -> JobRecord:
    return make_job(
        job_id=JobId(f"job{number}"),
        local_id=str(number) if local_id is None else local_id,
        row=RowRef(database="a.db", record_id=number),
        ended_at=Epoch(1_000_000 + number),
    )


def runs(*jobs: JobRecord) -> list[RunKey]:
    return [one.run_key for one in jobs]


def test_opening_it_again_leaves_the_locks_of_this_process(path: Path, ledger: Ledger) -> None:
    """Several targets have it open at once: a stranger who could lock it all would delete the WAL under them."""
    open_ledger(path).close()
    stranger = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'rb+') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 512, 0x40000000)\n"  # SQLite's lock bytes
    )
    done = subprocess.run([sys.executable, "-c", stranger, str(path)], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in done.stderr


def rendered(*jobs: JobRecord) -> list[Rendered]:
    return [make_record(one, f"<{one.job_id}>".encode()) for one in jobs]


def message(records: list[Rendered], target: str = "egi", made_at: datetime = NOW) -> Message:
    payload = b"".join(one.content for one in records)
    return message_of(payload, target, "car", len(records), made_at)


def deliver(ledger: Ledger, *jobs: JobRecord, target: str = "egi") -> Message:
    records = rendered(*jobs)
    sent = message(records, target)
    ledger.outbox.prepare(sent, records, Progress(), "p")
    ledger.outbox.sent(sent, remote_id="17", remote_ids={}, now=NOW)
    return sent


def test_a_prepared_message_is_known_outstanding_and_survives_the_process(ledger: Ledger, path: Path) -> None:
    records = rendered(job(1), job(2))
    prepared = message(records)
    ledger.outbox.prepare(prepared, records, Progress(cursor=StoreCursor("mark", 2, "wanted")), "p")
    ledger.close()
    again = open_ledger(path)
    outstanding = again.outbox.outstanding("egi")
    assert outstanding is not None
    assert outstanding.message == prepared
    assert outstanding.state is MessageState.PREPARED
    assert [(record.job_id, record.content_bytes) for record in outstanding.records] == [("job1", 6), ("job2", 6)]
    known = again.entries.recorded("egi", runs(job(1), job(3)))
    assert set(known) == {job(1).run_key}
    assert not known[job(1).run_key].counts
    assert again.positions.cursor("egi") == StoreCursor("mark", 2, "wanted")
    again.close()


def test_settling_counts_once_and_moves_the_last_end(ledger: Ledger) -> None:
    sent = deliver(ledger, job(1), job(2))
    ledger.outbox.sent(sent, remote_id="18", remote_ids={}, now=NOW)
    state = ledger.targets.state("egi")
    assert state is not None
    assert (state.delivered, state.prepared, state.in_doubt) == (2, 0, 0)
    assert state.last_published_end == 1_000_002
    assert ledger.outbox.outstanding("egi") is None
    deliver(ledger, job(1))
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.delivered == 2


def test_doubt_is_a_state(ledger: Ledger) -> None:
    records = rendered(job(1))
    ledger.outbox.prepare(message(records), records, Progress(), "p")
    ledger.outbox.in_doubt(message(records), "the connection was lost")
    outstanding = ledger.outbox.outstanding("egi")
    assert outstanding is not None
    assert outstanding.state is MessageState.IN_DOUBT
    state = ledger.targets.state("egi")
    assert state is not None
    assert (state.prepared, state.in_doubt, state.delivered) == (0, 1, 0)


def test_halves_take_the_place_of_the_whole(ledger: Ledger) -> None:
    jobs = job(1), job(2)
    first, second = rendered(*jobs), rendered(job(3))
    ledger.outbox.prepare(message(first), first, Progress(), "p")
    ledger.outbox.prepare(message(second), second, Progress(), "p")
    whole = ledger.outbox.outstanding("egi")
    assert whole is not None
    halves = [(message(rendered(one)), whole.records[at : at + 1]) for at, one in enumerate(jobs)]
    ledger.outbox.split(whole, halves, narrowing=True)
    order = []
    while outstanding := ledger.outbox.outstanding("egi"):
        order.append((outstanding.message.payload, outstanding.narrowing))
        ledger.outbox.sent(outstanding.message, remote_id="", remote_ids={}, now=NOW)
    assert order == [(b"<job1>", True), (b"<job2>", True), (b"<job3>", False)]
    assert all(known.counts for known in ledger.entries.recorded("egi", runs(*map(job, (1, 2, 3)))).values())


def test_a_refused_message_leaves_its_records_in_quarantine_and_unknown(ledger: Ledger) -> None:
    records = rendered(job(1))
    ledger.outbox.prepare(message(records), records, Progress(), "p")
    whole = ledger.outbox.outstanding("egi")
    assert whole is not None
    ledger.outbox.refuse(whole, "refused-by-receiver", "no such thing", "p", NOW)
    assert ledger.entries.recorded("egi", runs(job(1))) == {}
    (held,) = ledger.quarantine.listed("egi")
    assert (held.job.job_id, held.job.rule, held.job.reason, held.hold) == (
        "job1",
        "refused-by-receiver",
        "no such thing",
        Hold.HELD,
    )
    assert ledger.outbox.outstanding("egi") is None


def test_quarantine_is_released_dropped_and_left(ledger: Ledger) -> None:
    skipped = [
        SkippedJob(
            row=RowRef(database="a.db", record_id=number),
            job_id=JobId(f"job{number}\udcff"),
            local_id="",
            ended_at=None,
            rule="queue-missing",
            reason="no queue \udcfe",
            fingerprint=number,
        )
        for number in (1, 2, 3)
    ]
    ledger.positions.note("egi", Progress(skipped=tuple(skipped)), "p", NOW)
    one, two, three = ledger.quarantine.listed("egi")
    assert ledger.quarantine.release([one.number]) == 1
    assert ledger.quarantine.drop([two.number, 999]) == 1
    assert [held.hold for held in ledger.quarantine.listed()] == [Hold.RELEASED, Hold.DROPPED, Hold.HELD]
    assert ledger.quarantine.held("egi", [skipped[0].key, skipped[2].key]).keys() == {one.key, three.key}
    ledger.positions.note("egi", Progress(left_quarantine=tuple(one.key for one in skipped)), "p", NOW)
    assert [held.number for held in ledger.quarantine.listed()] == [two.number]
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.quarantined == 0


def test_a_start_is_fixed_on_first_use(ledger: Ledger) -> None:
    begin(ledger, start=500)
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.start == 100
    begin(ledger, rule="all", start=None)
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.start is None


def test_another_selection_makes_a_sweep_due(ledger: Ledger) -> None:
    ledger.targets.end_round("egi", success=True, swept=True, checked="p", now=NOW)
    begin(ledger)
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.swept == NOW
    begin(ledger, digest="other")
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.swept is None
    assert state.last_success == NOW


def test_trace_finds_every_message_of_every_run(ledger: Ledger) -> None:
    begin(ledger, "other")
    first = deliver(ledger, job(1))
    second = deliver(ledger, job(1, "another"))
    third = deliver(ledger, job(1), target="other")
    deliver(ledger, job(2))
    found = ledger.outbox.trace(JobId("job1"))
    assert {(one.target, one.message_id, one.remote_id, one.digest) for one in found} == {
        ("egi", first.id, "17", first.digest),
        ("egi", second.id, "17", second.digest),
        ("other", third.id, "17", third.digest),
    }
    assert len({one.run for one in found}) == 2
    assert ledger.outbox.trace(JobId("job9")) == []


def test_every_delivery_of_many_messages_is_known(ledger: Ledger, path: Path) -> None:
    batches = [[job(start + number) for number in range(20)] for start in range(0, 1000, 20)]
    for at, batch in enumerate(batches):
        sent = message(rendered(*batch), made_at=NOW + timedelta(seconds=at))
        ledger.outbox.prepare(sent, rendered(*batch), Progress(), "p")
        ledger.outbox.sent(sent, remote_id=str(at), remote_ids={}, now=NOW)
    deliver(ledger, *(job(number) for number in range(0, 1000, 100)))
    with closing(open_to_read(path)) as reader:
        for opened in (ledger, reader):
            known = opened.entries.recorded("egi", runs(*(job(number) for number in range(-50, 1050))))
            assert set(known) == {job(number).run_key for number in range(1000)}
            assert all(one.counts for one in known.values())
            assert len(opened.outbox.trace(JobId("job100"))) == 2
            assert len(opened.outbox.trace(JobId("job101"))) == 1
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.delivered == 1000


@pytest.mark.slow
def test_state_is_small(ledger: Ledger, path: Path) -> None:
    """20 to 25 bytes a delivered job in messages of 500, and less than 120 of its entry."""
    total = 150_000
    for start in range(0, total, 500):
        batch = [job(number) for number in range(start, start + 500)]
        deliver(ledger, *batch)
    ledger.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert path.stat().st_size / total < 25 + 120


def test_files_are_private(ledger: Ledger, path: Path) -> None:
    deliver(ledger, job(1))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {name: stat.S_IMODE((path.parent / name).stat().st_mode) for name in os.listdir(path.parent)}
    assert modes == {"publishing.db": 0o600, "publishing.db-wal": 0o600, "publishing.db-shm": 0o600}


def test_one_publisher_at_a_time(ledger: Ledger, path: Path) -> None:
    other = open_ledger(path)
    with (
        ledger.locks.working_on("egi"),
        other.locks.working_on("nordic"),
        pytest.raises(Busy, match="egi"),
        other.locks.working_on("egi"),
    ):
        pass
    with other.locks.working_on("egi"):
        pass
    other.close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    open_ledger(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match=r"schema 99 is newer"):
        open_ledger(path)


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be read as one" * 20, b"SQLite format 3\0" + b"x" * 900]
)
def test_a_damaged_file_is_refused_and_untouched(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        open_ledger(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 7])
def test_another_programs_database_is_refused(path: Path, version: int) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE AccountingTargets (TargetID TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(LedgerError, match="not a publishing database"):
        open_ledger(path)


def test_reading_makes_no_file(path: Path) -> None:
    with closing(open_to_read(path)) as asked:
        assert asked.targets.state("egi") is None
    assert not path.exists()


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LedgerError, match="state is not a directory; choose another file for `state`"):
        open_ledger(tmp_path / "state" / "publishing.db")


def test_keys_of_rows_without_a_job_id_are_their_own() -> None:
    one, two = (
        SkippedJob(
            row=RowRef(database="a.db", record_id=number),
            job_id=JobId(""),
            local_id="",
            ended_at=None,
            rule="no-job-id",
            reason="",
            fingerprint=0,
        )
        for number in (1, 2)
    )
    assert one.key != two.key
    assert one.key != key_of(run_key(0, "", ""))


def test_a_job_dropped_while_it_is_set_aside_again_stays_dropped(ledger: Ledger) -> None:
    skipped = SkippedJob(
        row=RowRef(database="a.db", record_id=1),
        job_id=JobId("job1"),
        local_id="",
        ended_at=None,
        rule="queue-missing",
        reason="no queue",
        fingerprint=1,
    )
    ledger.positions.note("egi", Progress(skipped=(skipped,)), "p", NOW)
    (held,) = ledger.quarantine.listed("egi")
    ledger.quarantine.drop([held.number])
    ledger.positions.note("egi", Progress(skipped=(skipped,)), "p", NOW)
    assert [one.hold for one in ledger.quarantine.of_job(JobId("job1"))] == [Hold.DROPPED]
