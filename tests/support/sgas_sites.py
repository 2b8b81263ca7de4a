"""A whole site that sends usage records to the stand-in SGAS, and what its rows must be."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lxml import etree

from publisher.cli.site import configured_site
from publisher.publishing.databases import trace
from tests.arex_databases import SampleJob
from tests.fake_sgas import FakeSGAS, Row
from tests.support.pki import PKI, Credential
from tests.support.sites import ConfiguredSite, Run
from tests.support.strict_sgas import read_ur

MACHINE = "ce01.example.org"


class SgasSite(ConfiguredSite):
    """A site with the one target `nordic`. `right` is what the stand-in lets its host do."""

    def __init__(
        self, folder: Path, pki: PKI, fake: FakeSGAS, *, host: Credential | None = None, right: str | None = "jobinsert"
    ) -> None:
        self.fake = fake
        host = host or pki.host()
        if right:
            fake.allow(host, right)
        nordic = {
            "type": "sgas",
            "url": fake.url,
            "format": "ogf-ur",
            "start": "all",
            "every": "1s",
            "attempts": 1,
            "read_timeout_s": "60s",
        }
        super().__init__(folder, pki, host, {"nordic": nordic})

    @property
    def target(self) -> dict[str, Any]:
        """The target's block in the configuration."""
        nordic: dict[str, Any] = self.config["targets"]["nordic"]
        return nordic

    def publish_all(self, rounds: int = 200) -> Run:
        """Rounds until one has nothing more to send for later."""
        for _ in range(rounds):
            run = self.publish()
            if run.status not in (75, 76):
                return run
        raise AssertionError(f"no end after {rounds} rounds: {run.out}{run.err}")

    def outcome(self, run: Run) -> dict[str, Any]:
        found: dict[str, Any] = run.json["targets"]["nordic"]
        return found

    def row_id(self, job: SampleJob) -> str:
        """The id of the job's row, whatever the server calls the record."""
        (found,) = (row for row in self.fake.rows.values() if row.global_job_id == job.job_id)
        return str(found.id)

    def traced(self, job: SampleJob) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.run("trace", "--json", job.job_id).json["deliveries"]
        return found

    def traced_row_ids(self, jobs: Iterable[SampleJob]) -> list[str]:
        """The row of each job as `trace` finds it, without hundreds of command lines."""
        live = configured_site(self.path, threading.Event())
        return [trace.trace(live, job.job_id).deliveries[0].row_id for job in jobs]


def record_id(job: SampleJob) -> str:
    """As jura-ng spells it."""
    return f"ur-{urlsplit(job.endpoint_url).hostname}-{job.job_id}"


def truth(job: SampleJob) -> tuple[Any, ...]:
    """What SGAS must hold of a job."""
    return (
        job.job_id,
        job.local_job_id or None,
        job.end_time,
        job.wall_s,
        job.cpu_user_s + job.cpu_kernel_s,
        job.cpu_user_s,
        job.cpu_kernel_s,
        max(job.cpus, 1),
        job.exit_code % 256,
        job.status,
        job.job_name,
        job.user,
        job.vo or None,
        job.queue,
        MACHINE,
        (job.client_host or "").rpartition(":")[0] or None,
    )


def told(row: Row) -> tuple[Any, ...]:
    """The same of a row."""
    return (
        row.global_job_id,
        row.local_job_id,
        _epoch(row.end_time),
        row.wall_s,
        row.cpu_s,
        row.user_time_s,
        row.kernel_time_s,
        row.processors,
        row.exit_code,
        row.status,
        row.job_name,
        row.global_user_name,
        row.vo_name,
        row.queue,
        row.machine_name,
        row.submit_host,
    )


def assert_rows(site: SgasSite, jobs: Iterable[SampleJob], *, renamed: bool = False) -> None:
    """The rows are the jobs, each once, under the ids that stay for ever."""
    rows = site.fake.rows
    jobs = list(jobs)
    if renamed:
        assert Counter(truth(job)[:1] + truth(job)[2:] for job in jobs) == Counter(
            told(row)[:1] + told(row)[2:] for row in rows.values()
        )
        return
    assert Counter(map(truth, jobs)) == Counter(map(told, rows.values()))
    assert set(rows) == {record_id(job) for job in jobs}


def assert_documents(site: SgasSite) -> None:
    """Every document that was sent is well-formed and within the limits, also by the strict reader's rules."""
    for request in site.fake.requests.inserts:
        assert len(request.body) <= 2_000_000
        assert request.header("content-encoding") == ""
        root = etree.fromstring(request.body, etree.XMLParser(resolve_entities=False, huge_tree=True))
        assert 1 <= len(root) <= 50
        assert read_ur(request.body)


def _epoch(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
