"""YAML into a tree whose every node knows its line, and the list of what is wrong.

Nothing is typed here: a scalar stays the text that was written, so that a VO called `no` and a version `0.10` survive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from publisher.model.errors import ConfigError


class Place(NamedTuple):
    """Where something is written: line (from 1; 0 is the file as a whole) and path of keys."""

    line: int
    path: str

    def under(self, name: str, line: int) -> Place:
        return Place(line=line, path=f"{self.path}.{name}" if self.path else name)


class Text(NamedTuple):
    """A scalar as it was written. `null` when nothing, `~` or `null` was."""

    place: Place
    text: str
    null: bool


class Listing(NamedTuple):
    """A list."""

    place: Place
    entries: tuple[Node, ...]


class YamlBlock(NamedTuple):
    """A mapping; the line of each node in it is the line of its key."""

    place: Place
    keys: Mapping[str, Node]


Node = Text | Listing | YamlBlock


class Problems:
    """What is wrong with one file, collected so that everything is reported at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[tuple[Place, str]] = []
        self._hopeless: set[Place] = set()

    def add(self, place: Place, what: str, *, hopeless: bool = False) -> None:
        """Note a problem; after a hopeless one, what else is found at that place is only its consequence."""
        if place not in self._hopeless:
            self._found.append((place, what))
        if hopeless:
            self._hopeless.add(place)

    def lines(self) -> tuple[str, ...]:
        """`FILE:LINE: key.path: what is wrong`, in the order of the file."""
        ordered = sorted(self._found, key=lambda found: found[0].line)
        return tuple(dict.fromkeys(self._line(place, what) for place, what in ordered))

    def stop(self) -> None:
        """Raises: ConfigError listing everything that was found, when anything was."""
        if self._found:
            raise ConfigError(self.lines())

    def _line(self, place: Place, what: str) -> str:
        where = f"{self.file}:{place.line}" if place.line else self.file
        return f"{where}: {place.path}: {what}" if place.path else f"{where}: {what}"


def closest(name: str, valid: Collection[str]) -> str | None:
    """The valid name that was probably meant: case, and `-` for `_`, do not count."""
    plain = {known.lower().replace("_", "-"): known for known in valid}
    close = get_close_matches(name.lower().replace("_", "-"), plain, n=1, cutoff=0.6)
    if close:
        return plain[close[0]]
    begun = [known for known in valid if len(name) > 2 and known.startswith(name.lower())]
    return begun[0] if len(begun) == 1 else None


def nearest(name: str, valid: Collection[str]) -> str:
    """Advice for a name that is not valid: the nearest one that is, else those there are."""
    meant = closest(name, valid)
    if meant is not None:
        return f"did you mean {meant!r}?"
    return f"valid here: {', '.join(valid)}" if valid else "nothing is valid here"
