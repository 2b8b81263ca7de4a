"""`statement`: every number against sums that SQLite makes of the rows, or that the receiver made of what arrived."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.support.batch_stores import as_tables
from tests.support.imported_sites import bring_in, local_site
from tests.support.pki import PKI
from tests.support.sacct_text import CLUSTER, job, jobs_of, text, write
from tests.support.sgas_sites import SgasSite
from tests.support.sites import Run, SiteUnderTest

pytest_plugins = ["tests.fake_sgas.fixtures"]
SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
SUMS = """
SELECT count(*), sum(UsedWalltime), sum(UsedCPUUserTime + UsedCPUKernelTime), sum(UsedWalltime * CPUCount)
FROM AAR WHERE EndTime >= ? AND EndTime < ?"""
KINDS = ["car", "apel-job-0.4", "apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4"]


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"] |= {"format": request.param, "sync": True, "batch_records": 25}
    return made


@pytest.fixture
def summaries(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"] |= {"format": "apel-summary-0.4", "sync": True}
    return made


def jobs_between(start: datetime, end: datetime, count: int, seed: int = 1) -> list[SampleJob]:
    return [replace(job, benchmark="HEPSPEC:10.5") for job in generate(seed, count, start, end)]


def asked(site: SiteUnderTest, sql: str = SUMS) -> tuple[Any, ...]:
    with closing(sqlite3.connect(site.database())) as connection:
        found: tuple[Any, ...] = connection.execute(sql, (OCTOBER.timestamp(), NOVEMBER.timestamp())).fetchone()
        return found


def change(site: SiteUnderTest, sql: str) -> None:
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute(sql)


def stated(site: SiteUnderTest, *arguments: str) -> tuple[int, dict[str, Any]]:
    run = site.run("statement", "2026-10", "--json", *arguments)
    target: dict[str, Any] = run.json["targets"]["egi"]
    assert run.json["exit"] == run.status, run.err
    return run.status, target


def arrived(site: SiteUnderTest) -> list[str]:
    """The payloads that the receiver holds, in order, but for counts."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    payloads = [receiver.take(message).text for message in site.fake.messages(PROJECT, TOPIC)]
    return [payload for payload in payloads if not payload.startswith("APEL-sync")]


def test_all_numbers_of_a_month_that_was_all_counted(site: SiteUnderTest) -> None:
    jobs = jobs_between(OCTOBER, NOVEMBER, 60)
    after = jobs_between(NOVEMBER, datetime(2026, 11, 20, tzinfo=UTC), 9, seed=4)
    site.fill(*jobs, *jobs_between(SEPTEMBER, OCTOBER, 20, seed=3), *after)
    assert site.publish().status == 0
    status, found = stated(site)
    count, wall_s, cpu_s, wall_core_s = asked(site)
    assert (status, found["verdict"], found["missing"]) == (0, "complete", [])
    assert (count, wall_s) == (60, sum(job.wall_s for job in jobs))
    work = {"HEPSPEC": pytest.approx(wall_core_s * 10.5 / 3600)}
    usage = {"jobs": count, "wall_s": wall_s, "cpu_s": cpu_s}
    usage["core_s"] = wall_core_s
    assert found["at_ce"] == {**usage, "gpu_s": None, "work_hours": work}
    assert found["delivered"] == {**usage, "gpu_s": None, "work_hours": work}
    for side in ("at_ce", "delivered"):
        parts = [each[side] for each in found["vos"].values()]
        assert {name: sum(part[name] for part in parts) for name in usage} == usage
        assert sum(part["work_hours"]["HEPSPEC"] for part in parts) == work["HEPSPEC"]
    by_vo = {vo: found["vos"][vo]["at_ce"]["jobs"] for vo in found["vos"]}
    assert by_vo == {vo: found["vos"][vo]["delivered"]["jobs"] for vo in by_vo}
    assert len(by_vo) > 1
    assert (found["told"], found["portal"], found["measured"]) == (count, None, count)
    assert {found[name] for name in ("before", "pending", "quarantined", "purged", "restarted")} == {0}
    assert (found["held"], found["emptied"]) == (False, False)
    rows = [row for row in site.received(with_openssl=False) if _is_of_october(row)]
    told = sum(row.get("NumberOfJobs", 1) for row in rows)
    assert (told, sum(row["WallDuration"] for row in rows)) == (count, wall_s)


