"""Delivery to AMS, against the stand-in over mutual TLS: every fault has its reaction, and nothing poisons the receiver."""

import base64
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from publisher.model.errors import ConfigError, CredentialError, Rejected, Unreachable
from publisher.model.message import Message, MessageId, message_of
from publisher.transports import ams, transport_plugin
from publisher.transports.ams.transport import SMALLEST_LIMIT, AmsTransport, create
from publisher.transports.base import BackgroundTask, Credentials, Environment, Receipt, Verdict
from tests.fake_ams import CONNECT, HTML_502, FakeAMS, Fault, Receiver
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI, Credential
from tests.transports.contract import (
    PreflightContract,
    TransportContract,
    TransportWorld,
    well_formed,
    well_formed_steps,
)

NOW = datetime.now(UTC)
BIG = 600_000  # bytes of payload: more than 650 000 characters of base64


class AmsWorld(TransportWorld):
    """The stand-in, a bound host, and a transport whose waits take no time."""

    def __init__(self, fake: FakeAMS, pki: PKI, host: Credential, **options: Any) -> None:
        super().__init__(NOW)
        self.fake, self.pki, self.host = fake, pki, host
        self.secrets = (fake.bind(host, "ce"),)
        self._options: dict[str, Any] = {"url": fake.url, "auth_url": fake.auth_url, "read_timeout_s": 60, **options}
        self.transport: AmsTransport = self.make(host)

    def make(self, host: Credential, ca: Path | None = None, **options: Any) -> AmsTransport:
        plugin = ams.Options(**{**self._options, **options})
        credentials = Credentials(certificate=host.certificate, key=host.key, ca=ca or self.pki.ca_directory)
        return create(plugin, credentials, self.surroundings(signed=True))

    def message(self, number: int, size: int = 1000) -> Message:
        line = b"LocalJobId: %06d\n" % number
        payload = (line * (size // len(line) + 1))[: size - 1] + b"\n"
        return message_of(payload, "egi", "apel-job-0.3", 1, NOW)

    def received(self) -> list[bytes]:
        receiver = Receiver.create(self.pki.ca_directory, allowed=[self.host.subject])
        return [receiver.take(message).text.encode() for message in self.fake.messages()]

    def requests(self) -> int:
        return len(self.fake.requests.on("publish"))

    def token_requests(self) -> int:
        return len(self.fake.requests.on("authx509", "authn"))

    def lose_answer(self) -> None:
        self.fake.faults.push(Fault.store_then_close())

    def lose_answers(self) -> None:
        self.fake.faults.always(Fault.store_then_close())

    def turn_away(self) -> None:
        self.fake.remove_acl("ce")

    def refuse_message(self) -> None:
        self.fake.faults.push(envelope(400, "Invalid Message Arguments"))

    def be_busy(self) -> None:
        self.fake.faults.push(Fault.status(503, HTML_502))

    def vanish(self) -> None:
        self.fake.__exit__(None, None, None)

    def deliver(self, number: int = 1, size: int = 1000) -> Receipt:
        return well_formed(self.transport.deliver(self.message(number, size), self.now), self)


def envelope(status: int, message: str, *, unread: bool = False) -> Fault:
    body = json.dumps({"error": {"code": status, "message": message, "status": "X"}}, indent=3).encode()
    return Fault.status(status, body, unread=unread)


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


@pytest.fixture
def world(fake_ams: FakeAMS, pki: PKI, host: Credential) -> Iterator[AmsWorld]:
    made = AmsWorld(fake_ams, pki, host)
    yield made
    made.transport.close()


class TestContract(TransportContract):
    """AMS keeps what every transport must keep."""


class TestPreflight(PreflightContract):
    """AMS tells of trouble before a message is sent."""


# ---- what goes over the wire


def test_a_request_is_what_ams_expects(world: AmsWorld) -> None:
    message = world.message(1)
    world.transport.deliver(message, NOW)
    (request,) = world.fake.requests.on("publish")
    assert request.target == "/v1/projects/accounting/topics/gLite-APEL:publish"
    document = json.loads(request.body)
    assert list(document) == ["messages"]
    (sent,) = document["messages"]
    assert sent.keys() == {"attributes", "data"}
    assert sent["attributes"] == {"empaid": message.id}
    assert base64.b64decode(sent["data"], validate=True).isascii()


def test_the_token_is_in_one_header_and_nowhere_else(world: AmsWorld) -> None:
    world.deliver()
    (token,) = world.secrets
    for request in world.fake.requests:
        places = [name.lower() for name, value in request.headers if token in value]
        assert places == (["x-api-key"] if request.service == "ams" else [])
        assert token not in request.target
        assert token.encode() not in request.body


def test_a_run_asks_for_one_token_and_keeps_two_connections(world: AmsWorld) -> None:
    for number in range(6):
        world.deliver(number)
    assert world.token_requests() == 1
    assert world.fake.requests.connections("ams") == 1
    assert world.fake.requests.connections("authn") == 1


def test_nothing_is_asked_before_the_first_message(world: AmsWorld) -> None:
    assert len(world.fake.requests) == 0


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_payloads_up_to_the_limit_fit_the_configured_data(key: Literal["rsa", "ec"], world: AmsWorld, pki: PKI) -> None:
    host = pki.host(key=key)
    for limit in (16_384, 50_001, 50_002, 50_003, 950_000):
        transport = world.make(host, batch_bytes=limit)
        largest = transport.payload_limit()
        assert limit - largest * 4 / 3 < 5000
        receipt = transport.deliver(world.message(1, largest), NOW)
        assert receipt.verdict is Verdict.DELIVERED
        data = json.loads(world.fake.requests.on("publish")[-1].body)["messages"][0]["data"]
        assert limit - 80 <= len(data) <= limit
        assert transport.deliver(world.message(1, largest + 80), NOW).verdict is Verdict.TOO_LARGE
        transport.close()


@pytest.mark.parametrize("length", [*range(99_000, 99_003), 300_001])
def test_large_messages_are_one_stretch_of_base64(length: int, world: AmsWorld) -> None:
    message = world.message(1, length)
    assert world.transport.deliver(message, NOW).verdict is Verdict.DELIVERED
    data = json.loads(world.fake.requests.on("publish")[-1].body)["messages"][0]["data"]
    signed = base64.b64decode(data, validate=True)
    assert base64.b64encode(signed).decode() == data
    assert message.payload in signed


# ---- the last look before anything leaves


@pytest.mark.parametrize("bad", ["", 'a"b', "a\\b", "a\nb", "a b", "é", "a\0"])
def test_an_id_that_would_corrupt_the_topic_stays_here(bad: str, world: AmsWorld) -> None:
    receipt = well_formed(world.transport.deliver(world.message(1)._replace(id=MessageId(bad)), NOW), world)
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.REFUSED, 65, 0)
    assert len(world.fake.requests) == 0


@pytest.mark.parametrize(
    "payload", [b"", b"\n", "JobName: Ü\n".encode(), b"a\0b", b"a\rb", b"JobName: Application/PKCS7-MIME\n"]
)
def test_a_payload_that_would_stop_the_receiver_stays_here(payload: bytes, world: AmsWorld) -> None:
    receipt = well_formed(world.transport.deliver(world.message(1)._replace(payload=payload), NOW), world)
    assert (receipt.verdict, receipt.exit_status, receipt.bytes_sent) == (Verdict.REFUSED, 65, 0)
    assert receipt.certain
    assert len(world.fake.requests) == 0


def test_a_message_over_the_configured_limit_is_not_sent(world: AmsWorld) -> None:
    receipt = world.deliver(size=world.transport.payload_limit() + 1000)
    assert (receipt.verdict, receipt.attempts) == (Verdict.TOO_LARGE, 0)
    assert "batch_bytes" in receipt.reason
    assert len(world.fake.requests) == 0


# ---- tokens


def test_a_rotated_token_is_exchanged_once(world: AmsWorld) -> None:
    world.deliver(1)
    world.fake.rotate_token("ce")
    receipt = world.deliver(2, BIG)  # the refusal comes while the body is still under way
    assert (receipt.verdict, receipt.attempts) == (Verdict.DELIVERED, 1)
    assert world.token_requests() == 2
    assert world.waits == []
    assert len(world.received()) == 2


def test_a_token_that_ams_refuses_for_good_stops_the_target(world: AmsWorld) -> None:
    world.fake.faults.always(envelope(401, "Unauthorized", unread=True))
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.STOP_TARGET, 77, 2)
    assert world.host.subject in receipt.reason
    assert len(world.waits) == 1
    assert world.waits[0] >= 5
    assert world.token_requests() == 3
    assert world.requests() == 2  # where the same token came back, it was no use sending a megabyte again at once


