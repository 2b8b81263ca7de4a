"""Job messages as text: as the golden files have them, as APEL reads them, whatever a job and its neighbours are called."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.formats import job_format
from publisher.formats.apel.job_text import ApelJob, create
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, make_benchmark
from publisher.model.text import ascii_text
from publisher.policy.identity import VoRule
from publisher.policy.records import KeyStyle, RecordPolicy
from tests.formats.test_car import TELLING_JOBS
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.patience import PATIENCE_S
from tests.support.strategies import HOSTILE_TEXTS, examples, hostile_jobs, jobs, ordinary_jobs
from tests.support.strict_apel import Row, read_car
from tests.support.strict_apel_text import Refused, read_text, replaced

NAMES = ("apel-job-0.2", "apel-job-0.3", "apel-job-0.4")
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
NOT_GIVEN = ("", "none", "null")


def golden(name: str) -> Path:
    return Path(__file__).parent / "golden" / f"{name}.txt"


def payload(text: ApelJob, published: list[PublishedJob]) -> bytes:
    return text.frame.join([text.render(one, NOW) for one in published])


def rows(text: ApelJob, *described: PublishedJob) -> list[Row]:
    made = payload(text, list(described))
    text.check(made)
    table, read = read_text(made, NOW)
    assert table == "JobRecords"
    return read


def one_row(job: JobRecord, policy: RecordPolicy | None = None, name: str = "apel-job-0.3") -> Row:
    (row,) = rows(create(name), (policy or make_policy()).describe(job))
    return row


def tried(text: ApelJob, job: JobRecord, policy: RecordPolicy) -> PublishedJob | Unfit:
    """The job as published when it can be rendered, else the verdict; no other exception."""
    try:
        published = policy.describe(job)
        text.render(published, NOW)
    except Unfit as unfit:
        return unfit
    return published


# Golden files


def golden_payload(name: str) -> bytes:
    return payload(create(name), [policy.describe(job) for job, policy in TELLING_JOBS])


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_is_what_we_render(name: str) -> None:
    """After an intended change: `python -m tests.formats.test_apel_job` writes them anew; read the difference."""
    assert golden_payload(name).decode().splitlines() == golden(name).read_text().splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_says_what_the_golden_car_says(name: str) -> None:
    _, read = read_text(golden(name).read_bytes(), NOW)
    car = read_car((golden(name).parent / "car.xml").read_bytes(), NOW)
    assert len(read) == len(TELLING_JOBS)
    for row, other in zip(read, car, strict=True):
        # CAR must name a local user, and says one type of a dictionary in the server's own spelling
        differing = {key for key, value in other.items() if row[key] != value} - {"ServiceLevelType", "LocalUserId"}
        assert not differing
        assert row["ServiceLevelType"].lower() == other["ServiceLevelType"].lower()


# Whatever comes


@given(st.lists(jobs, min_size=1, max_size=4), st.sampled_from(NAMES), st.booleans())
def test_every_batch_reads_back_as_the_jobs_it_was_made_of(batch: list[JobRecord], name: str, ruled: bool) -> None:
    text = create(name)
    rules = (VoRule(field="group", pattern="*", vo="ruled", group="/ruled/x", override=True),) if ruled else ()
    policy = make_policy(vo_rules=rules)
    outcomes = [tried(text, job, policy) for job in batch]
    fit = list({text.receiver_key(one): one for one in outcomes if isinstance(one, PublishedJob)}.values())
    assert all(one.rule and one.reason for one in outcomes if isinstance(one, Unfit))
    if not fit:
        return
    read = rows(text, *fit)
    left = replaced("JobRecords", read)
    assert len(left) == len(fit)
    for row, published in zip(left, fit, strict=True):
        job = published.job
        assert (row["WallDuration"], row["CpuDuration"]) == (job.wall_s, job.cpu_user_s + job.cpu_kernel_s)
        assert (row["Processors"], row["NodeCount"]) == (job.cpu_count or 0, job.node_count or 0)
        assert (row["StartTime"], row["EndTime"]) == (published.started_at, published.ended_at)
        main = published.benchmark.benchmarks[0]
        assert (row["ServiceLevelType"].lower(), row["ServiceLevel"]) == (main.kind.lower(), main.value)
        assert (row["VO"], row["VOGroup"], row["VORole"]) == tuple(
            stored(value) for value in (published.who.vo, published.who.group, published.who.role)
        )
        assert row["GlobalUserName"] == stored(published.who.user)


def stored(text: str) -> str:
    text = ascii_text(text)
    return "None" if text.lower() in NOT_GIVEN else text


@given(ordinary_jobs(), st.sampled_from(NAMES))
def test_an_ordinary_job_is_never_set_aside(job: JobRecord, name: str) -> None:
    assert create(name).render(make_policy().describe(job), NOW)


@settings(max_examples=examples(300))
@given(hostile_jobs(most=20))
def test_a_job_that_cannot_be_published_is_unfit_and_nothing_else(job: JobRecord) -> None:
    text = create("apel-job-0.3")
    outcome = tried(text, job, make_policy())
    if isinstance(outcome, PublishedJob):
        assert rows(text, outcome)


@pytest.mark.parametrize("hostile", HOSTILE_TEXTS)
@pytest.mark.parametrize("field", ["job_name", "user", "queue", "local_user", "local_id", "vo", "lrms", "endpoint"])
@pytest.mark.some(4)
def test_a_hostile_text_leaves_its_neighbours_intact(hostile: str, field: str) -> None:
    text = create("apel-job-0.4")
    neighbour = make_policy().describe(make_job(local_id="neighbour"))
    job = make_job(**{"local_id": "hostile", "fqans": (), field: hostile})
    outcome = tried(text, job, make_policy())
    published = [neighbour, outcome, neighbour] if isinstance(outcome, PublishedJob) else [neighbour]
    read = rows(text, *published)
    assert len(read) == len(published)
    (clean,) = rows(text, neighbour)
    assert (read[0], read[-1]) == (clean, clean)


@pytest.mark.parametrize("name", ["fit & plot", "50 %% done", "résumé", "Content-Type: application/pkcs7-mime"])
def test_a_job_name_is_not_sent_at_all(name: str) -> None:
    assert one_row(make_job(job_name=name)) == one_row(make_job(job_name=""))


def test_names_of_people_and_places_arrive() -> None:
    row = one_row(make_job(user="CN=Müller\\, Jørgen,O=Example, Inc.", queue="résumé & 5 % more", fqans=("/atlas",)))
    assert row["GlobalUserName"] == "CN=Muller\\, Jorgen,O=Example, Inc."
    assert row["Queue"] == "resume & 5 % more"
    assert (row["VO"], row["VOGroup"], row["VORole"]) == ("atlas", "/atlas", "None")


# What cannot stand in a text message


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("local_id", "50 %% done"),
        ("endpoint", "50 %% done"),
        *((field, "Content-Type: application/pkcs7-mime") for field in ("user", "local_id", "endpoint")),
    ],
)
def test_a_key_that_would_sink_the_message_is_set_aside_by_name(field: str, text: str) -> None:
    with pytest.raises(Unfit) as caught:
        one_row(make_job(**{field: text}))
    assert caught.value.rule == "forbidden-text"


@pytest.mark.parametrize(
    ("field", "key"), [("queue", "Queue"), ("local_user", "LocalUserId"), ("lrms", "InfrastructureDescription")]
)
def test_a_text_without_weight_is_left_out_instead(field: str, key: str) -> None:
    assert one_row(make_job(**{field: "50 %% done"}))[key] == "None"


@pytest.mark.parametrize(("user", "sent"), [("/CN=50 %% done", "/CN=50 %25%25 done"), ("/CN=%%%", "/CN=%25%25%")])
def test_a_user_whose_name_holds_the_end_of_a_record_arrives_percent_escaped(user: str, sent: str) -> None:
    assert one_row(make_job(user=user))["GlobalUserName"] == sent


def test_what_no_key_depends_on_is_cut_or_left_out() -> None:
    row = one_row(make_job(queue="q" * 101, local_user="u" * 256))
    assert (row["Queue"], row["LocalUserId"]) == ("q" * 100, "None")


@pytest.mark.parametrize("text", ["none", "NULL", "None "])
def test_a_local_id_that_means_none_is_set_aside(text: str) -> None:
    with pytest.raises(Unfit, match="local-id-missing"):
        one_row(make_job(local_id=text))


@pytest.mark.parametrize("kib", [None, 0, -1, 2**31])
def test_memory_that_is_unknown_or_unkeepable_is_left_out(kib: int | None) -> None:
    row = one_row(make_job(memory_kib=kib, virtual_memory_kib=kib))
    assert (row["MemoryReal"], row["MemoryVirtual"]) == (None, None)


def test_memory_is_in_kilobytes() -> None:
    row = one_row(make_job(memory_kib=2**31 - 1, virtual_memory_kib=1024))
    assert (row["MemoryReal"], row["MemoryVirtual"]) == (2**31 - 1, 1024)


def test_counts_are_always_said() -> None:
    made = payload(create("apel-job-0.3"), [make_policy().describe(make_job(node_count=None, cpu_count=None))])
    assert b"\nProcessors: 0\nNodeCount: 0\n" in made
    assert b"\nInfrastructureType: grid\n" in made


# Who, where, on what


def test_an_fqan_that_says_otherwise_stays_behind() -> None:
    policy = make_policy(vo_rules=(VoRule(field="any", pattern="*", vo="ops", group="/ops", override=True),))
    row = one_row(make_job(), policy)
    assert (row["FQAN"], row["VO"], row["VOGroup"], row["VORole"]) == ("None", "ops", "/ops", "None")


@pytest.mark.parametrize("style", list(KeyStyle))
def test_the_key_style_does_not_change_what_the_server_takes_from_the_fqan(style: KeyStyle) -> None:
    row = one_row(make_job(), make_policy(key_style=style))
    assert (row["VORole"], row["SubmitHost"]) == ("Role=pilot", make_job().endpoint)


def test_a_local_job_names_its_batch_server() -> None:
    row = one_row(make_job(), make_policy(infrastructure="local", batch_server="batch.example.org"))
    assert (row["SubmitHost"], row["InfrastructureType"]) == ("batch.example.org", "local")


def test_only_a_local_job_says_that_its_submit_host_is_a_batch_system() -> None:
    local = make_policy(infrastructure="local", batch_server="batch.example.org")
    for name in ("apel-job-0.2", "apel-job-0.3", "apel-job-0.4"):
        assert b"\nSubmitHostType: LRMS\n" in payload(create(name), [local.describe(make_job())])
        assert b"SubmitHostType" not in payload(create(name), [make_policy().describe(make_job())])


def test_several_benchmarks_travel_where_the_format_has_room() -> None:
    made = (make_benchmark("HEPSPEC", "10.50"), make_benchmark("HEPscore23", "11.9"))
    policy = make_policy(benchmarks=BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=made),)))
    job = make_job(benchmark="")
    text = payload(create("apel-job-0.4"), [policy.describe(job)])
    assert b"\nServiceLevel: {HEPscore23: 11.9, HEPSPEC: 10.5}\n" in text
    assert b"ServiceLevelType" not in text
    kept = one_row(job, policy, "apel-job-0.4")
    assert (kept["ServiceLevelType"], kept["ServiceLevel"]) == ("hepscore23", Decimal("11.9"))
    main = one_row(job, policy)
    assert (main["ServiceLevelType"], main["ServiceLevel"]) == ("HEPSPEC", Decimal("10.5"))


def test_without_a_benchmark_a_job_is_set_aside() -> None:
    with pytest.raises(Unfit, match="benchmark-missing"):
        one_row(make_job(benchmark=""), make_policy(benchmarks=BenchmarkPolicy()), "apel-job-0.4")


def test_the_receiver_key_is_the_servers() -> None:
    text = create("apel-job-0.3")
    one, other = (make_policy().describe(make_job(local_id=local_id)) for local_id in ("Job.1", "job.1 "))
    assert text.receiver_key(one) == text.receiver_key(other)
    assert len(replaced("JobRecords", rows(text, one, other))) == 1


# The check before the wire


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"APEL-individual-job-message: v0.3", b"APEL-individual-job-message: v0.9", "header"),
        (b"\n%%\n", b"\n", "closing"),
        (b"Site: EXAMPLE-SITE\n", b"", "Site is missing"),
        (b"Site: EXAMPLE-SITE\n", b"Site: None\n", "says none"),
        (b"Queue: grid", b"Queue: " + b"x" * 101, "101 characters"),
        (b"Queue: grid", b"Queue: a%%b", "no message may hold"),
        (b"Queue: grid", b"Queue grid", "not a line"),
        (b"Queue: grid", b"Queue:  grid", "not a line"),
        (b"Queue: grid", b"Queue: grid ", "not a line"),
        (b"Queue: grid", b"Queue: g\trid", "not a line"),
        (b"Queue: grid", b"Queue: gr\xc3\xafd", "not-ascii"),
        (b"Queue: grid", b"Group: grid", "no key"),
        (b"Queue: grid\n", b"Queue: grid\nQueue: grid\n", "repeated"),
        (b"Queue: grid\n", b"Queue: grid\n\n", "not a line"),
        (b"WallDuration: 7150", b"WallDuration: 7150.5", "not a whole number"),
        (b"WallDuration: 7150", b"WallDuration: -1", "not a whole number"),
        (b"WallDuration: 7150", b"WallDuration: 2147483648", "not a whole number"),
        (b"EndTime: 1772719200", b"EndTime: 1772711999", "before StartTime"),
        (b"ServiceLevel: 11.9", b"ServiceLevel: -11.9", "not a benchmark value"),
        (b"ServiceLevelType: HEPscore23", b"ServiceLevelType: HS06", "not a benchmark type"),
    ],
)  # fmt: skip
def test_the_check_names_the_fault(old: bytes, new: bytes, fault: str) -> None:
    text = create("apel-job-0.3")
    good = payload(text, [make_policy().describe(make_job())])
    text.check(good)
    assert old in good
    with pytest.raises(Unfit, match=fault):
        text.check(good.replace(old, new))


@pytest.mark.parametrize(
    "level", [b"{}", b"11.9", b"{HEPSPEC: 1, HEPSPEC: 2}", b"{HS06: 1}", b"{HEPSPEC: 1.0,}", b"{HEPSPEC: x}"]
)
def test_the_check_knows_dictionaries(level: bytes) -> None:
    text = create("apel-job-0.4")
    good = payload(text, [make_policy().describe(make_job())])
    text.check(good)
    bad = good.replace(b"{HEPscore23: 11.9}", level)
    with pytest.raises(Unfit):
        text.check(bad)
    with pytest.raises(Refused):
        read_text(bad, NOW)


def test_the_check_names_the_record() -> None:
    text = create("apel-job-0.2")
    good = payload(text, [make_policy().describe(make_job(local_id=str(number))) for number in range(3)])
    with pytest.raises(Unfit, match="record 2"):
        text.check(good.replace(b"LocalJobId: 1\n", b"LocalJobId: \n"))


# The registry


@pytest.mark.parametrize("name", NAMES)
def test_the_registry_knows_it(name: str) -> None:
    text: Any = job_format(name)
    assert isinstance(text, ApelJob)
    assert text.name == name
    assert text.frame.head == f"APEL-individual-job-message: v{name[-3:]}\n".encode()


def test_rendering_does_not_load_lxml() -> None:
    code = "import sys, publisher.formats as f; f.job_format('apel-job-0.4'); sys.exit('lxml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


if __name__ == "__main__":
    for _name in NAMES:
        golden(_name).write_bytes(golden_payload(_name))
