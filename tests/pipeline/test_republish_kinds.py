"""A window that goes out again by kinds of jobs: the same messages in the same order as job by job, and the same ledger."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.site import LiveSite
from publisher.model import time as when
from publisher.pipeline.republish import plan, run
from publisher.pipeline.round.outcome import Outcome
from publisher.sources.base import Page
from tests.arex_databases import Schema, Writer, generate
from tests.pipeline.test_grouped import END, RULES, START, SlowSite, databases, written
from tests.pipeline.test_kinds import filled
from tests.pipeline.test_read_ahead import PAGE_ROWS, Pair
from tests.support.patience import sending_ends
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

__all__ = ["databases"]


class Stopped(BaseException):
    """The process ends here, as far as it can without ending the test."""


def nothing(page: int) -> None:
    pass


class Steps:
    """Counts what it is told, and stops at one of them; `alike` jobs came by kinds. `meanwhile` is done behind each page."""

    def __init__(self, fatal: int, meanwhile: Callable[[int], None] = nothing) -> None:
        self._left = fatal
        self._meanwhile = meanwhile
        self._pages = 0
        self.alike = 0

    def page_read(self, target: str, page: Page) -> None:
        self.alike += len(page.alike)
        self._pages += 1
        self._meanwhile(self._pages)
        self._step()

    def _step(self, *told: object, **also: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stopped

    def __getattr__(self, name: str) -> Any:
        return self._step


def messages(site: ConfiguredSite) -> dict[str, bytes]:
    """Whole, by name."""
    return {file.name: file.read_bytes() for file in (site.folder / "outgoing").rglob("*") if file.is_file()}


def window_marks(site: ConfiguredSite) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(site.state)) as ledger:
        return ledger.execute("SELECT name, ended_at, file, record_id FROM window_progress").fetchall()


def republish(pair: Pair, first: str, last: str, fatal: int = 0, meanwhile: Callable[[int], None] = nothing) -> int:
    """By both sites, up to a step; how many jobs of kinds the one met. Nothing tells them apart afterwards."""
    accounting = {file: file.read_bytes() for file in pair.ahead.control.rglob("*.db")}
    pair.now += timedelta(minutes=1)
    before = messages(pair.ahead).keys() | messages(pair.alone).keys()
    ends: list[list[Outcome] | None] = []
    met: list[int] = []
    for site, kind in ((pair.ahead, LiveSite), (pair.alone, SlowSite)):
        live = pair.live(site, kind, None)
        span = when.window(when.parse_from(first, pair.now), when.parse_to(last, pair.now))
        wish = plan.RepublishRequest(window=span, brake=False, accept_key_change=True)
        steps = Steps(fatal, meanwhile)
        for file, content in accounting.items():
            file.write_bytes(content)
        plans = plan.plan(live, live.settings.targets, wish, Steps(0))
        try:
            with sending_ends():
                ends.append(run.carry_out(live, live.settings.targets, plans, wish, steps, dry_run=False))
        except Stopped:
            ends.append(None)
        met.append(steps.alike)
    assert ends[0] == ends[1]
    here, there = written(pair.ahead.state), written(pair.alone.state)
    for part, content in there.items():
        assert here[part] == content, part
    assert window_marks(pair.ahead) == window_marks(pair.alone)
    assert pair.sums(pair.ahead) == pair.sums(pair.alone)
    sent = [
        {name: one for name, one in messages(site).items() if name not in before} for site in (pair.ahead, pair.alone)
    ]
    assert sent[0] == sent[1]
    assert met[1] == 0
    return met[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur", "apel-job-0.2", "apel-job-0.4"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.some(3)
def test_what_was_never_delivered_and_what_was(tmp_path: Path, pki: PKI, form: str, seed: int) -> None:
    """Odd rows stand between the others, so that jobs of kinds and jobs by themselves take turns."""
    pair, ordinary = filled(tmp_path, pki, form, seed, {}, batch_records=17)
    assert republish(pair, "2026-09", "2026-09") > ordinary / 10
    assert republish(pair, "2026-09", "2026-10") > ordinary / 3
    pair.publish()
    assert republish(pair, "2026-10", "2026-10") > ordinary / 10


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.some(3)
def test_under_every_rule(tmp_path: Path, pki: PKI, rules: str) -> None:
    pair, _ = filled(tmp_path, pki, "car", 0, RULES[rules], batch_records=40)
    pair.publish()
    assert republish(pair, "2026-09", "2026-10") > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.some(3)
def test_changed_held_and_dropped_runs_between_them(tmp_path: Path, pki: PKI, form: str, seed: int) -> None:
    pair, ordinary = filled(tmp_path, pki, form, seed, {"localid_prefix": "a-"}, batch_records=23)
    rng = random.Random(seed)
    schema: Schema = 1 if seed % 2 else 2
    pair.publish()
    for _ in range(2):
        with closing(sqlite3.connect(pair.ahead.database(schema))) as arex, arex:
            rows = [row for (row,) in arex.execute("SELECT RecordID FROM AAR WHERE EndTime > 0")]
            sets = ("UsedWalltime = UsedWalltime + 7", "EndTime = EndTime + 31", "LocalJobID = 'again' || RecordID")
            for row in rng.sample(rows, 30):
                arex.execute(f"UPDATE AAR SET {rng.choice(sets)} WHERE RecordID = ?", (row,))
            one, other = rng.sample(rows, 2)
            arex.execute(
                "UPDATE AAR SET (LocalJobID, EndTime) = (SELECT LocalJobID, EndTime FROM AAR WHERE RecordID = ?) "
                "WHERE RecordID = ?",
                (one, other),
            )
        for site in (pair.ahead, pair.alone):
            with closing(sqlite3.connect(site.state)) as ledger, ledger:
                ledger.execute("UPDATE quarantine SET hold = 'dropped' WHERE key IN (SELECT min(key) FROM quarantine)")
                ledger.execute("UPDATE quarantine SET hold = 'released' WHERE key IN (SELECT max(key) FROM quarantine)")
        assert republish(pair, "2026-09", "2026-10") > ordinary / 3
        pair.all_again()
        pair.publish()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur"])
@pytest.mark.parametrize("limit", [{"batch_records": 19}, {"batch_bytes": 30_000}], ids=str)
@pytest.mark.some(2)
def test_stopped_anywhere_it_goes_on_from_the_same_job(
    tmp_path: Path, pki: PKI, form: str, limit: dict[str, int]
) -> None:
    pair, _ = filled(tmp_path, pki, form, 1, {}, **limit)
    rng = random.Random(1)
    for _ in range(6):
        republish(pair, "2026-09", "2026-10", fatal=rng.randrange(2, 30))
    assert window_marks(pair.ahead), "it was not over yet"
    republish(pair, "2026-09", "2026-10")
    assert not window_marks(pair.ahead)
    pair.publish()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["RecordID = RecordID + 100000", "EndTime = 1793400000"])
@pytest.mark.parametrize("fatal", [0, 35])
@pytest.mark.some(2)
def test_rows_that_change_once_their_page_was_read(tmp_path: Path, pki: PKI, how: str, fatal: int) -> None:
    """A job that goes by itself is the one that was read, and the mark behind it is in its page."""
    pair, _ = filled(tmp_path, pki, "car", 0, {}, batch_records=13)

    def change(what: str) -> None:
        with closing(sqlite3.connect(pair.ahead.database(2))) as arex, arex:
            arex.execute(f"UPDATE AAR SET {what} WHERE EndTime BETWEEN 1 AND 1793400000 AND RecordID % 5 = 0")

    def meanwhile(page: int) -> None:
        if page == 8:
            change(how)

    pair.publish()
    change("UsedWalltime = UsedWalltime + 7")
    republish(pair, "2026-09", "2026-10", fatal, meanwhile)
    republish(pair, "2026-09", "2026-10")


def test_two_databases(tmp_path: Path, pki: PKI, databases: dict[Schema, Path]) -> None:
    pair = Pair(tmp_path, pki, "car", {}, batch_records=31)
    shutil.copy(databases[1], pair.ahead.database(1))
    shutil.copy(databases[2], pair.ahead.database(2))
    for fatal in (40, 0):
        republish(pair, "2026-09", "2026-10", fatal=fatal)


def test_jobs_that_are_in_two_databases(tmp_path: Path, pki: PKI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion without any job of its own, as ARC's `migrate` leaves it, is not read for ever."""
    monkeypatch.setattr(run, "_PORTION_ROWS", 2 * PAGE_ROWS)
    monkeypatch.setattr(run, "_BREATH_S", 0)
    pair = Pair(tmp_path, pki, "car", {})
    jobs = list(generate(7, 6 * PAGE_ROWS, START, END))
    for schema in (1, 2):
        with Writer(pair.ahead.database(schema), schema=schema) as arex:
            arex.write_all(jobs)
    assert republish(pair, "2026-09", "2026-10", fatal=200) > 0
    assert not window_marks(pair.ahead)
