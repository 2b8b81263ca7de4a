"""What a host keeps beside the ledger, to notice one that went back in time before it sends.

`<state>.+receiver-<digest of the place>.generation` has, for each month, the count and the digest
of what counts at the receiver (model/receiver.py), and names the month before which all are closed,
the last message that this host knows to be delivered, and the last one that it wrote down to be
sent. It is replaced, as a whole, after each transaction that changed one of these: the ledger may
be ahead of it after a crash, and is never behind. A ledger that is behind was restored, lost its
WAL, or is on a PostgreSQL server that lacks the last commits; months that differ then are held
(sql/sums/elsewhere/losses.py). A ledger that had a file, and has none beside it, was restored or
copied to where it is: `--accept-state` goes on with it. The file goes along when a receiver gets
another place.

    a backup of Monday is restored on Friday: the file names a message of Thursday   ->  went back
    file: 20 jobs of 2026-10, ledger: 12 jobs; 2026-09 is the same in both           ->  2026-10
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import month_sums
from publisher.model.errors import LedgerError, refused_by_system
from publisher.model.receiver import MonthSum
from publisher.model.time import Month, epoch
from publisher.model.totals import month_name, month_number

log = logging.getLogger("publisher")

UNFINISHED: Final = -1  # a generation: rows are missing, and nobody can accept that
_GET_VERSION: Final = 0x80087601  # FS_IOC_GETVERSION; Spec: linux/fs.h
_STATE_DIRECTORY: Final = (
    "the state directory must exist, and the user who publishes must be able to write to it"
)
IS_UNFINISHED: Final = (
    "is a copy that was broken off: run the same `publisher state copy` again, "
    "with the configuration of the ledger that it was made of"
)
_HOW_ON: Final = (
    "nothing was sent; put the right ledger in place, or if this is the right one, "
    "and no other host sends from a copy of it, run `publisher publish --accept-state`"
)

_IS_COPY: Final = "SELECT EXISTS (SELECT 1 FROM receiver WHERE generation = -1)"
_POSITION: Final = "SELECT id, generation, mark, closed FROM receiver WHERE place = :place"
# Of the newest only: a receiver that gets so much less than others is as well off without.
_LAST: Final = """
SELECT id, message_id, settled_at FROM message
WHERE id > (SELECT max(id) - 10000 FROM message) AND receiver = :receiver AND state = 2
ORDER BY id DESC LIMIT 1"""
_IS_DELIVERED: Final = """
SELECT EXISTS (SELECT 1 FROM message
               WHERE id = :number AND message_id = :message_id AND state = 2)"""
# A message that was cut in two is gone, and its halves mostly have higher numbers.
_IS_KNOWN: Final = """
SELECT EXISTS (SELECT 1 FROM message WHERE id = :number AND message_id = :message_id)
    OR EXISTS (SELECT 1 FROM message WHERE id > :number AND receiver = :receiver)"""
_FIRST_MONTH: Final = "SELECT min(month) FROM row_key WHERE receiver = :receiver"
_SET: Final = "UPDATE receiver SET generation = 1, mark = :mark WHERE id = :receiver"
_STAYS_CLOSED: Final = """
UPDATE receiver SET closed = :closed WHERE id = :receiver AND closed < :closed"""


class LocalRecord(NamedTuple):
    """What the file says: how far the ledger had come."""

    host: str = ""
    file: str = ""  # which one this is; of another, the directory was restored or copied as a whole
    mark: int = 0  # of the receiver; -1 in a damaged file
    number: int = 0  # of the last message that was delivered; 0 before the first
    message_id: str = ""
    at: int = 0  # epoch, of settling
    begun: int = 0  # the last message that was written down to be sent; 0 where none is on its way
    begun_id: str = ""
    begun_at: int = 0  # epoch, of writing down the last one, whatever became of it
    under_way: tuple[int, ...] = ()  # months of that message
    closed: int = 0  # months before this one are closed; 0: none
    months: Mapping[int, MonthSum] = {}

    @property
    def is_damaged(self) -> bool:
        return self.mark < 0


class LedgerPosition(NamedTuple):
    """Where the ledger stands with a receiver."""

    receiver: int  # its number there
    generation: int  # 0: it has no file yet
    mark: int
    closed: int = 0  # as `LocalRecord` has it


_NOT_THERE: Final = LedgerPosition(receiver=0, generation=0, mark=0)  # a new ledger's


class Lacking(NamedTuple):
    """What a ledger lacks, perhaps: by month what should count, None where nobody knows.

    `mark`: how far the ledger that this host knew had come; `last_at`: when it last handed
    something over, None where nobody knows. `closed`: months before this one were closed.
    """

    why: str
    mark: int
    last_at: int | None
    months: Mapping[int, MonthSum | None]
    closed: int = 0


class GenerationFile:
    """The file of one receiver. Only who holds the receiver's lock writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = LocalRecord()
        self.is_another = False  # the file that was read is a copy of what was written

    @property
    def path(self) -> Path:
        return self._path

    def read(self) -> LocalRecord | None:
        """None where there is no file. Raises: LedgerError."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path, flags), "rb") as file:
                self._known = _unpacked(file.read())
                self.is_another = self._known.file != _identity(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(error) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return LocalRecord(mark=-1)
        return self._known

    def write(self, record: LocalRecord) -> None:
        """Replace it, as a whole, by one that is on the disk. Raises: LedgerError."""
        partial = self._path.with_name(f"{self._path.name}.part")
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            # Of a crash, or a link to a file elsewhere, which another user of the group made.
            partial.unlink(missing_ok=True)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            with open(os.open(partial, flags, 0o600), "wb") as file:
                record = record._replace(file=_identity(file.fileno()))
                file.write(_packed(record))
                file.flush()
                os.fsync(file.fileno())
            is_new = not self._path.exists()
            partial.replace(self._path)
            if is_new:
                sync_directory(self._path.parent)
        except OSError as error:
            raise self._trouble(error) from error
        self._known = record

    def begun(
        self, number: int, message_id: str, months: Iterable[int] = (), at: int | None = None
    ) -> None:
        """A message is written down and may be handed over from now on; 0: none is left."""
        known = self._known._replace(begun=number, begun_id=message_id)
        begun_at = known.begun_at if at is None else at
        self._known = known._replace(begun_at=begun_at, under_way=tuple(sorted(months)))

    def settled(self, number: int, message_id: str, at: int) -> None:
        """A message is delivered."""
        self._known = self._known._replace(number=number, message_id=message_id, at=at)
        if number == self._known.begun:
            self.begun(0, "")

    def counts(self, mark: int, months: Mapping[int, MonthSum], closed: int) -> None:
        """What counts at the receiver has changed, or which months are closed."""
        self._known = self._known._replace(mark=mark, months=months, closed=closed)

    def follow(self) -> None:
        """Write what has changed after the ledger has it: an older file does no harm."""
        with suppress(LedgerError):
            self.write(self._known)

    @contextmanager
    def moving(self, path: Path) -> Iterator[None]:
        """Let it go with its receiver, which gets another place in this block.

        A ledger without its file counts as restored, so there are two until that is done. Raises:
        LedgerError.
        """
        if (known := self.read()) is None:
            yield
            return
        there = GenerationFile(path)
        there.write(known)
        try:
            yield
        except BaseException:
            there.remove()
            raise
        self.remove()
        self._path, self._known = path, there.read() or known

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def _trouble(self, error: OSError) -> LedgerError:
        why = refused_by_system(error, _STATE_DIRECTORY)
        return LedgerError(f"{self._path}: {why}: nothing is lost")


def accepts_nothing(_: str) -> bool:
    return False


def accepting_once(*, accept: bool) -> Callable[[str], bool]:
    """Accepts the ledger of each receiver as the first round finds it, and never again."""
    seen: set[str] = set()

    def accepts(place: str) -> bool:
        first = place not in seen
        seen.add(place)
        return accept and first

    return accepts


class StateGuard(NamedTuple):
    """Compares a ledger with the files beside it."""

    state: Path
    shared: bool  # the ledger is on a server, and other hosts work with it too
    clock: Callable[[], datetime]
    host: str = ""  # this one; '' where that is unknown
    accepts: Callable[[str], bool] = accepts_nothing  # whether to take a ledger as it is

    def file(self, place: str) -> GenerationFile:
        """Return the file of a receiver. Its number is another one in a ledger that begins anew."""
        digest = sha256(place.encode()).hexdigest()[:16]
        name = f"{self.state.name}.+receiver-{digest}.generation"
        return GenerationFile(self.state.with_name(name))

    def has_moved(self, place: str, other: str) -> bool:
        """Return whether the file of a receiver went along when it got another place."""
        return not self.file(place).path.exists() and self.file(other).path.exists()

    def trouble(self, database: Database, place: str) -> str:
        """Why this is not the ledger that this host knows; '' if it is. Only reads.

        Raises: LedgerError.
        """
        if _is_copy(database):
            return IS_UNFINISHED
        file = self.file(place)
        local, ledger = file.read(), position(database, place) or _NOT_THERE
        if trouble := self._trouble(database, file, local, ledger):
            return trouble
        if local is None:
            return ""
        return _lag(database, local, ledger)

    def check(self, database: Database, place: str, file: GenerationFile) -> Lacking | None:
        """Compare the ledger with the file; return what it lacks, None where it is the right one.

        Outside transactions. Raises: LedgerError where nobody can tell.
        """
        if _is_copy(database):
            raise LedgerError(f"the ledger {IS_UNFINISHED}; nothing was sent")
        local, ledger = file.read(), position(database, place) or _NOT_THERE
        if trouble := self._trouble(database, file, local, ledger):
            if not self.accepts(place):
                raise LedgerError(f"the ledger {trouble}; {_HOW_ON}")
            log.warning("accepted: the ledger %s", trouble)
            if local is None or local.is_damaged:
                return Lacking(trouble, ledger.mark, None, self._any_month(database, ledger))
        if local is None or not (why := _lag(database, local, ledger)):
            return None
        mark = max(local.mark, ledger.mark)
        last_at = None if self.shared else max(local.at, local.begun_at)
        return Lacking(why, mark, last_at, _months_lost(database, local, ledger), local.closed)

    def bring_up_to_date(self, database: Database, place: str, file: GenerationFile) -> None:
        """Write the file, unless it says the same as the ledger; what was begun stays so."""
        ledger = position(database, place)
        if ledger is None:
            return
        local = file.read()
        record = self._record(database, ledger)
        if local is not None and not local.is_damaged and _knows_begun(database, local, ledger):
            record = record._replace(
                file=local.file,
                begun=local.begun,
                begun_id=local.begun_id,
                begun_at=local.begun_at,
                under_way=local.under_way,
            )
        if record != local or file.is_another:
            file.write(record)
        if not ledger.generation:
            with database.atomic():
                database.execute(_SET, {"receiver": ledger.receiver, "mark": ledger.mark})

    def _trouble(
        self,
        database: Database,
        file: GenerationFile,
        local: LocalRecord | None,
        ledger: LedgerPosition,
    ) -> str:
        """Return why nobody can tell whether the ledger is the right one; '' where we can."""
        if local is None:
            if not ledger.generation or self.shared:
                return ""
            at = _moment(self._record(database, ledger).at)
            return (
                f"was restored or copied: it was in use before, and {self.state.parent} has no "
                f"record of that; {_HOLDS.format(at=at)}"
            )
        if local.is_damaged:
            what = f"the record of it in {self.state.parent}, which is damaged"
            return f"cannot be compared with {what}; {_HOLDS.format(at='the last backup')}"
        return "" if self.shared else self._trouble_of_place(file, local)

    def _trouble_of_place(self, file: GenerationFile, local: LocalRecord) -> str:
        """Whether a ledger of this host alone was another's, or restored with its file."""
        if "" not in (local.host, self.host) and local.host != self.host:
            return "was in use on another host: it was moved or copied"
        if file.is_another:
            return (
                f"was moved, restored or copied, and the record of it in {self.state.parent} with "
                f"it; if anything was delivered after {_moment(local.at)}, remove {file.path} "
                "first: then what may be delivered is held"
            )
        return ""

    def _any_month(
        self, database: Database, ledger: LedgerPosition
    ) -> Mapping[int, MonthSum | None]:
        """Return every month that may be delivered: nobody knows what should count of them."""
        with database.reading():
            asked = {"receiver": ledger.receiver}
            (first,) = database.execute(_FIRST_MONTH, asked).fetchone()
        last = month_number(epoch(self.clock()))
        first = last if first is None else min(first, last)
        return dict.fromkeys(range(first, last + 1))

    def _record(self, database: Database, ledger: LedgerPosition) -> LocalRecord:
        with database.reading():
            asked = {"receiver": ledger.receiver}
            number, message_id, at = database.execute(_LAST, asked).fetchone() or (0, "", 0)
            months = month_sums.sums(database, ledger.receiver)
        known = LocalRecord(host=self.host, mark=ledger.mark, months=months, closed=ledger.closed)
        return known._replace(number=number, message_id=message_id, at=at)


