"""The faults: a name, the module, what stands there, and what a mistake would make of it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Fault(NamedTuple):
    """A mistake in a module of `publisher/`; `right` stands there exactly once."""

    name: str
    module: str
    right: str
    wrong: str


RUNS: Final = "publishing/plan/runs.py"
ROWS: Final = "publishing/plan/rows.py"
RECORDS: Final = "publishing/plan/records.py"
MONTHS: Final = "publishing/plan/months.py"
TOTALS: Final = "publishing/round/totals.py"
DECISION: Final = "publishing/plan/decision.py"
COLLISIONS: Final = "publishing/plan/collisions.py"
SETTLEMENT: Final = "ledger/sql/sums/settlement.py"
BALANCES: Final = "ledger/sql/sums/balances.py"
POSTINGS: Final = "ledger/sql/sums/postings.py"
MESSAGE_ROWS: Final = "ledger/sql/sums/message_rows.py"
ENTRIES: Final = "ledger/sql/entries.py"
OUTBOX: Final = "ledger/sql/parts/outbox.py"

FAULTS: Final = (
    Fault(
        "a changed run is kept", RUNS, "    if entry.digest != recorded.digest:\n        return reasons.OWN_DATA\n", ""
    ),
    Fault(
        "another row is no change",
        RUNS,
        "if (entry.row.id, usage) != (recorded.row, recorded.usage):",
        "if usage != recorded.usage:",
    ),
    Fault(
        "a regular round corrects guesses",
        RUNS,
        "    if recorded.settings == BY_JURA and not again:\n        # What another",
        "    if recorded.settings == BY_JURA and again:\n        # What another",
    ),
    Fault(
        "a retracted run never comes back", RUNS, "        return reasons.COUNT_AGAIN", "        return reasons.KEEP"
    ),
    Fault(
        "a regular round retracts",
        RUNS,
        "return reasons.RETRACT if again or accepts else reasons.KEEP",
        "return reasons.RETRACT",
    ),
    Fault("a retraction counts", RUNS, "recorded.digest, jobs=0)", "recorded.digest)"),
    Fault("a record has the source's end", RUNS, "local_id, published.ended_at)", "local_id, published.job.ended_at)"),
    Fault("CPU time of the kernel is left out", RUNS, "job.cpu_user_s + job.cpu_kernel_s", "job.cpu_user_s"),
    Fault(
        "a row loses nothing",
        ROWS,
        "Delta(Usage().less(moved.old))",
        "Delta()",
    ),
    Fault("settings move runs like data", ROWS, "old.settings != settings or to is None", "to is None"),
    Fault(
        "rows without zeros are left by data",
        ROWS,
        "emptied.by_settings | {key for key in emptied.by_data if not takes_zeros(key)}",
        "emptied.by_settings",
    ),
    Fault(
        "what left a held row goes",
        ROWS,
        "        changes.hold(rows)\n",
        "        return HeldRows(keys, frozenset(), retracted)\n",
    ),
    Fault("a row that is left by the last run is not emptied", ROWS, "if jobs == 0 and had[key]}", "if jobs < 0}"),
    Fault(
        "a record takes the key of today",
        RECORDS,
        "    if known is None:\n        return published\n",
        "    return published\n",
    ),
    Fault("runs move rows without a look", RECORDS, "        if known.row == entry.row.id:\n", "        if True:\n"),
    Fault(
        "letter case makes another record",
        RECORDS,
        "return column(key.site), id_column(key.localid_prefix + key.local_id), key.ended_at",
        "return key.site, key.localid_prefix + key.local_id, key.ended_at",
    ),
    Fault(
        "emptied rows are not said",
        TOTALS,
        "                if not (form.takes_zeros and had):\n",
        "                if True:\n",
    ),
    Fault(
        "rows that were said otherwise stay",
        TOTALS,
        "            if not (is_due or grouped.is_unsent):\n",
        "            if not is_due:\n",
    ),
    Fault(
        "totals follow single records",
        MONTHS,
        "        if is_of_records(known):\n            return None\n",
        "",
    ),
    Fault(
        "a target takes back what another wants",
        TOTALS,
        "        if not self._is_wanted_beside(job):\n",
        "        if True:\n",
    ),
    Fault(
        "a run is entered twice in a page of totals",
        TOTALS,
        "        if run in self.met:\n            return\n",
        "",
    ),
    Fault(
        "a pending run goes out again",
        DECISION,
        "        if known is not None and known.pending:\n            return Skip(waits=known.digest != job.values_digest)\n",
        "",
    ),
    Fault(
        "a known run goes out again",
        DECISION,
        "if known.digest == digest and not (",
        "if known.digest != digest and not (",
    ),
    Fault(
        "a run replaces another's record",
        COLLISIONS,
        "        if owner not in (None, fit.run):\n",
        "        if owner is None:\n",
    ),
    Fault("a replaced entry counts on", SETTLEMENT, "                    self._balances.take_away(run, was)\n", ""),
    Fault(
        "an old record under another key is forgotten",
        SETTLEMENT,
        "states[entries.LEFT if is_left else entries.HISTORY]",
        "states[entries.HISTORY]",
    ),
    Fault(
        "the later record counts", SETTLEMENT, "is_later = self._keeps_first and was is not None", "is_later = False"
    ),
    Fault(
        "a replaced record of another run counts on",
        SETTLEMENT,
        "        if not self._keeps_first:\n            self._replace_others()\n",
        "",
    ),
    Fault(
        "jobs by host are not taken away", SETTLEMENT, "                    self._jobs[was.row_key] -= was.jobs\n", ""
    ),
    Fault("each entry is a delivered run", SETTLEMENT, "self._new += was is None", "self._new += 1"),
    Fault(
        "ends of a row stay",
        BALANCES,
        "            _find_ends(database, receiver, row_key, leaving[row_key])\n",
        "            pass\n",
    ),
    Fault(
        "a balance loses no CPU time",
        BALANCES,
        "wall_s = wall_s - :wall_s, cpu_s = cpu_s - :cpu_s",
        "wall_s = wall_s - :wall_s",
    ),
    Fault(
        "what a message said is not kept",
        MESSAGE_ROWS,
        '    database.execute(_ACCEPT, {"message": message})\n',
        "",
    ),
    Fault(
        "entries of a refused message stay",
        MESSAGE_ROWS,
        "            postings.take_out(database, posting, receiver, [run for (run,) in found])\n",
        "",
    ),
    Fault(
        "what leaves a held row is entered",
        POSTINGS,
        "if was in left or row in entered]",
        "if row in entered]",
    ),
    Fault("pending entries are not known", ENTRIES, "AND entry.state IN (1, 2)\n", "AND entry.state = 1\n"),
    Fault(
        "a posting is dropped though a part was accepted",
        OUTBOX,
        "            if message_rows.is_accepted(self._database, posting):\n                kept.add(posting)\n",
        "            pass\n",
    ),
    Fault(
        "a message in doubt is given up",
        OUTBOX,
        "            if state != _IS_PREPARED or message_id in besides:\n",
        "            if message_id in besides:\n",
    ),
)
