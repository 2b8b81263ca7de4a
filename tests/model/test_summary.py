"""Monthly totals and sync counts: grouped as the server keys them, exact, the same in any order, small in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.formats.rows import SummaryRows
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, make_benchmark
from publisher.model.totals import (
    Grouping,
    SummaryGroup,
    SyncCount,
    by_preference,
    group_key,
    micro_of_a_second,
    rounded,
)
from publisher.policy.records import KeyStyle, RecordPolicy
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.strategies import ordinary_jobs
from tests.support.summed import summed as summed_by
from tests.support.sync_counter import SyncCounter

BY_LEVEL = Grouping(by_level=True, several=False)
DICTIONARY = Grouping(by_level=True, several=True)
NORMALISED = Grouping(by_level=False, several=False)
MARCH = Epoch(int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()))
APRIL = Epoch(int(datetime(2026, 4, 1, tzinfo=UTC).timestamp()))


def summed(jobs: Iterable[PublishedJob], grouping: Grouping = BY_LEVEL) -> list[SummaryGroup]:
    return summed_by(jobs, grouping)


def described(policy: RecordPolicy | None = None, /, **overrides: Any) -> PublishedJob:
    return (policy or make_policy()).describe(make_job(**overrides))


def test_a_group_carries_the_sums_and_the_stretch_of_its_jobs() -> None:
    policy = make_policy()
    (group,) = summed(
        described(policy, ended_at=Epoch(ENDED + after), wall_s=100 + after, cpu_user_s=7, cpu_kernel_s=1)
        for after in (5, 0, 9)
    )
    assert (group.jobs, group.wall_s, group.cpu_s) == (3, 314, 24)
    assert (group.earliest_end, group.latest_end) == (ENDED, ENDED + 9)
    assert (group.year, group.month) == (2026, 3)


@pytest.mark.parametrize("ends", [(0, 5, 9), (9, 5, 0)])
def test_groups_of_several_rows_stretch_over_all_their_jobs(ends: tuple[int, ...]) -> None:
    policy = make_policy()
    (group,) = summed(
        (described(policy, benchmark=f"HEPSPEC:{10 + after}", ended_at=Epoch(ENDED + after)) for after in ends),
        NORMALISED,
    )
    assert (group.jobs, group.earliest_end, group.latest_end) == (3, ENDED, ENDED + 9)


@pytest.mark.parametrize(
    ("field", "one", "other", "shown"),
    [
        ("user", "/CN=René", "/cn=rene ", ("/CN=Rene", "/cn=rene")),
        ("vo", "atlas", "ATLAS", ("atlas", "ATLAS")),
        ("vo", "", "None", ("", "")),
        ("endpoint", "https://CE.example.org/x", "https://ce.example.org/x", ("https://CE.example.org/x", "https://ce.example.org/x")),
        ("benchmark", "HEPSPEC:10.50", "hepspec:10.5", ("", "")),
        ("benchmark", "HEPSPEC:10.5", "HEPSPEC:10.5001", ("", "")),
        ("node_count", None, 0, ("", "")),
    ],
)  # fmt: skip
def test_what_the_server_takes_for_one_key_is_one_group(
    field: str, one: Any, other: Any, shown: tuple[str, str]
) -> None:
    """It keeps the spelling that came first."""
    for values, spelling in zip(((one, other), (other, one)), shown, strict=True):
        (group,) = summed(described(**{"fqans": (), field: value}) for value in values)
        assert group.jobs == 2
        assert spelling in (group.user, group.vo, group.submit_host, group.role)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"node_count": 1, "cpu_count": 12}, {"node_count": 11, "cpu_count": 2}),
        ({"benchmark": "HEPSPEC:10"}, {"benchmark": "HEPscore23:10"}),
        ({"benchmark": "HEPSPEC:10"}, {"benchmark": "HEPSPEC:10.001"}),
        ({"fqans": ("/atlas/Role=pilot",)}, {"fqans": ("/atlas/Role=production",)}),
        ({"fqans": ("/atlas",)}, {"fqans": ("/atlas/sub",)}),
        ({"user": "/CN=a"}, {"user": "/CN=b"}),
        ({"endpoint": "https://a/"}, {"endpoint": "https://b/"}),
    ],
)
def test_what_differs_in_the_key_stays_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert [group.jobs for group in summed((described(**one), described(**other)))] == [1, 1]


def test_an_fqan_with_and_without_capability_is_one_group() -> None:
    (group,) = summed(described(fqans=(fqan,)) for fqan in ("/atlas/Role=pilot/Capability=NULL", "/atlas/Role=pilot"))
    assert (group.jobs, group.vo_group, group.role) == (2, "/atlas", "Role=pilot")


def test_months_are_utc_and_half_open() -> None:
    groups = summed(described(ended_at=moment) for moment in (MARCH, Epoch(APRIL - 1), APRIL, Epoch(MARCH - 1)))
    assert [(group.year, group.month, group.jobs) for group in groups] == [(2026, 2, 1), (2026, 3, 2), (2026, 4, 1)]


def test_a_month_has_begun_when_the_servers_clock_surely_says_so() -> None:
    (group,) = summed([described(ended_at=APRIL)])
    assert not group.has_begun(datetime(2026, 4, 1, 0, 9, 59, tzinfo=UTC))
    assert group.has_begun(datetime(2026, 4, 1, 0, 10, tzinfo=UTC))


@pytest.mark.parametrize("ended_at", [2**45, -(2**45)])
def test_an_end_outside_the_calendar_is_unfit(ended_at: int) -> None:
    with pytest.raises(Unfit, match="end-out-of-range"):
        summed([described(ended_at=Epoch(ended_at))])


def test_without_a_benchmark_a_job_is_not_counted() -> None:
    with pytest.raises(Unfit, match="benchmark-missing"):
        summed([described(make_policy(benchmarks=BenchmarkPolicy()), benchmark="")])


# Benchmarks


def several(*texts: str) -> RecordPolicy:
    made = tuple(make_benchmark(*text.split(":")) for text in texts)
    return make_policy(benchmarks=BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=made),)))


def test_of_several_benchmarks_the_group_is_made_on_the_one_that_the_server_keeps() -> None:
    jobs = [
        described(several("HEPSPEC:10", "HEPscore23:11.9"), benchmark=""),
        described(several("HEPscore23:11.9", "HEPSPEC:12"), benchmark=""),
        described(several("si2k:2500", "HEPscore23:11.9"), benchmark=""),
    ]
    (group,) = summed(jobs, DICTIONARY)
    assert (group.jobs, group.kind) == (3, "HEPscore23")
    assert [benchmark.text for benchmark in group.benchmarks] == ["11.9"]  # the others are not those of all jobs
    (pair,) = summed(jobs[:1], DICTIONARY)
    assert [benchmark.kind for benchmark in pair.benchmarks] == ["HEPscore23", "HEPSPEC"]
    assert [(main.kind, main.jobs) for main in summed(jobs)] == [("HEPSPEC", 1), ("HEPscore23", 1), ("Si2k", 1)]


def test_a_type_that_stands_twice_is_said_once() -> None:
    twice = (make_benchmark("hepspec", "10"), make_benchmark("HEPSPEC", "11"))
    assert by_preference(twice) == twice[:1]


def test_normalised_groups_of_different_values_add_up() -> None:
    (group,) = summed((described(benchmark=f"HEPSPEC:{value}", wall_s=1000) for value in ("10", "12.5")), NORMALISED)
    assert (group.jobs, group.wall_s, group.normalised_wall_s) == (2, 2000, 22_500)


def test_normalised_seconds_are_rounded_once() -> None:
    policy = make_policy()
    jobs = [described(policy, benchmark="HEPSPEC:0.4", wall_s=1, cpu_user_s=1, cpu_kernel_s=0) for _ in range(5)]
    (group,) = summed(jobs, NORMALISED)
    assert (group.normalised_wall_s, group.normalised_cpu_s) == (2, 2)  # five times rounded it would be 0


@pytest.mark.parametrize(("micro", "seconds"), [(499_999, 0), (500_000, 1), (1_500_000, 2), (2_500_000, 3)])
def test_half_a_second_goes_up(micro: int, seconds: int) -> None:
    assert rounded(micro) == seconds


def test_si2k_counts_a_250th_exactly() -> None:
    assert micro_of_a_second(make_benchmark("si2k", "2500")) == micro_of_a_second(make_benchmark("HEPSPEC", "10"))
    for text in ("0.001", "9999999.999", "2625.007"):
        assert Decimal(micro_of_a_second(make_benchmark("si2k", text))) == Decimal(text) * 1_000_000 / 250


# In any order, in parts, in bounded memory

batches = st.lists(ordinary_jobs(), max_size=8)


@given(batches, st.randoms(use_true_random=False), st.sampled_from((BY_LEVEL, DICTIONARY, NORMALISED)))
def test_order_makes_no_difference_but_in_spelling(batch: list[JobRecord], random: Any, grouping: Grouping) -> None:
    jobs = [make_policy().describe(job) for job in batch]
    whole = summed(jobs, grouping)
    mixed = summed(random.sample(jobs, len(jobs)), grouping)
    assert [(group_key(grouping, one), one[13:]) for one in mixed] == [
        (group_key(grouping, one), one[13:]) for one in whole
    ]
    assert sum(group.jobs for group in whole) == len(jobs)
    assert sum(group.wall_s for group in whole) == sum(job.job.wall_s for job in jobs)
    assert len({group_key(grouping, group) for group in whole}) == len(whole)


def _passing(count: int) -> Iterator[PublishedJob]:
    """Jobs whose users are described anew each time, so that objects die and their ids come again."""
    for number in range(count):
        yield described(user=f"/CN={number % 3}", wall_s=number % 3)


@pytest.mark.slow
def test_an_object_that_died_is_not_taken_for_the_next() -> None:
    groups = summed(_passing(25_000))  # more than the short cuts hold
    assert [(group.user, group.wall_s // max(group.jobs, 1)) for group in groups] == [
        (f"/CN={number}", number) for number in range(3)
    ]
    assert sum(group.jobs for group in groups) == 25_000


def test_memory_does_not_grow_with_the_jobs() -> None:
    policy, job = make_policy(), make_job()
    rows = SummaryRows(BY_LEVEL)
    fields = rows.of(policy.describe(job))
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(20_000):
            assert rows.of(policy.describe(job)) is fields
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 40_000


# Sync


def test_sync_counts_by_submit_host_and_utc_month() -> None:
    counter = SyncCounter()
    for overrides in (
        {"endpoint": "https://a/"},
        {"endpoint": "HTTPS://A/ "},
        {"endpoint": "https://b/"},
        {"endpoint": "https://a/", "ended_at": APRIL},
    ):
        counter.add(described(**overrides))
    assert [(one.submit_host, one.month, one.jobs) for one in counter.counts()] == [
        ("HTTPS://A/", 3, 2),
        ("https://b/", 3, 1),
        ("https://a/", 4, 1),
    ]


def test_sync_counts_can_be_fed_and_merged() -> None:
    counter, other = SyncCounter(), SyncCounter()
    counter.add(described())
    before = SyncCount(site="example-site", submit_host=make_job().endpoint, year=2026, month=3, jobs=41)
    other.add_count(before)
    counter.merge(other)
    (count,) = counter.counts()
    assert (count.site, count.jobs) == ("EXAMPLE-SITE", 42)


@given(batches)
def test_sync_and_summaries_count_the_same_jobs(batch: list[JobRecord]) -> None:
    jobs = [make_policy(key_style=KeyStyle.JURA).describe(job) for job in batch]
    counter = SyncCounter()
    for job in jobs:
        counter.add(job)
    summaries: dict[tuple[str, int, int], int] = {}
    for group in summed(jobs):
        at = (group.submit_host, group.year, group.month)
        summaries[at] = summaries.get(at, 0) + group.jobs
    assert {(one.submit_host, one.year, one.month): one.jobs for one in counter.counts()} == summaries


# Spelling of keys


@pytest.mark.parametrize(
    ("interface", "spelt"),
    [
        ("org.nordugrid.arcrest", "arcrest:https://ce/"),
        ("org.nordugrid.internal", "ternal:https://ce/"),
        ("org.nordugrid.gridftpjob", "https://ce/"),
        ("org.ogf.glue.emies.activitycreation", "https://ce/"),
        ("", "https://ce/"),
    ],
)
def test_the_submit_host_as_jura_ng_writes_it(interface: str, spelt: str) -> None:
    policy = make_policy(key_style=KeyStyle.JURA)
    where = described(policy, interface=interface, endpoint="https://ce/").where
    assert (where.submit_host, where.receiver_host) == ("https://ce/", spelt)
    assert described(interface=interface, endpoint="https://ce/").where.receiver_host == "https://ce/"


@pytest.mark.parametrize(
    ("vo", "fqans", "jura", "apel"),
    [
        ("atlas", ("/atlas/Role=production/Capability=NULL",), ("/atlas", "/Role=production"), ("/atlas", "Role=production")),
        ("atlas", ("/atlas/sub",), ("/atlas/sub", "Role=NULL"), ("/atlas/sub", "")),
        ("atlas", ("/atlas/Capability=NULL",), ("/atlas/Capability", "Role=NULL"), ("/atlas/Capability=NULL", "")),
        ("atlas", (), ("/atlas", "Role=NULL"), ("", "")),
    ],
)  # fmt: skip
def test_group_and_role_in_both_styles(
    vo: str, fqans: tuple[str, ...], jura: tuple[str, str], apel: tuple[str, str]
) -> None:
    for style, spelt in ((KeyStyle.JURA, jura), (KeyStyle.APEL, apel)):
        (group,) = summed([described(make_policy(key_style=style), vo=vo, fqans=fqans)])
        assert (group.vo_group, group.role) == spelt


def test_the_batch_server_is_the_submit_host_of_local_jobs_in_both_styles() -> None:
    for style in KeyStyle:
        policy = make_policy(key_style=style, infrastructure="local", batch_server="batch.example.org")
        (group,) = summed([described(policy)])
        assert (group.submit_host, group.infrastructure) == ("batch.example.org", "local")
