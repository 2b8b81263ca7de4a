"""Summaries as text: no row replaces another at the server, and their totals are those of the jobs, however these are named."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.formats import job_format, summary_format
from publisher.formats.apel import summary_text, text_message
from publisher.formats.apel.summary_text import ApelSummary, create
from publisher.formats.apel.text_message import TextLine
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, make_benchmark
from publisher.model.totals import SummaryGroup
from publisher.policy.identity import Identity, IdentityMode
from publisher.policy.records import KeyStyle, RecordPolicy
from tests.formats.test_car import TELLING_JOBS
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.strategies import HOSTILE_TEXTS, examples, hostile_jobs, jobs, ordinary_jobs
from tests.support.strict_apel import Row
from tests.support.strict_apel_text import COMMON_KEY, KEYS, read_text, replaced, summarised
from tests.support.summed import summed
from tests.support.sync_counter import SyncCounter

RAW = ("apel-summary-0.2", "apel-summary-0.4")
NORMALISED = ("apel-summary-0.3", "apel-normalised-summary-0.4")
NAMES = RAW + NORMALISED
HEADERS = {
    "apel-summary-0.2": b"APEL-summary-job-message: v0.2\n",
    "apel-summary-0.3": b"APEL-summary-job-message: v0.3\n",
    "apel-summary-0.4": b"APEL-summary-job-message: v0.4\n",
    "apel-normalised-summary-0.4": b"APEL-normalised-summary-message: v0.4\n",
}
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
TOTALS = ("NumberOfJobs", "WallDuration", "CpuDuration")


def golden(name: str) -> Path:
    return Path(__file__).parent / "golden" / f"{name}.txt"


def groups(text: ApelSummary, published: Iterable[PublishedJob]) -> list[SummaryGroup]:
    published = list(published)
    for job in published:
        text.admit(job, NOW)
    return summed(published, text.grouping)


def payload(text: ApelSummary, published: Iterable[PublishedJob]) -> bytes:
    return text.frame.join(text.render(groups(text, published), NOW))


def rows(text: ApelSummary, *published: PublishedJob) -> list[Row]:
    """What is in the server's table after it loaded the summaries of these jobs."""
    made = payload(text, published)
    text.check(made)
    table, read = read_text(made, NOW)
    assert table == ("Summaries" if text.name in RAW else "NormalisedSummaries")
    left = replaced(table, read)
    assert left == read  # no row overwrote another
    return read


def admitted(text: ApelSummary, batch: Iterable[JobRecord], policy: RecordPolicy) -> list[PublishedJob]:
    """Those that can be counted; the others must be unfit, with a reason, and nothing else."""
    fit: list[PublishedJob] = []
    reasons: list[str] = []
    for job in batch:
        try:
            published = policy.describe(job)
            text.admit(published, NOW)
            fit.append(published)
        except Unfit as unfit:
            reasons.append(unfit.rule and unfit.reason)
    assert all(reasons)
    return fit


def described(policy: RecordPolicy | None = None, /, **overrides: Any) -> PublishedJob:
    return (policy or make_policy()).describe(make_job(**overrides))


def totals(read: Iterable[Row]) -> tuple[int, ...]:
    read = list(read)
    return tuple(sum(row[name] for row in read) for name in TOTALS)


def source_totals(published: Iterable[PublishedJob]) -> tuple[int, ...]:
    used = [one.job for one in published]
    return len(used), sum(job.wall_s for job in used), sum(job.cpu_user_s + job.cpu_kernel_s for job in used)


# Golden files


def golden_payload(name: str) -> bytes:
    return payload(create(name), [policy.describe(job) for job, policy in TELLING_JOBS])


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_is_what_we_render(name: str) -> None:
    """After an intended change: `python -m tests.formats.test_apel_summary` writes them anew; read the difference."""
    assert golden_payload(name).decode().splitlines() == golden(name).read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_carries_the_totals_of_the_telling_jobs(name: str) -> None:
    _, read = read_text(golden(name).read_bytes(), NOW)
    assert totals(read) == source_totals(policy.describe(job) for job, policy in TELLING_JOBS)


# Whatever comes: the totals are the source's


@given(st.lists(jobs, min_size=1, max_size=8), st.sampled_from(NAMES), st.sampled_from(list(KeyStyle)))
def test_rows_at_the_server_carry_the_totals_of_the_jobs(batch: list[JobRecord], name: str, style: KeyStyle) -> None:
    text = create(name)
    fit = admitted(text, batch, make_policy(key_style=style))
    if fit:
        assert totals(rows(text, *fit)) == source_totals(fit)


