"""The `records` block: what the site publishes about its jobs. A target may override each of its keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from publisher.config.rules import benchmark_rules, vo_rules
from publisher.config.yaml import read_by, schema
from publisher.config.yaml.schema import ReadContext, Wrong, check_names, keys_of, read_block, read_keys
from publisher.config.yaml.tree import Node, Text, YamlBlock, nearest
from publisher.model.identity import Identity, IdentityMode, VoRule
from publisher.model.policy import ImportedPlace, Infrastructure, KeyStyle, RecordPolicy, StartTime, check_description
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule
from publisher.model.text import is_domain_name
from publisher.sources import BY_INTERFACE

if TYPE_CHECKING:
    from publisher.reporting.charges.rules import Charges

# Finished jobs only: what A-REX writes (arc-database facts, section 1), `aborted` documented and possible.
STATUSES: Final = ("completed", "failed", "aborted")
_SECRET_BYTES: Final = range(16, 4097)


class PseudonymPeriod(StrEnum):
    """How long a user keeps one pseudonym."""

    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """How users are named. `secret` is the content of `secret_file`, never shown."""

    mode: IdentityMode = field(metadata={"help": "write plain, withheld or pseudonym"})
    secret_file: Path | None = None
    period: PseudonymPeriod = PseudonymPeriod.YEAR
    secret: bytes = field(default=b"", repr=False, metadata={"hidden": True})


def _check_default_vo(text: str) -> str | None:
    vo, mark, issuer = text.partition("#")
    if " " in text or "#" in issuer or (mark and not (vo and issuer)):
        return f"{schema.quoted(text)} is neither VO nor VO#ISSUER"
    return None


def _check_statuses(statuses: tuple[str, ...]) -> str | None:
    if not statuses:
        return "is empty, so no job would be published; leave the key out for completed and failed"
    unknown = [status for status in statuses if status not in STATUSES]
    return (
        f"{schema.quoted(unknown[0])} is not a status of a finished job; {nearest(unknown[0], STATUSES)}"
        if unknown
        else None
    )


def _check_localid_prefix(prefix: str) -> str | None:
    """It becomes part of the receiver's key, in a line of its own in APEL's text."""
    if prefix.isprintable() and prefix == prefix.strip():
        return None
    return (
        f"{schema.quoted(prefix)} has blanks around it or a character that is not printable; it becomes part of a key"
    )


def _check_machine_name(name: str) -> str | None:
    if not name or is_domain_name(name):
        return None
    return f"{schema.quoted(name)} is not a full host name; the record schemas take only those"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """The keys of `records`, with their defaults."""

    statuses: tuple[str, ...] = field(default=("completed", "failed"), metadata={"check": _check_statuses})
    infrastructure: Infrastructure = Infrastructure.AUTO  # grid for jobs of an ARC CE, local for imported ones
    benchmark: tuple[BenchmarkRule, ...] = field(default=(), metadata={"read": benchmark_rules})
    distrust_default: bool = False
    default_vo: str = field(default="", metadata={"check": _check_default_vo})
    vo_rules: tuple[VoRule, ...] = field(default=(), metadata={"read": vo_rules})
    vo_group: tuple[str, ...] = ()
    identity: IdentitySettings = field(
        default=IdentitySettings(mode=IdentityMode.PLAIN),
        metadata={"read": lambda node, reading: _identity(node, reading)},
    )
    key_style: KeyStyle = KeyStyle.APEL
    start_time: StartTime = StartTime.RUN
    localid_prefix: str = field(default="", metadata={"check": _check_localid_prefix})
    machine_name: str = field(default="", metadata={"check": _check_machine_name})
    batch_server: str = ""
    infrastructure_description: str = field(default="", metadata={"check": check_description})
    charges: Charges | None = field(default=None, metadata={"read": read_by("charges")})

    def policy(
        self, site: str, host_name: str, importers: Mapping[str, object] | None = None, *, charged: bool = False
    ) -> RecordPolicy:
        """What becomes of job records under these settings. `importers` are their options by name.

        `charged`: jobs get the charges of the price lists.
        """
        identity = self.identity
        return RecordPolicy(
            site=site,
            host_name=host_name,
            infrastructure=_unless_auto(self.infrastructure) or str(Infrastructure.GRID),
            benchmarks=BenchmarkPolicy(rules=self.benchmark, distrust_default=self.distrust_default),
            default_vo=self.default_vo,
            vo_rules=self.vo_rules,
            vo_groups=self.vo_group,
            identity=Identity(mode=identity.mode, secret=identity.secret, period=str(identity.period)),
            key_style=self.key_style,
            start_time=self.start_time,
            localid_prefix=self.localid_prefix,
            machine_name=self.machine_name,
            batch_server=self.batch_server,
            infrastructure_description=self.infrastructure_description,
            imported={
                interface: self._imported(name, (importers or {}).get(name)) for interface, name in BY_INTERFACE.items()
            },
            charging=self.charges if charged else None,
        )

    def _imported(self, name: str, options: Any) -> ImportedPlace:
        """Of jobs that an importer brought in: what is in its own block comes before `records`."""
        infrastructure, server, description = (
            next((candidate for candidate in candidates if candidate[0]), ("", ""))
            for candidates in (
                (
                    *_own(name, options, "infrastructure"),
                    (_unless_auto(self.infrastructure), "records.infrastructure"),
                    (str(Infrastructure.LOCAL), "an imported job"),
                ),
                (
                    *_own(name, options, "batch_server"),
                    (self.batch_server, "records.batch_server"),
                    *_own(name, options, "cluster"),
                ),
                (
                    *_own(name, options, "infrastructure_description"),
                    (self.infrastructure_description, "records.infrastructure_description"),
                ),
            )
        )
        return ImportedPlace(infrastructure=infrastructure, batch_server=server, description=description)


def _own(name: str, options: Any, key: str) -> tuple[tuple[str, str], ...]:
    """The value of a key in an importer's block, if there is such a block."""
    if options is None:
        return ()
    return ((_unless_auto(getattr(options, key, "")), f"importers.{name}.{key}"),)


