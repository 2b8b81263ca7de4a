"""What a host keeps beside the ledger, to notice one that went back in time before it sends.

`<state>.<target>.generation` names the last message that this host knows to be delivered, and the
last one that it wrote down to be sent. A restored older ledger, one without its WAL, and a
PostgreSQL server that lacks the last commits do not have these messages. The ledger is written
first, so after a crash it may be ahead of the file, never behind it. The ledger holds the
generation in turn: a ledger that has one, without a file beside it, was restored or copied to where
it is. `--accept-state` begins a new generation.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from publisher.ledger.sql.database import Database
from publisher.model.errors import LedgerError, refused_by_system
from publisher.model.text import plural

log = logging.getLogger("publisher")

UNFINISHED: Final = -1  # a generation: rows are missing, and nobody can accept that
_BYTES: Final = 512  # a sector: overwritten in place, as a whole or not at all
_GET_VERSION: Final = 0x80087601  # FS_IOC_GETVERSION; Spec: linux/fs.h
STATE_DIRECTORY: Final = "the state directory must exist and belong to the user who publishes"
_HOW_ON: Final = (
    "nothing was sent; put the right ledger in place, or if this is the right one, "
    "and no other host sends from a copy of it, run `publisher publish --accept-state`"
)
IS_UNFINISHED: Final = (
    "is a copy that was broken off: run the same `publisher state copy` again, "
    "with the configuration of the ledger that it was made of"
)

_POSITION = """
SELECT id, generation, accepted_messages, accepted_records FROM target WHERE name = :name"""
# Of the newest only: a target that sends so much less than others is as well off without.
_LAST = """
SELECT id, message_id, settled_at FROM message
WHERE id > (SELECT max(id) - 10000 FROM message) AND target = :target AND state = 2
ORDER BY id DESC LIMIT 1"""
_IS_DELIVERED = """
SELECT EXISTS (SELECT 1 FROM message
               WHERE id = :number AND message_id = :message_id AND state = 2)"""
# The file is not synced: after a power failure it may name a message that was cut in two, whose
# halves mostly have higher numbers.
_IS_KNOWN = """
SELECT EXISTS (SELECT 1 FROM message WHERE id = :number AND message_id = :message_id)
    OR EXISTS (SELECT 1 FROM message WHERE id > :number AND target = :target)"""
_SET = "UPDATE target SET generation = :generation WHERE name = :name"


class LocalRecord(NamedTuple):
    """What the file says: how far the ledger had come."""

    generation: int = 0
    host: str = ""
    file: str = ""  # which one this is; of another, the directory was restored or copied as a whole
    number: int = 0  # 0 before the first message, -1 in a damaged file
    message_id: str = ""
    at: int = 0  # epoch, of settling
    messages: int = 0  # accepted by then, and their records
    records: int = 0
    begun: int = 0  # the last message that was written down to be sent; 0 where none is on its way
    begun_id: str = ""


class LedgerPosition(NamedTuple):
    """Where the ledger stands with a target."""

    target: int  # its number there
    generation: int  # 0: none yet
    messages: int  # accepted
    records: int


class GenerationFile:
    """The file of one target. Only who holds the target's lock writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._known = LocalRecord()
        self.is_another = False  # the file that was read is a copy of what was written

    def read(self) -> LocalRecord | None:
        """None where there is no file. Raises: LedgerError."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path, flags), "rb") as file:
                self._known = LocalRecord(**json.loads(file.read()))
                self.is_another = self._known.file != _identity(file.fileno())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble(error) from error
        except (ValueError, TypeError):
            return LocalRecord(number=-1)
        return self._known

    def write(self, record: LocalRecord) -> None:
        """Anew, and on the disk when this returns. Raises: LedgerError."""
        self.close()
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
            partial.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise self._trouble(error) from error
        self._known = record

    def begun(self, number: int, message_id: str) -> None:
        """A message is written down and may be handed over from now on; 0: none is left."""
        self._overwrite(self._known._replace(begun=number, begun_id=message_id))

    def delivered(
        self,
        number: int,
        message_id: str,
        at: int,
        records: int,
        begun: tuple[int, str] | None = None,
    ) -> None:
        """One message more; `begun`, number and id: another was written down at the same time."""
        known = self._known
        record = known._replace(
            number=number,
            message_id=message_id,
            at=at,
            messages=known.messages + 1,
            records=known.records + records,
        )
        if begun is not None:
            record = record._replace(begun=begun[0], begun_id=begun[1])
        self._overwrite(record)

    def _overwrite(self, record: LocalRecord) -> None:
        """Nothing is synced: an older file does no harm, the next round brings it up (hot path)."""
        self._known = record
        with suppress(OSError):
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags)
            os.pwrite(self._descriptor, _packed(record), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _trouble(self, error: OSError) -> LedgerError:
        why = refused_by_system(error, STATE_DIRECTORY)
        return LedgerError(f"{self._path}: {why}: nothing is lost")


def accepts_nothing(_: str) -> bool:
    return False


def accepting_once(*, accept: bool) -> Callable[[str], bool]:
    """Accepts the ledger of each target as the first round finds it, and never again."""
    seen: set[str] = set()

    def accepts(target: str) -> bool:
        first = target not in seen
        seen.add(target)
        return accept and first

    return accepts


class StateGuard(NamedTuple):
    """Holds a ledger against the files beside it."""

    state: Path
    shared: bool  # the ledger is on a server, and other hosts work with it too
    host: str = ""  # this one; '' where that is unknown
    accepts: Callable[[str], bool] = accepts_nothing  # whether to take a target's ledger as it is

    def file(self, target: str) -> GenerationFile:
        return GenerationFile(self.state.with_name(f"{self.state.name}.{target}.generation"))

    def trouble(self, database: Database, target: str) -> str:
        """Why no round would begin; '' where one would. Only reads. Raises: LedgerError."""
        file = self.file(target)
        return self._trouble(database, file, file.read(), _position(database, target))

    def check(self, database: Database, target: str, file: GenerationFile) -> None:
        """Hold the ledger against the file, and bring both up to date.

        With the target's lock, outside transactions. Raises: LedgerError when the ledger is not the
        one that this host knows.
        """
        local, ledger = file.read(), _position(database, target)
        accepts = self.accepts(target)
        if ledger is not None and ledger.generation == UNFINISHED:
            raise LedgerError(f"target {target}: the ledger {IS_UNFINISHED}; nothing was sent")
        trouble = self._trouble(database, file, local, ledger)
        if trouble and not accepts:
            raise LedgerError(f"target {target}: the ledger {trouble}; {_HOW_ON}")
        if trouble:
            log.warning("target %s: accepted: the ledger %s", target, trouble)
        elif ledger is None:
            return
        known = [each.generation for each in (ledger, local) if each]
        generation = max([*known, 1]) + bool(trouble)
        # In this order: a file may be of a higher generation, and a ledger that has one needs it.
        kept = None if trouble else local
        self._bring_up_to_date(database, file, kept, ledger, generation)
        if ledger is not None and ledger.generation != generation:
            with database.atomic():
                database.execute(_SET, {"name": target, "generation": generation})

    def _bring_up_to_date(
        self,
        database: Database,
        file: GenerationFile,
        kept: LocalRecord | None,
        ledger: LedgerPosition | None,
        generation: int,
    ) -> None:
        """Write the file, unless what is kept of it says the same; what was begun stays so."""
        messages = ledger and ledger.messages
        if kept is not None and (kept.generation, kept.messages) == (generation, messages):
            return
        record = self._record(database, ledger, generation)
        if kept is not None:
            record = record._replace(begun=kept.begun, begun_id=kept.begun_id)
        file.write(record)

    def _trouble(
        self,
        database: Database,
        file: GenerationFile,
        local: LocalRecord | None,
        ledger: LedgerPosition | None,
    ) -> str:
        if ledger is not None and ledger.generation == UNFINISHED:
            return IS_UNFINISHED
        if local is None:
            if ledger is None or not ledger.generation or self.shared:
                return ""
            at = _moment(self._record(database, ledger, 0).at)
            return (
                f"was restored or copied: it was in use before, and {self.state.parent} has no "
                f"record of that; what was delivered after {at} would be sent again"
            )
        if local.number < 0:
            where = self.state.parent
            return f"cannot be compared with the record of it in {where}, which is damaged"
        if not self.shared and (trouble := self._trouble_of_place(file, local)):
            return trouble
        ahead = ledger is not None and local.generation < ledger.generation
        accepted_by_another = self.shared and ahead
        return "" if accepted_by_another else _trouble_in_time(database, local, ledger)

    def _trouble_of_place(self, file: GenerationFile, local: LocalRecord) -> str:
        """Whether a ledger of this host alone was another's, or restored with its file."""
        if "" not in (local.host, self.host) and local.host != self.host:
            return "was in use on another host: it was moved or copied"
        if file.is_another:
            return (
                f"was restored or copied, and the record of it in {self.state.parent} with it; "
                f"what was delivered after {_moment(local.at)} would be sent again"
            )
        return ""

    def _record(
        self, database: Database, ledger: LedgerPosition | None, generation: int
    ) -> LocalRecord:
        if ledger is None:
            return LocalRecord(generation=generation, host=self.host)
        with database.reading():
            last = database.execute(_LAST, {"target": ledger.target}).fetchone() or (0, "", 0)
        return LocalRecord(
            generation=generation,
            host=self.host,
            number=last[0],
            message_id=last[1],
            at=last[2],
            messages=ledger.messages,
            records=ledger.records,
        )


