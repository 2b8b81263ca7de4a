"""The equation: a receiver holds every run that was wanted, once, with its last values; or the product names the difference.

The memory is of every run that a round could see, whatever became of its row since. Nothing here asks the product for a
number: its surfaces are read for what they hold back, run by run and month by month. A run that is held back may only stand
as it once was, or be missing. No hold excuses a run that counts twice, or a row of no run.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from publisher.cli.site import open_at
from tests.arex_databases import SampleJob
from tests.model_receivers.receivers.apel import Apel, Key, SumKey, Total, collated, month_of
from tests.model_receivers.receivers.keep_first import KeepFirst
from tests.model_receivers.site import Model, Product, Run, place_at, place_of
from tests.model_receivers.world import BatchSystem

RunId = tuple[str, str]  # JobID, local id
SINGLE: Final = ("car", "apel-job-0.2", "apel-job-0.3", "apel-job-0.4")
_SAID: Final = """
SELECT month, fields, coalesce(sent_jobs, jobs), coalesce(sent_wall_s, wall_s), coalesce(sent_cpu_s, cpu_s)
FROM row_key
LEFT JOIN (SELECT row_key, sum(jobs) AS jobs, sum(wall_s) AS wall_s, sum(cpu_s) AS cpu_s FROM entry
    WHERE state IN (1, 3) GROUP BY row_key) AS counted ON counted.row_key = row_key.id
LEFT JOIN (SELECT row_key, sent_jobs, sent_wall_s, sent_cpu_s FROM balance JOIN row_key ON row_key.id = row_key
    LEFT JOIN month_sum ON month_sum.receiver = row_key.receiver AND month_sum.month = row_key.month
    WHERE sent_by IS NOT NULL AND (month_sum.format <> '' OR :totals_there) OR :left_there
        AND balance.jobs = 0 AND sent_jobs > 0) AS told
    ON told.row_key = row_key.id
