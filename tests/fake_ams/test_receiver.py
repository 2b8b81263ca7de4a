"""The model of the far end accepts and refuses as the real receiver was measured to. Spec: SSM 4.0.0, APEL 2.5.0."""

import base64
import quopri
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7
from cryptography.x509.oid import NameOID

from tests.fake_ams import Message, Receiver, Refused, Tables
from tests.fake_ams.signature import has_legacy_text, have_openssl
from tests.support.pki import PKI, Credential

pytest_plugins = ["tests.fake_ams.fixtures"]

TEXT = "APEL-sync-message: v0.1\nSite: EXAMPLE-SITE\nMonth: 3  \n%%\n"
TEXT_SIGNED = [pkcs7.PKCS7Options.Text, pkcs7.PKCS7Options.DetachedSignature]
WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not have_openssl(), reason="no openssl command"))]


def sign(who: Credential, text: bytes = TEXT.encode(), *, options: list[pkcs7.PKCS7Options] | None = None) -> str:
    builder = pkcs7.PKCS7SignatureBuilder().set_data(text).add_signer(who.x509, who.private_key, hashes.SHA256())
    return builder.sign(Encoding.SMIME, TEXT_SIGNED if options is None else options).decode()


def stored(text: str | bytes, *, empaid: str | None = "20260101/1", corrupt: bool = False) -> Message:
    data = base64.b64encode(text.encode() if isinstance(text, str) else text).decode()
    attributes = {"empaid": empaid} if empaid else {"other": "x"}
    return Message(
        offset=0, attributes=attributes, data=data, publish_time="", size=len(data), sha256="", corrupt=corrupt
    )


def rule(receiver: Receiver, message: Message) -> str:
    with pytest.raises(Refused) as refused:
        receiver.take(message)
    return f"{'crash' if refused.value.crashes else 'reject'}: {refused.value.rule}"


@pytest.fixture(params=WAYS, ids=lambda openssl: "openssl" if openssl else "python")
def receiver(pki: PKI, request: pytest.FixtureRequest) -> Receiver:
    return Receiver.create(pki.ca_directory, with_openssl=request.param)


@pytest.mark.parametrize("key", ["rsa", "ec"])
@pytest.mark.parametrize("extra", [[], [pkcs7.PKCS7Options.NoCapabilities], [pkcs7.PKCS7Options.NoAttributes]])
def test_accepted(pki: PKI, receiver: Receiver, key: str, extra: list[pkcs7.PKCS7Options]) -> None:
    host = pki.host("ce/1.example.org", key="ec" if key == "ec" else "rsa", san=())
    verdict = receiver.take(stored(sign(host, options=TEXT_SIGNED + extra)))
    assert (verdict.text, verdict.signer, verdict.empaid) == (TEXT, host.subject, "20260101/1")
    assert verdict.inner_header.lower() == "content-type: text/plain"


def test_line_ends_do_not_matter(pki: PKI, receiver: Receiver) -> None:
    unix = sign(pki.host()).replace("\r\n", "\n")
    assert receiver.open(unix).text == receiver.open(unix.replace("\n", "\r\n")).text == TEXT
    assert receiver.open(unix + "afterwards\n").text == TEXT


@pytest.mark.skipif(not have_openssl(), reason="no openssl command")
def test_what_the_openssl_command_signs(pki: PKI, receiver: Receiver) -> None:
    host = pki.host()
    credential = ["-signer", str(host.certificate), "-inkey", str(host.key)]

    def signed(*options: str) -> str:
        command = ["openssl", "smime", "-sign", *credential, *options]
        return subprocess.run(command, input=TEXT, check=True, capture_output=True, text=True).stdout

    assert receiver.open(signed("-text")).text == TEXT
    assert rule(receiver, stored(signed())) == "reject: no inner header"
    assert rule(receiver, stored(signed("-nocerts", "-text"))) == "reject: not verified"
    assert rule(receiver, stored(signed("-text", "-nodetach"))) == "reject: taken for encrypted"
    assert rule(receiver, stored(signed("-text", "-binary"))) in ("reject: not verified", "reject: no inner header")
    chain = signed("-text", "-certfile", str(pki.bundle))
    only = Receiver.create(pki.ca_directory, allowed=[host.subject], with_openssl=receiver.with_openssl)
    assert rule(only, stored(chain)) == "reject: DN not allowed"


def test_messages_that_kill_the_receiver(pki: PKI, receiver: Receiver) -> None:
    good = sign(pki.host())
    assert rule(receiver, stored(good, corrupt=True)) == "crash: corrupt record"
    assert rule(receiver, stored(good, empaid=None)) == "crash: attributes without empaid"
    assert rule(receiver, stored("")) == "crash: no data"
    assert rule(receiver, stored(good.replace("EXAMPLE", "ÉXAMPLE"))) == "crash: not ASCII"
    cut = Message(offset=0, attributes={}, data="QUJDR", publish_time="", size=5, sha256="")
    assert rule(receiver, cut) == "crash: wrong base64 padding"


def test_messages_that_are_put_aside(pki: PKI, receiver: Receiver) -> None:
    host = pki.host()
    good = sign(host)
    cases = {
        " \n": "blank",
        TEXT: "not verified",
        good.replace("EXAMPLE", "EXEMPLA"): "not verified",
        good.replace("Month: 3  ", "Month: 3"): "not verified",
        "\n" + good: "not verified",
        sign(host, b"job: application/pkcs7-mime\n"): "taken for encrypted",
        sign(host, options=[pkcs7.PKCS7Options.DetachedSignature]): "no inner header",
        sign(pki.expired_host()): "signer not trusted",
        sign(pki.not_yet_valid_host()): "signer not trusted",
        sign(pki.other_ca_host()): "signer not trusted",
    }
    for text, expected in cases.items():
        assert rule(receiver, stored(text)) == f"reject: {expected}", text[:80]
    assert rule(Receiver.create(pki.ca_directory, allowed=["/CN=other"]), stored(good)) == "reject: DN not allowed"


