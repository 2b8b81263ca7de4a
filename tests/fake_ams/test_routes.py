"""Publish, and the routes beside it, answer as the messaging service does. Spec: argo-messaging 1.7.0, measured."""

import base64
import json

import pytest

from tests.fake_ams import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.raw import JSON, Caller, complaint, message
from tests.fake_ams.storage import record_size
from tests.support.pki import PKI

pytest_plugins = ["tests.fake_ams.fixtures"]


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"messages":[]}', b'{"messages":null}'])
def test_nothing_published_is_success_without_ids(call: Caller, body: bytes) -> None:
    assert call.publish(body) == (200, JSON, b'{\n   "messageIds": []\n}')


BROKEN = [
    b"",
    b'{"messages":[',
    b"{} x",
    b"\xef\xbb\xbf{}",
    b"[]",
    b'{"messages":{}}',
    b'{"messages":["x"]}',
    b'{"messages":[{"attributes":{"n":1}}]}',
    b'{"messages":[{"attributes":""}]}',
    b'{"messages":[{"data":1}]}',
    b"\x1f\x8bgzip",
]


@pytest.mark.parametrize("body", BROKEN)
def test_bodies_that_are_refused(fake_ams: FakeAMS, call: Caller, body: bytes) -> None:
    refused = complaint(400, "Invalid Message Arguments", "INVALID_ARGUMENT")
    assert call.publish(body) == (400, JSON, refused)
    assert fake_ams.messages() == []


def test_bodies_that_are_taken_though_they_should_not_be(fake_ams: FakeAMS, call: Caller) -> None:
    assert call.publish(b'{"messages":[{}]}')[2] == b'{\n   "messageIds": [\n      "0"\n   ]\n}'
    assert (
        call.publish(b'{"MESSAGES":[{"Data":"!","ATTRIBUTES":{"b":"\xc3\xa9","a":"/"},"messageId":"9","x":1}]}')[0]
        == 200
    )
    empty, odd = fake_ams.messages()
    assert (empty.data, dict(empty.attributes)) == ("", {})
    assert (odd.data, list(odd.attributes.items())) == ("!", [("a", "/"), ("b", "é")])


def test_a_publish_of_several_is_not_atomic(fake_ams: FakeAMS, call: Caller) -> None:
    fake_ams.set_limit(1000)
    several = {"messages": [{"data": "QUJD"}, {"data": "A" * 1000}, {"data": "QUJD"}]}
    assert call.publish(several) == (500, JSON, complaint(500, "Backend Error", "INTERNAL_SERVER_ERROR"))
    assert len(fake_ams.messages()) == 1


def test_the_id_told_may_be_wrong(fake_ams: FakeAMS, call: Caller) -> None:
    fake_ams.store.duplicate_ids = True
    told = [json.loads(call.publish(message())[2])["messageIds"] for _ in range(2)]
    assert told == [["0"], ["0"]]
    assert [stored.offset for stored in fake_ams.messages()] == [0, 1]


@pytest.mark.parametrize(
    ("profile", "limit", "code", "text"),
    [
        ("old", 1_000_000, 413, complaint(413, "Message size is too large", "INVALID_ARGUMENT")),
        ("new", 1_500_000, 500, complaint(500, "Backend Error", "INTERNAL_SERVER_ERROR")),
    ],
)
def test_size_limits(pki: PKI, profile: str, limit: int, code: int, text: bytes) -> None:
    with FakeAMS(pki, profile="old" if profile == "old" else "new") as fake:
        caller = Caller(fake, fake.bind(pki.host()))
        # The time of publication loses trailing zeros, so the envelope varies by a few bytes.
        envelope = record_size("0", {"empaid": "20260101/1"}, "", "2026-01-01T00:00:00.123456789Z") + len(
            '   "data": "",\n'
        )
        assert caller.publish(message("A" * (limit - envelope)))[0] == 200
        assert caller.publish(message("A" * (limit - envelope + 11))) == (code, JSON, text)
        caller.connection.close()


