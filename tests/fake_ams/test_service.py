"""The stand-in has the habits of the messaging service on the wire. Spec: argo-messaging 1.7.0, measured."""

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from argo_ams_library import AmsMessage, ArgoMessagingService

from tests.fake_ams import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.raw import JSON, PUBLISH, TEXT, Caller, complaint, exchange, message
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI

pytest_plugins = ["tests.fake_ams.fixtures"]


def test_the_official_library_publishes_pulls_and_acknowledges(
    fake_ams: FakeAMS, pki: PKI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pki.bundle))
    host = pki.host()
    token = fake_ams.bind(host, "ce")
    # The library puts its port into the authn host name, so the exchange and the calls need an object each.
    with_certificate = ArgoMessagingService(
        endpoint="localhost",
        project=PROJECT,
        cert=str(host.certificate),
        key=str(host.key),
        authn_port=fake_ams.auth_port,
    )
    assert with_certificate.token == token
    endpoint = f"localhost:{fake_ams.port}"
    consumer = ArgoMessagingService(endpoint=endpoint, project=PROJECT, token=fake_ams.consumer_token)
    consumer.create_sub("reader", TOPIC)
    publisher = ArgoMessagingService(endpoint=endpoint, project=PROJECT, token=token)
    for text in ("one", "two"):
        assert publisher.publish(TOPIC, AmsMessage(data=text, attributes={"empaid": text}))["messageIds"]
    for text in ("one", "two"):
        [(ack, received)] = consumer.pull_sub("reader", 1, True)
        assert (received.get_data(), received.get_attr()) == (text.encode(), {"empaid": text})
        assert consumer.ack_sub("reader", [ack])
    assert consumer.pull_sub("reader", 1, True) == []
    assert consumer.getoffsets_sub("reader", "current") == 2
    assert not any(token in request.target for request in fake_ams.requests)


# --- order of checks and byte-level habits ---------------------------------------------------------------------------


def test_publish_checks_in_the_order_of_the_service(fake_ams: FakeAMS, call: Caller) -> None:
    forbidden = "Access to this resource is forbidden"
    body = b"x" * 1000
    steps = [
        ("/v1/projects/p.x/topics/t.y:publish", "", 400, "Invalid project name", "INVALID_ARGUMENT", TEXT),
        ("/v1/projects/none/topics/t.y:publish", "", 400, "Invalid topic name", "INVALID_ARGUMENT", TEXT),
        ("/v1/projects/none/topics/none:publish", "", 401, "Unauthorized", "UNAUTHORIZED", TEXT),
        ("/v1/projects/none/topics/none:publish", "bad", 404, "project doesn't exist", "NOT_FOUND", TEXT),
        (f"/v1/projects/{PROJECT}/topics/none:publish", "bad", 401, "Unauthorized", "UNAUTHORIZED", TEXT),
        (PUBLISH, fake_ams.consumer_token, 403, forbidden, "FORBIDDEN", TEXT),
        (f"/v1/projects/{PROJECT}/topics/none:publish", call.token, 404, "Topic doesn't exist", "NOT_FOUND", JSON),
    ]
    for path, token, code, text, status, kind in steps:
        assert call("POST", path, body, token=token) == (code, kind, complaint(code, text, status)), path
    fake_ams.remove_acl("ce")
    assert call.publish(body) == (403, JSON, complaint(403, forbidden, "FORBIDDEN"))
    fake_ams.allow("ce")
    refused = complaint(400, "Invalid Message Arguments", "INVALID_ARGUMENT")
    assert call.publish(body) == (400, JSON, refused)
    assert fake_ams.requests.connections("ams") == 1


def test_a_token_of_another_project_is_unknown_here(fake_ams: FakeAMS, pki: PKI, call: Caller) -> None:
    elsewhere = fake_ams.bind(pki.host("b"), "b", topics=["T"], project="elsewhere")
    assert call("POST", PUBLISH, message(), token=elsewhere)[0] == 401
    assert call("POST", "/v1/projects/elsewhere/topics/T:publish", message(), token=elsewhere)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", PUBLISH + "/", 404),
        ("PUT", PUBLISH, 400),
        ("GET", "/", 404),
        ("GET", "/v1/status/", 404),
        ("POST", "/v1/status", 404),
        ("GET", PUBLISH, 400),
    ],
)
def test_unknown_routes(call: Caller, method: str, path: str, code: int) -> None:
    status, kind, body = call(method, path)
    assert (status, kind) == (code, TEXT)
    expected = b"404 page not found\n" if code == 404 else complaint(400, "Invalid topic name", "INVALID_ARGUMENT")
    assert body == expected


