"""The tables of an imported accounting database: ARC's schema 2, and what importers add.

The columns are facts of the file format; the DDL is our own. Fewer indexes than ARC's: those that the source asks by.
`PUBLISHER_IMPORTER` in DBConfig tells the source that text is stored as it is, rows are whole, and AAR has more columns.

Versions of what importers add: 1, the first.
"""

from __future__ import annotations

from typing import Final

IMPORTER_VERSION: Final = "1"

AAR_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID", "StatusID", "ExitCode"),
    *("BenchmarkID", "SubmitTime", "EndTime", "NodeCount", "CPUCount", "UsedMemory", "UsedVirtMem", "UsedWalltime"),
    *("UsedCPUUserTime", "UsedCPUKernelTime", "UsedScratch", "StageInVolume", "StageOutVolume"),
    # ExitCode is NULL where it is unknown
    "StartTime",  # epoch seconds, the true start of the run
    "GPUCount",  # NULL: unknown
    "Source",  # gridengine | sonar
    "SourceKey",  # what makes the record the same one when it is met again
    "FileID",  # of ImportFile, where it was met last; NULL: many files tell of it
)

NAME_TABLES: Final = ("Queues", "Users", "WLCGVOs", "FQANs", "Benchmarks", "Status")

TABLES: Final = f"""
    CREATE TABLE DBConfig (KeyName TEXT PRIMARY KEY, KeyValue TEXT NOT NULL);
    INSERT INTO DBConfig VALUES ('DBSCHEMA_VERSION', '2'), ('PUBLISHER_IMPORTER', '{IMPORTER_VERSION}');

    {"".join(f"CREATE TABLE {name} (ID INTEGER PRIMARY KEY, Name TEXT NOT NULL UNIQUE);" for name in NAME_TABLES)}
    CREATE TABLE Endpoints (ID INTEGER PRIMARY KEY, Interface TEXT NOT NULL, URL TEXT NOT NULL, UNIQUE (Interface, URL));

    CREATE TABLE AAR (
        RecordID INTEGER PRIMARY KEY AUTOINCREMENT,
        JobID TEXT NOT NULL UNIQUE,
        LocalJobID TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in AAR_COLUMNS[3:-4] if name != "ExitCode")},
        ExitCode INTEGER,
        GPUCount INTEGER,
        Source TEXT NOT NULL,
        SourceKey TEXT NOT NULL,
        FileID INTEGER
    );
    CREATE INDEX AAR_EndTime ON AAR (EndTime);
    CREATE INDEX AAR_LocalJobID ON AAR (LocalJobID);

    CREATE TABLE JobExtraInfo (RecordID INTEGER NOT NULL REFERENCES AAR (RecordID), InfoKey TEXT, InfoValue TEXT);
    CREATE TABLE AuthTokenAttributes (RecordID INTEGER NOT NULL REFERENCES AAR (RecordID), AttrKey TEXT, AttrValue TEXT);
    CREATE TABLE JobEvents (RecordID INTEGER NOT NULL REFERENCES AAR (RecordID), EventKey TEXT, EventTime TEXT);
    CREATE TABLE RunTimeEnvironments (RecordID INTEGER NOT NULL REFERENCES AAR (RecordID), RTEName TEXT);
    CREATE TABLE DataTransfers (
        RecordID INTEGER NOT NULL REFERENCES AAR (RecordID),
        URL TEXT, FileSize INTEGER, TransferStart INTEGER, TransferEnd INTEGER, TransferType INTEGER
    );
    CREATE INDEX JobExtraInfo_RecordID ON JobExtraInfo (RecordID);
    CREATE INDEX AuthTokenAttributes_RecordID ON AuthTokenAttributes (RecordID);
    CREATE INDEX JobEvents_RecordID ON JobEvents (RecordID);
    CREATE INDEX RunTimeEnvironments_RecordID ON RunTimeEnvironments (RecordID);
    CREATE INDEX DataTransfers_RecordID ON DataTransfers (RecordID);

    -- How far each log file was read. Content is what counts: a file is known again after it was renamed or compressed.
    CREATE TABLE ImportFile (
        FileID INTEGER PRIMARY KEY,
        Importer TEXT NOT NULL,
        Path TEXT NOT NULL,         -- where it was last seen
        Modified REAL NOT NULL,     -- and its time of modification then
        Bytes INTEGER NOT NULL,     -- of content that were taken, up to the end of a line
        HeadBytes INTEGER NOT NULL, -- so many from the beginning,
        Head BLOB NOT NULL,         -- and their digest
        TailBytes INTEGER NOT NULL, -- so many before the place where reading goes on,
        Tail BLOB NOT NULL          -- and their digest
    );

    -- Lines that could not be understood, for people.
    CREATE TABLE ImportBadLine (
        Digest BLOB PRIMARY KEY,    -- of the whole line
        Importer TEXT NOT NULL,
        Path TEXT NOT NULL,         -- where it was first met,
        Offset INTEGER NOT NULL,    -- at which byte of the content,
        Length INTEGER NOT NULL,    -- how long it was,
        Reason TEXT NOT NULL,
        Line BLOB NOT NULL          -- and its beginning
    ) WITHOUT ROWID;
"""
