"""How users are named to receivers, and the rules for a job's VO. Names are the same in every
format."""

import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.job import Epoch, JobRecord


class IdentityMode(StrEnum):
    """Whether receivers learn who a user is."""

    PLAIN = "plain"
    WITHHELD = "withheld"
    PSEUDONYM = "pseudonym"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How users are named. `secret` and `period` (of the end time) are for pseudonyms."""

    mode: IdentityMode = IdentityMode.PLAIN
    secret: bytes = field(default=b"", repr=False)
    period: str = "year"

    @property
    def open(self) -> bool:
        """Whether what identifies a person may be published."""
        return self.mode is IdentityMode.PLAIN

    def period_of(self, moment: Epoch) -> str:
        """The period whose pseudonyms hold at an end time; '' where there are none."""
        return period_label(moment, self.period) if self.mode is IdentityMode.PSEUDONYM else ""

    def name(self, user: str, period: str) -> str:
        """A DN, or a token's issuer and subject, as published; '' stays ''."""
        if self.mode is IdentityMode.PLAIN or not user:
            return user
        if self.mode is IdentityMode.WITHHELD:
            return "withheld"
        text = f"{period}\0{user}".encode("utf-8", "surrogateescape")
        return "pseudonym-" + hmac.new(self.secret, text, "sha256").hexdigest()[:32]


def period_label(moment: Epoch, period: str) -> str:
    """The validity period of a pseudonym: `2026`, `2026Q1` or `2026-03`, by end time in UTC."""
    try:
        when = datetime.fromtimestamp(moment, UTC)
    except (OverflowError, OSError, ValueError):
        return "never"  # such a job is quarantined for its end time
    if period == "month":
        return f"{when:%Y-%m}"
    if period == "quarter":
        return f"{when:%Y}Q{(when.month + 2) // 3}"
    return f"{when:%Y}"


VO_RULE_FIELDS: Final = (
    *("issuer", "group", "local_user", "local_group"),
    *("queue", "project", "user", "any"),
)

# Of these: what is in a job's own row
RULED_BY_ROW: Final = frozenset({"issuer", "queue", "user", "any"})


class VoRule(NamedTuple):
    """The VO of jobs that match: `field` of `VO_RULE_FIELDS`, shell `pattern`; first match wins."""

    field: str
    pattern: str
    vo: str
    group: str | None = None
    role: str | None = None
    override: bool = False  # also for jobs that carry a VO of their own

    def matches(self, job: JobRecord) -> bool:
        if self.field == "any":
            return True
        return any(fnmatchcase(text, self.pattern) for text in self._texts(job))

    def _texts(self, job: JobRecord) -> tuple[str, ...]:
        match self.field:
            case "issuer":
                # Token users are stored as `issuer/subject`.
                has_issuer = "://" in job.user and not job.user.startswith("/")
                return (job.user.rpartition("/")[0],) if has_issuer else ()
            case "group":
                return job.fqans + tuple(value for _, value in job.attributes)
            case "project":
                return job.projects
            case name:
                return (str(getattr(job, name)),)


# Receiver keys as jura-ng spells them in its summaries and sync: APEL keeps the rows under the old
# keys, so a site that goes on in the middle of a month with another spelling is counted twice. CAR
# never had them.
_PART: Final = re.compile(r"/[-\w.]+")
_ROLE: Final = "/Role="


@lru_cache(maxsize=4096)
def read_by_jura(fqan: str) -> tuple[str, str]:
    """What jura-ng makes of an FQAN: its group, and its role as `/Role=x`; '' where it sees none.

    It stops at a character other than letters, digits, `-`, `_` and `.`, and knows a role by
    `/Role=` only: the group of `/atlas/my group/Role=x` is `/atlas/my`, that of
    `/atlas/Capability=NULL` is `/atlas/Capability`.
    """
    at = 0
    while (part := _PART.match(fqan, at)) and (at == 0 or not fqan.startswith(_ROLE, at)):
        at = part.end()
    name = _PART.match(f"/{fqan[at + len(_ROLE) :]}") if at and fqan.startswith(_ROLE, at) else None
    return fqan[:at], f"{_ROLE}{name[0][1:]}" if name else ""


def jura_group_and_role(vo: str, group: str, role: str, fqan: str) -> tuple[str, str]:
    """VOGroup and VORole of a job: of its main FQAN, or of a rule of the site where that is ''.

    Of a job without a VO neither is published.
    """
    if not vo:
        return "", ""
    if fqan:
        group, role = read_by_jura(fqan)
    elif role:
        role = f"/{role}"
    return group or f"/{vo}", role or "Role=NULL"
