"""Values as Prometheus reads them.

Spec: Prometheus exposition formats, text-based format 0.0.4; metric and label naming, https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from publisher import __version__
from publisher.ledger.measure_base import Measure
from publisher.metrics import names
from publisher.metrics.names import METRICS, Kind, Metric
from publisher.wiring import Site

Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily
_TOTAL: Final = "_total"


class _Kept(Collector):
    """What is kept, as families in the order of `METRICS`; those without a value are left out."""

    def __init__(self, site: Callable[[], Site], measures: Callable[[Site], Sequence[Measure]]) -> None:
        self._site = site
        self._measures = measures

    def collect(self) -> Iterable[Family]:
        site = self._site()
        measures = [*self._measures(site), *_of_configuration(site)]
        for metric in METRICS:
            family = _family(metric, measures, {target.name for target in site.settings.targets})
            if family.samples:
                yield family


def registry(site: Callable[[], Site], measures: Callable[[Site], Sequence[Measure]]) -> CollectorRegistry:
    """For whoever is asked again and again. `measures` tells what is kept; nothing is asked before it is needed."""
    made = CollectorRegistry(auto_describe=False)
    # Not asked for its names at registration: that would read the publishing database.
    made.register(_Kept(site, measures))
    return made


def exposition(site: Site, measures: Sequence[Measure]) -> bytes:
    """The text format, UTF-8."""
    return generate_latest(registry(lambda: site, lambda _: measures))


def _of_configuration(site: Site) -> Iterator[Measure]:
    """What is known without a round. Several labels stand in one, with line ends between."""
    yield Measure(target="", name=names.BUILD, label=f"{__version__}\n{platform.python_version()}", value=1)
    for target in site.settings.targets:
        yield Measure(target=target.name, name=names.TARGET, label=f"{target.type}\n{target.format}", value=1)


def _family(metric: Metric, measures: Sequence[Measure], targets: set[str]) -> Family:
    further = metric.label.split(", ") if metric.label else []
    labels = further if metric.site else ["target", *further]
    # A target that was taken out of the configuration is no one's trouble any more.
    mine = [one for one in measures if metric.site or one.target in targets]
    if metric.kind is Kind.SUMMARY:
        return _summary(metric, mine, labels)
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        family = CounterMetricFamily(metric.name.removesuffix(_TOTAL), metric.help, labels=labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for one in mine:
        if one.name == metric.name:
            family.add_metric(_label_values(metric, one), one.value)
    return family


def _summary(metric: Metric, measures: Sequence[Measure], labels: Sequence[str]) -> SummaryMetricFamily:
    family = SummaryMetricFamily(metric.name, metric.help, labels=labels)
    counts = {one.target: one.value for one in measures if one.name == f"{metric.name}_count"}
    for one in measures:
        if one.name == f"{metric.name}_sum":
            family.add_metric([one.target], count_value=int(counts[one.target]), sum_value=one.value)
    return family


def _label_values(metric: Metric, one: Measure) -> list[str]:
    further = one.label.split("\n") if metric.label else []
    return further if metric.site else [one.target, *further]
