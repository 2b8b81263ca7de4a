"""Runs that A-REX forgot before the batch system's database could remember them: once delivered as its jobs, they stay so."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from publisher.cli.site import configured_site
from publisher.model.job import Epoch, JobRecord
from tests.arex_databases import SampleJob
from tests.faults.crash_nursery import publish as publish_in_a_child
from tests.scenarios.test_joined import arex_jobs, arrived, lines, restarted, show, slurm, totals
from tests.support import sacct_text
from tests.support.batch_stores import records
from tests.support.ledgers import instance_of
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite
from tests.support.stand_in_sacct import install

DAY_S = 86_400
FORMS = ["car", "apel-job-0.4", "apel-summary-0.4"]


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """With A-REX alone."""
    spool = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "start": "all", "every": "1s"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"out": spool})
    made.config["records"]["statuses"] = ["completed", "failed"]
    return made


def publish(site: ConfiguredSite, status: int = 0) -> str:
    """Gives what it told."""
    site.save()
    run = site.publish()
    assert run.status == status, run.err
    return run.err


def add_slurm(site: ConfiguredSite, *jobs: SampleJob, **keys: object) -> None:
    entry = slurm(site, *jobs, **keys)
    site.config["source"] = [site.config["source"], {key: value for key, value in entry.items() if value is not None}]


def source_database(site: ConfiguredSite) -> Path:
    return Path(site.config.get("state_directory", site.state.parent)) / "jobs.db"


def runs(site: ConfiguredSite) -> list[JobRecord]:
    """Those that are jobs of the batch system."""
    return [job for job in records(source_database(site)) if job.row.database == "hpc"]


def rows(site: ConfiguredSite) -> list[str]:
    """Their numbers."""
    return [job.local_id for job in runs(site)]


def remove(database: Path) -> None:
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()


def counted(site: ConfiguredSite) -> int:
    """Runs that the receiver counts."""
    if "summary" in site.config["targets"]["out"]["format"]:
        return sum(totals(site).values())
    if site.config["targets"]["out"]["format"] == "car":
        return len({row["id"] for row in arrived(site)})
    files = [path for path in (site.folder / "out").rglob("*") if path.is_file()]
    texts = [line for path in files for line in path.read_text().splitlines()]
    return len({line for line in texts if line.startswith("LocalJobId: ")})


@pytest.mark.slow
@pytest.mark.parametrize("joins", [None, "arex"])
@pytest.mark.parametrize("form", FORMS)
def test_a_job_that_was_restarted_before_its_batch_system_was_read(
    site: ConfiguredSite, form: str, joins: str | None
) -> None:
    """Nor when the batch system's database is removed and made anew."""
    site.config["targets"]["out"]["format"] = form
    before, *others = arex_jobs(6, 7200, nodes=1, cpus=1)
    site.fill(before, *others)
    publish(site)
    again = restarted(site, before)
    publish(site)
    add_slurm(site, before, again, *others, join=joins)
    assert "forgotten by A-REX since: 1 run, not counted again" in publish(site)
    assert rows(site) == ["77"]
    assert counted(site) == 7 + 1
    assert "forgotten" not in publish(site)
    remove(source_database(site))
    assert "forgotten by A-REX since: 1 run, not counted again" in publish(site)
    assert rows(site) == ["77"]
    assert counted(site) == 7 + 1


@pytest.mark.parametrize("by_hand", [True, False])
def test_whoever_reads_the_batch_system_asks_what_was_delivered(site: ConfiguredSite, by_hand: bool) -> None:
    before, *others = arex_jobs(3, 7200)
    site.fill(before, *others)
    publish(site)
    restarted(site, before)
    add_slurm(site, before, *others)
    site.save()
    if by_hand:
        told = site.run("import", "slurm").out
        assert "forgotten by A-REX since: 1 run, not counted again" in told
    else:
        publish(site)
    assert rows(site) == ["77"]


