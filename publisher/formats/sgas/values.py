"""Values as SGAS accepts them: rewritten, shortened or left out.

One value that the server's database refuses loses the whole batch, and a stored record cannot be
corrected by sending it again. What identifies a job, a user or a
place is never shortened: the rules in `rules.py` set such a job aside. Everything optional is left
out here, and listed in `rules.OMISSIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from itertools import product
from typing import Final

from publisher.model.job import Epoch, Transfer, run_digest
from publisher.model.published import PublishedJob, UserIdentity, parse_fqan
from publisher.model.rates import Charge
from publisher.model.text import is_domain_name, xml_text

INT4_MAX: Final = 2_147_483_647
INT8_MAX: Final = 2**63 - 1
SMALLINT_MAX: Final = 32_767
YEAR_9999: Final = 253_402_300_799  # its last second
# Indexed texts: PostgreSQL's index refuses values over 2,704 bytes, whatever their characters.
INDEXED_BYTES: Final = 2_600
LOCAL_ID_CHARACTERS: Final = 40
HOST_CHARACTERS: Final = 200
JOB_NAME_CHARACTERS: Final = 1_000
QUEUE_CHARACTERS: Final = 200
LOCAL_USER_CHARACTERS: Final = 100
VO_ATTRIBUTE_CHARACTERS: Final = 100
PROJECT_CHARACTERS: Final = 200
RUNTIME_ENVIRONMENT_CHARACTERS: Final = 512
URL_BYTES: Final = 2_500
_MEMORY_KIB_MAX: Final = INT8_MAX // 1_024

_JURA_HOST: Final = re.compile(r"[^:]*://([^:/]*)")
# A user, with or without a password, before a host; a URL may hold others inside (proxies, index
# services).
_USER_INFO: Final = re.compile(r"(?:(?<=://)|(?<=^//))[^/?#]*@")
_QUERY_PARTS: Final = re.compile(r"[&;?]")
_QUERY_KEPT: Final = frozenset(
    ("sfn",)
)  # where SRM URLs have their path; everything else may be a signature or a token


def record_id(job: PublishedJob) -> str:
    """`ur-<endpoint host>-<JobID>`, spelled as by jura-ng, because recordId is SGAS's only key.

    So the host keeps its case, and one in IPv6 ends at its first colon; the JobID makes the id
    unique anyhow. A later run of a job that A-REX restarted would be discarded under it: its own
    has a digest of the LocalJobID behind that.
    """
    host = _jura_host(job.job.endpoint)
    text = f"ur-{host}-{job.job.job_id}" if host else job.record_id
    return f"{text}-{run_digest(job.job.local_id).hex()}" if job.later_run else text


@lru_cache(maxsize=4096)
def _jura_host(endpoint: str) -> str:
    found = _JURA_HOST.match(endpoint)
    return found[1] if found else ""


def local_id(job: PublishedJob) -> str:
    """The batch system's id with its prefix; '' where the server would rewrite the record's id.

    It puts GlobalJobId in the place of recordId when LocalJobId begins with a slash or has more
    than 40 (release 3.8.1) or 120 characters (HEAD), so that the same job is a second row once
    recordId is spelt otherwise.
    """
    text = xml_text(job.local_id)
    # Where nothing is put before it, both are one text.
    own = text if job.local_id == job.job.local_id else xml_text(job.job.local_id)
    return "" if not own or text.startswith("/") or len(text) > LOCAL_ID_CHARACTERS else text


def job_name(text: str) -> str:
    return xml_text(text)[:JOB_NAME_CHARACTERS].rstrip()


def queue(text: str) -> str:
    return xml_text(text)[:QUEUE_CHARACTERS].rstrip()


def local_user(text: str) -> str:
    """None in place of one that is too long, which would be somebody else if it were cut."""
    return text if len(xml_text(text)) <= LOCAL_USER_CHARACTERS else ""


def charge(charged: Charge | None) -> Charge | None:
    """None for one beyond the server's column of 32 bits, which cuts fractions itself."""
    return charged if charged is not None and abs(charged.amount) <= INT4_MAX else None


def exit_code(code: int | None) -> int | None:
    """As the server stores it, modulo 256: what was sent is then what is found there."""
    return None if code is None else code % 256


def processors(count: int | None) -> int:
    """At least one: with 0 processors the server's reports multiply the wall time by 0."""
    return max(1, count or 0)


def node_count(count: int | None) -> int | None:
    """A smallint there; None where it is unknown or has no place."""
    return count if count and 0 < count <= SMALLINT_MAX else None


def memory_kib(kib: int | None) -> int | None:
    """None where nothing was measured, or where it is no 64-bit number of bytes."""
    return kib if kib and 0 < kib <= _MEMORY_KIB_MAX else None


def positive(*counts: int | None) -> int | None:
    """The sum of what is known; None for zero. A negative volume is A-REX's overflow: not known."""
    return sum([count for count in counts if count and count > 0]) or None


