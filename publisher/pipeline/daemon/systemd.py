"""What a service tells systemd of itself: ready, reloading, stopping, alive, and what it does. Spec: sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

log = logging.getLogger("publisher")

_LONGEST_STATUS: Final = 500  # characters; `systemctl status` shows one line
_TIMEOUT_S: Final = 1.0


class ServiceManager:
    """Sends datagrams to the socket that systemd names in NOTIFY_SOCKET; without one it says nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._complained = False
        self._status = ""
        self.alive_every_s = _alive_every_s(environment)

    def ready(self) -> None:
        self._notify("READY=1")

    def reloading(self, monotonic_s: float) -> None:
        """`monotonic_s` is of CLOCK_MONOTONIC, now."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_s * 1_000_000)}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def alive(self) -> None:
        self._notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What it does now, in one line; sent when it changed."""
        line = " ".join(text.split())[:_LONGEST_STATUS]
        if line != self._status:
            self._status = line
            self._notify(f"STATUS={line}")

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is of Linux's abstract sockets, which the kernel writes with a NUL.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_TIMEOUT_S)
                sender.sendto(message.encode(), address)
        except OSError as error:  # publishing continues; if it matters, systemd's own time-out says so
            if not self._complained:
                log.warning("cannot notify systemd at %s: %s", self._address, error)
            self._complained = True


def _alive_every_s(environment: Mapping[str, str]) -> float | None:
    """Half of the time within which systemd wants to hear from this process; None when it does not."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or not int(usec) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 2_000_000
