"""FQANs, taken apart as the APEL server does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fqan:
    """VO, group and role of an FQAN. `role` keeps its `Role=` and has no leading slash; None where there is none."""

    vo: str
    group: str | None
    role: str | None


def parse_fqan(text: str) -> Fqan:
    """What APEL 2.5.0 makes of an FQAN (measured): the first of several at `;`, the role wherever `role=` stands.

    Without a leading slash the whole text is the VO. An FQAN that begins with a role names none (the server would take
    the role for it): its `vo` is '', and it is never told.
    """
    first = text.split(";", 1)[0].strip()
    if not first.startswith("/"):
        return Fqan(vo=first, group=None, role=None)
    parts = first[1:].split("/")
    at = next((place for place, part in enumerate(parts) if part.lower().startswith("role=")), None)
    group_parts = parts if at is None else parts[:at]
    return Fqan(
        vo="" if at == 0 else parts[0],
        group="/" + "/".join(group_parts) if group_parts else None,
        role=None if at is None else parts[at],
    )
