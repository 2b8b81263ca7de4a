"""Why something is done about runs and rows: every condition, with the sentence that people read.

What adds, changes, retracts, empties, holds back or sets aside is listed here once. Rules that a
format has for its records are in the format; a plan names the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from publisher.model.job import Epoch
from publisher.model.text import plural
from publisher.model.time import iso_epoch
from publisher.model.totals import SINGLE_RECORDS, BlockedMonth, GroupedRows, RestoredMonth
from publisher.publishing.plan.actions import Action, Kind

ADD: Final = Action(Kind.ADD, "the receiver does not have them yet")
OWN_DATA: Final = Action(Kind.CHANGE, "their own data changed after they were sent")
OTHER_SETTINGS: Final = Action(Kind.CHANGE, "they were sent under other settings")
COUNT_AGAIN: Final = Action(Kind.CHANGE, "they were taken out, and are wanted again")
RELEASED: Final = Action(Kind.CHANGE, "an administrator released them from quarantine")
KEEP: Final = Action(Kind.KEEP, "the receiver has them as they are")
UNDER_WAY: Final = Action(Kind.KEEP, "they are on their way to the receiver")
SENT_BY_JURA: Final = Action(
    Kind.KEEP, "another publisher sent them: only `republish` changes that"
)
BELIEVED: Final = Action(
    Kind.CHANGE, "another publisher may have sent them: they go out once more, as it sent them"
)
SAY_AGAIN: Final = Action(Kind.CHANGE, "the last accepted message has other numbers for the row")
RETRACT: Final = Action(Kind.RETRACT, "no target of the receiver wants them any more")
EMPTY: Final = Action(Kind.EMPTY, "the row loses its last job: a record of zeros empties it")
MAY_LACK: Final = "the ledger was restored or lost, and lacks what counted of this month before"
MAY_BE_PURGED: Final = (
    "the receiver may have purged the records of their rows, and not all of these can be sent again"
)
MAY_BE_DELIVERED: Final = "the ledger was restored or lost, and they may be delivered already"


def may_be_summed_up(closed_until: Epoch) -> str:
    """Return why a run is set aside that was submitted in months that are closed."""
    return (
        f"it was submitted before {iso_epoch(closed_until)}, and months are closed until then "
        "(`keep`): what counts of them is known by sums, no longer by run, so it may be delivered "
        "already; release it only if the receiver does not have it"
    )


def set_aside(rule: str) -> Action:
    """Return the action for a job that breaks a rule."""
    return Action(Kind.SET_ASIDE, f"they break the rule {rule}")


def row_sent_again(row: GroupedRows) -> Action:
    """Return the action for a row that goes out with zeros, or though no run of it changed."""
    if not row.counts.jobs:
        return EMPTY
    if any(one.is_guess for one in row.rows):
        return BELIEVED
    return SAY_AGAIN if row.counts != row.sent else KEEP


def held_month(month: BlockedMonth) -> Action:
    """Return the action for jobs and rows of a month that waits for an administrator."""
    return Action(Kind.HOLD, _why_held(month))


def _why_held(month: BlockedMonth) -> str:
    if month.restored is not None:
        return MAY_LACK if month.restored.differs else MAY_BE_DELIVERED
    if month.was:
        has = f"the receiver has {_kind(month.was)} of this month"
        if month.lost_jobs:
            return f"{has}, and {plural(month.lost_jobs, 'job')} of these cannot be sent again"
        return f"{has}, and what was asked for would count in addition"
    if month.purged:
        return MAY_BE_PURGED
    if month.emptied:
        return "rows would be emptied whose jobs come under other keys, or are not wanted any more"
    if month.lost_jobs:
        return "the receiver would lose jobs, and keep their rows"
    return "rows there would lose their last job, stay, and count in addition to the new ones"


def dwarfs(rows: int, delivered: int, target: str) -> str:
    """Return why a window is not sent that has far more jobs than were ever delivered."""
    times = f"{rows // delivered} times what was ever delivered to {target}"
    return f"the window has {rows:,} jobs, {times}"


def contradicts(runs: int, target: str) -> str:
    """Return why a window is not sent of which nothing was delivered when the target was served."""
    return (
        f"none of the first {runs} jobs of the window was ever delivered to {target}, "
        "though it was served at that time: is this the right accounting database?"
    )


def braked(brake: str) -> str:
    """Return why a republish was stopped by its brake, and how it goes on."""
    return f"{brake}; --no-brake sends anyway"


def settings_changed(target: str) -> str:
    """Return why a republish ends that was planned under other settings than another one sends."""
    return f"the settings changed for {target} since this was planned: run the command again"


def same_record(site: str, local_id: str, ended_at: Epoch) -> str:
    """Return why a run is set aside whose record would replace that of another run."""
    return (
        f"another run was published as site {site}, local id {local_id}, "
        f"end {iso_epoch(ended_at)}, and one record would replace the other "
        "at the receiver; if both count, publish the jobs of one of the batch systems "
        "with a localid_prefix"
    )


OTHER_RUN_UNDER_WAY: Final = "another run of the job is on its way; the next round sends this one"


def held_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months are held back, in one line; '' when none is."""
    restored = [month for month in held if month.restored is not None]
    purged = [month for month in held if month.purged]
    whole = [month for month in held if month.was and month.lost_jobs]
    apart = [*restored, *purged, *whole]
    others = [month for month in held if month not in apart]
    of_others = _kind_reason(whole), _rows_reason(others)
    reasons = _restored_reason(restored), _purged_reason(purged), *of_others
    return "; ".join(filter(None, reasons))


