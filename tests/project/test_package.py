"""What packages ship beside the code: manual pages, completions, and what wheel and sdist hold."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

import publisher
from package import completions, pages
from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, SYNC_FORMATS
from tests.arex_databases import generate
from tests.support.command_line import commands
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

ROOT = Path(__file__).parents[2]
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 60, START, END))


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


def test_every_package_has_the_same_version() -> None:
    named = {
        "pyproject.toml": r'^version = "(.*)"$',
        "package/publisher.spec": r"^Version: +(.*)$",
        "package/debian/changelog": r"^accounting-publisher \((.*)\)",
        "Makefile": r"accounting-publisher-(\d[\d.]*\d)",
        "README.md": r"accounting-publisher_(\d[\d.]*\d)_all.deb",
    }
    for name, pattern in named.items():
        found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        assert (name, {*found}) == (name, {publisher.__version__})


# Wheel and sdist

TOP_LEVEL = (
    *(
        "setup.py",
        "MANIFEST.in",
        "Containerfile",
        "mkdocs.yml",
        "pyproject.toml",
        "Makefile",
        ".pre-commit-config.yaml",
    ),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "REUSE.toml"),
)
WITH_ROOT = os.environ | {"PYTHONPATH": str(ROOT)}
SHIPPED = ("publisher", "conf", "docs", "man", "package", "tests", "benchmarks", ".ci", "LICENSES")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist of a copy of this checkout, and a wheel of that sdist, made without a network."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in TOP_LEVEL:
        shutil.copy(ROOT / name, source)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"),
            *("--outdir", folder / "dist", source),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


def below(folder: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_sdist_holds_all_that_it_takes_to_build_test_and_show(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*TOP_LEVEL}.union(*map(below, SHIPPED))
    assert wanted - held == set()


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_what_stands_beside_it(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path)  # noqa: S202  # built by us a moment ago
    data, shared = {name for name in held if ".data/" in name}, set()
    for name in data:
        where, _, path = name.partition("/data/")
        assert where.endswith(".data"), name
        shared.add(path)
    assert held - data == below("publisher"), "no tests, and nothing forgotten: schemas, templates, py.typed"
    made = {path.name for path in pages.write(tmp_path / "pages")}
    assert "publisher-publish.1" in made
    assert shared == {
        *(f"share/man/man{page[-1]}/{page}" for page in made),
        "share/bash-completion/completions/publisher",
        "share/zsh/site-functions/_publisher",
        "share/doc/accounting-publisher/README.md",
        *(f"share/doc/accounting-publisher/{name}" for name in below("docs")),
        *(f"share/doc/accounting-publisher/{name}" for name in below("conf")),
        "share/doc/accounting-publisher/conf/example.yaml",
    }
    sample = [sys.executable, "-c", "from publisher.cli.main import main; main()", "config", "example"]
    done = subprocess.run(sample, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, (ROOT / "publisher" / "config" / "example.yaml").read_text()), (
        done.stderr
    )


@pytest.mark.slow
def test_the_wheel_names_its_licence_and_authors(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        lines = archive.read(metadata).decode().splitlines()
    assert built[1].name.startswith("accounting_publisher-")
    assert {
        *("Name: accounting-publisher", "License: Apache-2.0", "Author: the publisher authors"),
        "Classifier: License :: OSI Approved :: Apache Software License",
    } <= {*lines}


def test_the_licence_of_every_file_is_declared() -> None:
    """What `reuse lint` checks: one declaration for all files, and the text of the licence that it names."""
    (declared,) = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    assert (declared["path"], declared["SPDX-License-Identifier"]) == ("**", "Apache-2.0")
    assert (ROOT / "LICENSES" / "Apache-2.0.txt").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "License: Apache-2.0\n" in (ROOT / "package" / "debian" / "copyright").read_text()
    assert re.search(r"^License: +Apache-2\.0$", (ROOT / "package" / "publisher.spec").read_text(), re.MULTILINE)


def test_hooks_before_a_commit_are_local() -> None:
    """Nothing is downloaded, and they run what `make lint` runs."""
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["entry"].split()[0] for hook in repos[0]["hooks"]} == {
        f".venv/bin/{tool}" for tool in ("ruff", "mypy", "lint-imports")
    }


# Manual pages


def test_every_command_has_a_page_with_all_that_the_whole_says_of_it() -> None:
    whole = pages.sections(pages.sections(pages.whole())["COMMANDS"])
    made = dict(pages.of_commands())
    assert set(made) == {f"publisher-{path.split()[0]}.1" for path in commands()}
    for path, section in whole.items():
        page = made[f"publisher-{path.split()[0]}.1"].astext()
        assert all(child.astext() in page for child in section.children[1:])
        assert f"publisher {path}" in page, "how it is called"


@pytest.mark.slow
def test_pages_are_what_man_can_read(tmp_path: Path) -> None:
    lint = program("mandoc")
    for page in pages.write(tmp_path):
        done = subprocess.run([lint, "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False)
        complaints = [line for line in done.stdout.splitlines() if "missing date" not in line]
        assert not complaints, complaints


@pytest.mark.slow
def test_pages_are_what_groff_can_read(tmp_path: Path) -> None:
    groff = program("groff")
    for page in pages.write(tmp_path):
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-Wbreak", "-z", page], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), page.name


def test_the_page_on_accounting_names_every_format_and_no_other() -> None:
    text = pages.sections(pages.sections(pages.parse("publisher-accounting"))["DESCRIPTION"])["Formats"]
    assert set(pages.entries(text)) == {*JOB_FORMATS, *SUMMARY_FORMATS, *SYNC_FORMATS}


# Completion


@pytest.fixture
def site(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    spool = {"files": {"type": "spool", "path": str(tmp_path / "out"), "format": "car"}}
    made = ConfiguredSite(tmp_path, pki, pki.host(), spool)
    made.fill(*JOBS, schema=2)
    made.save()
    return made


def completed(site: ConfiguredSite, folder: Path, *words: str) -> Sequence[str]:
    """What bash offers at the end of these words, cut as bash cuts them, with a `publisher` that knows this site."""
    bash = program("bash")
    script = folder / "publisher.bash"
    script.write_text(completions.script("bash"))
    starter = folder / "bin" / "publisher"
    starter.parent.mkdir(exist_ok=True)
    starter.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from publisher.cli.main import main; main()' --config {site.path} \"$@\"\n"
    )
    starter.chmod(0o755)
    asked = (
        f'source {script}; COMP_WORDS=(publisher "$@"); COMP_CWORD=$#; _publisher_complete; '
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        [bash, "-c", asked, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{starter.parent}:{os.environ['PATH']}"},
    )
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


def test_bash_completes_commands_options_and_choices(site: ConfiguredSite, tmp_path: Path) -> None:
    assert completed(site, tmp_path, "pub") == ["publish"]
    assert completed(site, tmp_path, "republish", "--accept-k") == ["--accept-key-change"]
    assert completed(site, tmp_path, "stats", "-o", "wl") == ["wlcgvos"]
    assert completed(site, tmp_path, "import", "grid") == ["gridengine"]


@pytest.mark.slow
def test_bash_completes_what_the_accounting_data_knows(site: ConfiguredSite, tmp_path: Path) -> None:
    job_id = JOBS[5].job_id
    assert completed(site, tmp_path, "job", "info", job_id[:-3]) == [
        one for one in sorted(job.job_id for job in JOBS) if one.startswith(job_id[:-3])
    ]
    assert {*completed(site, tmp_path, "stats", "--filter-vo", "")} >= {job.vo for job in JOBS if job.vo}
    assert completed(site, tmp_path, "publish", "--target", "") == ["files"]
    users = sorted({job.user for job in JOBS})
    spaced = next(user for user in users if " " in user and "=" in user)
    head, separator, _ = spaced.partition("=")
    offered = completed(site, tmp_path, "stats", "--filter-user", head, separator, "")
    rest = [user.removeprefix(head + separator) for user in users if user.startswith(head + separator)]
    assert [shlex.split(word) for word in offered] == [[user] for user in rest]


def test_bash_offers_nothing_and_says_nothing_where_nothing_can_be_read(site: ConfiguredSite, tmp_path: Path) -> None:
    site.path.write_text("site: [")
    assert completed(site, tmp_path, "job", "info", "") == []


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_take_the_script(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(completions.script(shell))
    done = subprocess.run([program(shell), "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_manual_is_built_without_the_libraries_of_a_round(tmp_path: Path) -> None:
    """As in an isolated build, which has what builds the package and nothing else."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "for name in ('cryptography', 'lxml', 'yaml', 'apscheduler', 'jinja2',"
        " 'prometheus_client', 'requests', 'urllib3'):\n"
        "    sys.modules[name] = None\n"
        "from package import completions, pages\n"
        "print(len(list(pages.write(Path(sys.argv[1])))), len(list(completions.write(Path(sys.argv[1])))))\n"
    )
    built = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert int(built.stdout.split()[0]) > 20


