"""Map files of a site: a word and what it stands for, a line each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from publisher.errors import ConfigError

_MOST_BYTES: Final = 64 * 1024 * 1024


def read_map(path: Path, key: str) -> dict[str, str]:
    """`WORD VALUE` on each line, the value to the end of the line; `#` begins a comment line.

    `key` is where the configuration names the file. Raises: ConfigError with every line that is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{key}: {path} cannot be read: {error.strerror or error}; correct the path, or let this user read it"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path} is not UTF-8: {error}; save it as UTF-8") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{key}: {path} is larger than {_MOST_BYTES} bytes; this is no map file")
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, value = (part.strip() for part in " ".join(line.split()).partition(" "))
        if not value:
            problems.append(f"{path}:{number}: write a word and what it stands for, with a blank between them")
        elif not value.isprintable():
            problems.append(f"{path}:{number}: holds a character that cannot be seen; type the line again")
        elif found.setdefault(word, value) != value:
            problems.append(f"{path}:{number}: {word!r} stands for something else on a line above")
    if problems:
        raise ConfigError(problems)
    return found
