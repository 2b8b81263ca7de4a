"""`config`: the configuration itself: init, check, show, example, from-arc."""

from __future__ import annotations

import argparse
import difflib
import os
import platform
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from publisher import config
from publisher.cli.commands import Context, doctor
from publisher.cli.logs import error_line, notice
from publisher.cli.output import print_line
from publisher.cli.parser import DEFAULT_CONFIG, add_action, add_actions, add_flag, ask, can_ask
from publisher.cli.site import LiveSite
from publisher.config import from_arc as arc_conf
from publisher.config.from_arc import ConfigurationText
from publisher.config.from_arc.first_page import (
    KINDS,
    FirstSettings,
    FoundSource,
    find_sources,
    first_page,
    named_source,
)
from publisher.config.from_arc.targets import Draft
from publisher.doctor.findings import join
from publisher.doctor.shared_vos import WHY, JobSources, shared_vos, with_vos_of_jobs
from publisher.formats import receiver_of
from publisher.model.errors import ConfigError, LedgerError, UsageError
from publisher.model.time import epoch
from publisher.publishing.takeover import receivers
from publisher.publishing.takeover.jura import Watermark, look_for_lost, report
from publisher.reporting.charges.rules import Rules, overlap_notes
from publisher.reporting.files import whole_file
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create, writing_order

