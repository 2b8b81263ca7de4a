"""Records for AUDITOR: taken by it whatever a job is called, and adding up to what APEL's summaries say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.formats.auditor import AuditorRecord
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.policy.identity import Identity, IdentityMode
from publisher.policy.records import RecordPolicy
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.fake_auditor import FakeAuditor
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.strategies import jobs

NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
FORMAT = AuditorRecord()
Record = dict[str, Any]


def rendered(job: JobRecord, **policy: Any) -> Record:
    payload = FORMAT.frame.join([FORMAT.render(make_policy(**policy).describe(job), NOW)])
    FORMAT.check(payload)
    (record,) = json.loads(payload)
    return dict(record)


# The record


def test_what_is_said_of_a_job() -> None:
    assert rendered(make_job(gpu_count=2, projects=("p", "q"))) == {
        "record_id": f"ur-ce01.example.org-{make_job().job_id}",
        "meta": {
            "site_id": ["EXAMPLE-SITE"],
            "headnode": ["https://ce01.example.org:443/arex"],
            "subject": [make_job().user],
            "voms": ["/atlas/Role=pilot/Capability=NULL"],
            "vo": ["atlas"],
            "user_id": ["atlplt01"],
            "group_id": ["atlas"],
            "queue": ["grid"],
            "project": ["p", "q"],
        },
        "components": [
            {"name": "Cores", "amount": 4, "scores": [{"name": "hepscore23", "value": 11.9}]},
            {"name": "TotalCPU", "amount": 27_310, "scores": []},
            {"name": "NNodes", "amount": 1, "scores": []},
            {"name": "GPUs", "amount": 2, "scores": []},
        ],
        "start_time": "2026-03-05T12:00:50Z",
        "stop_time": "2026-03-05T14:00:00Z",
    }


@pytest.mark.parametrize(
    ("values", "voms"),
    [
        ({"fqans": (), "vo": "bio"}, ["/bio"]),
        ({"fqans": (), "vo": ""}, None),
        ({"fqans": ("/bio/lab/Role=chief",), "vo": "bio"}, ["/bio/lab/Role=chief"]),
        ({"fqans": ("/bio/lab/Role=chief",), "vo": "other"}, ["/other/Role=chief"]),
    ],
)
def test_the_fqan_names_the_vo_that_is_published(values: dict[str, Any], voms: list[str] | None) -> None:
    assert rendered(make_job(**values))["meta"].get("voms") == voms


def test_who_is_withheld_is_not_named_by_other_means() -> None:
    meta = rendered(make_job(), identity=Identity(mode=IdentityMode.WITHHELD))["meta"]
    assert (meta["subject"], "user_id" in meta) == (["withheld"], False)


def test_a_later_run_has_an_id_of_its_own() -> None:
    published = make_policy().describe(make_job())
    first, later = (json.loads(FORMAT.render(one, NOW)) for one in (published, published._replace(later_run=True)))
    assert later["record_id"].startswith(f"{first['record_id']}-")


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"benchmark": "fast"}, "benchmark-missing"),
        ({"ended_at": 0}, "end-out-of-range"),
        ({"ended_at": ENDED + 10 * 86_400}, "end-in-future"),
        ({"wall_s": -1}, "wall-out-of-range"),
        ({"cpu_user_s": -(2**40)}, "number-out-of-range"),
        ({"user": "x" * 257}, "text-too-long"),
    ],
)
def test_what_auditor_or_its_apel_plugin_would_stumble_over_is_set_aside_by_name(
    values: dict[str, Any], rule: str
) -> None:
    with pytest.raises(Unfit) as caught:
        rendered(make_job(**values))
    assert caught.value.rule == rule


def tried(policy: RecordPolicy, job: JobRecord) -> bytes | Unfit:
    try:
        return FORMAT.render(policy.describe(job), NOW)
    except Unfit as unfit:
        return unfit


@pytest.fixture(scope="module")
def auditor() -> Iterator[FakeAuditor]:
    with FakeAuditor() as fake:
        yield fake


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(jobs, min_size=1, max_size=3), gpus=st.one_of(st.none(), st.integers(-3, 2**64)))
def test_whatever_comes_is_taken_or_set_aside_by_name(
    batch: list[JobRecord], gpus: int | None, auditor: FakeAuditor
) -> None:
    outcomes = [tried(make_policy(), one._replace(gpu_count=gpus)) for one in batch]
    assert all(one.rule and one.reason for one in outcomes if isinstance(one, Unfit))
    fit = list({json.loads(one)["record_id"]: one for one in outcomes if isinstance(one, bytes)}.values())
    if not fit:
        return
    payload = FORMAT.frame.join(fit)
    FORMAT.check(payload)
    auditor.records.clear()
    assert auditor.insert("/records", payload) == b""
    for record, told in zip(json.loads(payload), auditor.records.values(), strict=True):
        assert (told["record_id"], told["meta"]) == (record["record_id"], record["meta"] or None)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"record_id": " "}, "' ' is no name"),
        ({"meta": {"voms": ["x" * 257]}}, "is no name"),
        ({"components": [{"name": "Cores", "amount": -1, "scores": []}]}, "are not amounts"),
        ({"start_time": "2027-01-01T00:00:00Z"}, "it stops before it starts"),
        ({"other": 1}, "is not an object of record_id"),
    ],
)
def test_the_check_names_what_is_wrong(change: Record, fault: str) -> None:
    payload = json.dumps([rendered(make_job()) | change]).encode()
    with pytest.raises(Unfit, match="record 1: ") as caught:
        FORMAT.check(payload)
    assert fault in caught.value.reason
    with pytest.raises(Unfit, match="is not JSON"):
        FORMAT.check(payload[:-1])


# Through the real command line


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> Iterator[SiteUnderTest]:
    """The same jobs to APEL, as monthly totals, and to AUDITOR."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    with FakeAuditor(pki) as fake:
        made.config["targets"]["auditor"] = {
            "type": "auditor", "url": fake.url, "format": "auditor-record", "start": "all", "every": "1s",
        }  # fmt: skip
        stored[made] = fake
        yield made
        del stored[made]


