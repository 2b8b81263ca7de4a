"""A message that was certainly not stored is given up: its jobs are read, judged and rendered anew by the next round."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from publisher.cli.site import LiveSite
from publisher.jobs.reader import PAGE_JOBS, JobPage
from publisher.model.message import Message
from publisher.publishing import publish as commands
from publisher.publishing.round.sender import MessageSender
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_sgas import FakeSGAS
from tests.support.patience import PATIENCE_S, sending_ends
from tests.support.pki import PKI
from tests.support.ports import closed_port
from tests.support.sgas_sites import SgasSite
from tests.support.sites import SITE, Run, SiteUnderTest
from tests.support.spool_sites import live_site, messages, site_with
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

pytestmark = pytest.mark.some(2, of="trouble")

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
Trouble = Callable[[SiteUnderTest], Callable[[], None]]


def _no_topic(site: SiteUnderTest) -> Callable[[], None]:
    site.fake.delete_topic()

    def mend() -> None:
        site.fake.create_topic()
        site.fake.allow(site.user)

    return mend


def _no_right(site: SiteUnderTest) -> Callable[[], None]:
    site.fake.remove_acl(site.user)
    return lambda: site.fake.allow(site.user)


def _not_registered(site: SiteUnderTest) -> Callable[[], None]:
    site.fake.unbind(site.host)

    def mend() -> None:
        site.fake.bind(site.host, site.user)

    return mend


def _nobody_listens(site: SiteUnderTest) -> Callable[[], None]:
    target = site.config["targets"]["egi"]
    before, target["url"] = target["url"], f"https://127.0.0.1:{closed_port()}"
    target["attempts"] = 1

    def mend() -> None:
        target["url"] = before

    return mend


def _unavailable(site: SiteUnderTest) -> Callable[[], None]:
    site.config["targets"]["egi"]["attempts"] = 1
    site.fake.faults.always(Fault.status(503, b"<html>Service Unavailable</html>"))
    return site.fake.faults.clear


TROUBLES: dict[str, Trouble] = {
    "AMS 404": _no_topic,
    "AMS 403": _no_right,
    "authn 404": _not_registered,
    "connection refused": _nobody_listens,
    "503": _unavailable,
}


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest) -> Trouble:
    return TROUBLES[str(request.param)]


def jobs_of(count: int, seed: int = 1, start: datetime = SEPTEMBER, end: datetime = NOVEMBER) -> list[SampleJob]:
    return [replace(job, benchmark="HEPSPEC:10.5") for job in generate(seed, count, start, end)]


def fails(site: SiteUnderTest, trouble: Trouble, *arguments: str) -> Callable[[], None]:
    """A round that comes to nothing; gives what mends it."""
    mend = trouble(site)
    site.save()
    run = site.publish(*arguments)
    assert run.status in (75, 76, 77, 78), run.out
    assert run.json["targets"]["egi"]["messages"] == 0
    return mend


def configure(site: SiteUnderTest | SgasSite, **keys: Any) -> None:
    (target,) = site.config["targets"].values()
    target |= keys
    site.save()


def texts(site: SiteUnderTest) -> list[str]:
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    return [receiver.take(message).text for message in site.fake.messages(PROJECT, TOPIC)]


def summary_rows(site: SiteUnderTest) -> list[dict[str, Any]]:
    return [row for text in texts(site) for row in read_text(text.encode(), datetime.now(UTC))[1]]


def records(site: SiteUnderTest) -> list[dict[str, Any]]:
    return [row for text in texts(site) for row in read_car(text.encode(), datetime.now(UTC))]


def outbox(site: SiteUnderTest | SgasSite) -> int:
    with closing(sqlite3.connect(site.state)) as connection:
        count: int = connection.execute("SELECT count(*) FROM outbox").fetchone()[0]
        (left,) = connection.execute("SELECT count(*) FROM message WHERE state < 2").fetchone()
        assert left == count
        return count


def status(site: SiteUnderTest | SgasSite) -> dict[str, Any]:
    (target,) = site.run("status", "--json").json["targets"].values()
    assert isinstance(target, dict)
    return target


# Single records


def test_nothing_of_a_message_that_was_not_stored_stays(site: SiteUnderTest, trouble: Trouble) -> None:
    jobs = jobs_of(40)
    site.fill(*jobs)
    configure(site, batch_records=10)
    mend = fails(site, trouble)
    assert outbox(site) == 0
    waits = status(site)
    assert (waits["pending"], waits["delivered"], waits["in_doubt"]) == (40, 0, 0)
    mend()
    site.config["site"] = "OTHER-SITE"
    site.config["records"]["identity"] = {"mode": "withheld"}
    site.save()
    run = site.publish()
    assert run.status == 0, run.out
    found = records(site)
    assert len(found) == len({row["LocalJobId"] for row in found}) == 40
    assert {row["Site"] for row in found} == {"OTHER-SITE"}
    assert not any(job.user in text for text in texts(site) for job in jobs)
    assert (status(site)["pending"], status(site)["delivered"]) == (0, 40)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_vo_that_is_excluded_by_then_stays_here(site: SiteUnderTest, trouble: Trouble) -> None:
    jobs = jobs_of(40)
    site.fill(*jobs)
    mend = fails(site, trouble)
    mend()
    vos = sorted({job.vo for job in jobs if job.vo})
    configure(site, exclude_vos=vos[:1])
    assert site.publish().status == 0
    found = records(site)
    assert vos[0] not in {row["VO"] for row in found}
    assert len(found) == sum(job.vo != vos[0] for job in jobs)


def test_a_rehearsal_tells_what_will_go(site: SiteUnderTest) -> None:
    jobs = jobs_of(40)
    site.fill(*jobs)
    mend = fails(site, _no_topic)
    mend()
    vos = sorted({job.vo for job in jobs if job.vo})
    configure(site, exclude_vos=vos[:1])
    rehearsed = site.publish("--dry-run").json["targets"]["egi"]
    went = site.publish().json["targets"]["egi"]
    assert (rehearsed["messages"], rehearsed["records"]) == (went["messages"], went["records"])
    assert went["records"] == sum(job.vo != vos[0] for job in jobs)


def test_a_rehearsal_sends_what_is_in_doubt_as_it_is(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40))
    configure(site, batch_records=10, attempts=1)
    site.fake.faults.push(Fault.none(), *[Fault.drop_without_storing()] * 2)
    assert site.publish().status == 75
    rehearsed = site.publish("--dry-run").json["targets"]["egi"]
    assert (rehearsed["messages"], rehearsed["records"]) == (3, 30)


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_what_is_in_doubt_keeps_its_bytes_and_its_id_whatever_it_meets(site: SiteUnderTest, form: str) -> None:
    site.fill(*jobs_of(20))
    configure(site, attempts=1, format=form)
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    (first,) = site.fake.messages(PROJECT, TOPIC)
    site.fake.remove_acl(site.user)
    site.config["site"] = "OTHER-SITE"
    site.save()
    assert site.publish().status == 77
    assert outbox(site) == 1
    assert status(site)["in_doubt"] > 0
    site.fake.allow(site.user)
    site.publish()
    again = site.fake.messages(PROJECT, TOPIC)[1]
    assert again.attributes["empaid"] == first.attributes["empaid"]
    assert texts(site)[1] == texts(site)[0]
    assert SITE in texts(site)[1]


def test_a_message_of_a_process_that_was_killed_is_in_doubt(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(20))
    configure(site, attempts=1)
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE message SET state = 0, reason = NULL WHERE state = 1")  # as just before its answer
    site.fake.remove_acl(site.user)
    assert site.publish().status == 77
    assert status(site)["in_doubt"] == 20
    site.fake.allow(site.user)
    assert site.publish().status == 0
    first, second = site.fake.messages(PROJECT, TOPIC)
    assert first.attributes["empaid"] == second.attributes["empaid"]


def test_halves_of_a_message_that_was_too_large_are_given_up_with_it(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40))
    site.fake.faults.push(Fault.status(413), Fault.none(), Fault.status(403, b"{}"))
    assert site.publish().status == 77
    assert outbox(site) == 0
    assert len(records(site)) == 20
    site.config["site"] = "OTHER-SITE"
    site.save()
    assert site.publish().status == 0
    found = records(site)
    assert len({row["LocalJobId"] for row in found}) == len(found) == 40
    assert [row["Site"] for row in found].count("OTHER-SITE") == 20


def test_halves_of_a_message_in_doubt_are_in_doubt(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40))
    configure(site, attempts=1)
    site.fake.faults.push(Fault.store_then_close(), Fault.status(413), Fault.none(), Fault.status(403, b"{}"))
    assert site.publish().status == 75
    site.config["site"] = "OTHER-SITE"
    site.save()
    assert site.publish().status == 77
    assert (outbox(site), status(site)["in_doubt"]) == (1, 20)
    assert site.publish().status == 0
    assert {row["Site"] for row in records(site)} == {SITE}
    assert len({row["LocalJobId"] for row in records(site)}) == 40


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.slow
def test_rule_13_a_refusal_after_an_attempt_that_was_lost_proves_nothing(site: SiteUnderTest, form: str) -> None:
    """Both within one delivery: what was stored then is not set aside."""
    site.fill(*jobs_of(20, start=SEPTEMBER, end=OCTOBER))
    configure(site, attempts=2, format=form)
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Message size is odd"}}')
    site.fake.faults.push(Fault.store_then_close(), no)
    assert site.publish().status == 76
    assert (outbox(site), _in_quarantine(site)) == (1, 0)
    assert status(site)["in_doubt"] > 0
    assert site.publish().status == 0
    assert texts(site)[0] == texts(site)[1]
    assert (status(site)["in_doubt"], status(site)["delivered"]) == (0, 20)


def test_records_that_every_one_was_refused_are_given_up(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(30))
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
    site.fake.faults.always(no)
    assert site.publish().status == 76
    assert outbox(site) == 0
    assert status(site)["pending"] == 30
    site.fake.faults.clear()
    site.config["site"] = "OTHER-SITE"
    site.save()
    assert site.publish().status == 0
    assert {row["Site"] for row in records(site)} == {"OTHER-SITE"}
    assert len(records(site)) == 30


def test_a_correction_that_did_not_arrive_is_a_correction_still(site: SiteUnderTest) -> None:
    jobs = [replace(job, local_job_id=str(at)) for at, job in enumerate(jobs_of(20))]
    with site.arex() as arex:
        arex.write_all(jobs)
        assert site.publish().status == 0
        arex.finish_again(replace(jobs[3], wall_s=jobs[3].wall_s + 7), end_time=jobs[3].end_time)
    _a_day_passes(site)
    mend = fails(site, _no_right)
    assert outbox(site) == 0
    mend()
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1)
    assert records(site)[-1]["WallDuration"] == jobs[3].wall_s + 7
    assert status(site)["delivered"] == 20


def test_a_released_job_that_did_not_arrive_goes_with_the_next_round(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(6))
    no = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
    # Three go, of the other three the first is narrowed down to.
    site.fake.faults.push(no, Fault.none(), no, no, Fault.none())
    assert site.publish().status == 65
    assert len(records(site)) == 5
    assert site.run("quarantine", "release", "--all").status == 0
    mend = fails(site, _no_right)
    assert status(site)["quarantined"] == 1
    mend()
    assert site.publish().status == 0
    assert len(records(site)) == 6
    assert status(site)["quarantined"] == 0


def test_a_republish_goes_on_before_what_was_given_up(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40, start=SEPTEMBER, end=OCTOBER))
    configure(site, batch_records=10)
    assert site.publish().status == 0
    site.fake.faults.push(Fault.none(), Fault.status(403, b"{}"))
    window = ("republish", "--json", "--yes", "--from", "2026-09", "--to", "2026-09")
    assert site.run(*window).status == 77
    assert (outbox(site), len(records(site))) == (0, 50)
    assert site.run(*window).status == 0
    again = [row["LocalJobId"] for row in records(site)[40:]]
    assert len(again) == len(set(again)) == 40


def test_a_first_portion_of_a_republish_is_given_up_whole(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40, start=SEPTEMBER, end=OCTOBER))
    configure(site, batch_records=10)
    assert site.publish().status == 0
    site.fake.faults.push(Fault.status(403, b"{}"))
    window = ("republish", "--json", "--yes", "--from", "2026-09", "--to", "2026-09")
    assert site.run(*window).status == 77
    assert site.run(*window).status == 0
    assert len({row["LocalJobId"] for row in records(site)[40:]}) == 40


def test_rows_that_never_arrived_are_on_no_ticket(site: SiteUnderTest, trouble: Trouble) -> None:
    site.fill(*jobs_of(40, start=SEPTEMBER, end=OCTOBER))
    site.config["site"] = "WRONG-SITE"
    mend = fails(site, trouble)
    mend()
    site.config["site"] = SITE
    site.save()
    assert site.publish().status == 0
    with closing(sqlite3.connect(site.state)) as connection:
        (jobs,) = connection.execute("SELECT sum(jobs) FROM balance").fetchone()
    assert jobs == 40
    run = site.run("republish", "--yes", "--from", "2026-09", "--to", "2026-09")
    assert (run.status, "ticket" in run.out + run.err) == (0, False), run.out


def test_keys_of_what_arrived_stay_when_the_rest_is_given_up(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40, start=SEPTEMBER, end=OCTOBER))
    site.fake.faults.push(Fault.status(413), Fault.none(), Fault.status(403, b"{}"))
    assert site.publish().status == 77
    with closing(sqlite3.connect(site.state)) as connection:
        (jobs,) = connection.execute("SELECT sum(jobs) FROM balance").fetchone()
        assert jobs == 20
        site.publish()
        (jobs,) = connection.execute("SELECT sum(jobs) FROM balance").fetchone()
        assert jobs == 40


# Monthly totals


@pytest.mark.parametrize("form", ["apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4"])
@pytest.mark.some(3)
def test_totals_under_a_wrong_site_stay_here(site: SiteUnderTest, trouble: Trouble, form: str) -> None:
    jobs = jobs_of(60)
    site.fill(*jobs)
    configure(site, format=form)
    site.config["site"] = "WRONG-SITE"
    mend = fails(site, trouble)
    assert outbox(site) == 0
    assert status(site)["pending"] == 60
    mend()
    site.config["site"] = SITE
    site.save()
    rehearsed = site.publish("--dry-run").json["targets"]["egi"]
    run = site.publish()
    assert run.status == 0, run.out
    assert run.json["targets"]["egi"]["held"] == []
    assert rehearsed["records"] == run.json["targets"]["egi"]["records"]
    assert {row["Site"] for row in summary_rows(site)} == {SITE}
    assert sum(int(row["NumberOfJobs"]) for row in summary_rows(site)) == 60
    assert (status(site)["pending"], status(site)["delivered"]) == (0, 60)


def jobs_at(site: SiteUnderTest, name: str) -> int:
    """How many jobs the receiver counts under a site."""
    return sum(int(str(row["NumberOfJobs"])) for row in site.table().rows("Summaries") if row["Site"] == name)


def republish_september(site: SiteUnderTest, *flags: str) -> Run:
    return site.run("republish", "--json", "--yes", "--from", "2026-09", "--to", "2026-09", *flags)


def test_a_month_of_which_a_message_arrived_goes_out_as_it_was_planned(site: SiteUnderTest) -> None:
    """Of its messages the second is refused: the rest follows under the wrong site, and `republish` empties these rows."""
    site.fill(*jobs_of(60, start=SEPTEMBER, end=OCTOBER))
    configure(site, format="apel-summary-0.4", batch_records=5)
    site.config["site"] = "WRONG-SITE"
    site.save()
    site.fake.faults.push(Fault.none(), Fault.status(403, b"{}"))
    assert site.publish().status == 77
    there = jobs_at(site, "WRONG-SITE")
    assert len(summary_rows(site)) == 5
    assert status(site)["delivered"] == there < 60
    site.config["site"] = SITE
    site.save()
    assert site.publish().status == 0
    assert (jobs_at(site, "WRONG-SITE"), jobs_at(site, SITE)) == (60, 0)
    run = republish_september(site)
    (held,) = run.json["targets"]["egi"]["held"]
    assert (run.status, sum(row["jobs"] for row in held["stale"]), held["lost_jobs"]) == (65, 60, 0)
    assert republish_september(site, "--accept-key-change").status == 0
    assert (jobs_at(site, "WRONG-SITE"), jobs_at(site, SITE)) == (0, 60)
    assert status(site)["delivered"] == 60
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_what_was_accepted_for_a_month_that_did_not_arrive_is_to_be_accepted_again(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(60, start=SEPTEMBER, end=OCTOBER))
    configure(site, format="apel-summary-0.4")
    site.config["site"] = "WRONG-SITE"
    site.save()
    assert site.publish().status == 0
    site.config["site"] = SITE
    site.save()
    assert republish_september(site).status == 65
    site.fake.faults.push(Fault.status(403, b"{}"))
    run = republish_september(site, "--accept-key-change")
    assert run.status == 77
    assert "--accept-key-change" in run.json["targets"]["egi"]["reason"]
    assert "give it again" in run.json["targets"]["egi"]["reason"]
    assert [month["month"] for month in republish_september(site).json["targets"]["egi"]["held"]] == ["2026-09"]
    assert republish_september(site, "--accept-key-change").status == 0
    assert (jobs_at(site, "WRONG-SITE"), jobs_at(site, SITE)) == (0, 60)


def test_rows_in_doubt_are_known_once_they_arrived(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(60, start=SEPTEMBER, end=OCTOBER))
    configure(site, format="apel-summary-0.4", batch_records=5, attempts=1)
    site.config["site"] = "WRONG-SITE"
    site.save()
    site.fake.faults.push(Fault.none(), Fault.drop_without_storing(), Fault.drop_without_storing())
    assert site.publish().status == 75
    assert outbox(site) > 0
    site.config["site"] = SITE
    site.save()
    run = republish_september(site)
    (held,) = run.json["targets"]["egi"]["held"]
    assert (run.status, sum(row["jobs"] for row in held["stale"])) == (65, 60)
    assert (jobs_at(site, "WRONG-SITE"), jobs_at(site, SITE)) == (60, 0)
    assert republish_september(site, "--accept-key-change").status == 0
    assert (jobs_at(site, "WRONG-SITE"), jobs_at(site, SITE)) == (0, 60)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_rehearsal_counts_a_month_in_doubt_once(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(60, start=SEPTEMBER, end=OCTOBER))
    configure(site, format="apel-summary-0.4", attempts=1)
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    rehearsed = site.publish("--dry-run").json["targets"]["egi"]
    went = site.publish().json["targets"]["egi"]
    assert (rehearsed["messages"], rehearsed["records"]) == (went["messages"], went["records"])


def test_single_records_that_were_sent_before_are_not_forgotten_with_totals_that_were_not(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(30, start=SEPTEMBER, end=OCTOBER))
    assert site.publish().status == 0
    configure(site, format="apel-summary-0.4")
    assert republish_september(site).status == 65
    allow = _no_right(site)
    assert republish_september(site, "--accept-key-change").status == 77
    assert status(site)["delivered"] == 30
    allow()
    assert republish_september(site, "--accept-key-change").status == 0
    assert status(site)["delivered"] == 30
    site.fill(*jobs_of(5, seed=3, start=SEPTEMBER, end=OCTOBER))
    assert site.publish().status == 0
    assert status(site)["delivered"] == 35


@pytest.mark.parametrize("form", ["car", "apel-job-0.4"])
def test_jobs_of_totals_that_never_arrived_go_one_by_one_in_another_format(site: SiteUnderTest, form: str) -> None:
    jobs = jobs_of(40)
    site.fill(*jobs)
    configure(site, format="apel-summary-0.4")
    mend = fails(site, _no_topic)
    mend()
    configure(site, format=form)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 40), run.out
    assert (status(site)["pending"], status(site)["delivered"]) == (0, 40)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_single_records_that_never_arrived_go_as_totals_in_another_format(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(40))
    mend = fails(site, _no_topic)
    mend()
    configure(site, format="apel-summary-0.4")
    assert site.publish().status == 0
    assert sum(int(row["NumberOfJobs"]) for row in summary_rows(site)) == 40


# Counts


def test_counts_that_did_not_arrive_are_told_as_they_are_then(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(20, start=SEPTEMBER, end=OCTOBER))
    assert site.publish().status == 0
    mend = _no_right(site)
    assert site.run("sync", "--target", "egi", "--json").status == 77
    assert outbox(site) == 0
    mend()
    site.config["site"] = "OTHER-SITE"
    site.save()
    assert site.run("sync", "--target", "egi", "--json").status == 0
    (counts,) = [text for text in texts(site) if text.startswith("APEL-sync-message")]
    assert "OTHER-SITE" in counts
    rows = read_text(counts.encode(), datetime.now(UTC))[1]
    assert sum(int(row["NumberOfJobs"]) for row in rows) == 20


# SGAS


@pytest.fixture
def nordic(tmp_path: Path, pki: PKI) -> Iterator[SgasSite]:
    with FakeSGAS(pki, generation="H") as fake:
        yield SgasSite(tmp_path, pki, fake)


@pytest.mark.parametrize("status_of_refusal", [403, 406])
def test_sgas_gets_what_is_configured_after_a_refusal(nordic: SgasSite, status_of_refusal: int) -> None:
    """It never corrects what it has."""
    nordic.fill(*jobs_of(60))
    configure(nordic, machine_name="wrong.example.org")
    body = b"Not allowed" if status_of_refusal == 406 else b"Forbidden"
    nordic.fake.faults.push(Fault.status(status_of_refusal, body))
    run: Run = nordic.publish()
    assert run.status in (76, 77), run.out
    assert outbox(nordic) == 0
    configure(nordic, machine_name="ce01.example.org")
    assert nordic.publish().status == 0
    assert {row.machine_name for row in nordic.fake.rows.values()} == {"ce01.example.org"}
    assert len(nordic.fake.rows) == 60


# The ledger


def test_a_round_that_failed_is_due_at_once(site: SiteUnderTest) -> None:
    site.fill(*jobs_of(10))
    configure(site, every="6h")
    assert site.publish().status == 0
    site.fill(*jobs_of(5, seed=3))
    mend = fails(site, _no_right)
    mend()
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET last_success = last_success - 1")
    run = site.run("publish", "--json")
    assert json.loads(run.out)["targets"]["egi"]["records"] == 5


def _a_day_passes(site: SiteUnderTest) -> None:
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")


# What a round prints


def test_a_round_that_stopped_tells_only_what_happened(site: SiteUnderTest, trouble: Trouble) -> None:
    odd = [replace(job, cpus=0, benchmark="HEPSPEC:1.0", wall_s=3600, queue="long") for job in jobs_of(20)]
    unfit = [replace(job, vo="x" * 300) for job in jobs_of(8, seed=5)]
    site.fill(*odd[:10], *unfit[:4], *odd[10:], *unfit[4:])
    configure(site, batch_records=5)
    mend = trouble(site)
    site.save()
    run = site.publish()
    told = run.json["targets"]["egi"]
    assert told["quarantined"] == _in_quarantine(site)
    assert (told["warnings"], told["arex_default_benchmarks"]) == ({}, 0)
    assert (told["arex_default_wall_s"], told["arex_default_queues"]) == (0, [])
    text = site.run("publish", "--force").out
    assert "odd" not in text
    assert "HEPSPEC" not in text
    mend()
    site.save()
    before = _in_quarantine(site)
    run = site.publish()
    told = run.json["targets"]["egi"]
    assert told["quarantined"] == _in_quarantine(site) - before
    assert _in_quarantine(site) == 8
    assert (told["warnings"]["cores-zero"], told["arex_default_benchmarks"]) == (20, 20)
    assert (told["arex_default_wall_s"], told["arex_default_queues"]) == (20 * 3600, ["long"])
    assert "odd: cores-zero" not in site.run("publish", "--force").out


def test_what_went_out_before_a_round_stopped_is_told_once(site: SiteUnderTest) -> None:
    site.fill(*[replace(job, cpus=0, benchmark="HEPSPEC:1.0", wall_s=3600, queue="long") for job in jobs_of(20)])
    configure(site, batch_records=5)
    site.fake.faults.push(Fault.none(), Fault.status(403, b"{}"))
    told = site.publish().json["targets"]["egi"]
    assert (told["records"], told["warnings"]["cores-zero"], told["arex_default_benchmarks"]) == (5, 5, 5)
    told = site.publish().json["targets"]["egi"]
    assert (told["records"], told["warnings"]["cores-zero"], told["arex_default_benchmarks"]) == (15, 15, 15)
    assert told["arex_default_wall_s"] == 15 * 3600


def test_of_halves_those_that_arrived_are_told(site: SiteUnderTest) -> None:
    site.fill(*[replace(job, cpus=0) for job in jobs_of(20)])
    site.fake.faults.push(Fault.status(413), Fault.none(), Fault.status(403, b"{}"))
    told = site.publish().json["targets"]["egi"]
    assert (told["records"], told["warnings"]["cores-zero"]) == (10, 10)


def test_totals_that_were_not_stored_tell_nothing_of_their_jobs(site: SiteUnderTest) -> None:
    site.fill(*[replace(job, cpus=0) for job in jobs_of(20)])
    configure(site, format="apel-summary-0.4")
    mend = _no_right(site)
    text = site.run("publish", "--force").out
    assert "cores-zero" not in text
    mend()
    told = site.publish().json["targets"]["egi"]
    assert (told["messages"] > 0, told["warnings"]) == (True, {"cores-zero": 20})


def _in_quarantine(site: SiteUnderTest) -> int:
    return len(site.run("quarantine", "list", "--json").json["quarantined"])


class Watching:
    """Notified of a round's steps, and interrupted at the one behind a message that was handed over."""

    def __init__(self, *, interrupted: bool) -> None:
        self._interrupted = interrupted
        self._handed_over = False

    def message_prepared(self, message: Message) -> None:
        self._handed_over = True

    def page_read(self, target: str, page: JobPage) -> None:
        if self._interrupted and self._handed_over:
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


def test_interrupted_before_the_thread_that_sends_has_begun(tmp_path: Path, pki: PKI) -> None:
    """What it sends after all is known to be on its way, and goes out again as the same message."""
    site = site_with(tmp_path / "site", pki, "car", {}, {"batch_records": PAGE_JOBS})
    site.save()
    site.fill(*jobs_of(PAGE_JOBS + 50))
    now = datetime(2026, 11, 20, tzinfo=UTC)
    live = live_site(site, LiveSite, site.control, now)
    interrupted = threading.Event()

    def hold(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is MessageSender._deliver.__code__:
            assert interrupted.wait(PATIENCE_S)

    threading.settrace(hold)
    with sending_ends(), ExitStack() as ending:
        ending.callback(interrupted.set)
        ending.callback(threading.settrace, None)
        with pytest.raises(KeyboardInterrupt):
            commands.publish(live, targets=[], observer=Watching(interrupted=True))
    (first,) = messages(site)
    live = live_site(site, LiveSite, site.control, now + timedelta(minutes=1))
    commands.publish(live, targets=[], observer=Watching(interrupted=False))
    assert len(messages(site)) == 2
    assert first in messages(site)
