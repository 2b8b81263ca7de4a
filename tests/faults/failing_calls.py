"""Publishers in which the n-th call of the C library fails, by a library before it that the tests compile (failing_calls.c)."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from publisher.cli import main as cli
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import ConfiguredSite

SHORT: Final = 4096
ERRORS: Final = {
    **{name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EMFILE", "ENOMEM", "EINTR", "EACCES", "ENOLCK")},
    "short": SHORT,
}
SOCKETS: Final = "sockets"
_STOPPED_AFTER_S: Final = 3.0  # a daemon's rounds are a second apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Which call fails: the `number`th of those on `where` that can end with this error; with `forever` all after it too."""

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


def library(folder: Path) -> Path:
    """The library before the C library. Skips where it cannot be made."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler (cc) and Linux")
    made = folder / "failing_calls.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(Path(__file__).with_suffix(".c")), "-ldl"]
    compiled = subprocess.run(words, capture_output=True, text=True, check=False)
    if compiled.returncode:
        pytest.skip(f"cannot be compiled here: {compiled.stderr}")
    return made


def run(
    preload: Path, site: ConfiguredSite, command: list[str], failure: Failure, *, before: Sequence[list[str]] = ()
) -> Ended:
    """`publisher` with that failure, to its end; `before`: commands that end well in the same process."""
    order = {
        "config": str(site.path),
        "before": before,
        "command": command,
        "where": failure.where,
        "error": ERRORS[failure.error],
        "number": failure.number,
        "forever": failure.forever,
    }
    child = Child(json.dumps(order), target=f"{__name__}:{main.__name__}", preload=preload, stdout=subprocess.PIPE)
    answer, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode is not None
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
    for command in order["before"]:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            assert cli.run(["--config", order["config"], *command]) == 0, said.getvalue()
    out, err = io.StringIO(), io.StringIO()
    stop = threading.Event()
    if order["command"] == ["run"]:
        threading.Thread(target=_stop_later, args=(stop,), daemon=True).start()
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


def _stop_later(stop: threading.Event) -> None:
    time.sleep(_STOPPED_AFTER_S)
    stop.set()
