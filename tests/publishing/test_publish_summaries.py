"""Monthly totals, end to end: whole months, exactly when they changed, each job counted once."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.jobs.reader import StoreReader
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.tables import Tables
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest
from tests.support.strict_apel_text import read_text

BOTH_MONTHS = ("--from", "2026-09", "--to", "2026-10")
SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
FORMATS = ("apel-summary-0.2", "apel-summary-0.3", "apel-summary-0.4", "apel-normalised-summary-0.4")
Totals = dict[tuple[int, int], tuple[int, int, int]]


@pytest.fixture(params=FORMATS)
def any_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"]["format"] = "apel-summary-0.2"
    return made


def messages(site: SiteUnderTest) -> list[tuple[str, list[dict[str, Any]]]]:
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    taken = [receiver.take(message) for message in site.fake.messages(PROJECT, TOPIC)]
    return [read_text(one.text.encode(), datetime.now(UTC)) for one in taken]


def republish(site: SiteUnderTest, *words: str) -> Run:
    return site.run("republish", "--json", "--yes", "--no-brake", *BOTH_MONTHS, *words)


def at_the_receiver(site: SiteUnderTest) -> Totals:
    """Jobs, wall and CPU by month, of the rows that stay under the server's keys."""
    tables = Tables()
    names = set()
    for name, rows in messages(site):
        names.add(name)
        for row in rows:
            tables.replace(name, row)
    totals: Totals = {}
    for name in names:
        for stored in tables.rows(name):
            row = dict(stored)
            month = (int(str(row["Year"])), int(str(row["Month"])))
            jobs, wall, cpu = totals.get(month, (0, 0, 0))
            told = (int(str(row[key])) for key in ("NumberOfJobs", "WallDuration", "CpuDuration"))
            more_jobs, more_wall, more_cpu = told
            totals[month] = (jobs + more_jobs, wall + more_wall, cpu + more_cpu)
    return totals


def in_the_database(jobs: Iterable[SampleJob]) -> Totals:
    totals: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for job in jobs:
        end = datetime.fromtimestamp(job.end_time, UTC)
        totals[end.year, end.month].update(jobs=1, wall=job.wall_s, cpu=job.cpu_user_s + job.cpu_kernel_s)
    return {month: (sums["jobs"], sums["wall"], sums["cpu"]) for month, sums in totals.items()}


def two_months(count: int = 150, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, SEPTEMBER, NOVEMBER))


def test_every_month_arrives_whole_in_every_format(site: SiteUnderTest, any_format: str) -> None:
    site.config["targets"]["egi"]["format"] = any_format
    jobs = two_months()
    site.fill(*jobs)
    run = site.publish()
    assert run.status == 0, run.err
    assert at_the_receiver(site) == in_the_database(jobs)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    status = site.run("status", "--json").json["targets"]["egi"]
    assert (status["delivered"], status["pending"]) == (150, 0)
    latest = max(job.end_time for job in jobs)
    assert status["last_published_end_time"] == datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_only_months_that_changed_go_again_and_always_whole(site: SiteUnderTest) -> None:
    jobs = two_months()
    site.fill(*jobs)
    assert site.publish().status == 0
    before = len(messages(site))
    late = list(generate(9, 5, SEPTEMBER, OCTOBER))
    site.fill(*late)
    assert site.run("status", "--json").json["targets"]["egi"]["pending"] == 5
    assert site.publish().status == 0
    again = messages(site)[before:]
    assert {(row["Year"], row["Month"]) for _, rows in again for row in rows} == {(2026, 9)}
    assert at_the_receiver(site) == in_the_database([*jobs, *late])


def test_a_job_that_finished_again_is_counted_once_with_its_last_values(site: SiteUnderTest) -> None:
    jobs = [replace(job, local_job_id=str(at)) for at, job in enumerate(two_months(40))]
    with site.arex() as arex:
        arex.write_all(jobs)
        assert site.publish().status == 0
        one = next(job for job in jobs if job.end_time < OCTOBER.timestamp() - 90_000)
        moved = replace(one, wall_s=one.wall_s + 5)
        changed = arex.finish_again(moved, end_time=int(OCTOBER.timestamp()) + 60)
    forget_the_sweep(site)
    run = site.publish("--accept-key-change")
    assert run.status == 0, run.err
    assert at_the_receiver(site) == in_the_database([*(job for job in jobs if job is not one), changed])


