"""A file for others that is whole or as it was before: written beside its place, synced, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import TextIO

from publisher.model.errors import UsageError


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[TextIO]:
    """A text file to write; it takes its place when the block ends well, and leaves nothing behind when it does not.

    A device or a pipe, such as /dev/stdout, is written to as it goes, and never replaced by a file.

    Raises: UsageError when it cannot be written there.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", newline="") as out:
                yield out
            return
        path = path.resolve()  # of a link the file is replaced, and not the link
        descriptor, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as out:
                yield out
                out.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except BrokenPipeError:  # whoever reads the pipe has enough
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; name another file") from error
