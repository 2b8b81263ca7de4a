"""A program that answers as sacct does, from lines in a file, and fails as it is told to.

    python stand_in_sacct.py FOLDER ...sacct's arguments...

FOLDER holds `lines.json` (as `sacct_text.job` and `step` make them), `calls` (the arguments of each call, a line each),
`pid`, and may hold `mishap`: `fail`, `nothing`, `no jobs`, `hang`, `flood` or `torn`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path


def install(folder: Path, lines: Iterable[dict[str, object]]) -> tuple[str, ...]:
    """The command that answers from these lines."""
    folder.mkdir(exist_ok=True)
    (folder / "lines.json").write_text(json.dumps(list(lines)))
    return (sys.executable, "-S", str(Path(__file__)), str(folder))


def _epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def main(folder: Path, arguments: list[str]) -> int:
    (folder / "pid").write_text(str(os.getpid()))
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    mishap = (folder / "mishap").read_text() if (folder / "mishap").exists() else ""
    if mishap == "fail":
        print("sacct: error: slurm_persist_conn_open: Connection refused", file=sys.stderr)
        print("sacct: error: Problem talking to the database", file=sys.stderr)
        return 1
    gives_up = time.monotonic() + 300  # nothing is left behind where a test fails
    while mishap == "hang" and (folder / "mishap").exists() and time.monotonic() < gives_up:
        time.sleep(0.1)
    if mishap == "nothing":
        return 0
    lines = json.loads((folder / "lines.json").read_text())
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
        if line["Cluster"] == given["clusters"] and isinstance(line["End"], int) and begin <= line["End"] <= end:
            print(delimiter.join(str(line.get(column, "")) for column in columns))
            if mishap == "torn":
                sys.stdout.flush()
                os.kill(os.getpid(), 9)
    while mishap == "flood":
        print("x" * 100_000)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
