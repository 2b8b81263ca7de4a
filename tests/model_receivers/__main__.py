"""Play many stories, count failures by kind, and shrink the first of each.

`python -m tests.model_receivers --stories 1000 --first 1 [--keep] [--ledger postgres] [--log FILE]
[--replay "SEED, [(event, seed), ...]"]`
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.model_receivers.ledgers import LedgerInPostgres, LedgerInSqlite
from tests.model_receivers.oracle import holdings
from tests.model_receivers.site import place_of
from tests.model_receivers.stories import FULL, Stored, outcome, play, shrunk, story
from tests.model_receivers.stories.events import World
from tests.support.postgres import binaries, private_server


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.model_receivers", description=__doc__)
    asked.add_argument("--stories", type=int, default=200)
    asked.add_argument("--first", type=int, default=1)
    asked.add_argument("--log", type=Path, help="append the numbers to this file")
    asked.add_argument("--jobs", type=int, default=1, help="processes")
    asked.add_argument("--no-shrink", action="store_true")
    asked.add_argument("--keep", action="store_true", help="only stories in which months are closed")
    asked.add_argument("--replay", help="play one story, as it was printed")
    asked.add_argument("--ledger", choices=("sqlite", "postgres"), default="sqlite", help="where ledgers are")
    given = asked.parse_args()
    with ledgers(given.ledger) as stored:
        if given.replay:
            seed, events = ast.literal_eval(given.replay)
            print(play(seed, events, gentle=FULL.gentle, told=_told, stored=stored) or "all is right")
            return 0
        return count(given, stored)


@contextmanager
def ledgers(kind: str) -> Iterator[Stored]:
    """Give what makes the ledger of a story; a server for all of them ends afterwards."""
    if kind == "sqlite":
        yield LedgerInSqlite
        return
    programs = binaries()
    if programs is None or find_spec("psycopg") is None:
        sys.exit("needs PostgreSQL and psycopg (Debian: postgresql and python3-psycopg)")
    with private_server(programs) as server:
        yield partial(LedgerInPostgres, server.folder)


def count(given: argparse.Namespace, stored: Stored) -> int:
    """Play stories; each that ends wrong is printed at once, the counts after all, and then a shrunk story of each kind."""
    began, failed, first = time.monotonic(), Counter[str](), dict[str, int]()
    seeds = range(given.first, given.first + given.stories)
    with ProcessPoolExecutor(given.jobs) as pool:
        for seed, wrong in zip(seeds, pool.map(partial(_played, stored, given.keep), seeds, chunksize=5), strict=True):
            failed.update(wrong)
            for kind in wrong:
                first.setdefault(kind, seed)
                print(f"{seed}: {kind}", flush=True)
        seconds = time.monotonic() - began
        say(given, f"{len(seeds)} stories from {given.first} on, {seconds:.0f} s, {len(seeds) / seconds:.1f} a second")
        for kind, times in failed.most_common():
            say(given, f"{times:6} {kind}")
        wanted = [] if given.no_shrink else list(first.items())
        for line in pool.map(partial(_shrunk, stored, given.keep), wanted):
            say(given, line)
    return 1 if failed else 0


def say(given: argparse.Namespace, line: str) -> None:
    print(line, flush=True)
    if given.log:
        with given.log.open("a") as log:
            log.write(f"{line}\n")


def _shrunk(stored: Stored, keeps: bool, found: tuple[str, int]) -> str:
    kind, seed = found
    return f'{kind}: "{seed}, {shrunk(seed, story(seed, keeps=keeps), kind, gentle=FULL.gentle, stored=stored)}"'


def _told(step: str, world: World) -> None:
    print(f"--- {step}, {world.product.now:%Y-%m-%d %H:%M}; site {world.config['site']}, {world.config['records']}")
    for name, target in world.config["targets"].items():
        print(f"  target {name}: {target['format']} to {place_of(target)}, VOs {target.get('vos', 'all')}")
    for ce in world.ces:
        for job in ce.rows.values():
            end = datetime.fromtimestamp(job.end_time, UTC)
            print(
                f"  row {job.job_id} {job.local_job_id} {end:%Y-%m-%d %H:%M} {job.vo} {job.wall_s}/{job.cpu_user_s} x{job.cpus}"
            )
    for place, model in world.product.models.items():
        for group, total in sorted(holdings(deepcopy(model), place).items()):
            print(f"  {place} has {group.month} {group.ce} x{group.processors}: {total}")
    for name, one in world.last.json.get("targets", {}).items():
        held = [month["month"] for month in one["held"]]
        print(f"  last round of {name}: {one['outcome']}, {one['records']} records, held {held} {one['reason'] or ''}")


def _played(stored: Stored, keeps: bool, seed: int) -> list[str]:
    return outcome(seed, story(seed, keeps=keeps), gentle=FULL.gentle, stored=stored)


if __name__ == "__main__":
    sys.exit(main())