WHERE receiver = :receiver AND coalesce(sent_jobs, jobs) IS NOT NULL"""
_RECEIVER: Final = "SELECT id FROM receiver WHERE place = :address OR place LIKE '%, topic ' || :address"
OTHER_NUMBERS: Final = "the ledger has other numbers"
_NEVER: Final = (0, 0)  # a month before all
_TRIED: Final = 200_000  # ways to explain a difference
_TICKET: Final = re.compile(
    r"\s*(?P<month>\d{4}-\d\d): (?:site (?P<site>[^,]+), )?VO (?P<vo>[^,]*), group (?P<group>[^,]*), role (?P<role>[^,]*), "
    r"user (?P<user>.*), SubmitHost (?P<host>[^,]*), (?P<infrastructure>\w+), (?P<level>[^,]+), "
    r"nodes (?P<nodes>\d+), processors (?P<processors>\d+)(?P<prefix>.*?): "
    r"(?P<jobs>[\d,]+) jobs?, (?P<wall>[\d,]+) s wall, (?P<cpu>[\d,]+) s CPU"
)


class Group(NamedTuple):
    """Runs that are compared together: no setting of the site changes what is in here."""

    month: tuple[int, int]
    ce: str
    processors: int


class Share(NamedTuple):
    """What a run adds to the numbers of a receiver."""

    group: Group
    total: Total


class Seen(NamedTuple):
    """A run as a round could see it. `places` wanted it then; `sure`: that round came to its end."""

    job: SampleJob
    places: frozenset[str]
    sure: bool


def published_vo(job: SampleJob, records: Mapping[str, Any]) -> str:
    for rule in records.get("vo_rules", ()):
        if rule["pattern"] == job.user:
            return str(rule["vo"])
    return job.vo


def wanted_at(job: SampleJob, config: Mapping[str, Any]) -> frozenset[str]:
    """Return the receivers that some target wants this job for."""
    vo = published_vo(job, config["records"])
    targets = config["targets"].values()
    return frozenset(place_of(target) for target in targets if "vos" not in target or vo in target["vos"])


@dataclass(slots=True)
class Memory:
    """Every run that ever was, as rounds could see it, in order."""

    runs: dict[RunId, list[Seen]] = field(default_factory=dict)
    keys: dict[RunId, set[tuple[str, str]]] = field(default_factory=dict)  # sites and VOs under which a run was wanted
    single: set[str] = field(default_factory=set)  # places that ever got single records
    batch_runs: list[SampleJob] = field(default_factory=list)  # runs of CEs as the batch system's file has them
    there: set[RunId] = field(default_factory=set)  # that the accounting data still has
    store_is_lost: bool = False  # since the last round that came to its end
    forgotten: set[RunId] = field(default_factory=set)  # neither the accounting data nor the job store has them
    # Months of restored ledgers that waited, by place: only runs can be sent that somebody still knows.
    waited: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    # No target led there when an older ledger took the place of one: no round compares the two.
    unasked: set[str] = field(default_factory=set)

    def look(
        self,
        jobs: Iterable[SampleJob],
        config: Mapping[str, Any],
        *,
        sure: bool,
        closed: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """A round sees these jobs, with this configuration; `closed`: of months before, what is at a receiver stays."""
        closed = closed or {}
        jobs = list(jobs)
        self.there = {(job.job_id, str(job.local_job_id)) for job in jobs}
        if self.store_is_lost:
            self.forgotten |= self.runs.keys() - self.there
            self.store_is_lost = not sure
        self.single |= {place_of(one) for one in config["targets"].values() if one["format"] in SINGLE}
        for job in jobs:
            wanted = wanted_at(job, config)
            open_at = {place for place in wanted if month_of(job.end_time) >= closed.get(place, _NEVER)}
            is_old = month_of(job.end_time) < max(closed.values(), default=_NEVER)
            if not open_at:
                continue
            seen = Seen(job, frozenset(open_at), sure and not is_old)
            run = job.job_id, str(job.local_job_id)
            key = collated(config["site"]), collated(published_vo(job, config["records"]))
            self.keys.setdefault(run, set()).add(key)
            versions = self.runs.setdefault(run, [])
            if versions and versions[-1][:2] == seen[:2]:
                versions[-1] = seen._replace(sure=sure or versions[-1].sure)
            else:
                versions.append(seen)
        for run, versions in self.runs.items():  # the product knows purged ones, and may publish them under other names
            job = versions[-1].job
            self.keys[run].add((collated(config["site"]), collated(published_vo(job, config["records"]))))
            elsewhere = wanted_at(job, config).difference(*(one.places for one in versions))
            if elsewhere and run not in self.there:  # one that is gone may come to a receiver that wants it only now
                versions.append(Seen(job, elsewhere, sure=False))

    def move(self, old: str, new: str) -> None:
        """A service moves to another place, with all that it has."""

        def there(places: Iterable[str]) -> Iterator[str]:
            return (new if place == old else place for place in places)

        self.single = set(there(self.single))
        if old in self.waited:
            self.waited[new] |= self.waited.pop(old)
        for versions in self.runs.values():
            versions[:] = [one._replace(places=frozenset(there(one.places))) for one in versions]


@dataclass(slots=True)
class Explained:
    """What the product's surfaces hold back, by receiver, and rows that they name as left there."""

    runs: dict[str, set[RunId]] = field(default_factory=lambda: defaultdict(set))
    local_ids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    months: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    left: dict[str, list[Share]] = field(default_factory=lambda: defaultdict(list))
    statuses: list[str] = field(default_factory=list)  # what is not well though nothing goes wrong any more
    silent: bool = True  # nothing says that anything differs


