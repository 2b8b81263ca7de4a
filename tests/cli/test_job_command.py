"""`job info|events|transfers`: what stands of a job, against the job as it truly was, with units and zones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.arex_databases import Event, RawRow, SampleJob, Schema, Transfer, TransferKind, generate, hostile
from tests.support.gridengine_files import Entry, colon
from tests.support.gridengine_files import write as write_accounting
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, Run

pytestmark = pytest.mark.some(2, of="schema")

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
BOTH: tuple[Schema, ...] = (1, 2)
OSLO = ZoneInfo("Europe/Oslo")

JOBS = list(generate(1, 120, START, END))
STAGED = next(job for job in JOBS if job.transfers and job.wn_instance and len(job.fqans) > 1)
KINDS = {TransferKind.DOWNLOAD: "download", TransferKind.CACHED: "cached", TransferKind.UPLOAD: "upload"}


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """No key is there: none is needed."""
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car"}}
    made = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    made.config["credentials"] |= {"certificate": "/nonexistent", "key": "/nonexistent"}
    return made


@pytest.fixture(params=BOTH)
def schema(request: pytest.FixtureRequest) -> Schema:
    return 1 if request.param == 1 else 2


def write(site: ConfiguredSite, jobs: Sequence[SampleJob | RawRow], schema: Schema = 2) -> None:
    site.fill(*jobs, schema=schema)


def job(site: ConfiguredSite, action: str, job_id: str, *words: str) -> Run:
    run = site.run("job", action, *words, "--", job_id)
    assert run.status == 0, run.err
    return run


def at(epoch: int | None) -> str | None:
    return None if epoch is None else datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def known(text: str | None) -> list[str]:
    return [] if text is None else [text]


def expected_info(sample: SampleJob, schema: Schema) -> dict[str, Any]:
    """What must be told of a finished job, but for where it stands."""
    started = [event.at for event in sample.events if event.key == "LRMSSTART"]
    extra = {
        "benchmark": sample.benchmark if schema == 1 else None,
        "clienthost": sample.client_host,
        "jobname": sample.job_name,
        "localuser": sample.local_user,
        "lrms": sample.lrms,
        "nodenames": ":".join(sample.node_names) or None,
        "projectname": sample.projects[0] if sample.projects else None,
        "systemsoftware": sample.system_software,
        "wninstance": sample.wn_instance,
    }
    fqans = [("mainfqan" if schema == 1 and not place else "vomsfqan", fqan) for place, fqan in enumerate(sample.fqans)]
    return {
        "job": sample.job_id,
        "elsewhere": [],
        "local_id": sample.local_job_id,
        "status": sample.status,
        "in_progress": False,
        "exit_code": sample.exit_code,
        "submit_time": at(sample.submit_time),
        "start_time": at(started[-1]) if started else None,
        "end_time": at(sample.end_time),
        "interface": sample.interface,
        "endpoint": sample.endpoint_url,
        "queue": sample.queue,
        "user": sample.user,
        "vo": sample.vo,
        "fqan": sample.fqans[0] if sample.fqans else "",
        "benchmark": sample.benchmark or "",
        "nodes": sample.nodes or None,
        "cores": sample.cpus or None,
        "gpus": None,
        "memory_kib": sample.memory_kib or None,
        "virtual_memory_kib": sample.virtual_memory_kib or None,
        "wall_s": sample.wall_s,
        "cpu_user_s": sample.cpu_user_s,
        "cpu_kernel_s": sample.cpu_kernel_s,
        "scratch_bytes": sample.scratch_bytes % 2**32,
        "stage_in_bytes": sample.stage_in_bytes % 2**32,
        "stage_out_bytes": sample.stage_out_bytes % 2**32,
        "rtes": list(sample.rtes),
        "attributes": [{"key": key, "value": value} for key, value in (*fqans, *sample.token_attributes)],
        "extra": [{"key": key, "value": value} for key, value in extra.items() if value is not None],
        "oddities": [],
    }


# info


@pytest.mark.slow
def test_every_value_of_a_job_is_told(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    for number, sample in enumerate(JOBS, start=1):
        told = job(site, "info", sample.job_id, "--json").json
        where = {"database": str(site.database(schema)), "record_id": number}
        assert told == expected_info(sample, schema) | where
    assert job(site, "info", STAGED.job_id, "-o", "json").json == job(site, "info", STAGED.job_id, "--json").json


def test_people_read_the_parts_that_they_ask_for(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    description = [str(text) for text in (STAGED.user, STAGED.vo, STAGED.queue, STAGED.local_job_id, STAGED.job_name)]
    description += [str(at(STAGED.submit_time)), str(at(STAGED.end_time)), STAGED.status, str(STAGED.wn_instance)]
    resources = [f"{STAGED.wall_s:,} s", f"{STAGED.cpu_user_s:,} s", f"{STAGED.memory_kib:,} KiB", "cores"]
    rtes = [f"runtime environment  {name}" for name in STAGED.rtes]
    tokens = [f"fqan: {fqan}" for fqan in STAGED.fqans]
    parts = {"description": description, "resources": resources, "rtes": rtes, "authtokens": tokens}
    for output, texts in parts.items():
        out = job(site, "info", STAGED.job_id, "-o", output).out
        assert [text for text in texts if text not in out] == []
        others = [text for name, some in parts.items() if name != output for text in some if len(text) > 8]
        assert [text for text in others if text in out] == []
    everything = job(site, "info", STAGED.job_id).out
    assert [text for texts in parts.values() for text in texts if text not in everything] == []
    assert job(site, "info", STAGED.job_id, "-o", "all").out == everything


def test_memory_is_in_kib_and_sizes_are_in_bytes(site: ConfiguredSite) -> None:
    """ARC 7.2 tells 1.5 GiB of memory as 1.5M."""
    write(
        site, [replace(STAGED, memory_kib=1_572_864, virtual_memory_kib=0, stage_in_bytes=3 * 2**30, scratch_bytes=17)]
    )
    lines = dict(
        line.split("  ", 1) for line in job(site, "info", STAGED.job_id, "-o", "resources").out.splitlines()[2:]
    )
    told = {name: text.strip() for name, text in lines.items()}
    assert told["memory"] == "1,572,864 KiB (1.5 GiB)"
    assert told["virtual memory"] == "unknown"
    assert told["staged in"] == "3,221,225,472 bytes (3.0 GiB)"
    assert told["scratch"] == "17 bytes"


@pytest.mark.parametrize("action", ["info", "events", "transfers"])
def test_a_job_in_progress_is_said_to_be(site: ConfiguredSite, schema: Schema, action: str) -> None:
    with site.arex(schema) as arex:
        arex.accept(STAGED)
    out = job(site, action, STAGED.job_id).out
    assert "it is in progress" in out
    assert "wall time" not in out
    told = job(site, action, STAGED.job_id, "--json").json
    assert told["in_progress"] is True
    if action == "info":
        assert (told["status"], told["end_time"], told["start_time"]) == ("in-progress", None, None)
        assert (told["submit_time"], told["user"]) == (at(STAGED.submit_time), STAGED.user)


@pytest.mark.parametrize("action", ["info", "events", "transfers"])
def test_an_unknown_job_is_an_error(site: ConfiguredSite, action: str) -> None:
    write(site, JOBS[:30])
    for words in (("nobody",), ("nobody", "--json"), ("",)):
        run = site.run("job", action, *words)
        assert (run.status, run.out) == (64, "")
        assert f"no job is called {words[0]!r}" in run.err
    ran = next(sample for sample in JOBS if sample.local_job_id)
    run = site.run("job", action, "--json", str(ran.local_job_id))
    assert run.status == 0
    assert run.json["job"] == ran.job_id


def test_a_job_is_told_from_the_database_in_which_it_counts(site: ConfiguredSite) -> None:
    first, second = JOBS[0], JOBS[1]
    with site.arex(1) as arex:
        arex.write(replace(first, status="failed"))
        arex.write(second)
    with site.arex(2) as arex:
        arex.write(first)
        arex.accept(second)
    told = job(site, "info", first.job_id, "--json").json
    assert (told["status"], told["database"]) == (first.status, str(site.database(2)))
    assert told["elsewhere"] == [str(site.database(1))]
    told = job(site, "info", second.job_id, "--json").json
    assert (told["status"], told["database"]) == (second.status, str(site.database(1)))
    assert str(site.database(2)) in job(site, "info", second.job_id).out


def test_a_job_of_another_system_has_its_own_start(site: ConfiguredSite) -> None:
    entry = Entry()
    accounting = write_accounting(site.folder / "accounting", [colon(entry)])
    site.config["importers"] = {"gridengine": {"cluster": "sge.example.org"}}
    del site.config["source"]
    site.save()
    assert site.run("import", "gridengine", str(accounting)).status == 0
    (job_id,) = site.run("stats", "-o", "jobids").out.splitlines()
    told = job(site, "info", job_id, "--json").json
    assert told["start_time"] == at(entry.started)
    assert told["end_time"] == at(entry.ended)
    assert "no events are recorded" in job(site, "events", job_id).out


# events


@pytest.mark.slow
def test_events_are_told_in_utc_and_as_they_are_stored(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    for sample in JOBS:
        told = job(site, "events", sample.job_id, "--json").json
        assert told["zone"] == "Europe/Oslo"
        stored = {
            (event.key, datetime.fromtimestamp(event.at, OSLO).strftime("%Y-%m-%d %H:%M:%S"), at(event.at))
            for event in sample.events
        }
        assert {(each["event"], each["local_time"], *each["utc"]) for each in told["events"]} == stored
        times = [each["utc"][0] for each in told["events"]]
        assert times == sorted(times)
    out = job(site, "events", STAGED.job_id).out
    ended = datetime.fromtimestamp(STAGED.end_time, OSLO).strftime("%Y-%m-%d %H:%M:%S")
    assert f"{at(STAGED.end_time)}  {ended}  FINISHED" in out
    assert "local times are in Europe/Oslo" in out
    del site.config["source"]["time_zone"]
    site.save()
    assert "in this host's zone" in job(site, "events", STAGED.job_id).out


def test_the_autumn_hour_is_told_by_the_job_s_life_or_twice(site: ConfiguredSite) -> None:
    """00:30 UTC is 02:30 in Oslo before the clocks go back on 25 October 2026, 01:30 UTC is 02:30 again after."""
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    again = first + timedelta(hours=1)
    early, late = int(first.timestamp()), int(again.timestamp())

    def at_once(job_id: str, submitted: int, ended: int, event: int) -> SampleJob:
        events = (Event(key="INLRMS", at=event), Event(key="FINISHED", at=ended))
        return replace(STAGED, job_id=job_id, submit_time=submitted, end_time=ended, events=events)

    write(
        site,
        [
            at_once("before", early - 9000, early + 60, early),
            at_once("after", late - 60, late + 9000, late),
            at_once("both", early - 9000, late + 9000, late),
        ],
    )
    told = {
        name: next(
            each["utc"]
            for each in job(site, "events", name, "--json").json["events"]
            if each["local_time"] == "2026-10-25 02:30:00"
        )
        for name in ("before", "after", "both")
    }
    assert told == {"before": [at(early)], "after": [at(late)], "both": [at(early), at(late)]}
    assert f"{at(early)} or {at(late)}" in job(site, "events", "both").out


def test_events_of_a_second_finish_are_told_once(site: ConfiguredSite) -> None:
    with site.arex() as arex:
        arex.write(STAGED)
        arex.finish_again(STAGED)
        again = arex.finish_again(STAGED, end_time=STAGED.end_time + 100)
    told = job(site, "events", STAGED.job_id, "--json").json["events"]
    assert [each["utc"] for each in told if each["event"] == "FINISHED"] == [
        [at(STAGED.end_time)],
        [at(again.end_time)],
    ]
    assert len(told) == len(STAGED.events) + 1
    assert len(job(site, "transfers", STAGED.job_id, "--json").json["transfers"]) == len(STAGED.transfers)


# transfers


@pytest.mark.slow
def test_every_transfer_is_told(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    for sample in JOBS:
        told = job(site, "transfers", sample.job_id, "--json").json["transfers"]
        assert told == [
            {
                "kind": KINDS[each.kind],
                "url": each.url,
                "size_bytes": each.size % 2**32,
                "start_time": at(each.start),
                "end_time": at(each.end),
            }
            for each in sample.transfers
        ]
    out = job(site, "transfers", STAGED.job_id).out
    upload = STAGED.transfers[-1]
    for text in (upload.url, f"{upload.size % 2**32:,}", at(upload.start), at(upload.end), "out", "(UTC)"):
        assert str(text) in out
    cached = next(sample for sample in JOBS if any(each.kind is TransferKind.CACHED for each in sample.transfers))
    assert "in, from cache" in job(site, "transfers", cached.job_id).out


def test_what_lets_others_in_is_told_only_when_asked_for(site: ConfiguredSite) -> None:
    url = "https://jane:secret@s3.example.org/b/f?X-Amz-Signature=abcdef"
    transfer = Transfer(url=url, size=1, start=STAGED.submit_time, end=STAGED.end_time, kind=TransferKind.DOWNLOAD)
    write(site, [replace(STAGED, transfers=(transfer,))])
    for words in ((), ("--json",)):
        out = job(site, "transfers", STAGED.job_id, *words).out
        assert "https://s3.example.org/b/f" in out
        assert "secret" not in out
        assert "abcdef" not in out
        assert url in job(site, "transfers", STAGED.job_id, "--full-urls", *words).out


# hostile rows


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("part", range(3))
def test_nothing_that_may_stand_in_a_row_is_a_traceback(site: ConfiguredSite, schema: Schema, part: int) -> None:
    cases = hostile(1)
    write(site, cases, schema)
    told = 0
    for number, case in enumerate(cases[schema - 1 + 2 * part :: 6]):
        job_id = (case.job if isinstance(case, RawRow) else case).job_id
        beside = any(word in case.name for word in ("vent", "ransfer", "side rows", "times", "twice"))
        for action in ("info", *(("events", "transfers") if beside else ())):
            # Each case in one of the two forms, which are made of the same sheet.
            run = site.run("job", action, *(("--json",) if number % 2 else ()), "--", job_id)
            assert run.status == (64 if case.name in ("NULL: AAR.JobID", "empty: AAR.JobID") else 0), (
                case.name,
                run.err,
            )
            assert "Traceback" not in run.err
            assert all(line.isprintable() for line in run.out.splitlines())
            told += run.status == 0
    assert told > len(cases) // 6 + 10


def test_what_cannot_be_read_is_named_and_the_rest_told(site: ConfiguredSite) -> None:
    bent = RawRow(
        name="bent",
        job=STAGED,
        columns={"QueueID": 99, "UsedWalltime": -1, "UsedMemory": "abc", "EndTime": None, "CPUCount": -4},
        side=(("DataTransfers", {"URL": "x", "FileSize": "?", "TransferType": 99}),),
    )
    write(site, [bent])
    told = job(site, "info", STAGED.job_id, "--json").json
    assert told["oddities"] == [
        "QueueID is 99, and Queues has no such row",
        "CPUCount is -4",
        "UsedMemory is 'abc'",
        "UsedWalltime is -1",
    ]
    assert (told["wall_s"], told["end_time"], told["queue"], told["user"]) == (None, None, "", STAGED.user)
    assert "cannot be read: UsedWalltime is -1" in job(site, "info", STAGED.job_id).out
    last = job(site, "transfers", STAGED.job_id, "--json").json["transfers"][-1]
    assert (last["kind"], last["size_bytes"], last["start_time"]) == ("type 99", None, None)
