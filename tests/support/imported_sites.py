"""Sites without A-REX, whose jobs an importer brings in through the real command line, and what must arrive of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fake_ams.service import FakeAMS
from tests.support.gridengine_files import jobs
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest


def local_site(folder: Path, pki: PKI, fake: FakeAMS, system: str, cluster: str) -> SiteUnderTest:
    """A site that publishes what is imported from one batch system only."""
    made = SiteUnderTest(folder, pki, fake)
    del made.config["source"]
    made.config["importers"] = {system: {"cluster": cluster}}
    return made


def bring_in(site: SiteUnderTest, *paths: Path) -> dict[str, Any]:
    """Import with the site's one importer; gives what it told."""
    (system,) = site.config["importers"]
    run = site.run("import", system, "--json", *map(str, paths))
    assert run.status == run.json["exit"], run.err
    return run.json


def imported(site: SiteUnderTest) -> dict[str, dict[str, Any]]:
    """The jobs of its database."""
    return jobs(site.state.with_name("jobs.db"))


def truth(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the receiver must hold of a job: local id, start, end, wall, CPU, cores."""
    cpu = job["UsedCPUUserTime"] + job["UsedCPUKernelTime"]
    return (job["LocalJobID"], job["StartTime"], job["EndTime"], job["UsedWalltime"], cpu, job["CPUCount"])


def told(row: Mapping[str, object]) -> tuple[Any, ...]:
    """The same of a received row."""
    keys = ("LocalJobId", "StartTime", "EndTime", "WallDuration", "CpuDuration", "Processors")
    return tuple(row[key] for key in keys)
