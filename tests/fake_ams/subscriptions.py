"""The consumer's side of the messaging service: subscriptions, pull, acknowledge, offsets."""

import re
import time

from tests.fake_ams.api import CONSUMER, EMPTY, ApiError, Call, invalid, json_answer, missing
from tests.fake_ams.storage import Message, Subscription, member, wire_message
from tests.fake_ams.topics import page, wanted_acl
from tests.fake_ams.wire import Answer

_INTERNAL = "INTERNAL_SERVER_ERROR"
_BAD_PULL = "Invalid Pull Parameters Arguments"
_BAD_SUBSCRIPTION = "Invalid Subscription Arguments"


def _subscription(call: Call) -> Subscription:
    found = call.store.subscriptions.get((call.project, call.names["subscription"]))
    if found is None:
        raise missing("Subscription")
    return found


def _shown(entry: Subscription) -> dict[str, object]:
    push = {"type": "", "pushEndpoint": "", "maxMessages": 0, "authorizationHeader": {}, "retryPolicy": {}}
    push |= {"verificationHash": "", "verified": False, "mattermostUrl": "", "mattermostUsername": ""}
    return {
        "name": entry.path,
        "topic": entry.topic.path,
        "pushConfig": push | {"mattermostChannel": "", "base64Decode": False},
        "ackDeadlineSeconds": entry.ack_deadline_s,
        "createdOn": entry.created_on,
    }


def create_subscription(call: Call) -> Answer:
    document = call.document(_BAD_SUBSCRIPTION)
    reference, deadline = member(document, "topic"), member(document, "ackDeadlineSeconds") or 0
    if not isinstance(reference, str | None) or not isinstance(deadline, int):
        raise invalid(_BAD_SUBSCRIPTION)
    match = re.fullmatch(r"/?projects/([^/]+)/topics/([^/]+)", reference or "")
    if match is None:
        raise invalid("Invalid Topic name")
    with call.store.changed:
        topic = call.store.topics.get((match[1], match[2]))
        if topic is None:
            raise missing("Topic")
        if (call.project, call.names["subscription"]) in call.store.subscriptions:
            raise ApiError(409, "Subscription already exists", "ALREADY_EXISTS")
        entry = call.store.add_subscription(
            call.project, call.names["subscription"], topic, ack_deadline_s=deadline or 10
        )
        if CONSUMER in call.roles:
            entry.acl.append(call.user.name)
    return json_answer(_shown(entry))


def show_subscription(call: Call) -> Answer:
    return json_answer(_shown(_subscription(call)))


def delete_subscription(call: Call) -> Answer:
    with call.store.changed:
        entry = _subscription(call)
        del call.store.subscriptions[entry.project, entry.name]
    return EMPTY


def list_subscriptions(call: Call) -> Answer:
    with call.store.changed:
        entries = [entry for entry in call.store.subscriptions.values() if entry.project == call.project][::-1]
    places, token = page(call, len(entries))
    shown = [_shown(entries[place]) for place in places]
    return json_answer({"subscriptions": shown, "nextPageToken": token, "totalSize": len(entries)})


def subscription_acl(call: Call) -> Answer:
    return json_answer({"authorized_users": list(_subscription(call).acl)})


def modify_subscription_acl(call: Call) -> Answer:
    entry = _subscription(call)
    entry.acl = wanted_acl(call, "Invalid Subscription ACL Arguments")
    return EMPTY


def pull(call: Call) -> Answer:
    """Until they are acknowledged, every pull brings the same messages; options are JSON strings."""
    entry = _subscription(call)
    call.check_acl(entry.acl, CONSUMER)
    document = call.document(_BAD_PULL)
    maximum, at_once = member(document, "maxMessages"), member(document, "returnImmediately")
    if not isinstance(maximum, str | None) or not isinstance(at_once, str | None):
        raise invalid(_BAD_PULL)
    if not (maximum or "1").isdecimal():
        raise invalid(_BAD_PULL)
    if (call.store.topics.get((entry.topic.project, entry.topic.name))) is not entry.topic:
        raise ApiError(409, "Subscription's topic doesn't exist", "CONFLICT")
    messages = _messages(call, entry, int(maximum or "1"), wait=at_once == "false")
    if any(message.corrupt for message in messages):
        complaint = "Message retrieved from broker network has invalid JSON Structure"
        raise ApiError(500, complaint, _INTERNAL)
    received = [{"ackId": f"{entry.path[1:]}:{m.offset}", "message": wire_message(m)} for m in messages]
    return json_answer({"receivedMessages": received})


def _messages(call: Call, entry: Subscription, maximum: int, *, wait: bool) -> list[Message]:
    with call.store.changed:
        if wait and len(entry.topic.log) > entry.offset:
            # A queue that holds something, but too little, is waited for; an empty one is not.
            call.store.changed.wait_for(lambda: len(entry.topic.log) - entry.offset >= maximum, call.policy.pull_wait_s)
        messages = entry.topic.log[entry.offset : entry.offset + maximum]
        if messages:
            entry.pulled = messages[-1].offset + 1
            entry.pulled_clock_s = time.monotonic()
        return messages


def acknowledge(call: Call) -> Answer:
    """Moves the place behind the highest id, and so acknowledges everything before it too."""
    entry = _subscription(call)
    ids = member(call.document("Invalid ack parameter"), "ackIds")
    if ids is not None and not isinstance(ids, list):
        raise invalid("Invalid ack parameter")
    pattern = re.compile(re.escape(entry.path[1:]) + r":(\d+)")
    matches = [pattern.fullmatch(text) if isinstance(text, str) else None for text in ids or ()]
    offsets = [int(match[1]) for match in matches if match]
    if not offsets or len(offsets) != len(matches):
        raise invalid("Invalid ack id")
    with call.store.changed:
        if entry.pulled is None:
            raise ApiError(500, "no ack pending", _INTERNAL)
        if int(time.monotonic() - entry.pulled_clock_s) > entry.ack_deadline_s:
            raise ApiError(408, "ack timeout", "TIMEOUT")
        if not entry.offset <= max(offsets) < entry.pulled:
            raise ApiError(500, "wrong ack", _INTERNAL)
        entry.offset, entry.pulled = max(offsets) + 1, None
    return json_answer({})


def offsets(call: Call) -> Answer:
    entry = _subscription(call)
    return json_answer({"max": len(entry.topic.log), "min": 0, "current": entry.offset})


def modify_offset(call: Call) -> Answer:
    entry = _subscription(call)
    wanted = member(call.document("Invalid Offset Arguments"), "offset")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= len(entry.topic.log):
        raise invalid("Invalid Offset Arguments")
    entry.offset, entry.pulled = wanted, None
    return EMPTY


def modify_ack_deadline(call: Call) -> Answer:
    entry = _subscription(call)
    wanted = member(call.document("Invalid ackDeadlineSeconds Arguments"), "ackDeadlineSeconds")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= 600:
        raise invalid("Invalid ackDeadlineSeconds Arguments")
    entry.ack_deadline_s = wanted
    return EMPTY
