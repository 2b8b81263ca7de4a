"""Text as receivers bear it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.model.text import arex_escape, arex_unescape, ascii_text, receiver_key, xml_text
from tests.support.strategies import hostile_text


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("plain", "plain"),
        ("  trimmed ", "trimmed"),
        ("René Müller", "Rene Muller"),
        ("Łódź ßtraße Ærø Đorđe Þór", "Lodz sstrasse AEro Dorde Thor"),
        ("ǿ Ǿ ǣ", "o O ae"),
        ("İstanbul \u0131", "Istanbul i"),
        ("ŉ", "'n"),
        ("a\u2011b\u2013c\u2026", "a-b-c..."),
        ("½ ﬁ ①", "1?2 fi 1"),
        ("作业", "??"),
        ("a\r\n\tb\u2028c\u0085d", "a b c d"),
        ("a\0b\x7fc\ud800d", "a?b?c?d"),
        ("\uff0fx\uff05", "/x%"),
        ("\u0301", ""),
    ],
)
def test_text_in_ascii(text: str, spelt: str) -> None:
    assert ascii_text(text) == spelt


@given(hostile_text)
def test_text_in_ascii_is_one_printable_line_and_stays_itself(text: str) -> None:
    spelt = ascii_text(text)
    assert re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", spelt)
    assert ascii_text(spelt) == spelt


@given(st.text())
def test_case_and_accents_make_one_key(text: str) -> None:
    assert receiver_key(ascii_text(text).upper()) == receiver_key(ascii_text(text).lower() + "  ")


def test_keys_that_the_server_takes_for_one() -> None:
    assert receiver_key("Renè ") == receiver_key("RENE") == "rene"
    assert receiver_key("a1") != receiver_key("a2")


@given(hostile_text)
def test_xml_text_has_only_characters_of_xml(text: str) -> None:
    kept = xml_text(text)
    assert re.fullmatch("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*", kept)
    assert kept == kept.strip()


def test_xml_text_keeps_what_it_may() -> None:
    assert xml_text(" é\t作\U0001f680 ") == "é\t作\U0001f680"
    assert xml_text("a\0b\ud800c\uffffd\x1f.") == "a\ufffdb\ufffdc\ufffdd\ufffd."


@given(st.text())
def test_arex_escapes_are_undone_once(text: str) -> None:
    assert arex_unescape(arex_escape(text)) == text


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ("O%27Neil", "O'Neil"),
        ("%2527", "%27"),
        ("100%25", "100%"),
        ("a%0d%0ab%08%00%23", "a\r\nb\b\0#"),
        ("%41 %2f %0D %", "%41 %2f %0D %"),
    ],
)
def test_arex_unescape(stored: str, meant: str) -> None:
    assert arex_unescape(stored) == meant
