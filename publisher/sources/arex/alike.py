"""Jobs of a kind, of which one is read whole and the others give only what is their own (hot path).

A row's kind is what it points to, what stands beside it, and which of its values are known; but for user and place, which are
shared by jobs of many kinds. After some rows of a kind one is the example of those that follow (`model.job.AlikeJob`). A row
with any value that is not as A-REX writes it is read whole.

    rows 7, 8 and 9 of AAR, of which 8 has text for a number
        ->   AlikeJob(example, user 1, place, 7, values), AlikeJob(example, user 2, place, 9, values); 8 as ever
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter, not_
from typing import Any, Final, TypeVar

from publisher.model.errors import Unfit
from publisher.model.job import AlikeJob, JobPlace, JobRecord, JobUser
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import ReadOptions, Row, RowOutcomes, RowReader, SideRows
from publisher.sources.arex.values import hosts_of, is_undecodable, unsigned

_AFTER: Final = 4  # rows of a kind: to make a template of an example costs as much as some jobs by themselves
_KINDS: Final = 1_000  # examples of 5 kB each, with what is made of them
_MET: Final = 5_000  # kinds that were met, and users and places, of 1 kB
_NUMBERS: Final = itemgetter(0, 3, 4, 5, 6, 8, 11, 12, 17, 18, 19)  # columns of AAR in which A-REX always has some
_MAYBE: Final = itemgetter(7, 9, 10, 13, 14, 15, 16, 20, 21, 22, 23, 24)
_OF_KIND: Final = itemgetter(3, 8, 9, 13, 14, 24)  # endpoint, status, exit code, nodes, cores and GPUs
_OF_USER: Final = itemgetter(5, 6, 7)
_OF_PLACE: Final = itemgetter(3, 4, 10)
_SIZES: Final = itemgetter(15, 16, 20, 21, 22)
_WHOLE: Final = frozenset({int})
_OR_NULL: Final = frozenset({int, type(None)})
# Of extra information, what is no part of the kind.
_OWN_KEYS: Final = frozenset({"jobname", "clienthost", "nodenames", "nodename", "localuser", "lrms", "benchmark"})
_NEW: Final[Any] = object()
_NO_VALUES: Final[dict[Any, Any]] = {}
_K = TypeVar("_K")
_T = TypeVar("_T")
Key = tuple[Any, ...]


class AlikeReader(RowReader):
    """A reader of rows that may tell which of them make jobs of a kind."""

    def __init__(self, *database: Any, **options: Any) -> None:
        super().__init__(*database, **options)
        # None: rows of this kind, user or place are read whole.
        self._examples: dict[Key, JobRecord | None] = {}
        self._users: dict[Key, JobUser | None] = {}
        self._places: dict[Key, JobPlace | None] = {}
        self._tokens_of_users: dict[Key, Key] = {}  # 1 kB each, and users have several projects
        self._met: dict[int, int] = {}  # how many rows of a kind, by its hash

    def sort_rows(self, rows: Sequence[Row], sides: SideRows, asked: ReadOptions, verdicts: RowOutcomes) -> None:
        if asked.alike and not self.doubtful:
            rows = list(self._others(rows, sides, verdicts))
        super().sort_rows(rows, sides, asked, verdicts)

    def _others(self, rows: Sequence[Row], sides: SideRows, verdicts: RowOutcomes) -> Iterator[Row]:
        """The rows that are not like an example."""
        columns = list(zip(*rows, strict=True))
        if self._are_plain(columns, sides):
            yield from self._of_no_kind(rows, columns, sides, verdicts)
        elif len(rows) == 1:
            yield rows[0]
        else:
            for row in rows:
                yield from self._others([row], sides, verdicts)

    def _of_no_kind(
        self, rows: Sequence[Row], columns: Sequence[tuple[Any, ...]], sides: SideRows, verdicts: RowOutcomes
    ) -> Iterator[Row]:
        """Those of rows that are plain."""
        examples, users, places = self._examples, self._users, self._places
        for row, kind, whose, where, values in zip(rows, *self._read(rows, columns, sides), strict=True):
            # To hash a key is dear: it is looked up once.
            if (example := examples.get(kind, _NEW)) is _NEW:
                example = self._new_example(kind, row, sides)
            if (user := users.get(whose, _NEW)) is _NEW:
                user = self._new_user(whose, row, sides)
            if (place := places.get(where, _NEW)) is _NEW:
                place = self._new_place(where, row, sides)
            if example and user and place:
                verdicts.alike.append(AlikeJob(example, user, place, row[0], values))
            else:
                yield row

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
    ) -> tuple[Iterator[Key], Iterator[Key], Iterator[Key], Iterator[Key]]:
        """Kind, user, place and own values of rows that are plain."""
        numbers, job_ids, local_ids, ended, wall = columns[0], columns[1], columns[2], columns[12], columns[17]
        extra = [sides.extra.get(number, _NO_VALUES) for number in numbers]
        started = list(map(self.started_at, columns[23], map(sides.started.get, numbers), ended, wall))
        sizes = _all_sizes(columns)
        hosts = list(map(_plain_hosts, extra))
        names, clients = _texts(extra, "jobname"), _texts(extra, "clienthost")
        transfers = [self.transfers(one) if one else () for one in map(sides.transfers.get, numbers)]
        own = zip(
            *(job_ids, local_ids, ended, wall, columns[18], columns[19], columns[11], started),
            *(*sizes, names, hosts, clients, transfers),
            strict=True,
        )
        maybe = (local_ids, started, *sizes, names, clients, transfers)
        kinds = zip(
            map(_OF_KIND, rows),
            _beside(numbers, sides.environments),
            map(_of_kind, extra),
            map(_shared_hosts, hosts),
            map(_are_texts, names, clients),
            zip(*(map(not_, column) for column in maybe), strict=True),
            strict=True,
        )
        tokens, projects = _beside(numbers, sides.tokens), _beside(numbers, sides.projects)
        users = zip(map(_OF_USER, rows), tokens, projects, _texts(extra, "localuser"), strict=True)
        places = zip(map(_OF_PLACE, rows), _texts(extra, "lrms"), _texts(extra, "benchmark"), strict=True)
        return kinds, users, places, own

    def _new_example(self, kind: Key, row: Row, sides: SideRows) -> JobRecord | None:
        """The row for the first time that it is worth it; None for a kind that makes no jobs."""
        met = _keep(self._met, hash(kind), self._met.get(hash(kind), 0) + 1, _MET)
        if met <= _AFTER:
            return None
        _, environments, extra, hosts, are_texts, _ = kind
        example = None
        if hosts is not None and are_texts and _are_all_texts(*environments, *chain(*extra)):
            example = self._made(row, sides)
        return _keep(self._examples, kind, example, _KINDS)

    def _made(self, row: Row, sides: SideRows) -> JobRecord | None:
        if self.names.statuses.get(row[8], "") in ("", "in-progress"):
            return None
        try:
            return self.job(row, sides)
        except Unfit:
            return None

    def _new_user(self, key: Key, row: Row, sides: SideRows) -> JobUser | None:
        pointers, tokens, projects, account = key
        key = pointers, self._tokens_of_users.setdefault(tokens, tokens), projects, account
        user = None
        if _are_all_texts(*chain(*tokens), *projects, account):
            with suppress(KeyError, Unfit):
                user = self.user(row, sides)
        if user is not None and any(map(is_undecodable, (user.user, user.vo, *user.fqans))):
            user = None
        if len(self._users) >= _MET:
            self._tokens_of_users.clear()
        return _keep(self._users, key, user, _MET)

    def _new_place(self, key: Key, row: Row, sides: SideRows) -> JobPlace | None:
        place = None
        if _are_all_texts(*key[1:]):
            with suppress(KeyError):
                place = self.place(row, sides)
        if place is not None and (is_undecodable(place.endpoint) or is_undecodable(place.interface)):
            place = None
        return _keep(self._places, key, place, _MET)


def _keep(known: dict[_K, _T], key: _K, value: _T, most: int) -> _T:
    if len(known) >= most:
        known.clear()
    known[key] = value
    return value


def _are_all_texts(*stored: object) -> bool:
    """A number for a text may equal another that reads otherwise."""
    return all(isinstance(one, str) for one in stored)


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


def _beside(numbers: Sequence[int], table: Mapping[int, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """What stands beside each row in a table."""
    return [tuple(table.get(number, ())) for number in numbers]


def _are_texts(*texts: object) -> bool:
    """Whether they need no unescaping."""
    return all(isinstance(text, str) and "%" not in text for text in texts)


def _texts(extra: Iterable[dict[Any, Any]], key: str) -> list[Any]:
    return [each.get(key, "") for each in extra]


def _of_kind(extra: dict[Any, Any]) -> tuple[tuple[Any, Any], ...]:
    return tuple([pair for pair in extra.items() if pair[0] not in _OWN_KEYS])


def _plain_hosts(extra: dict[Any, Any]) -> tuple[str, ...] | None:
    text = extra.get("nodenames") or extra.get("nodename")
    if not text:
        return ()
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