def _is_of_october(row: dict[str, Any]) -> bool:
    if "Month" in row:
        return (row["Year"], row["Month"]) == (2026, 10)
    return bool(OCTOBER.timestamp() <= row["EndTime"] < NOVEMBER.timestamp())


def test_the_digest_is_of_what_arrived(site: SiteUnderTest) -> None:
    site.fill(*jobs_between(OCTOBER, NOVEMBER, 60))
    assert site.publish().status == 0
    october = arrived(site)
    site.fill(*jobs_between(SEPTEMBER, OCTOBER, 20, seed=3))
    assert site.publish().status == 0
    assert len(arrived(site)) > len(october)
    digest = sha256(b"".join(sha256(payload.encode()).digest() for payload in october)).hexdigest()
    found = stated(site)[1]
    assert (found["messages"], found["digest"]) == (len(october), digest)


def test_what_is_missing_comes_with_its_command(site: SiteUnderTest) -> None:
    jobs = jobs_between(OCTOBER, NOVEMBER, 30)
    site.fill(*jobs[:20], replace(jobs[20], benchmark="fast"))
    assert site.publish().status == 65
    site.fill(*jobs[21:])
    status, found = stated(site)
    assert (status, found["pending"], found["quarantined"]) == (65, 9, 1)
    assert found["verdict"].startswith("not complete")
    assert any("9 not delivered: publisher publish --force --target egi" in line for line in found["missing"])
    assert any("1 set aside: publisher quarantine list --target egi" in line for line in found["missing"])
    assert found["at_ce"]["jobs"] == 30
    assert found["at_ce"]["wall_s"] == sum(job.wall_s for job in jobs)


def test_numbers_that_are_no_drift(site: SiteUnderTest) -> None:
    """Rows that `cleanup` took away, and a job that was restarted."""
    jobs = jobs_between(OCTOBER, NOVEMBER, 10)
    site.fill(*jobs)
    assert site.publish().status == 0
    change(site, f"DELETE FROM AAR WHERE JobID IN ('{jobs[0].job_id}', '{jobs[1].job_id}')")
    later = int(datetime(2026, 11, 3, tzinfo=UTC).timestamp())
    change(site, f"UPDATE AAR SET LocalJobID = 'again', EndTime = {later} WHERE JobID = '{jobs[2].job_id}'")
    assert site.publish().status == 0
    status, found = stated(site)
    assert (status, found["verdict"]) == (0, "complete")
    assert (found["purged"], found["restarted"], found["at_ce"]["jobs"], found["delivered"]["jobs"]) == (2, 1, 7, 10)


def test_a_job_set_aside_that_ended_in_a_later_month_since(site: SiteUnderTest) -> None:
    wrong, *others = jobs_between(OCTOBER, NOVEMBER, 10)
    site.fill(replace(wrong, wall_s=-1), *others)
    assert site.publish().status == 65
    assert stated(site)[1]["quarantined"] == 1
    change(site, f"UPDATE AAR SET EndTime = {int(NOVEMBER.timestamp())} WHERE JobID = '{wrong.job_id}'")
    assert stated(site)[1]["quarantined"] == 0


def test_the_same_jobs_with_other_usage(site: SiteUnderTest) -> None:
    jobs = jobs_between(OCTOBER, NOVEMBER, 10)
    site.fill(*jobs)
    assert site.publish().status == 0
    change(site, "UPDATE AAR SET UsedWalltime = UsedWalltime + 3600")
    status, found = stated(site)
    assert status == 65
    assert any("publisher republish --from 2026-10 --to 2026-10 --target egi" in line for line in found["missing"])


def test_the_portal_has_fewer_or_more(summaries: SiteUnderTest, tmp_path: Path) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 12))
    assert summaries.publish().status == 0
    counts = tmp_path / "counts.csv"
    for jobs, status, words in ((12, 0, ""), (11, 65, "republish"), (14, 65, "ticket")):
        counts.write_text(f"Month,NumberOfJobs\n2026-10,{jobs}\n2026-09,7\n")
        ended, found = stated(summaries, "--portal", str(counts))
        assert (ended, found["portal"]) == (status, jobs)
        assert words in " ".join(found["missing"])


