"""Rules 1 and 2 in the ledger: a receiver has a number, a name and an address; a shadow's entries move once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.answers import TargetState
from publisher.ledger.checks import disagreements
from publisher.ledger.contract import Ledger
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.dry_run import dry_run_ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read
from publisher.ledger.sqlite.scratch import ScratchEntries
from publisher.model.entry import SHADOW, Entry, ReceiverName, Usage
from publisher.model.errors import ConfigError
from publisher.model.job import Epoch, JobId
from publisher.model.message import Message, Progress, message_of
from tests.support.jobs import make_entry, make_job, make_record
from tests.support.ledgers import opener
from tests.support.totals_ledger import TotalsLedger

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OCTOBER, NOVEMBER = Epoch(1_791_000_000), Epoch(1_794_000_000)
ONE = ReceiverName("https://ams.example.org, project accounting, topic one", kind="ams")
TWO = ReceiverName("https://ams.example.org, project accounting, topic two", kind="ams")
REHEARSED = ReceiverName("shadow egi", kind=SHADOW)
Opens = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgres"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Opens the database of one site."""
    opened = opener(request.param, request)
    with ExitStack() as closed_later:
        yield lambda: closed_later.enter_context(closing(opened(tmp_path / "state" / "publishing.db")))


def begin(ledger: Ledger | Ledger, target: str, receiver: ReceiverName) -> TargetState:
    return ledger.targets.begin_round(target, start_rule="all", start=None, selection_digest="", receiver=receiver)


def prepare(ledger: Ledger, target: str, *numbers: int, end: Epoch = NOVEMBER) -> Message:
    jobs = [make_job(job_id=JobId(f"job{number}"), local_id=str(number), ended_at=end) for number in numbers]
    records = [make_record(one, one.job_id.encode()) for one in jobs]
    message = message_of(b"".join([one.content for one in records]), target, "car", len(records), NOW)
    ledger.outbox.prepare(message, records, Progress(), "policy")
    return message


def deliver(ledger: Ledger, target: str, *numbers: int, end: Epoch = NOVEMBER) -> Message:
    message = prepare(ledger, target, *numbers, end=end)
    ledger.outbox.sent(message, remote_id="", remote_ids={}, now=NOW)
    return message


def totals(*numbers: int, end: Epoch = NOVEMBER) -> list[Entry]:
    return [make_entry(make_job(job_id=JobId(f"job{one}"), local_id=str(one), ended_at=end)) for one in numbers]


def listed(ledger: Ledger) -> list[tuple[int, str, str, int]]:
    return [
        (one.receiver.number, one.receiver.name, one.receiver.address, one.runs) for one in ledger.receivers.listed()
    ]


def known(ledger: Ledger, target: str, *numbers: int, end: Epoch = NOVEMBER) -> int:
    """How many of these runs count at the receiver of a target."""
    runs = [entry.run for entry in totals(*numbers, end=end)]
    return sum(one.counts for one in ledger.entries.recorded(target, runs).values())


# Rule 1


def test_rule_1_an_address_that_no_receiver_has_is_asked_for(opens: Opens) -> None:
    """Only of a target that has delivered; until the answer it stays where it is, and prepares nothing."""
    ledger = sql_ledger(opens())
    begin(ledger, "egi", ONE)
    deliver(ledger, "egi", 1, 2)
    with pytest.raises(ConfigError) as asked:
        begin(ledger, "egi", TWO)
    with pytest.raises(ConfigError), ledger.locks.working_on("egi", receiver=TWO):
        pass
    question = ledger.receivers.changed_address("egi", TWO)
    assert question is not None
    assert (question.runs, question.receiver.number, question.address) == (2, 1, TWO.place)
    assert str(asked.value) == question.question
    for part in ("receiver same egi", "receiver new egi", ONE.place, TWO.place, "2 runs count"):
        assert part in question.question
    assert listed(ledger) == [(1, "egi", ONE.place, 2)]
    begin(ledger, "egi", ONE)
    assert known(ledger, "egi", 1, 2) == 2


def test_rule_1_what_may_be_delivered_is_asked_for_too(opens: Opens) -> None:
    """But no message that was given up: a typing error in the first configuration asks nothing."""
    ledger = sql_ledger(opens())
    begin(ledger, "egi", ONE)
    prepare(ledger, "egi", 1)
    ledger.outbox.give_up("egi", (), {})
    begin(ledger, "egi", TWO)
    message = prepare(ledger, "egi", 1)
    ledger.outbox.in_doubt(message, "no answer")
    assert ledger.receivers.changed_address("egi", ReceiverName("elsewhere")) is not None