SPELLINGS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(("/CN=René", "/CN=Rene", "/cn=RENE ", "/CN=Rene, Org", "", "none", "/CN=作业", "/CN=??")),
        "vo": st.sampled_from(("atlas", "ATLAS", "", "null", "átlas")),
        "fqans": st.sampled_from(
            ((), ("/atlas/Role=pilot",), ("/atlas/Role=pilot/Capability=NULL",), ("/ATLAS/role=Pilot",), ("/atlas",),
             ("/atlas/Role=NULL/Capability=NULL",), ("atlas",), ("/atlas;/cms",))
        ),
        "benchmark": st.sampled_from(("HEPSPEC:10.50", "hepspec:10.5", "HEPSPEC:10.5001", "HEPSPEC:10.501", "Si2k:2625", "")),
        "endpoint": st.sampled_from(("https://a/", "https://A/", "https://b/")),
        "node_count": st.sampled_from((None, 0, 1, 11)),
        "cpu_count": st.sampled_from((None, 0, 1, 12)),
        "ended_at": st.sampled_from((ENDED, Epoch(ENDED - 86_400 * 20), Epoch(ENDED - 1))),
        "submitted_at": st.just(Epoch(ENDED - 86_400 * 40)),
        "started_at": st.none(),
        "wall_s": st.integers(0, 10**6),
        "interface": st.sampled_from(("org.nordugrid.arcrest", "org.nordugrid.gridftpjob", "org.nordugrid.internal")),
    }
)  # fmt: skip


@settings(max_examples=examples(200))
@given(st.lists(SPELLINGS, min_size=1, max_size=12), st.sampled_from(NAMES), st.sampled_from(list(KeyStyle)))
def test_spellings_that_the_server_takes_for_one_lose_no_job(
    batch: list[dict[str, Any]], name: str, style: KeyStyle
) -> None:
    published = [described(make_policy(key_style=style), **overrides) for overrides in batch]
    assert totals(rows(create(name), *published)) == source_totals(published)


# Jobs and summaries of the same database add up to the same


def as_summarised_from_jobs(name: str, published: list[PublishedJob]) -> tuple[str, list[Row]]:
    text = job_format(name)
    made = text.frame.join([text.render(one, NOW) for one in published])
    table, read = read_text(made, NOW)
    left = replaced(table, read)
    assert len(left) == len(published)
    return table, left


def fit_for_both(batch: Iterable[JobRecord], policy: RecordPolicy, jobs_in: str) -> list[PublishedJob]:
    """Jobs that can go out in either form, no two of them on one key."""
    text = job_format(jobs_in)
    fit: dict[tuple[object, ...], PublishedJob] = {}
    for published in admitted(create("apel-summary-0.4"), batch, policy):
        try:
            text.render(published, NOW)
        except Unfit:
            continue
        fit.setdefault(text.receiver_key(published), published)
    return list(fit.values())


def check_both_ways(published: list[PublishedJob], version: str, key: tuple[str, ...]) -> None:
    table, read = as_summarised_from_jobs(f"apel-job-{version}", published)
    summed = rows(create(f"apel-summary-{version}"), *published)
    assert summarised("Summaries", summed, key) == summarised(table, read, key)


@given(st.lists(jobs, min_size=1, max_size=8), st.sampled_from(("0.2", "0.4")))
def test_jobs_and_summaries_add_up_to_the_same(batch: list[JobRecord], version: str) -> None:
    fit = fit_for_both(batch, make_policy(), f"apel-job-{version}")
    if fit:
        check_both_ways(fit, version, KEYS["Summaries"])


@given(st.lists(SPELLINGS, min_size=1, max_size=12), st.sampled_from(("0.2", "0.4")))
def test_jobs_and_summaries_add_up_to_the_same_in_any_spelling(batch: list[dict[str, Any]], version: str) -> None:
    published = [described(local_id=f"job-{number}", **overrides) for number, overrides in enumerate(batch)]
    check_both_ways(published, version, KEYS["Summaries"])


@given(st.lists(SPELLINGS, min_size=1, max_size=8))
def test_in_jura_ngs_spelling_only_group_role_and_host_differ(batch: list[dict[str, Any]]) -> None:
    policy = make_policy(key_style=KeyStyle.JURA)
    published = [described(policy, local_id=f"job-{number}", **overrides) for number, overrides in enumerate(batch)]
    spelt = ("VOGroup", "VORole", "SubmitHost")
    check_both_ways(published, "0.2", tuple(name for name in KEYS["Summaries"] if name not in spelt))


