"""`report`: every number against a direct question to the databases; nothing of users where they are not to be told."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from publisher.jobs.usage import group_of
from publisher.reporting.html.values import exit_text, hours_text, share_text
from publisher.reporting.usage import OTHER_VOS, Cell, Cells
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.reporting.report_numbers import TABLES, WAIT_BOUNDS, Truth, csv_rows, page_tables, sql, words
from tests.support.jobs import make_job
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, Run, SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
FIRST, LAST = int(START.timestamp()), int(END.timestamp())
WINDOW = ("--from", "2026-10", "--to", "2026-10")
UNTIL_NOW = ("--from", "2026-10", "--to", "today")
JOBS = list(generate(1, 420, START, END))
LATER = list(generate(2, 40, START, END))
RULE = {"formula": "RunTime * NumCPUs", "unit": "core hour"}
TITLES = {"users": "By user", "vos": "By VO", "queues": "By queue", "days": "By day", "projects": "Top projects"}
HEADS = {"jobs": "Jobs", "failed": "Failed", "wall_s": "Wall hours", "wall_core_s": "Core hours", "cpu_s": "CPU hours"}


class Told:
    """A report of a site as it told it: its CSV files, and its page where that is looked at."""

    def __init__(self, site: ConfiguredSite, *words: str, page: bool = False) -> None:
        path, files = site.folder / "report.html", site.folder / "csv"
        self.run = site.run("report", "--csv", str(files), *(("-o", str(path)) if page else ()), *words)
        assert self.run.status == 0, self.run.err
        self.page = path.read_text(encoding="utf-8") if page else ""
        self.files = {path.stem: path.read_bytes().decode() for path in files.iterdir()}
        self.tables = page_tables(self.page) if page else {}

    def rows(self, name: str) -> list[dict[str, Any]]:
        return csv_rows(self.files[name])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteUnderTest]:
    """The demo's jobs, published twice over, charged, with one set aside and some that came late."""
    folder = tmp_path_factory.mktemp("report")
    pki = PKI.create(folder / "pki")
    with FakeAMS(pki) as fake:
        site = SiteUnderTest(folder, pki, fake)
        site.config["targets"]["egi"]["sync"] = True
        site.config["targets"]["months"] = {
            "type": "spool",
            "path": str(folder / "out"),
            "format": "apel-summary-0.4",
            "start": "all",
        }
        site.config["records"]["charges"] = [RULE]
        with site.arex() as arex:
            arex.write_all(JOBS)
            arex.write(replace(JOBS[0], job_id="strange", local_job_id="s1", wall_s=-5))
            arex.accept(replace(LATER[-1], status="in-progress"))
        assert site.run("publish", "--force").status == 65
        site.fill(*LATER[:-1])
        assert site.run("charge", *WINDOW).status == 0
        yield site


@pytest.fixture(scope="module")
def told(demo: SiteUnderTest) -> Told:
    return Told(demo, *UNTIL_NOW, "--name-users", page=True)


@pytest.fixture
def truth(demo: SiteUnderTest) -> Iterator[Truth]:
    """Without the job that has no sensible wall time, which is in no number but one."""
    found = Truth(demo.database(), FIRST, LAST)
    found.ask("DELETE FROM AAR WHERE JobID = 'strange'")  # in a transaction that is never committed
    yield found
    found.close()


@pytest.fixture
def small(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "start": "all"}}
    return ConfiguredSite(tmp_path, pki, pki.host(), spool)


def write(site: ConfiguredSite, jobs: list[SampleJob], schema: Any = 2) -> None:
    site.fill(*jobs, schema=schema)


# What jobs used


@pytest.mark.parametrize("table", TABLES)
def test_what_jobs_used_is_what_the_database_says(told: Told, truth: Truth, table: str) -> None:
    expected = truth.used(table)
    rows = told.rows(table)
    key = next(iter(rows[0]))
    assert {row[key] for row in rows} == set(expected)
    assert len(rows) == len(expected)
    for row in rows:
        for column, value in expected[row[key]].items():
            if column.startswith("scaled"):
                assert row[column] == ("" if value is None else f"{value / 1000:.3f}".rstrip("0").rstrip(".")), column
            elif isinstance(value, float):
                assert row[column] == f"{value:.6f}", column
            else:
                assert row[column] == str(value), column
    if table == "benchmarks":
        whole = truth.one("sum(wall_core)")
        assert [row["wall_core_share"] for row in rows] == [
            f"{expected[row[key]]['wall_core_s'] / whole:.6f}" for row in rows
        ]


