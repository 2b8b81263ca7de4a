"""A command that nobody has thought of: `ports` lists the targets, and where each goes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from publisher.cli.commands import Context
from publisher.cli.output import Json, Part, TextTable, print_result
from publisher.cli.parser import add_json, add_targets
from publisher.publishing.site import Site, choose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    parser.add_argument("--loud", action="store_true", help="in capitals")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    found = _ports(context.load(), arguments.target)
    if arguments.loud:
        found = {name.upper(): kind.upper() for name, kind in found.items()}
    print_result(found, _as_json, _as_text, form=arguments.form)
    return 0


def _ports(site: Site, names: list[str]) -> dict[str, str]:
    return {target.name: target.type for target in choose(site.targets, names)}


def _as_json(ports: dict[str, str]) -> Json:
    return {"ports": ports}


def _as_text(ports: dict[str, str]) -> Iterator[Part]:
    yield TextTable(("target", "goes by"), list(ports.items()))
    yield f"{len(ports)} in all"
