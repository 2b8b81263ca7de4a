"""The table of what was measured, in the publishing database: some thirty rows a target."""

from __future__ import annotations

from typing import Final

TABLES: Final = """CREATE TABLE measure (
    target TEXT NOT NULL,                   -- its name, because it may not have come to a round yet; '': of the site
    name   TEXT NOT NULL,                   -- of a metric
    label  TEXT NOT NULL,                   -- such as a verdict; '' for none
    value  REAL NOT NULL,
    PRIMARY KEY (target, name, label)
) WITHOUT ROWID;
"""
