"""A site's story at random: every command, two sources, four transports, two ledgers, and faults of all kinds between them.

Hypothesis makes up the steps, and shortens a story that ends badly to the few that are to blame.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from publisher import config
from publisher.cli.site import LiveSite
from publisher.pipeline import publish
from publisher.pipeline.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.fake_auditor import FakeAuditor
from tests.fake_auditor import Fault as AuditorFault
from tests.fake_sgas import FakeSGAS
from tests.faults import failing_calls
from tests.faults.failing_calls import Failure
from tests.support import gridengine_files
from tests.support.crash_walk import FatalObserver, crash_walk
from tests.support.ledgers import instance_of
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer
from tests.support.sites import Run, SiteUnderTest
from tests.support.strict_apel import read_car

START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
SENDING: Final = (
    ("publish", "--force"),
    ("publish", "--force", "--limit", "2"),
    ("publish", "--force", "--target", "egi"),
    ("republish", "--from", "2026-10", "--to", "2026-10", "--yes"),
    ("republish", "--from", "2026-09", "--to", "2026-10", "--yes", "--target", "files"),
    ("sync", "--target", "egi"),
    ("import", "gridengine"),
)
LOOKING: Final = (
    ("status",),
    ("status", "--nagios"),
    ("statement", "2026-10"),
    ("stats",),
    ("report", "--format", "terminal"),
    ("sync", "--check", "--target", "egi"),
    ("doctor",),
    ("quarantine", "list"),
    ("quarantine", "release", "--all"),
    ("source", "list"),
    ("source", "bad-lines"),
    ("source", "retry"),
    ("state", "check"),
    ("export",),
    ("charge", "--runs"),
    ("config", "check"),
    ("config", "show"),
    ("help", "publish"),
    ("complete", "targets"),
    ("publish", "--force", "--dry-run"),
)
ABOUT_A_JOB: Final = ("trace", "explain", "job")
ROUND: Final = {0, 65, 66, 74, 75}
AMS_FAULTS: Final = (Fault.store_then_close, Fault.drop_without_storing, Fault.close_before_read, Fault.store_twice)
PLACES: Final = ("state", "control", "outgoing", "logs", failing_calls.SOCKETS)


class World:
    """A site with two sources and four targets."""

    def __init__(self, folder: Path, pki: PKI, library: Path, server: PostgresServer | None) -> None:
        self._open = ExitStack()
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.library = library
        self.ams = self._open.enter_context(FakeAMS(pki))
        self.sgas = self._open.enter_context(FakeSGAS(pki))
        self.auditor = self._open.enter_context(FakeAuditor(pki))
        site = self.site = SiteUnderTest(self.folder, pki, self.ams)
        self.sgas.allow(site.host)
        (self.folder / "logs").mkdir()
        self.log = self.folder / "logs" / "accounting"
        self.log.touch()
        arex = site.config["source"]
        gridengine = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(self.log)]}
        site.config["source"] = [arex, gridengine]
        common: dict[str, Any] = {"start": "all", "every": "1s"}
        sent = common | {"attempts": 1, "read_timeout_s": "3s"}
        site.config["targets"]["egi"] |= sent | {"batch_records": 3, "sync": True}
        site.config["targets"] |= {
            "nordic": sent | {"type": "sgas", "url": self.sgas.url, "format": "ogf-ur", "batch_records": 3},
            "auditor": sent | {"type": "auditor", "url": self.auditor.url, "format": "auditor-record"},
            "files": common | {"type": "spool", "path": str(self.folder / "outgoing"), "format": "car", "sign": False},
        }
        if server is not None:
            place = {"state": server.address, "instance": instance_of(site.state)}
            site.config |= place | {"state_directory": str(site.state.parent)}
        self.is_file = server is None
        with site.arex():
            pass
        site.save()
        self._jobs = generate(7, 4000, START, END)
        self.local_ids: list[str] = []
        self.job_ids: list[str] = []

    def finish(self, count: int) -> None:
        for _ in range(count):
            number = str(100_000 + len(self.local_ids))
            job = replace(next(self._jobs), local_job_id=number, status="completed")
            self.site.fill(job)
            self.local_ids.append(number)
            self.job_ids.append(job.job_id)

    def finish_elsewhere(self, count: int) -> None:
        for _ in range(count):
            number = 100_000 + len(self.local_ids)
            entry = gridengine_files.Entry(job=number, ended=gridengine_files.BEGIN + 100 + number)
            with self.log.open("ab") as log:
                log.write(gridengine_files.colon(entry))
            self.local_ids.append(str(number))

    def round_at(self, ahead: timedelta) -> int:
        """A round with another clock."""
        loaded = config.load(self.site.path, {}, host_name="ce01.example.org")
        process = ProcessEnvironment(
            environment={},
            clock=lambda: datetime.now(UTC) + ahead,
            monotonic=time.monotonic,
            wait=threading.Event().wait,
        )
        live = LiveSite(settings=loaded, process=process)
        return publish.exit_status(publish.publish(live, targets=[], observer=FatalObserver(0), force=True))

    def rows_in_spool(self) -> list[str]:
        files = (self.folder / "outgoing").iterdir()
        now = datetime.now(UTC)
        return [str(row["LocalJobId"]) for file in files for row in read_car(file.read_bytes(), now)]

    def close(self) -> None:
        self._open.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Story(RuleBasedStateMachine):
    """Steps in any order; the end is in good health."""

    make: Callable[[], World]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make()
        self.has_backup = False

    def tell(self, *words: str, statuses: set[int] | None = None) -> Run:
        run = self.world.site.run(*words)
        assert "Traceback" not in run.err, run.err
        assert "a bug in" not in run.err, run.err
        assert statuses is None or run.status in statuses, (words, run.status, run.err)
        return run

    @rule(count=st.integers(1, 4))
    def jobs_finish(self, count: int) -> None:
        self.world.finish(count)

    @rule(count=st.integers(1, 3))
    def jobs_finish_elsewhere(self, count: int) -> None:
        self.world.finish_elsewhere(count)

    @rule(words=st.sampled_from(SENDING))
    def send(self, words: tuple[str, ...]) -> None:
        self.tell(*words, statuses=ROUND)

    @rule(words=st.sampled_from(LOOKING))
    def look(self, words: tuple[str, ...]) -> None:
        self.tell(*words)

    @precondition(lambda self: self.world.job_ids)
    @rule(word=st.sampled_from(ABOUT_A_JOB), data=st.data())
    def look_at_a_job(self, word: str, data: st.DataObject) -> None:
        self.tell(word, data.draw(st.sampled_from(self.world.job_ids)))

    @rule(fault=st.sampled_from(AMS_FAULTS), service=st.sampled_from(["ams", "sgas"]))
    def a_service_fails(self, fault: Callable[[], Fault], service: str) -> None:
        if service == "ams":
            self.world.ams.faults.push(fault())
        else:
            self.world.sgas.faults.push(fault(), route="insert")

    @rule(fault=st.sampled_from([AuditorFault(stored=True), AuditorFault(), AuditorFault(status=503)]))
    def auditor_fails(self, fault: AuditorFault) -> None:
        self.world.auditor.faults.append(fault)

    @rule(
        number=st.integers(1, 400), place=st.sampled_from(PLACES), error=st.sampled_from(sorted(failing_calls.ERRORS))
    )
    def a_call_fails(self, number: int, place: str, error: str) -> None:
        where = place if place == failing_calls.SOCKETS else str(self.world.folder / place)
        failure = Failure(where=where, error=error, number=number)
        ended = failing_calls.run(self.world.library, self.world.site, ["publish", "--force"], failure)
        assert "Traceback" not in ended.err, (ended.hit, ended.err)
        assert ended.status in ROUND, (ended.hit, ended.err)

    @rule()
    def the_daemon_runs(self) -> None:
        """For three seconds."""
        nothing = Failure(where=str(self.world.folder / "nowhere"), error="EIO")
        ended = failing_calls.run(self.world.library, self.world.site, ["run"], nothing)
        assert "Traceback" not in ended.err, ended.err
        assert ended.status in ROUND, ended.err

    @rule(step=st.integers(1, 30))
    def a_process_is_killed(self, step: int) -> None:
        assert crash_walk(self.world.site.path, step) in ROUND | {-9}

    @rule(hours=st.sampled_from([-1, 25, 24 * 20]))
    def the_clock_jumps(self, hours: int) -> None:
        assert self.world.round_at(timedelta(hours=hours)) in ROUND

    @precondition(lambda self: self.world.is_file and self.world.site.state.exists())
    @rule()
    def the_ledger_is_backed_up(self) -> None:
        with suppress(FileNotFoundError):
            (self.world.folder / "backup.db").unlink()
        self.has_backup = self.tell("state", "backup", str(self.world.folder / "backup.db")).status == 0

    @precondition(lambda self: self.has_backup)
    @rule()
    def the_backup_is_restored(self) -> None:
        state = self.world.site.state
        for suffix in ("", "-wal", "-shm"):
            state.with_name(state.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.world.folder / "backup.db", state)
        self.tell("publish", "--force", "--accept-state", statuses=ROUND)

    def teardown(self) -> None:
        try:
            self._heal()
            self._assert_all_is_there()
        finally:
            self.world.close()

    def _heal(self) -> None:
        self.world.ams.faults.clear()
        self.world.sgas.faults.clear()
        self.world.auditor.faults.clear()
        for _ in range(3):
            self.tell("quarantine", "release", "--all")
            if (run := self.tell("publish", "--force", "--accept-state")).status == 0:
                break
        assert run.status == 0, run.err
        assert self.world.round_at(timedelta(hours=26)) == 0
        assert self.tell("state", "check").status == 0

    def _assert_all_is_there(self) -> None:
        world = self.world
        every = sorted(world.local_ids)
        assert sorted(str(row["LocalJobId"]) for row in world.site.table().rows("JobRecords")) == every
        assert sorted(str(row.local_job_id) for row in world.sgas.rows.values()) == every
        assert len(world.auditor.records) == len(every)
        if every:
            assert sorted(set(world.rows_in_spool())) == every


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failing_calls.library(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize(
    ("ledger", "stories", "steps"),
    [
        ("sqlite", 3, 15),
        ("postgres", 1, 15),
        pytest.param("sqlite", 40, 60, marks=pytest.mark.long),
        pytest.param("postgres", 20, 60, marks=pytest.mark.long),
    ],
)
def test_every_story_ends_well(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    pki: PKI,
    library: Path,
    ledger: str,
    stories: int,
    steps: int,
    record_property: Callable[[str, object], None],
) -> None:
    server = request.getfixturevalue("postgres") if ledger == "postgres" else None

    class Told(Story):
        make = staticmethod(lambda: World(tmp_path, pki, library, server))

    profile = settings(
        max_examples=stories,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Told, settings=profile)
    record_property("tried", stories)
