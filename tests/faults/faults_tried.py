"""docs/faults.md, the faults that were tried, by real runs: `make faults`, or `python -m tests.faults.faults_tried`.

Runs the tests that the rows name, and the ordinary random walks, and counts what happened by pytest's report. Without
`--write` it prints the page.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from lxml import etree

from tests.faults.fault_rows import EVENTS, MACHINE, REACTIONS, Rows
from tests.faults.test_every_call import CASES
from tests.faults.test_fault_table import AMS, AUDITOR, SGAS
from tests.faults.walk_dangers import DANGERS
from tests.faults.walk_faults import MISFORTUNES

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
STORIES: Final = Path(__file__).with_name("stories.json")
"""What `make stories` told, run by run."""
CALLS: Final = Path(__file__).with_name("calls.jsonl")
"""What the long test of test_every_call.py told to CALLS_TOLD, case by case."""
_PLACES: Final = {
    "state": "the ledger",
    "control": "the accounting database",
    "outgoing": "the spool",
    "logs": "accounting files",
    "sockets": "sockets",
}
_HEAD: Final = """\
# Faults that were tried

Each of these is made to happen by the tests, against stand-ins for the services over real TLS. `make faults` tries all of them
again and writes this page.
"""
WALKS, STEPS = 8, 250
WALK: Final = "faults/test_random_walk::test_a_walk_ends_with_every_job_at_its_receivers_once"
_SERVICES: Final[dict[str, Rows]] = {
    "The messaging service": AMS,
    "SGAS": SGAS,
    "AUDITOR": AUDITOR,
    "The machine": MACHINE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was tried: how often each row by its fault, and each kind of the walks."""

    on: date
    rows: Mapping[str, int]
    kinds: Mapping[str, int]


def kinds() -> list[str]:
    """Every kind of fault that the walks know."""
    return [*(f"fault: {each}" for each in MISFORTUNES), *(f"danger: {each}" for each in DANGERS), *EVENTS]


def render(tried: Tried) -> Iterator[str]:
    """The page, in pieces."""
    yield f"{_HEAD}\nAs of {tried.on.isoformat()}. First one at a time:\n\n"
    for place, rows in _SERVICES.items():
        yield f"| {place} | What `publisher` does | Tried |\n|---|---|---|\n"
        yield from (f"| {fault} | {reaction} | {tried.rows[fault]} |\n" for fault, reaction, _ in rows)
        yield "\n"
    yield from _calls()
    yield from _stories()
    yield (
        f"Then all at once and at random, in {WALKS} walks of {STEPS} steps with three targets, each of which ended with every "
        "job at every receiver, none twice, every exit status right, and no secret in any log, address or file:\n\n"
    )
    yield "| Where | Fault (how often it was met) | What `publisher` does |\n|---|---|---|\n"
    grouped: dict[tuple[str, int], list[str]] = defaultdict(list)
    for each in MISFORTUNES:
        grouped[each.service, each.status].append(f"{each.name} ({tried.kinds[f'fault: {each}']})")
    for (service, status), faults in grouped.items():
        yield f"| {service} | {'; '.join(faults)} | {REACTIONS[status]} |\n"
    for name, (what, reaction) in DANGERS.items():
        yield f"| machine | {what} ({tried.kinds[f'danger: {name}']}) | {reaction} |\n"
    events = "; ".join(f"{what} ({tried.kinds[name]})" for name, what in EVENTS.items())
    yield f"| A-REX, services, administrators | {events} | goes on, and every exit status says what is the matter |\n"


def _calls() -> Iterator[str]:
    """What every single call did that failed, and which cases were not tried to their last call."""
    told = list(map(json.loads, CALLS.read_text().splitlines()))
    days = sorted({one["on"] for one in told})
    yield (
        f"Then every call of the C library, one after another, {sum(one['tried'] for one in told):,} failures "
        f"(`test_every_call_fails`, {' and '.join(days)}): each call alone, and each with all that follow it wherever that "
        "can end. Each time the command ended as documented and said what to do, and after the next round each job was at "
        "each receiver once:\n\n| Command, place | Calls that failed |\n|---|---|\n"
    )
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in told:
        counts[_where(one["command"], one["place"])][one["error"]] += one["tried"]
    for where, errors in counts.items():
        yield f"| {where} | {', '.join(f'{error} {number:,}' for error, number in errors.items() if number)} |\n"
    tried = {(one["command"], one["place"], one["error"], one["forever"]) for one in told}
    left = {_where(case.values[0], case.values[1]): None for case in CASES if case.values not in tried}
    if left:
        yield f"\nNot to the last call that day, or not with every error: {'; '.join(left)}.\n"
    yield "\n"


