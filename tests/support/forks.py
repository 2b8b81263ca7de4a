"""Processes of the program, forked from one that has loaded everything: they start in a twentieth of the time.

They are as real as others: a signal ends them, and their streams are what they are given. Whoever tests the start itself, the
memory of a process or the flags of the interpreter starts one as usual.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self

from tests.support.sites import ConfiguredSite

PUBLISHER: Final = "publisher.cli.main:main"
_MOST_BYTES: Final = 1 << 17  # of an order


class ForkerGone(Exception):
    """The process that forks others has ended, and there is none to start."""

    def __init__(self) -> None:
        super().__init__("the process that starts the publishers has ended; what it printed above says why")


class Child:
    """What `subprocess.Popen` is, as far as tests need it; in text mode.

    It calls `target`, or executes `code`, with these arguments on its command line; `preload` is a library that stands
    before the C library.
    """

    def __init__(
        self,
        *arguments: object,
        target: str = PUBLISHER,
        code: str = "",
        env: Mapping[str, str] | None = None,
        preload: Path | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._given: list[int] = []  # what only the child keeps open
        self.stdin: IO[str] | None
        self.stdout: IO[str] | None
        self.stderr: IO[str] | None = None
        self.stdin, first = self._stream(stdin, 0)
        self.stdout, second = self._stream(stdout, 1)
        third = second
        if stderr != subprocess.STDOUT:
            self.stderr, third = self._stream(stderr, 2)
        self._status, last = os.pipe()
        self._given.append(last)
        order = {
            "target": target,
            "code": code,
            "argv": [str(one) for one in arguments],
            "env": dict(env or os.environ),
        }
        try:
            socket.send_fds(_server(preload), [json.dumps(order).encode()], [first, second, third, last])
        except (BrokenPipeError, ConnectionResetError):
            raise ForkerGone from None
        finally:
            for descriptor in self._given:
                os.close(descriptor)
        self.pid = int(self._told())

    def _told(self) -> bytes:
        """A number that the server tells."""
        if not (number := os.read(self._status, 16)):
            raise ForkerGone
        return number

    def _stream(self, wanted: int | IO[Any] | None, own: int) -> tuple[IO[str], int] | tuple[None, int]:
        """Our end of a pipe, where one is wanted, and the descriptor for the child."""
        if wanted == subprocess.PIPE:
            reading, writing = os.pipe()
            self._given.append(writing if own else reading)
            return (
                (open(reading, encoding="utf-8"), writing) if own else (open(writing, "w", encoding="utf-8"), reading)
            )
        if wanted == subprocess.DEVNULL:
            self._given.append(os.open(os.devnull, os.O_RDWR))
            return None, self._given[-1]
        if wanted is None:
            return None, own
        return None, wanted if isinstance(wanted, int) else wanted.fileno()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["publisher"], timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._told()))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its status is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to its end."""
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(text)
                self.stdin.close()
        said = {"out": "", "err": ""}

        def read(name: str, stream: IO[str]) -> None:
            said[name] = stream.read()

        streams = {"out": self.stdout, "err": self.stderr}
        left = [(name, stream) for name, stream in streams.items() if stream is not None and not stream.closed]
        threads = [threading.Thread(target=read, args=pair) for pair in left]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join()
        self._close()
        return said["out"], said["err"]

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()
        self.wait()


def publisher(site: ConfiguredSite, *words: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> Child:
    """`publisher` with this site's configuration."""
    site.save()
    return Child("--config", site.path, *words, stdout=stdout, stderr=stderr)


@functools.cache
def _server(preload: Path | None) -> socket.socket:
    """Of this process of pytest; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).parents[2],
        env=os.environ if preload is None else os.environ | {"LD_PRELOAD": str(preload)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# What follows runs in the server


def serve(orders: socket.socket) -> None:
    """Fork a process for each order, and tell its number and in the end its status, until whoever gives orders is gone."""
    told: dict[int, tuple[int, int]] = {}  # by the descriptor of a process: its number, and where to tell its status
    while True:
        for ready in select.select([orders.fileno(), *told], [], [])[0]:
            if ready in told:
                child, status = told.pop(ready)
                _tell(status, os.waitpid(child, 0)[1])
                os.close(status)
                os.close(ready)
                continue
            message, descriptors, *_ = socket.recv_fds(orders, _MOST_BYTES, 4)
            if not message:
                return
            *streams, status = descriptors
            child = os.fork()
            if child == 0:
                _become(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            _tell(status, child)
            told[os.pidfd_open(child)] = child, status


def _tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(status, b"%16d" % number)


def _become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8")
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    sys.argv = ["publisher", *order["argv"]]
    gc.enable()
    status: Any = 1
    try:
        if order["code"]:
            exec(order["code"], {"__name__": "__main__"})
            status = 0
        else:
            module, _, name = order["target"].partition(":")
            status = getattr(import_module(module), name)()
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status or 0)  # as it was forked, it has nothing to clear away


def load_all() -> None:
    """Every module of the program that can be loaded here, and what these load when they are used."""
    import publisher

    for found in pkgutil.walk_packages(publisher.__path__, "publisher."):
        with suppress(ImportError):
            import_module(found.name)
    import_module("encodings.idna")
    import_module("encodings.utf_8_sig")
    import_module("tests.faults.crash_nursery")


def warm_up() -> None:
    """What each process would make of the program alone: its command line, configuration's types and formats' patterns."""
    from publisher import formats
    from publisher.cli import main, parser

    vars(main)["parser"] = functools.cache(parser.parser)
    for name in (*formats.JOB_FORMATS, *formats.SUMMARY_FORMATS, *formats.SYNC_FORMATS):
        formats.frame_of(name)
    example = io.StringIO()
    with tempfile.NamedTemporaryFile("w") as file, redirect_stdout(example), redirect_stderr(io.StringIO()):
        main.run(["config", "example"])
        file.write(example.getvalue())
        file.flush()
        main.run(["--config", file.name, "config", "check"])


if __name__ == "__main__":
    load_all()
    warm_up()
    gc.freeze()
    gc.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve(socket.socket(fileno=int(sys.argv[1])))
