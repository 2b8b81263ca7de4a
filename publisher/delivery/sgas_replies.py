"""The texts of SGAS, read: who speaks and which line tells something, the service list, and what we had sent.

Spec: sgas facts sections 2 to 4, measured on luts3-service 3.8.1 and its head of development, with Twisted 18.9 and 25.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from html import unescape
from typing import Final
from urllib.parse import urlsplit

from lxml import etree

from publisher.delivery.answer import plain

WORDS_LENGTH: Final = 300
# A traceback has 7 to 9 kB and says what went wrong at its beginning; looking further only costs time on hostile pages.
_LOOKED_AT: Final = 16_384
_URF: Final = "{http://schema.ogf.org/urf/2003/09/urf}"
_TAG: Final = re.compile(r"<[^>]*>")
_STYLE: Final = re.compile(r"<(style|script)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_ERROR: Final = re.compile(r'<div class="error">\s*<span>(.*?)</span>\s*:?\s*<span>(.*?)</span>', re.DOTALL)


# The beginning of a record as this package writes it, with names in which nothing had to be escaped.
_BEGINS: Final = b"<JobUsageRecord>"
_NAMES: Final = re.compile(
    rb'<RecordIdentity urf:createTime="[^"]*" urf:recordId="([^"&]*)"/><JobIdentity><GlobalJobId>([^<&]*)</GlobalJobId>'
).match


class Voice(StrEnum):
    """Who speaks: SGAS (its traceback, Twisted's two words in place of one, or plain text), nginx, or somebody else."""

    TRACEBACK = "traceback"
    BARE = "Processing Failed"
    PLAIN = "plain text"
    NGINX = "nginx"
    FOREIGN = "another page"
    SILENCE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The voice, and its telling line in printable ASCII: `Class: message` of a traceback, the title of a page."""

    voice: Voice
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRecord:
    """What the server may name a record by, and what it authorises by."""

    record_id: str
    global_job_id: str
    machine_name: str


def said(body: bytes) -> Said:
    """What a body says. Its Content-Type is not asked: SGAS labels everything as HTML."""
    text = body[:_LOOKED_AT].decode("utf-8", "replace").strip()
    if not text:
        return Said(voice=Voice.SILENCE, words="")
    if not text.startswith("<"):
        # PostgreSQL continues with DETAIL and CONTEXT, which hold the values of the row.
        return Said(voice=Voice.PLAIN, words=plain(text.splitlines()[0], WORDS_LENGTH))
    if found := _ERROR.search(text):
        kind, message = (unescape(_TAG.sub("", part)) for part in found.groups())
        return Said(voice=Voice.TRACEBACK, words=plain(f"{kind.strip().rpartition('.')[2]}: {message}", WORDS_LENGTH))
    title = _TITLE.search(text)
    words = plain(unescape(title[1] if title else _TAG.sub(" ", _STYLE.sub(" ", text))), WORDS_LENGTH)
    if "Processing Failed" in words:
        return Said(voice=Voice.BARE, words="Processing Failed")
    return Said(voice=Voice.NGINX if "<center>nginx" in text else Voice.FOREIGN, words=words)


def sent_records(payload: bytes) -> tuple[SentRecord, ...]:
    """The records of a payload of ours, in order; none when it is not well-formed, which the server will tell."""
    root = _parse(payload)
    if root is None:
        return ()
    return tuple(
        SentRecord(
            record_id=_attribute(record.find(f"{_URF}RecordIdentity"), f"{_URF}recordId"),
            global_job_id=record.findtext(f"{_URF}JobIdentity/{_URF}GlobalJobId") or "",
            machine_name=record.findtext(f"{_URF}MachineName") or "",
        )
        for record in root.iter(f"{_URF}JobUsageRecord")
    )


def sent_machines(payload: bytes) -> tuple[str, ...]:
    """The MachineName of every record of a payload of ours, in order."""
    return tuple(record.machine_name for record in sent_records(payload))


def sent_names(payload: bytes) -> tuple[tuple[str, str], ...]:
    """recordId and GlobalJobId of the records of a payload of ours, in order; none when it is not well-formed.

    As our own writer begins a record, where it did: to parse all of it took 20 µs a record, this takes 1.
    """
    found = [_NAMES(record) for record in payload.split(_BEGINS)[1:]]
    names = [(one[1].decode(), one[2].decode()) for one in found if one is not None]
    if len(names) == len(found) > 0:
        return tuple(names)
    return tuple((record.record_id, record.global_job_id) for record in sent_records(payload))


def service_paths(body: bytes) -> Mapping[str, str] | None:
    """Name and path of every service in the service list; None when it is none.

    Only the path: the server makes host and port of its own headers, and behind an address translation they are wrong.
    """
    root = _parse(body)
    if root is None or etree.QName(root).localname != "services":
        return None
    found = {}
    for service in root.iter("{*}service"):
        name = (service.findtext("{*}name") or "").strip()
        try:
            path = urlsplit((service.findtext("{*}href") or "").strip()).path
        except ValueError:
            continue
        if name and path.startswith("/"):
            found[name] = path
    return found


def _parse(document: bytes) -> etree._Element | None:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True)
    try:
        return etree.fromstring(document, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def _attribute(element: etree._Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")
