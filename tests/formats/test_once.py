"""What is made once of what jobs share."""

from __future__ import annotations

import pytest

from publisher.formats.compiled import Once


def test_what_jobs_share_is_made_once_for_each_object_not_for_each_value() -> None:
    made: list[list[int]] = []

    def render(subject: list[int]) -> str:
        made.append(subject)
        return str(subject)

    made_once = Once(render)
    one, twin = [1], [1]
    assert [made_once(one), made_once(twin), made_once(one)] == ["[1]", "[1]", "[1]"]
    assert len(made) == 2


def test_the_cache_stays_bounded_and_right_when_objects_come_and_go() -> None:
    made_once = Once(str, limit=10)
    for number in range(1_000):
        assert made_once((number, "fresh")) == f"({number}, 'fresh')"  # ids of the freed are used again
        assert len(made_once.known) <= 10


def test_a_long_fragment_is_not_remembered() -> None:
    made_once = Once(str)
    short, long = "x" * 1_000, "x" * 2_000
    assert [made_once(one) for one in (short, long, long)] == [short, long, long]
    assert len(made_once.known) == 1


def test_what_cannot_be_rendered_is_not_remembered() -> None:
    calls: list[int] = []

    def render(subject: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError(subject)
        return subject

    made_once = Once(render)
    subject = "x"
    with pytest.raises(ValueError, match="x"):
        made_once(subject)
    assert made_once(subject) == "x"
