"""The defects that were measured in ARC's own publisher, and the test that shows each absent here.

`SHOWN` names the tests for the defects on the way from A-REX's database over CAR to AMS; those without a test elsewhere are
below. `OTHER_PATHS` are the defects, or the parts of one, that belong to other ways through the product.
"""

from __future__ import annotations

import ast
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.complaints import assert_complains, assert_plain
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import SiteUnderTest, told, truth

HERE: Final = Path(__file__).parents[1]

# Defect: what happens in ARC -> the tests.
SHOWN: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    1: (
        "a signing failure is a silent total loss",
        (
            "faults/test_bad_configuration::test_credentials_that_cannot_be_used_are_77_and_nothing_leaves",
            "transports/test_smime::test_a_certificate_that_ends_during_a_long_run_is_noticed",
        ),
    ),
    2: (
        "one unescaped & sinks the message",
        ("faults/test_bad_input::test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive",),
    ),
    3: (
        "a job name forges records",
        (
            "faults/test_bad_input::test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive",
            "formats/test_car::test_hostile_text_forges_nothing",
        ),
    ),
    4: (
        "late rows are lost for ever",
        ("publishing/test_publish::test_late_rows_and_rows_of_one_second_are_delivered",),
    ),
    5: (
        "one bad record stops everything, every run",
        (
            "faults/test_bad_input::test_bad_rows_are_known_by_their_rule",
            "faults/test_bad_configuration::test_one_failing_target_stops_no_other_and_the_gravest_status_wins",
        ),
    ),
    6: ("batch sizes of 0 and below", ("scenarios/test_arc_defects::test_06_batch_sizes",)),
    7: ("a filter silences later targets", ("publishing/test_publish::test_selection_by_vo_status_and_start",)),
    8: (
        "SQL errors are swallowed",
        (
            "faults/test_bad_input::test_a_locked_accounting_file_is_66_and_no_record_is_half_read",
            "faults/test_bad_input::test_an_accounting_file_that_cannot_be_read_is_66_and_nothing_is_lost",
        ),
    ),
    9: ("one wrong clock stops publishing", ("publishing/test_publish::test_a_broken_clock_holds_nobody_up",)),
    10: ("Python 3.12 and newer", ("scenarios/test_arc_defects::test_10_nothing_that_python_3_12_removed",)),
    14: (
        "the role differs by mode (CAR's part)",
        ("formats/test_car::test_vo_group_and_role_arrive_as_policy_has_them",),
    ),
    15: (
        "every CAR record is invalid by its schema",
        (
            "faults/test_bad_input::test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive",
            "formats/test_car::test_the_golden_file_is_valid_by_the_official_schema",
        ),
    ),
    16: (
        "a partial failure sends all again, a refused batch is retried for ever",
        (
            "faults/test_bad_configuration::test_a_service_that_goes_away_in_the_middle_leaves_the_rest_for_later",
            "publishing/test_publish::test_a_refused_record_is_narrowed_down_and_its_neighbours_are_delivered",
            "scenarios/test_publish_properties::test_whatever_happened_every_job_arrives_once",
        ),
    ),
    17: (
        "no lock: two runs send everything twice",
        (
            "scenarios/test_arc_defects::test_17_two_publishers_at_once",
            "faults/test_bad_configuration::test_another_publisher_at_work_is_75_for_that_target_alone",
        ),
    ),
    18: (
        "several queries without a snapshot, stale name tables",
        (
            "scenarios/test_publish_properties::test_whatever_happened_every_job_arrives_once",
            "sources/test_arex::test_names_added_between_pages_are_found",
        ),
    ),
    19: ("torn rows are published", ("publishing/test_publish::test_a_job_whose_side_rows_are_still_to_come_waits",)),
    20: (
        "restarted jobs count twice",
        (
            "publishing/test_publish::test_the_same_run_with_other_values_replaces_what_was_delivered",
            "publishing/test_publish::test_a_run_under_another_local_id_is_another_run",
            "scenarios/test_arc_defects::test_20_a_run_that_only_ended_later_is_not_sent_again",
        ),
    ),
    23: (
        "line ends of other standards cut names (CAR's part)",
        ("faults/test_bad_input::test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive",),
    ),
    24: (
        "nothing is checked before sending",
        (
            "faults/test_bad_input::test_bad_rows_are_known_by_their_rule",
            "formats/test_quality::test_rules_about_a_run",
        ),
    ),
    25: (
        "TLS without verification, token in the URL and the log",
        (
            "faults/test_bad_configuration::test_credentials_that_cannot_be_used_are_77_and_nothing_leaves",
            "transports/test_https::test_bad_server_certificates_get_nothing",
            "publishing/test_publish::test_the_token_is_nowhere_but_in_its_header",
        ),
    ),
    26: (
        "exit status 0 when every target failed",
        ("faults/test_bad_configuration::test_a_service_that_is_away_is_75_and_everything_waits",),
    ),
    27: (
        "local time labelled Z, a start in the future",
        ("scenarios/test_arc_defects::test_27_the_zone_of_the_host_does_not_matter",),
    ),
    28: ("the interval of a target", ("scenarios/test_arc_defects::test_28_a_target_waits_after_success_only",)),
    29: (
        "the first run publishes only today's jobs",
        ("scenarios/test_arc_defects::test_29_a_new_target_begins_where_it_is_told",),
    ),
    30: (
        "sizes and units (the database's part)",
        (
            "sources/test_arex_rows::test_sizes_past_31_bits_are_repaired",
            "sources/test_arex_rows::test_transfer_sizes_and_kinds",
        ),
    ),
    31: (
        "IPv6 hosts, None, negative time, start that is the submission",
        ("scenarios/test_arc_defects::test_31_names_and_times", "policy/test_records::test_host_of_an_endpoint"),
    ),
    32: (
        "odd configuration crashes the run",
        (
            "scenarios/test_arc_defects::test_32_odd_names_in_the_configuration",
            "config/test_config::test_arbitrary_trees_are_refused_by_name",
        ),
    ),
    33: (
        "a lone CR breaks the signature",
        ("scenarios/test_arc_defects::test_33_carriage_returns", "transports/test_smime::test_any_plain_text_survives"),
    ),
}
# Defect -> where it belongs.
OTHER_PATHS: Final = {
    11: "republish of summaries: whole months",
    12: "summaries and sync: the same window for both",
    13: "sync: its SubmitHost is CAR's",
    14: "summaries: their role is CAR's",
    21: "SGAS: UTF-8 on the wire",
    22: "SGAS: vo_group and odd FQANs",
    23: "text messages: line ends and %%",
    30: "job info: units and zones, SGAS: network and disk",
    31: "SGAS: transfer URLs with passwords",
    32: "SGAS: a URL without a path",
}


