"""The `targets` block: where records go, in which format, how often, and which jobs.

A target's keys are those of every target, of its transport, and of `records`, which win over it.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.config import schema
from publisher.config.records import SITE_ONLY, RecordSettings
from publisher.config.schema import Node, ReadContext, Text, Wrong, YamlBlock
from publisher.formats import (
    JOB_FORMATS,
    JURA_APEL_FORMATS,
    JURA_SGAS_FORMAT,
    SUMMARY_FORMATS,
    is_summary_format,
    receiver_of,
)
from publisher.formats.base import OnChange
from publisher.model.entry import SHADOW, ReceiverName
from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.model.published import Infrastructure
from publisher.model.time import StartKind, StartRule, epoch, fixed_period, month_of
from publisher.policy.records import RecordPolicy, StartTime
from publisher.policy.target import Target
from publisher.sources import IMPORTERS, SOURCES, importer_plugin, source_plugin
from publisher.sources.base import BatchEntry
from publisher.transports import TRANSPORTS, transport_plugin
from publisher.transports.base import Destination, TransportOptions

if TYPE_CHECKING:
    from publisher.config.cron import Cron

# A lock file is named after it: file names end at 255 bytes.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_BATCH_RECORDS: Final = range(1, 100_001)
_SINGLE_MONTHS: Final = range(1201)
_JURA_FORMATS: Final = (*JURA_APEL_FORMATS.values(), JURA_SGAS_FORMAT)
_SUMMARY_EVERY_S: Final = 86400
_JOBS_EVERY_S: Final = 3600
_RECORDS_HINT: Final = {"records": "write its keys directly under the target, without `records`"}
_NONE: Final[Mapping[str, Callable[[], type]]] = {}


class Registered(NamedTuple):
    """Names and, for all but formats, how to get the `Options` of one, loaded on demand."""

    sources: Mapping[str, Callable[[], type]]
    transports: Mapping[str, Callable[[], type]]
    formats: Collection[str]
    importers: Mapping[str, Callable[[], type]] = _NONE


def _options(plugin: Callable[[str], Any], name: str) -> type:
    shape: type = plugin(name).Options
    return shape


REGISTERED = Registered(
    sources={name: partial(_options, source_plugin, name) for name in SOURCES},
    transports={name: partial(_options, transport_plugin, name) for name in TRANSPORTS},
    # Sync counts are sent beside a format (`sync: true`), never as one.
    formats=(*JOB_FORMATS, *SUMMARY_FORMATS),
    importers={name: partial(_options, importer_plugin, name) for name in IMPORTERS},
)


def plugin_options(
    block: YamlBlock, known: Mapping[str, Callable[[], type]], reading: ReadContext
) -> tuple[str | None, type | None]:
    """The block's `type` and its `Options`.

    For a type that is not known the name is None, and the options are those of the nearest one, so
    that the other keys can be checked as well. A missing `type` is reported elsewhere.
    """
    node = block.keys.get("type")
    if not isinstance(node, Text) or node.null:
        return None, None
    name = node.text if node.text in known else None
    if name is None:
        _report_unknown(node, tuple(known), reading)
    probable = name or schema.closest(node.text, known)
    try:
        return name, known[probable]() if probable else None
    except ImportError as error:
        what = f"{probable} cannot be loaded here: {error}; install what is missing"
        reading.wrong(node.place, what)
        return None, None


def _report_unknown(node: Text, known: Collection[str], reading: ReadContext) -> None:
    what = f"{schema.quoted(node.text)} is not known; {schema.nearest(node.text, known)}"
    reading.wrong(node.place, what)


def _read_start(node: Node, _reading: ReadContext) -> StartRule:
    text = schema.scalar(node, "month, now, all or a date")
    if text in (StartKind.MONTH, StartKind.NOW, StartKind.ALL):
        return StartRule(kind=StartKind(text))
    try:
        return StartRule(kind=StartKind.DATE, since=fixed_period(text).start)
    except UsageError as error:
        raise Wrong(f"{error}, or one of month, now, all") from error


def _read_jura_until(node: Node, _reading: ReadContext) -> Epoch:
    text = schema.scalar(node, "a time, such as 2026-10-12T03:04:05Z")
    try:
        return epoch(fixed_period(text).start)
    except UsageError as error:
        raise Wrong(str(error)) from error


_check_jura_format: Final = schema.check(
    lambda name: name in _JURA_FORMATS, f"jura-ng sends {', '.join(_JURA_FORMATS)}"
)


def _seconds(allowed: range, what: str) -> Callable[[Node, ReadContext], int]:
    def read(node: Node, _reading: ReadContext) -> int:
        seconds = schema.whole_duration_s(node)
        if seconds not in allowed:
            raise Wrong(what)
        return seconds

    return read


_read_every: Final = _seconds(
    range(1, 366 * 86400 + 1), "must be between 1s and 366d; write 1h, 24h, 7d"
)
_read_jitter: Final = _seconds(range(86400 + 1), "must be between 0 and 1d; write 90s, 10m, 1h")


def _read_single_months(node: Node, _reading: ReadContext) -> int:
    months = schema.whole_number(node)
    if months not in _SINGLE_MONTHS:
        most = _SINGLE_MONTHS[-1]
        raise Wrong(f"{months} is not between 1 and {most}; 0 means that no record is purged")
    return months


def _read_batch_records(node: Node, _reading: ReadContext) -> int:
    count = schema.whole_number(node)
    if count and count not in _BATCH_RECORDS:
        raise Wrong(
            f"{count} is not between 1 and {_BATCH_RECORDS[-1]}; 0 means no limit on the count, "
            "as in ARC's urbatchsize (the size limit of a message always holds)"
        )
    return count


_check_vos: Final = schema.check(
    bool, "is empty, so no job would be published; leave the key out for all VOs"
)


@dataclass(kw_only=True)
class TargetKeys:
    """The keys of every target. Defaults of `every` and `batch_records` depend on others."""

    type: str = field(metadata={"help": "write the kind of service, such as ams"})
    format: str = field(metadata={"help": "write what is sent, such as apel-summary-0.4"})
    sync: bool = False
    every: int | None = field(default=None, metadata={"read": _read_every})
    cron: "Cron | None" = field(default=None, metadata={"read": schema.read_by("cron")})
    jitter: int = field(default=0, metadata={"read": _read_jitter})
    start: StartRule = field(default=StartRule(), metadata={"read": _read_start})
    vos: tuple[str, ...] | None = field(default=None, metadata={"check": _check_vos})
    exclude_vos: tuple[str, ...] = ()
    batch_records: int | None = field(default=None, metadata={"read": _read_batch_records})
    single_months: int = field(default=3, metadata={"read": _read_single_months})
    shadow: bool = False
    jura_until: Epoch | None = field(default=None, metadata={"read": _read_jura_until})
    jura_format: str | None = field(default=None, metadata={"check": _check_jura_format})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredTarget(Target):
    """A target with the `records` keys that hold for it."""

    records: RecordSettings


class Common(NamedTuple):
    """What targets share: site, machine name, `records` block, batch systems, and the plug-ins."""

    site: str
    host_name: str
    records: RecordSettings
    registered: Registered
    batch_entries: Sequence[BatchEntry] = ()


def read_targets(
    block: YamlBlock, common: Common, reading: ReadContext
) -> tuple[ConfiguredTarget, ...]:
    """Every target that could be read; what is wrong goes to the problems."""
    if not block.keys:
        reading.wrong(block.place, "holds no target; add one, or nothing is ever published")
    made = []
    for name, node in block.keys.items():
        if not NAME.fullmatch(name):
            what = "letters, digits, '.', '_' and '-', and begins with a letter or digit"
            reading.wrong(node.place, f"a target's name is {what}")
        with reading.reporting(node.place):
            target = read_target(name, schema.as_block(node), common, reading)
            made += [] if target is None else [target]
    _check_mixtures(made, block, reading)
    return tuple(made)


def read_target(
    name: str, block: YamlBlock, common: Common, reading: ReadContext
) -> ConfiguredTarget | None:
    """One target; None when it cannot be used, the reasons being among the problems."""
    kind, options_shape = plugin_options(block, common.registered.transports, reading)
    if options_shape is not None:
        records_keys = schema.keys_of(RecordSettings).keys() - SITE_ONLY
        names = [*schema.keys_of(TargetKeys), *sorted(records_keys), *schema.keys_of(options_shape)]
        schema.check_names(block, names, reading, _RECORDS_HINT)
    format_name = _format(block, common.registered.formats, reading)
    known = schema.read_keys(block, TargetKeys, reading)
    overrides = schema.read_keys(block, RecordSettings, reading)
    records = replace(common.records, **overrides)
    options: Any = None
    if options_shape is not None:
        options_keys = schema.read_keys(block, options_shape, reading)
        options = schema.build(block, options_shape, options_keys, reading)
        if reason := format_problem(kind, options_shape, format_name):
            reading.wrong(block.keys["format"].place, reason)
    keys = schema.build(block, TargetKeys, known, reading)
    _check_keys(known, format_name, block, reading)
    if not common.batch_entries:  # the batch server of imported jobs is known
        _check_records(records, overrides, block, reading)
    if keys is None or options is None or kind is None or format_name is None:
        return None
    return _settings(name, keys, options, records, common)


def _settings(
    name: str, keys: TargetKeys, options: object, records: RecordSettings, common: Common
) -> ConfiguredTarget:
    batch = keys.batch_records
    if batch is None:
        batch = receiver_of(keys.format).default_batch_records
    usual_s = _SUMMARY_EVERY_S if is_summary_format(keys.format) else _JOBS_EVERY_S
    vos = None if keys.vos is None else frozenset(keys.vos)

    def policy_for(format_name: str) -> RecordPolicy:
        receiver = receiver_of(format_name)
        policy = records.policy(
            common.site,
            common.host_name,
            common.batch_entries,
            charged=receiver.takes_charges,
            gpus_only=receiver.gpus_only,
        )
        if keys.jura_until is None or not receiver.needs_benchmark:
            return policy
        month = month_of(datetime.fromtimestamp(keys.jura_until, UTC))
        benchmarks = policy.benchmarks._replace(jura_before=epoch(month.next.start))
        return replace(policy, benchmarks=benchmarks)

    return ConfiguredTarget(
        name=name,
        type=keys.type,
        options=options,
        format=keys.format,
        sync=keys.sync,
        every_s=keys.every or usual_s,
        cron=keys.cron,
        jitter_s=keys.jitter,
        start=keys.start,
        vos=vos,
        exclude_vos=frozenset(keys.exclude_vos),
        batch_records=batch,
        single_months=keys.single_months,
        shadow=keys.shadow,
        jura_until=keys.jura_until,
        jura_format=keys.jura_format,
        records=records,
        statuses=frozenset(records.statuses),
        policy=policy_for(keys.format),
        policy_for=policy_for,
        charging=records.charges,
    )


def _format(block: YamlBlock, valid: Collection[str], reading: ReadContext) -> str | None:
    """The format's name, if such a format exists; a missing one is reported elsewhere."""
    node = block.keys.get("format")
    if not isinstance(node, Text) or node.null:
        return None
    if node.text in valid:
        return node.text
    _report_unknown(node, valid, reading)
    return None