def test_text_before_a_blank_line_is_lost_without_an_inner_header(pki: PKI, receiver: Receiver) -> None:
    half = sign(pki.host(), b"first\n\nsecond\n", options=[pkcs7.PKCS7Options.DetachedSignature])
    assert receiver.open(half).text == "second\n"


def test_transfer_encodings_of_the_inner_part(pki: PKI, receiver: Receiver) -> None:
    host, bare = pki.host(), [pkcs7.PKCS7Options.DetachedSignature]

    def inner(encoding: str, body: bytes) -> Message:
        head = f"Content-Type: text/plain\nContent-Transfer-Encoding: {encoding}\n\n".encode()
        return stored(sign(host, head + body, options=bare))

    quoted = quopri.encodestring("René\n".encode())
    assert receiver.take(inner("quoted-printable", quoted)).text == "René\n"
    latin = quopri.encodestring("René\n".encode("latin-1"))
    assert rule(receiver, inner("quoted-printable", latin)) == "crash: inner part not UTF-8"
    assert rule(receiver, inner("base64", b"QUJD\n")) == "crash: inner part in base64"
    assert receiver.take(inner("7bit", b"base64\n")).text == "base64\n"


def test_legacy_text_in_a_dn_is_noticed() -> None:
    for kind, legacy in ((x509.name._ASN1Type.BMPString, True), (x509.name._ASN1Type.UTF8String, False)):
        assert has_legacy_text(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "René", kind)])) is legacy


def test_both_ways_agree_on_the_signer(pki: PKI, tmp_path: Path) -> None:
    if not have_openssl():
        pytest.skip("no openssl command")
    host = pki.host(subject="/C=FR/O=Université, Genève/CN=ce.example.org/emailAddress=a@example.org")
    text = sign(host)
    seen = {Receiver.create(pki.ca_directory, with_openssl=way).open(text).signer for way in (False, True)}
    assert seen == {host.subject}


# --- the tables ------------------------------------------------------------------------------------------------------

SUMMARY: dict[str, object] = {
    "Site": "EXAMPLE-SITE",
    "Month": 3,
    "Year": 2026,
    "GlobalUserName": "/DC=org/CN=René",
    "VO": "atlas",
    "SubmitHost": "ce.example.org",
    "InfrastructureType": "grid",
    "ServiceLevelType": "HEPSPEC",
    "ServiceLevel": "10.5",
    "NodeCount": 1,
    "Processors": 8,
    "NumberOfJobs": 4,
}


@pytest.mark.parametrize(
    "change",
    [
        {"NumberOfJobs": 5},
        {"ServiceLevelType": "hepspec"},
        {"ServiceLevel": 10.5001},
        {"VO": "ATLAS "},
        {"GlobalUserName": "/DC=org/CN=rene"},
        {"VOGroup": "None"},
        {"Month": "03"},
    ],
)
def test_a_summary_with_the_same_key_replaces(change: dict[str, object]) -> None:
    tables = Tables()
    assert [tables.replace("Summaries", SUMMARY), tables.replace("Summaries", SUMMARY | change)] == [False, True]
    assert tables.rows("Summaries") == [SUMMARY | change]


@pytest.mark.parametrize(
    "change", [{"Processors": 4}, {"ServiceLevel": 10.501}, {"VO": "cms"}, {"VORole": "Role=x"}, {"SubmitHost": None}]
)
def test_a_summary_with_another_key_adds(change: dict[str, object]) -> None:
    tables = Tables()
    tables.replace("Summaries", SUMMARY)
    assert not tables.replace("Summaries", SUMMARY | change)
    assert tables.total("Summaries", "NumberOfJobs") == 8


def test_jobs_are_told_apart_by_site_id_and_end_only() -> None:
    tables, end = Tables(), datetime(2026, 3, 1, tzinfo=UTC)
    job: dict[str, object] = {"Site": "S", "LocalJobId": "1.a", "EndTime": end, "SubmitHost": "ce1"}
    tables.replace("JobRecords", job)
    assert tables.replace("JobRecords", job | {"SubmitHost": "ce2", "LocalJobId": "1.A"})
    assert tables.replace("JobRecords", job | {"EndTime": int(end.timestamp())})
    assert tables.replace("JobRecords", job | {"EndTime": "2026-03-01T00:00:00Z"})
    assert not tables.replace("JobRecords", job | {"EndTime": str(int(end.timestamp()) + 1)})
    assert len(tables.rows("JobRecords")) == 2


def test_content_is_equal_for_equal_sets_of_rows() -> None:
    one, two = Tables(), Tables()
    rows: list[dict[str, object]] = [{"Site": "S", "SubmitHost": h, "Month": 1, "Year": 2026} for h in ("a", "b")]
    for row in rows:
        one.replace("SyncRecords", row)
    for row in [*rows[::-1], *rows]:
        two.replace("SyncRecords", row)
    assert one.content() == two.content()
    two.replace("SyncRecords", rows[0] | {"NumberOfJobs": 2})
    assert one.content() != two.content()
