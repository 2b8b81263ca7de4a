"""The stand-in has the habits of the servers it stands for. Measured on both generations."""

import contextlib
import gzip
import http.client
import json
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from cryptography.x509 import Name

from tests.fake_sgas import (
    CONNECT,
    Act,
    FakeSGAS,
    Fault,
    TransferRow,
    bad_gateway,
    gateway_timeout,
    unavailable,
    values,
)
from tests.fake_sgas.authz import Spelling, nginx_dn
from tests.fake_sgas.documents import document, global_id, numbered, record, record_id
from tests.fake_sgas.failures import PROCESSING_FAILED, Crash, Refusal, Twisted
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI, Credential, parse_slash_dn

pytest_plugins = ["tests.fake_sgas.fixtures"]

HOST = "ce.example.org"


class Client:
    """One kept connection, with or without a certificate."""

    def __init__(self, fake: FakeSGAS, credential: Credential | None) -> None:
        context = ssl.create_default_context(cafile=str(fake.pki.bundle))
        if credential:
            context.load_cert_chain(credential.certificate, credential.key)
        self.connection = http.client.HTTPSConnection("localhost", fake.port, context=context, timeout=PATIENCE_S)

    def __call__(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        self.connection.request(method, path, body, headers or {})
        answer = self.connection.getresponse()
        return answer.status, answer.read().decode()

    def post(self, body: bytes) -> tuple[int, str]:
        return self("POST", "/sgas/ur", body)


@contextlib.contextmanager
def connected(fake: FakeSGAS, credential: Credential | None) -> Iterator[Client]:
    client = Client(fake, credential)
    try:
        yield client
    finally:
        client.connection.close()


@pytest.fixture
def host(pki: PKI) -> Credential:
    return pki.host(HOST)


@pytest.fixture
def client(fake_sgas: FakeSGAS, host: Credential) -> Iterator[Client]:
    fake_sgas.allow(host)
    with connected(fake_sgas, host) as made:
        yield made


@pytest.fixture
def release(pki: PKI, host: Credential) -> Iterator[tuple[FakeSGAS, Client]]:
    """The last release, 3.8.1."""
    with FakeSGAS(pki, generation="R") as fake:
        fake.allow(host)
        with connected(fake, host) as made:
            yield fake, made


# Rows


def test_a_record_becomes_a_row(fake_sgas: FakeSGAS, client: Client, host: Credential) -> None:
    status, reply = client.post(numbered([1]))
    assert (status, json.loads(reply)) == (200, {record_id(1): "1"})
    row = fake_sgas.rows[record_id(1)]
    assert (row.id, row.global_job_id, row.local_job_id) == (1, global_id(1), "1")
    assert (row.wall_s, row.cpu_s, row.processors, row.node_count) == (3600, 3120, 4, None)
    assert (row.global_user_name, row.local_user_id) == ("/DC=org/DC=example/CN=Åsa Öberg", "griduser")
    assert (row.vo_type, row.vo_name, row.vo_attributes) == ("voms", "atlas", (("/atlas", "Role=production"),))
    assert row.start_time == datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert row.insert_identity == nginx_dn(host.x509.subject, "comma")


def test_reading_has_its_ways(fake_sgas: FakeSGAS, client: Client) -> None:
    extra = (
        "<urf:Host>wn2.example.org</urf:Host><urf:NodeCount>2</urf:NodeCount><sgas:ExitCode>-1</sgas:ExitCode>"
        "<sgas:UserTime>PT50M</sgas:UserTime><deisa:SubmitTime>2026-11-20T08:30:00+01:00</deisa:SubmitTime>"
        '<urf:Memory urf:storageUnit="KB" urf:type="physical">2</urf:Memory><urf:Memory urf:type="virtual">7</urf:Memory>'
        "<arc:RuntimeEnvironment>PYTHON</arc:RuntimeEnvironment><arc:RuntimeEnvironment>PYTHON</arc:RuntimeEnvironment>"
        "<tr:FileTransfers><tr:FileDownload><tr:URL>srm://x/å&amp;b</tr:URL><tr:Size>5</tr:Size>"
        "<tr:BypassCache>false</tr:BypassCache></tr:FileDownload>"
        "<tr:FileUpload><tr:URL>srm://y</tr:URL><tr:BypassCache>true</tr:BypassCache></tr:FileUpload></tr:FileTransfers>"
        "<urf:Network>12</urf:Network><urf:Disk></urf:Disk>"
    )
    assert client.post(document([record(1, extra=extra, name="fit & <plot>")]))[0] == 200
    row = fake_sgas.rows[record_id(1)]
    assert (row.host, row.node_count, row.exit_code, row.user_time_s) == ("wn2.example.org", 2, 255, 3000)
    assert row.submit_time == datetime(2026, 11, 20, 7, 30, tzinfo=UTC)
    assert row.memory == ((2048, "total", "physical"), (7, "total", None))
    assert (row.runtime_environments, row.job_name) == (("PYTHON",), "fit & <plot>")
    unset = {"started_at": None, "ended_at": None, "from_cache": None}
    assert row.transfers == (
        TransferRow(kind="download", url="srm://x/å&b", size_bytes=5, bypass_cache=False, **unset),
        TransferRow(kind="upload", url="srm://y", size_bytes=None, bypass_cache=None, **unset),
    )


def test_two_vos_become_one_and_nodes_become_processors(fake_sgas: FakeSGAS, client: Client) -> None:
    body = record(1).replace(b"<urf:Processors>4</urf:Processors>", b"<urf:NodeCount>3</urf:NodeCount>")
    body = body.replace(b"</vo:VO>", b'</vo:VO><vo:VO vo:type="other"><vo:Name>cms</vo:Name></vo:VO>')
    assert client.post(document([body]))[0] == 200
    row = fake_sgas.rows[record_id(1)]
    assert (row.vo_type, row.vo_name, row.vo_issuer) == ("other", "cms", "/CN=voms.example.org")
    assert (row.node_count, row.processors) == (None, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T08:00:00Z", (2026, 11, 20, 8)),
        ("20261120T0800", (2026, 11, 20, 8)),
        ("2026-W47-5T08:00:00.9", (2026, 11, 20, 8)),
        ("2026-11-20T08:00:00+01:30", (2026, 11, 20, 6, 30)),
        ("2026-11-20T08:00:00-0530", (2026, 11, 20, 13)),
        ("2026-11-20 08:00:00", None),
        ("2026-11-20", None),
        ("2026-11-20t08:00:00Z", None),
        ("2026-11-20T24:00:00Z", None),
        ("2026-11-20T08:00:60Z", None),
        ("1795000000", None),
    ],
)
def test_times_are_read_or_lost(text: str, expected: tuple[int, ...] | None) -> None:
    assert values.moment(text) == (datetime(*expected, tzinfo=UTC) if expected else None)  # type: ignore[misc, arg-type]  # a tuple of unknown length


