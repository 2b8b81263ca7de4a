"""A parser of command lines that says what was probably meant by a word that it does not know."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from publisher.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Says what was probably meant by an unknown word. Takes no abbreviations: new options would change their meaning."""

    def __init__(self, **wanted: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | wanted)
        self._given: list[str] = []
        self.elsewhere: frozenset[str] = frozenset()  # options that stand before the command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:  # said here, with this command's usage, and not by the parser above
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        lines = [message, *self._meant(message), self.format_usage().strip()]
        raise UsageError("\n".join(lines))

    def _meant(self, message: str) -> Iterator[str]:
        """What to write in place of each word that is not known, as far as one can tell."""
        nested = [name for action in self._actions if action.nargs == argparse.PARSER for name in action.choices or ()]
        if nested and "required" in message:
            yield f"one of: {', '.join(nested)}"
        choices = [str(one) for action in self._actions for one in action.choices or ()]
        if wrong := re.search("invalid choice: '([^']*)'", message):
            near = get_close_matches(wrong[1], choices)
            near.sort(key=lambda one: sorted(one) != sorted(wrong[1]))  # letters in another order: the commonest slip
            yield from (f"did you mean {one}?" for one in near[:1])
        own = self._option_string_actions
        missing = re.findall("--[a-z-]+", message) if "required" in message else []
        for word in takewhile(lambda word: word not in {*nested, "--"}, self._given):
            option = word.partition("=")[0]
            if not option.startswith("-") or {option, option[:2]} & set(own):
                continue
            if {option, option[:2]} & self.elsewhere:
                yield f"{option} stands before the command"
            else:
                alike = get_close_matches(option, missing, n=1) or get_close_matches(option, own, n=1)
                yield from (f"did you mean {one}?" for one in alike)

    def tell_below(self) -> None:
        """Let every command know the options that stand before it; called when the command line is complete."""
        _tell_below(self, frozenset(self._option_string_actions) - {"-h", "--help"})


def _tell_below(parser: argparse.ArgumentParser, elsewhere: frozenset[str]) -> None:
    """Let every command know the options that stand before it."""
    for action in parser._actions:
        for below in action.choices.values() if isinstance(action.choices, dict) else ():
            below.elsewhere = elsewhere
            _tell_below(below, elsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How a command is called, and what it does in a line."""

    usage: str
    summary: str


def usages(parser: argparse.ArgumentParser) -> dict[str, Usage]:
    """Of every command, and of every action, by its path: `config`, `config check`."""
    return dict(_usages(parser, ()))


def _usages(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[str, Usage]]:
    if path:
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        yield " ".join(path), Usage(usage=usage, summary=parser.description or "")
    for action in parser._actions:
        for name, below in action.choices.items() if isinstance(action.choices, dict) else ():
            yield from _usages(below, (*path, name))
