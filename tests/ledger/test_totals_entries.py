"""Runs of totals are entered page by page, sent as rows, and count once their row is accepted."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from publisher.ledger.answers import MessageState
from publisher.ledger.checks import disagreements
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import settlement
from publisher.ledger.sqlite.connection import open_database
from publisher.model.entry import Entry, MonthTotals, ReceiverName, RowFields, RowKey, Usage
from publisher.model.errors import LedgerError
from publisher.model.message import Message, MonthMessage, Progress, message_of
from publisher.model.totals import BY_JURA, InheritedMonth
from tests.support.jobs import RECEIVER, make_job, make_record
from tests.support.ledgers import instance_of, opener
from tests.support.postgres import PostgresServer
from tests.support.totals_ledger import END, MONTH, MONTH_S, NOW, TotalsLedger, entry, record_of, row, run

HISTORY, COUNTS, PENDING, LEFT, DELETED = range(5)
ATLAS, CMS, OTHER = row(), row("cms"), row("other", "ce2")
KEEPS_FIRST = ReceiverName("SGAS sgas.example.org", keeps_first=True)


@pytest.fixture(params=("sqlite", "postgres"))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TotalsLedger]:
    with closing(opener(request.param, request)(tmp_path / "state" / "publishing.db")) as database:
        opened = TotalsLedger(database)
        yield opened
        opened.assert_is_sound()


def usage(jobs: int, wall_s: int = 60) -> Usage:
    """So many runs of equal length."""
    return Usage(jobs, jobs * wall_s, jobs * wall_s // 2)


def delivered(kept: TotalsLedger, target: str = "egi") -> int:
    state = kept.ledger.targets.state(target)
    assert state is not None
    return state.delivered


# The open posting


def test_pages_go_into_one_open_posting(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2))
    kept.enter(entry(3, CMS))
    assert kept.ask("SELECT entries, settings, sealed FROM posting") == [(3, "now", False)]
    assert kept.states() == {PENDING: 3}
    assert kept.totals() == {}
    assert [(month.month, month.pending, month.counts) for month in kept.ledger.entries.months("egi")] == [
        (MONTH, 3, Usage())
    ]


def test_nothing_is_entered_for_a_page_without_runs(kept: TotalsLedger) -> None:
    kept.enter()
    assert kept.number("SELECT count(*) FROM posting") == 0


def test_a_run_comes_once_in_an_open_posting(kept: TotalsLedger) -> None:
    """Twice in a page, in a later page beside new runs, equal or otherwise: the later one is kept."""
    kept.enter(entry(1), entry(1, wall_s=61), entry(2))
    assert kept.ledger.entries.recorded("egi", [run(1)])[run(1)].usage == usage(1, 61)
    kept.enter(entry(1, CMS, wall_s=70), entry(3), entry(4))
    kept.assert_is_sound()
    kept.enter(entry(2), entry(1, wall_s=80), entry(5))
    kept.assert_is_sound()
    kept.enter(entry(2), entry(3))
    assert kept.number("SELECT entries FROM posting") == 5
    found = kept.ledger.entries.recorded("egi", [run(number) for number in range(1, 6)])
    assert {one.run: one.usage.wall_s for one in found.values()} == {
        run(1): 80,
        **{run(number): 60 for number in range(2, 6)},
    }


def test_rule_12_a_round_begins_without_what_was_never_sealed(kept: TotalsLedger) -> None:
    """Also of another target of the receiver, which may be this one under its former name."""
    kept.enter(entry(1))
    assert set(kept.ledger.entries.recorded("egi", [run(1)])) == {run(1)}
    kept.begin("other")
    assert kept.number("SELECT count(*) FROM posting") + kept.number("SELECT count(*) FROM entry") == 0
    kept.enter(entry(2), target="other")
    kept.begin()
    assert not kept.ledger.entries.recorded("egi", [run(1), run(2)])


def test_what_a_failed_page_entered_is_asked_for_again(kept: TotalsLedger) -> None:
    """Numbers of rows that were rolled back belong to others by then."""
    bad = entry(2, OTHER)._replace(wall_s=2**80)
    with pytest.raises((LedgerError, OverflowError, struct.error)):
        kept.enter(entry(1, CMS), bad)
    kept.send(entry(3, ATLAS))
    kept.send(entry(4, CMS))
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), CMS.id: (usage(1), usage(1))}


def test_runs_that_leave_or_enter_rows_are_withdrawn(kept: TotalsLedger) -> None:
    kept.send(entry(1), entry(2), entry(3, CMS))
    kept.enter(entry(1, CMS), entry(2, OTHER), entry(3, OTHER), entry(4, OTHER), entry(5))
    kept.ledger.postings.withdraw("egi", leaving=[ATLAS.id])
    waiting = {
        one.run for one in kept.ledger.entries.recorded("egi", list(map(run, range(1, 6)))).values() if one.pending
    }
    assert waiting == {run(3), run(4), run(5)}
    kept.assert_is_sound()
    kept.ledger.postings.withdraw("egi", entering=[OTHER.id])
    waiting = {
        one.run for one in kept.ledger.entries.recorded("egi", list(map(run, range(1, 6)))).values() if one.pending
    }
    assert waiting == {run(5)}
    kept.assert_is_sound()
    kept.ledger.postings.withdraw("egi", leaving=[CMS.id], entering=[ATLAS.id])
    kept.seal()
    assert kept.number("SELECT count(*) FROM posting") == 1, "all of it is held"
    assert kept.states() == {COUNTS: 3}


def test_an_unknown_row_cannot_be_withdrawn(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    with pytest.raises(KeyError):
        kept.ledger.postings.withdraw("egi", leaving=[CMS.id])


# Sealing


def test_a_sealed_posting_waits_for_the_receipts_of_its_messages(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2, CMS))
    first, second = kept.seal(kept.says((ATLAS, usage(1))), kept.says((CMS, usage(1))))
    assert kept.ask("SELECT sealed FROM posting") == [(True,)]
    assert kept.states() == {PENDING: 2}
    kept.accept(first)
    assert kept.states() == {PENDING: 1, COUNTS: 1}
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    assert [(month.pending, month.counts) for month in kept.ledger.entries.months("egi")] == [(1, usage(1))]
    kept.accept(second)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), CMS.id: (usage(1), usage(1))}
    assert kept.number("SELECT count(*) FROM message_row") == 0
    assert kept.ledger.outbox.outstanding("egi") is None


def test_settling_twice_changes_nothing(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    (message,) = kept.seal(kept.says((ATLAS, usage(1))))
    kept.accept(message, message)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    assert delivered(kept) == 1


def test_a_new_page_does_not_go_into_a_sealed_posting(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    (message,) = kept.seal(kept.says((ATLAS, usage(1))))
    kept.enter(entry(2))
    kept.accept(message)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    kept.accept(*kept.seal(kept.says((ATLAS, usage(2)))))
    assert kept.totals() == {ATLAS.id: (usage(2), usage(2))}


def test_messages_are_made_one_at_a_time_and_may_ask_the_ledger(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2, CMS))
    asked = []

    def messages() -> Iterator[MonthMessage]:
        for key in (ATLAS, CMS):
            asked.append(kept.number("SELECT count(*) FROM message"))
            assert len(kept.ledger.entries.rows("egi", MONTH)) == 2
            yield kept.says((key, usage(1)))

    kept.ledger.postings.seal("egi", messages())
    assert asked == [0, 1]
    kept.accept(kept.outstanding().message, kept.outstanding().message)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, LedgerError])
def test_rule_12_a_posting_is_sealed_with_all_its_messages_or_not_at_all(
    kept: TotalsLedger, raised: type[BaseException]
) -> None:
    kept.enter(entry(1), entry(2, CMS))

    def messages() -> Iterator[MonthMessage]:
        yield kept.says((ATLAS, usage(1)))
        raise raised

    with pytest.raises(raised):
        kept.ledger.postings.seal("egi", messages())
    assert kept.ask("SELECT sealed FROM posting") == [(False,)]
    assert kept.number("SELECT count(*) FROM message") + kept.number("SELECT count(*) FROM message_row") == 0


def test_what_is_known_is_told_once_more_without_a_posting(kept: TotalsLedger) -> None:
    kept.send(entry(1))
    with kept.database.atomic():
        kept.database.execute("UPDATE balance SET sent_wall_s = 7")
    assert kept.ledger.entries.months("egi")[0].unsent == 1
    messages = kept.seal(kept.says((ATLAS, usage(1))))
    assert kept.ask("SELECT posting IS NULL FROM message WHERE state = 0") == [(True,)]
    kept.accept(*messages)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    assert kept.ledger.entries.months("egi")[0].unsent == 0
    assert delivered(kept) == 1


def test_a_run_in_no_message_is_not_forgotten(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2, CMS))
    with pytest.raises(AssertionError):
        kept.seal(kept.says((ATLAS, usage(1))))
    with pytest.raises(AssertionError):
        kept.seal()
    assert kept.ask("SELECT sealed FROM posting") == [(False,)]


def test_rows_are_of_records_of_their_message(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    message = kept.says((ATLAS, usage(1)))
    with pytest.raises(AssertionError):
        kept.seal(message._replace(records=(record_of(2),)))
    with pytest.raises(AssertionError):
        kept.seal(message._replace(records=(record_of(1), record_of(1))))


def test_a_message_is_traced_to_its_months(kept: TotalsLedger) -> None:
    later = row(month=MONTH + 1)
    kept.send(entry(1), entry(2, later))
    assert kept.ask("SELECT message, month, target FROM month_message ORDER BY month") == [
        (1, MONTH, 1),
        (1, MONTH + 1, 1),
    ]
    assert [(one.month, one.counts) for one in kept.ledger.entries.months("egi")] == [
        (MONTH, usage(1)),
        (MONTH + 1, usage(1)),
    ]


# What counts


def test_a_changed_run_moves_what_it_counts_for(kept: TotalsLedger) -> None:
    kept.send(entry(1), entry(2), entry(3))
    kept.send(entry(3, CMS, wall_s=90))
    assert kept.states() == {COUNTS: 3, HISTORY: 1}
    assert kept.totals() == {ATLAS.id: (usage(2), usage(2)), CMS.id: (usage(1, 90), usage(1, 90))}
    (atlas,) = (total for total in kept.ledger.entries.rows("egi", MONTH) if total.key.id == ATLAS.id)
    assert (atlas.first_end, atlas.last_end) == (END + 1, END + 2)
    kept.send(entry(1, CMS), entry(2, CMS))
    totals = {total.key.id: total for total in kept.ledger.entries.rows("egi", MONTH)}
    assert (totals[ATLAS.id].counts, totals[ATLAS.id].first_end, totals[ATLAS.id].last_end) == (Usage(), 0, 0)
    assert (totals[CMS.id].first_end, totals[CMS.id].last_end) == (END + 1, END + 3)
    assert delivered(kept) == 3


def test_a_row_left_behind_keeps_what_was_said(kept: TotalsLedger) -> None:
    """Without zeros, the receiver has it until somebody deletes it."""
    kept.send(entry(1))
    kept.enter(entry(1, CMS))
    kept.accept(*kept.seal(kept.says((CMS, usage(1)))))
    assert kept.totals() == {ATLAS.id: (Usage(), usage(1)), CMS.id: (usage(1), usage(1))}
    assert kept.ledger.entries.months("egi")[0].unsent == 1


def test_a_run_that_shall_not_count_adds_nothing(kept: TotalsLedger) -> None:
    kept.send(entry(1), entry(2))
    kept.send(entry(2, jobs=0))
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    (total,) = kept.ledger.entries.rows("egi", MONTH)
    assert (total.first_end, total.last_end) == (END + 1, END + 1)
    found = kept.ledger.entries.recorded("egi", [run(2)])[run(2)]
    assert (found.usage, found.pending) == (Usage(), False)
    kept.send(entry(2, wall_s=90))
    assert kept.totals() == {ATLAS.id: (usage(1).plus(usage(1, 90)), usage(1).plus(usage(1, 90)))}
    assert delivered(kept) == 2, "each run once"


def test_the_row_of_a_run_that_shall_not_count_need_not_be_said(kept: TotalsLedger) -> None:
    """It stays at the receiver, with consent; so the entry counts at once, whatever comes of others."""
    kept.send(entry(1))
    retraction = entry(1, jobs=0)
    kept.enter(retraction._replace(row=RowKey(MONTH, RowFields(ATLAS.fields.digest, ""))), entry(2, CMS))
    kept.seal(kept.says((CMS, usage(1))))
    assert kept.totals() == {ATLAS.id: (Usage(), usage(1))}
    assert kept.ask("SELECT fields FROM row_key WHERE id = 1") == [(ATLAS.fields.text,)]
    kept.ledger.outbox.give_up("egi", [], {})
    kept.assert_is_sound()
    assert kept.totals() == {ATLAS.id: (Usage(), usage(1))}
    kept.enter(entry(1))
    kept.ledger.postings.discard("egi")
    kept.enter(entry(3, jobs=0)._replace(row=ATLAS))
    kept.seal()
    assert set(kept.ledger.counts.by_host("egi").delivered) == set()


def test_a_receiver_that_keeps_the_first_counts_the_first(kept: TotalsLedger) -> None:
    kept.begin("nordic", KEEPS_FIRST)
    kept.send(entry(1), target="nordic")
    kept.enter(entry(1, wall_s=90), entry(2), target="nordic")
    kept.accept(*kept.seal(kept.says((ATLAS, usage(2)), target="nordic"), target="nordic"))
    assert kept.states() == {COUNTS: 2, HISTORY: 1}
    assert kept.totals("nordic") == {ATLAS.id: (usage(2), usage(2))}
    assert delivered(kept, "nordic") == 2


def test_targets_of_one_place_share_its_rows(kept: TotalsLedger) -> None:
    kept.begin("moved")
    kept.send(entry(1), entry(2))
    kept.send(entry(2, wall_s=90), target="moved")
    assert kept.totals() == kept.totals("moved") == {ATLAS.id: (Usage(2, 150, 75), Usage(2, 150, 75))}
    for target in ("egi", "moved"):
        assert kept.ledger.counts.by_host(target).delivered == {(MONTH, "ce1"): 2}
    assert (delivered(kept), delivered(kept, "moved")) == (2, 0)


def test_jobs_are_counted_by_month_and_host(kept: TotalsLedger) -> None:
    later = row(host="CE1", month=MONTH + 1)
    kept.send(entry(1), entry(2, CMS), entry(3, OTHER), entry(4, later))
    assert kept.ledger.counts.by_host("egi").delivered == {(MONTH, "ce1"): 2, (MONTH, "ce2"): 1, (MONTH + 1, "ce1"): 1}
    kept.send(entry(3, CMS), entry(2, CMS, jobs=0), entry(4))
    assert kept.ledger.counts.by_host("egi").delivered == {(MONTH, "ce1"): 3}
    state = kept.ledger.targets.state("egi")
    assert state is not None
    assert state.last_published_end == END + 4 + MONTH_S


def test_jobs_from_before_the_start_are_looked_for_again(kept: TotalsLedger) -> None:
    """They do not count as another publisher's any more."""
    kept.ledger.targets.begin_round("egi", start_rule="then", start=END, selection_digest="", receiver=RECEIVER)
    kept.ledger.counts.set_before("egi", {(MONTH, "ce1"): 3}, "basis")
    kept.send(entry(5))
    assert kept.ledger.counts.by_host("egi").before_basis == "basis"
    kept.send(entry(-5))
    assert kept.ledger.counts.by_host("egi").before_basis == ""


