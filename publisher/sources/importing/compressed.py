"""Archives as rotation makes them, whatever they are compressed with, as one stream of their content."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst")
# Part of Python since 3.14; the other is the same for those before.
_ZSTD: Final = ("compression.zstd", "backports.zstd")
_MOST_MAGIC: Final = 6


class Stream(Protocol):
    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class Damaged(Exception):
    """The archive is not whole."""


class Unreadable(Exception):
    """Nothing here can decompress it; the text says what is missing."""


class _ReadMode(NamedTuple):
    """How to open one kind of archive, and what reading a damaged one raises."""

    open: Callable[[BinaryIO], Any]
    damage: tuple[type[Exception], ...]


_BY_MAGIC: Final[dict[bytes, _ReadMode]] = {
    b"\x1f\x8b": _ReadMode(lambda raw: gzip.GzipFile(fileobj=raw), (EOFError, gzip.BadGzipFile, zlib.error)),
    b"BZh": _ReadMode(bz2.BZ2File, (EOFError,)),  # and an OSError without a number
    b"\xfd7zXZ\x00": _ReadMode(lzma.LZMAFile, (EOFError, lzma.LZMAError)),
}
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def _way(beginning: bytes) -> _ReadMode | None:
    """None for what is not compressed. Raises: Unreadable."""
    if not beginning.startswith(_ZSTD_MAGIC):
        return next((way for magic, way in _BY_MAGIC.items() if beginning.startswith(magic)), None)
    for name in _ZSTD:
        try:
            module = import_module(name)
        except ImportError:
            continue
        return _ReadMode(module.ZstdFile, (EOFError, module.ZstdError))
    raise Unreadable(
        "is compressed by zstd, which this Python cannot read; install the Python package backports.zstd (the extra zstd of "
        "publisher), or decompress it"
    )


@contextmanager
def decompressed(raw: BinaryIO) -> Iterator[tuple[Stream, bool]]:
    """The content of an open file, and whether that is compressed.

    Raises: Damaged, also out of what is done with it; Unreadable.
    """
    way = _way(raw.read(_MOST_MAGIC))
    raw.seek(0)
    if way is None:
        yield raw, False
        return
    try:
        with way.open(raw) as stream:
            yield stream, True
    except way.damage as error:
        raise Damaged(str(error)) from error
    except OSError as error:
        if error.errno is None:
            raise Damaged(str(error)) from error
        raise
