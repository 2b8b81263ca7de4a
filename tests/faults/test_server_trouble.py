"""The PostgreSQL of the ledger is full, locked, short of connections, restarted, or replaced by a replica that lags.

The round ends with what to do now; when that is done, every job has arrived, and a message came twice only under its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

import psycopg
import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.ledger.postgres import connection
from publisher.publishing.publish import publish
from publisher.publishing.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.ledgers import instance_of
from tests.support.postgres import PostgresServer, binaries, private_server
from tests.support.simulated_months import Steps
from tests.support.sites import SiteUnderTest, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 40, START, END))
LOCAL_IDS = {truth(job)[0] for job in JOBS}


def schema_of(site: SiteUnderTest) -> str:
    return f'"publisher_{instance_of(site.state)}"'


def sent(site: SiteUnderTest) -> Counter[str]:
    return Counter(one.attributes["empaid"] for one in site.fake.messages(PROJECT, TOPIC))


@pytest.fixture
def used(site: SiteUnderTest, ledger_in_postgres: None) -> SiteUnderTest:
    """Half of its jobs are delivered."""
    site.config["targets"]["egi"] |= {"batch_records": 5}
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    site.fill(*JOBS[20:])
    return site


Trouble = Iterator[None]


@contextmanager
def full(server: PostgresServer, site: SiteUnderTest, *, at: str) -> Trouble:
    """The disk of the server is full when a message is written down, or settled."""
    schema = schema_of(site)
    server.sql(
        f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$; "
        f"CREATE TRIGGER full_disk BEFORE {at} ON {schema}.message EXECUTE FUNCTION {schema}.full()"
    )
    yield
    server.sql(f"DROP FUNCTION {schema}.full() CASCADE")


@contextmanager
def locked(server: PostgresServer, site: SiteUnderTest) -> Trouble:
    """An administrator left a transaction open."""
    with psycopg.connect(server.admin_address) as other:
        other.execute(f"LOCK TABLE {schema_of(site)}.message".encode())
        yield


@contextmanager
def short_of_connections(server: PostgresServer, site: SiteUnderTest) -> Trouble:
    server.sql("ALTER ROLE publisher CONNECTION LIMIT 0")
    yield
    server.sql("ALTER ROLE publisher CONNECTION LIMIT -1")


@contextmanager
def impatient(server: PostgresServer, site: SiteUnderTest) -> Trouble:
    """The role has little time for a statement, and the server none to give."""
    schema = schema_of(site)
    server.sql("ALTER ROLE publisher SET statement_timeout = '300ms'")
    server.sql(
        f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); "
        f"RETURN NEW; END $$; CREATE TRIGGER slow BEFORE INSERT ON {schema}.message FOR EACH ROW "
        f"EXECUTE FUNCTION {schema}.slow()"
    )
    yield
    server.sql("ALTER ROLE publisher RESET statement_timeout")
    server.sql(f"DROP FUNCTION {schema}.slow() CASCADE")


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        ("slow", "raise it for this role"),
        ("full before sending", "make room on the server"),
        ("full after sending", "make room on the server"),
        ("locked", "another session holds a lock (pg_locks says which)"),
        ("no connection left", "raise max_connections"),
    ],
)
def test_trouble_of_the_server_ends_the_round_with_advice_and_costs_nothing(
    used: SiteUnderTest, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, trouble: str, advice: str
) -> None:
    monkeypatch.setitem(connection._SETTINGS, "lock_timeout", "200ms")
    troubles = {
        "slow": lambda: impatient(postgres, used),
        "full before sending": lambda: full(postgres, used, at="INSERT"),
        "full after sending": lambda: full(postgres, used, at="UPDATE"),
        "locked": lambda: locked(postgres, used),
        "no connection left": lambda: short_of_connections(postgres, used),
    }
    before = sent(used)
    with troubles[trouble]():
        ended = used.publish()
    assert (ended.status, advice in ended.err, "nothing is lost" in ended.err) == (74, True, True), ended.err
    assert sum((sent(used) - before).values()) == (trouble == "full after sending")
    assert used.publish().status == 0
    assert len(sent(used)) == len(JOBS) / 5  # no message left under another id
    assert {row["LocalJobId"] for row in used.table().rows("JobRecords")} == LOCAL_IDS


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
@pytest.mark.slow
def test_targets_that_enter_the_same_scope_at_once(
    used: SiteUnderTest, postgres: PostgresServer, isolation: str
) -> None:
    """Scopes are all targets', and one that is new is locked until its transaction ends."""
    egi, schema = used.config["targets"]["egi"], schema_of(used)
    egi["batch_records"] = 500
    used.config["targets"]["done"] = egi | {"topic": "done", "statuses": ["completed"]}
    used.fake.allow(used.user, "done")
    used.save()
    assert used.publish().status == 0
    used.config["site"] = "ANOTHER-SITE"
    used.save()
    first, *_ = JOBS
    of_users = [("one", "failed"), ("two", "completed"), ("one", "completed")]
    used.fill(
        *(
            replace(first, job_id=f"{user} {status}", local_job_id=str(number), user=f"/CN={user}", status=status)
            for number, (user, status) in enumerate(of_users)
        )
    )
    postgres.sql(
        f"CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); "
        f"RETURN NEW; END $$; CREATE TRIGGER slow AFTER INSERT ON {schema}.scope FOR EACH ROW "
        f"EXECUTE FUNCTION {schema}.slow()"
    )
    postgres.sql(f"ALTER ROLE publisher SET default_transaction_isolation = '{isolation}'")
    run = used.publish()
    postgres.sql("ALTER ROLE publisher RESET default_transaction_isolation")
    assert run.status == 0, run.err
    assert {name: one["records"] for name, one in run.json["targets"].items()} == {"egi": 3, "done": 2}


