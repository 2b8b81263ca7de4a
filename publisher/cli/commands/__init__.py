"""The commands, a line each. A command's module is loaded when the command is used, so that no other pays for it."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

if TYPE_CHECKING:  # the command line is read without what its commands need
    from publisher.cli.site import LiveSite


class Group(StrEnum):
    """What a command is for, in the order of `publisher --help`."""

    SEND = "send"
    LOOK = "look"
    REPAIR = "repair"
    OTHER_SYSTEMS = "other systems"
    CONFIGURATION = "configuration"


class Context(NamedTuple):
    """What a command gets beside its arguments: the site, when it asks for it, and the event that asks for an early end."""

    load: Callable[[], LiveSite]
    stop: threading.Event


class CommandModule(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options and arguments, or its actions."""

    def run(self, arguments: argparse.Namespace, context: Context) -> int:
        """Do it and print the result. Returns the exit status. Raises: PublisherError."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `publisher`: its name, its module, where `--help` lists it, and what it says of it."""

    name: str
    module: str
    group: Group
    summary: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.load().add_arguments(parser)

    def load(self) -> CommandModule:
        return cast(CommandModule, import_module(f"{__name__}.{self.module}"))


_SEND, _LOOK, _REPAIR, _OTHER, _CONFIG = Group
COMMANDS: Final = (
    Command("publish", "publish", _SEND, "one regular round: everything not yet delivered"),
    Command("run", "run", _SEND, "the same as a daemon, on the targets' own timetables, until SIGTERM"),
    Command("sync", "sync", _SEND, "tell job counts per submit host and month, or check them"),
    Command("status", "status", _LOOK, "what was delivered, what waits; only reads"),
    Command("trace", "trace", _LOOK, "every message that carried a job"),
    Command("explain", "explain", _LOOK, "how each published value of a job came about, and the record"),
    Command("stats", "stats", _LOOK, "statistics of the accounting data, whatever was published"),
    Command("job", "job", _LOOK, "all that stands of a job in the accounting data"),
    Command("report", "report", _LOOK, "one page with plots: what jobs used, and what became of them; only reads"),
    Command("doctor", "doctor", _REPAIR, "look for everything that could keep records from going out; sends none"),
    Command("republish", "republish", _REPAIR, "a window again, whatever was delivered; resumable"),
    Command("quarantine", "quarantine", _REPAIR, "the jobs that were set aside"),
    Command("source", "source", _REPAIR, "the accounting databases that were read"),
    Command("import", "import_", _OTHER, "another system's accounting into a local database that `source` can name"),
    Command("export", "export", _OTHER, "finished jobs one by one, for other systems; only reads"),
    Command("charge", "charge", _OTHER, "compute, keep and list what jobs cost by the formulas of records.charges"),
    Command("config", "config", _CONFIG, "the configuration itself"),
    Command("complete", "complete", _CONFIG, "the words that the shell's completion offers; only reads"),
    Command("help", "help", _CONFIG, "how a command is called; without one, all commands"),
)


def command(name: str) -> Command:
    """The command of that name. Raises: KeyError."""
    return {one.name: one for one in COMMANDS}[name]
