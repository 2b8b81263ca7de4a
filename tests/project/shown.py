"""What documents show as output, run again: `python -m tests.project.shown` writes what is printed today.

A block of the kind `console` holds lines `$ publisher ...`, each with what it prints below; a line `...` stands for lines left
out, and stderr belongs to it with `2>&1`. `<!-- site: NAME -->` before a block names a site of `SITES`; it and those
that follow on the page run there, in order.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tests.arex_databases import generate
from tests.demo.__main__ import fill_arex
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, sacct_text, stand_in_sacct
from tests.support.gridengine_files import CLUSTER, colon, entries
from tests.support.pki import PKI
from tests.support.postgres import binaries, private_server
from tests.support.sites import ConfiguredSite, SiteUnderTest
from tests.support.sonar_files import CLUSTER as SONAR_CLUSTER
from tests.support.sonar_files import collections

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK: Final = re.compile(r"(?:^<!-- site: (\w+) -->\n+)?^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LEFT_OUT: Final = "..."
# Lines left out one after the other, with the blank ones around them.
_GAP: Final = re.compile(r"(?:^\n)*(?:^\.\.\.\n(?:^\n)*)+", re.MULTILINE)
# What differs from run to run.
_VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?Z"), "TIME"),
    (re.compile(r"(?<=never sent )\(\d{4}-\d\d\)"), "(MONTH)"),  # the present one
    (re.compile(r"\bhpc1:\d+:\d{10}\b"), "SLURM-JOB"),
    (re.compile(r"\d{8}/\d{14}-[0-9a-f]{16}"), "MESSAGE-ID"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(r"_(?:age|oldest)'=\d+s"), "'=AGE"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A command in a document, with the output below it."""

    command: str
    output: str


# Sites


class ShownSite(SiteUnderTest):
    """A site of a page. `page` is its configuration where that is not `config`; `server` its PostgreSQL."""

    page = ""
    server = ""

    def save(self) -> None:
        if self.page:
            self.path.write_text(self.page, encoding="utf-8")
        else:
            super().save()


def demo(site: ShownSite) -> None:
    """3,000 jobs of October 2026, and nothing published."""
    fill_arex(site)


def small(site: ShownSite) -> None:
    """Two months of jobs that were delivered but for two, whose rows are damaged, and one that ended since."""
    start, end = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
    *jobs, late = generate(1, 200, start, end)
    site.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    with site.arex() as arex:
        for job in jobs:
            arex.write(job)
        damaged = [jobs[20].job_id, jobs[150].job_id]
        arex.connection.execute("UPDATE AAR SET UsedWalltime = -1 WHERE JobID IN (?, ?)", damaged)
    site.run("publish")
    with site.arex() as arex:
        arex.write(late)


def rescaled(site: ShownSite) -> None:
    """Summaries of October were delivered; then another benchmark was configured."""
    site.config["targets"]["egi"]["format"] = "apel-summary-0.2"
    with site.arex() as arex:
        for job in generate(1, 12, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)):
            arex.write(job)
    site.run("publish")
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 12.5, "override": True}


def gridengine(site: ShownSite) -> None:
    """A cluster with Grid Engine, whose accounting file has a torn line."""
    accounting = site.folder / "sge" / "common" / "accounting"
    accounting.parent.mkdir(parents=True)
    accounting.write_bytes(b"".join(map(colon, entries(1, 500))) + b"torn\n")
    (site.folder / "groups.map").write_text("theory atlas\nastro icecube\n")
    imported(
        site,
        "gridengine",
        {"cluster": CLUSTER, "paths": [str(accounting.parent)], "group_vo_map": "groups.map", "unmapped_vo": "local"},
    )


def sonar(site: ShownSite) -> None:
    """A Slurm cluster that Sonar watches."""
    folder = site.folder / "sonar" / "2026" / "09" / "21"
    folder.mkdir(parents=True)
    (folder / "0+job-slurm.json").write_bytes(b"".join(collections(1, 200)))
    (site.folder / "accounts.map").write_text("theory atlas\nastro icecube\n")
    entry = {"cluster": SONAR_CLUSTER, "paths": [str(site.folder / "sonar")], "time_zone": "Europe/Oslo"}
    imported(site, "sonar", entry | {"account_vo_map": "accounts.map"})


def slurm(site: ShownSite) -> None:
    """A Slurm cluster whose sacct tells of some hours, all of them in the midst of one of the days that it is asked for."""
    later = int(datetime.now(UTC).timestamp() - 2.7 * 86_400) - sacct_text.BEGIN
    lines = [_later(line, later) for line in sacct_text.jobs_of(1, 300)]
    command = stand_in_sacct.install(site.folder / "slurm", lines)
    (site.folder / "accounts.map").write_text("theory atlas\nbio icecube\n")
    imported(site, "slurm", {"cluster": sacct_text.CLUSTER, "command": list(command), "account_vo_map": "accounts.map"})


