"""The receiver's own ids of a message's rows, packed, and found again by the run's key. Pure functions over bytes.

Entries do not keep a job's place in its message, so each id stands under a tag: as few leading bytes of the run's key as tell
the runs of this message apart, for 50 nearly always two. SGAS numbers its rows in order, so that the ids beside the tags
are a few stretches: 2.2 bytes a job in messages of 50 (measured), where the reply itself has 85.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from publisher.model.job import JobKey

_TEXTS: Final = 0x80  # in the first byte, beside the width of the tags: the ids are no plain numbers


def pack(named: Sequence[tuple[JobKey, str]]) -> bytes | None:
    """All runs of a message in its order, each with its id or ''; None when no id is known.

    Of a run that is named twice, the first counts.
    """
    by_key: dict[JobKey, str] = {}
    for key, text in named:
        by_key.setdefault(key, text)
    known = {key: text for key, text in by_key.items() if text}
    if not known:
        return None
    # Also told apart from the runs without an id: those must not be found under another's tag.
    width = next(width for width in count(1) if len({key[:width] for key in by_key}) == len(by_key))
    head = _varint(len(known)) + b"".join(key[:width] for key in known)
    if all(_is_number(text) for text in known.values()):
        return bytes([width]) + head + _stretches([int(text) for text in known.values()])
    return bytes([width | _TEXTS]) + head + json.dumps(list(known.values()), separators=(",", ":")).encode()


def find(packed: bytes | None, key: JobKey) -> str:
    """The id of the row of a run that the message carried; '' when the receiver told none."""
    if not packed:
        return ""
    width = packed[0] & ~_TEXTS
    tags, at = _read_varint(packed, 1)
    ids = at + tags * width
    for place in range(tags):
        if packed[at + place * width : at + (place + 1) * width] == key[:width]:
            if packed[0] & _TEXTS:
                return str(json.loads(packed[ids:])[place])
            return str(_number_at(packed[ids:], place))
    return ""


def _is_number(text: str) -> bool:
    """Whether the text comes back byte for byte from the number that it spells."""
    return len(text) < 20 and text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


def _stretches(numbers: Sequence[int]) -> bytes:
    """Numbers as stretches that count up by one: how far each begins from the end of the last, and how long it is."""
    begins = [place for place, number in enumerate(numbers) if not place or number != numbers[place - 1] + 1]
    packed = []
    for begin, following in zip(begins, [*begins[1:], len(numbers)], strict=True):
        packed += [_varint(_folded(numbers[begin] - (numbers[begin - 1] if begin else 0))), _varint(following - begin)]
    return b"".join(packed)


def _number_at(packed: bytes, place: int) -> int:
    for first, length in _unpacked(packed):
        if place < length:
            return first + place
        place -= length
    raise ValueError("row ids end before their last place")


def _unpacked(packed: bytes) -> Iterator[tuple[int, int]]:
    at = last = 0
    while at < len(packed):
        step, at = _read_varint(packed, at)
        length, at = _read_varint(packed, at)
        first = last + (-(step + 1 >> 1) if step & 1 else step >> 1)
        yield first, length
        last = first + length - 1


def _folded(step: int) -> int:
    """Steps of either sign as numbers from 0 on, small ones small."""
    return step << 1 if step >= 0 else -(step << 1) - 1


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    packed = b""
    while number > 0x7F:
        packed += bytes([number & 0x7F | 0x80])
        number >>= 7
    return packed + bytes([number])


def _read_varint(packed: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    number = shift = 0
    while True:
        octet = packed[at]
        at += 1
        number |= (octet & 0x7F) << shift
        shift += 7
        if not octet & 0x80:
            return number, at
