"""The shells' completion: options, choices and files by shtab, names from `publisher complete`.

shtab reads the parser itself, so a new option is completed without a line here; a new argument that
stands for a job, a user, a VO, a queue, an endpoint's type, a target or a database gets a line in
`_ASKED`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import shtab

from publisher.cli import parser as command_line
from publisher.cli.parser import Parser

FILES: Final = {"bash": "publisher", "zsh": "_publisher", "tcsh": "publisher.csh"}
"""Shell to the name under which it looks for our completion (tcsh: to be sourced)."""

# The argument or option, as the command line names it, to the kind of `publisher complete`.
_ASKED: Final = {
    "job": "jobs",
    "jobs": "jobs",
    "target": "targets",
    "databases": "databases",
    "source": "sources",
    "vo": "vos",
    "filter_vo": "vos",
    "filter_user": "users",
    "filter_queue": "queues",
    "filter_endpoint": "endpoints",
}

# An unreadable database or configuration offers nothing, and says nothing in the middle of a
# command line. A function of the shell does not know a --config on the line: the host's own
# configuration answers.
_ASK: Final = "publisher -q complete"
# bash cuts words at : and =, which stand in users' names: they are put together before shtab's
# function sees them, and of the answer the part that bash already has is taken off again. What
# begins with \x1f is ours, and quoted as the line needs it.
_BASH: Final = f"""\
_publisher_ask() {{
  {_ASK} "$1" -- "$2" 2>/dev/null | while IFS= read -r word; do printf '\\037%s\\n' "$word"; done
}}
_publisher_words() {{
  local -a words=()
  local at=0 joined=0 word
  for word in "${{COMP_WORDS[@]}}"; do
    if [ ${{#words[@]}} -gt 0 ] && {{ [[ "$word" == [:=]* ]] || [ $joined = 1 ]; }} \
&& [[ "${{words[-1]}}" != --*= ]]; then
      words[-1]+="$word"
    else
      words+=("$word")
    fi
    joined=0
    if [[ "$word" == *[:=] ]]; then joined=1; fi
    if [ $at = "$COMP_CWORD" ]; then break; fi
    at=$((at + 1))
  done
  words[-1]="${{words[-1]//\\\\ / }}"
  COMP_WORDS=("${{words[@]}}")
  COMP_CWORD=$((${{#words[@]}} - 1))
}}
_publisher_complete() {{
  local -a COMP_WORDS=("${{COMP_WORDS[@]}}")
  local COMP_CWORD="$COMP_CWORD" cut typed at word
  _publisher_words
  typed="${{COMP_WORDS[COMP_CWORD]}}"
  _shtab_publisher
  cut="${{typed%"${{typed##*[:=]}}"}}"
  for at in "${{!COMPREPLY[@]}}"; do
    word="${{COMPREPLY[at]#$'\\x1f'}}"
    case "${{COMPREPLY[at]}}" in
      $'\\x1f'*) printf -v COMPREPLY[at] %q "${{word#"$cut"}}" ;;
      *) COMPREPLY[at]="${{word#"$cut"}}" ;;
    esac
  done
}}
"""
_EACH_CHOICE: Final = (
    'current_action_choices="$(printf \'%s\\n\' "${!current_action_choices_var}")"'
)
_ZSH: Final = f"""\
_publisher_ask() {{
  local -a offered
  offered=("${{(@f)$({_ASK} "$1" -- "$PREFIX" 2>/dev/null)}}")
  compadd -a offered
}}
"""


def _functions(asking: str) -> str:
    """A function for each kind; shtab calls it with the word before the cursor, or with nothing."""
    kinds = sorted(set(_ASKED.values()))
    found = [f'_publisher_{kind}() {{ _publisher_ask {kind} "$1"; }}\n' for kind in kinds]
    return asking + "".join(found)


_FUNCTIONS: Final = {"bash": _functions(_BASH), "zsh": _functions(_ZSH)}


def write(folder: Path) -> list[Path]:
    """A script for each shell. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for shell, name in FILES.items():
        (folder / name).write_text(script(shell), encoding="utf-8")
    return [folder / name for name in FILES.values()]


def script(shell: str) -> str:
    """The completion script for `bash`, `zsh` or `tcsh`."""
    parser = command_line.parser()
    # shtab looks for an attribute `complete`, which argparse's actions do not declare.
    for action in _arguments(parser):
        kind = _ASKED.get(action.dest)
        if kind is not None and action.metavar is not None:
            function = f"_publisher_{kind}"
            vars(action)["complete"] = {"bash": function, "zsh": function, "tcsh": ""}
        elif action.type is Path:
            vars(action)["complete"] = shtab.FILE
    made: str = shtab.complete(parser, shell=shell, preamble=_FUNCTIONS.get(shell, ""))
    return _for_bash(made) if shell == "bash" else made


def _for_bash(script: str) -> str:
    """With our function before shtab's.

    Every choice is offered: the shtab of Debian 12 offers only the first.
    """
    for old, new in (
        ("-F _shtab_publisher publisher", "-F _publisher_complete publisher"),
        # It would quote a second time what _publisher_complete has quoted.
        ("complete -o filenames -F", "complete -F"),
        ('_choices_var="${current_action}_choices"', '_choices_var="${current_action}_choices[@]"'),
        ('current_action_choices="${!current_action_choices_var}"', _EACH_CHOICE),
    ):
        script = script.replace(old, new)
    return script


def _arguments(parser: Parser) -> Iterator[argparse.Action]:
    """Of all commands, which are loaded by this."""
    below = parser.below()
    yield from parser._actions
    for each in below.values():
        yield from _arguments(each)
