"""How formulas are reckoned: decimally, with 34 digits, and every way in which there is no result.

An arithmetic is a set of operations on values of its own; `bind` puts a tree and an arithmetic together once, so that a
job costs the operations and nothing else (hot path).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from operator import itemgetter
from typing import Final, Protocol, TypeVar

from publisher.reporting.charges.formula import Expression, Negative, Number, Operation, Quantity

Value = TypeVar("Value")

DIGITS: Final = 34  # those of decimal128


class NoResult(Exception):
    """A formula has no result for a job; the text says why, in few words, always the same ones for the same cause."""


class Arithmetic(Protocol[Value]):
    """Operations of one kind of numbers. All of them may raise NoResult."""

    def number(self, text: str) -> Value:
        """A number as a formula has it."""
        ...

    def negative(self, value: Value) -> Value: ...

    def operation(self, sign: str) -> Callable[[Value, Value], Value]: ...


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
            first, second, apply = bind(left, arithmetic), bind(right, arithmetic), arithmetic.operation(sign)
            return lambda quantities: apply(first(quantities), second(quantities))


_CONTEXT: Final = Context(
    prec=DIGITS, rounding=ROUND_HALF_EVEN, Emin=-999, Emax=999, traps=[InvalidOperation, DivisionByZero, Overflow]
)


class DecimalArithmetic:
    """34 digits, half even. `%` cuts towards zero and takes fractions too: 7.5%2 is 1.5, -7%3 is -1."""

    def number(self, text: str) -> Decimal:
        return _CONTEXT.create_decimal(text)

    def negative(self, value: Decimal) -> Decimal:
        return _CONTEXT.minus(value)

    def operation(self, sign: str) -> Callable[[Decimal, Decimal], Decimal]:
        return _OPERATIONS[sign]


def quotient(number: int, unit: int) -> Decimal:
    """A count of small units in a larger one."""
    return _CONTEXT.divide(Decimal(number), Decimal(unit))


def _trapped(operation: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    def apply(left: Decimal, right: Decimal) -> Decimal:
        try:
            return operation(left, right)
        except DecimalException as error:
            raise NoResult("the result is too large") from error

    return apply


def _by(operation: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    trapped = _trapped(operation)

    def apply(left: Decimal, right: Decimal) -> Decimal:
        if not right:
            raise NoResult("division by zero")
        return trapped(left, right)

    return apply


_OPERATIONS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _trapped(_CONTEXT.add),
    "-": _trapped(_CONTEXT.subtract),
    "*": _trapped(_CONTEXT.multiply),
    "/": _by(_CONTEXT.divide),
    "%": _by(_CONTEXT.remainder),
}
