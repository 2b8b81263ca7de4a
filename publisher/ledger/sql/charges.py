"""Charges in the publishing database: the runs that compute them, and what each job costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from publisher.ledger.books import (
    ChargeCounts,
    ChargedSum,
    ChargeRequest,
    ChargeRun,
    KeptCharge,
    News,
    RunNumber,
    RunState,
)
from publisher.ledger.sql.database import Database
from publisher.model.errors import LedgerError, PublisherError
from publisher.model.job import Epoch, JobId, RunKey
from publisher.model.rates import AssessedJob, Tariff
from publisher.model.time import Window, epoch, moment

NO_RULE: Final = "no rule is for the job any more"
_GONE: Final = (
    "its process ended without a word (killed, or the machine went down); "
    "run the same command again"
)
_PORTION: Final = 1000

_ENTER = """
INSERT INTO charge_run (state, end_from, end_to, project, job_group, asked_at, noted_at)
VALUES ('queued', :start, :end, :project, :group, :now, :now)"""
_BEGIN = "UPDATE charge_run SET state = 'running', began_at = :now, noted_at = :now WHERE id = :id"
_FINISH = """
UPDATE charge_run SET state = 'finished', ended_at = :now, noted_at = :now WHERE id = :id"""
_FAIL = """
UPDATE charge_run SET state = 'failed', reason = :reason, ended_at = :now, noted_at = :now
WHERE id = :id"""
_NOTE = """
UPDATE charge_run SET noted_at = :now, jobs = jobs + :jobs, charged = charged + :charged,
       without_result = without_result + :without_result,
       without_rule = without_rule + :without_rule, unreadable = unreadable + :unreadable,
       first = first + :first, changed = changed + :changed
WHERE id = :id"""
_RUNS = """
SELECT id, state, end_from, end_to, project, job_group, asked_at, began_at, noted_at, ended_at,
       jobs, charged, without_result, without_rule, unreadable, first, changed, reason
FROM charge_run ORDER BY id"""
_UNFINISHED_RUNS = "SELECT id FROM charge_run WHERE state IN ('queued', 'running')"
_FAILED = "SELECT id FROM charge_run WHERE state = 'failed'"
_TARIFF = """
SELECT id FROM tariff WHERE unit = :unit AND formula = :formula AND description = :description"""
_NEW_TARIFF = """
INSERT INTO tariff (unit, formula, description) VALUES (:unit, :formula, :description)"""
_KEPT = """
SELECT charge.key, job_id, local_id, ended_at, queue, project, job_group, amount, reason,
       news, news_of, was_amount, was_reason,
       now.unit, now.formula, now.description, was.unit, was.formula, was.description
FROM charge LEFT JOIN tariff AS now ON now.id = tariff
            LEFT JOIN tariff AS was ON was.id = was_tariff"""
_OF_JOB = _KEPT + " WHERE charge.key = :key"
_LISTED = f"""{_KEPT}
WHERE ended_at >= :start AND ended_at < :end AND (ended_at > :start OR charge.key > :key)
      AND (CAST(:project AS TEXT) IS NULL OR project = :project)
      AND (CAST(:group AS TEXT) IS NULL OR job_group = :group)
ORDER BY ended_at, charge.key LIMIT :limit"""
_AMOUNTS = """
SELECT ended_at, key, project, job_group, unit, amount
FROM charge JOIN tariff ON tariff.id = tariff
WHERE ended_at >= :start AND ended_at < :end AND (ended_at > :start OR key > :key)
      AND amount IS NOT NULL
ORDER BY ended_at, key LIMIT :limit"""
_KEEP = """
INSERT INTO charge (key, job_id, local_id, ended_at, queue, project, job_group, tariff, amount,
                    reason, news, news_of, was_tariff, was_amount, was_reason)
VALUES (:key, :job_id, :local_id, :ended_at, :queue, :project, :group, :tariff, :amount,
        :reason, :news, :news_of, :was_tariff, :was_amount, :was_reason)
