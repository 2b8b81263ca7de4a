"""What only the ledger in PostgreSQL does: locks with leases, connections that end, rights, and errors of the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.contract import Ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.errors import Busy, LedgerError
from tests.support.jobs import RECEIVER
from tests.support.ledgers import instance_of
from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer, binaries, private_server

pytest.importorskip("psycopg")

from publisher.ledger.postgres import connection, locks

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOLDER = """
import sys
from datetime import UTC, datetime
from publisher.ledger.postgres.connection import open_database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.entry import ReceiverName
from publisher.model.errors import LedgerError

ledger = sql_ledger(open_database(*sys.argv[1:]))
with ledger.locks.working_on("egi"):
    print("holds", flush=True)
    sys.stdin.readline()
    try:
        begin = dict(start_rule="all", start=None, selection_digest="", receiver=ReceiverName("here"))
        ledger.targets.begin_round("egi", **begin)
        print("wrote")
    except LedgerError as error:
        print(error)
"""


@pytest.fixture
def instance(tmp_path: Path) -> str:
    return instance_of(tmp_path)


@pytest.fixture
def opened(postgres: PostgresServer, instance: str) -> Iterator[Callable[[], Ledger]]:
    """Opens ledgers of one instance."""
    with ExitStack() as closed_later:
        yield lambda: closed_later.enter_context(
            closing(sql_ledger(connection.open_database(postgres.address, instance)))
        )


def begin(ledger: Ledger) -> None:
    ledger.targets.begin_round("egi", start_rule="all", start=None, selection_digest="", receiver=RECEIVER)


def end_all_connections(server: PostgresServer) -> None:
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'publisher'")


@pytest.fixture
def holder(postgres: PostgresServer, instance: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the target egi; it writes when it reads a line, and says what came of it."""
    command = [sys.executable, "-c", HOLDER, postgres.address, instance]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def answer(holder: subprocess.Popen[str]) -> str:
    said, _ = holder.communicate("write\n", timeout=PATIENCE_S)
    return said


def test_a_target_is_one_publishers_and_the_other_is_told_whose(
    opened: Callable[[], Ledger], holder: subprocess.Popen[str]
) -> None:
    with (
        pytest.raises(Busy, match=rf"target egi: .*process {holder.pid} is at work on it"),
        opened().locks.working_on("egi"),
    ):
        pass
    assert answer(holder) == "wrote\n"
    with opened().locks.working_on("egi"):
        pass


def test_who_was_killed_holds_nothing(opened: Callable[[], Ledger], holder: subprocess.Popen[str]) -> None:
    ledger = opened()
    holder.kill()
    holder.wait()
    patience = iter(range(600))
    with ledger.locks.working_on("egi", lambda: next(patience, None) is not None):
        begin(ledger)


def test_who_hangs_is_ended_when_the_lease_is_over_and_writes_no_more(
    opened: Callable[[], Ledger], holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened()
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(Busy), ledger.locks.working_on("egi"):
        pass
    monkeypatch.setattr(locks, "LEASE_S", 0.0)
    with ledger.locks.working_on("egi"):
        begin(ledger)
        holder.send_signal(signal.SIGCONT)
        assert "ended the connection" in answer(holder)
        begin(ledger)


def test_who_is_at_work_is_not_ended(opened: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LEASE_S", 600.0)
    with opened().locks.working_on("egi"), pytest.raises(Busy), opened().locks.working_on("egi"):
        pass


def test_a_lost_lease_is_noticed_in_the_next_transaction(
    postgres: PostgresServer, instance: str, opened: Callable[[], Ledger]
) -> None:
    ledger = opened()
    with ledger.locks.working_on("egi"):
        begin(ledger)
        postgres.sql(f"UPDATE \"publisher_{instance}\".lease SET fence = DEFAULT WHERE target = 'egi'")
        with pytest.raises(LedgerError, match="another publisher works on it now"):
            begin(ledger)


def test_a_lost_connection_ends_the_work_and_the_next_one_goes_on(
    postgres: PostgresServer, opened: Callable[[], Ledger]
) -> None:
    ledger = opened()
    with ledger.locks.working_on("egi"):
        begin(ledger)
        end_all_connections(postgres)
        with pytest.raises(LedgerError, match="nothing is lost"):
            begin(ledger)
    with opened().locks.working_on("egi"):
        pass


def test_instances_know_nothing_of_each_other(postgres: PostgresServer, instance: str) -> None:
    with (
        closing(sql_ledger(connection.open_database(postgres.address, instance))) as one,
        closing(sql_ledger(connection.open_database(postgres.address, f"{instance}-b"))) as other,
        one.locks.working_on("egi"),
        other.locks.working_on("egi"),
    ):
        begin(one)
        assert one.targets.state("egi") is not None
        assert other.targets.state("egi") is None


def test_who_only_reads_makes_nothing_and_writes_nothing(postgres: PostgresServer, instance: str) -> None:
    with closing(sql_ledger(connection.open_database_to_read(postgres.address, instance))) as ledger:
        assert ledger.targets.state("egi") is None
    assert postgres.sql(f"SELECT to_regnamespace('\"publisher_{instance}\"') IS NULL") == "t"
    with closing(sql_ledger(connection.open_database(postgres.address, instance))) as ledger:
        begin(ledger)
    with closing(sql_ledger(connection.open_database_to_read(postgres.address, instance))) as ledger:
        assert ledger.targets.state("egi") is not None
        with pytest.raises(LedgerError, match="read-only"):
            begin(ledger)


def test_a_newer_schema_is_left_alone(postgres: PostgresServer, instance: str, opened: Callable[[], Ledger]) -> None:
    opened()
    postgres.sql(f'UPDATE "publisher_{instance}".about SET version = 99')
    with pytest.raises(LedgerError, match="schema 99 is newer"):
        opened()


def test_a_role_without_rights_is_told_what_it_needs(
    postgres: PostgresServer, instance: str, opened: Callable[[], Ledger]
) -> None:
    postgres.sql("CREATE ROLE stranger LOGIN")
    stranger = postgres.address.replace("user=publisher", "user=stranger")
    with pytest.raises(LedgerError, match=r"CREATE SCHEMA .* AUTHORIZATION"):
        connection.open_database(stranger, instance)
    postgres.sql(f'CREATE SCHEMA "publisher_{instance}" AUTHORIZATION stranger')
    with closing(sql_ledger(connection.open_database(stranger, instance))) as ledger:
        begin(ledger)


def test_a_lock_that_is_not_let_go_of_ends_the_work_with_advice(
    postgres: PostgresServer, instance: str, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], Ledger]
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "50ms")
    ledger = opened()
    begin(ledger)
    with closing(connection.open_database(postgres.address, instance)) as other, other.atomic():
        other.execute("LOCK TABLE target")
        with pytest.raises(LedgerError, match="another session holds a lock"):
            begin(ledger)
    begin(ledger)


