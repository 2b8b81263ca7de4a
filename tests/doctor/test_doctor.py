"""Doctor finds what is planted, names it, and says what to do; and it hands over no record whatever it finds."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from publisher.cli.commands import doctor as doctor_command
from publisher.doctor.findings import split_advice
from publisher.model.errors import ConfigError, gravest
from tests.arex_databases import RawRow, SampleJob, generate, leave_wal, make_damaged, make_missing, set_schema_version
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.support import gridengine_files
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential, subject_hash, validity
from tests.support.ports import closed_port
from tests.support.sgas_sites import SgasSite
from tests.support.sites import ConfiguredSite, Run, SiteUnderTest

pytest_plugins = ["tests.fake_sgas.fixtures"]

NOW = datetime.now(UTC)
BENCHMARK = {"type": "HEPscore23", "value": 11.5}


def recent_jobs(count: int = 40) -> list[SampleJob]:
    """Jobs of the last days, all of them fit and with a benchmark of their own."""
    jobs = generate(7, count, NOW - timedelta(days=3), NOW - timedelta(hours=1))
    return [replace(job, benchmark="HEPscore23:11.5") for job in jobs]


@dataclass
class Clinic:
    """A site where all is well, and the ways to look at it."""

    site: ConfiguredSite
    pki: PKI
    root: Path
    cas: Path
    arc_conf: Path
    units: Path
    monkeypatch: pytest.MonkeyPatch
    ams: FakeAMS | None = None
    sgas: FakeSGAS | None = None
    opened: ExitStack = field(default_factory=ExitStack)  # closed after the test

    @property
    def target(self) -> dict[str, Any]:
        found: dict[str, Any] = next(iter(self.site.config["targets"].values()))
        return found

    @property
    def fake(self) -> FakeAMS:
        assert self.ams is not None
        return self.ams

    @property
    def server(self) -> FakeSGAS:
        assert self.sgas is not None
        return self.sgas

    def doctor(self, *arguments: str) -> Run:
        self.site.save()
        return self.site.run("doctor", "--arc-conf", str(self.arc_conf), *arguments)

    def credential(self, host: Credential, *, known: bool = True) -> None:
        """The site gets another certificate, which the service knows, or not."""
        self.site.host = host
        self.site.config["credentials"] |= {"certificate": str(host.certificate), "key": str(host.key)}
        if known:
            self.fake.unbind(host)
            self.fake.bind(host)

    def alter(self, statement: str) -> None:
        """Change the accounting database."""
        connection = sqlite3.connect(self.site.database())
        with connection:
            connection.execute(statement)
        connection.close()
        for file in self.site.state.parent.glob("jobs.db*"):  # rows that were loaded are compared once a day
            file.unlink()

    def alter_state(self, statement: str) -> None:
        connection = sqlite3.connect(self.site.state)
        with connection:
            connection.execute(statement)
        connection.close()

    def write(self, *jobs: SampleJob | RawRow) -> None:
        self.site.fill(*jobs)

    def messages(self) -> int:
        """Requests that would hand records over, ever."""
        if self.sgas is not None:
            return sum(b"JobUsageRecord" in request.body for request in self.sgas.requests)
        return sum(request.route == "publish" for request in self.fake.requests)


def open_clinic(site: ConfiguredSite, pki: PKI, root: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    """Everything that a careful administrator has: CRLs of today, a timer, a closed state, one round behind it."""
    cas = root / "certificates"
    shutil.copytree(pki.ca_directory, cas)
    write_crl(pki, cas, NOW + timedelta(days=5))
    units = root / "systemd"
    (units / "timers.target.wants").mkdir(parents=True)
    unit = root / "publisher.timer"
    unit.write_text("[Timer]\n")
    (units / "timers.target.wants" / "publisher.timer").symlink_to(unit)
    monkeypatch.setattr(doctor_command, "UNIT_FOLDERS", (units,))
    monkeypatch.setattr(doctor_command, "CRON_FOLDERS", (root / "cron.d",))
    site.config["credentials"]["ca"] = str(cas)
    clinic = Clinic(
        site=site, pki=pki, root=root, cas=cas, arc_conf=root / "arc.conf", units=units, monkeypatch=monkeypatch
    )
    clinic.write(*recent_jobs())
    site.save()
    site.path.chmod(0o644)
    return clinic


def write_crl(pki: PKI, directory: Path, until: datetime) -> None:
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(pki.authority.x509.subject)
        .last_update(until - timedelta(days=10))
        .next_update(until)
        .sign(pki.authority.private_key, hashes.SHA256())
    )
    path = directory / f"{subject_hash(pki.authority.x509.subject)}.r0"
    path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def clinic(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    site = SiteUnderTest(tmp_path / "site", pki, fake_ams, host=pki.host(days=365))
    site.config["targets"]["egi"] |= {"sync": True, "every": "1h", "attempts": 1}
    made = open_clinic(site, pki, tmp_path, monkeypatch)
    made.ams = fake_ams
    assert site.publish().status == 0
    with made.opened:
        yield made


@pytest.fixture
def sgas_clinic(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    site = SgasSite(tmp_path / "site", pki, fake_sgas, host=pki.host("ce01.example.org", days=365))
    site.target["every"] = "1h"
    made = open_clinic(site, pki, tmp_path, monkeypatch)
    made.sgas = fake_sgas
    assert site.publish_all().status == 0
    return made


# A healthy site


def test_what_the_first_round_makes_is_no_failure(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """Such as the state directory, and a spool in it."""
    site = SiteUnderTest(tmp_path / "site", pki, fake_ams, host=pki.host(days=365))
    for layout in ("flat", "dirq"):
        spool = {"type": "spool", "path": str(site.state.parent / layout), "layout": layout, "sign": True}
        site.config["targets"][layout] = {**spool, "format": "car", "start": "all", "every": "1h"}
    with site.arex():
        pass
    before = site.run("doctor", "--json")
    assert [one for one in before.json["findings"] if one["state"] == "failure"] == []
    assert before.status == 0
    assert not site.state.parent.exists()
    assert site.publish().status == 0
    site.state.parent.rename(tmp_path / "away")
    (tmp_path / "site" / "state").touch()
    assert site.run("doctor").status == 74, "where it cannot be made, that is one"


def test_before_the_first_reading_of_a_batch_system_nothing_has_failed(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    site = SiteUnderTest(tmp_path / "site", pki, fake_ams, host=pki.host(days=365))
    accounting = site.folder / "accounting"
    accounting.touch()
    site.config["source"] = [{"type": "gridengine", "name": "hpc", "paths": [str(accounting)], "cluster": "hpc1"}]
    run = site.run("doctor", "--json")
    assert [one for one in run.json["findings"] if one["state"] == "failure"] == []
    (found,) = [one for one in run.json["findings"] if one["name"] == "database"]
    assert (found["state"], found["found"]) == ("warning", "no batch system was read yet")
    accounting.unlink()
    assert site.publish().status == 66
    assert site.run("doctor").status == 66, "a reading that failed is one"


def test_a_spool_is_not_asked_for_counts(clinic: Clinic) -> None:
    """Whoever takes the files to the receiver sends them, or our target beside it."""
    spool = {"type": "spool", "path": str(clinic.root / "spool"), "format": "car", "sign": True}
    clinic.site.config["targets"]["hand"] = {**spool, "start": "all", "every": "1h"}
    found = clinic.doctor("--json").json["findings"]
    assert [one["found"] for one in found if (one["name"], one["part"]) == ("target", "hand")] == [
        "car to spool, every hour"
    ]


def test_at_a_healthy_site_all_is_well(clinic: Clinic) -> None:
    before = clinic.messages()
    run = clinic.doctor("--json")
    assert [found for found in run.json["findings"] if found["state"] != "ok"] == []
    assert (run.status, run.json["exit"], run.json["warnings"], run.json["failures"]) == (0, 0, 0, 0)
    names = {found["name"] for found in run.json["findings"]}
    assert names >= {"configuration", "database", "indexes", "statuses", "jobs per month", "benchmarks", "fitness"}
    assert names >= {"state directory", "state files", "disk space", "state", "last success", "quarantine"}
    assert names >= {
        "certificate",
        "certificate dates",
        "certificate purpose",
        "subject",
        "key",
        "CAs",
        "our CA",
        "CRLs",
    }
    assert names >= {"name", "connection", "TLS", "clock", "token", "right to publish", "jura-ng", "timer", "user"}
    assert all(found["why"] and found["advice"] is None for found in run.json["findings"])
    assert clinic.messages() == before


def test_at_a_healthy_sgas_site_all_is_well(sgas_clinic: Clinic) -> None:
    before, rows = sgas_clinic.messages(), dict(sgas_clinic.server.rows)
    run = sgas_clinic.doctor("--json")
    assert [found for found in run.json["findings"] if found["state"] != "ok"] == []
    assert {found["name"] for found in run.json["findings"]} >= {"TLS", "certificate", "services", "right to insert"}
    assert (sgas_clinic.messages(), dict(sgas_clinic.server.rows)) == (before, rows)


def test_the_default_benchmark_of_jobs_that_never_ran_is_no_finding(clinic: Clinic) -> None:
    """A-REX writes HEPSPEC:1.0 for every job that dies before the batch system; no wall time is lost by it."""
    (job,) = generate(9, 1, NOW - timedelta(hours=5), NOW - timedelta(hours=2))
    clinic.write(replace(job, benchmark="HEPSPEC:1.0", wall_s=0, cpu_user_s=0, cpu_kernel_s=0))
    (found,) = (found for found in clinic.doctor("--json").json["findings"] if found["name"] == "benchmarks")
    assert found["state"] == "ok"


def test_it_prints_both_spellings_of_the_dn_to_paste(clinic: Clinic) -> None:
    (subject,) = (found for found in clinic.doctor("--json").json["findings"] if found["name"] == "subject")
    assert "GOCDB, host DN: /DC=org/DC=example/OU=hosts/CN=ce.example.org |" in subject["found"]
    assert "authn: CN=ce.example.org,OU=hosts,DC=org+DC=example |" in subject["found"]
    assert 'SGAS: "CN=ce.example.org,OU=hosts,DC=example,DC=org"' in subject["found"]


def test_it_changes_nothing(clinic: Clinic) -> None:
    def content() -> dict[Path, bytes]:
        folders = (clinic.site.state.parent, clinic.site.control)
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}

    clinic.doctor()
    before = content()
    clinic.doctor()
    assert content() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it in another user's directory")
def test_root_leaves_no_file_in_the_directory_of_another_user(clinic: Clinic) -> None:
    folder = clinic.site.state.parent
    for path in folder.glob("jobs.db*"):
        path.unlink()
    os.chown(folder, 65534, 65534)
    clinic.doctor()
    assert not list(folder.glob("jobs.db*"))


def test_quiet_only_counts_what_is_well(clinic: Clinic) -> None:
    assert re.fullmatch(r"[0-9]+ ok, 0 warnings, 0 failures; nothing was sent\n", clinic.doctor("--quiet").out)


# Faults, each planted alone


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What must be found: the finding's name and state, words of it, words of its advice, and what else it brings along."""

    name: str
    state: str
    found: str
    advice: str
    status: int = 0
    besides: frozenset[str] = frozenset()


