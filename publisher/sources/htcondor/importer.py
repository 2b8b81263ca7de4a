"""`import htcondor`: histories of HTCondor and HTCondor-CE, into the job store.

Directories of one file a job may have 100,000 of them. Their names are kept with size and time, so
that a file is read once; what is no longer there is forgotten without a word, because sites remove
them. Nothing of HTCondor's is changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import ClassVar, Final, NamedTuple

from publisher.model.errors import SourceError
from publisher.model.text import plural
from publisher.sources.files.line_importer import (
    LineImporter,
    LogPiece,
    lines_of,
)
from publisher.sources.files.log_files import ROTATION, LogFile
from publisher.sources.files.run import ImportRun
from publisher.sources.htcondor.exports import form_of
from publisher.sources.htcondor.records import (
    ROUTED,
    CondorRun,
    Routed,
    read_ads,
    read_export,
    read_file,
)
from publisher.sources.htcondor.site_mapping import CondorMapping, Options
from publisher.sources.importers import StoredJobs, never_stopped

__all__ = ["TABLES", "HTCondorImporter", "Options", "create"]

SUMMARY: Final = (
    "import histories of HTCondor or HTCondor-CE, of one file a job or rolling; "
    "reads only what is new"
)
PATHS: Final = (
    "history file (also what condor_history -long, -json, -jsonl or -xml printed), or directory "
    "of them (history.CLUSTER.PROC, or history and its rotations)"
)
_SINGLE: Final = re.compile(r"history\.[0-9]+\.[0-9]+", re.ASCII)
_LIVE: Final = "history"  # the file that HTCondor adds to
_JSON_LINES: Final = re.compile(rf".*\.jsonl{ROTATION}")
_FILES: Final = (_LIVE, "history.json", "history.jsonl", "history.xml")
_ROLLING: Final = re.compile(f"(?:{'|'.join(map(re.escape, _FILES))}){ROTATION}")
_BATCH_FILES: Final = 500  # in one transaction
_SHOWN_TROUBLES: Final = 5
_WRITING_S: Final = 60  # HTCondor writes an ad at once, and renames the file of one job into place
_BEGINS_AS_AD: Final = re.compile(rb"\s*[A-Za-z_][\w.]*\s*(?:=|\Z)")
# Whose history has the other ads of routed jobs, and the key by which those here count.
_OTHER_ADS: Final = {
    Routed.BATCH: ("the batch system's", Routed.CE),
    Routed.CE: ("the CE's", Routed.BATCH),
}
_THERE: Final = "WHERE Source = source_number() AND Directory = ?"
# A row with an empty name is there for a directory that had files.
TABLES: Final = """
    CREATE TABLE IF NOT EXISTS CondorJobFile (
        Source INTEGER NOT NULL REFERENCES source (id),
        Directory TEXT NOT NULL,
        Name TEXT NOT NULL,
        Bytes INTEGER NOT NULL,
        Modified INTEGER NOT NULL,     -- in nanoseconds
        PRIMARY KEY (Source, Directory, Name)
    ) WITHOUT ROWID;
"""
_KNOWN: Final = f"SELECT Name, Bytes, Modified FROM CondorJobFile {_THERE}"
_KNOWN_FILE: Final = f"SELECT Bytes, Modified FROM CondorJobFile {_THERE} AND Name = ?"
_REMEMBER: Final = "INSERT OR REPLACE INTO CondorJobFile VALUES (source_number(), ?, ?, ?, ?)"
_FORGET: Final = f"DELETE FROM CondorJobFile {_THERE} AND Name = ?"


def create(
    options: object, environment: Mapping[str, str], wait: Callable[[float], bool] = never_stopped
) -> HTCondorImporter:
    """Return the importer. Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return HTCondorImporter(options)


class _FileState(NamedTuple):
    """What a file looked like."""

    size: int
    modified: int  # nanoseconds