@pytest.mark.slow
def test_a_server_that_is_away_crashed_or_full_of_connections_is_named_with_advice(instance: str) -> None:
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    with private_server(programs) as server:
        ledger = sql_ledger(connection.open_database(server.address, instance))
        begin(ledger)
        server.stop(signal.SIGQUIT)
        with pytest.raises(LedgerError, match="run again when it is back: nothing is lost"):
            begin(ledger)
        ledger.close()
        with pytest.raises(LedgerError, match="run again when it is back: nothing is lost"):
            connection.open_database(server.address, instance)
        server.start()
        with closing(sql_ledger(connection.open_database(server.address, instance))) as ledger:
            assert ledger.targets.state("egi") is not None
            server.sql("ALTER ROLE publisher CONNECTION LIMIT 1")
            with pytest.raises(LedgerError, match="no connection left"):
                connection.open_database(server.address, instance)


@pytest.mark.parametrize(
    ("address", "mode"),
    [
        ("postgresql://db.example.org/site", "verify-full"),
        ("postgresql://db.example.org/site?sslmode=require", "require"),
        ("postgresql://127.0.0.1/site", "prefer"),
        ("postgresql:///site?host=/run/postgresql", "prefer"),
        ("service=accounting", "verify-full"),
    ],
)
def test_the_server_is_verified_unless_it_is_this_machine(
    address: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    given = connection.parameters(address)
    assert given.get("sslmode", os.environ["PGSSLMODE"]) == mode


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (("user=publisher", "user=nobody-there"), "the role or its password is refused"),
        (("///site", "///elsewhere"), "make the database"),
    ],
)
def test_a_refused_connection_says_what_to_mend(
    wrong: tuple[str, str], advice: str, postgres: PostgresServer, instance: str
) -> None:
    with pytest.raises(LedgerError, match=advice):
        connection.open_database(postgres.address.replace(*wrong), instance)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("fe_sendauth: no password supplied", "the role or its password is refused"),
        ('FATAL:  password authentication failed for user "publisher"', "the role or its password is refused"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", SSL encryption', "the role or its password is refused"),
        ('server certificate for "db1" does not match host name "db2"', "as its certificate does"),
        ("server does not support SSL, but SSL was required", "ssl = on"),
        ('root certificate file "/root/.postgresql/root.crt" does not exist', "as sslrootcert"),
        ("SSL error: certificate verify failed", "as sslrootcert"),
        ("SSL connection has been closed unexpectedly", "run again when it is back"),
    ],
)
def test_an_encrypted_connection_that_fails_says_what_to_mend(text: str, advice: str) -> None:
    with pytest.raises(LedgerError, match=advice), connection._translated("here"):
        raise pytest.importorskip("psycopg").OperationalError(text)


def test_no_message_has_a_password() -> None:
    address = "postgresql://publisher:geheim@db.example.org:5433/site"
    assert connection.place_of(address) == "postgresql://db.example.org:5433/site"
