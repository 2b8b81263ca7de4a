"""A switch-over from jura-ng of ARC 6 and 7 leaves as many rows at the receiver as there were, or the month is held.

What ARC sends is written down here from the facts about it, in rows of the receiver, and independent of the product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from publisher.cli.commands.publish import ticket
from publisher.model.time import epoch, iso
from tests.arex_databases import SampleJob, Schema
from tests.support.arc_pages import apel, keys, stopped
from tests.support.pki import Credential
from tests.support.simulated_months import SITE, Receiver, World
from tests.support.spring_2028 import MARCH, NOW, done, jobs_of_spring
from tests.support.strict_apel import split_fqan
from tests.support.strict_apel_text import fold, summarised

APRIL_BEGINS: Final = epoch(datetime(2028, 4, 1, tzinfo=UTC))
STOPPED: Final = datetime(2028, 3, 14, 3, 4, 5, tzinfo=UTC)
AREX: Final[dict[int, Schema]] = {6: 1, 7: 2}  # ARC's version, and the schema of its database
SCHEMAS: Final[tuple[Schema, ...]] = (1, 2)
MESSAGES: Final = ("urs", "summaries", "summaries-v04")
REST, EMIES, INTERNAL = (
    "org.nordugrid.arcrest",
    "org.ogf.glue.emies.activitycreation",
    "org.nordugrid.internal",
)
PRODUCTION: Final = "/atlas/Role=production/Capability=NULL"

# Who and on what: VO, FQANs, benchmark, interface, user
ORDINARY: Final[tuple[dict[str, Any], ...]] = (
    {"vo": "atlas", "fqans": (PRODUCTION, "/atlas")},
    {"vo": "atlas", "fqans": ("/atlas/sub",), "interface": EMIES},
    {"vo": "atlas", "fqans": ("/atlas/Capability=NULL",)},
    {"vo": "bio", "fqans": ()},
    {"vo": "atlas", "fqans": (PRODUCTION,), "user": "/DC=org/CN=Jane O'Neil", "interface": INTERNAL},
    {"vo": "atlas", "fqans": ("/atlas/my group/Role=a b",)},
    {"vo": "atlas", "fqans": ("/atlas/Role=x+1",)},
    {"vo": "atlas", "fqans": ("/atlas/role=x",)},
    {"vo": "atlas", "fqans": (PRODUCTION,), "benchmark": None},
    {"vo": "atlas", "fqans": (PRODUCTION,), "benchmark": "HEPSPEC 12.26"},
    {"vo": "atlas", "fqans": (PRODUCTION,), "benchmark": "hepspec:12.26"},
    {"vo": "atlas", "fqans": (PRODUCTION,), "benchmark": "HS06:12.26"},
    {"vo": "atlas", "fqans": (PRODUCTION,), "benchmark": "HEPSPEC:10.50"},
)
WITHOUT_VO: Final[tuple[dict[str, Any], ...]] = (
    {"vo": "", "fqans": ()},
    {"vo": "", "fqans": (), "benchmark": None, "interface": EMIES},
)
OF_ANOTHER_VO: Final[dict[str, Any]] = {"vo": "cms", "fqans": ("/atlas/Role=pilot",)}


def jobs_like(kinds: Iterable[dict[str, Any]]) -> list[SampleJob]:
    """Four jobs of each kind, over both months."""
    templates = [kind for kind in kinds for _ in range(4)]
    jobs = jobs_of_spring(
        len(templates), benchmark="HEPSPEC:10.5", interface=REST, user="/DC=org/CN=Jane", nodes=1, cpus=2
    )
    order = sorted(range(len(jobs)), key=lambda number: number % 4)
    placed = [replace(job, **templates[number]) for job, number in zip(jobs, order, strict=True)]
    return [replace(job, token_attributes=(), endpoint_url="https://ce.example.org:443/arex") for job in placed]


@dataclass(frozen=True, kw_only=True)
class Arc:
    """What jura-ng of a version of ARC tells of jobs, as the receiver stores it."""

    version: int
    messages: str
    vomsless_vo: str = ""
    schema: Schema | None = None  # of the database that it reads; None: of its own

    @property
    def finds_all(self) -> bool:
        """ARC 7 looks for FQAN and benchmark of single records where schema 1 has them."""
        return (self.schema or AREX[self.version]) == 1 or self.version == 6

    def rows(self, jobs: Iterable[SampleJob]) -> list[dict[str, Any]]:
        return [self._single(job) if self.messages == "urs" else self._share(job) for job in jobs]

    def _single(self, job: SampleJob) -> dict[str, Any]:
        vo, group, role = job.vo or self.vomsless_vo or None, None, None
        if vo and job.fqans and self.finds_all:
            vo, group, role = split_fqan(job.fqans[0])
        kind, level = self._benchmark(job) if self.finds_all else ("HEPSPEC", Decimal(1))
        return self._common(job, vo, group, role) | {
            "LocalJobId": job.local_job_id or job.job_id,
            "EndTime": job.end_time,
            "StartTime": job.submit_time,
            "SubmitHost": job.endpoint_url,
            "ServiceLevelType": kind,
            "ServiceLevel": level,
        }

    def _share(self, job: SampleJob) -> dict[str, Any]:
        """A job's part of a row of a summary."""
        vo, group, role = job.vo or None, None, None
        if vo:
            parts = re.match(r"((?:/(?!Role=)[\w.-]+)+)(/Role=[\w.-]+)?", job.fqans[0]) if job.fqans else None
            group, role = (parts[1], parts[2] or "Role=NULL") if parts else (f"/{vo}", "Role=NULL")
        kind, level = self._benchmark(job)
        ended = datetime.fromtimestamp(job.end_time, UTC)
        name = {REST: "arcrest:", INTERNAL: "ternal:", EMIES: ""}[job.interface]
        return self._common(job, vo, group, role) | {
            "Year": ended.year,
            "Month": ended.month,
            "SubmitHost": f"{name}{job.endpoint_url}",
            "ServiceLevelType": kind,
            "ServiceLevel": level,
            "NumberOfJobs": 1,
        }

    def _common(self, job: SampleJob, vo: str | None, group: str | None, role: str | None) -> dict[str, Any]:
        return {
            "Site": SITE,
            "GlobalUserName": job.user.replace("'", "%27"),
            "VO": vo or "None",
            "VOGroup": group or "None",
            "VORole": role or "None",
            "InfrastructureType": "grid",
            "NodeCount": job.nodes,
            "Processors": job.cpus,
            "WallDuration": job.wall_s,
            "CpuDuration": job.cpu_user_s + job.cpu_kernel_s,
        }

    def _benchmark(self, job: SampleJob) -> tuple[str, Decimal]:
        kind, _, value = (job.benchmark or "").partition(":")
        return (
            (kind, Decimal(value)) if kind in ("HEPSPEC", "HEPscore23", "Si2k") and value else ("HEPSPEC", Decimal(1))
        )

    def send(self, jobs: Iterable[SampleJob], receiver: Receiver) -> None:
        """Single records, or the totals of the months: those of one key of the receiver, because what counts here is keys."""
        rows = self.rows(jobs)
        if self.messages == "urs":
            for row in rows:
                receiver.tables.replace("JobRecords", row)
            receiver.summed |= summarised("JobRecords", map(dict, receiver.tables.rows("JobRecords")))
            return
        for key, sums in summarised("Summaries", rows).items():
            first = next(row for row in rows if tuple(summarised("Summaries", [row])) == (key,))
            receiver.tables.replace("Summaries", first | sums | {"EarliestEndTime": 0, "LatestEndTime": 0})


