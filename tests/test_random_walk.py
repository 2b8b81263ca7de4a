"""Random walks over all faults at once: whatever happened, nothing is lost, nothing doubled, nothing said wrong."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.pki import PKI
from tests.walk import Walk
from tests.walk_oracle import assert_all_is_well

SEEDS, STEPS = 8, 250
LONG_SEEDS, LONG_STEPS = 20, 600

pytestmark = pytest.mark.long  # minutes, and not yet green on every seed


def go(folder: Path, pki: PKI, seed: int, steps: int) -> Counter[str]:
    """One walk and its end."""
    walk = Walk(folder, pki, seed)
    try:
        for _ in range(steps):
            walk.step()
        last = walk.heal()
        assert [(one.outcome, one.exit_status) for one in last] == [("nothing", 0)] * 3, last
        assert_all_is_well(walk)
    finally:
        walk.close()
    return walk.counts


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_walk_ends_with_every_job_at_its_receivers_once(tmp_path: Path, pki: PKI, seed: int) -> None:
    counts = go(tmp_path, pki, seed, STEPS)
    assert counts["jobs"] > 100
    assert counts["publish"] > 40
    assert sum(count for name, count in counts.items() if name.startswith("fault: ")) > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + int(os.environ.get("WALKS", LONG_SEEDS))))
def test_a_long_walk(tmp_path: Path, pki: PKI, seed: int) -> None:
    """12,000 steps in all, unless the environment variable WALKS asks for another number of walks of 600."""
    go(tmp_path, pki, seed, LONG_STEPS)
