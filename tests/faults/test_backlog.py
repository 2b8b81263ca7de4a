"""`status`, Nagios' line and metrics while very many jobs wait, or while somebody holds a database locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.accounts import LiveAccounting
from publisher.ledger.sqlite.connection import open_ledger_file
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, LoadedPage, Position, ReadRequest
from publisher.publishing import status as standing
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import LOCK_WAIT_S
from publisher.publishing.status import LOOKED_AT, TargetStatus
from publisher.reporting.metrics import collector
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from publisher.sources.arex.values import position_at, row_of
from publisher.sources.base import JobSource, Source
from tests.arex_databases import Writer, bulk, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.sources.contract import every_row
from tests.support.metrics_site import WatchedSite
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = 2 * LOOKED_AT + 700
PAGE = 500
REQUEST = ReadRequest(frozenset(), Epoch(int(END.timestamp())))


@dataclass
class CountingSource:
    """Sources that tell how much was read of them, and how much was only counted."""

    source: Source
    read: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    def sources(self) -> list[Any]:
        return [CountingDatabase(each, self) for each in self.source.sources()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


@dataclass
class CountingDatabase:
    database: JobSource
    among: CountingSource

    def read(self, *asked: Any) -> Iterator[LoadedPage]:
        for page in self.database.read(*asked):
            self.among.read.append(page.rows)
            yield page

    def rows_after(self, position: Position | None) -> int:
        self.among.counted.append(self.database.rows_after(position))
        return self.among.counted[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


class CountingSite:
    """A site that keeps every source that was asked of it."""

    def __init__(self, site: WatchedSite) -> None:
        self._site = site.live()
        self.accounting = CountingAccounting(self._site.accounting)

    @property
    def rows(self) -> int:
        return sum(sum(source.read) for source in self.accounting.sources)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)


class CountingAccounting:
    """Accounting data that keeps every source that was asked of it."""

    def __init__(self, accounting: LiveAccounting) -> None:
        self._accounting = accounting
        self.sources: list[CountingSource] = []
        self.waits: list[float | None] = []

    @property
    def batch_systems(self) -> frozenset[str]:
        return self._accounting.batch_systems

    def open(self, *, lock_wait_s: float | None = None) -> Any:
        self.waits.append(lock_wait_s)
        self.sources.append(CountingSource(self._accounting.open(lock_wait_s=lock_wait_s)))
        return self.sources[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accounting, name)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "accounting_v2.db"
    bulk(path, 2, JOBS, 1, START, END)
    return path


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> WatchedSite:
    return WatchedSite(SiteUnderTest(tmp_path, pki, fake_ams))


def put(database: Path, site: ConfiguredSite) -> None:
    site.database().parent.mkdir(parents=True, exist_ok=True)
    site.database().write_bytes(database.read_bytes())
    site.config["source"]["page_rows"] = PAGE


def status(site: CountingSite) -> TargetStatus:
    found, trouble = standing.status(site, targets=["egi"])
    assert trouble == ""
    return found[0]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Held by somebody who lets no one read."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        if path.name == "publishing.db":
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        else:
            holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        yield


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_of_very_many_jobs_the_first_are_looked_at_and_the_others_counted(
    site: WatchedSite, many: Path, form: str
) -> None:
    put(many, site.site)
    site.site.config["targets"]["egi"]["format"] = form
    counting = CountingSite(site)
    found = status(counting)
    assert (found.pending, found.exact) == (JOBS, False)
    assert LOOKED_AT <= counting.rows < LOOKED_AT + PAGE
    assert [rows for source in counting.accounting.sources for rows in source.counted] == [JOBS - LOOKED_AT]
    with closing(sqlite3.connect(many)) as connection:
        assert found.oldest_unsent == connection.execute("SELECT min(EndTime) FROM AAR").fetchone()[0]


def test_so_is_it_said(site: WatchedSite, many: Path, fake_ams: FakeAMS) -> None:
    put(many, site.site)
    told = site.site.run("status", "--json").json["targets"]["egi"]
    assert (told["pending"], told["exact"]) == (JOBS, False)
    assert f"at most {JOBS:,}" in site.site.run("status").out
    _, line = site.nagios("--warning", "pending=10")
    assert f"egi: at most {JOBS:,} jobs pending" in line
    assert f"'egi_pending'={JOBS};10" in line
    fake_ams.faults.always(Fault.status(503))
    site.site.config["targets"]["egi"]["attempts"] = 1
    site.round(force=True)
    assert site.told()["publisher_pending_jobs", "egi"] > JOBS - LOOKED_AT


def test_few_jobs_are_counted_exactly(site: WatchedSite) -> None:
    site.site.fill(*generate(1, 40, START, END))
    site.site.config["targets"]["egi"]["vos"] = ["atlas"]
    counting = CountingSite(site)
    found = status(counting)
    assert found.exact
    assert found.pending is not None
    assert 0 < found.pending < 40
    assert counting.rows == 40
    assert f"at most {found.pending}" not in site.site.run("status").out


def test_jobs_that_are_in_two_databases_wait_once(site: WatchedSite) -> None:
    """As `migrate` leaves them, before the first round and after it."""
    for seed, jobs in ((1, 40), (2, 10)):
        site.site.fill(*generate(seed, jobs, START, END), schema=1)
        site.site.fill(*generate(seed, jobs, START, END), schema=2)
        found = status(CountingSite(site))
        assert (found.pending, found.exact) == (jobs, True)
        assert site.round(force=True)


def test_jobs_that_run_cost_next_to_nothing_and_those_that_ended_since_are_counted(site: WatchedSite) -> None:
    """Rows that were read before their jobs ended: only those that have ended by now are read again."""
    jobs = list(generate(2, 60, START, END))
    with site.site.arex() as arex:
        for job in jobs[:50]:
            arex.accept(job)
        arex.write_all(jobs[50:])
        site.round(force=True)
        assert status(CountingSite(site)).pending == 0
        for job in jobs[:7]:
            arex.finish(job)
        counting = CountingSite(site)
        found = status(counting)
    assert (found.pending, found.exact, counting.rows) == (7, True, 7)
    assert found.oldest_unsent == min(job.end_time for job in jobs[:7])


def test_several_targets_share_what_is_looked_at(site: WatchedSite, many: Path) -> None:
    put(many, site.site)
    targets = site.site.config["targets"]
    targets["second"] = dict(targets["egi"])
    granted = {"project": "atlas", "valid_from": "2020-01", "valid_to": "2040-12", "gpu_hours": 1000}
    site.site.config["records"]["allocations"] = [granted]
    counting = CountingSite(site)
    found, _ = standing.status(counting, targets=[])
    assert [one.pending for one in found] == [JOBS, JOBS]
    assert counting.rows <= LOOKED_AT + 2 * PAGE


def test_an_upper_bound_stays_one_where_rows_do_not_count(tmp_path: Path, many: Path) -> None:
    """Behind a position that fits no more all rows are ahead; rows that are gone are counted nevertheless."""
    path = tmp_path / "accounting_v2.db"
    path.write_bytes(many.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM AAR WHERE RecordID BETWEEN 701 AND 710")
        connection.commit()
    with closing(create(Options(databases=(str(path),), page_rows=PAGE), {})) as source:
        (database,) = source.sources()
        for position in (
            None,
            next(database.read(None, (), REQUEST)).position,
            position_at(JOBS - 10, "another job's"),
        ):
            yielded = sum(page.rows for page in database.read(position, (), REQUEST))
            assert yielded == (JOBS - PAGE - 10 if position and row_of(position) == PAGE else JOBS - 10)
            assert database.rows_after(position) == yielded + 10


@pytest.mark.parametrize("columns", [{"EndTime": None}, {"EndTime": 0}, {"EndTime": "soon"}, {"EndTime": b"\0"}])
def test_only_numbers_are_ends(tmp_path: Path, columns: dict[str, object]) -> None:
    path = tmp_path / "a.db"
    with Writer(path) as arex:
        arex.write_all(generate(3, 9, START, END))
        arex.connection.execute("UPDATE AAR SET EndTime = ? WHERE RecordID = 4", (columns["EndTime"],))
        expected = dict(arex.connection.execute("SELECT RecordID, EndTime FROM AAR WHERE RecordID <> 4"))
    with closing(create(Options(databases=(str(path),)), {})) as source:
        (database,) = source.sources()
        rows = every_row(database.read(None, (), REQUEST))
        assert len(rows) == 9
        ends = database.ends(rows)
        assert {row.record_id: end for row, end in ends.items()} == expected


@pytest.mark.slow
def test_a_locked_accounting_database_is_told_as_what_it_is(site: WatchedSite, many: Path) -> None:
    """Once, for all targets; what the ledger knows is told all the same."""
    put(many, site.site)
    targets = site.site.config["targets"]
    targets["second"] = dict(targets["egi"])
    with locked(site.site.database()):
        counting = CountingSite(site)
        found, trouble = standing.status(counting, targets=[])
        assert [(one.pending, one.late, one.delivered) for one in found] == [(None, None, 0)] * 2
        assert counting.accounting.waits == [LOCK_WAIT_S], "and no more: it is locked for the second target too"
        assert LOCK_WAIT_S <= 2
        for word in (str(site.site.database()), "another process holds it locked", "fuser"):
            assert word in trouble
        said = site.site.run("status")
        assert said.status == 66
        assert "unknown" in said.out
        assert "another process holds it locked" in said.err
        state, line = site.nagios()
        assert "'egi_pending'=U" in line
        assert "another process holds it locked" in line
        assert state in (1, 3)


@pytest.mark.slow
def test_metrics_tell_of_the_lock_too(site: WatchedSite, many: Path) -> None:
    put(many, site.site)
    with locked(site.site.database()):
        counting: Any = CountingSite(site)
        counting.usage = None  # reading that would wait for as long as a round does
        collector.after_round(counting, Outcome(target="egi", outcome="error", exit_status=66))
    told = site.told()
    assert told[("publisher_accounting_readable",)] == 0
    assert ("publisher_pending_jobs", "egi") not in told
    assert counting.accounting.waits == [LOCK_WAIT_S]


@pytest.mark.slow
def test_a_locked_ledger_is_told_as_what_it_is(site: WatchedSite) -> None:
    with site.site.arex() as arex:
        arex.write(next(generate(1, 1, START, END)))
    site.round(force=True)
    state = site.live().ledgers.state
    with closing(open_ledger_file(state, read_only=True)) as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone()[0] <= 2000
    with locked(state):
        with pytest.raises(LedgerError, match="another program holds it"):
            standing.status(site.live(), targets=[])
        assert site.nagios()[0] == 3
        assert site.site.run("status").status == 74
