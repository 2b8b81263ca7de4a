"""The random walk's exit statuses: which one a round must end with, from what its last exchange met."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome
from tests.fake_ams.faults import CONNECT
from tests.faults.walk_dangers import Dangers, Seen, Witness, seen
from tests.faults.walk_faults import PASSED, UNCLEAR
from tests.faults.walk_services import ServicesAndSite
from tests.support.pki import PKI

GRAVITY: Final = (70, 74, 78, 77, 66, 76, 65, 75)
"""The contract's order, written down a second time."""


class Statuses(ServicesAndSite):
    """Services and a site, and what a round in their midst must end with."""

    def __init__(self, folder: Path, pki: PKI, seed: int) -> None:
        super().__init__(folder, pki, seed)
        self.condemned: set[str] = set()  # local ids of records that a service once refused by themselves
        self.hasty: set[str] = set()  # local ids that were torn while the clock was ahead

    def check(self, outcomes: list[Outcome], witness: Witness, dangers: Dangers) -> None:
        ends = [*witness.rounds[1:], seen(self, "")]
        spans = {one.target: (one, end) for one, end in zip(witness.rounds, ends, strict=bool(witness.rounds))}
        for outcome in outcomes:
            self.story.append(f"{outcome.target}:{outcome.exit_status}")
            self.told.append(outcome.reason)
            if outcome.target in spans:
                expected = self._expected(outcome, *spans[outcome.target])
            else:  # it ended before it began
                expected = {75} if outcome.target == dangers.busy else set()
            if "an earlier attempt may have been stored" in outcome.reason:
                expected = expected | {76}  # its refusal proves nothing; the end of the walk shows that it arrives once
            if dangers.vanished:
                expected = {status or 66 for status in expected} | {66}
            if dangers.most_bytes:
                expected = expected | {74}
            if outcome.quarantined or outcome.held:
                expected = {gravest((status, 65)) for status in expected}
            if outcome.held:  # a job is no more what it was, or not there, when its month is looked at
                assert self.condemned or self.hasty or self.overwritten, outcome
            assert outcome.exit_status in expected, f"{outcome} at {dangers}, expected {expected}"
            words = {0: ("ok", "nothing"), 65: ("ok",), 75: ("deferred",), 74: ("error",), 66: ("error",)}
            narrowed = outcome.quarantined or outcome.held
            assert outcome.outcome in words.get(outcome.exit_status, ("rejected", "error")) or narrowed, outcome
            assert outcome.reason or outcome.exit_status in (0, 65), outcome
        assert publish.exit_status(outcomes) == gravest(outcome.exit_status for outcome in outcomes)

    def _expected(self, outcome: Outcome, begin: Seen, end: Seen) -> set[int]:
        """The one status that fits the last exchange of a round."""
        if begin.stopped:  # what was on its way may have come to another end
            return {status or 75 for status in self._after(outcome, begin, end)} | {75}
        return self._after(outcome, begin, end)

    def _after(self, outcome: Outcome, begin: Seen, end: Seen) -> set[int]:
        met = self._met(outcome.target, begin, end)
        # A connection that nothing befell is told of by the request on it.
        met = [one for one in met if one[1] != CONNECT or one[2] is not None]
        if not met:
            return {0}
        service, _, last = met[-1]
        troubles = [known for _, _, fault in met for made, known in self._made if made is fault]
        unclear = any(one.status == UNCLEAR for one in troubles) and not outcome.messages
        trouble = troubles[-1] if last is not None else None
        if trouble is None or trouble.status == PASSED:
            status = self._standing(service)
        elif trouble.status == UNCLEAR:
            return {76 if unclear else 0}
        elif service == "sgas" and trouble.route == "insert" and self._was_too_large():
            return {0, trouble.status}  # nginx looks at the size first
        else:
            status = trouble.status
        # A record refused for no clear reason stays behind: when all others were too large, it speaks for the target.
        return {status, 76} if unclear and not status else {status}

    def _was_too_large(self) -> bool:
        """Whether the last request to SGAS was; one that the client gave up may not be among the requests yet."""
        return any(request.status == 413 for request in self.sgas.requests[-1:])

    def _met(self, target: str, begin: Seen, end: Seen) -> list[tuple[str, str, Any]]:
        """Service, route and fault of each exchange of a round, in their order; also those that the proxy ended."""
        met: list[tuple[str, str, Any]]
        if target == "nordic":
            met = [("sgas", route, fault) for route, fault in self.sgas.faults.met[begin.sgas : end.sgas]]
        else:
            met = list(self.fake.faults.met[begin.ams : end.ams])
        for (ams, sgas), fault in reversed(self.proxy.refused[begin.proxy : end.proxy]):
            met.insert(sgas - begin.sgas if target == "nordic" else ams - begin.ams, ("proxy", "proxy", fault))
        return met

    def _standing(self, service: str) -> int:
        """What follows from an exchange that no fault befell, as the services stand."""
        if service == "sgas":
            return 0 if self._right else 77
        if service == "authn":
            # The token was asked for, and nothing followed: it was not given, or it was the one that AMS had just refused.
            return 77
        return 0 if self._acl else 77


def gravest(statuses: Iterable[int]) -> int:
    """The status that wins, by the contract's order."""
    return min((status for status in statuses if status), key=GRAVITY.index, default=0)
