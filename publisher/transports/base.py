"""The interface of transports: deliver a message and return a receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from publisher.model.message import Message


class Verdict(StrEnum):
    """What became of a message.

    `DELIVERED` is the only good one. `IN_DOUBT` may have been stored: it is sent again as it is. `RETRY_LATER` was surely not
    stored, or is harmless to repeat, and waits for the next round. `TOO_LARGE` continues in halves. `REFUSED` is about this
    message alone: its records are narrowed down and set aside. `STOP_TARGET` is about the target: nothing more is tried there.
    """

    DELIVERED = "delivered"
    IN_DOUBT = "in doubt"
    RETRY_LATER = "retry later"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    STOP_TARGET = "stop target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a transport returns after delivering one message. `reason` is for people, at most 500 characters, no secrets.

    `exit_status` is the kind of trouble (model/errors.py) when the verdict is not `DELIVERED`. `remote_ids` are the receiver's
    ids of its rows by JobID, where it gives any. `bytes_sent` counts the wire, all attempts together. `doubt` says that an
    attempt may have been stored, whatever the last one met. `certain` is False when the answer does not tell whether the
    message or the target is at fault. `refused_by` is for a refusal that is about what records are called by, such as their
    MachineName: that of every record, in order, so that the message can be divided by it.
    """

    verdict: Verdict
    remote_id: str = ""
    reason: str = ""
    exit_status: int = 0
    bytes_sent: int = 0
    attempts: int = 1
    doubt: bool = False
    remote_ids: Mapping[str, str] = field(default_factory=dict)
    certain: bool = True
    refused_by: tuple[str, ...] = ()


class Step(NamedTuple):
    """One question of a pre-flight check and its answer for people; `exit_status` (model/errors.py) is 0 when all is well.

    `advice` is the thing to do, where the answer does not say it; with an `exit_status` of 0 it makes the answer a warning.
    """

    name: str
    answer: str
    exit_status: int = 0
    advice: str = ""


class Endpoint(NamedTuple):
    """A service that a target talks to. `url` is https://HOST[:PORT]; `proxy` is the way there, '' for none; times in s."""

    name: str
    url: str
    proxy: str
    connect_s: float
    read_s: float
    attempt_s: float


class Credentials(NamedTuple):
    """Certificate, key and trust. `ca` is a hashed directory, a bundle file, or None for the system's store."""

    certificate: Path
    key: Path
    ca: Path | None


class Environment(NamedTuple):
    """What a transport needs of the world, handed in so that nothing in this room sleeps, guesses or looks around.

    `now` gives aware UTC, `clock` monotonic seconds, `chance` numbers in [0, 1); `wait` waits that many seconds and returns
    True, at once, when a stop was asked for. `signed` reports on a format whether its receiver takes S/MIME around the payload.
    """

    environment: Mapping[str, str]
    now: Callable[[], datetime]
    clock: Callable[[], float]
    chance: Callable[[], float]
    wait: Callable[[float], bool]
    signed: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where messages of several targets meet. `keys` name it in the configuration, for people."""

    place: tuple[str, ...]
    keys: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOff:
    """How `republish` makes a target of this transport for once.

    `--TRANSPORT-KEY`, such as --ams-url, gives the target's `key`; `options` are further keys that the command line takes.
    """

    key: str
    help: str
    format: str  # unless another one is asked for
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """What the `Options` of every transport provide, in addition to the keys of the configuration."""

    one_off: ClassVar[OneOff | None] = None

    def destination(self) -> Destination | None:
        """None where messages of several targets cannot meet, or where the receiver distinguishes them."""
        return None

    def doubts(self) -> tuple[tuple[str, str], ...]:
        """What works and may not be meant, each with the thing to do; `doctor` tells it."""
        return ()


class Transport(Protocol):
    """Hands messages over, one at a time, in order, over one kept-alive connection."""

    def payload_limit(self) -> int:
        """The largest payload in bytes that fits one message on this wire, everything around it counted.

        It shrinks for the rest of the run when the service turns out to take less.
        """
        ...

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Deliver one message and return the receipt. Never raises for what the other side or the network does.

        Raises: CredentialError before anything is sent, when certificate or key cannot be used.
        """
        ...

    def preflight(self) -> tuple[Step, ...]:
        """Whether messages could be delivered, asked without sending one: in order, up to the first trouble. Never raises."""
        ...

    def warnings(self, now: datetime) -> list[str]:
        """What will stop this target before long, such as a certificate that ends within 30 days."""
        ...

    def close(self) -> None: ...


class TransportPlugin(Protocol):
    """A module in this room: its options (a frozen dataclass) and a way to make it live."""

    Options: type[TransportOptions]

    def endpoints(self, options: object, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
        """The services that such a target talks to; none for one that stays on this machine. Raises: ConfigError."""
        ...

    def create(self, options: object, credentials: Credentials, circumstances: Environment) -> Transport:
        """A transport, ready but not yet connected.

        Raises: ConfigError for options that cannot work, CredentialError for certificate, key or CAs that cannot be used.
        """
        ...
