"""All instances of a site at once, from the database that they share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer, binaries, private_server
from tests.support.sites import ConfiguredSite, SiteUnderTest

EARLY, START, END = (
    datetime(2025, 9, 1, tzinfo=UTC),
    datetime(2026, 10, 1, tzinfo=UTC),
    datetime(2026, 11, 1, tzinfo=UTC),
)

pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of its own: only these instances are in it."""
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    with private_server(programs) as started:
        yield started


def test_every_target_of_every_instance_is_shown(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, server: PostgresServer
) -> None:
    ce1 = SiteUnderTest(tmp_path / "ce1", pki, fake_ams)
    ce2 = ConfiguredSite(tmp_path / "ce2", pki, ce1.host, ce1.config["targets"])
    for site in (ce1, ce2):
        site.config |= {"state": server.address, "instance": site.folder.name, "state_directory": str(site.folder)}
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


def test_one_endpoint_has_the_metrics_of_all_instances(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, server: PostgresServer
) -> None:
    ce3 = SiteUnderTest(tmp_path / "ce3", pki, fake_ams)
    ce4 = ConfiguredSite(tmp_path / "ce4", pki, ce3.host, ce3.config["targets"])
    for site in (ce3, ce4):
        site.config |= {"state": server.address, "instance": site.folder.name, "state_directory": str(site.folder)}
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
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, server: PostgresServer
) -> None:
    ce5 = SiteUnderTest(tmp_path / "ce5", pki, fake_ams)
    ce6 = ConfiguredSite(tmp_path / "ce6", pki, ce5.host, ce5.config["targets"])
    for site in (ce5, ce6):
        site.config |= {"state": server.address, "instance": site.folder.name, "state_directory": str(site.folder)}
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
    assert (refused.status, "`state` in publisher.yaml(5) tells" in refused.err) == (64, True)
    site.config["metrics"] = {"textfile": str(site.folder / "publisher.prom"), "all_instances": True}
    site.save()
    refused = site.run("status")
    assert (refused.status, "all_instances is for a ledger in PostgreSQL only" in refused.err) == (78, True)
