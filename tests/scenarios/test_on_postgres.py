"""Whole journeys with the ledger in PostgreSQL: tests of other files, over again.

`--ledger postgres` runs any test so; those that open the ledger's file themselves cannot pass then.
"""

from __future__ import annotations

import pytest

from tests.publishing.test_publish import (
    test_a_limit_keeps_what_was_set_aside_on_the_way,
    test_a_refused_record_is_narrowed_down_and_its_neighbours_are_delivered,
    test_a_rehearsal_sends_nothing_and_remembers_nothing,
    test_a_release_sends_what_was_refused_when_it_was_repeated,
    test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id,
    test_every_job_arrives_once_and_the_second_round_has_nothing_to_do,
    test_messages_keep_both_limits_and_are_cut_between_records,
    test_renumbered_rows_are_recognised,
)
from tests.publishing.test_republish import (
    test_a_regular_round_gets_in_between,
    test_a_window_goes_again_and_regular_rounds_are_untouched,
    test_interrupted_anywhere_it_goes_on_and_at_most_one_message_goes_twice,
    test_months_of_totals_go_on_where_they_were_broken_off,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ledger_in_postgres")]

__all__ = [
    "test_a_limit_keeps_what_was_set_aside_on_the_way",
    "test_a_refused_record_is_narrowed_down_and_its_neighbours_are_delivered",
    "test_a_regular_round_gets_in_between",
    "test_a_rehearsal_sends_nothing_and_remembers_nothing",
    "test_a_release_sends_what_was_refused_when_it_was_repeated",
    "test_a_window_goes_again_and_regular_rounds_are_untouched",
    "test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id",
    "test_every_job_arrives_once_and_the_second_round_has_nothing_to_do",
    "test_interrupted_anywhere_it_goes_on_and_at_most_one_message_goes_twice",
    "test_messages_keep_both_limits_and_are_cut_between_records",
    "test_months_of_totals_go_on_where_they_were_broken_off",
    "test_renumbered_rows_are_recognised",
]