def start_time(job: PublishedJob) -> Epoch | None:
    """None for a start that is unknown or after the end: no run was like that."""
    is_known = 0 < job.started_at <= job.ended_at and not job.start_is_derived
    return job.started_at if is_known else None


def known_time(moment: int | None) -> int | None:
    return moment if moment is not None and 0 < moment <= YEAR_9999 else None


def host(name: str) -> str:
    """The name when schema and column take it, else ''."""
    return name if len(name) <= HOST_CHARACTERS and is_domain_name(name) else ""


@lru_cache(maxsize=4096)
def submit_host(client: str) -> str:
    """The client's host without port, a name or an address, as A-REX notes and jura-ng sends it.

    The schema of UR 1.0 knows no addresses, but SGAS takes any text here. `address:port` of IPv6
    has no brackets.
    """
    text = client.strip()
    name, colon, port = text.rpartition(":")
    candidates = (name, text) if colon and port.isdecimal() else (text,)
    return next((address for one in candidates if (address := _address(one) or host(one))), "")


def _address(text: str) -> str:
    bare = text.removeprefix("[").removesuffix("]")
    try:
        ip_address(bare)
    except ValueError:
        return ""
    return "" if "%" in bare else bare  # the name of an interface tells nothing elsewhere


def vo_attributes(who: UserIdentity) -> tuple[tuple[str, str], ...]:
    """(group, role) of the effective FQAN, the VO's others, then configured groups; '' is no role.

    Spelt as jura-ng does, `/atlas/no` and `/Role=production`. One with a part of over 100
    characters is left out: no report asks for it, and its VO is sent all the same. Attributes
    without a VO would be dropped there.
    """
    if not xml_text(who.vo):
        return ()
    most = VO_ATTRIBUTE_CHARACTERS
    return tuple(pair for pair in _attributes(who) if max(map(len, pair)) <= most)


def _attributes(who: UserIdentity) -> tuple[tuple[str, str], ...]:
    named = [(fqan.vo, (fqan.group or "", fqan.role or "")) for fqan in map(parse_fqan, who.fqans)]
    vos = {who.vo}
    if named and named[0][1] == (who.group, who.role):
        vos.add(named[0][0])  # a job's own VO may be another one than its FQANs name
    own = who.group or (f"/{who.vo}" if who.role else "")
    others = [pair for vo, pair in named if vo in vos]
    return _escaped([(own, who.role), *others, *product(who.extra_groups, [""])])


def _escaped(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    escaped = ((xml_text(group), _role(xml_text(role))) for group, role in pairs)
    return tuple(dict.fromkeys(pair for pair in escaped if pair[0]))


def vo_attributes_left_out(who: UserIdentity) -> int:
    return len(_attributes(who)) - len(vo_attributes(who)) if xml_text(who.vo) else 0


def _role(role: str) -> str:
    """`/Role=x`; '' for NULL, VOMS's word for none."""
    name = role.lstrip("/")
    if name.lower().startswith("role="):
        name = name[5:]
    return f"/Role={name}" if name and name.upper() != "NULL" else ""


def projects(names: Iterable[str]) -> tuple[str, ...]:
    return _distinct(names, PROJECT_CHARACTERS)


def runtime_environments(names: Iterable[str]) -> tuple[str, ...]:
    return _distinct(names, RUNTIME_ENVIRONMENT_CHARACTERS)


def _distinct(names: Iterable[str], characters: int) -> tuple[str, ...]:
    escaped = dict.fromkeys(xml_text(name) for name in names)
    return tuple(name for name in escaped if name and len(name) <= characters)


def transfers(all_of_them: Iterable[Transfer]) -> Iterator[tuple[Transfer, str]]:
    """Transfers with public URLs; not those with none, or one too long for the server's index."""
    for transfer in all_of_them:
        url = xml_text(public_url(transfer.url))
        if url and (len(url) <= URL_BYTES // 4 or len(url.encode()) <= URL_BYTES):
            yield transfer, url


def public_url(url: str) -> str:
    """The URL without users, passwords, fragments, and queries (signatures, tokens) but for SFN."""
    if "@" not in url and "?" not in url and "#" not in url:
        return url
    without_user = _USER_INFO.sub("", _without_odd_password(url))
    address, _, query = without_user.partition("#")[0].partition("?")
    parts = _QUERY_PARTS.split(query)
    kept = [part for part in parts if part.partition("=")[0].lower() in _QUERY_KEPT]
    return f"{address}?{'&'.join(kept)}" if kept else address


def _without_odd_password(url: str) -> str:
    """A raw `/`, `?` or `#` in a password ends the host early: then the port is no number."""
    scheme, slashes, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    _, colon, port = authority.rpartition(":")
    is_whole = not colon or port.partition(";")[0].isdecimal()
    if not slashes or is_whole or "@" in authority or "]" in authority:
        return url
    return f"{scheme}://{rest.rpartition('@')[2]}"
