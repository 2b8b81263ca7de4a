"""`republish`: a window again, resumable, beside the regular rounds, and never a part of a month by accident."""

from __future__ import annotations

import io
import itertools
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from publisher.cli.progress import CountingReport, ProgressReport
from publisher.jobs.reader import JobPage
from publisher.ledger.sql.parts.outbox import SqlOutbox
from publisher.ledger.sql.parts.positions import SqlPositions
from publisher.model.errors import LedgerError
from publisher.model.job import JobRecord
from publisher.model.message import message_of
from publisher.transports.base import Receipt, Verdict
from tests.arex_databases import SampleJob, bulk, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_sgas.service import FakeSGAS
from tests.support.crash_walk import crash_walk, walking
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sgas_sites import SgasSite
from tests.support.sites import Run, SiteUnderTest, told, truth

pytest_plugins = ["tests.fake_sgas.fixtures"]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))


def fill(site: SiteUnderTest, *jobs: SampleJob) -> None:
    site.fill(*jobs)


def jobs_of(start: datetime, end: datetime, count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, start, end))


def republish(site: SiteUnderTest, *arguments: str) -> Run:
    return site.run("republish", "--json", "--yes", *arguments)


def counts(site: SiteUnderTest) -> Counter[object]:
    return Counter(told(row) for row in site.received(with_openssl=False))


def test_a_window_goes_again_and_regular_rounds_are_untouched(site: SiteUnderTest) -> None:
    september, october = jobs_of(SEPTEMBER, OCTOBER, 40), jobs_of(OCTOBER, NOVEMBER, 30, seed=2)
    fill(site, *september, *october)
    assert site.publish().status == 0
    run = republish(site, "--from", "2026-09", "--to", "2026-09")
    assert run.status == 0, run.err
    assert run.json["targets"]["egi"]["records"] == 40
    assert counts(site) == Counter({truth(job): 2 for job in september} | {truth(job): 1 for job in october})
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 70


def test_a_job_in_two_databases_is_announced_once(site: SiteUnderTest) -> None:
    september = jobs_of(SEPTEMBER, OCTOBER, 40)
    for schema in (1, 2):
        site.fill(*september, schema=schema)
    run = site.run("republish", "--yes", "--from", "2026-09", "--to", "2026-09")
    assert run.status == 0, run.err
    assert re.search(r"\b40 jobs", run.out + run.err)
    assert not re.search(r"\b80\b", run.out + run.err)
    assert counts(site) == Counter(map(truth, september))


def test_what_it_delivers_counts_as_delivered(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["start"] = "2026-10"
    september, october = jobs_of(SEPTEMBER, OCTOBER, 20), jobs_of(OCTOBER, NOVEMBER, 20, seed=2)
    fill(site, *september, *october)
    assert republish(site, "--from", "2026-09", "--to", "2026-10").json["targets"]["egi"]["records"] == 40
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert set(counts(site).values()) == {1}


def test_it_is_rounded_out_to_whole_months_and_says_so(site: SiteUnderTest) -> None:
    """Defect 11: a part of a month replaces the whole one where the receiver purged its job records."""
    jobs = jobs_of(SEPTEMBER, OCTOBER, 50)
    fill(site, *jobs)
    run = republish(site, "--from", "2026-09-10", "--to", "2026-09-12")
    assert run.json["targets"]["egi"]["records"] == 50
    assert "rounded out to whole months" in run.err
    assert "jobs that ended 2026-09-01 to 2026-09-30" in run.err
    exact = republish(site, "--from", "2026-09-10", "--to", "2026-09-12", "--exact")
    inside = [
        job
        for job in jobs
        if datetime(2026, 9, 10, tzinfo=UTC).timestamp() <= job.end_time < datetime(2026, 9, 13, tzinfo=UTC).timestamp()
    ]
    assert exact.json["targets"]["egi"]["records"] == len(inside)
    assert "purged" in exact.err


def test_a_part_of_a_month_of_summaries_is_never_sent(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 10))
    assert republish(site, "--from", "2026-09-10", "--to", "2026-09-12", "--exact").status == 64
    assert not site.fake.messages(PROJECT, TOPIC)