def test_months_tell_what_counts_and_what_was_said(kept: TotalsLedger) -> None:
    kept.send(entry(1), entry(2, CMS))
    kept.enter(entry(3))
    assert kept.ledger.entries.months("egi") == [
        MonthTotals(MONTH, usage(2), usage(2), 1, "apel-summary-0.4", unsent=0)
    ]
    assert kept.ledger.entries.months("unknown") == []
    assert kept.ledger.entries.rows("egi", MONTH + 5) == []


def test_single_records_have_no_format_of_totals(kept: TotalsLedger) -> None:
    record = make_record(make_job())
    message = message_of(b"single", "egi", "car", 1, NOW)
    kept.ledger.outbox.prepare(message, [record], Progress(), "policy")
    (month,) = kept.ledger.entries.months("egi")
    assert (month.pending, month.format, month.counts) == (1, "", Usage())
    kept.accept(message)
    (month,) = kept.ledger.entries.months("egi")
    assert (month.pending, month.format, month.counts.jobs, month.sent, month.unsent) == (0, "", 1, Usage(), 0)


def test_single_records_stay_in_a_row_that_the_totals_that_follow_do_not_say(kept: TotalsLedger) -> None:
    """The receiver goes on making it of them, until they are deleted."""
    record = make_record(make_job(ended_at=END))
    message = message_of(b"single", "egi", "car", 1, NOW)
    kept.ledger.outbox.prepare(message, [record], Progress(), "policy")
    kept.accept(message)
    kept.enter(record.counts_for._replace(row=ATLAS))
    kept.accept(*kept.seal(kept.says((ATLAS, usage(1)))))
    assert kept.states() == {COUNTS: 1, LEFT: 1}
    assert sum(counts.jobs for counts, _ in kept.totals().values()) == 2
    (month,) = kept.ledger.left.months("egi")
    assert ([one.key.ended_at for one in month.records], [row.counts.jobs for row in month.rows]) == ([END], [1])
    kept.ledger.left.confirm_deleted("egi", MONTH)
    assert kept.states() == {COUNTS: 1, HISTORY: 1}
    assert kept.ledger.left.months("egi") == []


