"""Messages that are refused, lost and cut (rule 13): of what may be stored nothing is dropped, and changes stay whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from publisher.model.job import Epoch, JobId, RowRef
from publisher.model.message import OutboxRecord
from publisher.publishing.round.assemble import divided
from tests.arex_databases import SampleJob
from tests.model_receivers.receivers.apel import Apel, SumKey, Total, sum_key
from tests.model_receivers.receivers.payloads import apel_rows
from tests.model_receivers.site import Answer, Run
from tests.model_receivers.test_named_stories import APEL, Tale, june, may
from tests.model_receivers.world import ended_again

OK, LOST, AWAY, REFUSED, TOO_LARGE = Answer.OK, Answer.LOST, Answer.AWAY, Answer.REFUSED, Answer.TOO_LARGE
in_each_form = pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])


def publish(tale: Tale, *answers: Answer) -> Run:
    """Run a round whose deliveries end so, and well when no answer is left."""
    left = iter(answers)
    tale.product.answer = lambda: next(left, OK)
    run = tale.publish()
    assert next(left, None) is None, "an answer was not asked for"
    return run


def quarantined(tale: Tale) -> list[str]:
    return [one["job"] for one in tale.run("quarantine", "list", "--json").json["quarantined"]]


def in_doubt(tale: Tale) -> int:
    return int(tale.run("status", "--json").json["targets"]["egi"]["in_doubt"])


def payloads(tale: Tale) -> list[bytes]:
    return [payload for _, payload in tale.product.arrived]


def keys(payload: bytes) -> set[SumKey]:
    return {sum_key(row) for row in apel_rows(payload)[1]}


@in_each_form
def test_rule_13_a_refusal_after_a_doubt_proves_nothing(tmp_path: Path, form: str) -> None:
    """The same bytes go again, whatever the configuration says by then, and nothing is prepared before."""
    tale = Tale(tmp_path, form)
    tale.jobs(may(3), may(4))
    assert publish(tale, LOST).status == 75
    tale.product.config["site"] = "OTHER-SITE"
    tale.jobs(may(5), first=3)
    refused = publish(tale, REFUSED)
    assert refused.status == 76
    assert "may have been stored" in refused.json["targets"]["egi"]["reason"]
    assert (len(payloads(tale)), quarantined(tale), in_doubt(tale) > 0) == (1, [], True)
    assert publish(tale).status == 0
    first, again, *_ = payloads(tale)
    assert first == again
    assert (tale.total().jobs, in_doubt(tale)) == (3, 0)


def test_rule_13_what_is_refused_alone_after_a_doubt_stays_in_doubt_and_others_go_past(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "car")
    tale.jobs(may(3), may(4))
    publish(tale, LOST)
    publish(tale, REFUSED)
    tale.jobs(may(5), first=3)
    # In halves by now: the first one is refused alone, the second one accepted, and so is the new job.
    ended = publish(tale, REFUSED, REFUSED)
    assert (ended.status, ended.json["targets"]["egi"]["outcome"]) == (76, "rejected")
    assert (tale.total().jobs, quarantined(tale), in_doubt(tale)) == (3, [], 1)
    assert publish(tale, REFUSED).status == 76
    assert publish(tale).status == 0
    assert (tale.total().jobs, quarantined(tale), in_doubt(tale)) == (3, [], 0)
    assert (
        payloads(tale)[-1] in payloads(tale)[0]
        or apel_rows(payloads(tale)[-1])[1][0] in apel_rows(payloads(tale)[0])[1]
    )


def refused_alone_after_a_doubt(folder: Path) -> tuple[Tale, str]:
    """A job's record is in doubt and refused ever since; return its message too, which the round names."""
    tale = Tale(folder, "car")
    tale.jobs(may(3), may(4))
    publish(tale, LOST)
    publish(tale, REFUSED)
    publish(tale, REFUSED, REFUSED)
    ended = publish(tale, REFUSED)
    (found,) = re.findall(r"publisher receiver delivered egi (\S+)`", ended.json["targets"]["egi"]["reason"])
    assert (ended.status, in_doubt(tale), tale.total().jobs) == (76, 1, 2)
    return tale, found


