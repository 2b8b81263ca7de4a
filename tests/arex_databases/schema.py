"""The tables and indexes of an A-REX accounting database, schema 1 (`accounting.db`) and 2 (`accounting_v2.db`).

The columns and indexes are facts of the file format; this DDL is our own. It is laxer than A-REX's in one point:
no column but the keys is NOT NULL, so that the hostile cases can put NULL anywhere. Statistics (`ANALYZE`) are never
made, because sites have none.
"""

import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

Schema = Literal[1, 2]
Journal = Literal["wal", "delete"]

V2_ONLY: Final = frozenset({"FQANID", "BenchmarkID"})

NAME_TABLES: Final = {
    "EndpointID": "Endpoints",
    "QueueID": "Queues",
    "UserID": "Users",
    "VOID": "WLCGVOs",
    "FQANID": "FQANs",
    "StatusID": "Status",
    "BenchmarkID": "Benchmarks",
}
"""Column of AAR to the table its number points into."""

_AAR_TEXT: Final = frozenset({"JobID", "LocalJobID"})

_AAR_V2: Final = (
    "RecordID",
    "JobID",
    "LocalJobID",
    "EndpointID",
    "QueueID",
    "UserID",
    "VOID",
    "FQANID",
    "StatusID",
    "ExitCode",
    "BenchmarkID",
    "SubmitTime",
    "EndTime",
    "NodeCount",
    "CPUCount",
    "UsedMemory",
    "UsedVirtMem",
    "UsedWalltime",
    "UsedCPUUserTime",
    "UsedCPUKernelTime",
    "UsedScratch",
    "StageInVolume",
    "StageOutVolume",
)

SIDE_TABLES: Final = {
    "AuthTokenAttributes": (("AttrKey", "TEXT"), ("AttrValue", "TEXT")),
    "JobEvents": (("EventKey", "TEXT"), ("EventTime", "TEXT")),
    "RunTimeEnvironments": (("RTEName", "TEXT"),),
    "DataTransfers": (
        ("URL", "TEXT"),
        ("FileSize", "INTEGER"),
        ("TransferStart", "INTEGER"),
        ("TransferEnd", "INTEGER"),
        ("TransferType", "INTEGER"),
    ),
    "JobExtraInfo": (("InfoKey", "TEXT"), ("InfoValue", "TEXT")),
}
"""Table to its columns after RecordID."""

OPTIMIZED_INDEXES: Final = (
    ("AAR", ("StatusID", "EndTime")),
    ("AuthTokenAttributes", ("RecordID", "AttrKey")),
    ("JobExtraInfo", ("RecordID", "InfoKey")),
)
"""What `arcctl accounting database optimize` adds."""

_INDEXED_AAR: Final = ("LocalJobID", "EndpointID", "QueueID", "UserID", "StatusID", "SubmitTime", "EndTime")


def aar_columns(schema: Schema) -> tuple[str, ...]:
    """Columns of AAR in the order of the file; those of schema 2 sit in the middle."""
    return tuple(column for column in _AAR_V2 if schema == 2 or column not in V2_ONLY)


def columns_of(table: str, schema: Schema) -> dict[str, str]:
    """Name and type of the columns of AAR or a side table, RecordID left out."""
    if table == "AAR":
        return {name: "TEXT" if name in _AAR_TEXT else "INTEGER" for name in aar_columns(schema)[1:]}
    return dict(SIDE_TABLES[table])


def name_tables(schema: Schema) -> dict[str, str]:
    """Columns of AAR that point into a name table, with that table."""
    return {column: table for column, table in NAME_TABLES.items() if schema == 2 or column not in V2_ONLY}


