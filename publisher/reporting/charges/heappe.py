"""Formulas as HEAppE reckons: integers of 32 or 64 bits, decimals of 96, binary floats.

HEAppE puts the text of each value into the formula and hands it to a data table of .NET. So a whole
number stays whole, a literal with a point is decimal, and a division of whole numbers is binary:
1/0 is infinite there, 1.0/0 an error, and 100000*100000 too. A whole literal without room in 32
bits has 64 or else is binary, as is one that begins with a point. The tests have what HEAppE's own
engine makes of formulas.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

from publisher.reporting.charges.formula import Arithmetic, NoResult

Value = int | Decimal | float

DAY_S: Final = 86_400
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_LARGEST: Final = 2**96 - 1  # of a decimal, without its point
_PLACES: Final = 28
_WHOLE: Final = re.compile(r"-?[0-9]+")
_CONTEXT: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
_ERROR: Final = "an error in the original"


class Long(int):
    """A whole number of 64 bits: a literal beyond 32, and what is reckoned with one."""


def read(text: str) -> Value:
    """A number of a formula: whole, decimal with a point, binary with an exponent or leading point.

    Raises: NoResult.
    """
    if _WHOLE.fullmatch(text):
        return literal(int(text))
    if "e" in text.lower() or text.startswith("."):
        return float(text)
    return _decimal(Decimal(text))


def literal(number: int) -> Value:
    """A whole number in the text of a formula."""
    if number in _INT32:
        return number
    return Long(number) if number in _INT64 else float(number)


def duration(seconds: int, unit_s: int) -> Value:
    """A length of time as HEAppE's text of it. From a day on .NET does not read Slurm's: 0."""
    return 0 if seconds >= DAY_S else read(_text(seconds / unit_s))


def _text(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _like(
    binary: Callable[[float, float], float],
    whole: Callable[[int, int], int],
    decimal: Callable[[Decimal, Decimal], Decimal],
) -> Callable[[Value, Value], Value]:
    """An operation that gives the kind of number that its operands have."""

    def apply(left: Value, right: Value) -> Value:
        if isinstance(left, float) or isinstance(right, float):
            return binary(float(left), float(right))
        if isinstance(left, int) and isinstance(right, int):
            return _whole(whole(left, right), left, right)
        return _decimal(decimal(Decimal(left), Decimal(right)))

    return apply


def _quotient(left: Value, right: Value) -> Value:
    """Always a fraction; by zero, whole and binary numbers are infinite, decimals an error."""
    if (
        isinstance(left, float)
        or isinstance(right, float)
        or (isinstance(left, int) and isinstance(right, int))
    ):
        return _binary_quotient(float(left), float(right))
    if not right:
        raise NoResult("division by zero")
    return _decimal(_CONTEXT.divide(Decimal(left), Decimal(right)))


def _binary_quotient(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _remainder(left: Value, right: Value) -> Value:
    """Cut towards zero, and of whole numbers only."""
    if not isinstance(left, int) or not isinstance(right, int):
        raise NoResult(f"% of a fraction is {_ERROR}")
    if not right:
        raise NoResult("division by zero")
    rest = abs(left) % abs(right)
    if left < 0:
        rest = -rest
    return _whole(rest, left, right)


def _whole(number: int, *operands: int) -> int:
    """The result for whole numbers, of 64 bits where one is. Raises: NoResult beyond these."""
    if any(isinstance(each, Long) for each in operands):
        if number not in _INT64:
            raise NoResult(
                f"the result is too large: a whole number of more than 64 bits is {_ERROR}"
            )
        return Long(number)
    if number not in _INT32:
        raise NoResult(f"a whole number of more than 32 bits is {_ERROR}")
    return number


def _decimal(number: Decimal) -> Decimal:
    """As in .NET: at most 28 decimal places, and 96 bits. Raises: NoResult beyond these."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise TypeError(f"{number} is not a finite number")
    places = max(0, min(-exponent, _PLACES))
    fitting = (
        number if places == -exponent else _CONTEXT.quantize(number, Decimal(1).scaleb(-places))
    )
    while int(abs(fitting).scaleb(places, _CONTEXT)) > _LARGEST:
        if not places:
            raise NoResult(f"a decimal of more than 96 bits is {_ERROR}")
        places -= 1
        fitting = _CONTEXT.quantize(number, Decimal(1).scaleb(-places))
    return fitting


def _negative(value: Value) -> Value:
    return _whole(-value, value) if isinstance(value, int) else -value


# What .NET makes of two values depends on what they are: binary before decimal before whole.
HEAPPE: Final = Arithmetic(
    number=read,
    negative=_negative,
    operations={
        "+": _like(operator.add, operator.add, _CONTEXT.add),
        "-": _like(operator.sub, operator.sub, _CONTEXT.subtract),
        "*": _like(operator.mul, operator.mul, _CONTEXT.multiply),
        "/": _quotient,
        "%": _remainder,
    },
)
