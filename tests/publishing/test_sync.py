"""`sync` and `sync --check`: the receiver is told what the records carry, and every difference is found and mended."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob, Schema, generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest
from tests.support.strict_apel_text import read_text

pytestmark = pytest.mark.some(2, of="site")

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
Counts = dict[tuple[int, int, str], int]


@pytest.fixture(params=["car", "apel-summary-0.2"])
def site(request: pytest.FixtureRequest, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"] |= {"format": request.param, "sync": True}
    return made


def fill(site: SiteUnderTest, jobs: Iterable[SampleJob], schema: Schema = 2) -> None:
    site.fill(*jobs, schema=schema)


def told(site: SiteUnderTest) -> tuple[Counts, int]:
    """What the receiver holds under its keys, and in how many messages it was told."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    counts: Counts = {}
    messages = 0
    for message in site.fake.messages(PROJECT, TOPIC):
        text = receiver.take(message).text
        if not text.startswith("APEL-sync-message"):
            continue
        messages += 1
        for row in read_text(text.encode(), datetime.now(UTC))[1]:
            counts[row["Year"], row["Month"], row["SubmitHost"]] = row["NumberOfJobs"]
    return counts, messages


def true_counts(jobs: Iterable[SampleJob]) -> Counts:
    counts: Counter[tuple[int, int, str]] = Counter()
    for job in jobs:
        end = datetime.fromtimestamp(job.end_time, UTC)
        counts[end.year, end.month, job.endpoint_url] += 1
    return dict(counts)


def check(site: SiteUnderTest, *arguments: str) -> Run:
    return site.run("sync", "--check", "--json", *arguments)


def jobs_of(start: datetime, end: datetime, count: int, seed: int = 1) -> list[SampleJob]:
    return [replace(job, benchmark="HEPSPEC:10.5") for job in generate(seed, count, start, end)]


def test_a_round_tells_what_it_delivered_and_only_news_again(site: SiteUnderTest) -> None:
    jobs = jobs_of(SEPTEMBER, NOVEMBER, 80)
    fill(site, jobs)
    assert site.publish().status == 0
    assert told(site) == (true_counts(jobs), 1)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert told(site)[1] == 1
    late = jobs_of(SEPTEMBER, OCTOBER, 5, seed=8)
    fill(site, late)
    assert site.publish().status == 0
    assert told(site) == (true_counts([*jobs, *late]), 2)
    assert check(site).status == 0


def test_before_the_first_round_there_is_nothing_to_tell(site: SiteUnderTest) -> None:
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 3))
    run = site.run("sync", "--json")
    assert (run.status, run.json["targets"]["egi"]["outcome"]) == (0, "nothing")
    assert check(site).json["rows"][0]["pending"] == 3


def test_the_command_tells_the_last_months_or_all(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["sync"] = False
    old = jobs_of(datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 4, 1, tzinfo=UTC), 10, seed=4)
    jobs = jobs_of(SEPTEMBER, NOVEMBER, 20)
    fill(site, [*old, *jobs])
    assert site.publish().status == 0
    assert told(site) == ({}, 0)
    nothing = site.run("sync", "--json")
    assert (nothing.status, nothing.out) == (64, "")
    assert "`sync: true`" in nothing.err
    assert "`--target egi`" in nothing.err
    assert site.run("sync", "--json", "--target", "egi").status == 0
    assert told(site)[0] == true_counts(jobs)
    assert site.run("sync", "--json", "--target", "egi", "--months", "all").status == 0
    assert told(site)[0] == true_counts([*old, *jobs])
    assert site.run("sync", "--months", "none").status == 64
    site.config["targets"]["other"] = site.config["targets"]["egi"] | {"sync": True, "topic": "other"}
    site.save()
    assert set(site.run("sync", "--json").json["targets"]) == {"other"}, (
        "only targets with sync: true, unless one is named"
    )


