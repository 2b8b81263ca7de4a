"""From what Sonar collects to the receiver, through the real command line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from publisher.model.job import JobRecord
from tests.fake_ams.service import FakeAMS
from tests.support.gridengine_files import write
from tests.support.imported_sites import bring_in, imported, local_site, told, truth
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.sonar_files import CLUSTER, TOKEN, after, collections, envelope, record, step, trouble

EVERY_STATUS = ["completed", "failed", "aborted"]


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A site without A-REX: local jobs of Slurm only."""
    made = local_site(tmp_path, pki, fake_ams, "sonar", CLUSTER)
    made.config["records"]["statuses"] = EVERY_STATUS
    return made


def test_every_job_of_slurm_arrives_once(site: SiteUnderTest) -> None:
    life = collections(5, 60)
    tree = site.folder / "data" / "2026" / "09" / "21"
    tree.mkdir(parents=True)
    write(tree / "0+job-slurm.json", islice(life, 8))
    first = bring_in(site, site.folder / "data")
    assert first["imported"] > 5
    assert site.publish().json["targets"]["egi"]["records"] == first["imported"]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    day = tree.with_name("22")
    day.mkdir()
    write(day / "0+job-slurm.json", life)
    second = bring_in(site, site.folder / "data")
    assert site.publish().status == 0
    with closing(sqlite3.connect(site.state)) as connection:  # as if a day had passed: what changed is sent again
        connection.execute("UPDATE target SET swept = swept - 90000")
        connection.commit()
    assert site.publish().status == 0
    found = imported(site)
    assert len(found) == first["imported"] + second["imported"] > 50
    assert sorted(map(told, site.table().rows("JobRecords"))) == sorted(map(truth, found.values()))


def test_what_is_said_of_a_job(site: SiteUnderTest) -> None:
    (site.folder / "users.map").write_text("ada /DC=org/CN=Ada\n")
    (site.folder / "accounts.map").write_text("theory theo\n")
    site.config["importers"]["sonar"] |= {"user_map": "users.map", "account_vo_map": "accounts.map"}
    path = write(site.folder / "told", [envelope([record(job_name="fit & <plot>", job_state="FAILED"), step("batch")])])
    bring_in(site, path)
    assert site.publish().status == 0
    (row,) = site.received(with_openssl=False)
    assert (row["GlobalUserName"], row["VO"], row["LocalUserId"]) == ("/DC=org/CN=Ada", "theo", "ada")
    assert (row["MachineName"], row["Queue"], row["InfrastructureType"]) == (CLUSTER, "normal", "local")
    assert (row["LocalJobId"], row["NodeCount"], row["Processors"]) == ("4711", 2, 8)


def test_the_command_line_tells_what_was_skipped_and_set_aside(site: SiteUnderTest) -> None:
    site.config["records"]["statuses"] = ["completed", "failed"]
    content = [
        envelope(
            [
                record(job_state="CANCELLED by 7"),
                record(job_id=2, start_time=None, job_state="CANCELLED"),
                step("0", job_id=3),
            ]
        ),
        trouble("No can do", node="c1-26"),
        b"torn\n",
    ]
    path = write(site.folder / "told", content)
    run = site.run("-vv", "import", "sonar", str(path), str(site.folder / "gone"))
    assert run.status == 66
    assert "1 skipped: never started (CANCELLED)" in run.out
    assert f"set aside: {path}, byte {path.stat().st_size - 5}: not an envelope of Sonar" in run.out
    assert "1 job known only by its steps, long without" in run.out
    assert "Sonar reported an error (1 time): c1-26: No can do" in run.out
    assert "1 job cancelled while running and not sent to egi: add aborted to records.statuses" in run.out
    assert f"{site.folder}/gone: No such file or directory" in run.err
    assert TOKEN not in run.out + run.err
    assert site.run("import", "sonar", str(path)).status == 0


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"cluster": "a b"}, "importers.sonar.cluster: 'a b' is not a cluster name"),
        ({"cluster": CLUSTER, "time_zone": "Europe/Olso"}, "time_zone: 'Europe/Olso' is not a time zone"),
        ({"cluster": CLUSTER, "time_zone": "../etc/passwd"}, "is not a time zone"),
        ({"cluster": CLUSTER, "threads_per_core": 0}, "threads_per_core: must be from 1 to 64"),
        ({"cluster": CLUSTER, "sample_interval_s": "0s"}, "sample_interval_s: must be more than nothing"),
        ({"cluster": CLUSTER, "hold_of_s": "1h"}, "hold_of_s: unknown key; did you mean 'hold_off_s'?"),
        ({"cluster": CLUSTER, "wall_from": "time"}, "wall_from: 'time' is not known; did you mean 'times'?"),
    ],
)
def test_the_block_is_checked_with_the_rest(keys: dict[str, Any], complaint: str, site: SiteUnderTest) -> None:
    site.config["importers"]["sonar"] = keys
    run = site.run("config", "check")
    assert run.status == 78
    assert complaint in run.err


