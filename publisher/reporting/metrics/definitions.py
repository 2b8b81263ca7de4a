"""Every metric by its name: what it tells, and its labels. Alert rules, dashboard and manual use exactly these.

Times are epoch seconds: an age is `time() - publisher_..._timestamp_seconds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from publisher.ledger.books import StoredMetric
from publisher.pipeline.round.outcome import Outcome
from publisher.pipeline.site import Site


class MetricKind(StrEnum):
    """How a value behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"  # only grows; its name ends in _total
    SUMMARY = "summary"  # two of them, NAME_sum and NAME_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. `label` is a further one beside the target; those of the `site` have no target."""

    name: str
    kind: MetricKind
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
    Metric(name=LAST_SUCCESS, kind=MetricKind.GAUGE, help="End of the last round that went through."),
    Metric(name=OVERDUE, kind=MetricKind.GAUGE, help="When somebody should look, if there is no success until then."),
    Metric(name=LAST_ROUND, kind=MetricKind.GAUGE, help="End of the last round, whatever came of it."),
    Metric(name=LAST_STATUS, kind=MetricKind.GAUGE, help="Exit status of the last round."),
    Metric(name=LAST_SECONDS, kind=MetricKind.GAUGE, help="Duration of the last round."),
    Metric(name=PUBLISHED_END, kind=MetricKind.GAUGE, help="Latest end of a delivered job."),
    Metric(name=OLDEST_UNSENT, kind=MetricKind.GAUGE, help="End of the job that ended first of those that wait."),
    Metric(name=DELIVERED, kind=MetricKind.GAUGE, help="Jobs that were delivered."),
    Metric(
        name=PENDING, kind=MetricKind.GAUGE, help="Jobs that the next round would send; of very many, at most so many."
    ),
    Metric(
        name=LATE, kind=MetricKind.GAUGE, help="Those of the pending jobs that ended before the last published end."
    ),
    Metric(name=IN_DOUBT, kind=MetricKind.GAUGE, help="Records that were sent, and the answer was lost."),
    Metric(name=QUARANTINED, kind=MetricKind.GAUGE, help="Jobs that were set aside."),
    Metric(name=HELD, kind=MetricKind.GAUGE, help="Months that the last round held back."),
    Metric(name=MISSING, kind=MetricKind.GAUGE, help="Accounting databases that were read once and are gone."),
    Metric(
        name=DRIFT,
        kind=MetricKind.GAUGE,
        help="Jobs by which the counts that were reported last differ from the delivered.",
    ),
    Metric(name=MESSAGES, kind=MetricKind.COUNTER, help="Messages that were accepted."),
    Metric(name=RECORDS, kind=MetricKind.COUNTER, help="Records in messages that were accepted."),
    Metric(name=SENT_BYTES, kind=MetricKind.COUNTER, help="Bytes on the wire, those of vain attempts too."),
    Metric(name=ATTEMPTS, kind=MetricKind.COUNTER, label="verdict", help="Attempts to hand a message over."),
    Metric(name=ROUNDS, kind=MetricKind.COUNTER, label="outcome", help="Rounds."),
    Metric(name=ROUND_SECONDS, kind=MetricKind.SUMMARY, help="Duration of rounds."),
    Metric(name=ROWS, kind=MetricKind.GAUGE, site=True, help="Rows of finished jobs in the accounting databases."),
    Metric(
        name=SOURCE_READABLE, kind=MetricKind.GAUGE, site=True, help="1 when the accounting data can be read, else 0."
    ),
    Metric(name=STATE_BYTES, kind=MetricKind.GAUGE, site=True, help="Size of the publishing database."),
    Metric(
        name=STATE_USABLE, kind=MetricKind.GAUGE, site=True, help="1 when the publishing database can be used, else 0."
    ),
    Metric(name=CERTIFICATE_ENDS, kind=MetricKind.GAUGE, site=True, help="End of the host's certificate."),
    Metric(name=TARGET, kind=MetricKind.GAUGE, label="type, format", help="1, for each target of the configuration."),
    Metric(name=BUILD, kind=MetricKind.GAUGE, label="version, python", site=True, help="1."),
)


def lost_measures(site: Site, outcome: Outcome | None = None) -> Sequence[StoredMetric]:
    """All that can be determined without the publishing database."""
    measures = [StoredMetric(target="", name=STATE_USABLE, label="", value=0)]
    if outcome is not None:
        found = {LAST_STATUS: outcome.exit_status, LAST_ROUND: site.clock().timestamp()}
        measures += [
            StoredMetric(target=outcome.target, name=name, label="", value=value) for name, value in found.items()
        ]
    return measures
