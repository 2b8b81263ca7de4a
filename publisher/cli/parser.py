"""The command line: global and shared options, and messages about wrong ones.

The commands are in `commands`; each adds its own arguments when it is used.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from publisher import __version__
from publisher.cli.commands import COMMANDS, EXAMPLES, Group
from publisher.model.errors import UsageError
from publisher.model.time import Window, parse_from, parse_to, window

DEFAULT_CONFIG = Path("/etc/publisher/publisher.yaml")
_CHOICE: Final = re.compile("invalid choice: '([^']*)'")
# Words that people try, and that no command resembles.
_TRIED: Final = {
    "metrics": "each round writes them, where `metrics.textfile` is set in publisher.yaml",
    "send": "did you mean publish?",
    "usage": "did you mean stats?",
}


class Form(StrEnum):
    """How a result is printed: for people, or for programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    JSON_LINES = "json-lines"


class Parser(argparse.ArgumentParser):
    """Suggests a word for an unknown one. No abbreviations: new options would change their meaning.

    `fill` adds the arguments of a command as soon as they are asked for.
    """

    def __init__(self, *, fill: Callable[[Parser], None] | None = None, **wanted: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | wanted)
        self._fill = fill
        self._given: list[str] = []

    def load(self) -> None:
        """Add the arguments, if they are not there yet."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def below(self) -> dict[str, Parser]:
        """The parsers of the commands, or of this command's actions, by name."""
        self.load()
        kind = argparse._SubParsersAction
        found = [action.choices for action in self._actions if isinstance(action, kind)]
        return {name: parser for choices in found for name, parser in choices.items()}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        self._given = list(args or ())
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:  # said here, with this command's usage, and not by the parser above
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        meant = list(self._meant(message))
        if self.below() and (wrong := _CHOICE.search(message)):
            # The nearest word, and not all the others
            nearest = meant[0] if meant else f"`{self.prog} --help` lists what there is"
            meant = [f"{self.prog} has no {wrong[1]!r}: {nearest}", *meant[1:]]
        else:
            meant.insert(0, message)
        raise UsageError("\n".join([*meant, self.format_usage().strip()]))

    def _meant(self, message: str) -> Iterator[str]:
        """Suggestions for words that are not known."""
        nested = list(self.below())
        if nested and "required" in message:
            yield f"one of: {', '.join(nested)}"
        choices = [str(one) for action in self._actions for one in action.choices or ()]
        unknown = _CHOICE.findall(message)
        for wrong in unknown:
            if self.prog == "publisher" and wrong in _TRIED:
                yield _TRIED[wrong]
                continue
            near = get_close_matches(wrong, choices)
            # Letters in another order: the commonest slip
            near.sort(key=lambda one: sorted(one) != sorted(wrong))
            yield from (f"did you mean {one}?" for one in near[:1])
        yield from self._meant_options(message, {*nested, *unknown})

    def _meant_options(self, message: str, commands: Collection[str]) -> Iterator[str]:
        """For options before these words; those behind them are another parser's."""
        own = self._option_string_actions
        missing = re.findall("--[a-z-]+", message) if "required" in message else []
        for word in takewhile(lambda word: word not in {*commands, "--"}, self._given):
            option = word.partition("=")[0]
            if self.prog == "publisher plan" and option in ("--from", "--to"):
                yield "`publisher republish --dry-run` plans a window of time"
                return
            if not option.startswith("-") or {option, option[:2]} & set(own):
                continue
            near = get_close_matches(option, missing, n=1) or get_close_matches(option, own, n=1)
            yield from (f"did you mean {one}?" for one in near)


