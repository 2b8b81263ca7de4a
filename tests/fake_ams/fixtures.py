"""Fixtures for tests that talk to the stand-in: `pytest_plugins = ["tests.fake_ams.fixtures"]`."""

from collections.abc import Iterator

import pytest

from tests.fake_ams.raw import Caller
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.ports import reserved_port


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    """One throw-away PKI for the run; issue freely, it is shared."""
    return PKI.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def fake_ams(pki: PKI) -> Iterator[FakeAMS]:
    """A running stand-in in its default state. Once it is closed, its ports refuse."""
    with (
        reserved_port() as port,
        reserved_port() as auth_port,
        FakeAMS(pki, port=port, auth_port=auth_port) as fake,
    ):
        yield fake


@pytest.fixture
def call(fake_ams: FakeAMS, pki: PKI) -> Iterator[Caller]:
    """A plain client whose certificate is bound to the user `ce`."""
    caller = Caller(fake_ams, fake_ams.bind(pki.host(), "ce"))
    yield caller
    caller.connection.close()
