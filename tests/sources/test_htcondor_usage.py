"""What a job of HTCondor used, by the attributes of its ad."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from publisher.sources.htcondor.records import CondorRun, Routed, read_file
from tests.support.condor_history import BEGIN, Raw, ad, text


def run_of(**attributes: Any) -> CondorRun:
    piece = read_file(BytesIO(text(ad(**attributes))), Routed.BATCH)
    assert piece is not None
    (run,) = piece.records
    return run


EXPRESSION = Raw("JobIsRunning ? int(MATCH_EXP_JOB_GLIDEIN_Cpus) : OriginalCpus")


@pytest.mark.parametrize(
    ("attributes", "cores"),
    [
        ({"RequestCpus": 4}, 4),
        ({"RequestCpus": EXPRESSION}, 0),
        ({"RequestCpus": EXPRESSION, "MATCH_EXP_JOB_GLIDEIN_Cpus": "48"}, 48),
        ({"RequestCpus": EXPRESSION, "MATCH_EXP_JOB_GLIDEIN_Cpus": 48}, 48),
        ({"RequestCpus": EXPRESSION, "MATCH_EXP_JOB_GLIDEIN_Cpus": "Unknown"}, 0),
        ({"RequestCpus": EXPRESSION, "MATCH_EXP_JOB_GLIDEIN_Cpus": "9" * 30}, 0),
        ({"RequestCpus": EXPRESSION, "xcount": 8}, 8),
        ({"RequestCpus": EXPRESSION, "MachineAttrCpus0": 16}, 16),
        ({"RequestCpus": None, "xcount": 8}, 8),
        ({"RequestCpus": 1, "xcount": 8}, 8),
        ({"RequestCpus": 1, "MachineAttrCpus0": 16}, 16),
        ({"RequestCpus": 1, "MATCH_EXP_JOB_GLIDEIN_Cpus": "48"}, 48),
        ({"RequestCpus": 8, "xcount": 1}, 8),
        # A job of one core in a pilot of 48 has a slot of one.
        ({"RequestCpus": 1, "MATCH_EXP_JOB_GLIDEIN_Cpus": "48", "MachineAttrCpus0": 1}, 1),
        # What the slot gave is what the job had.
        ({"RequestCpus": 1, "xcount": 8, "MachineAttrCpus0": 16, "CpusProvisioned": 2}, 2),
        ({"RequestCpus": 8, "CpusProvisioned": 0}, 8),
    ],
)
def test_cores(attributes: dict[str, object], cores: int) -> None:
    assert run_of(**({"CpusProvisioned": None} | attributes)).cpus == cores


CUMULATIVE = {"CumulativeRemoteUserCpu": 900.0, "CumulativeRemoteSysCpu": 30.0}
LAST = {"RemoteUserCpu": 300.0, "RemoteSysCpu": 10.0}
FIRST_START = {"NumJobStarts": None, "JobStartDate": BEGIN, "JobCurrentStartDate": BEGIN}


@pytest.mark.parametrize(
    ("attributes", "cpu"),
    [
        (LAST, (300.0, 10.0)),
        (LAST | CUMULATIVE, (900.0, 30.0)),
        (LAST | CUMULATIVE | {"NumJobStarts": 3}, (900.0, 30.0)),
        (LAST | {"NumJobStarts": 3}, (None, None)),
        # Of one kind only, the sum would be too small.
        (LAST | {"NumJobStarts": 3, "CumulativeRemoteUserCpu": 900.0}, (None, None)),
        ({"RemoteUserCpu": 300.0, "RemoteSysCpu": None}, (None, None)),
        # A sum that is smaller than one of its parts was not kept up to date.
        (LAST | {"NumJobStarts": 3, "CumulativeRemoteUserCpu": 0.0, "CumulativeRemoteSysCpu": 0.0}, (None, None)),
        (LAST | {"CumulativeRemoteUserCpu": 0.0, "CumulativeRemoteSysCpu": 0.0}, (300.0, 10.0)),
        # Several starts that NumJobStarts does not show.
        (LAST | FIRST_START, (300.0, 10.0)),
        (LAST | FIRST_START | {"JobCurrentStartDate": BEGIN + 60}, (None, None)),
        (LAST | FIRST_START | {"JobRunCount": 2}, (None, None)),
        # A shadow that started no job used no CPU time.
        (LAST | {"NumJobStarts": 1, "JobRunCount": 2}, (300.0, 10.0)),
    ],
)
def test_cpu_time_is_that_of_all_starts_or_unknown(
    attributes: dict[str, object], cpu: tuple[float | None, float | None]
) -> None:
    run = run_of(**attributes)
    assert (run.user_s, run.system_s) == cpu


REMOVED = {"JobStatus": 3, "EnteredCurrentStatus": BEGIN + 2_000_000, "CompletionDate": BEGIN + 900}


@pytest.mark.parametrize(
    ("attributes", "ended", "removed", "completed"),
    [
        ({"LastJobStatus": 4}, 900, False, True),
        ({"LastJobStatus": 4, "ExitCode": 1}, 900, False, False),
        ({"LastJobStatus": 5, "CompletionDate": 0}, 2_000_000, True, False),
        ({"LastJobStatus": 2}, 2_000_000, True, False),
        ({}, 2_000_000, True, False),
        # Nothing says when it completed.
        ({"LastJobStatus": 4, "CompletionDate": 0}, 2_000_000, True, False),
    ],
)
def test_a_completed_job_that_is_removed_later_stays_completed(
    attributes: dict[str, object], ended: int, removed: bool, completed: bool
) -> None:
    run = run_of(**(REMOVED | attributes))
    assert (run.ended_at - BEGIN, run.removed, run.completed) == (ended, removed, completed)


@pytest.mark.parametrize(
    ("attributes", "group"),
    [
        ({"AccountingGroup": "group_bio.lab.ada"}, "group_bio.lab"),
        ({"AccountingGroup": "group_cms.prod.john.doe", "AcctGroupUser": "john.doe"}, "group_cms.prod"),
        ({"AccountingGroup": "group_cms.prod.john.doe", "Owner": "john.doe"}, "group_cms.prod"),
        # The user by whom a pilot has it accounted, not the owner.
        ({"AccountingGroup": "group_cms.a.b", "AcctGroupUser": "a.b", "Owner": "b"}, "group_cms"),
        ({"AccountingGroup": "group_cms.x.y", "AcctGroupUser": "other"}, "group_cms.x"),
        ({"AccountingGroup": "john.doe", "AcctGroupUser": "john.doe"}, ""),
        ({"AccountingGroup": "ada"}, ""),
        ({"AccountingGroup": "group_cms.nada"}, "group_cms"),
        ({"AccountingGroup": "group_cms.john.doe", "AcctGroup": "group_cms", "AcctGroupUser": "john.doe"}, "group_cms"),
        ({}, ""),
    ],
)
def test_the_accounting_group_is_without_its_user(attributes: dict[str, object], group: str) -> None:
    assert run_of(**({"AcctGroup": None, "AccountingGroup": None} | attributes)).group == group


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        ("slot1_1@wn1.example.org,slot1_2@wn1.example.org,slot1_1@wn2.example.org", 2),
        ("slot1@wn1.example.org, slot1@WN1.example.org,slot1@wn2", 2),
        ("wn1,wn2,wn3", 3),
        ("", 0),
        (None, 0),
    ],
)
def test_machines_of_a_parallel_job(hosts: str | None, nodes: int) -> None:
    """It has a slot for each of MaxHosts, and several of them may be one machine's."""
    run = run_of(JobUniverse=11, MaxHosts=3, AllRemoteHosts=hosts, CpusProvisioned=2)
    assert (run.nodes, run.cpus) == (nodes, 6)
