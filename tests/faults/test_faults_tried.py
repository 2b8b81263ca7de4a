"""docs/faults.md: all that the tests know, no other, each tried, in the words of `make faults`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from lxml import etree

from tests.faults.fault_rows import EVENTS, REACTIONS
from tests.faults.faults_tried import CALLS, PAGE, counted, kinds, read, render
from tests.faults.test_every_call import CASES
from tests.faults.walk import STEPS
from tests.faults.walk_faults import MISFORTUNES

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_faults_that_the_tests_know_and_no_other() -> None:
    """Numbers and date aside, the page is what would be written today. If not: `make faults`."""
    assert "".join(render(read(TEXT))) == TEXT


def test_every_fault_was_tried() -> None:
    tried = read(TEXT)
    assert not [kind for kind in kinds() if not tried.kinds[kind]]
    assert tried.rows
    assert not [fault for fault, number in tried.rows.items() if not number]
    assert tried.on <= datetime.now(UTC).date()


def test_calls_were_tried_in_cases_that_there_are() -> None:
    told = [json.loads(line) for line in CALLS.read_text().splitlines()]
    cases = [(one["command"], one["place"], one["error"], one["forever"]) for one in told]
    assert len(set(cases)) == len(cases)
    assert set(cases) <= {case.values for case in CASES}


def test_kinds_have_words_of_their_own() -> None:
    names = [(each.service, each.name) for each in MISFORTUNES]
    assert len(set(names)) == len(names)
    assert {each.status for each in MISFORTUNES} == set(REACTIONS)
    ordinary = {"accept", "finish", "publish", "publish in a child"}
    assert set(STEPS) == set(EVENTS) | ordinary


@pytest.mark.parametrize(
    ("inside", "times", "kinds_met"),
    [
        ("", 1, {}),
        ('<properties><property name="tried" value="41"/></properties>', 41, {"tried": 41}),
        ('<properties><property name="burst" value="3"/></properties>', 1, {"burst": 3}),
        ('<skipped message="no"/>', 0, {}),
    ],
)
def test_a_report_is_counted(inside: str, times: int, kinds_met: dict[str, int]) -> None:
    case = f'<testcase classname="tests.faults.test_x" name="test_y[a-b]">{inside}</testcase>'
    tests, met = counted(etree.fromstring(f"<testsuites><testsuite>{case}</testsuite></testsuites>"))
    assert tests["faults/test_x::test_y"] == times
    assert met == kinds_met