stored: dict[SiteUnderTest, FakeAuditor] = {}


def batch(count: int = 150) -> list[SampleJob]:
    months = (datetime(2026, month, 1, tzinfo=UTC) for month in (9, 11))
    return [job for job in generate(5, count, *months) if job.status in ("completed", "failed")]


Sums = dict[tuple[object, ...], list[int]]


def as_the_apel_plugin_adds_up(records: list[Record]) -> Sums:
    """By the fields of the plug-in's template: VO out of `voms`, seconds by `runtime` and TotalCPU; none without run time."""
    sums: Sums = defaultdict(lambda: [0, 0, 0])
    for record in (one for one in records if one["runtime"] > 0):
        amounts = {component["name"]: component["amount"] for component in record["components"]}
        found = re.search(r"(?<=/).*?(?=/|$)", record["meta"].get("voms", ["None"])[0])
        vo, user = found[0] if found else "None", record["meta"].get("subject", ["None"])[0]
        key = (record["stop_time"][:7], vo, record["meta"]["headnode"][0], user, amounts["Cores"], amounts["NNodes"])
        for at, more in enumerate((1, record["runtime"], amounts["TotalCPU"])):
            sums[key][at] += more
    return dict(sums)


def as_apel_has_it(site: SiteUnderTest) -> Sums:
    sums: Sums = defaultdict(lambda: [0, 0, 0])
    for row in site.received(with_openssl=False):
        month = f"{row['Year']}-{row['Month']:02}"
        key = (month, row["VO"], row["SubmitHost"], row["GlobalUserName"], row["Processors"], row["NodeCount"])
        for at, name in enumerate(("NumberOfJobs", "WallDuration", "CpuDuration")):
            sums[key][at] += row[name]
    return dict(sums)


def test_the_sums_in_auditor_are_those_of_apel_s_summaries(site: SiteUnderTest) -> None:
    some = [replace(job, wall_s=max(job.wall_s, 1)) for job in batch()]
    site.fill(*some)
    run = site.publish()
    assert run.status == 0, run.out + run.err
    assert run.json["targets"]["auditor"]["records"] == len(some)
    found = as_the_apel_plugin_adds_up(list(stored[site].records.values()))
    assert found == as_apel_has_it(site)
    assert len(found) > 20


@pytest.mark.slow
def test_a_window_that_is_republished_is_delivered_and_there_once(site: SiteUnderTest) -> None:
    some = batch()
    site.fill(*some)
    assert site.publish().status == 0
    before = dict(stored[site].records)
    run = site.run("republish", "--from", "2026-09", "--to", "2026-10", "--target", "auditor", "--yes", "--json")
    assert (run.status, run.json["targets"]["auditor"]["records"]) == (0, len(some))
    assert stored[site].records == before
    assert site.publish("--target", "auditor").json["targets"]["auditor"]["outcome"] == "nothing"


