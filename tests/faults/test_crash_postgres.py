"""A publisher, or the PostgreSQL that keeps its ledger, ends at any statement: nothing is lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_ams.service import FakeAMS
from tests.faults.test_crash import KILLED, Walk
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer


class PostgresWalk(Walk):
    """At every step an instance of its own in one PostgreSQL."""

    def __init__(self, server: PostgresServer, folder: Path, pki: PKI, fake: FakeAMS) -> None:
        self.server = server
        super().__init__(folder, pki, fake)

    @property
    def instance(self) -> str:
        return f"walk-{self.topic}"

    def next(self) -> None:
        super().next()
        here = str(self.site.state.parent)
        self.site.config |= {"state": self.server.address, "instance": self.instance, "state_directory": here}
        self.site.save()

    def publish(self, **order: Any) -> dict[str, Any]:
        return super().publish(**{"server": 0} | order)

    def kept(self, where: object) -> tuple[tuple[int, int], set[str], int]:
        sent = self._column("SELECT message_id FROM message WHERE state = 2")
        (records,) = self._column("SELECT coalesce(sum(records), 0) FROM message WHERE state = 2")
        (waiting,) = self._column("SELECT count(*) FROM outbox")
        return (len(sent), int(records)), set(sent), int(waiting)

    def _column(self, question: str) -> list[str]:
        return self.server.sql(f'SET search_path = "publisher_{self.instance}"; {question}').splitlines()[1:]


@pytest.fixture(scope="module")
def walk(
    tmp_path_factory: pytest.TempPathFactory, pki: PKI, postgres_of_module: PostgresServer
) -> Iterator[PostgresWalk]:
    with FakeAMS(pki) as fake:
        yield PostgresWalk(postgres_of_module, tmp_path_factory.mktemp("site"), pki, fake)


def walk_kills(walk: PostgresWalk, stride: int) -> int:
    """SIGKILL of the publisher before, or behind, ever later statements; gives how many there were."""
    fatal, ends = 1, 0
    while True:
        walk.next()
        ended = walk.publish(fatal=fatal, after=bool(ends % 2))
        if ended["status"] != KILLED:
            assert ended["status"] == 65, ended
            return ends
        walk.assert_mended(fatal)
        fatal += stride
        ends += 1


@pytest.mark.slow
def test_a_publisher_may_be_killed_at_any_statement(walk: PostgresWalk) -> None:
    assert walk_kills(walk, 23) > 4


@pytest.mark.long
def test_a_publisher_may_be_killed_at_every_single_statement(walk: PostgresWalk) -> None:
    assert walk_kills(walk, 1) > 100


def walk_crashes(walk: PostgresWalk, stride: int) -> int:
    """The server ends without a word before, or behind, ever later statements, and is started again."""
    fatal, ends = 1, 0
    while True:
        walk.next()
        ended = walk.publish(fatal=fatal, after=bool(ends % 2), server=walk.server.process_id)
        if ended["status"] == 65:
            return ends
        assert (ended["status"], "nothing is lost" in ended["said"]) == (74, True), ended
        walk.server.stop()
        walk.server.start()
        walk.assert_mended(fatal)
        fatal += stride
        ends += 1


@pytest.mark.slow
def test_the_server_may_crash_at_any_statement(walk: PostgresWalk) -> None:
    assert walk_crashes(walk, 41) > 2


@pytest.mark.long
def test_the_server_may_crash_at_every_fifth_statement(walk: PostgresWalk) -> None:
    assert walk_crashes(walk, 5) > 20
