"""Jobs of A-REX joined to what their batch system tells of them, through the real command line."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.faults.crash_nursery import publish as publish_in_a_child
from tests.support import condor_history, sacct_text
from tests.support.batch_stores import records
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite
from tests.support.stand_in_sacct import install

BEGUN = int(time.time())
NOT_OF_THE_KEY = {"NumberOfJobs", "WallDuration", "CpuDuration", "EarliestEndTime", "LatestEndTime"}
TRES = "billing=2,cpu=2,gres/gpu=2,gres/gpu:a100=2,mem=4G,node=1"


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    spool = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "start": "all", "every": "1s"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"out": spool})
    made.config["records"]["statuses"] = ["completed", "failed"]
    made.config["source"] = [made.config["source"], slurm(made)]
    return made


def slurm(site: ConfiguredSite, *jobs: SampleJob, **keys: object) -> dict[str, Any]:
    """An entry whose sacct knows these jobs of A-REX, and the job 77 that nobody else has."""
    show(site, *jobs)
    command = [sys.executable, "-S", str(Path(install.__code__.co_filename)), str(site.folder / "sacct")]
    entry = {"type": "slurm", "name": "hpc", "cluster": sacct_text.CLUSTER, "command": command, "look_back_s": "2d"}
    return entry | {"join": "arex", "arc_wait_s": "1h"} | keys


def show(site: ConfiguredSite, *jobs: SampleJob, **columns: object) -> None:
    own = sacct_text.job(77, Submit=BEGUN - 9000, AllocTRES="cpu=1,node=1")
    install(site.folder / "sacct", [own, sacct_text.step(own), *lines(jobs, **columns)])


def lines(jobs: Iterable[SampleJob], **columns: object) -> Iterable[dict[str, object]]:
    for job in jobs:
        begun = job.end_time - 40 - job.wall_s
        number = int(job.local_job_id or 0)
        given = {"Submit": begun, "ElapsedRaw": job.wall_s, "AllocTRES": TRES, "ConsumedEnergyRaw": 9000} | columns
        line = sacct_text.job(number, **given)
        yield from (line, sacct_text.step(line, NTasks=4))


def restarted(site: ConfiguredSite, job: SampleJob, number: int = 4711) -> SampleJob:
    """A-REX runs it again, under another number of the batch system."""
    later = replace(job.moved_to(job.end_time + 1000), local_job_id=str(number), wall_s=500)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        changed = "UPDATE AAR SET LocalJobID = ?, EndTime = ?, UsedWalltime = ? WHERE JobID = ?"
        connection.execute(changed, (later.local_job_id, later.end_time, later.wall_s, job.job_id))
    return later


def arex_jobs(count: int, ago_s: int, *, young: int = 0, **values: Any) -> list[SampleJob]:
    """Jobs that ended so long ago, a second apart, of which A-REX knows neither memory nor nodes; the first may be young."""
    now = int(time.time())
    day = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)
    made = [job for job in generate(3, 5 * count + 20, *day) if job.local_job_id and job.status == "completed"][:count]
    unknown: dict[str, Any] = {"memory_kib": 0, "virtual_memory_kib": 0, "node_names": (), "lrms": "SLURM"}
    found = []
    for place, job in enumerate(made):
        ended = now - place - (120 if place < young else ago_s)
        found.append(replace(job.moved_to(ended), submit_time=ended - job.wall_s - 500, **unknown | values))
    return found


def messages(site: ConfiguredSite) -> list[Path]:
    """In the order in which they came."""
    files = [path for path in (site.folder / "out").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def arrived(site: ConfiguredSite) -> list[dict[str, str]]:
    """Each record in the order of messages."""
    text = "".join(path.read_text() for path in messages(site))
    names = {"id": "LocalJobId", "gpus": "ConsumableResource", "memory": "Memory", "host": "Host", "nodes": "NodeCount"}
    found = []
    for record in re.findall(r"<UsageRecord>.*?</UsageRecord>|<urf:UsageRecord>.*?</urf:UsageRecord>", text, re.DOTALL):
        values = {key: re.search(rf"<(?:urf:)?{name}\b[^>]*>([^<]*)<", record) for key, name in names.items()}
        found.append({key: match[1] for key, match in values.items() if match})
    return found


def total(run: Any) -> int:
    assert run.status == 0, run.err
    records: int = run.json["targets"]["out"]["records"]
    return records


def test_jobs_of_arex_get_what_only_the_batch_system_knows(site: ConfiguredSite) -> None:
    jobs = arex_jobs(3, 7200)
    site.fill(*jobs)
    show(site, *jobs)
    assert total(site.publish()) == 4
    rows = {row["id"]: row for row in arrived(site)}
    assert set(rows) == {"77", *(str(job.local_job_id) for job in jobs)}
    assert "gpus" not in rows.pop("77")
    assert {(row["gpus"], row["memory"], row["host"]) for row in rows.values()} == {("2", "8420", "node1")}
    assert total(site.publish()) == 0


def status(site: ConfiguredSite) -> dict[str, Any]:
    found: dict[str, Any] = site.run("status", "--json").json["targets"]["out"]
    return found


def regular(site: ConfiguredSite) -> int:
    """A round that looks at what is new, and not at every row."""
    return total(site.run("publish", "--json"))


@pytest.mark.slow
def test_a_job_waits_for_its_run_and_goes_with_it(site: ConfiguredSite) -> None:
    jobs = arex_jobs(3, 120)
    site.fill(*jobs)
    show(site, jobs[0])
    assert total(site.publish()) == 2
    assert (status(site)["awaited"], status(site)["pending"]) == (2, 0)
    assert "target out: 2 jobs wait for the batch system's record (join_wait)" in site.run("status").out
    explained = site.run("explain", jobs[1].job_id).out
    assert "open: it is over, and waits for its batch system's record (join_wait)" in explained
    time.sleep(1.1)
    assert regular(site) == 0
    show(site, *jobs)
    time.sleep(1.1)
    assert regular(site) == 2
    assert status(site)["awaited"] == 0
    rows = arrived(site)
    assert len(rows) == 4
    assert {row["id"]: row.get("gpus") for row in rows if row["id"] != "77"} == {
        str(job.local_job_id): "2" for job in jobs
    }
    assert total(site.publish()) == 0


def test_rule_8_a_job_goes_without_its_run_in_the_end_and_is_changed_when_that_comes(site: ConfiguredSite) -> None:
    jobs = arex_jobs(3, 7200)
    site.fill(*jobs)
    assert total(site.publish()) == 4
    assert status(site)["awaited"] == 0
    assert not any("gpus" in row or "memory" in row for row in arrived(site) if row["id"] != "77")
    show(site, *jobs[:2])
    assert total(site.publish()) == 2
    changed = arrived(site)[4:]
    assert sorted((row["id"], row["gpus"]) for row in changed) == sorted(
        (str(job.local_job_id), "2") for job in jobs[:2]
    )
    assert total(site.publish()) == 0


def test_a_job_that_ends_in_a_far_future_is_set_aside_at_once(site: ConfiguredSite) -> None:
    site.fill(*arex_jobs(1, -10 * 86_400))
    assert site.publish().status == 65
    assert (status(site)["awaited"], status(site)["quarantined"]) == (0, 1)


def test_what_arex_knows_is_not_overwritten(site: ConfiguredSite) -> None:
    jobs = arex_jobs(1, 7200, memory_kib=4711, node_names=("wn1",), nodes=3)
    site.fill(*jobs)
    show(site, *jobs)
    assert total(site.publish()) == 2
    (row,) = [row for row in arrived(site) if row["id"] != "77"]
    assert (row["memory"], row["host"], row["nodes"], row["gpus"]) == ("4711", "wn1", "3", "2")


def test_a_number_that_came_again_joins_the_run_of_its_time(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    earlier = replace(job, end_time=job.end_time - 3 * 86_400)
    requeued = lines([replace(job, end_time=job.end_time - 900)], AllocTRES="cpu=2,gres/gpu=1")
    others = lines([earlier], AllocTRES="cpu=2,gres/gpu=8")
    install(site.folder / "sacct", [*others, *lines([job]), *requeued])
    site.config["source"][1]["look_back_s"] = "9d"
    assert total(site.publish()) == 1 + 1
    gpus = {row["gpus"] for row in arrived(site) if row["id"] == job.local_job_id}
    assert gpus == {"2", "8"}  # the earlier one is a job of the batch system alone


def test_a_job_of_another_batch_system_is_neither_joined_nor_waits(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 60, lrms="condor")
    site.fill(job)
    assert total(site.publish()) == 2
    assert not any("gpus" in row for row in arrived(site))


def test_explain_names_where_each_value_came_from(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 7200, virtual_memory_kib=5)
    site.fill(job)
    show(site, job)
    assert total(site.publish()) == 2
    run = site.run("explain", job.job_id, "--json")
    (found,) = run.json["explanations"]
    number = f"hpc1:{job.local_job_id}:{job.end_time - 40 - job.wall_s}"
    origin = f"joined from {number} of source hpc"
    rules = {value["name"]: value["rule"] for value in found["values"]}
    assert [rules[name] for name in ("GPUs", "MemoryReal", "Host")] == [origin] * 3
    assert origin not in (rules["MemoryVirtual"], rules["Processors"])
    assert {one["field"] for one in found["imported"]} == {
        *("gpu_count", "gpu_models", "memory_kib", "hosts", "quantities")
    }
    assert found["fate"] == "delivered"
    assert f"gpu_count: {origin}" in site.run("explain", job.job_id).out


def test_formulas_and_exports_have_what_is_joined(site: ConfiguredSite) -> None:
    jobs = arex_jobs(2, 7200)
    site.fill(*jobs)
    show(site, *jobs)
    site.config["records"]["charges"] = [{"formula": "gres_gpu * 1000 + NumTasks + energy / 90000", "unit": "h"}]
    assert total(site.publish()) == 3
    day = ("--from", "2020-01", "--to", "2030-01")
    done = site.run("charge", *day, "--jobs", "--json").json
    assert sorted(one["amount"] or one["reason"] for one in done["charges"]) == [
        "2004.1",
        "2004.1",
        "gres_gpu is not known",
    ]
    exported = site.run("export", "--format", "json-lines", "-b", "2020-01-01")
    assert exported.status == 0, exported.err
    assert [json.loads(line)["gpu_count"] for line in exported.out.splitlines()].count(2) == 2


def test_usage_has_the_gpus_of_joined_jobs(site: ConfiguredSite) -> None:
    jobs = arex_jobs(3, 7200, projects=("nn9",))
    site.fill(*jobs)
    show(site, *jobs)
    day = {"valid_from": "2020-01", "valid_to": "2030-01"}
    site.config["records"]["allocations"] = [{"project": "nn9", "gpu_hours": 1000, **day}]
    site.config["records"]["power"] = {"watts_per_core": 0}
    assert total(site.publish()) == 4
    run = site.run("report", "--from", "2020-01", "--to", "2030-01", "--csv", str(site.folder / "csv"))
    assert run.status == 0, run.err
    (row,) = csv.DictReader((site.folder / "csv" / "statuses.csv").read_text().splitlines())
    gpu_s = sum(2 * job.wall_s for job in jobs)
    assert (row["jobs"], row["gpu_jobs"], row["gpu_s"], row["measured_wh"]) == ("4", "3", str(gpu_s), "7.5")
    used = list(csv.DictReader((site.folder / "csv" / "allocations.csv").read_text().splitlines()))
    assert [float(one["used"]) for one in used] == [pytest.approx(gpu_s / 3600, abs=1e-6)]


def test_htcondor_knows_a_job_under_several_names(site: ConfiguredSite) -> None:
    now = BEGUN - 7200
    jobs = arex_jobs(3, 7200, lrms="condor")
    names = ["12.0", "13.condor", f"14.{condor_history.SCHEDD}"]
    jobs = [replace(job, local_job_id=name) for job, name in zip(jobs, names, strict=True)]
    site.fill(*jobs)
    gpus = {"RequestGPUs": 1, "GPUsProvisioned": 2}
    ads = [condor_history.ad(int(name[:2]), QDate=now - 200, **gpus) for name in names]
    history = condor_history.write(site.folder / "history", condor_history.rolling(ads))
    entry = {"type": "htcondor", "cluster": condor_history.CLUSTER, "history": str(history), "join": "arex"}
    site.config["source"][1] = entry
    assert total(site.publish()) == 3
    assert {row["id"]: row["gpus"] for row in arrived(site)} == dict.fromkeys(names, "2")


def test_accelerator_records_are_made_of_joined_jobs(site: ConfiguredSite) -> None:
    site.config["targets"]["out"]["format"] = "apel-accelerator-0.1"
    jobs = arex_jobs(3, 7200)
    site.fill(*jobs)
    show(site, *jobs)
    assert site.publish().status == 0
    text = "".join(path.read_text() for path in messages(site))
    assert "a100" in text
    assert total(site.publish()) == 0


def test_accelerators_that_went_to_the_same_place_are_in_no_jobs_way(site: ConfiguredSite) -> None:
    """They are counted apart there, and a target that got another name has the same receiver."""
    jobs = site.config["targets"]["out"]
    site.config["targets"] = {"gpus": jobs | {"format": "apel-accelerator-0.1"}, "out": jobs}
    made = arex_jobs(3, 7200)
    site.fill(*made)
    show(site, *made)
    assert site.run("publish", "--target", "gpus").status == 0
    assert total(site.publish()) == 4
    site.config["targets"] = {"new": jobs}
    site.save()
    again = site.publish()
    assert (again.status, again.json["targets"]["new"]["records"]) == (0, 0)
    site.config["targets"] = {"accelerators": jobs | {"format": "apel-accelerator-0.1"}}
    site.save()
    again = site.publish()
    assert (again.status, again.json["targets"]["accelerators"]["records"]) == (0, 0)


@pytest.mark.parametrize("joins", [True, False])
def test_the_first_run_of_a_restarted_job_stays_its_ces(site: ConfiguredSite, joins: bool) -> None:
    if not joins:
        del site.config["source"][1]["join"]
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    show(site, job)
    assert total(site.publish()) == 2
    show(site, job, restarted(site, job))
    assert total(site.publish()) == 1
    assert [row["id"] for row in arrived(site)[2:]] == ["4711"]


@pytest.mark.slow
def test_jobs_of_a_ce_that_others_publish_are_left_to_it(site: ConfiguredSite) -> None:
    """No entry of A-REX names its database, and only its numbers count; also after a restart there."""
    first, *jobs = arex_jobs(4, 7200)
    site.fill(first, *jobs)
    entry = slurm(site, first, *jobs, arc_databases=[str(site.database())])
    del entry["join"]
    site.config["source"] = [entry]
    assert total(site.publish()) == 1
    again = restarted(site, first)
    show(site, first, again, *jobs)
    time.sleep(1.1)
    assert regular(site) == 0
    assert [row["id"] for row in arrived(site)] == batch_rows(site) == ["77"]
    assert site.run("stats", "--json").json["jobs"] == 1
    site.database().rename(site.folder / "away.db")
    show(site, first, again, *jobs, *arex_jobs(5, 7300)[4:])
    run = site.publish()
    assert (run.status, "there is no such file; correct arc_databases" in run.err) == (66, True)
    assert batch_rows(site) == ["77"]


def test_a_dry_run_has_a_job_whose_run_waited(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 7200)
    site.config["source"][1]["arc_wait_s"] = "1d"
    show(site, job)
    site.fill()
    assert total(site.publish()) == 0
    site.fill(job)
    assert total(site.publish("--dry-run")) == 1
    assert site.run("stats", "--json").json["jobs"] == 1
    assert total(site.publish()) == 1


def test_what_a_rex_changed_is_looked_at_before_a_run_is_nobodys(site: ConfiguredSite) -> None:
    """A restarted job keeps its row, which regular rounds compare once a day."""
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    show(site, job)
    assert total(site.publish()) == 2
    show(site, job, restarted(site, job))
    time.sleep(1.1)
    assert regular(site) == 1
    assert batch_rows(site) == ["77"]
    assert [row["id"] for row in arrived(site)[2:]] == ["4711"]


@pytest.mark.parametrize("form", ["car", "apel-job-0.4", "apel-summary-0.4"])
@pytest.mark.parametrize("joins", [True, False])
def test_a_first_run_that_sacct_tells_of_too_late_stays_its_ces(site: ConfiguredSite, joins: bool, form: str) -> None:
    """sacct failed in the round that published the run; A-REX, which restarted the job, has another number by now."""
    site.config["targets"]["out"]["format"] = form
    if not joins:
        del site.config["source"][1]["join"]
    before, restarts, *others = arex_jobs(41, 7200, nodes=1, cpus=1)
    site.fill(before)
    assert site.publish().status == 0
    site.fill(restarts, *others)
    mishap = site.folder / "sacct" / "mishap"
    mishap.write_text("fail")
    assert site.publish().status == 66
    again = restarted(site, restarts)
    mishap.unlink()
    show(site, before, restarts, again, *others)
    assert site.publish().status == 0
    jobs = 1 + 1 + len(others) + 2
    assert batch_rows(site) == ["77"]
    if form == "car":  # those that are joined now go again
        assert len({row["id"] for row in arrived(site)}) == jobs
    if form == "apel-summary-0.4":
        assert sum(totals(site).values()) == jobs


def batch_rows(site: ConfiguredSite) -> list[str]:
    """The numbers of the runs that are jobs of the batch system."""
    return [job.local_id for job in records(site.state.with_name("jobs.db")) if job.row.database == "hpc"]


@pytest.mark.slow
def test_first_runs_stay_their_ces_whatever_ends_the_rounds(site: ConfiguredSite) -> None:
    """Jobs are restarted when they were delivered, and sacct tells of them only in the end."""
    site.config["targets"]["out"]["batch_records"] = 3
    del site.config["source"][1]["join"]
    site.save()
    jobs, rng, killed = arex_jobs(60, 7200), random.Random(19), 0
    first, again = list[SampleJob](), list[SampleJob]()
    (site.folder / "sacct" / "mishap").write_text("fail")
    for step in range(0, 60, 5):
        site.fill(*jobs[step : step + 5])
        for _ in range(2):
            ended = publish_in_a_child(site, state=str(site.state.parent), fatal=rng.randrange(1, 1600))
            killed += ended["status"] == -signal.SIGKILL
        delivered = {row["id"] for row in arrived(site)} - {job.local_job_id for job in first}
        restarts = [job for job in jobs if job.local_job_id in delivered][:2]
        first += restarts
        again += [restarted(site, job, 4711 + step + place) for place, job in enumerate(restarts)]
    assert (killed > 5, len(again) > 10) == (True, True)
    (site.folder / "sacct" / "mishap").unlink()
    show(site, *jobs, *again)
    assert site.publish().status == 0
    assert total(site.publish()) == 0
    assert batch_rows(site) == ["77"]
    every = [job.local_job_id for job in (*jobs, *again)]
    assert Counter(row["id"] for row in arrived(site)) == Counter({"77": 1, **dict.fromkeys(map(str, every), 1)})


def test_accelerators_of_both_runs_of_a_restarted_job_count(site: ConfiguredSite) -> None:
    """The server has a row for each JobID and month, so the later run has an id of its own, now and ever."""
    site.config["targets"]["out"]["format"] = "apel-accelerator-0.1"
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    show(site, job)
    assert total(site.publish()) == 1
    show(site, restarted(site, job))
    assert total(site.publish()) == 1
    told = site.run("explain", job.job_id).out
    assert "counts beside this one" in told
    day = time.strftime("%Y-%m-%d", time.gmtime(job.end_time))
    republished = ("republish", "--from", day, "--to", "this-month", "--yes", "--exact", "--json")
    assert total(site.run(*republished)) == 2
    objects = "".join(path.read_text() for path in messages(site))
    found = re.findall(r'"AssociatedRecord": "([^"]*)".*"AvailableDuration": ([0-9]+)', objects)
    (first, one), (later, other) = sorted(set(found), key=lambda each: len(each[0]))
    assert (int(one), int(other)) == (job.wall_s, 500)
    assert (first, later.startswith(f"{job.job_id}-"), later in told) == (job.job_id, True, True)


def test_live_jobs_are_joined_as_slurm_reported_them(site: ConfiguredSite) -> None:
    """Text of a real sacct; GPUs as its AllocTRES has them, of the last run of each job."""
    folder = os.environ.get("PUBLISHER_SAMPLES")
    if not folder:
        pytest.skip("PUBLISHER_SAMPLES is not set")
    path = Path(folder) / "slurm" / "sacct-22.05-x1f.txt"
    head, *rest = [line.split("\x1f") for line in path.read_text().split("\n")]
    rows = [dict(zip(head, line, strict=True)) for line in rest if len(line) == len(head) and line[0].isdigit()]
    last = {row["JobIDRaw"]: row for row in rows if row["ElapsedRaw"] != "0" and row["State"] != "RESIZING"}
    jobs = []
    for job, row in zip(arex_jobs(len(last), 0), last.values(), strict=True):
        ended = int(datetime.fromisoformat(row["End"]).replace(tzinfo=UTC).timestamp())
        wall_s = int(row["ElapsedRaw"])
        job = replace(job.moved_to(ended + 5), submit_time=ended - wall_s - 60, wall_s=wall_s)
        jobs.append(replace(job, local_job_id=row["JobIDRaw"]))
    site.fill(*jobs)
    entry = {"type": "slurm", "cluster": sacct_text.CLUSTER, "files": [str(path)], "join": "arex", "time_zone": "UTC"}
    site.config["source"][1] = entry
    site.config["records"]["statuses"] = ["completed", "failed"]
    assert site.publish().status == 0
    gpus = {row["id"]: row.get("gpus", "0") for row in arrived(site)}
    expected = {
        number: next((tres[9:] for tres in row["AllocTRES"].split(",") if tres.startswith("gres/gpu=")), "0")
        for number, row in last.items()
    }
    assert {number: gpus[number] for number in expected} == expected
    assert Counter(expected.values())["2"] > 1


# In totals


def totals(site: ConfiguredSite) -> dict[tuple[str, str], int]:
    """Jobs by numbers of nodes and cores, as a receiver that replaces rows by their key has them."""
    rows: dict[tuple[str, str, str], int] = {}
    for path in messages(site):
        for block in path.read_text().split("%%"):
            values = dict(re.findall(r"^(\w+): (.*)$", block, re.MULTILINE))
            if "NumberOfJobs" in values:
                key = {name: value for name, value in values.items() if name not in NOT_OF_THE_KEY}
                rows[values["NodeCount"], values["Processors"], str(key)] = int(values["NumberOfJobs"])
    found: Counter[tuple[str, str]] = Counter()
    for (nodes, cores, _), count in rows.items():
        found[nodes, cores] += count
    return dict(found)


def summed(site: ConfiguredSite) -> None:
    site.config["targets"]["out"]["format"] = "apel-summary-0.4"


@pytest.mark.slow
def test_totals_count_a_job_once_when_it_waited(site: ConfiguredSite) -> None:
    summed(site)
    made = arex_jobs(40, 7200, young=10, nodes=1, cpus=1)
    jobs, young = made[10:], made[:10]
    site.fill(*made)
    show(site, *jobs[:20], *young[:4])
    assert total(site.publish()) > 0
    assert totals(site) == {("1", "1"): 34, ("1", "2"): 1}
    assert status(site)["awaited"] == 6
    show(site, *jobs[:20], *young)
    time.sleep(1.1)
    assert regular(site) > 0
    assert totals(site) == {("1", "1"): 40, ("1", "2"): 1}
    assert status(site)["awaited"] == 0
    show(site, *jobs, *young)
    assert site.publish().status == 0  # what the others got changes no total
    assert totals(site) == {("1", "1"): 40, ("1", "2"): 1}
    assert total(site.publish()) == 0


def test_a_number_of_cores_that_comes_late_empties_the_old_row(site: ConfiguredSite) -> None:
    summed(site)
    jobs = arex_jobs(12, 7200, nodes=1, cpus=0)
    site.fill(*jobs)
    show(site, *jobs[:5])
    assert total(site.publish()) > 0
    assert totals(site) == {("1", "0"): 7, ("1", "2"): 6}
    show(site, *jobs)
    assert site.publish().status == 0
    assert totals(site) == {("1", "0"): 0, ("1", "2"): 13}
    assert total(site.publish()) == 0


# Read by others


def test_a_backlog_that_another_process_reads_is_joined_too(site: ConfiguredSite) -> None:
    jobs = arex_jobs(150, 7200)
    site.config["source"][0]["page_rows"] = 5
    site.fill(*jobs)
    show(site, *jobs)
    assert total(site.publish()) == 151
    assert [row["gpus"] for row in arrived(site) if row["id"] != "77"] == ["2"] * 150
    assert total(site.publish()) == 0


def test_republish_and_sync_see_the_same_jobs(site: ConfiguredSite) -> None:
    jobs = arex_jobs(5, 7200)
    site.fill(*jobs)
    show(site, *jobs)
    assert total(site.publish()) == 6
    run = site.run("republish", "--from", "2020-01", "--to", "2030-01", "--yes", "--json")
    assert run.status == 0, run.err
    rows = arrived(site)
    assert len(rows) == 12
    assert all(row["gpus"] == "2" for row in rows if row["id"] != "77")
    assert total(site.publish()) == 0
    check = site.run("sync", "--check")
    assert check.status == 0, check.err


def test_a_delivered_job_does_not_wait_when_it_is_republished(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 120)
    site.fill(job)
    site.config["source"][1]["join_wait"] = 0
    assert total(site.publish()) == 2
    site.config["source"][1]["join_wait"] = "1h"
    site.save()
    time.sleep(1.1)  # a message of the same second and content would be the same
    run = site.run("republish", "--from", "2020-01", "--to", "2030-01", "--yes", "--json")
    assert run.status == 0, run.err
    assert [row["id"] for row in arrived(site)].count(str(job.local_job_id)) == 2
    assert total(site.publish()) == 0


def test_two_systems_with_one_number_are_not_guessed(site: ConfiguredSite) -> None:
    (job,) = arex_jobs(1, 7200)
    site.fill(job)
    show(site, job)
    other = site.folder / "other.txt"
    other.write_bytes(sacct_text.text([{**line, "Cluster": "hpc2"} for line in lines([job])]))
    entry = {"type": "slurm", "name": "b", "cluster": "hpc2", "files": [str(other)], "join": "arex"}
    site.config["source"].append(entry)
    for each in site.config["source"][1:]:
        each["arc_databases"] = [str(site.database())]
    assert total(site.publish()) == 2
    assert not any("gpus" in row for row in arrived(site))
    explained = site.run("explain", job.job_id).out
    assert "joined: nothing: runs of the sources b and hpc have this number and time" in explained


def test_statistics_see_what_is_joined(site: ConfiguredSite) -> None:
    jobs = [*arex_jobs(3, 7200, cpus=0), *arex_jobs(9, 3 * 86_400)[3:]]
    site.fill(*jobs)
    show(site, *jobs[:5])
    site.config["source"][1]["look_back_s"] = "9d"
    assert total(site.publish()) == 10
    gpu_s = sum(2 * job.wall_s for job in jobs[:5])
    found = site.run("stats", "--json").json
    assert (found["jobs"], found["gpu_jobs"], found["gpu_s"]) == (10, 5, gpu_s)
    assert site.run("stats", "--filter-gpus", "--json").json["jobs"] == 5
    by_page = site.run("stats", "--filter-extra", "lrms", "SLURM", "--json").json
    assert (by_page["jobs"], by_page["gpu_s"]) == (9, gpu_s)
    shown = site.run("job", "info", jobs[0].job_id, "--json").json
    assert (shown["gpus"], shown["cores"], shown["memory_kib"]) == (2, 2, 8420)
    extra = {each["key"]: each["value"] for each in shown["extra"]}
    assert "energy=9000" in extra["quantities"]
    assert extra["nodenames"] == "node1"
    run = site.run("report", "--from", "2020-01", "--to", "2030-01", "--format", "terminal", "--csv", str(site.folder))
    assert run.status == 0, run.err
    assert f"of 5 jobs, {100 * 5 / 10:.1f}" in run.out


def test_statistics_count_a_job_of_both_once(site: ConfiguredSite) -> None:
    """A-REX tells of it when it is a job of the batch system already."""
    *jobs, other = arex_jobs(5, 7200)
    site.fill(other)
    show(site, *jobs)
    assert total(site.publish()) == 6
    site.fill(*jobs)
    assert site.publish().status == 65
    assert site.run("stats", "--json").json["jobs"] == 6
    assert "counts there" in site.run("job", "info", jobs[0].job_id).out
    run = site.run("report", "--from", "2020-01", "--to", "2030-01", "--format", "terminal")
    assert run.status == 0, run.err
    assert re.search("^Jobs +6 ", run.out, re.MULTILINE)


# Whatever ends it


@pytest.mark.slow
def test_killed_at_any_moment_each_job_goes_once_and_with_its_run(site: ConfiguredSite) -> None:
    jobs = arex_jobs(60, 120)
    site.config["targets"]["out"]["batch_records"] = 7
    site.save()
    rng, killed = random.Random(5), 0
    for step in range(0, 60, 5):
        site.fill(*jobs[step : step + 5])
        show(site, *jobs[: max(0, step - 10)])  # the batch system is late
        for _ in range(2):
            ended = publish_in_a_child(site, state=str(site.state.parent), fatal=rng.randrange(1, 150))
            killed += ended["status"] == -signal.SIGKILL
    assert killed > 3
    show(site, *jobs)
    assert site.publish().status == 0
    assert total(site.publish()) == 0
    rows = arrived(site)
    assert Counter(row["id"] for row in rows) == Counter({"77": 1} | {str(job.local_job_id): 1 for job in jobs})
    assert all(row["gpus"] == "2" for row in rows if row["id"] != "77")
