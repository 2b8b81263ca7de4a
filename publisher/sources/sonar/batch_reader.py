"""Envelopes of a file, some at once, and what is in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from publisher.sources.importers import BadLine
from publisher.sources.importing.log_files import DIGEST_BYTES, KEPT_BYTES, FilePosition
from publisher.sources.sonar.cluster import Node, Partitions, Sample, read_node, read_partitions, read_samples
from publisher.sources.sonar.envelopes import (
    BadEnvelope,
    Envelope,
    EnvelopeKind,
    EnvelopeReader,
    Piece,
    open_envelope,
    without_token,
)
from publisher.sources.sonar.records import BadSonarRecord, Observation, read_record
from publisher.sources.sonar.site_mapping import Options

# In one transaction.
_BATCH_RECORDS: Final = 1000
_BATCH_PIECES: Final = 200
# A file whose first pieces are all bad is something else, and is left alone.
_SURELY_FOREIGN: Final = 20
_MOST_CLUSTERS: Final = 20
_MOST_ERRORS: Final = 1000


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

    @property
    def foreign(self) -> str:
        """Why the file is none of Sonar's, judged by its first batch, or ''."""
        surely = len(self.bad) == self.pieces >= _SURELY_FOREIGN
        return f"its first line: {self.bad[0].reason}" if surely else ""


class BatchReader:
    """Reads envelopes for one cluster."""

    def __init__(self, options: Options) -> None:
        self._cluster = options.cluster
        self._offsets_needed = not options.time_zone
        self._samples = options.samples

    def read(self, path: Path, reader: EnvelopeReader) -> Iterator[tuple[EnvelopeBatch, FilePosition]]:
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
            batch.bad.append(_bad_line(path, piece, piece.wrong, piece.content, piece.digest))
            return
        try:
            self._envelope(path, piece, open_envelope(piece.envelope), batch)
        except BadEnvelope as bad:
            batch.lines += 1
            batch.bad.append(_bad_line(path, piece, str(bad), _shown(piece.envelope)))

    def _envelope(self, path: Path, piece: Piece, envelope: Envelope, batch: EnvelopeBatch) -> None:
        """Raises: BadEnvelope."""
        if envelope.kind is EnvelopeKind.ERRORS:
            for error in envelope.errors:
                if error in batch.errors or len(batch.errors) < _MOST_ERRORS:
                    batch.errors[error] += 1
        elif envelope.cluster != self._cluster:
            count = len(envelope.entries("slurm_jobs")) if envelope.kind is EnvelopeKind.JOBS else 0
            if count:
                batch.lines += count
                batch.skipped[self._of_other_cluster(envelope.cluster, batch)] += count
        elif envelope.strange_format:
            raise BadEnvelope(
                f"in the format {envelope.strange_format}, which is not known: look for an update of publisher"
            )
        else:
            self._data(path, piece, envelope, batch)

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
                    wrong = "a time has no offset from UTC: set importers.sonar.time_zone"
            if wrong:
                batch.bad.append(_bad_line(path, piece, f"record {number} of the envelope: {wrong}", _shown(entry)))
            else:
                batch.records.append(observation)

    def _of_other_cluster(self, name: str, batch: EnvelopeBatch) -> str:
        reason = f"of the cluster {name or '(none)'}, not of importers.sonar.cluster"
        return reason if reason in batch.skipped or len(batch.skipped) < _MOST_CLUSTERS else "of other clusters"


def _shown(decoded: object) -> bytes:
    """What was understood as JSON and no further, for people."""
    try:
        return without_token(json.dumps(decoded, sort_keys=True).encode())
    except RecursionError:
        return b"nested too deeply to be shown"


def _bad_line(path: Path, piece: Piece, reason: str, content: bytes, digest: bytes = b"") -> BadLine:
    return BadLine(
        path=str(path),
        offset=piece.offset,
        length=piece.end - piece.offset,
        reason=reason,
        line=content[:KEPT_BYTES],
        digest=digest or blake2b(content, digest_size=DIGEST_BYTES).digest(),
    )
