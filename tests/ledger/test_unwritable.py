"""Why a state cannot be written, as it is found: not its owner where its mode is to blame, and the reverse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from publisher.ledger.sqlite.connection import unwritable


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    assert unwritable(folder) == f"{folder}: No such file or directory; create it, for the user who publishes"


def test_one_that_its_own_user_may_not_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    tmp_path.chmod(0o555)
    assert unwritable(tmp_path) == f"{tmp_path} may not be written to (mode 0555): `chmod u+rwx {tmp_path}`"


def test_one_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_001)
    if os.getuid() == 0:
        os.chown(tmp_path, 4_000_002, -1)
        whose = "belongs to user 4000002, and this is user 4000001: run it as 4000002"
        assert unwritable(tmp_path) == f"{tmp_path} {whose} (`runuser -u 4000002 -- publisher ...`)"
    else:
        assert "and this is user 4000001: run it as" in unwritable(tmp_path)


def test_one_in_which_only_a_file_is_to_blame(tmp_path: Path) -> None:
    assert unwritable(tmp_path) == f"every file in {tmp_path} must belong to the user who publishes"
