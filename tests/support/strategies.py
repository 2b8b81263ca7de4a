"""Random jobs for property tests: ordinary ones, and ones as hostile as a user, a batch system or a broken clock can make."""

from __future__ import annotations

import string
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from publisher.model.job import Epoch, JobId, JobRecord, RowRef
from tests.support.jobs import ENDED, make_job


def examples(count: int) -> int:
    """So many in `make test-long`, and by default in the proportion of the profile (tests/conftest.py)."""
    return max(1, count * settings.default.max_examples // 100) if settings.default else count


# What has broken publishers and receivers before: markup, separators, line ends of other standards, lone surrogates
# (bytes that were not UTF-8), text that means none, names of MIME types, texts that change their length when spelt out.
HOSTILE_TEXTS = (
    "",
    " ",
    "None",
    "null",
    "fit & plot",
    "</JobName><WallDuration>PT359996400S</WallDuration><JobName>",
    "</JobName></UsageRecord><UsageRecord><Site>OTHER-SITE</Site>",
    "]]>",
    "<![CDATA[x]]>",
    "<!-- x",
    "&#8;",
    "&amp;",
    "%s %d %(x)s %%",
    "a%%b",
    "% %%% %",
    "application/pkcs7-mime",
    "x Application/X-PKCS7-MIME y",
    "application/pkcs7-application/pkcs7-mime",
    'O\'Brien "x"',
    "René Müller",
    "Łukasz ßtraße ǿ ŉ",
    "作业",
    "\U0001f680",
    "\ufdfa" * 30,
    "\uff0fatlas\uff0fRole\uff1dx",
    "a\u2028b\u0085c\x0bd\x0ce\x1cf",
    "a\r\nb\tc\rd",
    "nul\0bell\x07del\x7f",
    "\udcff\udc80",
    "\ufffe\uffff",
    "a=1&b=2;c",
    "x" * 101,
    "x" * 256,
    "VO: cms\nFQAN: /cms",
)
HOSTILE_FQANS = (
    "/",
    "//a",
    "/Role=x",
    "/atlas;/cms/Role=production",
    "/atlas/sub/role=x/role=y",
    "/atlas /Role=x ",
    "/atlas/Capability=NULL",
    "atlas",
    "urn:mace:x:group:y#z",
    '["/a","/b"]',
    "/é/Role=ß",
    "/a\uff0fb/Role=x",
    "/None",
)
_INT32 = 2**31

hostile_text = st.one_of(
    st.sampled_from(HOSTILE_TEXTS),
    st.text(st.characters(), max_size=40),
    st.text(string.printable, max_size=300),
)
plain_text = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=40).filter(
    lambda text: text.lower() not in ("none", "null")
)
hostile_number = st.one_of(
    st.sampled_from((0, 1, -1, _INT32 - 1, _INT32, -_INT32, 2**32 - 1, 2**40, 2**63 - 1)),
    st.integers(-(2**64), 2**64),
)
hostile_moment = st.one_of(
    st.sampled_from((0, -1, 1, ENDED, ENDED + 86_400, ENDED + 86_401, 2**31, 253_402_300_799, 253_402_300_800)),
    st.integers(-(2**45), 2**45),
).map(Epoch)
fqans = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE_FQANS), plain_text.map(lambda vo: f"/{vo}/Role=pilot/Capability=NULL"), hostile_text
    ),
    max_size=3,
).map(tuple)
benchmarks = st.sampled_from(
    (
        "",
        "HEPSPEC:1.0",
        "HEPscore23:11.9",
        "si2k:2625",
        "HEPSPEC:12,26",
        "fast",
        "HS06:10",
        "HEPSPEC:-1",
        "HEPSPEC:1e999",
    )
)

