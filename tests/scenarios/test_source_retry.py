"""Bad lines tried again after a repair: nothing doubled, nothing lost, and archives that did not change left alone."""

from __future__ import annotations

import gzip
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, sacct_text
from tests.support.gridengine_files import CLUSTER, Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest
from tests.support.stand_in_sacct import install

ANY = Entry()
GOOD = colon(replace(ANY, job=2))


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    (tmp_path / "common").mkdir()
    made.config["source"] = [{"type": "gridengine", "cluster": CLUSTER, "paths": [str(tmp_path / "common")]}]
    return made


def log(site: SiteUnderTest, middle: bytes, name: str = "accounting") -> Path:
    """A good line, this one, and a good line."""
    return write(site.folder / "common" / name, [colon(replace(ANY, job=1)), middle, colon(replace(ANY, job=3))])


def retry(site: SiteUnderTest, *name: str) -> Run:
    return site.run("source", "retry", "--json", *name)


def set_aside(site: SiteUnderTest) -> int:
    return int(site.run("status", "--json").json["sources"]["gridengine"]["set_aside"])


def sent(site: SiteUnderTest) -> list[str]:
    assert site.publish().status == 0
    return sorted(row["LocalJobId"] for row in site.received(with_openssl=False))


@pytest.mark.parametrize("torn", [GOOD[:100] + b"\n", GOOD[:-20].replace(b":", b";") + b"x" * 19 + b"\n"])
def test_a_repaired_line_counts_once_and_is_no_longer_set_aside(torn: bytes, site: SiteUnderTest) -> None:
    log(site, torn)
    assert sent(site) == ["1", "3"]
    run = retry(site)
    assert (run.status, run.json["sources"]["gridengine"]) == (
        65,
        {"tried": 1, "still_bad": 1, "gone": [], "imported": 0, "updated": 0, "troubles": []},
    )
    assert set_aside(site) == 1
    log(site, GOOD)
    run = retry(site, "gridengine")
    assert (run.status, run.json["sources"]["gridengine"]["imported"]) == (0, 1)
    assert set_aside(site) == 0
    assert sent(site) == ["1", "2", "3"]
    assert retry(site).json["sources"]["gridengine"]["tried"] == 0


def test_a_line_of_a_file_that_was_rotated_is_found_where_it_is(site: SiteUnderTest) -> None:
    path = log(site, b"torn\n")
    assert sent(site) == ["1", "3"]
    with gzip.open(path.with_name("accounting.1.gz"), "wb") as archive:
        archive.write(path.read_bytes())
    write(path, [colon(replace(ANY, job=4))])
    assert retry(site).json["sources"]["gridengine"]["still_bad"] == 1
    assert sent(site) == ["1", "3", "4"]
    with gzip.open(path.with_name("accounting.1.gz"), "wb") as archive:
        archive.write(b"".join([colon(replace(ANY, job=1)), GOOD, colon(replace(ANY, job=3))]))
    retry(site)
    assert (sent(site), set_aside(site)) == (["1", "2", "3", "4"], 0)


def test_what_sacct_printed_is_asked_for_again(site: SiteUnderTest) -> None:
    begun = int(time.time()) - 5 * 86_400
    good = sacct_text.job(1, Submit=begun)
    torn = good | {"ElapsedRaw": "many"}
    command = install(site.folder / "sacct", [torn, sacct_text.step(good)])
    entry = {"type": "slurm", "cluster": sacct_text.CLUSTER, "command": list(command), "look_back_s": "9d"}
    site.config["source"] = [entry]
    assert sent(site) == []
    run = retry(site)
    assert (run.status, run.json["sources"]["slurm"]["tried"], run.json["sources"]["slurm"]["still_bad"]) == (65, 1, 1)
    install(site.folder / "sacct", [good, sacct_text.step(good)])
    assert sent(site) == [], "that is five days ago, and a round asks for the last one"
    run = retry(site)
    assert (run.status, run.json["sources"]["slurm"]["still_bad"]) == (0, 0)
    assert sent(site) == ["1"]
    assert site.run("source", "bad-lines", "--json").json["set_aside"] == 0


