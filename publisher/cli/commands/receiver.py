"""`receiver`: where targets lead, and whether a new address is the same place: list, same, new."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from publisher.cli.commands import Context
from publisher.cli.logs import error_line
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    moment_text,
    print_line,
    print_result,
)
from publisher.cli.parser import Form, add_action, add_actions, add_json
from publisher.model.errors import ConfigError
from publisher.model.receiver import ChangedAddress
from publisher.model.text import plural
from publisher.publishing.takeover import receivers
from publisher.publishing.takeover.receivers import ListedReceiver

_COLUMNS = (
    *("number", "name", "address", "kind", "targets", "runs", "in doubt"),
    *("first delivery", "last delivery"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    text = "show all receivers, the targets that lead there, and the runs that count"
    add_json(add_action(actions, "list", text))
    for name, text in (
        ("same", "the service moved: its receiver has the target's address, and nothing is resent"),
        ("new", "another place: everything that the target wants is sent there"),
    ):
        action = add_action(actions, name, text)
        text = "a target whose address no receiver has"
        action.add_argument("target", metavar="TARGET", help=text)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    match arguments.action:
        case "list":
            return _list(receivers.listed(site), form=arguments.form)
        case "same":
            print_line(_moved(receivers.same(site, arguments.target)))
        case _:
            print_line(_entered(receivers.new(site, arguments.target)))
    return 0


def _list(found: tuple[Sequence[ListedReceiver], Sequence[ChangedAddress]], *, form: Form) -> int:
    """Print them, and what an administrator is asked. Returns the exit status."""
    print_result(found[0], _as_json, _as_text, form=form, rows="receivers")
    for question in found[1]:
        error_line(question.question)
    return ConfigError.exit_status if found[1] else 0


def _as_json(found: Sequence[ListedReceiver]) -> Json:
    return {"receivers": list(map(_receiver_json, found))}


def _receiver_json(one: ListedReceiver) -> Json:
    sums = one.sums
    return {
        **attributes(sums.receiver, "number", "name", "address", "kind"),
        "targets": list(one.targets),
        **attributes(sums, "runs", "in_doubt"),
        "first_delivery": moment_text(sums.first_delivery),
        "last_delivery": moment_text(sums.last_delivery),
    }


def _as_text(found: Sequence[ListedReceiver]) -> Iterator[Part]:
    yield TextTable(_COLUMNS, list(map(_row, found)))


def _row(one: ListedReceiver) -> tuple[str, ...]:
    receiver, runs, in_doubt, *times = one.sums
    delivered = (moment_text(at) or "-" for at in times)
    leading = ", ".join(one.targets) or "-"
    counts = f"{runs:,}", f"{in_doubt:,}"
    return str(receiver.number), receiver.name, *receiver[2:], leading, *counts, *delivered


def _moved(one: ListedReceiver) -> str:
    number, name, address, _ = one.sums.receiver
    runs = plural(one.sums.runs, "run counts", "runs count")
    return f"receiver {number} ({name}) is now at {address}: {runs} there, and none is sent again"


def _entered(one: ListedReceiver) -> str:
    number, name, address, _ = one.sums.receiver
    what = "the next round sends everything that is wanted there"
    return f"{address} is receiver {number} ({name}): {what}"
