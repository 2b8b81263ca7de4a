"""`stats`: every number, filter and output against the jobs as they truly were, on both schemas, alone and side by side."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.progress import CountingReport
from publisher.jobs import queries as queries_of_store
from publisher.jobs import sums, usage
from tests.arex_databases import (
    RawRow,
    SampleJob,
    Schema,
    TransferKind,
    generate,
    hostile,
    make_damaged,
    make_empty,
    make_missing,
    make_not_a_database,
    make_truncated,
    set_schema_version,
)
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, Run

pytestmark = pytest.mark.some(2, of="schema")

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
BOTH: tuple[Schema, ...] = (1, 2)
Keep = Callable[[SampleJob], bool]

JOBS = list(generate(1, 200, START, END))
RUNNING = [replace(job, status="in-progress") for job in generate(2, 5, START, END)]
SECOND = JOBS[50].end_time


def site_in(folder: Path, pki: PKI) -> ConfiguredSite:
    """Small pages, so that each count crosses many of them. No key is there: none is needed."""
    spool = {"files": {"type": "spool", "path": str(folder / "out"), "format": "car"}}
    made = ConfiguredSite(folder, pki, pki.host(), spool)
    made.config["source"]["page_rows"] = 7
    made.config["credentials"] |= {"certificate": "/nonexistent", "key": "/nonexistent"}
    return made


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    return site_in(tmp_path, pki)


@pytest.fixture(params=BOTH, scope="module")
def schema(request: pytest.FixtureRequest) -> Schema:
    return 1 if request.param == 1 else 2


@pytest.fixture(scope="module")
def full_site(schema: Schema, pki: PKI, tmp_path_factory: pytest.TempPathFactory) -> ConfiguredSite:
    """A site with all the jobs, for questions that write nothing."""
    site = site_in(tmp_path_factory.mktemp("full"), pki)
    write(site, JOBS, RUNNING, schema)
    return site


@pytest.fixture(scope="module")
def hostile_site(schema: Schema, pki: PKI, tmp_path_factory: pytest.TempPathFactory) -> ConfiguredSite:
    """A site whose rows are all odd."""
    site = site_in(tmp_path_factory.mktemp("hostile"), pki)
    write(site, hostile(1), schema=schema)
    return site


@pytest.fixture(scope="module")
def mixed_site(schema: Schema, pki: PKI, tmp_path_factory: pytest.TempPathFactory) -> ConfiguredSite:
    """Odd rows on every page, fractions on one, and jobs that stand in two databases."""
    site = site_in(tmp_path_factory.mktemp("mixed"), pki)
    write(site, [*JOBS[:60], *hostile(1)[::4], *JOBS[60:]], RUNNING, schema)
    write(site, JOBS[150:170], [RUNNING[0], JOBS[171]], 2 if schema == 1 else 1)
    with closing(sqlite3.connect(site.database(schema))) as arex, arex:
        arex.execute("UPDATE AAR SET UsedWalltime = 7.5, StageInVolume = NULL WHERE RecordID = 190")
    return site


def write(
    site: ConfiguredSite, finished: Sequence[SampleJob | RawRow], running: Sequence[SampleJob] = (), schema: Schema = 2
) -> None:
    with site.arex(schema) as arex:
        arex.write_all(finished)
        for job in running:
            arex.accept(job)


def stats(site: ConfiguredSite, *words: str) -> Run:
    run = site.run("stats", *words)
    assert run.status == 0, run.err
    return run


def at(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def totals(finished: Sequence[SampleJob], running: Sequence[SampleJob] = ()) -> dict[str, Any]:
    """What these jobs add up to; of sizes, what A-REX's 32 bits have left."""
    submitted = [job.submit_time for job in (*finished, *running)]
    ended = [job.end_time for job in finished]
    user_s, kernel_s = sum(job.cpu_user_s for job in finished), sum(job.cpu_kernel_s for job in finished)
    return {
        "jobs": len(finished) + len(running),
        "in_progress": len(running),
        "wall_s": sum(job.wall_s for job in finished),
        "wall_core_s": sum(job.wall_s * (job.cpus or 1) for job in finished),
        "cpu_s": user_s + kernel_s,
        "cpu_user_s": user_s,
        "cpu_kernel_s": kernel_s,
        "stage_in_bytes": sum(job.stage_in_bytes % 2**32 for job in finished),
        "stage_out_bytes": sum(job.stage_out_bytes % 2**32 for job in finished),
        "cores_unknown": sum(not job.cpus for job in finished),
        "cpu_unknown": 0,
        "gpu_jobs": 0,
        "gpu_s": 0,
        "first_submitted": f"{at(min(submitted))}Z" if submitted else None,
        "last_ended": f"{at(max(ended))}Z" if ended else None,
    }


