"""Accelerator records: by the schema whatever a job is called, only of jobs with GPUs, and beside jobs in one topic."""

from __future__ import annotations

import csv
import json
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.formats.apel.accelerator import ApelAccelerator
from publisher.formats.apel.receiver import MOST_MODELS, AcceleratorKeys
from publisher.model.entry import RowId, RowKey
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.totals import month_number
from publisher.policy.records import RecordPolicy
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.sources.test_import_sonar import FOX, samples
from tests.support.batch_stores import as_tables
from tests.support.imported_sites import bring_in, local_site
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.pki import PKI
from tests.support.sacct_text import BEGIN, CLUSTER, job, text, write
from tests.support.sites import SiteUnderTest
from tests.support.strategies import hostile_jobs, hostile_text

NAME = "apel-accelerator-0.1"
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
FORMAT = ApelAccelerator()
MANDATORY = {
    *("MeasurementMonth", "MeasurementYear", "AssociatedRecordType", "AssociatedRecord", "FQAN", "SiteName", "Count"),
    *("AvailableDuration", "Type"),
}
OPTIONAL = {"GlobalUserName", "Cores", "ActiveDuration", "BenchmarkType", "Benchmark", "Model"}
Record = dict[str, Any]


def records_of(payload: bytes) -> list[Record]:
    """By the specification's own words: every object has its mandatory keys, and no other than the optional ones."""
    message = json.loads(payload)
    assert (message.pop("Type"), message.pop("Version")) == ("APEL-accelerator-message", "0.1")
    records: list[Record] = message.pop("UsageRecords")
    assert message == {}
    assert 1 <= len(records) <= 1000
    for record in records:
        assert record.keys() >= MANDATORY | {"Model"}
        assert record.keys() <= MANDATORY | OPTIONAL
        assert 1 <= record["MeasurementMonth"] <= 12
        assert isinstance(record["AvailableDuration"], int)
        assert all(isinstance(record[key], str) and record[key] for key in ("AssociatedRecord", "FQAN", "SiteName"))
        assert record["AssociatedRecordType"] == "job"
        assert (record["Type"], record["Count"] > 0, bool(record["Model"])) == ("GPU", True, True)
    return records


def rendered(*jobs: JobRecord, **policy: Any) -> list[Record]:
    made = make_policy(**policy)
    payload = FORMAT.frame.join([FORMAT.render(made.describe(one), NOW) for one in jobs])
    FORMAT.check(payload)
    return records_of(payload)


def tried(policy: RecordPolicy, job: JobRecord) -> bytes | Unfit:
    try:
        return FORMAT.render(policy.describe(job), NOW)
    except Unfit as unfit:
        return unfit


# The record


def test_what_is_said_of_a_job() -> None:
    (record,) = rendered(make_job(gpu_count=4, gpu_models=(("a100", 4),)))
    assert record == {
        "MeasurementMonth": 3,
        "MeasurementYear": 2026,
        "AssociatedRecordType": "job",
        "AssociatedRecord": make_job().job_id,
        "FQAN": "/atlas/Role=pilot/Capability=NULL",
        "SiteName": "EXAMPLE-SITE",
        "GlobalUserName": make_job().user,
        "Count": 4,
        "AvailableDuration": 7150,
        "Type": "GPU",
        "Model": "a100",
    }


@pytest.mark.parametrize(
    ("gpus", "models", "told"),
    [
        (2, (), {"unknown": 2}),
        (2, (("a100", 1), ("t4", 1)), {"a100": 1, "t4": 1}),
        (3, (("a100", 1),), {"a100": 1, "unknown": 2}),
        (3, (("", 1), ("none", 1), ("a100", 1)), {"unknown": 2, "a100": 1}),
        (5, (("A100", 1), ("a100", 2), ("Unknown", 1)), {"A100": 3, "Unknown": 2}),
        (1, (("a100", 0), ("t4", 1)), {"t4": 1}),
        (1, (("a100", 1), ("t4", 1)), {"unknown": 1}),  # more of models than there were
    ],
)
def test_each_model_has_its_record_and_always_a_name(
    gpus: int, models: tuple[tuple[str, int], ...], told: dict[str, int]
) -> None:
    found = rendered(make_job(gpu_count=gpus, gpu_models=models))
    assert {record["Model"]: record["Count"] for record in found} == told
    assert len({record["AssociatedRecord"] for record in found}) == 1


