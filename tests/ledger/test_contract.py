"""What every ledger promises, whatever database it is kept in: each implementation runs through all of it.

A dry run answers as the ledger does that it reads, and goes on as if it had written; it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from publisher.ledger.contract import (
    Hold,
    Ledger,
    MessageState,
    MonthMessage,
    OutboxRecord,
    SentMessage,
    SyncMessage,
)
from publisher.ledger.dry_run import DryRunLedger
from publisher.ledger.generation import GenerationFile
from publisher.ledger.sql.ledger import SqlLedger
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, JobKey, JobRecord, RowRef, SkippedJob
from publisher.model.message import (
    Cursor,
    LearntLimit,
    Message,
    MessageId,
    OpenRow,
    PlacedRuns,
    Progress,
    RecordColumns,
    WindowMark,
    message_of,
)
from publisher.model.totals import InheritedMonth, KeyTotal, SummaryGroup, SummaryKey
from tests.support.jobs import RECEIVER, make_job, make_record
from tests.support.ledgers import opener

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MONTH = 2026 * 12 + 10
END = Epoch(1_794_000_000)  # in that month

DATABASES = ("sqlite", "postgres")


@pytest.fixture(params=DATABASES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    opens = opener(request.param, request)
    opened = Kept(lambda path: SqlLedger(opens(path)), tmp_path / "state" / "publishing.db")
    yield opened
    opened.ledger.close()


@pytest.fixture(params=[(kind, dry_run) for kind in DATABASES for dry_run in (False, True)], ids=str)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    kind, dry_run = request.param
    database = opener(kind, request, to_read=dry_run)(tmp_path / "state" / "publishing.db")
    opened = DryRunLedger(database) if dry_run else SqlLedger(database)
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
    ledger.begin_round("egi", start_rule=rule, start=Epoch(start), selection_digest="d", receiver=RECEIVER)


def job(number: int) -> JobRecord:
    return make_job(
        job_id=JobId(f"job{number}"),
        local_id=str(number),
        row=RowRef(database="a.db", record_id=number),
        ended_at=Epoch(END + number),
    )


def runs(*jobs: JobRecord) -> dict[JobKey, RowRef | None]:
    return {one.key: one.row for one in jobs}


def rendered(*jobs: JobRecord) -> RecordColumns:
    return RecordColumns.of(make_record(one, one.job_id.encode()) for one in jobs)


def prepare(
    ledger: Ledger, *jobs: JobRecord, progress: Progress | None = None, before: SentMessage | None = None
) -> Message:
    records = rendered(*jobs)
    message = message_of(b"".join(records.contents), "egi", "car", len(records), NOW)
    ledger.prepare(message, records, progress or Progress(), "policy", before)
    return message


def group(jobs: int) -> SummaryGroup:
    return SummaryGroup(
        year=2026,
        month=11,
        site="SITE",
        user="/CN=u",
        vo="atlas",
        vo_group="/atlas",
        role="",
        submit_host="ce",
        infrastructure="grid",
        kind="",
        benchmarks=(),
        node_count=1,
        cpu_count=1,
        earliest_end=END,
        latest_end=END,
        wall_s=10,
        cpu_s=5,
        normalised_wall_micro=0,
        normalised_cpu_micro=0,
        jobs=jobs,
    )


def outbox_record(number: int, place: int = 0) -> OutboxRecord:
    return OutboxRecord(
        row=RowRef(database="", record_id=0),
        job_id=JobId(f"row {number}"),
        local_id="",
        ended_at=END,
        fingerprint=0,
        content_bytes=1,
        first_time=False,
        submit_host="ce",
        group=place,
    )


def count(ledger: Ledger, *jobs: int) -> None:
    """A group of the month with so many jobs, or some of them, each with a core more."""
    ledger.count(
        "egi",
        PlacedRuns(),
        {MONTH: [group(number)._replace(cpu_count=at) for at, number in enumerate(jobs, 1)]},
        dirty={},
        clean=[MONTH],
        by_settings=[],
        progress=Progress(),
        basis="b",
        policy_digest="policy",
        now=NOW,
    )


# Every implementation


@pytest.mark.parametrize("kind", DATABASES)
def test_a_transaction_in_which_something_is_raised_leaves_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whatever it is, not only the database's own errors."""
    database = opener(kind, request)(tmp_path / "state" / "publishing.db")
    ledger = SqlLedger(database)
    begin(ledger)
    with suppress(KeyboardInterrupt), database.atomic():
        database.execute("UPDATE target SET delivered = 7")
        raise KeyboardInterrupt
    state = ledger.target("egi")
    assert state is not None
    assert state.delivered == 0
    ledger.close()


