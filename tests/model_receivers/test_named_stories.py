"""What happens at any site sooner or later: in the end the receiver has every run once, or the difference is named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob
from tests.model_receivers.ledgers import LedgerInSqlite
from tests.model_receivers.oracle import Memory, differences, surfaces
from tests.model_receivers.receivers.apel import Apel, SumKey, Total, sum_of
from tests.model_receivers.site import KILLED, Answer, Product, Run
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.world import Ce, ended_again, job_of, user_name
from tests.support import gridengine_files
from tests.support.gridengine_files import Entry

APEL, OTHER = "apel gLite-APEL", "apel other"
ALL_VOS = ["atlas", "bio", "cms"]
SHARING = (2914, 7535)
"""Two numbers of jobs of which 24 bits of a digest are the same."""


def may(day: int, hour: int = 12) -> int:
    return int(datetime(2026, 5, day, hour, tzinfo=UTC).timestamp())


def june(day: int) -> int:
    return int(datetime(2026, 6, day, tzinfo=UTC).timestamp())


class Tale:
    """A site of one CE with APEL as its receiver, on 20 June."""

    def __init__(self, folder: Path, form: str, vos: dict[str, list[str]] | None = None) -> None:
        self.ce = Ce(folder, "ce1", 2)
        self.form = form
        ledger = LedgerInSqlite(folder)
        targets = {name: self.target(mine) for name, mine in (vos or {"egi": ALL_VOS}).items()}
        config: dict[str, Any] = {
            "site": "EXAMPLE-SITE",
            "source": [self.ce.source],
            **ledger.settings,
            "credentials": {"certificate": "/nowhere/cert.pem", "key": "/nowhere/key.pem", "ca": "/nowhere"},
            "records": {"benchmark": {"type": "HEPscore23", "value": 10}},
            "targets": targets,
        }
        self.product = Product(folder, config, ledger)
        self.memory = Memory()

    def target(self, vos: list[str]) -> dict[str, Any]:
        place = {"type": "ams", "url": "https://ams.example.org", "topic": "gLite-APEL"}
        return {**place, "format": self.form, "start": "all", "every": "1s", "vos": vos}

    def jobs(self, *ends: int, first: int = 1, user: str = "ann") -> list[SampleJob]:
        made = [
            job_of(number=number, ce="ce1", end=end, wall_s=1000 + number, cpu_s=500 + number, user=user)
            for number, end in enumerate(ends, start=first)
        ]
        self.ce.insert(made)
        return made

    def run(self, *words: str) -> Run:
        self.product.later(hours=26)
        ended = self.product.run(*words)
        self.memory.look(self.ce.rows.values(), self.product.config, sure=True)
        return ended

    def publish(self, *words: str) -> Run:
        return self.run("publish", "--force", "--json", *words)

    def vo_rule(self, user: str, vo: str) -> None:
        self.product.config["records"]["vo_rules"] = [
            {"field": "user", "pattern": user_name(user), "vo": vo, "override": True}
        ]

    def benchmark(self, value: float) -> None:
        self.product.config["records"]["benchmark"]["value"] = value

    def republish_may_accepting(self) -> None:
        """Have the month republished with consent, and the rows of its tickets deleted."""
        words = ("republish", "--from", "2026-05", "--to", "2026-05", "--yes")
        delete_what_tickets_say(self.product, self.run(*words), self.run(*words, "--accept-key-change"))

    def rows(self, place: str = APEL) -> dict[SumKey, Total]:
        model = self.product.model(place)
        assert isinstance(model, Apel)
        model.summarise()
        return model.totals()

    def wrong(self) -> list[str]:
        """What is wrong in the end, beside what the product names."""
        self.publish()
        return differences(self.product, self.memory, surfaces(self.product, self.publish()))

    def total(self, place: str = APEL) -> Total:
        return sum_of(self.rows(place).values())


def purged_one(tale: Tale) -> list[SampleJob]:
    """A month of four delivered jobs, of which one was purged."""
    jobs = tale.jobs(may(3), may(4), may(5), may(6))
    assert tale.publish().status == 0
    assert tale.total().jobs == len(tale.ce.rows)
    tale.ce.purge([jobs[0].job_id])
    return jobs[1:]


def restarted_one(tale: Tale) -> list[SampleJob]:
    """A month of four delivered jobs, of which one was restarted under another local id."""
    jobs = tale.jobs(may(3), may(4), may(5), may(6))
    assert tale.publish().status == 0
    again = ended_again(jobs[0], may(7), local_job_id="9001", wall_s=77, cpu_user_s=33)
    tale.ce.again(again)
    assert tale.publish().status == 0
    return jobs[1:]


Forgotten = Callable[[Tale], list[SampleJob]]
FORMS = ("apel-summary-0.2", "apel-summary-0.4", "car")

in_each_form = pytest.mark.parametrize("form", FORMS)
with_a_job_gone = pytest.mark.parametrize("forgotten", [purged_one, restarted_one])


@pytest.mark.parametrize("change", ["benchmark", "VO rule"])
@with_a_job_gone
@in_each_form
def test_keys_change_after_a_job_of_the_month_is_gone(
    tmp_path: Path, form: str, forgotten: Forgotten, change: str
) -> None:
    """A republish moves the month to its new keys, at least what the accounting data still has, or it holds it."""
    tale = Tale(tmp_path, form)
    forgotten(tale)
    before = set(tale.rows())
    if change == "benchmark":
        tale.benchmark(12)
    else:
        tale.vo_rule("ann", "cms")
    tale.jobs(may(8), first=10)
    tale.publish()
    tale.republish_may_accepting()
    assert tale.wrong() == []
    assert sum(total.jobs for key, total in tale.rows().items() if key not in before) >= len(tale.ce.rows)


@with_a_job_gone
@in_each_form
def test_then_another_job_of_the_month_ends_again_in_the_next_one(
    tmp_path: Path, form: str, forgotten: Forgotten
) -> None:
    tale = Tale(tmp_path, form)
    left = forgotten(tale)
    tale.vo_rule("ann", "cms")
    tale.publish()
    tale.ce.again(ended_again(left[0], june(10)))
    assert tale.wrong() == []


@with_a_job_gone
@in_each_form
def test_then_a_vo_rule_is_removed_and_the_month_republished(tmp_path: Path, form: str, forgotten: Forgotten) -> None:
    tale = Tale(tmp_path, form)
    left = forgotten(tale)
    tale.vo_rule("ann", "cms")
    tale.jobs(may(9), first=10)
    tale.publish()
    tale.ce.again(ended_again(left[0], june(10)))
    tale.publish()
    del tale.product.config["records"]["vo_rules"]
    tale.run("republish", "--from", "2026-05", "--to", "2026-05", "--yes", "--json")
    assert tale.wrong() == []


@with_a_job_gone
@in_each_form
def test_then_a_changed_job_leaves_a_row_behind(tmp_path: Path, form: str, forgotten: Forgotten) -> None:
    tale = Tale(tmp_path, form)
    jobs = tale.jobs(may(20), user="bob", first=20)
    forgotten(tale)
    tale.ce.correct(replace(jobs[0], cpus=8))
    assert tale.wrong() == []


@in_each_form
def test_a_vo_moves_to_a_second_target_of_one_place(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form, {"egi": ["atlas", "cms"], "second": ["bio"]})
    tale.jobs(may(3), may(4), june(3))
    tale.jobs(may(5), june(4), first=5, user="bob")
    tale.publish()
    tale.ce.purge(["job0001ce1"])
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    tale.product.config["targets"]["second"]["vos"] = ["atlas", "bio"]
    tale.jobs(may(6), june(7), first=10)
    assert tale.wrong() == []


@in_each_form
def test_a_renamed_target_republishes_under_another_prefix(tmp_path: Path, form: str) -> None:
    """No round has told the ledger where the new name leads."""
    tale = Tale(tmp_path, form)
    tale.jobs(may(3), may(4), june(3))
    tale.publish()
    config = tale.product.config
    config["records"]["localid_prefix"] = "b-"
    config["targets"]["renamed"] = config["targets"].pop("egi")
    tale.run("republish", "--from", "2026-05", "--to", "2026-06", "--yes", "--json")
    assert tale.wrong() == []


@pytest.mark.parametrize("local", [SHARING[1], SHARING[1] + 1])
def test_delivered_jobs_are_purged_before_the_batch_system_is_first_read(tmp_path: Path, local: int) -> None:
    """The CE's job is known by its number and time; a local job with another number is none of its."""
    tale = Tale(tmp_path, "car")
    tale.product.config["targets"]["egi"].pop("vos")
    job = replace(job_of(number=1, ce="ce1", end=june(1), wall_s=1000, cpu_s=500, user="ann"), lrms="sge")
    tale.ce.insert([replace(job, local_job_id=str(SHARING[0]))])
    assert tale.publish().status == 0
    tale.ce.purge([job.job_id])
    log, begun = tmp_path / "accounting", job.submit_time + 60
    entry = Entry(job=local, submitted=job.submit_time, started=begun, ended=begun + 440, cpu=90.0, stime=10.0)
    log.write_bytes(gridengine_files.HEADER + gridengine_files.colon(entry))
    tale.product.config["source"].append({"type": "gridengine", "cluster": "ce1.example.org", "paths": [str(log)]})
    tale.publish()
    tale.publish()
    assert tale.total() == Total(2, 1000 + 440, 500 + 90)