NULLS: list[tuple[str, None]] = [("3600", None), ("pt1h", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H", 3600),
        ("PT100H100M", 366000),
        ("P2D", 172800),
        ("P", 0),
        ("-PT5S", -5),
        ("PT1.9S", 1),
        ("P1Y", None),
        *NULLS,
    ],
)
def test_durations_are_read_or_lost(text: str, expected: int | None) -> None:
    assert values.seconds(text) == expected


def test_bit_units_and_metrics() -> None:
    assert values.memory("8", "Kb", None, None, "R") == (1024, "total", None)
    assert values.memory("8", "KiB", "max", "shared", "H") == (8, "max", "shared")
    for text, unit, metric in (("8", "Kb", None), ("8", "KB", "median"), ("x", "KB", None)):
        with pytest.raises(Refusal):
            values.memory(text, unit, metric, None, "H")


# One bad record loses the batch

CRASHES = {
    "not well-formed": "<urf:JobName>a & b</urf:JobName>",
    "empty number": "<urf:Processors></urf:Processors>",
    "empty time": "<urf:EndTime/>",
    "empty duration": "<urf:WallDuration/>",
    "exit code in words": "<sgas:ExitCode>killed</sgas:ExitCode>",
    "charge NaN": "<urf:Charge>NaN</urf:Charge>",
    "CPU beside a bad one": "<urf:CpuDuration>90</urf:CpuDuration>",
    "transfer without URL": "<tr:FileTransfers><tr:FileDownload/></tr:FileTransfers>",
    "control character": "<urf:JobName>&#1;</urf:JobName>",
    "no machine": "<urf:MachineName></urf:MachineName>",
    "time over the edge": "<urf:EndTime>0001-01-01T00:00:00+01:00</urf:EndTime>",
}
REFUSALS = {
    "value too long for type character varying(200)": f"<urf:Queue>{'q' * 201}</urf:Queue>",
    "value too long for type character varying(100)": f"<urf:Status>{'s' * 101}</urf:Status>",
    "value too long for type character varying(512)": f"<arc:RuntimeEnvironment>{'r' * 513}</arc:RuntimeEnvironment>",
    "smallint out of range": "<urf:NodeCount>32768</urf:NodeCount>",
    "function urcreate(": "<urf:WallDuration>PT2147483648S</urf:WallDuration>",
    "bigint out of range": '<urf:Memory urf:storageUnit="EB">9</urf:Memory>',
    "SgasMemory": '<urf:Memory urf:storageUnit="Kb">9</urf:Memory>',
    "for *: 'NoneType'": "<urf:Memory>much</urf:Memory>",
}