def test_a_new_ledger_knows_nothing_and_says_so(ledger: Ledger) -> None:
    asked = runs(job(1))
    assert ledger.target("other") is None
    assert not ledger.known("egi", asked)
    assert not ledger.other_runs("egi", asked)
    assert not ledger.held("egi", [job(1).key])
    assert ledger.outstanding("egi") is None
    assert ledger.cursor("egi", "a.db") is None
    assert ledger.window_progress("egi", "w") is None
    assert ledger.limit("egi") is None
    assert ledger.took_over("egi") is None
    assert not ledger.open_rows("egi")
    assert not list(ledger.quarantine())
    assert not ledger.trace(job(1).job_id)
    assert not ledger.months("egi")
    assert not ledger.counts("egi").delivered


def test_a_round_begins_with_the_rule_that_it_is_given(ledger: Ledger) -> None:
    state = ledger.begin_round("nordugrid", start_rule="all", start=None, selection_digest="s", receiver=RECEIVER)
    assert (state.target, state.start_rule, state.start, state.selection_digest) == ("nordugrid", "all", None, "s")
    assert (state.delivered, state.prepared, state.in_doubt, state.last_success) == (0, 0, 0, None)


def test_the_lock_of_a_target_is_let_go_of(ledger: Ledger) -> None:
    for _ in range(2):
        with ledger.working_on("egi"):
            pass


def test_a_message_that_was_sent_is_not_outstanding(ledger: Ledger) -> None:
    message = prepare(ledger, job(1))
    ledger.sent(message, remote_id="17", remote_ids={}, now=NOW)
    ledger.sent(message, remote_id="17", remote_ids={}, now=NOW)
    assert ledger.outstanding("egi") is None


def test_a_message_is_settled_with_the_one_that_follows(kept: Kept) -> None:
    first = prepare(kept.ledger, job(1), job(2))
    before = SentMessage(first, "17", {}, NOW)
    second = prepare(kept.ledger, job(3), before=before)
    left = kept.again().outstanding("egi")
    assert left is not None
    assert left.message.id == second.id
    state = kept.ledger.target("egi")
    assert state is not None
    assert (state.delivered, state.prepared) == (2, 1)
    known = kept.ledger.known("egi", runs(job(1), job(2), job(3)))
    assert [known[job(number).key].settled for number in (1, 2, 3)] == [True, True, False]
    assert [one.remote_id for one in kept.ledger.trace(job(2).job_id)] == ["17"]
    prepare(kept.ledger, job(4), before=before)
    state = kept.ledger.target("egi")
    assert state is not None
    assert (state.delivered, state.prepared) == (2, 2), "asking twice changes nothing"


def test_a_message_that_cannot_be_written_down_leaves_the_one_before_as_it_was(kept: Kept) -> None:
    first = prepare(kept.ledger, job(1))
    records = rendered(job(2))
    records.record_ids[0] = 2**80  # more than a column of the ledger holds
    with pytest.raises((LedgerError, OverflowError)):
        kept.ledger.prepare(
            first._replace(id=MessageId("another")), records, Progress(), "policy", SentMessage(first, "17", {}, NOW)
        )
    left = kept.ledger.outstanding("egi")
    assert left is not None
    assert left.message.id == first.id
    kept.ledger.sent(first, remote_id="17", remote_ids={}, now=NOW)
    assert kept.again().outstanding("egi") is None
    assert set(kept.ledger.known("egi", runs(job(1), job(2)))) == {job(1).key}


def test_counted_months_are_told_as_they_were_counted(ledger: Ledger) -> None:
    count(ledger, 3)
    (state,) = ledger.months("egi")
    assert (state.month, state.jobs, state.basis, state.dirty, state.accepted_digest) == (MONTH, 3, "b", False, "")
    assert list(ledger.counted("egi", MONTH)) == [group(3)]
    assert not ledger.accepted("egi", MONTH)


