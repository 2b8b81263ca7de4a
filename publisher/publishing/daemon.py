"""The daemon: a round after the other for each target, on its own timetable, until told to stop.

`config/cron.py` reads crontab's notation; APScheduler keeps the timetable. One loop on the main
thread schedules and listens, once a second; each round runs in a thread of its own. The loop goes
on whatever a round ends with. systemd is notified of what the service does. Spec: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, Final

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.date import DateTrigger

from publisher.ledger.answers import TargetState
from publisher.model.errors import BUG, Busy, LedgerError, PublisherError
from publisher.policy.target import Target
from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome, broken_off
from publisher.publishing.round.round import Observer
from publisher.publishing.site import Site


class RoundScheduler:
    """Starts `round_of(name)` in its own thread when its moment has come, never two of one name."""

    def __init__(self, round_of: Callable[[str], None]) -> None:
        self._round_of = round_of
        self._ended: SimpleQueue[str] = SimpleQueue()
        self.running: set[str] = set()
        self._scheduler = _PolledScheduler(executors={"default": _Threads()}, timezone=UTC)
        listen = self._scheduler.add_listener
        listen(lambda event: self.running.add(event.job_id), EVENT_JOB_SUBMITTED)
        # In the round's own thread.
        ended = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR
        listen(lambda event: self._ended.put(event.job_id), ended)
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
    """A scheduler that looks for due jobs only when it is asked to."""

    def process(self) -> None:
        self._process_jobs()

    def wakeup(self) -> None:
        """Whoever drives it looks soon enough."""

    def shutdown(self, wait: bool = True) -> None:
        super().shutdown(wait)


class _Threads(BaseExecutor):  # type: ignore[misc]  # APScheduler 3 has no types
    """A daemon thread a round: the process does not wait for a service that does not answer."""

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        Thread(target=self._work, args=(job, run_times), name=job.id, daemon=True).start()

    def _work(self, job: Any, run_times: list[datetime]) -> None:
        events = run_job(job, job._jobstore_alias, run_times, self._logger.name)
        self._run_job_success(job.id, events)


# A target that failed is tried again as by the hourly timer, though its rounds be further apart.
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
    seconds = _TRY_AGAIN_S if target.cron else min(target.every_s, _TRY_AGAIN_S)
    return timedelta(seconds=seconds)


log = logging.getLogger("publisher")

_LOOK_EVERY_S: Final = 1.0
_LOOK_AT_WORK_S: Final = 0.2  # while a round runs, whose end changes the plan
_END_LOOK_S: Final = 0.05
# To the end of a message after SIGTERM; systemd and people expect an end within ten seconds.
_GRACE_S: Final = 7.0
_JUMP_S: Final = 30.0  # between two looks: no clock that is only disciplined does that


class DaemonCommand(Enum):
    """What the daemon is asked for from outside."""

    STOP = "stop"
    RELOAD = "reload"


class Daemon:
    """Publishes a site's targets on their timetables.

    `load` reads the configuration again and raises ConfigError; `next_command(seconds)` waits that
    long at most for one; `stop` is what rounds look at between two messages; `report` is called
    with each round's outcome; `check_turn` raises LedgerError if another host may have taken over.
    """

    def __init__(
        self,
        site: Site,
        *,
        load: Callable[[], Site],
        next_command: Callable[[float], DaemonCommand | None],
        stop: Event,
        manager: ServiceManager,
        observer: Observer,
        report: Callable[[Outcome], None],
        check_turn: Callable[[], object] = lambda: None,
    ) -> None:
        self._site = site
        self._check_turn = check_turn
        self._load = load
        self._next_command = next_command
        self._stop = stop
        self._manager = manager
        self._observer = observer
        self._report = report
        self._scheduler = RoundScheduler(self._round)
        self._warnings = publish.OnceARound()
        self._turns = publish.Turns(site.targets_at_once, stop)
        self._targets = {target.name: target for target in site.targets}
        self._tried: set[str] = set()  # targets that their last round left due
        self._refused: tuple[str, ...] = ()  # why a new configuration was not adopted
        self._offset = self._clock_offset()
        self._watchdog_sent_at = site.process.monotonic()

    def serve(self) -> None:
        """Until it is asked to stop.

        Raises: LedgerError when the state cannot be read at the start, or the turn is over.
        """
        self._plan_all()
        self._manager.ready()
        log.info("ready: %s", self._timetables())
        while not self._stop.is_set():
            self._look()
            match self._next_command(self._pause_s()):
                case DaemonCommand.STOP:
                    break
                case DaemonCommand.RELOAD:
                    self._reload()
                case None:
                    pass
        self._end()

    # Looking, on the main thread

    def _look(self) -> None:
        self._check_turn()
        self._mind_the_clock()
        for name in self._scheduler.ended():
            self._tried.add(name)
            self._plan_or_wait(name)
        self._scheduler.start_what_is_due()
        targets = [self._status_of(name) for name in self._targets]
        self._manager.status("; ".join([*self._refused, *targets]))
        self._say_alive()

    def _say_alive(self) -> None:
        now = self._site.process.monotonic()
        every_s = self._manager.alive_every_s
        if every_s is not None and now - self._watchdog_sent_at >= every_s:
            self._watchdog_sent_at = now
            self._manager.alive()

    def _pause_s(self) -> float:
        look_s = _LOOK_AT_WORK_S if self._scheduler.running else _LOOK_EVERY_S
        return min(look_s, (self._manager.alive_every_s or look_s) / 2)

    def _status_of(self, name: str) -> str:
        planned = self._scheduler.planned(name)
        if planned is None:
            return f"{name}: at work"
        what = "trying again" if name in self._tried else "next round"
        return f"{name}: {what} {planned:%Y-%m-%dT%H:%M:%SZ}"

    def _mind_the_clock(self) -> None:
        """Plans are made by the wall clock; when somebody sets it, they are made again."""
        offset = self._clock_offset()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > _JUMP_S:
            way = "forward" if jump > 0 else "back"
            log.warning("the clock went %s by %.0f s: rescheduling the next rounds", way, abs(jump))
            for name in self._targets.keys() - self._scheduler.running:
                self._plan_or_wait(name)

    def _clock_offset(self) -> float:
        """Seconds by which the wall clock is ahead of the one that nobody can set."""
        return self._site.process.clock().timestamp() - self._site.process.monotonic()

    # Planning

    def _plan_all(self) -> None:
        for name in self._targets.keys() - self._scheduler.running:
            self._plan(name)

    def _plan(self, name: str) -> None:
        """Raises: LedgerError."""
        target = self._targets.get(name)
        if target is None:  # removed from the configuration while its round ran
            self._tried.discard(name)
            return
        with closing(self._site.ledgers.to_read()) as ledger:
            state = ledger.targets.state(name)
        now = self._site.process.clock()
        due = next_due(target, state, now)
        if due is not None:
            self._tried.discard(name)
            jitter = self._site.process.chance() * timedelta(seconds=target.jitter_s)
            self._scheduler.plan(name, due + jitter)
        elif name in self._tried:
            self._scheduler.plan(name, now + again_after(target))
        else:
            self._scheduler.plan(name, now)

    def _plan_or_wait(self, name: str) -> None:
        try:
            self._plan(name)
        except PublisherError as error:
            target = self._targets[name]
            log.error("target %s: %s; will try again later", name, error)
            self._scheduler.plan(name, self._site.process.clock() + again_after(target))

    # Being asked

    def _reload(self) -> None:
        self._manager.reloading(self._site.process.monotonic())
        try:
            site = self._load()
        except PublisherError as error:
            for line in str(error).split("\n"):
                log.error("%s", line)
            log.error("the configuration was not reloaded: the old one stays in effect")
            self._refused = ("new configuration refused",)
        else:
            self._take_over(site)
        self._manager.ready()

    def _take_over(self, site: Site) -> None:
        """Rounds that run end as they began; every target that is due is tried at once."""
        gone = self._targets.keys() - {target.name for target in site.targets}
        self._site = site
        self._targets = {target.name: target for target in site.targets}
        self._refused = ()
        self._tried.clear()
        for name in gone:
            self._scheduler.forget(name)
        for name in self._targets.keys() - self._scheduler.running:
            self._plan_or_wait(name)
        log.info("configuration reloaded: %s", self._timetables())

    def _timetables(self) -> str:
        return "; ".join(f"{target.name} {target.timetable}" for target in self._targets.values())

    def _end(self) -> None:
        """Let messages that are on their way come to their end, for a while."""
        self._stop.set()
        self._manager.stopping()
        self._manager.status("stopping")
        monotonic = self._site.process.monotonic
        begun = monotonic()
        self._scheduler.ended()
        while self._scheduler.running and monotonic() - begun < _GRACE_S:
            if self._next_command(_END_LOOK_S) is DaemonCommand.STOP:
                break
            self._say_alive()
            self._scheduler.ended()
        if self._scheduler.running:
            left = ", ".join(sorted(self._scheduler.running))
            nothing_lost = "nothing is lost, it is sent again under the same id"
            log.warning("stopped in the middle of a message: %s; %s", left, nothing_lost)
        else:
            log.info("stopped")

    # A round, in a thread of its own

    def _round(self, name: str) -> None:
        """Run a round in its turn; when a stop comes before that, the next daemon runs it."""
        target = self._targets.get(name)
        place = name if target is None else self._site.sending.receiver(target).place
        with self._turns.turn(place) as is_its_turn:
            if is_its_turn:
                self._work(name)

    def _work(self, name: str) -> None:
        site = self._site
        try:
            (outcome,) = publish.publish(
                site, targets=[name], observer=self._observer, warnings=self._warnings
            )
        except PublisherError as error:  # concerns all targets
            outcome = broken_off(name, error)
            outcome = outcome._replace(lacks=(outcome.reason,))
        except Exception as error:  # the boundary: a bug in one round must not stop the next
            log.critical("target %s: a bug in publisher: %s", name, error, exc_info=True)
            what = f"a bug in publisher ({type(error).__name__}: {error})"
            reason = f"{what}, exit status {BUG}; please report it"
            outcome = Outcome(target=name, outcome="error", reason=reason, exit_status=BUG)
        self._report(outcome)


_TURN: Final = "+daemon"  # no target is called so
_TURN_LOOK_S: Final = 1.0
_SERVER_AWAY_S: Final = 5.0


class StandbyDaemon:
    """The daemons of a pair of hosts: one serves, the other stands by until it is gone or silent.

    `serve` is a daemon's, given what it calls to see whether it still is the one.
    """

    def __init__(
        self,
        site: Site,
        *,
        next_command: Callable[[float], DaemonCommand | None],
        manager: ServiceManager,
        serve: Callable[[Callable[[], object]], None],
    ) -> None:
        self._site = site
        self._next_command = next_command
        self._manager = manager
        self._serve = serve
        self._stands_by = False

    def serve(self) -> None:
        """Until it is asked to stop. Raises: LedgerError when the ledger does not open at first."""
        began = False
        while True:
            try:
                with closing(self._site.ledgers.open()) as ledger:
                    began = True
                    with ledger.locks.working_on(_TURN, self._wait):
                        self._stands_by = False
                        # On the connection that holds the lock.
                        self._serve(lambda: ledger.targets.state(""))
                return
            except Busy:
                return  # it was asked to stop
            except LedgerError as error:
                if not began:
                    raise
                log.error("%s", error)
                if self._next_command(_SERVER_AWAY_S) is DaemonCommand.STOP:
                    return

    def _wait(self) -> bool:
        if not self._stands_by:
            self._stands_by = True
            log.info(
                "standby: another host works on this instance; this one takes over when it is gone"
            )
            self._manager.ready()
            self._manager.status("standby")
        if self._manager.alive_every_s is not None:
            self._manager.alive()
        return self._next_command(_TURN_LOOK_S) is not DaemonCommand.STOP


_LONGEST_STATUS: Final = 500  # characters; `systemctl status` shows one line
_TIMEOUT_S: Final = 1.0


class ServiceManager:
    """Sends datagrams to the socket that systemd names in NOTIFY_SOCKET, if it names one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._complained = False
        self._status = ""
        self.alive_every_s = _alive_every_s(environment)

    def ready(self) -> None:
        self._notify("READY=1")

    def reloading(self, monotonic_s: float) -> None:
        """`monotonic_s` is of CLOCK_MONOTONIC, now."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1_000_000)}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self) -> None:
        self._notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What it does now, in one line; sent when it changed."""
        line = " ".join(text.split())[:_LONGEST_STATUS]
        if line != self._status:
            self._status = line
            self._notify(f"STATUS={line}")

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of Linux's abstract sockets, which the kernel writes
        # with a NUL.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_TIMEOUT_S)
                sender.sendto(message.encode(), address)
        except OSError as error:
            # Publishing goes on; if it matters, systemd's own time-out says so.
            if not self._complained:
                log.warning("cannot notify systemd at %s: %s", self._address, error)
            self._complained = True


def _alive_every_s(environment: Mapping[str, str]) -> float | None:
    """Half of the time within which systemd wants to hear from this process; None for never."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or not int(usec) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 2_000_000
