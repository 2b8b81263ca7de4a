"""Parquet: the same jobs as in JSON lines, deliveries and charges that add up, months that stay, and the page's questions."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import generate, hostile
from tests.support.sites import SiteUnderTest

duckdb = pytest.importorskip("duckdb")
parquet = pytest.importorskip("pyarrow.parquet")

START, END = datetime(2026, 8, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(3, 90, START, END))
PAGE = Path(__file__).parents[2] / "docs" / "analytics.md"


@pytest.fixture
def used(site: SiteUnderTest) -> SiteUnderTest:
    """All its jobs are delivered and charged."""
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    site.fill(*JOBS)
    assert site.publish().status == 0
    assert site.run("charge", "--from", "2026-08-01", "--to", "2026-11-01").status == 0
    return site


def written(site: SiteUnderTest, folder: Path) -> str:
    run = site.run("export", "--format", "parquet", "--partition", "month", "--output", str(folder))
    assert run.status == 0, run.err
    return run.out


def ask(folder: Path, question: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET file_search_path = '{folder}'")
        return list(connection.execute(question).fetchall())


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        {},
        {"charges": [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]},
        {
            "benchmark": [
                {"until": "2026-09-14", "type": "HEPSPEC", "value": 9.8, "override": True},
                {"type": "HEPscore23", "value": 11.5},
            ],
            "vo_rules": [{"field": "queue", "pattern": "long*", "vo": "theory", "override": True}],
        },
        {"identity": {"mode": "pseudonym", "secret_file": "secret", "period": "month"}},
    ],
    ids=["plain", "charges", "rules", "pseudonyms"],
)
def test_jobs_are_those_of_the_other_formats(site: SiteUnderTest, tmp_path: Path, records: dict[str, Any]) -> None:
    """Where a filter is named, rows are read and told one by one; here those of a kind are told together."""
    (tmp_path / "secret").write_text("0123456789abcdef" * 4)
    (tmp_path / "secret").chmod(0o600)
    if "identity" in records:
        records["identity"]["secret_file"] = str(tmp_path / "secret")
    site.config["records"].update(records)
    site.fill(*(replace(job, job_id=f"{job.job_id}{n}") for n in range(8) for job in JOBS))
    site.save()
    written(site, tmp_path / "files")
    each = [site.run("export", "--filter-state", state).out for state in ("completed", "failed", "aborted")]
    lines = {one["job_id"]: one for one in map(json.loads, "".join(each).splitlines())}
    rows = parquet.read_table(tmp_path / "files" / "jobs").to_pylist()
    assert len(rows) == len(lines) == 8 * len(JOBS)
    for row in rows:
        line = lines[row["job_id"]]
        assert line.pop("schema") == 1
        for name, value in line.items():
            found = row[name]
            if isinstance(found, Decimal):
                assert float(found) == pytest.approx(float(value), abs=1e-9), name
            else:
                assert plain(found) == value, name


@pytest.mark.slow
def test_what_no_column_takes_stops_nothing(site: SiteUnderTest, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are escaped, numbers of more than 64 bits left out."""
    site.fill(*hostile(5, start=START, end=END))
    written(site, tmp_path / "lake")
    question = "SELECT job_id, queue, wall_core_s FROM 'jobs/**/*.parquet'"
    jobs = list(map(json.loads, site.run("export").out.splitlines()))
    assert any(job["wall_core_s"] and job["wall_core_s"] >= 2**63 for job in jobs)
    expected = [
        (
            job["job_id"].encode("utf-8", "backslashreplace").decode(),
            job["queue"] and job["queue"].encode("utf-8", "backslashreplace").decode(),
            job["wall_core_s"] if job["wall_core_s"] is None or job["wall_core_s"] < 2**63 else None,
        )
        for job in jobs
    ]
    assert Counter(ask(tmp_path / "lake", question)) == Counter(expected)


