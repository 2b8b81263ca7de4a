"""Rows of `month`: what was counted, what the receiver accepted, and what is on its way.

Groups are kept as JSON, compressed, with their fields in order: the same bytes for the same groups.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from itertools import starmap
from operator import attrgetter
from typing import Any, Final

from publisher.ledger.contract import MonthState
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.messages import CarriedRecords
from publisher.model.rates import Benchmark
from publisher.model.time import epoch
from publisher.model.totals import InheritedMonth, SummaryGroup, month_number, sync_host

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_LEVEL: Final = 3  # a tenth larger than at 6, in less than half of the time
_BENCHMARKS: Final = SummaryGroup._fields.index("benchmarks")
_HOST, _JOBS, _LATEST_END = (attrgetter(name) for name in ("submit_host", "jobs", "latest_end"))


def encode(groups: Sequence[SummaryGroup]) -> bytes:
    return _compressed(_text(groups))


def _compressed(text: bytes) -> bytes:
    return zlib.compress(text, _LEVEL)


def _text(groups: Sequence[SummaryGroup]) -> bytes:
    """The same bytes for the same groups."""
    columns: list[Iterable[Any]] = list(zip(*groups, strict=True))
    if columns:
        columns[_BENCHMARKS] = map(_plain_benchmarks, columns[_BENCHMARKS])
    return _ENCODER.encode(list(zip(*columns, strict=True))).encode()


@lru_cache(maxsize=2)  # of the month whose messages arrive one after the other
def decode(text: bytes | None) -> tuple[SummaryGroup, ...]:
    """No groups for None: nothing was counted or accepted yet."""
    if text is None:
        return ()
    columns: list[Iterable[Any]] = list(zip(*json.loads(zlib.decompress(text)), strict=True))
    if columns:
        columns[_BENCHMARKS] = [tuple(starmap(_benchmark, each)) for each in columns[_BENCHMARKS]]
    return tuple(map(SummaryGroup._make, zip(*columns, strict=True)))


def digest(text: bytes) -> str:
    """Of what the groups say, not of how they are compressed."""
    return _digest(zlib.decompress(text))


def _digest(text: bytes) -> str:
    return sha256(text).hexdigest()[:32]


@lru_cache(maxsize=1024)
def _plain_benchmarks(benchmarks: tuple[Benchmark, ...]) -> list[list[str]]:
    return [[one.kind, str(one.value)] for one in benchmarks]


@lru_cache(maxsize=1024)
def _benchmark(kind: str, value: str) -> Benchmark:
    return Benchmark(kind=kind, value=Decimal(value))


_MONTHS = """
SELECT month, jobs, digest, basis, dirty, accepted_jobs, accepted_digest, accepted_format,
       sending IS NOT NULL, moved, by_settings, sending_digest,
       CASE WHEN sending IS NOT NULL THEN sending_jobs END
FROM month
WHERE target = :target ORDER BY month"""
_CONTENT = "SELECT counted, sending, accepted FROM month WHERE target = :target AND month = :month"
# What was only added to is of the basis of before: it has to be summed up again under that of now.
_COUNT = """
INSERT INTO month (target, month, counted, jobs, hosts, last_end, digest, basis, dirty, by_settings)
VALUES (:target, :month, :counted, :jobs, :hosts, :last_end, :digest, :basis, FALSE, :by_settings)
ON CONFLICT (target, month) DO UPDATE SET
    counted = excluded.counted, jobs = excluded.jobs, hosts = excluded.hosts,
    last_end = excluded.last_end, digest = excluded.digest,
    basis = CASE WHEN :anew THEN excluded.basis ELSE month.basis END,
    by_settings = (month.accepted_digest IS NULL OR excluded.digest <> month.accepted_digest)
        AND (month.by_settings OR excluded.by_settings)"""
_DIRTY = """
INSERT INTO month (target, month, counted, jobs, digest, basis, dirty, moved)
VALUES (:target, :month, :nothing, 0, '', :basis, TRUE, :moved)
ON CONFLICT (target, month) DO UPDATE SET dirty = TRUE, moved = month.moved + excluded.moved"""
_CLEAN = "UPDATE month SET dirty = FALSE, moved = 0 WHERE target = :target AND month = :month"
_SENDING = """
UPDATE month SET sending = counted, sending_digest = digest, sending_jobs = jobs,
    sending_hosts = hosts, sending_end = last_end
