"""What README promises: a source, a format or a transport is one file and one line. Tried in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import publisher
from tests.arex_databases import generate
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

PLUGINS = Path(__file__).parents[1] / "plugins"
JOBS = list(generate(1, 90, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
# The room, the file, the name that the line gives it, and the line that it comes behind.
NEW = (
    ("sources", "folder", "folder", '    "arex": "publisher.sources.arex",\n'),
    *(
        ("formats", "terse", name, '    "car": "publisher.formats.apel",\n')
        for name in ("terse", "terse-added", "terse-replaced")
    ),
    ("formats", "terse", "terse-counts", '    "apel-sync-0.1": "publisher.formats.apel",\n'),
    ("formats", "tally", "tally", '    "apel-summary-0.2": "publisher.formats.apel",\n'),
    ("transports", "paper", "paper", '    "spool": "publisher.transports.spool",\n'),
)


# Loads what commands need, and forks for each: the same as a start of Python, in a tenth of the time.
FORKING = """
import json, os, sys
from publisher.cli import main, site
from publisher.cli.commands import publish, republish
for line in sys.stdin:
    words, *files = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["publisher", *words]
        try:
            main.main()
        except SystemExit as end:
            os._exit(end.code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Tree:
    """A copy of the package, and the process that runs commands of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKING],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        out, err = self.root / "out", self.root / "err"
        self.process.stdin.write(json.dumps([words, str(out), str(err)]) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())

    def close(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A copy of the package with a file for each, and a line for each name."""
    root = tmp_path_factory.mktemp("tree")
    package = Path(publisher.__file__).parent
    shutil.copytree(package, root / "publisher")  # with what is compiled, or each process would compile all of it
    for room, module, name, before in NEW:
        shutil.copy(PLUGINS / f"{module}.py", root / "publisher" / room)
        registry = root / "publisher" / room / "__init__.py"
        text = registry.read_text()
        assert text.count(before) == 1
        line = f'    "{name}": "publisher.{room}.{module}",\n'
        registry.write_text(text.replace(before, before + line))
    with closing(Tree(root)) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    paper = {"type": "paper", "tray": str(tmp_path / "tray"), "format": "terse", "start": "all"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"post": paper})
    made.fill(*JOBS)
    made.config["source"] = {"type": "folder", "folder": str(made.control)}
    made.save()
    return made


def run(tree: Tree, site: ConfiguredSite, *words: str) -> subprocess.CompletedProcess[str]:
    return tree.run("--config", str(site.path), *words)


def test_jobs_go_from_a_new_source_in_a_new_format_by_a_new_transport(
    tree: Tree, site: ConfiguredSite, tmp_path: Path
) -> None:
    done = run(tree, site, "publish", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["targets"]["post"]
    assert (told["records"], told["messages"] > 1) == (len(JOBS), True)
    lines = [line for line in (tmp_path / "tray").read_text().splitlines() if line != "terse"]
    assert sorted(lines) == sorted(f"{job.job_id} {job.wall_s}" for job in JOBS)
    for words in (
        *(("status",), ("trace", JOBS[0].job_id), ("explain", JOBS[0].job_id), ("sync", "--check")),
        ("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--dry-run"),
    ):
        done = run(tree, site, *words)
        assert done.returncode == 0, done.stderr


def test_what_only_a_look_at_the_message_finds_is_set_aside_and_its_neighbours_go(
    tree: Tree, site: ConfiguredSite, tmp_path: Path
) -> None:
    unlucky = [replace(JOBS[number], job_id=f"unlucky{number}", wall_s=13) for number in (20, 21, 70)]
    site.fill(*unlucky)
    done = run(tree, site, "publish", "--json")
    assert done.returncode == 65, done.stderr
    assert json.loads(done.stdout)["targets"]["post"]["records"] == len(JOBS)
    lines = [line for line in (tmp_path / "tray").read_text().splitlines() if line != "terse"]
    assert sorted(lines) == sorted(f"{job.job_id} {job.wall_s}" for job in JOBS)
    aside = json.loads(run(tree, site, "quarantine", "list", "--json").stdout)["quarantined"]
    assert sorted((each["job"], each["rule"]) for each in aside) == [(job.job_id, "unlucky") for job in unlucky]
    assert json.loads(run(tree, site, "publish", "--json").stdout)["targets"]["post"]["records"] == 0


def test_doctor_asks_the_new_ones_too(tree: Tree, site: ConfiguredSite) -> None:
    done = run(tree, site, "doctor")
    assert "there is paper in it" in done.stdout, done.stderr
    assert "bug" not in done.stderr


def test_doctor_has_no_advice_of_another_transport(tree: Tree, site: ConfiguredSite, tmp_path: Path) -> None:
    """Though the step is called as one of SGAS's is."""
    (tmp_path / "broken").touch()
    done = run(tree, site, "doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"] if one["part"] == "post"}
    assert found["tray"]["why"] == "letters are laid there"
    assert found["certificate"]["found"] == "its seal is broken"
    assert not {"SGAS", "AMS"} & set(json.dumps(found).replace(".", " ").split())


