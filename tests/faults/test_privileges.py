"""As little as possible: files that others cannot read, directories that others cannot write, and no secret in any text."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import Writer, generate, leave_wal
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.complaints import assert_complains, assert_plain
from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
PASSWORD = "hunter2-not-to-be-told"  # what the tests look for


def fill(site: SiteUnderTest, count: int = 6) -> None:
    site.fill(*generate(1, count, START, END))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_that_is_made_is_closed_to_others(site: SiteUnderTest, umask: int) -> None:
    """Whatever the umask; also while a round runs, and what its end leaves."""
    fill(site)
    spool = site.folder / "outgoing"
    site.config["targets"]["hand-over"] = {"type": "spool", "path": str(spool), "format": "car", "start": "all"}
    before = os.umask(umask)
    try:
        assert site.publish().status == 0
        assert site.run("status").status == 0
        assert site.run("doctor").status in (0, 75)
    finally:
        os.umask(before)
    state = site.state.parent
    assert mode(state) == mode(spool) == 0o700
    made = [path for root in (state, spool) for path in root.rglob("*")]
    assert len(made) >= 4
    for path in made:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o702])
def test_a_state_directory_that_everybody_may_write_is_refused(site: SiteUnderTest, bits: int) -> None:
    fill(site)
    site.state.parent.mkdir()
    site.state.parent.chmod(bits)
    refused = site.publish()
    assert_plain(refused, 74, str(site.state.parent), "everybody may write there", "name a file in another directory")
    assert ("chmod 0700" in refused.err) == (bits != 0o1777), "nobody should do that to /tmp"
    assert list(site.state.parent.iterdir()) == []
    assert site.fake.messages(PROJECT, TOPIC) == []
    site.state.parent.chmod(0o700)
    assert site.publish().status == 0


def test_a_spool_that_everybody_may_write_is_refused(site: SiteUnderTest) -> None:
    fill(site)
    spool = site.folder / "outgoing"
    spool.mkdir()
    spool.chmod(0o1777)
    site.config["targets"] = {"hand-over": {"type": "spool", "path": str(spool), "format": "car", "start": "all"}}
    assert_complains(site.publish(), 74, str(spool), "everybody may write there", target="hand-over")
    assert list(spool.iterdir()) == []
    spool.chmod(0o700)
    assert site.publish().status == 0


def test_a_copy_of_the_database_is_in_nobodys_reach_and_gone_at_once(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer leaves rows in its WAL: they are read from a copy, whose files nobody can open any more."""
    jobs = list(generate(1, 12, START, END))
    with Writer(site.database(), schema=2) as arex:
        arex.write_all(jobs[:6])
    leave_wal(site.database(), jobs[6:], shm=False)
    copies = site.folder / "copies"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    seen: list[Path] = []
    real = os.mkdir

    def watched(path: Any, *arguments: Any, **keywords: Any) -> None:
        real(path, *arguments, **keywords)
        if str(path).startswith(str(copies)):
            seen.append(Path(path))
            assert mode(Path(path)) == 0o700

    monkeypatch.setattr(os, "mkdir", watched)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 12)
    assert seen, "it was a copy that was read"
    assert list(copies.iterdir()) == []


# The key


@pytest.mark.parametrize("bits", [0o604, 0o640, 0o644, 0o660])
def test_a_key_that_others_can_read_is_77_unless_it_is_meant(site: SiteUnderTest, bits: int) -> None:
    fill(site)
    key = site.folder / "hostkey.pem"
    key.write_bytes(site.host.key.read_bytes())
    key.chmod(bits)
    site.config["credentials"]["key"] = str(key)
    assert_complains(site.publish(), 77, str(key), "chmod", "allow_open_key")
    assert site.fake.messages(PROJECT, TOPIC) == []
    site.config["targets"]["egi"] |= {"allow_open_key": True}
    site.save()
    assert site.publish().status == 0


# Texts


def everything(site: SiteUnderTest, *commands: tuple[str, ...]) -> str:
    """All that these commands print and log, as loud as they can be."""
    said = []
    for command in commands:
        for loud in ("-vv", "--log-format=json"):
            run = site.run(loud, *command)
            said.append(run.out + run.err)
    return "\n".join(said)


COMMANDS = (
    ("publish", "--force"),
    ("publish", "--json", "--force"),
    ("doctor",),
    ("config", "show"),
    ("config", "check"),
)


