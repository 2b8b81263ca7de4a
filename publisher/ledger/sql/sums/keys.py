"""The receiver's keys that a target's single records made, by month, with what was sent of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain, compress, count
from operator import itemgetter, not_
from typing import NamedTuple

from publisher.ledger.contract import OutboxRecord
from publisher.ledger.sql.database import Database
from publisher.model.job import JobKey
from publisher.model.message import RecordColumns
from publisher.model.totals import AcceptedChange, KeyTotal, SummaryKey

_ADD = """
INSERT INTO summary_key (target, month, digest, text_digest, jobs, wall_s, cpu_s, policy)
VALUES (:target, :month, :digest, :text_digest, :jobs, :wall_s, :cpu_s, :policy)
ON CONFLICT (target, month, digest) DO UPDATE SET
    jobs = summary_key.jobs + excluded.jobs, wall_s = summary_key.wall_s + excluded.wall_s,
    cpu_s = summary_key.cpu_s + excluded.cpu_s,
    policy = excluded.policy"""
_ADD_TO = """
UPDATE summary_key SET jobs = jobs + :jobs, wall_s = wall_s + :wall_s, cpu_s = cpu_s + :cpu_s
WHERE target = :target AND month = :month AND digest = :digest"""
_ADD_TEXT = """
INSERT INTO key_text (digest, text, site) VALUES (:text_digest, :text, :site)
ON CONFLICT (digest) DO NOTHING"""
_DIGESTS = [f"digest_{number}" for number in range(64)]  # that are asked for at once
_POLICIES = f"""
SELECT digest, policy FROM summary_key WHERE target = :target AND month = :month
AND digest IN ({", ".join(f":{name}" for name in _DIGESTS)})"""
_TAKE_AWAY = """
UPDATE summary_key SET jobs = jobs - :jobs, wall_s = wall_s - :wall_s, cpu_s = cpu_s - :cpu_s,
    policy = coalesce(:policy, policy)
WHERE target = :target AND month = :month AND digest = :digest"""
_FORGET = "DELETE FROM summary_key WHERE target = :target AND month = :month AND digest = :digest"
_FORGET_MONTH = "DELETE FROM summary_key WHERE target = :target AND month = :month"
_KEYS = """
SELECT month, summary_key.digest, text, jobs, wall_s, cpu_s, policy, site
FROM summary_key JOIN key_text ON key_text.digest = text_digest
WHERE target = :target AND month = :month ORDER BY summary_key.digest"""

_ACCEPTED = """
SELECT month, accepted_at, stale, lost_jobs FROM key_change WHERE target = :target ORDER BY id"""


class Addition(NamedTuple):
    """What a message's records added: enough to take it away again."""

    keys: Sequence[JobKey]
    parts: Sequence[_Part]  # of each record
    before: Mapping[bytes, str]  # the policies of the keys that were there
    written: Sequence[bytes]  # digests of keys that were not known to be there, under its policy

    def without(self, runs: Collection[JobKey]) -> Addition:
        left = [key not in runs for key in self.keys]
        keys, parts = list(compress(self.keys, left)), list(compress(self.parts, left))
        return self._replace(keys=keys, parts=parts)


# A record's key, whether it goes out for the first time, wall time and CPU time.
_Part = tuple[SummaryKey | None, bool, int, int]


def add(
    database: Database,
    target: int,
    records: RecordColumns,
    policy_digest: str,
    there: Container[bytes],
) -> Addition:
    """The keys of a message's records; only jobs that go out for the first time add to them.

    `there`: digests of keys that are known to be written, under this policy.
    """
    known: list[dict[str, object]] = []
    others, before = [], {}
    columns = records.summary_keys, records.first_time, records.wall_s, records.cpu_s
    parts = list(zip(*columns, strict=True))
    for total in _totals(parts):
        digest = total.key.digest
        if digest in there:
            before[digest] = policy_digest
            known.append(_values(target, total))
        else:
            others.append(total)
    before.update(_policies(database, target, others))
    database.execute_many(_ADD_TO, known)
    _write(database, target, others, policy_digest)
    return Addition(records.keys, parts, before, [total.key.digest for total in others])


def _policies(
    database: Database, target: int, totals: Sequence[KeyTotal]
) -> Iterator[tuple[bytes, str]]:
    """What the keys that are there already were said by."""
    months: defaultdict[int, list[bytes]] = defaultdict(list)
    for total in totals:
        months[total.key.month].append(total.key.digest)
    for month, digests in months.items():
        for start in range(0, len(digests), len(_DIGESTS)):
            some = digests[start : start + len(_DIGESTS)]
            asked = dict(zip(_DIGESTS, some + some[:1] * (len(_DIGESTS) - len(some)), strict=True))
            yield from database.execute(_POLICIES, {"target": target, "month": month, **asked})


