"""Sums over all jobs, in progress or not, as `stats` shows them: every row counts, whatever it has.

SQLite adds jobs up by person, status and one more name. Of 50,000 jobs, those by queue are rows as

    person status     place in progress  jobs    wall time ... first submitted  last ended
       17  completed      2           0  48123   912345678 ...      1740568080  1740937890
       17  in-progress    2           1     12           0 ...      1740930000           0

A job in two databases counts once: where it is over, else in the one that was named first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from publisher.jobs.filters import Filter, JobFilter
from publisher.jobs.tables.columns import names_of, restored
from publisher.jobs.usage import CORES, JOBS, OVER, PARTIAL, READ_OF, UsageReader
from publisher.model.job import Epoch, JobId, JobRecord, RowRef
from publisher.model.time import Window

RowsWith = Mapping[str, Iterable[RowRef]]
NO_ROWS: Final[RowsWith] = {}
_PAGE_JOBS: Final = 500

LOCAL_NAMES: Final = ("project", "account", "local-user")
"""What the batch system calls who runs a job, for jobs of which no certificate is known."""

# What tells jobs apart beside person and status.
GROUPINGS: Final = {
    "vo": "NULL",
    "user": "NULL",
    "state": "NULL",
    "queue": "place",
    "endpoint": "place",
    "month": "CASE WHEN ended_at > 0 THEN strftime('%Y-%m', ended_at, 'unixepoch') END",
    "project": "projects",
    "account": "account",
    "local-user": "account",
    "fqan": "NULL",
}
# Beyond that the sums might not fit into 64 bits: such a job is a group of its own.
_SUMMED: Final = ("wall_s", "cpu_user_s", "cpu_kernel_s", "stage_in_bytes", "stage_out_bytes")
_PLAIN: Final = " AND ".join(
    (
        *(f"ifnull({name}, 0) < 70368744177664" for name in _SUMMED),
        *("wall_s < 8589934592", f"{CORES} < 131072", "ifnull(gpu_count, 0) < 65536"),
    )
)
_SUMS: Final = ", ".join(
    (
        "count(*)",
        *(f"sum(ifnull({name}, 0))" for name in _SUMMED),
        *(f"sum(wall_s * {CORES})", f"max({CORES})", "sum(ifnull(cpu_count, 0) = 0)"),
        *("sum(flags & 1)", "sum(ifnull(gpu_count, 0) > 0)"),
        *("sum(ifnull(gpu_count, 0) * wall_s)", "max(ifnull(gpu_count, 0))"),
        "min(CASE WHEN submitted_at > 0 THEN submitted_at END)",
        "min(CASE WHEN ended_at > 0 THEN ended_at END)",
        "max(CASE WHEN ended_at > 0 THEN ended_at END)",
    )
)
_STANDING: Final = {JOBS: "FALSE, FALSE", PARTIAL: "is_in_progress, is_unreadable"}


def sums_question(rows: str, by: str, condition: str) -> str:
    """Return the statement that adds up jobs."""
    return f"""
SELECT person, status, {_STANDING[rows]}, {GROUPINGS[by]} AS name, {_SUMS} FROM {rows}
    AND {condition}
GROUP BY 1, 2, 3, 4, 5, CASE WHEN NOT ({_PLAIN}) THEN rowid END"""


class Standing(NamedTuple):
    """What jobs have in common; `name` is what they are apart by. '' is no name."""

    status: str
    user: str
    vo: str
    name: str


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over some jobs. Those in progress have no usage yet; unknown values add nothing."""

    jobs: int = 0
    in_progress: int = 0
    unreadable: int = 0
    wall_s: int = 0
    wall_core_s: int = 0  # wall time x cores; an unknown number of cores counts as one
    cores_unknown: int = 0  # jobs of which nobody knows the number of cores
    cpu_user_s: int = 0
    cpu_kernel_s: int = 0
    stage_in_bytes: int = 0
    stage_out_bytes: int = 0
    cpu_unknown: int = 0  # jobs of which nobody measured the CPU time
    gpu_jobs: int = 0
    gpu_s: int = 0  # wall time x GPUs
    first_submitted_at: Epoch | None = None
    first_ended_at: Epoch | None = None
    last_ended_at: Epoch | None = None

    @property
    def cpu_s(self) -> int:
        return self.cpu_user_s + self.cpu_kernel_s

    def add(self, other: Totals) -> None:
        self.jobs += other.jobs
        self.in_progress += other.in_progress
        self.unreadable += other.unreadable
        self.wall_s += other.wall_s
        self.wall_core_s += other.wall_core_s
        self.cores_unknown += other.cores_unknown
        self.cpu_user_s += other.cpu_user_s
        self.cpu_kernel_s += other.cpu_kernel_s
        self.stage_in_bytes += other.stage_in_bytes
        self.stage_out_bytes += other.stage_out_bytes
        self.cpu_unknown += other.cpu_unknown
        self.gpu_jobs += other.gpu_jobs
        self.gpu_s += other.gpu_s
        self.first_submitted_at = _of_both(min, self.first_submitted_at, other.first_submitted_at)
        self.first_ended_at = _of_both(min, self.first_ended_at, other.first_ended_at)
        self.last_ended_at = _of_both(max, self.last_ended_at, other.last_ended_at)


