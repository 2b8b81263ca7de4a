"""A-REX's side of the random walk: what it writes, and what the walk knows to be true of the jobs."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.arex_databases import SampleJob, Step, Writer, generate

START, END = datetime(2026, 10, 3, tzinfo=UTC), datetime(2026, 10, 29, tzinfo=UTC)
_TORN_AFTER: Final[tuple[Step, ...]] = ("aar", "rte", "transfers", "extra")


class ComputingElement:
    """The accounting database, and its jobs by the local id under which they were accepted."""

    def __init__(self, database: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self._database = database
        self.writer = Writer(database, schema=2)
        jobs = enumerate(generate(seed, 4000, START, END))
        self._pool = (replace(job, local_job_id=str(100_000 + number)) for number, job in jobs)
        self.accepted: dict[str, SampleJob] = {}  # in the order of their rows
        self.torn: dict[str, Step] = {}
        self.bad: dict[str, SampleJob] = {}
        self.done: dict[str, SampleJob] = {}
        self.ever: dict[str, list[SampleJob]] = defaultdict(list)  # by their own local id, whatever was once true
        self.overwritten: list[SampleJob] = []  # runs whose row another run of the same job took over

    def accept(self) -> None:
        self._begin()

    def finish(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 5, 12))):
            running = [one for one in self.accepted if one not in self.done.keys() | self.torn.keys() | self.bad.keys()]
            one = self.chance.choice(running) if running and self.chance.random() < 0.5 else self._begin()
            self.writer.finish(self.accepted[one])
            self._true(one, self.accepted[one])

    def burst(self) -> None:
        for _ in range(self.chance.randrange(150, 260)):
            one = self._begin()
            self.writer.finish(self.accepted[one])
            self._true(one, self.accepted[one])

    def tear(self) -> None:
        one = self._begin()
        self.torn[one] = self.chance.choice(_TORN_AFTER)
        self.writer.finish(self.accepted[one], stop_after=self.torn[one])
        self.ever[one].append(self.accepted[one])

    def complete(self) -> None:
        if self.torn:
            one = self.chance.choice(list(self.torn))
            del self.torn[one]
            self.writer.complete(self.accepted[one])
            self._true(one, self.accepted[one])

    def write_a_bad_job(self) -> None:
        one = self._begin()
        self.bad[one] = replace(self.accepted[one], benchmark="fast")
        self.writer.finish(self.bad[one])

    def mend_a_bad_job(self) -> None:
        if self.bad:
            one = self.chance.choice(list(self.bad))
            del self.bad[one]
            self.writer.finish_again(self.accepted[one])
            self._true(one, self.accepted[one])

    def finish_again(self) -> None:
        if not self.done:
            return
        one = self.chance.choice(list(self.done))
        job = self.done[one]
        match self.chance.choice(("alike", "later", "other values", "other run")):
            case "later":
                job = job.moved_to(job.end_time + 60)
            case "other values":
                job = replace(job.moved_to(job.end_time + 60), wall_s=job.wall_s + 7, cpu_user_s=job.cpu_user_s + 3)
            case "other run":
                self.overwritten.append(job)
                job = replace(job.moved_to(job.end_time + 60), local_job_id=f"{job.local_job_id}1")
        self.writer.finish_again(job)
        self._true(one, job)

    def rotate(self) -> None:
        """All rows under other numbers, in another order, in a new file."""
        self.writer.close()
        self._database.unlink()
        self.writer = Writer(self._database, schema=2)
        order = list(self.accepted)
        self.chance.shuffle(order)
        self.accepted = {one: self.accepted[one] for one in order}
        for one in order:
            self.writer.accept(self.accepted[one])
            if one in self.torn:
                self.writer.finish(self.accepted[one], stop_after=self.torn[one])
            elif final := self.done.get(one) or self.bad.get(one):
                self.writer.finish(final)

    def vacuum(self) -> None:
        self.writer.connection.execute("VACUUM")

    def checkpoint(self) -> None:
        self.writer.connection.execute(f"PRAGMA wal_checkpoint({self.chance.choice(('PASSIVE', 'TRUNCATE'))})")

    def _begin(self) -> str:
        job = next(self._pool)
        if self.chance.random() < 0.05:  # ended within the hour by which the clock may go back
            job = job.moved_to(int(time.time()) - 300)
        one = str(job.local_job_id)
        self.accepted[one] = job
        self.writer.accept(job)
        return one

    def _true(self, one: str, job: SampleJob) -> None:
        self.done[one] = job
        self.ever[str(job.local_job_id)].append(job)
