"""What Sonar wrote before its JSON envelopes, so that a file of it is called what it is.

Named fields (`v=0.7.0,time=...`) since 0.7, unnamed ones before, and since 0.13 objects without
`meta`. They lack what a record needs, such as time zones, or describe processes instead of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# Fields come in any order, and are quoted where they hold a comma.
_NAMED: Final = re.compile(
    rb'(?:"?[A-Za-z][A-Za-z0-9_]{0,30}%?=[^{}\n]{0,4000}?,)?"?v=([0-9]{1,6}(?:\.[0-9]{1,6}){1,2})[,\s]'
)
# time, host, cores, user, job, command
_UNNAMED: Final = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(?:Z|[+-][0-9]{2}:?[0-9]{2}),"
    rb"[A-Za-z0-9_.-]{1,255},[0-9]{1,6},[^,\n]{1,64},[0-9]{1,12},"
)
_OBJECTS: Final = (
    frozenset({"v", "jobs"}),
    frozenset({"v", "time", "host"}),
    frozenset({"v", "error", "timestamp"}),
    frozenset({"timestamp", "hostname"}),
)
# Of files in Sonar's tree of days.
FILE_NAME: Final = re.compile(r".+\.csv|(?:slurm-sacct|sysinfo)[^/]*\.(?:csv|json)")

ADVICE: Final = (
    "import what Sonar 0.13 or later writes (0+job-slurm.json), and the time before it from Slurm "
    "itself: `publisher import slurm`"
)


def old_csv(line: bytes) -> str:
    """Return what a line of the old CSV format is, and what to do; '' for anything else."""
    if _UNNAMED.match(line):
        return _text("CSV", "0.6 or older")
    named = _NAMED.match(line)
    return "" if named is None else _text("CSV", named[1].decode("ascii"))


def old_object(decoded: Mapping[str, Any]) -> str:
    """Return what an object of the old JSON format is, and what to do; '' for anything else."""
    if not any(keys <= decoded.keys() for keys in _OBJECTS):
        return ""
    version = decoded.get("v", "")
    if not isinstance(version, str):
        version = ""
    return _text("JSON", version[:20])


def _text(form: str, version: str) -> str:
    wrote = f" (version {version})" if version else ""
    return f"in the old {form} format of Sonar{wrote}, which is not read: {ADVICE}"
