"""Text of `sacct --parsable2`: the runs of jobs that its lines report.

A line is a job's or a step's; the steps of a job follow it. Of the job's line come its times, CPU
time and what was allocated, of its steps the memory. A row is one run: a job that was requeued has
one for each, with a time of submission of its own.

    JobIDRaw|State|Submit|Start|End|ElapsedRaw|User|AllocTRES|AllocCPUS|UserCPU|SystemCPU|MaxRSS
    7|COMPLETED|1795360209|1795360210|1795360281|71|ann|cpu=2,node=1|2|00:30.500|00:01.250|
    7.batch|COMPLETED|1795360210|1795360210|1795360281|71||cpu=2,node=1|2|00:30.500|00:01.250|8420K
    ->  SacctRun(raw_id="7", wall_s=71, user_ms=30500, system_ms=1250, memory_kib=8420, ...)

Spec: sacct(1); tried on Slurm itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from publisher.sources.importing.line_importer import LogPiece
from publisher.sources.importing.log_files import LogBlock, clean
from publisher.sources.slurm.header import BadRow, Fields, Header, NotSacct
from publisher.sources.slurm.values import (
    NO_SIZE,
    count_of,
    exit_code_of,
    joules,
    kib,
    known_count,
    milliseconds,
    seconds,
)

_NUMBER: Final = rb"([0-9]+)(?:[.]([0-9A-Za-z_+-]{1,64}))?"  # of a job, or of a step
_NO_NUMBER: Final = "does not begin with a job's number"
_NO_JOB: Final = "is a step whose job is not there"
_CUT_OFF: Final = "is cut off: its last line has no end"
_LONG: Final = "has a line that is too long for a record"
SURELY_WITHOUT_STEPS: Final = 200
_NO_TIME: Final = frozenset({"", "Unknown", "None"})
_LIVE: Final = frozenset(
    {
        *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESV_DEL_HOLD"),
        *("REQUEUE_FED", "REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
        *("POWER_UP_NODE", "UPDATE_DB"),
    }
)
_USED_CPU: Final = re.compile(r"(?:^|,)cpu=([0-9:.-]+)")
_MOST_S: Final = 2**53


@dataclass(slots=True)
class SacctRun:
    """One finished run. Times are epoch seconds; None, '' and counts that are 0 are unknown."""

    raw_id: str
    job_id: str  # as people know it: 93_2 of an array, 128+1 of a heterogeneous job
    cluster: str
    partition: str
    account: str
    qos: str
    user: str
    name: str
    state: str  # without "by UID"
    exit_code: int | None
    submitted_at: int
    eligible_at: int | None
    started_at: int
    ended_at: int
    wall_s: int  # without the time for which it was suspended
    suspended_s: int
    user_ms: int | None
    system_ms: int | None
    cpus: int
    nodes: int
    node_list: str
    tres: str  # AllocTRES; '' for a job that was given nothing
    tasks: int
    memory_kib: int
    virtual_kib: int
    energy_j: int
    limit_min: int


# The columns that are read, in the order in which `SacctReader` takes them: whether a job ran, what
# it was, and of its steps.
_IF_RAN: Final = ("State", "Start", "End", "ElapsedRaw", "AllocTRES")
_OF_JOB: Final = (
    *("JobIDRaw", "JobID", "Cluster", "Partition", "Account", "QOS", "User", "JobName", "ExitCode"),
    *("Submit", "Eligible", "Suspended", "UserCPU", "SystemCPU"),
    *("AllocCPUS", "AllocNodes", "NodeList", "AllocTRES", "ConsumedEnergyRaw", "TimelimitRaw"),
)
_OF_STEP: Final = ("NTasks", "MaxRSS", "MaxVMSize")
_CPU: Final = ("UserCPU", "SystemCPU", "TotalCPU")
_CPU_OF_STEP: Final = (*_CPU, "TRESUsageInTot")
_SHORT_S: Final = 1  # a task that took longer shows memory, where Slurm measures anything
_IN_ZONE: Final = ("Start", "End", "Submit", "Suspended")
_MEASURED: Final = ("State", "ExitCode", "MaxRSS")


class _JobLines:
    """The line of a job and those of its steps; `wrong` is why they cannot be understood."""

    __slots__ = ("content", "offset", "steps", "text", "wrong")

    def __init__(self, offset: int, content: bytes, wrong: str = "") -> None:
        self.offset = offset
        self.content = content
        self.text = content.decode("utf-8", "replace")
        self.steps: list[str] = []
        self.wrong = wrong

    def go_on(self, content: bytes) -> None:
        """More of a name that goes over lines."""
        text = content.decode("utf-8", "replace")
        if self.steps:
            self.steps[-1] += f"\n{text}"
        else:
            self.text += f"\n{text}"


def _note_length(job: _JobLines | None, block: LogBlock) -> None:
    if job is not None and block.is_long:
        job.wrong = _LONG


class SacctReader:
    """Makes runs of the lines of one text, in their order."""

    def __init__(
        self, header: Header, zone: ZoneInfo | None, *, without_steps: int | None = 0
    ) -> None:
        """`zone` is that in which sacct wrote times; None where it wrote epoch seconds.

        A text of more jobs than `without_steps`, none of which has steps, is refused; None: it may
        have any number.
        """
        self._header = header
        self._zone = zone
        self._without_steps = without_steps or 0
        # Jobs that ran, all of them without steps and CPU time; None where that is not counted.
        self._ran = None if without_steps is None else 0
        self._moment = _moment_reader(zone)
        self._beginning = re.compile(_NUMBER + re.escape(header.separator)).match
        self._if_ran = header.picked(_IF_RAN)
        self._of_job = header.picked(_OF_JOB)
        self._of_step = header.picked_behind(_OF_STEP)
        self._cpu = header.picked(_CPU)
        self._cpu_of_step = header.picked(_CPU_OF_STEP)
        self._has_usage = "TRESUsageInTot" in header.names
        self._in_zone = header.picked(_IN_ZONE)
        self._measured = header.picked(_MEASURED)

    def pieces(self, blocks: Iterable[LogBlock], *, whole: bool) -> Iterator[LogPiece[SacctRun]]:
        """The jobs of the lines behind the header, each with its steps.

        Unless the text is `whole`, the last job may still get steps: it ends where it begins, to be
        read once more.

        Raises: NotSacct for a text that tells no CPU time, or no time zone.
        """
        job: _JobLines | None = None
        at = end = 0
        line_end = self._header.line_end
        for block in blocks:
            at = block.offset
            for line in block.lines:
                content = line.removesuffix(line_end)
                number = self._beginning(content)
                if number is None:
                    job = self._without_number(job, at, content)
                elif number.lastindex == 1:
                    if job is not None:
                        yield self._piece(job, at)
                    job = _JobLines(at, content)
                elif job is None:
                    job = _JobLines(at, content, _NO_JOB)
                else:
                    job.steps.append(content.decode("utf-8", "replace"))
                at += len(line) + 1
            end = block.end
            _note_length(job, block)
        if job is not None:
            if at > end and not self._header.may_lose_end:
                job.wrong = _CUT_OFF
            up_to = end if whole else job.offset
            yield self._piece(job, up_to)
        self._refuse_without_steps(self._without_steps)

    def _without_number(
        self, job: _JobLines | None, offset: int, content: bytes
    ) -> _JobLines | None:
        """A line that begins neither a job nor a step.

        Raises: NotSacct for other columns than those of the first header.
        """
        if content.startswith(self._header.beginning):
            if content != self._header.line:
                others = f"has other columns or another delimiter from byte {offset:,} on"
                raise NotSacct(f"{others}; give each output of sacct a file of its own")
        elif content.strip():
            if job is None:
                return _JobLines(offset, content, _NO_NUMBER)
            job.go_on(content)
        return job

    def _piece(self, lines: _JobLines, end: int) -> LogPiece[SacctRun]:
        """What the lines from that of a job to the next one say."""
        run, skipped, wrong = None, "", lines.wrong
        try:
            if not wrong:
                run, skipped = self._read(lines)
        except BadRow as error:
            wrong = str(error)
        if wrong:
            return LogPiece(lines.offset, end, self._header.shown(lines.content), (), wrong)
        if run is None:
            return LogPiece(lines.offset, end, lines.content, (), "", skipped)
        if self._ran is not None and run.wall_s:
            self._ran = None if lines.steps or run.user_ms else self._ran + 1
            self._refuse_without_steps(SURELY_WITHOUT_STEPS)
        return LogPiece(lines.offset, end, lines.content, (run,))

    def _refuse_without_steps(self, least: int) -> None:
        """Raises: NotSacct."""
        if self._ran is not None and self._ran > least:
            why = "has no steps, so that CPU times are zero"
            raise NotSacct(f"{why}; make it without -X (--allocations)")

    def _read(self, lines: _JobLines) -> tuple[SacctRun | None, str]:
        """The run, or why it is no usage. Raises: BadRow."""
        job = self._header.fields(lines.text)
        state_text, start, end, elapsed, tres = self._if_ran(job)
        state = state_text.partition(" ")[0]
        ended_at = self._moment(end)
        if state in _LIVE or ended_at is None:
            return None, f"not over ({state})"
        wall_s = count_of(elapsed, _MOST_S)
        if wall_s is None:
            raise BadRow(f"ElapsedRaw is {elapsed!r}, not a number of seconds")
        started_at = self._moment(start)
        if started_at is None or not (wall_s or tres):
            return None, f"never ran ({state})"
        times = started_at, ended_at, wall_s
        if self._zone is not None:
            times = (*self._fitting(job, wall_s), wall_s)
        return self._run(lines, job, state, times), ""

    def _fitting(self, job: Fields, wall_s: int) -> tuple[int, int]:
        """Start and end: in the hour that comes twice, what fits the time that the job took."""
        start, end, submit, suspended = self._in_zone(job)
        submitted_at, took_s = self._moment(submit) or 0, wall_s + seconds(suspended)

        def misfit(span: tuple[int, int]) -> tuple[int, bool]:
            started_at, ended_at = span
            return abs(ended_at - started_at - took_s), started_at < submitted_at

        return min(product(self._twice(start), self._twice(end)), key=misfit)

    def _twice(self, text: str) -> list[int]:
        """Both moments of a time in that hour."""
        return [self._moment(text, fold) or 0 for fold in (0, 1)]

    def _run(
        self, lines: _JobLines, fields: Fields, state: str, times: tuple[int, int, int]
    ) -> SacctRun:
        """`times` are start, end and wall time. Raises: BadRow."""
        started_at, ended_at, wall_s = times
        # Hot path: by place, in the order of _OF_JOB. An object with names for them costs a tenth
        # of the whole reading.
        (
            raw_id, job_id, cluster, partition, account, qos, user, name, exit_code,
            submit, eligible, suspended, user_cpu, system_cpu,
            cpus, nodes, node_list, tres, energy, limit,
        ) = self._of_job(fields)  # fmt: skip
        submitted_at = self._moment(submit)
        if submitted_at is None:
            raise BadRow("has no time of submission")
        suspended_s = seconds(suspended)
        if started_at < submitted_at <= ended_at:
            # What is left of a resized job: it shows the start of the first part, another row.
            started_at = submitted_at
            wall_s = min(wall_s, max(0, ended_at - submitted_at - suspended_s))
        started_at = min(started_at, ended_at)  # the controller's clock may have gone back
        user_ms, system_ms = milliseconds(user_cpu), milliseconds(system_cpu)
        if not user_ms or system_ms is None or (self._has_usage and lines.steps):
            steps = list(map(self._header.fields, lines.steps))
            user_ms, system_ms = self._cpu_with_steps(fields, steps, wall_s)
        tasks, memory_kib, virtual_kib = self._greatest(lines.steps)
        eligible_at = submitted_at if eligible == submit else self._moment(eligible)
        return SacctRun(
            raw_id,
            job_id or raw_id,
            cluster,
            partition,
            account,
            qos,
            user,
            clean(name),
            state,
            exit_code_of(exit_code),
            submitted_at,
            eligible_at,
            started_at,
            ended_at,
            wall_s,
            suspended_s,
            user_ms,
            system_ms,
            known_count(cpus),
            known_count(nodes),
            node_list,
            tres,
            tasks,
            memory_kib,
            virtual_kib,
            joules(energy),
            known_count(limit),
        )

    def _greatest(self, steps: Sequence[str]) -> tuple[int, int, int]:
        """Tasks, memory and virtual memory of whichever step had most. Raises: BadRow."""
        tasks = memory_kib = virtual_kib = 0
        for step in steps:
            count, resident, virtual = self._of_step(step)
            if (number := known_count(count)) > tasks:
                tasks = number
            if (size := kib(resident)) > memory_kib:
                memory_kib = size
            if (size := kib(virtual)) > virtual_kib:
                virtual_kib = size
        return tasks, memory_kib, virtual_kib

    def _cpu_with_steps(
        self, job: Fields, steps: Sequence[Fields], wall_s: int
    ) -> tuple[int | None, int | None]:
        """Return user and system milliseconds: the job's, else the sum of its steps.

        Slurm may leave a step's CPU time out of TotalCPU: what TRESUsageInTot has more is added.
        Unknown where nobody measured: a job without a step, one whose node failed, of which no step
        has an exit code, and one of a cluster that gathers nothing.
        """
        own = _cpu_of(*self._cpu(job))
        found = [_cpu_of_step(*self._cpu_of_step(step)) for step in steps]
        parts = [cpu for cpu in found if cpu is not None]
        if own is None and not parts:
            return None, None
        more_ms = sum(part.more_ms for part in parts)
        if own is None or not any(own):
            own = sum(part.user_ms for part in parts), sum(part.system_ms for part in parts)
        elif more_ms:  # not where the job's line has it already
            whole_ms = sum(map(sum, parts))
            more_ms = min(more_ms, max(0, whole_ms - sum(own)))
        user_ms, system_ms = own[0] + more_ms, own[1]
        measured = user_ms or system_ms or self._were_measured(steps, wall_s)
        return (user_ms, system_ms) if measured else (None, None)

    def _were_measured(self, steps: Sequence[Fields], wall_s: int) -> bool:
        """Whether CPU times of 0 were measured."""
        short = wall_s <= _SHORT_S
        return any(
            memory not in NO_SIZE or (short and code and state != "RESIZING")
            for state, code, memory in map(self._measured, steps)
        )


class _StepCpu(NamedTuple):
    """CPU time of a step; `more_ms` stands in TRESUsageInTot only."""

    user_ms: int
    system_ms: int
    more_ms: int


def _cpu_of_step(user: str, system: str, total: str, usage: str) -> _StepCpu | None:
    measured = _cpu_of(user, system, total)
    found = _USED_CPU.search(usage)
    used_ms = milliseconds(found[1]) if found else None
    if measured is None and used_ms is None:
        return None
    user_ms, system_ms = measured or (0, 0)
    more_ms = (used_ms or 0) - user_ms - system_ms
    more_ms *= more_ms >= 1000  # TRES has whole seconds: less than one more is the same time
    return _StepCpu(user_ms, system_ms, more_ms)


def _cpu_of(user: str, system: str, total: str) -> tuple[int, int] | None:
    user_ms, system_ms = milliseconds(user), milliseconds(system)
    if user_ms is not None and system_ms is not None:
        return user_ms, system_ms
    total_ms = milliseconds(total)
    return None if total_ms is None else (total_ms, 0)


class _MomentReader(Protocol):
    def __call__(self, text: str, fold: int = 0) -> int | None:
        """`fold` 1: in the hour that comes twice, the second time. Raises: BadRow, NotSacct."""


def _moment_reader(zone: ZoneInfo | None) -> _MomentReader:
    """Reads times as sacct writes them."""

    def read(text: str, fold: int = 0) -> int | None:
        if text.isdigit() and len(text) <= 12 and text.isascii():
            return int(text) or None
        if text in _NO_TIME:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise BadRow(f"{clean(text[:64])!r} is not a time") from None
        if moment.tzinfo is None:
            if zone is None:
                raise NotSacct(
                    "has times without a time zone; run sacct with SLURM_TIME_FORMAT=%s in its "
                    "environment, or give the zone in which it ran as time_zone"
                )
            moment = moment.replace(tzinfo=zone, fold=fold)
        return int(moment.timestamp()) or None

    return read
