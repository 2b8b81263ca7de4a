"""Batch systems as entries of `source`: read by the round itself, through the real command line."""

from __future__ import annotations

import gzip
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.faults.test_signals import end as end_by_sigterm
from tests.support import sacct_text
from tests.support.batch_stores import records
from tests.support.daemons import RunningDaemon, until
from tests.support.forks import publisher
from tests.support.gridengine_files import CLUSTER, Entry, colon, write
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.stand_in_sacct import install

ANY = Entry()


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A site whose only source is Grid Engine's accounting file."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["source"] = [grid_engine(made)]
    return made


def grid_engine(site: SiteUnderTest, **keys: object) -> dict[str, Any]:
    return {"type": "gridengine", "cluster": CLUSTER, "paths": [str(site.folder / "common")], **keys}


def log(site: SiteUnderTest, *jobs: int, name: str = "accounting", more: Iterable[bytes] = ()) -> Path:
    (site.folder / "common").mkdir(exist_ok=True)
    return write(site.folder / "common" / name, [*(colon(replace(ANY, job=job)) for job in jobs), *more])


def slurm(site: SiteUnderTest, *numbers: int, **keys: object) -> dict[str, Any]:
    """An entry whose sacct is a stand-in that knows these jobs, which ended half a day ago."""
    now = int(datetime.now(UTC).timestamp())
    times = {"Submit": now - 46_000, "Eligible": now - 46_000, "Start": now - 45_000, "End": now - 43_200}
    lines = [
        line for number in numbers for one in [sacct_text.job(number, **times)] for line in (one, sacct_text.step(one))
    ]
    command = install(site.folder / "sacct", lines)
    return {"type": "slurm", "cluster": sacct_text.CLUSTER, "command": list(command), "look_back_s": "2d", **keys}


def mishap(site: SiteUnderTest, what: str | None) -> None:
    path = site.folder / "sacct" / "mishap"
    path.unlink(missing_ok=True)
    if what:
        path.write_text(what)


def sent(site: SiteUnderTest) -> list[str]:
    return sorted(row["LocalJobId"] for row in site.received(with_openssl=False))


def test_a_round_reads_the_batch_system_and_publishes_what_is_new(site: SiteUnderTest) -> None:
    path = log(site, 1, 2)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 2)
    with path.open("ab") as file:
        file.write(colon(replace(ANY, job=3)))
    assert site.publish().json["targets"]["egi"]["records"] == 1
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert sent(site) == ["1", "2", "3"]
    assert site.state.with_name("jobs.db").stat().st_mode & 0o777 == 0o600


def test_a_single_mapping_is_a_source_too(site: SiteUnderTest) -> None:
    (site.config["source"],) = site.config["source"]
    log(site, 1)
    assert site.publish().json["targets"]["egi"]["records"] == 1


def test_a_dry_run_reads_nothing_in(site: SiteUnderTest) -> None:
    path = log(site, 1)
    assert site.publish().status == 0
    with path.open("ab") as file:
        file.write(colon(replace(ANY, job=2)))
    assert site.publish("--dry-run").json["targets"]["egi"]["records"] == 0
    assert site.publish().json["targets"]["egi"]["records"] == 1


def test_before_the_first_reading_a_dry_run_says_so(site: SiteUnderTest) -> None:
    log(site, 1)
    run = site.publish("--dry-run")
    assert run.status == 66
    assert "source gridengine: was not read yet; `publisher publish` reads it" in run.err


