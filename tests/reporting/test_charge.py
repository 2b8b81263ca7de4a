"""`publisher charge` from end to end: what it computes and keeps, what it says changed, and what a crash leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from publisher.ledger.books import ChargeBook, ChargeRequest, News, RunNumber, RunState
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, run_key
from publisher.model.rates import AssessedJob, Tariff
from publisher.model.time import Window
from tests.arex_databases import SampleJob, generate
from tests.arex_databases.bulk import bulk
from tests.support.forks import Child, publisher
from tests.support.ledgers import open_charge_book, open_charge_book_to_read
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
OCTOBER = ("--from", "2026-10", "--to", "2026-10")
JOBS = [replace(job, nodes=1) for job in generate(7, 60, START, END)]
NOW = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """Sixty jobs of October, and one rule."""
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"out": _spool(tmp_path, "car")})
    made.config["records"]["charges"] = [{"formula": "NumNodes * RunTime", "unit": "nodeh"}]
    made.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    made.fill(*JOBS)
    return made


def _spool(folder: Path, form: str) -> dict[str, Any]:
    return {"type": "spool", "path": str(folder / "out"), "format": form, "start": "all", "every": "1s"}


def hours(job: SampleJob) -> Decimal:
    return (Decimal(job.wall_s) / 3600).quantize(Decimal("0.000001"), "ROUND_HALF_UP")


def charges(site: ConfiguredSite, *words: str) -> dict[str, Any]:
    done = site.run("charge", *OCTOBER, "--jobs", "--json", *words)
    assert done.status == 0, done.err
    return done.json


def test_every_job_costs_what_the_formula_says_and_the_sums_are_exact(site: ConfiguredSite) -> None:
    report = charges(site)
    assert {one["job"]: Decimal(one["amount"]) for one in report["charges"]} == {job.job_id: hours(job) for job in JOBS}
    assert [one["ended"] for one in report["charges"]] == sorted(one["ended"] for one in report["charges"])
    total = sum(map(hours, JOBS), Decimal(0))
    assert report["totals"] == [{"unit": "nodeh", "jobs": 60, "amount": _text(total)}]
    assert sum(Decimal(one["amount"]) for one in report["sums"]) == total
    assert (report["run"], report["jobs"], report["charged"], report["first"], report["changed"]) == (1, 60, 60, 60, 0)
    assert (report["from"], report["to"]) == ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")


def _text(amount: Decimal) -> str:
    return format(amount, "f").rstrip("0").rstrip(".")


def test_the_accounting_database_is_only_read(site: ConfiguredSite) -> None:
    def digest() -> str:
        return hashlib.sha256(site.database().read_bytes()).hexdigest()

    before = digest()
    os.chmod(site.database(), 0o400)
    charges(site)
    assert digest() == before


def test_asked_again_nothing_changes_and_after_a_new_formula_it_says_what(site: ConfiguredSite) -> None:
    before = charges(site)
    again = charges(site)
    assert (again["first"], again["changed"], again["changes"]) == (0, 0, [])
    assert [one["amount"] for one in again["charges"]] == [one["amount"] for one in before["charges"]]
    site.config["records"]["charges"][0] |= {"formula": "NumNodes * RunTime * 2", "unit": "credits"}
    site.save()
    changed = charges(site)
    running = [job for job in JOBS if hours(job)]
    assert (changed["first"], changed["changed"]) == (0, 60)
    assert changed["changes"] == [
        {
            "was_formula": "NumNodes * RunTime", "was_unit": "nodeh", "was_amount": _text(sum(map(hours, JOBS), Decimal(0))),
            "formula": "NumNodes * RunTime * 2", "unit": "credits",
            "amount": changed["totals"][0]["amount"], "jobs": 60,
        }
    ]  # fmt: skip
    assert running
    one = next(one for one in changed["charges"] if one["job"] == running[0].job_id)
    assert (one["news"], one["news_of"], one["was_amount"], one["was_unit"]) == (
        "changed", 3, _text(hours(running[0])), "nodeh",
    )  # fmt: skip
    said = site.run("charge", *OCTOBER, "--stored").out
    assert "changed" not in said


def test_the_same_amount_by_another_formula_is_no_change(site: ConfiguredSite) -> None:
    charges(site)
    site.config["records"]["charges"][0]["formula"] = "RunTime * NumNodes"
    site.save()
    report = charges(site)
    assert (report["changed"], report["changes"]) == (0, [])
    assert {one["formula"] for one in report["charges"]} == {"RunTime * NumNodes"}


def test_only_the_jobs_of_a_project_and_a_group(site: ConfiguredSite) -> None:
    everything = charges(site)
    one = next(one for one in everything["sums"] if one["project"] and one["group"])
    project, group = one["project"], one["group"]
    for words in (("--project", project), ("--group", group), ("--project", project, "--group", group)):
        report = charges(site, *words)
        wanted = [
            kept
            for kept in everything["charges"]
            if ("--project" not in words or kept["project"] == project)
            and ("--group" not in words or kept["group"] == group)
        ]
        assert [kept["job"] for kept in report["charges"]] == [kept["job"] for kept in wanted]
        assert 0 < len(wanted) < 60
        assert charges(site, "--stored", *words)["totals"] == report["totals"]
    assert charges(site, "--project", "no such")["jobs"] == 0


def test_without_a_result_there_is_no_charge_but_a_reason_and_a_count(site: ConfiguredSite) -> None:
    site.config["records"]["charges"] = [
        {"formula": "1 / (NumNodes - 1)", "unit": "h", "queues": [JOBS[0].queue]},
        {"formula": "gres_gpu", "unit": "h", "groups": ["nobody"]},
    ]
    site.save()
    report = charges(site)
    there = [job.job_id for job in JOBS if job.queue == JOBS[0].queue]
    assert (report["charged"], report["without_rule"]) == (0, 60 - len(there))
    (reason,) = report["reasons"]
    assert (reason["reason"], reason["jobs"]) == ("division by zero", len(there))
    assert set(reason["examples"]) <= set(there)
    assert {(one["amount"], one["reason"]) for one in report["charges"]} == {(None, "division by zero")}
    told = site.run("charge", *OCTOBER).out
    assert f"{len(there)} without a result: division by zero: " in told
    assert f"{60 - len(there)} that no rule applies to" in told


def test_a_job_that_has_no_rule_any_more_loses_its_charge(site: ConfiguredSite) -> None:
    charges(site)
    site.config["records"]["charges"][0]["queues"] = ["no such"]
    site.save()
    report = charges(site)
    assert (report["charged"], report["changed"], report["totals"]) == (0, 60, [])
    assert report["changes"][0] | {"was_amount": ""} == {
        "was_formula": "NumNodes * RunTime", "was_unit": "nodeh", "was_amount": "",
        "formula": None, "unit": None, "amount": "0", "jobs": 60,
    }  # fmt: skip
    assert {one["reason"] for one in report["charges"]} == {"no rule is for the job any more"}


def test_rows_that_cannot_be_read_are_counted(site: ConfiguredSite) -> None:
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET UsedWalltime = -1 WHERE JobID = ?", (JOBS[0].job_id,))
    report = charges(site)
    assert (report["charged"], report["unreadable"]) == (59, 1)


def test_statuses_that_do_not_count_cost_nothing(site: ConfiguredSite) -> None:
    site.config["records"]["statuses"] = ["completed"]
    site.save()
    completed = [job for job in JOBS if job.status == "completed"]
    assert 0 < len(completed) < 60
    assert charges(site)["jobs"] == len(completed)


def test_charges_of_jobs_that_left_the_accounting_database_stay(site: ConfiguredSite) -> None:
    before = charges(site)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("DELETE FROM AAR WHERE JobID = ?", (JOBS[0].job_id,))
    assert charges(site)["totals"] == before["totals"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "charge needs --from and --to"),
        (("--from", "2026-10"), "charge needs --from and --to"),
        (("--from", "2026-10", "--to", "2026-09"), "is empty"),
        (("--stored", "--runs"), "not allowed with argument"),
    ],
)
def test_a_wrong_command_line_is_64(site: ConfiguredSite, words: tuple[str, ...], said: str) -> None:
    done = site.run("charge", *words)
    assert done.status == 64
    assert said in done.err


def test_without_rules_it_says_where_they_belong(site: ConfiguredSite) -> None:
    del site.config["records"]["charges"]
    done = site.run("charge", *OCTOBER)
    assert done.status == 78
    assert "records.charges: missing; publisher.yaml(5) explains its keys" in done.err
    assert site.run("charge", "--runs", "--json").json == {"runs": []}
    assert site.run("charge", *OCTOBER, "--stored").status == 0


def test_a_run_that_cannot_read_the_jobs_has_failed_and_says_why(site: ConfiguredSite) -> None:
    site.config["source"]["control_dir"] = str(site.folder / "elsewhere")
    assert site.run("charge", *OCTOBER).status == 66
    (run,) = site.run("charge", "--runs", "--json").json["runs"]
    assert (run["state"], run["jobs"]) == ("failed", 0)
    assert "elsewhere" in run["reason"]
    assert "run 1: " in site.run("charge", "--runs").out


def test_rules_that_meet_are_told(site: ConfiguredSite) -> None:
    site.config["records"]["charges"].append({"formula": "1", "unit": "h", "valid_from": "2026-10-15"})
    said = site.run("charge", *OCTOBER).out
    assert "note: records.charges[1], line " in said
    assert "are both for some jobs: the second counts" in said
    check = site.run("config", "check")
    assert (check.status, check.out.count("are both for some jobs: the second counts")) == (0, 1)
    del site.config["records"]["charges"][1]
    site.save()
    assert "note:" not in site.run("config", "check").out


def test_explain_shows_formula_place_quantities_and_result(site: ConfiguredSite) -> None:
    job = JOBS[0]
    (one,) = site.run("explain", job.job_id, "--json").json["explanations"]
    charge = one["charge"]
    assert charge["rule"].startswith("records.charges[1], line ")
    assert [(each["name"], each["field"]) for each in charge["quantities"]] == [
        ("NumNodes", "node_count"), ("RunTime", "wall_s"),
    ]  # fmt: skip
    assert Decimal(charge["quantities"][0]["value"]) == 1
    assert (charge["amount"], charge["unit"], charge["published"]) == (_text(hours(job)) or "0", "nodeh", True)
    assert next(value for value in one["values"] if value["name"] == "Charge")["value"] == f"{charge['amount']} nodeh"
    assert f'<Charge urf:unit="nodeh" urf:formula="NumNodes * RunTime">{charge["amount"]}</Charge>' in one["record"]
    told = site.run("explain", job.job_id, "--format", "apel-job-0.3").out
    assert f"  = {charge['amount']} nodeh; this format has no field for it" in told
    assert "Charge" not in told.partition("charge: ")[2]
    site.config["records"]["charges"][0]["formula"] = "gres_gpu"
    site.save()
    assert "  gres_gpu = not known  (gpu_count)\n  = no charge: gres_gpu is not known" in site.run(
        "explain", job.job_id
    ).out  # fmt: skip


def test_a_changed_formula_sends_nothing_again_but_a_republish_does(site: ConfiguredSite) -> None:
    out = site.folder / "out"
    assert site.run("publish", "--force").status == 0

    def sent() -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(out.rglob("*")) if path.is_file())

    first = sent()
    assert first.count("<Charge") == len(JOBS)
    site.config["records"]["charges"][0]["formula"] = "NumNodes * RunTime + 1"
    site.save()
    assert site.run("publish", "--force").status == 0
    assert sent() == first
    assert site.run("republish", "--yes", *OCTOBER).status == 0
    assert sent().count("NumNodes * RunTime + 1") == len(JOBS)


def test_a_target_of_totals_has_charges_in_another_format(site: ConfiguredSite) -> None:
    site.config["targets"]["out"]["format"] = "apel-summary-0.4"
    assert "<Charge " in site.run("explain", JOBS[0].job_id, "--format", "car").out
    assert site.run("republish", "--yes", "--no-brake", *OCTOBER, "--format", "car").status == 0
    sent = "".join(path.read_text(errors="replace") for path in (site.folder / "out").rglob("*") if path.is_file())
    assert sent.count("<Charge ") == len(JOBS)


# The book, and what a crash leaves behind

REQUEST = ChargeRequest(window=Window(start=Epoch(0), end=Epoch(100)))
TARIFF = Tariff(unit="h", formula="cpu")


def assessed(number: int, amount: str | None = "1", **overrides: Any) -> AssessedJob:
    job = AssessedJob(
        run=run_key(0, f"job{number}", ""), job_id=JobId(f"job{number}"), local_id="", ended_at=Epoch(number),
        queue="q", project="p", group="g", tariff=TARIFF, amount=None if amount is None else Decimal(amount),
        reason="" if amount is not None else "division by zero",
    )  # fmt: skip
    return job._replace(**overrides)


def never() -> bool:
    return False


def clock() -> datetime:
    return NOW


def _break_off(book: ChargeBook, number: RunNumber) -> None:
    book.keep(number, [assessed(1, "5"), assessed(2, "5"), assessed(4)], unreadable=0, now=NOW)
    raise LedgerError("the disk is full")


def test_what_a_failed_run_brought_is_told_by_the_next_one(tmp_path: Path) -> None:
    with closing(open_charge_book(tmp_path / "publishing.db")) as book:
        with book.asked(REQUEST, clock, never) as first:
            book.keep(first, [assessed(1), assessed(2), assessed(3)], unreadable=0, now=NOW)
        with pytest.raises(LedgerError, match="disk"), book.asked(REQUEST, clock, never) as second:
            _break_off(book, second)
        with book.asked(REQUEST, clock, never) as third:
            changed = [assessed(1, "5"), assessed(2, "6"), assessed(3), assessed(4)]
            book.keep(third, changed, unreadable=2, now=NOW)
        kept = {one.job.job_id: one for one in book.charges(REQUEST)}
        assert [(one.news, one.news_of) for one in kept.values()] == [
            (News.CHANGED, third), (News.CHANGED, third), (News.FIRST, first), (News.FIRST, third),
        ]  # fmt: skip
        assert [one.was and one.was.amount for one in kept.values()] == [1, 1, None, None]
        runs = book.runs()
    assert [run.state for run in runs] == [RunState.FINISHED, RunState.FAILED, RunState.FINISHED]
    assert runs[1].reason == "the disk is full"
    assert (runs[2].counts.first, runs[2].counts.changed, runs[2].counts.unreadable) == (1, 2, 2)


def test_a_job_without_a_rule_is_not_kept_unless_it_was_before(tmp_path: Path) -> None:
    with closing(open_charge_book(tmp_path / "publishing.db")) as book:
        unruled = assessed(1, None, tariff=None, reason="")
        with book.asked(REQUEST, clock, never) as first:
            book.keep(first, [unruled], unreadable=0, now=NOW)
        assert list(book.charges(REQUEST)) == []
        assert book.runs()[0].counts.without_rule == 1


def test_a_listing_is_read_in_portions_and_bounded_by_its_window(tmp_path: Path) -> None:
    with closing(open_charge_book(tmp_path / "publishing.db")) as book:
        with book.asked(REQUEST, clock, never) as number:
            jobs = [assessed(at, ended_at=Epoch(at // 900)) for at in range(2500)]
            book.keep(number, jobs, unreadable=0, now=NOW)
        assert [one.job.ended_at for one in book.charges(REQUEST)] == sorted(job.ended_at for job in jobs)
        part = ChargeRequest(window=Window(start=Epoch(1), end=Epoch(2)))
        assert {one.job.run for one in book.charges(part)} == {job.run for job in jobs[900:1800]}
        assert not list(book.charges(ChargeRequest(window=Window(), group="other")))


_AT_WORK = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from publisher.ledger.books import ChargeRequest
from tests.support.ledgers import open_charge_book
from publisher.policy.target import Window

book = open_charge_book(Path(sys.argv[1]))
with book.asked(ChargeRequest(window=Window()), lambda: datetime.now(UTC), lambda: True):
    print("at work", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def at_work(state: Path) -> Iterator[Child]:
    """A run in another process, at work until it gets a line."""
    state.parent.mkdir(exist_ok=True)
    process = Child(state, code=_AT_WORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def until(state: Path, true: Callable[[list[tuple[str, int]]], bool]) -> list[tuple[str, int]]:
    """State and jobs of every run, as soon as they are as wished."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with closing(open_charge_book_to_read(state)) as book:
            runs = [(str(run.state), run.counts.jobs) for run in book.runs()]
        if true(runs):
            return runs
        assert time.monotonic() < deadline, runs
        time.sleep(0.01)


