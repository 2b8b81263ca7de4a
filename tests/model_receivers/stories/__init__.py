"""Random stories of CEs, administrators and faults; their play, and how a failing one shrinks.

A story is a seed, which draws the site, and a list of (event, seed): each event draws from its own seed, so that taking one
out leaves the others as they are. Every story has a restart, a purge and a change of keys. After the last event all is well,
and two rounds go by.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.model_receivers.ledgers import LedgerInSqlite, StoredLedger
from tests.model_receivers.stories.events import World

Event = tuple[str, int]
Stored = Callable[[Path], StoredLedger]

AT_CES: Final = {
    "submit": 6,
    "restart": 2,
    "resume": 1,
    "end_in_next_month": 1,
    "correct": 1,
    "other_cores": 1,
    "purge": 2,
    "renumber": 1,
    "insert_anew": 1,
    "migrate": 1,
    "wait": 3,
    "wait_a_month": 1,
}
ROUNDS: Final = {"publish": 8, "publish_in_trouble": 3, "killed": 2, "disk_full": 1}
KEYS: Final = {"benchmark": 2, "vo_rule": 3, "site_name": 1, "prefix": 1, "identity": 1}
TARGETS: Final = {
    "move_vo": 2,
    "add_target": 1,
    "rename_target": 1,
    "remove_target": 1,
    "other_format": 1,
    "other_topic": 1,
}
REPAIRS: Final = {
    "republish": 2,
    "republish_accepting": 2,
    "accept": 2,
    "ticket": 2,
    "release": 1,
    "drop": 1,
    "killed_republish": 1,
    "retire": 1,
}
STORE: Final = {"lose_store": 2, "old_store": 1}
AT_RECEIVERS: Final = {"summarise": 2, "forget_records": 1}
LEDGER: Final = (("backup", "restore"), ("backup", "restore", "answer"), ("lose_ledger",), ("lose_ledger", "answer"))
"""What happens to ledgers, each in this order, with other events in between."""


class Kinds(NamedTuple):
    """Which events a story is made of, how many at most, and how it is drawn.

    `gentle`: nothing happens to a job before it was delivered, no two jobs share local id and end, one target has all VOs.
    """

    events: dict[str, int]
    longest: int
    gentle: bool


FULL: Final = Kinds(AT_CES | ROUNDS | STORE | KEYS | TARGETS | REPAIRS | AT_RECEIVERS, longest=4, gentle=False)


def story(seed: int, kinds: Kinds = FULL, *, keeps: bool = False) -> list[Event]:
    """Return a story; `keeps`: in which months are closed."""
    chance = random.Random(seed)
    names, weights = list(kinds.events), list(kinds.events.values())
    events = chance.choices(names, weights, k=chance.randint(1, kinds.longest))
    must = [name for name in ("restart", "purge") if name in kinds.events]
    events += [*must, "publish", *chance.choices(list(KEYS), list(KEYS.values()))]
    chance.shuffle(events)
    told = [(name, chance.randrange(10**9)) for name in ("submit", "publish", *events)]
    return _with_ledger(told, random.Random(f"{seed} ledger"), keeps=keeps)


def _with_ledger(told: list[Event], chance: random.Random, *, keeps: bool) -> list[Event]:
    """Add what happens to the ledger to some stories; the others, and the rest of these, stay as they are."""
    drawn = chance.random()
    if drawn < 0.6 and not keeps:
        return told
    happens = ("keep",) * chance.choice((1, 1, 2)) if drawn < 0.7 or keeps else chance.choice(LEDGER)
    places = sorted(chance.randrange(2, len(told) + 1) for _ in happens)
    for place, name in reversed(list(zip(places, happens, strict=True))):
        told.insert(place, (name, chance.randrange(10**9)))
    return told


def play(
    seed: int,
    events: Sequence[Event],
    *,
    gentle: bool = False,
    told: Callable[[str, World], None] | None = None,
    stored: Stored = LedgerInSqlite,
) -> list[str]:
    """Play a story to its end, and return what is wrong then. `told` hears of each step, `stored` makes the ledger."""
    tell = told or (lambda step, world: None)
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="story-", dir=memory if memory.is_dir() else None))
    ledger = stored(folder)
    try:
        world = World(folder, seed, ledger, gentle=gentle)
        for name, own in events:
            getattr(world, name)(random.Random(own))
            tell(name, world)
        wrong = world.end()
        tell("the end", world)
        return wrong
    finally:
        ledger.close()
        shutil.rmtree(folder, ignore_errors=True)


def outcome(seed: int, events: Sequence[Event], *, gentle: bool = False, stored: Stored = LedgerInSqlite) -> list[str]:
    """Return what is wrong at the end of a story; an exception is a kind of its own."""
    try:
        return play(seed, events, gentle=gentle, stored=stored)
    except Exception as error:  # noqa: BLE001  # a bug in the product, counted as what it is
        where = str(error).strip().splitlines() or [""]
        return [f"BUG {type(error).__name__}: {where[-1][:120]}"]


def shrunk(
    seed: int, events: Sequence[Event], kind: str, *, gentle: bool = False, stored: Stored = LedgerInSqlite
) -> list[Event]:
    """Return the fewest events of a story that still end with this kind of failure."""
    small = list(events)
    size = max(1, len(small) // 2)
    while size:
        at = 0
        while at < len(small):
            less = small[:at] + small[at + size :]
            if kind in outcome(seed, less, gentle=gentle, stored=stored):
                small = less
            else:
                at += size
        size //= 2
    return small
