"""Jobs of a kind, of which one is read whole and the others give only what is their own (hot path).

A row's kind is what it points to, what stands beside it, and which of its values are known. After some rows of a kind one is
the example of those that follow (`model.job.AlikeJob`). A row with any value that is not as A-REX writes it is read whole.

    rows 7, 8 and 9 of AAR, of which 8 has text for a number   ->   (example, 7, values), (example, 9, values); 8 as ever
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter, not_
from typing import Any, Final

from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import ReadOptions, Row, RowOutcomes, RowReader, SideRows
from publisher.sources.arex.values import hosts_of, unsigned

_AFTER: Final = 16  # rows of a kind: to make a template of an example costs as much as some jobs by themselves
_EXAMPLES: Final = 800  # 5 kB each, with what is made of them
_REMEMBERED: Final = 10_000  # kinds that were met
_IN_VAIN: Final = 50_000  # rows without an example while there is no room: then other kinds are usual
_NUMBERS: Final = itemgetter(0, 3, 4, 5, 6, 8, 11, 12, 17, 18, 19)  # columns of AAR in which A-REX always has some
_MAYBE: Final = itemgetter(7, 9, 10, 13, 14, 15, 16, 20, 21, 22, 23, 24)
_POINTERS: Final = itemgetter(3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 24)  # with exit code, nodes, cores and GPUs
_SIZES: Final = itemgetter(15, 16, 20, 21, 22)
_WHOLE: Final = frozenset({int})
_OR_NULL: Final = frozenset({int, type(None)})
_OWN_KEYS: Final = frozenset({"jobname", "clienthost", "nodenames", "nodename"})  # of extra information
_NO_VALUES: Final[dict[Any, Any]] = {}
Kind = tuple[Any, ...]


class AlikeReader(RowReader):
    """A reader of rows that may tell which of them make jobs of a kind."""

    def __init__(self, *database: Any, **options: Any) -> None:
        super().__init__(*database, **options)
        self._examples: dict[Kind, JobRecord | None] = {}  # None: the kind has none
        self._shared: dict[Any, Any] = {}  # what is in many kinds
        self._met: dict[int, int] = {}  # how many rows of a kind, by its hash
        self._in_vain = 0

    def sort_rows(self, rows: Sequence[Row], sides: SideRows, asked: ReadOptions, verdicts: RowOutcomes) -> None:
        if asked.alike and not self.doubtful:
            rows = list(self._others(rows, sides, verdicts))
        super().sort_rows(rows, sides, asked, verdicts)

    def _others(self, rows: Sequence[Row], sides: SideRows, verdicts: RowOutcomes) -> Iterator[Row]:
        """The rows that are not like an example."""
        columns = list(zip(*rows, strict=True))
        if not self._are_plain(columns, sides):
            for row in rows if len(rows) > 1 else ():
                yield from self._others([row], sides, verdicts)
            if len(rows) == 1:
                yield rows[0]
            return
        known = self._examples
        for row, (kind, values) in zip(rows, self._read(rows, columns, sides), strict=True):
            example = known.get(kind) or self._new_example(kind, row, sides)
            if example is None:
                yield row
            else:
                verdicts.alike.append((example, row[0], values))

    def _are_plain(self, columns: Sequence[tuple[Any, ...]], sides: SideRows) -> bool:
        """Whether rows are complete, and their values as A-REX writes them: 1 and 1.0 would be one kind."""
        return (
            all(set(map(type, column)) <= _WHOLE for column in _NUMBERS(columns))
            and all(set(map(type, column)) <= _OR_NULL for column in _MAYBE(columns))
            and (self.layout == sql.IMPORTED or sides.finished.issuperset(columns[0]))
            and _are_in_range(*(columns[at] for at in (1, 2, 11, 12, 17, 18, 19)))
        )

    def _read(
        self, rows: Sequence[Row], columns: Sequence[tuple[Any, ...]], sides: SideRows
    ) -> Iterator[tuple[Kind, tuple[Any, ...]]]:
        """Kind and own values of rows that are plain."""
        numbers, job_ids, local_ids, ended, wall = columns[0], columns[1], columns[2], columns[12], columns[17]
        gets = [sides.extra.get(number, _NO_VALUES).get for number in numbers]
        started = list(map(self.started_at, columns[23], map(sides.started.get, numbers), ended, wall))
        sizes = _all_sizes(columns)
        hosts = [_plain_hosts(get("nodenames") or get("nodename") or "") for get in gets]
        names, clients = ([get(key, "") for get in gets] for key in ("jobname", "clienthost"))
        transfers = [self.transfers(one) if one else () for one in map(sides.transfers.get, numbers)]
        own = zip(
            *(job_ids, local_ids, ended, wall, columns[18], columns[19], columns[11], started),
            *(*sizes, names, hosts, clients, transfers),
            strict=True,
        )
        maybe = (local_ids, started, *sizes, names, clients, transfers)
        kinds = zip(
            map(_POINTERS, rows),
            zip(*_beside(numbers, sides), strict=True),
            map(_shared_hosts, hosts),
            map(_are_texts, names, clients),
            zip(*(map(not_, column) for column in maybe), strict=True),
            strict=True,
        )
        return zip(kinds, own, strict=True)

    def _new_example(self, kind: Kind, row: Row, sides: SideRows) -> JobRecord | None:
        """The row for the first time that it is worth it."""
        met = self._met[hash(kind)] = self._met.get(hash(kind), 0) + 1
        if len(self._met) > _REMEMBERED:
            self._met.clear()
        if met <= _AFTER or kind in self._examples:
            return None
        if len(self._examples) >= _EXAMPLES:
            self._in_vain += 1
            if self._in_vain < _IN_VAIN:
                return None
            self._in_vain = 0
            self._examples.clear()
            self._shared.clear()
        pointers, beside, *rest = kind
        shared = self._shared.setdefault
        made = self._made(kind, row, sides)
        self._examples[(pointers, tuple(shared(one, one) for one in beside), *rest)] = made
        return made

    def _made(self, kind: Kind, row: Row, sides: SideRows) -> JobRecord | None:
        """None for a kind that makes no jobs, or with a number for a text: it may equal another that reads otherwise."""
        _, (tokens, projects, environments, extra), hosts, are_texts, _ = kind
        beside = chain(*tokens, *extra, projects, environments)
        if hosts is None or not are_texts or any(text.__class__ is not str for text in beside):
            return None
        if self.names.statuses.get(row[8], "") in ("", "in-progress"):
            return None
        try:
            return self.job(row, sides)
        except Unfit:
            return None


_ONE_HOST: Final = ("",)


def _are_in_range(
    job_ids: tuple[str, ...],
    local_ids: tuple[str, ...],
    submitted: Sequence[int],
    ended: Sequence[int],
    *used: Sequence[int],
) -> bool:
    return (
        set(map(type, job_ids + local_ids)) == {str}
        and all(job_ids)
        and "%" not in "".join(job_ids + local_ids)
        and (min(submitted) > 0 and min(ended) > 0 and min(map(min, used)) >= 0)
    )


def _beside(numbers: Sequence[int], sides: SideRows) -> Iterator[Iterable[Any]]:
    """What stands beside each row and is nothing of its own, in columns."""
    tables: tuple[Mapping[int, Sequence[Any]], ...] = sides.tokens, sides.projects, sides.environments
    for table in tables:
        yield [tuple(table.get(number, ())) for number in numbers]
    extra = [sides.extra.get(number, _NO_VALUES).items() for number in numbers]
    yield [tuple([pair for pair in pairs if pair[0] not in _OWN_KEYS]) for pairs in extra]


def _are_texts(*texts: object) -> bool:
    """Whether they need no unescaping."""
    return all(isinstance(text, str) and "%" not in text for text in texts)


def _plain_hosts(text: object) -> tuple[str, ...] | None:
    return hosts_of(text) if isinstance(text, str) and "%" not in text else None


def _shared_hosts(hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What jobs of a kind have in common: one is a job's own."""
    return _ONE_HOST if hosts is not None and len(hosts) == 1 else hosts


def _all_sizes(columns: Sequence[tuple[Any, ...]]) -> list[list[int | None]]:
    sizes = list(map(_sizes, _SIZES(columns)))
    for memory in sizes[:2]:
        memory[:] = [size or None for size in memory]  # 0 is what A-REX writes where the batch system told nothing
    return sizes


def _sizes(stored: Iterable[int | None]) -> list[int | None]:
    return [size if size is None or size >= 0 else unsigned(size) for size in stored]
