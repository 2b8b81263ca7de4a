"""A clock that stands still until it is moved. The standard library is bent, before anything of `publisher` is loaded.

So `publisher` needs no seam for it, whatever its modules are called.
"""

from __future__ import annotations

import datetime as standard
import logging
import queue
import selectors
import socket
import socketserver
import subprocess
import threading
import time
from datetime import datetime
from typing import Any, Final

# They wait by the real monotonic clock; each has taken it by the time that it is replaced here.
_WAITING: Final = (logging, queue, selectors, socketserver, subprocess, threading)
HOST: Final = "ce.example.org"


class Clock:
    """What time it is, for the whole process."""

    now = datetime(2026, 11, 20, 12, tzinfo=standard.UTC)

    @classmethod
    def move(cls, **by: float) -> None:
        """Some `hours`, `days`, ... later."""
        cls.now += standard.timedelta(**by)


class _AnyDatetime(type):
    """What was made by an unbent class is an instance, too."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, datetime)


class _Pinned(datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: standard.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(Clock.now.timestamp(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(standard.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


def install() -> None:
    """From now on, `datetime`, `time` and the host's name are those of the scenarios."""
    bent: dict[str, Any] = {
        "time": lambda: Clock.now.timestamp(),
        "time_ns": lambda: int(Clock.now.timestamp()) * 1_000_000_000,
        "monotonic": lambda: 1000.0,
    }
    for name, function in bent.items():
        setattr(time, name, function)
    vars(standard)["datetime"] = _Pinned
    vars(socket)["gethostname"] = lambda: HOST
    vars(socket)["getfqdn"] = lambda name="": HOST
