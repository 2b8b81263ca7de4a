"""Files of batch systems whose end is missing, as after a full disk or a copy that was interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pytest

from publisher.sources.importers import ImportReport
from tests.support import condor_history, gridengine_files, sacct_text
from tests.support.condor_history import Raw, ad
from tests.support.sacct_text import NOW, job, step

AN_HOUR_S: Final = 3600


class Import(Protocol):
    def __call__(self, database: Path, *paths: Path, **options: Any) -> ImportReport: ...


class Case(NamedTuple):
    """A file of two jobs."""

    run_import: Import
    name: str
    content: bytes
    cut: int  # bytes that are missing


BANNER: Final = condor_history.rolling([ad(2)]).rstrip(b"\n").rpartition(b"\n")[2]
SACCT: Final = [line for number in (1, 2) for line in (job(number), step(job(number)))]
ADS: Final = [{name: value for name, value in ad(number).items() if not isinstance(value, Raw)} for number in (1, 2)]
JSON: Final = json.dumps(ADS, indent=1).encode() + b"\n"
CASES: Final = {
    "gridengine": Case(
        gridengine_files.run_import,
        "accounting",
        b"".join(map(gridengine_files.colon, gridengine_files.entries(1, 2))),
        9,
    ),
    "slurm": Case(sacct_text.run_import, "sacct", sacct_text.text(SACCT), 9),
    "htcondor": Case(condor_history.run_import, "history", condor_history.rolling([ad(1), ad(2)]), 200),
    "htcondor-line": Case(
        condor_history.run_import, "history", condor_history.rolling([ad(1), ad(2)]), len(BANNER) + 1
    ),
    "htcondor-json": Case(condor_history.run_import, "history.json", JSON, 9),
}


def imported(tmp_path: Path, case: Case, content: bytes, age_s: int) -> ImportReport:
    path = tmp_path / case.name
    path.write_bytes(content)
    modified = NOW.timestamp() - age_s
    os.utime(path, (modified, modified))
    return case.run_import(tmp_path / "imported.db", path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_end_that_nobody_writes_any_more_is_told(case: Case, tmp_path: Path) -> None:
    report = imported(tmp_path, case, case.content[: -case.cut], AN_HOUR_S)
    (note,) = [note for note in report.notes if "cut short" in note]
    assert note.startswith(f"{tmp_path / case.name}: ")
    assert (report.held, report.troubles) == (0, [])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_end_that_is_being_written_is_not(case: Case, tmp_path: Path) -> None:
    report = imported(tmp_path, case, case.content[: -case.cut], AN_HOUR_S - 1)
    assert [note for note in report.notes if "cut short" in note] == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_is_told_of_a_whole_file(case: Case, tmp_path: Path) -> None:
    for _ in range(2):
        report = imported(tmp_path, case, case.content, 9 * AN_HOUR_S)
        assert [note for note in report.notes if "cut short" in note] == []
