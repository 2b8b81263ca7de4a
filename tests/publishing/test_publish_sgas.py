"""Delivery to SGAS, end to end: real databases, the real command line, both generations of the server over mutual TLS."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil, log2
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob, Transfer, TransferKind, generate
from tests.fake_sgas import FakeSGAS, Fault, bad_gateway, gateway_timeout, reader, unavailable
from tests.fake_sgas.authz import nginx_dn
from tests.fake_sgas.failures import PROCESSING_FAILED, Crash, Failure, Generation, Refusal, Twisted
from tests.support.pki import PKI
from tests.support.sgas_sites import MACHINE, SgasSite, assert_documents, assert_rows, record_id

pytestmark = pytest.mark.some(2, of="generation")

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)

CRASH = Crash("TypeError", "expected string or bytes-like object, got 'NoneType'")
TOO_LONG = Refusal(
    "value too long for type character varying(200)\n"
    "CONTEXT:  PL/pgSQL function urcreate(character varying,timestamp without time zone) line 96 at SQL statement"
)
# How Twisted is set up, what happens to the record, and the words that must reach the administrator.
SHAPES: dict[str, tuple[Twisted, Failure, str]] = {
    "a traceback": ("old", CRASH, 'answered 500 "TypeError: expected string or bytes-like object'),
    "PostgreSQL's words": ("new", TOO_LONG, 'answered 500 "value too long for type character varying(200)"'),
    "Processing Failed": ("new", CRASH, 'answered 500 "Processing Failed"'),
}


@pytest.fixture(params=["H", "R"])
def generation(request: pytest.FixtureRequest) -> Generation:
    return "H" if request.param == "H" else "R"


@pytest.fixture
def site(tmp_path: Path, pki: PKI, generation: Generation) -> Iterator[SgasSite]:
    with FakeSGAS(pki, generation=generation) as fake:
        yield SgasSite(tmp_path, pki, fake)


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def month_of(end_time: int) -> str:
    return f"{datetime.fromtimestamp(end_time, UTC):%Y-%m}"


def a_day_passes(site: SgasSite) -> None:
    """So that all rows are looked at."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")


# The ordinary way


def test_every_job_is_a_row_once_and_the_second_round_has_nothing_to_do(site: SgasSite) -> None:
    batch = jobs(330)
    site.fill(*batch)
    run = site.publish()
    assert run.status == 0, run.err
    assert (site.outcome(run)["records"], site.outcome(run)["messages"]) == (330, 7)
    assert_rows(site, batch)
    assert_documents(site)
    assert site.fake.requests.connections == 1, "one connection is kept alive"
    assert site.outcome(site.publish())["outcome"] == "nothing"
    assert len(site.fake.requests) == 7


def test_without_closed_months_no_job_was_submitted_in_them(site: SgasSite) -> None:
    """Some CE wrote a submission before 1970: a fresh ledger knows of no run of it that is summed up."""
    job = replace(jobs(1)[0], submit_time=-1)
    site.fill(job)
    run = site.publish()
    assert (run.status, site.outcome(run)["records"], site.outcome(run)["quarantined"]) == (0, 1, 0), run.err
    assert_rows(site, [job])


def test_a_round_that_only_rehearses_reaches_nobody(site: SgasSite) -> None:
    site.fill(*jobs(60))
    assert site.outcome(site.publish("--dry-run"))["records"] == 60
    assert len(site.fake.requests) == site.fake.requests.connections == 0
    assert not site.state.exists()


# One poisonous job


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        pytest.param("Processing Failed", 10_000, marks=pytest.mark.long),
        ("Processing Failed", 1_000),
        ("a traceback", 1_000),
        ("PostgreSQL's words", 1_000),
    ],
)
@pytest.mark.some(3)
def test_one_poisonous_job_among_ten_thousand(tmp_path: Path, pki: PKI, shape: str, count: int) -> None:
    twisted, failure, words = SHAPES[shape]
    batch = jobs(count)
    culprit = batch[321]
    with FakeSGAS(pki, twisted=twisted) as fake:
        site = SgasSite(tmp_path, pki, fake)
        fake.database.poison[record_id(culprit)] = failure
        site.fill(*batch)
        run = site.publish()
        assert run.status == 65, run.err
        assert (site.outcome(run)["records"], site.outcome(run)["quarantined"]) == (count - 1, 1)
        assert_rows(site, [job for job in batch if job is not culprit])
        assert len(fake.requests) <= count / 50 + 2 * ceil(log2(50))
        (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
        assert (held["job"], held["rule"]) == (culprit.job_id, "refused-by-receiver")
        assert words in held["reason"]
        assert site.outcome(site.publish())["outcome"] == "nothing", "it is not tried again by itself"
        fake.database.poison.clear()
        site.run("quarantine", "release", culprit.job_id)
        assert site.outcome(site.publish())["records"] == 1
        assert_rows(site, batch)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 50, 64])