@given(st.lists(ordinary_jobs(), min_size=1, max_size=8), st.sampled_from(NORMALISED))
def test_normalised_summaries_are_what_the_server_makes_of_the_jobs(batch: list[JobRecord], name: str) -> None:
    fit = fit_for_both(batch, make_policy(), "apel-job-0.3")
    table, read = as_summarised_from_jobs("apel-job-0.3", fit)
    theirs = summarised(table, read, COMMON_KEY)
    ours = summarised("NormalisedSummaries", rows(create(name), *fit), COMMON_KEY)
    assert ours.keys() == theirs.keys()
    for key, total in ours.items():
        assert [total[name] for name in TOTALS] == [theirs[key][name] for name in TOTALS]
        for column in ("NormalisedWallDuration", "NormalisedCpuDuration"):
            assert abs(total[column] - theirs[key][column]) <= Decimal("0.5")


@given(st.lists(jobs, max_size=8), st.sampled_from(list(KeyStyle)))
def test_sync_announces_what_the_summaries_hold(batch: list[JobRecord], style: KeyStyle) -> None:
    text = create("apel-summary-0.4")
    fit = admitted(text, batch, make_policy(key_style=style))
    counter = SyncCounter()
    for job in fit:
        counter.add(job)
    key = ("Site", "SubmitHost", "Month", "Year")
    held = summarised("Summaries", rows(text, *fit) if fit else [], key)
    announced = {
        (one.site.casefold(), one.submit_host.casefold() or "none", one.month, one.year): one.jobs
        for one in counter.counts()
    }
    assert {at: total["NumberOfJobs"] for at, total in held.items()} == announced


# Hostile texts


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS)
@pytest.mark.parametrize("field", ["job_name", "user", "queue", "local_user", "local_id", "vo", "lrms", "endpoint"])
@pytest.mark.some(4)
def test_a_hostile_text_leaves_its_neighbours_intact(hostile: str, field: str) -> None:
    text = create("apel-summary-0.2")
    neighbour = make_job(user="/CN=neighbour", vo="neighbour", fqans=(), endpoint="https://neighbour/")
    odd = make_job(**{"fqans": (), field: hostile})
    fit = admitted(text, (neighbour, odd), make_policy())
    read = rows(text, *fit)
    assert totals(read) == source_totals(fit)
    (clean,) = rows(text, make_policy().describe(neighbour))
    assert clean in read


@settings(max_examples=examples(200))
@given(hostile_jobs(most=20), st.sampled_from(list(KeyStyle)))
def test_a_job_that_cannot_be_counted_is_unfit_and_nothing_else(job: JobRecord, style: KeyStyle) -> None:
    text = create("apel-summary-0.4")
    for published in admitted(text, [job], make_policy(key_style=style)):
        assert rows(text, published)


def test_a_user_whose_name_holds_the_end_of_a_record_arrives_percent_escaped() -> None:
    (row,) = rows(create("apel-summary-0.2"), described(user="50 %% done"))
    assert row["GlobalUserName"] == "50 %25%25 done"


@pytest.mark.parametrize("field", ["local_id", "queue", "local_user", "lrms", "job_name"])
def test_what_a_summary_does_not_say_sets_no_job_aside(field: str) -> None:
    assert rows(create("apel-summary-0.2"), described(**{field: "50 %% done" + "x" * 300}))


def test_a_role_that_is_too_long_in_jura_ngs_spelling_is_set_aside() -> None:
    role = "Role=" + "x" * 250
    job = make_job(fqans=(f"/{'a' * 20}/{role}",))
    assert len(role) == 255
    text = create("apel-summary-0.2")
    assert admitted(text, [job], make_policy())
    assert not admitted(text, [job], make_policy(key_style=KeyStyle.JURA))


# What a record says


@pytest.mark.parametrize("name", NAMES)
def test_counts_and_infrastructure_are_always_said(name: str) -> None:
    made = payload(create(name), [described(node_count=None, cpu_count=None)])
    infrastructure = b"InfrastructureType: grid" if name in RAW else b"\nInfrastructure: grid"
    for line in (b"\nNodeCount: 0\n", b"\nProcessors: 0\n", infrastructure):
        assert line in made
    assert b"InfrastructureDescription" not in made  # servers before 2.5.0 refuse the message for it
    assert made.startswith(HEADERS[name])
    assert made.endswith(b"\n%%\n")


def test_the_month_has_no_leading_zero() -> None:
    assert b"\nMonth: 3\nYear: 2026\n" in payload(create("apel-summary-0.2"), [described()])


