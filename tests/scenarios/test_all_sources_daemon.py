"""A month of a site with all five sources and three targets, run by the daemon at a clock of its own.

Each source breaks once for longer than a day and is mended, and the busiest falls silent for three days. In the end every job
is at every target, once, and every alarm was raised and is over.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from publisher import config
from publisher.cli import nagios
from publisher.jobs.reader import JobPage
from publisher.ledger.answers import TargetState
from publisher.model.message import Message
from publisher.policy.target import Target
from publisher.publishing import status as target_status
from publisher.publishing.daemon import Daemon, DaemonCommand, ServiceManager
from publisher.publishing.databases.batch_systems import source_status
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from publisher.transports.base import Transport
from tests.arex_databases import Writer, generate
from tests.fake_ams.tables import Tables
from tests.support import condor_history, gridengine_files, sacct_text, sonar_files
from tests.support.patience import PATIENCE_S
from tests.support.pki import Credential
from tests.support.simulated_months import Receiver, Wire, WiredSite
from tests.support.stand_in_sacct import install
from tests.support.strict_apel_text import summarised

FORMATS = {"cars": "car", "jobs": "apel-job-0.4", "sums": "apel-summary-0.4"}
SOURCES = ("arex", "gridengine", "slurm", "htcondor", "sonar")
BUSY = 1_000  # jobs of Grid Engine in each of the first three steps: 100 a day over four weeks
STEP = timedelta(hours=12)


@dataclass(slots=True, kw_only=True)
class CountingReceiver(Receiver):
    """What arrived, also when it came twice."""

    arrived: Counter[str] = field(default_factory=Counter)

    def take(self, message: Message, now: datetime) -> None:
        before = self.tables
        self.tables = Tables()
        Receiver.take(self, message, now)
        self.arrived.update(str(row["LocalJobId"]).removesuffix(".0") for row in self.tables.rows("JobRecords"))
        taken, self.tables = self.tables, before
        for table in ("JobRecords", "Summaries"):
            for row in taken.rows(table):
                self.tables.replace(table, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOfThree(WiredSite):
    """Each target leads to a receiver of its own."""

    wires: dict[str, Wire]

    def connect(self, target: Target) -> Transport:
        return self.wires[target.name]


class Quiet:
    """An observer that looks away."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def round_begins(self, state: TargetState, *, sweep: bool) -> None: ...
    def page_read(self, target: str, page: JobPage) -> None: ...
    def round_ends(self, target: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Site:
    """A folder with the accounting of each source, and what is true of its jobs."""

    folder: Path
    host: Credential
    now: datetime
    done: set[str] = field(default_factory=set)
    number: int = 0
    wires: dict[str, Wire] = field(default_factory=dict)
    lines: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wires = {name: Wire(receiver=CountingReceiver()) for name in FORMATS}
        for name in ("arex/accounting", "gridengine", "slurm", "htcondor", "sonar"):
            (self.folder / name).mkdir(parents=True)
        common: dict[str, Any] = {"type": "ams", "url": "https://ams.example.org", "start": "all", "every": "1s"}
        credentials = {"certificate": str(self.host.certificate), "key": str(self.host.key), "ca": "system"}
        command = install(self.folder / "slurm" / "sacct", [])
        document = {
            "site": "EXAMPLE-SITE",
            "source": [
                {"type": "arex", "control_dir": str(self.folder / "arex"), "time_zone": "UTC"},
                {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(self.folder / "gridengine")]},
                {"type": "slurm", "cluster": sacct_text.CLUSTER, "command": list(command), "look_back_s": "3d"},
                {"type": "htcondor", "cluster": condor_history.CLUSTER, "history": str(self.folder / "htcondor")},
                {"type": "sonar", "cluster": sonar_files.CLUSTER, "paths": [str(self.folder / "sonar")]},
            ],
            "state": str(self.folder / "state" / "publishing.db"),
            "credentials": credentials,
            "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
            "targets": {name: common | {"format": form, "project": name} for name, form in FORMATS.items()},
        }
        (self.folder / "publisher.yaml").write_text(yaml.safe_dump(document))
        with Writer(self.folder / "arex" / "accounting" / "accounting_v2.db", schema=2):
            pass

    def live(self) -> SiteOfThree:
        surroundings = ProcessEnvironment(
            environment={},
            clock=lambda: self.now,
            monotonic=lambda: self.now.timestamp(),
            wait=self.wait,
            chance=lambda: 0.5,
        )
        settings = config.load(self.folder / "publisher.yaml", {}, host_name="ce01.example.org")
        return SiteOfThree(settings=settings, process=surroundings, wire=self.wires["cars"], wires=self.wires)

    def wait(self, seconds: float) -> bool:
        time.sleep(min(seconds, 0.001))
        return False

    def finish(self, source: str, count: int) -> None:
        """So many jobs ended some hours ago, and the source tells of them."""
        ended = int((self.now - timedelta(hours=4)).timestamp())
        numbers = [str(self.number + place) for place in range(1, count + 1)]
        self.number += count
        self.done.update(numbers)
        getattr(self, f"_{source}")(numbers, ended)

    def _arex(self, numbers: list[str], ended: int) -> None:
        end = datetime.fromtimestamp(ended, UTC)
        jobs = generate(int(numbers[0]), len(numbers), end - timedelta(hours=1), end)
        with Writer(self.folder / "arex" / "accounting" / "accounting_v2.db", schema=2) as writer:
            writer.write_all(
                replace(job, local_job_id=number, lrms="lsf") for job, number in zip(jobs, numbers, strict=True)
            )

    def _gridengine(self, numbers: list[str], ended: int) -> None:
        with (self.folder / "gridengine" / "accounting").open("ab") as log:
            for number in numbers:
                entry = replace(gridengine_files.Entry(), job=int(number), started=ended - 600, ended=ended)
                log.write(gridengine_files.colon(replace(entry, submitted=ended - 700)))

    def _slurm(self, numbers: list[str], ended: int) -> None:
        times = {"Submit": ended - 200, "Eligible": ended - 200, "Start": ended - 100, "End": ended}
        for number in numbers:
            job = sacct_text.job(int(number), **times)
            self.lines += [job, sacct_text.step(job)]
        install(self.folder / "slurm" / "sacct", self.lines)

    def _htcondor(self, numbers: list[str], ended: int) -> None:
        ads = [condor_history.ad(int(number), QDate=ended - 200) for number in numbers]
        condor_history.spool(self.folder / "htcondor", ads)

    def _sonar(self, numbers: list[str], ended: int) -> None:
        at = [datetime.fromtimestamp(ended - back, UTC).isoformat() for back in (7000, 6000, 0)]
        day = self.folder / "sonar" / f"{self.now:%Y/%m/%d}"
        day.mkdir(parents=True, exist_ok=True)
        records = [
            sonar_files.record(job_id=int(number), submit_time=at[0], start_time=at[1], end_time=at[2])
            for number in numbers
        ]
        with (day / "0+job-slurm.json").open("ab") as file:
            file.write(sonar_files.envelope(records, at=self.now.isoformat()))

    def break_down(self, source: str) -> None:
        if source == "slurm":
            (self.folder / "slurm" / "sacct" / "mishap").write_text("fail")
        else:
            (self.folder / source).rename(self.folder / f"{source}.away")

    def mend(self, source: str) -> None:
        if source == "slurm":
            (self.folder / "slurm" / "sacct" / "mishap").unlink()
        else:
            (self.folder / f"{source}.away").rename(self.folder / source)


