"""What jura-ng sent is taken over whole, or not yet: a run that is not adopted goes out beside the row that has it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob
from tests.model_receivers.rules.site import apel, assert_in_order, job, of_ledger, outcome, quiet, total
from tests.model_receivers.rules.test_rules_12_to_21 import ARC_6, ENDED, of_jura
from tests.model_receivers.test_named_stories import Tale, may
from tests.model_receivers.world import BatchSystem, Ce

_TOOK_OVER = "SELECT took_over FROM target"


def row_each(folder: Path, form: str) -> Tale:
    """jura-ng sent jobs 1 and 2, of two users, under other keys than ours; job 1 is in the accounting data."""
    tale = Tale(folder, form)
    host = "arcrest:https://ce1.example.org:443/arex"
    first, second = (
        ARC_6.format(host=host, first=may(day), last=may(day), wall=100 * day, cpu=50 * day, jobs=1) for day in (1, 2)
    )
    rows = first + second.replace("CN=ann", "CN=dan")
    apel(tale).take(f"APEL-summary-job-message: v0.2\n{rows}".encode())
    jura = {"start": "2026-05", "jura_until": ENDED, "jura_format": "apel-summary-0.2"}
    tale.product.config["targets"]["egi"] |= jura
    tale.product.config["records"] = {"benchmark": {"type": "HEPSPEC", "value": 1.0}}
    tale.ce.insert([replace(job(1, 100), lrms="sge")])
    return tale


def of_dan() -> SampleJob:
    """Return job 2, as jura-ng sent it."""
    return replace(job(2, 200, user="dan"), lrms="sge")


def damage(path: Path) -> None:
    """Overwrite the page of a database with which the table of its jobs begins."""
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'AAR'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xee" * size)


@of_jura
@pytest.mark.parametrize("start", ["2026-05", "all"])
def test_rule_21_nothing_is_taken_over_while_jobs_of_a_ce_cannot_be_loaded(
    tmp_path: Path, form: str, start: str
) -> None:
    tale, other = row_each(tmp_path, form), Ce(tmp_path, "ce2", 2)
    tale.product.config["targets"]["egi"]["start"] = start
    tale.product.config["source"].append(other.source)
    other.insert([of_dan()])
    whole = other.path.read_bytes()
    damage(other.path)
    run = quiet(tale)
    assert run.status == 66
    assert "it is damaged or truncated" in outcome(run)["reason"]
    assert of_ledger(tale, _TOOK_OVER) in ([], [(None,)])
    other.path.write_bytes(whole)
    tale.publish()
    assert tale.total() == total(100, 200)
    assert_in_order(tale)


@of_jura
def test_rule_21_a_job_that_waits_for_its_batch_system_s_record_is_taken_over(tmp_path: Path, form: str) -> None:
    tale, batch = row_each(tmp_path, form), BatchSystem(tmp_path)
    tale.product.config["source"].append(batch.source | {"join": "arex"})
    tale.product.config["targets"]["egi"]["jura_until"] = "2026-05-02T12:10:00Z"
    tale.product.now = datetime(2026, 5, 2, 12, 20, tzinfo=UTC)
    tale.ce.insert([of_dan()])
    batch.finish(tale.ce.rows["job0001ce1"], of_ce=True)
    tale.product.run("publish", "--force", "--json")
    assert of_ledger(tale, _TOOK_OVER) != [(None,)]
    assert tale.product.run("status", "--json").json["targets"]["egi"]["awaited"] == 1
    batch.finish(of_dan(), of_ce=True)
    tale.publish()
    assert tale.total() == total(100, 200)
    assert_in_order(tale)
