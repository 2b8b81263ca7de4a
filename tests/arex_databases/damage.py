"""Accounting databases in the states that trouble leaves behind."""

import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.arex_databases.jobs import RawRow, SampleJob
from tests.arex_databases.writer import Writer

_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def make_missing(path: Path) -> None:
    """No file: the database and what belongs to it are gone."""
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def make_empty(path: Path) -> None:
    """A file of 0 bytes, as a crash at creation leaves it. SQLite takes it for a database without tables."""
    make_missing(path)
    path.touch()


def make_truncated(path: Path, *, kept: float = 0.5) -> None:
    """The first part of the file only, as a full disk or a broken copy leaves it."""
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * kept))


def make_not_a_database(path: Path) -> None:
    """Some other file under the name."""
    make_missing(path)
    path.write_bytes(b"<html><body>503 Service Unavailable</body></html>\n" * 200)


def make_damaged(path: Path) -> None:
    """Every page but the first is overwritten: the file opens, the tables cannot be read."""
    content = path.read_bytes()
    page = int.from_bytes(content[16:18], "big")
    path.write_bytes(content[:page] + b"\xa5" * (len(content) - page))


def set_schema_version(path: Path, version: str | None) -> None:
    """DBConfig names another schema, or none (`None`)."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            connection.execute("DELETE FROM DBConfig WHERE KeyName = 'DBSCHEMA_VERSION'")
            if version is not None:
                connection.execute("INSERT INTO DBConfig VALUES ('DBSCHEMA_VERSION', ?)", (version,))
    finally:
        connection.close()


def leave_wal(path: Path, cases: Iterable[SampleJob | RawRow], *, shm: bool = True) -> None:
    """The writer was killed: `cases` are in `-wal` only, `-shm` is left or gone.

    `path` is a WAL database that nobody has open; it is copied with its WAL while a writer holds it.

    Raises: ValueError: the database is not in WAL mode, or there were no cases.
    """
    with TemporaryDirectory(dir=path.parent) as directory:
        kept = Path(directory)
        with Writer(path) as writer:
            writer.connection.execute("PRAGMA wal_autocheckpoint = 0")
            writer.write_all(cases)
            left = [path.with_name(path.name + suffix) for suffix in ("", "-wal", *(["-shm"] if shm else []))]
            if not left[1].exists() or left[1].stat().st_size == 0:
                raise ValueError(f"{path}: nothing in a WAL; it needs journal mode WAL and at least one case")
            for file in left:
                shutil.copyfile(file, kept / file.name)
        for file in left:
            shutil.move(kept / file.name, file)
