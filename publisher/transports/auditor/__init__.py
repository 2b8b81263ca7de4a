"""AUDITOR, the accounting service of the University of Freiburg: the options of such a target.

Spec: AUDITOR 0.11.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from publisher.transports.base import Endpoint, StepText, batch_bytes_problem
from publisher.transports.http.options import HttpOptions, https_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """The keys of a target of the type `auditor`."""

    url: str = field(
        metadata={
            "help": "https://HOST:PORT with mutual TLS, or http:// in the local network",
            "plain_http": True,
        }
    )
    # actix takes 2 MiB of JSON
    batch_bytes: int = field(
        default=2_000_000, metadata={"help": "most bytes in one request; AUDITOR takes 2097152"}
    )
    encode_names: bool = field(
        default=False, metadata={"help": "percent-encode texts, for AUDITOR before 0.7"}
    )
    # What meta data is called in this AUDITOR, '' for none. Defaults: auditor-apel-plugin's.
    meta_site: str = field(
        default="site_id", metadata={"help": "what the site is called in the meta data"}
    )
    meta_submit_host: str = field(
        default="headnode", metadata={"help": "what the submit host is called in the meta data"}
    )
    meta_user: str = field(
        default="subject", metadata={"help": "what the user is called in the meta data"}
    )
    meta_fqan: str = field(
        default="voms", metadata={"help": "what the FQAN is called in the meta data"}
    )
    meta_vo: str = field(default="vo", metadata={"help": "what the VO is called in the meta data"})
    meta_local_user: str = field(
        default="user_id", metadata={"help": "what the local user is called in the meta data"}
    )
    meta_local_group: str = field(
        default="group_id", metadata={"help": "what the local group is called in the meta data"}
    )
    meta_queue: str = field(
        default="queue", metadata={"help": "what the queue is called in the meta data"}
    )
    meta_project: str = field(
        default="project", metadata={"help": "what the project is called in the meta data"}
    )

    formats: ClassVar[Collection[str]] = ("auditor-record",)
    step_texts: ClassVar[Mapping[str, StepText]] = {
        "service": StepText(
            "records are handed over there",
            "see that `url` of the target is right and that AUDITOR runs",
        ),
        "right to insert": StepText(
            "AUDITOR with access rules takes records only from those who may write",
            "ask its administrator to put the CN of the certificate into `write_access_cn`",
        ),
    }

    def meta_names(self) -> Mapping[str, str]:
        """What our records call meta data, and what it is called there."""
        named = [one for one in fields(self) if one.name.startswith("meta_")]
        return {str(one.default): str(getattr(self, one.name)) for one in named}

    def renamed(self) -> Mapping[str, str]:
        return {ours: theirs for ours, theirs in self.meta_names().items() if ours != theirs}

    def doubts(self) -> tuple[tuple[str, str], ...]:
        if self.url.startswith("http://"):
            found = f"records go to {self.url} unencrypted, and AUDITOR cannot know who sends them"
            advice = "write https:// where AUDITOR has `use_tls: true`"
            return ((found, f"{advice}, unless the network is your own"),)
        return ()

    def problems(self) -> list[str]:
        """Everything that cannot work in these options, for people; [] when all is well."""
        found = self.limit_problems()
        if why := batch_bytes_problem(self.batch_bytes):
            found.append(f"`batch_bytes`: {why}")
        names = [name for name in self.meta_names().values() if name]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            found.append(f"`meta_*`: {', '.join(twice)} is the name of more than one")
        return found

    def leads_to(self) -> str:
        return self.url.lower().rstrip("/")

    def endpoints(self, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
        url = https_url(self.url, "url", ("https", "http"))
        return (self.endpoint("AUDITOR", url, environment),)
