"""The HTTPS room: against a real TLS server that misbehaves on purpose, and every exception of the libraries below."""

import base64
import contextlib
import gzip
import http.client
import inspect
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests
import urllib3

from publisher.model.errors import ConfigError, CredentialError
from publisher.transports.base import Credentials, Endpoint
from publisher.transports.http.exchange import Answer, Failure, RequestFailure
from publisher.transports.http.failures import FOREIGN, Peer, explains_more, no_answer
from publisher.transports.http.options import https_url, proxy_url
from publisher.transports.http.session import ERROR_LIMIT, SUCCESS_LIMIT, Session
from publisher.transports.http.tls import client_context, trust_described
from tests.fake_ams import CONNECT, FakeAMS, Fault
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI, Credential
from tests.support.ports import closed_port

SECRET = "5ecret" * 10
PATIENT = Endpoint(name="AMS", url="", proxy="", connect_s=60, read_s=60, attempt_s=120)


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


def credentials(host: Credential, ca: Path | None) -> Credentials:
    return Credentials(certificate=host.certificate, key=host.key, ca=ca)


@contextlib.contextmanager
def session(
    url: str, host: Credential, ca: Path | None, *, limits: Endpoint = PATIENT, proxy: str = ""
) -> Iterator[Session]:
    ours = credentials(host, ca)
    endpoint = limits._replace(url=url, proxy=proxy)
    made = Session(endpoint, client_context(ours), trust=trust_described(ours), clock=time.monotonic)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def to_ams(fake_ams: FakeAMS, host: Credential, pki: PKI) -> Iterator[Session]:
    with session(fake_ams.url, host, pki.ca_directory) as made:
        yield made


STATUS = ("GET", "/v1/status")
PUBLISH = "/v1/projects/accounting/topics/gLite-APEL:publish"


def post(to: Session, size: int = 1000) -> Answer | RequestFailure:
    return to.exchange("POST", PUBLISH, b"x" * size, {"x-api-key": SECRET})


def answered(result: Answer | RequestFailure) -> Answer:
    assert isinstance(result, Answer), result
    return result


def failed(result: Answer | RequestFailure) -> tuple[Failure, str]:
    assert isinstance(result, RequestFailure), result
    assert SECRET not in result.reason
    return result.failure, result.reason


# ---- ordinary traffic


def test_an_answer(to_ams: Session) -> None:
    answer = answered(to_ams.exchange(*STATUS))
    assert answer.status == 200
    assert answer.complete
    assert b"ok" in answer.body
    assert answer.headers["content-type"].startswith("application/json")


def test_one_connection_serves_many_requests(to_ams: Session, fake_ams: FakeAMS) -> None:
    for _ in range(5):
        assert answered(to_ams.exchange(*STATUS)).tries == 1
    assert fake_ams.requests.connections("ams") == 1


def test_only_the_headers_that_are_needed_are_sent(to_ams: Session, fake_ams: FakeAMS) -> None:
    post(to_ams)
    names = {name.lower() for name, _ in fake_ams.requests[0].headers}
    assert names == {"host", "user-agent", "accept-encoding", "content-length", "x-api-key"}


@pytest.mark.parametrize("turn", range(2))
def test_each_request_is_its_own_whatever_was_asked_before(turn: int, to_ams: Session, fake_ams: FakeAMS) -> None:
    """In any order: what is kept of a request for the next is only what both share. The service reads no body of a stranger."""
    asked: list[tuple[str, str, bytes | None, dict[str, str]]] = [
        ("POST", PUBLISH, b"first", {"x-api-key": SECRET}),
        ("POST", PUBLISH, b"the second", {"x-api-key": SECRET}),
        ("POST", PUBLISH, None, {"x-api-key": SECRET}),
        ("POST", PUBLISH, b"", {"x-api-key": SECRET}),
        ("POST", PUBLISH, b"the second", {"x-api-key": "another"}),
        ("POST", PUBLISH, b"the second", {"content-type": "text/xml"}),
        ("POST", "/v1/elsewhere", b"the second", {"content-type": "text/xml"}),
        ("GET", "/v1/elsewhere", None, {"content-type": "text/xml"}),
        ("GET", "/v1/status", None, {}),
        ("GET", "/v1/status", None, {}),
    ]
    asked = asked[::-1] if turn else asked
    for method, path, body, headers in asked:
        answered(to_ams.exchange(method, path, body, headers))
    for (method, path, body, headers), request in zip(asked, fake_ams.requests, strict=True):
        assert (request.method, request.path) == (method, path)
        assert [request.header(name) for name in ("x-api-key", "content-type")] == [
            headers.get(name, "") for name in ("x-api-key", "content-type")
        ]
        length = str(len(body or b"")) if body or method == "POST" else ""
        assert request.header("content-length") == length
        assert request.header("transfer-encoding") == ""


