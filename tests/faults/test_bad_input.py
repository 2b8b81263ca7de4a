"""Accounting data as trouble leaves it, through the real command line: said plainly, and nothing is lost.

The other half, what is wrong with configuration, credentials, state and services, is in tests/faults/test_bad_configuration.py.
"""

from __future__ import annotations

import os
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from tests.arex_databases import (
    SampleJob,
    Schema,
    generate,
    hostile,
    make_damaged,
    make_empty,
    make_missing,
    make_not_a_database,
    make_truncated,
    set_schema_version,
)
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_ams.signature import have_openssl
from tests.fake_ams.tables import Tables
from tests.support.complaints import assert_complains, assert_plain
from tests.support.sites import Row, SiteUnderTest
from tests.support.strict_apel import CAR, read_car

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


# Files


def drop(*names: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            for name in names:
                connection.execute(f"DROP TABLE {name}")

    return change


def no_column(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE AAR RENAME COLUMN UsedWalltime TO Walltime")


def a_directory(path: Path) -> None:
    make_missing(path)
    path.mkdir()


BROKEN: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "missing": (make_missing, ("has neither", "accounting.db", "control_dir")),
    "a directory": (a_directory, ("is not a regular file", "name an accounting database")),
    "empty": (make_empty, ("no accounting tables",)),
    "truncated": (make_truncated, ("damaged or truncated", "restore")),
    "cut within the header": (lambda path: make_truncated(path, kept=0.0005), ("database",)),
    "not a database": (make_not_a_database, ("not an SQLite database", "correct the path")),
    "damaged": (make_damaged, ("damaged", "restore")),
    "newer schema": (lambda path: set_schema_version(path, "3"), ("schema version 3", "update publisher")),
    "no schema": (lambda path: set_schema_version(path, None), ("schema version none",)),
    "schema in words": (lambda path: set_schema_version(path, "two\n"), ("schema version",)),
    "no table AAR": (drop("AAR"), ("no accounting tables",)),
    "no table of extras": (drop("JobExtraInfo", "JobEvents"), ("jobextrainfo", "jobevents")),
    "a column is missing": (no_column, ("aar.usedwalltime",)),
}


@pytest.mark.parametrize("trouble", BROKEN)
def test_an_accounting_file_that_cannot_be_read_is_66_and_nothing_is_lost(site: SiteUnderTest, trouble: str) -> None:
    breaks, words = BROKEN[trouble]
    batch = jobs(40)
    site.fill(*batch[:20])
    assert site.publish().status == 0
    site.fill(*batch[20:])
    path = site.database()
    whole = path.read_bytes()
    breaks(path)
    broken = site.publish()
    said = broken.json["targets"]["egi"]["reason"].lower()
    assert_complains(broken, 66, str(site.control))
    assert all(word.lower() in said for word in words), said
    for command in (("publish", "--force"), ("status",), ("trace", batch[0].job_id)):
        assert_plain(site.run(*command), 66, str(site.control))
    assert site.run("status", "--json").json["targets"]["egi"]["pending"] is None, "it cannot tell, and that is not 0"
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    again = site.publish()
    assert (again.status, again.json["targets"]["egi"]["records"]) == (0, 20), again.err
    site.assert_received(*batch)


def test_a_database_that_is_named_and_missing(site: SiteUnderTest) -> None:
    there = site.control / "accounting" / "a.db"
    gone = site.control / "accounting" / "b.db"
    site.config["source"] = {"type": "arex", "databases": [str(there), str(gone)]}
    site.fill(*jobs(3))
    site.database().rename(there)
    assert_complains(site.publish(), 66, str(gone), "there is no such file", "source.databases")
    site.config["source"] = {"type": "arex", "databases": [str(there.parent / "*.sqlite")]}
    site.save()
    assert_complains(site.publish(), 66, "*.sqlite", "no accounting database matches")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite waits a tenth of a second for locks instead of half a minute."""
    connect = sqlite3.connect

    def quick(*arguments: Any, **options: Any) -> sqlite3.Connection:
        options["timeout"] = min(options.get("timeout", 5.0), 0.1)
        connection: sqlite3.Connection = connect(*arguments, **options)
        return connection

    monkeypatch.setattr(sqlite3, "connect", quick)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_locked_accounting_file_is_66_and_no_record_is_half_read(site: SiteUnderTest, journal: str) -> None:
    """Defect 8 of ARC's publisher: behind a lock it sends records without FQAN, with HEPSPEC 1.0, as published."""
    batch = jobs(40)
    site.fill(*batch[:20])
    assert site.publish().status == 0
    site.fill(*batch[20:])
    with closing(sqlite3.connect(site.database(), isolation_level=None)) as holder:
        holder.execute(f"PRAGMA journal_mode = {journal}")
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("UPDATE AAR SET ExitCode = ExitCode WHERE RecordID = 1")
        locked = site.publish()
        assert_complains(locked, 66, str(site.database()), "locked", "try again")
        assert_plain(site.run("status"), 66, "locked")
        holder.execute("ROLLBACK")
    again = site.publish()
    assert (again.status, again.json["targets"]["egi"]["records"]) == (0, 20), again.out
    site.assert_received(*batch)


@pytest.mark.slow
def test_damage_in_the_middle_ends_the_round_and_what_went_out_is_counted(site: SiteUnderTest) -> None:
    """What was delivered before the damaged page is told, remembered, and not sent again after the repair."""
    site.config["targets"]["egi"] |= {"batch_records": 100}
    site.config["source"]["page_rows"] = 100
    batch = jobs(900)
    site.fill(*batch)
    path = site.database()
    whole = path.read_bytes()
    size, at = int.from_bytes(whole[16:18], "big"), whole.find(batch[600].job_id.encode())
    while at >= 0:  # in the table, and in the index on job ids
        page = at // size * size
        path.write_bytes(path.read_bytes()[:page] + b"\xa5" * size + whole[page + size :])
        at = whole.find(batch[600].job_id.encode(), page + size)
    broken = site.publish()
    assert_complains(broken, 66, str(path), "damaged")
    sent = broken.json["targets"]["egi"]["records"]
    assert 0 < sent < 900
    assert broken.json["targets"]["egi"]["messages"] == sent / 100
    path.write_bytes(whole)
    assert site.publish().json["targets"]["egi"]["records"] == 900 - sent
    site.assert_received(*batch)


# Hostile rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A row of AAR as it stands in the file, read by this test alone."""

    record_id: int
    job_id: str
    local_id: str
    status: str | None
    end: object
    wall: object
    cpu: tuple[object, object]
    cores: object


def stored_rows(path: Path) -> dict[int, Stored]:
    query = """
        SELECT RecordID, JobID, LocalJobID, Status.Name, EndTime, UsedWalltime, UsedCPUUserTime, UsedCPUKernelTime, CPUCount
        FROM AAR LEFT JOIN Status ON Status.ID = AAR.StatusID"""

    def text(value: object) -> str:
        found = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value or "")
        return re.sub("%(27|23|25|0d|0a|08|00)", lambda escape: chr(int(escape[1], 16)), found)

    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")
        return {
            row[0]: Stored(
                record_id=row[0],
                job_id=text(row[1]),
                local_id=text(row[2]),
                status=row[3],
                end=row[4],
                wall=row[5],
                cpu=(row[6], row[7]),
                cores=row[8],
            )
            for row in connection.execute(query)
        }