def indexes(schema: Schema, *, optimized: bool = False) -> list[tuple[str, tuple[str, ...]]]:
    """(table, columns) of every index besides those of the UNIQUE constraints."""
    wanted: list[tuple[str, tuple[str, ...]]] = [("AAR", (column,)) for column in _INDEXED_AAR]
    if schema == 2:
        wanted += [("AAR", (column,)) for column in ("VOID", "FQANID", "BenchmarkID")]
    wanted.append(("Endpoints", ("Interface",)))
    for table, columns in SIDE_TABLES.items():
        wanted += [(table, ("RecordID",)), (table, (columns[0][0],))]
    if optimized:
        wanted += OPTIMIZED_INDEXES
    return wanted


def create_tables(connection: sqlite3.Connection, schema: Schema) -> None:
    """Make the empty tables and the DBConfig row, without indexes."""
    for table in name_tables(schema).values():
        if table == "Endpoints":
            pair = ", UNIQUE(Interface, URL)" if schema == 2 else ""
            columns = f"ID INTEGER PRIMARY KEY AUTOINCREMENT, Interface TEXT, URL TEXT{pair}"
        else:
            columns = "ID INTEGER PRIMARY KEY AUTOINCREMENT, Name TEXT UNIQUE"
        connection.execute(f"CREATE TABLE {table} ({columns})")
    connection.execute(f"CREATE TABLE AAR ({', '.join(_aar_column(name) for name in aar_columns(schema))})")
    cascade = " ON DELETE CASCADE" if schema == 2 else ""
    for table, side_columns in SIDE_TABLES.items():
        rest = ", ".join(f"{name} {kind}" for name, kind in side_columns)
        connection.execute(
            f"CREATE TABLE {table} (RecordID INTEGER NOT NULL REFERENCES AAR(RecordID){cascade}, {rest})"
        )
    connection.execute("CREATE TABLE DBConfig (KeyName TEXT PRIMARY KEY, KeyValue TEXT)")
    connection.execute("INSERT INTO DBConfig VALUES ('DBSCHEMA_VERSION', ?)", (str(schema),))
    if schema == 2:
        for table in ("WLCGVOs", "FQANs", "Benchmarks"):
            connection.execute(f"INSERT INTO {table} (Name) VALUES ('')")


def create_indexes(connection: sqlite3.Connection, schema: Schema, *, optimized: bool = False) -> None:
    """Make all indexes of the schema."""
    for table, columns in indexes(schema, optimized=optimized):
        connection.execute(f"CREATE INDEX {'_'.join((table, *columns, 'IDX'))} ON {table} ({', '.join(columns)})")


def create(path: Path, *, schema: Schema = 2, journal: Journal = "wal", optimized: bool = False) -> None:
    """Make an empty accounting database.

    Raises: FileExistsError: there is a file already.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists; name another file or remove it first")
    path.write_bytes(_empty(schema, journal, optimized))


@cache
def _empty(schema: Schema, journal: Journal, optimized: bool) -> bytes:
    """The file, made once for the thousands that tests need."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("BEGIN")
            create_tables(connection, schema)
            create_indexes(connection, schema, optimized=optimized)
            connection.execute("COMMIT")
        finally:
            connection.close()
        return path.read_bytes()


def schema_of(connection: sqlite3.Connection) -> Schema:
    """Which schema DBConfig names.

    Raises: ValueError: neither 1 nor 2.
    """
    (version,) = connection.execute("SELECT KeyValue FROM DBConfig WHERE KeyName = 'DBSCHEMA_VERSION'").fetchone()
    if version == "1":
        return 1
    if version == "2":
        return 2
    raise ValueError(f"schema {version!r}: only 1 and 2 can be written")


def _aar_column(name: str) -> str:
    if name == "RecordID":
        return "RecordID INTEGER PRIMARY KEY AUTOINCREMENT"
    if name == "JobID":
        return "JobID TEXT UNIQUE"
    reference = f" REFERENCES {NAME_TABLES[name]}(ID)" if name in NAME_TABLES else ""
    return f"{name} {'TEXT' if name in _AAR_TEXT else 'INTEGER'}{reference}"