@pytest.mark.slow
def test_a_record_that_auditor_does_not_take_is_alone_to_blame(site: SiteUnderTest) -> None:
    some = batch(12)
    site.fill(*some)
    fake = stored[site]
    insert = fake.insert
    bad = some[3].job_id

    def unwilling(path: str, body: bytes) -> bytes:
        return insert(path, body.replace(bad.encode(), b"\\u0000"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake, "insert", unwilling)
        assert site.publish("--target", "auditor").status == 65
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert (held["job"], held["rule"]) == (bad, "refused-by-receiver")
    assert len(fake.records) == len(some) - 1


def test_explain_and_doctor_know_the_target(site: SiteUnderTest) -> None:
    job = batch()[0]
    site.fill(job)
    (told,) = site.run("explain", job.job_id, "--target", "auditor", "--json").json["explanations"]
    values = {each["name"]: each["value"] for each in told["values"]}
    (record,) = json.loads(told["record"])
    assert (values["RecordId"], values["WallDuration"]) == (record["record_id"], f"{job.wall_s} s")
    run = site.run("doctor", "--target", "auditor", "--json")
    steps = {(one["name"], one["state"]) for one in run.json["findings"] if one["part"] == "auditor"}
    assert {("service", "ok"), ("right to insert", "ok")} <= steps


def test_another_format_is_refused_before_anything_is_sent(site: SiteUnderTest) -> None:
    site.fill(*batch(20))
    words = "the type auditor takes auditor-record only"
    run = site.run(
        "republish", "--from", "2026-09", "--to", "2026-09", "--target", "auditor", "--format", "car", "--yes"
    )
    assert (run.status, words in run.err) == (64, True), run.err
    site.config["targets"]["auditor"]["format"] = "car"
    site.save()
    run = site.run("config", "check")
    assert (run.status, words in run.err) == (78, True), run.err


def test_plain_http_is_warned_about(site: SiteUnderTest) -> None:
    site.fill(*batch(20))
    with FakeAuditor() as plain:
        site.config["targets"]["auditor"] |= {"url": plain.url, "meta_site": "site", "meta_queue": ""}
        run = site.publish("--target", "auditor")
        assert (run.status, len(plain.records)) == (0, run.json["targets"]["auditor"]["records"])
        metas = [record["meta"] for record in plain.records.values()]
        assert all("site" in meta and "queue" not in meta for meta in metas)
        assert "unencrypted" in site.run("doctor", "--target", "auditor").out


PLUGIN = shutil.which("auditor-apel-republish", path=os.environ.get("PUBLISHER_AUDITOR_PLUGIN"))
# The template that comes with the plug-in, for this AUDITOR.
PLUGIN_CONFIG = """!Config
plugin: {{log_level: TRACE, log_file: /dev/null, time_json_path: {folder}/time.json, report_interval: 86400}}
site:
  sites_to_report: {{EXAMPLE-SITE: [EXAMPLE-SITE]}}
  benchmark_type: HEPscore23
messaging:
  {{host: localhost, port: 1, client_cert: {cert}, client_key: {key}, project: none, topic: none, timeout: 1, retry: 0}}
auditor:
  {{ip: {host}, port: {port}, timeout: 60, site_meta_field: site_id, use_tls: true, ca_cert_path: {ca},
    client_cert_path: {cert}, client_key_path: {key}}}
summary_fields:
  mandatory:
    VO: !MetaField {{name: voms, regex: '(?<=/).*?(?=/|$)'}}
    Processors: !ComponentField {{name: Cores}}
    SubmitHost: !MetaField {{name: headnode}}
    NormalisedWallDuration: !NormalisedField
      score: {{name: hepscore23, component_name: Cores}}
    CpuDuration: !ComponentField {{name: TotalCPU}}
    NormalisedCpuDuration: !NormalisedField
      base_value: !ComponentField {{name: TotalCPU}}
      score: {{name: hepscore23, component_name: Cores}}
  optional:
    GlobalUserName: !MetaField {{name: subject}}
    NodeCount: !ComponentField {{name: NNodes}}
"""


@pytest.mark.skipif(
    PLUGIN is None, reason="auditor-apel-plugin is not installed; PUBLISHER_AUDITOR_PLUGIN names its folder"
)
def test_auditor_s_own_apel_plugin_makes_the_same_sums(site: SiteUnderTest, pki: PKI) -> None:
    """It asks by python-auditor, and prints the message that it would send to APEL."""
    some = [replace(job, wall_s=max(job.wall_s, 1), benchmark="HEPscore23:10") for job in batch()]
    site.fill(*some)
    assert site.publish().status == 0
    server, credentials = urlsplit(stored[site].url), site.config["credentials"]
    config = site.folder / "plugin.yml"
    config.write_text(
        PLUGIN_CONFIG.format(
            folder=site.folder,
            host=server.hostname,
            port=server.port,
            cert=credentials["certificate"],
            key=credentials["key"],
            ca=pki.bundle,
        )
    )
    sums: Sums = defaultdict(lambda: [0, 0, 0])
    for month in ("9", "10"):
        words = [str(PLUGIN), "-y", "2026", "-m", month, "-s", "EXAMPLE-SITE", "-c", str(config), "--dry-run"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        message = done.stderr.partition("APEL-normalised-summary-message")[2].partition("Signed message")[0]
        for row in (dict(re.findall(r"^(\w+): (.*)$", block, re.MULTILINE)) for block in message.split("%%")):
            if "NumberOfJobs" not in row:
                continue
            key = (
                f"{row['Year']}-{int(row['Month']):02}",
                *(row[name] for name in ("VO", "SubmitHost", "GlobalUserName")),
                *(int(row[name]) for name in ("Processors", "NodeCount")),
            )
            for at, name in enumerate(("NumberOfJobs", "WallDuration", "CpuDuration")):
                sums[key][at] += int(row[name])
    assert dict(sums) == as_apel_has_it(site)
    assert len(sums) > 20
