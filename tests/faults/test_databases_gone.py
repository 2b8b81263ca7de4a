"""A database that was read and is not there any more: said in every round until somebody retires it; the rest goes out."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob, Schema, Writer, generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.metrics_site import WatchedSite
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

JOBS = list(generate(16, 12, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))


def add(path: Path, *jobs: SampleJob, schema: Schema = 2) -> None:
    with Writer(path, schema=schema) as writer:
        writer.write_all(jobs)


def delivered(site: SiteUnderTest) -> set[str]:
    return {row["LocalJobId"] for row in site.received()}


def local_ids(*jobs: SampleJob) -> set[str]:
    return {job.local_job_id or job.job_id for job in jobs}


def last_success(site: SiteUnderTest) -> str:
    said: str = site.run("status", "--json").json["targets"]["egi"]["last_success"]
    return said


def outcome(run: Run) -> tuple[int, str, str | None]:
    target = run.json["targets"]["egi"]
    return run.status, target["outcome"], target["reason"]


@pytest.fixture
def gone(site: SiteUnderTest) -> Path:
    """A site of both schemas whose newer database was moved away after a round; one job came to the other since then."""
    add(site.database(1), *JOBS[:3], schema=1)
    add(site.database(2), *JOBS[3:6])
    assert outcome(site.publish())[:2] == (0, "ok")
    site.database(2).rename(site.folder / "moved.db")
    add(site.database(1), JOBS[6], schema=1)
    return site.database(2)


def test_it_is_66_with_its_name_and_the_rest_goes_out(site: SiteUnderTest, gone: Path) -> None:
    before = last_success(site)
    status, word, reason = outcome(site.publish())
    assert (status, word) == (66, "error")
    assert reason is not None
    assert f"{gone}: " in reason
    assert f"publisher source retire {gone}" in reason
    assert delivered(site) == local_ids(*JOBS[:7])
    assert outcome(site.publish())[:2] == (66, "error"), "and in every further round"
    assert last_success(site) == before


def test_status_nagios_and_doctor_tell_it(site: SiteUnderTest, gone: Path) -> None:
    site.publish()
    told = site.run("status", "--json")
    assert (told.status, told.json["targets"]["egi"]["missing_databases"]) == (66, [str(gone)])
    assert f"source retire {gone}" in told.err
    line = site.run("status", "--nagios")
    assert line.status == 2
    assert line.out.startswith(f"PUBLISHER CRITICAL - egi: {gone}: ")
    doctor = site.run("doctor", "--json")
    (found,) = (one for one in doctor.json["findings"] if one["name"] == "known databases")
    assert (found["state"], doctor.status) == ("failure", 66)
    assert str(gone) in found["found"]
    assert f"publisher source retire {gone}" in found["advice"]


def test_the_list_of_sources_ends_as_status_does(site: SiteUnderTest, gone: Path) -> None:
    """Also for the source alone, and for a name in `source` that was never there."""
    run = site.run("source", "list")
    assert (run.status, run.err.count(f"{gone}: is gone")) == (66, 1)
    site.config["source"] |= {"name": "ce", "databases": [str(site.folder / "never.db")]}
    site.save()
    for command in (("source", "list"), ("source", "list", "ce")):
        run = site.run(*command)
        assert (run.status, run.err.count(f"{gone}: is gone")) == (66, 1), command
        assert "missing" in run.out
        assert "never.db" in run.err
    del site.config["source"]["databases"]
    site.save()
    assert site.run("source", "retire", str(gone)).status == 0
    assert site.run("source", "list").status == site.run("status").status == 0


def test_a_statement_does_not_call_its_jobs_purged(site: SiteUnderTest, gone: Path) -> None:
    for form in ("text", "html"):
        run = site.run("statement", "2026-10", "--format", form)
        assert run.status == 66
        assert "purged" not in run.out
        assert "delivered, not in any database that is there" in run.out
    assert site.run("source", "retire", str(gone)).status == 0
    assert "delivered, purged at the CE since" in site.run("statement", "2026-10").out


OCTOBER = ("--from", "2026-10", "--to", "2026-10")


@pytest.mark.parametrize(
    "command",
    [
        ("stats",),
        ("stats", "--json"),
        ("stats", "-o", "jobids"),
        ("export",),
        ("report", "--format", "terminal", *OCTOBER),
        ("charge", *OCTOBER),
        ("charge", "--json", "--jobs", *OCTOBER),
        ("sync", "--check"),
        ("sync", "--check", "--json"),
    ],
)
def test_who_counts_says_that_the_answer_is_not_complete(
    site: SiteUnderTest, gone: Path, command: tuple[str, ...]
) -> None:
    site.config["records"]["charges"] = [{"formula": "NumNodes * RunTime", "unit": "nodeh"}]
    site.save()
    run = site.run(*command)
    assert run.status == 66
    assert run.out
    assert ("Incomplete" in run.out) == (command[0] == "report")
    assert f"the answer is not complete: {gone}: is gone" in run.err
    assert f"publisher source retire {gone}" in run.err
    assert "no difference" not in run.out
    assert "purged" not in site.run("sync", "--check").out
    assert site.run("source", "retire", str(gone)).status == 0
    run = site.run(*command)
    assert "not complete" not in run.err
    assert run.status == (65 if command[0] == "sync" else 0)  # one job came to the other since then


def test_a_job_of_the_missing_database_is_known_until_it_is_retired(site: SiteUnderTest, gone: Path) -> None:
    for command in (("job", "info"), ("explain",)):
        found = site.run(*command, JOBS[3].job_id)
        assert found.status == 0
        assert JOBS[3].job_id in found.out
        # Of another one nobody can tell whether it is there.
        assert site.run(*command, "unheard-of").status == 66
    assert site.run("stats", "--filter-vo", "unheard-of").status == 66
    for job in (JOBS[0], JOBS[3]):
        found = site.run("job", "info", job.job_id)
        assert (found.status, f"publisher source retire {gone}" in found.err) == (0, True)
    assert site.run("source", "retire", str(gone)).status == 0
    assert site.run("job", "info", JOBS[3].job_id).status == 64
    assert site.run("explain", JOBS[3].job_id).status == 64
    assert site.run("stats", "--filter-vo", "unheard-of").status == 64


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_republish_does_not_take_its_rows_for_gone(site: SiteUnderTest, form: str, how: str) -> None:
    site.config["targets"]["egi"]["format"] = form
    add(site.database(1), *JOBS[:3], schema=1)
    add(site.database(2), *JOBS[3:6])
    assert site.publish().status == 0
    before = len(site.fake.messages(PROJECT, TOPIC))
    site.database(2).rename(site.folder / "moved.db")
    run = site.run("republish", how, "--accept-key-change", *OCTOBER)
    assert (run.status, run.out) == (66, "")
    assert f"nothing was sent: {site.database(2)}: is gone" in run.err
    assert f"publisher source retire {site.database(2)}" in run.err
    assert len(site.fake.messages(PROJECT, TOPIC)) == before
    (site.folder / "moved.db").rename(site.database(2))
    assert site.run("republish", how, *OCTOBER).status == 0


def test_a_rehearsal_tells_it_too_and_writes_nothing(site: SiteUnderTest, gone: Path) -> None:
    assert site.run("stats").status == 66  # it loads what can be read, as a rehearsal does
    listed = site.run("source", "list", "--json").out
    assert outcome(site.publish("--dry-run"))[:2] == (66, "error")
    assert site.run("source", "list", "--json").out == listed


def test_retired_it_is_not_missed_and_success_counts_again(site: SiteUnderTest, gone: Path) -> None:
    site.publish()
    before = last_success(site)
    done = site.run("source", "retire", str(gone), "--json")
    assert done.status == 0
    assert [one["file"] for one in done.json["databases"]] == [str(gone)]
    listed = {one["file"]: one for one in site.run("source", "list", "--json").json["databases"]}
    assert set(listed) == {str(site.database(1)), str(gone)}
    assert listed[str(gone)]["retired"] is not None
    assert not listed[str(gone)]["there"]
    assert listed[str(site.database(1))]["retired"] is None
    assert listed[str(site.database(1))]["last_seen"] >= listed[str(gone)]["last_seen"]
    assert outcome(site.publish())[:2] == (0, "nothing")
    assert last_success(site) >= before
    assert site.run("status").status == 0
    assert site.run("status", "--nagios").status == 0
    (found,) = (one for one in site.run("doctor", "--json").json["findings"] if one["name"] == "known databases")
    assert found["state"] == "ok"
    table = site.run("source", "list")
    assert (table.status, "retired" in table.out, str(gone) in table.out) == (0, True, True)


def test_what_comes_back_is_read_and_no_longer_retired(site: SiteUnderTest, gone: Path) -> None:
    site.publish()
    site.run("source", "retire", str(gone))
    (site.folder / "moved.db").rename(gone)
    add(gone, JOBS[7])
    again = site.publish()
    assert outcome(again)[:2] == (0, "ok")
    assert f"{gone}: was retired and is there again" in again.err
    assert delivered(site) == local_ids(*JOBS[:8])
    assert all(one["retired"] is None for one in site.run("source", "list", "--json").json["databases"])
    gone.unlink()
    assert outcome(site.publish())[:2] == (66, "error"), "missed as before"


def test_a_job_that_ran_when_its_database_went_is_published_when_it_comes_back(site: SiteUnderTest) -> None:
    add(site.database(1), JOBS[0], schema=1)
    with Writer(site.database(2)) as writer:
        writer.write(JOBS[1])
        writer.accept(JOBS[2])
        writer.write(JOBS[3])
    assert site.publish().status == 0
    site.database(2).rename(site.folder / "moved.db")
    assert site.publish().status == 66
    (site.folder / "moved.db").rename(site.database(2))
    with Writer(site.database(2)) as writer:
        writer.finish(JOBS[2])
    assert outcome(site.publish())[:2] == (0, "ok")
    assert delivered(site) == local_ids(*JOBS[:4])


@pytest.mark.parametrize("named", ["pattern", "pattern each", "by name"])
def test_one_file_of_several(site: SiteUnderTest, named: str) -> None:
    files = [site.folder / f"ce{number}" / "accounting_v2.db" for number in (1, 2)]
    for file, job in zip(files, JOBS, strict=False):
        file.parent.mkdir()
        add(file, job)
    site.config["source"] = {
        "type": "arex",
        "databases": {
            "pattern": [str(site.folder / "ce*" / "*.db")],
            "pattern each": [str(file.parent / "*.db") for file in files],
            "by name": [str(file) for file in files],
        }[named],
    }
    assert site.publish().status == 0
    files[0].unlink()
    add(files[1], JOBS[2])
    status, word, reason = outcome(site.publish())
    assert (status, word) == (66, "error")
    assert reason is not None
    assert reason.count(str(files[0])) == 2, "what is gone, and the command that retires it"
    assert delivered(site) == local_ids(*JOBS[:3])
    assert site.run("source", "retire", str(files[0])).status == 0
    assert outcome(site.publish())[:2] == (0, "nothing")


def test_a_name_that_never_was_there_is_66_and_the_rest_goes_out(site: SiteUnderTest) -> None:
    add(site.database(2), JOBS[0])
    never = site.folder / "ce02.db"
    site.config["source"]["databases"] = [str(never)]
    status, word, reason = outcome(site.publish())
    assert (status, word) == (66, "error")
    assert reason is not None
    assert f"{never}: there is no such file; correct source" in reason
    assert delivered(site) == local_ids(JOBS[0])
    assert site.run("source", "retire", str(never)).status == 64


def test_a_fresh_ce_never_had_the_older_one(site: SiteUnderTest) -> None:
    add(site.database(2), JOBS[0])
    assert outcome(site.publish())[:2] == (0, "ok")
    assert [one["file"] for one in site.run("source", "list", "--json").json["databases"]] == [str(site.database(2))]
    add(site.database(1), JOBS[1], schema=1)
    assert outcome(site.publish())[:2] == (0, "ok")


def test_a_database_without_a_single_job_is_missed_too(site: SiteUnderTest) -> None:
    add(site.database(1), JOBS[0], schema=1)
    add(site.database(2))
    assert site.publish().status == 0
    site.database(2).unlink()
    assert site.publish().status == 66


def test_rotation_and_migration_alarm_nobody(site: SiteUnderTest) -> None:
    accounting = site.database(1).parent
    site.config["source"] = {"type": "arex", "databases": [str(accounting / "accounting*.db*")]}
    add(site.database(1), *JOBS[:3], schema=1)
    assert outcome(site.publish())[:2] == (0, "ok")
    add(site.database(2), *JOBS[:4])  # migrated; the old file stays
    assert outcome(site.publish())[:2] == (0, "ok")
    # `arcctl accounting database rotate` of ARC 7 clones the file under a dated name, and takes old rows out of both.
    add(accounting / "accounting_v2.db-2026-10-20", *JOBS[:2])
    site.database(2).unlink()
    add(site.database(2), *JOBS[2:5])
    assert outcome(site.publish())[:2] == (0, "ok")
    # By hand: the file gets another name, and A-REX makes a new one with the next job.
    site.database(2).rename(accounting / "accounting_v2-old.db")
    assert outcome(site.publish())[:2] == (0, "nothing")
    add(site.database(2), JOBS[5])
    assert outcome(site.publish())[:2] == (0, "ok")
    assert delivered(site) == local_ids(*JOBS[:6])
    assert len(site.received()) == 6


def test_a_copy_is_not_the_database_that_is_gone(site: SiteUnderTest) -> None:
    """A backup that the pattern finds holds everything that was read, and nothing of what A-REX writes from now on."""
    site.config["source"] = {"type": "arex", "databases": [str(site.database(2).parent / "*.db")]}
    add(site.database(2), *JOBS[:2])
    assert site.publish().status == 0
    (site.database(2).parent / "backup.db").write_bytes(site.database(2).read_bytes())
    site.database(2).unlink()
    assert site.publish().status == 66


def test_the_same_file_by_another_path_is_the_same(site: SiteUnderTest) -> None:
    add(site.database(2), JOBS[0])
    assert site.publish().status == 0
    (site.folder / "link").symlink_to(site.control)
    site.config["source"]["control_dir"] = str(site.folder / "link")
    site.save()
    assert outcome(site.publish())[:2] == (0, "nothing")


def test_a_file_that_the_configuration_no_longer_names_is_told_until_it_is_retired(site: SiteUnderTest) -> None:
    other = site.folder / "ce02.db"
    add(site.database(2), JOBS[0])
    add(other, JOBS[1])
    site.config["source"]["databases"] = [str(other)]
    assert site.publish().status == 0
    del site.config["source"]["databases"]
    site.save()
    status, _, reason = outcome(site.publish())
    assert status == 66
    assert reason is not None
    assert f"{other}: is there, but no longer in `source`" in reason
    assert site.run("source", "retire", str(other)).status == 0
    assert outcome(site.publish())[:2] == (0, "nothing")


def test_what_cannot_be_retired_is_64(site: SiteUnderTest) -> None:
    add(site.database(2), JOBS[0])
    site.publish()
    there = site.run("source", "retire", str(site.database(2)))
    assert there.status == 64
    assert "is there and is read" in there.err
    unknown = site.run("source", "retire", "/nowhere/accounting.db")
    assert unknown.status == 64
    assert str(site.database(2)) in unknown.err
    relative = os.path.relpath(site.database(2))
    assert "is there and is read" in site.run("source", "retire", relative).err


def test_a_ledger_without_a_round_knows_none(site: SiteUnderTest) -> None:
    add(site.database(2), JOBS[0])
    listed = site.run("source", "list", "--json")
    assert (listed.status, listed.json["databases"], [*listed.json["sources"]]) == (0, [], ["arex"])


def test_completion_offers_what_is_missing(site: SiteUnderTest, gone: Path) -> None:
    site.publish()
    assert site.run("complete", "databases").out == f"{gone}\n"
    assert site.run("complete", "databases", "/nowhere").out == ""


def test_trace_says_that_it_cannot_tell(site: SiteUnderTest, gone: Path) -> None:
    site.publish()
    traced = site.run("trace", "nobody-knows-this-job")
    assert traced.status == 66
    assert str(gone) in traced.err


def test_trace_of_a_job_that_is_known_nowhere_is_64(site: SiteUnderTest) -> None:
    with site.arex() as arex:
        arex.write(JOBS[0])
        arex.accept(JOBS[1])
    site.publish()
    for output in ((), ("--json",)):
        unknown = site.run("trace", "nobody-knows-this-job", *output)
        assert (unknown.status, unknown.out) == (64, "")
        assert "neither in the ledger nor in the accounting data" in unknown.err
    assert site.run("trace", JOBS[0].job_id).status == 0
    running = site.run("trace", JOBS[1].job_id)
    assert running.status == 0
    assert "has not finished" in running.out


def test_the_metric(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    watched = WatchedSite(site)
    add(site.database(1), JOBS[0], schema=1)
    add(site.database(2), JOBS[1])
    watched.round()
    assert watched.told()["publisher_missing_databases", "egi"] == 0
    site.database(2).unlink()
    watched.round(force=True)
    assert watched.told()["publisher_missing_databases", "egi"] == 1
