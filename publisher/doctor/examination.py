"""All questions of the doctor, side by side.

Here are also those about the configuration, which may load and still not be what one wants, and
about the host: who starts rounds, as which user we ask, and whether ARC's own publisher still runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from publisher.config import ConfiguredTarget, Settings
from publisher.config.from_arc import ArcConf, read_arc_conf
from publisher.config.from_arc.reader import ArcValues, ByHand
from publisher.config.targets import added_up, apart, destination
from publisher.doctor.databases import check_databases, check_known_databases
from publisher.doctor.findings import Diagnosis, Finding, PerfData, Question, join
from publisher.doctor.services import check_identity, check_services
from publisher.doctor.shared_vos import check_shared_vos
from publisher.doctor.side_by_side import ExaminedPart, ask_all
from publisher.doctor.sources import check_sources
from publisher.doctor.state import check_directory, check_instances, check_ledger
from publisher.formats import receiver_of
from publisher.model.errors import ConfigError
from publisher.model.text import plural
from publisher.policy.target import Target
from publisher.publishing.site import Site, choose
from publisher.sources.sqlite_reader import user_name
from publisher.transports.base import Step, TransportOptions

# With the configuration, which is loaded before: the answer comes within 20 seconds
WITHIN_S: Final = 15
_WHY_HANGS: Final = "a round waits for it, too"
_FILES: Final = "a lock on the file (`fuser -v FILE`), or its file system (`df`)"
_LEDGER: Final = "a lock, its file system, or the database server"
_SERVICES: Final = "name servers, a firewall on the way, or the service itself"
_TIMER: Final = "timers.target.wants/publisher.timer"
_DAEMONS: Final = "multi-user.target.wants/publisher*.service"
_CRON: Final = "publisher"
_BLOCKS: Final = ("arex/jura/apel:", "arex/jura/sgas:")
_STOP_JURA: Final = (
    "remove the block from {path} and restart A-REX (`arcctl service restart -a`), "
    "or mark our target `shadow: true`"
)
_RESPONDS: Final = "check that its file system responds"
_ANSWERS: Final = "does their file system answer?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where to look on this machine: arc.conf, units of systemd and cron, room on a disk."""

    arc_conf: Path
    units: tuple[Path, ...]
    cron: tuple[Path, ...]
    free_bytes: Callable[[Path], int]


def examine(
    site: Site,
    settings: Settings,
    host: Host,
    *,
    targets: Sequence[str],
    waits: Callable[[Sequence[str]], None],
) -> Diagnosis:
    """Ask everything at once, whatever is found. `waits` gets the names of the parts not done yet.

    Raises: UsageError for a target that is not configured.
    """
    chosen = choose(site.targets, targets)
    ours = choose(settings.targets, targets)
    identity: Future[Sequence[Finding | PerfData]] = Future()
    examined: dict[str, Future[tuple[Step, ...]]] = {}

    def ask_identity() -> Sequence[Finding | PerfData]:
        found = list(check_identity(site.sending, site.process, chosen))
        identity.set_result(found)
        return found

    def part(
        name: str, source: str, where: str, ask: Callable[[], Iterable[Finding | PerfData]]
    ) -> ExaminedPart:
        return ExaminedPart(
            name,
            Question(name.removeprefix("the "), source, _WHY_HANGS),
            f"find out what it is waiting for: {where}",
            ask,
        )

    configuration = partial(check_settings, settings, ours)
    data = partial(check_databases, site, settings, chosen)
    directory = partial(check_directory, site.ledgers.state, host.free_bytes)
    known = partial(check_known_databases, site.ledgers, site.accounting, chosen)
    machine = partial(check_machine, host, settings, chosen)
    services = partial(
        check_services, site.sending, site.process, identity=identity.result, known=examined
    )
    parts = [
        part("the configuration", "configuration", _RESPONDS, configuration),
        part("the accounting data", "source", _FILES, data),
        part("the sources", "source", _FILES, partial(check_sources, site)),
        part("the VOs of local jobs", "source", _FILES, partial(check_shared_vos, site, chosen)),
        part("the state directory", "state", _FILES, directory),
        part("the ledger", "state", _LEDGER, partial(check_ledger, site, chosen)),
        part(
            "the other instances", "state", _LEDGER, partial(check_instances, site.ledgers, chosen)
        ),
        part("the databases that were read before", "source", _FILES, known),
        part("certificate, key and CAs", "credentials", _ANSWERS, ask_identity),
        *(part("the services", one.name, _SERVICES, partial(services, one)) for one in chosen),
        part("this machine", "host", _RESPONDS, machine),
    ]
    found = ask_all(parts, within_s=WITHIN_S, clock=site.process.monotonic, waits=waits)
    answers = list(chain.from_iterable(found))
    return Diagnosis(
        findings=tuple(one for one in answers if isinstance(one, Finding)),
        measures=tuple(one for one in answers if isinstance(one, PerfData)),
    )


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
        found, advice = f"{settings.path}: {error.strerror}", "put it back, and run doctor again"
        return question.failure(found, advice, ConfigError.exit_status)
    loads = f"{settings.path} loads"
    if mode & 0o022:
        found = f"{loads}, but users other than its owner may write to it (mode {mode:04o})"
        advice = f"`chmod go-w {settings.path}`: whoever writes to it decides where records go"
        return question.warning(found, advice)
    targets = plural(len(settings.targets), "target")
    return question.ok(f"{loads}; site {settings.site}, {targets}")


