"""The signer: what leaves verifies with OpenSSL, and what would hurt the receiver never leaves."""

import base64
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.model.errors import CredentialError
from publisher.transports.base import Credentials
from publisher.transports.credentials.host_certificate import certificates, slash_dn
from publisher.transports.credentials.smime import TAKEN_FOR_ENCRYPTED, Signer, UnsafePayload, unsafe_reason
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential, parse_slash_dn, validity
from tests.support.strategies import examples

NOW = datetime.now(UTC)
SUMMARY = b"APEL-summary-job-message: v0.4\nSite: EXAMPLE-SITE\nMonth: 3\nYear: 2026\n%%\n"

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    return PKI.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=["rsa", "ec"])
def credential(pki: PKI, request: pytest.FixtureRequest) -> Credential:
    return pki.host(key=request.param)


@pytest.fixture(scope="module")
def signer(credential: Credential) -> Signer:
    return Signer(given_by(credential), NOW)


def given_by(credential: Credential, *, certificate: Path | None = None, key: Path | None = None) -> Credentials:
    return Credentials(certificate=certificate or credential.certificate, key=key or credential.key, ca=None)


def verify(message: bytes, pki: PKI, signer_file: Path | None = None) -> bytes:
    """What the receiver's OpenSSL makes of a message."""
    command = ["openssl", "smime", "-verify", "-text", "-CAfile", str(pki.bundle), "-purpose", "any"]
    if signer_file:
        command += ["-signer", str(signer_file)]
    done = subprocess.run(command, input=message, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.replace(b"\r\n", b"\n")


@openssl
@pytest.mark.parametrize(
    "payload",
    [
        SUMMARY,
        SUMMARY * 10_000,
        b"no final line end",
        b"\n\nleading blank lines\n\n\n",
        b"trailing blanks   \nand\ttabs\t\n",
        b'<?xml version="1.0" encoding="ASCII"?>\n<x a="&amp;">--</x>\n',
        b"--\n--boundary\n------\n.\nFrom me\n",
        b"Content-Type: application/xml\n\nnot a header\n",
        b"x" * 65_537,
        b"a" * 1023 + b"\n" + b"b" * 1024 + b"\n" + b"c" * 2047 + b"\n",
    ],
)
def test_openssl_gives_the_payload_back(payload: bytes, signer: Signer, pki: PKI) -> None:
    assert verify(signer.sign(payload), pki) == payload


@openssl
def test_crlf_in_a_payload_arrives_as_line_ends(signer: Signer, pki: PKI) -> None:
    assert verify(signer.sign(b"one\r\ntwo\r\n"), pki) == b"one\ntwo\n"


@openssl
@settings(max_examples=examples(25))
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.just("\n"), min_size=1).filter(str.strip))
def test_any_plain_text_survives(signer: Signer, pki: PKI, text: str) -> None:
    assert verify(signer.sign(text.encode()), pki) == text.encode()


@openssl
def test_one_changed_byte_is_noticed(signer: Signer, pki: PKI) -> None:
    message = signer.sign(SUMMARY).replace(b"Month: 3", b"Month: 4")
    with pytest.raises(AssertionError, match="digest failure"):
        verify(message, pki)


@openssl
def test_the_only_certificate_is_the_signers(signer: Signer, credential: Credential, pki: PKI, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_bytes(signer.sign(SUMMARY))
    pk7 = subprocess.run(["openssl", "smime", "-pk7out", "-in", str(message)], capture_output=True, check=True).stdout
    listing = subprocess.run(["openssl", "pkcs7", "-print_certs"], input=pk7, capture_output=True, check=True).stdout
    (certificate,) = certificates(listing)
    assert certificate == credential.x509


def test_only_the_first_certificate_of_the_file_is_the_signer(pki: PKI, credential: Credential, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(credential.certificate.read_bytes() + pki.bundle.read_bytes())
    with_chain = Signer(given_by(credential, certificate=chain), NOW)
    assert with_chain.subject_slash() == credential.subject
    alone = Signer(given_by(credential), NOW)
    assert abs(len(with_chain.sign(SUMMARY)) - len(alone.sign(SUMMARY))) < 16  # no room for a second certificate


def test_the_form_is_the_one_the_receiver_loads(signer: Signer) -> None:
    message = signer.sign(SUMMARY)
    assert message.isascii()
    head, _, rest = message.partition(b"\n\n")
    assert head.startswith(b"MIME-Version: 1.0\nContent-Type: multipart/signed;")
    assert b'micalg="sha-256"' in head
    boundary = re.search(rb'boundary="([^"]+)"', head)
    assert boundary
    parts = (b"\n" + rest).split(b"\n--" + boundary[1])
    assert parts[1] == b"\nContent-Type: text/plain\n\n" + SUMMARY
    assert parts[3] == b"--\n"
    assert b"pkcs7-mime" not in message


def test_the_boundary_is_new_for_every_content(signer: Signer) -> None:
    boundaries = {re.search(rb'boundary="([^"]+)"', signer.sign(b"%d" % n)) for n in range(20)}
    assert len({found[1] for found in boundaries if found}) == 20


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 100_001])
def test_signed_size_is_never_too_small_and_hardly_too_large(length: int, signer: Signer) -> None:
    for payload in (b"x" * length, b"x" + b"\n" * (length - 1)):
        for _ in range(8):
            room = signer.signed_size(length) - len(signer.sign(payload))
            assert 0 <= room <= 48


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        ("Café".encode(), "ASCII"),
        (b"caf\xe9", "ASCII"),
        (b"a\0b", "0x00"),
        (b"a\x1bb", "0x1b"),
        (b"a\x7f", "0x7f"),
        (b"a\x0cb", "0x0c"),
        (b"old\rmac", "carriage return"),
        (b"twice\r\r\n", "carriage return"),
        (b"JobName: application/PKCS7-mime", "encrypted"),
        (b"application/x-pkcs7-mime; smime-type=enveloped-data", "encrypted"),
    ],
)
def test_what_would_stop_the_receiver_is_not_signed(payload: bytes, why: str, signer: Signer) -> None:
    assert why in unsafe_reason(payload)
    with pytest.raises(UnsafePayload, match=why):
        signer.sign(payload)


