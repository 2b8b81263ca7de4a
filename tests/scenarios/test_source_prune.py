"""Old months closed, and their jobs taken out: what was delivered stays, nothing comes back, and no number is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.batch_stores import records as stored
from tests.support.gridengine_files import CLUSTER, Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

NOW = datetime.now(UTC)
OLD = int(datetime(NOW.year - 2, 5, 10, 12, tzinfo=UTC).timestamp())
MONTH = f"{NOW.year - 2}-05"
RECENT = int((NOW - timedelta(days=40)).timestamp())


def job(number: int, ended: int) -> bytes:
    return colon(replace(Entry(), job=number, submitted=ended - 700, started=ended - 600, ended=ended))


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Three old jobs and two of last month, for a target of single records and one of totals."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    (tmp_path / "common").mkdir()
    made.config["source"] = [{"type": "gridengine", "cluster": CLUSTER, "paths": [str(tmp_path / "common")]}]
    made.config["keep"] = "13 months"
    made.config["targets"]["sums"] = {**made.config["targets"]["egi"], "format": "apel-summary-0.4", "sync": True}
    spool: dict[str, Any] = {
        "type": "spool",
        "path": str(tmp_path / "spool"),
        "format": "car",
        "start": "all",
        "every": "1s",
    }
    spool["single_months"] = 0  # files are never purged
    made.config["targets"]["egi"] = spool
    (tmp_path / "spool").mkdir()
    write(
        made.folder / "common" / "accounting", [*(job(n, OLD + n) for n in (1, 2, 3)), job(4, RECENT), job(5, RECENT)]
    )
    return made


def rows(site: SiteUnderTest) -> list[str]:
    return sorted(job.local_id for job in stored(site.state.with_name("jobs.db")))


def more(site: SiteUnderTest, *lines: bytes) -> None:
    with (site.folder / "common" / "accounting").open("ab") as file:
        file.writelines(lines)


def records(site: SiteUnderTest) -> dict[str, Any]:
    run = site.publish()
    assert run.status == 0, run.err
    return {name: target["records"] for name, target in run.json["targets"].items()}


def totals(site: SiteUnderTest) -> dict[str, int]:
    """Jobs of each month, as the receiver has them last."""
    return {f"{row['Year']}-{row['Month']:02}": row["NumberOfJobs"] for row in site.received(with_openssl=False)}


def test_what_every_target_has_is_pruned_by_the_round(site: SiteUnderTest) -> None:
    assert records(site)["egi"] == 5
    assert rows(site) == ["4", "5"]
    assert records(site) == {"egi": 0, "sums": 0}
    assert totals(site)[MONTH] == 3
    run = site.run("status", "--json")
    assert (run.status, run.json["targets"]["egi"]["delivered"]) == (0, 5)


def test_an_old_file_read_again_brings_nothing_back(site: SiteUnderTest) -> None:
    records(site)
    old = (site.folder / "common" / "accounting").read_bytes()
    write(site.folder / "common" / "accounting.1", [job(9, RECENT), old])
    assert records(site)["egi"] == 1
    assert rows(site) == ["4", "5", "9"]
    assert totals(site)[MONTH] == 3


def test_rule_20_a_late_job_of_a_closed_month_is_not_loaded(site: SiteUnderTest) -> None:
    records(site)
    more(site, job(6, OLD + 600))
    run = site.publish()
    assert "1 row: not loaded, as the months in which they ended are closed" in run.err
    assert totals(site)[MONTH] == 3
    assert rows(site) == ["4", "5"]
    assert site.run("sync", "--target", "sums", "--months", "all").status == 0


def test_what_a_target_has_not_accepted_stays(site: SiteUnderTest) -> None:
    site.fake.faults.always(Fault.status(503))
    site.config["targets"]["sums"]["attempts"] = 1
    assert site.publish().status == 75
    assert rows(site) == ["1", "2", "3", "4", "5"]
    kept = f"{MONTH} stays open: not every target has accepted 3 jobs of it, or had them dropped"
    assert site.run("source", "prune", "--json").json == {
        "before": None,
        "entries": 0,
        "jobs": 0,
        "reason": kept,
    }
    site.fake.faults.clear()
    records(site)
    run = site.run("source", "prune")
    assert (run.status, "6 entries of runs summed up, 3 jobs pruned" in run.out) == (0, True), run.out
    assert rows(site) == ["4", "5"]


def test_what_is_set_aside_stays_until_it_is_dropped(site: SiteUnderTest) -> None:
    site.config["records"].pop("benchmark", None)
    site.publish()
    listed = [
        one
        for one in site.run("quarantine", "list", "--json").json["quarantined"]
        if one["local_id"] in ("1", "2", "3")
    ]
    assert listed
    assert "not every target has accepted" in site.run("source", "prune", "--json").json["reason"]
    site.run("quarantine", "drop", *(str(one["number"]) for one in listed))
    site.publish()
    assert site.run("source", "prune", "--json").json["jobs"] == 3
    assert rows(site) == ["4", "5"]


def test_what_was_read_last_is_pruned_too(site: SiteUnderTest) -> None:
    more(site, job(6, OLD + 6))
    records(site)
    assert rows(site) == ["4", "5"]
    assert site.run("source", "prune").out.startswith("no month is older")


def test_without_the_key_nothing_is_pruned(site: SiteUnderTest) -> None:
    del site.config["keep"]
    records(site)
    run = site.run("source", "prune")
    assert (run.status, "the configuration has no such key" in run.out) == (0, True)
    assert rows(site) == ["1", "2", "3", "4", "5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("republish", "--yes"),
        ("republish", "--dry-run", "--exact", "--target", "egi"),
        ("stats",),
        ("charge",),
        ("export",),
        ("report", "--format", "terminal"),
        ("statement", MONTH),
    ],
)
def test_questions_that_need_pruned_jobs_are_refused(words: tuple[str, ...], site: SiteUnderTest) -> None:
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    records(site)
    sent = len(site.fake.messages("accounting", "gLite-APEL"))
    window = () if words[0] == "statement" else ("--from", MONTH, "--to", MONTH)
    run = site.run(*words, *window)
    reasons = {64: "months before", 66: "jobs that ended before"}
    status = 64 if words[0] == "republish" else 66
    assert run.status == status
    assert reasons[status] in run.err
    assert status == 64 or "`publisher sync --check --months all` compares the numbers of jobs" in run.err
    assert len(site.fake.messages("accounting", "gLite-APEL")) == sent
    if not window:
        assert site.run("statement", f"{NOW:%Y-%m}").status in (0, 65)
        return
    later = site.run(*words, "--from", f"{NOW.year - 1}-12", "--to", f"{NOW:%Y-%m}")
    assert later.status == 0, later.err


def test_rule_20_closed_months_are_compared_by_count(site: SiteUnderTest) -> None:
    records(site)
    site.run("sync", "--target", "sums", "--months", "all")
    run = site.run("sync", "--check", "--target", "sums", "--months", "all", "--json")
    assert run.status == 0, run.out
    (closed,) = (row for row in run.json["rows"] if row["month"] == MONTH)
    assert (closed["delivered"], closed["told"], closed["purged"]) == (3, 3, 3)


def test_a_new_benchmark_does_not_shrink_a_pruned_month(site: SiteUnderTest) -> None:
    """Its totals are summed up again, and most of its jobs are gone."""
    records(site)
    site.config["records"]["benchmark"]["value"] = 20
    site.save()
    site.publish("--accept-key-change")
    assert totals(site)[MONTH] == 3


@pytest.mark.parametrize("keep", ["13", "1 year"])
def test_a_time_that_is_none(keep: str, site: SiteUnderTest) -> None:
    site.config["keep"] = keep
    run = site.run("config", "check")
    assert (run.status, "is no number of months; write 24 months" in run.err) == (78, True)


def test_a_time_that_is_too_short(site: SiteUnderTest) -> None:
    site.config["keep"] = "12 months"
    run = site.run("config", "check")
    assert (run.status, "is too short; write 13 months or more" in run.err) == (78, True)


def test_a_source_has_no_key_of_its_own(site: SiteUnderTest) -> None:
    site.config["source"][0]["keep"] = "13 months"
    run = site.run("config", "check")
    assert (run.status, "write it at the top of the file" in run.err) == (78, True)


def test_what_is_shown_reads_back(site: SiteUnderTest) -> None:
    shown = site.run("config", "show").out
    path = site.folder / "shown.yaml"
    path.write_text(shown)
    assert site.run("--config", str(path), "config", "show").out == shown
    assert "keep: 13 months" in shown
