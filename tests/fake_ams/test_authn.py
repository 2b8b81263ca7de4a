"""The stand-in for the token exchange answers as the service does. Spec: argo-api-authn eb23120, measured."""

import ssl
from collections.abc import Callable

import pytest

from tests.fake_ams import FakeAMS
from tests.fake_ams.names import authn_dn
from tests.fake_ams.raw import connect, exchange
from tests.support.pki import PKI, Credential, parse_slash_dn

pytest_plugins = ["tests.fake_ams.fixtures"]


def test_a_bound_certificate_gets_the_same_token_every_time(fake_ams: FakeAMS, pki: PKI) -> None:
    host = pki.host(key="ec")
    token = fake_ams.bind(host, "ce")
    assert exchange(fake_ams, host) == exchange(fake_ams, host) == (200, token)
    fake_ams.rotate_token("ce")
    assert exchange(fake_ams, host) == (200, fake_ams.token("ce")) != (200, token)
    assert fake_ams.requests[0].client_subject == host.subject


@pytest.mark.parametrize(
    ("subject", "canonical"),
    [
        (
            "/DC=org/DC=terena/DC=tcs/C=DE/O=hosts/O=GermanGrid/OU=DESY/CN=ce.example.org",
            "CN=ce.example.org,OU=DESY,O=hosts+O=GermanGrid,C=DE,DC=org+DC=terena+DC=tcs",
        ),
        ("/O=Grid/O=NorduGrid/CN=host/ce.example.no", "CN=host/ce.example.no,O=Grid+O=NorduGrid"),
        (
            "/C=NO/ST=Oslo/O=Univ A, Inc/OU=x+y/CN=ce.example.no/emailAddress=a@example.no",
            "E=a@example.no,CN=ce.example.no,OU=x\\+y,O=Univ A\\, Inc,ST=Oslo,C=NO",
        ),
        (
            "/C=IT/O=INFN/OU=Host/L=CNAF/CN=a.example.it/CN=b.example.it/UID=7",
            "CN=b.example.it,OU=Host,O=INFN,L=CNAF,C=IT",
        ),
    ],
)
def test_authn_looks_for_its_own_form_of_the_dn(fake_ams: FakeAMS, pki: PKI, subject: str, canonical: str) -> None:
    assert authn_dn(parse_slash_dn(subject)) == canonical
    host = pki.host(subject=subject)
    assert exchange(fake_ams, host)[0] == 404
    token = fake_ams.bind(canonical)
    assert exchange(fake_ams, host) == (200, token)


REFUSED: list[tuple[Callable[[PKI], Credential | None], int, str]] = [
    (lambda pki: None, 400, "No certificate provided"),
    (PKI.host, 404, "Binding was not found"),
    (PKI.expired_host, 403, "Your certificate has expired"),
    (PKI.not_yet_valid_host, 403, "Your certificate is not active yet"),
    (PKI.host_without_crl, 403, "Your certificate is invalid. No CRLDistributionPoints found on the certificate"),
    (PKI.revoked_host, 403, "Your certificate has been revoked"),
    (PKI.other_ca_host, 404, "Binding was not found"),
    (lambda pki: pki.host(self_signed=True), 404, "Binding was not found"),
]


@pytest.mark.parametrize(("make", "code", "text"), REFUSED)
def test_authn_refuses_in_its_own_words(
    pki: PKI, make: Callable[[PKI], Credential | None], code: int, text: str
) -> None:
    with FakeAMS(pki, trust_unknown_cas=True) as fake:
        assert exchange(fake, make(pki)) == (code, text)


@pytest.mark.parametrize("make", [PKI.expired_host, PKI.not_yet_valid_host, PKI.other_ca_host])
def test_a_bad_certificate_fails_in_tls_when_authn_is_strict(
    fake_ams: FakeAMS, pki: PKI, make: Callable[[PKI], Credential]
) -> None:
    with pytest.raises(ssl.SSLError, match=r"alert|EOF"):
        exchange(fake_ams, make(pki))
    assert fake_ams.requests.wait_for_handshake_failures(1)
    assert fake_ams.requests.handshake_failures[0][0] == "authn"
    assert len(fake_ams.requests) == 0


def test_authn_checks_in_the_order_of_the_service(fake_ams: FakeAMS, pki: PKI) -> None:
    host, policy = pki.host("ce3.example.org"), fake_ams.authn_policy
    assert exchange(fake_ams, host, host="127.0.0.1") == (404, "Host was not found")
    assert exchange(fake_ams, host, kind="web") == (404, "Service-type was not found")
    policy.service_types["web"] = ("oidc",)
    refusal = (422, "Auth type: x509 is not yet supported.Supported:[oidc]")
    assert exchange(fake_ams, host, host="nowhere", kind="web") == refusal
    policy.has_auth_method = False
    assert exchange(fake_ams, host) == (404, "Auth method was not found")
    policy.crl = "unreachable"
    assert exchange(fake_ams, host, kind="unknown") == (500, "Internal Error: Could not access CRL URL")
    policy.crl = "garbage"
    assert exchange(fake_ams, host) == (500, "Internal Error: Unable to parse CRL Data")
    policy.peer_name = "other.example.org"
    named = "x509: certificate is valid for ce3.example.org, not other.example.org"
    assert exchange(fake_ams, host) == (403, named)
    legacy = (403, "x509: certificate relies on legacy Common Name field, use SANs instead")
    assert exchange(fake_ams, pki.host(san=())) == legacy
    policy.peer_name = ""
    assert exchange(fake_ams, host)[0] == 400
    policy.verify_certificate = False
    policy.has_auth_method = True
    fake_ams.bind(host, "gone")
    fake_ams.delete_user("gone")
    code, text = exchange(fake_ams, host)
    assert (code, "User doesn't exist" in text) == (500, True)
    fake_ams.bind(host, "twice")
    assert "More than 1 bindings" in exchange(fake_ams, host)[1]


def test_authn_knows_no_other_path_and_writes_json_its_own_way(fake_ams: FakeAMS) -> None:
    connection = connect(fake_ams, fake_ams.auth_port)
    connection.request("GET", "/v1/service-types/ams/hosts/localhost:authoidc")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (404, b"404 page not found\n")
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    connection.request("GET", "/v1/service-types/ams/hosts/localhost:authx509")
    expected = (
        b'{\n "error": {\n  "message": "No certificate provided",\n  "code": 400,\n  "status": "BAD REQUEST"\n }\n}'
    )
    assert connection.getresponse().read() == expected
    connection.close()
