"""Receivers, as the ledger knows them: the services and places where what is sent accumulates.

A receiver has a number and a name of its own: its address may change, and targets may be renamed or
meet there. An example: receiver 1, `egi`, of the kind `ams`, at `https://msg.argo.grnet.gr, project
accounting, topic gLite-APEL`. What a shadow records is at a receiver of its own, of the kind
`shadow`, which nobody has.

What counts of a month at a receiver is one number of jobs and one digest. That is a sum, so that it
does not depend on any order and follows each entry that begins or ceases to count: that of a row
adds its entries up, that of a month its rows.

    row     sum of blake2b(run, jobs, wall, CPU, end, prefix)   modulo 2^128
    month   sum of blake2b(key of the row) x digest of the row  modulo 2^128

The prefix of local ids is that of a single record which others replace by their record key; of
totals, and where the first record of an id stays, it is ''.

What is held back from a receiver waits for an administrator: a run, or a whole row that would stay
there or lose jobs. A round writes a hold down with what people were shown. It ends when the entry
of its run counts, when nothing is to change any more, or when its accounting data does not have the
run any more: then the run is set aside, and an administrator drops it.
"""

import struct
from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Final, NamedTuple

from publisher.model.entry import SHADOW, Entry, RecordKey, RowId, RowTotal, RunKey, Usage
from publisher.model.job import Epoch, JobId
from publisher.model.text import plural
from publisher.model.totals import KeyTotal, month_name

# The rule under which a run is set aside that was held, and that its source does not have any more.
NOT_FOUND: Final = "held-and-not-found"
# The same of a run that waited in a job store that was lost.
WAITED: Final = "waited-and-not-found"
OTHERS: Final = RunKey(b"")  # in the place of a run: those that are only counted
_BYTES: Final = 16
_MODULUS: Final = 1 << 8 * _BYTES
_COUNTS_FOR: Final = struct.Struct(">4q")


class KnownReceiver(NamedTuple):
    """A receiver of the ledger."""

    number: int
    name: str  # of the target that made it
    address: str
    kind: str  # type of that target, or `SHADOW`

    @property
    def is_shadow(self) -> bool:
        return self.kind == SHADOW


class ReceiverSums(NamedTuple):
    """A receiver with what counts there, what is in doubt, and when messages were accepted."""

    receiver: KnownReceiver
    runs: int
    in_doubt: int  # records of messages without a receipt
    first_delivery: datetime | None
    last_delivery: datetime | None
    closed: int  # months before this one are closed; 0 for none


class ChangedAddress(NamedTuple):
    """A target that has delivered to a receiver, and now has an address that no receiver has."""

    target: str
    receiver: KnownReceiver
    runs: int  # that count there
    address: str

    @property
    def text(self) -> str:
        """Return what is so."""
        number, name, was, _ = self.receiver
        runs = plural(self.runs, "run counts", "runs count")
        return (
            f"it leads to {self.address}, which is no receiver's address, and {runs} at {was} "
            f"(receiver {number}, {name}): nothing is sent"
        )

    @property
    def advice(self) -> str:
        """Return the two answers."""
        return (
            f"`publisher receiver same {self.target}` if that service moved, with all that it has; "
            f"`publisher receiver new {self.target}` if this is another place: everything that is "
            "wanted is sent there"
        )

    @property
    def question(self) -> str:
        """Return what an administrator is asked; until it is answered, the target stops."""
        return f"target {self.target}: {self.text}; {self.advice}"


class MovedMonth(NamedTuple):
    """A month of which what a shadow recorded counts at the receiver of its target now."""

    month: int  # 12 x year + month - 1
    runs: int
    shadow: KnownReceiver
    receiver: KnownReceiver

    @property
    def text(self) -> str:
        runs = plural(self.runs, "run that its shadow", "runs that its shadow")
        return (
            f"{month_name(self.month)}: {runs} recorded (receiver {self.shadow.number}) now count "
            f"at {self.receiver.address} (receiver {self.receiver.number}), as another publisher "
            "sent them; nothing of them is sent again"
        )


