"""Play one scenario in this process: `python -m tests.scenarios.play NAME DIR`. Its time and its surroundings are made up."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.scenarios import pinned


def main(name: str, notes: Path) -> None:
    settle_surroundings()
    pinned.install()
    # Only now: what these load takes its clock from the standard library.
    from tests.scenarios.scenes import SCENES
    from tests.scenarios.world import World, services

    with tempfile.TemporaryDirectory() as directory, services(Path(directory)) as shared:
        SCENES[name](World(name, shared, notes))


def settle_surroundings() -> None:
    """What a shell may have set is nobody's business here."""
    for name in list(os.environ):
        if "PROXY" in name.upper() or name.startswith(("LC_", "XDG_", "SSL_", "REQUESTS_")):
            del os.environ[name]
    os.environ |= {"COLUMNS": "160", "LANG": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1", "TERM": "dumb"}
    os.umask(0o022)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
