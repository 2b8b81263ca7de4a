"""A short soak: a live A-REX, publishers as processes that are killed, services on a bad day. `make soak` takes longer."""

from __future__ import annotations

import pytest

from tests.faults.soak import soak
from tests.faults.soak_account import doubled


@pytest.mark.slow
def test_a_short_soak_loses_nothing_and_doubles_nothing() -> None:
    found = soak(seconds=5, seed=1, rate=120)
    assert found["losses"] == found["duplicates"] == 0, found
    assert not found["strange"], found
    assert set(found["jobs delivered"].values()) == {found["jobs written"]}
    assert found["jobs written"] == 600, found
    assert found["faults injected"] > 0, found
    assert int(found["configurations taken over, refused"].split(",")[0]) > 0, found


def test_the_account_sees_what_came_twice() -> None:
    whole, half, other = frozenset("abcd"), frozenset("ab"), frozenset("cdef")
    assert doubled({"1": whole, "2": half, "3": frozenset("cd")}) == 0  # answer lost, too large, halves
    assert doubled({"1": half, "2": whole}) == 2
    assert doubled({"1": whole, "2": other}) == 2
