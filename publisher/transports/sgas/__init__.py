"""SGAS, the accounting service of NeIC and SweGrid: the options of such a target. `transport` is loaded when one is made.

Spec: luts3-service 3.8.1 and its head of development.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import urlsplit

from publisher.transports.base import Endpoint, OneOff, StepText, own_options
from publisher.transports.http.options import HttpOptions, https_url

_BATCH_BYTES: Final = range(16_384, 64_000_001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """The keys of a target of the type `sgas`."""

    url: str = field(metadata={"help": "https://HOST:PORT/sgas, or the insert URL below it, https://HOST:PORT/sgas/ur"})
    # The shipped nginx takes 2 MiB and not a byte more; where it was raised, this may be.
    batch_bytes: int = field(default=2_000_000, metadata={"help": "most bytes in one message; nginx takes 2097152"})
    read_timeout_s: float = field(default=90, metadata={"help": "seconds of silence to bear (nginx bears 60)"})

    one_off: ClassVar[OneOff | None] = OneOff(key="url", help="send to this SGAS once", format="ogf-ur")
    step_texts: ClassVar[Mapping[str, StepText]] = {
        "certificate": StepText(
            "services know this host by it, and messages are signed with it",
            "give the administrator of SGAS the DN under `subject`, and this answer",
        ),
        "services": StepText(
            "the service must be one that takes job records",
            "ask the administrator of SGAS for its address, and correct `url` of the target",
        ),
        "right to insert": StepText(
            "SGAS takes records only from those whom its administrator lists",
            "ask the administrator of SGAS for the right jobinsert for the DN under `subject`",
        ),
    }


def problems(options: Options) -> list[str]:
    """Everything that cannot work in these options, for people; an empty list when all is well."""
    found = []
    try:
        parts = urlsplit(options.url)
        if parts.query or parts.fragment:
            found.append("`url`: give https://HOST:PORT/sgas, without query or fragment")
    except ValueError as error:
        shown = "" if "@" in options.url else f"{options.url!r} "  # it may hold a password
        found.append(f"`url`: {shown}is no URL ({error})")
    if options.batch_bytes not in _BATCH_BYTES:
        found.append(f"`batch_bytes`: {options.batch_bytes} is not between {_BATCH_BYTES[0]} and {_BATCH_BYTES[-1]}")
    return [*found, *options.limit_problems()]


def endpoints(options: object, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The one service. Raises: ConfigError for a URL that cannot work."""
    mine = own_options(options, Options)
    parts = urlsplit(mine.url)
    return (mine.endpoint("SGAS", https_url(f"{parts.scheme}://{parts.netloc}", "url"), environment),)
