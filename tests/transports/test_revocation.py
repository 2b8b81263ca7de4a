"""Revoked servers, by the lists that fetch-crl keeps beside the CAs: real handshakes with our stand-in of AMS."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from publisher.transports.base import Credentials, Endpoint
from publisher.transports.http.exchange import Failure, RequestFailure
from publisher.transports.http.session import Session
from publisher.transports.http.tls import client_context, trust_described
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI, Authority, Credential, subject_hash
from tests.support.sites import SiteUnderTest

NOW = datetime.now(UTC)
TOMORROW, YESTERDAY = NOW + timedelta(days=1), NOW - timedelta(days=1)


@pytest.fixture
def server(pki: PKI) -> Credential:
    return pki.host("localhost", san=("localhost", "127.0.0.1"))


@pytest.fixture
def service(pki: PKI, server: Credential) -> Iterator[FakeAMS]:
    with FakeAMS(pki, server=server) as running:
        yield running


@pytest.fixture
def trusted(pki: PKI, tmp_path: Path) -> Path:
    """A CA directory of our own to put lists into."""
    return Path(shutil.copytree(pki.ca_directory, tmp_path / "certificates"))


def put_list(
    directory: Path,
    issuer: Authority,
    *revoked: Credential,
    until: datetime = TOMORROW,
    pem: bool = False,
    place: int = 0,
) -> Path:
    """A list of the certificates that an authority revoked, where fetch-crl puts it."""
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.x509.subject)
        .last_update(until - timedelta(days=30))
        .next_update(until)
    )
    for each in revoked:
        one = x509.RevokedCertificateBuilder().serial_number(each.x509.serial_number)
        made = made.add_revoked_certificate(one.revocation_date(until - timedelta(days=20)).build())
    path = directory / f"{subject_hash(issuer.x509.subject)}.r{place}"
    path.write_bytes(made.sign(issuer.private_key, hashes.SHA256()).public_bytes(Encoding.PEM if pem else Encoding.DER))
    return path


@pytest.fixture
def ask(pki: PKI, service: FakeAMS, trusted: Path) -> Callable[[str], str]:
    """One request; gives why it failed, '' for an answer."""

    def asked(crl: str) -> str:
        host = pki.host()
        ours = Credentials(certificate=host.certificate, key=host.key, ca=trusted, crl=crl)
        endpoint = Endpoint(name="AMS", url=service.url, proxy="", connect_s=60, read_s=60, attempt_s=120)
        with closing(
            Session(endpoint, client_context(ours), trust=trust_described(ours), clock=time.monotonic)
        ) as session:
            answer = session.exchange("GET", "/v1/status")
        if isinstance(answer, RequestFailure):
            assert answer.failure is Failure.THEIR_CERTIFICATE
            return answer.reason
        return ""

    return asked


@pytest.mark.parametrize("pem", [True, False])
@pytest.mark.parametrize(
    ("crl", "until", "refused"),
    [
        ("if-present", TOMORROW, True),
        ("if-present", YESTERDAY, True),
        ("require", TOMORROW, True),
        ("require", YESTERDAY, True),
        ("off", TOMORROW, False),
    ],
)
def test_a_revoked_server_gets_nothing(
    crl: str,
    until: datetime,
    refused: bool,
    pem: bool,
    ask: Callable[[str], str],
    trusted: Path,
    pki: PKI,
    server: Credential,
    service: FakeAMS,
) -> None:
    if crl == "require" and not pem:
        pytest.skip("OpenSSL reads PEM only, which is what fetch-crl writes for it")
    put_list(trusted, pki.authority, server, until=until, pem=pem)
    why = ask(crl)
    assert bool(why) is refused
    assert ("nothing was sent" in why) is refused
    assert bool(service.requests) is not refused


def test_a_list_that_is_out_of_date_is_reported_and_stops_nothing(
    ask: Callable[[str], str], trusted: Path, pki: PKI, caplog: pytest.LogCaptureFixture
) -> None:
    path = put_list(trusted, pki.authority, pki.host(), until=YESTERDAY)
    with caplog.at_level(logging.WARNING, "publisher"):
        assert ask("if-present") == ""
    assert f"{path}: the revocation list is out of date since" in caplog.text
    assert "run fetch-crl" in caplog.text


def test_require_needs_a_current_list(ask: Callable[[str], str], trusted: Path, pki: PKI) -> None:
    assert "unable to get certificate CRL" in ask("require")
    path = put_list(trusted, pki.authority, until=YESTERDAY, pem=True)
    assert "CRL has expired" in ask("require")
    path.unlink()
    put_list(trusted, pki.authority, pki.host(), pem=True)
    assert ask("require") == ""


def test_all_lists_of_a_ca_count_and_those_of_others_do_not(
    ask: Callable[[str], str], trusted: Path, pki: PKI, server: Credential
) -> None:
    theirs = put_list(trusted, pki.other_authority, server)
    forged = theirs.rename(trusted / f"{subject_hash(pki.authority.x509.subject)}.r0")
    assert ask("if-present") == "", "a list of another CA under this one's name"
    forged.write_bytes(b"not a list")
    put_list(trusted, pki.authority, pki.host(), place=1)
    assert ask("if-present") == "", "a file that is none, and one that does not name it"
    put_list(trusted, pki.authority, server, place=2)
    assert "certificate revoked" in ask("if-present")


def test_a_list_that_somebody_else_signed_revokes_nothing(
    ask: Callable[[str], str], trusted: Path, pki: PKI, server: Credential
) -> None:
    pretender = Authority(
        certificate=pki.authority.certificate, x509=pki.authority.x509, private_key=pki.other_authority.private_key
    )
    put_list(trusted, pretender, server)
    assert ask("if-present") == ""


def test_a_name_counts_only_as_an_alternative_name(pki: PKI, tmp_path: Path) -> None:
    bare = pki.host("localhost", san=())
    with FakeAMS(pki, server=bare) as service:
        host = pki.host()
        ours = Credentials(certificate=host.certificate, key=host.key, ca=pki.ca_directory)
        endpoint = Endpoint(name="AMS", url=service.url, proxy="", connect_s=60, read_s=60, attempt_s=120)
        with closing(
            Session(endpoint, client_context(ours), trust=trust_described(ours), clock=time.monotonic)
        ) as session:
            answer = session.exchange("GET", "/v1/status")
    assert isinstance(answer, RequestFailure)
    assert answer.failure is Failure.THEIR_CERTIFICATE


def test_a_round_stops_at_a_revoked_server_with_77(
    pki: PKI, server: Credential, service: FakeAMS, trusted: Path, tmp_path: Path
) -> None:
    site = SiteUnderTest(tmp_path / "site", pki, service)
    site.config["credentials"]["ca"] = str(trusted)
    jobs = list(generate(1, 5, NOW - timedelta(days=20), NOW - timedelta(days=10)))
    site.fill(*jobs)
    there = put_list(trusted, pki.authority, server)
    refused = site.publish()
    assert refused.status == 77
    assert f"certificate revoked according to {there}" in refused.err
    assert not service.requests
    site.config["credentials"]["crl"] = "off"
    site.save()
    assert site.publish().status == 0
    site.assert_received(*jobs)
