"""`plan`: what the next round would do, by month and reason; `publish --dry-run` is the same; nothing leaves or is written."""

from __future__ import annotations

import json
import random
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.cli import main
from publisher.model.text import plural
from tests.arex_databases import SampleJob, generate
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, Run
from tests.support.spool_sites import messages, site_with

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
JOBS = list(generate(1, 12, OCTOBER, NOVEMBER))
WINDOW = ("--from", "2026-10", "--to", "2026-10")
KINDS = ("add", "change", "keep", "retract", "empty", "hold", "set aside")


def make(folder: Path, pki: PKI, form: str = "car", **target: Any) -> ConfiguredSite:
    return site_with(folder / "site", pki, form, {}, target)


def lines(run: Run) -> dict[tuple[str, str], dict[str, Any]]:
    """The lines of a plan by month and action, where no two have both alike."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in run.json["targets"]["here"]["actions"]:
        at = str(line["month"]), line["action"]
        assert at not in found, "two reasons"
        found[at] = line
    return found


def counts(run: Run) -> list[tuple[Any, ...]]:
    """What is done and why, without the examples."""
    actions = run.json["targets"]["here"]["actions"]
    return [(one["month"], one["action"], one["jobs"], one["rows"], one["reason"]) for one in actions]


def plan(site: ConfiguredSite, *words: str) -> Run:
    return site.run("plan", "--json", *words)


def files(site: ConfiguredSite) -> dict[str, bytes]:
    """Everything that a round may write, but for the job store, a cache, and what SQLite keeps of readers."""
    places = (site.folder / "outgoing", site.state.parent)
    found = {str(file): file.read_bytes() for place in places for file in place.rglob("*") if file.is_file()}
    return {
        name: content
        for name, content in found.items()
        if content and not name.endswith("-shm") and "jobs.db" not in name
    }


def rewrite(site: ConfiguredSite, *jobs: SampleJob) -> None:
    """The accounting data has other values of jobs by now, in their rows."""
    with site.arex() as arex:
        for job in jobs:
            arex.connection.execute("DELETE FROM AAR WHERE JobID = ?", (job.job_id,))
        arex.write_all(jobs)


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    return make(tmp_path, pki)


def test_new_jobs_are_added_with_three_examples(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:5])
    run = plan(site)
    assert (run.status, run.json["exit"]) == (0, 0)
    (line,) = run.json["targets"]["here"]["actions"]
    assert (line["month"], line["action"], line["jobs"], line["rows"]) == ("2026-10", "add", 5, None)
    assert line["reason"] == "the receiver does not have them yet"
    assert [one["job"] for one in line["examples"]] == [job.job_id for job in JOBS[:3]]


def test_a_plan_names_jobs_of_each_month_for_people(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:2], *generate(2, 2, SEPTEMBER, OCTOBER))
    written = site.run("plan").out
    assert "here    2026-09  add     2     -     the receiver does not have them yet" in written
    assert f"here, 2026-10, add: job {JOBS[0].job_id}" in written
    assert written.endswith("dry run: nothing was sent or recorded\n")


@pytest.mark.parametrize("form", ["car", "ogf-ur", "apel-summary-0.4"])
def test_a_dry_run_is_the_plan_and_writes_nothing(tmp_path: Path, pki: PKI, form: str) -> None:
    site = make(tmp_path, pki, form)
    site.fill(*JOBS[:5])
    assert plan(site).status == 0
    assert files(site) == {}
    assert site.run("publish").status == 0
    site.fill(*JOBS[5:8])
    before = files(site)
    for words in ((), ("--json",)):
        planned, rehearsed = site.run("plan", *words), site.run("publish", "--dry-run", *words)
        assert (planned.status, planned.out) == (rehearsed.status, rehearsed.out) == (0, planned.out)
    assert files(site) == before


def test_a_job_that_changed_is_a_change(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:5])
    assert site.run("publish").status == 0
    rewrite(site, replace(JOBS[1], wall_s=JOBS[1].wall_s + 60))
    found = lines(site.run("publish", "--force", "--dry-run", "--json"))
    assert found.keys() == {("2026-10", "change")}
    line = found["2026-10", "change"]
    assert (line["jobs"], line["reason"]) == (1, "their own data changed after they were sent")
    assert [one["job"] for one in line["examples"]] == [JOBS[1].job_id]


def test_nothing_to_do_is_an_empty_plan(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:5])
    site.run("publish")
    run = plan(site)
    assert (run.status, run.json["targets"]["here"]["actions"]) == (0, [])


def test_a_plan_does_not_wait_until_the_target_is_due(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, every="24h")
    site.fill(*JOBS[:2])
    assert site.run("publish").status == 0
    site.fill(*JOBS[2:4])
    assert lines(plan(site))["2026-10", "add"]["jobs"] == 2
    assert site.run("publish", "--json").json["targets"]["here"]["records"] == 0


def test_jobs_that_break_a_rule_are_set_aside(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:3], replace(JOBS[4], benchmark="fast"))
    run = plan(site)
    assert run.status == 0  # nothing waits for consent
    line = lines(run)["2026-10", "set aside"]
    assert (line["jobs"], line["reason"]) == (1, "they break the rule benchmark-unreadable")
    (example,) = line["examples"]
    assert example["job"] == JOBS[4].job_id
    assert "fast" in example["reason"]


def alone() -> SampleJob:
    """A job that is alone in its row of totals, whatever the others do."""
    return replace(JOBS[0], user="/CN=alone", fqans=(), cpus=3)


def moved(job: SampleJob) -> SampleJob:
    """The job was corrected, and belongs to another row."""
    return replace(job, cpus=job.cpus + 4, wall_s=job.wall_s + 60)


def test_a_row_that_loses_its_last_job_is_emptied(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, "apel-summary-0.4")
    site.fill(alone(), *JOBS[1:5])
    assert site.run("publish").status == 0
    rewrite(site, moved(alone()))
    run = site.run("publish", "--force", "--dry-run", "--json")
    found = lines(run)
    assert run.status == 0
    assert (found["2026-10", "change"]["jobs"], found["2026-10", "change"]["rows"]) == (1, 2)
    empty = found["2026-10", "empty"]
    assert (empty["jobs"], empty["rows"]) == (0, 1)
    (example,) = empty["examples"]
    assert "user /CN=alone" in example["row"]
    assert "processors 3" in example["row"]


@pytest.mark.parametrize("form", ["apel-summary-0.2", "car"])
def test_a_row_that_would_stay_is_held(tmp_path: Path, pki: PKI, form: str) -> None:
    site = make(tmp_path, pki, form)
    site.fill(alone(), *JOBS[1:5])
    assert site.run("publish").status == 0
    rewrite(site, moved(alone()), replace(JOBS[2], wall_s=JOBS[2].wall_s + 60))
    site.fill(JOBS[6])
    run = site.run("publish", "--force", "--dry-run", "--json")
    assert (run.status, run.json["exit"]) == (65, 65)
    found = lines(run)
    assert {at[1]: line["jobs"] for at, line in found.items()} == {"add": 1, "change": 1, "hold": 1}
    hold = found["2026-10", "hold"]
    assert hold["rows"] == 1
    assert "would lose their last job, stay, and count in addition" in hold["reason"]
    assert hold["examples"][0]["job"] == alone().job_id
    assert "processors 3" in hold["examples"][0]["row"]


@pytest.mark.parametrize(("before", "after"), [("car", "apel-summary-0.2"), ("apel-summary-0.2", "apel-summary-0.3")])
def test_a_republish_of_another_kind_is_held_with_the_jobs_that_wait(
    tmp_path: Path, pki: PKI, before: str, after: str
) -> None:
    site = make(tmp_path, pki, before)
    site.fill(*JOBS[:6])
    assert site.run("publish").status == 0
    site.config["targets"]["here"]["format"] = after
    site.save()
    run = site.run("republish", "--json", "--dry-run", *WINDOW)
    assert run.status == 65
    hold = lines(run)["2026-10", "hold"]
    assert hold["jobs"] == 6
    assert "would count in addition" in hold["reason"]


def test_jobs_of_a_vo_that_is_not_wanted_any_more_are_retracted_by_republish(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, "apel-summary-0.4")
    site.fill(*JOBS)
    assert site.run("publish").status == 0
    out = [job for job in JOBS if vo_of(job) == "atlas"]
    site.config["targets"]["here"]["exclude_vos"] = ["atlas"]
    site.save()
    assert plan(site).json["targets"]["here"]["actions"] == []
    held = site.run("republish", "--json", "--dry-run", *WINDOW)
    assert (held.status, {at[1] for at in lines(held)}) == (65, {"hold"})
    assert site.run("republish", "--yes", *WINDOW).status == 65
    run = site.run("republish", "--json", "--dry-run", "--accept-key-change", *WINDOW)
    assert run.status == 0
    retract = lines(run)["2026-10", "retract"]
    assert retract["jobs"] == len(out) > 0
    assert retract["reason"] == "no target of the receiver wants them any more"
    assert lines(run)["2026-10", "empty"]["rows"] > 0


def vo_of(job: SampleJob) -> str:
    return (job.fqans or ("",))[0].strip("/").split("/")[0]


def test_what_a_republish_sends_as_it_is_changes_nothing(tmp_path: Path, pki: PKI) -> None:
    for form in ("car", "apel-summary-0.4"):
        site = make(tmp_path / form, pki, form)
        site.fill(*JOBS[:6])
        assert site.run("publish").status == 0
        found = lines(site.run("republish", "--json", "--dry-run", *WINDOW))
        assert {at: line["jobs"] for at, line in found.items()} == {("2026-10", "keep"): 6}


def test_a_republish_under_other_settings_changes_jobs(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:6])
    assert site.run("publish").status == 0
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 20, "override": True}
    site.save()
    assert plan(site).json["targets"]["here"]["actions"] == []
    assert site.run("republish", "--yes", *WINDOW).status == 65
    run = site.run("republish", "--json", "--dry-run", "--accept-key-change", *WINDOW)
    change = lines(run)["2026-10", "change"]
    assert (change["jobs"], change["reason"]) == (6, "they were sent under other settings")


@pytest.mark.parametrize(
    "form", ["car", "ogf-ur", "apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4"]
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_plan_is_what_the_round_does(tmp_path: Path, pki: PKI, form: str, seed: int) -> None:
    chance = random.Random(f"{form} {seed}")
    site = make(tmp_path, pki, form)
    jobs = list(generate(seed + 1, 40, SEPTEMBER, NOVEMBER))
    known: list[SampleJob] = []
    for _ in range(4):
        new = [jobs.pop() for _ in range(min(len(jobs), chance.randrange(1, 12)))]
        broken = chance.random() < 0.5
        site.fill(*(replace(job, benchmark="fast") if broken and job is new[0] else job for job in new))
        changed = chance.sample(known, min(len(known), chance.randrange(4)))
        rewrite(
            site, *(moved(job) if chance.random() < 0.6 else replace(job, wall_s=job.wall_s + 5) for job in changed)
        )
        known += new
        words = ("--accept-key-change",) if chance.random() < 0.3 else ()
        planned = site.run("publish", "--json", "--force", "--dry-run", *words)
        before = messages(site)
        done = site.run("publish", "--json", "--force", *words)
        assert counts(planned) == counts(done)
        assert planned.json["targets"]["here"]["records"] == done.json["targets"]["here"]["records"]
        assert planned.json["targets"]["here"]["messages"] == len(messages(site)) - len(before)
        again = plan(site)
        assert [line for line in counts(again) if line[1] not in ("hold", "keep")] == []


def test_two_runs_under_one_record_key_are_explained(site: ConfiguredSite) -> None:
    other = replace(JOBS[1], local_job_id=JOBS[0].local_job_id, end_time=JOBS[0].end_time)
    site.fill(JOBS[0], other)
    (example,) = lines(plan(site))["2026-10", "set aside"]["examples"]
    assert example["job"] == other.job_id
    assert "one record would replace the other at the receiver" in example["reason"]


def test_a_job_without_an_end_is_of_no_month(site: ConfiguredSite) -> None:
    site.fill(JOBS[0])
    with site.arex() as arex:
        arex.connection.execute("UPDATE AAR SET EndTime = ?", (2**62,))
    found = lines(plan(site))
    assert found.keys() == {("None", "set aside")}


def test_an_unread_source_ends_the_plan_with_66(site: ConfiguredSite) -> None:
    assert plan(site).status == 66


# Jobs that were sent under other settings


def rescale(site: ConfiguredSite) -> None:
    """Another benchmark is configured, which every job gets."""
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 20, "override": True}
    site.save()


def earlier(run: Run) -> Any:
    return run.json["targets"]["here"]["earlier_settings"]


SUMMED = ("car", "apel-job-0.4", "apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4")


@pytest.mark.parametrize("form", SUMMED)
def test_rule_7_jobs_under_earlier_settings_are_counted_and_moved(tmp_path: Path, pki: PKI, form: str) -> None:
    site = make(tmp_path, pki, form)
    site.fill(*JOBS[:6], *generate(2, 3, SEPTEMBER, OCTOBER))
    assert site.run("publish").status == 0
    assert earlier(plan(site)) is None
    rescale(site)
    unknown: dict[str, Any] = {"jobs": None, "months": [], "counted": None, "at_most": 9}
    assert earlier(site.run("status", "--json")) == unknown
    assert "at most 9 jobs were sent under other settings: `publisher plan --target here`" in site.run("status").out
    found = earlier(plan(site))
    assert (found["jobs"], found["months"], found["at_most"]) == (9, ["2026-09", "2026-10"], 9)
    assert {one["field"] for one in found.pop("changes")} <= {"ServiceLevelType", "ServiceLevel"}
    assert earlier(site.run("status", "--json")) == found
    for words in (("status",), ("plan",)):
        out = site.run(*words).out
        assert "9 jobs of 2026-09 to 2026-10 would have other keys under today's settings (counted 20" in out
        assert "`publisher republish --from 2026-09 --to 2026-10 --target here` moves them" in out
    assert earlier(site.run("statement", "2026-09", "--json"))["jobs"] == 3
    assert "6 jobs of 2026-10 would have other keys" in site.run("statement", "2026-10").out
    september = ("--from", "2026-09", "--to", "2026-09", "--yes")
    assert site.run("republish", *september).status == 65
    assert site.run("republish", *september, "--accept-key-change").status == 0
    assert earlier(site.run("status", "--json"))["months"] == ["2026-10"]
    first = site.run("republish", *WINDOW, "--yes", "--accept-key-change")
    assert first.status == 65
    assert "accepts what was shown before" in first.err
    assert site.run("republish", *WINDOW, "--yes", "--accept-key-change").status == 0
    assert earlier(site.run("status", "--json")) is None
    again = earlier(plan(site))
    assert again is None or again["jobs"] == 0


def test_a_changed_vo_is_shown_as_old_and_new(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, "car")
    site.fill(*JOBS[:6])
    site.run("publish")
    site.config["records"]["vo_rules"] = [{"field": "any", "vo": "fermi", "override": True}]
    site.save()
    run = site.run("plan")
    for vo, jobs in Counter(job.vo for job in JOBS[:6]).items():
        assert f"\n  VO {vo or '(no VO)'} -> fermi: {plural(jobs, 'job')}\n" in run.out
    changes = {(one["field"], one["was"], one["becomes"]): one["jobs"] for one in earlier(plan(site))["changes"]}
    assert {was: jobs for (field, was, _), jobs in changes.items() if field == "VO"} == Counter(
        job.vo for job in JOBS[:6]
    )
    # Each row that would stay is listed for the ticket, and nowhere else.
    held = site.run("republish", *WINDOW, "--dry-run").out
    rows = [line.split("VO ", 1)[1] for line in held.splitlines() if line.startswith("  2026-10: VO ")]
    assert rows
    assert held.count("VO ") == len(rows)


def test_commands_name_the_configuration_that_was_given(site: ConfiguredSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it they would ask another site."""
    site.fill(*JOBS[:4])
    site.run("publish")
    rescale(site)
    monkeypatch.setattr(site, "bare", str)
    command = f"`publisher -c {site.path} republish --from 2026-10 --to 2026-10 --target here`"
    assert command in site.run("plan").out
    assert f"`publisher -c {site.path} stats -o jobids`" in site.run("trace", "no-such-job").err
    monkeypatch.setattr(main, "DEFAULT_CONFIG", site.path)
    assert command.replace(f"-c {site.path} ", "") in site.run("plan").out
    assert " -c " not in json.dumps(plan(site).json), "programs know what they asked"