def _later(line: Mapping[str, object], seconds: int) -> dict[str, object]:
    """The line of a job that lived later."""
    moments = {name: line[name] for name in ("Submit", "Eligible", "Start", "End")}
    return {**line, **{name: at + seconds for name, at in moments.items() if isinstance(at, int)}}


def htcondor(site: ShownSite) -> None:
    """A pool of HTCondor that writes a file for each job."""
    (site.folder / "condor").mkdir()
    condor_history.spool(site.folder / "condor" / "history-per-job", condor_history.ads_of(1, 300))
    (site.folder / "groups.map").write_text("group_theory atlas\ngroup_bio icecube\n")
    history = str(site.folder / "condor" / "history-per-job")
    imported(site, "htcondor", {"cluster": condor_history.CLUSTER, "history": history, "group_vo_map": "groups.map"})


def imported(site: ShownSite, name: str, entry: Mapping[str, object]) -> None:
    """Its records go into a directory, as in a first trial."""
    site.config["source"] = [{"type": name, **entry}]
    _into_a_directory(site)


def trial(site: ShownSite) -> None:
    """3,000 jobs of October 2026, and a first target that needs no service."""
    fill_arex(site)
    _into_a_directory(site)


def _into_a_directory(site: ShownSite) -> None:
    site.config["targets"] = {
        "trial": {
            "type": "spool",
            "path": str(site.state.parent / "trial"),
            "format": "car",
            "sign": False,
            "start": "all",
        }
    }


def mistaken(site: ShownSite) -> None:
    """A configuration with mistakes."""
    site.config["records"]["benchmark"] = {"type": "HEPscore", "value": 11.5}
    site.config["targets"]["egi"] |= {"formt": "car", "every": "1 hour"}


def unreadable(site: ShownSite) -> None:
    """Everything was delivered; then A-REX's database was moved away."""
    fill_arex(site)
    site.run("publish")
    site.database().rename(site.folder / "elsewhere.db")


ARC_CONF: Final = """\
[common]
hostname = ce.example.org

[arex]
controldir = {control}

[arex/jura]
loglevel = 3

[arex/jura/apel:egi]
targeturl = {url}
topic = gLite-APEL
gocdb_name = EXAMPLE-SITE
apel_messages = summaries
"""


def jura(site: ShownSite) -> None:
    """A CE of which ARC's publisher has sent the jobs until 20 October; there is no configuration of ours."""
    fill_arex(site)
    (site.folder / "arc.conf").write_text(ARC_CONF.format(control=site.control, url=site.fake.url))
    last = int(datetime(2026, 10, 20, 6, tzinfo=UTC).timestamp())
    with closing(sqlite3.connect(site.control / "accounting" / "publishing.db")) as progress, progress:
        progress.execute(
            "CREATE TABLE AccountingTargets (TargetID TEXT UNIQUE, LastEndTime INTEGER, LastReport INTEGER)"
        )
        progress.execute("INSERT INTO AccountingTargets VALUES ('arex/jura/apel:egi', ?, 1)", (last,))


def beside_jura(site: ShownSite) -> None:
    """The same with the configuration made from its arc.conf, as a shadow; jura-ng has run again since."""
    jura(site)
    made = site.run("config", "from-arc", str(site.folder / "arc.conf")).out
    keys = f"shadow: true\n    auth_url: {site.fake.auth_url}\n    service_host: {site.fake.service_host}"
    credentials = site.config["credentials"]
    for name, path in (("hostcert.pem", "certificate"), ("certificates", "ca")):
        made = made.replace(f"/etc/grid-security/{name}", credentials[path])
    made = made.replace("$CREDENTIALS_DIRECTORY/hostkey.pem", credentials["key"])
    made = made.replace("    type: ams\n", f"    type: ams\n    {keys}\n")
    site.page = f"state: {site.state}\n{made}"
    last = int(datetime(2026, 10, 31, 20, tzinfo=UTC).timestamp())
    with closing(sqlite3.connect(site.control / "accounting" / "publishing.db")) as progress, progress:
        progress.execute("UPDATE AccountingTargets SET LastEndTime = ?", (last,))