def _of_both(
    choose: Callable[[Epoch, Epoch], Epoch], one: Epoch | None, other: Epoch | None
) -> Epoch | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


class SumsReader(UsageReader):
    """The store, to be asked for sums over jobs. Runs that their sources no longer have are none.

    `rows` of a question has, by its name, the rows with an attribute that the store does not have.
    Every method raises LedgerError where the store cannot be read.
    """

    def sums(
        self, wanted: JobFilter, by: str, rows: RowsWith = NO_ROWS
    ) -> Iterator[tuple[Standing, Totals]]:
        """Yield sums over the jobs that a filter takes, apart by one of `GROUPINGS`."""
        condition = Filter(self, wanted, rows)
        for of in (JOBS, PARTIAL):
            question = sums_question(of, by, condition.condition)
            for person, status, in_progress, unreadable, name, *sums in self._each(
                question, condition.parameters
            ):
                user, vo, fqans, _ = self._people.values[person]
                (status,) = restored((status,))
                standing = Standing(status, user, vo, "")
                match by:
                    case "vo":
                        text = vo
                    case "user":
                        text = user
                    case "state":
                        text = status
                    case "fqan":
                        text = next(iter(fqans), "")
                    case _:
                        text = self._named(by, name)
                yield standing._replace(name=text), _totals(in_progress, unreadable, sums)

    def _named(self, by: str, name: Any) -> str:
        """Return what a value of the column that tells jobs apart is called."""
        match by:
            case "queue":
                return str(self._places.values[name][2])
            case "endpoint":
                return str(self._places.values[name][0])
            case "account":
                return str(self._accounts.values[name][1])
            case "local-user":
                return str(self._accounts.values[name][0])
            case "project":
                return next(iter(names_of(*restored((name,)))), "")
            case _:
                return name or ""

    def ids(self, wanted: JobFilter, rows: RowsWith = NO_ROWS) -> Iterator[JobId]:
        """Yield the ids of the jobs that a filter takes, while they are read."""
        condition = Filter(self, wanted, rows)
        for of in (JOBS, PARTIAL):
            order = _order(of, wanted.ended)
            question = f"SELECT job_id FROM {of} AND {condition.condition} ORDER BY {order}"
            for row in self._each(question, condition.parameters):
                yield JobId(restored(row)[0])

    def selected(self, wanted: JobFilter, rows: RowsWith = NO_ROWS) -> Iterator[list[JobRecord]]:
        """Yield the jobs that are over and that a filter takes, in pages."""
        condition = Filter(self, wanted, rows)
        page: list[JobRecord] = []
        for of in (JOBS, OVER):
            order = _order(of, wanted.ended)
            question = f"SELECT {READ_OF[of]} FROM {of} AND {condition.condition} ORDER BY {order}"
            for row in self._each(question, condition.parameters):
                page.append(self.job(row))
                if len(page) == _PAGE_JOBS:
                    yield page
                    page = []
        yield page

    def left_out(self, wanted: JobFilter, rows: RowsWith = NO_ROWS) -> Counter[str]:
        """Count the jobs that a filter takes and `selected` does not, by rule; '': in progress."""
        condition = Filter(self, wanted, rows)
        question = f"""SELECT CASE WHEN is_in_progress THEN '' ELSE rule END, count(*)
FROM {PARTIAL} AND (is_in_progress OR rule <> '') AND {condition.condition} GROUP BY 1"""
        return Counter(dict(self._each(question, condition.parameters)))


def _order(rows: str, ended: Window) -> str:
    """Return an order in which an index has them, of the few that are no run as a CE has them."""
    if rows == JOBS:
        return "change" if ended == Window() else "ended_at, change"
    return "source, record_id"


def _totals(in_progress: int, unreadable: int, sums: list[Any]) -> Totals:
    jobs, wall_s, user_s, kernel_s, stage_in, stage_out, core_s, cores, no_cores, *others = sums
    cpu_unknown, gpu_jobs, gpu_s, gpus, first_submitted, first_ended, last_ended = others
    if isinstance(core_s, float):  # beyond 64 bits: one job alone
        core_s = wall_s * cores
    if isinstance(gpu_s, float):  # beyond 64 bits: one job alone
        gpu_s = wall_s * gpus
    unknown_cores = 0 if in_progress else no_cores
    return Totals(
        jobs=jobs,
        in_progress=jobs * in_progress,
        unreadable=jobs * unreadable,
        wall_s=wall_s,
        wall_core_s=core_s,
        cores_unknown=unknown_cores,
        cpu_user_s=user_s,
        cpu_kernel_s=kernel_s,
        stage_in_bytes=stage_in,
        stage_out_bytes=stage_out,
        cpu_unknown=cpu_unknown,
        gpu_jobs=gpu_jobs,
        gpu_s=gpu_s,
        first_submitted_at=first_submitted,
        first_ended_at=first_ended,
        last_ended_at=last_ended,
    )
