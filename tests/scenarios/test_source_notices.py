"""What is wrong with a source as a whole is shown wherever an administrator looks, until it is no longer so."""

from __future__ import annotations

from tests.support import sacct_text
from tests.support.sites import SiteUnderTest

SAFE = "|13580424571302949375|"


def test_files_in_which_users_can_forge_jobs(site: SiteUnderTest) -> None:
    path = site.folder / "sacct.txt"
    lines = [line for one in map(sacct_text.job, range(3)) for line in (one, sacct_text.step(one))]
    site.config["source"] = [{"name": "hpc", "type": "slurm", "cluster": sacct_text.CLUSTER, "files": [str(path)]}]
    for delimiter, warns in (("|", True), (SAFE, False)):
        path.write_bytes(sacct_text.text(lines, delimiter=delimiter))
        assert site.run("publish", "--force").status == 0
        status = site.run("status")
        assert ("hpc: " in status.out and "random --delimiter" in status.out) == warns
        (source,) = site.run("status", "--json").json["sources"].values()
        assert len(source["notices"]) == warns
        found = [each for each in site.run("doctor", "--json").json["findings"] if each["name"] == "accounting"]
        assert [each["state"] for each in found] == ["warning"] * warns
