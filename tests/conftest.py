"""What holds for every test: loopback only, no real state, no settings from the environment."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from publisher.cli.main import CYCLES_AFTER
from tests.support.pki import PKI, Credential

pytest_plugins = ["tests.fake_ams.fixtures", "tests.support.fixtures"]

# The same examples in every run: a red run must be red again. `make test-long` takes more, `wide` ever others.
# Clocks say nothing about the product: tests run on loaded machines.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", _PATIENT, derandomize=True, max_examples=30)
settings.register_profile("long", _PATIENT, derandomize=True)
settings.register_profile("wide", _PATIENT)
settings.load_profile("steady")

# Whoever starts the tests in the background of a script has them ignore SIGINT, and children inherit that; not what is handled.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda number, frame: None)

# Every transaction waits for the disk, and tests make many thousands: where memory has room, their files lie there.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2**31:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Without bytecode every process would compile everything anew: each worker the tests, each child the program.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Nothing that the tests are made of is ever garbage: to look through it again and again took a tenth of the time.
gc.disable()

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TRUST = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ledger", choices=("sqlite", "postgres"), default="sqlite", help="where sites keep their ledgers"
    )
    parser.addoption("--part", default="1/1", metavar="K/N", help="take the K-th of N parts of the slow tests")


class _InPostgres:
    @pytest.fixture(autouse=True)
    def _ledger(self, ledger_in_postgres: None) -> None:
        """Every test, as `--ledger postgres` says."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ledger") == "postgres":
        config.pluginmanager.register(_InPostgres())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_long_runs(items)
    part, parts = map(int, config.getoption("--part").split("/"))
    others = [
        item for item in items if item.get_closest_marker("slow") and crc32(item.nodeid.encode()) % parts != part - 1
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        left = set(others)
        items[:] = [item for item in items if item not in left]


def _leave_to_long_runs(items: list[pytest.Item]) -> None:
    """Of the cases of a test with the mark `some` the others take long: each value of each parameter stays in some of them.

    `of` names the parameter without which a test takes all. Which of two values a test without other parameters takes
    depends on its name.
    """
    axes: dict[tuple[str, int], list[str]] = {}
    for item in items:
        some = item.get_closest_marker("some")
        if some is None or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if some.kwargs.get("of", "") not in ("", *item.callspec.params):
            continue
        test = item.nodeid.partition("[")[0]
        place = crc32(test.encode())
        for number, value in enumerate(item.callspec._idlist):
            values = axes.setdefault((test, number), [])
            if value not in values:
                values.append(value)
            place += values.index(value)
        if place % some.args[0]:
            item.add_marker("long")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(CYCLES_AFTER)
    gc.enable()


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Credential:
    """A host certificate for tests that only sign, and look at what was signed elsewhere."""
    return PKI.create(tmp_path_factory.mktemp("pki")).host()


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Connections to anywhere but this machine fail, whoever asks."""
    real_connect = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = address[0]
            if not (host.startswith("127.") or host in ("::1", "localhost")):
                raise AssertionError(f"a test reached for {host}: tests talk to loopback only")
        real_connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Proxies and trust stores of this machine do not count, and the paths of a real installation are unusable.

    One command line serves all tests of a process: to make it takes longer than many a command.
    """
    import publisher.cli.main
    import publisher.cli.parser
    import publisher.config.settings

    nowhere = tmp_path_factory.getbasetemp() / "no"
    with pytest.MonkeyPatch.context() as patch:
        for name in (*_PROXIES, *_TRUST):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        patch.setattr(publisher.cli.parser, "DEFAULT_CONFIG", nowhere / "publisher.yaml")
        patch.setattr(publisher.config.settings, "DEFAULT_STATE", nowhere / "state" / "publishing.db")
        patch.setattr(publisher.cli.main, "parser", cache(publisher.cli.parser.parser))
        yield
