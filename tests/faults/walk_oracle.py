"""What must be true when a random walk has ended in good health: at the three receivers, in the ledger, and of secrets."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from publisher.model.time import Month
from tests.arex_databases import SampleJob
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.fake_ams.tables import Tables
from tests.faults.walk import Walk
from tests.faults.walk_services import SUMS_TOPIC
from tests.support.pki import PKI
from tests.support.sgas_sites import record_id
from tests.support.sites import ConfiguredSite, told, truth
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

Values = tuple[Any, ...]


def walked(folder: Path, pki: PKI, seed: int, steps: int, *, children: bool = False) -> Counter[str]:
    """One walk to its good end, and what was met on it. Raises: AssertionError."""
    walk = Walk(folder, pki, seed, children=children)
    try:
        for _ in range(steps):
            walk.step()
        last = walk.heal()
        assert [(one.outcome, one.exit_status) for one in last] == [("nothing", 0)] * 3, last
        assert_all_is_well(walk)
    except AssertionError as error:
        error.add_note(f"seed {seed}, and all its steps: " + " | ".join(walk.story))
        raise
    finally:
        walk.close()
    return walk.counts


def assert_all_is_well(walk: Walk) -> None:
    """Nothing lost, nothing doubled, and everybody agrees."""
    assert_single_records(walk)
    assert_sums(walk)
    assert_usage_records(walk)
    assert_the_ledger_agrees(walk)
    assert_no_secret_anywhere(walk)


def values(job: SampleJob) -> Values:
    """What of a record may change under the receiver's key: wall, CPU, cores."""
    return truth(job)[2:]


def messages(walk: Walk, topic: str) -> list[tuple[str, bytes]]:
    """Id and payload of every message of a topic, in order, signatures verified."""
    receiver = Receiver.create(walk.site.pki.ca_directory, allowed=[walk.site.host.subject], with_openssl=False)
    stored = walk.fake.messages(PROJECT, topic)
    return [(message.attributes["empaid"], receiver.take(message).text.encode()) for message in stored]


def assert_single_records(walk: Walk) -> None:
    """The receiver's rows, by its own keys, are the database's jobs; twice came only what may have been lost on its way."""
    tables = Tables()
    ever = {local_id: {values(job) for job in jobs} for local_id, jobs in walk.ever.items()}
    ends: dict[str, set[int]] = defaultdict(set)
    came: dict[str, dict[str, Values]] = defaultdict(dict)
    contents: dict[str, set[str]] = {}
    every = [(name, read_car(payload, datetime.now(UTC))) for name, payload in messages(walk, TOPIC)]
    for name, rows in every:
        contents[name] = {str(row["LocalJobId"]) for row in rows}
        for row in rows:
            local_id, what = str(row["LocalJobId"]), told(row)[2:]
            assert what in ever[local_id], f"{local_id} was never so: {what}"
            ends[local_id].add(row["EndTime"])
            tables.replace("JobRecords", row)
            for other, before in came[local_id].items():
                excused = local_id in walk.condemned | walk.hasty or contents[name] < contents[other]
                assert other == name or before != what or excused, f"{local_id} went out under {other} and {name}"
            came[local_id][name] = what
    moved = {
        one: (moments, one in walk.condemned, one in walk.hasty) for one, moments in ends.items() if len(moments) > 1
    }
    assert not moved, "the end of a run is a part of its key and never moves"
    repeated = len(every) - len(contents)
    assert repeated <= walk.may_repeat, "only a message whose answer was lost goes twice"
    walk.counts["messages that came twice"] += repeated
    stored = {str(row["LocalJobId"]): told(dict(row))[2:] for row in tables.rows("JobRecords")}
    now = {str(job.local_job_id): values(job) for job in walk.done.values()}
    assert {one: what for one, what in stored.items() if one in now} == now
    assert stored.keys() <= walk.ever.keys(), "no more rows than runs"
    assert len(stored) == len(tables.rows("JobRecords"))
    walk.counts["jobs"] += len(walk.done)


def assert_sums(walk: Walk) -> None:
    """The months at the receiver add up to the jobs of the database, and to runs that stood there until another came."""
    tables = Tables()
    for _, payload in messages(walk, SUMS_TOPIC):
        name, rows = read_text(payload, datetime.now(UTC))
        for row in rows:
            tables.replace(name, row)
    received: Counter[Values] = Counter()
    for summed in tables.rows("Summaries"):
        for column in ("NumberOfJobs", "WallDuration", "CpuDuration"):
            received[int(str(summed["Year"])), int(str(summed["Month"])), column] += int(str(summed[column]))
    least, most = in_months(walk.done.values()), in_months([*walk.done.values(), *walk.overwritten])
    assert received.keys() == least.keys()
    assert all(least[one] <= received[one] <= most[one] for one in most), (received, least, most)


def in_months(jobs: Iterable[SampleJob]) -> Counter[Values]:
    """Jobs, wall and CPU time by month."""
    sums: Counter[Values] = Counter()
    for job in jobs:
        end = datetime.fromtimestamp(job.end_time, UTC)
        sums[end.year, end.month, "NumberOfJobs"] += 1
        sums[end.year, end.month, "WallDuration"] += job.wall_s
        sums[end.year, end.month, "CpuDuration"] += job.cpu_user_s + job.cpu_kernel_s
    return sums


