"""Jobs that an ARC CE publishes itself are not imported from the batch system behind it."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.jobs.batch import prune
from publisher.jobs.store import open_store
from publisher.jobs.tables.batch_runs import LinkState
from publisher.model.errors import SourceError
from tests.arex_databases import Writer, generate
from tests.arex_databases.schema import create
from tests.sources.mortal_imports import FOR_EVER, child
from tests.support import gridengine_files as sge
from tests.support import sacct_text as slurm
from tests.support import sonar_files as sonar
from tests.support.batch_stores import asked, hidden
from tests.support.gridengine_files import BEGIN, HEADER, NOW, Entry, colon, jobs, write
from tests.support.patience import PATIENCE_S

DAY_S = 86_400


@pytest.fixture
def arc(tmp_path: Path) -> Path:
    path = tmp_path / "accounting_v2.db"
    create(path)
    return path


def accept(arc: Path, local_id: str, submitted: int, ended: int) -> None:
    """What A-REX knows of a job by then."""
    with closing(sqlite3.connect(arc)) as connection, connection:
        connection.execute(
            "INSERT INTO AAR (JobID, LocalJobID, SubmitTime, EndTime) VALUES (?, ?, ?, ?)",
            (f"{local_id}-{submitted}", local_id, submitted, ended),
        )


def names(database: Path) -> list[str]:
    return sorted(job["LocalJobID"] for job in jobs(database).values())


def test_grid_engine_behind_a_ce(tmp_path: Path, arc: Path) -> None:
    accept(arc, "1", BEGIN - 60, BEGIN + 700)
    accept(arc, "2", BEGIN - 60, 0)  # its end was not seen yet
    accept(arc, "3", BEGIN - 90 * DAY_S, BEGIN - 89 * DAY_S)  # the number came again
    accept(arc, "7", BEGIN - 60, BEGIN + 700)
    tight = replace(Entry(), job=7, pe="mpi", slots=4)
    log = [colon(replace(Entry(), job=number)) for number in (1, 2, 3, 4)]
    log += [colon(replace(tight, pe_task="1.node2")), colon(tight)]
    database = tmp_path / "imported.db"
    report = sge.run_import(database, write(tmp_path / "accounting", log), arc_databases=(arc,))
    assert names(database) == ["3", "4"]
    assert report.skipped == {"an ARC CE publishes it": 3}
    assert report.duplicates == 0


def test_lines_of_grid_engine_wait_for_the_ce(tmp_path: Path, arc: Path) -> None:
    """A-REX tells the batch system's number only when it has seen the end."""
    first, *rest = (replace(Entry(), job=n, started=BEGIN + n * 3600, ended=BEGIN + n * 3600 + 60) for n in range(40))
    lines = [colon(replace(first, job=99)), *map(colon, rest)]
    path, database = write(tmp_path / "accounting", lines), tmp_path / "imported.db"
    now = datetime.fromtimestamp(BEGIN + 30 * 3600 + DAY_S, UTC)
    report = sge.run_import(database, path, arc_databases=(arc,), now=now)
    assert (report.lines, report.imported, report.held) == (40, 30, 10)
    why = "an ARC CE may still have them (arc_wait_s, arc_outage_s), or its database could not be read"
    assert report.notes == [f"10 runs wait: {why}"]
    accept(arc, "35", BEGIN, 0)
    again = sge.run_import(database, path, arc_databases=(arc,), now=now + timedelta(hours=1))
    assert (again.lines, again.imported, again.held, again.skipped) == (0, 1, 8, {"an ARC CE publishes it": 1})
    report = sge.run_import(database, path, arc_databases=(arc,), now=now + timedelta(days=2))
    assert (report.imported, report.held, report.notes) == (8, 0, [])
    assert names(database) == sorted(str(number) for number in (99, *range(1, 40)) if number != 35)


def test_a_ces_database_that_is_named_twice_is_read_once(tmp_path: Path, arc: Path) -> None:
    accept(arc, "1", BEGIN - 60, BEGIN + 700)
    log = write(tmp_path / "accounting", [colon(replace(Entry(), job=number)) for number in (1, 4)])
    database = tmp_path / "imported.db"
    report = sge.run_import(database, log, arc_databases=(arc, arc))
    again = sge.run_import(database, log, arc_databases=(arc, arc))
    assert names(database) == ["4"]
    assert (report.imported, again.imported) == (1, 0)


KILLED_WHILE_CLAIMED = """
from datetime import UTC, datetime
from pathlib import Path
from tests.support import sacct_text as slurm

def run_import(database, *logs):
    arc = (Path({arc!r}),)
    return slurm.run_import(database, *logs, now=datetime.fromtimestamp({now}, UTC), arc_databases=arc)
"""


