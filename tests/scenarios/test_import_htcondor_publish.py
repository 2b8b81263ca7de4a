"""From HTCondor's histories to the receiver, through the real command line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fake_ams.service import FakeAMS
from tests.support.condor_history import BEGIN, CLUSTER, SCHEDD, Ad, Raw, ad, ads_of, rolling, spool, usage, write
from tests.support.imported_sites import bring_in, imported, local_site, told, truth
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A pool behind an HTCondor-CE."""
    made = local_site(tmp_path, pki, fake_ams, "htcondor", CLUSTER)
    made.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    return made


@pytest.mark.parametrize("form", ["car", "apel-job-0.4", "apel-summary-0.4"])
def test_what_arrives_adds_up_to_the_ads(site: SiteUnderTest, form: str) -> None:
    """Of files that came in two kinds, overlapping; summed up here without our reader."""
    site.config["targets"]["egi"]["format"] = form
    ads = ads_of(21, 300)
    directory = spool(site.folder / "per-job", ads[:200])
    history = write(site.folder / "history", rolling(ads[100:250]))
    bring_in(site, directory, history)
    assert site.publish().status == 0
    write(history, rolling(ads[100:]))
    bring_in(site, directory, history)
    assert site.publish().status == 0
    jobs, wall, core_wall, _ = usage(ads)
    sums: Counter[str] = Counter()
    for row in site.table().rows("Summaries" if form == "apel-summary-0.4" else "JobRecords"):
        number, wall_s, cores = (int(str(row.get(key, 1))) for key in ("NumberOfJobs", "WallDuration", "Processors"))
        sums += Counter({"jobs": number, "wall": wall_s, "core wall": wall_s * cores})
    assert sums == {"jobs": jobs, "wall": wall, "core wall": core_wall}
    if form != "apel-summary-0.4":
        assert sorted(map(told, site.table().rows("JobRecords"))) == sorted(map(truth, imported(site).values()))


def test_what_is_said_of_a_job(site: SiteUnderTest) -> None:
    """Whom it belongs to, with a comma in the FQAN, and how fast its machine was."""
    proxy: Ad = {"x509userproxysubject": "/DC=org/CN=Ada, A.", "x509UserProxyFirstFQAN": "/atlas/a,b/Role=prod"}
    machine: Ad = {"MachineAttrApelScaling0": 1.25, "MachineAttrApelSpecs0": Raw("undefined")}
    site.config["importers"]["htcondor"]["average_benchmark"] = "HEPscore23:15.2"
    site.config["targets"]["egi"]["format"] = "apel-job-0.4"
    bring_in(site, write(site.folder / "history.12.0", rolling([ad(12, **proxy, **machine)])))
    assert site.publish().status == 0
    (row,) = site.table().rows("JobRecords")
    assert (row["GlobalUserName"], row["FQAN"]) == ("/DC=org/CN=Ada, A.", "/atlas/a,b/Role=prod")
    assert (row["VO"], row["VOGroup"], row["VORole"]) == ("atlas", "/atlas/a,b", "Role=prod")
    assert row["InfrastructureDescription"] == "PUBLISHER-NONE-CONDOR"
    text = site.run("explain", f"{CLUSTER}:{SCHEDD}#12.0#{BEGIN + 720}").out
    assert "HEPscore23" in text
    assert "19" in text
    assert "the ad: x509userproxysubject" in text
    assert "MachineAttrApelSpecs0" in text


def test_a_round_reads_what_is_new_by_itself(site: SiteUnderTest) -> None:
    """Of a directory from which somebody removes files, too."""
    ads = ads_of(22, 120)
    directory = spool(site.folder / "per-job", ads[:60])
    del site.config["importers"]
    site.config["source"] = [{"type": "htcondor", "cluster": CLUSTER, "history": str(directory)}]
    site.save()
    first = site.publish()
    assert (first.status, first.json["targets"]["egi"]["records"]) == (0, usage(ads[:60])[0])
    for each in sorted(directory.iterdir())[1:]:  # where all are gone, the source is in trouble
        each.unlink()
    assert site.publish().status == 0
    spool(directory, ads[60:])
    assert site.publish().status == 0
    rows = site.table().rows("JobRecords")
    assert (len(rows), sum(int(str(row["WallDuration"])) for row in rows)) == usage(ads)[:2]