def test_rule_1_the_same_receiver_takes_everything_along(opens: Opens) -> None:
    """Entries, the queue, and what is in doubt; under the same number, also for its other targets."""
    ledger = sql_ledger(opens())
    for target in ("egi", "second"):
        begin(ledger, target, ONE)
    deliver(ledger, "egi", 1)
    deliver(ledger, "second", 2)
    waiting = prepare(ledger, "second", 3)
    ledger.receivers.readdress("egi", TWO)
    for target in ("egi", "second"):
        assert begin(ledger, target, TWO).swept is None
    assert known(ledger, "egi", 1, 2) == known(ledger, "second", 1, 2) == 2
    found = ledger.outbox.outstanding("egi")
    assert found is not None
    assert found.message.id == waiting.id
    assert listed(ledger) == [(1, "egi", TWO.place, 2)]
    assert ledger.receivers.changed_address("egi", ONE) is not None, "the old address is a new one now"


def test_rule_1_another_place_gets_everything(opens: Opens) -> None:
    ledger = sql_ledger(opens())
    begin(ledger, "egi", ONE)
    deliver(ledger, "egi", 1, 2)
    ledger.targets.end_round("egi", success=True, swept=True, checked=None, now=NOW)
    ledger.receivers.enter("egi", TWO)
    state = begin(ledger, "egi", TWO)
    assert state.swept is None, "every row is looked at once"
    assert known(ledger, "egi", 1, 2) == 0
    assert ledger.counts.by_host("egi").delivered == {}
    assert ledger.entries.months("egi") == []
    deliver(ledger, "egi", 1)
    assert listed(ledger) == [(1, "egi", ONE.place, 2), (2, "egi-2", TWO.place, 1)]
    assert list(ledger.counts.by_host("egi").delivered.values()) == [1]
    begin(ledger, "egi", ONE)
    assert known(ledger, "egi", 1, 2) == 2, "back at an address that a receiver has, nothing is asked"
    assert disagreements(opens()) == []


def test_rule_1_targets_meet_where_another_one_leads(opens: Opens) -> None:
    """Without a question; what the receiver has is known, and everything is compared anew."""
    ledger = sql_ledger(opens())
    begin(ledger, "egi", ONE)
    begin(ledger, "second", TWO)
    deliver(ledger, "egi", 1)
    deliver(ledger, "second", 1, 2)
    ledger.targets.end_round("egi", success=True, swept=True, checked=None, now=NOW)
    assert begin(ledger, "egi", ONE).swept is not None
    assert begin(ledger, "egi", TWO).swept is None
    assert known(ledger, "egi", 1, 2) == 2


def test_rule_1_a_message_stays_in_the_queue_of_its_receiver(opens: Opens) -> None:
    """Wherever its target leads by now: it is neither sent elsewhere, nor given up, nor in doubt elsewhere."""
    ledger = sql_ledger(opens())
    begin(ledger, "egi", ONE)
    begin(ledger, "second", TWO)
    message = prepare(ledger, "egi", 1, 2)
    begin(ledger, "egi", TWO)
    assert ledger.outbox.outstanding("egi") is None
    ledger.outbox.leave_in_doubt("egi")
    ledger.outbox.give_up("egi", (), {})
    state = ledger.targets.state("egi")
    assert state is not None
    assert (state.prepared, state.in_doubt) == (0, 0)
    assert [one.in_doubt for one in ledger.receivers.listed()] == [2, 0]
    begin(ledger, "heir", ONE)
    found = ledger.outbox.outstanding("heir")
    assert found is not None
    assert (found.message.id, found.message.target) == (message.id, "egi")
    half = [message_of(part, "egi", "car", 1, NOW) for part in (b"a", b"b")]
    ledger.outbox.split(found, [(half[0], found.records[:1]), (half[1], found.records[1:])], narrowing=False)
    assert ledger.outbox.outstanding("egi") is None
    for one in half:
        ledger.outbox.sent(one, remote_id="", remote_ids={}, now=NOW)
    assert (known(ledger, "heir", 1, 2), known(ledger, "egi", 1, 2)) == (2, 0)


def test_rule_1_a_dry_run_asks_too_and_looks_where_the_target_leads(tmp_path: Path) -> None:
    path = tmp_path / "state" / "publishing.db"
    with closing(sql_ledger(open_database(path))) as ledger:
        begin(ledger, "egi", ONE)
        begin(ledger, "second", TWO)
        deliver(ledger, "egi", 1)
        deliver(ledger, "second", 2)
        ledger.targets.end_round("egi", success=True, swept=True, checked=None, now=NOW)
    with closing(dry_run_ledger(open_database_to_read(path), ScratchEntries())) as rehearsed:
        with (
            pytest.raises(ConfigError, match="receiver same egi"),
            rehearsed.locks.working_on("egi", receiver=ReceiverName("elsewhere")),
        ):
            pass
        with rehearsed.locks.working_on("egi", receiver=TWO):
            assert begin(rehearsed, "egi", TWO).swept is None
            runs = [entry.run for entry in totals(1, 2)]
            assert set(rehearsed.entries.recorded("egi", runs)) == {runs[1]}