WHERE target = :target AND month = :month"""
_LINK = "INSERT INTO month_message (message, target, month) VALUES (:message, :target, :month)"
_MONTHS_OF = "SELECT month FROM month_message WHERE message = :message"
_STILL_OUT = """
SELECT EXISTS (SELECT 1 FROM month_message JOIN message ON message.id = month_message.message
               WHERE month_message.target = :target AND month = :month AND message.state < 2)"""
_ACCEPT = """
UPDATE month SET accepted = sending, accepted_digest = sending_digest, accepted_jobs = sending_jobs,
    accepted_hosts = sending_hosts, accepted_at = :now,
    accepted_format = (SELECT format FROM message WHERE id = :message),
    sending = NULL, sending_digest = NULL, by_settings = FALSE
WHERE target = :target AND month = :month AND sending IS NOT NULL"""
_IS_SENDING = """
SELECT sending IS NOT NULL, sending_digest FROM month WHERE target = :target AND month = :month"""
_ARRIVED = "UPDATE month_message SET arrived = :arrived WHERE message = :message AND month = :month"
_ARRIVALS = """
SELECT arrived FROM month_message
WHERE target = :target AND month = :month AND arrived <> ''"""
_NO_ARRIVALS = """
UPDATE month_message SET arrived = ''
WHERE target = :target AND month = :month AND arrived <> ''"""
# Stands in the place of a digest while only part of a month has arrived, or before the digest of a
# month that was adopted. No month has this digest, so it is sent again, whatever it holds.
PART: Final = "part"
ADOPTED: Final = "adopted "
_ACCEPT_PART = f"""
UPDATE month SET accepted_digest = '{PART}', accepted_jobs = coalesce(accepted_jobs, 0),
    accepted_format = (SELECT format FROM message WHERE id = :message)
WHERE target = :target AND month = :month"""
_WRITE_ACCEPTED = "UPDATE month SET accepted = :accepted WHERE target = :target AND month = :month"
_ADOPT = """
INSERT INTO month (target, month, counted, jobs, digest, basis, dirty,
                   accepted, accepted_digest, accepted_jobs, accepted_hosts, accepted_format)
VALUES (:target, :month, :nothing, 0, '', '', FALSE, :accepted, :digest, :jobs, :hosts, :format)
ON CONFLICT (target, month) DO UPDATE SET
    accepted = excluded.accepted, accepted_digest = excluded.accepted_digest,
    accepted_jobs = excluded.accepted_jobs, accepted_hosts = excluded.accepted_hosts,
    accepted_format = excluded.accepted_format"""
_EMPTIED = """
UPDATE month SET accepted = counted, accepted_digest = digest,
    accepted_jobs = 0, accepted_hosts = hosts
WHERE target = :target AND month = :month
      AND jobs = 0 AND digest <> '' AND NOT dirty AND sending IS NULL"""
_FORGET = "DELETE FROM month WHERE target = :target AND month = :month"
_NO_MORE = """
UPDATE month SET sending = NULL, sending_digest = NULL WHERE target = :target AND month = :month"""
_NOT_WHOLE = "UPDATE month SET sending_digest = NULL WHERE target = :target AND month = :month"
_NOT_ACCEPTED = """
SELECT month FROM month
WHERE target = :target AND (accepted_digest IS NULL OR digest <> accepted_digest)"""
_TOTALS = """
UPDATE target SET
    delivered = (SELECT coalesce(sum(accepted_jobs), 0) FROM month WHERE target = :target)
              + (SELECT coalesce(sum(jobs), 0) FROM delivered_count WHERE target = :target),
    last_end = coalesce((SELECT max(sending_end) FROM month
                         WHERE target = :target AND accepted IS NOT NULL), last_end)
