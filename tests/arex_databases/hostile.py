"""Named hostile cases: text, numbers and references that broke some publisher, or could.

Nothing here says what ought to become of a case; that is for the tests that use it.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, cast

from tests.arex_databases.hostile_rows import bent_rows
from tests.arex_databases.jobs import RawRow, SampleJob, Transfer, TransferKind
from tests.arex_databases.sample import generate

_START: Final = datetime(2026, 10, 1, tzinfo=UTC)
_END: Final = datetime(2026, 11, 1, tzinfo=UTC)

FORGED_JOB_NAME: Final = (
    "x</urf:JobName></urf:JobIdentity><urf:WallDuration>PT359996400S</urf:WallDuration>"
    "</urf:UsageRecord><urf:UsageRecord><urf:Site>OTHER-SITE</urf:Site><urf:JobIdentity><urf:JobName>y"
)

TEXTS: Final = {
    "xml-metacharacters": "fit & plot <\"a\"> ]]> 'b'",
    "vo-group-end-tag": "</vo:Group>",
    "entity": "&lol; &#0; &amp;amp;",
    "control-characters": "a\0b\x01c\bd\x1be\x7f",
    "tab-cr-lf": "a\tb\rc\nd\r\ne",
    "latin-1": "Åsa Strömgren ß",
    "cjk": "东京大学 作业",
    "astral": "job 🚀 \U0010ffff",
    "noncharacters": "a\ufffeb\uffffc",
    "bidi-and-zero-width": "a\u202eb\u200bc\ufeffd",
    "combining": "A\u030asa",
    "invalid-utf-8": "a\udcffb\udcc3(c",
    "truncated-utf-8": "na\udcc3",
    "encoded-surrogate": "a\udced\udca0\udc80b",
    "unicode-line-ends": "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg",
    "percent-percent": "a\n%%\nVO: cms",
    "stored-escape": "100%25 %0a %zz %",
    "field-forgery": "a\nVO: cms\nWallDuration: 359996400",
    "10-kilobytes": "x" * 10_240,
    "mime-boundary": "\n------ABCDEF\nContent-Type: text/plain\n\nx",
    "backslash-escape": "\\xC3\\xA5 \\n",
    "sql-quote": "'; DROP TABLE AAR; --",
    "spaces": "  a  b  ",
    "one-space": " ",
    "empty": "",
    "None": "None",
    "NULL": "NULL",
    "leading-dash": "--help",
}
"""Hostile text by name; each goes into each of the fields of `_placed`."""

_TEXT_FIELDS: Final = (
    "job_name",
    "queue",
    "user",
    "vo",
    "fqan",
    "local_job_id",
    "local_user",
    "project",
    "node_name",
    "client_host",
    "endpoint_url",
    "interface",
    "rte",
    "transfer_url",
    "lrms",
    "system_software",
    "status",
)

_BENCHMARKS: Final = (
    None,
    "",
    "12,26",
    "fast",
    ":",
    "HEPSPEC",
    "HEPSPEC:",
    ":10.5",
    "HEPSPEC:-1",
    "HEPSPEC:0",
    "HEPSPEC:nan",
    "HEPSPEC:inf",
    "HEPSPEC:1e3",
    "HEPSPEC:1_0",
    "HEPSPEC:10,5",
    "HEPSPEC: 10.5",
    "HEPSPEC 10.5",
    "HEPSPEC:10.50",
    "hepspec:10.50",
    "HEPscore23:11.9:2",
    "si2k:2625",
    "HEPSPEC:\u0661\u0660",
    "HEPSPEC:99999999999999999999",
)

_FQANS: Final = (
    "/atlas",
    "atlas",
    "/",
    "//",
    "/atlas/",
    "/Role=production",
    "/atlas/Role=",
    "/atlas/Role=production/Role=pilot",
    "/atlas/role=production",
    "/atlas/Capability=NULL/Role=production",
    "/atlas/Role=production/no",
    "/atlas/lcg1/sub/deep/Role=NULL",
    "/atlas/Role=NULL/Capability=x",
    "/vo.example.org/Role=a b",
    "wlcg.groups=/atlas",
)

_ENDPOINT_URLS: Final = (
    "",
    "https://[2001:db8::1]:443/arex",
    "https://2001:db8::1:443/arex",
    "https://2001:db8::1/arex",
    "https://ce01.example.org",
    "https://ce01.example.org:443",
    "ce01.example.org",
    "https://:443/arex",
    "https://ce01.example.org:port/arex",
    "https://user:secret@ce01.example.org:443/arex",
    "https://CE01.Example.ORG:443/arex/",
    "gsiftp://ce01.example.org:2811/jobs",
    "https://blåbær.example.org/arex",
)

_CLIENT_HOSTS: Final = (
    "2001:db8::17:4711",
    "[2001:db8::17]:4711",
    "2001:db8::17",
    "192.0.2.17",
    "host",
    ":4711",
    "a:b:c",
)

_USERS: Final = {
    "o-neil": "/C=IE/O=Grid-Ireland/CN=Sean O'Neil",
    "comma": "/O=Grid/O=Nordu, Grid/CN=Doe, John",
    "slash-in-cn": "/O=Grid/CN=host/ce01.example.org",
    "rfc-2253": "CN=John Doe,O=NorduGrid,O=Grid",
    "escaped-utf-8": "/C=SE/O=Lunds universitet/CN=\\xC3\\x85sa Str\\xC3\\xB6m",
    "email": "/O=Grid/CN=Jane/emailAddress=jane@example.org",
    "token": "https://issuer.example.org/åsa@example.org",
    "token-without-subject": "https://issuer.example.org/",
}

_NUMBER_FIELDS: Final = (
    "exit_code",
    "nodes",
    "cpus",
    "memory_kib",
    "virtual_memory_kib",
    "wall_s",
    "cpu_user_s",
    "cpu_kernel_s",
    "scratch_bytes",
    "stage_in_bytes",
    "stage_out_bytes",
)

_NUMBERS: Final = (-1, 0, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)


def hostile(seed: int, *, start: datetime = _START, end: datetime = _END) -> list[SampleJob | RawRow]:
    """All hostile cases, each with a name of its own on an otherwise ordinary completed job of the window.

    `SampleJob`s are what users and batch systems can bring about through A-REX; `RawRow`s are what only another
    writer, a conversion or a hand could store. `Writer.write` takes both.
    """
    return list(_cases(seed, start, end))


@cache
def _cases(seed: int, start: datetime, end: datetime) -> tuple[SampleJob | RawRow, ...]:
    # Another seed and other local ids than those of generate(seed, ...), so that both fit into one database.
    ordinary = (
        replace(job, local_job_id=f"9{job.local_job_id}")
        for job in generate(seed + 2**63, 5_000, start, end)
        if job.status == "completed" and job.fqans and job.transfers
    )
    cases: list[SampleJob | RawRow] = []
    for variants in (_texts, _keys, _numbers, _times):
        cases += variants(ordinary)
    cases += bent_rows(ordinary)
    return tuple(cases)


def _texts(jobs: Iterator[SampleJob]) -> Iterator[SampleJob]:
    for field in _TEXT_FIELDS:
        for name, text in TEXTS.items():
            yield _placed(next(jobs), f"{field}: {name}", field, text)
    for field in ("job_name", "queue"):
        yield _placed(next(jobs), f"{field}: pkcs7-mime", field, "application/pkcs7-mime")
    yield _placed(next(jobs), "job_name: closing-element forgery", "job_name", FORGED_JOB_NAME)


def _placed(job: SampleJob, name: str, field: str, text: str) -> SampleJob:
    """The job with the text in one of its fields."""
    match field:
        case "fqan":
            return replace(job, name=name, fqans=(text, *job.fqans[1:]))
        case "project":
            return replace(job, name=name, projects=(text,))
        case "node_name":
            return replace(job, name=name, node_names=(text, "wn001"))
        case "rte":
            return replace(job, name=name, rtes=(text,))
        case "transfer_url":
            return replace(job, name=name, transfers=(replace(job.transfers[0], url=text), *job.transfers[1:]))
        case _:
            return _changed(job, name, field, text)


def _keys(jobs: Iterator[SampleJob]) -> Iterator[SampleJob]:
    for benchmark in _BENCHMARKS:
        name = "absent" if benchmark is None else repr(benchmark)
        yield replace(next(jobs), name=f"benchmark: {name}", benchmark=benchmark)
    for fqan in _FQANS:
        yield replace(next(jobs), name=f"fqan: {fqan!r}", fqans=(fqan,), vo=fqan.removeprefix("/").split("/")[0])
    yield replace(next(jobs), name="fqan: none, with a VO", fqans=())
    yield replace(next(jobs), name="fqan: of another VO", fqans=("/cms/Role=pilot",), vo="atlas")
    for url in _ENDPOINT_URLS:
        yield replace(next(jobs), name=f"endpoint_url: {url!r}", endpoint_url=url)
    yield replace(
        next(jobs), name="endpoint: none", interface="", endpoint_url="", queue="", user="", vo="", fqans=(), status=""
    )
    yield replace(next(jobs), name="endpoint: internal", interface="org.nordugrid.internal", endpoint_url="")
    for host in _CLIENT_HOSTS:
        yield replace(next(jobs), name=f"client_host: {host!r}", client_host=host)
    for name, user in _USERS.items():
        yield replace(next(jobs), name=f"user: {name}", user=user)
    for status in ("aborted", "in-progress", "COMPLETED"):
        yield replace(next(jobs), name=f"status: {status!r}", status=status)


def _numbers(jobs: Iterator[SampleJob]) -> Iterator[SampleJob]:
    for field in _NUMBER_FIELDS:
        for number in _NUMBERS:
            yield _changed(next(jobs), f"{field}: {number}", field, number)
    yield replace(next(jobs), name="memory_kib: over 2 TiB", memory_kib=3 * 2**30, virtual_memory_kib=5 * 2**30)
    for size in (-1, 0, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1, 2**32, 5 * 2**30, 2**63 - 1):
        job = next(jobs)
        at = job.submit_time + 10
        transfer = Transfer(url="https://dav.example.org/f", size=size, start=at, end=at, kind=TransferKind.UPLOAD)
        yield replace(job, name=f"transfer size: {size}", transfers=(transfer,), stage_out_bytes=size)
    yield replace(next(jobs), name="usage: cpu time over wall time", wall_s=100, cpus=1, cpu_user_s=10_000)
    yield replace(next(jobs), name="usage: cores and nodes unknown", cpus=0, nodes=0, node_names=())


def _times(jobs: Iterator[SampleJob]) -> Iterator[SampleJob]:
    job = next(jobs)
    yield replace(job, name="times: end before submission", submit_time=job.end_time + 3600)
    job = next(jobs)
    yield replace(job, name="times: end at submission", submit_time=job.end_time)
    job = next(jobs)
    started = [replace(event, at=job.submit_time - 300) if event.key == "LRMSSTART" else event for event in job.events]
    yield replace(job, name="times: start before submission", events=tuple(started))
    yield replace(next(jobs).moved_to(0), name="times: end 0", events=())
    for year in (1970, 1999, 2036, 2038):
        end = int(datetime(year, 1, 18, tzinfo=UTC).timestamp())
        yield replace(next(jobs).moved_to(end), name=f"times: end in {year}")
    yield replace(next(jobs), name="times: submission 0", submit_time=0)
    yield replace(next(jobs), name="times: no events", events=())
    # 00:30 UTC is 02:30 in Oslo before the clocks go back on 25 October 2026, 01:30 UTC is 02:30 again after.
    for hour in (0, 1):
        end = int(datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp())
        yield replace(next(jobs).moved_to(end), name=f"times: ambiguous local hour, {hour:02}:30 UTC")


def _changed(job: SampleJob, name: str, field: str, value: str | int) -> SampleJob:
    """The job with one field changed that is named by a string."""
    # The type checker cannot follow field names in strings; a wrong one is a TypeError here.
    changes = cast(dict[str, Any], {"name": name, field: value})
    return replace(job, **changes)
