"""The effective configuration as YAML: every key, defaults filled in. Secrets stay secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from publisher.config import schema
from publisher.config.records import RecordSettings
from publisher.config.settings import Settings
from publisher.config.targets import ConfiguredTarget
from publisher.model.job import Epoch
from publisher.model.rates import Allocation, BenchmarkRule
from publisher.model.time import Window, iso_epoch
from publisher.policy.identity import VoRule

if TYPE_CHECKING:
    from publisher.reporting.charges.power import PowerRule
    from publisher.reporting.charges.rules import ChargeRule
    from publisher.sources.base import BatchEntry

_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s]+@")
_UNITS_S: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def show(settings: Settings) -> str:
    """YAML that `load` reads back to the same; of targets' `records` keys, what differs."""
    importers = {
        each.name: _set_keys(each.options) for each in settings.batch_entries if not each.in_rounds
    }
    sources = _sources(settings)
    tree = {
        "site": settings.site,
        **({"source": sources} if sources else {}),
        **_ledger(settings),
        **({"keep": f"{settings.keep_months} months"} if settings.keep_months else {}),
        "targets_at_once": settings.targets_at_once,
        "credentials": {
            **_keys(settings.credentials),
            "ca": str(settings.credentials.ca or "system"),
        },
        **({"metrics": _set_keys(settings.metrics)} if settings.metrics else {}),
        "records": _records(settings.records),
        **({"importers": importers} if importers else {}),
        "targets": {target.name: _target(target, settings.records) for target in settings.targets},
    }
    text: str = schema.load_module("yaml_file").write_tree(tree)
    return text


def _ledger(settings: Settings) -> dict[str, str]:
    server = settings.server
    if server is None:
        return {"state": str(settings.state)}
    return {
        "state": server.address,
        "instance": server.instance,
        "state_directory": str(settings.state.parent),
    }


def _sources(settings: Settings) -> Any:
    """One mapping where there is one ARC entry and no other."""
    entries = [
        {"type": each.type, "name": each.name, **_keys(each.options)} for each in settings.written
    ]
    entries += [
        {"type": each.type, "name": each.name, **_of_entry(each), **_set_keys(each.options)}
        for each in settings.batch_entries
        if each.in_rounds
    ]
    return entries[0] if len(entries) == 1 else entries


def _of_entry(entry: BatchEntry) -> dict[str, Any]:
    keys = {}
    if entry.join_wait_s is not None:
        keys = {"join": "arex", "join_wait": _duration(entry.join_wait_s)}
    return keys


def _set_keys(options: object) -> dict[str, Any]:
    """Those that have a value."""
    return {key: value for key, value in _keys(options).items() if value is not None}


def _target(target: ConfiguredTarget, base: RecordSettings) -> dict[str, Any]:
    own = _records(target.records)
    same = _records(base)
    return {
        "type": target.type,
        **_keys(target.options),
        "format": target.format,
        "sync": target.sync,
        **({"cron": str(target.cron)} if target.cron else {"every": _duration(target.every_s)}),
        "jitter": _duration(target.jitter_s),
        "start": str(target.start),
        "vos": None if target.vos is None else sorted(target.vos),
        "exclude_vos": sorted(target.exclude_vos),
        "batch_records": target.batch_records,
        "single_months": target.single_months,
        "shadow": target.shadow,
        "jura_until": None if target.jura_until is None else iso_epoch(target.jura_until),
        "jura_format": target.jura_format,
        **{key: value for key, value in own.items() if value != same[key]},
    }


def _records(records: RecordSettings) -> dict[str, Any]:
    shown = _keys(records)
    shown["benchmark"] = [_benchmark_rule(rule) for rule in records.benchmark]
    shown["vo_rules"] = [_vo_rule(rule) for rule in records.vo_rules]
    shown["identity"] = _set_keys(records.identity)
    charges = records.charges.rules if records.charges else ()
    shown["charges"] = [_charge_rule(rule) for rule in charges]
    shown["power"] = [_power_rule(rule) for rule in records.power.rules] if records.power else []
    shown["allocations"] = [_allocation(one) for one in records.allocations]
    return shown


def _allocation(one: Allocation) -> dict[str, Any]:
    amounts = {
        "charge": one.charge,
        "unit": one.unit or None,
        "gpu_hours": one.gpu_hours,
        "benchmark": one.benchmark or None,
        "benchmark_hours": one.benchmark_hours,
    }
    return {
        **({"vo": one.vo} if one.vo else {"project": one.project}),
        **_bounds({"valid_from": one.window.start, "valid_to": one.window.end}),
        **{name: str(value) for name, value in amounts.items() if value is not None},
    }


def _power_rule(rule: PowerRule) -> dict[str, Any]:
    names = ("watts_per_core", "watts_per_gpu", "grams_per_kwh", "carbon_file")
    given = {name: value for name in names if (value := getattr(rule, name)) is not None}
    return {
        **{name: str(value) for name, value in given.items()},
        "pue": str(rule.pue),
        "queues": list(rule.queues),
        "hosts": list(rule.hosts),
        **_validity(rule.valid),
    }


def _benchmark_rule(rule: BenchmarkRule) -> dict[str, Any]:
    patterns = {"queue": rule.queue, "endpoint": rule.endpoint, "host": rule.host}
    return {
        "benchmarks": [{"type": each.kind, "value": each.text} for each in rule.benchmarks],
        **{key: pattern for key, pattern in patterns.items() if pattern != "*"},
        **_bounds({"from": rule.window.start, "until": rule.window.end}),
        **({"override": True} if rule.override else {}),
    }


def _vo_rule(rule: VoRule) -> dict[str, Any]:
    return {key: value for key, value in rule._asdict().items() if value is not None}


def _charge_rule(rule: ChargeRule) -> dict[str, Any]:
    rounding = {"places": rule.places, "mode": str(rule.rounding)}
    return {
        "formula": rule.formula.text,
        "unit": rule.unit,
        **({"description": rule.description} if rule.description else {}),
        "queues": list(rule.queues),
        "groups": list(rule.groups),
        **_validity(rule.valid),
        "time_unit": str(rule.time_unit),
        "rounding": "none" if rule.places is None else rounding,
        "compat": str(rule.compat),
        "on_error": str(rule.on_error),
    }


def _validity(window: Window) -> dict[str, str]:
    """Both ends belong to it, to the second."""
    last = None if window.end is None else window.end - 1
    return _bounds({"valid_from": window.start, "valid_to": last})


def _bounds(moments: Mapping[str, int | None]) -> dict[str, str]:
    """Those that are set."""
    return {key: iso_epoch(Epoch(moment)) for key, moment in moments.items() if moment is not None}


def _keys(settings: object) -> dict[str, Any]:
    return {
        key: _plain(entry.name, getattr(settings, entry.name))
        for key, entry in schema.keys_of(type(settings)).items()
    }


def _plain(name: str, value: Any) -> Any:
    """A value as YAML has it."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Path | StrEnum | str):
        return _PASSWORD.sub("***@", str(value))
    if isinstance(value, int | float):
        return _duration(value) if name.endswith("_s") else value
    if isinstance(value, tuple | frozenset):
        return [_plain(name, each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), each) for key, each in value.items()}
    return str(value)


def _duration(seconds: float) -> str:
    """The largest unit that leaves no rest: `24h` is `1d`."""
    for unit_s, unit in _UNITS_S:
        if seconds and seconds % unit_s == 0:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{seconds:g}s" if seconds < 1_000_000 else f"{int(seconds)}s"
