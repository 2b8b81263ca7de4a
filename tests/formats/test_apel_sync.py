"""Sync messages: as the golden file has them, and read back as the counts they were made of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.formats import FORMATS, job_format, summary_format, sync_format
from publisher.formats.apel.text_message import ApelSync, create
from publisher.model.errors import Unfit
from publisher.model.totals import SyncCount
from publisher.policy.records import KeyStyle
from tests.formats.test_car import TELLING_JOBS
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.strategies import hostile_text
from tests.support.strict_apel import Row
from tests.support.strict_apel_text import read_text, replaced
from tests.support.sync_counter import SyncCounter

GOLDEN = Path(__file__).parent / "golden" / "apel-sync-0.1.txt"
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)


def rows(counter: SyncCounter) -> list[Row]:
    sync = create("apel-sync-0.1")
    made = sync.frame.join([sync.render(count) for count in counter.counts()])
    sync.check(made)
    table, read = read_text(made, NOW)
    assert table == "SyncRecords"
    assert replaced(table, read) == read
    return read


def golden_payload() -> bytes:
    counter = SyncCounter()
    for job, policy in TELLING_JOBS:
        counter.add(policy.describe(job))
    sync = create("apel-sync-0.1")
    return sync.frame.join([sync.render(count) for count in counter.counts()])


def test_the_golden_file_is_what_we_render() -> None:
    """After an intended change: `python -m tests.formats.test_apel_sync` writes it anew; read the difference."""
    assert golden_payload().decode().splitlines() == GOLDEN.read_text().splitlines()
    _, read = read_text(GOLDEN.read_bytes(), NOW)
    assert sum(row["NumberOfJobs"] for row in read) == len(TELLING_JOBS)


@pytest.mark.parametrize(
    ("style", "host"), [(KeyStyle.APEL, make_job().endpoint), (KeyStyle.JURA, f"arcrest:{make_job().endpoint}")]
)
def test_the_submit_host_is_spelt_as_in_summaries(style: KeyStyle, host: str) -> None:
    counter = SyncCounter()
    counter.add(make_policy(key_style=style).describe(make_job()))
    (row,) = rows(counter)
    assert row == {"Site": "EXAMPLE-SITE", "SubmitHost": host, "NumberOfJobs": 1, "Month": 3, "Year": 2026}


def test_a_count_can_be_taken_back() -> None:
    counter = SyncCounter()
    counter.add_count(SyncCount(site="S", submit_host="old", year=2026, month=2, jobs=0))
    (row,) = rows(counter)
    assert (row["SubmitHost"], row["NumberOfJobs"]) == ("old", 0)


@given(st.lists(st.tuples(hostile_text, st.integers(0, 10**6), st.integers(1, 12)), max_size=6))
def test_counts_read_back_whatever_the_hosts_are_called(counts: list[tuple[str, int, int]]) -> None:
    sync, counter = create("apel-sync-0.1"), SyncCounter()
    total, rules = 0, set()
    for host, jobs, month in counts:
        count = SyncCount(site="S", submit_host=host, year=2026, month=month, jobs=jobs)
        try:
            sync.render(count)
            counter.add_count(count)
            total += jobs
        except Unfit as unfit:
            rules.add(unfit.rule)
    assert rules <= {"forbidden-text", "text-too-long"}
    if total:
        assert sum(row["NumberOfJobs"] for row in rows(counter)) == total


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"site": ""}, "value-missing"),
        ({"site": "None"}, "value-missing"),
        ({"submit_host": "a%%b"}, "forbidden-text"),
        ({"submit_host": "x" * 256}, "text-too-long"),
        ({"jobs": 2**31}, "number-out-of-range"),
        ({"jobs": -1}, "number-out-of-range"),
    ],
)
def test_a_count_that_would_sink_the_message_is_refused_by_name(overrides: dict[str, Any], rule: str) -> None:
    ordinary: dict[str, Any] = {"site": "S", "submit_host": "ce", "year": 2026, "month": 3, "jobs": 1}
    with pytest.raises(Unfit) as caught:
        create("apel-sync-0.1").render(SyncCount(**(ordinary | overrides)))
    assert caught.value.rule == rule


def test_the_registry_knows_every_format_by_its_kind() -> None:
    assert isinstance(sync_format("apel-sync-0.1"), ApelSync)
    for name in FORMATS:
        made = [kind(name) for kind in (job_format, summary_format, sync_format) if _knows(kind, name)]
        assert [getattr(one, "name", None) for one in made] == [name]


def _knows(kind: Any, name: str) -> bool:
    try:
        kind(name)
    except KeyError:
        return False
    return True


if __name__ == "__main__":
    GOLDEN.write_bytes(golden_payload())
