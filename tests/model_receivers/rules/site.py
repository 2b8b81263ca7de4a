"""A site whose jobs have numbers that are easily added up, and what its receivers hold, in few words."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.arex_databases import SampleJob
from tests.arex_databases.schema import NAME_TABLES
from tests.model_receivers.receivers.apel import Apel, Total
from tests.model_receivers.receivers.keep_first import KeepFirst
from tests.model_receivers.site import Answer, Run
from tests.model_receivers.test_named_stories import APEL, Tale, may
from tests.model_receivers.world import job_of

SUMS: Final = ("apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4")
SINGLE: Final = ("car", "apel-job-0.4")
KEEPERS: Final[dict[str, dict[str, Any]]] = {
    "sgas": {"url": "https://sgas.example.org/sgas", "format": "ogf-ur"},
    "auditor": {"url": "https://auditor.example.org", "format": "auditor-record"},
}
MAY: Final = ("republish", "--from", "2026-05", "--to", "2026-05", "--yes")
ACCEPT: Final = "--accept-key-change"
Month = tuple[int, int]
_MAY: Final = (2026, 5)


def keeping(folder: Path, kind: str) -> Tale:
    """A site whose only receiver keeps the first record of an id."""
    tale = Tale(folder, "car")
    tale.product.config["targets"] = {"egi": {"type": kind, "start": "all", "every": "1s", **KEEPERS[kind]}}
    return tale


def kept(tale: Tale) -> dict[str, tuple[int, int]]:
    """Return CPU time and end of what a receiver that keeps the first has, by id."""
    (model,) = tale.product.models.values()
    assert isinstance(model, KeepFirst)
    return {key: (row["CpuDuration"], row["EndTime"]) for key, row in model.records.items()}


def job(number: int, wall_s: int, *, user: str = "ann", end: int = 0, cpus: int = 1, **more: Any) -> SampleJob:
    """Return a job of May that used half as much CPU time as wall time."""
    at = end or may(number)
    return job_of(number=number, ce="ce1", end=at, wall_s=wall_s, cpu_s=wall_s // 2, user=user, cpus=cpus, **more)


def total(*walls: int) -> Total:
    """Return what such jobs with these wall times add up to."""
    return Total(len(walls), sum(walls), sum(wall // 2 for wall in walls))


def by_month(tale: Tale, place: str = APEL) -> dict[Month, Total]:
    found: dict[Month, Total] = defaultdict(Total)
    for key, held in tale.rows(place).items():
        found[key.month] = found[key.month].plus(held)
    return dict(found)


def by_vo(tale: Tale, month: Month = _MAY, place: str = APEL) -> dict[str, Total]:
    found: dict[str, Total] = defaultdict(Total)
    for key, held in tale.rows(place).items():
        if key.month == month:
            found[key.vo] = found[key.vo].plus(held)
    return dict(found)


def apel(tale: Tale, place: str = APEL) -> Apel:
    model = tale.product.model(place)
    assert isinstance(model, Apel)
    return model


def records(tale: Tale) -> dict[tuple[str, str, int], int]:
    """Return the wall time of APEL's job records, by site, local id and end."""
    return {(key[0], key[1], key[2]): row["WallDuration"] for key, row in apel(tale).jobs.items()}


def sent(tale: Tale) -> int:
    return len(tale.product.arrived)


def quiet(tale: Tale, *words: str) -> Run:
    """Run a command, a round if none is named; it sends nothing."""
    before = sent(tale)
    run = tale.run(*words) if words else tale.publish()
    assert sent(tale) == before, run.err
    return run


def once(*answers: Answer) -> Any:
    """Return a script: these answers, then all goes well."""
    left = iter(answers)
    return lambda: next(left, Answer.OK)


def outcome(run: Run, target: str = "egi") -> dict[str, Any]:
    found: dict[str, Any] = run.json["targets"][target]
    return found


def assert_in_order(tale: Tale) -> None:
    """The ledger agrees with itself, and no round has anything to do."""
    assert tale.product.run("state", "check").status == 0
    run = quiet(tale)
    assert outcome(run)["outcome"] == "nothing", run.out


def rewrite(tale: Tale, job_id: str, column: str, value: str | int) -> None:
    """Have A-REX's database say something else in a column of a job, by its name where the column is a number of one."""
    with closing(sqlite3.connect(tale.ce.path)) as database, database:
        if column in NAME_TABLES:
            table, name = NAME_TABLES[column], "URL" if column == "EndpointID" else "Name"
            known = f"SELECT ID FROM {table} WHERE {name} = ?"
            if database.execute(known, (value,)).fetchone() is None:
                database.execute(f"INSERT INTO {table} ({name}) VALUES (?)", (value,))
            (value,) = database.execute(known, (value,)).fetchone()
        database.execute(f"UPDATE AAR SET {column} = ? WHERE JobID = ?", (value, job_id))


def of_ledger(tale: Tale, question: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{tale.product.state}?mode=ro", uri=True)) as database:
        return database.execute(question, values).fetchall()