@pytest.mark.parametrize(
    ("values", "fqan", "user"),
    [
        ({"fqans": (), "vo": ""}, "None", True),
        ({"fqans": (), "vo": "bio"}, "/bio", True),
        ({"fqans": ("/bio/lab/Role=chief",), "vo": "bio"}, "/bio/lab/Role=chief", True),
        ({"user": ""}, "/atlas/Role=pilot/Capability=NULL", False),
    ],
)
def test_who_is_told_where_it_is_known(values: dict[str, Any], fqan: str, user: bool) -> None:
    (record,) = rendered(make_job(gpu_count=1, **values))
    assert record["FQAN"] == fqan
    assert ("GlobalUserName" in record) is user


def test_a_job_without_gpus_or_with_too_many_models_makes_no_record() -> None:
    models = tuple((f"model {number}", 1) for number in range(MOST_MODELS + 1))
    for values in ({"gpu_count": None}, {"gpu_count": MOST_MODELS + 1, "gpu_models": models}):
        with pytest.raises(Unfit, match="models"):
            rendered(make_job(**values))


def test_a_clock_that_is_ahead_makes_no_record_of_the_next_year() -> None:
    """The server takes no year but those until its own: a whole message would be refused."""
    eve = datetime(2026, 12, 31, 23, 58, tzinfo=UTC)
    times = [int(eve.timestamp()) + ahead for ahead in (0, 600)]
    this, following = (make_policy().describe(make_job(gpu_count=1, ended_at=Epoch(end))) for end in times)
    assert b'"MeasurementYear": 2026' in FORMAT.render(this, eve)
    with pytest.raises(Unfit, match="end-in-future"):
        FORMAT.render(following, eve)


def test_what_is_added_up_is_apart_by_month_site_and_model() -> None:
    keys = AcceleratorKeys()

    def digest(site: str = "EXAMPLE-SITE", **values: Any) -> RowId:
        made = make_policy(site=site).describe(make_job(**({"gpu_count": 1, "gpu_models": (("a100", 1),)} | values)))
        return RowKey(month_number(made.ended_at), keys.of(made)).id

    first = digest()
    assert digest(user="other", vo="cms", queue="q", benchmark="") == first
    others = [digest("OTHER"), digest(gpu_models=(("t4", 1),)), digest(ended_at=ENDED - 40 * 86_400)]
    assert len({first, *others}) == 4


# Whatever comes


@given(
    st.lists(hostile_jobs(), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(-5, 2**33)),
    st.lists(st.tuples(hostile_text, st.integers(0, 2**32)), max_size=3),
)
def test_every_batch_is_valid_or_its_jobs_are_set_aside_by_name(
    batch: list[JobRecord], gpus: int | None, models: list[tuple[str, int]]
) -> None:
    policy = make_policy()
    outcomes = [tried(policy, one._replace(gpu_count=gpus, gpu_models=tuple(models))) for one in batch]
    assert all(one.rule and one.reason for one in outcomes if isinstance(one, Unfit))
    made = [one for one in outcomes if not isinstance(one, Unfit)]
    if made:
        payload = FORMAT.frame.join(made)
        assert payload.isascii()
        FORMAT.check(payload)
        records_of(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"Model": None},
        {"Model": ""},
        {"Model": "x" * 256},
        {"MeasurementMonth": 13},
        {"MeasurementYear": 1999},
        {"AvailableDuration": 1.5},
        {"AvailableDuration": True},
        {"Count": float("nan")},
        {"Type": "TPU"},
        {"AssociatedRecordType": "grid"},
        {"Site": "X"},
    ],
)
def test_the_check_names_what_is_wrong(change: Record) -> None:
    (record,) = rendered(make_job(gpu_count=1))
    payload = FORMAT.frame.join([json.dumps(one).encode() for one in (record, record | change)])
    with pytest.raises(Unfit) as caught:
        FORMAT.check(payload)
    ((key, value),) = change.items()
    assert caught.value.reason == f"record 2: {key} is {value!r}, which APEL does not take"


