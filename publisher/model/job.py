"""Job records: one finished run of a job, and runs as columns for those who only count.

Times of a job are `Epoch` (seconds, UTC), not datetimes: a broken clock's year 36812 must stay
representable, so that the job can be quarantined by name. Everything else in this project uses
aware datetimes.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import compress
from operator import add, mod
from typing import Any, Final, NamedTuple, NewType
from zlib import crc32

JobId = NewType("JobId", str)
Epoch = NewType("Epoch", int)
# Eight bytes of digest of the JobID, three of the LocalJobID: the runs of the ledger
# (ledger/sql/delivered/pages.py).
JobKey = NewType("JobKey", bytes)

JOB_DIGEST_BYTES = 8
RUN_DIGEST_BYTES = 3
_JOB_DIGEST: Final = blake2b(digest_size=JOB_DIGEST_BYTES)
_RUN_DIGEST: Final = blake2b(digest_size=RUN_DIGEST_BYTES)


class SideTable(StrEnum):
    """A side table that is read only for formats that publish it."""

    TRANSFERS = "transfers"
    RUNTIME_ENVIRONMENTS = "runtime_environments"


class RowRef(NamedTuple):
    """Where a job record is: RecordID in a database. `rotate` renumbers it: a hint, never a key."""

    database: str
    record_id: int


class Transfer(NamedTuple):
    """One file staged in or out. `size_bytes` is None when unknown."""

    kind: str  # download | cached | upload
    url: str
    size_bytes: int | None
    started_at: Epoch | None
    ended_at: Epoch | None


class RunValues(NamedTuple):
    """What tells which run it is, and whether it changed: the beginning of a `JobRecord`.

    `joined` is text that the batch system's own record of the run may add; '' for none.
    """

    job_id: JobId
    local_id: str  # '' when the job never reached the batch system
    status: str
    ended_at: Epoch
    wall_s: int
    cpu_user_s: int
    cpu_kernel_s: int
    node_count: int | None
    cpu_count: int | None
    joined: str = ""

    @property
    def fingerprint(self) -> int:
        """The `values_fingerprint` of what makes a delivered run worth sending again."""
        return _run_fingerprint(self)


# Where something stands or comes from, or how well it is known; not what it is.
_PLACES: Final = frozenset({"row", "side_fqan", "side_benchmark", "joined", "cpu_unknown"})


class JobRecord(NamedTuple):
    """One finished run of a job, from any source. None is unknown, never zero; '' is no text."""

    job_id: JobId
    local_id: str
    status: str
    ended_at: Epoch
    wall_s: int
    cpu_user_s: int
    cpu_kernel_s: int
    node_count: int | None
    cpu_count: int | None
    row: RowRef
    exit_code: int | None
    submitted_at: Epoch
    started_at: Epoch | None  # the true start of the run, where the source knows it
    memory_kib: int | None
    virtual_memory_kib: int | None
    scratch_bytes: int | None
    stage_in_bytes: int | None
    stage_out_bytes: int | None
    interface: str
    endpoint: str
    queue: str
    user: str
    vo: str
    fqans: tuple[str, ...]  # the main one first
    attributes: tuple[tuple[str, str], ...]  # what A-REX mapped from token claims
    benchmark: str  # 'TYPE:value' as the source has it, '' when it has none
    job_name: str
    lrms: str
    client_host: str
    projects: tuple[str, ...]
    hosts: tuple[str, ...]  # the first is the primary
    local_user: str
    local_group: str
    wn_instance: str
    runtime_environments: tuple[str, ...]
    transfers: tuple[Transfer, ...]
    escaped: bool  # A-REX wrote the row: texts were percent-escaped there (undone here)
    gpu_count: int | None = None  # no source of ARC's knows it
    # What only some batch systems tell and formulas of charges may ask for, by the names that they
    # have there; times in seconds, memory in KiB.
    quantities: tuple[tuple[str, int], ...] = ()
    # Whether FQAN and benchmark are in side tables (schema 1): ARC's single records want that.
    side_fqan: bool = True
    side_benchmark: bool = True
    gpu_models: tuple[tuple[str, int], ...] = ()  # and how many of each, where that is known
    # Nobody measured the CPU time: its numbers are 0, as formats want some
    cpu_unknown: bool = False
    joined: str = ""  # as of `RunValues`

    @property
    def key(self) -> JobKey:
        return job_key(self.job_id, self.local_id)

    @property
    def fingerprint(self) -> int:
        """The same as of its `RunValues`."""
        return _run_fingerprint(self)

    def values_but_own(self) -> bytes:
        """What the fingerprint is made of, with places for the end and the three times."""
        return _values_but_own(self)

    def measured(self, cpu_s: int) -> int | None:
        """A CPU time of the job; None where nobody measured it."""
        return None if self.cpu_unknown else cpu_s

    @property
    def values_digest(self) -> bytes:
        """Return 8 bytes over the run's own values, as its source has them, that count anywhere.

        What the site says of them is not among these: a change of settings changes no digest.
        """
        values = (
            *(self.status, self.ended_at, self.wall_s, self.cpu_user_s, self.cpu_kernel_s),
            *(self.node_count, self.cpu_count, self.user, self.vo, self.fqans, self.queue),
            *(self.benchmark, self.joined),
        )
        return blake2b(_encoded(repr(values)), digest_size=8).digest()

    @property
    def content_fingerprint(self) -> int:
        """Of everything said about the job, wherever its row is: what is fixed may be any of it."""
        return values_fingerprint(
            *(value for name, value in zip(self._fields, self, strict=True) if name not in _PLACES)
        )


def _run_fingerprint(run: RunValues | JobRecord) -> int:
    own = run.ended_at, run.wall_s, run.cpu_user_s, run.cpu_kernel_s
    return _fingerprint(_values_but_own(run) % own + _encoded(run.joined))


def _values_but_own(run: RunValues | JobRecord) -> bytes:
    status = repr(run.status).replace("%", "%%")
    return _encoded(f"({status}, %d, %d, %d, %d, {run.node_count or 0}, {run.cpu_count or 0})")


GpuModels = tuple[tuple[str, int], ...]


def gpus_by_model(count: int | None, models: GpuModels) -> GpuModels:
    """GPUs by their models, those of no known one under '' last: all where models have too many."""
    had = tuple(model for model in models if model[1])
    rest = (count or 0) - sum(each for _, each in had)
    if rest < 0:
        had, rest = (), count or 0
    return (*had, ("", rest)) if rest > 0 else had


class SkippedJob(NamedTuple):
    """A job that cannot be published now: the rule it broke, and why, for people."""

    row: RowRef
    job_id: JobId
    local_id: str
    ended_at: Epoch | None
    rule: str
    reason: str
    fingerprint: int  # of the row, so that a changed row is tried again

    @property
    def key(self) -> JobKey:
        """The run's key; of a row without a JobID, one that is the row's own."""
        return job_key(self.job_id or f"{self.row.database}#{self.row.record_id}", self.local_id)


def job_key(job_id: str, local_id: str) -> JobKey:
    """Key of a run: 64 bits of the JobID and 24 of the LocalJobID.

    Two of 10^8 different jobs share all 88 bits with probability 2e-11.
    """
    return job_keys([job_id], [local_id])[0]


def job_keys(job_ids: Iterable[str], local_ids: Iterable[str]) -> list[JobKey]:
    """The `job_key` of each run (hot path)."""
    return list(map(add, _digests(job_ids, _JOB_DIGEST), _digests(local_ids, _RUN_DIGEST)))


def job_digest(job_id: str) -> bytes:
    """The part of a `JobKey` that all runs of a job share."""
    return _digests([job_id], _JOB_DIGEST)[0]


def _digests(texts: Iterable[str], empty: blake2b) -> list[bytes]:
    found = []
    for text in texts:
        digest = empty.copy()  # half as dear as another one
        digest.update(text.encode("utf-8", "surrogateescape"))
        found.append(digest.digest())
    return found


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def run_digest(key: JobKey) -> bytes:
    """The part of a `JobKey` that tells the runs of a job apart."""
    return key[JOB_DIGEST_BYTES:]


def values_fingerprint(*values: object) -> int:
    """24 bits over the values whose change makes a delivered job go out again; 0 if none count."""
    return _fingerprint(_encoded(repr(values)))


def _fingerprint(values: bytes) -> int:
    return crc32(values) & 0xFFFFFF or 1


class RunColumns(NamedTuple):
    """Complete runs of one database as columns, in the order of their rows (hot path).

    `examples` has for each run a job with its status, user, VO, main FQAN, place, benchmark and
    numbers of nodes and cores; whatever else the example has is its own. Runs that share all of
    that have the very same object. Ends are epoch seconds, times are seconds. `joined` is empty
    where it is '' for all runs.

        RunColumns("a.db", [7, 9], ["job-a", "job-b"], ["11", "12"], [1767225600, 1767225700],
                   [60, 61], [50, 0], [1, 0], [example, example])
    """

    database: str
    record_ids: Sequence[int]
    job_ids: Sequence[JobId]
    local_ids: Sequence[str]
    ended_at: Sequence[Epoch]
    wall_s: Sequence[int]
    cpu_user_s: Sequence[int]
    cpu_kernel_s: Sequence[int]
    examples: Sequence[JobRecord]
    joined: Sequence[str] = ()

    def rows(self, places: Iterable[int]) -> list[RowRef]:
        """Where the runs at these places of the columns stand."""
        return [RowRef(self.database, self.record_ids[place]) for place in places]

    def only(self, keep: Sequence[bool]) -> "RunColumns":
        """Those of the runs of which that is true."""
        columns: Sequence[Any] = self[1:]
        return RunColumns(self.database, *(list(compress(column, keep)) for column in columns))

    def keys(self) -> list[JobKey]:
        """The `job_key` of each run."""
        return job_keys(self.job_ids, self.local_ids)

    def fingerprints(self) -> list[int]:
        """The `JobRecord.fingerprint` of each run."""
        examples = {id(job): job for job in self.examples}
        values_of = {at: job.values_but_own() for at, job in examples.items()}
        return self.fingerprints_of([values_of[id(job)] for job in self.examples])

    def fingerprints_of(self, values: Iterable[bytes]) -> list[int]:
        """The same, given the `values_but_own` of each run (hot path)."""
        own = zip(self.ended_at, self.wall_s, self.cpu_user_s, self.cpu_kernel_s, strict=True)
        texts = list(map(mod, values, own))
        if self.joined:
            joined = map(_encoded, self.joined)
            texts = [text + more for text, more in zip(texts, joined, strict=True)]
        return [crc32(text) & 0xFFFFFF or 1 for text in texts]


class KnownRuns(NamedTuple):
    """Delivered runs as columns: when each ended, and a job of the same place and status."""

    database: str
    record_ids: Sequence[int]
    ended_at: Sequence[Epoch]
    examples: Sequence[JobRecord]
