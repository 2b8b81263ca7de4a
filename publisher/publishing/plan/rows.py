"""What becomes of the rows of totals that runs come to, leave, or change in.

Runs that come to a row are added to what it has; months are never counted anew. A row that loses
its last run stays at the receiver: where it takes zeros, and the run's own data moved it, zeros go
out; otherwise the runs stay where they count until somebody agrees. To hold runs may empty the rows
that they would have come to, so this goes on until nothing changes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Generic, NamedTuple, TypeVar

from publisher.formats import receiver_of
from publisher.model.entry import Entry, Recorded, RowId, RowTotal, Usage
from publisher.model.job import Epoch
from publisher.model.totals import (
    GroupedRows,
    GroupKey,
    KeyTotal,
    group_key,
    group_of,
    grouping_of,
    groups_of,
    has_benchmark,
    row_for_people,
)
from publisher.publishing.plan.actions import EXAMPLES, Action, ActionCounts, Example
from publisher.publishing.plan.reasons import ADD, RETRACT

_AFTER_ALL_ENDS = Epoch(2**63)


class Delta(NamedTuple):
    """What runs add to a row, less what they take away, and the ends of those that come."""

    usage: Usage = Usage()
    first_end: Epoch = _AFTER_ALL_ENDS
    last_end: Epoch = Epoch(0)

    def plus(self, other: "Delta") -> "Delta":
        first, last = min(self.first_end, other.first_end), max(self.last_end, other.last_end)
        return Delta(self.usage.plus(other.usage), first, last)


class Move(NamedTuple):
    """From which row runs go, and to which (None: they count no more there).

    `by_settings`: their old entry was made under other settings, or they are not wanted any more.
    `action`: what is done about them.
    """

    old: RowId
    new: RowId | None
    by_settings: bool
    action: Action = RETRACT

    @property
    def month(self) -> int:
        """The month in which people look for the runs."""
        return self.old.month if self.new is None else self.new.month


class Moved(NamedTuple):
    """What runs took away from their old row, and bring to the new one; some of the jobs."""

    old: Usage = Usage()
    new: Delta = Delta()
    jobs: tuple[str, ...] = ()


class RowChanges:
    """All changes of rows that one planning run makes; memory grows with rows, not with runs."""

    def __init__(self) -> None:
        self._added: dict[RowId, Delta] = {}
        self._moved: defaultdict[Move, Moved] = defaultdict(Moved)
        self._first: defaultdict[int, list[tuple[RowId, str]]] = defaultdict(list)  # by month

    def add(
        self,
        entry: Entry,
        old: Recorded | None,
        settings: str,
        action: Action = ADD,
        job: str = "",
    ) -> None:
        """Take the entry of a run, in the place of the recorded one; `job`: its id, to show it."""
        end, row = entry.record.ended_at, entry.row.id
        new = Delta(Usage(entry.jobs, entry.wall_s, entry.cpu_s), end, end)
        if old is None:
            was = self._added.get(row)
            self._added[row] = new if was is None else was.plus(new)
            if len(first := self._first[row.month]) < EXAMPLES:
                first.append((row, job))
            return
        to = row if entry.jobs else None
        move = Move(old.row, to, old.settings != settings or to is None, action)
        known = self._moved[move]
        jobs = known.jobs
        if len(jobs) < EXAMPLES:
            jobs = *jobs, job
        self._moved[move] = Moved(known.old.plus(old.usage), known.new.plus(new), jobs)

    def hold(self, leaving: Collection[RowId], entering: Collection[RowId] = ()) -> None:
        """Take back runs that leave some rows, or that come to others."""
        for row in entering:
            self._added.pop(row, None)
        held = [one for one in self._moved if one.old in leaving or one.new in entering]
        for move in held:
            del self._moved[move]

    def count(self, counts: ActionCounts, held: Action | None = None) -> None:
        """Add up what is done about the runs, and how many rows they come to or leave.

        `held`: all of them are held back, for this reason.
        """
        self._count_added(counts, held or ADD)
        touched: defaultdict[tuple[int, Action], set[RowId]] = defaultdict(set)
        for move, moved in self._moved.items():
            at = move.month, held or move.action
            counts.add(*at, jobs=moved.old.jobs, examples=map(Example, moved.jobs))
            touched[at] |= {move.old, move.new or move.old}
        for at, of_month in touched.items():
            counts.add(*at, rows=len(of_month))

    def _count_added(self, counts: ActionCounts, action: Action) -> None:
        for row, delta in self._added.items():
            counts.add(row.month, action, jobs=delta.usage.jobs, rows=1)
        for month, first in self._first.items():
            examples = [Example(job) for row, job in first if row in self._added]
            if examples:
                counts.add(month, action, examples=examples)

    @property
    def moves(self) -> Mapping[Move, Moved]:
        return self._moved

    def taken(self) -> Counter[RowId]:
        """Return how many runs leave or change in each row."""
        found: Counter[RowId] = Counter()
        for move, moved in self._moved.items():
            found[move.old] += moved.old.jobs
        return found

    def months(self) -> list[int]:
        """Return the months of all rows that change, in order."""
        return sorted({row.month for row in self.deltas()})

    def moving_months(self) -> set[int]:
        """Return the months in which runs leave their rows."""
        moves = [(move.old, move.new) for move in self._moved if move.old != move.new]
        return {row.month for rows in moves for row in rows if row is not None}

    def left(self, month: int) -> set[RowId]:
        """Return the rows of a month that runs leave, or in which they change."""
        return {move.old for move in self._moved if move.old.month == month}

    def deltas(self, month: int | None = None) -> dict[RowId, Delta]:
        """Return how each row changes, of one month or of all."""
        found: defaultdict[RowId, Delta] = defaultdict(Delta)
        for row, delta in self._added.items():
            if month in (None, row.month):
                found[row] = found[row].plus(delta)
        for move, moved in self._moved.items():
            if move.new is not None and month in (None, move.new.month):
                found[move.new] = found[move.new].plus(moved.new)
            if month in (None, move.old.month):
                found[move.old] = found[move.old].plus(Delta(Usage().less(moved.old)))
        return found


Key = TypeVar("Key", bound=Hashable)


class EmptiedRows(NamedTuple, Generic[Key]):
    """Rows that lose their last runs: by changes of the runs' own data alone, and by settings."""

    by_data: frozenset[Key]
    by_settings: frozenset[Key]


