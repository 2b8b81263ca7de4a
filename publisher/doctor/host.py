"""The host around us: who starts rounds, as which user we ask, and whether ARC's own publisher still publishes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from publisher.config import Settings
from publisher.config.from_arc import ArcConf, read_arc_conf
from publisher.config.from_arc.reader import ArcValues, ByHand
from publisher.doctor.findings import Finding, Question, join
from publisher.model.errors import ConfigError
from publisher.model.target import Target

_TIMER: Final = "timers.target.wants/publisher.timer"
_DAEMONS: Final = "multi-user.target.wants/publisher*.service"
_CRON: Final = "publisher"
_BLOCKS: Final = ("arex/jura/apel:", "arex/jura/sgas:")
_STOP_JURA: Final = (
    "take the block out of {path} and restart A-REX (`arcctl service restart -a`), or mark our target `shadow: true`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where to look on this machine: arc.conf, directories of systemd's units and of cron's, and the room on a disk."""

    arc_conf: Path
    units: tuple[Path, ...]
    cron: tuple[Path, ...]
    free_bytes: Callable[[Path], int]


def check_machine(host: Host, settings: Settings, targets: Sequence[Target]) -> Iterator[Finding]:
    yield _user(settings)
    yield _schedule(host)
    yield from _jura(host.arc_conf, targets)


def _user(settings: Settings) -> Finding:
    """What root can read says nothing about what the service's user can."""
    question = Question("user", "host", "what one user can read and write, another may not")
    try:
        owner = settings.state.parent.stat().st_uid
    except OSError:
        return question.ok(f"run as user {os.geteuid()}")
    if os.geteuid() == 0 and owner != 0:
        advice = "`runuser -u publisher -- publisher doctor`, or with the key as publisher(1) shows"
        return question.warning(f"asked as root, but the state belongs to user {owner}", advice)
    return question.ok(f"run as user {os.geteuid()}")


def _schedule(host: Host) -> Finding:
    question = Question("timer", "host", "without one, no round is ever started")
    links = [link for folder in host.units if os.path.lexists(link := folder / _TIMER)]
    daemons = [link for folder in host.units for link in folder.glob(_DAEMONS)]
    tables = [table for folder in host.cron if (table := folder / _CRON).is_file()]
    starters = [*map(str, links), *map(str, daemons), *map(str, tables)]
    dangling = [str(link) for link in (*links, *daemons) if not link.exists()]
    if dangling:
        advice = "install the units of `conf/` and `systemctl daemon-reload`, or `systemctl disable` what is gone"
        return question.warning(f"{join(dangling)} leads nowhere: the unit is gone", advice)
    return _one_starter(question, starters, ways=bool(links) + bool(daemons) + bool(tables))


def _one_starter(question: Question, starters: Sequence[str], ways: int) -> Finding:
    if ways > 1:
        advice = (
            "keep one of them: `systemctl disable --now publisher.timer` (or publisher-run.service, the daemon), or remove "
            "the cron file"
        )
        return question.warning(f"several start rounds: {join(starters)}", advice)
    if not starters:
        advice = (
            "`systemctl enable --now publisher.timer`, or publisher-run.service for the daemon, or put conf/publisher.cron "
            "into /etc/cron.d"
        )
        return question.warning("neither timer, daemon nor cron file is enabled", advice)
    return question.ok(join(starters))


def _jura(path: Path, targets: Sequence[Target]) -> Iterator[Finding]:
    question = Question("jura-ng", "host", "two publishers of one CE count its jobs twice where their spelling differs")
    try:
        if not path.exists():
            yield question.ok(f"there is no {path}: no ARC publishes from here")
            return
        conf = read_arc_conf(path)
    except (OSError, ConfigError) as error:
        advice = "ask as a user who may read it, or name it with --arc-conf"
        yield question.warning(f"cannot tell, {str(error).partition('; ')[0]}", advice)
        return
    blocks = [block.name for prefix in _BLOCKS for block in conf.under(prefix)]
    if not blocks:
        yield question.ok(f"{path} has no target for it")
    for block in blocks:
        yield _jura_still_publishes(question, conf, block, targets)


def _jura_still_publishes(question: Question, conf: ArcConf, block: str, targets: Sequence[Target]) -> Finding:
    """A target of ARC's publisher: beside ours at the same service it counts jobs twice, elsewhere it may be meant."""
    advice = _STOP_JURA.format(path=" and ".join(conf.blocks[block].files))
    try:
        given = ArcValues(conf).first(block, "targeturl")
        url = given.text if given else ""
    except (ByHand, ConfigError) as error:
        return question.warning(f"[{block}] is active, with a targeturl that cannot be worked out: {error}", advice)
    ours = [target.name for target in targets if not target.shadow and _host(target) == urlsplit(url).hostname]
    if ours:
        found = f"[{block}] publishes to {url}, where our target {join(ours)} publishes too"
        return question.failure(found, advice, ConfigError.exit_status)
    return question.warning(f"[{block}] still publishes to {url or 'a place that it does not name'}", advice)


def _host(target: Target) -> str:
    options: Any = target.options
    return urlsplit(getattr(options, "url", "")).hostname or ""
