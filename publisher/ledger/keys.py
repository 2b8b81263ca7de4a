"""The receiver's summary keys that a target's single records made, by month, with what was sent under each."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from publisher.model.message import Rendered
from publisher.model.months import AcceptedChange
from publisher.model.summary_keys import KeyTotal, SummaryKey

_ADD = """
INSERT INTO summary_key (target, month, digest, said, site, jobs, wall_s, cpu_s, policy)
VALUES (:target, :month, :digest, :said, :site, :jobs, :wall_s, :cpu_s, :policy)
ON CONFLICT (target, month, digest) DO UPDATE SET
    jobs = jobs + excluded.jobs, wall_s = wall_s + excluded.wall_s, cpu_s = cpu_s + excluded.cpu_s,
    policy = excluded.policy"""
_KEYS = """
SELECT month, digest, said, jobs, wall_s, cpu_s, policy, site FROM summary_key WHERE target = :target AND month = :month"""

_ACCEPTED = "SELECT month, accepted_at, stale, lost_jobs FROM key_change WHERE target = :target ORDER BY id"


def add(connection: sqlite3.Connection, target: int, records: Sequence[Rendered], policy_digest: str) -> None:
    """The keys of a message's records. Only jobs that go out for the first time add to what is under them."""
    said: dict[bytes, SummaryKey] = {}  # by digest, which is of the month too: to hash whole keys takes 0.3 µs a record
    sums: defaultdict[bytes, list[int]] = defaultdict(lambda: [0, 0, 0])
    for record in records:
        key = record.summary_key
        if key is not None:
            said[key.digest] = key
            here = sums[key.digest]
            if record.first_time:
                here[0] += 1
                here[1] += record.job.wall_s
                here[2] += record.job.cpu_user_s + record.job.cpu_kernel_s
    totals = [
        KeyTotal(key=said[digest], jobs=jobs, wall_s=wall, cpu_s=cpu) for digest, (jobs, wall, cpu) in sums.items()
    ]
    _write(connection, target, totals, policy_digest)


def of_month(connection: sqlite3.Connection, target: int | None, month: int) -> list[tuple[KeyTotal, str]]:
    """The keys of a month, each with the digest of the policy that said it."""
    return [
        (
            KeyTotal(
                key=SummaryKey(month=row[0], digest=row[1], text=row[2], site=row[7]),
                jobs=row[3],
                wall_s=row[4],
                cpu_s=row[5],
            ),
            row[6],
        )
        for row in connection.execute(_KEYS, {"target": target, "month": month})
    ]


def accepted_changes(connection: sqlite3.Connection, target: int | None) -> list[AcceptedChange]:
    """What an administrator accepted, oldest first."""
    return [
        AcceptedChange(
            month=month,
            accepted_at=datetime.fromtimestamp(accepted_at, UTC),
            rows=tuple(
                KeyTotal(
                    key=SummaryKey(month=month, digest=b"", text=text, site=""), jobs=jobs, wall_s=wall_s, cpu_s=cpu_s
                )
                for text, jobs, wall_s, cpu_s in json.loads(stale)
            ),
            lost_jobs=lost_jobs,
        )
        for month, accepted_at, stale, lost_jobs in connection.execute(_ACCEPTED, {"target": target})
    ]


def forget(connection: sqlite3.Connection, target: int, month: int, totals: Iterable[KeyTotal]) -> None:
    """Keys under which nothing of ours stands any more."""
    connection.executemany(
        "DELETE FROM summary_key WHERE target = ? AND month = ? AND digest = ?",
        [(target, month, total.key.digest) for total in totals],
    )


def replace(
    connection: sqlite3.Connection, target: int, months: Mapping[int, Iterable[KeyTotal]], policy_digest: str
) -> None:
    """A month was sent whole: these are its keys now."""
    for month, totals in months.items():
        connection.execute("DELETE FROM summary_key WHERE target = ? AND month = ?", (target, month))
        _write(connection, target, totals, policy_digest)


def _write(connection: sqlite3.Connection, target: int, totals: Iterable[KeyTotal], policy_digest: str) -> None:
    connection.executemany(
        _ADD,
        [
            {
                "target": target,
                "month": total.key.month,
                "digest": total.key.digest,
                "said": total.key.text,
                "site": total.key.site,
                "jobs": total.jobs,
                "wall_s": total.wall_s,
                "cpu_s": total.cpu_s,
                "policy": policy_digest,
            }
            for total in totals
        ],
    )
