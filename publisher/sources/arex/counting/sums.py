"""Rows that SQLite adds up: a page of them comes as groups with the same names, and their sums.

Of a page of 50,000 rows of which most ran as user 7 in VO 2, `sums` makes rows such as

    plain  StatusID  VOID  UserID  ended  count(*)  sum(UsedWalltime)  ...  min(SubmitTime)  max(EndTime)
        1         2     2       7      1      48123          912345678  ...       1740568080    1740937890
        0         2     2       7      1          1                  ...

Rows are *plain* that hold numbers as A-REX writes them. Nothing is said of the others: `odd` are read one by one, by the code
that names what is wrong with them. So are rows that are asked for by number (`:alone`), such as those of jobs that another
database has too.
"""

from __future__ import annotations

from typing import Final

# Beyond that the sums of a page might not fit into 64 bits.
_MOST: Final = 2**46
_TIMES: Final = ("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime")
_SIZES: Final = ("StageInVolume", "StageOutVolume")  # negative ones went through 32 bits, as `values.unsigned` has it
# NULL is unknown and adds nothing. Text and blobs are greater than any number here, fractions show in the sums.
_PLAIN: Final = " AND ".join(
    (
        *(f"ifnull({name}, 0) BETWEEN 0 AND {_MOST}" for name in (*_TIMES, "EndTime")),
        *(f"ifnull({name}, 0) BETWEEN {-(2**31)} AND {_MOST}" for name in _SIZES),
        f"ifnull(SubmitTime, 0) BETWEEN 1 AND {_MOST}",
        "ifnull(StatusID, -1) BETWEEN 0 AND 65535",
        f"ifnull(VOID, -1) BETWEEN 0 AND {2**31}",
    )
)
_ALONE: Final = "RecordID IN (SELECT value FROM json_each(:alone))"
_SUMS: Final = (
    "count(*)",
    *(f"sum({name})" for name in _TIMES),
    *(f"sum(CASE WHEN {name} < 0 THEN {name} + {2**32} ELSE {name} END)" for name in _SIZES),
    *("sum(SubmitTime)", "sum(EndTime)"),
)
# What tells groups apart beside status, VO, user and whether there is an end: a sum over fewer groups is the quicker one.
BY: Final = {
    "": "NULL",
    "queue": "QueueID",
    "endpoint": "EndpointID",
    "month": "strftime('%Y%m', EndTime, 'unixepoch')",
}


def sums(page: str, by: str, alone: bool) -> str:
    """Groups of a page of rows: plain or not, the keys, number of jobs, sums, first submission and last end.

    `alone`: some rows are asked for by number. The sums of times are there to tell fractions.
    """
    has_end = "ifnull(EndTime, 0) > 0"
    keys = f"plain, StatusID, VOID, UserID, {has_end}, {BY[by]}"
    # Sorting by few keys is a fifth of all. The packed one tells plain rows apart; where it cannot, rows are odd.
    packed = f"UserID, VOID * {2**18} + StatusID * 4 + ({has_end}) * 2 + plain, {BY[by]}"
    return f"""
        SELECT {_plain(alone)} AS {keys}, {", ".join(_SUMS)}, min(SubmitTime), max(EndTime) FROM ({page})
        WHERE NOT plain OR (SubmitTime BETWEEN :submitted_first AND :submitted_last
                            AND ifnull(EndTime, 0) BETWEEN :ended_first AND :ended_last)
        GROUP BY {packed}
    """


def odd(page: str, alone: bool) -> str:
    """The rows of a page that are not plain."""
    return f"SELECT * FROM ({page}) WHERE NOT ({_plain(alone)})"


def _plain(alone: bool) -> str:
    return f"{_PLAIN} AND NOT {_ALONE}" if alone else _PLAIN


def ids(page: str) -> str:
    """RecordID and JobID of the rows of a page."""
    return f"SELECT RecordID, JobID FROM ({page})"


def last(page: str) -> str:
    """Where a page ends: RecordID, SubmitTime, EndTime of its row number `limit`; nothing if it has fewer."""
    return f"SELECT RecordID, SubmitTime, EndTime FROM ({page}) LIMIT 1 OFFSET :limit - 1"
