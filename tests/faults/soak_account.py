"""What a soak has come to: the databases' jobs against what stands at the receivers, and what came twice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_ams.tables import Tables
from tests.fake_sgas import FakeSGAS
from tests.faults.walk_services import SUMS_TOPIC
from tests.support.sites import SiteUnderTest
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

Job = tuple[str, str, int, int]
"""JobID, local id, end, wall time."""

_FINISHED: Final = (
    "SELECT JobID, LocalJobID, EndTime, UsedWalltime FROM AAR JOIN Status ON Status.ID = StatusID WHERE Name <> ?"
)


class Account:
    """Everything counted, once."""

    def __init__(self, site: SiteUnderTest, sgas: FakeSGAS) -> None:
        self._site = site
        self._receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
        self.jobs = jobs_in(site.database(), *sorted((site.control / "archive").glob("*.db")))
        self.strange: list[str] = []
        self.losses = self.duplicates = self.repeated = 0
        self.delivered: dict[str, int] = {}
        self._count_records()
        self._count_sums()
        self._count_usage(sgas)
        met = [fault for _, _, fault in site.fake.faults.met] + [fault for _, fault in sgas.faults.met]
        self.faults = sum(fault is not None for fault in met)

    def _messages(self, topic: str) -> list[tuple[str, bytes]]:
        stored = self._site.fake.messages(PROJECT, topic)
        return [(one.attributes["empaid"], self._receiver.take(one).text.encode()) for one in stored]

    def _count_records(self) -> None:
        tables = Tables()
        ids: Counter[str] = Counter()
        contents: dict[str, frozenset[Any]] = {}  # by message id, in the order of arrival
        for name, payload in self._messages(TOPIC):
            ids[name] += 1
            rows = read_car(payload, datetime.now(UTC))
            content = frozenset(row["LocalJobId"] for row in rows)
            if contents.setdefault(name, content) != content:
                self.strange.append(f"{name} came with other records")
            for row in rows:
                tables.replace("JobRecords", row)
        stored = tables.rows("JobRecords")
        found = {(str(row["LocalJobId"]), row["EndTime"], row["WallDuration"]) for row in stored}
        truth = {job[1:] for job in self.jobs}
        self._weigh("egi", len(truth - found), len(truth & found), found - truth)
        self.repeated = sum(ids.values()) - len(ids)
        self.duplicates += len(stored) - len(found) + doubled(contents)

    def _count_sums(self) -> None:
        tables = Tables()
        for _, payload in self._messages(SUMS_TOPIC):
            name, rows = read_text(payload, datetime.now(UTC))
            for row in rows:
                tables.replace(name, row)
        summed = tables.rows("Summaries")
        jobs, wall_s = (sum(int(str(row[column])) for row in summed) for column in ("NumberOfJobs", "WallDuration"))
        self._weigh("sums", max(0, len(self.jobs) - jobs), min(jobs, len(self.jobs)), set())
        self.duplicates += max(0, jobs - len(self.jobs))
        if wall_s != sum(job[3] for job in self.jobs):
            self.strange.append(f"the months add up to {wall_s} s of wall time")

    def _count_usage(self, sgas: FakeSGAS) -> None:
        rows = list(sgas.rows.values())
        found = {(str(row.global_job_id), row.wall_s) for row in rows}
        truth = {(job[0], job[3]) for job in self.jobs}
        self._weigh("nordic", len(truth - found), len(truth & found), found - truth)
        self.duplicates += len(rows) - len(found)

    def _weigh(self, target: str, lost: int, delivered: int, strangers: set[Any]) -> None:
        self.losses += lost
        self.delivered[target] = delivered
        if strangers:
            self.strange.append(
                f"{target} has {len(strangers)} rows that are not jobs, such as {next(iter(strangers))}"
            )


def doubled(contents: Mapping[str, frozenset[Any]]) -> int:
    """Records that came under two ids, other than in a message whose answer was lost and then in a part of it."""
    carriers: dict[Any, list[str]] = {}
    for name, records in contents.items():
        for record in records:
            carriers.setdefault(record, []).append(name)
    pairs = (pair for names in carriers.values() for pair in pairwise(names))
    return sum(not contents[part] <= contents[whole] for whole, part in pairs)


def jobs_in(*databases: Path) -> set[Job]:
    """Every finished job, once, in however many databases it stands."""
    jobs: set[Job] = set()
    for path in databases:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute(_FINISHED, ("in-progress",))
            jobs |= {(job_id, str(local_id), end, wall) for job_id, local_id, end, wall in found}
    return jobs
