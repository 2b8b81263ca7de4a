"""Targets are independent: one that hangs delays no other, many share one ledger, and SIGTERM ends all of them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from publisher.cli import progress
from publisher.cli.commands import load_site
from publisher.ledger.contract import Ledger
from publisher.policy.target import Target
from publisher.publishing.databases.known import AccountingData
from publisher.publishing.publish import for_each_target
from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, FakeAMS
from tests.support.forks import Child, publisher
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def fill(site: SiteUnderTest, count: int) -> list[SampleJob]:
    jobs = list(generate(1, count, START, END))
    site.fill(*jobs)
    return jobs


def no_answer(stack: ExitStack, site: SiteUnderTest, good: dict[str, Any]) -> dict[str, Any]:
    """The message arrives, and nothing comes back."""
    fake = stack.enter_context(FakeAMS(site.pki))
    fake.bind(site.host, site.user)
    fake.faults.always(Fault.delay(FOR_EVER_S))
    return {**good, "url": fake.url, "auth_url": fake.auth_url}


def no_handshake(stack: ExitStack, site: SiteUnderTest, good: dict[str, Any]) -> dict[str, Any]:
    """The kernel takes the connection; nobody ever says a word of TLS."""
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {**good, "auth_url": f"https://localhost:{silent.getsockname()[1]}"}


def endless_answer(stack: ExitStack, site: SiteUnderTest, good: dict[str, Any]) -> dict[str, Any]:
    """A header that never ends, a byte at a time: no single read takes long."""
    fake = stack.enter_context(FakeAMS(site.pki))
    fake.bind(site.host, site.user)
    fake.faults.always(Fault.drip(seconds=FOR_EVER_S))
    return {**good, "url": fake.url, "auth_url": fake.auth_url}


HANGS = {"no answer": no_answer, "no handshake": no_handshake, "endless answer": endless_answer}


@contextmanager
def publishing(site: SiteUnderTest, *command: str) -> Iterator[Child]:
    """A real `publisher` process; killed at the end, should it still be there."""
    child = publisher(site, *command)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def delivered(site: SiteUnderTest) -> dict[str, int]:
    """What the ledger has settled, by target."""
    targets = site.run("status", "--json").json["targets"]
    return {name: one["delivered"] for name, one in targets.items()}


@pytest.mark.parametrize("hangs", HANGS)
@pytest.mark.slow
def test_a_target_that_hangs_delays_no_other(site: SiteUnderTest, hangs: str) -> None:
    """Everything of the others has arrived while the first two of the file still wait; SIGTERM ends all of them."""
    jobs = fill(site, 60)
    good = {**site.config["targets"]["egi"], "batch_records": 20}
    site.fake.allow(site.user, "other")
    with ExitStack() as stack:
        hanging = HANGS[hangs](stack, site, good)
        site.config["targets"] = {
            "hangs": {**hanging, "topic": "hangs"},
            "hangs-too": {**hanging, "topic": "hangs-too"},
            "egi": good,
            "other": {**good, "topic": "other"},
        }
        site.save()
        with publishing(site, "publish", "--force") as child:
            assert site.fake.wait_for_messages(3, timeout_s=PATIENCE_S)
            assert site.fake.wait_for_messages(3, PROJECT, "other", timeout_s=PATIENCE_S)
            settled = {"hangs": 0, "hangs-too": 0, "egi": 60, "other": 60}
            deadline = time.monotonic() + PATIENCE_S
            while delivered(site) != settled and time.monotonic() < deadline:
                time.sleep(0.05)
            assert delivered(site) == settled
            assert child.poll() is None, "the hanging targets are still waited for"
            if hangs == "no answer":  # once is enough: it takes its seven seconds
                child.send_signal(signal.SIGTERM)
                _, err = child.communicate(timeout=PATIENCE_S)
                assert child.returncode == 75, err
                assert "Traceback" not in err
    assert Counter(map(told, site.received(with_openssl=False))) == Counter(map(truth, jobs))


@contextmanager
def slow_line(port: int, bytes_a_second: int) -> Iterator[int]:
    """A port whose connections reach another one, with so much of what clients send."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

        def carry(source: socket.socket, sink: socket.socket, pause_s: float) -> None:
            with suppress(OSError):
                while taken := source.recv(bytes_a_second // 10):
                    time.sleep(pause_s)
                    sink.sendall(taken)
                sink.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = opened.enter_context(listener.accept()[0])
                    server = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                    Thread(target=carry, args=(client, server, 0.1), daemon=True).start()
                    Thread(target=carry, args=(server, client, 0), daemon=True).start()

        accepting = Thread(target=accept, daemon=True)
        accepting.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["answers", "line"])