def test_a_token_that_was_changed_just_now_is_waited_for_once(world: AmsWorld) -> None:
    """AMS and authn do not learn of it in one moment: the old token may come once more, or the new one be refused."""
    world.fake.faults.push(envelope(401, "Unauthorized"))
    receipt = world.deliver(1)
    assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.DELIVERED, 2, 1)
    world.fake.rotate_token("ce")
    world.fake.faults.push(envelope(401, "Unauthorized"), envelope(401, "Unauthorized"))
    receipt = world.deliver(2)
    assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.DELIVERED, 2, 2)
    assert len(world.received()) == 2


def test_a_third_401_stops_the_target(world: AmsWorld) -> None:
    world.deliver(1)
    world.fake.rotate_token("ce")
    world.fake.faults.push(*(envelope(401, "Unauthorized") for _ in range(3)))
    assert world.deliver(2).verdict is Verdict.STOP_TARGET
    assert world.requests() == 4
    assert world.deliver(3).verdict is Verdict.DELIVERED


def test_a_refused_token_is_not_waited_for_when_there_shall_be_one_attempt(world: AmsWorld) -> None:
    transport = world.make(world.host, attempts=1)
    world.fake.faults.push(envelope(401, "Unauthorized"))
    receipt = transport.deliver(world.message(1), NOW)
    transport.close()
    assert (receipt.verdict, receipt.exit_status, world.waits) == (Verdict.STOP_TARGET, 77, [])


