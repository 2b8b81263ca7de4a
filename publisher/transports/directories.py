"""Directories and files that other users cannot turn elsewhere, for root and for a service's user.

A path is walked name by name, and what it led to stays open: nothing that is renamed later counts.
A link is followed where it belongs to this user or root, or where nobody else may write; so is a
directory, which may also be of another user who has it in a directory of his own, such as the node
exporter's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final, NoReturn

_LINKS: Final = 40  # as many as the kernel follows
_STEPS: Final = 4096  # names, those in links included
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """A descriptor of a directory, to make, rename and remove files by. Raises: OSError."""
    descriptor = _walk(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_for_everybody(directory: int, path: Path) -> None:
    """Refuse a directory that everybody may write, sticky or not. Raises: OSError."""
    if os.fstat(directory).st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "everybody may write there (chmod o-w)", str(path))


def refuse_of_others(directory: int, path: Path) -> None:
    """Refuse a directory that neither this user nor root owns. Raises: OSError."""
    if not _is_trusted(os.fstat(directory)):
        raise PermissionError(errno.EPERM, "the directory is of another user", str(path))


def sync(directory: int) -> None:
    """Put the names in a directory on the disk. Raises: OSError."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def real_path(path: Path) -> Path:
    """The file that a path stands for, its links followed. Raises: OSError for a planted one."""
    for _ in range(_LINKS):
        with opened_directory(path.parent) as directory:
            try:
                entry = os.open(path.name, _LOOK, dir_fd=directory)
            except FileNotFoundError:
                return path
            try:
                link = _link(entry, directory, path)
            finally:
                os.close(entry)
        if link is None:
            return path
        path = path.parent / link
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def new_file(path: Path, mode: int, *, is_unattended: bool = False) -> Iterator[BinaryIO]:
    """A file that takes its place when the block ends well, on the disk; else nothing is left.

    `is_unattended`: nobody looks where it is written, so not where everybody may write.

    Raises: OSError.
    """
    path = real_path(path)
    with opened_directory(path.parent) as directory:
        if is_unattended:
            refuse_for_everybody(directory, path.parent)
        name = f".{path.name[:200]}.{token_hex(8)}"
        with replacing(directory, name, directory, path.name, mode) as out:
            yield out


@contextmanager
def replacing(directory: int, name: str, into: int, last: str, mode: int) -> Iterator[BinaryIO]:
    """A new file in one directory that is moved into another one when it is whole.

    Raises: OSError.
    """
    descriptor = os.open(name, _NEW, mode, dir_fd=directory)
    try:
        with open(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(descriptor)
        os.replace(name, last, src_dir_fd=directory, dst_dir_fd=into)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        raise


def _walk(path: Path) -> int:
    """A descriptor of the directory at the end of a path. Raises: OSError."""
    names = deque((Path.cwd() / path).parts)
    here = _root(names)
    try:
        for _ in range(_STEPS):
            if not names:
                return here
            entry = os.open(names.popleft(), _LOOK, dir_fd=here)
            left = entry
            try:
                link = _link(entry, here, path)
                if link is None:
                    here, left = entry, here
            finally:
                os.close(left)
            if link is None:
                _refuse_other_kinds(here, path)
                continue
            names.extendleft(reversed(Path(link).parts))
            if link.startswith("/"):
                os.close(here)
                here = _root(names)
        _refuse_circle(path)
    except BaseException:
        os.close(here)
        raise


def _refuse_circle(path: Path) -> NoReturn:
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _root(names: deque[str]) -> int:
    return os.open(names.popleft(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _refuse_other_kinds(entry: int, path: Path) -> None:
    if not stat.S_ISDIR(os.fstat(entry).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _link(entry: int, directory: int, path: Path) -> str | None:
    """Where a link points, None for anything else. Raises: OSError for what may be planted."""
    found, around = os.fstat(entry), os.fstat(directory)
    is_link = stat.S_ISLNK(found.st_mode)
    if not _is_trusted(found):
        shared = around.st_mode & (0o022 if is_link else stat.S_IWOTH)
        is_directory = stat.S_ISDIR(found.st_mode)
        if (is_link and (shared or not _is_trusted(around))) or (is_directory and shared):
            what = "a link" if is_link else "a directory"
            where = "in a directory that others may write"
            raise PermissionError(errno.EPERM, f"{what} of another user, {where}", str(path))
    return os.readlink("", dir_fd=entry) if is_link else None


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())
