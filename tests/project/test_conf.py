"""What packages install from conf/: systemd's own check, command lines that parse, and the paths that the code has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from publisher import config
from publisher.cli import parser as command_line
from publisher.cli.commands import COMMANDS as REGISTERED
from publisher.config.settings import DEFAULT_STATE, CredentialSettings
from tests.arex_databases import SampleJob, generate
from tests.demo.__main__ import END, START
from tests.fake_ams.service import FakeAMS
from tests.support.command_line import publisher_words
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

CONF = Path(__file__).parents[2] / "conf"
UNITS = sorted(path.name for path in CONF.iterdir() if path.suffix in (".service", ".timer"))
# Read before the fixtures make real paths unusable.
CONFIG = command_line.DEFAULT_CONFIG
STATE = DEFAULT_STATE
LOG = "/var/log/publisher"


def settings(name: str) -> dict[str, list[str]]:
    """The settings of a unit, by name; one may be given several times."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (CONF / name).read_text(encoding="ascii"), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def only(name: str, key: str) -> str:
    (value,) = settings(name)[key]
    return value


def lines(name: str) -> list[list[str]]:
    """The lines of a file of blank-separated fields, without comments; a text in quotes is one field."""
    text = (CONF / name).read_text(encoding="ascii")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', row)] for row in rows]


def test_the_container_is_the_daemon_of_the_unit() -> None:
    """No systemd here reads quadlets: what both say must agree, and the image have all that it is made of."""
    for key in ("Restart", "RestartSec", "RestartPreventExitStatus", "Nice"):
        assert only("publisher.container", key) == only("publisher-run.service", key), key
    assert f"/usr/bin/publisher {only('publisher.container', 'Exec')}" == only("publisher-run.service", "ExecStart")
    made = (CONF.parent / "Containerfile").read_text(encoding="ascii")
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", made, re.MULTILINE) for name in line.split()]
    assert {"publisher", "pyproject.toml", "setup.py"} <= {*copied}
    assert [name for name in copied if not (CONF.parent / name).exists()] == []
    (user,) = re.findall(r"^USER (\d+):", made, re.MULTILINE)
    (install,) = settings("publisher.container")["ExecStartPre"]
    assert f"-o {user} -g {user} -m 0400" in install


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """Copies of the units that start a program which is there: systemd looks for it."""
    made = []
    for name in UNITS:
        path = tmp_path / name
        path.write_text((CONF / name).read_text().replace("=/usr/bin/publisher ", "=/bin/sh "))
        made.append(path)
    return made


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_systemd_finds_nothing_wrong(units: list[Path]) -> None:
    done = systemd_analyze("verify", "--man=no", *map(str, units))
    said = [line for line in done.stderr.splitlines() if any(path.name in line for path in units)]
    assert (said, done.returncode) == ([], 0), done.stderr


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_services_are_locked_up(units: list[Path], name: str) -> None:
    """2.0 of 10 is systemd's `OK`; the network cannot be taken away."""
    (path,) = [path for path in units if path.name == name]
    done = systemd_analyze("security", "--offline=true", "--threshold=20", str(path))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges running services only")
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_services_start_commands_that_there_are(name: str) -> None:
    for line in settings(name)["ExecStart"]:
        words = publisher_words(line)
        assert words is not None
        assert command_line.parser().parse_args(words).command in {one.name for one in REGISTERED}


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_services_need_no_program_that_a_small_machine_may_lack(name: str) -> None:
    """/bin/kill is of procps, which containers and small installations of Debian do without."""
    started = {line.split()[0] for key, lines in settings(name).items() if key.startswith("Exec") for line in lines}
    assert started <= {"/usr/bin/publisher", "/bin/sh"}


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_services_are_hardened(name: str) -> None:
    wanted = {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "ProtectKernelTunables": "yes",
        "ProtectKernelModules": "yes",
        "ProtectKernelLogs": "yes",
        "ProtectControlGroups": "yes",
        "RestrictNamespaces": "yes",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "SystemCallFilter": "@system-service",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
    }
    found = settings(name)
    assert {key: found.get(key) for key in wanted} == {key: [value] for key, value in wanted.items()}
    assert "MemoryDenyWriteExecute" not in found


