"""The metrics: every one by its name, in Prometheus's text format, and over HTTP for the daemon.

Alert rules, dashboard and manual use exactly these names. Times are epoch seconds: an age is
`time() - publisher_..._timestamp_seconds`.

Spec: Prometheus exposition formats, text-based format 0.0.4; metric and label naming,
https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import logging
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import Any, ClassVar, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from publisher import __version__
from publisher.ledger.books import StoredMetric
from publisher.ledger.contract import Ledgers
from publisher.model.errors import ConfigError, LedgerError
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ListenAddress, ProcessEnvironment, Site
from publisher.sources.importers import Accounting, BatchSystems

Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily
_TOTAL: Final = "_total"
_LOOK_S: Final = 0.2  # how soon a stop is seen
_MOST_ASKING: Final = 16
_LONGEST_S: Final = 30.0
log = logging.getLogger("publisher")


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


METRICS: Final[list[Metric]] = []


def _metric(
    name: str,
    text: str,
    kind: MetricKind = MetricKind.GAUGE,
    *,
    label: str = "",
    site: bool = False,
) -> str:
    METRICS.append(Metric(name=name, kind=kind, help=text, label=label, site=site))
    return name


_of_source = partial(_metric, label="source", site=True)
_of_vo = partial(_metric, label="vo", site=True)
_of_month = partial(_metric, kind=MetricKind.COUNTER, label="vo, month", site=True)
_counter = partial(_metric, kind=MetricKind.COUNTER)

LAST_SUCCESS: Final = _metric(
    "publisher_last_success_timestamp_seconds", "End of the last round that went through."
)
OVERDUE: Final = _metric(
    "publisher_overdue_timestamp_seconds",
    "When somebody should look, if there is no success until then.",
)
LAST_ROUND: Final = _metric(
    "publisher_last_round_timestamp_seconds", "End of the last round, whatever came of it."
)
LAST_STATUS: Final = _metric("publisher_last_round_exit_status", "Exit status of the last round.")
LAST_SECONDS: Final = _metric(
    "publisher_last_round_duration_seconds", "Duration of the last round."
)
PUBLISHED_END: Final = _metric(
    "publisher_published_end_timestamp_seconds", "Latest end of a delivered job."
)
OLDEST_UNSENT: Final = _metric(
    "publisher_oldest_unsent_job_timestamp_seconds",
    "End of the job that ended first of those that wait.",
)
DELIVERED: Final = _metric("publisher_delivered_jobs", "Jobs that were delivered.")
PENDING: Final = _metric(
    "publisher_pending_jobs", "Jobs that the next round would send; of very many, at most so many."
)
LATE: Final = _metric(
    "publisher_late_jobs", "Those of the pending jobs that ended before the last published end."
)
IN_DOUBT: Final = _metric(
    "publisher_in_doubt_records", "Records that were sent, and the answer was lost."
)
QUARANTINED: Final = _metric("publisher_quarantined_jobs", "Jobs that were set aside.")
HELD: Final = _metric("publisher_held_months", "Months of which something is held back.")
MISSING: Final = _metric(
    "publisher_missing_databases", "Accounting databases that were read once and are gone."
)
DRIFT: Final = _metric(
    "publisher_sync_drift_jobs",
    "Jobs by which the counts that were reported last differ from the delivered.",
)
MESSAGES: Final = _counter("publisher_messages_total", "Messages that were accepted.")
RECORDS: Final = _counter("publisher_records_total", "Records in messages that were accepted.")
SENT_BYTES: Final = _counter(
    "publisher_sent_bytes_total", "Bytes on the wire, those of vain attempts too."
)
ATTEMPTS: Final = _metric(
    "publisher_attempts_total",
    "Attempts to hand a message over.",
    MetricKind.COUNTER,
    label="verdict",
)
ROUNDS: Final = _metric("publisher_rounds_total", "Rounds.", MetricKind.COUNTER, label="outcome")
ROUND_SECONDS: Final = _metric(
    "publisher_round_duration_seconds", "Duration of rounds.", MetricKind.SUMMARY
)
ROWS: Final = _metric(
    "publisher_accounting_rows", "Runs of finished jobs in the job store.", site=True
)
SOURCE_READABLE: Final = _metric(
    "publisher_accounting_readable", "1 when all accounting data can be read, else 0.", site=True
)
STATE_BYTES: Final = _metric("publisher_state_bytes", "Size of the publishing database.", site=True)
STATE_USABLE: Final = _metric(
    "publisher_state_usable", "1 when the publishing database can be used, else 0.", site=True
)
CERTIFICATE_ENDS: Final = _metric(
    "publisher_certificate_end_timestamp_seconds", "End of the host's certificate.", site=True
)
SOURCE_READ: Final = _of_source(
    "publisher_source_read_timestamp_seconds", "End of the last reading without trouble."
)
SOURCE_NEWEST: Final = _of_source(
    "publisher_source_newest_job_timestamp_seconds", "End of the newest job."
)
SOURCE_SET_ASIDE: Final = _of_source("publisher_source_set_aside_lines", "Lines set aside.")
SOURCE_SILENT: Final = _of_source(
    "publisher_source_silent", "1 when a source that had many jobs has none, else 0."
)
DAY_JOBS: Final = _of_vo("publisher_day_jobs", "Jobs that ended in the last 24 whole hours.")
DAY_GPU_JOBS: Final = _of_vo("publisher_day_gpu_jobs", "Those of them that had GPUs.")
DAY_GPU_SECONDS: Final = _of_vo("publisher_day_gpu_seconds", "Their wall time x GPUs.")
SOURCE_WAITING: Final = _of_source(
    "publisher_source_waiting_jobs", "Jobs that wait for a silent ARC CE."
)
DAY_ENERGY: Final = _metric(
    "publisher_day_energy_joules", "The energy that they took.", label="vo, origin", site=True
)
DAY_CARBON: Final = _of_vo("publisher_day_carbon_grams", "CO2 equivalent of it.")
ALLOCATION: Final = _metric(
    "publisher_allocation_used_ratio",
    "Used part of an allocation.",
    label="project, unit",
    site=True,
)
MONTH_JOBS: Final = _of_month("publisher_month_jobs_total", "Jobs that ended in a month.")
MONTH_CORE_SECONDS: Final = _of_month(
    "publisher_month_core_seconds_total", "Their wall time x cores."
)
MONTH_CPU_SECONDS: Final = _of_month("publisher_month_cpu_seconds_total", "Their CPU time.")
MONTH_WORK: Final = _of_month(
    "publisher_month_benchmark_seconds_total",
    "Their wall time x cores x benchmark.",
    label="vo, benchmark, month",
)
PROJECT_JOBS: Final = _of_month(
    "publisher_month_project_jobs_total", "Jobs that ended in a month.", label="project, month"
)
PROJECT_CORE_SECONDS: Final = _of_month(
    "publisher_month_project_core_seconds_total",
    "Their wall time x cores.",
    label="project, month",
)
PROJECT_CPU_SECONDS: Final = _of_month(
    "publisher_month_project_cpu_seconds_total", "Their CPU time.", label="project, month"
)
PROJECT_WORK: Final = _of_month(
    "publisher_month_project_benchmark_seconds_total",
    "Their wall time x cores x benchmark.",
    label="project, benchmark, month",
)
TARGET: Final = _metric(
    "publisher_target_info", "1, for each target of the configuration.", label="type, format"
)
BUILD: Final = _metric("publisher_build_info", "1.", label="version, python", site=True)


def lost_measures(
    process: ProcessEnvironment, outcome: Outcome | None = None
) -> Sequence[StoredMetric]:
    """All that can be determined without the publishing database."""
    measures = [StoredMetric(target="", name=STATE_USABLE, label="", value=0)]
    if outcome is not None:
        found = {LAST_STATUS: outcome.exit_status, LAST_ROUND: process.clock().timestamp()}
        measures += [
            StoredMetric(target=outcome.target, name=name, label="", value=value)
            for name, value in found.items()
        ]
    return measures


class _Kept(NamedTuple):
    """What is stored of an instance; `labels` say which where there are several. `targets` and
    `sources` are those that it has by its configuration, None where that is not known.
    """

    labels: list[str]
    measures: Sequence[StoredMetric]
    targets: set[str] | None = None
    sources: set[str] | None = None

    def of(self, metric: Metric) -> list[StoredMetric]:
        # A target or source that was removed from the configuration concerns nobody any more.
        if metric.label == "source":
            return [
                one for one in self.measures if self.sources is None or one.label in self.sources
            ]
        return [
            one
            for one in self.measures
            if metric.site or self.targets is None or one.target in self.targets
        ]


class _StoredFamilies(Collector):
    """What is kept, as families in the order of `METRICS`; those without a value are left out."""

    def __init__(
        self, site: Callable[[], Site], measures: Callable[[Site], Sequence[StoredMetric]]
    ) -> None:
        self._site = site
        self._measures = measures

    def collect(self) -> Iterable[Family]:
        site = self._site()
        is_of_all = site.metrics is not None and site.metrics.all_instances
        labels = [site.ledgers.instance] if is_of_all else []
        own = _Kept(
            labels=labels,
            measures=[*self._measures(site), *_of_configuration(site)],
            targets={target.name for target in site.targets},
            sources=_source_names(site.accounting, site.batch_systems),
        )
        kept = [own, *(_of_others(site.ledgers) if is_of_all else ())]
        for metric in METRICS:
            family = _family(metric, kept)
            if family.samples:
                yield family


def _of_others(ledgers: Ledgers) -> list[_Kept]:
    """What the other instances measured after their last rounds."""
    found = []
    try:
        for other in ledgers.others():
            with closing(other.measure_book(to_read=True)) as book:
                found.append(_Kept(labels=[other.instance], measures=book.measures()))
    except LedgerError as error:
        log.error("metrics of other instances: %s", error)
    return found


def registry(
    site: Callable[[], Site], measures: Callable[[Site], Sequence[StoredMetric]]
) -> CollectorRegistry:
    """For repeated scrapes. `measures` reads what is stored, and only when it is needed."""
    made = CollectorRegistry(auto_describe=False)
    # Not asked for its names at registration: that would read the publishing database.
    made.register(_StoredFamilies(site, measures))
    return made


def exposition(site: Site, measures: Sequence[StoredMetric]) -> bytes:
    """The text format, UTF-8."""
    return generate_latest(registry(lambda: site, lambda _: measures))


def _of_configuration(site: Site) -> Iterator[StoredMetric]:
    """What is known without a round. Several labels are in one, with line ends between."""
    yield StoredMetric(
        target="", name=BUILD, label=f"{__version__}\n{platform.python_version()}", value=1
    )
    for target in site.targets:
        yield StoredMetric(
            target=target.name, name=TARGET, label=f"{target.type}\n{target.format}", value=1
        )


def _source_names(accounting: Accounting, batch_systems: BatchSystems) -> set[str]:
    return {
        *(one.name for one in accounting.entries),
        *(one.name for one in batch_systems.entries),
    }


def _family(metric: Metric, kept: Sequence[_Kept]) -> Family:
    further = metric.label.split(", ") if metric.label else []
    labels = further if metric.site else ["target", *further]
    if kept[0].labels:
        labels = ["instance", *labels]
    if metric.kind is MetricKind.SUMMARY:
        return _summary(metric, kept, labels)
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(metric.name.removesuffix(_TOTAL), metric.help, labels=labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for instance in kept:
        for one in instance.of(metric):
            if one.name == metric.name:
                family.add_metric([*instance.labels, *_label_values(metric, one)], one.value)
    return family


def _summary(metric: Metric, kept: Sequence[_Kept], labels: Sequence[str]) -> SummaryMetricFamily:
    family = SummaryMetricFamily(metric.name, metric.help, labels=labels)
    for instance in kept:
        measures = instance.of(metric)
        counts = {one.target: one.value for one in measures if one.name == f"{metric.name}_count"}
        for one in measures:
            if one.name == f"{metric.name}_sum":
                labelled = [*instance.labels, one.target]
                family.add_metric(
                    labelled, count_value=int(counts[one.target]), sum_value=one.value
                )
    return family


def _label_values(metric: Metric, one: StoredMetric) -> list[str]:
    names = metric.label.split(", ") if metric.label else []
    further = one.label.rsplit("\n", len(names) - 1) if names else []
    return further if metric.site else [one.target, *further]


class _Asker(WSGIRequestHandler):
    """One who asks. Who says nothing for long is sent away."""

    timeout: ClassVar[float | None] = 10.0

    def log_message(self, template: str, *args: Any) -> None:
        log.debug("metrics: %s: %s", self.address_string(), template % args)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each who asks: only some at once, and none for longer than an answer takes."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asking: dict[socket.socket, float] = {}  # when each came, on the monotonic clock

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Whether there is room for one more; asked in the thread that accepts."""
        if len(self._asking) >= _MOST_ASKING:
            log.debug("metrics: %s sent away: %d others are asking", client_address, _MOST_ASKING)
            return False
        self._asking[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        self._asking.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Some times a second: who sends a letter now and then would keep a thread for ever."""
        begun = time.monotonic() - _LONGEST_S
        for request in [request for request, came in tuple(self._asking.items()) if came < begun]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Without asking DNS for this host's name, unlike the standard library: it may be down."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("metrics: %s went away", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsEndpoint:
    """Answers where the configuration says, and moves along; without an address, nowhere."""

    def __init__(self) -> None:
        self._lock = Lock()  # between those who ask and a reload
        self._site: Site | None = None
        self._listen: ListenAddress | None = None
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def follow(self, site: Site) -> None:
        """Answer as configured. Raises: ConfigError when it cannot listen; then nothing changes."""
        settings = site.metrics
        listen = settings.listen if settings else None
        if listen == self._listen:
            with self._lock:
                self._site = site
            return
        server = None if listen is None else self._open(listen)
        self.close()
        with self._lock:
            self._site = site
        self._listen, self._server = listen, server
        if server is not None:
            serve = partial(server.serve_forever, _LOOK_S)
            self._thread = Thread(target=serve, name="metrics", daemon=True)
            self._thread.start()
            log.info("metrics: http://%s/metrics", listen)

    def close(self) -> None:
        """Close the port. Once more does nothing."""
        server, thread = self._server, self._thread
        self._listen = self._server = self._thread = None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()

    def _open(self, listen: ListenAddress) -> WSGIServer:
        kind = _Server6 if ":" in listen.host else _Server
        try:
            server = kind((listen.host, listen.port), _Asker)
        except OSError as error:
            reason = f"metrics.listen: {listen}: {error.strerror or error}"
            advice = "name an address of this host and a port that is free"
            raise ConfigError(f"{reason}; {advice}") from error
        server.set_app(make_wsgi_app(registry(self._followed, _kept)))
        return server

    def _followed(self) -> Site:
        with self._lock:
            site = self._site
        if site is None:
            raise AssertionError("it answers only after it follows")
        return site


def _kept(site: Site) -> Sequence[StoredMetric]:
    try:
        with closing(site.ledgers.measure_book(to_read=True)) as book:
            return book.measures()
    except LedgerError as error:
        log.error("metrics: %s", error)
        return lost_measures(site.process)
