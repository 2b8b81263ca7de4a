"""`help`: how a command is called."""

from __future__ import annotations

import argparse

from publisher.cli import parser as command_line
from publisher.cli.commands import Context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "show the help of this command, or of its action"
    parser.add_argument("words", nargs="*", metavar="COMMAND", help=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    parser = command_line.parser()
    for word in arguments.words:
        below = parser.below()
        if word not in below:
            parser.error(f"invalid choice: '{word}' (choose from {', '.join(below)})")
        parser = below[word]
    parser.load()
    parser.print_help()
    return 0
