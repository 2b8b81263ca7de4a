"""What is wrong with a source as a whole, kept in its database until it is no longer so.

`status` and `doctor` show it between imports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from sqlite3 import Connection
from typing import Final

from publisher.sources.importing.database import ImportDatabase
from publisher.sources.slurm.records import SacctRun

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS SourceNotice (
        Kind TEXT PRIMARY KEY,
        Text TEXT NOT NULL      -- for people: what is wrong, and what to do
    ) WITHOUT ROWID;
"""
DELIMITER: Final = "delimiter"
GATHERING: Final = "gathering"
STEPS: Final = "steps"
_GATHERED: Final = "SLURM_GATHERED"  # a key of DBConfig
_SURELY_NOTHING: Final = 5  # of so many runs in a row one shows something, if Slurm gathers any
_NOTHING_GATHERED: Final = (
    "its last runs show neither CPU time nor memory, so Slurm gathers nothing, and their CPU time "
    "is unknown; set JobAcctGatherType in slurm.conf, such as jobacct_gather/cgroup"
)
# They may have used something that nobody measured.
_UNMEASURED_STATES: Final = frozenset({"NODE_FAIL", "BOOT_FAIL", "RESIZING"})

_SET: Final = "INSERT OR REPLACE INTO SourceNotice VALUES (?, ?)"
_NOTICES: Final = "SELECT Text FROM SourceNotice ORDER BY Kind"


def set_notice(connection: Connection, kind: str, text: str) -> None:
    """Keep what is wrong, or '' where nothing is any more, inside a transaction."""
    if text:
        connection.execute(_SET, (kind, text))
    else:
        connection.execute("DELETE FROM SourceNotice WHERE Kind = ?", (kind,))


def notices(connection: Connection) -> list[str]:
    """Return what is wrong, one text each."""
    return [text for (text,) in connection.execute(_NOTICES)]


@dataclass(slots=True)
class Gathering:
    """Whether Slurm measures jobs: when the newest runs ended that show something, or nothing."""

    measured_at: int = 0
    unmeasured: list[tuple[int, str]] = field(default_factory=list)  # ends and ids

    def note(self, runs: Iterable[SacctRun]) -> None:
        """Take runs into account that took long enough to be measured."""
        unmeasured = set(self.unmeasured)
        for run in runs:
            if run.user_ms or run.system_ms or run.memory_kib:
                self.measured_at = max(self.measured_at, run.ended_at)
            elif run.steps and run.wall_s > 1 and run.state not in _UNMEASURED_STATES:
                unmeasured.add((run.ended_at, run.raw_id))
        self.unmeasured = nlargest(_SURELY_NOTHING, unmeasured)

    def keep(self, accounting: ImportDatabase) -> None:
        """Keep what is known, with what was before, and the notice; inside a transaction."""
        measured_at, before = json.loads(accounting.setting(_GATHERED) or "[0, []]")
        self.measured_at = max(self.measured_at, measured_at)
        found = {*self.unmeasured, *((ended_at, raw_id) for ended_at, raw_id in before)}
        newer = {each for each in found if each[0] > self.measured_at}
        self.unmeasured = nlargest(_SURELY_NOTHING, newer)
        accounting.set(_GATHERED, json.dumps([self.measured_at, self.unmeasured]))
        is_nothing = len(self.unmeasured) >= _SURELY_NOTHING
        text = _NOTHING_GATHERED if is_nothing else ""
        set_notice(accounting.connection, GATHERING, text)
