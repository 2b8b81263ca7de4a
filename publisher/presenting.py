"""The command report, from arguments to pages, files and tables."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

from publisher import reporting, terminal
from publisher.errors import ConfigError, UsageError
from publisher.model import when
from publisher.model.selection import Window
from publisher.report import written
from publisher.reporting import Report
from publisher.whole_file import whole_file
from publisher.wiring import Site

_MODE = 0o640  # users may be named

_NEEDED = (
    "the page of a report needs Jinja2 and matplotlib, and {module} is not installed: pip install 'publisher[report]', or "
    "on Debian apt-get install python3-jinja2 python3-matplotlib; --format terminal and --csv need neither"
)


def report(arguments: argparse.Namespace, site: Site) -> int:
    window = _window(arguments, site)
    on_page = _is_page(arguments)
    if on_page:
        _look_for_libraries()
    terminal.notice(f"report of jobs that ended in {window}")
    counting = terminal.CountingReport(sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet, what="rows of jobs")
    try:
        found = reporting.gather(site, window, rows_read=counting.seen)
    finally:
        counting.done()
    if arguments.csv is not None:
        _write_files(arguments.csv, found)
    if on_page:
        _write_page(arguments.output, found)
    elif arguments.format == "terminal":
        _print(found)
    return 0


def _window(arguments: argparse.Namespace, site: Site) -> Window:
    """Last month and this one, where nothing else is asked for. Raises: UsageError."""
    now = site.surroundings.clock()
    start = when.parse_from(arguments.start or "last-month", now)
    return when.window(start, when.parse_to(arguments.end or "this-month", now))


def _is_page(arguments: argparse.Namespace) -> bool:
    """Whether a page is wanted. Raises: UsageError when nothing is, or two things at once."""
    if arguments.format == "terminal":
        if arguments.output is not None:
            raise UsageError("-o is for the page: without --format terminal, which prints")
        return False
    if arguments.output is None and arguments.csv is None:
        raise UsageError("report needs -o FILE.html for a page, --format terminal, or --csv DIR")
    return arguments.output is not None


def _look_for_libraries() -> None:
    """Before minutes of reading. Raises: ConfigError."""
    try:
        import_module("publisher.report.page")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("jinja2", "matplotlib", "markupsafe"):
            raise ConfigError(_NEEDED.format(module=error.name)) from error
        raise


def _write_page(path: Path, found: Report) -> None:
    from publisher.report.page import page

    if str(path) == "-":
        for piece in page(found):
            sys.stdout.write(piece)
        return
    with whole_file(path, mode=_MODE) as out:
        out.writelines(page(found))
    terminal.notice(f"{path}: written; it needs no network and no other file")


def _write_files(directory: Path, found: Report) -> None:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; name another directory with --csv") from error
    for name, text in written.files(found):
        with whole_file(directory / name, mode=_MODE) as out:
            out.write(text)
    terminal.notice(f"{directory}: CSV files written; definitions.csv explains every column")


def _print(found: Report) -> None:
    for line in written.headlines(found):
        terminal.print_line(line, sys.stdout)
    for title, heads, rows in written.drawn(found):
        terminal.print_line("", sys.stdout)
        terminal.print_line(title, sys.stdout)
        terminal.print_table(heads, rows, sys.stdout)