@pytest.mark.parametrize("table", TITLES)
def test_the_page_shows_the_same_and_its_sum(told: Told, truth: Truth, table: str) -> None:
    expected = truth.used(table)
    *rows, foot = told.tables[TITLES[table]]
    first = next(iter(rows[0]))
    assert len(rows) == len(expected)
    for row in rows:
        one = expected["" if row[first] in ("(none)", "(no VO)") else row[first]]
        assert {name: row[head] for name, head in HEADS.items()} == {name: str(one[name]) for name in HEADS}
        assert float(row["Failed share"]) == pytest.approx(one["failed_share"])
        assert float(row["CPU efficiency"]) == pytest.approx(one["cpu_efficiency"])
    assert foot["Jobs"] == f"{truth.one('count(*)'):,}"
    assert foot["Core hours"] == hours_text(truth.one("sum(wall_core)"))
    assert foot["CPU hours"] == hours_text(truth.one("sum(cpu)"))


def test_the_first_numbers(told: Told, truth: Truth) -> None:
    said = {
        one.findtext("dt"): one.findall("dd")[0].text
        for one in html.document_fromstring(told.page).iterfind(".//dl/div")
    }
    waits = sorted(truth.one("wait", f"id = {row['id']}") for row in truth.ask("SELECT id FROM timed WHERE wait >= 0"))
    assert said == {
        "Jobs": f"{truth.one('count(*)'):,}",
        "Core hours": hours_text(truth.one("sum(wall_core)")),
        **{
            f"{kind} hours": hours_text(
                truth.one(f"sum(CASE WHEN kind = '{kind}' THEN wall_core * thousandths END)") / 1000
            )
            for kind in ("HEPSPEC", "HEPscore23", "Si2k")
        },
        "CPU efficiency": share_text(truth.one("sum(cpu) * 1.0 / sum(wall_core)")),
        "Failed": share_text(truth.one("sum(status = 'failed') * 1.0 / count(*)")),
        "Median waiting time": f"{waits[(len(waits) + 1) // 2 - 1] // 60} min",
    }
    assert "1 job has values that cannot be read" in told.page
    assert f"{truth.one('sum(coreless)')} jobs have an unknown number; each counts as one core" in told.page
    lost_s = truth.one("sum(wall)", "benchmark = 'HEPSPEC:1.0'")
    assert lost_s
    assert f"{lost_s / 3600:,.1f} h of wall time in the queue" in words(html.document_fromstring(told.page))
    assert "carry HEPSPEC:1.0" in told.page


def test_the_default_benchmark_of_jobs_that_never_ran_is_no_highlight(small: ConfiguredSite) -> None:
    write(small, [replace(job, benchmark="HEPSPEC:1.0", wall_s=0, cpu_user_s=0, cpu_kernel_s=0) for job in JOBS[:3]])
    assert "HEPSPEC:1.0" not in Told(small, *WINDOW, page=True).page


FAILURES = """
    SELECT vo, queue, CASE WHEN ExitCode > 2147483647 THEN ExitCode - 4294967296 ELSE ExitCode END, count(*), sum(wall_core)
    FROM timed JOIN AAR ON RecordID = id WHERE status = 'failed' GROUP BY 1, 2, 3"""


def test_failures_are_told_by_vo_queue_and_exit_code(told: Told, truth: Truth) -> None:
    expected = {tuple(map(str, row.values())) for row in truth.ask(FAILURES)}
    rows = told.rows("failures")
    assert {(row["vo"], row["queue"], row["exit_code"], row["jobs"], row["wall_core_s"]) for row in rows} == expected
    assert len(expected) > 5
    assert [int(row["jobs"]) for row in rows] == sorted((int(row["jobs"]) for row in rows), reverse=True)


def test_failures_have_a_row_for_each_reason_with_what_to_do(told: Told, truth: Truth) -> None:
    jobs: Counter[str] = Counter()
    vos: dict[str, Counter[str]] = {}
    for vo, _, code, count, _ in (tuple(map(str, row.values())) for row in truth.ask(FAILURES)):
        jobs[code] += int(count)
        vos.setdefault(code, Counter())[vo] += int(count)
    rows = told.rows("failure_reasons")
    assert {row["exit_code"]: int(row["jobs"]) for row in rows} == jobs
    assert [int(row["jobs"]) for row in rows] == sorted(jobs.values(), reverse=True)
    for row in rows:
        of_vo = vos[row["exit_code"]]
        assert of_vo[row["vo"]] == max(of_vo.values())
        assert float(row["vo_share"]) == pytest.approx(of_vo[row["vo"]] / jobs[row["exit_code"]], abs=1e-6)
        assert row["advice"]


def test_readers_of_the_page_are_shown_no_commands(small: ConfiguredSite) -> None:
    small.config["records"]["charges"] = [RULE]
    write(small, JOBS[:30])
    path = small.folder / "page.html"
    run = small.run("report", "-o", str(path), *WINDOW)
    assert "`publisher" not in path.read_text()
    assert "--name-users" not in path.read_text()
    assert "--name-users names them" in run.err
    assert "`publisher charge --from 2026-10 --to 2026-10` computes them" in run.err


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "not known"),
        (0, "the program itself did not fail"),
        (1, "the program's own"),
        (-1, "the program's own"),
        (127, "command not found"),
        (137, "ended by SIGKILL, often a limit of memory or time"),
        (139, "ended by SIGSEGV"),
        (271, "ended by SIGTERM, often a limit of memory or time"),
    ],
)
def test_exit_codes_are_explained(code: int | None, words: str) -> None:
    assert exit_text(code) == words