@pytest.mark.parametrize("place", ["first", "middle", "last", "alone in the last batch"])
@pytest.mark.some(3)
def test_a_culprit_costs_no_more_than_its_halvings_wherever_it_stands(
    tmp_path: Path, pki: PKI, shape: str, size: int, place: str
) -> None:
    twisted, failure, words = SHAPES[shape]
    batch = jobs(3 * size + (1 if place.startswith("alone") else 0))
    culprit = batch[{"first": 0, "middle": size + size // 2, "last": 3 * size - 1}.get(place, -1)]
    with FakeSGAS(pki, twisted=twisted) as fake:
        site = SgasSite(tmp_path, pki, fake)
        site.target["batch_records"] = size
        fake.database.poison[record_id(culprit)] = failure
        site.fill(*batch)
        run = site.publish()
        assert run.status == 65, run.err
        assert_rows(site, [job for job in batch if job is not culprit])
        assert len(fake.requests) <= ceil(len(batch) / size) + 2 * ceil(log2(size))
        (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
        assert held["job"] == culprit.job_id
        assert words in held["reason"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_several_culprits_each_cost_their_halvings(tmp_path: Path, pki: PKI, shape: str) -> None:
    twisted, failure, _ = SHAPES[shape]
    batch = jobs(300)
    culprits = [batch[place] for place in (0, 1, 30, 149, 299)]
    with FakeSGAS(pki, twisted=twisted) as fake:
        site = SgasSite(tmp_path, pki, fake)
        fake.database.poison |= {record_id(job): failure for job in culprits}
        site.fill(*batch)
        run = site.publish()
        assert (run.status, site.outcome(run)["quarantined"]) == (65, 5)
        assert_rows(site, [job for job in batch if job not in culprits])
        assert len(fake.requests) <= 300 / 50 + len(culprits) * 2 * ceil(log2(50))


def test_a_record_that_cannot_replace_another_is_set_aside(site: SgasSite) -> None:
    """Another publisher has used the record id for another GlobalJobId, and its row has children: 500 for ever."""
    batch = [replace(job, rtes=("ENV/PROXY",)) for job in jobs(60)]
    site.fill(*batch)
    assert site.publish().status == 0
    stored = site.fake.database.rows[record_id(batch[7])]
    site.fake.database._rows[record_id(batch[7])] = replace(stored, global_job_id="gsiftp://ce/7")
    site.forget()
    run = site.publish()
    assert (run.status, site.outcome(run)["records"]) == (65, 59)
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert held["job"] == batch[7].job_id
    assert "violates foreign key constraint" in held["reason"]


@pytest.mark.slow
def test_when_every_record_fails_it_is_the_target(tmp_path: Path, pki: PKI) -> None:
    batch = jobs(200)
    with FakeSGAS(pki, twisted="new") as fake:
        site = SgasSite(tmp_path, pki, fake)
        site.fill(*batch)
        fake.faults.always(Fault.status(500, PROCESSING_FAILED))
        for _ in range(2):
            run = site.publish()
            assert (run.status, site.outcome(run)["outcome"]) == (76, "rejected")
            assert "the target is at fault, not the records" in site.outcome(run)["reason"]
            assert len(fake.requests) < 30, "it is not asked once for each record"
            fake.requests.clear()
        assert site.run("quarantine", "list", "--json").json["quarantined"] == []
        fake.faults.clear()
        assert site.publish().status == 0
        assert_rows(site, batch)


@pytest.mark.slow
def test_a_server_that_begins_to_fail_in_the_middle_of_a_round_costs_no_record(tmp_path: Path, pki: PKI) -> None:
    batch = jobs(400)
    with FakeSGAS(pki, twisted="new") as fake:
        site = SgasSite(tmp_path, pki, fake)
        site.fill(*batch)
        fake.database.last = 50, CRASH
        run = site.publish()
        assert (run.status, site.outcome(run)["records"], site.outcome(run)["quarantined"]) == (76, 50, 0)
        assert "the target is at fault, not the records" in site.outcome(run)["reason"]
        assert len(fake.requests) < 40, "it is not asked once for each record"
        fake.database.last = None
        assert site.publish().status == 0
        assert_rows(site, batch)


@pytest.mark.parametrize("first", [0, 25, 50, 75, 135])
@pytest.mark.parametrize("count", [2, 8, 20])
@pytest.mark.some(3)
def test_many_culprits_in_a_row_are_no_reason_to_blame_the_server(
    tmp_path: Path, pki: PKI, first: int, count: int
) -> None:
    batch = jobs(160)
    culprits = batch[first : first + count]
    with FakeSGAS(pki, twisted="new") as fake:
        site = SgasSite(tmp_path, pki, fake)
        fake.database.poison |= {record_id(job): CRASH for job in culprits}
        site.fill(*batch)
        run = site.publish()
        assert (run.status, site.outcome(run)["quarantined"]) == (65, len(culprits)), site.outcome(run)
        assert_rows(site, [job for job in batch if job not in culprits])
        assert len(fake.requests) <= 4 + len(culprits) * 2 * ceil(log2(50))


# Everything once, whatever happens on the way


def test_everything_sent_twice_is_there_once(site: SgasSite) -> None:
    batch = jobs(160)
    site.fill(*batch)
    assert site.publish().status == 0
    before = {name: row.id for name, row in site.fake.rows.items()}
    site.forget()
    again = site.publish()
    assert (again.status, site.outcome(again)["records"]) == (0, 160)
    assert {name: row.id for name, row in site.fake.rows.items()} == before
    assert_rows(site, batch)


FAULTS = {
    "dropped after storing": Fault.store_then_close(),
    "dropped before storing": Fault.drop_without_storing(),
    "502": bad_gateway(),
    "502 after storing": bad_gateway(stored=True),
    "503": unavailable(),
    "504 with the commit behind it": gateway_timeout(),
    "reset": Fault.reset(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.some(2)
def test_a_fault_leaves_every_job_once(site: SgasSite, fault: Fault) -> None:
    batch = jobs(120)
    site.fill(*batch)
    site.fake.faults.push(Fault.none(), fault, fault)
    first = site.publish()
    assert (first.status, site.outcome(first)["outcome"]) == (75, "deferred")
    assert site.publish_all().status == 0
    assert_rows(site, batch)
    assert site.run("status", "--json").json["targets"]["nordic"]["delivered"] == 120


def test_a_restart_of_the_servers_database(site: SgasSite, generation: Generation) -> None:
    batch = jobs(120)
    site.fill(*batch[:60])
    assert site.publish().status == 0
    site.fake.restart_database()
    site.fill(*batch[60:])
    run = site.publish()
    if generation == "H":
        assert (run.status, site.outcome(run)["messages"]) == (0, 2), "`null` is a success"
        assert site.traced_row_ids(batch).count("") == 50, "the ids of that one message are lost on the way"
    else:
        assert run.status == 75
        assert site.publish().status == 0
    assert_rows(site, batch)


def test_a_limit_on_bodies_splits_messages(site: SgasSite) -> None:
    batch = jobs(200)
    site.fake.set_limit(30_000)
    site.fill(*batch)
    assert site.publish().status == 0
    assert_rows(site, batch)
    taken = [len(request.body) for request in site.fake.requests if request.status == 200]
    assert max(taken) <= 30_000


@pytest.mark.slow
def test_renamed_records_are_known_by_their_jobs(
    site: SgasSite, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes shorter LocalJobIds than any that was measured puts GlobalJobIds in the place of our ids."""
    monkeypatch.setitem(reader._LOCAL_ID_LIMIT, generation, 4)
    batch = jobs(80)
    site.fill(*batch)
    run = site.publish()
    assert (run.status, site.outcome(run)["records"]) == (0, 80)
    assert_rows(site, batch, renamed=True)
    assert "under other ids than ours" in run.err
    site.forget()
    assert site.publish().status == 0
    assert_rows(site, batch, renamed=True)
    assert site.traced_row_ids(batch) == [site.row_id(job) for job in batch]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.some(2)
def test_a_walk_over_faults_leaves_every_job_once(site: SgasSite, seed: int) -> None:
    chance = random.Random(seed)
    batch = jobs(240, seed)
    site.target["batch_records"] = 12
    faults = [*FAULTS.values(), Fault.status(500, b"FATAL:  sorry, too many clients already")]
    waiting = list(batch)
    while waiting:
        site.fill(*waiting[:40])
        del waiting[:40]
        for _ in range(3):
            script = [Fault.none()] * chance.randrange(4) + chance.choices(faults, k=chance.randrange(3))
            site.fake.faults.push(*script)
            site.fake.set_limit(chance.choice([12_000, 2_097_152]))
            if chance.random() < 0.3:
                site.fake.restart_database()
            if chance.random() < 0.1:
                site.forget()
            site.publish()
    site.fake.faults.clear()
    assert site.publish_all().status == 0
    assert_rows(site, batch)


# What is in the records


def staged(job: SampleJob, count: int) -> SampleJob:
    return replace(
        job,
        transfers=tuple(
            Transfer(
                url=f"davs://se.example.org:443/cms/store/user/åsa/{number:06d}.root",
                size=1_000 + number,
                start=job.submit_time,
                end=job.submit_time + 1,
                kind=TransferKind.DOWNLOAD,
            )
            for number in range(count)
        ),
    )


def test_names_in_any_script_many_groups_and_configured_groups_arrive_intact(site: SgasSite) -> None:
    groups = ("/atlas/Role=production/Capability=NULL", "/atlas/lcg1", "/atlas/åland/Role=NULL")
    batch = [
        replace(
            job,
            job_name=f"fit & plot <東京> 🚀 {number}",
            user="/DC=org/DC=terena/CN=Åsa Öberg & Söner <åsa@example.org>",
            vo="atlas",
            fqans=groups,
            token_attributes=(),
            queue="große Queue",
        )
        for number, job in enumerate(jobs(60))
    ]
    site.config["records"]["vo_group"] = ["/atlas/se", "/atlas/no & fi"]
    site.fill(*batch)
    assert site.publish().status == 0
    assert_rows(site, batch)
    assert_documents(site)
    attributes = [
        ("/atlas", "/Role=production"),
        ("/atlas/lcg1", None),
        ("/atlas/åland", None),
        ("/atlas/se", None),
        ("/atlas/no & fi", None),
    ]
    assert {row.vo_attributes for row in site.fake.rows.values()} == {tuple(attributes)}


def test_a_benchmark_that_cannot_be_read_keeps_no_job_from_a_server_that_is_told_none(site: SgasSite) -> None:
    readable, odd, wordless = jobs(3)
    batch = [readable, replace(odd, benchmark="HEPSPEC:12,26"), replace(wordless, benchmark="fast")]
    site.fill(*batch)
    assert site.publish().status == 0
    assert_rows(site, batch)


@pytest.mark.slow
@pytest.mark.some(2)
def test_twenty_thousand_transfers_arrive_where_the_server_takes_them(site: SgasSite) -> None:
    first, many, last = jobs(3)
    many = staged(many, 20_000)
    site.target["batch_bytes"] = 8_000_000
    site.fake.set_limit(16_000_000)
    site.fill(first, many, last)
    run = site.publish()
    assert (run.status, site.outcome(run)["shed"]) == (0, 0)
    assert_rows(site, [first, many, last])
    transfers = site.fake.rows[record_id(many)].transfers
    assert [(one.url, one.size_bytes) for one in transfers] == [(one.url, one.size) for one in many.transfers]


@pytest.mark.slow
def test_a_record_that_no_message_can_hold_goes_without_its_transfers(site: SgasSite) -> None:
    first, many, last = jobs(3)
    many = staged(many, 20_000)
    site.fill(first, many, last)
    run = site.publish()
    assert (run.status, site.outcome(run)["records"], site.outcome(run)["shed"]) == (0, 3, 1)
    assert f"job {many.job_id} is sent without its file transfers: the record alone has" in run.err
    assert_rows(site, [first, many, last])
    assert_documents(site)
    assert site.fake.rows[record_id(many)].transfers == ()
    assert len(site.fake.requests) == 1, "it is not tried on the wire first"


def test_a_record_that_the_server_does_not_take_goes_without_its_transfers(site: SgasSite) -> None:
    first, many, last = jobs(3)
    many = staged(many, 500)
    site.fake.set_limit(60_000)
    site.fill(first, many, last)
    run = site.run("publish", "--force")
    assert run.status == 0, run.err
    assert "nordic: 1 sent without their file transfers" in run.out
    assert f'job {many.job_id} is sent without its file transfers: SGAS answered 413 "413 Request Entity' in run.err
    assert_rows(site, [first, many, last])
    assert site.fake.rows[record_id(many)].transfers == ()


def test_a_record_that_is_too_large_even_so_is_set_aside(site: SgasSite) -> None:
    few, many = jobs(2)
    batch = [replace(few, transfers=()), staged(many, 10)]
    site.fake.set_limit(1_000)
    site.fill(*batch)
    run = site.publish()
    assert (run.status, site.outcome(run)["quarantined"]) == (65, 2)
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {one["rule"] for one in held} == {"too-large"}
    assert all("413" in one["reason"] for one in held)
    site.fake.set_limit(2_097_152)
    site.run("quarantine", "release", "--all")
    assert site.publish().status == 0
    assert_rows(site, batch)
    assert len(site.fake.rows[record_id(many)].transfers) == 10, "with its transfers, now that they fit"


# Configuration errors


def spellings(site: SgasSite) -> tuple[str, str]:
    subject = site.host.x509.subject
    return nginx_dn(subject, "comma"), nginx_dn(subject, "slash")


@pytest.mark.parametrize(
    ("right", "status"), [(None, 403), ("insert", 403), ("jobinsert:machine_name=elsewhere.net", 406)]
)
def test_a_missing_right_names_all_that_the_servers_administrator_needs(
    tmp_path: Path, pki: PKI, generation: Generation, right: str | None, status: int
) -> None:
    batch = jobs(120)
    with FakeSGAS(pki, generation=generation) as fake:
        site = SgasSite(tmp_path, pki, fake, right=right, host=pki.host("publisher.elsewhere.com"))
        site.fill(*batch)
        run = site.publish()
        assert (run.status, site.outcome(run)["outcome"]) == (77, "rejected")
        assert [request.status for request in fake.requests] == [status], "the target is left alone"
        for words in (str(status), *spellings(site), MACHINE, "jobinsert"):
            assert words in site.outcome(run)["reason"]
        assert site.run("quarantine", "list", "--json").json["quarantined"] == []
        fake.allow(site.host, "jobinsert:all")
        assert site.publish().status == 0
        assert_rows(site, batch)


FOREIGN = "ce07.other.net"


def elsewhere(job: SampleJob, host: str = FOREIGN) -> SampleJob:
    """The job, from a CE for which this host's certificate may not insert."""
    return replace(job, endpoint_url=f"https://{host}:443/arex")


def set_aside(site: SgasSite) -> dict[str, dict[str, str]]:
    found = site.run("quarantine", "list", "--json").json["quarantined"]
    return {held["job"]: held for held in found}


@pytest.mark.parametrize("place", [0, 25, 60, 119])
@pytest.mark.some(2)
def test_a_job_of_a_foreign_machine_is_set_aside_and_the_rest_delivered(site: SgasSite, place: int) -> None:
    batch = jobs(120)
    foreign = batch[place] = elsewhere(batch[place])
    site.fill(*batch)
    run = site.publish()
    assert run.status == 65, run.err
    assert (site.outcome(run)["records"], site.outcome(run)["quarantined"]) == (119, 1)
    assert_rows(site, [job for job in batch if job is not foreign])
    held = set_aside(site)
    assert list(held) == [foreign.job_id]
    assert held[foreign.job_id]["rule"] == "refused-by-receiver"
    for words in ("406", f"MachineName {FOREIGN}", "jobinsert", site.host.x509.subject.rfc4514_string()[:20]):
        assert words in held[foreign.job_id]["reason"]
    assert sum(request.status == 406 for request in site.fake.requests) <= 2, "the message, and the record alone"
    assert site.outcome(site.publish())["outcome"] == "nothing", "nothing is stuck, and it is not tried again by itself"
    site.fake.allow(site.host, "jobinsert:all")
    site.run("quarantine", "release", "--all")
    assert site.publish().status == 0
    assert len(site.fake.rows) == 120


def test_many_jobs_of_foreign_machines_cost_few_requests(site: SgasSite) -> None:
    batch = jobs(300)
    hosts = ("ce1.other.net", "ce2.elsewhere.net", "ce3.example.com")
    foreign = {at: hosts[at // 7 % 3] for at in range(0, 300, 7)}
    batch = [elsewhere(job, foreign[at]) if at in foreign else job for at, job in enumerate(batch)]
    site.fill(*batch)
    run = site.publish()
    assert run.status == 65, run.err
    good = [job for at, job in enumerate(batch) if at not in foreign]
    assert_rows(site, good)
    held = set_aside(site)
    assert set(held) == {batch[at].job_id for at in foreign}
    for at, host in foreign.items():
        assert f"MachineName {host} " in held[batch[at].job_id]["reason"]
    refused = [request for request in site.fake.requests if request.status == 406]
    assert len(refused) <= 1 + 2 * len(hosts), "what was refused once in a round is not asked again"


def test_a_round_of_foreign_jobs_only_waits_for_one_that_tells_who_is_to_blame(site: SgasSite) -> None:
    batch = jobs(62)
    foreign = [elsewhere(job) for job in batch[:60]]
    site.fill(*foreign)
    for _ in range(2):
        run = site.publish()
        assert (run.status, site.outcome(run)["outcome"]) == (77, "rejected")
        assert f"MachineName {FOREIGN}" in site.outcome(run)["reason"]
        assert set_aside(site) == {}
    assert [request.status for request in site.fake.requests] == [406, 406], "one question a round"
    site.fill(*batch[60:])
    assert site.publish().status == 65
    assert_rows(site, batch[60:])
    assert set(set_aside(site)) == {job.job_id for job in foreign}


@pytest.mark.slow
@pytest.mark.parametrize(
    "machines", [(FOREIGN,), (FOREIGN, "ce8.elsewhere.net", "ce9.example.com")], ids=["one", "three"]
)
@pytest.mark.some(2)
def test_however_many_jobs_of_foreign_machines_come_first(site: SgasSite, machines: tuple[str, ...]) -> None:
    """Nothing of their machines can tell who is to blame, so a job of another one is looked for behind them."""
    batch = jobs(1260)
    foreign = [elsewhere(job, machines[at * len(machines) // 1250]) for at, job in enumerate(batch[:1250])]
    site.fill(*foreign, *batch[1250:])
    run = site.publish()
    assert run.status == 65, run.err
    assert (site.outcome(run)["records"], site.outcome(run)["quarantined"]) == (10, 1250)
    assert_rows(site, batch[1250:])
    assert set(set_aside(site)) == {job.job_id for job in foreign}
    assert sum(request.status == 406 for request in site.fake.requests) <= 1 + len(machines)
    assert site.outcome(site.publish())["outcome"] == "nothing"


@pytest.mark.slow
def test_foreign_jobs_come_first_in_a_backlog(site: SgasSite) -> None:
    batch = jobs(1100)
    site.fill(*map(elsewhere, batch[:1000]), *batch[1000:])
    run = site.publish()
    assert run.status == 65, run.err
    assert_rows(site, batch[1000:])
    assert len(set_aside(site)) == 1000


@pytest.mark.parametrize("portion", [25_000, 100])
@pytest.mark.slow
def test_foreign_jobs_come_first_in_a_window(site: SgasSite, monkeypatch: pytest.MonkeyPatch, portion: int) -> None:
    monkeypatch.setattr("publisher.publishing.republish.run._PORTION_JOBS", portion)
    site.config["source"] |= {"page_rows": 50}
    site.save()
    batch = sorted(jobs(460), key=lambda job: job.end_time)
    site.fill(*[elsewhere(job) for job in batch[:450]], *batch[450:])
    window = [month_of(batch[at].end_time) for at in (0, -1)]
    run = site.run("republish", "--from", window[0], "--to", window[1], "--target", "nordic", "--yes")
    assert run.status == 65, run.err
    assert_rows(site, batch[450:])
    assert len(set_aside(site)) == 450


@pytest.mark.slow
@pytest.mark.some(2)
def test_no_job_of_many_can_tell_that_it_is_not_the_certificate(site: SgasSite) -> None:
    batch = [elsewhere(job, f"ce{at // 450}.other.net") for at, job in enumerate(jobs(1350))]
    site.fill(*batch)
    run = site.publish()
    assert (run.status, site.outcome(run)["outcome"]) == (77, "rejected")
    assert "jobinsert" in site.outcome(run)["reason"]
    assert set_aside(site) == {}
    assert len(site.fake.requests) == 3, "one question a machine"


def test_when_every_machine_is_refused_it_is_the_certificate(tmp_path: Path, pki: PKI, generation: Generation) -> None:
    batch = [elsewhere(job, f"ce{at % 3}.other.net") for at, job in enumerate(jobs(120))]
    with FakeSGAS(pki, generation=generation) as fake:
        site = SgasSite(tmp_path, pki, fake)
        site.fill(*batch)
        run = site.publish()
        assert (run.status, site.outcome(run)["outcome"], site.outcome(run)["quarantined"]) == (77, "rejected", 0)
        for words in ("406", "MachineName ce0.other.net, ce1.other.net, ce2.other.net", "jobinsert"):
            assert words in site.outcome(run)["reason"]
        assert set_aside(site) == {}
        fake.allow(site.host, "jobinsert:all")
        assert site.publish().status == 0
        assert len(fake.rows) == 120


def test_a_right_that_is_withdrawn_in_the_middle_of_a_round_sets_nothing_aside(site: SgasSite) -> None:
    batch = [elsewhere(job) if at % 2 else job for at, job in enumerate(jobs(300))]
    site.fake.allow(site.host, f"jobinsert:machine_name={FOREIGN}")
    site.fill(*batch)
    words = f"Subject CN=x is not allowed to perform insertion for machines: {FOREIGN},{MACHINE}".encode()
    site.fake.faults.push(Fault.none(), Fault.none(), *[Fault.status(406, words)] * 50)
    run = site.publish()
    assert (run.status, site.outcome(run)["outcome"], site.outcome(run)["quarantined"]) == (77, "rejected", 0)
    assert set_aside(site) == {}
    site.fake.faults.clear()
    assert site.publish().status == 0
    assert len(site.fake.rows) == 300


def test_a_406_that_names_no_machine_of_ours_is_about_the_target(site: SgasSite) -> None:
    batch = jobs(60)
    batch[7] = elsewhere(batch[7])
    site.fill(*batch)
    site.fake.faults.push(Fault.status(406, b"not acceptable"))
    run = site.publish()
    assert (run.status, site.outcome(run)["outcome"]) == (77, "rejected")
    assert len(site.fake.requests) == 1
    assert set_aside(site) == {}


@pytest.mark.parametrize("which", ["other_ca_host", "revoked_host"])
def test_a_certificate_that_is_refused_stops_the_target(
    tmp_path: Path, pki: PKI, generation: Generation, which: str
) -> None:
    with FakeSGAS(pki, generation=generation) as fake:
        site = SgasSite(tmp_path, pki, fake, host=getattr(pki, which)())
        site.fill(*jobs(120))
        run = site.publish()
        assert (run.status, site.outcome(run)["outcome"]) == (77, "rejected")
        assert "The SSL certificate error" in site.outcome(run)["reason"]
        assert site.host.subject in site.outcome(run)["reason"]
        assert len(fake.requests) == 1


def test_trouble_at_one_target_stops_no_other(tmp_path: Path, pki: PKI) -> None:
    batch = jobs(60)
    with FakeSGAS(pki) as fake, FakeSGAS(pki) as broken:
        site = SgasSite(tmp_path, pki, fake)
        site.config["targets"] = {"broken": {**site.target, "url": broken.url}, "nordic": site.target}
        site.fill(*batch)
        run = site.publish()
        assert (run.status, run.json["targets"]["broken"]["outcome"], site.outcome(run)["outcome"]) == (
            77,
            "rejected",
            "ok",
        )
        assert_rows(site, batch)


# What the ledger knows


@pytest.mark.slow
def test_trace_shows_the_row_of_a_job(site: SgasSite) -> None:
    batch = jobs(130)
    site.fill(*batch)
    assert site.publish().status == 0
    assert site.traced_row_ids(batch) == [site.row_id(job) for job in batch]
    _, *table = site.run("trace", batch[77].job_id).out.splitlines()
    assert "row id" in table[0]
    assert f"  {site.row_id(batch[77])}  " in table[1]


@pytest.mark.slow
def test_halves_of_a_refused_message_keep_their_rows(site: SgasSite) -> None:
    batch = jobs(50)
    site.fake.database.poison[record_id(batch[20])] = TOO_LONG
    site.fill(*batch)
    assert site.publish().status == 65
    good = [job for job in batch if job is not batch[20]]
    assert site.traced_row_ids(good) == [site.row_id(job) for job in good]
    assert site.traced(batch[20]) == []


def test_a_changed_job_is_kept_as_it_was_sent_and_counted(site: SgasSite) -> None:
    first, second, third = (replace(job, local_job_id=str(1_000 + number)) for number, job in enumerate(jobs(3)))
    with site.arex() as arex:
        arex.write_all((first, second, third))
        assert site.outcome(site.publish())["kept"] == 0
        arex.finish_again(replace(second, wall_s=second.wall_s + 77), end_time=second.end_time + 4_000)
    a_day_passes(site)
    run = site.publish()
    assert (run.status, site.outcome(run)["records"], site.outcome(run)["kept"]) == (0, 0, 1)
    a_day_passes(site)
    assert "1 changed after delivery; the receiver accepts no corrections" in site.run("publish", "--force").out
    assert_rows(site, [first, second, third])
    assert len(site.fake.requests) == 1


def test_a_change_stays_in_sight_after_a_republish_that_corrects_nothing(site: SgasSite) -> None:
    (job,) = (replace(job, local_job_id="1001") for job in jobs(1))
    with site.arex() as arex:
        arex.write(job)
        assert site.publish().status == 0
        arex.finish_again(replace(job, wall_s=job.wall_s + 77))
    again = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--json")
    assert (again.status, site.outcome(again)["records"]) == (0, 1), again.err
    assert_rows(site, [job])
    assert [one["row_id"] for one in site.traced(job)] == [site.row_id(job)] * 2
    a_day_passes(site)
    assert site.outcome(site.publish())["kept"] == 1


@pytest.fixture
def restarted(site: SgasSite) -> list[SampleJob]:
    """Three runs of one job, each delivered before the next one began, beside another job."""
    first, other = (replace(job, local_job_id=str(1_001 + number)) for number, job in enumerate(jobs(2)))
    runs = [first]
    site.fill(first, other)
    assert site.publish().status == 0
    for number in (2_002, 2_003):
        with site.arex() as arex:
            again = replace(first, wall_s=first.wall_s + number)
            runs.append(arex.finish_again(again, end_time=first.end_time + number, local_job_id=str(number)))
        assert site.publish().status == 0
    return [*runs, other]


def stored(site: SgasSite) -> list[tuple[str | None, str | None, int | None]]:
    return sorted((row.global_job_id, row.local_job_id, row.wall_s) for row in site.fake.rows.values())


def test_rule_4_each_run_of_a_restarted_job_is_a_row_of_its_own(site: SgasSite, restarted: list[SampleJob]) -> None:
    rows = site.fake.rows
    assert stored(site) == sorted((job.job_id, job.local_job_id, job.wall_s) for job in restarted)
    assert rows[record_id(restarted[0])].local_job_id == restarted[0].local_job_id, "the first run's id is jura-ng's"
    traced = site.traced(restarted[0])
    assert len({one["run"] for one in traced}) == len({one["row_id"] for one in traced}) == 3
    check = site.run("sync", "--check", "--months", "all", "--json")
    assert (check.status, [row["delivered"] for row in check.json["rows"]]) == (0, [4])
    assert [row["restarted"] for row in check.json["rows"]] == [2]
    assert site.run("status", "--json").json["targets"]["nordic"]["delivered"] == 4
    explained = site.run("explain", restarted[0].job_id, "--json").json["explanations"][0]
    assert "counts beside this one" in explained["reason"]
    (third,) = (name for name, row in rows.items() if row.local_job_id == "2003")
    assert third in {value["value"] for value in explained["values"]}
    assert third in explained["record"]


def test_rule_4_a_run_keeps_its_record_id_whenever_it_goes_again(site: SgasSite, restarted: list[SampleJob]) -> None:
    before = site.fake.rows
    for _ in range(2):
        again = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--json")
        assert (again.status, site.outcome(again)["records"]) == (0, 4)
        assert site.fake.rows == before
    with site.arex(1) as arex:  # the first run is found in a backup
        arex.write(restarted[0])
    assert site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes").status == 0
    assert site.publish().status == 0
    assert site.fake.rows == before
    site.forget()
    assert site.publish().status == 0
    assert site.fake.rows == before, "without the ledger nothing is doubled"
