"""`--as`: one result as table, JSON, CSV or JSON lines; `-q`; and tables that a long name does not widen."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from publisher.cli.output import print_table
from publisher.sources import IMPORTERS
from tests.cli.test_cli import COMMANDS, JOBS
from tests.fake_ams.service import FakeAMS
from tests.support.command_line import commands
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

# The list or mapping of the JSON object whose entries are rows; of others the object is the one row.
ROWS = {
    **dict.fromkeys(("publish", "publish --dry-run", "plan"), "targets"),
    **dict.fromkeys(("republish", "sync", "status", "statement"), "targets"),
    "sync --check": "rows",
    "trace": "deliveries",
    "explain": "explanations",
    "doctor": "findings",
    "quarantine list": "quarantined",
    "receiver list": "receivers",
    "source list": "databases",
    "source retire": "databases",
    "source bad-lines": "bad_lines",
    "source retry": "sources",
    "job events": "events",
    "job transfers": "transfers",
    "state copy": "tables",
    "state backup": "tables",
    "charge": "sums",
    "charge --runs": "runs",
    "export": "jobs",
    "export --columns": "columns",
}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, monkeypatch: pytest.MonkeyPatch) -> SiteUnderTest:
    monkeypatch.chdir(tmp_path)
    return delivered_in_part(SiteUnderTest(tmp_path, pki, fake_ams))


def delivered_in_part(site: SiteUnderTest) -> SiteUnderTest:
    """Four jobs delivered, another one set aside."""
    site.fill(*JOBS[:4], replace(JOBS[4], benchmark="fast"))
    assert site.publish().status == 65
    return site


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "stats"])
def test_rows_are_those_of_the_json_object(site: SiteUnderTest, name: str) -> None:
    words = [word.replace("accounting.db", "gone.db") for word in COMMANDS[name]]
    found = []
    for form in ("json", "json-lines", "csv"):
        copied = [word.replace("copy.db", f"{form}.db").replace("backup.db", f"{form}.db") for word in words]
        found.append(site.run(*copied, "--as", form))
    whole, lines, table = found
    if whole.status == 64:  # nothing of that kind is there
        assert {run.out for run in found} == {""}
        return
    assert whole.out == "" or json.loads(whole.out)["schema"] == 1
    entries = whole.json[ROWS[name]] if name in ROWS else [whole.json]
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert {row.pop("schema") for row in rows} <= {1}
    names = list(entries) if isinstance(entries, dict) else [None] * len(entries)
    values = list(entries.values()) if isinstance(entries, dict) else entries
    assert len(rows) == len(values)
    for named, value, row in zip(names, values, rows, strict=True):
        assert row.keys() - value.keys() == (set() if named is None else {ROWS[name].removesuffix("s")})
        assert named is None or next(iter(row.values())) == named
        assert row.keys() >= value.keys()
    heading, *cells = list(csv.reader(io.StringIO(table.out))) or [[]]
    assert len(cells) == len(rows)
    assert {len(row) for row in cells} <= {len(heading)}
    if rows:
        assert heading[0].partition(".")[0] == next(iter(rows[0]))


def test_rows_have_values_as_json_has_them(site: SiteUnderTest) -> None:
    ((first, second),) = [site.run("status", "--as", form).out.splitlines() for form in ("csv",)]
    row = dict(zip(first.split(","), second.split(","), strict=True))
    told = site.run("status", "--json").json["targets"]["egi"]
    assert (row["target"], row["delivered"], row["quarantined"]) == ("egi", "4", "1")
    assert row["last_success"] == (told["last_success"] or "")
    assert row["pending"] == str(told["pending"])
    page = site.run("statement", "2026-10", "--as", "csv").out
    (one,) = csv.DictReader(io.StringIO(page))
    assert one["at_ce.jobs"] == "5"
    assert "quarantine list" in one["missing"]


def test_stats_in_every_form(site: SiteUnderTest) -> None:
    whole = site.run("stats", "--by", "vo", "--json").json
    lines = [json.loads(line) for line in site.run("stats", "--by", "vo", "--as", "json-lines").out.splitlines()]
    assert [(line["schema"], line["vo"], line["jobs"]) for line in lines] == [
        (1, group["name"], group["jobs"]) for group in whole["groups"]
    ]
    assert site.run("stats", "--as", "csv").out == site.run("stats", "--csv").out
    ids = [
        json.loads(line)["job_id"] for line in site.run("stats", "-o", "jobids", "--as", "json-lines").out.splitlines()
    ]
    assert sorted(ids) == sorted(job.job_id for job in JOBS[:5])
    for words in (["--as", "csv", "-o", "json"], ["--as", "xml"]):
        assert site.run("stats", *words).status == 64


OTHERS = {
    "stats -b": ("stats", "-b", "2026-10"),
    "export": ("export", "-b", "2026-10", "-o", "jobs.json"),
    "report": ("report", "--format", "terminal"),
    **{f"import {system}": ("import", system, "told") for system in IMPORTERS},
    **{f"config {action}": ("config", action) for action in ("check", "show", "example")},
    **{f"receiver {action}": ("receiver", action, "egi") for action in ("same", "new")},
    "config from-arc": ("config", "from-arc", "arc.conf"),
    "config init": ("config", "init"),
    **{f"receiver {action}": ("receiver", action, "egi", "2026-10") for action in ("delivered", "deleted")},
    "complete": ("complete", "users"),
    "help": ("help", "publish"),
}
WAITING = {"run"}  # until somebody stops it


def test_every_command_is_asked_to_be_quiet() -> None:
    assert {*COMMANDS, *OTHERS, *WAITING} >= set(commands())


@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_quiet_means_warnings_and_errors_only(site: SiteUnderTest, name: str) -> None:
    Path("told").write_text("torn\n")
    Path("arc.conf").write_text("[common]\n[arex]\ncontroldir=/nonexistent\n[arex/jura]\n")
    for line in site.run("-q", *(OTHERS.get(name) or COMMANDS[name])).err.splitlines():
        assert "WARNING" in line or "ERROR" in line or line.startswith("publisher: "), line


LONG = "x" * 70_000


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_name_widens_no_table(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if terminal:
        monkeypatch.setattr(out, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", out)
    print_table(("name", "jobs"), [("atlas", "1"), (LONG, "2"), ("cms", "3")])
    out.seek(0)
    assert out.read().splitlines() == ["name   jobs", "atlas  1", f"{LONG}  2", "cms    3"]


def test_export_in_every_form(site: SiteUnderTest) -> None:
    october = ("export", "-b", "2026-10", "-e", "2026-10")
    lines = site.run(*october).out
    jobs = [json.loads(line) for line in lines.splitlines()]
    assert {job.pop("schema") for job in jobs} == {1}
    assert len(jobs) == 5
    assert site.run(*october, "--as", "json-lines").out == site.run(*october, "--format", "json-lines").out == lines
    assert site.run(*october, "--as", "json").json == {"jobs": jobs}
    assert site.run("export", "-b", "2031-10", "--as", "json").json == {"jobs": []}
    rows = list(csv.DictReader(io.StringIO(site.run(*october, "--as", "csv").out)))
    assert [row["job_id"] for row in rows] == [job["job_id"] for job in jobs]
    table = site.run(*october, "--as", "table")
    assert (table.status, "--as csv" in table.err) == (64, True)
    columns = site.run("export", "--columns", "--as", "json").json["columns"]
    assert [column["column"] for column in columns] == list(jobs[0])
    assert site.run("export", "--columns").out == site.run("export", "--columns", "--as", "table").out
