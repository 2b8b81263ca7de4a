"""`export`: every finished job once, every column against the job as it truly was, filters, hostile texts, whole files."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from publisher.reporting.export.columns import COLUMNS
from tests.arex_databases import RawRow, SampleJob, Schema, generate, hostile
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 120, START, END))
FINAL = ("completed", "failed", "aborted")
RUNNING = [replace(job, status="in-progress") for job in generate(2, 5, START, END)]


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """Small pages, so that an export crosses many of them."""
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car"}}
    made = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    made.config["source"]["page_rows"] = 7
    return made


@pytest.fixture(params=[1, 2])
def schema(request: pytest.FixtureRequest) -> Schema:
    return 1 if request.param == 1 else 2


def write(site: ConfiguredSite, jobs: Sequence[SampleJob | RawRow], schema: Schema = 2) -> None:
    with site.arex(schema) as arex:
        arex.write_all(jobs)
        for job in RUNNING:
            arex.accept(job)


def exported(site: ConfiguredSite, *words: str) -> list[dict[str, Any]]:
    run = site.run("export", *words)
    assert run.status == 0, run.err
    jobs = [json.loads(line, parse_float=Decimal) for line in run.out.splitlines()]
    assert {job.pop("schema") for job in jobs} <= {1}
    return jobs


def iso(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def test_every_finished_job_once_with_what_it_was(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    found = {one["job_id"]: one for one in exported(site)}
    assert set(found) == {job.job_id for job in JOBS}
    for job in JOBS:
        one = found[job.job_id]
        assert list(one) == [column.name for column in COLUMNS]
        assert one["unfit"] is None
        cpu_s, wall_core_s = job.cpu_user_s + job.cpu_kernel_s, job.wall_s * (job.cpus or 1)
        assert (one["status"], one["queue"], one["wall_s"]) == (job.status, job.queue, job.wall_s)
        assert (one["cpu_s"], one["cpu_count"], one["wall_core_s"]) == (cpu_s, job.cpus or None, wall_core_s)
        assert one["ended_at"] == iso(job.end_time)
        assert one["submitted_at"] == iso(job.submit_time)
        assert one["site"] == "EXAMPLE-SITE"
        if wall_core_s:
            assert one["cpu_efficiency"] == (Decimal(cpu_s) / wall_core_s).quantize(Decimal("0.0001"))
            assert one["scaled_wall_core_s"] == wall_core_s * one["benchmark_value"]
        if one["started_at"] is None:
            assert one["wait_s"] is None
        else:
            waited = datetime.fromisoformat(one["started_at"]) - datetime.fromisoformat(one["submitted_at"])
            assert one["wait_s"] == waited.total_seconds()


def test_those_in_progress_are_left_out_and_counted(site: ConfiguredSite) -> None:
    write(site, JOBS)
    assert "5 jobs left out, still in progress" in site.run("export").err


def test_csv_says_the_same(site: ConfiguredSite) -> None:
    write(site, JOBS)
    run = site.run("export", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(run.out)))
    objects = exported(site)
    assert len(rows) == len(objects) == len(JOBS)
    for row, one in zip(rows, objects, strict=True):
        for column in COLUMNS:
            value = one[column.name]
            cell = "" if value is None else ";".join(value) if column.kind == "texts" else str(value)
            assert row[column.name] == cell, column.name


def test_jobs_add_up_to_what_the_report_says(site: ConfiguredSite) -> None:
    """One name, one number: under the same heading both say the same, cores that are not known too."""
    write(site, [*JOBS, replace(JOBS[0], job_id="coreless", local_job_id="c1", cpus=0)])
    folder = site.folder / "csv"
    window = ("--from", "2026-10", "--to", "2026-11")
    assert site.run("report", "--csv", str(folder), *window).status == 0
    jobs = exported(site, *window)
    assert any(one["cpu_count"] is None and one["wall_s"] for one in jobs)
    queues = list(csv.DictReader(io.StringIO((folder / "queues.csv").read_text())))
    assert queues
    shared = {column.name for column in COLUMNS} & queues[0].keys()
    assert shared == {"queue", "wall_s", "wall_core_s", "cpu_s", "cpu_efficiency"}
    for row in queues:
        of_queue = [one for one in jobs if one["queue"] == row["queue"]]
        assert len(of_queue) == int(row["jobs"])
        for name in shared - {"queue", "cpu_efficiency"}:
            assert sum(one[name] for one in of_queue) == int(row[name]), name
        for kind in {one["benchmark_type"] for one in of_queue} - {None}:
            scaled = sum(one["scaled_wall_core_s"] for one in of_queue if one["benchmark_type"] == kind)
            assert scaled == Decimal(row[f"scaled_wall_core_{kind.lower()}_s"])


@pytest.mark.slow
def test_filters_are_those_of_stats(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS, schema)
    queue, vo = JOBS[3].queue, next(job.vo for job in JOBS if job.vo)
    for words in (
        ("--filter-queue", queue),
        ("--filter-vo", vo),
        ("--filter-state", "failed"),
        ("--from", "2026-10-05", "--to", "2026-10-09"),
        ("--filter-queue", queue, "--filter-state", "completed"),
    ):
        ids = site.run("stats", *words, "-o", "jobids").out.splitlines()
        finished = sorted({*ids} - {job.job_id for job in RUNNING})
        assert finished
        assert sorted(one["job_id"] for one in exported(site, *words)) == finished, words


@pytest.mark.slow
def test_jobs_of_a_kind_are_told_as_each_by_itself(site: ConfiguredSite, schema: Schema) -> None:
    """Whatever filter is named, each row is read by itself."""
    several = [
        replace(job, job_id=f"{job.job_id}{n}", local_job_id=f"{n}-{at}")
        for n in range(8)
        for at, job in enumerate(JOBS[:30])
    ]
    write(site, [*several, *hostile(5, start=START, end=END)], schema)
    each = [line for state in FINAL for line in site.run("export", "--filter-state", state).out.splitlines()]
    together = [line for line in site.run("export").out.splitlines() if json.loads(line)["status"] in FINAL]
    assert len(together) > len(several)
    assert sorted(together) == sorted(each)
    in_october = [line for line in together if str(json.loads(line)["ended_at"]).startswith("2026-10-")]
    windowed = site.run("export", "--from", "2026-10-01", "--to", "2026-11-01").out.splitlines()
    assert set(windowed) >= set(in_october)


def test_names_are_withheld_where_the_site_withholds_them(site: ConfiguredSite) -> None:
    site.config["records"]["identity"] = {"mode": "withheld"}
    write(site, JOBS)
    out = site.run("export").out
    assert not [job.user for job in JOBS if job.user in out]
    assert {one["user"] for one in exported(site)} == {"withheld"}


@pytest.mark.slow
def test_hostile_texts_stay_in_their_cell_and_line(site: ConfiguredSite) -> None:
    jobs = hostile(5, start=START, end=END)
    write(site, jobs)
    objects = exported(site)
    rows = list(csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)))
    assert len(objects) == len(rows) > 0
    assert all(set(one) == {column.name for column in COLUMNS} for one in objects)


def test_a_job_that_cannot_be_published_says_why(site: ConfiguredSite) -> None:
    write(site, JOBS[:3])
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET EndTime = 'soon' WHERE JobID = ?", (JOBS[0].job_id,))
    run = site.run("export")
    assert {json.loads(line)["job_id"] for line in run.out.splitlines()} == {job.job_id for job in JOBS[1:3]}
    assert "cannot be read" in run.err or "in progress" in run.err


def test_a_file_is_whole_or_as_it_was(site: ConfiguredSite, tmp_path: Path) -> None:
    write(site, JOBS)
    file = tmp_path / "jobs.jsonl"
    file.write_text("yesterday's\n")
    assert site.run("export", "-o", str(file)).status == 0
    whole = file.read_text()
    assert len(whole.splitlines()) == len(JOBS)
    site.database().write_bytes(b"this is not a database" * 400)
    assert site.run("export", "-o", str(file)).status == 66
    assert file.read_text() == whole
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    assert site.run("export", "-o", str(tmp_path / "nowhere" / "jobs.jsonl")).status == 64


def test_a_pipe_and_a_link_are_written_to_and_not_replaced(site: ConfiguredSite, tmp_path: Path) -> None:
    """As root, `-o /dev/stdout` would put a file in the place of the device."""
    write(site, JOBS[:3])
    pipe, there, link = tmp_path / "pipe", tmp_path / "there", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(there)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert site.run("export", "-o", str(pipe)).status == 0
        assert len(os.read(reader, 65_536).splitlines()) == 3
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert site.run("export", "-o", str(link)).status == 0
    assert link.is_symlink()
    assert len(there.read_text().splitlines()) == 3


def test_columns_are_explained(site: ConfiguredSite) -> None:
    site.path.write_text("site: [")  # it needs no configuration
    table = site.run("export", "--columns").out
    for column in COLUMNS:
        assert column.meaning in table
