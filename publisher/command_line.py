"""The command line: every command with its options. What they do is in `cli.py`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from publisher import __version__
from publisher.command_words import Parser


def parser(default_config: Path) -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="publisher",
        description="Publish finished grid jobs to accounting services: once, signed, provably.",
        epilog="Exit statuses and JSON output: publisher(1). Configuration: publisher.yaml(5).",
    )
    top.add_argument("--config", type=Path, default=default_config, metavar="FILE", help=f"default {default_config}")
    top.add_argument("-v", "--verbose", action="count", default=0, help="say more; -vv also tracebacks")
    top.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
    top.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on standard error")
    top.add_argument("--version", action="version", version=f"publisher {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _publish(commands)
    _run(commands)
    _republish(commands)
    _sync(commands)
    _status(commands)
    _trace(commands)
    _explain(commands)
    _quarantine(commands)
    _stats(commands)
    _job(commands)
    _export(commands)
    _source(commands)
    _doctor(commands)
    _import(commands)
    _charge(commands)
    _report(commands)
    _complete(commands)
    _config(commands)
    top.tell_below()
    return top


def _command(commands: Any, name: str, text: str, usage: str | None = None) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, usage=usage)
    return made


def _actions(command: argparse.ArgumentParser) -> Any:
    return command.add_subparsers(dest="action", metavar="ACTION", required=True)


def _with_json(command: argparse._ActionsContainer) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def _with_targets(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target", action="append", default=[], metavar="NAME", help="this target; may be repeated (default: all)"
    )


def _publish(commands: Any) -> None:
    command = _command(commands, "publish", "one regular round: everything not yet delivered")
    _with_targets(command)
    command.add_argument(
        "--force", action="store_true", help="also targets that are not due yet, and look at every row again"
    )
    command.add_argument("--dry-run", action="store_true", help="do everything but send and remember")
    command.add_argument(
        "--accept-key-change",
        action="store_true",
        help="send months although rows under other keys stay at the receiver (its team must delete them)",
    )
    command.add_argument("--limit", type=_count, metavar="N", help="at most N jobs a target (not for summaries)")
    _with_json(command)


def _run(commands: Any) -> None:
    _command(commands, "run", "the same as a daemon, on the targets' own timetables, until SIGTERM")


def _republish(commands: Any) -> None:
    command = _command(commands, "republish", "a window again, whatever was delivered; resumable")
    command.add_argument(
        "--from", dest="start", required=True, metavar="WHEN", help="2026-03, 2026-03-05T14:00, last-month"
    )
    command.add_argument("--to", dest="end", required=True, metavar="WHEN", help="a named period ends at its end")
    _with_targets(command)
    command.add_argument("--format", metavar="F", help="another format than the target's own")
    command.add_argument("--ams-url", metavar="URL", help="to this AMS, for once, instead of configured targets")
    command.add_argument("--sgas-url", metavar="URL", help="to this SGAS, for once")
    command.add_argument("--site", help="with a URL: another site name")
    command.add_argument("--topic", help="with --ams-url: default gLite-APEL")
    command.add_argument("--project", help="with --ams-url: default accounting")
    command.add_argument(
        "--vo", action="append", default=[], metavar="NAME", help="with a URL: jobs of this VO only; may be repeated"
    )
    command.add_argument("--localid-prefix", metavar="TEXT", help="with a URL: before the batch system's ids")
    command.add_argument("--batch-records", type=_count, metavar="N", help="with a URL: at most N records a message")
    command.add_argument("--exact", action="store_true", help="do not round out to whole months (job formats only)")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument("--no-brake", action="store_true", help="also what dwarfs or contradicts the ledger")
    command.add_argument("--dry-run", action="store_true", help="do everything but send and remember")
    command.add_argument(
        "--accept-key-change",
        action="store_true",
        help="send months although rows under other keys stay at the receiver",
    )
    _with_json(command)


def _sync(commands: Any) -> None:
    command = _command(commands, "sync", "tell job counts per submit host and month, or check them")
    _with_targets(command)
    command.add_argument("--check", action="store_true", help="send nothing; compare database, ledger and last sync")
    command.add_argument("--months", default="12", metavar="N", help="the last N months (default 12), or all")
    command.add_argument(
        "--portal", type=Path, metavar="FILE", help="with --check: counts saved from the portal, CSV or JSON"
    )
    command.add_argument("--dry-run", action="store_true", help="do everything but send and remember")
    _with_json(command)


def _status(commands: Any) -> None:
    command = _command(commands, "status", "what was delivered, what waits; only reads")
    _with_targets(command)
    output = command.add_mutually_exclusive_group()
    _with_json(output)
    output.add_argument("--nagios", action="store_true", help="print one line with performance data, exit 0, 1, 2 or 3")
    for word, status in (("warning", 1), ("critical", 2)):
        command.add_argument(
            f"--{word}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"with --nagios: exit {status} above this: age=36h, oldest=3d, late=100; may be repeated",
        )


def _trace(commands: Any) -> None:
    command = _command(commands, "trace", "every message that carried a job")
    command.add_argument("job", metavar="JOB", help="the job's id (JobID)")
    _with_json(command)


def _explain(commands: Any) -> None:
    command = _command(commands, "explain", "how each published value of a job came about, and the record")
    command.add_argument("job", metavar="JOB", help="the job's id (JobID)")
    command.add_argument("--format", metavar="F", help="another format than the target's own")
    _with_targets(command)
    _with_json(command)


def _quarantine(commands: Any) -> None:
    actions = _actions(_command(commands, "quarantine", "the jobs that were set aside"))
    _with_targets(_command(actions, "list", "show them, with the rule that each broke"))
    _with_json(actions.choices["list"])
    for name, text in (("release", "try again in the next round"), ("drop", "never send")):
        command = _command(
            actions, name, text, usage=f"publisher quarantine {name} JOB... | --all [--target NAME] [--json]"
        )
        # Not nargs="*", which takes nothing as soon as an option stands first.
        jobs = command.add_argument("jobs", nargs="+", default=[], metavar="JOB", help="numbers or ids of jobs")
        jobs.required = False
        command.add_argument("--all", action="store_true", dest="every", help="all of them")
        _with_targets(command)
        _with_json(command)


def _source(commands: Any) -> None:
    actions = _actions(_command(commands, "source", "the accounting databases that were read"))
    listed = _command(actions, "list", "show each database that was ever read, when last, and whether it is retired")
    retire = _command(actions, "retire", "a database is gone for good: do not miss it any more")
    retire.add_argument("databases", nargs="+", metavar="FILE", help="as `source list` shows it")
    for command in (listed, retire):
        _with_json(command)


def _doctor(commands: Any) -> None:
    command = _command(commands, "doctor", "look for everything that could keep records from going out; sends none")
    _with_targets(command)
    command.add_argument(
        "--arc-conf",
        type=Path,
        default=Path("/etc/arc.conf"),
        metavar="FILE",
        help="where ARC's own publisher might still be configured (default /etc/arc.conf)",
    )
    output = command.add_mutually_exclusive_group()
    _with_json(output)
    output.add_argument("--nagios", action="store_true", help="print one line with performance data, exit 0, 1, 2 or 3")


def _stats(commands: Any) -> None:
    command = _command(commands, "stats", "statistics of the accounting data, whatever was published")
    _with_filters(command)
    _stats_output(command)


def _with_filters(command: argparse.ArgumentParser) -> None:
    """Which jobs, by what the accounting data says of them."""
    for words, what in (
        (("-b", "--end-from", "--from"), "jobs that ended since: 2026-03, 2026-03-05T14:00, last-month"),
        (("-e", "--end-till", "--to"), "and before; a named period ends at its end"),
        (("-s", "--start-from"), "jobs that were submitted since"),
    ):
        command.add_argument(*words, metavar="WHEN", help=what)
    for name, what in (
        ("vo", "of this VO"),
        ("user", "of this user (DN, or issuer/subject)"),
        ("state", "in this state: completed, failed, in-progress"),
        ("queue", "in this queue"),
        ("endpoint", "through endpoints of this type, such as org.nordugrid.arcrest"),
    ):
        command.add_argument(
            f"--filter-{name}", action="append", default=[], metavar="NAME", help=f"{what}; may be repeated"
        )
    command.add_argument(
        "--filter-extra",
        action="append",
        nargs=2,
        default=[],
        metavar=("KEY", "VALUE"),
        help="with this attribute: vomsfqan, rte, dtrurl, jobname, projectname, ...; may be repeated",
    )


def _stats_output(command: argparse.ArgumentParser) -> None:
    staged = ("data-staged-in", "data-staged-out")
    outputs = ("brief", "jobcount", "walltime", "cputime", *staged, "wlcgvos", "users", "jobids", "json")
    command.add_argument(
        "-o", "--output", choices=outputs, default="brief", help=f"one of {', '.join(outputs)} (default brief)"
    )
    by = ("vo", "user", "state", "queue", "endpoint", "month")
    command.add_argument("--by", choices=by, help=f"also a table: by {', '.join(by)}")
    printed = command.add_mutually_exclusive_group()
    printed.add_argument("--csv", action="store_true", help="print comma-separated values, with a line of names")
    printed.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def _export(commands: Any) -> None:
    command = _command(commands, "export", "finished jobs one by one, for other systems; only reads")
    _with_filters(command)
    formats = ("json-lines", "csv")
    command.add_argument(
        "--format", choices=formats, default="json-lines", help=f"one of {', '.join(formats)} (default json-lines)"
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there (default: standard output)")
    command.add_argument("--columns", action="store_true", help="print what each column means, and export nothing")


def _job(commands: Any) -> None:
    actions = _actions(_command(commands, "job", "all that stands of a job in the accounting data"))
    info = _command(actions, "info", "who, where, when, and what it used")
    parts = ("all", "description", "resources", "rtes", "authtokens", "json")
    info.add_argument("-o", "--output", choices=parts, default="all", help=f"one of {', '.join(parts)} (default all)")
    _command(actions, "events", "its changes of state, in UTC and in the CE's local time")
    transfers = _command(actions, "transfers", "the files that were staged in and out")
    transfers.add_argument(
        "--full-urls", action="store_true", help="with the passwords and signatures that URLs may hold"
    )
    for command in actions.choices.values():
        command.add_argument("job", metavar="JOB", help="the job's id (JobID)")
        _with_json(command)


def _import(commands: Any) -> None:
    systems = _command(commands, "import", "another system's accounting into a local database that `source` can name")
    actions = _actions(systems)
    gridengine = _command(
        actions, "gridengine", "accounting files of Grid Engine, plain or compressed; reads what is new"
    )
    gridengine.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="files, or directories with accounting*"
    )
    sonar = _command(actions, "sonar", "what Sonar collected of a Slurm cluster; reads what is new")
    sonar.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="files, or trees with YYYY/MM/DD/0+job-slurm.json"
    )
    for command in (gridengine, sonar):
        command.add_argument(
            "--database",
            type=Path,
            metavar="FILE",
            help="the database to write (default: imported.db beside the state)",
        )
        _with_json(command)


def _charge(commands: Any) -> None:
    command = _command(commands, "charge", "compute, keep and list what jobs cost by the formulas of records.charges")
    command.add_argument(
        "--from", dest="start", metavar="WHEN", help="jobs that ended since: 2026-03, 2026-03-05T14:00, last-month"
    )
    command.add_argument("--to", dest="end", metavar="WHEN", help="and before; a named period ends at its end")
    command.add_argument("--project", metavar="P", help="of this project only")
    command.add_argument("--group", metavar="G", help="of this local group only")
    command.add_argument("--jobs", action="store_true", help="list each job too")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--stored", action="store_true", help="list what is kept; compute nothing")
    what.add_argument("--runs", action="store_true", help="list the runs that computed charges, and how they ended")
    _with_json(command)


def _report(commands: Any) -> None:
    command = _command(commands, "report", "one page with plots: what jobs used, and what became of them; only reads")
    command.add_argument(
        "--from", dest="start", metavar="WHEN", help="jobs that ended since (default: last-month): 2026-03, last-month"
    )
    command.add_argument(
        "--to", dest="end", metavar="WHEN", help="and before; a named period ends at its end (default: this-month)"
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the page there; - is standard output")
    command.add_argument(
        "--format", choices=("html", "terminal"), default="html", help="a page, or tables and bars here"
    )
    command.add_argument(
        "--csv", type=Path, metavar="DIR", help="also, or only, a CSV file for each table, with definitions"
    )


def _complete(commands: Any) -> None:
    command = _command(commands, "complete", "the words that the shell's completion offers; only reads")
    kinds = ("jobs", "users", "vos", "queues", "endpoints", "targets", "databases")
    command.add_argument("kind", choices=kinds, metavar="KIND", help=f"one of {', '.join(kinds)}")
    command.add_argument("beginning", nargs="?", default="", metavar="TEXT", help="those that begin like this")


def _config(commands: Any) -> None:
    actions = _actions(_command(commands, "config", "the configuration itself"))
    _command(actions, "check", "list everything that is wrong with it")
    _command(actions, "show", "print it with all defaults filled in, without secrets")
    _command(actions, "example", "print a commented sample")
    from_arc = _command(actions, "from-arc", "print one that does what ARC's publisher did, made of an arc.conf")
    from_arc.add_argument("arc_conf", type=Path, metavar="FILE", help="usually /etc/arc.conf; only read")
    from_arc.add_argument(
        "--state", type=Path, metavar="FILE", help="ARC's publishing.db (default: below A-REX's control directory)"
    )
    from_arc.add_argument("--site", default="", metavar="NAME", help="which site, when arc.conf tells none or several")
    from_arc.add_argument(
        "--look-for-lost",
        action="store_true",
        help="print no configuration but the jobs that ARC's publisher has passed over",
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of 1 or more")
    return int(text)
