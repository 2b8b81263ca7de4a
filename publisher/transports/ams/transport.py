"""Delivery to AMS: certificate to token, one signed message a request, a reaction to answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from publisher.model.errors import (
    ConfigError,
    CredentialError,
    PublisherError,
    Rejected,
    Unreachable,
)
from publisher.model.message import MESSAGE_ID, Message, MessageId
from publisher.transports.ams import Options
from publisher.transports.ams.responses import (
    AmsAction,
    Decision,
    publish_verdict,
    token_of,
    token_verdict,
)
from publisher.transports.base import (
    CONFIGURATION,
    CREDENTIALS,
    LATER,
    REFUSED,
    SET_ASIDE,
    Credentials,
    Environment,
    Receipt,
    Step,
    Verdict,
    own_options,
)
from publisher.transports.credentials.host_certificate import may_be_open
from publisher.transports.credentials.smime import Signer, UnsafePayload
from publisher.transports.http.exchange import (
    Answer,
    Failure,
    LazySession,
    RequestFailure,
    Retries,
    parsed,
    plain,
    redacted,
    without,
)
from publisher.transports.http.tls import client_context, trust_described

# A limit learnt from a refusal is never taken for smaller than this: a single record above the
# limit is set aside, and that shall be the service's word, not a guess.
SMALLEST_LIMIT: Final = 65_536
_ENCODED_AT_ONCE: Final = 49_152  # bytes, whole groups of three
# Seconds, as Retry-After would ask for them, for a changed token to reach both services
_SETTLING: Final = "5"
_ERRORS: Final[dict[int, type[PublisherError]]] = {
    error.exit_status: error for error in (Unreachable, Rejected, CredentialError, ConfigError)
}


class Profile(NamedTuple):
    """Who AMS takes us for: the user's name, roles in the project, and topics to publish to."""

    user: str
    roles: tuple[str, ...]
    topics: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _DeliveryAttempts:
    """One message on its way, over all attempts."""

    body: bytes
    data_length: int
    attempts: int = 0
    bytes_sent: int = 0
    doubt: bool = False
    backend_failed: bool = False
    token_renewed: bool = False
    token_awaited: bool = False


