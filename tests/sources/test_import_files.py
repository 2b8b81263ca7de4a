"""Files that grow, rotate and break while they are imported: whatever happens, the database ends up the same."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.cli.site import configured_site
from publisher.jobs.store import open_store
from publisher.model.job import JobRecord
from publisher.sources.files.line_importer import LineImporter, LogPiece, by_line, lines_of
from publisher.sources.files.log_files import LogFile, opened
from publisher.sources.gridengine import importer as gridengine
from publisher.sources.gridengine.records import GridEngineRecord, ParallelRun, read_line
from publisher.sources.gridengine.site_mapping import GridEngineMapping
from publisher.sources.importers import Importer, ImportReport
from publisher.sources.sonar import importer as sonar
from tests.sources.mortal_imports import FOR_EVER, child
from tests.support import sonar_files
from tests.support.batch_stores import read_into, source_jobs
from tests.support.gridengine_files import (
    BEGIN,
    CLUSTER,
    HEADER,
    NOW,
    Entry,
    colon,
    content,
    entries,
    jobs,
    jsonl,
    run_import,
    totals,
    write,
)
from tests.support.patience import PATIENCE_S
from tests.support.strategies import examples

ANY = Entry()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "imported.db"


def log_of(seed: int, count: int, first: int = 1) -> bytes:
    """A file in which the site switched the format on the way."""
    lines = [(jsonl if number % 3 == 0 else colon)(entry) for number, entry in enumerate(entries(seed, count, first))]
    lines.insert(len(lines) // 2, b"torn in the middle\n")
    return HEADER + b"".join(lines)


def lines(count: int, first: int = 1) -> list[bytes]:
    return [colon(replace(ANY, job=number)) for number in range(first, first + count)]


def append(path: Path, *new: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(new)


def compress(path: Path, to: Path) -> Path:
    """As gzip does it: the time of modification stays."""
    to.write_bytes(gzip.compress(path.read_bytes()))
    stamp = path.stat().st_mtime_ns
    path.unlink()
    os.utime(to, ns=(stamp, stamp))
    return to


# Growing


def test_only_what_is_new_is_read(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", [HEADER, *lines(10)])
    assert run_import(database, path).lines == 10
    assert run_import(database, path).lines == 0
    append(path, *lines(5, 11))
    report = run_import(database, path)
    assert (report.lines, report.imported, report.duplicates) == (5, 5, 0)


def test_a_last_line_without_an_end_waits_for_its_rest(tmp_path: Path, database: Path) -> None:
    (line,) = lines(1)
    for cut in (1, len(line) // 2, len(line) - 1):
        path = write(tmp_path / f"accounting{cut}", [line[:cut]])
        report = run_import(database.with_name(f"{cut}.db"), path)
        assert (report.lines, report.bad) == (0, 0)
        append(path, line[cut:])
        report = run_import(database.with_name(f"{cut}.db"), path)
        assert (report.imported, report.bad) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_megabytes_of_empty_lines_are_not_looked_at_one_by_one(tmp_path: Path, database: Path, size: int) -> None:
    """A log on a disk that broke: 100 MB of them take 100 kB in an archive."""
    path = tmp_path / "accounting.gz"
    path.write_bytes(gzip.compress(b"".join([HEADER, *lines(3), b"\n" * size, *lines(3, 4)])))
    with opened(path) as file:
        assert sum(1 for _ in lines_of(file, 0)) < size // 6
    report = run_import(database, path)
    assert (report.imported, report.bad) == (6, 0)


@pytest.mark.parametrize("device", ["", "/dev/zero", "/dev/full"])
def test_a_pipe_or_a_device_among_the_files_is_refused_and_not_waited_for(
    tmp_path: Path, database: Path, device: str
) -> None:
    path = tmp_path / "accounting"
    if device:
        path.symlink_to(device)
    else:
        os.mkfifo(path)
    (trouble,) = run_import(database, path).troubles
    assert "is no regular file" in trouble


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 5), cuts=st.lists(st.integers(0, 40_000), max_size=6), rotated=st.integers(0, 5))
def test_a_file_read_in_pieces_gives_what_the_whole_gives(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int], rotated: int
) -> None:
    """Cut at any byte, with a rotation between two pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    log = log_of(seed, 40)
    run_import(folder / "whole.db", write(folder / "whole", [log]))
    places = sorted({min(cut, len(log)) for cut in cuts} | {0, len(log)})
    live = folder / "live" / "accounting"
    live.parent.mkdir()
    begun = 0
    for number, (start, end) in enumerate(pairwise(places)):
        if number == rotated and (whole := log.rfind(b"\n", begun, start) + 1) > begun:
            # The qmaster writes whole buffers: what is rotated away ends with a line, and the rest goes to the new file.
            live.write_bytes(log[begun:whole])
            live.rename(live.with_name("accounting.0"))
            begun = start = whole
        append(live, log[start:end]) if begun < start else live.write_bytes(log[begun:end])
        report = run_import(folder / "pieces.db", live)
        assert report.notes == report.troubles == []
    assert content(folder / "pieces.db") == content(folder / "whole.db")


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_files_and_doing_it_twice_do_not_matter(seed: int, tmp_path: Path, database: Path) -> None:
    log = log_of(seed, 120).splitlines(keepends=True)
    run_import(database, write(tmp_path / "whole", log))
    shuffler = random.Random(seed)
    shuffler.shuffle(log)
    parts = [write(tmp_path / f"part{number}", log[number::7]) for number in range(7)]
    parts[3] = compress(parts[3], tmp_path / "part3.gz")
    other = tmp_path / "other.db"
    for _ in range(2):
        shuffler.shuffle(parts)
        run_import(other, *parts[:4])
        run_import(other, *parts)
    assert content(other) == content(database)
    assert run_import(other, tmp_path / "whole").imported == 0
    assert content(other) == content(database)


