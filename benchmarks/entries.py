"""What an entry costs a ledger that holds few, and one that holds millions.

`python -m benchmarks.entries FOLDER [--entries 5000000]` fills a ledger in SQLite with entries of
single records, a message of 1,000 at a time with a payload of 700 kB, prepared and settled as a
round does, and prints for each stretch of 100,000 the CPU of an entry in microseconds. Runs come
in the order of their submission, as a backlog does, with rows of 3,000 users a month.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from publisher.ledger.answers import SentMessage
from publisher.ledger.contract import Ledger
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database
from publisher.model.job import Epoch, JobId
from publisher.model.message import Message, Progress, Rendered, message_of
from tests.support.jobs import RECEIVER, make_job, make_record

_MESSAGE: Final = 1_000
_STRETCH: Final = 100_000
_PAYLOAD_BYTES: Final = 700_000
_USERS: Final = 3_000
_A_DAY: Final = 20_000  # jobs
_FIRST_END: Final = 1_767_225_600  # 2026-01-01


def main() -> None:
    """Fill the ledger, and print a line a stretch."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--entries", type=int, default=5_000_000)
    arguments = asked.parse_args()
    path = arguments.folder / "publishing.db"
    with closing(open_database(path)) as database:
        ledger = sql_ledger(database)
        ledger.targets.begin_round(
            "egi", start_rule="all", start=None, selection_digest="", receiver=RECEIVER
        )
        for done in range(0, arguments.entries, _STRETCH):
            cost, clock = _stretch(ledger, range(done, min(done + _STRETCH, arguments.entries)))
            entries = min(done + _STRETCH, arguments.entries)
            size = path.stat().st_size / entries
            line = f"{entries:>9,}  {cost:5.1f} us CPU  {clock:5.1f} us  {size:5.0f} bytes"
            print(line, flush=True)


def _stretch(ledger: Ledger, numbers: range) -> tuple[float, float]:
    """Return microseconds an entry in this process: of CPU, and by the clock."""
    cpu_s = clock_s = 0.0
    sent: SentMessage | None = None
    for records in _messages(numbers):
        message = _message(len(records))
        began = time.process_time(), time.perf_counter()
        ledger.outbox.prepare(message, records, Progress(), "policy", sent)
        cpu_s += time.process_time() - began[0]
        clock_s += time.perf_counter() - began[1]
        sent = SentMessage(message, "1", {}, datetime.now(UTC))
    if sent is not None:
        ledger.outbox.sent(sent.message, remote_id="1", remote_ids={}, now=sent.at)
    return cpu_s / len(numbers) * 1e6, clock_s / len(numbers) * 1e6


def _messages(numbers: range) -> Iterator[Sequence[Rendered]]:
    for first in range(numbers.start, numbers.stop, _MESSAGE):
        yield list(map(_record, range(first, min(first + _MESSAGE, numbers.stop))))


def _record(number: int) -> Rendered:
    end = Epoch(_FIRST_END + number * 86_400 // _A_DAY)
    job = make_job(
        job_id=JobId(f"{number:08x}oKDmABFKDmvkIKDmABFKDmBcdEfG"),
        local_id=str(number),
        submitted_at=Epoch(end - 9_000),
        ended_at=end,
    )
    return make_record(job, vo=f"vo{number * 7919 % _USERS}")


def _message(records: int) -> Message:
    return message_of(os.urandom(_PAYLOAD_BYTES), "egi", "car", records, datetime.now(UTC))


if __name__ == "__main__":
    main()