def test_rule_1_a_second_host_sees_the_same_receivers(opens: Opens) -> None:
    one, other = sql_ledger(opens()), sql_ledger(opens())
    begin(one, "egi", ONE)
    deliver(one, "egi", 1)
    assert other.receivers.changed_address("egi", TWO) is not None
    other.receivers.readdress("egi", TWO)
    assert one.receivers.changed_address("egi", TWO) is None
    with pytest.raises(ConfigError), one.locks.working_on("egi", receiver=ONE):
        pass
    assert listed(one) == listed(other) == [(1, "egi", TWO.place, 1)]


# Rule 2


def test_rule_2_what_a_shadow_recorded_moves_once(opens: Opens) -> None:
    """In one step, when its target is a shadow no more: balances, counts by host, and who is known."""
    database = opens()
    ledger = sql_ledger(database)
    begin(ledger, "egi", REHEARSED)
    deliver(ledger, "egi", 1, 2, end=OCTOBER)
    deliver(ledger, "egi", 3)
    counted = ledger.counts.by_host("egi").delivered
    moved = begin(ledger, "egi", ONE).moved
    assert [(one.month, one.runs, one.shadow.number, one.receiver.number) for one in moved] == [
        (24321, 2, 1, 2),
        (24322, 1, 1, 2),
    ]
    assert "another publisher sent them" in moved[0].text
    assert listed(ledger) == [(1, "egi", REHEARSED.place, 0), (2, "egi-2", ONE.place, 3)]
    assert known(ledger, "egi", 1, 2, end=OCTOBER) == 2
    assert ledger.counts.by_host("egi").delivered == counted
    assert begin(ledger, "egi", ONE).moved == ()
    assert disagreements(database) == []
    begin(ledger, "egi", REHEARSED)
    assert begin(ledger, "egi", ONE).moved == [], "what it has not recorded again does not move again"
    assert known(ledger, "egi", 1, 2, end=OCTOBER) == 2


def test_rule_2_a_month_that_the_receiver_has_from_us_stays(opens: Opens) -> None:
    """Also one of which something is on its way; a run that it has in another month stays as it is there."""
    database = opens()
    ledger = sql_ledger(database)
    begin(ledger, "second", ONE)
    deliver(ledger, "second", 9)
    prepare(ledger, "second", 8, end=Epoch(OCTOBER - 31 * 86_400))
    begin(ledger, "egi", REHEARSED)
    deliver(ledger, "egi", 1, end=Epoch(OCTOBER - 31 * 86_400))
    deliver(ledger, "egi", 2, 9, end=OCTOBER)
    deliver(ledger, "egi", 3)
    assert [(one.month, one.runs) for one in begin(ledger, "egi", ONE).moved] == [(24321, 1)]
    assert known(ledger, "egi", 2, end=OCTOBER) == 1
    assert known(ledger, "egi", 1, 3) == 0
    (nine,) = totals(9)
    assert ledger.entries.recorded("egi", [nine.run])[nine.run].record.ended_at == NOVEMBER
    assert [runs for *_, runs in listed(ledger)] == [2, 2]
    assert disagreements(database) == []


def test_rule_2_the_trace_of_a_job_shows_what_moved(opens: Opens) -> None:
    ledger = sql_ledger(opens())
    begin(ledger, "egi", REHEARSED)
    message = deliver(ledger, "egi", 1)
    begin(ledger, "egi", ONE)
    first, then = ledger.outbox.trace(JobId("job1"))
    assert (first.message_id, first.state) == (message.id, "sent")
    assert (then.state, then.format) == ("counted", "car")
    assert then.reason == "recorded by its shadow (receiver 1); another publisher sent it"


def test_rule_2_totals_of_a_shadow_are_those_that_the_receiver_was_told(opens: Opens) -> None:
    """So a later job adds to the row, which is sent whole."""
    database = opens()
    kept = TotalsLedger(database)
    kept.begin("rehearsal", ReceiverName("shadow rehearsal", kind=SHADOW))
    kept.send(*totals(1, 2), target="rehearsal")
    (was,) = kept.ledger.entries.rows("rehearsal", 24322)
    kept.begin("rehearsal", TWO)
    (row,) = kept.ledger.entries.rows("rehearsal", 24322)
    assert row == was
    assert (row.counts.jobs, row.sent, row.format) == (2, row.counts, "apel-summary-0.4")
    (month,) = kept.ledger.entries.months("rehearsal")
    assert (month.format, month.unsent, month.counts.jobs) == ("apel-summary-0.4", 0, 2)
    kept.send(*totals(3), target="rehearsal")
    (row,) = kept.ledger.entries.rows("rehearsal", 24322)
    assert row.counts == row.sent == Usage(3, *row.counts[1:])
    assert disagreements(database) == []
