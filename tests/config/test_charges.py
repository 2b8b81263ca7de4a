"""Rules of charges as the configuration has them: what they may say, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from publisher.config import Settings, example, load, show
from publisher.model.errors import ConfigError
from publisher.model.time import Window, fixed_period
from publisher.reporting.charges.rules import DEFAULT_PLACES, ChargeRule, Compatibility, OnError, Rounding, TimeUnit
from tests.config.config_plugins import contract

PLUGINS = contract()
TOP = """\
site: EXAMPLE-SITE
source: {type: arex, control_dir: /var/spool/arc/jobstatus}
targets:
  here: {type: spool, path: /out, format: car}
  there: {type: spool, path: /other, format: apel-job-0.3}
records:
"""


def read(text: str, folder: Path) -> Settings:
    path = folder / "publisher.yaml"
    path.write_text(TOP + text, encoding="utf-8")
    return load(path, {}, host_name="ce.example.org", registered=PLUGINS)


def rules(text: str, folder: Path) -> tuple[ChargeRule, ...]:
    charges = read(text, folder).records.charges
    return charges.rules if charges else ()


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(text, folder)
    return [problem.removeprefix(f"{folder}/publisher.yaml:") for problem in raised.value.problems]


def moment(text: str) -> Any:
    return int(fixed_period(text).start.timestamp())


def test_one_rule_with_its_defaults(tmp_path: Path) -> None:
    (rule,) = rules("  charges: {formula: NumCPUs * RunTime, unit: CPUh}\n", tmp_path)
    assert (rule.formula.text, rule.unit, rule.description) == ("NumCPUs * RunTime", "CPUh", "")
    assert (rule.queues, rule.groups, rule.valid) == (("*",), ("*",), Window())
    assert (rule.time_unit, rule.compat, rule.on_error) == (TimeUnit.HOURS, Compatibility.NONE, OnError.OMIT)
    assert (rule.places, rule.rounding) == (DEFAULT_PLACES, Rounding.HALF_UP)
    assert rule.place == "records.charges, line 7"


def test_everything_that_a_rule_may_say(tmp_path: Path) -> None:
    text = """\
  charges:
    - {formula: "1", unit: h}
    - formula: gres_gpu * RunTime % 24
      unit: GPU h
      description: the list of 2026
      queues: [gpu*]
      partitions: [accel]
      groups: [astro]
      valid_from: 2026-02
      valid_to: 2026-03
      time_unit: minutes
      rounding: {places: 2, mode: half-even}
      on_error: zero
      compat: heappe
