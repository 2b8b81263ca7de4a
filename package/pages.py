"""The manual pages, made of the prose in man/*.rst and of the command line itself, by docutils.

publisher(1) has a section for each command; publisher-publish(1) and so on are those sections as
pages of their own. What an option is called and its help come from the parser; prose about it, an
entry of its name, follows the help.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree
from docutils.writers.html5_polyglot import Writer as Html
from docutils.writers.manpage import Writer

from publisher.cli.parser import Parser, parser, usages

MAN: Final = Path(__file__).parent.parent / "man"
_ALSO: Final = (
    "publisher(1) for the options of every command, exit statuses and files, "
    "publisher.yaml(5), publisher-accounting(7)"
)
_LEVELS: Final = {"halt_level": 2, "report_level": 2}
_SETTINGS: Final = {**_LEVELS, "output_encoding": "unicode", "_disable_config": True}


def manual() -> dict[str, nodes.document]:
    """Return all pages by the names of their files, such as `publisher.1`."""
    return {
        "publisher.1": whole(),
        "publisher.yaml.5": parse("publisher.yaml"),
        "publisher-accounting.7": parse("publisher-accounting"),
        **dict(of_commands()),
    }


def write(folder: Path) -> list[Path]:
    """All pages of the package. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = manual()
    for name, document in written.items():
        (folder / name).write_text(_as_man(document), encoding="utf-8")
    return [folder / name for name in written]


def parse(name: str) -> nodes.document:
    """The prose of a page. Raises: SystemMessage where it is not well formed."""
    return _parse((MAN / f"{name}.rst").read_text(encoding="utf-8"))


def whole() -> nodes.document:
    """publisher(1), with the options of all commands.

    Raises: ValueError when commands or options and prose differ.
    """
    document = parse("publisher")
    top = parser()
    known = dict(_commands(top))
    described = sections(document)
    _add_options(described["OPTIONS"], top)
    texts = sections(described["COMMANDS"])
    if different := sorted(texts.keys() ^ known.keys()):
        raise ValueError(f"man/publisher.rst, COMMANDS: missing or unknown: {', '.join(different)}")
    for path, command in known.items():
        _add_options(texts[path], command)
    return document


def of_commands() -> Iterator[tuple[str, nodes.document]]:
    """The file name and the page of each command."""
    described = sections(whole())
    texts, objects = sections(described["COMMANDS"]), sections(described["JSON OUTPUT"])
    called = usages(parser())
    for command in dict.fromkeys(path.split()[0] for path in texts):
        mine = [path for path in texts if path.split()[0] == command]
        page = _parse(_header(f"publisher-{command}", called[command].summary))
        calls = "\n".join(called[path].usage for path in mine)
        page += _section("SYNOPSIS", [nodes.literal_block("", calls)])
        page += _section("DESCRIPTION", _bodies({path: texts[path] for path in mine}, "publisher "))
        shown = {path: body for path, body in objects.items() if path.split()[0] == command}
        if shown:
            intro = nodes.paragraph("", "With --as json, one object:")
            page += _section("JSON OUTPUT", [intro, *_bodies(shown, "")])
        page += _section("SEE ALSO", [nodes.paragraph("", _ALSO)])
        yield f"publisher-{command}.1", page


def sections(parent: nodes.Element) -> dict[str, nodes.section]:
    """Of a page or a section: those in it, by title."""
    found = [child for child in parent.children if isinstance(child, nodes.section)]
    return {cast(nodes.title, each[0]).astext(): each for each in found}


def entries(section: nodes.Element) -> dict[str, nodes.definition]:
    """What definition lists directly in a section explain, by name.

    `a, b` in front of one text are two names.
    """
    found: dict[str, nodes.definition] = {}
    for each in section.children:
        if isinstance(each, nodes.definition_list):
            for item in each.children:
                term, text = cast(nodes.definition_list_item, item).children
                found |= dict.fromkeys(term.astext().split(", "), cast(nodes.definition, text))
    return found


def _parse(text: str) -> nodes.document:
    document = publish_doctree(text, settings_overrides=_SETTINGS)
    for note in list(document.findall(nodes.system_message)):  # the same heading in two sections
        note.parent.remove(note)
    return document


