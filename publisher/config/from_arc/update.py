"""`config from-arc --update`: a page that is made again, with what an administrator changed in it.

A merge of three texts by lines: the page as it was made before, as it was changed since, and as it
is made now. Of the first only a digest of each line is kept, in comments at the end of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import sha256
from typing import Final, NamedTuple

from publisher.model.errors import UsageError
from publisher.model.text import shown

HEADING: Final = "# The lines above as they were made, for `publisher config from-arc --update`:"
_PREFIX: Final = "#   "
_DIGEST_CHARACTERS: Final = 8
_DIGESTS_A_LINE: Final = 12
_COMMENTED: Final = re.compile(r"^#  (\S+):  # \[(arex/jura/[^\]]+)\]$", re.MULTILINE)


class Updated(NamedTuple):
    """The text, and what ARC says otherwise where a changed line was kept."""

    text: str
    kept: Sequence[str]


def with_digests(page: str) -> str:
    """The page with what a later update needs to know which lines were changed."""
    digests = [_digest(line) for line in page.splitlines()]
    rows = [digests[at : at + _DIGESTS_A_LINE] for at in range(0, len(digests), _DIGESTS_A_LINE)]
    return "\n".join([page, HEADING, *(f"{_PREFIX}{' '.join(row)}" for row in rows), ""])


def update(changed: str, page: str) -> Updated:
    """The changed text with the page's news. Raises: UsageError for a text that was no page."""
    above, heading, below = changed.partition(f"{HEADING}\n")
    if not heading:
        what = "was not made by `publisher config from-arc` of this version"
        raise UsageError(f"{what}: there is nothing to update")
    base = below.replace(_PREFIX, "").split()
    lines, kept = _merged(base, above.rstrip("\n").splitlines(), page.splitlines())
    return Updated(text=f"{chr(10).join(lines)}\n{with_digests(page)[len(page) :]}", kept=kept)


def _digest(line: str) -> str:
    return sha256(line.rstrip().encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _merged(
    base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]
) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    kept: list[str] = []
    at = (0, 0, 0)
    for region in _common(base, mine, theirs):
        parts = base[at[0] : region[0]], mine[at[1] : region[1]], theirs[at[2] : region[2]]
        for one in _line_by_line(*parts):
            _choose(one, lines, kept)
        length = region[3]
        lines += mine[region[1] : region[1] + length]
        at = region[0] + length, region[1] + length, region[2] + length
    return lines, kept


def _common(
    base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]
) -> Iterator[tuple[int, int, int, int]]:
    """Runs of lines that all three have: where they begin, and how many; at last the end of all."""
    ours = _matches(base, mine)
    others = _matches(base, theirs)
    for at, in_mine, length in ours:
        for other_at, in_theirs, other_length in others:
            first, last = max(at, other_at), min(at + length, other_at + other_length)
            if first < last:
                yield first, in_mine + first - at, in_theirs + first - other_at, last - first
    yield len(base), len(mine), len(theirs), 0


def _matches(base: Sequence[str], lines: Sequence[str]) -> list[tuple[int, int, int]]:
    digests = [_digest(line) for line in lines]
    found = SequenceMatcher(None, base, digests, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in found]


_Parts = tuple[Sequence[str], Sequence[str], Sequence[str]]


def _line_by_line(
    base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]
) -> Iterator[_Parts]:
    """As many lines in each: they are the same lines, each changed by one of the two or by both."""
    if len(base) == len(mine) == len(theirs):
        for old, ours, new in zip(base, mine, theirs, strict=True):
            yield [old], [ours], [new]
    else:
        yield base, mine, theirs


def _choose(parts: _Parts, lines: list[str], kept: list[str]) -> None:
    """What was not changed becomes what it is now; what was, stays."""
    base, mine, theirs = map(list, parts)
    if [_digest(line) for line in mine] == base:
        lines += theirs
        return
    lines += mine
    if [_digest(line) for line in theirs] != base and theirs != mine:
        kept += [shown(line.strip()) for line in theirs if line not in mine]


def commented_targets(text: str) -> list[tuple[str, str]]:
    """Name and block of each target that was written as a comment, and still is one."""
    return _COMMENTED.findall(text)
