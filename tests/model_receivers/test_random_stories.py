"""Random stories: a few, and many more in `make test-long`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count

import pytest

from tests.fake_ams.tables import Tables
from tests.fake_sgas.database import Database
from tests.fake_sgas.reader import read_document
from tests.model_receivers.ledgers import LedgerInPostgres, LedgerInSqlite
from tests.model_receivers.receivers.apel import Apel
from tests.model_receivers.stories import FULL, KEYS, LEDGER, Stored, outcome, play, shrunk, story
from tests.support.postgres import PostgresServer
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

AT_ONCE = 20


def assert_right(seed: int, stored: Stored = LedgerInSqlite) -> None:
    events = story(seed)
    wrong = outcome(seed, events, gentle=FULL.gentle, stored=stored)
    if wrong:
        small = shrunk(seed, events, wrong[0], gentle=FULL.gentle, stored=stored)
        pytest.fail(f'{wrong}; python -m tests.model_receivers --replay "{seed}, {small}"')


def test_every_story_has_a_restart_a_purge_and_a_change_of_keys() -> None:
    for seed in range(100):
        names = {name for name, _ in story(seed)}
        assert {"restart", "purge"} <= names
        assert names & KEYS.keys()


def test_without_an_event_the_others_stay_as_they_are() -> None:
    events = story(7)
    assert len({own for _, own in events}) == len(events)


@pytest.mark.parametrize("first", range(0, 200, AT_ONCE))
def test_small_stories_end_with_every_run_counted_once(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert_right(seed)


@pytest.mark.slow
@pytest.mark.parametrize("happens", [*LEDGER, ("killed",)], ids="-".join)
def test_with_the_ledger_in_postgresql(postgres: PostgresServer, happens: Sequence[str]) -> None:
    """A story of each thing that happens to ledgers; `python -m tests.model_receivers --ledger postgres` plays others."""
    seed = next(seed for seed in count(730001) if {name for name, _ in story(seed)} >= set(happens))
    assert_right(seed, partial(LedgerInPostgres, postgres.folder))


@pytest.mark.parametrize("seed", range(6))
def test_the_stand_ins_take_what_the_models_took_and_hold_the_same(seed: int) -> None:
    """The stand-ins of AMS and SGAS refuse what the services refuse, and know nothing of the models."""
    worlds = []
    assert play(seed, story(seed), gentle=True, told=lambda step, world: worlds.append(world)) == []
    product = worlds[-1].product
    tables: dict[str, Tables] = defaultdict(Tables)
    database = Database("H")
    for place, payload in product.arrived:
        if place.startswith("apel"):
            is_text = payload.startswith(b"APEL")
            name, rows = read_text(payload, product.now) if is_text else ("JobRecords", read_car(payload, product.now))
            for row in rows:
                tables[place].replace(name, row)
        elif place.startswith("sgas"):
            database.insert(read_document(payload, "H"))
    for place, model in product.models.items():
        if isinstance(model, Apel):
            for name, mine in (
                ("JobRecords", model.jobs),
                ("Summaries", model.summaries),
                ("NormalisedSummaries", model.normalised),
            ):
                assert used(tables[place].rows(name)) == used(mine.values())
        elif place.startswith("sgas"):
            theirs = Counter((key, row.wall_s, row.cpu_s) for key, row in database.rows.items())
            assert theirs == Counter(
                (key, row["WallDuration"], row["CpuDuration"]) for key, row in model.records.items()
            )


def used(rows: Iterable[Mapping[str, object]]) -> Counter[tuple[object, ...]]:
    columns = ("Site", "LocalJobId", "VO", "Month", "NumberOfJobs", "WallDuration", "CpuDuration", "Processors")
    return Counter(tuple(row.get(column) for column in columns) for row in rows)


@pytest.mark.long
def test_stories_of_all_kinds_end_with_every_run_counted_once() -> None:
    """Up to the first that does not; the command counts them all."""
    for seed in range(1000, 2000):
        assert outcome(seed, story(seed)) == []
