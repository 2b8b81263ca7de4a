"""`publisher run` as a process of its own, with a socket in the place of systemd's and the log in a file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import ConfiguredSite


def until(seen: Callable[[], bool], what: Callable[[], str], gone: Callable[[], bool] = lambda: False) -> None:
    """Wait until something is seen; what there is instead belongs into the complaint. Not when all is gone."""
    end = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end, what()
        assert not gone() or seen(), what()
        time.sleep(0.02)


class Manager:
    """The service manager's side: every datagram that arrived, in order, split into lines."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: list[str] = []
        self.gone: Callable[[], bool] = lambda: False  # whether nothing more can come
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while datagram := self._socket.recv(4096):
            self.told += datagram.decode().split("\n")

    def wait_for(self, begin: str, *, times: int = 1) -> None:
        until(
            lambda: sum(line.startswith(begin) for line in self.told) >= times,
            lambda: f"{begin}: {self.told}",
            self.gone,
        )

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self._socket.getsockname())  # an empty one ends the listening
        self._thread.join(PATIENCE_S)
        self._socket.close()
        if not self.address.startswith("@"):
            os.unlink(self.address)


class RunningDaemon:
    """A daemon of a site. It is ended with the block, whatever happened."""

    def __init__(
        self, site: ConfiguredSite, *options: str, address: str = "", before: str = "", **environment: str
    ) -> None:
        """`before`: what its process executes first."""
        self.site = site
        site.save()
        self.manager = Manager(address or str(site.folder / "notify"))
        self.log = site.folder / "log"
        with self.log.open("wb") as log:
            self._child = Child(
                *("--config", site.path, "run", *options),
                code=f"{before}\nfrom publisher.cli.main import main; main()",
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": self.manager.address, **environment},
            )

        self.manager.gone = self.has_ended

    def __enter__(self) -> Self:
        return self

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.communicate()
        self.manager.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, words: str, *, times: int = 1) -> None:
        """Wait for words in the log."""
        until(lambda: self.text().count(words) >= times, self.text, self.has_ended)

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def status(self) -> int:
        """What it ends with, by itself."""
        return self._child.wait(PATIENCE_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status after a signal."""
        self.send(number)
        return self.status()