def test_a_run_waits_its_turn_and_can_be_asked_for_meanwhile(site: ConfiguredSite) -> None:
    with at_work(site.state) as first:
        second = publisher(site, "charge", *OCTOBER, "--json")
        until(site.state, lambda runs: [state for state, _ in runs] == ["running", "queued"])
        shown = site.run("charge", "--runs", "--json").json["runs"]
        assert [run["state"] for run in shown] == ["running", "queued"]
        assert shown[1]["began"] is None
        first.communicate("\n")
        out, err = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 0, err
    assert json.loads(out)["charged"] == 60
    assert [run["state"] for run in site.run("charge", "--runs", "--json").json["runs"]] == ["finished", "finished"]


def test_a_queued_run_that_is_told_to_stop_has_failed(site: ConfiguredSite) -> None:
    with at_work(site.state):
        second = publisher(site, "charge", *OCTOBER)
        until(site.state, lambda runs: len(runs) == 2)
        second.send_signal(signal.SIGTERM)
        _, err = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 75, err
        states = until(site.state, lambda runs: runs[1][0] != "queued")
    assert [state for state, _ in states] == ["running", "failed"]


def test_a_killed_run_has_failed_and_the_next_one_computes_the_rest(site: ConfiguredSite) -> None:
    with at_work(site.state) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        (shown,) = site.run("charge", "--runs", "--json").json["runs"]
        assert (shown["state"], shown["reason"].split("(")[0]) == ("failed", "its process ended without a word ")
    assert charges(site)["charged"] == 60
    assert [run["state"] for run in site.run("charge", "--runs", "--json").json["runs"]] == ["failed", "finished"]


