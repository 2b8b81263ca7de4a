"""Configuration: YAML in, frozen settings out, every problem at once.

`load` reads a file, `show` writes the effective configuration, `example` returns the sample. What
keys there are, and what they may hold, is in the dataclasses `TopKeys`, `CredentialSettings`,
`SourceKeys`, `TargetKeys`, `RecordSettings` and in the `Options` of each plug-in; `schema.py` says
how a dataclass becomes a block of keys. A new key is a new field, a line in the sample and a
paragraph in publisher.yaml(5).
"""

from pathlib import Path

from publisher.config.records import IdentitySettings, RecordSettings
from publisher.config.settings import (
    CredentialSettings,
    Listen,
    MetricsSettings,
    Settings,
    SourceSettings,
    load,
    one_off_target,
)
from publisher.config.show import show
from publisher.config.targets import REGISTERED, ConfiguredTarget, Registered

__all__ = [
    "REGISTERED",
    "ConfiguredTarget",
    "CredentialSettings",
    "IdentitySettings",
    "Listen",
    "MetricsSettings",
    "RecordSettings",
    "Registered",
    "Settings",
    "SourceSettings",
    "example",
    "load",
    "one_off_target",
    "show",
]


def example() -> str:
    """The commented sample configuration."""
    return Path(__file__).with_name("example.yaml").read_text(encoding="utf-8")