def test_messages_of_months_go_out_in_their_order(ledger: Ledger) -> None:
    count(ledger, 3)
    messages = [message_of(f"part {part}".encode(), "egi", "apel-summary", 1, NOW) for part in (1, 2)]
    ledger.prepare_months(
        "egi",
        [
            MonthMessage(message=message, months=(MONTH,), records=(outbox_record(part),))
            for part, message in enumerate(messages)
        ],
    )
    for message in messages:
        found = ledger.outstanding("egi")
        assert found is not None
        assert found.message.payload == message.payload
        ledger.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert ledger.outstanding("egi") is None


def test_of_a_month_in_parts_what_arrived_is_accepted_at_once_and_stays_so(kept: Kept) -> None:
    ledger = kept.ledger
    count(ledger, 3, 4, 5)
    messages = [message_of(f"part {part}".encode(), "egi", "apel-summary", 1, NOW) for part in (1, 2, 3)]
    ledger.prepare_months(
        "egi",
        [
            MonthMessage(message=message, months=(MONTH,), records=(outbox_record(part, part),))
            for part, message in enumerate(messages, 1)
        ],
    )
    for arrived, message in enumerate(messages[:2], 1):
        ledger.sent(message, remote_id="", remote_ids={}, now=NOW)
        assert [one.jobs for one in ledger.accepted("egi", MONTH)] == [3, 4][:arrived]
        assert ledger.months("egi")[0].accepted_digest not in ("", ledger.months("egi")[0].digest)
    ledger.give_up("egi", [], {})
    count(ledger, 6, 7, 8)
    assert [one.jobs for one in ledger.accepted("egi", MONTH)] == [3, 4]
    whole = message_of(b"whole", "egi", "apel-summary", 3, NOW)
    records = tuple(outbox_record(part, part) for part in (1, 2, 3))
    ledger.prepare_months("egi", [MonthMessage(message=whole, months=(MONTH,), records=records)])
    assert [one.jobs for one in ledger.accepted("egi", MONTH)] == [3, 4]
    ledger.sent(whole, remote_id="", remote_ids={}, now=NOW)
    assert [one.jobs for one in ledger.accepted("egi", MONTH)] == [6, 7, 8]


def test_messages_of_counts_are_outstanding_until_they_are_sent(ledger: Ledger) -> None:
    message = message_of(b"counts", "egi", "apel-sync", 1, NOW)
    ledger.prepare_sync(
        "egi", [SyncMessage(message=message, counts=(((MONTH, "ce"), 3),), records=(outbox_record(1),))]
    )
    found = ledger.outstanding("egi")
    assert found is not None
    assert found.message.id == message.id
    assert ledger.outstanding("egi", [message.id]) is None


def test_what_another_publisher_left_counts_as_accepted(ledger: Ledger) -> None:
    left = InheritedMonth(month=MONTH, format="apel-summary", groups=(group(5),), singles=(), hosts={})
    ledger.adopt("egi", left)
    (state,) = ledger.months("egi")
    assert state.accepted_jobs == 5
    assert list(ledger.accepted("egi", MONTH)) == [group(5)]


def test_keys_that_another_publisher_left_are_told_as_its_own(ledger: Ledger) -> None:
    key = SummaryKey(month=MONTH, digest=b"d", text="atlas", site="SITE")
    left = InheritedMonth(
        month=MONTH,
        format="car",
        groups=(),
        singles=(KeyTotal(key=key, jobs=2, wall_s=3, cpu_s=4),),
        hosts={},
    )
    ledger.adopt("egi", left)
    ((total, policy),) = ledger.summary_keys("egi", MONTH)
    assert (total.key.text, total.jobs, policy) == ("atlas", 2, "jura-ng")


# What is kept is there for the next process


def test_a_prepared_message_is_found_whole_by_the_next_process(kept: Kept) -> None:
    message = prepare(kept.ledger, job(1), job(2))
    found = kept.again().outstanding("egi")
    assert found is not None
    assert (found.message, found.state) == (message, MessageState.PREPARED)
    assert [record.job_id for record in found.records] == ["job1", "job2"]
    assert not kept.ledger.known("egi", runs(job(1)))[job(1).key].settled
    kept.ledger.leave_in_doubt("egi")
    found = kept.ledger.outstanding("egi")
    assert found is not None
    assert found.state is MessageState.IN_DOUBT


