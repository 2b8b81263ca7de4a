"""What the site wants said about its jobs: who, where, on what benchmark, from when to when.

`RecordPolicy.describe` turns a job record into a `PublishedJob`, which every format renders. Who and where repeat from
job to job, so they are worked out once for each distinct set of inputs and shared: formats may cache what they render of
them by identity. Each carries its origins, field by field, for `explain`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit

from publisher.errors import Unfit
from publisher.model.benchmark import AppliedBenchmark, BenchmarkPolicy
from publisher.model.fqan import parse_fqan
from publisher.model.job import Epoch, JobRecord
from publisher.model.jura_spelling import jura_group, jura_role, jura_submit_host
from publisher.model.text import arex_escape, ascii_text

_REMEMBERED: Final = 20_000  # distinct users or places kept at most; then the memory starts again


class KeyStyle(StrEnum):
    """How receiver keys are spelt: as APEL's own client does, or as jura-ng did before us."""

    APEL = "apel"
    JURA = "jura"


class StartTime(StrEnum):
    """What StartTime says: the true start of the run where it is known, or the submission as jura-ng says it."""

    RUN = "run"
    SUBMISSION = "submission"


class IdentityMode(StrEnum):
    """How a user is named to receivers, alike in every format."""

    PLAIN = "plain"
    WITHHELD = "withheld"
    PSEUDONYM = "pseudonym"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoRule:
    """The VO of jobs that it matches; first match wins. `field` is one of `VO_RULE_FIELDS`, `pattern` a shell pattern."""

    field: str
    pattern: str
    vo: str
    group: str | None = None
    role: str | None = None
    override: bool = False  # also for jobs that carry a VO of their own


