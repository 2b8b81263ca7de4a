"""publisher(1) taken apart: publisher-publish(1) and so on, a page for each command, from the sections that the whole has.

One text for both, so that they cannot disagree. The pages are man(7), like the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from publisher.cli import parser
from publisher.cli.parser import usages

MAN: Final = Path(__file__).parent.parent / "man"
_SECTION: Final = re.compile(r"^\.SH (.+)\n", re.MULTILINE)
_PART: Final = re.compile(r"^\.SS (.+)\n", re.MULTILINE)


def write(folder: Path) -> list[Path]:
    """All pages of the package: the written ones, and those of the commands. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [*((page.name, page.read_text(encoding="ascii")) for page in sorted(MAN.glob("*.[0-9]"))), *of_commands()]
    for name, text in written:
        (folder / name).write_text(text, encoding="ascii")
    return [folder / name for name, _ in written]


def of_commands() -> Iterator[tuple[str, str]]:
    """The file name and the text of each command's page.

    Raises: KeyError when publisher(1) has no section for a command.
    """
    whole = _split(_SECTION, (MAN / "publisher.1").read_text(encoding="ascii"))
    sections, objects = _split(_PART, whole["COMMANDS"]), _split(_PART, whole["JSON OUTPUT"])
    actions: dict[str, list[str]] = {}
    for path in sections:
        actions.setdefault(path.split()[0], []).append(path)
    said = usages(parser.parser())
    for command, paths in actions.items():
        text, summary = {path: sections[path] for path in paths}, said[command].summary
        synopsis = [said[path].usage for path in paths]
        shown = {path: body for path, body in objects.items() if path.split()[0] == command}
        yield f"publisher-{command}.1", "".join(_page(command, summary, synopsis, text, shown))


def _page(
    command: str, summary: str, synopsis: list[str], sections: dict[str, str], objects: dict[str, str]
) -> Iterator[str]:
    yield '.\\" Made of publisher(1) when the package was built.\n'
    yield f'.TH PUBLISHER\\-{command.upper()} 1 "" "publisher" "publisher manual"\n'
    yield f".SH NAME\npublisher\\-{command} \\- {_escaped(summary)}\n.SH SYNOPSIS\n.nf\n"
    yield from (f"{_escaped(usage)}\n" for usage in synopsis)
    yield ".fi\n.SH DESCRIPTION\n"
    for path, body in sections.items():
        yield (f".SS publisher {_escaped(path)}\n" if len(sections) > 1 else "") + body
    if objects:
        yield ".SH JSON OUTPUT\nWith\n.BR \\-\\-json ,\none object:\n"
        for path, body in objects.items():
            yield (f".SS {_escaped(path)}\n" if len(objects) > 1 else "") + body
    yield ".SH SEE ALSO\n.BR publisher (1)\nfor the options of every command, exit statuses and files,\n"
    yield ".BR publisher.yaml (5),\n.BR publisher\\-accounting (7)\n"


def _split(heading: re.Pattern[str], text: str) -> dict[str, str]:
    parts = heading.split(text)[1:]
    return {name.replace("\\-", "-"): body for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