def rows_emptied(
    changes: RowChanges, counts: Mapping[RowId, Usage], key_of: Callable[[RowId], Key]
) -> EmptiedRows[Key]:
    """Return the receiver's rows (`key_of`) that are left without a run, though runs counted there.

    `counts`: what counts now in each row of the months in which runs leave their rows.
    """
    had: defaultdict[Key, int] = defaultdict(int)
    for row, usage in counts.items():
        had[key_of(row)] += usage.jobs
    left = dict(had)
    for row, delta in changes.deltas().items():
        if row in counts:
            left[key_of(row)] += delta.usage.jobs
    empty = {key for key, jobs in left.items() if jobs == 0 and had[key]}
    moved = {key_of(move.old) for move in changes.moves if move.by_settings and move.old in counts}
    return EmptiedRows(frozenset(empty - moved), frozenset(empty & moved))


class HeldRows(NamedTuple, Generic[Key]):
    """What is held back: the receiver's rows, ours of them, and the runs that would leave these."""

    keys: list[Key]
    rows: frozenset[RowId]
    moves: Mapping[Move, Moved]


def retracted(moves: Mapping[Move, Moved], key_of: Callable[[RowId], Key]) -> Counter[Key]:
    """Return how many runs would count no more, by the receiver's row that they leave."""
    found: Counter[Key] = Counter()
    for move, moved in moves.items():
        if move.new is None:
            found[key_of(move.old)] += moved.old.jobs
    return found


def hold_back(
    changes: RowChanges,
    counts: Mapping[RowId, Usage],
    key_of: Callable[[RowId], Key],
    takes_zeros: Callable[[Key], bool],
    is_accepted: Callable[[Key], bool],
) -> HeldRows[Key]:
    """Hold the runs whose rows would be emptied without consent; return what was held."""
    keys: list[Key] = []
    moves: dict[Move, Moved] = {}
    while True:
        emptied = rows_emptied(changes, counts, key_of)
        stay = emptied.by_settings | {key for key in emptied.by_data if not takes_zeros(key)}
        found = {key for key in stay if not is_accepted(key)}
        if not found:
            held = frozenset(row for row in counts if key_of(row) in keys)
            return HeldRows(keys, held, moves)
        keys += sorted(found, key=repr)
        rows = {row for row in counts if key_of(row) in found}
        moves |= {move: moved for move, moved in changes.moves.items() if move.old in rows}
        changes.hold(rows)