@dataclass(slots=True, kw_only=True)
class Month:
    """What the daemon is driven through: a step begins when each target had its rounds of the one before."""

    site: Site
    steps: int
    rounds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    raised: set[str] = field(default_factory=set)
    standing: set[str] = field(default_factory=set)
    at: int = 0
    gives_up: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, outcome: Outcome) -> None:
        with self.lock:
            self.rounds[outcome.target] += 1
            self.statuses[outcome.exit_status] += 1

    def next_command(self, seconds: float) -> DaemonCommand | None:
        assert time.monotonic() < self.gives_up, f"stuck at step {self.at}: {self.rounds}"
        time.sleep(min(seconds, 0.005))
        with self.lock:
            if any(self.rounds[name] < 2 for name in FORMATS):
                return None
        self.look()
        self.at += 1
        self.gives_up = time.monotonic() + PATIENCE_S
        if self.at > self.steps:
            return DaemonCommand.STOP
        # Before the clock moves: a round that reads a source meanwhile has read it in the step before.
        self.break_and_mend()
        self.site.now += STEP
        self.finish_jobs()
        with self.lock:  # of the next two rounds of a target, one begins after this
            self.rounds.clear()
        return None

    def broken(self) -> Iterator[tuple[str, range]]:
        """When each source is broken: three steps, which is longer than a day, one source after the other."""
        for place, source in enumerate(SOURCES):
            yield source, range(2 + 3 * place, 5 + 3 * place)

    def break_and_mend(self) -> None:
        for source, when in self.broken():
            if self.at == when.start:
                self.site.break_down(source)
            if self.at == when.stop:
                self.site.mend(source)

    def finish_jobs(self) -> None:
        silent = range(self.steps - 9, self.steps - 3)
        for source, when in self.broken():
            # A round may go on with what another target's read just before, and none follows while the clock stands still:
            # so there is a whole step behind the one in which the last jobs can no longer be A-REX's.
            quiet = self.at in when or (source == "gridengine" and self.at in silent) or self.at > self.steps - 3
            if not quiet:
                self.site.finish(source, BUSY if source == "gridengine" and self.at < 3 else 3)

    def look(self) -> None:
        """Which alarms monitoring has now."""
        live = self.site.live()
        found, trouble = target_status.status(live, targets=[])
        sources = source_status(live)
        self.standing = {f"alarm {one.name}" for one in sources if one.alarm}
        self.standing |= {f"silence {one.name}" for one in sources if one.silence}
        if trouble or any(one.missing for one in found):
            self.standing.add("missing arex")
        state = nagios.status_nagios(found, trouble, self.site.now, nagios.thresholds([], []), sources)[1]
        alarms = any(one.startswith(("alarm", "missing")) for one in self.standing)
        assert state == (nagios.CRITICAL if alarms else nagios.WARNING if self.standing else nagios.OK), self.at
        self.raised |= self.standing


