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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.ledger.answers import Hold
from publisher.model.errors import ConfigError, LedgerError, PublisherError, SourceError
from publisher.publishing import publish as commands
from publisher.publishing import status as standing
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from tests.fake_ams.faults import Fault
from tests.faults.walk_dangers import DANGERS, Dangers, Killed, Witness, drawn, endangered
from tests.faults.walk_services import AMS_LIMIT, SGAS_LIMIT, TARGETS
from tests.faults.walk_statuses import GRAVITY, Statuses
from tests.support.crash_walk import walking
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI


class Walk(Statuses):
    """The world and its steps. `children` lets some rounds be real processes that end by SIGKILL."""

    def __init__(self, folder: Path, pki: PKI, seed: int, *, children: bool = True) -> None:
        super().__init__(folder, pki, seed)
        self._children = children
        self._jitter = random.Random(seed)  # of its own: how often the transport asks must not change the walk
        self.may_repeat = 0  # messages that stand at AMS, or may, without the publisher knowing
        self._known = [0, 0, 0]  # how much of what AMS, SGAS and the proxy met was counted

    def step(self) -> None:
        """One random step. Raises: AssertionError, with the last steps beside it."""
        what = self.chance.choices(list(STEPS), weights=[STEPS[name] for name in STEPS])[0]
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
        for name in dangers.certain():
            self._danger(name)
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
                self._danger("killed between two steps")
                self._after_a_kill()
                return
            except (LedgerError, SourceError) as error:
                self._ended_by(error, dangers)
                return
        self.condemned |= witness.condemned
        self.check(outcomes, witness, dangers)
        self._after_round()

    def publish_in_a_child(self) -> None:
        """A real process that ends by SIGKILL, between two steps or wherever it happens to be."""
        if not self._children:
            return
        self._no_more_faults()  # there, every wait takes its time
        child = walking(self.site.path, self.chance.randrange(2, 30))
        try:
            child.wait(timeout=self.chance.choice((60, 60, self.chance.uniform(0.5, 1.5))))
        except subprocess.TimeoutExpired:
            child.kill()
        _, err = child.communicate(timeout=PATIENCE_S)
        self.told.append(err)
        assert child.returncode in (-signal.SIGKILL, *GRAVITY[2:], 0), f"{child.returncode}: {err}"
        self._after_a_kill()

    def misconfigure(self) -> None:
        """A mistake in the configuration, which an administrator takes back again: all of it is named, nothing is done."""
        self.site.save()
        right = self.site.path.read_text()
        before = self.met_so_far()
        line, mistake, named = self.chance.choice(_MISTAKES)
        assert line in right
        self.site.path.write_text(right.replace(line, mistake, 1))
        with pytest.raises(ConfigError, match=named) as refused:
            self._live(Witness(self, Dangers()), Dangers(), save=False)
        self.told.append(str(refused.value))
        assert self.met_so_far() == before
        self.site.save()

    def heal(self) -> list[Outcome]:
        """Everything is well again: what the last of a few rounds makes of it. The next one has nothing to do."""
        self.story.append("heal")
        self._set_rights()
        self._no_more_faults()
        self.fake.set_limit(AMS_LIMIT[self.fake.policy.profile])
        self.sgas.set_limit(SGAS_LIMIT)
        self._shift = timedelta(0)
        while self.torn:
            self.complete()
        while self.bad:
            self.mend_a_bad_job()
        self._configure(list(TARGETS), batch_records=50)
        self.calm_round()  # which shows what is accepted next
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
        held = standing.quarantined(site, targets=[])
        strange = [one for one in held if one.job.rule not in ("refused-by-receiver", "too-large")]
        assert not strange, strange
        if held:
            standing.release_or_drop(site, [], Hold.RELEASED, every=True, targets=[])

    def _live(
        self, witness: Witness, dangers: Dangers, *, ahead: timedelta = timedelta(0), save: bool = True
    ) -> LiveSite:
        if save:
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
                self._danger("stopped while it waits")
            return stop

        surroundings = ProcessEnvironment(
            environment={},
            clock=lambda: datetime.now(UTC) + self._shift + ahead,
            monotonic=self._monotonic,
            wait=wait,
            chance=self._jitter.random,
        )
        return LiveSite(settings=settings, process=surroundings)

    def _ended_by(self, error: PublisherError, dangers: Dangers) -> None:
        """What concerned all targets alike."""
        self.story.append(str(error.exit_status))
        self.told.append(str(error))
        self.counts["everything ended by one error"] += 1
        assert error.exit_status == (74 if dangers.most_bytes else 66 if dangers.vanished else 0), (
            f"{error} at {dangers}"
        )
        self._after_round()

    def _after_a_kill(self) -> None:
        self.story.append("killed")
        self.may_repeat += 1
        self._after_round()

    def _after_round(self) -> None:
        """Count what was met in this round. What AMS was told may stand there unknown to the publisher."""
        met: tuple[list[Fault | None], ...] = (
            [fault for _, _, fault in self.fake.faults.met],
            [fault for _, fault in self.sgas.faults.met],
            [fault for _, fault in self.proxy.refused],
        )
        for faults, known in zip(met, self._known, strict=True):
            for fault in faults[known:]:
                trouble = next((misfortune for made, misfortune in self._made if made is fault), None)
                if trouble is not None:
                    self.counts[f"fault: {trouble}"] += 1
                    self.may_repeat += trouble.stored and trouble.service == "AMS"
        self._known = [len(faults) for faults in met]
        if "74" in "".join(self.story[-4:]):
            self.may_repeat += 1
            self._danger("disk full")
        if self._shift:
            self._danger(f"clock {'ahead' if self._shift > timedelta(0) else 'back'}")
        if self._shift > timedelta(0):
            self.hasty |= self.torn.keys()

    def _danger(self, name: str) -> None:
        assert name in DANGERS, name
        self.counts[f"danger: {name}"] += 1


_MISTAKES: Final = (
    ("site: EXAMPLE-SITE", "sight: EXAMPLE-SITE", "site"),
    ("site: EXAMPLE-SITE", "", "site"),
    ("batch_records:", "batch_record:", "batch_records"),
    ("url: https://", "url: http://", "url"),
    ("type: arex", "type: arix", "arex"),
    ("targets:", "targets: [", "not valid YAML"),
)
"""What stands in the file, what is made of it, and what the error names."""

STEPS: Final[dict[str, int]] = {
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
    "configure": 5,
    "misconfigure": 2,
    "publish": 50,
    "publish in a child": 1,
}
