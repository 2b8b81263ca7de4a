"""Schema of the job store.

Times are epoch seconds UTC. A job takes 300 to 400 bytes with its indexes, without transfers.
`VERSION` is that of these tables: a store of another version is deleted, and loaded again.
"""

from typing import Final

from publisher.jobs.tables import batch

VERSION: Final = 7

# What is known of a job, and what decides whether it has changed.
_VALUES: Final = """    person             INTEGER NOT NULL REFERENCES person (id),
    account            INTEGER NOT NULL REFERENCES account (id),
    place              INTEGER NOT NULL REFERENCES place (id),
    benchmark          INTEGER NOT NULL REFERENCES benchmark (id),
    flags              INTEGER NOT NULL,    -- bits of `_FLAGS` in columns.py, the first is 8
    hosts              TEXT,                -- one name, or several in JSON, the primary first
    projects           TEXT,                -- so too
    rare               TEXT,                -- JSON: quantities, GPU models, environments, transfers
    job_id             TEXT NOT NULL,
    local_id           TEXT NOT NULL,
    status             TEXT NOT NULL,
    ended_at           INTEGER NOT NULL,
    wall_s             INTEGER NOT NULL,
    cpu_user_s         INTEGER NOT NULL,
    cpu_kernel_s       INTEGER NOT NULL,
    node_count         INTEGER,
    cpu_count          INTEGER,
    exit_code          INTEGER,
    submitted_at       INTEGER NOT NULL,
    started_at         INTEGER,
    memory_kib         INTEGER,
    virtual_memory_kib INTEGER,
    scratch_bytes      INTEGER,
    stage_in_bytes     INTEGER,
    stage_out_bytes    INTEGER,
    job_name           TEXT NOT NULL,
    client_host        TEXT NOT NULL,       -- with a port, as some CEs have it
    wn_instance        TEXT NOT NULL,
    gpu_count          INTEGER,
    joined             TEXT NOT NULL        -- what the batch system's record of the run added"""