def test_three_questions_are_answered_first(told: Told, truth: Truth) -> None:
    boxes = html.document_fromstring(told.page).iterfind(".//div[@class='answer']")
    who, failed, delivered = ("".join(map(str, box.itertext())) for box in boxes)
    largest = max(truth.used("vos").items(), key=lambda one: one[1]["wall_core_s"])
    assert f"{largest[0]} {hours_text(largest[1]['wall_core_s'])} core hours" in " ".join(who.split())
    jobs, bad = truth.one("count(*)"), truth.one("sum(status = 'failed')")
    assert f"{bad:,} of {jobs:,} jobs, {share_text(bad / jobs)}" in failed
    by_code: Counter[int | None] = Counter()
    for _, _, code, count, _ in (tuple(row.values()) for row in truth.ask(FAILURES)):
        by_code[code] += count
    assert f"): {share_text(max(by_code.values()) / bad)} of them." in failed
    missing = 2 * (len(LATER) - 1)
    assert f"No: {missing} jobs are missing." in delivered
    assert f"{len(JOBS):,} of {len(JOBS) + len(LATER) - 1:,} jobs" in delivered


def test_all_that_is_wanted_was_delivered(small: ConfiguredSite) -> None:
    write(small, JOBS[:60])
    assert small.run("publish", "--force").status in (0, 65)
    shown = small.run("report", "--format", "terminal", *WINDOW).out
    assert "Was it all delivered? Yes, every job that a target wants." in shown


# Months


def in_months(*counts: int) -> list[Any]:
    """So many jobs in each month from September on, of one core and an hour each."""
    return [
        replace(
            JOBS[0],
            end_time=int(datetime(2026, 9 + month, 10, tzinfo=UTC).timestamp()) + number,
            submit_time=int(datetime(2026, 9 + month, 9, tzinfo=UTC).timestamp()),
            wall_s=3600,
            cpus=1,
            job_id=f"m{month}-{number}",
            local_job_id=f"{month}{number}",
        )
        for month, count in enumerate(counts)
        for number in range(count)
    ]


def test_a_month_is_set_against_the_one_before(small: ConfiguredSite) -> None:
    write(small, in_months(4, 6))
    told = Told(small, *WINDOW, page=True)
    rows = [(row["month"], row["jobs"], row["change"]) for row in told.rows("months")]
    assert rows == [("2026-09", "4", ""), ("2026-10", "6", "0.500000")]
    assert [row["jobs"] for row in told.rows("vos")] == ["6"]
    assert "2026-10: +50.0 % against the month before" in words(html.document_fromstring(told.page))
    assert Told(small, "--from", "2026-10-02", "--to", "2026-10").rows("months")[0]["month"] == "2026-10"


def test_a_month_that_is_not_over_is_set_against_none(small: ConfiguredSite) -> None:
    """Nor is one whose month before is not the last one that had jobs."""
    now = datetime.now(UTC)
    day = (now.replace(day=1) - timedelta(days=3)).replace(hour=0, minute=0, second=0, microsecond=0)
    months = [(now.replace(hour=0, minute=0, second=0, microsecond=0), 1), (day, 2)]
    write(
        small,
        [
            replace(in_months(1)[0], end_time=int(end.timestamp()), job_id=f"n{at}", local_job_id=f"n{at}")
            for end, jobs in months
            for at in range(jobs * 10, jobs * 11)
        ],
    )
    told = Told(small, "--from", "last-month", "--to", "this-month", page=True)
    *_, last, this = told.rows("months")
    assert (last["month"], last["jobs"]) == (f"{day:%Y-%m}", "2")
    assert (this["month"], this["jobs"], this["change"]) == (f"{now:%Y-%m}", "1", "")
    assert f"Only a part of {now:%Y-%m} is in it." in told.page


def test_a_year_is_shown_by_months(small: ConfiguredSite) -> None:
    write(small, in_months(4, 6))
    told = Told(small, "--from", "2026-01", "--to", "2026-10", page=True)
    assert "By day" not in told.tables
    months = {row["Month"]: (row["Jobs"], row["Change"]) for row in told.tables["Month against month"]}
    expected = {"2025-12": ("0", "")} | {f"2026-{month:02}": ("0", "") for month in range(1, 9)}
    assert months == expected | {"2026-09": ("4", ""), "2026-10": ("6", "0.5")}
    assert [row["jobs"] for row in told.rows("days")] == ["4", "6"]
    shown = small.run("report", "--format", "terminal", "--from", "2026-01", "--to", "2026-10").out
    assert "By day" not in shown
    assert "Month against month" in shown


