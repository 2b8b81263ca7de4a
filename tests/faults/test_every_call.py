"""Every call of the C library may fail, on the ledger, the accounting database, the spool and the sockets.

After each failure the command ended as documented and said what to do, and one more without any leaves every job at every
receiver once. Some calls here; every one of them in the long tests.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.arex_databases import generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.storage import Message, Topic
from tests.faults import failing_calls
from tests.faults.failing_calls import ERRORS, SOCKETS, Ended, Failure
from tests.support import gridengine_files
from tests.support.batch_stores import records
from tests.support.pki import PKI
from tests.support.sites import Row, SiteUnderTest, told, truth
from tests.support.strict_apel import read_car

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
LEDGER, ACCOUNTING, SPOOL, LOGS = "state", "control", "outgoing", "logs"
PUBLISH: Final = ["publish", "--force"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, after what, and where its calls fail with which statuses."""

    words: list[str]
    before: tuple[list[str], ...] = ()
    places: Mapping[str, set[int]]


COMMANDS: Final[dict[str, Command]] = {
    "publish": Command(words=PUBLISH, places={LEDGER: {74}, ACCOUNTING: {66}, SPOOL: {74}, SOCKETS: {75}}),
    "republish": Command(
        words=["republish", "--from", "2026-10", "--to", "2026-10", "--yes"],
        before=(PUBLISH,),
        places={LEDGER: {74}, ACCOUNTING: {66}, SPOOL: {74}, SOCKETS: {75}},
    ),
    "sync": Command(
        words=["sync", "--target", "egi"], before=(PUBLISH,), places={LEDGER: {74}, ACCOUNTING: {66}, SOCKETS: {75}}
    ),
    "import": Command(words=["import", "gridengine"], places={LEDGER: {74, 75}, LOGS: {66}}),
    "run": Command(words=["run"], places={LEDGER: {74}, ACCOUNTING: set(), SPOOL: set(), SOCKETS: set()}),
}
ADVICE: Final = {
    "EIO": ("kernel's log", "LimitNOFILE"),
    "ENOSPC": ("room", "free memory"),
    "EMFILE": ("open files", "files are open"),
    "ENOMEM": ("memory",),
    "EACCES": ("user", "rights", "kernel's log"),
    "ENOLCK": ("lock",),
}
"""What a complaint about a file speaks of, one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was there before a command: files of the state and the spool by folder and name, and messages at AMS."""

    files: Mapping[str, Mapping[str, bytes]]
    messages: list[Message]