def _where(command: object, place: object) -> str:
    return f"`{command}`, {_PLACES[str(place)]}"


def _stories() -> Iterator[str]:
    """What random stories did, in runs that last as long as one likes."""
    runs = json.loads(STORIES.read_text())
    counts: Counter[str] = Counter()
    for one in runs:
        counts.update(one["counts"])
    steps, stories = counts.pop("steps"), counts.pop("stories")
    days = sorted({one["on"] for one in runs})
    yield (
        f"Then steps at random, {steps:,} of them in {stories:,} stories of up to 80 (`make stories`, {' and '.join(days)}), "
        "with two sources, AMS, SGAS, AUDITOR and a spool, the ledger in SQLite or PostgreSQL. Each story that is counted "
        "ended with every job at every receiver once, and the ledger sound:\n\n| Step | Taken |\n|---|---|\n"
    )
    failed = Counter({what.removeprefix("failed: "): number for what, number in counts.items() if ": " in what})
    for what, number in sorted(counts.items()):
        if not what.startswith("failed: "):
            yield f"| {what} | {number:,} |\n"
    met = "; ".join(f"{what} {number:,}" for what, number in sorted(failed.items()))
    yield f"\nThe calls that failed in them, by their ends and places: {met}.\n\n"


def run_tests(pointers: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """Run tests, and count as `counted` does. Raises: SystemExit when one fails."""
    with tempfile.TemporaryDirectory(prefix="publisher-faults-") as folder:
        report = Path(folder) / "junit.xml"
        ids = [f"tests/{module}.py::{name}" for module, _, name in (pointer.partition("::") for pointer in pointers)]
        command = [sys.executable, "-m", "pytest", "-q", "--dist=load", f"--junit-xml={report}", *sorted(set(ids))]
        if status := subprocess.run(command, check=False, cwd=PAGE.parents[1]).returncode:
            sys.exit(f"the tests ended with {status}: no table is written")
        return counted(etree.parse(report).getroot())


def counted(report: etree._Element) -> tuple[Counter[str], Counter[str]]:
    """Of a JUnit report: how often each folder/module::test tried its fault, and how often the walks met each kind.

    A test tells by its property `tried`, or else by its cases; a walk has a property for each kind.
    """
    found: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for case in report.iter("testcase"):
        if case.find("skipped") is None:
            module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            name = f"{module}::{case.get('name', '').partition('[')[0]}"
            told = [(each.get("name", ""), int(each.get("value", ""))) for each in case.iter("property")]
            found[name] += sum(number for kind, number in told if kind == "tried") or 1
            met.update(dict(told))
    return found, met


def try_all(today: date) -> Tried:
    """All of it. Takes minutes. Raises: SystemExit."""
    every = [row for rows in _SERVICES.values() for row in rows]
    tests, met = run_tests([WALK, *(pointer for _, _, pointers in every for pointer in pointers)])
    rows = {fault: sum(tests[pointer] for pointer in pointers) for fault, _, pointers in every}
    return Tried(on=today, rows=rows, kinds={kind: met[kind] for kind in kinds()})


def read(text: str) -> Tried:
    """The numbers of a page that `render` wrote; 0 for what is not in it. Raises: ValueError: no date."""
    on = re.search(r"^As of (\S+)\. ", text, re.MULTILINE)
    if on is None:
        raise ValueError("the page has no date")
    rows = {fault: int(number) for fault, number in re.findall(r"^\| (.+?) \| .+ \| (\d+) \|$", text, re.MULTILINE)}
    words = [each for line in text.splitlines() if line.startswith("|") for each in re.split(r" ?\| ?|; ", line)]
    numbers = [found[1] for each in words if (found := re.fullmatch(r".+ \((\d+)\)", each))]
    return Tried(
        on=date.fromisoformat(on[1]),
        rows=defaultdict(int, rows),
        kinds=defaultdict(int, zip(kinds_in_order(), map(int, numbers), strict=False)),
    )


def kinds_in_order() -> list[str]:
    """As in the page: those of services grouped by what comes of them."""
    grouped: dict[tuple[str, int], list[str]] = defaultdict(list)
    for each in MISFORTUNES:
        grouped[each.service, each.status].append(f"fault: {each}")
    return [*(kind for group in grouped.values() for kind in group), *kinds()[len(MISFORTUNES) :]]


def main(arguments: list[str]) -> None:
    text = "".join(render(try_all(datetime.now(UTC).date())))
    if arguments == ["--write"]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
