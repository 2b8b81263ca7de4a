"""Fixtures of most tests that look at a whole site; a module that needs another site has a fixture `site` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fake_ams.service import FakeAMS
from tests.support.ledgers import instance_of
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer, binaries, private_server
from tests.support.sites import ConfiguredSite, SiteUnderTest


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    return SiteUnderTest(tmp_path, pki, fake_ams)


def _private_postgres() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL and psycopg (Debian: postgresql and python3-psycopg)")
    with private_server(programs) as server:
        yield server


# One for all tests of this process, of which each has an instance of its own; or one for those that need it for themselves.
postgres = pytest.fixture(_private_postgres, scope="session", name="postgres")
postgres_of_module = pytest.fixture(_private_postgres, scope="module", name="postgres_of_module")
postgres_of_test = pytest.fixture(_private_postgres, name="postgres_of_test")


@pytest.fixture
def ledger_in_postgres(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites keep their ledgers in PostgreSQL."""
    save = ConfiguredSite.save

    def save_with_server(site: ConfiguredSite) -> None:
        if site.config["state"] == str(site.state):
            server = {"state": postgres.address, "instance": instance_of(site.state)}
            site.config |= server | {"state_directory": str(site.state.parent)}
        save(site)

    monkeypatch.setattr(ConfiguredSite, "save", save_with_server)
