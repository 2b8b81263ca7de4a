"""Messages as files: each appears whole and for good, or not at all, its name decided by its id.

So a message handed over again, after a crash before its receipt was recorded, is the same file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
from publisher.transports.directories import (
    opened_directory,
    refuse_for_everybody,
    refuse_of_others,
    replacing,
    sync,
)
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
        try:
            with opened_directory(deciding) as directory:
                if there:
                    _refuse_unsafe(directory, path)
        except FileNotFoundError:
            return ""  # the queue's directory, which is made with the one in it
        except OSError as error:
            return f"{path}: {error.strerror or error}"
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
        with _own_directory(root) as directory:
            body = message.payload.replace(b"\r\n", b"\n")
            for name in self._names(message):
                there = _content(directory, name)
                if there is not None and body in there.replace(b"\r\n", b"\n"):
                    # It may have come just before the power went.
                    with opened_directory((root / name).parent) as parent:
                        _sync_entry(parent)
                    return name
                if there is None or self._options.layout is Layout.FLAT:
                    self._write(root / name, content, message.target)
                    return name
        raise FileExistsError(None, "every name for this message is taken", str(root))

    def _write(self, path: Path, content: bytes, target: str) -> None:
        with _own_directory(self._staging) as staging:
            new = f"{target}.tmp"  # one publisher at a time works on a target
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=staging)
            for attempt in range(_ATTEMPTS):
                try:
                    with (
                        _own_directory(path.parent) as parent,
                        replacing(staging, new, parent, path.name, 0o600) as file,
                    ):
                        file.write(content)
                    break
                except FileNotFoundError:  # its readers clear empty directories of a queue away
                    if attempt == _ATTEMPTS - 1:
                        raise
        with opened_directory(path.parent) as parent:
            _sync_entry(parent)

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


@contextmanager
def _own_directory(path: Path) -> Iterator[int]:
    """One directory, made and closed to others unless it is there. Raises: OSError."""
    with opened_directory(path.parent) as parent, suppress(FileExistsError):
        os.mkdir(path.name, mode=0o700, dir_fd=parent)
        sync(parent)
    with opened_directory(path) as directory:
        _refuse_unsafe(directory, path)
        yield directory


def _refuse_unsafe(directory: int, path: Path) -> None:
    """Refuse a directory in which others decide what is sent. Raises: OSError."""
    refuse_of_others(directory, path)
    refuse_for_everybody(directory, path)


class _Unsynced(Exception):
    """The file is there for whoever looks, but may be gone after a power cut."""

    def __init__(self, why: OSError) -> None:
        super().__init__(str(why))
        self.why = why


def _sync_entry(directory: int) -> None:
    """Raises: _Unsynced."""
    try:
        sync(directory)
    except OSError as error:
        raise _Unsynced(error) from error


def _content(directory: int, name: str) -> bytes | None:
    """What a message's file holds; nothing for a link, which is none of ours. Raises: OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return b""
        raise
    with open(descriptor, "rb") as file:
        return file.read()
