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
-- Digests of the JobIDs of jobs that were pruned, and of runs that are a CE's and not joined to it.
CREATE TABLE ImportPruned (
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Digest       BLOB NOT NULL,             -- of the JobID
    PRIMARY KEY (Source, Digest)
) WITHOUT ROWID;
CREATE TABLE ImportPrunedMonth (            -- in which they ended
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Month        TEXT NOT NULL,             -- 2026-03
    Jobs         INTEGER NOT NULL,          -- how many
    PRIMARY KEY (Source, Month)
) WITHOUT ROWID;
CREATE TABLE ArcSpan (                      -- runs that CEs have had, as A-REX forgets numbers
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    LocalJobID   TEXT NOT NULL,             -- the id in the batch system
    Submitted    INTEGER NOT NULL,          -- when the CE's job was submitted
    Ended        INTEGER NOT NULL,          -- when it ended
    PRIMARY KEY (Source, LocalJobID, Ended)
) WITHOUT ROWID;
CREATE TABLE ArcNumber (                    -- what else a CE may call a run that is a job
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    LocalJobID   TEXT NOT NULL,             -- the id in the batch system
    JobID        TEXT NOT NULL,             -- of the run
    PRIMARY KEY (Source, LocalJobID, JobID)
) WITHOUT ROWID;
-- Keys of delivered runs that were jobs of the batch system, and are none here.
CREATE TABLE OwnDelivered (
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Key          BLOB NOT NULL,             -- of the run
    PRIMARY KEY (Source, Key)
) WITHOUT ROWID;
CREATE TABLE ArcRun (                       -- runs that a CE has, or may yet claim
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    JobID        TEXT NOT NULL,             -- of the run
    LocalJobID   TEXT NOT NULL,             -- as a CE may call it; there may be several
    StartTime    INTEGER NOT NULL,          -- when the run started
    EndTime      INTEGER NOT NULL,          -- when it ended
    Waits        BOOLEAN NOT NULL,          -- no CE has it yet
    FileID       INTEGER,                   -- of ImportFile
    Job          TEXT NOT NULL,             -- the job record as it would be, in JSON
    Adds         TEXT NOT NULL,             -- what may be joined to the CE's job, in JSON; or ''
    PRIMARY KEY (Source, JobID, LocalJobID)
) WITHOUT ROWID;
CREATE INDEX ArcRun_LocalJobID ON ArcRun (Source, LocalJobID);
CREATE INDEX ArcRun_Waits ON ArcRun (Source, EndTime) WHERE Waits;
CREATE TABLE ArcCe (                        -- when each CE last wrote something
    Source       INTEGER NOT NULL REFERENCES source (id),    -- its number
    Ce           TEXT NOT NULL,             -- its directory, or its database
    Written      INTEGER NOT NULL,          -- when it wrote last
    Returned     INTEGER NOT NULL,          -- when it wrote again after a long silence, or 0
    Before       INTEGER NOT NULL,          -- and what it had written last until then
    Waiting      INTEGER NOT NULL,          -- runs that wait for it alone, because it is silent
    Since        INTEGER,                   -- when the first would have become a job otherwise
    PRIMARY KEY (Source, Ce)
) WITHOUT ROWID;
"""
