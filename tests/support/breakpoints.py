"""Real processes that stop where a test says, as under a debugger: the program itself is not changed.

A place is a function that is entered or left. The first time that a process comes there it says so by a pipe, and goes on when
it is let go, or at once.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from publisher.cli.main import main
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.sites import ConfiguredSite

_CODE: Final = "from tests.support.breakpoints import _stop_on_the_way; _stop_on_the_way()"


class Place(NamedTuple):
    """`event` is "call" or "return". Of several places with one pipe, the one counts where a process comes first."""

    module: str
    function: str
    event: str
    pipe: str
    stops: bool = True


def stopping(site: ConfiguredSite, places: Sequence[Place], *words: str) -> Child:
    """`publisher` with this site's configuration, in a process of its own."""
    site.save()
    for pipe in {place.pipe for place in places}:
        os.mkfifo(pipe)
        os.mkfifo(f"{pipe}.go")
    return Child(json.dumps(places), "--config", site.path, *words, code=_CODE)


def heard(pipe: Path) -> str:
    """Waits until a process has come to a place of this pipe; tells which function that is."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"{pipe}: nobody came there"
        return os.read(descriptor, 1000).decode()
    finally:
        os.close(descriptor)


def let_go(pipe: Path) -> None:
    Path(f"{pipe}.go").write_text("go")


def _stop_on_the_way() -> None:
    """In the child."""
    places = [Place(*each) for each in json.loads(sys.argv.pop(1))]
    passed: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        for place in places:
            if (code.co_name, event) != (place.function, place.event) or place.pipe in passed:
                continue
            if frame.f_globals.get("__name__") == place.module:
                passed.add(place.pipe)
                Path(place.pipe).write_text(place.function)
                if place.stops:
                    Path(f"{place.pipe}.go").read_text()

    threading.setprofile(look)
    sys.setprofile(look)
    main()
