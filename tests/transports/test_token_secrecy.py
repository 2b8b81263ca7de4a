"""The token of AMS is printed nowhere, whole or in part, whatever the services answer."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.transports.ams.responses import token_verdict
from publisher.transports.http.exchange import Answer
from tests.arex_databases import generate
from tests.fake_ams import FakeAMS, Fault
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

TOKEN = "5ec2e7aa" * 8
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DOCUMENT = f'{{\n "token": "{TOKEN}"\n}}'.encode()

AUTHN_FAULTS = {
    "cut short": Fault.body(200, DOCUMENT[:-20], length=len(DOCUMENT)),
    "more announced than sent": Fault.body(200, DOCUMENT, length=4_000),
    "less announced than sent": Fault.raw(HEAD + b"Content-Length: 10\r\n\r\n" + DOCUMENT),
    "JSON that ends too early": Fault.body(200, DOCUMENT[:-1]),
    "not a string": Fault.body(200, json.dumps({"token": [TOKEN]}).encode()),
    "under another name": Fault.body(200, json.dumps({"apikey": TOKEN}).encode()),
    "bare": Fault.body(200, TOKEN.encode()),
    "another status of success": Fault.body(201, DOCUMENT),
    "a part": Fault.body(206, DOCUMENT[:60]),
    "no HTTP": Fault.raw(DOCUMENT + b"\r\n\r\n"),
    "no HTTP, on one line": Fault.raw(f"HTTP/{TOKEN} 200 OK\r\n\r\n".encode()),
    "in place of a header": Fault.raw(HEAD + DOCUMENT[1:] + b"\r\n\r\n"),
    "no line between head and body": Fault.raw(HEAD + b"\xff\n" + TOKEN.encode() + b"\n" + DOCUMENT + b"\r\n\r\n"),
    "a broken chunk": Fault.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + DOCUMENT + b"\r\n"),
}


def pieces(token: str) -> set[str]:
    return {token[at : at + 8] for at in range(len(token) - 7)}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"] |= {"attempts": 1, "read_timeout_s": "3s"}
    made.fill(*generate(1, 5, START, END))
    return made


def assert_withheld(site: SiteUnderTest, token: str, runs: list[Run], caplog: pytest.LogCaptureFixture) -> None:
    told = [run.out + run.err for run in runs]
    told += [site.run(*command).out for command in (("status",), ("status", "--json"))]
    ours = [record for record in caplog.records if record.name.startswith("publisher")]  # no other log is printed
    told += [record.getMessage() + str(record.exc_info or "") for record in ours]
    told += [path.read_bytes().decode("latin-1") for path in site.state.parent.glob(f"{site.state.name}*")]
    for text in told:
        assert not [piece for piece in pieces(token) if piece in text], text


@pytest.mark.parametrize("fault", AUTHN_FAULTS.values(), ids=AUTHN_FAULTS)
@pytest.mark.some(2)
def test_no_answer_of_the_token_service_shows_the_token(
    site: SiteUnderTest, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.DEBUG)
    site.fake.faults.always(fault, service="authn", route="authx509")
    runs = [site.run("-vv", "publish", "--force"), site.run("-vv", "doctor"), site.run("-vv", "doctor", "--json")]
    assert runs[0].status in (75, 76, 77, 78), runs[0].err
    shown = runs[0].out + runs[0].err
    assert "authn" in shown or site.fake.auth_url.removeprefix("https://") in shown
    assert_withheld(site, TOKEN, runs, caplog)


@pytest.mark.parametrize("status", [200, 206, 302, 400, 403, 404, 500, 502])
@pytest.mark.parametrize("before", [0, 150, 190])
@pytest.mark.some(3)
def test_an_answer_that_echoes_the_request_shows_no_token(
    site: SiteUnderTest, caplog: pytest.LogCaptureFixture, status: int, before: int
) -> None:
    """Where the quotation is cut, no part of the token is left over."""
    caplog.set_level(logging.DEBUG)
    token = site.fake.token(site.user)
    echo = b"." * before + f" x-api-key: {token} ".encode()
    location = f"https://elsewhere.example.org/{'x' * min(before, 50)}?key={token}"
    site.fake.faults.always(Fault.status(status, echo, headers=(("Location", location),)), route="publish")
    run = site.run("-vv", "publish", "--force")
    assert run.status in (65, 75, 76, 77, 78), run.err
    assert_withheld(site, token, [run], caplog)


@pytest.mark.parametrize("status", [200, 201, 202, 206])
@pytest.mark.parametrize("complete", [True, False])
def test_a_success_of_authn_without_a_token_is_never_quoted(status: int, complete: bool) -> None:
    decision = token_verdict(Answer(status=status, body=b'{"tocken": "s3cret"}', complete=complete))
    assert decision.reason
    assert "s3cret" not in decision.reason
