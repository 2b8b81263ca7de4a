"""This host's DN as an SGAS server may see it: nginx hands it on in one of two spellings, and SGAS compares it byte for byte.

Spec: RFC 2253 as OpenSSL writes it (nginx 1.11.6 and newer), and OpenSSL's one-line form (older, or configured so).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509

from publisher.delivery.hostcert import slash_dn

_SPECIAL: Final = frozenset(',+"\\<>;')


@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """One DN: `comma` is CN=host,O=site,DC=org and `slash` is /DC=org/O=site/CN=host, both pure ASCII."""

    comma: str
    slash: str


def spellings(name: x509.Name) -> Spellings:
    return Spellings(comma=_comma_dn(name), slash=_hex_escaped(slash_dn(name), "\\x"))


def _comma_dn(name: x509.Name) -> str:
    """Last part first, several values of one part joined with `+`, everything outside ASCII byte by byte as `\\C3\\85`."""
    parts = []
    for relative in reversed(name.rdns):
        values = []
        for part in relative:
            # The short name as the slash form has it: OpenSSL writes both with the same table.
            short, _, _ = slash_dn(x509.Name([part])).removeprefix("/").partition("=")
            values.append(f"{short}={_escaped(str(part.value))}")
        parts.append("+".join(values))
    return ",".join(parts)


def _escaped(value: str) -> str:
    last = len(value) - 1
    pieces = []
    for at, letter in enumerate(value):
        edge = (letter == " " and at in (0, last)) or (letter == "#" and at == 0)
        pieces.append(f"\\{letter}" if letter in _SPECIAL or edge else letter)
    return _hex_escaped("".join(pieces), "\\")


def _hex_escaped(text: str, mark: str) -> str:
    return "".join(chr(octet) if 0x20 <= octet < 0x7F else f"{mark}{octet:02X}" for octet in text.encode())
