"""A ticket about single records, carried out to the letter, while the receiver's summariser runs after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model_receivers.oracle import ticket_records, ticket_rows
from tests.model_receivers.receivers.apel import Apel, Total
from tests.model_receivers.rules.site import records
from tests.model_receivers.site import Run
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import APEL, OTHER, Tale, june, may

MAY = ("--from", "2026-05", "--to", "2026-05", "--yes")
CHANGES: dict[str, dict[str, Any]] = {
    "benchmark": {"records": {"benchmark": {"type": "HEPscore23", "value": 12}}},
    "prefix": {"records": {"localid_prefix": "c1-"}},
    "site": {"site": "RENAMED-SITE"},
}


def delivered(folder: Path, form: str = "car") -> tuple[Tale, Total]:
    """A tale of five jobs, one of which was purged at the CE, and what they come to."""
    tale = Tale(folder, form)
    jobs = [*tale.jobs(may(3), may(4), may(5)), *tale.jobs(may(6), first=20, user="bob"), *tale.jobs(june(2), first=30)]
    assert tale.publish().status == 0
    tale.ce.purge([jobs[0].job_id])
    return tale, tale.total()


def change(tale: Tale, name: str) -> None:
    new = CHANGES[name]
    tale.product.config |= new | {"records": tale.product.config["records"] | new.get("records", {})}


def accept(tale: Tale) -> Run:
    ended = tale.run("republish", *MAY, "--accept-key-change")
    assert ended.status in (0, 65), ended.err
    return ended


def carry_out(tale: Tale, run: Run) -> None:
    delete_what_tickets_say(tale.product, run)
    tale.total()  # the summariser runs


def check(tale: Tale) -> Run:
    return tale.product.run("sync", "--check", "--months", "all")


@pytest.mark.parametrize("form", ["car", "apel-job-0.4"])
@pytest.mark.parametrize("name", CHANGES)
def test_rule_12_the_ticket_that_follows_the_new_records_leaves_each_job_once(
    tmp_path: Path, form: str, name: str
) -> None:
    tale, true = delivered(tmp_path, form)
    change(tale, name)
    held = tale.run("republish", *MAY)
    assert held.status == 65
    assert "Rows that would stay (egi); --accept-key-change sends" in held.out
    assert "Text for a ticket" not in held.out, "its rows would be made again of the old records"
    carry_out(tale, held)
    assert tale.total() == true
    told = accept(tale)
    assert "Text for a ticket to the APEL team, to be sent now (egi)" in told.out
    assert tale.total() != true, "what is to be deleted counts as well"
    again = check(tale)
    assert again.status == 65
    assert list(ticket_records(again.out)) == list(ticket_records(told.out))
    carry_out(tale, told)
    assert tale.total() == true
    assert check(tale).status == 65, "until it is confirmed"
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    checked = check(tale)
    assert checked.status == 0 or name == "site", "what is not republished stays under the old site, and says so"
    assert "ticket" not in checked.out
    assert "to be deleted" not in checked.out
    assert tale.wrong() == []


def test_rule_12_rows_that_were_deleted_first_are_made_again(tmp_path: Path) -> None:
    """Why the ticket comes after."""
    tale, true = delivered(tmp_path)
    change(tale, "benchmark")
    held = tale.run("republish", *MAY)
    model = tale.product.model(APEL)
    assert isinstance(model, Apel)
    model.delete_rows([key for key, _, _ in ticket_rows(held.out, "EXAMPLE-SITE")])
    tale.total()
    accept(tale)
    assert tale.total().jobs > true.jobs


@pytest.mark.parametrize("name", ["prefix", "site"])
def test_rule_12_job_records_are_named_by_site_id_and_end_and_no_other_is(tmp_path: Path, name: str) -> None:
    """That of the purged job too, which was loaded."""
    tale, _ = delivered(tmp_path)
    moved = [key for key in records(tale) if key[2] < june(1)]
    change(tale, name)
    assert tale.run("republish", *MAY).status == 65
    told = accept(tale)
    assert sorted(ticket_records(told.out)) == sorted(moved)
    assert len(moved) == 4
    found = tale.product.run("sync", "--check", "--json", "--months", "all").json["accepted"]
    named = [one for each in found for one in each["job_records"]]
    assert sum(one["jobs"] for one in named) == 4
    assert {one["site"] for one in named} == {"EXAMPLE-SITE"}


def test_rule_12_a_row_to_which_a_job_comes_back_is_not_to_be_deleted(tmp_path: Path) -> None:
    tale, true = delivered(tmp_path)
    change(tale, "benchmark")
    assert tale.run("republish", *MAY).status == 65
    accept(tale)
    assert check(tale).status == 65
    tale.benchmark(10)
    back = tale.run("republish", *MAY)
    carry_out(tale, accept(tale) if back.status else back)
    assert tale.total() == true


def test_rule_12_totals_that_go_on_as_records_leave_no_record(tmp_path: Path) -> None:
    """Their runs never had one, so the prefix that has changed since names none to be deleted, and each counts once."""
    tale, _ = delivered(tmp_path, "apel-summary-0.4")
    change(tale, "prefix")
    tale.product.config["targets"]["egi"]["format"] = "car"
    assert tale.run("republish", *MAY).status == 65
    assert list(ticket_records(accept(tale).out)) == []
    found = tale.product.run("sync", "--check", "--json", "--months", "all").json
    assert [one["job_records"] for one in found["accepted"]] == [[]]
    assert sum(row["delivered"] for row in found["rows"]) == 5
    assert tale.product.run("state", "check").status == 0


@pytest.mark.parametrize("form", ["car", "apel-summary-0.2"])
def test_rule_12_what_stays_is_named_after_the_target_leads_elsewhere(tmp_path: Path, form: str) -> None:
    """It counts twice at the receiver of before until it is deleted there, whoever still sends to it."""
    tale, true = delivered(tmp_path, form)
    tale.benchmark(12)
    assert tale.run("republish", *MAY).status == 65
    accept(tale)
    assert tale.total() != true
    tale.product.config["targets"]["egi"]["topic"] = "other"
    assert tale.publish().status == 78
    assert tale.product.run("receiver", "new", "egi").status == 0
    assert tale.publish().status == 0
    assert tale.total(OTHER).jobs == len(tale.ce.rows)
    checked = check(tale)
    assert checked.status == 65
    assert "receiver 1 (egi), https://ams.example.org, project accounting, topic gLite-APEL: 2026-05: " in checked.out
    assert checked.out.count("publisher sync --deleted 2026-05 --receiver 1") == 1
    found = tale.product.run("sync", "--check", "--json", "--months", "all").json["accepted"]
    assert [(one["target"], one["receiver"], one["month"]) for one in found] == [(None, 1, "2026-05")]
    assert tale.product.run("sync", "--check", "--months", "all", "--target", "egi").status == 0
    model = tale.product.model(APEL)
    assert isinstance(model, Apel)
    model.delete_rows([key for key, _, _ in ticket_rows(_as_ticket(found), "EXAMPLE-SITE")])
    assert tale.total() == true
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    assert check(tale).status == 65, "that was about another receiver"
    assert tale.product.run("sync", "--deleted", "2026-05", "--receiver", "3").status == 64
    assert tale.product.run("sync", "--deleted", "2026-05", "--receiver", "1").status == 0
    assert check(tale).status == 0
    tale.product.config["targets"]["egi"]["topic"] = "gLite-APEL"
    assert tale.wrong() == []


def _as_ticket(accepted: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{one['month']}: {row['row']}: {row['jobs']} jobs, {row['wall_s']} s wall, {row['cpu_s']} s CPU"
        for one in accepted
        for row in one["stale"]
    )
