"""Words for docs/faults.md: what the random walks meet, and faults of the machine with the tests that make them.

`WALKED` names groups by service and by the status that a round ends with when such a fault is the last that it meets.
"""

from __future__ import annotations

from typing import Final

from tests.faults.walk_faults import NARROWED, PASSED, UNCLEAR

Rows = tuple[tuple[str, str, tuple[str, ...]], ...]

REACTIONS: Final = {
    75: "tries again after a while; then the next round does, with the same message where it may have been stored",
    76: "stops this target and shows the answer",
    77: "stops this target and says who may do what; goes on by itself once the right is given",
    78: "stops this target and names the key of the configuration",
    NARROWED: "cuts the message until what is to blame is alone, and sets that aside; all the rest is delivered",
    UNCLEAR: "sets the record aside that is to blame; stops this target when nothing at all gets through",
    PASSED: "goes on as if nothing had been",
}

EVENTS: Final = {
    "tear": "a finished job whose rows A-REX writes in parts",
    "complete": "the missing parts, many rounds later",
    "finish again": "a job that ends a second time, with other values or as another run",
    "write a bad job": "a job that cannot be published (no benchmark)",
    "mend a bad job": "such a job, mended",
    "burst": "hundreds of jobs at once",
    "rotate": "the database replaced, all rows under other numbers",
    "vacuum": "`VACUUM`",
    "checkpoint": "a checkpoint of the WAL",
    "rotate token": "another token for this host",
    "drop connections": "all connections cut",
    "change rights": "a right or a binding taken away or given back",
    "change limits": "smaller or larger messages allowed",
    "move the clock": "the clock an hour back, a day or a year ahead",
    "configure": "other targets, batches, limits or proxy in the configuration",
    "misconfigure": "a mistake in the configuration",
}
"""Steps of the walk that change the world under the publisher, in an administrator's words."""

_STATE: Final = "stops with 74 and says what to do; nothing is lost, the next round goes on"

MACHINE: Final[Rows] = (
    (
        "`kill -9` between any two steps of `publish`",
        "the next round mends it; one message at most goes twice, under its id",
        ("pipeline/test_publish::test_every_step_of_a_round_may_be_the_last",),
    ),
    (
        "`kill -9` in the middle of `republish`",
        "the same command goes on where it was",
        ("pipeline/test_republish::test_interrupted_anywhere_it_goes_on_and_at_most_one_message_goes_twice",),
    ),
    (
        "`kill -9` inside a transaction of the state",
        "as between steps",
        ("faults/test_crash::test_every_statement_of_the_ledger_may_be_the_last",),
    ),
    (
        "power lost at any write, with what was not synced",
        "as between steps",
        ("faults/test_crash::test_every_write_may_be_the_last_and_power_may_be_lost_with_it",),
    ),
    (
        "an older ledger restored, one without its WAL, one copied to another host, a server without its last commits",
        "stops with 74 before anything is sent and says what is missing; `--accept-state` goes on, and that is sent again",
        (
            "ledger/test_generation::test_an_older_ledger_stops_the_round_until_it_is_accepted",
            "ledger/test_generation::test_a_ledger_without_its_log_stops_the_round",
            "ledger/test_generation::test_a_state_directory_that_was_copied_to_another_host_stops_the_round_there",
        ),
    ),
    (
        "disk full at any write",
        _STATE,
        (
            "faults/test_crash::test_the_disk_may_be_full_at_every_write",
            "faults/test_bad_configuration::test_a_full_disk_is_74_and_the_next_round_mends_it",
        ),
    ),
    (
        "state truncated, damaged, of a newer version, of another program",
        _STATE,
        (
            "faults/test_bad_configuration::test_a_state_that_cannot_be_read_is_74_and_left_alone",
            "ledger/test_ledger::test_a_newer_schema_is_refused",
            "ledger/test_ledger::test_a_damaged_file_is_refused_and_untouched",
            "ledger/test_ledger::test_another_programs_database_is_refused",
        ),
    ),
    (
        "state read-only, of another user, not a place for files",
        _STATE,
        (
            "faults/test_bad_configuration::test_a_state_directory_that_may_not_be_written_is_74",
            "faults/test_bad_configuration::test_a_state_of_another_user_is_74",
            "faults/test_bad_configuration::test_a_state_path_that_cannot_be",
        ),
    ),
    (
        "SIGTERM between two messages, and while an answer is waited for",
        "ends within 10 s; what is in doubt is sent again under its id",
        (
            "faults/test_signals::test_between_two_messages",
            "faults/test_signals::test_in_the_middle_of_a_message_that_is_not_answered",
        ),
    ),
    ("two publishers at once", "the second one ends with 75", ("ledger/test_ledger::test_one_publisher_at_a_time",)),
    (
        "one target hangs",
        "the others are served meanwhile",
        ("pipeline/test_targets_apart::test_a_target_that_hangs_delays_no_other",),
    ),
    (
        "accounting database damaged, locked, not readable, gone",
        '66, and which file; never taken for "no jobs"',
        (
            "faults/test_bad_input::test_an_accounting_file_that_cannot_be_read_is_66_and_nothing_is_lost",
            "faults/test_bad_input::test_a_database_that_is_named_and_missing",
            "faults/test_bad_input::test_a_locked_accounting_file_is_66_and_no_record_is_half_read",
            "faults/test_bad_input::test_damage_in_the_middle_ends_the_round_and_what_went_out_is_counted",
        ),
    ),
    (
        "live A-REX, killed A-REX, replaced and copied files",
        "read, without making A-REX wait",
        (
            "pipeline/test_publish::test_a_writer_on_the_accounting_database_is_not_disturbed",
            "sources/test_arex::test_a_replaced_file_is_read_anew",
            "sources/test_sqlite_readonly::test_a_file_that_is_replaced_while_it_is_open_is_not_read_with_the_wal_of_another",
            "sources/test_sqlite_readonly::test_a_live_writer",
            "sources/test_sqlite_readonly::test_a_killed_writer_that_left_wal_and_shm",
            "sources/test_sqlite_readonly::test_a_killed_writer_whose_shm_is_gone",
            "sources/test_sqlite_readonly::test_a_hot_journal_is_rolled_back_in_a_copy",
        ),
    ),
    (
        "rows with hostile text and impossible values",
        "set aside by the rule's name, or delivered safely; their neighbours arrive",
        ("faults/test_bad_input::test_hostile_rows_are_delivered_or_set_aside_by_name_and_their_neighbours_arrive",),
    ),
)
