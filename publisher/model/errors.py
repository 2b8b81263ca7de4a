"""The tree of errors and the exit status of each.

A message says what happened, where, and what to do. Foreign exceptions are translated at the edge.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

BUG = 70
# The gravest status of a run wins, in this order; it is part of the contract.
GRAVITY = (BUG, 74, 78, 77, 66, 76, 65, 75)


class PublisherError(Exception):
    """Something the administrator can act on; `exit_status` is what the process ends with."""

    exit_status = BUG


class RecordError(PublisherError):
    """Some jobs were put into quarantine, the rest was delivered."""

    exit_status = 65


class SourceError(PublisherError):
    """Accounting data cannot be read or understood."""

    exit_status = 66


class LedgerError(PublisherError):
    """The publishing database cannot be read or written."""

    exit_status = 74


class Later(PublisherError):
    """Not now; nothing is lost and the next round continues."""

    exit_status = 75


class Unreachable(Later):
    """The service could not be reached, or did not answer usefully, within this run's budget."""


class Busy(Later):
    """Another publisher is at work on this target, or on its receiver."""


class Rejected(PublisherError):
    """The other side said no to a message or a request."""

    exit_status = 76


class CredentialError(PublisherError):
    """Certificate or key missing, unreadable, expired, mismatching or refused."""

    exit_status = 77


_MOST_SHOWN = 100


class ConfigError(PublisherError):
    """The configuration is wrong; `problems` lists all of them, one line each."""

    exit_status = 78

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        shown = list(self.problems[:_MOST_SHOWN])
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more} more problems; mend these first")
        super().__init__("\n".join(shown))


class UsageError(PublisherError):
    """The command line is wrong."""

    exit_status = 64


def gravest(statuses: Iterable[int]) -> int:
    """The exit status that wins when several targets ended differently; 0 when all are done."""
    seen = {status for status in statuses if status}
    return next((status for status in GRAVITY if status in seen), max(seen, default=0))


_NO_ROOM: Final = "make room on its file system, and look at quotas and limits of file size"
_READ_ONLY: Final = (
    "its file system is read-only, as after an error of its disk: look at the kernel's log, "
    "and make it writable"
)
_TOO_MANY_FILES: Final = (
    "too many files are open: raise the limit (LimitNOFILE= of the service, or ulimit -n)"
)
_OF_THE_MACHINE: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EROFS: _READ_ONLY,
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: _TOO_MANY_FILES,
    errno.ENOMEM: "no memory is left on this machine: look at what uses it",
    errno.EIO: "the disk refused: look at the kernel's log",
    errno.ELOOP: "a symbolic link is in its place, which is not followed or leads to itself: "
    "remove the link",
    errno.EINTR: "a network file system gave up: look at the kernel's log",
    errno.ENOLCK: "its file system cannot lock files, as NFS does without its lock service: "
    "use a local disk",
}


def refused_by_system(error: OSError, otherwise: str) -> str:
    """The system's reason, and what to do: about the machine or, `otherwise`, about the file."""
    advice = _OF_THE_MACHINE.get(error.errno or 0)
    return f"{error.strerror or error}; {f'{advice}, then run again' if advice else otherwise}"


def bug_text(error: Exception) -> str:
    """What is said of an exception that nobody expected."""
    return f"a bug in publisher ({type(error).__name__}: {error}); please report it"


class Unfit(Exception):
    """One job cannot be published: the rule it breaks, and a reason. It becomes a `SkippedJob`.

    A verdict on a job, always caught by `publishing`; never what a process ends with.
    """

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason
        super().__init__(f"{rule}: {reason}")
