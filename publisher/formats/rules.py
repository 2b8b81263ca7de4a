"""What a rule about records is, and rules that warn although every receiver accepts the record.

The rules by which a receiver would refuse a record are in its own folder.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

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


def latest_end(now: datetime) -> int:
    """The latest end time, epoch seconds, that the server surely does not take for the future."""
    return int(now.timestamp()) + AHEAD_S


def require(rules: tuple[Rule[Subject], ...], subject: Subject) -> None:
    """Raises: Unfit for the first of these rules that the subject breaks."""
    for each in rules:
        reason = each.check(subject)
        if reason:
            raise Unfit(each.name, reason)


def warnings_about(job: PublishedJob, *, summed: bool = False) -> tuple[str, ...]:
    """Names of what APEL takes but an administrator should know; never a reason to set a job aside.

    `summed`: without what totals do not say of a job.
    """
    left_out = _NOT_IN_TOTALS if summed else ()
    return tuple(each.name for each in WARNINGS if each.name not in left_out and each.check(job))


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
        length = len(ascii_text(text(subject)))
        return f"{what} has {length} characters, APEL keeps {limit}" if length > limit else ""

    return Rule(name=name, receiver="apel", check=check)


WARNINGS: Final[tuple[Rule[PublishedJob], ...]] = (
    # cpu > wall x processors is not checked by the server
    rule(
        CPU_OVER_WALL,
        lambda job: (
            job.job.cpu_count
            and job.job.cpu_user_s + job.job.cpu_kernel_s > job.job.wall_s * job.job.cpu_count
        ),
        lambda _: "more CPU time than wall time x cores",
    ),
    # Absent counts as 0, a group of its own beside 1
    rule("cores-zero", lambda job: not job.job.cpu_count, lambda _: "no core count"),
    # In CAR an element Queue must be there, its text is any string. A-REX writes an empty one for
    # jobs that never reached a queue; APEL stores it as not given. So such a job is published, not
    # set aside.
    rule(
        "queue-missing",
        lambda job: job.where.interface not in WITHOUT_QUEUES and is_not_given(job.where.queue),
        lambda _: "the queue is not known",
        receiver="car",
    ),
    length_rule("queue-too-long", "queue", QUEUE_CHARACTERS, lambda job: job.where.queue),
    length_rule(
        "local-user-too-long", "local user", LOCAL_USER_CHARACTERS, lambda job: job.local_user
    ),
    # A start after the end would reject the message; policy/records.py takes the end less wall
    rule(
        "start-after-end",
        lambda job: job.start_is_derived,
        lambda job: f"start and submission are after the end {job.ended_at}",
    ),
    # The server loads a start of 0
    rule(
        "start-unknown",
        lambda job: job.started_at <= 0 and not job.start_is_derived,
        lambda _: "the start time is 0",
    ),
)