def test_who_lost_the_server_while_it_waits_tries_a_message_no_more(
    site: SiteUnderTest, ledger_in_postgres: None, postgres: PostgresServer
) -> None:
    """Another host works by then: totals of a month that came late would stand in the place of newer ones."""
    site.config["targets"]["egi"] |= {"format": "apel-summary-0.4"}
    of_one_row = [replace(JOBS[0], job_id=f"job {number}", local_job_id=str(number)) for number in range(3)]
    site.fill(of_one_row[0])
    site.save()
    waited: list[float] = []

    def the_other_host_takes_over(seconds: float) -> bool:
        if not seconds:  # only asks whether to stop
            return False
        waited.append(seconds)
        site.fake.faults.clear()
        site.fill(*of_one_row[1:])
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'publisher'")
        assert site.publish().status == 0
        return False

    settings = config.load(site.path, {}, host_name="ce01.example.org")
    surroundings = ProcessEnvironment(
        environment={}, clock=lambda: datetime.now(UTC), monotonic=monotonic, wait=the_other_host_takes_over
    )
    site.fake.faults.always(Fault.status(503))
    (ended,) = publish(LiveSite(settings=settings, process=surroundings), targets=[], observer=Steps(), force=True)
    assert len(waited) == 1
    assert ended.exit_status == 74, ended
    assert [row["NumberOfJobs"] for row in site.received()] == [1, 3]


@pytest.fixture
def pair_of_servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a replica that stopped following it."""
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    with private_server(programs) as primary, ExitStack() as ended:
        replica = primary.replica()
        ended.callback(replica.stop)
        replica.start()
        yield primary, replica


def follow(primary: PostgresServer, replica: PostgresServer) -> None:
    """Until the replica has what the primary has."""
    position = primary.sql("SELECT pg_current_wal_lsn()")
    while replica.sql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") != "t":
        pass


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["delivered messages", "the message in flight"])
def test_a_replica_that_lacks_the_last_commits_is_noticed_before_anything_is_sent(
    site: SiteUnderTest, pair_of_servers: tuple[PostgresServer, PostgresServer], lost: str
) -> None:
    primary, replica = pair_of_servers
    hosts = ",".join(server.address.partition("host=")[2].partition("&")[0] for server in pair_of_servers)
    site.config |= {
        "state": f"postgresql:///site?host={hosts}&user=publisher&target_session_attrs=read-write",
        "instance": "ce1",
        "state_directory": str(site.state.parent),
    }
    site.config["targets"]["egi"] |= {"batch_records": 5, "attempts": 2, "retry_budget_s": 1}
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    follow(primary, replica)
    replica.stop()
    site.fill(*JOBS[20:25])
    if lost == "the message in flight":
        site.fake.faults.push(Fault.store_then_close())
        site.fake.faults.always(Fault.status(503))
    assert site.publish().status == (75 if lost == "the message in flight" else 0)
    site.fake.faults.clear()
    primary.stop()
    replica.start()
    replica.promote()
    before = sent(site)
    for order in (("publish", "--force"), ("republish", "--from", "2026-10-01", "--to", "2026-11-01", "--yes")):
        stopped = site.run(*order)
        assert (stopped.status, "publisher receiver delivered egi 2026-10" in stopped.err) == (65, True), stopped.err
    assert sent(site) == before
    taken = site.run("receiver", "delivered", "egi", "2026-10")
    if lost == "the message in flight":
        assert (taken.status, "if its portal shows 25 jobs" in taken.err) == (65, True)
        taken = site.run("receiver", "delivered", "egi", "2026-10", "--anyway")
    assert taken.status == 0
    assert sent(site) == before
    site.fill(*JOBS[25:])
    assert site.publish().status == 0
    assert {row["LocalJobId"] for row in site.table().rows("JobRecords")} == LOCAL_IDS
