"""Messages as files: each appears whole and for good, or not at all, its name decided by its id.

So a message handed over again, after a crash before its receipt was recorded, is the same file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from publisher.model.errors import ConfigError, LedgerError, refused_by_system
from publisher.model.message import Message
from publisher.transports.base import (
    REFUSED,
    SET_ASIDE,
    Credentials,
    Environment,
    Receipt,
    Step,
    Verdict,
    batch_bytes_problem,
    own_options,
)
from publisher.transports.credentials.host_certificate import may_be_open
from publisher.transports.credentials.smime import Signer, unsafe_reason
from publisher.transports.http.exchange import plain
from publisher.transports.spool import Layout, Options

_SIGNATURE_BYTES: Final = 8_192  # room for the one that somebody else will make
_DIRQ_GRANULARITY_S: Final = 60
_DIRQ_NAMES: Final = 16
_ATTEMPTS: Final = 3
_ONE_FILE_SYSTEM: Final = "must be on one file system: write a directory below it as `path`"


class SpoolTransport:
    """A `Transport` into a directory, in which nothing is made before the first message.

    What a receiver takes unsigned stays as it is.
    """

    def __init__(self, options: object, credentials: Credentials, world: Environment) -> None:
        """Raises: ConfigError for wrong options; CredentialError for what cannot sign."""
        options = self._options = own_options(options, Options)
        if problem := batch_bytes_problem(options.batch_bytes):
            raise ConfigError(f"`batch_bytes`: {problem}")
        self._signer: Signer | None = None
        if options.sign is not False:
            allow_open = options.allow_open_key or may_be_open(credentials.key, world.environment)
            self._signer = Signer(credentials, world.now(), allow_open_key=allow_open)
        self._signed = world.signed
        self._state_directory = world.state_directory
        self._staging = options.path / ".new"
        if options.layout is Layout.FLAT:
            # ssmsend takes whatever is in a flat directory for a message, hidden files and
            # directories too (SSM 4.0.0).
            self._staging = options.path.with_name(f"{options.path.name}.new")

    def payload_limit(self) -> int:
        """The largest payload whose signed form, in base64, fits AMS, where such files end."""
        around = self._signer.signed_size(0) if self._signer else _SIGNATURE_BYTES
        return max(0, self._options.batch_bytes // 4 * 3 - around)

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Write one message. Raises: CredentialError before it, when the certificate has ended."""
        is_signed = self._signed(message.format)
        signer = self._signer if is_signed else None
        if signer:
            signer.check(now)
        if is_signed and (why := unsafe_reason(message.payload)):
            return Receipt(Verdict.REFUSED, reason=plain(why), exit_status=SET_ASIDE, attempts=0)
        size, limit = len(message.payload), self.payload_limit()
        if size > limit:
            reason = f"{size} bytes are over the limit of {limit} (from `batch_bytes`)"
            return Receipt(Verdict.TOO_LARGE, reason=reason, exit_status=REFUSED, attempts=0)
        content = signer.sign(message.payload) if signer else message.payload
        try:
            name = self._put(message, content)
        except _Unsynced as error:
            return self._failed(error.why, Verdict.IN_DOUBT)
        except OSError as error:
            return self._failed(error, Verdict.RETRY_LATER)
        return Receipt(verdict=Verdict.DELIVERED, remote_id=name, bytes_sent=len(content))

    @property
    def _both(self) -> str:
        return f"{self._options.path} and {self._staging}"

    def _failed(self, error: OSError, verdict: Verdict) -> Receipt:
        advice = f"let this user write into {self._both}, and publish again"
        if error.errno == errno.EXDEV:
            advice = f"{self._both} {_ONE_FILE_SYSTEM}"
        why = refused_by_system(error, advice)
        reason = plain(f"{error.filename or self._options.path}: {why}: nothing is lost")
        return Receipt(verdict=verdict, reason=reason, exit_status=LedgerError.exit_status)

    def preflight(self) -> tuple[Step, ...]:
        """Whether files could be put there, found out without making one."""
        for path in (self._options.path, self._staging):
            if problem := self._problem(path):
                return (Step("directory", plain(problem), LedgerError.exit_status),)
        if self._options.layout is Layout.FLAT and self._options.path.is_mount():
            problem = f"{self._both} {_ONE_FILE_SYSTEM}"
            return (Step("directory", plain(problem), LedgerError.exit_status),)
        return (Step("directory", plain(f"files can be put into {self._options.path}")),)

    def _problem(self, path: Path) -> str:
        """Why nothing can be put into a directory, or ''."""
        there = path.exists()
        if there and not path.is_dir():
            return f"{path} is not a directory"
        made_before = {self._options.path, self._state_directory}
        if not there and not path.parent.is_dir() and path.parent not in made_before:
            return f"{path} cannot be made: {path.parent} does not exist"
        deciding = path if there else path.parent
        denied = deciding.exists() and not os.access(deciding, os.W_OK | os.X_OK)
        return f"this user may not write into {deciding}" if denied else ""

    def warnings(self, now: datetime) -> list[str]:
        """Certificates that end within 30 days, and signatures that ssmsend would sign again."""
        found = self._signer.warnings(now) if self._signer else []
        if self._options.layout is Layout.DIRQ and self._options.sign is None:
            found.append(
                "messages are signed, and ssmsend, which reads dirq queues, would sign them again "
                "so that APEL refuses them: "
                "say `sign: false` if it is ssmsend that sends them, else `sign: true`"
            )
        return found

    def close(self) -> None:
        """Nothing is open."""

    def _put(self, message: Message, content: bytes) -> str:
        """The file's name below the directory. Raises: OSError, _Unsynced."""
        root = self._options.path
        _make_directory(root)
        if root.stat().st_mode & stat.S_IWOTH:
            raise PermissionError(errno.EPERM, "everybody may write there (chmod o-w)", str(root))
        body = message.payload.replace(b"\r\n", b"\n")
        for name in self._names(message):
            path = root / name
            there = _content(path)
            if there is not None and body in there.replace(b"\r\n", b"\n"):
                _sync_entry(path)  # it may have come just before the power went
                return name
            if there is None or self._options.layout is Layout.FLAT:
                self._write(path, content, message.target)
                return name
        raise FileExistsError(None, "every name for this message is taken", str(root))

    def _write(self, path: Path, content: bytes, target: str) -> None:
        _make_directory(self._staging)
        _refuse_planted(self._staging)
        new = self._staging / f"{target}.tmp"  # one publisher at a time works on a target
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(new, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        for attempt in range(_ATTEMPTS):
            _make_directory(path.parent)
            if path.parent.is_symlink():
                _refuse_planted(path.parent)
            try:
                os.replace(new, path)  # a rename, and nothing that looks after the two ends
                break
            except FileNotFoundError:  # its readers clear empty directories of a queue away
                if attempt == _ATTEMPTS - 1:
                    raise
        _sync_entry(path)

    def _names(self, message: Message) -> Iterator[str]:
        """Names for a message, of which the first free one counts; one only in a flat directory."""
        if self._options.layout is Layout.FLAT:
            yield re.sub(r"[^A-Za-z0-9_-]", "-", message.id)
            return
        seconds = int(message.made_at.timestamp())
        digest = int(sha256(message.id.encode()).hexdigest()[:6], 16)
        for step in range(_DIRQ_NAMES):
            last = (digest + step) & 0xFFFFFF
            yield f"{seconds - seconds % _DIRQ_GRANULARITY_S:08x}/{seconds:08x}{last:06x}"


create: Final = SpoolTransport


def _make_directory(path: Path) -> None:
    """One directory, closed to others, unless it is there. Raises: OSError."""
    if path.is_dir():
        return
    path.mkdir(mode=0o700, exist_ok=True)
    _sync_directory(path.parent)


def _refuse_planted(path: Path) -> None:
    """A link or directory that another user can have put in our way. Raises: OSError."""
    if path.parent.stat().st_mode & 0o022 and path.lstat().st_uid not in (0, os.geteuid()):
        why = "it is of another user, in a directory that others may write"
        raise PermissionError(errno.EPERM, why, str(path))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Unsynced(Exception):
    """The file is there for whoever looks, but may be gone after a power cut."""

    def __init__(self, why: OSError) -> None:
        super().__init__(str(why))
        self.why = why


def _sync_entry(path: Path) -> None:
    """Raises: _Unsynced."""
    try:
        _sync_directory(path.parent)
    except OSError as error:
        raise _Unsynced(error) from error


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
