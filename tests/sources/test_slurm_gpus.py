"""Slurm's GPUs are unknown, and not 0, until it is known that it records them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sources.test_slurm_cases import case
from tests.support.batch_stores import records
from tests.support.gridengine_files import jobs
from tests.support.sacct_text import job, run_import, step, text, write

PLAIN = "billing=2,cpu=2,mem=4G,node=1"


def gpus(database: Path) -> list[int | None]:
    return [one["GPUCount"] for _, one in sorted(jobs(database).items(), key=lambda pair: int(pair[1]["LocalJobID"]))]


def imported(database: Path, number: int, tres: str, **options: Any) -> None:
    one = job(number, AllocTRES=tres)
    run_import(database, write(database.parent / f"{number}.txt", text([one, step(one)])), **options)


def test_kinds_of_gpus(tmp_path: Path) -> None:
    """Models alone say nothing of other models; the total of gres/gpu does, from the first one on. A shard is no GPU."""
    case("gpu-kinds", tmp_path)
    assert gpus(tmp_path / "imported.db") == [1, None, 1, None, 3, 1]


@pytest.mark.parametrize(("shown", "later"), [("gres/gpu=1", 0), ("gres/gpu:a100=1", None), ("gres/shard=1", None)])
def test_a_source_that_showed_a_gpu_records_them(shown: str, later: int | None, tmp_path: Path) -> None:
    database = tmp_path / "imported.db"
    imported(database, 1, PLAIN)
    imported(database, 2, f"{PLAIN},{shown}")
    imported(database, 3, PLAIN)
    assert gpus(database)[::2] == [None, later]
    run_import(database, tmp_path / "1.txt")  # what was imported as unknown stays so
    assert gpus(database)[0] is None


def test_a_site_says_that_gpus_are_recorded(tmp_path: Path) -> None:
    database = tmp_path / "imported.db"
    imported(database, 1, PLAIN, gpus_recorded=True)
    imported(database, 2, "", gpus_recorded=True)
    assert gpus(database) == [0, None]


@pytest.mark.parametrize("gpus_recorded", [False, True])
@pytest.mark.parametrize("share", ["gres/shard=2", "gres/shard:a100=2", "gres/mps=50", "gres/mps:v100=50"])
def test_a_share_of_a_gpu_is_not_none(share: str, gpus_recorded: bool, tmp_path: Path) -> None:
    """Slurm records how many shares there were, not of how many."""
    database = tmp_path / "imported.db"
    for number, tres in enumerate(("gres/gpu=1", share, "gres/shard=0,gres/mps=0", f"gres/gpu=2,{share}")):
        imported(database, number, f"{PLAIN},{tres}", gpus_recorded=gpus_recorded)
    assert gpus(database) == [1, None, 0, 2]


def test_a_known_number_of_none_is_read_as_0(tmp_path: Path) -> None:
    """So that formulas and exports can tell it from an unknown one."""
    database = tmp_path / "imported.db"
    imported(database, 1, PLAIN)
    imported(database, 2, f"{PLAIN},gres/gpu=1")
    imported(database, 3, PLAIN)
    found = {one.local_id: one.gpu_count for one in records(database)}
    assert found == {"1": None, "2": 1, "3": 0}