def test_rule_13_somebody_sees_that_what_is_in_doubt_is_there(tmp_path: Path) -> None:
    tale, message = refused_alone_after_a_doubt(tmp_path)
    ended = tale.run("receiver", "delivered", "egi", message, "--json")
    assert (ended.status, ended.json["messages"]) == (0, [{"message_id": message, "records": 1}])
    before = len(payloads(tale))
    assert (publish(tale).status, in_doubt(tale), len(payloads(tale))) == (0, 0, before)
    assert (tale.wrong(), tale.product.run("state", "check").status) == ([], 0)


@pytest.mark.parametrize("is_refused", [True, False])
def test_rule_13_somebody_sees_that_what_is_in_doubt_is_not_there(tmp_path: Path, is_refused: bool) -> None:
    tale, message = refused_alone_after_a_doubt(tmp_path)
    model = tale.product.model(APEL)
    assert isinstance(model, Apel)
    gone = next(key for key in model.jobs if key[1] == "1001")
    model.delete(records=[gone])
    assert tale.run("receiver", "deleted", "egi", message).status == 0
    assert publish(tale, REFUSED if is_refused else OK).status == (65 if is_refused else 0)
    assert (in_doubt(tale), tale.total().jobs, len(quarantined(tale))) == (0, 2 - is_refused, is_refused)


def test_rule_13_nothing_else_is_settled_by_hand(tmp_path: Path) -> None:
    tale, message = refused_alone_after_a_doubt(tmp_path)
    refused = tale.run("receiver", "delivered", "egi", message, "20260101/no-such")
    assert (refused.status, f"is not in doubt at the receiver of egi: {message} is" in refused.err) == (64, True)
    assert in_doubt(tale) == 1


