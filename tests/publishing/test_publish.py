"""The main job, end to end: real databases, the real command line, real mutual TLS, an independent receiver."""

from __future__ import annotations

import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.jobs.reader import JobPage
from publisher.model.job import LoadedPage
from publisher.publishing import publish
from publisher.publishing.site import ProcessEnvironment
from publisher.sources.arex.file import AccountingFile
from tests.arex_databases import SampleJob, Schema, Writer, bulk, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.crash_walk import crash_walk
from tests.support.sites import SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.slow
def test_every_job_arrives_once_and_the_second_round_has_nothing_to_do(site: SiteUnderTest, schema: Schema) -> None:
    batch = jobs(700)
    site.fill(*batch, schema=schema)
    first = site.publish()
    assert first.status == 0, first.err
    assert first.json["targets"]["egi"]["records"] == 700
    assert first.json["targets"]["egi"]["outcome"] == "ok"
    second = site.publish()
    assert (second.status, second.json["targets"]["egi"]["outcome"]) == (0, "nothing")
    site.assert_received(*batch)
    status = site.run("status", "--json").json["targets"]["egi"]
    assert status["delivered"] == 700
    assert (status["pending"], status["late"], status["in_doubt"], status["quarantined"]) == (0, 0, 0, 0)
    latest = max(job.end_time for job in batch)
    assert status["last_published_end_time"] == datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_round_opens_the_accounting_database_twice(site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to load it, and once to see which databases are there."""
    site.fill(*generate(1, 20, START, END))
    assert site.publish().status == 0
    opened: list[str] = []
    connect = sqlite3.connect

    def counted(database: str, *arguments: Any, **keywords: Any) -> sqlite3.Connection:
        opened.append(database)
        connection: sqlite3.Connection = connect(database, *arguments, **keywords)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counted)
    assert site.publish().status == 0
    assert len([name for name in opened if "accounting_v2.db" in name]) == 2


def test_a_run_that_stands_in_two_rows_of_a_page_goes_out_once(site: SiteUnderTest) -> None:
    """JobIDs are unique as stored, and not as meant: one writer escaped it, another did not. Some messages lie between."""
    site.config["targets"]["egi"]["batch_bytes"] = 100_000
    batch = jobs(200)
    batch[3] = replace(batch[3], job_id="a#b")
    twin = replace(batch[3], job_id="stored otherwise")
    site.fill(*batch, twin)
    with closing(sqlite3.connect(site.database())) as database, database:
        (stored,) = database.execute("SELECT JobID FROM AAR WHERE JobID LIKE 'a%b'").fetchone()
        assert stored == "a%23b"
        database.execute("UPDATE AAR SET JobID = 'a#b' WHERE JobID = 'stored otherwise'")
    told = site.publish().json["targets"]["egi"]
    assert (told["records"], told["messages"] > 3) == (len(batch), True)
    site.assert_received(*batch)
    assert site.publish().json["targets"]["egi"]["records"] == 0


def test_what_arrived_verifies_with_the_openssl_command(site: SiteUnderTest) -> None:
    batch = jobs(120)
    site.fill(*batch)
    assert site.publish().status == 0
    assert len(site.received(with_openssl=True)) == 120


def test_late_rows_and_rows_of_one_second_are_delivered(site: SiteUnderTest) -> None:
    """Defects 4 and 18 of ARC's publisher: a time watermark loses both for ever."""
    middle = datetime(2026, 10, 16, tzinfo=UTC)
    batch, late = list(generate(1, 40, middle, END)), list(generate(2, 20, START, middle))
    moment = max(job.end_time for job in batch)
    same_second, rest = [job.moved_to(moment) for job in batch[:20]], batch[20:]
    site.fill(*same_second[:10], *rest)
    assert site.publish().status == 0
    site.fill(*same_second[10:], *late)
    waiting = site.run("status", "--json").json["targets"]["egi"]
    assert waiting["pending"] == 30
    assert waiting["late"] == 20
    again = site.publish()
    assert again.json["targets"]["egi"]["records"] == 30
    site.assert_received(*same_second, *late, *rest)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_both_schemas_side_by_side_count_a_migrated_job_once(site: SiteUnderTest) -> None:
    batch = jobs(90)
    site.fill(*batch[:60], schema=1)
    assert site.publish().json["targets"]["egi"]["records"] == 60
    site.fill(*batch[30:], schema=2)  # 30 of them migrated, 30 new
    assert site.publish().json["targets"]["egi"]["records"] == 30
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    site.assert_received(*batch)


def test_jobs_that_run_are_delivered_when_they_finish(site: SiteUnderTest) -> None:
    first, second, third = jobs(3)
    with site.arex() as arex:
        arex.accept(first)
        arex.accept(second)
        arex.write(third)
        assert site.publish().json["targets"]["egi"]["records"] == 1
        arex.finish(second)
        assert site.publish().json["targets"]["egi"]["records"] == 1
        arex.finish(first)
        assert site.publish().json["targets"]["egi"]["records"] == 1
    site.assert_received(first, second, third)


def test_a_job_whose_side_rows_are_still_to_come_waits(site: SiteUnderTest) -> None:
    """Defect 19: ARC publishes such a record with benchmark HEPSPEC 1.0 and user nobody."""
    (job,) = jobs(1)
    with site.arex() as arex:
        arex.accept(job)
        arex.finish(job, stop_after="aar")
        assert site.publish().json["targets"]["egi"]["records"] == 0
        arex.complete(job)
    assert site.publish().json["targets"]["egi"]["records"] == 1
    site.assert_received(job)


def test_a_run_under_another_local_id_is_another_run(site: SiteUnderTest) -> None:
    (job,) = jobs(1)
    job = replace(job, local_job_id="1001")
    with site.arex() as arex:
        arex.write(job)
        assert site.publish().status == 0
        again = arex.finish_again(job, end_time=job.end_time + 4_000, local_job_id="1002")
    forget_the_sweep(site)
    assert site.publish().json["targets"]["egi"]["records"] == 1
    assert {row["LocalJobId"] for row in site.received()} == {"1001", "1002"}
    traced = site.run("trace", "--json", again.job_id).json
    assert len(traced["deliveries"]) == 2
    assert len({one["run"] for one in traced["deliveries"]}) == 2


def test_the_same_run_with_other_values_replaces_what_was_delivered(site: SiteUnderTest) -> None:
    """Defect 20: published again with a new end time, both would count at the receiver."""
    (job,) = jobs(1)
    job = replace(job, local_job_id="1001")
    with site.arex() as arex:
        arex.write(job)
        assert site.publish().status == 0
        arex.finish_again(replace(job, wall_s=job.wall_s + 77), end_time=job.end_time + 4_000)
    forget_the_sweep(site)
    assert site.publish().json["targets"]["egi"]["records"] == 1
    (row,) = site.table().rows("JobRecords")
    assert (row["EndTime"], row["WallDuration"]) == (job.end_time, job.wall_s + 77)
    forget_the_sweep(site)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    status = site.run("status", "--json").json["targets"]["egi"]
    assert status["delivered"] == 1


def test_renumbered_rows_are_recognised(site: SiteUnderTest) -> None:
    """`rotate` and `migrate` give other RecordIDs; what was delivered is known by job."""
    batch = jobs(50)
    site.fill(*batch)
    assert site.publish().json["targets"]["egi"]["records"] == 50
    site.database().unlink()
    shuffled = batch[10:]
    random.Random(3).shuffle(shuffled)
    new = list(generate(99, 5, START, END))
    site.fill(*new, *shuffled)
    assert site.publish().json["targets"]["egi"]["records"] == 5
    site.assert_received(*batch, *new)


def test_a_database_that_was_made_anew_may_end_with_the_same_job(site: SiteUnderTest) -> None:
    """As after another import of the same files: the row that was read last tells nothing of those before it."""
    *batch, last = jobs(21)
    for first, second in ((batch[:10], batch[10:]), (batch[10:], batch[:10])):
        site.database().unlink(missing_ok=True)
        site.fill(*first)
        with closing(sqlite3.connect(site.database())) as connection, connection:
            connection.execute("UPDATE sqlite_sequence SET seq = 100000 WHERE name = 'AAR'")
        site.fill(*second, last)
        site.publish()
        forget_the_sweep(site)
    site.assert_received(*batch, last)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_database_that_is_replaced_just_after_an_open_row_was_read(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is the old file's: under the new one's numbers its job would not be found again."""
    batch = jobs(12)
    with site.arex() as arex:
        arex.accept(batch[0])
        arex.write_all(batch[1:])
        assert site.publish().json["targets"]["egi"]["records"] == 11
        arex.finish(batch[0])
    real = AccountingFile.read

    def read(self: AccountingFile, *rest: Any) -> Iterator[LoadedPage]:
        pages = real(self, *rest)
        page = next(pages)
        assert page.closed, "the open row is read first"
        monkeypatch.undo()
        site.database().unlink()
        with site.arex() as anew:
            anew.connection.execute("INSERT INTO sqlite_sequence VALUES ('AAR', 100000)")
            for job in reversed(batch):
                anew.write(job)
        yield page
        yield from pages

    monkeypatch.setattr(AccountingFile, "read", read)
    assert site.publish().json["targets"]["egi"]["records"] == 1
    for _ in range(2):
        forget_the_sweep(site)
        assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    site.assert_received(*batch)


@pytest.mark.parametrize("command", ["publish", "republish"])
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_job_that_is_stored_in_two_spellings_far_apart_counts_once(
    site: SiteUnderTest, form: str, command: str
) -> None:
    site.config["targets"]["egi"] |= {"format": form, "batch_records": 4}
    site.config["source"]["page_rows"] = 1
    batch = jobs(20)
    batch[3] = replace(batch[3], job_id="a#b")
    site.fill(*batch)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 100000 WHERE name = 'AAR'")
    site.fill(replace(batch[3], job_id="stored otherwise"))
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET JobID = 'a#b' WHERE JobID = 'stored otherwise'")
    if command == "republish":
        ends = [datetime.fromtimestamp(job.end_time, UTC) for job in (batch[0], batch[-1])]
        first, last = (end.strftime("%Y-%m") for end in ends)
        assert site.run("republish", "--from", first, "--to", last, "--yes").status == 0
    assert site.publish().status == 0
    if form == "apel-summary-0.4":
        assert site.table().total("Summaries", "NumberOfJobs") == 20
    forget_the_sweep(site)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    with closing(sqlite3.connect(site.state)) as connection:
        assert connection.execute("SELECT sum(jobs), sum(sent_jobs) FROM balance").fetchone() == (
            20,
            0 if form == "car" else 20,
        )


def test_a_broken_clock_holds_nobody_up(site: SiteUnderTest) -> None:
    """Defect 9: one job that ends in 2036 stops ARC's publisher until then."""
    batch = jobs(30)
    ahead = batch[0].moved_to(int(datetime(2036, 1, 1, tzinfo=UTC).timestamp()))
    site.fill(ahead, *batch[1:])
    run = site.publish()
    assert run.status == 65
    assert (run.json["targets"]["egi"]["records"], run.json["targets"]["egi"]["quarantined"]) == (29, 1)
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert (held["job"], held["rule"]) == (ahead.job_id, "end-in-future")
    status = site.run("status", "--json").json["targets"]["egi"]
    assert status["last_published_end_time"] < "2026-12"
    assert site.publish().status == 0, "it is not set aside anew in every round"
    late = list(generate(7, 3, START, END))
    site.fill(*late)
    assert site.publish().json["targets"]["egi"]["records"] == 3


def test_a_missing_benchmark_is_set_aside_and_goes_out_once_configured(site: SiteUnderTest) -> None:
    site.config["records"] = {}
    batch = [replace(job, benchmark="HEPSPEC:10.5") for job in jobs(20)]
    bare = [replace(job, benchmark=None) for job in batch[:5]]
    site.fill(*bare, *batch[5:])
    run = site.publish()
    assert run.status == 65
    assert run.json["targets"]["egi"]["records"] == 15
    assert {held["rule"] for held in site.run("quarantine", "list", "--json").json["quarantined"]} == {
        "benchmark-missing"
    }
    site.config["records"] = {"benchmark": {"type": "HEPscore23", "value": 9}}
    site.save()
    assert site.publish().json["targets"]["egi"]["records"] == 5
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []
    site.assert_received(*batch)


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_arex_default_benchmark_is_told_where_wall_time_is_lost(site: SiteUnderTest, form: str) -> None:
    site.config["targets"]["egi"]["format"] = form
    one, two, *others = [replace(job, benchmark="HEPSPEC:1.0", wall_s=0) for job in jobs(40)]
    site.fill(replace(one, wall_s=5400, queue="b"), replace(two, wall_s=1800, queue="a"), *others)
    run = site.run("publish")
    assert "egi: 2 records with 2.0 h of wall time in the queues a, b carry HEPSPEC:1.0" in run.out
    assert f"{len(others) + 2}" not in run.out.partition("carry HEPSPEC")[0].rpartition("egi:")[2]


def test_jobs_without_wall_time_are_not_worth_a_note_about_their_benchmark(site: SiteUnderTest) -> None:
    site.fill(*(replace(job, benchmark="HEPSPEC:1.0", wall_s=0) for job in jobs(4)))
    run = site.run("publish")
    assert run.status == 0
    assert "HEPSPEC" not in run.out


def test_arex_default_benchmark_is_sent_counted_and_reported(site: SiteUnderTest) -> None:
    batch = [replace(job, benchmark="HEPSPEC:1.0", wall_s=3600, queue="long") for job in jobs(4)]
    site.fill(*batch)
    run = site.publish()
    told = run.json["targets"]["egi"]
    assert told["arex_default_benchmarks"] == 4
    assert told["arex_default_wall_s"] == 4 * 3600
    assert told["arex_default_queues"] == ["long"]
    assert {(row["ServiceLevelType"], float(row["ServiceLevel"])) for row in site.received()} == {("HEPSPEC", 1.0)}


def test_odd_jobs_are_sent_and_counted_by_the_rule_that_speaks_of_them(site: SiteUnderTest) -> None:
    one, two, three, *rest = [
        replace(job, wall_s=100, cpu_user_s=90, cpu_kernel_s=0, cpus=1) for job in jobs(20) if job.local_job_id
    ]
    odd = [replace(one, cpu_user_s=101), replace(two, cpus=0), replace(three, cpus=0, queue="")]
    site.fill(*odd, *rest)
    run = site.publish()
    assert run.status == 0, run.err
    assert run.json["targets"]["egi"]["warnings"] == {"cores-zero": 2, "cpu-over-wall": 1, "queue-missing": 1}
    site.assert_received(*odd, *rest)
    named = run.json["targets"]["egi"]["odd_jobs"]
    assert named["cpu-over-wall"] == one.job_id
    assert named["cores-zero"] in {two.job_id, three.job_id}
    assert named["queue-missing"] == three.job_id
    assert site.publish().json["targets"]["egi"]["warnings"] == {}
    again = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes").out
    for job_id in named.values():
        assert f"(`publisher explain {job_id}` shows one)" in again


def test_a_distrusted_default_counts_as_missing(site: SiteUnderTest) -> None:
    site.config["records"]["distrust_default"] = True
    site.fill(*(replace(job, benchmark="HEPSPEC:1.0") for job in jobs(4)))
    assert site.publish().json["targets"]["egi"]["arex_default_benchmarks"] == 0
    assert {(row["ServiceLevelType"], float(row["ServiceLevel"])) for row in site.received()} == {("HEPscore23", 11.5)}


def test_selection_by_vo_status_and_start(site: SiteUnderTest) -> None:
    """Defect 7: a filter that names an unknown VO silences ARC's later targets."""
    target = site.config["targets"]["egi"]
    target |= {"vos": ["atlas", "nobody-has-this-vo"], "start": "2026-10-16"}
    site.config["records"]["statuses"] = ["completed"]
    site.config["targets"]["other"] = {**target, "topic": "other"}
    del site.config["targets"]["other"]["vos"]
    site.fake.allow(site.user, "other")
    batch = jobs(200)
    site.fill(*batch)
    run = site.publish()
    assert run.status == 0, run.err
    since = int(datetime(2026, 10, 16, tzinfo=UTC).timestamp())
    wanted = [job for job in batch if job.status == "completed" and job.end_time >= since]
    assert run.json["targets"]["other"]["records"] == len(wanted)
    site.assert_received(*(job for job in wanted if job.vo == "atlas"))


def test_a_target_that_was_renamed_is_told_that_nothing_is_known_of_it(site: SiteUnderTest) -> None:
    site.fill(*generate(7, 5, START, END))
    assert "first round" not in site.publish().err
    site.config["targets"]["apel"] = site.config["targets"].pop("egi") | {"start": "month"}
    site.save()
    told = site.publish("--dry-run").err
    assert "target apel: this is its first round, and the ledger has egi, not configured any more" in told
    assert "its first round, and the ledger has egi" in site.publish().err
    assert "first round" not in site.publish().err


def test_limit_counts_jobs_and_the_next_round_goes_on(site: SiteUnderTest) -> None:
    batch = jobs(30)
    site.fill(*batch)
    assert site.publish("--limit", "12").json["targets"]["egi"]["records"] == 12
    assert site.publish("--limit", "12").json["targets"]["egi"]["records"] == 12
    assert site.publish().json["targets"]["egi"]["records"] == 6
    site.assert_received(*batch)


def test_a_rehearsal_sends_nothing_and_remembers_nothing(site: SiteUnderTest) -> None:
    batch = jobs(30)
    site.fill(*batch)
    rehearsed = site.publish("--dry-run")
    assert rehearsed.json["targets"]["egi"]["records"] == 30
    assert not site.state.exists()
    assert len(site.fake.requests) == 0
    assert site.publish().json["targets"]["egi"]["records"] == 30


def test_messages_keep_both_limits_and_are_cut_between_records(site: SiteUnderTest) -> None:
    """Defect of ARC: 500 records of ordinary length are over AMS's limit."""
    site.config["targets"]["egi"] |= {"batch_records": 70, "batch_bytes": 60_000}
    batch = jobs(200)
    site.fill(*batch)
    assert site.publish().status == 0
    messages = site.fake.messages(PROJECT, TOPIC)
    assert all(len(message.data) <= 60_000 for message in messages)
    assert len(messages) > 200 / 70
    site.assert_received(*batch)


def test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"batch_records": 20, "attempts": 1}
    batch = jobs(60)
    site.fill(*batch)
    site.fake.faults.push(Fault.store_then_close())
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["outcome"]) == (75, "deferred")
    status = site.run("status", "--json").json["targets"]["egi"]
    assert (status["in_doubt"], status["delivered"]) == (20, 0)
    assert site.publish().json["targets"]["egi"]["records"] == 60
    ids = Counter(message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC))
    assert sorted(ids.values()) == [1, 1, 2]
    assert {truth(job) for job in batch} == {told(row) for row in site.received()}
    assert len(site.table().rows("JobRecords")) == 60


