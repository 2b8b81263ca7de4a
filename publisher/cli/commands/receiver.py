"""`receiver`: where targets lead, and what an administrator says of it.

`same` and `new` say whether a new address is the same place, `delivered` and `deleted` what a
receiver has of months that a restored or lost ledger does not know.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from publisher.cli.commands import Context, load_part
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
from publisher.cli.parser import Form, add_action, add_actions, add_flag, add_json
from publisher.model.errors import ConfigError, RecordError
from publisher.model.receiver import ChangedAddress, Loss
from publisher.model.text import plural
from publisher.model.time import parse_month
from publisher.model.totals import month_name
from publisher.publishing.takeover import receivers
from publisher.publishing.takeover.receivers import ListedReceiver

if TYPE_CHECKING:  # loaded when it is used
    from publisher.ledger.answers import Outstanding
    from publisher.publishing.site import Site
    from publisher.publishing.takeover.delivered import TakenMonth

_COLUMNS = (
    *("number", "name", "address", "kind", "targets", "runs", "in doubt"),
    *("first delivery", "last delivery", "closed before"),
)
_OF_MONTHS = ("month", "entered", "counted", "before", "state")


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
    for name, text in (
        ("delivered", "take as delivered what a restored or lost ledger lacks, or is in doubt"),
        ("deleted", "have that sent anew: the receiver has nothing of it"),
    ):
        _add_months(add_action(actions, name, text), anyway=name == "delivered")


def _add_months(action: argparse.ArgumentParser, *, anyway: bool) -> None:
    action.add_argument("target", metavar="TARGET", help="a target of the receiver")
    text = "a month that is held, such as 2026-10, or the id of a message that is in doubt"
    action.add_argument("months", nargs="+", metavar="MONTH", help=text)
    if anyway:
        text = "also if what would count is not what counted before; it may count twice"
        add_flag(action, "--anyway", text=text)
    add_json(action)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    match arguments.action:
        case "list":
            return _list(receivers.listed(site), form=arguments.form)
        case "same":
            print_line(_moved(receivers.same(site, arguments.target)))
        case "new":
            print_line(_entered(receivers.new(site, arguments.target)))
        case "delivered" | "deleted" if all("/" in one for one in arguments.months):  # messages
            return _end_doubt(site, arguments, delivered=arguments.action == "delivered")
        case "delivered":
            return _delivered(site, arguments)
        case _:
            return _deleted(site, arguments)
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
        "closed_before": month_name(sums.closed) if sums.closed else None,
    }


def _as_text(found: Sequence[ListedReceiver]) -> Iterator[Part]:
    yield TextTable(_COLUMNS, list(map(_row, found)), "no target leads anywhere yet")


def _row(one: ListedReceiver) -> tuple[str, ...]:
    receiver, runs, in_doubt, *times, closed = one.sums
    bound = month_name(closed) if closed else "-"
    delivered = (moment_text(at) or "-" for at in times)
    leading = ", ".join(one.targets) or "-"
    counts = f"{runs:,}", f"{in_doubt:,}"
    return str(receiver.number), receiver.name, *receiver[2:], leading, *counts, *delivered, bound


def _moved(one: ListedReceiver) -> str:
    number, name, address, _ = one.sums.receiver
    runs = plural(one.sums.runs, "run counts", "runs count")
    return f"receiver {number} ({name}) is now at {address}: {runs} there, and none is sent again"


def _entered(one: ListedReceiver) -> str:
    number, name, address, _ = one.sums.receiver
    what = "the next round sends everything that is wanted there"
    return f"{address} is receiver {number} ({name}): {what}"


def _end_doubt(site: Site, arguments: argparse.Namespace, *, delivered: bool) -> int:
    """Settle messages that are in doubt. Returns the exit status."""
    end = load_part("publishing.takeover.doubt").end_doubt
    ended: list[Outstanding] = end(site, arguments.target, arguments.months, delivered=delivered)
    what = "taken as delivered" if delivered else "goes out anew with the next round"
    print_result(
        ended,
        lambda found: {
            "messages": [
                {"message_id": one.message.id, "records": one.message.records} for one in found
            ]
        },
        lambda found: [
            f"{one.message.id}: {plural(one.message.records, 'record')}: {what}" for one in found
        ],
        form=arguments.form,
        rows="messages",
    )
    return 0


def _delivered(site: Site, arguments: argparse.Namespace) -> int:
    take = load_part("publishing.takeover.delivered").take_as_delivered
    months, anyway = _months(site, arguments), arguments.anyway
    taken: Sequence[TakenMonth] = take(site, arguments.target, months, anyway=anyway)
    print_result(taken, _taken_json, _taken_text, form=arguments.form, rows="months")
    for line in _troubles(taken, arguments.target):
        error_line(line)
    is_right = all(one.is_same or (one.before is None and one.is_taken) for one in taken)
    return 0 if is_right else RecordError.exit_status


def _deleted(site: Site, arguments: argparse.Namespace) -> int:
    take = load_part("publishing.takeover.delivered").take_as_deleted
    taken: Sequence[Loss] = take(site, arguments.target, _months(site, arguments))
    names = [month_name(one.month) for one in taken]
    print_result(
        names,
        lambda found: {"deleted": found},
        lambda found: [f"{', '.join(found)}: nothing counts; the next round sends all of it anew"],
        form=arguments.form,
    )
    return 0


def _months(site: Site, arguments: argparse.Namespace) -> Sequence[int]:
    """Return the numbers of the months, each once."""
    asked = [parse_month(text, site.process.clock()).number for text in arguments.months]
    return list(dict.fromkeys(asked))


def _taken_json(taken: Sequence[TakenMonth]) -> Json:
    return {"months": list(map(_month_json, taken))}


def _month_json(one: TakenMonth) -> Json:
    return {
        "month": month_name(one.month),
        **attributes(one, "entered", "counted", "before", "is_same", "is_taken"),
    }


def _taken_text(taken: Sequence[TakenMonth]) -> Iterator[Part]:
    yield TextTable(_OF_MONTHS, [_month_row(one) for one in taken])


def _month_row(one: TakenMonth) -> tuple[str, ...]:
    before = "not known" if one.before is None else f"{one.before:,}"
    state = "taken as delivered" if one.is_taken else "held"
    return month_name(one.month), f"{one.entered:,}", f"{one.counted:,}", before, state


def _troubles(taken: Sequence[TakenMonth], target: str) -> Iterator[str]:
    """Yield what a person has to know of months that would not count as before."""
    for one in taken:
        name = month_name(one.month)
        if one.before is None and not one.is_taken:
            yield (
                f"target {target}: {name} is still held: nobody knows what the receiver should "
                f"have; if its portal shows {plural(one.counted, 'job')} of that month, and the "
                "configuration says of jobs what it said then, take it --anyway; if not, "
                f"{_other_way(target, one)}"
            )
        elif one.before is not None and not one.is_same:
            yield f"target {target}: {name}: {_difference(one.counted - one.before)}"
            if not one.is_taken:
                other = _other_way(target, one)
                yield f"target {target}: {name} is still held; {other}, or take it --anyway"


def _other_way(target: str, one: TakenMonth) -> str:
    """Return what to do with a month that is not to be taken as delivered."""
    if one.is_closed:
        return "leave it as it is, as it is closed (`keep`) and nothing of it can be sent again"
    command = f"`publisher receiver deleted {target} {month_name(one.month)}`"
    return f"have it deleted at the receiver, and run {command}"


def _difference(more: int) -> str:
    if more > 0:
        return (
            f"{plural(more, 'job')} more than before would count: some were not delivered, and "
            "nobody knows which; taken as delivered, they are never sent"
        )
    if more < 0:
        return (
            f"the accounting data lacks {plural(-more, 'job')} that the receiver should have: what "
            "they used is not known, and the next totals of their rows leave them out"
        )
    return (
        "as many jobs would count as before, but not all under the same keys with the same usage: "
        "settings or jobs have changed since; with the settings of then they may be the same: "
        "configure an earlier records.localid_prefix, for example, until the month is taken"
    )