def test_totals_that_say_the_row_of_single_records_replace_them(kept: TotalsLedger) -> None:
    record = make_record(make_job(ended_at=END))
    message = message_of(b"single", "egi", "car", 1, NOW)
    kept.ledger.outbox.prepare(message, [record], Progress(), "policy")
    kept.accept(message)
    kept.send(record.counts_for._replace(wall_s=61))
    assert kept.states() == {COUNTS: 1, HISTORY: 1}
    assert kept.ledger.left.months("egi") == []


def test_single_records_that_follow_totals_are_no_totals_any_more(kept: TotalsLedger) -> None:
    """Whose rows are to be deleted: the receiver lets them overwrite what it makes of records."""
    kept.send(entry(1))
    assert kept.ledger.left.months("egi") == []
    kept.ledger.entries.go_on_as_records("egi", [MONTH])
    (month,) = kept.ledger.entries.months("egi")
    assert (month.format, month.counts) == ("", usage(1))
    (left,) = kept.ledger.left.months("egi")
    assert [(one.key, one.counts, bool(one.format)) for one in left.rows] == [(ATLAS, usage(1), True)]
    kept.ledger.left.confirm_deleted("egi", MONTH)
    assert kept.ledger.left.months("egi") == []


def test_rule_12_a_row_of_totals_stays_while_no_run_comes_back(kept: TotalsLedger) -> None:
    kept.send(entry(1))
    kept.enter(entry(1, CMS))
    sealed = kept.seal(kept.says((CMS, usage(1))))
    assert kept.ledger.left.months("egi") == [], "nothing is accepted yet"
    kept.accept(*sealed)
    (left,) = kept.ledger.left.months("egi")
    assert [(one.key, one.counts) for one in left.rows] == [(ATLAS, usage(1))]
    kept.send(entry(2, ATLAS))
    assert kept.ledger.left.months("egi") == []


