"""Configuration, credentials, state and services as trouble leaves them, through the real command line.

Each ends with its exit status and with words that say what, where and what to do; nothing is lost, and when the trouble is
over the next round delivers everything. The accounting data's own troubles are in tests/faults/test_bad_input.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.faults import crash_nursery
from tests.support.complaints import GRAVITY, assert_complains, assert_plain, gravest
from tests.support.forks import Child
from tests.support.mounts import run_mounted
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential
from tests.support.ports import closed_port
from tests.support.sites import Run, SiteUnderTest, told, truth
from tests.support.strict_apel import read_car

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
NOBODY = 65534

# The command line in a process of its own: first a rehearsal loads everything (nobody may not even read a Python that lives
# in a home directory), then the process becomes that user.
CHILD = """
import contextlib, io, os, sys
from publisher.cli import main as cli
uid = int(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    cli.run([*sys.argv[2:4], "publish", "--dry-run", "--force"])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
sys.argv[:2] = ["publisher"]
cli.main()
"""


def jobs(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def assert_delivers(site: SiteUnderTest, batch: list[SampleJob]) -> None:
    """The trouble is over: the next round delivers everything that is not there yet, and no message went twice anew."""
    assert_plain(site.publish(), 0)
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in batch}
    assert len(site.table().rows("JobRecords")) == len(batch)
    ids = [message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC)]
    by_id = dict(zip(ids, records_of_messages(site), strict=True))
    assert sum(map(len, by_id.values())) == len(batch), "a job is in one message only, however often that was sent"


def records_of_messages(site: SiteUnderTest) -> list[list[str]]:
    """The local job ids of each message, in order."""
    receiver = Receiver.create(site.pki.ca_directory, with_openssl=False)
    messages = site.fake.messages(PROJECT, TOPIC)
    return [
        [row["LocalJobId"] for row in read_car(receiver.take(message).text.encode(), datetime.now(UTC))]
        for message in messages
    ]


def in_a_child(site: SiteUnderTest, *arguments: str, user: int) -> Run:
    """Run the command line in a process of its own, as that user."""
    if not site.path.exists():
        site.save()
    words = (user, "--config", site.path, *arguments)
    child = Child(*words, code=CHILD, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=PATIENCE_S)
    return Run(status=child.wait(), out=out, err=err)


@pytest.fixture
def public(pki: PKI, fake_ams: FakeAMS) -> Iterator[SiteUnderTest]:
    """A site in a directory that every user can reach (pytest's own is closed), and that belongs to nobody when we are root."""
    with tempfile.TemporaryDirectory(prefix="test-public-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        site = SiteUnderTest(folder, pki, fake_ams)
        shutil.copytree(pki.ca_directory, folder / "certificates")
        shutil.copyfile(site.host.certificate, folder / "hostcert.pem")
        shutil.copyfile(site.host.key, folder / "hostkey.pem")
        (folder / "hostkey.pem").chmod(0o400)
        site.config["credentials"] = {
            "certificate": str(folder / "hostcert.pem"),
            "key": str(folder / "hostkey.pem"),
            "ca": str(folder / "certificates"),
        }
        yield site


def belongs_to(folder: Path, user: int) -> None:
    """Everything below belongs to this user; only root can do that, others own it already."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, user, user)


def unprivileged() -> int:
    return NOBODY if os.geteuid() == 0 else os.geteuid()


# Configuration

TEN_MISTAKES = """\
site: EXAMPLE SITE
sorce: {type: arex}
source:
  type: arex
  controldir: /var/spool/arc/jobstatus
  page_rows: many
records:
  statuses: [completed, finished]
  benchmark: {type: HEPspec06, value: 11.5}
targets:
  egi:
    type: ams
    url: http://msg.example.org
    topic: gLite/APEL
    format: apel-sumary-0.4
    every: daily
    batch_records: -1
"""


@pytest.mark.parametrize("command", [("publish", "--json"), ("status",), ("config", "check"), ("quarantine", "list")])
def test_ten_mistakes_are_told_at_once_each_with_its_line(site: SiteUnderTest, command: tuple[str, ...]) -> None:
    site.path.write_text(TEN_MISTAKES)
    run = site.run(*command)
    assert_plain(
        run, 78, f"{site.path}:1: ", "EXAMPLE SITE", f"{site.path}:2: ", "source", "control_dir", "apel-summary"
    )
    lines = [line for line in run.err.splitlines() if str(site.path) in line]
    assert len(lines) >= 10, run.err
    assert run.out == ""
    assert not site.state.parent.exists(), "nothing is made for a configuration that is wrong"


@pytest.mark.parametrize("content", ["", "- a\n", "site: [", "\0", "site: x\ntargets: {}\n", "a: &a [*a]\n"])
def test_a_file_that_is_no_configuration(site: SiteUnderTest, content: str) -> None:
    site.path.write_text(content)
    assert_plain(site.run("publish"), 78, str(site.path))


def test_no_configuration_at_all(site: SiteUnderTest) -> None:
    for path in (site.folder / "gone.yaml", site.folder, Path("/proc/self/mem")):
        assert_plain(site.run("--config", str(path), "publish"), 78, str(path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publish", "--limit", "0"), ("--limit",)),
        (("publish", "--limit", "-5"), ("--limit",)),
        (("publish", "--target", "egy"), ("did you mean 'egi'",)),
        (("publsh",), ("publish",)),
        (("quarantine", "release"), ("--all",)),
        (("quarantine", "drop", "no-such-job"), ("no-such-job", "quarantine list")),
        (("trace",), ("JOB",)),
    ],
)
def test_a_wrong_command_line_is_64(site: SiteUnderTest, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_plain(site.run(*arguments), 64, *words)


@pytest.mark.slow
def test_the_programs_own_streams_may_be_of_any_kind(public: SiteUnderTest) -> None:
    """A terminal of Latin-1, as cron and old consoles have it, is no reason to fail."""
    public.config["records"] = {}
    public.fill(replace(jobs(1)[0], benchmark="\u0661\u0660:\u4f5c\u4e1a"))
    public.save()
    command = [sys.executable, "-c", "from publisher.cli.main import main; main()", "--config", str(public.path)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    for arguments, status in ((("publish",), 65), (("quarantine", "list"), 0), (("status",), 0)):
        ended = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, env=environment, timeout=PATIENCE_S
        )
        assert ended.returncode == status, ended.stderr
        assert b"Traceback" not in ended.stderr
    listed = subprocess.run([*command, "quarantine", "list"], check=False, capture_output=True, env=environment)
    assert rb"\u0661\u0660" in listed.stdout
    # A reader who leaves early gets no complaint either.
    script = (
        f'"{sys.executable}" -c "from publisher.cli.main import main; main()" --config "{public.path}" status | true'
    )
    piped = subprocess.run(
        ["/bin/sh", "-c", script], check=False, capture_output=True, env=environment, timeout=PATIENCE_S
    )
    assert piped.stderr == b""


# Credentials


def unreadable_key(site: SiteUnderTest) -> None:
    site.config["credentials"]["key"] = str(site.folder / "no" / "hostkey.pem")


def key_of_another_certificate(site: SiteUnderTest) -> None:
    other: Credential = next(
        made for made in iter(site.pki.host, None) if made.key.read_bytes() != site.host.key.read_bytes()
    )
    site.config["credentials"]["key"] = str(other.key)


def expired(site: SiteUnderTest) -> None:
    use(site, site.pki.expired_host())


def not_yet_valid(site: SiteUnderTest) -> None:
    use(site, site.pki.not_yet_valid_host())


def key_readable_by_others(site: SiteUnderTest) -> None:
    key = site.folder / "hostkey.pem"
    shutil.copyfile(site.host.key, key)
    key.chmod(0o644)
    site.config["credentials"]["key"] = str(key)


def rubbish_certificate(site: SiteUnderTest) -> None:
    path = site.folder / "hostcert.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n")
    site.config["credentials"]["certificate"] = str(path)


def empty_certificate(site: SiteUnderTest) -> None:
    path = site.folder / "hostcert.pem"
    path.touch()
    site.config["credentials"]["certificate"] = str(path)


def key_is_a_directory(site: SiteUnderTest) -> None:
    site.config["credentials"]["key"] = str(site.folder)


def no_ca_directory(site: SiteUnderTest) -> None:
    site.config["credentials"]["ca"] = str(site.folder / "no-certificates")


def empty_ca_directory(site: SiteUnderTest) -> None:
    (site.folder / "certificates").mkdir()
    site.config["credentials"]["ca"] = str(site.folder / "certificates")


def unknown_ca(site: SiteUnderTest) -> None:
    site.config["credentials"]["ca"] = str(site.pki.other_authority.certificate)


def use(site: SiteUnderTest, credential: Credential) -> None:
    site.config["credentials"] |= {"certificate": str(credential.certificate), "key": str(credential.key)}


CREDENTIALS: dict[str, tuple[Callable[[SiteUnderTest], None], tuple[str, ...]]] = {
    "key missing": (unreadable_key, ("hostkey.pem", "does not exist", "credentials: key")),
    "key of another certificate": (key_of_another_certificate, ("does not belong to the certificate", "renewed")),
    "expired": (expired, ("expired on", "get a new one", "nothing was sent")),
    "not yet valid": (not_yet_valid, ("clock",)),
    "key open to others": (key_readable_by_others, ("0644", "chmod 0400", "allow_open_key")),
    "certificate is rubbish": (rubbish_certificate, ("hostcert.pem", "damaged", "install it again")),
    "certificate is empty": (empty_certificate, ("hostcert.pem", "no PEM certificate")),
    "key is a directory": (key_is_a_directory, ("cannot read the key",)),
    "no CA directory": (no_ca_directory, ("no-certificates", "credentials: ca")),
    "CA directory is empty": (empty_ca_directory, ("no hashed certificates", "IGTF")),
    "CA of others": (unknown_ca, ("its certificate is not trusted", "`publisher doctor` says what to do")),
}


@pytest.mark.parametrize("trouble", CREDENTIALS)
def test_credentials_that_cannot_be_used_are_77_and_nothing_leaves(site: SiteUnderTest, trouble: str) -> None:
    """Defects 1 and 25: ARC's publisher sends an empty message and moves on; with an empty CA directory it checks nobody."""
    bend, words = CREDENTIALS[trouble]
    batch = jobs(10)
    site.fill(*batch)
    good = dict(site.config["credentials"])
    bend(site)
    site.save()
    assert_complains(site.publish(), 77, *words)
    assert_plain(site.run("publish", "--force"), 77, *words)
    assert site.fake.messages(PROJECT, TOPIC) == []
    waiting = site.run("status", "--json").json["targets"]["egi"]
    assert (waiting["pending"], waiting["delivered"], waiting["last_success"]) == (10, 0, None)
    site.config["credentials"] = good
    site.save()
    assert_delivers(site, batch)


def test_a_key_that_this_user_may_not_read_is_77(public: SiteUnderTest) -> None:
    batch = jobs(10)
    public.fill(*batch)
    belongs_to(public.folder, unprivileged())
    key = Path(public.config["credentials"]["key"])
    if os.geteuid() == 0:
        os.chown(key, 0, 0)
    else:
        key.chmod(0)
    run = in_a_child(public, "publish", "--json", "--force", user=unprivileged())
    assert_complains(run, 77, str(key), "no permission", "LoadCredential")
    belongs_to(public.folder, 0)
    key.chmod(0o400)
    assert_delivers(public, batch)


# State


def damaged_state(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


def not_a_state(path: Path) -> None:
    path.write_text("{}\n" * 5000)


def newer_state(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def another_programs_state(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE AccountingTargets (TargetID TEXT UNIQUE, LastEndTime INTEGER, LastReport INTEGER)"
        )


STATES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "damaged": (damaged_state, ("damaged", "backup")),
    "not a database": (not_a_state, ("not a database", "backup")),
    "newer schema": (newer_state, ("schema 99", "newer", "install")),
    "ARC's own": (another_programs_state, ("not a publishing database", "state")),
}


@pytest.mark.parametrize("trouble", STATES)
def test_a_state_that_cannot_be_read_is_74_and_left_alone(site: SiteUnderTest, trouble: str) -> None:
    """Half of ARC's lost months began with a state that could not be read and was written anew."""
    breaks, words = STATES[trouble]
    batch = jobs(30)
    site.fill(*batch[:20])
    assert site.publish().status == 0
    site.fill(*batch[20:])
    with closing(sqlite3.connect(site.state)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = site.state.read_bytes()
    breaks(site.state)
    broken = site.state.read_bytes()
    before = len(site.fake.messages(PROJECT, TOPIC))
    for command in (("publish", "--force"), ("publish", "--json", "--force"), ("status",), ("quarantine", "list")):
        assert_plain(site.run(*command), 74, str(site.state), *words)
    assert site.state.read_bytes() == broken
    assert len(site.fake.messages(PROJECT, TOPIC)) == before
    for suffix in ("-wal", "-shm"):
        site.state.with_name(site.state.name + suffix).unlink(missing_ok=True)
    site.state.write_bytes(whole)
    assert_delivers(site, batch)


def test_a_state_directory_that_may_not_be_written_is_74(public: SiteUnderTest) -> None:
    batch = jobs(10)
    public.fill(*batch)
    belongs_to(public.folder, unprivileged())
    locked = public.folder / "locked"
    locked.mkdir(mode=0o555)
    if os.geteuid() == 0:
        locked.chmod(0o755)  # root's own
    public.config["state"] = str(locked / "publishing.db")
    public.save()
    run = in_a_child(public, "publish", "--json", "--force", user=unprivileged())
    assert_plain(run, 74, str(locked), "the user who publishes")
    public.config["state"] = str(locked / "deeper" / "publishing.db")
    public.save()
    assert_plain(in_a_child(public, "publish", "--force", user=unprivileged()), 74, str(locked))
    assert public.fake.messages(PROJECT, TOPIC) == []
    locked.chmod(0o755)
    belongs_to(public.folder, 0)
    assert_delivers(public, batch)


def test_a_state_of_another_user_is_74(public: SiteUnderTest) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    batch = jobs(10)
    public.fill(*batch)
    assert public.publish("--limit", "5").status == 0
    belongs_to(public.folder, unprivileged())
    for path in public.state.parent.iterdir():
        os.chown(path, 0, 0)
    assert_plain(
        in_a_child(public, "publish", "--force", user=unprivileged()), 74, str(public.state), "belong to the user"
    )
    assert_delivers(public, batch)


def test_a_state_path_that_cannot_be(site: SiteUnderTest) -> None:
    site.fill(*jobs(3))
    for path in (site.path / "publishing.db", site.control, Path("/proc/publishing.db")):
        site.config["state"] = str(path)
        site.save()
        assert_plain(site.run("publish", "--force"), 74, str(path))


@pytest.mark.parametrize("most_bytes", [1, 4096, 20_000, 60_000, 100_000, 200_000, 400_000])
def test_a_file_that_may_not_grow_is_74_and_the_next_round_mends_it(site: SiteUnderTest, most_bytes: int) -> None:
    """A quota or RLIMIT_FSIZE: whatever the ledger was writing, nothing is lost and nothing is sent under two ids."""
    site.config["targets"]["egi"] |= {"batch_records": 20}
    batch = jobs(100)
    site.fill(*batch)
    site.save()
    ended = crash_nursery.publish(site, most_bytes=most_bytes)
    assert_plain(Run(status=ended["status"], out="", err=ended["said"]), 74, str(site.state.parent))
    assert_delivers(site, batch)
    assert len(site.received(with_openssl=False)) <= 120, "at most one message went twice"


FULL_DISK = """
from publisher.cli import main as cli
def publish():
    sys.argv[1:] = ["--config", config, "publish", "--force"]
    return cli.run(sys.argv[1:])
full = publish()
subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
print(json.dumps({"full": full, "room": publish()}))
"""


@pytest.mark.parametrize("size", ["4k", "64k", "200k", "480k"])
@pytest.mark.some(2)
def test_a_full_disk_is_74_and_the_next_round_mends_it(site: SiteUnderTest, size: str) -> None:
    """A file system of its own, in a mount namespace of its own, which both end with the process."""
    site.config["targets"]["egi"] |= {"batch_records": 20}
    batch = jobs(100)
    site.fill(*batch)
    site.state.parent.mkdir()
    site.save()
    ended = run_mounted(site.state.parent, f"mode=0700,size={size}", site.path, FULL_DISK)
    assert ended.status == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1]) == {"full": 74, "room": 0}, ended.out + ended.err
    assert "make room" in ended.out + ended.err
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in batch}
    assert len(site.received(with_openssl=False)) <= 120, "at most one message went twice"
    ids = Counter(message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC))
    assert len(ids) == 5


@pytest.mark.slow
def test_another_publisher_at_work_is_75_for_that_target_alone(site: SiteUnderTest) -> None:
    """Defect 17: two runs of ARC's publisher at once send everything twice."""
    batch = jobs(10)
    site.fill(*batch)
    two_targets(site)
    site.save()
    assert site.publish("--limit", "2").status == 0
    with site_lock(site, "egi"):
        run = site.publish()
        assert_complains(run, 75, "another publisher is at work", "leaves it alone")
        assert "target egi: target egi" not in run.err
        assert run.json["targets"]["other"]["outcome"] == "ok"
        assert run.json["targets"]["other"]["records"] == 8
    assert_delivers(site, batch)


@contextmanager
def site_lock(site: SiteUnderTest, target: str) -> Iterator[None]:
    """Another process's hold on a target."""
    code = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as lock:\n"
        "    fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, f"{site.state}.{target}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate("")


# Services


def two_targets(site: SiteUnderTest, **other: Any) -> None:
    """A second target `other` on a topic of its own, as `egi` but for what is given."""
    site.config["targets"]["egi"] |= {"attempts": 1}
    site.config["targets"]["other"] = {**site.config["targets"]["egi"], "topic": "other", **other}
    site.fake.allow(site.user, "other")


def test_a_service_that_is_away_is_75_and_everything_waits(site: SiteUnderTest) -> None:
    """Defect 26: ARC's publisher ends with 0 when every target failed."""
    batch = jobs(10)
    site.fill(*batch)
    away = f"https://localhost:{closed_port()}"
    site.config["targets"]["egi"] |= {"attempts": 1, "auth_url": away}
    site.save()
    run = site.publish()
    assert_complains(run, 75, away.removeprefix("https://"))
    assert ": deferred: 10 records, 0 bytes" in run.err
    assert run.json["targets"]["egi"]["outcome"] == "deferred"
    site.config["targets"]["egi"] |= {"url": away, "auth_url": site.fake.auth_url}
    site.save()
    assert_complains(site.publish(), 75, away.removeprefix("https://"))
    status = site.run("status", "--json").json["targets"]["egi"]
    assert (status["delivered"], status["in_doubt"], status["last_success"]) == (0, 0, None)
    assert status["pending"] == 10
    site.config["targets"]["egi"] |= {"url": site.fake.url}
    site.save()
    assert_delivers(site, batch)


def absent(_: SiteUnderTest) -> dict[str, Any]:
    return {"url": f"https://localhost:{closed_port()}"}


def no_right(site: SiteUnderTest) -> dict[str, Any]:
    site.fake.create_topic(PROJECT, "forbidden")
    return {"topic": "forbidden"}


def no_topic(site: SiteUnderTest) -> dict[str, Any]:
    return {"topic": "nowhere"}


def open_records(site: SiteUnderTest) -> dict[str, Any]:
    site.fake.allow(site.user, "strict")
    return {"topic": "strict", "benchmark": None}


# What is wrong with a target -> its exit status alone.
TROUBLES: dict[str, tuple[Callable[[SiteUnderTest], dict[str, Any]], int]] = {
    "away": (absent, 75),
    "some set aside": (open_records, 65),
    "no right": (no_right, 77),
    "no topic": (no_topic, 78),
}


@pytest.mark.parametrize("first", TROUBLES)
@pytest.mark.parametrize("second", TROUBLES)
@pytest.mark.some(2)
def test_one_failing_target_stops_no_other_and_the_gravest_status_wins(
    site: SiteUnderTest, first: str, second: str
) -> None:
    """Defects 5, 7 and 26: in ARC one target's crash or filter silences those behind it, and the exit status is 0."""
    batch = [replace(job, benchmark="HEPSPEC:10.5") for job in jobs(10)]
    batch[0] = replace(batch[0], benchmark=None)
    site.fill(*batch)
    good = {**site.config["targets"]["egi"], "attempts": 1}
    statuses = []
    site.config["targets"] = {}
    for number, trouble in enumerate((first, second), start=1):
        bend, status = TROUBLES[trouble]
        site.config["targets"][f"bad{number}"] = good | bend(site)
        statuses.append(status)
    if first == second:
        del site.config["targets"]["bad2"]
    site.config["targets"]["last"] = good
    run = site.publish()
    assert_plain(run, gravest(statuses))
    assert run.json["targets"]["last"]["outcome"] == "ok"
    assert_delivers_to_last(site, batch)
    for number, status in enumerate(statuses[: 1 if first == second else 2], start=1):
        told_of = run.json["targets"][f"bad{number}"]
        assert told_of["outcome"] != "nothing"
        assert told_of["reason"] or told_of["quarantined"]
        again = site.publish("--target", f"bad{number}")
        assert again.status == (0 if status == 65 else status), "the same alone; what was set aside is told once"


def assert_delivers_to_last(site: SiteUnderTest, batch: list[SampleJob]) -> None:
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in batch}


def test_the_order_of_gravity_is_the_contracts() -> None:
    from publisher.model import errors

    assert errors.GRAVITY == GRAVITY
    for graver in GRAVITY:
        for lesser in GRAVITY[GRAVITY.index(graver) :]:
            assert errors.gravest([lesser, 0, graver]) == gravest([graver, lesser]) == graver


def test_a_service_that_goes_away_in_the_middle_leaves_the_rest_for_later(site: SiteUnderTest) -> None:
    """Defect 16: ARC sends everything again after a part failed."""
    site.config["targets"]["egi"] |= {"attempts": 1, "batch_records": 10}
    batch = jobs(50)
    site.fill(*batch)
    site.fake.faults.push(Fault.none(), Fault.none(), Fault.status(503))
    run = site.publish()
    assert_complains(run, 75, "503")
    assert run.json["targets"]["egi"]["records"] == 20
    again = site.publish()
    assert (again.status, again.json["targets"]["egi"]["records"]) == (0, 30)
    assert Counter(told(row) for row in site.received(with_openssl=False)) == Counter(truth(job) for job in batch)