_HOSTILE: dict[str, st.SearchStrategy[Any]] = {
    "job_id": hostile_text.map(JobId),
    "local_id": hostile_text,
    "status": st.one_of(
        st.sampled_from(("completed", "failed", "aborted", "Completed", "", "in-progress")), hostile_text
    ),
    "exit_code": st.one_of(st.none(), hostile_number),
    "submitted_at": hostile_moment,
    "started_at": st.one_of(st.none(), hostile_moment),
    "ended_at": hostile_moment,
    "wall_s": hostile_number,
    "cpu_user_s": hostile_number,
    "cpu_kernel_s": hostile_number,
    "node_count": st.one_of(st.none(), hostile_number),
    "cpu_count": st.one_of(st.none(), hostile_number),
    "memory_kib": st.one_of(st.none(), hostile_number),
    "virtual_memory_kib": st.one_of(st.none(), hostile_number),
    "scratch_bytes": st.one_of(st.none(), hostile_number),
    "stage_in_bytes": st.one_of(st.none(), hostile_number),
    "stage_out_bytes": st.one_of(st.none(), hostile_number),
    "interface": hostile_text,
    "endpoint": st.one_of(
        hostile_text,
        st.sampled_from(
            ("", "https://[2001:db8::1]:443/arex", "https://2001:db8::1:443/arex", "https://[x", "nowhere")
        ),
    ),
    "queue": hostile_text,
    "user": hostile_text,
    "vo": hostile_text,
    "fqans": fqans,
    "attributes": st.lists(st.tuples(hostile_text, hostile_text), max_size=2).map(tuple),
    "benchmark": benchmarks,
    "job_name": hostile_text,
    "lrms": hostile_text,
    "client_host": hostile_text,
    "projects": st.lists(hostile_text, max_size=2).map(tuple),
    "hosts": st.lists(st.one_of(plain_text, hostile_text), max_size=3).map(tuple),
    "local_user": hostile_text,
    "local_group": hostile_text,
    "wn_instance": hostile_text,
    "runtime_environments": st.lists(hostile_text, max_size=2).map(tuple),
    "escaped": st.booleans(),
}


# Made once: hypothesis examines a strategy anew for each draw from a new one.
_WALLS = st.integers(0, 10**7)
_AGES = st.integers(0, 10**8)
_RECORD_IDS = st.integers(1, 10**7)
_STATUSES = st.sampled_from(("completed", "failed"))
_EXIT_CODES = st.one_of(st.none(), st.integers(0, 255))
_BOOLEANS = st.booleans()
_WAITS = st.integers(0, 10**6)
_NODES = st.sampled_from((None, 0, 1, 2))
_CPUS = st.sampled_from((None, 0, 1, 8, 128))
_USERS = plain_text.map(lambda name: f"/DC=org/CN={name}")
_ORDINARY_FQANS = st.one_of(st.just(()), plain_text.map(lambda vo: (f"/{vo}/Role=pilot/Capability=NULL",)))
_ORDINARY_BENCHMARKS = st.sampled_from(("", "HEPSPEC:1.0", "HEPscore23:11.9", "si2k:2625"))


@st.composite
def ordinary_jobs(draw: st.DrawFn) -> JobRecord:
    """Jobs as they should be: whatever differs from job to job is drawn, and all of it can be published."""
    wall = draw(_WALLS)
    ended = ENDED - draw(_AGES)
    return make_job(
        row=RowRef(database="accounting_v2.db", record_id=draw(_RECORD_IDS)),
        job_id=JobId(draw(plain_text)),
        local_id=draw(plain_text),
        status=draw(_STATUSES),
        exit_code=draw(_EXIT_CODES),
        submitted_at=Epoch(ended - wall - draw(_WAITS)),
        started_at=Epoch(ended - wall) if draw(_BOOLEANS) else None,
        ended_at=Epoch(ended),
        wall_s=wall,
        cpu_user_s=draw(st.integers(0, wall * 4)),
        cpu_kernel_s=draw(st.integers(0, wall)),
        node_count=draw(_NODES),
        cpu_count=draw(_CPUS),
        queue=draw(plain_text),
        user=draw(_USERS),
        vo=draw(plain_text),
        fqans=draw(_ORDINARY_FQANS),
        benchmark=draw(_ORDINARY_BENCHMARKS),
        job_name=draw(plain_text),
    )


@cache
def _bent_fields(most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(sorted(_HOSTILE)), unique=True, max_size=most)


@st.composite
def hostile_jobs(draw: st.DrawFn, most: int = 6) -> JobRecord:
    """Ordinary jobs with up to `most` fields made hostile."""
    bent = draw(_bent_fields(most))
    return make_job(**{name: draw(_HOSTILE[name]) for name in bent})


jobs = st.one_of(ordinary_jobs(), hostile_jobs())
