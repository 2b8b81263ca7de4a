"""What an import did, as a JSON object and as lines. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from publisher.importers.base import BadLine, ImportReport

Json = Mapping[str, Any]

_SHOWN = 10  # bad lines that are printed; the JSON has a hundred, the database all


def import_json(report: ImportReport) -> Json:
    return {
        "importer": report.importer,
        "database": str(report.database),
        "files": report.files,
        "lines": report.lines,
        "imported": report.imported,
        "updated": report.updated,
        "merged": report.merged,
        "duplicates": report.duplicates,
        "skipped": [{"reason": reason, "records": count} for reason, count in report.skipped.most_common()],
        "bad": report.bad,
        "bad_lines": [
            {"file": line.path, "offset": line.offset, "length": line.length, "reason": line.reason}
            for line in report.bad_lines
        ],
        "held": report.held,
        "orphans": report.orphans,
        "set_aside": report.set_aside,
        "notes": list(report.notes),
        "troubles": list(report.troubles),
        "exit": report.exit_status,
    }


IMPORT_COLUMNS = ("files", "lines", "imported", "updated", "merged", "duplicates", "skipped", "bad", "held")


def import_rows(report: ImportReport) -> list[tuple[str, ...]]:
    counts = (report.files, report.lines, report.imported, report.updated, report.merged, report.duplicates)
    return [tuple(f"{count:,}" for count in (*counts, report.skipped.total(), report.bad, report.held))]


def import_notes(report: ImportReport) -> list[str]:
    """What an administrator must know beside the counts."""
    notes = [f"{count:,} skipped: {reason}" for reason, count in report.skipped.most_common()]
    notes += [f"set aside: {_place(line)}: {line.reason}" for line in report.bad_lines[:_SHOWN]]
    if report.bad > _SHOWN:
        notes.append(f"and {report.bad - _SHOWN:,} more lines set aside")
    if report.set_aside:
        notes.append(f"{report.set_aside:,} lines in all are set aside in the table ImportBadLine of {report.database}")
    if report.orphans:
        notes.append(
            f"{report.orphans:,} {report.orphans_are} have waited long for the record of their job: "
            "is a file missing? Their usage is not published"
        )
    return [*notes, *report.notes]


def _place(line: BadLine) -> str:
    return f"{line.path}, byte {line.offset}"