def test_a_refused_record_is_narrowed_down_and_its_neighbours_are_delivered(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"batch_records": 16}
    batch = jobs(16)
    site.fill(*batch)
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
    # The whole, its first half, quarter, eighth, and the first record; then the others get through.
    site.fake.faults.push(*[no] * 5)
    run = site.publish()
    assert run.status == 65, run.err
    assert (run.json["targets"]["egi"]["records"], run.json["targets"]["egi"]["quarantined"]) == (15, 1)
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert held["rule"] == "refused-by-receiver"
    assert "Invalid Message Arguments" in held["reason"]
    assert site.publish().json["targets"]["egi"]["records"] == 0
    assert site.run("quarantine", "release", held["job"]).status == 0
    assert site.publish().json["targets"]["egi"]["records"] == 1
    site.assert_received(*batch)


def test_a_refused_record_leaves_no_row_that_a_window_sent_again_would_miss(site: SiteUnderTest) -> None:
    """Its row was never at the receiver, so nothing of it stays behind there."""
    site.config["targets"]["egi"] |= {"batch_records": 2}
    first, second = jobs(2)
    site.fill(replace(first, cpus=77), second)
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
    site.fake.faults.push(*[no] * 2)  # the whole, and the first record
    assert site.publish().json["targets"]["egi"]["quarantined"] == 1
    again = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--json")
    assert again.status == 0, again.err
    assert again.json["targets"]["egi"]["records"] == 1