def test_what_sacct_printed_long_ago_cannot_be_asked_for_again(site: SiteUnderTest) -> None:
    begun = int(time.time()) - 5 * 86_400
    torn = sacct_text.job(1, Submit=begun) | {"ElapsedRaw": "many"}
    command = install(site.folder / "sacct", [torn, sacct_text.step(torn)])
    entry = {"type": "slurm", "cluster": sacct_text.CLUSTER, "command": list(command), "look_back_s": "9d"}
    site.config["source"] = [entry]
    assert sent(site) == []
    site.config["source"][0]["look_back_s"] = "2d"
    site.save()
    assert (retry(site).status, site.run("source", "bad-lines", "--json").json["set_aside"]) == (65, 1)


def test_a_line_of_a_file_that_is_gone_stays(site: SiteUnderTest) -> None:
    path = log(site, b"torn\n")
    assert sent(site) == ["1", "3"]
    path.rename(site.folder / "elsewhere")
    run = retry(site)
    assert (run.status, run.json["sources"]["gridengine"]["gone"]) == (65, [{"file": str(path), "lines": 1}])
    assert set_aside(site) == 1
    assert f"{path} does not exist: 1 line of it cannot be tried again" in site.run("source", "retry").out


def test_a_file_in_trouble_leaves_its_lines_set_aside(site: SiteUnderTest) -> None:
    path = log(site, b"torn\n")
    assert sent(site) == ["1", "3"]
    path.write_bytes(gzip.compress(path.read_bytes())[:-10])
    run = retry(site)
    assert (run.status, set_aside(site)) == (66, 1)
    assert "is damaged" in run.err


def test_a_repaired_history_file_of_one_job(site: SiteUnderTest) -> None:
    folder = condor_history.spool(site.folder / "per-job", [condor_history.ad(1), condor_history.ad(2)])
    good = (folder / "history.2.0").read_bytes()
    condor_history.write(folder / "history.2.0", b"nothing = [\n")
    site.config["source"] = [{"type": "htcondor", "cluster": condor_history.CLUSTER, "history": str(folder)}]
    assert len(sent(site)) == 1
    condor_history.write(folder / "history.2.0", good)
    assert retry(site).json["sources"]["htcondor"]["still_bad"] == 0
    assert len(sent(site)) == 2
    assert site.run("source", "bad-lines", "--json").json["set_aside"] == 0


def test_a_name_that_is_none(site: SiteUnderTest) -> None:
    for command in ("list", "bad-lines", "retry"):
        run = site.run("source", command, "slurm")
        assert (run.status, "there are: gridengine" in run.err) == (64, True)


def test_a_source_is_listed_and_retired_by_its_name(site: SiteUnderTest) -> None:
    log(site, GOOD)
    assert sent(site) == ["1", "2", "3"]
    run = site.run("source", "list", "gridengine", "--json")
    assert ([*run.json["sources"]], len(run.json["databases"])) == (["gridengine"], 1)
    site.config["source"] = {"type": "arex", "control_dir": str(site.control), "time_zone": "UTC"}
    site.fill()
    site.save()
    assert site.publish().status == 66
    run = site.run("source", "retire", "gridengine")
    assert run.status == 0, run.err
    assert site.publish().status == 0


def test_archives_that_did_not_change_are_not_decompressed_again(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by what reads them."""
    opened: list[object] = []
    real = gzip.GzipFile.__init__

    def counting(self: gzip.GzipFile, *arguments: Any, **keywords: Any) -> None:
        opened.append(keywords.get("fileobj"))
        real(self, *arguments, **keywords)

    for number in (1, 2, 3):
        content = gzip.compress(colon(replace(ANY, job=number)))
        write(site.folder / "common" / f"accounting.{number}.gz", [content])
    write(site.folder / "common" / "accounting", [colon(replace(ANY, job=9))])
    monkeypatch.setattr(gzip.GzipFile, "__init__", counting)
    assert sent(site) == ["1", "2", "3", "9"]
    first = len(opened)
    assert first >= 3
    assert sent(site) == ["1", "2", "3", "9"]
    assert len(opened) == first
    write(site.folder / "common" / "accounting.2.gz", [gzip.compress(colon(replace(ANY, job=5)))])
    assert sent(site) == ["1", "2", "3", "5", "9"]
    assert len(opened) > first


def test_the_shell_completes_the_names_of_sources(site: SiteUnderTest) -> None:
    site.config["source"].append({"type": "arex", "name": "ce1", "control_dir": str(site.control)})
    assert site.run("complete", "sources").out.split() == ["ce1", "gridengine"]
    assert site.run("complete", "sources", "g").out.split() == ["gridengine"]
