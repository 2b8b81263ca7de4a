"""Totals at the receiver are those of the raw files, however these came and whatever ended the rounds."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from publisher.jobs.store import remove_store
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.faults.crash_nursery import publish as publish_in_a_child
from tests.support import condor_history, gridengine_files, sacct_text, sonar_files
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

Unit = Sequence[dict[str, Any]]  # the lines of a job of Slurm, or an ad
MONTH = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
FORMATS = ("car", "apel-job-0.4", "apel-summary-0.4")


@dataclass(frozen=True)
class System:
    """A batch system: its entry but for the key of what is read, its jobs, their text, and what our reader must sum up."""

    entry: dict[str, Any]
    key: str
    units: list[Unit]
    text: Callable[[Sequence[Unit]], bytes]
    sums: Callable[[bytes], Counter[str]]
    grid: bool = False  # every other job is one of A-REX, which tells of it before or after the batch system


def slurm() -> System:
    """Jobs with their steps."""
    units: list[list[dict[str, Any]]] = []
    for line in sacct_text.jobs_of(31, 240):
        if "." in str(line["JobIDRaw"]):
            units[-1].append(line)
        else:
            units.append([line])
    entry = {"type": "slurm", "cluster": sacct_text.CLUSTER}
    return System(entry, "files", list(units), lambda some: sacct_text.text(chain(*some)), sums_of_sacct)


def joined() -> System:
    """The same beside A-REX."""
    made = slurm()
    return replace(made, entry=made.entry | {"join": "arex", "join_wait": 0}, grid=True)


def grid_jobs(units: Sequence[Unit]) -> list[SampleJob]:
    """As A-REX would have them, of runs that are the only ones with their number, and used the machine."""
    samples = (job for job in generate(4, 2000, *MONTH) if job.status == "completed" and job.local_job_id)
    numbers = Counter(str(unit[0]["JobIDRaw"]) for unit in units)
    found = []
    for unit in units[::2]:
        line = {name: str(value) for name, value in unit[0].items()}
        if numbers[line["JobIDRaw"]] == 1 and line["ElapsedRaw"] != "0":
            wall_s, ended = int(line["ElapsedRaw"]), int(line["End"])
            cpu_s = (milliseconds(line["UserCPU"]) + milliseconds(line["SystemCPU"]) + 500) // 1000
            used: dict[str, Any] = {
                "wall_s": wall_s,
                "cpu_user_s": cpu_s,
                "cpu_kernel_s": 0,
                "cpus": int(line["AllocCPUS"]),
            }
            job = replace(next(samples).moved_to(ended), local_job_id=line["JobIDRaw"], lrms="SLURM", **used)
            found.append(replace(job, submit_time=int(line["Submit"]) - 5))
    return found


def sums_of_sacct(content: bytes) -> Counter[str]:
    head, *lines = [line.split("|") for line in content.decode().splitlines()]
    sums: Counter[str] = Counter()
    for row in (dict(zip(head, line, strict=True)) for line in lines):
        if row["JobIDRaw"].isdigit() and (row["ElapsedRaw"] != "0" or row["AllocTRES"]):
            cpu_s = (milliseconds(row["UserCPU"]) + milliseconds(row["SystemCPU"]) + 500) // 1000
            add(sums, int(row["ElapsedRaw"]), cpu_s, int(row["AllocCPUS"]))
    return sums


def milliseconds(text: str) -> int:
    clock, _, fraction = text.partition(".")
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds * 1000 + int(f"{fraction:0<3}"[:3])


def htcondor() -> System:
    """Ads of a rolling history."""
    units = [[ad] for ad in condor_history.ads_of(31, 240)]
    entry = {"type": "htcondor", "cluster": condor_history.CLUSTER}
    return System(entry, "history", list(units), lambda some: condor_history.rolling(chain(*some)), sums_of_ads)


def sums_of_ads(content: bytes) -> Counter[str]:
    sums: Counter[str] = Counter()
    for ad in re.split(r"^\*\*\* .*\n", content.decode(), flags=re.MULTILINE)[:-1]:
        values: dict[str, str] = dict(re.findall(r"^(\w+) = (.*)$", ad, re.MULTILINE))
        wall_s = round(float(values["RemoteWallClockTime"])) - int(values["CumulativeSuspensionTime"])
        if float(values["RemoteWallClockTime"]) and "RoutedToJobId" not in values and values["JobUniverse"] == "5":
            user_s = float(values.get("CumulativeRemoteUserCpu") or values["RemoteUserCpu"])
            add(sums, wall_s, round(user_s + float(values["RemoteSysCpu"])), int(values["CpusProvisioned"]))
    return sums


def gridengine() -> System:
    """Serial, array and parallel jobs, each with the records of its tasks, in both forms."""
    units: list[list[dict[str, Any]]] = []
    for entry in gridengine_files.entries(31, 240):
        line = {"line": gridengine_files.colon(entry), "job": entry.job}
        if units and units[-1][0]["job"] == entry.job:
            units[-1].append(line)
        else:
            units.append([line])
    entry_of = {"type": "gridengine", "cluster": gridengine_files.CLUSTER}
    return System(entry_of, "paths", list(units), lambda some: joined_lines(chain(*some)), sums_of_accounting)


def joined_lines(some: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(each["line"] for each in some)


def sums_of_accounting(content: bytes) -> Counter[str]:
    """Records of tasks (column 42) add CPU time to the run of their job, which began with them."""
    cpu_ms: Counter[tuple[str, str, str]] = Counter()
    runs: dict[tuple[str, str, str], tuple[int, int]] = {}
    for fields in (line.split(":") for line in content.decode().splitlines()):
        run = fields[5], fields[35], fields[9]
        if fields[9] != "0":
            cpu_ms[run] += milliseconds(fields[36])
            if fields[41] == "NONE":
                runs[run] = int(fields[10]) - int(fields[9]), int(fields[34])
    sums: Counter[str] = Counter()
    for run, (wall_s, slots) in runs.items():
        add(sums, wall_s, (cpu_ms[run] + 500) // 1000, slots)
    return sums


def sonar() -> System:
    """What a cluster's collector told every five minutes."""
    units = [[{"line": each}] for each in sonar_files.collections(31, 60)]
    entry = {"type": "sonar", "cluster": sonar_files.CLUSTER}
    return System(entry, "paths", list(units), lambda some: joined_lines(chain(*some)), sums_of_envelopes)


