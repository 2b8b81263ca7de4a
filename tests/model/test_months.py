"""Months of which counted jobs are gone from the accounting data: what is still known of each row."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from publisher.model.job import Epoch
from publisher.model.totals import FoundJobs, SummaryGroup, rows_with_gone


def row(user: str, jobs: int, wall_s: int = 100) -> SummaryGroup:
    return SummaryGroup(
        year=2026,
        month=10,
        site="EXAMPLE-SITE",
        user=user,
        vo="atlas",
        vo_group="/atlas",
        role="",
        submit_host="ce.example.org",
        infrastructure="grid",
        kind="HEPscore23",
        benchmarks=(),
        node_count=1,
        cpu_count=1,
        earliest_end=Epoch(1),
        latest_end=Epoch(2),
        wall_s=wall_s,
        cpu_s=wall_s,
        normalised_wall_micro=0,
        normalised_cpu_micro=0,
        jobs=jobs,
    )


def kept(counted: Sequence[SummaryGroup], found: FoundJobs, gone: int) -> list[tuple[str, int, int]] | None:
    rows = rows_with_gone(lambda group: group.user, counted, found, gone)
    return None if rows is None else sorted((group.user, group.jobs, group.wall_s) for group in rows)


COUNTED = (row("a", 3), row("b", 2))


def test_a_row_that_has_all_of_its_jobs_is_as_it_is_found() -> None:
    found = FoundJobs(unchanged=(row("a", 2, 60),), changed=(row("a", 1, 50), row("b", 1, 30)))
    assert kept(COUNTED, found, 1) == [("a", 1, 50), ("a", 2, 60), ("b", 2, 100)]


def test_a_row_that_lacks_jobs_or_has_more_of_them_stays_as_it_was_counted() -> None:
    found = FoundJobs(unchanged=(row("a", 1),), changed=(row("b", 3, 30),))
    assert kept(COUNTED, found, 1) == [("a", 3, 100), ("b", 2, 100)]


@pytest.mark.parametrize("gone", [0, 2, 3])
def test_jobs_that_do_not_add_up_leave_the_month_alone(gone: int) -> None:
    assert kept(COUNTED, FoundJobs(unchanged=(row("a", 3),), changed=(row("b", 1),)), gone) is None
