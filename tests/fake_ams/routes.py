"""The table of AMS routes: method, path, who may, what happens."""

from tests.fake_ams import subscriptions, topics
from tests.fake_ams.api import (
    ADMIN,
    CONSUMER,
    PUBLISHER,
    SERVICE_ADMIN,
    Call,
    Handler,
    Route,
    json_answer,
    missing,
    user_object,
)
from tests.fake_ams.storage import User, new_token
from tests.fake_ams.wire import Answer

_P = "/v1/projects/{project}"
_TS, _T = f"{_P}/topics", f"{_P}/topics/{{topic}}"
_SS, _S = f"{_P}/subscriptions", f"{_P}/subscriptions/{{subscription}}"
_READ = (CONSUMER, SERVICE_ADMIN)


def _route(name: str, method: str, path: str, handler: Handler, *roles: str) -> Route:
    return Route(name=name, method=method, path=path, roles=frozenset({ADMIN, *roles}), handler=handler)


def all_routes() -> list[Route]:
    """In order of precedence: `name:verb` before `name`, which would swallow it."""
    return [
        _route("publish", "POST", f"{_T}:publish", topics.publish, PUBLISHER),
        _route("topics:acl", "GET", f"{_T}:acl", topics.topic_acl, SERVICE_ADMIN),
        _route("topics:modifyAcl", "POST", f"{_T}:modifyAcl", topics.modify_topic_acl, SERVICE_ADMIN),
        _route("topics:metrics", "GET", f"{_T}:metrics", topics.topic_metrics, PUBLISHER, *_READ),
        _route("topics:subscriptions", "GET", f"{_T}/subscriptions", topics.topic_subscriptions, *_READ),
        _route("topics:show", "GET", _T, topics.show_topic, *_READ),
        _route("topics:create", "PUT", _T, topics.create_topic, SERVICE_ADMIN),
        _route("topics:delete", "DELETE", _T, topics.delete_topic, SERVICE_ADMIN),
        _route("topics:list", "GET", _TS, topics.list_topics, PUBLISHER, *_READ),
        _route("pull", "POST", f"{_S}:pull", subscriptions.pull, CONSUMER),
        _route("acknowledge", "POST", f"{_S}:acknowledge", subscriptions.acknowledge, CONSUMER),
        _route("subscriptions:offsets", "GET", f"{_S}:offsets", subscriptions.offsets, *_READ),
        _route("subscriptions:modifyOffset", "POST", f"{_S}:modifyOffset", subscriptions.modify_offset, CONSUMER),
        _route(
            "subscriptions:modifyAckDeadline",
            "POST",
            f"{_S}:modifyAckDeadline",
            subscriptions.modify_ack_deadline,
            CONSUMER,
        ),
        _route("subscriptions:acl", "GET", f"{_S}:acl", subscriptions.subscription_acl, SERVICE_ADMIN),
        _route(
            "subscriptions:modifyAcl", "POST", f"{_S}:modifyAcl", subscriptions.modify_subscription_acl, SERVICE_ADMIN
        ),
        _route("subscriptions:show", "GET", _S, subscriptions.show_subscription, *_READ),
        _route("subscriptions:create", "PUT", _S, subscriptions.create_subscription, *_READ),
        _route("subscriptions:delete", "DELETE", _S, subscriptions.delete_subscription, *_READ),
        _route("subscriptions:list", "GET", _SS, subscriptions.list_subscriptions, *_READ),
        _route("projects:metrics", "GET", f"{_P}:metrics", topics.project_metrics, *_READ),
        _route("users:byUUID", "GET", "/v1/users:byUUID/{uuid}", _user_by_uuid, SERVICE_ADMIN),
        _route("users:byToken", "GET", "/v1/users:byToken/{token}", _user_by_token, SERVICE_ADMIN),
        _route("users:refreshToken", "POST", "/v1/users/{user}:refreshToken", _refresh_token, SERVICE_ADMIN),
    ]


def _user_answer(call: Call, user: User | None) -> Answer:
    if user is None:
        raise missing("User")
    return json_answer(user_object(call.store, user))


def _user_by_uuid(call: Call) -> Answer:
    with call.store.changed:
        found = next((user for user in call.store.users.values() if user.uuid == call.names["uuid"]), None)
    return _user_answer(call, found)


def _user_by_token(call: Call) -> Answer:
    return _user_answer(call, call.store.user_of(call.names["token"]))


def _refresh_token(call: Call) -> Answer:
    user = call.store.users.get(call.names["user"])
    if user is not None:
        user.token = new_token()
    return _user_answer(call, user)
