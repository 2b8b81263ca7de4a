"""ARGO messaging (AMS), APEL's way in: the options of such a target; `transport` is loaded later.

Spec: argo-messaging 1.7.0 and argo-api-authn, HTTP interfaces v1.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import urlsplit

from publisher.transports.base import Destination, Endpoint, OneOff, StepText
from publisher.transports.http.options import HttpOptions, https_url

# What the service itself accepts in a path (anything else is 400 before the token is examined).
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_TEST_HOSTS: Final = ("msg-devel.",)
_HOST: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """The keys of a target of the type `ams`."""

    url: str = field(metadata={"help": "where AMS is, https://HOST[:PORT]"})
    auth_url: str = field(
        default="", metadata={"help": "where tokens come from; default: the host of url, port 8443"}
    )
    service_host: str = field(
        default="", metadata={"help": "the host's name in the token path; default: the host of url"}
    )
    project: str = field(default="accounting", metadata={"help": "AMS project"})
    topic: str = field(default="gLite-APEL", metadata={"help": "AMS topic"})
    batch_bytes: int = field(
        default=950_000, metadata={"help": "most characters of base64 data in one message"}
    )
    read_timeout_s: float = field(
        default=60, metadata={"help": "seconds of silence to bear (the broker may take 30)"}
    )

    one_off: ClassVar[OneOff | None] = OneOff(
        key="url",
        help="send to this AMS once, instead of to configured targets",
        format="car",
        options=("topic", "project"),
    )
    step_texts: ClassVar[Mapping[str, StepText]] = {
        "token": StepText(
            "AMS takes messages only with one, which authn gives for the certificate",
            "give the operators of AMS the DN under `subject`, and this answer",
        ),
        "AMS": StepText(
            "records are handed over there",
            "see that `url` of the target is right, and ask again later",
        ),
        "right to publish": StepText(
            "AMS knows us, but accepts messages only from users listed for the topic",
            "ask the operators of AMS to let this host's user publish to the topic",
        ),
    }

    def destination(self) -> Destination:
        """The queue (topic), which does not show whose messages it holds."""
        return Destination(
            place=(self._service(), self.project, self.topic), keys="url, project and topic"
        )

    def leads_to(self) -> str:
        return f"{self._service()}, project {self.project}, topic {self.topic}"

    def _service(self) -> str:
        return self.url.lower().rstrip("/").removesuffix(":443")

    def doubts(self) -> tuple[tuple[str, str], ...]:
        if any(host in self.url for host in _TEST_HOSTS):
            advice = "write https://msg.argo.grnet.gr for real accounting"
            return ((f"{self.url} is the test instance", advice),)
        return ()

    def problems(self) -> list[str]:
        """Everything that cannot work in these options, for people; [] when all is well."""
        found = [
            f"`{key}`: {value!r} is not a name for AMS, which takes letters, digits, _ and -"
            for key, value in (("project", self.project), ("topic", self.topic))
            if not _NAME.fullmatch(value)
        ]
        if self.service_host and not _HOST.fullmatch(self.service_host):
            what = f"{self.service_host!r} must be a host name without a port"
            found.append(f"`service_host`: {what}")
        if not 16_384 <= self.batch_bytes <= 1_499_000:
            what = "is not between 16384 and 1499000, the most that AMS stores"
            found.append(f"`batch_bytes`: {self.batch_bytes} {what}")
        return [*found, *self.limit_problems()]

    def endpoints(self, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
        """AMS, and the service that gives out its tokens. Raises: ConfigError for wrong URLs."""
        url = https_url(self.url, "url")
        auth_url = f"https://{urlsplit(url).hostname or ''}:8443"
        if self.auth_url:
            auth_url = https_url(self.auth_url, "auth_url")
        return self.endpoint("AMS", url, environment), self.endpoint("authn", auth_url, environment)