def test_three_batch_systems_and_arex_are_published_together(site: SiteUnderTest) -> None:
    batch: list[SampleJob] = list(generate(1, 5, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    site.fill(*batch)
    other = site.folder / "other"
    other.mkdir()
    write(other / "accounting", [colon(replace(ANY, job=7))])
    arex = {"type": "arex", "control_dir": str(site.control), "time_zone": "Europe/Oslo"}
    site.config["source"] = [
        arex,
        grid_engine(site, arc_databases=[], infrastructure_description="A-A-A"),
        grid_engine(site, name="second", cluster="two.example.org", paths=[str(other / "acc*")], arc_databases=[]),
        slurm(site, 11, 12, arc_databases=[], infrastructure="grid"),
    ]
    log(site, 1)
    run = site.publish()
    assert run.status == 0, run.err
    rows = [row for row in site.received(with_openssl=False) if row["InfrastructureDescription"] != "JURA-ARC-SLURM"]
    assert sorted((row["LocalJobId"], row["InfrastructureType"], row["InfrastructureDescription"]) for row in rows) == [
        ("1", "local", "A-A-A"),
        ("11", "grid", "PUBLISHER-NONE-SLURM"),
        ("12", "grid", "PUBLISHER-NONE-SLURM"),
        ("7", "local", "PUBLISHER-NONE-SGE"),
    ]
    assert run.json["targets"]["egi"]["records"] == 5 + 4


def test_a_source_that_breaks_is_told_by_name_and_heals(site: SiteUnderTest) -> None:
    site.config["source"].append(slurm(site, 11))
    log(site, 1)
    mishap(site, "fail")
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (66, 1)
    reason = run.json["targets"]["egi"]["reason"]
    assert "source slurm: " in reason
    assert "Connection refused" in reason
    assert "gridengine" not in reason
    mishap(site, None)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1)
    assert sent(site) == ["1", "11"]


def test_a_broken_source_is_told_where_no_target_is_due(site: SiteUnderTest) -> None:
    site.config["source"].append(slurm(site, 11))
    site.config["targets"]["egi"]["every"] = "1d"
    log(site, 1)
    assert site.publish().status == 0
    mishap(site, "fail")
    run = site.run("publish", "--json")
    assert run.status == 66
    assert "not due before" in run.json["targets"]["egi"]["reason"]
    assert "source slurm: " in run.json["targets"]["egi"]["reason"]


def test_each_source_is_read_once_for_all_targets(site: SiteUnderTest) -> None:
    site.config["source"] = [slurm(site, 11, look_back_s="1d")]
    site.config["targets"]["second"] = site.config["targets"]["egi"] | {
        "type": "spool",
        "path": str(site.folder / "out"),
    }
    for key in ("url", "auth_url", "service_host"):
        del site.config["targets"]["second"][key]
    run = site.publish()
    assert [one["records"] for one in run.json["targets"].values()] == [1, 1]
    calls = (site.folder / "sacct" / "calls").read_text().splitlines()
    assert len([call for call in calls if "starttime" in call]) == 1


def test_a_bad_line_and_a_damaged_archive_are_no_failure(site: SiteUnderTest) -> None:
    log(site, 1, more=[b"torn\n"])
    (site.folder / "common" / "accounting.1.gz").write_bytes(gzip.compress(colon(replace(ANY, job=2)))[:-20])
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1), run.err
    assert "source gridengine: set aside: " in run.err
    assert "accounting.1.gz: is damaged" in run.err


def test_a_map_file_that_is_gone_fails_one_source_only(site: SiteUnderTest) -> None:
    log(site, 1)
    assert site.publish().status == 0
    site.config["source"][0]["user_map"] = str(site.folder / "gone.map")
    site.save()
    run = site.publish()
    assert run.status == 66
    assert f"source gridengine: source.gridengine.user_map: {site.folder}/gone.map cannot be read" in run.err


def test_two_rounds_at_once_read_a_source_one_after_the_other(site: SiteUnderTest) -> None:
    log(site, *range(1, 201))
    site.save()
    rounds = [
        publisher(site, "publish", "--json", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)
    ]
    assert {each.wait(PATIENCE_S) for each in rounds} <= {0, 75}
    assert site.publish().status == 0
    assert len(sent(site)) == len(set(sent(site))) == 200


@pytest.mark.parametrize(("lrms", "published"), [("sge", 1), (None, 1), ("SLURM", 2)])
def test_jobs_of_arex_are_left_to_its_entry(lrms: str | None, published: int, site: SiteUnderTest) -> None:
    """Another batch system may have given the same number."""
    batch = list(generate(1, 3, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC)))
    batch[0] = replace(batch[0], lrms=lrms)
    site.fill(*batch)
    number, end = int(batch[0].local_job_id or 0), batch[0].end_time
    theirs_too = replace(ANY, submitted=end - 500, started=end - 400, ended=end - 60)
    (site.folder / "common").mkdir()
    jobs = [replace(theirs_too, job=number), replace(theirs_too, job=number + 1_000_000)]
    write(site.folder / "common" / "accounting", map(colon, jobs))
    site.config["source"].append({"type": "arex", "control_dir": str(site.control), "time_zone": "Europe/Oslo"})
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 3 + published), run.err
    assert sent(site).count(str(number)) == published


