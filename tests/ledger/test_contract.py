"""What every ledger promises, whatever database it is kept in: each implementation runs through all of it.

A dry run answers as the ledger does that it reads, and goes on as if it had written; it keeps nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.answers import Hold, MessageState, SentMessage
from publisher.ledger.contract import Ledger
from publisher.ledger.sql.dry_run import dry_run_ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.scratch import ScratchEntries
from publisher.model.entry import RowKey, Usage
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, JobRecord, RowRef, RunKey, SkippedJob
from publisher.model.message import (
    LearntLimit,
    Message,
    MessageId,
    MessageRow,
    MonthMessage,
    OutboxRecord,
    Progress,
    Rendered,
    StoreCursor,
    SyncMessage,
    WindowMark,
    message_of,
)
from publisher.model.receiver import OTHERS, WaitingRun
from publisher.model.totals import BY_JURA, InheritedMonth
from tests.support.jobs import RECEIVER, make_job, make_record
from tests.support.ledgers import opener
from tests.support.totals_ledger import TotalsLedger, entry, row

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MONTH = 2026 * 12 + 10
END = Epoch(1_794_000_000)  # in that month

DATABASES = ("sqlite", "postgres")
ATLAS, CMS, OTHER = row(), row("cms"), row("other")


@pytest.fixture(params=DATABASES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    opens = opener(request.param, request)
    opened = Kept(lambda path: sql_ledger(opens(path)), tmp_path / "state" / "publishing.db")
    yield opened
    opened.ledger.close()


@pytest.fixture(params=[(kind, dry_run) for kind in DATABASES for dry_run in (False, True)], ids=str)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    kind, dry_run = request.param
    database = opener(kind, request, to_read=dry_run)(tmp_path / "state" / "publishing.db")
    opened = dry_run_ledger(database, ScratchEntries()) if dry_run else sql_ledger(database)
    begin(opened)
    yield opened
    opened.close()


class Kept:
    """A ledger that can be closed and opened again."""

    def __init__(self, opener: Callable[[Path], Ledger], path: Path) -> None:
        self._opener = opener
        self._path = path
        self.ledger = opener(path)
        begin(self.ledger)

    def again(self) -> Ledger:
        self.ledger.close()
        self.ledger = self._opener(self._path)
        return self.ledger


def begin(ledger: Ledger, rule: str = "month", start: int = 100) -> None:
    ledger.targets.begin_round("egi", start_rule=rule, start=Epoch(start), selection_digest="d", receiver=RECEIVER)


def job(number: int) -> JobRecord:
    return make_job(
        job_id=JobId(f"job{number}"),
        local_id=str(number),
        row=RowRef(database="a.db", record_id=number),
        ended_at=Epoch(END + number),
    )


def runs(*jobs: JobRecord) -> list[RunKey]:
    return [one.run_key for one in jobs]


def rendered(*jobs: JobRecord) -> list[Rendered]:
    return [make_record(one, one.job_id.encode()) for one in jobs]


def prepare(
    ledger: Ledger, *jobs: JobRecord, progress: Progress | None = None, before: SentMessage | None = None
) -> Message:
    records = rendered(*jobs)
    message = message_of(b"".join(one.content for one in records), "egi", "car", len(records), NOW)
    ledger.outbox.prepare(message, records, progress or Progress(), "policy", before)
    return message


def says(*rows: tuple[RowKey, Usage]) -> MonthMessage:
    """A message of totals with a record a row."""
    payload = repr(rows).encode()
    records = tuple(outbox_record(place, place) for place in range(1, len(rows) + 1))
    sent = tuple(MessageRow(place, key.id, usage) for place, (key, usage) in enumerate(rows, 1))
    message = message_of(payload, "egi", "apel-summary", len(rows), NOW)
    return MonthMessage(message, (MONTH,), records, sent)


def outbox_record(number: int, place: int = 0) -> OutboxRecord:
    return OutboxRecord(
        row=RowRef(database="", record_id=0),
        job_id=JobId(f"row {number}"),
        local_id="",
        ended_at=END,
        fingerprint=0,
        content_bytes=1,
        submit_host="ce",
        group=place,
    )


# Every implementation


@pytest.mark.parametrize("kind", DATABASES)
def test_a_transaction_in_which_something_is_raised_leaves_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whatever it is, not only the database's own errors."""
    database = opener(kind, request)(tmp_path / "state" / "publishing.db")
    ledger = sql_ledger(database)
    begin(ledger)
    with suppress(KeyboardInterrupt), database.atomic():
        database.execute("UPDATE target SET delivered = 7")
        raise KeyboardInterrupt
    state = ledger.targets.state("egi")
    assert state is not None
    assert state.delivered == 0
    ledger.close()


