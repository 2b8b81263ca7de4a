"""What single records count for is written down with them, and counts once they are accepted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.ledger.answers import SentMessage
from publisher.ledger.checks import disagreements
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database
from publisher.model.entry import ReceiverName, RecordedRuns, run_key
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, JobRecord, RowRef
from publisher.model.message import Message, OutboxRecord, Progress, Rendered, SyncMessage, message_of
from tests.support.jobs import RECEIVER, make_entry, make_job, make_record
from tests.support.ledgers import opener

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
END = Epoch(1_794_000_000)  # 2026-11-06
MONTH_S = 30 * 86_400
SGAS = ReceiverName("SGAS sgas.example.org", keeps_first=True)
HISTORY, COUNTS, PENDING, LEFT, DELETED = range(5)


class Kept:
    """A ledger, and the tables below it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = sql_ledger(database)
        self.sent = 0
        self.begin("egi")

    def begin(self, target: str, receiver: ReceiverName = RECEIVER) -> None:
        self.ledger.targets.begin_round(target, start_rule="all", start=None, selection_digest="", receiver=receiver)

    def prepare(self, *records: Rendered, target: str = "egi") -> Message:
        self.sent += 1
        message = message_of(b"%d" % self.sent, target, "car", len(records), NOW)
        self.ledger.outbox.prepare(message, list(records), Progress(), "policy")
        return message

    def accept(self, message: Message) -> None:
        self.ledger.outbox.sent(message, remote_id="", remote_ids={}, now=NOW)

    def deliver(self, *records: Rendered, target: str = "egi") -> None:
        self.accept(self.prepare(*records, target=target))

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with self.database.reading():
            return [tuple(row) for row in self.database.execute(question).fetchall()]

    def states(self) -> Counter[int]:
        return Counter(state for (state,) in self.ask("SELECT state FROM entry"))

    def balances(self) -> list[tuple[Any, ...]]:
        return self.ask(
            "SELECT place, month, fields, jobs, wall_s, cpu_s, first_end, last_end FROM balance"
            " JOIN row_key ON row_key.id = balance.row_key JOIN receiver ON receiver.id = row_key.receiver"
            " WHERE jobs <> 0 ORDER BY place, month, fields"
        )

    def is_sound(self) -> bool:
        return disagreements(self.database) == []


@pytest.fixture(params=("sqlite", "postgres"))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    path = tmp_path / "state" / "publishing.db"
    with closing(opener(request.param, request)(path)) as database:
        opened = Kept(database)
        yield opened
        assert opened.is_sound(), disagreements(database)


def job(number: int, **values: Any) -> JobRecord:
    own = {"job_id": JobId(f"job{number}"), "local_id": str(number), "ended_at": Epoch(END + number), "wall_s": 60}
    place = RowRef(database="a.db", record_id=number)
    return make_job(**{**own, "cpu_user_s": 50, "cpu_kernel_s": number, "row": place, **values})


def text(vo: str = "atlas", site: str = "EXAMPLE-SITE") -> str:
    return f'{{"Site":"{site}","VO":"{vo}"}}'


def test_a_run_key_begins_with_the_submission_and_tells_job_and_run_apart() -> None:
    key = run_key(END, "job", "7")
    assert key[:4] == END.to_bytes(4, "big")
    assert len(key) == 15
    assert run_key(END, "job", "8")[:11] == key[:11]
    assert run_key(END, "other", "7")[11:] == key[11:]
    assert len({key, run_key(END, "job", "8"), run_key(END, "other", "7"), run_key(END + 1, "job", "7")}) == 4
    assert run_key(-5, "job", "7")[:4] == bytes(4)
    assert run_key(2**40, "job", "7")[:4] == b"\xff" * 4


def test_nothing_counts_before_it_is_accepted(kept: Kept) -> None:
    message = kept.prepare(make_record(job(1)), make_record(job(2)))
    assert kept.states() == {PENDING: 2}
    assert kept.balances() == []
    kept.accept(message)
    assert kept.states() == {COUNTS: 2}
    assert kept.balances() == [(RECEIVER.place, 24322, text(), 2, 120, 103, END + 1, END + 2)]


def test_one_message_settles_while_the_next_is_prepared(kept: Kept) -> None:
    first, records = kept.prepare(make_record(job(1))), [make_record(job(2))]
    second = message_of(b"second", "egi", "car", 1, NOW)
    kept.ledger.outbox.prepare(second, records, Progress(), "policy", SentMessage(first, "", {}, NOW))
    assert kept.states() == {COUNTS: 1, PENDING: 1}
    assert [row[3] for row in kept.balances()] == [1]
    kept.accept(second)
    assert [row[3] for row in kept.balances()] == [2]


def test_what_was_certainly_not_stored_is_forgotten(kept: Kept) -> None:
    kept.deliver(make_record(job(1)))
    kept.prepare(make_record(job(2)), make_record(job(1, wall_s=90)))
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.states() == {COUNTS: 1}
    assert kept.balances() == [(RECEIVER.place, 24322, text(), 1, 60, 51, END + 1, END + 1)]
    assert kept.ask("SELECT count(*) FROM posting") == [(1,)]


