"""`source` as a list: what is read of it, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from publisher.config import Settings, load, show
from publisher.model.errors import ConfigError
from publisher.sources.arex import Options as ArexOptions
from publisher.sources.base import is_of_ce
from publisher.sources.gridengine.importer import Options as GridEngineOptions

AREX = {"type": "arex", "control_dir": "/var/spool/arc/jobstatus"}
SLURM = {"type": "slurm", "cluster": "hpc1"}
GRID_ENGINE = {"type": "gridengine", "cluster": "sge.example.org", "paths": ["common"]}


def read(folder: Path, source: object, **blocks: object) -> Settings:
    target = {"type": "spool", "path": "/tmp/out", "format": "car"}
    state = str(folder / "state" / "publishing.db")
    path = folder / "publisher.yaml"
    path.write_text(yaml.safe_dump({"site": "S", "state": state, "source": source, "targets": {"t": target}} | blocks))
    return load(path, {}, host_name="ce.example.org")


def test_each_batch_system_is_a_source_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, [AREX, SLURM, GRID_ENGINE | {"name": "sge"}])
    assert [(each.name, each.type) for each in found.batch_entries] == [("slurm", "slurm"), ("sge", "gridengine")]
    assert found.source.options == ArexOptions(control_dir=Path("/var/spool/arc/jobstatus"))
    options = found.batch_entries[1].options
    assert isinstance(options, GridEngineOptions)
    assert options.reads == (tmp_path / "common",)


def test_one_mapping_is_a_list_of_one(tmp_path: Path) -> None:
    assert read(tmp_path, SLURM).batch_entries == read(tmp_path, [SLURM]).batch_entries
    assert read(tmp_path, AREX).source == read(tmp_path, [AREX]).source


def test_of_two_clusters_one_may_leave_open_which_ces_submit_to_it(tmp_path: Path) -> None:
    two = SLURM | {"name": "b", "cluster": "two"}
    assert len(read(tmp_path, [SLURM, two]).batch_entries) == 2
    found = read(tmp_path, [SLURM, two | {"arc_databases": []}, AREX])
    assert [each.ces() for each in found.batch_entries] == [None, frozenset()]


def test_a_ce_is_known_by_its_directory_where_old_databases_stay_too(tmp_path: Path) -> None:
    live = tmp_path / "control" / "accounting" / "accounting_v2.db"
    (entry,) = read(tmp_path, [AREX, SLURM | {"arc_databases": [str(live), "ce2.db"]}]).batch_entries
    ces = entry.ces()
    assert ces is not None
    of_it = {name: is_of_ce(str(live.with_name(name)), ces) for name in ("accounting_v2.db", "accounting.db.old")}
    assert of_it == {"accounting_v2.db": True, "accounting.db.old": True}
    copies = {name: is_of_ce(str(tmp_path / name), ces) for name in ("ce2.db", "ce3.db")}
    assert copies == {"ce2.db": True, "ce3.db": False}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ([], "source: is empty; name at least one source"),
        ("arex", "source: is not a mapping"),
        ([AREX, "slurm"], "source: is not a mapping"),
        ([{}], "source[1].type: missing"),
        ([SLURM | {"type": "slurn"}], "source[1].type: 'slurn' is not known; did you mean 'slurm'?"),
        ([AREX, dict(AREX)], "source[2]: another source is called arex too; give each a name of its own"),
        (
            [AREX, AREX | {"name": "b", "unescape": False}],
            "source[2]: cannot be read beside the entry arex: write both",
        ),
        ([SLURM, SLURM | {"cluster": "two"}], "source[2]: another source is called slurm too"),
        (
            [SLURM, SLURM | {"name": "b", "cluster": "two"}, AREX],
            "source[2]: another slurm gives the same numbers to jobs; write the arc_databases",
        ),
        ([SLURM, SLURM | {"name": "b"}], "source[2]: the cluster hpc1 is in another source, and would count twice"),
        (
            [{"type": "gridengine", "name": name, "paths": ["x"]} for name in "ab"],
            "source[2]: the cluster gridengine is in another source, and would count twice; write the cluster of each",
        ),
        ([SLURM | {"name": "a/b"}], "source[1].name: 'a/b' is no name: letters, digits"),
        ([{"type": "slurm"}], "source[1].cluster: missing"),
        ([SLURM | {"paths": ["x"]}], "source[1].paths: unknown key"),
        ([SLURM | {"files": ["x"], "command": ["y"]}], "source[1]: names both files and command"),
        ([GRID_ENGINE | {"paths": []}], "source[1].paths: missing; name the files or directories to read"),
        ([{"type": "htcondor", "cluster": "c"}], "source[1].history: missing; name the files or directories to read"),
        ([SLURM | {"join": "arex"}], "source[1].join: there is no entry of the type arex whose jobs could be joined"),
        ([AREX | {"join": "arex"}], "source[1].join: is a key of a batch system, whose runs are joined"),
        ([AREX, SLURM | {"join": "sonar"}], "source[2].join: 'sonar' is not known"),
        (
            [AREX, SLURM | {"join": "arex", "arc_databases": []}],
            "source[2].join: arc_databases says that no CE submits",
        ),
        (
            [SLURM | {"submit_host": "h"}, SLURM | {"submit_host": "h", "name": "b", "cluster": "two"}],
            "source[2]: another slurm has the submit_host h; give each its own",
        ),
    ],
)
def test_what_is_wrong_with_a_list(source: object, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, source)
    assert complaint in str(caught.value)


def test_what_a_cluster_is_called_need_not_be_said_where_it_is_the_only_one(tmp_path: Path) -> None:
    for name in ("history-per-job", "common", "data"):
        (tmp_path / name).mkdir()
    listed = f"""
      - type: arex
        control_dir: {tmp_path}
      - type: slurm
        name: hpc
        cluster: hpc1
        join: arex
      - type: htcondor
        history: {tmp_path}/history-per-job
      - type: gridengine
        paths: [{tmp_path}/common]
      - type: sonar
        paths: [{tmp_path}/data]
    """
    found = read(tmp_path, yaml.safe_load(listed))
    clusters = {each.name: getattr(each.options, "cluster", None) for each in found.batch_entries}
    assert clusters == {"hpc": "hpc1", "htcondor": "htcondor", "gridengine": "gridengine", "sonar": "sonar"}


def test_how_long_a_job_waits_for_its_run(tmp_path: Path) -> None:
    joined = SLURM | {"join": "arex"}
    for keys, wait_s in (({}, 3600), ({"join_wait": "3h"}, 10_800)):
        found = read(tmp_path, [joined | keys, AREX])
        assert [each.join_wait_s for each in found.batch_entries] == [wait_s]
        shown = tmp_path / "shown.yaml"
        shown.write_text(show(found))
        assert load(shown, {}, host_name="ce.example.org").batch_entries == found.batch_entries
    assert read(tmp_path, [AREX, SLURM]).batch_entries[0].join_wait_s is None


def test_a_batch_system_is_configured_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SLURM, importers={"slurm": {"cluster": "hpc1"}})
    assert "importers.slurm: `source` has an entry of the type slurm; write these keys there" in str(caught.value)
