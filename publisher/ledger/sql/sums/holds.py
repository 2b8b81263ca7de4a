"""Holds: runs and rows that wait for an administrator. Everything runs in the caller's transaction.

A run has one hold at a receiver. Its row of the table goes when an entry of the run counts, when a
round finds nothing to change, or when the run is set aside, as the job store lacks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.model.entry import RowFields, RowId, RowKey, RowTotal, RunKey, Usage
from publisher.model.job import Epoch, JobId, RowRef, SkippedJob, has_local_id
from publisher.model.receiver import NOT_FOUND, HeldRow, HeldRun
from publisher.model.text import plural
from publisher.model.totals import row_for_people

_COLUMNS: Final = """
    (receiver, run, row_key, again, target, month, reason, shown, held_at, job_id, local_id,
     ended_at, jobs, wall_s, cpu_s)"""
_HOLD: Final = f"""
INSERT INTO hold {_COLUMNS}
VALUES (:receiver, :run, :row_key, :again, :target, :month, :reason, :shown, :now, :job_id,
        :local_id, :ended_at, :jobs, :wall_s, :cpu_s)"""
_HOLD_ENTERED: Final = f"""
INSERT INTO hold {_COLUMNS}
SELECT receiver, run, row_key, FALSE, CAST(:target AS BIGINT), CAST(:month AS BIGINT),
       CAST(:reason AS TEXT), digest, CAST(:now AS BIGINT), CAST(:job_id AS TEXT), local_id,
       ended_at, jobs, wall_s, cpu_s
FROM entry WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_END: Final = "DELETE FROM hold WHERE receiver = :receiver AND run = :run"
_END_ROW: Final = """
DELETE FROM hold
WHERE receiver = :receiver AND run = :run AND row_key = :row_key AND target = :target
    AND again = :again"""
_END_AGAIN: Final = """
DELETE FROM hold
WHERE receiver = :receiver AND run = :run AND again AND target = :target AND month = :month"""
_ANY: Final = "SELECT EXISTS (SELECT 1 FROM hold WHERE receiver = :receiver)"
_RUNS: Final = """
SELECT run, target.name FROM hold JOIN target ON target.id = hold.target
WHERE hold.receiver = :receiver AND run <> :row"""
_ROWS: Final = """
SELECT row_key.month, row_key.digest, shown, hold.row_key
FROM hold JOIN row_key ON row_key.id = hold.row_key
WHERE hold.receiver = :receiver AND run = :run AND target = :target AND again = :again"""
# A run that is on its way is not missing: it counts soon.
_UNSEEN: Final = """
SELECT run, target.name, hold.month, digest, fields, reason, job_id, local_id, ended_at,
       jobs, wall_s, cpu_s
FROM hold JOIN target ON target.id = hold.target JOIN row_key ON row_key.id = hold.row_key
WHERE hold.receiver = :receiver AND run <> :row AND held_at < :since
    AND NOT EXISTS (SELECT 1 FROM entry WHERE entry.receiver = hold.receiver
                    AND entry.run = hold.run AND entry.state = 2)"""
_MONTHS: Final = """
SELECT month FROM hold WHERE receiver = :receiver AND target = :target AND NOT again
UNION SELECT month FROM loss WHERE receiver = :receiver AND solved_at IS NULL ORDER BY month"""
_ROW: Final = b""  # in the place of a run


def hold_runs(
    database: Database,
    numbers: entries.Numbers,
    receiver: int,
    target: int,
    runs: Sequence[HeldRun],
    now: int,
) -> None:
    """Hold runs, in the place of what was held of them before."""
    held = {one.entry.run: one for one in runs}
    constants = entries.constants(database, numbers, receiver, (one.entry for one in held.values()))
    at = {"receiver": receiver, "target": target, "now": now, "again": False}
    named = [
        {**of_entry, "shown": of_entry["digest"], "job_id": one.job}
        | {"month": one.month, "reason": one.reason}
        for of_entry, one in zip(entries.named(constants, at), held.values(), strict=True)
    ]
    end(database, receiver, held)
    database.execute_many(_HOLD, named)


def hold_entered(
    database: Database, posting: int, receiver: int, target: int, runs: Sequence[Any], now: int
) -> None:
    """Hold runs (run, job id, month, reason) that have entries in an open posting."""
    end(database, receiver, (run for run, *_ in runs))
    at = {"posting": posting, "receiver": receiver, "target": target, "now": now}
    names = "run", "job_id", "month", "reason"
    held = [{**at, **dict(zip(names, one, strict=True))} for one in runs]
    database.execute_many(_HOLD_ENTERED, held)


