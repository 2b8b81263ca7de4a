"""What writing the jobs of an import costs, in statements, and what is said of a file that cannot be read."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from publisher.model.errors import Busy, LedgerError, PublisherError
from publisher.sources.files.database import ImportDatabase
from publisher.sources.importers import ImportedJob, StoredJobs


def jobs(count: int, wall_s: int = 60) -> list[ImportedJob]:
    """Of two users."""
    return [
        ImportedJob(
            f"hpc1:{number}",
            str(number),
            ("sacct", "sacct://hpc1"),
            "batch",
            f"user{number % 2}",
            "atlas",
            "completed",
            0,
            1_790_000_000,
            1_790_000_010,
            1_790_000_010 + wall_s,
            *(1, 1, 0, 0, wall_s, 50, 1, 0),
            "slurm",
            str(number),
            (("lrms", "slurm"), ("jobname", "analysis")),
        )
        for number in range(count)
    ]


def put(accounting: ImportDatabase, page: list[ImportedJob]) -> tuple[StoredJobs, list[str]]:
    """What became of the jobs, and the statements that it took."""
    statements: list[str] = []
    accounting.connection.set_trace_callback(statements.append)
    with accounting.transaction():
        stored = accounting.put(page)
    accounting.connection.set_trace_callback(None)
    return stored, statements


@pytest.mark.parametrize("count", [10, 500])
def test_a_page_of_new_jobs_takes_their_rows_and_few_statements_more(tmp_path: Path, count: int) -> None:
    with ImportDatabase(tmp_path / "imported.db") as accounting:
        put(accounting, jobs(2, wall_s=1))
        stored, statements = put(accounting, [job._replace(job_id=f"x{job.job_id}") for job in jobs(count)])
    assert stored == StoredJobs(inserted=count, updated=0)
    assert len([each for each in statements if each.startswith("INSERT INTO AAR")]) == count
    assert len([each for each in statements if each.startswith("INSERT INTO JobExtraInfo")]) == count
    assert len(statements) <= 3 * count + 5


@pytest.mark.parametrize("count", [10, 500])
def test_jobs_that_are_there_are_looked_up_together(tmp_path: Path, count: int) -> None:
    with ImportDatabase(tmp_path / "imported.db") as accounting:
        put(accounting, jobs(count))
        stored, statements = put(accounting, jobs(count))
    assert stored == StoredJobs(inserted=0, updated=0)
    assert len(statements) <= count + 8


def test_of_several_rows_of_one_job_in_a_page_the_greatest_stays(tmp_path: Path) -> None:
    one, two, three = (jobs(1, wall_s)[0] for wall_s in (60, 90, 70))
    with ImportDatabase(tmp_path / "imported.db") as accounting:
        assert put(accounting, [one, three, two, three])[0] == StoredJobs(inserted=1, updated=2)
        found = accounting.connection.execute("SELECT JobID, UsedWalltime FROM AAR").fetchall()
        extra = accounting.connection.execute("SELECT count(*) FROM JobExtraInfo").fetchone()
    assert found == [("hpc1:0", 90)]
    assert extra == (2,)


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (sqlite3.SQLITE_PROTOCOL, LedgerError, "a lock of its file system failed"),
        (sqlite3.SQLITE_BUSY, Busy, "another process keeps it locked"),
    ],
)
def test_what_cannot_be_read_between_transactions_is_no_bug(
    tmp_path: Path, code: int, expected: type[PublisherError], words: str
) -> None:
    failed = sqlite3.OperationalError("locking protocol")
    failed.sqlite_errorcode = code
    accounting = ImportDatabase(tmp_path / "imported.db")
    with pytest.raises(expected, match=f"imported.db: .*{words}"), accounting:
        raise failed


def test_a_transaction_in_which_something_is_raised_leaves_neither_jobs_nor_names(tmp_path: Path) -> None:
    with ImportDatabase(tmp_path / "imported.db") as accounting:
        with suppress(KeyboardInterrupt), accounting.transaction():
            accounting.put(jobs(2))
            raise KeyboardInterrupt
        assert accounting.connection.execute("SELECT count(*) FROM AAR").fetchone() == (0,)
        put(accounting, jobs(2))
        users = "SELECT Name FROM AAR JOIN Users ON Users.ID = UserID ORDER BY RecordID"
        assert accounting.connection.execute(users).fetchall() == [("user0",), ("user1",)]


def test_a_log_that_was_left_behind_is_not_that_of_a_new_database(tmp_path: Path) -> None:
    """Of an importer that was killed, the log stays; who removes the database alone begins anew."""
    path = tmp_path / "imported.db"
    with ImportDatabase(path) as accounting:
        put(accounting, jobs(50))
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"kept{suffix}").write_bytes((tmp_path / f"imported.db{suffix}").read_bytes())
    path.unlink()
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"kept{suffix}").rename(tmp_path / f"imported.db{suffix}")
    with ImportDatabase(path) as accounting:
        assert accounting.connection.execute("SELECT count(*) FROM AAR").fetchone() == (0,)
        assert put(accounting, jobs(3))[0] == StoredJobs(inserted=3, updated=0)
        assert accounting.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
