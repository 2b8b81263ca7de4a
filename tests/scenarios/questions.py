"""What is asked of every site: each command, in each of its ways to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.scenarios.world import FORMATS, World

WINDOW: Final = ("--from", "2026-10", "--to", "2026-10")
_BY: Final = ("vo", "user", "state", "queue", "endpoint", "month")
_FORMS: Final = (
    "brief",
    "jobcount",
    "walltime",
    "cputime",
    "data-staged-in",
    "data-staged-out",
    "wlcgvos",
    "users",
    "jobids",
    "json",
)


def send(world: World) -> None:
    """A rehearsal and a round of every target, what arrived, and a second round, which has nothing to do."""
    for target in world.config["targets"]:
        world.ask("publish", "--force", "--target", target, "--dry-run")
        world.ask("publish", "--force", "--target", target, "--json")
        world.note_wire(target)
        world.ask("-v", "publish", "--target", target)
        world.ask("publish", "--force", "--target", target)
        world.note_wire(target)


def look(world: World, jobs: Sequence[str]) -> None:
    """What the ledger knows, and how each record came about."""
    for words in (("status",), ("quarantine", "list"), ("sync", "--check")):
        world.ask(*words)
        world.ask(*words, "--json")
    world.ask("status", "--nagios")
    world.ask("sync", "--dry-run")
    for job in jobs:
        for words in (("trace", job), ("explain", job)):
            world.ask(*words)
            world.ask(*words, "--json")
        for form in (*FORMATS, "ogf-ur"):
            world.ask("explain", job, "--format", form)
        for action in ("info", "events", "transfers"):
            world.ask("job", action, job)
            world.ask("job", action, job, "--json")
    world.ask("trace", "no-such-job")
    world.ask("explain", "no-such-job")
    world.ask("job", "info", "no-such-job")


def count(world: World) -> None:
    """Local statistics, the list of jobs, charges and the report."""
    for by in _BY:
        world.ask("stats", "--by", by)
    for form in _FORMS:
        world.ask("stats", "-b", "2026-10", "-o", form)
    world.ask("stats", "--json")
    world.ask("stats", "--csv")
    world.ask("stats", "--filter-vo", "no-such-vo")
    world.ask("export")
    world.ask("export", "--format", "csv", "-b", "2026-10")
    world.ask("charge", *WINDOW)
    world.ask("charge", *WINDOW, "--json")
    world.ask("report", *WINDOW, "--format", "terminal")
    tables = world.folder / "tables"
    world.ask("report", *WINDOW, "-o", str(world.folder / "report.html"), "--csv", str(tables))
    for path in sorted(tables.glob("*")):
        world.note(f"report {path.name}", path.read_text())
    for kind in ("jobs", "users", "vos", "queues", "endpoints", "targets"):
        world.ask("complete", kind)


def check(world: World) -> None:
    """The configuration, and everything that could keep records from going out."""
    world.ask("config", "check")
    world.ask("config", "show")
    world.ask("doctor")
    world.ask("doctor", "--json")
    world.ask("doctor", "--nagios")


def send_again(world: World) -> None:
    """A window, whatever was delivered: announced, sent, and the counts told."""
    for target in world.config["targets"]:
        world.ask("republish", *WINDOW, "--target", target, "--dry-run")
        world.ask("republish", *WINDOW, "--target", target, "--yes", "--json")
        world.note_wire(target)
    world.ask("sync")
    world.ask("sync", "--json")
    for target in world.config["targets"]:
        world.note_wire(target)
    world.ask("sync", "--check", "--json")
    world.ask("status", "--json")


def ask_everything(world: World, jobs: Sequence[str]) -> None:
    """All of the above, and what Prometheus is told of it."""
    metrics = world.folder / "publisher.prom"
    world.config["metrics"] = {"textfile": str(metrics)}
    check(world)
    send(world)
    look(world, jobs)
    count(world)
    send_again(world)
    world.note("metrics", metrics.read_text() if metrics.exists() else "none\n")
