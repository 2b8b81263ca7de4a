"""A manual page in man(7) as its tests read it: sections, and the entries (`.TP`, `.TQ`) in them."""

from __future__ import annotations

import re
from pathlib import Path

MAN = Path(__file__).parents[2] / "man"

_ENTRY = re.compile(r"^\.T[PQ]\n\.(?:B|I|BR|BI|IR) (.+)$", re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    """The text of each `.SH`, by heading."""
    return _split(_text(page), "SH")


def subsections(page: str, heading: str) -> dict[str, str]:
    """The text of each `.SS` of a section, by heading."""
    return _split(sections(page)[heading], "SS")


def entries(text: str) -> list[str]:
    """What stands in the head of each entry, as it is read: `-v, --verbose`, `--target NAME`, `65`."""
    return [_plain(head) for head in _ENTRY.findall(text)]


def options(text: str) -> set[str]:
    """The options that entries explain, in each spelling."""
    return {word for head in entries(text) for word in re.findall(r"(?:^|(?<=, ))--?[a-z][a-z-]*", head)}


def _text(page: str) -> str:
    return (MAN / page).read_text(encoding="ascii")


def _split(text: str, macro: str) -> dict[str, str]:
    parts = re.split(rf"^\.{macro} (.+)\n", text, flags=re.MULTILINE)[1:]
    return {_plain(heading): body for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def _plain(line: str) -> str:
    """A line of arguments to a font macro without its quotes and escapes. Unquoted blanks join."""
    words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', line)]
    joined = " ".join(words) if '"' not in line else "".join(words)
    return re.sub(r"\\([-.])", r"\1", joined).strip()
