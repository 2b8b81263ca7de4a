"""Whatever fails, its reason stands once in what a command prints for people, on both streams together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from publisher.cli import progress
from publisher.publishing.publish import OnceARound
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.publishing.test_publish_summaries import NOVEMBER, OCTOBER
from tests.support.daemons import RunningDaemon
from tests.support.gridengine_files import CLUSTER
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

SAME = 32  # so many characters that two lines share, beside names of files and commands, are a reason
_STAMP = re.compile(r"^\S+Z (?=[A-Z]+ )")
_NAMES = re.compile(r"`[^`]*`|/\S+|https?:\S+")
_OF_EACH = re.compile(r"INFO message \S+ attempt |[A-Z]+ target \S+ message \S+ (?:de|ready)|  (?:at most )?\d+ jobs ")
_CELLS = re.compile(r"(?!failure )\S.* {2,}\S")
_NO_FAILURE = (
    *("ok ", "warning ", "         why:", "         do:"),  # of doctor, who asks each service the same
    *("  2026-10: VO ", "  2026-11: VO "),  # of a ticket, which lists rows
    *("egi: car, jobs that ended ", "other: car, jobs that ended "),  # of two plans
    *("egi, 2026-", "other, 2026-"),  # examples of two plans
)


def said_twice(run: Run) -> Iterator[tuple[str, str, str]]:
    """What two lines share, and the lines."""
    told = [line for line in (run.out + run.err).splitlines() if not line.startswith(_NO_FAILURE)]
    lines = [_NAMES.sub("~", _STAMP.sub("", line)) for line in told]
    reasons = [line for line in lines if not (_OF_EACH.match(line) or _CELLS.match(line))]
    for one, other in combinations(reasons, 2):
        match = SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
        if match.size >= SAME and " " in one[match.a : match.a + match.size].strip():
            yield one[match.a : match.a + match.size], one, other


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """With A-REX and a batch system, and two targets."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["other"] = made.config["targets"]["egi"] | {"topic": "other"}
    fake_ams.allow(made.user, "other")
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
        target |= {"auth_url": "https://127.0.0.1:9", "attempts": 2}


def in_doubt(site: SiteUnderTest) -> None:
    """A gateway answers in the place of AMS."""
    del site.config["targets"]["other"]
    site.config["targets"]["egi"]["attempts"] = 1
    site.fake.faults.always(Fault.status(200, b'{"status": "the gateway is up and running"}'), service="ams")


def no_metrics(site: SiteUnderTest) -> None:
    """And a failure of its own for one of two targets."""
    site.config["metrics"] = {"textfile": str(site.folder / "not" / "there" / "publisher.prom")}
    site.config["targets"]["egi"] |= {"auth_url": "https://127.0.0.1:9", "attempts": 1}


def rescaled(site: SiteUnderTest) -> None:
    """Months are held back."""
    site.config["targets"] = {"egi": site.config["targets"]["egi"] | {"format": "apel-summary-0.2"}}
    site.save()
    assert site.publish().status == 0
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 12.5, "override": True}


FAILURES: list[Callable[[SiteUnderTest], Any]] = [
    *(no_source, no_map, no_database, torn_database, database_gone),
    *(no_certificate, in_the_shadow, torn_state, wrong_key, no_yaml, away, in_doubt, no_metrics, rescaled),
]
COMMANDS = (
    ("publish", "--force"),
    ("status",),
    ("doctor",),
    ("source", "list"),
    ("stats",),
    ("import", "gridengine"),
    ("statement", "2026-10", "--target", "egi"),
    ("plan",),
    ("sync",),
    ("config", "check"),
    ("republish", "--from", "2026-10", "--to", "2026-10", "--yes"),
)


@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.slow
def test_a_failure_is_said_once(fail: Callable[[SiteUnderTest], Any], site: SiteUnderTest) -> None:
    fail(site)
    if fail is not no_yaml:
        site.save()
    found = {" ".join(words): list(said_twice(site.run(*words))) for words in COMMANDS}
    assert {command: twice for command, twice in found.items() if twice} == {}


def test_the_reason_is_logged_and_the_text_for_a_ticket_is_the_result(site: SiteUnderTest) -> None:
    rescaled(site)
    site.save()
    run = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes")
    assert run.status == 65
    assert "count twice" in run.err
    assert "Text for a ticket" not in run.err
    assert "Text for a ticket" in run.out
    assert "count twice" not in run.out


def test_what_befell_several_targets_names_them(site: SiteUnderTest) -> None:
    no_certificate(site)
    site.save()
    run = site.run("publish", "--force")
    (line,) = [line for line in run.err.splitlines() if "gone.pem" in line]
    assert " ERROR targets egi, other: the certificate " in line
    run = site.run("publish", "--force", "--json")
    assert all("gone.pem" in found["reason"] for found in json.loads(run.out)["targets"].values())


@pytest.mark.slow
def test_why_an_attempt_failed_is_shown_in_detail_only_with_v(site: SiteUnderTest) -> None:
    away(site)
    site.save()
    run = site.run("publish", "--target", "egi")
    assert len(re.findall(r"INFO message \S+: attempt 1 of 2 failed, the next in [0-9.]+ s$", run.err, re.M)) == 1
    assert run.err.count("Connection refused") == 1
    detailed = site.run("-v", "publish", "--target", "egi").err
    assert re.search(r"DEBUG message \S+: attempt 1 of 2: .*Connection refused", detailed)


