"""The site's rules about VOs, for jobs that tell none, or another one than it wants said."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from publisher.model.job import JobRecord

VO_RULE_FIELDS: Final = ("issuer", "group", "local_user", "local_group", "queue", "project", "user", "any")

RULED_BY_ROW: Final = frozenset({"issuer", "queue", "user", "any"})  # of these: what stands in a job's own row


@dataclass(frozen=True, slots=True, kw_only=True)
class VoRule:
    """The VO of jobs that it matches; first match wins. `field` is one of `VO_RULE_FIELDS`, `pattern` a shell pattern."""

    field: str
    pattern: str
    vo: str
    group: str | None = None
    role: str | None = None
    override: bool = False  # also for jobs that carry a VO of their own

    def matches(self, job: JobRecord) -> bool:
        return self.field == "any" or any(fnmatchcase(text, self.pattern) for text in self._texts(job))

    def _texts(self, job: JobRecord) -> tuple[str, ...]:
        match self.field:
            case "issuer":
                # Token users are stored as `issuer/subject` (arc-database facts, section 2).
                return (job.user.rpartition("/")[0],) if "://" in job.user and not job.user.startswith("/") else ()
            case "group":
                return job.fqans + tuple(value for _, value in job.attributes)
            case "project":
                return job.projects
            case name:
                return (str(getattr(job, name)),)
