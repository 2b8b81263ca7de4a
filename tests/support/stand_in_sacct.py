"""A program that answers as sacct does, from lines in a file, and fails as it is told to.

    python stand_in_sacct.py FOLDER ...sacct's arguments...

FOLDER holds `lines` (as `sacct_text.job` and `step` make them), `calls` (the arguments of each call, a line each), `pid`,
and may hold `mishap`: `fail`, `nothing`, `no jobs`, `hang`, `flood` or `torn`.

Tests start it many thousands of times: it imports nothing that takes long to load.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # for real, `typing` takes as long to load as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def install(folder: Path, lines: Iterable[dict[str, object]]) -> tuple[str, ...]:
    """The command that answers from these lines."""
    folder.mkdir(exist_ok=True)
    told = ("\x1f".join(f"{column}={value}" for column, value in line.items()) for line in lines)
    (folder / "lines").write_text("\x1e".join(told), encoding="utf-8")
    return (sys.executable, "-S", __file__, str(folder))


def _epoch(text: str) -> int:
    """Of a time in UTC, which is this process's zone too."""
    day, _, hour = text.partition("T")
    year, month, day_of_month = map(int, day.split("-"))
    hours, minutes, seconds = map(int, hour.split(":"))
    return int(time.mktime((year, month, day_of_month, hours, minutes, seconds, 0, 0, 0)))


def _read(path: str) -> str:
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def _columns(line: str) -> dict[str, str]:
    return {column: value for column, _, value in (pair.partition("=") for pair in line.split("\x1f"))}


def main(folder: str, arguments: list[str]) -> int:
    with open(f"{folder}/pid", "w") as pid:
        pid.write(str(os.getpid()))
    with open(f"{folder}/calls", "a") as calls:
        calls.write(" ".join(arguments) + "\n")
    mishap = _read(f"{folder}/mishap")
    if mishap == "fail":
        print("sacct: error: slurm_persist_conn_open: Connection refused", file=sys.stderr)
        print("sacct: error: Problem talking to the database", file=sys.stderr)
        return 1
    gives_up = time.monotonic() + 300  # nothing is left behind where a test fails
    while mishap == "hang" and os.path.exists(f"{folder}/mishap") and time.monotonic() < gives_up:
        time.sleep(0.1)
    if mishap == "nothing":
        return 0
    lines = [_columns(line) for line in _read(f"{folder}/lines").split("\x1e") if line]
    if arguments == ["--helpformat"]:
        print("  ".join(sorted({column for line in lines for column in line})))
        return 0
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if "=" in one)
    columns, delimiter = given["format"].split(","), given["delimiter"]
    assert os.environ["TZ"] == "UTC"
    assert os.environ["SLURM_TIME_FORMAT"] == "%s"
    assert {"--allusers", "--duplicates", "--parsable2"} <= set(arguments)
    begin, end = _epoch(given["starttime"]), _epoch(given["endtime"])
    print(delimiter.join(columns))
    if mishap == "no jobs":
        return 0
    for line in lines:
        if line["Cluster"] == given["clusters"] and line["End"].isdigit() and begin <= int(line["End"]) <= end:
            print(delimiter.join(line.get(column, "") for column in columns))
            if mishap == "torn":
                sys.stdout.flush()
                os.kill(os.getpid(), 9)
    while mishap == "flood":
        print("x" * 100_000)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
