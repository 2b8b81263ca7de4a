"""The element Charge of CAR and usage records: a number with its unit and formula."""

from __future__ import annotations

from collections.abc import Callable

from publisher.formats.compiled import Once, Written
from publisher.formats.xml.pattern import at_most
from publisher.model.rates import Charge, Tariff


def charge_pattern(prefix: str) -> str:
    """What `charge_element` yields (pattern.py)."""
    names = ("description", "unit", "formula")
    attributes = "".join([f'(?: {prefix}:{name}="{at_most(1000)}")?' for name in names])
    return f"<Charge{attributes}>-?[0-9]{{1,9}}(?:[.][0-9]{{1,15}})?</Charge>"


def charge_element(prefix: str, attribute: Callable[[str], str]) -> Written:
    """A writer of whole elements; both schemas want prefixed attributes."""

    def opening(tariff: Tariff) -> str:
        values = {"description": tariff.description, "unit": tariff.unit, "formula": tariff.formula}
        given = [(name, attribute(text)) for name, text in values.items() if text]
        written = "".join(f' {prefix}:{name}="{text}"' for name, text in given)
        return f"<Charge{written}>"

    openings = Once(opening)

    def element(charge: Charge) -> str:
        return f"{openings(charge.tariff)}{charge.text}</Charge>"

    return Written("value is not None", element)
