"""HTTP/1.1 on one socket, byte by byte, with the manners of Go's server.

`http.server` cannot answer before a body has arrived, nor close early, nor drip; so this reads and writes by hand.
"""

import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

DRAIN_LIMIT = 256 * 1024
"""How much of an unread body Go's server swallows to keep a connection; a longer one costs the connection."""
_HEAD_LIMIT = 1 << 20
_PIECE = 256 * 1024
_CHUNKED_FROM = 2048  # an answer longer than Go's buffer leaves chunked

Headers = tuple[tuple[str, str], ...]


class Disconnected(Exception):
    """The client went away in the middle of a request."""


class Malformed(Exception):
    """The bytes are not HTTP, or not a body as announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Request line and headers; `target` as on the wire, header names as sent."""

    method: str
    target: str
    version: str
    headers: Headers

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> Mapping[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    def header(self, name: str) -> str:
        """The first value of a header, or empty."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back: `length` overrides Content-Length (to lie), `raw` replaces the whole answer."""

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: Headers = ()
    length: int | None = None
    raw: bytes | None = None


def go_json(value: object, indent: int) -> bytes:
    """JSON as Go's MarshalIndent writes it: UTF-8 kept, `<`, `>` and `&` escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    for character, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace")


NOT_FOUND = Answer(
    status=404,
    body=b"404 page not found\n",
    content_type="text/plain; charset=utf-8",
    headers=(("X-Content-Type-Options", "nosniff"),),
)


class Peer:
    """One client connection, numbered from 1 in order of arrival."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self._buffer = bytearray()

    @property
    def tls_version(self) -> str:
        return (self.sock.version() or "") if isinstance(self.sock, ssl.SSLSocket) else ""

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate as DER, if it showed one."""
        return self.sock.getpeercert(binary_form=True) if isinstance(self.sock, ssl.SSLSocket) else None

    def read_head(self) -> Head | None:
        """The next request, or None when the client has closed. Raises: Malformed, Disconnected."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise Malformed
            if not self._receive():
                if self._buffer.strip():
                    raise Disconnected
                return None
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise Malformed
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:]))
        return Head(method=parts[0], target=parts[1], version=parts[2], headers=headers)

    def take(self, size: int) -> bytearray:
        """Exactly `size` bytes. Raises: Disconnected."""
        data = bytearray(size)
        have = min(size, len(self._buffer))
        data[:have] = self._buffer[:have]
        del self._buffer[:have]
        with memoryview(data) as view:
            while have < size:
                got = self._into(view[have:])
                if not got:
                    raise Disconnected
                have += got
        return data

    def take_line(self) -> bytes:
        """One line of chunked framing, without its end. Raises: Disconnected."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not self._receive():
                raise Disconnected
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def send(self, data: bytes) -> None:
        """Raises: Disconnected."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Disconnected from error

    def reset(self) -> None:
        """Close with a TCP reset."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        """Say goodbye (TLS close_notify) without waiting for the answer."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self.sock, ssl.SSLSocket):
                self.sock.settimeout(0)
                self.sock.unwrap()
            else:
                self.sock.shutdown(socket.SHUT_WR)

    def _receive(self) -> bool:
        try:
            piece = self.sock.recv(65536)
        except OSError as error:
            raise Disconnected from error
        self._buffer += piece
        return bool(piece)

    def _into(self, view: memoryview) -> int:
        try:
            return self.sock.recv_into(view)
        except OSError as error:
            raise Disconnected from error


class Body:
    """The body of a request, read only when asked for."""

    def __init__(self, peer: Peer, head: Head) -> None:
        self._peer = peer
        self._chunked = head.header("transfer-encoding").lower() == "chunked"
        announced = head.header("content-length") or "0"
        if not announced.isdecimal():
            raise Malformed
        self._left = 0 if self._chunked else int(announced)
        self._continue = head.header("expect").lower() == "100-continue"
        self.done = not self._chunked and self._left == 0
        self.size = 0
        self.content: bytes | bytearray = b""

    def read(self) -> bytes | bytearray:
        """All of it; again the same when called again. Raises: Disconnected, Malformed."""
        if self.done:
            return self.content
        if self._chunked:
            self.content = b"".join(self._chunks())
            return self.content
        self._invite()
        self.content = self._peer.take(self._left)
        self.size, self._left, self.done = self.size + len(self.content), 0, True
        return self.content

    def read_some(self, size: int) -> None:
        """Swallow up to `size` bytes of a body of known length."""
        self._invite()
        while size > 0 and self._left > 0:
            piece = min(size, self._left, _PIECE)
            self._peer.take(piece)
            size, self._left, self.size = size - piece, self._left - piece, self.size + piece

    def drain(self) -> bool:
        """Swallow a short rest; False when the rest is too long to be worth it, or was never invited."""
        if self.done:
            return True
        if self._continue or (not self._chunked and self._left >= DRAIN_LIMIT):
            return False
        if self._chunked:
            swallowed = 0
            for piece in self._chunks():
                swallowed += len(piece)
                if swallowed > DRAIN_LIMIT:
                    return False
            return True
        self.read_some(self._left)
        self.done = True
        return True

    def _chunks(self) -> Iterator[bytes]:
        self._invite()
        while True:
            line = self._peer.take_line().split(b";")[0].strip()
            try:
                size = int(line, 16)
            except ValueError as error:
                raise Malformed from error
            if size == 0:
                while self._peer.take_line():
                    pass
                self.done = True
                return
            self.size += size
            yield bytes(self._peer.take(size))
            if self._peer.take_line():
                raise Malformed

    def _invite(self) -> None:
        if self._continue:
            self._continue = False
            self._peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")


def phrase(status: int) -> str:
    """As Go and nginx say it, whatever Python calls it: since 3.13 its 413 is "Content Too Large"."""
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "Request Entity Too Large"
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"


def render(answer: Answer, *, close: bool) -> bytes:
    """The bytes of an answer: no Server header, headers before Date, chunked when long, as Go does."""
    if answer.raw is not None:
        return answer.raw
    lines = [f"HTTP/1.1 {answer.status} {phrase(answer.status)}"]
    if answer.content_type:
        lines.append(f"Content-Type: {answer.content_type}")
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines.append(f"Date: {formatdate(usegmt=True)}")
    if close:
        lines.append("Connection: close")
    body, length = answer.body, answer.length
    if length is None and len(body) > _CHUNKED_FROM:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
