"""All questions of the doctor, one after the other; and those about the configuration: what loads and still is not wanted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from publisher.config import ConfiguredTarget, Settings
from publisher.config.targets import apart, destination
from publisher.doctor.databases import check_databases, check_importers, check_known_databases
from publisher.doctor.findings import Diagnosis, Finding, PerfData, Question
from publisher.doctor.host import Host, check_machine
from publisher.doctor.services import check_identity, check_services
from publisher.doctor.state import check_directory, check_ledger
from publisher.formats import receiver_of
from publisher.model.errors import ConfigError
from publisher.model.target import Target
from publisher.model.text import plural
from publisher.pipeline.site import Site, choose
from publisher.transports.base import TransportOptions


def examine(
    site: Site, settings: Settings, host: Host, *, targets: Sequence[str], begins: Callable[[str], None]
) -> Diagnosis:
    """Ask everything, whatever was found before. `begins` is called with what is examined next.

    Raises: UsageError for a target that is not configured.
    """
    chosen = choose(site.targets, targets)
    findings: list[Finding] = []
    measures: list[PerfData] = []

    def note(part: str, found: Iterable[Finding | PerfData]) -> None:
        begins(part)
        for one in found:
            if isinstance(one, PerfData):
                measures.append(one)
            else:
                findings.append(one)

    note("the configuration", check_settings(settings, choose(settings.targets, targets)))
    note("the accounting data", check_databases(site, settings, chosen))
    note("the importers", check_importers(site))
    note("the state directory", check_directory(site.state, host.free_bytes))
    note("the ledger", check_ledger(site, chosen))
    note("the databases that were read before", check_known_databases(site, chosen))
    note("certificate, key and CAs", check_identity(site, chosen))
    note("the services", check_services(site, chosen, findings))
    note("this machine", check_machine(host, settings, chosen))
    return Diagnosis(findings=tuple(findings), measures=tuple(measures))


def check_settings(settings: Settings, targets: Sequence[ConfiguredTarget]) -> Iterator[Finding]:
    yield _file(settings)
    for target in targets:
        yield from _target(target, settings)
        yield from _twice(target, settings)
    for path in dict.fromkeys(target.records.identity.secret_file for target in targets):
        if path is not None:
            yield _secret(path)


def _file(settings: Settings) -> Finding:
    question = Question("configuration", "configuration", "without it nothing is published at all")
    try:
        mode = stat.S_IMODE(settings.path.stat().st_mode)
    except OSError as error:
        return question.failure(
            f"{settings.path}: {error.strerror}", "put it back, and ask again", ConfigError.exit_status
        )
    if mode & 0o022:
        found = f"{settings.path} loads, and users other than its owner may write to it (mode {mode:04o})"
        return question.warning(found, f"`chmod go-w {settings.path}`: who writes it decides where records go")
    return question.ok(f"{settings.path} loads; site {settings.site}, {plural(len(settings.targets), 'target')}")


def _target(target: Target, settings: Settings) -> Iterator[Finding]:
    """What a target says about itself that its owner may have forgotten."""
    question = Question("target", target.name, "its settings decide what the receiver gets")
    odd = []
    if target.shadow:
        odd.append(("`shadow: true`: nothing is handed over", "take `shadow` out when the comparison is over"))
    if isinstance(target.options, TransportOptions):
        odd += target.options.doubts()
    receiver = receiver_of(target.format)
    if receiver.sync_format and not target.shadow and not _synced(target, settings):
        advice = "write `sync: true`, so that the portal can check whether it has everything"
        odd.append((f"no sync counts are sent, against which {receiver.name} checks what it has", advice))
    if not odd:
        yield question.ok(f"{target.format} to {target.type}, {target.timetable}")
    for found, advice in odd:
        yield question.warning(found, advice)


def _twice(target: Target, settings: Settings) -> Iterator[Finding]:
    """Single records that another target before this one sends to the same place; totals are refused when they are read."""
    place = destination(target)
    for other in settings.targets[: settings.targets.index(target)]:
        if place is None or place != destination(other) or target.shadow or other.shadow or apart(other, target):
            continue
        question = Question("target", target.name, "the receiver keeps one copy, and the work of the other is lost")
        yield question.warning(
            f"its jobs go to the same place as those of target {other.name}: everything is sent there twice",
            "take one of the two out, correct its address, or give each target vos of its own",
        )


def _synced(target: Target, settings: Settings) -> bool:
    """Whether this target or one beside it at the same place sends counts."""
    there = destination(target)
    return target.sync or any(
        other.sync and there is not None and there == destination(other) for other in settings.targets
    )


def _secret(path: Path) -> Finding:
    """That it may be read by all keeps the configuration from loading; a group is for doctor to ask about."""
    question = Question(
        "pseudonym secret",
        "configuration",
        "whoever has it can find out who a pseudonym is; with a new secret, every user looks like a new one",
    )
    try:
        found = path.stat()
    except OSError as error:
        return question.failure(f"{path}: {error.strerror}", "put it back from a backup", ConfigError.exit_status)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return question.warning(f"{path} has the mode {mode:04o}", f"`chmod 0400 {path}`")
    if found.st_uid not in (0, os.geteuid()):
        advice = f"`chown --reference=/var/lib/publisher {path}`"
        return question.warning(f"{path} belongs to another user ({found.st_uid})", advice)
    return question.ok(f"{path}, mode {mode:04o}")
