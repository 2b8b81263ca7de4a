"""Envelopes of Sonar in files that grow, break and repeat themselves: whatever happens, the database ends up the same."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import signal
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from publisher.jobs.batch import SourceJobs
from publisher.jobs.store import open_store
from publisher.sources.files.log_files import opened
from publisher.sources.gridengine import importer as gridengine
from publisher.sources.sonar import envelopes
from publisher.sources.sonar.envelopes import EnvelopeReader, Piece
from publisher.sources.sonar.importer import TABLES, Options, create
from tests.sources.mortal_imports import FOR_EVER, child
from tests.support import gridengine_files as sge
from tests.support.batch_stores import asked, records
from tests.support.gridengine_files import jobs, write
from tests.support.patience import PATIENCE_S, bounded
from tests.support.sonar_files import (
    CLUSTER,
    NOW,
    TOKEN,
    after,
    collections,
    content,
    envelope,
    in_parts,
    other,
    record,
    run_import,
    step,
    trouble,
)
from tests.support.strategies import examples


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "imported.db"


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [envelope([record(job_id=number)]) for number in range(first, first + count)]


def append(path: Path, *new: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(new)


def whole_log(seed: int, count: int = 20) -> bytes:
    told = list(collections(seed, count))
    torn = told[1][: len(told[1]) // 2]
    return b"".join([*told[: len(told) // 2], torn, b"garbage\n", *told[len(told) // 2 :]])


def pieces(path: Path, start: int = 0) -> list[Piece]:
    with opened(path) as file:
        return list(EnvelopeReader(file, start).pieces())


# Envelopes in a file


@pytest.mark.parametrize("indent", [None, 0, 2, "\t"])
@pytest.mark.parametrize("between", [b"", b"\n", b"\n\n \t\r\n"])
def test_objects_follow_each_other_with_any_white_space(indent: Any, between: bytes, tmp_path: Path) -> None:
    objects = [{"meta": {"n": n}, "data": {"x": ["a}{", '"', "\\", {"é": "東"}]}} for n in range(5)]
    texts = [json.dumps(each, indent=indent, ensure_ascii=n % 2 == 0).encode() for n, each in enumerate(objects)]
    path = write(tmp_path / "f", [between.join(texts)])
    assert [piece.envelope for piece in pieces(path)] == objects


def test_meta_need_not_come_first(tmp_path: Path) -> None:
    path = write(tmp_path / "f", [b'{"data":{},"meta":{}} {"data":\n{},"meta":{}}\n{"errors":[]}'])
    assert [piece.wrong for piece in pieces(path)] == ["", "", ""]


@pytest.mark.parametrize("cut", range(20, 400, 37))
def test_a_torn_envelope_costs_itself_alone(cut: int, tmp_path: Path) -> None:
    whole = envelope([record()])
    path = write(tmp_path / "f", [whole, whole[:cut], whole, whole[:cut], b"\n", whole])
    found = pieces(path)
    assert [piece.envelope is not None for piece in found] == [True, False, True, False, True]
    assert [piece.offset for piece in found][:3] == [0, len(whole), len(whole) + cut]


def test_what_is_not_whole_yet_waits(tmp_path: Path, database: Path) -> None:
    whole = envelope([record()], indent=2)
    for cut in (1, 30, len(whole) // 2, len(whole) - 2):
        path = write(tmp_path / f"f{cut}", [whole[:cut]])
        report = run_import(database.with_name(f"{cut}.db"), path)
        assert (report.lines, report.bad) == (0, 0)
        assert report.notes == [
            f"1 file ends inside an envelope; the rest is read when it comes: {path} ({cut:,} bytes)"
        ]
        append(path, whole[cut:])
        report = run_import(database.with_name(f"{cut}.db"), path)
        assert (report.imported, report.bad, report.notes) == (1, 0, [])


def test_a_compressed_file_has_no_writer(tmp_path: Path, database: Path) -> None:
    whole = envelope([record()])
    path = write(tmp_path / "0+job-slurm.json.gz", [gzip.compress(whole + whole[:50])])
    report = run_import(database, path)
    assert (report.imported, report.bad, report.bad_lines[0].reason) == (1, 1, "torn: it has no end")


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                [envelope([record()]), envelope([], indent=1), trouble("x"), b'{"a":[}', b"{", b'"', b"\n", b"\\"]
            ),
            st.binary(max_size=12),
            st.sampled_from([b'{\n  "meta"', b"x{", b"\n\n", b'{"x":"' + b"y" * 500]),
            st.sampled_from([b'{"meta":', b'{ "meta" :', b"[[[", b'{"meta":{"producer":"so', b"}", b" "]),
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 2_000), max_size=4),
    chunk=st.integers(1, 3000),
)
def test_pieces_are_the_same_however_the_file_grew(
    parts: list[bytes], cuts: list[int], chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    log = b"".join(parts)
    assume(not log.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")))  # compressed, and damaged
    grown: list[Piece] = []
    start = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("publisher.sources.sonar.envelopes.MOST_ENVELOPE_BYTES", 800)
        whole = pieces(write(folder / "whole", [log]))
        patch.setattr("publisher.sources.files.log_files._CHUNK_BYTES", chunk)
        for cut in [*sorted(min(cut, len(log)) for cut in cuts), len(log)]:
            found = pieces(write(folder / "grown", [log[:cut]]), start)
            grown += found
            start = found[-1].end if found else start
    key = [(piece.offset, piece.envelope, piece.wrong, piece.digest) for piece in whole]
    assert [(piece.offset, piece.envelope, piece.wrong, piece.digest) for piece in grown] == key


def test_marks_hold_for_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "f", numbered(1))
    with opened(path) as file:
        append(path, *numbered(30, 2))
        reader = EnvelopeReader(file, 0)
        marks = [reader.mark(piece.end, reader.tail(piece.end)) for piece in reader.pieces()]
    assert len(marks) == 31
    with opened(path) as file:
        assert all(file.fits(mark) for mark in marks)


# Growing, copies, order


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 5), cuts=st.lists(st.integers(0, 60_000), max_size=6))
def test_a_file_read_in_pieces_gives_what_the_whole_gives(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    log = whole_log(seed)
    run_import(folder / "whole.db", write(folder / "whole", [log]))
    live = write(folder / "live", [])
    for start, end in pairwise(sorted({min(cut, len(log)) for cut in cuts} | {0, len(log)})):
        append(live, log[start:end])
        # A job that is over meanwhile is imported, and changes when more is told of it.
        run_import(folder / "pieces.db", live, now=NOW if start % 2 else NOW - timedelta(days=60))
    run_import(folder / "pieces.db", live)
    assert content(folder / "pieces.db") == content(folder / "whole.db")


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_envelopes_and_doing_it_twice_do_not_matter(seed: int, tmp_path: Path, database: Path) -> None:
    told = [*collections(seed, 40), b"garbage\n", trouble("No can do")]
    told += in_parts(told[:-2], seed)
    run_import(database, write(tmp_path / "whole", told))
    assert len(jobs(database)) > 20
    shuffler = random.Random(seed)
    shuffler.shuffle(told)
    parts = [write(tmp_path / f"part{number}", told[number::7]) for number in range(7)]
    parts[3] = write(tmp_path / "part3.gz", [gzip.compress(parts[3].read_bytes())])
    for _ in range(2):
        shuffler.shuffle(parts)
        run_import(tmp_path / "other.db", *parts[:4])
        run_import(tmp_path / "other.db", *parts)
    assert content(tmp_path / "other.db") == content(database)
    report = run_import(tmp_path / "other.db", tmp_path / "whole")
    assert (report.imported, report.updated, report.skipped.total(), report.bad) == (0, 0, 0, 0)
    assert report.duplicates == report.lines - 1  # all but the garbage
    assert content(tmp_path / "other.db") == content(database)


def test_only_what_is_new_is_read(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "0+job-slurm.json", numbered(10))
    assert run_import(database, path).lines == 10
    assert run_import(database, path).lines == 0
    append(path, *numbered(5, 11))
    report = run_import(database, path)
    assert (report.lines, report.imported, report.duplicates) == (5, 5, 0)


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "0+job-slurm.json", numbered(5))
    run_import(database, path)
    write(path, numbered(9, 6))
    assert run_import(database, path).imported == 9
    path.unlink()
    assert run_import(database, path).exit_status == 66


# Trees


def test_a_tree_gives_the_files_that_sonar_names_so(tmp_path: Path, database: Path) -> None:
    root = tmp_path / "data"
    for day in ("20", "21"):
        folder = root / "2026" / "09" / day
        folder.mkdir(parents=True)
        write(folder / "0+job-slurm.json", numbered(3, int(day) * 10))
        write(
            folder / "0+cluzter-slurm.json", [other("cluster", after(0), partitions=[{"name": "normal", "nodes": []}])]
        )
        write(folder / "0+sample-c1-9.json", [other("sample", after(0), node="c1-9", jobs=[])])
        write(folder / "0+sysinfo-c1-9.json", [other("sysinfo", after(0), node="c1-9", sockets=2, cores_per_socket=4)])
        write(folder / "slurm-sacct.csv", [b"v=0.9.0,time=x\n"] * 50)
        write(folder / "sysinfo-c1-9.json", [b"[1]\n"])
        write(folder / "notes.txt", [b"hello"])
    os.rename(root / "2026/09/20/0+job-slurm.json", tmp_path / "x")
    write(root / "2026/09/20/0+job-slurm.json.gz", [gzip.compress((tmp_path / "x").read_bytes())])
    report = run_import(database, root)
    assert (report.files, report.imported, report.bad, report.troubles) == (8, 6, 0, [])
    assert run_import(database, root, samples=False).files == 6
    (tmp_path / "empty").mkdir()
    report = run_import(database, tmp_path / "empty")
    assert (report.exit_status, report.troubles) == (
        66,
        [f"{tmp_path}/empty: has no files called 0+job-slurm.json or the like; name the files themselves"],
    )


@pytest.mark.parametrize("suffix", [".xz", ".bz2", "-20260922", ".old", ".complete.gz"])
def test_files_of_a_tree_that_were_rotated_are_read(suffix: str, tmp_path: Path) -> None:
    content = envelope([record()])
    ways: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".bz2": bz2.compress, ".gz": gzip.compress}
    packed = ways.get(Path(suffix).suffix, bytes)(content)
    day = tmp_path / "tree/2026/09/21"
    day.mkdir(parents=True)
    write(day / f"0+job-slurm.json{suffix}", [packed])
    write(day / "0+job-other.json", [envelope([record(job_id=2)])])
    report = run_import(tmp_path / "imported.db", tmp_path / "tree")
    assert (report.imported, report.notes) == (2, [])


def test_files_of_a_tree_that_are_not_read_are_named(tmp_path: Path) -> None:
    day = tmp_path / "tree/2026/09/21"
    day.mkdir(parents=True)
    write(day / "0+job-slurm.json", [envelope([record()])])
    for name in ("0+job-slurm.json.part2", "0+job-slurm", "0+sample-c1.csv", "job.csv"):
        write(day / name, [b"x"])
    (note,) = run_import(tmp_path / "imported.db", tmp_path / "tree").notes
    assert all(str(day / name) in note for name in ("0+job-slurm.json.part2", "0+job-slurm", "0+sample-c1.csv"))
    assert "job.csv" not in note
    (note,) = run_import(tmp_path / "other.db", tmp_path / "tree", samples=False).notes
    assert "0+sample-c1.csv" not in note


def test_folders_of_a_tree_may_be_links(tmp_path: Path) -> None:
    """Old years lie on another disk; a link may also lead back up."""
    tree, archive = tmp_path / "tree", tmp_path / "archive/09/21"
    (tree / "2027").mkdir(parents=True)
    archive.mkdir(parents=True)
    write(archive / "0+job-slurm.json", [envelope([record()])])
    write(tree / "2027/0+job-slurm.json", [envelope([record(job_id=2)])])
    (tree / "2026").symlink_to(tmp_path / "archive")
    (tree / "2027/up").symlink_to(tree)
    report = run_import(tmp_path / "imported.db", tree)
    assert (report.imported, report.files, report.troubles) == (2, 2, [])


def test_a_file_that_left_the_tree_soon_is_told_once(tmp_path: Path) -> None:
    """It may have grown between the last import and its end. What was compressed, or is days old, is not missed."""
    database, tree = tmp_path / "imported.db", tmp_path / "tree"
    today, old = NOW.strftime("%Y/%m/%d"), "2026/01/01"
    for day in (today, old):
        (tree / day).mkdir(parents=True)
        write(tree / day / "0+job-slurm.json", [envelope([record()])])
    packed = write(tree / today / "0+job-two.json", [envelope([record(job_id=2)])])
    write(tree / today / "0+job-three.json", [envelope([record(job_id=3)])])
    assert run_import(database, tree).notes == []
    (tree / old / "0+job-slurm.json").unlink()
    (tree / today / "0+job-slurm.json").unlink()
    write(tree / today / "0+job-two.json.xz", [lzma.compress(packed.read_bytes())])
    packed.unlink()
    (note,) = run_import(database, tree).notes
    assert note.startswith("1 file is gone that had been read the last time")
    assert str(tree / today / "0+job-slurm.json") in note
    assert run_import(database, tree).notes == []


def test_a_day_that_cannot_be_searched_stops_no_other(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [tmp_path / "data" / "2026" / "09" / day for day in ("20", "21", "22")]
    for number, day in enumerate(days, start=1):
        day.mkdir(parents=True)
        write(day / "0+job-slurm.json", numbered(1, number))
    scan = os.scandir

    def forbidding(path: str) -> Any:
        if path == str(days[1]):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    report = run_import(database, tmp_path / "data")
    assert (report.imported, report.exit_status) == (2, 66)
    assert report.troubles == [f"{days[1]}: Permission denied; let this user search it"]


def test_files_of_days_long_gone_are_not_even_opened(tmp_path: Path, database: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = [write(root / f"0+job-{n}.json", numbered(2, n * 10)) for n in range(5)]
    run_import(database, root)
    stamp = files[0].stat()
    files[0].write_bytes(b"x" * stamp.st_size)  # would be found out
    os.utime(files[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    report = run_import(database, root)
    assert (report.files, report.lines) == (5, 0)


def test_one_files_trouble_stops_no_other(tmp_path: Path, database: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write(root / "0+job-a.json.gz", [gzip.compress(b"".join(numbered(50)))[:-20]])
    write(root / "0+job-b.json", numbered(2, 100))
    (root / "0+job-c.json").symlink_to(tmp_path / "nowhere")
    report = run_import(database, tmp_path / "missing", root)
    assert (report.imported >= 2, report.exit_status) == (True, 66)
    assert [trouble.split(": ")[1][:24] for trouble in report.troubles] == [
        "No such file or director",
        "is damaged, or still bei",
        "No such file or director",
    ]


def test_a_file_of_something_else_is_refused_as_a_whole(tmp_path: Path, database: Path) -> None:
    strange = write(tmp_path / "slurm.csv", [b"job,user,%d\n" % n for n in range(50)])
    report = run_import(database, strange, write(tmp_path / "good", numbered(1)))
    assert (report.bad, report.imported, report.bad_kept, report.exit_status) == (0, 1, 0, 66)
    assert report.troubles == [
        f"{strange}: is not a file of Sonar, or not in a form that is known; its first line: not an envelope of Sonar"
    ]


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            b"v=0.7.0,time=2023-08-10T11:09:41+02:00,host=c1,cores=8,user=ada,job=0,cmd=fish",
            "CSV format of Sonar (version 0.7.0)",
        ),
        (b'v=0.13.200,time=2025-01-10T11:09:41+01:00,host=c1,user=ada,cmd=x,"gpus=1,2",job=7', "version 0.13.200"),
        (b'"JobName=a,b",State=COMPLETED,User=ada,v=0.12.0,JobID=4711', "version 0.12.0"),
        (b"v=0.11.0,JobID=4711,JobIDRaw=4711,User=ada,Account=theory,State=COMPLETED", "version 0.11.0"),
        (b"v=0.11.0,error=sacct failed,timestamp=2025-01-10T11:09:41+01:00", "CSV format"),
        (b"2023-03-01T10:00:00.123456789+00:00,c1.example.org,8,ada,0,fish,2.1,64400", "version 0.6 or older"),
        (b'{"v":"0.13.0","jobs":[{"JobID":"1"}]}', "JSON format of Sonar (version 0.13.0)"),
        (b'{"v":"0.13.0","time":"2025-01-10T11:09:41+01:00","host":"c1","samples":[]}', "JSON format"),
        (b'{"v":13,"jobs":[{"JobID":"1"}]}', "JSON format of Sonar, which"),
        (b'{"v":"0.13.0","error":"sacct failed","timestamp":"2025-01-10T11:09:41+01:00"}', "JSON format"),
        (b'{"timestamp":"2025-01-10T11:09:41+01:00","hostname":"c1","cpu_cores":8}', "JSON format of Sonar, which"),
        (b'{"meta":{},"data":{"type":"slurm_jobs"}}', "written by Sonar before 0.13"),
    ],
)
def test_a_file_in_an_old_format_of_sonar_is_called_so(
    line: bytes, what: str, count: int, tmp_path: Path, database: Path
) -> None:
    old = write(tmp_path / "c1.csv", [line + b"\n"] * count)
    report = run_import(database, old, write(tmp_path / "good", numbered(1)))
    assert (report.bad, report.imported, report.bad_kept, report.exit_status) == (0, 1, 0, 66)
    (trouble,) = report.troubles
    assert trouble.startswith(f"{old}: ")
    assert what in trouble
    assert "which is not read: import what" in trouble or "a form that is not read: import what" in trouble
    assert "`publisher import slurm`" in trouble


def test_a_line_in_an_old_format_stops_no_envelope(tmp_path: Path, database: Path) -> None:
    mixed = write(tmp_path / "0+job-slurm.json", [b"v=0.7.0,time=x,job=1\n", *numbered(1)])
    report = run_import(database, mixed)
    assert (report.imported, report.bad, report.exit_status) == (1, 1, 65)
    assert "old CSV format of Sonar" in report.bad_lines[0].reason


@pytest.mark.parametrize("name", ["slurm-sacct.csv", "c1.csv", "slurm-sacct.json", "sysinfo-c1.json"])
def test_a_tree_of_old_files_alone_is_called_so(name: str, tmp_path: Path, database: Path) -> None:
    day = tmp_path / "tree/2023/08/10"
    day.mkdir(parents=True)
    write(day / name, [b"v=0.11.0,JobID=4711\n"])
    report = run_import(database, tmp_path / "tree")
    (trouble,) = report.troubles
    assert "old formats of Sonar" in trouble
    assert str(day / name) in trouble
    assert "`publisher import slurm`" in trouble


# Bounds


def test_an_envelope_without_an_end_is_passed_over_in_bounded_memory(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0+job-slurm.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(numbered(1)[0] + b'{"meta":{"producer":"')
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.write(b"".join(numbered(1, 2)))
    tracemalloc.start()
    try:
        report = run_import(database, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.imported, report.bad) == (2, 1)
    assert (report.bad_lines[0].length, len(report.bad_lines[0].line)) == (64 * 2**20 + 21, 4096)
    assert peak < 64 * 2**20


def test_a_growing_envelope_without_an_end_waits_and_is_told(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "MOST_ENVELOPE_BYTES", 3000)
    endless = b'{"meta":{"x":"' + b"x" * 20_000
    path = write(tmp_path / "f", [*numbered(2), endless])
    report = run_import(database, path)
    assert (report.imported, report.bad, len(report.notes)) == (2, 0, 1)
    append(path, *numbered(2, 3))
    report = run_import(database, path)
    assert (report.imported, report.bad, report.notes) == (2, 1, [])


@pytest.mark.parametrize(
    "strange",
    [
        b'{"meta":' * 30_000,
        b"[" * 1_000_000 + b"\n",
        b'{"meta":{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}}",
        b'{"meta":{},"data":{"type":"job","attributes":{"time":"' + b"2" * 1_000_000 + b'"}}}',
        b'{"meta":' + b"9" * 100_000 + b"}",
        b"{" * 1_000_000,
        b'{"x":"' + b'\\"' * 1_000_000 + b'"}',
        b'{"' * 500_000 + b"}",
        b"\x00" * 1_000_000,
        b"\xff\n" * 30_000,
        b"{}" * 30_000,
        b'{"meta":{}} ' * 30_000,
    ],
)
@pytest.mark.some(2)
@pytest.mark.slow
def test_nothing_takes_for_ever(strange: bytes, tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "f", [*numbered(1), strange, b"\n", *numbered(1, 2)])
    with bounded():
        report = run_import(database, path)
    assert report.imported == 2


@pytest.mark.slow
def test_a_job_with_a_great_many_steps_or_runs_is_read_in_reasonable_time(tmp_path: Path, database: Path) -> None:
    steps = [step(str(number), job_id=1, sacct__AveCPU=2) for number in range(20_000)]
    runs = [record(job_id=2, start_time=after(n), end_time=after(n + 60)) for n in range(3000)]
    told = [envelope(each[at : at + 500]) for each in (steps, runs) for at in range(0, len(each), 500)]
    with bounded():
        report = run_import(database, write(tmp_path / "f", [envelope([record(job_id=1, sacct__UserCPU=0)]), *told]))
    assert report.skipped == {"more than 200 runs, which no job has": 1}
    (job,) = jobs(database).values()
    assert job["UsedCPUUserTime"] + job["UsedCPUKernelTime"] == 40_000


# Secrets


def test_the_token_is_nowhere(tmp_path: Path, database: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = envelope([record()])
    bad = [
        good[: good.index(TOKEN.encode()) + 6],  # torn inside of it
        good[:300],
        b'{"meta" : {"token" :\n"' + TOKEN.encode() + b'"}, "data": 1}',
        b'{"meta":{"token":"a\\"' + TOKEN.encode() + b'"},"data":{},"errors":[]}',
        b'garbage "token":"' + TOKEN.encode() + b'"\n',
        envelope([{"job_id": "x", "token": TOKEN}]),
        envelope([record()], kind="slurm_jobs"),
        trouble("No can do"),
    ]
    with caplog.at_level("DEBUG"):
        report = run_import(database, write(tmp_path / "f", [part for each in bad for part in (each, good)]))
    assert report.bad == 7
    for secret in (TOKEN, TOKEN[:6]):
        assert secret not in repr(report) + caplog.text
        with asked(database) as connection:
            assert secret not in "\n".join(connection.iterdump())
        for file in tmp_path.glob("imported.db*"):
            assert secret.encode() not in file.read_bytes()


# Crashes and company

SET_UP = """
from publisher.sources.sonar import importer
from tests.support.sonar_files import run_import
from tests.support.strategies import examples

