"""What this machine can do at best: each part of the work alone, with nothing kept or checked.

`python -m benchmarks.floors DATABASE JOBS CONFIG FOLDER` prints JSON.
"""

from __future__ import annotations

import base64
import json
import socket
import sqlite3
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key, pkcs7

from benchmarks.measure import Cost, measured

_PAGE: Final = 500
_MESSAGE_BYTES: Final = 700_000  # about what fills a message of AMS
_RECORD_BYTES: Final = 1_780
_MESSAGES: Final = 60
_FREE_TEXTS: Final = 8  # values of a job that somebody else chose, and that must be escaped
_NUMBERS: Final = 14
_PARTS: Final = (
    "SELECT * FROM AAR WHERE RecordID BETWEEN ? AND ?",
    "SELECT RecordID, AttrKey, AttrValue FROM AuthTokenAttributes WHERE RecordID BETWEEN ? AND ?",
    "SELECT RecordID, InfoKey, InfoValue FROM JobExtraInfo WHERE RecordID BETWEEN ? AND ?",
    "SELECT RecordID, EventKey, EventTime FROM JobEvents"
    " WHERE RecordID BETWEEN ? AND ? AND +EventKey IN ('FINISHED', 'LRMSSTART')",
)
_SUMMED_PAGE: Final = 20_000
_GROUPED: Final = """
    SELECT EndpointID, QueueID, UserID, VOID, FQANID, StatusID, BenchmarkID, NodeCount, CPUCount,
           EndTime / 2629746, count(*), sum(UsedWalltime), sum(UsedCPUUserTime + UsedCPUKernelTime),
           min(EndTime), max(EndTime)
    FROM AAR WHERE RecordID BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"""
_COMPLETE: Final = (
    "SELECT count(*) FROM JobEvents WHERE RecordID BETWEEN ? AND ? AND +EventKey = 'FINISHED'"
)

Floor = tuple[str, float, str, Cost]


def floors(database: Path, jobs: int, settings: dict[str, Any], folder: Path) -> Iterator[Floor]:
    """Name, how many of what, and the cost."""
    yield "rows joined with side rows, as tuples", jobs, "jobs", _rows(database, jobs)
    name = "rows summed by SQLite, and seen to be complete"
    yield name, jobs, "jobs summed", _sums(database, jobs)
    yield "records from a template, values escaped", jobs, "records", _template(jobs)
    megabytes = _MESSAGES * _MESSAGE_BYTES / 1e6
    yield "detached signatures, DER", megabytes, "MB", _sign(settings["credentials"])
    yield "base64 and JSON", megabytes, "MB", _base64()
    yield "TLS on one connection", megabytes * 4 / 3, "MB on the wire", _push(settings)
    yield "payloads through SQLite's log to the disk", megabytes, "MB", _write(folder)


def _rows(database: Path, jobs: int) -> Cost:
    with (
        closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as connection,
        measured() as stretch,
    ):
        for first in range(1, jobs + 1, _PAGE):
            connection.execute("BEGIN")
            for part in _PARTS:
                connection.execute(part, (first, min(first + _PAGE - 1, jobs))).fetchall()
            connection.execute("COMMIT")
    return stretch.cost


def _sums(database: Path, jobs: int) -> Cost:
    """What summaries need: sums by all that tells groups apart, and each job's FINISHED event."""
    with (
        closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as connection,
        measured() as stretch,
    ):
        for first in range(1, jobs + 1, _SUMMED_PAGE):
            connection.execute("BEGIN")
            for part in (_GROUPED, _COMPLETE):
                connection.execute(part, (first, min(first + _SUMMED_PAGE - 1, jobs))).fetchall()
            connection.execute("COMMIT")
    return stretch.cost


def _template(jobs: int) -> Cost:
    slots = ["<e>%s</e>"] * (_FREE_TEXTS + _NUMBERS)
    template = "".join(slots) + "x" * (_RECORD_BYTES - 20 * len(slots))
    texts = [f"/DC=org/CN=A User {number}" for number in range(_FREE_TEXTS)]
    numbers = tuple(range(1_000_000, 1_000_000 + _NUMBERS))
    with measured() as stretch:
        for first in range(0, jobs, _PAGE):
            records = []
            for _ in range(min(_PAGE, jobs - first)):
                records.append(template % (*map(escape, texts), *numbers))  # noqa: PERF401  # a call a record, as it is
            "\n".join(records).encode("ascii")
    return stretch.cost


def _sign(credentials: dict[str, str]) -> Cost:
    certificate = x509.load_pem_x509_certificate(Path(credentials["certificate"]).read_bytes())
    key: Any = load_pem_private_key(Path(credentials["key"]).read_bytes(), None)
    payload = b"x" * 79 + b"\n"
    payload *= _MESSAGE_BYTES // len(payload)
    options = [pkcs7.PKCS7Options.DetachedSignature, pkcs7.PKCS7Options.Binary]
    with measured() as stretch:
        for _ in range(_MESSAGES):
            builder = pkcs7.PKCS7SignatureBuilder().set_data(payload)
            builder.add_signer(certificate, key, hashes.SHA256()).sign(Encoding.DER, options)
    return stretch.cost


def _base64() -> Cost:
    payload = b"x" * _MESSAGE_BYTES
    with measured() as stretch:
        for _ in range(_MESSAGES):
            data = base64.b64encode(payload)
            _ = b'{"messages":[{"attributes":{"empaid":"%b"},"data":"%b"}]}' % (b"id", data)
    return stretch.cost


def _push(settings: dict[str, Any]) -> Cost:
    """Requests as large as a message in base64, each answered before the next."""
    (target,) = settings["targets"].values()
    context = ssl.create_default_context(capath=settings["credentials"]["ca"])
    body = b"x" * (_MESSAGE_BYTES // 3 * 4)
    head = b"POST /floor HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    raw = socket.create_connection(("127.0.0.1", urlsplit(target["url"]).port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(raw, server_hostname="localhost") as connection, measured() as stretch:
        for _ in range(_MESSAGES):
            connection.sendall(head + body)
            if not connection.recv(65536):
                raise ConnectionError("the sink went away")
    return stretch.cost


def _write(folder: Path) -> Cost:
    """A payload in one durable transaction, its end in another: the least against power cuts."""
    payload = b"x" * _MESSAGE_BYTES
    with closing(sqlite3.connect(folder / "floor.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE outbox (message INTEGER PRIMARY KEY, payload BLOB)")
        with measured() as stretch:
            for message in range(_MESSAGES):
                connection.execute("INSERT INTO outbox VALUES (?, ?)", (message, payload))
                connection.execute("DELETE FROM outbox WHERE message = ?", (message,))
    return stretch.cost


if __name__ == "__main__":
    settings = yaml.safe_load(Path(sys.argv[3]).read_text())
    found = floors(Path(sys.argv[1]), int(sys.argv[2]), settings, Path(sys.argv[4]))
    told = [
        {"name": name, "count": n, "unit": unit, "cost": asdict(cost)}
        for name, n, unit, cost in found
    ]
    print(json.dumps(told))