@pytest.mark.parametrize(
    "payload", [SUMMARY, b"a\tb", b"a\r\nb", b"the word pkcs7-mime alone", b"application/pkcs7-signature"]
)
def test_harmless_payloads_meet_no_objection(payload: bytes) -> None:
    assert unsafe_reason(payload) == ""


WORDS = ("application/", "x-", "pkcs7-mime", "pkcs7", "pkcs", "-mime", " ", "7-")


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), st.integers(0, 2**40))
def test_the_receivers_words_are_found_in_any_case(parts: list[str], cases: int) -> None:
    text = "".join(one.upper() if cases >> at & 1 else one for at, one in enumerate("".join(["x", *parts])))
    encrypted = any(words.decode() in text.lower() for words in TAKEN_FOR_ENCRYPTED)
    assert bool(unsafe_reason(text.encode())) is encrypted


# ---- credentials that cannot be used


def refusal(credentials: Credentials, now: datetime = NOW) -> str:
    with pytest.raises(CredentialError) as caught:
        Signer(credentials, now)
    return str(caught.value)


def test_missing_files_are_named(credential: Credential, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.pem"
    assert f"the certificate {nowhere} does not exist" in refusal(given_by(credential, certificate=nowhere))
    assert f"the key {nowhere} does not exist" in refusal(given_by(credential, key=nowhere))
    for_the_service = refusal(given_by(credential, key=Path("$CREDENTIALS_DIRECTORY/hostkey.pem")))
    assert "available only to the service" in for_the_service
    assert "`systemd-run " in for_the_service


def test_unreadable_files_are_named(credential: Credential, tmp_path: Path) -> None:
    assert "cannot read the certificate" in refusal(given_by(credential, certificate=tmp_path))
    if os.geteuid() == 0:
        return
    closed = tmp_path / "closed.key"
    closed.touch(mode=0)
    assert "LoadCredential" in refusal(given_by(credential, key=closed))


def private(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def test_other_formats_are_named(credential: Credential, tmp_path: Path) -> None:
    der = tmp_path / "cert.der"
    der.write_bytes(credential.x509.public_bytes(serialization.Encoding.DER))
    assert "no PEM certificate" in refusal(given_by(credential, certificate=der))
    assert "no PEM private key" in refusal(given_by(credential, key=private(tmp_path / "x.key", b"secret")))
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert "damaged" in refusal(given_by(credential, certificate=private(tmp_path / "b.pem", broken)))
    broken = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    assert "damaged" in refusal(given_by(credential, key=private(tmp_path / "b.key", broken)))


@pytest.mark.parametrize("damaged", [("d", "p"), ("d", "dmp1", "dmq1"), ("private_value",)])
def test_a_key_whose_secret_part_is_damaged_is_refused(
    credential: Credential, tmp_path: Path, damaged: tuple[str, ...]
) -> None:
    """Its public part is whole, so that it belongs to the certificate; what it signs would not verify anywhere."""
    der = credential.private_key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    numbers = credential.private_key.private_numbers()
    secrets = [getattr(numbers, name) for name in damaged if hasattr(numbers, name)]
    if len(secrets) < len(damaged):
        pytest.skip("of the other kind of key")
    for secret in secrets:
        length = (secret.bit_length() + 7) // 8
        der = der.replace(secret.to_bytes(length, "big"), (secret ^ 0x10).to_bytes(length, "big"))
    content = b"-----BEGIN PRIVATE KEY-----\n" + base64.encodebytes(der) + b"-----END PRIVATE KEY-----\n"
    assert "damaged" in refusal(given_by(credential, key=private(tmp_path / "b.key", content)))


def test_an_encrypted_key_is_refused(credential: Credential, tmp_path: Path) -> None:
    content = credential.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    assert "encrypted" in refusal(given_by(credential, key=private(tmp_path / "locked.key", content)))


def test_kinds_of_key_that_smime_cannot_use(credential: Credential, tmp_path: Path) -> None:
    content = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    text = refusal(given_by(credential, key=private(tmp_path / "ed.key", content)))
    assert "of the kind Ed25519" in text
    assert "RSA or EC" in text


@openssl
def test_a_pss_key_is_refused(credential: Credential, tmp_path: Path) -> None:
    path = private(tmp_path / "pss.key", b"")
    subprocess.run(["openssl", "genpkey", "-algorithm", "rsa-pss", "-out", str(path)], capture_output=True, check=True)
    assert "RSA-PSS" in refusal(given_by(credential, key=path))


def test_the_key_of_another_certificate_is_refused(pki: PKI) -> None:
    one, other = pki.host(), pki.host(key="ec")
    assert "does not belong" in refusal(given_by(one, key=other.key))


def test_expired_and_not_yet_valid(pki: PKI) -> None:
    assert "expired on" in refusal(given_by(pki.expired_host()))
    assert "not valid before" in refusal(given_by(pki.not_yet_valid_host()))


def test_a_certificate_that_ends_during_a_long_run_is_noticed(pki: PKI) -> None:
    credential = pki.host(days=2)
    signer = Signer(given_by(credential), NOW)
    signer.check(NOW + timedelta(days=1))
    with pytest.raises(CredentialError, match="expired on"):
        signer.check(NOW + timedelta(days=2))
    begins, ends = validity(credential.x509)
    signer.check(begins)
    signer.check(ends - timedelta(seconds=1))
    with pytest.raises(CredentialError, match="expired on"):
        signer.check(ends)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_open_to_others_is_refused_unless_allowed(mode: int, pki: PKI) -> None:
    credential = pki.host()
    credential.key.chmod(mode)
    text = refusal(given_by(credential))
    assert f"mode {mode:04o}" in text
    assert "allow_open_key" in text
    assert Signer(given_by(credential), NOW, allow_open_key=True).subject_slash() == credential.subject


def test_warnings_begin_thirty_days_before_the_end(pki: PKI) -> None:
    signer = Signer(given_by(pki.host(days=60)), NOW)
    assert signer.warnings(NOW) == []
    (text,) = signer.warnings(NOW + timedelta(days=58.5))
    assert "expires in 1 day, on" in text
    assert signer.warnings(NOW + timedelta(days=31))


@pytest.mark.parametrize(
    ("slash", "authn"),
    [
        (
            "/DC=org/DC=terena/DC=tcs/C=DE/O=hosts/O=GermanGrid/OU=DESY/CN=ce.example.org",
            "CN=ce.example.org,OU=DESY,O=hosts+O=GermanGrid,C=DE,DC=org+DC=terena+DC=tcs",
        ),
        ("/O=Grid/O=NorduGrid/CN=host/ce.example.no", "CN=host/ce.example.no,O=Grid+O=NorduGrid"),
        (
            "/C=NO/ST=Oslo/O=Univ A, Inc/OU=x+y/CN=ce.example.no/emailAddress=a@example.no",
            "E=a@example.no,CN=ce.example.no,OU=x\\+y,O=Univ A\\, Inc,ST=Oslo,C=NO",
        ),
        ("/C=IT/O=INFN/OU=Host/L=CNAF/CN=a.example.it/CN=b.example.it", "CN=b.example.it,OU=Host,O=INFN,L=CNAF,C=IT"),
        ("/DC=org/UID=robot/O=#1 <lab>/CN=x", "CN=x,O=\\#1 \\<lab\\>,DC=org"),
    ],
)
def test_the_two_spellings_of_a_subject(slash: str, authn: str, pki: PKI) -> None:
    signer = Signer(given_by(pki.host(subject=slash)), NOW)
    assert signer.subject_slash() == slash
    assert signer.subject_authn() == authn
    assert slash in signer.describe()


def test_a_part_with_several_values_is_flattened() -> None:
    (cn,), (ou,) = (list(parse_slash_dn(text)) for text in ("/CN=ce.example.org", "/OU=a b"))
    name = x509.Name([x509.RelativeDistinguishedName([ou]), x509.RelativeDistinguishedName([cn, ou])])
    assert sorted(slash_dn(name).split("/")) == ["", "CN=ce.example.org", "OU=a b", "OU=a b"]
