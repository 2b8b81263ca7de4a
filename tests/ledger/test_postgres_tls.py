"""A ledger at another host: what libpq really does with a server, its certificate and its authority."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.pki import PKI
from tests.support.ports import reserved_port
from tests.support.postgres import ROLE, PostgresServer
from tests.support.sites import SiteUnderTest

pytest.importorskip("psycopg")

HOST = "db.example.org"
JOBS = list(generate(1, 12, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.fixture
def remote(site: SiteUnderTest, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> SiteUnderTest:
    """Its service file names another host, which is this one; no one said how to connect."""
    monkeypatch.delenv("PGSSLMODE", raising=False)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("HOME", str(tmp_path))
    write_service(tmp_path, port)
    site.config |= {"state": "service=accounting", "instance": "ce1", "state_directory": str(tmp_path)}
    site.fill(*JOBS)
    return site


def write_service(folder: Path, port: int, **more: object) -> None:
    given = {"host": HOST, "hostaddr": "127.0.0.1", "port": port, "dbname": "site", "user": ROLE, **more}
    lines = (f"{name}={value}" for name, value in given.items())
    (folder / "services").write_text("\n".join(["[accounting]", *lines, ""]))


def test_the_connection_is_encrypted_and_the_server_verified(
    remote: SiteUnderTest, postgres_of_module: PostgresServer, pki: PKI, tmp_path: Path, port: int
) -> None:
    postgres_of_module.listen(port, pki.host(HOST))  # and lets nobody in without TLS
    write_service(tmp_path, port, sslrootcert=pki.bundle)
    assert remote.publish().status == 0
    remote.assert_received(*JOBS)


@pytest.mark.parametrize(
    ("server", "authority", "advice"),
    [
        ("good", "other", "name the CA that signed the server's certificate as sslrootcert"),
        ("good", "none", "name the CA that signed the server's certificate as sslrootcert"),
        ("of another host", "right", "name the server in `state` as its certificate does"),
        ("expired", "right", "the certificate has expired"),
        ("without TLS", "right", "set `ssl = on` at the server"),
    ],
)
def test_a_server_that_may_be_another_is_sent_nothing(
    remote: SiteUnderTest,
    postgres_of_module: PostgresServer,
    pki: PKI,
    tmp_path: Path,
    port: int,
    server: str,
    authority: str,
    advice: str,
) -> None:
    certificates = {
        "good": pki.host(HOST),
        "of another host": pki.host("elsewhere.example.org"),
        "expired": pki.host(HOST, not_before=datetime(2026, 1, 1, tzinfo=UTC)),
    }
    postgres_of_module.listen(port, certificates.get(server))
    authorities = {"right": pki.bundle, "other": pki.other_authority.certificate}
    named = authorities.get(authority)
    write_service(tmp_path, port, **({"sslrootcert": named} if named else {}))
    ended = remote.publish()
    assert (ended.status, advice in ended.err) == (74, True), ended.err
    assert remote.fake.messages(PROJECT, TOPIC) == []
