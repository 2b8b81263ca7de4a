"""The faults that the services' own behaviour makes possible, row by row, and the tests that show the reaction to each.

`AMS` follows the table of faults and reactions that came of measuring AMS and its authentication service, `SGAS` the answers
of SGAS and how they are to be read, measured as well; `AUDITOR` was read in its source. All tests named here speak real TLS
with a stand-in, except where a row says "pure".
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.faults.fault_rows import MACHINE

HERE: Final = Path(__file__).parents[1]

Rows = tuple[tuple[str, str, tuple[str, ...]], ...]

# Fault, reaction, tests.
AMS: Final[Rows] = (
    (
        "authn: our certificate refused by a TLS alert, at the handshake or late",
        "permanent, 77: file, subject, issuer, end; the jobs wait",
        (
            "transports/test_ams::test_authn_refuses_the_certificate_in_tls",
            "transports/test_https::test_our_certificate_refused_in_the_handshake",
            "faults/test_bad_configuration::test_credentials_that_cannot_be_used_are_77_and_nothing_leaves",
        ),
    ),
    (
        "authn 400, 403, 404, 422",
        "permanent: its words, both spellings of the DN, a hint; the jobs wait",
        (
            "transports/test_faults_over_tls::test_a_refusal_of_authn_stops_the_target",
            "transports/test_ams::test_authn_says_no",
            "transports/test_ams::test_a_revoked_certificate",
        ),
    ),
    (
        "authn 500, 502 to 504, time-out, broken connection, TLS read error",
        "again with back-off, then the next round",
        (
            "transports/test_ams::test_passing_troubles_of_authn",
            "transports/test_ams::test_authn_that_stays_away_is_no_doubt",
            "transports/test_faults_over_tls::test_a_trouble_of_authns_own_passes",
            "transports/test_faults_over_tls::test_authn_that_does_not_answer_in_time",
            "transports/test_faults_over_tls::test_a_broken_tls_record_instead_of_the_token_passes",
        ),
    ),
    (
        "authn 200 without a usable token",
        "a protocol error, 76, no crash",
        ("transports/test_ams::test_authn_without_a_token",),
    ),
    (
        "server certificate of an unknown CA, expired, of another name",
        "permanent, 77, nothing sent; the CA directory is named",
        (
            "transports/test_ams::test_a_server_that_is_not_trusted_gets_nothing",
            "transports/test_https::test_bad_server_certificates_get_nothing",
        ),
    ),
    (
        "connection refused, no name resolution, no connection in time",
        "again; nothing was sent, so there is no doubt",
        (
            "transports/test_https::test_nothing_listens",
            "transports/test_ams::test_a_connection_that_cannot_be_made_is_no_doubt",
            "transports/test_faults_over_tls::test_a_name_that_cannot_be_resolved",
            "transports/test_faults_over_tls::test_a_host_that_takes_no_connections",
            "transports/test_limits::test_silent_addresses_leave_time_for_the_one_that_answers",
            "transports/test_limits::test_no_address_is_tried_once_the_time_is_over",
            "transports/test_limits::test_a_resolver_that_does_not_answer_holds_nobody",
        ),
    ),
    (
        "reset or end of file during the upload",
        "read the answer, if there is one; else the same bytes again",
        (
            "transports/test_https::test_an_early_answer_to_a_large_body_is_seen",
            "transports/test_ams::test_what_may_have_been_stored_is_sent_again_as_it_is",
        ),
    ),
    (
        "reset, end of file or time-out after the upload, stored or not",
        "the same bytes again under the same id; the receiver's rows are the same",
        (
            "transports/test_ams::test_what_may_have_been_stored_is_sent_again_as_it_is",
            "publishing/test_publish::test_an_answer_that_was_lost_is_asked_for_again_under_the_same_id",
            "transports/test_faults_over_tls::test_a_broken_tls_record_instead_of_a_receipt_is_a_doubt",
        ),
    ),
    (
        "a slow answer, then 200",
        "waited for, 60 s",
        (
            "transports/test_https::test_a_slow_answer_is_waited_for",
            "transports/test_faults_over_tls::test_the_longest_silence_that_is_borne_is_the_brokers",
        ),
    ),
    (
        "a drip, endless headers",
        "a deadline for the whole attempt",
        (
            "transports/test_https::test_a_drip_ends_with_the_attempt",
            "transports/test_ams::test_a_drip_ends_with_the_attempt",
            "transports/test_https::test_interim_answers_without_end_end_with_the_attempt",
            "transports/test_limits::test_the_second_request_of_an_exchange_has_no_time_of_its_own",
        ),
    ),
    (
        "200 with one id",
        "delivered; the ledger is on the disk before the next message",
        (
            "transports/test_ams::test_a_request_is_what_ams_expects",
            "publishing/test_publish::test_every_step_of_a_round_may_be_the_last",
        ),
    ),
    (
        "200 with cut JSON, HTML, `{}`, no ids, several, a short body",
        "no success: a doubt, again, then reported",
        ("transports/test_ams::test_what_may_have_been_stored_is_sent_again_as_it_is",),
    ),
    (
        "401 in the middle of a run",
        "a new token and once more; the same token, or 401 again: once more after 5 s, then it stops the target with 77",
        (
            "transports/test_ams::test_a_rotated_token_is_exchanged_once",
            "transports/test_ams::test_a_token_that_ams_refuses_for_good_stops_the_target",
            "transports/test_ams::test_a_token_that_was_changed_just_now_is_waited_for_once",
            "transports/test_ams::test_a_third_401_stops_the_target",
            "transports/test_ams::test_authn_away_while_the_token_is_exchanged",
        ),
    ),
    (
        "401 as an early close of a large body",
        "as 401",
        ("transports/test_ams::test_a_rotated_token_is_exchanged_once",),
    ),
    (
        "403",
        "stops this target, 77: authenticated, not in the ACL; the others go on",
        (
            "transports/test_ams::test_what_stops_the_target",
            "faults/test_bad_configuration::test_one_failing_target_stops_no_other_and_the_gravest_status_wins",
        ),
    ),
    (
        "404 for the project, for the topic, as plain text",
        "a configuration error, 78, distinguished",
        ("transports/test_ams::test_what_stops_the_target", "transports/test_ams::test_another_project"),
    ),
    (
        "400 on publish",
        "about this message: its record is set aside with the reason, its neighbours go out",
        ("publishing/test_publish::test_a_refused_record_is_narrowed_down_and_its_neighbours_are_delivered",),
    ),
    (
        "413, in JSON or HTML",
        "cut, remembered; a single record is set aside",
        (
            "transports/test_ams::test_too_large_for_the_service",
            "publishing/test_learnt_limit::test_a_limit_is_learnt_once_and_remembered",
            "transports/test_faults_over_tls::test_records_too_large_by_themselves_are_set_aside_and_the_rest_goes_out",
        ),
    ),
    (
        "500 Backend Error to a small message",
        "again with back-off, then the next round",
        ("transports/test_ams::test_what_may_have_been_stored_is_sent_again_as_it_is",),
    ),
    (
        "500 Backend Error to more than 650 000 characters",
        "once more, then as 413",
        (
            "transports/test_ams::test_too_large_for_the_service",
            "transports/test_ams::test_a_backend_error_on_a_big_message_may_pass",
            "publishing/test_learnt_limit::test_a_limit_is_learnt_once_and_remembered",
        ),
    ),
    (
        "408, 429, 502, 503, 504, whatever the page",
        "again; Retry-After in seconds and dates, capped; 408, 502 and 504 are doubts",
        (
            "transports/test_faults_over_tls::test_the_balancers_troubles_pass_whatever_their_pages_look_like",
            "transports/test_ams::test_the_servers_wish_is_granted",
            "transports/test_ams::test_what_was_surely_not_stored_is_for_later",
        ),
    ),
    (
        "3xx",
        "not followed; a configuration error, 78",
        (
            "transports/test_faults_over_tls::test_no_redirect_is_followed",
            "transports/test_https::test_redirects_are_not_followed",
        ),
    ),
    (
        "502 with an empty body, a list, invalid UTF-8, 10 MB",
        "read in bounds, no exception, at most 500 characters in the log",
        (
            "transports/test_faults_over_tls::test_the_balancers_troubles_pass_whatever_their_pages_look_like",
            "transports/test_https::test_an_endless_error_page_is_read_in_part",
        ),
    ),
    (
        "a kept-alive connection closed between two messages",
        "a new one, once, without a word",
        (
            "transports/test_ams::test_a_kept_alive_connection_that_was_closed_costs_nothing",
            "transports/test_https::test_a_kept_alive_connection_that_dies_under_a_request_is_replaced_once",
        ),
    ),
    (
        "a proxy that refuses CONNECT, or asks for a password",
        "an error that names the proxy and where it is configured",
        (
            "transports/test_https::test_a_proxy_that_refuses_is_named",
            "transports/test_https::test_a_proxy_that_is_away_is_named",
        ),
    ),
    (
        "the process killed between answer and ledger",
        "the next run sends again; the receiver's rows are the same",
        (
            "publishing/test_publish::test_every_step_of_a_round_may_be_the_last",
            "faults/test_crash::test_every_statement_of_the_ledger_may_be_the_last",
        ),
    ),
    (
        "the waits between attempts",
        "exponential from 2 to 60 s, full jitter, five attempts, a budget for the run; then 75",
        (
            "transports/test_ams::test_waits_grow_and_are_jittered",
            "transports/test_ams::test_the_budget_of_a_run_is_spent_once",
            "transports/test_faults_over_tls::test_deferred_is_75_and_the_next_round_goes_on",
            "transports/test_retry::test_jitter_is_full",  # pure
        ),
    ),
    (
        "poison: bad ids, empty, no ASCII, control characters, words that look encrypted",
        "never leaves, whoever rendered it",
        (
            "transports/test_ams::test_an_id_that_would_corrupt_the_topic_stays_here",
            "transports/test_ams::test_a_payload_that_would_stop_the_receiver_stays_here",
            "faults/test_poison::test_what_would_stop_the_receiver_never_leaves_the_ledger",
        ),
    ),
)

_ONCE_MORE: Final = "transports/test_sgas::test_a_passing_fault_leaves_every_row_once"
_IN_THE_END: Final = "transports/test_sgas::test_a_lasting_fault_ends_patience_and_the_next_round_mends_it"
_EACH_ANSWER: Final = "transports/test_faults_over_tls::test_an_answer_of_sgas_over_tls"
_NARROWED: Final = "publishing/test_publish_sgas::test_one_poisonous_job_among_ten_thousand"

SGAS: Final[Rows] = (
    (
        "200 with ids, duplicates among them",
        "delivered; everything sent twice is there once",
        (
            "transports/test_sgas::test_everything_sent_twice_is_there_once",
            "transports/test_sgas::test_copies_in_a_batch_collapse",
            "publishing/test_publish_sgas::test_everything_sent_twice_is_there_once",
        ),
    ),
    (
        "200 with other ids than ours",
        "delivered; found again by their jobs",
        (
            "transports/test_sgas::test_a_rewritten_record_is_known_under_its_job",
            "publishing/test_publish_sgas::test_renamed_records_are_known_by_their_jobs",
        ),
    ),
    (
        "200 `null` after the database was away; 3.8.1 says 500",
        "delivered; again",
        (
            "transports/test_sgas::test_a_restart_of_the_database",
            "publishing/test_publish_sgas::test_a_restart_of_the_servers_database",
        ),
    ),
    (
        "200 `{}`",
        "a receipt for nothing only (pure)",
        ("transports/test_sgas_verdicts::test_nothing_stored_is_a_success_for_nothing_sent",),
    ),
    (
        "200 of somebody else (a page, JSON, ids that are none of ours), or cut",
        "a doubt, which shows how it begins: the same batch again",
        (_ONCE_MORE, _IN_THE_END, "transports/test_sgas_verdicts::test_json_of_a_gateway_is_no_receipt"),
    ),
    (
        "500: XML or parser, an empty element, no MachineName",
        "the record's fault: bisected, set aside",
        (_EACH_ANSWER, "transports/test_sgas::test_a_crash_of_the_parser_tells_as_much_as_twisted_lets_it", _NARROWED),
    ),
    (
        "500: the database refuses a value, a unit, a metric",
        "the record's fault: bisected, set aside with the server's words",
        (_EACH_ANSWER, "transports/test_sgas::test_one_poisonous_record_is_found_with_the_servers_words", _NARROWED),
    ),
    (
        "500: a replacement that its children forbid",
        "the record's fault",
        (
            "transports/test_sgas::test_a_replacement_that_its_children_forbid_is_the_records_fault",
            "publishing/test_publish_sgas::test_a_record_that_cannot_replace_another_is_set_aside",
        ),
    ),
    (
        "500 Processing Failed",
        "bisected; when every record fails it is the target",
        (_EACH_ANSWER, "publishing/test_publish_sgas::test_when_every_record_fails_it_is_the_target"),
    ),
    (
        "500: the database is full of clients, a standby, cancels",
        "again with the same batch",
        (_EACH_ANSWER, _ONCE_MORE, _IN_THE_END),
    ),
    (
        "500: the CN is not a host name",
        "stops the target, 77",
        (_EACH_ANSWER, "transports/test_sgas::test_a_common_name_that_is_no_host_stops_the_target"),
    ),
    (
        "403, 406: no right at all, none for any MachineName",
        "stops the target, 77: DN and MachineName for the server's administrator",
        (
            "transports/test_sgas::test_a_missing_right_names_what_the_administrator_of_sgas_needs",
            "publishing/test_publish_sgas::test_a_missing_right_names_all_that_the_servers_administrator_needs",
            "publishing/test_publish_sgas::test_when_every_machine_is_refused_it_is_the_certificate",
        ),
    ),
    (
        "406: no right for one MachineName among others",
        "cut by MachineName; its jobs are set aside, the rest is delivered",
        (
            "publishing/test_publish_sgas::test_a_job_of_a_foreign_machine_is_set_aside_and_the_rest_delivered",
            "publishing/test_publish_sgas::test_many_jobs_of_foreign_machines_cost_few_requests",
            "publishing/test_publish_sgas::test_a_round_of_foreign_jobs_only_waits_for_one_that_tells_who_is_to_blame",
        ),
    ),
    (
        "400 of nginx: no certificate, unknown CA, expired, revoked",
        "stops the target, 77",
        (
            "transports/test_sgas::test_certificates_that_nginx_does_not_take",
            "publishing/test_publish_sgas::test_a_certificate_that_is_refused_stops_the_target",
        ),
    ),
    (
        "404, 405, a redirect",
        "the service list is asked once for the address, then stops the target, 78",
        (
            "transports/test_sgas::test_the_service_list_is_asked_when_nothing_is_at_the_usual_address",
            "transports/test_sgas::test_a_wrong_url_stops_the_target_and_asks_once",
            "transports/test_sgas::test_a_redirect_is_not_followed",
        ),
    ),
    (
        "413",
        "cut, remembered; a single record is sent without its file transfers, then is set aside",
        (
            "publishing/test_publish_sgas::test_a_limit_on_bodies_splits_messages",
            "publishing/test_learnt_limit::test_sgas_too",
            "publishing/test_publish_sgas::test_a_record_that_the_server_does_not_take_goes_without_its_transfers",
            "publishing/test_publish_sgas::test_a_record_that_is_too_large_even_so_is_set_aside",
        ),
    ),
    ("502: SGAS is down, or was killed at work", "a doubt: the same batch again", (_ONCE_MORE, _IN_THE_END)),
    (
        "503: the database refuses connections",
        "again",
        (_IN_THE_END, "transports/test_sgas::test_a_database_that_is_down_is_for_later"),
    ),
    ("504: stored all the same, later", "a doubt: the same batch again, there once", (_ONCE_MORE, _IN_THE_END)),
    (
        "no connection, TLS failure, no answer in time, the client gives up first",
        "again, or a doubt; a server that is not trusted gets nothing",
        (
            "transports/test_sgas::test_connections_that_are_refused_or_cut",
            "transports/test_sgas::test_a_slow_answer_is_waited_for_and_a_slower_one_is_in_doubt",
            "transports/test_sgas::test_an_answer_that_drips_for_ever_is_cut_off",
            "transports/test_sgas::test_a_server_that_cannot_be_trusted_gets_nothing",
        ),
    ),
)

_STORED_ONCE: Final = "transports/test_auditor::test_a_passing_fault_leaves_every_record_once"
_FINAL: Final = "transports/test_auditor::test_a_final_answer_is_not_asked_for_again"
_THERE: Final = "transports/test_auditor::test_what_is_there_already_counts_as_delivered_and_all_the_rest_arrives"

AUDITOR: Final[Rows] = (
    ("500 `RECORD_EXISTS` to a single record", "delivered; the first one stays", (_THERE,)),
    (
        "500 `RECORD_EXISTS` to a list, or 200 with a warning that it was ignored: nothing of it is stored",
        "sent in halves, until all that is new is stored",
        (_THERE, "formats/test_auditor_record::test_a_window_that_is_republished_is_delivered_and_there_once"),
    ),
    (
        "an answer that is lost, of the list or of any part",
        "the same records again; each is there once",
        (
            "transports/test_auditor::test_an_answer_that_is_lost_anywhere_leaves_every_record_once",
            "transports/test_auditor::test_what_was_stored_in_part_is_in_doubt_until_all_of_it_is",
        ),
    ),
    (
        "500 with any other word, while its database is away",
        "again, then the next round; `health_check` says that no record is to blame",
        ("transports/test_auditor::test_a_database_that_is_away_is_for_later",),
    ),
    (
        "500 with any other word, time after time, while all is well with its database",
        "bisected, the record is set aside; stops the target when nothing gets through",
        (
            "transports/test_auditor::test_a_record_that_postgresql_does_not_take_is_to_blame_when_all_else_is_well",
            "formats/test_auditor_record::test_a_record_that_auditor_does_not_take_is_alone_to_blame",
        ),
    ),
    ("400: not a record", "the record's fault: bisected, set aside", (_FINAL,)),
    ("401, 403 of its access rules", "stops the target, 77: `write_access_cn`", (_FINAL,)),
    ("a redirect, 204, 404, 405: no AUDITOR", "stops the target, 78", (_FINAL,)),
    ("413 to a list", "cut, remembered", (_FINAL, "transports/test_auditor::test_a_limit_is_learnt")),
    (
        "200 of somebody else (a page, JSON, another warning, a Content-Type), or cut short",
        "a doubt: the same records again",
        (_STORED_ONCE, "transports/test_auditor::test_a_warning_about_something_else_stores_nothing"),
    ),
    ("408, 429, 502, 503, 504 of a proxy before it", "again; 408, 502 and 504 are doubts", (_STORED_ONCE,)),
    (
        "a client or a server certificate that is not accepted",
        "stops the target, 77; a server that is not trusted gets nothing",
        (
            "transports/test_auditor::test_a_certificate_of_another_ca_is_refused",
            "transports/test_auditor::test_a_server_that_is_not_trusted_gets_nothing",
        ),
    ),
    (
        "a drip over plain HTTP",
        "a deadline for the whole attempt",
        ("transports/test_auditor::test_a_drip_over_plain_http_ends_with_the_attempt",),
    ),
)

# Every exception of the libraries below, and every verdict on its own.
EXCEPTIONS: Final = (
    "transports/test_faults_over_tls::test_every_exception_of_http_and_tls_has_its_verdict",
    "transports/test_https::test_every_exception_is_translated",
    "transports/test_https::test_what_the_standard_library_raises_is_translated_too",
    "transports/test_verdicts::test_every_failure_has_its_row",
    "transports/test_sgas_verdicts::test_every_row_has_a_case",
    "transports/test_sgas_verdicts::test_every_silence_has_a_meaning",
)


def test_no_row_is_missing() -> None:
    """As many as the tables have, each once, each with a test."""
    assert len(AMS) == 28, "the measured table, the waits between attempts, and poison"
    assert len(SGAS) == 20
    assert len(AUDITOR) == 13
    for rows in (AMS, SGAS, AUDITOR):
        assert len({fault for fault, _, _ in rows}) == len(rows)
        assert all(reaction and tests for _, reaction, tests in rows)


@cache
def functions_of(module: str) -> set[str]:
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    "pointer",
    sorted(
        {pointer for rows in (AMS, SGAS, AUDITOR, MACHINE) for _, _, tests in rows for pointer in tests}
        | set(EXCEPTIONS)
    ),
)
def test_the_tests_that_are_named_exist(pointer: str) -> None:
    module, name = pointer.split("::")
    assert name in functions_of(module)
