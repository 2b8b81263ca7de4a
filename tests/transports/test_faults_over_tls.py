"""Faults that the tables of the services' answers name, each over real TLS: what the other tests leave out."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from publisher.transports.ams.responses import publish_verdict
from publisher.transports.base import Verdict
from publisher.transports.http.exchange import REASON_LENGTH
from publisher.transports.http.failures import no_answer
from tests.arex_databases import SampleJob, generate
from tests.fake_ams import HTML_502, FakeAMS, Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_sgas import FakeSGAS
from tests.fake_sgas.documents import numbered
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI, Credential
from tests.support.sites import SiteUnderTest, told, truth
from tests.transports.contract import well_formed
from tests.transports.test_ams import NOW, AmsWorld, envelope
from tests.transports.test_https import ALL, WHERE, made
from tests.transports.test_sgas import SgasWorld
from tests.transports.test_sgas_verdicts import CASES

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


@pytest.fixture
def world(fake_ams: FakeAMS, pki: PKI, host: Credential) -> Iterator[AmsWorld]:
    made = AmsWorld(fake_ams, pki, host)
    yield made
    made.transport.close()


# The token: every refusal of authn, in its own words: status, message, exit status, a word of advice

REFUSALS = [
    (400, "No certificate provided", 77, "did not arrive"),
    (400, "lookup 10.1.2.3: no such host", 77, "reverse DNS"),
    (403, "x509: certificate is valid for a.example.org, not b.example.org", 77, "reverse DNS"),
    (403, "x509: certificate relies on legacy Common Name field, use SANs instead", 77, "SAN"),
    (403, "Your certificate has expired", 77, "renew"),
    (403, "Your certificate is not active yet", 77, "clock"),
    (403, "Your certificate is invalid. No CRLDistributionPoints found on the certificate", 77, "CRL"),
    (403, "Your certificate has been revoked", 77, "new certificate"),
    (404, "Service-type was not found", 78, "auth_url"),
    (422, "Auth type: x509 is not yet supported.Supported:[oidc]", 78, "auth_url"),
    (404, "Host was not found", 78, "service_host"),
    (404, "Auth method was not found", 78, "operators"),
    (404, "Binding was not found", 77, "GOCDB"),
]
OWN_TROUBLES = [
    "Internal Error: Could not access CRL URL",
    "Internal Error: Unable to parse CRL Data",
    'Internal Error: {"error": {"message": "User doesn\'t exist"}}',
    "Database Error: More than 1 bindings found under the service type",
]


@pytest.mark.parametrize(("status", "message", "exit_status", "advice"), REFUSALS)
def test_a_refusal_of_authn_stops_the_target(
    status: int, message: str, exit_status: int, advice: str, world: AmsWorld
) -> None:
    world.fake.faults.push(envelope(status, message), service="authn", route="authx509")
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.STOP_TARGET, exit_status, 1)
    assert str(status) in receipt.reason
    assert advice in receipt.reason
    if exit_status == 77:
        assert world.host.subject in receipt.reason
        assert world.transport.signer.subject_authn() in receipt.reason
    assert world.waits == []
    assert world.requests() == 0
    assert world.deliver().verdict is Verdict.DELIVERED, "nothing is remembered of it"


@pytest.mark.parametrize("message", OWN_TROUBLES)
def test_a_trouble_of_authns_own_passes(message: str, world: AmsWorld) -> None:
    world.fake.faults.push(envelope(500, message), service="authn", route="authx509")
    receipt = world.deliver()
    assert (receipt.verdict, receipt.attempts) == (Verdict.DELIVERED, 2)


@pytest.mark.slow
def test_authn_that_does_not_answer_in_time(world: AmsWorld) -> None:
    world.fake.faults.push(Fault.delay(FOR_EVER_S), service="authn", route="authx509")
    transport = world.make(world.host, read_timeout_s=4, attempts=20)
    receipt = transport.deliver(world.message(1), NOW)
    transport.close()
    assert receipt.verdict is Verdict.DELIVERED
    assert receipt.attempts >= 2, "more where the machine is busy for longer than that"


@contextmanager
def garbled(pki: PKI, times: int) -> Iterator[tuple[str, list[int]]]:
    """A server that ends a good handshake, reads the request, and goes on with bytes that are no TLS record."""
    server = pki.server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(times):
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                with context.wrap_socket(raw, server_side=True) as peer:
                    asked.append(len(peer.recv(65536)))
                    os.write(peer.fileno(), b"\x17\x03\x03\x00\x20" + b"\xa5" * 32)  # a record whose MAC is wrong
                    time.sleep(0.05)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


def test_a_broken_tls_record_instead_of_the_token_passes(world: AmsWorld) -> None:
    """A CRL that is slower than authn's write timeout ends so (measured): nothing is wrong with the certificate."""
    with garbled(world.pki, 5) as (url, asked):
        transport = world.make(world.host, auth_url=url)
        receipt = well_formed(transport.deliver(world.message(1), NOW), world)
        transport.close()
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
    assert receipt.attempts == len(asked) == 5
    assert world.requests() == 0


