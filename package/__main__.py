"""Write manual pages to FOLDER/man, and completions to FOLDER/completions."""

from __future__ import annotations

import argparse
from pathlib import Path

from package import completions, pages

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m package", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="made where it is not there")
    folder = parser.parse_args().folder
    pages.write(folder / "man")
    completions.write(folder / "completions")