def test_a_new_ledger_knows_nothing_and_says_so(ledger: Ledger) -> None:
    asked = runs(job(1))
    assert ledger.targets.state("other") is None
    assert not ledger.entries.recorded("egi", asked)
    assert not ledger.quarantine.held("egi", [job(1).key])
    assert ledger.outbox.outstanding("egi") is None
    assert ledger.positions.cursor("other") is None
    assert ledger.positions.window_progress("egi", "w") is None
    assert ledger.targets.limit("egi") is None
    assert ledger.targets.took_over("egi") is None
    assert not list(ledger.quarantine.listed())
    assert not ledger.outbox.trace(job(1).job_id)
    assert not ledger.entries.months("egi")
    assert not ledger.counts.by_host("egi").delivered


def test_a_round_begins_with_the_rule_that_it_is_given(ledger: Ledger) -> None:
    state = ledger.targets.begin_round(
        "nordugrid", start_rule="all", start=None, selection_digest="s", receiver=RECEIVER
    )
    assert (state.target, state.start_rule, state.start) == ("nordugrid", "all", None)
    assert (state.delivered, state.prepared, state.in_doubt, state.last_success) == (0, 0, 0, None)


def test_the_lock_of_a_target_is_let_go_of(ledger: Ledger) -> None:
    for _ in range(2):
        with ledger.locks.working_on("egi"):
            pass


def test_a_message_that_was_sent_is_not_outstanding(ledger: Ledger) -> None:
    message = prepare(ledger, job(1))
    ledger.outbox.sent(message, remote_id="17", remote_ids={}, now=NOW)
    ledger.outbox.sent(message, remote_id="17", remote_ids={}, now=NOW)
    assert ledger.outbox.outstanding("egi") is None


def test_a_message_is_settled_with_the_one_that_follows(kept: Kept) -> None:
    first = prepare(kept.ledger, job(1), job(2))
    before = SentMessage(first, "17", {}, NOW)
    second = prepare(kept.ledger, job(3), before=before)
    left = kept.again().outbox.outstanding("egi")
    assert left is not None
    assert left.message.id == second.id
    state = kept.ledger.targets.state("egi")
    assert state is not None
    assert (state.delivered, state.prepared) == (2, 1)
    known = kept.ledger.entries.recorded("egi", runs(job(1), job(2), job(3)))
    assert [known[job(number).run_key].counts for number in (1, 2, 3)] == [True, True, False]
    assert [one.remote_id for one in kept.ledger.outbox.trace(job(2).job_id)] == ["17"]
    prepare(kept.ledger, job(4), before=before)
    state = kept.ledger.targets.state("egi")
    assert state is not None
    assert (state.delivered, state.prepared) == (2, 2), "asking twice changes nothing"


def test_a_message_that_cannot_be_written_down_leaves_the_one_before_as_it_was(kept: Kept) -> None:
    first = prepare(kept.ledger, job(1))
    records = rendered(job(2))
    records[0] = records[0]._replace(
        counts_for=records[0].counts_for._replace(wall_s=2**80)
    )  # more than a column of the ledger holds
    with pytest.raises((LedgerError, OverflowError, struct.error)):
        kept.ledger.outbox.prepare(
            first._replace(id=MessageId("another")), records, Progress(), "policy", SentMessage(first, "17", {}, NOW)
        )
    left = kept.ledger.outbox.outstanding("egi")
    assert left is not None
    assert left.message.id == first.id
    kept.ledger.outbox.sent(first, remote_id="17", remote_ids={}, now=NOW)
    assert kept.again().outbox.outstanding("egi") is None
    assert set(kept.ledger.entries.recorded("egi", runs(job(1), job(2)))) == {job(1).run_key}