def test_a_broken_tls_record_instead_of_a_receipt_is_a_doubt(world: AmsWorld) -> None:
    with garbled(world.pki, 5) as (url, asked):
        transport = world.make(world.host, url=url)
        receipt = well_formed(transport.deliver(world.message(1), NOW), world)
        transport.close()
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.IN_DOUBT, 75, True)
    assert receipt.attempts == len(asked) == 5


# Whatever the libraries below raise


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
@pytest.mark.some(2)
def test_every_exception_of_http_and_tls_has_its_verdict(
    kind: type[Exception], world: AmsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised where the libraries are called, before anything was sent: of AMS, of authn, of SGAS. Nothing else comes out."""
    message = world.message(1)
    with FakeSGAS(world.pki) as fake:
        other = SgasWorld(fake, world.pki, world.host)

        def broken(*_: object, **__: object) -> Any:
            raise made(kind)

        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", broken)
        receipts = [transport.deliver(message, NOW) for transport in (world.transport, other.transport)]
        other.transport.close()
    trust = issubclass(kind, ssl.SSLCertVerificationError)
    impossible = issubclass(kind, ValueError) and not trust
    expected = (Verdict.STOP_TARGET, 77 if trust else 78) if trust or impossible else (Verdict.RETRY_LATER, 75)
    for receipt in receipts:
        assert (receipt.verdict, receipt.exit_status, receipt.doubt, receipt.bytes_sent) == (*expected, False, 0)
        assert 0 < len(receipt.reason) <= REASON_LENGTH
    assert publish_verdict(1000, no_answer(made(kind), WHERE, sending=True)).doubt is not trust


# The way there


def test_a_name_that_cannot_be_resolved(world: AmsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    receipt = well_formed(world.transport.deliver(world.message(1), NOW), world)
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
    assert (receipt.attempts, receipt.bytes_sent) == (5, 0)
    assert "name resolution" in receipt.reason


@pytest.mark.slow
def test_a_host_that_takes_no_connections(world: AmsWorld) -> None:
    """The queue of the listening socket is full: the kernel drops what asks for a place, as a firewall would."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as more:
        address = full.getsockname()
        first.connect(address)
        more.setblocking(False)
        assert more.connect_ex(address) in (0, errno.EINPROGRESS)
        transport = world.make(
            world.host,
            url=f"https://localhost:{address[1]}",
            connect_timeout_s=2,
            attempts=2,
            read_timeout_s=FOR_EVER_S,
        )
        receipt = well_formed(transport.deliver(world.message(1), NOW), world)
        transport.close()
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
    assert (receipt.attempts, receipt.bytes_sent) == (2, 0)


# What AMS or its balancer says to a message


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
@pytest.mark.parametrize(
    "body",
    [b"", HTML_502, b'{"message": "no envelope"}', b"[1, 2]", b"\xff\xfe\x00", b"<p>" * 3_500_000],
    ids=["empty", "HTML", "no envelope", "a list", "no UTF-8", "10 MB"],
)
@pytest.mark.some(2)
def test_the_balancers_troubles_pass_whatever_their_pages_look_like(status: int, body: bytes, world: AmsWorld) -> None:
    world.fake.faults.push(Fault.status(status, body))
    receipt = world.deliver()
    assert (receipt.verdict, receipt.attempts) == (Verdict.DELIVERED, 2)
    world.fake.faults.push(*[Fault.status(status, body)] * 5)
    receipt = world.deliver(2)
    assert receipt.exit_status == 75
    assert receipt.verdict is (Verdict.RETRY_LATER if status in (429, 503) else Verdict.IN_DOUBT)
    assert len(receipt.reason) <= REASON_LENGTH
    assert str(status) in receipt.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int, world: AmsWorld) -> None:
    world.fake.faults.push(Fault.redirect(f"{world.fake.url}/v1/elsewhere", status))
    receipt = world.deliver()
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 78)
    assert (
        len(world.fake.requests.on("publish")) == len([one for one in world.fake.requests if one.service == "ams"]) == 1
    )


