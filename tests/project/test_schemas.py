"""The published JSON Schemas hold: of the configuration for editors, of the output for programs that read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from package import pages
from package.schemas import configuration
from publisher.reporting.export.columns import COLUMNS
from tests.cli.test_cli import COMMANDS as LOOKING
from tests.cli.test_forms import delivered_in_part
from tests.config.test_documents import everything_switched_on
from tests.fake_ams.service import FakeAMS
from tests.project.schemas import CONFIGURATION, OUTPUT, lines_of, written
from tests.project.test_documents import ALIKE, DOCUMENTS, JSON_RUNS, OBJECTS, Results, results_in
from tests.support.command_line import commands
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

EXAMPLE = Path(__file__).parents[2] / "publisher" / "config" / "example.yaml"


@pytest.mark.parametrize("path", [CONFIGURATION, OUTPUT], ids=lambda path: path.name)
def test_a_schema_is_one(path: Path) -> None:
    Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


@cache
def validator(path: Path, name: str = "") -> Draft202012Validator:
    schema = json.loads(path.read_text(encoding="utf-8"))
    if name:
        schema = {**schema, "$ref": f"#/$defs/{name.replace(' ', '%20')}"}
    return Draft202012Validator(schema)


def as_json(text: str) -> Any:
    """As editors see YAML: dates are texts."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


def faults(config: object) -> list[str]:
    return [error.message for error in validator(CONFIGURATION).iter_errors(config)]


def test_the_schema_of_the_configuration_is_that_of_the_code() -> None:
    if CONFIGURATION.read_text(encoding="utf-8") != written(configuration()):
        pytest.fail(f"{CONFIGURATION.name} is of other keys; write it: python -m tests.project.schemas")


def test_the_sample_names_the_schema_for_editors() -> None:
    installed = "/usr/share/doc/accounting-publisher/conf/schemas/publisher.yaml.json"
    assert EXAMPLE.read_text().splitlines()[0] == f"# yaml-language-server: $schema={installed}"


def test_configurations_that_are_right() -> None:
    texts = [EXAMPLE.read_text(encoding="utf-8"), everything_switched_on()]
    for page in ("README.md", "docs/ten-minutes.md"):
        texts += re.findall(r"^```yaml\n(site:.*?)^```", DOCUMENTS[page], re.MULTILINE | re.DOTALL)
    assert len(texts) >= 4
    assert [faults(as_json(text)) for text in texts] == [[]] * len(texts)


EGI = {"type": "ams", "url": "https://ams.example.org", "topic": "t", "project": "p", "format": "car"}
RIGHT = {"site": "SITE", "source": {"type": "arex", "control_dir": "/c"}, "targets": {"egi": EGI}}


def of_target(**keys: object) -> dict[str, object]:
    return {**RIGHT, "targets": {"egi": {**EGI, **keys}}}


RIGHT_ONES = {
    "all": RIGHT,
    "lengths of time": of_target(every="24h", jitter=90, cron=None),
    "a list of sources": {
        **RIGHT,
        "source": [RIGHT["source"], {"type": "slurm", "cluster": "two"}],
        "keep": "13 months",
    },
    "benchmarks": {**RIGHT, "records": {"benchmark": [{"type": "HEPscore23", "value": 11.5, "from": "2026-03"}]}},
    "overrides": of_target(key_style="jura", identity={"mode": "withheld"}, vos=["atlas"]),
}
WRONG_ONES = {
    "a misspelt key": {**RIGHT, "tragets": {}},
    "no site": {key: value for key, value in RIGHT.items() if key != "site"},
    "an unknown type": of_target(type="smtp"),
    "a key of another type": {**RIGHT, "targets": {"egi": {**EGI, "type": "spool", "path": "/out"}}},
    "an unknown format": of_target(format="car-2"),
    "no length of time": of_target(every="soon"),
    "a text for a list": of_target(vos="atlas"),
    "a mapping for a number": of_target(batch_records={"of": 3}),
    "a word of another key": {**RIGHT, "records": {"identity": "hidden"}},
    "a misspelt rule": {**RIGHT, "records": {"vo_rules": [{"feild": "queue", "vo": "atlas"}]}},
}


@pytest.mark.parametrize("name", RIGHT_ONES)
def test_what_is_right_is_accepted(name: str) -> None:
    assert faults(RIGHT_ONES[name]) == []


@pytest.mark.parametrize("name", WRONG_ONES)
def test_what_is_wrong_is_found(name: str) -> None:
    assert faults(WRONG_ONES[name])


