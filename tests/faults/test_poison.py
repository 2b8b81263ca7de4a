"""The last look before the wire: what would stop the receiver for everybody stays here, whoever wrote it and on whichever way.

AMS stores poison with a receipt, and then the receiver of all sites dies of it at every start (measured). So the payload is
looked at where it is signed, behind everything that could have made it: here it is changed in the ledger, as an older version,
a bug or a bad disk might have left it.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)

# What takes the place of ten bytes in a payload that is good otherwise.
POISON = {
    "no ASCII": "Å".encode() * 5,
    "latin-1": b"\xe5" * 10,
    "NUL": b"\0" * 10,
    "escape": b"\x1b[2Jxxxxxx",
    "delete": b"\x7f" * 10,
    "lone carriage return": b"\rxxxxxxxxx",
}
ENCRYPTED = b"Application/X-PKCS7-Mime"


def fill(site: SiteUnderTest, count: int) -> list[SampleJob]:
    jobs = list(generate(1, count, START, END))
    site.fill(*jobs)
    return jobs


def leave_outstanding(site: SiteUnderTest, *command: str) -> None:
    """The command writes its message down, nobody takes it, and it may have arrived."""
    site.config["targets"]["egi"] |= {"attempts": 1}
    site.save()
    site.fake.faults.always(Fault.drop_without_storing())
    assert site.run(*command).status == 75
    site.fake.faults.clear()


def poisoned(payload: bytes, poison: bytes) -> bytes:
    """The payload with poison in the middle of its first record, as long as before."""
    at = len(payload) // 3
    return payload[:at] + poison + payload[at + len(poison) :]


def spoil(site: SiteUnderTest, poison: bytes, *, whole: bool = False) -> None:
    """As if it had been written down so, with its digest: a payload that was damaged later is not sent at all."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        rows = connection.execute("SELECT message, payload FROM outbox").fetchall()
        assert rows
        for number, payload in rows:
            bad = poison if whole else poisoned(payload, poison)
            connection.execute("UPDATE outbox SET payload = ? WHERE message = ?", (bad, number))
            digest = sha256(bad).digest()
            connection.execute("UPDATE message SET digest = ?, checksum = NULL WHERE id = ?", (digest, number))


def assert_harmless(site: SiteUnderTest) -> None:
    """Nothing at AMS that APEL's receiver would stumble over, and no id that AMS could not store."""
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    for message in site.fake.messages(PROJECT, TOPIC):
        text = receiver.take(message).text
        assert text.isascii()
        assert text.strip()
        assert "pkcs7-mime" not in text.lower()
        assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in text)


@pytest.mark.parametrize("name", [*POISON, "words that look encrypted"])
def test_what_would_stop_the_receiver_never_leaves_the_ledger(site: SiteUnderTest, name: str) -> None:
    """The record that holds it is set aside, its neighbours go out."""
    jobs = fill(site, 8)
    leave_outstanding(site, "publish", "--force")
    spoil(site, POISON.get(name, ENCRYPTED))
    run = site.publish()
    assert run.status == 65, run.out + run.err
    told_of = run.json["targets"]["egi"]
    assert 1 <= told_of["quarantined"] <= 2, "of two only when the cut went through the poison's neighbour"
    assert told_of["records"] == len(jobs) - told_of["quarantined"]
    held = site.run("quarantine", "list", "--json").json["quarantined"]
    assert {one["rule"] for one in held} == {"refused-by-receiver"}
    assert_harmless(site)


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n \n"], ids=["empty", "a line end", "blanks"])
def test_an_empty_message_never_leaves(site: SiteUnderTest, content: bytes) -> None:
    fill(site, 1)
    leave_outstanding(site, "publish", "--force")
    spoil(site, content, whole=True)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["quarantined"]) == (65, 1)
    assert site.fake.messages(PROJECT, TOPIC) == []


@pytest.mark.parametrize(
    "bad", ['20261121/a"b', "20261121/a\\b", "a\nb", ""], ids=["quote", "backslash", "line", "none"]
)
def test_an_id_that_would_corrupt_the_topic_never_leaves(site: SiteUnderTest, bad: str) -> None:
    fill(site, 1)
    leave_outstanding(site, "publish", "--force")
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE message SET message_id = ?", (bad,))
    assert site.publish().status == 65, "it is not the message that was in flight"
    assert site.fake.messages(PROJECT, TOPIC) == []


COMMANDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "republish": ({}, ("republish", "--from", "2026-10", "--to", "2026-10", "--yes")),
    "text jobs": ({"format": "apel-job-0.3"}, ("publish", "--force")),
    "summaries": ({"format": "apel-summary-0.4"}, ("publish", "--force")),
    "summaries again": (
        {"format": "apel-summary-0.4"},
        ("republish", "--from", "2026-10", "--to", "2026-10", "--yes"),
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_format_passes_the_same_look(site: SiteUnderTest, name: str) -> None:
    options, command = COMMANDS[name]
    fill(site, 6)
    site.config["targets"]["egi"] |= options
    leave_outstanding(site, *command)
    spoil(site, "Å".encode() * 5)
    run = site.run(*command)
    # A row of totals that is refused is planned again in the same round, and rendered without the poison.
    assert run.status == (0 if name.startswith("summaries") else 65), run.out + run.err
    for message in site.fake.messages(PROJECT, TOPIC):
        receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
        assert receiver.take(message).text.isascii()


def test_counts_pass_it_too(site: SiteUnderTest) -> None:
    fill(site, 6)
    site.config["targets"]["egi"] |= {"sync": True}
    assert site.publish().status == 0
    before = len(site.fake.messages(PROJECT, TOPIC))
    leave_outstanding(site, "sync")
    spoil(site, "Å".encode() * 5)
    assert site.run("sync").status == 65
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    for message in site.fake.messages(PROJECT, TOPIC)[before:]:
        assert receiver.take(message).text.isascii()


@pytest.mark.parametrize("layout", ["flat", "dirq"])
@pytest.mark.parametrize("sign", [True, False])
def test_files_for_another_sender_pass_it_too(site: SiteUnderTest, layout: str, sign: bool) -> None:
    """What ssmsend would sign and send as it is."""
    jobs = fill(site, 4)
    spool = site.folder / "outgoing"
    # Sent to AMS without an answer, the message stays in the ledger.
    site.config["targets"] = {"hand-over": site.config["targets"]["egi"] | {"attempts": 1}}
    site.save()
    site.fake.faults.always(Fault.drop_without_storing())
    assert site.publish().status == 75
    spoil(site, "Å".encode() * 5)
    site.config["targets"] = {
        "hand-over": {
            "type": "spool",
            "path": str(spool),
            "layout": layout,
            "sign": sign,
            "format": "car",
            "start": "all",
        }
    }
    site.save()
    assert site.run("receiver", "same", "hand-over").status == 0
    run = site.publish()
    assert (run.status, run.json["targets"]["hand-over"]["records"]) == (65, len(jobs) - 1)
    files = [path for path in spool.rglob("*") if path.is_file()]
    assert files
    assert all(path.read_bytes().isascii() for path in files)


def test_attributes_hold_the_id_and_nothing_else(site: SiteUnderTest) -> None:
    fill(site, 3)
    assert site.publish().status == 0
    (request,) = site.fake.requests.on("publish")
    (message,) = json.loads(request.body)["messages"]
    assert list(message["attributes"]) == ["empaid"]
    assert message["data"]
