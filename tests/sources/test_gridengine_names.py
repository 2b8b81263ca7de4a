"""Job names and accounts that hold colons, in a format that escapes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from publisher.sources.gridengine.records import GridEngineRecord, StampUnit, read_line
from tests.support.gridengine_files import Entry, colon, jobs, run_import, totals, write

ANY = Entry()
CASES = Path(__file__).parent / "gridengine_cases"


def read(line: bytes) -> tuple[list[GridEngineRecord], str]:
    return read_line(line.rstrip(b"\n"), StampUnit.AUTO)


@pytest.mark.parametrize(
    ("name", "job_names"),
    [
        ("colon-in-name", {"579398": "case0:mesh:00000001:post", "579399": "plain"}),
        ("one-char", {"3": "n"}),
        ("pipe-name", {"579399": "G03|Opt;Freq"}),
        ("crlf", {"1810": "run.sh", "1811": "run.sh"}),  # ends of lines as Windows has them
    ],
)
def test_files_of_sites_give_every_job(name: str, job_names: dict[str, str], tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", CASES / f"{name}.accounting")
    found = jobs(tmp_path / "imported.db").values()
    assert (report.exit_status, report.bad, report.lines) == (0, 0, len(job_names))
    assert {job["LocalJobID"]: dict(job["extra"])["jobname"] for job in found} == job_names


def test_a_name_with_colons_changes_no_number(tmp_path: Path) -> None:
    run_import(tmp_path / "imported.db", CASES / "colon-in-name.accounting")
    assert totals(tmp_path / "imported.db") == (2, 2 * 3600, 2 * 14_000)
    for job in jobs(tmp_path / "imported.db").values():
        assert (job["CPUCount"], job["UsedWalltime"], job["Queue"]) == (4, 3600, "long")


@pytest.mark.parametrize("columns", [43, 45, 52, 74])
@pytest.mark.parametrize("category", ["NONE", "-l cpu=24:00:00,h_rt=1:00:00"])
@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("case0:mesh:00000001:post", "sge"),
        ("a:b", "sge"),
        (":", "sge"),
        ("::", ""),
        ("", "a:b"),
        ("12:30:run", "sge"),
        ("run:12", "sge"),
        ("run:12:0:1790000000:1790000001:1790000002:0:0", "sge"),
        ("plain", "cms:prod"),
        ("plain", "cms:prod:42"),
        ("case:001:post", "cms:prod:007:x"),
        ("node:7", "sge"),
        ("ada:users", "sge"),
    ],
)
def test_colons_in_names_and_accounts_stay_there(name: str, account: str, category: str, columns: int) -> None:
    entry = replace(ANY, name=name, account=account, category=category)
    plain = replace(entry, name="n", account="a")
    ((record,), wrong) = read(colon(entry, columns=columns))
    ((other,), _) = read(colon(plain, columns=columns))
    assert (record._replace(name="n", account="a"), wrong) == (other, "")
    assert (record.name, record.account) == (name, account)


def test_a_line_with_two_possible_job_numbers_is_set_aside() -> None:
    """Both the name and the account have colons and numbers: the number decides which job it was."""
    records, wrong = read(colon(replace(ANY, name="case:12:post", account="cms:prod")))
    assert records == []
    assert "12 or 4711" in wrong
    assert "job number" in wrong


def test_a_torn_line_and_another_are_no_name_with_colons() -> None:
    """Written by another host, in another queue, for another group: only the hosts' names are alike."""
    torn = colon(replace(ANY, name="first"), columns=45)
    other = replace(ANY, job=12, queue="long", host="node7.example.org", group="physics", owner="eve", name="mesh:1:x")
    after_host = torn.index(b":", torn.index(b":") + 1) + 1
    for cut in range(after_host, len(torn)):
        records, wrong = read(torn[:cut].rstrip() + colon(other))
        assert (records, bool(wrong)) == ([], True), cut


def test_lines_of_at_most_one_character_are_no_records(tmp_path: Path) -> None:
    """accounting(5) says so, and qacct does so."""
    path = write(tmp_path / "accounting", [b".\n", colon(ANY), b"\n", b"x\r\n", b"#\n", b"\xe9\n", b"{\n", b".x\n"])
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.lines) == (1, 2)
    assert [bad.line for bad in report.bad_lines] == [b".x"]
