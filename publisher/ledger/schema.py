"""Schema of the publishing database for SQLite; postgres/schema.py spells it for PostgreSQL.

`VERSION` is that of these tables: a ledger of another version is refused.

Times are epoch seconds UTC. A message keeps about 150 bytes for ever; its payload and its list of
jobs stay in `outbox` only until it is settled. What a run counts for is an entry, 99 to 119 bytes
with its indexes. A job with a charge takes about 200 bytes for
ever, metrics some thirty rows a target. Checksums are of what never changes in a row.
"""

from __future__ import annotations

from typing import Final

from publisher.model.errors import LedgerError

CHARGE_TABLES: Final = """CREATE TABLE charge_run (
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
CREATE TABLE charge (                       -- in order of writing, by end time: keys lie anywhere
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


MEASURE_TABLES: Final = """CREATE TABLE measure (
    target TEXT NOT NULL,                   -- its name: it may have had no round; '': the site
    name   TEXT NOT NULL,                   -- of a metric
    label  TEXT NOT NULL,                   -- such as a verdict; '' for none
    value  REAL NOT NULL,
    PRIMARY KEY (target, name, label)
) WITHOUT ROWID;
"""


VERSION: Final = 11


def refuse_other_version(place: str, version: int) -> None:
    """Refuse the ledger at `place` unless it has the schema of this publisher.

    Raises: LedgerError.
    """
    if version > VERSION:
        raise LedgerError(
            f"{place}: schema {version} is newer than {VERSION}, which this publisher knows; "
            "install the publisher that wrote it, or a newer one"
        )
    if version < VERSION:
        raise LedgerError(
            f"{place}: schema {version} is older than {VERSION}, and cannot be converted; keep it "
            'for your records and begin a new ledger: `docs/operations.md`, "Updating"'
        )


ENTRY_TABLES: Final = """CREATE TABLE scope (                        -- what many entries share
    id             INTEGER PRIMARY KEY,
    site           TEXT NOT NULL,           -- of the settings, in the keys of single records
    localid_prefix TEXT NOT NULL,
    source         TEXT NOT NULL,           -- name of the database that told of the run; '': none
    UNIQUE (site, localid_prefix, source)
);
CREATE TABLE row_key (                      -- what a receiver adds up under
    id       INTEGER PRIMARY KEY,
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    month    INTEGER NOT NULL,              -- 12 x year + month - 1, UTC by end time
    digest   BLOB NOT NULL,                 -- of the fields as the receiver compares them
    fields   TEXT NOT NULL,                 -- JSON, as records spell them: zeros are written of it
    checksum INTEGER NOT NULL,              -- of month, digest and fields
    UNIQUE (receiver, month, digest)
);
CREATE TABLE posting (                      -- what one planning run enters
    id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never another's, though one may be dropped
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    target   INTEGER NOT NULL REFERENCES target (id),
    settings TEXT NOT NULL,                 -- digest of the configuration that it was made under
    made_at  INTEGER NOT NULL,
    entries  INTEGER NOT NULL,              -- how many it has
    checksum INTEGER NOT NULL,              -- of all of them, in any order (sql/entries.py)
    sealed   BOOLEAN NOT NULL,              -- its messages are written: no entry is added any more
    -- Of single records, which others replace by their record keys; not where the first one stays.
    keyed    BOOLEAN NOT NULL
);
CREATE INDEX posting_open ON posting (receiver) WHERE NOT sealed;
CREATE INDEX posting_by_settings ON posting (receiver, settings, entries);
-- By run key, which begins with the submission time: new runs are neighbours. The order and the
-- types of the columns save PostgreSQL a fifth of the space.
CREATE TABLE entry (                        -- what one run counts for at one receiver
    ended_at INTEGER NOT NULL,              -- as it was sent
    wall_s   INTEGER NOT NULL,
    cpu_s    INTEGER NOT NULL,
    posting  INT NOT NULL REFERENCES posting (id),
    row_key  INT NOT NULL REFERENCES row_key (id),
    scope    INT NOT NULL REFERENCES scope (id),
    jobs     INT NOT NULL,
    receiver SMALLINT NOT NULL REFERENCES receiver (id),
    state    SMALLINT NOT NULL,             -- 0 history, 1 counts, 2 pending, 3 left, 4 deleted
    run      BLOB NOT NULL,                 -- key of the run (model/entry.py)
    digest   BLOB NOT NULL,                 -- of the run's own values, as its source has them
    local_id TEXT NOT NULL,                 -- of the record key, without the prefix
    PRIMARY KEY (receiver, run, posting)
) WITHOUT ROWID;
-- By end first: SQLite takes a receiver to have few entries, and would look through all of them.
CREATE INDEX entry_by_end ON entry (ended_at, receiver);
-- In the order of runs too: by row, entries would be written all over it.
CREATE INDEX entry_pending ON entry (posting, receiver, run) WHERE state = 2;
-- Few: records that stay at the receiver until they are deleted there.
CREATE INDEX entry_left ON entry (receiver, ended_at) WHERE state = 3;
CREATE TABLE balance (                      -- of a row: the sum of its entries that count
    row_key     INTEGER PRIMARY KEY REFERENCES row_key (id),
    jobs        INTEGER NOT NULL,
    wall_s      INTEGER NOT NULL,
    cpu_s       INTEGER NOT NULL,
    first_end   INTEGER NOT NULL,           -- of entries with jobs; 0 without any
    last_end    INTEGER NOT NULL,
    -- By the last accepted message of totals with the row; without any, what the receiver had made
    -- of single records when the last of these left.
    sent_jobs   INTEGER NOT NULL DEFAULT 0,
    sent_wall_s INTEGER NOT NULL DEFAULT 0,
    sent_cpu_s  INTEGER NOT NULL DEFAULT 0,
    sent_by     INTEGER REFERENCES message (id)  -- that message; NULL: no totals said the row
);
CREATE TABLE earlier_settings (             -- when runs were compared with the settings of a target
    target     INTEGER PRIMARY KEY REFERENCES target (id),
    settings   TEXT NOT NULL,               -- digest of these settings
    posting    INTEGER NOT NULL,            -- the target's latest one by then
    counted_at INTEGER NOT NULL
);
CREATE TABLE earlier_month (                -- runs whose keys would be others under them
    target INTEGER NOT NULL REFERENCES target (id),
    month  INTEGER NOT NULL,                -- in which they count
    runs   INTEGER NOT NULL,
    PRIMARY KEY (target, month)
) WITHOUT ROWID;
CREATE TABLE month_sum (                    -- all that counts of a month (sql/sums/month_sums.py)
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    month    INTEGER NOT NULL,
    jobs     INTEGER NOT NULL,
    digest   BLOB NOT NULL,                 -- of all of it, in any order (model/receiver.py)
    format   TEXT NOT NULL DEFAULT '',      -- of totals, in which it goes on; '': single records
    PRIMARY KEY (receiver, month)
) WITHOUT ROWID;
CREATE TABLE loss (                         -- months of which the ledger may have lost something
    receiver   INTEGER NOT NULL REFERENCES receiver (id),
    month      INTEGER NOT NULL,
    noticed_at INTEGER NOT NULL,            -- jobs that were submitted before may be delivered
    mark       INTEGER NOT NULL,            -- `receiver.mark` of the ledger that is lost
    last_at    INTEGER,                     -- nothing was handed over later; NULL: nobody knows
    jobs       INTEGER,                     -- that the receiver should have; NULL: nobody knows
    digest     BLOB,                        -- `month_sum.digest` of them
    solved_at  INTEGER,                     -- when an administrator did that; NULL: it is held
    PRIMARY KEY (receiver, month)
) WITHOUT ROWID;
CREATE TABLE hold (                         -- what waits for an administrator: a run, or a row
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    run      BLOB NOT NULL,                 -- its key; empty: the whole row waits
    row_key  INTEGER NOT NULL REFERENCES row_key (id),  -- the row, or where the run would count
    again    BOOLEAN NOT NULL,              -- held by a republish, not by a round
    target   INTEGER NOT NULL REFERENCES target (id),  -- whose round held it last
    month    INTEGER NOT NULL,              -- in which people find it
    reason   TEXT NOT NULL,                 -- as people read it
    shown    BLOB NOT NULL,                 -- digest of what was shown; of a run, of its values
    held_at  INTEGER NOT NULL,
    job_id   TEXT NOT NULL,                 -- of the run; '' for a row
    local_id TEXT NOT NULL,                 -- without the prefix
    ended_at INTEGER NOT NULL,              -- 0 for a row
    jobs     INTEGER NOT NULL,              -- what the run would count; of a row, what counts there
    wall_s   INTEGER NOT NULL,
    cpu_s    INTEGER NOT NULL,
    PRIMARY KEY (receiver, run, row_key, target, again)
) WITHOUT ROWID;
-- Its key first, as of month_message.
CREATE TABLE message_row (                     -- what an outstanding message says of a row
    message   INTEGER NOT NULL REFERENCES message (id),
    row_key   INTEGER NOT NULL REFERENCES row_key (id),
    record_at INTEGER NOT NULL,             -- which of its records does: its `OutboxRecord.group`
    jobs      INTEGER NOT NULL,
    wall_s    INTEGER NOT NULL,
    cpu_s     INTEGER NOT NULL,
    PRIMARY KEY (message, row_key)
) WITHOUT ROWID;
CREATE TABLE message_entry (                -- runs of totals whose row an outstanding message says
    message INTEGER NOT NULL REFERENCES message (id),
    run     BLOB NOT NULL,                  -- its pending entry is in the posting of the message
    PRIMARY KEY (message, run)
) WITHOUT ROWID;
"""

_OF_TARGETS: Final = """
-- First: a copy that was broken off says so before there is anything in it.
CREATE TABLE receiver (                     -- a service and place where rows accumulate
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,       -- of the target that made it
    kind        TEXT NOT NULL,              -- type of that target, or 'shadow'
    place       TEXT NOT NULL UNIQUE,       -- its address, with what is counted there, for people
    keeps_first BOOLEAN NOT NULL,           -- of two records under one id, and not the later
    -- Whether a file beside the ledger goes with it (generation.py): 0 not yet, 1 yes; -1: this is
    -- a copy that was broken off.
    generation  INTEGER NOT NULL DEFAULT 0,
    mark        INTEGER NOT NULL DEFAULT 0,  -- how often that changed what counts here
    -- Months before this one are closed; 12 x year + month - 1, 0 without any.
    closed      INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE target (
    id               INTEGER PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE,  -- of the configuration; renaming it makes a new target
    start_rule       TEXT NOT NULL,         -- as configured when start_at was fixed
    start_at         INTEGER,               -- jobs that ended before are not its; NULL: all are
    last_sync        INTEGER,               -- counts were last accepted
    before_basis     TEXT NOT NULL DEFAULT '',  -- of what count_before was counted; '': anew
    selection_digest TEXT NOT NULL,         -- of statuses, VOs and start: another means a sweep
    checked_digest   TEXT NOT NULL DEFAULT '',  -- of the policy whose payloads were all checked
    last_round       INTEGER,               -- any end of a round
    last_success     INTEGER,               -- everything that was there went out
    last_end         INTEGER,               -- latest end time of a delivered job
    took_over        INTEGER,               -- until when jura-ng published, its rows looked for
    swept            INTEGER,               -- when every job was looked at last; NULL: it is due
    store_mark       TEXT NOT NULL DEFAULT '',  -- that the job store had when it was read
    read_to          INTEGER NOT NULL DEFAULT 0,  -- its jobs up to this change were dealt with,
    began            INTEGER NOT NULL DEFAULT 0,  -- but not runs that were gone by this one,
    wanted           TEXT NOT NULL DEFAULT '',  -- by what has this digest: of which jobs are wanted
    delivered        INTEGER NOT NULL DEFAULT 0, -- runs of jobs, each once
    accepted_messages INTEGER NOT NULL DEFAULT 0, -- of counts and totals too
    accepted_records INTEGER NOT NULL DEFAULT 0,  -- in them, each as often as it went out
    receiver         INTEGER REFERENCES receiver (id)  -- where its last round sent
);
CREATE TABLE message (
    id         INTEGER PRIMARY KEY,         -- the number that entries refer to
    target     INTEGER NOT NULL REFERENCES target (id),
    receiver   INTEGER NOT NULL REFERENCES receiver (id),  -- whose queue it is in
    posting    INTEGER REFERENCES posting (id),  -- NULL: its records are no entries
    message_id TEXT NOT NULL,               -- the stable id on the wire (AMS: empaid)
    -- 0 prepared, 1 in doubt, 2 sent, 3 rejected, 4 another publisher's (no message of ours)
    state      INTEGER NOT NULL,
    format     TEXT NOT NULL,
    records    INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,            -- of the payload, before signing
    digest     BLOB NOT NULL,               -- SHA-256 of the payload
    made_at    INTEGER NOT NULL,
    settled_at INTEGER,
    remote_id  TEXT,                        -- as the receiver named it
    remote_ids BLOB,                        -- the receiver's, of rows (sql/remote_ids.py)
    reason     TEXT,                        -- of doubt or rejection, in the other side's words
    checksum   INTEGER                      -- NULL: no message of ours
);
CREATE INDEX message_of_posting ON message (posting) WHERE posting IS NOT NULL;
CREATE INDEX message_outstanding ON message (target, id) WHERE state < 2;
CREATE INDEX message_queue ON message (receiver, id) WHERE state < 2;
CREATE TABLE outbox (
    message   INTEGER PRIMARY KEY REFERENCES message (id),
    place     REAL NOT NULL,                -- in the queue; halves take the place of the whole
    narrowing BOOLEAN NOT NULL,             -- a half of a refused message
    read_from INTEGER,                      -- `target.read_to` before it; NULL: not of jobs
    payload   BLOB NOT NULL,                -- before signing: a renewed certificate signs it anew
    records   TEXT NOT NULL                 -- JSON, in columns (sql/messages.py)
);
CREATE TABLE source_file (                  -- accounting databases that a round of the target found
    target     INTEGER NOT NULL REFERENCES target (id),
    file       TEXT NOT NULL,
    inode      INTEGER NOT NULL,            -- a file that was renamed keeps it
    seen_at    INTEGER NOT NULL,            -- by the last round that found it
    retired_at INTEGER,                     -- an administrator said that it is gone for good
    never_sent TEXT NOT NULL DEFAULT '{}',  -- jobs lost with it: JSON, by month; null: unknown
    PRIMARY KEY (target, file)
);
CREATE TABLE window_progress (
    target    INTEGER NOT NULL REFERENCES target (id),
    name      TEXT NOT NULL,                -- window and format of a republish that is under way
    ended_at  INTEGER NOT NULL,             -- how far it has come: to a job that ended then,
    change    INTEGER NOT NULL,             -- with this number in the job store,
    store_mark TEXT NOT NULL,               -- which had this mark
    PRIMARY KEY (target, name)
);
CREATE TABLE waiting (                      -- runs in the job store that were not delivered yet
    target   INTEGER NOT NULL REFERENCES target (id),
    run      BLOB NOT NULL,                 -- its key; empty: those that are only counted
    mark     TEXT NOT NULL,                 -- the last one of the job store by then
    digest   BLOB NOT NULL,                 -- of the run's own values, as of its entry
    job_id   TEXT NOT NULL,
    local_id TEXT NOT NULL,                 -- without the prefix
    ended_at INTEGER NOT NULL,
    wall_s   INTEGER NOT NULL,
    cpu_s    INTEGER NOT NULL,
    jobs     INTEGER NOT NULL,              -- 1; of those that are only counted, how many
    PRIMARY KEY (target, run, mark)
) WITHOUT ROWID;
-- Its key first: SQLite 3.40's integrity_check errs about the column in between.
CREATE TABLE month_message (                -- whose rows of totals a message has
    message INTEGER NOT NULL REFERENCES message (id),
    month   INTEGER NOT NULL,
    target  INTEGER NOT NULL,
    PRIMARY KEY (message, month)
) WITHOUT ROWID;
CREATE INDEX message_of_month ON month_message (target, month, message);
CREATE TABLE delivered_count (
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    month    INTEGER NOT NULL,              -- of the end time that was sent
    host     TEXT NOT NULL,                 -- SubmitHost as sync spells it
    jobs     INTEGER NOT NULL,              -- delivered, each run once
    PRIMARY KEY (receiver, month, host)
) WITHOUT ROWID;
CREATE TABLE count_before (
    target INTEGER NOT NULL REFERENCES target (id),
    month  INTEGER NOT NULL,                -- of the target's start
    host   TEXT NOT NULL,
    jobs   INTEGER NOT NULL,                -- eligible, but delivered before us by another
    PRIMARY KEY (target, month, host)
) WITHOUT ROWID;
CREATE TABLE sync_count (
    receiver INTEGER NOT NULL REFERENCES receiver (id),
    month   INTEGER NOT NULL,
    host    TEXT NOT NULL,
    reporting INTEGER,                      -- what the last message reported
    message INTEGER,                        -- that message
    reported INTEGER,                       -- what the receiver accepted
    PRIMARY KEY (receiver, month, host)
);
CREATE INDEX sync_of_message ON sync_count (message);
CREATE TABLE learnt_limit (
    target        INTEGER PRIMARY KEY REFERENCES target (id),
    payload_bytes INTEGER NOT NULL,         -- half of the smallest refused as too large
    wire          TEXT NOT NULL,            -- digest of the options with which it holds
    learnt_at     INTEGER NOT NULL
);
CREATE TABLE quarantine (
    id            INTEGER PRIMARY KEY,
    target        INTEGER NOT NULL REFERENCES target (id),
    key           BLOB NOT NULL,
    job_id        TEXT NOT NULL,
    local_id      TEXT NOT NULL,
    file          TEXT NOT NULL,
    record_id     INTEGER NOT NULL,
    ended_at      INTEGER,
    rule          TEXT NOT NULL,
    reason        TEXT NOT NULL,
    fingerprint   INTEGER NOT NULL,
    hold          TEXT NOT NULL,            -- held, released, dropped
    policy_digest TEXT NOT NULL,            -- of configuration and version when it was judged
    since         INTEGER NOT NULL,
    UNIQUE (target, key)
);
CREATE INDEX quarantine_of_job ON quarantine (job_id);
"""
TABLES: Final = _OF_TARGETS + ENTRY_TABLES + CHARGE_TABLES + MEASURE_TABLES