ON CONFLICT (key) DO UPDATE
SET ended_at = :ended_at, queue = :queue, project = :project, job_group = :group,
    tariff = :tariff, amount = :amount, reason = :reason, news = :news, news_of = :news_of,
    was_tariff = :was_tariff, was_amount = :was_amount, was_reason = :was_reason"""
_BEFORE_ALL: Final = -(2**63)
_AFTER_ALL: Final = 2**63 - 1


class SqlChargeBook:
    """`ChargeBook` in a publishing database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks = database.charge_locks()
        self._tariffs: dict[Tariff, int] = {}
        self._failed: frozenset[int] = frozenset()

    def runs(self) -> Sequence[ChargeRun]:
        with self._database.reading():
            rows = self._database.execute(_RUNS).fetchall()
        return [self._as_it_is(_run(row)) for row in rows]

    def charges(self, request: ChargeRequest) -> Iterator[KeptCharge]:
        start, key = (_BEFORE_ALL if request.window.start is None else request.window.start), b""
        asked = {
            "end": _AFTER_ALL if request.window.end is None else request.window.end,
            "project": request.project,
            "group": request.group,
            "limit": _PORTION,
        }
        while True:
            place = {"start": start, "key": key}
            with self._database.reading():
                rows = self._database.execute(_LISTED, asked | place).fetchall()
            yield from map(_kept, rows)
            if len(rows) < _PORTION:
                return
            start, key = rows[-1][3], rows[-1][0]

    def sums(self, window: Window) -> Sequence[ChargedSum]:
        start, key = (_BEFORE_ALL if window.start is None else window.start), b""
        end = _AFTER_ALL if window.end is None else window.end
        jobs: Counter[tuple[str, str, str]] = Counter()
        amounts: dict[tuple[str, str, str], Decimal] = {}
        while True:
            asked = {"start": start, "end": end, "key": key, "limit": _PORTION}
            with self._database.reading():
                rows = self._database.execute(_AMOUNTS, asked).fetchall()
            for *_, project, group, unit, amount in rows:
                payer = project, group, unit
                jobs[payer] += 1
                amounts[payer] = amounts.get(payer, Decimal(0)) + Decimal(amount)
            if len(rows) < _PORTION:
                break
            start, key = rows[-1][:2]
        sums = [(payer, amount, jobs[payer]) for payer, amount in amounts.items()]
        return [
            ChargedSum(project=payer[0], group=payer[1], unit=payer[2], jobs=count, amount=amount)
            for payer, amount, count in sorted(sums)
        ]

    @contextmanager
    def asked(
        self, request: ChargeRequest, clock: Callable[[], datetime], patience: Callable[[], bool]
    ) -> Iterator[RunNumber]:
        number = self._enter(request, clock())
        try:
            self._locks.work(patience)
            with self._database.atomic():
                self._fail_abandoned_runs(number, clock())
                self._database.execute(_BEGIN, {"id": number, "now": epoch(clock())})
            yield number
            with self._database.atomic():
                self._database.execute(_FINISH, {"id": number, "now": epoch(clock())})
        except BaseException as error:
            is_ours = isinstance(error, PublisherError)
            reason = str(error) if is_ours else f"interrupted ({type(error).__name__})"
            # Where it cannot be written, the lock that is let go of tells the same.
            with suppress(LedgerError), self._database.atomic():
                self._fail(number, reason, clock())
            raise
        finally:
            self._locks.leave(number)

    def keep(
        self, number: RunNumber, jobs: Sequence[AssessedJob], *, unreadable: int, now: datetime
    ) -> None:
        counted = {"unreadable": unreadable}
        with self._database.atomic():
            pairs = [(job, self._of(job.run)) for job in jobs]
            kept = [self._merged(number, job, before) for job, before in pairs]
            news = [one.news for one in kept if one is not None and one.news_of == number]
            with_before = zip(kept, (before for _, before in pairs), strict=True)
            changed = [one for one, before in with_before if one is not None and one != before]
            self._database.execute_many(_KEEP, map(self._row, changed))
            counted |= {"first": news.count(News.FIRST), "changed": news.count(News.CHANGED)}
            noted = counted | {"id": number, "now": epoch(now)}
            self._database.execute(_NOTE, _counts(jobs) | noted)

    def close(self) -> None:
        self._locks.close()
        self._database.close()

    def _enter(self, request: ChargeRequest, now: datetime) -> RunNumber:
        asked = {
            "start": request.window.start,
            "end": request.window.end,
            "project": request.project,
            "group": request.group,
            "now": epoch(now),
        }
        with self._database.atomic():
            number = RunNumber(self._database.insert_returning_id(_ENTER, asked))
            self._locks.hold(number)  # before anybody can see the run: it must not look dead
        return number

    def _fail_abandoned_runs(self, number: RunNumber, now: datetime) -> None:
        """Runs without a process have failed; the next that finds them reports their changes."""
        for (other,) in self._database.execute(_UNFINISHED_RUNS).fetchall():
            if other != number and not self._locks.is_alive(other):
                self._fail(other, _GONE, now)
        self._failed = frozenset(other for (other,) in self._database.execute(_FAILED))

    def _fail(self, number: RunNumber, reason: str, now: datetime) -> None:
        self._database.execute(_FAIL, {"id": number, "reason": reason, "now": epoch(now)})

    def _as_it_is(self, run: ChargeRun) -> ChargeRun:
        is_open = run.state in (RunState.QUEUED, RunState.RUNNING)
        if is_open and not self._locks.is_alive(run.number):
            return replace(run, state=RunState.FAILED, reason=_GONE)
        return run

    def _of(self, key: RunKey) -> KeptCharge | None:
        row = self._database.execute(_OF_JOB, {"key": key}).fetchone()
        return None if row is None else _kept(row)

    def _merged(
        self, number: RunNumber, job: AssessedJob, before: KeptCharge | None
    ) -> KeptCharge | None:
        """What is kept of a job from now on; None for nothing."""
        if before is None and job.tariff is None:
            return None
        if before is None:
            return KeptCharge(job=job, news=News.FIRST, news_of=number, was=None)
        if job.tariff is None:
            job = job._replace(reason=NO_RULE)
        # What a run changed that failed later was reported to nobody: this one reports it.
        never_reported = before.news_of in self._failed
        if _charge_values(job) == _charge_values(before.job):
            news_of = number if never_reported else before.news_of
            return replace(before, job=job, news_of=news_of)
        if never_reported and before.news is News.FIRST:
            return replace(before, job=job, news_of=number)
        was = before.was if never_reported else before.job
        return KeptCharge(job=job, news=News.CHANGED, news_of=number, was=was)

    def _row(self, kept: KeptCharge) -> Mapping[str, Any]:
        job, was = kept.job, kept.was
        return {
            "key": job.run,
            "job_id": job.job_id,
            "local_id": job.local_id,
            "ended_at": job.ended_at,
            "queue": job.queue,
            "project": job.project,
            "group": job.group,
            "tariff": self._tariff(job.tariff),
            "amount": _digits(job.amount),
            "reason": job.reason,
            "news": kept.news,
            "news_of": kept.news_of,
            "was_tariff": None if was is None else self._tariff(was.tariff),
            "was_amount": None if was is None else _digits(was.amount),
            "was_reason": None if was is None else was.reason,
        }

    def _tariff(self, tariff: Tariff | None) -> int | None:
        if tariff is None:
            return None
        if tariff not in self._tariffs:
            texts = {"unit": tariff.unit, "formula": tariff.formula}
            texts["description"] = tariff.description
            found = self._database.execute(_TARIFF, texts).fetchone()
            number = found[0] if found else self._database.insert_returning_id(_NEW_TARIFF, texts)
            self._tariffs[tariff] = number
        return self._tariffs[tariff]


