"""Usage records made by hand: what a publisher should send, with single parts replaced, added or left out."""

from collections.abc import Iterable
from html import escape
from typing import Final

HEAD: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b'<urf:UsageRecords xmlns:urf="http://schema.ogf.org/urf/2003/09/urf" '
    b'xmlns:vo="http://www.sgas.se/namespaces/2009/05/ur/vo" xmlns:sgas="http://www.sgas.se/namespaces/2009/07/ur" '
    b'xmlns:tr="http://www.sgas.se/namespaces/2010/10/filetransfer" xmlns:deisa="http://rmis.deisa.org/acct" '
    b'xmlns:arc="http://www.nordugrid.org/ws/schemas/ur-arc">\n'
)
TAIL: Final = b"</urf:UsageRecords>\n"


def record_id(number: int) -> str:
    return f"ur-ce.example.org-{number:06d}"


def global_id(number: int) -> str:
    return f"https://ce.example.org:443/rest/1.0/jobs/{number:06d}"


def record(
    number: int,
    *,
    extra: str = "",
    name: str | None = None,
    other_global_id: str | None = None,
    local_id: str | None = None,
    machine: str = "ce.example.org",
    identity: str | None = None,
) -> bytes:
    """One record; `extra` goes to its end as it is, and repeated elements win there."""
    chosen = (
        identity or f'<urf:RecordIdentity urf:recordId="{record_id(number)}" urf:createTime="2026-11-20T10:00:00Z"/>'
    )
    text = (
        f"<urf:JobUsageRecord>{chosen}"
        f"<urf:JobIdentity><urf:GlobalJobId>{escape(other_global_id or global_id(number))}</urf:GlobalJobId>"
        f"<urf:LocalJobId>{local_id or number}</urf:LocalJobId></urf:JobIdentity>"
        "<urf:UserIdentity><urf:LocalUserId>griduser</urf:LocalUserId>"
        "<urf:GlobalUserName>/DC=org/DC=example/CN=Åsa Öberg</urf:GlobalUserName>"
        '<vo:VO vo:type="voms"><vo:Name>atlas</vo:Name><vo:Issuer>/CN=voms.example.org</vo:Issuer>'
        "<vo:Attribute><vo:Group>/atlas</vo:Group><vo:Role>Role=production</vo:Role></vo:Attribute></vo:VO>"
        "</urf:UserIdentity>"
        f"<urf:JobName>{escape(name or f'job {number}')}</urf:JobName><urf:Status>completed</urf:Status>"
        "<urf:WallDuration>PT1H</urf:WallDuration>"
        '<urf:CpuDuration urf:usageType="user">PT50M</urf:CpuDuration>'
        '<urf:CpuDuration urf:usageType="system">PT2M</urf:CpuDuration>'
        "<urf:StartTime>2026-11-20T08:00:00Z</urf:StartTime><urf:EndTime>2026-11-20T09:00:00Z</urf:EndTime>"
        f"<urf:MachineName>{machine}</urf:MachineName><urf:Host>wn1.example.org</urf:Host>"
        f"<urf:Queue>grid</urf:Queue><urf:Processors>4</urf:Processors>{extra}</urf:JobUsageRecord>\n"
    )
    return text.encode()


def document(records: Iterable[bytes]) -> bytes:
    """Records in their frame."""
    return b"".join((HEAD, *records, TAIL))


def numbered(numbers: Iterable[int]) -> bytes:
    """A document of plain records with these numbers."""
    return document(record(number) for number in numbers)