def test_what_is_in_doubt_stays_pending_until_it_is_accepted(kept: Kept) -> None:
    message = kept.prepare(make_record(job(1)))
    kept.ledger.outbox.in_doubt(message, "no answer")
    assert kept.states() == {PENDING: 1}
    kept.accept(message)
    assert kept.states() == {COUNTS: 1}


def test_a_refused_record_counts_nothing_and_its_neighbours_do(kept: Kept) -> None:
    kept.prepare(*(make_record(job(number)) for number in range(1, 5)))
    whole = kept.ledger.outbox.outstanding("egi")
    assert whole is not None
    parts: Sequence[Any] = whole.records[:1], whole.records[1:]
    halves = [(message_of(b"half %d" % at, "egi", "car", len(part), NOW), part) for at, part in enumerate(parts)]
    kept.ledger.outbox.split(whole, halves, narrowing=True)
    assert kept.states() == {PENDING: 4}
    one = kept.ledger.outbox.outstanding("egi")
    assert one is not None
    kept.ledger.outbox.refuse(one, "refused-by-receiver", "no", "policy", NOW)
    assert kept.states() == {PENDING: 3}
    assert kept.is_sound()
    kept.accept(halves[1][0])
    assert kept.states() == {COUNTS: 3}
    assert [row[3:] for row in kept.balances()] == [(3, 180, 50 * 3 + 2 + 3 + 4, END + 2, END + 4)]


def test_a_changed_run_replaces_what_it_counted_for(kept: Kept) -> None:
    kept.deliver(make_record(job(1)), make_record(job(2)))
    kept.deliver(make_record(job(2, wall_s=90)))
    assert kept.states() == {COUNTS: 2, HISTORY: 1}
    assert [row[3:6] for row in kept.balances()] == [(2, 150, 103)]


def test_a_run_that_moves_to_another_row_leaves_the_first(kept: Kept) -> None:
    """With the ends of the runs that stay there."""
    kept.deliver(*(make_record(job(number)) for number in (1, 2, 3)))
    kept.deliver(make_record(job(3), vo="cms"))
    assert kept.balances() == [
        (RECEIVER.place, 24322, text(), 2, 120, 103, END + 1, END + 2),
        (RECEIVER.place, 24322, text("cms"), 1, 60, 53, END + 3, END + 3),
    ]
    kept.deliver(make_record(job(1), vo="cms"), make_record(job(2), vo="cms"))
    assert [row[2:4] for row in kept.balances()] == [(text("cms"), 3)]


@pytest.mark.parametrize("other", [{"site": "OTHER-SITE"}, {"prefix": "hpc-"}], ids=["another site", "another prefix"])
def test_rule_5_a_record_under_another_key_goes_on_counting(kept: Kept, other: dict[str, str]) -> None:
    kept.deliver(make_record(job(1)))
    kept.deliver(make_record(job(1))._replace(counts_for=make_entry(job(1), **other)))
    assert kept.states() == {LEFT: 1, COUNTS: 1}
    assert sum(row[3] for row in kept.balances()) == 2


def test_which_run_came_first_outlives_the_deletion_of_what_was_left(kept: Kept) -> None:
    """Both count still, under another key: the later one of accelerators keeps an id of its own."""
    runs = [job(1), job(1, local_id="again")]
    for run in runs:
        kept.deliver(make_record(run))
    kept.deliver(*(make_record(run)._replace(counts_for=make_entry(run, site="OTHER-SITE")) for run in runs))
    kept.ledger.left.confirm_deleted("egi", 24322)
    assert sum(row[3] for row in kept.balances()) == 2
    known = RecordedRuns(kept.ledger.entries.recorded("egi", [run.run_key for run in runs]))
    assert [known.is_later_run(run.run_key) for run in runs] == [False, True]


def test_keys_are_compared_as_the_receiver_does(kept: Kept) -> None:
    kept.deliver(make_record(job(1)))
    kept.deliver(make_record(job(1), site="Example-Site"))
    assert kept.states() == {HISTORY: 1, COUNTS: 1}
    assert [row[3] for row in kept.balances()] == [1]


def test_rule_4_a_receiver_that_keeps_the_first_counts_the_first(kept: Kept) -> None:
    kept.begin("nordic", SGAS)
    kept.deliver(make_record(job(1)), target="nordic")
    kept.deliver(make_record(job(1, wall_s=90)), make_record(job(2)), target="nordic")
    assert kept.states() == {COUNTS: 2, HISTORY: 1}
    assert kept.balances() == [(SGAS.place, 24322, text(), 2, 120, 103, END + 1, END + 2)]


def test_targets_of_one_place_are_one_receiver(kept: Kept) -> None:
    """Renamed, or with another VO: what one sent is known when the other sends it."""
    kept.begin("renamed")
    kept.deliver(make_record(job(1)))
    kept.deliver(make_record(job(1)), target="renamed")
    assert kept.states() == {COUNTS: 1, HISTORY: 1}
    assert [row[3] for row in kept.balances()] == [1]
    kept.begin("other", ReceiverName("elsewhere"))
    kept.begin("renamed", ReceiverName("elsewhere"))
    kept.deliver(make_record(job(1)), target="renamed")
    assert kept.states() == {COUNTS: 2, HISTORY: 1}


