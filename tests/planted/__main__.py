"""Plant each fault in a copy of the tree, and run tests until one fails: `python -m tests.planted [--only WORDS]`.

The stories come first, then the tests of the ledger and of publishing. A fault that none finds is printed as MISSED, and the
status is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.planted.faults import FAULTS, Fault

ROOT: Final = Path(__file__).parents[2]
SOME: Final = ("-x", "-q", "-m", "not long and not slow", "-p", "no:cacheprovider")
STEPS: Final = (
    ("pytest", *SOME, "tests/model_receivers/test_named_stories.py", "tests/ledger/test_totals_stories.py"),
    ("tests.model_receivers", "--no-shrink", "--stories", "120", "--first", "200"),
    ("pytest", *SOME, "tests/ledger", "tests/publishing"),
    ("pytest", *SOME, "tests/scenarios", "tests/cli"),
)


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    asked.add_argument("--only", default="", help="faults whose names have these words")
    asked.add_argument("--jobs", default="2", help="processes")
    given = asked.parse_args()
    missed = 0
    for fault in FAULTS:
        if given.only in fault.name:
            began = time.monotonic()
            found = found_by(fault, given.jobs)
            missed += not found
            print(f"{fault.name}: {found or 'MISSED'}, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if missed else 0


def found_by(fault: Fault, jobs: str) -> str:
    """Return what fails with the fault in place, '' where nothing does."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "dist"))
        path = tree / "publisher" / fault.module
        path.write_text(planted(fault, path.read_text(encoding="utf-8")), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        for module, *arguments in STEPS:
            parallel = ("-n", jobs) if module == "pytest" else ("--jobs", jobs)
            command = [sys.executable, "-m", module, *arguments, *parallel]
            run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
            if run.returncode:
                return first_failure(run.stdout) or f"{module}: {run.stderr[-200:]}"
    return ""


def planted(fault: Fault, text: str) -> str:
    """Return the text of a module with a fault. Raises: ValueError where it has no place for it."""
    if text.count(fault.right) != 1:
        raise ValueError(f"{fault.module}: {text.count(fault.right)} times {fault.right!r}")
    return text.replace(fault.right, fault.wrong)


def first_failure(printed: str) -> str:
    lines = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR")) or line[:1].isdigit()]
    return lines[0] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
