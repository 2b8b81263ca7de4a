"""Histories of HTCondor, trap by trap; whole, in pieces, beside a writer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.sources.files.site_mapping import UnmappedVo
from publisher.sources.htcondor.records import ROUTED, Routed
from tests.arex_databases import Writer, generate
from tests.sources.mortal_imports import child
from tests.support.batch_stores import asked, records
from tests.support.condor_history import (
    BEGIN,
    CLUSTER,
    NOW,
    SCHEDD,
    Ad,
    Raw,
    ad,
    ads_of,
    rolling,
    run_import,
    spool,
    text,
    usage,
    write,
)
from tests.support.gridengine_files import jobs
from tests.support.patience import PATIENCE_S

NEVER = {"JobStatus": 3, "NumJobStarts": 0, "RemoteWallClockTime": 0.0, "CompletionDate": 0}


def content(database: Path) -> list[tuple[Any, ...]]:
    """Everything of every job but its file."""
    return sorted(((*job[:9], *job[10:]) for job in records(database)), key=str)


def imported(tmp_path: Path, one: Mapping[str, object], **options: Any) -> dict[str, Any]:
    """The one job that this ad gives."""
    database = tmp_path / "imported.db"
    report = run_import(database, write(tmp_path / "history.12.0", text(one)), **options)
    assert (report.bad, report.held, report.troubles) == (0, 0, [])
    ((job_id, found),) = jobs(database).items()
    (job,) = records(database)
    tokens = [("vomsfqan", fqan) for fqan in job.fqans]
    fqan = job.fqans[0] if job.fqans else ""
    own = {"JobID": job_id, "FQAN": fqan, "Benchmark": job.benchmark, "tokens": tokens, "extra": dict(found["extra"])}
    return found | own


def skipped(tmp_path: Path, one: Mapping[str, object], **options: Any) -> dict[str, int]:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", rolling([one])), **options)
    assert (report.imported, report.bad, report.troubles) == (0, 0, [])
    return dict(report.skipped)


# What an ad says


def test_a_job(tmp_path: Path) -> None:
    found = imported(tmp_path, ad(12))
    submitted = BEGIN + 720
    assert found["JobID"] == f"{CLUSTER}:{SCHEDD}#12.0#{submitted}"
    assert (found["LocalJobID"], found["Status"], found["ExitCode"]) == ("12.0", "completed", 0)
    assert (found["SubmitTime"], found["StartTime"], found["EndTime"]) == (submitted, submitted + 30, submitted + 130)
    assert (found["UsedWalltime"], found["UsedCPUUserTime"], found["UsedCPUKernelTime"]) == (100, 80, 10)
    assert (found["CPUCount"], found["NodeCount"], found["GPUCount"]) == (2, 1, 0)
    assert (found["UsedMemory"], found["UsedVirtMem"]) == (8420, 12_288)
    assert found["extra"] == {
        "lrms": "condor",
        "localuser": "ada:group_atlas",
        "jobname": "analysis",
        "projectname": "group_atlas",
        "nodenames": "node1.example.org",
    }


@pytest.mark.parametrize(
    ("attributes", "status", "exit_code"),
    [
        ({}, "completed", 0),
        ({"ExitCode": 1}, "failed", 1),
        ({"ExitBySignal": True, "ExitSignal": 9, "ExitCode": None}, "failed", 137),
        ({"JobStatus": 3, "CompletionDate": 0, "ExitCode": None}, "aborted", None),
    ],
)
def test_how_a_job_ended(tmp_path: Path, attributes: dict[str, Any], status: str, exit_code: int | None) -> None:
    found = imported(tmp_path, ad(**attributes))
    assert (found["Status"], found["ExitCode"], found["UsedWalltime"]) == (status, exit_code, 100)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (NEVER, "never ran"),
        ({"JobStatus": 1}, "not over (JobStatus 1)"),
        ({"JobUniverse": 7}, "ran on the submitting machine (scheduler or local universe)"),
        ({"JobUniverse": 12}, "ran on the submitting machine (scheduler or local universe)"),
        ({"JobUniverse": 9, "GridResource": "arc https://ce.example.net"}, "ran elsewhere (grid universe, arc)"),
        ({"JobUniverse": 9, "GridResource": "EC2 https://cloud.example.net"}, "ran elsewhere (grid universe, ec2)"),
        ({"RoutedToJobId": "99.0"}, ROUTED),
    ],
)
def test_what_is_no_usage(tmp_path: Path, attributes: dict[str, Any], reason: str) -> None:
    assert skipped(tmp_path, ad(**attributes)) == {reason: 1}


@pytest.mark.parametrize("resource", ["batch slurm", "condor schedd.example.org collector.example.org", "pbs", None])
def test_routes_to_the_batch_system_of_a_ce_count(tmp_path: Path, resource: str | None) -> None:
    routed = ad(JobUniverse=9, GridResource=resource, RoutedFromJobId="99.0")
    assert imported(tmp_path, routed)["UsedWalltime"] == 100


def test_wall_time_is_that_of_all_attempts_without_suspension(tmp_path: Path) -> None:
    start = BEGIN + 100
    attributes: Ad = {"NumJobStarts": 3, "JobStartDate": start, "JobCurrentStartDate": start + 5000}
    attributes |= {"CompletionDate": start + 6000, "RemoteWallClockTime": 2500.6, "CumulativeSuspensionTime": 500}
    attributes |= {"CumulativeRemoteUserCpu": 1900.0, "RemoteUserCpu": 700.0, "CumulativeRemoteSysCpu": 20.0}
    found = imported(tmp_path, ad(**attributes))
    assert (found["UsedWalltime"], found["StartTime"], found["EndTime"]) == (2001, start, start + 6000)
    assert (found["UsedCPUUserTime"], found["UsedCPUKernelTime"]) == (1900, 20)
    assert found["extra"]["quantities"] == "SecsPreSuspend=500"


@pytest.mark.parametrize(
    ("attributes", "gpus", "cores"),
    [
        ({"RequestGPUs": 1, "GPUsProvisioned": 2}, 2, 2),
        ({"RequestGpus": 1}, 1, 2),
        ({"RequestGPUs": 1, "GPUsProvisioned": 0}, 0, 2),
        ({"RequestGPUs": Raw("MyGpus + 1")}, None, 2),
        ({"CpusProvisioned": None, "RequestCpus": 8}, 0, 8),
        ({"CpusProvisioned": None, "RequestCpus": Raw("Cores * 2")}, 0, 0),
        # Of a parallel job each of its hosts, whose CPU time is in one sum.
        ({"JobUniverse": 11, "MaxHosts": 3, "RequestGPUs": 2}, 6, 6),
        ({"JobUniverse": 11, "MaxHosts": None, "RequestGPUs": 2}, 2, 2),
        # More than any job has, and sums of such do not fit 64 bits.
        ({"JobUniverse": 11, "MaxHosts": 2**31 - 1, "RequestGPUs": 2}, None, 0),
    ],
)
def test_gpus_and_cores(tmp_path: Path, attributes: dict[str, Any], gpus: int | None, cores: int) -> None:
    found = imported(tmp_path, ad(**attributes))
    assert (found["GPUCount"], found["CPUCount"]) == (gpus, cores)


@pytest.mark.parametrize(("gpus", "told"), [(2, "Tesla V100  16GB =2"), (0, None)])
def test_the_model_of_gpus_is_that_of_the_machine(tmp_path: Path, gpus: int, told: str | None) -> None:
    found = imported(tmp_path, ad(GPUsProvisioned=gpus, MachineAttrGPUs_DeviceName0="Tesla V100, 16GB="))
    assert found["extra"].get("gpumodels") == told


def test_cpu_time_that_is_not_in_the_ad_is_unknown(tmp_path: Path) -> None:
    one = ad(RemoteUserCpu=None, RemoteSysCpu=None)
    assert imported(tmp_path, one)["extra"]["cputime"] == "unknown"
    report = run_import(tmp_path / "other.db", tmp_path / "history.12.0")
    assert report.notes == [
        "1 job of unknown CPU time (the ad has none, or only that of the last of several starts): "
        "published as unknown, and as 0 to APEL"
    ]


FQAN = "/atlas/Role=a,b/Capability=NULL"


def test_the_identity_of_a_proxy(tmp_path: Path) -> None:
    proxy: Ad = {"x509userproxysubject": "/DC=org/CN=Ada, A.", "x509UserProxyVOName": "atlas"}
    proxy |= {"x509UserProxyFirstFQAN": FQAN, "x509UserProxyFQAN": f"/DC=org/CN=Ada, A.,{FQAN},/atlas"}
    found = imported(tmp_path, ad(**proxy))
    assert (found["User"], found["VO"], found["FQAN"]) == ("/DC=org/CN=Ada, A.", "atlas", FQAN)
    assert found["tokens"] == [("vomsfqan", FQAN)]


def test_the_identity_of_a_token(tmp_path: Path) -> None:
    token: Ad = {"orig_AuthTokenSubject": "1f2e", "orig_AuthTokenIssuer": "https://cms-auth.example.org/"}
    found = imported(tmp_path, ad(**token, orig_AuthTokenGroups="/cms,/cms/ALARM"))
    assert (found["User"], found["VO"], found["FQAN"]) == ("https://cms-auth.example.org/1f2e", "cms", "/cms")
    assert found["tokens"] == [("vomsfqan", "/cms"), ("vomsfqan", "/cms/ALARM")]


def test_maps_of_the_site_come_first(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ada /DC=org/CN=Mapped\n")
    (tmp_path / "groups").write_text("group_atlas atlas.local\n")
    maps = {"user_map": tmp_path / "users", "group_vo_map": tmp_path / "groups"}
    found = imported(tmp_path, ad(x509userproxysubject="/CN=Ada", x509UserProxyVOName="atlas"), **maps)
    assert (found["User"], found["VO"]) == ("/DC=org/CN=Mapped", "atlas.local")


def test_a_job_that_nobody_names_a_vo_for_is_its_groups(tmp_path: Path) -> None:
    one = ad(AcctGroup=None, AccountingGroup="group_bio.lab.ada")
    assert imported(tmp_path, one, unmapped_vo=UnmappedVo.LOCAL)["VO"] == "local-group_bio.lab"


@pytest.mark.parametrize(
    ("attributes", "benchmark"),
    [
        ({}, ""),
        ({"MachineAttrApelScaling0": 1.25}, "HEPscore23:19"),
        ({"MachineAttrApelScaling0": Raw("undefined")}, ""),
        ({"MachineAttrApelScaling0": 0.0}, ""),
        ({"MachineAttrApelSpecs0": Raw("[ HEPSPEC = 12.5; SI2K = 3125 ]")}, "HEPSPEC:12.5"),
        ({"MachineAttrApelSpecs0": Raw("[ HEPSPEC = 12.5; HEPscore23 = 13.25 ]")}, "HEPscore23:13.25"),
        ({"MachineAttrApelSpecs0": Raw("[ SI2K = 1 ]"), "MachineAttrApelScaling0": 2}, "HEPscore23:30.4"),
        ({"MachineAttrApelSpecs0": Raw("[ HEPSPEC = 1e30 ]")}, ""),
    ],
)
def test_the_benchmark_of_the_machine(tmp_path: Path, attributes: dict[str, Any], benchmark: str) -> None:
    assert imported(tmp_path, ad(**attributes), average_benchmark="HEPscore23:15.2")["Benchmark"] == benchmark


# Routed jobs


def test_both_ads_of_a_routed_job_count_once(tmp_path: Path) -> None:
    at_ce = ad(5, GlobalJobId="ce#5.0#1", RoutedToJobId="77.0")
    in_batch = ad(77, RoutedFromJobId="ce#5.0#1")
    history = write(tmp_path / "history", rolling([at_ce, in_batch]))
    for routed, number in ((Routed.BATCH, "77.0"), (Routed.CE, "5.0")):
        database = tmp_path / f"{routed}.db"
        report = run_import(database, history, routed=routed)
        assert (report.imported, report.skipped, report.notes) == (1, {ROUTED: 1}, [])
        assert [one["LocalJobID"] for one in jobs(database).values()] == [number]


def test_a_note_when_all_jobs_were_routed(tmp_path: Path) -> None:
    ads = [ad(number, RoutedToJobId="77.0") for number in (1, 2)]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", rolling(ads)))
    assert report.notes == [
        "2 jobs were routed, and none is counted here: import the batch system's history, or set "
        "importers.htcondor.routed: ce"
    ]
    write(tmp_path / "history", rolling([*ads, ad(3)]))
    run_import(tmp_path / "imported.db", tmp_path / "history")
    write(tmp_path / "history", rolling([*ads, ad(3), ad(4, RoutedToJobId="78.0")]))
    assert run_import(tmp_path / "imported.db", tmp_path / "history").notes == []  # nothing is wrong


def test_jobs_of_an_arc_ce_are_left_to_it(tmp_path: Path) -> None:
    """A-REX writes the number of the cluster with a word behind it."""
    theirs = list(generate(1, 3, NOW - timedelta(days=30), NOW))
    with Writer(tmp_path / "arex.db", schema=2) as arex:
        arex.write_all(theirs)
        for job, local_id in zip(theirs, (f"1.{SCHEDD}", "2.condor", "3.0"), strict=True):
            arex.connection.execute(
                "UPDATE AAR SET LocalJobID = ?, SubmitTime = ?, EndTime = ? WHERE JobID = ?",
                (local_id, BEGIN, BEGIN + 5000, job.job_id),
            )
    history = write(tmp_path / "history", rolling([ad(number) for number in (1, 2, 3, 4)] + [ad(1, 1)]))
    report = run_import(tmp_path / "imported.db", history, arc_databases=(tmp_path / "arex.db",), arc_wait_s=0)
    assert report.skipped == {"an ARC CE publishes it": 3}
    assert sorted(one["LocalJobID"] for one in jobs(tmp_path / "imported.db").values()) == ["1.1", "4.0"]


# What cannot be understood


@pytest.mark.parametrize(
    ("content_", "reason"),
    [
        (text(ad(GlobalJobId=None)), "lacks a readable GlobalJobId"),
        (text(ad(RemoteWallClockTime=None)), "lacks a readable RemoteWallClockTime"),
        (text(ad(RemoteWallClockTime=None, NumJobStarts=None)), "has neither RemoteWallClockTime nor NumJobStarts"),
        (text(ad(RemoteWallClockTime=-5.0)), "lacks a readable RemoteWallClockTime"),
        (text(ad(JobStatus=None)), "has no JobStatus"),
        (text(ad(CompletionDate=None, EnteredCurrentStatus=None)), "lacks a readable CompletionDate"),
        (text(ad(1)) + text(ad(2)), "holds more than one job"),
        (b"\x00\xff\n", "is not `Name = value`"),
        (b"A = " + b"x" * 3_000_000 + b"\n", "is too long"),
    ],
)
def test_an_ad_that_cannot_be_understood_is_set_aside_and_stops_no_other(
    tmp_path: Path, content_: bytes, reason: str
) -> None:
    history = content_ + b"*** Offset = 0\n" + rolling([ad(3)])
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", history))
    assert (report.imported, report.bad) == (1, 1)
    assert reason in report.bad_lines[0].reason


HOSTILE = [
    'a"b',
    "a\\",
    'a\\"b',
    "*** Offset = 0",
    "a\tb",
    "\x1b[31m",
    "caf\udce9",
    "ö\u2028",
    "x" * 5000,
    "= 4",
    "'",
    " ",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_change_nothing_else(tmp_path: Path, name: str) -> None:
    ads = [ad(1, JobBatchName=name, Owner=name, Environment=name, x509UserProxyVOName=name), ad(2)]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", rolling(ads)))
    assert (report.imported, report.bad) == (2, 0)
    assert {one["UsedWalltime"] for one in jobs(tmp_path / "imported.db").values()} == {100}


def test_a_text_with_the_ends_of_lines_forges_nothing(tmp_path: Path) -> None:
    """HTCondor writes them as they are."""
    one = ad(1, Environment="a=1\nRemoteWallClockTime = 0\nOwner = root")
    assert imported(tmp_path, one)["UsedWalltime"] == 100


def test_a_line_of_100_mb_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with path.open("wb") as file:
        file.write(b'GlobalJobId = "x"\nArgs = "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"\n*** Offset = 0\n' + rolling([ad(3)]))
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.bad) == (1, 1)
    assert report.bad_lines[0].length > 100_000_000


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", b"a,b,c\n\n" * 50))
    assert "is not a history of HTCondor" in report.troubles[0]


# One file a job


def test_a_directory_is_read_once(tmp_path: Path) -> None:
    ads = ads_of(1, 1200)
    directory, database = spool(tmp_path / "per-job", ads), tmp_path / "imported.db"
    first = run_import(database, directory)
    assert (first.imported, first.files, first.bad, first.held) == (usage(ads)[0], 1200, 0, 0)
    for each in directory.iterdir():
        each.chmod(0)  # which root can read all the same
    again = run_import(database, directory)
    assert (again.files, again.lines, again.imported, again.duplicates, again.notes) == (1200, 0, 0, 0, [])
    spool(directory, ads_of(2, 5, first=5000))
    assert run_import(database, directory).lines == 5


def test_files_that_are_named_one_by_one_are_read_once(tmp_path: Path) -> None:
    files, database = sorted(spool(tmp_path / "per-job", [ad(1), ad(2)]).iterdir()), tmp_path / "imported.db"
    assert run_import(database, *files).imported == 2
    again = run_import(database, *files)
    assert (again.files, again.lines) == (2, 0)
    write(files[0], text(ad(3)))
    assert run_import(database, files[0].parent).imported == 1


def test_files_that_vanish_are_forgotten_without_a_word(tmp_path: Path) -> None:
    directory, database = spool(tmp_path / "per-job", [ad(1), ad(2), ad(3)]), tmp_path / "imported.db"
    run_import(database, directory)
    before = content(database)
    for number in (1, 2):
        (directory / f"history.{number}.0").unlink()
    report = run_import(database, directory)
    assert (report.notes, report.troubles) == ([], [])
    spool(directory, [ad(1)])  # somebody restored it
    assert run_import(database, directory).duplicates == 1
    assert content(database) == before
    with asked(database) as connection:
        assert connection.execute("SELECT count(*) FROM CondorJobFile WHERE Name <> ''").fetchone() == (2,)


def test_nothing_of_htcondors_is_changed(tmp_path: Path) -> None:
    directory = spool(tmp_path / "per-job", ads_of(1, 50))
    write(directory / "history", rolling(ads_of(2, 50, first=1000)))
    before = {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in directory.iterdir()}
    run_import(tmp_path / "imported.db", directory)
    assert {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in directory.iterdir()} == before


def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    directory, database = spool(tmp_path / "per-job", []), tmp_path / "imported.db"
    whole = text(ad(1))
    path, now = directory / "history.1.0", int(NOW.timestamp())
    ends = (0, 40, len(whole) // 2, whole.index(b"CompletionDate"), len(whole) - 3)
    for end in ends:
        write(path, whole[:end])
        os.utime(path, (now, now))
        report = run_import(database, directory)
        assert (report.imported, report.bad, report.held, report.troubles) == (0, 0, 1, []), end
    write(path, whole)
    os.utime(path, (now, now))
    assert run_import(database, directory).imported == 1


def test_a_number_that_is_written_in_part_waits(tmp_path: Path) -> None:
    """Cut there, the ad is whole but for the digits of its last number."""
    directory, database = spool(tmp_path / "per-job", []), tmp_path / "imported.db"
    one = {name: value for name, value in ad(1).items() if name != "RemoteWallClockTime"}
    whole = text(one | {"RemoteWallClockTime": 3600})
    path, now = write(directory / "history.1.0", whole[:-3]), int(NOW.timestamp())
    os.utime(path, (now, now))
    report = run_import(database, directory)
    assert (report.imported, report.held) == (0, 1)
    write(path, whole)
    assert run_import(database, directory).imported == 1
    assert [job.wall_s for job in records(database)] == [3600]


def test_a_file_that_stays_torn_is_set_aside_once_and_read_when_it_is_whole(tmp_path: Path) -> None:
    directory, database = spool(tmp_path / "per-job", []), tmp_path / "imported.db"
    whole = text(ad(1))
    path = write(directory / "history.1.0", whole[:-3])
    os.utime(path, (BEGIN, BEGIN))
    assert [run_import(database, directory).bad for _ in range(2)] == [1, 0]
    write(path, whole)
    assert run_import(database, directory).imported == 1


def test_a_directory_without_histories(tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", tmp_path)
    assert "has no files called history" in report.troubles[0]


# The rolling history


def test_an_ad_whose_last_line_is_not_there_waits(tmp_path: Path) -> None:
    path, database = tmp_path / "history", tmp_path / "imported.db"
    ads = ads_of(3, 40)
    whole = rolling(ads)
    rng = random.Random(4)
    for end in sorted(rng.sample(range(1, len(whole)), 25)):
        write(path, whole[:end])
        assert run_import(database, path).bad == 0
    write(path, whole)
    run_import(database, path)
    expected = tmp_path / "expected.db"
    run_import(expected, write(tmp_path / "whole", whole))
    assert content(database) == content(expected)
    assert len(content(database)) == usage(ads)[0]


@pytest.mark.parametrize("by_directory", [False, True])
def test_a_history_that_is_rotated_is_finished_first(tmp_path: Path, by_directory: bool) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    path, database = folder / "history", tmp_path / "imported.db"
    given = folder if by_directory else path
    ads = ads_of(5, 90)
    spool(folder, ads[:3])  # of one job each, beside it
    write(path, rolling(ads[:30]))
    run_import(database, given)
    write(path, rolling(ads[:60]))
    path.rename(folder / "history.20261121T110000")
    write(path, rolling(ads[60:]))
    report = run_import(database, given)
    assert (report.notes, report.troubles) == ([], [])
    wall = sum(job.wall_s for job in records(database))
    assert (len(content(database)), wall) == usage(ads)[:2]


WRITER = """
import sys, time
from pathlib import Path
from tests.support.condor_history import ads_of, rolling

