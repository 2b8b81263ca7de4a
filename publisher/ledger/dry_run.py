"""The ledger of a dry run: it answers like the real one and writes nothing down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

from publisher.ledger.contract import (
    MessageState,
    MonthMessage,
    MonthState,
    OutboxRecord,
    Outstanding,
    Patience,
    SyncMessage,
    TargetState,
    impatient,
)
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.reads import LedgerReader
from publisher.ledger.sql.sums import months as month_text
from publisher.ledger.sql.sums.months import PART, joined
from publisher.model.entry import ReceiverName
from publisher.model.job import Epoch
from publisher.model.message import Message, MessageId, PlacedRuns, Progress
from publisher.model.totals import BY_JURA, InheritedMonth, KeyTotal, SummaryGroup, month_number


class DryRunLedger(LedgerReader):
    """`Ledger` over a publishing database that is only read.

    What a round needs to go on as if it had written is kept in memory: the ids of messages that it
    "sent", the months that it counted and adopted, and their messages. Other writes are forgotten.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._sent: set[MessageId] = set()
        self._counted: dict[str, dict[int, tuple[Sequence[SummaryGroup], str]]] = {}
        self._dirty: set[tuple[str, int]] = set()
        self._by_settings: set[tuple[str, int]] = set()
        self._moved: Counter[tuple[str, int]] = Counter()
        self._waiting: list[Outstanding] = []
        self._adopted: dict[tuple[str, int], InheritedMonth] = {}
        # Of months whose messages are in doubt.
        self._arrived: dict[tuple[str, int], list[OutboxRecord]] = {}
        self._arrived_format: dict[tuple[str, int], str] = {}

    def _forget(self, *_: object, **__: object) -> None:
        """A write of which nothing is asked later."""

    note = found_databases = retire_database = rename_database = finish_window = _forget
    learn_limit = take_over = end_round = set_before = set_singles = accept_change = _forget
    prepare = in_doubt = leave_in_doubt = give_up = split = refuse = _forget

    def release(self, numbers: Iterable[int]) -> int:
        return 0

    drop = release

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        passed = {*besides, *self._sent}
        of_target = (one for one in self._waiting if one.message.target == target)
        waiting = (one for one in of_target if one.message.id not in passed)
        return super().outstanding(target, passed) or next(waiting, None)

    def _recounted(
        self, target: str, before: MonthState, groups: Sequence[SummaryGroup], basis: str
    ) -> MonthState:
        jobs = sum(group.jobs for group in groups)
        digest = month_text.digest(month_text.encode(groups))
        by_settings = before.by_settings or (target, before.month) in self._by_settings
        return before._replace(
            jobs=jobs,
            digest=digest,
            basis=basis,
            dirty=False,
            # Which runs the month has is asked of the real ledger, whatever was counted here.
            moved=jobs - (before.jobs - before.moved) + self._moved[target, before.month],
            by_settings=by_settings and digest != before.accepted_digest,
            on_its_way=False,
        )

    def months(self, target: str) -> Sequence[MonthState]:
        counted = self._counted.get(target, {})
        states: dict[int, MonthState] = {}
        for state in super().months(target):
            states[state.month] = self._with_arrived(target, state)
        for month, (groups, basis) in counted.items():
            before = states.get(month, _nothing_of(month))
            states[month] = self._recounted(target, before, groups, basis)
        for (name, month), inherited in self._adopted.items():
            if name == target and inherited.groups:
                jobs = sum(group.jobs for group in inherited.groups)
                state = states.get(month, _nothing_of(month))
                states[month] = state._replace(
                    accepted_jobs=jobs, accepted_digest="adopted", accepted_format=inherited.format
                )
        for month in states:
            if (target, month) in self._dirty:
                states[month] = states[month]._replace(dirty=True)
        return [states[month] for month in sorted(states)]

    def _with_arrived(self, target: str, state: MonthState) -> MonthState:
        """A month after those of its messages that are in doubt were "sent"."""
        if (target, state.month) not in self._arrived:
            return state
        digest = state.sending_digest
        state = state._replace(accepted_format=self._arrived_format[target, state.month])
        if not digest:
            return state._replace(accepted_digest=PART)
        return state._replace(accepted_digest=digest, accepted_jobs=state.sending_jobs)

    def counted(self, target: str, month: int) -> Sequence[SummaryGroup]:
        counted = self._counted.get(target, {})
        return counted[month][0] if month in counted else super().counted(target, month)

    def accepted(self, target: str, month: int) -> Sequence[SummaryGroup]:
        inherited = self._adopted.get((target, month))
        if inherited is not None:
            return inherited.groups
        accepted = super().accepted(target, month)
        places = {record.group - 1 for record in self._arrived.get((target, month), ())}
        sending = enumerate(super().sending(target, month))
        return joined(accepted, [group for place, group in sending if place in places])

    def summary_keys(self, target: str, month: int) -> Sequence[tuple[KeyTotal, str]]:
        inherited = self._adopted.get((target, month))
        if inherited is not None:
            return [(total, BY_JURA) for total in inherited.singles]
        return super().summary_keys(target, month)

    def count(
        self,
        target: str,
        runs: PlacedRuns,
        contents: Mapping[int, Sequence[SummaryGroup]],
        *,
        dirty: Mapping[int, int],
        clean: Collection[int],
        by_settings: Collection[int],
        progress: Progress,
        basis: str,
        policy_digest: str,
        now: datetime,
    ) -> None:
        counted = self._counted.setdefault(target, {})
        there = {state.month: state.basis for state in self.months(target)}
        for month, groups in contents.items():
            counted[month] = (groups, basis if month in clean else there.get(month, basis))
        self._by_settings |= {(target, month) for month in by_settings}
        self._moved.update({(target, month): moved for month, moved in dirty.items() if moved > 0})
        # A changed job may have moved to a month in which nothing was counted yet.
        for month in set(dirty) - {state.month for state in super().months(target)}:
            self._counted[target].setdefault(month, ((), basis))
        self._mark(target, dirty, clean)

    def _mark(self, target: str, dirty: Iterable[int], clean: Iterable[int]) -> None:
        self._dirty |= {(target, month) for month in dirty}
        self._dirty -= {(target, month) for month in clean}

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        self._adopted[target, inherited.month] = inherited

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        self._await(messages)

    def prepare_months(self, target: str, messages: Sequence[MonthMessage]) -> None:
        self._await(messages)

    def _await(self, messages: Sequence[MonthMessage] | Sequence[SyncMessage]) -> None:
        self._waiting += [
            Outstanding(0, one.message, MessageState.PREPARED, one.records, narrowing=False)
            for one in messages
        ]

    def working_on(
        self, target: str, patience: Patience = impatient, receiver: ReceiverName | None = None
    ) -> AbstractContextManager[None]:
        if receiver is not None:
            self._places[target] = receiver
        return nullcontext()

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
        leads_to: str = "",
    ) -> TargetState:
        state = super().target(target)
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
            held=(),
            leads_to="",
        )

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        first = super().outstanding(message.target, self._sent)
        if first is not None and first.message.id == message.id:
            for record in first.records:
                if record.group:
                    at = message.target, month_number(record.ended_at)
                    self._arrived.setdefault(at, []).append(record)
                    self._arrived_format[at] = message.format
        self._sent.add(message.id)


def _nothing_of(month: int) -> MonthState:
    return MonthState(month, dirty=False)
