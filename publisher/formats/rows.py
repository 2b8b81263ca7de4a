"""The rows of totals to which jobs belong, by the fields that APEL's server compares.

A row's fields are put together of what is said of a person, a place and a benchmark, each worked
out once, and of the job's nodes and cores.
"""

from __future__ import annotations

import json
from typing import Final

from publisher.formats.compiled import Once
from publisher.model.entry import RowFields, row_digest
from publisher.model.errors import Unfit
from publisher.model.published import Placement, PublishedJob, UserIdentity
from publisher.model.rates import AppliedBenchmark, Benchmark
from publisher.model.totals import (
    NORMALISED,
    Grouping,
    ascii_key,
    by_preference,
    column,
    counted_host,
)

_Texts = tuple[str, ...]
_REMEMBERED: Final = 20_000
_NO_BENCHMARK: Final = "no benchmark"


class SingleRows:
    """Works out the rows that the server makes of single records."""

    def __init__(self, *, several: bool = False) -> None:
        """`several`: all benchmarks of a job travel, and the server keeps the one it prefers."""
        self._several = several
        self._table = ""  # of the server, where its rows are apart
        # By ids of what rows are made of, which is kept with them, so that ids stay their own.
        self._known: dict[tuple[int | None, ...], tuple[RowFields, object]] = {}
        self._person = Once(self._of_person)
        self._place = Once(self._of_place)
        self._benchmark = Once(self._of_benchmark)

    def of(self, job: PublishedJob) -> RowFields:
        """Return the fields of the job's row (hot path)."""
        run = job.job
        at = id(job.who), id(job.where), id(job.benchmark), run.node_count, run.cpu_count
        known = self._known.get(at)
        if known is not None:
            return known[0]
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        fields = self._fields_of(job)
        self._known[at] = fields, (job.who, job.where, job.benchmark)
        return fields

    def _fields_of(self, job: PublishedJob) -> RowFields:
        site, host, counted, compared_site, compared_host = self._place(job.where)
        person, compared = self._person(job.who)
        kind, others, level, compared_others = self._benchmark(job.benchmark)
        nodes, cores = job.job.node_count or 0, job.job.cpu_count or 0
        counts = f'"NodeCount":"{nodes}","Processors":"{cores}"'
        return RowFields(
            row_digest(
                f"(({compared_site}, {compared}, {compared_host}), {level}, {nodes}, {cores}"
                f"{compared_others})"
            ),
            f"{{{site},{person},{host},{kind},{counts}{others}{counted}}}",
        )

    def _of_person(self, who: UserIdentity) -> _Texts:
        group, role = self._group_and_role(who)
        texts = who.user, who.vo, group, role
        names = "GlobalUserName", "VO", "VOGroup", "VORole"
        named = dict(zip(names, map(ascii_key, texts), strict=True))
        return _members(named), ", ".join(repr(column(text)) for text in texts)

    def _of_place(self, where: Placement) -> _Texts:
        texts = self._host(where), where.infrastructure
        host, infrastructure = map(ascii_key, texts)
        counted = counted_host(where, host)
        return (
            _members({"Site": ascii_key(where.site)}),
            _members({"SubmitHost": host, "InfrastructureType": infrastructure}),
            f",{_members(counted)}" if counted else "",
            repr(column(where.site)),
            ", ".join(repr(column(text)) for text in texts),
        )

    def _of_benchmark(self, applied: AppliedBenchmark) -> _Texts:
        benchmarks = applied.benchmarks
        if self._several:
            benchmarks = by_preference(benchmarks)
        level, *others = self._levels(applied, benchmarks)
        kind, _, value = level.partition(" ")
        of_level = _members({"ServiceLevelType": kind, "ServiceLevel": value})
        named: dict[str, str] = {}
        compared = ""
        if others:
            named["OtherServiceLevels"] = "\n".join(others)
            compared = f", {others!r}"
        if self._table:
            named["Table"] = self._table
            compared += f", {self._table!r}"
        return of_level, f",{_members(named)}" if named else "", repr(level), compared

    def _group_and_role(self, who: UserIdentity) -> tuple[str, str]:
        return who.group, who.role

    def _host(self, where: Placement) -> str:
        return where.submit_host

    def _levels(self, _: AppliedBenchmark, benchmarks: tuple[Benchmark, ...]) -> list[str]:
        """Return benchmarks as text, the one that counts first."""
        return [_level(one) for one in benchmarks[:1]] or [_NO_BENCHMARK]


class SummaryRows(SingleRows):
    """Works out the rows of summaries.

    They are compared as those that the server makes of single records, so that equal ones meet.
    Normalised ones replace no others, and are rows of their own.
    """

    def __init__(self, grouping: Grouping) -> None:
        super().__init__(several=grouping.several)
        self._table = "" if grouping.by_level else NORMALISED

    def _group_and_role(self, who: UserIdentity) -> tuple[str, str]:
        return who.receiver_group, who.receiver_role

    def _host(self, where: Placement) -> str:
        return where.receiver_host

    def _levels(self, applied: AppliedBenchmark, benchmarks: tuple[Benchmark, ...]) -> list[str]:
        """Raises: Unfit without a benchmark."""
        if not benchmarks:
            raise Unfit("benchmark-missing", f"no benchmark: {applied.origin}")
        return [_level(one) for one in (benchmarks if self._several else benchmarks[:1])]


def _level(benchmark: Benchmark) -> str:
    return f"{benchmark.kind} {benchmark.text}"


def _members(named: dict[str, str]) -> str:
    """Return fields as they are within an object of JSON."""
    return json.dumps(named, separators=(",", ":"))[1:-1]
