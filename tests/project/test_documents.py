"""The documents, publisher(1), --help and code agree: each test names what one of them has and another lacks."""

from __future__ import annotations

import ast
import gzip
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from docutils import nodes

import publisher
from package import pages
from publisher.cli import parser as command_line
from publisher.cli.commands import COMMANDS as REGISTERED
from publisher.config import load
from publisher.config.settings import DEFAULT_STATE, CredentialSettings
from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, SYNC_FORMATS
from publisher.ledger.answers import Hold, MessageState
from publisher.model import errors
from publisher.model.errors import ConfigError, PublisherError
from publisher.sources import IMPORTERS, SOURCES
from publisher.transports import TRANSPORTS
from tests.arex_databases import SampleJob, Writer, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, sacct_text
from tests.support.command_line import commands, plain_runs, publisher_words
from tests.support.gridengine_files import Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.sonar_files import envelope, record

ROOT = Path(__file__).parents[2]
MANUAL = pages.sections(pages.whole())
OBJECTS = pages.sections(MANUAL["JSON OUTPUT"])
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
}
README = DOCUMENTS["README.md"]
CONTRIBUTING = DOCUMENTS["CONTRIBUTING.md"]
ARCHITECTURE = DOCUMENTS["docs/architecture.md"]
WRONG = DOCUMENTS["docs/when-something-is-wrong.md"]
# Read before the fixtures make real paths unusable.
DEFAULT_CONFIG = command_line.DEFAULT_CONFIG
STATE = DEFAULT_STATE
COMMANDS = commands()

EXIT_STATUSES = {
    0,
    errors.BUG,
    128 + signal.SIGINT,
    *(
        kind.exit_status
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PublisherError)
    ),
}

Results = dict[str, list[Any]]

# How to run each command that has --json so that every list in its object holds something. A new command needs a line; its key
# is a heading of JSON OUTPUT in publisher(1).
JSON_RUNS: dict[str, tuple[str, ...]] = {
    "publish": ("publish", "--json"),
    # Before the others: a republish sends nothing while a database is missing.
    "source list": ("source", "list", "--json"),
    "source retry": ("source", "retry", "--json"),
    "source prune": ("source", "prune", "--json"),
    "source retire": ("source", "retire", "--json", "GONE"),
    "republish": ("republish", "--json", "--yes", "--from", "2026-10", "--to", "2026-10"),
    "sync": ("sync", "--json", "--target", "egi", "--months", "all"),
    "sync --check": ("sync", "--check", "--json", "--months", "all"),
    "sync --deleted": ("sync", "--deleted", "2026-10", "--json"),
    "status": ("status", "--json"),
    "trace": ("trace", "--json", "JOB"),
    "explain": ("explain", "--json", "JOB"),
    "stats": ("stats", "--json", "--by", "vo"),
    "stats -o json": ("stats", "-o", "json"),
    "report": ("report", "--from", "2026-10", "--to", "2026-10", "--as", "json"),
    "job info": ("job", "info", "--json", "JOB"),
    "job events": ("job", "events", "JOB", "--json"),
    "job transfers": ("job", "transfers", "JOB", "--json"),
    "doctor": ("doctor", "--json"),
    "quarantine list": ("quarantine", "list", "--json"),
    "quarantine release": ("quarantine", "release", "1", "--json"),
    "quarantine drop": ("quarantine", "drop", "--json", "1"),
    "receiver list": ("receiver", "list", "--json"),
    "charge": ("charge", "--json", "--jobs", "--from", "2026-10", "--to", "2026-10"),
    "charge --runs": ("charge", "--runs", "--json"),
    "import gridengine": ("import", "gridengine", "--json", "ACCOUNTING", "/nonexistent"),
    "import htcondor": ("import", "htcondor", "--json", "HISTORY", "/nonexistent"),
    "import slurm": ("import", "slurm", "--json", "SACCT", "/nonexistent"),
    "import sonar": ("import", "sonar", "--json", "ENVELOPES", "/nonexistent"),
    "receiver delivered": ("receiver", "delivered", "egi", "2026-10", "--json"),
    "receiver deleted": ("receiver", "deleted", "egi", "2026-10", "--json"),
    "state copy": ("state", "copy", "--json", "--to", "COPY"),
    "state backup": ("state", "backup", "--json", "COPY"),
}
JSON_RUNS |= {path: (*words, "--json") for path, words in plain_runs("JOB").items() if path not in JSON_RUNS}
# Objects with the fields of another one; the manual says so in their place.
ALIKE = {
    "state backup": "state copy",
    "plan": "publish",
    "republish": "publish",
    "sync": "publish",
    "quarantine drop": "quarantine release",
    "source retire": "source list",
}
# Keys that stand for whatever the site calls them.
OPEN_KEYS = {
    "tables": "NAME",
    "targets": "NAME",
    "sources": "NAME",
    "benchmarks": "TYPE",
    "work_hours": "TYPE",
    "warnings": "RULE",
    "odd_jobs": "RULE",
    "mends": "RULE",
    "others_first": "NAME",
    "vos": "VO",
    "projects": "PROJECT",
    "left_out": "REASON",
}


