"""What jobs of CEs get of their runs in the batch system, and the column `joined` that has it.

job 7 of A-REX, no memory, no GPUs   +   run 7 of hpc: 8 GiB, 2 GPUs   ->   job 7 with both,
joined: {"gpu_count":2,"memory_kib":8388608}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from publisher.jobs.reader import StoreReader
from publisher.jobs.tables.batch_runs import BatchRuns, LinkState, lies_in
from publisher.jobs.tables.systems import LinkedSystem
from publisher.model.job import JobRecord


def _pairs(values: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, values))


# What a batch system may know and A-REX not: how it is read from JSON, and what says that it is
# not known.
_JOINED: Final[Mapping[str, tuple[Callable[[Any], object], Any]]] = {
    "gpu_count": (int, None),
    "gpu_models": (_pairs, ()),
    "memory_kib": (int, None),
    "virtual_memory_kib": (int, None),
    "node_count": (int, None),
    "cpu_count": (int, None),
    "hosts": (tuple, ()),
    "quantities": (_pairs, ()),
}
_SORTED: Final = frozenset({"gpu_models", "quantities"})


def with_values(job: JobRecord, run: JobRecord) -> JobRecord:
    """Return a job of a CE with those values of its run that it lacks; `joined` has these.

    What was joined to it before is given up.
    """
    return with_joined(without_joined(job), _text({name: getattr(run, name) for name in _JOINED}))


def without_joined(job: JobRecord) -> JobRecord:
    """Return a job as its CE has it."""
    before = json.loads(job.joined) if job.joined else {}
    unknown: dict[str, Any] = {name: _JOINED[name][1] for name in before}
    return job._replace(joined="", **unknown)


def with_joined(job: JobRecord, text: str) -> JobRecord:
    """Return a job with those values of a text that it lacks; `joined` has these."""
    values = json.loads(text) if text else {}
    lacking = {name: value for name, value in values.items() if not getattr(job, name)}
    made: dict[str, Any] = {name: _JOINED[name][0](value) for name, value in lacking.items()}
    return job._replace(**made, joined=_text(made))


def _text(values: Mapping[str, Any]) -> str:
    """Return values as `JobRecord.joined` has them, or ''."""
    known = {
        name: sorted(value) if name in _SORTED else value for name, value in values.items() if value
    }
    return json.dumps(known, separators=(",", ":"), sort_keys=True) if known else ""


def origins(
    store: StoreReader, systems: Sequence[LinkedSystem], job: JobRecord
) -> Sequence[tuple[str, str]]:
    """Return where each value comes from that was joined to a job of a CE, by its name."""
    with store.translated():
        of_ce = [one for one in systems if one.ce_of(job.row.database) and one.ran(job.lrms)]
        found = BatchRuns(store).of_numbers({job.local_id}, [one.name for one in of_ce])
    span = job.submitted_at, job.ended_at
    runs = [one for one in found.get(job.local_id, ()) if one.state is not LinkState.OWN]
    near = [one for one in runs if lies_in(span, one.times)]
    names = sorted({one.source for one in near})
    if len(names) > 1:
        several = f"nothing: runs of the sources {' and '.join(names)} have this number and time"
        return [("joined", several)]
    if not job.joined:
        return []
    origin = "joined from a run that was pruned"
    if near:
        run = min(near, key=lambda one: abs(one.job.ended_at - job.ended_at))
        origin = f"joined from {run.job.job_id} of source {run.source}"
    return [(name, origin) for name in json.loads(job.joined)]
