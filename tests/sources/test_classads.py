"""ClassAd text, against HTCondor's own parser where it is installed, and against texts that nobody vouches for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.sources.files.line_importer import LogLine
from publisher.sources.htcondor.classads import BadAd, read_ad, read_record, read_value
from publisher.sources.htcondor.records import Routed, read_ads

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=40)
SOURCES = [
    "4",
    "-5",
    "0",
    "1.5",
    ".5",
    "1.500000E+03",
    "2e3",
    "TRUE",
    "false",
    "undefined",
    "error",
    '"a\\"b"',
    '"a\\\\b"',
]
SOURCES += ['"end\\"', '"x\\ty"', "{1,2}", '{"a"}', "[ x = 1 ]", "1 + 2", "TARGET.Cpus > 2", '"a;b=c"', "time()", '""']


def oracle(text: str) -> dict[str, Any] | None:
    classad2 = pytest.importorskip("classad2")
    found = next(iter(classad2.parseAds(text, classad2.ParserType.Old)), None)
    return None if found is None else {name.lower(): found[name] for name in found}


def known(value: Any) -> Any:
    """What we would know of a value: no lists, nested ads and expressions."""
    return value if type(value) in (str, int, float, bool) else None


@pytest.mark.parametrize("source", SOURCES)
def test_values_are_those_of_htcondors_parser(source: str) -> None:
    theirs = oracle(f"A = {source}\n")
    assert theirs is not None
    ours = read_value(read_ad(f"A = {source}")["a"])
    assert (ours, type(ours)) == (known(theirs["a"]), type(known(theirs["a"])))


@given(NAMES, TEXTS)
def test_any_text_is_read_as_htcondors_parser_reads_it(name: str, value: str) -> None:
    escaped = value.replace('"', '\\"')
    line = f'{name} = "{escaped}"'
    theirs = oracle(line + "\n")
    ours = read_value(read_ad(line)[name.lower()])
    assert theirs is None or ours == theirs.get(name.lower())


@given(st.one_of(st.integers(-(10**18) + 1, 10**18 - 1), st.floats(-1e15, 1e15), st.booleans()))
def test_numbers_are_read_as_htcondors_parser_reads_them(value: float) -> None:
    source = f"{value:.6f}" if isinstance(value, float) else str(value)
    theirs = oracle(f"A = {source}\n")
    assert theirs is not None
    assert read_value(source) == theirs["a"]


LINES = st.one_of(
    st.builds("{} = {}".format, NAMES, st.sampled_from(SOURCES)),
    st.builds('{} = "{}"'.format, NAMES, st.text(st.sampled_from('a\\" =;\t\r\x85'), max_size=12)),
    st.builds("{} = {}".format, NAMES, st.text(st.sampled_from('a1\\" =;\t\r\x85'), max_size=12)),
)


@given(st.lists(LINES, min_size=1, max_size=8), st.sampled_from(["Unusual=1", ""]))
def test_an_unusual_line_changes_nothing_about_the_others(lines: list[str], unusual: str) -> None:
    """Lines of the usual form are read in fewer steps."""

    def read(text: str) -> dict[str, str] | str:
        try:
            return {name: value for name, value in read_ad(text).items() if name != "unusual"}
        except BadAd as error:
            return str(error)

    assert read("\n".join(lines)) == read("\n".join([unusual, *lines]))


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        found = read_ad(text)
    except BadAd:
        return
    for expression in found.values():
        read_value(expression)
        read_record(expression)


@given(st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.booleans())
def test_no_lines_break_the_reader_of_ads(lines: list[bytes], alone: bool) -> None:
    started = [b'GlobalJobId = "a#1.0#1"', b"JobStatus = 4", *lines, b"*** Offset = 0"]
    numbered = [LogLine(at, line, len(line), at + 1) for at, line in enumerate(started)]
    pieces = list(read_ads(numbered, Routed.BATCH, alone=alone))
    assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)
    assert pieces[-1].end == len(started)


def test_bounds_hold() -> None:
    assert read_value('"' + "x" * 300_000 + '"') is None
    assert read_value("9" * 100) is None
    assert read_value("1e999") is None
    many = [LogLine(at, b"A = 1", 5, at + 1) for at in range(20_000)]
    (piece,) = read_ads(many, Routed.BATCH, alone=True)
    assert piece.wrong == "is too long for the ClassAd of a job"
    assert len(piece.content) < 100_000


def test_names_are_told_apart_without_case_and_the_last_value_counts() -> None:
    assert read_ad("JobStatus = 2\njobstatus = 4") == {"jobstatus": "4"}


@pytest.mark.parametrize("inside", ["second line", "RemoteWallClockTime = 0", "GlobalJobId = 1", "a = b", '\\"'])
def test_a_text_over_several_lines_hides_what_is_in_it(inside: str) -> None:
    found = read_ad(f'Environment = "first\n{inside}\nlast"\nJobStatus = 4')
    assert set(found) == {"environment", "jobstatus"}


@pytest.mark.parametrize(
    "lines",
    [
        ["JobStatus"],
        ["= 4"],
        ["A == 4"],
        ['A = "x', 'B = "y"'],
        ['A = "never ends'],
        ["GlobalJobId = 1", "GlobalJobId = 2"],
    ],
)
def test_what_is_no_ad(lines: list[str]) -> None:
    with pytest.raises(BadAd):
        read_ad("\n".join(lines))


def test_records_within_an_ad() -> None:
    assert read_record("[ HEPSPEC = 12.5; SI2K = 3125 ]") == {"hepspec": 12.5, "si2k": 3125}
    assert read_record("undefined") == {}