def test_a_release_sends_what_was_refused_when_it_was_repeated(site: SiteUnderTest) -> None:
    """The run is known as delivered from before, with the same values: a release must send it all the same."""
    site.fill(*jobs(12))
    assert site.publish().status == 0
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
    site.fake.faults.push(Fault.none(), *[no] * 4)  # five go through; the other half is narrowed down to one of them
    site.config["targets"]["egi"] |= {"batch_records": 6}
    site.save()
    again = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--json")
    assert again.status == 65, again.err
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {one["rule"] for one in held} == {"refused-by-receiver"}, "a regular round does not take it out"
    assert site.run("quarantine", "release", "--all").status == 0
    assert site.publish().json["targets"]["egi"]["records"] == len(held)
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 12
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_run_that_is_again_as_it_was_delivered_leaves_quarantine(site: SiteUnderTest) -> None:
    (job,) = jobs(1)
    with site.arex() as arex:
        arex.write(job)
        assert site.publish().status == 0
        arex.finish_again(replace(job, wall_s=-5), end_time=job.end_time)
        forget_the_sweep(site)
        assert site.publish().status == 65
        arex.finish_again(job, end_time=job.end_time)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []
    site.assert_received(job)


def test_a_limit_keeps_what_was_set_aside_on_the_way(site: SiteUnderTest) -> None:
    batch = jobs(20)
    bad, good = [replace(job, benchmark="fast:1") for job in batch[:3]], batch[3:]
    site.fill(*bad, *good)
    first = site.publish("--limit", "4")
    assert (first.status, first.json["targets"]["egi"]["quarantined"]) == (65, 3)
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {one["job"] for one in held} == {job.job_id for job in bad}
    second = site.publish("--limit", "4")
    assert (second.status, second.json["targets"]["egi"]["quarantined"]) == (0, 0), "told once"
    assert site.publish().status == 0
    site.assert_received(*good)