Plant = Callable[[Clinic], Planted]


def warning(name: str, found: str, advice: str, *besides: str) -> Planted:
    return Planted(name=name, state="warning", found=found, advice=advice, besides=frozenset(besides))


def failure(status: int, name: str, found: str, advice: str, *besides: str) -> Planted:
    return Planted(name=name, state="failure", found=found, advice=advice, status=status, besides=frozenset(besides))


# The configuration


def configuration_misspelt(clinic: Clinic) -> Planted:
    clinic.target["formatt"] = clinic.target.pop("format")
    return failure(78, "configuration", "targets.egi.formatt", "did you mean 'format'?")


def configuration_open(clinic: Clinic) -> Planted:
    clinic.site.path.chmod(0o666)
    return warning("configuration", "users other than its owner may write to it (mode 0666)", "chmod go-w")


def configuration_open_to_its_group(clinic: Clinic) -> Planted:
    clinic.site.path.chmod(0o664)
    return warning("configuration", "users other than its owner may write to it (mode 0664)", "chmod go-w")


def target_in_the_shadow(clinic: Clinic) -> Planted:
    clinic.target["shadow"] = True
    return warning("target", "nothing is sent", "remove `shadow`")


def target_without_sync(clinic: Clinic) -> Planted:
    clinic.target["sync"] = False
    return warning("target", "no sync counts are sent", "set `sync: true`")


def target_at_the_test_instance(clinic: Clinic) -> Planted:
    """Behind a proxy that is not there, so that no name is asked for."""
    clinic.target.update({"url": "https://msg-devel.example.org", "proxy": f"http://127.0.0.1:{closed_port()}"})
    return warning("target", "is the test instance", "write https://msg.argo.grnet.gr", "connection", "preflight")


