"""A command is one file and one line. Tried in a copy of the package, and held against the commands that there are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path

import pytest

import publisher
from publisher.cli.commands import COMMANDS, Command, Context
from publisher.cli.commands import command as registered
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

ROOT = Path(__file__).parents[2]
SUMMARY = "where each target goes"
LINE = f'        "ports": "{SUMMARY}",\n'


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a file and a line more."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(Path(publisher.__file__).parent, root / "publisher")
    commands = root / "publisher" / "cli" / "commands"
    shutil.copy(ROOT / "tests" / "plugins" / "ports.py", commands)
    registry = commands / "__init__.py"
    first, opening, rest = registry.read_text().partition("    Group.LOOK: {\n")
    assert opening
    registry.write_text(first + opening + LINE + rest)
    return root


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.save()
    return made


def python(tree: Path, code: str, *words: str) -> str:
    """What a program prints for which the copy is the package."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(tree: Path, *words: str) -> str:
    return python(tree, "from publisher.cli.main import main; main()", *words)


def test_a_new_command_runs(tree: Path, site: SiteUnderTest) -> None:
    text = run(tree, "--config", str(site.path), "ports", "--target", "egi")
    assert [line.split() for line in text.splitlines()] == [
        ["target", "goes", "by"],
        ["egi", "ams"],
        ["1", "in", "all"],
    ]
    assert json.loads(run(tree, "ports", "--loud", "--json", "--config", str(site.path))) == {
        "schema": 1,
        "ports": {"EGI": "AMS"},
    }


def test_a_new_command_stands_in_the_help(tree: Path) -> None:
    listing = run(tree, "--help")
    look = listing.partition("  look:\n")[2].partition("  repair:\n")[0]
    assert any(line.split() == ["ports", *SUMMARY.split()] for line in look.splitlines())
    told = run(tree, "help", "ports")
    assert told == run(tree, "ports", "--help")
    assert SUMMARY in told
    assert "--loud" in told


def test_shells_complete_a_new_command(tree: Path) -> None:
    script = python(tree, "from package import completions; print(completions.script('bash'))")
    assert "--loud" in script


@pytest.mark.parametrize("words", [("--help",), ("status", "--help")])
def test_a_new_command_costs_the_others_nothing(tree: Path, words: tuple[str, ...]) -> None:
    code = (
        "import sys, contextlib, io\nfrom publisher.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): run(sys.argv[1:])\n"
        "print(*(name for name in sys.modules if name.startswith('publisher.')))"
    )
    loaded = python(tree, code, *words).split()
    assert [name for name in loaded if name.startswith("publisher.cli.commands.")] == [
        f"publisher.cli.commands.{word}" for word in words if word == "status"
    ]
    if words == ("--help",):
        assert {name.split(".")[1] for name in loaded} == {"cli", "model"}


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.name)
def test_commands_have_the_same_shape(one: Command) -> None:
    module = one.load()
    assert list(signature(module.add_arguments).parameters) == ["parser"]
    assert list(signature(module.run).parameters) == ["arguments", "context"]
    assert signature(module.run).parameters["context"].annotation in (Context, Context.__name__)


def test_every_module_is_a_command() -> None:
    folder = Path(publisher.__file__).parent / "cli" / "commands"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules == {one.module for one in COMMANDS}
    assert len({one.name for one in COMMANDS}) == len(COMMANDS)
    assert all(registered(one.name) is one for one in COMMANDS)


def test_without_apscheduler_rounds_work_and_the_daemon_says_what_to_install(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.fill(*generate(1, 3, datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)))
    for name in ["apscheduler", *(name for name in sys.modules if name.startswith("apscheduler."))]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("publisher.config.cron", "publisher.publishing.daemon"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert site.run("publish").status == 0
    daemon = site.run("run")
    assert daemon.status == 78
    assert "pip install 'accounting-publisher[run]'" in daemon.err
    site.config["targets"]["egi"]["cron"] = "0 3 * * *"
    site.save()
    assert site.run("config", "check").status == 78
