"""Jobs of a kind, of which one is read whole and the others give only what is their own (hot path).

A row's kind is what it points to, what stands beside it, and which of its values are known; but for
user and place, which are shared by jobs of many kinds. After some rows of a kind one is the example
of those that follow (`model.job.AlikeJob`). A row with any value that is not as A-REX writes it is
read whole.

What stands beside rows is read as texts first, one for each row and table. Where a row's numbers
and texts were all met before, but for its own values, it is like the row that had them; only what
is left is read as it is stored. Rows with long texts are read whole: they may be of one job alone.

    rows 7, 8 and 9 of AAR, of which 8 has text for a number
        ->   AlikeJob(example, user 1, place, 7, values)
             AlikeJob(example, user 2, place, 9, values); 8 as ever
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from itertools import chain, compress, count, repeat
from operator import itemgetter, not_
from typing import Any, Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import AlikeJob, Epoch, JobPlace, JobRecord, JobUser, SideTable, Transfer
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import (
    MOST_TEXT,
    ReadOptions,
    Row,
    RowOutcomes,
    RowReader,
    SideRows,
    read_sides,
    read_transfers,
)
from publisher.sources.arex.values import hosts_of, is_undecodable, unsigned

# Rows of a kind: to make a template of an example costs as much as some jobs by themselves.
_AFTER: Final = 4
_KINDS: Final = 1_000  # examples of 5 kB each, with what is made of them
_USERS: Final = 4_000  # of 1 kB
_PLACES: Final = 1_000  # with the users no more than `round.rendering.kinds` remembers
_MET: Final = 5_000  # kinds that were met, and rows of 1 kB
_REFUSED: Final = 20_000  # rows that are read whole, as there are too many, before all begins anew
# Columns of AAR in which A-REX always has numbers, and those in which it may have some.
_NUMBERS: Final = itemgetter(0, 3, 4, 5, 6, 8, 11, 12, 17, 18, 19)
_MAYBE: Final = itemgetter(7, 9, 10, 13, 14, 15, 16, 20, 21, 22, 23, 24)
_OF_RUN: Final = itemgetter(1, 2, 12, 17, 18, 19, 11)  # as the first of OWN_VALUES
_POINTERS: Final = itemgetter(*range(3, 11), 13, 14, 24)  # what kind, user and place are made of
_NUMBERED: Final = 11
_NAMED: Final = ("jobname", "clienthost", "nodenames", "nodename")
_FIELDS_NUMBER: Final = itemgetter(0)
_UNNAMED: Final = ("",) * len(_NAMED)
_OF_KIND: Final = itemgetter(3, 8, 9, 13, 14, 24)  # endpoint, status, exit code, nodes, cores, GPUs
_OF_USER: Final = itemgetter(5, 6, 7)
_OF_PLACE: Final = itemgetter(3, 4, 10)
_SIZES: Final = itemgetter(15, 16, 20, 21, 22)
_WHOLE: Final = frozenset({int})
_OR_NULL: Final = frozenset({int, type(None)})
_OWN_KEYS: Final = frozenset({*_NAMED, "localuser", "lrms", "benchmark"})  # no part of the kind
_NEW: Final[Any] = object()
_NO_VALUES: Final[dict[Any, Any]] = {}
Key = tuple[Any, ...]
_Alike = tuple[JobRecord, JobUser, JobPlace]


class _Fields(NamedTuple):
    """Where values stand among those of a job's extra information, for jobs with the same keys."""

    number: int  # that no others have
    size: int  # how many values, with an empty one at the end
    # Name, client, and hosts as both keys have them.
    own: Callable[[Sequence[str]], tuple[str, ...]]
    shared: Callable[[Sequence[str]], Any]


class _FieldsByKeys(dict[str | None, _Fields]):
    """By keys as `sql.extra_texts` joins them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def __missing__(self, keys: str | None) -> _Fields:
        if len(self) >= _MET:
            self.clear()
        fields = self[keys] = _fields(next(self._numbers), keys)
        return fields


class SideTexts(NamedTuple):
    """What stands beside some rows, each row's as one text."""

    finished: set[str]  # RecordIDs
    started: dict[str, str]
    tokens: dict[int, str]
    keys: dict[int, str | None]  # of extra information
    values: dict[int, str]
    environments: dict[int, str]
    transfers: Mapping[int, list[tuple[Any, ...]]]


