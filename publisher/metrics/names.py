"""Every metric by its name: what it tells, and its labels. Alert rules, dashboard and manual use exactly these.

Times are epoch seconds: an age is `time() - publisher_..._timestamp_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a value behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"  # only grows; its name ends in _total
    SUMMARY = "summary"  # two of them, NAME_sum and NAME_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. `label` is a further one beside the target; those of the `site` have no target."""

    name: str
    kind: Kind
    help: str
    label: str = ""
    site: bool = False


LAST_SUCCESS: Final = "publisher_last_success_timestamp_seconds"
OVERDUE: Final = "publisher_overdue_timestamp_seconds"
LAST_ROUND: Final = "publisher_last_round_timestamp_seconds"
LAST_STATUS: Final = "publisher_last_round_exit_status"
LAST_SECONDS: Final = "publisher_last_round_duration_seconds"
PUBLISHED_END: Final = "publisher_published_end_timestamp_seconds"
OLDEST_UNSENT: Final = "publisher_oldest_unsent_job_timestamp_seconds"
DELIVERED: Final = "publisher_delivered_jobs"
PENDING: Final = "publisher_pending_jobs"
LATE: Final = "publisher_late_jobs"
IN_DOUBT: Final = "publisher_in_doubt_records"
QUARANTINED: Final = "publisher_quarantined_jobs"
HELD: Final = "publisher_held_months"
MISSING: Final = "publisher_missing_databases"
DRIFT: Final = "publisher_sync_drift_jobs"
MESSAGES: Final = "publisher_messages_total"
RECORDS: Final = "publisher_records_total"
SENT_BYTES: Final = "publisher_sent_bytes_total"
ATTEMPTS: Final = "publisher_attempts_total"
ROUNDS: Final = "publisher_rounds_total"
ROUND_SECONDS: Final = "publisher_round_duration_seconds"
ROWS: Final = "publisher_accounting_rows"
SOURCE_READABLE: Final = "publisher_accounting_readable"
STATE_BYTES: Final = "publisher_state_bytes"
STATE_USABLE: Final = "publisher_state_usable"
CERTIFICATE_ENDS: Final = "publisher_certificate_end_timestamp_seconds"
TARGET: Final = "publisher_target_info"
BUILD: Final = "publisher_build_info"

METRICS: Final = (
    Metric(name=LAST_SUCCESS, kind=Kind.GAUGE, help="End of the last round that went through."),
    Metric(name=OVERDUE, kind=Kind.GAUGE, help="When somebody should look, if there is no success until then."),
    Metric(name=LAST_ROUND, kind=Kind.GAUGE, help="End of the last round, whatever came of it."),
    Metric(name=LAST_STATUS, kind=Kind.GAUGE, help="Exit status of the last round."),
    Metric(name=LAST_SECONDS, kind=Kind.GAUGE, help="Duration of the last round."),
    Metric(name=PUBLISHED_END, kind=Kind.GAUGE, help="Latest end of a delivered job."),
    Metric(name=OLDEST_UNSENT, kind=Kind.GAUGE, help="End of the job that ended first of those that wait."),
    Metric(name=DELIVERED, kind=Kind.GAUGE, help="Jobs that were delivered."),
    Metric(name=PENDING, kind=Kind.GAUGE, help="Jobs that the next round would send."),
    Metric(name=LATE, kind=Kind.GAUGE, help="Those of the pending jobs that ended before the last published end."),
    Metric(name=IN_DOUBT, kind=Kind.GAUGE, help="Records that were sent, and the answer was lost."),
    Metric(name=QUARANTINED, kind=Kind.GAUGE, help="Jobs that were set aside."),
    Metric(name=HELD, kind=Kind.GAUGE, help="Months that the last round held back."),
    Metric(name=MISSING, kind=Kind.GAUGE, help="Accounting databases that were read once and are gone."),
    Metric(name=DRIFT, kind=Kind.GAUGE, help="Jobs by which the counts that were told last differ from the delivered."),
    Metric(name=MESSAGES, kind=Kind.COUNTER, help="Messages that were accepted."),
    Metric(name=RECORDS, kind=Kind.COUNTER, help="Records in messages that were accepted."),
    Metric(name=SENT_BYTES, kind=Kind.COUNTER, help="Bytes on the wire, those of vain attempts too."),
    Metric(name=ATTEMPTS, kind=Kind.COUNTER, label="verdict", help="Attempts to hand a message over."),
    Metric(name=ROUNDS, kind=Kind.COUNTER, label="outcome", help="Rounds."),
    Metric(name=ROUND_SECONDS, kind=Kind.SUMMARY, help="Duration of rounds."),
    Metric(name=ROWS, kind=Kind.GAUGE, site=True, help="Finished jobs in the accounting databases, each once."),
    Metric(name=SOURCE_READABLE, kind=Kind.GAUGE, site=True, help="1 when the accounting data can be read, else 0."),
    Metric(name=STATE_BYTES, kind=Kind.GAUGE, site=True, help="Size of the publishing database."),
    Metric(name=STATE_USABLE, kind=Kind.GAUGE, site=True, help="1 when the publishing database can be used, else 0."),
    Metric(name=CERTIFICATE_ENDS, kind=Kind.GAUGE, site=True, help="End of the host's certificate."),
    Metric(name=TARGET, kind=Kind.GAUGE, label="type, format", help="1, for each target of the configuration."),
    Metric(name=BUILD, kind=Kind.GAUGE, label="version, python", site=True, help="1."),
)
