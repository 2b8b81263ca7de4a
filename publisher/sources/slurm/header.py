"""The columns of what sacct printed, found by their names, so that any version's can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Final

from publisher.sources.files.log_files import clean

# In the order in which they are asked for. A job's name is any text that its user likes: last, it
# cannot move the others.
COLUMNS: Final = (
    *("JobIDRaw", "JobID", "Cluster", "Partition", "Account", "QOS", "User", "State", "ExitCode"),
    *("Submit", "Eligible", "Start", "End", "ElapsedRaw", "TotalCPU", "UserCPU", "SystemCPU"),
    *("AllocCPUS", "AllocNodes", "NTasks", "NodeList", "AllocTRES", "MaxRSS", "MaxVMSize"),
    *("Suspended", "ConsumedEnergyRaw", "TimelimitRaw", "TRESUsageInTot", "JobName"),
)
FIRST: Final = "JobIDRaw"
_REQUIRED: Final = (FIRST, *("State", "Submit", "Start", "End", "ElapsedRaw", "User", "AllocTRES"))
_REQUIRED_PAIRS: Final = {"UserCPU": "TotalCPU", "SystemCPU": "TotalCPU"}
# Of versions and of files that were made by hand.
_OTHER_NAMES: Final = {"AllocCPUS": "NCPUS", "AllocNodes": "NNodes"}
# What users write, with any characters in it.
_OF_USERS: Final = frozenset(
    {
        *("JobName", "Account", "WCKey", "WorkDir", "SubmitLine", "Comment", "Extra"),
        *("StdIn", "StdOut", "StdErr", "Container", "Constraints"),
    }
)
# Characters of times, states, TRES and lists of nodes.
_IN_VALUES: Final = re.compile(r"[\w ,:=./+\[\]()%*-]+", re.ASCII)

Fields = list[str]


class NotSacct(Exception):
    """The text is not what an import can read, and why."""


class BadRow(Exception):
    """A line that cannot be understood, and why."""


def _missing_columns(there: Set[str]) -> list[str]:
    pairs = (name for name, other in _REQUIRED_PAIRS.items() if not there & {name, other})
    return list(dict.fromkeys([*(name for name in _REQUIRED if name not in there), *pairs]))


def _first_line(text: str) -> str:
    """Quote what sacct printed in place of a table, such as an error."""
    shown = clean(text[:200]).strip()
    return f"its first line is {shown!r}: it " if shown else ""


class Header:
    """The columns of a text and how they are separated."""

    def __init__(self, line: bytes) -> None:
        """Raises: NotSacct."""
        self.line_end = b"\r" if line.endswith(b"\r") else b""  # as Windows has it
        self.line = line.removesuffix(self.line_end)
        text = self.line.decode("utf-8", "replace")
        names = re.findall(r"[A-Za-z]+", text)
        if not names or names[0] != FIRST or len(names) < 2:
            raise NotSacct(
                f"{_first_line(text)}does not begin with a header whose first column is {FIRST}; "
                "make it by "
                f"`sacct --parsable2 -o {FIRST},...,JobName`, without --noheader"
            )
        self.delimiter = text[len(FIRST) : text.index(names[1], len(FIRST))]
        joined = self.delimiter.join(names)
        self.trailing = text == joined + self.delimiter  # `sacct -p`
        if not self.delimiter or (text != joined and not self.trailing):
            raise NotSacct(f"has a header that cannot be understood: {clean(text[:200])}")
        if _IN_VALUES.fullmatch(self.delimiter):
            raise NotSacct(
                f"has columns that {self.delimiter!r} separates, which is in values too; make it "
                "with another --delimiter, or without that option"
            )
        self.separator = self.delimiter.encode()
        # Of a header further down, whatever delimiter it has; not where a name could forge one.
        self.beginning = FIRST.encode() + (self.separator if len(self.separator) > 1 else b"")
        self.names = tuple(names)
        places = reversed(list(enumerate(names)))
        self._places: Mapping[str, int] = {name: place for place, name in places}
        if missing := _missing_columns(self._places.keys()):
            raise NotSacct(f"lacks the columns {', '.join(missing)}; ask sacct for them with -o")
        # Whether users can write the delimiter, and a row of their own in a text of theirs.
        self.may_be_forged = len(self.delimiter) == 1 and not _OF_USERS.isdisjoint(names)
        texts = [place for place, name in enumerate(names) if name in _OF_USERS]
        self._first_text = min(texts, default=0)
        is_name_last = names[-1] == "JobName"
        self._most = len(names) - 1 if is_name_last else -1
        # Whether a line whose end is missing has all of its other values.
        self.may_lose_end = self.trailing or is_name_last

    def shown(self, line: bytes) -> bytes:
        """A line for people, and to be known again: sacct is given another delimiter each time."""
        return line.replace(self.separator, b"|") if len(self.separator) > 1 else line

    def picked(self, names: Sequence[str]) -> Callable[[Fields], tuple[str, ...]]:
        """Picks the columns of these names out of `fields`; '' for one that is not there."""
        return itemgetter(*(self._place(name) for name in names))

    def lacks(self, text: str) -> int:
        """How many delimiters a row lacks that ends in a text of a user's; else 0."""
        there = text.count(self.delimiter)
        if not self.may_be_forged or there < self._first_text:
            return 0
        return max(0, len(self.names) - 1 + self.trailing - there)

    def _place(self, name: str) -> int:
        other = self._places.get(_OTHER_NAMES.get(name, ""), len(self.names))
        return self._places.get(name, other)

    def fields(self, text: str) -> Fields:
        """The fields of a line, and '' behind them.

        Raises: BadRow when they are not as many as the header has.
        """
        if self.trailing:
            if not text.endswith(self.delimiter):
                raise BadRow("does not end as the header does")
            text = text.removesuffix(self.delimiter)
        fields = text.split(self.delimiter, self._most)
        if len(fields) != len(self.names):
            raise BadRow(f"has {len(fields)} fields where the header has {len(self.names)}")
        fields.append("")
        return fields
