"""Random rounds of totals, ended at any statement, against a memory of all runs and of all that was said."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.entry import Entry, RowId, RunKey, Usage
from publisher.model.message import MessageId, MessageRow, MonthMessage, OutboxRecord, message_of
from tests.support.ledgers import Opener, opener
from tests.support.totals_ledger import MONTH, NOW, TotalsLedger, entry, record_of, row, run

ROWS = [row("atlas"), row("cms"), row("lhcb", "ce2"), row("atlas", month=MONTH + 1)]
RUNS = range(1, 15)
ROUNDS = 12


class Killed(BaseException):
    """The process ended at a statement."""


class MortalDatabase:
    """A database whose process ends before one of its statements."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements_left = 0  # 0: for ever

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._database, name)
        return self._counted(found) if name in ("execute", "execute_many", "insert_returning_id", "stream") else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            if self.statements_left:
                self.statements_left -= 1
                if not self.statements_left:
                    raise Killed
            return call(*given)

        return counted


class Said:
    """What a message says, and the runs that wait for it."""

    def __init__(self, message: MonthMessage, posting: int) -> None:
        self.id = message.message.id
        self.rows = {sent.row: sent.usage for sent in message.rows}
        self.groups = {sent.group: sent.row for sent in message.rows}
        self.posting = posting


class Memory:
    """What counts, what was said and what waits."""

    def __init__(self) -> None:
        self.counts: dict[RunKey, Entry] = {}
        self.ever: set[RunKey] = set()
        self.sent: dict[RowId, Usage] = {}
        self.open: dict[RunKey, Entry] = {}
        self.waiting: dict[int, dict[RunKey, Entry]] = {}  # by posting
        self.messages: dict[MessageId, Said] = {}
        self.stored: set[int] = set()  # postings of which something was accepted
        self.postings = 0

    def usage(self, at: RowId) -> Usage:
        usage = Usage()
        for one in self.counts.values():
            if one.row.id == at:
                usage = usage.plus(Usage(one.jobs, one.wall_s, one.cpu_s))
        return usage

    def expected(self) -> dict[RowId, tuple[Usage, Usage]]:
        sums = {key.id: (self.usage(key.id), self.sent.get(key.id, Usage())) for key in ROWS}
        return {at: both for at, both in sums.items() if both != (Usage(), Usage())}

    def hosts(self) -> dict[tuple[int, str], int]:
        hosts = {key.id: "ce2" if "ce2" in key.fields.text else "ce1" for key in ROWS}
        return dict(Counter((one.row.month, hosts[one.row.id]) for one in self.counts.values() if one.jobs))

    def pending(self) -> set[RunKey]:
        return set(self.open).union(*self.waiting.values())

    def let_count(self, entries: dict[RunKey, Entry]) -> None:
        self.counts |= entries
        self.ever |= {run for run, one in entries.items() if one.jobs}

    def seal(self, messages: Sequence[MonthMessage]) -> None:
        self.postings += 1
        posting = self.postings
        if self.open:
            sent = {sent.row for one in messages for sent in one.rows}
            self.let_count({run: one for run, one in self.open.items() if one.row.id not in sent})
            self.waiting[posting] = {run: one for run, one in self.open.items() if one.row.id in sent}
        self.open = {}
        # Without entries each message is by itself.
        for number, one in enumerate(messages):
            alone = posting not in self.waiting
            self.messages[one.message.id] = Said(one, -posting * 100 - number if alone else posting)

    def taken(self, sent: Said) -> dict[RunKey, Entry]:
        waiting = self.waiting.get(sent.posting, {})
        found = {run: one for run, one in waiting.items() if one.row.id in sent.rows}
        for run_of in found:
            del waiting[run_of]
        return found

    def accept(self, message: MessageId) -> None:
        sent = self.messages.pop(message)
        self.stored.add(sent.posting)
        self.sent |= sent.rows
        self.let_count(self.taken(sent))

    def refuse(self, message: MessageId) -> None:
        self.taken(self.messages.pop(message))

    def give_up(self, stays: set[MessageId]) -> None:
        kept = self.stored | {self.messages[one].posting for one in stays}
        for one, sent in list(self.messages.items()):
            if sent.posting not in kept:
                del self.messages[one]
                self.waiting.pop(sent.posting, None)

    def split(self, whole: MessageId, parts: Sequence[tuple[MessageId, Sequence[OutboxRecord]]]) -> None:
        sent = self.messages.pop(whole)
        for half, records in parts:
            rows = {sent.groups[one.group]: sent.rows[sent.groups[one.group]] for one in records}
            message = MonthMessage(message_of(b"", "egi", "", 0, NOW), (), (), ())
            made = Said(message, sent.posting)
            made.id, made.rows = half, rows
            made.groups = {one.group: sent.groups[one.group] for one in records}
            self.messages[half] = made


