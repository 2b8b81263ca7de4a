"""Imports in processes of their own that kill themselves before a statement of SQL, for tests of crashes and of company."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.forks import Child

FOR_EVER: Final = -1
"""A step that never comes."""

_CODE: Final = """
import os, signal, sqlite3, sys
from pathlib import Path

database, step, *logs = sys.argv[1:]
left = int(step)

class Mortal(sqlite3.Connection):
    def _live(self):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(self, *args):
        self._live()
        return super().execute(*args)

    def executemany(self, *args):
        self._live()
        return super().executemany(*args)

connect = sqlite3.connect
sqlite3.connect = lambda *args, **more: connect(*args, **more, factory=Mortal)
run_import(Path(database), *map(Path, logs))
"""


def child(set_up: str, database: Path, step: int, *logs: Path) -> Child:
    """An importer that kills itself before the statement of that number. `set_up` is code that imports `run_import`."""
    return Child(database, step, *logs, code=set_up + _CODE)
