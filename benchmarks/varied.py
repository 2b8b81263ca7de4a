"""Jobs of a large site: hundreds of users, dozens of projects, restarts, failures, long names.

What repeats in a database decides what a cache in front of a renderer is worth. With ten users it
is always right; these patterns hold over a thousand ways in which jobs differ by more than their
times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Final

from tests.arex_databases import SampleJob, generate

USERS: Final = 750
PROJECTS: Final = 45
PATTERNS: Final = 4_000
_VOS: Final = ("atlas", "cms", "alice", "lhcb", "belle", "vo.example.org", "enmr.eu", "biomed")
_QUEUES: Final = ("grid", "long", "gpu", "short", "himem", "express")
_BENCHMARKS: Final = (
    "HEPscore23:11.9",
    "HEPscore23:14.2",
    "HEPSPEC:10.5",
    "HEPSPEC:1.0",
    "Si2k:2625",
    None,
)
_WITHOUT_VO: Final = 0.15
_RESTARTED: Final = 0.03
_LONG: Final = 0.05  # of names
_ROLES: Final = ("production", "pilot", "NULL")


def patterns(seed: int, start: datetime, end: datetime) -> Iterator[SampleJob]:
    """Jobs of which a database is multiplied: as `generate` makes them, by many more people."""
    rng = Random(seed)
    for number, job in enumerate(generate(seed, PATTERNS, start, end)):
        user = rng.randrange(USERS)
        vo = "" if user < USERS * _WITHOUT_VO else _VOS[user % len(_VOS)]
        varied = replace(
            job,
            user=f"/DC=org/DC=example/O=Universitetet i {'Øvre ' * (user % 3)}By {user % 29}"
            f"/CN=User {user:04}",
            vo=vo,
            fqans=_fqans(vo, user) if vo else (),
            token_attributes=(),
            local_user=f"u{user:04}:{vo or 'users'}",
            projects=(f"nn{9000 + rng.randrange(PROJECTS)}k",),
            queue=rng.choice(_QUEUES),
            benchmark=rng.choice(_BENCHMARKS),
            job_name=f"run {number} & plot {'x' * 180 if rng.random() < _LONG else ''}",
        )
        yield _restarted(varied) if job.local_job_id and rng.random() < _RESTARTED else varied


def _fqans(vo: str, user: int) -> tuple[str, ...]:
    """The main one first: most users have a role, and some a group of their own."""
    main = f"/{vo}/Role={_ROLES[user % len(_ROLES)]}/Capability=NULL"
    groups = [f"/{vo}/group{user % 7}/Role=NULL/Capability=NULL"] if user % 4 else []
    return (main, f"/{vo}/Role=NULL/Capability=NULL", *groups)


def _restarted(job: SampleJob) -> SampleJob:
    """It passed through all states twice."""
    return replace(job, events=(*job.events, *job.events))
