"""One value at a time: from the text in the file to what the settings hold, or what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from publisher.config.tree import Block, Listing, Node, Place, Problems, Text, nearest

Choice = TypeVar("Choice", bound=StrEnum)

CREDENTIALS_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"
_CREDENTIAL: Final = re.compile(r"\$(?:\{CREDENTIALS_DIRECTORY\}|CREDENTIALS_DIRECTORY)/([^/]+)")
# Eighteen digits fit 64 bits; leading zeros would be octal to some readers of YAML and decimal to others.
_WHOLE: Final = re.compile(r"[+-]?(?:0|[1-9][0-9_]{0,17})", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([smhdw]?)", re.ASCII)
_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Wrong(Exception):
    """What is wrong with a value and what to write instead; it becomes a problem at the value's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What reading needs beside the text: where problems go, the environment, and where relative paths start."""

    problems: Problems
    environment: Mapping[str, str]
    folder: Path

    def wrong(self, place: Place, what: str) -> None:
        self.problems.add(place, what)


def scalar(node: Node, wanted: str) -> str:
    """The text of a scalar. Raises: Wrong for a list, a mapping or nothing."""
    if not isinstance(node, Text):
        raise Wrong(f"is a {'list' if isinstance(node, Listing) else 'mapping'}; it must be {wanted}")
    if node.null:
        raise Wrong(f"has no value; it must be {wanted}")
    return node.text


def quoted(text: str) -> str:
    """The text for a message, not longer than one can read."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def whole_number(node: Node) -> int:
    text = scalar(node, "a whole number")
    if not _WHOLE.fullmatch(text):
        raise Wrong(f"{quoted(text)} is not a whole number; write digits only, such as 500")
    return int(text)


def number(node: Node) -> float:
    text = scalar(node, "a number")
    if not _NUMBER.fullmatch(text):
        raise Wrong(f"{quoted(text)} is not a number; write it as 1.5")
    return float(text)


def truth(node: Node) -> bool:
    text = scalar(node, "true or false")
    value = _TRUTH.get(text.lower())
    if value is None:
        raise Wrong(f"{quoted(text)} is neither true nor false")
    return value


def duration_s(node: Node) -> float:
    """Seconds."""
    text = scalar(node, "a time such as 24h")
    found = _DURATION.fullmatch(text)
    if not found:
        raise Wrong(f"{quoted(text)} is not a length of time; write 90s, 30m, 24h or 7d (a bare number is seconds)")
    return float(found[1]) * _UNIT_S[found[2]]


def whole_duration_s(node: Node) -> int:
    """Whole seconds."""
    seconds = duration_s(node)
    if seconds != math.floor(seconds):
        raise Wrong("is not a whole number of seconds")
    return int(seconds)


def choice(node: Node, kind: type[Choice]) -> Choice:
    names = tuple(str(member) for member in kind)
    text = scalar(node, f"one of {', '.join(names)}")
    if text not in names:
        raise Wrong(f"{quoted(text)} is not known; {nearest(text, names)}")
    return kind(text)


def path(node: Node, reading: Reading) -> Path:
    """A path; relative ones start in the directory of the configuration file.

    `$CREDENTIALS_DIRECTORY/NAME` is what systemd's LoadCredential= set up. Outside of the service the variable is not there:
    then the path stays as it is written, so that `config check` and `status` work in a shell, and using it fails by name.
    """
    text = scalar(node, "a path")
    if not text:
        raise Wrong("is empty; write a path")
    credential = _CREDENTIAL.fullmatch(text)
    if credential:
        directory = reading.environment.get(CREDENTIALS_DIRECTORY)
        return Path(directory, credential[1]) if directory else Path(text)
    if "$" in text or text.startswith("~"):
        raise Wrong(f"{quoted(text)}: only $CREDENTIALS_DIRECTORY/NAME is filled in; write the full path")
    return reading.folder / text


def listing(node: Node, example: str) -> Listing:
    """Raises: Wrong for anything that is no list."""
    if isinstance(node, Listing):
        return node
    raise Wrong(f"is not a list; write it in brackets: {example}")


def block(node: Node) -> Block:
    """Raises: Wrong for anything that is no mapping."""
    if isinstance(node, Block):
        return node
    if isinstance(node, Text) and node.null:
        raise Wrong("has no keys; indent them under it")
    raise Wrong("is not a mapping; indent its keys under it, one on a line")


def https_problem(url: str) -> str | None:
    """What is wrong with an address that a certificate is shown to: https, a host, nothing secret or foreign in it."""
    if "@" in url:  # first, because every other complaint quotes it
        return "holds a user or password; the certificate alone speaks for this host"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{quoted(url)} is not an address: {error}"
    if parts.scheme != "https":
        return f"{quoted(url)} is not https; records and certificate travel over TLS only: write https://HOST"
    if not host or " " in url:
        return f"{quoted(url)} names no host; write https://HOST"
    if parts.query or parts.fragment:
        return f"{quoted(url)} has a query or fragment; write https://HOST, with a path where the service needs one"
    return None
