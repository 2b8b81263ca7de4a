"""Formats of usage records, by name. A new one is one file, and its names in a registry here.

A module may make several formats: its `RECEIVERS` say what becomes of the records of each, so that
`status` loads no renderer, and `create(name)` makes the one of that name, on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from publisher.formats.base import Frame, JobFormat, Receiver, SummaryFormat, SyncFormat

JOB_FORMATS: Final[Mapping[str, str]] = {
    "car": "publisher.formats.apel",
    "ogf-ur": "publisher.formats.sgas",
    "apel-job-0.2": "publisher.formats.apel",
    "apel-job-0.3": "publisher.formats.apel",
    "apel-job-0.4": "publisher.formats.apel",
    "apel-accelerator-0.1": "publisher.formats.apel",
    "auditor-record": "publisher.formats.auditor",
}
SUMMARY_FORMATS: Final[Mapping[str, str]] = {
    "apel-summary-0.2": "publisher.formats.apel",
    "apel-summary-0.3": "publisher.formats.apel",
    "apel-summary-0.4": "publisher.formats.apel",
    "apel-normalised-summary-0.4": "publisher.formats.apel",
}
SYNC_FORMATS: Final[Mapping[str, str]] = {
    "apel-sync-0.1": "publisher.formats.apel",
}
FORMATS: Final[Mapping[str, str]] = {**JOB_FORMATS, **SUMMARY_FORMATS, **SYNC_FORMATS}

# What ARC's publisher sends to APEL, as `apel_messages` in arc.conf calls it, and to SGAS.
JURA_APEL_FORMATS: Final[Mapping[str, str]] = {
    "urs": "car",
    "summaries": "apel-summary-0.2",
    "summaries-v04": "apel-summary-0.4",
}
JURA_SGAS_FORMAT: Final = "ogf-ur"


def job_format(name: str) -> JobFormat:
    """The format of that name, one record a job. Raises: KeyError unless it is in `JOB_FORMATS`."""
    made: JobFormat = _plugin(JOB_FORMATS[name]).create(name)
    return made


def summary_format(name: str) -> SummaryFormat:
    """The format of that name, one record a group. Raises: KeyError unless in `SUMMARY_FORMATS`."""
    made: SummaryFormat = _plugin(SUMMARY_FORMATS[name]).create(name)
    return made


def sync_format(name: str) -> SyncFormat:
    """The format of that name, one record a count. Raises: KeyError unless in `SYNC_FORMATS`."""
    made: SyncFormat = _plugin(SYNC_FORMATS[name]).create(name)
    return made


def record_format(name: str) -> JobFormat | SummaryFormat:
    """The format of that name, of jobs or of totals. Raises: KeyError unless it is one of these."""
    return summary_format(name) if is_summary_format(name) else job_format(name)


def is_summary_format(name: str) -> bool:
    """Whether the format sends monthly totals, which replace each other at the receiver."""
    return name in SUMMARY_FORMATS


def receiver_of(name: str) -> Receiver:
    """What the receiver does with records of a format. Raises: KeyError unless in `FORMATS`."""
    receiver: Receiver = _plugin(FORMATS[name]).RECEIVERS[name]
    return receiver


def frame_of(name: str) -> Frame:
    """What is written around records of a format. Raises: KeyError unless in `FORMATS`."""
    frame: Frame = _plugin(FORMATS[name]).create(name).frame
    return frame


def _plugin(module: str) -> Any:
    return import_module(module)