@pytest.mark.some(1)
def test_the_takeover_month_counts_what_another_publisher_delivered(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["start"] = (
        "2026-10-15" if site.config["targets"]["egi"]["format"] == "car" else "2026-10"
    )
    jobs = jobs_of(OCTOBER, NOVEMBER, 60)
    fill(site, jobs)
    assert site.publish().status == 0
    assert told(site)[0] == true_counts(jobs)
    assert check(site).status == 0
    # What we deliver of it after all counts once.
    assert site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes").status == 0
    assert site.run("sync").status == 0
    assert told(site)[0] == true_counts(jobs)
    assert check(site).status == 0


def test_a_set_aside_job_is_not_told_and_shows_in_the_check(site: SiteUnderTest) -> None:
    jobs = jobs_of(SEPTEMBER, OCTOBER, 12)
    fill(site, [*jobs[1:], replace(jobs[0], benchmark="fast")])
    assert site.publish().status == 65
    assert told(site)[0] == true_counts(jobs[1:])
    run = check(site)
    assert run.status == 65
    (different,) = [row for row in run.json["rows"] if row["repairs"]]
    assert (different["quarantined"], different["pending"]) == (1, 0)
    assert "quarantine list" in different["repairs"][0]


@pytest.mark.parametrize("months", ["12", "all"])
@pytest.mark.parametrize(
    ("damage", "month"),
    [
        ("UsedWalltime = -1", "2026-09"),
        ("JobID = ''", "2026-09"),
        ("EndTime = 'soon'", "unknown"),
        ("EndTime = 1 << 40", "unknown"),
    ],
)
@pytest.mark.some(2)
def test_a_row_that_cannot_be_read_shows_in_the_check_and_the_line_adds_up(
    site: SiteUnderTest, damage: str, month: str, months: str
) -> None:
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 6))
    connection = sqlite3.connect(site.database())
    with closing(connection), connection:
        connection.execute(f"UPDATE AAR SET {damage} WHERE RecordID = 3")
    waiting = 5 if "soon" in damage else 6  # no window has a row without an end time: the first round finds it
    assert sum(row["pending"] for row in check(site, "--months", months).json["rows"]) == waiting
    assert site.publish().status == 65
    run = check(site, "--months", months)
    assert run.status == 65
    (aside,) = [row for row in run.json["rows"] if row["quarantined"]]
    assert (aside["month"], aside["quarantined"], aside["pending"]) == (month, 1, 0)
    assert aside["repairs"] == ["1 set aside: publisher quarantine list --target egi"]
    assert sum(row["database"] for row in run.json["rows"]) == 6
    for row in run.json["rows"]:
        assert row["database"] == row["delivered"] + row["before"] + row["quarantined"] + row["pending"]
    assert month in site.run("sync", "--check", "--months", months).out


def test_a_planted_difference_of_one_job_is_found_named_and_mended(site: SiteUnderTest) -> None:
    jobs = jobs_of(SEPTEMBER, OCTOBER, 30)
    fill(site, jobs[1:])
    assert site.publish().status == 0
    assert check(site).status == 0
    fill(site, jobs[:1])
    run = check(site)
    assert run.status == 65
    (different,) = [row for row in run.json["rows"] if row["repairs"]]
    assert different["pending"] == 1
    command = different["repairs"][0].partition(": publisher ")[2].split()
    assert site.run(*command).status == 0
    assert check(site).status == 0


def test_rows_that_cleanup_took_are_no_difference(site: SiteUnderTest) -> None:
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 12))
    assert site.publish().status == 0
    with sqlite3.connect(site.database()) as connection:
        connection.execute("DELETE FROM AAR WHERE RecordID IN (SELECT RecordID FROM AAR ORDER BY EndTime LIMIT 5)")
    connection.close()
    run = check(site)
    assert (run.status, run.json["exit"]) == (0, 0)
    assert sum(row["purged"] for row in run.json["rows"]) == 5
    assert not [row for row in run.json["rows"] if row["repairs"]]
    shown = site.run("sync", "--check")
    assert shown.status == 0
    assert "purged at the CE" in " ".join(shown.out.split())


def test_jobs_that_are_not_wanted_any_more_are_not_called_purged(site: SiteUnderTest) -> None:
    fill(site, [replace(job, status="failed") for job in jobs_of(SEPTEMBER, OCTOBER, 4)])
    assert site.publish().status == 0
    site.config["records"]["statuses"] = ["completed"]
    site.save()
    assert [row["purged"] for row in check(site).json["rows"] if row["purged"]] == []