@pytest.mark.parametrize("extra", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("twisted", ["old", "new"])
def test_what_brings_the_parser_down_is_a_page(pki: PKI, host: Credential, extra: str, twisted: Twisted) -> None:
    with FakeSGAS(pki, twisted=twisted) as fake, connected(fake, host) as client:
        fake.allow(host)
        status, text = client.post(document([record(1), record(2, extra=extra)]))
        assert status == 500
        assert not fake.rows
        if twisted == "new":
            assert text.encode() == PROCESSING_FAILED
            assert len(text) == 95
        else:
            assert "web.Server Traceback" in text
            assert text.count('<div class="error">') == 2
            assert 5_000 < len(text) < 12_000
        assert client.post(numbered([1]))[0] == 200, "the connection is kept after a 500"


@pytest.mark.parametrize(("words", "extra"), REFUSALS.items(), ids=REFUSALS)
def test_what_the_database_refuses_is_plain_text(fake_sgas: FakeSGAS, client: Client, words: str, extra: str) -> None:
    status, text = client.post(document([record(1), record(2, extra=extra)]))
    assert (status, fake_sgas.rows) == (500, {})
    assert words in text.splitlines()[0]
    assert not text.startswith("<")


def test_a_missing_record_id_shows_the_row_and_a_missing_create_time_does_not(client: Client) -> None:
    status, text = client.post(
        document([record(1, identity='<urf:RecordIdentity urf:createTime="2026-11-20T10:00:00Z"/>')])
    )
    assert (status, text.splitlines()[0]) == (
        500,
        'null value in column "record_id" of relation "usagedata" violates not-null constraint',
    )
    status, text = client.post(document([record(1, identity='<urf:RecordIdentity recordId="x" createTime="y"/>')]))
    assert (status, "TypeError" in text) == (500, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"<UsageRecords/>",
        b'<a xmlns="http://schema.ogf.org/urf/2003/09/urf"/>',
        b" " + numbered([1]),
        numbered([1]).replace("Å".encode(), b"\xc5"),
        document([b"<urf:Job/>"]),
    ],
)
def test_bodies_that_are_no_usage_records(client: Client, body: bytes) -> None:
    status, text = client.post(body)
    assert (status, "Traceback" in text) == (500, True)


def test_an_empty_document_is_fine_and_so_is_a_single_record(fake_sgas: FakeSGAS, client: Client) -> None:
    assert client.post(b'<UsageRecords xmlns="http://schema.ogf.org/urf/2003/09/urf"/>') == (200, "{}")
    single = record(1).replace(
        b"<urf:JobUsageRecord>", numbered([]).split(b"\n")[1].replace(b"UsageRecords", b"JobUsageRecord")
    )
    assert client.post(single)[0] == 200
    assert list(fake_sgas.rows) == [record_id(1)]


def test_the_declaration_counts_for_the_release_only(
    release: tuple[FakeSGAS, Client], fake_sgas: FakeSGAS, client: Client
) -> None:
    body = numbered([1]).replace(b'encoding="UTF-8"', b'encoding="ISO-8859-1"')
    old, its_client = release
    assert (client.post(body)[0], its_client.post(body)[0]) == (200, 200)
    assert fake_sgas.rows[record_id(1)].global_user_name == "/DC=org/DC=example/CN=Åsa Öberg"
    assert old.rows[record_id(1)].global_user_name == "/DC=org/DC=example/CN=Ã\x85sa Ã\x96berg"


