"""The command line as documents speak of it: its commands with their options and arguments, and shell lines that use it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from publisher.cli.parser import Parser, parser

_SHELL_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>&1", ">>/dev/null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command (`config` or, nested, `job info`): every option in each spelling, and the words that an argument may be.

    `arguments` are names such as JOB and the choices of the others, such as list, release and drop.
    """

    path: str
    options: frozenset[str]
    arguments: frozenset[str]


def top_options() -> frozenset[str]:
    """The options of every command, which may stand before it or after it."""
    return _options(parser())


@cache
def commands() -> Mapping[str, Command]:
    """Every command, by its path."""
    return {command.path: command for command in _below(parser(), ())}


def plain_runs(job: str) -> dict[str, tuple[str, ...]]:
    """How to run each command that prints JSON, with no argument but the job or the month where it takes one."""
    known = {"JOB": job, "PERIOD": "2026-10"}
    return {
        path: (*path.split(), *(word for name, word in known.items() if name in command.arguments))
        for path, command in commands().items()
        if "--as" in command.options and path not in ("export", "report")
    }


def publisher_words(line: str) -> list[str] | None:
    """The arguments of `publisher` in a shell line, whatever program starts it; None when it is not run there."""
    words = shlex.split(line.removesuffix("\\"), comments=True)  # which goes on in the next line
    at = next((at for at in range(len(words)) if _is_publisher(words, at)), None)
    if at is None:
        return None
    rest = words[at + 1 :]
    end = next((index for index, word in enumerate(rest) if word in _SHELL_ENDS or word[:1] in "<>"), len(rest))
    return rest[:end]


def _is_publisher(words: list[str], at: int) -> bool:
    """The program itself, not a user or a directory of that name: first on the line, or after a starter's `--`."""
    named_so = words[at] == "publisher" or words[at].endswith("/bin/publisher")
    return named_so and (not at or words[at - 1] == "--")


def _below(parser: Parser, path: tuple[str, ...]) -> Iterator[Command]:
    below = parser.below()
    for name, child in below.items():
        yield from _below(child, (*path, name))
    if path and not below:
        yield Command(path=" ".join(path), options=_options(parser), arguments=_arguments(parser))


def _options(parser: argparse.ArgumentParser) -> frozenset[str]:
    """All that `--help` shows but itself: those of every command are shown by that of `publisher` alone."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return frozenset(spelling for action in shown for spelling in action.option_strings) - {"-h", "--help"}


def _arguments(parser: argparse.ArgumentParser) -> frozenset[str]:
    words: set[str] = set()
    for action in parser._actions:
        if action.option_strings:
            continue
        words |= {str(word) for word in action.choices or (action.metavar or action.dest,)}
    return frozenset(words)