# What was not accepted


def two_messages(kept: TotalsLedger) -> list[object]:
    kept.enter(entry(1), entry(2, CMS))
    return list(kept.seal(kept.says((ATLAS, usage(1))), kept.says((CMS, usage(1)))))


def test_what_was_certainly_not_stored_is_forgotten(kept: TotalsLedger) -> None:
    kept.send(entry(3))
    two_messages(kept)
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.ledger.outbox.outstanding("egi") is None
    assert kept.ledger.entries.recorded("egi", [run(1), run(2)]) == {}
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}
    assert kept.number("SELECT count(*) FROM posting") == 1
    assert kept.number("SELECT count(*) FROM message_row") == 0
    kept.enter(entry(1))
    kept.accept(*kept.seal(kept.says((ATLAS, usage(2)))))
    assert kept.totals() == {ATLAS.id: (usage(2), usage(2))}


@pytest.mark.parametrize("what", ["accepted", "in doubt", "handed over"])
def test_rule_13_nothing_is_dropped_of_a_posting_of_which_something_may_be_stored(
    kept: TotalsLedger, what: str
) -> None:
    kept.enter(entry(1), entry(2, CMS))
    first, second = kept.seal(kept.says((ATLAS, usage(1))), kept.says((CMS, usage(1))))
    besides = []
    if what == "accepted":
        kept.accept(first)
    elif what == "in doubt":
        kept.ledger.outbox.in_doubt(first, "no answer")
    else:
        besides = [first.id]
    kept.ledger.outbox.give_up("egi", besides, {})
    kept.assert_is_sound()
    kept.accept(first, second)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), CMS.id: (usage(1), usage(1))}