class _WithExamples(argparse.HelpFormatter):
    """Keeps the lines of a text that has several."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(f"{indent}{line}\n" for line in text.split("\n"))


def _epilog(prog: str) -> str:
    common = "Options common to all commands: publisher --help"
    lines = EXAMPLES.get(prog.removeprefix("publisher "), ())
    if not lines:
        return common
    return "\n".join(["examples:", *(f"  publisher {line}" for line in lines), "", common])


class _CommandParser(Parser):
    """Of a command or action: takes the global options too, which `publisher --help` explains.

    Nothing but its `wanted` until it is loaded: of all commands one is used.
    """

    def __init__(self, **wanted: Any) -> None:
        self._wanted: dict[str, Any] = wanted

    def load(self) -> None:
        wanted, self._wanted = self._wanted, {}
        if wanted:
            super().__init__(
                epilog=_epilog(wanted["prog"]), formatter_class=_WithExamples, **wanted
            )
            _add_global_options(self, repeated=True)
        super().load()


class _InGroups(_WithExamples):
    """Lists the commands under the headings of their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        rows = {row.dest: row for row in action._get_subactions()}
        parts = []
        for group in Group:
            parts.append(f"{' ' * self._current_indent}{group}:\n")
            self._indent()
            shown = [one for one in COMMANDS if one.group is group and not one.is_hidden]
            parts += [self._format_action(rows[one.name]) for one in shown]
            self._dedent()
        return "".join(parts)


_QUESTIONS: Final = """questions:
  was job 1001 sent?          publisher trace 1001
  who used most last month?   publisher stats --from last-month --to last-month --by user
  is anything wrong?          publisher doctor
  was September all counted?  publisher statement 2026-09
  what would a change do?     publisher plan -c changed.yaml
  send September again        publisher republish --from 2026-09 --to 2026-09

Exit statuses and JSON output: publisher(1). Configuration: publisher.yaml(5)."""


def parser() -> Parser:
    """The command line; a command's arguments are added when it is parsed, or with `below`."""
    top = Parser(
        prog="publisher",
        description="Publish finished grid jobs to accounting services: once, signed, provably.",
        epilog=_QUESTIONS,
        formatter_class=_InGroups,
    )
    _add_global_options(top)
    commands: Any = top.add_subparsers(
        dest="command",
        metavar="COMMAND",
        title="commands",
        prog=top.prog,
        parser_class=_CommandParser,
    )
    for one in COMMANDS:
        text = one.summary
        commands.add_parser(one.name, help=text, description=text, fill=one.add_arguments)
    return top


def _add_global_options(parser: argparse.ArgumentParser, *, repeated: bool = False) -> None:
    """What may be before the command or after it, where (`repeated`) it counts only if given."""

    def add(*words: str, default: object, text: str, **kind: Any) -> None:
        if repeated:
            default = text = argparse.SUPPRESS
        parser.add_argument(*words, default=default, help=text, **kind)

    text = f"configuration file (default {DEFAULT_CONFIG})"
    add("-c", "--config", type=Path, metavar="FILE", default=DEFAULT_CONFIG, text=text)
    # Each place has a count of its own: argparse would forget the one before the command.
    place, text = f"verbose {parser.prog}", "log more; -vv also prints tracebacks"
    add("-v", "--verbose", dest=place, action="count", default=0, text=text)
    add("-q", "--quiet", action="store_true", default=False, text="log only warnings and errors")
    text = "format of the log on standard error"
    add("--log-format", choices=("text", "json"), default="text", text=text)
    version, text = f"publisher {__version__}", "show program's version number and exit"
    add("--version", action="version", version=version, default=argparse.SUPPRESS, text=text)


def verbosity(arguments: argparse.Namespace) -> int:
    """-1 for --quiet, else the number of times that --verbose was given, wherever it stood."""
    if arguments.quiet:
        return -1
    return sum(count for name, count in vars(arguments).items() if name.startswith("verbose "))


# What several commands share


def add_actions(command: argparse.ArgumentParser) -> Any:
    """Room for the actions of a command, such as `list` of `quarantine`; `add_action` adds one."""
    return command.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_action(actions: Any, name: str, text: str, usage: str | None = None) -> Parser:
    action: Parser = actions.add_parser(name, help=text, description=text, usage=usage)
    action.load()
    return action


def add_flag(command: argparse._ActionsContainer, *words: str, text: str) -> None:
    """An option without a value; `text` is its help."""
    command.add_argument(*words, action="store_true", help=text)


def add_json(command: argparse._ActionsContainer, *forms: Form) -> None:
    """Add `--as`; `forms`: those that a command has in addition to its table, all by default."""
    offered = [Form.TABLE, *forms] if forms else list(Form)
    command.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const=Form.JSON,
        default=Form.TABLE,
        help=argparse.SUPPRESS,  # the same as --as json
    )
    command.add_argument(
        "--as",
        dest="form",
        type=Form,
        choices=offered,
        default=Form.TABLE,
        metavar="FORM",
        help=f"print the result as one of {', '.join(offered)} (default table), and nothing else",
    )