def test_the_envelope_of_a_record_is_what_was_measured() -> None:
    """Data of 1 499 806 characters passed at a limit of 1 500 000, give or take the digits of an id."""
    size = record_size("10", {"empaid": "20260101/20260101000000"}, "A" * 1_499_806, "2026-01-01T00:00:00.123456789Z")
    assert size == 1_500_000


def test_counts_only_keeps_digests(pki: PKI) -> None:
    with FakeAMS(pki, keep_data=False) as fake:
        caller = Caller(fake, fake.bind(pki.host()))
        data = base64.b64encode(b"x" * 300_000).decode()
        assert caller.publish(message(data))[0] == 200
        [stored] = fake.messages()
        assert (stored.data, stored.size, len(stored.sha256), fake.requests[0].body) == ("", len(data), 64, b"")
        caller.connection.close()


def test_status_version_and_profile(fake_ams: FakeAMS, call: Caller) -> None:
    assert call("GET", "/v1/status", token="")[2] == b'{\n "status": "ok",\n "push_functionality": "disabled"\n}'
    assert call("GET", "/v1/status?details=true", token="bad")[0] == 403
    assert call("GET", "/v1/status?details=true")[0] == 401
    assert "release" not in json.loads(call("GET", "/v1/version")[2])
    assert "release" in json.loads(call("GET", "/v1/version", token=fake_ams.admin_token)[2])
    assert call("GET", "/v1/users/profile", token="bad")[0] == 401
    profile = json.loads(call("GET", "/v1/users/profile")[2])
    place = {"project": PROJECT, "roles": ["publisher"], "topics": [TOPIC], "subscriptions": []}
    assert (profile["name"], profile["projects"]) == ("ce", [place])


def test_topic_routes(fake_ams: FakeAMS, call: Caller) -> None:
    topics, admin = f"/v1/projects/{PROJECT}/topics", fake_ams.admin_token
    assert call("GET", f"{topics}/{TOPIC}")[0] == 403
    assert json.loads(call("PUT", f"{topics}/new", token=admin)[2])["name"] == f"/projects/{PROJECT}/topics/new"
    assert call("PUT", f"{topics}/new", token=admin)[0] == 409
    seen = json.loads(call("GET", topics)[2])
    assert ([entry["name"][-10:] for entry in seen["topics"]], seen["totalSize"]) == ([TOPIC], 1)
    first = json.loads(call("GET", f"{topics}?pageSize=1", token=admin)[2])
    assert first["topics"][0]["name"].endswith("/new")
    rest = json.loads(call("GET", f"{topics}?pageSize=1&pageToken={first['nextPageToken']}", token=admin)[2])
    assert rest["topics"][0]["name"].endswith(TOPIC)
    assert b"Invalid page size" in call("GET", f"{topics}?pageSize=x", token=admin)[2]
    assert b"Invalid page token" in call("GET", f"{topics}?pageToken=x", token=admin)[2]
    acl = {"authorized_users": ["ce", "nobody"]}
    assert b"User(s): nobody do not exist" in call("POST", f"{topics}/new:modifyAcl", acl, token=admin)[2]
    assert call("POST", f"{topics}/new:modifyAcl", {"authorized_users": ["ce"]}, token=admin)[2] == b""
    assert json.loads(call("GET", f"{topics}/new:acl", token=admin)[2]) == {"authorized_users": ["ce"]}
    call.publish(message("QUJD"))
    metrics = json.loads(call("GET", f"{topics}/{TOPIC}:metrics")[2])["metrics"]
    values = {entry["metric"]: entry["timeseries"][0]["value"] for entry in metrics}
    assert (values["topic.number_of_messages"], values["topic.number_of_bytes"]) == (1, 4)
    assert call("GET", f"/v1/projects/{PROJECT}:metrics", token=admin)[0] == 200
    assert call("DELETE", f"{topics}/new", token=admin) == (200, JSON, b"")
    fake_ams.delete_topic()
    assert call.publish(message())[0] == 404