def test_spelling_of_keys_as_jura_ng_has_them() -> None:
    policy = make_policy(key_style=KeyStyle.JURA)
    row, other = rows(create("apel-summary-0.2"), described(policy), described(policy, fqans=("/atlas",)))
    assert {row["VORole"], other["VORole"]} == {"/Role=pilot", "Role=NULL"}
    assert row["SubmitHost"] == "arcrest:https://ce01.example.org:443/arex"


def test_spelling_of_keys_as_apel_has_them() -> None:
    made = payload(create("apel-summary-0.2"), [described(fqans=("/atlas",))])
    assert b"VORole" not in made
    (row,) = rows(create("apel-summary-0.2"), described())
    assert (row["VORole"], row["SubmitHost"]) == ("Role=pilot", make_job().endpoint)


def test_grid_and_local_jobs_stay_apart() -> None:
    local = make_policy(infrastructure="local", batch_server="batch.example.org", default_vo="local")
    read = rows(create("apel-summary-0.4"), described(), described(local, vo="", fqans=()))
    assert {(row["InfrastructureType"], row["VO"], row["SubmitHost"]) for row in read} == {
        ("grid", "atlas", make_job().endpoint),
        ("local", "local", "batch.example.org"),
    }


def test_users_can_be_withheld() -> None:
    policy = make_policy(identity=Identity(mode=IdentityMode.WITHHELD))
    (row,) = rows(create("apel-summary-0.2"), described(policy, user="/CN=a"), described(policy, user="/CN=b"))
    assert (row["GlobalUserName"], row["NumberOfJobs"]) == ("withheld", 2)


def test_several_benchmarks_travel_and_one_is_kept() -> None:
    made = (make_benchmark("HEPSPEC", "10.50"), make_benchmark("HEPscore23", "11.9"))
    policy = make_policy(benchmarks=BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=made),)))
    job = described(policy, benchmark="")
    assert b"\nServiceLevel: {HEPscore23: 11.9, HEPSPEC: 10.5}\n" in payload(create("apel-summary-0.4"), [job])
    (row,) = rows(create("apel-summary-0.4"), job)
    assert (row["ServiceLevelType"], row["ServiceLevel"]) == ("hepscore23", Decimal("11.900"))
    (main,) = rows(create("apel-summary-0.2"), job)
    assert (main["ServiceLevelType"], main["ServiceLevel"]) == ("HEPSPEC", Decimal("10.500"))
    (normalised,) = rows(create("apel-normalised-summary-0.4"), job)
    assert (normalised["ServiceLevelType"], normalised["NormalisedWallDuration"]) == ("hepscore23", 85_085)


@pytest.mark.parametrize("name", NORMALISED)
def test_normalised_rows_of_one_type_merge_and_of_two_stay_apart(name: str) -> None:
    published = [described(benchmark=text, wall_s=1_000) for text in ("HEPSPEC:10", "HEPSPEC:12", "Si2k:2500")]
    read = {row["ServiceLevelType"].lower(): row for row in rows(create(name), *published)}
    assert {kind: row["NormalisedWallDuration"] for kind, row in read.items()} == {"hepspec": 22_000, "si2k": 10_000}


# What must wait, and what must not go out at all


def test_a_month_that_has_not_begun_waits() -> None:
    now = datetime(2026, 4, 1, 0, 5, tzinfo=UTC)
    text = create("apel-summary-0.2")
    job = described(ended_at=Epoch(int(now.timestamp()) - 60))
    text.admit(job, now)
    (group,) = summed([job], text.grouping)
    with pytest.raises(Unfit, match="month-not-begun"):
        text.render([group], now)
    assert text.render([group], now.replace(hour=1))


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"ended_at": Epoch(ENDED + 2 * 86_400)}, "end-in-future"),
        ({"ended_at": Epoch(0)}, "end-out-of-range"),
        ({"wall_s": -1}, "wall-out-of-range"),
        ({"wall_s": 2**31}, "wall-out-of-range"),
        ({"cpu_user_s": -1}, "cpu-out-of-range"),
        ({"cpu_count": -1}, "processors-out-of-range"),
        ({"node_count": 2**31}, "nodes-out-of-range"),
        ({"user": "Content-Type: application/pkcs7-mime"}, "forbidden-text"),
        ({"user": "x" * 256}, "user-too-long"),
        ({"benchmark": "HEPSPEC:-1"}, "benchmark-range"),
    ],
)
def test_a_job_that_would_sink_the_message_is_set_aside_by_name(overrides: dict[str, Any], rule: str) -> None:
    with pytest.raises(Unfit) as caught:
        create("apel-summary-0.2").admit(described(**overrides), NOW)
    assert caught.value.rule == rule


