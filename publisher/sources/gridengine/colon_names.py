"""Job names and accounts with colons in them, in accounting lines that escape nothing.

Newer versions refuse such names; older ones, and applications that write fields into the name of
their jobs (`case0:mesh:00000001:post`), do not. The line is then read from the numbers on: what
precedes the priority is queue, host, group, owner, name, job number and account.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_OBJECTS: Final = 4  # queue, host, group and owner, which cannot hold a colon
_LEAST: Final = _OBJECTS + 3  # with name, job number and account
# More are the columns of a torn record before this one.
_MOST_COLONS: Final = 20
_JOB_NUMBER: Final = re.compile(r"[1-9][0-9]{0,9}")  # leading zeros are of a field in a name
_DIGITS: Final = re.compile(r"[0-9]+")


class UnclearNames(Exception):
    """Columns that may be read in several ways, and why."""


def split_names(text: str) -> list[str]:
    """Return queue, host, group, owner, name, job number and account of what precedes the priority.

    An account is taken to have no colons where that is possible. Raises: UnclearNames.
    """
    columns = text.split(":")
    if len(columns) < _LEAST:
        raise UnclearNames("a column that must be a number is not")
    if len(columns) - _LEAST > _MOST_COLONS or _is_glued(columns):
        raise UnclearNames("the job's name has the columns of another record: one of two is torn")
    at = _job_number(columns)
    name, account = columns[_OBJECTS:at], columns[at + 1 :]
    return [*columns[:_OBJECTS], ":".join(name), columns[at], ":".join(account)]


def _job_number(columns: Sequence[str]) -> int:
    """Return the place of the job number. Raises: UnclearNames."""
    last = len(columns) - 2
    if _JOB_NUMBER.fullmatch(columns[last]):
        return last
    found = [at for at in range(_OBJECTS + 1, last) if _JOB_NUMBER.fullmatch(columns[at])]
    if not found:
        raise UnclearNames("no column can be the job number")
    if len(found) > 1:
        numbers = " or ".join(columns[at] for at in found)
        raise UnclearNames(
            f"job name and account hold colons, and the job number may be {numbers}: "
            "correct the line, and try it again"
        )
    return found[0]


def _is_glued(columns: Sequence[str]) -> bool:
    """Return whether these are the first columns of a torn record, then those of another.

    The queue of the second follows where the first was torn, in one column with what was left
    there; its host, group and owner come after that. The two are records of one cluster: their
    hosts have names alike, or two of the other three agree.
    """
    queue, host, group, owner = columns[:_OBJECTS]
    if queue and columns[1].endswith(queue):
        return True  # torn in its host, which therefore resembles no other
    for at in range(1, len(columns) - _OBJECTS):
        if _are_alike(host, columns[at + 1]):
            return True
        others = (columns[at].endswith(queue), columns[at + 2] == group, columns[at + 3] == owner)
        if sum(others) > 1:
            return True
    return False


def _are_alike(host: str, name: str) -> bool:
    """Return whether a name is a host's, but for its number, or in the same domain."""
    _, _, domain = host.partition(".")
    if domain and name.endswith(f".{domain}"):
        return True
    return bool(name) and _DIGITS.sub("0", name) == _DIGITS.sub("0", host)
