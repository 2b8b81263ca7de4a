"""Who may insert what: DNs as nginx hands them on, and the lines of the authz file.

Measured on luts3-service.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cryptography import x509

from tests.fake_sgas.failures import Crash, Generation
from tests.support.pki import SHORT_NAMES

Spelling = Literal["comma", "slash"]
"""comma: RFC 2253, nginx from 1.11.6; slash: legacy."""

_SHORT = {oid: short for short, oid in SHORT_NAMES.items()}
_CHECK_DEPTH = 2


def nginx_dn(name: x509.Name, spelling: Spelling) -> str:
    """The subject in nginx's header."""
    if spelling == "slash":
        # OpenSSL of today escapes a slash or a plus inside a value; SGAS does not undo it.
        escaped = [(_SHORT[part.oid], re.sub(r"([/+])", r"\\\1", str(part.value))) for part in name]
        return "".join(f"/{short}={_octets(value, chr(92) + 'x')}" for short, value in escaped)
    relatives = []
    for relative in reversed(list(name.rdns)):
        parts = [f"{_SHORT[part.oid]}={_octets(_rfc2253(str(part.value)), chr(92))}" for part in relative]
        relatives.append("+".join(parts))
    return ",".join(relatives)


def _rfc2253(value: str) -> str:
    value = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    value = re.sub(r"^([ #])", r"\\\1", value)
    return re.sub(r" $", r"\\ ", value)


def _octets(value: str, mark: str) -> str:
    return "".join(chr(octet) if 32 <= octet < 127 else f"{mark}{octet:02X}" for octet in value.encode())


@dataclass(slots=True)
class Authz:
    """The authz file: actions such as `jobinsert` or `jobinsert:machine_name=a;b`, by DN, compared as exact strings."""

    generation: Generation
    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def allow(self, dn: str, actions: Iterable[str]) -> None:
        self.lines[dn] = (*self.lines.get(dn, ()), *actions)

    def may_insert(self, dn: str) -> bool:
        """Whether there is a `jobinsert` right at all. Raises: Crash for a subject whose CN is not a host name."""
        if not any(action.partition(":")[0] == "jobinsert" for action in self.lines.get(dn, ())):
            return False
        host_name(dn, self.generation)
        return True

    def may_insert_for(self, dn: str, machines: Iterable[str]) -> bool:
        """Whether every one of these machine names is covered."""
        rights = [action.partition(":")[2] for action in self.lines[dn] if action.partition(":")[0] == "jobinsert"]
        if "all" in rights:
            return True
        named = {name for right in rights for name in _qualifiers(right).get("machine_name", ())}
        labels = host_name(dn, self.generation).split(".") if host_name(dn, self.generation) else []
        tail = labels[-min(_CHECK_DEPTH, len(labels)) :]
        return all(name in named or (bool(tail) and name.split(".")[-len(tail) :] == tail) for name in machines)


def host_name(dn: str, generation: Generation) -> str:
    """The CN's host name; empty where the release does not understand the spelling. Raises: Crash."""
    name: str | None = None
    if dn.startswith("/"):
        *_, before, last = dn.split("/")
        if before == "CN=host":
            name = last
        elif last.startswith("CN="):
            name = last[3:]
    elif generation == "R":
        return ""
    else:
        names = [part[3:] for part in dn.split(",") if part.startswith("CN=")]
        name = names[-1] if names else None
    if name is None and generation == "H":
        raise Crash("NameError", "name 'identity' is not defined")  # in the message that it wanted to give
    if name is None:
        raise Crash("ValueError", f"Could not extract FQDN from X509 identity ({dn})")
    if "." not in name:
        raise Crash("ValueError", f"Extracted FQDN is not an FQDN ({name})")
    return name


def _qualifiers(text: str) -> Mapping[str, list[str]]:
    name, _, values = text.partition("=")
    return {name: values.split(";")}