WITH_RTE = next(job for job in JOBS if job.rtes)
RTE = WITH_RTE.rtes[0]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("stats", "-o", "jobcount"), str(len(JOBS))),
        (("job", "info", JOBS[0].job_id), JOBS[0].user),
        (("export",), JOBS[-1].job_id),
        (("complete", "jobs", JOBS[0].job_id[:9]), JOBS[0].job_id),
        (("report", "--format", "terminal", "--from", "2026-10", "--to", "2026-10"), JOBS[0].queue),
        (("stats", "-o", "jobids", "--filter-extra", "rte", RTE), WITH_RTE.job_id),
    ],
)
def test_local_questions_are_answered_of_a_new_source(
    tree: Tree, site: ConfiguredSite, words: tuple[str, ...], shown: str
) -> None:
    """The job store answers them: a source loads its jobs, and offers nothing else."""
    done = run(tree, site, *words)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_a_mistyped_key_of_a_new_one_is_told(tree: Tree, site: ConfiguredSite) -> None:
    site.config["targets"]["post"]["trey"] = "x"
    site.save()
    done = run(tree, site, "config", "check")
    assert done.returncode == 78
    assert "did you mean 'tray'?" in done.stderr


# What becomes of records is the toys' own `Receiver`, and nobody else's.


@pytest.fixture
def arex(site: ConfiguredSite) -> ConfiguredSite:
    """The same jobs from a source that tells everything."""
    site.config["source"] = {"type": "arex", "control_dir": str(site.control), "time_zone": "Europe/Oslo"}
    site.save()
    return site


def reads(site: ConfiguredSite, name: str, **keys: object) -> None:
    """Another format for the target."""
    site.config["targets"]["post"] |= {"format": name, **keys}
    site.save()


def on_paper(tmp_path: Path, head: str) -> list[str]:
    """All lines in the tray, but the heads of messages."""
    tray = tmp_path / "tray"
    return [line for line in tray.read_text().splitlines() if line != head] if tray.exists() else []


