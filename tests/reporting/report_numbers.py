"""What a report must say of accounting data, asked of the database directly; and what its page and files do say."""

from __future__ import annotations

import csv
import io
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from lxml import html

Row = dict[str, Any]

# One row a finished job of an A-REX database of schema 2, with everything that a report tells of it. Local time is Oslo's, in
# which the clocks went back on 2026-10-25: of two moments, the one that fits the wall time better.
JOBS: Final = """
CREATE TEMP VIEW job AS
SELECT AAR.RecordID AS id, JobID, replace(Users.Name, '%27', '''') AS user, WLCGVOs.Name AS vo, Queues.Name AS queue,
       Status.Name AS status, date(EndTime, 'unixepoch') AS day, EndTime, SubmitTime, UsedWalltime AS wall,
       UsedWalltime * max(coalesce(CPUCount, 0), 1) AS wall_core, UsedCPUUserTime + UsedCPUKernelTime AS cpu,
       coalesce(CPUCount, 0) < 1 AS coreless,
       coalesce((SELECT InfoValue FROM JobExtraInfo AS x
                 WHERE x.RecordID = AAR.RecordID AND InfoKey = 'projectname' ORDER BY rowid LIMIT 1), '') AS project,
       coalesce(nullif(Benchmarks.Name, ''), 'HEPscore23:11.5') AS benchmark,
       (SELECT strftime('%s', EventTime) FROM JobEvents AS e
        WHERE e.RecordID = AAR.RecordID AND EventKey = 'LRMSSTART' ORDER BY rowid DESC LIMIT 1) AS local_start
FROM AAR JOIN Users ON Users.ID = UserID JOIN WLCGVOs ON WLCGVOs.ID = VOID JOIN Queues ON Queues.ID = QueueID
     JOIN Status ON Status.ID = StatusID LEFT JOIN Benchmarks ON Benchmarks.ID = BenchmarkID
WHERE EndTime >= :first AND EndTime < :end AND Status.Name <> 'in-progress';
CREATE TEMP VIEW timed AS
SELECT job.*, substr(benchmark, 1, instr(benchmark, ':') - 1) AS kind,
       CAST(round(substr(benchmark, instr(benchmark, ':') + 1) * 1000) AS INTEGER) AS thousandths,
       CASE WHEN local_start < strftime('%s', '2026-10-25 02:00:00') THEN local_start - 7200
            WHEN local_start >= strftime('%s', '2026-10-25 03:00:00') THEN local_start - 3600
            WHEN abs(EndTime - (local_start - 7200) - wall) <= abs(EndTime - (local_start - 3600) - wall)
            THEN local_start - 7200 ELSE local_start - 3600 END - SubmitTime AS wait
FROM job;
"""
USED: Final = """
SELECT {by} AS name, count(*) AS jobs, sum(status = 'failed') AS failed, sum(wall) AS wall_s, sum(wall_core) AS wall_core_s,
       sum(cpu) AS cpu_s, sum(status = 'failed') * 1.0 / count(*) AS failed_share,
       sum(cpu) * 1.0 / nullif(sum(wall_core), 0) AS cpu_efficiency,
       sum(CASE WHEN kind = 'HEPscore23' THEN wall_core * thousandths END) AS scaled_wall_core_hepscore23_s,
       sum(CASE WHEN kind = 'HEPSPEC' THEN wall_core * thousandths END) AS scaled_wall_core_hepspec_s,
       sum(CASE WHEN kind = 'Si2k' THEN wall_core * thousandths END) AS scaled_wall_core_si2k_s
FROM timed GROUP BY 1"""
# Each table of what jobs used, by the column of the view.
TABLES: Final = {
    "days": "day",
    "vos": "vo",
    "queues": "queue",
    "users": "user",
    "projects": "project",
    "statuses": "status",
    "benchmarks": "kind || ' ' || rtrim(rtrim(printf('%.3f', thousandths / 1000.0), '0'), '.')",
}
WAIT_BOUNDS: Final = {
    "< 1 min": (0, 60),
    "1-5 min": (60, 300),
    "5-15 min": (300, 900),
    "15-60 min": (900, 3600),
    "1-4 h": (3600, 14_400),
    "4-12 h": (14_400, 43_200),
    "12-24 h": (43_200, 86_400),
    "1-3 days": (86_400, 259_200),
    "> 3 days": (259_200, 10**12),
}


class Truth:
    """Questions to the accounting database of a window."""

    def __init__(self, path: Path, first: int, end: int) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.row_factory = sqlite3.Row
        # Views take no parameters.
        self._connection.executescript(JOBS.replace(":first", str(first)).replace(":end", str(end)))

    def ask(self, question: str) -> list[Row]:
        return [dict(row) for row in self._connection.execute(question)]

    def one(self, expression: str, where: str = "1") -> Any:
        return self._connection.execute(f"SELECT {expression} FROM timed WHERE {where}").fetchone()[0]

    def used(self, table: str) -> dict[str, Row]:
        return {row.pop("name"): row for row in self.ask(USED.format(by=TABLES[table]))}

    def waits(self, queue: str) -> list[int]:
        """In seconds, of those whose start is known, in order."""
        return [row["wait"] for row in self.ask("SELECT queue, wait FROM timed ORDER BY wait") if _is(row, queue)]

    def close(self) -> None:
        self._connection.close()


def _is(row: Row, queue: str) -> bool:
    return row["queue"] == queue and row["wait"] is not None


def sql(path: Path, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(question).fetchall()


def csv_rows(text: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(text)))


def page_tables(text: str) -> dict[str, list[Row]]:
    """Every table of a page by its caption: the plain values of its cells by their headings; its foot comes last."""
    found: dict[str, list[Row]] = {}
    for table in html.document_fromstring(text).iterfind(".//table"):
        heads = [words(head) for head in table.iterfind("thead/tr/th")]
        rows = []
        for row in (*table.iterfind("tbody/tr"), *table.iterfind("tfoot/tr")):
            cells = [cell.get("data-value", words(cell)) for cell in row]
            rows.append(dict(zip(heads, cells, strict=True)))
        found[table.findtext("caption") or ""] = rows
    return found


def words(element: Any) -> str:
    """The text in an element, whatever is around it."""
    return "".join(element.itertext()).strip()
