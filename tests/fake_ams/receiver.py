"""The far end's receiver: from a stored message to the payload and its signer, or the rule that it broke.

Spec: SSM 4.0.0 as measured. Nothing of this reaches the sender in the field, so tests must ask here.
"""

import base64
import binascii
import quopri
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.fake_ams import signature
from tests.fake_ams.storage import Message
from tests.support.pki import slash_dn

CRASHES = frozenset(
    {
        "corrupt record",
        "attributes without empaid",
        "no data",
        "wrong base64 padding",
        "not ASCII",
        "DN in a legacy text type",
        "inner part in base64",
        "inner part not UTF-8",
    }
)
"""Rules whose breach ends the receiver with the message unacknowledged: it comes back and blocks everybody."""

_ENCRYPTED = ("application/pkcs7-mime", "application/x-pkcs7-mime")
_ENCODING = re.compile(r"^content-transfer-encoding:\s*(\S+)", re.IGNORECASE | re.MULTILINE)


class Refused(Exception):
    """The receiver puts the message aside, or dies of it (`crashes`); `rule` names why."""

    def __init__(self, rule: str, detail: str = "") -> None:
        super().__init__(f"{rule}: {detail}" if detail else rule)
        self.rule = rule

    @property
    def crashes(self) -> bool:
        return self.rule in CRASHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An accepted message: payload with LF line ends, signer in slash form, header of the inner part."""

    text: str
    signer: str
    inner_header: str
    empaid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Accepts what an authority of `ca_directory` stands for and, unless `allowed` is None, only these slash DNs."""

    ca_directory: Path
    allowed: frozenset[str] | None = None
    with_openssl: bool = False

    @classmethod
    def create(
        cls, ca_directory: Path, *, allowed: Iterable[str] | None = None, with_openssl: bool | None = None
    ) -> "Receiver":
        """By default with the openssl command where there is one, else by an own verification."""
        return cls(
            ca_directory=ca_directory,
            allowed=None if allowed is None else frozenset(allowed),
            with_openssl=signature.have_openssl() if with_openssl is None else with_openssl,
        )

    def take(self, message: Message) -> Verdict:
        """What the loader would be handed. Raises: Refused."""
        if message.corrupt:
            raise Refused("corrupt record")
        if message.attributes and "empaid" not in message.attributes:
            raise Refused("attributes without empaid")
        return self.open(decode(message.data), empaid=message.attributes.get("empaid", "noid"))

    def open(self, text: str, *, empaid: str = "noid") -> Verdict:
        """The same for the text of a signed message. Raises: Refused."""
        if not text.strip():
            raise Refused("blank")
        if any(name in text for name in _ENCRYPTED):
            raise Refused("taken for encrypted")
        try:
            signed = (signature.verify_with_openssl if self.with_openssl else signature.verify)(text.encode())
        except signature.NotVerified as error:
            raise Refused("not verified", str(error)) from error
        signer = self._signer(signed.certificates[0])
        header, body = _inner(signed.content)
        return Verdict(text=body, signer=signer, inner_header=header, empaid=empaid)

    def _signer(self, certificate: x509.Certificate) -> str:
        """The first certificate of the bag is the identity, whoever signed."""
        try:
            if self.with_openssl:
                with tempfile.TemporaryDirectory() as directory:
                    path = Path(directory, "signer.pem")
                    path.write_bytes(certificate.public_bytes(Encoding.PEM))
                    signature.trusted_by_openssl(path, self.ca_directory)
            else:
                signature.trusted(certificate, self.ca_directory)
        except signature.NotVerified as error:
            raise Refused("signer not trusted", str(error)) from error
        if signature.has_legacy_text(certificate.subject):
            raise Refused("DN in a legacy text type")
        dn = slash_dn(certificate.subject)
        if self.allowed is not None and dn not in self.allowed:
            raise Refused("DN not allowed", dn)
        return dn


def decode(data: str) -> str:
    """The text of a message from its base64 data. Raises: Refused."""
    if not data:
        raise Refused("no data")
    try:
        raw = base64.b64decode(data, validate=False)
    except (binascii.Error, ValueError) as error:
        raise Refused("wrong base64 padding", str(error)) from error
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise Refused("not ASCII", str(error)) from error


def _inner(content: bytes) -> tuple[str, str]:
    """Header and body of the signed part; whatever stands before the first blank line passes for the header."""
    header, blank, body = content.decode("ascii").replace("\r\n", "\n").partition("\n\n")
    if not blank:
        raise Refused("no inner header")
    match = _ENCODING.search(header)
    encoding = match[1].lower() if match else ""
    if encoding == "base64":
        raise Refused("inner part in base64")
    if encoding == "quoted-printable":
        try:
            body = quopri.decodestring(body.encode("ascii")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused("inner part not UTF-8", str(error)) from error
    return header, body
