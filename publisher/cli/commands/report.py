"""`report`: what jobs used and what became of them, as a page, as files, as tables; only reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from publisher.cli import progress
from publisher.cli.commands import Context, load_part
from publisher.cli.logs import notice
from publisher.cli.output import Json, moment_text, print_line, print_result, print_table
from publisher.cli.parser import (
    TO_HELP,
    Form,
    add_all_instances,
    add_flag,
    add_json,
    add_window,
    window_of,
)
from publisher.cli.sources import incomplete
from publisher.jobs.sums import LOCAL_NAMES
from publisher.model.errors import UsageError
from publisher.model.time import epoch
from publisher.publishing.databases.prune import refuse_pruned
from publisher.reporting import report as reporting
from publisher.reporting.files import whole_file
from publisher.reporting.html import text as written
from publisher.reporting.html.tables import tables
from publisher.reporting.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_window(
        parser,
        start="jobs that ended at or after this time (default: last-month): 2026-03, last-month",
        end=f"{TO_HELP} (default: this-month)",
    )
    parser.set_defaults(start="last-month", end="this-month")
    text = "write the page to this file; - is standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "an HTML page, or tables and bars on the terminal"
    parser.add_argument("--format", choices=("html", "terminal"), default="html", help=text)
    text = f"also a table by {', '.join(LOCAL_NAMES)} (default project); may be repeated"
    parser.add_argument("--by", action="append", choices=LOCAL_NAMES, metavar="WHAT", help=text)
    add_flag(parser, "--name-users", text="name users as the accounting data does, not by numbers")
    add_all_instances(parser)
    text = "write each table to a CSV file in this directory, with definitions"
    parser.add_argument("--csv", type=Path, metavar="DIR", help=text)
    add_json(parser, Form.JSON)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    window = window_of(arguments, site.process.clock())
    refuse_pruned(site, window)
    on_page = _is_page(arguments)
    # Its libraries may be missing: not after minutes
    page = load_part("reporting.html.page").page if on_page else None
    notice(f"report of jobs that ended {window}")
    with progress.counting("rows of jobs", quiet=arguments.quiet) as counting:
        counting.expect(reporting.rows_to_read(site, window))
        found = reporting.collect(
            site,
            window,
            by=arguments.by or ["project"],
            rows_read=counting.seen,
            name_users=arguments.name_users,
            all_instances=arguments.all_instances,
        )
    if arguments.csv is not None:
        _write_files(arguments.csv, found)
    if page is not None:
        _write_page(arguments.output, page(found))
        for hint in written.hints(found):
            notice(hint)
    elif arguments.form is Form.JSON:
        print_result(found, _as_json, written.headlines, form=Form.JSON)
    elif arguments.format == "terminal":
        _print(found)
    return incomplete(site)


def _is_page(arguments: argparse.Namespace) -> bool:
    """Whether a page is wanted. Raises: UsageError when nothing is, or two things at once."""
    if arguments.form is Form.JSON:
        if arguments.output is not None or arguments.format == "terminal":
            raise UsageError("--as json prints the tables; omit -o and --format terminal")
        return False
    if arguments.format == "terminal":
        if arguments.output is not None:
            refused = "cannot be combined with --format terminal"
            raise UsageError(f"-o is for the HTML page and {refused}")
        return False
    if arguments.output is None and arguments.csv is None:
        raise UsageError(
            "report needs -o FILE.html for a page, --format terminal, --csv DIR, or --as json"
        )
    return arguments.output is not None


def _write_page(path: Path, pieces: Iterator[str]) -> None:
    if str(path) == "-":
        sys.stdout.writelines(pieces)
        return
    with whole_file(path) as out:
        out.writelines(pieces)
    notice(f"{path}: written; it needs no network and no other file")


def _write_files(directory: Path, found: Report) -> None:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        advice = "name another directory with --csv"
        raise UsageError(f"{directory}: {error.strerror}; {advice}") from error
    for name, text in written.files(found):
        with whole_file(directory / name) as out:
            out.write(text)
    notice(f"{directory}: CSV files written; definitions.csv explains every column")


def _as_json(found: Report) -> Json:
    return {
        "site": found.site,
        "from": moment_text(found.window.start),
        "to": moment_text(found.window.end),
        "made": moment_text(epoch(found.made_at)),
        "tables": [{"name": table.name, **table.plain()} for table in tables(found)],
    }


def _print(found: Report) -> None:
    for line in written.headlines(found):
        print_line(line)
    for title, heads, rows in written.drawn(found):
        print_line("")
        print_line(title)
        print_table(heads, rows)
