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
from publisher.ledger.contract import Ledger, TargetState
from publisher.model.errors import Later, LedgerError
from publisher.model.target import Target
from publisher.model.text import plural
from publisher.model.totals import month_name
from publisher.pipeline.site import Site

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
    """The directory, the files in it, and the room on its disk."""
    question = Question("state directory", "state", _WHY_DIRECTORY)
    directory = state.parent
    if not _holds_files(directory):
        advice = "choose a file on a disk for `state`, such as /var/lib/publisher/publishing.db"
        yield question.failure(
            f"{directory} is on a file system that cannot hold our files", advice, _STATUS
        )
        return
    try:
        found = directory.stat()
    except FileNotFoundError:
        yield _missing(question, directory)
        return
    except OSError as error:
        advice = "let the user who publishes search the directories above it"
        yield question.failure(f"{directory}: {error.strerror}", advice, _STATUS)
        return
    yield _directory(question, directory, found)
    if stat.S_ISDIR(found.st_mode):
        yield _owners(state, found.st_uid)
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
    made = f"`install -d -o publisher -g publisher -m 0700 {directory}`, or let systemd-tmpfiles make it"
    if directory.parent.is_dir() and os.access(
        directory.parent, os.W_OK | os.X_OK, effective_ids=True
    ):
        return question.warning(
            f"{directory} does not exist; the first round will create it, and start from scratch",
            made,
        )
    return question.failure(
        f"{directory} does not exist, and this user cannot create it", made, _STATUS
    )


def _directory(question: Question, directory: Path, found: os.stat_result) -> Finding:
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return question.failure(
            f"{directory} is not a directory", "choose another file for `state`", _STATUS
        )
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        advice = (
            "run doctor as the user who publishes: `runuser -u publisher -- publisher doctor`; "
            "if this is that user, chown the directory"
        )
        return question.failure(
            f"{directory} may not be written by user {os.geteuid()}", advice, _STATUS
        )
    if mode & 0o022:
        found_mode = f"users other than its owner may write to {directory} (mode {mode:04o}), and so change what was sent"
        return question.warning(found_mode, f"`chmod 0700 {directory}`")
    if mode & 0o005:
        found_mode = (
            f"everybody can read {directory} (mode {mode:04o}), which contains users' names"
        )
        return question.warning(found_mode, f"`chmod 0700 {directory}`")
    return question.ok(f"{directory}, mode {mode:04o}")


def _owners(state: Path, owner: int) -> Finding:
    """Files that root made in there, the service cannot change later."""
    question = Question(
        "state files",
        "state",
        "the service cannot change files that another user has created there",
    )
    try:
        entries = sorted(
            entry for entry in state.parent.iterdir() if entry.name.startswith(state.name)
        )
        others = [entry.name for entry in entries if _owner(entry, owner) != owner]
    except OSError as error:
        return question.failure(
            f"{state.parent}: {error.strerror}", "run doctor as the user who publishes", _STATUS
        )
    if others:
        advice = (
            f"`chown --reference={state.parent} {state}*`, and run commands that write as that user"
        )
        return question.failure(
            f"not owned by the owner of the directory: {join(others)}", advice, _STATUS
        )
    return question.ok("all have the same owner")


def _owner(entry: Path, gone: int) -> int:
    """Whose it is; `gone` for a -wal that SQLite took away in between."""
    try:
        return entry.lstat().st_uid
    except FileNotFoundError:
        return gone


def _space(directory: Path, free: int) -> Finding:
    question = Question(
        "disk space", "state", "on a full disk nothing can be recorded, so nothing is sent"
    )
    found = f"{free // _MIB:,} MiB free for {directory}"
    advice = f"make room on the file system of {directory} (`df -h {directory}`), but never in that directory"
    if free < SPACE_FAILURE:
        return question.failure(found, advice, _STATUS)
    return question.warning(found, advice) if free < SPACE_WARNING else question.ok(found)