class AmsTransport:
    """A `Transport` to one topic of AMS. The token is fetched when needed and kept for the run."""

    def __init__(self, options: object, credentials: Credentials, world: Environment) -> None:
        """Raises: CredentialError, ConfigError"""
        mine = self._options = own_options(options, Options)
        if found := mine.problems():
            raise ConfigError(found)
        services = mine.endpoints(world.environment)
        allow_open_key = mine.allow_open_key or may_be_open(credentials.key, world.environment)
        self._world = world
        self.signer: Final = Signer(credentials, world.now(), allow_open_key=allow_open_key)
        self.warnings, self._retries = self.signer.warnings, Retries(mine, world)
        self._data_limit = mine.batch_bytes
        self._token = ""
        self._secrets: set[str] = set()  # every token of this run, so that none gets into a reason
        host = mine.service_host or urlsplit(services[0].url).hostname or ""
        self._token_path = f"/v1/service-types/ams/hosts/{host}:authx509"
        self._publish_path = f"/v1/projects/{mine.project}/topics/{mine.topic}:publish"
        context = client_context(credentials)
        self._ams, self._authn = (
            LazySession(service, context, trust=trust_described(credentials), clock=world.clock)
            for service in services
        )

    def payload_limit(self) -> int:
        """The largest payload whose signed form, in base64, fits; less once a size was refused."""
        return max(0, self._data_limit // 4 * 3 - self.signer.signed_size(0))

    def deliver(self, message: Message, now: datetime) -> Receipt:
        """Sign a message, deliver it, and return the receipt.

        Raises: CredentialError before anything is sent, when the certificate has ended.
        """
        self.signer.check(now)
        if not MESSAGE_ID.fullmatch(message.id):
            # AMS stores an empty record for some characters, which only an operator can remove.
            reason = f"the message id {message.id!r} would corrupt the topic"
            return _not_sent(Verdict.REFUSED, SET_ASIDE, reason)
        try:
            body, data_length = _body(message.id, self.signer.sign(message.payload))
        except UnsafePayload as why:
            return _not_sent(Verdict.REFUSED, SET_ASIDE, str(why))
        if data_length > self._options.batch_bytes:
            limit = f"the limit of {self._options.batch_bytes} (`batch_bytes`)"
            reason = f"{data_length} characters of data are over {limit}"
            return _not_sent(Verdict.TOO_LARGE, REFUSED, reason)
        return self._hand_over(_DeliveryAttempts(body=body, data_length=data_length), message)

    def profile(self) -> Profile:
        """Who AMS says we are. Raises: Unreachable, Rejected, CredentialError, ConfigError."""
        decision = self._ensure_token()
        if decision.action is not AmsAction.ACCEPTED:
            raise _ERRORS[decision.exit_status](self._clean(decision.reason))
        answer = self._asked("GET", "/v1/users/profile", headers={"x-api-key": self._token})
        if isinstance(answer, Answer) and answer.status == 200:
            if profile := _profile(parsed(answer.body), self._options.project):
                return profile
            what = "with something else than a user profile"
            raise Rejected(f"AMS answered the question who we are {what}")
        decision = publish_verdict(0, answer)
        raise _ERRORS[decision.exit_status](self._clean(decision.reason))

    def preflight(self) -> tuple[Step, ...]:
        """Token, then the right to publish as the user's profile shows it, up to the first trouble.

        The token is asked for again each time, so that a withdrawn binding shows.
        """
        self._token = ""
        decision = self._ensure_token()
        if decision.action is not AmsAction.ACCEPTED:
            return (Step("token", self._clean(decision.reason), exit_status=decision.exit_status),)
        token = Step("token", f"given to {self.signer.subject_authn()}")
        try:
            profile = self.profile()
        except PublisherError as error:
            name = "AMS" if error.exit_status in (LATER, CONFIGURATION) else "right to publish"
            return (token, Step(name, plain(str(error)), exit_status=error.exit_status))
        return (token, self._right(profile))

    def _right(self, profile: Profile) -> Step:
        name, place = "right to publish", f"{self._options.project}/{self._options.topic}"
        if self._options.topic in profile.topics:
            return Step(name, plain(f"{profile.user} may publish to {place}"))
        if not profile.roles:
            why = f"has no role in the project {self._options.project}"
        else:
            topics = ", ".join(profile.topics) or "none"
            why = f"is not among those who may publish to {place}, only to: {topics}"
        advice = "ask the operators of AMS, or correct `project` and `topic`"
        answer = f"the AMS user {profile.user} {why}; {advice}"
        return Step(name, plain(answer), exit_status=CREDENTIALS)

    def close(self) -> None:
        """Close the connections and forget the token."""
        self._token = ""
        self._ams.close()
        self._authn.close()

    def _hand_over(self, handover: _DeliveryAttempts, message: Message) -> Receipt:
        """Try until something final is known, or patience ends."""
        while True:
            since: float | None = self._world.clock()
            handover.attempts += 1
            decision = self._attempt(handover)
            handover.doubt = handover.doubt or decision.doubt
            match decision.action:
                case AmsAction.REFRESH_TOKEN if not handover.token_awaited:
                    handover.token_awaited, since = True, None  # the wait counts, not the attempt
                case AmsAction.RETRY:
                    pass
                case AmsAction.RETRY_THEN_SPLIT if not handover.backend_failed:
                    handover.backend_failed = True
                case _:
                    return self._final(decision, handover)
            reason = self._clean(decision.reason)
            attempts, asked = handover.attempts, decision.asked
            if not self._retries.wait(message.id, attempts, reason, asked, since=since):
                return self._unfinished(decision, handover)

    def _attempt(self, handover: _DeliveryAttempts) -> Decision:
        """One attempt: a token if there is none, the message, and a new token for a refused one.

        `REFRESH_TOKEN` when what authn gives is refused too. A token that was changed a moment ago
        may not have reached both services, so that is worth one more attempt, after a while.
        """
        decision = self._ensure_token()
        if decision.action is not AmsAction.ACCEPTED:
            return decision
        decision = self._publish(handover)
        if decision.action is not AmsAction.REFRESH_TOKEN:
            return decision
        refused, self._token = self._token, ""
        if not handover.token_renewed:
            handover.token_renewed = True
            renewed = self._ensure_token()
            if renewed.action is not AmsAction.ACCEPTED:
                return renewed
            if self._token != refused:
                decision = self._publish(handover)
                if decision.action is not AmsAction.REFRESH_TOKEN:
                    return decision
            self._token = ""
        advice = "ask its operators about this host's user"
        reason = f"{decision.reason}: AMS refuses the token that authn gives; {advice}"
        return decision._replace(reason=self._with_certificate(reason), asked=_SETTLING)

    def _ensure_token(self) -> Decision:
        if self._token:
            return Decision(action=AmsAction.ACCEPTED)
        answer = self._authn.exchange("GET", self._token_path)
        decision = token_verdict(answer)
        if decision.action is AmsAction.ACCEPTED and isinstance(answer, Answer):
            self._token = token_of(answer)
            self._secrets.add(self._token)
        elif decision.exit_status == CREDENTIALS and not _is_their_certificate(answer):
            return decision._replace(reason=self._with_certificate(decision.reason))
        return decision

    def _publish(self, handover: _DeliveryAttempts) -> Decision:
        headers = {"x-api-key": self._token, "Content-Type": "application/json"}
        answer = self._asked("POST", self._publish_path, handover.body, headers)
        if answer.may_have_arrived:
            handover.bytes_sent += len(handover.body) * answer.tries
        # Of two tries, the first may have been stored whatever the second one met.
        handover.doubt = handover.doubt or answer.tries > 1
        return publish_verdict(handover.data_length, answer)

    def _asked(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | RequestFailure:
        """The answer of AMS, without the token."""
        answer = self._ams.exchange(method, path, body, headers)
        return without(answer, self._secrets) if isinstance(answer, Answer) else answer

    def _final(self, decision: Decision, handover: _DeliveryAttempts) -> Receipt:
        match decision.action:
            case AmsAction.ACCEPTED:
                return self._receipt(Verdict.DELIVERED, decision, handover)
            case AmsAction.SPLIT | AmsAction.RETRY_THEN_SPLIT:
                half = max(SMALLEST_LIMIT, handover.data_length // 2)
                self._data_limit = min(self._data_limit, half)
                decision = decision._replace(exit_status=REFUSED)
                return self._receipt(Verdict.TOO_LARGE, decision, handover)
            case AmsAction.REFUSE_MESSAGE:
                return self._receipt(Verdict.REFUSED, decision, handover)
        return self._receipt(Verdict.STOP_TARGET, decision, handover)

    def _unfinished(self, decision: Decision, handover: _DeliveryAttempts) -> Receipt:
        if decision.action is AmsAction.REFRESH_TOKEN:
            return self._final(decision, handover)
        verdict = Verdict.IN_DOUBT if handover.doubt else Verdict.RETRY_LATER
        return self._receipt(verdict, decision, handover)

    def _receipt(
        self, verdict: Verdict, decision: Decision, handover: _DeliveryAttempts
    ) -> Receipt:
        return Receipt(
            verdict=verdict,
            remote_id=decision.remote_id,
            reason=self._clean(decision.reason),
            exit_status=decision.exit_status,
            bytes_sent=handover.bytes_sent,
            attempts=handover.attempts,
            doubt=handover.doubt and verdict is not Verdict.DELIVERED,
            certain=decision.certain,
        )

    def _with_certificate(self, reason: str) -> str:
        signer = self.signer
        for_authn = f"for authn it is {signer.subject_authn()}"
        return f"{reason}. Certificate {signer.describe()}; {for_authn}"

    def _clean(self, reason: str) -> str:
        return plain(redacted(reason, self._secrets))


create: Final = AmsTransport


def _body(name: MessageId, signed: bytes) -> tuple[bytes, int]:
    """The request that publishes a signed message, and how many characters its data has in base64.

    Python first takes memory for twice what it encodes. For a whole message that is new memory
    every time, whose first use takes as long as the encoding; so it goes piece by piece.
    """
    view = memoryview(signed)
    places = range(0, len(view), _ENCODED_AT_ONCE)
    data = [base64.b64encode(view[at : at + _ENCODED_AT_ONCE]) for at in places]
    # Joined, not formatted: `%` lets the bytes grow as it goes.
    head = b'{"messages":[{"attributes":{"empaid":"', name.encode(), b'"},"data":"'
    body = b"".join((*head, *data, b'"}]}'))
    return body, sum(map(len, data))


def _not_sent(verdict: Verdict, exit_status: int, reason: str) -> Receipt:
    return Receipt(verdict=verdict, exit_status=exit_status, reason=plain(reason), attempts=0)


def _is_their_certificate(answer: Answer | RequestFailure) -> bool:
    return isinstance(answer, RequestFailure) and answer.failure is Failure.THEIR_CERTIFICATE


def _profile(document: object, project: str) -> Profile | None:
    """A user's roles and topics in a project, none without any; None when it is no user."""
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    projects = document.get("projects")
    for entry in projects if isinstance(projects, list) else ():
        if isinstance(entry, dict) and entry.get("project") == project:
            roles, topics = _texts(entry.get("roles")), _texts(entry.get("topics"))
            return Profile(user=document["name"], roles=roles, topics=topics)
    return Profile(user=document["name"], roles=(), topics=())


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
