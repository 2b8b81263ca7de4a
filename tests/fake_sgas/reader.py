"""A document to rows, as SGAS reads it: what it looks at, what it lets pass, and what brings it down.

Measured on luts3-service.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from lxml import etree

from tests.fake_sgas import values
from tests.fake_sgas.failures import Crash, Generation
from tests.fake_sgas.rows import Row, TransferRow

URF: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
VO: Final = "{http://www.sgas.se/namespaces/2009/05/ur/vo}"
SGAS: Final = "{http://www.sgas.se/namespaces/2009/07/ur}"
TR: Final = "{http://www.sgas.se/namespaces/2010/10/filetransfer}"
DEISA: Final = "{http://rmis.deisa.org/acct}"
ARC: Final = "{http://www.nordugrid.org/ws/schemas/ur-arc}"

_LOCAL_ID_LIMIT: Final[dict[Generation, int]] = {"H": 120, "R": 40}
_HOST_LIMIT: Final = 2699

# Element: column, and what makes a value of its text. Of several, the last wins.
_FIELDS: Final[dict[str, tuple[str, Callable[[str | None], object]]]] = {
    f"{URF}JobName": ("job_name", lambda text: text),
    f"{URF}Status": ("status", lambda text: text),
    f"{URF}ProjectName": ("project_name", lambda text: text),
    f"{URF}SubmitHost": ("submit_host", lambda text: text),
    f"{URF}Queue": ("queue", lambda text: text),
    f"{URF}MachineName": ("machine_name", lambda text: text),
    f"{URF}Host": ("host", lambda text: _cut_host(text)),
    f"{URF}Charge": ("charge", values.truncated),
    f"{URF}WallDuration": ("wall_s", values.seconds),
    f"{URF}NodeCount": ("node_count", values.integer),
    f"{URF}Processors": ("processors", values.integer),
    f"{URF}StartTime": ("start_time", values.moment),
    f"{URF}EndTime": ("end_time", values.moment),
    f"{DEISA}SubmitTime": ("submit_time", values.moment),
    f"{SGAS}UserTime": ("user_time_s", values.seconds),
    f"{SGAS}KernelTime": ("kernel_time_s", values.seconds),
    f"{SGAS}ExitCode": ("exit_code", lambda text: values.strict_integer(text) % 256),
    f"{SGAS}MajorPageFaults": ("major_page_faults", values.integer),
}


def read_document(body: bytes, generation: Generation) -> list[Row]:
    """The records of a POST. Raises: Crash, Refusal."""
    root = _parse(body, generation)
    if root.tag == f"{URF}JobUsageRecord":
        return [_read_record(root, generation)]
    if root.tag != f"{URF}UsageRecords":
        raise Crash("ParseError", f"unexpected element {root.tag}")
    for child in root:
        if child.tag != f"{URF}JobUsageRecord":
            raise Crash("ParseError", f"unexpected element {child.tag}")
    return [_read_record(child, generation) for child in root]


def _parse(body: bytes, generation: Generation) -> etree._Element:
    # H decodes the bytes itself, so the encoding in the XML declaration means nothing to it.
    encoding = "utf-8" if generation == "H" else None
    parser = etree.XMLParser(
        encoding=encoding, remove_comments=True, remove_pis=True, no_network=True, load_dtd=False, huge_tree=True
    )
    try:
        if generation == "H":
            body.decode("utf-8")
        return etree.fromstring(body, parser)
    except UnicodeDecodeError as error:
        raise Crash("UnicodeDecodeError", str(error)) from error
    except (etree.XMLSyntaxError, ValueError) as error:
        raise Crash("xml.etree.ElementTree.ParseError", str(error)) from error


def _read_record(record: etree._Element, generation: Generation) -> Row:
    found: dict[str, Any] = {}
    cpu: list[int | None] = []
    memory = []
    environments: dict[str, None] = {}
    transfers: list[TransferRow] = []
    for element in record:
        tag = str(element.tag)
        if tag in _FIELDS:
            column, read = _FIELDS[tag]
            found[column] = read(element.text)
        elif tag == f"{URF}CpuDuration":
            cpu.append(values.seconds(element.text))  # the usage type is never looked at: everything is summed
        elif tag == f"{URF}Memory":
            unit, metric, kind = (element.get(f"{URF}{name}") for name in ("storageUnit", "metric", "type"))
            memory.append(values.memory(element.text, unit, metric, kind, generation))
        elif tag in (f"{ARC}RuntimeEnvironment", f"{SGAS}RuntimeEnvironment"):
            environments[values.present(element.text)] = None
        elif tag == f"{TR}FileTransfers":
            transfers += [_read_transfer(transfer) for transfer in element]
        elif tag == f"{URF}UserIdentity":
            found |= _read_user(element)
    _move_node_count(found)
    found |= {
        "cpu_s": _sum(cpu),
        "memory": tuple(memory),
        "runtime_environments": tuple(environments),
        "transfers": tuple(transfers),
    }
    return Row(**found, **_read_identity(record, found.get("machine_name"), generation))


def _read_identity(record: etree._Element, machine: str | None, generation: Generation) -> dict[str, Any]:
    """Record and job ids, with the heuristic about local ids that look like something else."""
    identity = record.find(f"{URF}RecordIdentity")
    if identity is None or (created := identity.get(f"{URF}createTime")) is None:
        raise Crash("TypeError", "expected string or bytes-like object, got 'NoneType' (createTime)")
    record_id = identity.get(f"{URF}recordId")
    global_id = record.findtext(f"{URF}JobIdentity/{URF}GlobalJobId") or None
    local = record.find(f"{URF}JobIdentity/{URF}LocalJobId")
    local_id = None if local is None else values.present(local.text)
    if local_id is not None and (local_id.startswith("/") or len(local_id) > _LOCAL_ID_LIMIT[generation]):
        local_id, record_id = None, global_id or _made_up(machine, values.moment(created))
    return {
        "record_id": record_id,
        "create_time": values.moment(created),
        "global_job_id": global_id,
        "local_job_id": local_id,
    }


def _made_up(machine: str | None, created: datetime | None) -> str:
    """Machine name and creation time in UTC, in the form of its insert statements. Raises: Crash."""
    if machine is None or created is None:
        raise Crash("TypeError", "can only concatenate str (not 'NoneType') to str")
    return f"{machine}:{created:%Y %m %d %H:%M:%S}"


def _read_user(identity: etree._Element) -> dict[str, Any]:
    """Names and VO. Several VOs become one: type and name of the last, issuer and attributes of the last that has any."""
    found: dict[str, Any] = {}
    for element in identity:
        if element.tag == f"{URF}GlobalUserName":
            found["global_user_name"] = element.text
        elif element.tag == f"{URF}LocalUserId":
            found["local_user_id"] = element.text
        elif element.tag == f"{VO}VO" and (name := element.findtext(f"{VO}Name")):
            found |= {"vo_type": element.get(f"{VO}type"), "vo_name": name}
            if issuer := element.findtext(f"{VO}Issuer"):
                found["vo_issuer"] = issuer
            if attributes := element.findall(f"{VO}Attribute"):
                found["vo_attributes"] = tuple(
                    (attribute.findtext(f"{VO}Group") or None, attribute.findtext(f"{VO}Role") or None)
                    for attribute in attributes
                )
    return found


def _read_transfer(element: etree._Element) -> TransferRow:
    def read(name: str, convert: Callable[[str | None], Any]) -> Any:
        child = element.find(f"{TR}{name}")
        return None if child is None else convert(child.text)

    url = element.findtext(f"{TR}URL")
    if not url:
        raise Crash("KeyError", "'url'")
    upload = element.tag == f"{TR}FileUpload"
    bypass, cached = read("BypassCache", values.boolean), read("RetrievedFromCache", values.boolean)
    return TransferRow(
        kind="upload" if upload else "download",
        url=url,
        size_bytes=read("Size", values.integer),
        started_at=read("StartTime", values.moment),
        ended_at=read("EndTime", values.moment),
        bypass_cache=None if upload else bypass,
        from_cache=None if upload else cached,
    )


def _sum(parts: Iterable[int | None]) -> int | None:
    """Raises: Crash when a part of several is NULL."""
    known = list(parts)
    if len(known) < 2:
        return known[0] if known else None
    total = 0
    for part in known:
        if part is None:
            raise Crash("TypeError", "unsupported operand type(s) for +=: 'int' and 'NoneType'")
        total += part
    return total


def _move_node_count(found: dict[str, Any]) -> None:
    """Nodes without processors are taken for processors. Too many for the column are kept there, to be refused."""
    nodes = found.get("node_count")
    if nodes is not None and found.get("processors") is None and nodes <= 32767:
        found["processors"], found["node_count"] = nodes, None


def _cut_host(text: str | None) -> str | None:
    return f"{text[:_HOST_LIMIT]}$" if text is not None and len(text) > _HOST_LIMIT else text