def assert_usage_records(walk: Walk) -> None:
    """SGAS keeps the first of what comes under one id: a row a run, with values that were once true."""
    rows = walk.sgas.rows
    ids = {record_id(job) for job in walk.done.values()}
    # A later run of a job that was restarted has the digest of its LocalJobID behind the job's id.
    assert {one if one in ids else one.rpartition("-")[0] for one in rows} == ids
    assert len({(row.global_job_id, row.local_job_id) for row in rows.values()}) == len(rows)
    runs: dict[str, set[Values]] = defaultdict(set)
    for jobs in walk.ever.values():
        for job in jobs:
            runs[job.job_id].add((job.local_job_id, job.wall_s, job.cpu_user_s + job.cpu_kernel_s))
    for row in rows.values():
        assert (row.local_job_id, row.wall_s, row.cpu_s) in runs[str(row.global_job_id)]


def is_in_a_file(site: ConfiguredSite) -> bool:
    return bool(site.config["state"] == str(site.state))


def ledger_of(site: ConfiguredSite) -> Any:
    """A connection of the database's own driver."""
    if not is_in_a_file(site):
        connection = import_module("psycopg").connect(site.config["state"])
        connection.execute(f'SET search_path = "publisher_{site.config["instance"]}"')
        return connection
    connection = sqlite3.connect(f"file:{site.state}?mode=ro", uri=True)
    found = connection.execute("PRAGMA integrity_check").fetchall()
    assert found == [("ok",)], found
    return connection


def assert_the_ledger_agrees(walk: Walk) -> None:
    """Every message that the ledger calls sent is in its topic with as many records, and the other way round."""
    checked = walk.site.run("state", "check")
    assert checked.status == 0, checked.out + checked.err
    with closing(ledger_of(walk.site)) as connection:
        assert connection.execute("SELECT count(*) FROM message WHERE state < 2").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        held = {name for (name,) in connection.execute("SELECT local_id FROM quarantine")}
        assert held <= {str(job.local_job_id) for job in walk.overwritten}, (
            "a run that is not there any more cannot leave"
        )
        sent = (
            "SELECT message_id, message.records FROM message JOIN target ON target.id = target "
            "WHERE name = '{}' AND state = 2"
        )
        delivered = dict(connection.execute("SELECT name, delivered FROM target").fetchall())
        counted_up = (
            "SELECT id, accepted_messages, accepted_records FROM target WHERE accepted_messages > 0 ORDER BY id"
        )
        one_by_one = (
            "SELECT target, count(*), sum(records) FROM message WHERE state = 2 GROUP BY target ORDER BY target"
        )
        assert connection.execute(counted_up).fetchall() == connection.execute(one_by_one).fetchall()
        known = {name: connection.execute(sent.format(name)).fetchall() for name in ("egi", "sums")}
        told = (
            "SELECT month, sum(sent_jobs) FROM balance JOIN row_key ON row_key.id = row_key "
            "WHERE sent_by IS NOT NULL GROUP BY month HAVING sum(jobs) > 0"
        )
        in_totals = dict(connection.execute(told).fetchall())
    records = {name: len(read_car(payload, datetime.now(UTC))) for name, payload in messages(walk, TOPIC)}
    counted: dict[str, int] = dict(known["egi"])
    assert counted.keys() <= records.keys(), "sent, says the ledger, and the receiver has no such message"
    # A message that came although its answer was lost, and was then cut in two: the ledger knows its halves.
    assert len(records.keys() - counted.keys()) <= walk.may_repeat
    assert {name: records[name] for name in counted} == counted, "as many records as the ledger says"
    assert {name for name, _ in known["sums"]} <= {name for name, _ in messages(walk, SUMS_TOPIC)}
    runs = {str(job.local_job_id) for jobs in walk.ever.values() for job in jobs}
    assert len(walk.done) <= delivered["egi"] <= len(runs), (len(walk.done), delivered, len(runs))
    assert len(walk.done) <= delivered["sums"] <= len(runs), (len(walk.done), delivered, len(runs))
    # Rows that stayed at the receiver may stand in for a job that is missing there; not so here.
    least, most = in_months(walk.done.values()), in_months([*walk.done.values(), *walk.overwritten])
    jobs = {at: least[at] for at in least if at[2] == "NumberOfJobs"}
    assert in_totals.keys() == {Month(year, month).number for year, month, _ in jobs}, (in_totals, jobs)
    for at, number in jobs.items():
        assert number <= in_totals[Month(at[0], at[1]).number] <= most[at], (in_totals, jobs)


def assert_no_secret_anywhere(walk: Walk) -> None:
    """A token is in its header only; keys and passwords are nowhere: logs, words, URLs, bodies, files."""
    key = [line for line in walk.site.host.key.read_text().splitlines() if len(line) > 40]
    kept = {path: path.read_bytes() for path in walk.site.folder.rglob("*") if path.is_file()}
    for mine in (walk.site.path, walk.site.folder / "pseudonym.secret"):  # written by administrators, not by us
        kept.pop(mine, None)
    assert (walk.site.state in kept) is is_in_a_file(walk.site)
    said = "\n".join([walk.logged, *walk.told])
    for secret in [*walk.secrets, *key]:
        assert secret not in said
        assert not [path for path, content in kept.items() if secret.encode() in content], "a secret in a file"
        for request in (*walk.fake.requests, *walk.sgas.requests):
            assert secret not in request.target
            assert secret.encode() not in request.body
            assert not [name for name, value in request.headers if secret in value and name.lower() != "x-api-key"]
