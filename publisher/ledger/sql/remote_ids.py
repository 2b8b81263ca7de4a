"""The receiver's ids of a message's records, packed, and found again by the run's key.

Entries do not keep a job's place in its message, so each id has a tag: as few bytes of the digests
in the run's key as tell the runs of this message apart, for 50 nearly always two. SGAS numbers its
rows in order: the ids beside the tags are a few ranges, some 2 bytes a job, where the reply itself
has 85.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

from publisher.model.job import RunKey

_DIGESTS: Final = slice(4, None)  # of a run key, which begins with the submission time
_TEXTS: Final = 0x80  # in the first byte, beside the width of the tags: the ids are no numbers


def _distinct_width(keys: Collection[bytes]) -> int:
    """As few leading bytes as tell keys apart, also those of runs without an id."""
    width = 1
    while len({key[:width] for key in keys}) < len(keys):
        width += 1
    return width


def pack(named: Sequence[tuple[RunKey, str]]) -> bytes | None:
    """All runs of a message in its order, each with its id or ''; None when no id is known.

    Of a run that is named twice, the first counts.
    """
    by_key: dict[bytes, str] = {}
    for run, text in named:
        by_key.setdefault(run[_DIGESTS], text)
    known = {key: text for key, text in by_key.items() if text}
    if not known:
        return None
    width = _distinct_width(by_key)
    head = _varint(len(known)) + b"".join(key[:width] for key in known)
    if all(map(_is_number, known.values())):
        return bytes([width]) + head + _ranges(list(map(int, known.values())))
    texts = json.dumps(list(known.values()), separators=(",", ":"))
    return bytes([width | _TEXTS]) + head + texts.encode()


def find(packed: bytes | None, run: RunKey) -> str:
    """The id of the row of a run that the message carried; '' when the receiver reported none."""
    if not packed:
        return ""
    key, width = run[_DIGESTS], packed[0] & ~_TEXTS
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


def _ranges(numbers: Sequence[int]) -> bytes:
    """As ranges that count up by one: the step to each from the end of the last, and its length."""
    steps = [number - before for before, number in pairwise([0, *numbers])]
    begins = [place for place, step in enumerate(steps) if not place or step != 1]
    packed = b""
    for begin, following in pairwise([*begins, len(numbers)]):
        packed += _varint(_folded(steps[begin])) + _varint(following - begin)
    return packed


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