ARC_CONF = """\
[arex]
controldir=/var/spool/arc/jobstatus
[arex/jura]
[arex/jura/apel:egi]
targeturl=https://msg.argo.grnet.gr
topic=gLite-APEL
gocdb_name=SITE
[arex/jura/sgas:north]
targeturl=https://sgas.example.org:6143/sgas
"""


def test_what_is_written_from_an_arc_conf_is_right(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    path = tmp_path / "arc.conf"
    path.write_text(ARC_CONF)
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    run = site.run("config", "from-arc", str(path))
    assert {"egi", "north"} <= set(as_json(run.out)["targets"]), run.err
    assert faults(as_json(run.out)) == []
    assert faults(json.loads(json.dumps(site.config, default=str))) == []


# Output


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_in(tmp_path_factory.mktemp("schemas"))


@pytest.mark.parametrize("name", JSON_RUNS)
def test_what_a_command_prints_is_as_its_schema_says(name: str, results: Results) -> None:
    for printed in results[name]:
        whole = {"schema": 1, **printed}  # which `Run.json` has taken out
        assert [error.message for error in validator(OUTPUT, name).iter_errors(whole)] == []
        assert not validator(OUTPUT, name).is_valid({**printed, "schema": 2})


@pytest.mark.parametrize("name", [name for name in JSON_RUNS if name not in ALIKE])
def test_the_schema_has_the_fields_that_the_manual_explains(name: str) -> None:
    schema = json.loads(OUTPUT.read_text(encoding="utf-8"))["$defs"][name]
    explained = {path: " ".join(text.astext().split()) for path, text in pages.entries(OBJECTS[name]).items()}
    described = dict(descriptions(schema))
    named = {re.sub(r"\b[A-Z]+\b", "NAME", path): text for path, text in explained.items()}
    assert described == named


def descriptions(schema: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    found = [(path, schema["description"])] if "description" in schema else []
    steps = {f".{name}": each for name, each in schema.get("properties", {}).items()}
    if "additionalProperties" in schema:
        steps[".NAME"] = schema["additionalProperties"]
    if "items" in schema:
        steps["[]"] = schema["items"]
    return [*found, *(one for step, each in steps.items() for one in descriptions(each, f"{path}{step}".lstrip(".")))]


# Every form of every command


def test_every_command_that_prints_json_has_schemas() -> None:
    named = {path for path, command in commands().items() if "--as" in command.options}
    defined = json.loads(OUTPUT.read_text(encoding="utf-8"))["$defs"]
    assert named <= set(defined)
    assert {lines_of(name) for name in named - {"report"}} <= set(defined)


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, monkeypatch: pytest.MonkeyPatch) -> SiteUnderTest:
    monkeypatch.chdir(tmp_path)
    return delivered_in_part(SiteUnderTest(tmp_path, pki, fake_ams))


EXPORTS = {"export": ("export", "-b", "2026-10", "-e", "2026-10"), "export --columns": ("export", "--columns")}
ALL = {**LOOKING, **EXPORTS}


@pytest.mark.parametrize("name", ALL)
def test_lines_are_as_their_schema_says(name: str, site: SiteUnderTest) -> None:
    form = lines_of("publish" if name == "publish --dry-run" else name)
    lines = [json.loads(line) for line in site.run(*ALL[name], "--as", "json-lines").out.splitlines()]
    faulty = [error.message for line in lines for error in validator(OUTPUT, form).iter_errors(line)]
    assert faulty == []
    assert not validator(OUTPUT, form).is_valid({**(lines or [{}])[0], "schema": 2})


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_as_its_schema_says(name: str, site: SiteUnderTest) -> None:
    whole = json.loads(site.run(*EXPORTS[name], "--as", "json").out)
    assert [error.message for error in validator(OUTPUT, name).iter_errors(whole)] == []
    (rows,) = (value for value in whole.values() if isinstance(value, list))
    assert rows
    assert not validator(OUTPUT, name).is_valid({**whole, "schema": 2})


def test_the_schema_of_an_export_has_its_columns() -> None:
    row = json.loads(OUTPUT.read_text(encoding="utf-8"))["$defs"]["export"]["properties"]["jobs"]["items"]
    assert {name: each["description"].partition(" (")[0] for name, each in row["properties"].items()} == {
        each.name: each.meaning.partition(" (")[0] for each in COLUMNS
    }
