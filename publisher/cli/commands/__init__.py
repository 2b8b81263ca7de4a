"""The commands, a line each. A command's module is loaded when the command is used, and what that
needs to do its work when it runs: no other command pays for it, and the manual is built without the
libraries.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

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
    """What a command gets beside its arguments: the site, on demand, and an event to stop early."""

    load: Callable[[], LiveSite]
    stop: threading.Event


class CommandModule(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options and arguments, or its actions."""

    def run(self, arguments: argparse.Namespace, context: Context) -> int:
        """Do it and print the result. Returns the exit status. Raises: PublisherError."""


class Command(NamedTuple):
    """A command: its name, where `--help` lists it, and its summary there."""

    name: str
    group: Group
    summary: str

    @property
    def is_hidden(self) -> bool:
        """Whether `--help` leaves it out: shells call it, not people."""
        return self.name == "complete"

    @property
    def module(self) -> str:
        return "import_" if self.name == "import" else self.name  # a word of Python's own

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.load().add_arguments(parser)

    def load(self) -> CommandModule:
        return cast(CommandModule, import_module(f"{__name__}.{self.module}"))


_SUMMARIES: Final = {
    Group.SEND: {
        "publish": "deliver everything not yet delivered, once",
        "run": "publish as a daemon, on each target's schedule, until SIGTERM",
        "sync": "send job counts per submit host and month, or check them",
    },
    Group.LOOK: {
        "plan": "show what the next round would do, and why; sends nothing",
        "status": "show what was delivered and what is pending; only reads",
        "statement": "show on one page whether a month was fully counted; only reads",
        "trace": "show whether a job was sent, when, and in which messages",
        "explain": "show how each published value of a job came about, and the record",
        "stats": "print what jobs used, and who used it, published or not",
        "job": "show everything that the accounting data has on a job",
        "report": "make a page with plots: what jobs used and what was delivered; only reads",
    },
    Group.REPAIR: {
        "doctor": "say whether anything is wrong that keeps records from being sent; sends none",
        "republish": "send a time window again, even if delivered before; resumable",
        "quarantine": "list, release or drop the jobs that were set aside",
        "receiver": "list where targets lead; say whether a service moved, or what it has",
        "source": "list sources and what they read, try bad lines again, prune, retire",
        "state": "copy the ledger into another database, check it, or back it up",
    },
    Group.OTHER_SYSTEMS: {
        "import": "import the accounting of a batch system by hand",
        "export": "export finished jobs one by one, for other systems; only reads",
        "charge": "compute, store and list what jobs cost, by the formulas of records.charges",
    },
    Group.CONFIGURATION: {
        "config": "check, show or create a configuration",
        "complete": "print the words that shell completion offers; only reads",
        "help": "show the help of a command, or list all commands",
    },
}
COMMANDS: Final = tuple(
    Command(name, group, summary)
    for group, summaries in _SUMMARIES.items()
    for name, summary in summaries.items()
)


# They end the help of a command, or of its action.
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "publish": ("publish", "publish --target egi --dry-run"),
    "run": ("run",),
    "sync": ("sync", "sync --check --months 3"),
    "plan": ("plan", "plan --target egi --as json", "plan -c changed.yaml"),
    "status": ("status", "status --as json", "status --nagios --warning age=36h --critical age=3d"),
    "statement": ("statement last-month", "statement 2026-Q3 -o statement.html"),
    "trace": ("trace 1001",),
    "explain": ("explain 1001",),
    "stats": (
        "stats --from last-month --to last-month",
        "stats --from last-month --to last-month --by user",
        "stats --filter-vo atlas --as json",
    ),
    "job": ("job info 1001", "job transfers 1001"),
    "job info": ("job info 1001", "job info hpc:1001"),
    "job events": ("job events 1001",),
    "job transfers": ("job transfers 1001",),
    "report": (
        "report -o report.html",
        "report --from 2026-07 --to 2026-09 --format terminal",
    ),
    "doctor": ("doctor", "doctor --target egi", "doctor --nagios"),
    "republish": (
        "republish --from 2026-09 --to 2026-09 --dry-run",
        "republish --from 2026-09 --to 2026-09 --target egi",
    ),
    "quarantine": ("quarantine list",),
    "quarantine list": ("quarantine list", "quarantine list --target egi"),
    "quarantine release": ("quarantine release 1001", "quarantine release --all --target egi"),
    "quarantine drop": ("quarantine drop 1001 --target egi",),
    "receiver": ("receiver list", "receiver same egi"),
    "receiver list": ("receiver list",),
    "receiver same": ("receiver same egi",),
    "receiver new": ("receiver new egi",),
    "receiver delivered": ("receiver delivered egi 2026-09",),
    "receiver deleted": ("receiver deleted egi 2026-09",),
    "source": ("source list", "source bad-lines slurm"),
    "source list": ("source list",),
    "source bad-lines": ("source bad-lines", "source bad-lines slurm"),
    "source prune": ("source prune",),
    "source retry": ("source retry slurm",),
    "source retire": ("source retire /var/spool/arc/jobstatus/accounting/accounting.db",),
    "state": ("state check", "state backup publishing-copy.db"),
    "state copy": ("state copy --to /var/lib/publisher/copy.db",),
    "state check": ("state check", "state check --with /var/lib/publisher/copy.db"),
    "state backup": ("state backup publishing-copy.db",),
    "import": ("import slurm", "import slurm jobs.txt"),
    "import gridengine": ("import gridengine", "import gridengine accounting.0.gz"),
    "import htcondor": ("import htcondor", "import htcondor history.0"),
    "import slurm": ("import slurm", "import slurm --source hpc"),
    "import sonar": ("import sonar", "import sonar 2026/09"),
    "export": ("export -b last-month -e last-month --as csv",),
    "charge": ("charge --from last-month --to last-month",),
    "config": ("config init", "config check"),
    "config init": (
        "config init",
        "config init --site EXAMPLE-SITE --target egi --benchmark HEPscore23:11.5 --defaults",
    ),
    "config check": ("config check", "config check -c publisher.yaml"),
    "config show": ("config show",),
    "config example": ("config example",),
    "config from-arc": ("config from-arc /etc/arc.conf",),
    "help": ("help republish",),
}


def command(name: str) -> Command:
    """The command of that name. Raises: KeyError."""
    return {one.name: one for one in COMMANDS}[name]


def load_part(name: str) -> Any:
    """A module that a command needs when it runs, but not for its options. Raises: ImportError."""
    return import_module(f"publisher.{name}")


def load_site(path: Path, stop: threading.Event, *, quiet: bool = True) -> LiveSite:
    """The site of a configuration file; `quiet`: it shows no progress. Raises: ConfigError."""
    site: LiveSite = load_part("cli.site").configured_site(path, stop, quiet=quiet)
    return site
