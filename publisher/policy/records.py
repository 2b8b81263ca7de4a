"""The `records` block of the configuration: what the site says about its jobs.

`RecordPolicy.describe` turns a job record into a `PublishedJob`, which every format renders. User
and place repeat from job to job, so they are computed once for each distinct set of inputs and
shared: formats may cache what they render of them by identity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import Placement, PublishedJob, UserIdentity, ValueOrigin, parse_fqan
from publisher.model.rates import Allocation, BenchmarkPolicy, Charging, EnergyRules
from publisher.model.text import arex_escape, endpoint_host, is_domain_name
from publisher.policy.identity import (
    RULED_BY_ROW,
    Identity,
    VoRule,
    jura_group_and_role,
    read_by_jura,
)

_AND_LRMS: Final = " and the batch system's name"
_Attributed = tuple[str, str]  # a value, and the rule that decided it
_MOST_TEXT: Final = 1_000  # characters of a user that is kept
_REMEMBERED: Final = 20_000  # distinct users or places kept at most; then the memory starts again


class KeyStyle(StrEnum):
    """How receiver keys are spelt: as APEL's own client does, or as jura-ng did before us."""

    APEL = "apel"
    JURA = "jura"


class StartTime(StrEnum):
    """What StartTime says: the true start where it is known, or the submission as with jura-ng."""

    RUN = "run"
    SUBMISSION = "submission"


class ImportedPlace(NamedTuple):
    """What is said about the place of imported jobs, each value with the key that it is from.

    `description` is '' for PUBLISHER-NONE- and the batch system's name.
    """

    infrastructure: tuple[str, str]
    batch_server: tuple[str, str]
    description: tuple[str, str]


