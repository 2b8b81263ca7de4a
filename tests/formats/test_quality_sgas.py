"""Rules and mends for SGAS: each at its limit and beyond, and no secret in a published URL."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.formats.rules import Rule, RunRule, latest_end, require
from publisher.formats.sgas.rules import (
    OMISSIONS,
    SGAS_RUN_RULES,
    SGAS_WHERE_RULES,
    SGAS_WHO_RULES,
    require_sgas_run,
    sgas_omissions,
)
from publisher.formats.sgas.values import public_url, transfers, vo_attributes
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId, JobRecord, Transfer
from publisher.model.published import PublishedJob
from publisher.policy.identity import VoRule
from tests.support.jobs import ENDED, make_charging, make_job, make_policy

NOW = datetime.fromtimestamp(ENDED + 3_600, UTC)
INT4 = 2**31 - 1
LATEST = latest_end(NOW)

# Rule, what it still takes, what it does not; of jobs, and of the policy where a value comes from there
EDGES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("job-id-missing", {"job_id": JobId("x")}, {"job_id": JobId(" ")}),
    ("record-id-characters", {"job_id": JobId("é &<")}, {"job_id": JobId("a\x08b")}),
    ("record-id-characters", {"job_id": JobId("a b")}, {"job_id": JobId("a ")}),
    ("record-id-too-long", {"job_id": JobId("x" * 980)}, {"job_id": JobId("x" * 981)}),
    ("record-id-too-long", {"job_id": JobId("作" * 859)}, {"job_id": JobId("作" * 861)}),
    ("status-missing", {"status": "aborted"}, {"status": "\n"}),
    ("status-too-long", {"status": "s" * 100}, {"status": "s" * 101}),
    ("wall-out-of-range", {"wall_s": INT4}, {"wall_s": INT4 + 1}),
    ("wall-out-of-range", {"wall_s": 0}, {"wall_s": -1}),
    ("cpu-out-of-range", {"cpu_user_s": INT4, "cpu_kernel_s": INT4}, {"cpu_user_s": INT4 + 1}),
    ("cpu-out-of-range", {"cpu_kernel_s": 0}, {"cpu_kernel_s": -1}),
    ("processors-out-of-range", {"cpu_count": INT4}, {"cpu_count": INT4 + 1}),
    ("processors-out-of-range", {"cpu_count": 0}, {"cpu_count": -4}),
    ("end-out-of-range", {"ended_at": Epoch(1)}, {"ended_at": Epoch(0)}),
    ("end-out-of-range", {"ended_at": Epoch(ENDED)}, {"ended_at": Epoch(253_402_300_800)}),
    ("end-in-future", {"ended_at": Epoch(LATEST)}, {"ended_at": Epoch(LATEST + 1)}),
    ("user-too-long", {"user": "u" * 1000}, {"user": "u" * 1001}),
    ("user-too-long", {"user": "作" * 866}, {"user": "作" * 867}),
    ("vo-too-long", {"vo": "v" * 1000, "fqans": ()}, {"vo": "v" * 1001, "fqans": ()}),
)


def described(job: JobRecord, **policy: Any) -> PublishedJob:
    return make_policy(**policy).describe(job)


def sgas_fault(job: PublishedJob, now: datetime) -> Unfit | None:
    """The first broken rule."""
    try:
        require(SGAS_WHERE_RULES, job.where)
        require_sgas_run(job, latest_end(now))
        require(SGAS_WHO_RULES, job.who)
    except Unfit as fault:
        return fault
    return None


def broken(job: PublishedJob) -> str:
    fault = sgas_fault(job, NOW)
    return fault.rule if fault else ""


@pytest.mark.parametrize(("rule", "fit", "unfit"), EDGES)
def test_each_rule_at_its_limit(rule: str, fit: dict[str, Any], unfit: dict[str, Any]) -> None:
    assert broken(described(make_job(**fit))) == ""
    assert broken(described(make_job(**unfit))) == rule


def test_rules_about_what_the_policy_says() -> None:
    assert broken(described(make_job(), machine_name="ce01." + "e" * 195)) == ""
    for name in ("ce01." + "e" * 196, "ce_01", "10.0.0.1"):
        assert broken(described(make_job(), machine_name=name)) == "machine-name"
    nobody = make_job(vo="", fqans=())
    assert broken(described(nobody, default_vo="ops#" + "i" * 1000)) == ""
    assert broken(described(nobody, default_vo="ops#" + "i" * 1001)) == "vo-issuer-too-long"


def test_every_rule_is_tried_here() -> None:
    tables: tuple[tuple[Rule[Any] | RunRule, ...], ...] = (SGAS_RUN_RULES, SGAS_WHERE_RULES, SGAS_WHO_RULES)
    rules = [rule for table in tables for rule in table]
    assert {rule.name for rule in rules} == {rule for rule, _, _ in EDGES} | {"machine-name", "vo-issuer-too-long"}


def test_a_reason_names_the_value() -> None:
    fault = sgas_fault(described(make_job(wall_s=-7)), NOW)
    assert fault is not None
    assert "wall time -7" in fault.reason


def transfer(url: str) -> Transfer:
    return Transfer(kind="download", url=url, size_bytes=1, started_at=None, ended_at=None)


# Mend, what leaves the record as the job is, what does not
MENDED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("local-id-left-out", {"local_id": ""}, {"local_id": "/x"}),
    ("local-id-left-out", {"local_id": "x" * 40}, {"local_id": "x" * 41}),
    ("job-name-cut", {"job_name": "n" * 1000}, {"job_name": "n" * 1001}),
    ("queue-cut", {"queue": "é" * 200}, {"queue": "q" * 201}),
    ("local-user-left-out", {"local_user": "é" * 100}, {"local_user": "u" * 101}),
    ("charge-left-out", {"gpu_count": 2**32 - 2}, {"gpu_count": 2**32}),
    ("charge-fraction", {"gpu_count": 4}, {"gpu_count": 5}),
    ("exit-code-modulo", {"exit_code": 255}, {"exit_code": 256}),
    ("exit-code-modulo", {"exit_code": None}, {"exit_code": -1}),
    ("processors-one", {"cpu_count": 1}, {"cpu_count": None}),
    ("node-count-left-out", {"node_count": 32_767}, {"node_count": 32_768}),
    ("node-count-left-out", {"node_count": None}, {"node_count": -1}),
    ("memory-left-out", {"memory_kib": 2**53 - 1}, {"memory_kib": 2**53}),
    ("memory-left-out", {"virtual_memory_kib": None}, {"virtual_memory_kib": -5}),
    ("start-left-out", {"started_at": ENDED}, {"started_at": None, "submitted_at": Epoch(ENDED + 1)}),
    ("submission-left-out", {"submitted_at": Epoch(1)}, {"submitted_at": Epoch(0)}),
    ("host-left-out", {"hosts": ()}, {"hosts": ("wn_1",)}),
    ("submit-host-left-out", {"client_host": "192.0.2.7:51022"}, {"client_host": "192.0.2.777:51022"}),
    ("vo-attribute-left-out", {"fqans": ("/atlas/" + "g" * 93,)}, {"fqans": ("/atlas/" + "g" * 94,)}),
    ("vo-attribute-left-out", {"fqans": ("/atlas/Role=" + "r" * 94,)}, {"fqans": ("/atlas/Role=" + "r" * 95,)}),
    ("project-left-out", {"projects": ("p" * 200, "p" * 200, "")}, {"projects": ("p" * 201,)}),
    (
        "runtime-environment-left-out",
        {"runtime_environments": ("é" * 512, "a", "a")},
        {"runtime_environments": ("e" * 513,)},
    ),
    ("transfer-left-out", {"transfers": (transfer("é" * 1250),)}, {"transfers": (transfer("é" * 1251),)}),
    ("transfer-url-stripped", {"transfers": (transfer("https://h/x"),)}, {"transfers": (transfer("https://u@h/x"),)}),
)


@pytest.mark.parametrize(("name", "whole", "mended"), MENDED)
def test_each_mend_at_its_limit(name: str, whole: dict[str, Any], mended: dict[str, Any]) -> None:
    ordinary = {"client_host": "ui.example.org:1"}
    charging = make_charging("gres_gpu / 2")
    assert sgas_omissions(described(make_job(**(ordinary | whole)), charging=charging)) == ()
    job = described(make_job(**(ordinary | mended)), charging=charging)
    assert [said for said, _ in sgas_omissions(job)] == [name]
    assert broken(job) == ""  # a mended job is published


def test_every_mend_is_tried_here() -> None:
    assert {mend.name for mend in OMISSIONS} == {name for name, _, _ in MENDED}


def test_attributes_stay_with_their_vo() -> None:
    rule = VoRule(field="any", pattern="*", vo="ops", group="/ops/site", role="lcgadmin", override=True)
    assert vo_attributes(described(make_job(), vo_rules=(rule,)).who) == (("/ops/site", "/Role=lcgadmin"),)
    nobody = described(make_job(vo="", fqans=()), vo_groups=("/g",))
    assert vo_attributes(nobody.who) == ()
    assert vo_attributes(nobody.who._replace(vo="x")) == (("/g", ""),)


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://se.example.org:443/data/file", "https://se.example.org:443/data/file"),
        ("https://user:pass@se.example.org/f", "https://se.example.org/f"),
        ("gsiftp://user@se.example.org:2811;threads=10/f", "gsiftp://se.example.org:2811;threads=10/f"),
        ("https://s3.example.org/b/k?X-Amz-Credential=A&X-Amz-Signature=B", "https://s3.example.org/b/k"),
        ("https://se.example.org/f?authz=Bearer%20x#frag", "https://se.example.org/f"),
        ("root://se.example.org:1094//eos/u@x/f?authz=x", "root://se.example.org:1094//eos/u@x/f"),
        ("srm://se:8446/srm/managerv2?SFN=/d/f", "srm://se:8446/srm/managerv2?SFN=/d/f"),
        ("srm://se:8446/srm/managerv2?token=x&SFN=/d/f?y=z", "srm://se:8446/srm/managerv2?SFN=/d/f"),
        ("https://se.example.org:443/dir@v2/file", "https://se.example.org:443/dir@v2/file"),
        ("https://[2001:db8::1]:443/a@b", "https://[2001:db8::1]:443/a@b"),
        ("https://[x]:y@[2001:db8::1]/a", "https://[2001:db8::1]/a"),
        ("rls://gsiftp://u:p@se1/x|srm://v:w@se2/y@rls.example.org/lfn", "rls://rls.example.org/lfn"),
        ("https://proxy.example.org:443/https://u:p@se1/x", "https://proxy.example.org:443/https://se1/x"),
        ("https://user:pa/ss@se.example.org/f", "https://se.example.org/f"),
        ("https://user:pa#s?s@se.example.org/f", "https://se.example.org/f"),
        ("//user:pass@se.example.org/f", "//se.example.org/f"),
        ("", ""),
    ],
)  # fmt: skip
def test_public_urls(url: str, public: str) -> None:
    assert public_url(url) == public


@given(
    scheme=st.sampled_from(("https", "gsiftp", "root", "srm", "dav+s")),
    user=st.text(string.ascii_letters + string.digits + "-._~%:!$&'()*+,;=@", min_size=1),
    port=st.sampled_from(("", ":443")),
    path=st.text(string.ascii_letters + string.digits + "-._~%:@!$&'()*+,;=/"),
    query=st.text(string.printable),
)
def test_no_secret_is_published(scheme: str, user: str, port: str, path: str, query: str) -> None:
    public = public_url(f"{scheme}://{user}SECRET@se.example.org{port}/{path}?sig=SECRET{query.replace('SFN', '')}")
    assert public.startswith(f"{scheme}://se.example.org{port}/")
    assert "SECRET" not in public


def test_transfers_without_a_url_are_not_told() -> None:
    assert list(transfers((transfer(" "), transfer("?x")))) == []
