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
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.sources.importing.line_importer import LogPiece
from publisher.sources.importing.log_files import LogLine, clean

# In the order in which they are asked for. The name of a job is any text that its user likes: last, it cannot move the others.
COLUMNS: Final = (
    *("JobIDRaw", "JobID", "Cluster", "Partition", "Account", "QOS", "User", "State", "ExitCode", "Submit"),
    *("Eligible", "Start", "End", "ElapsedRaw", "TotalCPU", "UserCPU", "SystemCPU"),
    *("AllocCPUS", "AllocNodes", "NTasks", "NodeList", "AllocTRES", "MaxRSS", "MaxVMSize", "Suspended"),
    *("ConsumedEnergyRaw", "TimelimitRaw", "JobName"),
)
_FIRST: Final = "JobIDRaw"
_REQUIRED: Final = (_FIRST, *("State", "Submit", "Start", "End", "ElapsedRaw", "User", "AllocTRES"))
_REQUIRED_PAIRS: Final = (("AllocCPUS", "NCPUS"), ("UserCPU", "TotalCPU"), ("SystemCPU", "TotalCPU"))
_OTHER_NAMES: Final = {"AllocCPUS": "NCPUS", "AllocNodes": "NNodes"}  # of versions and of files that were made by hand
_NUMBER: Final = rb"([0-9]+)(?:[.]([0-9A-Za-z_+-]{1,64}))?"  # of a job, or of a step
_NO_NUMBER: Final = "does not begin with a job's number"
_NO_JOB: Final = "is a step whose job is not there"
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
_REMEMBERED: Final = 1_000  # texts of columns that have few


class NotSacct(Exception):
    """The text is not what an import can read, and why."""


class BadRow(Exception):
    """A line that cannot be understood, and why."""


class SacctRun(NamedTuple):
    """One finished run. Times are epoch seconds; None is unknown, '' a text that is not there, and so are counts that are 0."""

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


class _JobColumns(NamedTuple):
    """The columns of a job's line that are read, under sacct's own names."""

    JobIDRaw: str
    JobID: str
    Cluster: str
    Partition: str
    Account: str
    QOS: str
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
    """The columns of steps that are read, each with the values of all steps of one job."""

    State: Sequence[str] = ()
    ExitCode: Sequence[str] = ()
    TotalCPU: Sequence[str] = ()
    UserCPU: Sequence[str] = ()
    SystemCPU: Sequence[str] = ()
    NTasks: Sequence[str] = ()
    MaxRSS: Sequence[str] = ()
    MaxVMSize: Sequence[str] = ()


_NO_STEPS: Final = _StepColumns()


