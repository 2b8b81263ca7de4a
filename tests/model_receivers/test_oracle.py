"""The oracle finds what is planted at a receiver, and a hold excuses no more than it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_receivers.oracle import OTHER_NUMBERS, Explained, differences, surfaces
from tests.model_receivers.receivers.apel import Apel, Total, sum_key
from tests.model_receivers.receivers.payloads import apel_rows
from tests.model_receivers.test_named_stories import APEL, Tale, june, may


def tale_of(folder: Path, form: str) -> Tale:
    """Three jobs in two months, all delivered."""
    tale = Tale(folder, form)
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.jobs(may(3), may(4), june(5))
    tale.jobs(may(6), first=8, user="bob")
    tale.publish()
    return tale


def model(tale: Tale) -> Apel:
    found = tale.product.model(APEL)
    assert isinstance(found, Apel)
    return found


def found_in(tale: Tale, explained: Explained | None = None) -> list[str]:
    """Return what is wrong by the memory of all runs alone."""
    found = differences(tale.product, tale.memory, explained or surfaces(tale.product, tale.publish()))
    return [one for one in found if OTHER_NUMBERS not in one]


@pytest.fixture(params=["car", "apel-summary-0.4"])
def tale(request: pytest.FixtureRequest, tmp_path: Path) -> Tale:
    return tale_of(tmp_path, request.param)


def test_all_is_right_before_anything_is_planted(tale: Tale) -> None:
    assert found_in(tale) == []


def test_a_dropped_payload(tale: Tale) -> None:
    fresh = Apel()
    for _, payload in tale.product.arrived[1:]:
        fresh.take(payload)
    tale.product.models[APEL] = fresh
    assert found_in(tale) == ["apel: runs are missing, silently"]


def test_a_job_that_counts_twice(tale: Tale) -> None:
    key, total = min(tale.rows().items(), key=lambda one: one[1].jobs)
    model(tale).hybrid[key._replace(user="somebody else")] = total
    assert found_in(tale)[0].startswith("apel: a run counts twice")


def test_an_old_row_that_is_left(tale: Tale) -> None:
    key, _ = next(iter(tale.rows().items()))
    model(tale).hybrid[key._replace(vo="an old one")] = Total(1, 5, 5)
    assert found_in(tale) == ["apel: too many jobs, silently"]


def test_a_row_under_the_vo_of_others(tale: Tale) -> None:
    """The numbers are right, and somebody else pays for them."""
    key, total = next((key, total) for key, total in tale.rows().items() if "bob" in key.user)
    model(tale).hybrid[key._replace(vo="bio")] = model(tale).hybrid.pop(key)
    model(tale).jobs = {}
    model(tale).summaries = {}
    assert total.jobs == 1
    assert found_in(tale) == ["apel: rows have more jobs than runs had their keys"]


def test_usage_that_was_corrected_and_not_sent(tmp_path: Path) -> None:
    tale = tale_of(tmp_path, "car")
    old = [payload for _, payload in tale.product.arrived]
    tale.ce.correct(replace(tale.ce.rows["job0003ce1"], wall_s=4242))
    tale.publish()
    assert found_in(tale) == []
    for payload in old:
        model(tale).take(payload)
    assert found_in(tale) == ["apel: other usage or month, silently"]


def test_a_row_that_the_ledger_does_not_have(tale: Tale) -> None:
    key, total = next(iter(tale.rows().items()))
    model(tale).hybrid[key._replace(vo="an old one")] = total
    assert f"apel: {OTHER_NUMBERS}" in differences(tale.product, tale.memory, Explained())


def test_a_hold_excuses_the_run_that_it_names_and_no_other(tale: Tale) -> None:
    row = next(key for key, total in tale.rows().items() if "bob" in key.user)
    fresh = Apel()
    for _, payload in tale.product.arrived:
        if not any(sum_key(one) == row for one in apel_rows(payload)[1]):
            fresh.take(payload)
    tale.product.models[APEL] = fresh
    explained = Explained()
    explained.runs[APEL].add(("job0001ce1", "1001"))
    assert found_in(tale, explained) == ["apel: runs are missing, silently"]
    explained.runs[APEL].add(("job0008ce1", "1008"))
    assert found_in(tale, explained) == []


def test_a_held_month_excuses_no_run_that_counts_twice(tale: Tale) -> None:
    row, total = next((key, total) for key, total in tale.rows().items() if "bob" in key.user)
    model(tale).hybrid[row._replace(vo="cms2")] = total
    explained = Explained()
    explained.months[APEL].add((2026, 5))
    assert found_in(tale, explained) == ["apel: a run counts twice, silently"]