def test_authn_away_while_the_token_is_exchanged(world: AmsWorld) -> None:
    world.deliver(1)
    world.fake.rotate_token("ce")
    world.fake.faults.push(Fault.status(502, HTML_502), service="authn", route="authx509")
    receipt = world.deliver(2)
    assert (receipt.verdict, receipt.attempts) == (Verdict.DELIVERED, 2)


def unbind(world: AmsWorld) -> None:
    world.fake.unbind(world.host)


def other_host_name(world: AmsWorld) -> None:
    world.fake.authn_policy.service_host = "msg.example.org"


def no_reverse_name(world: AmsWorld) -> None:
    world.fake.authn_policy.peer_name = ""


def other_reverse_name(world: AmsWorld) -> None:
    world.fake.authn_policy.peer_name = "other.example.org"


@pytest.mark.parametrize(
    ("trouble", "exit_status", "words"),
    [
        (unbind, 77, "GOCDB"),
        (other_host_name, 78, "service_host"),
        (no_reverse_name, 77, "reverse DNS"),
        (other_reverse_name, 77, "reverse DNS"),
    ],
)
def test_authn_says_no(trouble: Callable[[AmsWorld], None], exit_status: int, words: str, world: AmsWorld) -> None:
    trouble(world)
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, exit_status)
    assert words in receipt.reason
    if exit_status == 77:  # both spellings, to compare with GOCDB and to tell the operators
        assert world.host.subject in receipt.reason
        assert world.transport.signer.subject_authn() in receipt.reason
    assert world.waits == []
    assert world.requests() == 0


def test_authn_refuses_the_certificate_in_tls(world: AmsWorld, pki: PKI) -> None:
    stranger = pki.other_ca_host()
    transport = world.make(stranger)
    receipt = transport.deliver(world.message(1), NOW)
    transport.close()
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.STOP_TARGET, 77, 1)
    for words in (str(stranger.certificate), stranger.subject, "Other Test CA", "valid until"):
        assert words in receipt.reason


def test_a_revoked_certificate(world: AmsWorld, pki: PKI, fake_ams: FakeAMS) -> None:
    revoked = pki.revoked_host()
    fake_ams.bind(revoked)
    transport = world.make(revoked)
    receipt = transport.deliver(world.message(1), NOW)
    transport.close()
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
    assert "revoked" in receipt.reason


