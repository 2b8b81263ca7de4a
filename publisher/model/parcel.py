"""The packer: rendered records in, batches out that keep both limits, in order, with the progress that each completes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from publisher.errors import Unfit
from publisher.model.job import JobKey
from publisher.model.message import Rendered
from publisher.model.progress import Progress

TOO_LARGE: Final = "too-large"
_LEARNT_FOR: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntLimit:
    """The largest payload for a service that refused a larger one. `wire` stands for the options of the target.

    It is believed for a week: asking again costs one refused message, and a limit that an operator raised is found. With other
    options (another service, another `batch_bytes`), or with a clock that went back, the question is open at once.
    """

    payload_bytes: int
    wire: str
    learnt_at: datetime

    def holds(self, wire: str, now: datetime) -> bool:
        return self.wire == wire and timedelta(0) <= now - self.learnt_at < _LEARNT_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records of one message, and what the ledger may write down of the reading once they are prepared."""

    records: tuple[Rendered, ...]
    progress: Progress


class Packer:
    """Cuts batches between records, never inside one, before anything is sent.

    `most_records` 0 is no limit by count. `most_bytes` is what one payload may have, the frame counted by `around` bytes once
    and `between` bytes at each record. `fill_to` is asked at every record how full a payload shall be now: less than
    `most_bytes` when the service has refused a size. A record that is larger than that goes alone: whether it is too large
    shall be the service's word.
    """

    def __init__(
        self, *, most_records: int, most_bytes: int, around: int, between: int, fill_to: Callable[[], int]
    ) -> None:
        self._most_records = most_records
        self._most_bytes = most_bytes - around
        self._around = around
        self._between = between
        self._fill_to = fill_to
        self._waiting: deque[Rendered] = deque()
        self._bytes = 0
        self._marks: deque[tuple[int, Progress]] = deque()
        self._added = 0
        self._cut = 0
        self._keys: set[JobKey] = set()

    def __contains__(self, key: JobKey) -> bool:
        return key in self._keys

    def add(self, record: Rendered, progress: Progress | None = None) -> Sequence[Batch]:
        """Add a record; gives the batches that it closes, if any. `progress` goes with the batch that holds it.

        Raises: Unfit for a record that no message can hold.
        """
        size = len(record.content) + self._between
        if size > self._most_bytes:
            raise Unfit(TOO_LARGE, f"the record alone has {size} bytes, a message holds {self._most_bytes}")
        full: Sequence[Batch] = ()
        so_far = self._bytes + size
        if self._waiting and (so_far > self._most_bytes or so_far > self._fill_to() - self._around):
            full = (self._close(),)
        self._waiting.append(record)
        self._keys.add(record.entry.key)
        self._bytes += size
        self._added += 1
        if progress is not None:
            self.mark(progress)
        if self._most_records and len(self._waiting) >= self._most_records:
            full = (*full, self._close())
        return full

    def mark(self, progress: Progress) -> None:
        """Everything read so far is accounted for by `progress` once the records before it are written down."""
        if self._marks and self._marks[-1][0] == self._added:
            progress = self._marks.pop()[1] + progress
        self._marks.append((self._added, progress))

    @property
    def idle(self) -> bool:
        """Whether no record waits: then progress can be written down at once."""
        return not self._waiting

    def rest(self) -> Iterator[Batch]:
        """The last batch, perhaps without records when there is only progress left to write down."""
        if self._waiting or self._marks:
            yield self._close()

    def _close(self) -> Batch:
        records = tuple(self._waiting)
        self._waiting.clear()
        self._keys.clear()
        self._bytes = 0
        self._cut += len(records)
        progress = Progress()
        while self._marks and self._marks[0][0] <= self._cut:
            progress += self._marks.popleft()[1]
        return Batch(records=records, progress=progress)