def test_a_dry_run_asks_nothing_and_writes_nothing(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    publish(site)
    restarted(site, job)
    add_slurm(site, job)
    site.save()
    assert site.publish("--dry-run").status == 0
    assert not rows(site)


@pytest.mark.parametrize("purged", ["some", "all"])
def test_rows_that_a_rex_has_no_more(site: ConfiguredSite, purged: str) -> None:
    *before, last = arex_jobs(20, 7200)
    site.fill(*before, last)
    publish(site)
    gone = before[:7] if purged == "some" else [*before, last]
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.executemany("DELETE FROM AAR WHERE JobID = ?", [(job.job_id,) for job in gone])
    add_slurm(site, *before, last, join=None)
    assert f"forgotten by A-REX since: {len(gone)} runs," in publish(site)
    assert rows(site) == ["77"]
    assert counted(site) == 20 + 1


def test_rows_that_have_other_places_now_were_not_forgotten(site: ConfiguredSite) -> None:
    before, *others = arex_jobs(20, 7200)
    site.fill(before, *others)
    publish(site)
    again = restarted(site, before)
    publish(site)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET RecordID = RecordID + 100000")
    add_slurm(site, before, again, *others)
    assert "forgotten by A-REX since: 1 run," in publish(site)
    assert rows(site) == ["77"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_copy_of_the_database_that_has_another_name_now(site: ConfiguredSite, is_gone: bool) -> None:
    """The job store keeps the runs of the file that is not there any more."""
    before, *others = arex_jobs(6, 7200)
    site.fill(before, *others)
    copies = [site.folder / name for name in ("ce.db", "moved.db")]
    copyfile(site.database(), copies[0])
    site.config["source"] = {"type": "arex", "databases": [str(copies[0])]}
    publish(site)
    again = restarted(site, before)
    remove(copies[0])
    copyfile(site.database(), copies[1])
    if is_gone:
        with closing(sqlite3.connect(copies[1])) as connection, connection:
            connection.execute("DELETE FROM AAR WHERE JobID = ?", (before.job_id,))
    site.config["source"]["databases"] = [str(copies[1])]
    add_slurm(site, before, again, *others, join=None)
    site.save()
    told = site.publish().err
    assert "forgotten by A-REX since: 1 run, not counted again" in told
    assert before.local_job_id not in rows(site)


def test_a_number_that_comes_again_is_counted(site: ConfiguredSite) -> None:
    """And so is one of another batch system that A-REX submits to."""
    before, other = arex_jobs(2, 6 * DAY_S)
    other = replace(other, lrms="condor")
    site.fill(before, other)
    publish(site)
    restarted(site, before)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET LocalJobID = '4712' WHERE JobID = ?", (other.job_id,))
    now = int(time.time())
    later = [
        sacct_text.job(int(job.local_job_id or 0), Submit=ended - 300, ElapsedRaw=300)
        for job, ended in ((before, now - 2 * DAY_S), (other, other.end_time + 60))
    ]
    add_slurm(site, look_back_s="9d", join=None)
    first = sacct_text.job(
        int(before.local_job_id or 0), Submit=before.end_time - 40 - before.wall_s, ElapsedRaw=before.wall_s
    )
    install(site.folder / "sacct", [line for job in (first, *later) for line in (job, sacct_text.step(job))])
    publish(site)
    assert sorted(rows(site)) == sorted(str(job.local_job_id) for job in (before, other))
    assert sorted(job.ended_at for job in runs(site)) == [other.end_time + 60, now - 2 * DAY_S]


def test_runs_of_the_batch_system_s_own_database_are_none_of_a_ce_s(site: ConfiguredSite) -> None:
    """They were delivered too, and stand in no database any more when that is made anew."""
    before, *others = arex_jobs(3, 7200)
    site.fill(before)
    add_slurm(site, before, *others, join=None)
    publish(site)
    numbers = rows(site)
    assert len(numbers) == 1 + len(others)
    remove(source_database(site))
    assert "forgotten" not in publish(site)
    assert rows(site) == numbers


def test_a_run_stays_the_batch_system_s_own_when_its_entry_is_renamed(site: ConfiguredSite) -> None:
    """A-REX tells of it only then."""
    job, *others = arex_jobs(3, 7200, nodes=1, cpus=1)
    site.config["targets"]["out"]["format"] = "apel-summary-0.4"
    site.fill(*others)
    add_slurm(site, job, join=None)
    publish(site)
    assert counted(site) == 4
    site.config["source"][1]["name"] = "other"
    site.fill(job)
    assert "set aside: counted-by-batch-system" in publish(site, 65)
    assert counted(site) == 4


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_rule_19_a_delivered_run_counts_once_when_the_batch_system_has_it_no_more(
    site: ConfiguredSite, form: str
) -> None:
    """The job store is deleted, sacct has purged the run, and only then does A-REX write its job."""
    job, *others = arex_jobs(3, 7200, nodes=1, cpus=1)
    site.config["targets"]["out"]["format"] = form
    site.fill(*others)
    add_slurm(site, job, *others, join=None)
    publish(site)
    assert delivered_records(site) == 4
    remove(source_database(site))
    show(site)
    site.fill(job)
    site.save()
    site.publish()
    assert delivered_records(site) == 4


def delivered_records(site: ConfiguredSite) -> int:
    """Jobs that the receiver counts, each record of CAR by itself."""
    return counted(site) if "summary" in site.config["targets"]["out"]["format"] else len(arrived(site))


def test_batch_systems_name_the_database_of_a_ce_by_two_paths(site: ConfiguredSite) -> None:
    """Others publish its jobs. It is loaded once, and holds up neither."""
    ours, first, second = arex_jobs(3, 7200)
    site.fill(ours)
    database, link = site.folder / "ce9" / "accounting_v2.db", site.folder / "link.db"
    database.parent.mkdir()
    copyfile(site.database(), database)
    link.symlink_to(database)
    add_slurm(site, first, join=None, arc_databases=[str(database)])
    text = sacct_text.text([{**line, "Cluster": "hpc2"} for line in lines([second])])
    (site.folder / "other.txt").write_bytes(text)
    entry = {"type": "slurm", "name": "b", "cluster": "hpc2", "files": [str(site.folder / "other.txt")]}
    site.config["source"].append(entry | {"arc_databases": [str(link)], "arc_wait_s": "1h"})
    publish(site)
    numbers = {"77", *(str(job.local_job_id) for job in (ours, first, second))}
    assert {row["id"] for row in arrived(site)} == numbers


def test_whoever_does_not_read_to_the_end_lets_go_of_the_ledger(site: ConfiguredSite) -> None:
    site.fill(*arex_jobs(3, 7200))
    publish(site)
    add_slurm(site)
    site.save()
    live = configured_site(site.path, threading.Event())
    with closing(live.ledgers.history()) as history:
        parts = history.delivered(Epoch(0))
        assert len(next(parts)) == 3
        parts.close()
        assert list(parts) == []


@pytest.mark.slow
def test_killed_at_any_statement_it_is_done_again(site: ConfiguredSite) -> None:
    before, *others = arex_jobs(12, 7200)
    site.fill(before, *others)
    publish(site)
    again = restarted(site, before)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("DELETE FROM AAR WHERE JobID = ?", (others[3].job_id,))
    add_slurm(site, before, again, *others, join=None)
    publish(site)
    killed = 0
    for fatal in range(1, 160, 4):
        remove(source_database(site))
        ended = publish_in_a_child(site, state=str(site.state.parent), fatal=fatal)
        killed += ended["status"] == -signal.SIGKILL
        publish(site)
        assert rows(site) == ["77"], fatal
    assert killed > 20


@pytest.fixture
def hosts(site: ConfiguredSite, postgres: Any, tmp_path: Path) -> Callable[[str], None]:
    """Which of two hosts, with one ledger in PostgreSQL, the site is from now on."""

    def become(name: str) -> None:
        site.config |= {
            "state": postgres.address,
            "instance": instance_of(site.state),
            "state_directory": str(tmp_path / name),
        }

    return become


@pytest.mark.slow
@pytest.mark.parametrize("read_between", [True, False])
@pytest.mark.parametrize("joins", [None, "arex"])
def test_what_the_other_host_of_a_pair_delivered(
    site: ConfiguredSite, hosts: Callable[[str], None], joins: str | None, read_between: bool
) -> None:
    """Read between: this host sees the job while A-REX has its first number, when sacct tells nothing."""
    first, *jobs = arex_jobs(8, 7200)
    hosts("one")
    site.fill(first)
    add_slurm(site, first, join=joins)
    publish(site)
    hosts("other")
    publish(site)
    mishap = site.folder / "sacct" / "mishap"
    mishap.write_text("fail")
    site.fill(*jobs)
    publish(site, 66)
    hosts("one")
    if read_between:
        publish(site, 66)
    again = restarted(site, jobs[2])
    mishap.unlink()
    slurm(site, first, again, *jobs)
    told = publish(site)
    assert "forgotten by A-REX since: 1 run, not counted again" in told
    assert rows(site) == ["77"]
    assert counted(site) == 9 + 1