@pytest.mark.slow
def test_killed_at_any_statement_each_run_is_in_one_place(tmp_path: Path, arc: Path) -> None:
    """Some wait for the CE, some it has, some are old enough to be nobody's."""
    lines = [
        line for n in range(40) for one in [slurm.job(n, Submit=BEGIN + n * 3600)] for line in (one, slurm.step(one))
    ]
    path, database = write(tmp_path / "sacct", [slurm.text(lines)]), tmp_path / "imported.db"
    claimed = list(range(0, 40, 3))
    left, killed = list(claimed), 0
    for steps, hour in enumerate([*range(10, 70, 4), 70, 70]):
        while left and left[0] + 6 <= hour:  # A-REX is some hours late
            number = left.pop(0)
            accept(arc, str(number), BEGIN + number * 3600 - 5, BEGIN + number * 3600 + 200)
        set_up = KILLED_WHILE_CLAIMED.format(arc=str(arc), now=BEGIN + hour * 3600)
        process = child(set_up, database, FOR_EVER if hour == 70 else 40 + 23 * steps, path)
        killed += process.wait(PATIENCE_S) == -signal.SIGKILL
    assert (process.returncode, killed > 5) == (0, True)
    assert names(database) == sorted(str(number) for number in range(40) if number not in claimed)
    assert hidden(database) == sorted((str(number), LinkState.OF_CE) for number in claimed)


def test_an_end_in_a_far_future_holds_up_nothing(tmp_path: Path, arc: Path) -> None:
    log = [colon(replace(Entry(), job=1, ended=BEGIN + 10**9)), colon(Entry())]
    report = sge.run_import(tmp_path / "imported.db", write(tmp_path / "accounting", log), arc_databases=(arc,))
    assert report.imported == 2


def test_slurm_behind_a_ce(tmp_path: Path, arc: Path) -> None:
    start, end = int(sonar.DAY.timestamp()) + 600, int(sonar.DAY.timestamp()) + 6600
    path = write(tmp_path / "told", [sonar.envelope([sonar.record(job_id=n, array_job_id=5) for n in (1, 2)])])
    database = tmp_path / "imported.db"
    young = datetime.fromtimestamp(end + DAY_S - 1, UTC)
    report = sonar.run_import(database, path, arc_databases=(arc,), now=young, array_ids=True)
    assert (report.imported, report.held) == (0, 2)
    accept(arc, "1", start - 60, end + 60)
    report = sonar.run_import(database, path, arc_databases=(arc,), now=young + timedelta(seconds=1), array_ids=True)
    assert (report.imported, report.skipped) == (1, {"an ARC CE publishes it": 1})
    accept(arc, "2", start - 60, end + 60)  # known too late: as it was, until it is told again
    assert sonar.run_import(database, path, arc_databases=(arc,), array_ids=True).skipped == {}


def test_without_the_ces_database_nothing_is_imported(tmp_path: Path) -> None:
    database, missing = tmp_path / "imported.db", tmp_path / "missing.db"
    with pytest.raises(SourceError, match=r"missing\.db"):
        sge.run_import(database, write(tmp_path / "accounting", [colon(Entry())]), arc_databases=(missing,))
    with closing(sqlite3.connect(missing)) as connection, connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(SourceError, match="holds no accounting tables"):
        sonar.run_import(
            tmp_path / "s.db", write(tmp_path / "told", [sonar.envelope([sonar.record()])]), arc_databases=(missing,)
        )
    assert names(tmp_path / "s.db") == []


def test_the_ces_database_is_only_read(tmp_path: Path, arc: Path) -> None:
    before = arc.read_bytes()
    sge.run_import(
        tmp_path / "i" / "imported.db", write(tmp_path / "accounting", [colon(Entry())]), arc_databases=(arc,)
    )
    assert arc.read_bytes() == before
    of_others = ["imported-of-others.db", "imported.db", "imported.db.lock"]
    assert sorted(path.name for path in (tmp_path / "i").iterdir()) == of_others


def begin(arc: Path, job_id: str, submitted: int) -> None:
    """A-REX has accepted a job, and tells its number when it is over."""
    with closing(sqlite3.connect(arc)) as connection, connection:
        connection.execute(
            "INSERT INTO AAR (JobID, LocalJobID, SubmitTime, EndTime) VALUES (?, '', ?, 0)", (job_id, submitted)
        )


def finish(arc: Path, job_id: str, local_id: str, ended: int) -> None:
    with closing(sqlite3.connect(arc)) as connection, connection:
        connection.execute("UPDATE AAR SET LocalJobID = ?, EndTime = ? WHERE JobID = ?", (local_id, ended, job_id))


def waiting(database: Path) -> list[tuple[int, int | None]]:
    with asked(database) as connection:
        return connection.execute("SELECT waiting, since FROM ce").fetchall()