@pytest.mark.parametrize("fail", [no_source, no_database, torn_database, no_metrics])
def test_the_daemon_prints_once_a_round_what_concerns_all_targets(
    fail: Callable[[SiteUnderTest], Any], site: SiteUnderTest
) -> None:
    """Also the warning about their certificate."""
    fail(site)
    with RunningDaemon(site) as daemon:
        daemon.wait_for("target egi: round ended: ")
        daemon.wait_for("target other: round ended: ")
        assert daemon.end() == 0
    troubles = [line for line in daemon.text().splitlines() if " INFO " not in line]
    run = Run(status=0, out="", err="\n".join(troubles))
    assert list(said_twice(run)) == []
    assert run.err.count(": the certificate ") == 1


def test_what_targets_have_again_is_logged_again() -> None:
    shared = OnceARound()
    rounds = [("egi", "ab"), ("other", "a"), ("egi", "ab"), ("other", "a"), ("other", "a"), ("egi", ""), ("other", "a")]
    assert ["".join(shared.to_log(target, texts)) for target, texts in rounds] == ["ab", "", "ab", "", "a", "", "a"]


@pytest.mark.parametrize(
    ("status", "doubtful", "round_says", "times"),
    [
        (400, True, "the same bytes go again with the next round", 1),
        (400, False, "every record is refused", 1),
        (413, True, "is not set aside", 3),  # two more jobs are set aside
        (413, False, "set aside: too-large", 2),
    ],
)
def test_a_refusal_is_explained_once(
    status: int, doubtful: bool, round_says: str, times: int, site: SiteUnderTest
) -> None:
    """With its round, or with each job that is set aside; `-v` shows it with the message too."""
    del site.config["targets"]["other"]
    site.config["targets"]["egi"] |= {"attempts": 1, "batch_records": 1 if status == 413 else 5}
    site.save()
    if doubtful:
        site.fake.faults.push(Fault.status(200, b'{"status": "the gateway is up and running"}'))
        assert site.publish("--limit", "1").status == 75
    error = {"code": status, "message": "these bytes are not welcome", "status": "INVALID_ARGUMENT"}
    site.fake.faults.always(Fault.status(status, json.dumps({"error": error}).encode()))
    run = site.run("publish", "--force", "--limit", "2" if status == 413 else "5")
    assert (round_says in run.err, run.err.count("these bytes are not welcome")) == (True, times), run.err
    detailed = site.run("-v", "publish", "--force").err
    assert re.search(r"DEBUG message \S+: .*these bytes are not welcome", detailed)


def test_nothing_is_slow_about_a_service_that_was_never_reached(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    away(site)
    site.save()
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    run = site.publish()
    assert (run.status, "a slow receiver" in run.err) == (75, False)


def test_a_source_that_gave_nothing_is_no_news_beside_its_error(site: SiteUnderTest) -> None:
    no_source(site)
    site.save()
    run = site.run("publish", "--force")
    assert "source cluster: 0 jobs imported" not in run.err
    assert "ERROR source cluster: " in run.err
    site.config["source"][1]["paths"] = [str(site.folder)]
    site.save()
    assert "INFO source cluster: 0 jobs imported" in site.run("publish", "--force").err


def test_what_is_wrong_with_a_source_is_on_standard_error(site: SiteUnderTest) -> None:
    no_source(site)
    site.save()
    assert site.run("publish", "--force").status == 66
    for words in (("source", "list"), ("source", "list", "cluster"), ("source", "list", "--json"), ("status",)):
        run = site.run(*words)
        assert run.status == 66, words
        (line,) = run.err.splitlines()
        assert line.startswith("publisher: source cluster: has never been read in full: ")
        assert "--json" in words or "has never been read in full" not in run.out
    assert site.run("source", "list", "ce").status == 0
    no_database(site)
    assert site.run("source", "list", "ce").status == 66
    assert "source ce" not in site.run("source", "list", "cluster").err


REPUBLISH = ("republish", "--from", "2026-10", "--to", "2026-10")


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "--force", "--dry-run"),
        (*REPUBLISH, "--dry-run"),
        (*REPUBLISH, "--yes"),
        ("sync", "--target", "egi"),
    ],
)
@pytest.mark.slow
def test_what_is_sent_without_a_source_is_no_success(words: tuple[str, ...], site: SiteUnderTest) -> None:
    no_source(site)
    site.save()
    assert site.publish().status == 66
    run = site.run(*words)
    assert run.status == 66
    (line,) = [line for line in run.err.splitlines() if "not/there" in line]
    assert " ERROR source cluster: " in line
    found = json.loads(site.run(*words, "--json").out)
    assert found["exit"] == 66
    assert {one["outcome"] for one in found["targets"].values()} == {"error"}
    site.config["source"][1]["paths"] = [str(site.folder)]
    site.save()
    assert site.publish().status == 0
    assert site.run(*words).status == 0