def required_by_rpm(*options: str) -> set[str]:
    spec = ROOT / "package" / "publisher.spec"
    command = [program("rpmspec"), "--query", "--requires", *options, str(spec)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")) - {"", "/bin/sh"}


def test_the_rpm_depends_on_the_libraries_that_the_system_packages() -> None:
    libraries = {
        re.split("[>=!<; ]", each)[0].lower()
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    }
    assert {"requests", "urllib3"} <= libraries
    assert required_by_rpm() == {"python3 >= 3.11", "systemd", *(f"python3-{name}" for name in libraries)}


def test_the_rpm_for_el9_brings_its_libraries() -> None:
    """EL9 has them for its Python 3.9 alone."""
    assert required_by_rpm("--with", "private") == {"python3.11", "systemd"}


def test_the_helper_of_packages_takes_no_option_for_a_folder(tmp_path: Path) -> None:
    """It wrote a folder `--help`."""
    helper = (sys.executable, "-m", "package")
    shown = subprocess.run([*helper, "--help"], cwd=tmp_path, env=WITH_ROOT, capture_output=True, text=True, check=True)
    assert "usage: python -m package" in shown.stdout
    assert not list(tmp_path.iterdir())
    wrong = subprocess.run([*helper, "--hepl"], cwd=tmp_path, env=WITH_ROOT, capture_output=True, check=False)
    assert wrong.returncode == 2
    subprocess.run([*helper, "made"], cwd=tmp_path, env=WITH_ROOT, check=True)
    assert (tmp_path / "made" / "man" / "publisher.1").is_file()
