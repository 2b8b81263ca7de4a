"""Fixtures for tests that talk to the stand-in: `pytest_plugins = ["tests.fake_sgas.fixtures"]`."""

from collections.abc import Iterator

import pytest

from tests.fake_sgas.service import FakeSGAS
from tests.pki import PKI


@pytest.fixture
def fake_sgas(pki: PKI) -> Iterator[FakeSGAS]:
    """A running stand-in in its default state: the head of development, nobody allowed."""
    with FakeSGAS(pki) as fake:
        yield fake
