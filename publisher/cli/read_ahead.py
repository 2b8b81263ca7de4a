"""The process that reads a backlog: pages to standard output, for the one that sends them.

pipeline/round/rendering/read_ahead.py starts it and reads the pages.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Final

from publisher.cli.site import configured_site, sent_by_jura
from publisher.formats import job_format, receiver_of
from publisher.model.time import Window
from publisher.pipeline.round.decision import Decider
from publisher.pipeline.round.rendering.read_ahead import BUFFER_BYTES, order_from, write_pages

_CYCLES_AFTER: Final = 20_000  # as in main.py, which it does without


def read_ahead() -> None:
    """Write the pages of a target's backlog, as the command line orders them.

    No page where the configuration was changed meanwhile. Trouble ends it without a word: the other
    process meets the same.
    """
    path, name, digest, order = sys.argv[1:]
    gc.set_threshold(_CYCLES_AFTER)
    site = configured_site(Path(path), threading.Event())
    target = next(one for one in site.targets if one.name == name)
    if site.reading_digest(target) != digest:
        return
    asked = order_from(order)
    decider = Decider(
        selection=target.selection(Window(start=asked.start)),
        policy=target.policy,
        policy_digest=site.policy_digest(target),
        changed=receiver_of(target.format).on_change,
        sent_by_jura=sent_by_jura(target),
    )
    # Not `sys.stdout.buffer`, which PYTHONUNBUFFERED makes write as much as goes at once.
    with (
        closing(site.source(to_publish=True)) as source,
        os.fdopen(1, "wb", BUFFER_BYTES, closefd=False) as out,
    ):
        write_pages(job_format(target.format), decider, source, asked, out)
