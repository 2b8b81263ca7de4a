"""Going on after jura-ng: what it left at the receiver is minded, and what it lost is listed once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.model.time import epoch, iso
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.sync.check import loaded_to_check
from publisher.publishing.takeover.adopt import jobs_of_ces, left_by_jura
from publisher.publishing.takeover.jura import as_jura
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.support.arc_pages import LAST, apel, loaded, stopped
from tests.support.pki import PKI, Credential
from tests.support.simulated_months import World
from tests.support.sites import SiteUnderTest
from tests.support.spring_2028 import MARCH, NOW, done, jobs_of_spring

STOPPED = datetime(2028, 3, 14, 3, 4, 5, tzinfo=UTC)
JOBS = jobs_of_spring(40, benchmark="HEPSPEC:10.5", interface="org.nordugrid.arcrest")


def world_after_jura(
    folder: Path, host: Credential, sent: str, *, lost: Collection[SampleJob] = (), **target: Any
) -> World:
    """A site at which jura-ng of ARC 6 sent `sent` until `STOPPED`; its rows stand at the receiver, and we begin with March.

    It lost some jobs.
    """
    folder.mkdir(exist_ok=True)
    jura = World(folder=folder / "jura", host=host, now=NOW, format=sent, schema=1)
    jura.config["records"]["key_style"] = "jura"
    jura.config["targets"]["egi"]["sync"] = False
    jura.finish([job for job in JOBS if job.end_time <= STOPPED.timestamp() and job not in lost])
    assert done(jura.publish()).exit_status == 0
    ours = World(folder=folder / "ours", host=host, now=NOW, format=sent, schema=1, wire=jura.wire)
    ours.config["targets"]["egi"] |= {"start": "2028-03", "jura_until": iso(STOPPED), "jura_format": sent, **target}
    ours.finish(JOBS)
    return ours


def names(outcome: Outcome | None) -> list[str]:
    return [month.name for month in done(outcome).held]


@pytest.mark.parametrize("format_name", ["apel-summary-0.2", "apel-summary-0.4", "car"])
def test_in_its_spelling_the_month_goes_whole_and_replaces(tmp_path: Path, host: Credential, format_name: str) -> None:
    world = world_after_jura(tmp_path, host, format_name)
    world.config["records"]["key_style"] = "jura"
    outcome = done(world.publish())
    assert (outcome.exit_status, names(outcome)) == (0, [])
    assert not world.wrong_months()
    assert done(world.publish()).outcome == "nothing"
    assert not world.differences()


@pytest.mark.parametrize("format_name", ["apel-summary-0.2", "car"])
def test_jobs_that_it_lost_since_the_start_are_sent(tmp_path: Path, host: Credential, format_name: str) -> None:
    """Also those of rows to which no job has come since."""
    of_march = [job for job in JOBS if MARCH.timestamp() <= job.end_time <= STOPPED.timestamp()]
    assert len(of_march[::2]) > 3
    world = world_after_jura(tmp_path, host, format_name, lost=of_march[::2])
    world.config["records"]["key_style"] = "jura"
    world.finish([])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()
    assert done(world.publish()).outcome == "nothing"


def test_under_other_keys_a_republish_is_held_with_the_rows_of_jura(tmp_path: Path, host: Credential) -> None:
    world = world_after_jura(tmp_path, host, "apel-summary-0.2", sync=False)
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()
    before = len(world.receiver.messages)
    held = done(world.republish("2028-03"))
    assert (held.exit_status, names(held)) == (65, ["2028-03"])
    assert len(world.receiver.messages) == before
    assert all("SubmitHost arcrest:https://" in total.key.text for total in held.held[0].orphaned)
    world.do_the_tickets(held)
    assert done(world.republish("2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("format_name", ["apel-summary-0.2", "apel-summary-0.4", "car"])
def test_rows_that_jura_sent_again_after_us_are_told(
    tmp_path: Path, host: Credential, caplog: pytest.LogCaptureFixture, format_name: str
) -> None:
    world = world_after_jura(tmp_path, host, "apel-summary-0.2", format=format_name, sync=False)
    world.do_the_tickets(done(world.publish()))
    if format_name == "car":
        held = done(world.republish("2028-03"))
        assert held.exit_status == 65
        world.do_the_tickets(held)
        assert done(world.republish("2028-03", accept=True)).exit_status == 0
    assert done(world.publish(accept=True)).exit_status == 0
    assert not world.wrong_months()
    jura = World(folder=tmp_path / "again", host=host, now=NOW, format="apel-summary-0.2", schema=1, wire=world.wire)
    jura.config["records"]["key_style"] = "jura"
    jura.finish([job for job in JOBS if job.end_time <= STOPPED.timestamp() + 86_400 * 3])
    assert done(jura.publish()).exit_status == 0
    assert list(world.wrong_months()) == [(2028, 3)]
    world.config["targets"]["egi"]["jura_until"] = iso(STOPPED + timedelta(days=3))
    caplog.clear()
    assert done(world.publish()).exit_status == 0
    assert "publisher had sent 2028-03 before jura_until was moved" in caplog.text
    caplog.clear()
    assert done(world.publish()).exit_status == 0
    world.config["targets"]["egi"]["jura_until"] = iso(STOPPED)
    assert done(world.publish()).exit_status == 0
    assert "jura_until was moved" not in caplog.text, "nor when it is moved back: jura-ng sent nothing since"


@pytest.mark.parametrize(
    "change",
    [{"identity": "withheld"}, {"vo_rules": [{"field": "any", "pattern": "*", "vo": "other", "override": True}]}],
)
def test_any_other_key_is_noticed_too(tmp_path: Path, host: Credential, change: dict[str, Any]) -> None:
    world = world_after_jura(tmp_path, host, "apel-summary-0.4")
    world.config["records"] |= {"key_style": "jura", **change}
    assert names(world.publish()) == []
    assert not world.wrong_months()
    assert names(world.republish("2028-03")) == ["2028-03"]


def test_a_month_that_it_sent_as_totals_goes_on_so_until_it_is_republished(tmp_path: Path, host: Credential) -> None:
    world = world_after_jura(tmp_path, host, "apel-summary-0.2", format="car", start=iso(STOPPED))
    assert names(world.publish()) == []
    assert not world.wrong_months()
    held = done(world.republish("2028-03"))
    assert names(held) == ["2028-03"]
    world.do_the_tickets(held)
    assert done(world.republish("2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()


def test_a_month_that_it_sent_as_records_goes_on_so_though_keys_differ(tmp_path: Path, host: Credential) -> None:
    world = world_after_jura(tmp_path, host, "car", format="apel-summary-0.4")
    world.config["records"]["key_style"] = "jura"  # which spells hosts of totals in another way than those of records
    assert names(world.publish()) == []
    assert not world.wrong_months()


@pytest.mark.parametrize("format_name", ["apel-summary-0.2", "car"])
def test_a_month_before_the_start_is_minded_when_it_is_named(
    tmp_path: Path, host: Credential, format_name: str
) -> None:
    world = world_after_jura(tmp_path, host, format_name)
    world.config["records"] |= {"key_style": "jura", "identity": "withheld"}
    held = done(world.republish("2028-02"))
    assert (held.exit_status, names(held)) == (65, ["2028-02"])
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", accept=True)).exit_status == 0
    assert not [month for month in world.wrong_months() if month == (2028, 2)]
    world.config["records"]["identity"] = "plain"
    assert names(world.republish("2028-02")) == ["2028-02"], "from now on the rows are our own"


def test_its_counts_are_told_beside_ours_under_its_hosts(tmp_path: Path, host: Credential) -> None:
    world = world_after_jura(tmp_path, host, "car")
    assert done(world.publish()).exit_status == 0
    of_jura = {host for (month, host), jobs in world.receiver.told.items() if month == (2028, 3) and jobs}
    assert any(host.startswith("arcrest:") for host in of_jura), "what it sent counts as it sent it"
    march = sum(jobs for (month, _), jobs in world.receiver.told.items() if month == (2028, 3))
    assert march == sum(datetime.fromtimestamp(job.end_time, UTC).month == 3 for job in JOBS)


@pytest.mark.parametrize("format_name", ["apel-summary-0.2", "car"])
def test_what_is_worked_out_is_what_it_left(tmp_path: Path, host: Credential, format_name: str) -> None:
    world = world_after_jura(tmp_path, host, format_name)
    site = world.site()
    (target,) = site.settings.targets
    with loaded_to_check(site, 0) as (_, data):
        left = left_by_jura(target, 2028 * 12 + 2, epoch(STOPPED), jobs_of_ces(data.jobs, data.source, NOW), NOW)
    assert left.totals == (format_name != "car")
    jobs = sum(entry.jobs for entry in left.entries)
    assert jobs == sum(MARCH.timestamp() <= job.end_time <= STOPPED.timestamp() for job in JOBS)
    assert as_jura(target.policy, summary=True).key_style == "jura"


def test_lost_jobs_are_listed_before_the_first_round_and_only_then(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """A job was written after jura-ng had passed its end: nothing that begins at LastEndTime would send it."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    last = datetime(2026, 10, 12, 3, 4, 5, tzinfo=UTC)
    seen = list(generate(5, 12, datetime(2026, 10, 1, tzinfo=UTC), last))
    (later,) = generate(6, 1, datetime(2026, 10, 13, tzinfo=UTC), datetime(2026, 10, 14, tzinfo=UTC))
    (lost,) = generate(7, 1, datetime(2026, 10, 11, tzinfo=UTC), datetime(2026, 10, 12, tzinfo=UTC))
    lost = replace(lost, job_id="lost-by-jura", local_job_id="4712")
    jobs: list[SampleJob] = [*sorted(seen, key=lambda job: job.end_time), later, lost]
    site.fill(*jobs)
    site.config["targets"]["egi"] |= {"start": iso(last), "jura_until": iso(last)}
    dry_run = site.publish("--dry-run").json["targets"]["egi"]["lost"]
    run = site.run("publish", "--force")
    assert "certainly lost: 1," in run.out
    assert "lost-by-jura" in run.out
    start = f"start: {iso(datetime.fromtimestamp(lost.end_time, UTC))}"
    assert start in run.out
    assert "lost-by-jura" in run.err, "it stands in the log, whatever becomes of the round"
    assert "jobs that ARC sent since then are sent again, as it sent them" in run.out
    assert [job["job"] for job in dry_run["jobs"] if job["certain"]] == ["lost-by-jura"]
    again = site.publish()
    assert again.json["targets"]["egi"]["lost"] is None
    # As it said: with that start the job goes out.
    site.config["targets"]["egi"]["start"] = start.removeprefix("start: ")
    site.save()
    assert site.publish().json["targets"]["egi"]["records"] >= 1
    assert any(row["LocalJobId"] == "4712" for row in site.received(with_openssl=False))


