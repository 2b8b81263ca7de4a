"""Records of jobs as AUDITOR keeps them: JSON with meta data, and components that may have scores.

Meta data and components are called as the template of auditor-apel-plugin has them, which makes
APEL's summaries of them; a target of AUDITOR may call meta data otherwise. AUDITOR takes the run
time to be the stop less the start, so the start is the wall time before the end.

Spec: AUDITOR 0.11, RecordAdd.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from publisher.formats.base import Frame, OnChange, Receiver, moment, number
from publisher.formats.rules import fitting, latest_end
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, SideTable, run_digest
from publisher.model.published import PublishedJob
from publisher.model.time import iso_epoch

_CHARACTERS: Final = 256
_MOST: Final = 2**63 - 1


def published_values(job: PublishedJob, _: bool) -> Iterator[tuple[str, str]]:
    """What a record says about a job: names of APEL's messages, values as people read them."""
    run, who, where = job.job, job.who, job.where
    yield "RecordId", _record_id(job)
    yield "Site", where.site
    yield "SubmitHost", where.submit_host
    yield "GlobalUserName", who.user
    yield "FQAN", who.full_fqan()
    yield "VO", who.vo
    yield "LocalUserId", job.local_user
    yield "LocalGroup", job.local_group
    yield "Queue", where.queue
    yield "ProjectName", ", ".join(job.projects)
    yield "ServiceLevel", "; ".join(f"{one.kind} {one.text}" for one in job.benchmark.benchmarks)
    yield "NodeCount", number(run.node_count)
    yield "Processors", number(run.cpu_count)
    yield "GPUs", number(run.gpu_count)
    yield "WallDuration", f"{run.wall_s} s"
    yield "CpuDuration", f"{run.cpu_user_s + run.cpu_kernel_s} s"
    yield "EndTime", moment(job.ended_at)


def _omitted(job: PublishedJob) -> tuple[tuple[str, str], ...]:
    if job.started_at == job.ended_at - job.job.wall_s:
        return ()
    why = "AUDITOR's run time is stop less start, so the start is not the true one"
    return (("start-is-end-less-wall", why),)


RECORDS: Final = Receiver(
    name="AUDITOR",
    on_change=OnChange.KEEP_FIRST,
    table="records",
    needs_benchmark=True,
    default_batch_records=100,
    values=published_values,
    omitted=_omitted,
)
RECEIVERS: Final[Mapping[str, Receiver]] = {"auditor-record": RECORDS}


class AuditorRecord:
    """One object a job, in a list."""

    name: ClassVar[str] = "auditor-record"
    receiver: ClassVar[Receiver] = RECORDS
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    frame: ClassVar[Frame] = Frame(head=b"[\n", separator=b",\n", tail=b"\n]\n")

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """One record on a line. `made_at` is the clock that end times are held against."""
        run = job.job
        if job.ended_at <= 0:
            raise Unfit("end-out-of-range", f"end time {job.ended_at} is before 1970")
        if job.ended_at > latest_end(made_at):
            raise Unfit("end-in-future", f"it ended at {job.ended_at}, ahead of this host's clock")
        if not 0 <= run.wall_s <= job.ended_at:
            what = f"wall time {run.wall_s} s is negative, or begins before 1970"
            raise Unfit("wall-out-of-range", what)
        record = {
            "record_id": _name("record_id", _record_id(job)),
            "meta": _meta(job),
            "components": list(_components(job)),
            "start_time": iso_epoch(Epoch(job.ended_at - run.wall_s)),
            "stop_time": iso_epoch(job.ended_at),
        }
        return json.dumps(record, ensure_ascii=False).encode("utf-8")

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """The record's id."""
        return (_record_id(job),)

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        try:
            records = json.loads(payload)
        except ValueError as error:
            raise Unfit("auditor-record", f"is not JSON: {error}") from error
        for at, record in enumerate(records, start=1):
            if fault := _fault(record):
                raise Unfit("auditor-record", f"record {at}: {fault}")


def create(name: str) -> AuditorRecord:
    return {AuditorRecord.name: AuditorRecord}[name]()


def _record_id(job: PublishedJob) -> str:
    """As in CAR; of a later run with a digest behind it, because AUDITOR keeps the first record."""
    return (
        f"{job.record_id}-{run_digest(job.job.local_id).hex()}" if job.later_run else job.record_id
    )


def _meta(job: PublishedJob) -> dict[str, list[str]]:
    """What is known, by its name in auditor-apel-plugin's template or AUDITOR's collectors."""
    found = {
        "site_id": [job.where.site],
        "headnode": [job.where.submit_host],
        "subject": [job.who.user],
        "voms": [job.who.full_fqan()],
        "vo": [job.who.vo],
        "user_id": [job.local_user],
        "group_id": [job.local_group],
        "queue": [job.where.queue],
        "project": list(job.projects),
        # auditor-apel-plugin stops at a record without the component, so that is 0
        "total_cpu": ["unknown"] if job.job.cpu_unknown else [],
    }
    meta: dict[str, list[str]] = {}
    for key, texts in found.items():
        if known := [_name(key, text) for text in texts if _plain(text)]:
            meta[key] = known
    return meta


def _components(job: PublishedJob) -> Iterator[dict[str, object]]:
    """Cores with the benchmark as score, CPU seconds, nodes; GPUs where known. Raises: Unfit."""
    run, applied = job.job, job.benchmark
    if not applied.benchmarks:
        why = applied.origin if applied.unreadable is None else applied.unreadable.reason
        raise Unfit("benchmark-missing", f"no benchmark: {why}; set records.benchmark")
    scores = [{"name": one.kind.lower(), "value": float(one.value)} for one in applied.benchmarks]
    yield {"name": "Cores", "amount": _amount("cores", run.cpu_count or 0), "scores": scores}
    cpu_s = _amount("CPU time", run.cpu_user_s + run.cpu_kernel_s)
    yield {"name": "TotalCPU", "amount": cpu_s, "scores": []}
    yield {"name": "NNodes", "amount": _amount("nodes", run.node_count or 0), "scores": []}
    if run.gpu_count:
        yield {"name": "GPUs", "amount": _amount("GPUs", run.gpu_count), "scores": []}


def _plain(text: str) -> str:
    """Without what PostgreSQL's JSON does not keep: control characters, halves of surrogates."""
    if text.isprintable():
        return text.strip()
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def _name(key: str, text: str) -> str:
    return fitting(key, _plain(text), _CHARACTERS, "AUDITOR")


def _amount(what: str, value: int) -> int:
    if not 0 <= value <= _MOST:
        raise Unfit("number-out-of-range", f"{what} {value} is not in 0 to {_MOST}")
    return value


_KEYS: Final = ("record_id", "meta", "components", "start_time", "stop_time")


def _fault(record: object) -> str:
    """What AUDITOR would refuse in a record, or ''."""
    if not isinstance(record, dict) or tuple(record) != _KEYS:
        return f"is not an object of {', '.join(_KEYS)}"
    if bad := [name for name in _names(record) if not _is_name(name)]:
        return f"{bad[0]!r} is no name"
    amounts = [component["amount"] for component in record["components"]]
    if not all(map(_is_amount, amounts)):
        return f"{amounts} are not amounts"
    return "" if record["start_time"] <= record["stop_time"] else "it stops before it starts"


def _names(record: Mapping[str, Any]) -> Iterator[object]:
    yield record["record_id"]
    for name, texts in record["meta"].items():
        yield name
        yield from texts


def _is_amount(amount: object) -> bool:
    return isinstance(amount, int) and 0 <= amount <= _MOST


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= _CHARACTERS
