"""Every format, end to end from one database: the same jobs, the same sums, and nobody harmed by what jobs are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, receiver_of
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.strict_apel import Row, read_car
from tests.support.strict_apel_text import COMMON_KEY, KEYS, fold, read_text, replaced, summarised
from tests.support.strict_sgas import read_ur

SEPTEMBER, OCTOBER, NOVEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 10, 11))
APEL_JOBS = tuple(name for name in JOB_FORMATS if receiver_of(name).table == "JobRecords")
RAW = ("apel-summary-0.2", "apel-summary-0.4")
NORMALISED = ("apel-summary-0.3", "apel-normalised-summary-0.4")
FORMATS = (*APEL_JOBS, *SUMMARY_FORMATS)
COUNTED = ("NumberOfJobs", "WallDuration", "CpuDuration")
NORMALISED_SECONDS = ("NormalisedWallDuration", "NormalisedCpuDuration")


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A target for each format, each with a topic of its own, and one for SGAS's records in files."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    ordinary = made.config["targets"].pop("egi")
    for name in FORMATS:
        made.config["targets"][name] = ordinary | {"format": name, "topic": topic(name)}
        fake_ams.allow(made.user, topic(name))
    made.config["targets"]["ogf-ur"] = {
        "type": "spool", "path": str(tmp_path / "urs"), "format": "ogf-ur", "start": "all", "every": "1s",
    }  # fmt: skip
    return made


def topic(format_name: str) -> str:
    return format_name.replace(".", "-")


def ordinary(count: int = 120, seed: int = 5) -> list[SampleJob]:
    """Jobs that APEL can tell apart: some never reached the batch system."""
    return list(generate(seed, count, SEPTEMBER, NOVEMBER))


def payloads(site: SiteUnderTest, format_name: str) -> list[bytes]:
    """What the receiver's loader is handed."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    return [receiver.take(message).text.encode() for message in site.fake.messages(PROJECT, topic(format_name))]


def rows(site: SiteUnderTest, format_name: str) -> list[Row]:
    """The rows that are left under the server's keys."""
    now = datetime.now(UTC)
    table, found = table_of(format_name), []
    for payload in payloads(site, format_name):
        if format_name == "car":
            found += read_car(payload, now)
            continue
        told, read = read_text(payload, now)
        assert told == table
        found += read
    return replaced(table, found)


def table_of(format_name: str) -> str:
    if format_name in APEL_JOBS:
        return "JobRecords"
    return "Summaries" if format_name in RAW else "NormalisedSummaries"


def usage_records(site: SiteUnderTest) -> list[Row]:
    return [row for path in sorted((site.folder / "urs").iterdir()) for row in read_ur(path.read_bytes())]


