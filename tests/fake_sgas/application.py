"""SGAS itself, behind nginx: its addresses, and an insert from body to reply, one at a time.

Measured on luts3-service. The interfaces to read data back are not here.
"""

import json
import re
import threading
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import urlsplit

from tests.fake_sgas.authz import Authz
from tests.fake_sgas.database import Database, Unavailable
from tests.fake_sgas.failures import Crash, Failure, Generation, Refusal, Reply, Twisted, page, plain
from tests.fake_sgas.reader import read_document
from tests.fake_sgas.rows import Row

_PLAIN_BY_STATUS = {404: "No Such Resource", 405: "Method Not Allowed", 501: "Method Not Supported"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One request as nginx hands it on."""

    method: str
    target: str
    host: str
    content_type: str
    subject: str


class Application:
    """The service. `base` is where its list of services is, `insert` the last part of the insert URL."""

    def __init__(
        self,
        *,
        generation: Generation,
        twisted: Twisted,
        authz: Authz,
        database: Database,
        base: str = "/sgas",
        insert: str = "ur",
    ) -> None:
        self.generation, self.twisted = generation, twisted
        self.authz, self.database = authz, database
        self._base, self._insert = base, insert
        self._reactor = threading.Lock()  # inserts run in the one thread that answers everything

    def route(self, target: str) -> str:
        """insert, services, or empty for an address that is not there."""
        path = re.sub(r"/+", "/", urlsplit(f"http://sgas{target}").path)
        return {self._base: "services", f"{self._base}/{self._insert}": "insert"}.get(path, "")

    def answer(self, query: Query, body: bytes) -> Reply:
        with self._reactor:
            route = self.route(query.target)
            if not route:
                return _page(404)
            if query.method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
                return _page(501)
            if query.method == "HEAD":
                return Reply(status=500)
            if route == "services":
                return self._services(query.host) if query.method == "GET" else _page(405)
            if query.method != "POST":
                return _page(405)
            if query.content_type.startswith("multipart/form-data") and "boundary" not in query.content_type:
                return Reply(status=400)
            return self._insert_answer(query.subject, body)

    def _services(self, host: str) -> Reply:
        """The list names hosts as the client named them: behind a mapped port it is wrong."""
        kinds = {"Registration": self._insert, "StorageRegistration": "sr", "Query": "query", "Monitor": "monitor"}
        services = "".join(
            f"<service><name>{name}</name><href>https://{escape(host)}{self._base}/{last}</href></service>"
            for name, last in kinds.items()
        )
        return Reply(
            status=200, body=f'<?xml version="1.0" encoding="UTF-8"?>\n<services>{services}</services>'.encode()
        )

    def _insert_answer(self, subject: str, body: bytes) -> Reply:
        try:
            if not self.authz.may_insert(subject):
                return plain(403, f"Rejecting job usage insert for {subject}. No insert rights.")
            rows = read_document(body, self.generation)
            machines = self._machines(rows)
            if not self.authz.may_insert_for(subject, machines):
                return plain(
                    406, f"Subject {subject} is not allowed to perform insertion for machines: {','.join(machines)}"
                )
            stored = self.database.insert(replace(row, insert_identity=subject) for row in rows)
        except Crash as crash:
            return page(crash, self.generation, self.twisted)
        except Refusal as refusal:
            return plain(500, refusal.text)
        except Unavailable:
            return plain(503, "The database is currently unavailable, try again later")
        return Reply(status=200, body=json.dumps(stored).encode(), chunked=True)

    def _machines(self, rows: list[Row]) -> list[str]:
        """Every machine name once, in order. Raises: Crash where one is missing."""
        machines: dict[str, None] = {}
        for row in rows:
            if not row.machine_name:
                raise self._without_machine()
            machines[row.machine_name] = None
        return list(machines)

    def _without_machine(self) -> Failure:
        if self.generation == "H":
            return Crash("Exception", "There were faulty URs in the request, see the log")
        return Crash("AttributeError", "'NoneType' object has no attribute 'split'")


def _page(status: int) -> Reply:
    title = f"{status} - {_PLAIN_BY_STATUS[status]}"
    return Reply(
        status=status, body=f"<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>".encode()
    )