WHERE id = :target"""


def states(database: Database, target: int | None) -> list[MonthState]:
    return [
        MonthState(
            month=row[0],
            jobs=row[1],
            digest=row[2],
            basis=row[3],
            dirty=bool(row[4]),
            accepted_jobs=row[5] or 0,
            accepted_digest=row[6] or "",
            accepted_format=row[7] or "",
            on_its_way=bool(row[8]),
            moved=row[9],
            by_settings=bool(row[10]),
            sending_digest=row[11] or "",
            sending_jobs=row[12] or 0,
        )
        for row in database.execute(_MONTHS, {"target": target})
    ]


def content(
    database: Database, target: int | None, month: int
) -> tuple[tuple[SummaryGroup, ...], tuple[SummaryGroup, ...]]:
    """The groups counted and the groups accepted."""
    row = database.execute(_CONTENT, {"target": target, "month": month}).fetchone()
    counted, on_its_way, accepted = row or (None, None, None)
    arrived = _arrived_of(database, target, month, on_its_way)
    return decode(counted), tuple(joined(decode(accepted), arrived))


def _arrived_of(
    database: Database, target: int | None, month: int, groups: bytes | None
) -> list[SummaryGroup]:
    """Those of the groups on their way that are at the receiver already."""
    arrivals = database.execute(_ARRIVALS, {"target": target, "month": month}).fetchall()
    places = {place for (arrived,) in arrivals for place in json.loads(arrived)}
    if not places:
        return []
    return [group for place, group in enumerate(decode(groups)) if place in places]


def count(
    database: Database,
    target: int,
    contents: Mapping[int, Sequence[SummaryGroup]],
    dirty: Mapping[int, int],
    clean: Collection[int],
    by_settings: Collection[int],
    basis: str,
) -> None:
    """Write the counted groups of months, and which of them were summed up again, or must be."""
    for month, groups in contents.items():
        text = _text(groups)
        database.execute(
            _COUNT,
            {
                "target": target,
                "month": month,
                "counted": _compressed(text),
                "jobs": sum(map(_JOBS, groups)),
                "hosts": _hosts(groups),
                "last_end": max(map(_LATEST_END, groups), default=None),
                "digest": _digest(text),
                "basis": basis,
                "anew": month in clean,
                "by_settings": month in by_settings,
            },
        )
    # A changed job may have moved to a month in which nothing was counted yet.
    nothing = {"target": target, "nothing": encode(()), "basis": basis}
    left = [nothing | {"month": month, "moved": moved} for month, moved in dirty.items()]
    database.execute_many(_DIRTY, left)
    database.execute_many(_CLEAN, [{"target": target, "month": month} for month in clean])


def adopt(database: Database, target: int, left: InheritedMonth) -> None:
    """Another publisher's totals are what the receiver has of a month."""
    text = _text(left.groups)
    database.execute(_NO_ARRIVALS, {"target": target, "month": left.month})
    database.execute(
        _ADOPT,
        {
            "target": target,
            "month": left.month,
            "nothing": encode(()),
            "accepted": _compressed(text),
            "digest": f"{ADOPTED}{_digest(text)}",
            "jobs": sum(group.jobs for group in left.groups),
            "hosts": _hosts(left.groups),
            "format": left.format,
        },
    )


def emptied(database: Database, target: int, month: int) -> None:
    """Of a month without jobs by now, what stays at the receiver was accepted to stay."""
    if database.execute(_EMPTIED, {"target": target, "month": month}).rowcount:
        database.execute(_TOTALS, {"target": target})


def _hosts(groups: Sequence[SummaryGroup]) -> str:
    """The jobs of groups by submit host, as JSON: `sync` need not take apart every month."""
    by_host: Counter[str] = Counter()
    for host, jobs in zip(map(_HOST, groups), map(_JOBS, groups), strict=True):
        by_host[host] += jobs
    as_counted: Counter[str] = Counter()
    for host, jobs in by_host.items():
        as_counted[sync_host(host)] += jobs
    return json.dumps(as_counted, sort_keys=True, separators=(",", ":"))


def send(database: Database, target: int, month: int) -> None:
    """What is counted now is what the messages to come say."""
    _keep_arrivals(database, target, month)
    database.execute(_SENDING, {"target": target, "month": month})


def link(database: Database, target: int, message: int, months: Collection[int]) -> None:
    links = [{"message": message, "target": target, "month": month} for month in months]
    database.execute_many(_LINK, links)


