"""What `sync --check` found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterable

from publisher.results import Json
from publisher.syncing import Compared

CHECK_COLUMNS = (
    "target",
    "month",
    "submit host",
    "database",
    "delivered",
    "before us",
    "set aside",
    "pending",
    "told",
    "portal",
    "difference",
)


def check_rows(compared: Iterable[Compared]) -> list[tuple[str, ...]]:
    return [
        (
            row.target,
            row.month_name,
            row.submit_host or "(none)",
            *(f"{count:,}" for count in (row.database, row.delivered, row.before, row.quarantined, row.pending)),
            "-" if row.told is None else f"{row.told:,}",
            "-" if row.portal is None else f"{row.portal:,}",
            "; ".join(row.repairs) or "none",
        )
        for row in compared
    ]


def check_json(compared: Iterable[Compared], exit_status: int) -> Json:
    return {
        "rows": [
            {
                "target": row.target,
                "month": row.month_name,
                "submit_host": row.submit_host,
                "database": row.database,
                "delivered": row.delivered,
                "before": row.before,
                "quarantined": row.quarantined,
                "pending": row.pending,
                "told": row.told,
                "portal": row.portal,
                "repairs": list(row.repairs),
            }
            for row in compared
        ],
        "exit": exit_status,
    }
