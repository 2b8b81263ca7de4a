"""The ledger of a story in SQLite and in PostgreSQL: read by the oracle, backed up, restored, lost, and killed over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.site import open_at
from tests.model_receivers.ledgers import LedgerInPostgres, LedgerInSqlite
from tests.model_receivers.oracle import OTHER_NUMBERS, said_rows
from tests.model_receivers.site import KILLED, place_of
from tests.model_receivers.stories.events import World

ROUND = ("publish", "--force", "--json")


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A site after its first round, which delivered some jobs."""
    if request.param == "sqlite":
        ledger: LedgerInSqlite | LedgerInPostgres = LedgerInSqlite(tmp_path)
    else:
        server = request.getfixturevalue("postgres")
        ledger = LedgerInPostgres(server.folder, tmp_path)
    made = World(tmp_path, 3, ledger)
    made.submit(random.Random(1))
    made.publish(random.Random(1))
    assert made.last.status == 0
    yield made
    ledger.close()


def said(world: World) -> Any:
    (place,) = {place_of(target) for target in world.config["targets"].values()}
    return said_rows(world.product, place)


def ask(world: World, statement: str) -> list[Any]:
    with closing(open_at(world.product.ledger.place)) as ledger, ledger.atomic():
        return ledger.execute(statement).fetchall()


def test_the_oracle_reads_what_the_ledger_has(world: World) -> None:
    assert world.end() == []
    with closing(open_at(world.product.ledger.place)) as ledger, ledger.atomic():
        assert ledger.execute("UPDATE entry SET wall_s = wall_s + 1 WHERE state = 1").rowcount
        ledger.execute(
            "UPDATE balance SET wall_s = wall_s + 1, sent_wall_s = sent_wall_s + 1 WHERE sent_by IS NOT NULL"
        )
    assert any(OTHER_NUMBERS in one for one in world.end())


def test_a_restored_ledger_has_what_its_backup_had(world: World) -> None:
    before = said(world)
    assert world.product.ledger.back_up(world.product.run)
    world.submit(random.Random(2))
    world.publish(random.Random(2))
    assert said(world) != before
    world.product.ledger.restore()
    assert said(world) == before
    held = world.product.run(*ROUND)
    assert held.status == 65, "the host knows that it is older"


def test_a_lost_ledger_has_nothing(world: World) -> None:
    assert world.product.ledger.exists()
    world.product.ledger.lose()
    assert not world.product.ledger.exists()
    assert said(world) is None


@pytest.mark.slow
def test_a_round_is_killed_at_statements_of_the_ledger_too(world: World) -> None:
    """Some rounds end after their message was written down, and before it was settled."""
    ends = []
    for statement in range(20, 400, 20):
        world.submit(random.Random(statement))
        ended = world.product.cut_short(*ROUND, statement=statement)
        ends.append((ended.status == KILLED, ask(world, "SELECT count(*) FROM outbox") != [(0,)]))
        world.publish(random.Random(statement))
        assert world.last.status == 0
    assert {(True, True), (True, False)} <= set(ends)
    assert world.end() == []
