"""SIGTERM: between two messages, and in the middle of one that is not answered."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.forks import Child, publisher
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def end(child: Child) -> str:
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=PATIENCE_S)
    return err


@pytest.mark.slow
def test_between_two_messages(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"] |= {"batch_records": 5}
    site.save()
    jobs = list(generate(1, 500, START, END))
    site.fill(*jobs)
    fake_ams.faults.push(*[Fault.none()] * 3)
    fake_ams.faults.always(Fault.delay(1))  # so that the signal comes before the end also where all are slow
    child = publisher(site, "publish")
    fake_ams.wait_for_messages(3)
    err = end(child)
    fake_ams.faults.clear()
    assert child.returncode == 75, err
    assert "Traceback" not in err
    assert 0 < len(fake_ams.messages("accounting", "gLite-APEL")) < 100
    assert site.publish().status == 0
    arrived = [told(row) for row in site.received(with_openssl=False)]
    assert sorted(arrived) == sorted(truth(job) for job in jobs), "all of them, once"


@pytest.mark.slow
def test_in_the_middle_of_a_message_that_is_not_answered(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.save()
    jobs = list(generate(1, 20, START, END))
    site.fill(*jobs)
    fake_ams.faults.push(Fault.delay(FOR_EVER_S))
    child = publisher(site, "publish")
    fake_ams.wait_for_messages(1)
    err = end(child)
    assert child.returncode == 75, err
    assert "Traceback" not in err
    assert site.publish().status == 0
    ids = {message.attributes["empaid"] for message in fake_ams.messages("accounting", "gLite-APEL")}
    assert len(ids) == 1, "the same message under the same id"
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in jobs}


def test_a_child_takes_an_interrupt() -> None:
    code = "import signal; raise SystemExit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


@pytest.mark.slow
def test_children_take_an_interrupt_also_when_the_tests_run_in_the_background() -> None:
    """A shell without job control starts them with SIGINT ignored, and what is ignored is inherited."""
    this = f"{__file__}::{test_a_child_takes_an_interrupt.__name__}"
    pytest = f"{shlex.quote(sys.executable)} -m pytest -q -n 0 -p no:cacheprovider {shlex.quote(this)}"
    command = ["/bin/sh", "-c", f"trap '' INT; exec {pytest}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