@pytest.mark.parametrize(
    "fault",
    [
        envelope(500, "Internal Error: Could not access CRL URL"),
        Fault.status(502, HTML_502),
        Fault.status(503),
        Fault.status(504, b"\xff\xfe"),
        Fault.reset(),
        Fault.close_before_read(),
        Fault.body(200, b'{"token": "', length=100),
    ],
)
def test_passing_troubles_of_authn(fault: Fault, world: AmsWorld) -> None:
    world.fake.faults.push(fault, service="authn", route="authx509")
    receipt = world.deliver()
    assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.DELIVERED, 2, 1)
    assert len(world.received()) == 1


def test_authn_that_stays_away_is_no_doubt(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.reset(), service="authn", route="authx509")
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
    assert (receipt.attempts, receipt.bytes_sent) == (5, 0)


@pytest.mark.parametrize("body", [b"{}", b'{"token":""}', b'{"token":5}', b"<html>welcome</html>"])
def test_authn_without_a_token(body: bytes, world: AmsWorld) -> None:
    world.fake.faults.push(Fault.body(200, body), service="authn", route="authx509")
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 76)


# ---- publishing


def test_a_server_that_is_not_trusted_gets_nothing(world: AmsWorld) -> None:
    for certificate in (world.pki.expired_server(), world.pki.wrong_name_server(), world.pki.other_ca_server()):
        world.fake.use_server_certificate(certificate)
        receipt = world.deliver()
        assert (receipt.verdict, receipt.exit_status, receipt.bytes_sent) == (Verdict.STOP_TARGET, 77, 0)
        assert str(world.pki.ca_directory) in receipt.reason
    assert world.waits == []
    assert len(world.fake.requests) == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault.close_before_read(),
        Fault.close_after_bytes(200_000),
        Fault.reset(),
        Fault.store_then_close(),
        Fault.drop_without_storing(),
        Fault.body(200, b'{"messageIds":["1"', handled=True),
        Fault.body(200, b"<html>maintenance</html>"),
        Fault.body(200, b"{}"),
        Fault.body(200, b'{"messageIds":[]}'),
        Fault.body(200, b'{"messageIds":["1","2"]}'),
        Fault.body(200, b'{"messageIds":["1"]}', length=1000),
        envelope(500, "Backend Error"),
        Fault.status(504, HTML_502, handled=True),
        Fault.status(408),
        Fault.status(502, b""),
        Fault.status(502, b"[1, 2]"),
        Fault.status(500, b"x" * 10_000_000),
        Fault.raw(b"\x00\xff garbage\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.some(2)
def test_what_may_have_been_stored_is_sent_again_as_it_is(fault: Fault, times: int, world: AmsWorld) -> None:
    world.fake.faults.push(*([fault] * times))
    message = world.message(1, 300_000)
    receipt = well_formed(world.transport.deliver(message, NOW), world)
    if times == 1:
        assert receipt.verdict is Verdict.DELIVERED
        assert receipt.attempts == 2
    else:
        assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.IN_DOUBT, 75, True)
        assert receipt.attempts == 5
    assert set(world.received()) <= {message.payload}
    assert {stored.attributes["empaid"] for stored in world.fake.messages()} <= {message.id}
    assert receipt.bytes_sent >= receipt.attempts * len(message.payload)


@pytest.mark.parametrize(
    "fault", [Fault.status(429), Fault.status(503, HTML_502), envelope(400, "Invalid Request Body")]
)
def test_what_was_surely_not_stored_is_for_later(fault: Fault, world: AmsWorld) -> None:
    world.fake.faults.always(fault)
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)


def test_a_connection_that_cannot_be_made_is_no_doubt(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.reset(), route=CONNECT)
    receipt = world.deliver()
    assert (receipt.verdict, receipt.doubt, receipt.bytes_sent) == (Verdict.RETRY_LATER, False, 0)


