"""Energy and CO2 of jobs: as measured, else by rules, job by job and in sums, and never in a record."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from publisher.formats import JOB_FORMATS, job_format
from publisher.model.job import Epoch, JobRecord
from publisher.model.rates import JobEnergy
from publisher.model.time import Window
from publisher.reporting.charges.power import CarbonPeriod, CarbonTable, Power, PowerRule
from tests.fake_ams.service import FakeAMS
from tests.support.batch_stores import as_tables
from tests.support.imported_sites import bring_in, local_site
from tests.support.jobs import ENDED, make_job, make_policy
from tests.support.metrics_site import WatchedSite
from tests.support.pki import PKI
from tests.support.sacct_text import CLUSTER, job, text, write
from tests.support.sites import SiteUnderTest

HOUR = 3600
RULE = PowerRule(watts_per_core=Decimal(5), watts_per_gpu=Decimal(300), pue=Decimal("1.2"))


UNKNOWN = JobEnergy(wh=None, measured_wh=Decimal(0), grams=None, meter_rejected=False)


def measured(wh: int) -> JobEnergy:
    return UNKNOWN._replace(wh=Decimal(wh), measured_wh=Decimal(wh))


def hours(count: int, **values: Any) -> JobRecord:
    return make_job(wall_s=count * HOUR, started_at=Epoch(ENDED - count * HOUR), **values)


def energy(of: JobRecord, *rules: PowerRule) -> JobEnergy:
    return Power(rules=rules).energy(of)


# One job


@pytest.mark.parametrize(
    ("values", "wh"),
    [
        ({"cpu_count": 4}, 2 * 4 * 5),
        ({"cpu_count": 4, "gpu_count": 2}, 2 * (4 * 5 + 2 * 300)),
        ({"cpu_count": None, "gpu_count": 2}, None),
        ({"cpu_count": 4, "quantities": (("energy", 36_000),)}, 10),
    ],
)
def test_a_meter_comes_before_watts_and_both_before_cooling(values: dict[str, Any], wh: int | None) -> None:
    found = energy(hours(2, **values), RULE)
    assert found.wh == (None if wh is None else wh * Decimal("1.2"))
    assert bool(found.measured_wh) == ("quantities" in values)


def test_without_a_rule_what_was_measured_remains() -> None:
    assert energy(hours(1)) == UNKNOWN
    found = energy(hours(1, quantities=(("energy", 7200),)))
    assert found == measured(2)
    only_carbon = PowerRule(grams_per_kwh=Decimal(28))
    assert energy(hours(1), only_carbon).wh is None
    assert energy(hours(1, quantities=(("energy", 7200),)), only_carbon).grams == Decimal("0.056")


@pytest.mark.parametrize("quantities", [(("energy", 20_000 * (2 * HOUR + 60) + 1),), (("energy_rejected", 1),)])
def test_a_meter_that_cannot_be_gives_way_to_the_estimate(
    quantities: tuple[tuple[str, int], ...],
) -> None:
    found = energy(hours(2, cpu_count=4, quantities=quantities), RULE)
    assert found == UNKNOWN._replace(wh=Decimal(48), meter_rejected=True)
    assert energy(hours(2, quantities=quantities)).wh is None


def test_a_large_meter_of_many_nodes_is_believed() -> None:
    found = energy(hours(2, node_count=2, quantities=(("energy", 20_000 * 2 * (2 * HOUR)),)))
    assert found == measured(80_000)


def test_cores_are_estimated_where_gpus_alone_were_metered() -> None:
    found = energy(hours(2, cpu_count=4, gpu_count=2, quantities=(("gpu_energy", 720_000),)), RULE)
    assert found == UNKNOWN._replace(wh=Decimal(288), measured_wh=Decimal(240))
    assert energy(hours(2, gpu_count=2, quantities=(("gpu_energy", 720_000),))) == measured(200)
    both = (("energy", 3_600_000), ("gpu_energy", 720_000))
    assert energy(hours(2, quantities=both)) == measured(1000)


def test_the_rule_is_that_of_queue_host_and_start() -> None:
    def watts(number: int, **place: Any) -> PowerRule:
        return PowerRule(watts_per_core=Decimal(number), **place)

    rules = (
        watts(1),
        watts(2, queues=("gpu*",)),
        watts(3, hosts=("wn0*", "old*")),
        watts(4, queues=("gpu*",), valid=Window(start=Epoch(ENDED - HOUR))),
    )

    def chosen(hours_long: int = 2, **values: Any) -> Decimal | None:
        return energy(hours(hours_long, cpu_count=1, **values), *rules).wh

    assert chosen(queue="cpu", hosts=("n1",)) == 2 * 1
    assert chosen(queue="gpu1", hosts=("n1",)) == 2 * 2
    assert chosen(queue="cpu", hosts=("n1", "wn01")) == 2 * 3
    assert chosen(1, queue="gpu1", hosts=("n1",)) == 1 * 4


def test_carbon_is_that_of_the_hours_in_which_a_job_ran() -> None:
    first = Epoch(ENDED - 4 * HOUR)
    periods = [
        CarbonPeriod(Epoch(first + at * HOUR), Epoch(first + (at + 1) * HOUR), Decimal(grams))
        for at, grams in enumerate((10, 20, 40, 80))
    ]
    table = CarbonTable(periods)
    rule = PowerRule(watts_per_core=Decimal(1000), carbon=table)
    assert energy(hours(1, cpu_count=1), rule).grams == 80
    assert energy(hours(3, cpu_count=1), rule).grams == 20 + 40 + 80
    assert energy(make_job(wall_s=5400, started_at=ENDED - 5400, cpu_count=1), rule).grams == 80 + 20
    assert energy(hours(0, cpu_count=1), rule).grams == 0
    for unknown in (hours(5, cpu_count=1), hours(1, cpu_count=1, ended_at=Epoch(ENDED + 1))):
        assert (energy(unknown, rule).wh is None, energy(unknown, rule).grams) == (False, None)
    with_gap = PowerRule(watts_per_core=Decimal(1000), carbon=CarbonTable([periods[0], *periods[2:]]))
    assert energy(hours(3, cpu_count=1), with_gap).grams is None


@pytest.mark.parametrize("name", sorted(JOB_FORMATS))
def test_no_record_says_anything_of_it(name: str) -> None:
    form = job_format(name)
    now = datetime.fromtimestamp(ENDED + HOUR, UTC)
    rendered = {
        form.render(make_policy().describe(one), now)
        for one in (
            make_job(gpu_count=1),
            make_job(gpu_count=1, quantities=(("energy", 7_777_777),)),
            make_job(gpu_count=1, quantities=(("gpu_energy", 7_777_777), ("energy_rejected", 1))),
        )
    }
    assert len(rendered) == 1
    assert b"7777777" not in rendered.pop()


# A site

POWER = {"watts_per_core": 5, "watts_per_gpu": 300, "pue": 1.2, "grams_per_kwh": 28}
PERIOD = ("--from", "2026-09", "--to", "2026-09")


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Half of its jobs were metered, two of them absurdly."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    made.config["records"]["power"] = POWER
    lines = [
        job(
            number,
            ElapsedRaw=1000 + number,
            Account=("bio", "atlas")[number % 2],
            AllocTRES=f"cpu=2,gres/gpu={number % 3}",
            ConsumedEnergyRaw=("" if number % 4 < 2 else 100_000 + number),
        )
        for number in range(1, 41)
    ]
    lines[2]["ConsumedEnergyRaw"], lines[5]["ConsumedEnergyRaw"] = 2**64 - 2, 10**12
    bring_in(made, write(made.folder / "told.psv", text(lines)))
    return made


SUMS = """
WITH job AS (
  SELECT UsedWalltime AS wall_s, CPUCount * 5 + ifnull(GPUCount, 0) * 300 AS watts,
         (SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND InfoKey = 'projectname') AS project,
         (SELECT CAST(substr(InfoValue, instr(InfoValue, ' energy=') + 8) AS INTEGER) FROM JobExtraInfo AS x
          WHERE x.RecordID = AAR.RecordID AND InfoKey = 'quantities' AND InfoValue LIKE '% energy=%') AS joules
  FROM AAR
), metered AS (SELECT *, joules IS NOT NULL AND joules < 20000 * wall_s AS measured FROM job)
SELECT project, sum(CASE WHEN measured THEN joules / 3600.0 * 1.2 ELSE 0 END),
       sum(CASE WHEN measured THEN 0 ELSE watts * wall_s / 3600.0 * 1.2 END) FROM metered GROUP BY 1
