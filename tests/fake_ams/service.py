"""The stand-in as a whole: authn and AMS on two loopback ports, with the knobs that tests turn."""

import ssl
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509

from tests.fake_ams.api import ADMIN, CONSUMER, PUBLISHER, SERVICE_ADMIN, Ams, AmsPolicy, AuthOption, Profile
from tests.fake_ams.authn import Authn, AuthnPolicy
from tests.fake_ams.faults import FaultScript
from tests.fake_ams.listener import Listener, server_context
from tests.fake_ams.names import authn_dn
from tests.fake_ams.recorder import Recorder
from tests.fake_ams.routes import all_routes
from tests.fake_ams.storage import Message, Store, User, new_token
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential, parse_slash_dn

RECORD_LIMIT: dict[Profile, int] = {"old": 1_000_000, "new": 1_500_000}
PROJECT, TOPIC = "accounting", "gLite-APEL"


class FakeAMS:
    """Start with `with`; a project `accounting` with topic `gLite-APEL`, an admin and a consumer are there already.

    `port` and `auth_port` 0 are free ones. `keep_data=False` keeps counts and digests only, for benchmarks.
    `trust_unknown_cas` lets authn take certificates of any date and of any authority of the PKI.
    """

    def __init__(
        self,
        pki: PKI,
        *,
        port: int = 0,
        auth_port: int = 0,
        service_host: str = "localhost",
        server: Credential | None = None,
        profile: Profile = "new",
        auth_option: AuthOption = "header",
        per_resource_auth: bool = True,
        trust_unknown_cas: bool = False,
        keep_data: bool = True,
        maximum_tls: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        idle_timeout_s: float = 60.0,
    ) -> None:
        self.pki = pki
        self.service_host = service_host
        self.faults = FaultScript()
        self.requests = Recorder()
        self.store = Store(record_limit=RECORD_LIMIT[profile], keep_data=keep_data)
        self.policy = AmsPolicy(auth_option=auth_option, profile=profile, per_resource_auth=per_resource_auth)
        self.authn_policy = AuthnPolicy(service_host=service_host)
        self._trust_unknown_cas = trust_unknown_cas
        self._maximum_tls = maximum_tls
        self._server = server or pki.server
        self._authn = Authn(self.authn_policy, self.store, pki.revoked)
        self._ams_listener = Listener(
            Ams(self.policy, self.store, all_routes()),
            port=port,
            context=self._ams_context,
            faults=self.faults,
            recorder=self.requests,
            keep_bodies=keep_data,
            idle_timeout_s=idle_timeout_s,
        )
        self._authn_listener = Listener(
            self._authn,
            port=auth_port,
            context=self._authn_context,
            faults=self.faults,
            recorder=self.requests,
            keep_bodies=keep_data,
            idle_timeout_s=idle_timeout_s,
        )
        self.create_topic(PROJECT, TOPIC)
        self.admin_token = self.store.add_user(
            "admin", projects={PROJECT: [ADMIN]}, service_roles=[SERVICE_ADMIN]
        ).token
        self.consumer_token = self.store.add_user("consumer", projects={PROJECT: [CONSUMER]}).token

    def __enter__(self) -> Self:
        self._ams_listener.start()
        self._authn_listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._authn_listener.stop()
        self._ams_listener.stop()

    @property
    def port(self) -> int:
        return self._ams_listener.port

    @property
    def auth_port(self) -> int:
        return self._authn_listener.port

    @property
    def url(self) -> str:
        """Where AMS is, without a path."""
        return f"https://localhost:{self.port}"

    @property
    def auth_url(self) -> str:
        """Where authn is, without a path."""
        return f"https://localhost:{self.auth_port}"

    def bind(
        self,
        who: str | Credential | x509.Certificate,
        user: str | None = None,
        topics: Iterable[str] = (TOPIC,),
        *,
        project: str = PROJECT,
    ) -> str:
        """Let a certificate (or slash DN, or DN in authn's form) publish to the topics; its AMS token."""
        dn = _dn(who)
        name = user or f"publisher-{len(self.store.users)}"
        bound = self.store.add_user(name, projects={project: [PUBLISHER]})
        self._authn.bind(dn, name)
        for topic in topics:
            self.allow(name, topic, project=project)
        return bound.token

    def unbind(self, who: str | Credential | x509.Certificate) -> None:
        """Remove the bindings of a certificate."""
        self._authn.unbind(_dn(who))

    def allow(self, user: str, topic: str = TOPIC, *, project: str = PROJECT) -> None:
        """Put a user into a topic's ACL; the topic is created if need be."""
        with self.store.changed:
            acl = self.store.add_topic(project, topic).acl
            if user not in acl:
                acl.append(user)

    def remove_acl(self, user: str | None = None, topic: str = TOPIC, *, project: str = PROJECT) -> None:
        """Take a user, or everybody, out of a topic's ACL."""
        with self.store.changed:
            entry = self.store.topics[project, topic]
            entry.acl = [name for name in entry.acl if user is not None and name != user]

    def create_topic(self, project: str = PROJECT, topic: str = TOPIC) -> None:
        """Make a topic, and its project."""
        self.store.add_topic(project, topic)

    def delete_topic(self, project: str = PROJECT, topic: str = TOPIC) -> None:
        """Remove a topic and its messages."""
        with self.store.changed:
            del self.store.topics[project, topic]

    def delete_user(self, name: str) -> None:
        """Remove an AMS user; its bindings stay behind, as they do."""
        with self.store.changed:
            del self.store.users[name]

    def rotate_token(self, user: str | None = None) -> None:
        """Give a user, or every publisher, a new token; the old one is worth nothing from now on."""
        with self.store.changed:
            for entry in self.store.users.values():
                if entry.name == user or (user is None and _is_publisher(entry)):
                    entry.token = new_token()

    def token(self, user: str) -> str:
        """The token of a user as it is now."""
        with self.store.changed:
            return self.store.users[user].token

    def set_limit(self, record_bytes: int) -> None:
        """Change the broker's limit on a record (data in base64 plus about 200 bytes)."""
        self.store.record_limit = record_bytes

    def use_server_certificate(self, credential: Credential) -> None:
        """Show this certificate to connections from now on."""
        self._server = credential

    def drop_connections(self) -> None:
        """Cut every open connection, as a restart does; both services go on."""
        self._ams_listener.drop_connections()
        self._authn_listener.drop_connections()

    def messages(self, project: str = PROJECT, topic: str = TOPIC) -> list[Message]:
        """What is stored in a topic, in order."""
        with self.store.changed:
            return list(self.store.topics[project, topic].log)

    def wait_for_messages(
        self, count: int, project: str = PROJECT, topic: str = TOPIC, *, timeout_s: float = PATIENCE_S
    ) -> bool:
        """Wait until a topic holds that many messages; False when time ran out."""
        with self.store.changed:
            return self.store.changed.wait_for(lambda: len(self.store.topics[project, topic].log) >= count, timeout_s)

    def _ams_context(self) -> ssl.SSLContext:
        return server_context(self._server, maximum_tls=self._maximum_tls)

    def _authn_context(self) -> ssl.SSLContext:
        anchors: list[Path] = self.pki.anchors if self._trust_unknown_cas else [self.pki.bundle]
        return server_context(
            self._server,
            maximum_tls=self._maximum_tls,
            anchors=tuple(anchors),
            any_validity=self._trust_unknown_cas,
        )


def _dn(who: str | Credential | x509.Certificate) -> str:
    if isinstance(who, str):
        return authn_dn(parse_slash_dn(who)) if who.startswith("/") else who
    return authn_dn((who.x509 if isinstance(who, Credential) else who).subject)


def _is_publisher(user: User) -> bool:
    return any(PUBLISHER in roles for roles in user.projects.values())