@pytest.mark.slow
def test_many_jobs_set_aside_do_not_wait_in_memory_behind_one_that_is_not_sent_yet(site: SiteUnderTest) -> None:
    """One good job does not fill a message; behind it a site without a benchmark may have a million others."""
    bare = 4_900
    bulk(site.database(), 2, bare, 1, START, END)
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("UPDATE AAR SET BenchmarkID = (SELECT ID FROM Benchmarks WHERE Name = '')")
        (text,) = connection.execute("SELECT min(JobID) FROM AAR WHERE RecordID = 1").fetchone()
        connection.execute("INSERT OR IGNORE INTO Benchmarks (Name) VALUES ('HEPSPEC:10')")
        connection.execute(
            "UPDATE AAR SET BenchmarkID = (SELECT ID FROM Benchmarks WHERE Name = 'HEPSPEC:10') WHERE JobID = ?",
            (text,),
        )
    site.config["records"] = {}
    site.save()
    settings = config.load(site.path, {}, host_name="ce01.example.org")
    surroundings = ProcessEnvironment(
        environment={}, clock=lambda: datetime.now(UTC), monotonic=time.monotonic, wait=threading.Event().wait
    )
    written: list[int] = []

    class Witness:
        def page_read(self, target: str, page: JobPage) -> None:
            with closing(sqlite3.connect(site.state)) as connection:
                written.extend(connection.execute("SELECT count(*) FROM quarantine").fetchone())

        def __getattr__(self, name: str) -> Any:
            return lambda *told, **also: None

    (outcome,) = publish.publish(LiveSite(settings=settings, process=surroundings), targets=[], observer=Witness())
    assert (outcome.records, outcome.quarantined) == (1, bare - 1)
    assert bare - 1 > written[-1] >= 2_000, "written down on the way, before the last page"