def test_an_accepted_message_without_runs_keeps_its_posting(kept: TotalsLedger) -> None:
    kept.send(entry(1))
    with kept.database.atomic():
        kept.database.execute("UPDATE balance SET sent_wall_s = 7")
    kept.enter(entry(2, CMS))
    first, second = kept.seal(kept.says((ATLAS, usage(1))), kept.says((CMS, usage(1))))
    kept.accept(first)
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.outstanding().message.id == second.id
    kept.accept(second)


def test_messages_of_other_postings_are_given_up_by_themselves(kept: TotalsLedger) -> None:
    """What is told once more is in no posting."""
    kept.send(entry(1))
    first, second = kept.seal(kept.says((ATLAS, usage(1))), kept.says((ATLAS, usage(1))))
    kept.ledger.outbox.in_doubt(first, "no answer")
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.outstanding().message.id == first.id
    assert kept.ledger.outbox.outstanding("egi", [first.id]) is None
    kept.accept(second)  # nobody knows it any more
    kept.accept(first)


def test_halves_say_the_rows_of_their_records(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2, CMS), entry(3, OTHER))
    kept.seal(kept.says((ATLAS, usage(1)), (CMS, usage(1)), (OTHER, usage(1))))
    whole = kept.outstanding()
    first, second = kept.split(whole, whole.records[:1], whole.records[1:])
    kept.assert_is_sound()
    assert kept.number("SELECT count(DISTINCT posting) FROM message") == 1
    kept.accept(second)
    assert kept.totals() == {CMS.id: (usage(1), usage(1)), OTHER.id: (usage(1), usage(1))}
    kept.accept(first)
    assert kept.totals()[ATLAS.id] == (usage(1), usage(1))
    assert [one.month for one in kept.ledger.entries.months("egi")] == [MONTH]


def test_rows_that_a_receiver_does_not_tell_apart_are_one_record(kept: TotalsLedger) -> None:
    kept.enter(entry(1), entry(2, CMS))
    both = kept.says((ATLAS, usage(1)), (CMS, usage(1)))
    rows = tuple(sent._replace(group=1) for sent in both.rows)
    kept.accept(*kept.seal(both._replace(records=both.records[:1], rows=rows)))
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), CMS.id: (usage(1), usage(1))}


