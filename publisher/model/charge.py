"""What a job costs, as a site's formula has it: an amount, its unit and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

from publisher.model.job import Epoch, JobId, JobKey, JobRecord
from publisher.model.per_job import per_job

# Formats that have a place for a charge. APEL's text has none: a key that it does not know makes it reject the record.
CHARGED_FORMATS: Final = frozenset({"car", "ogf-ur"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What the charges of one rule have in common. Shared by its jobs."""

    unit: str
    formula: str
    description: str = ""


@per_job(frozen=True, slots=True, kw_only=True)
class Charge:
    """One job's charge. The amount is finite, and rounded as it is published."""

    amount: Decimal
    tariff: Tariff

    @property
    def text(self) -> str:
        """The amount without exponent and without trailing zeros."""
        return amount_text(self.amount)


class Charging(Protocol):
    """The site's rules for charges, as record policy asks them."""

    def of(self, job: JobRecord) -> Charge | None:
        """None where no rule is for the job, or its formula has no result."""
        ...


def amount_text(amount: Decimal) -> str:
    """Digits for people and for records: `2688`, `25.42`; never an exponent."""
    plain = format(amount, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedJob:
    """What came of the site's rules for a job, as it is kept. Without a rule, `tariff` is None too.

    `amount` and `reason` are both there where a job without a result costs 0.
    """

    key: JobKey
    job_id: JobId
    local_id: str
    ended_at: Epoch
    queue: str
    project: str  # the first of the job's, '' for none
    group: str
    tariff: Tariff | None
    amount: Decimal | None
    reason: str = ""
