"""Receiver keys as jura-ng spells them in its summaries and sync.

A site that goes on in the middle of a month with another spelling is counted twice, because APEL keeps the rows under the
old keys (users facts, 0.4 and 0.5). CAR never had these spellings: there APEL takes group and role from the FQAN.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

# Interfaces whose URL jura-ng writes alone, and what it strips off the names of the others, as a set of characters.
_BARE: Final = ("org.ogf.glue.emies.activitycreation", "org.nordugrid.gridftpjob")
_STRIPPED: Final = "org.nordugrid."
_PART: Final = re.compile(r"/[-\w.]+")
_ROLE: Final = "/Role="


@lru_cache(maxsize=4096)
def read_by_jura(fqan: str) -> tuple[str, str]:
    """What jura-ng makes of an FQAN: its group, and its role as `/Role=x`; '' where it sees none.

    It stops at the first character that is no letter, digit, `-`, `_` or `.`, and knows a role by `/Role=` only: the group of
    `/atlas/my group/Role=x` is `/atlas/my`, that of `/atlas/Capability=NULL` is `/atlas/Capability`.
    """
    at = 0
    while (part := _PART.match(fqan, at)) and (at == 0 or not fqan.startswith(_ROLE, at)):
        at = part.end()
    name = _PART.match(f"/{fqan[at + len(_ROLE) :]}") if at and fqan.startswith(_ROLE, at) else None
    return fqan[:at], f"{_ROLE}{name[0][1:]}" if name else ""


def jura_group_and_role(vo: str, group: str, role: str, fqan: str) -> tuple[str, str]:
    """VOGroup and VORole of a job: of its main FQAN, or of a rule of the site where that is ''.

    Of a job without a VO neither is told, as its VO is not.
    """
    if not vo:
        return "", ""
    if fqan:
        group, role = read_by_jura(fqan)
    elif role:
        role = f"/{role}"
    return group or f"/{vo}", role or "Role=NULL"


def jura_submit_host(interface: str, url: str) -> str:
    """SubmitHost: the interface's short name before the URL, but for its oldest two.

    jura-ng takes these characters off the name, not the prefix: `org.nordugrid.internal` is `ternal` there.
    """
    if not interface or interface in _BARE:
        return url
    return f"{interface.lstrip(_STRIPPED)}:{url}"