def section(text: str, heading: str) -> str:
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##? |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading!r}"
    return found[1]


def prose(text: str) -> str:
    """Without the blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def shell_lines() -> list[str]:
    """Every line of the documents' shell blocks, and every piece of code in their text that runs publisher with arguments."""
    found: list[str] = []
    for text in DOCUMENTS.values():
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found += block.splitlines()
        found += re.findall(r"`(publisher [^`\n]+)`", prose(text))
    return found


def manual_examples() -> list[str]:
    blocks = [block.astext() for block in MANUAL["EXAMPLES"].findall(nodes.literal_block)]
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", sorted(pages.MAN.glob("*.rst")), ids=lambda page: page.name)
def test_a_line_of_a_manual_page_has_100_characters_at_most(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > 100] == []


def first_column(section: str) -> list[str]:
    """Of a table: what stands in its first cells, without the heading."""
    rows = re.findall(r"^\| *([^|]*?) *\|", section, re.MULTILINE)
    return [row.strip("`") for row in rows[2:]]


# Commands and options


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_the_manual_explains_the_options_and_arguments_of_a_command(path: str) -> None:
    found = pages.entries(pages.sections(MANUAL["COMMANDS"])[path])
    names = {name for name in found if not name.startswith("-")}
    options = {word for name in found for word in re.findall(r"^--?[a-z-]+", name)}
    assert options == COMMANDS[path].options
    assert names == COMMANDS[path].arguments
    assert all(text.astext() for text in found.values()), "each with a text"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n``--force``\n", "\n``--foce``\n"),
        ("\ntrace\n-----\n", "\ntraces\n------\n"),
    ],
)
def test_prose_about_what_is_not_there_is_refused(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prose = (pages.MAN / "publisher.rst").read_text(encoding="utf-8")
    assert old in prose
    (tmp_path / "publisher.rst").write_text(prose.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(pages, "MAN", tmp_path)
    with pytest.raises(ValueError, match=r"foce|traces"):
        pages.whole()


@pytest.mark.parametrize(
    "line", [line for line in shell_lines() + manual_examples() if publisher_words(line) is not None]
)
def test_what_documents_show_is_a_command_line(line: str) -> None:
    words = publisher_words(line)
    assert words is not None
    if words[0].startswith("-") or words[0] in ("COMMAND", "import"):
        return
    assert command_line.parser().parse_args(words).command in {one.name for one in REGISTERED}


def test_documents_show_most_commands() -> None:
    """The test above must not pass because nothing was found."""
    shown = {words[0] for line in shell_lines() + manual_examples() if (words := publisher_words(line))}
    assert shown >= {"publish", "republish", "sync", "status", "trace", "quarantine", "config"}


def test_make_has_what_documents_tell_to_make() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named: set[str] = set()
    for text in DOCUMENTS.values():
        for both in re.findall(r"^make ([a-z0-9-]+)|`make ([a-z0-9-]+)", text, re.MULTILINE):
            named |= {*both}
    assert {"demo", "test", "lint"} <= named - {""} <= targets


# Exit statuses


def test_the_manual_explains_every_exit_status_and_no_other() -> None:
    assert {int(head) for head in pages.entries(MANUAL["EXIT STATUS"])} == EXIT_STATUSES


def test_documents_explain_every_exit_status_and_no_other() -> None:
    assert {int(cell) for cell in first_column(section(WRONG, "Exit statuses"))} == EXIT_STATUSES


@pytest.mark.parametrize("text", [WRONG, MANUAL["EXIT STATUS"].astext()], ids=["docs", "publisher(1)"])
def test_documents_tell_the_order_of_gravity(text: str) -> None:
    order = re.search(r"in this order: ([\d, ]+)\.", text)
    assert order
    assert tuple(int(status) for status in order[1].split(",")) == errors.GRAVITY


# JSON


def leaves(value: Any, above: str = "", key: str = "") -> Iterator[tuple[str, Any]]:
    """An object's values by the names of its fields, `targets.NAME.records` or `rows[].status`."""
    if isinstance(value, dict):
        for name, below in value.items():
            step = OPEN_KEYS.get(key, str(name))
            yield from leaves(below, f"{above}.{step}" if above else step, str(name))
    elif isinstance(value, list):
        for below in value:
            yield from leaves(below, f"{above}[]", "")
    else:
        yield above, value


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_in(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def printed(results: Results) -> dict[str, set[str]]:
    """The fields that each command really prints."""
    return {name: {path for one in found for path, _ in leaves(one)} for name, found in results.items()}


def results_in(folder: Path) -> Results:
    """What each command prints, at a site where a job was delivered, others set aside, a month held back."""
    pki = PKI.create(folder / "pki")
    found: Results = {}
    never = replace(Entry(), started=0, ended=0, failed=1, cpu=0.0, utime=0.0, stime=0.0)
    accounting = write(folder / "accounting", [colon(never), b"torn\n"])
    told = [envelope([record(start_time=None)]), envelope([record()], cluster="other"), b"torn\n"]
    envelopes = write(folder / "0+job-slurm.json", told)
    waiting = sacct_text.job(State="PENDING", End="Unknown")
    sacct = write(folder / "sacct", [sacct_text.text([waiting, sacct_text.job(End="torn")])])
    routed, torn = condor_history.ad(1, RoutedToJobId="2.0"), condor_history.ad(2, GlobalJobId=None)
    history = write(folder / "history", [condor_history.rolling([routed, torn])])
    with FakeAMS(pki) as fake:
        site = SiteUnderTest(folder, pki, fake)
        site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
        site.config["importers"] = {
            "gridengine": {"cluster": "sge.example.org"},
            "htcondor": {"cluster": condor_history.CLUSTER},
            "slurm": {"cluster": sacct_text.CLUSTER},
            "sonar": {"cluster": "fox.example.org"},
        }
        site.config["records"]["charges"] = [
            {"formula": "1/(cpu-cpu)", "unit": "h", "on_error": "zero"} for _ in range(2)
        ]
        jobs = list(generate(1, 3, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
        with site.arex() as arex:
            arex.write_all(jobs)
            arex.connection.execute(
                "UPDATE AAR SET UsedWalltime = -1 WHERE JobID IN (?, ?)", (jobs[1].job_id, jobs[2].job_id)
            )
        site.arex(1).close()
        retired = folder / "ce2.db"
        Writer(retired).close()
        site.config["source"]["databases"] = [str(retired)]
        site.run("publish", "--target", "egi")
        site.database(1).unlink()
        with Writer(retired) as arex:
            arex.write_all(generate(2, 2, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
        del site.config["source"]["databases"]
        site.save()
        site.run("source", "retire", "--force", str(retired))
        for name, words in JSON_RUNS.items():
            if name in ("receiver delivered", "receiver deleted"):
                continue
            # The job that was delivered and the ones that were not: together their traces hold every list.
            files = {
                "ACCOUNTING": str(accounting),
                "ENVELOPES": str(envelopes),
                "HISTORY": str(history),
                "SACCT": str(sacct),
                "GONE": str(site.database(1)),
            }
            copies = folder / "copies"
            stands_for = [
                {"JOB": job.job_id, "COPY": str(copies / f"{name}{at}"), **files} for at, job in enumerate(jobs[:2])
            ]
            runs = [site.run(*(known.get(word, word) for word in words)) for known in stands_for]
            found[name] = [run.json for run in runs]
        # Another spelling of keys: the month is held back, because its rows would stay behind.
        site.config["records"] |= {"benchmark": {"type": "HEPSPEC", "value": 10}, "key_style": "jura"}
        site.config["records"]["charges"] = [{"formula": "cpu", "unit": "h"}]
        site.save()
        for name in ("plan", "status", "statement"):
            found[name].append(site.run(*JSON_RUNS[name]).json)
        found["republish"].append(site.run(*JSON_RUNS["republish"]).json)
        found["charge"].append(site.run(*JSON_RUNS["charge"]).json)
        found["source retry"].append(_retried(site, accounting))
        site.config["keep"] = "13 months"
        site.save()
        found["source prune"].append(site.run("source", "prune", "--json").json)
    with FakeAMS(pki) as fake:
        _lose_the_ledger(SiteUnderTest(folder / "other", pki, fake), jobs, found)
    return found


def _lose_the_ledger(site: SiteUnderTest, jobs: list[SampleJob], found: Results) -> None:
    """A month waits, is not what it was, and is deleted at the receiver; then answers are lost."""
    site.fill(*jobs[:2])
    assert site.publish().status == 0
    for file in site.state.parent.glob(f"{site.state.name}*"):
        if file.suffix != ".generation":
            file.unlink()
    site.config["site"] = "OTHER-SITE"
    site.save()
    held = site.publish()
    assert held.status == 65, held.err
    found["publish"].append(held.json)
    for name in ("receiver delivered", "receiver deleted"):
        found[name] = [site.run(*JSON_RUNS[name]).json]
    site.config["targets"]["egi"]["attempts"] = 1
    site.save()
    for name in ("receiver deleted", "receiver delivered"):
        site.fake.faults.push(Fault.status(200, b'{"status": "the answer of a gateway"}'))
        assert site.publish().status == 75
        message = site.run("trace", jobs[0].job_id, "--json").json["deliveries"][-1]["message_id"]
        found[name].append(site.run(*JSON_RUNS[name][:3], message, "--json").json)


def _retried(site: SiteUnderTest, accounting: Path) -> object:
    """With a file that is gone, and one that is damaged."""
    del site.config["importers"]
    gone = write(site.folder / "accounting.gone", [colon(Entry()), b"gone\n"])
    accounting = write(site.folder / "accounting.two", [accounting.read_bytes()])
    entry = {"type": "gridengine", "name": "two", "cluster": "two.example.org", "paths": [str(accounting), str(gone)]}
    site.config["source"] = [site.config["source"], {**entry, "arc_databases": []}]
    site.save()
    site.publish()
    gone.unlink()
    accounting.write_bytes(gzip.compress(accounting.read_bytes())[:-9])
    return site.run("source", "retry", "--json").json


def test_the_manual_has_a_section_for_every_json_object() -> None:
    assert set(OBJECTS) == set(JSON_RUNS)


@pytest.mark.parametrize("name", sorted(JSON_RUNS))
def test_the_manual_explains_every_json_field(name: str, printed: dict[str, set[str]]) -> None:
    like = ALIKE.get(name, name)
    explained = pages.entries(OBJECTS[like])
    assert like == name or re.match(rf"As of {like}\b", OBJECTS[name][1].astext())
    assert len(printed[name]) >= min(2, len(explained)), "JSON_RUNS needs a run that prints more"
    assert printed[name] - set(explained) == set()


def json_keys(node: ast.AST) -> Sequence[ast.expr | None]:
    """The keys of an object, and the names that become some."""
    if isinstance(node, ast.Dict):
        return node.keys
    named = isinstance(node, ast.Call) and ast.unparse(node.func) == "attributes"
    return node.args if named and isinstance(node, ast.Call) else []


def test_the_manual_explains_the_json_fields_of_rare_cases_and_none_that_is_never_printed() -> None:
    """Which the test above does not meet."""
    trees = [(path.stem, ast.parse(path.read_text())) for path in sorted((ROOT / "publisher" / "cli").rglob("*.py"))]
    literals = {node.value for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    parts = [
        part
        for module, tree in trees
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and ("json" in function.name or module == "charge")
        for node in ast.walk(function)
        for part in json_keys(node)
    ]
    keys = {key.value for key in parts if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    explained = {
        step.rstrip("[]") for text in OBJECTS.values() for head in pages.entries(text) for step in head.split(".")
    } - set(OPEN_KEYS.values())
    assert keys <= explained <= literals


def test_the_manual_explains_the_words_in_json() -> None:
    explained = {word.astext() for word in MANUAL["JSON OUTPUT"].findall(nodes.literal)}
    for word in (*Hold, *MessageState, "ok", "nothing", "deferred", "rejected", "error"):
        assert str(word) in explained


# Paths and dependencies


def test_the_manual_names_the_paths_of_the_code() -> None:
    defaults = CredentialSettings()
    paths = (DEFAULT_CONFIG, STATE, defaults.certificate, defaults.key, defaults.ca)
    assert {str(path) for path in paths} <= pages.entries(MANUAL["FILES"]).keys()


@pytest.mark.parametrize("name", ["README.md", "docs/ten-minutes.md"])
def test_the_configuration_in_a_document_is_one(name: str, tmp_path: Path) -> None:
    block = re.search(r"^```yaml\n(.*?)^```", DOCUMENTS[name], re.MULTILINE | re.DOTALL)
    assert block
    path = tmp_path / "publisher.yaml"
    path.write_text(block[1], encoding="utf-8")
    try:
        settings = load(path, {}, host_name="ce.example.org")
    except ConfigError as error:
        pytest.fail(str(error))
    assert len(settings.targets) == 1


@pytest.mark.parametrize("name", DOCUMENTS)
def test_yaml_in_a_document_is_yaml(name: str) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```", DOCUMENTS[name], re.MULTILINE | re.DOTALL):
        assert isinstance(yaml.safe_load(block), dict)


def test_readme_tells_which_sources_formats_and_targets_there_are() -> None:
    rows = dict(re.findall(r"^\| ([A-Z][^|]*?) \| (.*?) \|$", section(README, "Status"), re.MULTILINE))
    told = {heading: set(re.findall(r"`([a-z0-9.-]+)`", cells)) for heading, cells in rows.items()}
    assert told == {
        "Sources": {*SOURCES, *IMPORTERS},
        "Formats, one record per job": set(JOB_FORMATS),
        "Formats, monthly totals": set(SUMMARY_FORMATS),
        "Targets": set(TRANSPORTS),
    }
    assert all(f"`{name}`" in section(README, "Status") for name in SYNC_FORMATS)


def test_the_architecture_lists_every_package() -> None:
    block = re.search(r"^```\npublisher/\n(.*?)^```", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert block
    listed = {line.split()[0] for line in block[1].splitlines()}
    assert listed == {f"{path.parent.name}/" for path in Path(publisher.__file__).parent.glob("*/__init__.py")}


def test_what_the_way_of_a_record_names_is_there() -> None:
    """`Decider.decide` in `publisher/publishing/plan/decision.py`: both names are defined in that file."""
    named = re.findall(r"`([A-Za-z_.]+)` (?:of|in)\s`(publisher/[\w/]+\.py)`", ARCHITECTURE)
    assert len(named) >= 12
    for name, path in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^ *(?:class|def) {part}\b|^{part}\b.*=", text, re.MULTILINE), f"{part} is not in {path}"


def test_the_architecture_names_files_that_exist() -> None:
    named = set(re.findall(r"(?<![\w/])((?:publisher|tests|man)/[\w./@-]+\w)", ARCHITECTURE))
    assert len(named) > 20
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files_and_sections(name: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose(DOCUMENTS[name])):
        path = ((ROOT / name).parent / target).resolve() if target else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_readme_is_short_and_leads_to_all_documents() -> None:
    assert len(README.encode()) <= 12_000
    assert {name for name in DOCUMENTS if f"({name})" not in README} == {"README.md"}


@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() - {"CONTRIBUTING.md"}))  # which has names of files to be made
def test_files_that_documents_name_exist(name: str) -> None:
    named = set(re.findall(r"(?<![\w/<])((?:publisher|tests|conf|man)/[\w./@-]+\w)", DOCUMENTS[name]))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_each_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    reasons = section(CONTRIBUTING, "Dependencies")
    run_time, optional, development = re.split(r"^(?:Optional|For development).*:$", reasons, flags=re.MULTILINE)
    assert told_dependencies(run_time) == names(project["dependencies"])
    assert told_dependencies(optional) == names(
        [one for extra, wanted in extras.items() if extra != "dev" for one in wanted]
    )
    assert told_dependencies(development) == names(extras["dev"])


def told_dependencies(text: str) -> set[str]:
    lines = re.findall(r"^- `([\w.-]+)`: .{10,}", text, re.MULTILINE)
    assert len(lines) == text.count("\n- "), "a dependency without a reason"
    return set(lines)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=~! ;\[]", requirement)[0] for requirement in requirements}


def test_ci_asks_for_what_contributing_names() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    for variable in ("PUBLISHER_SCHEMAS", "PUBLISHER_SAMPLES"):
        assert variable in section(CONTRIBUTING, "Set up")
        assert variable in ci
    assert set(re.findall(r"\bmake (\w+) VENV", ci)) >= {"lint", "docs", "demo", "test"}


@pytest.mark.parametrize("name", ["pythons", "lowest"])
def test_ci_runs_files_that_exist(name: str) -> None:
    """With the other Pythons and the oldest libraries; a name that is gone ends the script after all the others."""
    part = re.search(r"^PART=\(.*?\)\n", (ROOT / ".ci" / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert part
    files = subprocess.run(
        ["bash", "-c", f'{part[0]} printf "%s\\n" "${{PART[@]}}"'], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(files) > 5
    assert not [file for file in files if not (ROOT / file).exists()]