@pytest.mark.parametrize("name", RAW)
def test_a_product_that_would_stop_the_servers_summariser_does_not_go_out(name: str) -> None:
    text = create(name)
    (group,) = groups(text, [described(benchmark="HEPSPEC:9999999.999", wall_s=2**31 - 1)])
    assert text.render([group], NOW)
    micro = group.normalised_wall_micro
    sum_of_all = group._replace(jobs=10_240, wall_s=10_240 * group.wall_s, normalised_wall_micro=10_240 * micro)
    with pytest.raises(Unfit, match="number-out-of-range"):
        text.render([sum_of_all], NOW)


# The check before the wire


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"v0.2", b"v0.3", "header"),
        (b"NodeCount: 1\n", b"", "NodeCount is missing"),
        (b"InfrastructureType: grid\n", b"", "InfrastructureType is missing"),
        (b"InfrastructureType: grid\n", b"Infrastructure: grid\n", "no key"),
        (b"Month: 3\n", b"Month: 13\n", "not a whole number"),
        (b"Month: 3\n", b"Month: 0\n", "is 0"),
        (b"Month: 3\n", b"Month: 2\n", "not in 2026-02"),
        (b"LatestEndTime: 1772719200", b"LatestEndTime: 1772719199", "not in 2026-03"),
        (b"ServiceLevel: 11.9", b"ServiceLevel: 11.90001", "not a benchmark value"),
    ],
)
def test_the_check_names_the_fault(old: bytes, new: bytes, fault: str) -> None:
    text = create("apel-summary-0.2")
    good = payload(text, [described()])
    text.check(good)
    assert old in good
    with pytest.raises(Unfit, match=fault):
        text.check(good.replace(old, new))


# What a line may be replaced by: too much, too little, and what no message may hold.
_ODD_LINES = (
    *(b"Month: 12", b"Month: 00", b"Year: 10000", b"Year: 2026 ", b"Processors: 2147483647", b"Processors: 2147483648"),
    *(
        b"VO: NULL",
        b"VO: nullable",
        b"VO: None",
        b"VO: " + 255 * b"x",
        b"VO: " + 256 * b"x",
        b"VO:  x",
        b"VO: ",
        b"VO: x\t",
    ),
    *(
        b"VO: a%%b",
        b"GlobalUserName: Application/PKCS7-MIME",
        b"SubmitHost: a",
        b"Site: a\nSite: b",
        b"Site a",
        b"",
        b"%%",
    ),
    *(b"ServiceLevel: 10000000", b"ServiceLevel: 1.5.5", b"ServiceLevel: {HEPSPEC: 1.5}", b"ServiceLevelType: HEPSPEX"),
    *(b"NormalisedCpuDuration: {HEPSPEC: 1}", b"NormalisedCpuDuration: {Si2k: 9999999999999999999}"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_looked_at_at_once_is_judged_as_line_by_line(name: str) -> None:
    text = create(name)
    good = payload(text, [described(), described(vo="other", benchmark="HEPscore23:12.5")])
    lines = good.split(b"\n")
    made = [b"\n".join((*lines[:at], odd, *lines[at + 1 :])) for odd in _ODD_LINES for at in range(len(lines))]
    made += [
        good[:at] + odd + good[at + 1 :] for odd in (b" ", b"%", b"0", b":", b"\n") for at in range(len(good) // 2)
    ]
    in_another_order = tuple(reversed(text.lines))  # no record is written so: each is looked at line by line
    for one in made:
        assert _fault(text, one, text.lines) == _fault(text, one, in_another_order)


def _fault(text: ApelSummary, made: bytes, lines: tuple[TextLine, ...]) -> str:
    try:
        text_message.check(made, text.frame, lines, summary_text.BETWEEN)
    except Unfit as unfit:
        return unfit.reason.partition(":")[0]  # which record; of several faults either way names another one
    return ""


def test_the_check_wants_whole_numbers_in_normalised_dictionaries() -> None:
    text = create("apel-normalised-summary-0.4")
    good = payload(text, [described()])
    text.check(good)
    with pytest.raises(Unfit, match="not whole"):
        text.check(good.replace(b"85085}", b"85085.5}"))


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_knows_it(name: str) -> None:
    text: Any = summary_format(name)
    assert isinstance(text, ApelSummary)
    assert text.name == name


if __name__ == "__main__":
    for _name in NAMES:
        golden(_name).write_bytes(golden_payload(_name))
