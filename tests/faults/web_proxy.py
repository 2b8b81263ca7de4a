"""A web proxy on the loopback: it asks for a password, lets tunnels through, and refuses where a fault says so."""

from __future__ import annotations

import contextlib
import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from tests.fake_ams.faults import Fault
from tests.support.patience import PATIENCE_S

USER: Final = "ce01"
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_WHO_ARE_YOU: Final = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"


class WebProxy:
    """Tunnels from `url` to ports of this machine. `refused` keeps each fault that was met, with what `moment` told then."""

    def __init__(self, password: str, moment: Callable[[], tuple[int, int]]) -> None:
        self.refused: list[tuple[tuple[int, int], Fault]] = []
        self._moment = moment
        self._faults: list[Fault] = []
        self.spelt = b64encode(f"{USER}:{password}".encode()).decode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = int(self._listener.getsockname()[1])
        self.url = f"http://{USER}:{password}@127.0.0.1:{self._port}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> WebProxy:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(PATIENCE_S)

    def push(self, fault: Fault) -> None:
        """Let the next tunnel meet this answer."""
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            serving = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(serving)
            serving.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(PATIENCE_S)
            head = client.recv(65_536)
            if self._faults:
                fault = self._faults.pop(0)
                self.refused.append((self._moment(), fault))
                assert fault.answer is not None
                client.sendall(fault.answer.raw or b"")
            elif f"Basic {self.spelt}\r\n".encode() not in head:
                client.sendall(_WHO_ARE_YOU)
            else:
                self._tunnel(client, int(head.split()[1].rpartition(b":")[2]))

    def _tunnel(self, client: socket.socket, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as server:
            client.sendall(_ESTABLISHED)
            there = threading.Thread(target=_pump, args=(client, server), daemon=True)
            there.start()
            _pump(server, client)
            there.join(PATIENCE_S)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
