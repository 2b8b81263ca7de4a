"""`config init`: what is found on a host, and a first configuration that is right as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from publisher import config
from publisher.cli import main
from publisher.cli.commands import config as config_command
from publisher.cli.commands import doctor
from publisher.config.from_arc.first_page import FirstSettings, find_sources, first_page, named_source
from publisher.model.errors import UsageError
from tests.cli.test_cli import run

ROOT = Path(__file__).parents[2]
OPTIONS = ("--site", "EXAMPLE-SITE", "--benchmark", "HEPscore23:11.5")


def found(root: Path, *, sacct: bool = False, **environment: str) -> list[tuple[str, dict[str, object]]]:
    sources = find_sources(
        root, environment=environment, host="head.example.org", which=lambda name: f"/usr/bin/{name}" if sacct else None
    )
    return [(one.kind, dict(one.keys)) for one in sources]


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_arex_is_found_by_arc_conf_or_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "var/spool/arc/jobstatus/accounting").mkdir(parents=True)
    assert found(tmp_path) == [("arex", {"control_dir": "/var/spool/arc/jobstatus"})]
    write(tmp_path, "etc/arc.conf", "[arex]\ncontroldir = /srv/arc/control\n")
    assert found(tmp_path) == [("arex", {"control_dir": "/srv/arc/control"})]


def test_batch_systems_are_found(tmp_path: Path) -> None:
    write(tmp_path, "etc/slurm/slurm.conf", "# x\nClusterName=hpc1\n")
    write(tmp_path, "var/lib/condor/spool/history")
    write(tmp_path, "srv/sge/cell7/common/accounting")
    assert found(tmp_path, SGE_ROOT="/srv/sge", SGE_CELL="cell7") == [
        ("slurm", {"cluster": "hpc1", "unmapped_vo": "local"}),
        (
            "htcondor",
            {"cluster": "head.example.org", "history": "/var/lib/condor/spool/history", "unmapped_vo": "local"},
        ),
        ("gridengine", {"cluster": "head.example.org", "paths": ["/srv/sge/cell7/common"], "unmapped_vo": "local"}),
    ]
    assert found(tmp_path / "other", sacct=True) == [("slurm", {"cluster": "head.example.org", "unmapped_vo": "local"})]


@pytest.mark.parametrize("source", ["arex:", "slurm:hpc1", "htcondor:/var/lib/condor/history", "gridengine:/opt/sge"])
@pytest.mark.parametrize("target", ["egi", "https://sgas.example.org:6143/sgas", "/var/lib/publisher/out"])
def test_each_first_page_can_be_loaded_and_is_short(tmp_path: Path, source: str, target: str) -> None:
    kind, _, place = source.partition(":")
    made = FirstSettings(
        site="EXAMPLE-SITE",
        source=named_source(kind, place, "head"),
        benchmark="HEPscore23:11.5",
        target=target,
    )
    path = tmp_path / "publisher.yaml"
    path.write_text(first_page(made))
    assert len(path.read_text().splitlines()) <= 25
    loaded = config.load(path, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, host_name="head")
    assert loaded.site == "EXAMPLE-SITE"
    assert len(loaded.targets) == 1


def test_options_answer_the_questions(tmp_path: Path) -> None:
    path = tmp_path / "publisher.yaml"
    words = ("-c", str(path), "config", "init", *OPTIONS, "--source", f"arex:{tmp_path}", "--target", str(tmp_path))
    done = run(*words)
    assert done.status == 0, done.err
    assert done.out.splitlines() == [
        f"{path}: written",
        "next:",
        *(f"  publisher -c {path} {command}" for command in ("config check", "doctor", "plan")),
    ]
    assert run("-c", str(path), "config", "check").status == 0
    again = run(*words)
    assert again.status == 64
    assert f"{path} is there already" in again.err


@pytest.mark.parametrize("is_default", [True, False])
@pytest.mark.parametrize("needs_key", [True, False])
def test_next_steps_are_those_of_the_service(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    needs_key: bool,
    is_default: bool,
) -> None:
    """Only the service gets the key of the host, and its user may not read what root's commands wrote."""
    monkeypatch.setattr(doctor, "UNIT_FOLDERS", (tmp_path / "none", ROOT / "conf"))
    path = tmp_path / "publisher.yaml"
    if is_default:
        monkeypatch.setattr(config_command, "DEFAULT_CONFIG", path)
        monkeypatch.setattr(main, "DEFAULT_CONFIG", path)
    target = "egi" if needs_key else str(tmp_path)
    words = ("config", "init", *OPTIONS, "--source", f"arex:{tmp_path}", "--target", target)
    assert main.run(["-c", str(path), *words]) == 0
    ours = "publisher" if is_default else f"publisher -c {path}"
    key = "--property=LoadCredential=hostkey.pem:/etc/grid-security/hostkey.pem"
    before = f"systemd-run --pipe --wait --uid=publisher {key} --" if needs_key else "runuser -u publisher --"
    move = [] if is_default else [f"  mv {path} /etc/publisher/publisher.yaml  # which publisher.service reads"]
    assert capsys.readouterr().out.splitlines()[1:] == [
        "next, as the user publisher of publisher.service:",
        *(f"  {before} {ours} {command}" for command in ("config check", "doctor", "plan")),
        *move,
        "  systemctl enable --now publisher.timer",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (OPTIONS[2:], "config init needs --site"),
        (OPTIONS[:2], "config init needs --benchmark"),
        ((*OPTIONS, "--source", "lsf"), "--source lsf: take one of arex"),
        ((*OPTIONS, "--source", "htcondor:"), "--source htcondor: name its files"),
        ((*OPTIONS[:3], "fast", "--source", "arex"), "write TYPE:VALUE"),
        ((*OPTIONS, "--source", "arex", "--target", "apel"), "--target apel: take egi"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    source = () if "--source" in options else ("--source", "arex")
    done = run("-c", str(tmp_path / "new.yaml"), "config", "init", *source, *options)
    assert done.status == 64
    assert told in done.err
    assert not (tmp_path / "new.yaml").exists()


def test_a_source_of_no_known_type_is_refused() -> None:
    with pytest.raises(UsageError):
        named_source("pbs", "", "head")
