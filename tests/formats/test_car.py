"""CAR records: as the golden file has them, as APEL reads them, as the schemas want them, whatever a job is called."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from publisher import __version__
from publisher.formats import job_format
from publisher.formats.apel.car import FIELDS, Car, create
from publisher.formats.compiled import Scope
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import AppliedBenchmark, BenchmarkPolicy
from publisher.model.text import ascii_text
from publisher.policy.identity import Identity, IdentityMode, VoRule
from publisher.policy.records import RecordPolicy
from tests.support.jobs import ENDED, make_charging, make_job, make_policy
from tests.support.patience import PATIENCE_S
from tests.support.strategies import HOSTILE_TEXTS, examples, hostile_jobs, jobs, ordinary_jobs
from tests.support.strict_apel import CAR, Row, read_car

GOLDEN = Path(__file__).parent / "golden" / "car.xml"
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)

TELLING_JOBS: tuple[tuple[JobRecord, RecordPolicy], ...] = (
    (make_job(), make_policy()),
    # nothing known but what must be
    (
        make_job(
            local_id="", status="failed", exit_code=None, started_at=None, wall_s=0, cpu_user_s=0, cpu_kernel_s=0,
            node_count=None, cpu_count=None, memory_kib=None, virtual_memory_kib=0, user="", vo="", fqans=(),
            benchmark="", job_name="", lrms="", hosts=(), local_user="", local_group="", queue="",
        ),
        make_policy(),
    ),
    (make_job(job_name='fit & plot <"é">\r\n</JobName>', exit_code=4_294_967_295, local_id="7.b&b"), make_policy()),
    (make_job(user="https://iss.example.org/René", vo="", fqans=("/wlcg/pilots",), local_id="8"), make_policy()),
    (make_job(user="CN=A B,O=Org,C=EU", vo="bio", fqans=(), local_id="9"), make_policy(default_vo="ops#iss")),
    (
        make_job(local_id="10", projects=("SNIC 2026/1-2", "other"), hosts=("wn1.example.org", "wn_2", "wn3.example.org")),
        make_policy(vo_groups=("/site/group",)),
    ),
    (make_job(local_id="11"), make_policy(vo_rules=(VoRule(field="any", pattern="*", vo="ops", override=True),))),
    (make_job(local_id="12"), make_policy(infrastructure="local", batch_server="batch.example.org")),
    (make_job(local_id="13", endpoint="https://2001:db8::1:443/arex"), make_policy(localid_prefix="ce01-")),
    (make_job(local_id="14"), make_policy(identity=Identity(mode=IdentityMode.WITHHELD))),
    (make_job(local_id="15", job_name="application/x-pkcs7-mime", benchmark="si2k:2625.50"), make_policy()),
    (make_job(local_id="16", gpu_count=2), make_policy()),
    (
        make_job(local_id="17", gpu_count=8, wall_s=37_830),
        make_policy(charging=make_charging(description='Price list "2026" & later')),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def car() -> Car:
    return create()


def payload(car: Car, published: list[PublishedJob], now: datetime = NOW) -> bytes:
    return car.frame.join([car.render(one, now) for one in published])


def tried(car: Car, job: JobRecord, policy: RecordPolicy) -> PublishedJob | Unfit:
    """The job as published when it can be rendered, else the verdict; no other exception."""
    try:
        published = policy.describe(job)
        car.render(published, NOW)
    except Unfit as unfit:
        return unfit
    return published


def one_row(car: Car, job: JobRecord, policy: RecordPolicy | None = None) -> Row:
    (row,) = read_car(payload(car, [(policy or make_policy()).describe(job)]), NOW)
    return row


def elements(
    car: Car, name: str, job: JobRecord, policy: RecordPolicy | None = None
) -> list[tuple[str, dict[str, str]]]:
    """Text and attributes (without the namespace) of the elements of that name."""
    root = etree.fromstring(payload(car, [(policy or make_policy()).describe(job)]))
    return [
        (one.text or "", {str(key).removeprefix(CAR): str(value) for key, value in one.attrib.items()})
        for one in root.iter(f"{CAR}{name}")
    ]


def expected_row(published: PublishedJob) -> Row:
    """What the server must store of a job: its own values, '' as None, and counts that are unknown as 0."""

    def said(text: str) -> str:
        text = ascii_text(text)
        return "None" if text.lower() in ("", "none", "null") else text

    job, who, where = published.job, published.who, published.where
    return {
        "Site": said(where.site),
        "SubmitHost": said(where.submit_host),
        "MachineName": said(where.machine_name),
        "Queue": said(ascii_text(where.queue)[:100]),
        "LocalJobId": said(published.local_id),
        "LocalUserId": said((local_user if len(local_user := ascii_text(job.local_user)) <= 255 else "") or "nobody"),
        "GlobalUserName": said(who.user),
        "VO": said(who.vo),
        "VOGroup": said(who.group),
        "VORole": said(who.role),
        "WallDuration": job.wall_s,
        "CpuDuration": job.cpu_user_s + job.cpu_kernel_s,
        "Processors": job.cpu_count or 0,
        "NodeCount": job.node_count or 0,
        "StartTime": published.started_at,
        "EndTime": published.ended_at,
        "InfrastructureDescription": said(where.description),
        "InfrastructureType": where.infrastructure,
        "ServiceLevelType": published.benchmark.benchmarks[0].kind,
        "ServiceLevel": published.benchmark.benchmarks[0].value,
    }


def test_the_golden_file_is_what_we_render(car: Car) -> None:
    """After an intended change: `python -m tests.formats.test_car` writes it anew; read the difference."""
    assert golden_payload(car).decode().splitlines() == GOLDEN.read_text().splitlines()


def golden_payload(car: Car) -> bytes:
    made = payload(car, [policy.describe(job) for job, policy in TELLING_JOBS])
    return made.replace(f'version="{__version__}"'.encode(), b'version="VERSION"')


def test_the_golden_file_is_accepted(car: Car) -> None:
    rows = read_car(GOLDEN.read_bytes(), NOW)
    assert [row["LocalJobId"] for row in rows[:3]] == ["4711042", make_job().job_id, "7.b&b"]
    car.check(GOLDEN.read_bytes())


@given(st.lists(jobs, min_size=1, max_size=4), st.booleans())
def test_every_batch_reads_back_as_the_jobs_it_was_made_of(batch: list[JobRecord], with_rules: bool) -> None:
    car = create()
    rules = (VoRule(field="group", pattern="*", vo="ruled", group="/ruled/x", override=True),) if with_rules else ()
    policy = make_policy(vo_rules=rules, vo_groups=("/g&g",))
    fit: list[PublishedJob] = []
    for job in batch:
        outcome = tried(car, job, policy)
        if isinstance(outcome, Unfit):
            assert outcome.rule
            assert outcome.reason
        else:
            fit.append(outcome)
    if not fit:
        return
    made = payload(car, fit)
    rows = read_car(made, NOW)
    for row in rows:
        row.pop("FQAN")
    assert rows == [expected_row(published) for published in fit]
    car.check(made)
    assert made.isascii()
    assert made.count(b"\n") == len(fit) + 2  # one record a line, between head and tail
    _check_official(made)


@given(ordinary_jobs())
def test_an_ordinary_job_is_never_set_aside(job: JobRecord) -> None:
    assert create().render(make_policy().describe(job), NOW)


@settings(max_examples=examples(300))
@given(hostile_jobs(most=20))
def test_a_job_that_cannot_be_published_is_unfit_and_nothing_else(job: JobRecord) -> None:
    car = create()
    outcome = tried(car, job, make_policy())
    if isinstance(outcome, Unfit):
        assert outcome.rule
    else:
        assert car.receiver_key(outcome)[2] == job.ended_at


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("name", ["job_name", "queue", "user", "local_user", "local_group", "vo", "lrms", "job_id"])
@pytest.mark.some(4)
def test_hostile_text_forges_nothing(car: Car, name: str, text: str) -> None:
    job = make_job(**{name: text, "fqans": ()})
    published = tried(car, job, make_policy())
    if isinstance(published, Unfit):
        assert published.rule.endswith("too-long")
        return
    made = payload(car, [published])
    (row,) = read_car(made, NOW)
    row.pop("FQAN")
    assert row == expected_row(published)
    _check_official(made)


def test_characters_of_a_job_name_arrive(car: Car) -> None:
    name = 'é 作 \U0001f680 a\tb\r\nc & <x> "y" ]]> application/pkcs7-mime Application/X-PKCS7-Mime 7-x'
    assert elements(car, "JobName", make_job(job_name=name)) == [(name, {})]
    assert elements(car, "JobName", make_job(job_name="a\0b\ud800c")) == [("a\ufffdb\ufffdc", {})]


@pytest.mark.parametrize("text", ["application/pkcs7-mime", "APPLICATION/X-pkcs7-MIME"])
def test_what_ssm_takes_for_encryption_is_nowhere_in_the_bytes(car: Car, text: str) -> None:
    job = make_job(job_name=text, queue=text, user=text, local_user=text, hosts=(text,), projects=(text,))
    made = payload(car, [make_policy().describe(job)])
    assert b"pkcs7-mime" not in made.lower()
    assert one_row(car, job)["Queue"] == text


def test_a_rule_about_the_vo_keeps_the_fqan_back(car: Car) -> None:
    policy = make_policy(vo_rules=(VoRule(field="any", pattern="*", vo="ops", role="Role=lcgadmin", override=True),))
    row = one_row(car, make_job(), policy)
    assert (row["FQAN"], row["VO"], row["VOGroup"], row["VORole"]) == ("None", "ops", "None", "Role=lcgadmin")


@pytest.mark.parametrize(
    ("fqan", "vo", "group", "role"),
    [
        ("/atlas/Role=production/Capability=NULL", "atlas", "/atlas", "Role=production"),
        ("/atlas/Role=NULL/Capability=NULL", "atlas", "/atlas", "Role=NULL"),
        ("/wlcg/pilots", "wlcg", "/wlcg/pilots", "None"),
        ("/atlas/sub/role=x", "atlas", "/atlas/sub", "role=x"),
        ("/a/Role=x;/b", "a", "/a", "Role=x"),
        ("urn:mace:x", "urn:mace:x", "None", "None"),
        ("/\uff0fx/Role=y", "/x", "//x", "Role=y"),  # a full-width slash, in ASCII, would be read as another VO
    ],
)
def test_vo_group_and_role_arrive_as_policy_has_them(car: Car, fqan: str, vo: str, group: str, role: str) -> None:
    row = one_row(car, make_job(fqans=(fqan,), vo=""))
    assert (row["VO"], row["VOGroup"], row["VORole"]) == (vo, group, role)


@pytest.mark.parametrize(
    ("fqan", "group", "role"),
    [
        ("/atlas/Role=production/Capability=NULL", "/atlas", "Role=production"),
        ("/wlcg/pilots", "/wlcg/pilots", "None"),
        ("urn:mace:x", "None", "None"),
        ("/", "None", "None"),
    ],
)
def test_a_job_s_own_vo_arrives_whatever_its_fqan_names(car: Car, fqan: str, group: str, role: str) -> None:
    row = one_row(car, make_job(fqans=(fqan,), vo="cms"))
    assert (row["VO"], row["VOGroup"], row["VORole"]) == ("cms", group, role)


def test_only_the_main_fqan_is_told(car: Car) -> None:
    said = elements(car, "GroupAttribute", make_job(projects=("p",)), make_policy(vo_groups=("/x",)))
    assert [(text, attributes["type"]) for text, attributes in said] == [
        ("/atlas/Role=pilot/Capability=NULL", "FQAN"),
        ("/atlas", "vo-group"),
        ("Role=pilot", "vo-role"),
        ("/x", "vo-group"),
        ("p", "ProjectName"),
    ]


@pytest.mark.parametrize(
    ("code", "written"),
    [(0, "0"), (137, "137"), (-1, "-1"), (2**31 - 1, str(2**31 - 1)), (2**31, str(-(2**31))), (2**32 - 1, "-1")],
)
def test_exit_status_is_signed(car: Car, code: int, written: str) -> None:
    assert elements(car, "ExitStatus", make_job(exit_code=code)) == [(written, {})]


@pytest.mark.parametrize("code", [None, 2**32, -(2**31) - 1])
def test_an_exit_status_without_a_place_is_left_out(car: Car, code: int | None) -> None:
    assert elements(car, "ExitStatus", make_job(exit_code=code)) == []


@pytest.mark.parametrize(
    ("user", "form"),
    [
        ("/DC=org/CN=A", "opensslCompat"),
        ("CN=A,O=B", "rfc2253"),
        ("DC=org, CN=x=y", "rfc2253"),
        ("https://iss.example.org/sub=1", "opensslCompat"),
        ("withheld", "opensslCompat"),
    ],
)
def test_the_form_of_a_user_name_is_told(car: Car, user: str, form: str) -> None:
    assert elements(car, "GlobalUserName", make_job(user=user)) == [(user, {"type": form})]


def test_hosts_are_those_the_schema_allows_and_only_the_first_is_primary(car: Car) -> None:
    job = make_job(hosts=("wn1.example.org", "wn_2", "10.0.0.1", "wn3"))
    assert elements(car, "Host", job) == [("wn1.example.org", {"primary": "true"}), ("wn3", {})]
    assert elements(car, "Host", make_job(hosts=("wn_1", "wn2"))) == [("wn2", {})]


def test_one_cpu_duration_is_the_total(car: Car) -> None:
    said = elements(car, "CpuDuration", make_job(cpu_user_s=100, cpu_kernel_s=11))
    assert [(text, attributes["usageType"]) for text, attributes in said] == [
        ("PT100S", "user"),
        ("PT11S", "system"),
        ("PT111S", "all"),
    ]


def test_what_was_not_measured_is_not_said(car: Car) -> None:
    job = make_job(memory_kib=0, virtual_memory_kib=None, node_count=0, cpu_count=None, submitted_at=Epoch(0))
    for name in ("Memory", "NodeCount", "Processors", "TimeInstant"):
        assert elements(car, name, job) == []


def test_a_local_job_names_its_batch_server(car: Car) -> None:
    row = one_row(car, make_job(), make_policy(infrastructure="local", batch_server="batch.example.org"))
    assert (row["SubmitHost"], row["InfrastructureType"]) == ("batch.example.org", "local")


def test_an_empty_queue_is_an_empty_element(car: Car) -> None:
    assert elements(car, "Queue", make_job(queue="")) == [("", {"description": "execution"})]
    assert one_row(car, make_job(queue=""))["Queue"] == "None"


def test_a_record_is_made_at_the_time_it_is_given(car: Car) -> None:
    published = make_policy().describe(make_job())
    for moment in (NOW, NOW + timedelta(hours=1), NOW):
        assert f'createTime="{moment:%Y-%m-%dT%H:%M:%SZ}"'.encode() in car.render(published, moment)


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"status": "in-progress"}, "status"),
        ({"status": ""}, "status"),
        ({"wall_s": -1}, "wall-out-of-range"),
        ({"ended_at": Epoch(ENDED + 200_000)}, "end-in-future"),
        ({"ended_at": Epoch(2**42)}, "end-out-of-range"),
        ({"local_id": "None"}, "local-id-missing"),
        ({"benchmark": "HS06:10"}, "benchmark-unknown-type"),
    ],
)
def test_a_job_that_apel_would_refuse_is_set_aside_by_name(car: Car, overrides: dict[str, Any], rule: str) -> None:
    with pytest.raises(Unfit) as caught:
        car.render(make_policy().describe(make_job(**overrides)), NOW)
    assert caught.value.rule == rule


def test_what_no_key_depends_on_is_cut_or_left_out(car: Car) -> None:
    job = make_job(queue="q" * 101, local_user="u" * 256)
    (row,) = read_car(payload(car, [make_policy().describe(job)]), NOW)
    assert (row["Queue"], row["LocalUserId"]) == ("q" * 100, "nobody")


def test_a_job_that_was_submitted_after_its_end_starts_its_wall_time_before_it(car: Car) -> None:
    job = make_job(started_at=None, submitted_at=Epoch(ENDED + 1), wall_s=600)
    (row,) = read_car(payload(car, [make_policy().describe(job)]), NOW)
    assert (row["StartTime"], row["EndTime"]) == (ENDED - 600, ENDED)


def test_a_job_without_benchmark_is_set_aside(car: Car) -> None:
    published = make_policy(benchmarks=BenchmarkPolicy()).describe(make_job(benchmark=""))
    assert published.benchmark == AppliedBenchmark(benchmarks=(), origin="nothing configured matches")
    with pytest.raises(Unfit, match=r"benchmark-missing: .*records\.benchmark"):
        car.render(published, NOW)


def test_the_receiver_keeps_one_of_two_spellings(car: Car) -> None:
    policy = make_policy()
    keys = {
        car.receiver_key(policy.describe(make_job(local_id=local_id, endpoint=endpoint)))
        for local_id in ("job.1é", "JOB.1E ")
        for endpoint in ("https://ce01.example.org/arex", "https://ce02.example.org/arex")
    }
    assert len(keys) == 1


def test_who_and_where_are_rendered_once_for_all_their_jobs(car: Car) -> None:
    policy = make_policy()
    first, second = policy.describe(make_job()), policy.describe(make_job(local_id="2"))
    assert first.who is second.who
    assert first.where is second.where
    assert first.benchmark is second.benchmark
    other = first._replace(who=first.who._replace(user="/CN=other"))
    assert [row["GlobalUserName"] for row in read_car(payload(car, [first, other, second]), NOW)] == [
        first.who.user,
        "/CN=other",
        first.who.user,
    ]


def test_the_table_is_in_the_order_of_the_specification() -> None:
    rows = [Decimal(field.row) for field in FIELDS]
    assert rows == sorted(rows)
    assert all(isinstance(said, str) for field in FIELDS if field.of is Scope.RUN for _, said in field.attributes)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"<UsageRecords", b"<!-- x --><UsageRecords", "root element"),
        (b"<Status>completed</Status>", b"", "Status|Expecting"),
        (b"<Status>completed", b"<Status>Completed", "Status"),
        (b"<NodeCount>1", b"<NodeCount>0", "NodeCount"),
        (b"PT7150S", b"7150", "WallDuration"),
        (b'urf:usageType="user"', b'urf:usageType="all"', "2 CpuDurations"),
        (b"HEPscore23", b"HS06", "HS06"),
        (b">EXAMPLE-SITE<", b"> <", "Site"),
        (b">4711042<", b">null<", "LocalJobId"),
        (b"<EndTime>2026", b"<EndTime>2025", "ends before"),
        (b"ce01.example.org</MachineName", b"ce_1</MachineName", "MachineName"),
        (b"mc23", b"mc23 & x", "not well-formed"),
        (b"mc23", "é".encode(), "pure ASCII"),
        (b"mc23", b"application/pkcs7-mime", "pkcs7"),
        (b"</UsageRecords>", b"", "not well-formed"),
    ],
)
def test_the_check_finds_what_apel_would_refuse(car: Car, old: bytes, new: bytes, fault: str) -> None:
    good = payload(car, [make_policy().describe(make_job())])
    car.check(good)
    assert old in good
    with pytest.raises(Unfit, match=fault):
        car.check(good.replace(old, new))


def test_entities_are_not_resolved_by_the_check(car: Car) -> None:
    with pytest.raises(Unfit):
        car.check(b'<!DOCTYPE x [<!ENTITY e "1">]><UsageRecords/>')


def test_our_schema_takes_what_the_official_one_takes() -> None:
    samples = _official_directory() / "examples"
    ours = Path(__file__).parents[2] / "publisher" / "formats" / "schemas" / "car.xsd"
    schema = etree.XMLSchema(etree.parse(str(ours)))
    for name in ("CarDetailedFull.xml", "CarDetailedMinimal.xml"):
        root = etree.parse(str(samples / name)).getroot()
        for attribute in [key for key in root.attrib if str(key).endswith("schemaLocation")]:
            del root.attrib[attribute]
        schema.assertValid(root)


_VALUES = (
    *("", "0", "1", "-1", "1.5", "PT1S", "P", "2026-01-01T00:00:00Z", "2026-01-01", "all", " all ", "grid", "KB", "TB"),
    *(
        "ab.example.org",
        "a.example.org",
        "wn_1",
        "x" * 300,
        "true",
        "INF",
        "4294967295",
        "rfc2253",
        " failed",
        "Failed",
    ),
)
_ATTRIBUTES = (
    *("type", "description", "metric", "storageUnit", "phaseUnit", "usageType", "unit", "units", "primary", "Host"),
    *("name", "consumptionRate", "recordId", "createTime"),
)
_RARE = ("Swap", "Charge", "Resource", "PhaseResource", "VolumeResource", "ConsumableResource", "ProcessId")


def _spoilt(chance: Random, root: etree._Element) -> etree._Element:
    """A copy with one or two things changed, most of them for the worse."""
    root = deepcopy(root)
    elements = [one for one in root.iter() if one is not root]
    names = sorted({str(one.tag) for one in elements}) + [CAR + name for name in _RARE]
    for _ in range(chance.choice((1, 1, 2))):
        one = chance.choice(elements)
        match chance.randrange(6):
            case 0 if (parent := one.getparent()) is not None:
                parent.remove(one)
            case 1 if one.getparent() is not None:
                one.addnext(deepcopy(one))
            case 2:
                one.set(CAR + chance.choice(_ATTRIBUTES), chance.choice(_VALUES))
            case 3:
                one.text = chance.choice(_VALUES)
            case 4:
                one.attrib.clear()
            case _:
                one.tag = chance.choice(names)
    return root


@pytest.mark.slow
def test_our_schema_says_of_spoilt_records_what_the_official_one_says() -> None:
    ours = Path(__file__).parents[2] / "publisher" / "formats" / "schemas" / "car.xsd"
    schema = etree.XMLSchema(etree.parse(str(ours)))
    official = etree.XMLSchema(etree.parse(str(_official_directory() / "car_v1.2.xsd")))
    chance, good = Random(1), etree.fromstring(GOLDEN.read_bytes())
    verdicts = []
    for _ in range(2_000):
        spoilt = _spoilt(chance, good)
        verdicts.append(schema.validate(spoilt))
        assert verdicts[-1] == official.validate(spoilt), etree.tostring(spoilt).decode()
    assert 300 < sum(verdicts) < 1_700


def test_rendering_does_not_load_lxml() -> None:
    code = "import sys, publisher.formats; publisher.formats.job_format('car'); sys.exit('lxml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


def test_the_registry_knows_it() -> None:
    assert isinstance(job_format("car"), Car)


def _official_directory() -> Path:
    schemas = os.environ.get("PUBLISHER_SCHEMAS")
    if not schemas:
        pytest.skip("PUBLISHER_SCHEMAS is not set")
    return Path(schemas) / "car-1.2"


_OFFICIAL: list[etree.XMLSchema] = []


def _check_official(made: bytes) -> None:
    if not os.environ.get("PUBLISHER_SCHEMAS"):
        return
    if not _OFFICIAL:
        _OFFICIAL.append(etree.XMLSchema(etree.parse(str(_official_directory() / "car_v1.2.xsd"))))
    _OFFICIAL[0].assertValid(etree.fromstring(made))


def test_the_golden_file_is_valid_by_the_official_schema() -> None:
    _official_directory()
    _check_official(GOLDEN.read_bytes())


if __name__ == "__main__":
    GOLDEN.write_bytes(golden_payload(create()))
