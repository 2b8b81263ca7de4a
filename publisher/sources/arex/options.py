"""Keys of `source` with `type: arex`, and the files that they name."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from publisher.model.errors import SourceError, UsageError, refused_by_system
from publisher.sources.arex.database import DatabaseOptions
from publisher.sources.arex.values import check_zone, clock_of, local_zone
from publisher.sources.base import Absent
from publisher.sources.sqlite_reader import out_of_reach, user_name

_ACCOUNTING: Final = "accounting"
_BELOW_CONTROL_DIR: Final = (f"{_ACCOUNTING}/accounting_v2.db", f"{_ACCOUNTING}/accounting.db")
# What a glob meets beside accounting: SQLite's own files, and ARC's publishing state.
_NOT_ACCOUNTING: Final = ("-wal", "-shm", "-journal", "publishing.db")


def _number(default: int, help_text: str, *, lowest: int) -> int:
    def check(value: int) -> str | None:
        return None if value >= lowest else f"must be {lowest} or more"

    return field(default=default, metadata={"help": help_text, "check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Keys of `source` with `type: arex`."""

    control_dir: Path | None = field(
        default=None,
        metadata={
            "help": "A-REX's control directory; accounting/accounting_v2.db and accounting.db "
            "are found below it"
        },
    )
    databases: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "accounting databases by path or shell pattern; "
            "a job in two of them counts once"
        },
    )
    time_zone: str = field(
        default="",
        metadata={
            "help": "IANA name of the CE's local time, in which A-REX writes events; "
            "empty: the zone of this host",
            "check": check_zone,
        },
    )
    hold_off_s: int = _number(
        900, "how long a finished job without its FINISHED event is waited for", lowest=0
    )
    unescape: bool = field(
        default=True,
        metadata={"help": "undo A-REX's percent-escapes; false for databases of converted rows"},
    )
    page_rows: int = _number(2_048, "rows read in one transaction", lowest=1)
    lock_wait_s: int = _number(
        90, "how long a writer that holds the database is waited for", lowest=0
    )

    # Of a site without a CE, whose jobs are all of batch systems.
    is_empty: bool = field(default=False, metadata={"hidden": True})
    # The other entries of this type. A job in two databases counts in the one named first.
    further: tuple[Options, ...] = field(default=(), metadata={"hidden": True})

    def __post_init__(self) -> None:
        if self.control_dir is None and not self.databases and not self.is_empty:
            raise ValueError("give control_dir, or name the files as databases")

    @property
    def read_as(self) -> object:
        """What decides the values of jobs in any of the databases, wherever these are."""
        return sorted({ce.unescape for ce in (self, *self.further)})


def only_database(options: Options, name: str) -> Options:
    """The options with one database: a path, or a name below the control directory's `accounting/`.

    Raises: UsageError.
    """
    path = Path(name)
    if "/" not in name:
        if options.control_dir is None:
            raise UsageError(
                f"--database-file {name}: source has no control_dir; give the path of the file"
            )
        path = options.control_dir / _ACCOUNTING / name
    return replace(
        options, control_dir=None, databases=(glob.escape(str(path)),), is_empty=False, further=()
    )


class NamedFile(NamedTuple):
    """A database, by the name under which the ledger knows it, and the entry that it is of.

    It goes by its path: an entry may name several, and what lies elsewhere is the same only if its
    rows show it.
    """

    name: str
    path: str
    entry: Options


def readings_of(
    options: Options, environment: Mapping[str, str], *, lock_wait_s: float | None = None
) -> Mapping[Options, DatabaseOptions]:
    """How the databases of each entry are read. Raises: ConfigError for an unknown time zone."""
    longest_s = inf if lock_wait_s is None else lock_wait_s
    return {
        ce: DatabaseOptions(
            clock=clock_of(local_zone(ce.time_zone, environment)),
            hold_off_s=ce.hold_off_s,
            unescape=ce.unescape,
            busy_timeout_s=min(ce.lock_wait_s, longest_s),
        )
        for ce in (options, *options.further)
    }


def database_paths(options: object, environment: Mapping[str, str] | None = None) -> list[str]:
    """The files, each once. Raises: SourceError when one is missing, or a pattern has no match."""
    return [file.path for file in database_files(options)]


def database_files(options: object) -> list[NamedFile]:
    """The files, without repetition. Raises: SourceError as `database_paths`."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    found, absent = look_for(options)
    if absent:
        raise SourceError(absent[0].reason)
    return found


def names(options: Options, file: str) -> bool:
    """Whether any entry names this file, by path or as the ledger knows it, be it there or not."""
    patterns = [pattern for ce in (options, *options.further) for pattern in _patterns(ce)]
    return any(fnmatchcase(file, pattern) for pattern in patterns)


def present(options: Options) -> list[NamedFile]:
    """Those of the files that are there. Raises: SourceError when none is."""
    found, absent = look_for(options)
    if not found and absent:
        raise SourceError(absent[0].reason)
    return found


def look_for(options: Options) -> tuple[list[NamedFile], tuple[Absent, ...]]:
    """The files, without repetition, and what is named in vain.

    Raises: SourceError for what cannot be looked at.
    """
    looked = [(found, ce) for ce in (options, *options.further) for found in _named(ce)]
    distinct: dict[str, tuple[str, Options]] = {}
    for found, ce in looked:
        if not isinstance(found, Absent):
            for path in found:
                distinct.setdefault(os.path.realpath(path), (path, ce))
    files = [NamedFile(path, path, ce) for path, ce in distinct.values()]
    return files, tuple(found for found, _ in looked if isinstance(found, Absent))


def _named(options: Options) -> Sequence[Sequence[str] | Absent]:
    """What one entry names. Raises: SourceError for what cannot be looked at."""
    looked: list[Sequence[str] | Absent] = []
    if options.control_dir is not None:
        looked.append(_below(options.control_dir))
    looked += [_matching(name) for name in options.databases]
    return looked


def _patterns(options: Options) -> Iterator[str]:
    """Of everything that one entry names."""
    if options.control_dir is not None:
        yield from (glob.escape(str(options.control_dir / name)) for name in _BELOW_CONTROL_DIR)
    yield from options.databases


def _below(control_dir: Path) -> Sequence[str] | Absent:
    paths = [str(control_dir / name) for name in _BELOW_CONTROL_DIR]
    present = [path for path in paths if _is_there(path)]
    if present:
        return present
    return Absent(
        patterns=tuple(map(glob.escape, paths)),
        reason=(
            f"{control_dir}: has neither {' nor '.join(_BELOW_CONTROL_DIR)}; "
            "correct source.control_dir (arc.conf has it as controldir), "
            "or name the files in source.databases"
        ),
    )


def _matching(name: str) -> Sequence[str] | Absent:
    if _is_there(name):
        return [name]
    if not glob.has_magic(name):
        return Absent(
            patterns=(name,),
            reason=f"{name}: there is no such file; correct source.databases",
        )
    matching = sorted(path for path in glob.glob(name) if not path.endswith(_NOT_ACCOUNTING))
    if matching:
        return matching
    return Absent(
        patterns=(name,),
        reason=(
            f"{name}: no accounting database matches this pattern; correct source.databases, "
            f"or let user {user_name(os.geteuid())} search the directory"
        ),
    )


def _is_there(path: str) -> bool:
    """Raises: SourceError when that cannot be told."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise out_of_reach(path) from error
    except OSError as error:
        why = refused_by_system(error, "let this user search its directory")
        raise SourceError(f"{path}: {why}") from error
    return True
