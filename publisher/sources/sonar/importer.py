"""`import sonar`: what Sonar collected of a Slurm cluster into the job store."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from publisher.model.errors import SourceError
from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.sources.files.log_files import ROTATION, SUFFIXES, FilePosition, LogFile
from publisher.sources.files.read_files import FileCursor
from publisher.sources.files.run import ImportRun, import_run, refuse_foreign, to_read
from publisher.sources.importers import (
    BadLine,
    ImportReport,
    ImportRule,
    SourceStore,
    Watch,
    never_stopped,
    unwatched,
)
from publisher.sources.sonar.cluster import (
    SAMPLE_TABLES,
    SYSTEM_TABLES,
    Node,
    Partitions,
    Sample,
    keep_node,
    keep_partitions,
    keep_samples,
    read_node,
    read_partitions,
    read_samples,
)
from publisher.sources.sonar.envelopes import (
    BadEnvelope,
    Envelope,
    EnvelopeKind,
    EnvelopeReader,
    Piece,
    open_envelope,
    without_token,
)
from publisher.sources.sonar.finalizer import JobFinalizer
from publisher.sources.sonar.old_formats import ADVICE
from publisher.sources.sonar.old_formats import FILE_NAME as OLD_NAME
from publisher.sources.sonar.records import BadSonarRecord, Observation, read_record
from publisher.sources.sonar.runs import TABLES as JOB_TABLES
from publisher.sources.sonar.runs import (
    due,
    hold_off_at_most,
    mark_changed,
    settle,
    store_observations,
    waiting,
)
from publisher.sources.sonar.site_mapping import ANY_CLUSTER, Options, SonarMapping

__all__ = ["TABLES", "Options", "SonarImporter", "create"]

TABLES: Final = f"{JOB_TABLES}{SAMPLE_TABLES}{SYSTEM_TABLES}"
_ONLY_CLUSTER: Final = "ONLY_CLUSTER"  # a setting of the source
SUMMARY: Final = "import what Sonar collected on a Slurm cluster; reads only what is new"
PATHS: Final = "file, or the directory tree that holds YYYY/MM/DD/0+job-slurm.json"
# `cluzter` is Sonar's spelling. Old trees also hold CSV, and other JSON without the 0+.
_BEGINNING: Final = re.compile(r"0\+(?:jobs?|clu[sz]ter|sysinfo|sample)-")
_WANTED: Final = re.compile(rf"{_BEGINNING.pattern}.*\.json{ROTATION}")
_SAMPLE: Final = re.compile(r"0\+sample-")
_ORPHANS: Final = ("job known only by its steps", "jobs known only by their steps")
_SETTLED_AT_ONCE: Final = 500
_SHOWN_ERRORS: Final = 10
_SHOWN_FILES: Final = 10
_RECENT_S: Final = 8 * 86_400  # longer ago, a file was surely read whole before it was removed
# In one transaction.
_BATCH_RECORDS: Final = 1000
_BATCH_PIECES: Final = 200
_MOST_CLUSTERS: Final = 20
_MOST_ERRORS: Final = 1000


def create(
    options: object, environment: Mapping[str, str], wait: Callable[[float], bool] = never_stopped
) -> SonarImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return SonarImporter(options)


@dataclass(slots=True, kw_only=True)
class EnvelopeBatch:
    """What some envelopes hold."""

    records: list[Observation] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    partitions: list[Partitions] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    bad: list[BadLine] = field(default_factory=list)
    lines: int = 0  # records of jobs, and what was set aside
    pieces: int = 0


class BatchReader:
    """Reads envelopes for one cluster."""

    def __init__(self, options: Options, place: str, known: str) -> None:
        """`place` is where the options are, `known` the only cluster of which something was read.

        That counts where the options name none.
        """
        self._takes_one = options.cluster == ANY_CLUSTER
        self.cluster = known if self._takes_one else options.cluster
        self._place = place
        self._offsets_needed = not options.time_zone
        self._samples = options.samples

    def read(
        self, path: Path, reader: EnvelopeReader
    ) -> Iterator[tuple[EnvelopeBatch, FilePosition]]:
        """Batches, each with the mark of the place where it ends."""
        batch, end, tail = EnvelopeBatch(), 0, b""
        for piece in reader.pieces():
            self._piece(path, piece, batch)
            batch.pieces += 1
            end, tail = piece.end, reader.tail(piece.end)
            if len(batch.records) >= _BATCH_RECORDS or batch.pieces >= _BATCH_PIECES:
                yield batch, reader.mark(end, tail)
                batch = EnvelopeBatch()
        if batch.pieces:
            yield batch, reader.mark(end, tail)

    def _piece(self, path: Path, piece: Piece, batch: EnvelopeBatch) -> None:
        if piece.envelope is None:
            batch.lines += 1
            batch.bad.append(_bad_line(path, piece, piece.wrong, piece.content))
            return
        try:
            self._envelope(path, piece, open_envelope(piece.envelope), batch)
        except BadEnvelope as bad:
            batch.lines += 1
            batch.bad.append(_bad_line(path, piece, str(bad), _json(piece.envelope)))

    def _envelope(self, path: Path, piece: Piece, envelope: Envelope, batch: EnvelopeBatch) -> None:
        """Raises: BadEnvelope, SourceError."""
        if envelope.kind is EnvelopeKind.ERRORS:
            for error in envelope.errors:
                if error in batch.errors or len(batch.errors) < _MOST_ERRORS:
                    batch.errors[error] += 1
        elif self._is_other(path, envelope.cluster):
            count = len(envelope.entries("slurm_jobs")) if envelope.kind is EnvelopeKind.JOBS else 0
            if count:
                batch.lines += count
                batch.skipped[self._of_other_cluster(envelope.cluster, batch)] += count
        elif envelope.strange_format:
            raise BadEnvelope(
                f"in the format {envelope.strange_format}, which is not known: "
                "look for an update of publisher"
            )
        else:
            self._data(path, piece, envelope, batch)

    def _is_other(self, path: Path, cluster: str) -> bool:
        """Raises: SourceError for a second cluster where there is to be one."""
        if self._takes_one and cluster:
            self.cluster = self.cluster or cluster
            if cluster != self.cluster:
                raise SourceError(
                    f"{path}: has records of the clusters {self.cluster} and {cluster}; "
                    f"write cluster in {self._place}, and another source for the other one"
                )
        return not cluster or cluster != self.cluster

    def _data(self, path: Path, piece: Piece, envelope: Envelope, batch: EnvelopeBatch) -> None:
        """Raises: BadEnvelope."""
        match envelope.kind:
            case EnvelopeKind.JOBS:
                self._jobs(path, piece, envelope, batch)
            case EnvelopeKind.SAMPLE if self._samples:
                batch.samples += read_samples(envelope)
            case EnvelopeKind.SYSTEM:
                batch.nodes.append(read_node(envelope))
            case EnvelopeKind.CLUSTER:
                batch.partitions.append(read_partitions(envelope))

    def _jobs(self, path: Path, piece: Piece, envelope: Envelope, batch: EnvelopeBatch) -> None:
        entries = envelope.entries("slurm_jobs")
        batch.lines += len(entries)
        for number, entry in enumerate(entries, start=1):
            wrong = ""
            try:
                observation = read_record(entry, envelope.at, right_sizes=envelope.right_sizes)
            except BadSonarRecord as bad:
                wrong = str(bad)
            else:
                if self._offsets_needed and None in observation.offsets.values():
                    wrong = f"a time has no offset from UTC: set {self._place}.time_zone"
            if wrong:
                wrong = f"record {number} of the envelope: {wrong}"
                batch.bad.append(_bad_line(path, piece, wrong, _json(entry)))
            else:
                batch.records.append(observation)

    def _of_other_cluster(self, name: str, batch: EnvelopeBatch) -> str:
        reason = f"of the cluster {name or '(none)'}, not of {self._place}.cluster"
        is_named = reason in batch.skipped or len(batch.skipped) < _MOST_CLUSTERS
        return reason if is_named else "of other clusters"


def _bad_line(path: Path, piece: Piece, reason: str, content: bytes) -> BadLine:
    return BadLine.of(path, piece.offset, piece.end - piece.offset, reason, content, piece.digest)


def _json(decoded: object) -> bytes:
    """What was understood as JSON and no further, for people."""
    try:
        return without_token(json.dumps(decoded, sort_keys=True).encode())
    except RecursionError:
        return b"nested too deeply to be shown"


class SonarImporter:
    """An `Importer`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._site = SonarMapping(options)

    def run(
        self, paths: Sequence[Path], store: SourceStore, now: datetime, watch: Watch = unwatched
    ) -> ImportReport:
        with import_run(self._site, store, now, watch) as run:
            _Import(run, self._options, self._site).paths(to_read(paths, self._site))
        return run.report

    def forget_file(self, connection: Connection, path: Path) -> None:
        """Nothing else is kept of it."""

    def ask_again(self, connection: Connection, path: Path, now: datetime) -> bool:
        return False

    @property
    def mapped_vos(self) -> frozenset[str]:
        return self._site.mapped_vos

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        return self._site.explain(job)

    def record_key(self, job: JobRecord) -> str:
        return self._site.record_key(job)


