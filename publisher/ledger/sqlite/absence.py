"""Which keys surely do not stand in some stretches: a bit for each beginning of a key, so that new jobs are not looked up.

A look-up in a leaf takes 3 µs, and nearly every job of a round is new: for 10,000,000 jobs and some stretches that would
be minutes. Keys are digests, so their first bits are spread evenly: of 1,000,000 entries one stranger in seventy is looked
up in vain, of 10,000,000 one in seven.

Only for stretches that this process has written; nothing is read to make one. It never says that a key is there: the leaf
does. One for all stretches of a target, so that a merge need not enter again what it merges: entry by entry that was a third
of a merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from publisher.ledger.sqlite.membership import ENTRY_BYTES, KEY_BYTES
from publisher.model.job import JobKey

_HEAD_BYTES: Final = 4
_HEADS: Final = Struct(f">I{ENTRY_BYTES - _HEAD_BYTES}x")
_KEY_HEADS: Final = Struct(f">I{KEY_BYTES - _HEAD_BYTES}x")
_BITS: Final = 26  # of a beginning: 8 MiB
_SHIFT: Final = 8 * _HEAD_BYTES - _BITS


class Absence:
    """The beginnings of the keys of all entries of the stretches in `covers`, and perhaps of others."""

    def __init__(self) -> None:
        self.covers: frozenset[int] = frozenset()
        self._bits = bytearray(1 << (_BITS - 3))

    def add(self, packed: bytes) -> None:
        """These entries stand in a stretch, or are about to."""
        bits = self._bits
        for (beginning,) in _HEADS.iter_unpack(packed):
            at = beginning >> _SHIFT
            bits[at >> 3] |= 1 << (at & 7)

    def perhaps(self, keys: Sequence[JobKey]) -> list[JobKey]:
        """Those of the keys that may stand in a stretch that it covers."""
        bits = self._bits
        beginnings = _KEY_HEADS.iter_unpack(b"".join(keys))
        return [
            key
            for key, (beginning,) in zip(keys, beginnings, strict=True)
            if bits[(at := beginning >> _SHIFT) >> 3] >> (at & 7) & 1
        ]