def proxy_away(clinic: Clinic) -> Planted:
    clinic.target["proxy"] = f"http://127.0.0.1:{closed_port()}"
    return failure(75, "connection", "no way through the proxy", "ask who runs the proxy", "preflight")


def secret_open_to_a_group(clinic: Clinic) -> Planted:
    secret = clinic.root / "pseudonym.secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o640)
    clinic.site.config["records"]["identity"] = {"mode": "pseudonym", "secret_file": str(secret)}
    return warning("pseudonym secret", "has mode 0640", "chmod 0400")


# The source


def database_gone(clinic: Clinic) -> Planted:
    make_missing(clinic.site.database())
    return failure(
        66, "database", "has neither accounting/accounting_v2.db nor", "correct source.control_dir", "benchmarks"
    )


def map_file_missing(clinic: Clinic) -> Planted:
    clinic.site.config["importers"] = {"gridengine": {"cluster": "sge.example.org", "user_map": "gone.map"}}
    return failure(78, "map files", "importers.gridengine.user_map", "correct the path", "shared VOs")


def database_of_arc_missing(clinic: Clinic) -> Planted:
    gone = str(clinic.root / "gone" / "accounting_v2.db")
    clinic.site.config["importers"] = {"sonar": {"cluster": "fox.example.org", "arc_databases": [gone]}}
    return failure(66, "arc_databases", f"{gone}: there is no such file", "correct arc_databases")


def zone_misspelt(clinic: Clinic) -> Planted:
    clinic.site.config["source"]["time_zone"] = "Europe/Olso"
    return failure(
        78, "configuration", "source.time_zone: 'Europe/Olso' is not a time zone", "did you mean 'Europe/Oslo'?"
    )


def zone_of_the_host(clinic: Clinic) -> Planted:
    del clinic.site.config["source"]["time_zone"]
    clinic.monkeypatch.setenv("TZ", "Europe/Helsinki")
    return warning("time zone", "this host's zone is used: the environment's TZ, Europe/Helsinki", "Europe/Oslo")


def zone_of_the_host_wrong(clinic: Clinic) -> Planted:
    del clinic.site.config["source"]["time_zone"]
    clinic.monkeypatch.setenv("TZ", "CET-1CEST")
    return failure(78, "database", "no time zone 'CET-1CEST'", "source.time_zone", "time zone", "benchmarks")


def database_damaged(clinic: Clinic) -> Planted:
    make_damaged(clinic.site.database())
    return failure(66, "database", "accounting_v2.db", "restore a backup", "benchmarks")


def database_of_the_future(clinic: Clinic) -> Planted:
    set_schema_version(clinic.site.database(), "9")
    return failure(66, "database", "has schema version 9", "update publisher", "benchmarks")


def database_left_with_its_wal(clinic: Clinic) -> Planted:
    leave_wal(clinic.site.database(), generate(8, 2, NOW - timedelta(days=2), NOW - timedelta(days=1)), shm=False)
    return warning("database", "opened a private copy", "restart A-REX")


def index_gone(clinic: Clinic) -> Planted:
    clinic.alter("DROP INDEX JobExtraInfo_RecordID_IDX")
    return warning("indexes", "no index helps our queries of JobExtraInfo", "arcctl accounting database optimize")


def index_of_end_times_gone(clinic: Clinic) -> Planted:
    clinic.alter("DROP INDEX AAR_EndTime_IDX")
    return warning("indexes", "no index helps our queries of AAR", "arcctl accounting database optimize")


def status_unknown(clinic: Clinic) -> Planted:
    clinic.alter("UPDATE Status SET Name = 'evicted' WHERE Name = 'failed'")
    return warning("statuses", "'evicted'", "an update of ARC may have brought it")


def nothing_comes_in(clinic: Clinic) -> Planted:
    clinic.alter("UPDATE AAR SET EndTime = EndTime - 3000000, SubmitTime = SubmitTime - 3000000")
    found, advice = "no job ended in the last 7 days", "is this the database that A-REX writes today?"
    return warning("jobs per month", found, advice, "benchmarks")


def no_job_for_a_target(clinic: Clinic) -> Planted:
    clinic.target["vos"] = ["nobody"]
    return warning("benchmarks", "cannot tell: no job that this target wants", "`vos` and `statuses`")


def end_in_the_future(clinic: Clinic) -> Planted:
    clinic.alter("UPDATE AAR SET EndTime = EndTime + 864000 WHERE RecordID = 1")
    return warning("end times", "1 job ends in the future", "check the CE's clock")


def benchmark_unknown_for_a_queue(clinic: Clinic) -> Planted:
    clinic.site.config["records"]["benchmark"] = [{"queue": "some-other", **BENCHMARK}]
    clinic.target.update({"format": "apel-summary-0.4", "start": "month"})
    (job,) = generate(9, 1, NOW - timedelta(hours=5), NOW - timedelta(hours=2))
    clinic.write(replace(job, queue="gpu", benchmark=None))
    return warning("benchmarks", "for jobs of the queue gpu", "write it under `records`", "fitness")


def benchmark_of_arex(clinic: Clinic) -> Planted:
    (job,) = generate(9, 1, NOW - timedelta(hours=5), NOW - timedelta(hours=2))
    clinic.write(replace(job, queue="gpu", benchmark="HEPSPEC:1.0", wall_s=5400))
    return warning("benchmarks", "into jobs with 1.5 h of wall time in the queue gpu", "distrust_default: true")


def job_that_breaks_a_rule(clinic: Clinic) -> Planted:
    clinic.alter("UPDATE AAR SET UsedWalltime = -1 WHERE RecordID = 2")
    return warning("fitness", "negative-duration (1)", "publisher explain JOB")


def benchmark_not_configured(clinic: Clinic) -> Planted:
    del clinic.site.config["records"]["benchmark"]
    return warning("benchmarks", "`records: benchmark` is not set", "write it under `records`")


def benchmark_not_configured_and_no_job(clinic: Clinic) -> Planted:
    del clinic.site.config["records"]["benchmark"]
    clinic.target["vos"] = ["nobody"]
    return warning("benchmarks", "`records: benchmark` is not set; cannot tell", "write it under `records`")


# The state


def state_where_no_file_can_be(clinic: Clinic) -> Planted:
    clinic.site.config["state"] = "/proc/publishing.db"
    found = "/proc is on a file system that cannot hold our files"
    return failure(74, "state directory", found, "choose a file on a disk for `state`", "state", "benchmarks")