class CeAndCluster:
    """Job 1 of Grid Engine is a CE's, job 2 nobody's; times in hours since the CE accepted its job."""

    def __init__(self, folder: Path, arc: Path) -> None:
        self.arc, self.database = arc, folder / "imported.db"
        begin(arc, "of-the-ce", BEGIN - 60)
        ends = {number: replace(Entry(), job=number, started=BEGIN, ended=BEGIN + 3600) for number in (1, 2)}
        self.log = write(folder / "accounting", [colon(each) for each in ends.values()])

    def read(self, hours: float, **keys: object) -> list[str]:
        now = datetime.fromtimestamp(BEGIN + hours * 3600, UTC)
        sge.run_import(self.database, self.log, now=now, arc_databases=(self.arc,), **keys)
        return names(self.database)


def test_jobs_wait_while_a_ce_that_has_some_writes_nothing(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    assert both.read(24.5) == []
    assert waiting(both.database) == [(0, None)]
    assert both.read(96) == []
    assert waiting(both.database) == [(2, BEGIN + 25 * 3600)]
    finish(arc, "of-the-ce", "1", BEGIN + 97 * 3600)
    assert both.read(98) == ["2"]  # no job of the CE is left that it may be
    assert waiting(both.database) == [(0, None)]


def test_a_ce_that_is_back_has_time_to_tell_what_it_missed(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    assert both.read(96) == []
    begin(arc, "another", BEGIN + 97 * 3600)
    assert both.read(98) == []
    begin(arc, "one-more", BEGIN + 110 * 3600)
    assert both.read(121) == []
    finish(arc, "of-the-ce", "1", BEGIN + 97 * 3600)
    assert both.read(122.5) == ["2"]


def test_a_ce_that_writes_is_waited_for_no_longer_than_arc_wait_s(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    for hour in (10, 20, 24.9):
        begin(arc, f"at-{hour}", int(BEGIN + hour * 3600))
        assert both.read(hour) == []
    begin(arc, "later", BEGIN + 25 * 3600)
    assert both.read(25) == ["1", "2"]


def test_a_ce_that_is_silent_for_too_long_is_waited_for_no_more(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    assert both.read(14 * 24) == []
    assert both.read(14 * 24 + 1) == ["1", "2"]


def test_a_job_that_the_ce_lost_long_ago_holds_up_nothing(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    with closing(sqlite3.connect(arc)) as connection, connection:
        connection.execute("UPDATE AAR SET SubmitTime = ?", (BEGIN - 90 * DAY_S,))
    assert both.read(24.9) == []
    assert both.read(25) == ["1", "2"]


def test_the_administrator_decides_how_long(tmp_path: Path, arc: Path) -> None:
    both = CeAndCluster(tmp_path, arc)
    assert both.read(47, arc_outage_s=2 * DAY_S) == []
    assert both.read(49, arc_outage_s=2 * DAY_S) == ["1", "2"]


def test_what_became_a_job_of_the_batch_system_stays_one(tmp_path: Path, arc: Path) -> None:
    """Another run of the job as well, so that its usage is somewhere."""
    both = CeAndCluster(tmp_path, arc)
    assert both.read(30 * 24) == ["1", "2"]
    finish(arc, "of-the-ce", "1", BEGIN + 3700)
    again = replace(Entry(), job=1, started=BEGIN + 1800, ended=BEGIN + 3650)
    write(both.log, [both.log.read_bytes(), colon(again)])
    assert both.read(31 * 24) == ["1", "1", "2"]


def test_runs_kept_for_a_ce_are_pruned_and_stay_its(tmp_path: Path, arc: Path) -> None:
    """Though the CE has forgotten them, and an old file tells of them again."""
    (job,) = generate(1, 1, NOW - timedelta(days=30), NOW)
    with Writer(arc, schema=2) as arex:
        arex.write_all([replace(job.moved_to(BEGIN + 700), local_job_id="1", submit_time=BEGIN - 60)])
    log, database = write(tmp_path / "accounting", [colon(replace(Entry(), job=n)) for n in (1, 2)]), tmp_path / "i.db"
    sge.run_import(database, log, arc_databases=(arc,))
    with closing(sqlite3.connect(arc)) as connection, connection:
        connection.execute("DELETE FROM AAR")
    with closing(open_store(database)) as store:
        prune(store, BEGIN + DAY_S, BEGIN + DAY_S)
    assert hidden(database) == []
    again = write(tmp_path / "again", [HEADER, *(colon(replace(Entry(), job=n)) for n in (1, 2))])
    sge.run_import(database, again, arc_databases=(arc,))
    assert names(database) == ["2"]
    assert hidden(database) == [("1", LinkState.OF_CE)]