def test_runs_of_a_restarted_job_count_each(kept: Kept) -> None:
    kept.deliver(make_record(job(1)))
    kept.deliver(make_record(job(1, local_id="77", ended_at=Epoch(END + 500))))
    assert kept.states() == {COUNTS: 2}
    assert [row[3] for row in kept.balances()] == [2]


def test_months_have_rows_of_their_own(kept: Kept) -> None:
    kept.deliver(make_record(job(1)), make_record(job(2, ended_at=Epoch(END + MONTH_S))))
    assert [row[1] for row in kept.balances()] == [24322, 24323]


def test_what_a_failed_transaction_entered_is_asked_for_again(kept: Kept) -> None:
    """Numbers of rows that were rolled back belong to others by then."""
    with pytest.raises(LedgerError):
        kept.prepare(make_record(job(1), vo="first"), make_record(job(2)), make_record(job(2)))
    kept.deliver(make_record(job(3), vo="second"))
    kept.deliver(make_record(job(4), vo="first"))
    assert [row[2:4] for row in kept.balances()] == [(text("first"), 1), (text("second"), 1)]


@pytest.mark.parametrize("seed", range(20))
def test_rule_14_balances_are_what_a_memory_of_all_runs_says(kept: Kept, seed: int) -> None:
    """Random messages that are accepted, given up, cut, refused, or in doubt for a while."""
    chance = random.Random(seed)
    counting: dict[tuple[str, int, str], tuple[str, int]] = {}
    waiting: list[tuple[Message, list[tuple[int, str, int]]]] = []
    for _ in range(30):
        runs = [
            (number, chance.choice(["atlas", "cms"]), chance.randrange(1, 9)) for number in chance.sample(range(12), 3)
        ]
        records = [make_record(job(number, wall_s=wall), vo=vo) for number, vo, wall in runs]
        message = kept.prepare(*records)
        fate = chance.choice(["accept", "accept", "give up", "doubt"])
        if fate == "give up":
            kept.ledger.outbox.give_up("egi", [one.id for one, _ in waiting], {})
            continue
        waiting.append((message, runs))
        if fate == "doubt":
            kept.ledger.outbox.in_doubt(message, "no answer")
            continue
        for one, its_runs in waiting:
            kept.accept(one)
            counting |= {("egi", number, ""): (vo, wall) for number, vo, wall in its_runs}
        waiting.clear()
    expected: Counter[str] = Counter()
    for vo, wall in counting.values():
        expected.update({f"{vo} jobs": 1, f"{vo} wall": wall})
    found: Counter[str] = Counter()
    for _, _, fields, jobs, wall, *_ in kept.balances():
        vo = "atlas" if fields == text() else "cms"
        found.update({f"{vo} jobs": jobs, f"{vo} wall": wall})
    assert found == expected


# What a check finds


def test_messages_of_counts_have_no_entries(kept: Kept) -> None:
    record = OutboxRecord(RowRef("", 0), JobId("count"), "", END, 0, 7, submit_host="ce1")
    message = message_of(b"count 1", "egi", "apel-sync-0.1", 1, NOW)
    kept.ledger.outbox.prepare_sync("egi", [SyncMessage(message, (((24322, "ce1"), 1),), (record,))])
    kept.accept(message)
    assert kept.ask("SELECT count(*) FROM posting") == [(0,)]
    assert kept.is_sound()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE balance SET jobs = jobs + 1", "rows whose balance is not the sum of their entries"),
        ("UPDATE balance SET wall_s = wall_s + 1", "rows whose balance is not the sum of their entries"),
        ("DELETE FROM balance", "rows whose balance is not the sum of their entries"),
        ("UPDATE entry SET state = 0", "rows whose balance is not the sum of their entries"),
        ("UPDATE balance SET last_end = last_end + 1", "rows whose first and last end are not those of their entries"),
        ("UPDATE entry SET local_id = '9'", "postings with damaged entries"),
        ("UPDATE entry SET cpu_s = cpu_s + 1", "postings with damaged entries"),
        ("DELETE FROM entry", "postings with damaged entries"),
        ("DELETE FROM posting", "entries of unknown postings"),
        ("DELETE FROM row_key", "entries of unknown rows"),
        ("DELETE FROM scope", "entries of unknown scopes"),
        ("UPDATE posting SET entries = 7", "postings with damaged entries"),
        ("UPDATE entry SET state = 2", "pending entries of settled messages"),
        (
            "UPDATE entry SET run = x'00' WHERE local_id = '1'",
            "postings with damaged entries",
        ),
    ],
)
def test_a_check_names_what_does_not_agree(tmp_path: Path, damage: str, found: str) -> None:
    with closing(open_database(tmp_path / "state" / "publishing.db")) as database:
        kept = Kept(database)
        kept.deliver(make_record(job(1)), make_record(job(2)))
        assert kept.is_sound()
        with database.atomic():
            database.execute(damage)
        assert found in [one.what for one in disagreements(database)]
