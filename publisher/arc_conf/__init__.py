"""Taking over from ARC: its arc.conf becomes our configuration, and its publishing state the place where ours goes on.

`reader.py` reads the file, `values.py` resolves what it refers to, `page.py` writes ours (`site.py` what all targets share,
`targets.py` the targets), `takeover.py` says where a target begins, and `lost.py` which jobs ARC's publisher has passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Final

from publisher.arc_conf.lost import Watermark, look_for_lost, report
from publisher.arc_conf.page import Page, control_dir_of, make_page
from publisher.arc_conf.reader import ArcConf, parse_arc_conf, read_arc_conf
from publisher.arc_conf.takeover import read_publishing_state
from publisher.arc_conf.targets import Draft, Takeover
from publisher.errors import SourceError, UsageError
from publisher.model.job import Epoch
from publisher.model.selection import Window
from publisher.model.when import epoch
from publisher.sources.arex import Options, create
from publisher.sources.arex_order import WritingOrder
from publisher.sources.sqlite_readonly import CopyShelf

__all__ = [
    "ArcConf",
    "Page",
    "Takeover",
    "convert",
    "look_for_lost",
    "lost_jobs",
    "make_page",
    "parse_arc_conf",
    "read_arc_conf",
]

_STATE: Final = "accounting/publishing.db"
_COPIES: Final = "/var/tmp"  # noqa: S108  # copies go to a private directory below it


def convert(path: Path, *, state: Path | None, site: str, now: datetime, environment: Mapping[str, str]) -> Page:
    """Our configuration, made of an arc.conf and ARC's publishing state (default: below its control directory).

    Raises: ConfigError, UsageError, and SourceError for a state that is there and cannot be read: it is no state of nothing.
    """
    conf = read_arc_conf(path)
    control_dir = control_dir_of(conf)
    where = state or (control_dir / _STATE if control_dir else None)
    stopped = None
    if where is not None and (state is not None or _is_there(where)):
        stopped = read_publishing_state(where, _copies_below(environment))
    return make_page(conf, Takeover(stopped=stopped, where=str(where or _STATE), now=now), site=site)


def lost_jobs(page: Page, *, environment: Mapping[str, str]) -> list[str]:
    """The report on jobs that ARC's publisher has passed over, for every target of the page.

    Raises: SourceError; UsageError when there is no time from which to look, or no database in which.
    """
    marks = [mark for mark in map(_watermark, page.targets) if mark is not None]
    if not marks:
        raise UsageError("ARC's publishing.db has no last end time for any of these targets; name it with --state FILE")
    if not page.control_dir:
        raise UsageError("arc.conf does not say where the accounting database is: [arex] controldir needs a hand")
    source = create(Options(control_dir=Path(page.control_dir)), environment)
    shelf = CopyShelf(_copies_below(environment))
    with ExitStack() as stack:
        stack.callback(shelf.close)
        stack.callback(source.close)
        databases = []
        for name in source.databases():
            databases.append(WritingOrder(name, shelf))
            stack.callback(databases[-1].close)
        searches = look_for_lost(databases, marks, lambda last: source.count(Window(end=Epoch(last + 1))))
        return [line for search in searches for line in report(search)]


def _watermark(draft: Draft) -> Watermark | None:
    if draft.obstacles or draft.begin is None or draft.begin.at is None or draft.begin.last_end is None:
        return None
    return Watermark(
        target=draft.name,
        last_end=draft.begin.last_end,
        start=epoch(draft.begin.at),
        summary=draft.summary,
        vos=frozenset(draft.vos),
        period_s=draft.period_s,
    )


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: ARC's publishing state cannot be looked at: {getattr(error, 'strerror', None) or error}; "
            "run this as a user who may, or name a copy with --state"
        ) from error
    return True


def _copies_below(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("TMPDIR") or _COPIES)
