"""The sample configuration and publisher.yaml(5) name the keys that are read, all of them and no others."""

import re
from pathlib import Path

import pytest
from docutils import nodes

from package import pages
from publisher.config import Settings, example, load, show
from publisher.config.charges import AllocationKeys, ChargeKeys, PowerKeys, RoundingKeys
from publisher.config.records import BenchmarkKeys, IdentitySettings, OneBenchmark, RecordSettings, VoRuleKeys
from publisher.config.schema import keys_of
from publisher.config.settings import DEFAULT_STATE, CredentialSettings, MetricsSettings, SourceKeys, TopKeys
from publisher.config.targets import TargetKeys
from tests.config.config_plugins import FORMATS, contract

ROOT = Path(__file__).parents[2]
PLUGINS = contract()


def blocks() -> dict[str, set[str]]:
    """The keys that are read, by the heading that the manual gives the block."""
    known: dict[str, type] = {
        "top": TopKeys,
        "credentials": CredentialSettings,
        "metrics": MetricsSettings,
        "source": SourceKeys,
        "records": RecordSettings,
        "benchmark rule": BenchmarkKeys,
        "charge rule": ChargeKeys,
        "charge rounding": RoundingKeys,
        "power rule": PowerKeys,
        "allocation": AllocationKeys,
        "vo rule": VoRuleKeys,
        "identity": IdentitySettings,
        "targets": TargetKeys,
    }
    known |= {f"source {name}": options() for name, options in PLUGINS.sources.items()}
    known |= {f"targets {name}": options() for name, options in PLUGINS.transports.items()}
    known |= {f"importers {name}": options() for name, options in PLUGINS.importers.items()}
    return {heading: set(keys_of(shape)) for heading, shape in known.items()}


def manual() -> dict[str, set[str]]:
    """The keys that the manual explains, by heading."""
    the_file = pages.sections(pages.parse("publisher.yaml"))["THE FILE"]
    return {heading: set(pages.entries(section)) for heading, section in pages.sections(the_file).items()}


def everything_switched_on() -> str:
    """The sample with every `#key: value` made a setting."""
    return re.sub(r"^( *)#(?=[\w-])", r"\1", example(), flags=re.MULTILINE)


def load_text(text: str, folder: Path) -> Settings:
    path = folder / "publisher.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, {}, host_name="ce.example.org", registered=PLUGINS)


@pytest.mark.parametrize("heading", sorted(blocks().keys() | manual().keys()))
def test_the_manual_explains_the_keys_that_are_read(heading: str) -> None:
    assert manual().get(heading) == blocks().get(heading)


def test_the_manual_names_every_type_and_format() -> None:
    named = {word.astext() for word in pages.parse("publisher.yaml").findall(nodes.literal)}
    assert named >= {*PLUGINS.sources, *PLUGINS.transports, *PLUGINS.formats, *PLUGINS.importers}


def test_the_sample_is_a_configuration(tmp_path: Path) -> None:
    found = load_text(example(), tmp_path)
    assert [(target.name, target.type, target.format) for target in found.targets] == [
        ("egi", "ams", "apel-summary-0.4")
    ]


def test_the_sample_is_still_one_with_everything_switched_on(tmp_path: Path) -> None:
    text = everything_switched_on()
    assert text.count("\n") == example().count("\n")
    found = load_text(text, tmp_path)
    assert {target.type for target in found.targets} == set(PLUGINS.transports)
    assert [rule.vo for rule in found.targets[0].policy.vo_rules] == ["atlas", "theory"]


def test_what_is_shown_of_the_sample_reads_back(tmp_path: Path) -> None:
    for text in (example(), everything_switched_on()):
        shown = show(load_text(text, tmp_path))
        assert show(load_text(shown, tmp_path)) == shown


def test_what_the_sample_shows_as_defaults_are_the_defaults(tmp_path: Path) -> None:
    plain, full = load_text(example(), tmp_path), load_text(everything_switched_on(), tmp_path)
    assert (full.state, full.credentials) == (DEFAULT_STATE, plain.credentials)
    assert plain.records.statuses == full.records.statuses
    for key in ("infrastructure", "distrust_default", "default_vo", "vo_group", "identity", "key_style", "start_time"):
        assert getattr(plain.records, key) == getattr(full.records, key), key
    egi, egi_full = plain.targets[0], full.targets[0]
    for key in ("every_s", "start", "batch_records", "single_months", "shadow"):
        assert getattr(egi, key) == getattr(egi_full, key), key
    for key in keys_of(type(egi.options)).keys() - {"auth_url", "service_host", "proxy"}:
        assert getattr(egi.options, key) == getattr(egi_full.options, key), key
    for key in keys_of(type(plain.source.options)).keys() - {"databases", "time_zone"}:
        assert getattr(plain.source.options, key) == getattr(full.source.options, key), key


def test_the_sample_shows_every_key_and_no_others(tmp_path: Path) -> None:
    text = everything_switched_on()
    targets = {target.name for target in load_text(text, tmp_path).targets}
    text = text.partition("\n")[2]  # the first line is for editors
    shown = set(re.findall(r"(?:^|[{,-]) *(\w+):(?= |$)", text, re.MULTILINE))
    shown |= set(re.findall(r"^ *# {2,}(?:- )?(\w+):", text, re.MULTILINE))  # the blocks in the explanations
    read = set().union(*blocks().values()) | set(keys_of(OneBenchmark))
    assert read - shown == set()
    assert shown - read == targets | set(PLUGINS.importers)


def test_keys_of_a_transport_are_not_those_of_every_target() -> None:
    common = set(keys_of(TargetKeys)) | set(keys_of(RecordSettings))
    for name, options in PLUGINS.transports.items():
        assert not common & set(keys_of(options())), name
    for name, options in PLUGINS.sources.items():
        assert not set(keys_of(SourceKeys)) & set(keys_of(options())), name


def test_the_contracts_formats_are_known() -> None:
    assert set(FORMATS) <= set(PLUGINS.formats)


@pytest.mark.parametrize("document", ["README.md", "docs/operations.md"])
def test_pictures_are_there_and_small(document: str) -> None:
    path = ROOT / document
    pictures = [path.parent / name for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8"))]
    assert pictures
    for picture in pictures:
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG\r\n")
        assert len(content) < 80_000
