"""Quality rules: what APEL would refuse, by name, before one bad record sinks its message.

Nothing that APEL's receiver or loader does comes back to the sender, and a refused record takes its
whole message with it, so each of its rules is checked here (SSM 4.0.0 and APEL 2.5.0). Rules about
what many jobs share (who, where, benchmark) are tables of their own: a format asks them once for
each shared object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from publisher.formats.rules import (
    AHEAD_S,
    LOCAL_USER_CHARACTERS,
    QUEUE_CHARACTERS,
    RequireRun,
    Rule,
    RunRule,
    is_longer,
    is_not_given,
    length_rule,
    requirement,
    rule,
    too_long,
)
from publisher.model.errors import Unfit
from publisher.model.published import Placement, PublishedJob, UserIdentity
from publisher.model.rates import AppliedBenchmark
from publisher.model.text import FORBIDDEN_IN_TEXT, ascii_text, is_domain_name

INT_MAX: Final = 2_147_483_647
_LOCAL_ID_CHARACTERS: Final = 255
YEAR_9999: Final = 253_402_300_799  # its last second


def apel_queue(queue: str) -> str:
    """As it is sent: cut to what the server keeps."""
    return ascii_text(queue)[:QUEUE_CHARACTERS].rstrip()


def apel_local_user(user: str) -> str:
    """As it is sent: none in place of one too long, which would name somebody else when cut."""
    text = ascii_text(user)
    return text if len(text) <= LOCAL_USER_CHARACTERS else ""


def _range(name: str, what: str, field: str) -> RunRule:
    return RunRule(
        name=name,
        receiver="apel",
        broken=f"run.{field} is not None and not 0 <= run.{field} <= {INT_MAX}",
        reason=lambda run: _outside(what, getattr(run.job.job, field)),
    )


def _outside(what: str, value: int | None) -> str:
    is_inside = value is None or 0 <= value <= INT_MAX
    return "" if is_inside else f"{what} {value} is not in 0 to {INT_MAX}"


def _cpu(job: PublishedJob) -> str:
    return (
        _outside("user CPU time", job.job.cpu_user_s)
        or _outside("system CPU time", job.job.cpu_kernel_s)
        or _outside("CPU time", job.job.cpu_user_s + job.job.cpu_kernel_s)
    )


RUN_RULES: Final[tuple[RunRule, ...]] = (
    # LocalJobId is part of the server's key
    RunRule(
        "local-id-missing",
        "apel",
        "is_not_given(job.local_id)",
        lambda run: f"local job id {run.job.local_id!r} means none to APEL",
    ),
    RunRule(
        "local-id-too-long",
        "apel",
        f"is_longer(job.local_id, {_LOCAL_ID_CHARACTERS})",
        lambda run: too_long("local job id", run.job.local_id, _LOCAL_ID_CHARACTERS),
    ),
    # Durations and counts are signed 32-bit columns; A-REX's own overflow makes them negative
    _range("wall-out-of-range", "wall time", "wall_s"),
    RunRule(
        "cpu-out-of-range",
        "apel",
        "run.cpu_user_s < 0 or run.cpu_kernel_s < 0"
        f" or run.cpu_user_s + run.cpu_kernel_s > {INT_MAX}",
        lambda run: _cpu(run.job),
    ),
    _range("processors-out-of-range", "processor count", "cpu_count"),
    _range("nodes-out-of-range", "node count", "node_count"),
    # Times; of a CAR message with a record that fails here, those before it may still be stored
    RunRule(
        "end-out-of-range",
        "apel",
        f"not 0 < job.ended_at <= {YEAR_9999}",
        lambda run: f"end time {run.job.ended_at} is not in the years 1970 to 9999",
    ),
    RunRule(
        "end-in-future",
        "apel",
        "job.ended_at > latest_end",
        lambda run: (
            f"it ended at {run.job.ended_at}, "
            f"{run.job.ended_at - run.latest_end + AHEAD_S} s ahead of this host's clock"
        ),
    ),
    RunRule(
        "start-out-of-range",
        "apel",
        "job.started_at < 0",
        lambda run: f"start time {run.job.started_at} is before 1970",
    ),
    RunRule(
        "end-before-start",
        "apel",
        "job.ended_at < job.started_at",
        lambda run: f"it ended at {run.job.ended_at}, before it started at {run.job.started_at}",
    ),
)


def run_requirement(rules: Sequence[RunRule]) -> RequireRun:
    """Compile some of the rules about runs."""
    return requirement(rules, {"is_not_given": is_not_given, "is_longer": is_longer})


require_run: Final = run_requirement(RUN_RULES)

WHERE_RULES: Final[tuple[Rule[Placement], ...]] = (
    # The width of the server's column Site
    rule(
        "site-missing",
        lambda where: is_not_given(where.site),
        lambda where: f"site {where.site!r} means none to APEL",
    ),
    length_rule("site-too-long", "site", 255, lambda where: where.site),
    # The server's columns: SubmitHost 255, InfrastructureDescription 100
    length_rule("submit-host-too-long", "submit host", 255, lambda where: where.submit_host),
    length_rule(
        "description-too-long", "infrastructure description", 100, lambda where: where.description
    ),
    # CAR's Infrastructure; anything else is neither grid nor local at the server
    rule(
        "infrastructure",
        lambda where: where.infrastructure not in ("grid", "local"),
        lambda where: f"infrastructure {where.infrastructure!r} is unknown",
    ),
    # CAR's domainNameType, at most 255 characters
    rule(
        "machine-name",
        lambda where: not is_domain_name(where.machine_name),
        lambda where: (
            f"machine name {where.machine_name!r} is not a domain name; set records.machine_name"
        ),
        receiver="car",
    ),
)

WHO_RULES: Final[tuple[Rule[UserIdentity], ...]] = (
    # The server's columns GlobalUserName, VO, VOGroup, VORole, FQAN
    length_rule("user-too-long", "user", 255, lambda who: who.user),
    length_rule("vo-too-long", "VO", 255, lambda who: who.vo),
    length_rule("group-too-long", "VO group", 255, lambda who: who.group),
    length_rule("role-too-long", "VO role", 255, lambda who: who.role),
    length_rule("fqan-too-long", "FQAN", 255, lambda who: who.apel_fqan()),
)


def _unreadable(name: str) -> Rule[AppliedBenchmark]:
    """A job's own benchmark that cannot be read, by what is wrong with it (model/rates.py)."""

    def check(applied: AppliedBenchmark) -> str:
        if applied.unreadable is None or applied.unreadable.rule != name:
            return ""
        advice = "a rule of records.benchmark with `override: true` says another"
        return f"{applied.unreadable.reason}; {advice}"

    return Rule(name=name, receiver="apel", check=check)


BENCHMARK_RULES: Final[tuple[Rule[AppliedBenchmark], ...]] = (
    # ServiceLevelType and ServiceLevel: another type, or a value that is not a positive decimal
    _unreadable("benchmark-unreadable"),
    _unreadable("benchmark-unknown-type"),
    _unreadable("benchmark-range"),
    # ServiceLevel: without one the loader stops at text (v0.4), and CAR counts as `custom`, 1
    rule(
        "benchmark-missing",
        lambda applied: not applied.benchmarks,
        lambda applied: (
            f"no benchmark: the job carries none and {applied.origin}; "
            "set records.benchmark, or benchmark in arc.conf's [lrms] or [queue:...]"
        ),
    ),
)


def require_text(name: str, value: str) -> None:
    """For an ASCII value of a text message. Raises: Unfit when no text message may hold it."""
    found = FORBIDDEN_IN_TEXT.search(value)
    if found:
        what = f"{name} holds {found[0]!r}, which would sink the whole message"
        raise Unfit("forbidden-text", what)
