"""The packages on a fresh machine: installed, configured from an arc.conf, examined, and run as the service runs them.

The machine is a Debian in a folder (mmdebstrap, as root, from Debian's mirrors), with this host's loopback, on which the
stand-in AMS answers. The package for EL9 is installed by rpm, in a Debian whose Python is 3.11 and has no library.
`make check-packages` builds the packages and runs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import Writer, generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest, told, truth

pytestmark = pytest.mark.long  # a minute or two, and what Debian's mirrors need

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(3, 120, START, END))
CONTROL = "/var/spool/arc/jobstatus"
ARC_CONF = f"""\
[common]
hostname = ce.example.org

[lrms]
lrms = slurm
benchmark = HEPscore23:11.5

[arex]
controldir = {CONTROL}

[arex/jura]
loglevel = 3

[arex/jura/apel:egi]
targeturl = URL
topic = gLite-APEL
gocdb_name = EXAMPLE-SITE
apel_messages = urs
"""


def test_the_rpm_installs_and_runs(tmp_path: Path) -> None:
    """Into a root of its own, with this host's Python: there are no mirrors of Enterprise Linux everywhere."""
    packages = sorted(DIST.glob("*.noarch.rpm"))
    if os.geteuid() != 0 or shutil.which("rpm") is None or not packages:
        pytest.skip("needs root, rpm, and a package in dist/ (make rpm)")
    rpm = ("rpm", "--root", str(tmp_path))
    subprocess.run([*rpm, "--initdb"], check=True, timeout=900)
    subprocess.run([*rpm, "-i", "--nodeps", "--noscripts", "--nosignature", packages[0]], check=True, timeout=900)
    (code,) = tmp_path.glob("usr/lib/python3*/*-packages")
    ran = subprocess.run(
        [sys.executable, tmp_path / "usr/bin/publisher", "--version"],
        env={"PYTHONPATH": str(code)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    assert ran.stdout.startswith("publisher 0.")
    for there in (
        *("usr/lib/systemd/system/publisher.service", "usr/lib/systemd/system/publisher.timer"),
        *("usr/lib/sysusers.d/publisher.conf", "usr/share/man/man1/publisher-publish.1"),
        *("usr/share/man/man7/publisher-accounting.7", "usr/share/bash-completion/completions/publisher"),
    ):
        assert (tmp_path / there).is_file(), there


def with_proc(root: Path) -> tuple[str, ...]:
    """Words before a command that works in that root: /proc is there while it runs, and for nobody else."""
    return ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc")


class Machine:
    """A Debian in a folder. Everything runs in it as root, or as a user of it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(
        self, *command: str, user: str = "root", status: int = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Raises: AssertionError when it ends otherwise than it should."""
        words = [*with_proc(self.root), "chroot", str(self.root)]
        if user != "root":
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        done = subprocess.run(
            [*words, *command],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **(environment or {})},
        )
        assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def put(self, text: str | bytes, inside: str, mode: int = 0o644) -> None:
        where = self.path(inside)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(text if isinstance(text, bytes) else text.encode())
        where.chmod(mode)


@pytest.fixture(scope="module", params=["*.deb", "*.el9.*.rpm"])
def package(request: pytest.FixtureRequest) -> Path:
    packages = sorted(DIST.glob(request.param))
    if os.geteuid() != 0 or None in map(shutil.which, ("mmdebstrap", "rpm")) or not packages:
        pytest.skip(f"needs root, mmdebstrap, rpm, and a {request.param} in dist/ (make deb rpm-el9)")
    return packages[-1]


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    root = tmp_path_factory.mktemp("machine") / "debian"
    options = ["--include=python3,systemd"]
    if package.suffix == ".deb":
        options = [f"--include={package}", "--hook-directory=/usr/share/mmdebstrap/hooks/file-mirror-automount"]
    made = subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt", "--include=man-db"),
            *options,
            *("bookworm", str(root)),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if re.search("Could not resolve|Failed to fetch|Could not connect", made.stderr):
        pytest.skip(f"no mirror of Debian can be reached: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stderr[-3000:]
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    if package.suffix == ".rpm":
        rpm(root, "-i", str(package))
    yield Machine(root)
    shutil.rmtree(root)


def rpm(root: Path, *command: str) -> str:
    """With its scripts, run in that root. The root's packages are Debian's, of which rpm knows nothing."""
    done = subprocess.run(
        [*with_proc(root), "rpm", "--root", str(root), "--nodeps", "--nosignature", *command],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return done.stdout


@pytest.fixture(scope="module")
def fake(pki: PKI, machine: Machine) -> Iterator[FakeAMS]:
    """One for each machine: a host's name is registered once."""
    with FakeAMS(pki) as service:
        yield service


@pytest.fixture(scope="module")
def site(machine: Machine, pki: PKI, fake: FakeAMS, tmp_path_factory: pytest.TempPathFactory) -> SiteUnderTest:
    """A CE with a certificate, jobs, and an arc.conf. What is received is read by the site's own methods."""
    made = SiteUnderTest(tmp_path_factory.mktemp("site"), pki, fake)
    machine.put(made.host.certificate.read_bytes(), "/etc/grid-security/hostcert.pem")
    machine.put(made.host.key.read_bytes(), "/etc/grid-security/hostkey.pem", 0o400)
    shutil.copytree(pki.ca_directory, machine.path("/etc/grid-security/certificates"), symlinks=False)
    machine.put(ARC_CONF.replace("URL", fake.url), "/etc/arc.conf")
    database = machine.path(f"{CONTROL}/accounting/accounting_v2.db")
    database.parent.mkdir(parents=True)
    with Writer(database, schema=2) as arex:
        arex.write_all(JOBS)
    machine.run("chown", "-R", "publisher:publisher", CONTROL)  # where a CE would give an ACL
    return made


def credentials(machine: Machine) -> str:
    """What systemd does for LoadCredential=: a copy of the key that only the service's user can read."""
    folder = "/run/credentials/publisher.service"
    machine.put(machine.path("/etc/grid-security/hostkey.pem").read_bytes(), f"{folder}/hostkey.pem", 0o400)
    machine.run("chown", "-R", "publisher:publisher", "/run/credentials")
    return folder


def test_what_the_package_installs(machine: Machine) -> None:
    assert machine.run("publisher", "--version").stdout.startswith("publisher 0.")
    assert "publisher" in machine.path("/etc/passwd").read_text()
    for page in ("publisher.1", "publisher-publish.1", "publisher.yaml.5", "publisher-accounting.7"):
        section = page[-1]
        assert list(machine.path(f"/usr/share/man/man{section}").glob(f"{page}*")), page
    offered = machine.run(
        "bash",
        "-c",
        "source /usr/share/bash-completion/completions/publisher; COMP_WORDS=(publisher repub); COMP_CWORD=1;"
        "_publisher_complete; echo ${COMPREPLY[@]}",
    )
    assert offered.stdout == "republish\n"
    assert machine.path("/var/lib/publisher").stat().st_mode & 0o777 == 0o700
    assert "site: missing; write the site's name" in machine.run("publisher", "config", "check", status=78).stderr
    units = [path.name for path in machine.path("/lib/systemd/system").glob("publisher*")]
    assert {"publisher.service", "publisher.timer"} <= {*units}
    machine.run("systemd-analyze", "verify", "--man=yes", *(f"/lib/systemd/system/{unit}" for unit in units))


def test_from_arc_conf_to_accepted_records(machine: Machine, site: SiteUnderTest) -> None:
    page = machine.run("publisher", "config", "from-arc", "/etc/arc.conf", status=0)
    assert "key_style: jura" in page.stdout
    # The stand-in is not on the ports of the real service; and a fresh target begins with this month.
    here = f"\\g<0>\n    auth_url: {site.fake.auth_url}\n    service_host: {site.fake.service_host}\n    start: all"
    told_of, changed = re.subn(r"^    type: ams\b.*$", here, page.stdout, flags=re.MULTILINE)
    assert changed == 1
    told_of = re.sub(r"^    start: (?!all).*\n", "", told_of, flags=re.MULTILINE)
    machine.put(told_of, "/etc/publisher/publisher.yaml")
    machine.put(re.sub(r"^\[arex/jura.*?(?=^\[|\Z)", "", ARC_CONF, flags=re.MULTILINE | re.DOTALL), "/etc/arc.conf")
    environment = {"CREDENTIALS_DIRECTORY": credentials(machine)}

    machine.run("publisher", "config", "check", user="publisher", environment=environment)
    examined = machine.run("publisher", "doctor", "--json", user="publisher", status=0, environment=environment)
    findings = json.loads(examined.stdout)
    assert "failure" not in {finding["state"] for finding in findings["findings"]}, findings

    unit = machine.path("/lib/systemd/system/publisher.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command
    machine.run(*command[1].split(), user="publisher", environment=environment)
    assert sorted(told(row) for row in site.received()) == sorted(truth(job) for job in JOBS)
    again = machine.run(*command[1].split(), "--json", "--force", user="publisher", environment=environment)
    assert json.loads(again.stdout)["targets"]["egi"]["outcome"] == "nothing"


def test_doctor_finds_what_is_broken_on_the_machine(machine: Machine, site: SiteUnderTest) -> None:
    environment = {"CREDENTIALS_DIRECTORY": credentials(machine)}
    database = machine.path(f"{CONTROL}/accounting")
    database.chmod(0o000)
    shutil.chown(database, "root", "root")
    try:
        found = machine.run("publisher", "doctor", user="publisher", status=66, environment=environment)
    finally:
        database.chmod(0o755)
    assert "setfacl" in found.stdout + found.stderr


def test_reports_and_timetables_need_nothing_else(machine: Machine, package: Path) -> None:
    """The package for EL9 brings what the others only recommend, and nobody else's library is taken for it."""
    if package.suffix == ".deb":
        pytest.skip("Debian's packages are recommended")
    there = machine.run(
        "/usr/lib/accounting-publisher/bin/python3", "-c", LIBRARIES, environment={"PYTHONPATH": "/tmp"}
    )
    paths = there.stdout.splitlines()
    assert paths
    assert {Path(path).parts[:4] for path in paths} == {("/", "usr", "lib", "accounting-publisher")}


LIBRARIES = """
import apscheduler, cryptography, jinja2, lxml.etree, prometheus_client, requests, urllib3, yaml
from backports import zstd
for library in (apscheduler, cryptography, jinja2, lxml.etree, prometheus_client, requests, urllib3, yaml, zstd):
    print(library.__file__)
"""


def test_an_upgrade_keeps_the_configuration_and_a_removal_the_ledger(machine: Machine, package: Path) -> None:
    """The last test: afterwards the package is gone."""
    machine.put("site: MINE\n", "/etc/publisher/publisher.yaml")
    machine.put(b"a ledger", "/var/lib/publisher/publishing.db", 0o600)
    told = "The ledger of what was published stays in /var/lib/publisher"
    if package.suffix == ".rpm":
        rpm(machine.root, "-U", "--force", str(package))
        assert machine.path("/etc/publisher/publisher.yaml").read_text() == "site: MINE\n"
        assert machine.run("publisher", "--version").stdout.startswith("publisher 0.")
        assert told in rpm(machine.root, "-e", "accounting-publisher")
        assert machine.path("/etc/publisher/publisher.yaml.rpmsave").read_text() == "site: MINE\n"
    else:
        machine.put(package.read_bytes(), "/root/publisher.deb")
        machine.run("dpkg", "--install", "--force-confdef", "--force-confold", "/root/publisher.deb")
        assert machine.path("/etc/publisher/publisher.yaml").read_text() == "site: MINE\n"
        machine.run("dpkg", "--remove", "accounting-publisher")
        assert machine.path("/etc/publisher/publisher.yaml").exists()
        assert told in machine.run("dpkg", "--purge", "accounting-publisher").stdout
    assert not machine.path("/etc/publisher/publisher.yaml").exists()
    assert not machine.path("/usr/bin/publisher").exists()
    assert not machine.path("/usr/lib/accounting-publisher").exists()
    assert machine.path("/var/lib/publisher/publishing.db").read_bytes() == b"a ledger"
