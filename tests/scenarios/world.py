"""One site of a scenario with the services that it reports to; every command's answer goes into a file, normalised."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from tests.arex_databases import RawRow, SampleJob, Schema, Writer
from tests.fake_ams.receiver import Receiver, Refused
from tests.fake_ams.service import PROJECT, FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.support.pki import PKI, Credential

REPOSITORY: Final = Path(__file__).parents[2]
USER: Final = "observed"
# One topic each: the configuration refuses two formats to one topic.
FORMATS: Final = (
    "car",
    "apel-job-0.2",
    "apel-job-0.3",
    "apel-job-0.4",
    "apel-summary-0.2",
    "apel-summary-0.3",
    "apel-summary-0.4",
    "apel-normalised-summary-0.4",
)
_ID: Final = re.compile(r"\b\d{8}[/-]\d{14}-[0-9a-f]{16}\b|\b\d{14}-[0-9a-f]{16}\b")
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{40}\b")
_FREE: Final = re.compile(r"\b[\d,]+ MiB free\b")
# Which of them is seen depends on how much of the answer the kernel had handed over.
_CUT_OFF: Final = re.compile(r"\(Connection reset by peer\)|\(RemoteDisconnected: [^()]*\)")
_MAIN: Final[Callable[[], Any]] = next(iter(entry_points(group="console_scripts", name="publisher"))).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all scenarios share: making keys takes long, starting listeners too."""

    folder: Path
    pki: PKI
    host: Credential
    ams: FakeAMS
    sgas: FakeSGAS


@contextmanager
def services(folder: Path) -> Iterator[Services]:
    """Certificates are good by the pinned clock and by the real one, which TLS minds."""
    pki = PKI.create(folder / "pki")
    begin, days = datetime(2020, 1, 1, tzinfo=UTC), 5000
    host = pki.host(not_before=begin, days=days)
    server = pki.host("localhost", san=("localhost", "127.0.0.1"), not_before=begin, days=days)
    with FakeAMS(pki, server=server) as ams, FakeSGAS(pki, server=server) as sgas:
        ams.bind(host, USER, ())
        sgas.allow(host, "jobinsert")
        yield Services(folder=folder, pki=pki, host=host, ams=ams, sgas=sgas)


