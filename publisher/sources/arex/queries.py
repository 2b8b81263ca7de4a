"""Every question to A-REX's accounting databases, of schema 1 and 2.

Columns by name, because those of schema 2 sit in the middle. Sites never ran ANALYZE and we may not
write, so some terms carry a unary plus: it keeps SQLite off the index of a term that hardly selects
(a status or an event key: 149 ms against 0.38 ms for an hour's jobs among 1,000,000). The plans are
tested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from publisher.model.job import PART_BITS

LAYOUTS: Final = (1, 2)  # versions of A-REX's schema
Question = Mapping[int, str]  # by layout
Parameters = Mapping[str, object]

# What one row of AAR is, in this order, for every layout. rows.py unpacks it.
_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID"),
    *("StatusID", "ExitCode", "BenchmarkID", "SubmitTime", "EndTime", "NodeCount", "CPUCount"),
    *("UsedMemory", "UsedVirtMem", "UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"),
    *("UsedScratch", "StageInVolume", "StageOutVolume"),
)
_NOT_IN_1: Final = frozenset({"FQANID", "BenchmarkID"})

# Column of AAR: its place in a row, the table it points into, and what to read there.
NAMES: Final = {
    "EndpointID": (3, "Endpoints", ("Interface", "URL")),
    "QueueID": (4, "Queues", ("Name",)),
    "UserID": (5, "Users", ("Name",)),
    "VOID": (6, "WLCGVOs", ("Name",)),
    "FQANID": (7, "FQANs", ("Name",)),
    "StatusID": (8, "Status", ("Name",)),
    "BenchmarkID": (10, "Benchmarks", ("Name",)),
}
_SIDES: Final = {
    "AuthTokenAttributes": ("AttrKey", "AttrValue"),
    "JobExtraInfo": ("InfoKey", "InfoValue"),
    "JobEvents": ("EventKey", "EventTime"),
    "RunTimeEnvironments": ("RTEName",),
    "DataTransfers": ("URL", "FileSize", "TransferStart", "TransferEnd", "TransferType"),
}


def tables(layout: int) -> dict[str, tuple[str, ...]]:
    """The tables that are read, and the columns of each."""
    wanted = {
        table: ("ID", *columns)
        for column, (_, table, columns) in NAMES.items()
        if _has(column, layout)
    }
    wanted |= {table: ("RecordID", *columns) for table, columns in _SIDES.items()}
    wanted["AAR"] = tuple(column for column in _COLUMNS if _has(column, layout))
    return wanted


def _has(column: str, layout: int) -> bool:
    return layout != 1 or column not in _NOT_IN_1


def select_list(layout: int, columns: Sequence[str] = _COLUMNS) -> str:
    return ", ".join(
        f"AAR.{column} AS {column}" if _has(column, layout) else f"NULL AS {column}"
        for column in columns
    )


CONFIGURATION: Final = """
    SELECT KeyName, KeyValue FROM DBConfig
    WHERE KeyName = 'DBSCHEMA_VERSION'
"""
LAYOUT: Final = """
    SELECT lower(entry.name), lower(field.name)
    FROM sqlite_master AS entry, pragma_table_info(entry.name) AS field
    WHERE entry.type = 'table'
"""
_FROM: Final = "FROM AAR WHERE RecordID >= :first ORDER BY RecordID LIMIT :limit"
FROM: Final = {layout: f"SELECT {select_list(layout)} {_FROM}" for layout in LAYOUTS}
_PART: Final = "FROM AAR WHERE RecordID BETWEEN :first AND :last ORDER BY RecordID"
PART: Final = {layout: f"SELECT {select_list(layout)} {_PART}" for layout in LAYOUTS}
# Of the index on EndTime alone, which has the RecordID.
PARTS: Final = f"""
    SELECT DISTINCT (RecordID - 1) >> {PART_BITS} FROM AAR WHERE EndTime BETWEEN :first AND :last
"""
# Two questions: of both at once SQLite reads every row.
EXTENT: Final = "SELECT (SELECT min(RecordID) FROM AAR), (SELECT max(RecordID) FROM AAR)"
# Rows by range for pages in row order, where every row between belongs to the page; else by list.
BETWEEN: Final = "RecordID BETWEEN :first AND :last"
LISTED: Final = "RecordID IN (SELECT value FROM json_each(:rows))"
ENDS: Final = f"""
    SELECT RecordID, EndTime FROM AAR WHERE {LISTED} AND +EndTime BETWEEN 1 AND {2**63 - 1}
