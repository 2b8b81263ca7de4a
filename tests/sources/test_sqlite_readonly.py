"""Opening a file that somebody else writes: every row or an error, and nothing written beside it."""

import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import publisher
from publisher.model.errors import SourceError
from publisher.model.job import Epoch, ReadRequest
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from publisher.sources.sqlite_reader import CopyDirectory, OpenMode, ReadOnlyFile
from tests.arex_databases import (
    SampleJob,
    Writer,
    generate,
    leave_wal,
    make_damaged,
    make_empty,
    make_missing,
    make_not_a_database,
    make_truncated,
)
from tests.support.patience import PATIENCE_S

JOBS = list(generate(5, 40, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
NOBODY = 65534
IN_FILE, IN_WAL = JOBS[:20], JOBS[20:30]

# Becomes that user once everything is loaded (nobody may not even start a Python that lives in a home directory).
READER = """
import json, os, resource, sys
from datetime import UTC, datetime
from publisher.model.errors import SourceError
from publisher.model.job import Epoch, ReadRequest
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
path, most_bytes, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[4])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
source = create(Options(databases=(path,), time_zone="UTC"), {"TMPDIR": sys.argv[3]})
try:
    (database,) = source.sources()
    pages = database.read(None, (), ReadRequest(frozenset(), Epoch(int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()))))
    answer = {"jobs": sum(len(page.jobs) for page in pages), "notes": source.facts()[0].notes}
except SourceError as error:
    answer = {"error": str(error)}
finally:
    source.close()
print(json.dumps(answer))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(prefix="test-readonly-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "copies").mkdir()
        (directory / "copies").chmod(0o1777)
        (directory / "accounting").mkdir()
        yield directory
        (directory / "accounting").chmod(0o755)


@pytest.fixture
def path(place: Path) -> Path:
    return place / "accounting" / "a.db"


def fill(path: Path, jobs: list[SampleJob] = IN_FILE) -> None:
    with Writer(path) as writer:
        for job in jobs:
            writer.write(job)


def read_unprivileged(path: Path, *, most_bytes: int = 0, directory_mode: int = 0o555) -> dict[str, Any]:
    """What a user sees who may not write there: `nobody` when the tests run as root, else this user without the right."""
    path.parent.chmod(directory_mode)
    copies = path.parent.parent / "copies"
    uid = os.geteuid() or NOBODY
    environment = {"PYTHONPATH": str(Path(publisher.__file__).parent.parent)}
    command = [sys.executable, "-W", "error", "-c", READER, str(path), str(most_bytes), str(copies), str(uid)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    assert list(copies.iterdir()) == []
    return answer


# --- states that a database of A-REX may be in


def test_a_live_writer(path: Path) -> None:
    fill(path)
    with Writer(path) as writer:
        for job in IN_WAL:
            writer.write(job)
        assert path.with_name("a.db-wal").stat().st_size > 0
        assert read_unprivileged(path) == {"jobs": 30, "notes": []}


def test_a_writer_that_closed_cleanly(path: Path) -> None:
    fill(path)
    assert os.listdir(path.parent) == ["a.db"]
    answer = read_unprivileged(path)
    assert answer["jobs"] == 20
    assert "without locks" in answer["notes"][0]


def test_a_killed_writer_that_left_wal_and_shm(path: Path) -> None:
    fill(path)
    leave_wal(path, IN_WAL)
    assert read_unprivileged(path)["jobs"] == 30


def test_a_killed_writer_whose_shm_is_gone(path: Path) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=False)
    answer = read_unprivileged(path)
    assert answer["jobs"] == 30
    assert "private copy" in answer["notes"][0]


def test_an_empty_wal_without_shm(path: Path) -> None:
    fill(path)
    path.with_name("a.db-wal").touch()
    assert read_unprivileged(path)["jobs"] == 20


def test_a_hot_journal_is_rolled_back_in_a_copy(path: Path, place: Path) -> None:
    original = place / "original.db"
    with Writer(original, journal="delete") as writer:
        for job in IN_FILE:
            writer.write(job)
        writer.connection.execute("PRAGMA cache_size = 2")
        writer.connection.execute("BEGIN IMMEDIATE")
        writer.connection.execute("DELETE FROM JobEvents")
        writer.connection.execute("DELETE FROM AAR")
        for suffix in ("", "-journal"):
            shutil.copyfile(f"{original}{suffix}", f"{path}{suffix}")
        writer.connection.execute("ROLLBACK")
    assert Path(f"{path}-journal").stat().st_size > 0
    answer = read_unprivileged(path)
    assert answer["jobs"] == 20
    assert "private copy" in answer["notes"][0]


def test_the_file_that_a_link_points_to_has_the_wal(path: Path) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=False)
    link = path.with_name("link.db")
    link.symlink_to("a.db")
    assert read_unprivileged(link)["jobs"] == 30


@pytest.mark.parametrize("shm", [True, False])
def test_a_reader_who_may_write_leaves_nothing_behind_either(path: Path, shm: bool) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=shm)
    before = sorted(os.listdir(path.parent))
    source = create(Options(databases=(str(path),)), {"TMPDIR": str(path.parent.parent / "copies")})
    now = Epoch(int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()))
    pages = list(source.sources()[0].read(None, (), ReadRequest(frozenset(), now)))
    source.close()
    assert sum(len(page.jobs) for page in pages) == 30
    assert sorted(os.listdir(path.parent)) == before


# --- refusals


def test_a_copy_for_which_there_is_no_room(path: Path) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=False)
    error = read_unprivileged(path, most_bytes=8192)["error"]
    assert str(path) in error
    assert "TMPDIR" in error


def test_a_directory_that_may_not_be_searched(path: Path) -> None:
    fill(path)
    user = pwd.getpwuid(os.geteuid() or NOBODY).pw_name
    assert f"may not be searched by user {user};" in read_unprivileged(path, directory_mode=0)["error"]


def test_a_file_that_may_not_be_read(path: Path) -> None:
    fill(path)
    path.chmod(0)
    assert "may not be read" in read_unprivileged(path)["error"]


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (make_missing, "no such file"),
        (make_empty, "no accounting tables"),
        (make_not_a_database, "not an SQLite database"),
        (make_damaged, "damaged or truncated"),
        (make_truncated, "damaged or truncated"),
    ],
)
def test_broken_files(path: Path, breaks: Callable[[Path], None], words: str) -> None:
    fill(path)
    breaks(path)
    error = read_unprivileged(path)["error"]
    assert words in error
    assert str(path) in error


def test_a_directory_is_no_database(path: Path, place: Path) -> None:
    path.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        ReadOnlyFile(str(path), CopyDirectory(place))


def test_a_copy_cannot_go_to_a_directory_that_is_not_there(path: Path, place: Path) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=False)
    with pytest.raises(SourceError, match="set TMPDIR"):
        ReadOnlyFile(str(path), CopyDirectory(place / "nowhere"))


# --- one file, from question to question


def jobs_in(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM AAR").fetchone()[0])


@pytest.fixture
def shelf(place: Path) -> Iterator[CopyDirectory]:
    shelf = CopyDirectory(place / "copies")
    yield shelf
    shelf.close()


@pytest.mark.parametrize("name", ["a b%20c?mode=rwc#d.db", "é\udcff.db", "'\"&=;.db"])
def test_any_path_can_be_opened(place: Path, shelf: CopyDirectory, name: str) -> None:
    fill(place / "plain.db")
    path = os.path.join(place, name)
    os.rename(place / "plain.db", path)
    for spelling in (path, f"/{path}", os.path.relpath(path)):
        file = ReadOnlyFile(spelling, shelf)
        assert file.ask(jobs_in) == 20
        file.close()
    assert not [found for found in os.listdir(place) if found.endswith(("-wal", "-shm"))]


def test_a_writer_who_starts_while_the_file_is_read_without_locks(path: Path, shelf: CopyDirectory) -> None:
    fill(path)
    file = ReadOnlyFile(str(path), shelf)
    assert (file.way, file.ask(jobs_in)) == (OpenMode.UNLOCKED, 20)
    with Writer(path) as writer:
        for job in IN_WAL:
            writer.write(job)
        assert (file.ask(jobs_in), file.way) == (30, OpenMode.SHARED)
    file.close()


def test_a_question_is_asked_again_when_the_file_changes_under_it(path: Path, shelf: CopyDirectory) -> None:
    fill(path)
    file = ReadOnlyFile(str(path), shelf)
    asked: list[int] = []

    def question(connection: sqlite3.Connection) -> int:
        asked.append(jobs_in(connection))
        if len(asked) == 1:
            fill(path, IN_WAL)
        return asked[-1]

    assert file.ask(question) == 30
    assert len(asked) == 2
    file.close()


def replace_by(path: Path, jobs: list[SampleJob]) -> None:
    """As `rotate` does: another database takes the place of the file in one step."""
    beside = path.with_name("new.db")
    fill(beside, jobs)
    beside.rename(path)


@pytest.mark.parametrize("more", [1, 10, 100])
def test_a_file_that_is_replaced_while_it_is_open_is_not_read_with_the_wal_of_another(
    more: int, path: Path, shelf: CopyDirectory
) -> None:
    """The new file's -wal and -shm have the name that the old one's had: together, SQLite calls them damaged, or does not."""
    many = list(generate(2, more, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    with Writer(path, schema=2) as writer:
        for job in JOBS[:20]:
            writer.write(job)
        file = ReadOnlyFile(str(path), shelf)
        assert (file.way, file.ask(jobs_in)) == (OpenMode.SHARED, 20)
        writer.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    replace_by(path, JOBS[20:25])
    with Writer(path) as writer:
        for job in many:
            writer.write(job)
        assert file.ask(jobs_in) == 5 + more
        assert file.way is OpenMode.SHARED
    file.close()


def test_an_answer_of_a_file_that_was_replaced_meanwhile_does_not_count(path: Path, shelf: CopyDirectory) -> None:
    with Writer(path, schema=2) as writer:
        for job in JOBS[:20]:
            writer.write(job)
        writer.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file = ReadOnlyFile(str(path), shelf)
        asked: list[int] = []

        def question(connection: sqlite3.Connection) -> int:
            asked.append(jobs_in(connection))
            if len(asked) == 1:
                replace_by(path, JOBS[20:25])
            return asked[-1]

        assert file.ask(question) == 5
        assert asked == [20, 5]
    file.close()


def test_a_file_that_never_stands_still_is_an_error(path: Path, shelf: CopyDirectory) -> None:
    fill(path)
    file = ReadOnlyFile(str(path), shelf)
    spare = iter(JOBS[20:])

    def question(connection: sqlite3.Connection) -> int:
        fill(path, [next(spare)])
        return jobs_in(connection)

    with pytest.raises(SourceError, match="changes faster"):
        file.ask(question)
    file.close()


def test_a_copy_is_kept_until_the_file_changes(path: Path, place: Path, shelf: CopyDirectory) -> None:
    fill(path)
    leave_wal(path, IN_WAL, shm=False)
    first = ReadOnlyFile(str(path), shelf)
    assert (first.way, first.ask(jobs_in)) == (OpenMode.COPY, 30)
    assert list((place / "copies").iterdir()) == []
    kept = ReadOnlyFile(str(path), shelf)
    assert kept.ask(id) == first.ask(id)
    kept.close()
    leave_wal(path, JOBS[30:], shm=False)
    fresh = ReadOnlyFile(str(path), shelf)
    assert (fresh.ask(jobs_in), first.ask(jobs_in)) == (40, 30)
    assert fresh.journal_mode() == "wal"
    fresh.close()
    first.close()


def test_nothing_can_be_written_through_it(path: Path, shelf: CopyDirectory) -> None:
    fill(path)
    file = ReadOnlyFile(str(path), shelf)
    with pytest.raises(SourceError):
        file.ask(lambda connection: connection.execute("DELETE FROM AAR"))
    with Writer(path):
        assert file.ask(jobs_in) == 20
        assert file.way is OpenMode.SHARED
        with pytest.raises(SourceError):
            file.ask(lambda connection: connection.execute("DELETE FROM AAR"))
    file.close()
