"""Filters for jobs: the options that `stats` and `export` share, and the filter that they make."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from publisher.cli.logs import notice
from publisher.model import time as when
from publisher.model.time import Window
from publisher.pipeline.site import Site
from publisher.reporting import statistics
from publisher.sources.statistics import JobFilter


def add_filters(parser: argparse.ArgumentParser) -> None:
    for words, what in (
        (
            ("-b", "--end-from", "--from"),
            "jobs that ended at or after this time: 2026-03, 2026-03-05T14:00, last-month",
        ),
        (("-e", "--end-till", "--to"), "and before this time; a month or a day includes its end"),
        (("-s", "--start-from"), "jobs that were submitted at or after this time"),
    ):
        parser.add_argument(*words, metavar="WHEN", help=what)
    for name, what in (
        ("vo", "only jobs of this VO"),
        ("user", "only jobs of this user (DN, or issuer/subject)"),
        ("state", "only jobs in this state: completed, failed, in-progress"),
        ("queue", "only jobs in this queue"),
        ("endpoint", "only jobs that came through endpoints of this type, such as org.nordugrid.arcrest"),
    ):
        parser.add_argument(
            f"--filter-{name}", action="append", default=[], metavar="NAME", help=f"{what}; may be repeated"
        )
    parser.add_argument(
        "--filter-extra",
        action="append",
        nargs=2,
        default=[],
        metavar=("KEY", "VALUE"),
        help="only jobs with this attribute: vomsfqan, rte, dtrurl, jobname, projectname, ...; may be repeated",
    )


def job_filter(arguments: argparse.Namespace, site: Site) -> JobFilter:
    """What was asked for, spelled out as it was understood. Raises: UsageError."""
    wanted = _filter(arguments, site)
    statistics.refuse_strange_names(site, wanted)
    for line in _windows(wanted):
        notice(line)
    return wanted


def _filter(arguments: argparse.Namespace, site: Site) -> JobFilter:
    now = site.clock()
    start, end, submitted = arguments.end_from, arguments.end_till, arguments.start_from
    extras: dict[str, set[str]] = {}
    for attribute, value in arguments.filter_extra:
        extras.setdefault(attribute, set()).add(value)
    return JobFilter(
        ended=when.window(
            None if start is None else when.parse_from(start, now), None if end is None else when.parse_to(end, now)
        ),
        submitted=Window(start=None if submitted is None else when.epoch(when.parse_from(submitted, now))),
        vos=frozenset(arguments.filter_vo),
        users=frozenset(arguments.filter_user),
        states=frozenset(arguments.filter_state),
        queues=frozenset(arguments.filter_queue),
        interfaces=frozenset(arguments.filter_endpoint),
        extras={attribute: frozenset(values) for attribute, values in extras.items()},
    )


def _windows(wanted: JobFilter) -> Iterator[str]:
    if wanted.ended != Window():
        yield f"jobs that ended in {wanted.ended}"
    if wanted.submitted != Window():
        yield f"jobs that were submitted in {wanted.submitted}"
