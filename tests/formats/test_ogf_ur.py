"""Usage records: as the golden file has them, as SGAS reads them, as the schemas want them, whatever a job is called."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from publisher import __version__
from publisher.formats import job_format
from publisher.formats.sgas import values
from publisher.formats.sgas.ogf_ur import FIELDS, NAMESPACE, OgfUr, create
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId, JobRecord, SideTable, Transfer
from publisher.model.published import PublishedJob
from publisher.model.text import xml_text
from publisher.policy.identity import VoRule
from publisher.policy.records import RecordPolicy
from tests.formats.test_car import TELLING_JOBS
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.patience import PATIENCE_S
from tests.support.strategies import (
    HOSTILE_TEXTS,
    hostile_jobs,
    hostile_moment,
    hostile_number,
    hostile_text,
    ordinary_jobs,
)
from tests.support.strict_sgas import Row, read_ur

GOLDEN = Path(__file__).parent / "golden" / "ogf_ur.xml"
SCHEMA = Path(__file__).parents[2] / "publisher" / "formats" / "schemas" / "ogf_ur.rng"
NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)

STAGED = (
    Transfer(kind="download", url="https://se.example.org:443/in&out/é?X-Amz-Signature=secret", size_bytes=0,
             started_at=Epoch(ENDED - 8_000), ended_at=Epoch(ENDED - 7_990)),
    Transfer(kind="cached", url="srm://user:secret@se.example.org:8446/srm/managerv2?SFN=/data/file", size_bytes=2**40,
             started_at=None, ended_at=None),
    Transfer(kind="upload", url="gsiftp://se.example.org/out", size_bytes=None, started_at=Epoch(ENDED - 60),
             ended_at=Epoch(ENDED)),
)  # fmt: skip

# What only SGAS is told, and what its limits do
MORE_JOBS: tuple[tuple[JobRecord, RecordPolicy], ...] = (
    (
        make_job(
            transfers=STAGED, runtime_environments=("ENV/PROXY", "APPS/HEP & more", "ENV/PROXY"),
            client_host="ui.example.org:51022", wn_instance="c5.large", exit_code=300, cpu_count=0,
        ),
        make_policy(),
    ),
    (
        make_job(
            fqans=("/atlas/no/Role=production/Capability=NULL", "/atlas/Role=NULL/Capability=NULL", "/cms", "/atlas"),
            vo="atlas", node_count=40_000, local_id="/odd", client_host="2001:db8::7:51022",
        ),
        make_policy(vo_groups=("/atlas/site", "/g/" + "g" * 100)),
    ),
    (make_job(local_id="4711.batch.cluster.example.org", started_at=None), make_policy(localid_prefix="ce01.example-")),
)  # fmt: skip


@pytest.fixture(scope="module")
def ur() -> OgfUr:
    return create()


def payload(ur: OgfUr, published: Sequence[PublishedJob], now: datetime = NOW) -> bytes:
    return ur.frame.join([ur.render(one, now) for one in published])


def tried(ur: OgfUr, job: JobRecord, policy: RecordPolicy) -> PublishedJob | Unfit:
    """The job as published when it can be rendered, else the verdict; no other exception."""
    try:
        published = policy.describe(job)
        ur.render(published, NOW)
    except Unfit as unfit:
        return unfit
    return published


def one_row(ur: OgfUr, job: JobRecord, policy: RecordPolicy | None = None) -> Row:
    (row,) = read_ur(payload(ur, [(policy or make_policy()).describe(job)]))
    return row


def elements(
    ur: OgfUr, name: str, job: JobRecord, policy: RecordPolicy | None = None
) -> list[tuple[str, dict[str, str]]]:
    """Text and attributes (without the namespace) of the elements of that local name."""
    root = etree.fromstring(payload(ur, [(policy or make_policy()).describe(job)]))
    return [
        (one.text or "", {etree.QName(key).localname: str(value) for key, value in one.attrib.items()})
        for one in root.iter(f"{{*}}{name}")
    ]


def expected_row(published: PublishedJob) -> Row:
    """What the server must store of a job: its own values, and None for what is unknown or has no place there."""
    job, who = published.job, published.who
    vo = xml_text(who.vo)
    local_id = xml_text(published.local_id) if xml_text(job.local_id) else ""
    hosts = [name for name in job.hosts[:1] if values.host(name)]
    projects = [text for text in map(xml_text, job.projects) if 0 < len(text) <= 200]
    return {
        "record_id": values.record_id(published),
        "create_time": int(NOW.timestamp()),
        "global_job_id": xml_text(job.job_id),
        "local_job_id": local_id if 0 < len(local_id) <= 40 and local_id[0] != "/" else None,
        "global_user_name": xml_text(who.user) or None,
        "local_user_id": (local_user if len(local_user := xml_text(job.local_user)) <= 100 else None) or None,
        "vo_type": "voms" if vo else None,
        "vo_name": vo or None,
        "vo_issuer": (vo and xml_text(who.vo_issuer)) or None,
        "vo_attributes": [(group, role or None) for group, role in values.vo_attributes(who)],
        "job_name": xml_text(job.job_name) or None,
        "status": xml_text(job.status),
        "charge": None if published.charge is None else int(published.charge.amount),
        "allocated": [("gres/gpu", str(job.gpu_count))] if job.gpu_count else [],
        "wall": job.wall_s,
        "cpu": job.cpu_user_s + job.cpu_kernel_s,
        "user_time": job.cpu_user_s,
        "kernel_time": job.cpu_kernel_s,
        "processors": job.cpu_count or 1,
        "node_count": job.node_count if 0 < (job.node_count or 0) < 2**15 else None,
        "exit_code": None if job.exit_code is None else job.exit_code % 256,
        "start_time": published.started_at if published.started_at > 0 and not published.start_is_derived else None,
        "end_time": published.ended_at,
        "submit_time": job.submitted_at if 0 < job.submitted_at < 253_402_300_800 else None,
        "machine_name": published.where.machine_name,
        "submit_host": values.submit_host(job.client_host) or None,
        "queue": xml_text(published.where.queue)[:200].rstrip() or None,
        "project_name": list(dict.fromkeys(projects))[-1] if projects else None,
        "host": hosts[0] if hosts else None,
        "memory": [
            (kib * 1024, "max", kind)
            for kib, kind in ((job.virtual_memory_kib, ""), (job.memory_kib, "physical"))
            if 0 < (kib or 0) < 2**53 and kib
        ],
        "runtime_environments": frozenset(
            text for text in map(xml_text, job.runtime_environments) if 0 < len(text) <= 512
        ),
        "transfers": [_expected_transfer(one) for one in job.transfers if _stored_url(one.url)],
    }


def _stored_url(url: str) -> str | None:
    text = xml_text(values.public_url(url))
    return text if 0 < len(text.encode()) <= 2500 else None


def _expected_transfer(transfer: Transfer) -> Row:
    def known(moment: int | None) -> int | None:
        return moment if 0 < (moment or 0) < 253_402_300_800 else None

    return {
        "kind": "FileUpload" if transfer.kind == "upload" else "FileDownload",
        "url": _stored_url(transfer.url),
        "size": transfer.size_bytes
        if 0 <= (-1 if transfer.size_bytes is None else transfer.size_bytes) < 2**63
        else None,
        "start_time": known(transfer.started_at),
        "end_time": known(transfer.ended_at),
        "from_cache": None if transfer.kind == "upload" else transfer.kind == "cached",
    }


hostile_transfers = st.lists(
    st.builds(
        Transfer,
        kind=st.sampled_from(("download", "cached", "upload")),
        url=st.one_of(st.sampled_from(("https://u:p@h.example.org/x?sig=1#f", "x" * 2501, "作" * 900)), hostile_text),
        size_bytes=st.one_of(st.none(), hostile_number),
        started_at=st.one_of(st.none(), hostile_moment),
        ended_at=st.one_of(st.none(), hostile_moment),
    ),
    max_size=3,
).map(tuple)
jobs = st.builds(
    lambda job, transfers: job._replace(transfers=transfers),
    st.one_of(ordinary_jobs(), hostile_jobs(), hostile_jobs(most=20)),
    hostile_transfers,
)


def golden_payload(ur: OgfUr) -> bytes:
    """Each telling job with an id of its own: SGAS knows no other key."""
    published = [
        policy.describe(job._replace(job_id=JobId(f"{job.job_id[:-2]}{number:02}")))
        for number, (job, policy) in enumerate((*TELLING_JOBS, *MORE_JOBS))
    ]
    return payload(ur, published).replace(f"publisher {__version__}<".encode(), b"publisher VERSION<")


def test_the_golden_file_is_what_we_render(ur: OgfUr) -> None:
    """After an intended change: `python -m tests.formats.test_ogf_ur` writes it anew; read the difference."""
    assert golden_payload(ur).decode().splitlines() == GOLDEN.read_text("utf-8").splitlines()


def test_the_golden_file_is_accepted(ur: OgfUr) -> None:
    rows = read_ur(GOLDEN.read_bytes())
    assert len(rows) == len(TELLING_JOBS) + len(MORE_JOBS)
    assert [row["local_job_id"] for row in rows[:3]] == ["4711042", None, "7.b&b"]
    assert [row["project_name"] for row in rows if row["project_name"]] == ["other"]
    ur.check(GOLDEN.read_bytes())


@given(st.lists(jobs, min_size=1, max_size=4), st.booleans())
def test_every_batch_reads_back_as_the_jobs_it_was_made_of(batch: list[JobRecord], with_rules: bool) -> None:
    ur = create()
    rules = (VoRule(field="group", pattern="*", vo="ruled", group="/ruled/x", override=True),) if with_rules else ()
    policy = make_policy(vo_rules=rules, vo_groups=("/g&g",), default_vo="ops#https://iss & co")
    fit: dict[object, PublishedJob] = {}
    for number, job in enumerate(batch):
        job_id = JobId(f"{job.job_id}{number}") if job.job_id.strip() else job.job_id
        outcome = tried(ur, job._replace(job_id=job_id), policy)
        if isinstance(outcome, Unfit):
            assert outcome.rule
            assert outcome.reason
        else:
            fit.setdefault(ur.receiver_key(outcome), outcome)
    made = payload(ur, list(fit.values()))
    assert read_ur(made) == [expected_row(published) for published in fit.values()]
    ur.check(made)
    assert made.count(b"\n") == max(len(fit), 1) + 3  # one record a line, between head and tail
    _check_official(made)


@given(ordinary_jobs())
def test_an_ordinary_job_is_never_set_aside(job: JobRecord) -> None:
    assert create().render(make_policy().describe(job), NOW)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
@pytest.mark.parametrize("name", ["job_name", "queue", "user", "local_user", "vo", "wn_instance", "job_id", "local_id"])
@pytest.mark.some(4)
def test_hostile_text_forges_nothing(ur: OgfUr, name: str, text: str) -> None:
    published = tried(ur, make_job(**{name: text, "fqans": ()}), make_policy())
    if isinstance(published, Unfit):
        assert published.rule.endswith("too-long") or published.rule in ("job-id-missing", "record-id-characters")
        return
    made = payload(ur, [published])
    assert read_ur(made) == [expected_row(published)]
    ur.check(made)
    _check_official(made)


def test_characters_arrive_in_utf_8(ur: OgfUr) -> None:
    name = 'é 作 \U0001f680 a\tb\r\nc & <x> "y" ]]> \x7f\u0085\u2028z'
    assert one_row(ur, make_job(job_name=name))["job_name"] == name
    assert one_row(ur, make_job(job_name="a\0b\ud800c"))["job_name"] == "a\ufffdb\ufffdc"
    assert "作".encode() in ur.render(make_policy().describe(make_job(user="/CN=作")), NOW)


@pytest.mark.parametrize(
    ("endpoint", "record_id"),
    [
        ("https://ce01.example.org:443/arex", "ur-ce01.example.org-X1"),
        ("https://CE01.Example.org/arex", "ur-CE01.Example.org-X1"),  # the case, too
        ("https://[2001:db8::1]:443/arex", "ur-[2001-X1"),
        ("https://2001:db8::1:443/arex", "ur-2001-X1"),
        ("", "ur-ce01.example.org-X1"),
        ("nowhere", "ur-ce01.example.org-X1"),
    ],
)
def test_record_id_is_what_jura_ng_sent(ur: OgfUr, endpoint: str, record_id: str) -> None:
    row = one_row(ur, make_job(job_id=JobId("X1"), endpoint=endpoint))
    assert (row["record_id"], row["global_job_id"]) == (record_id, "X1")


@pytest.mark.parametrize(
    ("local_id", "prefix", "said"),
    [
        ("4711", "", "4711"),
        ("4711", "ce01-", "ce01-4711"),
        ("", "ce01-", None),  # no `None`, no JobID in its place
        (" ", "ce01-", None),
        ("/4711", "", None),
        ("4711", "/ce01/", None),
        ("x" * 40, "", "x" * 40),
        ("x" * 40, "y", None),
    ],
)
def test_a_local_id_never_rewrites_the_record_id(ur: OgfUr, local_id: str, prefix: str, said: str | None) -> None:
    row = one_row(ur, make_job(local_id=local_id), make_policy(localid_prefix=prefix))
    assert row["local_job_id"] == said
    assert row["record_id"].startswith("ur-ce01.example.org-")


def test_cpu_time_is_summed_once(ur: OgfUr) -> None:
    row = one_row(ur, make_job(cpu_user_s=100, cpu_kernel_s=11))
    assert (row["cpu"], row["user_time"], row["kernel_time"]) == (111, 100, 11)
    assert [said["usageType"] for _, said in elements(ur, "CpuDuration", make_job())] == ["user", "system"]


@pytest.mark.parametrize(
    ("cpus", "nodes", "stored"),
    [(4, 1, (4, 1)), (None, None, (1, None)), (0, 2, (1, 2)), (4, 32_767, (4, 32_767)), (4, 32_768, (4, None))],
)
def test_processors_are_at_least_one(
    ur: OgfUr, cpus: int | None, nodes: int | None, stored: tuple[int, int | None]
) -> None:
    row = one_row(ur, make_job(cpu_count=cpus, node_count=nodes))
    assert (row["processors"], row["node_count"]) == stored


def test_start_is_the_start_and_submission_the_submission(ur: OgfUr) -> None:
    row = one_row(ur, make_job())
    assert (row["submit_time"], row["start_time"], row["end_time"]) == (ENDED - 9_000, ENDED - 7_200, ENDED)
    later = one_row(ur, make_job(started_at=None, submitted_at=Epoch(ENDED + 1)))
    assert (later["submit_time"], later["start_time"]) == (ENDED + 1, None)


@pytest.mark.parametrize(("code", "stored"), [(0, 0), (137, 137), (-1, 255), (2**32 - 1, 255), (300, 44), (None, None)])
def test_exit_code_is_what_the_server_keeps_of_it(ur: OgfUr, code: int | None, stored: int | None) -> None:
    assert one_row(ur, make_job(exit_code=code))["exit_code"] == stored


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("ui.example.org:51022", "ui.example.org"),
        ("ui.example.org", "ui.example.org"),
        ("2001:db8::7:51022", "2001:db8::7"),
        ("[2001:db8::7]:51022", "2001:db8::7"),
        ("2001:DB8::7", "2001:DB8::7"),
        ("::ffff:192.0.2.7:51022", "::ffff:192.0.2.7"),
        ("192.0.2.7:51022", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.777:51022", None),
        ("fe80::1%eth0:51022", None),
        ("", None),
        ("ui_1.example.org:1", None),
        (f"{'x' * 201}:1", None),
    ],
)
def test_submit_host_is_the_clients_name_or_address(ur: OgfUr, client: str, said: str | None) -> None:
    assert one_row(ur, make_job(client_host=client))["submit_host"] == said


def test_the_primary_host_is_the_only_one(ur: OgfUr) -> None:
    hosts = ("wn1.example.org", "wn2.example.org")
    assert elements(ur, "Host", make_job(hosts=hosts)) == [("wn1.example.org", {"primary": "true"})]
    assert elements(ur, "Host", make_job(hosts=("wn_1", "wn2"))) == []


def test_several_fqans_are_as_many_attributes(ur: OgfUr) -> None:
    job = make_job(fqans=("/atlas/no/Role=production/Capability=NULL", "/atlas", "/atlas/no/Role=production", "/cms"))
    row = one_row(ur, job, make_policy(vo_groups=("/site/a", "/atlas")))
    assert (row["vo_type"], row["vo_name"], row["vo_issuer"]) == ("voms", "atlas", None)
    assert row["vo_attributes"] == [("/atlas/no", "/Role=production"), ("/atlas", None), ("/site/a", None)]


def test_a_vo_without_fqans_has_the_configured_issuer_and_groups(ur: OgfUr) -> None:
    policy = make_policy(default_vo="ops#https://iss.example.org", vo_groups=("/site & co",))
    row = one_row(ur, make_job(vo="", fqans=()), policy)
    assert (row["vo_name"], row["vo_issuer"]) == ("ops", "https://iss.example.org")
    assert row["vo_attributes"] == [("/site & co", None)]


def test_the_fqans_of_another_vo_are_attributes_of_the_job_s_own(ur: OgfUr) -> None:
    row = one_row(ur, make_job(vo="cms", fqans=("/atlas/Role=pilot", "/atlas/no", "/bio")))
    assert (row["vo_name"], row["vo_attributes"]) == ("cms", [("/atlas", "/Role=pilot"), ("/atlas/no", None)])


@pytest.mark.parametrize("role", ["Role=lcgadmin", "/role=lcgadmin", "lcgadmin"])
def test_a_ruled_vo_keeps_other_fqans_back(ur: OgfUr, role: str) -> None:
    rule = VoRule(field="any", pattern="*", vo="ops", role=role, override=True)
    row = one_row(ur, make_job(), make_policy(vo_rules=(rule,)))
    assert (row["vo_name"], row["vo_attributes"]) == ("ops", [("/ops", "/Role=lcgadmin")])


def test_nothing_unknown_is_said(ur: OgfUr) -> None:
    (job, policy) = TELLING_JOBS[1]
    job = job._replace(
        submitted_at=Epoch(0),
        scratch_bytes=-5,
        stage_in_bytes=-1,
        stage_out_bytes=None,
        projects=("",),
        client_host="",
    )
    root = etree.fromstring(payload(ur, [policy.describe(job)]))
    assert [etree.QName(one).localname for one in root[0]] == [
        "RecordIdentity", "JobIdentity", "Status", "WallDuration", "CpuDuration", "CpuDuration", "Processors",
        "EndTime", "MachineName", "UserTime", "KernelTime", "LoggerName",
    ]  # fmt: skip


def test_volumes_are_told_when_there_are_any(ur: OgfUr) -> None:
    job = make_job(stage_in_bytes=5, stage_out_bytes=-1, scratch_bytes=7, wn_instance="c5.large")
    assert elements(ur, "Network", job) == [("5", {"storageUnit": "B", "metric": "total"})]
    assert elements(ur, "Disk", job) == [("7", {"storageUnit": "B", "metric": "total", "type": "scratch"})]
    assert elements(ur, "ServiceLevel", job) == [("c5.large", {})]


def test_transfers_are_told_without_their_secrets(ur: OgfUr) -> None:
    job = make_job(transfers=STAGED)
    row = one_row(ur, job)
    assert [one["url"] for one in row["transfers"]] == [
        "https://se.example.org:443/in&out/é",
        "srm://se.example.org:8446/srm/managerv2?SFN=/data/file",
        "gsiftp://se.example.org/out",
    ]
    assert [(one["size"], one["from_cache"]) for one in row["transfers"]] == [(0, False), (2**40, True), (None, None)]
    assert b"secret" not in ur.render(make_policy().describe(job), NOW)


def test_a_record_of_20000_transfers_can_shed_them(ur: OgfUr) -> None:
    one = STAGED[2]._replace(size_bytes=10)
    many = tuple(one._replace(url=f"https://se.example.org/tr:FileTransfers/{number}") for number in range(20_000))
    published = make_policy().describe(make_job(transfers=many, job_name="</tr:FileTransfers><tr:FileTransfers>"))
    content = ur.render(published, NOW)
    made = ur.frame.join([content])
    ur.check(made)
    (row,) = read_ur(made)
    assert len(row["transfers"]) == 20_000
    lighter = ur.shed(content)
    assert lighter is not None
    assert len(lighter) < 3_000
    ur.check(ur.frame.join([lighter]))
    assert read_ur(ur.frame.join([lighter])) == [row | {"transfers": []}]
    assert lighter == ur.render(make_policy().describe(published.job._replace(transfers=())), NOW)
    assert ur.shed(lighter) is None


def test_namespaces_are_declared_once(ur: OgfUr) -> None:
    assert b"xmlns" not in ur.render(make_policy().describe(make_job(transfers=STAGED)), NOW)
    assert ur.frame.head.startswith(b'<?xml version="1.0" encoding="UTF-8"?>')


def test_a_record_is_made_at_the_time_it_is_given(ur: OgfUr) -> None:
    published = make_policy().describe(make_job())
    for moment in (NOW, NOW + timedelta(hours=1), NOW):
        assert f'createTime="{moment:%Y-%m-%dT%H:%M:%SZ}"'.encode() in ur.render(published, moment)


def test_users_and_places_that_are_shared_are_not_mixed_up(ur: OgfUr) -> None:
    policy = make_policy()
    first, second = policy.describe(make_job(job_id=JobId("A1"))), policy.describe(make_job(job_id=JobId("A3")))
    assert first.who is second.who
    other = first._replace(job=make_job(job_id=JobId("A2")), record_id="x", who=first.who._replace(user="/CN=other"))
    rows = read_ur(payload(ur, [first, other, second]))
    assert [row["global_user_name"] for row in rows] == [first.who.user, "/CN=other", first.who.user]


def test_the_receiver_key_is_the_record_id(ur: OgfUr) -> None:
    policy = make_policy()
    again = make_job(ended_at=Epoch(ENDED - 5), local_id="another")
    assert ur.receiver_key(policy.describe(make_job())) == ur.receiver_key(policy.describe(again))
    assert ur.receiver_key(policy.describe(make_job(job_id=JobId("Y")))) == ("ur-ce01.example.org-Y",)


def test_the_table_is_in_the_order_of_the_schema() -> None:
    parts = [field.row for field in FIELDS]
    standard = [row for row in parts if row.startswith(("head", "group"))]
    assert standard == sorted(standard, key=lambda row: (row.startswith("group"), row))
    assert parts[: len(standard)] == standard
    assert parts[-1] == "tr"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"<Status>completed</Status>", b"", "Status|Expecting"),
        (b"<NodeCount>1", b"<NodeCount>32768", "NodeCount"),
        (b"<Processors>4", b"<Processors>0", "Processors"),
        (b"<Queue>grid</Queue>", b"<Queue/>", "Queue"),
        (b"PT7150S", b"", "WallDuration"),
        (b'urf:usageType="user"', b'urf:usageType="all"', "CpuDuration"),
        (b"urf:recordId", b"recordId", "RecordIdentity"),
        (b"vo:type", b"type", "UserIdentity"),
        (b'metric="max"', b'metric="peak"', "Memory"),
        (b">4711042<", b">/4711042<", "LocalJobId"),
        (b">4711042<", b">" + b"4" * 41 + b"<", "LocalJobId"),
        (b"ce01.example.org</MachineName", b"ce_1</MachineName", "MachineName"),
        (b"<StartTime>2026-03-05T12:00:00Z", b"<StartTime>2026-03-05 12:00:00", "StartTime"),
        (b"<sgas:ExitCode>0", b"<sgas:ExitCode>300", "ExitCode"),
        (b"mc23", b"mc23 & x", "not well-formed"),
        (b"mc23", b"caf\xe9", "not well-formed"),
        (b"</UsageRecords>", b"", "not well-formed"),
    ],
)
def test_the_check_finds_what_sgas_would_refuse(ur: OgfUr, old: bytes, new: bytes, fault: str) -> None:
    good = payload(ur, [make_policy().describe(make_job(client_host=""))])
    ur.check(good)
    assert old in good
    with pytest.raises(Unfit, match=fault):
        ur.check(good.replace(old, new))


def test_the_check_finds_a_record_that_would_be_discarded(ur: OgfUr) -> None:
    published = make_policy().describe(make_job())
    with pytest.raises(Unfit, match=r"record 2: .*in the document already"):
        ur.check(payload(ur, [published, published]))


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"status": ""}, "status-missing"),
        ({"wall_s": -1}, "wall-out-of-range"),
        ({"ended_at": Epoch(ENDED + 200_000)}, "end-in-future"),
        ({"job_id": JobId("")}, "job-id-missing"),
        ({"job_id": JobId("a\0b")}, "record-id-characters"),
        ({"user": "作" * 999}, "user-too-long"),
    ],
)
def test_a_job_that_sgas_would_refuse_is_set_aside_by_name(ur: OgfUr, overrides: dict[str, Any], rule: str) -> None:
    with pytest.raises(Unfit) as caught:
        ur.render(make_policy().describe(make_job(**overrides)), NOW)
    assert caught.value.rule == rule


def test_a_job_needs_no_benchmark_here(ur: OgfUr) -> None:
    from publisher.model.rates import BenchmarkPolicy

    assert one_row(ur, make_job(benchmark=""), make_policy(benchmarks=BenchmarkPolicy()))["status"] == "completed"


def test_rendering_does_not_load_lxml() -> None:
    code = "import sys, publisher.formats; publisher.formats.job_format('ogf-ur'); sys.exit('lxml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


def test_the_registry_knows_it_and_what_it_needs() -> None:
    made = job_format("ogf-ur")
    assert isinstance(made, OgfUr)
    assert made.needs == {SideTable.TRANSFERS, SideTable.RUNTIME_ENVIRONMENTS}


@cache
def _official() -> etree.XMLSchema:
    return etree.XMLSchema(etree.parse(str(Path(os.environ["PUBLISHER_SCHEMAS"]) / "ur-1.0" / "offline-driver.xsd")))


def is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def _check_official(made: bytes) -> None:
    """The extended record without its extensions is a UR 1.0; checked where the official schemas are.

    An address of a submit host is an extension too: the schema has domain names only, and SGAS takes both.
    """
    if not os.environ.get("PUBLISHER_SCHEMAS"):
        return
    root = etree.fromstring(made)
    extended = [one for one in root.iter("*") if etree.QName(one).namespace != NAMESPACE]
    extended += [one for one in root.iter(f"{{{NAMESPACE}}}SubmitHost") if is_address(one.text or "")]
    for foreign in extended:
        parent = foreign.getparent()
        if parent is not None:
            parent.remove(foreign)
    _official().assertValid(root)


def test_the_golden_file_is_valid_by_the_official_schema() -> None:
    if not os.environ.get("PUBLISHER_SCHEMAS"):
        pytest.skip("PUBLISHER_SCHEMAS is not set")
    _check_official(GOLDEN.read_bytes())


if __name__ == "__main__":
    GOLDEN.write_bytes(golden_payload(create()))
