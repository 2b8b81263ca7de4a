"""From Grid Engine's files to the receiver, through the real command line."""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.model.job import JobRecord
from publisher.sources.gridengine.site_mapping import Options
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.support.gridengine_files import BEGIN, CLUSTER, Entry, colon, entries, jsonl, write
from tests.support.imported_sites import bring_in, imported, local_site, told, truth
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

ANY = Entry()


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A site without A-REX: local jobs of Grid Engine only."""
    return local_site(tmp_path, pki, fake_ams, "gridengine", CLUSTER)


def test_every_job_of_grid_engine_arrives_once(site: SiteUnderTest) -> None:
    log = list(entries(5, 150))
    path = write(site.folder / "accounting", map(colon, log))
    report = bring_in(site, path)
    assert report["imported"] > 150
    assert site.publish().json["targets"]["egi"]["records"] == report["imported"]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert sorted(map(told, site.received(with_openssl=False))) == sorted(map(truth, imported(site).values()))
    more = write(site.folder / "accounting.jsonl", map(jsonl, entries(6, 20, first=1000)))
    report = bring_in(site, path, more)
    assert report["duplicates"] == 0
    assert site.publish().json["targets"]["egi"]["records"] == report["imported"]
    assert sorted(map(told, site.received(with_openssl=False))) == sorted(map(truth, imported(site).values()))


def test_what_is_said_of_a_job(site: SiteUnderTest) -> None:
    (site.folder / "users.map").write_text("ada /DC=org/CN=Ada\n")
    (site.folder / "groups.map").write_text("theory theo\n")
    site.config["importers"]["gridengine"] |= {"user_map": "users.map", "group_vo_map": "groups.map"}
    bring_in(site, write(site.folder / "accounting", [jsonl(replace(ANY, name="fit & <plot>", project="p1"))]))
    assert site.publish().status == 0
    (row,) = site.received(with_openssl=False)
    assert (row["GlobalUserName"], row["VO"], row["LocalUserId"]) == ("/DC=org/CN=Ada", "theo", "ada")
    assert (row["MachineName"], row["Queue"], row["InfrastructureType"]) == (CLUSTER, "all.q", "local")
    assert (row["StartTime"], row["EndTime"], row["NodeCount"]) == (BEGIN + 10, BEGIN + 110, 1)


def test_imported_jobs_are_local_to_their_cluster_unless_said_otherwise(site: SiteUnderTest) -> None:
    bring_in(site, write(site.folder / "accounting", [jsonl(ANY)]))
    assert site.publish().status == 0
    (row,) = site.received(with_openssl=False)
    assert (row["InfrastructureType"], row["SubmitHost"]) == ("local", CLUSTER)
    assert row["InfrastructureDescription"] == "PUBLISHER-NONE-SGE"
    text = site.run("explain", f"{CLUSTER}:4711:{BEGIN + 10}", "--format", "apel-job-0.4").out
    assert "SubmitHostType: LRMS" in text
    assert "importers.gridengine.cluster" in text


@pytest.mark.parametrize(
    ("records", "own", "told"),
    [
        ({}, {"batch_server": "b.example.org"}, ("local", "b.example.org", "PUBLISHER-NONE-SGE")),
        ({"batch_server": "r.example.org"}, {}, ("local", "r.example.org", "PUBLISHER-NONE-SGE")),
        (
            {"infrastructure": "grid", "batch_server": "r.example.org", "infrastructure_description": "R-R-R"},
            {"infrastructure": "local", "batch_server": "b.example.org", "infrastructure_description": "A-B-C"},
            ("local", "b.example.org", "A-B-C"),
        ),
        ({"infrastructure": "grid"}, {}, ("grid", f"gridengine://{CLUSTER}", "PUBLISHER-NONE-SGE")),
        (
            {"infrastructure_description": "R-R-R"},
            {"infrastructure": "grid", "submit_host": "https://ce.example.org/"},
            ("grid", "https://ce.example.org/", "R-R-R"),
        ),
    ],
)
def test_the_importer_s_own_keys_win_over_records(
    records: dict[str, str], own: dict[str, str], told: tuple[str, ...], site: SiteUnderTest
) -> None:
    site.config["records"] |= records
    site.config["importers"]["gridengine"] |= own
    bring_in(site, write(site.folder / "accounting", [jsonl(ANY)]))
    assert site.publish().status == 0
    (row,) = site.received(with_openssl=False)
    assert (row["InfrastructureType"], row["SubmitHost"], row["InfrastructureDescription"]) == told


def test_where_jobs_ran_is_no_rule_by_which_they_were_imported(site: SiteUnderTest) -> None:
    path = write(site.folder / "accounting", [jsonl(ANY)])
    bring_in(site, path)
    site.config["importers"]["gridengine"] |= {"infrastructure": "grid", "batch_server": "b.example.org"}
    assert bring_in(site, path)["notes"] == []


def test_a_job_whose_task_came_late_is_sent_again_in_its_place(site: SiteUnderTest) -> None:
    """On hosts that are known already: the number of hosts is part of APEL's key, and a change of that asks first."""
    tight = replace(ANY, pe="mpi", slots=8)
    task = replace(tight, pe_task="1.node2", host="node2.example.org")
    path = write(site.folder / "accounting", [colon(task), colon(tight)])
    bring_in(site, path)
    assert site.publish().json["targets"]["egi"]["records"] == 1
    with path.open("ab") as file:
        file.write(colon(replace(task, pe_task="2.node2")))
    assert bring_in(site, path)["updated"] == 1
    with closing(sqlite3.connect(site.state)) as connection:  # as if a day had passed
        connection.execute("UPDATE target SET swept = swept - 90000")
        connection.commit()
    assert site.publish().json["targets"]["egi"]["records"] == 1
    (row,) = site.table().rows("JobRecords")
    assert (row["CpuDuration"], row["NodeCount"]) == (272, 2)


