"""A transport: sheets of paper in a tray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from publisher.model.message import Message
from publisher.transports.base import (
    Credentials,
    Destination,
    Environment,
    OneOff,
    Receipt,
    Step,
    StepText,
    Transport,
    TransportOptions,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TransportOptions):
    """The keys of such a target in the configuration."""

    one_off: ClassVar[OneOff | None] = OneOff(key="tray", help="onto this paper, for once", format="terse")

    step_texts: ClassVar[Mapping[str, StepText]] = {"tray": StepText("letters are laid there", "")}

    tray: Path = field(metadata={"help": "where the paper is"})

    def destination(self) -> Destination:
        """Whoever reads the paper cannot tell who wrote it."""
        return Destination(place=(str(self.tray),), keys="tray")

    def doubts(self) -> tuple[tuple[str, str], ...]:
        return (("paper is slow", "use something faster"),)


def create(options: object, credentials: Credentials, world: Environment) -> Transport:
    if not isinstance(options, Options):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    return Paper(options.tray)


class Paper:
    """Takes all that it is handed."""

    def __init__(self, tray: Path) -> None:
        self._tray = tray

    def payload_limit(self) -> int:
        return 4_000

    def deliver(self, message: Message, now: datetime) -> Receipt:
        with self._tray.open("ab") as tray:
            tray.write(message.payload)
        return Receipt(verdict=Verdict.DELIVERED, remote_id="sheet", bytes_sent=len(message.payload))

    def preflight(self) -> tuple[Step, ...]:
        seal = [Step("certificate", "its seal is broken", 77)] if self._tray.with_name("broken").exists() else []
        return (Step(name="tray", answer="there is paper in it"), *seal)

    def warnings(self, now: datetime) -> list[str]:
        return []

    def close(self) -> None:
        pass
