"""A network between this machine's programs that can be cut: what was sent stays under way, and no connection ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

_PIECE: Final = 65_536


class Network:
    """Connections to `port` go on to a socket in the file system."""

    def __init__(self, there: str) -> None:
        self._there = there
        self._connected = threading.Event()
        self._connected.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Network:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        self._connected.clear()

    def mend(self) -> None:
        self._connected.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._sockets += [client, server]
        self._connected.wait()
        with contextlib.suppress(OSError):
            server.connect(self._there)
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
        self._pump(server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                self._connected.wait()
                sink.sendall(piece)
        self._connected.wait()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