def as_html(document: nodes.document) -> str:
    """Return the body of a page."""
    writer = Html()
    publish_from_doctree(
        document, writer=writer, settings_overrides=_SETTINGS | {"initial_header_level": 2}
    )
    return str(writer.parts["body"])


def _as_man(document: nodes.document) -> str:
    page = cast(str, publish_from_doctree(document, writer=Writer(), settings_overrides=_SETTINGS))
    # A font that is not everywhere (docutils before 0.21), and space in the wrong place
    page = re.sub(r"^\.ft [CP]\n", "", page, flags=re.MULTILINE)
    return re.sub(r"^(\.S[HS] .*\n)\.sp\n", r"\1", page, flags=re.MULTILINE)


def _header(name: str, summary: str) -> str:
    double, single = "=" * len(name), "-" * len(summary)
    lines = (double, name, double, single, summary, single, "")
    return "\n".join((*lines, ":Manual section: 1", ":Manual group: publisher manual", ""))


def _section(title: str, content: Sequence[nodes.Node]) -> nodes.section:
    return nodes.section("", nodes.title("", title), *content)


def _bodies(texts: dict[str, nodes.section], prefix: str) -> list[nodes.Node]:
    """The content of the sections; of several, each with its title."""
    if len(texts) == 1:
        return [child.deepcopy() for each in texts.values() for child in each.children[1:]]
    return [
        _section(f"{prefix}{path}", [child.deepcopy() for child in each.children[1:]])
        for path, each in texts.items()
    ]


# Options


def _commands(above: Parser, *path: str) -> Iterator[tuple[str, Parser]]:
    """Every command, of those with actions each action, by its path."""
    below = above.below()
    if path and not below:
        yield " ".join(path), above
    for name, each in below.items():
        yield from _commands(each, *path, name)


def _add_options(section: nodes.section, command: Parser) -> None:
    """Put the command's options and arguments at the end of its section, with the prose on them."""
    prose = entries(section)
    for old in [child for child in section.children if isinstance(child, nodes.definition_list)]:
        section.remove(old)
    made = nodes.definition_list()
    for action in filter(_is_told, command._actions):
        for names, head in _heads(action):
            said = [prose.pop(name) for name in names if name in prose]
            made += _entry(head, _help(action), said)
    if prose:
        place = f"man/publisher.rst, {section[0].astext()}"
        raise ValueError(f"{place}: no such option: {', '.join(prose)}")
    if made.children:
        section += made


def _is_told(action: argparse.Action) -> bool:
    of_parser = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not of_parser and action.help != argparse.SUPPRESS


def _help(action: argparse.Action) -> str:
    """'' for words, each of which has prose of its own."""
    return "" if action.choices and not action.option_strings else action.help or ""


def _value(action: argparse.Action, choices: Sequence[str]) -> str:
    metavar = action.metavar or "|".join(choices) or action.dest.upper()
    return metavar if isinstance(metavar, str) else " ".join(metavar)


def _heads(action: argparse.Action) -> Iterator[tuple[list[str], list[nodes.Node]]]:
    """The names of an option or argument and how its entry begins.

    One for each word that an argument may be.
    """
    choices = [str(choice) for choice in action.choices or ()]
    value = _value(action, choices)
    if action.option_strings:
        head: list[nodes.Node] = [nodes.strong("", ", ".join(action.option_strings))]
        if action.nargs != 0:
            head += [nodes.Text(" "), nodes.emphasis("", value)]
        yield list(action.option_strings), head
        return
    for word in choices or [value]:
        yield [word], [nodes.strong("", word) if choices else nodes.emphasis("", word)]


def _entry(head: list[nodes.Node], text: str, prose: list[nodes.definition]) -> nodes.Node:
    paragraphs = [child.deepcopy() for each in prose for child in each.children]
    if text:
        text = f"{text[0].upper()}{text[1:]}."
        if paragraphs:
            paragraphs[0] = nodes.paragraph("", "", nodes.Text(f"{text} "), *paragraphs[0].children)
        else:
            paragraphs = [nodes.paragraph("", text)]
    term, definition = nodes.term("", "", *head), nodes.definition("", *paragraphs)
    return nodes.definition_list_item("", term, definition)