def test_doubt_is_kept_whatever_comes_after(world: AmsWorld) -> None:
    world.fake.faults.push(
        Fault.store_then_close(), Fault.status(503), Fault.status(503), Fault.status(503), Fault.status(503)
    )
    assert world.deliver(1).verdict is Verdict.IN_DOUBT
    world.fake.faults.push(Fault.status(504), envelope(403, "Access to this resource is forbidden"))
    receipt = world.deliver(2)
    assert (receipt.verdict, receipt.doubt) == (Verdict.STOP_TARGET, True)


def test_a_kept_alive_connection_that_was_closed_costs_nothing(world: AmsWorld) -> None:
    world.fake.faults.push(Fault.close_keepalive())
    world.deliver(1)
    receipt = world.deliver(2)
    world.fake.drop_connections()
    assert world.deliver(3).verdict is receipt.verdict is Verdict.DELIVERED
    assert world.waits == []
    assert len(world.received()) == 3


def test_a_drip_ends_with_the_attempt(world: AmsWorld) -> None:
    world.fake.faults.push(*(Fault.drip(interval=0.02, seconds=FOR_EVER_S, in_body=body) for body in (False, True)))
    transport = world.make(world.host, attempt_timeout_s=120)
    delivering = BackgroundTask(lambda: transport.deliver(world.message(1), NOW))
    for drips in (1, 2):
        assert world.fake.requests.wait_for(1 + drips)  # authn's comes first
        world.skipped_s += 120
    receipt = delivering.result()
    transport.close()
    assert (receipt.verdict, receipt.attempts) == (Verdict.DELIVERED, 3)


@pytest.mark.parametrize("old", [True, False])
def test_too_large_for_the_service(old: bool, world: AmsWorld) -> None:
    world.fake.policy.profile = "old" if old else "new"
    world.fake.set_limit(700_000)
    before = world.transport.payload_limit()
    receipt = world.deliver(size=BIG)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.TOO_LARGE, 76)
    assert receipt.attempts == (1 if old else 2)
    after = world.transport.payload_limit()
    assert after < before
    assert BIG / 2 - 5000 < after <= BIG / 2
    assert world.deliver(size=after).verdict is Verdict.DELIVERED


def test_a_learnt_limit_is_never_absurd(world: AmsWorld) -> None:
    world.fake.faults.push(Fault.status(413, HTML_502))
    assert world.deliver(size=500).verdict is Verdict.TOO_LARGE
    assert world.transport.payload_limit() > SMALLEST_LIMIT * 3 // 4 - 5000


def test_a_backend_error_on_a_big_message_may_pass(world: AmsWorld) -> None:
    world.fake.faults.push(envelope(500, "Backend Error"))
    before = world.transport.payload_limit()
    assert world.deliver(size=BIG).verdict is Verdict.DELIVERED
    assert world.transport.payload_limit() == before


def delete_topic(world: AmsWorld) -> None:
    world.fake.delete_topic()


def redirect(world: AmsWorld) -> None:
    world.fake.faults.push(Fault.redirect(f"{world.fake.url}/v1/elsewhere"))


def no_such_page(world: AmsWorld) -> None:
    world.fake.faults.push(Fault.status(404, b"404 page not found\n"))


@pytest.mark.parametrize(
    ("trouble", "exit_status", "words"),
    [
        (AmsWorld.turn_away, 77, "ACL"),
        (delete_topic, 78, "`topic`"),
        (redirect, 78, "redirects are not followed"),
        (no_such_page, 78, "`url`"),
    ],
)
def test_what_stops_the_target(
    trouble: Callable[[AmsWorld], None], exit_status: int, words: str, world: AmsWorld
) -> None:
    trouble(world)
    receipt = world.deliver(size=BIG)
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.STOP_TARGET, exit_status, 1)
    assert words in receipt.reason
    assert world.requests() == 1


def test_another_project(world: AmsWorld) -> None:
    transport = world.make(world.host, project="elsewhere")
    receipt = transport.deliver(world.message(1), NOW)
    transport.close()
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 78)
    assert "`project`" in receipt.reason


def test_a_refusal_of_a_message_may_be_about_all_of_them(world: AmsWorld) -> None:
    world.refuse_message()
    receipt = world.deliver()
    assert (receipt.verdict, receipt.certain) == (Verdict.REFUSED, False)


