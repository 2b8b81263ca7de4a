"""`import slurm`: what sacct prints, into a local accounting database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from publisher.model.errors import SourceError
from publisher.model.text import plural
from publisher.sources.importers import StoredJobs
from publisher.sources.importing.line_importer import LineImporter, LogPiece
from publisher.sources.importing.log_files import LogFile
from publisher.sources.importing.run import ImportRun
from publisher.sources.slurm.records import Header, NotSacct, SacctReader, SacctRow, SacctRun
from publisher.sources.slurm.site_mapping import Options, SacctMapping

__all__ = ["Options", "SlurmImporter", "create"]

SUMMARY: Final = "import what `sacct --parsable2` printed, plain or compressed; reads only what is new"
PATHS: Final = "file of sacct's output, the directory that holds such files, or - for standard input"


def create(options: object) -> SlurmImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return SlurmImporter(options)


class SlurmImporter(LineImporter[SacctRun]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]] = ("sacct",)
    kind: ClassVar[str] = "output of sacct"

    def __init__(self, options: Options) -> None:
        self._mapping = SacctMapping(options)
        super().__init__(self._mapping)

    def pieces(self, file: LogFile, start: int) -> Iterator[LogPiece[SacctRun]]:
        try:
            lines = file.lines(0)
            first = next(lines, None)
            if first is None:
                return
            header = Header(first.content)
            reader = SacctReader(header, self._mapping.zone)
            for row in reader.rows(file.lines(start) if start > first.end else lines, whole=file.compressed):
                yield _piece(row)
        except NotSacct as error:
            raise SourceError(f"{file.path}: {error}") from error

    def ended_at(self, record: SacctRun) -> int:
        return record.ended_at

    def skips(self, record: SacctRun) -> str:
        return self._mapping.skips(record)

    def store(self, run: ImportRun, records: Sequence[SacctRun], file: int | None) -> Sequence[StoredJobs]:
        stored = run.store([self._mapping.job(record) for record in records], file=file)
        return [stored._replace(incomplete=sum(record.user_ms is None for record in records))]

    def finish(self, run: ImportRun) -> None:
        if run.report.incomplete:
            run.report.notes.append(
                f"{plural(run.report.incomplete, 'run')} whose CPU time Slurm does not know (nodes that failed, allocations "
                "without a step, resized jobs): published with none"
            )


def _piece(row: SacctRow) -> LogPiece[SacctRun]:
    records = () if row.run is None else (row.run,)
    return LogPiece(row.lines.offset, row.end, row.lines.content, records, row.bad, row.skipped)
