"""What a command loads: `status` and rounds with nothing to do are mostly start-up, and a careless import is felt by all."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

_CODE: Final = """
import json, sys
from typing import ForwardRef
from publisher.cli.main import run
status = run(sys.argv[1:])
print()
ours = {name: vars(module) for name, module in sys.modules.items() if f"{name}.".startswith("publisher.")}
dataclasses = [
    f"{name}.{value.__qualname__}" for name, values in ours.items() for value in values.values()
    if isinstance(value, type) and value.__module__ == name and "__dataclass_params__" in vars(value)
]
fields = {
    f"{name}.{value.__qualname__}.{field}" for name, values in ours.items() for value in values.values()
    if isinstance(value, type) and issubclass(value, tuple) and value.__module__ == name
    for field, kind in value.__annotations__.items() if isinstance(kind, ForwardRef)
}
print(json.dumps([sorted(sys.modules), sorted(set(dataclasses)), sorted(fields)]))
sys.exit(status)
"""

# Of other commands, and of plug-ins and keys that the configuration does not name. A name stands for all that is in it.
OF_OTHERS: Final = (
    "publisher.config.from_arc",
    "publisher.cli.commands.charge",
    "publisher.reporting.charges",
    "publisher.reporting.charges.run",
    "publisher.publishing.sync.check",
    "publisher.config.charges",
    "publisher.transports.sgas",
    "publisher.transports.spool",
    "publisher.doctor",
    "publisher.reporting.explain",
    "publisher.reporting.export.columns",
    "publisher.formats.apel.summary_text",
    "publisher.formats.apel.car_check",
    "publisher.formats.sgas.ogf_ur",
    "publisher.sources.files",
    "publisher.sources.importers",
    *(f"publisher.cli.commands.{name}" for name in ("import_", "doctor", "explain", "export", "job", "quarantine")),
    *(f"publisher.cli.commands.{name}" for name in ("republish", "source", "stats", "sync", "trace")),
    "publisher.ledger.sql.charges",
    "publisher.ledger.sql.past.history",
    "publisher.ledger.sql.dry_run",
    "publisher.reporting.metrics",
    "publisher.publishing.republish.plan",
    "publisher.publishing.sync.portal",
    "publisher.reporting.html",
    "publisher.reporting.report",
    "publisher.publishing.republish.run",
    "publisher.publishing.daemon",
    "publisher.config.cron",
    "publisher.cli.commands.run",
    "publisher.jobs.sums",
    "publisher.reporting.statistics",
    "publisher.publishing.takeover",
    "publisher.publishing.databases.trace",
)
OF_A_ROUND: Final = (
    "publisher.publishing.publish",
    "publisher.publishing.round.batches",
    "publisher.transports.ams.transport",
    "publisher.publishing.round.sender",
    "publisher.formats.apel.car",
    "publisher.publishing.plan.decision",
    "publisher.publishing.round.outcome",
    "publisher.publishing.round.round",
    "publisher.cli.commands.publish",
    "publisher.publishing.round.totals",
    "publisher.publishing.sync.counts",
)
# HTTP, lxml and PKCS#7 (with all of Python's e-mail) come with the first message.
HEAVY: Final = (
    "apscheduler",
    "email.policy",
    "jinja2",
    "lxml",
    "prometheus_client",
    "psycopg",
    "http.client",
    "requests",
    "urllib3",
)
CRYPTOGRAPHY: Final = ("cryptography", "ssl")


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Everything there is has been sent."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.fill(*generate(1, 5, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    first = made.publish()
    assert first.status == 0, first.err
    return made


def loaded(site: SiteUnderTest, *arguments: str) -> set[str]:
    """The modules of a process of its own after the command."""
    return defined(site, *arguments)[0]


def defined(site: SiteUnderTest, *arguments: str) -> tuple[set[str], list[str], list[str]]:
    """The modules of a process of its own after the command, and what was defined in it.

    Dataclasses of ours, and fields of named tuples of ours whose annotations are compiled.
    """
    command = [sys.executable, "-c", _CODE, "--config", str(site.path), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    modules, dataclasses, fields = json.loads(ended.stdout.splitlines()[-1])
    return set(modules), dataclasses, fields


def among(modules: set[str], *names: str) -> list[str]:
    return [name for name in names if any(f"{module}.".startswith(f"{name}.") for module in modules)]


def test_status_loads_nothing_of_a_round_or_of_another_command(site: SiteUnderTest) -> None:
    modules = loaded(site, "status")
    assert "publisher.publishing.status" in modules
    assert among(modules, *OF_OTHERS, *OF_A_ROUND, *HEAVY, *CRYPTOGRAPHY) == []


@pytest.mark.parametrize(
    ("arguments", "most", "most_modules", "most_fields"),
    [(["status"], 36, 126, 200), (["publish", "--force"], 47, 165, 260)],
)
def test_few_classes_are_made_on_the_way(
    site: SiteUnderTest, arguments: list[str], most: int, most_modules: int, most_fields: int
) -> None:
    """A frozen dataclass takes three times as long to define as a named tuple; a fifth of a round with nothing to do once.

    With `from __future__ import annotations` a named tuple compiles the annotation of each of its fields, so modules that have
    many of these do without.
    """
    modules, dataclasses, fields = defined(site, *arguments)
    assert len(dataclasses) <= most, dataclasses
    assert len(fields) <= most_fields, fields
    ours = [name for name in modules if f"{name}.".startswith("publisher.")]
    assert len(ours) <= most_modules, sorted(ours)


def test_a_round_with_nothing_to_do_loads_nothing_of_another_command(site: SiteUnderTest) -> None:
    modules = loaded(site, "publish", "--force")
    assert among(modules, *OF_A_ROUND) == list(OF_A_ROUND)
    assert among(modules, *OF_OTHERS, *HEAVY, "publisher.publishing.status") == []


def test_a_round_that_sends_loads_the_http_libraries(site: SiteUnderTest) -> None:
    """So they are called so, and the tests that miss them can fail."""
    site.fill(*generate(2, 3, datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)))
    assert among(loaded(site, "publish", "--force"), "requests", "urllib3") == ["requests", "urllib3"]


@pytest.mark.parametrize("command", ["plan", "stats"])
def test_a_command_that_asks_no_service_loads_no_http_library(site: SiteUnderTest, command: str) -> None:
    assert among(loaded(site, command), "requests", "urllib3") == []


def test_what_a_configuration_names_is_loaded(site: SiteUnderTest) -> None:
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    del site.config["targets"]["egi"]["every"]
    site.config["targets"]["egi"]["cron"] = "0 3 * * *"
    site.save()
    expected = [
        "publisher.reporting.charges",
        "publisher.config.charges",
        "publisher.config.cron",
        "apscheduler",
    ]
    assert among(loaded(site, "status"), *OF_OTHERS, *HEAVY) == expected


@pytest.mark.parametrize("name", [*OF_OTHERS, *OF_A_ROUND])
def test_the_modules_are_called_so(name: str) -> None:
    """A module under a new name would be loaded unseen."""
    assert find_spec(name) is not None


_COPIES: Final = """
import resource, sys
from publisher.cli.main import main
sys.argv = ["publisher", "--version"]
try:
    main()
except SystemExit:
    pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    copies = [b"." * 1_000_000 for _ in range(4)]
    del copies
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide otherwise")
def test_memory_of_a_message_serves_the_next_one() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _COPIES], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert int(found.stdout.splitlines()[-1]) < 1_000  # pages of 4 KiB; about 100,000 when copies are given back
