"""Windows of very many jobs: to plan them, send them again and check them takes no more memory for more jobs.

The same with as many jobs as one likes, in processes of their own: tests/faults/test_republish_interrupted.py.
"""

from __future__ import annotations

import sqlite3
import tracemalloc
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.arex_databases import bulk
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 8, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
PAGE_ROWS: Final = 100
FEW, MANY = 2_200, 3_400  # the loader writes 2,000 rows at once
# A run of a job may be remembered in some 200 bytes. A job that is kept whole takes 3,000.
_OF_A_RUN: Final = 600
WINDOW: Final = ("--from", "2026-08", "--to", "2026-10")
COMMANDS: Final = {
    "republish": ("republish", "--yes", "--json", *WINDOW),
    "check": ("sync", "--check", "--json", "--months", "all"),
}


def peak_of(site: SiteUnderTest, *arguments: str) -> int:
    tracemalloc.start()
    done = site.run(*arguments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.status == 0, done.err
    return peak


@pytest.mark.slow
def test_more_jobs_take_no_more_memory(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    peaks: dict[int, dict[str, int]] = {}
    for jobs in (FEW, MANY):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        site = SiteUnderTest(folder, pki, fake_ams)
        bulk(site.database(), 2, jobs, 1, START, END)
        # A shadow does everything but send: what a stand-in keeps of it would be measured too.
        site.config["targets"]["egi"]["shadow"] = True
        site.config["source"]["page_rows"] = PAGE_ROWS
        assert site.publish().status == 0
        peaks[jobs] = {name: peak_of(site, *words) for name, words in COMMANDS.items()}
    for name, peak in peaks[MANY].items():
        assert peak < peaks[FEW][name] + (MANY - FEW) * _OF_A_RUN + 150_000, (name, peaks)


@pytest.mark.slow
def test_jobs_with_long_attributes_of_their_own_take_no_more_memory(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    """3 kB beside each job: nothing of that is remembered."""
    peaks: dict[int, int] = {}
    for jobs in (FEW, MANY):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        site = SiteUnderTest(folder, pki, fake_ams)
        bulk(site.database(), 2, jobs, 1, START, END)
        with closing(sqlite3.connect(site.database())) as connection, connection:
            for number in range(20):
                question = "INSERT INTO AuthTokenAttributes SELECT RecordID, ?, ? || RecordID FROM AAR"
                connection.execute(question, (f"claim{number}", "x" * 150))
        site.config["targets"]["egi"] |= {"shadow": True, "batch_records": 50}
        site.config["source"]["page_rows"] = PAGE_ROWS
        peaks[jobs] = peak_of(site, "publish")
    assert peaks[MANY] < peaks[FEW] + (MANY - FEW) * _OF_A_RUN + 3_000_000, peaks
