"""The questions that local statistics put to an accounting database, by stretches of an index.

No stretch is longer than a page, whatever a filter leaves of it: filters are applied to rows that were read, so that a filter
that takes nothing holds no transaction open. The plans are tested.
"""

from __future__ import annotations

from typing import Final

from publisher.sources.arex_sql import LAYOUTS, LISTED

# The first thirteen stand where arex_sql has them, for `NameTables`; arex_count.py unpacks the row.
_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID", "StatusID"),
    *("ExitCode", "BenchmarkID", "SubmitTime", "EndTime", "UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"),
    *("StageInVolume", "StageOutVolume"),
)
_NOT_IN_1: Final = frozenset({"FQANID", "BenchmarkID"})


def _select(layout: int, where: str) -> str:
    columns = (f"NULL AS {name}" if layout == 1 and name in _NOT_IN_1 else f"AAR.{name}" for name in _COLUMNS)
    # As `standing_among` decides it, so that two databases agree on which of them has a job finished.
    return f"SELECT {', '.join(columns)}, AAR.EndTime > 0 FROM AAR WHERE {where} LIMIT :limit"


BY_ROW: Final = {layout: _select(layout, "RecordID > :after ORDER BY RecordID") for layout in LAYOUTS}
# An index entry ends with the rowid, so a user's rows come in order and none is read twice.
OF_USER: Final = {
    layout: _select(layout, "UserID = :user AND RecordID > :after ORDER BY RecordID") for layout in LAYOUTS
}


def _by_time(column: str) -> dict[int, str]:
    where = (
        f"{column} >= :first AND {column} <= :last AND ({column} > :first OR RecordID > :after) "
        f"ORDER BY {column}, RecordID"
    )
    return {layout: _select(layout, where) for layout in LAYOUTS}


BY_END: Final = _by_time("EndTime")
BY_SUBMISSION: Final = _by_time("SubmitTime")

USER_IDS: Final = "SELECT ID FROM Users WHERE Name IN (CAST(:name AS TEXT), CAST(:escaped AS TEXT))"

# Where each kind of name stands: table and column. Few rows each, but for users; read whole for suggestions only.
NAMES: Final = {
    "VO": "SELECT Name FROM WLCGVOs",
    "user": "SELECT Name FROM Users",
    "state": "SELECT Name FROM Status",
    "queue": "SELECT Name FROM Queues",
    "endpoint type": "SELECT Interface FROM Endpoints",
}

# RecordID and one text of side rows of some jobs. The plus keeps SQLite off the index of keys: a page is some hundred jobs.
TOKEN: Final = f"SELECT RecordID, AttrValue FROM AuthTokenAttributes WHERE {LISTED} AND +AttrKey = CAST(:key AS TEXT)"
EXTRA: Final = f"SELECT RecordID, InfoValue FROM JobExtraInfo WHERE {LISTED} AND +InfoKey = CAST(:key AS TEXT)"
ENVIRONMENT: Final = f"SELECT RecordID, RTEName FROM RunTimeEnvironments WHERE {LISTED}"
TRANSFER_URL: Final = f"SELECT RecordID, URL FROM DataTransfers WHERE {LISTED}"

# In the order of the index of JobID, which is UNIQUE.
IDS_FROM: Final = "SELECT JobID FROM AAR WHERE JobID >= CAST(:first AS TEXT) ORDER BY JobID LIMIT :limit"
OF_LOCAL_ID: Final = "SELECT JobID FROM AAR WHERE LocalJobID IN (CAST(:local AS TEXT), CAST(:escaped AS TEXT)) LIMIT 5"


def standing_among(count: int) -> str:
    """Which of so many JobIDs are here, and whether each is finished."""
    jobs = ", ".join(["CAST(? AS TEXT)"] * count)
    return f"""
        SELECT CAST(AAR.JobID AS BLOB), AAR.EndTime > 0 AND Status.Name IS NOT 'in-progress'
        FROM AAR LEFT JOIN Status ON Status.ID = AAR.StatusID
        WHERE AAR.JobID IN ({jobs})
    """
