"""This host's DN as an SGAS server may see it: nginx hands it on in one of two spellings, and SGAS compares it byte for byte.

Spec: RFC 2253 as OpenSSL writes it (nginx 1.11.6 and newer), and OpenSSL's one-line form (older, or configured so), in which
OpenSSL 1.1.1 and newer put a backslash before `/` and `+` (`/CN=host\\/ce.example.org`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from publisher.transports.credentials.host_certificate import slash_dn

_SPECIAL: Final = frozenset(',+"\\<>;')
_ONE_LINE_SPECIAL: Final = frozenset("/+")
_COMMON_NAME: Final = re.compile(r"(?:^|(?<!\\),)CN=((?:[^,\\]|\\.)*)")
_CHECK_DEPTH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectNames:
    """One DN: `comma` is CN=host,O=site,DC=org and `slash` is /DC=org/O=site/CN=host, both pure ASCII."""

    comma: str
    slash: str

    @property
    def host(self) -> str:
        """The CN, for which and whose domain SGAS lets a certificate insert; '' when there is none."""
        found = _COMMON_NAME.findall(self.comma)
        return found[-1].removeprefix("host/") if found else ""


def subject_names(name: x509.Name) -> SubjectNames:
    return SubjectNames(comma=_comma_dn(name), slash=_slash_dn(name))


def in_domain(machine: str, host: str) -> bool:
    """Whether a plain `jobinsert` of a certificate for this host covers a MachineName: their last two labels are the same.

    As SGAS compares them, letter by letter; its administrator may have set another depth, or allowed a machine by its name.
    """
    wanted = [label for label in host.split(".") if label][-_CHECK_DEPTH:]
    return bool(wanted) and [label for label in machine.split(".") if label][-len(wanted) :] == wanted


def _comma_dn(name: x509.Name) -> str:
    """Last part first, several values of one part joined with `+`, everything outside ASCII byte by byte as `\\C3\\85`."""
    relatives = [
        "+".join(f"{_short(part)}={_escaped(str(part.value))}" for part in relative) for relative in reversed(name.rdns)
    ]
    return ",".join(relatives)


def _slash_dn(name: x509.Name) -> str:
    return "".join(f"/{_short(part)}={_one_line(str(part.value))}" for part in name)


def _short(part: x509.NameAttribute[str | bytes]) -> str:
    """The short name as GOCDB's slash form has it: OpenSSL writes all forms with the same table."""
    return slash_dn(x509.Name([part])).removeprefix("/").partition("=")[0]


def _one_line(value: str) -> str:
    return _hex_escaped("".join(f"\\{letter}" if letter in _ONE_LINE_SPECIAL else letter for letter in value), "\\x")


def _escaped(value: str) -> str:
    last = len(value) - 1
    pieces = []
    for at, letter in enumerate(value):
        edge = (letter == " " and at in (0, last)) or (letter == "#" and at == 0)
        pieces.append(f"\\{letter}" if letter in _SPECIAL or edge else letter)
    return _hex_escaped("".join(pieces), "\\")


def _hex_escaped(text: str, mark: str) -> str:
    return "".join(chr(octet) if 0x20 <= octet < 0x7F else f"{mark}{octet:02X}" for octet in text.encode())
