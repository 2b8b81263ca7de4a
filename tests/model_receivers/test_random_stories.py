"""Random stories: a few small ones of the events that the core gets right today, and all kinds in `make test-long`."""

from __future__ import annotations

import pytest

from tests.model_receivers.stories import FULL, KEYS, NOT_TODAY, TODAY, outcome, shrunk, story

AT_ONCE = 20


def assert_right(seed: int) -> None:
    events = story(seed, TODAY)
    wrong = outcome(seed, events, gentle=TODAY.gentle)
    if wrong:
        small = shrunk(seed, events, wrong[0], gentle=TODAY.gentle)
        pytest.fail(f'{wrong}; python -m tests.model_receivers --today --replay "{seed}, {small}"')


def test_every_story_has_a_restart_a_purge_and_a_change_of_keys() -> None:
    for kinds in (TODAY, FULL):
        for seed in range(100):
            names = {name for name, _ in story(seed, kinds)}
            assert {"restart", "purge"} <= names
            assert names & KEYS.keys()


def test_every_kind_of_event_is_played_or_named_as_not_yet_right() -> None:
    assert FULL.events.keys() - TODAY.events.keys() == NOT_TODAY.keys()


def test_without_an_event_the_others_stay_as_they_are() -> None:
    events = story(7)
    assert len({own for _, own in events}) == len(events)


@pytest.mark.parametrize("first", range(0, 200, AT_ONCE))
def test_small_stories_end_with_every_run_counted_once(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert_right(seed)


@pytest.mark.long
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="totals are still inferred from what is left of the accounting data: about a story in ten ends wrong",
)
def test_stories_of_all_kinds_end_with_every_run_counted_once() -> None:
    """Up to the first that does not; the command counts them all."""
    for seed in range(1000, 2000):
        assert outcome(seed, story(seed)) == []
