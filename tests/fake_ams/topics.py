"""What the messaging service does with topics: publish, list, show, create, ACL, metrics."""

import base64
import binascii

from tests.fake_ams.api import ADMIN, CONSUMER, EMPTY, PUBLISHER, ApiError, Call, invalid, json_answer
from tests.fake_ams.storage import TooLarge, Topic, member
from tests.fake_ams.wire import Answer

_BAD_MESSAGES = "Invalid Message Arguments"


def publish(call: Call) -> Answer:
    """Not atomic: what comes before a message that the broker refuses stays stored, and no ids are told."""
    topic = call.topic()
    call.check_acl(topic.acl, PUBLISHER)
    messages = member(call.document(_BAD_MESSAGES), "messages")
    if messages is not None and not isinstance(messages, list):
        raise invalid(_BAD_MESSAGES)
    parsed = [_parse(message) for message in messages or ()]
    try:
        ids = [call.store.append(topic, attributes, data) for attributes, data in parsed]
    except TooLarge as error:
        if call.policy.profile == "old":
            raise ApiError(413, "Message size is too large", "INVALID_ARGUMENT") from error
        raise ApiError(500, "Backend Error", "INTERNAL_SERVER_ERROR") from error
    return json_answer({"messageIds": ids})


def _parse(message: object) -> tuple[dict[str, str], str]:
    """Attributes and data of one message; nothing is checked but the types. Raises: ApiError."""
    if message is not None and not isinstance(message, dict):
        raise invalid(_BAD_MESSAGES)
    attributes, data = member(message, "attributes"), member(message, "data")
    if attributes is not None and not isinstance(attributes, dict):
        raise invalid(_BAD_MESSAGES)
    texts = {key: "" if value is None else value for key, value in (attributes or {}).items()}
    if not all(isinstance(value, str) for value in texts.values()) or not isinstance(data, str | None):
        raise invalid(_BAD_MESSAGES)
    return texts, data or ""


def page(call: Call, count: int) -> tuple[range, str]:
    """Which of `count` entries to show, and the token of the next page. Raises: ApiError."""
    size_text = call.head.query.get("pageSize", ["0"])[0] or "0"
    try:
        size = int(size_text)
    except ValueError as error:
        raise invalid("Invalid page size") from error
    try:
        start = int(base64.b64decode(call.head.query.get("pageToken", [""])[0], validate=True) or b"0")
    except (binascii.Error, ValueError) as error:
        raise invalid("Invalid page token") from error
    end = min(count, start + size) if size > 0 else count
    return range(start, end), base64.b64encode(str(end).encode()).decode() if end < count else ""


def _shown(topic: Topic) -> dict[str, object]:
    return {"name": topic.path, "created_on": topic.created_on}


def list_topics(call: Call) -> Answer:
    """Newest first; a mere publisher sees the topics that have it in their ACL."""
    with call.store.changed:
        topics = [topic for topic in call.store.topics.values() if topic.project == call.project][::-1]
    if PUBLISHER in call.roles and not {ADMIN, CONSUMER} & set(call.roles):
        topics = [topic for topic in topics if call.user.name in topic.acl]
    places, token = page(call, len(topics))
    shown = [_shown(topics[place]) for place in places]
    return json_answer({"topics": shown, "nextPageToken": token, "totalSize": len(topics)})


def show_topic(call: Call) -> Answer:
    return json_answer(_shown(call.topic()))


def create_topic(call: Call) -> Answer:
    if call.read():
        call.document("Invalid Topic Arguments")
    with call.store.changed:
        if (call.project, call.names["topic"]) in call.store.topics:
            raise ApiError(409, "Topic already exists", "ALREADY_EXISTS")
        topic = call.store.add_topic(call.project, call.names["topic"])
    return json_answer(_shown(topic))


def delete_topic(call: Call) -> Answer:
    with call.store.changed:
        topic = call.topic()
        del call.store.topics[topic.project, topic.name]
    return EMPTY


def topic_acl(call: Call) -> Answer:
    return json_answer({"authorized_users": list(call.topic().acl)})


def modify_topic_acl(call: Call) -> Answer:
    topic = call.topic()
    topic.acl = wanted_acl(call, "Invalid Topic ACL Arguments")
    return EMPTY


def wanted_acl(call: Call, complaint: str) -> list[str]:
    """The users of an ACL body, all of whom must exist. Raises: ApiError."""
    users = member(call.document(complaint), "authorized_users")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise invalid(complaint)
    if strangers := [user for user in users if user not in call.store.users]:
        raise ApiError(404, f"User(s): {', '.join(strangers)} do not exist", "NOT_FOUND")
    return users


def topic_subscriptions(call: Call) -> Answer:
    topic = call.topic()
    with call.store.changed:
        paths = [entry.path for entry in call.store.subscriptions.values() if entry.topic is topic]
    return json_answer({"subscriptions": paths})


def _metric(metric: str, value: float, resource: str, name: str, *, kind: str = "counter") -> dict[str, object]:
    return {
        "metric": metric,
        "metric_type": kind,
        "value_type": "int64" if isinstance(value, int) else "float64",
        "resource_type": resource,
        "resource_name": name,
        "timeseries": [{"timestamp": "2026-01-01T00:00:00Z", "value": value}],
        "description": f"{metric} of {name}",
    }


def topic_metrics(call: Call) -> Answer:
    topic = call.topic()
    call.check_acl(topic.acl, PUBLISHER)
    with call.store.changed:
        readers = sum(entry.topic is topic for entry in call.store.subscriptions.values())
        count, size = len(topic.log), topic.bytes
    values: dict[str, float] = {
        "topic.number_of_subscriptions": readers,
        "topic.number_of_messages": count,
        "topic.number_of_bytes": size,
        "topic.number_of_daily_messages": count,
        "topic.publishing_rate": 0.0,
    }
    return json_answer({"metrics": [_metric(name, value, "topic", topic.name) for name, value in values.items()]})


def project_metrics(call: Call) -> Answer:
    project = call.project
    with call.store.changed:
        topics = [topic for topic in call.store.topics.values() if topic.project == project]
        readers = [entry for entry in call.store.subscriptions.values() if entry.project == project]
        users = [user.name for user in call.store.users.values() if project in user.projects]
    metrics = [
        _metric("project.number_of_topics", len(topics), "project", project),
        _metric("project.number_of_subscriptions", len(readers), "project", project),
        _metric("project.number_of_daily_messages", sum(len(topic.log) for topic in topics), "project", project),
    ]
    for user in users:
        name = f"{project}.{user}"
        of_topics, of_readers = sum(user in t.acl for t in topics), sum(user in r.acl for r in readers)
        metrics.append(_metric("project.user.number_of_topics", of_topics, "project.user", name))
        metrics.append(_metric("project.user.number_of_subscriptions", of_readers, "project.user", name))
    return json_answer({"metrics": metrics})
