"""Text of `sacct --parsable2`: the runs of jobs that its lines report.

Columns are found by their names in the header, so that any version's text can be read. A line is a
job's or a step's; the steps of a job follow it. Of the job's line come its times, CPU time and what
was allocated, of its steps the memory. A row is one run: a job that was requeued has one for each,
with a time of submission of its own.

    JobIDRaw|State|Submit|Start|End|ElapsedRaw|User|AllocTRES|AllocCPUS|UserCPU|SystemCPU|MaxRSS
    7|COMPLETED|1795360209|1795360210|1795360281|71|ann|cpu=2,node=1|2|00:30.500|00:01.250|
    7.batch|COMPLETED|1795360210|1795360210|1795360281|71||cpu=2,node=1|2|00:30.500|00:01.250|8420K
    ->  SacctRun(raw_id="7", wall_s=71, user_ms=30500, system_ms=1250, memory_kib=8420, ...)

Spec: sacct(1); tried on Slurm itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from operator import itemgetter
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.sources.importing.log_files import LogLine, clean

# In the order in which they are asked for. The name of a job is any text that its user likes: last, it cannot move the others.
COLUMNS: Final = (
    *("JobIDRaw", "JobID", "Cluster", "Partition", "Account", "User", "State", "ExitCode", "Submit"),
    *("Eligible", "Start", "End", "ElapsedRaw", "TotalCPU", "UserCPU", "SystemCPU"),
    *("AllocCPUS", "AllocNodes", "NTasks", "NodeList", "AllocTRES", "MaxRSS", "MaxVMSize", "Suspended"),
    *("ConsumedEnergyRaw", "TimelimitRaw", "JobName"),
)
_FIRST: Final = "JobIDRaw"
_REQUIRED: Final = (_FIRST, *("State", "Submit", "Start", "End", "ElapsedRaw", "User", "AllocTRES"))
_REQUIRED_PAIRS: Final = (("AllocCPUS", "NCPUS"), ("UserCPU", "TotalCPU"), ("SystemCPU", "TotalCPU"))
_OTHER_NAMES: Final = {"AllocCPUS": "NCPUS", "AllocNodes": "NNodes"}  # of versions and of files that were made by hand
_STEP: Final = re.compile(rb"[0-9]{1,19}[.][0-9A-Za-z_+-]{1,64}")
_LONG: Final = "has a line that is too long for a record"
_SURELY_WITHOUT_STEPS: Final = 200
_NO_TIME: Final = frozenset({"", "Unknown", "None"})
_LIVE: Final = frozenset(
    {
        *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESV_DEL_HOLD", "REQUEUE_FED"),
        *("REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "POWER_UP_NODE", "UPDATE_DB"),
    }
)
_DURATION: Final = re.compile(
    r"(?:(?:(?P<days>[0-9]{1,6})-)?(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{1,2}):(?P<seconds>[0-9]{1,2})"
    r"(?:\.(?P<fraction>[0-9]{1,6}))?",
    re.ASCII,
)
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,6}))?([KMGTPE]?)", re.ASCII)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_MOST_COUNT: Final = 2**31 - 1
_MOST_S: Final = 2**53
_MOST_JOULES: Final = 2**53


class NotSacct(Exception):
    """The text is not what an import can read, and why."""


class BadRow(Exception):
    """A line that cannot be understood, and why."""


class SacctRun(NamedTuple):
    """One finished run. Times are epoch seconds; None is unknown, '' a text that is not there."""

    raw_id: str
    job_id: str  # as people know it: 93_2 of an array, 128+1 of a heterogeneous job
    cluster: str
    partition: str
    account: str
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
    tasks: int | None
    memory_kib: int | None
    virtual_kib: int | None
    energy_j: int | None
    limit_min: int | None


class _JobColumns(NamedTuple):
    """The columns of a job's line that are read, under sacct's own names."""

    JobIDRaw: str
    JobID: str
    Cluster: str
    Partition: str
    Account: str
    User: str
    State: str
    ExitCode: str
    Submit: str
    Eligible: str
    Start: str
    End: str
    ElapsedRaw: str
    TotalCPU: str
    UserCPU: str
    SystemCPU: str
    AllocCPUS: str
    AllocNodes: str
    NodeList: str
    AllocTRES: str
    Suspended: str
    ConsumedEnergyRaw: str
    TimelimitRaw: str
    JobName: str


class _StepColumns(NamedTuple):
    """The columns of a step's line that are read."""

    State: str
    ExitCode: str
    TotalCPU: str
    UserCPU: str
    SystemCPU: str
    NTasks: str
    MaxRSS: str
    MaxVMSize: str


