"""Write down what can be observed of `publisher`, or compare it with what was written down before.

    python -m tests.scenarios.observed --write DIR
    python -m tests.scenarios.observed --compare DIR

A file for each scenario and question: the command, its exit status, what it printed; what arrived at a service. `--compare`
ends with 1 and a diff when anything is not as it was: before a large change, write; after each of its steps, compare.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.scenarios.scenes import SCENES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.observed")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="DIR", help="a folder that is not there yet")
    what.add_argument("--compare", type=Path, metavar="DIR", help="what an earlier --write has left")
    parser.add_argument("--only", action="append", choices=SCENES, help="may be repeated; by default all scenarios")
    options = parser.parse_args(arguments)
    names = options.only or list(SCENES)
    if options.write:
        options.write.mkdir(parents=True)
        observe(options.write, names)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        observe(Path(directory), names)
        differences = list(compared(options.compare, Path(directory), names))
    sys.stdout.writelines(differences)
    return int(bool(differences))


def observe(notes: Path, names: Sequence[str]) -> None:
    """Every scenario in a process of its own. Raises: CalledProcessError."""

    def play(name: str) -> None:
        subprocess.run([sys.executable, "-m", "tests.scenarios.play", name, str(notes)], check=True)
        print(f"{name}: {len(list((notes / name).iterdir()))} questions", file=sys.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(play, names))


def compared(before: Path, after: Path, names: Sequence[str]) -> Iterator[str]:
    """Lines of a unified diff, of the scenarios that were looked at."""
    for file in sorted(_files(before, names) | _files(after, names)):
        old, new = _lines(before / file), _lines(after / file)
        yield from difflib.unified_diff(old, new, f"before/{file}", f"after/{file}")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def _files(folder: Path, names: Sequence[str]) -> set[str]:
    return {str(path.relative_to(folder)) for name in names for path in (folder / name).glob("*.txt")}


if __name__ == "__main__":
    sys.exit(main())