def format_problem(kind: str | None, options: object, format_name: str | None) -> str:
    """Why a service does not read a format, or ''; `options` are those of its transport."""
    read = getattr(options, "formats", ())
    if not read or format_name is None or format_name in read:
        return ""
    return f"the type {kind} takes {', '.join(read)} only, not {format_name}"


def _is_inside_a_month(start: StartRule) -> bool:
    if start.since is None:
        return start.kind is StartKind.NOW
    return start.since != month_of(start.since).start


def _check_keys(
    known: Mapping[str, Any], format_name: str | None, block: YamlBlock, reading: ReadContext
) -> None:
    """What is wrong between a target's own keys."""
    if known.get("every") and known.get("cron"):
        reading.wrong(block.keys["cron"].place, "cannot be combined with every; remove one of them")
    if both := sorted(set(known.get("vos") or ()) & set(known.get("exclude_vos", ()))):
        what = f"{', '.join(both)} is in vos too; remove it from one of them"
        reading.wrong(block.keys["exclude_vos"].place, what)
    if format_name is not None:
        _check_with_format(known, format_name, block, reading)


def _check_with_format(
    known: Mapping[str, Any], format_name: str, block: YamlBlock, reading: ReadContext
) -> None:
    receiver = receiver_of(format_name)
    asked, most = known.get("batch_records"), receiver.most_batch_records
    if most and asked is not None and not 0 < asked <= most:
        what = f"{asked} is not between 1 and {most}, which {format_name} allows"
        reading.wrong(block.keys["batch_records"].place, what)
    if known.get("sync") and not receiver.sync_format:
        what = f"{receiver.name}, which reads {format_name}, takes no sync counts"
        reading.wrong(block.keys["sync"].place, what)
    if is_summary_format(format_name) and _is_inside_a_month(known.get("start", StartRule())):
        reading.wrong(
            block.keys["start"].place,
            "would begin inside a month, and a summary of part of a month replaces the whole one "
            "at the server; write month, all, or a month such as 2026-03",
        )


