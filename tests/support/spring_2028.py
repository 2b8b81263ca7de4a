"""Two months of jobs and the day on which they are looked at, for stories of months that must stay right."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob, generate

FEBRUARY, MARCH, APRIL = (datetime(2028, month, 1, tzinfo=UTC) for month in (2, 3, 4))
NOW: Final = datetime(2028, 4, 10, tzinfo=UTC)


def jobs_of_spring(count: int, **values: Any) -> list[SampleJob]:
    """So many of February and March, each under a number of its own at the batch system."""
    jobs = generate(3, count, FEBRUARY, APRIL)
    return [replace(job, local_job_id=str(number), **values) for number, job in enumerate(jobs)]


JOBS: Final = jobs_of_spring(24, benchmark=None)


def done(outcome: Outcome | None) -> Outcome:
    """What came of a round that surely was made."""
    assert outcome is not None
    return outcome
