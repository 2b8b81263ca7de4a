"""The whole configuration file: its top-level keys, the `credentials`, `source` and `metrics`
blocks, and the settings they become.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from publisher.config import schema
from publisher.config.records import RecordSettings, read_records
from publisher.config.schema import (
    Listing,
    Node,
    Place,
    Problems,
    ReadContext,
    Text,
    Wrong,
    YamlBlock,
)
from publisher.config.targets import (
    NAME,
    REGISTERED,
    Common,
    ConfiguredTarget,
    Registered,
    added_up,
    destination,
    plugin_options,
    read_target,
    read_targets,
)
from publisher.model.errors import ConfigError
from publisher.model.policy import RecordPolicy
from publisher.model.target import Target
from publisher.sources import READS_IMPORTED, imported_database
from publisher.sources.base import BatchEntry

_LIBRARY: Final = "prometheus_client"
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
        raise Wrong(
            f"{schema.quoted(str(path))} does not end in .prom; the node exporter reads no other files"
        )
    return path


def _read_listen(node: Node, _reading: ReadContext) -> Listen:
    text = schema.scalar(node, "an address and a port, such as 127.0.0.1:9645")
    host, _colon, port = text.rpartition(":")
    host = {"": _LOOPBACK, "localhost": _LOOPBACK}.get(
        host, host.removeprefix("[").removesuffix("]")
    )
    try:
        ip_address(host)
    except ValueError:
        raise Wrong(
            f"{schema.quoted(text)}: {schema.quoted(host)} is no IP address; write 127.0.0.1:9645"
        ) from None
    if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
        raise Wrong(
            f"{schema.quoted(text)}: {schema.quoted(port)} is not a port; write 127.0.0.1:9645"
        )
    return Listen(host=host, port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """A text file for the node exporter, and where the daemon answers Prometheus itself."""

    textfile: Path | None = field(default=None, metadata={"read": _read_textfile})
    listen: Listen | None = field(default=None, metadata={"read": _read_listen})
    all_instances: bool = False

    def __post_init__(self) -> None:
        if self.textfile is None and self.listen is None:
            raise ValueError(
                "names neither textfile nor listen; remove it, or say where metrics are wanted"
            )


check_library: Final = schema.check(
    lambda _: find_spec(_LIBRARY) is not None,
    f"the Python library {_LIBRARY} is not installed here; install it (python3-prometheus-client on Debian, "
    "python3-prometheus_client on EL, accounting-publisher[metrics] with pip), or remove this block",
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
        if "://" in text:
            raise Wrong(
                "is no address of a ledger; write a path, postgresql://HOST/DATABASE or service=NAME"
            )
        return schema.path(node, reading)
    if text.startswith("service="):
        if not NAME.fullmatch(text.removeprefix("service=")):
            raise Wrong(
                f"{schema.quoted(text)} names no service; write service=NAME, of the file .pg_service.conf"
            )
    elif not text.isascii() or not text.isprintable() or " " in text:
        raise Wrong("is no address; write postgresql://HOST/DATABASE, or service=NAME")
    elif _has_password(text):  # not quoted: the message may end in a log
        raise Wrong(
            "holds a password, which others could read here; put it into a password file (PGPASSFILE) or libpq's service file"
        )
    if find_spec("psycopg") is None:
        raise Wrong(
            "needs the Python library psycopg 3: install accounting-publisher[postgres] by pip, or name a file"
        )
    return text


def _has_password(address: str) -> bool:
    """Raises: Wrong."""
    try:
        parts = urlsplit(address)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        return parts.password is not None or not options.keys().isdisjoint(
            {"password", "sslpassword"}
        )
    except ValueError:
        raise Wrong("is no address; write postgresql://HOST/DATABASE, or service=NAME") from None


check_instance: Final = schema.check(
    lambda name: NAME.fullmatch(name) is not None and len(name) <= _LONGEST_INSTANCE,
    "{} is no name of an instance: letters, digits, '.', '_' and '-', begins with a letter or digit, 50 at most",
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
    join_wait: int = field(
        default=_JOIN_WAIT_S, metadata={"read": lambda node, _: schema.whole_duration_s(node)}
    )
    keep: int = field(default=0, metadata={"read": schema.months})


class SourceSettings(NamedTuple):
    """Databases that jobs come from; `options` are of the source's `Options`."""

    type: str
    name: str = ""
    options: object = None


