"""A job as the site publishes it: user, place, benchmark, start and end, with their origins.

Policy makes it of a job record, and every format renders it. User and place are shared by the jobs
that have the same. Each carries the origins of its fields, for `explain`.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.job import Epoch, JobRecord, Transfer
from publisher.model.rates import AppliedBenchmark, Charge
from publisher.model.text import ascii_text

_MOST_DESCRIPTION: Final = 100  # at APEL


class ValueOrigin(NamedTuple):
    """`name` as in APEL's messages; `rule` is what decided, `source` the job's field or ''."""

    name: str
    rule: str
    source: str = ""


class Fqan(NamedTuple):
    """VO, group and role of an FQAN. `role` is `Role=...` without a leading slash, or None."""

    vo: str
    group: str | None
    role: str | None


@lru_cache(maxsize=4096)
def parse_fqan(text: str) -> Fqan:
    """What APEL 2.5.0 makes of an FQAN: the first of several at `;`, the role behind any `role=`.

    Without a leading slash the whole text is the VO. An FQAN that begins with a role names none
    (the server would take the role for it): its `vo` is '', and it is never published.
    """
    first = text.split(";", 1)[0].strip()
    if not first.startswith("/"):
        return Fqan(vo=first, group=None, role=None)
    parts = first[1:].split("/")
    at = next((at for at, part in enumerate(parts) if part.lower().startswith("role=")), len(parts))
    groups = parts[:at]
    role = parts[at] if at < len(parts) else None
    if not groups:
        return Fqan(vo="", group=None, role=role)
    return Fqan(vo=groups[0], group="/" + "/".join(groups), role=role)


class Infrastructure(StrEnum):
    """Whether jobs came through a grid interface; `auto` tells it from their source."""

    GRID = "grid"
    LOCAL = "local"
    AUTO = "auto"


def check_description(text: str) -> str | None:
    """What is wrong with a description of the infrastructure: APEL's text has a line for it."""
    if len(text) <= _MOST_DESCRIPTION and text.isascii() and text.isprintable() and " " not in text:
        return None
    return (
        f"must be one word of at most {_MOST_DESCRIPTION} ASCII characters, "
        "such as PUBLISHER-NONE-SGE"
    )


class UserIdentity(NamedTuple):
    """The user as published. Texts may be ''; role is `Role=production`, as APEL derives it.

    Group and role in the receiver's key of summaries are spelt in the site's key style.
    """

    user: str
    vo: str
    vo_issuer: str
    group: str
    role: str
    receiver_group: str
    receiver_role: str
    fqans: tuple[str, ...]
    extra_groups: tuple[str, ...]
    origins: tuple[ValueOrigin, ...]

    def apel_fqan(self) -> str:
        """Return the FQAN that APEL may read, in its ASCII; '' where none may be sent.

        At the server an FQAN overrules VO, group and role, so one that says otherwise (a VO rule
        spoke, or transliteration made a slash) has to stay behind. Only the first of several at
        `;`, because no more is read.
        """
        return _agreeing(self.fqans[0], self.vo, self.group, self.role) if self.fqans else ""

    def full_fqan(self) -> str:
        """As `apel_fqan`, or of VO, group and role where there is none; '' for no VO."""
        if not self.vo:
            return ""
        if fqan := self.apel_fqan():
            return fqan
        vo, group, role = ascii_text(self.vo), ascii_text(self.group), ascii_text(self.role)
        within = group if group.split("/")[1:2] == [vo] else f"/{vo}"
        return f"{within}/{role}" if role else within


@lru_cache(maxsize=4096)
def _agreeing(fqan: str, vo: str, group: str, role: str) -> str:
    """Return the first FQAN at `;` in ASCII if it says this VO, group and role; '' if not."""
    text = ascii_text(fqan.split(";", 1)[0])
    found = parse_fqan(text)
    meant = ascii_text(vo), ascii_text(group), ascii_text(role)
    return text if found.vo and (found.vo, found.group or "", found.role or "") == meant else ""


class Placement(NamedTuple):
    """The place as published. `submit_host` is a grid job's endpoint, a local one's batch server.

    `spelt_host` is the same in the site's key style, for summaries and sync.
    """

    site: str
    infrastructure: str  # grid | local
    description: str
    submit_host: str
    receiver_host: str
    interface: str
    machine_name: str
    queue: str
    origins: tuple[ValueOrigin, ...]
    localid_prefix: str = ""


class PublishedJob(NamedTuple):
    """A job and what is said about it."""

    job: JobRecord
    record_id: str
    local_id: str
    started_at: Epoch
    ended_at: Epoch
    who: UserIdentity
    where: Placement
    benchmark: AppliedBenchmark
    identity_open: bool = True  # whether what identifies a person may be published
    charge: Charge | None = None
    later_run: bool = False  # another was delivered before: a receiver's key by JobID needs another

    @property
    def start_is_derived(self) -> bool:
        """It lies its wall time before the end, because nothing that is known of the job does."""
        return self.job.submitted_at > self.ended_at and self.started_at != self.job.started_at

    # What identifies a person, other than the name. Formats take it from here, never from the job.

    @property
    def local_user(self) -> str:
        return self.job.local_user if self.identity_open else ""

    @property
    def local_group(self) -> str:
        """Return the group, but not one that is the user's own, called as the user is."""
        if self.identity_open or self.job.local_group != self.job.local_user:
            return self.job.local_group
        return ""

    @property
    def projects(self) -> tuple[str, ...]:
        """Projects are published, but not a user's own, which stands for none in batch systems."""
        return published_projects(self.job.projects, self.job.local_user, self.identity_open)

    @property
    def job_name(self) -> str:
        """Users write themselves into it."""
        return self.job.job_name if self.identity_open else ""

    @property
    def client_host(self) -> str:
        """The user's own machine, as often as not."""
        return self.job.client_host if self.identity_open else ""

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Their paths lead through home directories."""
        return self.job.transfers if self.identity_open else ()


def published_projects(
    projects: tuple[str, ...], local_user: str, identity_open: bool
) -> tuple[str, ...]:
    """Of a job's projects those that a record may name."""
    if identity_open:
        return projects
    return tuple(project for project in projects if project != local_user)
