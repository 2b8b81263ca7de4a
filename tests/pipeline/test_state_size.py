"""What the ledger keeps of a delivered job: under 30 bytes on disk, for single records and for monthly totals.

As many jobs share their user, VO, queue and benchmark here as in a million jobs of the varied benchmark database.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from benchmarks import varied
from tests.arex_databases import bulk
from tests.fake_ams.service import FakeAMS
from tests.support.ledgers import open_ledger
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

JOBS: Final = 10_000
PATTERNS: Final = 60
START, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)
MOST_BYTES: Final = 30


def used_and_free(state: Path) -> tuple[int, int]:
    """Bytes of the ledger's file that hold something, and those that the next round will use."""
    with closing(sqlite3.connect(state)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size, free * size


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_delivered_job_takes_less_than_30_bytes_and_its_entry_120(
    form: str, tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    """Totals have no entries yet."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"]["format"] = form
    open_ledger(tmp_path / "empty" / "publishing.db").close()
    empty, _ = used_and_free(tmp_path / "empty" / "publishing.db")
    patterns = islice(varied.patterns(1, START, END), PATTERNS)
    bulk(site.database(1), 1, JOBS, 1, START, END, patterns=patterns)
    run = site.publish()
    assert run.status == 0, run.err
    used, _ = used_and_free(site.state)
    most = MOST_BYTES + (120 if form == "car" else 0)
    assert (used - empty) / JOBS < most


def test_months_do_not_wait_together_in_the_ledger(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """The ledger's file never shrinks, so all payloads of a first round would stay in it as free pages."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    patterns = islice(varied.patterns(1, START, END), 1_100)
    bulk(site.database(1), 1, 7_700, 1, START, END, patterns=patterns)
    run = site.publish()
    assert run.status == 0, run.err
    sent = run.json["targets"]["egi"]
    _, free = used_and_free(site.state)
    assert free < sent["bytes"] / 3