def test_every_defect_has_its_place() -> None:
    assert SHOWN.keys() | OTHER_PATHS.keys() == set(range(1, 34))


@pytest.mark.parametrize("pointer", sorted({pointer for _, tests in SHOWN.values() for pointer in tests}))
def test_the_tests_that_are_named_exist(pointer: str) -> None:
    module, name = pointer.split("::")
    tree = ast.parse((HERE / f"{module}.py").read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def payloads(site: SiteUnderTest) -> list[str]:
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject])
    return [receiver.take(message).text for message in site.fake.messages(PROJECT, TOPIC)]


def child(site: SiteUnderTest, *arguments: str, zone: str = "UTC") -> Child:
    """With warnings as errors, on a host of that zone."""
    code = "import warnings\nwarnings.simplefilter('error')\nfrom publisher.cli.main import main; main()"
    words = ("--config", site.path, *arguments)
    return Child(*words, code=code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"TZ": zone})


@pytest.mark.parametrize("size", [-1, "many", 1.5])
def test_06_batch_sizes(site: SiteUnderTest, size: object) -> None:
    batch = jobs(700)
    site.fill(*batch)
    site.config["targets"]["egi"] |= {"batch_records": size}
    site.save()
    assert_plain(site.run("publish"), 78, "batch_records")
    assert site.fake.messages(PROJECT, TOPIC) == []
    site.config["targets"]["egi"] |= {"batch_records": 0}
    site.save()
    assert_plain(site.publish(), 0)
    messages = site.fake.messages(PROJECT, TOPIC)
    assert len(messages) == 2, "0 is no limit by count; the one by bytes holds"
    assert all(len(message.data) <= 950_000 for message in messages)
    assert Counter(map(told, site.received(with_openssl=False))) == Counter(map(truth, batch))