@dataclass(kw_only=True)
class TopKeys:
    """The keys of the file. Blocks that need each other are read one after the other by `load`."""

    site: str = field(metadata={"check": check_site, "help": "write the site's name as in GOCDB"})
    source: object = field(
        metadata={"read": lambda node, _: _source_blocks(node), "help": "say where jobs come from"}
    )
    state: Path | str = field(default_factory=lambda: DEFAULT_STATE, metadata={"read": read_state})
    instance: str = field(default="", metadata={"check": check_instance})
    state_directory: Path | None = None
    targets_at_once: int = field(default=_TARGETS_AT_ONCE, metadata={"check": _check_at_once})
    credentials: CredentialSettings = CredentialSettings()
    metrics: MetricsSettings | None = field(default=None, metadata={"check": check_library})
    records: object = field(default=None, metadata={"read": lambda node, _: schema.as_block(node)})
    importers: object = field(
        default=None, metadata={"read": lambda node, _: schema.as_block(node)}
    )
    targets: object = field(
        metadata={"read": lambda node, _: schema.as_block(node), "help": "say where records go"}
    )


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
    problems = Problems(str(path))
    tree: YamlBlock | None = schema.load_module("yaml_file").read_tree(path, problems)
    if tree is None:
        raise ConfigError(problems.lines())
    reading = ReadContext(problems=problems, environment=environment, folder=path.absolute().parent)
    settings = _settings(path, tree, host_name, registered, reading)
    problems.stop()
    if settings is None:
        raise AssertionError(f"{path}: no settings, and nothing said why")
    return settings


def _command_line_node(place: Place, value: str | Sequence[str]) -> Node:
    """A value of the command line as if it stood in the file."""
    if isinstance(value, str):
        return Text(place=place, text=value, null=False)
    return Listing(place=place, entries=tuple(_command_line_node(place, one) for one in value))


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
    problems = Problems("command line")
    reading = ReadContext(problems=problems, environment={}, folder=Path.cwd())
    place = Place(line=0, path="")
    block = YamlBlock(
        place=place,
        keys={key: _command_line_node(place.under(key, 0), value) for key, value in keys.items()},
    )
    common = Common(
        site=settings.site,
        host_name=host_name,
        records=settings.records,
        registered=registered,
        batch_entries=settings.batch_entries,
    )
    if site is not None:
        common = common._replace(site=site)
        if complaint := check_site(site):
            problems.add(place.under("site", 0), complaint)
    target = read_target(name, block, common, reading)
    problems.stop()
    for other in settings.targets:
        if target is not None and _same_rows(target, other):
            problems.add(
                place,
                f"target {other.name} sends there: name it by --target, so that what it has sent before is minded",
            )
    problems.stop()
    if target is None:
        raise AssertionError("command line: no target, and nothing said why")
    return target


def _same_rows(one: Target, other: Target) -> bool:
    """Whether two targets write into the same rows of one receiver; a shadow writes into none."""
    there = destination(one)
    same = there is not None and there == destination(other) and added_up(one, other)
    return same and one.policy.site == other.policy.site and not other.shadow


def _settings(
    path: Path, tree: YamlBlock, host_name: str, registered: Registered, reading: ReadContext
) -> Settings | None:
    schema.check_names(tree, schema.keys_of(TopKeys), reading)
    known = schema.read_keys(tree, TopKeys, reading)
    missing = schema.missing_keys(tree, TopKeys, reading)
    site = known.get("site", "")
    records_block = known.get("records")
    records = RecordSettings() if records_block is None else read_records(records_block, reading)
    state, server = _ledger(tree, known, reading)
    sources = _Sources(registered, state, reading)
    sources.read(known.get("source", ()), known.get("importers"))
    batch_entries = tuple(sources.batch_entries)
    common = Common(
        site=site,
        host_name=host_name,
        records=records,
        registered=registered,
        batch_entries=batch_entries,
    )
    targets = read_targets(known["targets"], common, reading) if "targets" in known else ()
    source = sources.effective()
    if missing or source is None or ("credentials" in tree.keys and "credentials" not in known):
        return None
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
        targets_at_once=known.get("targets_at_once", _TARGETS_AT_ONCE),
        metrics=known.get("metrics"),
        host_name=host_name,
    )


def _ledger(
    tree: YamlBlock, known: Mapping[str, Any], reading: ReadContext
) -> tuple[Path, LedgerServer | None]:
    """Where the ledger is. `instance` and `state_directory` go with a server."""
    state = known.get("state", DEFAULT_STATE)
    if isinstance(state, Path):
        if (metrics := known.get("metrics")) and metrics.all_instances:
            reading.wrong(
                tree.keys["metrics"].place,
                "all_instances is for a ledger in PostgreSQL only; remove it",
            )
        for key in ("instance", "state_directory"):
            if key in tree.keys and ("state" in known or "state" not in tree.keys):
                reading.wrong(tree.keys[key].place, "is for a ledger in PostgreSQL only; remove it")
        return state, None
    if "instance" not in tree.keys:
        missing = tree.place.under("instance", tree.keys["state"].place.line)
        reading.wrong(
            missing, "missing; name this CE's instance; the two hosts of a pair name the same one"
        )
    local = (known.get("state_directory") or DEFAULT_STATE.parent) / DEFAULT_STATE.name
    return local, LedgerServer(address=state, instance=known.get("instance", ""))


def _source_blocks(node: Node) -> Sequence[YamlBlock]:
    """One mapping, or a list of them. Raises: Wrong."""
    if not isinstance(node, Listing):
        return (schema.as_block(node),)
    if not node.entries:
        raise Wrong("is empty; name at least one source")
    return [schema.as_block(each) for each in node.entries]


