"""Every scripted fault looks on the wire as it says."""

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator

import pytest

from tests.fake_ams import CONNECT, HTML_502, PROJECT, TOPIC, Act, FakeAMS, Fault
from tests.fake_ams.faults import ANY
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI

pytest_plugins = ["tests.fake_ams.fixtures"]

PUBLISH = f"/v1/projects/{PROJECT}/topics/{TOPIC}:publish"
BODY = b'{"messages":[{"attributes":{"empaid":"x"},"data":"QUJD"}]}'


class Sender:
    """One kept connection that publishes."""

    def __init__(self, fake: FakeAMS, pki: PKI) -> None:
        context = ssl.create_default_context(cafile=str(pki.bundle))
        self.connection = http.client.HTTPSConnection("localhost", fake.port, context=context, timeout=PATIENCE_S)
        self.token = fake.bind(pki.host(), "ce")

    def publish(self, body: bytes = BODY) -> http.client.HTTPResponse:
        self.connection.request("POST", PUBLISH, body, {"x-api-key": self.token})
        return self.connection.getresponse()

    def status(self) -> int:
        answer = self.publish()
        answer.read()
        return answer.status


@pytest.fixture
def sender(fake_ams: FakeAMS, pki: PKI) -> Iterator[Sender]:
    made = Sender(fake_ams, pki)
    yield made
    made.connection.close()


def test_a_script_is_met_in_order_and_then_life_goes_on(fake_ams: FakeAMS, sender: Sender) -> None:
    script = [Fault.none(), Fault.status(502, HTML_502), Fault.status(503, headers=(("Retry-After", "7"),))]
    fake_ams.faults.push(*script)
    assert [sender.status() for _ in range(4)] == [200, 502, 503, 200]
    assert [request.fault for request in fake_ams.requests] == [*script, None]
    assert len(fake_ams.messages()) == 2
    assert {request.connection for request in fake_ams.requests} == {1}
    assert fake_ams.faults.pending == 0


def test_a_fault_waits_for_its_service_and_route(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.status(500), route="pull")
    fake_ams.faults.push(Fault.status(500), service="authn", route="authx509")
    assert sender.status() == 200
    fake_ams.faults.always(Fault.status(504), route=ANY)
    assert [sender.status() for _ in range(3)] == [504] * 3
    fake_ams.faults.clear()
    assert sender.status() == 200


def test_headers_of_a_status(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.status(429, HTML_502, (("Retry-After", "3"),)), Fault.redirect("https://localhost:1/x"))
    answer = sender.publish()
    assert (answer.read(), answer.getheader("Content-Type")) == (HTML_502, "text/html")
    assert answer.getheader("Retry-After") == "3"
    answer = sender.publish()
    answer.read()
    assert (answer.status, answer.getheader("Location")) == (302, "https://localhost:1/x")


@pytest.mark.parametrize("handled", [False, True])
def test_a_gateway_timeout_leaves_open_whether_the_message_is_stored(
    fake_ams: FakeAMS, sender: Sender, handled: bool
) -> None:
    fake_ams.faults.push(Fault.status(504, HTML_502, handled=handled))
    assert sender.status() == 504
    assert len(fake_ams.messages()) == handled


@pytest.mark.parametrize(
    "body", [b'{"messageIds": ["0"', HTML_502, b"{}", b"[]", b'{"messageIds":[]}', b"", b"\xff" * 9]
)
def test_strange_bodies(fake_ams: FakeAMS, sender: Sender, body: bytes) -> None:
    fake_ams.faults.push(Fault.body(200, body, handled=True))
    answer = sender.publish()
    assert (answer.status, answer.read()) == (200, body)
    assert len(fake_ams.messages()) == 1


def test_a_body_shorter_than_announced(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.body(200, b'{"messageIds"', length=100))
    with pytest.raises(http.client.IncompleteRead):
        sender.publish().read()


def test_a_body_longer_than_announced(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.body(200, b'{"messageIds":["0"]}', length=4))
    assert sender.publish().read() == b'{"me'


def test_raw_bytes(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.raw(b"SSH-2.0-OpenSSH\r\n"))
    with pytest.raises(http.client.BadStatusLine):
        sender.publish()


@pytest.mark.parametrize(
    ("fault", "stored"),
    [
        (Fault.close_before_read(), 0),
        (Fault.close_after_bytes(10), 0),
        (Fault.store_then_close(), 1),
        (Fault.drop_without_storing(), 0),
        (Fault.reset(), 0),
    ],
    ids=lambda value: value.act.name if isinstance(value, Fault) else str(value),
)
def test_answers_that_never_come(fake_ams: FakeAMS, sender: Sender, fault: Fault, stored: int) -> None:
    fake_ams.faults.push(fault)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        sender.publish()
    assert len(fake_ams.messages()) == stored
    assert [(request.status, request.fault) for request in fake_ams.requests] == [(0, fault)]
    sender.connection.close()
    assert sender.status() == 200


