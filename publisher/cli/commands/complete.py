"""`complete`: the words that the shell's completion offers, a line each; only reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from publisher.cli.commands import Context
from publisher.cli.output import print_line
from publisher.publishing.databases import known
from publisher.publishing.databases.ask import asked
from publisher.publishing.site import Site
from publisher.reporting import statistics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = ("jobs", "users", "vos", "queues", "endpoints", "targets", "databases", "sources")
    parser.add_argument("kind", choices=kinds, metavar="KIND", help=f"one of {', '.join(kinds)}")
    text = "only words that begin like this"
    parser.add_argument("beginning", nargs="?", default="", metavar="TEXT", help=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    for word in _words(context.load(), arguments.kind, arguments.beginning):
        print_line(word)
    return 0


def _words(site: Site, kind: str, beginning: str) -> Iterable[str]:
    names_of = {"targets": _targets, "sources": _sources, "databases": _databases_gone}
    if kind not in names_of:
        with asked(site) as jobs:
            return statistics.beginning(jobs, kind, beginning)
    return [name for name in names_of[kind](site) if name.startswith(beginning)]


def _targets(site: Site) -> list[str]:
    return sorted(target.name for target in site.targets)


def _sources(site: Site) -> list[str]:
    return [
        *(one.name for one in site.accounting.entries),
        *(one.name for one in site.batch_systems.entries),
    ]


def _databases_gone(site: Site) -> list[str]:
    return [
        one.file
        for one in known.listed(site.ledgers, site.accounting)
        if not (one.there or one.retired)
    ]
