"""Receiver keys as jura-ng spells them in its summaries and sync.

A site that goes on in the middle of a month with another spelling is counted twice, because APEL keeps the rows under the
old keys (users facts, 0.4 and 0.5). CAR never had these spellings: there APEL takes group and role from the FQAN.
"""

from __future__ import annotations

from typing import Final

# Interfaces whose URL jura-ng writes alone, and what it strips off the names of the others, as a set of characters.
_BARE: Final = ("org.ogf.glue.emies.activitycreation", "org.nordugrid.gridftpjob")
_STRIPPED: Final = "org.nordugrid."


def jura_group(vo: str, group: str) -> str:
    """The group: never with a capability, `/` and the VO where no FQAN tells one."""
    return group.partition("/Capability=")[0] or f"/{vo}"


def jura_role(role: str) -> str:
    """The role: with a leading slash, but without one where there is none."""
    return f"/{role}" if role else "Role=NULL"


def jura_submit_host(interface: str, url: str) -> str:
    """SubmitHost: the interface's short name before the URL, but for its oldest two.

    jura-ng takes these characters off the name, not the prefix: `org.nordugrid.internal` is `ternal` there.
    """
    if not interface or interface in _BARE:
        return url
    return f"{interface.lstrip(_STRIPPED)}:{url}"
