"""Random histories of one accounting database, published in between, with and without luck: every job arrives, once.

A history is a list of events as A-REX, administrators and networks bring them about. Whatever it was, after healthy
rounds the receiver's table (rows replace rows by key) equals the finished jobs of the database.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from tests.arex_databases import SampleJob, Step, Writer, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.tables import Tables
from tests.support.pki import PKI
from tests.support.sites import Row, SiteUnderTest, told, truth
from tests.support.strategies import examples
from tests.support.strict_apel import read_car

JOBS: Final = 12


def at(job: SampleJob, end_time: int) -> SampleJob:
    """The job at another time, all of it."""
    later = end_time - job.end_time
    events = tuple(replace(event, at=event.at + later) for event in job.events)
    return replace(job, submit_time=job.submit_time + later, end_time=end_time, events=events)


# Rows are neither in the order of their ends nor is each end its own: neighbours are swapped, three share a second.
POOL: Final = [
    replace(at(job, 1_792_800_000 + 60 * ((number ^ 1) // 3)), local_job_id=str(1000 + number))
    for number, job in enumerate(
        generate(11, JOBS, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
    )
]
Event = tuple[str, Any, Any]

FAULTS: Final[dict[str, Callable[[], Fault]]] = {
    "answer lost": Fault.store_then_close,
    "not stored, no answer": Fault.drop_without_storing,
    "503": lambda: Fault.status(503),
    "500 but stored": lambda: Fault.status(500, handled=True),
    "502": lambda: Fault.status(502),
    "reset": Fault.reset,
    "too large": lambda: Fault.status(413),
    "no right": lambda: Fault.status(403),
}
# Faults after which the message may stand at the receiver although no receipt came.
STORED: Final = frozenset({"answer lost", "500 but stored"})

number = st.integers(0, JOBS - 1)
event = st.one_of(
    st.tuples(st.just("accept"), number, st.none()),
    st.tuples(st.just("finish"), number, st.none()),
    st.tuples(st.just("finish"), number, st.none()),
    st.tuples(st.just("tear"), number, st.sampled_from(("aar", "rte", "transfers", "extra"))),
    st.tuples(st.just("complete"), number, st.none()),
    st.tuples(st.just("again"), number, st.sampled_from(("alike", "later end", "other values", "other run"))),
    st.tuples(st.just("publish"), st.lists(st.sampled_from(("fine", *FAULTS)), max_size=3), st.integers(0, 4)),
    st.tuples(st.just("publish"), st.just([]), st.just(0)),
    st.tuples(st.just("a day passes"), st.none(), st.none()),
    st.tuples(st.just("rotate"), st.randoms(use_true_random=False), st.none()),
)


@dataclass(slots=True, kw_only=True)
class World:
    """A-REX's side of the story, and what the test knows to be true."""

    site: SiteUnderTest
    writer: Writer
    accepted: dict[int, SampleJob] = field(default_factory=dict)  # in the order of their rows; running or torn
    torn: dict[int, Step] = field(default_factory=dict)
    done: dict[int, SampleJob] = field(default_factory=dict)
    runs: dict[str, set[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(set))  # by local id, ever true
    may_be_stored: int = 0

    def accept(self, which: int, _: None) -> None:
        if which not in self.accepted:
            self.accepted[which] = POOL[which]
            self.writer.accept(POOL[which])

    def finish(self, which: int, _: None) -> None:
        self.accept(which, None)
        if which not in self.done and which not in self.torn:
            self.writer.finish(POOL[which])
            self._true(which, POOL[which])

    def tear(self, which: int, step: Step) -> None:
        self.accept(which, None)
        if which not in self.done and which not in self.torn:
            self.writer.finish(POOL[which], stop_after=step)
            self.torn[which] = step

    def complete(self, which: int, _: None) -> None:
        if which in self.torn:
            self.writer.complete(POOL[which])
            del self.torn[which]
            self._true(which, POOL[which])

    def again(self, which: int, how: str) -> None:
        if which not in self.done:
            return
        job = self.done[which]
        match how:
            case "later end":
                job = job.moved_to(job.end_time + 600)
            case "other values":
                job = replace(job.moved_to(job.end_time + 600), wall_s=job.wall_s + 7, cpu_user_s=job.cpu_user_s + 3)
            case "other run":
                job = replace(job.moved_to(job.end_time + 600), local_job_id=f"{job.local_job_id}1")
        self.writer.finish_again(job)
        self._true(which, job)

    def publish(self, faults: list[str], limit: int) -> None:
        self.may_be_stored += sum(fault in STORED for fault in faults)
        self.site.fake.faults.push(*(FAULTS[name]() if name in FAULTS else Fault.none() for name in faults))
        run = self.site.publish(*(("--limit", str(limit)) if limit else ()))
        assert run.status in (0, 65, 75, 77), run.out + run.err
        self.site.fake.faults.clear()

    def a_day_passes(self, *_: None) -> None:
        if self.site.state.exists():
            with closing(sqlite3.connect(self.site.state)) as connection, connection:
                connection.execute("UPDATE target SET swept = swept - 90000")

    def rotate(self, chance: random.Random, _: None) -> None:
        """All rows under other numbers, in another order, in a new file."""
        self.writer.close()
        self.site.database().unlink()
        order = list(self.accepted)
        chance.shuffle(order)
        self.accepted = {which: self.accepted[which] for which in order}
        self.writer = Writer(self.site.database(), schema=2)
        for which in order:
            self.writer.accept(POOL[which])
            if which in self.done:
                self.writer.finish(self.done[which])
            elif which in self.torn:
                self.writer.finish(POOL[which], stop_after=self.torn[which])

    def _true(self, which: int, job: SampleJob) -> None:
        self.done[which] = job
        self.runs[job.local_job_id or ""].add(values(truth(job)))


def values(what: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of a record may change, and make it worth sending again, under the end time of the first."""
    _, _, *rest = what
    return tuple(rest)


def received(site: SiteUnderTest) -> list[tuple[str, list[Row]]]:
    """Message id and rows of every message, in order."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    return [
        (message.attributes["empaid"], read_car(receiver.take(message).text.encode(), datetime.now(UTC)))
        for message in site.fake.messages(PROJECT, TOPIC)
    ]


def assert_the_receiver_has_it_all(world: World) -> None:
    site = world.site
    messages = received(site)
    tables = Tables()
    contents = {message_id: {str(row["LocalJobId"]) for row in rows} for message_id, rows in messages}

    def is_half(part: str, whole: str) -> bool:
        return world.may_be_stored > 0 and contents[part] < contents[whole]

    ends: dict[str, set[int]] = defaultdict(set)
    carried: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(dict)
    for message_id, rows in messages:
        for row in rows:
            local_id, what = str(row["LocalJobId"]), values(told(row))
            assert what in world.runs[local_id], f"{local_id} was never so: {what}"
            ends[local_id].add(row["EndTime"])
            tables.replace("JobRecords", row)
            for other, before in carried[local_id].items():
                # What was too large when it was sent again after a lost answer goes in halves, under ids of their own.
                assert other == message_id or before != what or is_half(message_id, other), f"{local_id} went out twice"
            carried[local_id][message_id] = what
    assert all(len(moments) == 1 for moments in ends.values()), "the end of a run is a part of its key and never moves"
    repeated = len(messages) - len({message_id for message_id, _ in messages})
    assert repeated <= world.may_be_stored, "only a message whose answer was lost goes twice"

    stored = {str(row["LocalJobId"]): values(told(dict(row))) for row in tables.rows("JobRecords")}
    for job in world.done.values():
        assert stored.get(str(job.local_job_id)) == values(truth(job)), f"job {job.local_job_id} is not as it is now"
    torn = {str(POOL[which].local_job_id) for which in world.torn}
    running = {str(POOL[which].local_job_id) for which in world.accepted if which not in world.done} - torn
    assert not stored.keys() & (torn | running), "what is not finished, or not whole, waits"


@settings(
    max_examples=examples(50),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(event, max_size=22), batch_records=st.sampled_from((1, 2, 5)))
@example(
    history=[
        *[("finish", which, None) for which in range(6)],
        ("publish", ["answer lost"], 0),
        ("again", 0, "other values"),
        ("again", 1, "other run"),
        ("finish", 9, None),
        ("publish", ["503"], 0),
        ("rotate", random.Random(3), None),
        ("tear", 7, "aar"),
        ("publish", ["too large", "500 but stored"], 0),
    ],
    batch_records=5,
)
@example(history=[("tear", 3, "aar"), ("publish", [], 0), ("finish", 4, None), ("publish", [], 0)], batch_records=2)
@example(
    history=[("finish", 8, None), ("publish", [], 0), ("again", 8, "later end"), ("a day passes", None, None)],
    batch_records=5,
)
def test_whatever_happened_every_job_arrives_once(pki: PKI, history: list[Event], batch_records: int) -> None:
    with tempfile.TemporaryDirectory(prefix="test-history-") as name, FakeAMS(pki) as fake:
        site = SiteUnderTest(Path(name), pki, fake)
        site.config["targets"]["egi"] |= {"batch_records": batch_records, "attempts": 1}
        world = World(site=site, writer=Writer(site.database(), schema=2))
        for what, one, other in history:
            note(f"{what} {one} {other}")
            getattr(world, what.replace(" ", "_"))(one, other)
        world.a_day_passes()
        if site.run("quarantine", "list", "--json").json["quarantined"]:
            # A record that was too large all alone; the service will not say so again.
            assert site.run("quarantine", "release", "--all").status == 0
        healthy = site.publish()
        assert healthy.status == 0, healthy.out + healthy.err
        assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
        assert_the_receiver_has_it_all(world)
        status = site.run("status", "--json").json["targets"]["egi"]
        assert (status["pending"], status["in_doubt"], status["quarantined"]) == (0, 0, 0)
        world.writer.close()