"""
    _, rule = rules(text, tmp_path)
    assert (rule.unit, rule.description, rule.queues, rule.groups) == (
        "GPU h", "the list of 2026", ("gpu*", "accel"), ("astro",),
    )  # fmt: skip
    assert rule.valid == Window(start=moment("2026-02"), end=moment("2026-04"))
    assert (rule.time_unit, rule.compat, rule.on_error) == (TimeUnit.MINUTES, Compatibility.HEAPPE, OnError.ZERO)
    assert (rule.places, rule.rounding) == (2, Rounding.HALF_EVEN)
    assert rule.place == "records.charges[2], line 9"


@pytest.mark.parametrize(
    ("written", "end"),
    [
        ("2026-03", "2026-04-01T00:00:00"),
        ("2026-03-05", "2026-03-06T00:00:00"),
        ("2026-03-05T14:00", "2026-03-05T14:00:01"),
    ],
)
@pytest.mark.parametrize("key", ["valid_to", "validity_to"])
def test_the_end_of_validity_belongs_to_it(written: str, end: str, key: str, tmp_path: Path) -> None:
    (rule,) = rules(f'  charges: {{formula: "1", unit: h, {key}: "{written}"}}\n', tmp_path)
    assert rule.valid.end == moment(end)
    (again,) = rules("  charges: {formula: '1', unit: h, validity_from: 2026-03}\n", tmp_path)
    assert again.valid.start == moment("2026-03")


@pytest.mark.parametrize(
    ("written", "places"), [("0", 0), ("12", 12), ("none", None), ("{places: 3}", 3), ("{places: 3, mode: down}", 3)]
)
def test_rounding_in_short_and_in_full(written: str, places: int | None, tmp_path: Path) -> None:
    (rule,) = rules(f"  charges: {{formula: '1', unit: h, rounding: {written}}}\n", tmp_path)
    assert rule.places == places
    (original,) = rules("  charges: {formula: '1', unit: h, compat: heappe}\n", tmp_path)
    assert original.places is None


def test_a_wrong_formula_is_told_with_its_place_and_a_caret(tmp_path: Path) -> None:
    text = "  charges:\n    - {formula: '1', unit: h}\n    - unit: h\n      formula: NumNodes * RunTme + 1\n"
    (problem,) = problems(text, tmp_path)
    assert problem.split("\n") == [
        "10: records.charges[2].formula: unknown quantity 'RunTme'; did you mean RunTime? (position 12)",
        "    NumNodes * RunTme + 1",
        "               ^",
    ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{unit: h}", "7: records.charges.formula: missing; write what a job costs"),
        ("{formula: '1'}", "7: records.charges.unit: missing"),
        ("{formula: '1', unit: h, queue: gpu}", "7: records.charges.queue: unknown key; did you mean 'queues'?"),
        ("{formula: '1', unit: h, queues: []}", "7: records.charges.queues: is empty"),
        ("{formula: '1', unit: h, groups: cms}", "7: records.charges.groups: is not a list"),
        ("{formula: '1', unit: ' h '}", "7: records.charges.unit: ' h ' is not a unit"),
        ("{formula: '1', unit: é}", "is not a unit"),
        ("{formula: '1', unit: h, time_unit: hour}", "did you mean 'hours'?"),
        ("{formula: '1', unit: h, compat: heapp}", "did you mean 'heappe'?"),
        ("{formula: '1', unit: h, rounding: 13}", "13 is not between 0 and 12"),
        ("{formula: '1', unit: h, rounding: two}", "is not a whole number; write digits only, such as 500, none, or"),
        ("{formula: '1', unit: h, rounding: {mode: up}}", "records.charges.rounding.places: missing"),
        ("{formula: '1', unit: h, valid_from: soon}", "'soon' is not a time"),
        ("{formula: '1', unit: h, valid_from: 2026-04, valid_to: 2026-03}", "valid_from 2026-04 is after valid_to"),
        ("{formula: '1', unit: h, valid_from: 2026-04, validity_from: 2026-03}", "has both valid_from and validity_from"),
        ("cpu * RunTime", "7: records.charges: is not a mapping; write {formula: NumCPUs * RunTime, unit: CPUh}"),
        ("[cpu]", "7: records.charges[1]: is not a mapping"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_one_problem(rule: str, said: str, tmp_path: Path) -> None:
    (problem,) = problems(f"  charges: {rule}\n", tmp_path)
    assert said in problem


def test_all_wrong_rules_are_told_at_once(tmp_path: Path) -> None:
    text = "  charges:\n    - {formula: '1+', unit: h}\n    - {formula: '(', unit: h}\n    - {formula: x, unit: h}\n"
    assert len(problems(text, tmp_path)) == 3


def test_what_is_shown_reads_back_to_the_same_rules(tmp_path: Path) -> None:
    text = """\
  charges:
    - {formula: "1", unit: h, valid_to: 2026-03-05T14:00}
    - {formula: cpu%3, unit: h, queues: [a, b], groups: [c], valid_from: 2026-01, valid_to: 2026-12, rounding: none}
    - {formula: cpu, unit: h, rounding: {places: 1, mode: up}, compat: heappe, time_unit: days, on_error: zero}
"""
    settings = read(text, tmp_path)
    path = tmp_path / "shown.yaml"
    path.write_text(show(settings))
    again = load(path, {}, host_name="ce.example.org", registered=PLUGINS)
    assert again.records.charges == settings.records.charges
    assert show(again) == show(settings)


def test_only_formats_with_a_place_for_charges_know_of_them(tmp_path: Path) -> None:
    """A changed formula must not make months of summaries be summed up anew."""
    settings = read("  charges: {formula: cpu, unit: h}\n", tmp_path)
    policies = {target.name: target.policy for target in settings.targets}
    assert policies["here"].charging is not None
    assert policies["there"].charging is None
    assert "cpu" in repr(policies["here"])  # so that the digest of a policy tells its formulas


def test_a_target_may_have_rules_of_its_own_or_none(tmp_path: Path) -> None:
    path = tmp_path / "publisher.yaml"
    text = TOP.replace("format: car}", "format: car, charges: []}") + "  charges: {formula: cpu, unit: h}\n"
    path.write_text(text)
    here, _ = load(path, {}, host_name="ce.example.org", registered=PLUGINS).targets
    assert (here.records.charges, here.policy.charging) == (None, None)


def test_the_examples_of_the_sample_can_be_taken_over(tmp_path: Path) -> None:
    carbon = tmp_path / "carbon.txt"
    carbon.write_text("2026-03 31.5\n")
    shown = [line[6:] for line in example().splitlines() if line.startswith("  #     ")]
    first = shown.index("  charges:")
    text = "\n".join(shown[first:]).replace("/etc/publisher/carbon.txt", str(carbon))
    records = read(text, tmp_path).records
    assert records.charges is not None
    assert records.power is not None
    assert [rule.unit for rule in records.charges.rules] == ["CPUh", "CPUh", "credits"]
    assert len(records.power.rules) == len(records.allocations) == 2
