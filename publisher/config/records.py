"""The `records` block: what the site publishes about its jobs. A target may override its keys.

Rules for benchmarks and for VOs are ordered lists: the first one that matches a job counts.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from publisher.config import schema
from publisher.config.schema import Listing, Node, ReadContext, Text, Wrong, YamlBlock
from publisher.model.errors import Unfit, UsageError
from publisher.model.published import Infrastructure, check_description
from publisher.model.rates import (
    Allocation,
    Benchmark,
    BenchmarkPolicy,
    BenchmarkRule,
    make_benchmark,
)
from publisher.model.text import is_domain_name
from publisher.model.time import fixed_period, window
from publisher.policy.identity import VO_RULE_FIELDS, Identity, IdentityMode, VoRule
from publisher.policy.records import ImportedPlace, KeyStyle, RecordPolicy, StartTime
from publisher.sources import BY_INTERFACE
from publisher.sources.base import BatchEntry

if TYPE_CHECKING:
    from publisher.reporting.charges.power import Power
    from publisher.reporting.charges.rules import Charges

# What the site says of its jobs for itself: no receiver gets it, so no target has it.
SITE_ONLY: Final = frozenset(("power", "allocations"))
# Finished jobs only: what A-REX writes, `aborted` documented and possible.
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
    for status in statuses:
        if status not in STATUSES:
            advice = schema.nearest(status, STATUSES)
            return f"{schema.quoted(status)} is not a status of a finished job; {advice}"
    return None


# The prefix becomes part of the receiver's key, in a line of its own in APEL's text.
_check_localid_prefix: Final = schema.check(
    lambda prefix: prefix.isprintable() and prefix == prefix.strip(),
    "{} has blanks around it or a character that is not printable; it becomes part of a key",
)
_check_machine_name: Final = schema.check(
    lambda name: not name or is_domain_name(name),
    "{} is not a full host name; the record schemas take only those",
)


@dataclass(kw_only=True)
class BenchmarkKeys:
    """One value, or one rule of several."""

    type: str | None = None
    value: str | None = None
    benchmarks: tuple[Benchmark, ...] = field(
        default=(), metadata={"read": lambda node, reading: _benchmarks(node, reading)}
    )
    queue: str = "*"
    endpoint: str = "*"
    host: str = "*"
    from_: str | None = None
    until: str | None = None
    override: bool = False


@dataclass(kw_only=True)
class OneBenchmark:
    """An entry of `benchmarks`."""

    type: str
    value: str


def _check_field(name: str) -> str | None:
    if name in VO_RULE_FIELDS:
        return None
    return f"{schema.quoted(name)} is not a field of a job; {schema.nearest(name, VO_RULE_FIELDS)}"


_check_word: Final = schema.check(
    lambda text: text and " " not in text, "must be one word without blanks"
)
_check_group: Final = schema.check(
    lambda group: group.startswith("/"), "{} must begin with a slash, as in /atlas/de"
)


@dataclass(kw_only=True)
class VoRuleKeys:
    """One rule of `vo_rules`."""

    field_: str = field(
        metadata={"check": _check_field, "help": f"write one of {', '.join(VO_RULE_FIELDS)}"}
    )
    pattern: str = "*"
    vo: str = field(metadata={"check": _check_word, "help": "write the VO of the jobs that match"})
    group: str | None = field(default=None, metadata={"check": _check_group})
    role: str | None = None
    override: bool = False


def benchmark_rules(node: Node, reading: ReadContext) -> tuple[BenchmarkRule, ...]:
    """One mapping, or a list of rules."""
    if not isinstance(node, Listing):
        return (_benchmark_rule(node, node.place.path, reading),)
    numbers = count(1)
    return schema.read_each(
        node.entries,
        lambda entry: _benchmark_rule(entry, f"{node.place.path}, rule {next(numbers)}", reading),
        reading,
    )


def _benchmark_rule(node: Node, origin: str, reading: ReadContext) -> BenchmarkRule:
    if isinstance(node, Text):
        raise Wrong("is not a mapping; write {type: HEPscore23, value: 11.5}")
    keys = schema.read_block(node, BenchmarkKeys, reading)
    given = [key for key in (keys.type, keys.value) if key is not None]
    if bool(given) == bool(keys.benchmarks):
        raise Wrong("needs either type and value, or a list of them under benchmarks")
    if len(given) == 1:
        raise Wrong("needs both type and value, such as {type: HEPscore23, value: 11.5}")
    benchmarks = keys.benchmarks or (_benchmark(*given),)
    try:
        # As on the command line: a month or a day in `until` ends at its end.
        start = fixed_period(keys.from_).start if keys.from_ else None
        end = fixed_period(keys.until).end if keys.until else None
        valid = window(start, end)
    except UsageError as error:
        raise Wrong(str(error).replace("--from", "from").replace("--to", "until")) from error
    return BenchmarkRule(
        benchmarks=benchmarks,
        queue=keys.queue,
        endpoint=keys.endpoint,
        host=keys.host,
        window=valid,
        override=keys.override,
        origin=origin,
    )


def _benchmarks(node: Node, reading: ReadContext) -> tuple[Benchmark, ...]:
    made = []
    for entry in schema.listing(node, "[{type: HEPscore23, value: 11.5}]").entries:
        one = schema.read_block(entry, OneBenchmark, reading)
        made.append(_benchmark(one.type, one.value))
    kinds = [benchmark.kind for benchmark in made]
    if len(set(kinds)) != len(kinds):
        raise Wrong("holds two values of one type")
    return tuple(made)


def _benchmark(kind: str, value: str) -> Benchmark:
    try:
        return make_benchmark(kind, value)
    except Unfit as unfit:
        raise Wrong(unfit.reason) from unfit


def vo_rules(node: Node, reading: ReadContext) -> tuple[VoRule, ...]:
    example = "one rule a line, as in - {field: queue, pattern: atlas*, vo: atlas}"
    entries = schema.listing(node, example).entries
    return schema.read_each(entries, lambda entry: _vo_rule(entry, reading), reading)


def _vo_rule(node: Node, reading: ReadContext) -> VoRule:
    keys = schema.read_block(node, VoRuleKeys, reading)
    # `production`, `Role=production`, `/Role=production`: spelled as APEL derives it from FQANs.
    role = "Role=" + keys.role.removeprefix("/").removeprefix("Role=") if keys.role else None
    return VoRule(keys.field_, keys.pattern, keys.vo, keys.group, role, keys.override)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """The keys of `records`, with their defaults."""

    statuses: tuple[str, ...] = field(
        default=("completed", "failed"), metadata={"check": _check_statuses}
    )
    # Grid for jobs of an ARC CE, local for imported ones
    infrastructure: Infrastructure = Infrastructure.AUTO
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
    charges: "Charges | None" = field(default=None, metadata={"read": schema.read_by("charges")})
    power: "Power | None" = field(
        default=None, metadata={"read": schema.read_by("charges", "read_power")}
    )
    allocations: tuple[Allocation, ...] = field(
        default=(), metadata={"read": schema.read_by("charges", "read_allocations")}
    )

    def policy(
        self,
        site: str,
        host_name: str,
        batch_entries: Sequence[BatchEntry] = (),
        *,
        charged: bool = False,
        gpus_only: bool = False,
    ) -> RecordPolicy:
        """What becomes of job records under these settings, and those of `batch_entries`.

        `charged`: jobs get charges by the price lists. `gpus_only`: no records without GPUs.
        """
        keys = self.identity
        identity = Identity(mode=keys.mode, secret=keys.secret, period=str(keys.period))
        charging = self.charges if charged else None
        return RecordPolicy(
            site=site,
            host_name=host_name,
            infrastructure=_unless_auto(self.infrastructure) or str(Infrastructure.GRID),
            benchmarks=BenchmarkPolicy(self.benchmark, self.distrust_default),
            default_vo=self.default_vo,
            vo_rules=self.vo_rules,
            vo_groups=self.vo_group,
            identity=identity,
            key_style=self.key_style,
            start_time=self.start_time,
            localid_prefix=self.localid_prefix,
            machine_name=self.machine_name,
            batch_server=self.batch_server,
            infrastructure_description=self.infrastructure_description,
            imported=self._imported_places(batch_entries),
            charging=charging,
            gpus_only=gpus_only,
        )

    def _imported_places(
        self, batch_entries: Sequence[BatchEntry]
    ) -> Mapping[tuple[str, str], ImportedPlace]:
        places: dict[tuple[str, str], ImportedPlace] = {}
        for interface, kind in BY_INTERFACE.items():
            found: list[Any] = [each.options for each in batch_entries if each.type == kind]
            first = found[0] if found else None
            places[interface, ""] = self._imported(first)
            for options in found[1:]:
                places[interface, endpoint_url(interface, options)] = self._imported(options)
        return places

    def _imported(self, options: Any) -> ImportedPlace:
        """Of jobs of a batch system: what is in its own block comes before `records`."""
        return ImportedPlace(
            infrastructure=_first_set(
                *_own(options, "infrastructure"),
                (_unless_auto(self.infrastructure), "records.infrastructure"),
                (str(Infrastructure.LOCAL), "an imported job"),
            ),
            batch_server=_first_set(
                *_own(options, "batch_server"),
                (self.batch_server, "records.batch_server"),
                *_own(options, "cluster"),
            ),
            description=_first_set(
                *_own(options, "infrastructure_description"),
                (self.infrastructure_description, "records.infrastructure_description"),
            ),
        )


def endpoint_url(interface: str, options: Any) -> str:
    """The URL of the endpoint that a batch system's jobs get."""
    return options.submit_host or f"{interface}://{options.cluster}"