def surfaces(product: Product, last: Run) -> Explained:
    """Read what an administrator sees after the last round."""
    found, targets = Explained(), product.config["targets"]
    places = {name: place_of(target) for name, target in targets.items()}
    for name, outcome in last.json.get("targets", {}).items():
        for held in outcome["held"]:
            found.months[places[name]].add(_month(held["month"]))
    for one in product.run("quarantine", "list", "--json").json["quarantined"]:
        if one["target"] in places:
            found.runs[places[one["target"]]].add((one["job"], one["local_id"]))
            found.local_ids[places[one["target"]]].add(one["local_id"])
    check = product.run("sync", "--check", "--json", "--months", "all")
    listed = product.run("receiver", "list", "--json").json["receivers"]
    receivers = {one["number"]: place_at(one["kind"], one["address"]) for one in listed}
    for change in check.json.get("accepted", ()):
        of_records = {one["row"] for one in change["job_records"]}  # a row of these is their sum
        rows = [
            f"{change['month']}: {one['row']}: {one['jobs']} jobs, {one['wall_s']} s wall, {one['cpu_s']} s CPU"
            for one in (*(one for one in change["stale"] if one["row"] not in of_records), *change["job_records"])
        ]
        found.left[receivers[change["receiver"]]] += [
            Share(_group_of(key), total) for key, total, _ in ticket_rows("\n".join(rows), "")
        ]
    if last.status not in (0, 65):
        found.statuses.append(f"the last round ends with {last.status}")
    for name, one in product.run("status", "--json").json.get("targets", {}).items():
        waiting = {word: one[word] for word in ("pending", "in_doubt") if one[word]}
        if waiting and not (found.months[places[name]] or found.runs[places[name]]):
            found.statuses.append(f"{' and '.join(waiting)} for ever")
    found.silent = check.status == last.status == 0
    return found


