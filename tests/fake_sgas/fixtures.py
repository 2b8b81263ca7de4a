"""Fixtures for tests that talk to the stand-in: `pytest_plugins = ["tests.fake_sgas.fixtures"]`."""

from collections.abc import Iterator

import pytest

from tests.fake_sgas.service import FakeSGAS
from tests.support.pki import PKI
from tests.support.ports import reserved_port


@pytest.fixture
def fake_sgas(pki: PKI) -> Iterator[FakeSGAS]:
    """A running stand-in in its default state: the head of development, nobody allowed. Once it is closed, its port refuses."""
    with reserved_port() as port, FakeSGAS(pki, port=port) as fake:
        yield fake
