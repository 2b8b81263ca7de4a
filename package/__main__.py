"""`python -m package FOLDER`: manual pages to FOLDER/man, completions to FOLDER/completions."""

from __future__ import annotations

import sys
from pathlib import Path

from package import completions, pages

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    pages.write(folder / "man")
    completions.write(folder / "completions")