def check_ledger(site: Site, targets: Sequence[Target]) -> Iterator[Finding | PerfData]:
    """What the ledger knows of each target: its last success, in doubt, set aside or held back."""
    question = Question("state", "state", _WHY_DIRECTORY)
    if not _holds_files(site.state.parent):
        yield not_asked(question, "we cannot have a file there")
        return
    now = site.clock()
    try:
        with closing(site.ledger_to_read()) as ledger:
            states = [(target, ledger.target(target.name)) for target in targets]
            there = any(state is not None for _, state in states) or site.state.exists()
            yield question.ok(
                f"{site.ledger_name}{'' if there else ' does not exist yet; the first round creates it'}"
            )
            if damage := ledger.damage():
                advice = "`publisher state check` checks all of it; restore the last sound backup"
                yield question.failure(f"the ledger is damaged: {join(damage)}", advice, _STATUS)
            for target, state in states:
                yield from _target(target, state, ledger, now)
    except LedgerError as error:
        yield question.error(error, "restore it from a backup")
        for target in targets:
            yield not_asked(
                Question("last success", target.name, _WHY_SUCCESS), "the state cannot be read"
            )


def check_instances(site: Site, targets: Sequence[Target]) -> Iterator[Finding]:
    """Whether another instance delivers the CE's jobs: they count twice, or replace ours."""
    if not site.instance:
        return
    question = Question("instances", "state", "jobs that two instances deliver are sent twice")
    try:
        with closing(site.ledger_to_read()) as ledger:
            own = {target.name: _hosts(ledger, target.name) for target in targets}
        shared = []
        for other in site.other_instances():
            with closing(other.ledger_to_read()) as ledger:
                shared += [
                    f"{other.instance} delivers jobs of {host} in {month_name(month)} to {name} too"
                    for name, hosts in own.items()
                    for month, host in sorted(hosts & _hosts(ledger, name), reverse=True)[:1]
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


def _hosts(ledger: Ledger, target: str) -> set[tuple[int, str]]:
    """Months and submit hosts of delivered jobs; jobs without a submit host may be anybody's."""
    return {(month, host) for month, host in ledger.counts(target).delivered if host}


def _not_ours(target: str, trouble: str) -> Finding:
    question = Question(
        "ledger in time", target, "an older one would send again what it does not know of"
    )
    advice = f"put the right ledger in place; if this is it, `publisher publish --accept-state --target {target}`"
    return question.failure(f"the ledger {trouble}", advice, _STATUS)


def _target(
    target: Target, state: TargetState | None, ledger: Ledger, now: datetime
) -> Iterator[Finding | PerfData]:
    name = target.name
    if trouble := ledger.state_trouble(name):
        yield _not_ours(name, trouble)
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
    yield _quarantine(
        Question("quarantine", name, "these jobs are counted nowhere until somebody acts"), state
    )
    yield _doubt(
        Question(
            "in doubt", name, "their answers were lost, and they are sent again under the same id"
        ),
        state,
    )
    if is_summary_format(target.format):
        yield PerfData(label=f"{name}_held_months", value=len(state.held), warn="0")
        yield _months(
            Question("held months", name, "the receiver has old numbers for them"), state.held
        )


def _limit(target: Target, success: datetime) -> timedelta:
    """How old a success may be: the round after the next one is due by then."""
    return target.overdue_after(success) - success


def _last_success(
    question: Question, target: Target, state: TargetState | None, now: datetime
) -> Finding:
    look = f"`publisher publish --force --target {target.name}` shows what is wrong, as does `journalctl -u publisher`"
    if state is None or state.last_round is None:
        advice = f"`publisher publish --dry-run --target {target.name}`, then the same without --dry-run, then the timer"
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
    return (
        f"{age.days} days"
        if age.days > 1
        else plural(max(0, round(age.total_seconds() / 60)), "minute")
    )


def _quarantine(question: Question, state: TargetState) -> Finding:
    if not state.quarantined:
        return question.ok("empty")
    advice = f"`publisher quarantine list --target {state.target}` names the rule that each broke; fix, release or drop them"
    return question.warning(f"{plural(state.quarantined, 'job is', 'jobs are')} set aside", advice)


def _doubt(question: Question, state: TargetState) -> Finding:
    if not state.in_doubt:
        return question.ok("nothing")
    command = f"publisher publish --force --target {state.target}"
    advice = f"nothing: the next round sends them; if they remain, `{command}` shows why"
    return question.warning(plural(state.in_doubt, "record"), advice)


def _months(question: Question, held: Sequence[int]) -> Finding:
    if not held:
        return question.ok("none")
    advice = (
        f"`publisher publish --force --target {question.part}` says why, and what --accept-key-change would do; where it "
        "prints a ticket, have those rows deleted first"
    )
    return question.warning(f"held back: {join(map(month_name, held))}", advice)
