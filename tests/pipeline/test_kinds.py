"""Records made of templates are byte for byte those that are made one by one, whatever stands between them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from publisher.cli.site import LiveSite
from publisher.formats import job_format
from publisher.model.errors import Unfit
from publisher.model.job import OWN_VALUES, AlikeJob, JobRecord, RowRef, whole_job
from publisher.model.time import Window
from publisher.pipeline.round.batches import RecordMaker
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.rendering.kinds import facts_of
from publisher.pipeline.round.rendering.pages import PageRenderer
from publisher.sources.base import Page
from tests.arex_databases import SampleJob, Schema, SqlValue, Writer, bulk, generate
from tests.pipeline.test_grouped import END, RULES, START, hostile_cases
from tests.pipeline.test_read_ahead import Pair
from tests.support.pki import PKI

ALWAYS: Final = frozenset({"job_id", "wall_s", "cpu_user_s", "cpu_kernel_s", "submitted_at", "ended_at"})
FORMATS: Final = ("car", "ogf-ur", "apel-job-0.2", "apel-job-0.3", "apel-job-0.4")
NOW: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)


def like(jobs: list[SampleJob], rng: random.Random) -> Iterator[SampleJob]:
    """Jobs of few kinds, with the smallest and the largest values between the others."""
    for number, job in enumerate(jobs):
        end = job.end_time + rng.choice((0, 1, 59, 86_400))
        changed = replace(job, job_id=f"like{number}x{rng.randrange(10**9)}", end_time=end)
        yield replace(changed, wall_s=rng.choice((0, 1, 10**6, 2**29 - 8, 2**29, 2**31)))


@cache
def odd_rows(seed: int) -> tuple[Schema, bytes, int]:
    """A database with odd rows in any place of a page, made once for all tests; and how many of its rows are ordinary."""
    rng = random.Random(seed)
    schema: Schema = 1 if seed % 2 else 2
    ordinary = list(generate(seed, 12, START, END))
    several = [*ordinary, *like(ordinary * 40, rng)]
    cases = [*several, *hostile_cases(seed)]
    rng.shuffle(cases)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "odd.db"
        with Writer(path, schema=schema) as arex:
            arex.write_all(cases)
        return schema, path.read_bytes(), len(several)


def filled(folder: Path, pki: PKI, form: str, seed: int, rules: dict[str, Any], **target: object) -> tuple[Pair, int]:
    pair = Pair(folder, pki, form, rules, **target)
    schema, rows, ordinary = odd_rows(seed)
    pair.ahead.database(schema).write_bytes(rows)
    return pair, ordinary


class Both:
    """What is made of a page together, and what one by one."""

    def __init__(self, pair: Pair) -> None:
        site = pair.live(pair.ahead, LiveSite, None)
        (target,) = site.settings.targets
        self.source = site.source()
        self.format = job_format(target.format)
        self.decider = Decider(
            selection=target.selection(Window()),
            policy=target.policy,
            policy_digest="",
            changed=self.format.receiver.on_change,
        )
        self.renderer = PageRenderer(self.format, self.decider, NOW)
        self.maker = RecordMaker(self.format)

    def pages(self, *, alike: bool) -> Iterator[Page]:
        (database,) = self.source.databases()
        return self.source.since(None, database, self.format.needs, NOW, alike=alike)

    def alone(self, job: JobRecord) -> tuple[bytes, object] | None:
        """Record and facts, None for a job that is not wanted or breaks a rule."""
        fit = self.decider.decide(job, job.key, None, None)
        if isinstance(fit, Publish):
            try:
                record = self.maker.rendered(fit, NOW)
            except Unfit:
                return None
            return record.content, facts_of(fit.published, self.maker.row_key(fit.published))
        return None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.some(2)
def test_of_a_kind_and_by_themselves(tmp_path: Path, pki: PKI, form: str, seed: int) -> None:
    pair, ordinary = filled(tmp_path, pki, form, seed, {})
    assert compared(pair) > ordinary / 6, "what was tested was not there"


@pytest.mark.slow
@pytest.mark.parametrize("rules", [*RULES, "hidden"])
@pytest.mark.some(2)
def test_under_every_rule(tmp_path: Path, pki: PKI, rules: str) -> None:
    pair, ordinary = filled(tmp_path, pki, "ogf-ur", 3, RULES.get(rules, {"identity": {"mode": "withheld"}}))
    assert compared(pair) > (ordinary / 6 if rules != "completed only" else 0)


SIZES: Final = ("scratch_bytes", "stage_in_bytes", "stage_out_bytes")
NUMBERS: Final = ("wall_s", "cpu_user_s", "cpu_kernel_s", "memory_kib", "virtual_memory_kib", *SIZES)
TIMES: Final = ("submitted_at", "started_at", "ended_at")
LARGE: Final = [
    near + off for power in (29, 30, 31, 32, 53, 60, 62, 63) for near in (2**power,) for off in (-8, -1, 0, 1)
]
NOW_S: Final = int(NOW.timestamp())
MOMENTS: Final = (
    *(-3_600, -1, 1),
    *(NOW_S + off for off in (-2, -1, 0, 1, 86_399, 86_400, 86_401)),
    *(253_402_300_799, 253_402_300_800),
)
TEXTS: Final = (
    "1",
    "none",
    "None",
    "0",
    "/7",
    "a%b",
    "<&>",
    "ø",
    "x" * 40,
    "x" * 41,
    "x" * 101,
    "x" * 300,
    "a b",
    "\t1",
)


def at_the_bounds(job: AlikeJob, rng: random.Random) -> Iterator[AlikeJob]:
    """The job with values around every bound that a receiver, a schema or a number of a computer has."""
    changes: list[dict[str, Any]] = [{name: value} for name in NUMBERS for value in (0, 1, *LARGE)]
    changes += [{name: moment} for name in TIMES for moment in MOMENTS]
    changes += [{name: value} for name in (*SIZES, "started_at") for value in (0, None)]
    changes += [{name: text} for name in ("job_id", "local_id") for text in TEXTS]
    changes += [{name: rng.choice(LARGE) for name in rng.sample(NUMBERS, 3)} for _ in range(30)]
    changes += [dict(zip(TIMES, rng.sample(MOMENTS, 3), strict=True)) for _ in range(60)]
    for change in changes:
        given = dict(zip(OWN_VALUES, job.values, strict=True))
        known = {name: value for name, value in change.items() if name in ALWAYS or bool(given[name]) == bool(value)}
        yield job._replace(values=tuple((given | known).values()))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_values_around_every_bound(tmp_path: Path, pki: PKI, form: str) -> None:
    rng = random.Random(7)
    pair, _ = filled(tmp_path, pki, form, 7, {})
    both = Both(pair)
    with closing(both.source):
        found = [job for page in both.pages(alike=True) for job in page.alike]
        both.renderer._sorted(found)
        examples = {id(job.example): job for job in both.renderer._sorted(found)[0].jobs}
    by_values = sorted(examples.values(), key=lambda job: sum(map(bool, job.values)))
    richest = [*by_values[:2], *by_values[-2:]]
    asked = [changed for job in richest for changed in at_the_bounds(job, rng)]
    rng.shuffle(asked)
    written, unwanted, left = both.renderer._sorted(asked)
    assert len(written.jobs) > len(asked) / 8, "what was tested was not there"
    assert left
    for job, content, facts in zip(*written, strict=True):
        assert (content, facts) == both.alone(whole_job(job))
    assert all(isinstance(both.decider.decide(job, job.key, None, None), Skip) for job in map(whole_job, unwanted))


@pytest.mark.parametrize("letter", ["\ue001", "\uf8ff"])
def test_letters_that_stand_for_places_of_values(tmp_path: Path, pki: PKI, letter: str) -> None:
    pair, _ = filled(tmp_path, pki, "ogf-ur", 7, {})
    both = Both(pair)
    with closing(both.source):
        found = [job for page in both.pages(alike=True) for job in page.alike]
    strange = {id(job.example): job.example._replace(runtime_environments=(f"A{letter}B",)) for job in found}
    jobs = [job._replace(example=strange[id(job.example)]) for job in found]
    both.renderer._sorted(jobs)
    written, _, left = both.renderer._sorted(jobs)
    assert not written.jobs
    assert len(left) == len(jobs)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_round_in_one_process(tmp_path: Path, pki: PKI, form: str) -> None:
    """Then once more with runs that are known, changed, dropped and released."""
    pair, ordinary = filled(tmp_path, pki, form, 5, {})
    assert pair.publish(backlog=None).alike > ordinary / 6, "what was tested was not there"
    with closing(sqlite3.connect(pair.ahead.database(1))) as arex, arex:
        arex.execute("UPDATE AAR SET UsedWalltime = UsedWalltime + 1 WHERE RecordID % 5 = 0")
    for site in (pair.ahead, pair.alone):
        with closing(sqlite3.connect(site.state)) as ledger, ledger:
            ledger.execute("UPDATE quarantine SET hold = 'dropped' WHERE key IN (SELECT min(key) FROM quarantine)")
            ledger.execute("UPDATE quarantine SET hold = 'released' WHERE key IN (SELECT max(key) FROM quarantine)")
    pair.all_again()
    assert pair.publish(backlog=None).rendered == 0


STRANGE: Final[tuple[SqlValue, ...]] = (
    *("a\tb", "a\nb", "\n", "\t", "a%0ab", "ø", "", "a\0b", None),
    *(7, 1.5, 1e20, b"a", b"a\nb", b"\xff"),
)
# What A-REX writes as text, in tables of which a column takes any type.
TEXTS_BESIDE: Final = {
    "AuthTokenAttributes": ("AttrKey", "AttrValue"),
    "JobExtraInfo": ("InfoKey", "InfoValue"),
    "RunTimeEnvironments": ("RTEName",),
    "JobEvents": ("EventTime",),
}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("strange", [("AuthTokenAttributes", "JobExtraInfo", "RunTimeEnvironments"), ("JobEvents",)])
def test_strange_texts_beside_rows(tmp_path: Path, pki: PKI, strange: tuple[str, ...], indexed: bool) -> None:
    """Whatever stands there, and whether or not an index keeps it together: two rows never pass for alike that are not."""
    rng = random.Random(11)
    pair = Pair(tmp_path, pki, "ogf-ur", {})
    pair.ahead.fill(*like(list(generate(11, 4, START, END)) * 100, rng), schema=2)
    with closing(sqlite3.connect(pair.ahead.database(2))) as arex, arex:
        for table, columns in TEXTS_BESIDE.items():
            arex.execute(f"CREATE TABLE any_type AS SELECT * FROM {table} ORDER BY rowid")
            arex.execute(f"DROP TABLE {table}")
            arex.execute(f"CREATE TABLE {table} (RecordID, {', '.join(columns_of(arex))})")
            arex.execute(f"INSERT INTO {table} SELECT * FROM any_type ORDER BY rowid")
            arex.execute("DROP TABLE any_type")
            if indexed:
                arex.execute(f"CREATE INDEX {table}_of_row ON {table} (RecordID)")
            rows = [number for (number,) in arex.execute(f"SELECT rowid FROM {table}")]
            for number in rng.sample(rows, len(rows) // 40 if table in strange else 0):
                arex.execute(
                    f"UPDATE {table} SET {rng.choice(columns)} = ? WHERE rowid = ?", (rng.choice(STRANGE), number)
                )
    assert compared(pair) > 100, "what was tested was not there"


def test_an_index_over_values_beside_rows(tmp_path: Path, pki: PKI) -> None:
    """An administrator made one: rows come in the order of values, and the newest would be another one."""
    pair = Pair(tmp_path, pki, "car", {})
    pair.ahead.fill(*like(list(generate(11, 4, START, END)) * 10, random.Random(11)), schema=2)
    with closing(sqlite3.connect(pair.ahead.database(2))) as arex, arex:
        arex.execute("INSERT INTO JobExtraInfo SELECT RecordID, 'localuser', '0' || (RecordID % 3) FROM AAR")
        arex.execute("CREATE INDEX by_value ON JobExtraInfo (RecordID, InfoKey, InfoValue)")
    assert compared(pair) == 0


IN_TURN: Final = {"UserID": ("user", "_USERS"), "NodeCount": ("example", "_KINDS")}


@pytest.mark.parametrize("column", IN_TURN)
@pytest.mark.parametrize("anew", [False, True])
def test_more_in_turn_than_are_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pki: PKI, column: str, anew: bool
) -> None:
    """Those that came first stay, and do not make room for others all the time; only now and then all begins anew."""
    shared, bound = IN_TURN[column]
    monkeypatch.setattr(f"publisher.sources.arex.alike.{bound}", 20)
    if anew:
        monkeypatch.setattr("publisher.sources.arex.alike._REFUSED", 50)
    pair = Pair(tmp_path, pki, "car", {})
    bulk(pair.ahead.database(2), 2, 600, 1, START, END, patterns=list(generate(1, 1, START, END)))
    with closing(sqlite3.connect(pair.ahead.database(2))) as arex, arex:
        arex.executemany("INSERT INTO Users VALUES (?, ?)", [(number, f"/CN={number}") for number in range(10, 40)])
        arex.execute(f"UPDATE AAR SET {column} = 10 + RecordID % 30")
    both = Both(pair)
    with closing(both.source):
        alike = [job for page in both.pages(alike=True) for job in page.alike]
    remembered = len({id(getattr(job, shared)) for job in alike})
    if anew:
        assert 40 <= remembered < 600 / 5, "twenty each time"
    else:
        assert remembered == 20
    assert len(alike) > 600 / 3
    assert compared(pair) > 600 / 4


def columns_of(arex: sqlite3.Connection) -> list[str]:
    return [name for (name,) in arex.execute("SELECT name FROM pragma_table_info('any_type') WHERE cid > 0")]


def compared(pair: Pair) -> int:
    """How many records came of templates; all of them, and their jobs, are as they are one by one."""
    both = Both(pair)
    together = 0
    with closing(both.source):
        for page, whole in zip(both.pages(alike=True), both.pages(alike=False), strict=True):
            jobs = {job.row.record_id: job for job in whole.jobs}
            for one in page.alike:
                assert whole_job(one) == jobs[one.record_id]
            assert {job.row for job in page.jobs} | {row(page, one.record_id) for one in page.alike} == {
                job.row for job in whole.jobs
            }
            assert (page.open, page.skipped, page.cursor) == (whole.open, whole.skipped, whole.cursor)
            written, unwanted, left = both.renderer._sorted(page.alike)
            together += len(written.jobs)
            assert len(written.jobs) + len(unwanted) + len(left) == len(page.alike)
            for job, content, facts in zip(*written, strict=True):
                assert (content, facts) == both.alone(jobs[job.record_id])
            for job in unwanted:
                found = jobs[job.record_id]
                assert isinstance(both.decider.decide(found, found.key, None, None), Skip)
    return together


def row(page: Page, record_id: int) -> RowRef:
    assert page.cursor is not None
    return RowRef(database=page.cursor.database, record_id=record_id)