@pytest.mark.slow
def test_kill_9_in_the_middle_loses_no_charge_and_no_news(tmp_path: Path, pki: PKI) -> None:
    site = ConfiguredSite(tmp_path, pki, pki.host(), {"out": _spool(tmp_path, "car")})
    site.config["records"]["charges"] = [{"formula": "RunTime + 1", "unit": "h"}]
    bulk(site.database(), 2, 7_000, 3, START, END)
    broken = publisher(site, "charge", *OCTOBER)
    until(site.state, lambda runs: bool(runs) and runs[0][1] > 0)
    broken.kill()
    broken.communicate()
    (before,) = until(site.state, lambda runs: runs[0][0] != "running")
    assert before[0] == "failed"
    assert 0 < before[1] < 7_000
    report = site.run("charge", *OCTOBER, "--json").json
    run = site.run("charge", "--runs", "--json").json["runs"][1]
    assert (report["charged"], report["first"]) == (run["jobs"], run["jobs"])
    site.state = tmp_path / "fresh" / "publishing.db"
    site.config["state"] = str(site.state)
    site.save()
    fresh = site.run("charge", *OCTOBER, "--json").json
    assert (fresh["totals"], fresh["sums"]) == (report["totals"], report["sums"])


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_jobs(tmp_path: Path, pki: PKI) -> None:
    """Measured: 43 MB for 1,000,000 jobs."""
    site = ConfiguredSite(tmp_path, pki, pki.host(), {"out": _spool(tmp_path, "car")})
    site.config["records"]["charges"] = [{"formula": "RunTime + 1", "unit": "h"}]
    bulk(site.database(), 2, 300_000, 3, START, END)
    site.save()
    # Not ru_maxrss, which begins with that of whoever started the process.
    code = "import sys; from publisher.cli.main import run; run(sys.argv[1:]); "
    code += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(site.path), "-q", "charge", *OCTOBER, "--jobs", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.count('"job":') == json.loads(done.stdout)["jobs"] > 250_000
    assert int(done.stderr.split()[-1]) < 80_000
