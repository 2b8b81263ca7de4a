"""The table of rooms: who may import whom, and where each third-party package lives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "publisher"

# room: the rooms it may import. `base` of a room is its interface; its plug-ins never know each other.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors", "model"},
    "sources": {"errors", "model", "sources"},
    "formats": {"errors", "model", "formats"},
    "delivery": {"errors", "model", "delivery"},
    "ledger": {"errors", "model", "ledger"},
    # Jobs that A-REX has are looked up in its database, opened as its source opens it.
    "importers": {"errors", "model", "importers", "sources.sqlite_readonly"},
    "charges": {"errors", "model", "charges"},
    "judge": {"errors", "model", "ledger.base"},
    "beside": set(),
    "making": {"errors", "model", "formats.base", "ledger.base"},
    "dispatch": {"errors", "model", "formats.base", "delivery.base", "ledger.base", "judge", "beside", "making"},
    "key_guard": {"errors", "model", "sources.base", "ledger.base", "judge", "reading"},
    "batching": {"errors", "model", "formats.base", "judge", "dispatch"},
    "summing": {
        "errors",
        "model",
        "sources.base",
        "formats.base",
        "ledger.base",
        "judge",
        "making",
        "dispatch",
        "reading",
    },
    "counting": {"errors", "model", "sources.base", "ledger.base", "aim", "judge", "summing"},
    "outcome": {"errors", "model", "delivery.base", "dispatch"},
    "reading": {"model", "sources.base", "ledger.base"},
    "missing": {"ledger.base", "sources.base"},
    "aim": {"model", "formats.base", "delivery.base", "judge"},
    "collisions": {"errors", "model", "sources.base", "formats.base", "ledger.base", "aim", "judge"},
    "outlets": {
        *("model", "sources.base", "formats.base", "ledger.base"),
        *("aim", "judge", "dispatch", "batching", "summing", "key_guard"),
    },
    "pipeline": {
        *("errors", "model", "sources.base", "formats.base", "delivery.base", "ledger.base"),
        *("aim", "judge", "collisions", "dispatch", "outlets", "summing", "counting", "reading", "missing", "outcome"),
    },
    "config": {
        *("errors", "model", "config", "sources", "sources.base", "formats", "delivery", "delivery.base"),
        *("importers", "importers.base", "charges", "scheduler.cron"),
    },
    # Reads ARC's files; the accounting database only through the room that knows it.
    "arc_conf": {
        *("errors", "model", "arc_conf", "config.settings", "config.values"),
        *("sources.arex", "sources.arex_order", "sources.sqlite_readonly"),
    },
    "wiring": {"*"},
    "abreast": {"errors", "config", "ledger.base", "sources.base", "beside", "outcome", "wiring"},
    "waiting": {"errors", "model", "config", "ledger.base", "sources.base", "wiring"},
    "commands": {
        "errors",
        "abreast",
        "model",
        "config",
        "ledger.base",
        "sources.base",
        "aim",
        "pipeline",
        "outcome",
        "wiring",
        "syncing",
        "takeover",
        "waiting",
        "missing",
    },
    "explaining": {
        *(
            "errors",
            "charges",
            "importers",
            "importers.base",
            "importers.origins",
            "model",
            "config",
            "formats",
            "judge",
            "ledger.base",
            "sources.arex",
            "sources.base",
            "commands",
            "wiring",
        ),
    },
    "results_explain": {"model", "explaining"},
    "charging": {"errors", "model", "charges", "ledger.charge_base", "sources.base", "wiring"},
    "results_charge": {"model", "results", "charging", "ledger.charge_base"},
    "billing": {"errors", "model", "charging", "results_charge", "terminal", "ledger.charge_base", "wiring"},
    "syncing": {
        *("errors", "model", "config", "formats", "delivery.base", "ledger.base", "sources.base"),
        *("abreast", "aim", "judge", "dispatch", "missing", "pipeline", "outcome", "wiring"),
    },
    # The daemon. `scheduler.cron` is a noun that settings hold; the rest stands on the commands.
    "scheduler": {"errors", "config", "scheduler", "ledger.base", "commands", "outcome", "pipeline", "wiring"},
    "serving": {"outcome", "results", "scheduler", "metrics", "terminal", "wiring"},
    # Measures what every round left; of delivery it asks when the certificate ends.
    "metrics": {
        *("errors", "model", "config", "metrics", "ledger.measure_base", "outcome", "wiring"),
        *("commands", "syncing", "delivery.credential_check", "whole_file"),
    },
    "journal": set(),
    "checking": {
        *("errors", "model", "config", "ledger.base", "sources.base"),
        *("judge", "portal", "reading", "syncing", "wiring"),
    },
    "portal": {"errors", "model"},
    "takeover": {
        *("errors", "model", "config", "formats", "ledger.base", "sources.base"),
        *("judge", "wiring", "arc_conf", "sources.arex_order", "sources.sqlite_readonly"),
    },
    "shadowing": {"model", "config", "sources.base", "takeover", "wiring"},
    "rehearsing": {"model", "config", "delivery.base", "ledger.base", "sources.base", "pipeline", "outcome", "wiring"},
    "planning": {
        *("errors", "model", "config", "formats", "ledger.base", "sources.base"),
        *("key_guard", "rehearsing", "takeover", "wiring"),
    },
    "results_plan": {"model", "planning"},
    "results_sync": {"model", "ledger.base", "results", "checking", "portal", "shadowing"},
    "republishing": {
        *("errors", "model", "config", "ledger.base", "sources.base", "planning", "takeover"),
        *("abreast", "aim", "key_guard", "pipeline", "wiring", "outcome"),
    },
    "results": {"model", "commands", "ledger.base", "outcome", "retiring"},
    # Asks every room, and speaks to services through delivery alone.
    "doctor": {
        *("errors", "model", "doctor", "config", "formats", "ledger.base", "sources.base", "commands", "wiring"),
        *("delivery.base", "delivery.credential_check", "delivery.trust_check", "delivery.reach"),
        *("arc_conf", "arc_conf.values", "missing", "importers", "importers.arc_jobs", "sources.local_time"),
    },
    "results_nagios": {"errors", "commands"},
    "results_doctor": {"doctor", "results_nagios"},
    "statistics": {"errors", "model", "sources.accounts", "wiring"},
    "results_stats": {"model", "results"},
    "results_job": {"model", "results", "results_stats"},
    "whole_file": {"errors"},
    "exporting": {"errors", "model", "sources.accounts", "wiring"},
    "results_export": {"exporting", "model"},
    "local": {
        *("errors", "model", "statistics", "results_stats", "results_job", "terminal", "wiring"),
        *("exporting", "results_export", "retiring", "whole_file"),
    },
    "importing": {"importers", "errors", "importers.base", "wiring"},
    "tallying": {"errors", "model", "config"},
    "reporting": {
        *("model", "config", "ledger.base", "ledger.charge_base", "ledger.history_base"),
        *("commands", "syncing", "tallying", "wiring"),
    },
    "report": {"model", "report", "reporting", "tallying"},
    "presenting": {"errors", "model", "reporting", "report", "terminal", "whole_file", "wiring"},
    "results_import": {"importers.base"},
    "tables": set(),
    "terminal": {"errors", "journal", "delivery.base", "ledger.base", "model", "sources.base", "tables"},
    "sending": {
        *("errors", "model", "config", "formats", "wiring", "outcome"),
        *(
            "commands",
            "planning",
            "republishing",
            "syncing",
            "checking",
            "shadowing",
            "portal",
            "results",
            "results_plan",
            "results_sync",
            "terminal",
        ),
    },
    "command_words": {"errors"},
    "command_line": {"command_words"},
    "retiring": {"errors", "ledger.base", "wiring"},
    "looking": {
        *("errors", "model", "ledger.base", "wiring", "terminal"),
        *("commands", "results", "explaining", "results_explain", "doctor", "results_doctor", "results_nagios"),
        "retiring",
    },
    "configuring": {"errors", "arc_conf", "charges.rules", "config", "terminal", "wiring"},
    "cli": {
        *("errors", "command_line", "config", "metrics", "wiring", "terminal"),
        *("sending", "serving", "looking", "local", "doctor", "importing", "results_import", "configuring"),
        *("billing", "presenting"),
    },
}

THIRD_PARTY = {
    "requests": {"delivery"},
    "urllib3": {"delivery"},
    "cryptography": {"delivery"},
    "lxml": {"formats", "delivery"},  # records before the wire, answers after it
    "yaml": {"config"},
    "apscheduler": {"scheduler"},
    "rich": {"tables"},
    "jinja2": {"report"},
    "matplotlib": {"report"},
    "prometheus_client": {"metrics"},
    "backports": {"importers"},  # zstd
}

# Plug-ins of one room, by the files that belong to each. They share `base` and the files that none of them owns.
PLUGINS = {
    "sources": {"arex", "gridengine", "sonar"},
    "importers": {"gridengine", "sonar"},
    "formats": {"car", "ogf_ur", "apel_job", "apel_summary", "apel_sync"},
    "delivery": {"ams", "sgas", "spool"},
}

NO_CLOCK = {"datetime.now", "datetime.utcnow", "datetime.today", "time.time", "date.today", "time.monotonic"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.startswith("publisher"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names if _is_module(node.module, alias.name)}
    return found


def _is_module(package: str, name: str) -> bool:
    folder = PACKAGE.parent.joinpath(*package.split("."))
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def allowed(room: str, imported: str) -> bool:
    """Whether a room may import `publisher.<imported>`."""
    rights = ROOMS[room]
    inside = imported.split(".")
    return "*" in rights or inside[0] in rights or ".".join(inside[:2]) in rights


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    module = name_of(path)
    room = room_of(module)
    if not room:
        return
    assert room in ROOMS, f"{module}: give the room {room!r} its row in this table"
    ours = {name.removeprefix("publisher.") for name in imports(path) if name.startswith("publisher.")}
    wrong = sorted(name for name in ours if not allowed(room, name))
    assert not wrong, f"{module} must not import {wrong}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_third_party_package_lives_in_one_room(path: Path) -> None:
    room = room_of(name_of(path))
    for name in imports(path):
        homes = THIRD_PARTY.get(name.split(".")[0])
        assert homes is None or room in homes, f"{name_of(path)} imports {name}, which lives in {homes}"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_plug_ins_do_not_know_each_other(path: Path) -> None:
    module = name_of(path)
    room, _, file = module.removeprefix("publisher.").partition(".")
    plugins = PLUGINS.get(room, set())
    mine = next((plugin for plugin in plugins if file.split(".")[0].startswith(plugin)), None)
    if mine is None:
        return
    others = {f"publisher.{room}.{plugin}" for plugin in plugins - {mine}}
    wrong = sorted(name for name in imports(path) for other in others if name.startswith(other))
    assert not wrong, f"{module} must not know {wrong}"


@pytest.mark.parametrize(
    "path", [path for path in modules() if room_of(name_of(path)) in ("model", "formats")], ids=name_of
)
def test_model_and_formats_never_ask_the_time(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = f"{ast.unparse(node.func.value)}.{node.func.attr}"
            assert asked not in NO_CLOCK, f"{name_of(path)}:{node.lineno} asks {asked}"
    assert not imports(path) & {"os", "socket", "subprocess", "random", "time"}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_nothing_starts_a_process(path: Path) -> None:
    assert "subprocess" not in imports(path)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_modules_are_short(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= 500, f"{name_of(path)} has {lines} lines: cut it where the nouns change"
