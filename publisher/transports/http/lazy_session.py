"""A session to a service that is made with its first request.

What speaks HTTP takes long to load, and a round that has nothing to send needs none of it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from publisher.transports.base import Endpoint
from publisher.transports.http.answers import Answer, RequestFailure

if TYPE_CHECKING:
    from publisher.transports.http.session import Session


class LazySession:
    """What `https.Session` is, from the first request on."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext, *, trust: str, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._context = context
        self._trust = trust
        self._clock = clock
        self._session: Session | None = None

    def exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer | RequestFailure:
        """One request and what came of it; never raises for what network or server do."""
        if self._session is None:
            from publisher.transports.http.session import session_to

            self._session = session_to(self._endpoint, self._context, trust=self._trust, clock=self._clock)
        return self._session.exchange(method, path, body, headers)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
