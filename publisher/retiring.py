"""`source`: the accounting databases that were ever read, and those that an administrator says are gone for good."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from publisher.errors import SourceError, UsageError
from publisher.ledger.base import KnownDatabase
from publisher.wiring import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A database that the rounds of any target have found. `there`: it is read today."""

    file: str
    seen: datetime
    retired: datetime | None  # None while any target misses it
    there: bool


def listed(site: Site) -> list[SourceFile]:
    """By name. Raises: LedgerError."""
    with closing(site.ledger_to_read()) as ledger:
        known = ledger.known_databases()
    there = _there(site)
    return [_one_file(file, list(of_targets), there) for file, of_targets in groupby(known, key=lambda each: each.file)]


def retire(site: Site, files: Sequence[str]) -> list[SourceFile]:
    """The files of these names are not missed any more, by no target; tells what is known of them now.

    Raises: UsageError for one that was never read, or is read today; LedgerError.
    """
    there = _there(site)
    with closing(site.ledger()) as ledger:
        known: dict[str, list[KnownDatabase]] = {}
        for each in ledger.known_databases():
            known.setdefault(each.file, []).append(each)
        wanted = [file if file in known else os.path.abspath(file) for file in files]
        for file in wanted:
            if file not in known:
                raise UsageError(f"{file}: was never read; `publisher source list` shows what was: {', '.join(known)}")
            if _is_read(file, there):
                raise UsageError(f"{file}: is there and is read; to read it no more, take it out of `source` first")
        now = site.surroundings.clock()
        for file in wanted:
            for each in known[file]:
                if each.retired is None:
                    ledger.retire_database(each.target, file, now)
    return [one for one in listed(site) if one.file in wanted]


def _one_file(file: str, of_targets: Sequence[KnownDatabase], there: frozenset[str] | None) -> SourceFile:
    retired = [each.retired for each in of_targets if each.retired is not None]
    return SourceFile(
        file=file,
        seen=max(each.seen for each in of_targets),
        retired=max(retired) if len(retired) == len(of_targets) else None,
        there=_is_read(file, there),
    )


def _is_read(file: str, there: frozenset[str] | None) -> bool:
    return os.path.exists(file) if there is None else os.path.realpath(file) in there


def _there(site: Site) -> frozenset[str] | None:
    """What is read today, without symbolic links; None when one of them cannot be read, or none is there."""
    try:
        with closing(site.source()) as source:
            return frozenset(os.path.realpath(name) for name in source.databases())
    except SourceError:
        return None
