"""The tables of charges in the publishing database. A job takes about 200 bytes of them, for ever."""

from __future__ import annotations

from typing import Final

TABLES: Final = """CREATE TABLE charge_run (
    id           INTEGER PRIMARY KEY,
    state        TEXT NOT NULL,             -- queued, running, finished, failed
    end_from     INTEGER,                   -- jobs that ended in [end_from, end_to)
    end_to       INTEGER,
    project      TEXT,                      -- of this project only
    job_group    TEXT,                      -- of this group only
    asked_at     INTEGER NOT NULL,
    began_at     INTEGER,
    noted_at     INTEGER NOT NULL,          -- last sign of life
    ended_at     INTEGER,
    jobs         INTEGER NOT NULL DEFAULT 0,
    charged      INTEGER NOT NULL DEFAULT 0,
    without_result INTEGER NOT NULL DEFAULT 0,
    without_rule INTEGER NOT NULL DEFAULT 0,
    unreadable   INTEGER NOT NULL DEFAULT 0,
    first        INTEGER NOT NULL DEFAULT 0,
    changed      INTEGER NOT NULL DEFAULT 0,
    reason       TEXT NOT NULL DEFAULT ''   -- of failure
);
CREATE TABLE tariff (
    id          INTEGER PRIMARY KEY,
    unit        TEXT NOT NULL,
    formula     TEXT NOT NULL,
    description TEXT NOT NULL,
    UNIQUE (unit, formula, description)
);
CREATE TABLE charge (                       -- in order of writing, by end time; in order of keys they would lie anywhere
    id         INTEGER PRIMARY KEY,
    key        BLOB NOT NULL UNIQUE,        -- of the run of a job
    job_id     TEXT NOT NULL,
    local_id   TEXT NOT NULL,
    ended_at   INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    project    TEXT NOT NULL,
    job_group  TEXT NOT NULL,
    tariff     INTEGER REFERENCES tariff (id),      -- NULL: no rule is for it
    amount     TEXT,                        -- decimal; NULL: no result
    reason     TEXT NOT NULL,               -- why there is no result
    news       TEXT NOT NULL,               -- first or changed
    news_of    INTEGER NOT NULL REFERENCES charge_run (id),
    was_tariff INTEGER REFERENCES tariff (id),      -- what the last change replaced
    was_amount TEXT,
    was_reason TEXT
);
CREATE INDEX charge_by_end ON charge (ended_at, key);
"""