def _position(database: Database, target: str) -> LedgerPosition | None:
    """None for a target of which the ledger knows nothing."""
    with database.reading():
        row = database.execute(_POSITION, {"name": target}).fetchone()
    return row and LedgerPosition(*row)


def _has_delivered(database: Database, local: LocalRecord) -> bool:
    with database.reading():
        asked = {"number": local.number, "message_id": local.message_id}
        return bool(database.execute(_IS_DELIVERED, asked).fetchone()[0])


def _knows_begun(database: Database, local: LocalRecord, ledger: LedgerPosition) -> bool:
    asked = {"number": local.begun, "message_id": local.begun_id, "target": ledger.target}
    with database.reading():
        return bool(database.execute(_IS_KNOWN, asked).fetchone()[0])


def _trouble_in_time(database: Database, local: LocalRecord, ledger: LedgerPosition | None) -> str:
    if local.number and (ledger is None or not _has_delivered(database, local)):
        return _went_back(local, ledger)
    if local.begun and (ledger is None or not _knows_begun(database, local, ledger)):
        return (
            f"went back in time: it does not have message {local.begun_id}, which was in flight; "
            "if that arrived, its records would be sent again"
        )
    return ""


def _went_back(local: LocalRecord, ledger: LedgerPosition | None) -> str:
    messages = local.messages - (ledger.messages if ledger else 0)
    records = local.records - (ledger.records if ledger else 0)
    missing = "what is missing"
    if messages > 0:
        missing = f"{plural(messages, 'message')} with {plural(records, 'record')}"
    return (
        f"went back in time: it does not have message {local.message_id}, "
        f"delivered at {_moment(local.at)}; {missing} would be sent again"
    )


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
    return json.dumps(record._asdict()).ljust(_BYTES - 1).encode() + b"\n"


def _moment(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else "the beginning"
