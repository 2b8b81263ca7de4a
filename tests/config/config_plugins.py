"""Plug-ins for tests of the configuration: the real ones where they exist, and stand-ins under the contract's names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from publisher.config import REGISTERED, Registered
from publisher.transports import ams
from publisher.transports.base import Destination, TransportOptions


class Layout(StrEnum):
    FLAT = "flat"
    DIRQ = "dirq"


def check_positive(value: float) -> str | None:
    return None if value > 0 else f"{value} is not above 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArexOptions:
    control_dir: Path | None = None
    databases: tuple[str, ...] = ()
    time_zone: str = ""
    hold_off_s: int = 900
    unescape: bool = True
    page_rows: int = field(default=500, metadata={"check": check_positive})

    def __post_init__(self) -> None:
        if self.control_dir is None and not self.databases:
            raise ValueError("needs control_dir, or databases")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmsOptions(TransportOptions):
    url: str = field(metadata={"help": "write the address of the service"})
    auth_url: str = ""
    service_host: str = ""
    project: str = "accounting"
    topic: str = "gLite-APEL"
    batch_bytes: int = field(default=950_000, metadata={"check": check_positive})
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    attempt_timeout_s: float = 180.0
    attempts: int = 5
    retry_budget_s: float = 600.0
    proxy: str = ""
    allow_open_key: bool = False

    def destination(self) -> Destination:
        return ams.Options(url=self.url, project=self.project, topic=self.topic).destination()


@dataclass(frozen=True, slots=True, kw_only=True)
class SgasOptions(TransportOptions):
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions(TransportOptions):
    path: Path
    layout: Layout = Layout.FLAT


_STAND_IN_SOURCES: dict[str, Callable[[], type]] = {"arex": lambda: ArexOptions}
_STAND_IN_TRANSPORTS: dict[str, Callable[[], type]] = {
    "ams": lambda: AmsOptions,
    "sgas": lambda: SgasOptions,
    "spool": lambda: SpoolOptions,
}
FORMATS = (
    "car",
    "ogf-ur",
    "apel-job-0.2",
    "apel-job-0.3",
    "apel-job-0.4",
    "apel-summary-0.2",
    "apel-summary-0.3",
    "apel-summary-0.4",
    "apel-normalised-summary-0.4",
)

STAND_INS = Registered(sources=_STAND_IN_SOURCES, transports=_STAND_IN_TRANSPORTS, formats=FORMATS)
"""Only stand-ins: tests of the reader do not change when a plug-in gets another key."""


def contract() -> Registered:
    """Every plug-in of the contract: the real one where it can be loaded, else its stand-in."""
    return Registered(
        sources=_STAND_IN_SOURCES | _loadable(REGISTERED.sources),
        transports=_STAND_IN_TRANSPORTS | _loadable(REGISTERED.transports),
        formats=tuple(dict.fromkeys((*REGISTERED.formats, *FORMATS))),
        importers=_loadable(REGISTERED.importers),
    )


def _loadable(plugins: Mapping[str, Callable[[], type]]) -> dict[str, Callable[[], type]]:
    found: dict[str, Callable[[], type]] = {}
    for name, options in plugins.items():
        try:
            options()
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("publisher."):
                raise
        else:
            found[name] = options
    return found