"""
BY_ROW: Final = {
    layout: f"SELECT {select_list(layout)} FROM AAR WHERE {LISTED} ORDER BY RecordID"
    for layout in LAYOUTS
}
# JobIDs are bound as bytes, so that those that are not UTF-8 can be looked for too.
BY_JOB: Final = {
    layout: f"""
        SELECT {select_list(layout)} FROM AAR
        WHERE JobID IN (CAST(:job AS TEXT), CAST(:escaped AS TEXT))
    """
    for layout in LAYOUTS
}


def of_jobs(layout: int, count: int) -> str:
    """Return the question for the rows of so many JobIDs, which are bound as bytes."""
    jobs = ", ".join(["CAST(? AS TEXT)"] * count)
    return f"SELECT {select_list(layout)} FROM AAR WHERE JobID IN ({jobs})"


JOB_OF_ROW: Final = "SELECT JobID FROM AAR WHERE RecordID = :row"


def standing_among(count: int) -> str:
    """Which of so many JobIDs are here, and whether each is finished, complete or not."""
    jobs = ", ".join(["CAST(? AS TEXT)"] * count)
    return f"""
        SELECT CAST(AAR.JobID AS BLOB), AAR.EndTime > 0 AND Status.Name IS NOT 'in-progress'
        FROM AAR LEFT JOIN Status ON Status.ID = AAR.StatusID
        WHERE AAR.JobID IN ({jobs})
    """


# The unary plus keeps SQLite off the index of event keys: a page is a range of rowids, and a job
# has nine events or so.
IN_ORDER: Final = """
    SELECT finished.rowid, AAR.JobID, AAR.LocalJobID, AAR.EndTime, Status.Name, WLCGVOs.Name
    FROM JobEvents AS finished
    CROSS JOIN AAR ON AAR.RecordID = finished.RecordID
    LEFT JOIN Status ON Status.ID = AAR.StatusID
    LEFT JOIN WLCGVOs ON WLCGVOs.ID = AAR.VOID
    WHERE finished.rowid > :after AND +finished.EventKey = 'FINISHED' AND NOT EXISTS (
        SELECT 1 FROM JobEvents AS later
        WHERE later.RecordID = finished.RecordID AND later.rowid > finished.rowid
            AND +later.EventKey = 'FINISHED'
    )
    ORDER BY finished.rowid LIMIT :limit
"""
# Jobs that are over, and of which no event says when that was written.
UNORDERED: Final = """
    SELECT RecordID, JobID FROM AAR
    WHERE RecordID > :after AND +EndTime BETWEEN 1 AND :last AND NOT EXISTS (
        SELECT 1 FROM JobEvents
        WHERE JobEvents.RecordID = AAR.RecordID AND +JobEvents.EventKey = 'FINISHED'
    )
    ORDER BY RecordID LIMIT :limit
"""
FEW: Final = 4  # one row in so many: a look-up of each costs less than reading past the others
Where = tuple[str, Parameters]


def beside(record_ids: Sequence[int], *, span: bool) -> Where:
    """Where to look: between the first row and the last where few others lie between, else by row.

    `span`: none does.
    """
    first, last = min(record_ids), max(record_ids)
    if span or last - first < len(record_ids) * FEW:
        return BETWEEN, {"first": first, "last": last}
    return listed(record_ids)


def listed(record_ids: Sequence[int]) -> Where:
    return LISTED, {"rows": json.dumps(record_ids)}


def side(table: str, which: str) -> str:
    """Rows of a side table, a job's in the order of writing, so that the last one is the newest."""
    return f"""
        SELECT RecordID, {", ".join(_SIDES[table])} FROM {table}
        WHERE {which} ORDER BY RecordID, rowid
    """


def noted(which: str) -> str:
    """What is noted of each job, in one text of JSON, the newest value of a key last.

    All but long lists of what was installed, which most jobs have and nobody reads. A value less to
    fetch is worth more than the JSON costs. Rows come by the index on RecordID, in which a job's
    are in the order of writing; without it they are sorted by job, which keeps that order.
    """
    return f"""
        SELECT RecordID, json_group_object(InfoKey, CAST(InfoValue AS TEXT)) FROM JobExtraInfo
        WHERE {which} AND +InfoKey <> 'systemsoftware' GROUP BY RecordID
    """


def events(which: str) -> str:
    """The two events of a job that matter: when it started, or NULL that it is finished."""
    return f"""
        SELECT RecordID, CASE EventKey WHEN 'LRMSSTART' THEN ifnull(EventTime, '') END
        FROM JobEvents WHERE {which} AND +EventKey IN ('FINISHED', 'LRMSSTART')
        ORDER BY RecordID, rowid
    """


# Counted in the index on StatusID, which takes a moment; only `doctor` asks.
STATUSES: Final = """
    SELECT StatusID, (SELECT Name FROM Status WHERE ID = StatusID), count(*)
    FROM AAR GROUP BY StatusID
"""
# A value for each parameter, for those who only want to know the plan.
ANYTHING: Final[dict[str, object]] = {
    **dict.fromkeys(("after", "limit", "first", "last"), 1),
    **dict.fromkeys(("job", "escaped"), b""),
    "rows": "[1]",
}


def of_every_round(layout: int) -> tuple[str, ...]:
    """The questions that would hurt where an index is missing."""
    sides = (side(table, LISTED) for table in _SIDES if table != "JobEvents")
    return (FROM[layout], PARTS, BY_ROW[layout], BY_JOB[layout], events(LISTED), *sides)


EVENTFUL: Final = f"SELECT DISTINCT RecordID FROM JobEvents WHERE {LISTED}"


def names(column: str) -> str:
    """Rows of a name table, by number."""
    _, table, texts = NAMES[column]
    listed = "ID IN (SELECT value FROM json_each(:ids))"
    return f"SELECT ID, {', '.join(texts)} FROM {table} WHERE {listed}"


# Rows with an attribute beside them, for local questions; each reads a table whole.
ROWS_WITH: Final = {
    "rte": "SELECT RecordID FROM RunTimeEnvironments WHERE RTEName = CAST(:value AS TEXT)",
    "dtrurl": "SELECT RecordID FROM DataTransfers WHERE URL = CAST(:value AS TEXT)",
    "": """SELECT RecordID FROM JobExtraInfo
        WHERE +InfoKey = CAST(:key AS TEXT) AND InfoValue = CAST(:value AS TEXT)""",
}