folder = Path(sys.argv[1])
ads = ads_of(7, 400)
for begin in range(0, 400, 20):
    content = rolling(ads[begin:begin + 20])
    for at in range(0, len(content), 3001):
        with (folder / "history").open("ab") as file:
            file.write(content[at:at + 3001])
    if begin % 100 == 80:
        (folder / "history").rename(folder / f"history.20261121T1{begin:05}")
"""


def test_beside_a_writer_that_appends_and_rotates(tmp_path: Path) -> None:
    folder, database = tmp_path / "spool", tmp_path / "imported.db"
    folder.mkdir()
    write(folder / "history", b"")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
    while writer.poll() is None:
        assert run_import(database, folder).bad == 0
    assert writer.returncode == 0
    run_import(database, folder)
    wall = sum(job.wall_s for job in records(database))
    assert (len(content(database)), wall) == usage(ads_of(7, 400))[:2]


SPOOLER = """
import sys, time
from pathlib import Path
from tests.support.condor_history import ads_of, spool

for one in ads_of(12, 1500):
    spool(Path(sys.argv[1]), [one])
    time.sleep(0.0005)
"""
CLEANER = """
import sys
from pathlib import Path

while names := sorted(Path(sys.argv[1]).glob("history.*"))[:40]:
    for each in names:
        each.unlink()
