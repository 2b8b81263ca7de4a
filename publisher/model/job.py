"""Job records: one finished run of a job.

Times of a job are `Epoch` (seconds, UTC), not datetimes: a broken clock's year 36812 must stay
representable, so that the job can be quarantined by name. Everything else in this project uses
aware datetimes.
"""

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple, NewType
from zlib import crc32

JobId = NewType("JobId", str)
Epoch = NewType("Epoch", int)
# Four bytes of submission time, seven of digest of the JobID, four of the LocalJobID: the entries
# of the ledger.
RunKey = NewType("RunKey", bytes)
# A run key without its submission time, which not every row tells: what is kept of jobs set aside.
JobKey = NewType("JobKey", bytes)
# How far a source was read: text that only the source understands, kept by the job store.
Position = NewType("Position", str)

PART_BITS: Final = 11  # 2,048 rows, the first of which is 1
JOB_OF_RUN: Final = slice(0, 11)  # what all runs of a job share: submission time and job
_KEY_OF_RUN: Final = slice(4, None)
_LATEST: Final = 0xFFFFFFFF  # a submission time in 4 bytes: until 2106
_DIGEST_BYTES: Final = 8  # of values
_JOINED: Final = b"+"
_JOB_OF_RUN_KEY: Final = blake2b(digest_size=7)
_LOCAL_OF_RUN_KEY: Final = blake2b(digest_size=4)


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
    joined: str = ""  # text that the batch system's own record of the run adds; '' for none

    @property
    def key(self) -> JobKey:
        return key_of(self.run_key)

    @property
    def run_key(self) -> RunKey:
        return run_key(self.submitted_at, self.job_id, self.local_id)

    @property
    def fingerprint(self) -> int:
        """Return the beginning of the digest of its values, as quarantine keeps it."""
        return values_number(self.values_digest)

    def measured(self, cpu_s: int) -> int | None:
        """A CPU time of the job; None where nobody measured it."""
        return None if self.cpu_unknown else cpu_s

    @property
    def values_digest(self) -> bytes:
        """Return 8 bytes over the run's own values, as its source has them, that count anywhere.

        A ninth says that a batch system's record is among these (`was_joined`). What the site says
        of them is not: a change of settings changes no digest.
        """
        values = (
            *(self.status, self.ended_at, self.wall_s, self.cpu_user_s, self.cpu_kernel_s),
            *(self.node_count, self.cpu_count, self.user, self.vo, self.fqans, self.queue),
            *(self.benchmark, self.joined),
        )
        digest = blake2b(_encoded(repr(values)), digest_size=_DIGEST_BYTES).digest()
        return digest + _JOINED if self.joined else digest

    @property
    def content_fingerprint(self) -> int:
        """Of everything said about the job, wherever its row is: what is fixed may be any of it."""
        return values_fingerprint(
            *(value for name, value in zip(self._fields, self, strict=True) if name not in _PLACES)
        )


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
    submitted_at: int = 0  # where the row tells it; quarantine does not keep it

    @property
    def run_key(self) -> RunKey:
        """Return the key of the run, as far as the row tells it."""
        return run_key(self.submitted_at, self.job_id, self.local_id)

    @property
    def key(self) -> JobKey:
        """The run's key; of a row without a JobID, one that is the row's own."""
        name = self.job_id or f"{self.row.database}#{self.row.record_id}"
        return key_of(run_key(0, name, self.local_id))


class PartialJob(NamedTuple):
    """What is known of a row that is no run by now, for statistics, which count it too.

    Its job is in progress, or over and not complete yet, or breaks a `rule`. What is not known or
    cannot be read is 0 or '' in `job`; `is_unreadable`: some usage is there that is no number.
    """

    job: JobRecord
    is_in_progress: bool
    is_unreadable: bool = False
    rule: str = ""


