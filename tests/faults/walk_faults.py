"""The misfortunes of the random walk: what each service does, and what a round that it ends must end with.

A round ends early for what its last exchange met, so that one says which exit status is right (`status`). Troubles that
only narrow a message down do not end a round by themselves: their status is `NARROWED`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fake_ams.faults import CONNECT, HTML_502, Fault
from tests.fake_sgas.failures import PROCESSING_FAILED, nginx_page
from tests.fake_sgas.faults import bad_gateway, gateway_timeout, unavailable

NARROWED: Final = 0
PASSED: Final = -2
"""Answered as the service stands, if in a strange way."""
UNCLEAR: Final = -1
"""A refusal that does not say whose fault it is: 76 when nothing got through in the round, else its record is set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfortune:
    """One thing that can befall a request; `stored` when the message may stand at the receiver all the same."""

    service: str
    name: str
    make: Callable[[], Fault]
    status: int = 75
    stored: bool = False
    route: str = "publish"

    def __str__(self) -> str:
        return f"{self.service}: {self.name}"


def _error(status: int, message: str) -> Callable[[], Fault]:
    body = json.dumps({"error": {"code": status, "message": message, "status": "X"}}, indent=3).encode()
    return lambda: Fault.status(status, body)


def _once(name: str, make: Callable[[], Fault], status: int = 75, *, stored: bool = False) -> Misfortune:
    return Misfortune(service="AMS", name=name, make=make, status=status, stored=stored)


AMS: Final = (
    _once("answer lost after storing", Fault.store_then_close, stored=True),
    _once("no answer, nothing stored", Fault.drop_without_storing),
    _once("reset", Fault.reset),
    _once("closed before the body", Fault.close_before_read),
    _once("closed in the middle of the upload", lambda: Fault.close_after_bytes(2_000)),
    _once("500 of the balancer, stored", lambda: Fault.status(500, HTML_502, handled=True), stored=True),
    _once("500 Backend Error on a small message", _error(500, "Backend Error")),
    _once("502 HTML", lambda: Fault.status(502, HTML_502)),
    _once("502 without a body", lambda: Fault.status(502, b"")),
    _once("503 with Retry-After in seconds", lambda: Fault.status(503, HTML_502, (("Retry-After", "120"),))),
    _once(
        "503 with a Retry-After date",
        lambda: Fault.status(503, b"", (("Retry-After", "Thu, 01 Jan 2026 00:00:00 GMT"),)),
    ),
    _once("504, stored", lambda: Fault.status(504, HTML_502, handled=True), stored=True),
    _once("408", lambda: Fault.status(408)),
    _once("429", lambda: Fault.status(429)),
    _once("400 Invalid Request Body", _error(400, "Invalid Request Body")),
    _once("200 with HTML", lambda: Fault.body(200, b"<html>maintenance</html>")),
    _once("200 with {}", lambda: Fault.body(200, b"{}")),
    _once("200 with no ids", lambda: Fault.body(200, b'{"messageIds":[]}')),
    _once("200 cut short, stored", lambda: Fault.body(200, b'{"messageIds":["1"', handled=True), stored=True),
    _once(
        "200 shorter than announced, stored",
        lambda: Fault.body(200, b'{"messageIds":["1"]}', length=1000, handled=True),
        stored=True,
    ),
    _once("garbage for an answer", lambda: Fault.raw(b"\x00\xff garbage\r\n\r\n")),
    _once("a page of 10 MB", lambda: Fault.status(500, b"x" * 10_000_000)),
    _once("a drip of headers", lambda: Fault.drip(interval=0.01, seconds=20)),
    _once("a drip of body", lambda: Fault.drip(interval=0.01, seconds=20, in_body=True)),
    _once("401", _error(401, "Unauthorized"), 77),
    _once("403", _error(403, "Access to this resource is forbidden"), 77),
    _once("404 topic", _error(404, "Topic doesn't exist"), 78),
    _once("404 of the router", lambda: Fault.status(404, b"404 page not found\n"), 78),
    _once("a redirect", lambda: Fault.redirect("https://localhost:1/elsewhere"), 78),
    _once("418", lambda: Fault.status(418, HTML_502), 76),
    _once("400 Invalid Message Arguments", _error(400, "Invalid Message Arguments"), UNCLEAR),
    _once("413 JSON", _error(413, "Message size is too large"), NARROWED),
    _once("413 HTML", lambda: Fault.status(413, HTML_502), NARROWED),
    _once("slow", lambda: Fault.delay(0.05), PASSED),
    _once("kept alive, then closed", Fault.close_keepalive, PASSED),
    _once("stored twice by the broker", Fault.store_twice, PASSED, stored=True),
    Misfortune(service="AMS", name="reset while connecting", make=Fault.reset, route=CONNECT),
)


