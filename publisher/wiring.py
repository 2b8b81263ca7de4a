"""Settings in, live objects out: the only place that knows which class stands behind which name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from publisher import __version__
from publisher.config import Settings, TargetSettings
from publisher.delivery import transport_plugin
from publisher.delivery.base import Circumstances, Credentials, Endpoint, Transport
from publisher.errors import ConfigError
from publisher.ledger.base import Ledger
from publisher.ledger.moves import open_ledger, open_to_read
from publisher.model.selection import Window
from publisher.model.when import epoch
from publisher.sources import source_plugin
from publisher.sources.base import Source

if TYPE_CHECKING:  # each command loads what it makes live: all of it took 30 ms, a tenth of a round with nothing to do
    from publisher.aim import Aim
    from publisher.importers.base import Importer
    from publisher.judge import Changed
    from publisher.ledger.charge_base import ChargeBook
    from publisher.ledger.history_base import History
    from publisher.ledger.measure_base import MeasureBook
    from publisher.outcome import Outcome
    from publisher.sources.usage import UsageReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the process stands in: everything that is not in the configuration and changes from run to run.

    `wait(seconds)` waits and says whether a stop was asked for. `abreast`: several targets are worked on at the same time
    (abreast.py), rather than one after the other.
    """

    environment: Mapping[str, str]
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    wait: Callable[[float], bool]
    chance: Callable[[], float] = random.random
    abreast: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A configured site, ready to be made live piece by piece.

    `after_round` are told what came of each round, by `publish` and the daemon, in the thread of the round.
    """

    settings: Settings
    surroundings: Surroundings
    after_round: tuple[Callable[[Site, Outcome], None], ...] = ()

    def source(self) -> Source:
        """Raises: SourceError."""
        return source_plugin(self.settings.source.type).create(
            self.settings.source.options, self.surroundings.environment
        )

    def ledger(self, *, rehearsal: bool = False) -> Ledger:
        """The publishing database; for a rehearsal one that only asks it. Raises: LedgerError."""
        if rehearsal:
            from publisher.ledger.rehearsal import RehearsalLedger

            return RehearsalLedger(open_to_read(self.settings.state))
        return open_ledger(self.settings.state)

    def ledger_to_read(self) -> Ledger:
        """Raises: LedgerError."""
        return open_to_read(self.settings.state)

    def charge_book(self) -> ChargeBook:
        """The charges in the publishing database. Raises: LedgerError."""
        from publisher.ledger.charge_book import open_charge_book

        return open_charge_book(self.settings.state)

    def charge_book_to_read(self) -> ChargeBook:
        """Raises: LedgerError."""
        from publisher.ledger.charge_book import open_charge_book_to_read

        return open_charge_book_to_read(self.settings.state)

    def history(self) -> History:
        """What was delivered when. Raises: LedgerError."""
        from publisher.ledger.history import open_history

        return open_history(self.settings.state)

    def usage(self) -> UsageReader:
        """The source, for who sums up what jobs used. Raises: ConfigError."""
        from publisher.sources.usage import usage_plugin

        return usage_plugin(self.settings.source.type).create(
            self.settings.source.options, self.surroundings.environment
        )

    def measure_book(self) -> MeasureBook:
        """What was measured of the targets, kept for metrics. Raises: LedgerError."""
        from publisher.ledger.measure_book import open_measure_book

        return open_measure_book(self.settings.state)

    def measure_book_to_read(self) -> MeasureBook:
        """Raises: LedgerError."""
        from publisher.ledger.measure_book import open_measure_book_to_read

        return open_measure_book_to_read(self.settings.state)

    def importer(self, name: str) -> Importer:
        """Raises: ConfigError when the configuration has no block for it, or names a map file that cannot be read."""
        from publisher.importers import importer_plugin

        options = self.settings.importers.get(name)
        if options is None:
            raise ConfigError(f"{self.settings.path}: importers.{name}: missing; publisher.yaml(5) explains its keys")
        return importer_plugin(name).create(options)

    def aim(self, target: TargetSettings, *, rehearsal: bool = False, accept_key_change: bool = False) -> Aim:
        """A target, live. Raises: CredentialError."""
        from publisher.aim import Aim
        from publisher.delivery.rehearsal import RehearsalTransport
        from publisher.formats import frame_of, job_format, summary_format

        now = self.surroundings.clock()
        transport = self.transport(target)
        return Aim(
            name=target.name,
            selection=target.selection(Window()),
            start_rule=str(target.start),
            start=None if (begin := target.start.begin(now)) is None else epoch(begin),
            policy=target.policy,
            format=summary_format(target.format) if target.summary else job_format(target.format),
            transport=RehearsalTransport(transport) if rehearsal or target.shadow else transport,
            batch_records=target.batch_records or 0,
            frame_of=frame_of,
            changed=fate_of_changed(target),
            accept_key_change=accept_key_change,
            selection_digest=self.selection_digest(target),
            policy_digest=self.policy_digest(target),
            wire_digest=_digest(target.type, target.options),
        )

    def selection_digest(self, target: TargetSettings) -> str:
        """Of what decides which jobs a target wants."""
        return _digest(sorted(target.records.statuses), sorted(target.vos or ()), sorted(target.exclude_vos))

    def policy_digest(self, target: TargetSettings) -> str:
        """Of everything that decides how a target's records look."""
        return _digest(__version__, target.format, target.type, target.policy, target.policy.identity.secret)

    def credentials(self) -> Credentials:
        found = self.settings.credentials
        return Credentials(certificate=found.certificate, key=found.key, ca=found.ca)

    def endpoints(self, target: TargetSettings) -> tuple[Endpoint, ...]:
        """The services that a target talks to. Raises: ConfigError."""
        return transport_plugin(target.type).endpoints(target.options, self.surroundings.environment)

    def transport(self, target: TargetSettings) -> Transport:
        """Raises: CredentialError, ConfigError."""
        return transport_plugin(target.type).create(
            target.options,
            self.credentials(),
            Circumstances(
                environment=self.surroundings.environment,
                now=self.surroundings.clock,
                clock=self.surroundings.monotonic,
                chance=self.surroundings.chance,
                wait=self.surroundings.wait,
            ),
        )


def fate_of_changed(target: TargetSettings) -> Changed:
    """What becomes of runs that changed after their delivery; usage records are for SGAS, whoever brings them there."""
    from publisher.judge import Changed

    if target.summary:
        return Changed.RECOUNT
    return Changed.KEEP if target.type == "sgas" or target.format == "ogf-ur" else Changed.REPLACE


def _digest(*parts: object) -> str:
    """Of anything whose `repr` tells all of it; short, because it is compared, never read."""
    return sha256(repr(parts).encode()).hexdigest()[:16]
