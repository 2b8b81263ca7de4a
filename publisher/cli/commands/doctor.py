"""`doctor`: everything that could keep records from going out; as text, as JSON, for Nagios."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from publisher.cli import nagios, progress
from publisher.cli.commands import Context, load_part
from publisher.cli.nagios import nagios_line, performance
from publisher.cli.output import Json, attributes, print_line, print_result
from publisher.cli.parser import add_json, add_nagios, add_targets, is_quiet
from publisher.doctor.findings import Diagnosis, Finding, PerfData, State, broken_configuration
from publisher.model.errors import ConfigError, PublisherError
from publisher.model.text import plural
from publisher.transports.base import BackgroundTask

if TYPE_CHECKING:
    from publisher.cli.site import LiveSite

# The configuration and the files that it names, before anything else can be asked
LOADED_WITHIN_S: Final = 3
# Where it looks for what starts the rounds.
UNIT_FOLDERS = (
    Path("/etc/systemd/system"),
    Path("/run/systemd/system"),
    Path("/usr/lib/systemd/system"),
)
CRON_FOLDERS = (Path("/etc/cron.d"),)


_GRAVEST_FIRST: Final = (State.FAILURE, State.WARNING, State.OK)
_NAGIOS: Final = {
    State.FAILURE: nagios.CRITICAL,
    State.WARNING: nagios.WARNING,
    State.OK: nagios.OK,
}
_COUNTED: Final = (
    (State.OK, "ok", "ok"),
    (State.WARNING, "warning", "warnings"),
    (State.FAILURE, "failure", "failures"),
)
_PARTS_OF_HOST: Final = ("host", "state", "credentials", "configuration", "source")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    parser.add_argument(
        "--arc-conf",
        type=Path,
        default=Path("/etc/arc.conf"),
        metavar="FILE",
        help="where ARC's own publisher might still be configured (default /etc/arc.conf)",
    )
    output = parser.add_mutually_exclusive_group()
    add_json(output)
    add_nagios(output)


def run(arguments: argparse.Namespace, context: Context) -> int:
    try:
        diagnosis = _diagnosis(arguments, context)
    except PublisherError as error:
        if not arguments.nagios:
            raise
        print_line(nagios_line(nagios.UNKNOWN, str(error)))
        return nagios.UNKNOWN
    if arguments.nagios:
        line, status = _as_nagios(diagnosis)
        print_line(line)
        return status
    as_text = partial(_as_text, quiet=arguments.quiet)
    print_result(diagnosis, _as_json, as_text, form=arguments.form, rows="findings")
    return diagnosis.exit_status


def _diagnosis(arguments: argparse.Namespace, context: Context) -> Diagnosis:
    """Return what doctor finds; a configuration that does not load is a finding too."""
    with progress.stages(quiet=is_quiet(arguments) or arguments.nagios) as stages:
        stages.waits([str(arguments.config)])
        try:
            site = _loaded(context.load, arguments.config)
        except ConfigError as error:
            return broken_configuration(error)
        examination = load_part("doctor.examination")
        host = examination.Host(
            arc_conf=arguments.arc_conf,
            units=UNIT_FOLDERS,
            cron=CRON_FOLDERS,
            free_bytes=lambda directory: shutil.disk_usage(directory).free,
        )
        found: Diagnosis = examination.examine(
            site, site.settings, host, targets=arguments.target, waits=stages.waits
        )
    return found


def _loaded(load: Callable[[], LiveSite], path: Path) -> LiveSite:
    """Raises: ConfigError, also when the file system does not answer."""
    try:
        return BackgroundTask(load).result(LOADED_WITHIN_S)
    except TimeoutError:
        advice = "check that the file systems of this file and of those that it names answer (`df`)"
        raise ConfigError(f"{path} did not load within {LOADED_WITHIN_S} s; {advice}") from None


def _as_json(diagnosis: Diagnosis) -> Json:
    return {
        "findings": [
            {
                **attributes(one, "name", "part", "state", "found", "why"),
                "advice": one.advice or None,
                "status": one.exit_status,
            }
            for one in diagnosis.findings
        ],
        "measures": [
            {
                **attributes(one, "label", "value"),
                "unit": one.unit or None,
                "warn": one.warn or None,
                "critical": one.critical or None,
            }
            for one in diagnosis.measures
        ],
        "ok": diagnosis.count(State.OK),
        "warnings": diagnosis.count(State.WARNING),
        "failures": diagnosis.count(State.FAILURE),
        "exit": diagnosis.exit_status,
    }


def _as_text(diagnosis: Diagnosis, *, quiet: bool) -> list[str]:
    """Return three lines for each problem, the gravest first, then one for each thing that is well.

    The last lines name the problems again, where others have moved them out of sight, and count.
    `quiet`: what is well is only counted.
    """
    lines = []
    alike: dict[object, list[Finding]] = {}
    for one in sorted(diagnosis.findings, key=lambda one: _GRAVEST_FIRST.index(one.state)):
        is_ok = one.state is State.OK
        if is_ok and quiet:
            continue
        key = one if is_ok else replace(one, part="", exit_status=0)
        alike.setdefault(key, []).append(one)
    for found in alike.values():
        first = found[0]
        lines.append(f"{first.state:<8} {_named(*found)}: {first.found}")
        if first.state is not State.OK:
            lines += [f"         why: {first.why}", f"         do:  {first.advice}"]
    lines += [""] if lines else []
    if not quiet:
        lines += list(_problems(alike.values()))
    counts = ", ".join(plural(diagnosis.count(state), one, many) for state, one, many in _COUNTED)
    return [*lines, f"{counts}; nothing was sent"]


def _problems(alike: Iterable[Sequence[Finding]]) -> Iterator[str]:
    """Yield a line with the names of the failures, and one with those of the warnings."""
    for state, words in ((State.FAILURE, "failures:"), (State.WARNING, "warnings:")):
        names = dict.fromkeys(found[0].name for found in alike if found[0].state is state)
        if names:
            yield f"{words} {', '.join(names)}"


def _as_nagios(diagnosis: Diagnosis) -> tuple[str, int]:
    """Return the plug-in's line and exit status.

    Spec: Monitoring Plugins Guidelines, sections 2 and 3.
    """
    status = next((_NAGIOS[state] for state in _GRAVEST_FIRST if diagnosis.count(state)), nagios.OK)
    bad = [
        one
        for state in (State.FAILURE, State.WARNING)
        for one in diagnosis.findings
        if one.state is state
    ]
    parts = [f"{_named(one)}: {one.found}" for one in bad]
    text = "; ".join(parts) or f"{len(diagnosis.findings)} checks, no problems"
    counts = [
        PerfData(label="failures", value=diagnosis.count(State.FAILURE), critical="0"),
        PerfData(label="warnings", value=diagnosis.count(State.WARNING), warn="0"),
    ]
    data = [performance(**asdict(one)) for one in [*counts, *diagnosis.measures]]
    return nagios_line(status, text, data), status


def _named(*alike: Finding) -> str:
    """Return what findings with one answer are about."""
    parts = [Path(one.part).name if one.part.startswith("/") else one.part for one in alike]
    named = "; ".join(part for part in parts if part not in _PARTS_OF_HOST)
    return f"{alike[0].name} ({named})" if named else alike[0].name