class _JobLines:
    """The line of a job and those of its steps, as texts; `wrong` is why they cannot be understood."""

    __slots__ = ("content", "end", "offset", "steps", "text", "wrong")

    def __init__(self, line: LogLine, wrong: str = "") -> None:
        self.offset = line.offset
        self.end = line.end
        self.content = line.content
        self.text = line.content.decode("utf-8", "replace")
        self.steps: list[str] = []
        self.wrong = wrong if len(line.content) == line.length else _LONG

    def add(self, line: LogLine, *, is_step: bool) -> None:
        """A step, or more of a name that goes over lines."""
        self.end = line.end
        text = line.content.decode("utf-8", "replace")
        if len(line.content) != line.length:
            self.wrong = _LONG
        elif is_step:
            self.steps.append(text)
        elif self.steps:
            self.steps[-1] += f"\n{text}"
        else:
            self.text += f"\n{text}"


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

    def shown(self, line: bytes) -> bytes:
        """A line for people, and to be known again: sacct is asked for other characters between columns each time."""
        return line.replace(self.separator, b"|") if len(self.separator) > 1 else line

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
        self._beginning = re.compile(_NUMBER + re.escape(header.separator)).match
        self._of_job = header.picked(_JobColumns._fields)
        self._of_step = header.picked(_StepColumns._fields)

    def pieces(self, lines: Iterable[LogLine], *, whole: bool) -> Iterator[LogPiece[SacctRun]]:
        """The jobs of the lines behind the header, each with its steps.

        Unless the text is `whole`, the last job may still get steps: it ends where it begins, to be read once more.

        Raises: NotSacct for a text that tells no CPU time, or no time zone.
        """
        job: _JobLines | None = None
        for line in lines:
            number = self._beginning(line.content)
            if number is not None and number.lastindex == 1:
                if job is not None:
                    yield self._piece(job, line.offset)
                job = _JobLines(line)
            elif number is not None or not self._is_nothing(line):
                if job is None:
                    job = _JobLines(line, _NO_JOB if number else _NO_NUMBER)
                else:
                    job.add(line, is_step=number is not None)
        if job is not None:
            yield self._piece(job, job.end if whole else job.offset)
        self._refuse_without_steps(0)

    def _is_nothing(self, line: LogLine) -> bool:
        """Raises: NotSacct for other columns than those of the first header."""
        if not line.content.startswith(_FIRST.encode() + self._header.separator):
            return not line.content.strip()
        if line.content.rstrip(b"\r") != self._header.line:
            raise NotSacct(
                f"has other columns from byte {line.offset:,} on; give each output of sacct a file of its own"
            )
        return True

    def _piece(self, lines: _JobLines, end: int) -> LogPiece[SacctRun]:
        """What the lines from that of a job to the next one say."""
        if lines.wrong:
            return LogPiece(lines.offset, end, self._header.shown(lines.content), (), lines.wrong)
        try:
            run, skipped = self._read(lines)
        except BadRow as error:
            return LogPiece(lines.offset, end, self._header.shown(lines.content), (), str(error))
        if run is None:
            return LogPiece(lines.offset, end, lines.content, (), "", skipped)
        if self._ran is not None and run.wall_s:
            self._ran = None if lines.steps or run.user_ms else self._ran + 1
            self._refuse_without_steps(_SURELY_WITHOUT_STEPS)
        return LogPiece(lines.offset, end, lines.content, (run,))

    def _refuse_without_steps(self, least: int) -> None:
        """Raises: NotSacct."""
        if self._ran is not None and self._ran > least:
            raise NotSacct("has no steps, so that CPU times are zero; make it without -X (--allocations)")

    def _read(self, lines: _JobLines) -> tuple[SacctRun | None, str]:
        """The run, or why it is no usage. Raises: BadRow."""
        fields = self._header.fields
        job = _JobColumns._make(self._of_job(fields(lines.text)))
        steps = _NO_STEPS
        if lines.steps:
            steps = _StepColumns._make(zip(*[self._of_step(fields(text)) for text in lines.steps], strict=True))
        state = job.State.partition(" ")[0]
        ended_at, started_at = self._moment(job.End), self._moment(job.Start)
        if state in _LIVE or ended_at is None:
            return None, f"not over ({state})"
        wall_s = _count(job.ElapsedRaw, _MOST_S)
        if wall_s is None:
            raise BadRow(f"ElapsedRaw is {job.ElapsedRaw!r}, not a number of seconds")
        if started_at is None or not (wall_s or job.AllocTRES):
            return None, f"never ran ({state})"
        return self._run(job, steps, state, started_at, ended_at, wall_s), ""

    def _run(
        self, job: _JobColumns, steps: _StepColumns, state: str, started_at: int, ended_at: int, wall_s: int
    ) -> SacctRun:
        """Raises: BadRow."""
        submitted_at = self._moment(job.Submit)
        if submitted_at is None:
            raise BadRow("has no time of submission")
        suspended_s = _seconds(job.Suspended)
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
            job.QOS,
            job.User,
            clean(job.JobName),
            state,
            _exit_code(job.ExitCode),
            submitted_at,
            submitted_at if job.Eligible == job.Submit else self._moment(job.Eligible),
            started_at,
            ended_at,
            wall_s,
            suspended_s,
            user_ms,
            system_ms,
            _known_count(job.AllocCPUS),
            _known_count(job.AllocNodes),
            job.NodeList,
            job.AllocTRES,
            max(map(_known_count, steps.NTasks), default=0),
            max(map(_kib, steps.MaxRSS), default=0),
            max(map(_kib, steps.MaxVMSize), default=0),
            _joules(job.ConsumedEnergyRaw),
            _known_count(job.TimelimitRaw),
        )


