"""`state`: the ledger as a whole: copy it into another database, check it, back it up."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from publisher.cli.commands import Context, load_part
from publisher.cli.logs import error_line
from publisher.cli.output import Json, TextTable, print_result
from publisher.cli.parser import add_action, add_actions, add_json
from publisher.cli.site import LiveSite
from publisher.config.schema import Place, Problems, ReadContext, Text, Wrong
from publisher.config.settings import LedgerServer, read_state
from publisher.ledger.checks import CHECKS, disagreements
from publisher.ledger.sql.database import Database
from publisher.ledger.transfer import Transferred, compare, copy, mark_as_used, nobody_works
from publisher.model.errors import LedgerError, UsageError

_COLUMNS = ("table", "rows", "written")
_PLACE = "path of a file, postgresql://HOST/DATABASE, or service=NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    text = "copy the ledger into another database; rows already there are compared"
    copying = add_action(actions, "copy", text)
    copying.add_argument("--to", required=True, metavar="PLACE", help=_PLACE)
    text = "look for damage, and check that sums and references agree with the rows; only reads"
    checking = add_action(actions, "check", text)
    text = f"compare all rows with this ledger: {_PLACE}"
    checking.add_argument("--with", dest="other", metavar="PLACE", help=text)
    text = "in PostgreSQL, which ledger; default: that of the configuration"
    for action in (copying, checking):
        action.add_argument("--instance", help=text)
    text = "write a consistent copy into a new file, while rounds go on"
    backup = add_action(actions, "backup", text)
    text = "the file to create: a ledger in SQLite"
    backup.add_argument("file", metavar="FILE", type=Path, help=text)
    for action in (copying, checking, backup):
        add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    return {"copy": _copy, "check": _check, "backup": _backup}[arguments.action](arguments, context)


def _copy(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    done: list[Transferred] = []
    place = _place(arguments.to, arguments.instance or site.ledgers.instance)
    if place == (site.settings.server or site.settings.state):
        raise UsageError("this is the ledger itself; name another place with --to")
    with (
        closing(site.ledgers.database()) as source,
        closing(load_part("cli.site").open_at(place)) as destination,
        nobody_works(source, destination),
    ):
        copy(source, destination, done.append)
    _print(done, arguments)
    return 0


def _check(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    other = arguments.other and _other(arguments, site)
    with closing(site.ledgers.database(to_read=True)) as database:
        damage = [f"{one.what}: {one.times:,}" for one in disagreements(database)]
        differing = _differing(database, other) if other else []
    wrong = damage + differing
    print_result(
        wrong,
        lambda found: {"checked": CHECKS, "compared": bool(arguments.other), "wrong": found},
        lambda found: found or ["no damage; all sums and references agree"],
        form=arguments.form,
    )
    if damage:
        found = "the ledger is damaged or does not agree with itself"
        error_line(f"{site.ledgers.name}: {found}; restore the last sound backup")
    if differing:
        advice = "`publisher state copy` brings a copy up to date"
        error_line(f"{arguments.other}: this ledger differs; {advice}")
    return LedgerError.exit_status if wrong else 0


def _other(arguments: argparse.Namespace, site: LiveSite) -> Path | LedgerServer:
    """The ledger to compare with. Raises: UsageError."""
    place = _place(arguments.other, arguments.instance or site.ledgers.instance)
    if isinstance(place, Path) and not place.exists():
        raise UsageError(f"{place} does not exist; name a ledger with --with")
    return place


def _differing(database: Database, other: Path | LedgerServer) -> list[str]:
    with closing(load_part("cli.site").open_at(other, to_read=True)) as compared:
        return [f"differs: {row}" for row in compare(database, compared)]


def _backup(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    file: Path = arguments.file
    partial = _beside(file)
    done: list[Transferred] = []
    with (
        closing(site.ledgers.database(to_read=True)) as source,
        closing(load_part("cli.site").open_at(partial)) as destination,
        source.snapshot(),
    ):
        copy(source, destination, done.append)
        mark_as_used(destination)
    partial.rename(file)
    _print(done, arguments)
    return 0


def _beside(file: Path) -> Path:
    """Where the copy grows until it is whole. Raises: UsageError when none can be made there."""
    partial = file.with_name(f"{file.name}.part")
    try:
        if file.exists():
            raise UsageError(f"{file} exists already; name a new file")
        if not file.parent.exists():
            file.parent.mkdir(mode=0o700)
        partial.unlink(missing_ok=True)
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{file} cannot be written: {reason}; name another file") from error
    return partial


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
        lambda tables: {"tables": {one.table: _written_json(one) for one in tables}},
        lambda tables: [TextTable(_COLUMNS, list(map(_row, tables)))],
        form=arguments.form,
        rows="tables",
    )


def _written_json(one: Transferred) -> Json:
    return {"rows": one.rows, "written": one.changed}


def _row(one: Transferred) -> tuple[str, ...]:
    return one.table, f"{one.rows:,}", f"{one.changed:,}"
