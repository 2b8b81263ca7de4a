"""One A-REX accounting database: its schema, and its rows page by page."""

import re
import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeVar

from publisher.model.errors import SourceError
from publisher.model.text import arex_escape
from publisher.model.time import Window
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import RowReader
from publisher.sources.arex.values import (
    LocalTime,
    stored_text,
    text_of,
    tolerant_text,
)
from publisher.sources.base import SourceFacts
from publisher.sources.sqlite_reader import BUSY_TIMEOUT_S, CopyDirectory, ReadOnlyFile

Answer = TypeVar("Answer")

BEFORE_ALL: Final = -(2**63)
LAST_SECOND: Final = 2**63 - 1
_SCAN: Final = re.compile(r"SCAN (?:TABLE )?(\w+)")  # "TABLE" until SQLite 3.36
# The empty one is that of a job whose endpoint A-REX did not know; `aborted` is documented.
_STATUSES: Final = frozenset({"in-progress", "completed", "failed", "aborted", ""})


class DatabaseOptions(NamedTuple):
    """How a site's databases are to be read."""

    clock: LocalTime
    hold_off_s: int
    unescape: bool
    busy_timeout_s: float = BUSY_TIMEOUT_S


class AccountingDatabase:
    """The questions to one file."""

    def __init__(
        self, path: str, copies: CopyDirectory, reading: DatabaseOptions, name: str = ""
    ) -> None:
        """`name` is what the ledger calls it; '': by its path.

        Raises: SourceError when it is not an accounting database that we know, or cannot be read.
        """
        self.path = path
        self.name = name or path
        self._reading = reading
        self._reader: tuple[sqlite3.Connection, RowReader] | None = None
        self._file = ReadOnlyFile(path, copies, busy_timeout_s=reading.busy_timeout_s)
        try:
            self.ask(lambda *_: None)
        except BaseException:
            self._file.close()
            raise

    @property
    def schema(self) -> int:
        """1 or 2, of the file as it is now. Raises: SourceError."""
        return self.ask(lambda _, reader: reader.layout)

    def close(self) -> None:
        self._reader = None
        self._file.close()

    @property
    def clock(self) -> LocalTime:
        """Of the CE that writes it."""
        return self._reading.clock

    def rows_with(self, attribute: str, values: Collection[str]) -> list[int]:
        """Return the rows of jobs that have an attribute with one of these values."""
        spellings = {stored_text(text) for each in values for text in (each, arex_escape(each))}

        def read(connection: sqlite3.Connection, _: RowReader) -> list[int]:
            question = sql.ROWS_WITH.get(attribute, sql.ROWS_WITH[""])
            asked = {"key": stored_text(attribute)}
            found: set[int] = set()
            for value in spellings:
                rows = connection.execute(question, {**asked, "value": value})
                found.update(number for (number,) in rows)
            return sorted(found)

        return self.ask(read)

    def facts(self) -> SourceFacts:
        notes = (self._file.why,) if self._file.why else ()
        journal_mode = self._file.journal_mode()
        return self.ask(
            lambda connection, reader: SourceFacts(
                path=self.path,
                schema=reader.layout,
                journal_mode=journal_mode,
                way=str(self._file.way),
                notes=notes,
                unindexed=_unindexed(connection, reader.layout),
                strange_statuses=_strange_statuses(connection, reader),
            )
        )

    def ask(self, question: Callable[[sqlite3.Connection, RowReader], Answer]) -> Answer:
        """One question in one short transaction; again, tolerantly, where a text is not UTF-8."""

        def ask(connection: sqlite3.Connection) -> Answer:
            reader = self._reader_of(connection)
            try:
                return question(connection, reader)
            except sqlite3.OperationalError as error:
                if "decode to UTF-8" not in str(error):
                    raise
            # Only such pages pay for it: a text factory in Python makes reading thrice as slow.
            connection.text_factory = tolerant_text
            try:
                return question(connection, reader)
            finally:
                connection.text_factory = str

        return self._file.ask(ask)

    def _reader_of(self, connection: sqlite3.Connection) -> RowReader:
        """What is known of the file behind this connection; another one may be to another file."""
        if self._reader is None or self._reader[0] is not connection:
            layout = _inspect(self.path, connection)
            reader = RowReader(
                self.name,
                layout,
                unescape=self._reading.unescape,
                clock=self._reading.clock,
                hold_off_s=self._reading.hold_off_s,
            )
            self._reader = connection, reader
        return self._reader[1]


def bounds(window: Window) -> tuple[int, int]:
    """The first and the last second. A job that has not ended has 0 there, and is in no window."""
    last = LAST_SECOND if window.end is None else min(window.end - 1, LAST_SECOND)
    return max(1, window.start or 1), last


def _unindexed(connection: sqlite3.Connection, layout: int) -> tuple[str, ...]:
    """The tables that SQLite would read whole for a page. Raises: sqlite3.Error."""
    scanned: dict[str, None] = {}
    for question in sql.of_every_round(layout):
        plan = connection.execute(f"EXPLAIN QUERY PLAN {question}", sql.ANYTHING).fetchall()
        for step in plan:
            found = _SCAN.match(step[3])
            if found and found[1] in sql.tables(layout):
                scanned[found[1]] = None
    return tuple(scanned)


def _strange_statuses(connection: sqlite3.Connection, reader: RowReader) -> Mapping[str, int]:
    """Raises: sqlite3.Error."""
    found = {}
    for number, name, rows in connection.execute(sql.STATUSES):
        status = f"StatusID {number}, which has no name" if name is None else reader.text(name)
        if status not in _STATUSES:
            found[status] = int(rows)
    return found


def _inspect(path: str, connection: sqlite3.Connection) -> int:
    """Return which of the layouts it has. Raises: SourceError, sqlite3.Error."""
    columns: dict[str, set[str]] = {}
    for table, column in connection.execute(sql.LAYOUT):
        columns.setdefault(table, set()).add(column)
    if "dbconfig" not in columns or "aar" not in columns:
        raise SourceError(f"{path}: holds no accounting tables; name A-REX's accounting database")
    configuration = dict(connection.execute(sql.CONFIGURATION).fetchall())
    schema = _schema_version(path, text_of(configuration.get("DBSCHEMA_VERSION")), columns["aar"])
    if lacking := _lacking(columns, schema):
        raise SourceError(
            f"{path}: says schema version {schema} and lacks {', '.join(lacking)}; "
            "it was made or converted only in part"
        )
    return schema


def _schema_version(path: str, version: str, columns: Collection[str]) -> int:
    """`columns` are those of AAR. Raises: SourceError."""
    if version not in ("1", "2"):
        raise SourceError(
            f"{path}: has schema version {version or 'none'}; "
            "versions 1 (ARC 6) and 2 (ARC 7) are known: update publisher"
        )
    if version == "1" and "fqanid" in columns:
        # Read as version 1 its main FQANs and benchmarks would be passed over in silence.
        raise SourceError(
            f"{path}: says schema version 1 and has the columns of version 2; "
            "it was converted only in part"
        )
    return int(version)


def _lacking(columns: Mapping[str, Collection[str]], layout: int) -> list[str]:
    """What is not there of a layout. `columns` are those of each table, in lower case."""
    return [
        f"{table}.{column}"
        for table, wanted in sql.tables(layout).items()
        for column in wanted
        if column.lower() not in columns.get(table.lower(), ())
    ]