def test_a_configuration_from_arc_knows_of_it(tmp_path: Path) -> None:
    page = apel("apel_messages = urs", takeover=stopped({"arex/jura/apel:egi": (epoch(LAST), epoch(LAST) + 60)}))
    (target,) = loaded(page, tmp_path).targets
    assert (target.jura_until, target.jura_format) == (epoch(LAST), "car")
    (target,) = loaded(apel("apel_messages = summaries"), tmp_path).targets
    assert (target.jura_until, target.jura_format) == (None, "apel-summary-0.2"), (
        "it sent something, nobody knows until when"
    )


def test_what_jura_sent_is_not_sent_again_under_a_localid_prefix(tmp_path: Path, host: Credential) -> None:
    """It knew no prefix, and under ours its records would stay beside the new ones; ours change as ever."""
    world = world_after_jura(tmp_path, host, "car", start=iso(STOPPED + timedelta(seconds=1)))
    world.config["records"] |= {"key_style": "jura", "localid_prefix": "c1-"}
    assert done(world.publish()).exit_status == 0
    changed = max(JOBS, key=lambda job: job.end_time)
    world.finish_again(changed.job_id, wall_s=changed.wall_s + 60)
    again = done(world.publish())
    assert (again.records, again.quarantined, world.wrong_months()) == (1, 0, {})
    held = done(world.republish("2028-03"))
    assert (held.exit_status, names(held)) == (65, ["2028-03"])
    assert not world.wrong_months()
    world.do_the_tickets(held)
    assert done(world.republish("2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()