def test_rule_7_a_change_that_moves_no_key_counts_no_job(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, "apel-summary-0.4")
    site.fill(*(job for job in JOBS if job.benchmark))
    site.run("publish")
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 20}  # of jobs that carry none
    site.save()
    assert "under other settings" in site.run("status").out
    assert earlier(plan(site))["jobs"] == 0
    assert earlier(site.run("status", "--json")) is None
    assert "under other settings" not in site.run("status").out


def test_rule_7_settings_that_were_used_in_between_are_counted_anew(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:4])
    site.run("publish")
    before = deepcopy(site.config["records"])
    rescale(site)
    assert earlier(plan(site))["jobs"] == 4
    site.config["records"] = deepcopy(before)
    site.save()
    assert earlier(site.run("status", "--json")) is None
    rescale(site)
    site.fill(*JOBS[4:6])
    assert site.publish().json["targets"]["here"]["records"] == 2
    site.config["records"] = before
    site.save()
    assert earlier(site.run("status", "--json"))["jobs"] is None
    assert earlier(plan(site))["jobs"] == 2


def test_sgas_keeps_the_first_record_whatever_the_settings(tmp_path: Path, pki: PKI) -> None:
    site = make(tmp_path, pki, "ogf-ur")
    site.fill(*JOBS[:4])
    site.run("publish")
    rescale(site)
    assert earlier(plan(site)) is None
    assert earlier(site.run("status", "--json")) is None