def go(folder: Path, host: Credential, steps: int) -> None:
    begin = (datetime.now(UTC) - STEP * (steps + 2)).replace(microsecond=0)
    site = Site(folder=folder, host=host, now=begin)
    for source in SOURCES:
        site.finish(source, BUSY if source == "gridengine" else 3)
    month = Month(site=site, steps=steps, gives_up=time.monotonic() + PATIENCE_S)
    daemon = Daemon(
        site.live(),
        load=site.live,
        next_command=month.next_command,
        stop=threading.Event(),
        manager=ServiceManager({}),
        observer=Quiet(),
        report=month.report,
    )
    daemon.serve()
    assert month.raised == {
        "missing arex",
        *(f"alarm {source}" for source in SOURCES[1:]),
        "silence gridengine",
    }
    assert month.standing == set()
    assert set(month.statuses) == {0, 66}
    for name in ("cars", "jobs"):
        receiver = site.wires[name].receiver
        assert isinstance(receiver, CountingReceiver)
        assert receiver.arrived == Counter(site.done), name
    sums = site.wires["sums"].receiver.totals()
    assert sum(jobs for jobs, *_ in sums.values()) == len(site.done)
    jobs = site.wires["jobs"].receiver
    jobs.summed = dict(summarised("JobRecords", map(dict, jobs.tables.rows("JobRecords"))))
    assert sums == jobs.totals()


@pytest.mark.slow
def test_all_sources_break_and_are_mended_under_the_daemon(tmp_path: Path, host: Credential) -> None:
    go(tmp_path, host, steps=20)


@pytest.mark.long
def test_a_month_of_it(tmp_path: Path, host: Credential) -> None:
    go(tmp_path, host, steps=62)
