"""Rules of SGAS: jobs that its server or database would refuse, and values to leave out.

One refused record loses the whole batch, and a stored record is never corrected by a later copy. So
a job with a bad value that identifies or counts it is set aside (`*_RULES`), and optional values
that are too long are left out (`OMISSIONS`). Measured on luts3-service 3.8.1 and HEAD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from publisher.formats.rules import AHEAD_S, Rule, RunRule, RunUnderTest, Subject, requirement
from publisher.formats.sgas import values
from publisher.model.published import Placement, PublishedJob, UserIdentity
from publisher.model.text import xml_text

RECORD_ID_CHARACTERS: Final = 1_000
STATUS_CHARACTERS: Final = 100
NAME_CHARACTERS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OmittedValue:
    """A value that a job's record omits or changes: name, and check, which returns what or ''."""

    name: str
    check: Callable[[PublishedJob], str]


def sgas_omissions(job: PublishedJob) -> tuple[tuple[str, str], ...]:
    """Name and details of each value that a record omits or changes; for `explain`."""
    found = ((omission.name, omission.check(job)) for omission in OMISSIONS)
    return tuple((name, details) for name, details in found if details)


def _length_fault(what: str, limit: int, text: str) -> str:
    """Length of a text as it is sent, in characters, and in bytes: its column has an index."""
    escaped = xml_text(text)
    if len(escaped) > limit:
        return f"{what} has {len(escaped)} characters, SGAS keeps {limit}"
    size = len(escaped.encode())
    if size > values.INDEXED_BYTES:
        return f"{what} has {size} bytes, SGAS's index bears {values.INDEXED_BYTES}"
    return ""


def _length(rule: str, what: str, limit: int, text: Callable[[Subject], str]) -> Rule[Subject]:
    def check(subject: Subject) -> str:
        return _length_fault(what, limit, text(subject))

    return Rule(name=rule, receiver="sgas", check=check)


def _range(rule: str, what: str, field: str) -> RunRule:
    return RunRule(
        name=rule,
        receiver="sgas",
        broken=f"run.{field} is not None and not 0 <= run.{field} <= {values.INT4_MAX}",
        reason=lambda run: f"{what} {getattr(run.job.job, field)} is not in 0 to {values.INT4_MAX}",
    )


def _record_id_characters(run: RunUnderTest) -> str:
    why = "cannot be written in XML as it is, and is the only key that SGAS has"
    return f"the record id {values.record_id(run.job)!r} {why}"


def _record_id_fault(record_id: str) -> str:
    return _length_fault("record id", RECORD_ID_CHARACTERS, record_id)


def _status_length(status: str) -> str:
    return _length_fault("status", STATUS_CHARACTERS, status)


SGAS_RUN_RULES: Final[tuple[RunRule, ...]] = (
    # In its database recordId is unique and not null; '' would be accepted, once
    RunRule("job-id-missing", "sgas", "not xml_text(run.job_id)", lambda _: "the job has no id"),
    # Another character in its place, and two jobs may share the id: the second is discarded
    RunRule(
        "record-id-characters",
        "sgas",
        "xml_text(named := record_id(job)) != named",
        _record_id_characters,
    ),
    RunRule(
        "record-id-too-long",
        "sgas",
        "record_id_fault(named)",
        lambda run: _record_id_fault(values.record_id(run.job)),
    ),
    # Status is mandatory in GFD.98
    RunRule(
        "status-missing", "ogf-ur", "not xml_text(run.status)", lambda _: "the job has no status"
    ),
    RunRule(
        "status-too-long",
        "sgas",
        "status_length(run.status)",
        lambda run: _status_length(run.job.job.status),
    ),
    # In its database WallDuration, UserTime, KernelTime, Processors are int4, CpuDuration int8
    _range("wall-out-of-range", "wall time", "wall_s"),
    _range("cpu-out-of-range", "user CPU time", "cpu_user_s"),
    _range("cpu-out-of-range", "system CPU time", "cpu_kernel_s"),
    _range("processors-out-of-range", "processor count", "cpu_count"),
    # Times; the server takes 1970 and 2099, and keeps them
    RunRule(
        "end-out-of-range",
        "sgas",
        f"not 0 < job.ended_at <= {values.YEAR_9999}",
        lambda run: f"end time {run.job.ended_at} is not in the years 1970 to 9999",
    ),
    RunRule(
        "end-in-future",
        "sgas",
        "job.ended_at > latest_end",
        lambda run: (
            f"it ended at {run.job.ended_at}, "
            f"{run.job.ended_at - run.latest_end + AHEAD_S} s ahead of this host's clock"
        ),
    ),
)
require_sgas_run: Final = requirement(
    SGAS_RUN_RULES,
    {
        "xml_text": xml_text,
        "record_id": values.record_id,
        "record_id_fault": _record_id_fault,
        "status_length": _status_length,
    },
)


def _machine_name(where: Placement) -> str:
    if values.host(where.machine_name):
        return ""
    return (
        f"machine name {where.machine_name!r} is not a domain name of up to "
        f"{values.HOST_CHARACTERS} characters; set records.machine_name"
    )


SGAS_WHERE_RULES: Final[tuple[Rule[Placement], ...]] = (
    # Absent or empty loses the batch; it must be one that the certificate may speak for
    Rule(name="machine-name", receiver="sgas", check=_machine_name),
)

