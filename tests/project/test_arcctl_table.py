"""docs/arcctl.md: every option of `arcctl accounting` of ARC 6 and ARC 7 is there, and what stands beside it works."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

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
