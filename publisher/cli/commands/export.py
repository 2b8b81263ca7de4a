"""`export`: finished jobs one by one, as JSON lines or CSV, for other systems; and what each column means."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final, TextIO

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.commands.stats import add_filters, job_filter
from publisher.cli.logs import notice
from publisher.cli.output import Json, Part, TextTable, print_csv, print_result
from publisher.cli.parser import Form
from publisher.cli.sources import incomplete
from publisher.model.errors import UsageError
from publisher.model.text import plural
from publisher.pipeline.guards.prune import refuse_pruned
from publisher.reporting import export as exporting
from publisher.reporting.export import COLUMNS, Column, ExportedJob, Value
from publisher.reporting.files import whole_file

# Hot path: what is before each value of a line, and how to get the value; then how each type of value is written.
_VALUES: Final = tuple((f"{json.dumps(column.name)}: ", column.value) for column in COLUMNS)
_JSON: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    Decimal: lambda value: format(value, "f"),
    tuple: json.dumps,
    type(None): lambda _: "null",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    formats = tuple(map(str, Form))
    parser.add_argument(
        "--as",
        "--format",
        dest="form",
        choices=formats,
        help="json-lines (default), json or csv; with --columns also table (default)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to this file (default: standard output)"
    )
    parser.add_argument("--columns", action="store_true", help="print what each column means, and export nothing")


def run(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.columns:  # the same at every site: no configuration is read
        print_result(COLUMNS, _definitions, _definitions_table, form=Form(arguments.form or Form.TABLE), rows="columns")
        return 0
    form = Form(arguments.form or Form.JSON_LINES)
    if form is Form.TABLE:
        raise UsageError("a job has too many columns for a table; take --as csv, or ask `publisher stats`")
    site = context.load()
    wanted = job_filter(arguments, site)
    refuse_pruned(site, wanted.ended)
    left_out = exporting.SkippedJobs()
    with progress.counting("rows of jobs", quiet=arguments.quiet or arguments.output is None) as counting:
        found = exporting.jobs(site, wanted, left_out=left_out, rows_read=counting.seen)
        if arguments.output is None:
            _write(form, found, sys.stdout)
        else:
            with whole_file(arguments.output) as out:
                _write(form, found, out)
    if left_out.in_progress:
        notice(f"{plural(left_out.in_progress, 'job')} left out, still in progress")
    for rule, count in sorted(left_out.unreadable.items()):
        notice(f"{plural(count, 'job')} left out because of rows that cannot be read: {rule}")
    return incomplete(site)


def _definitions(columns: Sequence[Column]) -> Json:
    return {
        "columns": [
            {"column": each.name, "type": each.kind, "unit": each.unit, "meaning": each.meaning} for each in columns
        ]
    }


def _definitions_table(columns: Sequence[Column]) -> Iterator[Part]:
    rows = [(each.name, each.kind, each.unit, each.meaning) for each in columns]
    yield TextTable(("column", "type", "unit", "meaning"), rows)


def _write(form: Form, jobs: Iterator[ExportedJob], out: TextIO) -> None:
    """A line a job with every column in it; decimals are numbers as they are written, never rounded."""
    if form is Form.CSV:
        rows = ([_cell(column.value(job)) for column in COLUMNS] for job in jobs)
        print_csv([column.name for column in COLUMNS], rows, out)
        return
    if form is Form.JSON_LINES:
        for job in jobs:
            out.write(_line(job) + "\n")
        return
    between = '{\n"schema": 1,\n"jobs": [\n'
    for job in jobs:
        out.write(between + _line(job))
        between = ",\n"
    out.write("\n]\n}\n" if between == ",\n" else between + "]\n}\n")


def _line(job: ExportedJob) -> str:
    values = [name + _JSON[type(found := value(job))](found) for name, value in _VALUES]
    return "{" + ", ".join(values) + "}"


def _cell(value: Value) -> str:
    """Unknown is an empty cell, several texts are joined by `;`."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ";".join(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