def sums_of_envelopes(content: bytes) -> Counter[str]:
    """Of each run that has an end; CPU time is that of the job, or of its steps where that is more."""
    jobs: dict[tuple[int, str], dict[str, Any]] = {}
    steps: dict[tuple[int, str], dict[str, int]] = {}
    for envelope in documents(content.decode()):
        for told in envelope.get("data", {}).get("attributes", {}).get("slurm_jobs", ()):
            run = told["job_id"], told.get("start_time", "")
            if "job_step" in told:
                steps.setdefault(run, {})[told["job_step"]] = told["sacct"]["AveCPU"]
            elif run[1]:
                jobs[run] = jobs.get(run, {}) | told
    sums: Counter[str] = Counter()
    for run, told in jobs.items():
        if "end_time" in told:
            used = told["sacct"]
            cpu_s = max(used.get("UserCPU", 0) + used.get("SystemCPU", 0), sum(steps.get(run, {}).values()))
            add(sums, used["ElapsedRaw"], cpu_s, 4)
    return sums


def documents(text: str) -> Iterator[dict[str, Any]]:
    at, decoder = 0, json.JSONDecoder()
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        at += 1
        yield found


def add(sums: Counter[str], wall_s: int, cpu_s: int, cores: int, jobs: int = 1) -> None:
    sums.update({"jobs": jobs, "wall": wall_s, "cpu": cpu_s, "core wall": wall_s * cores})