def state_below_where_no_file_can_be(clinic: Clinic) -> Planted:
    clinic.site.config["state"] = "/proc/sys/publisher/publishing.db"
    return failure(74, "state directory", "cannot hold our files", "choose a file on a disk for `state`", "state")


def state_directory_gone(clinic: Clinic) -> Planted:
    shutil.rmtree(clinic.site.state.parent)
    return warning("state directory", "does not exist; the first round will create it", "install -d", "last success")


def state_directory_cannot_be_made(clinic: Clinic) -> Planted:
    clinic.site.config["state"] = str(clinic.root / "no" / "such" / "publishing.db")
    found = f"and neither does {clinic.root / 'no'}: a round makes the last directory only"
    return failure(74, "state directory", found, "install -d -o publisher", "last success")


def state_directory_open(clinic: Clinic) -> Planted:
    clinic.site.state.parent.chmod(0o777)
    return failure(74, "state directory", "mode 0777", "chmod 0700")


def state_directory_open_to_the_group(clinic: Clinic) -> Planted:
    clinic.site.state.parent.chmod(0o770)
    return warning("state directory", "mode 0770", "chmod 0700")


def state_directory_for_everybody(clinic: Clinic) -> Planted:
    """As /tmp is, whose mode nobody should change."""
    clinic.site.state.parent.chmod(0o1777)
    return failure(74, "state directory", "mode 1777", "choose another directory for `state`")


def state_directory_readable(clinic: Clinic) -> Planted:
    clinic.site.state.parent.chmod(0o755)
    return warning("state directory", "everybody can read", "chmod 0700")


def state_directory_searchable(clinic: Clinic) -> Planted:
    """Who knows the name of a file can open it."""
    clinic.site.state.parent.chmod(0o711)
    return warning("state directory", "mode 0711", "chmod 0700")


def state_of_two_owners(clinic: Clinic) -> Planted:
    need_root()
    os.chown(clinic.site.state, 12345, -1)
    return failure(74, "state files", "not owned by the owner of the directory: publishing.db", "chown --reference=")


def state_is_something_else(clinic: Clinic) -> Planted:
    clinic.site.state.unlink()
    for path in clinic.site.state.parent.iterdir():
        path.unlink()
    connection = sqlite3.connect(clinic.site.state)
    connection.execute("CREATE TABLE other (number INTEGER)")
    connection.close()
    besides = "last success", "benchmarks"
    return failure(74, "state", "not a publishing database", "choose another file for `state`", *besides)


def state_of_a_newer_publisher(clinic: Clinic) -> Planted:
    clinic.alter_state("PRAGMA user_version = 99")
    besides = "last success", "benchmarks"
    return failure(74, "state", "schema 99 is newer", "install the publisher that wrote it", *besides)


def disk_nearly_full(clinic: Clinic) -> Planted:
    disk(clinic, 200 << 20)
    return warning("disk space", "200 MiB free", "make room")


def disk_full(clinic: Clinic) -> Planted:
    disk(clinic, 1 << 20)
    return failure(74, "disk space", "1 MiB free", "make room")


def never_a_round(clinic: Clinic) -> Planted:
    for path in clinic.site.state.parent.iterdir():
        path.unlink()
    return warning("last success", "there was no round yet", "publisher plan")


def no_success_since_yesterday(clinic: Clinic) -> Planted:
    clinic.alter_state("UPDATE target SET last_success = last_success - 86400")
    return warning("last success", "1,440 minutes ago", "publisher publish --force --target egi")


def no_success_for_weeks(clinic: Clinic) -> Planted:
    clinic.alter_state("UPDATE target SET last_success = last_success - 3000000")
    return failure(75, "last success", "34 days ago", "journalctl -u publisher")


def jobs_in_quarantine(clinic: Clinic) -> Planted:
    clinic.alter("UPDATE AAR SET UsedWalltime = -1 WHERE RecordID = 2")
    (job,) = generate(9, 1, NOW - timedelta(hours=5), NOW - timedelta(hours=2))
    clinic.write(RawRow(name="", job=job, columns={"UsedWalltime": -7}))
    assert clinic.site.publish().status == 65
    return warning("quarantine", "set aside", "publisher quarantine list --target egi", "fitness")


def records_in_doubt(clinic: Clinic) -> Planted:
    clinic.write(*generate(9, 1, NOW - timedelta(hours=5), NOW - timedelta(hours=2)))
    clinic.fake.faults.push(Fault.store_then_close())
    clinic.site.publish()
    return warning("in doubt", "1 record", "the next round sends them")


# Certificate and key


def certificate_gone(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["certificate"] = str(clinic.root / "none.pem")
    return failure(
        77, "certificate", "does not exist", "put it there or correct `credentials: certificate`", "preflight"
    )


def certificate_expired(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.expired_host())
    return failure(77, "certificate dates", "expired on", "get a new certificate", "preflight")


def certificate_not_yet_valid(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.not_yet_valid_host())
    return failure(77, "certificate dates", "not valid before", "see that this host's clock is right", "preflight")


def certificate_ends_in_three_weeks(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=21))
    return warning("certificate dates", "20 days from now", "in good time: get a new certificate")


def certificate_ends_next_week(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=8))
    return warning("certificate dates", "7 days from now", "this week: get a new certificate")


def certificate_ends_tomorrow(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=2))
    return failure(77, "certificate dates", "1 days from now", "today: get a new certificate", "preflight")


def certificate_of_a_server_only(clinic: Clinic) -> Planted:
    clinic.credential(issued(clinic, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])))
    return failure(77, "certificate purpose", "lacks clientAuth", "of the profile for grid hosts", "preflight")


def certificate_of_a_ca(clinic: Clinic) -> Planted:
    clinic.credential(issued(clinic, x509.BasicConstraints(ca=True, path_length=None)))
    return failure(77, "certificate purpose", "the certificate of a CA", "of the profile for grid hosts", "preflight")


def certificate_without_crl_address(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=365, crl_url=None))
    return warning("certificate profile", "it names no CRL", "of the profile for grid hosts", "token")


def certificate_of_another_ca(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=365, ca=clinic.pki.other_authority))
    return warning("our CA", "Other Test CA, which issued our certificate", "update the package of CAs", "token")


def subject_with_a_blank_at_its_end(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=365, subject="/DC=org/O=Site /CN=ce.example.org "))
    return warning("subject", "holds blanks at an edge", "letter by letter")


