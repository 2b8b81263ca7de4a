"""A file for others, whole or as it was before: written beside its place, synced, renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final, TextIO

from publisher.model.errors import UsageError

_MODE: Final = 0o640  # users may be named
_LINKS: Final = 40  # as many as the kernel follows


@contextmanager
def whole_file(path: Path, advice: str = "name another file") -> Iterator[TextIO]:
    """A text file to write; it takes its place when the block ends well, and leaves nothing else.

    Its owner and group may read it, unless the umask allows less. A device or a pipe, such as
    /dev/stdout, is written to as it goes, and never replaced by a file. A link is followed only
    where no other user can have put it.

    Raises: UsageError when it cannot be written there.
    """
    try:
        target = _target(path)
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", newline="") as out:
                yield out
            return
        path = target
        temporary = path.with_name(f".{path.name[:200]}.{token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as out:
                yield out
                out.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except BrokenPipeError:  # whoever reads the pipe has enough
        raise
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path} cannot be written: {reason}; {advice}") from error


def _target(path: Path) -> Path:
    """What a link points to: that file is replaced, and not the link. Raises: OSError."""
    for _ in range(_LINKS):
        if not path.is_symlink():
            return path
        if path.parent.stat().st_mode & 0o022 and path.lstat().st_uid not in (0, os.geteuid()):
            reason = "a link of another user, in a directory that others may write"
            raise PermissionError(errno.EPERM, reason, str(path))
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