def told(run: Run) -> dict[str, Any]:
    return {name: run.json[name] for name in totals([])}


# Numbers


def test_every_output_tells_the_sums_of_the_jobs(full_site: ConfiguredSite) -> None:
    expected = totals(JOBS, RUNNING)
    users, vos = {job.user for job in JOBS + RUNNING}, {job.vo for job in JOBS + RUNNING} - {""}
    # The sample holds what it is meant to try: sizes over 2 GiB, users without a VO, names that A-REX escapes.
    assert any(2**31 <= job.stage_in_bytes < 2**32 for job in JOBS)
    assert any(not job.vo for job in JOBS)
    assert any("'" in user for user in users)
    for output, lines in {
        "jobcount": [expected["jobs"]],
        "walltime": [expected["wall_s"]],
        "cputime": [expected["cpu_s"]],
        "data-staged-in": [expected["stage_in_bytes"]],
        "data-staged-out": [expected["stage_out_bytes"]],
        "users": sorted(users),
        "wlcgvos": sorted(vos),
    }.items():
        assert stats(full_site, "-o", output).out.splitlines() == [str(line) for line in lines], output
    assert sorted(stats(full_site, "--output", "jobids").out.split()) == sorted(job.job_id for job in JOBS + RUNNING)
    assert stats(full_site, "-o", "json").json == {
        "count": expected["jobs"],
        "walltime": expected["wall_s"],
        "cpuusertime": expected["cpu_user_s"],
        "cpukerneltime": expected["cpu_kernel_s"],
        "cputime": expected["cpu_s"],
        "stagein": expected["stage_in_bytes"],
        "stageout": expected["stage_out_bytes"],
        "rangestart": min(job.submit_time for job in JOBS + RUNNING),
        "rangeend": max(job.end_time for job in JOBS),
        "minstarttime": min(job.submit_time for job in JOBS + RUNNING),
        "minendtime": min(job.end_time for job in JOBS),
        "maxendtime": max(job.end_time for job in JOBS),
        "fqans": sorted({job.fqans[0] for job in JOBS + RUNNING if job.fqans}),
        "users": sorted(users),
        "wlcgvos": sorted(vos),
    }
    ours = stats(full_site, "--json")
    assert told(ours) == expected
    assert (ours.json["users"], ours.json["vos"], ours.json["groups"]) == (sorted(users), sorted(vos), [])
    assert {one["state"]: one["jobs"] for one in ours.json["states"]} == {
        "completed": sum(job.status == "completed" for job in JOBS),
        "failed": sum(job.status == "failed" for job in JOBS),
        "in-progress": 5,
    }


def test_brief_tells_people_the_same_with_units(full_site: ConfiguredSite) -> None:
    expected = totals(JOBS, RUNNING)
    out = stats(full_site).out
    assert f"wall time        {expected['wall_s'] / 3600:,.1f} h\n" in out
    assert f"core time        {expected['wall_core_s'] / 3600:,.1f} h: wall time x cores\n" in out
    assert f"user {expected['cpu_user_s'] / 3600:,.1f} h, kernel {expected['cpu_kernel_s'] / 3600:,.1f} h" in out
    out = stats(full_site, "--seconds").out
    for text in (
        "jobs             205: completed",
        f"{expected['wall_s']:,} s (",
        f"core time        {expected['wall_core_s']:,} s (",
        f"user {expected['cpu_user_s']:,} s (",
        f"kernel {expected['cpu_kernel_s']:,} s (",
        f"{expected['stage_in_bytes']:,} bytes (",
        f"{expected['stage_out_bytes']:,} bytes (",
        expected["first_submitted"],
        expected["last_ended"],
        "in progress, without usage yet: 5 of the jobs",
    ):
        assert text in out, text


