"""Until a store has loaded a source to its end, runs without an entry are added, and nothing else is planned."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.model_receivers.receivers.apel import Total
from tests.model_receivers.rules.site import assert_in_order, quiet
from tests.model_receivers.test_named_stories import ALL_VOS, Tale, may
from tests.publishing.test_rule_15 import in_each_form

_LEAF = 0x0D  # first byte of a page that has rows of a table (SQLite's file format, 1.6)


def damage(path: Path, job_id: str) -> bytes:
    """Overwrite the page of a CE's database that has the row of a job; return the file as it was."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[16:18])
    pages = [whole[at : at + size] for at in range(0, len(whole), size)]
    (damaged,) = (at for at, page in enumerate(pages) if page[0] == _LEAF and job_id.encode() in page)
    with path.open("r+b") as file:
        file.seek(damaged * size)
        file.write(b"\xff" * size)
    return whole


def total_of(*numbers: int) -> Total:
    """Return what jobs with these numbers add up to, as `Tale.jobs` makes them."""
    return Total(len(numbers), sum(1000 + number for number in numbers), sum(500 + number for number in numbers))


@in_each_form
def test_rule_17_a_source_that_breaks_off_adds_runs_and_changes_none(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form, {"egi": ["atlas"]})
    tale.product.config["source"][0]["page_rows"] = 10
    first, _ = tale.jobs(may(2), may(3), user="ann")
    assert tale.publish().status == 0
    others = tale.jobs(*[may(4)] * 100, first=10, user="bob")
    tale.product.lose_store()
    tale.product.config["targets"]["egi"]["vos"] = ALL_VOS
    tale.ce.correct(replace(first, wall_s=4242))
    whole = damage(tale.ce.path, others[-1].job_id)
    assert tale.publish().status == 66
    there = tale.total()
    assert 2 < there.jobs < len(tale.ce.rows)
    assert there == total_of(1, 2, *range(10, 8 + there.jobs)), "the correction waits"
    tale.ce.path.write_bytes(whole)
    assert tale.publish().status == 0
    assert tale.total() == total_of(1, 2, *range(10, 110)).plus(Total(0, 4242 - 1001, 0))
    assert_in_order(tale)


@in_each_form
def test_rule_17_an_earlier_store_changes_no_run_of_a_later_one(tmp_path: Path, form: str) -> None:
    """Also not one that the CE has purged since, which the restored store has as it was."""
    tale = Tale(tmp_path, form)
    first, _ = tale.jobs(may(2), may(3))
    assert tale.publish().status == 0
    store = tale.product.job_store
    shutil.copyfile(store, tmp_path / "jobs.backup")
    tale.ce.correct(replace(first, wall_s=4242))
    assert tale.publish().status == 0
    there = tale.total()
    tale.ce.purge([first.job_id])
    tale.product.lose_store()
    shutil.copyfile(tmp_path / "jobs.backup", store)
    assert quiet(tale).status == 0
    assert tale.total() == there
    assert_in_order(tale)
