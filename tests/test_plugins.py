"""What README promises: a source, a format or a transport is one file and one line. Tried in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import publisher
from tests.arex_databases import generate
from tests.patience import PATIENCE_S
from tests.pki import PKI
from tests.sites import ConfiguredSite

PLUGINS = Path(__file__).parent / "plugins"
JOBS = list(generate(1, 90, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
# The room, the file, and the name that the line gives it.
NEW = (("sources", "folder", "folder"), ("formats", "terse", "terse"), ("transports", "paper", "paper"))
BEFORE = {
    "sources": '    "arex": "publisher.sources.arex.source",\n',
    "formats": '    "car": "publisher.formats.apel",\n',
    "transports": '    "spool": "publisher.transports.spool",\n',
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with three files and three lines more."""
    root = tmp_path_factory.mktemp("tree")
    package = Path(publisher.__file__).parent
    shutil.copytree(package, root / "publisher", ignore=shutil.ignore_patterns("__pycache__"))
    for room, module, name in NEW:
        shutil.copy(PLUGINS / f"{module}.py", root / "publisher" / room)
        registry = root / "publisher" / room / "__init__.py"
        text = registry.read_text()
        assert text.count(BEFORE[room]) == 1
        line = f'    "{name}": "publisher.{room}.{module}",\n'
        registry.write_text(text.replace(BEFORE[room], BEFORE[room] + line))
    return root


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    paper = {"type": "paper", "tray": str(tmp_path / "tray"), "format": "terse", "start": "all"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"post": paper})
    with made.arex() as arex:
        for job in JOBS:
            arex.write(job)
    made.config["source"] = {"type": "folder", "folder": str(made.control)}
    made.save()
    return made


def run(tree: Path, site: ConfiguredSite, *words: str) -> subprocess.CompletedProcess[str]:
    starter = "from publisher.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", starter, "--config", site.path, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_jobs_go_from_a_new_source_in_a_new_format_by_a_new_transport(
    tree: Path, site: ConfiguredSite, tmp_path: Path
) -> None:
    done = run(tree, site, "publish", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["targets"]["post"]
    assert (told["records"], told["messages"] > 1) == (len(JOBS), True)
    lines = [line for line in (tmp_path / "tray").read_text().splitlines() if line != "terse"]
    assert sorted(lines) == sorted(f"{job.job_id} {job.wall_s}" for job in JOBS)
    for words in (
        *(("status",), ("trace", JOBS[0].job_id), ("explain", JOBS[0].job_id), ("sync", "--check")),
        ("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--dry-run"),
    ):
        done = run(tree, site, *words)
        assert done.returncode == 0, done.stderr


def test_what_only_a_look_at_the_message_finds_is_set_aside_and_its_neighbours_go(
    tree: Path, site: ConfiguredSite, tmp_path: Path
) -> None:
    unlucky = [replace(JOBS[number], job_id=f"unlucky{number}", wall_s=13) for number in (20, 21, 70)]
    with site.arex() as arex:
        for job in unlucky:
            arex.write(job)
    done = run(tree, site, "publish", "--json")
    assert done.returncode == 65, done.stderr
    assert json.loads(done.stdout)["targets"]["post"]["records"] == len(JOBS)
    lines = [line for line in (tmp_path / "tray").read_text().splitlines() if line != "terse"]
    assert sorted(lines) == sorted(f"{job.job_id} {job.wall_s}" for job in JOBS)
    aside = json.loads(run(tree, site, "quarantine", "list", "--json").stdout)["quarantined"]
    assert sorted((each["job"], each["rule"]) for each in aside) == [(job.job_id, "unlucky") for job in unlucky]
    assert json.loads(run(tree, site, "publish", "--json").stdout)["targets"]["post"]["records"] == 0


def test_doctor_asks_the_new_ones_too(tree: Path, site: ConfiguredSite) -> None:
    done = run(tree, site, "doctor")
    assert "there is paper in it" in done.stdout, done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize(
    "words", [("stats",), ("job", "info", "X"), ("export",), ("complete", "jobs"), ("report", "--format", "terminal")]
)
def test_what_a_new_source_cannot_tell_is_said(tree: Path, site: ConfiguredSite, words: tuple[str, ...]) -> None:
    """Statistics are a source's own offer, in a registry of their own; without it there is an error, and no bug."""
    done = run(tree, site, *words)
    assert done.returncode == 78
    assert "folder" in done.stderr
    assert "bug" not in done.stderr


def test_a_mistyped_key_of_a_new_one_is_told(tree: Path, site: ConfiguredSite) -> None:
    site.config["targets"]["post"]["trey"] = "x"
    site.save()
    done = run(tree, site, "config", "check")
    assert done.returncode == 78
    assert "did you mean 'tray'?" in done.stderr
