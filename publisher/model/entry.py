"""Entries: what one run counts for at one receiver.

A run has three keys. The *run key* names it with us, wherever its row is. The *record key* names
its record at a receiver that keeps single records. The *row key* names the row of the receiver's
totals that it adds to. An example, of a job that was submitted at 1767225600 and ended an hour
later:

    run     b"\\x69\\x55\\xb9\\x00" + 7 bytes of its JobID's digest + 4 of its LocalJobID's
    record  site EXAMPLE-SITE, prefix '', local id 4711, end 1767229200
    row     month 24312, Site EXAMPLE-SITE, GlobalUserName /CN=ann, VO atlas, ..., Processors 8
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple

from publisher.model.errors import LedgerError
from publisher.model.job import JOB_OF_RUN as JOB_OF_RUN
from publisher.model.job import Epoch
from publisher.model.job import RunKey as RunKey
from publisher.model.job import run_key as run_key

_ROW_DIGEST_BYTES: Final = 12
SHADOW: Final = "shadow"  # the kind of a receiver that nobody has
CLOSING: Final = bytes(4) + b"closing"  # in the place of a job, of an entry of a closed month


class RecordKey(NamedTuple):
    """What a receiver knows a single record by: site, prefix of local ids, local id and end."""

    site: str
    localid_prefix: str
    local_id: str  # without the prefix
    ended_at: Epoch


class RowFields(NamedTuple):
    """The fields under which a receiver adds records up, but for the month.

    `digest` is that of the values as the receiver compares them; `text` has the fields as records
    have them, as JSON: {"Site": "EXAMPLE-SITE", "VO": "atlas", ...}.
    """

    digest: bytes
    text: str

    @classmethod
    def of(cls, named: dict[str, str], compared: tuple[object, ...]) -> "RowFields":
        """Return fields by name, with the digest of the values that the receiver compares."""
        return cls(row_digest(repr(compared)), json.dumps(named, separators=(",", ":")))

    @property
    def named(self) -> dict[str, str]:
        """Return the fields by name. Raises: LedgerError where the text is damaged."""
        return fields_of(self.text)


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of a row by name. Raises: LedgerError where the text is damaged."""
    try:
        found: dict[str, str] = json.loads(text)
    except ValueError as error:
        what = "a row's key cannot be read; restore the last intact backup"
        raise LedgerError(f"the ledger is damaged: {what}") from error
    return found


def row_digest(compared: str) -> bytes:
    """Return the digest of the values that a receiver compares, of their `repr`."""
    return blake2b(compared.encode(), digest_size=_ROW_DIGEST_BYTES).digest()


def closing_run(row_key: int) -> RunKey:
    """Return what names the entry that stands for all of a row, by the row's number."""
    return RunKey(CLOSING + row_key.to_bytes(4))


class RowId(NamedTuple):
    """What tells one row of a receiver from another: its month, and the digest of its fields."""

    month: int
    digest: bytes


class RowKey(NamedTuple):
    """A row of a receiver's totals: its month (12 x year + month - 1, UTC by end) and fields."""

    month: int
    fields: RowFields

    @property
    def id(self) -> RowId:
        return RowId(self.month, self.fields.digest)


class Usage(NamedTuple):
    """How many runs there are, and their wall and CPU time in seconds."""

    jobs: int = 0
    wall_s: int = 0
    cpu_s: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def less(self, other: "Usage") -> "Usage":
        return Usage(self[0] - other[0], self[1] - other[1], self[2] - other[2])


class Entry(NamedTuple):
    """What one run counts for at one receiver. Times are in seconds.

    `digest` is that of the run's own values as its source has them (`JobRecord.values_digest`).
    `jobs` is 0 for a run that shall not count any more.
    """

    run: RunKey
    record: RecordKey
    row: RowKey
    wall_s: int
    cpu_s: int
    digest: bytes
    jobs: int = 1
    source: str = ""  # name of the accounting database that told of the run


class Recorded(NamedTuple):
    """What the ledger has of a run at a receiver: its pending entry, or else the one that counts.

    `settings` is the digest of the settings that the entry was made under. `first` is the number of
    the posting of the run's first entry that was accepted, 0 without any; later ones have higher.
    `source` is the name of the database that told of the run, '' without one.
    """

    run: RunKey
    record: RecordKey
    row: RowId
    usage: Usage
    digest: bytes
    settings: str
    pending: bool
    first: int
    source: str = ""

    @property
    def counts(self) -> bool:
        """Whether the receiver has the run, and counts it."""
        return not self.pending and self.usage.jobs > 0