def test_without_arex_s_database_nothing_of_the_batch_system_is_taken_for_its_own(site: SiteUnderTest) -> None:
    log(site, 1)
    site.config["source"].append({"type": "arex", "control_dir": str(site.control), "time_zone": "Europe/Oslo"})
    run = site.publish()
    assert run.status == 66
    assert (
        f"source gridengine: {site.control}: has neither accounting/accounting_v2.db"
        in run.json["targets"]["egi"]["reason"]
    )
    assert sent(site) == []


def test_files_by_hand_go_into_the_source(site: SiteUnderTest) -> None:
    log(site)
    old = write(site.folder / "old", [colon(replace(ANY, job=9))])
    report = site.run("import", "gridengine", "--json", str(old))
    assert (report.json["imported"], report.json["database"]) == (
        1,
        str(site.state.with_name("jobs.db")),
    )
    assert site.publish().json["targets"]["egi"]["records"] == 1


def test_what_explains_a_job_names_the_entry(site: SiteUnderTest) -> None:
    (site.folder / "users.map").write_text("ada /DC=org/CN=Ada\n")
    site.config["source"][0] |= {"name": "sge", "user_map": "users.map"}
    log(site, 1)
    assert site.publish().status == 0
    (job_id,) = (job.job_id for job in records(site.state.with_name("jobs.db")))
    text = site.run("explain", job_id).out
    assert "source.sge.user_map: ada" in text


def test_what_is_shown_of_a_list_reads_back(site: SiteUnderTest) -> None:
    site.config["source"].append({"type": "arex", "control_dir": str(site.control)})
    site.config["source"].append({"type": "slurm", "name": "hpc", "cluster": "hpc1", "files": ["/x/*.txt"]})
    site.save()
    shown = site.run("config", "show").out
    path = site.folder / "shown.yaml"
    path.write_text(shown)
    again = site.run("--config", str(path), "config", "show")
    assert again.out == shown
    assert "name: hpc" in shown


def age(site: SiteUnderTest, name: str, seconds: int) -> None:
    """As if its last reading had been so long ago."""
    with closing(sqlite3.connect(site.state.with_name("jobs.db"))) as connection:
        connection.execute(
            "UPDATE SourceReading SET Ended = Ended - :s, Succeeded = Succeeded - :s, FailingSince = FailingSince - :s "
            "WHERE Source = (SELECT id FROM source WHERE name = :name)",
            {"s": seconds, "name": name},
        )
        connection.commit()


def test_status_tells_when_each_source_was_read(site: SiteUnderTest) -> None:
    log(site, 1, more=[b"torn\n"])
    before = site.run("status", "--json").json["sources"]["gridengine"]
    assert (before["last_read"], before["set_aside"], before["alarm"]) == (None, 0, None)
    assert "has not been read yet" in site.run("status", "--nagios").out
    assert site.publish().status == 0
    run = site.run("status", "--json")
    found = run.json["sources"]["gridengine"]
    assert (run.status, found["type"], found["set_aside"], found["trouble"]) == (0, "gridengine", 1, None)
    assert found["last_read"] is not None
    assert found["last_read"] == found["last_success"]
    assert found["newest_end_time"].endswith("Z")
    assert "gridengine" in site.run("status").out
    assert found == site.run("source", "list", "--json").json["sources"]["gridengine"]
    dry = site.publish("--dry-run")
    assert dry.json["sources"]["gridengine"] == found
    assert found["last_read"] in site.run("publish", "--dry-run", "--force").out


def test_a_source_that_was_not_read_for_a_day_is_an_alarm(site: SiteUnderTest) -> None:
    log(site, 1)
    assert site.publish().status == 0
    age(site, "gridengine", 86_000)
    assert site.run("status").status == 0
    age(site, "gridengine", 86_000)
    run = site.run("status")
    assert run.status == 66
    assert "source gridengine: was last read in full at " in run.err
    assert "no round has run since" in run.err
    nagios = site.run("status", "--nagios")
    assert (nagios.status, "source gridengine: was last read" in nagios.out) == (2, True)
    assert site.publish().status == 0
    assert site.run("status").status == 0