class _Affiliation(NamedTuple):
    """What a job's user belongs to, and its origin. `fqan` is that of group and role, or ''."""

    vo: str
    origins: tuple[ValueOrigin, ...]
    issuer: str = ""
    group: str = ""
    role: str = ""
    fqan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPolicy:
    """The `records` block of the configuration, with what a target overrides."""

    site: str
    host_name: str  # of this machine; stands in where an endpoint URL names no host
    infrastructure: str = "grid"  # of an ARC CE's jobs
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
    infrastructure_description: str = ""  # '' for JURA-ARC- and the batch system's name
    # By the interface and the URL of the job's endpoint; '' for all others of the interface.
    imported: Mapping[tuple[str, str], ImportedPlace] = field(default_factory=dict)
    charging: Charging | None = None  # of formats that have a place for a charge
    gpus_only: bool = False  # of formats whose records are of accelerators
    _who: dict[tuple[object, ...], UserIdentity] = field(
        default_factory=dict, repr=False, compare=False
    )
    _where: dict[tuple[str, str, str, str], Placement] = field(
        default_factory=dict, repr=False, compare=False
    )

    def of_keys(self) -> "RecordPolicy":
        """Return the policy without what decides no key of a job: charges and start times."""
        return replace(self, charging=None, start_time=StartTime.RUN)

    @property
    def depends_on_row_only(self) -> bool:
        """Whether sums depend on row, main FQAN, benchmark and end of a job alone."""
        rules = (rule.field in RULED_BY_ROW for rule in self.vo_rules)
        return all(rules) and all(rule.host == "*" for rule in self.benchmarks.rules)

    @property
    def change_times(self) -> frozenset[Epoch]:
        """Ends from which on something else may be said, beside the beginnings of months."""
        edges = [self.benchmarks.jura_before]
        for rule in self.benchmarks.rules:
            edges += rule.window.start, rule.window.end
        return frozenset(edge for edge in edges if edge is not None)

    def describe(self, job: JobRecord) -> PublishedJob:
        """Raises: Unfit when something must be said that nobody knows."""
        where = self.place(job)
        charge = self.charging.of(job) if self.charging is not None else None
        return PublishedJob(
            job,
            f"ur-{endpoint_host(job.endpoint) or where.machine_name}-{job.job_id}",
            self.local_id(job, job.local_id or job.job_id),
            self._start(job),
            job.ended_at,
            self._user(job),
            where,
            self.benchmarks.apply(job),
            self.identity.open,
            charge,
        )

    def local_id(self, job: JobRecord, local_id: str) -> str:
        """What is said of an id in the batch system, of this job or of one like it."""
        return self.localid_prefix + self.receiver_text(job, local_id)

    def receiver_text(self, job: JobRecord, text: str) -> str:
        """A receiver's key text. jura-ng never undid A-REX's escapes: in its style they stay."""
        return arex_escape(text) if job.escaped and self.key_style is KeyStyle.JURA else text

    def start_origin(self, job: JobRecord) -> ValueOrigin:
        """Which time of a job is its StartTime, and why."""
        rule, source = "records.start_time: run", "started_at"
        if not self._starts_with_run(job):
            source = "submitted_at"
            if job.submitted_at > job.ended_at:
                rule = "end less wall time: it was submitted after its end"
                source = "ended_at, wall_s"
            elif self.start_time is StartTime.SUBMISSION:
                rule = "records.start_time: submission"
            elif job.started_at is None:
                rule = "the start of the run is not known"
            else:
                rule = "the start of the run is after the end"
        return ValueOrigin("StartTime", rule, source)

    def _start(self, job: JobRecord) -> Epoch:
        if job.started_at is not None and self._starts_with_run(job):
            return job.started_at
        if job.submitted_at <= job.ended_at:
            return job.submitted_at
        return Epoch(max(0, job.ended_at - max(0, job.wall_s)))

    def _starts_with_run(self, job: JobRecord) -> bool:
        return (
            self.start_time is StartTime.RUN
            and job.started_at is not None
            and job.started_at <= job.ended_at
        )

    def _user(self, job: JobRecord) -> UserIdentity:
        ruled: tuple[object, ...] = ()
        if self.vo_rules:
            ruled = job.local_user, job.local_group, job.queue, job.projects, job.attributes
        period = self.identity.period_of(job.ended_at)
        inputs = (job.user, job.vo, job.fqans, job.escaped, period, ruled)
        known = self._who.get(inputs)
        if known is None:
            known = self._describe_user(job, period)
            if len("".join((*job.fqans, *chain(*job.attributes)))) <= _MOST_TEXT:
                if len(self._who) >= _REMEMBERED:
                    self._who.clear()
                self._who[inputs] = known
        return known

    def _describe_user(self, job: JobRecord, period: str) -> UserIdentity:
        belongs = self._affiliation(job)
        texts = belongs.vo, belongs.group, belongs.role
        vo, group, role = (self.receiver_text(job, text) for text in texts)
        receiver_group, receiver_role = group, role
        if self.key_style is KeyStyle.JURA:
            fqan = self.receiver_text(job, belongs.fqan)
            receiver_group, receiver_role = jura_group_and_role(vo, group, role, fqan)
        rule = f"records.identity: {self.identity.mode}{f' of {period}' if period else ''}"
        return UserIdentity(
            user=self.identity.name(self.receiver_text(job, job.user), period),
            vo=vo,
            vo_issuer=belongs.issuer,
            group=group,
            role=role,
            receiver_group=receiver_group,
            receiver_role=receiver_role,
            fqans=tuple(self.receiver_text(job, fqan) for fqan in job.fqans),
            extra_groups=self.vo_groups,
            origins=(ValueOrigin("GlobalUserName", rule, "user"), *belongs.origins),
        )

    def _affiliation(self, job: JobRecord) -> _Affiliation:
        """VO, group and role: of the job's VO and main FQAN, of the site's rules, or by default.

        The VO is the one that A-REX wrote for the job, whatever its FQAN says, as with jura-ng.
        """
        fqan = self._main_fqan(job)
        main = parse_fqan(fqan)
        own = job.vo or ("" if self.key_style is KeyStyle.JURA else main.vo)
        if (by_rule := self._by_rule(job, own)) is not None:
            return by_rule
        if own and fqan:
            origins = _vo_origins("the main FQAN", "fqans")
            if own != main.vo:
                origins = ValueOrigin("VO", "the job's VO", "vo"), *origins[1:]
            return _Affiliation(own, origins, "", main.group or "", main.role or "", fqan)
        if own:
            return _Affiliation(own, _vo_origins("the job's VO", "vo"))
        return self._by_default()

    def _by_default(self) -> _Affiliation:
        vo, _, issuer = self.default_vo.partition("#")
        rule = "records.default_vo" if vo else "none known"
        return _Affiliation(vo, _vo_origins(rule), issuer)

    def _by_rule(self, job: JobRecord, own: str) -> _Affiliation | None:
        """What the first rule says that applies; `own` is the job's VO without rules."""
        for number, rule in enumerate(self.vo_rules, start=1):
            if (rule.override or not own) and rule.matches(job):
                origin = f"records.vo_rules, rule {number}: {rule.field} {rule.pattern}"
                source = "" if rule.field == "any" else rule.field
                origins = _vo_origins(origin, source)
                return _Affiliation(rule.vo, origins, "", rule.group or "", rule.role or "")
        return None

    def _main_fqan(self, job: JobRecord) -> str:
        """'' for none, or one without a VO (`/`); in jura-ng's style, also for unreadable ones."""
        fqan = job.fqans[0] if job.fqans else ""
        if self.key_style is KeyStyle.JURA and not read_by_jura(self.receiver_text(job, fqan))[0]:
            return ""
        return fqan if parse_fqan(fqan).vo else ""

    def place(self, job: JobRecord) -> Placement:
        inputs = (job.endpoint, job.interface, job.queue, job.lrms)
        known = self._where.get(inputs)
        if known is None:
            if len(self._where) >= _REMEMBERED:
                self._where.clear()
            known = self._where[inputs] = self._describe_place(job)
        return known

    def _describe_place(self, job: JobRecord) -> Placement:
        host = endpoint_host(job.endpoint)
        if self.machine_name:
            machine, origin = self.machine_name, ("records.machine_name", "")
        elif is_domain_name(host):
            machine, origin = host, ("the endpoint's host", "endpoint")
        else:
            machine = self.host_name
            origin = "this host's name: the endpoint names none that schemas allow", ""
        infrastructure, server, description = self._infrastructure_of(job)
        local = infrastructure[0] == "local"
        jura = self.key_style is KeyStyle.JURA and not local
        if local and not server[0]:
            raise Unfit(
                "batch-server-unknown", "a local job needs records.batch_server as its SubmitHost"
            )
        submit_host = server[0] if local else job.endpoint
        submit_host_origin = (server[1], "") if local else ("the endpoint's URL", "endpoint")
        receiver_host = jura_submit_host(job.interface, job.endpoint) if jura else submit_host
        description_source = "lrms" if description[1].endswith(_AND_LRMS) else ""
        return Placement(
            site=self.site,
            infrastructure=infrastructure[0],
            description=description[0],
            submit_host=submit_host,
            receiver_host=receiver_host,
            interface=job.interface,
            machine_name=machine,
            queue=job.queue,
            origins=(
                ValueOrigin("Site", "site"),
                ValueOrigin("InfrastructureType", infrastructure[1]),
                ValueOrigin("InfrastructureDescription", description[1], description_source),
                ValueOrigin("SubmitHost", *submit_host_origin),
                ValueOrigin("MachineName", *origin),
                ValueOrigin("Queue", "as it is", "queue"),
            ),
            localid_prefix=self.localid_prefix,
        )

    def _infrastructure_of(self, job: JobRecord) -> tuple[_Attributed, _Attributed, _Attributed]:
        """Infrastructure type, batch server and description, each with the rule that decided."""
        lrms = (job.lrms or "fork").upper()
        imported = self.imported.get((job.interface, job.endpoint))
        imported = imported or self.imported.get((job.interface, ""))
        if imported is None:
            description = (self.infrastructure_description, "records.infrastructure_description")
            return (
                (self.infrastructure, "records.infrastructure"),
                (self.batch_server, "records.batch_server"),
                description if description[0] else (f"JURA-ARC-{lrms}", f"JURA-ARC-{_AND_LRMS}"),
            )
        server = imported.batch_server
        if not server[0] and job.endpoint.startswith(f"{job.interface}://"):
            server = (endpoint_host(job.endpoint), "the cluster's name")
        description = imported.description
        if not description[0]:  # no ARC ever saw it, and no CE is in front
            description = (f"PUBLISHER-NONE-{lrms}", f"PUBLISHER-NONE-{_AND_LRMS}")
        return imported.infrastructure, server, description


def _vo_origins(rule: str, source: str = "") -> tuple[ValueOrigin, ...]:
    return tuple(ValueOrigin(name, rule, source) for name in ("VO", "VOGroup", "VORole"))


# Interfaces with a bare URL in jura-ng, and the set of characters stripped off other names.
_BARE: Final = ("org.ogf.glue.emies.activitycreation", "org.nordugrid.gridftpjob")
_STRIPPED: Final = "org.nordugrid."


def jura_submit_host(interface: str, url: str) -> str:
    """SubmitHost: the interface's short name before the URL, but for its oldest two.

    jura-ng takes off these characters: `org.nordugrid.internal` is `ternal` there.
    """
    if not interface or interface in _BARE:
        return url
    return f"{interface.lstrip(_STRIPPED)}:{url}"


class SiteRecords(NamedTuple):
    """What a site says of its jobs, whatever a target overrides; `name` is as in GOCDB."""

    name: str
    statuses: frozenset[str]
    policy: RecordPolicy
    charging: Charging | None
    power: EnergyRules | None
    allocations: Sequence[Allocation]
