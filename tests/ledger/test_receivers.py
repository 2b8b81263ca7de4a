"""One lock a receiver, and one queue: rule 2 of the ledger, in SQLite and PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.contract import Ledger
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql.database import receiver_lock
from publisher.ledger.sql.dry_run import dry_run_ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read
from publisher.ledger.sqlite.scratch import ScratchEntries
from publisher.model.entry import ReceiverName
from publisher.model.errors import Busy
from publisher.model.job import JobId, RowRef
from publisher.model.message import Message, Progress, SyncMessage, message_of
from tests.ledger.test_contract import outbox_record
from tests.support.jobs import make_job, make_record
from tests.support.ledgers import Opener, opener
from tests.support.patience import PATIENCE_S

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HERE, THERE = ReceiverName("https://here.example.org, topic one"), ReceiverName("https://there.example.org")


@pytest.fixture(params=["sqlite", "postgres"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Ledger]]:
    """Opens the ledger of one site."""
    opened = opener(request.param, request)
    with ExitStack() as closed_later:
        yield lambda: closed_later.enter_context(closing(sql_ledger(opened(tmp_path / "state" / "publishing.db"))))


def begin(ledger: Ledger, target: str, receiver: ReceiverName = HERE) -> None:
    ledger.targets.begin_round(target, start_rule="all", start=None, selection_digest="", receiver=receiver)


def prepare(ledger: Ledger, target: str, *numbers: int) -> Message:
    jobs = [
        make_job(job_id=JobId(f"job{number}"), local_id=str(number), row=RowRef(database="a.db", record_id=number))
        for number in numbers
    ]
    records = [make_record(one, one.job_id.encode()) for one in jobs]
    message = message_of(b"".join([one.content for one in records]), target, "car", len(records), NOW)
    ledger.outbox.prepare(message, records, Progress(), "policy")
    return message


def first_id(ledger: Ledger, target: str, *besides: Message) -> str:
    found = ledger.outbox.outstanding(target, [one.id for one in besides])
    return "" if found is None else found.message.id


# The queue


def test_the_queue_is_that_of_a_receiver(opens: Callable[[], Ledger]) -> None:
    """Rule 2. In the order in which messages were written down."""
    ledger = opens()
    for target, receiver in (("one", HERE), ("other", HERE), ("elsewhere", THERE)):
        begin(ledger, target, receiver)
    first, apart = prepare(ledger, "one", 1, 2), prepare(ledger, "elsewhere", 3)
    second = prepare(ledger, "other", 4)
    for target in ("one", "other"):
        assert (first_id(ledger, target), first_id(ledger, target, first)) == (first.id, second.id)
    assert (first_id(ledger, "elsewhere"), first_id(ledger, "elsewhere", apart)) == (apart.id, "")
    assert first_id(ledger, "new") == ""
    with ledger.locks.working_on("new", receiver=HERE):
        found = ledger.outbox.outstanding("new")
        assert found is not None
        assert (found.message, found.message.target) == (first, "one")
    ledger.outbox.sent(found.message, remote_id="7", remote_ids={}, now=NOW)
    one, other = ledger.targets.state("one"), ledger.targets.state("other")
    assert one is not None
    assert other is not None
    assert (one.delivered, one.prepared, other.delivered, other.prepared) == (2, 0, 0, 1)


def test_a_process_that_ended_leaves_what_it_sent_to_the_receiver_in_doubt(opens: Callable[[], Ledger]) -> None:
    ledger = opens()
    begin(ledger, "one")
    begin(ledger, "elsewhere", THERE)
    prepare(ledger, "one", 1)
    prepare(ledger, "elsewhere", 2)
    with ledger.locks.working_on("new", receiver=HERE):
        begin(ledger, "new")
        ledger.outbox.leave_in_doubt("new")
    one, elsewhere = ledger.targets.state("one"), ledger.targets.state("elsewhere")
    assert one is not None
    assert elsewhere is not None
    assert (one.prepared, one.in_doubt, elsewhere.prepared) == (0, 1, 1)


def test_what_one_target_gives_up_is_its_own(opens: Callable[[], Ledger]) -> None:
    ledger = opens()
    begin(ledger, "one")
    begin(ledger, "other")
    first = prepare(ledger, "one", 1)
    prepare(ledger, "other", 2)
    ledger.outbox.give_up("other", (), {})
    assert (first_id(ledger, "other"), first_id(ledger, "other", first)) == (first.id, "")


def test_counts_are_in_the_queue_too(opens: Callable[[], Ledger]) -> None:
    ledger = opens()
    begin(ledger, "one")
    begin(ledger, "other")
    message = message_of(b"counts", "one", "apel-sync", 1, NOW)
    counts = (((24322, "ce"), 3),)
    ledger.outbox.prepare_sync("one", [SyncMessage(message=message, counts=counts, records=(outbox_record(1),))])
    found = ledger.outbox.outstanding("other")
    assert found is not None
    ledger.outbox.sent(found.message, remote_id="", remote_ids={}, now=NOW)
    assert ledger.counts.by_host("one").reported == ledger.counts.by_host("other").reported == {(24322, "ce"): 3}
    assert ledger.counts.by_host("elsewhere").reported == {}


def test_a_rehearsal_has_the_same_queue(tmp_path: Path) -> None:
    path = tmp_path / "state" / "publishing.db"
    with closing(sql_ledger(open_database(path))) as ledger:
        begin(ledger, "old")
        message = prepare(ledger, "old", 1)
    with (
        closing(dry_run_ledger(open_database_to_read(path), ScratchEntries())) as rehearsed,
        rehearsed.locks.working_on("new", receiver=HERE),
    ):
        found = rehearsed.outbox.outstanding("new")
        assert found is not None
        assert found.message == message
        rehearsed.outbox.sent(message, remote_id="", remote_ids={}, now=NOW)
        assert rehearsed.outbox.outstanding("new") is None


def test_a_half_of_another_targets_message_is_no_sign_of_an_older_ledger(tmp_path: Path) -> None:
    """Made lighter, a message of one record has another id, and no other one of its target comes after it."""
    path = tmp_path / "state" / "publishing.db"
    guard = StateGuard(path, shared=False, clock=lambda: NOW, host="ce")

    def opened() -> Ledger:
        return sql_ledger(open_database(path), guard)

    with closing(opened()) as ledger, ledger.locks.working_on("one", receiver=HERE):
        begin(ledger, "one")
        whole = prepare(ledger, "one", 1)
    with closing(opened()) as ledger, ledger.locks.working_on("other", receiver=HERE):
        begin(ledger, "other")
        ledger.outbox.leave_in_doubt("other")
        found = ledger.outbox.outstanding("other")
        assert found is not None
        lighter = message_of(b"x", "one", "car", 1, NOW)
        ledger.outbox.split(found, [(lighter, [found.records[0]._replace(content_bytes=1)])], narrowing=False)
        ledger.outbox.sent(lighter, remote_id="", remote_ids={}, now=NOW)
    assert lighter.id != whole.id
    with closing(opened()) as ledger:
        assert ledger.condition.trouble(HERE.place) == ""
        with ledger.locks.working_on("one", receiver=HERE):
            begin(ledger, "one")


# The locks


def test_a_receiver_is_one_publishers_and_the_other_is_told_whose(opens: Callable[[], Ledger]) -> None:
    """Rule 2."""
    one, other = opens(), opens()
    with one.locks.working_on("one", receiver=HERE):
        with pytest.raises(Busy) as refused, other.locks.working_on("other", receiver=HERE):
            pass
        who = f"process {os.getpid()}, target one"
        assert f"target other: another publisher is at work on its receiver, {HERE.place} (" in str(refused.value)
        assert f"{who}); this one leaves it alone" in str(refused.value)
        with other.locks.working_on("other", receiver=THERE):
            pass
        with other.locks.working_on("other"):
            pass
    with other.locks.working_on("other", receiver=HERE):
        pass


def test_who_does_not_get_the_target_lets_go_of_the_receiver(opens: Callable[[], Ledger]) -> None:
    one, other = opens(), opens()
    with one.locks.working_on("egi", receiver=THERE):
        with pytest.raises(Busy, match="is at work on it"), other.locks.working_on("egi", receiver=HERE):
            pass
        with opens().locks.working_on("other", receiver=HERE):
            pass


def test_the_lock_of_a_receiver_has_a_name_that_no_target_can_have(tmp_path: Path) -> None:
    path = tmp_path / "state" / "publishing.db"
    with closing(sql_ledger(open_database(path))) as ledger, ledger.locks.working_on("egi", receiver=HERE):
        lock = path.with_name(f"publishing.db.{receiver_lock(1)}.lock")
        assert lock.name.startswith("publishing.db.+receiver-")
        assert lock.read_text() == f"process {os.getpid()}, target egi"
        assert lock.stat().st_mode & 0o777 == 0o600
    assert lock.read_text() == ""


@pytest.mark.parametrize("written", [b"", b"\xff\xfe", b"\x1b[2J"])
def test_a_lock_that_does_not_say_whose_it_is(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "state" / "publishing.db"
    with closing(sql_ledger(open_database(path))) as one, one.locks.working_on("one", receiver=HERE):
        path.with_name(f"publishing.db.{receiver_lock(1)}.lock").write_bytes(written)
        with (
            closing(sql_ledger(open_database(path))) as other,
            pytest.raises(Busy, match=r"topic one; this one leaves it alone$"),
            other.locks.working_on("other", receiver=HERE),
        ):
            pass


PLACES, TARGETS, TURNS, THREADS, PROCESSES = 2, 4, 12, 3, 3


def take_turns(opened: Opener, state: Path, marks: Path, seed: int, troubles: list[str]) -> None:
    """Work on targets of receivers, any of each, with patience; nobody else is at work on either meanwhile."""
    chance = random.Random(seed)
    end = time.monotonic() + PATIENCE_S / 2

    def patience() -> bool:
        time.sleep(chance.random() / 200)
        return time.monotonic() < end

    with closing(sql_ledger(opened(state))) as ledger:
        for _ in range(TURNS):
            place, target = f"place{chance.randrange(PLACES)}", f"target{chance.randrange(TARGETS)}"
            try:
                with ledger.locks.working_on(target, patience, ReceiverName(place)), ExitStack() as alone:
                    for name in (place, target):
                        os.close(os.open(marks / name, os.O_CREAT | os.O_EXCL))
                        alone.callback(os.unlink, marks / name)
                    time.sleep(chance.random() / 500)
            except (Busy, OSError) as error:
                troubles.append(repr(error))


def threads_take_turns(opened: Opener, state: Path, marks: Path, seed: int) -> None:
    troubles: list[str] = []
    threads = [
        threading.Thread(target=take_turns, args=(opened, state, marks, 100 * seed + number, troubles))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (marks / f"done{seed}").write_text("\n".join(troubles))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.slow
def test_many_who_want_receivers_and_targets_never_wait_for_each_other(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Rule 2. Whoever holds a receiver and waits for a target waits for somebody who waits for nobody."""
    opened, state = opener(kind, request), tmp_path / "state" / "publishing.db"
    opened(state).close()
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=threads_take_turns, args=(opened, state, tmp_path, number))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        with suppress(ValueError):
            process.kill()
    assert [(tmp_path / f"done{number}").read_text() for number in range(PROCESSES)] == [""] * PROCESSES
