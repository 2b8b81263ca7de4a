"""All parts of an examination at once, for a limited time: what hangs keeps no other waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from publisher.doctor.findings import Finding, PerfData, Question
from publisher.model.errors import BUG, Later

log = logging.getLogger("publisher")

Answer = Finding | PerfData


class ExaminedPart(NamedTuple):
    """One part, and what is found when it does not end. `name` is for who waits for it."""

    name: str
    question: Question
    advice: str
    ask: Callable[[], Iterable[Answer]]


def ask_all(
    parts: Sequence[ExaminedPart],
    *,
    within_s: float,
    clock: Callable[[], float],
    waits: Callable[[Sequence[str]], None],
) -> list[Sequence[Answer]]:
    """What each part has found, in order. `waits` is called with the names of those not done."""
    found: list[list[Answer]] = [[] for _ in parts]
    ended: SimpleQueue[int] = SimpleQueue()
    for at, part in enumerate(parts):
        arguments = (part, found[at].append, partial(ended.put, at))
        Thread(target=_ask, args=arguments, daemon=True).start()
    waiting = dict(enumerate(parts))
    deadline = clock() + within_s
    with suppress(Empty):
        while waiting:
            waits([part.name for part in waiting.values()])
            del waiting[ended.get(timeout=max(0.0, deadline - clock()))]
    return [
        [*answers, _no_end(part, within_s)] if at in waiting else answers
        for at, (part, answers) in enumerate(zip(parts, found, strict=True))
    ]


def _ask(part: ExaminedPart, note: Callable[[Answer], None], ended: Callable[[], None]) -> None:
    try:
        for one in part.ask():
            note(one)
    except Exception as error:  # the boundary: a bug in one part must not hide what the others find
        log.critical("%s: a bug in publisher", part.name, exc_info=error)
        found = f"a bug in publisher ({type(error).__name__}: {error})"
        note(part.question.failure(found, "run it again with -vv, and report what it prints", BUG))
    ended()


def _no_end(part: ExaminedPart, within_s: float) -> Finding:
    return part.question.failure(f"no answer within {within_s:g} s", part.advice, Later.exit_status)
