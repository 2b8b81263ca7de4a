"""Which keys surely do not stand in a stretch: a bit for each beginning of a key, so that new jobs are not looked up.

A look-up in a leaf takes 3 µs, and nearly every job of a round is new: for 10,000,000 jobs and six stretches that
would be three minutes. Keys are digests, so their first bits are spread evenly and the bits of one in eight to one in
sixteen beginnings are set: so few strangers are looked up in vain.

Only for stretches that this process has written, entry by entry; nothing is read to make one. It never says that a key
is there: the leaf does.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from publisher.ledger.membership import ENTRY_BYTES, KEY_BYTES
from publisher.model.job import JobKey

HEAD_BITS: Final = 32
_HEADS: Final = Struct(f">I{ENTRY_BYTES - HEAD_BITS // 8}x")
_KEY_HEADS: Final = Struct(f">I{KEY_BYTES - HEAD_BITS // 8}x")
_SPARSE: Final = 8  # bits for each entry at least,
_MOST_BITS: Final = 26  # up to 8 MiB: of 10,000,000 entries one stranger in seven is looked up in vain


def heads(keys: Sequence[bytes]) -> list[int]:
    """The beginnings of keys, as `Absence` asks for them."""
    return [beginning for (beginning,) in _KEY_HEADS.iter_unpack(b"".join(keys))]


class Absence:
    """The beginnings of the keys of so many entries."""

    def __init__(self, count: int) -> None:
        bits = min(_MOST_BITS, max(3, (count * _SPARSE - 1).bit_length()))
        self._shift = HEAD_BITS - bits
        self._bits = bytearray(1 << (bits - 3))

    def add(self, leaf: bytes) -> None:
        """The entries of a leaf stand in the stretch."""
        bits, shift = self._bits, self._shift
        for (beginning,) in _HEADS.iter_unpack(leaf):
            at = beginning >> shift
            bits[at >> 3] |= 1 << (at & 7)

    def perhaps(self, keys: Sequence[JobKey], heads: Sequence[int]) -> list[JobKey]:
        """Those of the keys whose beginnings, which stand in `heads`, some key of the stretch has."""
        bits, shift = self._bits, self._shift
        return [key for key, head in zip(keys, heads, strict=True) if bits[(at := head >> shift) >> 3] >> (at & 7) & 1]
