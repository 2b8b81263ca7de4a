"""Whatever fails, its reason stands once in what a command prints for people, on both streams together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.pipeline.test_publish_summaries import NOVEMBER, OCTOBER
from tests.support.gridengine_files import CLUSTER
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

SAME = 32  # so many characters that two lines share, beside names of files and commands, are a reason
_STAMP = re.compile(r"^\S+Z (?=[A-Z]+ )")
_NAMES = re.compile(r"`[^`]*`|/\S+|https?:\S+")
_NO_FAILURE = (
    *("ok ", "warning ", "         why:", "         do:"),  # of doctor, who asks each service the same
    *("  2026-10: VO ", "  2026-11: VO "),  # of a ticket, which lists rows
)
ALMOST_EXPIRED = "expires in 29 days"  # every certificate of these tests


def said_twice(run: Run) -> Iterator[tuple[str, str, str]]:
    """What two lines share, and the lines."""
    told = [
        line for line in (run.out + run.err).splitlines() if not line.startswith(_NO_FAILURE) and " INFO " not in line
    ]
    lines = [_NAMES.sub("~", _STAMP.sub("", line)) for line in told]
    for one, other in combinations((line for line in lines if ALMOST_EXPIRED not in line), 2):
        match = SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
        if match.size >= SAME and " " in one[match.a : match.a + match.size].strip():
            yield one[match.a : match.a + match.size], one, other


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """With A-REX and a batch system."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["source"] = [
        {"name": "ce", **made.config["source"]},
        {"type": "gridengine", "name": "cluster", "cluster": CLUSTER, "paths": [str(made.folder)], "arc_databases": []},
    ]
    (made.folder / "accounting").touch()
    made.fill(*generate(1, 5, OCTOBER, NOVEMBER))
    return made


def no_source(site: SiteUnderTest) -> None:
    site.config["source"][1]["paths"] = [str(site.folder / "not" / "there")]


def no_map(site: SiteUnderTest) -> None:
    site.config["source"][1]["user_map"] = str(site.folder / "gone.map")


def no_database(site: SiteUnderTest) -> None:
    site.database().unlink()


def torn_database(site: SiteUnderTest) -> None:
    site.database().write_bytes(b"no database at all, and long enough " * 300)


def torn_source(site: SiteUnderTest) -> None:
    site.save()
    assert site.publish().status == 0
    (site.state.parent / "sources" / "cluster.db").write_bytes(b"no database at all, and long enough " * 300)


def database_gone(site: SiteUnderTest) -> None:
    site.save()
    assert site.publish().status == 0
    site.database().rename(site.folder / "away")


def no_certificate(site: SiteUnderTest) -> None:
    site.config["credentials"]["certificate"] = str(site.folder / "gone.pem")


def in_the_shadow(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["shadow"] = True
    no_certificate(site)


def torn_state(site: SiteUnderTest) -> None:
    site.state.parent.mkdir(mode=0o700)
    site.state.write_bytes(b"no database at all, and long enough " * 300)


def wrong_key(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["formt"] = "car"


def no_yaml(site: SiteUnderTest) -> None:
    site.path.write_text("site: [\n")


def away(site: SiteUnderTest) -> None:
    for target in site.config["targets"].values():
        target |= {"auth_url": "https://127.0.0.1:9", "retry_budget_s": 1}


def rescaled(site: SiteUnderTest) -> None:
    """Months are held back."""
    site.config["targets"]["egi"]["format"] = "apel-summary-0.2"
    site.save()
    assert site.publish().status == 0
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 12.5, "override": True}


FAILURES: list[Callable[[SiteUnderTest], Any]] = [
    *(no_source, no_map, no_database, torn_database, torn_source, database_gone),
    *(no_certificate, in_the_shadow, torn_state, wrong_key, no_yaml, away, rescaled),
]
COMMANDS = (
    ("publish", "--force"),
    ("status",),
    ("doctor",),
    ("source", "list"),
    ("stats",),
    ("import", "gridengine"),
    ("statement", "2026-10"),
    ("plan",),
    ("sync",),
    ("config", "check"),
    ("republish", "--from", "2026-10", "--to", "2026-10", "--yes"),
)


@pytest.mark.parametrize("fail", FAILURES)
def test_a_failure_is_said_once(fail: Callable[[SiteUnderTest], Any], site: SiteUnderTest) -> None:
    fail(site)
    if fail is not no_yaml:
        site.save()
    found = {" ".join(words): list(said_twice(site.run(*words))) for words in COMMANDS}
    assert {command: twice for command, twice in found.items() if twice} == {}


@pytest.mark.parametrize(
    "command", [("publish", "--force"), ("republish", "--from", "2026-10", "--to", "2026-10", "--yes")]
)
def test_the_reason_is_logged_and_the_text_for_a_ticket_is_the_result(
    command: tuple[str, ...], site: SiteUnderTest
) -> None:
    rescaled(site)
    site.save()
    run = site.run(*command)
    assert run.status == 65
    assert "count twice" in run.err
    assert "Text for a ticket" not in run.err
    assert "Text for a ticket" in run.out
    assert "count twice" not in run.out
