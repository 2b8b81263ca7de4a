"""Nothing is lost, or sent under two ids, wherever a round ends: by ^C, by a bug, or as a service stops answering."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.pki import Credential
from tests.support.simulated_months import World
from tests.support.spring_2028 import JOBS, NOW, done


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    return World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "car"))


@pytest.mark.parametrize(
    ("faults", "first"),
    [
        (["too large", "fine", "not stored"], 2),
        (["too large", "answer lost"], 0),
        (["refused", "refused", "fine", "fine", "not stored"], 2),
    ],
    ids=str,
)
def test_a_message_of_a_republish_that_arrived_in_part_is_not_begun_again(
    world: World, faults: list[str], first: int
) -> None:
    """What is left of it goes out as it is; where the window would go on is before all of it."""
    world.finish(JOBS[:4])
    done(world.publish())
    world.pass_time(1)
    assert done(world.republish("2028-02", faults=faults)).records == first
    world.pass_time(1)
    assert done(world.republish("2028-02")).records == 4 - first


def keys(world: World) -> list[tuple[Any, ...]]:
    """What the ledger knows of the receiver's rows."""
    with closing(sqlite3.connect(world.folder / "state" / "publishing.db")) as ledger:
        return ledger.execute("SELECT jobs, wall_s, cpu_s FROM balance ORDER BY row_key").fetchall()


@pytest.mark.slow
def test_a_republish_that_is_interrupted_when_all_has_arrived_sends_nothing_again(world: World) -> None:
    """What is noted about its months comes behind the last message, and takes long."""
    world.finish(JOBS[:6])
    done(world.publish())
    noted = keys(world)
    world.config["records"]["localid_prefix"] = "c1-"
    held = done(world.republish("2028-02", "2028-03"))
    world.do_the_tickets(held)
    before = len(world.receiver.messages)
    assert world.republish("2028-02", "2028-03", accept=True, fatal=8) is None
    assert len(world.receiver.messages) == before + 2, "that was not behind the last message"
    world.pass_time(1)
    assert done(world.republish("2028-02", "2028-03", accept=True)).outcome == "nothing"
    world.confirm_deleted(held)
    assert keys(world) == noted
    assert not world.wrong_months()
    world.sync()
    assert not world.differences()
    world.pass_time(1)
    assert done(world.republish("2028-02", "2028-03")).records == 6, "it is over, and this is another one"


@pytest.mark.parametrize("world", ["car", "apel-summary-0.4"], indirect=True)
def test_rule_1_a_target_whose_first_round_was_cut_asks_too(world: World) -> None:
    """It may have delivered: whoever corrects the topic then says what the other one is."""
    world.finish(JOBS)
    fatal = 0
    while fatal == 0 or not world.receiver.messages:
        fatal += 1
        assert world.publish(fatal=fatal) is None
    world.pass_time(1)
    world.config["targets"]["egi"]["topic"] = "other"
    for _ in range(2):
        stopped = done(world.publish())
        assert stopped.exit_status == 78
        assert "receiver same egi" in (stopped.reason or "")
    del world.config["targets"]["egi"]["topic"]
    assert done(world.publish()).exit_status == 0
