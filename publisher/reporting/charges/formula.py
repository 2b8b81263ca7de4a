"""Formulas: text cut into tokens, a tree by recursive descent, and its value for a job.

    formula  =  part   { ("+" | "-") part }
    part     =  share  { "%" share }
    share    =  factor { ("*" | "/") factor }
    factor   =  ("+" | "-") factor | number | name | "(" formula ")"

So `*` and `/` bind closer than `%`, as in the formulas of HEAppE: 10%4*3 is 10%12.

`bind` puts a tree and an arithmetic together once, so that a job costs the operations and nothing
else (hot path). Ours is decimal, with 34 digits; `heappe.py` has another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    InvalidOperation,
    Overflow,
)
from difflib import get_close_matches
from enum import StrEnum
from operator import itemgetter
from typing import Final, Generic, TypeVar

MAX_CHARACTERS: Final = 200
MAX_DIGITS: Final = 30
MAX_EXPONENT: Final = 30

_SHOWN: Final = 100  # of a formula that is too long
_TOKEN: Final = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>[-+*/%()])"
    r"|(?P<blanks> +)|(?s:.)"
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
MAX_DEPTH: Final = 50
DIGITS: Final = 34  # those of decimal128
Value = TypeVar("Value")


class FormulaError(Exception):
    """What is wrong with a formula, and where: `at` counts characters from 0.

    Its text has three lines: what is wrong, the formula, and a caret under the place.
    """

    def __init__(self, what: str, formula: str, at: int) -> None:
        self.what = what
        self.at = at
        beginning = formula[: max(_SHOWN, at + 1)]
        shown = "".join(letter if letter.isprintable() else "?" for letter in beginning)
        more = "..." if len(formula) > len(shown) else ""
        super().__init__(f"{what} (position {at + 1})\n    {shown}{more}\n    {' ' * at}^")


class TokenKind(StrEnum):
    NUMBER = "number"
    NAME = "name"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """`text` as it is written, '' at the end; `at` counts characters from 0."""

    kind: TokenKind
    text: str
    at: int


def tokens(formula: str) -> list[Token]:
    """The tokens of a formula, an end behind them. Blanks between tokens do not count.

    Raises: FormulaError for what no formula may hold, and for one that is too long.
    """
    if len(formula) > MAX_CHARACTERS:
        what = f"a formula has at most {MAX_CHARACTERS} characters, this one {len(formula)}"
        raise FormulaError(what, formula, MAX_CHARACTERS)
    found: list[Token] = []
    for match in _TOKEN.finditer(formula):
        if match.lastgroup == "blanks":
            continue
        if match.lastgroup is None:
            raise FormulaError(_stranger(match[0]), formula, match.start())
        token = Token(TokenKind(match.lastgroup), match[0], match.start())
        if token.kind is TokenKind.NUMBER:
            _check_size(token, formula)
        found.append(token)
    return [*found, Token(TokenKind.END, "", len(formula))]


def _stranger(letter: str) -> str:
    known = _INSTEAD.get(letter)
    shown = repr(letter) if letter.isprintable() else f"U+{ord(letter):04X}"
    known = known or "there are names, numbers, + - * / % and parentheses"
    return f"{shown} is not part of a formula; {known}"


def _check_size(number: Token, formula: str) -> None:
    digits, _, exponent = number.text.lower().partition("e")
    if sum(letter.isdigit() for letter in digits) > MAX_DIGITS:
        raise FormulaError(f"a number has at most {MAX_DIGITS} digits", formula, number.at)
    # As text first: thousands of digits are too many for int().
    if exponent and (len(exponent) > 4 or abs(int(exponent)) > MAX_EXPONENT):
        raise FormulaError(f"an exponent is at most {MAX_EXPONENT}", formula, number.at)


@dataclass(frozen=True, slots=True)
class Number:
    """As it is written: how it is read depends on the arithmetic."""

    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Quantity:
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Negative:
    operand: Expression


@dataclass(frozen=True, slots=True)
class Operation:
    """`sign` is one of + - * / %."""

    sign: str
    left: Expression
    right: Expression


Expression = Number | Quantity | Negative | Operation


def parse(formula: str, known: Collection[str]) -> Expression:
    """The tree of a formula over known names.

    Raises: FormulaError naming the place.
    """
    reader = _Reader(formula, tokens(formula), known)
    tree = reader.sum()
    reader.expect_end()
    return tree


def leaves(tree: Expression) -> Iterator[Number | Quantity]:
    """The numbers and quantities in a tree, in order, with repetitions."""
    match tree:
        case Negative(operand=operand):
            yield from leaves(operand)
        case Operation(left=left, right=right):
            yield from leaves(left)
            yield from leaves(right)
        case leaf:
            yield leaf


class _Reader:
    def __init__(self, formula: str, row: list[Token], known: Collection[str]) -> None:
        self._formula = formula
        self._row = row
        self._known = known
        self._next = 0
        self._depth = 0

    def sum(self) -> Expression:
        return self._chain("+-", self._remainder)

    def expect_end(self) -> None:
        token = self._row[self._next]
        if token.kind is TokenKind.SIGN:  # only a closing parenthesis ends a sum
            raise self._wrong("this parenthesis was never opened", token)
        if token.kind is not TokenKind.END:
            raise self._wrong(f"an operator is missing before {token.text}", token)

    def _remainder(self) -> Expression:
        return self._chain("%", self._product)

    def _product(self) -> Expression:
        return self._chain("*/", self._factor)

    def _chain(self, signs: str, operand: Callable[[], Expression]) -> Expression:
        """Operands with signs between them, from left to right."""
        tree = operand()
        while (token := self._row[self._next]).kind is TokenKind.SIGN and token.text in signs:
            self._next += 1
            tree = Operation(token.text, tree, operand())
        return tree

    def _factor(self) -> Expression:
        token = self._row[self._next]
        self._next += 1
        match token.kind, token.text:
            case TokenKind.NUMBER, text:
                return Number(text, token.at)
            case TokenKind.NAME, _:
                return self._quantity(token)
            case TokenKind.SIGN, "(":
                return self._within(token, self._parenthesis)
            case TokenKind.SIGN, "-":
                return Negative(self._within(token, self._factor))
            case TokenKind.SIGN, "+":
                return self._within(token, self._factor)
            case TokenKind.END, _ if len(self._row) == 1:
                raise self._wrong("the formula is empty", token)
            case TokenKind.END, _:
                raise self._wrong("the formula ends where a name or a number is expected", token)
        hint = "; there are no powers" if token.text == "*" and self._before(token) == "*" else ""
        raise self._wrong(f"a name or a number is expected here, not {token.text!r}{hint}", token)

    def _parenthesis(self) -> Expression:
        tree = self.sum()
        token = self._row[self._next]
        if token.kind is not TokenKind.SIGN:
            what = "an operator or ) is missing here"
            if token.kind is TokenKind.END:
                what = "a parenthesis is not closed"
            raise self._wrong(what, token)
        self._next += 1
        return tree

    def _within(self, token: Token, inner: Callable[[], Expression]) -> Expression:
        """One level deeper: parentheses and signs before a factor are what nests."""
        if self._depth == MAX_DEPTH:
            raise self._wrong(f"nested more than {MAX_DEPTH} levels deep", token)
        self._depth += 1
        tree = inner()
        self._depth -= 1
        return tree

    def _quantity(self, token: Token) -> Quantity:
        following = self._row[self._next]
        if following.kind is TokenKind.SIGN and following.text == "(":
            raise self._wrong(f"there are no functions; {token.text} cannot be called", token)
        if token.text not in self._known:
            meant = _meant(token.text, self._known)
            raise self._wrong(f"unknown quantity {token.text!r}; {meant}", token)
        return Quantity(token.text, token.at)

    def _before(self, token: Token) -> str:
        return next((one.text for one in reversed(self._row) if one.at < token.at), "")

    def _wrong(self, what: str, token: Token) -> FormulaError:
        return FormulaError(what, self._formula, token.at)


def _meant(name: str, known: Collection[str]) -> str:
    """The quantity that was probably meant: neither case nor underscores count."""
    plain = {one.lower().replace("_", ""): one for one in known}
    near = get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=0.6)
    return f"did you mean {plain[near[0]]}?" if near else f"there are {', '.join(known)}"


class NoResult(Exception):
    """A formula has no result for a job; the text says why, always the same for the same cause."""


@dataclass(frozen=True, slots=True)
class Arithmetic(Generic[Value]):
    """One kind of numbers: how to read one, and the operations by sign. All may raise NoResult."""

    number: Callable[[str], Value]
    negative: Callable[[Value], Value]
    operations: Mapping[str, Callable[[Value, Value], Value]]


def bind(tree: Expression, arithmetic: Arithmetic[Value]) -> Callable[[Mapping[str, Value]], Value]:
    """A function from quantities to the value of the tree; what it calls may raise NoResult."""
    match tree:
        case Number(text=text):
            value = arithmetic.number(text)
            return lambda _: value
        case Quantity(name=name):
            return itemgetter(name)
        case Negative(operand=operand):
            inner, negative = bind(operand, arithmetic), arithmetic.negative
            return lambda quantities: negative(inner(quantities))
        case Operation(sign=sign, left=left, right=right):
            first, second = bind(left, arithmetic), bind(right, arithmetic)
            apply = arithmetic.operations[sign]
            return lambda quantities: apply(first(quantities), second(quantities))


Operator = Callable[[Decimal, Decimal], Decimal]
_CONTEXT: Final = Context(
    prec=DIGITS,
    rounding=ROUND_HALF_EVEN,
    Emin=-999,
    Emax=999,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)


def quotient(number: int, unit: int) -> Decimal:
    """A count of small units in a larger one."""
    return _CONTEXT.divide(Decimal(number), Decimal(unit))


def _trapped(
    operation: Callable[[Decimal, Decimal], Decimal], *, divides: bool = False
) -> Operator:
    def apply(left: Decimal, right: Decimal) -> Decimal:
        if divides and not right:
            raise NoResult("division by zero")
        try:
            return operation(left, right)
        except DecimalException as error:
            raise NoResult("the result is too large") from error

    return apply


# 34 digits, half even. `%` cuts towards zero and takes fractions too: 7.5%2 is 1.5, -7%3 is -1.
DECIMAL: Final = Arithmetic(
    number=_CONTEXT.create_decimal,
    negative=_CONTEXT.minus,
    operations={
        "+": _trapped(_CONTEXT.add),
        "-": _trapped(_CONTEXT.subtract),
        "*": _trapped(_CONTEXT.multiply),
        "/": _trapped(_CONTEXT.divide, divides=True),
        "%": _trapped(_CONTEXT.remainder, divides=True),
    },
)
