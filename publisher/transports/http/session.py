"""A session with one service: an exchange gives an answer, read in bounds, or why there is none."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from publisher.transports.base import Endpoint
from publisher.transports.http.connection import Attempt, opened_session
from publisher.transports.http.exchange import Answer, Failure, RequestFailure
from publisher.transports.http.failures import (
    FOREIGN,
    Peer,
    explains_more,
    is_timeout,
    no_answer,
)

SUCCESS_LIMIT: Final = 1 << 20
ERROR_LIMIT: Final = 64 << 10
_CHUNK: Final = 4096


class Session:
    """Requests to one service over one kept-alive connection, strictly one after the other.

    Redirects are not followed, which would carry the token to another host.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        context: ssl.SSLContext | None,
        *,
        trust: str,
        clock: Callable[[], float],
    ) -> None:
        """`context` is None for plain HTTP. `trust` names the CAs, for messages."""
        self._url = endpoint.url
        self._where = Peer(place=urlsplit(endpoint.url).netloc, trust=trust, proxy=endpoint.proxy)
        self._attempt = Attempt.to(endpoint, clock)
        self._session = opened_session(context, endpoint.proxy, self._attempt)
        self._bare = "", "", requests.PreparedRequest()

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | RequestFailure:
        """One request and its result; never raises for network or server. `headers` are secret.

        A kept-alive connection that turns out to be dead is replaced once, and the answer counts
        both tries: the requests that are made here are all harmless to repeat. urllib3 replaces
        one that it finds dead before it sends, and does not try again after that.
        """
        given = dict(headers or {})
        self._attempt.begin()
        first = self._once(method, path, body, given)
        attempt = self._attempt
        was_tried = attempt.connected or attempt.timed_out
        if isinstance(first, Answer) or was_tried or first.failure is not Failure.MAYBE_SENT:
            return first
        again = self._once(method, path, body, given)
        if isinstance(again, RequestFailure) and again.failure is Failure.NOT_SENT:
            return RequestFailure(failure=Failure.MAYBE_SENT, reason=again.reason)
        return replace(again, tries=2)

    def close(self) -> None:
        """Close the connection; a further request would open a new one.

        urllib3 forgets a connection, and leaves it open until Python finds it.
        """
        if self._attempt.connection is not None:
            self._attempt.connection.close()
        self._session.close()

    def _once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer | RequestFailure:
        attempt = self._attempt
        attempt.begin_request()
        try:
            asked = self._prepared(method, path, body, headers)
            response = self._session.send(asked, stream=True, allow_redirects=False)
        except FOREIGN as error:
            self.close()
            grave = error if explains_more(error) else attempt.upload_error or error
            attempt.timed_out = is_timeout(error) or is_timeout(grave)
            return no_answer(grave, self._where, sending=attempt.sending, secrets=headers.values())
        answer = _read(response.raw)
        has_more = attempt.connection is not None and attempt.connection.has_more
        if has_more or not answer.complete or attempt.upload_error is not None:
            # The rest of an answer, or of an upload, must never be taken for the next one.
            self.close()
        return answer

    def _prepared(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> requests.PreparedRequest:
        """A request. `requests` takes longer to look at its address than to send a small one, so
        what has no headers and no body yet is kept for the next one to that address."""
        if self._bare[:2] != (method, path):
            asked = requests.Request(method, self._url + path)
            self._bare = method, path, self._session.prepare_request(asked)
        prepared = self._bare[2].copy()
        prepared.prepare_headers({**self._session.headers, **headers})
        prepared.prepare_body(body, None)
        return prepared


def _read(raw: Any) -> Answer:
    """The answer, read in bounded pieces; marked as cut when too long, too slow, or broken off.

    Not by `Response.content`, which has no bound and decodes what nobody asked to be encoded.
    `raw` is urllib3's response, whose encoding is forgotten: it would make a decoder for each one
    that is named, without end.
    """
    headers = {name.lower(): value for name, value in raw.headers.itermerged()}
    raw.headers.discard("content-encoding")
    limit = SUCCESS_LIMIT if raw.status == 200 else ERROR_LIMIT
    body = bytearray()
    complete = False
    try:
        while len(body) <= limit:
            piece = raw.read(_CHUNK)
            if not piece:
                complete = not raw.length_remaining  # of what was announced, if anything
                break
            body += piece
    except FOREIGN:
        # The status is known and decides; `complete` says that the body is no receipt.
        complete = False
    return Answer(status=raw.status, headers=headers, body=bytes(body[:limit]), complete=complete)
