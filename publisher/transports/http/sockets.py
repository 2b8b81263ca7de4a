"""Sockets that keep to the limits of an exchange, from the name of the host to the last byte.

Neither `requests` nor urllib3 has a limit for a name that is slow to resolve, for all addresses of
a name together, or for a whole exchange: their time-outs are for each address and for each read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from publisher.transports.base import BackgroundTask

Address = tuple[Any, ...]  # of the socket module: family, type, protocol, canonical name, address


class Bounded(socket.socket):
    """A socket whose reads and writes each end within the time that is left to an exchange.

    A time-out of `requests` or urllib3 is for each read, so that a drip of bytes would hold it.
    """

    left_s: Callable[[], float] | None = None  # raises TimeoutError when it is over

    def limit(self) -> None:
        """Give the next call the time that is left. Raises: TimeoutError when there is none."""
        if self.left_s is not None:
            self.settimeout(self.left_s())

    def recv_into(self, *arguments: Any) -> int:
        """Read what is there."""
        self.limit()
        return super().recv_into(*arguments)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send a request, or a part of it, in as many pieces as the kernel or TLS takes at once.

        Python's own has one limit for all pieces over plain TCP, and one for each over TLS.
        """
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                self.limit()
                sent += self.send(view[sent:], flags)


def resolved(host: str, port: int, within_s: float) -> Sequence[Address]:
    """Return the addresses of a host, at least one.

    The C library has no limit: with name servers that are away, it takes half a minute and more.
    Raises: OSError, TimeoutError among them; UnicodeError for what cannot be a name.
    """
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    task: BackgroundTask[Sequence[Address]] = BackgroundTask(ask)
    try:
        return task.result(within_s)
    except TimeoutError:
        raise TimeoutError("the name was not resolved in time") from None


def connected(
    addresses: Sequence[Address], left_s: Callable[[], float]
) -> tuple[Bounded | None, list[OSError]]:
    """Return a connection to the first address that takes one, and the errors of those before it.

    Each address has its share of the time that is left, so silent ones leave some to the others.
    """
    errors: list[OSError] = []
    for family, kind, protocol, _, address in addresses:
        try:
            line = Bounded(family, kind, protocol)
        except OSError as error:  # a family that this host has not
            errors.append(error)
            continue
        try:
            line.settimeout(left_s() / (len(addresses) - len(errors)))
            line.connect(address)
            # Nagle's algorithm would delay the end of every request
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            line.close()
            errors.append(error)
        else:
            return line, errors
    return None, errors
