"""Where the ledger of a story is: in SQLite's file, or in a database of its own of a PostgreSQL server.

Each can be backed up, put back from its backup, and lost. What it says is read by `open_at` of its `place`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from publisher.config.settings import LedgerServer
from tests.support.patience import PATIENCE_S
from tests.support.postgres import ROLE, address_at

Command = Callable[..., Any]
_INSTANCE: Final = "ce1"


class StoredLedger(Protocol):
    """The ledger of one story."""

    @property
    def place(self) -> Path | LedgerServer: ...
    @property
    def settings(self) -> dict[str, Any]:
        """Return what the configuration says of it."""

    def exists(self) -> bool: ...
    def back_up(self, run: Command) -> bool:
        """Make a backup; return whether there is one. `run` is the product's command line."""

    def restore(self) -> None:
        """Put the backup in the ledger's place."""

    def lose(self) -> None:
        """Remove the ledger; what the host keeps beside it stays."""

    def until_alone(self) -> None:
        """Wait until nobody is connected: a server may notice late that a client was killed."""

    def close(self) -> None:
        """Remove what is not in the story's folder."""


class LedgerInSqlite:
    """A file; its backup is made by the product."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "state" / "publishing.db"
        self._backup = folder / "backup.db"

    @property
    def settings(self) -> dict[str, Any]:
        return {"state": str(self.place)}

    def exists(self) -> bool:
        return self.place.exists()

    def back_up(self, run: Command) -> bool:
        self._backup.unlink(missing_ok=True)
        return bool(run("state", "backup", str(self._backup)).status == 0)

    def restore(self) -> None:
        self.lose()
        shutil.copy(self._backup, self.place)

    def lose(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.place.with_name(self.place.name + suffix).unlink(missing_ok=True)

    def until_alone(self) -> None:
        """A file knows no clients."""

    def close(self) -> None:
        """All of it is in the story's folder."""


class LedgerInPostgres:
    """A database of a server that listens in a folder; its backup is another one, as the server copies it.

    The product's backup is a file in SQLite. It is not put back, and must have the same rows.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._name, self._backup = folder.name, f"{folder.name}-backup"
        self.place = LedgerServer(address_at(server, self._name), _INSTANCE)
        self._make(self._name)

    @property
    def settings(self) -> dict[str, Any]:
        directory = str(self._folder / "state")
        return {"state": self.place.address, "instance": self.place.instance, "state_directory": directory}

    def exists(self) -> bool:
        from publisher.ledger.postgres.connection import instances

        return _INSTANCE in instances(self.place.address)

    def back_up(self, run: Command) -> bool:
        self._make(self._backup, of=self._name)
        file = self._folder / "backup.db"
        file.unlink(missing_ok=True)
        for words in (("state", "backup", str(file)), ("state", "check", "--with", str(file))):
            ended = run(*words)
            assert ended.status == 0, (words, ended)
        return True

    def restore(self) -> None:
        self._make(self._name, of=self._backup)

    def lose(self) -> None:
        self._make(self._name)

    def until_alone(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._sql("SELECT 1 FROM pg_stat_activity WHERE datname = %s", self._name):
            assert time.monotonic() < deadline, "a client that was killed is still connected"
            time.sleep(0.002)

    def close(self) -> None:
        for name in (self._name, self._backup):
            self._drop(name)

    def _make(self, name: str, *, of: str = "template1") -> None:
        self.until_alone()
        self._drop(name)
        self._sql(f'CREATE DATABASE "{name}" OWNER {ROLE} TEMPLATE "{of}"')

    def _drop(self, name: str) -> None:
        self._sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _sql(self, statement: str, *values: str) -> list[Any]:
        """Ask the server as its superuser."""
        import psycopg

        address = address_at(self._server, "postgres", "postgres")
        with closing(psycopg.connect(address, autocommit=True)) as server:
            found = server.execute(statement.encode(), values)
            with suppress(psycopg.ProgrammingError):  # it gives no rows
                return found.fetchall()
            return []
