"""TCP ports of the loopback that no other process is given, whoever listens on them or not."""

from __future__ import annotations

import atexit
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that refuses connections, except while a server of the test listens on it.

    A socket that is bound and does not listen keeps it: the kernel hands the number to nobody who asks for a free one.
    Servers share it by SO_REUSEADDR, which `socket.create_server` and `http.server` set.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])


@cache
def closed_port() -> int:
    """The port of this process that refuses every connection, until the process ends."""
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(reserved_port())