def _authn(name: str, make: Callable[[], Fault], status: int = 75) -> Misfortune:
    return Misfortune(service="token exchange", name=name, make=make, status=status, route="authx509")


AUTHN: Final = (
    _authn("500", _error(500, "Internal Error: Could not access CRL URL")),
    _authn("502 HTML", lambda: Fault.status(502, HTML_502)),
    _authn("503", lambda: Fault.status(503, b"", (("Retry-After", "30"),))),
    _authn("504", lambda: Fault.status(504, b"\xff\xfe")),
    _authn("reset", Fault.reset),
    _authn("closed without an answer", Fault.close_before_read),
    _authn("a token cut short", lambda: Fault.body(200, b'{"token": "', length=100)),
    _authn("a drip", lambda: Fault.drip(interval=0.01, seconds=20)),
    _authn("200 without a token", lambda: Fault.body(200, b"{}"), 76),
    _authn("200 with HTML", lambda: Fault.body(200, b"<html>welcome</html>"), 76),
    _authn("404 Binding was not found", _error(404, "Binding was not found"), 77),
    _authn("403 revoked", _error(403, "Your certificate has been revoked"), 77),
    _authn("400 no certificate", _error(400, "No certificate provided"), 77),
    _authn("404 Host was not found", _error(404, "Host was not found"), 78),
    _authn("422", _error(422, "Auth type: x509 is not yet supported.Supported:[oidc]"), 78),
    _authn("a redirect", lambda: Fault.redirect("https://localhost:1/login"), 78),
)


def _sgas(name: str, make: Callable[[], Fault], status: int = 75, *, stored: bool = False) -> Misfortune:
    return Misfortune(service="SGAS", name=name, make=make, status=status, stored=stored, route="insert")


SGAS: Final = (
    _sgas("answer lost after storing", Fault.store_then_close, stored=True),
    _sgas("no answer, nothing stored", Fault.drop_without_storing),
    _sgas("reset", Fault.reset),
    _sgas("502 of nginx", bad_gateway),
    _sgas("502 after the commit", lambda: bad_gateway(stored=True), stored=True),
    _sgas("503 of nginx", unavailable),
    _sgas("503 with Retry-After", lambda: unavailable(90)),
    _sgas("504, committed all the same", gateway_timeout, stored=True),
    _sgas("500 too many clients", lambda: Fault.status(500, b"FATAL:  sorry, too many clients already")),
    _sgas("500 of 3.8.1 after a restart", lambda: Fault.status(500, b"... 'insertJobUsageRecords'")),
    _sgas("500 without a word", lambda: Fault.status(500, b"")),
    _sgas("200 with HTML", lambda: Fault.body(200, b"<html>maintenance</html>")),
    _sgas("200 cut short, stored", lambda: Fault.body(200, b'{"a": "1"', length=900, handled=True), stored=True),
    _sgas("garbage for an answer", lambda: Fault.raw(b"\x00\xff\r\n\r\n")),
    _sgas("a drip", lambda: Fault.drip(interval=0.01, seconds=20)),
    _sgas("401", lambda: Fault.status(401, nginx_page(401)), 77),
    _sgas("403 of SGAS", lambda: Fault.status(403, b"No right to insert job records for: CN=x"), 77),
    _sgas("403 of nginx", lambda: Fault.status(403, nginx_page(403)), 76),
    _sgas("406", lambda: Fault.status(406, b"CN=x may not insert job records for: ce01"), 77),
    _sgas("a redirect", lambda: Fault.redirect("https://localhost:1/elsewhere"), 78),
    _sgas(
        "500 value too long",
        lambda: Fault.status(500, b"value too long for type character varying(200)"),
        NARROWED,
    ),
    _sgas("500 Processing Failed", lambda: Fault.status(500, PROCESSING_FAILED), UNCLEAR),
    _sgas("413 of nginx", lambda: Fault.status(413, nginx_page(413)), NARROWED),
    _sgas("kept alive, then closed", Fault.close_keepalive, PASSED),
    Misfortune(service="SGAS", name="reset while connecting", make=Fault.reset, route=CONNECT),
)


def _proxy(name: str, answer: bytes, status: int = 75) -> Misfortune:
    return Misfortune(service="web proxy", name=name, make=lambda: Fault.raw(answer), status=status, route="proxy")


PROXY: Final = (
    _proxy("407", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", 78),
    _proxy("403", b"HTTP/1.1 403 Forbidden\r\n\r\n", 78),
    _proxy("502", b"HTTP/1.1 502 Bad Gateway\r\n\r\n"),
    _proxy("503", b"HTTP/1.1 503 Busy\r\n\r\n"),
    _proxy("garbage", b"garbage\r\n\r\n"),
    _proxy("closed without an answer", b""),
)

MISFORTUNES: Final = (*AMS, *AUTHN, *SGAS, *PROXY)
"""All of them."""