GROUPS: dict[str, Callable[[SampleJob], str]] = {
    "vo": lambda job: job.vo,
    "user": lambda job: job.user,
    "state": lambda job: job.status,
    "queue": lambda job: job.queue,
    "endpoint": lambda job: job.interface,
    "fqan": lambda job: next(iter(job.fqans), ""),
    "month": lambda job: "" if job.status == "in-progress" else at(job.end_time)[:7],
}


@pytest.mark.parametrize("by", GROUPS)
def test_tables_add_up_by_group(site: ConfiguredSite, by: str) -> None:
    late = [job.moved_to(job.end_time + 40 * 86_400) for job in JOBS[::3]]
    finished = [job for number, job in enumerate(JOBS) if number % 3] + late
    write(site, finished, RUNNING)
    group = GROUPS[by]
    names = sorted({group(job) for job in finished + RUNNING})
    assert len(names) > 1
    expected = [
        {"name": name}
        | totals([job for job in finished if group(job) == name], [job for job in RUNNING if group(job) == name])
        for name in names
    ]
    assert stats(site, "--by", by, "--json").json["groups"] == expected
    header, *rows = csv.reader(io.StringIO(stats(site, "--by", by, "--csv").out))
    assert header == [by, *totals([])]
    assert rows == [["" if value is None else str(value) for value in row.values()] for row in expected]
    nameless = "(no VO)" if by == "vo" else "(none)"
    for words, unit, text in (([], "h", lambda s: f"{s / 3600:,.1f}"), (["--seconds"], "s", "{:,}".format)):
        header, rows = drawn(stats(site, "--by", by, *words).out, by)
        for column, key in ((f"wall {unit}", "wall_s"), (f"core {unit}", "wall_core_s"), (f"CPU {unit}", "cpu_s")):
            found = {row[0]: row[header.index(column)] for row in rows}
            assert found == {one["name"] or nameless: text(one[key]) for one in expected}, column
        assert "GPU h" not in header, "no job had one"
    if by != "month":
        most = max(expected, key=lambda one: one["wall_core_s"])
        assert rows[0][0] == (most["name"] or nameless)


