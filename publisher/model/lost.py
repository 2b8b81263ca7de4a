"""Jobs that another publisher has passed over, as far as the accounting data can tell."""

from __future__ import annotations

from dataclasses import dataclass

from publisher.model.job import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJob:
    """A job that was certainly or perhaps passed over."""

    job_id: str
    ended_at: Epoch
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJobs:
    """What was found. The numbers count all, `jobs` are the first of them; `lines` say it to people, and what to do."""

    certain: int
    perhaps: int
    jobs: tuple[LostJob, ...]
    lines: tuple[str, ...]
