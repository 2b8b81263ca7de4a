"""Random months of a site, and what its receiver makes of them: equal to the database, or held back and said.

Late rows, rows that change after delivery, other benchmarks, VO rules, identities and spellings, rounds and republishes that
are cut anywhere, answers that are lost. Whatever happened, a month that the receiver counts otherwise than the database is
one that a healthy round holds back; and when the receiver's team has deleted what the ticket names, acceptance mends it.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from publisher.publishing.round.outcome import Outcome
from publisher.publishing.sync.left import confirm_deleted
from tests.arex_databases import SampleJob, generate
from tests.support.pki import Credential
from tests.support.simulated_months import Month, World

START, END = datetime(2027, 12, 20, tzinfo=UTC), datetime(2028, 3, 25, tzinfo=UTC)  # a new year and a leap day
JOBS: Final = 36
FORMATS: Final = (
    "car",
    "apel-job-0.4",
    "apel-summary-0.2",
    "apel-summary-0.3",
    "apel-summary-0.4",
    "apel-normalised-summary-0.4",
)
FAULTS: Final = ("fine", "fine", "not stored", "answer lost", "cut before", "cut after")
POOL: Final = [
    replace(job, local_job_id=str(1000 + number), benchmark=job.benchmark if number % 3 else None)
    for number, job in enumerate(sorted(generate(7, JOBS, START, END), key=lambda job: job.end_time))
]
BENCHMARKS: Final = (("HEPscore23", 11.5), ("HEPscore23", 12), ("HEPSPEC", 10))
RECORDS: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("benchmark", tuple({"type": kind, "value": value} for kind, value in BENCHMARKS)),
    ("vo_rules", ([], [{"field": "queue", "pattern": "grid", "vo": "big", "override": True}])),
    ("identity", ("plain", "withheld")),
    ("key_style", ("apel", "jura")),
    ("default_vo", (None, "local-users")),
)


@dataclass(slots=True, kw_only=True)
class Story:
    """One history, by a seed."""

    world: World
    chance: random.Random
    coming: list[SampleJob] = field(default_factory=lambda: list(POOL))
    late: list[SampleJob] = field(default_factory=list)
    deleted: bool = False  # rows were deleted for a change that is not through yet
    told: list[str] = field(default_factory=list)  # for people, when it fails
    last_round: datetime = START
    unswept: set[Month] = field(
        default_factory=set
    )  # months of rows that changed behind the cursor: a daily look finds them
    left: dict[Month, set[Month]] = field(default_factory=dict)  # by runs, and for which months

    @property
    def singles(self) -> bool:
        return not self.world.format.startswith("apel-") or "job" in self.world.format

    def go(self, events: int) -> None:
        for _ in range(events):
            event: Callable[[], None] = self.chance.choice(
                (
                    self.time,
                    self.time,
                    self.late_rows,
                    self.change,
                    self.settings,
                    self.round,
                    self.round,
                    self.republish,
                )
            )
            event()
        self.end()

    def time(self) -> None:
        self.world.pass_time(self.chance.choice((0.5, 2, 9, 20)))
        now = self.world.now.timestamp()
        ended = [job for job in self.coming if job.end_time <= now]
        self.coming = [job for job in self.coming if job.end_time > now]
        late = [job for job in ended if self.chance.random() < 0.2]
        self.late += late
        self.world.finish(job for job in ended if job not in late)
        self.told.append(f"{self.world.now:%m-%d}: {len(ended)} ended, {len(late)} of them late")

    def late_rows(self) -> None:
        self.told.append(f"{len(self.late)} late rows")
        self.world.finish(self.late)
        self.late = []

    def change(self) -> None:
        """A job passes FINISHED once more. A single record stays in the month in which it was first delivered."""
        if not self.world.done:
            return
        job = self.chance.choice(list(self.world.done.values()))
        how = self.chance.choice(("wall", "cores", "end"))
        self.unswept |= {month_at(job.end_time), month_at(job.end_time + 86_400 * 12)}
        self.told.append(f"{job.job_id[:6]} of {datetime.fromtimestamp(job.end_time, UTC):%m-%d}: other {how}")
        match how:
            case "wall":
                self.world.finish_again(job.job_id, wall_s=job.wall_s + 60, cpu_user_s=job.cpu_user_s + 7)
            case "cores":
                self.world.finish_again(job.job_id, cpus=job.cpus * 2 or 2)
            case _ if not self.singles and job.end_time + 86_400 * 12 < self.world.now.timestamp():
                months = self.left.setdefault(month_at(job.end_time), set())
                months.add(month_at(job.end_time + 86_400 * 12))
                self.world.finish_again(job.job_id, end_time=job.end_time + 86_400 * 12)

    def settings(self) -> None:
        key, values = self.chance.choice(RECORDS)
        self.world.config["records"][key] = value = self.chance.choice(values)
        self.told.append(f"{key} {value}")

    def round(self) -> None:
        faults = self.faults()
        fatal = self.chance.choice((0, 0, 0, self.chance.randrange(1, 30)))
        outcome = self.world.publish(faults=faults, fatal=fatal)
        self.note("publish", outcome, faults, fatal)
        if outcome is not None and outcome.outcome != "deferred":
            assert outcome.exit_status in (0, 65), self.story({})
            if (self.world.now - self.last_round).days >= 1:
                self.unswept.clear()
            self.check(outcome)
        self.last_round = self.world.now
        if outcome is not None and outcome.held and self.chance.random() < 0.4:
            self.accept(outcome, faults=self.faults())

    def republish(self) -> None:
        if not self.world.done:
            return
        ended = self.chance.choice(list(self.world.done.values())).end_time
        month = f"{datetime.fromtimestamp(ended, UTC):%Y-%m}"
        faults = self.faults()
        fatal = self.chance.choice((0, 0, self.chance.randrange(1, 30)))
        outcome = self.world.republish(month, faults=faults, fatal=fatal)
        self.note(f"republish {month}", outcome, faults, fatal)
        if outcome is not None and outcome.held and self.chance.random() < 0.5:
            self.told.append(f"{self.world.do_the_tickets(outcome)} rows deleted")
            self.deleted = True
            faults = self.faults()
            outcome = self.world.republish(month, accept=True, faults=faults)
            self.note(f"republish {month} accepted", outcome, faults, 0)

    def faults(self) -> list[str]:
        return [self.chance.choice(FAULTS) for _ in range(self.chance.choice((0, 0, 2, 6)))]

    def note(self, what: str, outcome: Outcome | None, faults: list[str], fatal: int) -> None:
        came = "cut" if outcome is None else f"{outcome.outcome} {outcome.exit_status} {outcome.reason[:200]}"
        self.told.append(f"{what} {','.join(faults)} {fatal or ''}: {came}; wrong: {list(self.world.wrong_months())}")

    def accept(self, outcome: Outcome, faults: list[str] | None = None) -> None:
        """The team deletes what the ticket names; the administrator accepts."""
        self.told.append(f"{self.world.do_the_tickets(outcome)} rows deleted")
        self.deleted = True
        after = self.world.publish(faults=faults or (), accept=True)
        self.note("publish accepted", after, faults or [], 0)

    def check(self, outcome: Outcome) -> None:
        """After a round that came to its end, every month is right or held back.

        A run that moves is held with the month that it leaves, and lacks in the one that it comes to.
        """
        if self.deleted:
            return
        held: set[Month] = {(int(month.name[:4]), int(month.name[5:])) for month in outcome.held}
        explained = held.union(self.unswept, *(self.left.get(month, ()) for month in held))
        wrong = {month: both for month, both in self.world.wrong_months().items() if month not in explained}
        assert not wrong, self.story(wrong)

    def end(self) -> None:
        """Everything arrives, the changes are accepted month by month, and the receiver is right."""
        self.world.finish([*self.late, *(job for job in self.coming if job.end_time <= self.world.now.timestamp())])
        for _ in range(3):
            self.world.pass_time(1.5)
            self.unswept.clear()
            self.healthy(self.world.publish())
        if not self.singles:
            assert self.world.status().held == 0, self.story({})
        if self.world.done:
            for accept in (False, True):
                outcome = self.world.republish("2027-12", "2028-12", accept=accept)
                self.note("republish all", outcome, [], 0)
                assert outcome is not None
                if not outcome.held:
                    break
                self.told.append(f"{self.world.do_the_tickets(outcome)} rows deleted")
            assert outcome is not None
            assert outcome.exit_status == 0, self.story({})
        assert not self.world.wrong_months(), self.story(self.world.wrong_months())
        assert not self.world.receiver.overtaken, self.story(self.world.receiver.overtaken)
        self.world.sync()
        for month in range(2027 * 12 + 11, 2029 * 12):
            site = self.world.site()
            confirm_deleted(site.ledgers, site.settings.targets, month)
        assert not self.world.differences(), self.story(self.world.differences())

    def healthy(self, outcome: Outcome | None) -> None:
        """A round without faults: what it holds back is accepted."""
        self.note("publish", outcome, [], 0)
        assert outcome is not None
        assert outcome.exit_status in (0, 65), self.story({})
        assert len(outcome.held) == self.world.status().held, self.story({})
        self.check(outcome)
        if outcome.held:
            self.accept(outcome)

    def story(self, wrong: object) -> str:
        return "\n".join([self.world.format, *self.told, f"wrong: {wrong}"])


def month_at(end_time: int) -> Month:
    ended = datetime.fromtimestamp(end_time, UTC)
    return ended.year, ended.month


def tell(host: Credential, form: str, seed: int, events: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder=Path(folder), host=host, now=START, format=form)
        Story(world=world, chance=random.Random(f"{form} {seed}")).go(events)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.some(3)
@pytest.mark.slow
def test_the_receiver_is_right_or_the_month_is_held(host: Credential, form: str, seed: int) -> None:
    tell(host, form, seed, events=18)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_for_long(host: Credential, form: str, block: int) -> None:
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        tell(host, form, seed, events=30)