def test_what_is_odd_about_a_job_that_finished_again_is_told_once(site: SiteUnderTest) -> None:
    jobs = [
        replace(job, local_job_id=str(at), cpus=job.cpus or 8, benchmark="HEPSPEC:10.0")
        for at, job in enumerate(two_months(40))
    ]

    def warned(*words: str) -> dict[str, int]:
        return dict(site.publish(*words).json["targets"]["egi"]["warnings"])

    with site.arex() as arex:
        arex.write_all(jobs)
        assert warned() == {}
        arex.finish_again(replace(jobs[-1], cpus=0), end_time=jobs[-1].end_time + 60)
    forget_the_sweep(site)
    assert warned() == {}, "it is held, as the receiver would keep its row"
    assert warned("--accept-key-change") == {"cores-zero": 1}
    forget_the_sweep(site)
    assert warned() == {}


def test_no_sum_is_made_twice(site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round adds new jobs to what it has: it asks the job store for no month."""
    asked: list[object] = []
    real = StoreReader.window

    def window(self: StoreReader, *rest: Any, **named: Any) -> Any:
        asked.append(rest)
        return real(self, *rest, **named)

    monkeypatch.setattr(StoreReader, "window", window)
    site.fill(*two_months())
    assert site.publish().status == 0
    site.fill(*generate(3, 10, OCTOBER, NOVEMBER))
    assert site.publish().status == 0
    assert asked == []


@pytest.mark.slow
def test_another_benchmark_moves_nothing_until_it_is_published_again(site: SiteUnderTest) -> None:
    """The receiver keys on it: the old rows would stay and count twice."""
    jobs = [replace(job, benchmark=None) for job in two_months(60)]
    site.fill(*jobs)
    assert site.publish().status == 0
    site.config["records"]["benchmark"]["value"] = 12
    site.save()
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    held = republish(site)
    (told,) = held.json["targets"].values()
    assert (held.status, told["outcome"]) == (65, "held")
    assert "2026-09" in told["reason"]
    assert {month["month"] for month in told["held"]} == {"2026-09", "2026-10"}
    assert at_the_receiver(site) == in_the_database(jobs), "the rows as they were"
    assert "delete" in site.run("republish", "--yes", "--no-brake", *BOTH_MONTHS).out
    before = len(messages(site))
    accepted = republish(site, "--accept-key-change")
    assert accepted.status == 0, accepted.err
    new = [row for _, rows in messages(site)[before:] for row in rows]
    assert {float(row["ServiceLevel"]) for row in new} == {12}
    assert sum(int(row["NumberOfJobs"]) for row in new) == len(jobs)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_round_that_sends_one_month_and_holds_another_is_held_and_not_rejected(site: SiteUnderTest) -> None:
    with site.arex() as arex:
        ended = [replace(job, cpus=3) for job in generate(1, 20, SEPTEMBER, OCTOBER)]
        arex.write_all(ended)
        assert site.publish().status == 0
        arex.finish_again(replace(ended[0], cpus=7))
        for job in ended[1:]:
            arex.finish_again(replace(job, cpus=8))
    forget_the_sweep(site)
    site.fill(*(replace(job, benchmark="HEPSPEC:10") for job in generate(2, 20, OCTOBER, NOVEMBER)))
    run = site.publish()
    (told,) = run.json["targets"].values()
    assert (run.status, told["outcome"], told["messages"] > 0) == (65, "held", True)
    assert [month["month"] for month in told["held"]] == ["2026-09"]
    assert re.search(r"^egi +held ", site.run("publish", "--force").out, re.MULTILINE)


def two_targets(site: SiteUnderTest, form: str, one: list[str], other: list[str]) -> None:
    """Totals of these VOs go to one place, in two targets."""
    base = site.config["targets"].popitem()[1] | {"format": form}
    site.config["targets"] = {"one": base | {"vos": one}, "other": base | {"vos": other}}
    site.save()


def test_rows_of_a_vo_that_went_to_another_target_are_neither_emptied_nor_held(
    site: SiteUnderTest, any_format: str
) -> None:
    made = list(generate(7, 60, SEPTEMBER, NOVEMBER))
    site.fill(*(replace(job, benchmark=job.benchmark or "HEPSPEC:10") for job in made))
    two_targets(site, any_format, ["atlas", "cms"], ["belle"])
    assert site.publish().status == 0
    before = at_the_receiver(site)
    two_targets(site, any_format, ["cms"], ["belle", "atlas"])
    assert site.publish("--target", "other").status == 0
    sent = len(messages(site))
    for words in ((), ("--accept-key-change",), ("--accept-key-change",)):
        run = site.publish(*words)
        assert (run.status, at_the_receiver(site)) == (0, before), run.err
    assert site.run("sync", "--check", "--months", "all").status == 0
    two_targets(site, any_format, ["atlas", "cms"], ["belle"])
    assert site.publish("--target", "other", "--accept-key-change").status == 0
    assert site.publish().status == 0
    assert (at_the_receiver(site), len(messages(site))) == (before, sent)


def test_two_targets_that_swap_their_vos_do_not_empty_each_others_rows(site: SiteUnderTest, any_format: str) -> None:
    made = list(generate(7, 60, SEPTEMBER, NOVEMBER))
    site.fill(*(replace(job, benchmark=job.benchmark or "HEPSPEC:10") for job in made))
    two_targets(site, any_format, ["atlas"], ["cms", "belle"])
    assert site.publish().status == 0
    before = at_the_receiver(site)
    two_targets(site, any_format, ["cms", "belle"], ["atlas"])
    for _ in range(3):
        run = site.publish("--accept-key-change")
    assert (run.status, at_the_receiver(site)) == (0, before), run.err
    assert site.run("sync", "--check", "--months", "all").status == 0


@pytest.mark.parametrize("rest", [["cms", "belle"], ["cms"]])
@pytest.mark.slow
def test_rows_of_a_vo_that_is_another_one_now_stay_until_they_are_published_again(
    site: SiteUnderTest, any_format: str, rest: list[str]
) -> None:
    """Its old name is what the target of all the rest would want, which never has a job of it."""
    made = [job for job in generate(7, 60, SEPTEMBER, NOVEMBER) if job.vo in ("atlas", *rest)]
    site.fill(*(replace(job, benchmark=job.benchmark or "HEPSPEC:10") for job in made))
    two_targets(site, any_format, ["atlas", "cms"], [])
    del site.config["targets"]["other"]["vos"]
    site.config["targets"]["other"]["exclude_vos"] = ["atlas", "cms"]
    site.save()
    assert site.publish().status == 0
    before = at_the_receiver(site)
    site.config["records"]["vo_rules"] = [{"field": "any", "pattern": "*atlas*", "vo": "cms", "override": True}]
    site.config["targets"]["one"]["vos"] = ["cms"]
    site.config["targets"]["other"]["exclude_vos"] = ["cms"]
    site.save()
    assert (site.publish().status, at_the_receiver(site)) == (0, before)
    assert republish(site).status == 65
    sent = len(messages(site))
    for target in ("one", "other"):
        run = republish(site, "--target", target, "--accept-key-change")
        assert run.status == 0, run.out
    told = jobs_by_vo(site, after=sent)
    assert (sum(told.values()), told["atlas"]) == (len(made), 0)
    if any_format != "apel-summary-0.4":  # which has zeros for the old rows
        assert site.run("sync", "--check", "--months", "all").status == 65
        for month in ("2026-09", "2026-10"):
            assert site.run("sync", "--deleted", month, "--target", "one").status == 0
    assert site.run("sync", "--check", "--months", "all").status == 0


def test_a_shadow_waits_for_nobody(site: SiteUnderTest) -> None:
    """What it sends goes nowhere, so it has no rows beside those of the target that it is compared with."""
    site.fill(*generate(7, 60, SEPTEMBER, NOVEMBER))
    base = site.config["targets"].popitem()[1]
    site.config["targets"] = {
        "egi": base | {"format": "car"},
        "shadow": base | {"format": "apel-summary-0.4", "shadow": True},
    }
    assert site.publish().status == 0
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 11.0, "override": True}
    site.save()
    assert site.publish().status == 0
    assert republish(site, "--target", "shadow").status == 65
    run = republish(site, "--target", "shadow", "--accept-key-change")
    assert run.status == 0, run.out


def test_a_vo_that_both_targets_gave_up_leaves_no_row(site: SiteUnderTest) -> None:
    site.fill(*generate(7, 60, SEPTEMBER, NOVEMBER))
    form = "apel-summary-0.4"
    two_targets(site, form, ["atlas", "cms"], ["belle"])
    assert site.publish().status in (0, 65)
    two_targets(site, form, ["cms"], ["belle", "atlas"])
    assert site.publish("--target", "other").status in (0, 65)
    assert site.publish("--target", "one").status in (0, 65)
    two_targets(site, form, ["cms"], ["belle"])
    assert site.publish().status in (0, 65)
    assert jobs_by_vo(site)["atlas"], "it was wanted when it was sent"
    assert site.publish("--accept-key-change").status == 65
    assert jobs_by_vo(site)["atlas"], "nothing was shown of it before"
    assert site.publish("--accept-key-change").status in (0, 65)
    assert {vo for vo, jobs in jobs_by_vo(site).items() if jobs} == {"cms", "belle"}


def jobs_by_vo(site: SiteUnderTest, after: int = 0) -> Counter[str]:
    """Jobs in the rows that messages after so many leave under the server's keys."""
    tables = Tables()
    for name, told in messages(site)[after:]:
        for row in told:
            tables.replace(name, row)
    found: Counter[str] = Counter()
    for table in ("Summaries", "NormalisedSummaries"):
        for stored in tables.rows(table):
            found[str(stored["VO"])] += int(str(stored["NumberOfJobs"]))
    return found


def test_jobs_that_are_not_wanted_any_more_are_no_difference(site: SiteUnderTest) -> None:
    site.fill(*generate(7, 60, SEPTEMBER, NOVEMBER))
    site.config["targets"]["egi"] |= {"format": "apel-summary-0.4", "vos": ["atlas", "cms"]}
    assert site.publish().status == 0
    site.config["targets"]["egi"]["vos"] = ["cms"]
    site.save()
    assert site.publish("--accept-key-change").status == 65
    assert site.publish("--accept-key-change").status == 0
    run = site.run("sync", "--check", "--months", "all")
    assert "not delivered" not in run.out


def test_rows_that_are_gone_do_not_shrink_a_month(site: SiteUnderTest) -> None:
    """`arcctl accounting database cleanup` removes old rows; the month at the receiver stays as it was."""
    jobs = two_months(80)
    site.fill(*jobs)
    assert site.publish().status == 0
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("DELETE FROM AAR WHERE EndTime < ?", (OCTOBER.timestamp(),))
    forget_the_sweep(site)
    assert site.publish().status == 0
    assert at_the_receiver(site) == in_the_database(jobs)


def test_a_lost_answer_is_asked_for_again_and_newer_content_follows(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"attempts": 1}
    jobs = two_months(60)
    site.fill(*jobs)
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    late = list(generate(9, 5, SEPTEMBER, OCTOBER))
    site.fill(*late)
    run = site.publish()
    assert run.status == 0, run.err
    ids = [message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC)]
    assert ids[0] == ids[1]
    assert at_the_receiver(site) == in_the_database([*jobs, *late])
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 65


