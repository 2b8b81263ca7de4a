"""sacct is run by the import itself: what it is asked for, what becomes of its answers, and of none."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from publisher.sources.importers import ImportReport
from publisher.sources.slurm import sacct as sacct_module
from publisher.sources.slurm.importer import TABLES, Options, create
from tests.arex_databases.schema import create as create_arex
from tests.sources.test_import_slurm import content
from tests.support import live_slurm
from tests.support.batch_stores import read_into
from tests.support.gridengine_files import jobs
from tests.support.sacct_text import BEGIN, CLUSTER, NOW, job, jobs_of, run_import, step, text, write
from tests.support.stand_in_sacct import install

DAY_S = 86_400
# Behind all jobs of `jobs_of`.
THEN = datetime.fromtimestamp(BEGIN + 8 * 3600, UTC)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return tmp_path / "sacct"


def ask(tmp_path: Path, command: tuple[str, ...], now: datetime = THEN, **options: object) -> ImportReport:
    """An import that looks back a week, in a call of sacct for each day, unless told otherwise."""
    return run_import(tmp_path / "imported.db", now=now, command=command, **{"look_back_s": 7 * DAY_S} | options)


def windows(stand_in: Path) -> list[tuple[str, str]]:
    """Begin and end of each call, in order."""
    return re.findall(r"starttime=(\S+) --endtime=(\S+)", (stand_in / "calls").read_text())


def mishap(stand_in: Path, what: str) -> None:
    (stand_in / "mishap").write_text(what)


def test_the_same_jobs_as_from_a_file(tmp_path: Path, stand_in: Path) -> None:
    lines = jobs_of(1, 300)
    expected = tmp_path / "expected.db"
    run_import(expected, write(tmp_path / "sacct.txt", text(lines)))
    report = ask(tmp_path, install(stand_in, lines))
    assert (report.troubles, report.bad) == ([], 0)
    assert content(tmp_path / "imported.db") == content(expected)


def test_first_all_of_look_back_then_what_is_new_and_all_again_after_a_day(tmp_path: Path, stand_in: Path) -> None:
    command = install(stand_in, jobs_of(1, 50))
    for hours in (0, 1, 2):
        assert ask(tmp_path, command, THEN + timedelta(hours=hours), look_back_s=3 * DAY_S).troubles == []
    asked = windows(stand_in)
    assert len(asked) == 3 + 2 + 2
    first, last = asked[0][0], asked[2][1]
    assert datetime.fromisoformat(last) - datetime.fromisoformat(first) == timedelta(days=3)
    assert [begin for begin, _ in asked[1:3]] == [end for _, end in asked[:2]]
    # A day before the end of the last run, up to now.
    assert datetime.fromisoformat(asked[3][0]) == datetime.fromisoformat(last) - timedelta(days=1)
    assert datetime.fromisoformat(asked[4][1]) == datetime.fromisoformat(last) + timedelta(hours=1)
    ask(tmp_path, command, THEN + timedelta(hours=25), look_back_s=3 * DAY_S)
    assert len(windows(stand_in)) == 7 + 3


def test_jobs_that_slurmdbd_hears_of_late_are_found_within_look_back(tmp_path: Path, stand_in: Path) -> None:
    lines = jobs_of(1, 50)
    late = job(99, Submit=BEGIN + 60)
    ask(tmp_path, install(stand_in, lines))
    command = install(stand_in, [*lines, late, step(late)])
    assert ask(tmp_path, command, THEN + timedelta(days=5)).imported == 1


@pytest.mark.slow
def test_after_a_long_outage_all_is_read_since_the_last_time(tmp_path: Path, stand_in: Path) -> None:
    """Also what ended before `look_back_s`, and though slurmdbd has forgotten what was read the last time."""
    ask(tmp_path, install(stand_in, jobs_of(1, 50)))
    ended = BEGIN + 5 * DAY_S
    missed = job(99, Submit=ended - 600, Eligible=ended - 600, Start=ended - 300, End=ended)
    report = ask(tmp_path, install(stand_in, [missed, step(missed)]), THEN + timedelta(days=60))
    assert (report.troubles, report.imported) == ([], 1)


def test_days_of_allocations_that_had_no_step(tmp_path: Path, stand_in: Path) -> None:
    """Nobody printed that without steps: it is what there is."""
    alone = [
        job(number, Submit=int(THEN.timestamp()) - 3 * DAY_S, TotalCPU="", UserCPU="", SystemCPU="")
        for number in range(300)
    ]
    later = job(999, Submit=int(THEN.timestamp()) - DAY_S)
    report = ask(tmp_path, install(stand_in, [*alone, later, step(later)]))
    assert (report.troubles, report.imported, report.incomplete) == ([], 301, 300)


def test_a_clock_that_was_ahead_keeps_no_round_from_reading(tmp_path: Path, stand_in: Path) -> None:
    ask(tmp_path, install(stand_in, []), THEN + timedelta(days=400))
    ask(tmp_path, install(stand_in, []), THEN)
    ended = job(7, Submit=int(THEN.timestamp()))
    report = ask(tmp_path, install(stand_in, [ended, step(ended)]), THEN + timedelta(hours=1))
    assert (report.troubles, report.imported) == ([], 1)


def test_a_name_cannot_forge_a_job(tmp_path: Path, stand_in: Path) -> None:
    """Whatever delimiter its user thinks of."""
    forged = text([job(666), step(job(666))], header=False).decode()
    one = job(1, JobName=f"x\n{forged}{forged.replace('|', chr(0x1F))}")
    report = ask(tmp_path, install(stand_in, [one, step(one)]))
    assert (report.imported, report.bad) == (1, 0)
    assert {found["LocalJobID"] for found in jobs(tmp_path / "imported.db").values()} == {"1"}


def test_no_delimiter_is_known_from_another_call(tmp_path: Path, stand_in: Path) -> None:
    ask(tmp_path, install(stand_in, jobs_of(1, 5)))
    found = re.findall(r"--delimiter=([^ ]+) --clusters", (stand_in / "calls").read_text())
    assert len(found) == len(set(found)) == len(windows(stand_in)) > 1
    assert all(len(delimiter) >= 7 and not delimiter.isprintable() for delimiter in found)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("fail", "Connection refused; sacct: error: Problem talking to the database"),
        ("nothing", "printed nothing, not even a header"),
        ("no jobs", "shows no job that ended from"),
        ("torn", "ended with status -9"),
    ],
)
def test_a_failing_or_empty_answer_is_never_no_jobs(tmp_path: Path, stand_in: Path, what: str, reason: str) -> None:
    """What was asked for is asked for again, and nothing is lost."""
    lines = jobs_of(1, 50)
    command = install(stand_in, lines)
    ask(tmp_path, command)
    before = content(tmp_path / "imported.db")
    mishap(stand_in, what)
    report = ask(tmp_path, command, THEN + timedelta(hours=1))
    assert report.exit_status == 66
    assert [reason in trouble for trouble in report.troubles] == [True]
    assert content(tmp_path / "imported.db") == before
    (stand_in / "mishap").unlink()
    one = job(77, Submit=int(THEN.timestamp()) + 60)
    again = ask(tmp_path, install(stand_in, [*lines, one, step(one)]), THEN + timedelta(hours=2))
    assert (again.exit_status, again.imported) == (0, 1)


def test_days_that_slurm_purged_are_reported_and_the_others_read(tmp_path: Path, stand_in: Path) -> None:
    """Once a day all of `look_back_s` is asked for; slurmdbd may keep less."""

    def ended(number: int, days_ago: float) -> list[dict[str, object]]:
        at = int(THEN.timestamp() - days_ago * DAY_S)
        one = job(number, Submit=at - 600, Eligible=at - 600, Start=at - 300, End=at)
        return [one, step(one)]

    ask(tmp_path, install(stand_in, [*ended(1, 5.5), *ended(2, 4.5), *ended(3, 0.5)]))
    late = THEN + timedelta(days=1)
    command = install(stand_in, [*ended(3, 0.5), *ended(4, -0.5)])
    report = ask(tmp_path, command, late)
    assert (report.exit_status, report.imported) == (66, 1)
    (trouble,) = report.troubles
    assert "and so on 1 other day; check that slurmdbd still has them, and make look_back_s shorter" in trouble
    again = ask(tmp_path, command, late + timedelta(hours=1))
    assert (again.exit_status, again.imported) == (66, 0), "until look_back_s is shorter"
    assert ask(tmp_path, command, late + timedelta(hours=2), look_back_s=3 * DAY_S).exit_status == 0
    assert {found["LocalJobID"] for found in jobs(tmp_path / "imported.db").values()} == {"1", "2", "3", "4"}


def test_one_that_does_not_answer_is_ended(tmp_path: Path, stand_in: Path) -> None:
    command = install(stand_in, jobs_of(1, 5))
    mishap(stand_in, "hang")
    report = ask(tmp_path, command, timeout_s=1)
    assert "no answer within 1 s" in report.troubles[0]


def test_a_stop_ends_it_too(tmp_path: Path, stand_in: Path) -> None:
    """Nobody would read its answer any more."""
    command = install(stand_in, jobs_of(1, 5))
    mishap(stand_in, "hang")
    importer = create(Options(cluster=CLUSTER, command=command), os.environ, lambda _: (stand_in / "pid").exists())
    report = read_into(tmp_path / "imported.db", importer, TABLES, now=THEN)
    assert "ended, because a stop was asked for" in report.troubles[0]
    with pytest.raises(ProcessLookupError):
        os.kill(int((stand_in / "pid").read_text()), 0)


def test_one_that_prints_without_end_is_ended(tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sacct_module, "_MOST_BYTES", 2**20)
    command = install(stand_in, jobs_of(1, 5))
    mishap(stand_in, "flood")
    report = ask(tmp_path, command)
    assert "printed more than 1,048,576 bytes" in report.troubles[0]


def test_one_that_is_not_installed(tmp_path: Path) -> None:
    report = ask(tmp_path, ("/nonexistent/sacct",))
    assert "/nonexistent/sacct: cannot be started: No such file or directory" in report.troubles[0]


def test_a_bad_line_that_is_printed_again_is_the_same(tmp_path: Path, stand_in: Path) -> None:
    """Though it is never separated by the same characters."""
    good, torn = job(1), job(2) | {"ElapsedRaw": "many"}
    command = install(stand_in, [good, step(good), torn, step(torn)])
    reports = [ask(tmp_path, command, THEN + timedelta(hours=hours)) for hours in range(3)]
    assert [(report.bad, report.bad_kept) for report in reports] == [(1, 1), (0, 1), (0, 1)]
    ((line,),) = [report.bad_lines for report in reports[:1]]
    assert line.path.startswith(f"{command[0]} from 20")
    assert line.line.startswith(b"2|")


def test_the_program_gets_little_of_the_environment(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/our-slurm.conf")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    show = tmp_path / "show"
    show.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\n")
    show.chmod(0o755)
    ask(tmp_path, (str(show),))
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert seen["SLURM_CONF"] == "/etc/our-slurm.conf"
    assert (seen["TZ"], seen["SLURM_TIME_FORMAT"]) == ("UTC", "%s")
    assert not {"SECRET_TOKEN", "PYTEST_CURRENT_TEST"} & seen.keys()


def test_jobs_that_a_ce_may_still_claim_are_for_a_later_run(tmp_path: Path, stand_in: Path) -> None:
    create_arex(tmp_path / "accounting_v2.db")
    now = int(NOW.timestamp())
    early, fresh = job(1, Submit=now - 3 * DAY_S), job(2, Submit=now - 3600)
    command = install(stand_in, [early, step(early), fresh, step(fresh)])
    arc = {"arc_databases": (tmp_path / "accounting_v2.db",), "arc_wait_s": DAY_S}
    assert ask(tmp_path, command, NOW, **arc).imported == 1
    assert ask(tmp_path, command, NOW + timedelta(days=1), **arc).imported == 1


@pytest.mark.long
@pytest.mark.skipif(live_slurm.missing() != "", reason=live_slurm.missing())
def test_against_a_slurm_of_our_own(tmp_path: Path) -> None:
    """Jobs of several kinds, as they measured themselves; asked for twice."""
    # Paths of its sockets hold 108 bytes, which pytest's directories may use up.
    with TemporaryDirectory(prefix="slurm-") as folder, live_slurm.live_slurm(Path(folder)) as slurm:
        burn = f"i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; times > {tmp_path}/$SLURM_JOB_ID"
        numbers = [slurm.submit(burn, "--account=bio", f"--job-name=a|b\n{number}|{CLUSTER}") for number in (1, 2)]
        numbers.append(slurm.submit(burn, "--gres=gpu:a100:1"))
        failed = slurm.submit("exit 3")
        slurm.wait_until_idle()
        time.sleep(2)  # slurmdbd hears of an end from slurmctld, some time later
        command = ("env", f"SLURM_CONF={slurm.environment['SLURM_CONF']}", "sacct")
        now = datetime.now(UTC) + timedelta(seconds=5)
        database = tmp_path / "imported.db"
        report = run_import(database, now=now, command=command, look_back_s=DAY_S)
        assert (report.troubles, report.bad, report.imported) == ([], 0, 4)
        again = run_import(database, now=now + timedelta(seconds=1), command=command, look_back_s=DAY_S)
        assert (again.troubles, again.imported, again.duplicates) == ([], 0, 4)
    found = {int(one["LocalJobID"]): one for one in jobs(database).values()}
    assert set(found) == {*numbers, failed}
    assert found[failed]["Status"] == "failed"
    assert [found[number]["GPUCount"] for number in numbers] == [None, None, 1]  # unknown until one is shown
    for number in numbers:
        minutes = re.findall(r"(\d+)m([\d.]+)s", (tmp_path / str(number)).read_text())
        used = sum(int(whole) * 60 + float(rest) for whole, rest in minutes)
        measured = found[number]["UsedCPUUserTime"] + found[number]["UsedCPUKernelTime"]
        assert measured == pytest.approx(used, abs=0.6)
