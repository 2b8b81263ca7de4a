"""Large loads survive kills at any time, and what the comparison of two stores would find."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import Writer, generate
from tests.jobs.killed_loads import Loader, compare, differences, last_end

START, END = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def database_of(folder: Path, jobs: int) -> Path:
    path = folder / "accounting.db"
    with Writer(path, schema=2, zone="UTC") as arex:
        arex.write_all(generate(7, jobs, START, END))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    database = database_of(folder, 60)
    loader = Loader(folder / "site", database, last_end(database))
    assert loader.load().status == 0
    assert loader.stored() == 60
    return loader.store


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE job SET wall_s = wall_s + 1 WHERE change = 7", "job.wall_s"),
        ("UPDATE job SET gone = 9 WHERE change = 7", "job.gone"),
        ("UPDATE person SET vo = 'other' WHERE id = 1", "person.vo"),
        ("DELETE FROM job WHERE change = (SELECT change FROM job ORDER BY run DESC LIMIT 1)", "job: only in the first"),
        ("UPDATE source SET position = '[1, \"\"]'", "source.position"),
        ("INSERT INTO unfinished VALUES (1, 7, NULL)", "unfinished: only in the second"),
    ],
)
def test_what_differs_is_found(tmp_path: Path, store: Path, change: str, found: str) -> None:
    other = tmp_path / "jobs.db"
    shutil.copy(store, other)
    assert differences(store, other) == []
    with closing(sqlite3.connect(other)) as opened, opened:
        assert opened.execute(change).rowcount > 0
    assert found in differences(store, other)[0]


def test_numbers_of_changes_and_of_persons_are_not_compared(tmp_path: Path, store: Path) -> None:
    other = tmp_path / "jobs.db"
    shutil.copy(store, other)
    with closing(sqlite3.connect(other)) as opened, opened:
        opened.execute("UPDATE job SET change = change + 1000, person = person + 1000")
        opened.execute("UPDATE person SET id = id + 1000")
    assert differences(store, other) == []


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [pytest.param(20_000, 30, marks=pytest.mark.slow), pytest.param(100_000, 100, marks=pytest.mark.long)],
)
def test_a_load_that_is_killed_at_random_moments_is_equal_to_one_that_is_not(
    tmp_path: Path, jobs: int, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status = compare(tmp_path, database_of(tmp_path, jobs), kills, random.Random(1))
    assert status == 0, capsys.readouterr().out