class HTCondorImporter(LineImporter[CondorRun]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]] = _FILES
    kind: ClassVar[str] = "a history of HTCondor"
    single: ClassVar[re.Pattern[str] | None] = _SINGLE

    def __init__(self, options: Options) -> None:
        self._routed = options.routed
        self._history = options.history
        self._mapping = CondorMapping(options)
        super().__init__(self._mapping)

    def pieces(self, file: LogFile, start: int) -> Iterator[LogPiece[CondorRun]]:
        # Nobody writes into a compressed file any more.
        over = file.compressed
        form = form_of(file.head)
        if form is not None:
            return read_export(file.parts(start), start, form, self._routed, over=over)
        # Only the archive of one job ends without the line of asterisks.
        alone = over and _is_single(file.path.stem)
        return read_ads(lines_of(file, start), self._routed, alone=alone, over=over)

    def nothing_whole(self, run: ImportRun, file: LogFile) -> None:
        if self._may_have_none(run, file):
            return
        raise SourceError(
            f"{file.path}: no complete ad of a job in it; name a history of HTCondor, or what "
            "condor_history -long, -json, -jsonl or -xml printed, and have it printed again if it "
            "was cut short"
        )

    def _may_have_none(self, run: ImportRun, file: LogFile) -> bool:
        """Return whether a file without a complete ad is not damaged, and report what to know."""
        form = form_of(file.head)
        if form is not None:
            chunks = list(islice(file.chunks(0), 2))
            return len(chunks) == 1 and form.without_ads.fullmatch(chunks[0]) is not None
        if file.compressed:
            return False
        is_live = file.path.name == _LIVE or file.path == self._history
        if not file.head:
            is_lines = _JSON_LINES.fullmatch(file.path.name) is not None
            if is_lines:
                note = f"{file.path}: is empty: no jobs, unless condor_history failed"
                run.report.notes.append(note)
            return is_live or is_lines  # HTCondor has just rotated the live one
        is_begun = _BEGINS_AS_AD.match(file.head) is not None
        if is_begun and _is_being_written(run, file.modified):
            _wait_for(run, [file.path])
            return True
        return False

    def is_cut_short(self, file: LogFile, consumed: int) -> bool:
        rest, form = next(file.chunks(consumed), b""), form_of(file.head)
        if form is None:
            return rest.strip() != b""
        return form.opening.search(rest) is not None

    def singles(self, run: ImportRun, path: Path) -> bool:
        if path.is_dir():
            return self._directory(run, path)
        if not _is_single(path.name):
            return False
        seen, asked = _look(path), (str(path.parent), path.name)
        known = run.accounting.connection.execute(_KNOWN_FILE, asked).fetchone()
        new = {} if known == seen else {path.name: seen}
        self._read_singles(run, path.parent, new)
        run.report.files += known == seen
        return True

    def _directory(self, run: ImportRun, path: Path) -> bool:
        """Read its files of one job each. Returns whether there is nothing else in it."""
        there, others = _listing(path)
        known = _known(run, path)
        new = {name: seen for name, seen in there.items() if known.get(name) != seen}
        run.report.files += len(there) - len(new)
        self._read_singles(run, path, new)
        gone = [(str(path), name) for name in known.keys() - there.keys() if name]
        with run.accounting.transaction():
            if there:
                run.accounting.connection.execute(_REMEMBER, (str(path), "", 0, 0))
            run.accounting.connection.executemany(_FORGET, gone)
        if known and not there and not others:
            raise SourceError(
                f"{path}: is empty, and had files of jobs before; check that HTCondor still writes "
                "there, and let some days pass before files are removed"
            )
        return not others and bool(there)

    def _read_singles(
        self, run: ImportRun, directory: Path, files: Mapping[str, _FileState]
    ) -> None:
        """Read files of one job each, in the order in which they were written."""
        names = iter(sorted(files, key=lambda name: (files[name].modified, name)))
        troubles: list[str] = []
        waiting: list[Path] = []
        while batch := list(islice(names, _BATCH_FILES)):
            read: list[tuple[Path, LogPiece[CondorRun]]] = []
            for name in batch:
                path = directory / name
                try:
                    piece = self._single(run, path, files[name])
                except SourceError as error:
                    if path.exists():  # else it was removed meanwhile
                        troubles.append(str(error))
                    continue
                if piece is None:
                    waiting.append(path)
                else:
                    read.append((path, piece))
            self.write_singles(run, read, lambda done: _remember(run, files, done))
        _wait_for(run, waiting)
        run.report.troubles += troubles[:_SHOWN_TROUBLES]
        if len(troubles) > _SHOWN_TROUBLES:
            more = plural(len(troubles) - _SHOWN_TROUBLES, "other file", "other files")
            run.report.troubles.append(f"{directory}: {more} cannot be read either")

    def _single(self, run: ImportRun, path: Path, seen: _FileState) -> LogPiece[CondorRun] | None:
        """Return what a file says; None while it is being written. Raises: SourceError."""
        run.report.files += 1
        try:
            with path.open("rb") as file:
                piece = read_file(file, self._routed)
        except OSError as error:
            raise _unreadable(path, error) from error
        if piece is not None and not piece.wrong:
            return piece
        if _is_being_written(run, seen.modified / 10**9):
            return None
        wrong = "does not end with the end of a line"
        return piece or LogPiece(0, seen.size, path.name.encode(), (), wrong)

    def forget_file(self, connection: Connection, path: Path) -> None:
        connection.execute(_FORGET, (str(path.parent), path.name))

    def skips(self, record: CondorRun) -> str:
        return self._mapping.skips(record)

    def store(
        self, run: ImportRun, records: Sequence[CondorRun], file: int | None
    ) -> Sequence[StoredJobs]:
        jobs = [self._mapping.job(record) for record in records]
        stored = run.store(jobs, file=file, numbers=self._mapping.arc_ids)
        return [stored._replace(incomplete=sum(record.user_s is None for record in records))]

    def finish(self, run: ImportRun) -> None:
        report = run.report
        if report.incomplete:
            report.notes.append(
                f"{plural(report.incomplete, 'job')} of unknown CPU time (the ad has none, or only "
                "that of the last of several starts): published as unknown, and as 0 to APEL"
            )
        routed = report.skipped[ROUTED]
        all_routed = routed and len(+report.skipped) == 1 and not report.bad
        if all_routed and not run.accounting.store.count():
            theirs, key = _OTHER_ADS[self._routed]
            report.notes.append(
                f"{plural(routed, 'job was', 'jobs were')} routed, and none is counted here: "
                f"import {theirs} history, or set {self.site.place}.routed: {key}"
            )