@dataclass(kw_only=True)
class SwitchOver:
    """A site with rows that jura-ng left at the receiver, and the configuration that is made of its arc.conf."""

    world: World
    jobs: list[SampleJob]

    def rows(self) -> Counter[tuple[int, int]]:
        """How many rows count at the receiver, by month."""
        return Counter((int(row["Year"]), int(row["Month"])) for _, row in self._rows())

    def _rows(self) -> list[tuple[str, Any]]:
        return self.world.receiver.rows()


def keys_at(receiver: Receiver) -> set[tuple[int, str]]:
    """Every row that counts: its month and its key, as the receiver compares it."""
    return {(int(row["Month"]), fold(text)) for text, row in receiver.rows()}


def switched_over(
    folder: Path,
    host: Credential,
    version: int,
    messages: str,
    kinds: Iterable[dict[str, Any]],
    *,
    schema: Schema | None = None,
    vomsless_vo: str = "",
) -> SwitchOver:
    world = World(folder=folder, host=host, now=NOW, schema=schema or AREX[version])
    jobs = jobs_like(kinds)
    site = SwitchOver(world=world, jobs=jobs)
    before = [job for job in jobs if job.end_time <= STOPPED.timestamp()]
    assert {job.end_time >= MARCH.timestamp() for job in before} == {True, False}
    Arc(version=version, messages=messages, vomsless_vo=vomsless_vo, schema=schema).send(before, world.receiver)
    page = keys(
        apel(
            f"apel_messages = {messages}\n[lrms]\nbenchmark = HEPscore23 11.5",
            jura=f"vomsless_vo = {vomsless_vo}" if vomsless_vo else "",
            takeover=replace(stopped({"arex/jura/apel:egi": (epoch(STOPPED), epoch(STOPPED))}), now=NOW),
        )
    )
    world.config["records"] = page["records"]
    theirs = page["targets"]["egi"]
    told = {key: theirs[key] for key in ("format", "start", "jura_until", "jura_format", "default_vo") if key in theirs}
    world.config["targets"]["egi"] |= {
        key: iso(value) if isinstance(value, datetime) else value for key, value in told.items()
    }
    world.finish(before)
    if version == 6 and world.schema == 2:
        migrate(world)
    return site


