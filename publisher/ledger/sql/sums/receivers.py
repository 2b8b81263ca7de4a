"""Receivers: which one an address is, and what becomes of a target whose address changes.

An address that no receiver has makes a new one for a target that has not delivered before. Of a
target that has, only an administrator knows whether the service moved or this is another place.
Everything that writes runs inside the caller's transaction.
"""

from __future__ import annotations

from typing import Final

from publisher.ledger.sql.database import Database
from publisher.model.entry import ReceiverName
from publisher.model.errors import ConfigError
from publisher.model.receiver import ChangedAddress, KnownReceiver, ReceiverSums, name_of
from publisher.model.time import moment

_RECEIVER: Final = "SELECT receiver.id, receiver.name, place, kind FROM receiver"
_AT: Final = f"{_RECEIVER} WHERE place = :place"
_OF_TARGET: Final = f"""{_RECEIVER} JOIN target ON target.receiver = receiver.id
WHERE target.name = :target"""
# Or may have; a message that was given up is none any more. It is asked where an address changed.
_HAS_DELIVERED: Final = """
SELECT EXISTS (SELECT 1 FROM message WHERE id > 0 AND receiver = :receiver AND state <> 3
               AND target = (SELECT target.id FROM target WHERE target.name = :target))"""
_RUNS: Final = """
SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT)
FROM row_key JOIN balance ON balance.row_key = row_key.id WHERE row_key.receiver = :receiver"""
_NAMES: Final = "SELECT name FROM receiver"
_ENTER: Final = """
INSERT INTO receiver (name, kind, place, keeps_first) VALUES (:name, :kind, :place, :keeps_first)"""
_SET_RULE: Final = """
UPDATE receiver SET keeps_first = :keeps_first
WHERE id = :receiver AND keeps_first <> :keeps_first"""
_READDRESS: Final = """
UPDATE receiver SET place = :place, kind = :kind
WHERE id = (SELECT target.receiver FROM target WHERE target.name = :target)"""
# Everything is compared once, as for a target that is new.
_LEAD: Final = "UPDATE target SET receiver = :receiver, swept = NULL WHERE name = :target"
_ALL: Final = f"{_RECEIVER} ORDER BY receiver.id"
_IN_DOUBT: Final = """
SELECT CAST(coalesce(sum(records), 0) AS BIGINT) FROM message
WHERE receiver = :receiver AND state < 2"""
_CLOSED: Final = "SELECT closed FROM receiver WHERE id = :receiver"
_DELIVERIES: Final = """
SELECT receiver, min(settled_at), max(settled_at) FROM message
WHERE id > 0 AND state = 2 GROUP BY receiver"""


def closed(database: Database, receiver: int | None) -> int:
    """Return the month before which all are closed at a receiver; 0 where none is."""
    found = database.execute(_CLOSED, {"receiver": receiver}).fetchone()
    return 0 if found is None else int(found[0])


def at(database: Database, place: str) -> KnownReceiver | None:
    """Return the receiver that has an address."""
    found = database.execute(_AT, {"place": place}).fetchone()
    return None if found is None else KnownReceiver(*found)


def of_target(database: Database, target: str) -> KnownReceiver | None:
    """Return the receiver to which the last round of a target led."""
    found = database.execute(_OF_TARGET, {"target": target}).fetchone()
    return None if found is None else KnownReceiver(*found)


def changed(database: Database, target: str, named: ReceiverName) -> ChangedAddress | None:
    """Return what an administrator has to say of a target's address; None where that is known.

    A shadow sends nothing, so neither its address is asked for nor the one that it has afterwards.
    """
    was = of_target(database, target)
    if was is None or was.is_shadow or named.is_shadow or at(database, named.place) is not None:
        return None
    asked = {"target": target, "receiver": was.number}
    if not database.execute(_HAS_DELIVERED, asked).fetchone()[0]:
        return None
    return ChangedAddress(target, was, _runs(database, was.number), named.place)


def _runs(database: Database, receiver: int) -> int:
    return int(database.execute(_RUNS, {"receiver": receiver}).fetchone()[0])


def entered(database: Database, target: str, named: ReceiverName) -> KnownReceiver:
    """Return a target's receiver, which is entered if it is new.

    Raises: ConfigError where an administrator has to say which receiver it is.
    """
    there = at(database, named.place)
    if there is None:
        if (question := changed(database, target, named)) is not None:
            raise ConfigError(question.question)
        return _enter(database, target, named)
    rule = {"receiver": there.number, "keeps_first": named.keeps_first}
    database.execute(_SET_RULE, rule)
    return there


def _enter(database: Database, target: str, named: ReceiverName) -> KnownReceiver:
    taken = frozenset(name for (name,) in database.execute(_NAMES).fetchall())
    name = name_of(target, taken)
    number = database.insert_returning_id(_ENTER, {"name": name, **named._asdict()})
    return KnownReceiver(number, name, named.place, named.kind)


def readdress(database: Database, target: str, named: ReceiverName) -> None:
    """Let the receiver of a target have another address: the service moved."""
    at_address = {"place": named.place, "kind": named.kind, "target": target}
    database.execute(_READDRESS, at_address)


def enter_for(database: Database, target: str, named: ReceiverName) -> None:
    """Enter a new receiver, to which a target leads from now on."""
    there = _enter(database, target, named)
    database.execute(_LEAD, {"receiver": there.number, "target": target})


def known(database: Database) -> list[KnownReceiver]:
    """Return all receivers in the order of their numbers."""
    return [KnownReceiver(*row) for row in database.execute(_ALL).fetchall()]


def listed(database: Database) -> list[ReceiverSums]:
    """Return all receivers with what counts there, in the order of their numbers."""
    times = {receiver: ends for receiver, *ends in database.execute(_DELIVERIES).fetchall()}
    found = []
    for receiver in known(database):
        (in_doubt,) = database.execute(_IN_DOUBT, {"receiver": receiver.number}).fetchone()
        first, last = times.get(receiver.number, (None, None))
        runs = _runs(database, receiver.number)
        bound = closed(database, receiver.number)
        found.append(ReceiverSums(receiver, runs, in_doubt, moment(first), moment(last), bound))
    return found