class World:
    """A scenario's site. `config` may be changed between two commands; `ask` runs one and writes down what came of it."""

    def __init__(self, name: str, shared: Services, notes: Path) -> None:
        self.name = name
        self.ams, self.sgas = shared.ams, shared.sgas
        self.folder = shared.folder / name
        self.control = self.folder / "control"
        (self.control / "accounting").mkdir(parents=True)
        self.path = self.folder / "publisher.yaml"
        self._receiver = Receiver.create(shared.pki.ca_directory, with_openssl=False)
        self._notes = notes / name
        self._notes.mkdir(parents=True)
        self._asked = 0
        self._ids: dict[str, str] = {}
        self._read: dict[str, int] = {"sgas": len(shared.sgas.requests)}
        self._places = {
            str(self.folder): "FOLDER",
            str(shared.folder): "SHARED",
            str(REPOSITORY): "REPOSITORY",
            self.ams.url.removeprefix("https://"): "AMS",
            self.ams.auth_url.removeprefix("https://"): "AUTHN",
            urlsplit(self.sgas.url).netloc: "SGAS",
            f"port {self.ams.port} ": "port AMS ",
            f"port {self.ams.auth_port} ": "port AUTHN ",
            f"port {urlsplit(self.sgas.url).port} ": "port SGAS ",
        }
        self.config: dict[str, Any] = {
            "site": "EXAMPLE-SITE",
            "source": {"type": "arex", "control_dir": str(self.control), "time_zone": "Europe/Oslo"},
            "state": str(self.folder / "state" / "publishing.db"),
            "credentials": {
                "certificate": str(shared.host.certificate),
                "key": str(shared.host.key),
                "ca": str(shared.pki.ca_directory),
            },
            "records": {"benchmark": {"type": "HEPscore23", "value": 11.5}},
            "targets": {},
        }

    # The site

    def database(self, schema: Schema = 2) -> Path:
        return self.control / "accounting" / ("accounting_v2.db" if schema == 2 else "accounting.db")

    def fill(self, *jobs: SampleJob | RawRow, schema: Schema = 2) -> None:
        with Writer(self.database(schema), schema=schema) as arex:
            arex.write_all(jobs)

    def add_ams(self, form: str, **keys: Any) -> str:
        """A target of its own topic; gives its name."""
        name = form.replace(".", "")
        topic = f"{self.name}-{name}"
        self.ams.allow(USER, topic)
        self.config["targets"][name] = {
            "type": "ams",
            "url": self.ams.url,
            "auth_url": self.ams.auth_url,
            "service_host": self.ams.service_host,
            "topic": topic,
            "format": form,
            "start": "all",
            "every": "1h",
            "attempts": 1,
        } | keys
        return name

    def add_sgas(self, **keys: Any) -> str:
        self.config["targets"]["nordic"] = {
            "type": "sgas",
            "url": self.sgas.url,
            "format": "ogf-ur",
            "start": "all",
            "every": "1h",
            "attempts": 1,
        } | keys
        return "nordic"

    def add_spool(self, name: str, form: str, **keys: Any) -> str:
        self.config["targets"][name] = {
            "type": "spool",
            "path": str(self.folder / name),
            "format": form,
            "start": "all",
            "every": "1h",
        } | keys
        return name

    # Questions

    def ask(self, *words: str) -> str:
        """Run `publisher --config … WORDS`, note what came of it; gives standard output."""
        self.path.write_text(yaml.safe_dump(self.config, sort_keys=False))
        return self.ask_bare("--config", str(self.path), *words, title=words)

    def ask_bare(self, *words: str, title: Iterable[str] = ()) -> str:
        status, out, err = _run(words)
        said = f"$ publisher {shlex.join(words)}\n"
        said += f"exit status {status}\n--- standard output\n{_laid_out(out)}--- standard error\n{err}"
        self.note(" ".join(title or words), said)
        return out

    def note(self, title: str, text: str) -> None:
        """One file; numbered, so that a listing tells the story."""
        self._asked += 1
        slug = re.sub(r"[^A-Za-z0-9.-]+", "_", self._normalised(title)).strip("_")[:80]
        path = self._notes / f"{self._asked:03}-{slug}.txt"
        path.write_text(self._normalised(text), encoding="utf-8", errors="backslashreplace")

    def note_wire(self, target: str) -> None:
        """What has arrived of a target since the last look."""
        keys = self.config["targets"][target]
        match keys["type"]:
            case "ams":
                arrived = list(self._of_ams(keys["topic"]))
            case "sgas":
                arrived = list(self._of_sgas())
            case _:
                arrived = list(self._of_spool(Path(keys["path"])))
        self.note(f"wire {target}", "".join(f"=== {head}\n{body}\n" for head, body in arrived) or "nothing\n")

    def _of_ams(self, topic: str) -> Iterator[tuple[str, str]]:
        messages = self.ams.messages(PROJECT, topic)
        for message in messages[self._read.get(topic, 0) :]:
            head = json.dumps(message.attributes, sort_keys=True)
            try:
                taken = self._receiver.take(message)
            except Refused as refused:
                yield head, f"refused: {refused}"
            else:
                yield f"{head} {taken.signer}\n{taken.inner_header}", taken.text
        self._read[topic] = len(messages)

    def _of_sgas(self) -> Iterator[tuple[str, str]]:
        requests = list(self.sgas.requests)
        for request in requests[self._read.get("sgas", 0) :]:
            yield f"{request.method} {request.target} {request.status}", request.body.decode(errors="backslashreplace")
        self._read["sgas"] = len(requests)

    def _of_spool(self, folder: Path) -> Iterator[tuple[str, str]]:
        for path in sorted(folder.rglob("*"), key=lambda path: path.stat().st_mtime_ns):
            name = str(path.relative_to(folder))
            if not path.is_file() or name in self._read:
                continue
            self._read[name] = 1
            text = path.read_text(errors="backslashreplace")
            if text.startswith("MIME-Version"):
                taken = self._receiver.open(text)
                text = f"{taken.inner_header}\n{taken.text}"
            yield name, text

    def _normalised(self, text: str) -> str:
        for place, word in self._places.items():
            text = text.replace(place, word)
        text = _CUT_OFF.sub("(cut off)", _FREE.sub("... MiB free", text))
        return _DIGEST.sub(self._numbered("digest"), _ID.sub(self._numbered("id"), text))

    def _numbered(self, kind: str) -> Callable[[re.Match[str]], str]:
        """The same one has the same number, wherever in the scenario it stands."""

        def name(found: re.Match[str]) -> str:
            known = [key for key in self._ids.values() if key.startswith(f"<{kind} ")]
            return self._ids.setdefault(found[0], f"<{kind} {len(known) + 1}>")

        return name


def _run(words: tuple[str, ...]) -> tuple[int, str, str]:
    """The console script, in this process."""
    random.seed(1)
    out, err = io.StringIO(), io.StringIO()
    kept, sys.argv = sys.argv, ["publisher", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _MAIN()
    except SystemExit as end:
        code = end.code
    else:
        code = 0
    finally:
        sys.argv = kept
    return code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue()


def _laid_out(text: str) -> str:
    """JSON over several lines: a difference is one of a line."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return f"{json.dumps(parsed, indent=1, ensure_ascii=False)}\n"