def test_what_is_shown_reads_back(site: SiteUnderTest) -> None:
    site.config["importers"]["sonar"] |= {
        "time_zone": "Europe/Oslo",
        "threads_per_core": 2,
        "exclude_states": ["TIMEOUT"],
    }
    shown = site.run("config", "show").out
    (site.folder / "again.yaml").write_text(shown)
    site.path = site.folder / "again.yaml"
    assert site.run("config", "show").out == shown
    assert "threads_per_core: 2\n" in shown


def test_a_job_that_is_held_off_is_published_later(site: SiteUnderTest) -> None:
    site.config["importers"]["sonar"] |= {"hold_off_s": "36500d"}
    path = write(site.folder / "told", [envelope([record()], after(7000))])
    assert bring_in(site, path)["held"] == 1
    assert site.publish().json["targets"]["egi"]["records"] == 0
    site.config["importers"]["sonar"] |= {"hold_off_s": "90m"}
    site.save()
    report = bring_in(site, path)
    assert (report["lines"], report["imported"], report["held"]) == (0, 1, 0)
    assert site.publish().json["targets"]["egi"]["records"] == 1


def test_explain_tells_which_line_of_which_map_decided(site: SiteUnderTest) -> None:
    (site.folder / "users.map").write_text("ada /DC=org/CN=Ada\n")
    (site.folder / "vos.map").write_text("ada adas\n")
    (site.folder / "projects.map").write_text("theory Theo\n")
    maps = {"user_map": "users.map", "user_vo_map": "vos.map", "account_project_map": "projects.map"}
    site.config["importers"]["sonar"] |= maps | {"time_zone": "Europe/Oslo", "threads_per_core": 2}
    bring_in(site, write(site.folder / "told", [envelope([record()])]))
    (job_id,) = imported(site)
    run = site.run("explain", job_id)
    assert run.status == 0, run.err
    for line in (
        "imported: user: importers.sonar.user_map: ada",
        "imported: vo: importers.sonar.user_vo_map: ada",
        "imported: projects: importers.sonar.account_project_map: theory",
        "imported: started_at: importers.sonar.time_zone: Europe/Oslo",
        "imported: wall_s: importers.sonar.wall_from: elapsed",
        f"origin: sonar record {'/'.join(job_id.split(':')[:2])}/",
        "imported: cpu_count: allocated CPUs, else requested; 2 a core (threads_per_core)",
    ):
        assert line in run.out
    (one,) = site.run("explain", "--json", job_id).json["explanations"]
    assert {rule["field"] for rule in one["imported"]} <= {*JobRecord._fields}
    (site.folder / "vos.map").write_text("ada others\n")
    assert "imported: vo: the maps have changed since it was imported" in site.run("explain", job_id).out
    del site.config["importers"]
    site.save()
    assert "imported:" not in site.run("explain", job_id).out
