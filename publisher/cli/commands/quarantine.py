"""`quarantine`: the jobs that were set aside: list, release, drop."""

from __future__ import annotations

import argparse

from publisher.cli.commands import Context
from publisher.cli.output import Json, TextTable, attributes, moment_text, print_result
from publisher.cli.parser import add_action, add_actions, add_json, add_targets
from publisher.ledger.answers import Hold, Quarantined
from publisher.model.errors import UsageError
from publisher.publishing import status as operations
from publisher.publishing.plan.decision import KEY_COLLISION

_COLUMNS = ("number", "target", "job", "rule", "reason", "hold", "since")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    text = "list the jobs that were set aside, with the rule that each breaks"
    listing = add_action(actions, "list", text)
    add_targets(listing)
    add_json(listing)
    for name, text in (
        ("release", "try these jobs again in the next round"),
        ("drop", "never send these jobs"),
    ):
        usage = f"publisher quarantine {name} JOB... | --all [--target NAME] [--as FORM]"
        action = add_action(actions, name, text, usage)
        # Not nargs="*", which takes nothing as soon as an option comes first.
        text = "number of a job in the list, or its id"
        jobs = action.add_argument("jobs", nargs="+", default=[], metavar="JOB", help=text)
        jobs.required = False
        text = "all jobs in the list; with --target, all of that target"
        action.add_argument("--all", action="store_true", dest="every", help=text)
        add_targets(action)
        add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    if arguments.action == "list":
        found = operations.quarantined(site, targets=arguments.target)
        print_result(
            found,
            lambda jobs: {"quarantined": list(map(quarantined_json, jobs))},
            lambda jobs: [TextTable(_COLUMNS, list(map(_row, jobs)), "no job is set aside")],
            form=arguments.form,
            rows="quarantined",
        )
        return 0
    if bool(arguments.jobs) == arguments.every:
        raise UsageError(f"quarantine {arguments.action} takes numbers or ids of jobs, or --all")
    hold = Hold.RELEASED if arguments.action == "release" else Hold.DROPPED
    changed = operations.release_or_drop(
        site, arguments.jobs, hold, every=arguments.every, targets=arguments.target
    )
    counts = {"changed": len(changed), "hold": hold}
    print_result(
        [one for one in changed if hold is Hold.RELEASED and one.job.rule == KEY_COLLISION],
        lambda jobs: {**counts, "replaces": list(map(quarantined_json, jobs))},
        lambda jobs: [f"{len(changed)} {hold}", *map(_what_it_replaces, jobs)],
        form=arguments.form,
    )
    return 0


def _what_it_replaces(held: Quarantined) -> str:
    return (
        f"with the next round job {held.job.job_id} takes the place of another job's record "
        f"at the receiver of {held.target}: {held.job.reason}; "
        f"`publisher quarantine drop {held.number}` keeps the record that is there"
    )


def quarantined_json(held: Quarantined) -> Json:
    return {
        **attributes(held, "number", "target"),
        "job": held.job.job_id,
        "local_id": held.job.local_id,
        "end_time": moment_text(held.job.ended_at),
        **attributes(held.job, "rule", "reason"),
        **attributes(held, "hold", "since"),
        **attributes(held.job.row, "database", "record_id"),
    }


def _row(held: Quarantined) -> tuple[str, ...]:
    return (
        str(held.number),
        held.target,
        held.job.job_id or f"row {held.job.row.record_id} of {held.job.row.database}",
        held.job.rule,
        held.job.reason,
        str(held.hold),
        moment_text(held.since) or "",
    )