def test_a_run_that_was_stored_then_refused_and_then_changed_is_one_row(site: SiteUnderTest) -> None:
    """Three misfortunes in a row: the answer lost, the repetition refused, and the job ends once more."""
    site.config["targets"]["egi"] |= {"attempts": 1}
    (job,) = jobs(1)
    site.fill(job)
    site.fake.faults.push(Fault.store_then_close(), Fault.status(413))
    assert site.publish().status == 75
    assert site.publish().status == 76
    with site.arex() as arex:
        arex.finish_again(replace(job, wall_s=job.wall_s + 77), end_time=job.end_time + 4_000)
    assert site.publish().json["targets"]["egi"]["records"] == 2
    (row,) = site.table().rows("JobRecords")
    assert (row["EndTime"], row["WallDuration"]) == (job.end_time, job.wall_s + 77)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_dropped_job_is_never_sent(site: SiteUnderTest) -> None:
    site.config["records"] = {}
    (job,) = jobs(1)
    site.fill(replace(job, benchmark=None))
    assert site.publish().status == 65
    assert site.run("quarantine", "drop", "--all").status == 0
    site.config["records"] = {"benchmark": {"type": "HEPSPEC", "value": 9}}
    site.save()
    assert site.publish().json["targets"]["egi"]["records"] == 0
    forget_the_sweep(site)
    assert site.publish().json["targets"]["egi"]["records"] == 0