class _Sources:
    """Reads `source` and `importers`; what is wrong goes to the problems."""

    def __init__(self, registered: Registered, state: Path, reading: ReadContext) -> None:
        self._registered = registered
        self._state = state
        self._reading = reading
        self._names: set[str] = set()
        self._clusters: set[str] = set()
        self.written: list[SourceSettings] = []
        self.batch_entries: list[BatchEntry] = []
        self._joins: list[Place] = []

    def read(self, blocks: Sequence[YamlBlock], importers: YamlBlock | None) -> None:
        for block in blocks:
            self._entry(block)
        if importers is not None:
            self._importers(importers)
        for place in () if self.written else self._joins:
            self._reading.wrong(
                place, "there is no entry of the type arex whose jobs could be joined"
            )

    def effective(self) -> SourceSettings | None:
        """What all databases are read by; None where nothing names one."""
        databases = tuple(str(each.database) for each in self.batch_entries if each.in_rounds)
        if self.written:
            first, *others = self.written
            options: Any = first.options
            if others:
                options = replace(options, further=tuple(each.options for each in others))
            if databases:
                options = replace(options, imported=databases)
            return first._replace(options=options)
        shape = self._registered.sources[READS_IMPORTED]()
        return (
            SourceSettings(type=READS_IMPORTED, options=shape(imported=databases))
            if databases
            else None
        )

    def _entry(self, block: YamlBlock) -> None:
        registered, reading = self._registered, self._reading
        schema.missing_keys(block, SourceKeys, reading)
        kind, shape = plugin_options(block, {**registered.sources, **registered.importers}, reading)
        if shape is None:
            return
        schema.check_names(block, [*schema.keys_of(SourceKeys), *schema.keys_of(shape)], reading)
        keys = schema.read_keys(block, SourceKeys, reading)
        name = keys.get("name") or kind
        options: Any = schema.build(block, shape, schema.read_keys(block, shape, reading), reading)
        if name in self._names:
            reading.wrong(
                block.place, f"another source is called {name} too; give each a name of its own"
            )
        elif kind is not None and name is not None and options is not None:
            self._names.add(name)
            join_wait_s = keys.get("join_wait", _JOIN_WAIT_S) if keys.get("join") else None
            database = imported_database(self._state, name)
            entry = BatchEntry(
                name, kind, options, database, True, join_wait_s, keys.get("keep", 0)
            )
            if kind in registered.importers:
                self._add_batch_system(block, entry, options)
            else:
                self._add_databases(block, entry)

    def _add_databases(self, block: YamlBlock, keys: BatchEntry) -> None:
        """One plug-in reads all, and users and files are spelled alike: statistics need both."""
        if keys.join_wait_s is not None:
            self._reading.wrong(
                block.keys["join"].place, "is a key of a batch system, whose runs are joined"
            )
        if keys.keep_months:
            self._reading.wrong(
                block.keys["keep"].place,
                "is a key of a batch system; ARC's databases are only read",
            )
        entry = SourceSettings(type=keys.type, name=keys.name, options=keys.options)
        first = self.written[0] if self.written else entry
        one, other = (getattr(each.options, "unescape", None) for each in (first, entry))
        alike = first.type == entry.type and one == other
        if not alike or not (first is entry or hasattr(entry.options, "further")):
            self._reading.wrong(
                block.place,
                f"cannot be read beside the entry {first.name}: write both with the same type and unescape",
            )
        else:
            self.written.append(entry)

    def _add_batch_system(self, block: YamlBlock, entry: BatchEntry, options: Any) -> None:
        reading, join = self._reading, entry.join_wait_s is not None
        if join:
            place = block.keys["join"].place
            self._joins.append(place)
            if options.arc_databases == ():
                reading.wrong(
                    place, "arc_databases says that no CE submits to this cluster; take out one"
                )
        if options.must_read and not options.reads:
            missing = block.place.under(options.reads_key, block.place.line)
            reading.wrong(missing, "missing; name the files or directories to read")
        if options.cluster in self._clusters:
            reading.wrong(
                block.place,
                f"the cluster {options.cluster} is in another source, and would count twice; write the cluster of each",
            )
        self._clusters.add(options.cluster)
        others: list[Any] = [each.options for each in self.batch_entries if each.type == entry.type]
        if options.submit_host and options.submit_host in [each.submit_host for each in others]:
            reading.wrong(
                block.place,
                f"another {entry.type} has the submit_host {options.submit_host}; give each its own",
            )
        options = replace(
            options, place=f"source.{entry.name}", join=join, keep_months=entry.keep_months
        )
        self.batch_entries.append(entry._replace(options=options))

    def _importers(self, block: YamlBlock) -> None:
        known, reading = self._registered.importers, self._reading
        schema.check_names(block, known, reading)
        in_rounds = {each.type for each in self.batch_entries}
        database = imported_database(self._state, "")
        for name, node in block.keys.items():
            if name not in known:
                continue
            with reading.reporting(node.place):
                options: Any = schema.read_block(node, known[name](), reading)
                if name in in_rounds:
                    raise Wrong(f"`source` has an entry of the type {name}; write these keys there")
                options = replace(options, place=f"importers.{name}")
                self.batch_entries.append(
                    BatchEntry(
                        name=name, type=name, options=options, database=database, in_rounds=False
                    )
                )
