"""The ground that runs stand on: a large database, a receiver in its own process, a configuration.

`python -m benchmarks.ground FILE JOBS` makes such a database: SQLite takes some hundred megabytes
of memory for it. With a schema (1 or 2) as third argument it is the varied one.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.varied import patterns
from tests.arex_databases import SIDE_TABLES, Schema, Writer, bulk, generate

START: Final = datetime(2025, 3, 1, tzinfo=UTC)
END: Final = datetime(2025, 10, 1, tzinfo=UTC)
_SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where a target can deliver: its keys for the configuration."""

    name: str
    credentials: dict[str, str]
    target: dict[str, Any]

    def instead(self, name: str, **keys: object) -> Receiver:
        """The same receiver for another target: its keys with these in their place."""
        return Receiver(
            name=f"{self.name}-{name}", credentials=self.credentials, target={**self.target, **keys}
        )


def accounting(directory: Path, jobs: int) -> Path:
    """So many jobs, made on first use: seven months of 2025 on one CE, schema 2, ten users."""
    return _made(directory / f"arex-{jobs}.db", jobs)


def varied(directory: Path, jobs: int, schema: Schema) -> Path:
    """The same months on the CE of a large site: see `benchmarks/varied.py`."""
    return _made(directory / f"varied-{schema}-{jobs}.db", jobs, schema)


def _made(path: Path, jobs: int, *varied: Schema) -> Path:
    if not path.exists():
        made = path.with_suffix(".part")
        made.unlink(missing_ok=True)
        arguments = [str(made), *map(str, (jobs, *varied))]
        subprocess.run([sys.executable, "-m", "benchmarks.ground", *arguments], check=True)
        made.rename(path)
    take_away_new(path, jobs)
    return path


def add_new(path: Path, count: int) -> None:
    """So many further jobs finish."""
    with Writer(path) as arex:
        arex.write_all(generate(_SEED + 1, count, END, END + timedelta(days=1)))


def take_away_new(path: Path, jobs: int) -> None:
    """Undo `add_new`, perhaps of a run that broke off."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for table in ("AAR", *SIDE_TABLES):
            connection.execute(f"DELETE FROM {table} WHERE RecordID > ?", (jobs,))
        # Else the gap would look like a backlog after some runs.
        connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'AAR'", (jobs,))


def sgas(sink: Receiver) -> Receiver:
    target = {
        "type": "sgas",
        "url": f"{sink.target['url']}/sgas/ur",
        "format": "ogf-ur",
        "batch_records": 50,
    }
    return Receiver(name="sgas", credentials=sink.credentials, target=target)


def summaries(sink: Receiver) -> Receiver:
    return sink.instead("summaries", format="apel-summary-0.4", sync=True)


def configuration(folder: Path, database: Path, receiver: Receiver) -> Path:
    """A site with one target and a state of its own."""
    path = folder / f"{receiver.name}.yaml"
    site = {
        "site": "EXAMPLE-SITE",
        "source": {"type": "arex", "databases": [str(database)], "time_zone": "Europe/Oslo"},
        "state": str(state_of(folder, receiver)),
        "credentials": receiver.credentials,
        "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
        "targets": {"bench": {"format": "car", **receiver.target, "start": "all", "every": "1s"}},
    }
    path.write_text(yaml.safe_dump(site, sort_keys=False))
    return path


def state_of(folder: Path, receiver: Receiver) -> Path:
    return folder / f"state-{receiver.name}" / "publishing.db"


def a_day_passes(folder: Path, receiver: Receiver) -> None:
    """The next round looks at every row again."""
    with closing(sqlite3.connect(state_of(folder, receiver))) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")


def state_bytes(folder: Path, receiver: Receiver) -> int:
    """Everything that the ledger left on disk."""
    return sum(file.stat().st_size for file in state_of(folder, receiver).parent.iterdir())


@dataclass(slots=True)
class Tally:
    """What the stand-in says at its end."""

    messages: int = 0
    requests: int = 0


@contextmanager
def stand_in(folder: Path) -> Iterator[tuple[Receiver, Tally]]:
    """tests/fake_ams in its own process: parses what it gets and keeps digests."""
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fake_ams",
            "--directory",
            str(folder / "pki"),
            "--counts-only",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    tally = Tally()
    try:
        said = ""
        for line in child.stdout or ():
            if line.startswith("# ready"):
                break
            said += line
        settings = yaml.safe_load(said)
        target = settings["targets"]["fake"]
        yield Receiver(name="stand-in", credentials=settings["credentials"], target=target), tally
    finally:
        child.send_signal(signal.SIGTERM)
        last, _ = child.communicate(timeout=60)
        if counted := re.search(r"# (\d+) messages, \d+ bytes of base64, (\d+) requests", last):
            tally.messages, tally.requests = int(counted[1]), int(counted[2])


@contextmanager
def at_once(folder: Path, credentials: dict[str, str]) -> Iterator[Receiver]:
    """A sink that answers at once, with the PKI that the stand-in made."""
    server = folder / "pki" / "localhost"
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sink", f"{server}.pem", f"{server}.key"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"https://localhost:{int(next(iter(child.stdout or ())))}"
        target = {"type": "ams", "url": url, "auth_url": url, "service_host": "localhost"}
        yield Receiver(name="at-once", credentials=credentials, target=target)
    finally:
        child.communicate(timeout=60)  # the end of its input ends it


if __name__ == "__main__":
    file, jobs, *schema = sys.argv[1:]
    if schema:
        bulk(
            Path(file),
            1 if schema == ["1"] else 2,
            int(jobs),
            _SEED,
            START,
            END,
            patterns=patterns(_SEED, START, END),
        )
    else:
        bulk(Path(file), 2, int(jobs), _SEED, START, END)