VO_RULE_FIELDS: Final = ("issuer", "group", "local_user", "local_group", "queue", "project", "user", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How users are named. `secret` and `period` (month, quarter or year of the end time) are for pseudonyms."""

    mode: IdentityMode = IdentityMode.PLAIN
    secret: bytes = field(default=b"", repr=False)
    period: str = "year"


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """The user as published. Texts are '' where nothing is known; role is spelt `Role=production`, as APEL derives it.

    Group and role of summaries, where they are part of the receiver's key, are spelt in the site's key style.
    """

    user: str
    vo: str
    vo_issuer: str
    group: str
    role: str
    spelt_group: str
    spelt_role: str
    fqans: tuple[str, ...]
    extra_groups: tuple[str, ...]
    origins: tuple[tuple[str, str], ...]

    def apel_fqan(self) -> str:
        """The FQAN that APEL may be told, in its ASCII; '' when it must not be.

        At the server an FQAN overrules VO, group and role, so one that says otherwise (a VO rule spoke, or transliteration
        made a slash) has to stay behind. Only the first of several at `;`, because no more is read.
        """
        if not self.fqans:
            return ""
        text = ascii_text(self.fqans[0].split(";", 1)[0])
        told = parse_fqan(text)
        meant = (ascii_text(self.vo), ascii_text(self.group), ascii_text(self.role))
        return text if told.vo and (told.vo, told.group or "", told.role or "") == meant else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place as published. `submit_host` is the endpoint URL of a grid job, the batch server of a local one.

    `spelt_host` is the same in the site's key style, for summaries and sync.
    """

    site: str
    infrastructure: str  # grid | local
    description: str
    submit_host: str
    spelt_host: str
    interface: str
    machine_name: str
    queue: str
    origins: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """A job and what is said about it."""

    job: JobRecord
    record_id: str
    local_id: str
    started_at: Epoch
    ended_at: Epoch
    who: Who
    where: Where
    benchmark: AppliedBenchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPolicy:
    """The `records` block of the configuration, with what a target overrides."""

    site: str
    host_name: str  # of this machine; stands in where an endpoint URL names no host
    infrastructure: str = "grid"
    benchmarks: BenchmarkPolicy = BenchmarkPolicy()
    default_vo: str = ""  # `vo` or `vo#issuer`
    vo_rules: tuple[VoRule, ...] = ()
    vo_groups: tuple[str, ...] = ()
    identity: Identity = Identity()
    key_style: KeyStyle = KeyStyle.APEL
    start_time: StartTime = StartTime.RUN
    localid_prefix: str = ""
    machine_name: str = ""  # overrides the endpoint's host
    batch_server: str = ""  # SubmitHost of local jobs
    _who: dict[tuple[object, ...], Who] = field(default_factory=dict, repr=False, compare=False)
    _where: dict[tuple[str, str, str, str], Where] = field(default_factory=dict, repr=False, compare=False)

    def describe(self, job: JobRecord) -> PublishedJob:
        """Raises: Unfit when something must be said that nobody knows."""
        where = self._place(job)
        local_id = self.spell(job, job.local_id or job.job_id)
        return PublishedJob(
            job=job,
            record_id=f"ur-{endpoint_host(job.endpoint) or where.machine_name}-{job.job_id}",
            local_id=self.localid_prefix + local_id,
            started_at=self._start(job),
            ended_at=job.ended_at,
            who=self._user(job),
            where=where,
            benchmark=self.benchmarks.apply(job),
        )

    def spell(self, job: JobRecord, text: str) -> str:
        """A receiver's key text. jura-ng never undid A-REX's escapes: in its style they stay."""
        return arex_escape(text) if job.escaped and self.key_style is KeyStyle.JURA else text

    def _start(self, job: JobRecord) -> Epoch:
        if self.start_time is StartTime.RUN and job.started_at is not None and job.started_at <= job.ended_at:
            return job.started_at
        return job.submitted_at

    def _user(self, job: JobRecord) -> Who:
        ruled = (job.local_user, job.local_group, job.queue, job.projects, job.attributes) if self.vo_rules else ()
        period = (
            period_label(job.ended_at, self.identity.period) if self.identity.mode is IdentityMode.PSEUDONYM else ""
        )
        inputs = (job.user, job.vo, job.fqans, job.escaped, period, ruled)
        known = self._who.get(inputs)
        if known is None:
            if len(self._who) >= _REMEMBERED:
                self._who.clear()
            known = self._who[inputs] = self._describe_user(job, period)
        return known

    def _describe_user(self, job: JobRecord, period: str) -> Who:
        vo, issuer, group, role, vo_origin = self._vo(job)
        jura = self.key_style is KeyStyle.JURA
        return Who(
            user=self._name(self.spell(job, job.user), period),
            vo=self.spell(job, vo),
            vo_issuer=issuer,
            group=self.spell(job, group),
            role=self.spell(job, role),
            spelt_group=self.spell(job, jura_group(vo, group) if jura else group),
            spelt_role=self.spell(job, jura_role(role) if jura else role),
            fqans=tuple(self.spell(job, fqan) for fqan in job.fqans),
            extra_groups=self.vo_groups,
            origins=(
                ("GlobalUserName", f"records.identity: {self.identity.mode}"),
                ("VO", vo_origin),
            ),
        )

    def _vo(self, job: JobRecord) -> tuple[str, str, str, str, str]:
        main = parse_fqan(job.fqans[0]) if job.fqans else None
        if main and not main.vo:
            main = None  # such as `/`: it names no VO, and A-REX knew what it wrote as the job's
        own = main.vo if main else job.vo
        for number, rule in enumerate(self.vo_rules, start=1):
            if (rule.override or not own) and _rule_matches(rule, job):
                return rule.vo, "", rule.group or "", rule.role or "", f"records.vo_rules, rule {number}"
        if own:
            origin = "the main FQAN" if main else "the job's VO"
            return own, "", (main.group if main else None) or "", (main.role if main else None) or "", origin
        vo, _, issuer = self.default_vo.partition("#")
        return vo, issuer, "", "", "records.default_vo" if vo else "none known"

    def _name(self, user: str, period: str) -> str:
        match self.identity.mode:
            case IdentityMode.PLAIN:
                return user
            case IdentityMode.WITHHELD:
                return "withheld" if user else ""
            case IdentityMode.PSEUDONYM:
                if not user:
                    return ""
                text = f"{period}\0{user}".encode("utf-8", "surrogateescape")
                return "pseudonym-" + hmac.new(self.identity.secret, text, "sha256").hexdigest()[:32]

    def _place(self, job: JobRecord) -> Where:
        inputs = (job.endpoint, job.interface, job.queue, job.lrms)
        known = self._where.get(inputs)
        if known is None:
            if len(self._where) >= _REMEMBERED:
                self._where.clear()
            known = self._where[inputs] = self._describe_place(job)
        return known

    def _describe_place(self, job: JobRecord) -> Where:
        host = endpoint_host(job.endpoint)
        if self.machine_name:
            machine, machine_origin = self.machine_name, "records.machine_name"
        elif is_domain_name(host):
            machine, machine_origin = host, "the endpoint's host"
        else:
            machine, machine_origin = self.host_name, "this host's name: the endpoint names none that the schema allows"
        local = self.infrastructure == "local"
        submit_host = self.batch_server if local else job.endpoint
        jura = self.key_style is KeyStyle.JURA and not local
        if local and not self.batch_server:
            raise Unfit("batch-server-unknown", "a local job needs records.batch_server as its SubmitHost")
        return Where(
            site=self.site,
            infrastructure=self.infrastructure,
            description=f"JURA-ARC-{(job.lrms or 'fork').upper()}",
            submit_host=submit_host,
            spelt_host=jura_submit_host(job.interface, job.endpoint) if jura else submit_host,
            interface=job.interface,
            machine_name=machine,
            queue=job.queue,
            origins=(
                ("Site", "site"),
                ("SubmitHost", "records.batch_server" if local else "the endpoint's URL"),
                ("MachineName", machine_origin),
            ),
        )


@lru_cache(maxsize=4096)
def endpoint_host(url: str) -> str:
    """Host of an endpoint URL, '' where there is none. IPv6 with or without brackets loses neither digits nor colons."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        if netloc.count(":") > 1 and not netloc.startswith("["):
            # A-REX composes URLs from socket addresses without brackets: https://2001:db8::1:443/arex
            host, _, port = netloc.rpartition(":")
            return (host if port.isdecimal() and _is_ipv6(host) else netloc).lower()
        return parts.hostname or ""
    except ValueError:
        return ""


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def is_domain_name(host: str) -> bool:
    """Whether the CAR and UR schemas take it as a domainNameType.

    At most 255 characters; labels of at least two letters, digits or inner hyphens.
    """
    labels = host.split(".")
    return (
        0 < len(host) <= 255
        and host.isascii()
        and all(
            len(label) >= 2 and label[0].isalnum() and label[-1].isalnum() and label.replace("-", "").isalnum()
            for label in labels
        )
    )


def period_label(moment: Epoch, period: str) -> str:
    """The validity period of a pseudonym: `2026`, `2026Q1` or `2026-03`, by end time in UTC."""
    try:
        when = datetime.fromtimestamp(moment, UTC)
    except (OverflowError, OSError, ValueError):
        return "never"  # such a job is quarantined for its end time
    if period == "month":
        return f"{when:%Y-%m}"
    if period == "quarter":
        return f"{when:%Y}Q{(when.month + 2) // 3}"
    return f"{when:%Y}"


def _rule_matches(rule: VoRule, job: JobRecord) -> bool:
    texts: tuple[str, ...]
    match rule.field:
        case "any":
            return True
        case "issuer":
            # Token users are stored as `issuer/subject` (arc-database facts, section 2).
            texts = (job.user.rpartition("/")[0],) if "://" in job.user and not job.user.startswith("/") else ()
        case "group":
            texts = job.fqans + tuple(value for _, value in job.attributes)
        case "project":
            texts = job.projects
        case name:
            texts = (str(getattr(job, name)),)
    return any(fnmatchcase(text, rule.pattern) for text in texts)
