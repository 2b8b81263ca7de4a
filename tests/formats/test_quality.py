"""Quality rules: each one named, at its limit, and the fast path no laxer and no stricter than the table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.formats.apel.rules import (
    BENCHMARK_RULES,
    RUN_RULES,
    WHERE_RULES,
    WHO_RULES,
    require_run,
    require_text,
)
from publisher.formats.rules import WARNINGS, WITHOUT_QUEUES, Rule, RunRule, latest_end, require, warnings_about
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import BenchmarkPolicy
from publisher.sources import BY_INTERFACE
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.strategies import hostile_jobs

NOW = datetime.fromtimestamp(ENDED, UTC)
INT_MAX = 2**31 - 1

# job fields, rule broken or None
RUN_CASES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"local_id": "x" * 255}, None),
    ({"local_id": "x" * 256}, "local-id-too-long"),
    ({"local_id": "ß" * 127}, None),
    ({"local_id": "ß" * 128}, "local-id-too-long"),
    ({"local_id": " NONE "}, "local-id-missing"),
    ({"local_id": "null"}, "local-id-missing"),
    ({"local_id": "\u0301", "job_id": "x"}, "local-id-missing"),
    ({"local_id": "", "job_id": ""}, "local-id-missing"),
    ({"local_id": "nullable"}, None),
    ({"local_user": "u" * 255}, None),
    ({"local_user": "u" * 256}, None),
    ({"wall_s": INT_MAX}, None),
    ({"wall_s": INT_MAX + 1}, "wall-out-of-range"),
    ({"wall_s": -1}, "wall-out-of-range"),
    ({"wall_s": 0, "cpu_user_s": 0, "cpu_kernel_s": 0}, None),
    ({"cpu_user_s": -1}, "cpu-out-of-range"),
    ({"cpu_kernel_s": -1}, "cpu-out-of-range"),
    ({"cpu_user_s": INT_MAX, "cpu_kernel_s": 0}, None),
    ({"cpu_user_s": INT_MAX, "cpu_kernel_s": 1}, "cpu-out-of-range"),
    ({"cpu_count": None, "node_count": None}, None),
    ({"cpu_count": INT_MAX + 1}, "processors-out-of-range"),
    ({"cpu_count": -1}, "processors-out-of-range"),
    ({"node_count": INT_MAX + 1}, "nodes-out-of-range"),
    ({"node_count": -1}, "nodes-out-of-range"),
    ({"ended_at": Epoch(ENDED + 86_400)}, None),
    ({"ended_at": Epoch(ENDED + 86_401)}, "end-in-future"),
    ({"ended_at": Epoch(253_402_300_800)}, "end-out-of-range"),
    ({"ended_at": Epoch(0), "started_at": Epoch(0)}, "end-out-of-range"),
    ({"ended_at": Epoch(-1), "started_at": Epoch(-1)}, "end-out-of-range"),
    ({"started_at": ENDED}, None),
    ({"started_at": None, "submitted_at": Epoch(ENDED + 1)}, None),
    ({"started_at": None, "submitted_at": Epoch(ENDED + 1), "wall_s": INT_MAX}, None),
    ({"started_at": Epoch(0)}, None),
    ({"started_at": Epoch(-1)}, "start-out-of-range"),
]


def apel_fault(job: PublishedJob, now: datetime) -> Unfit | None:
    """The first broken rule."""
    try:
        require(WHERE_RULES, job.where)
        require_run(job, latest_end(now))
        require(WHO_RULES, job.who)
        require(BENCHMARK_RULES, job.benchmark)
    except Unfit as fault:
        return fault
    return None


@pytest.mark.parametrize(("fields", "rule"), RUN_CASES)
def test_rules_about_a_run(fields: dict[str, Any], rule: str | None) -> None:
    published = make_policy().describe(make_job(**fields))
    fault = apel_fault(published, NOW)
    assert (fault.rule if fault else None) == rule


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"site": "None"}, "site-missing"),
        ({"site": " "}, "site-missing"),
        ({"site": "s" * 256}, "site-too-long"),
        ({"submit_host": "h" * 256}, "submit-host-too-long"),
        ({"queue": "q" * 100}, None),
        ({"queue": "q" * 101}, None),
        ({"queue": ""}, None),
        ({"description": "d" * 101}, "description-too-long"),
        ({"infrastructure": "cloud"}, "infrastructure"),
        ({"machine_name": "localhost"}, None),
        ({"machine_name": ""}, "machine-name"),
        ({"machine_name": "ce_1.example.org"}, "machine-name"),
        ({"machine_name": "2001:db8::1"}, "machine-name"),
        ({"machine_name": "a" * 256}, "machine-name"),
    ],
)
def test_rules_about_a_place(fields: dict[str, Any], rule: str | None) -> None:
    job = make_policy().describe(make_job())
    fault = apel_fault(job._replace(where=job.where._replace(**fields)), NOW)
    assert (fault.rule if fault else None) == rule


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"user": "u" * 255}, None),
        ({"user": "u" * 256}, "user-too-long"),
        ({"user": "\u00bd" * 90}, "user-too-long"),
        ({"vo": "v" * 256, "fqans": ()}, "vo-too-long"),
        ({"fqans": (f"/{'g' * 100}/{'h' * 160}",)}, "group-too-long"),
        ({"fqans": (f"/atlas/Role={'r' * 260}",)}, "role-too-long"),
        ({"fqans": (f"/atlas/Role=x/{'c' * 250}",)}, "fqan-too-long"),
        ({"fqans": (f"/atlas/Role=x;{'c' * 250}",)}, None),
    ],
)
def test_rules_about_a_user(fields: dict[str, Any], rule: str | None) -> None:
    fault = apel_fault(make_policy().describe(make_job(**fields)), NOW)
    assert (fault.rule if fault else None) == rule


def test_a_job_without_benchmark_says_what_to_configure() -> None:
    job = make_policy(benchmarks=BenchmarkPolicy()).describe(make_job(benchmark=""))
    with pytest.raises(Unfit, match=r"benchmark-missing: .*records\.benchmark"):
        require(BENCHMARK_RULES, job.benchmark)


@given(hostile_jobs(most=30))
def test_no_job_breaks_the_rules_themselves(job: JobRecord) -> None:
    try:
        published = make_policy().describe(job)
    except Unfit:
        return
    fault = apel_fault(published, NOW)
    assert fault is None or fault.reason
    assert set(warnings_about(published)) <= {rule.name for rule in WARNINGS}


def test_rule_names_are_unique() -> None:
    rules: list[Rule[Any] | RunRule] = [*RUN_RULES, *WHERE_RULES, *WHO_RULES, *BENCHMARK_RULES, *WARNINGS]
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.receiver in ("apel", "car") for rule in rules)


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({}, ()),
        ({"cpu_user_s": 4 * 7_150, "cpu_kernel_s": 0}, ()),
        ({"cpu_user_s": 4 * 7_150, "cpu_kernel_s": 1}, ("cpu-over-wall",)),
        ({"cpu_count": 0}, ("cores-zero",)),
        ({"cpu_count": None}, ("cores-zero",)),
        ({"queue": ""}, ("queue-missing",)),
        ({"queue": "", "interface": "sacct"}, ("queue-missing",)),
        ({"queue": "", "interface": "htcondor"}, ()),  # which has no queues
        ({"started_at": Epoch(0)}, ("start-unknown",)),
        ({"started_at": None, "submitted_at": Epoch(ENDED + 1)}, ("start-after-end",)),
        ({"started_at": Epoch(ENDED + 1), "submitted_at": Epoch(ENDED + 1)}, ("start-after-end",)),
        ({"started_at": Epoch(ENDED + 1)}, ()),
        ({"queue": "q" * 101}, ("queue-too-long",)),
        ({"queue": "\ufdfa" * 20}, ("queue-too-long",)),
        ({"local_user": "u" * 256}, ("local-user-too-long",)),
        ({"local_user": "\ufdfa" * 20}, ("local-user-too-long",)),
    ],
)
def test_what_is_odd_is_a_warning_and_no_fault(fields: dict[str, Any], warnings: tuple[str, ...]) -> None:
    job = make_policy().describe(make_job(**fields))
    assert warnings_about(job) == warnings
    assert apel_fault(job, NOW) is None


def test_batch_systems_without_queues_are_known_as_their_importers_write_them() -> None:
    assert BY_INTERFACE.keys() >= WITHOUT_QUEUES


@pytest.mark.parametrize("value", ["application/pkcs7-mime", "x Application/X-PKCS7-MIME", "a%%b", "%%"])
def test_text_that_no_text_message_may_hold(value: str) -> None:
    with pytest.raises(Unfit, match="forbidden-text: queue holds"):
        require_text("queue", value)


@pytest.mark.parametrize("value", ["", "100%", "a%2Fb", "pkcs7-mime", "% %"])
def test_text_that_a_text_message_may_hold(value: str) -> None:
    require_text("queue", value)


@given(st.integers(0, 2**33))
def test_a_day_ahead_is_believed(moment: int) -> None:
    assert latest_end(datetime.fromtimestamp(moment, UTC)) == moment + 86_400