IMPORT_UNIT = "publisher-import.service"
DOCUMENTS = (
    *CONF.parent.glob("*.md"),
    *CONF.parent.glob("docs/*.md"),
    *(CONF.parent / "man").iterdir(),
    *(path for path in CONF.rglob("*") if path.is_file()),
)


def drop_in(text: str) -> list[str]:
    """The lines of a drop-in that makes a round wait for the import."""
    (found,) = re.findall(rf"(\[Unit\]\n(?:[# ]*\w+={re.escape(IMPORT_UNIT)}\n)+)", text)
    return [line.strip("# ") for line in found.splitlines()]


def test_an_import_comes_before_each_round_and_its_failure_stops_none() -> None:
    name = f"{IMPORT_UNIT}.example"
    words = publisher_words(only(name, "ExecStart"))
    assert words is not None
    assert command_line.parser().parse_args(words).command == "import"
    wanted = ["[Unit]", f"Wants={IMPORT_UNIT}", f"After={IMPORT_UNIT}"]
    assert drop_in((CONF / name).read_text()) == wanted


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_lets_an_import_stop_a_round(path: Path) -> None:
    """One bad line (65) or one damaged archive (66) would end publishing."""
    text = path.read_text(errors="replace").replace("\\", "")
    assert not re.search(r"ExecStartPre=(?:/(?!usr/bin/install )|\S*publisher)", text)
    assert not re.search(r"publisher import [^\n]*&&", text)
    assert not re.search(rf"(?:Requires|BindsTo)={IMPORT_UNIT}", text)


def test_systemd_finds_nothing_wrong_with_an_import_before_each_round(units: list[Path], tmp_path: Path) -> None:
    made = tmp_path / IMPORT_UNIT
    example = (CONF / f"{IMPORT_UNIT}.example").read_text()
    made.write_text(example.replace("=/usr/bin/publisher ", "=/bin/sh "))
    (tmp_path / "publisher.service.d").mkdir()
    (tmp_path / "publisher.service.d" / "import.conf").write_text("\n".join(drop_in(example)) + "\n")
    (service,) = [path for path in units if path.name == "publisher.service"]
    done = systemd_analyze("verify", "--man=no", str(service), str(made))
    said = [line for line in done.stderr.splitlines() if "publisher" in line]
    assert (said, done.returncode) == ([], 0), done.stderr


def test_a_timer_starts_a_service_that_there_is() -> None:
    for name in UNITS:
        if name.endswith(".timer"):
            assert name.replace(".timer", ".service") in UNITS
            assert only(name, "Persistent") == "true"


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_services_use_the_paths_of_the_code(name: str) -> None:
    assert Path("/var/lib", only(name, "StateDirectory")) == STATE.parent
    credential, _, path = only(name, "LoadCredential").partition(":")
    assert Path(path) == CredentialSettings().key
    assert f"$CREDENTIALS_DIRECTORY/{credential}" in (CONF / name).read_text()


def test_the_user_is_the_same_everywhere() -> None:
    ((kind, user, _, _, home),) = lines("publisher.sysusers")
    assert (kind, home) == ("u", str(STATE.parent))
    owners = {(row[3], row[4]) for row in lines("publisher.tmpfiles")}
    assert owners == {("root", "root"), (user, user)}
    assert {only(name, "User") for name in UNITS if name.endswith(".service")} == {user}
    assert f"\n    su {user} {user}\n" in (CONF / "publisher.logrotate").read_text()
    assert cron_line()[0] == user


def test_directories_are_those_of_the_code() -> None:
    made = {row[1]: (row[0], row[2]) for row in lines("publisher.tmpfiles")}
    assert made == {str(CONFIG.parent): ("d", "0755"), str(STATE.parent): ("d", "0700"), LOG: ("d", "0750")}