"""


def sums_by_project(site: SiteUnderTest) -> dict[str, tuple[float, float]]:
    """Measured and estimated Wh, by SQLite alone."""
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        return {project: (measured, estimated) for project, measured, estimated in connection.execute(SUMS)}


def test_a_report_adds_them_up(site: SiteUnderTest) -> None:
    run = site.run("report", *PERIOD, "--csv", str(site.folder / "csv"))
    assert run.status == 0, run.err
    expected = sums_by_project(site)
    assert all(measured and estimated for measured, estimated in expected.values())
    rows = list(csv.DictReader((site.folder / "csv" / "projects.csv").read_text().splitlines()))
    found = {row["project"]: (float(row["measured_wh"]), float(row["estimated_wh"])) for row in rows}
    assert found == {name: pytest.approx(both, abs=1e-3) for name, both in expected.items()}
    for row in rows:
        whole = float(row["measured_wh"]) + float(row["estimated_wh"])
        assert float(row["carbon_g"]) == pytest.approx(whole * 0.028, abs=1e-3)
    shown = site.run("report", *PERIOD, "--format", "terminal").out
    assert "! Energy: 2 jobs have a meter value that cannot be, which is in no sum" in shown
    measured = sum(one for one, _ in expected.values())
    whole = sum(map(sum, expected.values()))
    assert f"{whole / 1000:.1f} kWh  ({100 * measured / whole:.1f} % measured, the rest estimated; " in shown
    site.run("report", *PERIOD, "-o", str(site.folder / "page.html"))
    assert "Estimated kWh" in (site.folder / "page.html").read_text()


def test_an_export_has_them_job_by_job(site: SiteUnderTest) -> None:
    rows = list(csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)))
    for origin, at in (("measured", 0), ("estimated", 1)):
        found = sum(Decimal(row["energy_wh"]) for row in rows if row["energy_origin"] == origin)
        assert float(found) == pytest.approx(sum(both[at] for both in sums_by_project(site).values()), abs=1e-3)
    assert {row["meter_j"] for row in rows if row["energy_origin"] == "estimated"} == {"", str(10**12)}
    whole = sum(Decimal(row["energy_wh"]) for row in rows)
    assert float(sum(Decimal(row["carbon_g"]) for row in rows)) == pytest.approx(float(whole) * 0.028, abs=1e-3)


def test_without_the_key_a_report_says_nothing_and_an_export_what_was_measured(site: SiteUnderTest) -> None:
    del site.config["records"]["power"]
    site.save()
    assert "Energy" not in site.run("report", *PERIOD, "--format", "terminal").out
    rows = list(csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)))
    assert {(row["energy_origin"], row["carbon_g"]) for row in rows} == {("", ""), ("measured", "")}


def test_jobs_of_which_nothing_is_known_are_counted(site: SiteUnderTest) -> None:
    site.config["records"]["power"] = [POWER | {"queues": ["other"]}, {"queues": ["batch"]}]
    site.save()
    shown = site.run("report", *PERIOD, "--format", "terminal").out
    assert "! Energy: 22 jobs have neither a meter value nor a power rule, and are in no sum" in shown
    site.run("report", *PERIOD, "--csv", str(site.folder / "csv"))
    (row,) = csv.DictReader((site.folder / "csv" / "queues.csv").read_text().splitlines())
    assert (float(row["measured_wh"]) > 0, row["carbon_g"]) == (True, "")
    assert "! CO₂e: 18 jobs have energy, but no known carbon per kWh" in shown


def test_metrics_have_the_last_day(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    watched = WatchedSite(local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER))
    watched.site.config["records"]["power"] = POWER
    end = int((watched.now() - timedelta(hours=3)).timestamp())
    lines = [
        job(1, Submit=end - 3600, ElapsedRaw=3600, ConsumedEnergyRaw=36_000),
        job(2, Submit=end - 3600, ElapsedRaw=3600),
    ]
    watched.site.save()
    watched.site.run("import", "slurm", str(write(tmp_path / "told.psv", text(lines))))
    watched.round()
    found = watched.told()
    energy_of = {at[1:]: value for at, value in found.items() if at[0] == "publisher_day_energy_joules"}
    assert energy_of == {("measured", ""): 43_200, ("estimated", ""): 43_200}
    assert found["publisher_day_carbon_grams", ""] == pytest.approx(24 * 0.028)


def test_metrics_do_not_tell_energy_that_nobody_knows(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    watched = WatchedSite(local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER))
    watched.site.config["records"]["power"] = POWER | {"queues": ["other"]}
    end = int((watched.now() - timedelta(hours=3)).timestamp())
    lines = [job(1, Submit=end - 3600, ElapsedRaw=3600)]
    watched.site.save()
    watched.site.run("import", "slurm", str(write(tmp_path / "told.psv", text(lines))))
    watched.round()
    names = {at[0] for at in watched.told()}
    assert "publisher_day_jobs" in names
    assert not names & {"publisher_day_energy_joules", "publisher_day_carbon_grams"}


# The configuration


def test_carbon_by_month_day_and_hour_comes_from_a_file(site: SiteUnderTest) -> None:
    table = site.folder / "carbon.txt"
    table.write_text("# Elspot\n2026-08 99\n2026-09-20, 10\n2026-09-21T13:00 20.5\n\n2026-09-21T14:00 30 # rest\n")
    site.config["records"]["power"] = {"watts_per_core": 5, "carbon_file": str(table)}
    site.save()
    assert f"carbon_file: {table}" in site.run("config", "show").out
    rows = list(csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)))
    assert {row["carbon_g"] == "" for row in rows} == {True, False}
    for row in rows:
        began, ended = row["started_at"], row["ended_at"]
        inside = began >= "2026-09-21T13" and ended < "2026-09-21T15"
        assert (row["carbon_g"] != "") == inside, row
        if ended < "2026-09-21T14":
            grams = Decimal(row["energy_wh"]) * Decimal("20.5") / 1000
            assert not inside or Decimal(row["carbon_g"]) == grams.quantize(Decimal("0.000001"))


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ({"watts_per_core": -1}, "'-1' is not a number such as 4.5"),
        ({"watts_per_core": "much"}, "'much' is not a number"),
        ({"pue": 0.9}, "0.9 is not between 1 and 10"),
        ({"grams_per_kwh": 1, "carbon_file": "/x"}, "has both grams_per_kwh and carbon_file"),
        ({"carbon_file": "/not/there"}, "carbon_file /not/there cannot be read"),
        ({"hosts": []}, "is empty, so the rule would apply to no job"),
        ({"valid_from": "2026-03", "valid_to": "2026-02"}, "valid_from 2026-03 is after valid_to 2026-02"),
        ({"watts": 1}, "watts: unknown key"),
    ],
)
def test_wrong_rules_are_named(site: SiteUnderTest, power: dict[str, Any], reason: str) -> None:
    site.config["records"]["power"] = [{"watts_per_core": 1}, power]
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert "records.power[2]" in run.err
    assert reason in run.err


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("2026-03\n", "line 1: is not a time and the grams in it"),
        ("2026-03 1\n2026-13 2\n", "line 2: '2026-13' is not in the calendar"),
        ("2026-03 1\n2026-03-05T14:00 2\n", "two lines are for 2026-03-05T14:00:00Z"),
    ],
)
def test_a_wrong_table_is_named_by_its_line(site: SiteUnderTest, lines: str, reason: str) -> None:
    (site.folder / "carbon.txt").write_text(lines)
    site.config["records"]["power"] = {"carbon_file": str(site.folder / "carbon.txt")}
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert reason in run.err


def test_a_target_has_no_power_of_its_own(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["power"] = dict(POWER)
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert "targets.egi.power: unknown key" in run.err


def test_rules_that_meet_are_noted(site: SiteUnderTest) -> None:
    site.config["records"]["power"] = [POWER, POWER | {"hosts": ["gpu*"]}]
    site.save()
    assert "note: records.power[1], line" in site.run("config", "check").out