def _is_being_written(run: ImportRun, modified: float) -> bool:
    return abs(run.now - modified) < _WRITING_S  # a file server's clock may be a little ahead


def _wait_for(run: ImportRun, files: Sequence[Path]) -> None:
    """Leave files to the next import, and report that."""
    run.report.held += len(files)
    if files:
        more = f" (and {plural(len(files) - 1, 'other file')})" if files[1:] else ""
        run.report.notes.append(
            f"{files[0]}{more}: has no complete ad yet, and was written to in the last minute; the "
            "next import reads it, or reports it as damaged"
        )


def _is_single(name: str) -> bool:
    return _SINGLE.fullmatch(name) is not None


def _look(path: Path) -> _FileState:
    """Raises: SourceError."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _FileState(found.st_size, found.st_mtime_ns)


def _unreadable(path: Path, error: OSError) -> SourceError:
    missing = isinstance(error, FileNotFoundError)
    advice = "correct the path" if missing else "let this user read it"
    return _refused(path, error, advice)


def _refused(path: Path, error: OSError, advice: str) -> SourceError:
    return SourceError(f"{path}: {error.strerror or error}; {advice}")


def _listing(directory: Path) -> tuple[dict[str, _FileState], bool]:
    """Return the files of one job each, and whether there are files of many.

    Raises: SourceError.
    """
    found: dict[str, _FileState] = {}
    rolling = False
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if _is_single(entry.name):
                    _add(found, entry)
                else:
                    rolling = rolling or _ROLLING.fullmatch(entry.name) is not None
    except OSError as error:
        raise _refused(directory, error, "let this user search it, and import again") from error
    return found, rolling


def _add(found: dict[str, _FileState], entry: os.DirEntry[str]) -> None:
    """Raises: OSError."""
    with suppress(FileNotFoundError):  # removed meanwhile
        if entry.is_file():
            stat = entry.stat()
            found[entry.name] = _FileState(stat.st_size, stat.st_mtime_ns)


def _known(run: ImportRun, directory: Path) -> dict[str, _FileState]:
    rows = run.accounting.connection.execute(_KNOWN, (str(directory),))
    return {name: _FileState(size, modified) for name, size, modified in rows}


def _remember(run: ImportRun, files: Mapping[str, _FileState], done: Sequence[Path]) -> None:
    rows = [(str(path.parent), path.name, *files[path.name]) for path in done]
    run.accounting.connection.executemany(_REMEMBER, rows)
