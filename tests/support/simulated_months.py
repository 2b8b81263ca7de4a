"""A site and its receiver over months, at a clock of their own: what happens to jobs and settings, and what APEL makes of it.

The receiver keeps rows by its keys (tests/fake_ams/tables.py) and, as the real one does, sums single records up after every
message into rows that nothing ever deletes, and that summaries overwrite under the same key. Deleting is done by its team,
after a ticket.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from publisher import config
from publisher.cli.site import LiveSending, LiveSite
from publisher.model import time
from publisher.model.message import Message
from publisher.policy.target import Target
from publisher.publishing import publish as commands
from publisher.publishing import status as standing
from publisher.publishing.republish import plan, run
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from publisher.publishing.sync import check
from publisher.publishing.sync.left import confirm_deleted
from publisher.transports.base import Receipt, Step, Transport, Verdict
from tests.arex_databases import SampleJob, Schema, Writer
from tests.fake_ams.tables import Tables
from tests.support.patience import sending_ends
from tests.support.pki import Credential
from tests.support.sites import as_yaml
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import KEYS, fold, read_text, summarised

Month = tuple[int, int]
Totals = dict[Month, tuple[int, int, int]]  # jobs, wall and CPU seconds
Row = Mapping[str, Any]

SITE: Final = "EXAMPLE-SITE"
SUMMARY_KEY: Final = KEYS["Summaries"]
_LEVEL: Final = re.compile(r"(HEPscore23|HEPSPEC|Si2k) ([0-9.]+)")
_TOTALS: Final = ("NumberOfJobs", "WallDuration", "CpuDuration")
_NONE: Final = ("", "none", "null")


class Cut(BaseException):
    """Power is gone: nothing after this happens. Not an Exception, so that nothing of ours catches it."""


@dataclass(slots=True, kw_only=True)
class Receiver:
    """APEL: what arrived, kept by its keys, and what its summariser made of it."""

    tables: Tables = field(default_factory=Tables)
    summed: dict[tuple[Any, ...], Row] = field(default_factory=dict)  # of single records, by their summary key
    told: dict[tuple[Month, str], int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    newest: dict[tuple[str, Month], datetime] = field(
        default_factory=dict
    )  # when the newest totals of a month were made
    overtaken: list[str] = field(default_factory=list)  # messages of totals that came after newer ones

    def take(self, message: Message, now: datetime) -> None:
        """Load a message as its loader does. Raises: Refused for what that would refuse."""
        if message.format == "car":
            table, rows = "JobRecords", read_car(message.payload, now)
        else:
            table, rows = read_text(message.payload, now)
        self.messages.append(message.id)
        for month in {month_of(row) for row in rows}:
            newest = self.newest.setdefault((table, month), message.made_at)
            if table in ("Summaries", "NormalisedSummaries") and message.made_at < newest:
                self.overtaken.append(message.id)
            self.newest[table, month] = max(newest, message.made_at)
        for row in rows:
            if table == "SyncRecords":
                self.told[month_of(row), row["SubmitHost"]] = row["NumberOfJobs"]
            else:
                # The reader of the normalised table calls its column as the summariser does.
                self.tables.replace(table, row | {"Infrastructure": row.get("InfrastructureType")})
        if table == "JobRecords":
            self.summed |= summarised("JobRecords", map(dict, self.tables.rows("JobRecords")))

    def rows(self) -> list[tuple[str, Row]]:
        """Every row that counts, with its text as a ticket has it."""
        found = [
            (text_of(row), row) for table in ("Summaries", "NormalisedSummaries") for row in self.tables.rows(table)
        ]
        said = {tuple(fold(row[name]) for name in SUMMARY_KEY) for row in self.tables.rows("Summaries")}
        for key, totals in self.summed.items():
            if key in said:
                continue
            summed = dict(zip(SUMMARY_KEY, key, strict=True)) | dict(totals)
            found.append((text_of(summed), summed))
        return found

    def totals(self) -> Totals:
        sums: dict[Month, Counter[str]] = {}
        for _, row in self.rows():
            sums.setdefault(month_of(row), Counter()).update({name: int(row[name]) for name in _TOTALS})
        return {month: (one["NumberOfJobs"], one["WallDuration"], one["CpuDuration"]) for month, one in sums.items()}

    def delete(self, month: Month, text: str) -> bool:
        """The team does what a ticket asks for: the rows that its text fits, and the single records below them."""
        wanted = {(month, fold(text)), (month, fold(_LEVEL.sub(r"\1", text)))}
        found = False
        kept = Tables()
        for table in ("JobRecords", "Summaries", "NormalisedSummaries"):
            for row in self.tables.rows(table):
                if (month_of(row), fold(text_of(row))) in wanted:
                    found = True
                else:
                    kept.replace(table, row)
        self.tables = kept
        for key, totals in list(self.summed.items()):
            row = dict(zip(SUMMARY_KEY, key, strict=True)) | dict(totals)
            if (month_of(row), fold(text_of(row))) in wanted:
                del self.summed[key]
                found = True
        return found


def month_of(row: Row) -> Month:
    if "Month" in row:
        return int(row["Year"]), int(row["Month"])
    ended = datetime.fromtimestamp(int(row["EndTime"]), UTC)
    return ended.year, ended.month


def text_of(row: Row) -> str:
    """A row in the words of a ticket, as far as rows differ; without the value of the benchmark, which tables write apart."""

    def said(name: str) -> str:
        text = str(row.get(name) or "")
        return "None" if text.lower() in _NONE else text

    return (
        f"VO {said('VO')}, group {said('VOGroup')}, role {said('VORole')}, user {said('GlobalUserName')}, "
        f"SubmitHost {said('SubmitHost')}, {said('InfrastructureType')}, {level_of(row)}, "
        f"nodes {row['NodeCount']}, processors {row['Processors']}"
    )


def level_of(row: Row) -> str:
    kind = str(row.get("ServiceLevelType"))
    return kind if "ServiceLevel" not in row else f"{kind} {float(row['ServiceLevel']):g}"


@dataclass(slots=True, kw_only=True)
class Wire:
    """A `Transport` into a receiver. `ahead` is what becomes of the next messages, `fine` when it is used up."""

    receiver: Receiver
    ahead: list[str] = field(default_factory=list)

    def payload_limit(self) -> int:
        return 100_000

    def deliver(self, message: Message, now: datetime) -> Receipt:
        fate = self.ahead.pop(0) if self.ahead else "fine"
        if fate == "not stored":
            return Receipt(verdict=Verdict.RETRY_LATER, reason=fate, exit_status=75)
        if fate == "cut before":
            raise Cut
        if fate == "refused":
            return Receipt(verdict=Verdict.REFUSED, reason=fate, exit_status=76)
        if fate == "too large":
            return Receipt(verdict=Verdict.TOO_LARGE, reason=fate, exit_status=76)
        if fate == "refused, perhaps":
            return Receipt(verdict=Verdict.REFUSED, reason=fate, exit_status=76, certain=False)
        self.receiver.take(message, now)
        if fate == "answer lost":
            return Receipt(verdict=Verdict.IN_DOUBT, reason=fate, exit_status=75, doubt=True)
        if fate == "cut after":
            raise Cut
        return Receipt(verdict=Verdict.DELIVERED, remote_id=str(len(self.receiver.messages)), bytes_sent=1)

    def preflight(self) -> tuple[Step, ...]:
        return ()

    def warnings(self, now: datetime) -> list[str]:
        return []

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredSending(LiveSending):
    """Sends by what `connect` gives of a target."""

    connect: Callable[[Target], Transport]

    def transport(self, target: Target) -> Transport:
        return self.connect(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredSite(LiveSite):
    """A `Site` whose targets all lead to one receiver."""

    wire: Wire

    def connect(self, target: Target) -> Transport:
        return self.wire

    @property
    def sending(self) -> LiveSending:
        return WiredSending(self.settings, self.process, self.ledgers, connect=self.connect)


@dataclass(slots=True, kw_only=True)
class Steps:
    """An observer that cuts the power at one of the steps it is told of."""

    fatal: int = 0
    told: int = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self._step

    def _step(self, *_: object, **__: object) -> None:
        self.told += 1
        if self.told == self.fatal:
            raise Cut


@dataclass(slots=True, kw_only=True)
class World:
    """A site in a folder, its jobs as they truly are, and its receiver."""

    folder: Path
    host: Credential
    now: datetime
    format: str = "car"
    schema: Schema = 2
    page_rows: int = 5
    batch_records: int = 4
    wire: Wire = field(default_factory=lambda: Wire(receiver=Receiver()))
    config: dict[str, Any] = field(default_factory=dict)
    done: dict[str, SampleJob] = field(default_factory=dict)
    asked: set[tuple[str, str]] = field(default_factory=set)  # rows that tickets named

    def __post_init__(self) -> None:
        (self.folder / "control" / "accounting").mkdir(parents=True)
        self.config = {
            "site": SITE,
            "source": {
                "type": "arex",
                "control_dir": str(self.folder / "control"),
                "time_zone": "Europe/Oslo",
                "page_rows": self.page_rows,
            },
            "state": str(self.folder / "state" / "publishing.db"),
            "credentials": {"certificate": str(self.host.certificate), "key": str(self.host.key), "ca": "system"},
            "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
            "targets": {
                "egi": {
                    "type": "ams",
                    "url": "https://ams.example.org",
                    "format": self.format,
                    "start": "all",
                    "every": "1s",
                    "sync": True,
                    "batch_records": self.batch_records,
                }
            },
        }
        with self.arex():
            pass

    @property
    def receiver(self) -> Receiver:
        return self.wire.receiver

    def arex(self) -> Writer:
        name = "accounting.db" if self.schema == 1 else "accounting_v2.db"
        return Writer(self.folder / "control" / "accounting" / name, schema=self.schema)

    def site(self) -> WiredSite:
        """As a new process finds it."""
        path = self.folder / "publisher.yaml"
        path.write_text(as_yaml(self.config))
        surroundings = ProcessEnvironment(
            environment={}, clock=lambda: self.now, monotonic=lambda: 0.0, wait=lambda _: False, chance=lambda: 0.5
        )
        settings = config.load(path, {}, host_name="ce01.example.org")
        return WiredSite(settings=settings, process=surroundings, wire=self.wire)

    # What happens at the site

    def finish(self, jobs: Iterable[SampleJob]) -> None:
        ended = list(jobs)
        with self.arex() as arex:
            arex.write_all(ended)
        self.done |= {job.job_id: job for job in ended}

    def finish_again(self, job_id: str, **changes: Any) -> None:
        end_time = changes.pop("end_time", None)
        with self.arex() as arex:
            self.done[job_id] = arex.finish_again(replace(self.done[job_id], **changes), end_time=end_time)

    def pass_time(self, days: float) -> None:
        self.now += timedelta(days=days)

    # What is done

    def publish(
        self, *, faults: Iterable[str] = (), fatal: int = 0, accept: bool = False, force: bool = True
    ) -> Outcome | None:
        """A regular round; None when the power was cut."""
        return self._round(
            faults,
            lambda: commands.publish(
                self.site(), targets=[], observer=Steps(fatal=fatal), force=force, accept_key_change=accept
            ),
        )

    def republish(
        self,
        start: str,
        end: str | None = None,
        *,
        faults: Iterable[str] = (),
        fatal: int = 0,
        accept: bool = False,
        form: str | None = None,
        dry_run: bool = False,
    ) -> Outcome | None:
        def go() -> list[Outcome]:
            site = self.site()
            wish = plan.RepublishRequest(
                window=time.window(time.parse_from(start, self.now), time.parse_to(end or start, self.now)),
                accept_key_change=accept,
                format=form,
            )
            plans = plan.plan(site, site.settings.targets, wish, Steps())
            return run.carry_out(site, site.settings.targets, plans, wish, Steps(fatal=fatal), dry_run=dry_run)

        return self._round(faults, go)

    def sync(self, faults: Iterable[str] = ()) -> Outcome | None:
        site = self.site()
        return self._round(
            faults, lambda: commands.sync(site, site.settings.targets, Steps(), months=None, dry_run=False)
        )

    def differences(self) -> list[str]:
        """What `sync --check` finds."""
        site = self.site()
        compared = check.check(site, site.settings.targets, months=None, portal=None)
        return [f"{row.month_name} {row.submit_host}: {repair}" for row in compared for repair in row.repairs]

    def confirm_deleted(self, outcome: Outcome) -> None:
        """`sync --deleted`, for the months of a ticket that was carried out."""
        site = self.site()
        for held in outcome.held:
            confirm_deleted(site.ledgers, site.settings.targets, held.month)

    def status(self) -> standing.TargetStatus:
        (found,), trouble = standing.status(self.site(), targets=[])
        assert not trouble
        return found

    def _round(self, faults: Iterable[str], go: Callable[[], list[Outcome]]) -> Outcome | None:
        self.wire.ahead = list(faults)
        try:
            with sending_ends():
                (outcome,) = go()
        except Cut:
            return None
        finally:
            self.wire.ahead = []
        return outcome

    # What is true

    def truth(self) -> Totals:
        sums: dict[Month, tuple[int, int, int]] = {}
        for job in self.done.values():
            ended = datetime.fromtimestamp(job.end_time, UTC)
            jobs, wall, cpu = sums.get((ended.year, ended.month), (0, 0, 0))
            more = job.cpu_user_s + job.cpu_kernel_s
            sums[ended.year, ended.month] = (jobs + 1, wall + job.wall_s, cpu + more)
        return sums

    def wrong_months(self) -> dict[Month, tuple[Any, Any]]:
        """Months in which the receiver counts otherwise: what it has, what is true."""
        has, true = self.receiver.totals(), self.truth()
        nothing = (0, 0, 0)
        return {
            month: (has.get(month, nothing), true.get(month, nothing))
            for month in sorted({*has, *true})
            if has.get(month, nothing) != true.get(month, nothing)
        }

    def do_the_tickets(self, outcome: Outcome) -> int:
        """Delete what the outcome's ticket asks for; gives how many rows it named."""
        rows = 0
        for held in outcome.held:
            year, month = (int(part) for part in held.name.split("-"))
            for orphaned in held.orphaned:
                said, _, _ = orphaned.key.text.partition(", LocalJobIds from ")
                text = _LEVEL.sub(lambda found: f"{found[1]} {float(found[2]):g}", said)
                asked_before = (held.name, text) in self.asked
                self.asked.add((held.name, text))
                deleted = self.receiver.delete((year, month), text)
                assert deleted or asked_before, f"no such row at the receiver: {held.name} {text}"
                rows += 1
        return rows
