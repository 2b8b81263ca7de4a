"""The whole configuration file: its top-level keys, its blocks, and the settings they become."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from publisher.config import schema
from publisher.config.records import RecordSettings, read_records
from publisher.config.schema import Node, Place, ReadContext, Text, Wrong, YamlBlock, quoted
from publisher.config.targets import (
    NAME,
    REGISTERED,
    Common,
    ConfiguredTarget,
    Registered,
    plugin_options,
    read_target,
    read_targets,
    same_rows,
)
from publisher.model.errors import ConfigError
from publisher.policy.records import RecordPolicy
from publisher.sources import OF_CES
from publisher.sources.base import BatchEntry

_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(1, 65536)


@dataclass(frozen=True, slots=True)
class Listen:
    """An address of this host, IPv4 or IPv6, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _read_textfile(node: Node, reading: ReadContext) -> Path:
    path = schema.path(node, reading)
    if path.suffix != ".prom":
        why = "does not end in .prom; the node exporter reads no other files"
        raise Wrong(f"{quoted(str(path))} {why}")
    return path


def _read_listen(node: Node, _reading: ReadContext) -> Listen:
    text = schema.scalar(node, "an address and a port, such as 127.0.0.1:9645")
    host, _colon, port = text.rpartition(":")
    host = _LOOPBACK if host in ("", "localhost") else host.removeprefix("[").removesuffix("]")
    try:
        ip_address(host)
    except ValueError:
        why = f"{quoted(host)} is no IP address; write 127.0.0.1:9645"
        raise Wrong(f"{quoted(text)}: {why}") from None
    if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
        raise Wrong(f"{quoted(text)}: {quoted(port)} is not a port; write 127.0.0.1:9645")
    return Listen(host=host, port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """A text file for the node exporter, and where the daemon answers Prometheus itself."""

    textfile: Path | None = field(default=None, metadata={"read": _read_textfile})
    listen: Listen | None = field(default=None, metadata={"read": _read_listen})
    all_instances: bool = False

    def __post_init__(self) -> None:
        if self.textfile is None and self.listen is None:
            what = "names neither textfile nor listen"
            raise ValueError(f"{what}; remove it, or say where metrics are wanted")


check_library: Final = schema.check(
    lambda _: find_spec("prometheus_client") is not None,
    "the Python library prometheus_client is not installed here; install it "
    "(python3-prometheus-client on Debian, python3-prometheus_client on EL, "
    "accounting-publisher[metrics] with pip), or remove this block",
)

_GRID_SECURITY: Final = Path("/etc/grid-security")
DEFAULT_STATE: Final = Path("/var/lib/publisher/publishing.db")
_TARGETS_AT_ONCE: Final = 8
_check_at_once: Final = schema.check(range(1, 101).__contains__, "{} is not between 1 and 100")
_SERVER: Final = ("postgresql://", "postgres://", "service=")
_LONGEST_INSTANCE: Final = 50  # it is part of a name in PostgreSQL


def read_state(node: Node, reading: ReadContext) -> Path | str:
    """The path of SQLite's file, or the address of a PostgreSQL database as libpq reads it."""
    text = schema.scalar(node, "a path, or the address of a PostgreSQL database")
    if not text.startswith(_SERVER):
        if "://" not in text:
            return schema.path(node, reading)
        why = "is no address of a ledger; write a path, postgresql://HOST/DATABASE or service=NAME"
        raise Wrong(why)
    if problem := _server_problem(text):
        raise Wrong(problem)
    return text


def _server_problem(address: str) -> str:
    """What is wrong with an address of PostgreSQL; '' for nothing."""
    if address.startswith("service="):
        if not NAME.fullmatch(address.removeprefix("service=")):
            why = "names no service; write service=NAME, of the file .pg_service.conf"
            return f"{quoted(address)} {why}"
    else:
        has_password = _has_password(address)
        if has_password is None:
            return "is no address; write postgresql://HOST/DATABASE, or service=NAME"
        if has_password:  # not quoted: the message may end in a log
            advice = "put it into a password file (PGPASSFILE) or libpq's service file"
            return f"holds a password, which others could read here; {advice}"
    if find_spec("psycopg") is None:
        advice = "install accounting-publisher[postgres] by pip, or name a file"
        return f"needs the Python library psycopg 3: {advice}"
    return ""


def _has_password(address: str) -> bool | None:
    """None where it is no address."""
    if not address.isascii() or not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        return parts.password is not None or bool({"password", "sslpassword"} & options.keys())
    except ValueError:
        return None


_NAME_SHAPE: Final = "letters, digits, '.', '_' and '-', begins with a letter or digit"
check_instance: Final = schema.check(
    lambda name: NAME.fullmatch(name) is not None and len(name) <= _LONGEST_INSTANCE,
    f"{{}} is no name of an instance: {_NAME_SHAPE}, 50 at most",
)


class LedgerServer(NamedTuple):
    """A PostgreSQL database as libpq addresses it, and whose ledger in it is meant."""

    address: str
    instance: str


def _read_ca(node: Node, reading: ReadContext) -> Path | None:
    return None if isinstance(node, Text) and node.text == "system" else schema.path(node, reading)


check_site: Final = schema.check(
    lambda site: site and site.isascii() and " " not in site and len(site) <= 255,
    "{} is not a site name; write it as in GOCDB: ASCII, without blanks",
)


class RevocationCheck(StrEnum):
    """Whether current CRLs of a server's CA are needed, count if present, or do not count."""

    REQUIRE = "require"
    IF_PRESENT = "if-present"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSettings:
    """The host's certificate and key; `ca` is a hashed directory, a bundle, or None."""

    certificate: Path = _GRID_SECURITY / "hostcert.pem"
    key: Path = _GRID_SECURITY / "hostkey.pem"
    ca: Path | None = field(default=_GRID_SECURITY / "certificates", metadata={"read": _read_ca})
    crl: RevocationCheck = RevocationCheck.IF_PRESENT


_check_source_name: Final = schema.check(
    lambda name: NAME.fullmatch(name) is not None,
    "{} is no name: letters, digits, '.', '_' and '-', and begins with a letter or digit",
)
_JOIN_WAIT_S: Final = 3600


class Joined(StrEnum):
    """Whose jobs get what only a batch system knows of them."""

    AREX = "arex"


@dataclass(kw_only=True)
class SourceKeys:
    """The keys of every source; the rest are those of its type."""

    type: str = field(
        metadata={"help": "write the kind of accounting database, arex, or the batch system"}
    )
    name: str = field(default="", metadata={"check": _check_source_name})
    join: Joined | None = None
    join_wait: int = field(default=_JOIN_WAIT_S, metadata={"read": schema.whole_duration_s})


_MOVED: Final = {"keep": "write it at the top of the file: it is one for all sources"}


class SourceSettings(NamedTuple):
    """Databases that jobs come from; `options` are of the source's `Options`."""

    type: str
    name: str = ""
    options: object = None


def _read_sources(node: Node, _reading: ReadContext) -> Sequence[YamlBlock]:
    """One mapping, or a list of them. Raises: Wrong."""
    if not isinstance(node, schema.Listing):
        return (schema.as_block(node),)
    if not node.entries:
        raise Wrong("is empty; name at least one source")
    return [schema.as_block(each) for each in node.entries]


@dataclass(kw_only=True)
class TopKeys:
    """The keys of the file. Blocks that need each other are read one after the other by `load`."""

    site: str = field(metadata={"check": check_site, "help": "write the site's name as in GOCDB"})
    source: object = field(default=(), metadata={"read": _read_sources})
    state: Path | str = field(default_factory=lambda: DEFAULT_STATE, metadata={"read": read_state})
    instance: str = field(default="", metadata={"check": check_instance})
    state_directory: Path | None = None
    keep: int = field(default=0, metadata={"read": schema.months})
    targets_at_once: int = field(default=_TARGETS_AT_ONCE, metadata={"check": _check_at_once})
    credentials: CredentialSettings = CredentialSettings()
    metrics: MetricsSettings | None = field(default=None, metadata={"check": check_library})
    records: object = field(default=None, metadata={"read": schema.as_block})
    importers: object = field(default=None, metadata={"read": schema.as_block})
    targets: object = field(metadata={"read": schema.as_block, "help": "say where records go"})


class Settings(NamedTuple):
    """The configuration, checked and complete. `records` is the block; targets have own views.

    `source` reads all databases: of `written`, ARC's entries, and the batch systems' entries.
    """

    path: Path
    site: str
    source: SourceSettings
    written: tuple[SourceSettings, ...]
    state: Path  # SQLite's file; with a server, where that would be, beside what is kept here
    credentials: CredentialSettings
    records: RecordSettings
    targets: tuple[ConfiguredTarget, ...]
    server: LedgerServer | None = None
    batch_entries: tuple[BatchEntry, ...] = ()
    keep_months: int = 0  # jobs that ended before so many months are summed up; 0: none
    targets_at_once: int = _TARGETS_AT_ONCE
    metrics: MetricsSettings | None = None
    host_name: str = ""

    @property
    def policy(self) -> RecordPolicy:
        """What `records` makes of a job, whatever a target overrides: of the site as a whole."""
        return self.records.policy(self.site, self.host_name, self.batch_entries, charged=True)


def load(
    path: Path,
    environment: Mapping[str, str],
    *,
    host_name: str,
    registered: Registered = REGISTERED,
) -> Settings:
    """The settings of a file. Relative paths in it start in its directory.

    Raises: ConfigError listing every problem as `FILE:LINE: key.path: what is wrong; what to do`.
    """
    problems = schema.Problems(str(path))
    tree: YamlBlock | None = schema.load_module("yaml_file").read_tree(path, problems)
    if tree is None:
        raise ConfigError(problems.lines())
    reading = ReadContext(problems=problems, environment=environment, folder=path.absolute().parent)
    schema.check_names(tree, schema.keys_of(TopKeys), reading)
    known = schema.read_keys(tree, TopKeys, reading)
    schema.missing_keys(tree, TopKeys, reading)
    site = known.get("site", "")
    records_block = known.get("records")
    records = RecordSettings() if records_block is None else read_records(records_block, reading)
    state, server = _ledger(tree, known, reading)
    if "source" not in tree.keys and "importers" not in tree.keys:
        missing = tree.place.under("source", tree.place.line)
        reading.wrong(missing, "missing; say where jobs come from")
    sources = _Sources(registered, reading, known.get("keep", 0))
    sources.read(known.get("source", ()), known.get("importers"))
    batch_entries = tuple(sources.batch_entries)
    common = Common(site, host_name, records, registered, batch_entries)
    targets = read_targets(known["targets"], common, reading) if "targets" in known else ()
    source = sources.effective()
    problems.stop()
    if source is None:
        raise AssertionError(f"{path}: no source, and nothing said why")
    return Settings(
        path=path,
        site=site,
        source=source,
        written=tuple(sources.written),
        state=state,
        server=server,
        credentials=known.get("credentials", CredentialSettings()),
        records=records,
        targets=targets,
        batch_entries=batch_entries,
        keep_months=known.get("keep", 0),
        targets_at_once=known.get("targets_at_once", _TARGETS_AT_ONCE),
        metrics=known.get("metrics"),
        host_name=host_name,
    )


def _command_line_node(place: Place, value: str | Sequence[str]) -> Node:
    """A value of the command line as if it stood in the file."""
    if isinstance(value, str):
        return Text(place=place, text=value, null=False)
    return schema.Listing(place, tuple(_command_line_node(place, one) for one in value))


def one_off_target(
    settings: Settings,
    name: str,
    keys: Mapping[str, str | Sequence[str]],
    *,
    site: str | None,
    host_name: str,
    registered: Registered = REGISTERED,
) -> ConfiguredTarget:
    """A target of the command line only; `keys` are as in the file. Raises: ConfigError."""
    problems = schema.Problems("command line")
    reading = ReadContext(problems=problems, environment={}, folder=Path.cwd())
    place = Place(line=0, path="")
    nodes = {key: _command_line_node(place.under(key, 0), value) for key, value in keys.items()}
    common = Common(settings.site, host_name, settings.records, registered, settings.batch_entries)
    if site is not None:
        common = common._replace(site=site)
        if complaint := check_site(site):
            problems.add(place.under("site", 0), complaint)
    target = read_target(name, YamlBlock(place, nodes), common, reading)
    problems.stop()
    for other in settings.targets:
        if target is not None and same_rows(target, other):
            advice = "name it with --target, so that what it has sent before is known"
            problems.add(place, f"target {other.name} sends there: {advice}")
    problems.stop()
    if target is None:
        raise AssertionError("command line: no target, and nothing said why")
    return target


def _ledger(
    tree: YamlBlock, known: Mapping[str, Any], reading: ReadContext
) -> tuple[Path, LedgerServer | None]:
    """Where the ledger is. `instance` and `state_directory` go with a server."""
    state = known.get("state", DEFAULT_STATE)
    if isinstance(state, Path):
        if (metrics := known.get("metrics")) and metrics.all_instances:
            what = "all_instances is for a ledger in PostgreSQL only; remove it"
            reading.wrong(tree.keys["metrics"].place, what)
        for key in ("instance", "state_directory"):
            if key in tree.keys and ("state" in known or "state" not in tree.keys):
                reading.wrong(tree.keys[key].place, "is for a ledger in PostgreSQL only; remove it")
        return state, None
    if "instance" not in tree.keys:
        missing = tree.place.under("instance", tree.keys["state"].place.line)
        what = "missing; name this CE's instance; the two hosts of a pair name the same one"
        reading.wrong(missing, what)
    local = (known.get("state_directory") or DEFAULT_STATE.parent) / DEFAULT_STATE.name
    return local, LedgerServer(address=state, instance=known.get("instance", ""))


class _Sources:
    """Reads `source` and `importers`; what is wrong goes to the problems."""

    def __init__(self, registered: Registered, reading: ReadContext, keep: int) -> None:
        self._registered = registered
        self._keep = keep
        self._reading = reading
        self._names: set[str] = set()
        self.written: list[SourceSettings] = []
        self.batch_entries: list[BatchEntry] = []
        self._batch_systems: list[tuple[YamlBlock, BatchEntry]] = []

    def read(self, blocks: Sequence[YamlBlock], importers: YamlBlock | None) -> None:
        for block in blocks:
            self._entry(block)
        for block, entry in self._batch_systems:  # by now it is known whether there are CEs
            self._add_batch_system(block, entry, entry.options)
        if importers is not None:
            self._importers(importers)

    def effective(self) -> SourceSettings | None:
        """What all databases are read by; None where nothing names one."""
        if self.written:
            first, *others = self.written
            options: Any = first.options
            if others:
                options = replace(options, further=tuple(each.options for each in others))
            return first._replace(options=options)
        if not self.batch_entries:
            return None
        shape = self._registered.sources[OF_CES]()
        return SourceSettings(type=OF_CES, options=shape(is_empty=True))

    def _entry(self, block: YamlBlock) -> None:
        registered, reading = self._registered, self._reading
        schema.missing_keys(block, SourceKeys, reading)
        kind, shape = plugin_options(block, {**registered.sources, **registered.importers}, reading)
        if shape is None:
            return
        names = [*schema.keys_of(SourceKeys), *schema.keys_of(shape)]
        schema.check_names(block, names, reading, _MOVED)
        keys = schema.read_keys(block, SourceKeys, reading)
        name = keys.get("name") or kind
        options: Any = schema.build(block, shape, schema.read_keys(block, shape, reading), reading)
        if name in self._names:
            what = f"another source is called {name} too; give each a name of its own"
            reading.wrong(block.place, what)
        elif kind is not None and name is not None and options is not None:
            self._names.add(name)
            join_wait_s = keys.get("join_wait", _JOIN_WAIT_S) if keys.get("join") else None
            entry = BatchEntry(name, kind, options, True, join_wait_s)
            if kind in registered.importers:
                self._batch_systems.append((block, entry))
            else:
                self._add_databases(block, entry)

    def _add_databases(self, block: YamlBlock, keys: BatchEntry) -> None:
        """One plug-in reads all, and users and files are spelled alike: statistics need both."""
        reading = self._reading
        if keys.join_wait_s is not None:
            what = "is a key of a batch system, whose runs are joined"
            reading.wrong(block.keys["join"].place, what)
        entry = SourceSettings(type=keys.type, name=keys.name, options=keys.options)
        first = self.written[0] if self.written else entry
        one, other = (getattr(each.options, "unescape", None) for each in (first, entry))
        alike = first.type == entry.type and one == other
        if alike and (first is entry or hasattr(entry.options, "further")):
            self.written.append(entry)
        else:
            what = f"cannot be read beside the entry {first.name}"
            reading.wrong(block.place, f"{what}: write both with the same type and unescape")

    def _add_batch_system(self, block: YamlBlock, entry: BatchEntry, options: Any) -> None:
        for place, what in self._problems_of(block, entry):
            self._reading.wrong(place, what)
        options = replace(options, place=f"source.{entry.name}", keep_months=self._keep)
        self.batch_entries.append(entry._replace(options=options))

    def _problems_of(self, block: YamlBlock, entry: BatchEntry) -> Iterator[tuple[Place, str]]:
        options: Any = entry.options
        here, cluster, submit_host = block.place, options.cluster, options.submit_host
        if options.lacks_files:
            missing = here.under(options.reads_key, here.line)
            yield missing, "missing; name the files or directories to read"
        if entry.join_wait_s is not None:
            there = block.keys["join"].place
            if not self.written:
                yield there, "there is no entry of the type arex whose jobs could be joined"
            if options.arc_databases == ():
                yield there, "arc_databases says that no CE submits to this cluster; take out one"
        if cluster in {each.cluster for each in self.batch_entries}:
            what = f"the cluster {cluster} is in another source, and would count twice"
            yield here, f"{what}; write the cluster of each"
        alike: list[Any] = [each.options for each in self.batch_entries if each.type == entry.type]
        if submit_host in {each.submit_host for each in alike} - {""}:
            yield here, f"another {entry.type} has the submit_host {submit_host}; give each its own"
        unset = [each for each in (*alike, options) if each.arc_databases is None]
        if self.written and options in unset[1:]:
            what = f"another {entry.type} gives the same numbers to jobs"
            yield here, f"{what}; write the arc_databases of the CEs in front of each, [] for none"

    def _importers(self, block: YamlBlock) -> None:
        known, reading = self._registered.importers, self._reading
        schema.check_names(block, known, reading)
        in_rounds = {each.type for each in self.batch_entries}
        for name, node in block.keys.items():
            if name not in known:
                continue
            with reading.reporting(node.place):
                options: Any = schema.read_block(node, known[name](), reading)
                if name in in_rounds:
                    raise Wrong(f"`source` has an entry of the type {name}; write these keys there")
                options = replace(options, place=f"importers.{name}")
                entry = BatchEntry(name, name, options, in_rounds=False)
                self.batch_entries.append(entry)