def test_the_token_is_nowhere_but_in_its_header(site: SiteUnderTest) -> None:
    """Defect 25: ARC's publisher has it in the URL and in its log."""
    site.fill(*jobs(5))
    run = site.run("-vv", "publish", "--force")
    assert run.status == 0
    token = next(user.token for user in site.fake.store.users.values() if user.name == site.user)
    assert token not in run.out + run.err
    assert all(token not in request.path for request in site.fake.requests)
    assert token.encode() not in site.state.read_bytes()


@pytest.mark.parametrize("settings", [{}, {"benchmark": {"type": "HEPscore23", "value": 12.5}}])
def test_jobs_that_waited_and_are_gone_from_their_source_are_delivered(
    site: SiteUnderTest, settings: dict[str, Any]
) -> None:
    """A receiver was down while A-REX purged them, and settings may have changed meanwhile."""
    site.config["targets"]["egi"] |= {"batch_records": 20, "attempts": 1}
    batch = jobs(60)
    site.fill(*batch)
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute("DELETE FROM AAR WHERE EndTime < ?", (max(job.end_time for job in batch),))
    site.config["records"] |= settings
    site.save()
    assert site.publish("--force").status == 0
    assert len(site.table().rows("JobRecords")) == 60


@pytest.mark.slow
def test_every_step_of_a_round_may_be_the_last(
    site: SiteUnderTest, record_property: Callable[[str, object], None]
) -> None:
    """`kill -9` between any two steps: the next round mends it, and at most one message goes twice, under its id."""
    site.config["targets"]["egi"] |= {"batch_records": 10, "attempts": 1}
    batch = jobs(34)
    bad = replace(batch[0], job_id="hopeless", benchmark="fast")
    site.fill(*batch, bad)
    site.save()
    step = 0
    while True:
        step += 1
        site.state = site.folder / f"state{step}" / "publishing.db"
        site.config["state"] = str(site.state)
        with FakeAMS(site.pki, port=0) as fake:
            walked = SiteUnderTest.__new__(SiteUnderTest)
            walked.__dict__ |= site.__dict__ | {"fake": fake}
            fake.bind(site.host, site.user)
            site.config["targets"]["egi"] |= {"url": fake.url, "auth_url": fake.auth_url}
            site.save()
            ended = crash_walk(site.path, step)
            if ended == -signal.SIGKILL:
                repaired = walked.publish()
                assert repaired.status in (0, 65), (step, repaired.err)
            else:
                assert ended == 65
            ids = Counter(message.attributes["empaid"] for message in fake.messages(PROJECT, TOPIC))
            assert sum(count - 1 for count in ids.values()) <= 1, step
            assert {told(row) for row in walked.received(with_openssl=False)} == {truth(job) for job in batch}, step
            assert len(walked.table().rows("JobRecords")) == len(batch), step
            status = walked.run("status", "--json").json["targets"]["egi"]
            assert (status["delivered"], status["quarantined"], status["in_doubt"], status["pending"]) == (34, 1, 0, 0)
        if ended != -signal.SIGKILL:
            break
    assert step > 12, "the walk went through a whole round"
    record_property("tried", step - 1)


def forget_the_sweep(site: SiteUnderTest) -> None:
    """As if a day had passed."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")


def test_a_writer_on_the_accounting_database_is_not_disturbed(site: SiteUnderTest) -> None:
    batch = jobs(40)
    with Writer(site.database(), schema=2) as arex:
        arex.write_all(batch[:20])
        arex.connection.execute("BEGIN IMMEDIATE")
        assert site.publish().json["targets"]["egi"]["records"] == 20
        arex.connection.execute("COMMIT")
        arex.write_all(batch[20:])
    assert site.publish().json["targets"]["egi"]["records"] == 20
    site.assert_received(*batch)
