"""Formats of usage records, by name. A new one is one file here and its names in the registry of its kind.

A module may make several formats: `create(name)` makes the one of that name, on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from publisher.formats.base import Frame, JobFormat, Receiver, SummaryFormat, SyncFormat

JOB_FORMATS: Final[Mapping[str, str]] = {
    "car": "publisher.formats.apel.car",
    "ogf-ur": "publisher.formats.sgas.ogf_ur",
    "apel-job-0.2": "publisher.formats.apel.job_text",
    "apel-job-0.3": "publisher.formats.apel.job_text",
    "apel-job-0.4": "publisher.formats.apel.job_text",
}
SUMMARY_FORMATS: Final[Mapping[str, str]] = {
    "apel-summary-0.2": "publisher.formats.apel.summary_text",
    "apel-summary-0.3": "publisher.formats.apel.summary_text",
    "apel-summary-0.4": "publisher.formats.apel.summary_text",
    "apel-normalised-summary-0.4": "publisher.formats.apel.summary_text",
}
SYNC_FORMATS: Final[Mapping[str, str]] = {
    "apel-sync-0.1": "publisher.formats.apel.sync_text",
}
FORMATS: Final[Mapping[str, str]] = {**JOB_FORMATS, **SUMMARY_FORMATS, **SYNC_FORMATS}


def job_format(name: str) -> JobFormat:
    """The format of that name, one record a job. Raises: KeyError for a name that is not in `JOB_FORMATS`."""
    made: JobFormat = import_module(JOB_FORMATS[name]).create(name)
    return made


def summary_format(name: str) -> SummaryFormat:
    """The format of that name, one record a group of jobs. Raises: KeyError for a name not in `SUMMARY_FORMATS`."""
    made: SummaryFormat = import_module(SUMMARY_FORMATS[name]).create(name)
    return made


def sync_format(name: str) -> SyncFormat:
    """The format of that name, one record a count. Raises: KeyError for a name that is not in `SYNC_FORMATS`."""
    made: SyncFormat = import_module(SYNC_FORMATS[name]).create(name)
    return made


def is_summary_format(name: str) -> bool:
    """Whether the format sends monthly totals, which replace each other at the receiver."""
    return name in SUMMARY_FORMATS


def receiver_of(name: str) -> Receiver:
    """What the receiver does with records of a format. Raises: KeyError for a name that is not in `FORMATS`."""
    receiver: Receiver = import_module(FORMATS[name]).create(name).receiver
    return receiver


def frame_of(name: str) -> Frame:
    """What stands around the records of a format. Raises: KeyError for a name that is not in `FORMATS`."""
    frame: Frame = import_module(FORMATS[name]).create(name).frame
    return frame
