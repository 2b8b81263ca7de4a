"""VOs of which a site sends local jobs and grid jobs to APEL, whose portal shows both as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.site import configured_site
from publisher.doctor.shared_vos import check_shared_vos
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history
from tests.support.gridengine_files import CLUSTER, colon, entries
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

NOW = datetime.now(UTC)
GRID_VOS = ("atlas", "cms")


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A CE with jobs of ATLAS and CMS, and a cluster whose groups belong to ATLAS and IceCube."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    mapped(made, "theory atlas", "astro icecube")
    accounting = tmp_path / "accounting"
    accounting.write_bytes(b"".join(map(colon, entries(1, 20))))
    made.config["source"] = [
        {"name": "ce", **made.config["source"]},
        {"type": "gridengine", "name": "cluster", "cluster": CLUSTER, "paths": [str(accounting)], "arc_databases": []},
    ]
    batch(made)["group_vo_map"] = str(tmp_path / "groups.map")
    jobs = generate(1, 20, NOW - timedelta(days=3), NOW - timedelta(hours=1))
    for number, job in enumerate(jobs):
        vo = GRID_VOS[number % len(GRID_VOS)]
        made.fill(replace(job, vo=vo, fqans=(f"/{vo}",)))
    return made


def batch(site: SiteUnderTest) -> dict[str, Any]:
    entry: dict[str, Any] = site.config["source"][-1]
    return entry


def egi(site: SiteUnderTest) -> dict[str, Any]:
    target: dict[str, Any] = site.config["targets"]["egi"]
    return target


def mapped(site: SiteUnderTest, *lines: str) -> None:
    (site.folder / "groups.map").write_text("".join(f"{line}\n" for line in lines))


def noted(site: SiteUnderTest) -> list[str]:
    """What `config check` notes."""
    site.save()
    run = site.run("config", "check")
    assert run.status == 0, run.err
    return [line for line in run.out.splitlines() if line.startswith("note: ")]


def found(site: SiteUnderTest) -> list[dict[str, Any]]:
    """What doctor found."""
    site.save()
    findings: list[dict[str, Any]] = site.run("doctor", "--json").json["findings"]
    return [each for each in findings if each["name"] == "shared VOs"]


def test_the_configuration_is_noted_to_give_local_jobs_the_vos_of_grid_jobs(site: SiteUnderTest) -> None:
    (note,) = noted(site)
    assert note.startswith("note: target egi: local jobs have the VO atlas, and so have grid jobs; ")
    assert "APEL's portal" in note
    assert "`unmapped_vo: local`" in note
    assert "local-atlas" in note


def test_doctor_knows_which_of_them_grid_jobs_have(site: SiteUnderTest) -> None:
    (finding,) = found(site)
    assert (finding["state"], finding["part"]) == ("warning", "egi")
    assert finding["found"] == "local jobs have the VO atlas, and so have grid jobs"
    assert "local-atlas" in finding["advice"]
    assert "APEL's portal" in finding["why"]


def without_grid_jobs(site: SiteUnderTest) -> None:
    site.database().unlink()
    site.arex().close()


def test_all_vos_are_possible_before_there_are_grid_jobs(site: SiteUnderTest) -> None:
    without_grid_jobs(site)
    (finding,) = found(site)
    assert finding["found"] == "local jobs have the VOs atlas, icecube, and so may grid jobs"
    (note,) = noted(site)
    assert finding["found"] in note


def test_doctor_does_not_say_that_all_is_well_when_jobs_cannot_be_read(site: SiteUnderTest) -> None:
    """And `config check`, which reads no accounting data otherwise, names all that are possible."""
    mapped(site, "theory local-theory", "astro icecube")
    site.database().write_bytes(b"no database at all, and long enough " * 300)
    (note,) = noted(site)
    assert "local jobs have the VO icecube, and so may grid jobs" in note
    mapped(site, "theory local-theory")
    (finding,) = found(site)
    assert finding["state"] == "warning"
    assert finding["found"].startswith("not checked, because ")


@pytest.mark.parametrize(("days", "vos"), [(20, "the VOs atlas, icecube"), (40, "the VO atlas")])
def test_doctor_asks_the_jobs_of_a_month(site: SiteUnderTest, days: int, vos: str) -> None:
    (older,) = generate(3, 1, NOW - timedelta(days=days + 1), NOW - timedelta(days=days))
    site.fill(replace(older, vo="icecube", fqans=()))
    site.save()
    live = configured_site(site.path, threading.Event())
    (finding,) = check_shared_vos(live, live.targets)
    assert finding.found == f"local jobs have {vos}, and so have grid jobs"


def maps_to_own_names(site: SiteUnderTest) -> None:
    mapped(site, "theory local-atlas", "astro local-icecube")


def maps_to_names_that_no_grid_job_has(site: SiteUnderTest) -> None:
    mapped(site, "theory theory.example.org", "astro icecube")


def maps_nothing(site: SiteUnderTest) -> None:
    del batch(site)["group_vo_map"]
    batch(site)["unmapped_vo"] = "local"
    site.config["records"]["default_vo"] = "atlas"


def excludes(site: SiteUnderTest) -> None:
    egi(site)["exclude_vos"] = ["atlas", "icecube"]


def wants_others(site: SiteUnderTest) -> None:
    egi(site)["vos"] = ["cms"]


@pytest.mark.parametrize(
    "arrange", [maps_to_own_names, maps_to_names_that_no_grid_job_has, maps_nothing, excludes, wants_others]
)
def test_vos_of_their_own_are_fine(site: SiteUnderTest, arrange: Callable[[SiteUnderTest], None]) -> None:
    arrange(site)
    assert noted(site) == []
    (finding,) = found(site)
    assert finding["state"] == "ok"


def of_another_receiver(site: SiteUnderTest) -> None:
    site.config["targets"] = {
        "files": {"type": "spool", "path": str(site.folder / "spool"), "format": "ogf-ur", "start": "all"}
    }


def all_of_them_grid(site: SiteUnderTest) -> None:
    batch(site)["infrastructure"] = "grid"


def all_of_them_local(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"infrastructure": "local", "batch_server": "batch.example.org"}


def without_a_ce(site: SiteUnderTest) -> None:
    del site.config["source"][0]


def without_a_batch_system(site: SiteUnderTest) -> None:
    del site.config["source"][1]


def to_two_topics(site: SiteUnderTest) -> None:
    """Two views of the same jobs, which never meet."""
    all_of_them_local(site)
    site.config["targets"]["all"] = egi(site) | {"topic": "another", "project": "another", "infrastructure": "grid"}


@pytest.mark.parametrize(
    "arrange",
    [
        *(of_another_receiver, all_of_them_grid, all_of_them_local),
        *(without_a_ce, without_a_batch_system, to_two_topics),
    ],
)
def test_nothing_is_asked_where_only_one_kind_is_sent(
    site: SiteUnderTest, arrange: Callable[[SiteUnderTest], None]
) -> None:
    arrange(site)
    assert noted(site) == []
    assert found(site) == []


def test_targets_that_meet_share_vos(site: SiteUnderTest) -> None:
    """One of them sends all jobs as grid jobs, the other one all as local ones."""
    failed = {"statuses": ["failed"], "infrastructure": "local", "batch_server": "batch.example.org"}
    site.config["targets"]["failed"] = egi(site) | failed
    site.config["targets"]["egi"] |= {"statuses": ["completed"], "infrastructure": "grid"}
    (note,) = noted(site)
    assert note.startswith("note: targets egi, failed: local jobs have the VOs atlas, cms, icecube, and so have ")
    (finding,) = found(site)
    assert finding["part"] == "egi, failed"


@pytest.mark.parametrize(
    ("records", "vo"),
    [
        ({"default_vo": "hpc#issuer"}, "hpc"),
        ({"vo_rules": [{"field": "any", "vo": "hpc"}]}, "hpc"),
        ({"vo_rules": [{"field": "local_group", "pattern": "bio", "vo": "hpc"}]}, "hpc"),
        ({"vo_rules": [{"field": "issuer", "vo": "hpc"}]}, ""),
    ],
)
def test_rules_and_the_default_count_too(site: SiteUnderTest, records: dict[str, Any], vo: str) -> None:
    """Before there are grid jobs."""
    without_grid_jobs(site)
    mapped(site, "theory local-theory")
    site.config["records"] |= records
    assert [f"have the VO {vo}, and so may" in note for note in noted(site)] == ([True] if vo else [])


@pytest.mark.parametrize(
    ("rule", "has_vo", "shared"),
    [
        ({"field": "any", "vo": "hpc"}, False, True),
        ({"field": "any", "vo": "hpc"}, True, False),
        ({"field": "any", "vo": "hpc", "override": True}, True, True),
        # Taken for one about local jobs
        ({"field": "local_group", "pattern": "bio", "vo": "hpc"}, False, False),
        ({"field": "local_group", "pattern": "bio", "vo": "cms"}, True, True),
    ],
)
def test_doctor_asks_whether_a_rule_concerns_grid_jobs(
    site: SiteUnderTest, rule: dict[str, Any], has_vo: bool, shared: bool
) -> None:
    mapped(site, "theory local-theory")
    site.config["records"]["vo_rules"] = [rule]
    if not has_vo:
        (job,) = generate(3, 1, NOW - timedelta(days=2), NOW - timedelta(days=1))
        site.fill(replace(job, vo="", fqans=()))
    (finding,) = found(site)
    expected = f"local jobs have the VO {rule['vo']}, and so have grid jobs" if shared else "they share none"
    assert finding["found"] == expected


def test_vos_that_local_jobs_bring_themselves_are_found_among_the_jobs(site: SiteUnderTest) -> None:
    """HTCondor keeps those of proxies."""
    history = site.folder / "condor"
    history.mkdir()
    recently = int((NOW - timedelta(days=2)).timestamp())
    vos = ("cms", "icecube")
    ads = [condor_history.ad(n, x509UserProxyVOName=vo, QDate=recently + n) for n, vo in enumerate(vos, start=1)]
    condor_history.spool(history, ads)
    site.config["source"][1] = {
        "type": "htcondor",
        "name": "pool",
        "cluster": condor_history.CLUSTER,
        "history": str(history),
        "arc_databases": [],
    }
    assert noted(site) == []
    assert [each["state"] for each in found(site)] == ["ok"]
    assert site.publish().status == 0
    (finding,) = found(site)
    assert finding["found"] == "local jobs have the VO cms, and so have grid jobs"
