"""Delivery to AUDITOR, against the stand-in over mutual TLS and plain HTTP: every answer, and lists that are partly there."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from publisher.model.errors import ConfigError, CredentialError
from publisher.model.message import Message, message_of
from publisher.transports import auditor
from publisher.transports.auditor.responses import Handling, interpret
from publisher.transports.auditor.transport import AuditorTransport, create
from publisher.transports.base import BackgroundTask, Credentials, Receipt, Verdict
from publisher.transports.http.exchange import Answer, Failure, RequestFailure
from publisher.transports.http.reachability import reach
from tests.fake_auditor import EXISTS, UNEXPECTED, FakeAuditor, Fault
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential
from tests.support.ports import reserved_port
from tests.transports.contract import PreflightContract, TransportContract, TransportWorld, well_formed

pytestmark = pytest.mark.some(2, of="world")

NOW = datetime.now(UTC)
LOST = Fault(stored=True)
BUSY = Fault(status=503, body=b"busy")
Record = dict[str, Any]


def record(number: int, **meta: Any) -> Record:
    return {
        "record_id": f"ur-ce.example.org-{number}",
        "meta": {"site_id": ["EXAMPLE-SITE"], "voms": ["/atlas/Role=pilot"], **meta},
        "components": [{"name": "Cores", "amount": 8, "scores": [{"name": "hepscore23", "value": 11.5}]}],
        "start_time": "2026-11-20T10:00:00Z",
        "stop_time": "2026-11-20T11:00:00Z",
    }


def records(*numbers: int) -> bytes:
    return ("[\n" + ",\n".join(json.dumps(record(number)) for number in numbers) + "\n]\n").encode()


class AuditorWorld(TransportWorld):
    """The stand-in, a host with a certificate, and a transport whose waits take no time."""

    def __init__(self, fake: FakeAuditor, pki: PKI, host: Credential, **options: Any) -> None:
        super().__init__(NOW)
        self.fake, self.pki, self.host = fake, pki, host
        self._options: dict[str, Any] = {"url": fake.url, **options}
        self.transport: AuditorTransport = self.make(host)

    def make(self, host: Credential, **options: Any) -> AuditorTransport:
        return create(
            auditor.Options(**{**self._options, **options}),
            Credentials(certificate=host.certificate, key=host.key, ca=self.pki.ca_directory),
            self.surroundings(signed=False),
        )

    def message(self, number: int, size: int = 1000) -> Message:
        """Two small records, blanks behind them up to the size."""
        return made(records(2 * number, 2 * number + 1).ljust(size))

    def received(self) -> list[bytes]:
        taken = [one for one in self.fake.requests if one.path == "/records" and one.status in (0, 200, 500)]
        return [one.body for one in taken if one.status != 500 or one.answer == EXISTS]

    def requests(self) -> int:
        return len(self.fake.requests)

    def lose_answer(self) -> None:
        self.fake.faults.append(LOST)

    def lose_answers(self) -> None:
        self.fake.always = LOST

    def turn_away(self) -> None:
        self.fake.writers = set()

    def refuse_message(self) -> None:
        self.fake.faults.append(Fault(status=400, body=b"Json deserialize error: Parsing ' ' failed"))

    def be_busy(self) -> None:
        self.fake.faults.append(BUSY)

    def vanish(self) -> None:
        self.fake.__exit__(None, None, None)

    def send(self, *numbers: int) -> Receipt:
        return well_formed(self.transport.deliver(made(records(*numbers)), NOW), self)

    def ids(self) -> set[int]:
        return {int(each.rpartition("-")[2]) for each in self.fake.records}


def made(payload: bytes) -> Message:
    return message_of(payload, "auditor", "auditor-record", 1, NOW)


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


@pytest.fixture(params=["https", "http"])
def world(request: pytest.FixtureRequest, pki: PKI, host: Credential) -> Iterator[AuditorWorld]:
    with reserved_port() as port, FakeAuditor(pki if request.param == "https" else None, port=port) as fake:
        alive = AuditorWorld(fake, pki, host)
        yield alive
        alive.transport.close()


@pytest.fixture
def secure(pki: PKI, host: Credential) -> Iterator[AuditorWorld]:
    with FakeAuditor(pki) as fake:
        alive = AuditorWorld(fake, pki, host)
        yield alive
        alive.transport.close()


class TestContract(TransportContract):
    """AUDITOR keeps what every transport must keep."""

    def test_an_ended_certificate_sends_nothing(self, world: TransportWorld) -> None:
        assert isinstance(world, AuditorWorld)
        if world.fake.url.startswith("http://"):
            pytest.skip("no certificate is shown over plain HTTP")
        super().test_an_ended_certificate_sends_nothing(world)


class TestPreflight(PreflightContract):
    """AUDITOR tells of trouble before a message is sent."""

    def test_a_database_that_is_away_is_told(self, world: AuditorWorld) -> None:
        world.fake.healthy = False
        (step,) = world.transport.preflight()
        assert (step.name, step.exit_status) == ("service", 75)

    def test_another_service_is_told(self, world: AuditorWorld) -> None:
        world.fake.faults.append(Fault(status=404, body=b"<h1>nothing here</h1>"))
        assert world.transport.preflight()[-1].exit_status == 78

    @pytest.mark.parametrize("body", [b"<h1>Welcome</h1>", b'{"status":"ok"}'])
    def test_a_page_in_place_of_its_health_is_told(self, world: AuditorWorld, body: bytes) -> None:
        world.fake.health = body
        (step,) = world.transport.preflight()
        assert (step.name, step.exit_status) == ("service", 75)
        assert "which AUDITOR does not say" in step.answer


# What goes over the wire


def test_a_list_goes_as_it_is_and_a_single_record_by_itself(world: AuditorWorld) -> None:
    assert world.send(1, 2).verdict is Verdict.DELIVERED
    assert world.send(3).verdict is Verdict.DELIVERED
    many, one = world.fake.requests
    assert (many.path, many.body, many.content_type) == ("/records", records(1, 2), "application/json")
    assert (one.path, json.loads(one.body)) == ("/record", record(3))
    assert world.ids() == {1, 2, 3}


def test_a_connection_is_kept(world: AuditorWorld) -> None:
    for number in range(5):
        world.send(number, number + 100)
    world.fake.drop_connections()
    assert world.send(7).verdict is Verdict.DELIVERED
    assert world.waits == []


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize(
    ("there", "sent"),
    [((1,), (1,)), ((2,), (1, 2, 3)), ((1, 2, 3, 4), (1, 2, 3, 4)), ((7,), tuple(range(40))), ((), (1, 2))],
)
def test_what_is_there_already_counts_as_delivered_and_all_the_rest_arrives(
    world: AuditorWorld, there: tuple[int, ...], sent: tuple[int, ...], ignores: bool
) -> None:
    """An AUDITOR that ignores existing records answers 200, and has stored nothing of the list."""
    world.fake.ignores_existing = ignores
    for number in there:
        world.send(number)
    receipt = world.send(*sent)
    assert (receipt.verdict, receipt.attempts, world.waits) == (Verdict.DELIVERED, 1, [])
    assert world.ids() == {*there, *sent}
    # One record that is there costs two more requests for each time the list is halved.
    assert len(world.fake.requests) <= len(there) + max(2 * len(sent), 1)
    if len(there) == 1:
        assert len(world.fake.requests) <= 14


def test_the_first_record_stays(world: AuditorWorld) -> None:
    world.send(1)
    changed = made(json.dumps([record(1) | {"stop_time": "2026-11-20T12:00:00Z"}]).encode())
    assert world.transport.deliver(changed, NOW).verdict is Verdict.DELIVERED
    assert next(iter(world.fake.records.values()))["stop_time"] == "2026-11-20T11:00:00Z"


@pytest.mark.parametrize("step", range(8))
def test_an_answer_that_is_lost_anywhere_leaves_every_record_once(world: AuditorWorld, step: int) -> None:
    world.send(3)
    world.fake.faults.extend([*([None] * step), LOST])
    assert world.send(*range(8)).verdict is Verdict.DELIVERED
    assert world.ids() == set(range(8))


def test_what_was_stored_in_part_is_in_doubt_until_all_of_it_is(world: AuditorWorld) -> None:
    world.send(3)
    world.fake.faults.extend([None, None])  # the list, and its first half
    world.fake.always = BUSY
    receipt = world.send(0, 1, 2, 3)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.IN_DOUBT, 75, True)
    world.fake.always = None
    assert world.send(0, 1, 2, 3).verdict is Verdict.DELIVERED
    assert world.ids() == {0, 1, 2, 3}


def test_names_are_called_and_encoded_as_configured(pki: PKI, host: Credential) -> None:
    with FakeAuditor(pki, before_0_7=True) as fake:
        world = AuditorWorld(fake, pki, host)
        assert world.send(1, 2).verdict is Verdict.REFUSED  # a slash
        world.transport.close()
        world.transport = world.make(host, encode_names=True, meta_site="site", meta_fqan="fqan", meta_queue="")
        payload = json.dumps([record(number, queue=["long"], subject=["/DC=org/CN=é (x)"]) for number in (1, 2)])
        assert world.transport.deliver(made(payload.encode()), NOW).verdict is Verdict.DELIVERED
        world.transport.close()
        found = fake.records["ur-ce.example.org-1"]
        assert found["meta"] == {
            "site": ["EXAMPLE-SITE"],
            "fqan": ["%2Fatlas%2FRole%3Dpilot"],
            "subject": ["%2FDC%3Dorg%2FCN%3D%C3%A9%20%28x%29"],
        }
        assert world.transport.payload_limit() == 2_000_000 // 3


# What goes wrong


def test_a_record_that_postgresql_does_not_take_is_to_blame_when_all_else_is_well(world: AuditorWorld) -> None:
    bad = made(json.dumps([record(1, queue=["a\0b"]), record(2)]).encode())
    receipt = well_formed(world.transport.deliver(bad, NOW), world)
    assert (receipt.verdict, receipt.exit_status, receipt.certain) == (Verdict.REFUSED, 76, False)
    assert (len(world.waits), "UNEXPECTED_ERROR" in receipt.reason) == (1, True)
    assert world.ids() == set()


def test_a_database_that_is_away_is_for_later(world: AuditorWorld) -> None:
    world.fake.healthy = False
    receipt = world.send(1, 2)
    assert (receipt.verdict, receipt.exit_status, len(world.waits)) == (Verdict.IN_DOUBT, 75, 4)
    world.fake.healthy = True
    assert world.send(1, 2).verdict is Verdict.DELIVERED


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, body=UNEXPECTED),
        Fault(status=500, body=b""),
        Fault(status=502, body=b"<h1>Bad Gateway</h1>"),
        Fault(status=503, headers=(("Retry-After", "7"),)),
        Fault(status=504, stored=True),
        Fault(status=408),
        Fault(status=429),
        Fault(status=200, body=b"<h1>Welcome</h1>"),
        Fault(status=200, body=b"[]"),
        Fault(status=200, body=b"{}"),
        Fault(status=200, body=b"\n"),
        Fault(status=200, body=b"null"),
        Fault(status=200, body=b'{"status":"ok"}'),
        Fault(status=200, body=b'{"error":"maintenance"}', stored=True),
        Fault(status=200, headers=(("Content-Type", "text/html"),)),
        Fault(status=200, body=b'{"warning": "cut', cut=3),
        Fault(),
        LOST,
    ],
    ids=str,
)
def test_a_passing_fault_leaves_every_record_once(world: AuditorWorld, fault: Fault) -> None:
    world.fake.faults.append(fault)
    receipt = world.send(1, 2, 3)
    assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.DELIVERED, 2, 1)
    assert world.ids() == {1, 2, 3}
    if fault.status == 503:
        assert world.waits[0] >= 7


@pytest.mark.parametrize(
    ("fault", "verdict", "status"),
    [
        (Fault(status=400, body=b"Json deserialize error"), Verdict.REFUSED, 76),
        (Fault(status=413, body=b"too large"), Verdict.TOO_LARGE, 76),
        (Fault(status=401), Verdict.STOP_TARGET, 77),
        (Fault(status=403, body=b"Insufficient permissions"), Verdict.STOP_TARGET, 77),
        (Fault(status=404, body=b"not found"), Verdict.STOP_TARGET, 78),
        (Fault(status=301, headers=(("Location", "https://localhost:1/"),)), Verdict.STOP_TARGET, 78),
        (Fault(status=405), Verdict.STOP_TARGET, 78),
        (Fault(status=204), Verdict.STOP_TARGET, 78),
    ],
    ids=str,
)
def test_a_final_answer_is_not_asked_for_again(
    world: AuditorWorld, fault: Fault, verdict: Verdict, status: int
) -> None:
    world.fake.faults.append(fault)
    receipt = world.send(1, 2)
    assert (receipt.verdict, receipt.exit_status, world.waits) == (verdict, status, [])
    assert world.ids() == set()


@pytest.mark.parametrize(
    "body", [b'{"warning": "maintenance"}', b'{"warning": ""}', b'{"warning": "already exists", "code": 1}']
)
def test_a_warning_about_something_else_stores_nothing(world: AuditorWorld, body: bytes) -> None:
    """Of a gateway, to a single record: the warning that AUDITOR gives would mean that it is there."""
    world.fake.always = Fault(status=200, body=body)
    receipt = world.send(1)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.IN_DOUBT, 75, True)
    assert body.decode().replace('"', "'") in receipt.reason
    world.fake.always = None
    assert world.send(1).verdict is Verdict.DELIVERED
    assert world.ids() == {1}


def test_a_page_in_place_of_its_health_blames_no_record(world: AuditorWorld) -> None:
    world.fake.always = Fault(status=500, body=b"<h1>Maintenance</h1>")
    world.fake.health = b"<h1>Maintenance</h1>"
    assert world.send(1).verdict is Verdict.IN_DOUBT


def test_a_limit_is_learnt(world: AuditorWorld) -> None:
    large = made(json.dumps([record(number) for number in range(1_000)]).encode())
    world.fake.faults.append(Fault(status=413))
    assert world.transport.deliver(large, NOW).verdict is Verdict.TOO_LARGE
    assert world.transport.payload_limit() == len(large.payload) // 2
    own = world.make(world.host, batch_bytes=16_384).deliver(large, NOW)
    assert (own.verdict, own.attempts) == (Verdict.TOO_LARGE, 0)


def test_a_certificate_of_another_ca_is_refused(secure: AuditorWorld) -> None:
    secure.transport = secure.make(secure.pki.other_ca_host())
    receipt = secure.send(1)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
    assert "refused our certificate" in receipt.reason


@pytest.mark.parametrize("which", ["other_ca_server", "wrong_name_server", "expired_server"])
def test_a_server_that_is_not_trusted_gets_nothing(pki: PKI, host: Credential, which: str) -> None:
    with FakeAuditor(pki, server=getattr(pki, which)()) as fake:
        world = AuditorWorld(fake, pki, host)
        receipt = world.send(1)
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
        assert world.requests() == 0


def test_only_writers_may_write(secure: AuditorWorld) -> None:
    secure.fake.writers = {"ce.example.org"}
    assert secure.send(1).verdict is Verdict.DELIVERED
    secure.fake.writers = {"apel.plugin"}
    receipt = secure.send(2)
    assert "write_access_cn" in receipt.reason
    assert secure.transport.preflight()[-1].exit_status == 77


def test_a_drip_over_plain_http_ends_with_the_attempt(pki: PKI, host: Credential) -> None:
    """A server that sends a byte now and then is given up when the time for one request is over."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked, stop = threading.Event(), threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                asked.set()
                while not stop.wait(0.05):
                    try:
                        connection.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with FakeAuditor() as unused:
            world = AuditorWorld(unused, pki, host, attempt_timeout_s=120, attempts=1)
            world.transport = world.make(host, url=f"http://localhost:{listener.getsockname()[1]}")
            delivering = BackgroundTask(lambda: world.send(1))
            assert asked.wait(PATIENCE_S)
            world.skipped_s += 120
            receipt = delivering.result(PATIENCE_S)
        stop.set()
        thread.join()
    assert (receipt.verdict, receipt.doubt) == (Verdict.IN_DOUBT, True)


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "ftp://localhost"}, "or http://HOST or http://HOST:PORT"),
        ({"url": "http://localhost/records"}, "no path"),
        ({"url": "http://localhost:8000", "proxy": "http://proxy:3128"}, "`proxy`: is for https:// only"),
        ({"batch_bytes": 1}, "`batch_bytes`: 1 is not between"),
        ({"attempts": 0}, "`attempts` must be more than 0"),
        ({"meta_vo": "voms"}, "`meta_[*]`: voms is the name of more than one"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], words: str, pki: PKI, host: Credential) -> None:
    with FakeAuditor() as fake, pytest.raises(ConfigError, match=words.replace("(", "\\(")):
        AuditorWorld(fake, pki, host, **options)


