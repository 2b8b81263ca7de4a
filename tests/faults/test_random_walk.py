"""Random walks over all faults at once: whatever happened, nothing is lost, nothing doubled, nothing said wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.faults_tried import STEPS, WALKS
from tests.faults.walk_oracle import walked
from tests.support.pki import PKI

LONG_SEEDS, LONG_STEPS = 20, 600
ORDINARY = (5,)  # the walk of `make test-slow`; `make faults` and `make test-long` take all of them


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [seed if seed in ORDINARY else pytest.param(seed, marks=pytest.mark.long) for seed in range(WALKS)]
)
def test_a_walk_ends_with_every_job_at_its_receivers_once(
    tmp_path: Path, pki: PKI, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """250 steps each, and the same ones every time. `make faults` tells what was met."""
    counts = walked(tmp_path, pki, seed, STEPS)
    assert counts["jobs"] > 100
    assert counts["publish"] > 40
    assert sum(count for name, count in counts.items() if name.startswith("fault: ")) > 20
    for name, count in counts.items():
        record_property(name, count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "steps"), [(5, 60), *(pytest.param(seed, STEPS, marks=pytest.mark.long) for seed in range(WALKS))]
)
def test_a_walk_with_the_ledger_in_postgresql(
    tmp_path: Path, pki: PKI, ledger_in_postgres: None, seed: int, steps: int
) -> None:
    walked(tmp_path, pki, seed, steps)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + int(os.environ.get("WALKS", LONG_SEEDS))))
def test_a_long_walk(tmp_path: Path, pki: PKI, seed: int) -> None:
    """12,000 steps in all, unless the environment variable WALKS asks for another number of walks of 600.

    Some rounds are real processes that end by SIGKILL, wherever they happen to be.
    """
    walked(tmp_path, pki, seed, LONG_STEPS, children=True)