def test_what_is_imported_by_hand_is_published_with_the_jobs_of_arex(site: SiteUnderTest) -> None:
    site.config["source"] = {"type": "arex", "control_dir": str(site.control), "time_zone": "Europe/Oslo"}
    batch: list[SampleJob] = list(generate(1, 20, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    site.fill(*batch)
    report = bring_in(site, write(site.folder / "accounting", map(colon, entries(5, 30))))
    assert site.publish().json["targets"]["egi"]["records"] == 20 + report["imported"]
    told = Counter((row["InfrastructureType"], row["InfrastructureDescription"]) for row in site.received())
    assert told == {("grid", "JURA-ARC-SLURM"): 20, ("local", "PUBLISHER-NONE-SGE"): report["imported"]}


def test_the_command_line_tells_what_was_skipped_and_set_aside(site: SiteUnderTest) -> None:
    never = replace(ANY, job=2, started=0, ended=0, failed=8, cpu=0.0, utime=0.0, stime=0.0)
    task = replace(ANY, job=3, pe="mpi", slots=2, pe_task="1.node1")
    path = write(site.folder / "accounting", [*map(colon, (ANY, never, task)), b"torn\n"])
    run = site.run("import", "gridengine", str(path), str(site.folder / "gone"))
    assert run.status == 66
    assert "1 skipped: never ran (failed 8, in prolog)" in run.out
    assert f"set aside: {path}, byte {path.stat().st_size - 5}: 1 columns" in run.out
    assert "1 line set aside in total; `publisher source bad-lines` shows them" in run.out
    assert "1 record of a parallel task, long without" in run.out
    assert f"{site.folder}/gone: No such file or directory" in run.err
    assert set(imported(site)) == {f"{CLUSTER}:4711:{BEGIN + 10}"}
    assert site.run("import", "gridengine", str(path)).status == 0


def test_a_bad_line_and_a_damaged_archive_leave_everything_else_to_publish(site: SiteUnderTest) -> None:
    """What the unit of the import does before each round: it fails, and the round goes on."""
    common = site.folder / "common"
    common.mkdir()
    write(common / "accounting.1.gz", [gzip.compress(colon(replace(ANY, job=1)))[:-20]])
    write(common / "accounting", [colon(replace(ANY, job=2)), b"torn\n", colon(replace(ANY, job=3))])
    for expected in (2, 0):  # the second time too it is 66, and everything is there
        run = site.run("import", "gridengine", "--json", str(common))
        assert (run.status, run.json["imported"]) == (66, expected)
        assert site.publish().json["targets"]["egi"]["records"] == expected
    assert sorted(row["LocalJobId"] for row in site.received(with_openssl=False)) == ["2", "3"]


def test_json_counts_every_line_once(site: SiteUnderTest) -> None:
    lines = [*map(colon, entries(9, 200)), b"torn\n", colon(ANY), colon(ANY)]
    found = bring_in(site, write(site.folder / "accounting", lines))
    assert found["lines"] == len(lines)
    skipped = sum(reason["records"] for reason in found["skipped"])
    assert found["imported"] + found["merged"] + found["held"] + found["duplicates"] + skipped + found["bad"] == len(
        lines
    )
    assert (found["exit"], found["duplicates"], found["bad_lines"][0]["reason"][:9]) == (65, 1, "1 columns")


def test_without_its_block_an_importer_says_what_is_missing(site: SiteUnderTest) -> None:
    del site.config["importers"]
    site.config["source"] = {"type": "arex", "control_dir": str(site.control)}
    run = site.run("import", "gridengine", "/nonexistent")
    assert run.status == 78
    assert "no entry of `source` has type gridengine; add one such as `- {type: gridengine, cluster: NAME}`" in run.err


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"cluster": "a b"}, "importers.gridengine.cluster: 'a b' is not a host name"),
        ({"cluster": CLUSTER, "wall_form": "times"}, "wall_form: unknown key; did you mean 'wall_from'?"),
        ({"cluster": CLUSTER, "wall_from": "time"}, "wall_from: 'time' is not known; did you mean 'times'?"),
        ({"cluster": CLUSTER, "project_from": ["acount"]}, "'acount' is not known; did you mean 'account'?"),
        ({"cluster": CLUSTER, "orphans_after_s": "soon"}, "is not a length of time"),
    ],
)
def test_the_block_is_checked_with_the_rest(keys: dict[str, Any], complaint: str, site: SiteUnderTest) -> None:
    site.config["importers"]["gridengine"] = keys
    run = site.run("config", "check")
    assert run.status == 78
    assert complaint in run.err


