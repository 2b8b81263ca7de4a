"""docs/arcctl.md: every option of `arcctl accounting` of ARC 6 and ARC 7 is there, and what stands beside it works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.arc import package_of
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.command_line import commands
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

TEXT = (Path(__file__).parents[2] / "docs" / "arcctl.md").read_text()
ROWS = [re.findall(r"(?<=\| )(.*?)(?= \|)", line) for line in TEXT.splitlines() if re.match(r"\| [`c]", line)]
JOBS = list(generate(1, 40, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))

# As their parsers have them: arc.control.Accounting of 6.21 and of 7.0.
_STATS = "-b --end-from -e --end-till -s --start-from --filter-vo --filter-user --filter-state --filter-queue"
_OUTPUTS = "brief jobcount walltime cputime data-staged-in data-staged-out wlcgvos users jobids json"
_REPUBLISH = "-b --end-from -e --end-till -t --target-name -a --apel-url -s --sgas-url --apel-topic --apel-messages"
ARC_6 = {
    "stats": f"{_STATS} --filter-endpoint --filter-extra -o --output {_OUTPUTS}",
    "job info": "-o --output all description resources rtes authtokens json",
    "job events": "",
    "job transfers": "",
    "republish": f"{_REPUBLISH} --apel-project --gocdb-name --localid-prefix --vofilter --urbatchsize",
    "database optimize": "",
}
ARC_7 = {
    "": "--database-file",
    "stats": "-a --show-active --filter-fqan fqans",
    "republish": "--dry-run",
    "database optimize": "-b --end-from -e --end-till",
    "database backup": "--location",
    "database migrate": "-f --from-db -b --end-from -e --end-till",
    "database cleanup": "-b --end-from -e --end-till --yes --vacuum",
    "database rotate": "--date --rotate-to --yes --vacuum",
}


@pytest.mark.parametrize(("action", "options"), [*ARC_6.items(), *ARC_7.items()])
def test_every_option_stands_in_the_table(action: str, options: str) -> None:
    rows = [row for row in ROWS if row[0].startswith(f"`{action}")]
    assert rows
    assert set(options.split()) <= {word for row in rows for word in re.findall(r"[\w-]+", row[0])}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> SiteUnderTest:
    """A CE that went from ARC 6 to ARC 7."""
    folder = tmp_path_factory.mktemp("arcctl")
    pki = PKI.create(folder / "pki")
    with FakeAMS(pki) as fake:
        made = SiteUnderTest(folder, pki, fake)
        made.fill(*JOBS[:20], schema=1)
        made.fill(*JOBS[20:])
        assert made.publish().status == 0
    return made


@pytest.mark.parametrize("line", sorted({line for row in ROWS for line in re.findall(r"`publisher ([^`]+)`", row[2])}))
def test_what_stands_beside_it_runs(both: SiteUnderTest, line: str, tmp_path: Path) -> None:
    atlas = next(job for job in JOBS if job.fqans)
    known = {"JOB": JOBS[0].job_id, "FQAN": atlas.fqans[0], "DN": atlas.user, "FILE": "accounting.db"}
    words = [known.get(word, word) for word in shlex.split(line)]
    if words[:2] == ["state", "backup"]:
        words[-1] = str(tmp_path / "copy.db")
    run = both.run(*words)
    assert run.status == 0, run.err


def test_other_options_that_the_table_names_are_there() -> None:
    named = {word for row in ROWS for word in re.findall(r"--[a-z-]+", row[2])}
    known = set().union(*(command.options for command in commands().values()))
    assert named <= known


# Beside ARC's own, where ARC_SRC names a checkout with its Accounting.py.

ARCCTL = """
import argparse, logging, os, sys, types
package, control, *words = sys.argv[1:]
sys.path.insert(0, package)
for name in ("arc.paths", "arc.control.OSService"):  # of the build, and of systemd
    sys.modules[name] = types.ModuleType(name)
for name in ("VERSION", "RUN_DIR", "CONF", "DATA_DIR", "LOCATION", "LIB_DIR", "LIBEXEC_DIR", "DOC_DIR"):
    setattr(sys.modules["arc.paths"], f"ARC_{name}", "/nonexistent")
sys.modules["arc.paths"].os = os
sys.modules["arc.control"] = types.ModuleType("arc.control")  # without the commands that it imports
sys.modules["arc.control"].__path__ = [os.path.join(package, "arc", "control")]
sys.modules["arc.control.OSService"].OSServiceManagement = object
logging.disable(logging.CRITICAL)
from arc.control.Accounting import AccountingControl
class Configuration:
    def get_value(self, name, blocks=None, force_list=False):
        return {"controldir": control}.get(name, [] if force_list else None)
    def get_subblocks(self, name):
        return []
top = argparse.ArgumentParser(conflict_handler="resolve")
AccountingControl.register_parser(top.add_subparsers())
AccountingControl(Configuration()).control(top.parse_args(["accounting", *words]))
"""
BESIDE = [
    *(f"-o {output}" for output in ("jobcount", "walltime", "cputime", "wlcgvos", "users", "jobids")),
    *(f"-o jobcount --filter-{what}" for what in ("vo atlas", "queue grid", "state failed", "extra rte ENV/PROXY")),
    "-o walltime --filter-vo cms",
    "-o cputime --filter-endpoint org.nordugrid.arcrest",
]


@pytest.mark.parametrize("words", BESIDE)
def test_what_arcctl_prints_is_what_ours_prints(words: str, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    source = os.environ.get("ARC_SRC")
    if not source:
        pytest.skip("ARC_SRC names no checkout of ARC")
    package = package_of(Path(source))
    has_fqans = "filter-fqan" in (package / "arc" / "control" / "Accounting.py").read_text()  # ARC 7
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.fill(
        *generate(1, 300, datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)),
        schema=2 if has_fqans else 1,
    )
    period = ["-b", "2026-10-01", "-e", "2026-11-01", *(["--show-active"] if has_fqans else [])]
    theirs = subprocess.run(
        [sys.executable, "-c", ARCCTL, str(package), str(site.control), "stats", *period, *shlex.split(words)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TZ": "UTC"},
    )
    ours = site.run("stats", "-b", "2026-10", "-e", "2026-10", *shlex.split(words))
    lines = [line.replace("%27", "'") for line in theirs.stdout.splitlines() if line]
    assert lines
    assert sorted(lines) == sorted(ours.out.splitlines())
