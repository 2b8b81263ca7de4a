"""Charges and GPUs of jobs from Grid Engine and Slurm, from their files to the receiver and to the bill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.gridengine_files import CLUSTER, Entry, jsonl
from tests.support.gridengine_files import write as write_lines
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite
from tests.support.sonar_files import envelope, record

ALL = ("--from", "2020-01", "--to", "2030-01")


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    spool = {"type": "spool", "path": str(tmp_path / "out"), "format": "ogf-ur", "start": "all"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"out": spool})
    del made.config["source"]
    made.config["importers"] = {"gridengine": {"cluster": CLUSTER}, "sonar": {"cluster": "fox.example.org"}}
    made.config["records"] |= {
        "infrastructure": "local", "batch_server": CLUSTER, "machine_name": CLUSTER, "statuses": ["completed"],
    }  # fmt: skip
    return made


def charged(site: ConfiguredSite, formula: str) -> list[Any]:
    """Amounts, or the reasons why there are none."""
    site.config["records"]["charges"] = [{"formula": formula, "unit": "h"}]
    site.save()
    done = site.run("charge", *ALL, "--jobs", "--json")
    assert done.status == 0, done.err
    return [one["amount"] or one["reason"] for one in done.json["charges"]]


def test_grid_engine_tells_gpus_and_the_time_limit(site: ConfiguredSite) -> None:
    job = replace(Entry(), category="-l gpu=2,h_rt=2:30:0", slots=4)
    site.run("import", "gridengine", str(write_lines(site.folder / "accounting", [jsonl(job)])))
    assert charged(site, "gres_gpu * 100 + cpu * 10 + TimeLimit") == ["242.5"]
    assert charged(site, "billing") == ["billing is not known"]
    assert charged(site, "NumCPUs * RunTime * 3600") == ["400"]


def test_slurm_tells_all_that_a_formula_may_ask_for(site: ConfiguredSite) -> None:
    told = write_lines(site.folder / "0+job-slurm.json", [envelope([record(suspend_time=90)])])
    site.run("import", "sonar", str(told))
    assert charged(site, "gres_gpu * 1000000 + billing * 100000 + mem * 1000 + TimeLimit * 100 + node * 10") == [
        str(2 * 1_000_000 + 8 * 100_000 + 16 * 1000 + 2 * 100 + 2 * 10)
    ]
    assert charged(site, "SecsPreSuspend + (EndTime - StartTime) - RunTime") != ["SecsPreSuspend is not known"]
    assert charged(site, "NumTasks") == ["NumTasks is not known"]


def test_the_record_has_gpus_and_charge(site: ConfiguredSite) -> None:
    job = replace(Entry(), category="-l gpu=2", slots=4)
    site.run("import", "gridengine", str(write_lines(site.folder / "accounting", [jsonl(job)])))
    site.config["records"]["charges"] = [{"formula": "gres_gpu", "unit": "GPUs"}]
    site.save()
    assert site.run("publish", "--force").status == 0
    (path,) = [path for path in (site.folder / "out").rglob("*") if path.is_file()]
    record = path.read_text(errors="replace")
    assert '<Charge urf:unit="GPUs" urf:formula="gres_gpu">2</Charge>' in record
    assert '<sgas:AllocResource sgas:resourceType="gres/gpu" sgas:resourceAmount="2"/>' in record
