"""When each target's next round starts, from what the ledger knows, and APScheduler as the daemon
uses it.

One round is scheduled per target, driven by the daemon's own loop: there is no thread that could
die unseen, and no catching up on missed times. A round scheduled for a moment in the past starts
once, however long ago that is. (APScheduler's interval trigger counts every missed time: a clock
that jumps by years hangs it, its issue 1066.) The daemon handles a clock that goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.date import DateTrigger

from publisher.ledger.contract import TargetState
from publisher.model.target import Target


class RoundScheduler:
    """Starts `round_of(name)` in a thread of its own when its moment has come; never two of one name at once."""

    def __init__(self, round_of: Callable[[str], None]) -> None:
        self._round_of = round_of
        self._ended: SimpleQueue[str] = SimpleQueue()
        self.running: set[str] = set()
        self._scheduler = _PolledScheduler(executors={"default": _Threads()}, timezone=UTC)
        self._scheduler.add_listener(lambda event: self.running.add(event.job_id), EVENT_JOB_SUBMITTED)
        # In the round's own thread, when its place is free again.
        self._scheduler.add_listener(lambda event: self._ended.put(event.job_id), EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self._scheduler.start()

    def plan(self, name: str, moment: datetime) -> None:
        """The next round of `name` begins then, whatever was planned before. Not while one runs."""
        self._scheduler.add_job(
            self._round_of,
            DateTrigger(moment, timezone=UTC),
            args=(name,),
            id=name,
            name=name,
            replace_existing=True,
            misfire_grace_time=None,
            max_instances=1,
        )

    def planned(self, name: str) -> datetime | None:
        """When the next round begins; None while one runs, or when there is no plan."""
        job = self._scheduler.get_job(name)
        return None if job is None else job.next_run_time.astimezone(UTC)

    def forget(self, name: str) -> None:
        try:
            self._scheduler.remove_job(name)
        except JobLookupError:
            return  # its round runs: there is no plan

    def start_what_is_due(self) -> None:
        self._scheduler.process()

    def ended(self) -> list[str]:
        """The names whose rounds came to an end since it was last asked."""
        names: list[str] = []
        while True:
            try:
                names.append(self._ended.get_nowait())
            except Empty:
                self.running -= set(names)
                return names


class _PolledScheduler(BaseScheduler):  # type: ignore[misc]  # APScheduler 3 has no types
    """A scheduler that looks for due jobs when it is told to."""

    def process(self) -> None:
        self._process_jobs()

    def wakeup(self) -> None:
        """Whoever drives it looks soon enough."""

    def shutdown(self, wait: bool = True) -> None:
        super().shutdown(wait)


class _Threads(BaseExecutor):  # type: ignore[misc]  # APScheduler 3 has no types
    """A daemon thread a round: at the end of the process nobody waits for a service that does not answer."""

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        Thread(target=self._work, args=(job, run_times), name=job.id, daemon=True).start()

    def _work(self, job: Any, run_times: list[datetime]) -> None:
        self._run_job_success(job.id, run_job(job, job._jobstore_alias, run_times, self._logger.name))


# A target that failed is tried again as the hourly timer would, though its own rounds be further apart.
_TRY_AGAIN_S: Final = 3600


def next_due(target: Target, state: TargetState | None, now: datetime) -> datetime | None:
    """When a target is due next, aware UTC; None when it is due now.

    A last success in the future is of a clock that went back since, and does not count.
    """
    if state is None or state.last_success is None or state.is_behind:
        return None
    due = target.due_after(state.last_success)
    return due if state.last_success <= now < due else None


def again_after(target: Target) -> timedelta:
    """How long a target waits after a round that failed."""
    return timedelta(seconds=_TRY_AGAIN_S if target.cron else min(target.every_s, _TRY_AGAIN_S))
