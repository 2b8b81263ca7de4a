"""The faults that administrators meet, each planted alone: doctor says what, where, why and what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.arex_databases import make_truncated
from tests.doctor import test_doctor as known
from tests.doctor.test_doctor import Clinic, Plant, Planted, assert_found, clinic, failure

__all__ = ["clinic"]


def key_that_is_none(clinic: Clinic) -> Planted:
    path = clinic.root / "none.key"
    path.write_text("no key\n")
    path.chmod(0o400)
    clinic.site.config["credentials"]["key"] = str(path)
    return failure(77, "key", "holds no PEM private key", "`credentials: key` must name one", "preflight")


def cas_empty(clinic: Clinic) -> Planted:
    for path in clinic.cas.iterdir():
        path.unlink()
    return failure(77, "CAs", "holds no hashed certificates", "install the IGTF bundle", "connection", "preflight")


def url_without_tls(clinic: Clinic) -> Planted:
    clinic.target["url"] = clinic.target["url"].replace("https:", "http:")
    return failure(78, "configuration", "is not https", "write https://HOST")


def url_empty(clinic: Clinic) -> Planted:
    clinic.target["url"] = ""
    return failure(78, "configuration", "is not https", "write https://HOST")


def database_truncated(clinic: Clinic) -> Planted:
    make_truncated(clinic.site.database())
    return failure(66, "database", "it is damaged or truncated", "restore a backup", "benchmarks")


def database_of_something_else(clinic: Clinic) -> Planted:
    clinic.site.database().unlink()
    with closing(sqlite3.connect(clinic.site.database())) as other, other:
        other.execute("CREATE TABLE music (title TEXT)")
    return failure(66, "database", "holds no accounting tables", "name A-REX's accounting database", "benchmarks")


def control_dir_wrong(clinic: Clinic) -> Planted:
    clinic.site.config["source"]["control_dir"] = str(clinic.root / "nowhere")
    return failure(66, "database", "nowhere", "source.control_dir", "benchmarks")


def state_damaged(clinic: Clinic) -> Planted:
    content = bytearray(clinic.site.state.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    clinic.site.state.write_bytes(content)
    return failure(74, "state", "is malformed", "restore the last backup", "last success", "benchmarks")


def database_locked(clinic: Clinic) -> Planted:
    """By another process for as long as doctor asks."""
    writer = sqlite3.connect(clinic.site.database(), isolation_level=None)
    clinic.opened.callback(writer.close)
    writer.execute("PRAGMA journal_mode=DELETE")
    writer.execute("BEGIN EXCLUSIVE")
    return failure(66, "database", "locked", "", "benchmarks", "known databases")


def control_dir_closed(clinic: Clinic) -> Planted:
    """Not by its mode, which does not stop root: a loop of links stops everybody."""
    loop = clinic.root / "loop"
    loop.symlink_to(loop)
    clinic.site.config["source"]["control_dir"] = str(loop)
    return failure(66, "database", "loop", "", "benchmarks")


def tab_in_yaml(clinic: Clinic) -> Planted:
    clinic.monkeypatch.setattr(clinic.site, "save", lambda: None)
    clinic.site.path.write_text(clinic.site.path.read_text().replace("  type: arex", "\ttype: arex"))
    return failure(78, "configuration", "not valid YAML: found character '\\t'", "correct that line")


def spool_without_parent(clinic: Clinic) -> Planted:
    spool = {"type": "spool", "path": str(clinic.root / "a" / "b" / "out"), "format": "car"}
    clinic.site.config["targets"]["files"] = spool
    return failure(74, "directory", "out", "`path` of the target", "target", "last success", "jobs of the target")


def two_targets_to_one_topic(clinic: Clinic) -> Planted:
    del clinic.target["sync"]
    clinic.site.config["targets"]["copy"] = dict(clinic.target)
    return known.warning("target", "everything is sent there twice", "remove one of the two", "last success")


def clock_three_days_back(clinic: Clinic) -> Planted:
    known.date(clinic, datetime.now(UTC) + timedelta(days=3))
    return failure(78, "clock", "s behind the service", "set the clock by NTP", "preflight")


def site_name_with_a_blank(clinic: Clinic) -> Planted:
    clinic.site.config["site"] = "EXAMPLE SITE"
    return failure(78, "configuration", "site: 'EXAMPLE SITE' is not a site name", "write it as in GOCDB")


def format_misspelt(clinic: Clinic) -> Planted:
    clinic.target["format"] = "carr"
    return failure(78, "configuration", "targets.egi.format", "did you mean")


def benchmark_of_another_shape(clinic: Clinic) -> Planted:
    clinic.site.config["records"]["benchmark"] = "HEPscore23 11.5"
    return failure(78, "configuration", "records.benchmark: is not a mapping", "{type: HEPscore23, value: 11.5}")


def _beside(clinic: Clinic, *formats: str) -> None:
    clinic.target["format"] = formats[0]
    clinic.site.config["targets"]["other"] = dict(clinic.target, format=formats[1])
    del clinic.site.config["targets"]["other"]["sync"]


def jobs_and_summaries_to_one_topic(clinic: Clinic) -> Planted:
    _beside(clinic, "car", "apel-summary-0.4")
    return failure(78, "configuration", "jobs are counted twice there", "send one format")


def two_kinds_of_summaries_to_one_topic(clinic: Clinic) -> Planted:
    _beside(clinic, "apel-summary-0.2", "apel-summary-0.4")
    return failure(78, "configuration", "jobs are counted twice there", "send one format")


# Each as it is called, and what plants it.
FAULTS: Final[dict[str, Plant]] = {
    "key readable by others": known.key_open,
    "expired certificate": known.certificate_expired,
    "key of another certificate": known.key_of_another_certificate,
    "CA that did not sign the service's certificate": known.server_of_an_unknown_ca,
    "empty CA directory": cas_empty,
    "no CRLs": known.crls_missing,
    "missing certificate file": known.certificate_gone,
    "file that is no key": key_that_is_none,
    "encrypted key": known.key_encrypted,
    "host name that does not resolve": known.name_that_does_not_resolve,
    "refused port": known.port_closed,
    "wrong topic": known.topic_not_ours,
    "wrong project": known.project_not_ours,
    "http: address": url_without_tls,
    "empty address": url_empty,
    "broken proxy": known.proxy_away,
    "url that is the token service": known.url_of_the_token_service,
    "database locked for minutes": database_locked,
    "truncated database": database_truncated,
    "database without the known tables": database_of_something_else,
    "schema 9": known.database_of_the_future,
    "job that ends in the future": known.end_in_the_future,
    "database that cannot be searched": control_dir_closed,
    "wrong control_dir": control_dir_wrong,
    "state directory writable by everybody": known.state_directory_open,
    "damaged state": state_damaged,
    "state owned by root": known.state_of_two_owners,
    "disk full": known.disk_full,
    "state below what cannot hold it": known.state_below_where_no_file_can_be,
    "unknown key": known.configuration_misspelt,
    "tab in YAML": tab_in_yaml,
    "bad site name": site_name_with_a_blank,
    "misspelt format": format_misspelt,
    "wrong shape of a benchmark": benchmark_of_another_shape,
    "parent of a spool directory missing": spool_without_parent,
    "summaries and CAR to one topic": jobs_and_summaries_to_one_topic,
    "two kinds of summaries to one topic": two_kinds_of_summaries_to_one_topic,
    "two CAR targets to one topic": two_targets_to_one_topic,
    "no time_zone": known.zone_of_the_host,
    "misspelt time_zone": known.zone_misspelt,
    "no records.benchmark": known.benchmark_not_configured,
    "jura-ng active in arc.conf": known.jura_at_the_same_service,
    "jura-ng active in arc.conf.d": known.jura_in_arc_conf_d,
    "clock three days back": clock_three_days_back,
    "no timer, cron entry or daemon": known.timer_not_enabled,
}


def test_they_are_all_here() -> None:
    assert len(FAULTS) == len(set(FAULTS.values())) == 45


OWN = [plant for plant in FAULTS.values() if plant not in known.PLANTS]


@pytest.mark.parametrize("plant", OWN, ids=lambda plant: plant.__name__)
@pytest.mark.slow
def test_each_is_found_with_its_advice(clinic: Clinic, plant: Plant) -> None:
    """Those of `test_doctor` are planted there."""
    assert_found(clinic, plant)