class Bench:
    """A site with a target at AMS and one in a spool, whose state, topic and spool are the same before every failure."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS) -> None:
        self.library = failing_calls.library()
        self.site = SiteUnderTest(folder / "site", pki, fake)
        self.folder = self.site.folder
        targets = self.site.config["targets"]
        targets["egi"] |= {"batch_records": 3, "attempts": 1, "read_timeout_s": "3s"}
        spool = {"type": "spool", "path": str(self.folder / SPOOL), "format": "car", "start": "all", "sign": False}
        targets["files"] = spool | {"batch_records": 3, "every": "1s"}
        self.jobs = list(generate(1, 4, START, END))
        self.site.fill(*self.jobs)
        self.entries = [
            replace(gridengine_files.Entry(), job=number, ended=gridengine_files.BEGIN + 100 + number)
            for number in range(1, 7)
        ]
        (self.folder / LOGS).mkdir()
        log = gridengine_files.write(self.folder / LOGS / "accounting", map(gridengine_files.colon, self.entries))
        self.site.config["importers"] = {"gridengine": {"cluster": gridengine_files.CLUSTER, "paths": [str(log)]}}
        self.site.save()
        self._kept: dict[str, Kept] = {}

    def fresh(self, name: str) -> None:
        """As it is before the command, in files that stay what they are: a copied ledger would be noticed."""
        if self.site.state.parent.name != name:
            self.site.state = self.folder / LEDGER / name / "publishing.db"
            self.site.config["state"] = str(self.site.state)
            self.site.save()
            self.site.state.parent.parent.mkdir(exist_ok=True)
        self._topic.log.clear()
        shutil.rmtree(self.folder / f"{SPOOL}.new", ignore_errors=True)
        if name not in self._kept:
            shutil.rmtree(self.folder / SPOOL, ignore_errors=True)
            self._kept[name] = self._keep(name)
        kept = self._kept[name]
        for place, files in kept.files.items():
            put_back(self.folder / place, files, self._links(place))
        self._topic.log[:] = kept.messages

    @property
    def _topic(self) -> Topic:
        return self.site.fake.store.topics[PROJECT, TOPIC]

    def _keep(self, name: str) -> Kept:
        for words in COMMANDS[name].before:
            assert self.site.run(*words).status == 0
        files: dict[str, dict[str, bytes]] = {}
        for place in (f"{LEDGER}/{name}", SPOOL):
            found = (self.folder / place).glob("*")
            self._links(place).mkdir(parents=True, exist_ok=True)
            files[place] = {}
            for path in found:
                (self._links(place) / path.name).unlink(missing_ok=True)
                os.link(path, self._links(place) / path.name)
                files[place][path.name] = path.read_bytes()
        return Kept(files=files, messages=self.messages())

    def _links(self, place: str) -> Path:
        return self.folder / "kept" / place

    def tries(self, name: str, place: str, error: str, *, forever: bool, stride: int) -> int:
        """Let calls fail, every `stride`th, until none is left. How many did."""
        command = COMMANDS[name]
        where = place if place == SOCKETS else str(self.folder / place)
        number = 1
        found: list[str] = []
        while True:
            self.fresh(name)
            failure = Failure(where=where, error=error, number=number, forever=forever)
            ended = failing_calls.run(self.library, self.site, command.words, failure)
            if not ended.hit:
                assert ended.status == 0, ended
                assert not found, "\n\n".join(found)
                return (number - 1) // stride
            if wrong := [*complaints(name, place, error, ended), *self.left_behind(name, ended)]:
                found.append(f"{wrong}: {failure} at {ended.hit}: {ended.status}: {ended.err}")
            number += stride

    def left_behind(self, name: str, ended: Ended) -> Iterator[str]:
        """What is wrong after a clean end of the same command, and a round."""
        again = ended.status and name not in ("publish", "run")
        for words in ([COMMANDS[name].words] if again else []) + [PUBLISH]:
            run = self.site.run(*words)
            if run.status:
                yield f"then {words} ended with {run.status}: {run.err}"
        if name == "import":
            if sorted(self.imported()) != [(each.job, each.ended) for each in self.entries]:
                yield f"imported: {self.imported()}"
            return
        ids = Counter(message.attributes["empaid"] for message in self.messages())
        times = 2 if name == "republish" else 1
        # `sync` says the same again whenever it is asked, and a receiver keeps one count a month.
        if name not in ("republish", "sync") and sum(count - 1 for count in ids.values()) > 1:
            yield f"more than one message went twice: {ids}"
        for receiver, rows in (("AMS", self.rows_at_ams()), ("spool", self.rows_in_spool())):
            found = Counter(map(told, rows))
            if found.keys() != set(map(truth, self.jobs)) or (times == 1 and max(found.values()) > 1):
                yield f"{receiver}: {found}"

    def imported(self) -> list[tuple[int, int]]:
        jobs = records(self.site.state.with_name("jobs.db"))
        return [(int(job.local_id), job.ended_at) for job in jobs if job.row.database == "gridengine"]

    def messages(self) -> list[Message]:
        return self.site.fake.messages(PROJECT, TOPIC)

    def rows_at_ams(self) -> list[Row]:
        """Of each message once, as its receiver keeps what came twice."""
        receiver = Receiver.create(self.site.pki.ca_directory, allowed=[self.site.host.subject], with_openssl=False)
        texts = {one.attributes["empaid"]: receiver.take(one).text for one in self.messages()}
        payloads = [text.encode() for text in texts.values() if not text.startswith("APEL-sync")]
        return [row for payload in payloads for row in read_car(payload, datetime.now(UTC))]

    def rows_in_spool(self) -> list[Row]:
        files = (self.folder / SPOOL).iterdir()
        return [row for file in files for row in read_car(file.read_bytes(), datetime.now(UTC))]


def put_back(folder: Path, files: Mapping[str, bytes], links: Path) -> None:
    """Let a folder hold these files alone, the very ones that are linked elsewhere. Without files there is no folder."""
    if not files:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        os.link(links / name, folder / name)
        (folder / name).write_bytes(content)


def complaints(name: str, place: str, error: str, ended: Ended) -> Iterator[str]:
    """What is wrong with the end of a command in which a call failed."""
    if "Traceback" in ended.err or "a bug in" in ended.err:
        yield "a bug"
    if ended.status not in {0} | COMMANDS[name].places[place]:
        yield f"status {ended.status}"
    if ended.status and place != SOCKETS and name != "run":
        said = ended.err.strip().splitlines()[-1]
        wanted = ADVICE.get(error, ADVICE["EIO"])
        if not any(word in said for word in wanted):
            yield f"the advice does not speak of {wanted}"
        if "must belong to the user" in said and error != "EACCES":
            yield "the advice is about rights"
        if "restore" in said and "kernel's log" not in said:
            yield "the advice is about damage"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, pki: PKI) -> Iterator[Bench]:
    with FakeAMS(pki) as fake:
        yield Bench(tmp_path_factory.mktemp("calls"), pki, fake)


def is_endless(error: str, place: str) -> bool:
    """Whoever is interrupted tries again, for ever; and for each lock that seems to be held SQLite waits two minutes."""
    return error == "EINTR" or (error, place) == ("ENOLCK", LEDGER)


CASES: Final = [
    pytest.param(name, place, error, forever, id=f"{name}-{place}-{error}-{'all' if forever else 'one'}")
    for name, command in COMMANDS.items()
    for place in command.places
    for error in ERRORS
    for forever in (False, True)
    if not (forever and is_endless(error, place))
]


_STRIDE: Final = 211
_EVERY: Final = int(os.environ.get("CALLS_STRIDE", "1"))

call_that_fails = pytest.mark.parametrize(("name", "place", "error", "forever"), CASES)


@pytest.mark.slow
@call_that_fails
@pytest.mark.some(16)
def test_some_calls_fail(
    bench: Bench,
    name: str,
    place: str,
    error: str,
    forever: bool,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("tried", bench.tries(name, place, error, forever=forever, stride=_STRIDE))


@pytest.mark.slow
def test_every_call_on_the_spool_may_fail(bench: Bench, record_property: Callable[[str, object], None]) -> None:
    """A file that has its name, in a directory that could not be synced, goes again under the same name."""
    tried = bench.tries("publish", SPOOL, "ENOSPC", forever=False, stride=1)
    assert tried > 9
    record_property("tried", tried)


@pytest.mark.slow
def test_a_look_at_the_accounting_database_may_fail(
    bench: Bench, record_property: Callable[[str, object], None]
) -> None:
    """Whether it is there is looked up in several places: none takes "cannot tell" for "no"."""
    tried = bench.tries("sync", ACCOUNTING, "EIO", forever=False, stride=4)
    assert tried > 9
    record_property("tried", tried)


@pytest.mark.long
@call_that_fails
def test_every_call_fails(
    bench: Bench,
    name: str,
    place: str,
    error: str,
    forever: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """Hours; the environment variable CALLS_STRIDE=7 takes every seventh call.

    CALLS_TOLD is a file that gets a line of JSON with the number, as in calls.jsonl, once every call was tried.
    """
    tried = bench.tries(name, place, error, forever=forever, stride=_EVERY)
    record_property("tried", tried)
    if _EVERY == 1 and "CALLS_TOLD" in os.environ:
        line = {
            "on": datetime.now(UTC).date().isoformat(),
            "command": name,
            "place": place,
            "error": error,
            "forever": forever,
            "tried": tried,
        }
        with Path(os.environ["CALLS_TOLD"]).open("a") as told_to:
            told_to.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("words", [PUBLISH, ["import", "gridengine"]], ids=["publish", "import"])
@pytest.mark.parametrize("error", ["EACCES", "EIO"])
@pytest.mark.parametrize(
    ("place", "forever"),
    [
        ("state/jobs.db", True),
        (f"{ACCOUNTING}/accounting", True),
        (f"{ACCOUNTING}/accounting/accounting.db", False),  # where there is none; a second look says so
    ],
)
def test_a_database_that_cannot_be_looked_for(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, words: list[str], error: str, place: str, forever: bool
) -> None:
    """Of a batch system beside A-REX, which looks up the CE's jobs."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    log = gridengine_files.write(tmp_path / LOGS, [gridengine_files.colon(gridengine_files.Entry())])
    gridengine = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(log)]}
    site.config["source"] = [site.config["source"], gridengine]
    with site.arex():
        pass
    assert site.publish().status == 0
    failure = Failure(where=str(tmp_path / place), error=error, number=1, forever=forever)
    ended = failing_calls.run(failing_calls.library(), site, words, failure)
    assert ended.hit
    assert ended.status in (66, 74), ended
    assert not list(complaints("publish", ACCOUNTING, error, replace(ended, status=66))), ended
    assert site.publish().status == 0
    assert [row["LocalJobId"] for row in site.received()] == [str(gridengine_files.Entry().job)]


