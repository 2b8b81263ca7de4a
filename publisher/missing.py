"""Accounting databases that a target's rounds have read and that are not there any more: jobs may be lost with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from shlex import quote

from publisher.ledger.base import KnownDatabase, Ledger
from publisher.sources.base import Absent, Source

_INODES = 2**63  # what SQLite's integers hold; some file systems number beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A database, or a name or pattern of the configuration that stands for none, and what to do about it."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Those that are there, by name with their inodes; those that are missing; those that were renamed or came back."""

    there: Mapping[str, int]
    missing: Sequence[Missing]
    renamed: Mapping[str, str]
    returned: Sequence[str]


def look_for_databases(target: str, source: Source, ledger: Ledger) -> Databases:
    """What became of the databases that a target's rounds have read. Raises: SourceError, LedgerError."""
    known = ledger.known_databases(target)
    there = {name: os.stat(name).st_ino % _INODES for name in source.databases() if os.path.exists(name)}
    real = {os.path.realpath(name) for name in there}
    lost = [one for one in known if one.retired is None and os.path.realpath(one.file) not in real]
    renamed = {one.file: name for one in lost if (name := _new_name(one, there, source, ledger))}
    missing = [_missing(one) for one in lost if one.file not in renamed]
    missing += [
        Missing(file=absent.patterns[0], reason=absent.reason)
        for absent in source.absent()
        if not _knows_of(known, absent)
    ]
    return Databases(
        there=there,
        missing=missing,
        renamed=renamed,
        returned=[one.file for one in known if one.retired is not None and one.file in there],
    )


def missing_databases(target: str, source: Source, ledger: Ledger) -> Sequence[Missing]:
    """Raises: SourceError, LedgerError."""
    return look_for_databases(target, source, ledger).missing


def said_of(missing: Sequence[Missing]) -> str:
    """In one line."""
    return "; ".join(one.reason for one in missing)


def _new_name(lost: KnownDatabase, there: Mapping[str, int], source: Source, ledger: Ledger) -> str | None:
    """The name that the same file has now. The row that was read last stands in it too: inodes are used again."""
    cursor = ledger.cursor(lost.target, lost.file)
    for name, inode in there.items():
        if inode == lost.inode and (cursor is None or source.fits(replace(cursor, database=name))):
            return name
    return None


def _missing(lost: KnownDatabase) -> Missing:
    if os.path.exists(lost.file):
        what = "is there, but `source` does not name it any more; name it again"
    else:
        what = "is gone, and jobs that stood only there are not published; bring it back"
    return Missing(
        file=lost.file,
        reason=(
            f"{lost.file}: {what} (it was last read at {lost.seen:%Y-%m-%dT%H:%M:%SZ}), or, if that is on purpose, "
            f"`publisher source retire {quote(lost.file)}`"
        ),
    )


def _knows_of(known: Sequence[KnownDatabase], absent: Absent) -> bool:
    """Whether it stands for databases that were read once: these are missed by their own names, or retired."""
    return any(fnmatchcase(one.file, pattern) for one in known for pattern in absent.patterns)
