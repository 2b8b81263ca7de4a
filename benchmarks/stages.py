"""The journey in this process: each line is a whole round with one stage more than that above.

`python -m benchmarks.stages CONFIG JOBS FOLDER` prints JSON. The rounds are real; what a line
leaves out is a ledger that only rehearses, or a transport that takes everything.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.measure import Cost, measured
from publisher import config
from publisher.cli import main
from publisher.cli.site import LiveSite
from publisher.formats import is_summary_format
from publisher.jobs.reader import JobPage
from publisher.ledger.answers import TargetState
from publisher.ledger.contract import Ledger
from publisher.ledger.sql.dry_run import DryRun, DryRunTargets, dry_run_ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read
from publisher.ledger.sqlite.scratch import ScratchEntries
from publisher.model.entry import ReceiverName
from publisher.model.job import Epoch, JobId, ReadRequest, SkippedJob
from publisher.model.message import Message
from publisher.publishing.databases.load import loaded
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.round import Round
from publisher.publishing.site import ProcessEnvironment
from publisher.transports.base import Credentials, Receipt, Step, Transport, Verdict
from publisher.transports.credentials.smime import Signer

STAGES: Final = (
    "pages read",
    "+ judged, rendered, packed",
    "+ every record checked",
    "+ signed, base64",
    "+ pushed over TLS",
    "+ the ledger",
)

SUMMARY_STAGES: Final = (
    "rows read as columns",
    "+ known, judged, counted",
    "+ the ledger; months rendered, signed, sent",
)


class Counted:
    """An observer that counts the work."""

    def __init__(self) -> None:
        self.rows = 0
        self.messages = 0
        self.payload_bytes = 0

    def round_begins(self, state: TargetState, *, sweep: bool) -> None: ...

    def round_ends(self, target: str) -> None: ...

    def page_read(self, target: str, page: JobPage) -> None:
        self.rows += len(page.jobs)

    def job_set_aside(self, target: str, job: SkippedJob) -> None: ...

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None: ...

    def message_prepared(self, message: Message) -> None:
        self.messages += 1
        self.payload_bytes += len(message.payload)

    def message_handed_over(self, message: Message, receipt: Receipt) -> None: ...

    def message_settled(self, message: Message, receipt: Receipt) -> None: ...


class Believing(DryRunTargets):
    """Takes the policy of this digest for an old one."""

    def __init__(self, opened: DryRun, checked_digest: str) -> None:
        super().__init__(opened)
        self._checked_digest = checked_digest

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        named = {"start_rule": start_rule, "selection_digest": selection_digest}
        state = super().begin_round(target, start=start, receiver=receiver, **named)
        return state._replace(checked_digest=self._checked_digest)


def rehearsed(folder: Path, policy_digest: str, *, check_all: bool) -> Ledger:
    """Return a ledger that knows nobody; unless `check_all`, one payload in fifty is checked."""
    read = open_database_to_read(folder / "nothing.db"), ScratchEntries()
    believing = Believing(DryRun(*read), "" if check_all else policy_digest)
    return dry_run_ledger(*read)._replace(targets=believing)


class TakesAll:
    """A transport that says yes: to the payload or, with a signer, to the signed one in base64."""

    def __init__(self, limit: int, signer: Signer | None = None) -> None:
        self._limit = limit
        self._signer = signer

    def payload_limit(self) -> int:
        return self._limit

    def deliver(self, message: Message, now: datetime) -> Receipt:
        sent = message.payload
        if self._signer:
            sent = base64.b64encode(self._signer.sign(sent))
        return Receipt(verdict=Verdict.DELIVERED, remote_id="1", bytes_sent=len(sent))

    def preflight(self) -> tuple[Step, ...]:
        return ()

    def warnings(self, now: datetime) -> list[str]:
        return []

    def close(self) -> None: ...


def live(path: Path) -> LiveSite:
    """The site of a configuration file, as the command line makes it."""
    return LiveSite(
        settings=config.load(path, os.environ, host_name="ce.example.org"),
        process=ProcessEnvironment(
            environment=os.environ,
            clock=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            wait=threading.Event().wait,
        ),
    )


def stages(site: LiveSite, jobs: int, folder: Path) -> Iterator[tuple[str, Cost, dict[str, float]]]:
    """Cost and work of each stage with all stages before it, for the first so many jobs."""
    (target,) = site.settings.targets
    credentials = site.settings.credentials
    signer = Signer(
        Credentials(certificate=credentials.certificate, key=credentials.key, ca=credentials.ca),
        datetime.now(UTC),
    )
    digest, limit = (
        site.sending.live(target).policy_digest,
        site.sending.live(target).transport.payload_limit(),
    )

    def checking(yes: bool) -> Ledger:
        return rehearsed(folder, digest, check_all=yes)

    yield STAGES[0], *_pages(site, jobs)
    made: list[tuple[Callable[[], Ledger], Callable[[Transport], Transport]]] = [
        (lambda: checking(False), lambda _: TakesAll(limit)),
        (lambda: checking(True), lambda _: TakesAll(limit)),
        (lambda: checking(True), lambda _: TakesAll(limit, signer)),
        (lambda: checking(True), lambda real: real),
        (lambda: sql_ledger(open_database(folder / "stages.db")), lambda real: real),
    ]
    for name, (ledger, transport) in zip(STAGES[1:], made, strict=True):
        live = site.sending.live(target)
        staged = live._replace(transport=transport(live.transport))
        yield name, *_round(site, staged, ledger(), jobs)


def summary_stages(
    site: LiveSite, jobs: int, folder: Path
) -> Iterator[tuple[str, Cost, dict[str, float]]]:
    """The same for monthly totals of all jobs, which are only counted."""
    (target,) = site.settings.targets
    live = site.sending.live(target)
    taking = live._replace(transport=TakesAll(live.transport.payload_limit()))
    yield SUMMARY_STAGES[0], *_pages(site, jobs)
    ledger = rehearsed(folder, live.policy_digest, check_all=True)
    yield SUMMARY_STAGES[1], *_round(site, taking, ledger, None)
    kept = sql_ledger(open_database(folder / "summary-stages.db"))
    yield SUMMARY_STAGES[2], *_round(site, live, kept, None)


def _pages(site: LiveSite, jobs: int) -> tuple[Cost, dict[str, float]]:
    rows = 0
    with closing(site.accounting.open()) as source, measured() as stretch:
        request = ReadRequest(frozenset(), Epoch(int(time.time())))
        for page in source.sources()[0].read(None, (), request):
            rows += page.rows
            if rows >= jobs:
                break
    return stretch.cost, {"rows": rows}


def _round(
    site: LiveSite, live: LiveTarget, ledger: Ledger, jobs: int | None
) -> tuple[Cost, dict[str, float]]:
    counted = Counted()
    with (
        closing(ledger),
        closing(live.transport),
        measured() as stretch,
        loaded(site, ledger.positions, sends_nothing=False) as there,
        closing(there.open()) as accounting,
    ):
        process = site.process
        outcome = Round(live, accounting, ledger, counted, process.clock, process.wait).run(jobs)
    if outcome.exit_status not in (0, 65):
        raise RuntimeError(f"the round ended with {outcome}")
    work: dict[str, float] = {
        "rows": counted.rows,
        "records": outcome.records,
        "messages": counted.messages,
        "payload_bytes": counted.payload_bytes,
    }
    return stretch.cost, work


if __name__ == "__main__":
    gc.set_threshold(main.CYCLES_AFTER)
    site = live(Path(sys.argv[1]))
    split = summary_stages if is_summary_format(site.settings.targets[0].format) else stages
    found = split(site, int(sys.argv[2]), Path(sys.argv[3]))
    told = [{"name": name, "cost": asdict(cost), "work": work} for name, cost, work in found]
    print(json.dumps(told))