# Waiting times


def test_waiting_times_and_unknown_starts(told: Told, truth: Truth) -> None:
    """The sample has jobs that started in the hour that came twice, and some that never did."""
    assert truth.one("count(*)", "wait IS NULL")
    spread: dict[str, dict[str, int]] = {}
    for row in told.rows("waits"):
        spread.setdefault(row["queue"], {})[row["waited"]] = int(row["jobs"])
    quantiles = {row["queue"]: row for row in told.rows("waits_by_queue")}
    assert set(quantiles) == set(spread) == {row["queue"] for row in truth.ask("SELECT queue FROM timed")}
    for queue, counted in spread.items():
        waits = [wait for wait in truth.waits(queue) if wait >= 0]
        negative = truth.one("count(*)", f"queue = '{queue}' AND wait < 0")
        unknown = truth.one("count(*)", f"queue = '{queue}' AND wait IS NULL")
        expected = {name: sum(low <= wait < high for wait in waits) for name, (low, high) in WAIT_BOUNDS.items()}
        assert {name: jobs for name, jobs in counted.items() if name != "unknown"} == expected
        assert counted.get("unknown", 0) == unknown + negative
        row = quantiles[queue]
        assert (row["known"], row["unknown"], row["negative"]) == tuple(map(str, (len(waits), unknown, negative)))
        assert row["median_min"] == str(waits[-(-len(waits) // 2) - 1] // 60)
        assert row["p90_min"] == str(waits[-(-len(waits) * 9 // 10) - 1] // 60)


# Charges, delivery, drift


def test_charges_are_the_sums_of_what_is_kept(demo: SiteUnderTest, told: Told) -> None:
    question = """
        SELECT project, job_group, unit, count(*), round(sum(amount), 6)
        FROM charge JOIN tariff ON tariff.id = tariff WHERE amount IS NOT NULL GROUP BY 1, 2, 3"""
    rows = [
        (row["project"], row["group"], row["unit"], int(row["jobs"]), round(float(row["amount"]), 6))
        for row in told.rows("charges")
    ]
    assert sorted(rows) == sorted(sql(demo.state, question))
    assert len(rows) > 3


def test_delivery_is_what_the_ledger_says(demo: SiteUnderTest, told: Told) -> None:
    status = demo.run("status", "--json").json["targets"]
    for row in told.rows("delivery"):
        one = status[row["target"]]
        (delivered,) = sql(demo.state, f"SELECT delivered FROM target WHERE name = '{row['target']}'")[0]
        assert int(row["delivered"]) == delivered == one["delivered"] == len(JOBS)
        assert int(row["wanted"]) == len(JOBS) + len(LATER) - 1
        assert int(row["pending"]) == one["pending"] == len(LATER) - 1
        assert int(row["late"]) == one["late"] > 0
        held = "SELECT count(*) FROM quarantine JOIN target ON target.id = target WHERE name = '{}'"
        assert int(row["quarantined"]) == sql(demo.state, held.format(row["target"]))[0][0] == 1
        assert (row["in_doubt"], row["held_months"], row["rejected_messages"]) == ("0", "0", "0")
    assert [(row["target"], row["rule"], row["jobs"]) for row in told.rows("set_aside")] == [
        ("egi", "negative-duration", "1"),
        ("months", "negative-duration", "1"),
    ]


def test_messages_and_bytes_are_those_of_the_ledger(demo: SiteUnderTest, told: Told) -> None:
    question = """
        SELECT date(settled_at, 'unixepoch'), name, format, count(*), sum(records), sum(bytes)
        FROM message JOIN target ON target.id = target WHERE state = 2 GROUP BY 1, 2, 3"""
    rows = [
        (row["day"], row["target"], row["format"], int(row["messages"]), int(row["records"]), int(row["bytes"]))
        for row in told.rows("messages")
    ]
    assert sorted(rows) == sorted(sql(demo.state, question))
    assert {row[2] for row in rows} == {"car", "apel-sync-0.1", "apel-summary-0.4"}


def test_lag_runs_from_the_end_of_a_job_to_its_acceptance(demo: SiteUnderTest, told: Told) -> None:
    bounds = {"< 1 h": 3600, "1-3 h": 3 * 3600, "3-6 h": 6 * 3600, "6-12 h": 12 * 3600, "12-24 h": 86_400}
    bounds |= {"1-2 days": 2 * 86_400, "2-7 days": 7 * 86_400, "7-31 days": 31 * 86_400, "> 31 days": 10**12}
    expected: Counter[tuple[str, str]] = Counter()
    some = sorted(JOBS, key=lambda job: job.end_time)[::12]  # one of each lag that more jobs have
    for job in some:
        for one in demo.run("trace", "--json", job.job_id).json["deliveries"]:
            if one["state"] == "sent":
                lag = datetime.fromisoformat(one["sent"]).timestamp() - job.end_time
                expected[one["target"], next(name for name, bound in bounds.items() if lag < bound)] += 1
    assert expected.total() == 2 * len(some)
    counted = {(row["target"], row["lag"]): int(row["jobs"]) for row in told.rows("lags")}
    assert sum(counted.values()) == 2 * len(JOBS)
    assert all(counted[at] >= jobs for at, jobs in expected.items())
    assert {at for at, jobs in counted.items() if jobs > 12} <= set(expected)


def test_drift_is_what_sync_check_finds(demo: SiteUnderTest, told: Told) -> None:
    found = demo.run("sync", "--check", "--json", "--months", "all").json["rows"]
    # Of the row that cannot be read nobody knows the submit host; the report has it among the unreadable ones.
    checked = [row for row in found if row["submit_host"]]
    assert [(row["database"], row["quarantined"]) for row in found if not row["submit_host"]] == [(1, 1)] * 2
    ours = {(row["target"], row["month"], row["submit_host"]): row for row in told.rows("drift")}
    assert {(row["target"], row["month"], row["submit_host"]) for row in checked} == set(ours)
    for row in checked:
        mine = ours[row["target"], row["month"], row["submit_host"]]
        assert [mine[name] for name in ("delivered", "before")] == [str(row["delivered"]), str(row["before"])]
        assert int(mine["database"]) == row["database"]
        assert mine["told"] == ("" if row["told"] is None else str(row["told"]))
        assert (mine["finding"] == "agrees") == (not row["pending"])
        assert f"{row['pending']} not delivered" in mine["finding"]


@pytest.mark.parametrize("how", ["purged", "retired"])
def test_jobs_that_the_database_has_no_more_are_no_difference(small: ConfiguredSite, how: str) -> None:
    """As `sync --check` says, which alone can tell whether others are pending in their place."""
    write(small, JOBS[:30])
    assert small.run("publish", "--force").status in (0, 65)
    if how == "purged":
        with small.arex() as arex:
            arex.connection.execute("DELETE FROM AAR WHERE RecordID % 2")
    else:
        write(small, JOBS[30:31], 1)
        small.database(2).unlink()
        assert small.run("publish", "--force").status == 66
        assert small.run("source", "retire", "--force", str(small.database(2))).status == 0
    checked = small.run("sync", "--check")
    assert f" {how}" in checked.out
    assert "no difference" in checked.out
    told = small.run("report", "--format", "terminal", *WINDOW).out
    assert "! Drift" not in told
    assert "Drift: of 1 month jobs were delivered that the database no longer has; `publisher sync --check`" in told
    assert "delivered that the database no longer has" in Told(small, *WINDOW).rows("drift")[0]["finding"]
    write(small, JOBS[40:90])
    assert "no difference" not in small.run("sync", "--check").out
    assert "! Drift" in small.run("report", "--format", "terminal", *WINDOW).out


# What is read


def test_a_job_in_two_databases_counts_once(small: ConfiguredSite) -> None:
    write(small, JOBS[:60], 1)
    write(small, JOBS[:50], 2)
    told = Told(small, *WINDOW)
    assert sum(int(row["jobs"]) for row in told.rows("days")) == 60


def test_both_schemas_say_the_same(tmp_path: Path, pki: PKI) -> None:
    said = []
    for schema in (1, 2):
        folder = tmp_path / str(schema)
        folder.mkdir()
        spool = {"files": {"type": "spool", "path": str(folder / "out"), "format": "car", "start": "all"}}
        site = ConfiguredSite(folder, pki, pki.host(), spool)
        write(site, JOBS[:200], schema)
        said.append(Told(site, *WINDOW).files)
    assert said[0] == said[1]
    assert len(csv_rows(said[0]["benchmarks"])) > 3


def test_rules_that_need_whole_records_make_no_other_sums(small: ConfiguredSite) -> None:
    write(small, JOBS[:200])
    plain = Told(small, *WINDOW)
    small.config["records"]["benchmark"] = [
        {"type": "HEPSPEC", "value": 7.5, "host": "nowhere*"},
        {"type": "HEPscore23", "value": 11.5},
    ]
    small.save()
    assert Told(small, *WINDOW).files == plain.files


def test_a_benchmark_changes_within_a_day(small: ConfiguredSite) -> None:
    bare = [job for job in JOBS if job.benchmark is None]
    at = sorted(job.end_time for job in bare)[len(bare) // 2]
    when = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    small.config["records"]["benchmark"] = [
        {"type": "HEPscore23", "value": 10, "until": when},
        {"type": "HEPscore23", "value": 20, "from": when},
    ]
    write(small, bare)
    rows = {row["benchmark"]: int(row["jobs"]) for row in Told(small, *WINDOW).rows("benchmarks")}
    before = sum(job.end_time < at for job in bare)
    assert rows == {"HEPscore23 10": before, "HEPscore23 20": len(bare) - before}


def test_a_period_without_jobs_is_told_too(small: ConfiguredSite) -> None:
    write(small, JOBS[:3])
    told = Told(small, "--from", "2025-02", "--to", "2025-03", page=True)
    assert "There were no jobs." in told.page
    assert told.rows("days") == []
    assert "it never had a round" in told.page


def test_a_part_of_a_month_is_no_drift(small: ConfiguredSite) -> None:
    write(small, JOBS[:30])
    assert small.run("publish", "--force").status in (0, 65)
    told = Told(small, "--from", "2026-10-05", "--to", "2026-10", page=True)
    assert told.rows("drift") == []
    assert "the period holds only a part of them: 2026-10" in told.page


# Charges that were never computed


def test_charges_that_were_never_computed_are_said_with_the_command(small: ConfiguredSite) -> None:
    small.config["records"]["charges"] = [RULE]
    write(small, JOBS[:30])
    command = "publisher charge --from 2026-10 --to 2026-10"
    told = Told(small, *WINDOW, page=True)
    assert "No charges of this period were ever computed." in told.page
    assert (
        f"! Charges: those of this period were never computed; `{command}`"
        in small.run("report", "--format", "terminal", *WINDOW).out
    )
    assert small.run(*command.split()[1:]).status == 0
    assert "never computed" not in Told(small, *WINDOW, page=True).page


def test_without_rules_nothing_is_charged(small: ConfiguredSite) -> None:
    write(small, JOBS[:3])
    page = Told(small, *WINDOW, page=True).page
    assert "The site has no charge rules." in page
    assert "never computed" not in page


# What a reader may choose from


GROUP = group_of(make_job(gpu_count=3))._replace(jobs=2, wall_s=10)


def test_too_many_cells_are_put_together() -> None:
    cells = Cells(most=3)
    for number in range(8):
        cell = Cell(day=FIRST // 86_400 + number, vo="v", queue="q", user=f"u{number}", project=f"p{number}")
        cells.add(cell, GROUP, None)
    assert cells.left_out == ["projects", "users", "queues", "days"]
    assert [(cell, sums["jobs"], sums["gpu_s"]) for cell, sums in cells.sums.items()] == [
        (Cell(day=FIRST // 86_400, vo="v", queue="", user="", project=""), 16, 240)
    ]


def test_days_stay_when_there_are_too_many_users_and_projects() -> None:
    cells = Cells(most=4)
    for number in range(12):
        cell = Cell(day=FIRST // 86_400 + number % 3, vo="v", queue="q", user=f"u{number}", project=f"p{number}")
        cells.add(cell, GROUP, None)
    assert cells.left_out == ["projects", "users"]
    assert [(cell.day - FIRST // 86_400, sums["jobs"]) for cell, sums in cells.sums.items()] == [(0, 8), (1, 8), (2, 8)]


def test_days_stay_when_there_are_too_many_vos() -> None:
    """Of 300 VOs on 10 days, those with the most work stay apart."""
    cells = Cells(most=100)
    for day in range(10):
        for number in range(300):
            cell = Cell(day=FIRST // 86_400 + day, vo=f"vo{number}", queue="q", user=f"u{number % 7}", project="p")
            cells.add(cell, GROUP._replace(wall_core_s=number), None)
    cells.fit()
    assert cells.left_out == ["projects", "users", "queues", "small VOs"]
    by_vo = Counter(cell.vo for cell in cells.sums)
    assert by_vo == dict.fromkeys([*(f"vo{number}" for number in range(291, 300)), OTHER_VOS], 10)
    assert sum(sums["jobs"] for sums in cells.sums.values()) == 300 * 10 * GROUP.jobs
    assert sum(sums["wall_core_s"] for sums in cells.sums.values()) == sum(range(300)) * 10


# Users


def test_users_are_numbers_unless_names_are_asked_for(small: ConfiguredSite) -> None:
    own = replace(JOBS[0], local_user="maria:maria", projects=("maria",), job_id="own", local_job_id="own")
    write(small, [*JOBS[1:100], own])
    named = Told(small, *WINDOW, "--name-users", page=True)
    told = Told(small, *WINDOW, page=True)
    terminal = small.run("report", "--format", "terminal", *WINDOW).out
    everything = [told.page, terminal, *told.files.values(), *downloads(told.page).values()]
    for name in {job.user for job in JOBS[:100]} | {"maria"}:
        person = name.rpartition("=")[2]
        assert not any(person in text for text in everything), name
    pairs = list(zip(told.rows("users"), named.rows("users"), strict=True))
    assert [one["user"] for one, _ in pairs if one["user"]] == [f"user {at}" for at in range(1, len(pairs) + 1)]
    assert all(one["wall_core_s"] == other["wall_core_s"] for one, other in pairs)
    assert {row["user"] for row in named.rows("users")} <= {job.user for job in JOBS[:100]}
    assert "maria" in named.page


def test_names_are_refused_where_users_are_not_to_be_told(small: ConfiguredSite) -> None:
    small.config["records"]["identity"] = "withheld"
    write(small, JOBS[:3])
    run = small.run("report", "--format", "terminal", "--name-users", *WINDOW)
    assert run.status == 64
    assert "records.identity does not let users be named" in run.err


@pytest.mark.parametrize("mode", ["withheld", "pseudonym"])
def test_nobody_is_named_where_users_are_not_to_be_told(small: ConfiguredSite, mode: str) -> None:
    (small.folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    (small.folder / "secret").chmod(0o600)
    small.config["records"]["identity"] = (
        mode if mode == "withheld" else {"mode": mode, "secret_file": str(small.folder / "secret")}
    )
    small.config["records"]["charges"] = [RULE]
    own = replace(JOBS[0], local_user="maria:maria", projects=("maria",), job_id="own", local_job_id="own")
    write(small, [*JOBS[1:100], own])
    assert small.run("charge", *WINDOW).status == 0
    told = Told(small, *WINDOW, page=True)
    terminal = small.run("report", "--format", "terminal", *WINDOW).out
    everything = [told.page, terminal, *told.files.values(), *downloads(told.page).values()]
    for name in {job.user for job in JOBS[:100]} | {"maria"}:
        person = name.rpartition("=")[2]
        assert not any(person in text for text in everything), name
    users = {row["user"] for row in told.rows("users")}
    assert users == {"withheld"} if mode == "withheld" else all(user.startswith("pseudonym-") for user in users)
    assert "(a user's own)" in {row["project"] for row in told.rows("projects")}
    assert "(a user's own)" in {row["project"] for row in told.rows("charges")}


def downloads(page: str) -> dict[str, str]:
    """The CSV files inside a page."""
    found = {}
    for link in html.document_fromstring(page).iterfind(".//a[@download]"):
        head, _, body = str(link.get("href")).partition(";base64,")
        assert head == "data:text/csv;charset=utf-8"
        found[str(link.get("download")).removesuffix(".csv")] = b64decode(body).decode()
    return found


# Files


def test_json_has_the_tables_of_the_csv_files(told: Told, demo: SiteUnderTest) -> None:
    run = demo.run("report", *UNTIL_NOW, "--name-users", "--as", "json")
    assert run.status == told.run.status
    tables = {table["name"]: table for table in run.json["tables"]}
    assert {f"{name}.csv" for name in tables} | {"definitions.csv"} == {f"{name}.csv" for name in told.files}
    for name, table in tables.items():
        if name in ("delivery", "sources"):  # with ages
            continue
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for shown, stored in zip(rows, told.rows(name), strict=True):
            for column, value in shown.items():
                text = stored[column]
                same = text == "" if value is None else value == text or float(text) == value
                assert same, (name, column, value, text)
    refused = demo.run("report", "--as", "json", "-o", "-")
    assert (refused.status, "omit -o" in refused.err) == (64, True)


def test_the_page_carries_the_same_csv_files(told: Told) -> None:
    assert downloads(told.page) == told.files


def test_every_column_is_defined(told: Told) -> None:
    defined = {(row["file"], row["column"]): row for row in told.rows("definitions")}
    columns = {
        (f"{name}.csv", column)
        for name, text in told.files.items()
        if name != "definitions"
        for column in text.partition("\r\n")[0].split(",")
    }
    assert set(defined) == columns
    assert all(row["meaning"] and row["unit"] for row in defined.values())
    raw, scaled = defined["vos.csv", "wall_core_s"], defined["vos.csv", "scaled_wall_core_hepspec_s"]
    assert "not scaled" in raw["meaning"]
    assert raw["unit"] == "s"
    assert "HEPSPEC" in scaled["meaning"]


EVIL = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "$\\frac{1}{0}$ & {{ 7 * 7 }}",
    "$\\bad{x$",
    '=HYPERLINK("http://example.org";"x")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\t=1+2",
    "_hidden",
    "日本\u202egnp.exe",
)


def test_hostile_names_stay_text(small: ConfiguredSite) -> None:
    jobs = [
        replace(
            job, vo=name, fqans=(), user=name, queue=name, projects=(name,), job_id=f"evil{at}", local_job_id=str(at)
        )
        for at, (job, name) in enumerate(zip(JOBS, EVIL, strict=False))
    ]
    write(small, jobs)
    told = Told(small, *WINDOW, "--name-users", page=True)
    tree = html.document_fromstring(told.page)
    assert [script.get("type") for script in tree.findall(".//script")] == ["application/json", None]
    assert tree.find(".//img") is None
    assert not [name for element in tree.iter() for name in element.attrib if str(name).startswith("on")]
    assert "49" not in {row["VO"] for row in told.tables["By VO"]}
    shown = {row["VO"] for row in told.tables["By VO"]}
    assert {EVIL[0], EVIL[1], EVIL[2]} <= shown
    drawn = {text.text for text in tree.iterfind(".//text")}
    assert {EVIL[1], EVIL[2], EVIL[3]} <= drawn  # and no formula of mathematics either
    assert "\u202e" not in told.page
    for row in told.rows("vos") + told.rows("projects"):
        assert not row[next(iter(row))].lstrip().startswith(("=", "+", "-", "@", "\t"))
    assert {row["vo"] for row in told.rows("vos")} >= {EVIL[0], f"'{EVIL[4]}", f"'{EVIL[5]}", "'\\t=1+2"}
    terminal = small.run("report", "--format", "terminal", *WINDOW).out
    assert "\u202e" not in terminal
    assert "\t" not in terminal


def test_nothing_on_the_page_leads_elsewhere(told: Told) -> None:
    tree = html.document_fromstring(told.page)
    for element in tree.iter():
        for name in ("src", "href", "{http://www.w3.org/1999/xlink}href", "xlink:href", "action"):
            value = element.get(name)
            assert value is None or value.startswith(("#", "data:text/csv")), value
    assert not re.search(r"url\((?!#)", told.page)
    assert "@import" not in told.page


# The command line


def test_the_terminal_gets_tables_and_bars(demo: SiteUnderTest, truth: Truth) -> None:
    run = demo.run("report", "--format", "terminal", *WINDOW)
    assert run.status == 0
    assert f"Jobs                  {truth.one('count(*)'):,}" in run.out
    assert "ok " in run.out or "! " in run.out
    lines = run.out.splitlines()
    at = lines.index("By VO")
    for row, (vo, used) in zip(
        lines[at + 2 :], sorted(truth.used("vos").items(), key=lambda one: -one[1]["wall_core_s"]), strict=False
    ):
        cells = re.split(r"  +", row)
        assert cells[:2] == [vo or "(no VO)", f"{used['jobs']:,}"]
        assert cells[4] == hours_text(used["wall_core_s"])
    assert lines[at + 2].endswith("█" * 24)


def test_the_default_period_is_last_month_and_this_one(small: ConfiguredSite) -> None:
    write(small, JOBS[:3])
    now = datetime.now(UTC)
    last = (now.year * 12 + now.month - 2) // 12, (now.year * 12 + now.month - 2) % 12 + 1
    run = small.run("report", "-o", str(small.folder / "r.html"))
    assert f"report of jobs that ended {last[0]}-{last[1]:02}-01 to " in run.err


def test_a_page_may_go_to_standard_output(small: ConfiguredSite) -> None:
    write(small, JOBS[:3])
    run = small.run("report", "-o", "-", *WINDOW)
    assert run.out.startswith("<!DOCTYPE html>")
    assert run.out.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 64, "-o FILE.html"),
        (("--format", "terminal", "-o", "x.html"), 64, "cannot be combined with --format terminal"),
        (("-o", "/nonexistent/folder/x.html"), 64, "/nonexistent/folder/x.html"),
        (("--csv", "/nonexistent/folder/x"), 64, "/nonexistent/folder/x"),
        (("-o", "x.html", "--from", "2026-10", "--to", "2026-09"), 64, "is empty"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(
    small: ConfiguredSite, words: tuple[str, ...], status: int, said: str
) -> None:
    write(small, JOBS[:3])
    run = small.run("report", *words)
    assert run.status == status
    assert said in run.err
    assert "Traceback" not in run.err


def test_a_missing_library_is_named_and_the_rest_works(small: ConfiguredSite, monkeypatch: pytest.MonkeyPatch) -> None:
    write(small, JOBS[:3])
    for name in [name for name in sys.modules if name.startswith("publisher.reporting.html.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    run = small.run("report", "-o", str(small.folder / "r.html"))
    assert run.status == 78
    assert "jinja2" in run.err
    assert "pip install 'accounting-publisher[report]'" in run.err
    monkeypatch.setattr(sys, "prefix", "/opt/publisher")
    in_an_environment = small.run("report", "-o", str(small.folder / "r.html")).err
    assert in_an_environment.endswith("here: /opt/publisher/bin/pip install 'accounting-publisher[report]'\n")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "or on Debian apt-get install python3-jinja2" in small.run("report", "-o", str(small.folder / "r.html")).err
    assert not (small.folder / "r.html").exists()
    assert small.run("report", "--format", "terminal", *WINDOW).status == 0
    assert small.run("report", "--csv", str(small.folder / "csv"), *WINDOW).status == 0


def test_accounting_data_that_cannot_be_read_is_no_empty_report(small: ConfiguredSite) -> None:
    run: Run = small.run("report", "-o", str(small.folder / "r.html"))
    assert run.status == 66
    assert not (small.folder / "r.html").exists()
