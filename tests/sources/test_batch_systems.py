"""What each registered batch system keeps, whatever its accounting looks like: it is read once, onwards, and whole."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from publisher.jobs.store import open_reader
from publisher.sources import IMPORTERS
from publisher.sources.importers import ImportReport
from tests.sources.mortal_imports import child
from tests.support import condor_history, gridengine_files, sacct_text, sonar_files
from tests.support.batch_stores import as_row, records
from tests.support.patience import PATIENCE_S

_JOBS: Final = 90
_SET_UP: Final = """
from publisher.sources.files import line_importer
from publisher.sources.sonar import importer as sonar
from {module} import run_import

line_importer._BATCH_PIECES = sonar._BATCH_RECORDS = 20
"""


class Accounting(NamedTuple):
    """One batch system: how its accounting is written, and read into a store."""

    file: str  # its name
    run: Callable[..., ImportReport]
    pieces: Callable[[], Sequence[bytes]]  # what is written at once; the head of a file, if it has any, is the first
    damage: bytes  # one piece that cannot be understood


def gridengine() -> Sequence[bytes]:
    entries = gridengine_files.entries(1, _JOBS)
    return [gridengine_files.HEADER, *map(gridengine_files.colon, entries)]


def htcondor() -> Sequence[bytes]:
    ads = condor_history.ads_of(1, _JOBS)
    ends = (len(condor_history.rolling(ads[:count])) for count in range(_JOBS + 1))
    whole = condor_history.rolling(ads)
    return [whole[begin:end] for begin, end in pairwise(ends)]


def slurm() -> Sequence[bytes]:
    lines = sacct_text.jobs_of(1, _JOBS)
    starts = [at for at, line in enumerate(lines) if "." not in str(line["JobIDRaw"])]
    of_jobs = (lines[begin:end] for begin, end in pairwise([*starts, len(lines)]))
    return [sacct_text.text([]), *(sacct_text.text(job, header=False) for job in of_jobs)]


def sonar() -> Sequence[bytes]:
    return list(islice(sonar_files.collections(1, _JOBS), _JOBS))


_NO_TIME: Final = sacct_text.text([sacct_text.job(9999, End="no time")], header=False)
ACCOUNTING: Final[Mapping[str, Accounting]] = {
    "gridengine": Accounting("accounting", gridengine_files.run_import, gridengine, b"torn in the middle\n"),
    "htcondor": Accounting(
        "history", condor_history.run_import, htcondor, b"torn in\n*** Offset = 0 ClusterId = 1 ProcId = 0\n"
    ),
    "slurm": Accounting("sacct.txt", sacct_text.run_import, slurm, _NO_TIME),
    "sonar": Accounting("0+job-slurm.json", sonar_files.run_import, sonar, b"torn in the middle\n"),
}


def test_each_registered_batch_system_is_put_to_these_tests() -> None:
    assert set(ACCOUNTING) == set(IMPORTERS)


@pytest.fixture(params=sorted(ACCOUNTING))
def system(request: pytest.FixtureRequest) -> Accounting:
    return ACCOUNTING[request.param]


@pytest.fixture
def whole(system: Accounting, tmp_path: Path) -> dict[str, Any]:
    """The jobs of a file that was read at once."""
    report = system.run(tmp_path / "whole.db", write(tmp_path / "whole" / system.file, system.pieces()))
    assert (report.troubles, report.bad, report.exit_status) == ([], 0, 0)
    found = jobs(tmp_path / "whole.db")
    assert report.imported == len(found) > _JOBS / 3
    return found


def write(path: Path, pieces: Sequence[bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(pieces))
    return path


def jobs(store: Path) -> dict[str, Any]:
    found = records(store)
    assert len({job.job_id for job in found}) == len(found)
    return {job.job_id: as_row(job) for job in found}


def last_change(store: Path) -> int:
    with closing(open_reader(store)) as reader:
        return reader.state().last_change


def test_where_nothing_is_new_nothing_changes(system: Accounting, whole: dict[str, Any], tmp_path: Path) -> None:
    store, path = tmp_path / "imported.db", write(tmp_path / system.file, system.pieces())
    system.run(store, path)
    before = last_change(store)
    again = system.run(store, path)
    assert (again.imported, again.updated, again.bad, again.troubles, again.exit_status) == (0, 0, 0, [], 0)
    assert last_change(store) == before
    assert jobs(store) == whole


def test_a_file_that_grows_is_read_on_from_where_it_was(
    system: Accounting, whole: dict[str, Any], tmp_path: Path
) -> None:
    store, pieces = tmp_path / "imported.db", system.pieces()
    reports = [
        system.run(store, write(tmp_path / system.file, pieces[: len(pieces) * part // 5]))
        for part in (*range(1, 6), 5)
    ]
    assert jobs(store) == whole
    assert sum(report.imported for report in reports) == len(whole)
    whole_lines = system.run(tmp_path / "other.db", tmp_path / system.file).lines
    assert reports[4].lines < whole_lines / 2
    assert reports[5].lines < whole_lines / 5


def test_what_was_read_is_known_under_another_name(system: Accounting, whole: dict[str, Any], tmp_path: Path) -> None:
    store, pieces = tmp_path / "imported.db", system.pieces()
    system.run(store, write(tmp_path / system.file, pieces))
    copy = system.run(store, write(tmp_path / "copy" / system.file, pieces))
    assert (copy.imported, copy.updated, copy.troubles) == (0, 0, [])
    assert jobs(store) == whole


def test_a_damaged_piece_is_set_aside_once_and_holds_up_no_other(
    system: Accounting, whole: dict[str, Any], tmp_path: Path
) -> None:
    store, pieces = tmp_path / "imported.db", list(system.pieces())
    pieces.insert(len(pieces) // 2, system.damage)
    path = write(tmp_path / system.file, pieces)
    reports = [system.run(store, path) for _ in range(2)]
    assert [(report.bad, report.bad_kept, report.exit_status) for report in reports] == [(1, 1, 65), (0, 1, 0)]
    assert jobs(store) == whole


def test_a_file_that_cannot_be_read_holds_up_no_other(
    system: Accounting, whole: dict[str, Any], tmp_path: Path
) -> None:
    store, path = tmp_path / "imported.db", write(tmp_path / system.file, system.pieces())
    missing = tmp_path / "gone" / system.file
    report = system.run(store, missing, path)
    assert (len(report.troubles), report.exit_status) == (1, 66)
    assert str(missing) in report.troubles[0]
    assert jobs(store) == whole


@pytest.mark.parametrize("seed", range(2))
def test_an_import_that_is_killed_goes_on_where_it_was(
    system: Accounting, whole: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    store, path = tmp_path / "imported.db", write(tmp_path / system.file, system.pieces())
    set_up, rng = _SET_UP.format(module=system.run.__module__), random.Random(seed)
    ends = [child(set_up, store, rng.randrange(1, 120), path).wait(PATIENCE_S) for _ in range(6)]
    assert ends[0] == -signal.SIGKILL
    assert system.run(store, path).troubles == []
    assert jobs(store) == whole