def read_texts(
    connection: sqlite3.Connection, rows: Sequence[Row], span: bool, asked: ReadOptions
) -> SideTexts | None:
    """As `read_sides`; None where one cannot tell whose a time is. Raises: sqlite3.Error."""
    where = which, parameters = sql.beside([row[0] for row in rows], span=span)

    def ask(question: str) -> list[Row]:
        return connection.execute(question, parameters).fetchall()

    joined = zip(*ask(sql.event_texts(which)), ",,\n", strict=True)
    finished, started, times = (text.split(by) if text is not None else [] for text, by in joined)
    if len(started) != len(times):
        return None
    unnamed = "" if asked.names else sql.UNNAMED
    extra = ask(sql.extra_texts(which + unnamed))
    environments = transfers = _NO_VALUES
    if SideTable.RUNTIME_ENVIRONMENTS in asked.needs:
        environments = dict(ask(sql.environment_texts(which)))
    if SideTable.TRANSFERS in asked.needs:
        transfers = read_transfers(connection, where)
    return SideTexts(
        finished=set(finished),
        started=dict(zip(started, times, strict=True)),
        tokens=dict(ask(sql.token_texts(which))),
        keys={number: keys for number, keys, _ in extra},
        values={number: values for number, _, values in extra},
        environments=environments,
        transfers=transfers,
    )