@with_a_job_gone
@in_each_form
def test_rule_1_the_service_moved(tmp_path: Path, form: str, forgotten: Forgotten) -> None:
    """Its new place has all that it had, runs that are gone from the accounting data too, and nothing comes twice."""
    tale = Tale(tmp_path, form)
    forgotten(tale)
    had = tale.total()
    tale.product.config["targets"]["egi"]["topic"] = "other"
    late = tale.jobs(june(3), first=30)
    assert tale.publish().status == 78
    tale.product.move_model(APEL, OTHER)
    tale.memory.move(APEL, OTHER)
    assert tale.product.run("receiver", "same", "egi").status == 0
    assert tale.wrong() == []
    assert tale.total(OTHER) == had.plus(Total(1, late[0].wall_s, late[0].cpu_user_s))


@with_a_job_gone
@in_each_form
def test_rule_1_another_place_gets_what_is_there(tmp_path: Path, form: str, forgotten: Forgotten) -> None:
    """Every job that the accounting data still has; the first place keeps what it has."""
    tale = Tale(tmp_path, form)
    forgotten(tale)
    had = tale.total()
    tale.product.config["targets"]["egi"]["topic"] = "other"
    tale.jobs(june(3), first=30)
    assert tale.publish().status == 78
    assert OTHER not in tale.product.models
    assert tale.product.run("receiver", "new", "egi").status == 0
    assert tale.wrong() == []
    assert (tale.total(), tale.total(OTHER).jobs) == (had, len(tale.ce.rows))