_HOLDS: Final = "what was delivered after {at} is not known, so all that may have been is held"


def note_lack(database: Database, receiver: int, mark: int, closed: int) -> None:
    """Keep, in the caller's transaction, that the ledger goes on after one that had come so far.

    Months that were closed there stay so: their runs may be delivered.
    """
    database.execute(_SET, {"receiver": receiver, "mark": mark + 1})
    database.execute(_STAYS_CLOSED, {"receiver": receiver, "closed": closed})


def position(database: Database, place: str) -> LedgerPosition | None:
    """Return where the ledger stands with a receiver; None where it knows nothing of it."""
    with database.reading():
        row = database.execute(_POSITION, {"place": place}).fetchone()
    return row and LedgerPosition(*row)


def _is_copy(database: Database) -> bool:
    with database.reading():
        return bool(database.execute(_IS_COPY).fetchone()[0])


def _has_delivered(database: Database, local: LocalRecord) -> bool:
    with database.reading():
        asked = {"number": local.number, "message_id": local.message_id}
        return bool(database.execute(_IS_DELIVERED, asked).fetchone()[0])


def _knows_begun(database: Database, local: LocalRecord, ledger: LedgerPosition) -> bool:
    asked = {"number": local.begun, "message_id": local.begun_id, "receiver": ledger.receiver}
    with database.reading():
        return bool(database.execute(_IS_KNOWN, asked).fetchone()[0])


