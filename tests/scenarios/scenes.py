"""The scenarios: what lies in the accounting data, what is configured, what the services answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from tests.arex_databases import RawRow, SampleJob, Schema, Writer, generate, hostile, make_damaged
from tests.fake_ams import Fault as AmsFault
from tests.fake_sgas import Fault as SgasFault
from tests.fake_sgas import bad_gateway, unavailable
from tests.scenarios import questions
from tests.scenarios.pinned import Clock
from tests.scenarios.world import FORMATS, World
from tests.support.gridengine_files import colon, entries, jsonl, write
from tests.support.sonar_files import CLUSTER, collections

_COMMANDS: Final = (
    *("publish", "run", "republish", "sync", "status", "trace", "explain", "quarantine", "stats", "job", "export"),
    *("doctor", "import", "charge", "report", "complete", "config"),
    *("quarantine list", "quarantine release", "quarantine drop", "job info", "job events", "job transfers"),
    *("import gridengine", "import sonar", "config check", "config show", "config example", "config from-arc"),
)
_ARC_CONF: Final = Path(__file__).parents[1] / "support" / "arc_conf"


def jobs(count: int, seed: int = 1, *, month: int = 10) -> list[SampleJob]:
    return list(generate(seed, count, datetime(2026, month, 1, tzinfo=UTC), datetime(2026, month + 1, 1, tzinfo=UTC)))


def every_target(world: World) -> None:
    """Every format over every transport that takes it; one of them tells counts, too."""
    for form in FORMATS:
        world.add_ams(form, sync=form == "apel-summary-0.4")
    world.add_sgas()
    world.add_spool("flat", "car", sign=True)
    world.add_spool("queue", "ogf-ur", sign=False, layout="dirq")


def two_targets(world: World) -> None:
    world.add_ams("car")
    world.add_ams("apel-summary-0.4", sync=True)


def ordinary(world: World, schema: Schema) -> None:
    """Two months of a site, in small messages."""
    every_target(world)
    world.config["targets"]["car"]["batch_records"] = 20
    ours = [*jobs(60, month=9), *jobs(60, 2)]
    world.fill(*ours, schema=schema)
    questions.ask_everything(world, [ours[0].job_id, ours[-1].job_id])


def both_schemas(world: World) -> None:
    """A site that has moved to ARC 7; some jobs stand in both files."""
    every_target(world)
    ours = jobs(80)
    world.fill(*ours[:50], schema=1)
    world.fill(*ours[40:], schema=2)
    questions.ask_everything(world, [ours[45].job_id])


def hostile_rows(world: World, schema: Schema) -> None:
    """Text, numbers and references that broke some publisher."""
    every_target(world)
    cases: Sequence[SampleJob | RawRow] = hostile(1)
    world.fill(*cases, schema=schema)
    named = [case.job.job_id if isinstance(case, RawRow) else case.job_id for case in cases]
    questions.ask_everything(world, [named[0]])
    world.ask("quarantine", "release", "1")
    world.ask("quarantine", "drop", "2")
    world.ask("quarantine", "list", "--json")


def restarted(world: World) -> None:
    """Jobs that end again with other values or another LocalJobID, late ones, and rows that are purged."""
    every_target(world)
    ours = [*jobs(30, month=9), *jobs(30, 2)]
    world.fill(*ours)
    questions.send(world)
    with_other = ours[40:44]
    Clock.move(days=1, minutes=1)
    with Writer(world.database()) as arex:
        arex.finish_again(
            replace(with_other[0], wall_s=with_other[0].wall_s + 77), end_time=with_other[0].end_time + 400
        )
        arex.finish_again(with_other[1], local_job_id="999001")
        arex.finish_again(with_other[2], end_time=with_other[2].end_time + 90, local_job_id="999002")
        arex.write_all(jobs(8, 3, month=9))
    questions.look(world, [job.job_id for job in with_other[:3]])
    questions.send(world)
    with Writer(world.database()) as arex:
        arex.connection.execute("DELETE FROM AAR WHERE RecordID <= 10")
    Clock.move(days=1, minutes=1)
    questions.ask_everything(world, [with_other[1].job_id])


def policies(world: World) -> None:
    """What a site may say about its jobs: names, VOs, benchmarks, charges."""
    secret = world.folder / "secret"
    secret.write_bytes(b"sixteen bytes and more")
    secret.chmod(0o600)
    world.add_ams("car", identity={"mode": "pseudonym", "secret_file": str(secret), "period": "year"})
    world.add_ams("apel-job-0.4", identity="withheld")
    world.add_ams("apel-summary-0.4", vos=["atlas", "cms"], sync=True, key_style="jura")
    world.add_sgas(exclude_vos=["atlas"])
    world.config["records"] |= {
        "statuses": ["completed", "failed", "aborted"],
        "default_vo": "local",
        "localid_prefix": "a-",
        "start_time": "submission",
        "charges": [{"formula": "NumCPUs * RunTime", "unit": "CPUh", "description": "price list"}],
    }
    ours = jobs(60)
    world.fill(*ours)
    questions.ask_everything(world, [ours[3].job_id])
    world.ask("charge", *questions.WINDOW, "--jobs")
    world.ask("charge", "--stored")
    world.ask("charge", "--runs", "--json")


def grid_engine(world: World) -> None:
    """Colons first, JSON later, and lines that are none."""
    every_target(world)
    del world.config["source"]
    world.config["importers"] = {"gridengine": {"cluster": "cluster.example.org"}}
    world.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    log = write(world.folder / "accounting", [*map(colon, entries(5, 40)), b"torn\n"])
    world.ask("import", "gridengine", str(log))
    questions.send(world)
    more = write(world.folder / "accounting.jsonl", map(jsonl, entries(6, 30, first=1000)))
    world.ask("import", "gridengine", "--json", str(more))
    world.ask("import", "gridengine", str(more))
    Clock.move(days=1, minutes=1)
    questions.ask_everything(world, _first_jobs(world))


def sonar(world: World) -> None:
    """The life of a small cluster under Slurm, as Sonar collects it."""
    every_target(world)
    del world.config["source"]
    world.config["importers"] = {"sonar": {"cluster": CLUSTER}}
    world.config["records"]["statuses"] = ["completed", "failed", "aborted"]
    life = collections(5, 40)
    tree = world.folder / "data" / "2026" / "09" / "21"
    tree.mkdir(parents=True)
    write(tree / "0+job-slurm.json", islice(life, 8))
    world.ask("import", "sonar", str(world.folder / "data"))
    questions.send(world)
    write(tree / "1+job-slurm.json", life)
    world.ask("import", "sonar", "--json", str(world.folder / "data"))
    Clock.move(days=1, minutes=1)
    questions.ask_everything(world, _first_jobs(world))


def _first_jobs(world: World) -> list[str]:
    return world.ask("complete", "jobs").split()[:1]


def trouble(world: World) -> None:
    """Services that refuse, forget to answer, or are away; and the rounds after."""
    car, nordic = world.add_ams("car"), world.add_sgas()
    world.fill(*jobs(12))
    ams: list[AmsFault] = [
        AmsFault.status(404, b'{"error":{"code":404,"message":"Topic doesn\'t exist","status":"NOT_FOUND"}}'),
        AmsFault.status(403, b'{"error":{"code":403,"message":"Access to this resource is forbidden"}}'),
        AmsFault.status(413, b'{"error":{"code":413,"message":"Message size is too large"}}'),
        AmsFault.status(503, b"<html><body>busy</body></html>"),
        AmsFault.status(500, b""),
        AmsFault.store_then_close(),
        AmsFault.reset(),
    ]
    sgas: list[SgasFault] = [bad_gateway(stored=True), unavailable(7), SgasFault.reset(), SgasFault.store_then_close()]
    for fault in ams:
        world.ams.faults.push(fault)
        _two_rounds(world, car)
    for other in sgas:
        world.sgas.faults.push(other)
        _two_rounds(world, nordic)
    for target in (car, nordic):  # side by side their lines would mix
        world.ask("publish", "--force", "--target", target, "--json")
    questions.look(world, [])


def _two_rounds(world: World, target: str) -> None:
    """One that meets the fault, the next one, and two more jobs."""
    world.ask("publish", "--force", "--target", target, "--json")
    world.ask("status", "--json")
    Clock.move(hours=1)
    world.ask("publish", "--force", "--target", target)
    world.note_wire(target)
    world.fill(*jobs(2, int(Clock.now.timestamp()) % 10_007))


def no_data(world: World) -> None:
    """Nothing there, nothing in it, and a damaged file."""
    two_targets(world)
    questions.ask_everything(world, [])
    world.fill()
    questions.ask_everything(world, [])
    world.fill(*jobs(30))
    make_damaged(world.database())
    questions.ask_everything(world, [])


def configurations(world: World) -> None:
    """Help, what is wrong with a configuration, and what becomes of ARC's."""
    for command in ("", *_COMMANDS):
        world.ask_bare(*command.split(), "--help")
    world.ask_bare()
    world.ask_bare("--version")
    world.ask_bare("publsih")
    world.ask_bare("config", "example")
    world.ask_bare("export", "--columns")
    world.ask("config", "check")
    two_targets(world)
    world.config["targets"]["car"] |= {"everry": "1h", "format": "card", "start": "soon"}
    world.config["colour"] = "blue"
    for words in (("config", "check"), ("publish",), ("status", "--json"), ("doctor",), ("doctor", "--json")):
        world.ask(*words)
    for path in sorted(_ARC_CONF.glob("*.conf")):
        world.ask_bare("config", "from-arc", str(path), title=("from-arc", path.name))


SCENES: Final[dict[str, Callable[[World], None]]] = {
    "ordinary-2": lambda world: ordinary(world, 2),
    "ordinary-1": lambda world: ordinary(world, 1),
    "both-schemas": both_schemas,
    "hostile-2": lambda world: hostile_rows(world, 2),
    "hostile-1": lambda world: hostile_rows(world, 1),
    "restarted": restarted,
    "policies": policies,
    "gridengine": grid_engine,
    "sonar": sonar,
    "trouble": trouble,
    "no-data": no_data,
    "configurations": configurations,
}