def test_a_month_that_was_told_otherwise_or_is_held_back(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 12))
    assert summaries.publish().status == 0
    with closing(sqlite3.connect(summaries.state)) as ledger, ledger:
        ledger.execute(
            "UPDATE sync_count SET reported = reported - 1 WHERE rowid = (SELECT min(rowid) FROM sync_count)"
        )
    status, found = stated(summaries)
    assert (status, found["told"]) == (65, 11)
    assert any("publisher sync --target egi" in line for line in found["missing"])
    assert summaries.run("sync").status == 0
    summaries.config["records"]["key_style"] = "jura"
    summaries.save()
    assert summaries.publish().status == 0
    status, found = stated(summaries)
    assert (status, found["held"]) == (0, False), "settings concern jobs that were not sent yet"
    window = ("--from", "2026-10", "--to", "2026-10", "--yes")
    assert summaries.run("republish", *window).status == 65
    assert summaries.run("republish", *window, "--accept-key-change").status == 0
    status, found = stated(summaries)
    assert (found["held"], found["emptied"]) == (False, False)


def test_a_month_whose_jobs_all_ended_later(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 12))
    assert summaries.publish().status == 0
    change(summaries, f"UPDATE AAR SET EndTime = {int(NOVEMBER.timestamp())}")
    assert summaries.publish().status == 0
    status, found = stated(summaries)
    assert (status, found["emptied"], found["delivered"]["jobs"]) == (0, True, 0)
    assert found["verdict"] == "complete, without any job"
    october = [row for row in summaries.table().rows("Summaries") if row["Month"] == 10]
    assert october
    assert {row["NumberOfJobs"] for row in october} == {0}


def test_what_was_left_out_is_counted_with_the_reason(summaries: SiteUnderTest) -> None:
    jobs = jobs_between(OCTOBER, NOVEMBER, 30)
    aborted = [replace(job, status="aborted") for job in jobs[:4]]
    cms = sum(job.vo == "cms" for job in jobs[4:])
    assert cms
    summaries.config["targets"]["egi"]["exclude_vos"] = ["cms"]
    summaries.fill(*aborted, *jobs[4:])
    assert summaries.publish().status == 0
    found = stated(summaries)[1]
    assert found["left_out"] == {"aborted: not in statuses": 4, "VO cms: in exclude_vos": cms}
    assert found["at_ce"]["jobs"] == found["delivered"]["jobs"] == 26 - cms
    assert f"Left out: {cms} VO cms: in exclude_vos; 4 aborted: not in statuses." in _text(summaries, "2026-10")


def _text(site: SiteUnderTest, *words: str) -> str:
    return site.run("statement", *words).out


def test_a_quarter_and_a_year_have_their_months_and_sums(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(SEPTEMBER, OCTOBER, 20, seed=3), *jobs_between(OCTOBER, NOVEMBER, 30))
    assert summaries.publish().status == 0
    quarter = summaries.run("statement", "2026-Q3", "--json").json
    assert (quarter["from"], quarter["to"]) == ("2026-07", "2026-09")
    assert [month["targets"]["egi"]["at_ce"]["jobs"] for month in quarter["months"]] == [0, 0, 20]
    assert [month["badge"] for month in quarter["months"]] == ["no data", "no data", "complete"]
    assert quarter["badge"] == "complete"
    year = summaries.run("statement", "2026", "--json").json
    months = {month["month"]: month for month in year["months"]}
    for name in ("2026-09", "2026-10"):
        alone = summaries.run("statement", name, "--json").json
        assert {key: alone[key] for key in ("targets", "over", "badge")} == {
            key: months[name][key] for key in ("targets", "over", "badge")
        }
    rows = [line.split() for line in _text(summaries, "2026").splitlines()]
    (whole,) = [row for row in rows if row[:1] == ["all"]]
    assert whole[1] == "50"
    assert summaries.run("statement", "2031").status == 64
    for wrong, found in (("2026-Q5", "'2026-Q5' is not a time"), ("2026-09-05", "2026-09-05 is no calendar month")):
        refused = summaries.run("statement", wrong)
        assert f"{found}; write 2026-03, 2026-Q3, 2026, this-month or last-month" in refused.err


