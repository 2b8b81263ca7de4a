"""A large database is loaded while its loader is killed at random moments; the store must equal one that was loaded at once.

`python -m tests.jobs.killed_loads DATABASE [--kills 200] [--seed 1] [--folder DIR]`. The clock stands a day after the last job
ended: a load that was killed compares what it has, and takes rows that another one would still wait for.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from mmap import mmap
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher import config
from publisher.cli.site import LiveSite
from publisher.publishing.databases.load import LoadOptions, load, needs_of
from publisher.publishing.site import ProcessEnvironment
from tests.support.sites import as_yaml

Row = tuple[Any, ...]
KILLED: Final = -signal.SIGKILL
_DISTINCT: Final = ("person", "account", "place", "benchmark")
# A change is given anew after a kill, a mark is random, and a digest of a part only saves work.
_NOT_COMPARED: Final = {"store": {"mark", "last_change"}, "job": {"change"}, "skipped": {"change"}}
_TABLES_NOT_COMPARED: Final = ("mark", "part", *_DISTINCT)
_STORED: Final = """SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM skipped), (SELECT last_change FROM store),
    EXISTS (SELECT 1 FROM source WHERE complete)"""
_ROW: Final = ("source", "record_id")
_KEYS: Final = {"job": ("run",), "skipped": _ROW, "partial": _ROW}  # of others their primary key


class Cost(NamedTuple):
    """What a load took: by the clock, of the processor, and its most resident memory."""

    status: int
    wall_s: float
    cpu_s: float
    peak_mib: float


class Rows:
    """Counts the rows that loaders read, kills or not; the number is in memory that forks share."""

    def __init__(self) -> None:
        self._shared = mmap(-1, 8)

    @property
    def read(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def begins(self, what: str, total: Callable[[], int]) -> None:
        """A source, or a comparison of it, begins."""

    def seen(self, more: int) -> None:
        self._shared[:8] = (self.read + more).to_bytes(8, "little")


class Loader:
    """A site of one A-REX database, whose job store is loaded by a process of its own each time."""

    def __init__(self, folder: Path, database: Path, now: datetime) -> None:
        folder.mkdir()
        self.rows = Rows()
        path = folder / "publisher.yaml"
        path.write_text(as_yaml(_config(folder, database)))
        process = ProcessEnvironment(
            environment={},
            clock=lambda: now,
            monotonic=time.monotonic,
            wait=lambda seconds: False,
            loading=lambda: nullcontext(self.rows),
        )
        self._site = LiveSite(settings=config.load(path, {}, host_name="ce1.example.org"), process=process)
        self.store = folder / "jobs.db"

    def load(self, killed_after_s: float | None = None) -> Cost:
        """Load what is there, in a child; SIGKILL ends it after that time."""
        began, child = time.monotonic(), os.fork()
        if not child:
            self._in_child()
        if killed_after_s is not None:
            time.sleep(killed_after_s)
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        cpu_s = used.ru_utime + used.ru_stime
        wall_s = time.monotonic() - began
        return Cost(os.waitstatus_to_exitcode(status), wall_s, cpu_s, used.ru_maxrss / 1024)

    def _in_child(self) -> None:
        status = 1
        try:
            options = LoadOptions(needs_of(self._site.targets), self._site.accounting.read_as(), links=True)
            if failures := load(self._site, self.store, options):
                print(*failures, sep="\n", file=sys.stderr)
            else:
                status = 0
        finally:
            os._exit(status)

    def stored(self) -> int:
        """Return how many rows became jobs or were set aside.

        Raises: AssertionError where a row was stored twice before the source was loaded to its end.
        """
        if not self.store.exists():
            return 0
        with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as store:
            try:
                jobs, skipped, last_change, complete = store.execute(_STORED).fetchone()
            except sqlite3.OperationalError:  # it was killed before there were tables
                return 0
        assert complete or jobs + skipped == last_change, f"{jobs} jobs, {skipped} set aside, {last_change} changes"
        return int(jobs + skipped)


def _config(folder: Path, database: Path) -> dict[str, Any]:
    spool = {"type": "spool", "path": str(folder / "spool"), "format": "car", "start": "all"}
    return {
        "site": "EXAMPLE-SITE",
        "source": {"type": "arex", "databases": [str(database)], "time_zone": "UTC"},
        "state": str(folder / "publishing.db"),
        "records": {"benchmark": {"type": "HEPscore23", "value": 10}},
        "targets": {"spool": spool},
    }


def kill_often(loader: Loader, kills: int, chance: random.Random, rows: int, whole: Cost) -> Iterator[int]:
    """Kill loads at random moments of the whole load; yield how much is stored after each."""
    for left in range(kills, 0, -1):
        stored = loader.stored()
        yield stored
        lacking = max(rows - stored, rows // 4)  # the comparison behind the last row is killed, too
        ended = loader.load(chance.uniform(0, 2 * whole.wall_s * lacking / rows / left))
        assert ended.status in (KILLED, 0), ended


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs in two stores, at most a few of each table: jobs by run key and column."""
    found = []
    with closing(sqlite3.connect(one)) as mine, closing(sqlite3.connect(other)) as theirs:
        tables = [name for (name,) in mine.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        for table in tables:
            if table not in _TABLES_NOT_COMPARED:
                names, keys = _compared(mine, table)
                question = _question(table, names, keys)
                key = itemgetter(*map(names.index, keys))
                pairs = _paired(mine.execute(question), theirs.execute(question), key)
                different = (_told(table, names, *pair) for pair in pairs if pair[0] != pair[1])
                found += [told for told, _ in zip(different, range(5), strict=False)]
    return found


def _paired(
    mine: Iterator[Row], theirs: Iterator[Row], key: Callable[[Row], Any]
) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield rows that have the same key, or one without another; both come in the order of their keys."""
    one, other = next(mine, None), next(theirs, None)
    while one is not None or other is not None:
        is_alone = other is None or (one is not None and key(one) < key(other))
        lacks_one = one is None or (other is not None and key(other) < key(one))
        yield (None if lacks_one else one), (None if is_alone else other)
        one = one if lacks_one else next(mine, None)
        other = other if is_alone else next(theirs, None)


def _compared(store: sqlite3.Connection, table: str) -> tuple[list[str], list[str]]:
    """Return the columns that are compared, those of its person, place and so on too, and those of its key."""
    names = []
    for name in _columns(store, table):
        if name in _DISTINCT:
            names += [f"{name}.{of}" for of in _columns(store, name) if of not in ("id", "digest")]
        elif name not in _NOT_COMPARED.get(table, ()):
            names.append(f"{table}.{name}")
    primary = store.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,)).fetchall()
    keys = _KEYS.get(table) or [name for (name,) in primary] or _columns(store, table)[-1:]
    return names, [f"{table}.{name}" for name in keys]


def _question(table: str, names: Sequence[str], keys: Sequence[str]) -> str:
    others = dict.fromkeys(name.partition(".")[0] for name in names if not name.startswith(f"{table}."))
    joins = " ".join(f"JOIN {other} ON {other}.id = {table}.{other}" for other in others)
    return f"SELECT {', '.join(names)} FROM {table} {joins} ORDER BY {', '.join(keys)}"


def _columns(store: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in store.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _told(table: str, names: Sequence[str], mine: Row | None, theirs: Row | None) -> str:
    if mine is None or theirs is None:
        return f"{table}: only in {'the second' if mine is None else 'the first'}: {mine or theirs}"
    columns = zip(names, mine, theirs, strict=True)
    return f"{table}: {mine[0]!r}: " + ", ".join(f"{name} {a!r} / {b!r}" for name, a, b in columns if a != b)


def bytes_a_job(store: Path) -> float:
    with closing(sqlite3.connect(store)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (jobs,) = opened.execute("SELECT count(*) FROM job").fetchone()
    return store.stat().st_size / int(jobs)


def last_end(database: Path) -> datetime:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as arex:
        (end,) = arex.execute("SELECT max(EndTime) FROM AAR").fetchone()
    return datetime.fromtimestamp(end, UTC)


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.jobs.killed_loads", description=__doc__)
    asked.add_argument("database", type=Path, metavar="DATABASE", help="of A-REX")
    asked.add_argument("--kills", type=int, default=200)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--folder", type=Path, help="where the stores are made; default: a temporary one")
    given = asked.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="killed-loads-", dir=given.folder))
    try:
        return compare(folder, given.database, given.kills, random.Random(given.seed))
    finally:
        shutil.rmtree(folder)


def compare(folder: Path, database: Path, kills: int, chance: random.Random) -> int:
    """Load a database at once and with kills, print what came of it, and return 1 where the stores differ."""
    now = last_end(database) + timedelta(days=1)
    whole = Loader(folder / "whole", database, now)
    once = whole.load()
    assert once.status == 0, once
    rows = whole.stored()
    per_job = bytes_a_job(whole.store)
    print(
        f"at once: {rows:,} rows stored of {whole.rows.read:,} read, {once.wall_s:.1f} s, {once.cpu_s:.1f} s CPU, ",
        end="",
    )
    print(f"at most {once.peak_mib:.0f} MiB resident, {per_job:.0f} bytes a job", flush=True)
    killed = Loader(folder / "killed", database, now)
    began = time.monotonic()
    stored = list(kill_often(killed, kills, chance, rows, once))
    end = killed.load()
    assert end.status == 0, end
    quarters = [sum(rows * quarter / 4 <= one < rows * (quarter + 1) / 4 for one in stored) for quarter in range(5)]
    print(f"with {kills} kills, {quarters[0]} of them before a quarter was stored, then {quarters[1:]}: ", end="")
    print(f"{killed.stored():,} rows stored of {killed.rows.read:,} read, {time.monotonic() - began:.1f} s, ", end="")
    print(f"{bytes_a_job(killed.store):.0f} bytes a job", flush=True)
    found = differences(whole.store, killed.store)
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
