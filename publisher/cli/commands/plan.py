"""`plan`: what the next round would do, and why; it is the dry run of `publish`."""

from __future__ import annotations

import argparse

from publisher.cli.commands import Context, publish
from publisher.cli.parser import add_json, add_targets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    add_json(parser)
    parser.set_defaults(
        dry_run=True, force=False, limit=None, accept_key_change=False, accept_state=False
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    return publish.run(arguments, context)
