"""Why this user may not write to the directory of the ledger, as it is found."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def unwritable(folder: Path) -> str:
    """Return why this user cannot write the state, and what to do; of what is so as it is found.

    SQLite writes beside a database even to read it, so this keeps `status` from reading, too.
    """
    user = os.geteuid()
    try:
        found = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}; create it, for the user who publishes"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a directory; choose another file for `state`"
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return f"every file in {folder} must belong to the user who publishes"
    if found.st_uid != user and user != 0:
        owner = _user_name(found.st_uid)
        whose = f"{folder} belongs to user {owner}, and this is user {_user_name(user)}"
        return f"{whose}: run it as {owner} (`runuser -u {owner} -- publisher ...`)"
    mode = stat.S_IMODE(found.st_mode)
    return f"{folder} may not be written to (mode {mode:04o}): `chmod u+rwx {folder}`"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)