def migrate(world: World) -> None:
    """`arcctl accounting database migrate` copies the side tables of ARC 6, where ARC 7 looks."""
    with world.arex() as arex:
        for job in world.done.values():
            record = arex.record_id(job)
            if job.benchmark:
                arex.connection.execute("INSERT INTO JobExtraInfo VALUES (?, 'benchmark', ?)", (record, job.benchmark))
            if job.fqans:
                arex.connection.execute(
                    "INSERT INTO AuthTokenAttributes VALUES (?, 'mainfqan', ?)", (record, job.fqans[0])
                )
        arex.connection.commit()


MATRIX: Final = [(version, messages) for version in AREX for messages in MESSAGES]


@pytest.mark.parametrize("kinds", [ORDINARY, (*ORDINARY, *WITHOUT_VO)], ids=["with a VO", "some without"])
@pytest.mark.parametrize(
    ("version", "messages", "schema"),
    [(*one, schema) for one in MATRIX for schema in SCHEMAS if (*one, schema) != (7, "urs", 2)],
)
@pytest.mark.some(2)
def test_rule_21_the_month_of_the_switch_over_has_as_many_rows_as_before(
    tmp_path: Path, host: Credential, version: int, messages: str, schema: Schema, kinds: tuple[dict[str, Any], ...]
) -> None:
    site = switched_over(tmp_path, host, version, messages, kinds, schema=schema)
    world = site.world
    before = site.rows(), world.receiver.totals()
    for again in (world.publish, partial(world.republish, "2028-02", "2028-03"), world.publish):
        outcome = again()
        assert (done(outcome).exit_status, done(outcome).held) == (0, ())
        assert (site.rows(), world.receiver.totals()) == before
    assert not world.wrong_months()
    assert done(world.publish()).outcome == "nothing"


def left_at_the_last_second(site: SwitchOver, version: int, messages: str) -> list[SampleJob]:
    """A job of each kind that ended in the very second of LastEndTime, each alone under its key of the receiver."""
    last = [
        replace(job.moved_to(epoch(STOPPED)), job_id=f"last{at}", local_job_id=f"last{at}", user=f"/CN=Last {at}")
        for at, job in enumerate(jobs_like((*ORDINARY, *WITHOUT_VO, OF_ANOTHER_VO))[::4])
    ]
    Arc(version=version, messages=messages).send([*site.world.done.values(), *last], site.world.receiver)
    site.world.finish(last)
    return last


