"""Jobs counted many at once make what they make one by one: the same months, members, quarantine and notes, to the last bit."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher import config
from publisher.cli.site import LiveSite
from publisher.ledger.sql import months as month_text
from publisher.ledger.sql.delivered import pages
from publisher.model.job import Epoch, RowRef, SideTable
from publisher.model.message import Cursor
from publisher.model.time import Window
from publisher.pipeline import publish as commands
from publisher.pipeline.round import grouped
from publisher.pipeline.round.outcome import Outcome
from publisher.pipeline.site import ProcessEnvironment
from publisher.pipeline.sync import check as sync_check
from publisher.sources.base import DoneWith, Knows, Page, Source
from tests.arex_databases import RawRow, SampleJob, Schema, Writer, generate, hostile
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite
from tests.support.strategies import examples

START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
FORMATS: Final = ("apel-summary-0.2", "apel-summary-0.3", "apel-normalised-summary-0.4", "apel-summary-0.4")

# Everything that may change what is said of a job, or whether anything is: each must reach the counted as it reaches the rest.
RULES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "jura": {"key_style": "jura", "default_vo": "nordic"},
    "completed only": {"statuses": ["completed"]},
    "pseudonyms by month": {"identity": {"mode": "pseudonym", "secret_file": "SECRET", "period": "month"}},
    "benchmarks by queue and date": {
        "benchmark": [
            {"type": "HEPSPEC", "value": 9.5, "queue": "a*", "until": "2026-09-17"},
            {"type": "HEPscore23", "value": 11.5, "from": "2026-10-20"},
            {"type": "HEPscore23", "value": 10.25, "queue": "*"},
        ],
        "distrust_default": True,
    },
    "no benchmark": {"benchmark": None},
    "VO rules of the row": {
        "vo_rules": [
            {"field": "queue", "pattern": "a*", "vo": "local"},
            {"field": "user", "pattern": "/DC=*", "vo": "x509", "override": True},
        ]
    },
    "VO rules beside the row": {
        "vo_rules": [{"field": "group", "pattern": "/atlas*", "vo": "atlas-by-rule", "override": True}]
    },
}


class OneByOne:
    """A source that tells of no two jobs that they are alike."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def since(
        self,
        cursor: Cursor | None,
        database: str,
        needs: frozenset[SideTable],
        now: datetime,
        done_with: DoneWith | None = None,
        *,
        columns: bool = False,
        alike: bool = False,
        names: bool = True,
    ) -> Iterator[Page]:
        return self._source.since(cursor, database, needs, now, done_with)

    def window(
        self,
        window: Window,
        needs: frozenset[SideTable],
        now: datetime,
        after: tuple[Epoch, RowRef] | None = None,
        *,
        columns: bool = False,
        knows: Knows | None = None,
        alike: bool = False,
        names: bool = True,
    ) -> Iterator[Page]:
        return self._source.window(window, needs, now, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class SlowSite(LiveSite):
    """A site whose jobs are looked at one by one."""

    def source(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        return OneByOne(super().source(lock_wait_s=lock_wait_s, to_publish=to_publish))


class Watching:
    """How many jobs a round met alike, and how many by themselves."""

    def __init__(self) -> None:
        self.alike = self.alone = self.rows = 0

    def page_read(self, target: str, page: Page) -> None:
        self.alike += len(page.runs.keys()) if page.runs is not None else 0
        self.alone += len(page.jobs)
        self.rows += page.rows_read

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


def site_with(folder: Path, pki: PKI, form: str, rules: dict[str, Any], target: dict[str, Any]) -> ConfiguredSite:
    """A site that writes its messages to files, unsigned."""
    folder.mkdir(parents=True)
    spool = {
        "type": "spool",
        "path": str(folder / "outgoing"),
        "sign": False,
        "format": form,
        "start": "all",
        "every": "1s",
    }
    made = ConfiguredSite(folder, pki, pki.host(), {"here": spool | target})
    made.config["records"] |= rules
    if isinstance(rules.get("identity"), dict):
        secret = folder / "secret"
        secret.write_bytes(b"0123456789abcdef")
        secret.chmod(0o600)
        made.config["records"]["identity"] = rules["identity"] | {"secret_file": str(secret)}
    made.save()
    return made


def live_site(site: ConfiguredSite, kind: type[LiveSite], control: Path, now: datetime) -> LiveSite:
    """The site over the databases of a control directory, at a given time: two of them see the same."""
    loaded = config.load(site.path, {}, host_name="ce01.example.org")
    options = replace(loaded.source.options, control_dir=control)  # type: ignore[type-var]  # any source's options
    return kind(
        settings=loaded._replace(source=loaded.source._replace(options=options)),
        process=ProcessEnvironment(
            environment={},
            clock=lambda: now,
            monotonic=time.monotonic,
            wait=threading.Event().wait,
        ),
    )


def publish(site: ConfiguredSite, kind: type[LiveSite], control: Path, now: datetime) -> tuple[Outcome, Watching]:
    """One regular round."""
    live = live_site(site, kind, control, now)
    watching = Watching()
    (outcome,) = commands.publish(live, targets=[], observer=watching)
    return outcome, watching


def written(state: Path) -> dict[str, Any]:
    """Everything in the ledger but the numbers of messages."""
    with closing(sqlite3.connect(state)) as ledger:
        packed = [blob for (blob,) in ledger.execute("SELECT runs FROM delivered_page")]
        members = sorted(
            (one.key, one.ended_at, one.fingerprint)
            for blob in packed
            for one in pages.unpack(0, blob, frozenset(pages.digests(blob)))
        )
        asked = "SELECT month, jobs, last_end, digest, dirty, accepted_digest, counted FROM month ORDER BY month"
        months = ledger.execute(asked).fetchall()
        return {
            "members": members,
            "months": [(*row[:6], month_text.decode(row[6])) for row in months],
            "quarantine": ledger.execute(
                "SELECT key, job_id, file, record_id, ended_at, rule, reason, fingerprint, hold FROM quarantine ORDER BY key"
            ).fetchall(),
            "open": ledger.execute("SELECT file, record_id, finished_at FROM open_row ORDER BY 1, 2").fetchall(),
            "read": ledger.execute("SELECT file, record_id, anchor FROM reading ORDER BY 1").fetchall(),
            "target": ledger.execute("SELECT delivered, last_end, held FROM target").fetchall(),
        }


class Twins:
    """Two sites with one accounting database: one counts many at once, the other looks at each job."""

    def __init__(
        self, folder: Path, pki: PKI, form: str, rules: dict[str, Any], target: dict[str, Any] | None = None
    ) -> None:
        self.quick = site_with(folder / "quick", pki, form, rules, target or {})
        self.slow = site_with(folder / "slow", pki, form, rules, target or {})
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def write(self, cases: Sequence[SampleJob | RawRow], schema: Schema) -> None:
        self.quick.fill(*cases, schema=schema)

    def publish(self) -> Watching:
        """A round of both, and that nothing tells them apart afterwards."""
        self.now += timedelta(minutes=1)
        outcome, watching = publish(self.quick, LiveSite, self.quick.control, self.now)
        one_by_one, slow = publish(self.slow, SlowSite, self.quick.control, self.now)
        assert slow.alike == 0
        quick_state, slow_state = written(self.quick.state), written(self.slow.state)
        for part, content in slow_state.items():
            assert quick_state[part] == content, part
        assert outcome == one_by_one
        return watching

    def a_day_passes(self) -> None:
        for site in (self.quick, self.slow):
            self.a_day_passes_for(site)

    def a_day_passes_for(self, site: ConfiguredSite) -> None:
        with closing(sqlite3.connect(site.state)) as ledger, ledger:
            ledger.execute("UPDATE target SET swept = swept - 90000")


def hostile_cases(seed: int) -> list[SampleJob | RawRow]:
    return [
        case
        for case in hostile(seed, start=START, end=END)
        if "utf-8" not in case.name and "surrogate" not in case.name
    ]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[Schema, Path]:
    """Every hostile case among ordinary jobs, in either schema."""
    folder = tmp_path_factory.mktemp("hostile")
    ordinary = list(generate(7, 300, START, END))
    made: dict[Schema, Path] = {}
    schemas: tuple[Schema, ...] = (1, 2)
    for schema in schemas:
        made[schema] = folder / f"{schema}.db"
        with Writer(made[schema], schema=schema) as arex:
            arex.connection.execute("PRAGMA synchronous = OFF")
            arex.write_all([*ordinary[:200], *hostile_cases(5), *ordinary[200:]])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.some(2)
def test_every_hostile_case_and_every_rule(
    tmp_path: Path, pki: PKI, databases: dict[Schema, Path], schema: Schema, rules: dict[str, Any]
) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", rules)
    shutil.copy(databases[schema], twins.quick.database(schema))
    watching = twins.publish()
    assert (watching.alike > 300) is ("group" not in str(rules.get("vo_rules"))), "what was tested was not there"


@pytest.mark.parametrize("form", FORMATS[:3])
def test_every_other_format(tmp_path: Path, pki: PKI, databases: dict[Schema, Path], form: str) -> None:
    twins = Twins(tmp_path, pki, form, {})
    shutil.copy(databases[2], twins.quick.database(2))
    twins.publish()


def test_text_that_is_no_utf_8_is_looked_at_one_by_one(tmp_path: Path, pki: PKI) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    strange = [case for case in hostile(6, start=START, end=END) if "utf-8" in case.name]
    twins.write([*generate(7, 50, START, END), *strange], 2)
    assert twins.publish().alike == 0


def test_an_fqan_that_sums_do_not_tell_sets_a_job_aside_all_the_same(tmp_path: Path, pki: PKI) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    jobs = [job for job in generate(7, 60, START, END) if job.fqans]
    # Of the kind of one that is read whole as its example, so that nothing else would read what stands beside them.
    first, second = (replace(jobs[0], job_id=f"{number}{jobs[0].job_id}") for number in (1, 2))
    strange = (("no UTF-8", first, "/atlas/\udcff"), ("not ASCII", second, "/atlas/\u00e5"))
    rows = [
        RawRow(name=name, job=job, side=(("AuthTokenAttributes", {"AttrKey": "vomsfqan", "AttrValue": text}),))
        for name, job, text in strange
    ]
    twins.write([*jobs, *rows], 2)
    twins.publish()
    (held,) = written(twins.quick.state)["quarantine"]
    assert (held[1], held[5]) == (first.job_id, "undecodable-text")


@pytest.mark.parametrize(
    "target", [{"vos": ["atlas"]}, {"exclude_vos": ["atlas", "cms"]}, {"start": "2026-10"}], ids=str
)
def test_wanted_are_the_same_jobs(tmp_path: Path, pki: PKI, target: dict[str, Any]) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.2", {}, target)
    twins.write(list(generate(7, 400, START, END)), 2)
    twins.publish()
    twins.write(list(generate(8, 50, START, END)), 2)
    assert twins.publish().rows == 50, "nothing that was summed before is read again"


@pytest.mark.slow
def test_months_go_on_after_they_were_written_down(tmp_path: Path, pki: PKI) -> None:
    """A round writes down what it counted every 200 pages, and adds more to the same months."""
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    twins.quick.config["source"]["page_rows"] = 1
    twins.quick.save()
    jobs = list(generate(7, 4000, START, END))
    random.Random(1).shuffle(jobs)
    twins.write(jobs, 2)
    assert twins.publish().alike > 3900
    with closing(sqlite3.connect(twins.quick.state)) as ledger:
        (portions,) = ledger.execute("SELECT count(*) FROM message WHERE state = 4").fetchone()
    assert portions > 2, "what was tested was not there"


def test_more_kinds_come_than_are_remembered(tmp_path: Path, pki: PKI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_REMEMBERED", 3)
    twins = Twins(tmp_path, pki, "apel-summary-0.3", {})
    twins.quick.config["source"]["page_rows"] = 1
    twins.quick.save()
    twins.write(list(generate(7, 300, START, END)), 2)
    assert twins.publish().alike > 280


@pytest.mark.parametrize(
    ("column", "value"),
    [("NodeCount", 20_000), ("CPUCount", -3), ("CPUCount", 2.5), ("QueueID", "many"), ("SubmitTime", 1788220800.5)],
)
def test_a_number_that_is_in_no_kind_is_looked_at_alone(
    tmp_path: Path, pki: PKI, column: str, value: float | str
) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    twins.write(list(generate(7, 40, START, END)), 2)
    with closing(sqlite3.connect(twins.quick.database(2))) as arex, arex:
        arex.execute(f"UPDATE AAR SET {column} = ? WHERE RecordID = 20", [value])
    assert twins.publish().alike == 39


def test_a_job_in_two_databases_counts_once(tmp_path: Path, pki: PKI) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    jobs = list(generate(7, 300, START, END))
    twins.write(jobs[:200], 1)
    twins.write(jobs[100:], 2)
    assert twins.publish().alike == 300


def test_what_is_odd_beside_a_row_of_another_database_is_not_looked_at_here(tmp_path: Path, pki: PKI) -> None:
    """Its job counts there; nothing may bring its row in by another way."""
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    jobs = list(generate(7, 60, START, END))
    twins.write(jobs[20:40], 2)
    twins.write(jobs, 1)
    with closing(sqlite3.connect(twins.quick.database(1))) as arex, arex:
        there = f"RecordID IN (SELECT RecordID FROM AAR WHERE JobID IN ({', '.join('?' * 20)}))"
        ids = [job.job_id for job in jobs[20:40]]
        early = f"UPDATE JobEvents SET EventTime = '1970-01-01 00:00:00' WHERE EventKey = 'LRMSSTART' AND {there}"
        assert arex.execute(early, ids).rowcount > 9
        strange = f"UPDATE AuthTokenAttributes SET AttrValue = '/\u00e5' WHERE {there}"
        assert arex.execute(strange, ids).rowcount > 9
    watching = twins.publish()
    assert watching.rows == 80
    assert watching.alike + watching.alone == 60


def test_a_job_that_stands_twice_in_a_page_counts_once(tmp_path: Path, pki: PKI) -> None:
    """A-REX's own table does not let that be; one that was put together by hand may."""
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    twins.write(list(generate(7, 40, START, END)), 2)
    with closing(sqlite3.connect(twins.quick.database(2))) as arex, arex:
        (table,) = arex.execute("SELECT sql FROM sqlite_master WHERE name = 'AAR'").fetchone()
        arex.execute(table.replace("AAR", "Loose").replace(" UNIQUE", ""))
        arex.execute("INSERT INTO Loose SELECT * FROM AAR")
        columns = ", ".join(row[1] for row in arex.execute("PRAGMA table_info(Loose)").fetchall()[1:])
        arex.execute(f"INSERT INTO Loose ({columns}) SELECT {columns} FROM AAR")
        arex.execute("INSERT INTO JobEvents SELECT RecordID, 'FINISHED', '2026-10-20 12:00:00' FROM Loose")
        arex.execute("DROP TABLE AAR")
        arex.execute("ALTER TABLE Loose RENAME TO AAR")
    assert twins.publish().alike == 80


def test_a_first_round_that_was_broken_off_goes_on(tmp_path: Path, pki: PKI) -> None:
    """It reads everything again, and knows what it counted; one of those jobs changed meanwhile."""
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    jobs = list(generate(7, 200, START, END))
    twins.write(jobs, 2)
    twins.publish()
    for site in (twins.quick, twins.slow):
        with closing(sqlite3.connect(site.state)) as ledger, ledger:
            ledger.execute("UPDATE target SET swept = NULL")
    with twins.quick.arex(2) as arex:
        arex.finish_again(replace(jobs[3], wall_s=jobs[3].wall_s + 60))
    assert twins.publish().alike > 190


def test_who_was_dropped_stays_out_although_the_row_was_mended(tmp_path: Path, pki: PKI) -> None:
    twins = Twins(tmp_path, pki, "apel-summary-0.4", {})
    jobs = list(generate(7, 60, START, END))
    twins.write([replace(jobs[0], benchmark="fast"), *jobs[1:]], 2)
    twins.publish()
    for site in (twins.quick, twins.slow):
        with closing(sqlite3.connect(site.state)) as ledger, ledger:
            ledger.execute("UPDATE quarantine SET hold = 'dropped'")
            ledger.execute("UPDATE target SET swept = NULL")
    with closing(sqlite3.connect(twins.quick.database(2))) as arex, arex:
        arex.execute("UPDATE AAR SET BenchmarkID = (SELECT max(BenchmarkID) FROM AAR WHERE BenchmarkID > 0)")
    assert twins.publish().alike > 50
    assert [row[8] for row in written(twins.quick.state)["quarantine"]] == ["dropped"]


_COMPARED: Final = ("database", "delivered", "restarted", "before", "pending", "quarantined")


class WatchedSource:
    """A source that counts the jobs of which only the kind was asked."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.known = 0

    def window(self, *rest: Any, **named: Any) -> Iterator[Page]:
        for page in self._source.window(*rest, **named):
            self.known += len(page.known.record_ids) if page.known is not None else 0
            yield page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class WatchedSite(LiveSite):
    """A site whose sources are to be seen."""

    made: ClassVar[list[WatchedSource]] = []

    def source(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        self.made.append(WatchedSource(LiveSite.source(self, lock_wait_s=lock_wait_s, to_publish=to_publish)))
        return self.made[-1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.parametrize("rules", ["plain", "benchmarks by queue and date"])
@pytest.mark.parametrize("target", [{"exclude_vos": ["belle"]}, {}], ids=["some VOs", "all VOs"])
@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.some(2)
def test_what_sync_checks_is_seen_alike_as_one_by_one(
    tmp_path: Path,
    pki: PKI,
    databases: dict[Schema, Path],
    schema: Schema,
    target: dict[str, Any],
    form: str,
    rules: str,
) -> None:
    """Jobs that were delivered, wait, are set aside, restarted or torn, by month and submit host."""
    twins = Twins(tmp_path, pki, form, RULES[rules], {"start": "2026-10"} | target)
    shutil.copy(databases[schema], twins.quick.database(schema))
    publish(twins.quick, LiveSite, twins.quick.control, twins.now)
    jobs = list(generate(7, 300, START, END))
    with twins.quick.arex(schema) as arex:
        for job in jobs[5::31]:  # so that two runs of them are delivered
            arex.finish_again(replace(job, local_job_id=f"{job.local_job_id}0"), end_time=job.end_time + 40)
    twins.a_day_passes_for(twins.quick)
    publish(twins.quick, LiveSite, twins.quick.control, twins.now + timedelta(minutes=1))
    with twins.quick.arex(schema) as arex:
        for number, job in enumerate(jobs[::29]):
            again = replace(job, local_job_id=f"{number}9", wall_s=job.wall_s + 60)
            arex.finish_again(again, end_time=job.end_time + 90_000 * number)
        torn, *new = generate(9, 20, START, END)
        arex.accept(torn)
        arex.finish(torn, stop_after="aar")
        arex.write_all(new)
    known, told = checked_twice(twins)
    assert min(told[name] for name in _COMPARED) > 0, told
    assert told["quarantined"] > 3
    assert known > told["delivered"] / 2 or target
    twins.quick.config["records"]["statuses"] = ["failed"]
    twins.quick.save()
    _, fewer = checked_twice(twins)
    assert 0 < fewer["database"] < fewer["delivered"] == told["delivered"]


def checked_twice(twins: Twins) -> tuple[int, Counter[str]]:
    """What `sync --check` says, be jobs looked at together or one by one; of how many only the kind was asked."""
    watched = live_site(twins.quick, WatchedSite, twins.quick.control, twins.now)
    seen: list[list[int]] = [[], []]
    quick, slow = (
        sync_check.check(site, site.settings.targets, months=None, portal=None, jobs_seen=counts.append)
        for site, counts in zip(
            (watched, live_site(twins.quick, SlowSite, twins.quick.control, twins.now)), seen, strict=True
        )
    )
    assert quick == slow
    assert sum(seen[0]) == sum(seen[1]) > 400
    told = Counter[str]()
    for row in quick:
        told.update({name: getattr(row, name) for name in _COMPARED})
    return WatchedSite.made.pop().known, told


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), form=st.sampled_from(FORMATS), rules=st.sampled_from(sorted(RULES)))
def test_random_histories(tmp_path_factory: pytest.TempPathFactory, pki: PKI, seed: int, form: str, rules: str) -> None:
    """Rounds with new, late, changed, torn and hostile rows between them."""
    rng = random.Random(seed)
    schema: Schema = 1 if rng.random() < 0.5 else 2
    twins = Twins(tmp_path_factory.mktemp("twins"), pki, form, RULES[rules])
    cases: list[SampleJob | RawRow] = [*generate(seed, 40, START, END), *rng.sample(hostile_cases(seed % 1000), 25)]
    rng.shuffle(cases)
    written_jobs = []
    for part in (cases[:40], cases[40:]):
        twins.write(part, schema)
        written_jobs += [case for case in part if isinstance(case, SampleJob) and not case.name]
        with twins.quick.arex(schema) as arex:
            for job in rng.sample(written_jobs, min(2, len(written_jobs))):
                arex.finish_again(replace(job, wall_s=job.wall_s + rng.randrange(90)), end_time=job.end_time + 30)
            torn = next(generate(rng.randrange(2**32), 1, START, END))
            arex.accept(torn)
            arex.finish(torn, stop_after="aar")
        twins.publish()
        if rng.random() < 0.5:
            twins.a_day_passes()
    twins.a_day_passes()
    twins.publish()
