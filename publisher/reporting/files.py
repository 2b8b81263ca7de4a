"""A file for others, whole or as it was before: written beside its place, synced, renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Final, TextIO

from publisher.model.errors import UsageError
from publisher.transports.directories import new_file, real_path

_MODE: Final = 0o640  # users may be named


@contextmanager
def whole_file(
    path: Path, advice: str = "name another file", *, is_unattended: bool = False
) -> Iterator[TextIO]:
    """A text file to write; it takes its place when the block ends well, and leaves nothing else.

    Its owner and group may read it, unless the umask allows less. A device or a pipe, such as
    /dev/stdout, is written to as it goes, and never replaced by a file. A link is followed only
    where no other user can have put it. `is_unattended`: never where everybody may write.

    Raises: UsageError when it cannot be written there.
    """
    try:
        real_path(path)
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", newline="") as out:
                yield out
            return
        with new_file(path, _MODE, is_unattended=is_unattended) as raw:
            text = TextIOWrapper(raw, encoding="utf-8", newline="")
            yield text
            text.detach()
    except BrokenPipeError:  # whoever reads the pipe has enough
        raise
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path} cannot be written: {reason}; {advice}") from error