@in_each_form
@pytest.mark.slow
def test_rule_2_a_shadow_moves_whole_or_not_at_all(tmp_path: Path, form: str) -> None:
    """Killed before any statement of the ledger: in the end every run counts at the receiver, and none was sent."""
    tale = Tale(tmp_path, form)
    jobs = tale.jobs(may(3), may(4), june(2), june(3))
    tale.product.config["targets"]["egi"]["shadow"] = True
    assert tale.publish().status == 0
    del tale.product.config["targets"]["egi"]["shadow"]
    for statement in itertools.count(1, 6):
        runs = [one["runs"] for one in tale.product.run("receiver", "list", "--json").json["receivers"]]
        assert sum(runs) == len(jobs)
        assert set(runs) <= {0, len(jobs)}
        if tale.product.cut_short("publish", "--force", statement=statement).status != KILLED:
            break
    assert runs == [0, len(jobs)]
    assert tale.publish().status == 0
    assert tale.product.arrived == []
    assert tale.product.run("state", "check").status == 0


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_renamed_target_wants_what_waited_under_its_old_name_and_is_gone(tmp_path: Path, form: str) -> None:
    """It leads to the same receiver; under either name the run is set aside, or goes out."""
    tale = Tale(tmp_path, form)
    tale.jobs(may(3))
    tale.publish()
    (job,) = tale.jobs(may(4), first=2)
    tale.product.answer = lambda: Answer.AWAY
    tale.publish()
    tale.ce.again(ended_again(job, may(9), local_job_id="77", wall_s=70, cpu_user_s=7))
    tale.publish()
    tale.product.answer = lambda: Answer.OK
    targets = tale.product.config["targets"]
    targets["other"] = targets.pop("egi")
    assert tale.wrong() == []
    assert tale.total().jobs == 3


def test_a_renamed_target_sets_a_run_aside_that_was_and_is_gone(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "car")
    (job,) = tale.jobs(may(3))
    twin = job_of(number=7, ce="ce1", end=job.end_time, wall_s=99, cpu_s=9, user="ann", local_id=job.local_job_id or "")
    tale.ce.insert([twin])
    tale.publish()
    tale.ce.again(ended_again(twin, may(9), local_job_id="77", wall_s=70, cpu_user_s=7))
    tale.publish()
    targets = tale.product.config["targets"]
    targets["other"] = targets.pop("egi")
    tale.publish()
    listed = tale.product.run("quarantine", "list", "--json").json["quarantined"]
    assert ("other", twin.job_id) in {(one["target"], one["job"]) for one in listed}
    assert tale.wrong() == []