def republish(tree: Tree, site: ConfiguredSite, start: str, end: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(tree, site, "republish", "--from", start, "--to", end, "--yes", *words)


def within(first: int, last: int) -> list[str]:
    """Lines of the jobs that ended from one day of October to another."""
    return sorted(
        f"{job.job_id} {job.wall_s}" for job in JOBS if first <= datetime.fromtimestamp(job.end_time, UTC).day <= last
    )


def change_vo(site: ConfiguredSite) -> None:
    """All jobs count for another VO from now on."""
    site.config["records"]["vo_rules"] = [{"field": "queue", "pattern": "*", "vo": "elsewhere", "override": True}]
    site.save()


def test_a_window_is_rounded_out_only_for_a_receiver_of_whole_months(
    tree: Tree, arex: ConfiguredSite, tmp_path: Path
) -> None:
    done = republish(tree, arex, "2026-10-05", "2026-10-07")
    assert done.returncode == 0, done.stderr
    assert "Terse keeps the row it has" in done.stderr
    assert "rounded out" not in done.stderr
    assert sorted(on_paper(tmp_path, "terse")) == within(5, 7)
    reads(arex, "terse-replaced")
    done = republish(tree, arex, "2026-10-05", "2026-10-07", "--exact", "--dry-run")
    assert "keeps the row" not in done.stderr
    assert "purged" not in done.stderr  # no month's total is made of its records
    arex.forget()
    (tmp_path / "tray").unlink()
    reads(arex, "terse-added")
    done = republish(tree, arex, "2026-10-05", "2026-10-07")
    assert done.returncode == 0, done.stderr
    assert "rounded out to whole months" in done.stderr
    assert "SGAS" not in done.stderr
    assert sorted(on_paper(tmp_path, "terse")) == within(1, 31)


def test_totals_are_of_whole_months_whatever_the_receiver_says(
    tree: Tree, arex: ConfiguredSite, tmp_path: Path
) -> None:
    reads(arex, "tally")
    done = republish(tree, arex, "2026-10-05", "2026-10-07")
    assert done.returncode == 0, done.stderr
    assert "rounded out to whole months" in done.stderr
    lines = [line.rsplit(" ", 2) for line in on_paper(tmp_path, "tally")]
    assert sum(int(jobs) for _, jobs, _ in lines) == len(JOBS)
    assert sum(int(wall) for _, _, wall in lines) == sum(job.wall_s for job in JOBS)
    assert republish(tree, arex, "2026-10-05", "2026-10-07", "--exact").returncode == 64


def test_other_keys_hold_a_month_back_only_where_single_records_are_added_up(
    tree: Tree, arex: ConfiguredSite, tmp_path: Path
) -> None:
    reads(arex, "terse-replaced")
    assert run(tree, arex, "publish").returncode == 0
    change_vo(arex)
    done = republish(tree, arex, "2026-10", "2026-10")
    assert done.returncode == 0, done.stdout + done.stderr
    del arex.config["records"]["vo_rules"]
    arex.forget()
    reads(arex, "terse-added")
    assert run(tree, arex, "publish").returncode == 0
    change_vo(arex)
    sent = on_paper(tmp_path, "terse")
    done = republish(tree, arex, "2026-10", "2026-10")
    assert done.returncode == 65, done.stdout + done.stderr
    assert "the ticket that has the Added team delete what stayed" in done.stdout
    assert "APEL" not in done.stdout + done.stderr
    assert on_paper(tmp_path, "terse") == sent
    assert republish(tree, arex, "2026-10", "2026-10", "--accept-key-change").returncode == 0
    assert sorted(on_paper(tmp_path, "terse")) == sorted([*sent, *within(1, 31)])


@pytest.mark.parametrize(
    ("name", "told"), [("terse", "the receiver accepts no corrections"), ("terse-replaced", ""), ("tally", "")]
)
def test_what_changed_after_delivery_follows_the_receiver(
    tree: Tree, arex: ConfiguredSite, tmp_path: Path, name: str, told: str
) -> None:
    reads(arex, name)
    assert run(tree, arex, "publish").returncode == 0
    sent = len(on_paper(tmp_path, name))
    job = JOBS[30]
    with arex.arex() as writer:
        writer.connection.execute("UPDATE AAR SET UsedWalltime = 77777 WHERE JobID = ?", (job.job_id,))
    done = run(tree, arex, "publish", "--force")
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    lines = on_paper(tmp_path, name)
    before, again = lines[:sent], [line for line in lines[sent:] if line != name]
    if name == "tally":
        (line,) = again
        row, wall_s = line.rsplit(" ", 1)
        assert f"{row} {int(wall_s) - 77777 + job.wall_s}" in before, "the row of the job, with its new time"
    else:
        assert [line for line in again if line != "terse"] == ([] if told else [f"{job.job_id} 77777"])


def test_counts_go_to_whoever_takes_them_in_its_own_format(tree: Tree, arex: ConfiguredSite, tmp_path: Path) -> None:
    assert run(tree, arex, "publish").returncode == 0
    done = run(tree, arex, "sync", "--target", "post")
    assert done.returncode == 64
    assert "takes no job counts: post" in done.stderr
    portal = tmp_path / "portal.csv"
    portal.write_text("Month,Year,NumberOfJobs\n10,2026,1000\n")
    asked = ("sync", "--check", "--months", "all", "--portal", str(portal))
    done = run(tree, arex, *asked)
    assert (done.returncode, "ticket" in done.stdout) == (0, False), done.stdout
    reads(arex, "terse", sync=True)
    done = run(tree, arex, "config", "check")
    assert "Terse, which reads terse, takes no sync counts" in done.stderr
    arex.forget()
    (tmp_path / "tray").unlink()
    reads(arex, "terse-added")
    assert run(tree, arex, "publish").returncode == 0
    counts = [line.split() for line in on_paper(tmp_path, "terse") if line.startswith("2026-10 ")]
    assert sum(int(jobs) for _, _, jobs in counts) == len(JOBS)
    done = run(tree, arex, *asked)
    assert done.returncode == 65
    assert "ticket to the Added team" in done.stdout
    assert "APEL" not in done.stdout


def test_doctor_explain_and_report_speak_of_the_receiver_at_hand(tree: Tree, arex: ConfiguredSite) -> None:
    del arex.config["records"]["benchmark"]
    reads(arex, "terse-added")
    done = run(tree, arex, "doctor", "--json")
    found = [one for one in json.loads(done.stdout)["findings"] if one["part"] == "post"]
    told = " ".join(f"{one['found']} {one['advice']}" for one in found)
    assert "no sync counts are sent, against which Added checks" in told
    assert "paper is slow use something faster" in told
    assert "`records: benchmark` is not set" not in told
    assert not {"machine name"} & {one["name"] for one in found}
    assert not {"APEL", "SGAS"} & set(told.replace(",", " ").split())
    reads(arex, "tally")
    for name, expected in (("tally", {"VO"}), ("terse", {"GlobalJobId", "Wall"})):
        reads(arex, name)
        explained = json.loads(run(tree, arex, "explain", JOBS[3].job_id, "--json").stdout)["explanations"]
        assert {value["name"] for value in explained[0]["values"]} == expected
    assert run(tree, arex, "publish").returncode == 0
    done = run(tree, arex, "report", "--format", "terminal", "--from", "2026-10", "--to", "2026-10")
    assert done.returncode == 0, done.stderr
    assert "post" in done.stdout


def test_a_message_has_as_many_records_as_its_receiver_likes(tree: Tree, arex: ConfiguredSite) -> None:
    reads(arex, "terse-added")
    told = json.loads(run(tree, arex, "publish", "--json").stdout)["targets"]["post"]
    assert told["messages"] == -(-len(JOBS) // 7)


def test_records_of_another_table_would_count_beside_what_is_there(tree: Tree, arex: ConfiguredSite) -> None:
    """Totals after single records that the receiver adds up itself: held back until they are deleted there."""
    reads(arex, "terse-added")
    assert run(tree, arex, "publish").returncode == 0
    reads(arex, "tally")
    done = republish(tree, arex, "2026-10", "2026-10")
    assert done.returncode == 65, done.stdout + done.stderr
    assert "VO " in done.stdout
    done = republish(tree, arex, "2026-10", "2026-10", "--accept-key-change")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ticket to the Tally team" in done.stdout


def test_two_targets_at_one_place_are_told_by_the_transport(tree: Tree, arex: ConfiguredSite) -> None:
    arex.config["targets"]["second"] = dict(arex.config["targets"]["post"], format="tally")
    arex.save()
    done = run(tree, arex, "config", "check")
    assert done.returncode == 78
    assert "the same tray as terse of target post" in done.stderr


def test_a_target_for_once_needs_no_change_of_the_command(tree: Tree, arex: ConfiguredSite, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done = republish(tree, arex, "2026-10", "2026-10", "--paper-tray", str(other))
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in other.read_text().splitlines() if line != "terse") == within(1, 31)
    done = republish(tree, arex, "2026-10", "2026-10", "--paper-tray", str(other), "--topic", "x")
    assert done.returncode == 64
    assert "--topic goes with --ams-url" in done.stderr
