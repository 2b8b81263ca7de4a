"""Publishers that end in the middle of something: a statement on the ledger, a write, PostgreSQL's life.

Each is forked (tests/support/forks.py): a real process, that a signal really ends. Its order says where it ends:

- `fatal`: SIGKILL before that statement of SQL on the state, counted from 1 over all of its connections; the state may be a
  directory, and then the sources' databases count too;
- `most_bytes`: no file may grow beyond; with `by_signal` the write that tries is the last (SIGXFSZ), in the middle of a page
  where the limit is, otherwise it fails as on a full disk;
- `server`: the state is in PostgreSQL, whose statements count; at the fatal one this signal is sent to that process: to
  the publisher (0) or to the server, before the statement or, with `after`, behind it.

The answer: `status` (negative: the signal), `statements` that were begun, and `synced`: for each file of the state its length
when a transaction last ended, which is what a loss of power leaves for certain (WAL with synchronous=FULL).
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from publisher.cli import main as cli
from tests.support.forks import Child
from tests.support.sites import ConfiguredSite


class Tracer:
    """Counts statements on the state, tells what is synced behind each end of a transaction, and ends the process when told."""

    def __init__(self, state: str, fatal: int) -> None:
        self.statements = 0
        self._state = state
        self._fatal = fatal
        self._ended = True

    def connect(self, *arguments: Any, **keywords: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = _CONNECT(*arguments, **keywords)
        if self._state in str(arguments[0]):
            connection.set_trace_callback(self.statement)
        return connection

    def statement(self, text: str) -> None:
        self.statements += 1
        if self._ended:
            sizes = {suffix: _size(self._state + suffix) for suffix in ("", "-wal")}
            _tell({"statements": self.statements, "synced": sizes})
        self._ended = text.startswith("COMMIT")
        if self.statements == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def statements_of_psycopg(self, server: int, *, after: bool) -> None:
        """Count what is asked of PostgreSQL, and at the fatal statement end the server, or this process."""
        import psycopg

        execute: Any = psycopg.Connection.execute

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.statements += 1
            fatal = self.statements == self._fatal
            if fatal and not after:
                self._end(server)
            try:
                return execute(*arguments, **keywords)
            finally:
                if fatal and after:
                    self._end(server)

        replaced = "execute"
        setattr(psycopg.Connection, replaced, counted)

    @staticmethod
    def _end(server: int) -> None:
        if not server:
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(server, signal.SIGQUIT)
        time.sleep(0.3)  # it tells its processes to end


_CONNECT: Any = sqlite3.connect


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def main() -> int:
    """In the forked process."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    tracer = Tracer(order["state"], order.get("fatal", 0))
    vars(sqlite3)["connect"] = tracer.connect
    if "server" in order:
        tracer.statements_of_psycopg(order["server"], after=order.get("after", False))
    if most := order.get("most_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if order.get("by_signal") else signal.SIG_IGN)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.run(["--config", order["config"], *order.get("command", ["publish", "--force"])])
    _tell({"statements": tracer.statements, "said": err.getvalue()[-2000:]})
    return status


def _tell(facts: dict[str, Any]) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def publish(site: ConfiguredSite, **order: Any) -> dict[str, Any]:
    """A publisher in a process of its own, to its end."""
    target = f"{__name__}:{main.__name__}"
    order = {"config": str(site.path), "state": str(site.state)} | order
    child = Child(json.dumps(order), target=target, stdout=subprocess.PIPE)
    answer: dict[str, Any] = {"synced": {}, "said": ""}
    for line in child.communicate()[0].splitlines():
        answer |= json.loads(line)
    return answer | {"status": child.returncode}
