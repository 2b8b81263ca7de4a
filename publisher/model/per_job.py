"""Dataclasses of which one or more are made for every job.

For the type checker they are frozen, like all our dataclasses. When the program runs they only have slots: a frozen one
sets its fields by a call each, 60 ns, and 85 fields are set for a job (measured on Python 3.11: 4 of 45 µs).

The small ones that are made on the way from a job to its message take their values by place: for keywords the interpreter makes
a dictionary each time, 40 ns a field (1 of 30 µs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as per_job
else:
    from dataclasses import dataclass

    def per_job(*, frozen, **options):
        """As `dataclass`, with the same equality and hash."""
        return dataclass(frozen=False, unsafe_hash=frozen, **options)


__all__ = ["per_job"]
