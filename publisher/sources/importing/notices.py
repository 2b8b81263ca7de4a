"""What is wrong with a source as a whole, kept in its database until it is no longer so.

`status` and `doctor` show it between imports.
"""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS SourceNotice (
        Kind TEXT PRIMARY KEY,
        Text TEXT NOT NULL      -- for people: what is wrong, and what to do
    ) WITHOUT ROWID;
"""
_SET: Final = "INSERT OR REPLACE INTO SourceNotice VALUES (?, ?)"
_NOTICES: Final = "SELECT Text FROM SourceNotice ORDER BY Kind"


def set_notice(connection: Connection, kind: str, text: str) -> None:
    """Keep what is wrong, or '' where nothing is any more, inside a transaction."""
    if text:
        connection.execute(_SET, (kind, text))
    else:
        connection.execute("DELETE FROM SourceNotice WHERE Kind = ?", (kind,))


def notices(connection: Connection) -> list[str]:
    """Return what is wrong, one text each."""
    return [text for (text,) in connection.execute(_NOTICES)]
