"""Stories at random of every command under faults of all kinds: each ends well. See stories.py."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from publisher.cli.commands import COMMANDS
from tests.faults import failing_calls
from tests.faults.stories import ABOUT_A_JOB, LOOKING, SENDING, Services, Story, World
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer

MINUTES: Final = "STORY_MINUTES"
_STORIES_AT_ONCE, _STEPS = 20, 80  # the first of them is the simplest that there is: the same step 80 times


@pytest.fixture(scope="module")
def library() -> Path:
    return failing_calls.library()


@pytest.fixture(scope="module")
def services(pki: PKI) -> Iterator[Services]:
    with Services(pki) as started:
        yield started


def story_in(folder: Path, services: Services, library: Path, server: PostgresServer | None) -> type[Story]:
    class Told(Story):
        make = staticmethod(lambda: World(folder, services, library, server))
        tally: ClassVar[Counter[str]] = Counter()

    return Told


def profile(stories: int, steps: int, *, derandomize: bool = False, shrink: bool = True) -> settings:
    return settings(
        max_examples=stories,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=derandomize,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )


def test_stories_reach_every_command() -> None:
    reached = {words[0] for words in (*SENDING, *LOOKING)} | {*ABOUT_A_JOB, "run"}
    assert reached == {command.name for command in COMMANDS}


@pytest.mark.parametrize(
    ("ledger", "stories", "steps"),
    [
        ("sqlite", 3, 15),
        ("postgres", 1, 15),
        pytest.param("sqlite", 40, 60, marks=pytest.mark.long),
        pytest.param("postgres", 20, 60, marks=pytest.mark.long),
    ],
)
def test_every_story_ends_well(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    services: Services,
    library: Path,
    ledger: str,
    stories: int,
    steps: int,
    record_property: Callable[[str, object], None],
) -> None:
    server = request.getfixturevalue("postgres") if ledger == "postgres" else None
    told = story_in(tmp_path, services, library, server)
    run_state_machine_as_test(told, settings=profile(stories, steps, derandomize=True))
    record_property("tried", told.tally["steps"])


@pytest.mark.long
@pytest.mark.skipif(MINUTES not in os.environ, reason=f"runs for as long as {MINUTES} says")
def test_stories_for_as_long_as_is_asked(
    request: pytest.FixtureRequest, tmp_path: Path, services: Services, library: Path
) -> None:
    """Seeds from STORY_SEED on, ledgers in STORY_LEDGER; STORY_TOLD is a file that gets a line of JSON with the numbers.

    With 0 minutes one seed, and a story that ends badly is shortened.
    """
    ledger, first = os.environ.get("STORY_LEDGER", "sqlite"), int(os.environ.get("STORY_SEED", "1"))
    server = request.getfixturevalue("postgres") if ledger == "postgres" else None
    told = story_in(tmp_path, services, library, server)
    lasting_s = 60 * float(os.environ[MINUTES])
    steps = profile(_STORIES_AT_ONCE, _STEPS, shrink=not lasting_s)
    begun, number = time.monotonic(), first
    while number == first or time.monotonic() - begun < lasting_s:
        run_state_machine_as_test(seed(number)(told), settings=steps)
        number += 1
        line = {
            "on": datetime.now(UTC).date().isoformat(),
            "ledger": ledger,
            "seeds": [first, number - 1],
            "seconds": round(time.monotonic() - begun),
            "counts": dict(told.tally),
        }
        Path(os.environ.get("STORY_TOLD", tmp_path / "told.json")).write_text(json.dumps(line) + "\n")