def test_what_waits_is_kept_in_the_place_of_what_waited(kept: Kept) -> None:
    one, others = waiting_run(1), WaitingRun(OTHERS, "a mark", jobs=7)
    for runs_now in ([one, others], [waiting_run(2), one._replace(mark="another")], []):
        kept.ledger.positions.wait("egi", runs_now)
        assert sorted(kept.ledger.positions.waiting("egi")) == sorted(runs_now)
    assert kept.ledger.positions.waiting("unknown") == []


def waiting_run(number: int) -> WaitingRun:
    found = job(number)
    names = found.job_id, found.local_id, found.ended_at
    return WaitingRun(found.run_key, "a mark", found.values_digest, *names, wall_s=60, cpu_s=30)


def test_rows_that_runs_were_entered_for_are_told(ledger: Ledger) -> None:
    ledger.postings.enter("egi", [entry(1), entry(2), entry(3, CMS)], "settings", NOW)
    ledger.postings.enter("egi", [entry(4)], "settings", NOW)
    rows = {row.key: row for row in ledger.entries.rows("egi", MONTH)}
    assert rows.keys() == {ATLAS, CMS}
    assert {(row.counts, row.sent, row.format) for row in rows.values()} == {(Usage(), Usage(), "")}
    assert not ledger.entries.rows("egi", MONTH + 1)


def test_messages_of_totals_go_out_in_their_order(ledger: Ledger) -> None:
    ledger.postings.enter("egi", [entry(1), entry(2, CMS)], "settings", NOW)
    messages = [says((ATLAS, Usage(1, 60, 30))), says((CMS, Usage(1, 60, 30)))]
    ledger.postings.seal("egi", iter(messages))
    for one in messages:
        found = ledger.outbox.outstanding("egi")
        assert found is not None
        assert found.message.payload == one.message.payload
        ledger.outbox.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert ledger.outbox.outstanding("egi") is None


def test_what_is_withdrawn_or_discarded_is_asked_for_by_nobody(ledger: Ledger) -> None:
    ledger.postings.enter("egi", [entry(1), entry(2, CMS)], "settings", NOW)
    ledger.postings.withdraw("egi", entering=[ATLAS.id])
    ledger.postings.discard("egi")
    assert not ledger.entries.recorded("egi", [entry(1).run, entry(2).run])
    ledger.entries.go_on_as_records("egi", [MONTH])


def test_what_another_publisher_left_counts_and_was_said(ledger: Ledger) -> None:
    for part in ((entry(1), entry(2, CMS)), (entry(2, CMS), entry(3))):
        ledger.entries.adopt("egi", InheritedMonth(MONTH, "apel-summary-0.2", totals=True, entries=part, hosts={}))
    two = Usage(2, 120, 60)
    rows = {row.key: (row.counts, row.sent, row.first_end, row.last_end) for row in ledger.entries.rows("egi", MONTH)}
    assert rows[ATLAS] == (two, two, entry(1).record.ended_at, entry(3).record.ended_at)
    assert ledger.entries.recorded("egi", [entry(1).run])[entry(1).run].settings == BY_JURA
    (month,) = ledger.entries.months("egi")
    assert (month.counts.jobs, month.sent.jobs, month.pending, month.format) == (3, 3, 0, "apel-summary-0.2")
    assert month.unsent == 2, "both rows are said again by us"


def test_of_single_records_of_another_publisher_nothing_was_said(ledger: Ledger) -> None:
    ledger.entries.adopt("egi", InheritedMonth(MONTH, "car", totals=False, entries=(entry(1),), hosts={}))
    (month,) = ledger.entries.months("egi")
    assert (month.counts.jobs, month.sent, month.format, month.unsent) == (1, Usage(), "", 0)


