"""What a service turned out to take: packed for at once, remembered from run to run, and asked again in time."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.model.job import JobId
from publisher.model.message import LearntLimit, Rendered
from publisher.publishing.round.assemble import BatchBuilder
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.support.jobs import make_job, make_record
from tests.support.pki import PKI
from tests.support.sgas_sites import SgasSite
from tests.support.sites import SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LIMIT = 200_000  # what the stand-in stores of one message, where the configuration says 950 000


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def refused(site: SiteUnderTest) -> int:
    """Messages that AMS did not take since the last look."""
    count = sum(request.status != 200 for request in site.fake.requests.on("publish"))
    site.fake.requests.clear()
    return count


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """AMS before 1.7, which says 413."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    fake_ams.policy.profile = "old"
    fake_ams.set_limit(LIMIT)
    made.config["targets"]["egi"] |= {"batch_records": 0}
    return made


@pytest.mark.slow
@pytest.mark.parametrize("says", [413, 500])
def test_a_limit_is_learnt_once_and_remembered(site: SiteUnderTest, says: int) -> None:
    """AMS since 1.7 says `500 Backend Error` to what is too large; only a large message is taken for that."""
    if says == 500:
        site.fake.policy.profile = "new"
        site.fake.set_limit(700_000)
    batch = jobs(900)
    site.fill(*batch[:500])
    assert site.publish().status == 0
    assert {request.status for request in site.fake.requests.on("publish")} == {says, 200}
    refused(site)
    site.fill(*batch[500:])
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 400)
    assert refused(site) == 0, "the next run packs for what it learnt"
    assert site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes").status == 0
    assert refused(site) == 0, "and so does a republish"
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in batch}


@pytest.mark.slow
def test_the_rest_of_the_round_is_packed_for_it(site: SiteUnderTest) -> None:
    """Of many messages only those on their way when the first refusal comes are cut; the others are packed to fit."""
    batch = jobs(3000)
    site.fill(*batch)
    site.config["source"]["page_rows"] = 100
    site.save()
    assert site.publish().status == 0
    sent = site.fake.requests.on("publish")
    misfits = [number for number, one in enumerate(sent) if one.status != 200]
    assert 0 < len(misfits) <= 9
    assert max(misfits) < len(sent) / 2, "later ones fit"
    assert Counter(map(told, site.received(with_openssl=False))) == Counter(map(truth, batch))


def as_if_a_week_ago(site: SiteUnderTest) -> None:
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE learnt_limit SET learnt_at = learnt_at - 700000")


def in_the_future(site: SiteUnderTest) -> None:
    """It was learnt while the clock was a year ahead."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE learnt_limit SET learnt_at = learnt_at + 31536000")


def other_options(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"batch_bytes": 940_000}
    site.save()


@pytest.mark.parametrize("forgets", [as_if_a_week_ago, in_the_future, other_options])
def test_a_limit_is_forgotten(site: SiteUnderTest, forgets: Callable[[SiteUnderTest], None]) -> None:
    """The operators raised theirs meanwhile: messages are large again, without anybody having told us."""
    batch = jobs(450)
    site.fill(*batch[:200])
    assert site.publish().status == 0
    forgets(site)
    site.fake.set_limit(1_400_000)
    refused(site)
    site.fill(*batch[200:])
    before = len(site.fake.messages(PROJECT, TOPIC))
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["messages"]) == (0, 1)
    assert refused(site) == 0
    (message,) = site.fake.messages(PROJECT, TOPIC)[before:]
    assert len(message.data) > LIMIT


@pytest.mark.slow
def test_a_rehearsal_packs_for_it_too(site: SiteUnderTest) -> None:
    site.fill(*jobs(300))
    assert site.publish().status == 0
    site.fill(*jobs(300, seed=2))
    planned = site.publish("--dry-run").json["targets"]["egi"]["messages"]
    assert planned == site.publish().json["targets"]["egi"]["messages"] > 1


def test_summaries_are_cut_for_it_in_the_next_run(site: SiteUnderTest) -> None:
    """Months are written down together, so it is the next message of totals that is packed for what was learnt."""
    site.config["targets"]["egi"] |= {"format": "apel-summary-0.4"}
    site.fake.set_limit(90_000)
    batch = [replace(job, benchmark="HEPSPEC:10.5", user=f"/CN=user {number}") for number, job in enumerate(jobs(500))]
    site.fill(*batch[:250])
    assert site.publish().status == 0
    assert refused(site) > 0
    site.fill(*batch[250:])
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 250)
    assert run.json["targets"]["egi"]["messages"] > 1
    assert refused(site) == 0


@pytest.mark.slow
def test_sgas_too(tmp_path: Path, pki: PKI) -> None:
    with FakeSGAS(pki) as fake:
        fake.set_limit(150_000)  # a quarter of what waits is below it: the limit is learnt by halves
        site = SgasSite(tmp_path, pki, fake)
        site.config["targets"]["nordic"] |= {"batch_records": 0}
        site.fill(*jobs(300))
        site.save()
        assert site.publish().status == 0
        assert any(request.status == 413 for request in site.fake.requests)
        site.fake.requests.clear()
        site.fill(*jobs(300, seed=2))
        assert site.publish().status == 0
        assert all(request.status == 200 for request in site.fake.requests)


# Without a service


def rendered(number: int, size: int) -> Rendered:
    job = make_job(job_id=JobId(f"job{number}"))
    return make_record(job, b"x" * size)


def test_a_record_above_a_learnt_limit_goes_alone() -> None:
    """Half of what was refused is a guess: a single record that is larger may well pass, and only the service can tell."""
    now_at_most = 1000
    builder = BatchBuilder(most_records=0, most_bytes=lambda: 1000, around=10, between=0, fill_to=lambda: now_at_most)
    batches = [*builder.add(rendered(1, 300)), *builder.add(rendered(2, 300))]
    assert batches == []
    now_at_most = 400
    sizes = (300, 600, 100, 200, 80, 11)
    for number, size in enumerate(sizes, start=3):
        batches += builder.add(rendered(number, size))
    batches += builder.rest()
    lengths = [[len(record.content) for record in batch.records] for batch in batches]
    assert lengths == [[300, 300], [300], [600], [100, 200, 80], [11]]


def test_for_how_long_a_limit_holds() -> None:
    limit = LearntLimit(payload_bytes=1000, wire="a", learnt_at=NOW)
    assert limit.holds("a", NOW)
    assert limit.holds("a", NOW + timedelta(days=6, hours=23))
    assert not limit.holds("a", NOW + timedelta(days=7))
    assert not limit.holds("a", NOW - timedelta(seconds=1))
    assert not limit.holds("b", NOW)
