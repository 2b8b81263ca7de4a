"""A ledger in PostgreSQL, as the configuration names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from publisher import config
from publisher.config import settings
from publisher.config.settings import LedgerServer
from publisher.config.show import show
from publisher.model.errors import ConfigError

pytest.importorskip("psycopg")

REST = """\
site: EXAMPLE-SITE
source:
  - type: slurm
    name: hpc
    cluster: hpc1
targets:
  egi: {type: ams, url: https://msg.example.org, format: car}
"""
ADDRESS = "postgresql://publisher@db.example.org/accounting"


def read(folder: Path, lines: str) -> config.Settings:
    path = folder / "publisher.yaml"
    path.write_text(REST + lines)
    return config.load(path, {}, host_name="ce.example.org")


def wrong(folder: Path, lines: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, lines)
    return [line.split("publisher.yaml:", 1)[1] for line in caught.value.problems]


def test_an_address_names_a_server_and_files_stay_on_this_host(tmp_path: Path) -> None:
    found = read(tmp_path, f"state: {ADDRESS}\ninstance: ce1\nstate_directory: {tmp_path}/here\n")
    assert found.server == LedgerServer(address=ADDRESS, instance="ce1")
    assert found.state == tmp_path / "here" / "publishing.db"


@pytest.mark.parametrize("address", [ADDRESS, "service=accounting", "postgresql:///site?host=/run/postgresql"])
def test_what_is_shown_reads_back(tmp_path: Path, address: str) -> None:
    found = read(tmp_path, f"state: {address}\ninstance: ce1\n")
    again = tmp_path / "again.yaml"
    again.write_text(show(found))
    assert config.load(again, {}, host_name="ce.example.org").server == found.server
    assert found.state.parent == settings.DEFAULT_STATE.parent


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            f"state: {ADDRESS}\n",
            "8: instance: missing; name this CE's instance; the two hosts of a pair name the same one",
        ),
        (f"state: {ADDRESS}\ninstance: 'ce 1'\n", "9: instance: 'ce 1' is no name of an instance"),
        (f"state: {ADDRESS}\ninstance: {51 * 'x'}\n", "9: instance: "),
        ("instance: ce1\n", "8: instance: is for a ledger in PostgreSQL only; remove it"),
        ("state: /x.db\nstate_directory: /x\n", "9: state_directory: is for a ledger in PostgreSQL only; remove it"),
        (
            "state: mysql://db/x\ninstance: a\n",
            "8: state: is no address of a ledger; write a path, postgresql://HOST/DATABASE",
        ),
        ("state: service=a b\ninstance: a\n", "8: state: 'service=a b' names no service"),
        ("state: 'postgresql://[x/y'\ninstance: a\n", "8: state: is no address; write postgresql://HOST/DATABASE"),
        ("state: 'postgresql://x/y z'\ninstance: a\n", "8: state: is no address; write postgresql://HOST/DATABASE"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, lines: str, problem: str) -> None:
    (found,) = wrong(tmp_path, lines)
    assert found.startswith(problem)


@pytest.mark.parametrize("address", ["postgresql://publisher:geheim@db/x", "postgresql://db/x?password=geheim"])
def test_a_password_is_refused_and_not_repeated(tmp_path: Path, address: str) -> None:
    (found,) = wrong(tmp_path, f"state: {address}\ninstance: ce1\n")
    assert "put it into a password file (PGPASSFILE)" in found
    assert "geheim" not in found


def test_without_the_driver_the_address_is_refused_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publisher.config.settings.find_spec", lambda _: None)
    (found,) = wrong(tmp_path, f"state: {ADDRESS}\ninstance: ce1\n")
    assert "needs the Python library psycopg 3" in found