# ---- patience


def test_waits_grow_and_are_jittered(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.status(503))
    assert world.deliver().attempts == 5
    assert len(world.waits) == 4
    for wait, ceiling in zip(world.waits, (2, 4, 8, 16), strict=True):
        assert 0 <= wait <= ceiling
    assert len(set(world.waits)) == 4


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", 7), ("9999", 300), (format_datetime(NOW.replace(microsecond=0) + timedelta(seconds=60), usegmt=True), 59)],
    ids=("seconds", "capped", "a date"),  # each worker collects for itself: names must not hold the time
)
def test_the_servers_wish_is_granted(value: str, expected: float, world: AmsWorld) -> None:
    world.fake.faults.push(Fault.status(503, headers=(("Retry-After", value),)))
    assert world.deliver().verdict is Verdict.DELIVERED
    (wait,) = world.waits
    assert expected <= wait <= expected + 1


def test_the_budget_of_a_run_is_spent_once(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.status(503, headers=(("Retry-After", "100"),)))
    transport = world.make(world.host, retry_budget_s=250)
    assert [transport.deliver(world.message(n), NOW).attempts for n in range(3)] == [3, 1, 1]
    transport.close()
    assert world.waits == [100, 100]


# ---- who we are


def test_the_profile(world: AmsWorld) -> None:
    profile = world.transport.profile()
    assert (profile.user, profile.roles, profile.topics) == ("ce", ("publisher",), ("gLite-APEL",))
    assert world.secrets[0] not in repr(profile)
    world.turn_away()
    assert world.transport.profile().topics == ()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.status(502, HTML_502), Unreachable),
        (Fault.reset(), Unreachable),
        (Fault.body(200, b"[]"), Rejected),
        (Fault.body(200, b"{}"), Rejected),
        (envelope(401, "Unauthorized"), CredentialError),
        (Fault.status(404, b"404 page not found\n"), ConfigError),
    ],
)
def test_a_profile_that_cannot_be_had(fault: Fault, error: type[Exception], world: AmsWorld) -> None:
    world.fake.faults.push(fault, route="*")
    with pytest.raises(error):
        world.transport.profile()


def test_a_profile_without_a_binding(world: AmsWorld) -> None:
    world.fake.unbind(world.host)
    with pytest.raises(CredentialError, match="GOCDB"):
        world.transport.profile()


# ---- pre-flight


def test_the_preflight_names_who_we_are_and_where_we_may_publish(world: AmsWorld) -> None:
    steps = world.transport.preflight()
    assert [(step.name, step.exit_status) for step in steps] == [("token", 0), ("right to publish", 0)]
    assert "CN=" in steps[0].answer
    assert "accounting/gLite-APEL" in steps[1].answer
    assert world.requests() == 0
    assert world.fake.messages() == []


def no_binding(world: AmsWorld) -> None:
    world.fake.unbind(world.host)


def not_this_topic(world: AmsWorld) -> None:
    world.fake.remove_acl("ce")


def odd_profile(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.body(200, b"[]"), route="profile")


def no_token_service(world: AmsWorld) -> None:
    world.fake.faults.always(Fault.status(502, HTML_502), service="authn", route="authx509")


@pytest.mark.parametrize(
    ("trouble", "step", "exit_status", "words"),
    [
        (no_binding, "token", 77, "GOCDB"),
        (no_token_service, "token", 75, "502"),
        (odd_profile, "right to publish", 76, "user profile"),
        (not_this_topic, "right to publish", 77, "accounting/gLite-APEL, only to: none"),
    ],
)
def test_the_preflight_names_the_first_trouble(
    trouble: Callable[[AmsWorld], None], step: str, exit_status: int, words: str, world: AmsWorld
) -> None:
    trouble(world)
    last = well_formed_steps(world.transport.preflight(), world)[-1]
    assert (last.name, last.exit_status) == (step, exit_status)
    assert words in last.answer


def test_the_preflight_knows_a_user_of_another_project(world: AmsWorld) -> None:
    transport = world.make(world.host, project="elsewhere")
    last = well_formed_steps(transport.preflight(), world)[-1]
    transport.close()
    assert (last.name, last.exit_status) == ("right to publish", 77)
    assert "no role in the project elsewhere" in last.answer