def test_of_a_refused_message_nothing_counts_and_the_others_go_on(kept: TotalsLedger) -> None:
    kept.send(entry(9))
    kept.enter(entry(1), entry(2, CMS), entry(9, CMS), entry(3, OTHER))
    kept.seal(kept.says((ATLAS, usage(1)), (CMS, usage(2))), kept.says((OTHER, usage(1))))
    kept.refuse(kept.outstanding())
    assert kept.states() == {COUNTS: 1, PENDING: 1}
    assert kept.ask("SELECT posting IS NULL FROM message WHERE state = 3") == [(True,)]
    assert [one.job.job_id for one in kept.ledger.quarantine.listed("egi")] == [
        f"row {at} of month {MONTH}" for at in (1, 2)
    ]
    kept.assert_is_sound()
    kept.accept(kept.outstanding().message)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), OTHER.id: (usage(1), usage(1))}
    assert kept.ledger.entries.recorded("egi", [run(1), run(2)]) == {}


def test_a_posting_whose_messages_were_all_refused_is_forgotten(kept: TotalsLedger) -> None:
    two_messages(kept)
    kept.refuse(kept.outstanding())
    kept.assert_is_sound()
    assert kept.number("SELECT entries FROM posting") == 1
    kept.refuse(kept.outstanding())
    assert kept.number("SELECT count(*) FROM posting") + kept.number("SELECT count(*) FROM entry") == 0


def test_rule_13_what_may_be_stored_is_in_doubt_for_whoever_opens_the_ledger(kept: TotalsLedger) -> None:
    """So are its halves, and that it was refused is kept with it."""
    kept.enter(entry(1), entry(2, CMS))
    (message,) = kept.seal(kept.says((ATLAS, usage(1)), (CMS, usage(1))))
    kept.ledger.outbox.refused_in_doubt(message)
    assert not kept.outstanding().narrowing, "it is in no doubt"
    kept.ledger.outbox.in_doubt(message, "no answer")
    kept.ledger.outbox.refused_in_doubt(message)
    kept.begin()
    whole = kept.outstanding()
    assert (whole.state, whole.narrowing) == (MessageState.IN_DOUBT, True)
    kept.split(whole, whole.records[:1], whole.records[1:])
    assert kept.outstanding().state is MessageState.IN_DOUBT
    kept.ledger.outbox.give_up("egi", [], {})
    assert kept.states() == {PENDING: 2}
    kept.accept(kept.outstanding().message)
    kept.accept(kept.outstanding().message)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1)), CMS.id: (usage(1), usage(1))}


