"""Publishers in which the n-th call of the C library fails, by a library before it that the tests compile (failing_calls.c)."""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from publisher.cli import main as cli
from publisher.publishing import daemon
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import ConfiguredSite

SHORT: Final = 4096
ERRORS: Final = {
    **{name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EMFILE", "ENOMEM", "EINTR", "EACCES", "ENOLCK")},
    "short": SHORT,
}
KILL: Final = "kill"
_NUMBERS: Final = ERRORS | {KILL: 4097}
SOCKETS: Final = "sockets"
_STANDING: Final = re.compile(r"(\w+): (at work|next round|trying again)")
_LOOK_S: Final = 0.02  # a daemon looks for what is due more often than otherwise
_STOPPED_AFTER_S: Final = 3.0  # when a daemon's rounds do not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Which call fails: the `number`th of those on `where` that can end with this error; with `forever` all after it too.

    The error KILL is the end of the process, by SIGKILL.
    """

    where: str
    error: str
    number: int = 0
    forever: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: calls that counted, and the one that failed first ('' for none)."""

    status: int
    counted: int
    hit: str
    out: str
    err: str


@functools.cache
def library() -> Path:
    """The library before the C library: one for all tests, as is what forks with it. Skips where it cannot be made."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler (cc) and Linux")
    folder = tempfile.mkdtemp(prefix="publisher-calls-")
    atexit.register(shutil.rmtree, folder)
    made = Path(folder) / "failing_calls.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(Path(__file__).with_suffix(".c")), "-ldl"]
    compiled = subprocess.run(words, capture_output=True, text=True, check=False)
    if compiled.returncode:
        pytest.skip(f"cannot be compiled here: {compiled.stderr}")
    return made


def run(preload: Path, site: ConfiguredSite, command: list[str], failure: Failure) -> Ended:
    """`publisher` with that failure, to its end."""
    order = {
        "config": str(site.path),
        "command": command,
        "where": failure.where,
        "error": _NUMBERS[failure.error],
        "number": failure.number,
        "forever": failure.forever,
    }
    child = Child(json.dumps(order), target=f"{__name__}:{main.__name__}", preload=preload, stdout=subprocess.PIPE)
    answer, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode is not None
    if child.returncode == -signal.SIGKILL and failure.error == KILL:
        return Ended(status=child.returncode, counted=failure.number, hit=KILL, out="", err="")
    told: dict[str, Any] = json.loads(answer.splitlines()[-1]) if answer else {}
    assert told, f"{failure}: ended with {child.returncode} and no word"
    return Ended(status=child.returncode, **told)


def main() -> int:
    """In the forked process."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    shim = ctypes.CDLL(None)
    shim.failing_calls_hit.restype = ctypes.c_char_p
    shim.failing_calls_counted.restype = ctypes.c_long
    shim.failing_calls_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int]
    out, err = io.StringIO(), io.StringIO()
    stop = threading.Event()
    if order["command"] == ["run"]:
        for name in ("_LOOK_EVERY_S", "_LOOK_AT_WORK_S"):
            pytest.MonkeyPatch().setattr(daemon, name, _LOOK_S)
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notices.bind("")  # a free abstract address
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        os.environ["NOTIFY_SOCKET"] = notices.getsockname().decode().replace("\0", "@")
        threading.Thread(target=_stop_after_a_round, args=(stop, notices), daemon=True).start()
    shim.failing_calls_arm(os.fsencode(order["where"]), order["error"], order["number"], order["forever"])
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.run(["--config", order["config"], *order["command"]], stop)
    told = {
        "counted": shim.failing_calls_counted(),
        "hit": shim.failing_calls_hit().decode(errors="replace"),
        "out": out.getvalue(),
        "err": err.getvalue(),
    }
    os.write(1, json.dumps(told).encode() + b"\n")
    return status


def _stop_after_a_round(stop: threading.Event, notices: socket.socket) -> None:
    """Stop a daemon once every target has had a round, by what it tells systemd; or else after some seconds."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    known: set[str] = set()
    working: set[str] = set()
    served: set[str] = set()
    until = time.monotonic() + _STOPPED_AFTER_S
    while (left := until - time.monotonic()) > 0 and not (known and known <= served):
        notices.settimeout(left)
        with suppress(OSError):
            for name, standing in _STANDING.findall(notices.recv(65536).decode()):
                known.add(name)
                if standing == "at work":
                    working.add(name)
                elif name in working:
                    served.add(name)
    stop.set()
    os.kill(os.getpid(), signal.SIGTERM)  # one that stands by looks for signals alone