def number(value: object) -> int:
    return int(value) if isinstance(value, int | str | float) and str(value).strip() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A record at the far end: what APEL's loader stores, and the job that the document names."""

    job_id: str
    row: Row


def arrived(site: SiteUnderTest) -> Iterator[Arrived]:
    """Every record, each message held against everything that reads it."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=have_openssl())
    schemas = os.environ.get("PUBLISHER_SCHEMAS")
    official = etree.XMLSchema(etree.parse(f"{schemas}/car-1.2/car_v1.2.xsd")) if schemas else None
    ours = etree.XMLSchema(
        etree.parse(str(Path(__file__).parents[2] / "publisher" / "formats" / "schemas" / "car.xsd"))
    )
    for message in site.fake.messages(PROJECT, TOPIC):
        assert len(message.data) <= 950_000
        payload = receiver.take(message).text.encode("utf-8")
        assert payload.isascii()
        document = etree.fromstring(payload)
        ours.assertValid(document)
        if official is not None:
            official.assertValid(document)
        rows = read_car(payload, datetime.now(UTC))
        records = ElementTree.fromstring(payload).findall(f"{CAR}UsageRecord")  # noqa: S314  # our own document
        for row, record in zip(rows, records, strict=True):
            yield Arrived(job_id=record.findtext(f"{CAR}JobIdentity/{CAR}GlobalJobId") or "", row=row)


def open_rows(site: SiteUnderTest) -> set[int]:
    with closing(sqlite3.connect(site.state.with_name("jobs.db"))) as connection:
        return {row[0] for row in connection.execute("SELECT record_id FROM unfinished")}


@pytest.mark.slow
@pytest.mark.parametrize("schema", [1, 2])
def test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive(
    site: SiteUnderTest, schema: Schema
) -> None:
    """Defects 2, 3, 5, 23 and 24: one `&`, one NULL, one forged name sinks hundreds, or the whole run, every run."""
    cases, neighbours = hostile(1), jobs(400, seed=5)
    with site.arex(schema) as arex:
        for at, case in enumerate(cases):
            arex.write(case)
            if at < len(neighbours):
                arex.write(neighbours[at])
    run = site.publish()
    assert_plain(run, 65)
    rows = stored_rows(site.database(schema))
    assert len(rows) == len(cases) + len(neighbours)

    listed = site.run("quarantine", "list", "--json").json["quarantined"]
    assert all(held["rule"] and held["reason"] and held["hold"] == "held" for held in listed)
    aside = {held["record_id"] for held in listed}
    assert run.json["targets"]["egi"]["quarantined"] == len(listed) == len(aside)
    waiting = open_rows(site)
    eligible = {
        number: row
        for number, row in rows.items()
        if row.status in ("completed", "failed") and number not in aside and number not in waiting
    }
    unwanted = {number for number, row in rows.items() if row.status not in ("completed", "failed")} - aside - waiting

    found = {record.job_id: record.row for record in arrived(site)}
    assert len(found) == run.json["targets"]["egi"]["records"], "no job twice"
    assert found.keys() == {row.job_id for row in eligible.values()}, "nothing lost, nothing invented"
    assert len(eligible) + len(aside) + len(waiting) + len(unwanted) == len(rows)
    assert {job.job_id for job in neighbours} <= found.keys()
    for row in eligible.values():
        record = found[row.job_id]
        assert record["Site"] == "EXAMPLE-SITE"
        assert (record["EndTime"], record["WallDuration"]) == (number(row.end), number(row.wall)), row
        assert record["CpuDuration"] == sum(map(number, row.cpu)), row
        cores = row.cores if isinstance(row.cores, int | str) and str(row.cores).strip().isdecimal() else 0
        assert record["Processors"] == int(cores), row
        local_id = row.local_id or row.job_id
        if local_id.isascii() and local_id.isprintable():
            assert record["LocalJobId"] == local_id.strip()
    assert len(table_of(found.values()).rows("JobRecords")) == len(found), "no row replaces another"

    quiet = site.publish()
    assert (quiet.status, quiet.json["targets"]["egi"]["outcome"]) == (0, "nothing"), quiet.err
    told_of = site.run("status", "--json").json["targets"]["egi"]
    assert (told_of["delivered"], told_of["quarantined"]) == (len(found), len(aside))
    assert (told_of["pending"], told_of["in_doubt"]) == (0, 0)


def table_of(rows: Any) -> Tables:
    tables = Tables()
    for row in rows:
        tables.replace("JobRecords", row)
    return tables


# What each kind of bad row is called, so that an administrator can look it up.
RULES = {
    "NULL: AAR.EndTime": "not-a-number",
    "NULL: AAR.JobID": "no-job-id",
    "NULL: AAR.StatusID": "unknown-status",
    "NULL: AAR.UserID": "dangling-reference",
    "empty: AAR.JobID": "no-job-id",
    "BLOB: Users.Name": "undecodable-text",
    "number: EndTime 0": "no-end-time",
    "number: EndTime 'abc'": "not-a-number",
    "number: EndTime -1": "no-end-time",
    "number: EndTime 1099511627776": "end-out-of-range",
    "number: UsedWalltime -1": "negative-duration",
    "number: UsedWalltime 2147483648": "wall-out-of-range",
    "number: CPUCount 2147483648": "processors-out-of-range",
    "dangling: EndpointID 987654": "dangling-reference",
    "dangling: StatusID 99": "unknown-status",
    "wall_s: 2147483648": "negative-duration",
    "benchmark: '12,26'": "benchmark-unreadable",
    "benchmark: 'fast'": "benchmark-unreadable",
    "benchmark: 'HEPSPEC:-1'": "benchmark-range",
    "benchmark: 'HEPSPEC:nan'": "benchmark-unreadable",
    "user: 10-kilobytes": "user-too-long",
    "user: invalid-utf-8": "undecodable-text",
    "local_job_id: None": "local-id-missing",
    "times: end in 2036": "end-in-future",
}
# What looks bad and is not: it must go out.
FINE = (
    "job_name: 10-kilobytes",
    "job_name: invalid-utf-8",
    "job_name: control-characters",
    "job_name: pkcs7-mime",
    "job_name: closing-element forgery",
    "job_name: xml-metacharacters",
    "queue: 10-kilobytes",
    "queue: pkcs7-mime",
    "queue: xml-metacharacters",
    "user: latin-1",
    "user: unicode-line-ends",
    "endpoint_url: ''",
    "endpoint_url: 'https://2001:db8::1:443/arex'",
    "endpoint_url: 'https://[2001:db8::1]:443/arex'",
    "endpoint_url: 'ce01.example.org'",
    "benchmark: absent",
    "stage_in_bytes: 1099511627776",
    "number: UsedWalltime '123'",
    "number: ExitCode 4294967295",
    "NULL: AAR.LocalJobID",
    "NULL: AAR.CPUCount",
    "NULL: JobExtraInfo.InfoValue",
    "side rows: none",
    "times: end in 1999",
    "times: end before submission",  # the run's own start is known and lies before its end
)


@pytest.mark.parametrize("schema", [1, 2])
def test_bad_rows_are_known_by_their_rule(site: SiteUnderTest, schema: Schema) -> None:
    cases = {case.name: case for case in hostile(1)}
    wanted = [*RULES, *FINE]
    with site.arex(schema) as arex:
        numbers = {arex.write(cases[name]): name for name in wanted}
    assert_plain(site.publish(), 65)
    found = {
        numbers[held["record_id"]]: held["rule"]
        for held in site.run("quarantine", "list", "--json").json["quarantined"]
    }
    assert found == RULES
    assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == len(FINE)


def test_a_row_that_is_mended_leaves_quarantine_and_arrives(site: SiteUnderTest) -> None:
    cases = {case.name: case for case in hostile(1)}
    mended = {
        "NULL: AAR.JobID": ("JobID", "MendedJob01"),
        "number: EndTime 'abc'": ("EndTime", int(END.timestamp())),
        "dangling: QueueID 987654": ("QueueID", 1),
        "number: UsedWalltime -1": ("UsedWalltime", 5),
    }
    with site.arex() as arex:
        arex.write_all(jobs(3))
        numbers = {arex.write(cases[name]): mended[name] for name in mended}
    assert_plain(site.publish(), 65)
    assert len(site.run("quarantine", "list", "--json").json["quarantined"]) == 4
    with closing(sqlite3.connect(site.database())) as connection, connection:
        for record_id, (column, value) in numbers.items():
            connection.execute(f"UPDATE AAR SET {column} = ? WHERE RecordID = ?", (value, record_id))
    again = site.publish()
    assert (again.status, again.json["targets"]["egi"]["records"]) == (0, 4), again.out
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []


def test_a_row_that_is_mended_in_what_does_not_count_leaves_quarantine_too(site: SiteUnderTest) -> None:
    """Only the benchmark was bad: end, wall and CPU time are what they were."""
    (bad, *rest) = jobs(4)
    with site.arex() as arex:
        arex.write(replace(bad, benchmark="fast"))
        arex.write_all(rest)
        assert_plain(site.publish(), 65)
        assert site.publish().json["targets"]["egi"]["records"] == 0
        arex.finish_again(bad)
    again = site.publish()
    assert (again.status, again.json["targets"]["egi"]["records"]) == (0, 1), again.out
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []
    site.assert_received(bad, *rest)


def test_text_of_jobs_cannot_forge_log_lines_or_tables(site: SiteUnderTest) -> None:
    """A job id is A-REX's own, but a converted database may hold anything."""
    forged = "x\n2026-10-01T00:00:00Z INFO target egi: all is well\x1b[2J"
    with site.arex() as arex:
        record_id = arex.write(jobs(1)[0])
    with closing(sqlite3.connect(site.database())) as connection, connection:
        connection.execute(
            "UPDATE AAR SET JobID = ?, UsedWalltime = -1 WHERE RecordID = ?",
            (forged, record_id),
        )
    for run in (site.run("publish", "--force"), site.run("quarantine", "list"), site.run("trace", forged)):
        text = run.out + run.err
        assert "\x1b" not in text
        assert not any(line.startswith("2026-10-01") for line in text.splitlines()), text
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert held["job"] == forged
    assert site.run("quarantine", "drop", forged).status == 0