def _first_set(*candidates: tuple[str, str]) -> tuple[str, str]:
    """The first value that is not empty, and the key that says it."""
    return next((candidate for candidate in candidates if candidate[0]), ("", ""))


def _own(options: Any, key: str) -> tuple[tuple[str, str], ...]:
    """The value of a key in a batch system's block, if there is such a block."""
    if options is None:
        return ()
    return ((_unless_auto(getattr(options, key, "")), f"{options.place}.{key}"),)


def _unless_auto(text: str) -> str:
    return "" if text is Infrastructure.AUTO else str(text)


def _identity(node: Node, reading: ReadContext) -> IdentitySettings:
    """A mode by name, or a mapping with the secret and period of pseudonyms."""
    if isinstance(node, Text):
        found = IdentitySettings(mode=schema.choice(node, IdentityMode))
    else:
        found = schema.read_block(node, IdentitySettings, reading)
    if found.mode is not IdentityMode.PSEUDONYM:
        return found
    if found.secret_file is None:
        advice = "write {mode: pseudonym, secret_file: /etc/publisher/pseudonym.secret}"
        raise Wrong(f"pseudonyms need a secret; {advice}")
    return replace(found, secret=_secret(found.secret_file))


def _secret(path: Path) -> bytes:
    """The content of a secret file, without the line end. Its text is never part of a message."""
    try:
        with path.open("rb") as file:
            open_to_all = os.fstat(file.fileno()).st_mode & stat.S_IROTH
            secret = file.read(_SECRET_BYTES[-1] + 1).strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Wrong(f"secret_file {path} cannot be read: {why}") from error
    if open_to_all:
        raise Wrong(f"secret_file {path} may be read by everybody; chmod 600 it")
    if len(secret) not in _SECRET_BYTES:
        raise Wrong(
            f"secret_file {path} must hold {_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]} bytes; "
            "make one with: openssl rand -hex 32"
        )
    return secret


def read_records(block: YamlBlock, reading: ReadContext) -> RecordSettings:
    """The `records` block; defaults where something is wrong, which is added to the problems."""
    schema.check_names(block, schema.keys_of(RecordSettings), reading)
    return RecordSettings(**schema.read_keys(block, RecordSettings, reading))