def test_rows_under_another_site_are_differences(site: SiteUnderTest) -> None:
    site.config["site"] = "WRONG-SITE"
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 12))
    assert site.publish().status == 0
    assert check(site).status == 0
    site.config["site"] = "EXAMPLE-SITE"
    site.save()
    wrong = check(site)
    assert wrong.status == 65
    assert all("rows exist under site WRONG-SITE: publisher" in row["repairs"][0] for row in wrong.json["rows"])
    assert site.publish().status == 0
    (advised,) = {repair for row in check(site).json["rows"] for repair in row["repairs"] if "WRONG-SITE" in repair}
    command = advised.partition(": publisher ")[2].partition(" says")[0].split()
    assert site.run(*command, "--yes").status == 65
    assert site.run(*command, "--yes", "--accept-key-change").status == 0
    assert check(site).status == 65, "what stays there with consent is a difference"
    rows = [row for row in check(site).json["rows"] if row["repairs"]]
    advised = sorted({row["repairs"][0].partition(", publisher ")[2] for row in rows})
    for command in advised:
        assert site.run(*command.split()).status == 0
    assert check(site).status == 0
    assert site.run(*advised[0].split(), "--json").json["targets"] == {"egi": {"rows": 0}}
    assert site.run("state", "check").status == 0


def test_a_lost_count_is_found_and_told_again(site: SiteUnderTest) -> None:
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 10))
    assert site.publish().status == 0
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE sync_count SET reported = reported - 1")
    run = check(site)
    assert run.status == 65
    assert all("publisher sync --target egi" in row["repairs"][0] for row in run.json["rows"])
    assert site.run("sync").status == 0
    assert check(site).status == 0


@pytest.mark.parametrize("shape", ["csv", "json"])
def test_the_portal_is_compared_too(site: SiteUnderTest, tmp_path: Path, shape: str) -> None:
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 10))
    assert site.publish().status == 0
    rows = [
        {"Site": "EXAMPLE-SITE", "Year": year, "Month": month, "SubmitHost": host, "NumberOfJobs": jobs}
        for (year, month, host), jobs in told(site)[0].items()
    ]
    rows.append({"Site": "ANOTHER", "Year": 2026, "Month": 9, "SubmitHost": "x", "NumberOfJobs": 7})
    path = tmp_path / f"portal.{shape}"

    def save() -> None:
        if shape == "json":
            path.write_text(json.dumps({"rows": rows}))
        else:
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            path.write_text("\n".join(lines))

    save()
    assert check(site, "--portal", str(path)).status == 0
    rows[0]["NumberOfJobs"] = int(str(rows[0]["NumberOfJobs"])) - 1
    save()
    run = check(site, "--portal", str(path))
    assert run.status == 65
    (different,) = [row for row in run.json["rows"] if row["repairs"]]
    assert "publisher republish --from 2026-09 --to 2026-09" in different["repairs"][0]
    path.write_text("a,b\n1,2\n")
    broken = check(site, "--portal", str(path))
    assert (broken.status, "Traceback" in broken.err) == (64, False)
    path.write_bytes(b"\xff\xfe")
    assert "is not text in UTF-8; columns must be Month" in check(site, "--portal", str(path)).err
    path.unlink()
    missing = f"{path}: cannot be read: No such file or directory; name the file that was saved from the portal"
    assert missing in check(site, "--portal", str(path)).err


@pytest.mark.parametrize("site", ["apel-summary-0.2"], indirect=True)  # a single record keeps the host that it had
def test_a_submit_host_that_vanished_is_told_as_0_once(site: SiteUnderTest) -> None:
    jobs = [replace(job, interface="org.nordugrid.arcrest") for job in jobs_of(SEPTEMBER, OCTOBER, 10)]
    fill(site, jobs)
    assert site.publish().status == 0
    before = told(site)[0]
    site.config["records"]["key_style"] = "jura"
    site.save()
    assert site.publish("--accept-key-change").status == 0
    assert told(site)[0] == before, "settings move nothing that was sent"
    window = ("--from", "2026-09", "--to", "2026-10")
    assert site.run("republish", "--yes", *window).status == 65
    assert site.run("republish", "--yes", *window, "--accept-key-change").status == 0
    assert site.publish().status == 0
    after = told(site)[0]
    assert all(after[at] == 0 for at in before)
    assert sum(after.values()) == 10
    assert site.run("sync").status == 0
    assert check(site).status == 65, "the rows of the other host stay until they are deleted"
    with site.state.with_name("publishing.db.+receiver-1.lock").open(
        "a"
    ) as lock:  # another target of it may be publishing
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = site.run("sync", "--deleted", "2026-09")
        assert (busy.status, "is being published" in busy.err or "another publisher" in busy.err) == (75, True), (
            busy.err
        )
    for month in ("2026-09", "2026-10"):
        assert site.run("sync", "--deleted", month).status == 0
    assert check(site).status == 0