SGAS_WHO_RULES: Final[tuple[Rule[UserIdentity], ...]] = (
    # GlobalUserName, vo:Name, vo:Issuer; cut, they would be somebody else
    _length("user-too-long", "user", NAME_CHARACTERS, lambda who: who.user),
    _length("vo-too-long", "VO", NAME_CHARACTERS, lambda who: who.vo),
    _length("vo-issuer-too-long", "VO issuer", NAME_CHARACTERS, lambda who: who.vo_issuer),
)


def _local_id(job: PublishedJob) -> str:
    left_out = xml_text(job.job.local_id) and not values.local_id(job)
    why = "would make SGAS rewrite the record's id"
    return f"local job id {job.local_id!r} {why}" if left_out else ""


def _start(job: PublishedJob) -> str:
    if values.start_time(job):
        return ""
    return f"start {job.started_at} is unknown, or after the end {job.ended_at}"


def _vo_attributes(job: PublishedJob) -> str:
    left_out, limit = values.vo_attributes_left_out(job.who), values.VO_ATTRIBUTE_CHARACTERS
    return f"{left_out} with a group or role of over {limit} characters" if left_out else ""


def _runtime_environments(job: PublishedJob) -> str:
    texts = job.job.runtime_environments
    return _fewer("runtime environments", texts, values.runtime_environments(texts))


def _fewer(what: str, texts: tuple[str, ...], kept: Sequence[str]) -> str:
    before = len({text for text in map(xml_text, texts) if text})
    return _some(what, before, len(kept))


def _transfers(job: PublishedJob) -> str:
    kept = sum(1 for _ in values.transfers(job.transfers))
    return _some("transfers", len(job.transfers), kept)


def _some(what: str, before: int, after: int) -> str:
    return f"{before - after} of {before} {what}" if after < before else ""


def _urls_stripped(job: PublishedJob) -> str:
    stripped = sum(values.public_url(transfer.url) != transfer.url for transfer in job.transfers)
    return f"{stripped} URLs without their users, passwords and queries" if stripped else ""


OMISSIONS: Final[tuple[OmittedValue, ...]] = (
    OmittedValue(name="local-id-left-out", check=_local_id),
    OmittedValue(name="job-name-cut",
         check=lambda job: "" if len(xml_text(job.job_name)) <= values.JOB_NAME_CHARACTERS
         else f"cut to {values.JOB_NAME_CHARACTERS} characters"),
    OmittedValue(name="queue-cut",
         check=lambda job: "" if len(xml_text(job.where.queue)) <= values.QUEUE_CHARACTERS
         else f"cut to {values.QUEUE_CHARACTERS} characters"),
    OmittedValue(name="local-user-left-out",
         check=lambda job: "" if len(xml_text(job.local_user)) <= values.LOCAL_USER_CHARACTERS
         else f"it has over {values.LOCAL_USER_CHARACTERS} characters"),
    OmittedValue(name="charge-left-out",
         check=lambda job: f"{job.charge.text} is no 32-bit number"
         if job.charge and not values.charge(job.charge) else ""),
    OmittedValue(name="charge-fraction",
         check=lambda job: f"{job.charge.text} becomes {int(job.charge.amount)}"
         if job.charge and values.charge(job.charge) and job.charge.amount % 1 else ""),
    OmittedValue(name="exit-code-modulo",
         check=lambda job: "" if values.exit_code(job.job.exit_code) == job.job.exit_code
         else f"{job.job.exit_code} modulo 256"),
    OmittedValue(name="processors-one",
         check=lambda job: "" if job.job.cpu_count else "no core count: 1"),
    OmittedValue(name="node-count-left-out",
         check=lambda job: f"{job.job.node_count} nodes do not fit a smallint"
         if job.job.node_count and not values.node_count(job.job.node_count) else ""),
    OmittedValue(name="memory-left-out",
         check=lambda job: "not a positive 64-bit number of bytes"
         if any(kib and not values.memory_kib(kib)
         for kib in (job.job.memory_kib, job.job.virtual_memory_kib)) else ""),
    OmittedValue(name="start-left-out", check=_start),
    OmittedValue(name="submission-left-out",
         check=lambda job: "" if values.known_time(job.job.submitted_at)
         else f"{job.job.submitted_at} is not a time"),
    # GFD.98's domainNameType
    OmittedValue(name="host-left-out",
         check=lambda job: f"{job.job.hosts[0]!r} is not a domain name"
         if job.job.hosts and not values.host(job.job.hosts[0]) else ""),
    OmittedValue(name="submit-host-left-out",
         check=lambda job: f"{job.client_host!r} is neither a domain name nor an address"
         if job.client_host and not values.submit_host(job.client_host) else ""),
    OmittedValue(name="vo-attribute-left-out", check=_vo_attributes),
    OmittedValue(name="project-left-out",
         check=lambda job: _fewer("projects", job.projects, values.projects(job.projects))),
    OmittedValue(name="runtime-environment-left-out", check=_runtime_environments),
    OmittedValue(name="transfer-left-out", check=_transfers),
    # They may hold passwords
    OmittedValue(name="transfer-url-stripped", check=_urls_stripped),
)  # fmt: skip
