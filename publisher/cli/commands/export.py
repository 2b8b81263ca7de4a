"""`export`: finished jobs one by one, as JSON lines or CSV; and what each column means."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from decimal import Decimal
from itertools import chain
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final, TextIO

from publisher.cli import progress
from publisher.cli.commands import Context, load_part
from publisher.cli.commands.stats import add_filters, has_filters, job_filter
from publisher.cli.logs import notice
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    print_csv,
    print_line,
    print_result,
    print_table,
)
from publisher.cli.parser import Form, add_flag
from publisher.cli.site import LiveSite
from publisher.cli.sources import incomplete
from publisher.model.errors import UsageError
from publisher.model.text import plural
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.prune import refuse_pruned
from publisher.reporting import statistics
from publisher.reporting.export.columns import COLUMNS, Column, ExportedJob, Value
from publisher.reporting.export.pages import described
from publisher.reporting.files import whole_file

_JSON: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    Decimal: lambda value: format(value, "f"),
    tuple: json.dumps,
    type(None): lambda _: "null",
}
_PARQUET: Final = "parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    formats = (*map(str, Form), _PARQUET)
    text = "json-lines (default), json, csv or parquet; with --columns also table (default)"
    parser.add_argument("--as", "--format", dest="form", choices=formats, help=text)
    text = "write to this file (default: standard output); for parquet, the directory of the files"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "which jobs share a parquet file (default month)"
    parser.add_argument("--partition", choices=("month",), default="month", help=text)
    add_flag(parser, "--columns", text="print what each column means, and export nothing")


def run(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.columns and arguments.form != _PARQUET:
        # The same at every site: no configuration is read
        form = Form(arguments.form or Form.TABLE)
        print_result(COLUMNS, _definitions, _definitions_table, form=form, rows="columns")
        return 0
    if arguments.form == _PARQUET:
        return _run_parquet(arguments, context.load())
    form = Form(arguments.form or Form.JSON_LINES)
    if form is Form.TABLE:
        advice = "use --as csv, or `publisher stats`"
        raise UsageError(f"a job has too many columns for a table; {advice}")
    site = context.load()
    path = arguments.output
    with (
        nullcontext(sys.stdout) if path is None else whole_file(path) as out,
        asked(site) as jobs,
        progress.counting("jobs", quiet=arguments.quiet or path is None) as counting,
    ):
        wanted = job_filter(arguments, site, jobs)
        refuse_pruned(site, wanted.ended)
        rows = statistics.rows_with(site, wanted)
        pages = jobs.selected(wanted, rows)
        _write(form, described(site.records, pages, counting.seen), out)
        left_out = jobs.left_out(wanted, rows)
    _report_skipped(left_out)
    return incomplete(site)


def _report_skipped(left_out: Mapping[str, int]) -> None:
    """Report the jobs that were left out, by the rule that they break; '': in progress."""
    for rule, count in sorted(left_out.items()):
        why = f"because of rows that cannot be read: {rule}" if rule else "still in progress"
        comma = "" if rule else ","
        notice(f"{plural(count, 'job')} left out{comma} {why}")


def _run_parquet(arguments: argparse.Namespace, site: LiveSite) -> int:
    """All months; those that did not change stay as they are."""
    if has_filters(arguments, site) or arguments.columns:
        advice = "leave out the period, the filters and --columns"
        raise UsageError(f"parquet has all jobs and all columns: {advice}")
    if arguments.output is None:
        raise UsageError("parquet makes several files: name their directory with --output")
    parquet = load_part("reporting.export.parquet")  # its library may be missing
    with asked(site) as jobs, progress.counting("jobs", quiet=arguments.quiet) as counting:
        done = parquet.export(site, jobs, arguments.output, jobs_seen=counting.seen)
    written = done.written.items()
    rows = [(what, month, str(n)) for what, months in written for month, n in months.items()]
    print_table(("data", "month", "rows"), rows)
    if done.unchanged:
        print_line(f"{plural(done.unchanged, 'file')} of other months unchanged")
    _report_skipped(done.left_out)
    return incomplete(site)


def _definitions(columns: Sequence[Column]) -> Json:
    rows = [
        {"column": each.name, "type": each.kind, "unit": each.unit, "meaning": each.meaning}
        for each in columns
    ]
    return {"columns": rows}


def _definitions_table(columns: Sequence[Column]) -> Iterator[Part]:
    rows = [(each.name, each.kind, each.unit, each.meaning) for each in columns]
    yield TextTable(("column", "type", "unit", "meaning"), rows)


def _write(form: Form, pages: Iterator[Sequence[ExportedJob]], out: TextIO) -> None:
    """A line a job with every column; decimals are numbers as they are written, never rounded."""
    if form is Form.CSV:
        names = [column.name for column in COLUMNS]
        print_csv(names, map(_csv_row, chain.from_iterable(pages)), out)
        return
    lines = map(_line, chain.from_iterable(pages))
    if form is Form.JSON_LINES:
        out.writelines(f'{{"schema": 1, {line[1:]}\n' for line in lines)
        return
    between = '{\n"schema": 1,\n"jobs": [\n'
    for line in lines:
        out.write(between + line)
        between = ",\n"
    end = "\n" if between == ",\n" else between
    out.write(f"{end}]\n}}\n")


def _line(one: ExportedJob) -> str:
    texts = []
    for name, column in _NAMED:
        value = column.value(one)
        texts.append(name + _JSON[type(value)](value))
    return f"{{{', '.join(texts)}}}"


_NAMED: Final = tuple((f"{json.dumps(column.name)}: ", column) for column in COLUMNS)


def _csv_row(one: ExportedJob) -> tuple[str, ...]:
    return tuple(_cell(column.value(one)) for column in COLUMNS)


def _cell(value: Value) -> str:
    """Unknown is an empty cell, several texts are joined by `;`."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ";".join(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
