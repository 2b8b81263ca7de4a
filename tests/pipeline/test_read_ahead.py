"""A backlog that another process reads and renders: the same records, byte for byte, whatever becomes of that process."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
import sys
import threading
import time
import zlib
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.formats import frame_of
from publisher.formats.apel.car import Car
from publisher.model.target import Target
from publisher.model.time import Window
from publisher.pipeline import publish as commands
from publisher.pipeline.round.decision import Decider
from publisher.pipeline.round.outcome import Outcome
from publisher.pipeline.round.rendering.pages import RenderedPage
from publisher.pipeline.round.rendering.read_ahead import ReadOrder, read_ahead, write_pages
from publisher.pipeline.site import LiveTarget, ProcessEnvironment
from publisher.sources.base import Page
from tests.arex_databases import Schema, generate
from tests.pipeline.test_grouped import END, RULES, START, SlowSite, databases, hostile_cases, site_with, written
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

__all__ = ["databases"]

PAGE_ROWS: Final = 50
# Copies so many bytes of what a command says, and ends.
CUT_OFF: Final = """
import subprocess, sys
with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE) as process:
    sys.stdout.buffer.write(process.stdout.read(int(sys.argv[1])))
    process.kill()
"""


class Watching:
    """How many records a round was given rendered, how many jobs of kinds, and how many jobs whole."""

    def __init__(self) -> None:
        self.rendered = self.alike = self.whole = 0

    def page_read(self, target: str, page: Page) -> None:
        self.rendered += len(page.records.contents) if isinstance(page, RenderedPage) else 0
        self.alike += len(page.alike)
        self.whole += len(page.jobs)

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


class CutSite(LiveSite):
    """A site whose second process is killed after so many bytes."""

    cut_after = 0

    def live(self, target: Target, *, dry_run: bool = False, accept_key_change: bool = False) -> LiveTarget:
        live = super().live(target, dry_run=dry_run, accept_key_change=accept_key_change)
        return live._replace(reader_command=(sys.executable, "-c", CUT_OFF, str(self.cut_after), *live.reader_command))


class Pair:
    """Two sites with one accounting database: one makes records of kinds, in a second process or itself, the other of each
    job by itself."""

    def __init__(self, folder: Path, pki: PKI, form: str, rules: dict[str, Any], **target: object) -> None:
        self.ahead = self._site(folder / "ahead", pki, form, rules, None, target)
        self.alone = self._site(folder / "alone", pki, form, rules, self.ahead.control, target)
        self.form = form
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def _site(
        self,
        folder: Path,
        pki: PKI,
        form: str,
        rules: dict[str, Any],
        control: Path | None,
        target: dict[str, object],
    ) -> ConfiguredSite:
        made = site_with(folder, pki, form, rules, target)
        made.config["source"] |= {"page_rows": PAGE_ROWS}
        made.config["source"] |= {} if control is None else {"control_dir": str(control)}
        made.save()
        return made

    def live(self, site: ConfiguredSite, kind: type[LiveSite], backlog: int | None) -> LiveSite:
        return kind(
            settings=config.load(site.path, os.environ, host_name=socket.gethostname()),
            process=ProcessEnvironment(
                environment=os.environ,
                clock=lambda: self.now,
                monotonic=time.monotonic,
                wait=threading.Event().wait,
                backlog_rows=backlog,
            ),
        )

    def _round(self, site: ConfiguredSite, kind: type[LiveSite], backlog: int | None) -> tuple[Outcome, Watching]:
        watching = Watching()
        live = self.live(site, kind, backlog)
        (outcome,) = commands.publish(live, targets=[], observer=watching)
        return outcome, watching

    def publish(self, kind: type[LiveSite] = LiveSite, backlog: int | None = 0) -> Watching:
        """A round of both, and that nothing tells them apart afterwards. A second process reads so many rows or more."""
        self.now += timedelta(minutes=1)
        outcome, watching = self._round(self.ahead, kind, backlog)
        same, alone = self._round(self.alone, SlowSite, None)
        assert alone.rendered == alone.alike == 0
        here, there = written(self.ahead.state), written(self.alone.state)
        for part, content in there.items():
            assert here[part] == content, part
        assert outcome._replace(messages=0, bytes=0) == same._replace(messages=0, bytes=0)
        assert self.records(self.ahead) == self.records(self.alone)
        assert self.sums(self.ahead) == self.sums(self.alone)
        return watching

    def records(self, site: ConfiguredSite) -> Counter[bytes]:
        """Every record that was sent, byte for byte."""
        frame = frame_of(self.form)
        sent: Counter[bytes] = Counter()
        for file in (site.folder / "outgoing").rglob("*"):
            if file.is_file():
                body = file.read_bytes()
                assert body.startswith(frame.head)
                assert body.endswith(frame.tail)
                sent.update(body[len(frame.head) : -len(frame.tail)].split(frame.separator))
        return sent

    def sums(self, site: ConfiguredSite) -> dict[str, Any]:
        """What the ledger keeps of records together."""
        with closing(sqlite3.connect(site.state)) as ledger:
            asked = {
                "keys": "SELECT month, summary_key.digest, text, site, jobs, wall_s, cpu_s FROM summary_key "
                "JOIN key_text ON key_text.digest = text_digest ORDER BY month, summary_key.digest",
                "hosts": "SELECT month, host, jobs FROM delivered_count ORDER BY month, host",
            }
            return {name: ledger.execute(statement).fetchall() for name, statement in asked.items()}

    def all_again(self) -> None:
        """The next round reads every row once more, as after a first one that was broken off."""
        for site in (self.ahead, self.alone):
            with closing(sqlite3.connect(site.state)) as ledger, ledger:
                ledger.execute("UPDATE target SET swept = NULL")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur", "apel-job-0.2", "apel-job-0.4"])
@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.some(2)
def test_every_hostile_case_in_every_format(
    tmp_path: Path, pki: PKI, databases: dict[Schema, Path], schema: Schema, form: str
) -> None:
    pair = Pair(tmp_path, pki, form, {})
    shutil.copy(databases[schema], pair.ahead.database(schema))
    watching = pair.publish()
    assert watching.rendered > 300, "what was tested was not there"
    assert watching.whole == 0


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.some(2)
def test_every_rule(tmp_path: Path, pki: PKI, databases: dict[Schema, Path], rules: str) -> None:
    pair = Pair(tmp_path, pki, "car", RULES[rules])
    shutil.copy(databases[1], pair.ahead.database(1))
    shutil.copy(databases[2], pair.ahead.database(2))
    assert pair.publish().rendered > (150 if rules == "no benchmark" else 300)


@pytest.mark.slow
@pytest.mark.parametrize("target", [{"start": "2026-10"}, {"vos": ["atlas"]}, {"statuses": ["failed"]}], ids=str)
def test_wanted_are_the_same_jobs(tmp_path: Path, pki: PKI, target: dict[str, Any]) -> None:
    pair = Pair(tmp_path, pki, "car", {}, **target)
    pair.ahead.fill(*generate(7, 6 * PAGE_ROWS, START, END))
    watching = pair.publish()
    assert 0 < watching.rendered < 5 * PAGE_ROWS
    assert watching.rendered == pair.records(pair.ahead).total()


def test_so_many_rows_are_a_backlog(tmp_path: Path, pki: PKI) -> None:
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*generate(7, 6 * PAGE_ROWS, START, END))
    few = pair.publish(backlog=6 * PAGE_ROWS + 1)
    assert (few.rendered, few.alike + few.whole) == (0, 6 * PAGE_ROWS)
    pair.ahead.fill(*generate(8, 6 * PAGE_ROWS, START, END))
    many = pair.publish(backlog=6 * PAGE_ROWS)
    assert (many.rendered, many.alike + many.whole) == (6 * PAGE_ROWS, 0)


@pytest.mark.parametrize("cut_after", [0, 5, 40_000, 140_000, 145_678])
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path, pki: PKI, cut_after: int) -> None:
    """Before its first page, within one, between two."""
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*generate(7, 8 * PAGE_ROWS, START, END))

    class Cut(CutSite):
        pass

    Cut.cut_after = cut_after
    watching = pair.publish(Cut)
    assert (watching.rendered > 0) is (cut_after > 100_000)
    assert watching.rendered + watching.alike + watching.whole == 8 * PAGE_ROWS


def test_a_configuration_that_changed_meanwhile_is_not_mixed(tmp_path: Path, pki: PKI) -> None:
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*generate(7, 2 * PAGE_ROWS, START, END))

    class Changed(LiveSite):
        def live(self, target: Target, *, dry_run: bool = False, accept_key_change: bool = False) -> LiveTarget:
            live = super().live(target, dry_run=dry_run, accept_key_change=accept_key_change)
            pair.ahead.config["records"] |= {"localid_prefix": "other-"}
            pair.ahead.save()
            return live

    assert pair.publish(Changed).rendered == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.some(3)
def test_known_changed_held_and_dropped_runs(tmp_path: Path, pki: PKI, form: str, seed: int) -> None:
    """Rounds that read everything again, with new, changed, restarted, torn and hostile rows between them."""
    rng = random.Random(seed)
    schema: Schema = 1 if seed % 2 else 2
    pair = Pair(tmp_path, pki, form, {"localid_prefix": "a-"})
    jobs = list(generate(seed, 120, START, END))
    cases = [*jobs, *rng.sample(hostile_cases(seed), 60)]
    rng.shuffle(cases)
    for part in (cases[:90], cases[90:], []):
        pair.ahead.fill(*part, schema=schema)
        with pair.ahead.arex(schema) as arex:
            for job in rng.sample([case for case in jobs if case in cases[:90]], 4):
                arex.finish_again(replace(job, wall_s=job.wall_s + rng.randrange(90)), end_time=job.end_time + 30)
            torn = next(generate(rng.randrange(2**32), 1, START, END))
            arex.accept(torn)
            arex.finish(torn, stop_after="aar")
        assert pair.publish().rendered > 0
        pair.all_again()
        for site in (pair.ahead, pair.alone):
            with closing(sqlite3.connect(site.state)) as ledger, ledger:
                ledger.execute("UPDATE quarantine SET hold = 'dropped' WHERE key IN (SELECT min(key) FROM quarantine)")
                ledger.execute("UPDATE quarantine SET hold = 'released' WHERE key IN (SELECT max(key) FROM quarantine)")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "ogf-ur"])
def test_runs_that_share_a_receivers_key(tmp_path: Path, pki: PKI, form: str) -> None:
    """The second of them is set aside, or gets an id of its own, as in one process."""
    pair = Pair(tmp_path, pki, form, {})
    jobs = list(generate(7, 2 * PAGE_ROWS, START, END))
    like = replace(jobs[-1], local_job_id=jobs[3].local_job_id, end_time=jobs[3].end_time)
    pair.ahead.fill(*jobs[:-1], like)
    pair.publish()
    assert [row[5] for row in written(pair.ahead.state)["quarantine"]].count("key-collision") == (form == "car")
    with pair.ahead.arex() as arex:
        arex.finish_again(replace(jobs[5], local_job_id="4711"), end_time=jobs[5].end_time + 90_000)
    pair.all_again()
    pair.publish()


def test_a_job_in_two_databases_goes_once(tmp_path: Path, pki: PKI) -> None:
    pair = Pair(tmp_path, pki, "car", {})
    jobs = list(generate(7, 3 * PAGE_ROWS, START, END))
    pair.ahead.fill(*jobs[:100], schema=1)
    pair.ahead.fill(*jobs[50:], schema=2)
    assert pair.publish().rendered == len(jobs)


def test_who_was_dropped_stays_out_although_the_row_was_mended(tmp_path: Path, pki: PKI) -> None:
    pair = Pair(tmp_path, pki, "car", {})
    jobs = list(generate(7, PAGE_ROWS, START, END))
    pair.ahead.fill(replace(jobs[0], benchmark="fast"), *jobs[1:])
    pair.publish()
    for site in (pair.ahead, pair.alone):
        with closing(sqlite3.connect(site.state)) as ledger, ledger:
            assert ledger.execute("UPDATE quarantine SET hold = 'dropped'").rowcount == 1
    with closing(sqlite3.connect(pair.ahead.database())) as arex, arex:
        arex.execute("UPDATE AAR SET BenchmarkID = (SELECT max(BenchmarkID) FROM AAR WHERE BenchmarkID > 0)")
    pair.all_again()
    assert pair.publish().rendered == PAGE_ROWS
    assert pair.records(pair.ahead).total() == PAGE_ROWS - 1


def test_who_stops_reading_ends_the_other_process(tmp_path: Path, pki: PKI) -> None:
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*generate(7, 8 * PAGE_ROWS, START, END))
    live = pair.live(pair.ahead, LiveSite, 0)
    (target,) = live.settings.targets
    order = ReadOrder(database=str(pair.ahead.database()), cursor=None, start=None, now=pair.now)
    before = children()
    pages = read_ahead(live.live(target).reader_command, order)
    assert len(next(pages).records.contents) == PAGE_ROWS
    others = list(read_ahead(live.live(target).reader_command, order))
    assert not others, "one at a time"
    assert children() > before
    pages.close()
    assert children() == before
    assert next(read_ahead(live.live(target).reader_command, order)).records.contents


class Doubtful(Car):
    """Of some records the form does not show that they are sound."""

    def matches(self, record: bytes) -> bool:
        return zlib.crc32(record) % 3 > 0 and super().matches(record)


def test_a_record_in_doubt_is_left_to_the_first_process(tmp_path: Path, pki: PKI) -> None:
    """There quarantine is told of the whole row, so that a repair of any part of it is noticed."""
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*generate(7, PAGE_ROWS, START, END))
    live = pair.live(pair.ahead, LiveSite, 0)
    (target,) = live.settings.targets
    decider = Decider(
        selection=target.selection(Window()), policy=target.policy, policy_digest="", changed=Car.receiver.on_change
    )
    order = ReadOrder(database=str(pair.ahead.database()), cursor=None, start=None, now=pair.now)
    answer = tmp_path / "answer"
    with closing(live.source()) as source, answer.open("wb") as out:
        write_pages(Doubtful(), decider, source, order, out)
    show = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())", str(answer))
    (page,) = read_ahead(show, order)
    contents = page.records.contents
    assert contents
    assert page.left
    assert len(contents) + len(page.left) == PAGE_ROWS
    assert all(zlib.crc32(one) % 3 > 0 for one in contents)


def children() -> set[str]:
    """The processes that this one made and that are still there; of other tests too, such as a server that forks."""
    return {
        number for thread in Path("/proc/self/task").iterdir() for number in (thread / "children").read_text().split()
    }
