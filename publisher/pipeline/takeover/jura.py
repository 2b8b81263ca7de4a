"""What jura-ng publishes about a site's jobs, as far as receivers use it for keys: which jobs, and
under which names.

jura-ng keeps nothing of what it sent but one time per target, so what it left at a receiver is
computed again from the same accounting data. Measured on jura-ng of ARC 6.21 and 7 against APEL's
server code (arc-publisher facts, 5, 6 and 9.4; apel facts, at the end).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from publisher.formats import is_summary_format, receiver_of
from publisher.model.errors import Unfit
from publisher.model.identity import Identity, parse_fqan, read_by_jura
from publisher.model.job import JobRecord
from publisher.model.policy import KeyStyle, PublishedJob, RecordPolicy
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, is_read_by_jura, make_benchmark
from publisher.model.target import Selection, Target
from publisher.model.time import Window

# What it says about a job that carries no benchmark.
_WITHOUT: Final = BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(make_benchmark("HEPSPEC", "1.0"),)),))

_NAMED: Final = (
    "jura-ng may have sent it with the user's name, which `identity` keeps back now, and under both it would count twice; when "
    "the receiver has no record of this job, or was asked to delete the row, release it, and drop it otherwise"
)


def as_jura(policy: RecordPolicy, *, summary: bool) -> RecordPolicy:
    """The policy of jura-ng at this site. `vomsless_vo` (records.default_vo) counts in its single records only."""
    return replace(
        policy,
        infrastructure="grid",
        benchmarks=_WITHOUT,
        default_vo="" if summary else policy.default_vo,
        vo_rules=(),
        vo_groups=(),
        identity=Identity(),
        key_style=KeyStyle.JURA,
        machine_name="",
        batch_server="",
        _who={},
        _where={},
    )


def _fqan_of(job: JobRecord, policy: RecordPolicy) -> str:
    return job.fqans[0] if job.fqans and job.side_fqan and (job.vo or policy.default_vo) else ""


def as_read_by_jura(job: JobRecord, policy: RecordPolicy, *, summary: bool) -> JobRecord:
    """A job with the VO, FQAN and benchmark that jura-ng reports on it, or that APEL makes of what it tells.

    In single records it tells the FQAN as it is, which overrules the VO at APEL, but not for a job without a VO. That of ARC 7
    looks for FQAN and benchmark where schema 1 had them, and so tells neither of a job that was written to schema 2.
    """
    benchmark = job.benchmark if is_read_by_jura(job.benchmark) and (summary or job.side_benchmark) else ""
    if summary:
        return replace(job, benchmark=benchmark)
    fqan = _fqan_of(job, policy)
    if not read_by_jura(policy.receiver_text(job, fqan))[0]:
        return replace(job, fqans=(), benchmark=benchmark)
    return replace(job, vo=parse_fqan(fqan).vo or job.vo, benchmark=benchmark)


def sent_by_jura_of(target: Target) -> Callable[[JobRecord], PublishedJob | None] | None:
    """What is said of single jobs that jura-ng may have sent: that, so that sent again they stay under the key that they have.

    None for a target where that does not matter; it gives None for a job of which the target speaks for itself. A user who is
    not to be named any more is not, and without the name the job has another key: it raises Unfit.
    """
    until = target.jura_until
    form = target.jura_format or target.format
    if (
        until is None
        or is_summary_format(form)
        or is_summary_format(target.format)
        or receiver_of(target.format).row_keys is None
    ):
        return None
    policy = replace(
        as_jura(target.policy, summary=False),
        identity=target.policy.identity,
        machine_name=target.policy.machine_name,
        localid_prefix="",
    )

    def as_sent(job: JobRecord) -> PublishedJob | None:
        if job.ended_at > until or job.interface in policy.imported:
            return None
        try:
            published = policy.describe(as_read_by_jura(job, policy, summary=False))
            counted_at = target.policy.place(job).receiver_host  # in our sync messages, as of all other jobs
        except Unfit:
            return None
        if published.who.user != policy.receiver_text(job, job.user):
            raise Unfit("sent-by-jura", _NAMED)
        return replace(published, where=published.where._replace(receiver_host=counted_at))

    return as_sent


def jura_selection(selection: Selection, window: Window) -> Selection:
    """The jobs that it sends of a window, of every VO: it knows none to leave out, and goes by the job's own (`vos`)."""
    return selection._replace(
        statuses=frozenset({"completed", "failed"}), window=window, vos=None, exclude_vos=frozenset()
    )