"""


@pytest.mark.slow
def test_beside_a_schedd_that_writes_a_file_for_each_job(tmp_path: Path) -> None:
    directory, database = spool(tmp_path / "per-job", [ad(9999)]), tmp_path / "imported.db"
    writer = subprocess.Popen([sys.executable, "-c", SPOOLER, str(directory)])
    while writer.poll() is None:
        report = run_import(database, directory)
        assert (report.bad, report.held, report.troubles, report.notes) == (0, 0, [], [])
    assert writer.returncode == 0
    run_import(database, directory)
    assert len(content(database)) == usage(ads_of(12, 1500))[0] + 1


def test_beside_somebody_who_removes_files(tmp_path: Path) -> None:
    directory, database = spool(tmp_path / "per-job", ads_of(13, 1500)), tmp_path / "imported.db"
    run_import(database, directory)
    before = content(database)
    cleaner = subprocess.Popen([sys.executable, "-c", CLEANER, str(directory)])
    while cleaner.poll() is None:
        report = run_import(tmp_path / "other.db", directory)
        assert (report.bad, report.held) == (0, 0)
        assert not any("history." in trouble for trouble in report.troubles)
        assert run_import(database, directory).imported == 0
    assert cleaner.returncode == 0
    assert content(database) == before


# Once, twice, in pieces, killed


def test_the_same_jobs_from_either_kind_of_history_are_the_same(tmp_path: Path) -> None:
    ads = ads_of(8, 300)
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    run_import(one, spool(tmp_path / "per-job", ads))
    run_import(other, write(tmp_path / "history", rolling(ads)))
    assert content(one) == content(other)
    assert run_import(one, tmp_path / "history").duplicates == usage(ads)[0]
    assert content(one) == content(other)


def test_an_import_in_any_order_and_number_of_pieces_is_one(tmp_path: Path) -> None:
    ads = ads_of(9, 300)
    whole = tmp_path / "whole.db"
    run_import(whole, write(tmp_path / "whole", rolling(ads)))
    rng = random.Random(2)
    for attempt in range(3):
        shuffled = rng.sample(ads, len(ads))
        parts = [write(tmp_path / f"{attempt}.{at}", rolling(shuffled[at : at + 70])) for at in range(0, 300, 50)]
        database = tmp_path / f"{attempt}.db"
        for part in [*parts, *rng.sample(parts, 3)]:
            assert run_import(database, part).troubles == []
        assert content(database) == content(whole)


SET_UP = """
from publisher.sources.htcondor import importer
from publisher.sources.files import line_importer
from tests.support.condor_history import run_import

