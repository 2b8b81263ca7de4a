"""Totals at the receiver are those of the raw files, however these came and whatever ended the rounds."""

from __future__ import annotations

import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.fake_ams.service import FakeAMS
from tests.faults.crash_nursery import publish as publish_in_a_child
from tests.support import condor_history, sacct_text
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

Unit = Sequence[dict[str, Any]]  # the lines of a job of Slurm, or an ad
FORMATS = ("car", "apel-job-0.4", "apel-summary-0.4")


@dataclass(frozen=True)
class System:
    """A batch system: its entry but for the key of what is read, its jobs, their text, and what our reader must sum up."""

    entry: dict[str, str]
    key: str
    units: list[Unit]
    text: Callable[[Sequence[Unit]], bytes]
    sums: Callable[[bytes], Counter[str]]


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
    return seconds * 1000 + int(fraction or 0)


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


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("system", [slurm, htcondor])
def test_totals_are_those_of_the_raw_files(
    system: Callable[[], System], form: str, tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    """In pieces, torn, out of order, overlapping, beside a writer, twice, and with rounds that are killed."""
    made, rng = system(), random.Random(7)
    folder = tmp_path / "raw"
    folder.mkdir()
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    reads: Any = [str(folder / "*")] if made.key == "files" else str(folder / "*")
    site.config["source"] = [made.entry | {made.key: reads}]
    site.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    site.config["targets"]["egi"] |= {"format": form, "batch_records": 20}
    site.save()
    units = made.units

    def killed_rounds(count: int) -> int:
        """Before some statement on a database of ours."""
        ends = [
            publish_in_a_child(site, state=str(site.state.parent), fatal=rng.randrange(1, 150)) for _ in range(count)
        ]
        return sum(ended["status"] == -signal.SIGKILL for ended in ends)

    torn = made.text(units[:80])
    for end in sorted(rng.sample(range(300, len(torn)), 3)):
        (folder / "first").write_bytes(torn[:end])
        assert site.publish().status == 0
    (folder / "third").write_bytes(made.text(units[140:200]))
    kills = killed_rounds(3)
    (folder / "first").write_bytes(torn)
    (folder / "second").write_bytes(made.text(units[60:150]))
    kills += killed_rounds(3)
    growing = made.text(units[190:])

    def write() -> None:
        with (folder / "fourth").open("ab", buffering=0) as file:
            for at in range(0, len(growing), 701):
                file.write(growing[at : at + 701])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert site.publish().status == 0
    writer.join()
    (folder / "whole again").write_bytes(made.text(rng.sample(units, len(units))))
    kills += killed_rounds(2)
    assert kills > 3
    assert site.publish().status == 0
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert received(site, form) == made.sums(made.text(units))