@pytest.mark.parametrize(("version", "messages"), MATRIX)
def test_jobs_of_the_last_second_are_sent_again_under_the_keys_that_were_there(
    tmp_path: Path, host: Credential, version: int, messages: str
) -> None:
    site = switched_over(tmp_path, host, version, messages, (*ORDINARY, *WITHOUT_VO, OF_ANOTHER_VO))
    world = site.world
    last = left_at_the_last_second(site, version, messages)
    before = keys_at(world.receiver), world.receiver.totals()
    for again in range(2):
        outcome = done(world.publish())
        assert (outcome.exit_status, outcome.held) == (0, ())
        assert bool(outcome.records) == (not again)
        assert (keys_at(world.receiver), world.receiver.totals()) == before
        assert not world.differences()
    world.finish_again(last[0].job_id, wall_s=last[0].wall_s + 7)
    assert done(world.publish()).held == ()
    assert keys_at(world.receiver) == before[0]
    (year, month), (jobs, wall_s, cpu_s) = max(before[1].items())
    # What the other publisher sent is a guess in totals, which only `republish` changes.
    more = 0 if "summaries" in messages else 7
    assert world.receiver.totals()[year, month] == (jobs, wall_s + more, cpu_s)


def test_jobs_of_the_last_second_count_where_their_users_are_not_named_any_more(
    tmp_path: Path, host: Credential
) -> None:
    site = switched_over(tmp_path, host, 6, "urs", ORDINARY)
    world = site.world
    left_at_the_last_second(site, 6, "urs")
    world.config["records"]["identity"] = {"mode": "withheld"}
    world.config["targets"]["egi"]["sync"] = False
    before = keys_at(world.receiver), world.receiver.totals()
    outcome = done(world.publish())
    assert (outcome.exit_status, outcome.records, outcome.quarantined) == (0, 0, 0), "they count as they were sent"
    assert (keys_at(world.receiver), world.receiver.totals()) == before


@pytest.mark.parametrize("messages", MESSAGES)
def test_a_vomsless_vo_is_told_in_single_records_only(tmp_path: Path, host: Credential, messages: str) -> None:
    site = switched_over(tmp_path, host, 6, messages, (*ORDINARY, *WITHOUT_VO), vomsless_vo="ops")
    before = keys_at(site.world.receiver), site.world.receiver.totals()
    assert any("vo ops," in text for _, text in before[0]) == (messages == "urs")
    assert done(site.world.publish()).exit_status == 0
    assert done(site.world.republish("2028-02", "2028-03")).held == ()
    assert (keys_at(site.world.receiver), site.world.receiver.totals()) == before


@pytest.mark.parametrize(
    "change", [{"key_style": "apel"}, {"benchmark": {"type": "HEPSPEC", "value": 9, "override": True}}]
)
@pytest.mark.parametrize(("version", "messages"), [one for one in MATRIX if one[1] != "urs"])
def test_months_that_would_get_other_keys_are_held(
    tmp_path: Path, host: Credential, version: int, messages: str, change: dict[str, Any]
) -> None:
    site = switched_over(tmp_path, host, version, messages, (*ORDINARY, *WITHOUT_VO))
    site.world.config["records"] |= change
    before = keys_at(site.world.receiver), site.world.receiver.totals()
    assert (done(site.world.publish()).exit_status, site.world.receiver.totals()) == (0, before[1])
    held = done(site.world.republish("2028-03"))
    assert (held.exit_status, [month.name for month in held.held]) == (65, ["2028-03"])
    assert (keys_at(site.world.receiver), site.world.receiver.totals()) == before
    named = {(3, fold(total.key.text).replace("hepspec 10.500,", "hepspec 10.5,")) for total in held.held[0].orphaned}
    assert named <= before[0], "tickets name rows that are there"