# Duplicates


def test_a_copy_is_answered_like_an_insert_and_thrown_away(fake_sgas: FakeSGAS, client: Client) -> None:
    first = client.post(numbered([1, 2]))
    assert client.post(document([record(1, name="changed"), record(2)])) == first
    assert fake_sgas.rows[record_id(1)].job_name == "job 1"
    assert json.loads(client.post(document([record(3), record(3, name="again")]))[1]) == {record_id(3): "5"}


def test_another_global_id_replaces_unless_children_hang_on_the_row(fake_sgas: FakeSGAS, client: Client) -> None:
    client.post(numbered([1]))
    assert json.loads(client.post(document([record(1, other_global_id="gsiftp://other")]))[1]) == {record_id(1): "2"}
    assert fake_sgas.rows[record_id(1)].global_job_id == "gsiftp://other"
    client.post(document([record(2, extra="<arc:RuntimeEnvironment>X</arc:RuntimeEnvironment>")]))
    status, text = client.post(document([record(3), record(2, other_global_id="gsiftp://other")]))
    assert (status, "violates foreign key constraint" in text) == (500, True)
    assert set(fake_sgas.rows) == {record_id(1), record_id(2)}
    assert client.post(document([record(2, other_global_id=record_id(2))]))[0] == 200, "the record id itself: kept"


def test_a_strange_local_id_costs_the_record_its_id(
    fake_sgas: FakeSGAS, client: Client, release: tuple[FakeSGAS, Client]
) -> None:
    body = document([record(1, local_id="x" * 41), record(2, local_id="/x"), record(3, local_id="x" * 121)])
    assert set(json.loads(client.post(body)[1])) == {record_id(1), global_id(2), global_id(3)}
    assert set(json.loads(release[1].post(body)[1])) == {global_id(1), global_id(2), global_id(3)}
    assert fake_sgas.rows[global_id(2)].local_job_id is None


def test_four_clients_at_once_store_fifty_rows(fake_sgas: FakeSGAS, host: Credential) -> None:
    fake_sgas.allow(host)
    body, replies = numbered(range(50)), []

    def send() -> None:
        with connected(fake_sgas, host) as client:
            replies.append(client.post(body))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake_sgas.rows) == 50
    assert replies == [replies[0]] * 4


# Rights


def test_nginx_wants_a_certificate_it_knows(fake_sgas: FakeSGAS, pki: PKI) -> None:
    for credential, words in (
        (None, "No required SSL certificate was sent"),
        (pki.other_ca_host(), "The SSL certificate error"),
        (pki.expired_host(), "The SSL certificate error"),
        (pki.revoked_host(), "The SSL certificate error"),
    ):
        with connected(fake_sgas, credential) as client:
            status, text = client("GET", "/sgas")
            assert (status, f"<title>400 {words}</title>" in text) == (400, True)
    assert fake_sgas.requests.handshake_failures == []


def test_no_right_and_the_wrong_machine(fake_sgas: FakeSGAS, host: Credential) -> None:
    dn = "CN=ce.example.org,OU=hosts,DC=example,DC=org"
    with connected(fake_sgas, host) as client:
        fake_sgas.allow(host, "insert", "query:all")
        status, text = client.post(b"not even read")
        assert (status, dn in text) == (403, True)
        fake_sgas.allow(host, "jobinsert:machine_name=grid.other.net;x.y.z")
        status, text = client.post(document([record(1), record(2, machine="CE.EXAMPLE.ORG")]))
        assert (status, "CE.EXAMPLE.ORG" in text, dn in text) == (406, True, True)
        assert not fake_sgas.rows
        for name, expected in (
            ("grid.other.net", 200),
            ("other.example.org", 200),
            ("org", 406),
            (" ce.example.org ", 406),
        ):
            assert client.post(document([record(1, machine=name)]))[0] == expected
        fake_sgas.allow(host, "jobinsert:all")
        assert client.post(document([record(2, machine="CE.EXAMPLE.ORG")]))[0] == 200


