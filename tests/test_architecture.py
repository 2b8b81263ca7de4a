"""What the import contracts of pyproject.toml do not say: where libraries live, how large a module and a folder may be."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from publisher.formats import (
    FORMATS,
    JOB_FORMATS,
    SUMMARY_FORMATS,
    SYNC_FORMATS,
    job_format,
    receiver_of,
    summary_format,
    sync_format,
)
from publisher.sources import IMPORTERS, SOURCES
from publisher.transports import TRANSPORTS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "publisher"

ROOMS = {
    *("model", "sources", "jobs", "formats", "transports", "ledger"),
    *("policy", "publishing", "reporting", "doctor", "config", "cli"),
}
MOST_LINES = 500
MOST_ENTRIES = 10
MOST_ROOMS = 12
# A file for each command, and one for each schema.
AS_MANY_AS_THERE_ARE = {"cli/commands", "formats/schemas"}
# Modules of sources, formats and transports, or their folders; a folder has as many as are registered in it.
PLUG_INS = {
    *(module.removesuffix(".importer") for module in (*SOURCES.values(), *IMPORTERS.values())),
    *FORMATS.values(),
    *TRANSPORTS.values(),
}

# Each library lives in one place, or in few.
LIBRARIES = {
    "cryptography": ("transports/credentials",),
    "requests": ("transports/http",),
    "urllib3": ("transports/http",),
    "lxml": ("formats/apel/car_check.py", "formats/sgas/ogf_ur_check.py", "formats/xml/indent.py", "transports/sgas"),
    "yaml": ("config",),
    "apscheduler": ("config/cron.py", "publishing/daemon.py"),
    "jinja2": ("reporting/html",),
    "prometheus_client": ("reporting/metrics",),
    "sqlite3": ("sources", "jobs", "ledger/sqlite", "config/from_arc"),
    "backports": ("sources/files",),  # zstd
    "psycopg": ("ledger/postgres",),
    "pyarrow": ("reporting/export/parquet.py",),
}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

NO_CLOCK = {"datetime.now", "datetime.utcnow", "datetime.today", "time.time", "date.today", "time.monotonic"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of them, from the module down: to walk takes longer than to parse."""
    return [*ast.walk(parsed(path))]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement with the first part of what it imports."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node, node.module.split(".")[0]


