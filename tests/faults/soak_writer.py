"""A-REX in a hurry for some seconds: `python -m tests.faults.soak_writer DATABASE SECONDS RATE`. Prints what it did as JSON.

RATE jobs a second, each half second's in one go without a pause. Some are accepted long before they end, so that their rows are
late. In between it checkpoints, vacuums and rotates: the file goes to the archive under another name, and a new one with the
last jobs under other numbers takes its place in one step.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.arex_databases import SampleJob, Writer, generate

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
_KEPT: Final = 50  # jobs that a rotation leaves in the new file too
_RUNNING: Final = 200  # at most so many jobs are accepted and not finished
_TEMPLATES: Final = 500
_CHORES: Final = (
    "checkpoints",
    "vacuums",
    "",
    "rotations",
    "checkpoints",
    "",
    "checkpoints",
    "",
    "vacuums",
    "checkpoints",
    "",
)
"""What half a second ends with, and over again."""


class Hurry:
    """One accounting database being written."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0  # for one transaction's worth of a job: what A-REX may have waited for readers
        self._path = path
        self._chance = random.Random(1)
        self._writer = Writer(path, schema=2)
        self._running: list[SampleJob] = []
        self._last: deque[SampleJob] = deque(maxlen=_KEPT)
        self._chores = itertools.cycle(_CHORES)
        self._templates = itertools.cycle(list(generate(1, _TEMPLATES, START, END)))

    def write(self, jobs: int) -> None:
        """So many jobs without a pause, and a chore."""
        for _ in range(jobs):
            job = self._next()
            began = time.monotonic()
            self._writer.accept(job)
            self._running.append(job)
            if len(self._running) > self._chance.randrange(_RUNNING):
                done = self._running.pop(self._chance.randrange(len(self._running)))
                self._writer.finish(done)
                self._last.append(done)
                self.counts["jobs"] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        chore = next(self._chores)
        match chore:
            case "vacuums":
                self._writer.connection.execute("VACUUM")
            case "checkpoints":
                self._writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            case "rotations":
                self._rotate()
        self.counts[chore] += 1

    def end(self) -> None:
        """What still runs ends too."""
        self._finish_all()
        self._writer.close()

    def _next(self) -> SampleJob:
        self.counts["accepted"] += 1
        number, template = self.counts["accepted"], next(self._templates)
        return replace(template, job_id=f"{number:06d}{template.job_id}", local_job_id=str(1_000_000 + number))

    def _finish_all(self) -> None:
        for job in self._running:
            self._writer.finish(job)
            self._last.append(job)
        self.counts["jobs"] += len(self._running)
        self._running.clear()

    def _rotate(self) -> None:
        """Archive the file, and go on in a new one. Nothing may be left in a WAL, which the new file would inherit."""
        self._finish_all()
        while self._writer.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            time.sleep(0.001)  # somebody reads
        self._writer.close()
        beside = self._path.with_name("new.db")
        with Writer(beside, schema=2) as fresh:
            for job in reversed(self._last):
                fresh.write(job)
        os.link(self._path, self._path.parent.parent / "archive" / f"{self.counts['rotations'] + 1}.db")
        beside.rename(self._path)
        self._writer = Writer(self._path)


def main(path: Path, seconds: int, rate: int) -> None:
    hurry = Hurry(path)
    began = time.monotonic()
    for number in range(1, 2 * seconds + 1):  # as many jobs on a slow machine, only later
        hurry.write(rate // 2)
        time.sleep(max(0.0, began + number / 2 - time.monotonic()))
    hurry.end()
    done = {name: hurry.counts[name] for name in ("jobs", "vacuums", "checkpoints", "rotations")}
    print(json.dumps(done | {"longest_wait_s": hurry.longest_s}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