def test_a_page_goes_to_a_file_with_a_badge(summaries: SiteUnderTest, tmp_path: Path) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 12))
    assert summaries.publish().status == 0
    path = tmp_path / "statement.html"
    run = summaries.run("statement", "2026-10", "-o", str(path))
    assert (run.status, run.out) == (0, "")
    assert '<span class="badge good">complete</span>Every finished job' in path.read_text()
    assert summaries.run("statement", "2026-10", "--format", "text", "-o", str(path)).status == 0
    assert path.read_text().startswith("Statement of 2026-10 for site ")
    summaries.run("statement", "2026-08", "-o", str(path))
    assert '<span class="badge soft">no data</span>' in path.read_text()
    assert "<td>" not in path.read_text(), "no zeros where nothing is known"


def test_a_month_before_all_data_has_no_data(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 2))
    assert summaries.publish().status == 0
    verdicts = [
        summaries.run("statement", month, "--json").json["targets"]["egi"]["verdict"]
        for month in ("2026-09", "2026-10", "2026-11")
    ]
    assert verdicts[0] == "no data: the accounting data has no job of this month or an earlier one"
    assert verdicts[1] == "complete"
    without = "complete so far", "complete, without any job"  # while the month lasts, and after it
    assert verdicts[2].startswith(without), "there are earlier jobs, and none ended in this one"
    assert "complete" not in summaries.run("statement", "2026-09").out


def test_a_source_that_fell_silent_later_takes_nothing_from_a_month(summaries: SiteUnderTest) -> None:
    """Only a month of which late jobs may be missing is complete as far as can be told."""
    july, august, silent = (datetime(2026, month, day, tzinfo=UTC) for month, day in ((7, 1), (8, 1), (8, 29)))
    summaries.fill(*jobs_between(july, august, 2, seed=5), *jobs_between(august, silent, 2900))
    assert summaries.publish().status == 0
    months = ("2026-06", "2026-07", "2026-08")
    found = [summaries.run("statement", month, "--json").json["targets"]["egi"]["verdict"] for month in months]
    assert found == [
        "no data: the accounting data has no job of this month or an earlier one",
        "complete",
        "complete as far as can be told: see below about the sources",
    ]


