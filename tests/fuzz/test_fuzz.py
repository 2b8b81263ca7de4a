"""Input that nobody vouches for: rows, pages of files, configuration, answers, saved tables. Bounded, and never a bug.

Beside it: `test_config` (trees and lines), `test_verdicts` and `test_sgas_verdicts` (any answer), `test_import_gridengine` (any
line), `test_delivery_spool` (names), `test_arc_conf` (nothing is run).
"""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher import config
from publisher.config.from_arc.reader import parse_arc_conf
from publisher.model.errors import ConfigError, SourceError, UsageError
from publisher.model.job import Epoch, ReadRequest, SideTable
from publisher.model.time import Window
from publisher.publishing.sync.portal import read as read_portal
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from publisher.transports.ams.responses import publish_verdict, token_of, token_verdict
from publisher.transports.ams.transport import _profile
from publisher.transports.http.exchange import Answer, plain
from publisher.transports.sgas.responses import parse_error_page, service_paths
from tests.arex_databases import Schema, aar_columns, generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.sources.contract import every_row
from tests.support.patience import PATIENCE_S, bounded
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest, told, truth
from tests.support.strategies import examples

pytestmark = pytest.mark.some(2, of="template")
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
QUICK = settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
ROOT = Path(__file__).parents[2]

# What SQLite lets stand in any column, whatever its declared type.
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, -1, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 253_402_300_800]),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(
        ["", "NaN", "-1", "1e400", "9" * 5000, "%27%", "%", "\0", "]]>", "%%", "../../etc/passwd", "Å" * 400]
    ),
    st.binary(max_size=30),
    st.just("x" * 1_000_000),
    st.just(b"\xff" * 1_000_000),
)
SIDES = {
    "JobExtraInfo": ("InfoKey", "InfoValue"),
    "AuthTokenAttributes": ("AttrKey", "AttrValue"),
    "RunTimeEnvironments": ("RTEName",),
    "DataTransfers": ("URL", "FileSize", "TransferStart", "TransferEnd", "TransferType"),
    "JobEvents": ("EventKey", "EventTime"),
}
NAMES = ("Users", "WLCGVOs", "Queues", "Status", "Endpoints")


class Template:
    """A database of five good jobs to bend copies of, and a site around it that reaches nobody."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS, schema: Schema) -> None:
        self.schema = schema
        self.folder = folder
        self.site = SiteUnderTest(folder, pki, fake)
        self.site.save()
        self.jobs = list(generate(1, 5, START, END))
        self.site.fill(*self.jobs, schema=schema)
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        self.good = self.path.read_bytes()

    @property
    def path(self) -> Path:
        return self.site.database(self.schema)

    def restore(self) -> None:
        for suffix in ("-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.write_bytes(self.good)


@pytest.fixture(scope="module", params=[1, 2])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pki: PKI) -> Iterator[Template]:
    with FakeAMS(pki) as fake:
        yield Template(tmp_path_factory.mktemp("site"), pki, fake, request.param)


def read_all(path: Path) -> tuple[set[str], int]:
    """Every way to read: the JobIDs that came out by rows, and how many rows were set aside. Raises: SourceError."""
    source = create(Options(databases=(str(path),), lock_wait_s=1), {})
    request = ReadRequest(frozenset(SideTable), Epoch(int(datetime.now(UTC).timestamp())))
    try:
        (database,) = source.sources()
        pages = list(database.read(None, (), request))
        list(database.compare(Window(), {}, request))
        list(database.read(pages[-1].position if pages else None, every_row(pages), request))
        list(database.look_up([job.job_id for page in pages for job in page.jobs], request))
        database.ends(every_row(pages))
        database.rows_after(None)
        source.facts()
    finally:
        source.close()
    return {job.job_id for page in pages for job in page.jobs}, sum(len(page.skipped) for page in pages)


# The accounting database: values


@QUICK
@given(data=st.data())
@pytest.mark.slow
def test_a_bent_row_stops_no_other(template: Template, data: st.DataObject) -> None:
    """Anything in any column of one job's row: read in bounded time, its neighbours whole, judged and rendered or set aside."""
    template.restore()
    columns = [name for name in aar_columns(template.schema) if name not in ("RecordID", "JobID")]
    with closing(sqlite3.connect(template.path)) as connection, connection:
        for column in data.draw(st.lists(st.sampled_from(columns), min_size=1, max_size=4, unique=True)):
            connection.execute(f"UPDATE AAR SET {column} = ? WHERE RecordID = 3", (data.draw(VALUES),))
        for table in data.draw(st.lists(st.sampled_from(sorted(SIDES)), max_size=2, unique=True)):
            places = ", ".join("?" * (1 + len(SIDES[table])))
            row = [data.draw(VALUES) for _ in SIDES[table]]
            connection.execute(
                f"INSERT INTO {table} (RecordID, {', '.join(SIDES[table])}) VALUES ({places})", (3, *row)
            )
    with bounded():
        read, _ = read_all(template.path)
    assert {job.job_id for job in template.jobs if job is not template.jobs[2]} <= read
    run = template.site.publish("--dry-run")
    assert run.status in (0, 65), run.out + run.err
    assert run.json["targets"]["egi"]["records"] >= 4


