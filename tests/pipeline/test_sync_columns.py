"""`sync --check` finds the same whether it reads columns or each job whole."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from publisher.cli.site import LiveSite
from publisher.model.job import Epoch, RowRef, SideTable
from publisher.model.time import Window
from publisher.pipeline import publish as commands
from publisher.pipeline.sync import check as sync_check
from publisher.sources.base import Knows, Page, Source
from tests.arex_databases import RawRow, SampleJob, Schema, Writer, generate, hostile
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite
from tests.support.spool_sites import live_site, site_with

START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RULES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "benchmarks by queue and date": {
        "benchmark": [
            {"type": "HEPSPEC", "value": 9.5, "queue": "a*", "until": "2026-09-17"},
            {"type": "HEPscore23", "value": 11.5, "from": "2026-10-20"},
            {"type": "HEPscore23", "value": 10.25, "queue": "*"},
        ],
        "distrust_default": True,
    },
}


class OneByOne:
    """A source that reads every job of a window whole."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def window(
        self,
        window: Window,
        needs: frozenset[SideTable],
        now: datetime,
        after: tuple[Epoch, RowRef] | None = None,
        *,
        columns: bool = False,
        knows: Knows | None = None,
    ) -> Iterator[Page]:
        return self._source.window(window, needs, now, after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class SlowSite(LiveSite):
    """A site whose jobs are looked at one by one."""

    def source(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        return OneByOne(super().source(lock_wait_s=lock_wait_s, to_publish=to_publish))


class Silent:
    """An observer of rounds that nobody looks at."""

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


def publish(site: ConfiguredSite, now: datetime) -> None:
    """Run one regular round."""
    commands.publish(live_site(site, LiveSite, site.control, now), targets=[], observer=Silent())


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
    site = site_with(tmp_path / "site", pki, form, RULES[rules], {"start": "2026-10"} | target)
    shutil.copy(databases[schema], site.database(schema))
    publish(site, NOW)
    jobs = list(generate(7, 300, START, END))
    with site.arex(schema) as arex:
        for job in jobs[5::31]:  # so that two runs of them are delivered
            arex.finish_again(replace(job, local_job_id=f"{job.local_job_id}0"), end_time=job.end_time + 40)
    with closing(sqlite3.connect(site.state)) as ledger, ledger:
        ledger.execute("UPDATE target SET swept = swept - 90000")
    publish(site, NOW + timedelta(minutes=1))
    with site.arex(schema) as arex:
        for number, job in enumerate(jobs[::29]):
            again = replace(job, local_job_id=f"{number}9", wall_s=job.wall_s + 60)
            arex.finish_again(again, end_time=job.end_time + 90_000 * number)
        torn, *new = generate(9, 20, START, END)
        arex.accept(torn)
        arex.finish(torn, stop_after="aar")
        arex.write_all(new)
    known, told = checked_twice(site)
    assert min(told[name] for name in _COMPARED) > 0, told
    assert told["quarantined"] > 3
    assert known > told["delivered"] / 2 or target
    site.config["records"]["statuses"] = ["failed"]
    site.save()
    _, fewer = checked_twice(site)
    assert 0 < fewer["database"] < fewer["delivered"] == told["delivered"]


def checked_twice(site: ConfiguredSite) -> tuple[int, Counter[str]]:
    """What `sync --check` says, by columns and job by job; and of how many jobs only the kind was asked."""
    watched = live_site(site, WatchedSite, site.control, NOW)
    seen: list[list[int]] = [[], []]
    whole = live_site(site, SlowSite, site.control, NOW)
    quick, slow = (
        sync_check.check(live, live.settings.targets, months=None, portal=None, jobs_seen=counts.append)
        for live, counts in zip((watched, whole), seen, strict=True)
    )
    assert quick == slow
    assert sum(seen[0]) == sum(seen[1]) > 400
    told = Counter[str]()
    for row in quick:
        told.update({name: getattr(row, name) for name in _COMPARED})
    return WatchedSite.made.pop().known, told