def test_map_files_that_cannot_be_read_are_found_by_the_check(site: SiteUnderTest) -> None:
    bring_in(site, write(site.folder / "accounting", [jsonl(ANY)]))
    (site.folder / "wrong.map").write_text("ada\n")
    site.config["importers"]["gridengine"] |= {"user_map": "gone.map"}
    site.config["importers"]["sonar"] = {"cluster": "fox.example.org", "user_map": "wrong.map"}
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert f"importers.gridengine.user_map: {site.folder}/gone.map cannot be read: No such file or directory" in run.err
    assert f"{site.folder}/wrong.map:1: write a word and its replacement" in run.err
    assert site.publish().json["targets"]["egi"]["records"] == 1  # what is there does not wait for a map


def test_an_importer_that_is_not_there_is_told(site: SiteUnderTest) -> None:
    site.config["importers"]["gridengin"] = {}
    run = site.run("config", "check")
    assert "importers.gridengin: unknown key; did you mean 'gridengine'?" in run.err


def test_what_is_shown_reads_back(site: SiteUnderTest) -> None:
    site.config["importers"]["gridengine"] |= {"single_host_pes": ["smp"], "user_map": "users.map"}
    shown = site.run("config", "show").out
    (site.folder / "again.yaml").write_text(shown)
    site.path = site.folder / "again.yaml"
    assert site.run("config", "show").out == shown
    assert "single_host_pes:\n    - smp\n" in shown
    assert Options(cluster=CLUSTER).wall_from in shown


