"""`publish`: one regular round."""

from __future__ import annotations

import argparse

from publisher.cli import outcomes, progress
from publisher.cli.commands import Context
from publisher.cli.parser import add_dry_run, add_json, add_targets, count
from publisher.pipeline import publish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    parser.add_argument(
        "--force", action="store_true", help="also publish to targets that are not due yet, and check every row again"
    )
    add_dry_run(parser)
    parser.add_argument(
        "--accept-key-change",
        action="store_true",
        help="send months even if rows under other keys remain at the receiver (its team must delete them)",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="at most N jobs per target (not for summaries)")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    with progress.rounds(quiet=arguments.quiet or arguments.json) as report:
        ended = publish.publish(
            site,
            targets=arguments.target,
            observer=report,
            force=arguments.force,
            dry_run=arguments.dry_run,
            limit=arguments.limit,
            accept_key_change=arguments.accept_key_change,
        )
    return outcomes.print_outcomes(arguments, site, ended)