@pytest.mark.parametrize(
    "url",
    [
        f"https://someone:{PASSWORD}@localhost:1",
        f"http://someone:{PASSWORD}@localhost:1",
        f"someone:{PASSWORD}@localhost",
        f"https://{PASSWORD}@[::1",
        f"https://x:{PASSWORD}@localhost:port",
    ],
)
@pytest.mark.parametrize("kind", ["ams", "sgas"])
def test_a_password_in_a_url_is_refused_and_not_told(site: SiteUnderTest, url: str, kind: str) -> None:
    fill(site)
    site.config["targets"]["egi"] = {"type": kind, "url": url, "format": "car" if kind == "ams" else "ogf-ur"}
    site.save()
    assert site.publish().status == 78
    assert PASSWORD not in everything(site, *COMMANDS)


@contextmanager
def refusing_proxy(reply: bytes) -> Iterator[int]:
    """A proxy that answers every CONNECT so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("where", ["option", "environment"])
def test_a_proxys_password_is_in_no_text(site: SiteUnderTest, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(site)
    site.config["targets"]["egi"] |= {"attempts": 1}
    with refusing_proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n") as port:
        proxy = f"http://someone:{PASSWORD}@127.0.0.1:{port}"
        if where == "option":
            site.config["targets"]["egi"] |= {"proxy": proxy}
        else:
            monkeypatch.setenv("HTTPS_PROXY", proxy)
        site.save()
        run = site.publish()
        assert_plain(run, 78, f"127.0.0.1:{port}")
        assert PASSWORD not in everything(site, *COMMANDS)
    assert all(PASSWORD.encode() not in path.read_bytes() for path in site.state.parent.iterdir())


@pytest.mark.parametrize("status", [400, 403, 404, 418, 500, 503])
def test_a_service_that_tells_the_token_back_is_not_quoted(site: SiteUnderTest, status: int) -> None:
    """A debugging proxy, or a service that lists the headers of the request in its error page."""
    fill(site, 1)
    site.config["targets"]["egi"] |= {"attempts": 1}
    token = next(user.token for user in site.fake.store.users.values() if user.name == site.user)
    body = json.dumps({"error": {"code": status, "message": f"x-api-key: {token} is not welcome"}}).encode()
    site.fake.faults.always(Fault.status(status, body))
    said = everything(
        site, ("publish", "--force"), ("publish", "--json", "--force"), ("quarantine", "list"), ("status",)
    )
    assert token not in said
    assert all(token.encode() not in path.read_bytes() for path in site.state.parent.iterdir())
    assert str(status) in said


NARROW = (  # all that docs/fleet.md asks for, and everything else taken away
    "CREATE ROLE ce1 LOGIN NOINHERIT",
    "CREATE ROLE ce2 LOGIN NOINHERIT",
    "REVOKE ALL ON DATABASE site FROM PUBLIC",
    "REVOKE ALL ON SCHEMA public FROM PUBLIC",
    "GRANT CONNECT, TEMPORARY ON DATABASE site TO ce1, ce2",
    'CREATE SCHEMA "publisher_ce1" AUTHORIZATION ce1',
    'CREATE SCHEMA "publisher_ce2" AUTHORIZATION ce2',
)


@pytest.mark.slow
def test_a_role_of_postgresql_needs_no_more_than_its_schema(
    site: SiteUnderTest, tmp_path: Path, postgres_of_test: PostgresServer
) -> None:
    for statement in NARROW:
        postgres_of_test.sql(statement)
    address = postgres_of_test.address.replace("user=publisher", "user=ce1")
    site.config |= {"state": address, "instance": "ce1", "state_directory": str(tmp_path / "local")}
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    jobs = list(generate(1, 30, START, END))
    site.fill(*jobs)
    october = ("--from", "2026-10", "--to", "2026-10")
    for words in (
        ("publish", "--force"),
        ("status", "--all-instances"),
        ("status", "--nagios", "--all-instances"),
        ("trace", jobs[0].job_id, "--all-instances"),
        ("sync", "--check", "--all-instances", "--months", "all"),
        ("charge", *october),
        ("report", "--all-instances", *october, "--output", str(tmp_path / "report.html")),
        ("statement", "2026-10", "--all-instances"),
        ("republish", *october, "--yes"),
        ("state", "check"),
        ("state", "backup", str(tmp_path / "backup.db")),
        ("state", "check", "--with", str(tmp_path / "backup.db")),
        ("state", "copy", "--to", str(tmp_path / "copy.db")),
        ("quarantine", "list"),
    ):
        run = site.run(*words)
        assert run.status == 0, (words, run.out, run.err)
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == len(jobs)
    site.config["state"] = address.replace("user=ce1", "user=ce2")
    site.save()
    assert site.run("status").status == 74, "another CE's role reads this ledger"
    site.config["instance"] = "ce2"
    site.save()
    assert "ce1" not in site.run("status", "--all-instances").out
