"""What the messaging service remembers: projects, users, topics with their logs, subscriptions."""

import hashlib
import json
import re
import secrets
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.fake_ams.wire import go_json

_RECORD_OVERHEAD = 36
_CORRUPTING = re.compile(r'["\\\x00-\x1f]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message; `data` is base64 text as published, empty when the fake keeps only digests.

    `size` is the length of the base64 text, `sha256` its digest; `corrupt` is a record that no pull survives.
    """

    offset: int
    attributes: Mapping[str, str]
    data: str
    publish_time: str
    size: int
    sha256: str
    corrupt: bool = False


@dataclass(kw_only=True)
class User:
    """An AMS user; `projects` maps a project to the roles there."""

    name: str
    token: str
    projects: dict[str, list[str]]
    service_roles: list[str]
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_on: str = field(default_factory=lambda: timestamp())


@dataclass(kw_only=True)
class Topic:
    """A topic and its log."""

    project: str
    name: str
    acl: list[str] = field(default_factory=list)
    log: list[Message] = field(default_factory=list)
    created_on: str = field(default_factory=lambda: timestamp())

    @property
    def path(self) -> str:
        return f"/projects/{self.project}/topics/{self.name}"

    @property
    def bytes(self) -> int:
        return sum(message.size for message in self.log)


@dataclass(kw_only=True)
class Subscription:
    """A reader's place in a topic; `pulled` is the end of the range of the last unacknowledged pull."""

    project: str
    name: str
    topic: Topic
    ack_deadline_s: int = 10
    offset: int = 0
    pulled: int | None = None
    pulled_clock_s: float = 0.0
    acl: list[str] = field(default_factory=list)
    created_on: str = field(default_factory=lambda: timestamp())

    @property
    def path(self) -> str:
        return f"/projects/{self.project}/subscriptions/{self.name}"


class TooLarge(Exception):
    """The broker refuses the record."""


def timestamp() -> str:
    """Now, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_token() -> str:
    """64 hex digits, as the service makes them."""
    return secrets.token_hex(32)


def is_corrupting(attributes: Mapping[str, str]) -> bool:
    """Whether the service, which does not escape attributes, would store an empty record for these."""
    return any(_CORRUPTING.search(text) for pair in attributes.items() for text in pair)


class Store:
    """All state, under one lock that is also notified of every new message."""

    def __init__(self, *, record_limit: int, keep_data: bool) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.projects: set[str] = set()
        self.users: dict[str, User] = {}
        self.topics: dict[tuple[str, str], Topic] = {}
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.record_limit = record_limit
        self.duplicate_ids = False
        self._keep_data = keep_data

    def add_user(
        self,
        name: str,
        *,
        projects: Mapping[str, Iterable[str]] | None = None,
        service_roles: Iterable[str] = (),
    ) -> User:
        """A new user with a new token; an existing one of that name gains the roles."""
        with self.changed:
            user = self.users.setdefault(name, User(name=name, token=new_token(), projects={}, service_roles=[]))
            for project, roles in (projects or {}).items():
                user.projects[project] = sorted({*user.projects.get(project, ()), *roles})
            user.service_roles = sorted({*user.service_roles, *service_roles})
            return user

    def user_of(self, token: str) -> User | None:
        with self.changed:
            return next((user for user in self.users.values() if user.token == token), None) if token else None

    def add_topic(self, project: str, name: str) -> Topic:
        """A new topic (and project); an existing one is returned as it is."""
        with self.changed:
            self.projects.add(project)
            return self.topics.setdefault((project, name), Topic(project=project, name=name))

    def add_subscription(self, project: str, name: str, topic: Topic, *, ack_deadline_s: int = 10) -> Subscription:
        """A new subscription, which begins at the end of the topic."""
        with self.changed:
            subscription = Subscription(
                project=project, name=name, topic=topic, ack_deadline_s=ack_deadline_s, offset=len(topic.log)
            )
            self.subscriptions[project, name] = subscription
            return subscription

    def append(self, topic: Topic, attributes: Mapping[str, str], data: str) -> str:
        """Store a message; the id that the publisher is told. Raises: TooLarge.

        Spec: the broker's limit counts 36 bytes of framing and the pretty-printed stored JSON.
        """
        sha256 = "" if self._keep_data else hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()
        with self.changed:
            offset = len(topic.log)
            told = str(max(0, offset - 1) if self.duplicate_ids else offset)
            publish_time = _publish_time()
            corrupt = is_corrupting(attributes)
            if not corrupt and record_size(told, attributes, data, publish_time) > self.record_limit:
                raise TooLarge
            message = Message(
                offset=offset,
                attributes=dict(sorted(attributes.items())),
                data=data if self._keep_data and not corrupt else "",
                publish_time=publish_time,
                size=len(data),
                sha256=sha256,
                corrupt=corrupt,
            )
            topic.log.append(message)
            self.changed.notify_all()
            return told


def record_size(message_id: str, attributes: Mapping[str, str], data: str, publish_time: str) -> int:
    """Bytes the broker counts for a message; `data` is taken for base64, which JSON leaves as it is."""
    stored: dict[str, object] = {"messageId": message_id}
    if attributes:
        stored["attributes"] = dict(attributes)
    if data:
        stored["data"] = ""
    stored["publishTime"] = publish_time
    return _RECORD_OVERHEAD + len(go_json(stored, 3)) + len(data)


def wire_message(message: Message) -> dict[str, object]:
    """A message as a pull delivers it: empty members left out."""
    shown: dict[str, object] = {"messageId": str(message.offset)}
    if message.attributes:
        shown["attributes"] = dict(message.attributes)
    if message.data:
        shown["data"] = message.data
    return shown | {"publishTime": message.publish_time}


def member(document: object, name: str) -> object:
    """A member of a JSON object whatever its case, the last one winning, as Go decodes; None when absent."""
    found: object = None
    for key, value in document.items() if isinstance(document, dict) else ():
        if key.lower() == name.lower():
            found = value
    return found


def decode(body: bytes | bytearray) -> object:
    """JSON as Go accepts it. Raises: ValueError."""
    return json.loads(body.decode("utf-8", "replace"), parse_constant=_no_constant)


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _publish_time() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