@pytest.mark.parametrize("key", sorted(MANDATORY | {"Model"}))
def test_the_check_misses_every_mandatory_key(key: str) -> None:
    (record,) = rendered(make_job(gpu_count=1))
    del record[key]
    with pytest.raises(Unfit, match=f"record 1: lacks {key}"):
        FORMAT.check(FORMAT.frame.join([json.dumps(record).encode()]))


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (FORMAT.frame.head, "is not JSON"),
        (FORMAT.frame.join(['{"é": 1}'.encode()]), "is not JSON in ASCII"),
        (b"[]", "does not begin with the header"),
        (FORMAT.frame.join([b"{}"]).replace(b'"0.1"', b'"0.2"'), "does not begin with the header"),
        (FORMAT.frame.join([]), "has 0 records"),
        (FORMAT.frame.join([b"{}"] * 1001), "has 1001 records"),
        (FORMAT.frame.join([b"1"]), "record 1: is not an object"),
    ],
)
def test_a_message_that_is_none(payload: bytes, fault: str) -> None:
    with pytest.raises(Unfit) as caught:
        FORMAT.check(payload)
    assert fault in caught.value.reason


# Through the real command line

GPUS = "billing=3,cpu=2,gres/gpu:a100=1,gres/gpu:t4=1,gres/gpu=2,mem=4G,node=1"
UNTYPED = "billing=3,cpu=2,gres/gpu=4,mem=4G,node=1"


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Jobs of Slurm, in single records and, to the same topic, their accelerators."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    targets = made.config["targets"]
    targets["gpus"] = targets["egi"] | {"format": NAME}
    return made


def fill(site: SiteUnderTest, *lines: dict[str, object]) -> None:
    bring_in(site, write(site.folder / f"told{len(list(site.folder.iterdir()))}.psv", text(lines)))


def arrived(site: SiteUnderTest) -> list[Record]:
    """The accelerator records, as the receiver's loader is handed them."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    texts = [receiver.take(message).text for message in site.fake.messages(PROJECT, TOPIC)]
    found = []
    for payload in (one.encode() for one in texts if one.startswith("{")):
        FORMAT.check(payload)
        found += records_of(payload)
    return found


def row(record: Record) -> tuple[object, ...]:
    """The server's key, by which a record replaces another."""
    keys = ("MeasurementMonth", "MeasurementYear", "AssociatedRecordType", "AssociatedRecord", "SiteName", "Model")
    return tuple(record[key] for key in keys)


def told(records: list[Record]) -> Counter[tuple[str, str, int, int]]:
    seen = {row(record): record for record in records}.values()
    return Counter(
        (record["AssociatedRecord"], record["Model"], record["Count"], record["AvailableDuration"]) for record in seen
    )


def test_accelerators_share_a_topic_with_jobs_and_only_jobs_with_gpus_are_records(site: SiteUnderTest) -> None:
    fill(site, job(1), job(2, AllocTRES=GPUS), job(3, AllocTRES=UNTYPED, ElapsedRaw=55), job(4, AllocTRES=""))
    done = site.publish().json["targets"]
    assert (done["egi"]["records"], done["gpus"]["records"], done["gpus"]["quarantined"]) == (4, 2, 0)
    name = {number: f"{CLUSTER}:{number}:{BEGIN + number * 60}" for number in (2, 3)}
    assert told(arrived(site)) == Counter(
        {(name[2], "a100", 1, 100): 1, (name[2], "t4", 1, 100): 1, (name[3], "unknown", 4, 55): 1}
    )
    assert site.publish().json["targets"]["gpus"]["outcome"] == "nothing"
    standing = site.run("status", "--json").json["targets"]["gpus"]
    assert (standing["delivered"], standing["pending"], standing["quarantined"]) == (2, 0, 0)
    assert site.run("sync", "--check", "--json").status == 0
    site.run("report", "--from", "2026-09", "--to", "2026-09", "--csv", str(site.folder / "csv"))
    delivery = csv.DictReader((site.folder / "csv" / "delivery.csv").read_text().splitlines())
    assert {row["target"]: (row["wanted"], row["delivered"]) for row in delivery} == {
        "egi": ("4", "4"),
        "gpus": ("2", "2"),
    }
    fill(site, job(5, AllocTRES=UNTYPED), job(6), job(7))
    rows = site.run("sync", "--check", "--json", "--months", "all").json["rows"]
    (compared,) = (row for row in rows if row["target"] == "gpus")
    assert (compared["database"], compared["delivered"], compared["pending"]) == (3, 2, 1)


