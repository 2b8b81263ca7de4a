"""What pyproject.toml cannot say: manual pages and completions are made at build time."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
MADE = Path("build/made")
EXAMPLE = "publisher/config/example.yaml"

sys.path.insert(0, str(HERE))  # builds in isolation do not have the source tree on their path


def _documents(folder: str) -> list[tuple[str, list[str]]]:
    """A folder and those in it, below our documents, with the files in each."""
    folders = [
        HERE / folder,
        *(path for path in sorted((HERE / folder).rglob("*")) if path.is_dir()),
    ]
    return [
        (
            f"share/doc/accounting-publisher/{found.relative_to(HERE)}",
            [str(path.relative_to(HERE)) for path in sorted(found.iterdir()) if path.is_file()],
        )
        for found in folders
    ]


def _shared() -> list[tuple[str, list[str]]]:
    """Folder below the prefix to the files in it."""
    from package import completions, pages

    written = [path.relative_to(HERE) for path in pages.write(HERE / MADE / "man")]
    made = {
        path.name: path.relative_to(HERE) for path in completions.write(HERE / MADE / "completions")
    }
    return [
        *(
            (
                f"share/man/man{section}",
                [str(page) for page in written if page.suffix == f".{section}"],
            )
            for section in "157"
        ),
        ("share/bash-completion/completions", [str(made["publisher"])]),
        ("share/zsh/site-functions", [str(made["_publisher"])]),
        ("share/doc/accounting-publisher", ["README.md"]),  # which units and configuration refer to
        *_documents("docs"),
        *_documents("conf"),
        ("share/doc/accounting-publisher/conf", [EXAMPLE]),
    ]


# Only a wheel holds them: other steps of a build, and editable installs, need not make them.
setup(data_files=_shared() if "bdist_wheel" in sys.argv else [])