def _target(target: Target, settings: Settings) -> Iterator[Finding]:
    """Settings of a target that its owner may have forgotten."""
    question = Question("target", target.name, "its settings decide what the receiver gets")
    findings = []
    if target.shadow:
        advice = "remove `shadow` when the comparison is over"
        findings.append(question.warning("`shadow: true`: nothing is sent", advice))
    delivers = not target.shadow
    if isinstance(target.options, TransportOptions):
        findings += [question.warning(*doubt) for doubt in target.options.doubts()]
        delivers = delivers and target.options.delivers
    receiver = receiver_of(target.format)
    if receiver.sync_format and delivers and not _synced(target, settings):
        why = f"without them, {receiver.name} cannot show that records are missing there"
        found = f"no sync counts are sent, against which {receiver.name} checks what it has"
        findings.append(Question("target", target.name, why).warning(found, "set `sync: true`"))
    yield from findings or [question.ok(f"{target.format} to {target.type}, {target.timetable}")]


def _twice(target: Target, settings: Settings) -> Iterator[Finding]:
    """Records that an earlier target sends to the same place; totals are refused earlier."""
    place = destination(target)
    why = "the receiver keeps one copy, and the work of the other is lost"
    for other in settings.targets[: settings.targets.index(target)]:
        if place is None or place != destination(other) or target.shadow or other.shadow:
            continue
        if apart(other, target) or not added_up(other, target):
            continue
        same = f"its jobs go to the same place as those of target {other.name}"
        yield Question("target", target.name, why).warning(
            f"{same}: everything is sent there twice",
            "remove one of the two, correct its address, or give each target its own `vos`",
        )


def _synced(target: Target, settings: Settings) -> bool:
    """Whether this target or one beside it at the same place sends counts."""
    there = destination(target)
    if target.sync or there is None:
        return target.sync
    return any(other.sync and there == destination(other) for other in settings.targets)


def _secret(path: Path) -> Finding:
    """All may read it: then the configuration does not load. A group may: doctor asks about it."""
    why = (
        "whoever has it can find out who a pseudonym is; "
        "with a new secret, every user looks like a new one"
    )
    question = Question("pseudonym secret", "configuration", why)
    try:
        found = path.stat()
    except OSError as error:
        advice = "put it back from a backup"
        return question.failure(f"{path}: {error.strerror}", advice, ConfigError.exit_status)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return question.warning(f"{path} has mode {mode:04o}", f"`chmod 0400 {path}`")
    if found.st_uid not in (0, os.geteuid()):
        advice = f"`chown --reference=/var/lib/publisher {path}`"
        return question.warning(
            f"{path} belongs to another user ({user_name(found.st_uid)})", advice
        )
    return question.ok(f"{path}, mode {mode:04o}")


