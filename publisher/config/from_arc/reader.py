"""arc.conf as it is written: blocks of options in order, with their lines; of ARC 6 and ARC 7.

Spec: arc.conf(5) of ARC 6 and 7, as far as accounting needs it: `[block]` or `[block: name]`,
`key = value` or `key` alone, repeated keys are several values, and a line that begins with `#` is a
comment. ARC 7 reads the files `*.conf` of `arc.conf.d` after arc.conf itself and appends their
options to the blocks.

`$VAR{key}` is another value of the same block, `$VAR{[block]key}` one of another block.
`$EXEC{command}` and `$EVAL{expression}` are never run: a configuration file that is read by root
must not be a way to become root. A value with one of them is left to the administrator.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from publisher.model.errors import ConfigError
from publisher.model.text import printable, shown

MAX_BYTES: Final = 4 * 1024 * 1024  # the reference with all its comments has 170 kB
_MAX_LINE: Final = 65_536
_MAX_PROBLEMS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One `key = value`, without blanks and quotes around it; undecodable bytes are surrogates."""

    key: str
    text: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcBlock:
    """One block under its name without blanks around the colon, such as `arex/jura/apel:egi`."""

    name: str
    file: str
    line: int
    options: tuple[Option, ...]

    @property
    def place(self) -> str:
        """Where it begins first."""
        return f"{self.file}:{self.line}"

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that has a part of it."""
        return tuple(dict.fromkeys([self.file, *(option.file for option in self.options)]))

    def all(self, key: str) -> tuple[Option, ...]:
        return tuple(option for option in self.options if option.key == key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcConf:
    """arc.conf with the files of arc.conf.d; blocks in their order, those of one name joined."""

    file: str
    blocks: Mapping[str, ArcBlock]
    additional: tuple[str, ...] = ()  # the files of arc.conf.d

    def all(self, block: str, key: str) -> tuple[Option, ...]:
        """Every value of a key; empty where block or key is not there."""
        found = self.blocks.get(block)
        return found.all(key) if found else ()

    def under(self, prefix: str) -> tuple[ArcBlock, ...]:
        """The blocks whose names begin so."""
        return tuple(block for name, block in self.blocks.items() if name.startswith(prefix))


def read_arc_conf(path: Path) -> ArcConf:
    """arc.conf and what is in arc.conf.d beside it.

    Raises: ConfigError with all problems of a file, by line, or one that cannot be read.
    """
    main = _read_file(path)
    return _merged(main, [_read_file(each) for each in _files_in(Path(f"{path}.d"))])


def _files_in(folder: Path) -> list[Path]:
    """The *.conf in and below arc.conf.d by name, subfolders after files. Raises: ConfigError."""
    found: list[Path] = []
    entered: set[tuple[int, int]] = set()  # a link may lead back up
    try:
        for where, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
            here = os.stat(where)
            if (here.st_dev, here.st_ino) in entered:
                folders.clear()
                continue
            entered.add((here.st_dev, here.st_ino))
            folders.sort()
            found += [Path(where, name) for name in sorted(names) if name.endswith(".conf")]
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        why = f"{error.strerror or error}; run this as a user who may"
        raise ConfigError(f"{printable(str(folder))}: cannot be read: {why}") from error
    return found


def _raise(error: OSError) -> None:
    raise error


def _merged(main: ArcConf, others: Sequence[ArcConf]) -> ArcConf:
    blocks = dict(main.blocks)
    for other in others:
        for name, block in other.blocks.items():
            known = blocks.get(name)
            blocks[name] = replace(known, options=known.options + block.options) if known else block
    return replace(main, blocks=blocks, additional=tuple(other.file for other in others))


def _read_file(path: Path) -> ArcConf:
    """Raises: ConfigError."""
    file = printable(str(path))
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{file}: is not a regular file; name the arc.conf of this CE")
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        advice = "ARC's configuration usually is /etc/arc.conf"
        raise ConfigError(f"{file}: no such file; {advice}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = f"{getattr(error, 'strerror', None) or error}; run this as a user who may"
        raise ConfigError(f"{file}: cannot be read: {why}") from error
    return parse_arc_conf(content, file)


def _check_is_text(content: bytes, file: str) -> None:
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_BYTES} bytes; this is not an arc.conf")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise ConfigError(f"{file}:{line}: holds a zero byte; this is not a text file")


def parse_arc_conf(content: bytes, file: str) -> ArcConf:
    """One file, for bytes that are already here. Raises: ConfigError."""
    _check_is_text(content, file)
    # Comments of older files are Latin-1; what is used is examined again when it is asked for.
    lines = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")
    problems: list[str] = []
    found: dict[str, tuple[int, list[Option]]] = {}
    current: list[Option] | None = None
    for number, written in enumerate(lines, start=1):
        text = written.strip()
        if not text or text.startswith("#"):
            continue
        try:
            if text.startswith("["):
                current = found.setdefault(_header(text), (number, []))[1]
            else:
                _add_option(text, file, number, current)
        except ValueError as problem:
            problems.append(f"{file}:{number}: {problem}")
            if len(problems) >= _MAX_PROBLEMS:
                problems.append(f"{file}: more is wrong; the first {_MAX_PROBLEMS} are listed")
                break
    if problems:
        raise ConfigError(problems)
    blocks = {
        name: ArcBlock(name=name, file=file, line=at, options=tuple(has))
        for name, (at, has) in found.items()
    }
    return ArcConf(file=file, blocks=blocks)


def _header(text: str) -> str:
    """Raises: ValueError that says what is wrong."""
    inside = text[1:-1]
    if not text.endswith("]") or "[" in inside or "]" in inside:
        raise ValueError(f"{shown(text)!r} is not a block header; write [block] or [block: name]")
    kind, colon, name = (part.strip() for part in inside.partition(":"))
    if not kind or (colon and not name) or len(inside) > _MAX_LINE:
        raise ValueError(f"{shown(text)!r} is a block header without a name")
    return f"{kind}{colon}{name}"


def _add_option(text: str, file: str, number: int, block: list[Option] | None) -> None:
    """Raises: ValueError that says what is wrong."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or (not equals and len(key.split()) > 1):
        what = "is neither [block], key = value, a key alone nor a comment"
        raise ValueError(f"{shown(text)!r} {what}")
    if block is None:
        raise ValueError(f"{shown(key)!r} stands before the first [block]")
    if len(text) > _MAX_LINE:
        raise ValueError(f"longer than {_MAX_LINE} characters")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]  # ARC 5 wanted quotes, and files lived on
    block.append(Option(key=key, text=value, file=file, line=number))