def test_headers_are_go_s(fake_ams: FakeAMS, call: Caller) -> None:
    call.connection.request("POST", PUBLISH, b"{}")
    answer = call.connection.getresponse()
    answer.read()
    assert [name for name, _ in answer.getheaders()] == ["Content-Type", "Date", "Content-Length"]
    assert fake_ams.requests[-1].tls_version == "TLSv1.3"
    assert call.connection.sock.selected_alpn_protocol() in (None, "http/1.1")


@pytest.mark.parametrize(
    ("option", "header", "query", "works"),
    [
        ("header", True, False, True),
        ("header", False, True, False),
        ("key", True, False, False),
        ("key", False, True, True),
        ("both", True, False, True),
        ("both", False, True, True),
    ],
)
def test_where_the_token_may_be(pki: PKI, option: str, header: bool, query: bool, works: bool) -> None:
    with FakeAMS(pki, auth_option="both" if option == "both" else "key" if option == "key" else "header") as fake:
        token = fake.bind(pki.host())
        caller = Caller(fake, token if header else "")
        status, _, _ = caller("POST", PUBLISH + (f"?key={token}" if query else ""), message())
        assert status == (200 if works else 401)
        assert caller("POST", f"{PUBLISH}?key={token}", message(), token="wrong")[0] == (
            200 if option == "key" else 401
        )
        caller.connection.close()


# --- early answers, bodies in pieces, manners ------------------------------------------------------------------------


def test_a_short_body_is_drained_and_the_connection_kept(fake_ams: FakeAMS, call: Caller) -> None:
    for _ in range(2):
        assert call("POST", PUBLISH, b"x" * 200_000, token="stale")[0] == 401
    assert fake_ams.requests.connections("ams") == 1


@pytest.mark.parametrize("size", [700_000, 5_000_000])
def test_a_long_body_is_answered_unread_and_the_answer_can_be_recovered(
    fake_ams: FakeAMS, call: Caller, size: int
) -> None:
    call.connection.connect()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        call.connection.request("POST", PUBLISH, b"x" * size, {"x-api-key": "stale"})
    answer = http.client.HTTPResponse(call.connection.sock, method="POST")
    answer.begin()
    assert (answer.status, answer.getheader("Connection")) == (401, "close")
    answer.close()
    [request] = fake_ams.requests
    assert (request.status, request.body_size) == (401, 0)


def test_a_chunked_body_is_understood(fake_ams: FakeAMS, call: Caller) -> None:
    pieces = iter([json.dumps(message()).encode()[:9], json.dumps(message()).encode()[9:]])
    call.connection.request("POST", PUBLISH, pieces, {"x-api-key": call.token}, encode_chunked=True)
    assert call.connection.getresponse().read().startswith(b'{\n   "messageIds"')
    assert fake_ams.messages()[0].data == "QUJD"


def test_expect_continue_uploads_nothing_on_refusal(fake_ams: FakeAMS, pki: PKI) -> None:
    with _tls(fake_ams) as tls:
        tls.sendall(f"POST {PUBLISH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n".encode())
        assert tls.recv(100).startswith(b"HTTP/1.1 401 ")


def test_plain_http_is_told_off(fake_ams: FakeAMS) -> None:
    with _tcp(fake_ams.port) as plain:
        plain.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.recv(200).startswith(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request")


def test_tls_12_is_spoken_and_a_bad_server_certificate_is_noticed(fake_ams: FakeAMS, pki: PKI) -> None:
    context = ssl.create_default_context(cafile=str(pki.bundle))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with context.wrap_socket(_tcp(fake_ams.port), server_hostname="localhost") as tls:
        assert tls.version() == "TLSv1.2"
    with (
        FakeAMS(pki, server=pki.expired_server()) as fake,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        exchange(fake, None)


def test_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fake_ams", "--directory", str(tmp_path), "--seconds", "0.2"]
    root = Path(__file__).parents[2]
    said = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert "type: ams" in said
    assert said.splitlines()[-1].startswith("# 0 messages")


def _tls(fake: FakeAMS, maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(fake.pki.bundle))
    context.maximum_version = maximum
    return context.wrap_socket(_tcp(fake.port), server_hostname="localhost")


def _tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