importer._BATCH_RECORDS = 20
importer._SETTLED_AT_ONCE = 7
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    logs = [write(folder / f"0+job-{seed}.json", collections(seed, 80, seed * 100)) for seed in (7, 8)]
    run_import(folder / "expected.db", *logs)
    return [folder / "expected.db", *logs]


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on_where_it_was(files: list[Path], database: Path) -> None:
    expected, *logs = files
    rng = random.Random(1)
    ends = [child(SET_UP, database, rng.randrange(1, 400), *logs).wait(PATIENCE_S) for _ in range(10)]
    assert ends[:5] == [-signal.SIGKILL] * 5
    report = run_import(database, *logs)
    assert report.troubles == []
    assert content(database) == content(expected)


@pytest.mark.parametrize("step", [60, 120])  # statements: both while the file is read
def test_a_compressed_file_is_read_to_its_end_after_a_kill(
    step: int, files: list[Path], tmp_path: Path, database: Path
) -> None:
    packed = write(tmp_path / "0+job-slurm.json.gz", [gzip.compress(files[1].read_bytes())])
    run_import(tmp_path / "whole.db", packed)
    assert child(SET_UP, database, step, packed).wait(PATIENCE_S) == -signal.SIGKILL
    first = run_import(database, packed)
    assert first.lines > 0
    assert content(database) == content(tmp_path / "whole.db")
    assert run_import(database, packed).lines == 0


