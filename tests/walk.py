"""A seeded random walk over everything that can happen to a site with three targets, in one process and without waiting.

A step is something that A-REX writes, something that a service or an administrator does, or a round of the publisher that
meets whatever is queued for it: faults of network and services, a kill between two steps, a disk that takes no more, another
publisher, a stop, a clock that jumped. Every round's exit status is held against what it met. `heal` ends a walk in
good health; what must be true then is in `walk_oracle.py`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from publisher import commands, config
from publisher.errors import LedgerError, PublisherError, SourceError
from publisher.ledger.base import Hold
from publisher.outcome import Outcome
from publisher.wiring import Site, Surroundings
from tests.fake_ams.faults import CONNECT
from tests.pki import PKI
from tests.walk_dangers import Dangers, Killed, Seen, Witness, drawn, endangered
from tests.walk_faults import PASSED, UNCLEAR
from tests.walk_services import AMS_LIMIT, SGAS_LIMIT, TARGETS, ServicesAndSite

GRAVITY: Final = (70, 74, 78, 77, 66, 76, 65, 75)
"""The contract's order, written down a second time."""


class Walk(ServicesAndSite):
    """The world and its steps. `children` lets some rounds be real processes that end by SIGKILL."""

    def __init__(self, folder: Path, pki: PKI, seed: int, *, children: bool = True) -> None:
        super().__init__(folder, pki, seed)
        self._children = children
        self._jitter = random.Random(seed)  # of its own: how often the transport asks must not change the walk
        self.condemned: set[str] = set()  # local ids of records that a service once refused by themselves
        self.hasty: set[str] = set()  # local ids that were torn while the clock was ahead
        self.may_repeat = 0  # messages that stand at AMS, or may, without the publisher knowing
        self._known_met = 0

    def step(self) -> None:
        """One random step. Raises: AssertionError, with the last steps beside it."""
        what = self.chance.choices(list(_STEPS), weights=[_STEPS[name] for name in _STEPS])[0]
        self.counts[what] += 1
        self.story.append(what)
        try:
            getattr(self, what.replace(" ", "_"))()
        except AssertionError as error:
            error.add_note("steps before: " + " | ".join(self.story[-25:]))
            raise

    def publish(self) -> None:
        self._queue_faults()
        dangers = drawn(self.chance, list(self.site.config["targets"]))
        self.story.append(str({name: value for name in dangers.__slots__ if (value := getattr(dangers, name))}))
        limit = self.chance.randrange(1, 9) if self.chance.random() < 0.1 else None
        targets = ["egi"] if limit and "egi" in self.site.config["targets"] else []
        witness = Witness(self, dangers)
        live = self._live(witness, dangers)
        with endangered(self, dangers):
            try:
                outcomes = commands.publish(
                    live,
                    targets=targets,
                    observer=witness,
                    force=True,
                    limit=limit if targets else None,
                )
            except Killed:
                self.condemned |= witness.condemned
                self._after_a_kill()
                return
            except (LedgerError, SourceError) as error:
                self._ended_by(error, dangers)
                return
        self.condemned |= witness.condemned
        self._check(outcomes, witness, dangers)
        self._after_round()

    def publish_in_a_child(self) -> None:
        """A real process that ends by SIGKILL, between two steps or wherever it happens to be."""
        if not self._children:
            return
        self.fake.faults.clear()  # there, every wait takes its time
        self.sgas.faults.clear()
        command = [sys.executable, "-m", "tests.crash_walk", str(self.site.path), str(self.chance.randrange(2, 30))]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            child.wait(timeout=self.chance.choice((60, 60, self.chance.uniform(0.5, 1.5))))
        except subprocess.TimeoutExpired:
            child.kill()
        _, err = child.communicate(timeout=60)
        assert child.returncode in (-signal.SIGKILL, *GRAVITY[2:], 0), err.decode()
        self._after_a_kill()

    def heal(self) -> list[Outcome]:
        """Everything is well again: what the last of a few rounds makes of it. The next one has nothing to do."""
        self.story.append("heal")
        self._set_rights()
        self.fake.faults.clear()
        self.sgas.faults.clear()
        self.fake.set_limit(AMS_LIMIT[self.fake.policy.profile])
        self.sgas.set_limit(SGAS_LIMIT)
        self._shift = timedelta(0)
        while self.torn:
            self.complete()
        while self.bad:
            self.mend_a_bad_job()
        self._configure(list(TARGETS), batch_records=50)
        outcomes = self.calm_round()
        assert all(one.exit_status == 0 for one in outcomes), [(one.target, one.reason) for one in outcomes]
        # A quarantined row that was renumbered is found again by the daily sweep.
        outcomes = self.calm_round(ahead=timedelta(days=1, hours=1))
        assert all(one.exit_status == 0 for one in outcomes), [(one.target, one.reason) for one in outcomes]
        self._release_the_condemned()
        outcomes = self.calm_round()
        assert all(one.exit_status == 0 for one in outcomes), [(one.target, one.reason) for one in outcomes]
        return self.calm_round()

    def calm_round(self, *, ahead: timedelta = timedelta(0)) -> list[Outcome]:
        """A round that meets nothing, with the clock put forward for as long as it takes."""
        witness = Witness(self, Dangers())
        live = self._live(witness, Dangers(), ahead=ahead)
        return commands.publish(live, targets=[], observer=witness, force=True, accept_key_change=True)

    def _release_the_condemned(self) -> None:
        """A record that a service refused by itself waits for an administrator; nothing else does by now."""
        site = self._live(Witness(self, Dangers()), Dangers())
        held = commands.quarantined(site, targets=[])
        strange = [one for one in held if one.job.rule not in ("refused-by-receiver", "too-large")]
        assert not strange, strange
        if held:
            commands.change_hold(site, [], Hold.RELEASED, every=True, targets=[])

    def _live(self, witness: Witness, dangers: Dangers, *, ahead: timedelta = timedelta(0)) -> Site:
        self.site.save()
        settings = config.load(self.site.path, {}, host_name="ce01.example.org")
        waits = 0

        def wait(seconds: float) -> bool:
            nonlocal waits
            waits += 1
            self._skipped_s += seconds
            stop = 0 < dangers.stop_after <= waits
            if stop and witness.rounds:
                witness.rounds[-1].stopped = True
            return stop

        surroundings = Surroundings(
            environment={},
            clock=lambda: datetime.now(UTC) + self._shift + ahead,
            monotonic=self._monotonic,
            wait=wait,
            chance=self._jitter.random,
        )
        return Site(settings=settings, surroundings=surroundings)

    def _check(self, outcomes: list[Outcome], witness: Witness, dangers: Dangers) -> None:
        ends = [*witness.rounds[1:], Seen(target="", ams=len(self.fake.faults.met), sgas=len(self.sgas.faults.met))]
        seen = {one.target: (one, end) for one, end in zip(witness.rounds, ends, strict=bool(witness.rounds))}
        for outcome in outcomes:
            self.story.append(f"{outcome.target}:{outcome.exit_status}")
            if outcome.target in seen:
                expected = self._expected(outcome, *seen[outcome.target])
            else:  # it ended before it began
                expected = {75} if outcome.target == dangers.busy else set()
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
        assert commands.exit_status(outcomes) == gravest(outcome.exit_status for outcome in outcomes)

    def _ended_by(self, error: PublisherError, dangers: Dangers) -> None:
        """What concerned all targets alike."""
        self.story.append(str(error.exit_status))
        self.counts["everything ended by one error"] += 1
        assert error.exit_status == (74 if dangers.most_bytes else 66 if dangers.vanished else 0), (
            f"{error} at {dangers}"
        )
        self._after_round()

    def _expected(self, outcome: Outcome, begin: Seen, end: Seen) -> set[int]:
        """The one status that fits the last exchange of a round."""
        if begin.stopped:  # what was on its way may have come to another end
            return {status or 75 for status in self._after(outcome, begin, end)} | {75}
        return self._after(outcome, begin, end)

    def _after(self, outcome: Outcome, begin: Seen, end: Seen) -> set[int]:
        met: list[tuple[str, str, Any]]
        if outcome.target == "nordic":
            met = [("sgas", route, fault) for route, fault in self.sgas.faults.met[begin.sgas : end.sgas]]
        else:
            met = list(self.fake.faults.met[begin.ams : end.ams])
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
        elif service == "sgas" and trouble.route == "insert" and self.sgas.requests[-1].status == 413:
            return {0, trouble.status}  # nginx looks at the size first
        else:
            status = trouble.status
        # A record refused for no clear reason stays behind: when all others were too large, it speaks for the target.
        return {status, 76} if unclear and not status else {status}

    def _standing(self, service: str) -> int:
        """What follows from an exchange that no fault befell, as the services stand."""
        if service == "sgas":
            return 0 if self._right else 77
        if service == "authn":
            # The token was asked for, and nothing followed: it was not given, or it was the one that AMS had just refused.
            return 77
        return 0 if self._acl else 77

    def _after_a_kill(self) -> None:
        self.counts["kills"] += 1
        self.story.append("killed")
        self.may_repeat += 1
        self._after_round()

    def _after_round(self) -> None:
        """What was met in this round may stand at AMS unknown to the publisher."""
        met = self.fake.faults.met
        for _, _, fault in met[self._known_met :]:
            trouble = next((known for made, known in self._made if made is fault), None)
            if trouble is not None:
                self.counts[f"fault: {trouble.name}"] += 1
                self.may_repeat += trouble.stored
        self._known_met = len(met)
        if "74" in "".join(self.story[-4:]):
            self.may_repeat += 1
        if self._shift > timedelta(0):
            self.hasty |= self.torn.keys()


def gravest(statuses: Iterable[int]) -> int:
    """The status that wins, by the contract's order."""
    return min((status for status in statuses if status), key=GRAVITY.index, default=0)


_STEPS: Final[dict[str, int]] = {
    "accept": 12,
    "finish": 30,
    "burst": 1,
    "tear": 6,
    "complete": 6,
    "write a bad job": 3,
    "mend a bad job": 3,
    "finish again": 10,
    "rotate": 1,
    "vacuum": 1,
    "checkpoint": 3,
    "rotate token": 3,
    "drop connections": 2,
    "change rights": 5,
    "change limits": 4,
    "move the clock": 4,
    "configure": 4,
    "publish": 50,
    "publish in a child": 1,
}