def test_messages_of_counts_are_outstanding_until_they_are_sent(ledger: Ledger) -> None:
    message = message_of(b"counts", "egi", "apel-sync", 1, NOW)
    ledger.outbox.prepare_sync(
        "egi", [SyncMessage(message=message, counts=(((MONTH, "ce"), 3),), records=(outbox_record(1),))]
    )
    found = ledger.outbox.outstanding("egi")
    assert found is not None
    assert found.message.id == message.id
    assert ledger.outbox.outstanding("egi", [message.id]) is None


# What is kept is there for the next process


def test_a_prepared_message_is_found_whole_by_the_next_process(kept: Kept) -> None:
    message = prepare(kept.ledger, job(1), job(2))
    found = kept.again().outbox.outstanding("egi")
    assert found is not None
    assert (found.message, found.state) == (message, MessageState.PREPARED)
    assert [record.job_id for record in found.records] == ["job1", "job2"]
    assert not kept.ledger.entries.recorded("egi", runs(job(1)))[job(1).run_key].counts
    kept.ledger.outbox.leave_in_doubt("egi")
    found = kept.ledger.outbox.outstanding("egi")
    assert found is not None
    assert found.state is MessageState.IN_DOUBT


def test_a_sent_message_is_counted_once_and_traced(kept: Kept) -> None:
    message = prepare(kept.ledger, job(1), job(2))
    for _ in range(2):
        kept.ledger.outbox.sent(message, remote_id="17", remote_ids={"job1": "71"}, now=NOW)
    state = kept.again().targets.state("egi")
    assert state is not None
    assert (state.delivered, state.last_published_end) == (2, END + 2)
    (delivery,) = kept.ledger.outbox.trace(JobId("job1"))
    assert (delivery.message_id, delivery.state, delivery.row_id) == (message.id, MessageState.SENT, "71")
    assert kept.ledger.entries.recorded("egi", runs(*map(job, (1, 2, 3)))).keys() == {job(1).run_key, job(2).run_key}


def test_the_last_end_stays_when_an_earlier_one_follows(kept: Kept) -> None:
    for number in (3, 1):
        kept.ledger.outbox.sent(prepare(kept.ledger, job(number)), remote_id="17", remote_ids={}, now=NOW)
    state = kept.ledger.targets.state("egi")
    assert state is not None
    assert (state.delivered, state.last_published_end) == (2, END + 3)


def test_a_message_that_is_given_up_never_was(kept: Kept) -> None:
    """Its target goes on from where it stood before."""
    for change in (5, 9):
        prepare(kept.ledger, job(change), progress=Progress(cursor=StoreCursor("mark", change, "wanted", 3)))
    first = kept.ledger.outbox.outstanding("egi")
    assert first is not None
    kept.ledger.outbox.give_up("egi", [first.message.id], {})
    again = kept.again()
    left = again.outbox.outstanding("egi")
    assert left is not None
    assert left.message == first.message
    assert not again.entries.recorded("egi", runs(job(9)))
    assert again.positions.cursor("egi") == StoreCursor("mark", 5, "wanted", 3)
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.again().positions.cursor("egi") == StoreCursor("mark", 0, "wanted", 3)


def test_halves_of_a_message_go_back_as_far_as_the_whole(kept: Kept) -> None:
    prepare(kept.ledger, job(1), job(2), progress=Progress(cursor=StoreCursor("mark", 5, "wanted")))
    whole = kept.ledger.outbox.outstanding("egi")
    assert whole is not None
    halves = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
    kept.ledger.outbox.split(whole, halves, narrowing=False)
    kept.ledger.outbox.give_up("egi", [halves[0][0].id], {})
    assert kept.again().positions.cursor("egi") == StoreCursor("mark", 0, "wanted")


def test_what_a_message_of_before_carried_moves_no_cursor_on(kept: Kept) -> None:
    prepare(kept.ledger, job(1), progress=Progress(cursor=StoreCursor("mark", 5, "wanted")))
    kept.ledger.positions.note("egi", Progress(cursor=StoreCursor("other", 0, "wanted", 5)), "policy", NOW)
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.again().positions.cursor("egi") == StoreCursor("other", 0, "wanted", 5)