def test_the_jobs_of_the_sonar_sample_arrive_as_their_47_records(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = local_site(tmp_path, pki, fake_ams, "sonar", FOX)
    site.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    site.config["targets"]["egi"]["format"] = NAME
    bring_in(site, samples() / "jobs-fox-v0.18.1.json")
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        (gpus,) = connection.execute("SELECT sum(GPUCount * UsedWalltime) FROM AAR").fetchone()
    assert site.publish().json["targets"]["egi"]["records"] == 47
    found = arrived(site)
    assert sum(record["Count"] * record["AvailableDuration"] for record in found) == gpus > 0
    assert {record["Model"] for record in found} >= {"a100_80", "rtx30", "unknown"}


def test_a_message_has_no_more_records_than_the_server_takes(site: SiteUnderTest) -> None:
    fill(site, *(job(number, AllocTRES=GPUS) for number in range(1, 601)))
    assert site.publish().json["targets"]["gpus"]["records"] == 600
    assert len(told(arrived(site))) == 1200
    site.config["targets"]["gpus"]["batch_records"] = 251
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert "batch_records: 251 is not between 1 and 250, which apel-accelerator-0.1 allows" in run.err


def test_config_check_says_what_is_not_released(site: SiteUnderTest) -> None:
    run = site.run("config", "check")
    assert run.status == 0
    assert run.out.count("note: ") == 1
    assert "note: target gpus: APEL's server does not take accelerator records yet" in run.out


def test_two_targets_of_jobs_still_do_not_share_a_topic(site: SiteUnderTest) -> None:
    targets = site.config["targets"]
    targets["months"] = targets["egi"] | {"format": "apel-summary-0.4"}
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert "apel-summary-0.4 would go to the same" in run.err
    assert NAME not in run.err


def test_a_job_that_cannot_be_told_is_set_aside_and_goes_when_mended(site: SiteUnderTest) -> None:
    bad = job(2, AllocTRES="cpu=2," + ",".join(f"gres/gpu:m{number}=1" for number in range(9)))
    fill(site, job(1, AllocTRES=UNTYPED), bad)
    run = site.publish("--target", "gpus")
    assert (run.status, run.json["targets"]["gpus"]["quarantined"]) == (65, 1)
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert held["rule"] == "accelerator-models"
    assert len(arrived(site)) == 1


def test_a_window_is_republished_whole_and_replaces_itself(site: SiteUnderTest) -> None:
    fill(site, job(1), job(2, AllocTRES=GPUS), job(3, AllocTRES=UNTYPED))
    assert site.publish().status == 0
    before = told(arrived(site))
    run = site.run("republish", "--from", "2026-09-21", "--to", "2026-09-21", "--target", "gpus", "--yes", "--json")
    assert (run.status, run.json["targets"]["gpus"]["records"]) == (0, 2)
    assert len(arrived(site)) == 6
    assert told(arrived(site)) == before


def test_another_site_name_is_held_before_it_counts_twice(site: SiteUnderTest) -> None:
    fill(site, job(1, AllocTRES=UNTYPED))
    assert site.publish("--target", "gpus").status == 0
    site.config["site"] = "OTHER-SITE"
    site.save()
    run = site.run("republish", "--from", "2026-09", "--to", "2026-09", "--target", "gpus", "--yes", "--json")
    assert run.status == 65
    assert "Accelerators unknown" in run.out + run.err
    assert len(arrived(site)) == 1


def test_explain_shows_the_record(site: SiteUnderTest) -> None:
    fill(site, job(2, AllocTRES=GPUS))
    job_id = f"{CLUSTER}:2:{BEGIN + 120}"
    (found,) = site.run("explain", job_id, "--target", "gpus", "--json").json["explanations"]
    values = {each["name"]: each["value"] for each in found["values"]}
    assert (values["GPUs"], values["GPUModels"], values["GlobalJobId"]) == ("2", "a100 (1), t4 (1)", job_id)
    assert [record["Model"] for record in records_of(found["record"].encode())] == ["a100", "t4"]


def test_files_for_another_sender_are_signed(site: SiteUnderTest) -> None:
    site.config["targets"] = {
        "files": {"type": "spool", "path": str(site.folder / "out"), "format": NAME, "start": "all", "every": "1s"}
    }
    fill(site, job(1), job(2, AllocTRES=GPUS))
    assert site.publish().json["targets"]["files"]["records"] == 1
    (path,) = (site.folder / "out").iterdir()
    assert b"smime.p7s" in path.read_bytes()
