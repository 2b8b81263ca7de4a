"""A site with some thousand jobs publishes them twice; what arrived is verified and shown."""

from __future__ import annotations

import argparse
import gzip
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path

from publisher.model.text import NO_VO
from tests.arex_databases import Writer, generate
from tests.demo import fleet
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, sacct_text, sonar_files
from tests.support.forks import ForkerGone
from tests.support.gridengine_files import CLUSTER, HEADER, colon, entries, jsonl
from tests.support.pki import PKI
from tests.support.postgres import binaries
from tests.support.sites import Row, SiteUnderTest

JOBS = 3_000
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def fill_arex(site: SiteUnderTest) -> int:
    """October 2026 on one CE, as A-REX writes it (schema 2)."""
    site.database().write_bytes(_october())
    return JOBS


@cache
def _october() -> bytes:
    """The database, made once for all documents that show something of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "october.db"
        with Writer(path, schema=2) as arex:
            arex.write_all(generate(1, JOBS, START, END))
        return path.read_bytes()


def fill_gridengine(site: SiteUnderTest) -> None:
    """Some days of a cluster without an ARC CE: a file of the old format, rotated and compressed, and one of the new."""
    log = list(entries(1, JOBS * 2 // 3))
    old = site.folder / "accounting.0.gz"
    old.write_bytes(gzip.compress(HEADER + b"".join(map(colon, log[: len(log) // 2]))))
    new = site.folder / "accounting.jsonl"
    new.write_bytes(b"".join(map(jsonl, log[len(log) // 2 :])))
    (site.folder / "groups.map").write_text("theory atlas\nastro icecube\n")
    entry: dict[str, object] = {
        "cluster": CLUSTER,
        "group_vo_map": "groups.map",
        "unmapped_vo": "local",
        "paths": [str(old), str(new)],
    }
    name_source(site, {"type": "gridengine"} | entry)


def fill_sonar(site: SiteUnderTest) -> None:
    """Some days of a Slurm cluster that Sonar watches: a tree of days, in which jobs are told again and again."""
    root = site.folder / "sonar"
    told = sonar_files.collections(1, JOBS // 2)
    day = 20
    while envelopes := list(islice(told, 120)):
        day += 1
        folder = root / "2026" / "09" / str(day)
        folder.mkdir(parents=True)
        (folder / "0+job-slurm.json").write_bytes(b"".join(envelopes))
    (site.folder / "accounts.map").write_text("theory atlas\nastro icecube\n")
    entry: dict[str, object] = {
        "cluster": sonar_files.CLUSTER,
        "time_zone": "Europe/Oslo",
        "account_vo_map": "accounts.map",
    }
    name_source(site, {"type": "sonar"} | entry | {"paths": [str(root)]})


def fill_slurm(site: SiteUnderTest) -> None:
    """Some days of a Slurm cluster, as sacct prints them, the older ones compressed."""
    lines = sacct_text.jobs_of(1, JOBS)
    half = next(at for at in range(len(lines) // 2, len(lines)) if "." not in str(lines[at]["JobIDRaw"]))
    first, second = site.folder / "sacct.0.gz", site.folder / "sacct"
    first.write_bytes(gzip.compress(sacct_text.text(lines[:half])))
    second.write_bytes(sacct_text.text(lines[half:]))
    (site.folder / "accounts.map").write_text("theory atlas\nbio icecube\n")
    entry: dict[str, object] = {
        "cluster": sacct_text.CLUSTER,
        "account_vo_map": "accounts.map",
        "files": [str(first), str(second)],
    }
    name_source(site, {"type": "slurm"} | entry)


def fill_htcondor(site: SiteUnderTest) -> None:
    """Some days of an HTCondor pool: a directory of one file a job, and of a rolling history, rotated."""
    ads = condor_history.ads_of(1, JOBS)
    directory = condor_history.spool(site.folder / "history", ads[JOBS // 2 :])
    (directory / "history.20260922T120000").write_bytes(condor_history.rolling(ads[: JOBS // 2]))
    (site.folder / "groups.map").write_text("group_theory atlas\ngroup_bio icecube\n")
    entry: dict[str, object] = {
        "cluster": condor_history.CLUSTER,
        "group_vo_map": "groups.map",
        "history": str(directory),
    }
    name_source(site, {"type": "htcondor"} | entry)


def name_source(site: SiteUnderTest, entry: dict[str, object]) -> None:
    """Another system's accounting, which the round reads by itself before it publishes."""
    site.config["source"] = [entry | {"infrastructure": "local", "batch_server": str(entry["cluster"])}]
    site.config["records"]["statuses"] = ["completed", "failed", "aborted"]


def finished_jobs(site: SiteUnderTest) -> int:
    """How many jobs the batch system's entry has read."""
    with closing(sqlite3.connect(site.state.with_name("jobs.db"))) as connection:
        return int(connection.execute("SELECT count(*) FROM job").fetchone()[0])