def test_closing_while_the_client_uploads(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.close_after_bytes(100_000))
    with pytest.raises((ConnectionError, ssl.SSLError)):
        sender.publish(b"x" * 30_000_000)
    assert fake_ams.requests[0].body_size == 100_000


def test_a_reset_is_a_reset(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.reset(), route="status")
    sender.connection.request("GET", "/v1/status")
    with pytest.raises(ConnectionResetError):
        sender.connection.getresponse()


def test_delay(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.delay(0.3), Fault.status(503).after(0.3))
    for expected in (200, 503):
        start = time.monotonic()
        assert sender.status() == expected
        assert time.monotonic() - start >= 0.3, "not before its time; how much later is the machine's affair"


@pytest.mark.slow
def test_a_client_that_gives_up_on_a_slow_answer_has_left_its_message(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.delay(FOR_EVER_S))
    sender.connection.connect()
    assert isinstance(sender.connection.sock, ssl.SSLSocket)
    sender.connection.sock.settimeout(2)
    with pytest.raises(TimeoutError):
        sender.publish()
    assert fake_ams.wait_for_messages(1)


@pytest.mark.parametrize("in_body", [False, True])
def test_a_drip_outlives_the_timeout_of_a_single_read(fake_ams: FakeAMS, sender: Sender, in_body: bool) -> None:
    fake_ams.faults.push(Fault.drip(interval=0.01, seconds=0.6, in_body=in_body))
    with contextlib.suppress(http.client.HTTPException, ssl.SSLError, ConnectionError):
        sender.publish().read()
    assert fake_ams.messages() == []
    with pytest.raises(ValueError, match="interval"):
        Fault.drip().after(1)


def test_a_drip_ends_when_the_client_leaves(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.drip(seconds=600))
    sender.connection.request("POST", PUBLISH, BODY)
    assert fake_ams.requests.wait_for(1)
    sender.connection.close()
    assert sender.status() == 200


def test_a_kept_connection_that_closes_after_a_good_answer(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.close_keepalive())
    answer = sender.publish()
    assert (answer.status, answer.getheader("Connection"), answer.will_close) == (200, None, False)
    answer.read()
    time.sleep(0.1)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        sender.status()


def test_store_twice(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.store_twice())
    assert json.loads(sender.publish().read())["messageIds"] == ["0"]
    assert len(fake_ams.messages()) == 2


@pytest.mark.parametrize("fault", [Fault.reset(), Fault.close_before_read()], ids=lambda fault: fault.act.name)
def test_connections_refused_before_tls(fake_ams: FakeAMS, sender: Sender, fault: Fault) -> None:
    fake_ams.faults.push(fault, route=CONNECT)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        sender.publish()
    sender.connection.close()
    assert sender.status() == 200
    assert fake_ams.requests.connections("ams") == 2


def test_named_modes(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.rotate_token()
    assert sender.status() == 401
    sender.token = fake_ams.token("ce")
    assert sender.status() == 200
    fake_ams.remove_acl()
    assert sender.status() == 403
    fake_ams.allow("ce")
    fake_ams.set_limit(100)
    assert sender.status() == 500
    fake_ams.delete_topic()
    assert sender.status() == 404


def test_restart(fake_ams: FakeAMS, sender: Sender) -> None:
    assert sender.status() == 200
    fake_ams.drop_connections()
    with pytest.raises((ConnectionError, ssl.SSLError)):
        sender.publish()
    sender.connection.close()
    assert sender.status() == 200


def test_an_unread_refusal_of_a_long_body(fake_ams: FakeAMS, sender: Sender) -> None:
    fake_ams.faults.push(Fault.status(413, HTML_502, unread=True))
    sender.connection.connect()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        sender.connection.request("POST", PUBLISH, b"x" * 3_000_000)
    answer = http.client.HTTPResponse(sender.connection.sock, method="POST")
    answer.begin()
    assert answer.status == 413
    answer.close()
    assert fake_ams.requests[0].body_size == 0


def test_every_act_has_a_constructor() -> None:
    made = [
        Fault.none(),
        Fault.status(500),
        Fault.close_before_read(),
        Fault.reset(),
        Fault.store_then_close(),
        Fault.drop_without_storing(),
        Fault.drip(),
        Fault.close_keepalive(),
        Fault.store_twice(),
    ]
    assert {fault.act for fault in made} == set(Act)


def test_the_fake_stops_while_clients_hang(pki: PKI) -> None:
    with FakeAMS(pki) as fake:
        hanging = Sender(fake, pki)
        hanging.connection.connect()
        fake.faults.push(Fault.delay(FOR_EVER_S))
        hanging.connection.request("POST", PUBLISH, BODY, {"x-api-key": hanging.token})
        assert fake.wait_for_messages(1)
    hanging.connection.close()