def run_key(submitted_at: int, job_id: str, local_id: str) -> RunKey:
    """Return the key of a run: its submission time first, so that new runs are neighbours.

    Two of a million runs that were submitted in the same second share it with probability 1e-14.
    """
    job, local = _JOB_OF_RUN_KEY.copy(), _LOCAL_OF_RUN_KEY.copy()  # half as dear as another one
    try:
        job.update(job_id.encode())
        local.update(local_id.encode())
    except UnicodeEncodeError:  # a few: hot path
        job, local = _JOB_OF_RUN_KEY.copy(), _LOCAL_OF_RUN_KEY.copy()
        job.update(_encoded(job_id))
        local.update(_encoded(local_id))
    second = submitted_at if 0 <= submitted_at <= _LATEST else max(0, min(submitted_at, _LATEST))
    return RunKey(second.to_bytes(4, "big") + job.digest() + local.digest())


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def has_local_id(run: RunKey) -> bool:
    """Whether the run had a LocalJobID: one that never reached the batch system has none."""
    return run[JOB_OF_RUN.stop :] != _LOCAL_OF_RUN_KEY.digest()


def key_of(run: RunKey) -> JobKey:
    """Return the key of a run without its submission time.

    Two of 10^8 different jobs share all 88 bits with probability 2e-11.
    """
    return JobKey(run[_KEY_OF_RUN])


def run_digest(local_id: str) -> bytes:
    """Return three bytes that tell the runs of a job apart, in ids of records at a receiver."""
    return blake2b(_encoded(local_id), digest_size=3).digest()


def values_fingerprint(*values: object) -> int:
    """Return 24 bits over the values of a row that was set aside; 0 if none count."""
    return crc32(_encoded(repr(values))) & 0xFFFFFF or 1


def was_joined(digest: bytes) -> bool:
    """Return whether a `JobRecord.values_digest` is of a run with its batch system's record."""
    return len(digest) > _DIGEST_BYTES


def values_number(digest: bytes) -> int:
    """Return the first 24 bits of a `JobRecord.values_digest` as a number."""
    return int.from_bytes(digest[:3])


class OpenRow(NamedTuple):
    """A row to look at again: its job runs, or is finished but with side rows still to come.

    `finished_seen_at` is when it was first seen finished without them: the hold-off counts from
    there, because A-REX may write a row hours after the job's EndTime.
    """

    row: RowRef
    finished_seen_at: Epoch | None


def part_of(record_id: int) -> int:
    """Return the number of the part that a row belongs to."""
    return (record_id - 1) >> PART_BITS


def last_row_of(part: int) -> int:
    """Return the highest RecordID of a part."""
    return (part + 1) << PART_BITS


class ReadRequest(NamedTuple):
    """What a source is asked for besides jobs: side tables that formats publish; and the time."""

    needs: frozenset[SideTable]
    now: Epoch


class RowPart(NamedTuple):
    """The neighbouring rows of `part_of`, compared as a whole: the number, and a digest of them.

    The digest is of all that was read of the rows, so that jobs of a part with an equal one are
    known to be unchanged. `is_known`: it is the one that was given, and the page has no jobs.
    """

    number: int
    digest: bytes
    is_known: bool = False


class LoadedPage(NamedTuple):
    """Some rows of one source, read together; the store takes them in one transaction.

    - `jobs`, `skipped` (rows of which no job can be made) and `open` (rows to read again: their
      jobs run, or lack something) are what was found; `partial` is what is known of the latter two;
    - `closed` are rows that were to be read again, and need not be any more, whatever became of
      them: among `jobs` or `skipped` of this page, or gone;
    - `position` is behind the page; None where reading would not go on from there;
    - `restarted`: the position that was given does not fit the source any more, and reading began
      with the first row; runs that are not met until the end are gone;
    - `part`: of a comparison;
    - `rows` is how many rows were read, for the size of transactions.
    """

    source: str
    jobs: Sequence[JobRecord] = ()
    skipped: Sequence[SkippedJob] = ()
    open: Sequence[OpenRow] = ()
    closed: Sequence[RowRef] = ()
    position: Position | None = None
    restarted: bool = False
    partial: Sequence[PartialJob] = ()
    part: RowPart | None = None
    rows: int = 0
