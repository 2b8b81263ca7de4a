"""The interface of transports: deliver a message, return a receipt; dry run, background work."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from publisher.model.errors import ConfigError, CredentialError, Later, RecordError, Rejected
from publisher.model.message import Message

# What a receipt's or a step's trouble is, as the exit status of the error of that kind.
SET_ASIDE, LATER, REFUSED = RecordError.exit_status, Later.exit_status, Rejected.exit_status
CREDENTIALS, CONFIGURATION = CredentialError.exit_status, ConfigError.exit_status

Kind = TypeVar("Kind", bound="TransportOptions")
Result = TypeVar("Result")

# Python runs signal handlers on the main thread, and a signal that the kernel hands to another
# thread does not wake it: a wait without an end would hear SIGTERM when the work is done.
_LOOK_EVERY_S: Final = 0.5
_BATCH_BYTES: Final = range(16_384, 64_000_001)
_NO_IDS: Final[Mapping[str, str]] = {}


class Verdict(StrEnum):
    """What became of a message.

    `DELIVERED` is the only good one. `IN_DOUBT` may have been stored: it is sent again as it is.
    `RETRY_LATER` was surely not stored, or is harmless to repeat, and waits for the next round.
    `TOO_LARGE` continues in halves. `REFUSED` is about this message alone: its records are narrowed
    down and set aside. `STOP_TARGET` is about the target: nothing more is tried there.
    """

    DELIVERED = "delivered"
    IN_DOUBT = "in doubt"
    RETRY_LATER = "retry later"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    STOP_TARGET = "stop target"


class Receipt(NamedTuple):
    """What came of delivering one message. `reason` is for people: 500 characters, no secrets.

    `exit_status` is the kind of trouble (model/errors.py) when the verdict is not `DELIVERED`.
    `remote_ids` are the receiver's ids of its rows by JobID, where it gives any. `bytes_sent`
    counts the wire, all attempts together. `doubt` says that an attempt may have been stored,
    whatever the last one met. `certain` is False when the answer does not show whether the message
    or the target is at fault. `refused_by` is for a refusal that is about what records are called
    by, such as their MachineName: that of every record, in order, so that the message can be
    divided by it. `seconds` is how long it took, waits and attempts together.
    """

    verdict: Verdict
    remote_id: str = ""
    reason: str = ""
    exit_status: int = 0
    bytes_sent: int = 0
    attempts: int = 1
    doubt: bool = False
    remote_ids: Mapping[str, str] = _NO_IDS
    certain: bool = True
    refused_by: tuple[str, ...] = ()
    seconds: float = 0.0


class Step(NamedTuple):
    """One question of a pre-flight check and its answer; `exit_status` (model/errors.py) 0 is well.

    `advice` is the thing to do, where the answer does not say it; with an `exit_status` of 0 it
    makes the answer a warning.
    """

    name: str
    answer: str
    exit_status: int = 0
    advice: str = ""


class StepText(NamedTuple):
    """Why a step of a pre-flight check is asked, and what to do unless answer or advice says so."""

    why: str
    otherwise: str


class Endpoint(NamedTuple):
    """A service that a target talks to.

    `url` is https://HOST[:PORT], or http://; `proxy` is the way there, '' for none; times in s.
    """

    name: str
    url: str
    proxy: str
    connect_s: float
    read_s: float
    attempt_s: float


class Credentials(NamedTuple):
    """Certificate, key and trust. `ca` is a hashed directory, a bundle, or None for the system's.

    `crl`: whether a server needs a current revocation list of its CA (`require`), lists that are
    there count (`if-present`), or none does (`off`).
    """

    certificate: Path
    key: Path
    ca: Path | None
    crl: str = "if-present"


class Environment(NamedTuple):
    """What a transport needs of the world, so that it never sleeps, guesses or looks around itself.

    `now` gives aware UTC, `clock` monotonic seconds, `chance` numbers in [0, 1); `wait` waits that
    many seconds and returns True, at once, when a stop was asked for. `signed` reports on a format
    whether its receiver takes S/MIME around the payload. A round makes `state_directory`
    before it opens a transport.
    """

    environment: Mapping[str, str]
    now: Callable[[], datetime]
    clock: Callable[[], float]
    chance: Callable[[], float]
    wait: Callable[[float], bool]
    signed: Callable[[str], bool]
    state_directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where messages of several targets meet. `keys` name it in the configuration, for people."""

    place: tuple[str, ...]
    keys: str = field(compare=False)