def drawn(out: str, by: str) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns of the table, and its rows."""
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{by}  "))
    header, *rows = (re.split("  +", line.strip()) for line in lines[at:])
    return header, rows


def test_csv_of_each_output(site: ConfiguredSite) -> None:
    write(site, [replace(JOBS[0], user='/CN=a "b", c\r\nd'), *JOBS[1:9]])
    assert stats(site, "--csv").out.splitlines()[0] == ",".join(totals([]))
    assert stats(site, "--csv", "-o", "walltime").out == f"wall_s\n{sum(job.wall_s for job in JOBS[:9])}\n"
    rows = list(csv.reader(io.StringIO(stats(site, "--csv", "-o", "users").out)))
    assert ["user"] in rows
    assert ['/CN=a "b", c\\r\\nd'] in rows
    assert stats(site, "--csv", "-o", "jobids").out.splitlines() == ["job_id", *(job.job_id for job in JOBS[:9])]
    assert stats(site, "--json", "-o", "jobids").json == {"job_ids": [job.job_id for job in JOBS[:9]]}


def test_no_match_is_0_and_no_error(site: ConfiguredSite, schema: Schema) -> None:
    write(site, JOBS[:20], schema=schema)
    for output in ("jobcount", "walltime", "cputime", "data-staged-in", "data-staged-out"):
        assert stats(site, "-o", output, "--filter-vo", "atlas", "--end-from", "2027-01").out == "0\n"
    for output in ("wlcgvos", "fqans", "users", "jobids"):
        assert stats(site, "-o", output, "-b", "2027-01").out == ""
    assert told(stats(site, "--json", "-b", "2027-01")) == totals([])
    assert stats(site, "-o", "json", "-b", "2027-01").json["rangeend"] is None
    assert stats(site, "--json", "-o", "jobids", "-b", "2027-01").json == {"job_ids": []}
    assert stats(site, "-b", "2027-01").out.startswith("jobs             0\n")
    table = stats(site, "--from", "2001-01", "--to", "2001-01", "--by", "user").out
    assert table.endswith("\nno job is among them\n"), table


# Filters


FILTERS: dict[str, tuple[tuple[str, ...], Keep]] = {
    "vo": (("--filter-vo", "atlas"), lambda job: job.vo == "atlas"),
    "vos": (("--filter-vo", "atlas", "--filter-vo", "cms"), lambda job: job.vo in ("atlas", "cms")),
    "no vo": (("--filter-vo", ""), lambda job: job.vo == ""),
    "user": (("--filter-user", JOBS[3].user), lambda job: job.user == JOBS[3].user),
    "user with an escape": (
        ("--filter-user", "/C=IE/O=Grid-Ireland/OU=tcd.ie/CN=Sean O'Neil"),
        lambda job: job.user.endswith("O'Neil"),
    ),
    "user as arcctl shows it": (
        ("--filter-user", "/C=IE/O=Grid-Ireland/OU=tcd.ie/CN=Sean O%27Neil"),
        lambda job: job.user.endswith("O'Neil"),
    ),
    "state": (("--filter-state", "failed"), lambda job: job.status == "failed"),
    "running": (("--filter-state", "in-progress"), lambda job: job.status == "in-progress"),
    "queue": (("--filter-queue", "grid", "--filter-queue", "old"), lambda job: job.queue in ("grid", "old")),
    "endpoint": (("--filter-endpoint", "org.nordugrid.arcrest"), lambda job: job.interface.endswith(".arcrest")),
    "main fqan": (
        ("--filter-extra", "vomsfqan", "/atlas/Role=pilot/Capability=NULL"),
        lambda job: "/atlas/Role=pilot/Capability=NULL" in job.fqans,
    ),
    "other fqan": (
        ("--filter-extra", "vomsfqan", "/atlas/no/Role=NULL/Capability=NULL"),
        lambda job: "/atlas/no/Role=NULL/Capability=NULL" in job.fqans,
    ),
    "the main fqan": (
        ("--filter-fqan", "/atlas/Role=pilot/Capability=NULL"),
        lambda job: job.fqans[:1] == ("/atlas/Role=pilot/Capability=NULL",),
    ),
    "active": (("--filter-state", "failed", "-a"), lambda job: job.status in ("failed", "in-progress")),
    "token": (
        ("--filter-extra", "issuer", "https://atlas-auth.cern.ch/"),
        lambda job: ("issuer", "https://atlas-auth.cern.ch/") in job.token_attributes,
    ),
    "job name": (
        ("--filter-extra", "jobname", "BtoKstarGamma #3 (50%)"),
        lambda job: job.job_name == "BtoKstarGamma #3 (50%)" and job.status != "in-progress",
    ),
    "two job names": (
        ("--filter-extra", "jobname", "run.sh", "--filter-extra", "jobname", "fit & plot"),
        lambda job: job.job_name in ("run.sh", "fit & plot") and job.status != "in-progress",
    ),
    "project": (
        ("--filter-extra", "project", "cms-t2"),
        lambda job: job.projects[:1] == ("cms-t2",) and job.status != "in-progress",
    ),
    "projectname": (
        ("--filter-extra", "projectname", "nn9999k"),
        lambda job: job.projects[:1] == ("nn9999k",) and job.status != "in-progress",
    ),
    "rte": (
        ("--filter-extra", "rte", "APPS/HEP/ATLAS-SITE-LCG"),
        lambda job: "APPS/HEP/ATLAS-SITE-LCG" in job.rtes and job.status != "in-progress",
    ),
    "benchmark": (
        ("--filter-extra", "benchmark", "HEPSPEC:10.5"),
        lambda job: job.benchmark == "HEPSPEC:10.5" and job.status != "in-progress",
    ),
    "several": (
        ("--filter-vo", "atlas", "--filter-state", "completed", "--filter-queue", "long", "--filter-extra", "rte",
         "ENV/PROXY", "--filter-extra", "wninstance", "compute.large"),
        lambda job: (
            (job.vo, job.status, job.queue, job.wn_instance) == ("atlas", "completed", "long", "compute.large")
            and "ENV/PROXY" in job.rtes
        ),
    ),
    "ended since": (("-b", at(SECOND)), lambda job: job.status != "in-progress" and job.end_time >= SECOND),
    "ended before": (("-e", at(SECOND)), lambda job: job.status != "in-progress" and job.end_time < SECOND),
    "a week": (
        ("--end-from", "2026-10-05", "--end-till", "2026-10-11"),
        lambda job: job.status != "in-progress" and "2026-10-05" <= at(job.end_time) < "2026-10-12",
    ),
    "as elsewhere": (
        ("--from", "2026-10-05", "--to", "2026-10-05T12:00"),
        lambda job: job.status != "in-progress" and "2026-10-05" <= at(job.end_time) < "2026-10-05T12:00",
    ),
    "arcctl's spelling": (
        ("-b", "2026-10-05 06:30:00", "-e", "2026-10-20 12:00"),
        lambda job: job.status != "in-progress" and "2026-10-05T06:30" <= at(job.end_time) < "2026-10-20T12:00",
    ),
    "submitted since": (("-s", "2026-10-10"), lambda job: at(job.submit_time) >= "2026-10-10"),
    "submitted and ended": (
        ("-s", "2026-10-10T12:00", "-e", "2026-10-10"),
        lambda job: (
            job.status != "in-progress" and at(job.submit_time) >= "2026-10-10T12" and at(job.end_time) < "2026-10-11"
        ),
    ),
    "user since": (
        ("--filter-user", JOBS[3].user, "-b", "2026-10-08"),
        lambda job: job.user == JOBS[3].user and job.status != "in-progress" and at(job.end_time) >= "2026-10-08",
    ),
    "user before": (
        ("--filter-user", JOBS[3].user, "--filter-user", JOBS[4].user, "-e", "2026-10-08"),
        lambda job: (
            job.user in (JOBS[3].user, JOBS[4].user)
            and job.status != "in-progress"
            and at(job.end_time) < "2026-10-09"
        ),
    ),
    "user submitted": (
        ("--filter-user", JOBS[3].user, "-s", "2026-10-08"),
        lambda job: job.user == JOBS[3].user and at(job.submit_time) >= "2026-10-08",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_takes_the_jobs_that_it_says(full_site: ConfiguredSite, name: str) -> None:
    words, keep = FILTERS[name]
    finished, running = [job for job in JOBS if keep(job)], [job for job in RUNNING if keep(job)]
    assert 0 < len(finished) + len(running) < 205
    assert told(stats(full_site, "--json", *words)) == totals(finished, running)
    assert sorted(stats(full_site, "-o", "jobids", *words).out.split()) == sorted(
        job.job_id for job in finished + running
    )


def test_a_transfer_s_url_is_a_filter(full_site: ConfiguredSite) -> None:
    job = next(job for job in JOBS if job.transfers)
    url = next(each.url for each in job.transfers if each.kind is TransferKind.UPLOAD)
    assert stats(full_site, "-o", "jobids", "--filter-extra", "dtrurl", url).out.split() == [job.job_id]


@pytest.mark.slow
def test_nothing_is_taken_for_sql_or_a_pattern(site: ConfiguredSite) -> None:
    write(site, JOBS[:30])
    for hostile_text in ("%", "atl_s", "' OR 1=1 --", "*", "\udcff", "\0", ""):
        for option in ("--filter-user", "--filter-state", "--filter-queue", "--filter-endpoint"):
            run = site.run("stats", "-o", "jobcount", option, hostile_text)
            assert (run.status, run.out) == ((64, "") if hostile_text else (0, "0\n"))
        for key in ("jobname", "rte", "dtrurl", "vomsfqan", hostile_text):
            assert stats(site, "-o", "jobcount", "--filter-extra", key, hostile_text).out == "0\n"


def test_windows_are_told_in_full(site: ConfiguredSite) -> None:
    write(site, JOBS[:30])
    run = stats(site, "-o", "jobcount", "-b", "2026-10", "-e", "2026-10", "-s", "2026-10-02")
    assert "jobs that ended 2026-10-01 to 2026-10-31" in run.err
    assert "jobs that were submitted from 2026-10-02 on" in run.err


@pytest.mark.parametrize("command", ["stats", "export"])
def test_a_name_that_no_job_ever_had_is_64_with_what_was_meant(site: ConfiguredSite, command: str) -> None:
    write(site, JOBS[:30])
    for option, name, advice in (
        ("--filter-vo", "atals", "no VO 'atals'; did you mean 'atlas'?"),
        ("--filter-vo", "zzz", "no VO 'zzz'; `publisher complete vos` lists those that it knows"),
        ("--filter-endpoint", "arcrest", "did you mean 'org.nordugrid.arcrest'?"),
        ("--filter-user", "nobody", "no user 'nobody'; "),
        ("--filter-queue", "nowhere", "no queue 'nowhere'; "),
        ("--filter-state", "complete", "no state 'complete'; did you mean 'completed'?"),
    ):
        run = site.run(command, "--filter-vo", "atlas", option, name)
        assert (run.status, run.out) == (64, ""), option
        assert advice in run.err
    for filters in (("--filter-vo", "atlas", "--filter-vo", ""), ("--filter-state", "aborted")):
        run = site.run(command, *filters)
        assert (run.status, run.err) == (0, "")


def test_a_name_may_be_spelt_as_arex_stores_it(site: ConfiguredSite) -> None:
    write(site, [replace(JOBS[0], user="/CN=O'Neil")])
    assert stats(site, "-o", "jobcount", "--filter-user", "/CN=O%27Neil").out == "1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-b", "March"), "is not a time"),
        (("-b", "2026-10", "-e", "2026-09"), "is empty"),
        (("--filter-extra", "rte"), "expected 2 arguments"),
        (("-o", "breif"), "did you mean brief?"),
        (("--csv", "--json"), "not allowed with"),
        (("--by", "vo", "-o", "users"), "--by prints a table"),
        (("--csv", "-o", "json"), "contradict"),
    ],
)
def test_a_wrong_command_line_is_told(site: ConfiguredSite, words: tuple[str, ...], said: str) -> None:
    write(site, JOBS[:3])
    run = site.run("stats", *words)
    assert (run.status, run.out) == (64, "")
    assert said in run.err


def test_one_database_of_several(site: ConfiguredSite, tmp_path: Path) -> None:
    write(site, JOBS[:30])
    write(site, JOBS[30:70], schema=1)
    elsewhere = tmp_path / "rotated [2025].db"
    shutil.move(site.database(1), elsewhere)
    write(site, JOBS[70:80], schema=1)
    for name, jobs in (
        ("accounting_v2.db", JOBS[:30]),
        ("accounting.db", JOBS[70:80]),
        (str(elsewhere), JOBS[30:70]),
    ):
        assert told(stats(site, "--json", "--database-file", name)) == totals(jobs)
    assert told(stats(site, "--json")) == totals([*JOBS[:30], *JOBS[70:80]])
    assert site.run("job", "info", JOBS[40].job_id).status == 64
    assert site.run("job", "info", "--database-file", str(elsewhere), JOBS[40].job_id).status == 0
    assert site.run("stats", "--database-file", "none.db").status == 66
    site.config["source"] = {"type": "arex", "databases": [str(site.database(2))], "time_zone": "Europe/Oslo"}
    site.save()
    run = site.run("stats", "--database-file", "accounting.db")
    assert (run.status, "no control_dir" in run.err) == (64, True)


# Several databases


def test_a_job_in_two_databases_counts_once(site: ConfiguredSite) -> None:
    """After a migration, and with rows that were still in progress when it happened."""
    both, new, old = JOBS[:60], JOBS[60:90], JOBS[90:120]
    orphaned = JOBS[120:130]  # finished in the old database only, in progress in the new one
    migrated = JOBS[130:140]  # in progress in the old one when it was migrated
    write(site, [*both, *old, *orphaned], [*RUNNING[:3], *migrated], schema=1)
    write(site, [*both, *new, *migrated], [*RUNNING[1:], *orphaned], schema=2)
    finished = [*both, *new, *old, *orphaned, *migrated]
    assert told(stats(site, "--json")) == totals(finished, RUNNING)
    assert sorted(stats(site, "-o", "jobids").out.split()) == sorted(job.job_id for job in finished + RUNNING)
    assert told(stats(site, "--json", "--filter-state", "in-progress")) == totals([], RUNNING)
    assert told(stats(site, "--json", "-b", "2026-10", "-e", "2026-10")) == totals(finished)
    user = both[3].user
    expected = totals([job for job in finished if job.user == user], [job for job in RUNNING if job.user == user])
    assert told(stats(site, "--json", "--filter-user", user)) == expected


def test_a_filter_asks_the_row_that_counts(site: ConfiguredSite) -> None:
    """A job that failed in the old database and was completed in the new one did not fail."""
    write(site, [replace(job, status="failed") for job in JOBS[:20]], schema=1)
    write(site, [replace(job, status="completed") for job in JOBS[:20]], schema=2)
    assert stats(site, "-o", "jobcount", "--filter-state", "failed").out == "0\n"
    assert stats(site, "-o", "jobcount", "--filter-state", "completed").out == "20\n"


def test_files_named_one_by_one_and_by_pattern(site: ConfiguredSite, tmp_path: Path) -> None:
    write(site, JOBS[:30])
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in (1, 2):
        shutil.copyfile(site.database(), kept / f"rotated-{number}.db")
    site.config["source"] |= {"databases": [str(kept / "*.db")]}
    assert told(stats(site, "--json")) == totals(JOBS[:30])


# What the database may be


def test_a_job_that_finished_twice_counts_once_with_its_newest_values(site: ConfiguredSite, schema: Schema) -> None:
    with site.arex(schema) as arex:
        arex.write_all(JOBS[:10])
        again = arex.finish_again(JOBS[3], end_time=JOBS[3].end_time + 7200)
    expected = totals([*JOBS[:3], again, *JOBS[4:10]])
    assert told(stats(site, "--json")) == expected
    name = str(again.job_name)
    assert stats(site, "-o", "jobids", "--filter-extra", "jobname", name).out.count(again.job_id) == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("-b", "1970-01"), ("-s", "1970-01")])
@pytest.mark.some(2)
def test_hostile_rows_are_counted_and_nothing_breaks(hostile_site: ConfiguredSite, words: tuple[str, ...]) -> None:
    run = stats(hostile_site, "--json", *words)
    assert "Traceback" not in run.err
    if not words:
        assert run.json["jobs"] == len(hostile(1)) == len(stats(hostile_site, "-o", "jobids").out.splitlines())
        assert run.json["unreadable"] > 10
        assert "not a number, or negative" in stats(hostile_site).out
    assert "\x1b" not in stats(hostile_site, *words).out
    for output in ("users", "wlcgvos", "jobids", "json"):
        stats(hostile_site, "-o", output)
    for by in GROUPS:
        rows = list(csv.reader(io.StringIO(stats(hostile_site, "--csv", "--by", by, *words).out)))
        assert {len(row) for row in rows} == {16}
        assert sum(int(row[1]) for row in rows[1:]) == run.json["jobs"]
    for key in ("vomsfqan", "rte", "dtrurl", "jobname", "benchmark"):
        stats(hostile_site, "-o", "jobcount", "--filter-extra", key, "x", *words)


@pytest.mark.parametrize(
    "change",
    [
        make_missing,
        make_empty,
        make_truncated,
        make_damaged,
        make_not_a_database,
        lambda path: set_schema_version(path, "3"),
        lambda path: set_schema_version(path, None),
    ],
)
@pytest.mark.parametrize("words", [("stats",), ("job", "info", JOBS[0].job_id), ("stats", "-o", "jobids", "--csv")])
def test_a_database_that_cannot_be_read_is_no_0(
    site: ConfiguredSite, words: tuple[str, ...], change: Callable[[Path], object]
) -> None:
    write(site, JOBS)
    change(site.database())
    run = site.run(*words)
    assert run.status == 66
    assert "Traceback" not in run.err
    assert run.out in ("", "job_id\n") or words[-1] == "--csv"
    assert str(site.database()) in run.err or str(site.control) in run.err


def test_nothing_is_written_beside_the_databases_nor_the_state(site: ConfiguredSite) -> None:
    write(site, JOBS[:20])
    before = {path: path.stat().st_mtime_ns for path in site.database().parent.iterdir()}
    stats(site)
    site.run("job", "info", JOBS[0].job_id)
    assert {path: path.stat().st_mtime_ns for path in site.database().parent.iterdir()} == before
    assert not site.state.exists()


def test_rows_in_the_wal_of_a_living_writer_are_counted(site: ConfiguredSite) -> None:
    with site.arex() as arex:
        arex.connection.execute("PRAGMA wal_autocheckpoint = 0")
        arex.write_all(JOBS[:40])
        assert told(stats(site, "--json")) == totals(JOBS[:40])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_only_when_it_takes_long_and_is_cleared() -> None:
    now = [0.0]
    shown = Terminal()
    report = CountingReport(shown, monotonic=lambda: now[0], quiet=False, what="rows")
    report.seen(500)
    assert shown.getvalue() == ""
    now[0] = 2.5
    report.seen(734)
    assert "1,234 rows" in shown.getvalue()
    report.close()
    assert shown.getvalue().endswith("\r\x1b[K")
    quiet = CountingReport(Terminal(), monotonic=lambda: now[0] + 100, quiet=True, what="rows")
    quiet.seen(1)


# Plans


def test_no_question_by_a_key_scans_the_store(site: ConfiguredSite) -> None:
    """Sums without a window read all jobs; what names a job or a time goes by an index."""
    write(site, JOBS[:20], RUNNING)
    site.state.parent.mkdir()
    stats(site)
    window = {"first": 5, "last": 9}
    key = {"digest": b"x", "job_id": "x", "local_id": "x"}
    questions: dict[str, tuple[Any, str]] = {
        usage.groups_question(usage.JOBS, hosts=False): (window, "job_by_end"),
        usage.waits_question(usage.JOBS): (window, "job_by_end"),
        usage.UNREADABLE: (window, "skipped_by_end"),
        sums.sums_question(usage.JOBS, "queue", "ended_at BETWEEN :first AND :last"): (window, "job_by_end"),
        queries_of_store.ANY: (window, "job_by_end"),
        queries_of_store.OF_JOB: (key, "job_by_id"),
        queries_of_store.PARTIAL_OF_JOB: (key, "partial_by_id"),
    }
    with closing(sqlite3.connect(site.state.with_name("jobs.db"))) as connection:
        for question, (values, expected) in questions.items():
            steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {question}", values)]
            assert not [step for step in steps if step.startswith("SCAN job")], question
            assert expected in " ".join(steps), (question, steps)


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(site: ConfiguredSite) -> None:
    write(site, list(generate(1, 3_000, START, END)))  # more ids than a pipe holds
    site.save()
    command = [sys.executable, "-c", "from publisher.cli.main import main; main()", "--config", str(site.path)]
    asked = subprocess.Popen([*command, "stats", "-o", "jobids"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert asked.stdout is not None
    assert asked.stdout.readline().strip()
    asked.stdout.close()
    assert asked.stderr is not None
    assert asked.stderr.read() == b""
    asked.stderr.close()
    assert asked.wait(PATIENCE_S) == 0


# Words for the shell


def test_complete_offers_what_begins_like_this(full_site: ConfiguredSite) -> None:
    ids = sorted(job.job_id for job in [*JOBS, *RUNNING])
    for beginning in ("", ids[0][:1], ids[7], "nothing begins like this"):
        offered = full_site.run("complete", "jobs", beginning)
        assert offered.status == 0, offered.err
        assert offered.out.splitlines() == [one for one in ids if one.startswith(beginning)][:200]
    queues = sorted({job.queue for job in [*JOBS, *RUNNING]})
    assert full_site.run("complete", "queues").out.splitlines() == queues
    assert full_site.run("complete", "queues", queues[0][:2]).out.splitlines() == [
        queue for queue in queues if queue.startswith(queues[0][:2])
    ]
    assert full_site.run("complete", "targets", "f").out == "files\n"


def test_complete_takes_no_kind_that_it_does_not_know(site: ConfiguredSite) -> None:
    run = site.run("complete", "job")
    assert run.status == 64
    assert "did you mean jobs?" in run.err
