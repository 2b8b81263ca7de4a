"""EMI Compute Accounting Record 1.2, as its schema orders it and as APEL reads it.

`FIELDS` is the record in the schema's order, from which the renderer is made (xml/template.py).

A typical record is 1.78 kB. Attributes need a prefix (an unqualified one is invisible to APEL);
elements take the default namespace, because a prefix on them would cost 270 bytes more. A shorter
prefix than the usual `urf` would save 50.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, Final

from publisher import __version__
from publisher.formats.apel import check_car
from publisher.formats.apel.receiver import CAR_JOBS
from publisher.formats.apel.rules import (
    BENCHMARK_RULES,
    WHERE_RULES,
    WHO_RULES,
    YEAR_9999,
    apel_local_user,
    apel_queue,
    require_run,
)
from publisher.formats.base import Frame, Receiver
from publisher.formats.compiled import MADE_AT, Escapes, Scope, Written
from publisher.formats.rules import Rule, latest_end
from publisher.formats.xml.charge import charge_element, charge_pattern
from publisher.formats.xml.pattern import (
    DOMAIN,
    NOTHING,
    NUMBER,
    POSITIVE,
    TEXT,
    TIME,
    Patterns,
    RecordPattern,
)
from publisher.formats.xml.template import Field, TemplateCompiler
from publisher.formats.xml.text import ARE_PLAIN, escape_ascii, instant
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.published import Placement, PublishedJob, UserIdentity
from publisher.model.rates import KINDS, AppliedBenchmark
from publisher.model.text import ascii_text, is_domain_name, receiver_key

NAMESPACE: Final = "http://eu-emi.eu/namespaces/2012/11/computerecord"
PREFIX: Final = "urf"
STATUSES: Final = frozenset(("aborted", "completed", "failed"))

_RFC2253: Final = re.compile(r"[A-Za-z][A-Za-z0-9.-]*=")


def _key(text: str) -> str:
    """Text that APEL stores or compares: transliterated."""
    return escape_ascii(ascii_text(text))


def _nothing(_: object) -> str:
    return ""


def _domain(host: str) -> str:
    return host if is_domain_name(host) else ""


def _local_user(user: str) -> str:
    return escape_ascii(apel_local_user(user)) or "nobody"


def _queue(queue: str) -> str:
    return escape_ascii(apel_queue(queue))


@lru_cache(maxsize=64)
def _status(status: str) -> str:
    word = status.strip().lower()
    if word not in STATUSES:
        raise Unfit("status", f"status {status!r} is not one of {', '.join(sorted(STATUSES))}")
    return word


def _exit_status(code: int) -> str:
    """xsd:int, in which 4294967295 is -1."""
    return str(code - 2**32) if code >= 2**31 else str(code)


def _cpu_of_all(cpu_s: int | None) -> str:
    """CAR wants a number."""
    if cpu_s is None:
        why = f'{PREFIX}:description="not measured"'
        return f'<CpuDuration {PREFIX}:usageType="all" {why}>PT0S</CpuDuration>'
    return f'<CpuDuration {PREFIX}:usageType="all">PT{cpu_s}S</CpuDuration>'


def _name_form(who: UserIdentity) -> str:
    """The format of a DN: RFC 2253 for `CN=A,O=B`, the other allowed word for everything else."""
    return "rfc2253" if _RFC2253.match(ascii_text(who.user)) else "opensslCompat"


def _role(who: UserIdentity) -> str:
    return "" if who.apel_fqan() else who.role


def _group(who: UserIdentity) -> str:
    return "" if who.apel_fqan() else who.group


def _reach(where: Placement) -> str:
    return where.infrastructure


def _description(where: Placement) -> str:
    return where.description


def _kind(applied: AppliedBenchmark) -> str:
    return applied.benchmarks[0].kind


_SECONDS: Final = Written("value is not None")
_POSITIVE: Final = Written("value and value > 0")
_SUBMISSION: Final = Written(f"0 < value <= {YEAR_9999}", instant)
# Codes beyond 32 bits have no place
_EXIT_STATUS: Final = Written(f"value is not None and {-(2**31)} <= value < {2**32}", _exit_status)
_CHARGE: Final = charge_element(PREFIX, _key)

# What writers yield (xml/pattern.py), or less where the server asks for more than the schema.
_PATTERNS: Final[Patterns] = {
    escape_ascii: TEXT,
    _key: TEXT,
    _local_user: TEXT,
    _queue: TEXT,
    _nothing: NOTHING,
    _POSITIVE: POSITIVE,
    _domain: DOMAIN,
    _status: "aborted|completed|failed",
    _EXIT_STATUS: "-?[0-9]{1,9}",
    _SUBMISSION: TIME,
    instant: TIME,
    str: NUMBER,
    _SECONDS: NUMBER,
    _name_form: "opensslCompat|rfc2253",
    _reach: "grid|local",
    _description: TEXT,
    _kind: "|".join(KINDS.values()),
}
_CPU_OF_ALL: Final = (
    f'<CpuDuration {PREFIX}:usageType="all">PT{NUMBER}S</CpuDuration>|'
    + re.escape(_cpu_of_all(None))
)
_GIVEN: Final = f"(?! *(?:[Nn][Oo][Nn][Ee]|[Nn][Uu][Ll][Ll])? *<){TEXT}"
_LEVEL: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


# Spec: EMI CAR 1.2; `row` is the number in its sequence of elements.
FIELDS: Final[tuple[Field, ...]] = (
    Field(row="1", name="RecordIdentity", value="job.record_id", write=escape_ascii,
          value_in="recordId", attributes=(("createTime", MADE_AT),), mandatory=True),
    Field(row="2.1", inside="JobIdentity", name="GlobalJobId", value="run.job_id",
          write=escape_ascii),
    # Part of APEL's key: Site, LocalJobId, EndTime
    Field(row="2.2", inside="JobIdentity", name="LocalJobId", value="job.local_id",
          write=_key, mandatory=True, pattern=_GIVEN),
    Field(row="3.1", inside="UserIdentity", name="GlobalUserName", of=Scope.USER,
          value=lambda who: who.user, write=_key, attributes=(("type", _name_form),)),
    Field(row="3.2", inside="UserIdentity", name="Group", of=Scope.USER,
          value=lambda who: who.vo, write=_key),
    # APEL reads FQAN, else Group and role; vo-group, vo-role, ProjectName are what ARC wrote
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER,
          value=lambda who: who.apel_fqan(), write=_key, attributes=(("type", "FQAN"),)),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER, value=_group,
          write=_key, attributes=(("type", "group"),)),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER, value=_role,
          write=_key, attributes=(("type", "role"),)),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER,
          value=lambda who: who.group, write=_key, attributes=(("type", "vo-group"),)),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER,
          value=lambda who: who.role, write=_key, attributes=(("type", "vo-role"),)),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.USER,
          value=lambda who: who.extra_groups, write=_key, attributes=(("type", "vo-group"),),
          each=True),
    Field(row="3.3", inside="UserIdentity", name="GroupAttribute", of=Scope.PROJECTS,
          value=lambda projects: projects, write=escape_ascii, each=True,
          attributes=(("type", "ProjectName"),)),
    Field(row="3.4", inside="UserIdentity", name="LocalUserId", of=Scope.ACCOUNT,
          value=lambda account: account[0], write=_local_user, mandatory=True),
    Field(row="3.5", inside="UserIdentity", name="LocalGroup", of=Scope.ACCOUNT,
          value=lambda account: account[1], write=escape_ascii),
    Field(row="4", name="JobName", value="job.job_name", write=escape_ascii),
    Field(row="5", name="Charge", value="job.charge", write=_CHARGE,
          whole=True, pattern=charge_pattern(PREFIX)),
    Field(row="6", name="Status", value="run.status", write=_status, mandatory=True),
    Field(row="7", name="ExitStatus", value="run.exit_code", write=_EXIT_STATUS),
    Field(row="8", name="Infrastructure", of=Scope.WHERE, value=lambda where: where, write=_nothing,
          mandatory=True, attributes=(("type", _reach), ("description", _description))),
    Field(row="9", name="Middleware", of=Scope.WHERE, value=lambda where: where, write=_nothing,
          mandatory=True, attributes=(("name", "publisher"), ("version", __version__))),
    Field(row="10", name="WallDuration", value="run.wall_s", write=str, form="PT%sS",
          mandatory=True),
    Field(row="11", name="CpuDuration", value="None if run.cpu_unknown else run.cpu_user_s",
          write=_SECONDS, form="PT%sS", attributes=(("usageType", "user"),)),
    Field(row="11", name="CpuDuration", value="None if run.cpu_unknown else run.cpu_kernel_s",
          write=_SECONDS, form="PT%sS", attributes=(("usageType", "system"),)),
    # The one that APEL takes; a second `all` would reject the record
    Field(row="11", name="CpuDuration",
          value="None if run.cpu_unknown else run.cpu_user_s + run.cpu_kernel_s",
          write=_cpu_of_all, whole=True, mandatory=True, pattern=_CPU_OF_ALL),
    Field(row="12", name="ServiceLevel", of=Scope.BENCHMARK,
          value=lambda applied: applied.benchmarks[0].text, write=_key,
          attributes=(("type", _kind),), mandatory=True, pattern=_LEVEL),
    # positiveInteger: nothing is said where nothing was measured
    Field(row="13", name="Memory", value="run.memory_kib", write=_POSITIVE,
          attributes=(("type", "Physical"), ("metric", "max"), ("storageUnit", "KB"))),
    Field(row="13", name="Memory", value="run.virtual_memory_kib", write=_POSITIVE,
          attributes=(("type", "Shared"), ("metric", "max"), ("storageUnit", "KB"))),
    Field(row="15", name="TimeInstant", value="run.submitted_at", write=_SUBMISSION,
          attributes=(("type", "Ctime"),)),
    Field(row="16", name="NodeCount", value="run.node_count", write=_POSITIVE),
    Field(row="17", name="Processors", value="run.cpu_count", write=_POSITIVE,
          attributes=(("metric", "max"),)),
    Field(row="18", name="EndTime", value="job.ended_at", write=instant, mandatory=True,
          pattern=f"(?P<end>{TIME})"),
    Field(row="19", name="StartTime", value="job.started_at", write=instant,
          mandatory=True, pattern=f"(?P<start>{TIME})"),
    Field(row="20", name="MachineName", of=Scope.WHERE, value=lambda where: where.machine_name,
          write=_key, mandatory=True, pattern=DOMAIN),
    # Local jobs too: the batch server then, because APEL sums per SubmitHost
    Field(row="21", name="SubmitHost", of=Scope.WHERE, value=lambda where: where.submit_host,
          write=_key),
    # An empty one is a valid string, and what A-REX has for jobs that never reached a queue
    Field(row="22", name="Queue", of=Scope.WHERE, value=lambda where: where.queue, write=_queue,
          attributes=(("description", "execution"),), mandatory=True),
    Field(row="23", name="Site", of=Scope.WHERE, value=lambda where: where.site, write=_key,
          attributes=(("type", "gocdb"),), mandatory=True, pattern=_GIVEN),
    Field(row="24", name="Host", of=Scope.HOSTS, value=lambda hosts: hosts[:1], write=_domain,
          attributes=(("primary", "true"),), each=True),
    Field(row="24", name="Host", of=Scope.HOSTS, value=lambda hosts: hosts[1:], write=_domain,
          each=True),
    # The only place for what CAR 1.2 has no element of
    Field(row="25", name="ConsumableResource", value="run.gpu_count", write=_POSITIVE,
          attributes=(("units", "GPU"), ("description", "gres/gpu"))),
)  # fmt: skip


_RULES: Final[Mapping[Scope, tuple[Rule[Any], ...]]] = {
    Scope.USER: WHO_RULES,
    Scope.WHERE: WHERE_RULES,
    Scope.BENCHMARK: BENCHMARK_RULES,
}


class Car:
    """CAR 1.2 in pure ASCII, one record a line."""

    name: ClassVar[str] = "car"
    receiver: ClassVar[Receiver] = CAR_JOBS
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    # No XML declaration (APEL ignores it), and no comment before the root: it hides the namespace.
    frame: ClassVar[Frame] = Frame(
        head=f'<UsageRecords xmlns="{NAMESPACE}" xmlns:{PREFIX}="{NAMESPACE}">\n'.encode("ascii"),
        separator=b"\n",
        tail=b"\n</UsageRecords>\n",
    )

    def __init__(self) -> None:
        escapes = Escapes(frozenset({escape_ascii, _key}), ARE_PLAIN)
        planner = TemplateCompiler(PREFIX, _key, _RULES, escapes, names={})
        self._fill = planner.plan("UsageRecord", FIELDS)
        self._form = RecordPattern(planner, "UsageRecord", FIELDS, _PATTERNS)
        self._begin(datetime(1970, 1, 1, tzinfo=UTC))

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """One element UsageRecord, created at `made_at`, which no end time may be later than."""
        if made_at is not self._made_at:
            self._begin(made_at)
        require_run(job, self._latest_end)
        return self._fill(job, self._created).encode("ascii")

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """Site, LocalJobId and EndTime, as the server compares them."""
        return receiver_key(job.where.site), receiver_key(job.local_id), job.ended_at

    def matches(self, record: bytes) -> bool:
        """Whether a record has a form that `check` surely takes, at an eighth of its cost."""
        found = self._form.match(record)
        return found is not None and found["end"] >= found["start"]

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        check_car(payload)

    def _begin(self, made_at: datetime) -> None:
        self._made_at, self._latest_end = made_at, latest_end(made_at)
        self._created = instant(int(made_at.timestamp()))


def create(name: str = Car.name) -> Car:
    return {Car.name: Car}[name]()
