"""The messaging service's front: routes, and the checks in the service's own order."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.fake_ams.faults import ServiceName
from tests.fake_ams.storage import Store, Topic, User, decode
from tests.fake_ams.wire import NOT_FOUND, Answer, Body, Head, Malformed, go_json

JSON_TYPE = "application/json; charset=utf-8"
_PLAIN_TYPE = "text/plain; charset=utf-8"
_NAME = re.compile(r"[a-zA-Z0-9_-]+")

AuthOption = Literal["header", "key", "both"]
Profile = Literal["old", "new"]

ADMIN, PUBLISHER, CONSUMER = "project_admin", "publisher", "consumer"
SERVICE_ADMIN = "service_admin"


@dataclass(kw_only=True)
class AmsPolicy:
    """How the operators run the service.

    `auth_option`: where the token is looked for. `profile`: `old` (to release 1.6) answers 413 to a record that is too
    large, `new` (from 1.7) 500. `pull_wait_s`: how long a pull that may not return at once waits for a full batch.
    """

    auth_option: AuthOption = "header"
    profile: Profile = "new"
    per_resource_auth: bool = True
    pull_wait_s: float = 300.0


class ApiError(Exception):
    """An answer other than 200; `plain` for those of the middleware, JSON that calls itself text."""

    def __init__(self, code: int, message: str, status: str, *, plain: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.status, self.plain = code, message, status, plain


def invalid(message: str) -> ApiError:
    return ApiError(400, message, "INVALID_ARGUMENT")


def missing(what: str) -> ApiError:
    return ApiError(404, f"{what} doesn't exist", "NOT_FOUND")


def forbidden(*, plain: bool = False) -> ApiError:
    return ApiError(403, "Access to this resource is forbidden", "FORBIDDEN", plain=plain)


_UNAUTHORIZED = ("Unauthorized", "UNAUTHORIZED")


def json_answer(value: object, *, indent: int = 3) -> Answer:
    return Answer(status=200, body=go_json(value, indent), content_type=JSON_TYPE)


EMPTY = Answer(status=200, content_type=JSON_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that passed the middleware: who calls, and the names in its path."""

    head: Head
    body: Body
    store: Store
    policy: AmsPolicy
    names: Mapping[str, str]
    user: User

    @property
    def project(self) -> str:
        return self.names["project"]

    @property
    def roles(self) -> list[str]:
        return self.user.projects.get(self.project, [])

    def read(self) -> bytes | bytearray:
        """The body. Raises: ApiError, Disconnected."""
        try:
            return self.body.read()
        except Malformed as error:
            raise ApiError(400, "Invalid Request Body", "BAD_REQUEST") from error

    def document(self, complaint: str) -> dict[str, object]:
        """The body as a JSON object (`null` counts as an empty one). Raises: ApiError with the route's complaint."""
        try:
            value = decode(self.read())
        except ValueError as error:
            raise invalid(complaint) from error
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise invalid(complaint)
        return value

    def topic(self) -> Topic:
        """The topic named in the path. Raises: ApiError."""
        topic = self.store.topics.get((self.project, self.names["topic"]))
        if topic is None:
            raise missing("Topic")
        return topic

    def check_acl(self, acl: list[str], role: str) -> None:
        """A resource's ACL binds those who hold `role`; others got here by a stronger one. Raises: ApiError."""
        if self.policy.per_resource_auth and role in self.roles and self.user.name not in acl:
            raise forbidden()