class AlikeReader(RowReader):
    """A reader of rows that may tell which of them make jobs of a kind."""

    at_once = 250

    def __init__(self, *database: Any, **options: Any) -> None:
        super().__init__(*database, **options)
        # None: rows of this kind, user or place are read whole.
        self._examples: dict[Key, JobRecord | None] = {}
        self._users: dict[Key, JobUser | None] = {}
        self._places: dict[Key, JobPlace | None] = {}
        self._tokens_of_users: dict[Key, Key] = {}  # 1 kB each, and users have several projects
        self._met: dict[int, int] = {}  # how many rows of a kind, by its hash
        self._known: dict[Key, _Alike] = {}  # of the same numbers and texts
        self._texts: dict[str, str] = {}  # those of its keys, each once
        self._fields = _FieldsByKeys()
        self._refused = 0

    def sort_rows(
        self,
        connection: sqlite3.Connection,
        rows: Sequence[Row],
        span: bool,
        asked: ReadOptions,
        verdicts: RowOutcomes,
    ) -> None:
        are_alike = asked.alike and not self.doubtful
        texts = read_texts(connection, rows, span, asked) if are_alike else None
        if texts is None:
            super().sort_rows(connection, rows, span, asked, verdicts)
        elif others := self._sort_known(rows, texts, verdicts):
            left = [row for row, _ in others]
            sides = read_sides(connection, left, span and len(left) == len(rows), asked)
            self.sort_whole(list(self._of_no_kind(others, sides, verdicts)), sides, asked, verdicts)

    def _sort_known(
        self, rows: Sequence[Row], texts: SideTexts, verdicts: RowOutcomes
    ) -> list[tuple[Row, Key | None]]:
        """The rows that are not like any that was met, each with what it would be known by.

        None for one that is not plain.
        """
        columns = list(zip(*rows, strict=True))
        if not self._are_plain(columns, texts):
            half = len(rows) // 2
            if not half:
                return [(rows[0], None)]
            others_before = self._sort_known(rows[:half], texts, verdicts)
            return others_before + self._sort_known(rows[half:], texts, verdicts)
        keys, own = self._read_texts(columns, texts)
        found = list(map(self._known.get, keys))
        others: list[tuple[Row, Key | None]] = []
        if not all(found):
            others.extend(compress(zip(rows, keys, strict=True), map(not_, found)))
        numbers, values_of = compress(columns[0], found), compress(own, found)
        alike = zip(filter(None, found), numbers, values_of, strict=True)
        verdicts.alike.extend([AlikeJob(*shared, row, values) for shared, row, values in alike])
        return others

    def _are_plain(self, columns: Sequence[tuple[Any, ...]], texts: SideTexts) -> bool:
        """Whether rows are complete, with values as A-REX has them: 1 and 1.0 would be one kind."""
        return (
            all(set(map(type, column)) <= _WHOLE for column in _NUMBERS(columns))
            and all(set(map(type, column)) <= _OR_NULL for column in _MAYBE(columns))
            and (self.layout == sql.IMPORTED or texts.finished.issuperset(map(str, columns[0])))
            and _are_in_range(*(columns[at] for at in (1, 2, 11, 12, 17, 18, 19)))
        )

    def _read_texts(
        self, columns: Sequence[tuple[Any, ...]], texts: SideTexts
    ) -> tuple[list[Key], Iterator[tuple[Any, ...]]]:
        """What rows that are plain are known by, and their own values."""
        numbers = columns[0]
        all_fields = list(map(self._fields.__getitem__, map(texts.keys.get, numbers, repeat(""))))
        shared, named = _apart(all_fields, map(texts.values.get, numbers, repeat("")))
        names, clients, *both = map(list, zip(*named, strict=True))
        nodes = [one or other for one, other in zip(*both, strict=True)]
        if "%" in "".join((*names, *clients, *nodes)):
            names, clients, nodes = (list(map(self.text, one)) for one in (names, clients, nodes))
        hosts = [hosts_of(text) if text else () for text in nodes]
        started = self._all_started(columns, texts.started)
        sizes = _all_sizes(columns)
        transfers: list[tuple[Transfer, ...]] = [()] * len(numbers)
        if texts.transfers:
            transfers = self._all_transfers(numbers, texts.transfers)
        maybe = (columns[2], started, *sizes, names, clients, transfers)
        tables = texts.tokens, texts.environments
        beside = (map(table.get, numbers, repeat("")) for table in tables)
        known_by = zip(
            *_POINTERS(columns),
            *(map(_FIELDS_NUMBER, all_fields), shared, *beside, map(len, hosts)),
            *(map(not_, column) for column in maybe),
            strict=True,
        )
        values_of_run = (*_OF_RUN(columns), started, *sizes, names, hosts, clients, transfers)
        return list(known_by), zip(*values_of_run, strict=True)

    def _all_transfers(
        self, numbers: Sequence[int], stored: Mapping[int, list[Row]]
    ) -> list[tuple[Transfer, ...]]:
        return [self.transfers(one) if one else () for one in map(stored.get, numbers)]

    def _all_started(
        self, columns: Sequence[tuple[Any, ...]], events: Mapping[str, str]
    ) -> list[Epoch | None]:
        numbers, ended, wall, began = columns[0], columns[12], columns[17], columns[23]
        times = list(map(events.get, map(str, numbers), repeat("")))
        if began.count(None) < len(began):
            return list(map(self.started_at, began, times, ended, wall))
        return self._clock.epochs(times, ended, wall)

    def _of_no_kind(
        self, others: Sequence[tuple[Row, Key | None]], sides: SideRows, verdicts: RowOutcomes
    ) -> Iterator[Row]:
        """The rows that are not like an example."""
        examples, users, places = self._examples, self._users, self._places
        others = [(row, key if key and not _is_long(key) else None) for row, key in others]
        plain = [row for row, key in others if key is not None]
        read = zip(*self._read(plain, sides), strict=True) if plain else iter(())
        for row, key in others:
            if key is None:
                yield row
                continue
            kind, whose, where, values = next(read)
            # To hash a key is dear: it is looked up once.
            if (example := examples.get(kind, _NEW)) is _NEW:
                example = self._new_example(kind, row, sides)
            if (user := users.get(whose, _NEW)) is _NEW:
                user = self._new_user(whose, row, sides)
            if (place := places.get(where, _NEW)) is _NEW:
                place = self._new_place(where, row, sides)
            if not (example and user and place):
                yield row
                continue
            verdicts.alike.append(AlikeJob(example, user, place, row[0], values))
            self._remember(key, (example, user, place))

    def _remember(self, key: Key, alike: _Alike) -> None:
        """What a row with this key is, where no other row can have it that is not alike."""
        if not _is_clear(key):
            return
        if len(self._known) >= _MET:
            self._forget_rows()
        self._known[tuple(map(self._once, key))] = alike

    def _read(
        self, rows: Sequence[Row], sides: SideRows
    ) -> tuple[Iterator[Key], Iterator[Key], Iterator[Key], Iterator[Key]]:
        """Kind, user, place and own values of rows that are plain."""
        columns = list(zip(*rows, strict=True))
        numbers, ended, wall = columns[0], columns[12], columns[17]
        extra = [sides.extra.get(number, _NO_VALUES) for number in numbers]
        starts = map(sides.started.get, numbers)
        started = list(map(self.started_at, columns[23], starts, ended, wall))
        sizes = _all_sizes(columns)
        hosts = list(map(self._hosts, extra))
        named = [_texts(extra, key) for key in ("jobname", "clienthost")]
        names, clients = (list(map(self.text, texts)) for texts in named)
        transfers = self._all_transfers(numbers, sides.transfers)
        maybe = (columns[2], started, *sizes, names, clients, transfers)
        kinds = zip(
            map(_OF_KIND, rows),
            _beside(numbers, sides.environments),
            map(_of_kind, extra),
            [None if some is None else len(some) for some in hosts],
            map(_are_all_texts, *named),
            zip(*(map(not_, column) for column in maybe), strict=True),
            strict=True,
        )
        tokens, projects = _beside(numbers, sides.tokens), _beside(numbers, sides.projects)
        users = zip(map(_OF_USER, rows), tokens, projects, _texts(extra, "localuser"), strict=True)
        noted = _texts(extra, "lrms"), _texts(extra, "benchmark")
        places = zip(map(_OF_PLACE, rows), *noted, strict=True)
        own = (*_OF_RUN(columns), started, *sizes, names, hosts, clients, transfers)
        return kinds, users, places, zip(*own, strict=True)

    def _hosts(self, extra: Mapping[Any, Any]) -> tuple[str, ...] | None:
        """None for what is no text."""
        stored = extra.get("nodenames") or extra.get("nodename")
        if not stored:
            return ()
        return hosts_of(self.text(stored)) if isinstance(stored, str) else None

    def _new_example(self, kind: Key, row: Row, sides: SideRows) -> JobRecord | None:
        """The row for the first time that it is worth it; None for a kind that makes no jobs."""
        if len(self._met) >= _MET:
            self._met.clear()
        met = self._met[hash(kind)] = self._met.get(hash(kind), 0) + 1
        if met <= _AFTER or self._are_too_many(self._examples, _KINDS):
            return None
        _, environments, extra, hosts, are_texts, _ = kind
        example = None
        if hosts is not None and are_texts and _are_all_texts(*environments, *chain(*extra)):
            example = self._made(row, sides)
        self._examples[kind] = example
        return example

    def _made(self, row: Row, sides: SideRows) -> JobRecord | None:
        if self.names.statuses.get(row[8], "") in ("", "in-progress"):
            return None
        try:
            return self.job(row, sides)
        except Unfit:
            return None

    def _new_user(self, key: Key, row: Row, sides: SideRows) -> JobUser | None:
        if self._are_too_many(self._users, _USERS):
            return None
        pointers, tokens, projects, account = key
        key = pointers, self._tokens_of_users.setdefault(tokens, tokens), projects, account
        user = None
        if _are_all_texts(*chain(*tokens), *projects, account):
            with suppress(KeyError, Unfit):
                user = self.user(row, sides)
        if user is not None and any(map(is_undecodable, (user.user, user.vo, *user.fqans))):
            user = None
        self._users[key] = user
        return user

    def _new_place(self, key: Key, row: Row, sides: SideRows) -> JobPlace | None:
        if self._are_too_many(self._places, _PLACES):
            return None
        place = None
        if _are_all_texts(*key[1:]):
            with suppress(KeyError):
                place = self.place(row, sides)
        if place is not None and is_undecodable(place.endpoint + place.interface):
            place = None
        self._places[key] = place
        return place

    def _are_too_many(self, known: Sized, most: int) -> bool:
        """Whether nothing new is remembered: what comes in turn would push each other out.

        Others may come for good, so all begins anew now and then.
        """
        if len(known) < most:
            return False
        self._refused += 1
        if self._refused < _REFUSED:
            return True
        self._refused = 0
        for each in (self._examples, self._users, self._places, self._tokens_of_users):
            each.clear()
        self._forget_rows()
        return False

    def _forget_rows(self) -> None:
        self._known.clear()
        self._texts.clear()

    def _once(self, part: object) -> object:
        """Part of a key; a text that is in many keys is held once."""
        return self._texts.setdefault(part, part) if isinstance(part, str) else part