importer._BATCH_FILES = line_importer._BATCH_PIECES = 20
"""


@pytest.mark.parametrize("kind", ["per-job", "history"])
@pytest.mark.slow
def test_an_import_that_is_killed_goes_on(tmp_path: Path, kind: str) -> None:
    ads = ads_of(10, 900)
    path = spool(tmp_path / kind, ads) if kind == "per-job" else write(tmp_path / kind, rolling(ads))
    expected, database = tmp_path / "expected.db", tmp_path / "imported.db"
    run_import(expected, path)
    rng = random.Random(1)
    ends = [child(SET_UP, database, rng.randrange(1, 120), path).wait(PATIENCE_S) for _ in range(10)]
    assert ends[:5] == [-signal.SIGKILL] * 5
    assert run_import(database, path).troubles == []
    assert content(database) == content(expected)


def test_sums_are_those_of_the_ads(tmp_path: Path) -> None:
    ads = ads_of(11, 500)
    run_import(tmp_path / "imported.db", write(tmp_path / "history", rolling(ads)))
    found = records(tmp_path / "imported.db")
    walls = [(job.wall_s, job.wall_s * (job.cpu_count or 0), job.wall_s * (job.gpu_count or 0)) for job in found]
    assert (len(found), *map(sum, zip(*walls, strict=True))) == usage(ads)


def test_users_and_groups_that_are_left_out(tmp_path: Path) -> None:
    history = write(tmp_path / "history", rolling([ad(1, Owner="root"), ad(2, AcctGroup="group_test"), ad(3)]))
    report = run_import(tmp_path / "imported.db", history, exclude_users=("root",), exclude_groups=("*test",))
    assert report.imported == 1
    assert report.skipped == {"left out by exclude_users": 1, "left out by exclude_groups": 1}