@pytest.mark.parametrize(
    ("maps", "vo"),
    [
        ({"project_vo_map": "p1 projectors\n"}, "importers.gridengine.project_vo_map: p1"),
        ({"project_vo_map": "p2 x\n", "group_vo_map": "theory theo\n"}, "importers.gridengine.group_vo_map: theory"),
        ({"user_vo_map": "ada adas\n"}, "importers.gridengine.user_vo_map: ada"),
        ({}, "importers.gridengine.unmapped_vo: local"),
    ],
)
def test_explain_tells_which_line_of_which_map_decided(maps: dict[str, str], vo: str, site: SiteUnderTest) -> None:
    for name, lines in maps.items():
        (site.folder / name).write_text(lines)
    site.config["importers"]["gridengine"] |= {name: name for name in maps} | {"unmapped_vo": "local"}
    bring_in(site, write(site.folder / "accounting", [colon(replace(ANY, project="p1"))]))
    (job_id,) = imported(site)
    (one,) = site.run("explain", "--json", job_id).json["explanations"]
    rules = {rule["field"]: rule["rule"] for rule in one["imported"]}
    assert rules["vo"] == vo
    assert rules["wall_s"] == "importers.gridengine.wall_from: times"
    assert rules["user"] == "no line of user_map names it"
    assert set(rules) <= {*JobRecord._fields}


def test_changed_rules_are_told_with_the_way_to_have_them_for_all_jobs(site: SiteUnderTest) -> None:
    def notes() -> list[str]:
        return list(bring_in(site, log)["notes"])

    log = write(site.folder / "accounting", [colon(ANY)])
    groups = write(site.folder / "groups.map", [b"theory theo\n"])
    site.config["importers"]["gridengine"] |= {"group_vo_map": "groups.map", "exclude_users": ["eve"]}
    assert notes() == []
    write(groups, [b"# the same\ntheory  theo\n"])
    assert notes() == []
    write(groups, [b"theory others\n"])
    site.config["importers"]["gridengine"] |= {"exclude_users": [], "orphans_after_s": "2d"}
    site.save()
    (note,) = notes()
    assert note.startswith("exclude_users, group_vo_map of importers.gridengine changed since the last import")
    assert notes() == []
    (before,) = imported(site).values()
    assert before["VO"] == "theo"
    assert site.publish().json["targets"]["egi"]["records"] == 1
    for file in site.state.parent.glob("jobs.db*"):
        file.unlink()
    assert notes() == []
    (after,) = imported(site).values()
    assert after["VO"] == "others"
    assert site.publish().json["targets"]["egi"]["records"] == 0


def test_rules_that_change_ids_are_told_without_the_advice_to_import_again(site: SiteUnderTest) -> None:
    log = write(site.folder / "accounting", [colon(ANY)])
    assert bring_in(site, log)["notes"] == []
    site.config["importers"]["gridengine"] |= {"time_unit": "s", "exclude_users": ["eve"]}
    site.save()
    (note,) = bring_in(site, log)["notes"]
    assert note.startswith("exclude_users, time_unit of importers.gridengine changed since the last import")
    assert "jobs have other ids by the new rules, so do not remove" in note


def test_explain_tells_the_record_and_its_file_wherever_that_was_moved(site: SiteUnderTest) -> None:
    log, moved = site.folder / "accounting", site.folder / "accounting.0"
    bring_in(site, write(log, [colon(ANY)]))
    (job_id,) = imported(site)
    (one,) = site.run("explain", "--json", job_id).json["explanations"]
    record = f"{ANY.job}/0//{ANY.host}/{ANY.submitted}/{ANY.started}/{ANY.ended}"
    assert one["origin"] == {"importer": "gridengine", "record": record, "file": str(log)}
    write(moved, [log.read_bytes(), colon(replace(ANY, job=2))])
    bring_in(site, write(log, [colon(replace(ANY, job=3))]))
    assert f"origin: gridengine record {record}, read from {moved}\n" in site.run("explain", job_id).out