def take_away(
    database: Database, target: int, additions: Sequence[Addition], runs: Collection[JobKey]
) -> None:
    """What these runs added, in whichever of the messages they were, was never sent."""
    left: set[bytes] = set()  # in this message, and in those after it
    for added in reversed(additions):
        are_gone = [key in runs for key in added.keys]
        left |= {total.key.digest for total in _totals(compress(added.parts, map(not_, are_gone)))}
        for total in _totals(compress(added.parts, are_gone)):
            digest = total.key.digest
            policy = None if digest in left else added.before.get(digest)
            statement = _TAKE_AWAY if digest in left | added.before.keys() else _FORGET
            database.execute(statement, _values(target, total) | {"policy": policy})


def take_away_refused(
    database: Database,
    target: int,
    additions: dict[int, list[Addition]],
    records: Sequence[OutboxRecord],
) -> None:
    """What the records of a refused message added; only what is left of it stays in `additions`.

    What was in doubt since an earlier process stays counted: it may have been stored.
    """
    runs, added_by = {record.key for record in records}, additions.get(target, [])
    with_them = [not runs.isdisjoint(added.keys) for added in added_by]
    # They may have been delivered before, in an earlier message.
    newest = max(compress(count(), with_them), default=len(added_by))
    take_away(database, target, added_by[newest:], runs)
    additions[target] = [*added_by[:newest], *_without(added_by[newest:], runs)]


def _without(additions: Iterable[Addition], runs: Collection[JobKey]) -> Iterator[Addition]:
    """What is left of them; of a key that was new, the next that has it is the first by now."""
    new: set[bytes] = set()
    for added in additions:
        before = {key: policy for key, policy in added.before.items() if key not in new}
        had = {total.key.digest for total in _totals(added.parts)}
        less = added.without(runs)._replace(before=before)
        new = (new | had - before.keys()) - {total.key.digest for total in _totals(less.parts)}
        yield less


def _values(target: int, total: KeyTotal) -> dict[str, object]:
    at = {"target": target, "month": total.key.month, "digest": total.key.digest}
    return at | {"jobs": total.jobs, "wall_s": total.wall_s, "cpu_s": total.cpu_s}


def _totals(parts: Iterable[_Part]) -> list[KeyTotal]:
    """What records that go out for the first time come to, by key; of other keys nothing."""
    # By digest, which covers the month too: hashing whole keys is slower (hot path).
    by_digest: dict[bytes, SummaryKey] = {}
    sums: defaultdict[bytes, list[int]] = defaultdict(lambda: [0, 0, 0])
    for key, first_time, wall_s, cpu_s in parts:
        if key is not None:
            by_digest[key.digest] = key
            here = sums[key.digest]
            if first_time:
                here[0] += 1
                here[1] += wall_s
                here[2] += cpu_s
    return [
        KeyTotal(key=by_digest[digest], jobs=jobs, wall_s=wall, cpu_s=cpu)
        for digest, (jobs, wall, cpu) in sums.items()
    ]


def of_month(database: Database, target: int | None, month: int) -> list[tuple[KeyTotal, str]]:
    """The keys of a month, each with the digest of the policy that said it."""
    found = []
    for row in database.execute(_KEYS, {"target": target, "month": month}):
        key = SummaryKey(month=row[0], digest=row[1], text=row[2], site=row[7])
        total = KeyTotal(key=key, jobs=row[3], wall_s=row[4], cpu_s=row[5])
        found.append((total, row[6]))
    return found


def accepted_changes(database: Database, target: int | None) -> list[AcceptedChange]:
    """What an administrator accepted, oldest first."""
    found = database.execute(_ACCEPTED, {"target": target})
    return [
        AcceptedChange(
            month=month,
            accepted_at=datetime.fromtimestamp(accepted_at, UTC),
            rows=_orphaned(month, orphaned),
            lost_jobs=lost_jobs,
        )
        for month, accepted_at, orphaned, lost_jobs in found
    ]


def _orphaned(month: int, stored: str) -> tuple[KeyTotal, ...]:
    return tuple(
        KeyTotal(SummaryKey(month=month, digest=b"", text=text, site=""), *sums)
        for text, *sums in json.loads(stored)
    )


def forget(database: Database, target: int, month: int, totals: Iterable[KeyTotal]) -> None:
    """Keys under which we have nothing any more."""
    gone = [{"target": target, "month": month, "digest": total.key.digest} for total in totals]
    database.execute_many(_FORGET, gone)


def replace(
    database: Database, target: int, months: Mapping[int, Iterable[KeyTotal]], policy_digest: str
) -> None:
    """Months were sent whole: these are their keys now."""
    for month in months:
        database.execute(_FORGET_MONTH, {"target": target, "month": month})
    _write(database, target, chain.from_iterable(months.values()), policy_digest)


def _write(database: Database, target: int, totals: Iterable[KeyTotal], policy_digest: str) -> None:
    rows = [
        _values(target, total)
        | {
            "text_digest": text_digest(total.key.site, total.key.text),
            "text": total.key.text,
            "site": total.key.site,
            "policy": policy_digest,
        }
        for total in totals
    ]
    database.execute_many(_ADD, rows)
    # In one order: texts are all targets', and PostgreSQL locks a new one until its transaction
    # ends.
    database.execute_many(_ADD_TEXT, sorted(rows, key=itemgetter("text_digest")))


def text_digest(site: str, text: str) -> bytes:
    return blake2b(repr((site, text)).encode(), digest_size=8).digest()
