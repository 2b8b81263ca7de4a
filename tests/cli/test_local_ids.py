"""Jobs named by their ids in the batch system, at sites that know no others, and users without certificates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.support.condor_history import ad, rolling
from tests.support.gridengine_files import BEGIN, Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

ANY = Entry(job=1001)
COMMANDS = (("trace",), ("explain",), ("job", "info"), ("job", "events"))


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """Two clusters and no CE; 1001 ran on both, 7 on one and twice, 8 once."""
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False, "start": "all"}}
    made = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    later = replace(ANY, started=BEGIN + 9000, ended=BEGIN + 9500, submitted=BEGIN + 8000)
    lines = {
        "hpc": [ANY, replace(ANY, job=7), replace(later, job=7), replace(ANY, job=8, owner="bob")],
        "gpu": [replace(ANY, owner="eve", ended=ANY.ended + 1)],
    }
    made.config["source"] = [
        {
            "type": "gridengine",
            "name": name,
            "cluster": f"{name}.example.org",
            "paths": [str(write(tmp_path / f"accounting-{name}", map(colon, entries)))],
        }
        for name, entries in lines.items()
    ]
    assert made.run("publish").status == 0
    return made


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("asked", "cluster", "number"),
    [
        ("8", "hpc", 8),
        ("hpc:1001", "hpc", 1001),
        ("gpu:1001", "gpu", 1001),
        ("hpc.example.org:1001", "hpc", 1001),
        (f"hpc.example.org:1001:{BEGIN + 10}", "hpc", 1001),
    ],
)
def test_a_job_is_found_by_its_local_id(
    command: tuple[str, ...], asked: str, cluster: str, number: int, site: ConfiguredSite
) -> None:
    run = site.run(*command, "--json", asked)
    assert run.status == 0, run.err
    assert run.json["job"] == f"{cluster}.example.org:{number}:{BEGIN + 10}"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("asked", "count"), [("1001", 2), ("7", 2), ("hpc:7", 2)])
def test_where_several_jobs_are_meant_they_are_listed(
    command: tuple[str, ...], asked: str, count: int, site: ConfiguredSite
) -> None:
    run = site.run(*command, asked)
    assert run.status == 64
    assert f"{asked} is the id in the batch system of {count} jobs" in run.err
    number = asked.rpartition(":")[2]
    assert run.err.count(f".example.org:{number}:") == count


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("asked", ["9", "gpu:8", "other:8", "hpc:"])
def test_what_names_no_job_is_an_error_with_advice_for_any_site(
    command: tuple[str, ...], asked: str, site: ConfiguredSite
) -> None:
    run = site.run(*command, asked)
    assert run.status == 64
    assert "give the JobID, or the id in the batch system" in run.err
    assert "CE assigned" not in run.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_id_comes_before_ids_of_the_batch_system(command: tuple[str, ...], tmp_path: Path, pki: PKI) -> None:
    """And no id is none, though jobs of A-REX may have none in the batch system."""
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False, "start": "all"}}
    site = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    jobs = generate(1, 3, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC))
    ids = (("1001", "1002"), ("1002", "1001"), ("1003", ""))
    site.fill(*(replace(job, job_id=own, local_job_id=local) for job, (own, local) in zip(jobs, ids, strict=True)))
    assert site.run("publish").status == 0
    for asked in ("1001", "1002"):
        assert site.run(*command, "--json", asked).json["job"] == asked
    assert site.run(*command, "").status == 64


def test_the_name_of_a_ce_leaves_out_jobs_of_batch_systems(site: ConfiguredSite) -> None:
    site.config["source"] = [
        {"name": "ce", "type": "arex", "control_dir": str(site.control)},
        *(entry | {"arc_databases": []} for entry in site.config["source"]),
    ]
    site.save()
    (job,) = generate(1, 1, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC))
    site.fill(replace(job, local_job_id="8"))
    assert site.run("job", "info", "--json", "ce:8").json["job"] == job.job_id
    assert site.run("job", "info", "--json", "hpc:8").json["job"].startswith("hpc.example.org:8:")
    assert "8 is the id in the batch system of 2 jobs" in site.run("job", "info", "8").err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_id_of_the_batch_system_may_have_colons(command: tuple[str, ...], site: ConfiguredSite) -> None:
    """It is one as a whole, though `hpc` is a source too, and behind the name of its own."""
    site.config["source"] = [
        {"name": "ce", "type": "arex", "control_dir": str(site.control)},
        *(entry | {"arc_databases": []} for entry in site.config["source"]),
    ]
    site.save()
    jobs = generate(1, 2, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC))
    one, other = (replace(job, local_job_id=own) for job, own in zip(jobs, ("hpc:8", "pbs:17:2"), strict=True))
    site.fill(one, other)
    assert site.run("publish").status == 0
    for asked, job in (("hpc:8", one), ("ce:hpc:8", one), ("pbs:17:2", other), ("ce:pbs:17:2", other)):
        assert site.run(*command, "--json", asked).json["job"] == job.job_id
    assert site.run(*command, "pbs:17").status == 64


def test_what_was_sent_is_traced_though_the_accounting_data_cannot_be_read(tmp_path: Path, pki: PKI) -> None:
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False, "start": "all"}}
    site = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    (job,) = generate(1, 1, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC))
    site.fill(job)
    assert site.run("publish").status == 0
    site.database().write_bytes(b"no database at all, and long enough " * 300)
    run = site.run("trace", "--json", job.job_id)
    assert (run.status, len(run.json["deliveries"])) == (66, 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_of_htcondor_is_its_only_job(command: tuple[str, ...], tmp_path: Path, pki: PKI) -> None:
    """105 is 105.0, as it is for condor_history; of several jobs one must be named."""
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False, "start": "all"}}
    site = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    path = tmp_path / "history"
    path.write_bytes(rolling([ad(105), ad(106), ad(106, 1), ad(106, 2)]))
    site.config["source"] = [{"type": "htcondor", "name": "pool", "cluster": "pool.example.org", "history": str(path)}]
    assert site.run("publish").status == 0
    for asked in ("105", "105.0", "pool:105", "pool:105.0", "pool.example.org:105"):
        run = site.run(*command, "--json", asked)
        assert run.status == 0, run.err
        assert "#105.0#" in run.json["job"]
    run = site.run(*command, "106")
    assert run.status == 64
    assert "106 is the id in the batch system of 2 jobs or more" in run.err
    assert run.err.count("#106.") == 2
    assert site.run(*command, "--json", "106.2").status == 0


def test_local_users_count_where_there_are_no_certificates(site: ConfiguredSite) -> None:
    assert site.run("stats", "-o", "users").out.split() == ["ada", "bob", "eve"]
    found = site.run("stats", "--json").json
    assert (found["users"], found["local_users"]) == ([], ["ada", "bob", "eve"])
    assert "3 local without a known certificate" in site.run("stats").out