def _restored_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months are held back whose ledger was restored, or lost."""
    months = {one.name: one.restored for one in held if one.restored is not None}
    if not months:
        return ""
    noticed = iso_epoch(max(one.noticed_at for one in months.values()))
    differ = {name: one for name, one in months.items() if one.differs}
    found = f"the ledger was restored or lost, as a round found at {noticed}"
    parts = [f"of {name} {_should_have(one)}" for name, one in differ.items()]
    waiting = sum(one.waiting for one in months.values())
    if waiting:
        wait = "waits" if waiting == 1 else "wait"
        parts.append(f"{plural(waiting, 'job')} that may be delivered {wait}")
    if not differ:
        return f"held back: {found}: {', '.join(parts)} until the months that differ are solved"
    name = next(iter(months.values())).target
    ways = (
        f"held back: {found}: {', '.join(parts)}; if the receiver's portal shows that, `publisher "
        f"receiver delivered {name} {' '.join(differ)}` takes these months as delivered"
    )
    closed = [month for month, one in differ.items() if one.is_closed]
    if is_open := " ".join(month for month in differ if month not in closed):
        ways += (
            f"; or have all of {is_open} deleted there for your site, and then "
            f"`publisher receiver deleted {name} {is_open}` has that sent anew"
        )
    if closed:
        has = "is" if len(closed) == 1 else "are"
        ways += f"; {', '.join(closed)} {has} closed (`keep`), and cannot be sent again"
    return ways


def _purged_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months are held back of which the receiver may have purged job records."""
    if not held:
        return ""
    names = ", ".join(month.name for month in held)
    rows = plural(sum(len(month.orphaned) for month in held), "row")
    jobs = plural(sum(month.lost_jobs for month in held), "job")
    return (
        f"held back: {names}: the receiver may have purged the job records of {rows}, and would "
        f"make these again without {jobs} that cannot be sent again; if it keeps the records of "
        "these months, raise `single_months` of the target"
    )


def _kind_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months stay as they are that should go over to another kind."""
    if not held:
        return ""
    names = ", ".join(month.name for month in held)
    jobs = plural(sum(month.lost_jobs for month in held), "job")
    return (
        f"held back: {names}: {jobs} of what the receiver has cannot be sent again, as they are "
        f"set aside or gone from the accounting data; a month goes over to another format whole, "
        "or stays in its own"
    )


def _should_have(month: RestoredMonth) -> str:
    has = f"the ledger has {plural(month.counted, 'job')}"
    if month.jobs is None:
        return f"{has}, and what the receiver should have is not known"
    return f"the receiver should have {plural(month.jobs, 'job')}, {has}"


def _rows_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months are held back of which rows would stay at the receiver, or be lost."""
    if not held:
        return ""
    names = ", ".join(month.name for month in held)
    orphaned = sum(len(month.orphaned) for month in held)
    lost = sum(month.lost_jobs for month in held)
    others = sorted(month.name for month in held if month.was)
    if all(month.emptied for month in held):
        return (
            f"held back: {names}: other settings put jobs under other keys of "
            f"the receiver: {plural(orphaned, 'row')} there would be emptied, "
            f"{plural(lost, 'job')} would be lost; --accept-key-change sends them, with a record "
            "of zeros for each of those rows: no ticket is needed"
        )
    remedy = "--accept-key-change sends anyway"
    if others:
        kinds = " and ".join(sorted({_kind(month.was) for month in held if month.was}))
        remedy = (
            f"of {', '.join(others)} the receiver has {kinds}: `publisher republish "
            f"--from {others[0]} --to {others[-1]} --accept-key-change` sends these months instead"
        )
    what = ": ".join(filter(None, (names, ", ".join(_effects(orphaned, lost)))))
    return f"held back: {what}; {remedy}"


def _kind(was: str) -> str:
    """Return what the receiver has of a month."""
    return "single records" if was == SINGLE_RECORDS else f"totals in {was}"


def _effects(orphaned: int, lost: int) -> list[str]:
    """Return what sending anyway would do at the receiver, to so many rows and jobs."""
    effects = []
    if orphaned:
        twice = "would stay at the receiver in addition to the new ones and count twice"
        effects.append(f"{plural(orphaned, 'row')} {twice}")
    if lost:
        effects.append(f"{plural(lost, 'job')} would be lost there")
    return effects
