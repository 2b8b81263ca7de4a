"""Signing as APEL's receiver wants it: clear-signed S/MIME with the signer's certificate alone.

The signature is a DER PKCS#7 from `cryptography`; the text around it is put together here, because
the library's own S/MIME writer goes through Python's e-mail classes (a tenth as fast; `openssl` as
a child process is no faster).

Spec: RFC 8551 section 3.5.3 (multipart/signed); the receiver as measured: SSM 4.0.0, OpenSSL.
"""

from __future__ import annotations

import base64
import re
from functools import cached_property
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from publisher.transports import pkcs7_writer
from publisher.transports.credentials.host_certificate import HostCertificate, authn_dn, slash_dn

# Words anywhere in the text, as in a job's name, by which messages count as encrypted (SSM 4.0.0).
TAKEN_FOR_ENCRYPTED: Final = (b"application/pkcs7-mime", b"application/x-pkcs7-mime")
# Begins with bytes that have no case, so that the search is quick.
_THEIR_END: Final = re.compile(rb"7-[mM][iI][mM][eE]")

_PLAIN: Final = bytes([0x09, 0x0A, 0x0D, *range(0x20, 0x7F)])
_OPTIONS: Final = ("DetachedSignature", "Binary", "NoCapabilities")
# The header block that `openssl smime -sign -text` puts inside the signed part; without it the
# receiver finds no body.
_INNER: Final = b"Content-Type: text/plain\n\n"
# An EC signature is a few bytes shorter or longer each time: two integers of up to 66 bytes, each
# with up to 3 leading bytes of play, in base64 and with its line ends.
_PLAY: Final = 24


class UnsafePayload(ValueError):
    """A payload that must not leave."""


def unsafe_reason(payload: bytes) -> str:
    """Why a payload must never leave, or '': what would stop or blind APEL's receiver for all."""
    if not payload or payload.isspace():
        return "the payload is empty, and an empty message stops the receiver"
    if not payload.isascii():
        return "the payload is not plain ASCII, and one such byte stops the receiver for all sites"
    if strange := payload.translate(None, _PLAIN):
        return f"the payload holds the control character 0x{strange[0]:02x}"
    if b"\r" in payload and b"\r" in payload.replace(b"\r\n", b"\n"):
        return "the payload holds a carriage return that does not end a line"
    # Rare, and quicker to look for than to lower a copy and look there.
    if _THEIR_END.search(payload):
        lowered = payload.lower()
        for words in TAKEN_FOR_ENCRYPTED:
            if words in lowered:
                why = "which the receiver takes for an encrypted message"
                return f"the payload holds the words {words.decode()}, {why}"
    return ""


class Signer(HostCertificate):
    """The host certificate and its key, with which messages are signed."""

    @cached_property
    def _around(self) -> int:
        """How many bytes come to a payload at most."""
        trial = b"."
        return len(self.sign(trial)) - len(trial) + _PLAY

    def subject_slash(self) -> str:
        """The subject as GOCDB and APEL's list of senders spell it: /DC=org/O=site/CN=host."""
        return slash_dn(self.subject)

    def subject_authn(self) -> str:
        """The subject as the AMS authentication service looks it up: CN=host,O=site,DC=org."""
        return authn_dn(self.subject)

    def describe(self) -> str:
        """File, subject, issuer and end of the certificate, for error messages."""
        issuer = slash_dn(self._certificate.issuer)
        valid = f"valid until {self._ends:%Y-%m-%d %H:%M} UTC"
        return f"{self._path}: {self.subject_slash()}, issued by {issuer}, {valid}"

    def sign(self, payload: bytes) -> bytes:
        """The payload as a signed message, pure ASCII.

        What is signed has CRLF line ends (RFC 8551 section 3.1.1). What is sent has LF, as every
        SSM sender's text has: the receiver's OpenSSL restores them, it is shorter, and its length
        does not depend on the number of lines.

        Raises: UnsafePayload for a payload that must not leave.
        """
        if why := unsafe_reason(payload):
            raise UnsafePayload(why)
        # To look for one byte costs nothing; to replace what is not there, as much as signing.
        body = payload.replace(b"\r\n", b"\n") if b"\r" in payload else payload
        signature = self._signature((_INNER + body).replace(b"\n", b"\r\n"))
        digest = sha256(signature).hexdigest().upper().encode()
        boundary = b"----" + digest[:32]
        while boundary in body:
            # As likely as finding a collision, but a wrong guess here would lose a message
            digest = sha256(digest).hexdigest().upper().encode()
            boundary = b"----" + digest[:32]
        return b"".join(
            (
                b"MIME-Version: 1.0\nContent-Type: multipart/signed; "
                b'protocol="application/x-pkcs7-signature"; micalg="sha-256"; '
                b'boundary="%b"\n\nThis is an S/MIME signed message\n\n--%b\n'
                % (boundary, boundary),
                _INNER,
                body,
                b"\n--"
                + boundary
                + b'\nContent-Type: application/x-pkcs7-signature; name="smime.p7s"\n'
                b"Content-Transfer-Encoding: base64\nContent-Disposition: attachment; "
                b'filename="smime.p7s"\n\n',
                base64.encodebytes(signature),
                b"\n--" + boundary + b"--\n",
            )
        )

    def signed_size(self, payload_length: int) -> int:
        """The length of the signed message at most: exact for RSA, a few bytes more for EC."""
        return payload_length + self._around

    def _signature(self, content: bytes) -> bytes:
        pkcs7 = pkcs7_writer()
        builder = pkcs7.PKCS7SignatureBuilder().set_data(content)
        builder = builder.add_signer(self._certificate, self._key, hashes.SHA256())
        options = [pkcs7.PKCS7Options[name] for name in _OPTIONS]
        signature: bytes = builder.sign(Encoding.DER, options)
        return signature
