"""Taking over from ARC: its arc.conf becomes our configuration, and its publishing state decides where we start.

`reader.py` reads the file, `values.py` resolves what it refers to, `page.py` writes ours (`site.py` what all targets share,
`targets.py` the targets), and `publishing_state.py` says where a target begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from publisher.config.from_arc.page import ConfigurationText, control_dir_of, make_page
from publisher.config.from_arc.publishing_state import read_publishing_state
from publisher.config.from_arc.reader import ArcConf, parse_arc_conf, read_arc_conf
from publisher.config.from_arc.targets import Takeover
from publisher.model.errors import SourceError
from publisher.sources.sqlite_reader import copies_directory

__all__ = [
    "ArcConf",
    "ConfigurationText",
    "Takeover",
    "convert",
    "make_page",
    "parse_arc_conf",
    "read_arc_conf",
]

_STATE: Final = "accounting/publishing.db"


def convert(
    path: Path, *, state: Path | None, site: str, now: datetime, environment: Mapping[str, str]
) -> ConfigurationText:
    """Our configuration, made of an arc.conf and ARC's publishing state (default: below its control directory).

    Raises: ConfigError, UsageError, and SourceError for a state that is there and cannot be read: it is not a state of nothing.
    """
    conf = read_arc_conf(path)
    control_dir = control_dir_of(conf)
    where = state or (control_dir / _STATE if control_dir else None)
    stopped = None
    if where is not None and (state is not None or _is_there(where)):
        stopped = read_publishing_state(where, copies_directory(environment))
    return make_page(conf, Takeover(stopped=stopped, where=str(where or _STATE), now=now), site=site)


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