class OneOff(NamedTuple):
    """How `republish` makes a target of this transport for once.

    `--TRANSPORT-KEY`, such as --ams-url, gives the target's `key`; `options` are further keys that
    the command line takes.
    """

    key: str
    help: str
    format: str  # unless another one is asked for
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """What the `Options` of every transport provide, besides the keys of the configuration."""

    one_off: ClassVar[OneOff | None] = None
    # Of the steps of the pre-flight check, by name
    step_texts: ClassVar[Mapping[str, StepText]] = {}
    formats: ClassVar[Collection[str]] = ()  # that its service reads; () for any
    delivers: ClassVar[bool] = True  # False where somebody else takes messages to the receiver

    def destination(self) -> Destination | None:
        """None where messages of targets cannot meet, or where the receiver distinguishes them."""
        return None

    def leads_to(self) -> str:
        """Where messages go, for people; '' where a change of that means nothing."""
        return ""

    def doubts(self) -> tuple[tuple[str, str], ...]:
        """What works and may not be meant, each with the thing to do; `doctor` reports it."""
        return ()

    def endpoints(self, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
        """The services that it talks to, none where all stays on this host. Raises: ConfigError."""
        return ()


def batch_bytes_problem(size: int) -> str | None:
    """Why no message can be kept below a size, or None."""
    if size in _BATCH_BYTES:
        return None
    return f"{size} is not between {_BATCH_BYTES[0]} and {_BATCH_BYTES[-1]}"


def own_options(options: object, kind: type[Kind]) -> Kind:
    """Options as those of one transport. Raises: TypeError for those of another."""
    if not isinstance(options, kind):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    return options


class Transport(Protocol):
    """Hands messages over, one at a time, in order, over one kept-alive connection."""

    def payload_limit(self) -> int:
        """The largest payload in bytes that fits one message here, everything around it counted.

        It shrinks for the rest of the run when the service turns out to take less.
        """

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Deliver one message. Never raises for what the other side or the network does.

        Raises: CredentialError before anything is sent, when certificate or key cannot be used.
        """

    def preflight(self) -> tuple[Step, ...]:
        """Whether messages could be delivered, sending none: up to a trouble. Never raises."""

    def warnings(self, now: datetime) -> list[str]:
        """What will soon stop this target, such as a certificate that ends within 30 days."""

    def close(self) -> None: ...


class TransportPlugin(Protocol):
    """A module in this room."""

    Options: type[TransportOptions]


class TransportMaker(Protocol):
    """The same module or, of a package, its module `transport`, which is loaded late."""

    def create(self, options: object, credentials: Credentials, world: Environment) -> Transport:
        """A transport, ready but not yet connected.

        Raises: ConfigError for options that cannot work, CredentialError for certificate, key or
        CAs that cannot be used.
        """


NOT_SENT: Final = "not sent"  # the remote id of what only a dry run or a shadow delivered


class DryRunTransport:
    """The transport of `--dry-run`, with the real one's limit: it delivers all, sends nothing."""

    def __init__(self, real: Transport) -> None:
        self.payload_limit, self.preflight = real.payload_limit, real.preflight
        self.warnings, self.close = real.warnings, real.close

    def deliver(self, message: Message, now: datetime) -> Receipt:
        size = len(message.payload)
        return Receipt(Verdict.DELIVERED, remote_id=NOT_SENT, bytes_sent=size, attempts=0)


class BackgroundThread(Thread, Generic[Result]):
    """A thread that does one piece of work after the other: to start one for each is dear.

    It is a daemon: when SIGTERM ends the process, nobody waits for a service that does not answer.
    A round signs and sends in one, which is mostly waiting, or work of libraries that release the
    interpreter. It collects a result before it begins the next, so no queue can grow.
    """

    def __init__(self) -> None:
        super().__init__(name="background", daemon=True)
        self._work: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[list[Result], BaseException | None]] = SimpleQueue()
        self.start()

    def begin(self, work: Callable[[], Result]) -> None:
        self._work.put(work)

    def result(self, within_s: float = inf) -> Result:
        """The result. Raises: what the work raised, TimeoutError when it is not done by then."""
        deadline = monotonic() + within_s
        while (left_s := deadline - monotonic()) > 0:
            with suppress(Empty):
                results, error = self._done.get(timeout=min(left_s, _LOOK_EVERY_S))
                if error is not None:
                    raise error
                return results[0]
        raise TimeoutError

    def close(self) -> None:
        """The thread ends when it has done what was begun."""
        self._work.put(None)

    def run(self) -> None:
        while self._did_another():
            pass

    def _did_another(self) -> bool:
        # By itself, so that nothing of a message is kept while the next is waited for.
        if (work := self._work.get()) is None:
            return False
        with ExitStack() as ending:
            ending.push(self._keep)
            self._done.put(([work()], None))
        return True

    def _keep(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """What the work raised waits for `result`, which raises it: a thread has no caller."""
        if error is not None:
            self._done.put(([], error))
        return True


class BackgroundTask(BackgroundThread[Result]):
    """One piece of work that has begun in a thread of its own."""

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__()
        self.begin(work)
        self.close()
