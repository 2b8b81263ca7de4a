"""A formula cut into tokens, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_CHARACTERS: Final = 200
MAX_DIGITS: Final = 30
MAX_EXPONENT: Final = 30

_SHOWN: Final = 100  # of a formula that is too long
_TOKEN: Final = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[-+*/%()])"
)
_INSTEAD: Final = {
    ",": "numbers have a point, as in 0.25",
    "^": "there are no powers; multiply",
    "=": "write the right side only",
    "\N{MULTIPLICATION SIGN}": "write *",
    "\N{MIDDLE DOT}": "write *",
    "\N{DIVISION SIGN}": "write /",
    "\N{MINUS SIGN}": "write -",
    "\N{EN DASH}": "write -",
}


class FormulaError(Exception):
    """What is wrong with a formula, and where: `at` counts characters from 0.

    Its text has three lines: what is wrong, the formula, and a caret under the place.
    """

    def __init__(self, what: str, formula: str, at: int) -> None:
        self.what = what
        self.at = at
        shown = "".join(letter if letter.isprintable() else "?" for letter in formula[: max(_SHOWN, at + 1)])
        more = "..." if len(formula) > len(shown) else ""
        super().__init__(f"{what} (position {at + 1})\n    {shown}{more}\n    {' ' * at}^")


class Kind(StrEnum):
    NUMBER = "number"
    NAME = "name"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """`text` as it is written, '' at the end; `at` counts characters from 0."""

    kind: Kind
    text: str
    at: int


def tokens(formula: str) -> list[Token]:
    """The tokens of a formula, an end behind them. Blanks between tokens do not count.

    Raises: FormulaError for what no formula may hold, and for one that is too long.
    """
    if len(formula) > MAX_CHARACTERS:
        raise FormulaError(
            f"a formula has at most {MAX_CHARACTERS} characters, this one {len(formula)}", formula, MAX_CHARACTERS
        )
    found: list[Token] = []
    at = 0
    while at < len(formula):
        if formula[at] == " ":
            at += 1
            continue
        match = _TOKEN.match(formula, at)
        if match is None:
            raise FormulaError(_stranger(formula[at]), formula, at)
        token = Token(Kind(match.lastgroup or ""), match[0], at)
        if token.kind is Kind.NUMBER:
            _check_size(token, formula)
        found.append(token)
        at = match.end()
    return [*found, Token(Kind.END, "", len(formula))]


def _stranger(letter: str) -> str:
    known = _INSTEAD.get(letter)
    shown = repr(letter) if letter.isprintable() else f"U+{ord(letter):04X}"
    return f"{shown} is no part of a formula; {known or 'there are names, numbers, + - * / % and parentheses'}"


def _check_size(number: Token, formula: str) -> None:
    digits, _, exponent = number.text.lower().partition("e")
    if sum(letter.isdigit() for letter in digits) > MAX_DIGITS:
        raise FormulaError(f"a number has at most {MAX_DIGITS} digits", formula, number.at)
    # As text first: thousands of digits are no number to ask int() for.
    if exponent and (len(exponent) > 4 or abs(int(exponent)) > MAX_EXPONENT):
        raise FormulaError(f"an exponent is at most {MAX_EXPONENT}", formula, number.at)
