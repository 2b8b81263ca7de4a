"""Metrics: a simulated day without the service, what the file tells of every kind of round, and the endpoint."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from publisher.config import show
from publisher.model.errors import ConfigError, LedgerError, SourceError
from publisher.reporting.metrics import exporter
from publisher.reporting.metrics.exporter import METRICS, MetricKind, MetricsEndpoint
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support import gridengine_files, sacct_text
from tests.support.daemons import RunningDaemon, until
from tests.support.imported_sites import local_site
from tests.support.metrics_site import Samples, WatchedSite, samples
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.ports import reserved_port
from tests.support.sites import ConfiguredSite, SiteUnderTest

STEP = timedelta(hours=3)
DAY = timedelta(hours=24)


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with reserved_port() as first, reserved_port() as second:
        yield first, second


@pytest.mark.slow
def test_a_day_without_the_service_is_seen_and_is_over_after_it(
    tmp_path: Path, pki: PKI, ports: tuple[int, int]
) -> None:
    """OK, WARNING within a day, CRITICAL where that is asked for, OK again; and the metrics say why."""
    port, auth_port = ports
    with FakeAMS(pki, port=port, auth_port=auth_port) as fake:
        under_test = SiteUnderTest(tmp_path, pki, fake)
        under_test.config["targets"]["egi"] |= {"every": "2h", "attempts": 2, "sync": True}
        site = WatchedSite(under_test)
        site.finish_jobs(3)
        (outcome,) = site.round()
        assert outcome.outcome == "ok"
    before = site.told()
    assert before["publisher_pending_jobs", "egi"] == 0
    assert before["publisher_delivered_jobs", "egi"] == 3
    assert before["publisher_sync_drift_jobs", "egi"] == 0
    assert ("publisher_oldest_unsent_job_timestamp_seconds", "egi") not in before
    assert site.nagios()[0] == 0

    states = []
    left = site.now()
    while site.now() - left < DAY:  # nobody answers on those ports now
        site.ahead += STEP
        site.finish_jobs(2)
        site.round()
        states.append((site.nagios()[0], site.nagios("--critical", "age=12h")[0]))
    during = site.told()
    assert states[0] == (0, 0)  # two rounds may be missed
    assert states[-1] == (1, 2)
    assert states == sorted(states)
    assert (
        during["publisher_last_success_timestamp_seconds", "egi"]
        == before["publisher_last_success_timestamp_seconds", "egi"]
    )
    assert during["publisher_overdue_timestamp_seconds", "egi"] < site.now().timestamp()
    assert during["publisher_pending_jobs", "egi"] == 16
    oldest = site.now().timestamp() - during["publisher_oldest_unsent_job_timestamp_seconds", "egi"]
    assert 21 * 3600 <= oldest <= 23 * 3600
    assert during["publisher_last_round_exit_status", "egi"] == 75
    assert during["publisher_rounds_total", "egi", "deferred"] == 8
    assert during["publisher_rounds_total", "egi", "ok"] == 1
    assert during["publisher_attempts_total", "egi", "retry_later"] == 8
    assert during["publisher_round_duration_seconds_count", "egi"] == 9
    line = site.nagios()[1]
    assert line.startswith("PUBLISHER WARNING - egi: last success 24 hours ago | 'egi_age'=864")
    assert "'egi_pending'=16 " in line

    with FakeAMS(pki, port=port, auth_port=auth_port) as fake:
        fake.bind(under_test.host, under_test.user)
        site.ahead += STEP
        (outcome,) = site.round()
        months = {(at.year, at.month) for at in (left, site.now())}
        assert (outcome.outcome, outcome.records) == ("ok", 16 + len(months))  # and their counts
    after = site.told()
    assert site.nagios()[0] == 0
    assert site.nagios("--critical", "age=12h")[0] == 0
    assert after["publisher_pending_jobs", "egi"] == 0
    assert after["publisher_in_doubt_records", "egi"] == 0
    assert after["publisher_sync_drift_jobs", "egi"] == 0
    assert after["publisher_delivered_jobs", "egi"] == 19
    assert after["publisher_last_round_exit_status", "egi"] == 0
    assert after["publisher_overdue_timestamp_seconds", "egi"] > site.now().timestamp()
    assert ("publisher_oldest_unsent_job_timestamp_seconds", "egi") not in after
    assert after["publisher_messages_total", "egi"] == 4
    assert after[("publisher_accounting_rows",)] == 19


@pytest.fixture
def spooling(tmp_path: Path, pki: PKI) -> WatchedSite:
    """Two targets that need no service, and some jobs."""
    spool = {"type": "spool", "sign": False, "format": "car", "start": "all", "every": "1s"}
    targets = {name: {**spool, "path": str(tmp_path / name)} for name in ("one", "two")}
    made = WatchedSite(ConfiguredSite(tmp_path, pki, pki.host(), targets))
    made.finish_jobs(4)
    return made


def test_targets_at_the_same_time_all_stand_in_the_file(spooling: WatchedSite) -> None:
    spooling.round()
    told = spooling.told()
    for name in ("one", "two"):
        assert told["publisher_delivered_jobs", name] == 4
        assert told["publisher_target_info", name, "car", "spool"] == 1
        assert ("publisher_sync_drift_jobs", name) not in told  # no counts are told there


def test_what_is_told_is_what_the_round_left(spooling: WatchedSite) -> None:
    """A job set aside, and sums that go on over processes."""
    with spooling.site.arex() as arex:
        arex.connection.execute("UPDATE AAR SET UsedWalltime = -1 WHERE RecordID = 1")
    (first, _) = spooling.round()
    spooling.finish_jobs(2)
    (second, _) = spooling.round(force=True)
    told = spooling.told()
    assert told["publisher_quarantined_jobs", "one"] == 1
    assert told["publisher_records_total", "one"] == first.records + second.records == 5
    assert told["publisher_messages_total", "one"] == told["publisher_attempts_total", "one", "delivered"] == 2
    assert told["publisher_sent_bytes_total", "one"] == first.bytes + second.bytes
    with closing(sqlite3.connect(spooling.site.state)) as ledger:
        (accepted,) = ledger.execute("SELECT count(*), sum(records) FROM message WHERE state = 2 AND target = 1")
    assert accepted == (told["publisher_messages_total", "one"], told["publisher_records_total", "one"])
    assert told["publisher_state_bytes",] > 20_000  # with what is in its log still
    assert told["publisher_rounds_total", "one", "ok"] == 2
    assert told["publisher_round_duration_seconds_count", "one"] == 2
    assert (
        told["publisher_round_duration_seconds_sum", "one"] >= told["publisher_last_round_duration_seconds", "one"] > 0
    )


def test_every_metric_is_told_and_no_other(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = WatchedSite(SiteUnderTest(tmp_path, pki, fake_ams))
    site.site.config["targets"]["egi"]["sync"] = True
    site.site.config["records"]["power"] = {"watts_per_core": 5, "grams_per_kwh": 28}
    month = f"{site.now():%Y-%m}"
    granted = {"project": "bio", "valid_from": month, "valid_to": month, "gpu_hours": 1}
    site.site.config["records"]["allocations"] = [granted]
    began = int(site.now().timestamp()) - 2 * 3600
    entry = gridengine_files.Entry(submitted=began, started=began, ended=began + 100, category="-l gpu=2")
    log = gridengine_files.write(tmp_path / "accounting", [gridengine_files.colon(entry)])
    other = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(log)], "arc_databases": []}
    site.site.config["source"] = [site.site.config["source"], other]
    site.finish_jobs(3)
    site.round()
    site.finish_jobs(3)
    fake_ams.unbind(site.site.host)
    fake_ams.rotate_token()
    (outcome,) = site.round(force=True)
    assert outcome.outcome in ("rejected", "error")
    suffixes = {MetricKind.SUMMARY: ("_sum", "_count")}
    wanted = {f"{metric.name}{suffix}" for metric in METRICS for suffix in suffixes.get(metric.kind, ("",))}
    assert {name for name, *_ in site.told()} == wanted


def test_the_jobs_of_a_day_are_added_up_once_an_hour(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = WatchedSite(local_site(tmp_path, pki, fake_ams, "slurm", sacct_text.CLUSTER))
    vos = [{"field": "project", "pattern": name, "vo": name} for name in ("bio", "atlas", "theory")]
    site.site.config["records"]["vo_rules"] = vos
    now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    site.ahead = now - datetime.now(UTC)

    def finish(*hours_ago: float, account: str, gpus: int) -> None:
        lines = []
        for number, hours in enumerate(hours_ago, 100 * gpus + len(list(tmp_path.iterdir()))):
            end = int(now.timestamp() - hours * 3600)
            tres = f"cpu=1,gres/gpu={gpus}" if gpus else "cpu=1"
            lines.append(sacct_text.job(number, Submit=end - 100, Account=account, AllocTRES=tres))
        path = sacct_text.write(tmp_path / f"{account}{gpus}{hours_ago}.psv", sacct_text.text(lines))
        site.site.run("import", "slurm", str(path))

    def told() -> dict[str, dict[str, float]]:
        found = site.told()
        names = ("publisher_day_jobs", "publisher_day_gpu_jobs", "publisher_day_gpu_seconds")
        return {name: {at[1]: value for at, value in found.items() if at[0] == name} for name in names}

    finish(1, 2, 24.4, account="bio", gpus=2)
    finish(3, 25, 0.1, account="bio", gpus=0)
    finish(5, account="atlas", gpus=1)
    site.round()
    assert told() == {
        "publisher_day_jobs": {"bio": 4, "atlas": 1},
        "publisher_day_gpu_jobs": {"bio": 3, "atlas": 1},
        "publisher_day_gpu_seconds": {"bio": 600, "atlas": 100},
    }
    finish(6, account="theory", gpus=4)
    site.round(force=True)
    assert set(told()["publisher_day_jobs"]) == {"bio", "atlas"}
    site.ahead += timedelta(hours=1)
    site.round(force=True)
    assert told()["publisher_day_gpu_seconds"] == {"bio": 400, "atlas": 100, "theory": 400}
    site.ahead += timedelta(days=2)
    site.round(force=True)
    assert not any(told().values())


def test_a_month_to_date_by_vo_and_project_and_the_month_before(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = WatchedSite(SiteUnderTest(tmp_path, pki, fake_ams))
    now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    site.ahead = now - datetime.now(UTC)
    october, november = (datetime(2026, month, 1, tzinfo=UTC) for month in (10, 11))
    sample = [
        replace(job, benchmark="HEPSPEC:10.5", projects=("climate",) if job.vo == "atlas" else ())
        for job in [*generate(1, 30, october, november), *generate(2, 40, november, now - timedelta(hours=2))]
    ]
    site.site.fill(*sample)
    site.round()

    def measured(name: str) -> dict[tuple[str, ...], float]:
        return {at[1:]: value for at, value in site.told().items() if at[0] == name}

    def summed(value: Callable[[SampleJob], int], name: Callable[[SampleJob], str]) -> dict[tuple[str, ...], float]:
        sums: Counter[tuple[str, ...]] = Counter()
        for job in sample:
            sums["2026-10" if job.end_time < november.timestamp() else "2026-11", name(job)] += value(job)
        return dict(sums)

    def core_s(job: SampleJob) -> int:
        return job.wall_s * (job.cpus or 1)

    whole = "publisher_month_jobs_total"
    assert sum(measured(whole).values()) == 70
    by_vo = measured("publisher_month_core_seconds_total")
    assert sum(by_vo.values()) == sum(map(core_s, sample))
    work = measured("publisher_month_benchmark_seconds_total")
    assert {(month, vo): value / 10.5 for (_, month, vo), value in work.items()} == pytest.approx(by_vo)
    projects = measured("publisher_month_project_core_seconds_total")
    assert projects == summed(core_s, lambda job: "climate" if job.vo == "atlas" else "")
    before = measured(whole)
    site.ahead += timedelta(hours=1)
    late = [*generate(3, 2, october, november), *generate(4, 5, now - timedelta(hours=1), now)]
    site.site.fill(*(replace(job, job_id=f"late{at}", local_job_id=f"late{at}") for at, job in enumerate(late)))
    site.round(force=True)
    assert sum(measured(whole).values()) - sum(before.values()) == 5, "the month before is read once a day"
    site.ahead += timedelta(days=1)
    site.round(force=True)
    assert sum(measured(whole).values()) == 77


def test_counts_that_were_not_told_are_drift_until_they_are(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = WatchedSite(SiteUnderTest(tmp_path, pki, fake_ams))
    site.site.config["targets"]["egi"] |= {"sync": True, "attempts": 1}
    fake_ams.faults.push(Fault.none())  # the jobs come through, their counts do not
    fake_ams.faults.always(Fault.status(503))
    site.finish_jobs(4)
    site.round()
    told = site.told()
    assert (told["publisher_delivered_jobs", "egi"], told["publisher_sync_drift_jobs", "egi"]) == (4, 4)
    fake_ams.faults.clear()
    site.finish_jobs(3)
    site.round(force=True)
    told = site.told()
    assert (told["publisher_delivered_jobs", "egi"], told["publisher_sync_drift_jobs", "egi"]) == (7, 0)


@pytest.mark.parametrize("missing", ["database", "directory"])
def test_accounting_data_that_cannot_be_read_is_seen_whether_a_round_began_or_not(
    spooling: WatchedSite, missing: str
) -> None:
    spooling.round()
    place = spooling.site.database() if missing == "database" else spooling.site.control
    away = place.rename(place.with_suffix(".away"))
    try:
        statuses = {outcome.exit_status for outcome in spooling.round(force=True)}
    except SourceError as error:
        statuses = {error.exit_status}
    assert statuses == {66}
    told = spooling.told()
    assert told[("publisher_accounting_readable",)] == 0
    assert ("publisher_accounting_rows",) not in told
    for name in ("one", "two"):
        assert told["publisher_last_round_exit_status", name] == 66
        assert told["publisher_rounds_total", name, "error"] == 1
        assert ("publisher_pending_jobs", name) not in told  # nobody can tell
        assert told["publisher_delivered_jobs", name] == 4
    status, line = spooling.nagios()
    assert status == 3
    assert line.startswith("PUBLISHER UNKNOWN - ")
    assert "'one_pending'=U " in line
    away.rename(place)
    spooling.round(force=True)
    told = spooling.told()
    assert (told[("publisher_accounting_readable",)], told["publisher_pending_jobs", "one"]) == (1, 0)
    assert spooling.nagios()[0] == 0


def test_state_that_cannot_be_used_leaves_nothing_that_looks_well(spooling: WatchedSite) -> None:
    spooling.round()
    spooling.site.state.write_bytes(b"no database at all, and longer than the header of one " * 3)
    with pytest.raises(LedgerError):
        spooling.round(force=True)
    told = spooling.told()
    assert told[("publisher_state_usable",)] == 0
    assert {value for (name, *_), value in told.items() if name == "publisher_last_round_exit_status"} == {74}
    assert not [at for at in told if at[0] == "publisher_last_success_timestamp_seconds"]
    assert spooling.nagios()[0] == 3


def test_a_file_that_cannot_be_written_stops_no_round(spooling: WatchedSite, caplog: pytest.LogCaptureFixture) -> None:
    spooling.file.parent.rmdir()
    outcomes = spooling.round()
    assert [one.outcome for one in outcomes] == ["ok", "ok"]
    assert [one.exit_status for one in outcomes] == [78, 78]
    for one in outcomes:
        assert f"ReadWritePaths={spooling.file.parent}" in one.reason
    assert "ReadWritePaths" not in caplog.text  # it is logged by who shows the outcome
    run = spooling.site.run("publish", "--force")
    assert run.status == 78
    (line,) = [line for line in run.err.splitlines() if "ReadWritePaths" in line]
    assert " ERROR after the round: metrics.textfile: " in line
    spooling.site.config["source"]["control_dir"] = str(spooling.site.folder / "gone")
    spooling.site.save()
    run = spooling.site.run("publish", "--force")
    assert run.status == 78
    assert run.err.count("ReadWritePaths") == run.err.count("has neither") == 1
    spooling.site.config["source"]["control_dir"] = str(spooling.site.control)
    spooling.file.parent.mkdir()
    spooling.round(["one"], force=True)
    assert spooling.told()["publisher_rounds_total", "two", "ok"] == 1  # kept, not lost with the file
    assert spooling.file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in spooling.file.parent.iterdir()] == [spooling.file.name]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_no_file_is_written_where_everybody_may_write(spooling: WatchedSite, mode: int) -> None:
    spooling.file.parent.chmod(mode)
    assert {one.exit_status for one in spooling.round()} == {78}
    assert list(spooling.file.parent.iterdir()) == []
    spooling.file.parent.chmod(0o775)
    assert {one.exit_status for one in spooling.round(force=True)} == {0}
    assert spooling.file.exists()


def test_a_target_that_is_no_more_is_told_no_more(spooling: WatchedSite) -> None:
    spooling.round()
    del spooling.site.config["targets"]["two"]
    spooling.round(force=True)
    assert {labels[0] for _, *labels in spooling.told() if labels} & {"one", "two"} == {"one"}


def test_a_source_that_is_no_more_is_told_no_more(spooling: WatchedSite, tmp_path: Path) -> None:
    log = gridengine_files.write(tmp_path / "accounting", [gridengine_files.colon(gridengine_files.Entry())])
    other = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(log)], "arc_databases": []}
    own = spooling.site.config["source"]
    told = "publisher_source_read_timestamp_seconds", "gridengine"
    spooling.site.config["source"] = [own, other]
    spooling.round()
    assert told in spooling.told()
    spooling.site.config["source"] = own
    spooling.round(force=True)
    assert told not in spooling.told()


def test_a_target_that_is_not_due_changes_nothing(spooling: WatchedSite) -> None:
    spooling.site.config["targets"]["one"]["every"] = "1d"
    spooling.round()
    before = spooling.file.read_text()
    spooling.round(["one"])
    assert spooling.file.read_text() == before


def test_a_job_in_two_databases_is_counted_once(spooling: WatchedSite) -> None:
    spooling.round()
    before = spooling.told()[("publisher_accounting_rows",)]
    shutil.copy(spooling.site.database(), spooling.site.database(1))
    spooling.round(force=True)
    assert spooling.told()[("publisher_accounting_rows",)] == before
    assert spooling.told()["publisher_pending_jobs", "one"] == 0


def test_a_stop_is_not_kept_waiting(spooling: WatchedSite) -> None:
    """To count what waits may take minutes: after SIGTERM only what is known of the round is told."""
    spooling.round()
    spooling.finish_jobs(5)
    before = spooling.told()
    spooling.stopped = True
    spooling.round(["one"], force=True)
    during = spooling.told()
    assert during["publisher_last_round_exit_status", "one"] == 75
    assert during["publisher_rounds_total", "one", "deferred"] == 1
    changed = {at[0] for at in during if at[1:2] != ("two",) and during[at] != before.get(at)}
    assert changed == {
        "publisher_last_round_exit_status",
        "publisher_last_round_timestamp_seconds",
        "publisher_last_round_duration_seconds",
        "publisher_rounds_total",
        "publisher_round_duration_seconds_sum",
        "publisher_round_duration_seconds_count",
    }
    spooling.stopped = False
    spooling.round(["one"], force=True)
    assert spooling.told()["publisher_delivered_jobs", "one"] == 9


# The configuration


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({}, "names neither textfile nor listen"),
        ({"textfile": "publisher.txt"}, "does not end in .prom"),
        ({"listen": "ce.example.org:9645"}, "'ce.example.org' is no IP address"),
        ({"listen": "127.0.0.1:0"}, "'0' is not a port"),
        ({"listen": "127.0.0.1:65536"}, "'65536' is not a port"),
        ({"listen": "127.0.0.1"}, "is not a port"),
        ({"listen": "300.0.0.1:9645"}, "is no IP address"),
        ({"text_file": "a.prom"}, "did you mean 'textfile'"),
    ],
)
def test_a_wrong_block_is_refused(spooling: WatchedSite, block: dict[str, str], said: str) -> None:
    spooling.site.config["metrics"] = block
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        spooling.live()
    assert "metrics" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("9645", "127.0.0.1:9645"),
        ("localhost:9645", "127.0.0.1:9645"),
        ("[::1]:9645", "[::1]:9645"),
        (":9645", "127.0.0.1:9645"),
    ],
)
def test_loopback_is_the_default(spooling: WatchedSite, text: str, shown: str) -> None:
    spooling.site.config["metrics"] = {"listen": text}
    settings = spooling.live().settings
    assert settings.metrics is not None
    assert str(settings.metrics.listen) == shown
    assert f"listen: {shown}" in show(settings).replace("'", "")


def test_a_missing_library_is_told_by_name_and_only_where_metrics_are_wanted(
    spooling: WatchedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="metrics: the Python library prometheus_client is not installed here"):
        spooling.live()
    del spooling.site.config["metrics"]
    spooling.live()


# The endpoint


def asked(port: int) -> Samples:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:  # loopback
        assert answer.headers["Content-Type"].startswith("text/plain")
        return samples(answer.read().decode())


def told_of_a_round(port: int, target: str) -> bool:
    return asked(port).get(("publisher_rounds_total", target, "ok")) == 1


def test_the_endpoint_follows_the_configuration(spooling: WatchedSite, ports: tuple[int, int]) -> None:
    first, second = ports
    with closing(MetricsEndpoint()) as endpoint:
        endpoint.follow(spooling.live())  # says nothing of a port: nothing listens
        spooling.site.config["metrics"]["listen"] = f"127.0.0.1:{first}"
        endpoint.follow(spooling.live())
        assert asked(first)["publisher_target_info", "one", "car", "spool"] == 1
        spooling.round()
        assert asked(first)["publisher_delivered_jobs", "one"] == 4
        with socket.create_server(("127.0.0.1", second)):
            spooling.site.config["metrics"]["listen"] = f"127.0.0.1:{second}"
            with pytest.raises(ConfigError, match=f"metrics.listen: 127.0.0.1:{second}: Address already in use"):
                endpoint.follow(spooling.live())
        assert asked(first)["publisher_delivered_jobs", "one"] == 4
        endpoint.follow(spooling.live())
        assert asked(second) == spooling.told()
        with pytest.raises(OSError, match="refused"):
            asked(first)
        spooling.site.state.write_bytes(b"no database at all, and longer than the header of one " * 3)
        assert asked(second)[("publisher_state_usable",)] == 0
    with pytest.raises(OSError, match="refused"):
        asked(second)


def test_the_daemon_answers_from_its_start_to_its_end(spooling: WatchedSite, ports: tuple[int, int]) -> None:
    port, _ = ports
    spooling.site.config["metrics"] = {"listen": str(port)}
    with RunningDaemon(spooling.site) as daemon:
        daemon.manager.wait_for("READY=1")
        for name in ("one", "two"):
            until(partial(told_of_a_round, port, name), daemon.text)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            spooling.site.config["metrics"] = {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}
            spooling.site.save()
            daemon.send(signal.SIGHUP)
            daemon.wait_for("the configuration was not reloaded")
        assert asked(port)["publisher_delivered_jobs", "one"] == 4
        assert daemon.end() == 0
    with pytest.raises(OSError, match="refused"):
        asked(port)


def test_who_asks_slowly_or_in_numbers_keeps_no_thread(
    spooling: WatchedSite, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_LONGEST_S", 0.5)
    monkeypatch.setattr(exporter, "_MOST_ASKING", 3)
    spooling.site.config["metrics"]["listen"] = f"127.0.0.1:{ports[0]}"
    with closing(MetricsEndpoint()) as endpoint, ExitStack() as opened:
        endpoint.follow(spooling.live())
        slow = [opened.enter_context(socket.create_connection(("127.0.0.1", ports[0]), PATIENCE_S)) for _ in range(4)]
        slow[0].sendall(b"GET /metrics HT")  # and no more
        assert slow[3].recv(1) == b""  # one too many
        assert slow[0].recv(1) == b""  # too long
