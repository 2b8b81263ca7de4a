"""What APEL reads: CAR, job, summary, accelerator and sync messages, and how APEL keys them.

A registry: a format's module is loaded when the format is made, so that `status` starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from publisher.formats.apel import receiver
from publisher.formats.base import Receiver

_MODULES: Final[Mapping[str, tuple[Receiver, str]]] = {
    "car": (receiver.CAR_JOBS, "car"),
    "apel-job-0.2": (receiver.JOBS, "job_text"),
    "apel-job-0.3": (receiver.JOBS, "job_text"),
    "apel-job-0.4": (receiver.JOBS_WITH_ALL_BENCHMARKS, "job_text"),
    "apel-summary-0.2": (receiver.SUMMARIES, "summary_text"),
    "apel-summary-0.3": (receiver.NORMALISED_SUMMARIES, "summary_text"),
    "apel-summary-0.4": (receiver.SUMMARIES, "summary_text"),
    "apel-normalised-summary-0.4": (receiver.NORMALISED_SUMMARIES, "summary_text"),
    "apel-accelerator-0.1": (receiver.ACCELERATORS, "accelerator"),
    "apel-sync-0.1": (receiver.SYNC, "text_message"),
}
RECEIVERS: Final[Mapping[str, Receiver]] = {name: found for name, (found, _) in _MODULES.items()}


def create(name: str) -> Any:
    """The format of that name, of its kind."""
    return import_module(f"{__name__}.{_MODULES[name][1]}").create(name)


def check_car(payload: bytes) -> None:
    """Check a payload against the schema; lxml is loaded with the first one. Raises: Unfit."""
    import_module(f"{__name__}.car_check").check(payload)
