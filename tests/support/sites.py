"""A whole site for end-to-end tests: accounting databases, a configuration file, a host certificate, a stand-in AMS.

`publisher` runs in this process through its real command line; what arrived is read back by the independent receiver.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from publisher.cli import main
from tests.arex_databases import RawRow, SampleJob, Schema, Writer
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.fake_ams.tables import Tables
from tests.support.pki import PKI, Credential
from tests.support.strict_apel import read_car
from tests.support.strict_apel_text import read_text

SITE = "EXAMPLE-SITE"
_VERIFIED_BY_OPENSSL: set[str] = set()  # formats; its own command takes longer than many a test
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the command line."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Without the number of its schema, which every object has."""
        parsed: dict[str, Any] = json.loads(self.out)
        assert parsed.pop("schema") == 1
        return parsed


def as_yaml(tree: dict[str, Any]) -> str:
    """Written by libyaml where it is there, as tests write thousands of configurations."""
    text: str = yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    return text


class ConfiguredSite:
    """A site in a folder, with its targets. `config` may be bent before the first run; `save` writes it down."""

    def __init__(self, folder: Path, pki: PKI, host: Credential, targets: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.pki = pki
        self.host = host
        self.control = folder / "control"
        (self.control / "accounting").mkdir(parents=True)
        self.state = folder / "state" / "publishing.db"
        self.path = folder / "publisher.yaml"
        self.config: dict[str, Any] = {
            "site": SITE,
            "source": {"type": "arex", "control_dir": str(self.control), "time_zone": "Europe/Oslo"},
            "state": str(self.state),
            "credentials": {
                "certificate": str(self.host.certificate),
                "key": str(self.host.key),
                "ca": str(pki.ca_directory),
            },
            "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
            "targets": targets,
        }

    def database(self, schema: Schema = 2) -> Path:
        return self.control / "accounting" / ("accounting_v2.db" if schema == 2 else "accounting.db")

    def arex(self, schema: Schema = 2) -> Writer:
        return Writer(self.database(schema), schema=schema)

    def fill(self, *jobs: SampleJob | RawRow, schema: Schema = 2) -> None:
        """These jobs are finished."""
        with self.arex(schema) as arex:
            arex.write_all(jobs)

    def save(self) -> None:
        """Write the configuration down; jobs of tests are of fixed months, which receivers keep whatever the date is."""
        targets = {
            name: {**one, "single_months": one.get("single_months", 0)} for name, one in self.config["targets"].items()
        }
        self.path.write_text(as_yaml(self.config | {"targets": targets}))

    def forget(self) -> None:
        """The ledger is lost, with its disk and all that lay beside it."""
        for path in self.state.parent.glob(f"{self.state.name}*"):
            path.unlink()

    def run(self, *arguments: str) -> Run:
        """Run `publisher --config … ARGUMENTS` in this process."""
        if not self.path.exists():
            self.save()
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main.run(["--config", str(self.path), *arguments])
        return Run(status=status, out=self.bare(out.getvalue()), err=self.bare(err.getvalue()))

    def bare(self, text: str) -> str:
        """Return what is printed with the configuration in its default place, which commands do not name."""
        return text.replace(f"publisher -c {self.path} ", "publisher ")

    def publish(self, *arguments: str) -> Run:
        return self.run("publish", "--json", "--force", *arguments)


class SiteUnderTest(ConfiguredSite):
    """A site that sends CAR to the stand-in AMS."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS, *, host: Credential | None = None) -> None:
        self.fake = fake
        self.user = "site-under-test"
        host = host or pki.host()
        fake.bind(host, self.user)
        egi = {
            "type": "ams",
            "url": fake.url,
            "auth_url": fake.auth_url,
            "service_host": fake.service_host,
            "format": "car",
            "start": "all",
            "every": "1s",
        }
        super().__init__(folder, pki, host, {"egi": egi})

    def received(self, *, with_openssl: bool | None = None) -> list[Row]:
        """Every record of jobs or months that arrived, in order, as APEL's loader reads it; `test_sync` tells of counts.

        OpenSSL verifies the first message of a format that this process sees, or all or none of them.
        Raises: Refused, for anything it would refuse.
        """
        form = next(iter(self.config["targets"].values()))["format"]
        if with_openssl is None and form in _VERIFIED_BY_OPENSSL:
            with_openssl = False
        _VERIFIED_BY_OPENSSL.add(form)
        first = Receiver.create(self.pki.ca_directory, allowed=[self.host.subject], with_openssl=with_openssl)
        others = first if with_openssl else replace(first, with_openssl=False)
        rows: list[Row] = []
        for number, message in enumerate(self.fake.messages(PROJECT, TOPIC)):
            text = (others if number else first).take(message).text
            if text.startswith("APEL-sync-message"):
                continue
            payload, now = text.encode(), datetime.now(UTC)
            rows += read_text(payload, now)[1] if text.startswith("APEL-") else read_car(payload, now)
        return rows

    def assert_received(self, *jobs: SampleJob) -> None:
        """Every job arrived, with its numbers, once."""
        assert Counter(map(told, self.received(with_openssl=False))) == Counter(map(truth, jobs))

    def table(self) -> Tables:
        """The receiver's rows, kept by its own keys."""
        tables = Tables()
        for row in self.received():
            tables.replace("Summaries" if "NumberOfJobs" in row else "JobRecords", row)
        return tables


def truth(job: SampleJob) -> tuple[Any, ...]:
    """What the receiver must hold of a job: local id, end, wall, CPU, cores."""
    return (
        job.local_job_id or job.job_id,
        job.end_time,
        job.wall_s,
        job.cpu_user_s + job.cpu_kernel_s,
        job.cpus,
    )


def told(row: Row) -> tuple[Any, ...]:
    """The same of a received row."""
    return (row["LocalJobId"], row["EndTime"], row["WallDuration"], row["CpuDuration"], row["Processors"])
