"""What may be wrong with the accounting of a cluster as a whole, by its kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from publisher.sources.files.tables import SourceTables
from publisher.sources.slurm.records import SacctRun

DELIMITER: Final = "delimiter"
GATHERING: Final = "gathering"
STEPS: Final = "steps"
_GATHERED: Final = "GATHERED"  # a setting of the source
_SURELY_NOTHING: Final = 5  # of so many runs in a row one shows something, if Slurm gathers any
_NOTHING_GATHERED: Final = (
    "its newest runs have neither CPU time nor memory: Slurm measures no jobs there, and their CPU "
    "time is unknown; set JobAcctGatherType in slurm.conf, such as to jobacct_gather/cgroup"
)
# They may have used something that nobody measured.
_UNMEASURED_STATES: Final = frozenset({"NODE_FAIL", "BOOT_FAIL", "RESIZING"})


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

    def keep(self, accounting: SourceTables) -> None:
        """Keep what is known, with what was before, and the notice; inside a transaction."""
        measured_at, before = json.loads(accounting.setting(_GATHERED) or "[0, []]")
        self.measured_at = max(self.measured_at, measured_at)
        found = {*self.unmeasured, *((ended_at, raw_id) for ended_at, raw_id in before)}
        newer = {each for each in found if each[0] > self.measured_at}
        self.unmeasured = nlargest(_SURELY_NOTHING, newer)
        accounting.set(_GATHERED, json.dumps([self.measured_at, self.unmeasured]))
        is_nothing = len(self.unmeasured) >= _SURELY_NOTHING
        text = _NOTHING_GATHERED if is_nothing else ""
        accounting.set_notice(GATHERING, text)