def name_of(target: str, taken: frozenset[str]) -> str:
    """Return a name that is free for a receiver that a target makes: egi, egi-2, egi-3."""
    names = [target, *(f"{target}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


class RowSum(NamedTuple):
    """What entries of a row add up to; of those that cease to count it is less than 0."""

    jobs: int = 0
    digest: int = 0


class MonthSum(NamedTuple):
    """How many jobs count in a month, and the digest of all of it.

    `format`: of the totals in which the month goes on, '' where it is of single records.
    """

    jobs: int = 0
    digest: bytes = bytes(_BYTES)
    format: str = ""

    def plus(self, row: bytes, of_row: RowSum) -> "MonthSum":
        """Add what entries of a row add up to; `row`: the digest of its key."""
        weight = int.from_bytes(blake2b(row, digest_size=_BYTES).digest())
        digest = (int.from_bytes(self.digest) + weight * of_row.digest) % _MODULUS
        return self._replace(jobs=self.jobs + of_row.jobs, digest=digest.to_bytes(_BYTES))


class Loss(NamedTuple):
    """A month of which the ledger may lack something: it was restored, or lost and made anew.

    `noticed_at`: what was submitted before may be delivered. `last_at`: nothing was handed over
    later. `before`: what counted at the receiver. Both are None where this host does not know.
    `counted`: what the ledger has.
    """

    month: int
    noticed_at: Epoch
    last_at: Epoch | None
    before: MonthSum | None
    counted: MonthSum


def entry_digest(run: bytes, jobs: int, wall_s: int, cpu_s: int, ended_at: int, prefix: str) -> int:
    """Return what an entry adds to the digest of its row (hot path).

    `prefix`: the one under which other records replace its single record; '' for totals.
    Raises: struct.error for what is no number.
    """
    counts_for = _COUNTS_FOR.pack(jobs, wall_s, cpu_s, ended_at)
    values = run + counts_for + prefix.encode()
    return int.from_bytes(blake2b(values, digest_size=_BYTES).digest())


class HeldRun(NamedTuple):
    """A run that waits, with what it would count for. `month`: where people find it."""

    entry: Entry
    job: JobId
    month: int
    reason: str


class WaitingRun(NamedTuple):
    """A run that waits in the job store, as it would be sent; `jobs` of `OTHERS` are many.

    `mark`: the last one of the store by then. `digest`: of the run's values. Times in seconds.
    """

    run: RunKey
    mark: str
    digest: bytes = b""
    job_id: JobId = JobId("")
    local_id: str = ""
    ended_at: Epoch = Epoch(0)
    wall_s: int = 0
    cpu_s: int = 0
    jobs: int = 1


class HeldRow(NamedTuple):
    """A row that waits whole, with what counts in it; `shown`: digest of what people saw of it."""

    row: RowId
    counts: Usage
    reason: str
    shown: bytes


class HeldBack(NamedTuple):
    """The runs of an open posting that leave rows, and wait: why, by row, and their jobs' ids."""

    reasons: Mapping[RowId, str]
    jobs: Mapping[RunKey, JobId]
    at: datetime


def shown(row: KeyTotal, lost_jobs: int = 0) -> bytes:
    """Return a digest of a row that waits as people read it, with how many jobs would be lost."""
    return blake2b(repr((tuple(row), lost_jobs)).encode(), digest_size=8).digest()


class LeftRecord(NamedTuple):
    """A single record that stays at the receiver, and its row."""

    key: RecordKey
    row: KeyTotal  # with the usage of the record alone


class LeftMonth(NamedTuple):
    """What stays of a month at a receiver until it is deleted there, though it is not to count.

    `rows` have what the receiver has under their keys; those without a format are made of single
    records. `records` stay under an earlier key.
    """

    month: int
    receiver: int  # its number in the ledger
    rows: tuple[RowTotal, ...]
    records: tuple[LeftRecord, ...]
