"""When a target's next round begins, from what the ledger knows: so a daemon that was away knows what it missed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from publisher.config import TargetSettings
from publisher.ledger.base import TargetState

# A target that failed is tried again as the hourly timer would, though its own rounds be further apart.
_TRY_AGAIN_S: Final = 3600


def next_due(target: TargetSettings, state: TargetState | None, now: datetime) -> datetime | None:
    """When a target is due next, aware UTC; None when it is due now.

    A last success in the future is of a clock that went back since, and does not count.
    """
    if state is None or state.last_success is None or state.is_behind:
        return None
    due = target.due_after(state.last_success)
    return due if state.last_success <= now < due else None


def again_after(target: TargetSettings) -> timedelta:
    """How long a target waits after a round that failed."""
    return timedelta(seconds=_TRY_AGAIN_S if target.cron else min(target.every_s, _TRY_AGAIN_S))
