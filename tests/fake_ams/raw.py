"""A plain client for tests of the stand-in itself: http.client, no retries, no cleverness."""

import http.client
import json
import ssl

from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.patience import PATIENCE_S
from tests.support.pki import Credential

PUBLISH = f"/v1/projects/{PROJECT}/topics/{TOPIC}:publish"
TEXT, JSON = "text/plain; charset=utf-8", "application/json; charset=utf-8"


def connect(fake: FakeAMS, port: int, credential: Credential | None = None) -> http.client.HTTPSConnection:
    """A connection to one of the fake's ports, not opened yet."""
    context = ssl.create_default_context(cafile=str(fake.pki.bundle))
    if credential:
        context.load_cert_chain(credential.certificate, credential.key)
    return http.client.HTTPSConnection("localhost", port, context=context, timeout=PATIENCE_S)


def exchange(
    fake: FakeAMS, credential: Credential | None, host: str = "localhost", kind: str = "ams"
) -> tuple[int, str]:
    """Ask authn for a token; status and the token or the message of the refusal."""
    connection = connect(fake, fake.auth_port, credential)
    try:
        connection.request("GET", f"/v1/service-types/{kind}/hosts/{host}:authx509")
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return answer.status, document["token"] if answer.status == 200 else document["error"]["message"]
    finally:
        connection.close()


class Caller:
    """One kept connection to AMS."""

    def __init__(self, fake: FakeAMS, token: str) -> None:
        self.connection, self.token = connect(fake, fake.port), token

    def __call__(self, method: str, path: str, body: object = None, token: str | None = None) -> tuple[int, str, bytes]:
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"x-api-key": self.token if token is None else token}
        self.connection.request(method, path, raw, {name: value for name, value in headers.items() if value})
        answer = self.connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read()

    def publish(self, body: object) -> tuple[int, str, bytes]:
        return self("POST", PUBLISH, body)


def message(data: str = "QUJD", **attributes: object) -> dict[str, object]:
    """The body of a publish of one message."""
    return {"messages": [{"attributes": attributes or {"empaid": "20260101/1"}, "data": data}]}


def complaint(code: int, text: str, status: str) -> bytes:
    """The error of the messaging service, byte by byte."""
    return b"".join(
        (
            b'{\n   "error": {\n      "code": %d,\n' % code,
            f'      "message": "{text}",\n      "status": "{status}"\n   }}\n}}'.encode(),
        )
    )