def cron_line() -> tuple[str, str]:
    """User and command of the cron example."""
    text = (CONF / "publisher.cron").read_text(encoding="ascii")
    found = re.search(r"^\d+ \* \* \* \* +(\S+) +(.+)$", text, re.MULTILINE)
    assert found
    return found[1], found[2]


def test_cron_starts_a_command_that_there_is() -> None:
    _, command = cron_line()
    assert "%" not in command  # cron makes line ends of them
    words = publisher_words(command)
    assert words is not None
    assert command_line.parser().parse_args(words).command in {one.name for one in REGISTERED}


def test_the_monthly_mail_is_a_command_that_there_is() -> None:
    text = (CONF / "publisher.cron").read_text(encoding="ascii")
    (command,) = re.findall(r"^#\d+ \d+ 2 \* \* +publisher +(.+)$", text, re.MULTILINE)
    words = publisher_words(command)
    assert words is not None
    assert command_line.parser().parse_args(words).command == "report"
    assert command.partition(" | ")[2].startswith("mail -s ")
    assert "%" not in command


def test_cron_and_logrotate_mean_the_same_file() -> None:
    path = f"{LOG}/publisher.log"
    assert f">>{path} 2>&1" in cron_line()[1]
    assert f"\n{path} {{\n" in (CONF / "publisher.logrotate").read_text()


@pytest.mark.parametrize(("status", "mailed"), [(0, False), (75, True)])
def test_cron_mails_what_failed_and_nothing_else(tmp_path: Path, status: int, mailed: bool) -> None:
    program, log = tmp_path / "publisher", tmp_path / "publisher.log"
    program.write_text(f"#!/bin/sh\necho one round\nexit {status}\n")
    program.chmod(0o700)
    command = cron_line()[1].replace("/usr/bin/publisher", str(program)).replace(f"{LOG}/publisher.log", str(log))
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert log.read_text() == "one round\n"
    assert done.stderr == ""
    assert (f"status {status}" in done.stdout and "one round" in done.stdout) == mailed
    assert bool(done.stdout) == mailed


def test_the_service_publishes_with_the_key_that_systemd_hands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd 254 and newer grant the copy by an ACL, which shows as a group-readable file in a closed directory."""
    pki = PKI.create(tmp_path / "pki")
    jobs: list[SampleJob] = list(generate(1, 5, START, END))
    name, _, _ = only("publisher.service", "LoadCredential").partition(":")
    credentials = tmp_path / "credentials"
    credentials.mkdir(mode=0o700)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    with FakeAMS(pki) as fake:
        site = SiteUnderTest(tmp_path, pki, fake)
        site.fill(*jobs)
        (credentials / name).write_bytes(site.host.key.read_bytes())
        (credentials / name).chmod(0o440)
        site.config["credentials"]["key"] = f"$CREDENTIALS_DIRECTORY/{name}"
        words = publisher_words(only("publisher.service", "ExecStart"))
        assert words is not None
        done = site.run(*words)
        assert done.status == 0, done.out + done.err
        assert len(site.received()) == len(jobs)


@pytest.mark.parametrize("example", sorted((CONF / "fleet").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_for_fleets_load(example: Path, tmp_path: Path) -> None:
    (tmp_path / example.name).write_text(example.read_text())
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    found = config.load(tmp_path / example.name, environment, host_name="ce1.example.org")
    assert [target.name for target in found.targets] == ["egi"]


def test_the_examples_for_fleets_pass_systemds_check(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd")
    for name in ("publisher-copy.service", "publisher-copy.timer"):
        text = (CONF / "fleet" / name).read_text()
        (tmp_path / name).write_text(re.sub(r"=/usr/bin/(sqlite3|rsync) ", "=/bin/sh ", text))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "fleet" not in found.stderr, found.stderr
    assert "publisher-copy" not in found.stderr, found.stderr