def test_tls_is_never_older_than_1_2(host: Credential, pki: PKI) -> None:
    context = client_context(credentials(host, pki.bundle))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_redirects_are_not_followed(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.redirect(f"{fake_ams.url}/v1/status", 307))
    answer = answered(post(to_ams))
    assert answer.status == 307
    assert answer.headers["location"].endswith("/v1/status")
    assert len(fake_ams.requests) == 1


def test_the_page_of_a_redirect_is_read_in_part(to_ams: Session, fake_ams: FakeAMS) -> None:
    """`requests` would read all of it, to have the connection for the request that it does not make."""
    location = (("Location", "/v1/status"),)
    fake_ams.faults.push(Fault.status(302, b"x" * 10_000_000, location))
    answer = answered(post(to_ams))
    assert (answer.status, len(answer.body), answer.complete) == (302, ERROR_LIMIT, False)


def test_no_password_of_netrc_is_sent(
    to_ams: Session, fake_ams: FakeAMS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text(f"machine localhost login somebody password {SECRET}\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    answered(to_ams.exchange(*STATUS))
    assert fake_ams.requests[0].header("authorization") == ""


@pytest.mark.parametrize("kind", ["text/html; charset", "text/html; charset=", ";", "; ; ="])
def test_a_header_that_says_nothing_spoils_no_answer(kind: str, to_ams: Session, fake_ams: FakeAMS) -> None:
    """`requests` looks for a charset in it, and fails on one without a value."""
    fake_ams.faults.push(Fault.raw(ok(b"first", f"Content-Type: {kind}\r\n".encode())))
    assert answered(post(to_ams)).body == b"first"


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate, gzip", b"gzip, " * 10_000 + b"gzip"])
def test_what_nobody_asked_to_be_encoded_is_not_decoded(encoding: bytes, to_ams: Session, fake_ams: FakeAMS) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    fake_ams.faults.push(Fault.raw(ok(bomb, b"Content-Encoding: " + encoding + b"\r\n")))
    answer = answered(post(to_ams))
    assert (answer.body, answer.complete) == (bomb, True)


def test_cookies_are_not_kept(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.status(503, b"", (("Set-Cookie", "server=b; Path=/"),)))
    post(to_ams)
    post(to_ams)
    assert len(fake_ams.requests) == 2
    assert fake_ams.requests[1].header("cookie") == ""


# ---- whom we trust


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environment_adds_no_trust(
    variable: str, fake_ams: FakeAMS, host: Credential, pki: PKI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(pki.bundle))
    with session(fake_ams.url, host, pki.other_authority.certificate) as stranger:
        failure, reason = failed(post(stranger))
    assert failure is Failure.THEIR_CERTIFICATE
    assert str(pki.other_authority.certificate) in reason
    assert len(fake_ams.requests) == 0


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environment_takes_no_trust_away(
    variable: str, fake_ams: FakeAMS, host: Credential, pki: PKI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(pki.other_authority.certificate))
    for ca in (pki.ca_directory, pki.bundle):
        with session(fake_ams.url, host, ca) as trusting:
            assert answered(trusting.exchange(*STATUS)).status == 200


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_the_systems_store_is_not_what_the_environment_names(
    variable: str, fake_ams: FakeAMS, host: Credential, pki: PKI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own way to the system's store follows these."""
    monkeypatch.setenv(variable, str(pki.bundle if variable == "SSL_CERT_FILE" else pki.ca_directory))
    with session(fake_ams.url, host, None) as public:
        failure, reason = failed(post(public))
    assert failure is Failure.THEIR_CERTIFICATE
    assert "the system's CA store" in reason
    assert len(fake_ams.requests) == 0


@pytest.mark.parametrize("place", ["file", "directory"])
def test_the_systems_store_is_where_openssl_was_built_to_look(
    place: str, fake_ams: FakeAMS, host: Credential, pki: PKI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = ssl.get_default_verify_paths()
    monkeypatch.setenv("SSL_CERT_FILE", str(pki.other_authority.certificate))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    places = {"openssl_cafile": str(tmp_path / "none"), "openssl_capath": str(tmp_path / "none")}
    places |= {"openssl_cafile": str(pki.bundle)} if place == "file" else {"openssl_capath": str(pki.ca_directory)}
    here = built._replace(**places)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: here)
    with session(fake_ams.url, host, None) as public:
        assert answered(public.exchange(*STATUS)).status == 200


def test_no_keys_of_tls_are_written_where_the_environment_says(
    fake_ams: FakeAMS, host: Credential, pki: PKI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever has them reads the token: urllib3's own contexts write them there."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    with session(fake_ams.url, host, pki.bundle) as trusting:
        assert answered(trusting.exchange(*STATUS)).status == 200
    assert list(tmp_path.iterdir()) == []


def test_trust_is_what_the_configuration_names(fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    """`requests` would add the CAs that certifi has to it."""
    ours = credentials(host, pki.bundle)
    context = client_context(ours)
    before = context.cert_store_stats()
    endpoint = PATIENT._replace(url=fake_ams.url)
    with contextlib.closing(Session(endpoint, context, trust="", clock=time.monotonic)) as trusting:
        assert answered(trusting.exchange(*STATUS)).status == 200
    assert context.cert_store_stats() == before
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_only_the_proxy_that_is_handed_in_is_used(to_ams: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert answered(to_ams.exchange(*STATUS)).status == 200


def test_a_private_authority_is_not_in_the_systems_store(fake_ams: FakeAMS, host: Credential) -> None:
    with session(fake_ams.url, host, None) as public:
        failure, reason = failed(public.exchange(*STATUS))
    assert failure is Failure.THEIR_CERTIFICATE
    assert "the system's CA store" in reason


def test_bad_server_certificates_get_nothing(to_ams: Session, fake_ams: FakeAMS, pki: PKI) -> None:
    for certificate, word in (
        (pki.expired_server(), "expired"),
        (pki.wrong_name_server(), "localhost"),
        (pki.other_ca_server(), "local issuer"),
    ):
        fake_ams.use_server_certificate(certificate)
        failure, reason = failed(post(to_ams))
        assert failure is Failure.THEIR_CERTIFICATE
        assert word in reason
        assert str(pki.ca_directory) in reason
    assert len(fake_ams.requests) == 0


def test_trust_that_cannot_be_read_is_an_error_at_once(host: Credential, tmp_path: Path) -> None:
    for ca, words in (
        (tmp_path / "nowhere", "cannot read the trusted CAs"),
        (tmp_path, "no hashed certificates"),
        (host.key, "cannot read the trusted CAs"),
    ):
        with pytest.raises(CredentialError, match=words) as caught:
            client_context(credentials(host, ca))
        assert str(ca) in str(caught.value)


def test_a_certificate_that_tls_cannot_use_is_an_error_at_once(host: Credential, pki: PKI, tmp_path: Path) -> None:
    other = replace(host, certificate=tmp_path / "nowhere.pem")
    with pytest.raises(CredentialError, match=r"nowhere\.pem"):
        client_context(credentials(other, pki.bundle))
    with pytest.raises(CredentialError, match="a pair"):
        client_context(credentials(replace(host, key=pki.host(key="ec").key), pki.bundle))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_our_certificate_refused_in_the_handshake(version: ssl.TLSVersion, pki: PKI) -> None:
    stranger = pki.other_ca_host()
    with FakeAMS(pki, maximum_tls=version) as fake, session(fake.auth_url, stranger, pki.bundle) as refused:
        failure, reason = failed(refused.exchange("GET", "/v1/health"))
    assert failure is Failure.OUR_CERTIFICATE
    assert "ALERT" in reason


# ---- answers that come early, late, in drops, or too long


@pytest.mark.parametrize("size", [300_000, 1_000_000, 5_000_000])
@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_early_answer_to_a_large_body_is_seen(status: int, size: int, to_ams: Session, fake_ams: FakeAMS) -> None:
    for _ in range(3):
        fake_ams.faults.push(Fault.status(status, b'{"error":{"message":"No"}}', unread=True))
        assert answered(post(to_ams, size)).status == status
    assert answered(to_ams.exchange(*STATUS)).status == 200  # no rest of an upload is taken for a request


@pytest.mark.slow
def test_a_connection_with_half_an_upload_is_used_no_more(host: Credential, pki: PKI) -> None:
    """The server answers early, reads nothing more, and would take the next request for the rest of the body."""
    server = pki.server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    done = threading.Event()
    lines: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.ExitStack() as kept:
            for answer in (b"413 Too Large", b"200 OK"):
                accepted, _ = listener.accept()
                line = kept.enter_context(context.wrap_socket(accepted, server_side=True))
                lines.append(line.recv(100).splitlines()[0])
                line.sendall(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")
            done.wait(PATIENCE_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        with session(url, host, pki.ca_directory, limits=PATIENT._replace(read_s=3)) as hasty:
            assert answered(post(hasty, 50_000_000)).status == 413
            assert answered(hasty.exchange(*STATUS)).status == 200
        done.set()
        thread.join()
    assert [line.split()[0] for line in lines] == [b"POST", b"GET"]


@contextlib.contextmanager
def answering(pki: PKI, *answers: bytes) -> Iterator[str]:
    """The address of a server that sends these bytes, one after the other, for a request each."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server.certificate, pki.server.key)
    left = list(answers)

    def serve(listener: socket.socket) -> None:
        while left:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as line:
                while left and line.recv(65_536):
                    line.sendall(left.pop(0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}"
        thread.join()


def ok(body: bytes, header: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), header, body)


def test_what_comes_before_the_final_answer_is_none(host: Credential, pki: PKI) -> None:
    """Otherwise the final one would be taken for the answer to the next request."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 9\r\n\r\n"
    with (
        answering(pki, interim + ok(b"first"), ok(b"second")) as url,
        session(url, host, pki.ca_directory) as asking,
    ):
        assert [answered(asking.exchange(*STATUS)).body for _ in range(2)] == [b"first", b"second"]


def test_an_answer_that_nobody_asked_for_is_none(host: Credential, pki: PKI) -> None:
    """Also where TLS has read it from the connection already, behind 8 KiB of what was asked for."""
    first = ok(b"first", b"X: %s\r\n" % (b"x" * (8192 - len(ok(b"first", b"X: \r\n")))))
    with (
        answering(pki, first + ok(b"unasked"), ok(b"second")) as url,
        session(url, host, pki.ca_directory) as asking,
    ):
        assert [answered(asking.exchange(*STATUS)).body for _ in range(2)] == [b"first", b"second"]


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.slow
def test_a_drip_ends_with_the_attempt(in_body: bool, fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    fake_ams.faults.push(Fault.drip(interval=0.02, seconds=FOR_EVER_S, in_body=in_body))
    with session(fake_ams.url, host, pki.bundle, limits=PATIENT._replace(attempt_s=3)) as patient:
        result = post(patient)
    if in_body:
        assert not answered(result).complete
    else:
        failure, reason = failed(result)
        assert failure is Failure.MAYBE_SENT
        assert "timed out" in reason or "time for one attempt" in reason


def test_a_reason_names_no_error_from_before_the_request(host: Credential, pki: PKI) -> None:
    port = closed_port()
    with session(f"https://localhost:{port}", host, pki.bundle) as asking:
        try:
            (pki.directory / "nothing").read_bytes()
        except FileNotFoundError:
            _, reason = failed(asking.exchange("GET", "/v1/health"))
    assert reason == f"localhost:{port}: cannot connect (Connection refused)"


@pytest.mark.parametrize("interim", [b"100 Continue", b"103 Early Hints\r\nLink: </a>"])
@pytest.mark.slow
def test_interim_answers_without_end_end_with_the_attempt(interim: bytes, host: Credential, pki: PKI) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server.certificate, pki.server.key)
    sent: list[int] = []

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as peer, contextlib.suppress(OSError):
            while True:
                peer.sendall(b"HTTP/1.1 " + interim + b"\r\n\r\n")
                sent.append(1)
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        with session(url, host, pki.bundle, limits=PATIENT._replace(attempt_s=2)) as patient:
            failure, reason = failed(post(patient))
        thread.join()
    assert failure is Failure.MAYBE_SENT
    assert "time" in reason.rpartition(":")[2]
    assert len(sent) > 1


def test_a_slow_answer_is_waited_for(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.none().after(0.7))
    assert answered(post(to_ams)).status == 401


@pytest.mark.slow
def test_silence_ends_with_the_read_timeout(fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    with session(fake_ams.url, host, pki.bundle, limits=PATIENT._replace(read_s=3)) as hasty:
        while not isinstance(post(hasty), Answer):
            """The machine is busy."""
        connections = fake_ams.requests.connections("ams")
        fake_ams.faults.push(Fault.none().after(FOR_EVER_S))
        failure, reason = failed(post(hasty))  # on a kept-alive connection, which is not a dead one
    assert failure is Failure.MAYBE_SENT
    assert "timed out" in reason
    assert fake_ams.requests.connections("ams") == connections


def test_an_endless_error_page_is_read_in_part(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.status(500, b"x" * 10_000_000))
    answer = answered(post(to_ams))
    assert (answer.status, len(answer.body), answer.complete) == (500, ERROR_LIMIT, False)


def test_an_endless_success_is_none(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.status(200, b"x" * 5_000_000))
    answer = answered(post(to_ams))
    assert (len(answer.body), answer.complete) == (SUCCESS_LIMIT, False)


_OF_100 = b"Content-Length: 100\r\n"


@pytest.mark.parametrize(
    "fault",
    [
        Fault.body(200, b'{"messageIds":["1"]}', length=100),
        Fault.raw(b"HTTP/1.1 200 OK\r\n" + 2 * _OF_100 + b'\r\n{"messageIds":["1"]}'),
        Fault.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{   \r\n9\r\n}"),
    ],
    ids=["length", "length twice", "chunks"],
)
def test_a_body_that_breaks_off_is_incomplete(fault: Fault, to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(fault)
    answer = answered(post(to_ams))
    assert (answer.status, answer.complete) == (200, False)


# ---- connections that break


@pytest.mark.parametrize(
    "fault",
    [
        Fault.close_before_read(),
        Fault.close_after_bytes(100_000),
        Fault.reset(),
        Fault.store_then_close(),
        Fault.drop_without_storing(),
        Fault.raw(b""),
        Fault.raw(b"garbage\r\n\r\n"),
        Fault.raw(b"HTTP/1.1 200 OK"),
        Fault.raw(b"HTTP/1.1 200 OK\r\nX: y\r\n"),
        Fault.raw(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\n"),
        Fault.raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000),
        Fault.raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200),
    ],
    ids=lambda fault: fault.act.name,
)
def test_a_broken_exchange_may_have_been_carried_out(fault: Fault, to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(fault)
    failure, reason = failed(post(to_ams, 700_000))
    assert failure is Failure.MAYBE_SENT
    assert f"localhost:{fake_ams.port}" in reason
    assert len(fake_ams.requests) == 1


def test_a_kept_alive_connection_that_died_is_replaced(to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(Fault.close_keepalive())
    post(to_ams)
    assert answered(post(to_ams)).status == 401
    fake_ams.drop_connections()
    assert answered(post(to_ams)).status == 401


def test_a_kept_alive_connection_that_dies_under_a_request_is_replaced_once(to_ams: Session, fake_ams: FakeAMS) -> None:
    post(to_ams)
    fake_ams.faults.push(Fault.store_then_close())
    answer = answered(post(to_ams))
    assert (answer.status, answer.tries) == (401, 2)
    fake_ams.faults.push(Fault.store_then_close(), Fault.store_then_close())
    result = post(to_ams)
    assert failed(result)[0] is Failure.MAYBE_SENT
    assert result.tries == 2


def test_doubt_survives_a_service_that_went_away(fake_ams: FakeAMS, to_ams: Session) -> None:
    post(to_ams)
    fake_ams.faults.push(Fault.store_then_close())
    fake_ams.faults.push(Fault.reset(), route=CONNECT)
    assert failed(post(to_ams))[0] is Failure.MAYBE_SENT  # not NOT_SENT: the first try may be stored


def test_nothing_listens(host: Credential, pki: PKI) -> None:
    port = closed_port()
    with session(f"https://localhost:{port}", host, pki.bundle) as nobody:
        failure, reason = failed(post(nobody))
    assert failure is Failure.NOT_SENT
    assert reason == f"localhost:{port}: cannot connect (Connection refused)"


def test_a_connection_that_is_reset_before_tls_is_closed(host: Credential, pki: PKI) -> None:
    context = client_context(credentials(host, pki.ca_directory))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as plain:
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        descriptor = plain.fileno()
        with pytest.raises(ConnectionResetError):
            context.wrap_socket(plain, server_hostname="localhost")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("fault", [Fault.reset(), Fault.close_before_read()])
def test_a_connection_that_breaks_before_tls_sent_nothing(fault: Fault, to_ams: Session, fake_ams: FakeAMS) -> None:
    fake_ams.faults.push(fault, route=CONNECT)
    assert failed(post(to_ams))[0] is Failure.NOT_SENT


class Plain:
    """A plain TCP server on the loopback that reads a request's head and answers with fixed bytes, or tunnels."""

    def __init__(self, reply: bytes, *, tunnel: bool = False, host: str = "127.0.0.1") -> None:
        self.heads: list[bytes] = []
        self._reply, self._tunnel = reply, tunnel
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> "Plain":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(PATIENCE_S)
                self.heads.append(client.recv(65536))
                client.sendall(self._reply)
                if self._tunnel:
                    self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        port = int(self.heads[-1].split()[1].rpartition(b":")[2])
        with socket.create_connection(("127.0.0.1", port), 5) as server:
            there = threading.Thread(target=pump, args=(client, server), daemon=True)
            there.start()
            pump(server, client)
            there.join(PATIENCE_S)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def test_a_port_that_speaks_no_tls(host: Credential, pki: PKI) -> None:
    with (
        Plain(b"HTTP/1.0 400 Bad Request\r\n\r\n") as server,
        session(f"https://localhost:{server.port}", host, pki.bundle) as lost,
    ):
        assert failed(post(lost))[0] is Failure.NOT_SENT


# ---- proxies


ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def test_a_proxy_may_be_an_address_of_ipv6(fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    try:
        proxy = Plain(ESTABLISHED, tunnel=True, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with proxy, session(fake_ams.url, host, pki.bundle, proxy=f"http://[::1]:{proxy.port}") as through:
        assert answered(through.exchange(*STATUS)).status == 200
        assert len(proxy.heads) == 1


def test_traffic_goes_through_the_proxy(fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    with Plain(ESTABLISHED, tunnel=True) as proxy:
        url = f"http://user:{SECRET}@127.0.0.1:{proxy.port}"
        with session(fake_ams.url, host, pki.bundle, proxy=url) as through:
            assert answered(post(through)).status == 401
            assert answered(post(through, 900_000)).status == 401
        assert len(proxy.heads) == 1
        assert proxy.heads[0].startswith(b"CONNECT localhost:")
        assert b"x-api-key" not in proxy.heads[0].lower()


@pytest.mark.parametrize("name", ["user", "us%C3%A9r%3A", "%F0%9F%94%91"])
def test_a_proxy_gets_its_password_in_utf_8(name: str, fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    with Plain(ESTABLISHED, tunnel=True) as proxy:
        url = f"http://{name}:{SECRET}@127.0.0.1:{proxy.port}"
        with session(fake_ams.url, host, pki.bundle, proxy=url) as through:
            assert answered(through.exchange(*STATUS)).status == 200
        (head,) = proxy.heads
    known = base64.b64encode(f"{unquote(name)}:{SECRET}".encode())
    assert b"Proxy-Authorization: Basic " + known + b"\r\n" in head
    assert "proxy-authorization" not in {name.lower() for name, _ in fake_ams.requests[0].headers}


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", Failure.PROXY),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", Failure.PROXY),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", Failure.NOT_SENT),
        (b"HTTP/1.1 503 Busy\r\n\r\n", Failure.NOT_SENT),
        (b"garbage\r\n\r\n", Failure.NOT_SENT),
        (b"", Failure.NOT_SENT),
    ],
)
def test_a_proxy_that_refuses_is_named(reply: bytes, failure: Failure, host: Credential, pki: PKI) -> None:
    with Plain(reply) as proxy:
        url = f"http://user:{SECRET}@127.0.0.1:{proxy.port}"
        with session("https://localhost:9", host, pki.bundle, proxy=url) as through:
            got, reason = failed(post(through))
    assert got is failure
    assert f"http://127.0.0.1:{proxy_port(url)}" in reason
    assert "HTTPS_PROXY" in reason
    assert "user:" not in reason


def test_a_proxy_that_never_ends_its_answer_holds_nobody(host: Credential, pki: PKI) -> None:
    def drip(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line, contextlib.suppress(OSError):
            line.sendall(b"HTTP/1.1 200 Connection established\r\n")
            for _ in range(500):
                line.sendall(b"X: y\r\n")
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        limits = PATIENT._replace(attempt_s=0.2)
        with session("https://localhost:9", host, pki.bundle, proxy=proxy, limits=limits) as through:
            failure, reason = failed(post(through))
        thread.join()
    assert failure is Failure.NOT_SENT
    assert "time" in reason.rpartition(":")[2]  # timed out, or the time of the attempt is over


def proxy_port(url: str) -> str:
    return url.rpartition(":")[2]


def test_a_proxy_that_is_away_is_named(host: Credential, pki: PKI) -> None:
    port = closed_port()
    with session("https://localhost:9", host, pki.bundle, proxy=f"http://127.0.0.1:{port}") as through:
        failure, reason = failed(post(through))
    assert failure is Failure.NOT_SENT
    assert f"http://127.0.0.1:{port}" in reason


URL = "https://msg.example.org:8443"


@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        ("", {}, ""),
        ("", {"HTTP_PROXY": "http://proxy:3128"}, ""),
        ("", {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "*"}, ""),
        ("", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "localhost, .example.org"}, ""),
        ("", {"HTTPS_PROXY": "proxy:3128", "no_proxy": "example.org"}, ""),
        ("", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "MSG.example.org:8443"}, ""),
        ("", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "msg.example.org:443"}, "http://proxy:3128"),
        ("", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "ample.org,10.0.0.0/8,,."}, "http://proxy:3128"),
        ("http://mine:1", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "*"}, "http://mine:1"),
    ],
)
def test_which_proxy(option: str, environment: dict[str, str], expected: str) -> None:
    assert proxy_url(URL, option, environment) == expected


def test_no_proxy_knows_networks() -> None:
    environment = {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "10.0.0.0/8,2001:db8::/32"}
    assert proxy_url("https://10.1.2.3", "", environment) == ""
    assert proxy_url("https://[2001:db8::1]:8443", "", environment) == ""
    assert proxy_url("https://11.1.2.3", "", environment) == "http://proxy:3128"


@pytest.mark.parametrize(
    "proxy", ["socks5://proxy:1080", "https://proxy:3128", "http://", "http://proxy:port", f"ftp://u:{SECRET}@x"]
)
def test_proxies_that_cannot_work(proxy: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        proxy_url(URL, "", {"HTTPS_PROXY": proxy})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="`proxy`"):
        proxy_url(URL, proxy, {})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://msg.example.org", "https://msg.example.org"),
        ("https://msg.example.org/", "https://msg.example.org"),
        ("https://MSG.example.org:443", "https://msg.example.org"),
        ("https://msg.example.org:8443", "https://msg.example.org:8443"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_urls_of_services(url: str, expected: str) -> None:
    assert https_url(url, "url") == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "msg.example.org",
        "http://msg.example.org",
        "https://",
        "https://h/v1",
        "https://u@h",
        "https://h?key=1",
        "https://h:port",
    ],
)
def test_urls_that_cannot_work_name_their_key(url: str) -> None:
    with pytest.raises(ConfigError, match="`auth_url`"):
        https_url(url, "auth_url")


# ---- every exception of the libraries below


def exceptions_of(*modules: object) -> list[type[Exception]]:
    found = {
        thing
        for module in modules
        for _, thing in inspect.getmembers(module, inspect.isclass)
        if issubclass(thing, Exception) and not issubclass(thing, Warning) and not thing.__name__.startswith("_")
    }
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


ALL = exceptions_of(requests.exceptions, urllib3.exceptions, http.client, ssl, socket)
WHERE = Peer(place="msg.example.org:443", trust="/etc/grid-security/certificates")


def made(kind: type[Exception]) -> Exception:
    """An instance, whatever the constructor wants."""
    pool = urllib3.HTTPConnectionPool("msg.example.org")
    tries: list[tuple[object, ...]] = [
        ("no",),
        (1, 2),
        (1, "no"),
        (pool, "no"),
        (pool, "/", "no"),
        (b"part", 9),
        ("a", "b", "c"),
        ("no", "no", 0),
        (urllib3.HTTPResponse(), b"x"),
        ("no", OSError("no")),
        ("host", pool, socket.gaierror(-2, "no")),
        (["no"], ["no"]),
        (),
    ]
    for arguments in tries:
        with contextlib.suppress(TypeError, AttributeError):
            return kind(*arguments)
    raise AssertionError(f"cannot make a {kind}")


def test_the_walk_sees_the_libraries() -> None:
    assert len(ALL) > 60
    assert {
        requests.ConnectionError,
        urllib3.exceptions.ProtocolError,
        http.client.RemoteDisconnected,
        ssl.SSLEOFError,
        socket.gaierror,
    } <= set(ALL)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_every_exception_is_translated(kind: type[Exception]) -> None:
    assert issubclass(kind, FOREIGN)
    error = made(kind)
    before, after = no_answer(error, WHERE, sending=False), no_answer(error, WHERE, sending=True)
    proxied = no_answer(error, replace(WHERE, proxy="http://proxy:3128"), sending=False)
    if issubclass(kind, ssl.SSLCertVerificationError):
        assert {before.failure, after.failure, proxied.failure} == {Failure.THEIR_CERTIFICATE}
        return
    nothing_left = Failure.IMPOSSIBLE if issubclass(kind, ValueError) else Failure.NOT_SENT
    assert {before.failure, proxied.failure} == {nothing_left}
    assert after.failure is Failure.MAYBE_SENT
    for result in (before, after, proxied):
        assert WHERE.place in result.reason
        assert 0 < len(result.reason) <= 500


@pytest.mark.parametrize(
    "kind", [OSError, ConnectionResetError, BrokenPipeError, TimeoutError, UnicodeError, ValueError]
)
def test_what_the_standard_library_raises_is_translated_too(kind: type[Exception]) -> None:
    assert issubclass(kind, FOREIGN)
    assert no_answer(kind("no"), WHERE, sending=True).failure is Failure.MAYBE_SENT


@pytest.mark.parametrize(
    "reason",
    [
        "TLSV1_ALERT_UNKNOWN_CA",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    ],
)
def test_alerts_about_our_certificate_are_found_however_deep(reason: str) -> None:
    alert = ssl.SSLError(1, f"[SSL: {reason}]")
    alert.reason = reason
    wrapped = requests.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", alert))
    for sending in (False, True):
        assert no_answer(wrapped, WHERE, sending=sending).failure is Failure.OUR_CERTIFICATE
    assert explains_more(alert)


@pytest.mark.parametrize(
    "reason", ["DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "SSLV3_ALERT_BAD_RECORD_MAC", "WRONG_VERSION_NUMBER"]
)
def test_other_tls_errors_pass(reason: str) -> None:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    assert no_answer(error, WHERE, sending=True).failure is Failure.MAYBE_SENT
    assert no_answer(error, WHERE, sending=False).failure is Failure.NOT_SENT
    assert not explains_more(error)


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
def test_secrets_stay_out_of_reasons(proxy: str, fake_ams: FakeAMS, host: Credential, pki: PKI) -> None:
    with session(fake_ams.url, host, pki.bundle, proxy=proxy) as asking:
        result = asking.exchange("POST", PUBLISH, b"x", {"x-api-key": f"{SECRET}\nx"})  # no header may hold a line end
    failure, reason = failed(result)
    assert failure is Failure.IMPOSSIBLE
    assert "5ecret" not in reason
