"""Escaping: what a parser reads back is what was written, and nothing raw gets past."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from publisher.formats.apel import car_check
from publisher.formats.sgas import ogf_ur_check
from publisher.formats.xml.text import ONE_SCHEMA_AT_A_TIME, RenderedParts, escape_ascii, escape_unicode, instant
from publisher.model.text import xml_text
from tests.support.patience import PATIENCE_S
from tests.support.strategies import HOSTILE_TEXTS, hostile_text

ESCAPES = [escape_ascii, escape_unicode]


def read_back(escaped: str) -> tuple[str, str]:
    element = etree.fromstring(f'<a b="{escaped}">{escaped}</a>'.encode())
    return element.text or "", str(element.get("b"))


@pytest.mark.parametrize("escape", ESCAPES)
@given(text=hostile_text)
def test_a_parser_reads_what_was_written(escape: Callable[[str], str], text: str) -> None:
    escaped = escape(text)
    assert read_back(escaped) == (xml_text(text), xml_text(text))
    assert not re.search('[<>"\x00-\x1f\x7f]', escaped)
    assert not re.search("application/(x-)?pkcs7-mime", escaped, re.IGNORECASE)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_ascii_documents_are_ascii(text: str) -> None:
    assert escape_ascii(text).isascii()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_both_escapes_agree_on_ascii(text: str) -> None:
    assert escape_ascii(text) == escape_unicode(text)


@pytest.mark.parametrize(
    ("text", "in_ascii", "in_unicode"),
    [
        ("fit-plot_1.5 (x) 100% it's", "fit-plot_1.5 (x) 100% it's", "fit-plot_1.5 (x) 100% it's"),
        ('a&b<c>"d"', "a&amp;b&lt;c&gt;&quot;d&quot;", "a&amp;b&lt;c&gt;&quot;d&quot;"),
        ("é\U0001f680", "&#233;&#128640;", "é\U0001f680"),
        ("a\tb\r\n c", "a&#9;b&#13;&#10; c", "a&#9;b&#13;&#10; c"),
        ("\0", "&#65533;", "\ufffd"),
        ("  x ", "x", "x"),
        ("application/pkcs7-mime", "application/pkcs7&#45;mime", "application/pkcs7&#45;mime"),
        ("APPLICATION/x-PKCS7-Mime", "APPLICATION/x-PKCS7&#45;Mime", "APPLICATION/x-PKCS7&#45;Mime"),
        ("uuid-7-mime", "uuid-7-mime", "uuid-7-mime"),
    ],
)
def test_escapes(text: str, in_ascii: str, in_unicode: str) -> None:
    assert (escape_ascii(text), escape_unicode(text)) == (in_ascii, in_unicode)


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_an_instant_is_utc_to_the_second(moment: int) -> None:
    assert (
        datetime.fromisoformat(instant(moment))
        == datetime.fromtimestamp(0, UTC) + (datetime.fromtimestamp(1, UTC) - datetime.fromtimestamp(0, UTC)) * moment
    )


@pytest.mark.parametrize("moment", [253_402_300_800, -(2**50), 2**62])
def test_an_instant_outside_the_calendar_is_refused(moment: int) -> None:
    with pytest.raises(OverflowError):
        instant(moment)


def test_fragments_are_made_once_for_each_object_not_for_each_value() -> None:
    made: list[list[int]] = []

    def render(subject: list[int]) -> str:
        made.append(subject)
        return str(subject)

    fragments = RenderedParts(render)
    one, twin = [1], [1]
    assert [fragments(one), fragments(twin), fragments(one)] == ["[1]", "[1]", "[1]"]
    assert len(made) == 2


def test_fragments_stay_bounded_and_right_when_objects_come_and_go() -> None:
    fragments = RenderedParts(str, limit=10)
    for number in range(1_000):
        assert fragments((number, "fresh")) == f"({number}, 'fresh')"  # ids of the freed are used again
        assert len(fragments) <= 10


def test_a_long_fragment_is_not_remembered() -> None:
    fragments = RenderedParts(str)
    short, long = "x" * 1_000, "x" * 2_000
    assert [fragments(one) for one in (short, long, long)] == [short, long, long]
    assert len(fragments) == 1


def test_what_cannot_be_rendered_is_not_remembered() -> None:
    calls: list[int] = []

    def render(subject: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError(subject)
        return subject

    fragments = RenderedParts(render)
    subject = "x"
    with pytest.raises(ValueError, match="x"):
        fragments(subject)
    assert fragments(subject) == "x"


@pytest.mark.parametrize(("check", "golden"), [(car_check.check, "car.xml"), (ogf_ur_check.check, "ogf_ur.xml")])
def test_no_two_threads_use_schemas_at_once(check: Callable[[bytes], None], golden: str) -> None:
    """What goes wrong otherwise is a matter of microseconds, once in a process: only the lock can be shown."""
    payload = (Path(__file__).parent / "golden" / golden).read_bytes()
    other = threading.Thread(target=check, args=[payload])
    with ONE_SCHEMA_AT_A_TIME:
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join(PATIENCE_S)
    assert not other.is_alive()
