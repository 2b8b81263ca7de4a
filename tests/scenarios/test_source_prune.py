"""Old jobs of a batch system taken out: what was delivered stays, nothing comes back, and nobody is told a wrong number."""

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
    made.config["source"] = [
        {"type": "gridengine", "cluster": CLUSTER, "paths": [str(tmp_path / "common")], "keep": "13 months"}
    ]
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


def test_a_late_job_of_a_pruned_month_is_published_and_added(site: SiteUnderTest) -> None:
    records(site)
    more(site, job(6, OLD + 600))
    assert records(site)["egi"] == 1
    assert totals(site)[MONTH] == 4
    assert site.run("sync", "--target", "sums", "--months", "all").status == 0


def test_what_a_target_has_not_accepted_stays(site: SiteUnderTest) -> None:
    site.fake.faults.always(Fault.status(503))
    site.config["targets"]["sums"]["attempts"] = 1
    assert site.publish().status == 75
    assert rows(site) == ["1", "2", "3", "4", "5"]
    assert site.run("source", "prune", "--json").json["sources"]["gridengine"] == {
        "before": site.run("source", "prune", "--json").json["sources"]["gridengine"]["before"],
        "jobs": 0,
        "kept": 3,
    }
    site.fake.faults.clear()
    records(site)
    run = site.run("source", "prune", "gridengine")
    assert (run.status, "3 jobs that ended before" in run.out) == (0, True)
    assert rows(site) == ["4", "5"]


def test_what_was_read_last_is_pruned_too(site: SiteUnderTest) -> None:
    more(site, job(6, OLD + 6))
    records(site)
    run = site.run("source", "prune", "--json")
    assert (rows(site), run.json["sources"]["gridengine"]["kept"]) == (["4", "5"], 0)


def test_without_the_key_nothing_is_pruned(site: SiteUnderTest) -> None:
    del site.config["source"][0]["keep"]
    records(site)
    assert "no source has the key `keep`" in site.run("source", "prune").out
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
    ],
)
def test_questions_that_need_pruned_jobs_are_refused(words: tuple[str, ...], site: SiteUnderTest) -> None:
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    records(site)
    sent = len(site.fake.messages("accounting", "gLite-APEL"))
    run = site.run(*words, "--from", MONTH, "--to", MONTH)
    assert run.status == 66
    assert f"source gridengine: jobs that ended in {MONTH} were pruned" in run.err
    assert len(site.fake.messages("accounting", "gLite-APEL")) == sent
    later = site.run(*words, "--from", f"{NOW.year - 2}-06", "--to", f"{NOW:%Y-%m}")
    assert later.status == 0, later.err


def test_counts_of_all_months_are_not_compared_with_what_is_gone(site: SiteUnderTest) -> None:
    records(site)
    run = site.run("sync", "--check", "--target", "sums", "--months", "all")
    assert (run.status, "were pruned" in run.err) == (66, True)
    assert site.run("sync", "--check", "--target", "sums", "--months", "12").status == 0


def test_a_new_benchmark_does_not_shrink_a_pruned_month(site: SiteUnderTest) -> None:
    """Its totals are summed up again, and most of its jobs are gone."""
    records(site)
    site.config["records"]["benchmark"]["value"] = 20
    site.save()
    site.publish("--accept-key-change")
    assert totals(site)[MONTH] == 3


@pytest.mark.parametrize("keep", ["13", "1 year", "0 months"])
def test_a_time_that_is_none(keep: str, site: SiteUnderTest) -> None:
    site.config["source"][0]["keep"] = keep
    run = site.run("config", "check")
    assert (run.status, "is no number of months; write 13 months" in run.err) == (78, True)


def test_arex_s_own_database_is_not_pruned(site: SiteUnderTest) -> None:
    site.config["source"] = {"type": "arex", "control_dir": str(site.control), "keep": "13 months"}
    run = site.run("config", "check")
    assert (run.status, "source.keep: is a key of a batch system" in run.err) == (78, True)


def test_what_is_shown_reads_back(site: SiteUnderTest) -> None:
    shown = site.run("config", "show").out
    path = site.folder / "shown.yaml"
    path.write_text(shown)
    assert site.run("--config", str(path), "config", "show").out == shown
    assert "keep: 13 months" in shown