def test_a_source_that_fails_is_an_alarm_until_it_heals(site: SiteUnderTest) -> None:
    site.config["source"] = [slurm(site, 11)]
    mishap(site, "fail")
    assert site.publish().status == 66
    found = site.run("status", "--json").json["sources"]["slurm"]
    assert (found["last_success"], found["alarm"]) == (
        None,
        f"source slurm: has never been read in full: {found['trouble']}",
    )
    assert "Connection refused" in found["trouble"]
    age(site, "slurm", 90_000)
    assert site.publish().status == 66
    run = site.run("status")
    assert "source slurm: has never been read in full: " in run.err
    mishap(site, None)
    assert site.publish().status == 0
    run = site.run("status", "--json")
    assert (run.status, run.json["sources"]["slurm"]["failing_since"]) == (0, None)


def test_bad_lines_are_shown_by_source(site: SiteUnderTest) -> None:
    path = log(site, 1, more=[b"torn\n"])
    assert site.publish().status == 0
    run = site.run("source", "bad-lines", "gridengine", "--json")
    (line,) = run.json["bad_lines"]
    assert (line["source"], line["file"], line["line"]) == ("gridengine", str(path), "torn")
    assert "1 columns" in site.run("source", "bad-lines").out
    run = site.run("source", "bad-lines", "slurm")
    assert (run.status, "slurm: no such batch system in `source`; there are: gridengine" in run.err) == (64, True)


def test_a_site_with_importers_moves_its_keys_to_a_source(site: SiteUnderTest) -> None:
    path = log(site, 1, 2)
    (entry,) = site.config["source"]
    keys = {key: value for key, value in entry.items() if key not in ("type", "paths")}
    del site.config["source"]
    site.config["importers"] = {"gridengine": keys}
    assert site.run("import", "gridengine", str(path)).status == 0
    assert site.publish().json["targets"]["egi"]["records"] == 2
    del site.config["importers"]
    site.config["source"] = [entry]
    site.save()
    with path.open("ab") as file:
        file.write(colon(replace(ANY, job=3)))
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1), run.err
    assert sent(site) == ["1", "2", "3"]


def test_the_daemon_reads_before_each_round_and_goes_on_after_trouble(site: SiteUnderTest) -> None:
    site.config["source"].append(slurm(site, 11))
    log(site, 1)
    mishap(site, "fail")
    with RunningDaemon(site) as daemon:
        daemon.wait_for("source slurm: ")
        daemon.wait_for("Connection refused")
        daemon.wait_for("delivered: 1 record")
        mishap(site, None)
        daemon.wait_for("delivered: 1 record", times=2)
        assert daemon.end() == 0
    assert sent(site) == ["1", "11"]


def test_a_stop_while_sacct_answers_ends_it_and_reports_the_source(site: SiteUnderTest) -> None:
    site.config["source"] = [slurm(site, 11)]
    mishap(site, "hang")
    site.save()
    child = publisher(site, "publish")
    until((site.folder / "sacct" / "pid").exists, lambda: "sacct was never started", lambda: child.poll() is not None)
    err = end_by_sigterm(child)
    assert "ended, because a stop was asked for; the next round reads on" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((site.folder / "sacct" / "pid").read_text()), 0)
    mishap(site, None)
    assert site.publish().json["targets"]["egi"]["records"] == 1


def test_a_round_that_was_killed_while_it_read_is_taken_up_by_the_next(site: SiteUnderTest) -> None:
    site.config["source"].append(slurm(site, 11))
    log(site, 1)
    mishap(site, "hang")
    with RunningDaemon(site) as daemon:
        until((site.folder / "sacct" / "calls").exists, daemon.text)
        daemon.send(signal.SIGKILL)
    mishap(site, None)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 2), run.err


def test_accounting_files_of_real_sites_are_read_by_a_pattern(site: SiteUnderTest) -> None:
    folder = os.environ.get("PUBLISHER_SAMPLES")
    if not folder:
        pytest.skip("PUBLISHER_SAMPLES is not set")
    site.config["source"] = [grid_engine(site, paths=[f"{folder}/gridengine/sge-6*.accounting"])]
    run = site.publish()
    walls = sorted(row["WallDuration"] for row in site.received(with_openssl=False))
    assert (run.status, walls) == (0, [1, 1, 42, 20_572, 180_001]), run.err
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