def test_what_was_set_aside_leaves_quarantine_with_its_row(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    kept.seal(kept.says((ATLAS, usage(1))))
    kept.refuse(kept.outstanding())
    assert len(list(kept.ledger.quarantine.listed("egi"))) == 1
    kept.send(entry(1))
    assert list(kept.ledger.quarantine.listed("egi")) == []


def test_what_is_in_doubt_waits(kept: TotalsLedger) -> None:
    kept.enter(entry(1))
    kept.seal(kept.says((ATLAS, usage(1))))
    kept.ledger.outbox.leave_in_doubt("egi")
    kept.begin()
    assert kept.outstanding().state is MessageState.IN_DOUBT
    assert kept.ledger.entries.recorded("egi", [run(1)])[run(1)].pending
    kept.accept(kept.outstanding().message)
    assert kept.totals() == {ATLAS.id: (usage(1), usage(1))}


# From another publisher


def inherited(*entries: Entry, form: str = "apel-summary-0.2", totals: bool = True) -> InheritedMonth:
    return InheritedMonth(MONTH, form, totals, entries, {(MONTH, "ce1"): 7})


def test_what_another_publisher_sent_counts_and_was_said(kept: TotalsLedger) -> None:
    kept.ledger.entries.adopt("egi", inherited(entry(1), entry(2, CMS)))
    kept.ledger.entries.adopt("egi", inherited(entry(2, CMS), entry(3)))
    assert kept.totals() == {ATLAS.id: (usage(2), usage(2)), CMS.id: (usage(1), usage(1))}
    assert [month.format for month in kept.ledger.entries.months("egi")] == ["apel-summary-0.2"]
    assert kept.ask("SELECT state, records, format FROM message") == [(4, 3, "apel-summary-0.2")]
    assert kept.ask("SELECT settings, sealed, entries FROM posting") == [(BY_JURA, True, 3)]
    found = kept.ledger.entries.recorded("egi", [run(1)])[run(1)]
    assert (found.settings, found.pending) == (BY_JURA, False)
    assert kept.ledger.counts.by_host("egi").reported == {(MONTH, "ce1"): 7}
    assert kept.ledger.counts.by_host("egi").delivered == {(MONTH, "ce1"): 3}
    assert delivered(kept) == 0
    kept.send(entry(3, CMS), entry(4))
    assert kept.totals() == {ATLAS.id: (usage(2), usage(2)), CMS.id: (usage(2), usage(2))}
    assert kept.ledger.counts.by_host("egi").delivered == {(MONTH, "ce1"): 4}
    assert kept.ledger.outbox.outstanding("egi") is None


def test_a_run_of_ours_is_not_another_publishers(kept: TotalsLedger) -> None:
    kept.send(entry(1, wall_s=90))
    kept.ledger.entries.adopt("egi", inherited(entry(1), entry(2)))
    assert kept.ledger.entries.recorded("egi", [run(1)])[run(1)].usage == usage(1, 90)
    kept.ledger.entries.adopt("egi", inherited(entry(1), entry(2)))
    assert kept.ask("SELECT count(*) FROM posting") == [(2,)]


def test_of_single_records_of_another_publisher_nothing_was_said(kept: TotalsLedger) -> None:
    kept.ledger.entries.adopt("egi", inherited(entry(1), form="car", totals=False))
    assert kept.totals() == {ATLAS.id: (usage(1), Usage())}
    assert [(month.format, month.unsent) for month in kept.ledger.entries.months("egi")] == [("", 0)]


# What it costs


class CountedDatabase:
    """A database whose statements are counted; one for many rows once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._database, name)
        if name not in ("execute", "execute_many", "insert_returning_id", "stream"):
            return found

        def counted(*given: Any) -> Any:
            self.statements += 1
            return found(*given)

        return counted


def statements_of(database: CountedDatabase, what: Callable[[], object]) -> int:
    before = database.statements
    what()
    return database.statements - before


def test_what_runs_cost_does_not_grow_with_them(tmp_path: Path) -> None:
    """Neither pages nor messages take more statements for more runs of the same rows."""
    with closing(open_database(tmp_path / "state" / "publishing.db")) as opened:
        database = CountedDatabase(opened)
        kept = TotalsLedger(cast(Database, database))
        kept.send(entry(0), entry(-1, CMS))
        costs = []
        for first, last in ((1, 11), (11, 1011)):
            runs = [entry(number, (ATLAS, CMS)[number % 2]) for number in range(first, last)]
            entering = statements_of(database, lambda runs=runs: kept.enter(*runs))  # type: ignore[misc]
            rows = kept.says(*kept.sums(runs))
            sealing = statements_of(database, lambda rows=rows: kept.seal(rows))  # type: ignore[misc]
            settling = statements_of(database, lambda rows=rows: kept.accept(rows.message))  # type: ignore[misc]
            costs.append((entering, sealing, settling))
    assert costs[0] == costs[1]
    assert costs[0][0] == 5  # two of them for the posting, which the first page makes
    assert sum(costs[0]) <= 51


OF_A_MESSAGE = 100  # runs


def sealed_in_messages(kept: TotalsLedger, messages: int) -> list[Message]:
    """A posting of so many messages, each with one row of its own; runs of all of them in turn."""
    rows = [row(f"vo{number}") for number in range(messages)]
    kept.enter(*[entry(number, rows[number % messages]) for number in range(messages * OF_A_MESSAGE)])
    return kept.seal(*[kept.says((of, usage(OF_A_MESSAGE))) for of in rows])


@pytest.mark.parametrize("what", ["accepted", "refused"])
def test_a_message_costs_its_own_entries(tmp_path: Path, what: str) -> None:
    """Not those of the other messages of its posting, nor a step for each of them."""
    steps = []
    for messages in (2, 40):
        with closing(open_database(tmp_path / str(messages) / "publishing.db")) as database:
            kept = TotalsLedger(database)
            first, *_ = sealed_in_messages(kept, messages)
            whole, counted = kept.outstanding(), [0]

            def step(counted: list[int] = counted) -> int:
                counted[0] += 1
                return 0

            connection = cast(Any, database)._connection
            connection.set_progress_handler(step, 10)
            kept.accept(first) if what == "accepted" else kept.refuse(whole)
            connection.set_progress_handler(None, 0)
            steps.append(counted[0])
            assert kept.states()[PENDING] == (messages - 1) * OF_A_MESSAGE
    assert steps[1] < 1.2 * steps[0]


@pytest.mark.slow
def test_a_message_visits_its_own_entries_in_postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """All steps of the plan together, as the server counted them when it carried it out."""
    with closing(opener("postgres", request)(tmp_path / "state" / "publishing.db")) as database:
        kept = TotalsLedger(database)
        sealed_in_messages(kept, 40)
        at = {"posting": 1, "receiver": 1, "message": kept.outstanding().number, "after": b"", "portion": 5_000}
        with database.atomic():
            for way in ("seqscan", "hashjoin", "mergejoin"):  # of a small table they are as cheap
                database.execute(f"SET LOCAL enable_{way} = off")
            steps = [
                str(step) for (step,) in database.execute(f"EXPLAIN (ANALYZE) {settlement._OF_MESSAGE}", at).fetchall()
            ]
    found = [re.search(r"actual time=\S+ rows=([\d.]+) loops=(\d+)", step) for step in steps]
    visited = [float(one[1]) * int(one[2]) for one in found if one is not None]
    assert visited[0] == OF_A_MESSAGE
    assert max(visited) <= OF_A_MESSAGE, steps
    removed = [int(step.rpartition(":")[2]) for step in steps if "Rows Removed" in step]
    assert max(removed, default=0) <= 1, steps  # of each run, the entry that waits


def _of_100_rows(database: Database, count: int) -> None:
    """Deliver so many runs of totals."""
    kept, rows = TotalsLedger(database), [row(f"vo{number}") for number in range(100)]
    runs = [entry(number, rows[number % 100])._replace(digest=b"12345678") for number in range(count)]
    kept.enter(*runs)
    kept.accept(*kept.seal(kept.says(*kept.sums(runs))))


@pytest.mark.slow
def test_an_entry_of_totals_takes_less_than_120_bytes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    count = 20_000
    with closing(open_database(tmp_path / "state" / "publishing.db")) as database:
        _of_100_rows(database, count)
        (pages,), (free,), (page_size,) = (
            database.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "freelist_count", "page_size")
        )
    size = (pages - free) * page_size / count
    record_property("bytes", size)
    assert size < 120


@pytest.mark.slow
def test_an_entry_of_totals_takes_less_than_200_bytes_in_postgresql(
    postgres: PostgresServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """With its indexes, once room that settling left is used again: as a copy has it."""
    count, path = 20_000, tmp_path / "state" / "publishing.db"
    with closing(opener("postgres", request)(path)) as database:
        _of_100_rows(database, count)
    table = f"publisher_{instance_of(path)}.entry"
    postgres.sql(f"CREATE TABLE {table}_copy (LIKE {table} INCLUDING ALL)")
    postgres.sql(f"INSERT INTO {table}_copy SELECT * FROM {table} ORDER BY receiver, run")
    size = int(postgres.sql(f"SELECT pg_total_relation_size('{table}_copy')")) / count
    record_property("bytes", size)
    assert size < 200


# What a check finds


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE balance SET jobs = jobs + 1", "rows whose balance is not the sum of their entries"),
        (
            "UPDATE balance SET first_end = 5 WHERE jobs = 0",
            "rows whose first and last end are not those of their entries",
        ),
        ("UPDATE balance SET sent_by = 77", "rows said by unknown messages"),
        ("UPDATE message_row SET message = 1", "rows said by messages that are not outstanding"),
        ("UPDATE message_row SET row_key = 77", "said rows that are unknown"),
        ("DELETE FROM message_row", "pending entries of totals that no message says"),
        ("DELETE FROM message_entry", "pending entries of totals that no message says"),
        ("UPDATE message_entry SET run = X'00'", "runs that wait for a message without an entry of theirs"),
        ("UPDATE posting SET sealed = FALSE WHERE id = 1", "open postings that have messages"),
        ("UPDATE entry SET wall_s = 7 WHERE state = 2", "postings with damaged entries"),
        (
            "INSERT INTO posting (receiver, target, settings, made_at, entries, checksum, sealed, keyed)"
            " VALUES (1, 1, '', 0, 0, 0, TRUE, FALSE)",
            "postings without messages and entries",
        ),
        ("UPDATE message SET posting = NULL WHERE state = 0", "pending entries of settled messages"),
    ],
)
def test_a_check_names_what_does_not_agree(tmp_path: Path, damage: str, found: str) -> None:
    with closing(open_database(tmp_path / "state" / "publishing.db")) as database:
        kept = TotalsLedger(database)
        kept.send(entry(1), entry(2, CMS))
        kept.send(entry(2))
        kept.enter(entry(3))
        kept.seal(kept.says((ATLAS, usage(3))))
        kept.enter(entry(4))
        kept.assert_is_sound()
        with database.atomic():
            database.execute(damage)
        assert found in [one.what for one in disagreements(database)]


def test_entries_follow_a_database_to_its_other_name(kept: TotalsLedger) -> None:
    """Also where the other name has entries of its own, as of a target that found it first."""
    for number, name in enumerate(("old.db", "new.db", "old.db"), 1):
        kept.send(entry(number)._replace(source=name))
    kept.ledger.databases.found("egi", {"old.db": 5, "new.db": 6}, NOW)
    kept.ledger.databases.rename("egi", "old.db", "new.db")
    kept.send(entry(4)._replace(source="new.db"), entry(5)._replace(source="old.db"))
    assert kept.ledger.entries.counted_from("egi", "new.db") == {(MONTH, "ce1"): 4}
    assert kept.ledger.entries.counted_from("egi", "old.db") == {(MONTH, "ce1"): 1}
    kept.ledger.databases.rename("egi", "new.db", "third.db")
    assert kept.ledger.entries.counted_from("egi", "third.db") == {(MONTH, "ce1"): 4}
    assert [(one.file, one.inode) for one in kept.ledger.databases.known("egi")] == [("third.db", 5)]
