"""GPU hours, energy and allocations of a whole database, against sums that SQLite alone makes of its rows."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.batch_stores import as_tables
from tests.support.pki import PKI
from tests.support.sacct_text import CLUSTER, jobs_of, text, write
from tests.support.sites import ConfiguredSite

PERIOD = ("--from", "2026-07", "--to", "2026-10")
TIMES = ("Submit", "Eligible", "Start", "End")
VIEW = """
CREATE TEMP VIEW job AS
SELECT JobID AS id, UsedWalltime AS wall_s, ifnull(GPUCount, 0) AS gpus, CPUCount AS cores, Queues.Name AS queue,
       Users.Name AS user, Status.Name AS status, strftime('%Y-%m-%d', EndTime, 'unixepoch') AS day,
       substr(who.InfoValue, 1, instr(who.InfoValue, ':') - 1) AS local_user,
       substr(who.InfoValue, instr(who.InfoValue, ':') + 1) AS account, project.InfoValue AS project,
       CASE instr(told.InfoValue, ' energy=') WHEN 0 THEN NULL
       ELSE CAST(substr(told.InfoValue, instr(told.InfoValue, ' energy=') + 8) AS INTEGER) END AS joules
FROM AAR JOIN Queues ON Queues.ID = QueueID JOIN Users ON Users.ID = UserID JOIN Status ON Status.ID = StatusID
LEFT JOIN JobExtraInfo AS who ON who.RecordID = AAR.RecordID AND who.InfoKey = 'localuser'
LEFT JOIN JobExtraInfo AS project ON project.RecordID = AAR.RecordID AND project.InfoKey = 'projectname'
LEFT JOIN JobExtraInfo AS told ON told.RecordID = AAR.RecordID AND told.InfoKey = 'quantities'
"""
# A meter is believed up to 20 kW and a minute.
METERED = "joules IS NOT NULL AND joules <= 20000 * (wall_s + 60)"
SUMS = f"""
SELECT {{0}}, count(*), sum(gpus > 0), sum(gpus * wall_s),
       total(CASE WHEN {METERED} THEN joules * 1.2 / 3600 END),
       total(CASE WHEN NOT ({METERED}) OR joules IS NULL THEN (cores * 5 + gpus * 300) * wall_s * 1.2 / 3600 END)
