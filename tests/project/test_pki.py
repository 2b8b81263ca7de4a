"""The throw-away PKI is what TLS and OpenSSL think it is."""

import shutil
import ssl
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.pki import PKI, parse_slash_dn, slash_dn, subject_hash, validity

SUBJECTS = [
    "/DC=org/DC=terena/DC=tcs/C=DE/O=hosts/O=GermanGrid/OU=DESY/CN=ce.example.org",
    "/O=Grid/O=NorduGrid/CN=host/ce.example.no",
    "/C=NO/ST=Oslo/O=Univ  A,   Inc/OU=x+y/CN=ce.example.no/emailAddress=A@Example.no",
    "/C=FR/O=Université de Genève/UID=42/CN=" + "long" * 15,
]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI.create(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_slash_form_round_trips(subject: str) -> None:
    assert slash_dn(parse_slash_dn(subject)) == subject


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
@pytest.mark.parametrize("subject", SUBJECTS)
def test_subject_hash_is_the_one_of_openssl(pki: PKI, subject: str) -> None:
    certificate = pki.host("hashed", subject=subject).certificate
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(certificate)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert subject_hash(parse_slash_dn(subject)) == said


def test_tls_finds_the_authority_in_the_hashed_directory(pki: PKI) -> None:
    assert handshake(pki, pki.server.certificate, pki.server.key) == "ok"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (PKI.expired_server, "certificate has expired"),
        (PKI.wrong_name_server, "Hostname mismatch"),
        (PKI.other_ca_server, "unable to get local issuer"),
    ],
)
def test_bad_server_certificates_are_refused_for_their_reason(pki: PKI, make: object, complaint: str) -> None:
    assert callable(make)
    server = make(pki)
    assert complaint in handshake(pki, server.certificate, server.key)


def test_hosts_have_the_faults_they_are_named_for(pki: PKI) -> None:
    now = datetime.now(UTC)
    assert validity(pki.expired_host().x509)[1] < now
    assert validity(pki.not_yet_valid_host().x509)[0] > now
    assert pki.other_ca_host().x509.issuer != pki.authority.x509.subject
    assert pki.revoked_host().x509.serial_number in pki.revoked
    assert pki.host().x509.serial_number not in pki.revoked
    with pytest.raises(x509.ExtensionNotFound):
        pki.host_without_crl().x509.extensions.get_extension_for_class(x509.CRLDistributionPoints)


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_host_credential_loads_and_its_key_is_private(pki: PKI, key: str) -> None:
    credential = pki.host("ce7.example.org", key="rsa" if key == "rsa" else "ec")
    assert stat.S_IMODE(credential.key.stat().st_mode) == 0o600
    assert credential.subject == "/DC=org/DC=example/OU=hosts/CN=ce7.example.org"
    ssl.create_default_context().load_cert_chain(credential.certificate, credential.key)


def test_two_credentials_of_a_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    pki = PKI.create(tmp_path)
    assert [pki.host("ce").certificate.name for _ in range(2)] == ["ce.pem", "ce-2.pem"]


def handshake(pki: PKI, certificate: Path, key: Path) -> str:
    """A handshake in memory; what the client, who trusts only the hashed directory, says of the server."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(capath=pki.ca_directory)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return str(error)
            if end is client:
                return "ok"
    return "stuck"
