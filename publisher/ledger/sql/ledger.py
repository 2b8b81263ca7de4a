"""Puts the parts of the ledger together."""

from __future__ import annotations

from publisher.ledger.contract import Ledger
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.parts.earlier import SqlEarlier
from publisher.ledger.sql.parts.entries import SqlEntries, SqlPostings
from publisher.ledger.sql.parts.holds import SqlHolds
from publisher.ledger.sql.parts.locks import SqlCondition, SqlLocks
from publisher.ledger.sql.parts.months import SqlCounts, SqlLeft, SqlLosses
from publisher.ledger.sql.parts.opened import Opened
from publisher.ledger.sql.parts.outbox import SqlOutbox
from publisher.ledger.sql.parts.positions import SqlDatabases, SqlPositions
from publisher.ledger.sql.parts.quarantine import SqlQuarantine
from publisher.ledger.sql.parts.targets import SqlReceivers, SqlTargets


def sql_ledger(database: Database, guard: StateGuard | None = None) -> Ledger:
    """Return the ledger in a publishing database.

    `guard` compares it with what this host knows of it, before anybody works on a target.
    """
    opened = Opened(database, guard)
    return Ledger(
        locks=SqlLocks(opened),
        condition=SqlCondition(opened),
        targets=SqlTargets(opened),
        receivers=SqlReceivers(opened),
        outbox=SqlOutbox(opened),
        entries=SqlEntries(opened),
        postings=SqlPostings(opened),
        earlier=SqlEarlier(opened),
        holds=SqlHolds(opened),
        quarantine=SqlQuarantine(opened),
        positions=SqlPositions(opened),
        databases=SqlDatabases(opened),
        counts=SqlCounts(opened),
        left=SqlLeft(opened),
        losses=SqlLosses(opened),
    )
