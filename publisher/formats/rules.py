"""What a rule about records is, and rules that warn although every receiver accepts the record.

The rules by which a receiver would refuse a record are in its own folder.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from publisher.formats.compiled import function_of
from publisher.model.errors import Unfit
from publisher.model.published import PublishedJob
from publisher.model.text import NOT_GIVEN, ascii_text

Subject = TypeVar("Subject")

# The server allows two days by its own clock; one of them is for clocks that differ.
AHEAD_S: Final = 86_400
# What the server keeps of texts that are in no key: longer ones are cut or left out.
QUEUE_CHARACTERS: Final = 100
LOCAL_USER_CHARACTERS: Final = 255
CPU_OVER_WALL: Final = "cpu-over-wall"
# What jobs of batch systems without queues have as the interface of their endpoint.
WITHOUT_QUEUES: Final = frozenset({"htcondor"})
_NOT_IN_TOTALS: Final = (
    *("queue-too-long", "local-user-too-long"),
    *("start-after-end", "start-unknown"),
)


class Rule(NamedTuple, Generic[Subject]):
    """One rule: its name, who refuses, and a check that returns the reason or ''."""

    name: str
    receiver: str
    check: Callable[[Subject], str]


class RunUnderTest(NamedTuple):
    """A job with the latest end time that is believed now; what the rules about runs check."""

    job: PublishedJob
    latest_end: int


class RunRule(NamedTuple):
    """A rule about the run itself, which is asked of every job.

    `broken` is an expression over `job`, a `PublishedJob`, its job `run`, and `latest_end`.
    """

    name: str
    receiver: str
    broken: str
    reason: Callable[[RunUnderTest], str]


RequireRun = Callable[[PublishedJob, int], None]
"""Gets a job and the latest end that is believed. Raises: Unfit for the first rule it breaks."""


def requirement(rules: Sequence[RunRule], names: Mapping[str, object]) -> RequireRun:
    """Compile rules into one function; `names`: functions that they use."""

    def refuse(number: int, job: PublishedJob, latest_end: int) -> None:
        broken = rules[number]
        raise Unfit(broken.name, broken.reason(RunUnderTest(job, latest_end)))

    lines = ["def check(job, latest_end):", "    run = job.job"]
    for number, each in enumerate(rules):
        lines += [f"    if {each.broken}:", f"        refuse({number}, job, latest_end)"]
    check: RequireRun = function_of("check", lines, {**names, "refuse": refuse})
    return check


def latest_end(now: datetime) -> int:
    """The latest end time, epoch seconds, that the server surely does not take for the future."""
    return int(now.timestamp()) + AHEAD_S


def require(rules: tuple[Rule[Subject], ...], subject: Subject) -> None:
    """Raises: Unfit for the first of these rules that the subject breaks."""
    for each in rules:
        reason = each.check(subject)
        if reason:
            raise Unfit(each.name, reason)


def fitting(key: str, text: str, limit: int, receiver: str) -> str:
    """The text. Raises: Unfit where it is empty, or longer than the receiver keeps."""
    if not text:
        raise Unfit("value-missing", f"{key} is empty")
    if len(text) > limit:
        raise Unfit("text-too-long", f"{key} has {len(text)} characters, {receiver} keeps {limit}")
    return text


def is_not_given(text: str) -> bool:
    return ascii_text(text).lower() in NOT_GIVEN


def rule(
    name: str,
    broken: Callable[[Subject], object],
    reason: Callable[[Subject], str],
    *,
    receiver: str = "apel",
) -> Rule[Subject]:
    """A rule in two parts: whether it is broken, and the reason to give then."""
    return Rule(name, receiver, lambda subject: reason(subject) if broken(subject) else "")


def length_rule(name: str, what: str, limit: int, text: Callable[[Subject], str]) -> Rule[Subject]:
    """The length of a text as it is sent: transliterated, which may lengthen it."""

    def check(subject: Subject) -> str:
        given = text(subject)
        return too_long(what, given, limit) if is_longer(given, limit) else ""

    return Rule(name=name, receiver="apel", check=check)


def is_longer(text: str, limit: int) -> bool:
    """Whether a text has more characters as it is sent: of ASCII never more than it has."""
    return (len(text) > limit or not text.isascii()) and len(ascii_text(text)) > limit


def too_long(what: str, text: str, limit: int) -> str:
    """Return the reason for a text that has more characters as it is sent than APEL keeps."""
    return f"{what} has {len(ascii_text(text))} characters, APEL keeps {limit}"


WARNINGS: Final[tuple[RunRule, ...]] = (
    # cpu > wall x processors is not checked by the server
    RunRule(
        CPU_OVER_WALL,
        "apel",
        "run.cpu_count and run.cpu_user_s + run.cpu_kernel_s > run.wall_s * run.cpu_count",
        lambda _: "more CPU time than wall time x cores",
    ),
    # Absent counts as 0, a group of its own beside 1
    RunRule("cores-zero", "apel", "not run.cpu_count", lambda _: "no core count"),
    # In CAR an element Queue must be there, its text is any string. A-REX writes an empty one for
    # jobs that never reached a queue; APEL stores it as not given. So such a job is published, not
    # set aside.
    RunRule(
        "queue-missing",
        "car",
        "is_not_given(job.where.queue) and job.where.interface not in WITHOUT_QUEUES",
        lambda _: "the queue is not known",
    ),
    RunRule(
        "queue-too-long",
        "apel",
        f"is_longer(job.where.queue, {QUEUE_CHARACTERS})",
        lambda run: too_long("queue", run.job.where.queue, QUEUE_CHARACTERS),
    ),
    RunRule(
        "local-user-too-long",
        "apel",
        f"is_longer(job.local_user, {LOCAL_USER_CHARACTERS})",
        lambda run: too_long("local user", run.job.local_user, LOCAL_USER_CHARACTERS),
    ),
    RunRule(
        "start-after-end",
        "apel",
        "run.submitted_at > job.ended_at and job.start_is_derived",
        lambda run: f"start and submission are after the end {run.job.ended_at}",
    ),
    # The server loads a start of 0
    RunRule(
        "start-unknown",
        "apel",
        "job.started_at <= 0 and not job.start_is_derived",
        lambda _: "the start time is 0",
    ),
)

Warnings = Callable[[PublishedJob], tuple[str, ...]]


def _names_of(rules: Sequence[RunRule]) -> Warnings:
    """Compile what finds the names of rules that a job breaks."""
    lines = ["def find(job):", "    run, found = job.job, ()"]
    for each in rules:
        lines += [f"    if {each.broken}:", f"        found += ({each.name!r},)"]
    names = {
        "is_not_given": lru_cache(maxsize=4096)(is_not_given),  # of few queues and local users
        "is_longer": lru_cache(maxsize=4096)(is_longer),
        "WITHOUT_QUEUES": WITHOUT_QUEUES,
    }
    find: Warnings = function_of("find", [*lines, "    return found"], names)
    return find


_warnings: Final = _names_of(WARNINGS)
_warnings_summed: Final = _names_of([each for each in WARNINGS if each.name not in _NOT_IN_TOTALS])


def warnings_about(job: PublishedJob, *, summed: bool = False) -> tuple[str, ...]:
    """Names of what APEL takes but an administrator should know; never a reason to set a job aside.

    `summed`: without what totals do not say of a job.
    """
    return _warnings_summed(job) if summed else _warnings(job)


def explained_warnings(job: PublishedJob) -> list[tuple[str, str]]:
    """Return what `warnings_about` finds, with reasons for people."""
    found = warnings_about(job)
    return [
        (each.name, each.reason(RunUnderTest(job, job.ended_at)))
        for each in WARNINGS
        if each.name in found
    ]
