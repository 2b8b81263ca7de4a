"""All instances of a site at once, from the database that they share."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.postgres import ROLE, PostgresServer
from tests.support.sites import ConfiguredSite, SiteUnderTest

EARLY, START, END = (
    datetime(2025, 9, 1, tzinfo=UTC),
    datetime(2026, 10, 1, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
)

NORTH, SOUTH = "https://north.example.org:443/arex", "https://south.example.org:443/arex"

pytest.importorskip("psycopg")


@pytest.mark.slow
def test_every_target_of_every_instance_is_shown(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres_of_module: PostgresServer
) -> None:
    ce1 = SiteUnderTest(tmp_path / "ce1", pki, fake_ams)
    ce2 = ConfiguredSite(tmp_path / "ce2", pki, ce1.host, ce1.config["targets"])
    for site in (ce1, ce2):
        site.config |= {
            "state": postgres_of_module.address,
            "instance": site.folder.name,
            "state_directory": str(site.folder),
        }
    jobs = list(generate(1, 9, START, END))
    ce1.fill(*jobs)
    ce2.fill(*generate(2, 4, START, END))
    sent = [one.publish() for one in (ce1, ce2)]
    assert [one.status for one in sent] == [0, 0], sent
    targets = ce2.run("status", "--json", "--all-instances").json["targets"]
    assert {name: (one["delivered"], one["pending"]) for name, one in targets.items()} == {
        "ce1/egi": (9, None),
        "ce2/egi": (4, 0),
    }
    assert targets["ce1/egi"]["last_success"] is not None
    nagios = ce2.run("status", "--nagios", "--all-instances")
    assert (nagios.status, "ce1/egi" in nagios.out) == (0, True), nagios.out
    (found,) = ce2.run("trace", jobs[0].job_id, "--json", "--all-instances").json["deliveries"]
    assert found["target"] == "ce1/egi"
    assert ce2.run("trace", jobs[0].job_id).status == 64
    assert ce2.run("status", "--all-instances", "--target", "egi").status == 64
    checked = ce2.run("sync", "--check", "--json", "--all-instances")
    assert checked.status == 0, checked.err
    assert {one["target"] for one in checked.json["rows"]} == {"egi"}
    others = checked.json["others"]
    assert {one["target"] for one in others} == {"ce1/egi"}
    assert (sum(one["delivered"] for one in others), {one["differs"] for one in others}) == (9, {False})
    assert all(one["recorded"] for one in others)
    shown = ce2.run("sync", "--check", "--all-instances").out
    assert "ce1/egi" in shown
    report = ce2.run("report", "--from", "2026-10", "--to", "2026-11", "--format", "terminal", "--all-instances")
    assert report.status == 0, report.err
    assert "9 delivered in all, of this period not known, unknown pending" in report.out
    assert ce2.run("sync", "--all-instances").status == 64


@pytest.mark.slow
def test_the_statement_of_a_site(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres_of_module: PostgresServer
) -> None:
    """Each number of another instance against a sum of what its A-REX wrote, and what the receiver has."""
    ce1 = SiteUnderTest(tmp_path / "north", pki, fake_ams)
    ce1.config["targets"]["egi"] |= {"format": "apel-summary-0.4", "sync": True}
    ce2 = ConfiguredSite(tmp_path / "south", pki, ce1.host, ce1.config["targets"])
    postgres_of_module.sql(f"CREATE DATABASE statements OWNER {ROLE}", database="postgres")
    address = postgres_of_module.address.replace("///site?", "///statements?")
    for site in (ce1, ce2):
        site.config |= {"state": address, "instance": site.folder.name, "state_directory": str(site.folder)}
    jobs = list(generate(1, 9, START, END))
    ce1.fill(*(replace(job, benchmark="HEPSPEC:10.5", endpoint_url=NORTH) for job in jobs))
    ce2.fill(*(replace(job, benchmark="HEPSPEC:10.5", endpoint_url=SOUTH) for job in generate(2, 4, START, END)))
    assert [one.publish().status for one in (ce1, ce2)] == [0, 0]
    asked = ("statement", "2026-10", "--all-instances")

    found = ce2.run(*asked, "--json")
    assert found.status == 0, found.err
    north = found.json["others"]["north/egi"]
    sums = {
        "jobs": 9,
        "wall_s": sum(job.wall_s for job in jobs),
        "cpu_s": sum(job.cpu_user_s + job.cpu_kernel_s for job in jobs),
        "gpu_s": None,
    }
    work = sum(job.wall_s * job.cpus for job in jobs) * 10.5 / 3600
    assert north["delivered"] == {
        **sums,
        "core_s": sum(job.wall_s * job.cpus for job in jobs),
        "work_hours": {"HEPSPEC": pytest.approx(work)},
    }
    assert (north["told"], north["quarantined"], north["held"], north["missing"]) == (9, 0, False, [])
    assert north["verdict"] == "complete"
    own = ce1.run("statement", "2026-10", "--json").json["targets"]["egi"]
    assert own["delivered"] == north["delivered"]
    assert (own["digest"], own["messages"]) == (north["digest"], north["messages"])
    assert found.json["delivered"] == {"egi": 13}
    received = [row for row in ce1.received(with_openssl=False) if row.get("NumberOfJobs")]
    assert sum(row["NumberOfJobs"] for row in received) == 13
    shown = ce2.run(*asked).out
    assert "north/egi" in shown
    assert north["digest"] in shown

    counts = tmp_path / "portal.csv"
    for told, status in ((9, 0), (8, 65)):
        counts.write_text(f"Month,SubmitHost,NumberOfJobs\n2026-10,{NORTH},{told}\n2026-10,{SOUTH},4\n")
        compared = ce2.run(*asked, "--json", "--portal", str(counts))
        assert (compared.status, compared.json["others"]["north/egi"]["portal"]) == (status, told), compared.err
        assert compared.json["targets"]["egi"]["portal"] == 4
    (line,) = compared.json["others"]["north/egi"]["missing"]
    assert line.startswith("the portal has 8 of 9 jobs: publisher statement 2026-10 --portal FILE, at north")
    counts.write_text("Month,NumberOfJobs\n2026-10,13\n")
    assert ce2.run(*asked, "--portal", str(counts)).status == 64

    late = replace(jobs[0], job_id="late", benchmark="fast", endpoint_url=NORTH)
    ce1.fill(late)
    assert ce1.publish("--force").status == 65
    found = ce2.run(*asked, "--json")
    assert found.status == 65
    assert found.json["others"]["north/egi"]["missing"] == [
        "1 set aside: publisher quarantine list --target egi, at north"
    ]
    assert ce2.run(*asked, "--target", "egi").status == 64


def test_one_endpoint_has_the_metrics_of_all_instances(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres_of_module: PostgresServer
) -> None:
    ce3 = SiteUnderTest(tmp_path / "ce3", pki, fake_ams)
    ce4 = ConfiguredSite(tmp_path / "ce4", pki, ce3.host, ce3.config["targets"])
    for site in (ce3, ce4):
        site.config |= {
            "state": postgres_of_module.address,
            "instance": site.folder.name,
            "state_directory": str(site.folder),
        }
        site.config["metrics"] = {"textfile": str(site.folder / "publisher.prom")}
    ce4.config["metrics"]["all_instances"] = True
    ce3.fill(*generate(1, 9, START, END))
    ce4.fill(*generate(2, 4, START, END))
    assert [one.publish().status for one in (ce3, ce4)] == [0, 0]
    alone, all_of_them = ((tmp_path / name / "publisher.prom").read_text() for name in ("ce3", "ce4"))
    assert 'publisher_delivered_jobs{target="egi"} 9.0' in alone
    assert 'publisher_delivered_jobs{instance="ce3",target="egi"} 9.0' in all_of_them
    assert 'publisher_delivered_jobs{instance="ce4",target="egi"} 4.0' in all_of_them
    assert all_of_them.count("# TYPE publisher_delivered_jobs gauge") == 1


def test_doctor_warns_of_another_instance_that_delivers_the_same_jobs(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres_of_module: PostgresServer
) -> None:
    ce5 = SiteUnderTest(tmp_path / "ce5", pki, fake_ams)
    ce6 = ConfiguredSite(tmp_path / "ce6", pki, ce5.host, ce5.config["targets"])
    for site in (ce5, ce6):
        site.config |= {
            "state": postgres_of_module.address,
            "instance": site.folder.name,
            "state_directory": str(site.folder),
        }
        for target in site.config["targets"].values():
            target["start"] = "2025-01-01"
    jobs = list(generate(7, 5, EARLY, datetime(2025, 10, 1, tzinfo=UTC)))
    ce5.fill(*jobs)
    assert ce5.publish().status == 0
    assert "ce5 delivers" not in ce6.run("doctor").out
    ce6.fill(*jobs)
    assert ce6.publish().status == 0
    looked = ce6.run("doctor").out
    assert "ce5 delivers jobs of https://ce01.example.org" in looked
    assert "give the two hosts of a pair the same `instance`" in " ".join(looked.split())


def test_a_file_has_no_other_instances(site: SiteUnderTest) -> None:
    refused = site.run("status", "--all-instances")
    assert (refused.status, "publisher.yaml(5) explains a ledger in PostgreSQL" in refused.err) == (64, True)
    site.config["metrics"] = {"textfile": str(site.folder / "publisher.prom"), "all_instances": True}
    site.save()
    refused = site.run("status")
    assert (refused.status, "all_instances is for a ledger in PostgreSQL only" in refused.err) == (78, True)
