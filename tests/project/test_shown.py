"""What documents show as output is what is printed. `python -m tests.project.shown` writes them again."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project.shown import BLOCK, OF_POSTGRES, PAGES, ROOT, abridged, alike, page_again
from tests.support.postgres import binaries

SHOWING = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.name)
def test_what_a_document_shows_is_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = page.read_text(encoding="utf-8")
    if OF_POSTGRES & {name for name, _ in BLOCK.findall(text)} and (binaries() is None or find_spec("psycopg") is None):
        pytest.skip("no PostgreSQL, or no psycopg, on this machine")
    for each, printed in page_again(text, tmp_path):
        assert alike(each.output, printed), f"{each.command}\n{printed}"


def test_documents_show_output() -> None:
    """And all of it in blocks that are tried: none shows a prompt elsewhere."""
    assert {page.stem for page in SHOWING} >= {
        "ten-minutes",
        "switching-from-jura",
        "without-arc",
        "fleet",
        "when-something-is-wrong",
        "operations",
        "numbers-stay-right",
        "slurm",
        "htcondor",
        "sonar",
    }
    for page in PAGES:
        assert not re.search(r"^\$ publisher", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE), page


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a  b\n1  2", "a b\n1 2", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...", "a\nb", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("a", "a\nb", False),
        ("at 2026-01-01T00:00:00Z", "at 2027-02-02T01:02:03Z", True),
        ("3 jobs", "4 jobs", False),
    ],
)
def test_output_is_compared(shown: str, printed: str, expected: bool) -> None:
    assert alike(shown, printed) == expected


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        pytest.param("a\nb", "a\n\nc", "a\n\nc", id="nothing left out"),
        pytest.param("all 12 jobs\n...", "all 13 jobs\n\nlist\nx", "all 13 jobs\n...", id="rest"),
        pytest.param("one\n\nlast\n...", "one\n\nlast\nx\n\ny", "one\n\nlast\n...", id="blank line stays"),
        pytest.param("one\n...\nlast", "one\n\nlast", "one\n\nlast", id="nothing but a blank line between"),
        pytest.param("one\n...\nlast", "one\n\nmid\n\nlast", "one\n...\nlast", id="blank lines around"),
        pytest.param("...\nlast", "\nx\n\n\nlast", "...\nlast", id="at the beginning"),
        pytest.param("one\n\n...\nlast", "one\n\n\nx\nlast", "one\n...\nlast", id="several"),
        pytest.param("one\n...", "x\none\n\ny\n\n", "...\none\n...", id="at the end"),
    ],
)
def test_output_is_written_again_with_its_blank_lines(shown: str, printed: str, expected: str) -> None:
    """A blank line between two that are shown is no line left out."""
    assert abridged(printed, shown) == expected
    assert alike(expected, printed)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "contributing.html").exists()