def received(site: SiteUnderTest, form: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in site.table().rows("Summaries" if "summary" in form else "JobRecords"):
        jobs, wall, cpu, cores = (
            int(str(row.get(name, 1))) for name in ("NumberOfJobs", "WallDuration", "CpuDuration", "Processors")
        )
        add(sums, wall, cpu, cores, jobs)
    return sums


def begin(site: SiteUnderTest, entry: dict[str, Any], jobs: Sequence[SampleJob], sums: Counter[str]) -> None:
    """The entry becomes a source; before that A-REX has these jobs, if any, restarts some, and forgets their first numbers."""
    arex = site.config["source"]
    site.config["source"] = [arex] if jobs else [entry]
    site.save()
    if not jobs:
        return
    site.fill(*jobs)
    assert site.publish().status == 0
    for job in jobs[:8]:
        with closing(sqlite3.connect(site.database())) as connection, connection:
            change = "UPDATE AAR SET LocalJobID = ?, EndTime = EndTime + 1000 WHERE JobID = ?"
            connection.execute(change, (f"9{job.local_job_id}", job.job_id))
        add(sums, job.wall_s, job.cpu_user_s, job.cpus)
    site.config["source"] = [arex, entry]
    site.save()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("system", [slurm, htcondor, gridengine, sonar, joined])
def test_totals_are_those_of_the_raw_files(
    system: Callable[[], System], form: str, tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    """In pieces, torn, out of order, overlapping, beside a writer, twice, and with rounds that are killed.

    A-REX restarts some jobs before the batch system becomes a source, whose database is removed twice.
    """
    made, rng = system(), random.Random(7)
    folder = tmp_path / "raw"
    folder.mkdir()
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    reads: Any = str(folder / "*") if made.key == "history" else [str(folder / "*")]
    of_grid = grid_jobs(made.units) if made.grid else []
    rng.shuffle(of_grid)
    site.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    site.config["targets"]["egi"] |= {"format": form, "batch_records": 20}
    units = made.units
    expected = made.sums(made.text(units))
    begin(site, made.entry | {made.key: reads}, [of_grid.pop() for _ in range(20 if made.grid else 0)], expected)

    def arex_tells(count: int) -> None:
        if made.grid:
            site.fill(*(of_grid.pop() for _ in range(min(count, len(of_grid)))))

    def published() -> None:
        """What one of them told of after the other had counted it is set aside."""
        assert site.publish().status in ((0, 65) if made.grid else (0,))

    def killed_rounds(count: int) -> int:
        """Before some statement on a database of ours."""
        ends = [
            publish_in_a_child(site, state=str(site.state.parent), fatal=rng.randrange(1, 600)) for _ in range(count)
        ]
        return sum(ended["status"] == -signal.SIGKILL for ended in ends)

    torn = made.text(units[:80])
    store = site.state.with_name("jobs.db")
    first, *ends = sorted(rng.sample(range(300, len(torn)), 3))
    (folder / "first").write_bytes(torn[:first])
    published()
    remove_store(store)
    for end in (first, *ends):
        (folder / "first").write_bytes(torn[:end])
        published()
        arex_tells(10)
    (folder / "third").write_bytes(made.text(units[140:200]))
    kills = killed_rounds(3)
    (folder / "first").write_bytes(torn)
    (folder / "second").write_bytes(made.text(units[60:150]))
    kills += killed_rounds(3)
    arex_tells(10)
    growing = made.text(units[190:])

    def write() -> None:
        with (folder / "fourth").open("ab", buffering=0) as file:
            for at in range(0, len(growing), 701):
                file.write(growing[at : at + 701])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        published()
        arex_tells(5)
    writer.join()
    remove_store(store)
    (folder / "whole again").write_bytes(made.text(rng.sample(units, len(units))))
    kills += killed_rounds(2)
    assert kills > 3
    arex_tells(len(of_grid))
    published()
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert received(site, form) == expected
    set_aside = site.run("status", "--json").json["targets"]["egi"]["quarantined"]
    assert (set_aside > 0) == made.grid
    assert not made.grid or set_aside < len(grid_jobs(units)), "jobs of the CE are there in both orders"
