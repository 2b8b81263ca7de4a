"""Files for others: whole or as before, for owner and group, and never through a link that somebody else has put."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from publisher.model.errors import UsageError
from publisher.reporting.files import whole_file
from publisher.transports.directories import opened_directory, replacing


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def write(path: Path, text: str = "new\n") -> None:
    with whole_file(path) as out:
        out.write(text)


@pytest.mark.parametrize(("mask", "mode"), [(0o000, 0o640), (0o022, 0o640), (0o077, 0o600)])
def test_owner_and_group_may_read_it_unless_the_umask_says_less(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "report.html"
    path.write_text("old\n")
    path.chmod(0o666)
    with umask(mask):
        write(path)
    assert path.stat().st_mode & 0o777 == mode


def test_what_fails_in_the_middle_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("old\n")
    with pytest.raises(UnicodeEncodeError):
        write(path, "half a line\n" + "\udc80")
    assert [found.name for found in tmp_path.iterdir()] == ["jobs.csv"]
    assert path.read_text() == "old\n"


def test_of_a_link_the_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "2026").mkdir()
    link = tmp_path / "latest"
    link.symlink_to("2026/report.html")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "2026" / "report.html").read_text() == "new\n"


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="Too many levels of symbolic links"):
        write(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize(
    ("mode", "owner", "followed"), [(0o1777, 65534, False), (0o1777, 0, True), (0o755, 65534, True)]
)
def test_a_link_of_another_user_is_not_followed(tmp_path: Path, mode: int, owner: int, followed: bool) -> None:
    shared, precious = tmp_path / "shared", tmp_path / "precious"
    shared.mkdir()
    precious.write_text("old\n")
    (shared / "publisher.prom").symlink_to(precious)
    os.chown(shared / "publisher.prom", owner, owner, follow_symlinks=False)
    shared.chmod(mode)
    if followed:
        write(shared / "publisher.prom")
    else:
        with pytest.raises(UsageError, match="a link of another user"):
            write(shared / "publisher.prom")
    assert precious.read_text() == ("new\n" if followed else "old\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_a_link_of_another_user_to_a_device_is_not_followed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "publisher.prom").symlink_to("/dev/null")
    os.chown(shared / "publisher.prom", 65534, 65534, follow_symlinks=False)
    shared.chmod(0o1777)
    with pytest.raises(UsageError, match="a link of another user"):
        write(shared / "publisher.prom")
    shared.chmod(0o755)
    write(shared / "publisher.prom")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("where", ["user/publisher.prom", "user/metrics/publisher.prom"])
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o1755])
def test_a_link_in_a_directory_of_another_user_is_not_followed(tmp_path: Path, where: str, mode: int) -> None:
    """The user who owns a directory can put a link there, whoever else may write."""
    precious, path = tmp_path / "precious", tmp_path / where
    precious.mkdir()
    (precious / "publisher.prom").write_text("old\n")
    planted = tmp_path.joinpath(*Path(where).parts[:2])
    planted.parent.mkdir()
    planted.symlink_to(precious / "publisher.prom" if planted == path else precious)
    os.chown(planted, 65534, 65534, follow_symlinks=False)
    os.chown(planted.parent, 65534, 65534)
    planted.parent.chmod(mode)
    with pytest.raises(UsageError, match="a link of another user"):
        write(path)
    assert (precious / "publisher.prom").read_text() == "old\n"
    planted.unlink()
    path.parent.mkdir(exist_ok=True)
    os.chown(path.parent, 65534, 65534)
    write(path)  # the node exporter's own directory
    assert path.read_text() == "new\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
@pytest.mark.parametrize(("mode", "used"), [(0o1777, False), (0o757, False), (0o755, True)])
def test_a_directory_of_another_user_where_everybody_may_write_is_not_used(
    tmp_path: Path, mode: int, used: bool
) -> None:
    """Another user may have made it before the site did."""
    path = tmp_path / "shared" / "metrics" / "publisher.prom"
    path.parent.mkdir(parents=True)
    os.chown(path.parent, 65534, 65534)
    path.parent.parent.chmod(mode)
    if used:
        write(path)
        assert path.read_text() == "new\n"
    else:
        with pytest.raises(UsageError, match="a directory of another user"):
            write(path)
        assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_was_put_in_the_place_of_a_new_file_is_not_written_to(tmp_path: Path, planted: str) -> None:
    """Between its removal and the opening of ours."""
    precious = tmp_path / "precious"
    precious.write_text("old\n")
    new = tmp_path / "egi.tmp"
    if planted == "link":
        new.symlink_to(precious)
    else:
        new.hardlink_to(precious)
    with (
        opened_directory(tmp_path) as directory,
        pytest.raises(FileExistsError),
        replacing(directory, new.name, directory, "egi", 0o600),
    ):
        raise AssertionError("it was opened")
    assert precious.read_text() == "old\n"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_nothing_is_written_unattended_where_everybody_may_write(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "shared" / "publisher.prom"
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(UsageError, match="everybody may write there"), whole_file(path, is_unattended=True):
        raise AssertionError("it was opened")
    assert list(path.parent.iterdir()) == []
    path.parent.chmod(0o775)
    with whole_file(path, is_unattended=True) as out:
        out.write("new\n")
    assert path.read_text() == "new\n"


def test_a_path_may_be_relative_and_go_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    for path in (Path("one"), Path("../two"), Path("../a/./three")):
        write(path)
        assert path.read_text() == "new\n"