def test_a_slow_receiver_is_told_and_holds_up_nobody(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The other target has all before its first answer is there. 60 s an answer, and 1 kB/s, scaled."""
    jobs = fill(site, 40)
    good = {**site.config["targets"]["egi"], "batch_records": 20}
    site.fake.allow(site.user, "other")
    with ExitStack() as stack:
        slow = stack.enter_context(FakeAMS(site.pki))
        slow.bind(site.host, site.user)
        port = stack.enter_context(slow_line(slow.port, 16_000)) if what == "line" else slow.port
        there = {"url": f"https://localhost:{port}", "auth_url": slow.auth_url, "service_host": slow.service_host}
        site.config["targets"] = {"slow": {**good, **there}, "egi": good}
        site.save()
        if what == "answers":
            slow.faults.push(Fault.delay(3), Fault.delay(3))
        monkeypatch.setattr(progress, "SLOW_S", 2.5)
        run = site.publish()
        assert len(slow.messages()) == 2
    assert run.status == 0, run.err
    told_slow = [line for line in run.err.splitlines() if "a slow receiver: it took " in line]
    assert len(told_slow) == 1, run.err
    assert "WARNING target slow: " in told_slow[0]
    first_of_slow = run.err.index("target slow: message ")
    assert run.err.rindex("target egi: message ") < first_of_slow, "all of the other's messages were there before"
    assert Counter(map(told, site.received(with_openssl=False))) == Counter(map(truth, jobs))


def test_a_hanging_target_delays_no_republish(site: SiteUnderTest) -> None:
    fill(site, 30)
    with ExitStack() as stack:
        good = site.config["targets"]["egi"]
        site.config["targets"] = {"hangs": no_answer(stack, site, good), "egi": good}
        site.save()
        with publishing(site, "republish", "--from", "2026-10", "--to", "2026-10", "--yes") as child:
            assert site.fake.wait_for_messages(1, timeout_s=PATIENCE_S)
            assert child.poll() is None


@pytest.mark.slow
def test_many_targets_share_one_ledger(site: SiteUnderTest) -> None:
    """Eight at once, each with many short transactions: none fails for the others' locks, each gets every job once."""
    jobs = fill(site, 120)
    good = {**site.config["targets"]["egi"], "batch_records": 5}
    topics = [f"topic{number}" for number in range(8)]
    for topic in topics:
        site.fake.allow(site.user, topic)
    site.config["targets"] = {topic: {**good, "topic": topic} for topic in topics}
    site.save()
    run = site.publish()
    assert run.status == 0, run.err
    told_of = run.json["targets"]
    assert list(told_of) == topics, "in the order of the file"
    assert {(one["messages"], one["records"]) for one in told_of.values()} == {(24, len(jobs))}
    for topic in topics:
        messages = site.fake.messages(PROJECT, topic)
        assert len({message.attributes["empaid"] for message in messages}) == len(messages) == 24
    assert {one["outcome"] for one in site.publish().json["targets"].values()} == {"nothing"}


def test_progress_is_told_for_each_target(site: SiteUnderTest) -> None:
    """Log lines of targets that are worked on together name them, and none is torn."""
    fill(site, 40)
    good = {**site.config["targets"]["egi"], "batch_records": 5}
    site.fake.allow(site.user, "other")
    site.config["targets"] = {"egi": good, "other": {**good, "topic": "other"}}
    site.save()
    run = site.run("publish", "--force")
    lines = [line for line in run.err.splitlines() if " INFO " in line]
    assert len(lines) == 16
    for target in ("egi", "other"):
        assert sum(f"INFO target {target}: message " in line and "delivered: 5 records" in line for line in lines) == 8


def peak_kib(site: ConfiguredSite, targets: int, at_once: int) -> int:
    """Of a round in a process of its own, into spools."""
    site.config["targets"] = {
        f"t{number}": {"type": "spool", "path": str(site.folder / f"out{number}"), "format": "car", "start": "all"}
        | {"sign": False}
        for number in range(targets)
    }
    site.config["targets_at_once"] = at_once
    site.save()
    # Not ru_maxrss, which begins with that of whoever started the process.
    code = "import sys; from publisher.cli.main import run; run(sys.argv[1:]); "
    code += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    words = [sys.executable, "-c", code, "--config", str(site.path), "-q", "publish", "--force"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert len(list(site.folder.glob("out*[0-9]"))) == targets
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "targets", "most_mib"), [(1000, 20, 20), pytest.param(50, 500, 40, marks=pytest.mark.long)]
)
def test_memory_does_not_grow_with_the_number_of_targets(
    tmp_path: Path, pki: PKI, jobs: int, targets: int, most_mib: int
) -> None:
    """Measured: 10 MiB more for 20 targets; 113 when all of them work at the same time."""
    few, many = (ConfiguredSite(tmp_path / name, pki, pki.host(), {}) for name in ("few", "many"))
    for site in (few, many):
        site.fill(*generate(1, jobs, START, END))
    assert peak_kib(many, targets, 2) - peak_kib(few, 2, 2) < most_mib * 1024


def test_no_more_targets_than_configured_are_worked_on_at_once(site: SiteUnderTest) -> None:
    """Memory is for those at work. Each waits for a second one, so that a limit of one would show as well."""
    egi = site.config["targets"]["egi"]
    site.config["targets"] = {f"t{number}": {**egi, "topic": f"t{number}"} for number in range(8)}
    site.config["targets_at_once"] = 2
    site.save()
    at_work: set[str] = set()
    most: list[int] = []
    met = Barrier(2)

    def work(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        at_work.add(target.name)
        met.wait(PATIENCE_S)
        most.append(len(at_work))
        at_work.discard(target.name)
        return Outcome(target=target.name, outcome="nothing")

    live = load_site(site.path, Event())
    outcomes = for_each_target(live, live.targets, work)
    assert [outcome.target for outcome in outcomes] == [f"t{number}" for number in range(8)]
    assert max(most) == 2
