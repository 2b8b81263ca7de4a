"""The parts of a usage record that have structure of their own: the user with the VO, and the file transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from publisher.formats.form import TIME, at_most
from publisher.formats.xml import Fragments, escape_unicode, instant
from publisher.model import sgas
from publisher.model.job import Transfer
from publisher.model.policy import PublishedJob, Who
from publisher.model.quality import require
from publisher.model.quality_sgas import SGAS_WHO_RULES

_UPLOAD: Final = "upload"
_CACHED: Final = "cached"

# What the writers below yield (formats/form.py).
_VO: Final = (
    f'<vo:VO vo:type="voms"><vo:Name>{at_most(1000)}</vo:Name>(?:<vo:Issuer>{at_most(1000)}</vo:Issuer>)?'
    f"(?:<vo:Attribute><vo:Group>{at_most(100)}</vo:Group>(?:<vo:Role>{at_most(100)}</vo:Role>)?</vo:Attribute>)*+</vo:VO>"
)
USER_IDENTITY: Final = (
    f"(?!</)(?:<LocalUserId>{at_most(100)}</LocalUserId>)?"
    f"(?:<GlobalUserName>{at_most(1000)}</GlobalUserName>)?(?:{_VO})?"
)
_SAID: Final = (
    f"<tr:URL>{at_most(2500)}</tr:URL>(?:<tr:Size>[0-9]{{1,18}}</tr:Size>)?"
    f"(?:<tr:StartTime>{TIME}</tr:StartTime>)?(?:<tr:EndTime>{TIME}</tr:EndTime>)?"
)
ALLOCATED_GPUS: Final = '<sgas:AllocResource sgas:resourceType="gres/gpu" sgas:resourceAmount="[1-9][0-9]{0,8}"/>'
FILE_TRANSFERS: Final = (
    f"(?:<tr:FileDownload>{_SAID}<tr:RetrievedFromCache>(?:true|false)</tr:RetrievedFromCache></tr:FileDownload>"
    f"|<tr:FileUpload>{_SAID}</tr:FileUpload>)++"
)


def _element(name: str, escaped: str) -> str:
    """The element around escaped text or elements; '' where there is none."""
    return f"<{name}>{escaped}</{name}>" if escaped else ""


def _global_identity(who: Who) -> str:
    """GlobalUserName and vo:VO. Raises: Unfit when SGAS would refuse one of them."""
    require(SGAS_WHO_RULES, who)
    attributes = "".join(
        _element(
            "vo:Attribute", _element("vo:Group", escape_unicode(group)) + _element("vo:Role", escape_unicode(role))
        )
        for group, role in sgas.vo_attributes(who)
    )
    name = _element("vo:Name", escape_unicode(who.vo))
    # Without a name the server drops the whole; another vo:type than jura-ng's would be another VO to it.
    vo = f'<vo:VO vo:type="voms">{name}{_element("vo:Issuer", escape_unicode(who.vo_issuer))}{attributes}</vo:VO>'
    return _element("GlobalUserName", escape_unicode(who.user)) + (vo if name else "")


# By identity, for all records of this process: policy shares the users, and drops them as often.
_global_identities: Final = Fragments(_global_identity)


def user_identity(job: PublishedJob) -> str:
    """What stands in UserIdentity, in the schema's order. Raises: Unfit.

    jura-ng sends `user:group` as the local user where it knows a group; here it is the user alone.
    """
    return _element("LocalUserId", escape_unicode(sgas.local_user(job.local_user))) + _global_identities(job.who)


def allocated_gpus(count: int | None) -> str:
    """The whole element; '' where there are none."""
    return f'<sgas:AllocResource sgas:resourceType="gres/gpu" sgas:resourceAmount="{count}"/>' if count else ""


def file_transfers(all_of_them: Sequence[Transfer]) -> str:
    """What stands in tr:FileTransfers; URLs without passwords and signatures (see `sgas.public_url`)."""
    if not all_of_them:
        return ""
    return "".join([_transfer(transfer, url) for transfer, url in sgas.transfers(all_of_them)])


def _transfer(transfer: Transfer, url: str) -> str:
    size, began, ended = transfer.size_bytes, transfer.started_at, transfer.ended_at
    said = [f"<tr:URL>{escape_unicode(url)}</tr:URL>"]
    if size is not None and 0 <= size <= sgas.INT8_MAX:
        said.append(f"<tr:Size>{size}</tr:Size>")
    if began is not None and sgas.known_time(began):
        said.append(f"<tr:StartTime>{instant(began)}</tr:StartTime>")
    if ended is not None and sgas.known_time(ended):
        said.append(f"<tr:EndTime>{instant(ended)}</tr:EndTime>")
    if transfer.kind == _UPLOAD:
        return f"<tr:FileUpload>{''.join(said)}</tr:FileUpload>"
    cached = "true" if transfer.kind == _CACHED else "false"
    return f"<tr:FileDownload>{''.join(said)}<tr:RetrievedFromCache>{cached}</tr:RetrievedFromCache></tr:FileDownload>"