class _Kind(Enum):
    """What a line is."""

    JOB = auto()
    STEP = auto()
    REST = auto()  # of a name that goes over lines
    NOTHING = auto()


class JobLines:
    """The line of a job and those of its steps, as texts; `wrong` is why they cannot be understood."""

    __slots__ = ("content", "end", "offset", "steps", "text", "wrong")

    def __init__(self, line: LogLine, kind: _Kind) -> None:
        self.offset = line.offset
        self.end = line.end
        self.content = line.content
        self.text = line.content.decode("utf-8", "replace")
        self.steps: list[str] = []
        self.wrong = _LONG if len(line.content) != line.length else ""
        if kind is not _Kind.JOB:
            self.wrong = (
                "is a step whose job is not there" if kind is _Kind.STEP else "does not begin with a job's number"
            )

    def add(self, line: LogLine, kind: _Kind) -> None:
        self.end = line.end
        text = line.content.decode("utf-8", "replace")
        if len(line.content) != line.length:
            self.wrong = _LONG
        elif kind is _Kind.STEP:
            self.steps.append(text)
        elif self.steps:
            self.steps[-1] += f"\n{text}"
        else:
            self.text += f"\n{text}"


class SacctRow(NamedTuple):
    """What a job's line and those of its steps say together."""

    lines: JobLines
    end: int  # where the next job begins
    run: SacctRun | None
    skipped: str = ""  # why it is no usage
    bad: str = ""


class Header:
    """The columns of a text and how they are separated."""

    def __init__(self, line: bytes) -> None:
        """Raises: NotSacct."""
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        names = re.findall(r"[A-Za-z]+", text)
        if not names or names[0] != _FIRST or len(names) < 2:
            raise NotSacct(
                f"does not begin with a header whose first column is {_FIRST}; make it by `sacct --parsable2 -o "
                f"{_FIRST},...,JobName`, without --noheader"
            )
        self.delimiter = text[len(_FIRST) : text.index(names[1], len(_FIRST))]
        joined = self.delimiter.join(names)
        self.trailing = text == joined + self.delimiter  # `sacct -p`
        if not self.delimiter or (text != joined and not self.trailing):
            raise NotSacct(f"has a header that cannot be understood: {clean(text[:200])}")
        self.line = line.rstrip(b"\r")
        self.separator = self.delimiter.encode()
        self.names = tuple(names)
        self._places: Mapping[str, int] = {name: place for place, name in reversed(list(enumerate(names)))}
        missing = [name for name in _REQUIRED if name not in self._places]
        missing += [name for name, other in _REQUIRED_PAIRS if not {name, other} & self._places.keys()]
        if missing:
            raise NotSacct(f"lacks the columns {', '.join(dict.fromkeys(missing))}; ask sacct for them with -o")
        self.name_last = names[-1] == "JobName"

    def picked(self, names: Sequence[str]) -> Callable[[Sequence[str]], tuple[str, ...]]:
        """Picks the columns of these names out of `fields`; '' for one that is not there."""
        return itemgetter(*(self._place(name) for name in names))

    def _place(self, name: str) -> int:
        other = self._places.get(_OTHER_NAMES.get(name, ""), len(self.names))
        return self._places.get(name, other)

    def fields(self, text: str) -> list[str]:
        """The fields of a line, and '' behind them. Raises: BadRow when they are not as many as the header has."""
        fields = text.split(self.delimiter, len(self.names) - 1 if self.name_last else -1)
        if self.trailing:
            if self.name_last:
                fields[-1] = fields[-1].removesuffix(self.delimiter)
            elif fields[-1] == "":
                fields.pop()
        if len(fields) != len(self.names):
            raise BadRow(f"has {len(fields)} fields where the header has {len(self.names)}")
        fields.append("")
        return fields


