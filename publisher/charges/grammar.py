"""From tokens to a tree, by recursive descent.

    formula  =  part   { ("+" | "-") part }
    part     =  share  { "%" share }
    share    =  factor { ("*" | "/") factor }
    factor   =  ("+" | "-") factor | number | name | "(" formula ")"

So `*` and `/` bind closer than `%`, as in the formulas of HEAppE: 10%4*3 is 10%12. Spec: other-sources facts, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from publisher.charges.tokens import FormulaError, Kind, Token, tokens

MAX_DEPTH: Final = 50


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


def names(tree: Expression) -> Iterator[str]:
    """The quantities that a tree asks for, in order, with repetitions."""
    match tree:
        case Quantity(name=name):
            yield name
        case Negative(operand=operand):
            yield from names(operand)
        case Operation(left=left, right=right):
            yield from names(left)
            yield from names(right)


def numbers(tree: Expression) -> Iterator[Number]:
    """The numbers in a tree, in order."""
    match tree:
        case Number():
            yield tree
        case Negative(operand=operand):
            yield from numbers(operand)
        case Operation(left=left, right=right):
            yield from numbers(left)
            yield from numbers(right)


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
        if token.kind is Kind.SIGN:  # only a closing parenthesis ends a sum
            raise self._wrong("this parenthesis was never opened", token)
        if token.kind is not Kind.END:
            raise self._wrong(f"an operator is missing before {token.text}", token)

    def _remainder(self) -> Expression:
        return self._chain("%", self._product)

    def _product(self) -> Expression:
        return self._chain("*/", self._factor)

    def _chain(self, signs: str, operand: Callable[[], Expression]) -> Expression:
        """Operands with signs between them, from left to right."""
        tree = operand()
        while (token := self._row[self._next]).kind is Kind.SIGN and token.text in signs:
            self._next += 1
            tree = Operation(token.text, tree, operand())
        return tree

    def _factor(self) -> Expression:
        token = self._row[self._next]
        self._next += 1
        match token.kind, token.text:
            case Kind.NUMBER, text:
                return Number(text, token.at)
            case Kind.NAME, _:
                return self._quantity(token)
            case Kind.SIGN, "(":
                return self._within(token, self._parenthesis)
            case Kind.SIGN, "-":
                return Negative(self._within(token, self._factor))
            case Kind.SIGN, "+":
                return self._within(token, self._factor)
            case Kind.END, _ if len(self._row) == 1:
                raise self._wrong("the formula is empty", token)
            case Kind.END, _:
                raise self._wrong("the formula ends where a name or a number should stand", token)
        hint = "; there are no powers" if token.text == "*" and self._before(token) == "*" else ""
        raise self._wrong(f"a name or a number should stand here, not {token.text!r}{hint}", token)

    def _parenthesis(self) -> Expression:
        tree = self.sum()
        token = self._row[self._next]
        if token.kind is not Kind.SIGN:
            what = "a parenthesis is not closed" if token.kind is Kind.END else "an operator or ) is missing here"
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
        if following.kind is Kind.SIGN and following.text == "(":
            raise self._wrong(f"there are no functions; {token.text} cannot be called", token)
        if token.text not in self._known:
            raise self._wrong(f"unknown quantity {token.text!r}; {_meant(token.text, self._known)}", token)
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
