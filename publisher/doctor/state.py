"""The state: its directory and file, and what the ledger in it knows of the targets."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from publisher.doctor.findings import Finding, PerfData, Question, join, not_asked
from publisher.formats import is_summary_format
from publisher.ledger.answers import TargetState
from publisher.ledger.contract import Condition, Counts, Ledgers, Losses
from publisher.model.entry import ReceiverName
from publisher.model.errors import ConfigError, Later, LedgerError, RecordError
from publisher.model.text import plural
from publisher.model.totals import month_name
from publisher.policy.target import Target
from publisher.publishing.site import Site
from publisher.sources.sqlite_reader import user_name

_STATUS: Final = LedgerError.exit_status
_MIB: Final = 1 << 20
# A round writes its messages down before it sends them: some MiB each, a merge of months too.
SPACE_WARNING: Final = 500 * _MIB
SPACE_FAILURE: Final = 50 * _MIB
_TOO_LONG: Final = timedelta(days=7)
_WHY_SUCCESS: Final = (
    "a target that has received nothing for long has a problem that somebody must fix"
)
_WHY_DIRECTORY: Final = "it records what was sent: without it jobs are sent twice, or not at all"


def check_directory(state: Path, free_bytes: Callable[[Path], int]) -> Iterator[Finding]:
    """Yield the directory, the files in it, and the room on its disk."""
    question = Question("state directory", "state", _WHY_DIRECTORY)
    directory = state.parent
    if not _holds_files(directory):
        advice = "choose a file on a disk for `state`, such as /var/lib/publisher/publishing.db"
        found = f"{directory} is on a file system that cannot hold our files"
        yield question.failure(found, advice, _STATUS)
        return
    try:
        status = directory.stat()
    except FileNotFoundError:
        yield _missing(question, directory)
        return
    except OSError as error:
        advice = "let the user who publishes search the directories above it"
        yield question.failure(f"{directory}: {error.strerror}", advice, _STATUS)
        return
    yield _directory(question, directory, status)
    if stat.S_ISDIR(status.st_mode):
        yield _owners(state, status.st_uid)
        yield _space(directory, free_bytes(directory))


def _holds_files(directory: Path) -> bool:
    """False for what the kernel shows as files, such as /proc: a file system without blocks."""
    for place in (directory, *directory.parents):
        try:
            return os.statvfs(place).f_blocks > 0
        except FileNotFoundError:
            continue
        except OSError:
            break
    return True  # what is wrong with it is reported later


def _missing(question: Question, directory: Path) -> Finding:
    install = f"install -d -o publisher -g publisher -m 0700 {directory}"
    advice = f"`{install}`, or let systemd-tmpfiles make it"
    missing, above = f"{directory} does not exist", directory.parent
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK, effective_ids=True):
        found = f"{missing}; the first round will create it, and start from scratch"
        return question.warning(found, advice)
    why = "and this user cannot create it"
    if not above.exists():
        why = f"and neither does {above}: a round makes the last directory only"
    return question.failure(f"{missing}, {why}", advice, _STATUS)


def _directory(question: Question, directory: Path, status: os.stat_result) -> Finding:
    mode, chmod = stat.S_IMODE(status.st_mode), f"`chmod 0700 {directory}`"
    if not stat.S_ISDIR(status.st_mode):
        advice = "choose another file for `state`"
        return question.failure(f"{directory} is not a directory", advice, _STATUS)
    if _is_read_only(directory):
        advice = "look at the kernel's log for an error of its disk, and make it writable again"
        return question.failure(f"{directory}: its file system is read-only", advice, _STATUS)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        advice = (
            "run doctor as the user who publishes: `runuser -u publisher -- publisher doctor`; "
            "if this is that user, chown the directory"
        )
        found = f"{directory} may not be written by user {user_name(os.geteuid())}"
        return question.failure(found, advice, _STATUS)
    found = f"users other than its owner may write to {directory} (mode {mode:04o})"
    found = f"{found}, and so change what was sent"
    if mode & stat.S_IWOTH:  # no round begins
        advice = "choose another directory for `state`" if mode & stat.S_ISVTX else chmod
        return question.failure(found, advice, _STATUS)
    if mode & stat.S_IWGRP:
        return question.warning(found, chmod)
    if mode & 0o005:
        found = f"everybody can read {directory} (mode {mode:04o}), which contains users' names"
        return question.warning(found, chmod)
    return question.ok(f"{directory}, mode {mode:04o}")


def _is_read_only(directory: Path) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _owners(state: Path, owner: int) -> Finding:
    """Files that root made in there, the service cannot change later."""
    why = "the service cannot change files that another user has created there"
    question, directory = Question("state files", "state", why), state.parent
    try:
        files = sorted(one for one in directory.iterdir() if one.name.startswith(state.name))
        others = [file.name for file in files if _owner(file, owner) != owner]
    except OSError as error:
        advice = "run doctor as the user who publishes"
        return question.failure(f"{directory}: {error.strerror}", advice, _STATUS)
    if others:
        chown = f"`chown --reference={directory} {state}*`"
        advice = f"{chown}, and run commands that write as that user"
        found = f"not owned by the owner of the directory: {join(others)}"
        return question.failure(found, advice, _STATUS)
    return question.ok("all have the same owner")


def _owner(entry: Path, gone: int) -> int:
    """Return whose it is; `gone` for a -wal that SQLite took away in between."""
    try:
        return entry.lstat().st_uid
    except FileNotFoundError:
        return gone


def _space(directory: Path, free: int) -> Finding:
    why = "on a full disk nothing can be recorded, so nothing is sent"
    question = Question("disk space", "state", why)
    found = f"{free // _MIB:,} MiB free for {directory}"
    room = f"make room on the file system of {directory} (`df -h {directory}`)"
    advice = f"{room}, but delete nothing in that directory"
    if free < SPACE_FAILURE:
        return question.failure(found, advice, _STATUS)
    return question.warning(found, advice) if free < SPACE_WARNING else question.ok(found)


def check_ledger(site: Site, targets: Sequence[Target]) -> Iterator[Finding | PerfData]:
    """What the ledger knows of each target: its last success, in doubt, set aside or held back."""
    question = Question("state", "state", _WHY_DIRECTORY)
    if not _holds_files(site.ledgers.state.parent):
        yield not_asked(question, "we cannot have a file there")
        return
    now = site.process.clock()
    try:
        with closing(site.ledgers.to_read()) as ledger:
            states = [(target, ledger.targets.state(target.name)) for target in targets]
            there = any(state is not None for _, state in states) or site.ledgers.state.exists()
            absent = "" if there else " does not exist yet; the first round creates it"
            yield question.ok(f"{site.ledgers.name}{absent}")
            if damage := ledger.condition.damage():
                advice = "`publisher state check` checks all of it; restore the last sound backup"
                yield question.failure(f"the ledger is damaged: {join(damage)}", advice, _STATUS)
            for target, state in states:
                yield from _not_ours(
                    target.name, site.sending.receiver(target), ledger.condition, ledger.losses
                )
                yield from _target(target, state, now)
                address = ledger.receivers.changed_address(
                    target.name, site.sending.receiver(target)
                )
                if address is not None:
                    where = Question(
                        "receiver", target.name, "jobs count where they were delivered"
                    )
                    yield where.failure(address.text, address.advice, ConfigError.exit_status)
    except LedgerError as error:
        yield question.error(error, "restore it from a backup")
        for target in targets:
            success = Question("last success", target.name, _WHY_SUCCESS)
            yield not_asked(success, "the state cannot be read")


def check_instances(ledgers: Ledgers, targets: Sequence[Target]) -> Iterator[Finding]:
    """Yield whether another instance delivers the CE's jobs: they count twice, or replace ours."""
    if not ledgers.instance:
        return
    question = Question("instances", "state", "jobs that two instances deliver are sent twice")
    try:
        with closing(ledgers.to_read()) as ledger:
            own = {target.name: _hosts(ledger.counts, target.name) for target in targets}
        shared = []
        for other in ledgers.others():
            with closing(other.to_read()) as ledger:
                shared += [
                    f"{other.instance} delivers jobs of {host} in {month_name(month)} to {name} too"
                    for name, hosts in own.items()
                    for month, host in sorted(hosts & _hosts(ledger.counts, name), reverse=True)[:1]
                ]
    except LedgerError as error:
        yield question.error(error, "see the finding about the state")
        return
    if shared:
        advice = (
            "let one of them publish this CE, or give the two hosts of a pair the same `instance`"
        )
        yield question.warning(join(shared), advice)
    else:
        yield question.ok("no other instance delivers jobs of this CE")


