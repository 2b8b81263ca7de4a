"""How users are named to receivers, alike in every format."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from publisher.model.job import Epoch


class IdentityMode(StrEnum):
    """Whether receivers are told who a user is."""

    PLAIN = "plain"
    WITHHELD = "withheld"
    PSEUDONYM = "pseudonym"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How users are named. `secret` and `period` (month, quarter or year of the end time) are for pseudonyms."""

    mode: IdentityMode = IdentityMode.PLAIN
    secret: bytes = field(default=b"", repr=False)
    period: str = "year"

    @property
    def open(self) -> bool:
        """Whether what names or betrays a person may be told."""
        return self.mode is IdentityMode.PLAIN

    def period_of(self, moment: Epoch) -> str:
        """The period whose pseudonyms hold at an end time; '' where there are none."""
        return period_label(moment, self.period) if self.mode is IdentityMode.PSEUDONYM else ""

    def name(self, user: str, period: str) -> str:
        """A DN, or a token's issuer and subject, as published; '' stays ''."""
        if self.mode is IdentityMode.PLAIN or not user:
            return user
        if self.mode is IdentityMode.WITHHELD:
            return "withheld"
        text = f"{period}\0{user}".encode("utf-8", "surrogateescape")
        return "pseudonym-" + hmac.new(self.secret, text, "sha256").hexdigest()[:32]


def period_label(moment: Epoch, period: str) -> str:
    """The validity period of a pseudonym: `2026`, `2026Q1` or `2026-03`, by end time in UTC."""
    try:
        when = datetime.fromtimestamp(moment, UTC)
    except (OverflowError, OSError, ValueError):
        return "never"  # such a job is quarantined for its end time
    if period == "month":
        return f"{when:%Y-%m}"
    if period == "quarter":
        return f"{when:%Y}Q{(when.month + 2) // 3}"
    return f"{when:%Y}"