@pytest.mark.slow
def test_a_database_is_copied_with_its_log_or_not_at_all(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """Whoever died left rows in it; "cannot be looked at" is no "there is none". What was loaded by then goes out."""
    site, library, jobs = (
        SiteUnderTest(tmp_path, pki, fake_ams),
        failing_calls.library(),
        list(generate(1, 4, START, END)),
    )
    site.save()
    site.fill(*jobs[:2])
    database = site.database()
    with closing(sqlite3.connect(database)) as reader:
        reader.execute("PRAGMA journal_mode = WAL")
        site.fill(*jobs[2:])
        left = {path: path.read_bytes() for path in (database, database.with_name(f"{database.name}-wal"))}
    for path, content in left.items():
        path.write_bytes(content)
    database.with_name(f"{database.name}-shm").unlink(missing_ok=True)
    number, hit = 0, "some call"
    while hit:
        number += 1
        site.forget()
        fake_ams.store.topics[PROJECT, TOPIC].log.clear()
        failure = Failure(where=f"{database}-wal", error="EIO", number=number)
        ended = failing_calls.run(library, site, PUBLISH, failure)
        hit = ended.hit
        assert (ended.status, len(site.received())) in ((0, 4), (66, 0), (66, 4)), ended
    assert number > 3


def test_no_memory_to_wait_for_postgresql(request: pytest.FixtureRequest, bench: Bench) -> None:
    """poll(2) may fail too, in the driver."""
    site, server = bench.site, request.getfixturevalue("postgres")
    before = dict(site.config)
    site.config |= {"state": server.address, "instance": "memory", "state_directory": str(site.folder)}
    site.save()
    failure = Failure(where=SOCKETS, error="ENOMEM", number=5, forever=True)
    ended = failing_calls.run(bench.library, site, PUBLISH, failure)
    site.config = before
    site.save()
    assert ended.status == 74, ended
    assert "cannot wait for the server: Cannot allocate memory" in ended.err
    assert "a bug in" not in ended.err