_NEW_ONE = "`config from-arc` without --update prints a new one"
_UNIT: Final = "publisher.service"
_USER: Final = re.compile(r"^User=(\S+)", re.MULTILINE)
_CREDENTIAL: Final = re.compile(r"^LoadCredential=(\S+)", re.MULTILINE)
_AS_ROOT = "run it as a user who may write there, such as root"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    init = add_action(actions, "init", "write a first configuration: five questions, or options")
    text = "the site's name in GOCDB"
    init.add_argument("--site", metavar="NAME", help=text)
    text = f"one of {', '.join(KINDS)}, with its place: arex:/DIR, slurm:CLUSTER (default: found)"
    init.add_argument("--source", metavar="TYPE[:PLACE]", help=text)
    text = "benchmark of the nodes, as HEPscore23:11.5"
    init.add_argument("--benchmark", metavar="TYPE:VALUE", help=text)
    text = "egi, the https address of an SGAS, or a directory to write records to"
    init.add_argument("--target", metavar="WHERE", help=text)
    add_flag(init, "--defaults", text="do not ask; what is not given is what was found, or egi")
    init.set_defaults(given=True)
    add_action(actions, "check", "check the configuration and list every problem")
    text = "print the configuration with all defaults filled in, without secrets"
    add_action(actions, "show", text)
    add_action(actions, "example", "print a commented example")
    text = "print a configuration that does what ARC's publisher did, made from arc.conf"
    from_arc = add_action(actions, "from-arc", text)
    text = "usually /etc/arc.conf; only read"
    from_arc.add_argument("arc_conf", type=Path, metavar="FILE", help=text)
    text = "ARC's publishing.db (default: below A-REX's control directory)"
    from_arc.add_argument("--state", type=Path, metavar="FILE", help=text)
    text = "the site, if arc.conf names none, or more than one"
    from_arc.add_argument("--site", default="", metavar="NAME", help=text)
    text = "add what is new to the configuration file, and keep manual changes"
    add_flag(from_arc, "--update", text=text)
    text = "instead of a configuration, print the jobs that ARC's publisher missed"
    add_flag(from_arc, "--look-for-lost", text=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    match arguments.action:
        case "init":
            _init(arguments)
        case "example":
            sys.stdout.write(config.example())
        case "from-arc":
            return _from_arc(arguments)
        case "show":
            sys.stdout.write(config.show(context.load().settings))
        case _:
            _name_commented(_text_of(arguments.config))  # also of a file that is wrong
            _check(arguments, context.load())
    return 0


_QUESTIONS: Final = {
    "site": "Name of the site in GOCDB",
    "source": f"Where are the jobs? {', '.join(KINDS)}, with :PLACE",
    "benchmark": "Benchmark of the nodes, as HEPscore23:11.5",
    "target": "Where to? egi, the https address of an SGAS, or a directory",
}


def _init(arguments: argparse.Namespace) -> None:
    """Write a first configuration. Raises: UsageError, ConfigError."""
    path = arguments.config
    if path.exists():
        raise UsageError(f"{path} is there already; name another file with -c, or edit it")
    host = platform.node()
    found = find_sources(Path("/"), environment=os.environ, host=host, which=shutil.which)
    for one in found:
        notice(f"found: {one.kind} ({one.found})")
    settings = FirstSettings(
        site=_answer(arguments, "site", ""),
        source=_source(_answer(arguments, "source", _name_of(found)), found, host),
        benchmark=_answer(arguments, "benchmark", ""),
        target=_answer(arguments, "target", "egi"),
    )
    text = first_page(settings)
    if not (arguments.defaults or arguments.given or ask(f"Write {path}?", "yes").startswith("y")):
        sys.stdout.write(text)
        return
    with whole_file(path, _AS_ROOT) as file:
        file.write(text)
    print_line(f"{path}: written")
    config.load(path, os.environ, host_name=host)  # every problem, while the file is fresh in mind
    for line in _next_steps(path, needs_key=not settings.target.startswith("/")):
        print_line(line)


def _next_steps(path: Path, *, needs_key: bool) -> Iterator[str]:
    """Yield what to do with a new configuration: as the user of the service, where there is one.

    `needs_key`: a target does, which systemd hands over to the service.
    """
    unit = next(filter(Path.is_file, (folder / _UNIT for folder in doctor.UNIT_FOLDERS)), None)
    text = "" if unit is None else unit.read_text(encoding="utf-8", errors="replace")
    user, credential = _USER.search(text), _CREDENTIAL.search(text)
    before = ""
    if needs_key and user and credential:
        given = f"--property=LoadCredential={credential[1]}"
        before = f"systemd-run --pipe --wait --uid={user[1]} {given} -- "
    elif user:
        before = f"runuser -u {user[1]} -- "
    is_default = path == DEFAULT_CONFIG
    file = shlex.quote(str(path.absolute()))
    ours = "publisher" if is_default else f"publisher -c {file}"
    who = f", as the user {user[1]} of {_UNIT}" if user else ""
    yield f"next{who}:"
    yield from (f"  {before}{ours} {command}" for command in ("config check", "doctor", "plan"))
    if unit is not None:
        if not is_default:
            yield f"  mv {file} {DEFAULT_CONFIG}  # which {_UNIT} reads"
        yield "  systemctl enable --now publisher.timer"


def _name_of(found: Sequence[FoundSource]) -> str:
    return found[0].kind if found else ""


def _source(named: str, found: Sequence[FoundSource], host: str) -> FoundSource:
    """Return what was found of that type, or what is named with its place."""
    kind, _, place = named.partition(":")
    for one in found:
        if one.kind == kind and not place:
            return one
    return named_source(kind, place, host)


def _answer(arguments: argparse.Namespace, name: str, default: str) -> str:
    """Return an option, or else the answer to its question. Raises: UsageError without either."""
    given: str | None = getattr(arguments, name)
    if given is None and not arguments.defaults and can_ask():
        arguments.given = False
        given = ask(_QUESTIONS[name], default)
    given = given or default
    if not given:
        raise UsageError(f"config init needs --{name}: {_QUESTIONS[name]}")
    return given


def _check(arguments: argparse.Namespace, site: LiveSite) -> None:
    sources, _ = with_vos_of_jobs(site, _check_importers(site))
    settings = site.settings
    names = ", ".join(target.name for target in settings.targets)
    print_line(f"{arguments.config}: OK; targets: {names}")
    records, prices = settings.records, [target.charging for target in settings.targets]
    lists = (records.charges, *prices, records.power)
    rules = [each.rules for each in lists if isinstance(each, Rules)]
    for target in settings.targets:
        if unreleased := receiver_of(target.format).unreleased:
            note = f"{unreleased}; ask its operators before records are sent"
            print_line(f"note: target {target.name}: {note}")
    for shared in shared_vos(settings.targets, sources):
        if shared.found:
            names = f"{'target' if len(shared.targets) == 1 else 'targets'} {join(shared.targets)}"
            print_line(f"note: {names}: {shared.found}; {WHY}; {shared.advice}")
    # Each pair of rules that overlap once, though targets have them too.
    for note in dict.fromkeys(note for each in rules for note in overlap_notes(each)):
        print_line(f"note: {note}")
    _check_addresses(site)


def _check_addresses(site: LiveSite) -> None:
    """That no target waits for an answer of its administrator. Raises: ConfigError."""
    try:
        asked = receivers.asked(site)
    except LedgerError as error:
        print_line(f"note: whether targets lead to known receivers cannot be told: {error}")
        return
    if asked:
        raise ConfigError(one.question for one in asked)


def _check_importers(site: LiveSite) -> JobSources:
    """That importers could start: map files can be read. Raises: ConfigError with all problems."""
    problems: list[str] = []
    importers = []
    for entry in site.batch_systems.entries:
        try:
            importers.append((entry, site.batch_systems.importer(entry)))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return JobSources(has_ce=bool(site.accounting.entries), importers=importers)


def _from_arc(arguments: argparse.Namespace) -> int:
    page = arc_conf.convert(
        arguments.arc_conf,
        state=arguments.state,
        site=arguments.site,
        now=datetime.now(UTC),
        environment=os.environ,
    )
    if not page.targets and (arguments.look_for_lost or arguments.update):
        raise UsageError(
            f"{arguments.arc_conf}: no target of ARC's publisher in it "
            "([arex/jura/apel:NAME] or [arex/jura/sgas:NAME]); "
            "use a copy from before they were removed"
        )
    if arguments.look_for_lost:
        for line in _lost_jobs(page, environment=os.environ):
            print_line(line)
        return 0
    if arguments.update:
        _update(arguments.config, page)
    else:
        sys.stdout.write(page.text)
    _name_commented(page.text)
    if page.missing:
        error_line(
            f"{arguments.arc_conf}: incomplete: {', '.join(page.missing)} must be filled in; "
            "the list at the end explains why"
        )
        return ConfigError.exit_status
    if page.by_hand:
        error_line(f"what to complete by hand is listed at the end ({len(page.by_hand)})")
    return 0


def _update(path: Path, page: ConfigurationText) -> None:
    """Write the file again, with a copy of it as it was beside it. Raises: UsageError."""
    try:
        before = path.read_text(encoding="utf-8")
        updated = arc_conf.update_page(before, page)
        if updated.text != before:
            shutil.copy2(path, f"{path}.old")
    except OSError as error:
        advice = _AS_ROOT
        if isinstance(error, FileNotFoundError):
            advice = _NEW_ONE
        raise UsageError(f"{path}: {error.strerror or error}; {advice}") from error
    except (UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"{path}: {error}; {_NEW_ONE}") from error
    if updated.text != before:
        _replace(path, updated.text)
    texts = before.splitlines(), updated.text.splitlines()
    for line in difflib.unified_diff(*texts, f"{path}.old", str(path), n=0, lineterm=""):
        print_line(line)
    for line in updated.kept:
        error_line(f"{path}: your change was kept; arc.conf and ARC's state now have: {line}")


def _replace(path: Path, text: str) -> None:
    """Whole, or as it was before, for the same readers. Raises: UsageError."""
    with whole_file(path, _AS_ROOT) as file:
        before = path.stat()
        os.fchown(file.fileno(), before.st_uid, before.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        file.write(text)


def _text_of(path: Path) -> str:
    """Nothing for a file that cannot be read: loading it says why."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _name_commented(text: str) -> None:
    """Targets to which nothing is sent although ARC did."""
    for name, block in arc_conf.commented_targets(text):
        error_line(
            f"target {name}, of [{block}], is commented out, so nothing is sent to it; "
            "the list at the end explains why"
        )


def _lost_jobs(page: ConfigurationText, *, environment: Mapping[str, str]) -> list[str]:
    """The report on jobs that ARC's publisher missed, for every target of the page.

    Raises: SourceError; UsageError without a time from which to look, or a database.
    """
    marks = [mark for mark in map(_watermark, page.targets) if mark is not None]
    if not marks:
        missing = "no last end time for any of these targets"
        raise UsageError(f"ARC's publishing.db has {missing}; name it with --state FILE")
    if not page.control_dir:
        advice = "set [arex] controldir by hand"
        raise UsageError(f"arc.conf does not say where the accounting database is: {advice}")
    source = create(Options(control_dir=Path(page.control_dir)), environment)
    with closing(source), writing_order(source, environment) as databases:
        return [line for search in look_for_lost(databases, marks) for line in report(search)]


def _watermark(draft: Draft) -> Watermark | None:
    begin = draft.begin
    if draft.obstacles or begin is None or begin.at is None or begin.last_end is None:
        return None
    return Watermark(
        target=draft.name,
        last_end=begin.last_end,
        start=epoch(begin.at),
        summary=draft.summary,
        vos=frozenset(draft.vos),
        period_s=draft.period_s,
    )