def _unless_auto(text: str) -> str:
    return "" if text is Infrastructure.AUTO else str(text)


def _identity(node: Node, reading: ReadContext) -> IdentitySettings:
    """A mode by name, or a mapping with the secret and period of pseudonyms."""
    if isinstance(node, Text):
        found = IdentitySettings(mode=schema.choice(node, IdentityMode))
    else:
        found = read_block(node, IdentitySettings, reading)
    if found.mode is not IdentityMode.PSEUDONYM:
        return found
    if found.secret_file is None:
        raise Wrong("pseudonyms need a secret; write {mode: pseudonym, secret_file: /etc/publisher/pseudonym.secret}")
    return IdentitySettings(
        mode=found.mode, secret_file=found.secret_file, period=found.period, secret=_secret(found.secret_file)
    )


def _secret(path: Path) -> bytes:
    """The content of a secret file, without the line end. Its text is never part of a message."""
    try:
        with path.open("rb") as file:
            open_to_all = os.fstat(file.fileno()).st_mode & stat.S_IROTH
            secret = file.read(_SECRET_BYTES[-1] + 1).strip()
    except (OSError, ValueError) as error:
        raise Wrong(f"secret_file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if open_to_all:
        raise Wrong(f"secret_file {path} may be read by everybody; chmod 600 it")
    if len(secret) not in _SECRET_BYTES:
        raise Wrong(
            f"secret_file {path} must hold {_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]} bytes; "
            "make one with: openssl rand -hex 32"
        )
    return secret


def read_records(block: YamlBlock, reading: ReadContext) -> RecordSettings:
    """The `records` block; where something is wrong, it is added to the problems, and defaults are used."""
    check_names(block, keys_of(RecordSettings), reading)
    return RecordSettings(**read_keys(block, RecordSettings, reading))