def _charge_values(job: AssessedJob) -> tuple[object, ...]:
    """What makes a charge another one: the formula alone does not."""
    return job.amount, job.tariff.unit if job.tariff else None, job.reason


def _kept(row: Sequence[Any]) -> KeptCharge:
    key, job_id, local_id, ended_at, queue, project, group, amount, reason = row[:9]
    news, news_of, was_amount, was_reason = row[9:13]
    job = AssessedJob(
        run=RunKey(key),
        job_id=JobId(job_id),
        local_id=local_id,
        ended_at=Epoch(ended_at),
        queue=queue,
        project=project,
        group=group,
        tariff=_tariff_of(row[13:16]),
        amount=_amount(amount),
        reason=reason,
    )
    was = None
    if was_reason is not None:
        tariff = _tariff_of(row[16:19])
        was = job._replace(tariff=tariff, amount=_amount(was_amount), reason=was_reason)
    return KeptCharge(job=job, news=News(news), news_of=RunNumber(news_of), was=was)


def _tariff_of(texts: Sequence[str | None]) -> Tariff | None:
    unit, formula, description = texts
    if unit is None:
        return None
    return Tariff(unit=unit, formula=formula or "", description=description or "")


def _run(row: Sequence[Any]) -> ChargeRun:
    names = "jobs", "charged", "without_result", "without_rule", "unreadable", "first", "changed"
    counts = dict(zip(names, row[10:17], strict=True))
    window = Window(start=row[2], end=row[3])
    return ChargeRun(
        number=RunNumber(row[0]),
        state=RunState(row[1]),
        request=ChargeRequest(window=window, project=row[4], group=row[5]),
        asked_at=datetime.fromtimestamp(row[6], UTC),
        began_at=moment(row[7]),
        noted_at=datetime.fromtimestamp(row[8], UTC),
        ended_at=moment(row[9]),
        counts=ChargeCounts(**counts),
        reason=row[17],
    )


def _amount(digits: str | None) -> Decimal | None:
    return None if digits is None else Decimal(digits)


def _digits(amount: Decimal | None) -> str | None:
    return None if amount is None else format(amount, "f")


def _counts(jobs: Sequence[AssessedJob]) -> dict[str, int]:
    return {
        "jobs": len(jobs),
        "charged": sum(job.amount is not None for job in jobs),
        "without_result": sum(bool(job.reason) for job in jobs),
        "without_rule": sum(job.tariff is None for job in jobs),
    }