Handler = Callable[[Call], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path with `{project}` and the like, and who may go there: in a project, or by service role."""

    name: str
    method: str
    path: str
    roles: frozenset[str]
    handler: Handler
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        object.__setattr__(self, "pattern", re.compile(pattern))


_OPEN_ROUTES = {"/v1/status": "status", "/v1/version": "version", "/v1/users/profile": "profile"}


class Ams:
    """argo-messaging, as far as publishers and consumers see it."""

    name: ServiceName = "ams"

    def __init__(self, policy: AmsPolicy, store: Store, routes: list[Route]) -> None:
        self.policy = policy
        self._store = store
        self._routes = routes

    def route(self, head: Head) -> str:
        found = self._find(head)
        return found[0].name if found else _OPEN_ROUTES.get(head.path, "") if head.method == "GET" else ""

    def answer(self, head: Head, body: Body, certificate: bytes | None) -> Answer:
        try:
            return self._answer(head, body)
        except ApiError as no:
            error = {"error": {"code": no.code, "message": no.message, "status": no.status}}
            kind = _PLAIN_TYPE if no.plain else JSON_TYPE
            return Answer(status=no.code, body=go_json(error, 3), content_type=kind)

    def _answer(self, head: Head, body: Body) -> Answer:
        found = self._find(head)
        if found is None:
            return self._open(head)
        route, names = found
        for kind, name in names.items():
            if kind in ("project", "topic", "subscription") and not _NAME.fullmatch(name):
                raise ApiError(400, f"Invalid {kind} name", "INVALID_ARGUMENT", plain=True)
        token = self._token(head)
        if not token:
            raise ApiError(401, *_UNAUTHORIZED, plain=True)
        project = names.get("project")
        if project is not None and project not in self._store.projects:
            raise ApiError(404, "project doesn't exist", "NOT_FOUND", plain=True)
        user = self._store.user_of(token)
        if user is None or not (user.service_roles or user.projects.get(project or "")):
            raise ApiError(401, *_UNAUTHORIZED, plain=True)
        if not route.roles & {*user.service_roles, *user.projects.get(project or "", ())}:
            raise forbidden(plain=True)
        return route.handler(Call(head=head, body=body, store=self._store, policy=self.policy, names=names, user=user))

    def _find(self, head: Head) -> tuple[Route, dict[str, str]] | None:
        for route in self._routes:
            if route.method == head.method and (match := route.pattern.fullmatch(head.path)):
                return route, match.groupdict()
        return None

    def _token(self, head: Head) -> str:
        key = head.query.get("key", [""])[0]
        if self.policy.auth_option == "key":
            return key
        header = head.header("x-api-key")
        return header or key if self.policy.auth_option == "both" else header

    def _open(self, head: Head) -> Answer:
        route = self.route(head)
        user = self._store.user_of(self._token(head))
        is_admin = user is not None and SERVICE_ADMIN in user.service_roles
        if route == "status":
            if head.query.get("details") == ["true"] and not is_admin:
                raise forbidden() if user is None else ApiError(401, *_UNAUTHORIZED)
            return json_answer({"status": "ok", "push_functionality": "disabled"}, indent=1)
        if route == "version":
            build = {"build_time": "2025-08-12T00:00:00Z", "golang": "go1.21", "compiler": "gc", "os": "linux"}
            build |= {"architecture": "amd64", "distro": "Rocky Linux 9", "hostname": "ams"}
            return json_answer(({"release": "1.7.0"} if is_admin else {}) | build, indent=1)
        if route == "profile":
            if user is None:
                raise ApiError(401, *_UNAUTHORIZED)
            return json_answer(user_object(self._store, user))
        return NOT_FOUND


def user_object(store: Store, user: User) -> dict[str, object]:
    """A user as `users/profile` shows it: per project the roles, and the topics whose ACL holds the user."""
    with store.changed:
        projects: list[dict[str, object]] = [
            {
                "project": project,
                "roles": list(roles),
                "topics": [t.name for t in store.topics.values() if t.project == project and user.name in t.acl],
                "subscriptions": [
                    s.name for s in store.subscriptions.values() if s.project == project and user.name in s.acl
                ],
            }
            for project, roles in user.projects.items()
        ]
    return {
        "uuid": user.uuid,
        "projects": projects,
        "name": user.name,
        "token": user.token,
        "email": f"{user.name}@example.org",
        "service_roles": list(user.service_roles),
        "created_on": user.created_on,
        "modified_on": user.created_on,
    }