def check_machine(host: Host, settings: Settings, targets: Sequence[Target]) -> Iterator[Finding]:
    yield _user(settings)
    yield _schedule(host)
    yield from _jura(host.arc_conf, targets)


def _user(settings: Settings) -> Finding:
    """What root can read, the user of the service may not."""
    question = Question("user", "host", "what one user can read and write, another may not")
    try:
        owner = settings.state.parent.stat().st_uid
    except OSError:
        return question.ok(f"run as user {user_name(os.geteuid())}")
    if os.geteuid() == 0 and owner != 0:
        advice = "`runuser -u publisher -- publisher doctor`, or with the key as publisher(1) shows"
        found = f"running as root, but the state belongs to user {user_name(owner)}"
        return question.warning(found, advice)
    return question.ok(f"run as user {user_name(os.geteuid())}")


def _schedule(host: Host) -> Finding:
    question = Question("timer", "host", "without one, no round is ever started")
    links = [link for folder in host.units if os.path.lexists(link := folder / _TIMER)]
    daemons = [link for folder in host.units for link in folder.glob(_DAEMONS)]
    tables = [table for folder in host.cron if (table := folder / _CRON).is_file()]
    starters = [*map(str, links), *map(str, daemons), *map(str, tables)]
    dangling = [str(link) for link in (*links, *daemons) if not link.exists()]
    if dangling:
        advice = (
            "install the units of `conf/` and `systemctl daemon-reload`, "
            "or `systemctl disable` what is gone"
        )
        return question.warning(f"{join(dangling)} leads nowhere: the unit is gone", advice)
    return _one_starter(question, starters, ways=bool(links) + bool(daemons) + bool(tables))


def _one_starter(question: Question, starters: Sequence[str], ways: int) -> Finding:
    if ways > 1:
        advice = (
            "keep one of them: `systemctl disable --now publisher.timer` "
            "(or publisher-run.service, the daemon), or remove the cron file"
        )
        return question.warning(f"more than one thing starts rounds: {join(starters)}", advice)
    if not starters:
        advice = (
            "`systemctl enable --now publisher.timer`, or publisher-run.service for the daemon, "
            "or put conf/publisher.cron into /etc/cron.d"
        )
        return question.warning("neither timer, daemon nor cron file is enabled", advice)
    return question.ok(join(starters))


def _jura(path: Path, targets: Sequence[Target]) -> Iterator[Finding]:
    why = "two publishers of one CE count its jobs twice where their spelling differs"
    question = Question("jura-ng", "host", why)
    try:
        if not path.exists():
            yield question.ok(f"there is no {path}: ARC does not publish from here")
            return
        conf = read_arc_conf(path)
    except (OSError, ConfigError) as error:
        advice = "run doctor as a user who may read it, or name another with --arc-conf"
        yield question.warning(f"cannot tell, {str(error).partition('; ')[0]}", advice)
        return
    blocks = [block.name for prefix in _BLOCKS for block in conf.under(prefix)]
    if not blocks:
        yield question.ok(f"{path} has no target for it")
    for block in blocks:
        yield _jura_still_publishes(question, conf, block, targets)


def _jura_still_publishes(
    question: Question, conf: ArcConf, block: str, targets: Sequence[Target]
) -> Finding:
    """A target of ARC's publisher: at ours' service it counts twice, elsewhere it may be meant."""
    advice = _STOP_JURA.format(path=" and ".join(conf.blocks[block].files))
    try:
        given = ArcValues(conf).first(block, "targeturl")
        url = given.text if given else ""
    except (ByHand, ConfigError) as error:
        found = f"[{block}] is active, with a targeturl that cannot be resolved: {error}"
        return question.warning(found, advice)
    host = urlsplit(url).hostname
    ours = [target.name for target in targets if not target.shadow and _host(target) == host]
    if ours:
        found = f"[{block}] publishes to {url}, where our target {join(ours)} publishes too"
        return question.failure(found, advice, ConfigError.exit_status)
    found = f"[{block}] still publishes to {url or 'a place that it does not name'}"
    return question.warning(found, advice)


def _host(target: Target) -> str:
    options: Any = target.options
    return urlsplit(getattr(options, "url", "")).hostname or ""