class _Bundles:
    """Numbers that belong together, each known by the first of them."""

    def __init__(self, things: Iterable[int]) -> None:
        self._first = {thing: thing for thing in things}

    def __contains__(self, thing: object) -> bool:
        return thing in self._first

    def first(self, thing: int) -> int:
        while self._first[thing] != thing:
            self._first[thing] = self._first[self._first[thing]]
            thing = self._first[thing]
        return thing

    def join(self, one: int, other: int) -> None:
        firsts = self.first(one), self.first(other)
        self._first[max(firsts)] = min(firsts)


def bundled(
    groups: Sequence[GroupedRows], moves: Iterable[Move]
) -> Iterator[tuple[int, GroupedRows]]:
    """Yield groups in their order, each followed by those that share runs with it.

    Each comes with the place of the first of these, which is the same for all of a bundle.
    """
    at = {row.key.id: place for place, one in enumerate(groups) for row in one.rows}
    bundles = _Bundles(range(len(groups)))
    for move in moves:
        if move.new is not None and move.old in at and move.new in at:
            bundles.join(at[move.old], at[move.new])
    for place in sorted(range(len(groups)), key=bundles.first):
        yield bundles.first(place), groups[place]


def months_together(months: Iterable[int], moves: Iterable[Move]) -> list[list[int]]:
    """Return months in order, those between which runs move together."""
    bundles = _Bundles(months)
    for move in moves:
        if move.new is not None and move.old.month in bundles and move.new.month in bundles:
            bundles.join(move.old.month, move.new.month)
    of_first: dict[int, list[int]] = {}
    for month in sorted(months):
        of_first.setdefault(bundles.first(month), []).append(month)
    return list(of_first.values())


def staying(rows: Iterable[RowTotal], taken: Mapping[RowId, int]) -> int:
    """Return how many jobs count in rows beside those that are `taken` out of them."""
    return sum(row.counts.jobs - taken.get(row.key.id, 0) for row in rows)


class KnownRows:
    """The rows of some months, by the receiver's keys."""

    def __init__(self, rows: Iterable[RowTotal]) -> None:
        self._rows = {row.key.id: row for row in rows}
        self._keys = {at: _key_of(row) for at, row in self._rows.items()}

        self._of_key: defaultdict[GroupKey, list[RowTotal]] = defaultdict(list)
        for at, row in self._rows.items():
            self._of_key[self._keys[at]].append(row)

    @property
    def counts(self) -> Mapping[RowId, Usage]:
        return {at: row.counts for at, row in self._rows.items()}

    def key_of(self, row: RowId) -> GroupKey:
        return self._keys[row]

    def text_of(self, row: RowId) -> str:
        """Return the key of a row as people read it."""
        return row_for_people(self._rows[row], by_level=True).key.text

    def of_key(self, key: GroupKey) -> Sequence[RowTotal]:
        """Return the rows with a key."""
        return self._of_key[key]

    def for_people(self, key: GroupKey) -> KeyTotal:
        """Return the rows with a key as people read them."""
        rows = self._of_key[key]
        if not has_benchmark(rows[0]):
            return row_for_people(rows[0], by_level=True)
        grouping = grouping_of(rows[0])
        (grouped,) = groups_of(grouping, rows)
        return grouped.group.row(by_level=grouping.by_level)


def _key_of(row: RowTotal) -> GroupKey:
    """Return the receiver's key of a row; of a row that no summary could say, its fields."""
    if not has_benchmark(row):
        return row.key.month, (row.key.fields.text,), "", Decimal(0), 0, 0
    return group_key(grouping_of(row), group_of(row))


def rows_for_people(rows: Iterable[RowTotal], form: str = "") -> tuple[KeyTotal, ...]:
    """Return what counts in rows of a format ('': of single records), as people read it."""
    by_level = not form or receiver_of(form).keeps_benchmark_values
    return tuple(row_for_people(row, by_level=by_level) for row in rows if row.counts.jobs)


def changed_row(
    row: RowTotal, delta: Delta | None, ends: Callable[[RowId], tuple[Epoch, Epoch]] | None
) -> RowTotal:
    """Return a row with what a round brings and takes away.

    `ends`: finds the first and the last end of a row that runs leave, None for others.
    """
    if delta is None:
        return row
    counts, first, last = row.counts.plus(delta.usage), delta.first_end, delta.last_end
    if ends is not None and counts.jobs:
        first, last = ends(row.key.id)
    elif row.counts.jobs:
        first, last = min(row.first_end, first), max(row.last_end, last)
    return row._replace(counts=counts, first_end=first, last_end=last)