def test_summaries_of_named_months_go_again_whole(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    fill(site, *jobs_of(SEPTEMBER, NOVEMBER, 60))
    assert site.publish().status == 0
    before = len(site.fake.messages(PROJECT, TOPIC))
    run = republish(site, "--from", "2026-09-10", "--to", "2026-09-12")
    assert run.status == 0, run.err
    assert len(site.fake.messages(PROJECT, TOPIC)) > before
    assert "2026-09" in run.err
    assert "2026-10" not in run.err.replace("2026-10-01T00:00:00Z", "")
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--from", "2026-10", "--to", "2026-09"), 64),
        (("--from", "whenever", "--to", "2026-09"), 64),
        (("--from", "2030-01", "--to", "2030-02"), 0),
        (("--from", "2026-02", "--to", "2026-02"), 0),
    ],
)
def test_odd_windows(site: SiteUnderTest, arguments: tuple[str, ...], status: int) -> None:
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 5))
    run = republish(site, *arguments)
    assert run.status == status, run.err
    assert "Traceback" not in run.err
    assert not site.fake.messages(PROJECT, TOPIC)


def test_a_rehearsal_sends_nothing(site: SiteUnderTest) -> None:
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 30))
    run = republish(site, "--from", "2026-09", "--to", "2026-09", "--dry-run")
    assert run.json["targets"]["egi"]["records"] == 30
    assert ": ready, and not sent: " not in run.err
    assert "delivered" not in run.err
    assert not site.fake.messages(PROJECT, TOPIC)


def test_a_window_that_contradicts_the_ledger_stops_and_names_the_flag(site: SiteUnderTest) -> None:
    """Another machine's database under our feet: nothing in it was ever delivered."""
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 150))
    assert site.publish().status == 0
    site.database().unlink()
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 150, seed=5))
    run = republish(site, "--from", "2026-09", "--to", "2026-09")
    assert run.status == 65
    assert "--no-brake" in run.json["targets"]["egi"]["reason"]
    window = ("--from", "2026-09", "--to", "2026-09", "--no-brake")
    assert republish(site, *window).json["targets"]["egi"]["records"] == 300, (
        "also those that were delivered before, which the job store still has"
    )
    status = site.run("status", "--json").json["targets"]["egi"]
    assert status["delivered"] == 300, "jobs that the database has no more go on counting"


def test_another_format_for_once(site: SiteUnderTest) -> None:
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 10))
    run = republish(site, "--from", "2026-09", "--to", "2026-09", "--format", "apel-job-0.3")
    assert run.status == 0, run.err
    assert run.json["targets"]["egi"]["records"] == 10
    assert republish(site, "--from", "2026-09", "--to", "2026-09", "--format", "nonsense").status == 64


@pytest.mark.slow
def test_interrupted_anywhere_it_goes_on_and_at_most_one_message_goes_twice(
    site: SiteUnderTest, record_property: Callable[[str, object], None]
) -> None:
    """`kill -9` at random messages."""
    site.config["targets"]["egi"] |= {"batch_records": 25, "attempts": 1}
    site.config["source"]["page_rows"] = 20
    jobs = jobs_of(SEPTEMBER, OCTOBER, 600)
    fill(site, *jobs)
    site.save()
    kills = 0
    for fatal in (9, 31, 17, 4, 1_000_000):
        ended = crash_walk(site.path, fatal, "2026-09")
        kills += ended == -signal.SIGKILL
        assert ended in (0, -signal.SIGKILL)
    assert kills >= 3
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in jobs}
    ids = Counter(message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC))
    assert sum(count - 1 for count in ids.values()) <= kills
    records = sum(counts(site).values())
    assert records <= 600 + kills * 25, "nothing but the message that was on its way"
    record_property("tried", kills)


