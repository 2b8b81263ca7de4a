"""A day-old backup is all that is left: what it lacks is held, and afterwards every job is at every receiver once."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime

import pytest

from publisher.ledger import schema
from tests.arex_databases import generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT
from tests.fake_ams.tables import Tables
from tests.support.sites import Run, SiteUnderTest, truth
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 45, START, END))
FORMATS = {"egi": "car", "jobs": "apel-job-0.4", "sums": "apel-summary-0.4"}


@pytest.fixture
def drilled(site: SiteUnderTest) -> SiteUnderTest:
    """A site whose jobs go to three receivers, and whose counts are reported."""
    egi = site.config["targets"]["egi"]
    for name, form in FORMATS.items():
        site.config["targets"][name] = egi | {"format": form, "topic": name, "batch_records": 7}
        site.fake.allow(site.user, name)
    site.config["targets"]["jobs"]["sync"] = True
    site.config["targets"]["sums"].pop("batch_records")
    return site


def yesterday(site: SiteUnderTest) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    assert site.run("state", "backup", str(site.folder / "backup.db")).status == 0


def today(site: SiteUnderTest) -> None:
    """After the backup: new jobs, a correction of an old one, and jobs that are sent again."""
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    again = site.run("republish", "--from", "2026-10-10", "--to", "2026-10-12", "--exact", "--yes", "--target", "egi")
    assert again.status == 0, again.err


def machine_lost(site: SiteUnderTest) -> None:
    """Only the backup is left; the accounting database is A-REX's, on its own disk."""
    shutil.rmtree(site.state.parent)
    site.state.parent.mkdir(mode=0o700)
    shutil.copy(site.folder / "backup.db", site.state)


def ledger_lost(site: SiteUnderTest) -> None:
    """The rest of the directory is still there."""
    for suffix in ("", "-wal", "-shm"):
        site.state.with_name(site.state.name + suffix).unlink(missing_ok=True)
    shutil.copy(site.folder / "backup.db", site.state)


def everything_lost(site: SiteUnderTest) -> None:
    """There is not even a backup."""
    for suffix in ("", "-wal", "-shm"):
        site.state.with_name(site.state.name + suffix).unlink(missing_ok=True)


LOSSES = {"machine": machine_lost, "ledger": ledger_lost, "backup too": everything_lost}


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_after_a_loss_every_job_is_at_every_receiver_once(drilled: SiteUnderTest, loss: str) -> None:
    yesterday(drilled)
    today(drilled)
    LOSSES[loss](drilled)
    sent = sent_to_all(drilled)
    held = drilled.publish("--accept-state") if loss == "machine" else drilled.publish()
    assert held.status == 65, held.err
    assert sent_to_all(drilled) == sent
    assert_taken(drilled, held)
    assert sent_to_all(drilled) == sent, "nothing goes again"
    assert_at_receivers(drilled)
    assert drilled.publish().status == 0
    assert sent_to_all(drilled) == sent + 1, "the counts of the month"
    assert {one["outcome"] for one in drilled.publish().json["targets"].values()} == {"nothing"}
    assert drilled.run("sync", "--check").status == 0
    assert drilled.run("state", "check").status == 0


def sent_to_all(site: SiteUnderTest) -> int:
    return sum(len(site.fake.messages(PROJECT, target)) for target in FORMATS)


def assert_taken(site: SiteUnderTest, held: Run) -> None:
    """Each receiver's months are said and taken as delivered."""
    for target in FORMATS:
        months = [one["month"] for one in held.json["targets"][target]["held"]]
        assert "2026-10" in months
        taken = site.run("receiver", "delivered", target, *months)
        if "nobody knows what the receiver should have; if its portal shows" in taken.err:  # which has all of them
            taken = site.run("receiver", "delivered", target, *months, "--anyway")
        assert taken.status == 0, taken.err


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3")
@pytest.mark.parametrize(("damaged", "is_recovered"), [("entry_by_end", True), ("message", False)])
@pytest.mark.slow
def test_what_sqlite_still_reads_of_a_damaged_ledger_is_kept(
    drilled: SiteUnderTest, damaged: str, is_recovered: bool
) -> None:
    """An index is made anew; rows that are gone are found missing, and then a new ledger begins."""
    yesterday(drilled)
    today(drilled)
    sent = sent_to_all(drilled)
    with closing(sqlite3.connect(drilled.state)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [damaged]).fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    with drilled.state.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(bytes(page_bytes))
    assert drilled.run("state", "check").status == 74
    dump = subprocess.run(["sqlite3", drilled.state, ".dump"], check=False, capture_output=True, text=True).stdout
    assert dump.rstrip().endswith("COMMIT;") == is_recovered
    everything_lost(drilled)
    if is_recovered:
        pragmas = f"PRAGMA application_id = {0x50554231}; PRAGMA user_version = {schema.VERSION};"
        subprocess.run(["sqlite3", drilled.state], input=dump + pragmas, check=True, text=True)
        assert drilled.run("state", "check").status == 0
    after = drilled.publish()
    assert after.status == (0 if is_recovered else 65), after.err
    if not is_recovered:
        assert_taken(drilled, after)
    assert_at_receivers(drilled)
    assert sent_to_all(drilled) == sent, "nothing goes again"
    assert drilled.run("state", "check").status == 0


def assert_at_receivers(site: SiteUnderTest) -> None:
    """Each job once, by the keys that each receiver has."""
    for target in ("egi", "jobs"):
        rows = at_receiver(site, target).rows("JobRecords")
        assert Counter(str(row["LocalJobId"]) for row in rows) == Counter(str(truth(job)[0]) for job in JOBS), target
    assert at_receiver(site, "sums").total("Summaries", "NumberOfJobs") == len(JOBS)


def at_receiver(site: SiteUnderTest, topic: str) -> Tables:
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    tables, now = Tables(), datetime.now(UTC)
    for message in site.fake.messages(PROJECT, topic):
        text = receiver.take(message).text
        if text.startswith("APEL-sync-message"):
            continue
        rows = read_text(text.encode(), now)[1] if text.startswith("APEL-") else read_car(text.encode(), now)
        for row in rows:
            tables.replace("Summaries" if "NumberOfJobs" in row else "JobRecords", row)
    return tables