def key_gone(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["key"] = str(clinic.root / "none.key")
    return failure(77, "key", "none.key does not exist", "correct `credentials: key`", "preflight")


def key_of_another_certificate(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["key"] = str(clinic.pki.host(key="ec").key)
    return failure(
        77, "key", "does not belong to the certificate", "whether only one of the two was renewed", "preflight"
    )


def key_open(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["key"] = str(copied_key(clinic, 0o644))
    return failure(77, "key", "is open to others (mode 0644)", "chmod 0400", "preflight")


def key_open_and_allowed(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["key"] = str(copied_key(clinic, 0o644))
    clinic.target["allow_open_key"] = True
    return warning("key", "others on this host can read it", "remove `allow_open_key`")


def key_of_the_service(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["key"] = "$CREDENTIALS_DIRECTORY/hostkey.pem"
    return warning("key", "is available only to the service", "systemd-run --pipe --wait", "preflight")


def key_encrypted(clinic: Clinic) -> Planted:
    path = clinic.root / "locked.key"
    locked = serialization.BestAvailableEncryption(b"secret")
    private_key = clinic.site.host.private_key
    path.write_bytes(private_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    path.chmod(0o400)
    clinic.site.config["credentials"]["key"] = str(path)
    return failure(77, "key", "is encrypted", "store it unencrypted", "preflight")


# CAs


def cas_gone(clinic: Clinic) -> Planted:
    clinic.site.config["credentials"]["ca"] = str(clinic.root / "nowhere")
    return failure(77, "CAs", "cannot read the trusted CAs", "correct `credentials: ca`", "connection", "preflight")


def cas_not_hashed(clinic: Clinic) -> Planted:
    for path in clinic.cas.iterdir():
        path.rename(path.with_name("authority.pem") if path.suffix == ".0" else path.with_name("list.crl"))
    return failure(77, "CAs", "holds no hashed certificates", "install the IGTF bundle", "connection", "preflight")


def cas_with_a_dead_link(clinic: Clinic) -> Planted:
    (clinic.cas / "0123abcd.0").symlink_to(clinic.root / "gone.pem")
    return warning("CAs", "0123abcd.0", "links must lead somewhere")


def crls_old(clinic: Clinic) -> Planted:
    write_crl(clinic.pki, clinic.cas, NOW - timedelta(days=2))
    return warning("CRLs", "1 of 1 are out of date", "run `fetch-crl`")


def crls_missing(clinic: Clinic) -> Planted:
    next(clinic.cas.glob("*.r0")).unlink()
    return warning("CRLs", "none in", "install fetch-crl")


# The way to the services


def name_that_does_not_resolve(clinic: Clinic) -> Planted:
    """Longer than a name can be: no server is asked."""
    clinic.target.update({"url": f"https://{'m' * 70}.example.org"})
    return failure(75, "name", "does not resolve", "getent hosts", "preflight")


def port_closed(clinic: Clinic) -> Planted:
    clinic.target["url"] = f"https://localhost:{closed_port()}"
    return failure(75, "connection", "Connection refused", "the port in `url`", "preflight")


def auth_port_closed(clinic: Clinic) -> Planted:
    clinic.target["auth_url"] = f"https://localhost:{closed_port()}"
    return failure(75, "connection", "Connection refused", "the port in `auth_url`", "preflight")


def server_expired(clinic: Clinic) -> Planted:
    clinic.fake.use_server_certificate(clinic.pki.expired_server())
    return failure(77, "TLS", "certificate has expired", "its operators must mend", "preflight")


def server_of_another_name(clinic: Clinic) -> Planted:
    clinic.fake.use_server_certificate(clinic.pki.wrong_name_server())
    return failure(77, "TLS", "Hostname mismatch", "must name the host as its certificate does", "preflight")


def server_of_an_unknown_ca(clinic: Clinic) -> Planted:
    clinic.fake.use_server_certificate(clinic.pki.other_ca_server())
    return failure(77, "TLS", "unable to get local issuer certificate", "install or update the CA bundle", "preflight")


def clock_off_by_minutes(clinic: Clinic) -> Planted:
    date(clinic, datetime.now(UTC) - timedelta(minutes=2))
    return warning("clock", "s ahead of the service", "set the clock by NTP")


def clock_off_by_an_hour(clinic: Clinic) -> Planted:
    date(clinic, datetime.now(UTC) + timedelta(hours=1))
    return failure(78, "clock", "s behind the service", "set the clock by NTP", "preflight")


# What the services say


def token_not_given(clinic: Clinic) -> Planted:
    clinic.fake.unbind(clinic.site.host)
    return failure(77, "token", '404 "Binding was not found"', "register this host in GOCDB")


def token_for_another_host_name(clinic: Clinic) -> Planted:
    clinic.target["service_host"] = "alias.example.org"
    return failure(78, "token", '404 "Host was not found"', "`service_host` must be the name")


def token_of_a_revoked_certificate(clinic: Clinic) -> Planted:
    clinic.credential(clinic.pki.host(days=365))
    clinic.pki.revoke(clinic.site.host)
    return failure(77, "token", "has been revoked", "get a new certificate")


def token_without_reverse_dns(clinic: Clinic) -> Planted:
    clinic.fake.authn_policy.peer_name = ""
    return failure(77, "token", "no such host", "needs a reverse DNS name")


def url_of_the_token_service(clinic: Clinic) -> Planted:
    clinic.target["url"] = clinic.target["auth_url"]
    return failure(78, "AMS", 'AMS answered 404 "404 page not found"', "it must be AMS itself, not its token service")


def topic_not_ours(clinic: Clinic) -> Planted:
    clinic.fake.remove_acl()
    return failure(77, "right to publish", "only to: none", "ask the operators of AMS")


def project_not_ours(clinic: Clinic) -> Planted:
    clinic.target["project"] = "elsewhere"
    return failure(77, "right to publish", "has no role in the project elsewhere", "correct `project`")


# The host


def jura_at_the_same_service(clinic: Clinic) -> Planted:
    arc_conf(clinic, "https://localhost:8443")
    return failure(78, "jura-ng", "where our target egi publishes too", "restart A-REX")


def jura_elsewhere(clinic: Clinic) -> Planted:
    arc_conf(clinic, "https://msg.example.org")
    return warning("jura-ng", "still publishes to https://msg.example.org", "remove the block")


def jura_in_arc_conf_d(clinic: Clinic) -> Planted:
    clinic.arc_conf.write_text("[common]\n[arex]\n[authgroup: everyone]\nall\n")
    folder = Path(f"{clinic.arc_conf}.d")
    folder.mkdir()
    (folder / "jura.conf").write_text("[arex/jura]\n[arex/jura/apel: egi]\ntargeturl = https://localhost:8443\n")
    return failure(78, "jura-ng", "where our target egi publishes too", f"remove the block from {folder}/jura.conf")


def arc_conf_unreadable(clinic: Clinic) -> Planted:
    clinic.arc_conf.write_text("controldir /var/spool\n")
    return warning("jura-ng", "cannot tell", "name another with --arc-conf")


def timer_not_enabled(clinic: Clinic) -> Planted:
    (clinic.units / "timers.target.wants" / "publisher.timer").unlink()
    return warning("timer", "neither timer, daemon nor cron file", "systemctl enable --now publisher.timer")


def timer_without_unit(clinic: Clinic) -> Planted:
    (clinic.root / "publisher.timer").unlink()
    return warning("timer", "leads nowhere", "systemctl daemon-reload")


def daemon_without_unit(clinic: Clinic) -> Planted:
    (clinic.units / "multi-user.target.wants").mkdir()
    (clinic.units / "multi-user.target.wants" / "publisher-run.service").symlink_to(clinic.root / "gone.service")
    return warning("timer", "publisher-run.service leads nowhere", "systemctl daemon-reload")


def timer_and_daemon(clinic: Clinic) -> Planted:
    unit = clinic.root / "publisher-run.service"
    unit.write_text("[Service]\n")
    (clinic.units / "multi-user.target.wants").mkdir()
    (clinic.units / "multi-user.target.wants" / unit.name).symlink_to(unit)
    return warning("timer", "publisher-run.service", "systemctl disable --now publisher.timer")


def timer_and_cron(clinic: Clinic) -> Planted:
    (clinic.root / "cron.d").mkdir()
    (clinic.root / "cron.d" / "publisher").write_text("17 * * * * publisher publisher publish\n")
    return warning("timer", "more than one thing starts rounds", "keep one of them")


def asked_as_root(clinic: Clinic) -> Planted:
    need_root()
    for path in (clinic.site.state.parent, *clinic.site.state.parent.iterdir()):
        os.chown(path, 12345, -1)
    return warning("user", "running as root, but the state belongs to user 12345", "runuser -u publisher")


PLANTS: tuple[Plant, ...] = tuple(
    found
    for found in list(globals().values())
    if getattr(found, "__annotations__", {}).get("return") == "Planted"
    and found.__code__.co_varnames[:1] == ("clinic",)
)


def test_there_are_many_faults() -> None:
    """The collection above must not run dry unnoticed."""
    assert len(PLANTS) > 60


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_with_its_own_advice(clinic: Clinic, plant: Plant) -> None:
    assert_found(clinic, plant)


def assert_found(clinic: Clinic, plant: Plant) -> None:
    clinic.site.save()
    planted = plant(clinic)
    before = clinic.messages()
    run = clinic.doctor("--json")
    wrong = {(found["name"], found["state"]): found for found in run.json["findings"] if found["state"] != "ok"}
    found = wrong.pop((planted.name, planted.state), None)
    assert found is not None, f"not found; but: {json.dumps(run.json, indent=1)}"
    assert planted.found in found["found"]
    assert planted.advice in found["advice"]
    assert found["advice"] not in found["found"]
    assert found["why"]
    assert found["advice"]
    # Of a fault in `url` or `project`, the ledger asks which receiver that is.
    others = {name for name, _ in wrong}
    assert others <= planted.besides | {"receiver"}, wrong
    if planted.state == "failure":
        assert found["status"] == planted.status
        assert run.status == run.json["exit"] != 0
    if not planted.besides:
        asked = [ConfigError.exit_status] if "receiver" in others else []
        assert run.status == gravest([planted.status, *asked])
    assert clinic.messages() == before


# SGAS


def test_sgas_tells_who_has_no_right(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    site = SgasSite(tmp_path, pki, fake_sgas, host=pki.host("ce01.example.org", days=365), right=None)
    findings = {found["name"]: found for found in site.run("doctor", "--json").json["findings"]}
    right = findings["right to insert"]
    assert (right["state"], right["status"]) == ("failure", 77)
    assert '"CN=ce01.example.org,OU=hosts,DC=example,DC=org"' in right["advice"]


def test_sgas_cannot_take_a_certificate_without_a_host_name(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    robot = pki.host("robot", days=365, subject="/DC=org/CN=Robot Publisher")
    site = SgasSite(tmp_path, pki, fake_sgas, host=robot)
    findings = {found["name"]: found for found in site.run("doctor", "--json").json["findings"]}
    assert findings["right to insert"]["state"] == "failure"
    assert findings["right to insert"]["advice"].startswith("no right at SGAS helps")
    assert "get a certificate whose CN is that of this host" in findings["right to insert"]["advice"]


def test_a_machine_name_that_the_certificate_is_not_for(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    """The right to insert is proved by an empty document; then every record is refused."""
    site = SgasSite(tmp_path, pki, fake_sgas, host=pki.host("ce01.other.net", days=365))
    site.fill(*recent_jobs())

    def findings() -> dict[str, dict[str, Any]]:
        return {found["name"]: found for found in site.run("doctor", "--json").json["findings"]}

    told = findings()
    assert told["right to insert"]["state"] == "ok"
    assert told["machine name"]["state"] == "warning"
    assert "ce01.example.org, not of the domain of the certificate's CN ce01.other.net" in told["machine name"]["found"]
    assert "`jobinsert:machine_name=ce01.example.org`" in told["machine name"]["advice"]
    assert site.publish().status == 77, "doctor was right"
    fake_sgas.allow(site.host, "jobinsert:machine_name=ce01.example.org")
    assert site.publish().status == 0
    assert findings()["machine name"]["state"] == "ok", "its administrator has allowed it"


def test_sgas_at_another_address(tmp_path: Path, pki: PKI, fake_sgas: FakeSGAS) -> None:
    site = SgasSite(tmp_path, pki, fake_sgas)
    site.target["url"] = f"https://localhost:{fake_sgas.port}/elsewhere"
    run = site.run("doctor", "--json")
    findings = {found["name"]: found for found in run.json["findings"]}
    assert "certificate" not in {found["name"] for found in run.json["findings"] if found["part"] == "nordic"}
    assert findings["services"]["state"] == "failure"
    assert "`url` of the target" in findings["services"]["advice"]


# A service that is none, and files


def test_a_port_that_speaks_no_tls(clinic: Clinic) -> None:
    with plain_text_server() as port:
        clinic.target["url"] = f"https://localhost:{port}"
        findings = {
            found["name"]: found for found in clinic.doctor("--json").json["findings"] if found["state"] != "ok"
        }
    assert (findings["TLS"]["state"], findings["TLS"]["status"]) == ("failure", 78)
    assert "one that speaks HTTPS" in findings["TLS"]["advice"]


def test_a_directory_that_cannot_be_made(clinic: Clinic) -> None:
    clinic.site.config["targets"] = {
        "files": {"type": "spool", "path": str(clinic.root / "a" / "b" / "out"), "format": "car", "sign": False}
    }
    clinic.site.config["credentials"] = {"certificate": "/none.pem", "key": "/none.key", "ca": "/none"}
    run = clinic.doctor("--json")
    findings = {found["name"]: found for found in run.json["findings"] if found["state"] == "failure"}
    assert set(findings) == {"directory"}, "files that another signs need no certificate"
    assert (findings["directory"]["status"], run.status) == (74, 74)
    assert "`path` of the target" in findings["directory"]["advice"]


def test_held_months(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteUnderTest(tmp_path / "site", pki, fake_ams, host=pki.host(days=365))
    site.config["targets"]["egi"] |= {"sync": True, "every": "1h"}
    clinic = open_clinic(site, pki, tmp_path, monkeypatch)
    clinic.ams = fake_ams
    alone = replace(recent_jobs()[0], job_id="alone", local_job_id="alone", cpus=77)
    clinic.write(alone)
    assert site.publish().status == 0
    with site.arex() as arex:
        arex.connection.execute("DELETE FROM AAR WHERE JobID = ?", (alone.job_id,))
        arex.write_all([replace(alone, cpus=78)])
    assert site.publish("--force").status == 65, "it was the last job of its row"
    findings = {found["name"]: found for found in clinic.doctor("--json").json["findings"] if found["state"] != "ok"}
    assert set(findings) == {"held months"}
    assert f"{NOW - timedelta(days=2):%Y-%m}" in findings["held months"]["found"]
    assert "--accept-key-change" in findings["held months"]["advice"]


# What is printed


def test_the_gravest_failure_is_the_exit_status(clinic: Clinic) -> None:
    clinic.fake.remove_acl()
    assert clinic.doctor().status == 77
    arc_conf(clinic, "https://localhost:8443")
    assert clinic.doctor().status == 78
    clinic.site.config["state"] = str(clinic.root / "no" / "such" / "publishing.db")
    assert clinic.doctor().status == 74


def test_people_read_what_why_and_what_to_do(clinic: Clinic) -> None:
    timer_not_enabled(clinic)
    lines = clinic.doctor().out.splitlines()
    at = lines.index("warning  timer: neither timer, daemon nor cron file is enabled")
    assert lines[at + 1] == "         why: without one, no round is ever started"
    assert lines[at + 2].startswith("         do:  `systemctl enable --now publisher.timer`")
    assert lines[-2] == "warnings: timer"
    assert lines[-1] == f"{len(lines) - 6} ok, 1 warning, 0 failures; nothing was sent"


def test_problems_come_first_and_are_named_at_the_end(clinic: Clinic) -> None:
    """More things are well than a terminal has lines."""
    timer_not_enabled(clinic)
    clinic.fake.remove_acl()
    lines = clinic.doctor().out.splitlines()
    states = [line.split()[0] for line in lines if line.startswith(("failure ", "warning ", "ok "))]
    assert states == sorted(states, key=["failure", "warning", "ok"].index)
    assert lines[0].startswith("failure  right to publish (egi): ")
    assert lines[-3:-1] == ["failures: right to publish", "warnings: timer"]
    assert "failures: " not in clinic.doctor("--quiet").out, "they are all on the screen"


def test_a_job_in_two_databases_is_counted_once(clinic: Clinic) -> None:
    """`migrate` leaves the old database beside the new one."""

    def per_month() -> list[str]:
        findings = clinic.doctor("--json").json["findings"]
        return [found["found"] for found in findings if found["name"] == "jobs per month"]

    before = per_month()
    clinic.site.fill(*recent_jobs(), schema=1)
    assert per_month() == before


def test_a_site_without_arc_gets_no_advice_about_arex(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    (tmp_path / "common").mkdir()
    gridengine_files.write(tmp_path / "common" / "accounting", [gridengine_files.colon(gridengine_files.Entry())])
    site.config["source"] = {"type": "gridengine", "cluster": "sge.example.org", "paths": [str(tmp_path / "common")]}
    site.publish()
    (found,) = [one for one in site.run("doctor", "--json").json["findings"] if one["name"] == "jobs per month"]
    assert found["state"] == "warning"
    assert found["advice"] == (
        "check that the batch system runs jobs and still writes its accounting where `source` reads it"
    )


def test_the_newest_jobs_are_those_of_the_last_thirty_days(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """Also past days, or weeks, without any."""
    site = SiteUnderTest(tmp_path, pki, fake_ams, host=pki.host(days=365))
    for days in (0.5, 1.5, 8, 29.5, 31, 60):
        (job,) = generate(round(days * 10), 1, NOW - timedelta(days=days), NOW - timedelta(days=days - 0.1))
        site.fill(replace(job, benchmark="HEPscore23:11.5"))
    findings = site.run("doctor", "--json").json["findings"]
    (known,) = (found["found"] for found in findings if found["name"] == "benchmarks")
    assert known.startswith("known for the newest 4 jobs, ")


@pytest.mark.parametrize("vos", [None, ["atlas"]])
def test_two_targets_to_one_topic(clinic: Clinic, vos: list[str] | None) -> None:
    del clinic.target["sync"]
    second = dict(clinic.target)
    if vos:
        clinic.target["vos"], second["exclude_vos"] = vos, vos
    clinic.site.config["targets"]["copy"] = second
    findings = clinic.doctor("--json").json["findings"]
    twice = [found for found in findings if "everything is sent there twice" in found["found"]]
    assert [(found["part"], found["state"]) for found in twice] == ([] if vos else [("copy", "warning")])
    assert all("target egi" in found["found"] and "its own `vos`" in found["advice"] for found in twice)


@pytest.mark.parametrize(
    ("text", "found", "advice"),
    [
        ('authn answered 403 "no; ask us": renew it', 'authn answered 403 "no; ask us"', "renew it"),
        ('AMS answered 500 "a: b; c"', 'AMS answered 500 "a: b; c"', ""),
        ("SGAS answered 500 \"value 'x; y': z\"; look there", "SGAS answered 500 \"value 'x; y': z\"", "look there"),
        ("no file; make it; then go on", "no file", "make it; then go on"),
        ('cut "in the middle; of', 'cut "in the middle; of', ""),
        ("nothing to do", "nothing to do", ""),
    ],
)
def test_the_words_of_others_are_not_torn_apart(text: str, found: str, advice: str) -> None:
    assert split_advice(text) == (found, advice)


@pytest.mark.parametrize("said", ['Internal; "Error": try later; or not', 'x": y; z'])
def test_what_a_service_says_stays_whole(clinic: Clinic, said: str) -> None:
    body = json.dumps({"error": {"code": 403, "message": said, "status": "FORBIDDEN"}}).encode()
    clinic.fake.faults.always(Fault.status(403, body), service="authn", route="authx509")
    (token,) = [found for found in clinic.doctor("--json").json["findings"] if found["name"] == "token"]
    whole = said.replace('"', "'")
    assert token["found"].startswith(f'authn answered 403 "{whole}"')
    assert "Internal" not in token["advice"]
    assert "z" not in token["advice"].split("give")[0]


def test_one_target_of_two(clinic: Clinic) -> None:
    clinic.site.config["targets"]["files"] = {"type": "spool", "path": str(clinic.root / "out"), "format": "car"}
    parts = {found["part"] for found in clinic.doctor("--json", "--target", "files").json["findings"]}
    assert "files" in parts
    assert not {part for part in parts if part.startswith("egi")}


def test_a_target_that_is_not_configured(clinic: Clinic) -> None:
    run = clinic.doctor("--json", "--target", "egj")
    assert (run.status, run.out) == (64, "")
    assert "did you mean 'egi'?" in run.err


def test_nagios_when_all_is_well(clinic: Clinic) -> None:
    run = clinic.doctor("--nagios")
    assert run.status == 0
    text, _, data = run.out.partition(" | ")
    assert text.startswith("PUBLISHER OK - ")
    assert run.out.count("\n") == 1
    measures = dict(one.split("=") for one in data.split())
    assert measures["'failures'"] == "0;;0"
    assert measures["'certificate_days'"] == "364;30:;3:"
    assert measures["'egi_quarantined'"] == "0;0"
    assert measures["'egi_age'"].endswith("s;10800;604800")


def test_nagios_warns(clinic: Clinic) -> None:
    timer_not_enabled(clinic)
    run = clinic.doctor("--nagios")
    assert run.status == 1
    assert run.out.startswith("PUBLISHER WARNING - timer: neither timer")


def test_nagios_is_critical(clinic: Clinic) -> None:
    timer_not_enabled(clinic)
    clinic.fake.remove_acl()
    run = clinic.doctor("--nagios")
    assert run.status == 2
    assert run.out.startswith("PUBLISHER CRITICAL - right to publish (egi): ")
    assert "; timer: " in run.out
    assert "'failures'=1;;0 'warnings'=1;0 " in run.out


def test_nagios_is_critical_without_a_configuration(clinic: Clinic) -> None:
    clinic.site.config["surprise"] = 1
    run = clinic.doctor("--nagios")
    assert (run.status, run.out.count("\n")) == (2, 1)
    assert "surprise" in run.out


def test_nagios_does_not_know(clinic: Clinic) -> None:
    run = clinic.doctor("--nagios", "--target", "egj")
    assert run.status == 3
    assert run.out.startswith("PUBLISHER UNKNOWN - there is no target 'egj'")


def test_no_token_and_no_key_is_printed(clinic: Clinic) -> None:
    token = clinic.fake.token("site-under-test")
    for arguments in ((), ("--json",), ("--nagios",)):
        run = clinic.site.run("-vv", "doctor", "--arc-conf", str(clinic.arc_conf), *arguments)
        assert token not in run.out + run.err
        assert "PRIVATE KEY" not in run.out + run.err


def test_a_unit_of_systemd_is_found_as_systemctl_makes_it() -> None:
    """The link that we look for is the one that `systemctl enable` makes of our timer."""
    timer = (Path(__file__).parents[2] / "conf" / "publisher.timer").read_text()
    assert "WantedBy=timers.target" in timer
    daemon = (Path(__file__).parents[2] / "conf" / "publisher-run.service").read_text()
    assert "WantedBy=multi-user.target" in daemon


def test_a_timetable_in_crontabs_notation_tells_when_a_success_is_old(clinic: Clinic) -> None:
    """Once a week: six days are no reason to worry, a month is."""
    del clinic.site.config["targets"]["egi"]["every"]
    clinic.site.config["targets"]["egi"]["cron"] = "0 3 * * sun"
    clinic.site.save()
    for days, state in ((6, "ok"), (30, "failure")):
        with closing(sqlite3.connect(clinic.site.state)) as ledger, ledger:
            ledger.execute("UPDATE target SET last_success = ?", (int(time.time()) - 86400 * days,))
        (found,) = [one for one in clinic.doctor("--json").json["findings"] if one["name"] == "last success"]
        assert found["state"] == state, found


# Hands


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")


def disk(clinic: Clinic, free: int) -> None:
    usage = type("Usage", (), {"free": free})
    clinic.monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def date(clinic: Clinic, when: datetime) -> None:
    """AMS answers `/` with another time."""
    head = f"HTTP/1.1 404 Not Found\r\nDate: {format_datetime(when, usegmt=True)}\r\nContent-Length: 0\r\n\r\n"
    clinic.fake.faults.always(Fault.raw(head.encode()), route="")


def copied_key(clinic: Clinic, mode: int) -> Path:
    path = clinic.root / "copied.key"
    path.write_bytes(clinic.site.host.key.read_bytes())
    path.chmod(mode)
    return path


def arc_conf(clinic: Clinic, url: str) -> None:
    clinic.arc_conf.write_text(f"[common]\n[arex]\n[arex/jura]\n[arex/jura/apel: egi]\ntargeturl = {url}\n")


def issued(clinic: Clinic, changed: x509.ExtensionType) -> Credential:
    """A host certificate with one extension changed."""
    good = clinic.pki.host(days=365)
    builder = (
        x509.CertificateBuilder(subject_name=good.x509.subject, issuer_name=good.x509.issuer)
        .public_key(good.x509.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity(good.x509)[0])
        .not_valid_after(validity(good.x509)[1])
    )
    for extension in good.x509.extensions:
        value = changed if extension.oid == changed.oid else extension.value
        builder = builder.add_extension(value, extension.critical)
    certificate = builder.sign(clinic.pki.authority.private_key, hashes.SHA256())
    path = clinic.root / "issued.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return replace(good, certificate=path, x509=certificate)


@contextmanager
def plain_text_server() -> Iterator[int]:
    """Answers whatever comes with a line of text."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ESMTP\r\n")
                connection.settimeout(PATIENCE_S)
                connection.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(PATIENCE_S)