@contextmanager
def moving(site: ShownSite) -> Iterator[None]:
    """A CE with a ledger in a file, and a server that has none yet."""
    site.fill(*generate(1, 200, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    site.run("publish")
    with _server(site):
        yield


@contextmanager
def fleet(site: ShownSite) -> Iterator[None]:
    """Two CEs with one PostgreSQL; we are at the first one."""
    start, end = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
    site.config["targets"]["egi"]["sync"] = True
    with _server(site):
        for seed, name in ((2, "ce2"), (1, "ce1")):
            other = ConfiguredSite(site.folder / name, site.pki, site.host, site.config["targets"])
            other.config |= {"state": site.server, "instance": name, "state_directory": str(other.folder)}
            other.fill(
                *(
                    replace(job, endpoint_url=f"https://{name}.example.org:443/arex")
                    for job in generate(seed, 200, start, end)
                )
            )
            other.run("publish")
            other.run("sync", "--months", "all")
        site.config = other.config
        yield


@contextmanager
def _server(site: ShownSite) -> Iterator[None]:
    programs = binaries()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL on this machine")
    with private_server(programs) as server:
        site.server = server.address
        yield


_ALL: Final[tuple[Callable[[ShownSite], AbstractContextManager[None] | None], ...]] = (
    *(demo, trial, small, rescaled, gridengine, slurm, htcondor, sonar, mistaken, unreadable),
    *(jura, beside_jura, moving, fleet),
)
SITES: Final = {each.__name__: each for each in _ALL}
OF_POSTGRES: Final = {moving.__name__, fleet.__name__}


# Running


def examples(block: str) -> Iterator[Example]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Example(command=command, output=output.strip("\n"))


def alike(shown: str, printed: str) -> bool:
    """Whether the output in a document is this one, but for what varies and what it leaves out."""
    lines = masked(shown).splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line == LEFT_OUT else f"{re.escape(line)}\n" for line in lines)
    return re.fullmatch(pattern, f"{masked(printed)}\n" if printed else "") is not None


def masked(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def run(site: ShownSite, command: str) -> str:
    """What the command prints, with the paths and addresses of a real site."""
    words = [at_site(site, word) for word in shlex.split(command)]
    joined = words[-1] == "2>&1"
    done = site.run(*words[1 : len(words) - joined])
    text = done.err + done.out if joined else done.out
    for path, name in paths(site):
        text = text.replace(path, name)
    return re.sub(r"https://localhost:\d+", "https://msg.argo.grnet.gr", text).strip("\n")


def paths(site: ShownSite) -> list[tuple[str, str]]:
    """What is here, and what a page shows."""
    pairs = [
        (site.control, "/var/spool/arc/jobstatus"),
        (site.state.parent, "/var/lib/publisher"),
        (site.path, "/etc/publisher/publisher.yaml"),
        (site.host.certificate, "/etc/grid-security/hostcert.pem"),
        (site.host.key, "/etc/grid-security/hostkey.pem"),
        (site.pki.ca_directory, "/etc/grid-security/certificates"),
        (site.folder / "arc.conf", "/etc/arc.conf"),
        (site.folder / "condor", "/var/lib/condor"),
        (site.folder / "sge", "/opt/sge/default"),
        (site.folder / "sonar", "/var/lib/sonar"),
        (site.folder, "/etc/publisher"),
    ]
    server = [(site.server, "postgresql://publisher@db.example.org/accounting")] if site.server else []
    return [*server, *((str(path), name) for path, name in pairs)]


def at_site(site: ShownSite, word: str) -> str:
    for path, name in paths(site):
        if word.startswith(name):
            return word.replace(name, path, 1)
    return word


def page_again(text: str, folder: Path) -> Iterator[tuple[Example, str]]:
    """Each example of a page with what is printed now."""
    pki = PKI.create(folder / "pki")
    with ExitStack() as stack:
        site: ShownSite | None = None
        for at, (name, block) in enumerate(BLOCK.findall(text)):
            if name:
                place = folder / f"{at}-{name}"
                place.mkdir()
                site = ShownSite(place, pki, stack.enter_context(FakeAMS(pki)))
                if serving := SITES[name](site):
                    stack.enter_context(serving)
                site.save()
            for each in examples(block):
                if site is None:
                    raise ValueError(f"{each.command}: no site is named before it")
                yield each, run(site, each.command)


def rewritten(text: str, folder: Path) -> str:
    """The page with what is printed now, where it differs."""
    done, rest = "", text
    for each, printed in page_again(text, folder):
        before, command, rest = rest.partition(f"$ {each.command}\n")
        done += before + command
        if not alike(each.output, printed):
            rest = rest.removeprefix(f"{each.output}\n")
            done += f"{abridged(printed, each.output)}\n"
    return done + rest


def abridged(printed: str, shown: str) -> str:
    """Of what is printed now, the lines that resemble those shown so far; all, where none were left out."""
    before = [masked(line) for line in shown.splitlines()]
    lines = printed.splitlines()
    if LEFT_OUT not in before:
        return printed
    kept = [LEFT_OUT if line and not get_close_matches(masked(line), before, cutoff=0.9) else line for line in lines]
    return _GAP.sub(f"{LEFT_OUT}\n", "".join(f"{line}\n" for line in kept)).rstrip("\n")


def main() -> None:
    for page in PAGES:
        with tempfile.TemporaryDirectory(prefix="publisher-shown-") as folder:
            text = rewritten(page.read_text(encoding="utf-8"), Path(folder))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