def _cpu(job: _JobColumns, steps: _StepColumns) -> tuple[int | None, int | None]:
    """Milliseconds of user and system: the job's, which are those of its steps, else their sum.

    Unknown where nobody measured: a job without a step, and one whose node failed, of which no step has an exit code.
    """
    own = _cpu_of(job.UserCPU, job.SystemCPU, job.TotalCPU)
    if own is None:
        parts = [cpu for cpu in map(_cpu_of, steps.UserCPU, steps.SystemCPU, steps.TotalCPU) if cpu is not None]
        if not parts:
            return None, None
        own = sum(user for user, _ in parts), sum(system for _, system in parts)
    return own if any(own) or _were_measured(steps) else (None, None)


def _were_measured(steps: _StepColumns) -> bool:
    if any(steps.MaxRSS):
        return True
    return any(code and state != "RESIZING" for code, state in zip(steps.ExitCode, steps.State, strict=True))


def _cpu_of(user: str, system: str, total: str) -> tuple[int, int] | None:
    user_ms, system_ms = _milliseconds(user), _milliseconds(system)
    if user_ms is not None and system_ms is not None:
        return user_ms, system_ms
    total_ms = _milliseconds(total)
    return None if total_ms is None else (total_ms, 0)


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


_DIGITS: Final = {f"{number:0{width}}": number for width in (2, 3) for number in range(10**width)}


def _milliseconds(text: str) -> int | None:
    """A duration: 00:01.250, 01:00:00, 1-03:46:40. None for one that is not there or not known."""
    # Hot path: nearly all are of one of these two forms, which a regular expression reads in three times the time.
    try:
        if len(text) == 8 and text[2::3] == "::":
            return (_DIGITS[text[:2]] * 3600 + _DIGITS[text[3:5]] * 60 + _DIGITS[text[6:]]) * 1000
        if len(text) == 9 and text[2:6:3] == ":.":
            return (_DIGITS[text[:2]] * 60 + _DIGITS[text[3:5]]) * 1000 + _DIGITS[text[6:]]
    except KeyError:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds, fraction = found.groups("0")
    whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole_s * 1000 + int(f"{fraction:0<3}"[:3])


@lru_cache(_REMEMBERED)
def _seconds(text: str) -> int:
    return (_milliseconds(text) or 0) // 1000


def _count(text: str, most: int = _MOST_COUNT) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    count = int(text)
    return count if count <= most else None


def _joules(text: str) -> int:
    """0 is unknown; -1 is more than anything takes, which broken meters tell: 2^64 - 2 is one of theirs."""
    if not (text.isascii() and text.isdigit()):
        return 0
    return int(text) if len(text) < 17 and int(text) <= _MOST_JOULES else -1


@lru_cache(_REMEMBERED)
def _known_count(text: str) -> int:
    return _count(text) or 0


def _kib(text: str) -> int:
    """A size: 8420K, 12M, or bytes as --noconvert has them; 0 is unknown."""
    number = text[:-1]
    if text[-1:] == "K" and len(number) < 19 and number.isascii() and number.isdigit():  # hot path
        return int(number)
    found = _SIZE.fullmatch(text)
    if found is None:
        return 0
    whole, fraction, unit = found.groups()
    size = int(whole) * _UNITS[unit]
    if fraction:
        size += int(int(fraction) * _UNITS[unit] / 10 ** len(fraction))
    return size // 1024


@lru_cache(_REMEMBERED)
def _exit_code(text: str) -> int | None:
    """`CODE:SIGNAL`; of a job that a signal ended 128 and the signal, as a shell has it."""
    code, _, signal = text.partition(":")
    number, by = _count(code), _count(signal)
    if number is None:
        return None
    return number or (128 + by if by else 0)
