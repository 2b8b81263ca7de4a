"""Tables of the store in which sources of files keep how far they were read, and what waits.

Each row is of one source, whose number stands first. A batch system's own tables are beside its
importer. Times are epoch seconds UTC, but for `Modified` of archives.
"""

from typing import Final

TABLES: Final = """CREATE TABLE SourceReading (     -- what became of reading a batch system
    Source       INTEGER PRIMARY KEY REFERENCES source (id),    -- its number
    Ended        INTEGER NOT NULL,          -- when it was read last
    Succeeded    INTEGER,                   -- when it was read last without trouble
    FailingSince INTEGER,                   -- the first reading with trouble after that
    Trouble      TEXT NOT NULL,             -- of the last reading
    Damaged      TEXT NOT NULL              -- archives that it passed over, a line each
);
CREATE TABLE SourceNotice (                 -- for people: what is wrong with a source as a whole
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Kind         TEXT NOT NULL,             -- by which it is found again
    Text         TEXT NOT NULL,             -- for people
    PRIMARY KEY (Source, Kind)
) WITHOUT ROWID;
CREATE TABLE SourceSetting (                -- its cluster, its rules, and what importers remember
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Name         TEXT NOT NULL,             -- of the setting
    Value        TEXT NOT NULL,             -- as text
    PRIMARY KEY (Source, Name)
) WITHOUT ROWID;
-- How far each log file was read. Content is what counts: a file is known again after it was
-- renamed or compressed.
CREATE TABLE ImportFile (
    FileID       INTEGER PRIMARY KEY,       -- for jobs and archives
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Forgotten    INTEGER NOT NULL,          -- 1: it is to be read again; jobs still refer to it
    Path         TEXT NOT NULL,             -- where it was last seen
    Modified     REAL NOT NULL,             -- and its time of modification then
    Bytes        INTEGER NOT NULL,          -- of content that were read, up to the end of a line
    HeadBytes    INTEGER NOT NULL,          -- so many from the beginning,
    Head         BLOB NOT NULL,             -- and their digest
    TailBytes    INTEGER NOT NULL,          -- so many before the place where reading goes on,
    Tail         BLOB NOT NULL              -- and their digest
);
CREATE INDEX ImportFile_Path ON ImportFile (Source, Path);
CREATE INDEX ImportFile_Head ON ImportFile (Source, HeadBytes, Head);
CREATE TABLE ImportArchive (                -- compressed files that were read to their ends
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Path         TEXT NOT NULL,             -- where it was seen
    Bytes        INTEGER NOT NULL,          -- how they looked then
    Modified     INTEGER NOT NULL,          -- in nanoseconds
    FileID       INTEGER NOT NULL,          -- of its content
    PRIMARY KEY (Source, Path)
) WITHOUT ROWID;
CREATE TABLE ImportBadLine (                -- lines that could not be understood, for people
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Digest       BLOB NOT NULL,             -- of the whole line
    Path         TEXT NOT NULL,             -- where it was first met,
    Offset       INTEGER NOT NULL,          -- at which byte of the content,
    Length       INTEGER NOT NULL,          -- how long it was,
    Reason       TEXT NOT NULL,             -- why it is bad
    Line         BLOB NOT NULL,             -- and its beginning
    PRIMARY KEY (Source, Digest)
) WITHOUT ROWID;
-- Digests of bad lines whose files are being read once more, and that were not met again yet.
CREATE TABLE ImportRetried (
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Digest       BLOB NOT NULL,             -- of the whole line
    PRIMARY KEY (Source, Digest)
) WITHOUT ROWID;
CREATE TABLE other_number (                 -- what else a CE may call a run than its local id
    source INTEGER NOT NULL REFERENCES source (id),
    number TEXT NOT NULL,                   -- as the CE has it
    run    BLOB NOT NULL,                   -- key of the run, in `job` or `batch_run`
    PRIMARY KEY (number, run)
) WITHOUT ROWID;
CREATE TABLE ce (                           -- when each CE in front of a batch system wrote last
    source   INTEGER NOT NULL REFERENCES source (id),   -- the batch system
    name     TEXT NOT NULL,                 -- directory of the CE, or its database
    written  INTEGER NOT NULL,              -- when it wrote last
    returned INTEGER NOT NULL,              -- when it wrote again after a long silence, or 0
    before   INTEGER NOT NULL,              -- and what it had written last until then
    waiting  INTEGER NOT NULL,              -- runs that wait for it alone, because it is silent
    since    INTEGER,                       -- when the first would have become a job otherwise
    PRIMARY KEY (source, name)
) WITHOUT ROWID;
-- Runs that were delivered as jobs of a batch system, of which a new store found nothing.
CREATE TABLE forgotten_run (
    source       INTEGER NOT NULL REFERENCES source (id),
    local_id     TEXT NOT NULL,
    submitted_at INTEGER NOT NULL,
    ended_at     INTEGER NOT NULL,
    PRIMARY KEY (local_id, source, submitted_at, ended_at)
) WITHOUT ROWID;
"""
