"""The page that is written: YAML lines, the origin of each behind it, and the two lists at the end.

The lines are written by hand and not by a YAML library, because comments are half of what they are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from publisher.config.from_arc.reader import ArcValue, ByHand
from publisher.model.text import shown

# Plain in YAML everywhere; everything else is quoted.
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def scalar(text: str) -> str:
    """The text as one YAML scalar. It must be printable."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return "'" + text.replace("'", "''") + "'"


def flow(texts: Sequence[str]) -> str:
    return f"[{', '.join(scalar(text) for text in texts)}]"


def origin_of(given: ArcValue) -> str:
    """The comment behind a line."""
    return given.origin if given.repeated == 1 else f"{given.origin}, the first of {given.repeated}"


@dataclass(slots=True)
class Sheet:
    """Lines in order, and notes on them. `missing` names keys without which the page is not a configuration."""

    lines: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def put(self, indent: int, key: str, value: str, comment: str = "") -> None:
        """One `key: value  # comment`; the value is YAML already."""
        text = f"{'  ' * indent}{key}: {value}".rstrip()
        self.lines.append(f"{text}  # {comment}" if comment else text)

    def say(self, indent: int, text: str) -> None:
        self.lines.append(f"{'  ' * indent}# {text}".rstrip())

    def leave_open(self, indent: int, key: str, example: str, why: str) -> None:
        """A key that is not written; a comment is in its place."""
        self.lines.append(f"{'  ' * indent}#{key}: {example}".rstrip() + f"  # {why}")

    def blank(self) -> None:
        self.lines.append("")

    def hand(self, what: str, place: str = "") -> None:
        self.by_hand.append(f"{place}: {what}" if place else what)

    def lost(self, what: str, place: str = "") -> None:
        self.unmatched.append(f"{place}: {what}" if place else what)

    def attempt(self, where: str, place: str, question: Callable[[], None]) -> bool:
        """Write what the question writes; when a value needs a hand, say which and why."""
        try:
            question()
        except ByHand as reason:
            self.hand(f"{shown(where)} {reason}", place)
            return False
        return True
