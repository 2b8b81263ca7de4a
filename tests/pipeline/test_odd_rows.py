"""Odd values, and odd rows beside them, in any place of a page: what is counted at once is as one by one."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.cli.site import LiveSite
from tests.arex_databases import Schema, generate
from tests.pipeline.test_grouped import END, FORMATS, START, Twins, live_site
from tests.support.pki import PKI
from tests.support.strategies import examples

_BESIDE: Final = (
    "DELETE FROM JobEvents WHERE RecordID = ? AND EventKey = 'FINISHED'",
    "DELETE FROM JobEvents WHERE RecordID = ?",
    "INSERT INTO JobEvents (RecordID, EventKey, EventTime) VALUES (?, 'FINISHED', '2026-09-09 09:09:09')",
    "UPDATE JobEvents SET rowid = 500000 + rowid WHERE RecordID = ? AND EventKey = 'FINISHED'",
    "INSERT INTO JobEvents (RecordID, EventKey, EventTime) VALUES (?, 'LRMSSTART', '1970-01-01 00:00:00')",
    "INSERT INTO JobEvents (RecordID, EventKey, EventTime) VALUES (?, 'ACCEPTED', '1970-01-01 00:00:00')",
    "UPDATE JobEvents SET EventTime = NULL WHERE RecordID = ?",
    "UPDATE JobEvents SET EventTime = '1970-01-01 00:00:00' WHERE RecordID = ?",
    "DELETE FROM AuthTokenAttributes WHERE RecordID = ?",
    "INSERT INTO AuthTokenAttributes VALUES (?, 'mainfqan', '/cms/Role=pilot')",
    "INSERT INTO AuthTokenAttributes VALUES (?, 'vomsfqan', '/belle/Role=late')",
    "INSERT INTO AuthTokenAttributes VALUES (?, CAST('mainfqan' AS BLOB), '/ops/Role=bytes')",
    "INSERT INTO AuthTokenAttributes VALUES (?, 'mainfqan', '')",
    "INSERT INTO JobExtraInfo VALUES (?, 'benchmark', 'HEPSPEC:12.5')",
    "INSERT INTO JobExtraInfo VALUES (?, 'benchmark', 'HEPscore23:7')",
)
_VALUES: Final = ("NULL", "0", "-1", "1", "2.5", "'many'", "x'31'", str(2**20 - 2), str(2**20 - 1), str(2**62))
# Written one job after the other, the newest first, or all ends after everything else.
_ORDERS: Final = (
    "SELECT 1",
    "UPDATE JobEvents SET rowid = 1000000 - rowid",
    "UPDATE JobEvents SET rowid = 1000000 + rowid WHERE EventKey = 'FINISHED'",
)
_COLUMNS: Final = {
    1: ("EndpointID", "QueueID", "StatusID", "UserID", "VOID", "NodeCount", "CPUCount", "SubmitTime", "EndTime"),
    2: ("FQANID", "BenchmarkID"),
}
_TIMES: Final = ("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime")


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), schema=st.sampled_from((1, 2)), form=st.sampled_from(FORMATS))
def test_odd_rows_in_any_place(
    tmp_path_factory: pytest.TempPathFactory, pki: PKI, seed: int, schema: Schema, form: str
) -> None:
    rng = random.Random(seed)
    twins = Twins(tmp_path_factory.mktemp("twins"), pki, form, {})
    twins.quick.config["source"]["page_rows"] = twins.slow.config["source"]["page_rows"] = 2
    twins.quick.save()
    twins.slow.save()
    # Few kinds, so that odd rows are of the kind of plain ones.
    kinds = list(generate(seed, 4, START, END))
    rows = [replace(kinds[number % 4], job_id=f"job-{number}", local_job_id=str(number)) for number in range(48)]
    twins.write(rows, schema)
    columns = (*_COLUMNS[1], *_TIMES, *(_COLUMNS[2] if schema == 2 else ()))
    mends = [*_BESIDE, *chain.from_iterable(_updates(column) for column in columns)]
    with closing(sqlite3.connect(twins.quick.database(schema))) as arex, arex:
        for row in rng.sample(range(1, 49), 14):
            arex.execute(rng.choice(mends), [row])
        arex.execute(rng.choice(_ORDERS))
    assert twins.publish().alike > 20
    twins.a_day_passes()
    twins.publish()


def _updates(column: str) -> list[str]:
    return [f"UPDATE AAR SET {column} = {value} WHERE RecordID = ?" for value in _VALUES]


def test_a_benchmark_that_comes_later_is_seen(tmp_path: Path, pki: PKI) -> None:
    """A reader that found none beside any row does not take the next rows for jobs without one."""
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    twins.quick.config["source"]["page_rows"] = 1
    twins.quick.save()
    job = next(job for job in generate(7, 60, START, END) if job.fqans)
    like = [replace(job, job_id=f"job-{number}", local_job_id=str(number), benchmark="") for number in range(20)]
    twins.write(like, 2)
    source = live_site(twins.quick, LiveSite, twins.quick.control, twins.now).source()
    path = twins.quick.database(2)
    with closing(source):
        pages = source.since(None, next(iter(source.databases())), frozenset(), twins.now, columns=True)
        first = next(pages)
        with closing(sqlite3.connect(path)) as arex, arex:
            arex.execute("INSERT INTO JobExtraInfo VALUES (15, 'benchmark', 'HEPSPEC:12.5')")
        second = next(pages)
    assert first.runs is not None
    assert second.runs is not None
    assert {one.benchmark for one in first.runs.examples} == {""}
    found = dict(zip(second.runs.record_ids, (one.benchmark for one in second.runs.examples), strict=True))
    assert found == {number: "HEPSPEC:12.5" if number == 15 else "" for number in range(9, 17)}