def test_a_refused_message_leaves_its_records_in_quarantine_and_unknown(kept: Kept) -> None:
    prepare(kept.ledger, job(1))
    found = kept.ledger.outbox.outstanding("egi")
    assert found is not None
    kept.ledger.outbox.refuse(found, "refused-by-receiver", "no", "policy", NOW)
    assert not kept.again().entries.recorded("egi", runs(job(1)))
    (held,) = kept.ledger.quarantine.listed("egi")
    assert (held.job.job_id, held.hold, held.job.reason) == ("job1", Hold.HELD, "no")
    assert kept.ledger.quarantine.release([held.number]) == 1
    assert kept.ledger.quarantine.drop([held.number]) == 1
    (held,) = kept.ledger.quarantine.of_job(JobId("job1"))
    assert held.hold is Hold.DROPPED


def test_halves_take_the_place_of_the_whole(kept: Kept) -> None:
    prepare(kept.ledger, job(1), job(2))
    last = prepare(kept.ledger, job(3))
    whole = kept.ledger.outbox.outstanding("egi")
    assert whole is not None
    halves = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
    kept.ledger.outbox.split(whole, halves, narrowing=True)
    queue = []
    while found := kept.again().outbox.outstanding("egi"):
        queue.append(found.message.id)
        kept.ledger.outbox.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert queue == [halves[0][0].id, halves[1][0].id, last.id]
    assert all(run.counts for run in kept.ledger.entries.recorded("egi", runs(*map(job, (1, 2, 3)))).values())


def test_a_database_keeps_all_that_is_known_of_it_under_another_name(kept: Kept) -> None:
    row = RowRef(database="/old/sources/hpc.db", record_id=7)
    skipped = SkippedJob(row, JobId("held"), "1", END, "rule", "reason", 5)
    progress = Progress(
        skipped=(skipped,),
    )
    kept.ledger.databases.found("egi", {row.database: 5, "/other.db": 6}, NOW)
    kept.ledger.positions.note("egi", progress, "policy", NOW)
    kept.ledger.databases.rename("egi", row.database, "hpc")
    again = kept.again()
    named = row._replace(database="hpc")
    assert [(one.file, one.inode) for one in again.databases.known("egi")] == [("/other.db", 6), ("hpc", 5)]
    assert [one.job.row for one in again.quarantine.listed("egi")] == [named]


def test_rows_of_a_message_in_doubt_are_of_the_database_under_its_other_name(kept: Kept) -> None:
    prepare(kept.ledger, job(1))
    kept.ledger.outbox.leave_in_doubt("egi")
    kept.ledger.databases.rename("egi", "a.db", "hpc")
    found = kept.again().outbox.outstanding("egi")
    assert found is not None
    assert [one.row for one in found.records] == [RowRef(database="hpc", record_id=1)]
    kept.ledger.outbox.refuse(found, "refused-by-receiver", "no", "policy", NOW)
    assert [one.job.row.database for one in kept.ledger.quarantine.listed("egi")] == ["hpc"]


def test_progress_is_kept_with_its_message_and_without_one(kept: Kept) -> None:
    row = RowRef(database="a.db", record_id=7)
    skipped = SkippedJob(
        row=row, job_id=JobId("bad"), local_id="", ended_at=None, rule="r", reason="why", fingerprint=1
    )
    progress = Progress(
        cursor=StoreCursor("mark", 9, "wanted", 4),
        skipped=(skipped,),
        window_mark=WindowMark("w", END, 7, "mark"),
    )
    kept.ledger.positions.note("egi", progress, "policy", NOW)
    kept.ledger.targets.learn_limit("egi", LearntLimit(payload_bytes=5, wire="a", learnt_at=NOW))
    kept.ledger.targets.learn_limit("egi", LearntLimit(payload_bytes=4, wire="b", learnt_at=NOW))
    again = kept.again()
    assert again.positions.cursor("egi") == progress.cursor
    assert again.quarantine.held("egi", [skipped.key]).keys() == {skipped.key}
    assert again.positions.window_progress("egi", "w") == progress.window_mark
    assert again.targets.limit("egi") == LearntLimit(payload_bytes=4, wire="b", learnt_at=NOW)
    again.positions.finish_window("egi", "w")
    again.positions.note("egi", Progress(left_quarantine=(skipped.key,)), "policy", NOW)
    assert again.positions.window_progress("egi", "w") is None
    assert not list(again.quarantine.listed())


