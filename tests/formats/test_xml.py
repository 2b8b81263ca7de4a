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
from publisher.formats.xml.text import ARE_PLAIN, ONE_SCHEMA_AT_A_TIME, escape_ascii, escape_unicode, instant
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


@given(texts=st.lists(st.one_of(hostile_text, st.text("a /7-m&\t", max_size=6)), min_size=1, max_size=4))
def test_plain_texts_are_written_as_they_are(texts: list[str]) -> None:
    if ARE_PLAIN("/".join(texts)):
        assert [escape_ascii(text) for text in texts] == [escape_unicode(text) for text in texts] == texts


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