def _lag(database: Database, local: LocalRecord, ledger: LedgerPosition) -> str:
    """Return what shows that the ledger is behind the file; '' where it is not."""
    if local.number and not _has_delivered(database, local):
        return (
            f"went back in time: it does not have message {local.message_id}, "
            f"delivered at {_moment(local.at)}"
        )
    if local.begun and not _knows_begun(database, local, ledger):
        return f"went back in time: it does not have message {local.begun_id}, which was in flight"
    if local.mark < ledger.mark:
        return ""
    with database.reading():
        differs = month_sums.sums(database, ledger.receiver) != local.months
    if local.mark > ledger.mark or differs:
        return f"went back in time: it is not the one that was in use at {_moment(local.at)}"
    return ""


def _months_lost(
    database: Database, local: LocalRecord, ledger: LedgerPosition
) -> Mapping[int, MonthSum | None]:
    """Return the months that differ, and those of a message in flight that the ledger lacks."""
    with database.reading():
        there = month_sums.sums(database, ledger.receiver)
    months = sorted({*local.months, *there})
    found: dict[int, MonthSum | None] = {
        month: local.months.get(month, MonthSum())
        for month in months
        if local.months.get(month) != there.get(month)
    }
    if local.begun and not _knows_begun(database, local, ledger):
        found |= dict.fromkeys(local.under_way)
    return found


