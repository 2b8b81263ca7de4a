"""Databases that are retired: jobs that were never sent are refused, or stay visible as lost, with their number."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.arex_databases import RawRow, SampleJob, Writer, generate
from tests.fake_ams.service import FakeAMS
from tests.support.gridengine_files import Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
JOBS = list(generate(21, 30, OCTOBER, NOVEMBER))
EARLIER = list(generate(22, 2, SEPTEMBER, OCTOBER))


def add(path: Path, *jobs: SampleJob) -> None:
    with Writer(path) as writer:
        writer.write_all(jobs)


@pytest.fixture(params=["car", "apel-summary-0.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"]["format"] = request.param
    made.config["records"]["default_vo"] = "ops"
    return made


@pytest.fixture
def second(site: SiteUnderTest) -> Path:
    """The file of a second CE, out of `source`: 5 of its jobs were sent, 12 of October and 2 of September never."""
    file = site.folder / "ce2.db"
    add(site.database(2), *JOBS[:3])
    add(file, *JOBS[3:8])
    site.config["source"]["databases"] = [str(file)]
    assert site.publish().status == 0
    add(file, *JOBS[8:20], *EARLIER)
    del site.config["source"]["databases"]
    site.save()
    return file


def lost(site: SiteUnderTest, *command: str) -> list[tuple[str, int | None]]:
    """What a command shows as lost, by month."""
    found = site.run(*command, "--json").json
    if command[0] == "status":
        found = found["targets"]["egi"]
    if command[0] == "statement":
        found = found["targets"]["egi"]
    if command[0] == "source":
        found = {"never_sent": [lost for one in found["databases"] for lost in one["never_sent"]]}
    assert all(one["target"] == "egi" and one["retired"] for one in found["never_sent"])
    return [(one["month"], one["jobs"]) for one in found["never_sent"]]


def test_a_readable_file_with_jobs_that_were_never_sent_is_not_retired(site: SiteUnderTest, second: Path) -> None:
    run = site.run("source", "retire", str(second))
    assert run.status == 64
    assert "jobs that were never sent (egi: 2 of 2026-09, 12 of 2026-10)" in run.err
    assert "publisher publish --force" in run.err
    listed = {one["file"]: one["retired"] for one in site.run("source", "list", "--json").json["databases"]}
    assert listed[str(second)] is None
    site.config["source"]["databases"] = [str(second)]
    site.save()
    assert site.publish().status == 0
    del site.config["source"]["databases"]
    site.save()
    assert site.run("source", "retire", str(second)).status == 0, "all was sent"
    assert lost(site, "status") == []
    assert site.publish().status == 0


def test_by_force_they_are_lost_and_stay_visible(site: SiteUnderTest, second: Path) -> None:
    run = site.run("source", "retire", str(second), "--force")
    assert run.status == 0
    line = f"14 jobs are lost (2026-09: 2, 2026-10: 12): {second} was retired at "
    assert line in run.out
    assert site.publish().status == 0
    both = [("2026-09", 2), ("2026-10", 12)]
    for _ in range(2):
        assert lost(site, "source", "list") == lost(site, "status") == both
        assert lost(site, "sync", "--check", "--months", "all") == both
        assert lost(site, "statement", "2026-10") == both[1:]
        second.unlink(missing_ok=True)
    for command in (("status",), ("source", "list"), ("sync", "--check", "--months", "all")):
        shown = site.run(*command)
        assert line in shown.out
        assert "no difference\n" not in shown.out
    statement = site.run("statement", "2026-10").out
    assert "Target egi" in statement
    assert "not complete: 12 jobs are lost" in statement
    assert "12 jobs are lost (2026-10: 12)" in statement


def test_a_report_does_not_say_that_all_was_delivered(site: SiteUnderTest, second: Path) -> None:
    october = ("report", "--format", "terminal", "--from", "2026-10", "--to", "2026-10")
    site.run("source", "retire", str(second), "--force")
    assert site.publish().status == 0
    shown = site.run(*october)
    assert shown.status == 0
    assert "Was it all delivered? No: 12 jobs are lost with retired databases." in shown.out
    assert f"! Lost: egi: 12 jobs are lost (2026-10: 12): {second} was retired at " in shown.out
    later = site.run("report", "--format", "terminal", "--from", "2026-11-01", "--to", "2026-11-02")
    assert "lost" not in later.out


def test_a_report_knows_that_a_number_is_unknown(site: SiteUnderTest, second: Path) -> None:
    second.unlink()
    site.run("source", "retire", str(second))
    month = lost(site, "source", "list")[0][0]
    shown = site.run("report", "--format", "terminal", "--from", month, "--to", month).out
    assert "Was it all delivered? Not known: jobs may be lost with retired databases." in shown


def test_jobs_that_are_set_aside_were_never_sent(site: SiteUnderTest) -> None:
    """Two of a second CE, one of which an administrator dropped."""
    file = site.folder / "ce2.db"
    add(site.database(2), *JOBS[:3])
    add(file, *JOBS[3:5], *(replace(job, wall_s=-5) for job in JOBS[5:7]))
    site.config["source"]["databases"] = [str(file)]
    assert site.publish().status == 65
    assert site.run("quarantine", "drop", JOBS[5].job_id).status == 0
    del site.config["source"]["databases"]
    site.save()
    run = site.run("source", "retire", str(file))
    assert (run.status, "(egi: 1 of 2026-10)" in run.err, "quarantine list" in run.err) == (64, True, True)
    assert site.run("source", "retire", str(file), "--force").status == 0
    assert lost(site, "status") == [("2026-10", 1)]
    assert site.publish().status == 0
    statement = site.run("statement", "2026-10", "--json")
    assert (statement.status, statement.json["targets"]["egi"]["quarantined"]) == (65, 1)
    check = site.run("sync", "--check", "--months", "all")
    assert (check.status, "1 set aside: publisher quarantine list --target egi" in check.out) == (65, True)
    assert site.run("quarantine", "drop", JOBS[6].job_id).status == 0
    assert site.run("sync", "--check", "--months", "all").status == 0


def test_rows_that_are_not_whole_were_never_sent(site: SiteUnderTest) -> None:
    """One waits for its last event, and one cannot be read."""
    file = site.folder / "ce2.db"
    add(site.database(2), *JOBS[:3])
    add(file, JOBS[3])
    site.config["source"]["databases"] = [str(file)]
    assert site.publish().status == 0
    just_now = datetime.now(UTC) - timedelta(minutes=1)
    torn = replace(JOBS[4], end_time=int(just_now.timestamp()))
    with Writer(file) as writer:
        writer.accept(torn)
        writer.finish(torn, stop_after="extra")
        writer.write(RawRow(name="", job=JOBS[5], names={"UserID": {"Name": None}}))
        writer.accept(JOBS[6])
    del site.config["source"]["databases"]
    site.save()
    run = site.run("source", "retire", str(file))
    assert (run.status, f"(egi: 1 of 2026-10, 1 of {just_now:%Y-%m})" in run.err) == (64, True), run.err


def test_what_comes_back_is_not_lost_any_more(site: SiteUnderTest, second: Path) -> None:
    site.run("source", "retire", str(second), "--force")
    site.config["source"]["databases"] = [str(second)]
    site.save()
    assert site.publish().status == 0
    for command in (("source", "list"), ("status",), ("sync", "--check", "--months", "all")):
        assert lost(site, *command) == []
    assert site.run("sync", "--check", "--months", "all").status == 0


def test_what_another_database_has_too_is_not_lost(site: SiteUnderTest, second: Path) -> None:
    add(site.database(2), *JOBS[8:18])
    run = site.run("source", "retire", str(second), "--force")
    assert "4 jobs are lost (2026-09: 2, 2026-10: 2)" in run.out


def test_what_a_target_does_not_want_is_not_lost(site: SiteUnderTest, second: Path) -> None:
    site.config["targets"]["egi"]["vos"] = ["nobody"]
    site.save()
    assert site.run("source", "retire", str(second)).status == 0
    assert lost(site, "status") == []


def test_of_a_file_that_does_not_exist_their_number_is_unknown(site: SiteUnderTest, second: Path) -> None:
    second.unlink()
    run = site.run("source", "retire", str(second))
    assert run.status == 0
    (first, *_) = found = lost(site, "source", "list")
    assert {jobs for _, jobs in found} == {None}, "cannot tell is never 0"
    assert found == lost(site, "status")
    assert "their number unknown" in run.out
    assert "complete as far as can be told" in site.run("statement", first[0]).out
    assert "was retired at" not in site.run("statement", "2026-09").out, "until its last success all was sent"


def test_a_file_that_cannot_be_read_is_retired_by_force_only(site: SiteUnderTest, second: Path) -> None:
    second.write_bytes(b"no database" * 100)
    run = site.run("source", "retire", str(second))
    assert run.status == 66
    assert "cannot be told" in run.err
    assert "--force" in run.err
    assert site.run("source", "retire", str(second), "--force").status == 0
    assert {jobs for _, jobs in lost(site, "status")} == {None}


def test_a_batch_system_is_retired_by_its_name(site: SiteUnderTest) -> None:
    log = site.folder / "common" / "accounting"
    log.parent.mkdir()
    write(log, [colon(replace(Entry(), job=900 + number)) for number in range(3)])
    arex = site.config["source"] | {"name": "ce"}
    batch = {"type": "gridengine", "name": "hpc", "paths": [str(log.parent)], "arc_databases": []}
    add(site.database(2), *JOBS[:3])
    site.config["source"] = [arex, batch]
    site.config["targets"]["egi"]["exclude_vos"] = ["ops"]
    assert site.publish().status == 0
    del site.config["targets"]["egi"]["exclude_vos"]
    site.config["source"] = [arex]
    site.save()
    run = site.run("source", "retire", "hpc")
    assert run.status == 64
    assert "hpc: can be read, and has jobs that were never sent (egi: 3 of " in run.err
    assert site.run("source", "retire", "hpc", "--force").status == 0
    assert [jobs for _, jobs in lost(site, "status")] == [3]


def test_jobs_of_a_retired_database_are_not_called_purged(site: SiteUnderTest, second: Path) -> None:
    """Of the second CE's 5 delivered jobs, the first CE has one too by now, and has purged one of its own 3."""
    assert site.run("source", "retire", str(second), "--force").status == 0
    add(site.database(2), JOBS[3])
    with site.arex() as arex:
        arex.connection.execute("DELETE FROM AAR WHERE JobID = ?", [JOBS[0].job_id])
    assert site.publish().status == 0
    rows = site.run("sync", "--check", "--months", "all", "--json").json["rows"]
    counts = [sum(row[name] for row in rows) for name in ("delivered", "purged", "retired")]
    assert counts == [8, 1, 4]
    shown = site.run("sync", "--check", "--months", "all").out
    assert "1 purged at the CE" in shown
    assert "of retired databases" in shown
    statement = site.run("statement", "2026-10", "--json").json["targets"]["egi"]
    assert (statement["purged"], statement["retired"]) == (1, 4)