def test_a_sent_message_is_counted_once_and_traced(kept: Kept) -> None:
    message = prepare(kept.ledger, job(1), job(2))
    for _ in range(2):
        kept.ledger.sent(message, remote_id="17", remote_ids={"job1": "71"}, now=NOW)
    state = kept.again().target("egi")
    assert state is not None
    assert (state.delivered, state.last_published_end) == (2, END + 2)
    (delivery,) = kept.ledger.trace(JobId("job1"))
    assert (delivery.message_id, delivery.state, delivery.row_id) == (message.id, MessageState.SENT, "71")
    assert kept.ledger.known("egi", runs(*map(job, (1, 2, 3)))).keys() == {job(1).key, job(2).key}


def test_the_last_end_stays_when_an_earlier_one_follows(kept: Kept) -> None:
    for number in (3, 1):
        kept.ledger.sent(prepare(kept.ledger, job(number)), remote_id="17", remote_ids={}, now=NOW)
    state = kept.ledger.target("egi")
    assert state is not None
    assert (state.delivered, state.last_published_end) == (2, END + 3)


def test_a_message_that_is_given_up_never_was(kept: Kept) -> None:
    progress = Progress(cursors=(Cursor(database="a.db", record_id=2, anchor="job2"),))
    prepare(kept.ledger, job(1), progress=progress)
    kept.ledger.give_up("egi", [], {})
    assert kept.again().outstanding("egi") is None
    assert not kept.ledger.known("egi", runs(job(1)))
    assert [row.row.record_id for row in kept.ledger.open_rows("egi")] == [1]


def test_what_a_given_up_message_changed_of_its_keys_is_undone(kept: Kept) -> None:
    """More keys than are asked for at once, some of them new with the second message."""
    ledger = kept.ledger

    def send(numbers: range, keys: int, policy: str) -> Message:
        records = RecordColumns.of(
            record._replace(summary_key=SummaryKey(MONTH, b"%d" % (at % keys), f"key {at % keys}", "SITE"))
            for at, record in enumerate(rendered(*map(job, numbers)))
        )
        message = message_of(policy.encode(), "egi", "car", len(records), NOW)
        ledger.prepare(message, records, Progress(), policy)
        return message

    def keys() -> list[tuple[str, int, str]]:
        return sorted((total.key.text, total.jobs, policy) for total, policy in ledger.summary_keys("egi", MONTH))

    ledger.sent(send(range(1, 151), 150, "first"), remote_id="", remote_ids={}, now=NOW)
    before = keys()
    assert {one[1:] for one in before} == {(1, "first")}
    send(range(151, 311), 160, "second")
    assert {one[2] for one in keys()} == {"second"}
    ledger.give_up("egi", [], {})
    assert keys() == before


def test_keys_are_undone_whatever_is_raised_just_after_they_were_written(kept: Kept) -> None:
    def send(number: int) -> None:
        (record,) = rendered(job(number))
        key = SummaryKey(MONTH, b"digest", "key", "SITE")
        message = message_of(record.content, "egi", "car", 1, NOW)
        kept.ledger.prepare(message, RecordColumns.of([record._replace(summary_key=key)]), Progress(), "policy")
        kept.ledger.sent(message, remote_id="", remote_ids={}, now=NOW)

    class NoMemory:
        def begun(self, number: int, message_id: str) -> None:
            if number:
                raise MemoryError

    assert isinstance(kept.ledger, SqlLedger)
    send(1)
    kept.ledger._files["egi"] = cast(GenerationFile, NoMemory())
    with pytest.raises(MemoryError):
        send(2)
    kept.ledger.give_up("egi", [], {})
    assert [total.jobs for total, _ in kept.ledger.summary_keys("egi", MONTH)] == [1]


def test_a_refused_message_leaves_its_records_in_quarantine_and_unknown(kept: Kept) -> None:
    prepare(kept.ledger, job(1))
    found = kept.ledger.outstanding("egi")
    assert found is not None
    kept.ledger.refuse(found, "refused-by-receiver", "no", "policy", NOW)
    assert not kept.again().known("egi", runs(job(1)))
    (held,) = kept.ledger.quarantine("egi")
    assert (held.job.job_id, held.hold, held.job.reason) == ("job1", Hold.HELD, "no")
    assert kept.ledger.release([held.number]) == 1
    assert kept.ledger.drop([held.number]) == 1
    (held,) = kept.ledger.quarantined(JobId("job1"))
    assert held.hold is Hold.DROPPED


