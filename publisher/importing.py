"""`import`: another system's accounting into a local database of the kind that `source` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from publisher.importers import BESIDE_STATE
from publisher.importers.base import ImportReport, Watch, unwatched
from publisher.wiring import Site

_ABORTED = "aborted"


def import_accounting(
    site: Site, name: str, paths: Sequence[Path], database: Path | None, watch: Watch = unwatched
) -> ImportReport:
    """What is new in these files, into the database, by default one beside the state.

    Raises: ConfigError, UsageError, LedgerError, Busy. Trouble with single files is in the report.
    """
    importer = site.importer(name)
    into = database or site.settings.state.with_name(BESIDE_STATE)
    report = importer.run(paths, into, site.surroundings.clock(), watch)
    without = [target.name for target in site.settings.targets if _ABORTED not in target.records.statuses]
    if report.imported and report.aborted and without:
        report.notes.append(
            f"{report.aborted:,} jobs were cancelled while they ran, and are not sent to {', '.join(without)}: add "
            f"{_ABORTED} to records.statuses if their usage counts"
        )
    return report