def _fails(
    kind: type, name: str, call: int, error: Exception, *, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That call of a method raises: before it has done anything, or after."""
    whole, calls = getattr(kind, name), itertools.count(1)

    def failing(self: object, *arguments: object, **named: object) -> object:
        fails = next(calls) == call
        if fails and before:
            raise error
        done = whole(self, *arguments, **named)
        if fails:
            raise error
        return done

    monkeypatch.setattr(kind, name, failing)


@pytest.mark.parametrize(
    ("kind", "name", "call", "error", "before"),
    [
        (SqlOutbox, "prepare", 2, LedgerError("the disk is full"), True),
        (SqlOutbox, "prepare", 2, LedgerError("the connection is lost"), False),
        (SqlOutbox, "prepare", 2, ValueError("a mistake"), True),
        (SqlPositions, "window_progress", 2, LedgerError("locked"), True),
        (SqlPositions, "window_progress", 3, LedgerError("locked"), True),
        (SqlPositions, "window_progress", 4, LedgerError("locked"), True),
        (ProgressReport, "message_settled", 2, OSError("the terminal is gone"), True),
        (ProgressReport, "message_prepared", 2, OSError("the terminal is gone"), True),
    ],
    ids=str,
)
def test_a_message_that_arrived_stays_settled_whatever_becomes_of_the_next(
    site: SiteUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    name: str,
    call: int,
    error: Exception,
    before: bool,
) -> None:
    """And no job of the next is left out where the window goes on."""
    site.config["targets"]["egi"] |= {"batch_records": 10}
    site.config["source"]["page_rows"] = 10
    jobs = jobs_of(SEPTEMBER, OCTOBER, 45)
    fill(site, *jobs)
    site.save()
    with monkeypatch.context() as patched:
        _fails(kind, name, call, error, before=before, monkeypatch=patched)
        with suppress(OSError, ValueError):
            assert republish(site, "--from", "2026-09", "--to", "2026-09").status != 0
    assert republish(site, "--from", "2026-09", "--to", "2026-09").status == 0
    assert counts(site) == dict.fromkeys(map(truth, jobs), 1)


@pytest.mark.slow
def test_a_regular_round_gets_in_between(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"batch_records": 5}
    site.config["source"]["page_rows"] = 5
    september = jobs_of(SEPTEMBER, OCTOBER, 400)
    fill(site, *september)
    assert site.publish().status == 0
    late = [replace(job, job_id=f"late{at}") for at, job in enumerate(jobs_of(OCTOBER, NOVEMBER, 7, seed=3))]
    results: list[Run] = []
    child = walking(site.path, 1_000_000, "2026-09")
    try:
        waiting = threading.Event()
        before = len(site.fake.messages(PROJECT, TOPIC))
        while len(site.fake.messages(PROJECT, TOPIC)) == before and child.poll() is None:
            waiting.wait(0.02)
        fill(site, *late)
        results.append(site.publish())
        while (
            results[-1].status == 75 and child.poll() is None
        ):  # on a busy machine it gives up waiting before its turn
            results.append(site.publish())
    finally:
        child.communicate(timeout=PATIENCE_S)
    assert results[-1].status == 0, results[-1].err
    assert results[-1].json["targets"]["egi"]["records"] >= 7
    assert child.returncode == 0
    assert {told(row) for row in site.received(with_openssl=False)} >= {truth(job) for job in [*september, *late]}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"benchmark": {"type": "HEPscore23", "value": 9}}, "HEPscore23 11.5"),
        ({"vo_rules": [{"field": "any", "pattern": "*", "vo": "other", "override": True}]}, "VO "),
        ({"identity": "withheld"}, "user /"),
    ],
)
def test_months_that_would_leave_rows_behind_are_held(
    site: SiteUnderTest, change: dict[str, object], word: str
) -> None:
    """Job records replace each other at the receiver, what it summed up of them does not: both would count."""
    jobs = [replace(job, benchmark=None) for job in jobs_of(SEPTEMBER, NOVEMBER, 40)]
    fill(site, *jobs)
    assert site.publish().status == 0
    site.config["records"] |= change
    site.save()
    before = len(site.fake.messages(PROJECT, TOPIC))
    held = republish(site, "--from", "2026-09", "--to", "2026-10")
    assert (held.status, held.json["targets"]["egi"]["outcome"]) == (65, "held")
    months = held.json["targets"]["egi"]["held"]
    assert {month["month"] for month in months} == {"2026-09", "2026-10"}
    assert any(word in row["row"] for month in months for row in month["stale"])
    assert sum(row["jobs"] for month in months for row in month["stale"]) <= 40
    assert len(site.fake.messages(PROJECT, TOPIC)) == before
    assert "delete" in site.run("republish", "--yes", "--from", "2026-09", "--to", "2026-10").out
    accepted = republish(site, "--from", "2026-09", "--to", "2026-10", "--accept-key-change")
    assert accepted.json["targets"]["egi"]["records"] == 40
    assert republish(site, "--from", "2026-09", "--to", "2026-10").status == 0, "accepted once, it is the new truth"


def test_a_target_for_this_once(site: SiteUnderTest) -> None:
    """Authn must be at port 8443 of the URL's host there, so only the rehearsal can be shown on free ports."""
    jobs = jobs_of(SEPTEMBER, OCTOBER, 10)
    fill(site, *jobs)
    window = ("--from", "2026-09", "--to", "2026-09")
    run = republish(
        site, *window, "--ams-url", "https://ams.example.org", "--topic", "other", "--site", "ELSEWHERE", "--dry-run"
    )
    assert run.status == 0, run.err
    ((name, outcome),) = run.json["targets"].items()
    assert name.startswith("once-")
    assert outcome["records"] == 10
    assert republish(site, *window, "--ams-url", "http://ams.example.org").status == 64
    assert republish(site, *window, "--ams-url", "https://a.example", "--sgas-url", "https://b.example").status == 64
    assert republish(site, *window, "--topic", "other").status == 64


def test_a_target_for_this_once_takes_what_arcctl_republish_takes(site: SiteUnderTest) -> None:
    """--vofilter, --localid-prefix and --urbatchsize of ARC's command."""
    jobs = jobs_of(SEPTEMBER, OCTOBER, 30)
    fill(site, *jobs)
    wanted = sum(job.vo in ("atlas", "cms") for job in jobs)
    assert 3 < wanted < len(jobs)
    window = ("--from", "2026-09", "--to", "2026-09")
    there = (*window, "--ams-url", "https://ams.example.org", "--dry-run")
    run = republish(site, *there, "--vo", "atlas", "--vo", "cms", "--batch-records", "2", "--localid-prefix", "ce1-")
    assert run.status == 0, run.err
    ((_, outcome),) = run.json["targets"].items()
    assert (outcome["records"], outcome["messages"]) == (wanted, (wanted + 1) // 2)
    assert republish(site, *there, "--batch-records", "0").status == 64
    for words in (("--vo", "a"), ("--localid-prefix", "x"), ("--batch-records", "2")):
        assert republish(site, *window, *words).status == 64


def test_a_target_for_this_once_is_not_a_configured_one_under_another_name(site: SiteUnderTest) -> None:
    """It would not know what was sent there before, and which rows would be left behind."""
    fill(site, *jobs_of(SEPTEMBER, OCTOBER, 3))
    there = ("--from", "2026-09", "--to", "2026-09", "--dry-run", "--ams-url", site.fake.url)
    run = republish(site, *there)
    assert (run.status, "--target" in run.err, "egi" in run.err) == (64, True, True)
    assert republish(site, *there, "--topic", "other").status == 0
    assert republish(site, *there, "--site", "ELSEWHERE").status == 0


def test_jobs_that_a_republish_set_aside_stay_in_sight(site: SiteUnderTest) -> None:
    jobs = [replace(job, benchmark=None) for job in jobs_of(SEPTEMBER, OCTOBER, 6)]
    fill(site, *jobs)
    assert site.publish().status == 0
    site.config["records"] = {}
    site.save()
    for _ in range(2):
        assert republish(site, "--from", "2026-09", "--to", "2026-09", "--accept-key-change").status == 65
    assert site.publish().status == 0
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {one["rule"] for one in held} == {"benchmark-missing"}
    assert len(held) == 6


@pytest.mark.slow
def test_a_window_that_dwarfs_what_was_delivered_stops_and_names_the_flag(site: SiteUnderTest) -> None:
    bulk(site.database(), 2, 20_100, 1, SEPTEMBER, OCTOBER)
    assert site.publish("--limit", "5").status == 0
    run = republish(site, "--from", "2026-09", "--to", "2026-09")
    assert run.status == 65
    assert re.search(r"the window has 20,\d+ jobs, \d+ times what was ever delivered to egi", run.err)
    assert "--no-brake" in run.json["targets"]["egi"]["reason"]
    assert len(site.received(with_openssl=False)) == 5


def test_to_sgas_it_fills_gaps_and_says_so(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    site = SgasSite(tmp_path, pki, fake_sgas)
    site.fill(*jobs_of(SEPTEMBER, OCTOBER, 20))
    run = site.run("republish", "--yes", "--json", "--from", "2026-09-10", "--to", "2026-09-12")
    assert run.status == 0, run.err
    assert "SGAS keeps the row it has: this fills gaps and corrects nothing" in run.err
    assert "rounded out" not in run.err


def test_how_far_it_is_and_how_long_it_takes_is_told_on_a_terminal() -> None:
    screen = Screen()
    now = [0.0]
    report = ProgressReport(screen, monotonic=lambda: now[0], quiet=False)
    report.expect(1_000)
    now[0] = 10.0
    report.message_settled(message_of(b"x", "egi", "car", 250, SEPTEMBER), Receipt(verdict=Verdict.DELIVERED))
    report.close()
    assert "25 %, about 30 s left: egi: 250 of 1,000 records" in screen.getvalue()


def test_how_far_the_rounds_of_several_targets_are() -> None:
    """One of four has ended, one is at work, and two wait for their turn: they are taken for as many jobs each."""
    screen = Screen()
    now = [0.0]
    report = ProgressReport(screen, monotonic=lambda: now[0], quiet=False)
    report.expect_targets(4)
    jobs = cast("tuple[JobRecord, ...]", ("one job", "another one"))
    for target, left in (("first", 0), ("second", 6)):
        now[0] += 10.0
        report.page_read(target, JobPage(jobs, upto=2, left=left))
        if not left:
            report.round_ends(target)
    report.close()
    assert "20 %, about 80 s left: 1 of 4 targets done; second: 4 of 20 jobs read" in screen.getvalue()


# What it says first


def plan_line(run: Run) -> str:
    return next(line for line in run.err.split("\n") if "months:" in line)


def test_what_was_sent_before_is_counted_job_by_job_and_else_at_most(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"vos": ["atlas"], "batch_records": 4}
    site.config["records"]["default_vo"] = "nobody"
    jobs = [
        replace(job, vo="atlas", fqans=("/atlas",)) if at % 3 else job
        for at, job in enumerate(jobs_of(SEPTEMBER, OCTOBER, 60))
    ]
    fill(site, *jobs)
    window = ("--from", "2026-09", "--to", "2026-09")
    first = republish(site, *window)
    sent = first.json["targets"]["egi"]["records"]
    assert 30 < sent < 60
    assert "at most 60 jobs" in plan_line(first)
    assert plan_line(republish(site, "--from", "2026-06", "--to", "2026-06")) == "  no jobs to send; months: 2026-06"
    again = republish(site, *window)
    told = again.json["targets"]["egi"]
    assert f"  {sent} jobs in about {told['messages']} messages" in plan_line(again)
    kilobytes = re.search(r"([0-9.]+) kB", plan_line(again))
    assert kilobytes is not None
    assert abs(float(kilobytes[1]) * 1e3 - sent * 1_800) < sent * 600


@pytest.mark.parametrize("dry_run", [True, False])
def test_totals_are_counted_before_they_are_sent(site: SiteUnderTest, dry_run: bool) -> None:
    site.config["targets"]["egi"] |= {"format": "apel-summary-0.4", "batch_records": 7}
    fill(site, *jobs_of(SEPTEMBER, NOVEMBER, 60))
    run = republish(site, "--from", "2026-09", "--to", "2026-10", *(["--dry-run"] if dry_run else []))
    told = run.json["targets"]["egi"]
    assert f"  {told['records']} totals of 60 jobs in {told['messages']} messages" in plan_line(run)
    assert bool(site.fake.messages(PROJECT, TOPIC)) is not dry_run


def test_a_month_that_would_be_held_is_told_before(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    fill(site, *(replace(job, benchmark=None) for job in jobs_of(SEPTEMBER, NOVEMBER, 20)))
    assert site.publish().status == 0
    site.config["records"]["benchmark"]["value"] = 9
    site.save()
    run = republish(site, "--from", "2026-10", "--to", "2026-10")
    assert (run.status, "  2026-10: would leave rows behind" in run.err) == (65, True)


def test_looking_at_many_jobs_tells_how_far_it_is() -> None:
    """On a terminal alone; what was waited for before the first job is no part of the rate."""
    now = [0.0]
    screen, file = Screen(), io.StringIO()
    reports = [CountingReport(one, monotonic=lambda: now[0], quiet=False, what="jobs") for one in (screen, file)]
    for report in reports:
        report.expect(1_000)
    for now[0] in (100.0, 130.0):
        for report in reports:
            report.seen(100)
    for report in reports:
        report.close()
    assert "20 %, about 2 min left: 200 of 1,000 jobs" in screen.getvalue()
    assert file.getvalue() == ""


def test_the_rows_of_a_source_are_counted_when_that_takes_long() -> None:
    now, asked = [0.0], list[int]()
    screen = Screen()

    def total() -> int:
        asked.append(1)
        return 4_000

    report = CountingReport(screen, monotonic=lambda: now[0], quiet=False)
    report.begins("rows of accounting.db loaded", total)
    report.seen(500)
    assert (asked, screen.getvalue()) == ([], "")
    for now[0] in (10.0, 20.0):
        report.seen(500)
    report.close()
    assert "37 %, about 33 s left: 1,500 of 4,000 rows of accounting.db loaded" in screen.getvalue()
    assert asked == [1]


def test_months_of_totals_go_on_where_they_were_broken_off(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"format": "apel-summary-0.2", "attempts": 1}
    fill(site, *jobs_of(SEPTEMBER, NOVEMBER, 60))
    assert site.publish().status == 0
    window = ("--from", "2026-09", "--to", "2026-10")
    before = len(site.fake.messages(PROJECT, TOPIC))
    site.fake.faults.push(Fault.none(), Fault.status(503))
    assert republish(site, *window).status == 75
    assert len(site.fake.messages(PROJECT, TOPIC)) == before + 1
    again = republish(site, *window)
    assert (again.status, "resumes with the month" in again.err) == (0, True)
    assert len(site.fake.messages(PROJECT, TOPIC)) == before + 2, "the month that was refused, anew"
    whole = republish(site, *window)
    assert "goes on" not in whole.err
    assert len(site.fake.messages(PROJECT, TOPIC)) == before + 4
