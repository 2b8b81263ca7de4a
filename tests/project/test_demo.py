"""The demo runs with what a site installs: nothing that only developers have is loaded, by name either."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.demo import __main__ as command
from tests.demo import fleet
from tests.support.forks import Child, ForkerGone
from tests.support.postgres import binaries

ROOT = Path(__file__).parents[2]
DEMO = ("tests.demo.__main__", "tests.support.forks")


def file_of(module: str) -> Path | None:
    """Of our own modules in `tests`, the file."""
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.exists()), None)


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of modules, those given to import_module as strings too; and what may be one."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{one.name}" for one in names if module.split(".")[0] == "tests")
            case ast.Constant(value=str(text)) if re.fullmatch(r"tests(\.\w+)+(:\w+)?", text):
                yield text.partition(":")[0]
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(text))]):
                yield text


@cache
def foreign() -> dict[str, set[str]]:
    """What the modules of the demo import from outside `tests`, by the first part of its name: who imports it."""
    left, seen, found = list(DEMO), set(), dict[str, set[str]]()
    while left:
        module = left.pop()
        path = file_of(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name.startswith("tests."):
                left.append(name)
            else:
                found.setdefault(name.partition(".")[0], set()).add(module)
    assert "tests.faults.crash_nursery" in seen  # which forks.py names in a string
    return found


def test_it_imports_nothing_that_a_site_does_not_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {re.split(r"[^\w-]", one)[0].lower() for one in project["dependencies"]} | {"psycopg"}
    libraries = {name for name, of in packages_distributions().items() if installed & {one.lower() for one in of}}
    allowed = sys.stdlib_module_names | libraries | {"publisher", "tests"}
    assert {name: sorted(by) for name, by in foreign().items() if name not in allowed} == {}


def test_a_missing_server_and_a_missing_library_are_told_apart(tmp_path: Path) -> None:
    assert fleet.missing(tmp_path, fleet.LIBRARIES) == []
    assert fleet.missing(None, fleet.LIBRARIES) == [fleet.NO_SERVER]
    assert fleet.missing(tmp_path, ["apscheduler"]) == [fleet.NO_PSYCOPG]
    assert fleet.missing(None, []) == [fleet.NO_SERVER, fleet.NO_PSYCOPG, fleet.NO_SCHEDULER]


def test_without_a_server_it_names_the_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.demo(tmp_path, binaries(packages=[str(tmp_path / "*")])) == 1
    told = capsys.readouterr().err
    assert "apt-get install postgresql." in told
    assert "dnf install postgresql-server." in told


@pytest.mark.parametrize("who", ["ce1a", "ce1b"])
def test_a_host_that_ends_by_itself_ends_the_demo_at_once(who: str) -> None:
    """With what it printed."""
    hosts = {
        name: SimpleNamespace(
            text=lambda name=name: f"{name} printed this",
            has_ended=lambda name=name: name == who,
            wait_for=lambda words: None,
            send=lambda number: None,
        )
        for name in ("ce1a", "ce1b")
    }
    counts = iter(range(0, 100, 10))
    asked: list[str] = []

    def messages() -> int:
        asked.append("messages")
        return 0 if who == "ce1a" else next(counts)

    def has_all() -> bool:
        asked.append("all")
        return False

    of_fleet = SimpleNamespace(_messages=messages, _host=lambda name: nullcontext(hosts[name]), _all_of_ce1=has_all)
    with pytest.raises(AssertionError, match=f"{who} printed this"):
        fleet._Fleet._kill_one_of_the_pair(of_fleet)  # type: ignore[arg-type]
    assert len(asked) < 9


def test_jobs_that_did_not_arrive_are_a_failure() -> None:
    assert fleet.conclusion(1200, 1200) == ("All of them arrived, once.", 0)
    assert fleet.conclusion(1199, 1200) == ("Something is wrong: 1200 jobs were there.", 1)


def test_make_installs_what_the_fleet_needs() -> None:
    """As a dry run of make prints it: psycopg as a wheel, and what `publisher run` needs."""
    asked = ["make", "--no-print-directory", "-n", "demo", "SOURCE=fleet"]
    printed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"import apscheduler, psycopg'.*pip install .*--editable '\.\[([\w,]+)\]'", printed)
    assert found is not None, printed
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = [one for name in found[1].split(",") for one in extras[name]]
    assert [re.split(r"[<>=]", one)[0] for one in needed] == ["psycopg[binary]", "APScheduler"]
    assert "pip install 'psycopg[binary]'" in fleet.NO_PSYCOPG
    assert "pip install 'APScheduler<4'" in fleet.NO_SCHEDULER


def test_ci_runs_the_demo_of_every_source() -> None:
    told = re.search(r"for source in ([\w ]+); do\n    make demo", (ROOT / ".ci" / "run").read_text())
    assert told is not None
    assert sorted(told[1].split()) == sorted([*command.SOURCES, "fleet"])


@pytest.mark.slow
def test_a_forking_process_that_has_ended_is_a_clear_error(tmp_path: Path) -> None:
    library = tmp_path / "none.so"  # a server of its own, which this test may end
    ends = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    with pytest.raises(ForkerGone, match="has ended"):  # at its start or at its end, as the processes race
        Child(code=ends, preload=library).wait()
    with pytest.raises(ForkerGone, match="has ended"):
        Child(code="", preload=library)


@pytest.mark.slow
def test_a_kept_site_answers_the_commands_that_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.keep(tmp_path / "kept", "arex") == 0
    lines = capsys.readouterr().out.splitlines()
    asked = [line.split(" -c ", 1)[1] for line in lines if " -c " in line and line.startswith("  ")]
    (trace,) = (line for line in asked if " trace " in line)
    run = subprocess.run(
        [Path(sys.executable).with_name("publisher"), "-c", *trace.split()], capture_output=True, text=True, check=True
    )
    assert "accepted by egi" in run.stdout
