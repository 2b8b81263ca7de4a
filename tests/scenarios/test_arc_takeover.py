"""Taking over from ARC's publisher: where each target goes on, which jobs it has passed over, and the command as a whole."""

from __future__ import annotations

import io
import re
import sqlite3
import tracemalloc
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.cli import main
from publisher.config import load
from publisher.config.from_arc.publishing_state import ArcProgress, begin
from publisher.model.job import Epoch
from publisher.model.time import epoch, iso
from publisher.publishing.takeover.jura import Search, Watermark, look_for_lost
from publisher.sources.arex.options import Options
from publisher.sources.arex.queries import IN_ORDER
from publisher.sources.arex.source import ArexWritingOrder, create
from publisher.sources.sqlite_reader import CopyDirectory
from tests.arex_databases import SampleJob, Schema, Writer, bulk, generate
from tests.support.arc_pages import LAST, NOW, apel, keys, loaded, stopped

# Where it goes on


@pytest.mark.parametrize(("summary", "start"), [(False, "2026-10-12T03:04:05Z"), (True, "2026-10")])
def test_a_target_goes_on_where_arc_stopped(summary: bool, start: str, tmp_path: Path) -> None:
    messages = "apel_messages = summaries" if summary else "apel_messages = urs"
    page = apel(messages, takeover=stopped({"arex/jura/apel:egi": (epoch(LAST), epoch(LAST) + 60)}))
    (target,) = loaded(page, tmp_path).targets
    assert f"start: {start}  #" in page.text
    assert target.start.since == (datetime(2026, 10, 1, tzinfo=UTC) if summary else LAST)
    assert not any("publishing.db" in line for line in page.by_hand)


@pytest.mark.parametrize("rows", [{}, {"arex/jura/apel:egi": (0, 0)}, {"arex/jura/apel:other": (5, 5)}])
def test_a_target_to_which_arc_never_published_begins_as_a_new_one(rows: dict[str, tuple[int, int]]) -> None:
    page = apel(takeover=stopped(rows))
    assert "start" not in keys(page)["targets"]["egi"]
    assert "#start: month  # ARC never published" in page.text


def test_without_publishing_db_the_page_says_so() -> None:
    page = apel()
    assert any("no publishing.db at /srv/publishing.db" in line for line in page.by_hand)


@pytest.mark.parametrize("last", [epoch(NOW) + 1, epoch(NOW) + 10 * 365 * 86_400, 2**62])
def test_a_last_end_time_in_the_future_is_not_believed(last: int) -> None:
    report = epoch(datetime(2026, 9, 2, 0, 30, tzinfo=UTC))
    jobs = begin(ArcProgress(last_end=Epoch(last), last_report=Epoch(report)), summary=False, now=NOW)
    months = begin(ArcProgress(last_end=Epoch(last), last_report=Epoch(report)), summary=True, now=NOW)
    assert jobs.text(summary=False) == "2026-09-01T00:30:00Z"
    assert months.text(summary=True) == "2026-09"
    assert "wrong clock" in jobs.trouble
    lost = begin(ArcProgress(last_end=Epoch(last), last_report=None), summary=False, now=NOW)
    assert (lost.at, "since when" in lost.trouble) == (None, True)


# What was lost


def job_ending(at: datetime, number: int, *, vo: str = "atlas") -> SampleJob:
    (job,) = generate(number, 1, datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 9, 2, tzinfo=UTC))
    return replace(job, job_id=f"job{number}", vo=vo, status="completed", submit_time=epoch(at) - 600).moved_to(
        epoch(at)
    )


def mark(*, summary: bool = False, vos: frozenset[str] = frozenset(), period_s: int = 3600) -> Watermark:
    start = datetime(2026, 10, 1, tzinfo=UTC) if summary else LAST
    return Watermark(
        target="egi",
        last_end=Epoch(epoch(LAST)),
        start=Epoch(epoch(start)),
        summary=summary,
        vos=vos,
        period_s=period_s,
    )


