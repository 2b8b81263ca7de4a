"""SGAS, the accounting service of NeIC and SweGrid: a target's options; `transport` comes later.

Spec: luts3-service 3.8.1 and its head of development.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from publisher.transports.base import Endpoint, OneOff, StepText, batch_bytes_problem
from publisher.transports.http.options import HttpOptions, https_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """The keys of a target of the type `sgas`."""

    url: str = field(
        metadata={
            "help": "https://HOST:PORT/sgas, or the insert URL below it, https://HOST:PORT/sgas/ur"
        }
    )
    # The shipped nginx takes 2 MiB and not a byte more; where it was raised, this may be.
    batch_bytes: int = field(
        default=2_000_000, metadata={"help": "most bytes in one message; nginx takes 2097152"}
    )
    read_timeout_s: float = field(
        default=90, metadata={"help": "seconds of silence to bear (nginx bears 60)"}
    )

    one_off: ClassVar[OneOff | None] = OneOff(
        key="url", help="send to this SGAS once", format="ogf-ur"
    )
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

    def problems(self) -> list[str]:
        """Everything that cannot work in these options, for people; [] when all is well."""
        found = []
        try:
            parts = urlsplit(self.url)
            if parts.query or parts.fragment:
                found.append("`url`: give https://HOST:PORT/sgas, without query or fragment")
        except ValueError as error:
            shown = "" if "@" in self.url else f"{self.url!r} "  # it may hold a password
            found.append(f"`url`: {shown}is no URL ({error})")
        if why := batch_bytes_problem(self.batch_bytes):
            found.append(f"`batch_bytes`: {why}")
        return [*found, *self.limit_problems()]

    def leads_to(self) -> str:
        return self.url.lower().rstrip("/")

    def endpoints(self, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
        parts = urlsplit(self.url)
        return (
            self.endpoint(
                "SGAS", https_url(f"{parts.scheme}://{parts.netloc}", "url"), environment
            ),
        )
