"""Benchmarks: what is read, what is refused, and which one a job gets."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given

from publisher.model.errors import Unfit
from publisher.model.job import Epoch
from publisher.model.rates import Benchmark, BenchmarkPolicy, BenchmarkRule, make_benchmark, parse_benchmark
from publisher.model.time import Window
from tests.support.jobs import ENDED, make_job
from tests.support.strategies import hostile_text

TEN = Benchmark(kind="HEPSPEC", value=Decimal(10))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("HEPSPEC:10.5", "HEPSPEC", "10.5"),
        ("hepscore23:11.90", "HEPscore23", "11.9"),
        ("SI2K:2625", "Si2k", "2625"),
        (" HEPSPEC : 1.0 ", "HEPSPEC", "1"),
        ("HEPSPEC:0.0005", "HEPSPEC", "0.001"),
        ("HEPSPEC:10.50049", "HEPSPEC", "10.5"),
        ("HEPSPEC:9999999.999", "HEPSPEC", "9999999.999"),
        ("HEPSPEC:1e2", "HEPSPEC", "100"),
        ("HEPSPEC:.5", "HEPSPEC", "0.5"),
        ("HEPSPEC:100", "HEPSPEC", "100"),
        ("HEPSPEC 12.26", "HEPSPEC", "12.26"),
        (" HEPscore23\t11.9 ", "HEPscore23", "11.9"),
    ],
)
def test_what_is_read(text: str, kind: str, value: str) -> None:
    benchmark = parse_benchmark(text)
    assert (benchmark.kind, benchmark.text) == (kind, value)
    assert benchmark.value == Decimal(value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fast", "benchmark-unreadable"),
        ("HEPSPEC:", "benchmark-unreadable"),
        ("HEPSPEC", "benchmark-unreadable"),
        ("HEPSPEC 12 26", "benchmark-unreadable"),
        ("HEPSPEC 12:26", "benchmark-unknown-type"),
        ("", "benchmark-unreadable"),
        ("HEPSPEC:12,26", "benchmark-unreadable"),
        ("HEPSPEC:1_000", "benchmark-unreadable"),
        ("HEPSPEC:\u0661", "benchmark-unreadable"),
        ("HEPSPEC:nan", "benchmark-unreadable"),
        ("HEPSPEC:inf", "benchmark-unreadable"),
        ("HEPSPEC:" + "1" * 65, "benchmark-unreadable"),
        ("HEPSPEC:1e9999", "benchmark-unreadable"),
        ("HS06:10", "benchmark-unknown-type"),
        ("HepSpec06:10", "benchmark-unknown-type"),
        (":10", "benchmark-unknown-type"),
        ("HEPSPEC:0", "benchmark-range"),
        ("HEPSPEC:-1", "benchmark-range"),
        ("HEPSPEC:-1e50", "benchmark-range"),
        ("HEPSPEC:0.0004", "benchmark-range"),
        ("HEPSPEC:1e-999", "benchmark-range"),
        ("HEPSPEC:9999999.9991", "benchmark-range"),
        ("HEPSPEC:1e999", "benchmark-range"),
    ],
)
def test_what_is_refused(text: str, rule: str) -> None:
    with pytest.raises(Unfit) as caught:
        parse_benchmark(text)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("HS06:10", "APEL knows Si2k, HEPSPEC, HEPscore23; write HEPSPEC for it"),
        ("hs23:10", "; write HEPscore23 for it"),
        ("HEPSPEC:0", "is not between 0.001 and 9999999.999"),
    ],
)
def test_what_to_write_instead(text: str, advice: str) -> None:
    with pytest.raises(Unfit, match=re.escape(advice)):
        parse_benchmark(text)


@given(hostile_text, hostile_text)
def test_nothing_else_comes_out(kind: str, value: str) -> None:
    for text in (f"{kind}:{value}", f"HEPSPEC:{value}"):
        try:
            benchmark = parse_benchmark(text)
        except Unfit:
            continue
        assert 0 < benchmark.value <= Decimal("9999999.999")
        assert make_benchmark(benchmark.kind, benchmark.text) == benchmark


def test_the_job_s_own_benchmark_comes_first() -> None:
    policy = BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(TEN,)),))
    own = policy.apply(make_job(benchmark="HEPscore23:11.9"))
    assert (own.benchmarks[0].text, own.origin, own.arex_default) == ("11.9", "the job", False)
    assert policy.apply(make_job(benchmark="HEPscore23:11.9", job_id="other")) is own


def test_one_that_cannot_be_read_is_none_and_no_rule_stands_in_for_it() -> None:
    policy = BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(TEN,)),))
    applied = policy.apply(make_job(benchmark="HEPSPEC:12,26"))
    assert applied.benchmarks == ()
    assert applied.unreadable is not None
    assert applied.unreadable.rule == "benchmark-unreadable"


def test_what_arex_writes_by_itself_is_marked_and_may_be_distrusted() -> None:
    rules = (BenchmarkRule(benchmarks=(TEN,), origin="records.benchmark"),)
    job = make_job(benchmark="HEPSPEC:1.0")
    assert BenchmarkPolicy(rules=rules).apply(job).arex_default
    distrusting = BenchmarkPolicy(rules=rules, distrust_default=True)
    applied = distrusting.apply(job)
    assert (applied.benchmarks, applied.origin, applied.arex_default) == ((TEN,), "records.benchmark", False)
    assert distrusting.apply(make_job(benchmark="HEPSPEC:1.001")).origin == "the job"
    assert BenchmarkPolicy(distrust_default=True).apply(job).benchmarks == ()


def test_the_first_rule_that_matches_speaks() -> None:
    def worth(value: str) -> tuple[Benchmark, ...]:
        return (make_benchmark("HEPSPEC", value),)

    policy = BenchmarkPolicy(
        rules=(
            BenchmarkRule(benchmarks=worth("1"), queue="long*", window=Window(end=Epoch(ENDED))),
            BenchmarkRule(benchmarks=worth("2"), queue="long*"),
            BenchmarkRule(benchmarks=worth("3"), host="wn9*.example.org"),
            BenchmarkRule(benchmarks=worth("4"), endpoint="https://ce02.*"),
            BenchmarkRule(benchmarks=worth("5"), queue="grid"),
        )
    )

    def said(**fields: object) -> str:
        applied = policy.apply(make_job(benchmark="", **fields))
        return applied.benchmarks[0].text if applied.benchmarks else applied.origin

    assert said(queue="long1", ended_at=ENDED - 1) == "1"
    assert said(queue="long1", ended_at=ENDED) == "2"
    assert said(hosts=("wn1.example.org", "wn91.example.org")) == "3"
    assert said(endpoint="https://ce02.example.org/arex") == "4"
    assert said(hosts=()) == "5"
    assert said(queue="Grid", hosts=()) == "nothing configured matches"


@pytest.mark.parametrize("own", ["HS06:12.26", "HEPSPEC:1.0", "HEPscore23:1190", "HEPSPEC 12,26", ""])
def test_a_rule_that_overrides_wins_over_what_the_job_says(own: str) -> None:
    policy = BenchmarkPolicy(
        rules=(
            BenchmarkRule(benchmarks=(make_benchmark("Si2k", "2500"),), queue="other"),
            BenchmarkRule(benchmarks=(TEN,), queue="grid", override=True, origin="records.benchmark, rule 2"),
            BenchmarkRule(benchmarks=(make_benchmark("HEPSPEC", "3"),)),
        )
    )
    applied = policy.apply(make_job(benchmark=own))
    assert (applied.benchmarks, applied.origin, applied.unreadable) == ((TEN,), "records.benchmark, rule 2", None)
    assert policy.apply(make_job(benchmark="HEPSPEC:7", queue="long")).origin == "the job"


@pytest.mark.parametrize("own", ["", "HEPSPEC 12.26", "hepspec:12.26", "HS06:12.26", "HEPSPEC:1:2", "12.26"])
def test_what_jura_ng_could_not_read_is_hepspec_1_until_its_last_month_is_over(own: str) -> None:
    """Its rows of that month are there under this key, and any other would count beside them."""
    rule = BenchmarkRule(benchmarks=(TEN,), origin="the rule")
    until = BenchmarkPolicy(rules=(rule,), jura_before=Epoch(ENDED + 1))
    said = until.apply(make_job(benchmark=own, ended_at=ENDED))
    assert [(one.kind, one.text) for one in said.benchmarks] == [("HEPSPEC", "1")]
    assert not said.arex_default, "no benchmark in arc.conf would change it"
    after = make_job(benchmark=own, ended_at=Epoch(ENDED + 1))
    assert until.apply(after) == BenchmarkPolicy(rules=(rule,)).apply(after)
    overridden = BenchmarkPolicy(rules=(replace(rule, override=True),), jura_before=Epoch(ENDED + 1))
    assert overridden.apply(make_job(benchmark=own, ended_at=ENDED)).origin == "the rule"


def test_what_jura_ng_could_read_stays_as_it_is() -> None:
    said = BenchmarkPolicy(jura_before=Epoch(ENDED + 1)).apply(make_job(benchmark="HEPSPEC:12.26", ended_at=ENDED))
    assert [one.text for one in said.benchmarks] == ["12.26"]


def test_of_rules_for_a_job_that_says_nothing_the_first_counts_whether_it_overrides_or_not() -> None:
    first = BenchmarkRule(benchmarks=(TEN,), origin="first")
    second = BenchmarkRule(benchmarks=(TEN,), override=True, origin="second")
    policy = BenchmarkPolicy(rules=(first, second))
    assert policy.apply(make_job(benchmark="")).origin == "first"
    assert policy.apply(make_job(benchmark="HEPSPEC:7")).origin == "second"


def test_jobs_of_one_rule_share_what_is_said() -> None:
    policy = BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(TEN,)),))
    assert policy.apply(make_job(benchmark="")) is policy.apply(make_job(benchmark="", job_id="other"))
    assert BenchmarkPolicy().apply(make_job(benchmark="")) is BenchmarkPolicy().apply(make_job(benchmark=""))