def _fields(number: int, keys: str | None) -> _Fields:
    """Of keys with their number in front; no values fit to those that are not clear."""
    length, *names = keys.split("\n") if keys else ("0",)
    if keys is None or int(length) != len(names):
        return _Fields(number, -1, tuple, tuple)
    last = {name: at for at, name in enumerate(names)}
    own = [last.get(name, -1) for name in _NAMED]  # the newest; the empty value is the last
    shared = [at for at, name in enumerate(names) if name not in _NAMED]
    return _Fields(number, len(names) + 1, itemgetter(*own), itemgetter(*shared, -1, -1))


def _apart(
    all_fields: Iterable[_Fields], all_values: Iterable[str]
) -> tuple[list[str | None], list[tuple[str, ...]]]:
    """Of each row's values those that jobs of a kind share, as one text, and those of `_NAMED`."""
    shared: list[str | None] = []
    named: list[tuple[str, ...]] = []
    for (_, size, own, rest), text in zip(all_fields, all_values, strict=True):
        values = text.split("\n")
        if len(values) == size:
            shared.append("\n".join(rest(values)))
            named.append(own(values))
        else:
            shared.append(None)
            named.append(_UNNAMED)
    return shared, named


def _is_clear(key: Key) -> bool:
    """Whether no other texts would make the same key: none looks like what is between them."""
    _, shared, tokens, environments = key[_NUMBERED : _NUMBERED + 4]
    pairs, names = (int(text.partition("\n")[0] or 0) for text in (tokens, environments))
    return (
        shared is not None
        and tokens.count("\n") == tokens.count("\t") == pairs
        and environments.count("\n") == names
    )