def test_plain_http_needs_no_certificate_and_is_said_to_be_open(pki: PKI, host: Credential) -> None:
    with FakeAuditor() as fake:
        host.certificate.rename(host.certificate.with_suffix(".gone"))
        try:
            world = AuditorWorld(fake, pki, host)
            assert world.send(1).verdict is Verdict.DELIVERED
            assert world.transport.warnings(NOW) == []
            world.transport.close()
            with pytest.raises(CredentialError):
                world.make(host, url="https://localhost:1")
        finally:
            host.certificate.with_suffix(".gone").rename(host.certificate)
    (doubt,) = auditor.Options(url="http://localhost:8000").doubts()
    assert "unencrypted" in doubt[0]
    assert auditor.Options(url="https://localhost:8443").doubts() == ()


def test_the_way_over_plain_http_is_looked_at_without_tls(pki: PKI, host: Credential) -> None:
    credentials = Credentials(certificate=host.certificate, key=host.key, ca=pki.ca_directory)
    with FakeAuditor() as fake:
        (service,) = auditor.Options(url=fake.url).endpoints({"HTTPS_PROXY": "http://proxy.example.org"})
        steps = reach(service, credentials, lambda: datetime.now(UTC), time.monotonic)
    assert [(step.name, step.exit_status) for step in steps] == [("name", 0), ("connection", 0), ("clock", 0)]
    (usual,) = auditor.Options(url="http://auditor.example.org:80/").endpoints({})
    assert usual.url == "http://auditor.example.org"


# Answers, one by one


def test_every_status_and_silence_has_a_meaning() -> None:
    for status in range(100, 600):
        for body in (b"", EXISTS, UNEXPECTED, b"x" * 5_000):
            decision = interpret(Answer(status=status, body=body), 3)
            assert (decision.action is Handling.STORED) == (status == 200 and not body)
            assert decision.reason or decision.action is Handling.STORED
            assert (decision.exit_status == 0) == (decision.action is Handling.STORED)
    for failure in Failure:
        decision = interpret(RequestFailure(failure=failure, reason="gone"), 1)
        assert decision.action in (Handling.RETRY, Handling.STOP)
        assert decision.doubt is (failure is Failure.MAYBE_SENT)
