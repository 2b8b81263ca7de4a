"""`explain`: what is published of a job, value by value, why, and what becomes of the job at each target."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, receiver_of
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.policy.identity import Identity, IdentityMode
from publisher.policy.records import KeyStyle
from publisher.reporting.explain import explained
from tests.arex_databases import SampleJob, generate
from tests.support.jobs import make_policy
from tests.support.sites import SiteUnderTest
from tests.support.strategies import hostile_jobs
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text
from tests.support.strict_sgas import read_ur

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def one_job(**changes: Any) -> SampleJob:
    """A job of an ATLAS pilot that ran."""
    ran = (job for job in generate(1, 200, START, END) if job.local_job_id and job.vo == "atlas" and job.cpus)
    return replace(next(ran), **changes)


def fill(site: SiteUnderTest, *batch: SampleJob) -> None:
    site.fill(*batch)


def explain(site: SiteUnderTest, job: SampleJob, *words: str) -> dict[str, Any]:
    run = site.run("explain", "--json", job.job_id, *words)
    assert run.status == 0, run.err
    (one,) = run.json["explanations"]
    found: dict[str, Any] = one
    return found


def value(explanation: dict[str, Any], name: str) -> tuple[Any, ...]:
    (found,) = [one for one in explanation["values"] if one["name"] == name]
    return found["value"], found["rule"], found["field"]


# What is told of a value


@pytest.mark.parametrize("form", ["car", "ogf-ur"])
@pytest.mark.parametrize("summary", [True, False])
@given(job=hostile_jobs(most=10))
def test_every_value_of_every_job_has_an_origin(form: str, summary: bool, job: JobRecord) -> None:
    policy = make_policy(key_style=KeyStyle.JURA, identity=Identity(mode=IdentityMode.PSEUDONYM, secret=b"s"))
    try:
        published = policy.describe(job)
    except Unfit:
        return
    found = explained(policy, published, receiver_of(form), summary=summary)
    assert len({one.name for one in found}) == len(found) >= 13
    assert all(one.rule not in ("", "made by the format") for one in found)
    fields = {field for one in found for field in one.source.split(", ") if field}
    assert fields <= {*JobRecord._fields, "group", "issuer", "project"}


def test_a_value_names_its_rule_and_its_field(site: SiteUnderTest) -> None:
    site.config["records"] |= {
        "localid_prefix": "ce01-",
        "vo_rules": [{"field": "queue", "pattern": "*", "vo": "ruled", "override": True}],
    }
    job = one_job(benchmark=None)
    fill(site, job)
    told = explain(site, job)
    assert value(told, "LocalJobId") == (
        f"ce01-{job.local_job_id}", "records.localid_prefix, then the batch system's id", "local_id",
    )  # fmt: skip
    assert value(told, "VO") == ("ruled", "records.vo_rules, rule 1: queue *", "queue")
    assert value(told, "FQAN")[0] is None
    assert "left out" in value(told, "FQAN")[1]
    assert value(told, "ServiceLevel") == ("HEPscore23 11.5", "records.benchmark", None)
    assert value(told, "StartTime")[1:] == ("records.start_time: run", "started_at")
    assert value(told, "SubmitHost") == (job.endpoint_url, "the endpoint's URL", "endpoint")
    assert value(told, "GlobalUserName") == (job.user, "records.identity: plain", "user")
    assert value(told, "Site") == ("EXAMPLE-SITE", "site", None)


def test_what_is_left_out_for_a_person_is_told(site: SiteUnderTest) -> None:
    site.config["records"]["identity"] = "withheld"
    job = one_job(job_name="report of Jane", local_user="jane:jane", projects=("jane",))
    fill(site, job)
    told = explain(site, job)
    assert value(told, "GlobalUserName")[0] == "withheld"
    for name in ("LocalUserId", "LocalGroup", "ProjectName", "JobName"):
        assert value(told, name)[:2] == (None, "left out (records.identity: withheld)"), name
    assert "jane" not in str(told["values"] + [told["record"]]).lower()


def test_keys_of_summaries_are_told_in_the_site_s_spelling(site: SiteUnderTest) -> None:
    site.config["records"]["key_style"] = "jura"
    job = one_job()
    fill(site, job)
    told = explain(site, job, "--format", "apel-summary-0.2")
    assert value(told, "SubmitHost")[0] == f"arcrest:{job.endpoint_url}"
    assert "jura" in value(told, "SubmitHost")[1]
    assert value(explain(site, job), "SubmitHost")[0] == job.endpoint_url


# The record


OF_JOBS = [name for name in (*JOB_FORMATS, *SUMMARY_FORMATS) if not receiver_of(name).gpus_only]


@pytest.mark.parametrize("name", [name for name in OF_JOBS if receiver_of(name).name in ("APEL", "SGAS")])
def test_the_record_is_one_that_the_receiver_takes(site: SiteUnderTest, name: str) -> None:
    job = one_job()
    fill(site, job)
    told = explain(site, job, "--format", name)
    record = told["record"].encode()
    now = datetime.now(UTC)
    if name == "ogf-ur":
        (row,) = read_ur(record)
        return
    rows = read_car(record, now) if name == "car" else read_text(record, now)[1]
    (row,) = rows
    assert row["WallDuration"] == job.wall_s
    assert value(told, "WallDuration")[0] == f"{job.wall_s} s"
    assert (row["VO"], row["GlobalUserName"]) == (value(told, "VO")[0], value(told, "GlobalUserName")[0])
    assert row["SubmitHost"] == value(told, "SubmitHost")[0]


def test_the_record_is_the_one_that_is_sent(site: SiteUnderTest) -> None:
    job = one_job()
    fill(site, job)
    told = explain(site, job)
    assert site.publish().status == 0
    assert read_car(told["record"].encode(), datetime.now(UTC)) == site.received(with_openssl=False)


def test_the_group_of_a_summary_is_counted(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["format"] = "apel-summary-0.2"
    job = one_job()
    fill(site, job, replace(job, job_id="another", local_job_id="99"))
    before = explain(site, job)
    assert (before["fate"], before["group_jobs"]) == ("to be sent", 0)
    assert site.publish().status == 0
    after = explain(site, job)
    assert (after["fate"], after["group_jobs"]) == ("counted", 2)


def test_what_sgas_is_told_otherwise(site: SiteUnderTest) -> None:
    job = one_job(exit_code=300, cpus=0)
    fill(site, job)
    told = explain(site, job, "--format", "ogf-ur")
    assert told["mends"].keys() >= {"exit-code-modulo", "processors-one"}
    assert (value(told, "ExitStatus")[0], value(told, "Processors")[0]) == ("44", "1")
    assert "cores-zero" in told["warnings"]


# What becomes of the job


@pytest.mark.parametrize(
    ("target", "records", "reason"),
    [
        ({"vos": ["cms"]}, {}, "VO is atlas"),
        ({"exclude_vos": ["atlas"]}, {}, "VO is atlas"),
        ({"start": "2026-12-01"}, {}, "start: 2026-12-01"),
        ({}, {"statuses": ["aborted"]}, "records.statuses (aborted)"),
    ],
)
def test_why_a_target_does_not_want_a_job(
    site: SiteUnderTest, target: dict[str, Any], records: dict[str, Any], reason: str
) -> None:
    site.config["targets"]["egi"] |= target
    site.config["records"] |= records
    job = one_job(status="completed")
    fill(site, job)
    told = explain(site, job)
    assert told["fate"] == "not wanted"
    assert reason in told["reason"]
    assert told["record"]
    assert site.publish().json["targets"]["egi"]["records"] == 0


def test_a_job_is_told_from_its_first_round_to_its_delivery(site: SiteUnderTest) -> None:
    job = one_job()
    fill(site, job)
    assert explain(site, job)["fate"] == "to be sent"
    assert site.publish().status == 0
    assert explain(site, job)["fate"] == "delivered"


def test_a_job_that_is_set_aside_says_why_before_and_after(site: SiteUnderTest) -> None:
    site.config["records"] = {}
    job = one_job(benchmark=None)
    fill(site, job)
    before = explain(site, job)
    assert site.publish().status == 65
    after = explain(site, job)
    for told in (before, after):
        assert told["fate"] == "set aside"
        assert "benchmark-missing" in told["reason"]
        assert told["record"] is None
        assert "benchmark-missing" in told["unfit"]
    assert site.run("quarantine", "drop", "--all").status == 0
    assert explain(site, job)["fate"] == "dropped"


def test_a_benchmark_that_cannot_be_read_is_told(site: SiteUnderTest) -> None:
    job = one_job(benchmark="fast")
    fill(site, job)
    told = explain(site, job)
    assert (told["fate"], told["record"]) == ("set aside", None)
    assert "benchmark-unreadable" in told["reason"]
    assert value(told, "ServiceLevel") == (
        None,
        "the job's cannot be read: benchmark 'fast' is not TYPE:value",
        "benchmark",
    )
    usage_record = explain(site, job, "--format", "ogf-ur")
    assert usage_record["record"], "SGAS is told no benchmark"


def test_a_benchmark_that_the_configuration_overrides_is_told(site: SiteUnderTest) -> None:
    job = one_job(benchmark="HS06:12.26")
    fill(site, job)
    assert "override: true" in explain(site, job)["unfit"]
    assert site.publish().status == 65
    site.config["records"]["benchmark"] = {"type": "HEPSPEC", "value": 12.26, "override": True}
    site.save()
    told = explain(site, job)
    assert told["fate"] == "to be sent"
    assert value(told, "ServiceLevel") == (
        "HEPSPEC 12.26",
        "records.benchmark, whose override wins over the job's 'HS06:12.26'",
        None,
    )
    assert site.publish().status == 0
    (row,) = site.received()
    assert (row["ServiceLevelType"], row["ServiceLevel"]) == ("HEPSPEC", Decimal("12.26"))


def test_each_target_has_its_own_say(site: SiteUnderTest) -> None:
    site.config["targets"]["files"] = {
        "type": "spool",
        "path": "out",
        "format": "apel-job-0.4",
        "vos": ["cms"],
        "start": "all",
    }
    job = one_job()
    fill(site, job)
    both = site.run("explain", "--json", job.job_id).json["explanations"]
    assert [(one["target"], one["format"], one["fate"]) for one in both] == [
        ("egi", "car", "to be sent"),
        ("files", "apel-job-0.4", "not wanted"),
    ]
    assert explain(site, job, "--target", "files")["target"] == "files"


def test_an_open_job_is_waited_for(site: SiteUnderTest) -> None:
    job = one_job()
    with site.arex() as arex:
        arex.accept(job)
    assert explain(site, job)["fate"] == "open"


def test_a_job_that_is_not_there_is_no_success(site: SiteUnderTest) -> None:
    fill(site, one_job())
    run = site.run("explain", "--json", "nobody")
    assert (run.status, run.out) == (64, "")
    assert "nobody" in run.err
    assert site.run("explain", one_job().job_id, "--format", "card").status == 64


def test_people_read_it_too(site: SiteUnderTest) -> None:
    job = one_job(cpus=0, job_name="\x1b[2Jforged")
    fill(site, job)
    run = site.run("explain", job.job_id)
    assert run.status == 0
    for text in (
        "target egi, format car",
        "to be sent",
        "GlobalUserName",
        "records.identity: plain",
        "cores-zero",
        "<UsageRecord>",
    ):
        assert text in run.out
    assert "\x1b" not in run.out


def test_people_read_xml_an_element_a_line(site: SiteUnderTest) -> None:
    job = one_job()
    fill(site, job)
    shown = site.run("explain", job.job_id, "--format", "car").out
    (told,) = site.run("explain", job.job_id, "--format", "car", "--json").json["explanations"]
    assert "\n    <JobIdentity>\n      <GlobalJobId>" in shown
    lines = shown[shown.index("<UsageRecords") : shown.index("</UsageRecords>")].splitlines()
    made = re.compile('createTime="[^"]*"')  # when the record was made, which was at two moments
    whole = made.sub("", told["record"].replace("\n", ""))
    assert made.sub("", "".join(line.strip() for line in lines)) in whole


def test_explaining_needs_no_key_and_writes_nothing(site: SiteUnderTest) -> None:
    site.config["credentials"] |= {"certificate": "/nonexistent", "key": "/nonexistent"}
    job = one_job()
    fill(site, job)
    assert explain(site, job)["record"]
    assert not site.state.exists()