@pytest.mark.parametrize("key", ["certificate", "key", "ca"])
def test_a_shadow_that_failed_does_not_claim_that_everything_was_done(site: SiteUnderTest, key: str) -> None:
    site.config["targets"]["egi"]["shadow"] = True
    site.config["credentials"][key] = str(site.folder / "gone.pem")
    site.fill(*generate(1, 5, OCTOBER, NOVEMBER))
    run = site.run("publish", "--force")
    assert run.status == 77
    assert "gone.pem" in run.err
    assert "everything" not in run.out + run.err


def test_a_shadow_does_everything_but_send(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["shadow"] = True
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 10))
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"] > 0) == (0, True)
    assert run.json["targets"]["egi"]["shadow"] is True
    assert not site.fake.messages(PROJECT, TOPIC)
    assert len(site.fake.requests) == 0
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 10
    assert check(site).status == 0


@pytest.mark.parametrize("style", ["apel", "jura"])
def test_hosts_that_the_server_takes_for_one_are_counted_as_one(site: SiteUnderTest, style: str) -> None:
    """Its key compares without case: of two rows the second would replace the first, and its jobs be gone."""
    site.config["targets"]["egi"]["key_style"] = style
    loud, quiet = "https://CE01.Example.org:443/arex", "https://ce01.example.org:443/arex"
    batch = [
        replace(job, endpoint_url=quiet if number % 4 else loud, interface="org.nordugrid.arcrest")
        for number, job in enumerate(generate(8, 40, OCTOBER, NOVEMBER))
    ]
    fill(site, batch)
    assert site.publish().status == 0
    host = quiet if style == "apel" else f"arcrest:{quiet}"
    assert told(site)[0] == {(2026, 10, host): 40}
    assert site.run("sync", "--check").status == 0


@pytest.mark.parametrize("path", ["%%25%%/arex", "application/pkcs7-mime", "x" * 226])
def test_a_host_that_no_message_may_hold_is_counted_without_its_name(site: SiteUnderTest, path: str) -> None:
    site.config["targets"]["egi"] |= {"key_style": "jura", "format": "car"}
    odd, *others = generate(8, 10, OCTOBER, NOVEMBER)
    odd = replace(odd, endpoint_url=f"https://ce01.example.org/{path}", interface="org.nordugrid.arcrest")
    fill(site, [odd, *others])
    run = site.publish()
    assert run.status == 0, run.err
    counts, _ = told(site)
    assert (counts[2026, 10, "None"], sum(counts.values())) == (1, 10)
    assert site.run("sync", "--check").status == 0


@pytest.mark.slow
def test_what_the_portal_has_too_much_becomes_a_ticket(site: SiteUnderTest, tmp_path: Path) -> None:
    fill(site, [replace(job, benchmark=None) for job in jobs_of(SEPTEMBER, OCTOBER, 1_200)])
    assert site.publish().status == 0
    ((year, month, host), count), *_ = told(site)[0].items()
    page = tmp_path / "portal.csv"
    page.write_text(f"Year,Month,SubmitHost,NumberOfJobs\n{year},{month},{host},{count + 7}\n")
    run = site.run("sync", "--check", "--portal", str(page))
    assert run.status == 65
    assert f"{count:,}" in run.out, "thousands are kept apart"
    assert f"the portal has {count + 7:,}, 7 more than we published" in run.out
    assert "Text for a ticket to the APEL team" in run.out
    assert f"2026-09, submit host {host}: {count + 7:,} jobs, we publish {count:,}." in run.out


