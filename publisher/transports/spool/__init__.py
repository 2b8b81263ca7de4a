"""A directory in place of a service: options. Its files are for another sender, or for people.

SSM's sender (`ssmsend`) signs what it finds by itself, and APEL refuses a message that is signed
twice: for it, `sign` is false. What anything else sends, or keeps, is signed here.

Spec: the plain directory and the dirq queue of SSM 4.0.0's sender; python-dirq 1.8, QueueSimple.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from publisher.transports.base import Destination, StepText, TransportOptions, batch_bytes_problem


class Layout(StrEnum):
    """One directory with a file for each message, or a dirq queue."""

    FLAT = "flat"
    DIRQ = "dirq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TransportOptions):
    """The keys of a target of the type `spool`. `sign` None is true, with a warning for dirq."""

    path: Path = field(metadata={"help": "the directory that files are put into"})
    layout: Layout = field(default=Layout.FLAT, metadata={"help": "flat, or dirq"})
    sign: bool | None = field(
        default=None, metadata={"help": "sign messages; false for ssmsend, which signs them itself"}
    )
    batch_bytes: int = field(
        default=950_000,
        metadata={
            "help": "most characters of a message, signed and in base64",
            "check": batch_bytes_problem,
        },
    )
    allow_open_key: bool = field(
        default=False, metadata={"help": "accept a key file that group or others can read"}
    )

    delivers: ClassVar[bool] = False
    step_texts: ClassVar[Mapping[str, StepText]] = {
        "directory": StepText(
            "messages are put there",
            "let the user who publishes write there, or correct `path` of the target",
        )
    }

    def destination(self) -> Destination:
        """Whoever sends its files sends them to one place."""
        return Destination(place=(str(self.path),), keys="directory")

    def leads_to(self) -> str:
        return str(self.path)