def months_of(database: Database, message: int) -> list[int]:
    return [month for (month,) in database.execute(_MONTHS_OF, {"message": message})]


def forget(database: Database, target: int, months: Collection[int]) -> None:
    """Months that the receiver does not keep as totals any more."""
    gone = [{"target": target, "month": month} for month in months]
    database.execute_many(_FORGET, gone)
    database.execute_many(_NO_ARRIVALS, gone)
    database.execute(_TOTALS, {"target": target})


def sending(database: Database, target: int | None, month: int) -> tuple[SummaryGroup, ...]:
    """The groups that messages on their way were made of."""
    row = database.execute(_CONTENT, {"target": target, "month": month}).fetchone()
    return decode(row[1]) if row else ()


def not_accepted(database: Database, target: int) -> list[int]:
    """Months of which something was counted that the receiver has not accepted."""
    return [month for (month,) in database.execute(_NOT_ACCEPTED, {"target": target})]


def arrived(
    database: Database, target: int, message: int, records: CarriedRecords, now: datetime
) -> list[int]:
    """A message of months was accepted: gives those accepted whole, with their last message.

    Of the others the rows that arrived are at the receiver, whatever becomes of the rest.
    """
    whole = []
    for month in months_of(database, message):
        at = {"target": target, "month": month}
        (is_out,) = database.execute(_STILL_OUT, at).fetchone()
        is_sending, sent_digest = database.execute(_IS_SENDING, at).fetchone()
        if sent_digest is not None and not is_out:
            database.execute(_ACCEPT, at | {"now": epoch(now), "message": message})
            database.execute(_NO_ARRIVALS, at)
            whole.append(month)
            continue
        places = _places(records, month)
        if is_sending and places:
            brought = {"arrived": json.dumps(places), "message": message, "month": month}
            database.execute(_ARRIVED, brought)
            database.execute(_ACCEPT_PART, at | {"message": message})
        if not is_out:
            _end_sending(database, target, month)
    return whole


def _places(records: CarriedRecords, month: int) -> list[int]:
    """Which groups of a month these records are."""
    return [place - 1 for place, ended_at in records.places() if month_number(ended_at) == month]


def _keep_arrivals(database: Database, target: int, month: int) -> None:
    """What arrived of a month's groups stays accepted, whatever is sent next."""
    at = {"target": target, "month": month}
    row = database.execute(_CONTENT, at).fetchone()
    if row and (new := _arrived_of(database, target, month, row[1])):
        database.execute(_WRITE_ACCEPTED, at | {"accepted": encode(joined(decode(row[2]), new))})
        database.execute(_NO_ARRIVALS, at)


def _end_sending(database: Database, target: int, month: int) -> None:
    """No message of the month is on its way any more, and not all of it arrived."""
    _keep_arrivals(database, target, month)
    database.execute(_NO_MORE, {"target": target, "month": month})


def take_back(database: Database, target: int, months: Collection[int]) -> None:
    """A message of these months, not outstanding now, did not arrive: they were not sent whole."""
    for month in months:
        at = {"target": target, "month": month}
        (is_out,) = database.execute(_STILL_OUT, at).fetchone()
        if is_out:
            database.execute(_NOT_WHOLE, at)
        else:
            _end_sending(database, target, month)


def count_delivered(database: Database, target: int) -> None:
    """How many jobs the target's records carry, after what was accepted of its months changed."""
    database.execute(_TOTALS, {"target": target})


def joined(accepted: Sequence[SummaryGroup], new: Sequence[SummaryGroup]) -> list[SummaryGroup]:
    """The rows at the receiver after some more arrived, which replace those of the same key."""
    replaced = {_row(group) for group in new}
    return [*(group for group in accepted if _row(group) not in replaced), *new]


_SUMS: Final = frozenset(
    {"earliest_end", "latest_end", "jobs", "wall_s", "cpu_s"}
    | {"normalised_wall_micro", "normalised_cpu_micro"}
)
# What tells a row from others, without what is added up in it.
_row: Final = attrgetter(*(name for name in SummaryGroup._fields if name not in _SUMS))