def _hosts(counts: Counts, target: str) -> set[tuple[int, str]]:
    """Months and submit hosts of delivered jobs; jobs without a submit host may be anybody's."""
    return {(month, host) for month, host in counts.by_host(target).delivered if host}


def _not_ours(
    target: str, receiver: ReceiverName, condition: Condition, losses: Losses
) -> Iterator[Finding]:
    """Yield whether the ledger lacks something that was delivered from here."""
    why = "what an older one lacks is delivered, and nobody knows as what"
    question = Question("ledger in time", target, why)
    if trouble := condition.trouble(receiver.place):
        command = f"publisher publish --force --target {target}"
        advice = f"put the right ledger in place; if this is it, `{command}` says how to go on"
        yield question.failure(f"the ledger {trouble}", advice, _STATUS)
    elif waiting := losses.held(target):
        months = [month_name(loss.month) for loss in waiting]
        command = f"publisher receiver delivered {target} {' '.join(months)}"
        found = f"the ledger was restored, or lost, and may lack something of {join(months)}"
        advice = f"`publisher publish --force --target {target}` says what the receiver should have"
        advice = f"{advice}; if that is there, `{command}`"
        yield question.failure(found, advice, RecordError.exit_status)


def _target(
    target: Target, state: TargetState | None, now: datetime
) -> Iterator[Finding | PerfData]:
    name = target.name
    yield _last_success(Question("last success", name, _WHY_SUCCESS), target, state, now)
    if state is None:
        return
    if state.last_success is not None:
        limit = _limit(target, state.last_success)
        yield PerfData(
            label=f"{name}_age",
            value=max(0, round((now - state.last_success).total_seconds())),
            unit="s",
            warn=str(round(limit.total_seconds())),
            critical=str(round(max(limit, _TOO_LONG).total_seconds())),
        )
    yield PerfData(label=f"{name}_quarantined", value=state.quarantined, warn="0")
    yield PerfData(label=f"{name}_in_doubt", value=state.in_doubt)
    yield _quarantine(state)
    yield _doubt(state)
    if is_summary_format(target.format) or state.held:
        yield PerfData(label=f"{name}_held_months", value=len(state.held), warn="0")
        yield _months(state)


