"""The ledger of a rehearsal (`--dry-run`): it answers like the real one and writes nothing down."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

from publisher.ledger.base import Carried, Delivery, Known, Ledger, Outstanding, Quarantined, TargetState
from publisher.model.job import Epoch, JobId, JobKey
from publisher.model.message import Message, MessageId, Rendered
from publisher.model.progress import Cursor, OpenRow, Progress


class RehearsalLedger:
    """`Ledger` over another one that is only asked. Remembers the ids of what it "sent", so that nothing goes twice."""

    def __init__(self, asked: Ledger) -> None:
        self._asked = asked
        self._sent: set[MessageId] = set()

    def target(self, target: str) -> TargetState | None:
        return self._asked.target(target)

    def known(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Known]:
        return self._asked.known(target, keys)

    def held(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Quarantined]:
        return self._asked.held(target, keys)

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        return self._asked.outstanding(target, {*besides, *self._sent})

    def cursor(self, target: str, database: str) -> Cursor | None:
        return self._asked.cursor(target, database)

    def open_rows(self, target: str) -> Sequence[OpenRow]:
        return self._asked.open_rows(target)

    def quarantine(self, target: str | None = None) -> Sequence[Quarantined]:
        return self._asked.quarantine(target)

    def trace(self, job_id: JobId) -> Sequence[Delivery]:
        return self._asked.trace(job_id)

    def working_on(self, target: str) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_round(
        self, target: str, *, start_rule: str, start: Epoch | None, selection_digest: str, now: datetime
    ) -> TargetState:
        state = self._asked.target(target)
        if state is not None and state.start_rule == start_rule:
            return state
        return TargetState(
            target=target,
            start_rule=start_rule,
            start=start,
            selection_digest=selection_digest,
            checked_digest="",
            last_round=None,
            last_success=None,
            last_published_end=None,
            swept=None,
            delivered=0,
            prepared=0,
            in_doubt=0,
            quarantined=0,
            messages=0,
        )

    def prepare(self, message: Message, records: Sequence[Rendered], progress: Progress, policy_digest: str) -> None:
        pass

    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        pass

    def sent(self, message: Message, *, remote_id: str, row_ids: Mapping[str, str], now: datetime) -> None:
        self._sent.add(message.id)

    def in_doubt(self, message: Message, reason: str) -> None:
        pass

    def split(self, whole: Outstanding, halves: Sequence[tuple[Message, Sequence[Carried]]], narrowing: bool) -> None:
        pass

    def refuse(self, whole: Outstanding, rule: str, reason: str, policy_digest: str, now: datetime) -> None:
        pass

    def end_round(self, target: str, *, success: bool, swept: bool, checked: str | None, now: datetime) -> None:
        pass

    def release(self, numbers: Iterable[int]) -> int:
        return 0

    def drop(self, numbers: Iterable[int]) -> int:
        return 0

    def close(self) -> None:
        self._asked.close()
