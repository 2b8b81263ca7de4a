"""Log lines for systemd's journal, which knows the time of each itself and reads its priority from `<N>` before it.

Spec: sd-daemon(3), and systemd.exec(5) on JOURNAL_STREAM.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping
from typing import Final, TextIO

# By level: the journal's debug, info, warning, err, crit.
_PRIORITIES: Final = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


def leads_to_journal(environment: Mapping[str, str], stream: TextIO) -> bool:
    """Whether this very stream is the journal, and not a file or pipe that took its place."""
    device, colon, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    if not (colon and device.isdecimal() and inode.isdecimal()):
        return False
    try:
        found = os.fstat(stream.fileno())
    except (OSError, io.UnsupportedOperation):  # no file of the system behind it
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


class JournalLines(logging.Formatter):
    """The lines of another formatter, each with its priority: the journal makes an entry of every line."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, 5)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))