def test_a_start_is_fixed_until_its_rule_changes(kept: Kept) -> None:
    begin(kept.ledger, "month", 200)
    state = kept.again().targets.state("egi")
    assert state is not None
    assert state.start == 100
    begin(kept.ledger, "all", 300)
    state = kept.ledger.targets.state("egi")
    assert state is not None
    assert state.start == 300


def test_counts_are_told_once_they_are_heard(kept: Kept) -> None:
    message = message_of(b"counts", "egi", "apel-sync", 1, NOW)
    counts = SyncMessage(message=message, counts=(((MONTH, "ce"), 3),), records=(outbox_record(1),))
    kept.ledger.outbox.prepare_sync("egi", [counts])
    assert not kept.ledger.counts.by_host("egi").reported
    kept.ledger.outbox.sent(message, remote_id="", remote_ids={}, now=NOW)
    reported = kept.again().counts.by_host("egi")
    assert (reported.reported, reported.last_reported_at) == ({(MONTH, "ce"): 3}, NOW)


# A dry run


@pytest.fixture(params=DATABASES)
def doubtful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """Of a ledger in which two rows were accepted; a message in doubt says one of them, and a third."""
    path = tmp_path / "state" / "publishing.db"
    with closing(opener(request.param, request)(path)) as database:
        kept = TotalsLedger(database)
        kept.send(entry(1), entry(2, CMS))
        kept.enter(entry(3), entry(4, OTHER), entry(2, OTHER))
        kept.seal(kept.says((ATLAS, Usage(2, 120, 60)), (CMS, Usage()), (OTHER, Usage(2, 120, 60))))
        kept.ledger.outbox.leave_in_doubt("egi")
    with closing(dry_run_ledger(opener(request.param, request, to_read=True)(path), ScratchEntries())) as ledger:
        begin(ledger)
        yield ledger


def test_a_dry_run_takes_what_is_in_doubt_as_told(doubtful: Ledger) -> None:
    runs = [entry(number).run for number in range(1, 5)]
    assert {run for run, one in doubtful.entries.recorded("egi", runs).items() if one.pending} == set(runs[1:])
    found = doubtful.outbox.outstanding("egi")
    assert found is not None
    doubtful.outbox.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert doubtful.outbox.outstanding("egi") is None
    assert not any(one.pending for one in doubtful.entries.recorded("egi", runs).values())
    two, end = Usage(2, 120, 60), entry(0).record.ended_at
    rows = {row.key: (row.counts, row.sent, row.first_end, row.last_end) for row in doubtful.entries.rows("egi", MONTH)}
    assert rows[ATLAS] == (two, two, end + 1, end + 3)
    assert rows[CMS][:2] == (Usage(), Usage())
    assert rows[OTHER] == (two, two, end + 2, end + 4)
    (month,) = doubtful.entries.months("egi")
    assert (month.counts.jobs, month.sent.jobs, month.pending, month.unsent) == (4, 4, 0, 0)
    assert month.format == "apel-summary-0.4"


def test_a_dry_run_forgets_no_row_that_it_made(doubtful: Ledger) -> None:
    new = row("lhcb")
    doubtful.postings.enter("egi", [entry(5, new), entry(6, ATLAS)], "settings", NOW)
    rows = {one.key: one.counts.jobs for one in doubtful.entries.rows("egi", MONTH)}
    assert rows == {ATLAS: 1, CMS: 1, OTHER: 0, new: 0}
    doubtful.postings.seal("egi", iter([says((new, Usage(1, 60, 30)))]))
    first = doubtful.outbox.outstanding("egi")
    assert first is not None
    second = doubtful.outbox.outstanding("egi", [first.message.id])
    assert first.state is MessageState.IN_DOUBT
    assert second is not None
    assert second.state is MessageState.PREPARED