def _without_waiting(path: str, flags: int) -> int:
    """A named pipe must not hold us forever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


COMMON: Final = "common"
JURA: Final = "arex/jura"
DEFAULTS: Final[Mapping[tuple[str, str], str]] = {
    (COMMON, "x509_host_cert"): "/etc/grid-security/hostcert.pem",
    (COMMON, "x509_host_key"): "/etc/grid-security/hostkey.pem",
    (COMMON, "x509_cert_dir"): "/etc/grid-security/certificates",
    (COMMON, "x509_cert_policy"): "grid",
    ("arex", "controldir"): "/var/spool/arc/jobstatus",
}
_INHERITED: Final = frozenset(
    {"x509_host_cert", "x509_host_key", "x509_cert_dir", "x509_cert_policy", "http_proxy"}
)
_REFERENCE: Final = re.compile(r"\$(VAR|EXEC|EVAL)\{")
_NAMED: Final = re.compile(r"(?:\[([^\[\]]+)\])?\s*([^\s\[\]{}$]+)")
# In one value: a few lines that name each other twice unfold to billions
_MAX_REFERENCES: Final = 1000
_MAX_DEPTH: Final = 32  # of references that lead on to others
_MAX_TEXT: Final = 4096


# Not an error of the program: the value is left open, and the reason reported
class ByHand(Exception):
    """A person has to settle this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcValue:
    """A value and, for the comment behind it, where it is from: file and line, '' for defaults."""

    text: str
    origin: str
    place: str
    repeated: int = 1


