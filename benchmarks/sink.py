"""A receiver that answers at once: TLS, one answer a request, nothing looked at.

`python -m benchmarks.sink CERT KEY` prints its port. All services in one: a GET is answered with a
token, a POST with one message id; below /sgas with a row id for each record, found by its
attribute. Ends with its standard input.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import threading

_TOKEN = b'{"token":"' + b"0" * 64 + b'"}'
_STORED = b'{"messageIds":["1"]}'
_RECORD_ID = re.compile(rb'recordId="([^"]*)"')


def main(certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener, context), daemon=True).start()
    sys.stdin.read()


def _accept(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection, context), daemon=True).start()


def _serve(raw: socket.socket, context: ssl.SSLContext) -> None:
    try:
        with context.wrap_socket(raw, server_side=True) as connection:
            buffer = bytearray(1 << 18)
            while _exchange(connection, buffer):
                pass
    except OSError:
        return  # the other side went away, which is how a run ends


def _exchange(connection: ssl.SSLSocket, buffer: bytearray) -> bool:
    """One request and its answer; False at the end."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65536)
        if not piece:
            return False
        head += piece
    head, _, rest = head.partition(b"\r\n\r\n")
    length = next(
        (
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    to_sgas = head.startswith(b"POST /sgas")
    kept = bytearray(rest)
    left = length - len(rest)
    while left > 0:
        got = connection.recv_into(buffer, min(left, len(buffer)))
        if not got:
            return False
        left -= got
        if to_sgas:
            kept += buffer[:got]
    answer = _rows(kept) if to_sgas else _TOKEN if head.startswith(b"GET") else _STORED
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(answer), answer)
    )
    return True


def _rows(document: bytearray) -> bytes:
    names = (name.decode() for name in _RECORD_ID.findall(document))
    return json.dumps({name: str(row) for row, name in enumerate(names, start=1)}).encode()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