@pytest.mark.parametrize(
    ("subject", "spelling", "status"),
    [
        ("/DC=org/CN=Robot Publisher", "comma", 500),
        ("/DC=org/CN=host/ce.example.org", "slash", 500),
        ("/DC=org/CN=host/ce.example.org", "comma", 200),
        ("/C=SE/CN=ce.example.org/emailAddress=a@example.org", "slash", 500),
        ("/C=SE/CN=ce.example.org/emailAddress=a@example.org", "comma", 200),
        ("/C=SE/O=Åbo, Akademi/CN=ce.example.org", "comma", 200),
    ],
)
def test_a_common_name_must_be_a_host_name(pki: PKI, subject: str, spelling: Spelling, status: int) -> None:
    host = pki.host(HOST, subject=subject)
    with FakeSGAS(pki, spelling=spelling) as fake, connected(fake, host) as client:
        assert client.post(numbered([1]))[0] == 403
        fake.allow(host, "jobinsert:all")
        assert client.post(numbered([1]))[0] == status


def test_the_release_does_not_read_the_new_spelling(pki: PKI, host: Credential) -> None:
    with FakeSGAS(pki, generation="R", spelling="comma") as fake, connected(fake, host) as client:
        fake.allow(host)
        assert client.post(numbered([1]))[0] == 406
        fake.allow(host, "jobinsert:machine_name=ce.example.org")
        assert client.post(numbered([1]))[0] == 200