REMOVED: Final = frozenset({"key_file", "cert_file", "check_hostname"})  # arguments of HTTPSConnection until 3.11


@pytest.mark.slow
def test_10_nothing_that_python_3_12_removed() -> None:
    """What broke ARC's publisher there; that the rest works is shown by running the tests on it."""
    for path in sorted((HERE.parent / "publisher").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not called.endswith("ssl.wrap_socket"), path
                if called.endswith("HTTPSConnection"):
                    assert not {keyword.arg for keyword in node.keywords} & REMOVED, path
    assert 'requires-python = ">=3.11"' in (HERE.parent / "pyproject.toml").read_text(), "without an upper bound"


def test_17_two_publishers_at_once(site: SiteUnderTest) -> None:
    batch = jobs(400)
    site.fill(*batch)
    site.config["targets"]["egi"] |= {"batch_records": 20}
    site.save()
    both = [child(site, "publish", "--force") for _ in range(2)]
    ended = [(*one.communicate(timeout=PATIENCE_S), one.returncode) for one in both]
    assert {status for _, _, status in ended} <= {0, 75}, ended
    assert_plain(site.publish(), 0)
    assert Counter(map(told, site.received(with_openssl=False))) == Counter(map(truth, batch)), "each job once"


def test_20_a_run_that_only_ended_later_is_not_sent_again(site: SiteUnderTest) -> None:
    """Under the end time that was delivered the record would be the same; under the new one it would count twice."""
    (job,) = jobs(1)
    job = replace(job, local_job_id="1001")
    with site.arex() as arex:
        arex.write(job)
        assert_plain(site.publish(), 0)
        arex.finish_again(job, end_time=job.end_time + 4_000)
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert [told(row) for row in site.received()] == [truth(job)]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "XXX-20"])
def test_27_the_zone_of_the_host_does_not_matter(site: SiteUnderTest, zone: str) -> None:
    """20 hours east of Greenwich ARC's first watermark lies 16 hours ahead, and what ends until then is never sent."""
    now = datetime.now(UTC).replace(microsecond=0)
    (job,) = jobs(1)
    site.fill(replace(job, submit_time=int(now.timestamp()) - 1, events=()).moved_to(int(now.timestamp())))
    site.config["targets"]["egi"] |= {"start": "month"}
    site.config["source"] |= {"hold_off_s": 0}
    site.save()
    run = child(site, "publish", "--force", zone=zone)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, out + err
    (payload,) = payloads(site)
    made = datetime.fromisoformat(payload.partition('createTime="')[2].partition('"')[0])
    assert made.utcoffset() == timedelta(0)
    assert abs(made - now) < timedelta(minutes=2)
    with closing(sqlite3.connect(site.state)) as connection:
        (start,) = connection.execute("SELECT start_at FROM target").fetchone()
    assert datetime.fromtimestamp(start, UTC) == now.replace(day=1, hour=0, minute=0, second=0)
    last = site.run("status", "--json").json["targets"]["egi"]["last_success"]
    assert abs(datetime.fromisoformat(last) - now) < timedelta(minutes=2)


def test_28_a_target_waits_after_success_only(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"every": "24h", "attempts": 1}
    batch = jobs(5)
    site.fill(*batch)
    site.fake.faults.push(Fault.status(503))
    assert_complains(site.run("publish", "--json"), 75, "503")
    assert_plain(site.run("publish", "--json"), 0)
    assert len(site.received()) == 5, "a failed first run is tried again at once"
    asked = len(site.fake.requests)
    idle = site.run("publish", "--json")
    assert (idle.status, idle.json["targets"]["egi"]["outcome"]) == (0, "nothing")
    assert "not due before" in idle.json["targets"]["egi"]["reason"]
    assert len(site.fake.requests) == asked, "a target that is not due is not contacted"
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET last_success = last_success + 86400 * 365 * 10")
    site.fill(*jobs(3, seed=2))
    assert site.run("publish", "--json").json["targets"]["egi"]["records"] == 3, "a clock that was ahead blocks nothing"


