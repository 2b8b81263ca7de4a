"""ARC's accounting database, as A-REX writes it: the source that is published from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from publisher.sources.arex.source import Options, create, writing_order

if TYPE_CHECKING:
    from publisher.sources.statistics import Accounts, UsageReader

__all__ = ["Options", "create", "create_statistics", "create_usage", "writing_order"]


def create_statistics(options: object, environment: Mapping[str, str]) -> Accounts:
    """Raises: ConfigError when the time zone cannot be found."""
    from publisher.sources.arex import statistics

    return statistics.create(options, environment)


def create_usage(options: object, environment: Mapping[str, str]) -> UsageReader:
    """Raises: ConfigError when the time zone cannot be found."""
    from publisher.sources.arex.counting import usage

    return usage.create(options, environment)