@pytest.mark.parametrize(
    "subject",
    [
        "/DC=org/DC=example/CN=ce.example.org",
        "/C=SE/O=Åbo, Akademi + Co/OU= #x /CN=host/ce.example.org",
        '/C=SE/O=a"b<c>d;e\\f/CN=x',
        "/C=SE/CN=ce.example.org/emailAddress=a@example.org",
    ],
)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_dns_are_spelt_as_openssl_spells_them(pki: PKI, subject: str) -> None:
    host = pki.host(HOST, subject=subject)
    said = subprocess.run(
        ["openssl", "x509", "-in", host.certificate, "-noout", "-subject", "-nameopt", "RFC2253"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert nginx_dn(host.x509.subject, "comma") == said.removeprefix("subject=").rstrip("\n")


def test_the_legacy_spelling_escapes_bytes_and_slashes() -> None:
    name: Name = parse_slash_dn("/C=SE/O=Åbo/CN=host/ce.example.org")
    assert nginx_dn(name, "slash") == "/C=SE/O=\\xC3\\x85bo/CN=host\\/ce.example.org"


# HTTP


def test_addresses_and_methods(fake_sgas: FakeSGAS, client: Client) -> None:
    body = numbered([1])
    for method, path, expected in (
        ("POST", "/sgas/ur?x=1", 200),
        ("POST", "//sgas//ur", 200),
        ("POST", "/sgas/ur/", 404),
        ("POST", "/sgas/UR", 404),
        ("POST", "/sgas", 405),
        ("GET", "/sgas/ur", 405),
        ("GET", "/sgas/", 404),
        ("HEAD", "/sgas/ur", 500),
        ("PUT", "/sgas/ur", 501),
    ):
        assert client(method, path, body if method in ("POST", "PUT") else None)[0] == expected, (method, path)
    assert client("POST", "/sgas/ur", body, {"Content-Type": "multipart/form-data"})[0] == 400
    assert {request.connection for request in fake_sgas.requests} == {1}


def test_the_service_list_names_the_insert_url(fake_sgas: FakeSGAS, client: Client) -> None:
    status, text = client("GET", "/sgas")
    assert status == 200
    assert f"<name>Registration</name><href>{fake_sgas.insert_url}</href>" in text
    assert "https://mapped:1234/sgas/ur" in client("GET", "/sgas", None, {"Host": "mapped:1234"})[1]


def test_replies_come_in_chunks_and_are_called_html(client: Client) -> None:
    client.connection.request("POST", "/sgas/ur", numbered([1]))
    answer = client.connection.getresponse()
    answer.read()
    assert answer.getheader("Content-Type") == "text/html"
    assert (answer.getheader("Transfer-Encoding"), answer.getheader("Content-Length")) == ("chunked", None)


def test_the_body_limit_is_exact_and_closes(fake_sgas: FakeSGAS, client: Client) -> None:
    body = numbered([1])
    fits = body + b" " * (2_097_152 - len(body))
    assert client.post(fits)[0] == 200
    status, text = client.post(fits + b" ")
    assert (status, "413 Request Entity Too Large" in text) == (413, True)
    assert client.post(body)[0] == 200
    assert fake_sgas.requests.connections == 2


def test_uploads_in_chunks_and_compressed_ones(client: Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield numbered([1])[:100]
        yield numbered([1])[100:]

    client.connection.request("POST", "/sgas/ur", pieces(), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert json.loads(client.connection.getresponse().read()) == {record_id(1): "1"}
    assert client("POST", "/sgas/ur", gzip.compress(numbered([2])), {"Content-Encoding": "gzip"})[0] == 500


# Faults


def test_a_restarted_database_confuses_each_generation_in_its_way(
    fake_sgas: FakeSGAS, client: Client, release: tuple[FakeSGAS, Client]
) -> None:
    fake_sgas.restart_database()
    assert client.post(numbered([1])) == (200, "null")
    assert set(fake_sgas.rows) == {record_id(1)}
    assert client.post(numbered([1])) == (200, json.dumps({record_id(1): "1"}))
    old, its_client = release
    old.restart_database()
    status, text = its_client.post(numbered([1]))
    assert (status, "insertJobUsageRecords" in text, old.rows) == (500, True, {})
    assert its_client.post(numbered([1]))[0] == 200


def test_a_database_that_is_down_or_unwilling(
    fake_sgas: FakeSGAS, client: Client, release: tuple[FakeSGAS, Client]
) -> None:
    old, its_client = release
    fake_sgas.database.down = old.database.down = True
    assert [client.post(numbered([1]))[0] for _ in range(2)] == [503, 503]
    assert [its_client.post(numbered([1]))[0] for _ in range(2)] == [500, 503]
    fake_sgas.database.down = False
    fake_sgas.database.refusal = "FATAL:  sorry, too many clients already"
    assert client.post(numbered([1])) == (500, "FATAL:  sorry, too many clients already")
    assert not fake_sgas.rows


@pytest.mark.parametrize(
    ("fault", "answer", "stored"),
    [
        (Fault.drop_without_storing(), None, False),
        (Fault.store_then_close(), None, True),
        (Fault.close_before_read(), None, False),
        (Fault.reset(), None, False),
        (bad_gateway(), 502, False),
        (bad_gateway(stored=True), 502, True),
        (unavailable(7), 503, False),
        (gateway_timeout(), 504, True),
        (Fault.delay(0.2), 200, True),
        (Fault.close_keepalive(), 200, True),
    ],
)
def test_every_fault_looks_as_it_says(
    fake_sgas: FakeSGAS, client: Client, fault: Fault, answer: Literal[200, 502, 503, 504] | None, stored: bool
) -> None:
    fake_sgas.faults.push(fault)
    began = time.monotonic()
    if answer is None:
        with pytest.raises((ConnectionError, http.client.HTTPException, ssl.SSLError)):
            client.post(numbered([1]))
        client.connection.close()
    else:
        assert client.post(numbered([1]))[0] == answer
    assert time.monotonic() - began >= fault.delay_s
    assert bool(fake_sgas.rows) is stored
    if fault.act is Act.CLOSE_AFTER:
        with pytest.raises((ConnectionError, http.client.HTTPException, ssl.SSLError)):
            client.post(numbered([1]))
        client.connection.close()
    assert client.post(numbered([1]))[0] == 200
    assert len(fake_sgas.rows) == 1
    assert [request.fault for request in fake_sgas.requests.inserts] == [fault, None]


def test_connections_can_be_refused_and_cut(fake_sgas: FakeSGAS, client: Client) -> None:
    fake_sgas.faults.push(Fault.reset(), route=CONNECT)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        client.post(numbered([1]))
    client.connection.close()
    assert client.post(numbered([1]))[0] == 200
    fake_sgas.drop_connections()
    with pytest.raises((ConnectionError, http.client.HTTPException, ssl.SSLError)):
        client.post(numbered([1]))


def test_a_crash_is_told_by_its_class() -> None:
    with pytest.raises(Crash) as crash:
        values.integer(None)
    assert crash.value.kind == "TypeError"


def test_it_runs_by_hand(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_sgas", "--directory", str(tmp_path / "pki"), "--seconds", "0.1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "type: sgas" in done.stdout
    assert "# 0 rows, 0 requests" in done.stdout
