"""The versions that development and CI install, all with hashes and as pyproject.toml allows, and ruff's rules of security."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
LOCKED: Final = (ROOT / ".ci" / "locked.txt").read_text(encoding="utf-8")
PINS: Final = {
    canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", LOCKED, re.MULTILINE)
}
PYPROJECT: Final = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT: Final = tomllib.loads(PYPROJECT)["project"]
WANTED: Final = [
    *PROJECT["dependencies"],
    *(one for names in PROJECT["optional-dependencies"].values() for one in names),
]


@pytest.mark.parametrize("wanted", sorted(set(WANTED)))
def test_each_dependency_is_locked_within_its_bounds(wanted: str) -> None:
    requirement = Requirement(wanted)
    version = PINS.get(canonicalize_name(requirement.name))
    assert version is not None, "`make lock` has to be run"
    assert requirement.specifier.contains(version), version


def test_every_version_has_hashes_and_no_place() -> None:
    requirements = re.split(r"^(?=\S+==)", LOCKED, flags=re.MULTILINE)[1:]
    assert len(requirements) == len(PINS) > len(PROJECT["dependencies"])
    assert all("--hash=sha256:" in one for one in requirements)
    assert not re.search(r"https?://|file://|--index|--find-links", LOCKED)


def test_what_the_rules_of_security_let_pass_has_its_reason() -> None:
    """`make lint` holds everything against all of them."""
    linter = tomllib.loads(PYPROJECT)["tool"]["ruff"]["lint"]
    assert "S" in linter["select"]
    assert not [rule for rule in linter["ignore"] if re.fullmatch(r"S\d*", rule)]
    lines = PYPROJECT.splitlines()
    silent = [
        line
        for before, line in pairwise(lines)
        if re.search(r'= \[.*"S\d+"', line) and "#" not in line and not before.startswith("#")
    ]
    for path in sorted(path for name in ("publisher", "tests", "benchmarks") for path in (ROOT / name).rglob("*.py")):
        marked = re.findall(r".*# noqa: S\d+.*", path.read_text(encoding="utf-8"))
        silent += [f"{path}: {line}" for line in marked if re.search(r"noqa: S\d+(, \w+\d+)*\W*$", line)]
    assert not silent
