"""A directory in place of a service: the options of such a target. Its files are for another sender, or for people.

SSM's sender (`ssmsend`) signs what it finds by itself, and APEL refuses a message that is signed twice: for it, `sign` is
false. What anything else sends, or keeps, is signed here.

Spec: the plain directory and the dirq queue of SSM 4.0.0's sender; python-dirq 1.8, QueueSimple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from publisher.transports.base import Destination, Endpoint, StepText, TransportOptions

_BATCH_BYTES: Final = range(16_384, 64_000_001)


class Layout(StrEnum):
    """One directory with a file for each message, or a dirq queue."""

    FLAT = "flat"
    DIRQ = "dirq"


def batch_bytes_problem(size: int) -> str | None:
    return None if size in _BATCH_BYTES else f"{size} is not between {_BATCH_BYTES[0]} and {_BATCH_BYTES[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TransportOptions):
    """The keys of a target of the type `spool`. `sign` None is true, and warned about where it cannot be meant."""

    path: Path = field(metadata={"help": "the directory that files are put into"})
    layout: Layout = field(default=Layout.FLAT, metadata={"help": "flat, or dirq"})
    sign: bool | None = field(
        default=None, metadata={"help": "sign messages; false for ssmsend, which signs them itself"}
    )
    batch_bytes: int = field(
        default=950_000,
        metadata={"help": "most characters of a message, signed and in base64", "check": batch_bytes_problem},
    )
    allow_open_key: bool = field(default=False, metadata={"help": "accept a key file that group or others can read"})

    step_texts: ClassVar[Mapping[str, StepText]] = {
        "directory": StepText(
            "messages are put there", "let the user who publishes write there, or correct `path` of the target"
        )
    }

    def destination(self) -> Destination:
        """Whoever sends its files sends them to one place."""
        return Destination(place=(str(self.path),), keys="directory")


def endpoints(options: object, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """None: the files stay here."""
    return ()
