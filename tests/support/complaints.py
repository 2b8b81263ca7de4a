"""What every failed run owes its administrator: the right exit status, what is wrong and where, and no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from tests.support.sites import Run

# The gravest wins, in this order (the contract's table of exit statuses).
GRAVITY: Final = (70, 74, 78, 77, 66, 76, 65, 75)
_BUG: Final = re.compile(r"Traceback|a bug in publisher|\w+Error:|\bsqlite3\.|\bTypeError\b")


def assert_plain(run: Run, status: int, *words: str) -> None:
    """The run ended with this status and says all of these, in words of its own."""
    told = run.out + run.err
    assert run.status == status, told
    for word in words:
        assert word in told, f"{word!r} is not in: {told}"
    assert not _BUG.search(told), told


def assert_complains(run: Run, status: int, *words: str, target: str = "egi") -> None:
    """The same of `publish --json`: standard output is one JSON object, and this target's reason holds the words."""
    assert_plain(run, status)
    found: dict[str, Any] = json.loads(run.out)
    assert found["exit"] == status
    told = found["targets"][target]
    assert told["outcome"] in ("error", "deferred", "rejected"), told
    for word in words:
        assert word in (told["reason"] or ""), f"{word!r} is not in: {told['reason']}"


def gravest(statuses: Sequence[int]) -> int:
    """The exit status of a run over several targets, by the contract."""
    return min((status for status in statuses if status), key=GRAVITY.index, default=0)
