"""Clear-signed S/MIME, verified twice over: by the openssl command as the receiver does, or by reading the DER here.

Neither shares code with the product's signer; what old versions of `cryptography` lack is the product's.
"""

import base64
import binascii
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from publisher.transports.credentials.host_certificate import certificates, issued
from tests.support.patience import PATIENCE_S
from tests.support.pki import validity

_DIGESTS: dict[str, hashes.HashAlgorithm] = {
    "2b0e03021a": hashes.SHA1(),  # noqa: S303 the receiver takes it, so the model must
    "608648016503040204": hashes.SHA224(),
    "608648016503040201": hashes.SHA256(),
    "608648016503040202": hashes.SHA384(),
    "608648016503040203": hashes.SHA512(),
}
_MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")
_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")


class NotVerified(Exception):
    """The text is not a message that a signature covers; the text of the exception says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What was signed (as the signature covers it) and the embedded certificates in the order of the bag."""

    content: bytes
    certificates: tuple[x509.Certificate, ...]


def have_openssl() -> bool:
    return shutil.which("openssl") is not None


def _openssl(*arguments: str, data: bytes) -> bytes:
    done = subprocess.run(["openssl", *arguments], input=data, capture_output=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise NotVerified(done.stderr.decode(errors="replace").strip())
    return done.stdout


def verify_with_openssl(message: bytes) -> Signed:
    """The receiver's own way: `openssl smime -verify -noverify`. Raises: NotVerified."""
    content = _openssl("smime", "-verify", "-noverify", data=message)
    bag = _openssl("smime", "-pk7out", data=message)
    printed = _openssl("pkcs7", "-print_certs", data=bag)
    if b"BEGIN CERTIFICATE" not in printed:
        raise NotVerified("no certificate")
    return Signed(content=content, certificates=tuple(certificates(printed)))


def trusted_by_openssl(certificate: Path, ca_directory: Path) -> None:
    """Chain and dates by `openssl verify`. Raises: NotVerified."""
    _openssl("verify", "-CApath", str(ca_directory), str(certificate), data=b"")


def trusted(certificate: x509.Certificate, ca_directory: Path) -> None:
    """Issued by an authority of the hashed directory, and valid today. Raises: NotVerified."""
    now = datetime.now(UTC)
    first, last = validity(certificate)
    if not first <= now <= last:
        raise NotVerified("certificate has expired or is not yet valid")
    for path in sorted(ca_directory.glob("*.[0-9]")):
        if issued(certificate, x509.load_pem_x509_certificate(path.read_bytes())):
            return
    raise NotVerified("unable to get local issuer certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    tag: int
    content: bytes
    whole: bytes

    def children(self) -> list["_Node"]:
        return list(_nodes(self.content))


def _nodes(data: bytes) -> Iterator[_Node]:
    position = 0
    while position < len(data):
        start, tag = position, data[position]
        size, position = data[position + 1], position + 2
        if size == 0x80:
            raise NotVerified("indefinite length: BER, not DER")
        if size > 0x80:
            octets = size & 0x7F
            size = int.from_bytes(data[position : position + octets], "big")
            position += octets
        if position + size > len(data):
            raise NotVerified("DER is cut short")
        yield _Node(tag=tag, content=data[position : position + size], whole=data[start : position + size])
        position += size


def has_legacy_text(name: x509.Name) -> bool:
    """Whether a DN holds a T61 or BMP string with more than ASCII, at which the receiver dies."""
    relatives = next(_nodes(name.public_bytes())).children()
    texts = [pair.children()[1] for relative in relatives for pair in relative.children()]
    return any(text.tag in (0x14, 0x1E) and not text.content.replace(b"\0", b"").isascii() for text in texts)


def verify(message: bytes) -> Signed:
    """Verification without OpenSSL's command. Raises: NotVerified."""
    content, der = _split(message)
    try:
        certificates, signer = _signed_data(der)
    except (IndexError, ValueError) as error:
        raise NotVerified(f"not a PKCS#7 signature: {error}") from error
    _check(content, certificates, signer)
    return Signed(content=content, certificates=certificates)


def _split(message: bytes) -> tuple[bytes, bytes]:
    """Signed part in canonical form, and the DER of the signature."""
    lines = [line.rstrip(b"\r") for line in message.split(b"\n")]
    if b"" not in lines:
        raise NotVerified("no header")
    header = re.sub(rb"\n[ \t]+", b" ", b"\n".join(lines[: lines.index(b"")]))
    match = re.search(rb'(?im)^content-type:\s*multipart/signed\b.*\bboundary="?([^";\n]+)"?', header)
    if match is None:
        raise NotVerified("not multipart/signed")
    mark = b"--" + match[1]
    places = [number for number, line in enumerate(lines) if line.rstrip() in (mark, mark + b"--")]
    if len(places) < 3:
        raise NotVerified("a part is missing")
    content = b"\r\n".join(lines[places[0] + 1 : places[1]])
    part = lines[places[1] + 1 : places[2]]
    try:
        return content, base64.b64decode(b"".join(part[part.index(b"") + 1 :]), validate=True)
    except (ValueError, binascii.Error) as error:
        raise NotVerified("the signature part is not base64") from error


def _signed_data(der: bytes) -> tuple[tuple[x509.Certificate, ...], list[_Node]]:
    outer = next(_nodes(der)).children()
    if outer[0].content != _SIGNED_DATA:
        raise NotVerified("not signed data")
    parts = outer[1].children()[0].children()
    bag = next((part for part in parts if part.tag == 0xA0), None)
    if bag is None:
        raise NotVerified("no certificate")
    certificates = tuple(x509.load_der_x509_certificate(node.whole) for node in bag.children() if node.tag == 0x30)
    return certificates, parts[-1].children()[0].children()


def _check(content: bytes, certificates: tuple[x509.Certificate, ...], signer: list[_Node]) -> None:
    if signer[1].tag != 0x30:
        raise NotVerified("signer named by key identifier")
    serial = int.from_bytes(signer[1].children()[1].content, "big")
    certificate = next((entry for entry in certificates if entry.serial_number == serial), None)
    digest = _DIGESTS.get(signer[2].children()[0].content.hex())
    if certificate is None or digest is None:
        raise NotVerified("the signer's certificate is missing, or its digest is unknown")
    covered = content
    attributes = signer[3] if signer[3].tag == 0xA0 else None
    if attributes is not None:
        pairs = [node.children() for node in attributes.children()]
        told = next((pair[1].children()[0].content for pair in pairs if pair[0].content == _MESSAGE_DIGEST), None)
        hasher = hashes.Hash(digest)
        hasher.update(content)
        if told != hasher.finalize():
            raise NotVerified("digest failure")
        covered = b"\x31" + attributes.whole[1:]
    _check_signature(certificate, signer[5 if attributes else 4].content, covered, digest)


def _check_signature(
    certificate: x509.Certificate, signature: bytes, covered: bytes, digest: hashes.HashAlgorithm
) -> None:
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, covered, padding.PKCS1v15(), digest)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, covered, ec.ECDSA(digest))
        else:
            raise NotVerified("neither an RSA nor an EC key")
    except InvalidSignature as error:
        raise NotVerified("signature failure") from error
