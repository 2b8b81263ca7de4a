"""What the ledger keeps of a delivered job: under 120 bytes on disk, for single records and for monthly totals.

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
MOST_BYTES: Final = 120


def used_and_free(state: Path) -> tuple[int, int]:
    """Bytes of the ledger's file that hold something, and those that the next round will use."""
    with closing(sqlite3.connect(state)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size, free * size


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_delivered_job_takes_less_than_120_bytes(form: str, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"]["format"] = form
    open_ledger(tmp_path / "empty" / "publishing.db").close()
    empty, _ = used_and_free(tmp_path / "empty" / "publishing.db")
    patterns = islice(varied.patterns(1, START, END), PATTERNS)
    bulk(site.database(1), 1, JOBS, 1, START, END, patterns=patterns)
    run = site.publish()
    assert run.status == 0, run.err
    used, _ = used_and_free(site.state)
    assert (used - empty) / JOBS < MOST_BYTES


@pytest.mark.slow
def test_pages_that_messages_leave_free_are_used_by_the_next_ones(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """The messages of a round wait together, and the ledger's file never shrinks."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    for schema in (1, 2):
        patterns = islice(varied.patterns(schema, START, END), 500)
        bulk(site.database(schema), schema, 2_000, schema, START, END, patterns=patterns)
        run = site.publish()
        assert run.status == 0, run.err
    sent = run.json["targets"]["egi"]["bytes"]
    _, free = used_and_free(site.state)
    assert sent > 500_000
    assert free < 1.5 * sent, "that of one round, not of both"
