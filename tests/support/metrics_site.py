"""A site whose clock tests set, with its rounds, its metrics as the node exporter finds them, and its state as Nagios does."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from publisher import config
from publisher.cli import parser as command_line
from publisher.cli.commands import Context
from publisher.cli.commands import status as status_command
from publisher.cli.progress import ProgressReport
from publisher.cli.site import LiveSite
from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from publisher.reporting import metrics
from tests.arex_databases import generate
from tests.support.sites import ConfiguredSite

Samples = Mapping[tuple[str, ...], float]
"""Values by name, target and further labels in their order: ("publisher_rounds_total", "egi", "ok")."""


def samples(text: str) -> Samples:
    """Of the text format. A sample without its family's help, or one that is told twice, is refused."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = sorted(sample.labels, key=lambda label: (label != "target", label))
            at = (sample.name, *(sample.labels[label] for label in labels))
            assert at not in found, at
            found[at] = sample.value
    return found


class WatchedSite:
    """A site with metrics. `ahead` is how far its clock is before ours; `stopped` says that SIGTERM came."""

    def __init__(self, site: ConfiguredSite) -> None:
        self.site = site
        self.ahead = timedelta(0)
        self.file = site.folder / "textfile" / "publisher.prom"
        self.file.parent.mkdir()
        site.config["metrics"] = {"textfile": str(self.file)}
        self.stopped = False
        self._hours = 0

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def live(self) -> LiveSite:
        """As a new process finds it."""
        self.site.save()
        return LiveSite(
            settings=config.load(self.site.path, {}, host_name="ce01.example.org"),
            process=ProcessEnvironment(
                environment={},
                clock=self.now,
                monotonic=time.monotonic,
                wait=lambda seconds: self.stopped,
                parallel=True,
            ),
            after_round=(metrics.after_round,),
        )

    def finish_jobs(self, count: int) -> None:
        """Some end within the last hour."""
        self._hours += 1
        self.site.fill(*generate(self._hours, count, self.now() - timedelta(hours=1), self.now()))

    def round(self, targets: Iterable[str] = (), *, force: bool = False) -> list[Outcome]:
        report = ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=True)
        return publish.publish(self.live(), targets=list(targets), observer=report, force=force)

    def told(self) -> Samples:
        """What stands in the file."""
        return samples(self.file.read_text())

    def nagios(self, *options: str) -> tuple[int, str]:
        """Exit status and line of `status --nagios`."""
        arguments = command_line.parser().parse_args(["status", "--nagios", *options])
        out = io.StringIO()
        with redirect_stdout(out):
            status = status_command.run(arguments, Context(load=self.live, stop=threading.Event()))
        line = out.getvalue()
        assert line.count("\n") == 1
        return status, line.rstrip("\n")