_JOBS: Final = f"""CREATE TABLE store (                        -- one row
    mark        TEXT NOT NULL,              -- of the last change; '' before the first
    last_change INTEGER NOT NULL,           -- of jobs and rows set aside; never given again
    needs       TEXT NOT NULL,              -- side tables that were loaded, with blanks between
    read_as     TEXT NOT NULL,              -- digest of the options under which sources were read
    compared_at INTEGER,                    -- when sources were last looked through again
    begins      INTEGER NOT NULL            -- runs that ended before are not there (`keep`)
);
-- Each transaction that changes jobs makes a random mark. A cursor keeps the last one: a store that
-- does not know it is another one, or older.
CREATE TABLE mark (
    id      INTEGER PRIMARY KEY,
    tag     TEXT NOT NULL UNIQUE,           -- the mark
    is_lost BOOLEAN NOT NULL                -- of another store, after which this one began anew
);
CREATE TABLE source (                       -- an accounting database or a batch system
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,         -- by which the ledger knows it, too
    position  TEXT,                         -- how far it was loaded, as it says; NULL: not yet
    complete  BOOLEAN NOT NULL,             -- it was loaded to its end once
    first_load INTEGER NOT NULL,            -- the last change then, where targets know another
                                            -- store that may have known more; else 0
    pruned_at INTEGER                       -- when old jobs were looked through to be pruned
);
CREATE TABLE part (                         -- neighbouring rows that were compared as a whole
    source INTEGER NOT NULL REFERENCES source (id),
    number INTEGER NOT NULL,                -- of the part (model/job.py)
    digest BLOB NOT NULL,                   -- of all that was read of them
    PRIMARY KEY (source, number)
) WITHOUT ROWID;
CREATE TABLE unfinished (                   -- rows to read again: their jobs run, or lack something
    source    INTEGER NOT NULL REFERENCES source (id),
    record_id INTEGER NOT NULL,
    seen_at   INTEGER,                      -- when it was first seen finished, but not complete
    PRIMARY KEY (source, record_id)
) WITHOUT ROWID;
CREATE TABLE person (                       -- who jobs belong to
    id          INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL UNIQUE,       -- of the other columns
    user        TEXT NOT NULL,              -- global name
    vo          TEXT NOT NULL,
    fqans       TEXT NOT NULL,              -- JSON, the main one first
    attributes  TEXT NOT NULL               -- JSON: pairs that A-REX mapped from token claims
);
CREATE TABLE account (                      -- as whom they ran: pool accounts change hands
    id          INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL UNIQUE,
    local_user  TEXT NOT NULL,
    local_group TEXT NOT NULL
);
CREATE TABLE place (                        -- where jobs came in and ran
    id          INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL UNIQUE,
    interface   TEXT NOT NULL,
    endpoint    TEXT NOT NULL,
    queue       TEXT NOT NULL,
    lrms        TEXT NOT NULL
);
CREATE TABLE benchmark (                    -- what an hour is worth
    id     INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    value  TEXT NOT NULL                    -- TYPE:value; '' for none
);
CREATE TABLE job (                          -- a run of a job
    change             INTEGER PRIMARY KEY, -- grows with each insert and each update of a value
    run                BLOB NOT NULL,       -- its key (model/job.py)
    source             INTEGER NOT NULL REFERENCES source (id),
    record_id          INTEGER NOT NULL,    -- where its row was when it was read last: a hint
    -- -1: its source has corrected its submission time, which made it another run.
    gone               INTEGER NOT NULL,    -- the change by which its source lost it; 0: not
{_VALUES}
);
CREATE UNIQUE INDEX job_by_run ON job (run);
CREATE INDEX job_by_end ON job (ended_at);
-- The part of the key that is the digest of the JobID.
CREATE INDEX job_by_id ON job (substr(run, 5, 7));
-- Not the part of the key that is its digest: batch systems count, so that new jobs are neighbours.
CREATE INDEX job_by_local_id ON job (local_id);
CREATE TABLE skipped (                      -- rows that no job could be made of
    change       INTEGER PRIMARY KEY,       -- from the same numbers as of `job`
    source       INTEGER NOT NULL REFERENCES source (id),
    record_id    INTEGER NOT NULL,
    job_id       TEXT NOT NULL,
    local_id     TEXT NOT NULL,
    ended_at     INTEGER,
    rule         TEXT NOT NULL,
    reason       TEXT NOT NULL,             -- for people
    fingerprint  INTEGER NOT NULL,          -- of the row
    submitted_at INTEGER NOT NULL,
    UNIQUE (source, record_id)
);
CREATE INDEX skipped_by_end ON skipped (ended_at);
CREATE INDEX skipped_by_id ON skipped (job_id);
-- Rows that are no run by now, for local questions alone: `stats` counts jobs in progress too, by
-- state, VO, user and submission, and rows that were set aside. No round reads them. What is not
-- known or cannot be read is 0 or ''.
CREATE TABLE partial (
    source         INTEGER NOT NULL REFERENCES source (id),
    record_id      INTEGER NOT NULL,
    run            BLOB NOT NULL,           -- as of `job`, so that one is found by its JobID
    gone           INTEGER NOT NULL,        -- 0
    rule           TEXT NOT NULL,           -- that it breaks; '' for a row that is unfinished
    is_in_progress BOOLEAN NOT NULL,        -- it is not over
    is_unreadable  BOOLEAN NOT NULL,        -- some usage is there that is no number
{_VALUES}
);
CREATE UNIQUE INDEX partial_by_row ON partial (source, record_id);
CREATE INDEX partial_by_id ON partial (substr(run, 5, 7));
CREATE INDEX partial_by_local_id ON partial (local_id);
-- Runs of batch systems behind ARC CEs that are no jobs here (link.py): a CE has them, or may yet.
CREATE TABLE batch_run (
    run       BLOB NOT NULL,                -- as of `job`
    source    INTEGER NOT NULL REFERENCES source (id),
    record_id INTEGER NOT NULL,             -- number of the file in which it stood
    state     INTEGER NOT NULL,             -- of `LinkState` in batch_runs.py
    is_own    BOOLEAN NOT NULL,             -- it was delivered as a job of the batch system
    ce_runs   BLOB NOT NULL,                -- keys of CEs' runs that were delivered and may be it
{_VALUES}
);
CREATE UNIQUE INDEX batch_run_by_run ON batch_run (run);
CREATE INDEX batch_run_by_id ON batch_run (substr(run, 5, 7));
CREATE INDEX batch_run_by_local_id ON batch_run (local_id);
CREATE INDEX batch_run_by_state ON batch_run (source, state, ended_at);
"""
TABLES: Final = f"{_JOBS}{batch.TABLES}"
