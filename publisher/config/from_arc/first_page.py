"""A first configuration of some twenty lines, from what a host has: A-REX or a batch system.

What is found: arc.conf or A-REX's control directory; Slurm's `sacct` or slurm.conf; HTCondor's
history; Grid Engine's accounting files. Nothing is run, and nothing but names of files, arc.conf
and slurm.conf is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from publisher.config.from_arc.reader import ArcValues, ByHand, read_arc_conf
from publisher.model.errors import ConfigError, UsageError

KINDS: Final = ("arex", "slurm", "htcondor", "gridengine")
_CONTROL_DIR: Final = "var/spool/arc/jobstatus"
_CONDOR: Final = (
    *("var/lib/condor/spool/history", "var/lib/condor/history"),
    *("var/lib/condor-ce/spool/history", "var/spool/condor/history"),
)
_GRID_ENGINE: Final = ("opt/sge", "opt/gridengine", "var/lib/gridengine", "usr/share/gridengine")
_CLUSTER_NAME: Final = re.compile(r"^\s*ClusterName\s*=\s*([\w.-]+)", re.MULTILINE | re.IGNORECASE)
_AMS: Final = "https://msg.argo.grnet.gr"


class FoundSource(NamedTuple):
    """Where jobs are: the type of the source, its other keys, and how it was found."""

    kind: str
    keys: Mapping[str, object]
    found: str


class FirstSettings(NamedTuple):
    """What a first configuration says. `target` is `egi`, a URL of SGAS, or a directory."""

    site: str
    source: FoundSource
    benchmark: str  # TYPE:VALUE
    target: str


def find_sources(
    root: Path,
    *,
    environment: Mapping[str, str],
    host: str,
    which: Callable[[str], str | None],
) -> list[FoundSource]:
    """Return the sources of a host whose files are below `root`, A-REX first."""
    return [
        *_arex(root),
        *_slurm(root, host, which),
        *_htcondor(root, host),
        *_gridengine(root, environment, host),
    ]


def named_source(kind: str, place: str, host: str) -> FoundSource:
    """Return the source that an administrator names, by its type and place.

    Raises: UsageError.
    """
    if kind not in KINDS:
        raise UsageError(f"--source {kind}: take one of {', '.join(KINDS)}")
    keys: dict[str, object] = {}
    match kind:
        case "arex":
            keys = {"control_dir": place or f"/{_CONTROL_DIR}"}
        case "slurm":
            keys = {"cluster": place or host, "unmapped_vo": "local"}
        case _ if not place:
            raise UsageError(f"--source {kind}: name its files, as {kind}:/PATH")
        case "htcondor":
            keys = {"cluster": host, "history": place, "unmapped_vo": "local"}
        case _:
            keys = {"cluster": host, "paths": [place], "unmapped_vo": "local"}
    return FoundSource(kind, keys, "as given")


def _arex(root: Path) -> Iterator[FoundSource]:
    conf = root / "etc/arc.conf"
    try:
        value = ArcValues(read_arc_conf(conf)).first("arex", "controldir")
        if value is not None:
            yield FoundSource("arex", {"control_dir": value.text}, str(conf))
            return
    except (ConfigError, ByHand):  # no arc.conf, or one that says it in another way
        pass
    if (root / _CONTROL_DIR / "accounting").is_dir():
        yield FoundSource("arex", {"control_dir": f"/{_CONTROL_DIR}"}, str(root / _CONTROL_DIR))


def _slurm(root: Path, host: str, which: Callable[[str], str | None]) -> Iterator[FoundSource]:
    conf, program = root / "etc/slurm/slurm.conf", which("sacct")
    if program is None and not conf.is_file():
        return
    name = None
    with suppress(OSError):  # sacct works without it
        name = _CLUSTER_NAME.search(conf.read_text(encoding="utf-8", errors="replace"))
    keys = {"cluster": name[1] if name else host, "unmapped_vo": "local"}
    yield FoundSource("slurm", keys, program or str(conf))


def _htcondor(root: Path, host: str) -> Iterator[FoundSource]:
    for place in _CONDOR:
        if (root / place).exists():
            keys = {"cluster": host, "history": f"/{place}", "unmapped_vo": "local"}
            yield FoundSource("htcondor", keys, str(root / place))
            return


def _gridengine(root: Path, environment: Mapping[str, str], host: str) -> Iterator[FoundSource]:
    cell = environment.get("SGE_CELL", "default")
    roots = [environment.get("SGE_ROOT", "").lstrip("/"), *_GRID_ENGINE]
    for place in filter(None, roots):
        common = root / place / cell / "common"
        if any(common.glob("accounting*")):
            paths = [f"/{place}/{cell}/common"]
            keys = {"cluster": host, "paths": paths, "unmapped_vo": "local"}
            yield FoundSource("gridengine", keys, str(common))
            return


def first_page(settings: FirstSettings) -> str:
    """Return the configuration. Raises: UsageError for a benchmark or target of no such form."""
    kind, colon, value = settings.benchmark.partition(":")
    if not colon or not kind or not value:
        raise UsageError(f"--benchmark {settings.benchmark}: write TYPE:VALUE, as HEPscore23:11.5")
    keys = {"type": settings.source.kind, **settings.source.keys}
    lines = [
        "# Written by `publisher config init`. `publisher config example` shows every key.",
        f"site: {json.dumps(settings.site)}  # its name in GOCDB, exactly",
        "",
        "source:",
        *(f"  {name}: {json.dumps(given)}" for name, given in keys.items()),
        *_about(settings.source),
        "",
        *_credentials(settings.target),
        "records:",
        f"  benchmark: {{type: {json.dumps(kind)}, value: {json.dumps(value)}}}",
        "",
        "targets:",
        *_target(settings.target),
    ]
    return "\n".join(lines) + "\n"


def _about(source: FoundSource) -> list[str]:
    if source.kind == "arex":
        return []
    return ["  # jobs of no known VO are of the VO `local`: publisher.yaml(5) has maps of accounts"]


def _credentials(target: str) -> list[str]:
    if target.startswith("/"):
        return []
    key = "$CREDENTIALS_DIRECTORY/hostkey.pem"
    return ["credentials:", f"  key: {key}  # the copy that systemd gives to the service", ""]


def _target(target: str) -> list[str]:
    if target == "egi":
        lines = ["egi:", "  type: ams", f"  url: {_AMS}", "  format: apel-summary-0.4"]
    elif target.startswith("https://"):
        lines = ["sgas:", "  type: sgas", f"  url: {json.dumps(target)}", "  format: ogf-ur"]
    elif target.startswith("/"):
        path = f"  path: {json.dumps(target)}"
        lines = ["files:", "  type: spool", path, "  format: car", "  sign: false"]
    else:
        raise UsageError(
            f"--target {target}: take egi, the https address of an SGAS, or a directory"
        )
    return [f"  {line}" for line in lines]