def hold_rows(
    database: Database,
    receiver: int,
    target: int,
    rows: Mapping[int, HeldRow],
    now: int,
    *,
    again: bool,
) -> None:
    """Hold rows by their numbers, in the place of what was held of them before."""
    at = {"receiver": receiver, "target": target, "run": _ROW, "again": again, "now": now}
    nothing = {"job_id": "", "local_id": "", "ended_at": 0}
    named = [
        {**at, **nothing, "row_key": number, "month": one.row.month, **one.counts._asdict()}
        | {"reason": one.reason, "shown": one.shown}
        for number, one in rows.items()
    ]
    database.execute_many(_END_ROW, named)
    database.execute_many(_HOLD, named)


def end(database: Database, receiver: int, runs: Iterable[RunKey]) -> None:
    """Hold runs no longer."""
    at = [{"receiver": receiver, "run": run} for run in runs]
    if at and any_hold(database, receiver):
        database.execute_many(_END, at)


def end_rows(database: Database, receiver: int, target: int, but: Collection[RowId]) -> None:
    """Hold no row any longer that rounds of a target held, but these."""
    at = {"receiver": receiver, "run": _ROW, "target": target, "again": False}
    found = database.execute(_ROWS, at).fetchall()
    gone = [number for month, digest, _, number in found if RowId(month, bytes(digest)) not in but]
    database.execute_many(_END_ROW, [at | {"row_key": number} for number in gone])


def end_again(database: Database, receiver: int, target: int, months: Iterable[int]) -> None:
    """Forget what a republish held of months: they were published again."""
    at = {"receiver": receiver, "target": target, "run": _ROW}
    database.execute_many(_END_AGAIN, [at | {"month": month} for month in months])


def any_hold(database: Database, receiver: int | None) -> bool:
    """Return whether anything of a receiver is held."""
    return bool(database.execute(_ANY, {"receiver": receiver}).fetchone()[0])


def of_runs(database: Database, receiver: int | None) -> dict[RunKey, str]:
    """Return the runs of a receiver that are held, each with the target that held it last."""
    found = database.execute(_RUNS, {"receiver": receiver, "row": _ROW}).fetchall()
    return {RunKey(bytes(run)): str(target) for run, target in found}


def months(database: Database, receiver: int | None, target: int) -> tuple[int, ...]:
    """Return the months of which a round of a target holds something."""
    at = {"receiver": receiver, "target": target}
    return tuple(month for (month,) in database.execute(_MONTHS, at).fetchall())


def rows_shown(
    database: Database, receiver: int | None, target: int | None
) -> set[tuple[RowId, bytes]]:
    """Return the rows that a target holds, with the digest of what was shown of each."""
    at = {"receiver": receiver, "run": _ROW, "target": target}
    return {
        (RowId(month, bytes(digest)), bytes(shown))
        for again in (False, True)
        for month, digest, shown, _ in database.execute(_ROWS, at | {"again": again}).fetchall()
    }


def not_found(
    database: Database, receiver: int | None, found: Collection[RunKey], since: int
) -> dict[RunKey, tuple[str, SkippedJob]]:
    """Return runs that were held before and are not among those found, each with its target."""
    asked = {"receiver": receiver, "row": _ROW, "since": since}
    return {
        RunKey(bytes(run)): (target, _set_aside(RunKey(bytes(run)), *rest))
        for run, target, *rest in database.execute(_UNSEEN, asked).fetchall()
        if bytes(run) not in found
    }


def _set_aside(
    run: RunKey,
    month: int,
    digest: bytes,
    fields: str,
    reason: str,
    job_id: str,
    local_id: str,
    ended_at: int,
    *usage: int,
) -> SkippedJob:
    """Return a run as quarantine keeps it, with what it would have counted for."""
    end, counts = Epoch(ended_at), Usage(*usage)
    row = RowTotal(RowKey(month, RowFields(digest, fields)), counts, end, end)
    would = f"{plural(counts.jobs, 'job')}, {counts.wall_s} s wall, {counts.cpu_s} s CPU"
    text = (
        f"it was held back ({reason}), and the accounting data does not have it any more; it "
        f"would have counted {would} in the row {row_for_people(row, by_level=True).key.text}"
    )
    place, local_id = RowRef("", 0), local_id if has_local_id(run) else ""
    return SkippedJob(place, JobId(job_id), local_id, end, NOT_FOUND, text, fingerprint=0)
