"""A site's story at random: every command, two sources, four transports, two ledgers, and faults of all kinds between them.

Hypothesis makes up the steps, and shortens a story that ends badly to the few that are to blame. All stories of a run
share the services, whose rows are cleared between two stories.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from publisher import config
from publisher.cli.site import LiveSite
from publisher.publishing import publish
from publisher.publishing.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.fake_auditor import FakeAuditor
from tests.fake_auditor import Fault as AuditorFault
from tests.fake_sgas import FakeSGAS
from tests.faults import failing_calls
from tests.faults.failing_calls import ERRORS, KILL, SOCKETS, Failure
from tests.support import gridengine_files
from tests.support.crash_walk import FatalObserver
from tests.support.ledgers import instance_of
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer
from tests.support.sites import Run, SiteUnderTest
from tests.support.strict_apel import read_car

START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
EVERYWHERE: Final = ""
TARGETS: Final = (EVERYWHERE, "egi", "nordic", "auditor", "files")
SENDING: Final = (
    ("publish", "--force"),
    ("publish", "--force", "--limit", "2"),
    ("republish", "--from", "2026-10", "--to", "2026-10", "--yes"),
    ("republish", "--from", "2026-09", "--to", "2026-10", "--yes"),
    ("sync",),
    ("import", "gridengine"),
)
LOOKING: Final = (
    ("status",),
    ("plan",),
    ("receiver", "list"),
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
PLACES: Final = {"state": 300, "control": 100, "outgoing": 13, "logs": 11, SOCKETS: 35}
"""Where calls fail, and about how many a command makes there."""
ENDLESS: Final = {"EINTR", "ENOLCK"}  # whoever meets these tries again for minutes


class Services:
    """What the targets of every story send to."""

    def __init__(self, pki: PKI) -> None:
        self.pki = pki
        self.host = pki.host()
        self.ams = FakeAMS(pki)
        self.sgas = FakeSGAS(pki)
        self.auditor = FakeAuditor(pki)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for service in (self.ams, self.sgas, self.auditor):
            self._open.enter_context(service)
        self.sgas.allow(self.host)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def mend(self) -> None:
        """No more faults."""
        self.ams.faults.clear()
        self.sgas.faults.clear()
        self.auditor.faults.clear()

    def clear(self) -> None:
        """Forget everything that was sent."""
        self.mend()
        self.ams.unbind(self.host)  # the next site binds it again
        for topic in self.ams.store.topics.values():
            topic.log.clear()
        self.sgas.database.clear()
        self.auditor.records.clear()
        self.ams.requests.clear()
        self.sgas.requests.clear()
        self.auditor.requests.clear()

    def cut_connections(self) -> None:
        self.ams.drop_connections()
        self.sgas.drop_connections()
        self.auditor.drop_connections()


class World:
    """A site with two sources and four targets."""

    def __init__(self, folder: Path, services: Services, library: Path, server: PostgresServer | None) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.library = library
        self.services = services
        services.clear()
        site = self.site = SiteUnderTest(self.folder, services.pki, services.ams, host=services.host)
        (self.folder / "logs").mkdir()
        self.log = self.folder / "logs" / "accounting"
        self.log.touch()
        arex = site.config["source"]
        gridengine = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(self.log)]}
        site.config["source"] = [arex, gridengine]
        common: dict[str, Any] = {"start": "all", "every": "1s", "batch_records": 3}
        sent = common | {"attempts": 1, "read_timeout_s": "3s"}
        auditor = {"type": "auditor", "url": services.auditor.url, "format": "auditor-record"}
        site.config["targets"]["egi"] |= sent | {"sync": True}
        site.config["targets"] |= {
            "nordic": sent | {"type": "sgas", "url": services.sgas.url, "format": "ogf-ur"},
            "auditor": sent | auditor,
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

    def configure(self, batch_records: int) -> None:
        for target in self.site.config["targets"].values():
            target["batch_records"] = batch_records
        self.site.save()

    def vacuum(self) -> None:
        with closing(sqlite3.connect(self.site.database())) as database:
            database.execute("VACUUM")

    def round_at(self, ahead: timedelta, target: str = EVERYWHERE) -> int:
        """A round with another clock."""
        loaded = config.load(self.site.path, {}, host_name="ce01.example.org")
        process = ProcessEnvironment(
            environment={},
            clock=lambda: datetime.now(UTC) + ahead,
            monotonic=time.monotonic,
            wait=threading.Event().wait,
        )
        live = LiveSite(settings=loaded, process=process)
        targets = [target] if target else []
        return publish.exit_status(publish.publish(live, targets=targets, observer=FatalObserver(0), force=True))

    def rows_in_spool(self) -> list[str]:
        files = (self.folder / "outgoing").iterdir()
        now = datetime.now(UTC)
        return [str(row["LocalJobId"]) for file in files for row in read_car(file.read_bytes(), now)]

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def ordered(words: tuple[str, ...], target: str) -> list[str]:
    """A command for one target, or for all that it can concern."""
    match words[0]:
        case "import":
            return [*words]
        case "sync":
            target = "egi"
    return [*words, *(["--target", target] if target else [])]


@st.composite
def _failures(draw: st.DrawFn, errors: list[str]) -> tuple[str, Failure]:
    """A place, and what fails there, which is not filled in with its path."""
    place = draw(st.sampled_from(sorted(PLACES)))
    error = draw(st.sampled_from(errors))
    lasting = draw(st.integers(0, 3)) == 0 and error not in {KILL, *ENDLESS}
    return place, Failure(where="", error=error, number=draw(st.integers(1, PLACES[place])), forever=lasting)


class Story(RuleBasedStateMachine):
    """Steps in any order; the end is in good health. `make` builds the world, `tally` counts what happened in it."""

    make: ClassVar[Callable[[], World]]
    tally: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make()
        self.has_backup = False
        self.tally["stories"] += 1

    def count(self, what: str) -> None:
        """One step."""
        self.tally["steps"] += 1
        self.tally[what] += 1

    def tell(self, *words: str, statuses: set[int] | None = None) -> Run:
        run = self.world.site.run(*words)
        assert "Traceback" not in run.err, run.err
        assert "a bug in" not in run.err, run.err
        assert statuses is None or run.status in statuses, (words, run.status, run.err)
        return run

    def with_failure(self, words: list[str], place: str, failure: Failure) -> None:
        where = place if place == SOCKETS else str(self.world.folder / place)
        if place == SOCKETS and not self.world.is_file and failure.error not in {KILL, "short", *ENDLESS}:
            # What libpq could not send it forgets, and waits for the answer while the connection is alive.
            failure = replace(failure, forever=True)
        ended = failing_calls.run(self.world.library, self.world.site, words, replace(failure, where=where))
        assert "Traceback" not in ended.err, (words, failure, ended.hit, ended.err)
        assert ended.status in ROUND | {-9}, (words, failure, ended.hit, ended.err)
        if ended.hit:
            self.tally[f"failed: {failure.error} on {place}"] += 1

    @rule(count=st.integers(1, 4))
    def jobs_finish(self, count: int) -> None:
        self.count("jobs finish in A-REX")
        self.world.finish(count)

    @rule(count=st.integers(1, 3))
    def jobs_finish_elsewhere(self, count: int) -> None:
        self.count("jobs finish in the batch system")
        self.world.finish_elsewhere(count)

    @rule(words=st.sampled_from(SENDING), only=st.sampled_from(TARGETS))
    def send(self, words: tuple[str, ...], only: str) -> None:
        self.count(f"`{words[0]}`")
        self.tell(*ordered(words, only), statuses=ROUND)

    @rule(words=st.sampled_from(LOOKING))
    def look(self, words: tuple[str, ...]) -> None:
        self.count(f"`{words[0]}`")
        self.tell(*words)

    @precondition(lambda self: self.world.job_ids)
    @rule(word=st.sampled_from(ABOUT_A_JOB), data=st.data())
    def look_at_a_job(self, word: str, data: st.DataObject) -> None:
        self.count(f"`{word}`")
        self.tell(word, data.draw(st.sampled_from(self.world.job_ids)))

    @rule(fault=st.sampled_from(AMS_FAULTS), service=st.sampled_from(["ams", "sgas"]))
    def a_service_fails(self, fault: Callable[[], Fault], service: str) -> None:
        self.count("AMS or SGAS fails")
        if service == "ams":
            self.world.services.ams.faults.push(fault())
        else:
            self.world.services.sgas.faults.push(fault(), route="insert")

    @rule(fault=st.sampled_from([AuditorFault(stored=True), AuditorFault(), AuditorFault(status=503)]))
    def auditor_fails(self, fault: AuditorFault) -> None:
        self.count("AUDITOR fails")
        self.world.services.auditor.faults.append(fault)

    @rule()
    def connections_are_cut(self) -> None:
        self.count("all connections are cut")
        self.world.services.cut_connections()

    @rule()
    def the_token_changes(self) -> None:
        self.count("AMS has another token")
        self.world.services.ams.rotate_token(self.world.site.user)

    @rule(batch_records=st.integers(1, 5))
    def the_configuration_changes(self, batch_records: int) -> None:
        self.count("the configuration changes")
        self.world.configure(batch_records)

    @rule()
    def the_accounting_database_is_vacuumed(self) -> None:
        self.count("the accounting database is vacuumed")
        self.world.vacuum()

    @rule(words=st.sampled_from(SENDING), only=st.sampled_from(TARGETS), failure=_failures(sorted(ERRORS)))
    def a_call_fails(self, words: tuple[str, ...], only: str, failure: tuple[str, Failure]) -> None:
        self.count("a call of the C library fails in a command")
        self.with_failure(ordered(words, only), *failure)

    @rule(words=st.sampled_from(SENDING), only=st.sampled_from(TARGETS), failure=_failures([KILL]))
    def a_process_is_killed(self, words: tuple[str, ...], only: str, failure: tuple[str, Failure]) -> None:
        self.count("a command is killed at a call")
        self.with_failure(ordered(words, only), *failure)

    @rule(failure=_failures([*sorted(ERRORS), KILL]))
    def the_daemon_runs(self, failure: tuple[str, Failure]) -> None:
        """Until each target had a round."""
        self.count("`run`")
        self.with_failure(["run"], *failure)

    @rule(hours=st.sampled_from([-1, 25, 24 * 20]), only=st.sampled_from(TARGETS))
    def the_clock_jumps(self, hours: int, only: str) -> None:
        self.count("a round with the clock behind or ahead")
        assert self.world.round_at(timedelta(hours=hours), only) in ROUND

    @precondition(lambda self: self.world.is_file and self.world.site.state.exists())
    @rule()
    def the_ledger_is_backed_up(self) -> None:
        self.count("`state backup`")
        with suppress(FileNotFoundError):
            (self.world.folder / "backup.db").unlink()
        self.has_backup = self.tell("state", "backup", str(self.world.folder / "backup.db")).status == 0

    @precondition(lambda self: self.has_backup)
    @rule(only=st.sampled_from(TARGETS))
    def the_backup_is_restored(self, only: str) -> None:
        self.count("an older ledger is restored")
        state = self.world.site.state
        for suffix in ("", "-wal", "-shm"):
            state.with_name(state.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.world.folder / "backup.db", state)
        self.tell(*ordered(("publish", "--force"), only), statuses=ROUND)

    def teardown(self) -> None:
        try:
            self._heal()
            self._assert_all_is_there()
        finally:
            self.world.close()

    def _heal(self) -> None:
        self.world.services.mend()
        for _ in range(3):
            self.tell("quarantine", "release", "--all")
            if (run := self.tell("publish", "--force", "--json")).status == 0:
                break
            for target, outcome in run.json["targets"].items():
                # Keys never change here: what is sent anew takes the place of what is there.
                months = [one["month"] for one in outcome["held"] if (one["restored"] or {}).get("differs")]
                if months:
                    self.tell("receiver", "deleted", target, *months)
        assert run.status == 0, run.err
        assert self.world.round_at(timedelta(hours=26)) == 0
        assert self.tell("state", "check").status == 0

    def _assert_all_is_there(self) -> None:
        world, services = self.world, self.world.services
        every = sorted(world.local_ids)
        assert sorted(str(row["LocalJobId"]) for row in world.site.table().rows("JobRecords")) == every
        assert sorted(str(row.local_job_id) for row in services.sgas.rows.values()) == every
        assert len(services.auditor.records) == len(every)
        if every:
            assert sorted(set(world.rows_in_spool())) == every