class DeliveredRun(NamedTuple):
    """A run that was delivered, or is on its way.

    `source` is the accounting data that it came from; `local_id` is '' without one, and the end is
    the one that was sent.
    """

    source: str
    run: RunKey
    local_id: str
    ended_at: Epoch

    @property
    def submitted_at(self) -> int:
        """When it was submitted."""
        return int.from_bytes(self.run[:4], "big")


class RecordedRuns:
    """What a receiver has, or is being sent, of some runs and of other runs of their jobs."""

    def __init__(self, found: Mapping[RunKey, Recorded]) -> None:
        self._found = found
        self._by_job: defaultdict[bytes, list[Recorded]] = defaultdict(list)
        for run, recorded in found.items():
            self._by_job[run[JOB_OF_RUN]].append(recorded)

    def get(self, run: RunKey) -> Recorded | None:
        return self._found.get(run)

    def others(self, run: RunKey) -> Sequence[Recorded]:
        """Return the other runs of the job, but for those that count nothing any more."""
        runs = self._by_job.get(run[JOB_OF_RUN], ())
        return [one for one in runs if one.run != run and (one.pending or one.counts)]

    def is_later_run(self, run: RunKey) -> bool:
        """Whether another run of the job was accepted first: that order never changes."""
        own = self._found.get(run)
        first = own.first if own is not None else 0
        earlier = [one.first for one in self._by_job.get(run[JOB_OF_RUN], ()) if one.run != run]
        return any(number and (not first or number < first) for number in earlier)


class RowTotal(NamedTuple):
    """A row of a receiver's totals: what its entries add up to, and what the receiver was told.

    `sent` is what the last accepted message said of the row, in `format`; '' where none did, as
    for the rows that a receiver makes of single records by itself. Where `is_guess`, another
    publisher is believed to have sent it. The ends are those of the entries, 0 without any.
    """

    key: RowKey
    counts: Usage
    first_end: Epoch
    last_end: Epoch
    sent: Usage = Usage()
    format: str = ""
    is_guess: bool = False

    @property
    def is_unsent(self) -> bool:
        """Return whether the receiver may have been told something else of a row of totals."""
        return bool(self.format) and (self.is_guess or self.sent != self.counts)


class MonthTotals(NamedTuple):
    """All rows of a month at a receiver: what counts, what was said, and what is under way."""

    month: int
    counts: Usage
    sent: Usage
    pending: int  # jobs of entries that are not accepted yet
    format: str  # of the last message that said a row, or is under way; '' for single records
    unsent: int  # rows of totals that are unsent


class FieldChange(NamedTuple):
    """A field of a row's key, as it was sent and as it would be now; '' for no value."""

    field: str
    was: str
    becomes: str


class EarlierRuns(NamedTuple):
    """Runs that a receiver has from other settings than a target has now.

    `months`: how many of them would have another row or record key now, by the month in which they
    count; None where nobody counted since the settings changed. `at_most`: how many there may be.
    `changes`: how many runs have each change of a field; only a plan knows them.
    """

    at_most: int
    months: Mapping[int, int] | None
    counted_at: datetime | None
    changes: Mapping[FieldChange, int] = MappingProxyType({})

    def of_month(self, month: int) -> "EarlierRuns":
        """Return those of a month, as far as it is known which these are."""
        if self.months is None:
            return self
        months = {at: runs for at, runs in self.months.items() if at == month}
        return self._replace(months=months)


class ReceiverName(NamedTuple):
    """A service and place where rows accumulate, and what is counted there.

    `keeps_first`: of two records under one id the first stays; otherwise the later replaces it.
    """

    place: str  # for people, such as `AMS msg.example.org, project accounting, topic gLite-APEL`
    keeps_first: bool = False
    kind: str = ""  # type of the target that leads there, or `SHADOW`

    @property
    def is_shadow(self) -> bool:
        """Whether nobody has it: what is recorded there is sent by another publisher."""
        return self.kind == SHADOW
