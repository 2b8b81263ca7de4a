"""The form of a record: whatever is of it passes the check of its format, and what ordinary jobs make is of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.formats.apel.car import Car
from publisher.formats.base import Formed, JobFormat
from publisher.formats.sgas.ogf_ur import OgfUr
from publisher.formats.xml import pattern
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.model.message import Batch, Progress
from publisher.model.rates import Charge, Tariff
from publisher.policy.records import RecordPolicy
from publisher.publishing.round.assemble import assemble_message
from tests.support.jobs import ENDED, make_job, make_policy, make_record
from tests.support.strategies import HOSTILE_TEXTS, examples, jobs, ordinary_jobs

NOW: Final = datetime.fromtimestamp(ENDED + 3_600, UTC)
FORMATS: Final[tuple[Car | OgfUr, ...]] = (Car(), OgfUr())
# What makes a document invalid, or its receiver stumble, where it comes in the place of something else.
POISON: Final = (
    b"", b" ", b"&", b"&#0;", b"&#8;", b"&lt", b"<", b">", b"]]>", b'"', b"'", b"\x00", b"\x08", b"\t", b"\n", b"\r",
    b"\x7f", b"\x80", "é".encode(), "\ufffe".encode(), b"<!-- x -->", b"<?x?>", b"<x/>", b"</UsageRecord>", b"0", b"-1",
    b"00", b"32768", b"256", b"99999999999999999999", b"1.5", b"1e9", b"NaN", b"None", b"null", b" none ", b"PT", b"P1W",
    b"2026-02-29T00:00:00Z", b"2026-13-01T00:00:00Z", b"2026-04-31T00:00:00Z", b"2026-01-01T24:00:00Z", b"grid ", b"HS06",
    b"2026-01-01T00:00:60Z", b"1969-12-31T23:59:59Z", b"0000-01-01T00:00:00Z", b"2100-02-29T00:00:00Z", b"a.example.org",
    b"wn_01", b"[2001:db8::1]", b"application/pkcs7-mime", b"Application/X-PKCS7-MIME", b"all", b"Completed", b"x" * 256,
    b"x" * 1001, b"x" * 2501, b"xx." * 86 + b"xx", b"/", b"7-mime",
)  # fmt: skip
# Where a record is cut: around tags, attributes and values.
TOKENS: Final = re.compile(rb'[<>"=]|[^<>"=]+')


def policies() -> tuple[RecordPolicy, ...]:
    return make_policy(), make_policy(infrastructure="local", batch_server="batch.example.org", vo_groups=("/a/b",))


def rendered(fmt: JobFormat, job: JobRecord, policy: RecordPolicy) -> bytes | None:
    try:
        return fmt.render(policy.describe(job), NOW)
    except Unfit:
        return None


def holds(fmt: Car | OgfUr, record: bytes) -> None:
    """What is of the form must pass the check."""
    if fmt.matches(record):
        fmt.check(fmt.frame.join([record]))


@st.composite
def spoilt(draw: st.DrawFn, record: bytes) -> bytes:
    """The record with some of its parts replaced, left out, doubled, or swapped with others."""
    parts = TOKENS.findall(record)
    for _ in range(draw(st.integers(1, 3))):
        at, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        match draw(st.sampled_from(["replace", "within", "drop", "double", "swap", "copy", "cut"])):
            case "replace":
                parts[at] = draw(st.sampled_from(POISON))
            case "within":
                place = draw(st.integers(0, len(parts[at])))
                parts[at] = parts[at][:place] + draw(st.sampled_from(POISON)) + parts[at][place:]
            case "drop":
                del parts[at]
            case "double":
                parts[at:at] = parts[at:other]
            case "swap":
                parts[at], parts[other] = parts[other], parts[at]
            case "copy":
                parts[at] = parts[other]
            case _:
                del parts[min(at, other) : max(at, other)]
        parts = TOKENS.findall(b"".join(parts)) or [b"x"]
    return b"".join(parts)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.data_too_large])
@given(job=jobs, policy=st.sampled_from(policies()), data=st.data())
def test_what_is_of_the_form_passes_the_check(
    fmt: Car | OgfUr, job: JobRecord, policy: RecordPolicy, data: st.DataObject
) -> None:
    record = rendered(fmt, job, policy)
    if record is not None:
        holds(fmt, record)
        holds(fmt, data.draw(spoilt(record)))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.slow
def test_poison_in_any_place_is_not_of_the_form_or_passes_the_check(fmt: Car | OgfUr) -> None:
    job = make_job(projects=("p", "q"), client_host="ce.example.org:1", gpu_count=2)
    tariff = Tariff(unit="EUR", formula="a * 2", description="all")
    record = fmt.render(make_policy().describe(job)._replace(charge=Charge(amount=Decimal("1.25"), tariff=tariff)), NOW)
    assert b"<Charge" in record
    assert fmt.matches(record)
    spans = [match.span() for match in TOKENS.finditer(record)]
    refused = 0
    for begin, end in spans:
        for poison in POISON:
            for bad in (record[:begin] + poison + record[end:], record[:end] + poison + record[end:]):
                refused += not fmt.matches(bad)
                holds(fmt, bad)
    assert refused > len(spans) * len(POISON), "most of these are nothing like a record"


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("name", ["job_name", "local_id", "user", "queue", "local_user", "local_group", "status"])
def test_raw_hostile_text_is_not_of_the_form_or_passes_the_check(fmt: Car | OgfUr, name: str) -> None:
    """As if the escape were forgotten."""
    record = fmt.render(make_policy().describe(make_job(**{name: "completed"})), NOW)
    for text in HOSTILE_TEXTS:
        for raw in (text.encode("utf-8", "surrogateescape"), text.encode("latin-1", "replace")):
            holds(fmt, record.replace(b">completed<", b">" + raw + b"<"))


@given(job=ordinary_jobs())
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_a_record_in_ascii_is_of_the_form(fmt: Car | OgfUr, job: JobRecord) -> None:
    """Or else the schema decides, which is right and slow."""
    record = rendered(fmt, job, make_policy())
    if record is not None and record.isascii() and b"&#" not in record and b"></Queue>" not in record:
        assert fmt.matches(record)


@pytest.mark.parametrize(
    ("moment", "known"),
    [(0, True), (951_782_400, True), (4_102_444_799, True), (4_102_444_800, False), (951_868_799, True)],
)
def test_days_are_those_of_the_calendar(moment: int, known: bool) -> None:
    said = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert bool(re.fullmatch(pattern.TIME, said)) is known


def test_every_day_until_2100_and_no_other() -> None:
    date = re.compile(pattern.TIME)
    for year in range(1970, 2100):
        for month in range(1, 13):
            for day in range(1, 32):
                try:
                    datetime(year, month, day, tzinfo=UTC)
                except ValueError:
                    there = False
                else:
                    there = True
                assert bool(date.fullmatch(f"{year}-{month:02}-{day:02}T00:00:00Z")) is there


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("check", [slice(None), slice(0)])
def test_a_broken_record_is_found_in_its_message_and_no_other(fmt: Car | OgfUr, check: slice) -> None:
    """Also where the schema is not asked about every message: its form gives it away."""
    assert isinstance(fmt, Formed)
    records = []
    for number in range(5):
        job = make_job(job_id=f"job{number}", job_name="René" if number == 1 else "x")
        content = fmt.render(make_policy().describe(job), NOW)
        if number == 3:
            content = content.replace(b"<Status>completed", b"<Status>")
            content = content.replace(b"PT7150S", b"PT")
        records.append(make_record(job, content))
    made = assemble_message(fmt, "egi", Batch(records=list(records), progress=Progress()), NOW, check=check)
    assert [record.job_id for record, _ in made.faults] == ["job3"]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.data_too_large])
@given(several=st.lists(st.one_of(jobs, ordinary_jobs()), min_size=2, max_size=4), data=st.data())
def test_what_was_rendered_before_makes_no_difference(
    fmt: Car | OgfUr, several: list[JobRecord], data: st.DataObject
) -> None:
    """Whatever jobs have in common, and in whatever they differ: what repeats is remembered by all that it hangs on."""
    names = JobRecord._fields
    policy = data.draw(st.sampled_from(policies()))
    mixed = [
        one._replace(**{name: getattr(other, name)})
        for one, other in pairwise(several)
        for name in data.draw(st.lists(st.sampled_from(names), min_size=3, max_size=6, unique=True))
    ]
    for job in (*several, *mixed):
        assert rendered(fmt, job, policy) == rendered(type(fmt)(), job, policy)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_each_value_of_a_job_is_told_as_if_it_were_the_first(fmt: Car | OgfUr) -> None:
    """The same value by value: ordinary jobs that differ in one thing only."""
    odd: dict[str, list[Any]] = {
        "str": ["", "x", "y.example.org"],
        "int | None": [None, 0, 1, 2],
        "tuple[str, ...]": [(), ("a",), ("a", "b"), ("b", "a")],
    }
    alike = policies()
    for name, kind in JobRecord.__annotations__.items():
        for value in odd.get(getattr(kind, "__forward_arg__", str(kind)), []):
            job = make_job(**{name: value})
            for policy in alike:
                assert rendered(fmt, job, policy) == rendered(type(fmt)(), job, policy), (name, value)