def test_a_job_of_any_end_is_in_one_month_or_in_none(site: SiteUnderTest, tmp_path: Path) -> None:
    """By clocks that were wrong: the calendar's last months, what is right behind them, and the last of all seconds."""
    last = 253_402_300_799
    ends = {0: 1, 1: last - 31 * 86_400, 2: last - 31 * 86_400 + 1, 3: last, 4: last + 1, 5: 2**40, 6: 2**63 - 1}
    months = ["1970-01", "9999-11", "9999-12", "9999-12", None, None, None]
    site.fill(*JOBS)
    with closing(sqlite3.connect(site.database())) as arex, arex:
        for number, end in ends.items():
            arex.execute("UPDATE AAR SET EndTime = ? WHERE JobID = ?", (end, JOBS[number].job_id))
    assert len(re.findall(r"^jobs ", written(site, tmp_path / "lake"), re.MULTILINE)) == 7
    question = "SELECT job_id, month, ended_at IS NULL FROM read_parquet('jobs/*/*.parquet', hive_partitioning = true)"
    found = {job: (month, is_unknown) for job, month, is_unknown in ask(tmp_path / "lake", question)}
    assert len(found) == len(JOBS)
    for number, month in enumerate(months):
        assert found[JOBS[number].job_id] == (month, month is None), ends[number]
    questions = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    by_vo = ask(tmp_path / "lake", questions[0])
    assert sum(row[2] for row in by_vo) == len(JOBS)
    assert "jobs" not in written(site, tmp_path / "lake")


def test_sums_are_the_ledgers(used: SiteUnderTest, tmp_path: Path) -> None:
    written(used, tmp_path)
    (delivered,) = ask(tmp_path, "SELECT count(*), count(DISTINCT run) FROM read_parquet('deliveries/*/*.parquet')")
    assert delivered == (len(JOBS), len(JOBS))
    of_ledger = used.run("status", "--json").json["targets"]["egi"]["delivered"]
    assert of_ledger == len(JOBS)
    (wall,) = ask(tmp_path, "SELECT sum(wall_s) FROM read_parquet('jobs/*/*.parquet')")
    assert wall == (sum(job.wall_s for job in JOBS),)
    (missing,) = ask(
        tmp_path,
        "SELECT count(*) FROM read_parquet('jobs/*/*.parquet') AS jobs WHERE NOT EXISTS "
        "(SELECT 1 FROM read_parquet('deliveries/*/*.parquet') AS sent WHERE sent.run = jobs.run)",
    )
    assert missing == (0,)


def test_only_what_changed_is_written_again(used: SiteUnderTest, tmp_path: Path) -> None:
    assert len(re.findall(r"^jobs ", written(used, tmp_path), re.MULTILINE)) == 3
    assert "jobs" not in written(used, tmp_path)
    more = list(generate(4, 5, datetime(2026, 10, 1, tzinfo=UTC), END))
    used.fill(*more)
    assert re.findall(r"^jobs +(\S+)", written(used, tmp_path), re.MULTILINE) == ["2026-10"]
    (count,) = ask(tmp_path, "SELECT count(*) FROM read_parquet('jobs/*/*.parquet')")
    assert count == (len(JOBS) + 5,)
    used.config["records"]["identity"] = {"mode": "withheld"}
    used.save()
    assert len(re.findall(r"^jobs ", written(used, tmp_path), re.MULTILINE)) == 3


def test_every_question_of_the_page_is_answered(used: SiteUnderTest, tmp_path: Path) -> None:
    written(used, tmp_path)
    questions = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(questions) == 6
    by_vo, efficiency, waits, missing, lags, charges = (ask(tmp_path, question) for question in questions)
    assert sum(row[2] for row in by_vo) == len(JOBS)
    assert all((efficiency, waits, lags, charges))
    assert missing == []
    assert {row[1] for row in charges} <= {"CPUh", None}


def test_filters_and_standard_output_are_refused(site: SiteUnderTest, tmp_path: Path) -> None:
    site.fill(*JOBS[:2])
    assert site.run("export", "--format", "parquet").status == 64
    refused = site.run("export", "--format", "parquet", "-o", str(tmp_path / "x"), "--filter-queue", "grid")
    assert refused.status == 64
