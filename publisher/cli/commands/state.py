"""`state`: the ledger as a whole: copy it into another database, check it, back it up."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from publisher.cli.commands import Context, load_part
from publisher.cli.logs import error_line
from publisher.cli.output import TextTable, print_result
from publisher.cli.parser import add_action, add_actions, add_json
from publisher.config.schema import Place, Problems, ReadContext, Text, Wrong
from publisher.config.settings import LedgerServer, read_state
from publisher.ledger.checks import CHECKS, disagreements
from publisher.ledger.transfer import Transferred, compare, copy, mark_as_used, nobody_works
from publisher.model.errors import LedgerError, UsageError

_COLUMNS = ("table", "rows", "written")
_PLACE = "path of a file, postgresql://HOST/DATABASE, or service=NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    copying = add_action(
        actions, "copy", "copy the ledger into another database; rows already there are compared"
    )
    copying.add_argument("--to", required=True, metavar="PLACE", help=_PLACE)
    checking = add_action(
        actions,
        "check",
        "look for damage, and check that sums and references agree with the rows; only reads",
    )
    checking.add_argument(
        "--with", dest="other", metavar="PLACE", help=f"compare all rows with this ledger: {_PLACE}"
    )
    for action in (copying, checking):
        action.add_argument(
            "--instance", help="in PostgreSQL, which ledger; default: that of the configuration"
        )
    backup = add_action(
        actions, "backup", "write a consistent copy into a new file, while rounds go on"
    )
    backup.add_argument(
        "file", metavar="FILE", type=Path, help="the file to create: a ledger in SQLite"
    )
    for action in (copying, checking, backup):
        add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    return {"copy": _copy, "check": _check, "backup": _backup}[arguments.action](arguments, context)


def _copy(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    done: list[Transferred] = []
    place = _place(arguments.to, arguments.instance or site.instance)
    if place == (site.settings.server or site.settings.state):
        raise UsageError("this is the ledger itself; name another place with --to")
    with (
        closing(site.database()) as source,
        closing(load_part("cli.site").open_at(place)) as destination,
        nobody_works(source, destination),
    ):
        copy(source, destination, done.append)
    _print(done, arguments)
    return 0


def _check(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    other = (
        _place(arguments.other, arguments.instance or site.instance) if arguments.other else None
    )
    if isinstance(other, Path) and not other.exists():
        raise UsageError(f"{other} does not exist; name a ledger with --with")
    differing: list[str] = []
    with closing(site.database(to_read=True)) as database:
        damage = [f"{one.what}: {one.times:,}" for one in disagreements(database)]
        if other:
            with closing(load_part("cli.site").open_at(other, to_read=True)) as compared:
                differing = [f"differs: {row}" for row in compare(database, compared)]
    wrong = damage + differing
    print_result(
        wrong,
        lambda found: {"checked": CHECKS, "compared": bool(arguments.other), "wrong": found},
        lambda found: found or ["no damage; all sums and references agree"],
        form=arguments.form,
    )
    if damage:
        error_line(
            f"{site.ledger_name}: the ledger is damaged or does not agree with itself; restore the last sound backup"
        )
    if differing:
        error_line(
            f"{arguments.other}: this ledger differs; `publisher state copy` brings a copy up to date"
        )
    return LedgerError.exit_status if wrong else 0


def _backup(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    file: Path = arguments.file
    if file.exists():
        raise UsageError(f"{file} exists already; name a new file")
    partial = file.with_name(f"{file.name}.part")
    partial.unlink(missing_ok=True)
    done: list[Transferred] = []
    with (
        closing(site.database(to_read=True)) as source,
        closing(load_part("cli.site").open_at(partial)) as destination,
        source.snapshot(),
    ):
        copy(source, destination, done.append)
        mark_as_used(destination)
    partial.rename(file)
    _print(done, arguments)
    return 0


def _place(text: str, instance: str) -> Path | LedgerServer:
    """A ledger named on the command line, under the rules of the file. Raises: UsageError."""
    reading = ReadContext(problems=Problems("command line"), environment={}, folder=Path.cwd())
    try:
        state = read_state(Text(place=Place(line=0, path=""), text=text, null=False), reading)
    except Wrong as wrong:
        raise UsageError(f"the ledger's place {wrong}") from None
    if isinstance(state, Path):
        return state
    if not instance:
        raise UsageError("which instance? name it with --instance")
    return LedgerServer(address=state, instance=instance)


def _print(done: list[Transferred], arguments: argparse.Namespace) -> None:
    print_result(
        done,
        lambda tables: {
            "tables": {one.table: {"rows": one.rows, "written": one.changed} for one in tables}
        },
        lambda tables: [
            TextTable(
                _COLUMNS, [(one.table, f"{one.rows:,}", f"{one.changed:,}") for one in tables]
            )
        ],
        form=arguments.form,
        rows="tables",
    )