def test_rule_13_totals_that_are_refused_alone_after_a_doubt_are_not_overtaken(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.jobs(may(3))
    publish(tale, LOST)
    publish(tale, REFUSED)
    tale.jobs(may(4), first=2)
    assert publish(tale, REFUSED).status == 76
    assert (tale.total(), quarantined(tale)) == (Total(1, 1001, 501), [])
    assert publish(tale).status == 0
    assert tale.total() == Total(2, 2003, 1003)


@in_each_form
def test_rule_13_too_large_after_a_doubt_goes_in_halves_still_in_doubt(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.jobs(may(3))
    tale.jobs(june(4), first=2)
    publish(tale, LOST)
    assert publish(tale, TOO_LARGE, OK, AWAY).status == 75
    tale.product.config["site"] = "OTHER-SITE"
    assert publish(tale, REFUSED).status == 76
    assert (quarantined(tale), in_doubt(tale)) == ([], 1)
    assert publish(tale).status == 0
    assert {row.site for payload in payloads(tale) for row in keys(payload)} == {"example-site"}
    assert (tale.total().jobs, in_doubt(tale)) == (2, 0)


def test_rule_13_a_posting_of_which_a_part_is_stored_keeps_the_rest(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.jobs(may(3))
    tale.jobs(june(4), first=2)
    assert publish(tale, OK, AWAY).status == 75
    tale.product.config["site"] = "OTHER-SITE"
    assert publish(tale).status == 0
    assert {row.site for row in tale.rows()} == {"example-site"}
    assert tale.total().jobs == 2


def test_rule_13_a_posting_of_which_nothing_is_stored_is_dropped_whole(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.jobs(may(3))
    tale.jobs(june(4), first=2)
    assert publish(tale, AWAY).status == 75
    tale.product.config["site"] = "OTHER-SITE"
    assert publish(tale).status == 0
    assert {row.site for row in tale.rows()} == {"other-site"}


# Changes of two rows


def with_rows(tale: Tale, *, batch_records: int) -> list[SampleJob]:
    """Eight rows of May that were sent, of which the first has two runs of two users in turn."""
    tale.product.config["targets"]["egi"]["batch_records"] = batch_records
    made = []
    for number, user in enumerate(("ann", "bob", "cyd", "dan"), start=1):
        made += tale.jobs(may(3), may(4), first=10 * number, user=user)
    for number, job in enumerate(list(made), start=1):
        other = replace(job, job_id=f"{job.job_id}more", local_job_id=str(5000 + number), cpus=16)
        tale.ce.insert([other])
    assert publish(tale).status == 0
    tale.product.arrived.clear()
    return made


@pytest.mark.parametrize("batch_records", [2, 3, 5])
def test_rule_13_both_rows_of_a_change_go_in_one_message(tmp_path: Path, batch_records: int) -> None:
    """Also with a limit that falls between them; and where a run came to another month."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    jobs = with_rows(tale, batch_records=batch_records)
    for job in jobs[::2]:
        tale.ce.correct(replace(job, cpus=8))
    assert publish(tale).status == 0
    found = list(map(keys, payloads(tale)))
    assert len(found) > 1
    for user in ("ann", "bob", "cyd", "dan"):
        with_left = [
            at for at, rows in enumerate(found) for row in rows if row.user.endswith(user) and row.processors == 1
        ]
        with_new = [
            at for at, rows in enumerate(found) for row in rows if row.user.endswith(user) and row.processors == 8
        ]
        assert with_left == with_new
        assert len(with_left) == 1
    assert max(map(len, found)) <= batch_records
    assert tale.wrong() == []


def test_rule_13_a_change_of_two_months_is_one_message(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "apel-summary-0.4")
    jobs = with_rows(tale, batch_records=2)
    for job in jobs[::2]:
        tale.ce.again(ended_again(job, june(10)))
    assert publish(tale).status == 0
    months = [sorted(row.month for row in keys(payload)) for payload in payloads(tale)]
    assert months == [[(2026, 5), (2026, 6)]] * 4
    assert tale.wrong() == []


def outbox_records(*bundles: int) -> list[OutboxRecord]:
    about = RowRef("", 0), JobId("a row"), "", Epoch(0), 0, 7
    return [OutboxRecord(*about, group=at, bundle=of) for at, of in enumerate(bundles, start=1)]


def parts(bundles: Iterable[int], pieces: int = 2) -> list[list[int]]:
    return [list(part) for part in divided(outbox_records(*bundles), (), pieces)]


def test_rule_13_halves_keep_changes_whole() -> None:
    """Only a bundle that is all of a message is cut."""
    assert parts([1, 2, 3, 3]) == [[0, 1], [2, 3]]
    assert parts([1, 1, 1, 4]) == [[0, 1, 2], [3]]
    assert parts([1, 1, 3, 3, 5, 5], pieces=3) == [[0, 1], [2, 3], [4, 5]]
    assert parts([1, 1, 1, 1]) == [[0, 1], [2, 3]]
    assert parts([0, 0, 0, 0]) == [[0, 1], [2, 3]]
    assert parts([0]) == [[0]]


# Refused for good


def test_rule_13_a_month_is_planned_again_in_the_round_that_was_refused(tmp_path: Path) -> None:
    """What was accepted stays so; the runs of the refused row have no entry any more, and get one."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.jobs(may(3))
    tale.jobs(may(4), first=2, user="bob")
    tale.jobs(may(5), first=3, user="cyd")
    ended = publish(tale, OK, REFUSED, OK)
    told = ended.json["targets"]["egi"]
    assert (ended.status, told["quarantined"], told["messages"]) == (0, 0, 3)
    assert [len(keys(payload)) for payload in payloads(tale)] == [1, 1, 1]
    assert quarantined(tale) == []
    assert (tale.total().jobs, publish(tale).json["targets"]["egi"]["outcome"]) == (3, "nothing")


@pytest.mark.parametrize("times", [1, 2])
def test_rule_13_what_is_refused_again_leaves_the_other_rows_as_they_count(tmp_path: Path, times: int) -> None:
    """A change that no message holds whole: its old row was accepted without the run, its new one refused."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    jobs = tale.jobs(may(3), may(4))
    assert publish(tale).status == 0
    before = tale.rows()
    tale.ce.correct(replace(jobs[0], cpus=8))
    ended = publish(tale, *[OK, REFUSED] * times)
    model = tale.product.model(APEL)
    assert isinstance(model, Apel)
    if times == 1:
        assert (ended.status, quarantined(tale)) == (0, [])
        assert {row.processors: total.jobs for row, total in tale.rows().items()} == {1: 1, 8: 1}
    else:
        assert (ended.status, len(quarantined(tale))) == (65, 1)
        assert tale.rows() == before
        assert ended.json["targets"]["egi"]["quarantined"] == 1
    assert tale.run("state", "check").status == 0


def test_rule_13_refused_single_records_count_nothing_and_their_neighbours_do(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "car")
    jobs: Sequence[SampleJob] = tale.jobs(may(3), may(4))
    ended = publish(tale, REFUSED, REFUSED, OK)
    assert (ended.status, quarantined(tale)) == (65, [jobs[0].job_id])
    assert tale.total() == Total(1, 1002, 502)
