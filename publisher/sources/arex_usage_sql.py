"""The questions that reports put to an accounting database. The plans are tested.

What stands beside a row is looked up in the question itself: 8 µs a job, where a question a side table and page takes half
as long again.
"""

from __future__ import annotations

from typing import Final

from publisher.sources.arex_sql import IMPORTED, LAYOUTS

# The first thirteen stand where arex_sql has them, for `NameTables`; arex_usage.py unpacks the row.
_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID", "StatusID"),
    *("ExitCode", "BenchmarkID", "SubmitTime", "EndTime", "NodeCount", "CPUCount", "UsedWalltime"),
    *("UsedCPUUserTime", "UsedCPUKernelTime"),
)
_UNUSED: Final = frozenset({"LocalJobID", "ExitCode"})  # they keep the others in their places
_NOT_IN_1: Final = frozenset({"FQANID", "BenchmarkID"})


def _extra(key: str, order: str) -> str:
    return f"(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND +x.InfoKey = '{key}' {order} LIMIT 1)"


def _token(key: str) -> str:
    return (
        "(SELECT AttrValue FROM AuthTokenAttributes AS t WHERE t.RecordID = AAR.RecordID "
        f"AND +t.AttrKey = '{key}' AND +t.AttrValue <> '' ORDER BY t.rowid LIMIT 1)"
    )


def _started(layout: int) -> str:
    """An importer's own column, else the newest LRMSSTART."""
    if layout == IMPORTED:
        return "AAR.StartTime"
    return (
        "(SELECT EventTime FROM JobEvents AS e WHERE e.RecordID = AAR.RecordID AND +e.EventKey = 'LRMSSTART' "
        "ORDER BY e.rowid DESC LIMIT 1)"
    )


def _beside(layout: int) -> str:
    """The main FQAN and the benchmark, where the row itself names none."""
    fqan, benchmark = (
        f"coalesce({_token('mainfqan')}, {_token('vomsfqan')})",
        _extra("benchmark", "ORDER BY x.rowid DESC"),
    )
    if layout == 1:
        return f"{fqan}, {benchmark}"
    return ", ".join(
        f"CASE WHEN AAR.{column} IS NULL OR AAR.{column} = (SELECT ID FROM {table} WHERE Name = '') THEN {look} END"
        for column, table, look in (("FQANID", "FQANs", fqan), ("BenchmarkID", "Benchmarks", benchmark))
    )


def _ended(layout: int) -> str:
    left_out = _UNUSED | _NOT_IN_1 if layout == 1 else _UNUSED
    columns = (f"NULL AS {name}" if name in left_out else f"AAR.{name}" for name in _COLUMNS)
    return f"""
        SELECT {", ".join(columns)}, {_started(layout)}, {_extra("projectname", "AND +x.InfoValue <> '' ORDER BY x.rowid")},
               CASE WHEN :own THEN {_extra("localuser", "ORDER BY x.rowid DESC")} END, {_beside(layout)}
        FROM AAR WHERE EndTime >= :first AND EndTime <= :last AND (EndTime > :first OR RecordID > :after)
        ORDER BY EndTime, RecordID LIMIT :limit
    """


ENDED: Final = {layout: _ended(layout) for layout in LAYOUTS}
