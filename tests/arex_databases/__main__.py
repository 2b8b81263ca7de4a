"""Make an accounting database by hand."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.arex_databases.bulk import bulk
from tests.arex_databases.hostile import hostile
from tests.arex_databases.sample import generate
from tests.arex_databases.schema import create
from tests.arex_databases.writer import Writer

BULK_FROM = 20_000
"""From so many jobs on they are multiplied inside SQLite instead of written one by one."""


def month_window(text: str) -> tuple[datetime, datetime]:
    """`YYYY-MM` as the month's [start, end) in UTC.

    Raises: ValueError: not a month.
    """
    start = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start, end


def main(arguments: list[str] | None = None) -> int:
    """Make the database the command line asks for; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.arex_databases", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--schema", type=int, choices=(1, 2), default=2)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--month", type=month_window, default="2026-10", help="of the jobs' ends, UTC (%(default)s)")
    parser.add_argument("--zone", default="Europe/Oslo", help="of the CE (%(default)s)")
    parser.add_argument("--journal", choices=("wal", "delete"), default="wal")
    parser.add_argument(
        "--optimized", action="store_true", help="with the indexes of arcctl accounting database optimize"
    )
    parser.add_argument("--hostile", action="store_true", help="and the hostile cases")
    asked = parser.parse_args(arguments)
    if asked.file.exists():
        parser.error(f"{asked.file} exists; name another file or remove it first")
    start, end = asked.month
    if asked.jobs >= BULK_FROM:
        bulk(
            *(asked.file, asked.schema, asked.jobs, asked.seed, start, end),
            journal=asked.journal,
            optimized=asked.optimized,
            zone=asked.zone,
        )
    else:
        create(asked.file, schema=asked.schema, journal=asked.journal, optimized=asked.optimized)
    with Writer(asked.file, zone=asked.zone) as writer:
        if asked.jobs < BULK_FROM:
            writer.write_all(generate(asked.seed, asked.jobs, start, end))
        if asked.hostile:
            writer.write_all(hostile(asked.seed, start=start, end=end))
    return 0


if __name__ == "__main__":
    sys.exit(main())