def host_identity(machine_id: Path) -> str:
    """This installation; '' where it does not say. Spec: machine-id(5), which wants it hashed."""
    try:
        text = machine_id.read_text().strip()
    except (OSError, ValueError):
        return ""
    return sha256(f"accounting-publisher {text}".encode()).hexdigest()[:16] if text else ""


def _identity(descriptor: int) -> str:
    """Which file this is, by number and version, neither of which a copy or a backup keeps."""
    version = bytearray(8)
    with suppress(OSError):  # some file systems have no versions
        fcntl.ioctl(descriptor, _GET_VERSION, version)
    return f"{os.fstat(descriptor).st_ino}.{int.from_bytes(version, 'little')}"


def sync_directory(path: Path) -> None:
    """Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _packed(record: LocalRecord) -> bytes:
    months = {
        month_name(month): [one.jobs, one.digest.hex(), one.format]
        for month, one in sorted(record.months.items())
    }
    under_way = list(map(month_name, record.under_way))
    named = record._asdict() | {"months": months, "under_way": under_way}
    return json.dumps(named, indent=0).encode() + b"\n"


def _unpacked(text: bytes) -> LocalRecord:
    """Raises: ValueError and others, for anything else than a record."""
    named = json.loads(text)
    months = {
        _month(name): MonthSum(int(jobs), bytes.fromhex(digest), str(form))
        for name, (jobs, digest, form) in named["months"].items()
    }
    under_way = tuple(map(_month, named["under_way"]))
    return LocalRecord(**named | {"months": months, "under_way": under_way})


def _month(name: str) -> int:
    year, month = map(int, name.split("-"))
    return Month(year, month).number


def _moment(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else "the beginning"
