"""`status --nagios`: one line, four exit statuses, thresholds. The simulated day is in tests/reporting/test_metrics.py."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.cli.nagios import status_nagios, thresholds
from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.publishing.status import TargetStatus
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WELL = TargetStatus(
    target="egi",
    last_success=NOW - timedelta(minutes=30),
    last_published_end=Epoch(0),
    delivered=10,
    pending=0,
    late=0,
    in_doubt=0,
    quarantined=0,
    held=0,
    oldest_unsent=None,
    overdue=NOW + timedelta(hours=2),
    began=True,
)
LATE = WELL._replace(last_success=NOW - timedelta(hours=30), overdue=NOW - timedelta(hours=20))
# Label, value, unit, and the thresholds. Spec: Monitoring Plugins Development Guidelines, section 2.6.
PERFORMANCE = re.compile(r"'[^'=]+'=(?:U|-?[0-9.]+)(?:s|%|B|c)?(?:;[0-9.:~@]*){0,4}")


def asked(
    *found: TargetStatus, trouble: str = "", warning: list[str] | None = None, critical: list[str] | None = None
) -> tuple[int, str]:
    line, state = status_nagios(found, trouble, NOW, thresholds(warning or [], critical or []))
    text, _, data = line.partition(" | ")
    assert "\n" not in line
    assert "|" not in text + data
    assert all(PERFORMANCE.fullmatch(one) for one in data.split(" ")), data
    return state, text


def test_all_is_well() -> None:
    said = "PUBLISHER OK - egi: last success 30 minutes ago; egi: 0 jobs pending"
    assert asked(WELL) == (0, said)


@pytest.mark.parametrize(
    ("found", "state", "said"),
    [
        (LATE, 1, "WARNING - egi: last success 30 hours ago"),
        (LATE._replace(last_success=NOW - timedelta(days=4)), 2, "CRITICAL - egi: last success 4 days ago"),
        (WELL._replace(quarantined=1), 1, "WARNING - egi: 1 job set aside"),
        (WELL._replace(held=2), 1, "WARNING - egi: 2 months held back"),
        (WELL._replace(last_success=None, overdue=None), 2, "CRITICAL - egi: has never succeeded"),
        (WELL._replace(last_success=None, overdue=None, began=False), 1, "WARNING - egi: has not run yet"),
        (WELL._replace(pending=50_000, late=9, in_doubt=500), 0, "OK - egi: last success"),
    ],
)
def test_what_is_worth_a_call_without_options(found: TargetStatus, state: int, said: str) -> None:
    told, line = asked(found)
    assert told == state
    assert line.startswith(f"PUBLISHER {said}")


def test_a_weekly_target_is_not_called_late_after_three_days() -> None:
    weekly = WELL._replace(last_success=NOW - timedelta(days=10), overdue=NOW + timedelta(days=4))
    assert asked(weekly)[0] == 0
    assert asked(weekly._replace(last_success=NOW - timedelta(days=15), overdue=NOW - timedelta(days=1)))[0] == 2


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("pending", WELL._replace(pending=11)),
        ("late", WELL._replace(late=11)),
        ("in_doubt", WELL._replace(in_doubt=11)),
        ("quarantined", WELL._replace(quarantined=11)),
        ("held", WELL._replace(held=11)),
        ("age", WELL._replace(last_success=NOW - timedelta(seconds=11))),
        ("oldest", WELL._replace(oldest_unsent=Epoch(int(NOW.timestamp()) - 11), pending=1)),
    ],
)
def test_thresholds_are_what_is_not_yet_too_much(name: str, found: TargetStatus) -> None:
    most = [f"{other}=99999" for other in ("quarantined", "held")]
    assert asked(found, warning=[*most, f"{name}=11"], critical=[f"{name}=12"])[0] == 0
    assert asked(found, warning=[*most, f"{name}=10"], critical=[f"{name}=11"])[0] == 1
    assert asked(found, warning=[*most, f"{name}=5"], critical=[f"{name}=10"])[0] == 2


def test_the_gravest_comes_first_and_unknown_hides_none_of_it() -> None:
    aside = WELL._replace(target="nordic", quarantined=3)
    unknown = WELL._replace(pending=None, late=None)
    assert asked(aside, LATE, critical=["age=1d"])[1] == (
        "PUBLISHER CRITICAL - egi: last success 30 hours ago; nordic: 3 jobs set aside"
    )
    assert asked(unknown, trouble="/a|b: no such file") == (3, "PUBLISHER UNKNOWN - /a/b: no such file")
    assert asked(unknown, aside, trouble="/a: no such file")[0] == 1


@pytest.mark.parametrize("text", ["age", "age=", "age=2 h", "age=-1", "late=3h", "late=1.5", "size=3", "=3", "late=٣"])
def test_a_threshold_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a threshold; write NAME=VALUE"):
        thresholds([text], [])


def test_a_line_is_not_too_long_for_nagios() -> None:
    many = [WELL._replace(target=f"target-{number}", quarantined=1) for number in range(60)]
    assert len(asked(*many)[1]) < 650


@pytest.mark.parametrize("is_shadow", [False, True])
def test_a_target_that_cannot_begin_is_critical_with_the_reason(
    is_shadow: bool, tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.fill(*generate(1, 3, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    site.config["targets"]["egi"]["shadow"] = is_shadow
    site.config["credentials"]["certificate"] = str(tmp_path / "gone.pem")
    site.config["targets"]["files"] = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "sign": False}
    site.save()
    for _ in range(2):
        run = site.run("status", "--nagios")
        assert run.status == 2
        assert run.out.startswith("PUBLISHER CRITICAL - egi: has never run: the certificate ")
        assert "gone.pem does not exist" in run.out
        assert "egi: has not run yet" not in run.out
        assert site.run("publish", "--force").status == 77
    site.config["credentials"]["certificate"] = str(site.host.certificate)
    site.save()
    assert site.run("publish", "--force").status == 0
    assert site.run("status", "--nagios").status == 0


def test_the_command(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """From before the first round to a configuration that is broken."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.fill(*generate(1, 3, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    site.config["targets"]["egi"]["every"] = "1h"
    first = site.run("status", "--nagios")
    assert (first.status, first.err) == (1, "")
    assert first.out.startswith("PUBLISHER WARNING - egi: has not run yet | ")
    assert "'egi_pending'=3 " in first.out
    site.publish()
    well = site.run("status", "--nagios", "--target", "egi")
    assert (well.status, well.err) == (0, "")
    assert re.search(r"'egi_age'=[0-9]s;10800;259200 'egi_pending'=0 ", well.out)
    assert site.run("status", "--nagios", "--warning", "late=x").status == 3
    assert site.run("status", "--nagios", "--target", "nobody").out.startswith("PUBLISHER UNKNOWN - there is no target")
    assert site.run("status", "--nagios", "--json").status == 64
    assert site.run("status", "--warning", "late=3").status == 64
    site.config["targets"]["egi"]["every"] = "soon"
    site.save()
    broken = site.run("status", "--nagios")
    assert (broken.status, broken.err) == (3, "")
    assert "'soon'" in broken.out