def _check_records(
    records: RecordSettings, overrides: Mapping[str, Any], block: YamlBlock, reading: ReadContext
) -> None:
    """What is wrong between `records` keys, as this target sees them."""
    if records.infrastructure is Infrastructure.LOCAL and not records.batch_server:
        at = block.keys["infrastructure"].place if "infrastructure" in overrides else block.place
        what = "infrastructure: local needs batch_server"
        reading.wrong(at, f"{what}, the host name that local jobs were submitted to")


def _check_mixtures(targets: Sequence[Target], block: YamlBlock, reading: ReadContext) -> None:
    """Targets that would spoil each other's rows at the receiver.

    A shadow target hands nothing over and may be beside the one that it is compared with.
    """
    for first, second in combinations([target for target in targets if not target.shadow], 2):
        there = meeting_place(first, second)
        if there is not None and (trouble := _mixed(first, second, there)):
            node = block.keys[second.name]
            if isinstance(node, YamlBlock) and first.format != second.format:
                node = node.keys["format"]
            reading.wrong(node.place, trouble)


def _mixed(first: Target, second: Target, there: Destination) -> str:
    """What comes of two targets at one place; '' when nothing does.

    Jobs and summaries, or two kinds of summaries, of one site are counted twice there, and so are
    records of one job under two keys; rows under one key replace each other.
    """
    where = f"the same {there.keys} as"
    if first.format != second.format:
        return (
            f"{second.format} would go to {where} {first.format} of target {first.name}, "
            "and jobs are counted twice there; send one format, or mark one target `shadow: true`"
        )
    if is_summary_format(second.format) and not apart(first, second):
        return (
            f"its totals would go to {where} those of target {first.name}, and replace some of "
            "them there; give each target vos of its own, or make them one"
        )
    both_want_some = bool(first.statuses & second.statuses) and not apart(first, second)
    added_by_keys = receiver_of(second.format).row_keys is not None
    if both_want_some and added_by_keys and _in_keys(first.policy) != _in_keys(second.policy):
        return (
            f"its jobs go to {where} those of target {first.name}, under other settings of "
            "`records`: one that both want would count twice there; give each target vos of its "
            "own, or the same settings"
        )
    if first.sync or second.sync:
        return (
            f"its jobs go to {where} those of target {first.name}, where the counts that one "
            "target sends with sync: true would replace those of the other; "
            "make them one target, or send no counts"
        )
    return ""


