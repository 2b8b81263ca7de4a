"""The table of usage records: its limits, its one key, its duplicates, and a database server that comes and goes.

Measured on PostgreSQL 15.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tests.fake_sgas.failures import Failure, Generation, Refusal
from tests.fake_sgas.rows import Row, TransferRow

_TEXT_LIMITS: Final = {
    "record_id": 1000,
    "global_job_id": 1000,
    "local_job_id": 500,
    "global_user_name": 1000,
    "local_user_id": 100,
    "vo_type": 100,
    "vo_name": 1000,
    "vo_issuer": 1000,
    "job_name": 1000,
    "status": 100,
    "project_name": 200,
    "submit_host": 200,
    "queue": 200,
    "machine_name": 200,
    "host": 2700,
}
_VO_ATTRIBUTE_LIMIT: Final = 100
_ENVIRONMENT_LIMIT: Final = 512
_URL_LIMIT: Final = 2500
# Lookup tables have a unique btree index on the text itself.
_INDEXED: Final = ("global_user_name", "project_name", "submit_host", "queue", "machine_name", "host")
_BTREE_MAXIMUM: Final = 2704
_INDEX_OVERHEAD: Final = 12
_INT4: Final = ("charge", "wall_s", "processors", "user_time_s", "kernel_time_s", "major_page_faults")


class Unavailable(Failure):
    """No connection to the database can be had."""


class Database:
    """What is stored, and whether it can be reached. Not safe for threads: SGAS inserts in one."""

    def __init__(self, generation: Generation) -> None:
        self.down = False
        self.poison: dict[str, Failure] = {}  # records that bring something down that nobody has met yet, by record id
        self.last: tuple[int, Failure] | None = None  # how many rows it takes, and what any more bring about
        self.refusal = ""  # what PostgreSQL says instead of working, such as FATAL: too many connections
        self._generation = generation
        self._rows: dict[str, Row] = {}
        self._next_id = 1
        self._connected = True

    @property
    def rows(self) -> Mapping[str, Row]:
        return self._rows

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()

    def restart(self) -> None:
        """Drop the connection; the next insert finds out."""
        self._connected = False

    def insert(self, incoming: Iterable[Row]) -> dict[str, str] | None:
        """All of them or none, in one transaction; row ids by record id, or None right after a new connection (H).

        Raises: Refusal, Unavailable.
        """
        news = not self._connected
        self._connect()
        if self.refusal:
            raise Refusal(self.refusal)
        changed: dict[str, Row] = {}
        for row in incoming:
            self._next_id += 1  # a sequence: what fails leaves gaps
            self._store(replace(row, id=self._next_id - 1), changed)
        self._rows |= changed
        return None if news and self._generation == "H" else {name: str(row.id) for name, row in changed.items()}

    def _connect(self) -> None:
        lost, self._connected = not self._connected, not self.down
        if self._generation == "R" and (lost if not self.down else not lost):
            raise Refusal("'NoneType' object has no attribute 'insertJobUsageRecords'")
        if self.down:
            raise Unavailable

    def _store(self, row: Row, changed: dict[str, Row]) -> None:
        record_id = row.record_id or ""
        if record_id in self.poison:
            raise self.poison[record_id]
        if self.last is not None and len(self._rows) + len(changed) >= self.last[0]:
            raise self.last[1]
        _check(row)
        stored = changed.get(record_id) or self._rows.get(record_id)
        if stored is not None and row.global_job_id in (stored.global_job_id or record_id, record_id):
            changed[record_id] = stored  # kept as it is; what the new copy says is thrown away
            return
        if stored is not None and stored.has_children:
            table = "runtimeenvironments_usagedata" if stored.runtime_environments else "jobtransferdata"
            raise Refusal(
                f'update or delete on table "usagedata" violates foreign key constraint "{table}_usage_data_id_fkey" on '
                f'table "{table}"\nDETAIL:  Key (id)=({stored.id}) is still referenced from table "{table}".\n'
                'CONTEXT:  SQL statement "DELETE FROM usagedata WHERE id = ur_id"\n'
                "PL/pgSQL function urcreate(character varying,timestamp without time zone) line 64 at SQL statement"
            )
        changed[record_id] = row


def _check(row: Row) -> None:
    """Raises: Refusal in PostgreSQL's words."""
    for column, limit in _TEXT_LIMITS.items():
        _check_text(getattr(row, column), limit)
    for group_and_role in row.vo_attributes:
        for text in group_and_role:
            _check_text(text, _VO_ATTRIBUTE_LIMIT)
    for name in row.runtime_environments:
        _check_text(name, _ENVIRONMENT_LIMIT)
    for column in _INDEXED:
        _check_indexed(getattr(row, column), column)
    for transfer in row.transfers:
        _check_transfer(transfer)
    _check_numbers(row)
    for column in ("record_id", "create_time"):
        if getattr(row, column) is None:
            values = ", ".join(
                "null" if value is None else str(value)
                for value in (row.id, row.record_id, row.create_time, row.global_job_id, row.local_job_id, row.wall_s)
            )
            raise Refusal(
                f'null value in column "{column}" of relation "usagedata" violates not-null constraint\n'
                f"DETAIL:  Failing row contains ({values}).\n"
                'CONTEXT:  SQL statement "INSERT INTO usagedata (id, record_id, create_time, global_job_id, local_job_id, '
                'wall_duration) VALUES (DEFAULT, in_record_id, in_create_time, in_global_job_id, in_local_job_id, in_wall)"\n'
                "PL/pgSQL function urcreate(character varying,timestamp without time zone) line 171 at SQL statement"
            )


def _check_text(text: str | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise Refusal(
            f"value too long for type character varying({limit})\n"
            "CONTEXT:  PL/pgSQL function urcreate(character varying,timestamp without time zone) line 96 at SQL statement"
        )


def _check_indexed(text: str | None, column: str) -> None:
    """What does not compress well must fit an index page; zlib stands for PostgreSQL's weaker compression."""
    raw = (text or "").encode()
    size = len(raw) + _INDEX_OVERHEAD
    if size > _BTREE_MAXIMUM and len(zlib.compress(raw)) * 2 > len(raw):
        raise Refusal(
            f'index row size {size} exceeds btree version 4 maximum {_BTREE_MAXIMUM} for index "{column}_key"'
        )


def _check_transfer(transfer: TransferRow) -> None:
    _check_text(transfer.url, _URL_LIMIT)
    _check_indexed(transfer.url, "job_transfer_url")
    if transfer.size_bytes is not None and abs(transfer.size_bytes) >= 2**63:
        raise Refusal("bigint out of range")


def _check_numbers(row: Row) -> None:
    if row.node_count is not None and not -(2**15) <= row.node_count < 2**15:
        raise Refusal("smallint out of range")
    wide = [column for column in _INT4 if (value := getattr(row, column)) is not None and not -(2**31) <= value < 2**31]
    if row.cpu_s is not None and abs(row.cpu_s) >= 2**63:
        wide.append("cpu_s")
    if wide:
        # A literal that is too wide has another type, and there is no function for such arguments.
        raise Refusal(
            "function urcreate(unknown, timestamp without time zone, unknown, unknown, bigint, numeric) does not exist\n"
            f"LINE 1: SELECT * FROM urcreate ('{row.record_id}', '{row.create_time}'::timestamp, NULL, NULL)\n"
            "                      ^\nHINT:  No function matches the given name and argument types."
        )
    if any(abs(size) >= 2**63 for size, _, _ in row.memory):
        raise Refusal("bigint out of range")