def test_gpu_hours(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    bring_in(made, write(tmp_path / "told.psv", text(jobs_of(2, 40))))
    assert made.publish().status == 0
    with closing(as_tables(made.state.with_name("jobs.db"))) as connection:
        months = connection.execute(
            "SELECT strftime('%Y-%m', EndTime, 'unixepoch'), count(*), sum(GPUCount * UsedWalltime) "
            "FROM AAR JOIN Status ON StatusID = ID WHERE Name IN ('completed', 'failed') GROUP BY 1"
        ).fetchall()
    assert months
    assert any(gpu_s for _, _, gpu_s in months)
    for month, jobs, gpu_s in months:
        run = made.run("statement", month, "--json")
        at_ce = run.json["targets"]["egi"]["at_ce"]
        assert (at_ce["jobs"], at_ce["gpu_s"]) == (jobs, gpu_s), run.err


def test_gpu_hours_delivered_are_those_of_accelerator_records(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """Against what arrived; unknown as soon as a job of the CE is not there, or for another format."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    lines = [job(number, AllocTRES="billing=3,cpu=2,gres/gpu:a100=2,gres/gpu=2,mem=4G,node=1") for number in (1, 2, 3)]
    bring_in(made, write(tmp_path / "told.psv", text([*lines, job(4)])))
    egi = made.config["targets"]["egi"]
    made.config["targets"]["gpus"] = {**egi, "format": "apel-accelerator-0.1"}
    made.save()
    assert made.publish().status == 0

    def stated() -> tuple[dict[str, Any], str]:
        with closing(as_tables(made.state.with_name("jobs.db"))) as connection:
            ((month,),) = connection.execute("SELECT DISTINCT strftime('%Y-%m', EndTime, 'unixepoch') FROM AAR")
        return made.run("statement", month, "--json").json["targets"], made.run("statement", month).out

    found, page = stated()
    payloads = [json.loads(payload) for payload in arrived(made) if payload.startswith("{")]
    gpu_s = sum(one["Count"] * one["AvailableDuration"] for payload in payloads for one in payload["UsageRecords"])
    assert found["gpus"]["at_ce"]["gpu_s"] == found["gpus"]["delivered"]["gpu_s"] == gpu_s > 0
    assert (found["gpus"]["measured"], found["gpus"]["at_ce"]["jobs"]) == (3, 3)  # the fourth one had none
    assert found["egi"]["delivered"]["gpu_s"] is None
    assert "GPU time delivered: for car, the ledger keeps none; a target with apel-accelerator-0.1 has it." in page
    with closing(sqlite3.connect(made.state.with_name("jobs.db"))) as connection, connection:
        connection.execute("UPDATE job SET wall_s = wall_s + 60 WHERE gpu_count > 0")
    found, page = stated()
    assert found["gpus"]["delivered"]["gpu_s"] is None
    assert "GPU time delivered: cannot be told until just the CE's jobs are delivered, as they are." in page


def test_sgas_is_told_no_counts(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    made = SgasSite(tmp_path, pki, fake_sgas)
    made.fill(*jobs_between(OCTOBER, NOVEMBER, 12))
    assert made.publish().status == 0
    run = made.run("statement", "2026-10", "--json")
    (found,) = run.json["targets"].values()
    assert (run.status, found["verdict"], found["told"]) == (0, "complete", None)
    with made.arex() as arex:
        wall_s, cpu_s = arex.connection.execute(
            "SELECT sum(UsedWalltime), sum(UsedCPUUserTime + UsedCPUKernelTime) FROM AAR"
        ).fetchone()
    delivered = {"jobs": 12, "wall_s": wall_s, "core_s": None, "cpu_s": cpu_s, "gpu_s": None, "work_hours": None}
    assert found["delivered"] == delivered


def test_a_month_that_goes_on_and_words_that_are_no_month(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 3))
    assert summaries.publish().status == 0
    going_on = summaries.run("statement", "this-month", "--json").json
    assert going_on["over"] is False
    assert going_on["targets"]["egi"]["verdict"].startswith("complete so far; the month ends at")
    for words, told in (("2026-10-05", "no calendar month"), ("2031-01", "has not begun"), ("soon", "not a time")):
        run = summaries.run("statement", words)
        assert (run.status, run.out) == (64, "")
        assert told in run.err
    assert summaries.run("statement", "2026-10", "--target", "egy").status == 64


def test_a_database_that_is_missing_is_no_complete_month(summaries: SiteUnderTest) -> None:
    summaries.fill(*jobs_between(OCTOBER, NOVEMBER, 3))
    summaries.arex(1).close()
    assert summaries.publish().status == 0
    summaries.database(1).unlink()
    run = summaries.run("statement", "2026-10", "--json")
    assert run.status == 66
    assert run.json["targets"]["egi"]["verdict"] == "cannot tell: the accounting data is not complete"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "img", "link", "iframe"}
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def test_the_page_says_what_the_text_says_and_needs_nothing_else(summaries: SiteUnderTest) -> None:
    jobs = jobs_between(OCTOBER, NOVEMBER, 1200)
    summaries.fill(*jobs)
    assert summaries.publish().status == 0
    summaries.fill(*(replace(job, endpoint_url="<b>&") for job in jobs_between(OCTOBER, NOVEMBER, 2, seed=2)))
    plain = summaries.run("statement", "2026-10")
    run = summaries.run("statement", "2026-10", "--format", "html")
    assert (plain.status, run.status) == (65, 65)
    page = _Page()
    page.feed(run.out)
    assert page.addresses == []
    assert {"<b>&:", "1,200", "complete:"} <= set(page.words)
    assert set(_without_clock(plain).split()) <= set(page.words)
    assert f"{sum(job.wall_s for job in jobs) / 3600:,.2f}" in page.words
    assert max(map(len, plain.out.splitlines())) <= 110, "fits into a mail"


def _without_clock(run: Run) -> str:
    return "\n".join(line for line in run.out.splitlines() if not line.startswith("Statement of"))


def test_every_number_of_the_json_stands_in_the_text(site: SiteUnderTest) -> None:
    site.fill(*jobs_between(OCTOBER, NOVEMBER, 30))
    assert site.publish().status == 0
    found = stated(site)[1]
    printed = site.run("statement", "2026-10").out
    for seconds in (found["at_ce"]["wall_s"], found["at_ce"]["cpu_s"], found["at_ce"]["work_hours"]["HEPSPEC"] * 3600):
        assert f"{seconds / 3600:,.2f}" in printed
    assert found["digest"] in printed
    assert json.dumps(found)