def is_quiet(arguments: argparse.Namespace) -> bool:
    """Whether progress is shown to nobody: with --quiet, and where programs read the result."""
    form = vars(arguments).get("form", Form.TABLE)  # of commands that have one
    return bool(arguments.quiet) or form is not Form.TABLE


def add_targets(command: argparse.ArgumentParser) -> None:
    text = "this target; may be repeated (default: all)"
    command.add_argument("--target", action="append", default=[], metavar="NAME", help=text)


FROM_HELP: Final = "jobs that ended at or after this time: 2026-03, 2026-03-05T14:00, last-month"
TO_HELP: Final = "and before this time; a month or a day includes its end"


def add_window(
    command: argparse.ArgumentParser,
    *,
    start: str = FROM_HELP,
    end: str = TO_HELP,
    required: bool = False,
) -> None:
    """`--from` and `--to` with their help; `window_of` reads them."""
    command.add_argument("--from", dest="start", required=required, metavar="WHEN", help=start)
    command.add_argument("--to", dest="end", required=required, metavar="WHEN", help=end)


def window_of(arguments: argparse.Namespace, now: datetime) -> Window:
    """Raises: UsageError."""
    return window(parse_from(arguments.start, now), parse_to(arguments.end, now))


def add_job(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "job", metavar="JOB", help="its JobID, or its id in the batch system: 1001, or hpc:1001"
    )


def add_accept_state(parser: argparse.ArgumentParser) -> None:
    text = (
        "go on with a ledger that was moved here, or has no record beside it of what was "
        "delivered; without one, what may be delivered is held"
    )
    add_flag(parser, "--accept-state", text=text)


def add_dry_run(command: argparse.ArgumentParser) -> None:
    add_flag(command, "--dry-run", text="do everything except send and record")


def add_yes(command: argparse._ActionsContainer) -> None:
    """An option of each command that asks before it works; `confirmation_of` reads it."""
    text = "do not ask for confirmation; mandatory where input or output is no terminal"
    add_flag(command, "--yes", text=text)


def confirmation_of(arguments: argparse.Namespace) -> Callable[[str], bool]:
    """Return what asks a question and returns whether the answer was yes.

    Nothing is asked with --yes and --dry-run.
    Raises: UsageError where neither is given, and nobody can read the question or answer it.
    """
    if arguments.yes or arguments.dry_run:
        return lambda question: True
    streams = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    if others := [name for name, stream in streams.items() if not stream.isatty()]:
        found = f"{arguments.command} asks before it works, and standard {others[0]} is no terminal"
        raise UsageError(f"{found}: give --yes, or --dry-run to see what it would do")
    return lambda question: _line_of(f"{question} [y/N] ").lower() in ("y", "yes")


def can_ask() -> bool:
    """Return whether somebody may answer a question."""
    return sys.stdin.isatty()


def ask(question: str, default: str) -> str:
    """Return the answer to a question, or its default where none is given."""
    return _line_of(f"{question}{f' [{default}]' if default else ''}: ") or default


def _line_of(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def add_all_instances(command: argparse._ActionsContainer) -> None:
    text = "all instances that share the ledger's database, as INSTANCE/TARGET"
    add_flag(command, "--all-instances", text=text)


def add_nagios(command: argparse._ActionsContainer) -> None:
    text = "print one line with performance data, exit 0, 1, 2 or 3"
    add_flag(command, "--nagios", text=text)


def count(text: str) -> int:
    """The type of an option that takes a number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of 1 or more")
    return int(text)


# For documents and completion


class CommandUsage(NamedTuple):
    """How a command is called, and what it does in a line."""

    usage: str
    summary: str


def usages(top: Parser) -> dict[str, CommandUsage]:
    """Of every command, and of every action, by its path: `config`, `config check`."""
    return dict(_usages(top, ()))


def _usages(parser: Parser, path: tuple[str, ...]) -> Iterator[tuple[str, CommandUsage]]:
    below = parser.below()
    if path:
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        yield " ".join(path), CommandUsage(usage=usage, summary=parser.description or "")
    for name, each in below.items():
        yield from _usages(each, (*path, name))