def test_what_a_refused_record_added_to_keys_is_undone(kept: Kept) -> None:
    """Of a row of its own, of one that it shares with the rest of its message, and of one with a later message."""
    ledger = kept.ledger

    def send(*keyed: tuple[int, str], first_time: bool = True) -> Message:
        records = RecordColumns.of(
            record._replace(summary_key=SummaryKey(MONTH, key.encode(), key, "SITE"), first_time=first_time)
            for record, (_, key) in zip(rendered(*(job(number) for number, _ in keyed)), keyed, strict=True)
        )
        message = message_of(repr(keyed).encode(), "egi", "car", len(records), NOW)
        ledger.prepare(message, records, Progress(), "policy")
        return message

    def refuse(*numbers: int) -> None:
        whole = ledger.outstanding("egi")
        assert whole is not None
        pieces = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
        ledger.split(whole, pieces, narrowing=True)
        for number in range(1, len(pieces) + 1):
            piece = ledger.outstanding("egi")
            assert piece is not None
            if number in numbers:
                ledger.refuse(piece, "refused-by-receiver", "no", "policy", NOW)
            else:
                ledger.sent(piece.message, remote_id="", remote_ids={}, now=NOW)

    def keys() -> dict[str, int]:
        return {total.key.text: total.jobs for total, _ in ledger.summary_keys("egi", MONTH)}

    send((1, "alone"), (2, "shared"), (3, "shared"), (4, "later"))
    last = send((5, "later"))
    assert keys() == {"alone": 1, "shared": 2, "later": 2}
    refuse(1, 2, 4)
    assert keys() == {"shared": 1, "later": 1}
    again = send((3, "shared"), first_time=False)
    ledger.sent(last, remote_id="", remote_ids={}, now=NOW)
    found = ledger.outstanding("egi")
    assert found is not None
    assert found.message.id == again.id
    ledger.refuse(found, "refused-by-receiver", "no", "policy", NOW)
    assert keys() == {"shared": 1, "later": 1}, "it was delivered before"
    send((1, "alone"))
    ledger.give_up("egi", [], {})
    assert keys() == {"shared": 1, "later": 1}
    send((6, "both"), (7, "first"))
    send((8, "both"), (9, "first"))
    send((10, "first"))
    refuse(1, 2)
    refuse(1, 2)
    assert keys() == {"shared": 1, "later": 1, "first": 1}
    refuse(1)
    assert keys() == {"shared": 1, "later": 1}, "none of a row that was refused whole, message by message"
    send((11, "kept"), (12, "refused"))
    refuse(2)
    send((11, "kept"), first_time=False)
    ledger.give_up("egi", [], {})
    assert keys() == {"shared": 1, "later": 1, "kept": 1}, "what was delivered before stays"


def test_halves_take_the_place_of_the_whole(kept: Kept) -> None:
    prepare(kept.ledger, job(1), job(2))
    last = prepare(kept.ledger, job(3))
    whole = kept.ledger.outstanding("egi")
    assert whole is not None
    halves = [(message_of(one.job_id.encode(), "egi", "car", 1, NOW), (one,)) for one in whole.records]
    kept.ledger.split(whole, halves, narrowing=True)
    queue = []
    while found := kept.again().outstanding("egi"):
        queue.append(found.message.id)
        kept.ledger.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert queue == [halves[0][0].id, halves[1][0].id, last.id]
    assert all(run.settled for run in kept.ledger.known("egi", runs(*map(job, (1, 2, 3)))).values())


def test_a_database_keeps_all_that_is_known_of_it_under_another_name(kept: Kept) -> None:
    row = RowRef(database="/old/sources/hpc.db", record_id=7)
    skipped = SkippedJob(row, JobId("held"), "1", END, "rule", "reason", 5)
    progress = Progress(
        cursors=(Cursor(database=row.database, record_id=9, anchor="job9"),),
        opened=(OpenRow(row=row, finished_seen_at=None),),
        skipped=(skipped,),
        window_mark=WindowMark(window_progress="w", ended_at=END, row=row),
    )
    kept.ledger.found_databases("egi", {row.database: 5, "/other.db": 6}, NOW)
    kept.ledger.note("egi", progress, "policy", NOW)
    kept.ledger.rename_database("egi", row.database, "hpc")
    again = kept.again()
    named = row._replace(database="hpc")
    assert [(one.file, one.inode) for one in again.known_databases("egi")] == [("/other.db", 6), ("hpc", 5)]
    assert again.cursor("egi", row.database) is None
    assert again.cursor("egi", "hpc") == Cursor(database="hpc", record_id=9, anchor="job9")
    assert [one.row for one in again.open_rows("egi")] == [named]
    assert [one.job.row for one in again.quarantine("egi")] == [named]
    mark = again.window_progress("egi", "w")
    assert mark is not None
    assert mark.row == named


