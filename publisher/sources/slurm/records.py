"""Text of `sacct --parsable2`: the runs of jobs that its lines report.

A line is a job's or a step's; sacct prints the steps of a job behind it, and a step that stands
elsewhere, as in a sorted text, is a record of its own. Of the job's line come its times, CPU
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.sources.files.line_importer import LogPiece
from publisher.sources.files.log_files import LogBlock, clean
from publisher.sources.slurm.header import BadRow, Fields, Header, NotSacct
from publisher.sources.slurm.usage import (
    CpuParts,
    StepUsage,
    cpu_of,
    cpu_time,
    step_usage,
    with_steps,
)
from publisher.sources.slurm.values import (
    MOST_S,
    count_of,
    exit_code_of,
    joules,
    known_count,
    moment_reader,
    seconds,
)

_NUMBER: Final = rb"([0-9]{1,18})(?:[.]([0-9A-Za-z_+-]{1,64}))?"  # of a job, or of a step
_NO_NUMBER: Final = "does not begin with a job's number"
_STEP_NOT_OVER: Final = "not over (a step)"
_IN_TEXT: Final = (
    "follows a row that lacks columns, so it may be what a user wrote there, such as a job's name"
)
_CUT_OFF: Final = "is cut off: its last line has no end"
_LONG: Final = "has a line that is too long for a record"
SURELY_WITHOUT_STEPS: Final = 200
_LIVE: Final = frozenset(
    {
        *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESV_DEL_HOLD"),
        *("REQUEUE_FED", "REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
        *("POWER_UP_NODE", "UPDATE_DB"),
    }
)


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
    cpu_parts: CpuParts
    steps: tuple[str, ...]  # the names of those that are in this
    cpus: int
    nodes: int
    node_list: str
    tres: str  # AllocTRES; '' for a job that was given nothing
    tasks: int
    memory_kib: int
    virtual_kib: int
    energy_j: int
    limit_min: int


class SacctStep(NamedTuple):
    """A step that is over, and whose line does not follow that of its job."""

    raw_id: str  # of the job
    name: str
    cluster: str
    started_at: int
    ended_at: int
    usage: StepUsage


# The columns that are read, in the order in which `SacctReader` takes them: whether a job ran, what
# it was, and of its steps.
_IF_RAN: Final = ("State", "Start", "End", "ElapsedRaw", "AllocTRES")
_OF_JOB: Final = (
    *("JobIDRaw", "JobID", "Cluster", "Partition", "Account", "QOS", "User", "JobName", "ExitCode"),
    *("Submit", "Start", "Eligible", "Suspended"),
    *("AllocCPUS", "AllocNodes", "NodeList", "AllocTRES", "ConsumedEnergyRaw", "TimelimitRaw"),
)
_CPU: Final = ("UserCPU", "SystemCPU", "TotalCPU")
_OF_STEP: Final = (
    *("JobIDRaw", "Cluster", "State", "Start", "End", "ElapsedRaw", "Suspended"),
    *("ExitCode", "NTasks", "MaxRSS", "MaxVMSize", *_CPU, "TRESUsageInTot"),
)
_IN_ZONE: Final = ("Start", "End", "Submit", "Suspended")
_CLOCKS_S: Final = 1  # by which the clocks of a job's nodes and of the controller may differ


SacctPiece = LogPiece[SacctRun | SacctStep]


class _JobLines:
    """The line of a job and those of its steps; or of one step, which follows no line of its job.

    `number` is the job's, empty where there is none; `wrong` is why they cannot be understood.
    """

    __slots__ = ("content", "is_step", "number", "offset", "steps", "text", "wrong")

    def __init__(
        self, offset: int, content: bytes, number: re.Match[bytes] | None, wrong: str = ""
    ) -> None:
        self.offset = offset
        self.content = content
        self.number = number[1] if number else b""
        self.is_step = number is not None and number.lastindex == 2
        self.text = content.decode("utf-8", "replace")
        self.steps: list[str] = []
        self.wrong = wrong

    def has_step(self, number: re.Match[bytes]) -> bool:
        """Whether a line with this number is that of a step of this job."""
        return number.lastindex == 2 and number[1] == self.number and not self.is_step

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
        self._moment = moment_reader(zone)
        self._beginning = re.compile(_NUMBER + re.escape(header.separator)).match
        self._if_ran = header.picked(_IF_RAN)
        self._of_job = header.picked(_OF_JOB)
        self._of_step = header.picked(_OF_STEP)
        self._cpu = header.picked(_CPU)
        self._shows_memory = bool({"MaxRSS", "TRESUsageInTot"} & set(header.names))
        self._in_zone = header.picked(_IN_ZONE)

    def pieces(self, blocks: Iterable[LogBlock], *, whole: bool) -> Iterator[SacctPiece]:
        """The jobs of the lines behind the header, each with the steps that follow it.

        A step that follows no line of its job is a piece of its own.

        Unless the text is `whole`, the last job may still get steps: it ends where it begins, to be
        read once more.

        Raises: NotSacct for a text that tells no CPU time, or no time zone.
        """
        job: _JobLines | None = None
        at = end = 0
        line_end, may_be_forged = self._header.line_end, self._header.may_be_forged
        for block in blocks:
            at = block.offset
            for line in block.lines:
                content = line.removesuffix(line_end)
                number = self._beginning(content)
                lacks = self._lacks(job) if may_be_forged and job is not None else 0
                if number is None or (lacks and content.count(self._header.separator) == lacks):
                    job = self._without_number(job, at, content)
                elif job is not None and not lacks and job.has_step(number):
                    job.steps.append(content.decode("utf-8", "replace"))
                else:
                    if job is not None:
                        yield self._piece(job, at)
                    wrong = _IN_TEXT if lacks else ""
                    job = _JobLines(at, content, number, wrong)
                at += len(line) + 1
            end = block.end
            _note_length(job, block)
        if job is not None:
            if at > end and not self._header.may_lose_end:
                job.wrong = _CUT_OFF
            up_to = end if whole else job.offset
            yield self._piece(job, up_to)
        self._refuse_without_steps(self._without_steps)

    def _lacks(self, lines: _JobLines) -> int:
        """How many delimiters the last row lacks, where a user's text may have an end of line."""
        if lines.wrong:
            return 0
        last = lines.steps[-1] if lines.steps else lines.text
        return self._header.lacks(last)

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
                return _JobLines(offset, content, None, _NO_NUMBER)
            job.go_on(content)
        return job

    def _piece(self, lines: _JobLines, end: int) -> SacctPiece:
        """What the lines from that of a job to the next one say, or the line of a step."""
        records: list[SacctRun | SacctStep] = []
        skipped, wrong = "", lines.wrong
        try:
            if lines.is_step and not wrong:
                step = self._of_step(self._header.fields(lines.text))
                records = [*self._steps_over([step])]
                skipped = "" if records else _STEP_NOT_OVER
            elif not wrong:
                records, skipped = self._read(lines)
        except BadRow as error:
            wrong = str(error)
        if wrong:
            return LogPiece(lines.offset, end, self._header.shown(lines.content), (), wrong)
        if self._ran is not None and records:
            self._note_ran(lines, records[0])
        return LogPiece(lines.offset, end, lines.content, records, "", skipped)

    def _note_ran(self, lines: _JobLines, first: SacctRun | SacctStep) -> None:
        """Raises: NotSacct."""
        if lines.is_step or lines.steps or not isinstance(first, SacctRun) or first.user_ms:
            self._ran = None
        elif first.wall_s:
            self._ran = (self._ran or 0) + 1
            self._refuse_without_steps(SURELY_WITHOUT_STEPS)

    def _refuse_without_steps(self, least: int) -> None:
        """Raises: NotSacct."""
        if self._ran is not None and self._ran > least:
            why = "has no steps, so that CPU times are zero"
            raise NotSacct(
                f"{why}; make it without -X (--allocations), or import the text of the steps first"
            )

    def _read(self, lines: _JobLines) -> tuple[list[SacctRun | SacctStep], str]:
        """The run and steps of other runs of its number, or why it is no usage. Raises: BadRow."""
        job = self._header.fields(lines.text)
        state_text, start, end, elapsed, tres = self._if_ran(job)
        state = state_text.partition(" ")[0]
        ended_at = self._moment(end)
        if state in _LIVE or ended_at is None:
            return self._steps_before(job, lines), f"not over ({state})"
        wall_s = count_of(elapsed, MOST_S)
        if wall_s is None:
            raise BadRow(f"ElapsedRaw is {elapsed!r}, not a number of seconds")
        started_at = self._moment(start)
        if started_at is None or not (wall_s or tres):
            return self._steps_before(job, lines), f"never ran ({state})"
        times = started_at, ended_at, wall_s
        if self._zone is not None:
            times = (*self._fitting(self._in_zone(job), wall_s), wall_s)
        return self._run(lines, job, state, times), ""

    def _steps_before(self, job: Fields, lines: _JobLines) -> list[SacctRun | SacctStep]:
        """Steps behind a job that is no usage, of an earlier run of its number. Raises: BadRow."""
        _, _, submit, _ = self._in_zone(job)
        submitted_at = self._moment(submit)
        if submitted_at is None or not lines.steps:
            return []
        steps = self._steps_over(self._steps_of(lines))
        return [step for step in steps if step.started_at < submitted_at - _CLOCKS_S]

    def _steps_over(self, steps: Iterable[tuple[str, ...]]) -> list[SacctStep]:
        """Those of steps that ran and are over. Raises: BadRow."""
        over = []
        for step in steps:
            number, cluster, state, start, end, elapsed, suspended, *_ = step
            started_at, ended_at = self._moment(start), self._moment(end)
            if state in _LIVE or started_at is None or ended_at is None:
                continue
            if self._zone is not None:
                shown = (start, end, "", suspended)
                started_at, ended_at = self._fitting(shown, count_of(elapsed, MOST_S) or 0)
            raw_id, _, name = number.partition(".")
            usage = self._usage(step)
            over.append(SacctStep(raw_id, name, cluster, started_at, ended_at, usage))
        return over

    def _usage(self, step: tuple[str, ...]) -> StepUsage:
        code, tasks, memory, virtual, user, system, total, tres = step[7:]
        return step_usage(
            step[2],
            code,
            tasks,
            memory,
            virtual,
            (user, system, total),
            tres,
            shows_memory=self._shows_memory,
        )

    def _fitting(self, times: tuple[str, ...], wall_s: int) -> tuple[int, int]:
        """Start and end: in the hour that comes twice, what fits the time that was taken."""
        start, end, submit, suspended = times
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
    ) -> list[SacctRun | SacctStep]:
        """The run, and steps behind it that are another's. `times` are start, end and wall time.

        Raises: BadRow.
        """
        started_at, ended_at, wall_s = times
        # Hot path: by place, in the order of _OF_JOB. An object with names for them costs a tenth
        # of the whole reading.
        (
            raw_id, job_id, cluster, partition, account, qos, user, name, code,
            submit, start, eligible, suspended,
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
        own, others = self._own_steps(lines, (cluster, start), (started_at, ended_at))
        usages = list(map(self._usage, own))
        own_user_ms, own_system_ms = cpu_of(*self._cpu(fields)) or (None, 0)
        parts = with_steps(CpuParts(own_user_ms, own_system_ms, None), usages)
        user_ms, system_ms = cpu_time(parts, wall_s)
        eligible_at = submitted_at if eligible == submit else self._moment(eligible)
        run = SacctRun(
            raw_id,
            job_id or raw_id,
            cluster,
            partition,
            account,
            qos,
            user,
            clean(name),
            state,
            exit_code_of(code),
            submitted_at,
            eligible_at,
            started_at,
            ended_at,
            wall_s,
            suspended_s,
            user_ms,
            system_ms,
            parts,
            tuple([step[0].partition(".")[2] for step in own]),
            known_count(cpus),
            known_count(nodes),
            node_list,
            tres,
            max([usage.tasks for usage in usages], default=0),
            max([usage.memory_kib for usage in usages], default=0),
            max([usage.virtual_kib for usage in usages], default=0),
            joules(energy),
            known_count(limit),
        )
        return [run, *self._steps_over(others)]

    def _own_steps(
        self, lines: _JobLines, job: tuple[str, str], span: tuple[int, int]
    ) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """The steps of this run, and those of other runs of its number, or of another cluster.

        `job` are its cluster and start as the text has them. Raises: BadRow.
        """
        own: list[tuple[str, ...]] = []
        others: list[tuple[str, ...]] = []
        begin, end = span[0] - _CLOCKS_S, span[1] + _CLOCKS_S
        for step in self._steps_of(lines):
            start = step[3]
            fits = start == job[1] or any(not at or begin <= at <= end for at in self._twice(start))
            (own if fits and step[1] == job[0] else others).append(step)
        return own, others

    def _steps_of(self, lines: _JobLines) -> list[tuple[str, ...]]:
        """The columns of its steps. Raises: BadRow."""
        return [self._of_step(self._header.fields(step)) for step in lines.steps]