def test_the_preflight_asks_for_the_token_anew(world: AmsWorld) -> None:
    assert world.deliver().verdict is Verdict.DELIVERED
    world.fake.unbind(world.host)
    assert [step.name for step in world.transport.preflight()] == ["token"]


# ---- options, credentials, registry


def refuse_options(world: AmsWorld, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        world.make(world.host, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"url": "http://msg.example.org"}, "`url`"),
        ({"auth_url": "https://msg.example.org/v1"}, "`auth_url`"),
        ({"project": "a.b"}, "`project`"),
        ({"topic": ""}, "`topic`"),
        ({"service_host": "msg.example.org:8443"}, "`service_host`"),
        ({"batch_bytes": 100}, "`batch_bytes`"),
        ({"batch_bytes": 2_000_000}, "`batch_bytes`"),
        ({"attempts": 0}, "`attempts`"),
        ({"read_timeout_s": 0}, "`read_timeout_s`"),
        ({"retry_budget_s": -1}, "`retry_budget_s`"),
        ({"proxy": "socks5://proxy"}, "`proxy`"),
    ],
)
def test_options_that_cannot_work(options: Mapping[str, Any], key: str, world: AmsWorld) -> None:
    assert key in refuse_options(world, **options)


def test_all_problems_are_listed(world: AmsWorld) -> None:
    assert len(refuse_options(world, project="a.b", topic="c d", attempts=0).splitlines()) == 3


def test_every_option_has_one_line_of_help() -> None:
    for option in fields(ams.Options):
        assert option.metadata["help"]
        assert "\n" not in option.metadata["help"]


def test_options_of_another_transport_are_a_bug(world: AmsWorld) -> None:
    credentials = Credentials(certificate=world.host.certificate, key=world.host.key, ca=None)
    circumstances = Environment(
        environment={},
        now=lambda: NOW,
        clock=time.monotonic,
        chance=random.random,
        wait=lambda _: False,
        signed=lambda _: True,
    )
    with pytest.raises(TypeError):
        create(object(), credentials, circumstances)


def test_the_host_of_url_is_the_host_of_everything(pki: PKI, host: Credential) -> None:
    with FakeAMS(pki) as fake:
        world = AmsWorld(fake, pki, host, service_host="")
        world.deliver()
        (request,) = fake.requests.on("authx509", "authn")
        assert request.path == "/v1/service-types/ams/hosts/localhost:authx509"
        world.transport.close()


def test_an_open_key_needs_permission(world: AmsWorld, pki: PKI, tmp_path: Path) -> None:
    host = pki.host()
    host.key.chmod(0o640)
    with pytest.raises(CredentialError, match="allow_open_key"):
        world.make(host)
    world.make(host, allow_open_key=True).close()
    # As systemd hands it over: the mode shows the mask of an ACL, and the directory is closed.
    handed = tmp_path / "hostkey.pem"
    shutil.copy(host.key, handed)
    world.environment["CREDENTIALS_DIRECTORY"] = str(tmp_path)
    world.make(replace(host, key=handed)).close()
    with pytest.raises(CredentialError, match="allow_open_key"):
        world.make(host)


def test_a_proxy_from_the_environment_is_used(world: AmsWorld) -> None:
    world.environment["HTTPS_PROXY"] = "http://127.0.0.1:9"
    transport = world.make(world.host)
    receipt = transport.deliver(world.message(1), NOW)
    assert receipt.verdict is Verdict.RETRY_LATER
    assert "http://127.0.0.1:9" in receipt.reason
    world.environment["NO_PROXY"] = "localhost"
    transport = world.make(world.host)
    assert transport.deliver(world.message(1), NOW).verdict is Verdict.DELIVERED
    transport.close()


def test_the_plug_in_loads_without_the_libraries_of_the_wire() -> None:
    code = (
        "import sys; from publisher.transports import transport_plugin; "
        "transport_plugin('ams').Options(url='https://x'); "
        "print([name for name in ('requests', 'urllib3', 'http.client', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "[]"
    assert transport_plugin("ams").Options is ams.Options