@dataclass(slots=True)
class _Expansion:
    """One value on its way through its references."""

    chain: list[tuple[str, str]]
    depth: int = 0
    references: int = 0
    seen: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArcValues:
    """The questions to one arc.conf. All raise: ByHand, and ConfigError for endless references."""

    conf: ArcConf

    def first(self, block: str, key: str) -> ArcValue | None:
        """The one value of a key, from the block, its ancestors, or by default; else None."""
        for place in (block, COMMON) if key in _INHERITED and block != COMMON else (block,):
            options = self.conf.all(place, key)
            if options:
                return self._given(place, options[0], len(options))
            default = DEFAULTS.get((place, key))
            if default is not None:
                return ArcValue(text=default, origin=f"ARC's default of [{place}] {key}", place="")
        return None

    def all(self, block: str, key: str) -> tuple[ArcValue, ...]:
        """Every value of a key that takes several, in the order of the file."""
        return tuple(self._given(block, option, 1) for option in self.conf.all(block, key))

    def _given(self, block: str, option: Option, repeated: int) -> ArcValue:
        text = self._expand(option.text, block, _Expansion([(block, option.key)]), option.place)
        hidden = next((letter for letter in text if not letter.isprintable()), None)
        if hidden is not None:
            raise ByHand(f"holds the character {ascii(hidden)[1:-1]}, which cannot be seen")
        if len(text) > _MAX_TEXT:
            raise ByHand(f"is longer than {_MAX_TEXT} characters")
        return ArcValue(
            text=text,
            origin=f"from [{shown(block)}] {shown(option.key)}",
            place=option.place,
            repeated=repeated,
        )

    def _expand(self, text: str, block: str, expansion: _Expansion, place: str) -> str:
        parts: list[str] = []
        at = 0
        expansion.depth += 1
        if expansion.depth > _MAX_DEPTH:
            raise _endless(place)
        while found := _REFERENCE.search(text, at):
            parts.append(text[at : found.start()])
            end = _closing_brace(text, found.end())
            if found[1] != "VAR":
                what = "which publisher never runs; write down what it gives"
                raise ByHand(f"holds ${found[1]}{{...}}, {what}")
            inside = self._expand(text[found.end() : end], block, expansion, place)
            parts.append(self._refer(inside.strip(), block, expansion, place))
            at = end + 1
            if sum(len(part) for part in parts) > _MAX_TEXT:
                raise ByHand(f"is longer than {_MAX_TEXT} characters with its references filled in")
        parts.append(text[at:])
        expansion.depth -= 1
        return "".join(parts)

    def _refer(self, name: str, block: str, expansion: _Expansion, place: str) -> str:
        """The value behind `key` or `[block]key`."""
        expansion.references += 1
        named = _NAMED.fullmatch(name)
        if not named:
            advice = "a reference is $VAR{key} or $VAR{[block]key}"
            raise ByHand(f"refers to {shown(name)!r}; {advice}")
        there = ":".join(part.strip() for part in named[1].split(":", 1)) if named[1] else block
        wanted = (there, named[2])
        if wanted in expansion.chain:
            loop = [*expansion.chain[expansion.chain.index(wanted) :], wanted]
            names = " -> ".join(f"[{shown(place)}] {shown(key)}" for place, key in loop)
            raise ConfigError(f"{place}: references in a circle: {names}")
        if expansion.references > _MAX_REFERENCES:
            raise _endless(place)
        if wanted in expansion.seen:
            return expansion.seen[wanted]
        options = self.conf.all(*wanted)
        if options:
            expansion.chain.append(wanted)
            text = self._expand(options[0].text, there, expansion, options[0].place)
            expansion.chain.pop()
        elif wanted in DEFAULTS:
            text = DEFAULTS[wanted]
        else:
            raise ByHand(f"refers to [{shown(there)}] {shown(named[2])}, which is not set")
        expansion.seen[wanted] = text
        return text


def _endless(place: str) -> ConfigError:
    return ConfigError(f"{place}: more references than a configuration can need")


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    raise ByHand("holds a reference without its closing brace")