@pytest.mark.slow
@QUICK
@given(data=st.data())
def test_bent_names_stop_only_their_jobs(template: Template, data: st.DataObject) -> None:
    """A name that several jobs share may set all of them aside, and nothing else happens."""
    template.restore()
    table = data.draw(st.sampled_from(NAMES))
    column = data.draw(st.sampled_from(("Interface", "URL"))) if table == "Endpoints" else "Name"
    with closing(sqlite3.connect(template.path)) as connection, connection:
        connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (data.draw(VALUES),))
    read_all(template.path)
    run = template.site.publish("--dry-run")
    assert run.status in (0, 65), run.out + run.err
    assert "a bug" not in run.err


# The accounting database: pages


def flipped(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed anywhere."""
    bad = bytearray(content)
    for _ in range(chance.randrange(1, 40)):
        bad[chance.randrange(len(bad))] = chance.randrange(256)
    return bytes(bad)


def zeroed(content: bytes, chance: random.Random) -> bytes:
    """A page that never came to the disk."""
    bad = bytearray(content)
    at = chance.randrange(len(bad) // 4096) * 4096
    bad[at : at + 4096] = bytes(4096)
    return bytes(bad)


def swapped(content: bytes, chance: random.Random) -> bytes:
    """Two pages in each other's place."""
    bad = bytearray(content)
    one, other = (chance.randrange(len(bad) // 4096) * 4096 for _ in range(2))
    bad[one : one + 4096], bad[other : other + 4096] = bad[other : other + 4096], bad[one : one + 4096]
    return bytes(bad)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flipped, zeroed, swapped, cut)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.some(2)
@pytest.mark.slow
def test_damaged_pages_are_told_or_read_around(
    template: Template, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """66 in words, or rows; never a bug, never for long, never more rows than there are."""
    chance = random.Random(f"{damage.__name__} {template.schema}")
    for number in range(12):
        template.restore()
        template.path.write_bytes(damage(template.good, chance))
        with bounded():
            with suppress(SourceError):
                read, skipped = read_all(template.path)
                assert len(read) + skipped <= 200, number
            run = template.site.publish("--dry-run")
            assert run.status in (0, 65, 66), (number, run.out + run.err)
            assert "a bug" not in run.err, (number, run.err)
    template.restore()


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
@pytest.mark.slow
def test_rubbish_beside_the_database_is_no_bug(template: Template, suffix: str) -> None:
    chance = random.Random(suffix)
    for number in range(10):
        template.restore()
        beside = template.path.with_name(template.path.name + suffix)
        head = b"\x37\x7f\x06\x82" if suffix == "-wal" else b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
        beside.write_bytes(head * (number % 2) + chance.randbytes(chance.randrange(10_000)))
        run = template.site.publish("--dry-run")
        assert run.status in (0, 65, 66), (number, run.out + run.err)
        assert "a bug" not in run.err, (number, run.err)
    template.restore()


# Our own state, by a disk that forgets


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_74_or_does_no_harm(
    damage: Callable[[bytes, random.Random], bytes], tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    """SQLite has no checksums: some damage goes unnoticed. What is noticed is told, and nothing that is sent is wrong."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    jobs = list(generate(1, 60, START, END))
    site.config["targets"]["egi"] |= {"batch_records": 10}
    with site.arex() as arex:
        arex.write_all(jobs[:40])
        assert site.publish().status == 0
        arex.write_all(jobs[40:])
    whole = site.state.read_bytes()
    chance = random.Random(damage.__name__)
    for number in range(10):
        for suffix in ("-wal", "-shm"):
            site.state.with_name(site.state.name + suffix).unlink(missing_ok=True)
        site.state.write_bytes(damage(whole, chance))
        for command in (("status", "--json"), ("trace", jobs[0].job_id), ("publish", "--force")):
            run = site.run(*command)
            assert run.status in (0, 65, 74, 78), (number, command, run.out + run.err)
            assert "a bug" not in run.err, (number, run.err)
    rows = [told(row) for row in site.received(with_openssl=False)]
    assert set(rows) <= {truth(job) for job in jobs}, "what was sent is what the jobs say"
    assert len(site.fake.messages(PROJECT, TOPIC)) >= 4


# Configuration


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    """Nine lines that stand for a billion words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = tmp_path / "publisher.yaml"
    for last in ("site: *a9", "targets: {egi: *a9}", "records: {statuses: *a9}"):
        path.write_text("\n".join([*lines, last]))
        with bounded(), pytest.raises(ConfigError):
            config.load(path, {}, host_name="ce")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a: " * 20_000,
        "- " * 100_000,
        "{a: " * 5_000,
        "site: " + "9" * 500_000,
        "site: !!int " + "9" * 100_000,
        "site: !!python/object/apply:os.system [id]",
        "? " * 50_000,
        "site: &a " + "x" * 900_000 + "\ntargets: *a",
        "&a " * 50_000,
        "'" * 900_000,
        '"\\x' * 100_000,
    ],
    ids=lambda text: f"{text[:12]!r} {len(text)}",
)
def test_huge_and_deep_files_are_refused_in_bounded_time(tmp_path: Path, text: str) -> None:
    path = tmp_path / "publisher.yaml"
    path.write_text(text)
    with bounded(), pytest.raises(ConfigError) as caught:
        config.load(path, {}, host_name="ce")
    assert sum(map(len, caught.value.problems)) < 200_000


@QUICK
@given(
    st.binary(max_size=400)
    | st.text(max_size=200).map(lambda text: f"[common]\n{text}\n[arex]\n".encode("utf-8", "replace"))
)
def test_any_arc_conf_is_read_or_refused(content: bytes) -> None:
    with suppress(ConfigError):
        parse_arc_conf(content, "arc.conf")


@QUICK
@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
    | st.sampled_from(["..", "../x", "a/b", "/etc/x"])
)
def test_a_targets_name_leads_nowhere(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """Files are named after it: locks of the state, and what a spool writes on its way."""
    folder = tmp_path_factory.mktemp("name")
    path = folder / "publisher.yaml"
    path.write_text(
        json.dumps(
            {
                "site": "A",
                "source": {"type": "arex", "databases": ["/a.db"]},
                "targets": {name: {"type": "spool", "path": "/x", "format": "car"}},
            }
        )
    )
    try:
        (target,) = config.load(path, {}, host_name="ce").targets
    except ConfigError:
        return
    lock = folder / f"publishing.db.{target.name}.lock"
    assert lock.parent == folder
    assert lock.name == f"publishing.db.{name}.lock"
    assert ".." not in lock.parts
    assert len(lock.name.encode()) < 256


# Answers

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["token", "error", "message", "code", "messageIds", "name", "projects", "project", "topics"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
BODIES = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())


@QUICK
@given(status=st.integers(100, 599), body=BODIES)
def test_any_answer_of_ams_and_authn_is_read(status: int, body: bytes) -> None:
    answer = Answer(status=status, headers={}, body=body)
    for decision in (token_verdict(answer), publish_verdict(1000, answer), publish_verdict(900_000, answer)):
        assert decision.reason == plain(decision.reason)
    token = token_of(answer)
    assert token.isascii()
    assert not set(token) & set(" \r\n\t")
    try:
        document = json.loads(body)
    except ValueError:
        return
    _profile(document, "accounting")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b"9" * 1_000_000,
        b'{"token": ' + b"9" * 5000 + b"}",
        b'"' + b"\\u0041" * 170_000 + b'"',
        b"<" * 1_000_000,
        b"<a>" * 300_000,
        b"<style>" * 100_000,
        b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>"
        + b"".join(b"<!ENTITY %c '%s'>" % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
        + b"]><services>&j;</services>",
        b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><services><service><name>&a;</name></service></services>",
        b"\x00\x01" * 500_000,
    ],
    ids=lambda body: f"{body[:10]!r} {len(body)}",
)
def test_hostile_answers_are_read_in_bounded_time_and_memory(body: bytes) -> None:
    """A megabyte is what is read of an answer at most; no entity of it is expanded, no file is fetched."""
    with bounded():
        for status in (200, 404, 500):
            answer = Answer(status=status, headers={}, body=body)
            reasons = [
                token_verdict(answer).reason,
                publish_verdict(900_000, answer).reason,
                parse_error_page(body).words,
            ]
            assert all(len(reason) <= 2000 for reason in reasons)
            assert not any("root:" in reason for reason in reasons)
        paths = service_paths(body) or {}
        assert sum(len(name) + len(path) for name, path in paths.items()) < 10_000
        assert "root:" not in str(paths)


# Saved tables and other systems' files


@QUICK
@given(
    content=st.binary(max_size=300)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.text(max_size=200).map(lambda text: ("SubmitHost,Year,Month,NumberOfJobs\n" + text).encode("utf-8", "replace"))
)
def test_any_saved_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "counts"
    path.write_bytes(content)
    with suppress(UsageError):
        assert all(isinstance(jobs, int) for jobs in read_portal(path, "A").values())


BOMB = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (350 << 20, 350 << 20))
from publisher.cli import main as cli
from tests.support.strategies import examples
sys.exit(cli.run(["--config", sys.argv[1], "import", "gridengine", sys.argv[2]]))
"""


@pytest.mark.slow
def test_a_compressed_file_that_unpacks_to_a_quarter_of_a_gigabyte_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """One line without an end, in a quarter of a megabyte: set aside, with 350 MiB of address space for all of Python."""
    bomb = tmp_path / "accounting.1.gz"
    bomb.write_bytes(gzip.compress(b"x" * (1 << 20)) * 256)  # members one after another are one file
    assert bomb.stat().st_size < 1 << 19
    path = tmp_path / "publisher.yaml"
    path.write_text(
        json.dumps(
            {
                "site": "A",
                "state": str(tmp_path / "state" / "publishing.db"),
                "source": {"type": "arex", "databases": [str(tmp_path / "a.db")]},
                "importers": {"gridengine": {"cluster": "qmaster.example.org"}},
                "targets": {"egi": {"type": "spool", "path": "/x", "format": "car"}},
            }
        )
    )
    ended = subprocess.run(
        [sys.executable, "-c", BOMB, str(path), str(bomb)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )
    told_of = ended.stdout + ended.stderr
    assert ended.returncode in (0, 65, 66), told_of
    assert "accounting.1.gz" in told_of, "its line is set aside by name"
    assert "Traceback" not in told_of
    assert "MemoryError" not in told_of
    assert "a bug" not in told_of
