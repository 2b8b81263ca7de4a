"""The nouns that every package uses: job, policy, message, target, time. Pure; imports nothing of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as per_job
else:
    from dataclasses import dataclass

    def per_job(*, frozen, **options):
        """As `dataclass`, with the same equality and hash: frozen for the type checker, without its cost at run time.

        For dataclasses of which one or more are made for every job (hot path).
        """
        return dataclass(frozen=False, unsafe_hash=frozen, **options)


__all__ = ["per_job"]
