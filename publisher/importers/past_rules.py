"""By which rules of the site the jobs of a database were imported: changed ones do not reach the jobs that are there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from typing import Any, Final

from publisher.importers.accounting_database import AccountingDatabase

# What decides when something is read or told, but not what a row says.
_NO_RULES: Final = frozenset(
    {
        *("cluster", "arc_wait_s", "orphans_after_s", "hold_off_s", "overdue_after_s"),
        *("infrastructure", "batch_server", "infrastructure_description"),
    }
)
_DIGEST_BYTES: Final = 8

Maps = Mapping[str, Mapping[str, str]]  # by key of the configuration


def rules_of(options: Any, maps: Maps) -> dict[str, str]:
    """What each key of an importer's block says, map files by their content."""
    said = {}
    for each in fields(options):
        value = maps.get(each.name, getattr(options, each.name))
        if each.name not in _NO_RULES:
            said[each.name] = _digest(sorted(value.items())) if isinstance(value, Mapping) else _text(value)
    return said


def note_of_change(accounting: AccountingDatabase, importer: str, rules: Mapping[str, str]) -> str:
    """Keep the rules of today; what to tell when those were others by which jobs were imported, or ''. Inside a transaction."""
    key, today = f"{importer.upper()}_RULES", json.dumps(dict(rules), sort_keys=True)
    before = accounting.settle(key, today)
    if before == today:
        return ""
    accounting.connection.execute("UPDATE DBConfig SET KeyValue = ? WHERE KeyName = ?", (today, key))
    known: dict[str, str] = json.loads(before)
    changed = sorted(name for name in rules.keys() & known.keys() if rules[name] != known[name])
    question = "SELECT count(*) FROM AAR WHERE Source = ?"
    (jobs,) = accounting.connection.execute(question, (importer,)).fetchone()
    if not (jobs and changed):
        return ""
    return (
        f"{', '.join(changed)} of importers.{importer} changed since the last import, and what was imported or left out until "
        f"then ({jobs:,} jobs are here) stays as it is; to have it by the new rules, remove {accounting.path} and import again "
        "from all files: what was delivered is known by the ids of jobs, and not sent twice"
    )


def _text(value: object) -> str:
    return str([str(each) for each in value] if isinstance(value, tuple) else value)


def _digest(content: object) -> str:
    return blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
