"""How far accounting databases were read, and which were found, in the publishing database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from publisher.ledger.answers import KnownDatabase
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.parts.opened import LedgerPart, sound
from publisher.model.message import Progress, StoreCursor, WindowMark
from publisher.model.receiver import WaitingRun
from publisher.model.time import epoch, moment

_CURSOR = "SELECT store_mark, read_to, wanted, began FROM target WHERE id = :target"
_BESIDE = """
SELECT store_mark, read_to, wanted, began FROM target
WHERE receiver = :receiver AND name <> :name AND store_mark <> ''"""
_WINDOW_PROGRESS = """
SELECT ended_at, change, store_mark FROM window_progress WHERE target = :target AND name = :name"""
_WAITING = """
SELECT run, mark, digest, job_id, local_id, ended_at, wall_s, cpu_s, jobs FROM waiting
WHERE target = :target ORDER BY run, mark"""
_FORGET = "DELETE FROM waiting WHERE target = :target"
_WAIT = """
INSERT INTO waiting (target, run, mark, digest, job_id, local_id, ended_at, wall_s, cpu_s, jobs)
VALUES (:target, :run, :mark, :digest, :job_id, :local_id, :ended_at, :wall_s, :cpu_s, :jobs)"""
_KNOWN = """
SELECT target.name, file, inode, seen_at, retired_at, never_sent
FROM source_file JOIN target ON target.id = source_file.target
WHERE CAST(:name AS TEXT) IS NULL OR target.name = :name ORDER BY file, target.name"""
_FOUND = """
INSERT INTO source_file (target, file, inode, seen_at) VALUES (:target, :file, :inode, :now)
ON CONFLICT (target, file) DO UPDATE SET
    inode = excluded.inode, seen_at = excluded.seen_at, retired_at = NULL, never_sent = '{}'"""
_RETIRE = """
UPDATE source_file SET retired_at = :now, never_sent = :never_sent
WHERE target = :target AND file = :file"""


class SqlPositions(LedgerPart):
    """`Positions` of a publishing database."""

    def cursor(self, target: str) -> StoreCursor | None:
        row = self._opened.first(_CURSOR, {"target": self._opened.number(target)})
        return None if row is None else StoreCursor(*row)

    def beside(self, target: str) -> Sequence[StoreCursor]:
        asked = {"receiver": self._opened.receiver(target), "name": target}
        with self._database.reading():
            found = self._database.execute(_BESIDE, asked).fetchall()
        return [StoreCursor(*row) for row in found]

    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        number = self._opened.known_number(target)
        with self._database.atomic():
            rows.advance(self._database, number, progress, policy_digest, now)

    def window_progress(self, target: str, name: str) -> WindowMark | None:
        asked = {"target": self._opened.number(target), "name": name}
        found = self._opened.first(_WINDOW_PROGRESS, asked)
        if found is None:
            return None
        return WindowMark(name, *found)

    def finish_window(self, target: str, name: str) -> None:
        of = {"target": self._opened.known_number(target), "name": name}
        self._opened.write(rows.FINISH_WINDOW, of)

    def waiting(self, target: str) -> Sequence[WaitingRun]:
        asked = {"target": self._opened.number(target)}
        with self._database.reading():
            found = self._database.execute(_WAITING, asked).fetchall()
        return [WaitingRun(*row) for row in found]

    def wait(self, target: str, runs: Iterable[WaitingRun]) -> None:
        of_target = {"target": self._opened.known_number(target)}
        with self._database.atomic():
            self._database.execute(_FORGET, of_target)
            self._database.execute_many(_WAIT, [of_target | one._asdict() for one in runs])


class SqlDatabases(LedgerPart):
    """`Databases` of a publishing database."""

    def known(self, target: str | None = None) -> Sequence[KnownDatabase]:
        with self._database.reading():
            found = self._database.execute(_KNOWN, {"name": target}).fetchall()
        with sound("the accounting databases that rounds have found"):
            return [_known_database(*row) for row in found]

    def found(self, target: str, inodes: Mapping[str, int], now: datetime) -> None:
        at = {"target": self._opened.known_number(target), "now": epoch(now)}
        found = [at | {"file": file, "inode": inode} for file, inode in inodes.items()]
        with self._database.atomic():
            self._database.execute_many(_FOUND, found)

    def retire(
        self, target: str, file: str, never_sent: Mapping[int, int | None], now: datetime
    ) -> None:
        retired = {"target": self._opened.known_number(target), "file": file}
        lost = {"now": epoch(now), "never_sent": json.dumps(never_sent)}
        with self._database.atomic():
            self._database.execute(_RETIRE, retired | lost)

    def rename(self, target: str, file: str, name: str) -> None:
        number = self._opened.known_number(target)
        with self._database.atomic():
            rows.rename_database(self._database, number, file, name)
        self._opened.entry_numbers.forget()


def _known_database(
    target: str, file: str, inode: int, seen: int, retired: int | None, never_sent: str
) -> KnownDatabase:
    if not isinstance(file, str):  # a damaged page may have a number there
        raise TypeError(file)
    seen_at, lost = datetime.fromtimestamp(seen, UTC), json.loads(never_sent).items()
    by_month = {int(month): None if jobs is None else int(jobs) for month, jobs in lost}
    return KnownDatabase(target, file, inode, seen_at, moment(retired), by_month)