def _is_long(key: Key) -> bool:
    """Whether its texts are too long to be remembered."""
    return sum(map(len, filter(None, key[_NUMBERED + 1 : _NUMBERED + 4]))) > MOST_TEXT


def _are_all_texts(*stored: object) -> bool:
    """A number for a text may equal another that reads otherwise."""
    return all(isinstance(one, str) for one in stored)


def _are_in_range(
    job_ids: tuple[str, ...],
    local_ids: tuple[str, ...],
    submitted: Sequence[int],
    ended: Sequence[int],
    *used: Sequence[int],
) -> bool:
    if set(map(type, job_ids + local_ids)) != {str} or not all(job_ids):
        return False
    are_in_range = min(submitted) > 0 and min(ended) > 0 and min(map(min, used)) >= 0
    return are_in_range and "%" not in "".join(job_ids + local_ids)


def _beside(numbers: Sequence[int], table: Mapping[int, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """What stands beside each row in a table."""
    return [tuple(table.get(number, ())) for number in numbers]


def _texts(extra: Iterable[dict[Any, Any]], key: str) -> list[Any]:
    return [each.get(key, "") for each in extra]


def _of_kind(extra: dict[Any, Any]) -> tuple[tuple[Any, Any], ...]:
    return tuple([pair for pair in extra.items() if pair[0] not in _OWN_KEYS])


def _all_sizes(columns: Sequence[tuple[Any, ...]]) -> list[list[int | None]]:
    memory, virtual, *others = map(_sizes, _SIZES(columns))
    # 0 is what A-REX writes where the batch system told nothing.
    return [[size or None for size in memory], [size or None for size in virtual], *others]


def _sizes(stored: Iterable[int | None]) -> list[int | None]:
    return [size if size is None or size >= 0 else unsigned(size) for size in stored]