def sums(site: SiteUnderTest, format_name: str, key: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    return summarised(table_of(format_name), rows(site, format_name), key)


def counts(found: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    return {key: tuple(row[name] for name in COUNTED) for key, row in found.items()}


def publish(site: SiteUnderTest) -> None:
    run = site.publish()
    assert run.status == 0, run.err + run.out


def truth(batch: Iterable[SampleJob]) -> tuple[int, ...]:
    batch = list(batch)
    return len(batch), sum(job.wall_s for job in batch), sum(job.cpu_user_s + job.cpu_kernel_s for job in batch)


def told(found: Iterable[Row]) -> tuple[int, ...]:
    found = list(found)
    jobs = sum(row.get("NumberOfJobs", 1) for row in found)
    return jobs, sum(row["WallDuration"] for row in found), sum(row["CpuDuration"] for row in found)


# The same sums in every format


def test_jobs_and_summaries_add_up_to_the_same_by_every_key(site: SiteUnderTest) -> None:
    batch = ordinary()
    site.fill(*batch)
    publish(site)
    reference = sums(site, "car", KEYS["Summaries"])
    assert len(reference) > 30
    assert len({key[KEYS["Summaries"].index("VO")] for key in reference}) > 4
    for name in FORMATS:
        assert told(rows(site, name)) == truth(batch), name
    for name in (*APEL_JOBS, *RAW):
        assert sums(site, name, KEYS["Summaries"]) == reference, name
    by_type = sums(site, "car", COMMON_KEY)
    for name in NORMALISED:
        found = sums(site, name, COMMON_KEY)
        assert counts(found) == counts(by_type), name
        for key, row in found.items():
            for seconds in NORMALISED_SECONDS:
                assert abs(row[seconds] - by_type[key][seconds]) <= Decimal("0.5"), (name, key)
    urs = usage_records(site)
    assert len(urs) == len(batch)
    assert sum(row["wall"] for row in urs) == truth(batch)[1]
    assert sum(row["cpu"] for row in urs) == truth(batch)[2]


def test_sums_by_month_and_vo_are_the_source_s(site: SiteUnderTest) -> None:
    batch = ordinary()
    site.fill(*batch)
    publish(site)
    expected: dict[tuple[Any, ...], Counter[str]] = {}
    for job in batch:
        ended = datetime.fromtimestamp(job.end_time, UTC)
        key = (ended.year, ended.month, (job.vo or "None").casefold())
        expected.setdefault(key, Counter()).update(
            NumberOfJobs=1, WallDuration=job.wall_s, CpuDuration=job.cpu_user_s + job.cpu_kernel_s
        )
    wanted = {key: tuple(row[name] for name in COUNTED) for key, row in expected.items()}
    assert len(wanted) > 6
    for name in FORMATS:
        assert counts(sums(site, name, ("Year", "Month", "VO"))) == wanted, name


def test_in_jura_s_spelling_only_the_keys_of_summaries_differ(site: SiteUnderTest) -> None:
    site.config["records"]["key_style"] = "jura"
    batch = ordinary(60)
    site.fill(*batch)
    publish(site)
    for name in FORMATS:
        found = rows(site, name)
        assert told(found) == truth(batch), name
        roles = {row["VORole"] for row in found if row["VO"] == "atlas"}
        hosts = {row["SubmitHost"] for row in found}
        if name in APEL_JOBS:
            assert "Role=pilot" in roles, name
            assert all(host.startswith("https://") for host in hosts), name
        else:
            assert "/Role=pilot" in roles, name
            assert {host.partition("https:")[0] for host in hosts} == {"arcrest:", ""}, name
            assert {row["VORole"] for row in found if row["VO"] == "None"} == {"None"}, name
    key = ("Year", "Month", "VO", "GlobalUserName", "Processors", "NodeCount")
    assert counts(sums(site, "apel-summary-0.4", key)) == counts(sums(site, "car", key))


# VOs


def test_jobs_without_vo_get_one_and_further_groups(site: SiteUnderTest) -> None:
    site.config["records"] |= {"default_vo": "nobodys#https://iss.example.org", "vo_group": ["/site/local"]}
    batch = ordinary()
    without = [job for job in batch if not job.vo]
    assert without
    site.fill(*batch)
    publish(site)
    for name in FORMATS:
        assert told(row for row in rows(site, name) if row["VO"] == "nobodys") == truth(without), name
        assert not [row for row in rows(site, name) if row["VO"] == "None"], name
    assert all(b"/site/local" in payload for payload in payloads(site, "car"))
    urs = [row for row in usage_records(site) if row["vo_name"] == "nobodys"]
    assert len(urs) == len(without)
    assert {row["vo_issuer"] for row in urs} == {"https://iss.example.org"}


def test_a_local_id_prefix_keeps_two_clusters_of_a_site_apart(site: SiteUnderTest) -> None:
    """Both count from 1, and Site, LocalJobId and EndTime are APEL's key."""
    here, *_ = ordinary(1)
    there = replace(here, job_id="there", local_job_id=here.local_job_id, queue="other", wall_s=here.wall_s + 1)
    targets = site.config["targets"]
    for name in APEL_JOBS:
        targets[name] |= {"vos": ["here"], "localid_prefix": "a-"}
        targets[f"other-{name}"] = targets[name] | {"vos": ["there"], "localid_prefix": "b-"}
    site.config["records"]["vo_rules"] = by_queue(here.queue)
    site.fill(here, there)
    publish(site)
    for name in APEL_JOBS:
        assert told(rows(site, name)) == truth([here, there]), name
        assert {row["LocalJobId"][:2] for row in rows(site, name)} == {"a-", "b-"}


def test_of_two_jobs_under_one_key_of_the_receiver_none_is_lost_in_silence(site: SiteUnderTest) -> None:
    here, *neighbours = ordinary(12)
    there = replace(here, job_id="there", wall_s=here.wall_s + 1)
    site.fill(here, *neighbours, there)
    assert site.publish().status == 65
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {(one["target"], one["rule"]) for one in held} == {(name, "key-collision") for name in APEL_JOBS}
    for name in APEL_JOBS:
        assert len(rows(site, name)) == 12, name
    for name in SUMMARY_FORMATS:
        assert told(rows(site, name)) == truth([here, *neighbours, there]), name
    assert len(usage_records(site)) == 13


def by_queue(queue: str) -> list[dict[str, Any]]:
    return [
        {"field": "queue", "pattern": queue, "vo": "here", "override": True},
        {"field": "any", "vo": "there", "override": True},
    ]


@pytest.mark.slow
def test_local_jobs_stand_beside_grid_jobs_under_another_vo_and_the_batch_server(site: SiteUnderTest) -> None:
    rules = [{"field": "queue", "pattern": "plain", "vo": "physics-local", "override": True}]
    site.config["records"] |= {"vo_rules": rules, "batch_server": "batch.example.org"}
    for name in FORMATS:
        site.config["targets"][name]["exclude_vos"] = ["physics-local"]
        site.config["targets"][f"local-{name}"] = site.config["targets"][name] | {
            "exclude_vos": [], "vos": ["physics-local"], "infrastructure": "local",
        }  # fmt: skip
    batch = ordinary()
    local = [job for job in batch if job.queue == "plain"]
    assert 5 < len(local) < 100
    site.fill(*batch)
    publish(site)
    for name in FORMATS:
        found = rows(site, name)
        assert told(found) == truth(batch), name
        ours = [row for row in found if row["InfrastructureType"] == "local"]
        assert told(ours) == truth(local), name
        assert {(row["VO"], row["SubmitHost"]) for row in ours} == {("physics-local", "batch.example.org")}, name
        assert {row["InfrastructureType"] for row in found} == {"local", "grid"}, name
        grid = [row for row in found if row["InfrastructureType"] == "grid"]
        assert "physics-local" not in {row["VO"] for row in grid}, name


# Benchmarks


def test_benchmarks_by_queue_endpoint_host_and_date(site: SiteUnderTest) -> None:
    site.config["records"]["benchmark"] = [
        {"queue": "old*", "type": "HEPSPEC", "value": 9.8},
        {"host": "gpu-*", "type": "HEPscore23", "value": 14},
        {"endpoint": "https://ce02*", "until": "2026-09", "type": "Si2k", "value": 2500},
        {"endpoint": "https://ce02*", "from": "2026-10", "type": "HEPscore23", "value": 12.25},
        {"type": "HEPscore23", "value": 11.5},
    ]
    first = replace(
        ordinary(1)[0], benchmark=None, endpoint_url="https://ce01.example.org/arex", queue="new", node_names=("wn1",)
    )
    last_second_of_september = int(OCTOBER.timestamp()) - 1
    wanted = {
        "1": (replace(first, queue="old-and-slow"), ("hepspec", Decimal("9.8"))),
        "2": (replace(first, node_names=("wn1", "gpu-7")), ("hepscore23", Decimal(14))),
        "3": (
            replace(first, endpoint_url="https://ce02.example.org/arex").moved_to(last_second_of_september),
            ("si2k", Decimal(2500)),
        ),
        "4": (
            replace(first, endpoint_url="https://ce02.example.org/arex").moved_to(last_second_of_september + 1),
            ("hepscore23", Decimal("12.25")),
        ),
        "5": (first, ("hepscore23", Decimal("11.5"))),
        "6": (replace(first, benchmark="HEPSPEC:10.5"), ("hepspec", Decimal("10.5"))),
    }
    batch = [replace(job, job_id=f"job{number}", local_job_id=number) for number, (job, _) in wanted.items()]
    site.fill(*batch)
    publish(site)
    for name in APEL_JOBS:
        found = {row["LocalJobId"]: (row["ServiceLevelType"].lower(), row["ServiceLevel"]) for row in rows(site, name)}
        assert found == {number: level for number, (_, level) in wanted.items()}, name
    for name in RAW:
        found_levels = Counter((row["ServiceLevelType"].lower(), row["ServiceLevel"]) for row in rows(site, name))
        assert found_levels == Counter(level for _, level in wanted.values()), name


def test_several_benchmarks_travel_where_the_format_has_room(site: SiteUnderTest) -> None:
    both = [{"type": "HEPSPEC", "value": 10}, {"type": "HEPscore23", "value": 11.5}]
    site.config["records"]["benchmark"] = {"benchmarks": both}
    batch = [replace(job, benchmark=None) for job in ordinary(20)]
    site.fill(*batch)
    publish(site)
    for name in ("apel-job-0.4", "apel-summary-0.4"):
        assert all(b"{HEPscore23: 11.5, HEPSPEC: 10}" in payload for payload in payloads(site, name)), name
        assert {row["ServiceLevelType"] for row in rows(site, name)} == {"hepscore23"}, name
    for name in ("car", "apel-job-0.2", "apel-job-0.3", "apel-summary-0.2", "apel-summary-0.3"):
        assert {row["ServiceLevelType"] for row in rows(site, name)} == {"HEPSPEC"}, name
    for name in FORMATS:
        assert told(rows(site, name)) == truth(batch), name


def test_no_benchmark_is_never_guessed(site: SiteUnderTest) -> None:
    site.config["records"] = {}
    good, bare, *_ = (replace(job, benchmark="HEPSPEC:10.5") for job in ordinary(20))
    site.fill(good, replace(bare, benchmark=None))
    run = site.publish()
    assert run.status == 65
    for name in FORMATS:
        assert told(rows(site, name)) == truth([good]), name
    assert {held["rule"] for held in site.run("quarantine", "list", "--json").json["quarantined"]} == {
        "benchmark-missing"
    }
    assert len(usage_records(site)) == 2, "SGAS asks for none"


# What jobs and users are called


HARMLESS: dict[str, dict[str, Any]] = {
    "fit & plot": {},
    "50 %% done": {},
    "résumé": {},
    "Content-Type: application/pkcs7-mime": {},
    "%%\nAPEL-summary-job-message: v0.2\nSite: OTHER": {},
    "</JobName></UsageRecord>": {},
    "]]>": {},
    "a comma": {"user": "/DC=org/O=Physics, Inc./CN=Jane, Doe"},
    "rfc2253": {"user": "CN=Jane Doe,OU=Physics,O=Example,C=NO"},
    "no role": {"fqans": ("/atlas",), "vo": "atlas"},
    "capability": {"fqans": ("/atlas/Capability=NULL",), "vo": "atlas"},
    "two decimals": {"benchmark": "HEPSPEC:10.50"},
    "one decimal": {"benchmark": "HEPSPEC:10.5"},
    "lower case": {"benchmark": "hepspec:10.5"},
    "accents": {"user": "/CN=José Åsgård"},
    "none": {"user": "/CN=Jose Asgard"},
    "a queue with a message in it": {"queue": "application/x-pkcs7-mime"},
}


def hostile_batch() -> list[SampleJob]:
    pattern = next(job for job in ordinary() if job.local_job_id and job.benchmark)
    return [
        replace(pattern, job_id=f"hostile{number}", local_job_id=str(number), job_name=name, **changes)
        for number, (name, changes) in enumerate(HARMLESS.items())
    ]


def test_names_reach_the_receiver_harmlessly_and_their_neighbours_intact(site: SiteUnderTest) -> None:
    hostile, neighbours = hostile_batch(), ordinary(40, seed=8)
    batch = [*neighbours[:20], *hostile, *neighbours[20:]]
    site.fill(*batch)
    publish(site)
    for name in FORMATS:
        assert told(rows(site, name)) == truth(batch), name
        assert {row["Site"] for row in rows(site, name)} == {"EXAMPLE-SITE"}, name
    reference = sums(site, "car", KEYS["Summaries"])
    for name in (*APEL_JOBS, *RAW):
        assert sums(site, name, KEYS["Summaries"]) == reference, name
    assert len(usage_records(site)) == len(batch)


def test_values_that_the_server_takes_for_one_are_one_row(site: SiteUnderTest) -> None:
    site.fill(*hostile_batch())
    publish(site)
    for name in RAW:
        found = rows(site, name)
        level = [
            row
            for row in found
            if fold(row["ServiceLevelType"]) == "hepspec" and row["ServiceLevel"] == Decimal("10.5")
        ]
        assert sum(row["NumberOfJobs"] for row in level) >= 3
        assert len({row["ServiceLevel"] for row in level}) == 1
        (jose,) = [row for row in found if fold(row["GlobalUserName"]) == "/cn=jose asgard"]
        assert jose["NumberOfJobs"] == 2


def test_a_user_that_no_text_message_can_hold_is_set_aside_there_alone(site: SiteUnderTest) -> None:
    bad = replace(ordinary(1)[0], job_id="bad", user="/CN=application/pkcs7-mime")
    neighbours = ordinary(20, seed=8)
    site.fill(*neighbours, bad)
    run = site.publish()
    assert run.status == 65
    for name in FORMATS:
        expected = [*neighbours, bad] if name == "car" else neighbours
        assert told(rows(site, name)) == truth(expected), name
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {(one["target"], one["rule"]) for one in held} == {
        (name, "forbidden-text") for name in FORMATS if name != "car"
    }
    assert len(usage_records(site)) == 21


def test_a_user_whose_name_would_end_a_record_is_escaped_in_text_messages(site: SiteUnderTest) -> None:
    batch = [replace(ordinary(1)[0], job_id="odd", user="/CN=50 %% done"), *ordinary(20, seed=8)]
    site.fill(*batch)
    publish(site)
    for name in FORMATS:
        found = rows(site, name)
        assert told(found) == truth(batch), name
        users = [row["GlobalUserName"] for row in found if "done" in (row["GlobalUserName"] or "")]
        assert users == ["/CN=50 %% done" if name == "car" else "/CN=50 %25%25 done"], name
    assert len(usage_records(site)) == 21


# Who users are


@pytest.mark.parametrize("mode", ["withheld", "pseudonym"])
@pytest.mark.parametrize("user", ["/DC=org/CN=Jane Doe 4711", "https://iss.example.org/jane-doe-4711"])
def test_no_format_tells_who_a_user_is(site: SiteUnderTest, mode: str, user: str) -> None:
    secret = site.folder / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    site.config["records"]["identity"] = mode if mode == "withheld" else {"mode": mode, "secret_file": str(secret)}
    pattern = next(job for job in ordinary() if job.local_job_id and job.transfers)
    jane = replace(
        pattern,
        user=user,
        job_name="jane doe's thesis",
        local_user="jane:jane",
        client_host="jane-laptop.example.org:4711",
        transfers=tuple(replace(one, url="gsiftp://se.example.org/home/jane/x") for one in pattern.transfers),
    )
    again = replace(jane, job_id="again", local_job_id="99")
    site.fill(jane, again)
    publish(site)
    names = set()
    for name in FORMATS:
        assert told(rows(site, name)) == truth([jane, again]), name
        names |= {row["GlobalUserName"] for row in rows(site, name)}
        assert not any(
            word in payload.lower() for payload in payloads(site, name) for word in (b"jane", b"iss.example")
        )
    names |= {row["global_user_name"] for row in usage_records(site)}
    ((path, *_), (name, *others)) = ((site.folder / "urs").iterdir(), names)
    assert b"jane" not in path.read_bytes().lower()
    assert not others, "one name in every format"
    assert name == "withheld" or name.startswith("pseudonym-")
