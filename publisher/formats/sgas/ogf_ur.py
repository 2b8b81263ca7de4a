"""OGF Usage Record 1.0 with the extensions that SGAS reads, in UTF-8, one record per line.

`FIELDS` is the record in the order of the UR schema (head, group 1, group 2), then the elements of
other namespaces, without which it would still be a valid UR 1.0. Attributes carry a prefix (SGAS
does not see unqualified ones). Nothing empty is ever written: an empty number, time or id crashes
the server's parser and loses the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import ClassVar, Final

from publisher import __version__
from publisher.formats.base import Frame, Receiver
from publisher.formats.compiled import MADE_AT, Escapes, Once, Scope, Written
from publisher.formats.rules import latest_end, require
from publisher.formats.sgas import check_ogf_ur, values
from publisher.formats.sgas.receiver import USAGE_RECORDS
from publisher.formats.sgas.rules import SGAS_WHERE_RULES, SGAS_WHO_RULES, require_sgas_run
from publisher.formats.xml.charge import charge_element, charge_pattern
from publisher.formats.xml.pattern import (
    DOMAIN,
    NUMBER,
    POSITIVE,
    TIME,
    Patterns,
    RecordPattern,
    at_most,
)
from publisher.formats.xml.template import Field, TemplateCompiler
from publisher.formats.xml.text import ARE_PLAIN, escape_unicode, instant
from publisher.model.job import SideTable, Transfer
from publisher.model.published import Placement, PublishedJob, UserIdentity

_UPLOAD: Final = "upload"
_CACHED: Final = "cached"

# What the writers below yield (xml/pattern.py).
_VO: Final = (
    f'<vo:VO vo:type="voms"><vo:Name>{at_most(1000)}</vo:Name>'
    f"(?:<vo:Issuer>{at_most(1000)}</vo:Issuer>)?"
    f"(?:<vo:Attribute><vo:Group>{at_most(100)}</vo:Group>"
    f"(?:<vo:Role>{at_most(100)}</vo:Role>)?</vo:Attribute>)*+</vo:VO>"
)
USER_IDENTITY: Final = (
    f"(?!</)(?:<LocalUserId>{at_most(100)}</LocalUserId>)?"
    f"(?:<GlobalUserName>{at_most(1000)}</GlobalUserName>)?(?:{_VO})?"
)
_TRANSFER_PATTERN: Final = (
    f"<tr:URL>{at_most(2500)}</tr:URL>(?:<tr:Size>[0-9]{{1,18}}</tr:Size>)?"
    f"(?:<tr:StartTime>{TIME}</tr:StartTime>)?(?:<tr:EndTime>{TIME}</tr:EndTime>)?"
)
ALLOCATED_GPUS: Final = (
    '<sgas:AllocResource sgas:resourceType="gres/gpu" sgas:resourceAmount="[1-9][0-9]{0,8}"/>'
)
FILE_TRANSFERS: Final = (
    f"(?:<tr:FileDownload>{_TRANSFER_PATTERN}"
    "<tr:RetrievedFromCache>(?:true|false)</tr:RetrievedFromCache></tr:FileDownload>"
    f"|<tr:FileUpload>{_TRANSFER_PATTERN}</tr:FileUpload>)++"
)


def _element(name: str, escaped: str) -> str:
    """The element around escaped text or elements; '' where there is none."""
    return f"<{name}>{escaped}</{name}>" if escaped else ""


@lru_cache(maxsize=4096)
def _local_user(user: str) -> str:
    return _element("LocalUserId", escape_unicode(values.local_user(user)))


def _global_identity(who: UserIdentity) -> str:
    """GlobalUserName and vo:VO. Raises: Unfit when SGAS would refuse one of them."""
    require(SGAS_WHO_RULES, who)
    attributes = "".join(_vo_attribute(*pair) for pair in values.vo_attributes(who))
    name = _element("vo:Name", escape_unicode(who.vo))
    issuer = _element("vo:Issuer", escape_unicode(who.vo_issuer))
    # Without a name the server drops all; another vo:type than jura-ng's is another VO to it.
    vo = f'<vo:VO vo:type="voms">{name}{issuer}{attributes}</vo:VO>'
    return _element("GlobalUserName", escape_unicode(who.user)) + (vo if name else "")


def _vo_attribute(group: str, role: str) -> str:
    parts = _element("vo:Group", escape_unicode(group)), _element("vo:Role", escape_unicode(role))
    return _element("vo:Attribute", "".join(parts))


_identities: Final = Once(_global_identity)


def user_identity(job: PublishedJob) -> str:
    """What is in UserIdentity, in the schema's order. Raises: Unfit.

    jura-ng sends `user:group` as the local user where it knows a group; here it is the user alone.
    """
    return _local_user(job.local_user) + _identities(job.who)


def allocated_gpus(count: int) -> str:
    """The whole element."""
    amount = f'sgas:resourceAmount="{count}"'
    return f'<sgas:AllocResource sgas:resourceType="gres/gpu" {amount}/>'


def file_transfers(all_of_them: Sequence[Transfer]) -> str:
    """What is in tr:FileTransfers; URLs without passwords and signatures (`sgas.public_url`)."""
    return "".join([_transfer(transfer, url) for transfer, url in values.transfers(all_of_them)])


def _transfer(transfer: Transfer, url: str) -> str:
    size, began, ended = transfer.size_bytes, transfer.started_at, transfer.ended_at
    elements = [f"<tr:URL>{escape_unicode(url)}</tr:URL>"]
    if size is not None and 0 <= size <= values.INT8_MAX:
        elements.append(f"<tr:Size>{size}</tr:Size>")
    if began is not None and values.known_time(began):
        elements.append(f"<tr:StartTime>{instant(began)}</tr:StartTime>")
    if ended is not None and values.known_time(ended):
        elements.append(f"<tr:EndTime>{instant(ended)}</tr:EndTime>")
    if transfer.kind == _UPLOAD:
        return f"<tr:FileUpload>{''.join(elements)}</tr:FileUpload>"
    cached = "true" if transfer.kind == _CACHED else "false"
    elements.append(f"<tr:RetrievedFromCache>{cached}</tr:RetrievedFromCache>")
    return f"<tr:FileDownload>{''.join(elements)}</tr:FileDownload>"


NAMESPACE: Final = "http://schema.ogf.org/urf/2003/09/urf"
PREFIX: Final = "urf"
EXTENSIONS: Final = {
    "vo": "http://www.sgas.se/namespaces/2009/05/ur/vo",
    "sgas": "http://www.sgas.se/namespaces/2009/07/ur",
    "logger": "http://www.sgas.se/namespaces/2010/08/logger",
    "tr": "http://www.sgas.se/namespaces/2010/10/filetransfer",
    "deisa": "http://rmis.deisa.org/acct",
    "arc": "http://www.nordugrid.org/ws/schemas/ur-arc",
}
_TRANSFERS_BEGIN: Final = b"<tr:FileTransfers>"
_TRANSFERS_END: Final = b"</tr:FileTransfers>"


_POSITIVE: Final = Written("value")
_KNOWN: Final = Written("value is not None")
_TIME: Final = Written("value is not None", instant)
_GPUS: Final = Written("value", allocated_gpus)
_TRANSFERS: Final = Written("value", file_transfers)
_CHARGE: Final = charge_element(PREFIX, escape_unicode)

# What writers yield (xml/pattern.py), and less than that where the server's columns are narrower.
_PATTERNS: Final[Patterns] = {
    escape_unicode: at_most(1000),
    str: NUMBER,
    _KNOWN: NUMBER,
    _POSITIVE: POSITIVE,
    _TIME: TIME,
    instant: TIME,
    user_identity: USER_IDENTITY,
    _TRANSFERS: FILE_TRANSFERS,
    _GPUS: ALLOCATED_GPUS,
    values.host: DOMAIN,
}
_BYTE: Final = "[0-9]{1,2}|1[0-9]{2}|2[0-4][0-9]|25[0-5]"
_ADDRESS: Final = f"(?:(?:{_BYTE})[.]){{3}}(?:{_BYTE})|[0-9A-Fa-f:]{{2,39}}"
_COUNT: Final = "[1-9][0-9]{0,8}"
_SMALL: Final = "[1-9][0-9]{0,3}"

# Spec: GFD.98, its parts numbered from the head on; SGAS's extensions by their namespaces.
FIELDS: Final[tuple[Field, ...]] = (
    Field(row="head 1", name="RecordIdentity", value="record_id(job)", write=escape_unicode,
          value_in="recordId", attributes=(("createTime", MADE_AT),), mandatory=True),
    Field(row="head 2", inside="JobIdentity", name="GlobalJobId", value="run.job_id",
          write=escape_unicode, mandatory=True),
    Field(row="head 2", inside="JobIdentity", name="LocalJobId", value="local_id(job)",
          write=escape_unicode, pattern=f"(?!/){at_most(40)}"),
    # LocalUserId, GlobalUserName, vo:VO
    Field(row="head 3", name="UserIdentity", value="job", write=user_identity),
    Field(row="head 4", name="JobName", value="job_name(job.job_name)",
          write=escape_unicode),
    Field(row="head 5", name="Charge", value="charge(job.charge)", whole=True, write=_CHARGE,
          pattern=charge_pattern(PREFIX)),
    Field(row="head 6", name="Status", value="run.status", write=escape_unicode,
          mandatory=True, pattern=at_most(100)),
    # In jura-ng's order: SGAS keeps no type `virtual`, so that its place is what tells it
    Field(row="group 1", name="Memory",
          value="memory_kib(run.virtual_memory_kib)", write=_POSITIVE,
          attributes=(("storageUnit", "KB"), ("metric", "max"), ("type", "virtual"))),
    Field(row="group 1", name="Memory", value="memory_kib(run.memory_kib)", write=_POSITIVE,
          attributes=(("storageUnit", "KB"), ("metric", "max"), ("type", "physical"))),
    # SGAS ignores Disk, Network and ServiceLevel; jura-ng sends them, forks may read them
    Field(row="group 1", name="Disk", value="positive(run.scratch_bytes)", write=_POSITIVE,
          attributes=(("storageUnit", "B"), ("metric", "total"), ("type", "scratch"))),
    Field(row="group 1", name="Network",
          value="positive(run.stage_in_bytes, run.stage_out_bytes)", write=_POSITIVE,
          attributes=(("storageUnit", "B"), ("metric", "total"))),
    Field(row="group 1", name="ServiceLevel", value="run.wn_instance",
          write=escape_unicode),
    Field(row="group 2", name="WallDuration", value="run.wall_s", write=str,
          form="PT%sS", mandatory=True),
    # SGAS sums all it finds, whatever their type: these two and no total
    Field(row="group 2", name="CpuDuration", value="None if run.cpu_unknown else run.cpu_user_s",
          write=_KNOWN, form="PT%sS", attributes=(("usageType", "user"),)),
    Field(row="group 2", name="CpuDuration",
          value="None if run.cpu_unknown else run.cpu_kernel_s", write=_KNOWN, form="PT%sS",
          attributes=(("usageType", "system"),)),
    # NodeCount alone would be taken for Processors
    Field(row="group 2", name="NodeCount", value="node_count(run.node_count)", write=_POSITIVE,
          pattern=_SMALL),
    Field(row="group 2", name="Processors", value="processors(run.cpu_count)",
          write=str, mandatory=True, pattern=_COUNT),
    Field(row="group 2", name="EndTime", value="job.ended_at", write=instant,
          mandatory=True),
    Field(row="group 2", name="StartTime", value="start_time(job)", write=_TIME),
    Field(row="group 2", name="MachineName", of=Scope.WHERE, value=lambda where: where.machine_name,
          write=escape_unicode, mandatory=True, pattern=DOMAIN),
    Field(row="group 2", name="SubmitHost", value="submit_host(job.client_host)",
          write=escape_unicode, pattern=f"{DOMAIN}|{_ADDRESS}"),
    Field(row="group 2", name="Queue", of=Scope.WHERE,
          value=lambda where: values.queue(where.queue), write=escape_unicode,
          pattern=at_most(200)),
    Field(row="group 2", name="ProjectName", of=Scope.PROJECTS,
          value=values.projects, write=escape_unicode, each=True,
          pattern=at_most(200)),
    # SGAS keeps the last one only: the primary alone
    Field(row="group 2", name="Host", of=Scope.HOSTS, value=lambda hosts: hosts[:1],
          write=values.host, attributes=(("primary", "true"),), each=True),
    Field(row="deisa", name="deisa:SubmitTime",
          value="known_time(run.submitted_at)", write=_TIME),
    Field(row="sgas", name="sgas:UserTime", value="None if run.cpu_unknown else run.cpu_user_s",
          write=_KNOWN, form="PT%sS"),
    Field(row="sgas", name="sgas:KernelTime",
          value="None if run.cpu_unknown else run.cpu_kernel_s", write=_KNOWN, form="PT%sS"),
    Field(row="sgas", name="sgas:ExitCode", value="exit_code(run.exit_code)", write=_KNOWN,
          pattern=_BYTE),
    # As SGAS's own logger writes it. The server ignores it; forks may read it
    Field(row="sgas", name="sgas:AllocResource", value="run.gpu_count",
          write=_GPUS, whole=True),
    Field(row="logger", name="logger:LoggerName", of=Scope.WHERE,
          value=lambda _: f"publisher {__version__}", write=escape_unicode, mandatory=True),
    Field(row="arc", name="arc:RuntimeEnvironment", of=Scope.ENVIRONMENTS,
          value=values.runtime_environments,
          write=escape_unicode, each=True, pattern=at_most(512)),
    # The last, and without attributes: what `shed` takes away
    Field(row="tr", name="tr:FileTransfers", value="job.transfers", write=_TRANSFERS),
)  # fmt: skip


def _admitted(where: Placement) -> str:
    """Return nothing. Raises: Unfit where SGAS would refuse the place."""
    require(SGAS_WHERE_RULES, where)
    return ""


class OgfUr:
    """UR 1.0 for SGAS.

    A record that is too large for a message is so by its file transfers: `shed` makes one without
    them, and the job still counts. Whoever ships the record decides, and says so.
    """

    name: ClassVar[str] = "ogf-ur"
    receiver: ClassVar[Receiver] = USAGE_RECORDS
    needs: ClassVar[frozenset[SideTable]] = frozenset(
        (SideTable.TRANSFERS, SideTable.RUNTIME_ENVIRONMENTS)
    )
    # Declared once: on every record these would be 500 bytes of 2,000. Release 3.8.1 takes the
    # encoding from the declaration.
    frame: ClassVar[Frame] = Frame(
        head=(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<UsageRecords xmlns="{NAMESPACE}" xmlns:{PREFIX}="{NAMESPACE}"'
            + "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in EXTENSIONS.items())
            + ">\n"
        ).encode("ascii"),
        separator=b"\n",
        tail=b"\n</UsageRecords>\n",
    )

    def __init__(self) -> None:
        self._admit = Once(_admitted)
        escapes = Escapes(frozenset({escape_unicode}), ARE_PLAIN)
        planner = TemplateCompiler(PREFIX, escape_unicode, {}, escapes, names=vars(values))
        self._fill = planner.plan("JobUsageRecord", FIELDS)
        self._form = RecordPattern(planner, "JobUsageRecord", FIELDS, _PATTERNS)
        self._begin(datetime(1970, 1, 1, tzinfo=UTC))

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """One element JobUsageRecord, created at `made_at`, which no end time may be later than."""
        if made_at is not self._made_at:
            self._begin(made_at)
        self._admit(job.where)
        require_sgas_run(job, self._latest_end)
        return self._fill(job, self._created).encode("utf-8")

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """recordId, SGAS's only key: of two records of a batch with the same it discards one."""
        return (values.record_id(job),)

    def matches(self, record: bytes) -> bool:
        """Whether a record has a form that `check` surely takes, at an eighth of its cost."""
        return self._form.match(record) is not None

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        check_ogf_ur(payload)

    def shed(self, content: bytes) -> bytes | None:
        """The record of `render` without its file transfers; None when it has none to shed.

        Text is escaped, so that the tags are found nowhere but where they stand.
        """
        begin = content.find(_TRANSFERS_BEGIN)
        if begin < 0:
            return None
        end = content.index(_TRANSFERS_END, begin) + len(_TRANSFERS_END)
        return content[:begin] + content[end:]

    def _begin(self, made_at: datetime) -> None:
        self._made_at, self._latest_end = made_at, latest_end(made_at)
        self._created = instant(int(made_at.timestamp()))


def create(name: str = OgfUr.name) -> OgfUr:
    return {OgfUr.name: OgfUr}[name]()
