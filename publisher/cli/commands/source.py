"""`source`: the accounting databases that were read: list, retire."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from publisher.cli.commands import Context
from publisher.cli.output import Json, Part, TextTable, attributes, moment_text, print_result
from publisher.cli.parser import add_action, add_actions, add_json
from publisher.pipeline.guards import databases
from publisher.pipeline.guards.databases import SourceFile

_COLUMNS = ("database", "last seen", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    add_json(
        add_action(actions, "list", "show each database ever read, when it was last read, and whether it is retired")
    )
    retire = add_action(actions, "retire", "no longer expect these databases: they are gone for good")
    retire.add_argument("databases", nargs="+", metavar="FILE", help="as `source list` shows it")
    add_json(retire)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    if arguments.action == "list":
        print_result(databases.listed(site), _as_json, _as_text, in_json=arguments.json)
    else:
        print_result(databases.retire(site, arguments.databases), _as_json, _as_retired, in_json=arguments.json)
    return 0


def _as_json(found: Iterable[SourceFile]) -> Json:
    rows = [
        {"file": one.file, "last_seen": moment_text(one.seen), **attributes(one, "retired", "there")} for one in found
    ]
    return {"databases": rows}


def _as_text(found: Iterable[SourceFile]) -> Iterator[Part]:
    yield TextTable(_COLUMNS, [(one.file, moment_text(one.seen) or "-", _state(one)) for one in found])


def _as_retired(found: Iterable[SourceFile]) -> Iterator[Part]:
    yield from _as_text(found)
    yield "also remove a retired file from `source.databases`, if it is listed there"


def _state(one: SourceFile) -> str:
    if one.retired is not None:
        return f"retired {moment_text(one.retired)}"
    return "read" if one.there else "missing"