def test_the_listing_is_the_architecture() -> None:
    entries = {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
    assert entries == ROOMS


def plug_in_of(path: Path) -> str:
    return ".".join(path.with_suffix("").relative_to(ROOT).parts)


def test_a_folder_can_be_read_at_a_glance() -> None:
    for folder in (path for path in [PACKAGE, *PACKAGE.rglob("*")] if path.is_dir() and path.name != "__pycache__"):
        where = folder.relative_to(PACKAGE).as_posix()
        entries = {path.name for path in folder.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
        entries = {name for name in entries if plug_in_of(folder / name) not in PLUG_INS}
        most = MOST_ROOMS if folder == PACKAGE else MOST_ENTRIES
        assert where in AS_MANY_AS_THERE_ARE or len(entries) <= most, f"{where} has {len(entries)} entries"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("publisher", cache_dir=None)
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(arrows).prepare()  # raises: CycleError


def test_no_arrow_between_the_folders_of_publishing_runs_both_ways() -> None:
    graph = grimp.build_graph("publisher", cache_dir=None)
    of = {module: module.split(".")[2] for module in graph.modules if module.startswith("publisher.publishing.")}
    arrows = {
        (of[one], of[other]) for one in of for other in graph.find_modules_directly_imported_by(one) if other in of
    }
    assert {(one, other) for one, other in arrows if one < other and (other, one) in arrows} == set()


def test_the_import_contracts_name_every_plug_in() -> None:
    """Those that are folders: a plug-in of one module is that file, and its line in a registry."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["name"]: contract for contract in settings["contracts"]}
    sources = folders([*SOURCES.values(), *(module.removesuffix(".importer") for module in IMPORTERS.values())])
    formats, transports = folders(FORMATS.values()), folders(TRANSPORTS.values())
    assert set(contracts["A source knows no other source"]["modules"]) == sources
    assert set(contracts["A receiver's formats know no other receiver"]["modules"]) == formats
    assert set(contracts["A transport knows no other transport"]["modules"]) == transports
    by_name = contracts["Operations and reports know plug-ins by name only"]["forbidden_modules"]
    assert sources | formats | transports <= set(by_name)
    assert not any("ignore_imports" in contract for contract in contracts.values())


def folders(names: Iterable[str]) -> set[str]:
    return {name for name in names if (ROOT / name.replace(".", "/")).is_dir()}


def test_modules_are_short() -> None:
    for path in modules():
        lines = path.read_text().count("\n")
        assert lines <= MOST_LINES, f"{name_of(path)} has {lines} lines: cut it where the nouns change"


def conditions_in_calls(path: Path) -> Iterator[str]:
    """Conditional expressions that are an argument themselves, with a star or without."""
    for call in (node for node in nodes(path) if isinstance(node, ast.Call)):
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            value = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(value, ast.IfExp):
                yield f"{name_of(path)}:{value.lineno}"


def nested_comprehensions(path: Path) -> Iterator[str]:
    """Those with another one inside; several `for` of one are not."""
    for node in nodes(path):
        if isinstance(node, COMPREHENSIONS) and sum(isinstance(part, COMPREHENSIONS) for part in ast.walk(node)) > 1:
            yield f"{name_of(path)}:{node.lineno}"


def test_a_statement_is_one_thought() -> None:
    """A condition gets a name in the line before the call, a comprehension in another one a function or a name."""
    for path in modules():
        assert not [*conditions_in_calls(path), *nested_comprehensions(path)]


def test_a_library_lives_in_one_place() -> None:
    for path in modules():
        for _, name in imported(path):
            homes = LIBRARIES.get(name)
            at_home = homes is None or any(
                name_of(path) == home or name_of(path).startswith(f"{home}/") for home in homes
            )
            assert at_home, f"{name_of(path)} imports {name}, which lives in {homes}"


def test_comments_name_modules_that_there_are() -> None:
    """By their path from the repository, the package, the package of the module, or its own folder."""
    for path in modules():
        for name in re.findall(r"(?<![\w/.-])[a-z_][a-z_/]*\.py\b", path.read_text()):
            places = [ROOT / name, PACKAGE / name, PACKAGE / name_of(path).split("/")[0] / name, path.parent / name]
            assert any(place.exists() for place in places), f"{name_of(path)} names {name}"


def test_a_class_name_stands_for_one_thing() -> None:
    """But `Options`, which every plug-in has. The tests' plug-ins are patterns for new ones, so they count too."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in [*modules(), *(ROOT / "tests" / "plugins").glob("*.py")]:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(path.relative_to(ROOT).as_posix())
    twice = {name: places for name, places in found.items() if len(places) > 1 and name != "Options"}
    assert not twice


def test_model_and_formats_never_ask_the_time() -> None:
    for path in (path for path in modules() if name_of(path).split("/")[0] in ("model", "formats")):
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                asked = f"{ast.unparse(node.func.value)}.{node.func.attr}"
                assert asked not in NO_CLOCK, f"{name_of(path)}:{node.lineno} asks {asked}"
        assert not {name for _, name in imported(path)} & {"os", "socket", "subprocess", "random", "time"}, name_of(
            path
        )


def test_only_the_reader_of_slurm_starts_a_process() -> None:
    starting = {name_of(path) for path in modules() if "subprocess" in {name for _, name in imported(path)}}
    assert starting == {"sources/slurm/sacct.py"}


# Whoever loads a module by its name or inside a function: registries, and what loads the commands and their parts.
LOADERS = {
    "cli/commands/__init__.py",  # the commands, and what they need when they run
    "cli/accounts.py",  # how jobs are read
    "cli/site.py",  # what the site is made of
    "config/schema.py",  # YAML, and what reads keys that few write
    "formats/__init__.py",
    "formats/apel/__init__.py",
    "formats/sgas/__init__.py",
    "sources/__init__.py",
    "transports/__init__.py",  # and HTTP, with the first message
}


def loads_late(path: Path) -> bool:
    """Whether a function imports something, or a module by its name."""
    tree = parsed(path)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    inside = [node for function in functions for node in ast.walk(function)]
    named = [node.func for node in inside if isinstance(node, ast.Call)]
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in inside) or any(
        ast.unparse(function).split(".")[-1] in ("import_module", "__import__") for function in named
    )


def test_only_registries_and_commands_import_inside_functions() -> None:
    assert {name_of(path) for path in modules() if loads_late(path)} == LOADERS


PLUG_IN_NAMES = {*TRANSPORTS, *FORMATS}


def plug_in_names(path: Path) -> Iterator[str]:
    """String literals that are names of transports or formats, and beginnings of such names that are asked for."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and node.value in PLUG_IN_NAMES:
            yield f"{node.lineno}: {node.value!r}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            beginnings = [part for part in parts if isinstance(part, str) and len(part) > 2]
            if any(name.startswith(beginning) for name in PLUG_IN_NAMES for beginning in beginnings):
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_only_formats_and_transports_know_their_names() -> None:
    """Whoever must know what becomes of records asks their `Receiver`; what is a transport's own, its `Options`."""
    for path in modules():
        if name_of(path).split("/")[0] not in ("formats", "transports"):
            assert not list(plug_in_names(path)), name_of(path)


def test_a_format_says_the_same_of_its_receiver_before_and_after_it_is_loaded() -> None:
    for names, made in ((JOB_FORMATS, job_format), (SUMMARY_FORMATS, summary_format), (SYNC_FORMATS, sync_format)):
        for name in names:
            assert made(name).receiver is receiver_of(name), name
