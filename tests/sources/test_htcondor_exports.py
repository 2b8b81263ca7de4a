"""Histories in JSON and XML, which sites print: whole, growing, compressed, torn, and hostile."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.cli import parser as command_line
from publisher.sources.htcondor.classads import BadAd, read_ad, read_record, read_value
from publisher.sources.htcondor.exports import form_of, framed_ads
from tests.sources.test_import_htcondor import HOSTILE, content
from tests.support.condor_history import NOW, Ad, Raw, ad, ads_of, rolling, run_import, text, usage, write

Writer = Callable[[Iterable[Mapping[str, object]]], bytes]
SPECS = Raw("[ HEPSPEC = 12.5; SI2K = 3125 ]")


def json_text(value: object) -> str:
    if isinstance(value, Raw):
        if value.startswith("["):
            inner = (part.partition("=") for part in value.strip("[] ").split(";"))
            return "{" + ",".join(f'"{name.strip()}": {number.strip()}' for name, _, number in inner) + "}"
        return '"\\/Expr(' + value.replace("\\", "\\\\").replace('"', '\\"') + ')\\/"'
    return json.dumps(value, ensure_ascii=False)


def json_ad(one: Mapping[str, object]) -> str:
    """As HTCondor indents them."""
    return "{\n" + ",\n".join(f'  "{name}": {json_text(value)}' for name, value in one.items()) + "\n}\n"


def json_history(ads: Iterable[Mapping[str, object]]) -> bytes:
    return ("[\n" + ",\n".join(map(json_ad, ads)) + "]\n").encode("utf-8", "surrogateescape")


def json_in_a_line(ads: Iterable[Mapping[str, object]]) -> bytes:
    return json_history(ads).replace(b"\n", b"")


def json_lines(ads: Iterable[Mapping[str, object]]) -> bytes:
    return "".join(json_ad(one).replace("\n", "") + "\n" for one in ads).encode("utf-8", "surrogateescape")


def xml_value(value: object) -> str:
    if isinstance(value, Raw):
        if value.startswith("["):
            inner = (part.partition("=") for part in value.strip("[] ").split(";"))
            return "<c>" + "".join(f'<a n="{n.strip()}"><r>{v.strip()}</r></a>' for n, _, v in inner) + "</c>"
        return f"<e>{escape(value)}</e>"
    if isinstance(value, bool):
        return f'<b v="{str(value).lower()[0]}"/>'
    if isinstance(value, str):
        return f"<s>{escape(value)}</s>"
    return f"<r>{value:.15E}</r>" if isinstance(value, float) else f"<i>{value}</i>"


PROLOG = '<?xml version="1.0"?>\n<!DOCTYPE classads SYSTEM "classads.dtd">\n<classads>\n'


def xml_ad(one: Mapping[str, object]) -> str:
    attributes = (f"    <a n={quoteattr(name)}>{xml_value(value)}</a>\n" for name, value in one.items())
    return f"<c>\n{''.join(attributes)}</c>\n"


def xml_history(ads: Iterable[Mapping[str, object]]) -> bytes:
    return (PROLOG + "".join(map(xml_ad, ads)) + "</classads>\n").encode("utf-8", "surrogateescape")


def xml_in_a_line(ads: Iterable[Mapping[str, object]]) -> bytes:
    return xml_history(ads).replace(b"\n", b"")


WRITERS = [json_history, json_in_a_line, json_lines, xml_history, xml_in_a_line]
EACH = pytest.mark.parametrize("writer", WRITERS)


def various(seed: int, count: int) -> list[Ad]:
    special: Ad = {"Arguments": 'a "b" \\ <c> & {"x": [1]}', "JobBatchName": "müsli, <c>", "Nothing": Raw("undefined")}
    ads = ads_of(seed, count)
    return [one | special | {"MachineAttrApelSpecs0": SPECS, "NumVacates": Raw("[ Hold = 1 ]")} for one in ads]


@EACH
def test_each_form_gives_the_jobs_of_the_long_one(tmp_path: Path, writer: Writer) -> None:
    ads = various(1, 200)
    expected, database = tmp_path / "expected.db", tmp_path / "imported.db"
    long = run_import(expected, write(tmp_path / "history", rolling(ads)))
    report = run_import(database, write(tmp_path / "jobs", writer(ads)))
    assert (report.lines, report.imported, report.skipped) == (long.lines, long.imported, long.skipped)
    assert (report.imported, report.bad, report.troubles) == (usage(ads)[0], 0, [])
    assert content(database) == content(expected)
    again = run_import(database, tmp_path / "jobs")
    assert (again.lines, again.imported, again.troubles, again.notes) == (0, 0, [], [])


@EACH
def test_a_file_that_grows_is_read_on_from_where_it_was(tmp_path: Path, writer: Writer) -> None:
    """At any byte; several documents may follow each other."""
    path, database = tmp_path / "jobs", tmp_path / "imported.db"
    whole = writer(various(2, 12)) + writer(various(3, 1)) + writer([ad(77), ad(78)])
    first = whole.index(writer([various(2, 12)[0]])[len(PROLOG) : -20][:40])  # of an ad that is whole soon after
    rng, lines = random.Random(5), 0
    for end in sorted(rng.sample(range(first + 3000, len(whole)), 25)):
        report = run_import(database, write(path, whole[:end]))
        assert (report.bad, report.troubles, report.notes) == (0, [], [])
        lines += report.lines
    assert lines + run_import(database, write(path, whole)).lines == 15
    expected = tmp_path / "expected.db"
    run_import(expected, write(tmp_path / "whole", whole))
    assert content(database) == content(expected)


@EACH
def test_what_rotation_and_compression_made_of_it(tmp_path: Path, writer: Writer) -> None:
    name = "history.xml" if "xml" in writer.__name__ else "history.json"
    folder, database, ads = tmp_path / "spool", tmp_path / "imported.db", various(4, 90)
    folder.mkdir()
    path = write(folder / name, writer(ads[:30]))
    assert run_import(database, folder).troubles == []
    write(folder / f"{name}.1.gz", gzip.compress(writer(ads[:30]) + writer(ads[30:60])))
    write(path, writer(ads[60:]))
    report = run_import(database, folder)
    assert (report.troubles, report.notes, report.bad, report.lines) == ([], [], 0, 60)
    assert len(content(database)) == usage(ads)[0]


@EACH
def test_an_ad_that_is_cut_short_in_an_archive_is_set_aside(tmp_path: Path, writer: Writer) -> None:
    whole = writer([ad(1), ad(2)])
    torn = whole[: whole.rindex(b"JobBatchName")]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "jobs.gz", gzip.compress(torn)))
    assert (report.imported, report.bad) == (1, 1)
    assert "ends before its end" in report.bad_lines[0].reason


@EACH
def test_an_ad_that_is_torn_in_the_midst_costs_no_other(tmp_path: Path, writer: Writer) -> None:
    for at, mark in enumerate((b"JobBatchName", b"analysis")):
        whole = writer([ad(1), ad(2)])
        torn = whole[: whole.rindex(mark) + 4]
        history = torn + b"\n" + writer([ad(3), ad(4)])
        report = run_import(tmp_path / f"{at}.db", write(tmp_path / f"jobs{at}", history))
        if writer is json_in_a_line and mark == b"JobBatchName":
            continue  # its objects stand in none of the places by which an ad is known to begin
        assert (report.imported, report.troubles) == (3, [])
        assert report.bad >= 1


@pytest.mark.parametrize("bad", [{"GlobalJobId": None}, {"JobStatus": None}, {"QDate": "x"}])
@EACH
def test_an_ad_that_cannot_be_understood_stops_no_other(tmp_path: Path, writer: Writer, bad: Mapping[str, Any]) -> None:
    wrong = {name: value for name, value in (ad(2) | dict(bad)).items() if value is not None}
    report = run_import(tmp_path / "imported.db", write(tmp_path / "jobs", writer([ad(1), wrong, ad(3)])))
    assert (report.imported, report.bad, report.troubles) == (2, 1, [])
    assert report.bad_lines[0].offset > 0


@pytest.mark.parametrize("name", HOSTILE)
@EACH
def test_hostile_texts_change_nothing_else(tmp_path: Path, writer: Writer, name: str) -> None:
    ads = [ad(1, JobBatchName=name, Owner=name, Environment=name, x509UserProxyVOName=name), ad(2)]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "jobs", writer(ads)))
    assert (report.imported, report.bad) == (2, 0)


LAUGHS = b'<!DOCTYPE classads [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;"><!ENTITY x SYSTEM "file:///etc/passwd">]>'


def test_entities_are_off(tmp_path: Path) -> None:
    good, evil = xml_ad(ad(1)).encode(), xml_ad(ad(2)).replace("analysis", "&b;&x;").encode()
    inside = xml_ad(ad(3)).replace("<c>", "<c>" + LAUGHS.decode(), 1).encode()
    history = b"<?xml version='1.0'?>" + LAUGHS + b"<classads>" + good + evil + inside + b"</classads>"
    report = run_import(tmp_path / "imported.db", write(tmp_path / "jobs", history))
    assert (report.imported, report.troubles) == (1, [])
    assert [line.reason.partition(":")[0] for line in report.bad_lines][1] == "is no XML"
    assert b"root:" not in (tmp_path / "imported.db").read_bytes()


@pytest.mark.parametrize(
    "history",
    [
        b'[{"a":' * 200_000 + b"1" + b"}]" * 200_000,
        b"[" + b'{"a":' * 200_000,
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"JobStatus": NaN, "a": 1e999}',
        b'{"GlobalJobId": "a", "globaljobid": "b", "JobStatus": 4}',
        b"<classads>" + b"<c>" * 200_000,
        b"<c>" + b"<a>" * 200_000 + b"</c>",
        b"<c><x><i>1</i></x><i>4</i></a></c>",
        b"<c><a><b/></a><a n='x'><c><a n='y'><c><a n='z'/></c></a></c></a></c>",
        b"{" * 9_000_000,
        b"[" + b"x" * 9_000_000 + b"{",
        b"\xef\xbb\xbf[{}]",
    ],
)
def test_what_is_hostile_is_set_aside(tmp_path: Path, history: bytes) -> None:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "jobs.gz", gzip.compress(history, 1)))
    assert report.imported == 0
    assert report.bad or report.troubles


@pytest.mark.slow
@pytest.mark.parametrize("writer", [json_in_a_line, xml_in_a_line])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, writer: Writer) -> None:
    """Of 40 MB in one line, and as many blanks."""
    padding = "x" * 100_000
    history = writer(ad(number, Environment=padding) for number in range(400)) + b" " * 40_000_000
    path = write(tmp_path / "jobs", history)
    del history
    tracemalloc.start()
    try:
        report = run_import(tmp_path / "imported.db", path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (report.imported, report.bad) == (400, 0)
    assert peak < 16_000_000


# Files in which there is nothing


TABLE = (
    b" ID     OWNER   SUBMITTED   RUN_TIME   ST COMPLETED   CMD\n 1.0   ada  9/21 10:00  0+00:01:40 C  9/21 10:02 sh\n"
)


@pytest.mark.parametrize(
    "history",
    [
        b"{",
        b"[\n",
        b"[]{",
        b"]",
        PROLOG.encode(),
        PROLOG.encode() + b"</classads",
        b"<html><body>Sign in</body></html>",
        b"\n\n\n" * 2000,
        b"",
        TABLE,
        text(ad(1)),
        rolling([ad(1)])[:-300],
        b"*** Offset = 0\n" * 600,
    ],
)
@pytest.mark.parametrize("name", ["jobs", "history.json", "history.1", "jobs.gz"])
def test_a_file_without_one_whole_ad_is_a_bad_file(tmp_path: Path, history: bytes, name: str) -> None:
    packed = gzip.compress(history) if name.endswith(".gz") else history
    path, database = write(tmp_path / name, packed), tmp_path / "imported.db"
    for _ in range(2):
        report = run_import(database, path)
        assert "no complete ad of a job in it" in "".join(report.troubles)
        assert (report.imported, report.lines) == (0, 0)


EMPTY = [json_history([]), b"[]", b"[]\n[ ]\n", b"\xef\xbb\xbf[\n]\n", xml_history([]), xml_in_a_line([])]


@pytest.mark.parametrize("history", EMPTY)
@pytest.mark.parametrize("name", ["jobs", "history.json", "history", "jobs.gz"])
def test_no_jobs_are_no_damage(tmp_path: Path, history: bytes, name: str) -> None:
    """As of a quiet day; what is printed later is read."""
    path, database = tmp_path / name, tmp_path / "imported.db"
    for _ in range(2):
        report = run_import(database, write(path, gzip.compress(history) if name.endswith(".gz") else history))
        assert (report.files, report.lines, report.bad, report.held) == (1, 0, 0, 0)
        assert (report.troubles, report.notes, report.exit_status) == ([], [], 0)
    later = (xml_history if b"<" in history else json_history)([ad(1)])
    whole = history + later
    assert run_import(database, write(path, gzip.compress(whole) if name.endswith(".gz") else whole)).imported == 1


def test_no_lines_may_be_no_jobs_or_a_failure(tmp_path: Path) -> None:
    """`condor_history -jsonl` prints nothing then."""
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history.jsonl", b""))
    assert (report.lines, report.held, report.troubles, report.exit_status) == (0, 0, [], 0)
    assert "is empty: no jobs, unless condor_history failed" in report.notes[0]


@pytest.mark.parametrize("name", ["history", "history.old", "printed.txt", "history.12.0"])
def test_an_ad_that_is_being_written_waits_for_a_minute(tmp_path: Path, name: str) -> None:
    """Any file may be in the midst of being copied."""
    is_single = name == "history.12.0"
    whole = text(ad(1)) if is_single else rolling([ad(1)])
    path, database, now = write(tmp_path / name, whole[:-60]), tmp_path / "imported.db", int(NOW.timestamp())
    for age_s in (0, 59, -30):
        os.utime(path, (now - age_s, now - age_s))
        report = run_import(database, path)
        assert (report.held, report.bad, report.troubles) == (1, 0, [])
        assert f"{path}: has no complete ad yet, and was written to in the last minute" in report.notes[0]
    for age_s in (60, 3599, 3600, -61):
        os.utime(path, (now - age_s, now - age_s))
        report = run_import(database, path)
        assert report.held == 0
        assert report.exit_status == (65 if is_single and age_s == 60 else 0 if is_single else 66)
        assert report.bad_kept == (1 if is_single else 0)
    assert run_import(database, write(path, whole)).imported == 1


@pytest.mark.parametrize("history", [TABLE, b"Nov 21 12:00:00 node1 condor_schedd: started\n", b"*** Offset = 0\n" * 9])
def test_what_is_no_ad_does_not_wait_for_its_end(tmp_path: Path, history: bytes) -> None:
    """As a log that is written to all the time."""
    path, now = write(tmp_path / "history", history), NOW.timestamp()
    os.utime(path, (now, now))
    report = run_import(tmp_path / "imported.db", path)
    assert (report.held, report.exit_status) == (0, 66)
    assert "no complete ad of a job in it" in report.troubles[0]


def test_the_help_names_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.parser().parse_args(["import", "htcondor", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "condor_history -long, -json, -jsonl or -xml printed" in printed


def test_the_file_that_htcondor_adds_to_may_be_empty(tmp_path: Path) -> None:
    """It was just rotated."""
    report = run_import(tmp_path / "imported.db", write(tmp_path / "history", b""))
    assert (report.troubles, report.held, report.exit_status) == ([], 0, 0)


# Any content


def pieces(whole: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    while whole:
        size = next(sizes)
        yield whole[:size]
        whole = whole[size:]


@given(st.sampled_from(WRITERS), st.integers(0, 1000), st.integers(1, 3000))
@pytest.mark.slow
def test_where_a_chunk_ends_changes_nothing(writer: Writer, seed: int, most: int) -> None:
    whole, rng = writer(various(6, 6)), random.Random(seed)
    form = form_of(whole)
    assert form is not None
    sizes = iter(lambda: rng.randrange(1, most + 1), 0)
    found = list(framed_ads(pieces(whole, sizes), 7, form, over=True))
    expected = list(framed_ads([whole], 7, form, over=True))
    assert found == expected
    assert [one.wrong for one in found] == [""] * 6
    assert all(whole[one.offset - 7 : one.end - 7] == one.content for one in found)


TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"\n",
    b"1",
    b'"JobStatus": 4',
    b"<c>",
    b"</c>",
    b"<a n='x'>",
]
TOKENS += [b"</a>", b"<i>", b"</i>", b"<!DOCTYPE x>", b"<?xml?>", b"</classads>", b"&lt;", b"&x;", b"\xff", b"\0"]


@given(st.sampled_from([b"{", b"<c>"]), st.lists(st.sampled_from(TOKENS), max_size=40), st.integers(1, 9))
def test_no_content_breaks_the_reader(beginning: bytes, tokens: list[bytes], size: int) -> None:
    whole = beginning + b"".join(tokens)
    form = form_of(whole)
    assert form is not None
    ends = [0]
    for one in framed_ads((whole[at : at + size] for at in range(0, len(whole), size)), 0, form, over=True):
        assert ends[-1] <= one.offset < one.end
        ends.append(one.end)
        try:
            found = {} if one.wrong else form.read(one.content)
        except BadAd:
            continue
        for expression in found.values():
            read_value(expression)
            read_record(expression)


def test_what_waited_in_a_live_file_is_set_aside_in_its_archive(tmp_path: Path) -> None:
    torn, database = rolling([ad(1), ad(2)])[:-300], tmp_path / "imported.db"
    assert run_import(database, write(tmp_path / "history", torn)).imported == 1
    report = run_import(database, write(tmp_path / "history.1.gz", gzip.compress(torn)))
    assert (report.imported, report.bad, report.troubles) == (0, 1, [])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40))
def test_any_text_of_json_is_the_text_of_the_ad(value: str) -> None:
    form = form_of(b"{")
    assert form is not None
    found = form.read(json_ad({"A": value}).encode())
    assert read_value(found["a"]) == value or value.startswith("/Expr(")


def test_expressions_are_those_of_the_long_form() -> None:
    one = {"A": Raw("TARGET.Cpus > 2"), "B": Raw('"x"'), "C": Raw("undefined"), "D": SPECS, "E": 5.25, "F": True}
    expected = {name: read_value(value) for name, value in read_ad(text(one).decode()).items()}
    for writer, opening in ((json_ad, b"{"), (xml_ad, b"<c>")):
        form = form_of(opening)
        assert form is not None
        found = form.read(writer(one).strip().encode())
        assert {name: read_value(value) for name, value in found.items()} == expected
        assert read_record(found["d"]) == {"hepspec": 12.5, "si2k": 3125}
