"""The publishing database of one instance in PostgreSQL: opened, whole transactions, our errors.

A lost connection is never replaced: the locks of its targets went with it, so the round ends, and
the next one begins with what was on its way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import lru_cache
from ipaddress import ip_address
from itertools import count
from threading import RLock
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper

from publisher.ledger.postgres import schema
from publisher.ledger.postgres.locks import AdvisoryChargeLocks, Leases
from publisher.ledger.sql.database import NO_PARAMETERS, ChargeLocks, Database, Parameters, Rows
from publisher.model.errors import LedgerError

_SETTINGS: Final = {
    "synchronous_commit": "on",
    # Whatever the role has: targets that work at once fail in a stricter one.
    "default_transaction_isolation": "read committed",
    # Shorter than a lease: who waits for a lock gives no sign of life.
    "lock_timeout": "10s",
    "client_min_messages": "warning",
}
_CONNECT: Final = {
    "application_name": "publisher",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "tcp_user_timeout": "15000",  # ms
}
_PORTION: Final = 200  # rows of a stream


class PostgresDatabase:
    """`Database` of an instance. One thread works with it; renewal of its leases comes between."""

    def __init__(self, connection: psycopg.Connection, place: str, instance: str) -> None:
        self._connection = connection
        self._place = place
        self._instance = instance
        self._turn = RLock()
        self._streams = count(1)
        self._leases = Leases(self, instance)

    def atomic(self, to_settle: int = 0) -> AbstractContextManager[None]:
        return self._transaction("BEGIN", self._leases.check)  # the disk is the server's

    def make_room(self, to_settle: int) -> None:
        """The disk is the server's."""

    def learn_sizes(self, tables: Iterable[str]) -> None:
        """Without statistics, the server takes new rows to be few, and reads all of them."""
        for table in tables:
            self.execute(f"ANALYZE {table}")

    def reading(self) -> AbstractContextManager[None]:
        return _translated(self._place)

    def snapshot(self) -> AbstractContextManager[None]:
        if self._is_in_transaction():
            return self.reading()
        return self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE", lambda: None)

    def execute(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Rows:
        translated, values = _translation(statement), _sendable(parameters)
        with self._turn:
            found: Rows = self._connection.execute(translated, values, binary=True)
            return found

    def stream(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Iterator[Any]:
        held = not self._is_in_transaction()
        with self._connection.cursor(f"stream_{next(self._streams)}", withhold=held) as cursor:
            cursor.itersize = _PORTION
            cursor.execute(_translation(statement), _sendable(parameters), binary=True)
            yield from cursor

    def execute_many(self, statement: str, parameters: Iterable[Parameters]) -> int:
        # First, since whoever makes these may ask the database: nothing else is under way.
        rows = list(map(_sendable, parameters))
        with self._turn, self._connection.cursor() as cursor:
            cursor.executemany(_translation(statement), rows)
            return max(0, cursor.rowcount)

    def insert_returning_id(self, statement: str, parameters: Parameters) -> int:
        return int(self.execute(f"{statement} RETURNING id", parameters).fetchone()[0])

    def rows_were_copied(self, tables: Iterable[str]) -> None:
        for table in tables:
            sequence = f"pg_get_serial_sequence('{table}', 'id')"
            self.execute(f"SELECT setval({sequence}, max(id)) FROM {table}")

    def target_lock(
        self, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return self._leases.hold(target, patience)

    def receiver_lock(
        self, receiver: int, place: str, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return self._leases.hold_receiver(receiver, place, target, patience)

    def charge_locks(self) -> ChargeLocks:
        return AdvisoryChargeLocks(self, self._instance)

    def damage(self, *, quick: bool) -> list[str]:
        return []  # the server ends a statement that meets any

    def close(self) -> None:
        self._connection.close()

    def _is_in_transaction(self) -> bool:
        return self._connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE

    @contextmanager
    def _transaction(self, begin: str, check: Callable[[], None]) -> Iterator[None]:
        with _translated(self._place), self._turn:
            self._connection.execute(begin.encode())
            try:
                check()
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(psycopg.Error):
                    self._connection.execute("ROLLBACK")
                raise


def open_database(address: str, instance: str) -> Database:
    """The publishing database of an instance, made when it is not there. Raises: LedgerError."""
    return _open(address, instance, read_only=False)


def open_database_to_read(address: str, instance: str) -> Database:
    """The same, only to read; an empty one when there is no such instance yet.

    Raises: LedgerError, also from every write.
    """
    return _open(address, instance, read_only=True)


def instances(address: str) -> list[str]:
    """The instances that keep their ledgers there. Raises: LedgerError."""
    with _translated(place_of(address)), closing(_connect(address)) as connection:
        return schema.instances(connection)


def _open(address: str, instance: str, *, read_only: bool) -> Database:
    place = f"{place_of(address)}, instance {instance}"
    with _translated(place):
        connection = _connect(address)
        try:
            _prepare(connection, instance, read_only=read_only)
        except BaseException:
            connection.close()
            raise
    return PostgresDatabase(connection, place, instance)


def parameters(address: str) -> dict[str, str]:
    """What libpq is told: the address, and what stands beneath it."""
    given = _given(address)
    if _is_local(given):
        given.setdefault("sslmode", "prefer")
    # Beneath the service file too, but above libpq's default, which takes any server for the right.
    os.environ.setdefault("PGSSLMODE", "verify-full")
    return _CONNECT | given


class _WaitingConnection(psycopg.Connection[Any]):
    """One whose waiting fails with the driver's errors alone."""

    def wait(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().wait(*arguments, **named)
        except OSError as error:  # of poll(2)
            what = f"cannot wait for the server: {error.strerror}"
            raise psycopg.OperationalError(what) from error


def _connect(address: str) -> psycopg.Connection:
    connection = _WaitingConnection.connect(make_conninfo(**parameters(address)), autocommit=True)
    # Of one type whatever its size: statements are prepared once.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    return connection


def _prepare(connection: psycopg.Connection, instance: str, *, read_only: bool) -> None:
    settings = _SETTINGS | {"search_path": schema.name_of(instance)}
    settings |= {"default_transaction_read_only": "on"} if read_only else {}
    connection.execute(
        "SELECT set_config(name, value, false) "
        "FROM unnest(%s::text[], %s::text[]) AS given (name, value)",
        [list(settings), list(settings.values())],
    )
    if schema.version_of(connection, instance):
        return
    connection.execute("BEGIN READ WRITE")
    if read_only:
        schema.create_empty(connection)
    else:
        schema.create(connection, instance)
    connection.execute("COMMIT")


def place_of(address: str) -> str:
    """The server and the database for people, without a password."""
    given = _given(address)
    if "service" in given:
        return f"PostgreSQL service {given['service']}"
    port = f":{given['port']}" if "port" in given else ""
    return f"postgresql://{given.get('host', '')}{port}/{given.get('dbname', '')}"


def _given(address: str) -> dict[str, str]:
    given = conninfo_to_dict(address)
    return {name: str(value) for name, value in given.items() if value is not None}


def _is_local(given: dict[str, str]) -> bool:
    """Whether nobody is between this process and the server; of a service its file tells."""
    if "service" in given:
        return False
    hosts = (given.get("hostaddr") or given.get("host") or "").split(",")
    return all(map(_is_local_host, hosts))


def _is_local_host(host: str) -> bool:
    """Whether it is a socket, or loopback."""
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _translation(statement: str) -> bytes:
    """A statement with its parameters as psycopg names them."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement.replace("%", "%%")).encode()


def _sendable(parameters: Parameters) -> Parameters:
    """PostgreSQL's texts know no NUL: it is written down as people see it."""
    if any(isinstance(value, str) and "\0" in value for value in parameters.values()):
        return {
            name: value.replace("\0", "\\x00") if isinstance(value, str) else value
            for name, value in parameters.items()
        }
    return parameters


@contextmanager
def _translated(place: str) -> Iterator[None]:
    """The driver's errors, as LedgerError with what to do now."""
    try:
        yield
    except psycopg.Error as error:
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise LedgerError(f"{place}: {what}; {_advice(error)}") from error


# By the beginning of SQLSTATE; Spec: PostgreSQL, appendix A.
_ADVICE: Final = {
    "28": "the role or its password is refused: "
    "look at the password file (PGPASSFILE) and at the server's pg_hba.conf",
    "3D": "make the database, owned by the role that publishes (`createdb --owner`)",
    "42501": "the role needs a schema of its own: "
    "`CREATE SCHEMA {schema} AUTHORIZATION` that role, as docs/fleet.md shows",
    "53300": "the server has no connection left: "
    "end some or raise max_connections, then run again: nothing is lost",
    "53": "make room on the server, then run again: nothing is lost",
    "54": "report it",
    "55P03": "another session holds a lock (pg_locks says which); "
    "run again when it is done: nothing is lost",
    "57014": "the server ends statements that take longer than its statement_timeout: "
    "raise it for this role, then run again: nothing is lost",
    "25P03": "the server ends transactions that wait longer than "
    "idle_in_transaction_session_timeout: raise it for this role, then run again: nothing is lost",
    "40": "another session was in the way; run again: nothing is lost",
    "25006": "this server only reads: name the primary, or add target_session_attrs=read-write",
    "XX": "the server found damage: restore its last backup",
}
# A refused connection has no SQLSTATE: by the text of libpq or the server, the first that fits.
_REFUSED: Final = {
    "remaining connection slots|too many c": _ADVICE["53300"],
    "password|authentication failed|pg_hba.conf|role .* does not exist": _ADVICE["28"],
    "database .* does not exist": _ADVICE["3D"],
    "does not match host name": "name the server in `state` as its certificate does, "
    "or give it a certificate with this name",
    "does not support SSL": "set `ssl = on` at the server, with a certificate for its name",
    "certificate": "name the CA that signed the server's certificate as sslrootcert, "
    "in `state` or the service file; if that is the right one, the certificate has expired",
}
_AWAY: Final = (
    "the server is away or ended the connection; run again when it is back: "
    "nothing is lost, and what was on its way is sent again under the same id"
)


def _advice(error: psycopg.Error) -> str:
    if code := error.sqlstate:
        fitting = (advice for begin, advice in _ADVICE.items() if code.startswith(begin))
    else:
        fitting = (advice for text, advice in _REFUSED.items() if re.search(text, str(error)))
    if found := next(fitting, ""):
        return found.format(schema=f'"{schema.PREFIX}INSTANCE"')
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return _AWAY
    return "run again; if the error persists, report it"