class SacctReader:
    """Makes runs of the lines of one text, in their order."""

    def __init__(self, header: Header, zone: ZoneInfo | None) -> None:
        """`zone` is that in which sacct wrote times; None where it wrote epoch seconds."""
        self._header = header
        self._ran: int | None = 0  # jobs that ran, all of them without steps and CPU time
        self._moment = _moment_reader(zone)
        self._of_job = header.picked(_JobColumns._fields)
        self._of_step = header.picked(_StepColumns._fields)

    def rows(self, lines: Iterable[LogLine], *, whole: bool) -> Iterator[SacctRow]:
        """The jobs of the lines behind the header, each with its steps.

        Unless the text is `whole`, the last job may still get steps: it ends where it begins, to be read once more.

        Raises: NotSacct for a text that tells no CPU time, or no time zone.
        """
        job: JobLines | None = None
        for line in lines:
            kind = self._kind(line)
            if kind is _Kind.JOB or (job is None and kind is not _Kind.NOTHING):
                if job is not None:
                    yield self._row(job, line.offset)
                job = JobLines(line, kind)
            elif job is not None and kind is not _Kind.NOTHING:
                job.add(line, kind)
        if job is not None:
            yield self._row(job, job.end if whole else job.offset)
        self._refuse_without_steps(0)

    def _kind(self, line: LogLine) -> _Kind:
        """What a line begins. Raises: NotSacct for other columns than those of the first header."""
        number, found, _ = line.content.partition(self._header.separator)
        if found and number.isdigit():
            return _Kind.JOB
        if found and _STEP.fullmatch(number):
            return _Kind.STEP
        if number == _FIRST.encode() and found:
            if line.content.rstrip(b"\r") != self._header.line:
                raise NotSacct(
                    f"has other columns from byte {line.offset:,} on; give each output of sacct a file of its own"
                )
            return _Kind.NOTHING
        return _Kind.REST if line.content.strip() else _Kind.NOTHING

    def _row(self, lines: JobLines, end: int) -> SacctRow:
        """What the lines from that of a job to the next one say."""
        if lines.wrong:
            return SacctRow(lines, end, None, bad=lines.wrong)
        try:
            job = _JobColumns._make(self._of_job(self._header.fields(lines.text)))
            steps = [_StepColumns._make(self._of_step(self._header.fields(text))) for text in lines.steps]
            row = self._decided(lines, end, job, steps)
        except BadRow as error:
            return SacctRow(lines, end, None, bad=str(error))
        if row.run is not None and row.run.wall_s and self._ran is not None:
            self._ran = None if steps or row.run.user_ms else self._ran + 1
            self._refuse_without_steps(_SURELY_WITHOUT_STEPS)
        return row

    def _refuse_without_steps(self, least: int) -> None:
        """Raises: NotSacct."""
        if self._ran is not None and self._ran > least:
            raise NotSacct("has no steps, so that CPU times are zero; make it without -X (--allocations)")

    def _decided(self, lines: JobLines, end: int, job: _JobColumns, steps: Sequence[_StepColumns]) -> SacctRow:
        state = job.State.partition(" ")[0]
        ended_at, started_at = self._moment(job.End), self._moment(job.Start)
        if state in _LIVE or ended_at is None:
            return SacctRow(lines, end, None, f"not over ({state})")
        wall_s = _count(job.ElapsedRaw, _MOST_S)
        if wall_s is None:
            raise BadRow(f"ElapsedRaw is {job.ElapsedRaw!r}, not a number of seconds")
        if started_at is None or not (wall_s or job.AllocTRES):
            return SacctRow(lines, end, None, f"never ran ({state})")
        return SacctRow(lines, end, self._run(job, steps, state, started_at, ended_at, wall_s))

    def _run(
        self, job: _JobColumns, steps: Sequence[_StepColumns], state: str, started_at: int, ended_at: int, wall_s: int
    ) -> SacctRun:
        """Raises: BadRow."""
        submitted_at = self._moment(job.Submit)
        if submitted_at is None:
            raise BadRow("has no time of submission")
        suspended_s = (_milliseconds(job.Suspended) or 0) // 1000
        if submitted_at > started_at:
            # What is left of a job that was resized: it shows the start of the first part, which has a row of its own.
            started_at = submitted_at
            wall_s = min(wall_s, max(0, ended_at - submitted_at - suspended_s))
        user_ms, system_ms = _cpu(job, steps)
        return SacctRun(
            job.JobIDRaw,
            job.JobID or job.JobIDRaw,
            job.Cluster,
            job.Partition,
            job.Account,
            job.User,
            clean(job.JobName),
            state,
            _exit_code(job.ExitCode),
            submitted_at,
            self._moment(job.Eligible),
            started_at,
            ended_at,
            wall_s,
            suspended_s,
            user_ms,
            system_ms,
            _count(job.AllocCPUS) or 0,
            _count(job.AllocNodes) or 0,
            job.NodeList,
            job.AllocTRES,
            _largest([_count(step.NTasks) for step in steps]),
            _largest([_kib(step.MaxRSS) for step in steps]),
            _largest([_kib(step.MaxVMSize) for step in steps]),
            _count(job.ConsumedEnergyRaw, _MOST_JOULES),
            _count(job.TimelimitRaw),
        )