class _Import:
    """One run."""

    def __init__(self, run: ImportRun, options: Options, site: SonarMapping) -> None:
        self._run = run
        self._options = options
        self._site = site
        self._batches = BatchReader(options, site.place, run.accounting.setting(_ONLY_CLUSTER))
        self._errors: Counter[str] = Counter()  # that Sonar reported
        self._unfinished: list[str] = []
        self._seen: set[Path] = set()

    def paths(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with self._run.trouble_reported():
                self._path(path)
        self._report_missing([path for path in paths if path.is_dir()])
        self._finalize()
        self._finish()

    def _path(self, path: Path) -> None:
        """A file of any name, or all files of a tree that Sonar names so."""
        run, before = self._run, self._run.report.files
        unread: list[Path] = []
        old: list[Path] = []
        for each in self._tree(path, unread, old) if path.is_dir() else [path]:
            self._file(each)
            self._seen.add(each)
        # None was imported by its own name
        unread = [each for each in unread if run.cursors.at_path(each) is None]
        if unread:
            more = f" and {len(unread) - _SHOWN_FILES:,} more" if len(unread) > _SHOWN_FILES else ""
            run.report.notes.append(
                "not read, because their names do not show what they are: "
                f"{_listed(unread)}{more}; if it is what Sonar wrote, import it by its own name"
            )
        if run.report.files == before and old:
            named = "has no files called 0+job-slurm.json or the like, only some whose names are of"
            run.report.troubles.append(
                f"{path}: {named} the old formats of Sonar, such as {old[0]}; {ADVICE}"
            )
        elif run.report.files == before:
            none = "has no files called 0+job-slurm.json or the like; name the files themselves"
            run.report.troubles.append(f"{path}: {none}")

    def _report_missing(self, trees: Sequence[Path]) -> None:
        """Files that vanished so soon that Sonar may have added to them after the last reading."""
        run = self._run
        there = {_day_and_name(each) for each in self._seen}
        gone: list[Path] = []
        for cursor in run.cursors.all():
            path = Path(cursor.path)
            if path in self._seen or not _is_gone(path, trees):
                continue
            with run.accounting.transaction():
                run.cursors.forget_path(cursor, path)
            if _day_and_name(path) not in there and run.now - _day(path) < _RECENT_S:
                gone.append(path)
        if gone:
            more = ", ..." if len(gone) > _SHOWN_FILES else ""
            run.report.notes.append(
                f"{plural(len(gone), 'file is', 'files are')} gone that had been read the last "
                f"time, and may have grown since: {_listed(gone)}{more}; "
                "where they were archived, import the archive too"
            )

    def _tree(self, path: Path, unread: list[Path], old: list[Path]) -> Iterator[Path]:
        """Yield the files of a tree in the order of days.

        `unread` and `old` get files that are not read. A folder that cannot be searched is reported
        among the troubles.
        """

        def report_error(error: OSError) -> None:
            trouble = f"{error.filename}: {error.strerror or error}; let this user search it"
            self._run.report.troubles.append(trouble)

        entered: set[Path] = set()  # a link may lead back up
        for folder, folders, names in os.walk(path, onerror=report_error, followlinks=True):
            if (real := Path(folder).resolve()) in entered:
                folders.clear()
                continue
            entered.add(real)
            folders.sort()
            wanted = [name for name in names if self._options.samples or not _SAMPLE.match(name)]
            for name in sorted(wanted):
                if _WANTED.fullmatch(name):
                    yield Path(folder, name)
                elif _BEGINNING.match(name):
                    unread.append(Path(folder, name))
                elif not old and OLD_NAME.fullmatch(name):
                    old.append(Path(folder, name))

    def _file(self, path: Path) -> None:
        cursor = self._run.cursors.at_path(path)
        if cursor is not None and _is_untouched(path, cursor):
            self._run.report.files += 1
        else:
            self._run.read(path, self._content)

    def _content(self, file: LogFile) -> None:
        """Raises: SourceError."""
        run = self._run
        cursor = run.cursors.at_path(file.path) or run.cursors.beginning(file)
        start = cursor.mark.consumed if file.fits(cursor.mark) else 0
        reader = EnvelopeReader(file, start)
        first = start == 0
        for batch, mark in self._batches.read(file.path, reader):
            if first:
                _refuse_old(file.path, batch)
                refuse_foreign(file.path, "a file of Sonar", batch.bad, batch.pieces)
            first = False
            cursor = self._write(cursor, file, batch, mark)
        if file.compressed and cursor.number is not None and cursor.modified != file.modified:
            with run.accounting.transaction():
                run.cursors.move(cursor, file, cursor.mark)
        if reader.unfinished:
            self._unfinished.append(f"{file.path} ({reader.unfinished:,} bytes)")

    def _write(
        self, cursor: FileCursor, file: LogFile, batch: EnvelopeBatch, mark: FilePosition
    ) -> FileCursor:
        """What was read and how far."""
        run, connection = self._run, self._run.accounting.connection
        # A compressed file's size does not tell whether all was read, if this process ends.
        with run.step(bad=batch.bad, lines=batch.lines):
            moved = run.cursors.move(cursor, file, mark, more=file.compressed)
            if self._batches.cluster:
                run.accounting.settle(_ONLY_CLUSTER, self._batches.cluster)
            duplicates = store_observations(connection, batch.records)
            mark_changed(connection, keep_samples(connection, batch.samples))
            for node in batch.nodes:
                keep_node(connection, node)
            for partitions in batch.partitions:
                keep_partitions(connection, partitions)
        run.report.duplicates += duplicates
        run.report.skipped.update(batch.skipped)
        self._errors.update(batch.errors)
        return moved

    def _finalize(self) -> None:
        """Make jobs of all runs of which something new was said, or whose hold-off is over."""
        run, connection, report = self._run, self._run.accounting.connection, self._run.report
        finalizer = JobFinalizer(connection, self._site, self._options, run.now)
        with run.accounting.transaction():
            hold_off_at_most(connection, run.now + self._options.hold_off_s)
        more = True
        while more:
            with run.accounting.transaction():
                jobs = due(connection, run.now, _SETTLED_AT_ONCE)
                found = finalizer.verdicts(jobs)
                put = run.store(found.jobs, file=None, replace=True, numbers=self._site.arc_ids)
                run.accounting.store.take_back(found.taken_back)
                settle(connection, found.settled)
            report.count_jobs(put._replace(merged=found.steps))
            report.skipped.update(found.skipped)
            more = bool(jobs)
        with run.accounting.transaction():
            report.notes += finalizer.doubts.notes(connection, self._options, self._site.place)

    def _finish(self) -> None:
        """What still waits, and what to report."""
        run, report = self._run, self._run.report
        with run.accounting.transaction():
            unfinished = waiting(run.accounting.connection, run.now - self._options.overdue_after_s)
        report.orphans_are = _ORPHANS
        report.held, report.orphans = unfinished.jobs + unfinished.steps, unfinished.overdue_steps
        if unfinished.overdue_jobs:
            report.notes.append(
                f"{plural(unfinished.overdue_jobs, 'job was', 'jobs were')} seen waiting or "
                "running long ago, and never since: Sonar collects no jobs that ended by a failure "
                "of a node, preemption or requeueing; their usage is not known"
            )
        if self._unfinished:
            report.notes.append(
                f"{plural(len(self._unfinished), 'file ends', 'files end')} inside an envelope; "
                f"the rest is read when it comes: {', '.join(self._unfinished[:3])}"
            )
        for error, count in self._errors.most_common(_SHOWN_ERRORS):
            report.notes.append(f"Sonar reported an error ({plural(count, 'time')}): {error}")
        if (others := len(self._errors) - _SHOWN_ERRORS) > 0:
            report.notes.append(f"and {others:,} other errors that Sonar reported")


def _refuse_old(path: Path, batch: EnvelopeBatch) -> None:
    """Raises: SourceError for a file of nothing but an old format, judged by its first pieces."""
    if len(batch.bad) == batch.pieces and all(ADVICE in bad.reason for bad in batch.bad):
        raise SourceError(f"{path}: {batch.bad[0].reason}")


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:_SHOWN_FILES]))


def _is_gone(path: Path, trees: Sequence[Path]) -> bool:
    return any(tree in path.parents for tree in trees) and not path.exists()


def _day_and_name(path: Path) -> tuple[str, ...]:
    """What stays the same when a file is compressed or archived: `2026/09/21`, `0+job-slurm`."""
    return (*path.parent.parts[-3:], path.name.partition(".json")[0])


def _day(path: Path) -> int:
    """When the day of the file's folder began, in epoch seconds; else far in the future."""
    try:
        year, month, day = map(int, path.parent.parts[-3:])
        return int(datetime(year, month, day, tzinfo=UTC).timestamp())
    except ValueError:
        return sys.maxsize


def _is_untouched(path: Path, cursor: FileCursor) -> bool:
    """Whether a file is as when it was read to its end: most of a tree's thousands are old."""
    try:
        found = path.stat()
    except OSError:
        return False  # opening it tells the trouble
    whole = found.st_size == cursor.mark.consumed or path.suffix in SUFFIXES
    return whole and found.st_mtime == cursor.modified and cursor.mark.consumed > 0