def test_accepted_key_changes_are_listed_with_their_rows(site: SiteUnderTest) -> None:
    fill(site, [replace(job, benchmark=None) for job in jobs_of(SEPTEMBER, OCTOBER, 12)])
    assert site.publish().status == 0
    assert check(site).json["accepted"] == []
    site.config["records"]["benchmark"]["value"] = 9
    site.save()
    window = ("--from", "2026-09", "--to", "2026-09")
    (held,) = site.run("republish", "--yes", "--json", *window).json["targets"]["egi"]["held"]
    assert site.run("republish", "--yes", *window, "--accept-key-change").status == 0
    (accepted,) = check(site).json["accepted"]
    assert (accepted["target"], accepted["month"]) == ("egi", "2026-09")
    by_row = itemgetter("row")
    assert sorted(accepted["stale"], key=by_row) == sorted(held["stale"], key=by_row)
    assert sum(row["jobs"] for row in accepted["stale"]) == 12
    shown = site.run("sync", "--check")
    assert "with 12 jobs stay at the receiver until its team deletes them" in shown.out
    assert held["stale"][0]["row"] in shown.out
    assert check(site, "--months", "1").json["accepted"] == []


@pytest.mark.parametrize("style", ["jura", "apel"])
def test_a_shadow_is_compared_with_jura_key_by_key(site: SiteUnderTest, style: str) -> None:
    form = site.config["targets"]["egi"]["format"]
    site.config["targets"]["egi"] |= {"shadow": True, "key_style": style, "jura_format": form}
    jobs = [replace(job, interface="org.nordugrid.arcrest") for job in jobs_of(SEPTEMBER, NOVEMBER, 30)]
    fill(site, jobs, schema=1)
    assert site.publish().status == 0
    run = check(site)
    september, october = run.json["shadows"]
    assert (september["month"], october["month"]) == ("2026-09", "2026-10")
    same = style == "jura"
    assert run.status == (0 if same else 65)
    shown = site.run("sync", "--check").out
    for month in (september, october):
        assert form == "car" or bool(month["different"]) is not same
        assert f"equal, {len(month['different'])} not" in shown
        if form == "car":  # of single records, only the names are spelt otherwise that A-REX has escaped
            assert all("O%27Neil" in row["row"] or "O'Neil" in row["row"] for row in month["different"])
        elif not same:
            assert not month["equal"]
            assert sum((row["ours"] or {"jobs": 0})["jobs"] for row in month["different"]) > 0
            assert all((row["ours"] is None) is not (row["jura"] is None) for row in month["different"])
            assert "ours none, jura-ng's" in shown


def test_a_shadow_of_single_records_tells_what_jura_does_not_find_in_schema_2(site: SiteUnderTest) -> None:
    """It looks for FQAN and benchmark in the side tables of schema 1; its summaries find them in both."""
    form = site.config["targets"]["egi"]["format"]
    site.config["targets"]["egi"] |= {"shadow": True, "key_style": "jura", "jura_format": form}
    jobs = jobs_of(SEPTEMBER, OCTOBER, 10)
    fill(site, jobs)
    assert site.publish().status == 0
    (month,) = check(site).json["shadows"]
    if form != "car":
        assert not month["different"]
        return
    assert not month["equal"]
    assert {row["row"].split(", ")[-3] for row in month["different"] if row["ours"]} == {"HEPSPEC 10.5"}
    assert {row["row"].split(", ")[-3] for row in month["different"] if row["jura"]} == {"HEPSPEC 1"}
    assert sum(row["jura"]["jobs"] for row in month["different"] if row["jura"]) == len(jobs)


def test_a_shadow_of_another_publisher_is_not_compared_with_jura(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["shadow"] = True
    fill(site, jobs_of(SEPTEMBER, OCTOBER, 5))
    assert site.publish().status == 0
    assert check(site).json["shadows"] == []


def test_a_shadow_that_counts_another_benchmark_is_told_by_its_rows(site: SiteUnderTest) -> None:
    form = site.config["targets"]["egi"]["format"]
    site.config["targets"]["egi"] |= {"shadow": True, "key_style": "jura", "jura_format": form}
    (odd, *rest) = jobs_of(SEPTEMBER, OCTOBER, 10)
    fill(site, [replace(odd, benchmark=None), *rest], schema=1)
    assert site.publish().status == 0
    (month,) = check(site).json["shadows"]
    assert {row["row"].split(", ")[-3] for row in month["different"]} == {"HEPSPEC 1", "HEPscore23 11.5"}
    assert sum(row["ours"] is not None for row in month["different"]) == 1