def _in_keys(policy: RecordPolicy) -> RecordPolicy:
    """A policy without what is in no key of a receiver."""
    return replace(policy, charging=None, start_time=StartTime.RUN)


def added_up(one: Target, other: Target) -> bool:
    """Whether a receiver adds up what these send to one place: jobs and jobs, not accelerators."""
    return receiver_of(one.format).counts == receiver_of(other.format).counts


def meeting_place(one: Target, other: Target) -> Destination | None:
    """Where a receiver adds up what both send; None where there is no such place."""
    there = destination(one)
    return there if there == destination(other) and added_up(one, other) else None


def same_rows(one: Target, other: Target) -> bool:
    """Whether two targets write into the same rows of one receiver; a shadow writes into none."""
    same_site = one.policy.site == other.policy.site
    return meeting_place(one, other) is not None and same_site and not other.shadow


def beside(target: Target, targets: Sequence[Target]) -> list[Target]:
    """Return the other targets of a target's receiver, whatever their site."""
    place = receiver_name(target).place
    others = (one for one in targets if one.name != target.name)
    return [one for one in others if receiver_name(one).place == place]


def apart(one: Target, other: Target) -> bool:
    """Whether no VO is wanted by both."""
    if one.vos is None:
        return other.vos is not None and other.vos <= one.exclude_vos
    return one.vos <= other.exclude_vos if other.vos is None else not one.vos & other.vos


def destination(target: Target) -> Destination | None:
    """Where messages of targets meet; None where they cannot or the receiver tells them apart."""
    return target.options.destination() if isinstance(target.options, TransportOptions) else None


def receiver_name(target: Target) -> ReceiverName:
    """Where a target's rows accumulate, by its present address, and what counts there.

    A shadow, whose messages go nowhere, has a receiver of its own. So has a target of which a
    change of the address means nothing.
    """
    keeps_first = receiver_of(target.format).on_change is OnChange.KEEP_FIRST
    if target.shadow:
        return ReceiverName(f"shadow {target.name}", keeps_first, SHADOW)
    options, counts = target.options, receiver_of(target.format).counts
    place = options.leads_to() if isinstance(options, TransportOptions) else ""
    if not place:
        return ReceiverName(f"target {target.name}", keeps_first, target.type)
    counted = "" if counts == "jobs" else f" ({counts})"
    return ReceiverName(f"{place}{counted}", keeps_first, target.type)