def test_a_month_in_several_messages_is_accepted_with_the_last(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"batch_records": 7, "attempts": 1}
    jobs = two_months(90)
    site.fill(*jobs)
    site.fake.faults.push(Fault.none(), Fault.none(), *[Fault.drop_without_storing()] * 2)
    assert site.publish().status == 75
    partly = site.run("status", "--json").json["targets"]["egi"]
    assert partly["delivered"] < 90
    assert site.publish().status == 0
    assert at_the_receiver(site) == in_the_database(jobs)
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 90


def test_trace_names_the_messages_of_the_month(site: SiteUnderTest) -> None:
    jobs = two_months(20)
    site.fill(*jobs)
    assert site.publish().status == 0
    traced = site.run("trace", "--json", jobs[0].job_id).json
    states = [one["state"] for one in traced["deliveries"]]
    assert set(states) == {"sent"}


def test_a_job_that_cannot_be_counted_is_set_aside(site: SiteUnderTest) -> None:
    jobs = two_months(30)
    site.fill(replace(jobs[0], benchmark="fast"), *jobs[1:])
    run = site.publish()
    assert run.status == 65
    assert at_the_receiver(site) == in_the_database(jobs[1:])
    assert len(site.run("quarantine", "list", "--json").json["quarantined"]) == 1


def test_a_limit_is_refused(site: SiteUnderTest) -> None:
    site.fill(*two_months(5))
    assert site.publish("--limit", "3").status == 64
    assert messages(site) == []


def forget_the_sweep(site: SiteUnderTest) -> None:
    """As if a day had passed."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")