def _cpu(job: _JobColumns, steps: Sequence[_StepColumns]) -> tuple[int | None, int | None]:
    """Milliseconds of user and system: the job's, which are those of its steps, else their sum.

    Unknown where nobody measured: a job without a step, and one whose node failed, of which no step has an exit code.
    """
    own = _cpu_of(job)
    if own is None:
        parts = [cpu for cpu in map(_cpu_of, steps) if cpu is not None]
        if not parts:
            return None, None
        own = sum(user for user, _ in parts), sum(system for _, system in parts)
    if own == (0, 0) and not any(map(_was_measured, steps)):
        return None, None
    return own


def _was_measured(step: _StepColumns) -> bool:
    return step.MaxRSS != "" or (step.ExitCode != "" and step.State != "RESIZING")


def _cpu_of(line: _JobColumns | _StepColumns) -> tuple[int, int] | None:
    user, system = _milliseconds(line.UserCPU), _milliseconds(line.SystemCPU)
    if user is not None and system is not None:
        return user, system
    total = _milliseconds(line.TotalCPU)
    return None if total is None else (total, 0)


def _largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _moment_reader(zone: ZoneInfo | None) -> Callable[[str], int | None]:
    """Reads times as sacct writes them. The reader raises: BadRow, NotSacct."""

    def read(text: str) -> int | None:
        if text in _NO_TIME:
            return None
        if text.isascii() and text.isdigit() and len(text) <= 12:
            return int(text) or None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise BadRow(f"{clean(text[:64])!r} is not a time") from None
        if moment.tzinfo is None:
            if zone is None:
                raise NotSacct(
                    "has times without a time zone; run sacct with SLURM_TIME_FORMAT=%s in its environment, or give the zone "
                    "in which it ran as time_zone"
                )
            moment = moment.replace(tzinfo=zone)
        return int(moment.timestamp()) or None

    return read


def _milliseconds(text: str) -> int | None:
    """A duration: 00:01.250, 01:00:00, 1-03:46:40. None for one that is not there or not known."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds, fraction = found.groups("0")
    whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole_s * 1000 + int(f"{fraction:0<3}"[:3])


def _count(text: str, most: int = _MOST_COUNT) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    count = int(text)
    return count if count <= most else None


def _kib(text: str) -> int | None:
    """A size: 8420K, 12M, or bytes as --noconvert has them."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    whole, fraction, unit = found.groups()
    size = int(whole) * _UNITS[unit]
    if fraction:
        size += int(int(fraction) * _UNITS[unit] / 10 ** len(fraction))
    return size // 1024


def _exit_code(text: str) -> int | None:
    """`CODE:SIGNAL`; of a job that a signal ended 128 and the signal, as a shell has it."""
    code, _, signal = text.partition(":")
    number, by = _count(code), _count(signal)
    if number is None:
        return None
    return number or (128 + by if by else 0)
