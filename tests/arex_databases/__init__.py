"""Makes NorduGrid ARC A-REX accounting databases, the same for the same seed: ordinary, hostile, large, damaged.

    with Writer(path, schema=2) as arex:
        arex.write_all(generate(1, 100, start, end))

By hand: `python -m tests.arex_databases --schema 2 --jobs 5000 --seed 1 --month 2026-10 [--hostile] FILE`.
"""

from tests.arex_databases.bulk import bulk
from tests.arex_databases.damage import (
    leave_wal,
    make_damaged,
    make_empty,
    make_missing,
    make_not_a_database,
    make_truncated,
    set_schema_version,
)
from tests.arex_databases.hostile import FORGED_JOB_NAME, TEXTS, hostile
from tests.arex_databases.jobs import Event, RawRow, SampleJob, SqlValue, Transfer, TransferKind
from tests.arex_databases.sample import generate
from tests.arex_databases.schema import (
    NAME_TABLES,
    OPTIMIZED_INDEXES,
    SIDE_TABLES,
    Journal,
    Schema,
    aar_columns,
    create,
    indexes,
)
from tests.arex_databases.spelling import escaped, wrapped
from tests.arex_databases.writer import Step, Writer

__all__ = [
    "FORGED_JOB_NAME",
    "NAME_TABLES",
    "OPTIMIZED_INDEXES",
    "SIDE_TABLES",
    "TEXTS",
    "Event",
    "Journal",
    "RawRow",
    "SampleJob",
    "Schema",
    "SqlValue",
    "Step",
    "Transfer",
    "TransferKind",
    "Writer",
    "aar_columns",
    "bulk",
    "create",
    "escaped",
    "generate",
    "hostile",
    "indexes",
    "leave_wal",
    "make_damaged",
    "make_empty",
    "make_missing",
    "make_not_a_database",
    "make_truncated",
    "set_schema_version",
    "wrapped",
]
