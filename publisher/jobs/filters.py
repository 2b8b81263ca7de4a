"""Which jobs a local question is about, as a condition of SQL.

What many jobs share is compared once for each distinct person, account, place and benchmark, not
for each job: `vos={"atlas"}` becomes `person IN (the numbers of all persons of atlas)`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from publisher.jobs.reader import StoreReader, bounds
from publisher.jobs.tables.columns import ACCOUNT, BENCHMARK, PERSON, PLACE, Row, names_text, stored
from publisher.model.job import RowRef
from publisher.model.text import arex_unescape
from publisher.model.time import Window

Names = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs count: by any of the values of a field, and by all fields; empty, every job.

    A window with a bound takes no job that lacks the time. `extras` are attributes by name (`rte`,
    `vomsfqan`, ...), with the values of which a job must have one. Names may be spelled as A-REX
    stores them.
    """

    ended: Window = Window()
    submitted: Window = Window()
    vos: Names = frozenset()
    users: Names = frozenset()
    states: Names = frozenset()
    queues: Names = frozenset()
    interfaces: Names = frozenset()
    gpus: bool = False  # only jobs that had some
    extras: Mapping[str, Names] = field(default_factory=dict)


_TABLES: Final = {
    "person": (f"SELECT id, {', '.join(PERSON)} FROM person", PERSON),
    "account": (f"SELECT id, {', '.join(ACCOUNT)} FROM account", ACCOUNT),
    "place": (f"SELECT id, {', '.join(PLACE)} FROM place", PLACE),
    "benchmark": ("SELECT id, value FROM benchmark", BENCHMARK),
}
# Attributes of A-REX that are columns of a job.
_COLUMNS: Final = {
    "jobname": "job_name",
    "clienthost": "client_host",
    "wninstance": "wn_instance",
}
_NODES: Final = frozenset({"nodename", "nodenames"})
_PROJECTS: Final = frozenset({"project", "projectname"})
_FQANS: Final = frozenset({"mainfqan", "vomsfqan"})
_KNOWN: Final = frozenset(
    {*_COLUMNS, *_NODES, *_PROJECTS, *_FQANS, "lrms", "localuser", "benchmark"}
)
_OF_SEVERAL: Final = """(substr(projects, 1, 1) = '[' AND EXISTS (
    SELECT 1 FROM json_each(projects) WHERE value IN ({})))"""


def is_known(attribute: str) -> bool:
    """Return whether the store has an attribute; others may be in the CE's database alone."""
    return attribute in _KNOWN


class Filter:
    """A `JobFilter` as a condition over `job` or `partial`.

    `rows` has, by its name, the rows with an attribute that only the CE's database has.
    """

    def __init__(
        self, jobs: StoreReader, wanted: JobFilter, rows: Mapping[str, Iterable[RowRef]]
    ) -> None:
        self._jobs = jobs
        self._terms: list[str] = []
        self.parameters: dict[str, Any] = {}
        self._window("ended_at", wanted.ended)
        self._window("submitted_at", wanted.submitted)
        for table, place, names in (
            ("person", 0, wanted.users),
            ("person", 1, wanted.vos),
            ("place", 0, wanted.interfaces),
            ("place", 2, wanted.queues),
        ):
            if names:
                self._terms.append(self._has(table, place, _both_spellings(names)))
        if wanted.states:
            self._terms.append(self._is_one("status", _both_spellings(wanted.states)))
        if wanted.gpus:
            self._terms.append("gpu_count > 0")
        for attribute, names in wanted.extras.items():
            values = _both_spellings(names) - {""}
            terms = [*self._attribute(attribute, values), *self._rows(rows.get(attribute, ()))]
            self._terms.append(f"({' OR '.join(terms)})")

    @property
    def condition(self) -> str:
        """The condition, in SQL."""
        return " AND ".join(self._terms) or "TRUE"

    def _window(self, column: str, window: Window) -> None:
        if window != Window():
            first, last = bounds(window)
            self._terms.append(f"{column} BETWEEN {self._put(max(first, 1))} AND {self._put(last)}")

    def _attribute(self, attribute: str, values: Names) -> Iterator[str]:
        """Yield where an attribute may be; a claim of the token may have any name."""
        names = _PROJECTS if attribute in _PROJECTS else {attribute}
        names = _NODES if attribute in _NODES else names
        yield self._shared("person", lambda row: any(k in names and v in values for k, v in row[3]))
        if attribute in _COLUMNS:
            yield self._is_one(_COLUMNS[attribute], values)
        elif attribute in _NODES:
            yield self._is_one("hosts", frozenset(_hosts_texts(values)))
        elif attribute in _PROJECTS:
            yield self._is_one("projects", values)
            yield _OF_SEVERAL.format(self._listed(values))
        elif attribute in _FQANS:
            end = 1 if attribute == "mainfqan" else None
            yield self._shared("person", lambda row: not values.isdisjoint(row[2][:end]))
        elif attribute == "lrms":
            yield self._has("place", 3, values)
        elif attribute == "benchmark":
            yield self._has("benchmark", 0, values)
        elif attribute == "localuser":
            yield self._shared("account", lambda row: ":".join(filter(None, row)) in values)

    def _rows(self, rows: Iterable[RowRef]) -> Iterator[str]:
        by_source: dict[str, list[int]] = {}
        for row in rows:
            by_source.setdefault(row.database, []).append(row.record_id)
        for name, numbers in by_source.items():
            source = f"(SELECT id FROM source WHERE name = {self._put(name)})"
            yield f"(source = {source} AND record_id IN {self._numbers(numbers)})"

    def _has(self, table: str, place: int, values: Names) -> str:
        return self._shared(table, lambda row: row[place] in values)

    def _shared(self, table: str, fits: Callable[[Row], bool]) -> str:
        """Return the condition of jobs whose person (place, ...) fits."""
        question, columns = _TABLES[table]
        found = self._jobs.distinct(question, columns)
        return f"{table} IN {self._numbers([number for number, row in found if fits(row)])}"

    def _numbers(self, numbers: Sequence[int]) -> str:
        return f"(SELECT value FROM json_each({self._put(json.dumps(numbers))}))"

    def _is_one(self, column: str, values: Names) -> str:
        return f"{column} IN ({self._listed(values)})"

    def _listed(self, values: Names) -> str:
        return ", ".join(map(self._put, stored(sorted(values))))

    def _put(self, value: Any) -> str:
        name = f"filter{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"


def _both_spellings(names: Names) -> Names:
    """Return names as they are, and as meant where A-REX's escapes are shown."""
    return names | frozenset(map(arex_unescape, names))


def _hosts_texts(values: Names) -> Iterator[str]:
    """Yield how the store has lists of nodes, which are joined by colons."""
    for value in values:
        hosts = tuple(dict.fromkeys(filter(None, value.split(":"))))
        yield from filter(None, (names_text(hosts), names_text((value,))))