SOURCES: dict[str, Callable[[SiteUnderTest], int | None]] = {
    "arex": fill_arex,
    "gridengine": fill_gridengine,
    "htcondor": fill_htcondor,
    "slurm": fill_slurm,
    "sonar": fill_sonar,
}


def show(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """A plain table."""
    texts = [columns, *(tuple(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    for row in texts:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def by_vo(rows: list[Row]) -> list[tuple[object, ...]]:
    """Jobs and hours of each VO as they arrived."""
    jobs: Counter[str] = Counter()
    wall: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for row in rows:
        vo = row["VO"] if row["VO"] not in ("", None, "None") else NO_VO  # APEL writes None
        jobs[vo] += 1
        wall[vo] += row["WallDuration"]
        cpu[vo] += row["CpuDuration"]
    return [(vo, jobs[vo], wall[vo] // 3600, cpu[vo] // 3600) for vo, _ in jobs.most_common()]


def demo(folder: Path, source: str) -> int:
    print(
        "1. A throw-away PKI, a stand-in for the ARGO Messaging Service over mutual TLS, and the accounting of some days"
    )
    pki = PKI.create(folder / "pki")
    with FakeAMS(pki) as fake:
        site = SiteUnderTest(folder, pki, fake)
        jobs = SOURCES[source](site)
        site.save()
        finished = "" if jobs is None else f"{jobs:,} finished jobs; "
        print(f"   {finished}AMS at {fake.url}; configuration in {site.path.name}:\n")
        print("   " + site.path.read_text().replace("\n", "\n   ").rstrip())

        print("\n2. publisher publish")
        first = site.run("publish", "--force")
        print(first.out)
        jobs = finished_jobs(site) if jobs is None else jobs
        print("3. publisher publish, again: everything was delivered, so there is nothing to do")
        second = site.run("publish", "--force")
        print(second.out)
        print("4. publisher status")
        status = site.run("status").out
        print(status)
        if "no job has ended since" in status:
            print("   The sample ends in September 2026, and a source without new jobs is noticed.\n")

        verified = (
            "the openssl command" if shutil.which("openssl") else "an own verification (there is no openssl command)"
        )
        print(f"5. What arrived, every signature verified with {verified}, read as APEL's loader reads it")
        rows = site.received()
        show(("VO", "jobs", "wall hours", "CPU hours"), by_vo(rows))
        last = rows[-1]["LocalJobId"]
        messages = len(fake.messages("accounting", "gLite-APEL"))
        print(f"\n   {len(rows):,} records in {messages} messages; the last one is batch job {last}")
    good = first.status == 0 and second.status == 0 and len(rows) == jobs
    print(
        "\nAll of them arrived, once."
        if good
        else f"\nSomething is wrong: {jobs} jobs, {len(rows)} records.\n{first.err}"
    )
    return 0 if good else 1


def keep(folder: Path, source: str) -> int:
    """Leave the site where it is: only the stand-in ends with the demo."""
    if source == "fleet":
        print("The fleet needs its PostgreSQL server, and cannot be kept.", file=sys.stderr)
        return 64
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    status = demo(folder, source)
    program = Path(sys.executable).with_name("publisher")
    print(f"\nThe site is kept in {folder}. Try it:\n")
    asked = ("status", f"trace {a_job(folder)}", f"explain {a_job(folder)}", "statement 2026-10", "stats --by user")
    for words in (*asked, "report -o report.html --from 2026-10", "plan", "doctor"):
        print(f"  {program} -c {folder / 'publisher.yaml'} {words}")
    print("\nThe AMS ended with the demo: doctor says that it cannot be reached, and nothing can be sent.")
    return status


def a_job(folder: Path) -> str:
    """Return what the batch system calls a job of the site."""
    with closing(sqlite3.connect(folder / "state" / "jobs.db")) as connection:
        query = "SELECT local_id FROM job WHERE local_id <> '' ORDER BY ended_at DESC LIMIT 1"
        return str(connection.execute(query).fetchone()[0])


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make demo", description=__doc__)
    arguments.add_argument("--source", choices=[*sorted(SOURCES), "fleet"], default="arex")
    text = "leave the site in this directory, which is emptied before, to try commands on it"
    arguments.add_argument("--keep", type=Path, metavar="DIR", help=text)
    chosen = arguments.parse_args()
    if chosen.keep is not None:
        return keep(chosen.keep.resolve(), chosen.source)
    with tempfile.TemporaryDirectory(prefix="publisher-demo-") as folder:
        try:
            return (
                fleet.demo(Path(folder), binaries()) if chosen.source == "fleet" else demo(Path(folder), chosen.source)
            )
        except ForkerGone as error:
            print(f"The demo could not go on: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
