"""Alert rules, dashboard, manual and the unit for failures: they name what there is, and do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from package import pages
from publisher.model import errors
from publisher.model.errors import PublisherError
from publisher.reporting.metrics.exporter import METRICS, MetricKind
from tests.support.command_line import publisher_words
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf" / "publisher.rules.yml"
DASHBOARD = ROOT / "conf" / "publisher-dashboard.json"
UNIT = ROOT / "conf" / "publisher-failed@.service.example"
SERVICES = ("publisher.service", "publisher-run.service")
_NAME = re.compile(r"\bpublisher_\w+")
# What Prometheus makes of each metric.
SERIES = {
    f"{metric.name}{suffix}"
    for metric in METRICS
    for suffix in (("_sum", "_count") if metric.kind is MetricKind.SUMMARY else ("",))
}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions(value: Any) -> Iterator[str]:
    """Of a dashboard: what its panels and variables ask."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("expr", "query", "definition") and isinstance(below, str):
                yield below
            else:
                yield from expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from expressions(below)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool here")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_names_follow_the_conventions() -> None:
    """Spec: Prometheus, metric and label naming: base units, _total for what only grows."""
    for metric in METRICS:
        assert re.fullmatch(r"publisher_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert not re.search(r"_(days|hours|ms|kb|count|sum)$", metric.name), metric.name
        assert "timestamp" not in metric.name or metric.name.endswith("_timestamp_seconds")
        assert metric.help.endswith(".")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_rules_ask_for_metrics_that_there_are() -> None:
    asked = {name for rule in rules() for name in _NAME.findall(rule["expr"])}
    assert len(asked) > 10
    assert asked - SERIES == set()


def test_the_dashboard_asks_for_all_metrics_and_no_others() -> None:
    asked = {name for text in expressions(json.loads(DASHBOARD.read_text())) for name in _NAME.findall(text)}
    assert asked == SERIES


def test_panels_do_not_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def mapped(panel: Mapping[str, Any]) -> dict[str, str]:
    """Values that a panel shows as words; a range by its ends."""
    found: dict[str, str] = {}
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        options = mapping["options"]
        if mapping["type"] == "range":
            found[f"{options['from']} to {options['to']}"] = options["result"]["text"]
        else:
            found |= {value: each["text"] for value, each in options.items()}
    return found


def test_panels_have_names_of_their_own_and_say_words_for_numbers() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    words = {panel["title"]: mapped(panel) for panel in panels}
    statuses = {int(status) for status in words["Status of the last round"]}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PublisherError)]
    assert statuses == {0, errors.BUG, *(kind.exit_status for kind in kinds)}
    for title in ("Accounting data", "Ledger", "Silent sources"):
        assert words[title].keys() == {"0", "1"}, title
    for title in ("Late", "In doubt", "Set aside", "Held months", "Sync drift", "Missing databases"):
        assert words[title] == {"0": "none"}, title
    assert words["Overdue"] == {"None to 0": "in time"}
    assert words["Certificate"] == {"None to 0": "expired"}


def test_the_manual_explains_every_metric_and_no_other() -> None:
    assert set(pages.entries(pages.sections(pages.parse("publisher"))["METRICS"])) == {
        metric.name for metric in METRICS
    }


def test_every_rule_says_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert len(rule["annotations"]["summary"]) > 10, rule["alert"]
        assert len(rule["annotations"]["description"]) > 20, rule["alert"]


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_rules_raise_and_clear_the_alarms_that_they_should(tmp_path: Path) -> None:
    path = tmp_path / "rules.test.yml"
    text = Path(__file__).with_name("publisher.rules.test.yml").read_text()
    path.write_text(text.replace("[RULES]", f"[{RULES}]"))
    tried = set(re.findall(r"alertname: (\w+)", text))
    assert tried == {rule["alert"] for rule in rules()}
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_dashboards_questions(tmp_path: Path) -> None:
    """Each as a rule, with what Grafana fills in."""
    asked = [
        panel["expr"].replace("$instance", ".*").replace("$target", ".*").replace("${__to:date:YYYY-MM}", "2026-03")
        for one in json.loads(DASHBOARD.read_text())["panels"]
        for panel in one["targets"]
    ]
    path = tmp_path / "questions.yml"
    wrapped = [{"record": f"asked:{number}", "expr": expression} for number, expression in enumerate(asked)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": wrapped}]}))
    done = promtool("check", "rules", "--lint=none", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


# The unit for failures


def test_systemd_takes_the_unit_for_failures(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    path = tmp_path / "publisher-failed@publisher.service"
    path.write_text(UNIT.read_text())
    done = subprocess.run(
        [program, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if path.name in line]) == (0, []), done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_services_name_the_unit_for_failures(name: str) -> None:
    (named,) = re.findall(r"^#OnFailure=(.+)$", (ROOT / "conf" / name).read_text(), re.MULTILINE)
    assert named.replace("%N", "") == UNIT.name.removesuffix(".example")
    assert f"#     OnFailure={named}\n" in UNIT.read_text()


def test_the_mail_holds_what_is_known(tmp_path: Path) -> None:
    """The unit's own command line, with stand-ins for the programs that it starts."""
    (line,) = re.findall(r"^ExecStart=/bin/sh -c '(.+)'$", UNIT.read_text(), re.MULTILINE)
    words = publisher_words(line.partition("runuser")[2].partition(";")[0])
    assert words == ["status"]
    for name, says in (("systemctl", "journal of $*"), ("runuser", "status as $2"), ("mail", "to $3: $2")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{says}"\n{"cat" if name == "mail" else ""}\n')
        program.chmod(0o700)
    command = line.replace("%i", "publisher").replace("%H", "ce.example.org")
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert done.stdout.splitlines() == [
        "to root: publisher failed on ce.example.org",
        "journal of status --no-pager --full --lines=30 publisher.service",
        "status as publisher",
    ]