# Rotation


def test_a_rotated_file_is_finished_before_the_new_one(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", [HEADER, *lines(4)])
    run_import(database, path)
    append(path, *lines(3, 5))
    path.rename(tmp_path / "accounting.0")
    write(path, [HEADER, *lines(2, 8)])
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes) == (5, 0, [])
    assert totals(database)[0] == 9


def test_a_file_that_was_read_to_its_end_is_found_after_its_rotation(tmp_path: Path, database: Path) -> None:
    """Nobody wrote to it since: its time is still that of the last import."""
    path = write(tmp_path / "accounting", lines(4))
    run_import(database, path)
    path.rename(tmp_path / "accounting.0")
    write(path, lines(2, 5))
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes, report.troubles) == (2, 0, [], [])


def test_a_file_that_had_nothing_but_its_head_is_finished_after_its_rotation_too(
    tmp_path: Path, database: Path
) -> None:
    """Every file of the qmaster begins with the same lines, so these do not tell one from the next."""
    path = write(tmp_path / "accounting", [HEADER])
    assert run_import(database, path).lines == 0
    write(tmp_path / "accounting.0", [HEADER, *lines(3)])
    write(path, [HEADER, *lines(2, 4)])
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes, report.troubles) == (5, 0, [], [])
    assert run_import(database, path).lines == 0


def test_a_compressed_one_too_and_several_rotations(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", [HEADER, *lines(4)])
    run_import(database, path)
    append(path, *lines(3, 5))
    path.rename(tmp_path / "accounting.0")
    compress(tmp_path / "accounting.0", tmp_path / "accounting.1.gz")
    write(tmp_path / "accounting.0", [HEADER, *lines(2, 8)])  # was never seen under the live name
    write(path, [HEADER, *lines(1, 10)])
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes) == (6, 0, [])
    assert run_import(database, path).files == 1, "nothing is looked for any more"


@pytest.mark.parametrize(
    "name", ["accounting-20261101.gz", "accounting.2026-11-01", "accounting_2026.gz", "accounting.old"]
)
def test_dated_archives_are_found(name: str, tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", lines(4))
    run_import(database, path)
    append(path, *lines(1, 5))
    if name.endswith(".gz"):
        compress(path, tmp_path / name)
    else:
        path.rename(tmp_path / name)
    write(path, lines(1, 6))
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes) == (2, 0, [])