@pytest.mark.parametrize(("start", "arrive"), [("all", 3), ("2015-01-01", 2), ("month", 1), ("now", 0)])
def test_29_a_new_target_begins_where_it_is_told(site: SiteUnderTest, start: str, arrive: int) -> None:
    now = int(datetime.now(UTC).timestamp())
    ends = [
        int(datetime(2009, 5, 1, tzinfo=UTC).timestamp()),
        int(datetime(2020, 5, 1, tzinfo=UTC).timestamp()),
        now - 1,
    ]
    batch = [replace(job.moved_to(end), submit_time=end - 1, events=()) for job, end in zip(jobs(3), ends, strict=True)]
    site.fill(*batch)
    site.config["targets"]["egi"] |= {"start": start}
    site.config["source"] |= {"hold_off_s": 0}
    assert_plain(site.publish(), 0)
    assert Counter(map(told, site.received())) == Counter(map(truth, batch[3 - arrive :]))
    assert_plain(site.publish(), 0)
    assert len(site.received()) == arrive


def test_31_names_and_times(site: SiteUnderTest) -> None:
    job = replace(jobs(1)[0], status="completed", wall_s=100, cpu_user_s=50, cpu_kernel_s=5)
    started = next((event.at for event in job.events if event.key == "LRMSSTART"), None)
    six = replace(job, endpoint_url="https://[2001:db8::1]:443/arex", client_host="2001:db8::17:4711", local_job_id="")
    bare = replace(job, job_id=f"{job.job_id[:-1]}x", endpoint_url="https://2001:db8::1:443/arex", local_job_id="2")
    negative = replace(job, job_id=f"{job.job_id[:-1]}y", wall_s=-1, local_job_id="3")
    site.fill(six, bare, negative)
    assert_plain(site.publish(), 65)
    rows = {row["LocalJobId"]: row for row in site.received()}
    assert rows.keys() == {job.job_id, "2"}, "an empty local id is the job's, a negative duration is set aside"
    assert rows[job.job_id]["SubmitHost"] == six.endpoint_url
    assert rows["2"]["SubmitHost"] == bare.endpoint_url
    for row in rows.values():
        assert row["MachineName"] == "2001:db8::1" or "2001" not in row["MachineName"], row["MachineName"]
        assert started is None or row["StartTime"] == started
    assert ">None<" not in payloads(site)[0]
    assert "P-" not in payloads(site)[0]


@pytest.mark.parametrize(
    "name", ["with:colon", "-dash", "a/b", "", "two words", "ünder", "%s %d", "../../x", "x" * 200]
)
def test_32_odd_names_in_the_configuration(site: SiteUnderTest, name: str) -> None:
    """A name becomes a key of the ledger and a part of a file's name: either it works or the configuration is wrong."""
    batch = jobs(3)
    site.fill(*batch)
    site.config["targets"] = {name: site.config["targets"]["egi"]}
    site.save()
    run = site.publish()
    if run.status == 0:
        assert list(run.json["targets"]) == [name]
        assert Counter(map(told, site.received())) == Counter(map(truth, batch))
    else:
        assert_plain(run, 78, "targets")
        assert site.fake.messages(PROJECT, TOPIC) == []


def test_33_carriage_returns(site: SiteUnderTest) -> None:
    batch = [
        replace(job, job_name=text, user=f"/O=Grid/CN={text}", queue=text)
        for job, text in zip(jobs(4), ("a\rb", "\r", "a\r\nb\r", "\r\n.\r\n--boundary--\r"), strict=True)
    ]
    site.fill(*batch)
    assert_plain(site.publish(), 0)
    assert Counter(map(told, site.received())) == Counter(map(truth, batch)), "verified by openssl where there is one"