def test_user_routes(fake_ams: FakeAMS, call: Caller) -> None:
    admin = fake_ams.admin_token
    shown = json.loads(call("GET", f"/v1/users:byToken/{call.token}", token=admin)[2])
    assert json.loads(call("GET", f"/v1/users:byUUID/{shown['uuid']}", token=admin)[2])["name"] == "ce"
    assert b"User doesn't exist" in call("GET", "/v1/users:byUUID/none", token=admin)[2]
    fresh = json.loads(call("POST", "/v1/users/ce:refreshToken", token=admin)[2])["token"]
    assert fresh == fake_ams.token("ce") != call.token
    assert call.publish(message())[0] == 401


def test_pull_and_acknowledge(fake_ams: FakeAMS, call: Caller) -> None:
    sub, token = f"/v1/projects/{PROJECT}/subscriptions/s", fake_ams.consumer_token
    call.publish(message("early"))
    reference = {"topic": f"projects/{PROJECT}/topics/{TOPIC}"}
    assert json.loads(call("PUT", sub, reference, token=token)[2])["ackDeadlineSeconds"] == 10
    assert call("PUT", sub, reference, token=token)[0] == 409
    assert b"Invalid Topic name" in call("PUT", f"{sub}2", {"topic": "x"}, token=token)[2]
    options = {"maxMessages": "2", "returnImmediately": "true"}
    assert json.loads(call("POST", f"{sub}:pull", options, token=token)[2]) == {"receivedMessages": []}
    ids = [f"projects/{PROJECT}/subscriptions/s:{offset}" for offset in range(3)]
    assert b"no ack pending" in call("POST", f"{sub}:acknowledge", {"ackIds": ids[1:2]}, token=token)[2]
    call.publish(message("AAAA" * 1000))
    call.publish(b'{"messages":[{"data":"QUJD"}]}')
    received = json.loads(call("POST", f"{sub}:pull", options, token=token)[2])["receivedMessages"]
    assert [entry["ackId"] for entry in received] == ids[1:]
    assert "attributes" not in received[1]["message"]
    assert b"Invalid Pull Parameters" in call("POST", f"{sub}:pull", {"maxMessages": 1}, token=token)[2]
    assert b"Invalid Pull Parameters" in call("POST", f"{sub}:pull", b"", token=token)[2]
    assert len(json.loads(call("POST", f"{sub}:pull", b"{}", token=token)[2])["receivedMessages"]) == 1
    for bad in ([], ["x"], [ids[0].replace("/s:", "/other:")]):
        assert b"Invalid ack id" in call("POST", f"{sub}:acknowledge", {"ackIds": bad}, token=token)[2]
    assert b"Invalid ack parameter" in call("POST", f"{sub}:acknowledge", b"{", token=token)[2]
    assert b"wrong ack" in call("POST", f"{sub}:acknowledge", {"ackIds": ids[2:]}, token=token)[2]
    assert call("POST", f"{sub}:acknowledge", {"ackIds": ids[1:2]}, token=token)[2] == b"{}"
    assert json.loads(call("GET", f"{sub}:offsets", token=token)[2]) == {"max": 3, "min": 0, "current": 2}
    assert call("POST", f"{sub}:modifyOffset", {"offset": 0}, token=token)[2] == b""
    assert call("POST", f"{sub}:modifyAckDeadline", {"ackDeadlineSeconds": 20}, token=token)[2] == b""
    assert json.loads(call("GET", sub, token=token)[2])["ackDeadlineSeconds"] == 20
    fake_ams.delete_topic()
    assert call("POST", f"{sub}:pull", options, token=token)[0] == 409


@pytest.mark.parametrize("poison", ['a"b', "a\\b", "a\nb", "a\0b"])
def test_a_poisoned_attribute_blocks_the_subscription(fake_ams: FakeAMS, call: Caller, poison: str) -> None:
    sub, token = f"/v1/projects/{PROJECT}/subscriptions/s", fake_ams.consumer_token
    call("PUT", sub, {"topic": f"projects/{PROJECT}/topics/{TOPIC}"}, token=token)
    assert call.publish(message(empaid=poison))[0] == 200
    for _ in range(2):
        status, _, body = call("POST", f"{sub}:pull", b"{}", token=token)
        assert (status, b"invalid JSON Structure" in body) == (500, True)
    assert fake_ams.messages()[0].corrupt