def test_rows_of_a_message_in_doubt_are_of_the_database_under_its_other_name(kept: Kept) -> None:
    prepare(kept.ledger, job(1))
    kept.ledger.leave_in_doubt("egi")
    kept.ledger.rename_database("egi", "a.db", "hpc")
    found = kept.again().outstanding("egi")
    assert found is not None
    assert [one.row for one in found.records] == [RowRef(database="hpc", record_id=1)]
    kept.ledger.refuse(found, "refused-by-receiver", "no", "policy", NOW)
    assert [one.job.row.database for one in kept.ledger.quarantine("egi")] == ["hpc"]


def test_progress_is_kept_with_its_message_and_without_one(kept: Kept) -> None:
    row = RowRef(database="a.db", record_id=7)
    skipped = SkippedJob(
        row=row, job_id=JobId("bad"), local_id="", ended_at=None, rule="r", reason="why", fingerprint=1
    )
    progress = Progress(
        cursors=(Cursor(database="a.db", record_id=9, anchor="x"),),
        opened=(OpenRow(row=row, finished_seen_at=None),),
        skipped=(skipped,),
        window_mark=WindowMark(window_progress="w", ended_at=END, row=row),
    )
    kept.ledger.note("egi", progress, "policy", NOW)
    kept.ledger.learn_limit("egi", LearntLimit(payload_bytes=5, wire="a", learnt_at=NOW))
    kept.ledger.learn_limit("egi", LearntLimit(payload_bytes=4, wire="b", learnt_at=NOW))
    again = kept.again()
    assert again.cursor("egi", "a.db") == progress.cursors[0]
    assert [one.row for one in again.open_rows("egi")] == [row]
    assert again.held("egi", [skipped.key]).keys() == {skipped.key}
    assert again.window_progress("egi", "w") == progress.window_mark
    assert again.limit("egi") == LearntLimit(payload_bytes=4, wire="b", learnt_at=NOW)
    again.finish_window("egi", "w")
    again.note("egi", Progress(closed=(row,), left_quarantine=(skipped.key,)), "policy", NOW)
    assert (again.open_rows("egi"), again.window_progress("egi", "w")) == ([], None)
    assert not list(again.quarantine())


def test_a_start_is_fixed_until_its_rule_changes(kept: Kept) -> None:
    begin(kept.ledger, "month", 200)
    state = kept.again().target("egi")
    assert state is not None
    assert state.start == 100
    begin(kept.ledger, "all", 300)
    state = kept.ledger.target("egi")
    assert state is not None
    assert state.start == 300


def test_months_that_arrived_whole_are_accepted(kept: Kept) -> None:
    count(kept.ledger, 3)
    message = message_of(b"month", "egi", "apel-summary", 1, NOW)
    kept.ledger.prepare_months("egi", [MonthMessage(message=message, months=(MONTH,), records=(outbox_record(1, 1),))])
    kept.ledger.sent(message, remote_id="", remote_ids={}, now=NOW)
    (state,) = kept.again().months("egi")
    assert (state.accepted_jobs, state.accepted_digest, state.accepted_format) == (3, state.digest, "apel-summary")
    assert kept.ledger.counts("egi").delivered == {(MONTH, "ce"): 3}


def test_counts_are_told_once_they_are_heard(kept: Kept) -> None:
    message = message_of(b"counts", "egi", "apel-sync", 1, NOW)
    counts = SyncMessage(message=message, counts=(((MONTH, "ce"), 3),), records=(outbox_record(1),))
    kept.ledger.prepare_sync("egi", [counts])
    assert not kept.ledger.counts("egi").reported
    kept.ledger.sent(message, remote_id="", remote_ids={}, now=NOW)
    reported = kept.again().counts("egi")
    assert (reported.reported, reported.last_reported_at) == ({(MONTH, "ce"): 3}, NOW)
