"""File systems of their own for single processes: a small one, a full one, one that turns read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import Run

# Its first two arguments: where, and how. In a mount namespace of its own (CLONE_NEWNS), which ends with the process.
_MOUNT: Final = """
import ctypes, json, os, pathlib, subprocess, sys
if ctypes.CDLL(None).unshare(0x20000):
    sys.exit("cannot mount: no namespace")
for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", sys.argv[2], "tmpfs", sys.argv[1]]):
    made = subprocess.run(["mount", *words], capture_output=True, text=True)
    if made.returncode:
        sys.exit(f"cannot mount: {made.stderr}")
mount, config = sys.argv[1], sys.argv[3]
"""


def mounted(folder: Path, options: str, config: Path, code: str, *arguments: object, **streams: Any) -> Child:
    """A process that executes `code`, with a tmpfs on `folder`. There `mount` and `config` are known; arguments begin at 4."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    return Child(folder, options, config, *arguments, code=_MOUNT + code, **streams)


def run_mounted(folder: Path, options: str, config: Path, code: str, *arguments: object) -> Run:
    """The same, to its end."""
    child = mounted(folder, options, config, code, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=PATIENCE_S)
    if "cannot mount" in err:
        pytest.skip(f"no file system can be mounted here: {err.strip()}")
    return Run(status=child.wait(), out=out, err=err)