FROM job GROUP BY 1
"""
ALLOCATIONS = [
    {
        "project": name,
        "valid_from": "2026-07",
        "valid_to": "2026-10",
        "charge": 10**6,
        "unit": "CPUh",
        "gpu_hours": 10**6,
    }
    for name in ("atlas", "bio")
]


def lines(count: int) -> Iterator[dict[str, object]]:
    """Jobs and their steps; every third job was metered, some absurdly; some had 0 of a model of GPU, some more than in all."""
    for line in jobs_of(11, count):
        moved = {key: value - count * 60 for key in TIMES if isinstance(value := line[key], int)}
        number = int(str(line["JobIDRaw"]).partition(".")[0])
        joules: object = ""
        if number % 3 == 0 and "." not in str(line["JobIDRaw"]):
            joules = {0: 10**15, 3: 2**64 - 2}.get(number % 51, 1000 + number % 977)
        tres = str(line["AllocTRES"])
        if "gres/gpu=1" in tres:
            tres += ",gres/gpu:a100=1"
        elif tres and "gres/gpu" not in tres:
            tres += (",gres/gpu:a100=0", ",gres/gpu=1,gres/gpu:a100=1,gres/gpu:t4=1")[number % 2]
        given = {"AllocTRES": tres, "ConsumedEnergyRaw": joules, "Partition": ("batch", "gpu")[number % 2]}
        yield line | moved | given


@pytest.fixture(scope="module", params=[300, pytest.param(100_000, marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ConfiguredSite:
    folder = tmp_path_factory.mktemp("sums")
    pki = PKI.create(folder / "pki")
    spool = {"type": "spool", "path": str(folder / "out"), "format": "car"}
    made = ConfiguredSite(folder, pki, pki.host(), {"files": spool})
    del made.config["source"]
    made.config["importers"] = {"slurm": {"cluster": CLUSTER}}
    records = made.config["records"]
    records["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    records["power"] = {"watts_per_core": 5, "watts_per_gpu": 300, "pue": 1.2, "grams_per_kwh": 28}
    records["allocations"] = ALLOCATIONS
    made.save()
    assert made.run("import", "slurm", str(write(folder / "told.psv", text(lines(request.param))))).status == 0
    return made


def asked(site: ConfiguredSite, sql: str) -> dict[str, tuple[Any, ...]]:
    """Rows by their first column."""
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        connection.execute(VIEW)
        return {str(name): tuple(rest) for name, *rest in connection.execute(sql)}


@pytest.fixture(scope="module")
def tables(site: ConfiguredSite) -> dict[str, list[dict[str, str]]]:
    by = [f"--by={name}" for name in ("project", "account", "local-user")]
    run = site.run("report", *PERIOD, *by, "--csv", str(site.folder / "csv"), "--format", "terminal")
    assert run.status == 0, run.err
    (site.folder / "shown.txt").write_text(run.out)
    folder: Path = site.folder / "csv"
    return {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("projects", "project"),
        ("accounts", "account"),
        ("local_users", "local_user"),
        ("queues", "queue"),
        ("users", "user"),
        ("statuses", "status"),
        ("days", "day"),
    ],
)
def test_a_report_has_the_sums_of_the_rows(
    site: ConfiguredSite, tables: dict[str, list[dict[str, str]]], table: str, key: str
) -> None:
    expected = asked(site, SUMS.format(key))
    found = {row[key]: row for row in tables[table] if row["jobs"] != "0"}
    assert found.keys() == expected.keys()
    for name, (jobs, gpu_jobs, gpu_s, measured, estimated) in expected.items():
        row = found[name]
        assert (int(row["jobs"]), int(row["gpu_jobs"]), int(row["gpu_s"])) == (jobs, gpu_jobs, gpu_s)
        assert row["gpu_share"] == f"{gpu_jobs / jobs:.6f}"
        # Each job is rounded at a millionth.
        assert float(row["measured_wh"]) == pytest.approx(measured, abs=1e-6 * jobs)
        assert float(row["estimated_wh"]) == pytest.approx(estimated, abs=1e-6 * jobs)
        assert float(row["carbon_g"]) == pytest.approx((measured + estimated) * 0.028, abs=1e-6 * jobs)


@pytest.mark.parametrize("by", ["project", "account", "local-user", "queue"])
def test_stats_have_the_sums_of_the_rows(site: ConfiguredSite, by: str) -> None:
    groups = site.run("stats", "--by", by, "--json").json["groups"]
    found = {group["name"]: (group["jobs"], group["gpu_jobs"], group["gpu_s"]) for group in groups}
    expected = asked(site, SUMS.format(by.replace("-", "_")))
    assert found == {name: sums[:3] for name, sums in expected.items()}


def test_an_export_has_the_sums_of_the_rows(site: ConfiguredSite) -> None:
    wh: dict[str, Decimal] = defaultdict(Decimal)
    gpu_s = 0
    for row in csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)):
        wh[row["energy_origin"]] += Decimal(row["energy_wh"] or 0)
        gpu_s += int(row["gpu_s"] or 0)
    (expected,) = asked(site, SUMS.format("'all'")).values()
    assert gpu_s == expected[2]
    assert float(wh["measured"]) == pytest.approx(expected[3], abs=1e-6 * expected[0])
    assert float(wh["estimated"]) == pytest.approx(expected[4], abs=1e-6 * expected[0])


@pytest.mark.usefixtures("tables")
def test_absurd_meters_are_counted(site: ConfiguredSite) -> None:
    shown = (site.folder / "shown.txt").read_text()
    ((absurd,),) = asked(site, f"SELECT 1, count(*) FROM job WHERE NOT ({METERED}) AND joules IS NOT NULL").values()
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        ((beyond,),) = connection.execute(
            "SELECT count(*) FROM JobExtraInfo WHERE InfoValue LIKE '%energy_rejected=1%'"
        )
    assert absurd
    assert beyond
    assert f"! Energy: {absurd + beyond:,} jobs have a meter value that cannot be" in shown


def test_allocations_have_the_sums_of_the_rows(site: ConfiguredSite) -> None:
    found = site.run("charge", *PERIOD, "--json").json["allocations"]
    sql = "SELECT project, sum(gpus * wall_s) / 3600.0, sum(cores * wall_s) / 3600.0 FROM job {} GROUP BY 1"
    gpus = asked(site, sql.format(""))
    charged = asked(site, sql.format("WHERE status IN ('completed', 'failed') AND cores > 0"))
    for one in found:
        expected = gpus[one["project"]][0] if one["unit"] == "GPUh" else charged[one["project"]][1]
        assert float(one["used"]) == pytest.approx(expected, abs=0.1)
    assert len(found) == 4