def test_other_files_beside_are_left_alone(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", lines(2))
    run_import(database, path)
    write(path, lines(1, 3))
    for name in ("accounting.jsonl", "accounting.conf", "accounting2", "accounting.0.tmp"):
        write(tmp_path / name, lines(1, 100))
    report = run_import(database, path)
    assert (report.files, report.imported) == (1, 1)


def test_what_was_rotated_away_out_of_sight_is_told_once(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", lines(4))
    run_import(database, path)
    write(path, lines(1, 5))
    (note,) = run_import(database, path).notes
    assert "where it was archived, import the archive too" in note
    assert run_import(database, path).notes == []


def test_a_copied_and_truncated_file(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", lines(40))
    run_import(database, path)
    append(path, *lines(2, 41))
    shutil.copy2(path, tmp_path / "accounting.1")
    with path.open("r+b") as file:
        file.truncate(0)
        file.writelines(lines(50, 43))  # already longer than the place that was read to
    report = run_import(database, path)
    assert (report.imported, report.duplicates, report.notes) == (52, 0, [])


def test_a_file_that_was_emptied(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", lines(3))
    run_import(database, path)
    path.rename(tmp_path / "accounting.0")
    append(tmp_path / "accounting.0", *lines(1, 4))
    path.touch()
    assert run_import(database, path).imported == 1
    append(path, *lines(1, 5))
    assert run_import(database, path).imported == 1


def test_an_archive_is_known_again_wherever_it_lies(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", [HEADER, *lines(100)])
    run_import(database, path)
    (tmp_path / "attic").mkdir()
    archive = compress(path, tmp_path / "attic" / "sge-2026.gz")
    report = run_import(database, archive)
    assert (report.lines, report.duplicates) == (0, 0)


def test_files_with_the_same_beginning_are_told_apart(tmp_path: Path, database: Path) -> None:
    many = lines(200)
    run_import(database, write(tmp_path / "a", many))
    report = run_import(database, write(tmp_path / "b", [*many[:50], *lines(200, 1000)]))
    assert (report.imported, report.duplicates) == (200, 50)


def test_a_directory_gives_its_accounting_files(tmp_path: Path, database: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    write(common / "accounting", lines(1))
    write(common / "accounting.jsonl", [jsonl(replace(ANY, job=2))])
    compress(write(common / "accounting.7", lines(1, 3)), common / "accounting.7.gz")
    write(common / "reporting", [b"1:acct:x\n"])
    write(common / "act_qmaster", [b"master\n"])
    report = run_import(database, common)
    assert (report.files, report.imported, report.bad) == (3, 3, 0)
    (tmp_path / "empty").mkdir()
    report = run_import(database, tmp_path / "empty")
    assert report.exit_status == 66
    assert "has no files called accounting or accounting.jsonl; name" in report.troubles[0]
    write(tmp_path / "empty" / "accounting-a.csv", lines(1))
    (trouble,) = run_import(database, tmp_path / "empty").troubles
    assert trouble.endswith(
        "has no files called accounting or accounting.jsonl, and accounting-a.csv is not what rotation makes of one; "
        "name the files themselves, or a pattern"
    )


def zstd_compressed(content: bytes) -> bytes:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    made: bytes = pytest.importorskip(name).compress(content)
    return made


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd_compressed,
}
ROTATED_NAMES = [
    *("accounting.0", "accounting-20260901", "accounting.complete", "accounting.2025.old", "accounting.Sep2025"),
    *("accounting.1.gz", "accounting.xz", "accounting-20260901.bz2", "accounting.2025.old.xz", "accounting.0.zst"),
]


@pytest.mark.parametrize("name", ROTATED_NAMES)
@pytest.mark.parametrize("directory", [True, False])
def test_what_rotates_away_between_two_imports_is_finished(
    name: str, directory: bool, tmp_path: Path, database: Path
) -> None:
    folder = tmp_path / "common"
    folder.mkdir()
    path = write(folder / "accounting", lines(100))
    asked = folder if directory else path
    run_import(database, asked)
    append(path, *lines(50, 101))
    stamp = path.stat().st_mtime_ns
    content, other = path.read_bytes(), folder / name
    path.unlink()
    other.write_bytes(COMPRESSIONS.get(other.suffix, bytes)(content))
    os.utime(other, ns=(stamp, stamp))
    write(path, lines(50, 151))
    report = run_import(database, asked)
    assert (report.imported, report.notes, report.exit_status) == (100, [], 0)
    assert totals(database)[0] == 200
    report = run_import(database, asked)
    assert (report.imported, report.duplicates, report.notes) == (0, 0, [])


class Rotation:
    """A file that gets its next name right before it is looked at, or opened, so many times."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Path, times: int = 1) -> None:
        self._patch, self._path, self._times, self._done = patch, path, times, 0

    def before(self, call: str) -> None:
        """Before a method of `Path` is called for the file, or a file after it."""
        original = getattr(Path, call)

        def rotate_first(path: Path, *arguments: Any, **options: Any) -> Any:
            if path == self._now() and self._done < self._times:
                self._done += 1
                path.rename(self._now())
            return original(path, *arguments, **options)

        self._patch.setattr(Path, call, rotate_first)

    def _now(self) -> Path:
        return self._path.with_name(f"{self._path.name}.{self._done}") if self._done else self._path


@pytest.mark.parametrize("call", ["stat", "is_symlink", "open"])
@pytest.mark.parametrize(("directory", "seen", "times"), [(True, True, 1), (True, False, 3), (False, True, 3)])
def test_what_rotates_while_its_directory_is_read_is_read_in_the_same_run(
    call: str, directory: bool, seen: bool, times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: Path
) -> None:
    folder = tmp_path / "common"
    folder.mkdir()
    path, asked = folder / "accounting", folder if directory else folder / "accounting"
    write(path, lines(100))
    if seen:
        run_import(database, asked)
    append(path, *lines(50, 101))
    if not directory:
        path.rename(folder / "accounting.0")
        write(path, lines(50, 151))
    with monkeypatch.context() as patch:
        Rotation(patch, path if directory else folder / "accounting.0", times).before(call)
        report = run_import(database, asked)
    assert (report.exit_status, report.troubles, report.notes, report.duplicates) == (0, [], [], 0)
    assert totals(database)[0] == (150 if directory else 200)
    if directory:
        write(path, lines(50, 151))
    report = run_import(database, asked)
    assert (report.exit_status, report.troubles, report.notes, report.duplicates) == (0, [], [], 0)
    assert totals(database)[0] == 200


def test_a_directory_whose_files_all_vanish_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: Path
) -> None:
    write(tmp_path / "accounting", lines(1))
    listed = Path.iterdir

    def remove_first(path: Path) -> Iterator[Path]:
        found = list(listed(path))
        for each in found:
            if each.name.startswith("accounting"):
                each.unlink()
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", remove_first)
    (trouble,) = run_import(database, tmp_path).troubles
    assert "has no files called accounting or accounting.jsonl" in trouble


@pytest.mark.parametrize("new", [True, False])
def test_what_rotates_out_of_a_directory_is_told_once(new: bool, tmp_path: Path, database: Path) -> None:
    folder = tmp_path / "common"
    folder.mkdir()
    path = write(folder / "accounting", lines(100))
    write(folder / "accounting.jsonl", [jsonl(replace(ANY, job=1000))])
    run_import(database, folder)
    append(path, *lines(50, 101))
    path.rename(tmp_path / "moved")
    if new:
        write(path, lines(50, 151))
    (note,) = run_import(database, folder).notes
    assert note.startswith(f"{path}: is another file than the last time, and that one is not beside it")
    assert run_import(database, folder).notes == []
    assert run_import(database, folder, tmp_path / "moved").notes == []
    assert totals(database)[0] == (201 if new else 151)


def test_an_archive_that_is_imported_too_is_not_missing(tmp_path: Path, database: Path) -> None:
    for name in ("common", "archive"):
        (tmp_path / name).mkdir()
    path = write(tmp_path / "common/accounting", lines(100))
    run_import(database, tmp_path / "common", now=NOW)
    append(path, *lines(50, 101))
    path.rename(tmp_path / "archive/accounting.1")
    write(path, lines(50, 151))
    report = run_import(database, tmp_path / "common", tmp_path / "archive")
    assert (report.imported, report.notes) == (100, [])


def test_files_of_a_directory_that_are_not_read_are_named(tmp_path: Path, database: Path) -> None:
    write(tmp_path / "accounting", lines(1))
    others = ("accounting.conf", "accounting2", "accounting.other-cluster.gz")
    for name in others:
        write(tmp_path / name, lines(1, 100))
    (note,) = run_import(database, tmp_path).notes
    assert all(name in note for name in others)
    assert run_import(database, tmp_path / "accounting2").imported == 1
    (note,) = run_import(database, tmp_path).notes
    assert "accounting2" not in note


@pytest.mark.parametrize("name", ["accounting", "accounting.1"])
def test_a_link_that_leads_nowhere_is_named_and_the_others_are_read(name: str, tmp_path: Path, database: Path) -> None:
    """The disk that holds the file may not be mounted."""
    write(tmp_path / "accounting.2", lines(2))
    link = tmp_path / name
    link.symlink_to(tmp_path / "elsewhere" / "accounting")
    report = run_import(database, tmp_path)
    assert (report.imported, report.exit_status) == (2, 66)
    assert report.troubles == [f"{link}: No such file or directory; correct the path"]
    write(tmp_path / "found", lines(3))
    link.unlink()
    link.symlink_to(tmp_path / "found")
    assert run_import(database, tmp_path).exit_status == 0
    assert totals(database)[0] == 3


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_damaged_archive_of_any_kind_stops_no_other(suffix: str, tmp_path: Path, database: Path) -> None:
    whole = COMPRESSIONS[suffix](b"".join(lines(50)))
    damaged = write(tmp_path / f"accounting.1{suffix}", [whole[: len(whole) // 2]])
    torn = write(tmp_path / f"accounting.2{suffix}", [whole[:20] + bytes(30) + whole[50:]])
    for path in (damaged, torn):
        os.utime(path, (1, 1))
    write(tmp_path / "accounting", lines(2, 51))
    report = run_import(database, tmp_path)
    assert (report.exit_status, len(report.troubles)) == (66, 2)
    assert all("is damaged, or still being compressed" in trouble for trouble in report.troubles)
    assert f"{CLUSTER}:52:{ANY.started}" in jobs(database)
    damaged.write_bytes(whole)
    torn.unlink()
    assert run_import(database, tmp_path).exit_status == 0
    assert totals(database)[0] == 52


def test_an_archive_of_zstd_is_named_where_nothing_can_read_it(tmp_path: Path, database: Path) -> None:
    packed = write(tmp_path / "accounting.1.zst", [b"\x28\xb5\x2f\xfd" + bytes(20)])
    write(tmp_path / "accounting", lines(2))
    code = (
        "import sys; sys.modules['backports.zstd'] = sys.modules['compression.zstd'] = None; "
        "from publisher.cli.main import main; main()"
    )
    config = write(
        tmp_path / "publisher.yaml",
        [
            b"site: S\nsource: {type: arex, control_dir: /x}\nstate: publishing.db\n"
            b"importers: {gridengine: {cluster: sge.example.org}}\n"
            b"targets: {t: {type: spool, path: out, format: car}}\n"
        ],
    )
    command = [sys.executable, "-c", code, "--config", str(config), "import", "gridengine", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert run.returncode == 66
    assert f"{packed}: is compressed by zstd" in run.stderr
    assert totals(tmp_path / "jobs.db")[0] == 2


# Trouble with files


def test_one_files_trouble_stops_no_other(tmp_path: Path, database: Path) -> None:
    good = write(tmp_path / "accounting", lines(2))
    report = run_import(database, tmp_path / "missing", good)
    assert (report.imported, report.exit_status) == (2, 66)
    assert report.troubles == [f"{tmp_path}/missing: No such file or directory; correct the path"]


def test_a_damaged_archive_in_a_directory_stops_no_other(tmp_path: Path, database: Path) -> None:
    packed = write(tmp_path / "accounting.1.gz", [gzip.compress(b"".join(lines(50)))[:60]])
    os.utime(packed, (1, 1))
    write(tmp_path / "accounting", lines(2, 51))
    report = run_import(database, tmp_path)
    assert (report.imported, report.exit_status, len(report.troubles)) == (2, 66, 1)


def test_a_rotated_file_that_is_still_being_compressed_stops_no_import_and_is_finished_later(
    tmp_path: Path, database: Path
) -> None:
    path = write(tmp_path / "accounting", lines(30))
    run_import(database, path)
    whole = gzip.compress(b"".join(lines(50)))
    packed = write(tmp_path / "accounting.0.gz", [whole[: len(whole) // 2]])
    write(path, lines(2, 51))
    report = run_import(database, path)
    assert (report.exit_status, len(report.troubles), report.notes) == (66, 1, [])
    assert totals(database)[0] >= 32
    packed.write_bytes(whole)
    report = run_import(database, path)
    assert (report.exit_status, report.notes) == (0, [])
    assert totals(database)[0] == 52


@pytest.mark.parametrize("keep", [20, 200, -9])
def test_a_damaged_archive_gives_what_can_be_read_and_the_rest_later(keep: int, tmp_path: Path, database: Path) -> None:
    noise = [colon(replace(ANY, job=n, name=random.Random(n).randbytes(40).hex())) for n in range(1, 4_000)]
    whole = gzip.compress(b"".join(noise))
    path = tmp_path / "accounting.1.gz"
    path.write_bytes(whole[:keep])
    report = run_import(database, path)
    assert report.exit_status == 66
    assert "is damaged, or still being compressed" in report.troubles[0]
    assert report.bad == 0
    path.write_bytes(whole)
    assert run_import(database, path).exit_status == 0
    assert totals(database)[0] == len(noise)


def test_a_compressed_file_has_no_writer_so_its_last_line_counts(tmp_path: Path, database: Path) -> None:
    path = compress(write(tmp_path / "a", [*lines(1), lines(1, 2)[0].rstrip(b"\n")]), tmp_path / "a.gz")
    assert run_import(database, path).imported == 2
    assert run_import(database, path).lines == 0


@pytest.mark.slow
def test_a_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """A line without end, and no end of lines."""
    path = tmp_path / "accounting.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.write(b"\n" + b"\n" * 2**18 + lines(1)[0])
    tracemalloc.start()
    try:
        with opened(path) as log:
            found = [(line.length, len(line.content)) for line in lines_of(log, 0) if line.length]
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()
    assert found == [(64 * 2**20, 4096), (len(lines(1)[0]) - 1, len(lines(1)[0]) - 1)]


# Crashes and company

SET_UP = """
from publisher.sources.gridengine import importer
from publisher.sources.files import line_importer
from tests.support.gridengine_files import run_import
from tests.support.strategies import examples

line_importer._BATCH_PIECES = 20
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    logs = [write(folder / "accounting.0", [log_of(7, 900)]), write(folder / "accounting", [log_of(8, 900, 901)])]
    run_import(folder / "expected.db", *logs)
    return [folder / "expected.db", *logs]


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on_where_it_was(files: list[Path], database: Path) -> None:
    expected, *logs = files
    rng = random.Random(1)
    ends = [child(SET_UP, database, rng.randrange(1, 300), *logs).wait(PATIENCE_S) for _ in range(14)]
    assert ends[:8] == [-signal.SIGKILL] * 8
    report = run_import(database, *logs)
    assert report.troubles == []
    assert content(database) == content(expected)


@pytest.mark.slow
def test_several_importers_at_once(files: list[Path], database: Path) -> None:
    expected, *logs = files
    processes = [child(SET_UP, database, FOR_EVER, *order) for order in (logs, logs[::-1], logs)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    assert content(database) == content(expected)


def test_an_import_beside_its_reader_and_a_growing_file(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "accounting", [])
    pieces = log_of(3, 300)

    def grow() -> None:
        for start in range(0, len(pieces), 1500):
            append(path, pieces[start : start + 1500])

    writer = Thread(target=grow)
    writer.start()
    counts: list[ImportReport] = []
    while writer.is_alive():
        counts.append(run_import(database, path))
    writer.join()
    counts.append(run_import(database, path))
    run_import(tmp_path / "whole.db", write(tmp_path / "whole", [pieces]))
    assert content(database) == content(tmp_path / "whole.db")
    assert sum(report.imported for report in counts) == totals(database)[0]


def test_the_beginning_of_time_is_not_needed(tmp_path: Path, database: Path) -> None:
    assert run_import(database, write(tmp_path / "accounting", [HEADER])).lines == 0
    append(tmp_path / "accounting", *lines(1))
    assert run_import(database, tmp_path / "accounting").imported == 1
    assert next(iter(jobs(database).values()))["SubmitTime"] == BEGIN


# Progress


@pytest.mark.slow
def test_how_far_it_is_is_told_step_by_step(tmp_path: Path, database: Path) -> None:
    """Years of accounting take minutes; every importer tells of them in one way."""
    log = write(tmp_path / "accounting", [colon(entry) for entry in entries(1, 3_000)])
    told = write(tmp_path / "0+job-slurm.json", list(islice(sonar_files.collections(1, 200), 60)))
    for report, seen in (
        watched(gridengine, gridengine.create(gridengine.Options(cluster="c"), {}), log, database),
        watched(sonar, sonar.create(sonar.Options(cluster=sonar_files.CLUSTER), {}), told, tmp_path / "sonar.db"),
    ):
        assert sum(seen) == report.lines > 0


def watched(plugin: ModuleType, importer: Importer, path: Path, database: Path) -> tuple[ImportReport, list[int]]:
    seen: list[int] = []
    with source_jobs(database, plugin.TABLES) as jobs:
        return importer.run([path], jobs, NOW, seen.append), seen


class Plain(LineImporter[GridEngineRecord]):
    """An importer of records that are jobs, with no more than it must have."""

    files = ("accounting",)
    kind = "an accounting file"

    def __init__(self, options: gridengine.Options) -> None:
        self._mapping = GridEngineMapping(options)
        super().__init__(self._mapping)

    def pieces(self, file: LogFile, start: int) -> Iterator[LogPiece[GridEngineRecord]]:
        return by_line(file, start, lambda line: read_line(line, gridengine.Options().time_unit))

    def job(self, record: GridEngineRecord) -> JobRecord:
        return self._mapping.job(ParallelRun(master=record, tasks=()))


def test_an_importer_whose_records_are_jobs_only_reads_pieces_and_makes_jobs(tmp_path: Path, database: Path) -> None:
    """It has nothing to keep beside jobs, to leave out or to report."""
    log = write(tmp_path / "accounting", [colon(replace(ANY, job=number)) for number in range(1, 31)])
    run_import(database, log)
    plain = Plain(gridengine.Options(cluster=CLUSTER))
    report = read_into(tmp_path / "plain.db", plain, "", log, now=NOW)
    assert (report.imported, report.bad, report.notes) == (30, 0, [])
    assert totals(tmp_path / "plain.db") == totals(database)


def test_an_importer_without_tables_of_its_own_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gridengine, "TABLES")
    spool = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False, "start": "all"}
    source = {"type": "gridengine", "cluster": CLUSTER, "paths": [str(tmp_path / "accounting")]}
    config = {"source": [source], "state": str(tmp_path / "publisher.db"), "site": "HERE", "targets": {"files": spool}}
    (tmp_path / "publisher.yaml").write_text(json.dumps(config))
    site = configured_site(tmp_path / "publisher.yaml", Event())
    (entry,) = site.batch_systems.entries
    with closing(open_store(tmp_path / "jobs.db")) as store:
        assert site.ces.part(store, entry).name == "gridengine"
