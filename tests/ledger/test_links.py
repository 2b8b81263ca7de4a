"""Links that another user of the state directory's group made there lead nobody to write elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from publisher.ledger.generation import GenerationFile, LocalRecord
from publisher.ledger.sqlite.locks import FileChargeLocks
from publisher.model.errors import LedgerError
from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.gridengine_files import CLUSTER, colon, entries
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

JOBS = generate(1, 20, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
SECRET = b"a file of the user who publishes\n" * 20


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    accounting = tmp_path / "accounting"
    accounting.write_bytes(b"".join(map(colon, entries(1, 20))))
    batch = {"type": "gridengine", "name": "cluster", "cluster": CLUSTER, "paths": [str(accounting)]}
    made.config["source"] = [{"name": "ce", **made.config["source"]}, {**batch, "arc_databases": []}]
    made.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    made.fill(*JOBS)
    return made


def publish(site: SiteUnderTest) -> Run:
    return site.run("publish", "--force")


def charge(site: SiteUnderTest) -> Run:
    return site.run("charge", "--from", "2026-10", "--to", "2026-10")


def read(site: SiteUnderTest) -> Run:
    return site.run("import", "gridengine")


RECEIVER = "publishing.db.+receiver-1.lock"
GENERATION = "publishing.db.+receiver-DIGEST.generation"
WRITTEN: dict[str, Callable[[SiteUnderTest], Run]] = {
    "publishing.db.egi.lock": publish,
    RECEIVER: publish,
    GENERATION: publish,
    "jobs.db.lock": publish,
    "publishing.db.+charge.lock": charge,
}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_in_the_state_directory_is_refused(site: SiteUnderTest, name: str, is_there: bool) -> None:
    link, victim = planted(site, name, is_there=is_there)
    run = WRITTEN[name](site)
    assert run.status == 74
    assert f"{link}: " in run.err
    assert "a symbolic link is in its place" in run.err
    assert unharmed(victim, is_there=is_there)
    link.unlink()
    assert WRITTEN[name](site).status in (0, 65)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_place_of_a_partial_file_is_removed(site: SiteUnderTest, is_there: bool) -> None:
    """As are those that a crash left."""
    link, victim = planted(site, f"{GENERATION}.part", is_there=is_there)
    assert publish(site).status in (0, 65)
    assert unharmed(victim, is_there=is_there)
    assert not link.is_symlink()


def test_a_second_name_of_another_file_is_not_written_to(site: SiteUnderTest) -> None:
    victim = site.folder / "victim"
    victim.write_bytes(SECRET)
    place(site).joinpath(named(site, f"{GENERATION}.part")).hardlink_to(victim)
    assert publish(site).status in (0, 65)
    assert victim.read_bytes() == SECRET


def test_a_link_that_takes_the_place_of_a_written_file_is_not_followed(site: SiteUnderTest) -> None:
    """Between two messages of a round; what was written is written again by the next one."""
    victim, path = site.folder / "victim", place(site) / named(site, GENERATION)
    victim.write_bytes(SECRET)
    written = GenerationFile(path)
    written.write(LocalRecord())
    path.unlink()
    path.symlink_to(victim)
    written.begun(7, "a message")
    written.follow()
    assert not path.is_symlink()
    assert victim.read_bytes() == SECRET


def test_a_link_in_place_of_the_locks_of_charges_is_no_lock(site: SiteUnderTest) -> None:
    planted(site, "publishing.db.+charge.lock", is_there=True)
    with closing(FileChargeLocks(site.state)) as locks, pytest.raises(LedgerError, match="a symbolic link"):
        locks.is_alive(1)


def test_nothing_else_has_a_name_that_can_be_known_before(site: SiteUnderTest) -> None:
    """But the databases, of which SQLite and the administrator may make links."""
    for run in (publish(site), charge(site), read(site)):
        assert run.status in (0, 65), run.err
    folder = site.state.parent
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    databases = {name for name in made if name.endswith((".db", ".db-wal", ".db-shm"))}
    assert made - databases == {named(site, name) for name in WRITTEN}


def planted(site: SiteUnderTest, name: str, *, is_there: bool) -> tuple[Path, Path]:
    link, victim = place(site) / named(site, name), site.folder / "victim"
    if is_there:
        victim.write_bytes(SECRET)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    return link, victim


def named(site: SiteUnderTest, name: str) -> str:
    """A file by its name; that of a receiver's lock is made of the place."""
    digest = sha256(f"{site.fake.url}, project {PROJECT}, topic {TOPIC}".encode()).hexdigest()[:16]
    return name.replace("DIGEST", digest)


def place(site: SiteUnderTest) -> Path:
    """The state directory, which its group may write."""
    site.state.parent.mkdir(exist_ok=True)
    site.state.parent.chmod(0o770)
    return site.state.parent


def unharmed(victim: Path, *, is_there: bool) -> bool:
    return victim.read_bytes() == SECRET if is_there else not victim.exists()
