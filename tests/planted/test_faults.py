"""Each planted fault has its place in the code of today."""

from __future__ import annotations

import ast

import pytest

from tests.planted.__main__ import ROOT, planted
from tests.planted.faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place(fault: Fault) -> None:
    text = (ROOT / "publisher" / fault.module).read_text(encoding="utf-8")
    ast.parse(planted(fault, text))


def test_there_are_thirty_or_more() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