def search(*paths: Path, watermark: Watermark | None = None, page_rows: int = 3) -> Search:
    source = create(Options(databases=tuple(map(str, paths))), {})
    with ExitStack() as stack:
        shelf = CopyDirectory(paths[0].parent)
        stack.callback(shelf.close)
        stack.callback(source.close)
        databases = []
        for name, path in source.databases().items():
            databases.append(ArexWritingOrder(name, path, shelf, page_rows=page_rows))
            stack.callback(databases[-1].close)
        (found,) = look_for_lost(databases, [watermark or mark()])
    return found


def at(day: int, hour: int, minute: int = 0, *, month: int = 10) -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize("schema", [1, 2])
def test_jobs_that_were_written_after_the_watermark_had_passed_are_found(schema: Schema, tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db", schema=schema) as arex:
        for number, ended in enumerate(
            [
                at(11, 10),
                at(11, 12),
                at(11, 11, 30),  # behind by half an hour: perhaps
                LAST,
                at(12, 1),  # behind by two hours, before the next: perhaps
                LAST,  # the same second: sent again in any case
                at(12, 5),  # ARC never saw it
                at(12, 2),  # so it has not seen this one either
                at(12, 6),
                at(10, 1),
            ]
        ):
            arex.write(job_ending(ended, number))
    found = search(tmp_path / "a.db")
    assert found.looked_at == 10
    assert [one.job.job_id for one in found.surest] == ["job7", "job9"]
    assert (found.certain, found.earliest) == (2, epoch(at(10, 1)))
    assert {one.job.job_id: one.behind_s for one in found.latest} == {
        "job2": 1800,
        "job4": epoch(LAST) - epoch(at(12, 1)),
    }
    assert found.expected == 1.5
    assert found.sent_anyway == 2
    assert (found.unordered, found.disordered) == (0, [])


def test_the_order_is_that_of_the_end_not_of_the_submission(tmp_path: Path) -> None:
    """Accepted in one order, finished in another: RecordID must not decide."""
    early, late = job_ending(at(11, 1), 1), job_ending(at(11, 9), 2)
    with Writer(tmp_path / "a.db") as arex:
        for job in (late, early):
            arex.accept(job)
        for job in (early, late):
            arex.finish(job)
    assert search(tmp_path / "a.db").perhaps == 0


def test_of_a_job_that_finished_twice_the_last_end_counts(tmp_path: Path) -> None:
    again, other = job_ending(at(11, 1), 1), job_ending(at(11, 2), 2)
    with Writer(tmp_path / "a.db") as arex:
        arex.write(again)
        arex.write(other)
        arex.finish_again(again, end_time=epoch(at(11, 5)))
    found = search(tmp_path / "a.db")
    assert (found.looked_at, found.perhaps, found.certain) == (2, 0, 0)


def test_other_vos_and_statuses_are_not_the_targets(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db") as arex:
        arex.write(job_ending(at(11, 1), 1))
        arex.write(job_ending(at(15, 1), 2, vo="cms"))
        arex.write(replace(job_ending(at(15, 1), 3), status="aborted"))
        arex.write(job_ending(at(11, 0), 4, vo="cms"))
        arex.write(job_ending(at(11, 2), 5))
    found = search(tmp_path / "a.db", watermark=mark(vos=frozenset({"atlas"})))
    assert (found.looked_at, found.certain, found.perhaps) == (2, 0, 0)
    assert search(tmp_path / "a.db").certain == 2


def test_of_summaries_only_what_months_have_lost(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db") as arex:
        for number, ended in enumerate(
            [at(5, 1), at(30, 1, month=9), at(30, 1, month=8), at(13, 1), at(29, 1, month=9), at(2, 1)]
        ):
            arex.write(job_ending(ended, number))
    found = search(tmp_path / "a.db", watermark=mark(summary=True))
    assert [one.job.job_id for one in found.latest] == ["job2"]  # September was sent anew in October, August was not
    assert [one.job.job_id for one in found.surest] == ["job4"]
    assert found.sent_anyway == 2


def test_rows_without_a_finished_event_cannot_be_told(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db") as arex:
        arex.write(job_ending(at(11, 1), 1))
        arex.finish(_accepted(arex, job_ending(at(11, 2), 2)), stop_after="extra")
    found = search(tmp_path / "a.db")
    assert (found.looked_at, found.unordered) == (1, 1)


def _accepted(arex: Writer, job: SampleJob) -> SampleJob:
    arex.accept(job)
    return job


def test_a_database_out_of_order_is_not_judged(tmp_path: Path) -> None:
    """As after a migration that copied by submission."""
    with Writer(tmp_path / "a.db") as arex:
        for number in range(60):
            arex.write(job_ending(at(11, number % 3 * 5), number))
    found = search(tmp_path / "a.db")
    assert found.disordered == [str(tmp_path / "a.db")]
    assert (found.certain, found.perhaps, found.latest) == (0, 0, [])


def test_a_job_in_two_databases_is_told_once(tmp_path: Path) -> None:
    """After a migration both stand side by side; what is only in the old one is told by its place among the others."""
    jobs = [job_ending(ended, number) for number, ended in enumerate([at(11, 10), at(11, 5), at(12, 5), at(12, 2)])]
    only_old = job_ending(at(11, 7), 9)
    with Writer(tmp_path / "old.db", schema=1) as arex:
        arex.write_all((jobs[0], only_old, *jobs[1:]))
    with Writer(tmp_path / "new.db", schema=2) as arex:
        arex.write_all(jobs)
        arex.finish(_accepted(arex, job_ending(at(10, 2), 10)), stop_after="extra")
    found = search(tmp_path / "old.db", tmp_path / "new.db")
    assert found.looked_at == 5
    assert [one.job.job_id for one in found.surest] == ["job3"]
    assert (found.certain, found.perhaps, found.unordered) == (1, 2, 1)
    assert {one.job.job_id for one in found.latest} == {"job1", "job9"}


def test_an_ordinary_month_has_nothing_that_is_certainly_lost(tmp_path: Path) -> None:
    jobs = sorted(generate(7, 400, at(1, 0), LAST), key=lambda job: job.end_time)
    with Writer(tmp_path / "a.db") as arex:
        arex.write_all(jobs)
    found = search(tmp_path / "a.db", page_rows=64)
    assert (found.looked_at, found.certain, found.perhaps, found.disordered) == (400, 0, 0, [])


def test_a_page_takes_no_sort_and_no_index_of_event_keys(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db") as arex:
        arex.write(job_ending(at(11, 1), 1))
        rows = arex.connection.execute(f"EXPLAIN QUERY PLAN {IN_ORDER}", {"after": 0, "limit": 10}).fetchall()
    plan = "\n".join(str(row[3]) for row in rows)
    assert "TEMP B-TREE" not in plan
    assert re.search(r"SEARCH finished USING INTEGER PRIMARY KEY", plan)
    assert re.search(r"SEARCH later USING (COVERING )?INDEX JobEvents_RecordID_IDX", plan)
    assert "EventKey_IDX" not in plan


# The command


class Machine:
    """A folder with arc.conf, an accounting database and ARC's publishing state."""

    def __init__(self, folder: Path) -> None:
        self.arc_conf = folder / "arc.conf"
        self.state = folder / "control" / "accounting" / "publishing.db"
        self.state.parent.mkdir(parents=True)
        self.arc_conf.write_text(
            f"[common]\n[arex]\ncontroldir = {folder / 'control'}\n[arex/jura]\n[arex/jura/apel: egi]\n"
            "targeturl = https://msg.example.org\ngocdb_name = SITE\napel_messages = urs\n"
        )
        self.database = self.state.parent / "accounting_v2.db"

    def publish_with_arc(self, last_end: object = epoch(LAST)) -> None:
        connection = sqlite3.connect(self.state)
        connection.execute(
            "CREATE TABLE AccountingTargets (TargetID TEXT UNIQUE, LastEndTime INTEGER, LastReport INTEGER)"
        )
        connection.execute("INSERT INTO AccountingTargets VALUES ('arex/jura/apel:egi', ?, 1)", (last_end,))
        connection.commit()
        connection.close()

    def run(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main.run(["config", "from-arc", str(self.arc_conf), *arguments])
        return status, out.getvalue(), err.getvalue()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_command_prints_a_configuration_that_loads(machine: Machine, tmp_path: Path) -> None:
    machine.publish_with_arc()
    before = machine.arc_conf.read_bytes(), machine.state.read_bytes()
    status, out, err = machine.run()
    assert status == 0, err
    (tmp_path / "publisher.yaml").write_text(out)
    (target,) = load(tmp_path / "publisher.yaml", {}, host_name="ce").targets
    assert iso(target.start.since or NOW) == iso(LAST)
    assert (machine.arc_conf.read_bytes(), machine.state.read_bytes()) == before
    assert sorted(path.name for path in machine.state.parent.iterdir()) == ["publishing.db"]


def test_targets_and_benchmarks_of_arc_conf_d_are_carried_over(machine: Machine, tmp_path: Path) -> None:
    folder = Path(f"{machine.arc_conf}.d")
    folder.mkdir()
    common, _, jura = machine.arc_conf.read_text().partition("[arex/jura]\n")
    machine.arc_conf.write_text(f"{common}[authgroup: everyone]\nall\n[queue: long]\n")
    (folder / "10-jura.conf").write_text(f"[arex/jura]\n{jura}")
    (folder / "20-queues.conf").write_text("[queue: long]\nbenchmark = HEPscore23 11.5\n")
    status, out, err = machine.run()
    assert status == 0, err
    (tmp_path / "publisher.yaml").write_text(out)
    settings = load(tmp_path / "publisher.yaml", {}, host_name="ce")
    assert [target.name for target in settings.targets] == ["egi"]
    (rule,) = settings.targets[0].policy.benchmarks.rules
    assert (rule.queue, rule.benchmarks[0].text) == ("long", "11.5")
    assert f"Also read: {folder}/10-jura.conf" in out


def test_a_state_elsewhere(machine: Machine, tmp_path: Path) -> None:
    machine.publish_with_arc()
    moved = machine.state.rename(tmp_path / "copy.db")
    assert "#start: month" in machine.run()[1]
    assert f"start: {iso(LAST)}" in machine.run("--state", str(moved))[1]


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100])
def test_a_state_that_cannot_be_read_is_an_error_never_an_empty_one(machine: Machine, content: bytes | None) -> None:
    if content is not None:
        machine.state.write_bytes(content)
    status, out, err = machine.run("--state", str(machine.state))
    assert (status, out) == (66, "")
    assert str(machine.state) in err


def test_odd_values_in_the_state_are_no_times(machine: Machine) -> None:
    machine.publish_with_arc("yesterday")
    assert "#start: month  # ARC never published" in machine.run()[1]


def test_exit_statuses(machine: Machine) -> None:
    machine.arc_conf.write_text("[common]\n[arex]\n[arex/jura]\n")
    status, out, err = machine.run()
    assert status == 78
    assert "site, targets" in err
    assert out.startswith("# Made by publisher")
    machine.arc_conf.write_text("nonsense\n")
    status, out, err = machine.run()
    assert (status, out) == (78, "")
    assert f"{machine.arc_conf}:1: " in err
    assert machine.run("--site", "BAD NAME")[0] == 78


def test_the_report_on_lost_jobs(machine: Machine) -> None:
    machine.publish_with_arc()
    with Writer(machine.database) as arex:
        for number, ended in enumerate([LAST, at(13, 1), at(11, 1)]):
            arex.write(job_ending(ended, number))
    status, out, err = machine.run("--look-for-lost")
    assert (status, err) == (0, "")
    assert "certainly lost: 1," in out
    assert re.search(r"^ +job2 .* 2026-10-11T01:00:00Z  atlas", out, re.MULTILINE)
    assert "start: 2026-10-11T01:00:00Z" in out
    assert "1 of those until then are sent (again) anyway" in out


def test_the_report_needs_a_state_and_a_database(machine: Machine) -> None:
    assert machine.run("--look-for-lost")[0] == 64
    machine.publish_with_arc()
    status, out, err = machine.run("--look-for-lost")
    assert (status, out) == (66, "")
    assert "accounting_v2.db" in err


@pytest.mark.slow
def test_many_jobs_take_little_memory(tmp_path: Path) -> None:
    bulk(tmp_path / "a.db", 2, 30_000, 1, at(1, 0, month=9), LAST)
    tracemalloc.start()
    found = search(tmp_path / "a.db", page_rows=2000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.looked_at > 20_000
    assert peak < 12 * 2**20