def closed_at(product: Product) -> dict[str, tuple[int, int]]:
    """Return the month before which all are closed, by receiver."""
    if not product.ledger.exists():
        return {}
    with closing(open_at(product.ledger.place, to_read=True)) as ledger, ledger.reading():
        found = ledger.execute("SELECT place, closed FROM receiver WHERE closed > 0").fetchall()
    bounds = {place: (month // 12, month % 12 + 1) for place, month in found}
    return {
        name: bound
        for place, bound in bounds.items()
        for name in product.models
        if place.endswith((f"topic {name.partition(' ')[2]}", f" {name.partition(' ')[2]}"))
        or place == name.partition(" ")[2]
    }


def note_waiting(memory: Memory, targets: Mapping[str, Any], last: Run) -> None:
    """Remember the months that a round holds since the ledger was restored."""
    for name, outcome in last.json.get("targets", {}).items():
        months = {_month(held["month"]) for held in outcome["held"] if held["restored"]}
        memory.waited[place_of(targets[name])] |= months
        memory.unasked.discard(place_of(targets[name]))


def ticket_rows(text: str, site: str) -> Iterator[tuple[SumKey, Total, str]]:
    """Yield the rows that a ticket names, with what they count and the prefix of their records."""
    for found in filter(None, map(_TICKET.fullmatch, text.splitlines())):
        benchmark, _, level = found["level"].partition(" ")
        words = {name: collated(found[name]) for name in ("user", "vo", "role", "group", "host", "infrastructure")}
        key = SumKey(
            month=_month(found["month"]),
            site=collated(found["site"] or site),
            **words,
            benchmark=collated(benchmark),
            level=_level(level),
            nodes=int(found["nodes"]),
            processors=int(found["processors"]),
        )
        yield key, Total(*(int(found[name].replace(",", "")) for name in ("jobs", "wall", "cpu"))), found["prefix"]


def ticket_records(text: str) -> Iterator[Key]:
    """Yield the keys of the job records that a ticket names."""
    for found in re.finditer(r"site (.*), LocalJobId (.*), EndTime (\S+)$", text, re.MULTILINE):
        yield collated(found[1]), collated(found[2]), int(datetime.fromisoformat(found[3]).timestamp())


def _level(text: str) -> Decimal:
    return round(Decimal(text or 0), 3)


def _month(text: str) -> tuple[int, int]:
    year, _, month = text.partition("-")
    return int(year), int(month)


def _ce(host: object) -> str:
    found = re.search(r"ce\d", str(host))
    return found[0] if found else str(host)


def _group_of(key: SumKey) -> Group:
    return Group(key.month, _ce(key.host), key.processors)


def share_of(job: SampleJob, place: str, month: tuple[int, int] | None = None) -> Share:
    """Return what a job adds at a receiver; its wall time is not compared at AUDITOR, which takes times."""
    group = Group(month or month_of(job.end_time), _ce(job.endpoint_url), job.cpus)
    wall = 0 if place.startswith("auditor") else job.wall_s
    return Share(group, Total(1, wall, job.cpu_user_s + job.cpu_kernel_s))


def holdings(model: Model, place: str) -> dict[Group, Total]:
    """Return what a receiver holds."""
    held: dict[Group, Total] = defaultdict(Total)
    if isinstance(model, Apel):
        model.summarise()
        for key, total in model.totals().items():
            held[_group_of(key)] = held[_group_of(key)].plus(total)
    elif isinstance(model, KeepFirst):
        for row in model.records.values():
            group = Group(
                month_of(row["EndTime"]), _ce(row.get("MachineName") or row.get("SubmitHost")), row["Processors"]
            )
            wall = 0 if place.startswith("auditor") else row["WallDuration"]
            held[group] = held[group].plus(Total(1, wall, row["CpuDuration"]))
    return dict(held)


def shares(
    versions: Sequence[Seen], place: str, *, wanted: bool, held: bool, single: bool, keeps_first: bool
) -> list[Share | None]:
    """Return what a run may count for at a receiver, the best first; None is nothing."""
    seen = [one for one in versions if place in one.places]
    if not seen:
        return [None]
    once = [share_of(one.job, place) for one in seen]
    newest = max((at for at, one in enumerate(seen) if one.sure), default=0)
    found: list[Share | None] = [*reversed(once[newest:])]
    if single:  # its record stays under the end that it was first sent with
        months = [month_of(one.job.end_time) for one in reversed(seen)]
        found += [share_of(one.job, place, month) for one in reversed(seen[newest:]) for month in months]
    if keeps_first:
        found = [*once]
    if held or not wanted:
        found += [*once, None]
    if not any(one.sure for one in seen):
        found.append(None)
    return list(dict.fromkeys(found))


def solved(held: Mapping[Group, Total], choices: Sequence[Sequence[Share | None]]) -> bool:
    """Return whether one choice for each run adds up to what is held. Raises: OverflowError after too many tries."""
    rest = dict(held)
    choices = [list(dict.fromkeys(one)) for one in choices]
    certain = [choice[0] for choice in choices if len(choice) == 1]
    return all(_take(rest, share) for share in certain) and _Search(
        rest, [one for one in choices if len(one) > 1]
    ).fits(0)


class _Search:
    """Tries the choices of one run after the other, those of one group together."""

    def __init__(self, rest: dict[Group, Total], choices: Sequence[Sequence[Share | None]]) -> None:
        self._rest, self._tried = rest, 0
        self._choices = sorted(choices, key=lambda one: min(share.group for share in one if share is not None))
        last: dict[Group, int] = dict.fromkeys(rest, -1)  # the last run that could add to a group
        last |= {share.group: at for at, one in enumerate(self._choices) for share in one if share is not None}
        self._done: dict[int, list[Group]] = defaultdict(list)
        for group, at in last.items():
            self._done[at].append(group)

    def fits(self, at: int) -> bool:
        self._tried += 1
        if self._tried > _TRIED:
            raise OverflowError(f"{len(self._choices)} runs with several choices")
        if any(any(self._rest.get(group, ())) for group in self._done.get(at - 1, ())):
            return False  # nothing more can come to what is left there
        return at == len(self._choices) or any(self._fits_with(share, at) for share in self._choices[at])

    def _fits_with(self, share: Share | None, at: int) -> bool:
        if not _take(self._rest, share):
            return False
        if self.fits(at + 1):
            return True
        if share is not None:
            self._rest[share.group] = self._rest[share.group].plus(share.total)
        return False


def _take(rest: dict[Group, Total], share: Share | None) -> bool:
    if share is None:
        return True
    left = rest.get(share.group, Total()).plus(share.total, -1)
    if min(left) < 0:
        return False
    rest[share.group] = left
    return True


def said_rows(
    product: Product, place: str, *, totals_there: bool = True, left_there: bool = True
) -> dict[Group, Total] | None:
    """Return what the ledger has of a receiver: rows of totals as they were said last, records as their entries count.

    The middle term of the equation. `totals_there`: nobody deleted yet what totals said of months that are of records now;
    `left_there`: nor rows that have no run any more.
    Records that were left under another key are there until they are deleted. None: the
    ledger was lost, and the receiver is one of before.
    """
    said: dict[Group, Total] = defaultdict(Total)
    with closing(open_at(product.ledger.place, to_read=True)) as ledger:
        receiver = ledger.execute(_RECEIVER, {"address": place.partition(" ")[2]}).fetchone()
        if receiver is None:
            return None
        asked = {"totals_there": totals_there, "left_there": left_there, "receiver": receiver[0]}
        for month, text, *numbers in ledger.execute(_SAID, asked):
            fields = json.loads(text)
            host, processors = fields.get("SubmitHost") or fields.get("MachineName"), fields.get("Processors")
            group = Group((month // 12, month % 12 + 1), _ce(host), int(processors or 0))
            jobs, wall_s, cpu_s = map(int, numbers)  # PostgreSQL adds up in decimals
            wall = 0 if place.startswith("auditor") else wall_s
            said[group] = said[group].plus(Total(jobs, wall, cpu_s))
    return {group: total for group, total in said.items() if any(total)}


def _of_any_size(totals: Mapping[Group, Total]) -> dict[Group, Total]:
    """Add groups up whose runs differ in processors alone, which are no key of records that are kept."""
    found: dict[Group, Total] = defaultdict(Total)
    for group, total in totals.items():
        whole = group._replace(processors=0)
        found[whole] = found[whole].plus(total)
    return dict(found)


def _agree(
    said: Mapping[Group, Total], has: Mapping[Group, Total], left: Sequence[Share], waited: Collection[tuple[int, int]]
) -> bool:
    """Return whether a receiver has what was said, with what is left there or, deleted and not confirmed, without it."""
    without = dict(said)
    there = all(_take(without, share) for share in left)
    ways = [said, {group: total for group, total in without.items() if any(total)}] if there else [said]
    return any(_but_for(waited, way) == _but_for(waited, has) for way in ways)


def _but_for(months: Collection[tuple[int, int]], totals: Mapping[Group, Total]) -> dict[Group, Total]:
    return {group: total for group, total in totals.items() if group.month not in months}


def rows_of_others(model: Apel, memory: Memory) -> list[SumKey]:
    """Return rows that count more jobs than runs were ever to be published under their site and VO."""
    found = []
    for key, total in model.totals().items():
        mine = [run for run, keys in memory.keys.items() if (key.site, key.vo) in keys]
        group = _group_of(key)
        near = [run for run in mine if any(_is_of(one.job, group) for one in memory.runs[run])]
        batch = [job for job in memory.batch_runs if _ce(key.host) == BatchSystem.name]
        if len(near) + len(batch) < total.jobs:
            found.append(key)
    return found


def _is_of(job: SampleJob, group: Group) -> bool:
    """Whether a version of a run was of this CE and size; its month may be the one of another version."""
    return (_ce(job.endpoint_url), job.cpus) == (group.ce, group.processors)


def choices_at(place: str, product: Product, memory: Memory, explained: Explained) -> list[list[Share | None]]:
    """Return what each run may count for at a receiver, and each row that is named as left there."""
    found, closed = [], closed_at(product)
    here, anywhere = closed.get(place, _NEVER), max(closed.values(), default=_NEVER)
    batch = {(job.job_id, str(job.local_job_id)): job for job in memory.batch_runs}
    waited = set().union(*memory.waited.values())
    for run, versions in memory.runs.items():
        months, last = {month_of(one.job.end_time) for one in versions}, versions[-1].job
        is_unknown = run in memory.forgotten or any(month < anywhere for month in months)
        is_forgotten = is_unknown and run not in memory.there and bool(months & waited)
        is_lost = is_forgotten and bool(months & memory.waited[place])
        # Jobs of months that were closed elsewhere went from the job store: another receiver gets them no more.
        is_lost |= any(here <= month < anywhere for month in months)
        is_local = _ce(last.endpoint_url) == BatchSystem.name and run[1] in explained.local_ids[place]
        choices = shares(
            versions,
            place,
            wanted=place in wanted_at(last, product.config),
            held=is_lost or is_local or run in explained.runs[place] or bool(months & explained.months[place]),
            single=place in memory.single,
            keeps_first=product.model(place).keeps_first,
        )
        is_known = any(one.sure for one in versions) and not is_forgotten
        if run in batch and not is_known:  # nobody could know, or knows any more, that a CE submitted it
            choices.append(_own(batch[run], place))
        found.append(choices)
    found += [[None, _own(job, place)] for run, job in batch.items() if run not in memory.runs]
    return found + [[None, share] for share in explained.left[place]]


def _own(job: SampleJob, place: str) -> Share:
    """Return what the run of a CE's job adds as one of the batch system's own."""
    share = share_of(job, place)
    return share._replace(group=share.group._replace(ce=BatchSystem.name))


def differences(product: Product, memory: Memory, explained: Explained) -> list[str]:
    """Return what is wrong at the end of a story, in words; [] when the equation holds."""
    wrong = list(explained.statuses)
    for place in sorted(
        {*product.models, *(one for seen in memory.runs.values() for last in seen for one in last.places)}
    ):
        model = product.model(place)
        held = holdings(model, place)
        choices = choices_at(place, product, memory, explained)
        has = {group: total for group, total in held.items() if any(total)}
        if model.keeps_first:
            has = _of_any_size(has)
        states = [(True, True), (False, True), *([(False, False)] if explained.left[place] else [])]
        asked = [said_rows(product, place, totals_there=totals, left_there=left) for totals, left in states]
        ways = [said for said in asked if said is not None]
        # Of a held month, somebody may have had rows deleted that its ticket names, before the new ones are sent.
        waiting = memory.waited[place] | explained.months[place]
        compared = ways and place not in memory.unasked
        if compared and not any(_agree(said, has, explained.left[place], waiting) for said in ways):
            wrong.append(f"{_kind(place)}: {OTHER_NUMBERS}")
        if not solved(held, choices):
            wrong.append(f"{_kind(place)}: {_how(held, choices)}{', silently' if explained.silent else ''}")
        elif isinstance(model, Apel) and rows_of_others(model, memory):
            wrong.append(f"{_kind(place)}: rows have more jobs than runs had their keys")
    return wrong


def _kind(place: str) -> str:
    return place.partition(" ")[0]


def _how(held: Mapping[Group, Total], choices: Sequence[Sequence[Share | None]]) -> str:
    """Say how the difference looks from the first choices of all runs."""
    first = [one[0] for one in choices]
    if solved(held, [[one, None] for one in first]):
        return "runs are missing"
    for number, one in enumerate(first):
        others = [[one] for one in first[:number] + first[number + 1 :]]
        if one is not None and solved(held, [*others, [one], [one]]):
            return "a run counts twice"
    expected = sum(one.total.jobs for one in first if one is not None)
    more = sum(total.jobs for total in held.values()) - expected
    return "too many jobs" if more > 0 else "too few jobs" if more else "other usage or month"