class Story:
    """Rounds of a ledger, with a memory of what they did."""

    def __init__(self, opens: Opener, path: Path, seed: int) -> None:
        self._opens, self._path = opens, path
        self.chance = random.Random(seed)
        self.memory = Memory()
        self.deaths = 0
        self._made = 0
        self.open()

    def open(self) -> None:
        self.database = MortalDatabase(self._opens(self._path))
        self.kept = TotalsLedger.__new__(TotalsLedger)
        self.kept.database = self.database
        self.kept.ledger = sql_ledger(self.database)

    def does(self, what: Callable[[], None], then: Callable[[], None]) -> bool:
        """Do something whole, or end the process in it and begin another; gives whether it was done."""
        self.database.statements_left = self.chance.choice([0, 0, self.chance.randrange(1, 40)])
        try:
            what()
        except Killed:
            self.deaths += 1
            self.database.close()
            self.open()
            self.begin()
            return False
        self.database.statements_left = 0
        then()
        self.compare()
        return True

    def begin(self) -> None:
        """A new process: what was prepared may have been stored; what was not sealed is dropped."""
        self.kept.ledger.outbox.leave_in_doubt("egi")
        self.kept.begin()
        self.memory.open = {}
        self.compare()

    def compare(self) -> None:
        kept, memory = self.kept, self.memory
        kept.assert_is_sound()
        assert kept.totals() == memory.expected()
        found = kept.ledger.entries.recorded("egi", [run(number) for number in RUNS])
        pending = memory.pending()
        assert {one for one, it in found.items() if it.pending} == pending
        counting = {one: it.usage for one, it in found.items() if not it.pending}
        expected = {one: it for one, it in memory.counts.items() if one not in pending}
        assert counting == {one: Usage(it.jobs, it.wall_s, it.cpu_s) for one, it in expected.items()}
        assert kept.ledger.counts.by_host("egi").delivered == memory.hosts()
        state = kept.ledger.targets.state("egi")
        assert state is not None
        assert state.delivered == len(memory.ever)
        months = {month.month: month.pending for month in kept.ledger.entries.months("egi") if month.pending}
        waiting = [*memory.open.values(), *(one for all_of in memory.waiting.values() for one in all_of.values())]
        assert months == dict(Counter(one.row.month for one in waiting if one.jobs))

    def round(self) -> None:
        if self.chance.random() < 0.2:
            self.begin()
        if self.settle_all() and self.plan():
            self.send()

    def settle_all(self) -> bool:
        """What is under way goes first."""
        while whole := self.kept.ledger.outbox.outstanding("egi"):
            if not self.receipt(whole.message.id):
                return False
        return True

    def entry(self, number: int) -> Entry:
        known = self.memory.counts.get(run(number))
        if known is not None and known.jobs and self.chance.random() < 0.2:
            return entry(number, known.row, jobs=0)._replace(record=known.record)
        return entry(number, self.chance.choice(ROWS), wall_s=self.chance.randrange(1, 50) * 2)

    def plan(self) -> bool:
        for _ in range(self.chance.randrange(3)):
            page = [self.entry(number) for number in self.chance.sample(RUNS, self.chance.randrange(1, 5))]
            by_run = {one.run: one for one in page}
            if not self.does(lambda page=page: self.kept.enter(*page), lambda new=by_run: self.memory.open.update(new)):  # type: ignore[misc]
                return False
        if self.memory.open and self.chance.random() < 0.3:
            return self.withdraw()
        return True

    def withdraw(self) -> bool:
        known = {one.row.id for one in self.memory.open.values()}
        known |= {one.row.id for one in self.memory.counts.values()}
        leaving = self.chance.sample(sorted(known), self.chance.randrange(min(2, len(known)) + 1))
        entering = self.chance.sample(sorted(known), self.chance.randrange(2))

        def then() -> None:
            for one, new in list(self.memory.open.items()):
                was = self.memory.counts.get(one)
                if new.row.id in entering or (was is not None and was.row.id in leaving):
                    del self.memory.open[one]

        return self.does(lambda: self.kept.ledger.postings.withdraw("egi", leaving=leaving, entering=entering), then)

    def send(self) -> None:
        messages = self.messages()
        if self.does(lambda: self.kept.ledger.postings.seal("egi", iter(messages)), lambda: self.memory.seal(messages)):
            self.deliver()

    def messages(self) -> list[MonthMessage]:
        """Rows that runs touch, in one to three messages; rows between which runs move are in one."""
        together: dict[RowId, int] = {}
        sums: dict[RowId, Usage] = {}
        for new in self.memory.open.values():
            was = self.memory.counts.get(new.run)
            sums.setdefault(new.row.id, self.memory.usage(new.row.id))
            sums[new.row.id] = sums[new.row.id].plus(Usage(new.jobs, new.wall_s, new.cpu_s))
            if was is not None:
                sums.setdefault(was.row.id, self.memory.usage(was.row.id))
                sums[was.row.id] = sums[was.row.id].less(Usage(was.jobs, was.wall_s, was.cpu_s))
        if not sums:  # what is known, once more
            sums = {at: self.memory.usage(at) for at in self.memory.sent}
        moves = [
            (self.memory.counts[one].row.id, new.row.id)
            for one, new in self.memory.open.items()
            if one in self.memory.counts
        ]
        places = {at: self.chance.randrange(3) for at in sums}
        for _ in moves:
            for old, new_row in moves:
                places[old] = places[new_row] = min(places[old], places[new_row])
        together = {at: place for at, place in places.items() if sums[at].jobs or self.must_say(at)}
        by_place: dict[int, list[RowId]] = {}
        for at, place in together.items():
            by_place.setdefault(place, []).append(at)
        return [self.message([(at, sums[at]) for at in rows]) for rows in by_place.values()]

    def must_say(self, at: RowId) -> bool:
        """Zeros go out, or the row stays at the receiver; a run that is to count is never left out."""
        waits = any(one.row.id == at and one.jobs for one in self.memory.open.values())
        return waits or self.chance.random() < 0.5

    def message(self, rows: list[tuple[RowId, Usage]]) -> MonthMessage:
        self._made += 1
        message = message_of(b"message %d" % self._made, "egi", "apel-summary-0.4", len(rows), NOW)
        records = tuple(record_of(place, at.month) for place, (at, _) in enumerate(rows, 1))
        sent = tuple(MessageRow(place, at, usage) for place, (at, usage) in enumerate(rows, 1))
        return MonthMessage(message, tuple(sorted({at.month for at, _ in rows})), records, sent)

    def deliver(self) -> None:
        besides: set[MessageId] = set()
        while whole := self.kept.ledger.outbox.outstanding("egi", besides):
            fate = self.chance.choice(["receipt", "receipt", "doubt", "handed over", "give up"])
            if fate == "give up":
                self.give_up(besides & self.memory.messages.keys())
                return
            besides.add(whole.message.id)
            if fate == "doubt":
                in_doubt = partial(self.kept.ledger.outbox.in_doubt, whole.message, "no answer")
                if not self.does(in_doubt, lambda: None):
                    return
            elif fate == "receipt" and not self.receipt(whole.message.id, besides):
                return

    def give_up(self, stays: set[MessageId]) -> None:
        doubtful = {one for one in self.memory.messages if self.is_in_doubt(one)}
        self.does(
            lambda: self.kept.ledger.outbox.give_up("egi", stays, {}), lambda: self.memory.give_up(doubtful | stays)
        )

    def is_in_doubt(self, message: MessageId) -> bool:
        found = self.kept.ask(f"SELECT state FROM message WHERE message_id = '{message}'")
        return found == [(1,)]

    def receipt(self, message: MessageId, besides: set[MessageId] | None = None) -> bool:
        """Accept, refuse or halve the first outstanding message; gives whether the process lives on."""
        others = (besides or set()) - {message}
        whole = self.kept.ledger.outbox.outstanding("egi", others)
        assert whole is not None
        fate = self.chance.choice(["accept", "accept", "refuse", "halve"])
        if fate == "halve" and len(whole.records) > 1:
            at = self.chance.randrange(1, len(whole.records))
            self._made += 2
            halves = [
                (message_of(b"half %d %d" % (self._made, number), "egi", "apel-summary-0.4", len(part), NOW), part)
                for number, part in enumerate((whole.records[:at], whole.records[at:]))
            ]
            parts = [(one.id, records) for one, records in halves]
            return self.does(
                lambda: self.kept.ledger.outbox.split(whole, halves, narrowing=True),
                lambda: self.memory.split(whole.message.id, parts),
            )
        if fate == "refuse":
            return self.does(lambda: self.kept.refuse(whole), lambda: self.memory.refuse(whole.message.id))
        return self.does(lambda: self.kept.accept(whole.message), lambda: self.memory.accept(whole.message.id))


@pytest.fixture(params=("sqlite", "postgres"))
def opens(request: pytest.FixtureRequest) -> Opener:
    return opener(request.param, request)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_what_counts_is_what_a_memory_of_all_runs_says(opens: Opener, tmp_path: Path, seed: int) -> None:
    story = Story(opens, tmp_path / "state" / "publishing.db", seed)
    with closing(story.database):
        story.begin()
    story.open()
    for _ in range(ROUNDS):
        story.round()
    assert story.deaths
    story.database.close()
