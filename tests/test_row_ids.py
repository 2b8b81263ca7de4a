"""Row ids of a message, packed: each is found again under its run, and they cost little."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.ledger import row_ids
from publisher.model.job import JobKey, job_key

NUMBERS = st.integers(0, 2**63 - 1).map(str)
TEXTS = st.one_of(NUMBERS, st.text(max_size=12), st.sampled_from(["007", "", "-1", "1.0", "\u0661", "0", "9" * 5_000]))
KEYS = st.builds(lambda job, run: job_key(f"job{job}", f"{run}"), st.integers(0, 5000), st.integers(0, 2))


@given(st.dictionaries(KEYS, TEXTS, max_size=60), KEYS)
def test_every_id_is_found_under_its_run_and_no_other(named: dict[JobKey, str], other: JobKey) -> None:
    packed = row_ids.pack(list(named.items()))
    assert {key: row_ids.find(packed, key) for key in named} == named
    if packed is None:
        assert not any(named.values())
        assert row_ids.find(packed, other) == ""


def test_a_run_without_an_id_is_not_found_under_its_neighbours_tag() -> None:
    keys = [job_key(str(number), "") for number in range(2_000)]
    named = [(key, "" if number % 2 else str(number)) for number, key in enumerate(keys)]
    packed = row_ids.pack(named)
    assert [row_ids.find(packed, key) for key in keys] == [text for _, text in named]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 9)), min_size=1, max_size=20))
def test_stretches_that_go_up_and_down_come_back(stretches: list[tuple[int, int]]) -> None:
    """Batches with rows that SGAS had before: old ids stand between new ones."""
    numbers = [first + step for first, length in stretches for step in range(length)]
    named = [(job_key(str(place), ""), str(number)) for place, number in enumerate(numbers)]
    packed = row_ids.pack(named)
    assert [row_ids.find(packed, key) for key, _ in named] == [str(number) for number in numbers]


def test_runs_of_one_job_are_told_apart() -> None:
    named = [(job_key("job", str(run)), str(100 + 7 * run)) for run in range(20)]
    packed = row_ids.pack(named)
    assert [row_ids.find(packed, key) for key, _ in named] == [text for _, text in named]


def test_of_a_run_that_is_named_twice_the_first_counts() -> None:
    key = job_key("job", "1")
    assert row_ids.find(row_ids.pack([(key, "5"), (key, "6")]), key) == "5"


@pytest.mark.parametrize(("count", "most"), [(50, 2.7), (500, 3.1), (20_000, 5.1)])
def test_ids_in_order_cost_little_more_than_their_tags(count: int, most: float) -> None:
    sizes = []
    for message in range(20 if count < 1000 else 2):
        named = [
            (job_key(f"{message}-{number}", ""), str(8_000_000 + message * count + number)) for number in range(count)
        ]
        sizes.append(len(row_ids.pack(named) or b""))
    assert sum(sizes) / len(sizes) / count < most


def test_ids_in_disorder_cost_a_few_bytes_each() -> None:
    chance = random.Random(1)
    named = [(job_key(str(number), ""), str(chance.randrange(10**9))) for number in range(50)]
    assert len(row_ids.pack(named) or b"") < 50 * 9