def test_the_longest_silence_that_is_borne_is_the_brokers() -> None:
    """Kafka may take 30 s and more, so 10 s, as SSM has, gives up on messages that are stored all the same."""
    from publisher.transports import ams, sgas

    assert ams.Options(url="").read_timeout_s >= 60
    assert sgas.Options(url="").read_timeout_s > 60, "nginx answers for SGAS after 60 s"


# What SGAS, or nginx before it, says: every case of the table, over the wire


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_of_sgas_over_tls(case: Any, pki: PKI, host: Credential) -> None:
    with FakeSGAS(pki) as fake:
        world = SgasWorld(fake, pki, host)
        fake.faults.always(Fault.status(case.status, case.body))
        receipt = world.send(numbered([1, 2]))
        world.transport.close()
        assert (receipt.verdict, receipt.exit_status, receipt.certain) == (case.verdict, case.exit_status, case.certain)
        passing = case.exit_status == 75
        assert (receipt.attempts, len(world.waits)) == ((5, 4) if passing else (1, 0))
        assert fake.rows == {}


# A whole round


def fill(site: SiteUnderTest, count: int) -> list[SampleJob]:
    jobs = list(generate(1, count, START, END))
    site.fill(*jobs)
    return jobs


@pytest.mark.parametrize(
    "page",
    [HTML_502, json.dumps({"error": {"code": 413, "message": "Message size is too large"}}).encode()],
    ids=["balancer", "AMS"],
)
def test_records_too_large_by_themselves_are_set_aside_and_the_rest_goes_out(site: SiteUnderTest, page: bytes) -> None:
    """Whoever says 413, and however small the message: cut down to single records, each of which is set aside."""
    jobs = fill(site, 12)
    site.fake.faults.push(*[Fault.status(413, page)] * 5)  # the whole, its half, quarter, eighth and that one's first
    run = site.publish()
    assert run.status == 65
    told_of = run.json["targets"]["egi"]
    assert (told_of["quarantined"], told_of["records"]) == (1, 11)
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert held["rule"] == "too-large"
    assert site.run("quarantine", "release", str(held["number"])).status == 0
    assert site.publish().status == 0
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in jobs}
    assert len(site.fake.messages(PROJECT, TOPIC)) > 2


def test_deferred_is_75_and_the_next_round_goes_on(site: SiteUnderTest) -> None:
    """The budget of a run ends; what waits has its place in the ledger."""
    jobs = fill(site, 30)
    site.config["targets"]["egi"] |= {"batch_records": 10, "attempts": 2, "retry_budget_s": 0}
    site.fake.faults.push(Fault.none(), Fault.status(503, HTML_502, (("Retry-After", "3600"),)))
    run = site.publish()  # an hour is asked for, and nobody waits for it
    assert (run.status, run.json["targets"]["egi"]["outcome"]) == (75, "deferred")
    assert run.json["targets"]["egi"]["records"] == 10
    assert site.publish().status == 0
    assert sorted(told(row) for row in site.received(with_openssl=False)) == sorted(truth(job) for job in jobs)