def test_several_importers_at_once(files: list[Path], database: Path) -> None:
    expected, *logs = files
    processes = [child(SET_UP, database, FOR_EVER, *order) for order in (logs, logs[::-1], logs)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    assert content(database) == content(expected)


def test_an_import_of_a_growing_file(tmp_path: Path, database: Path) -> None:
    path = write(tmp_path / "f", [])
    log = whole_log(3, 30)

    def grow() -> None:
        for start in range(0, len(log), 1500):
            append(path, log[start : start + 1500])

    writer = Thread(target=grow)
    writer.start()
    while writer.is_alive():
        run_import(database, path)
    writer.join()
    run_import(database, path)
    run_import(tmp_path / "whole.db", write(tmp_path / "whole", [log]))
    assert content(database) == content(tmp_path / "whole.db")


def test_both_importers_share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "jobs.db"
    told, log = write(tmp_path / "f", numbered(2)), write(tmp_path / "accounting", [sge.colon(sge.Entry())])
    with closing(open_store(store)) as opened:
        create(Options(cluster=CLUSTER), {}).run([told], SourceJobs(opened, "fox", TABLES), NOW)
        of_sge = gridengine.create(gridengine.Options(cluster=sge.CLUSTER), {})
        of_sge.run([log], SourceJobs(opened, "sge", gridengine.TABLES), NOW)
    assert sorted(job.row.database for job in records(store)) == ["fox", "fox", "sge"]
    assert {job.job_id.split(":")[0] for job in records(store)} == {CLUSTER, sge.CLUSTER}
