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
        ("publishing/test_publish::test_every_step_of_a_round_may_be_the_last",),
    ),
    (
        "`kill -9` in the middle of `republish`",
        "the same command goes on where it was",
        ("publishing/test_republish::test_interrupted_anywhere_it_goes_on_and_at_most_one_message_goes_twice",),
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
        "months that differ are held, and jobs that may be delivered; of a copy nobody can tell, and a round stops with 74",
        (
            "ledger/test_generation::test_rule_22_an_older_ledger_is_held_and_nothing_is_sent_again",
            "ledger/test_generation::test_rule_22_a_ledger_without_its_log_is_an_older_one",
            "model_receivers/test_restored_ledgers::test_rule_22_killed_between_the_ledger_and_the_file_at_every_step",
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
        "any call of the C library fails once, or from then on, on the ledger, the accounting database, the spool, imports and "
        "sockets, in publish, republish, sync, import and run: EIO, ENOSPC, EMFILE, ENOMEM, EINTR, EACCES, ENOLCK, fewer bytes",
        "ends as documented and says what to do; the next round goes on, and each job is at each receiver once",
        (
            "faults/test_every_call::test_some_calls_fail",
            "faults/test_every_call::test_every_call_on_the_spool_may_fail",
            "faults/test_every_call::test_a_look_at_the_accounting_database_may_fail",
            "faults/test_every_call::test_a_database_that_cannot_be_looked_for",
            "faults/test_every_call::test_no_memory_to_wait_for_postgresql",
        ),
    ),
    (
        "steps at random in stories of up to 60, with every command, two sources, APEL, SGAS, AUDITOR and a spool, the ledger "
        "in SQLite or PostgreSQL, faults of services, failing calls, kills at any call, jumps of the clock, restored backups",
        "each ends with every job at every receiver once, and the ledger sound; one that does not is shortened by itself",
        ("faults/test_story::test_every_story_ends_well",),
    ),
    (
        "the disk full, nearly full, or filled by another program while an answer is waited for",
        "no message is written down that there is no room to settle; once there is room, rounds go on by themselves",
        (
            "faults/test_full_disk::test_a_disk_that_is_nearly_full_takes_no_message_and_heals",
            "faults/test_full_disk::test_a_receipt_is_recorded_though_another_program_filled_the_disk",
            "faults/test_full_disk::test_however_little_is_freed_each_round_ends_and_the_last_one_delivers",
        ),
    ),
    (
        "bits of the ledger that flip",
        "`state check`, `doctor` and the daily look find nearly all by checksums, not those in a receiver's summary keys; 74",
        (
            "ledger/test_damage::test_nearly_every_bit_that_flips_is_noticed",
            "ledger/test_damage::test_of_sixty_flips_that_changed_a_row_few_are_missed",
            "ledger/test_damage::test_a_damaged_row_is_named",
            "ledger/test_damage::test_the_daily_look_finds_a_damaged_row_within_a_month",
        ),
    ),
    (
        "the ledger damaged, or lost with or without the rest of its machine; a day-old backup, or none",
        "what can be proven is kept, the rest goes again and is told; each job is at each receiver once by its keys",
        (
            "scenarios/test_restore_drills::test_after_a_loss_every_job_is_at_every_receiver_once",
            "scenarios/test_restore_drills::test_what_sqlite_still_reads_of_a_damaged_ledger_is_kept",
        ),
    ),
    (
        "a ledger of an earlier publisher, or of a later one",
        "stops with 74 and is left alone, with how to begin a new one",
        (
            "ledger/test_versions::test_another_schema_stops_everything_and_is_left_as_it_is",
            "ledger/test_versions::test_another_schema_in_postgresql_stops_everything",
            "ledger/test_versions::test_back_to_an_earlier_publisher_by_the_copy_from_before_the_update",
        ),
    ),
    (
        "a server certificate that was revoked, or that has no SAN; a CRL that is out of date, or missing",
        "stops the target, 77, before anything is sent; reported, as `credentials.crl` says",
        (
            "transports/test_revocation::test_a_revoked_server_gets_nothing",
            "transports/test_revocation::test_a_list_that_is_out_of_date_is_reported_and_stops_nothing",
            "transports/test_revocation::test_require_needs_a_current_list",
            "transports/test_revocation::test_a_name_counts_only_as_an_alternative_name",
        ),
    ),
    (
        "a receiver that is slow, while there are others",
        "told once a round; the others have everything meanwhile",
        ("publishing/test_targets_apart::test_a_slow_receiver_is_told_and_holds_up_nobody",),
    ),
    (
        "more targets than may be worked on at once",
        "the others wait: memory is for those at work",
        (
            "publishing/test_targets_apart::test_no_more_targets_than_configured_are_worked_on_at_once",
            "publishing/test_targets_apart::test_memory_does_not_grow_with_the_number_of_targets",
        ),
    ),
    (
        "standard output or standard error closed, or on a full disk",
        "the work is done; 74 when the result cannot be printed",
        (
            "cli/test_cli::test_output_that_is_closed_is_no_bug",
            "cli/test_cli::test_a_full_disk_under_the_output_is_no_bug",
        ),
    ),
    (
        "`state:` that names a directory, a device or another program's file; a file system without locks",
        "stops with 74 at once and says so",
        (
            "faults/test_state_trouble::test_what_is_no_ledger_is_not_called_a_damaged_one",
            "faults/test_state_trouble::test_a_file_system_without_locks_is_found_at_once",
        ),
    ),
    (
        "megabytes of empty lines, a pipe or a device among imports; a configuration of tens of thousands of mistakes",
        "read or refused in seconds",
        (
            "sources/test_import_files::test_megabytes_of_empty_lines_are_not_looked_at_one_by_one",
            "sources/test_import_files::test_a_pipe_or_a_device_among_the_files_is_refused_and_not_waited_for",
            "config/test_config::test_a_file_that_is_wrong_throughout_is_told_in_a_hundred_lines",
        ),
    ),
    (
        "a dependency that is not locked by version and hash; an exception from ruff's rules of security without a reason",
        "CI fails",
        (
            "project/test_locked::test_each_dependency_is_locked_within_its_bounds",
            "project/test_locked::test_every_version_has_hashes_and_no_place",
            "project/test_locked::test_what_the_rules_of_security_let_pass_has_its_reason",
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
        ("publishing/test_targets_apart::test_a_target_that_hangs_delays_no_other",),
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
            "publishing/test_publish::test_a_writer_on_the_accounting_database_is_not_disturbed",
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