def _limit(target: Target, success: datetime) -> timedelta:
    """Return how old a success may be: the round after the next one is due by then."""
    return target.overdue_after(success) - success


def _last_success(
    question: Question, target: Target, state: TargetState | None, now: datetime
) -> Finding:
    command = f"publisher publish --force --target {target.name}"
    look = f"`{command}` shows what is wrong, as does `journalctl -u publisher`"
    if state is None or state.last_round is None:
        plan, first = f"publisher plan --target {target.name}", "publisher publish"
        advice = f"`{plan}`, then `{first} --target {target.name}`, then the timer"
        return question.warning("there was no round yet", advice)
    if state.last_success is None:
        return question.failure("no round has ever succeeded", look, Later.exit_status)
    age = now - state.last_success
    found = f"{state.last_success:%Y-%m-%dT%H:%M:%SZ}, {_spoken(age)} ago"
    limit = _limit(target, state.last_success)
    if age > max(limit, _TOO_LONG):
        return question.failure(found, look, Later.exit_status)
    return question.warning(found, look) if age > limit else question.ok(found)


def _spoken(age: timedelta) -> str:
    if age.days > 1:
        return f"{age.days} days"
    return plural(max(0, round(age.total_seconds() / 60)), "minute")


def _quarantine(state: TargetState) -> Finding:
    why = "these jobs are counted nowhere until somebody acts"
    question = Question("quarantine", state.target, why)
    if not state.quarantined:
        return question.ok("empty")
    command = f"publisher quarantine list --target {state.target}"
    advice = f"`{command}` names the rule that each broke; fix, release or drop them"
    return question.warning(f"{plural(state.quarantined, 'job is', 'jobs are')} set aside", advice)


def _doubt(state: TargetState) -> Finding:
    why = "their answers were lost, and they are sent again under the same id"
    question = Question("in doubt", state.target, why)
    if not state.in_doubt:
        return question.ok("nothing")
    command = f"publisher publish --force --target {state.target}"
    advice = f"nothing: the next round sends them; if they remain, `{command}` shows why"
    return question.warning(plural(state.in_doubt, "record"), advice)


def _months(state: TargetState) -> Finding:
    why = "the receiver has old numbers for them"
    question = Question("held months", state.target, why)
    if not state.held:
        return question.ok("none")
    advice = (
        f"`publisher publish --force --target {state.target}` says why, and what "
        "--accept-key-change would do; a ticket that it prints comes before that"
    )
    return question.warning(f"held back: {join(map(month_name, state.held))}", advice)