@pytest.mark.parametrize(("version", "messages"), [one for one in MATRIX if one != (7, "urs")])
def test_jobs_that_end_after_it_come_under_the_keys_that_were_there(
    tmp_path: Path, host: Credential, version: int, messages: str
) -> None:
    site = switched_over(tmp_path, host, version, messages, (*ORDINARY, *WITHOUT_VO))
    every = Receiver()
    Arc(version=version, messages=messages).send(site.jobs, every)
    site.world.finish([job for job in site.jobs if job.end_time > STOPPED.timestamp()])
    assert done(site.world.publish()).exit_status == 0
    assert done(site.world.republish("2028-02", "2028-03")).exit_status == 0
    assert keys_at(site.world.receiver) == keys_at(every)
    assert not site.world.wrong_months()


@pytest.mark.parametrize("kinds", [ORDINARY, (*ORDINARY, *WITHOUT_VO)], ids=["with a VO", "some without"])
def test_rule_21_single_records_of_arc_7_had_other_keys_and_their_months_are_held(
    tmp_path: Path, host: Credential, kinds: tuple[dict[str, Any], ...]
) -> None:
    """It sent every job without an FQAN and with HEPSPEC 1.0: ours must not stay like that, so rows must go."""
    site = switched_over(tmp_path, host, 7, "urs", kinds)
    world = site.world
    there = {(text, row["Month"]) for text, row in world.receiver.rows()}
    assert done(world.publish()).exit_status == 0
    before = site.rows(), world.receiver.totals()
    held = done(world.republish("2028-02", "2028-03"))
    assert (held.exit_status, [month.name for month in held.held]) == (65, ["2028-02", "2028-03"])
    assert (site.rows(), world.receiver.totals()) == before
    named = [total.key.text for month in held.held for total in month.orphaned]
    assert named
    assert all(", group None, role None, " in text and "HEPSPEC 1," in text for text in named)
    assert len(named) < len(there) or WITHOUT_VO[0] not in kinds, (
        "rows of jobs without a VO and benchmark stay as they are"
    )
    assert any("Rows that would stay" in line for line in ticket(SITE, "APEL", held))
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.slow
@pytest.mark.parametrize(("version", "messages"), MATRIX)
def test_a_vo_that_its_fqan_does_not_name(tmp_path: Path, host: Credential, version: int, messages: str) -> None:
    """ARC tells it in summaries; of its single records APEL takes the FQAN's, and ours tells the job's own."""
    site = switched_over(tmp_path, host, version, messages, (*ORDINARY, OF_ANOTHER_VO))
    before = site.rows(), site.world.receiver.totals()
    outcome = done(site.world.republish("2028-02", "2028-03"))
    assert (site.rows(), site.world.receiver.totals()) == before
    assert bool(outcome.held) == (messages == "urs")
    if (version, messages) == (6, "urs"):
        named = {total.key.text.partition(", user")[0] for month in outcome.held for total in month.orphaned}
        assert named == {"VO atlas, group /atlas, role Role=pilot"}
    if messages == "urs":
        site.world.do_the_tickets(outcome)
        assert done(site.world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert not site.world.wrong_months()
    assert any(text.startswith("VO cms, group /atlas, role ") for text, _ in site.world.receiver.rows())


@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.some(3)
def test_from_the_next_month_on_jobs_without_a_benchmark_have_the_configured_one(
    tmp_path: Path, host: Credential, messages: str
) -> None:
    site = switched_over(tmp_path, host, 6, messages, ORDINARY)
    assert done(site.world.publish()).exit_status == 0
    like = next(job for job in site.jobs if job.benchmark is None)
    last, first = (
        replace(like.moved_to(APRIL_BEGINS + second), job_id=f"n{second}", local_job_id=f"n{second}")
        for second in (-1, 0)
    )
    site.world.finish([last, first])
    assert done(site.world.publish()).exit_status == 0
    before = [job for job in site.jobs if job.end_time <= STOPPED.timestamp()]
    every = Receiver()
    Arc(version=6, messages=messages).send([*before, last], every)
    keys_of_april = keys_at(site.world.receiver) - keys_at(every)
    assert {(month, re.findall("hep[a-z0-9]+ [0-9.]+", text)[0]) for month, text in keys_of_april} == {
        (4, "hepscore23 11.5")
    }
    assert keys_at(every) <= keys_at(site.world.receiver)