def test_a_plan_that_counts_changes_nothing_else(site: ConfiguredSite) -> None:
    site.fill(*JOBS[:4])
    site.run("publish")
    rescale(site)
    sent = messages(site)
    assert counts(plan(site)) == counts(plan(site)) == []
    assert messages(site) == sent
    assert site.publish().json["targets"]["here"]["outcome"] == "nothing"


def test_rule_7_what_decides_no_key_is_no_other_setting(site: ConfiguredSite) -> None:
    """Such as where databases are, how they are read, and what jobs cost."""
    site.fill(*JOBS[:5])
    assert site.run("publish").status == 0
    site.config["source"] = {"type": "arex", "databases": [str(site.control / "accounting" / "*.db")], "hold_off_s": 60}
    site.config["records"] |= {"start_time": "submission", "charges": [{"formula": "RunTime", "unit": "s"}]}
    site.save()
    assert earlier(site.run("status", "--json")) is None
    site.config["source"]["unescape"] = False
    site.save()
    assert earlier(site.run("status", "--json"))["at_most"] == 5


@pytest.mark.parametrize("form", SUMMED)
def test_rule_7_what_was_replaced_is_not_under_earlier_settings(tmp_path: Path, pki: PKI, form: str) -> None:
    site = make(tmp_path, pki, form)
    site.fill(*JOBS[:6])
    assert site.run("publish").status == 0
    rewrite(site, replace(JOBS[1], wall_s=JOBS[1].wall_s + 60))
    assert site.run("publish", "--force").status == 0
    rescale(site)
    assert earlier(site.run("status", "--json"))["at_most"] == 6
    first = site.run("republish", *WINDOW, "--yes", "--accept-key-change")
    assert first.status == 65
    assert "accepts what was shown before" in first.err
    assert site.run("republish", *WINDOW, "--yes", "--accept-key-change").status == 0
    assert earlier(site.run("status", "--json")) is None


@pytest.mark.parametrize("form", ["apel-summary-0.4", "apel-normalised-summary-0.4"])
def test_a_plan_explains_records_that_sum_rows_up(tmp_path: Path, pki: PKI, form: str) -> None:
    """Two values of a benchmark are two rows, and one record of a normalised summary."""
    site = make(tmp_path, pki, form)
    alike = replace(JOBS[0], benchmark="HEPscore23:10.0")
    site.fill(alike, replace(alike, job_id="other", local_job_id="other", benchmark="HEPscore23:20.0"))
    (line,) = plan(site).json["targets"]["here"]["actions"]
    records = plan(site).json["targets"]["here"]["records"]
    note = "here: a record sums up the rows of all values of a benchmark"
    assert line["rows"] == 2
    assert (records, note in site.run("plan").out.splitlines()) == ((1, True) if "normal" in form else (2, False))
