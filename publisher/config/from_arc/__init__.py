"""Taking over from ARC: arc.conf becomes our configuration, its state decides where we start.

`reader.py` reads the file and resolves its references, `page.py` writes what all targets share,
`targets.py` the targets, and `publishing_state.py` says where each of them begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from publisher import __version__
from publisher.config.from_arc.page import (
    Sheet,
    VoDefaults,
    site_of,
    write_credentials,
    write_records,
    write_source,
)
from publisher.config.from_arc.publishing_state import read_publishing_state
from publisher.config.from_arc.reader import (
    JURA,
    ArcBlock,
    ArcConf,
    ArcValues,
    ByHand,
    parse_arc_conf,
    read_arc_conf,
)
from publisher.config.from_arc.targets import (
    APEL,
    SGAS,
    Draft,
    Takeover,
    drafts,
    refuse,
    write_targets,
)
from publisher.config.from_arc.update import (
    HEADING,
    Updated,
    commented_targets,
    update,
    with_digests,
)
from publisher.model.errors import SourceError, UsageError
from publisher.model.text import shown
from publisher.sources.sqlite_reader import copies_directory

__all__ = [
    "ArcConf",
    "ConfigurationText",
    "Takeover",
    "commented_targets",
    "convert",
    "make_page",
    "parse_arc_conf",
    "read_arc_conf",
    "update_page",
]

_STATE: Final = "accounting/publishing.db"


def convert(
    path: Path, *, state: Path | None, site: str, now: datetime, environment: Mapping[str, str]
) -> ConfigurationText:
    """Our configuration, of arc.conf and ARC's state (default: below its control directory).

    Raises: ConfigError, UsageError, and SourceError for a state that is there and cannot be read:
    it is not a state of nothing.
    """
    conf = read_arc_conf(path)
    control_dir = control_dir_of(conf)
    where = state or (control_dir / _STATE if control_dir else None)
    stopped = None
    if where is not None and (state is not None or _is_there(where)):
        stopped = read_publishing_state(where, copies_directory(environment))
    takeover = Takeover(stopped=stopped, where=str(where or _STATE), now=now)
    return make_page(conf, takeover, site=site)


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SourceError(
            f"{path}: ARC's publishing state cannot be looked at: {why}; "
            "run this as a user who may, or name a copy with --state"
        ) from error
    return True


_JURA_KEYS: Final = frozenset(
    {"x509_host_cert", "x509_host_key", "x509_cert_dir", "x509_cert_policy", "http_proxy"}
    | {"vomsless_vo", "vo_group", "urdelivery_frequency"}
)
_EITHER: Final = frozenset(
    {"targeturl", "localid_prefix", "vofilter", "urbatchsize", "urdelivery_frequency", "http_proxy"}
)
_APEL_KEYS: Final = _EITHER | {"topic", "project", "gocdb_name", "apel_messages"}
_ADVICE: Final = {
    "logfile": "publisher logs to standard error, under systemd to the journal; "
    "redirect it in cron",
    "loglevel": "publisher has -v, -vv and -q, and --log-format",
    "x509_host_cert": "certificate and key are the same for all targets: `credentials`",
    "x509_host_key": "certificate and key are the same for all targets: `credentials`",
    "x509_cert_dir": "trusted CAs are the same for all targets: `credentials`",
    "x509_cert_policy": "trusted CAs are the same for all targets: `credentials`",
    "use_ssl": "of the message brokers that AMS has replaced; publisher always uses TLS",
    "benchmark_type": "of ARC before 6.4; see `benchmark` under records",
    "benchmark_value": "of ARC before 6.4; see `benchmark` under records",
    "benchmark_description": "of ARC before 6.4; nothing replaces it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationText:
    """The configuration as text, which does not load while keys are `missing`."""

    text: str
    missing: tuple[str, ...]
    by_hand: tuple[str, ...]
    without_counterpart: tuple[str, ...]
    control_dir: str
    targets: tuple[Draft, ...]


def update_page(changed: str, page: ConfigurationText) -> Updated:
    """A page that was made before, and changed since, with what is new. Raises: UsageError."""
    return update(changed, page.text.partition(HEADING)[0].removesuffix("\n"))


def control_dir_of(conf: ArcConf) -> Path | None:
    """Where A-REX keeps its databases; None when that needs a hand. Raises: ConfigError."""
    try:
        given = ArcValues(conf).first("arex", "controldir")
    except ByHand:
        return None
    return Path(given.text) if given and given.text.startswith("/") else None


def make_page(conf: ArcConf, takeover: Takeover, *, site: str = "") -> ConfigurationText:
    """Our configuration. `site` chooses among several gocdb_names, or stands in for none.

    Raises: ConfigError for references in a circle; UsageError for a site that no target has.
    """
    values = ArcValues(conf)
    sheet = Sheet()
    _write_head(conf, sheet)
    vo_defaults = VoDefaults(values, sheet)
    drafted = drafts(values, sheet, vo_defaults, takeover)
    refuse(drafted, _write_site(values, sheet, drafted, site))
    if takeover.stopped is None and drafted:
        sheet.hand(
            f"no publishing.db at {shown(takeover.where)}, so that targets begin with the jobs "
            "of the current month; name ARC's with --state FILE"
        )
    sheet.blank()
    control_dir = write_source(values, sheet)
    sheet.blank()
    write_credentials(values, sheet)
    sheet.blank()
    write_records(values, sheet)
    vo_defaults.write(1)
    sheet.blank()
    write_targets(drafted, sheet)
    _add_remarks(conf, sheet, drafted)
    _write_lists(sheet)
    return ConfigurationText(
        text=with_digests("".join(f"{line}\n" for line in sheet.lines)),
        missing=tuple(sheet.missing),
        by_hand=tuple(sheet.by_hand),
        without_counterpart=tuple(sheet.unmatched),
        control_dir=control_dir,
        targets=tuple(drafted),
    )


def _write_head(conf: ArcConf, sheet: Sheet) -> None:
    sheet.say(
        0,
        f"Made by publisher {__version__} from {conf.file}, which was only read. "
        "What is left to do is listed at the end.",
        *(f"Also read: {file}" for file in conf.additional),
        "",
        "To switch over: keep a copy of arc.conf, remove the [arex/jura] blocks "
        "(also from arc.conf.d), and restart A-REX;",
        "nothing is then sent twice; then `publisher config from-arc COPY --update`, "
        "so that `start` is where ARC stopped;",
        "then `publisher config check`, `publisher plan`, and the timer. "
        "Both can run for a while with",
        "`shadow: true` in each target.",
    )
    sheet.blank()


def _write_site(values: ArcValues, sheet: Sheet, drafted: list[Draft], site: str) -> str:
    """Returns it, '' when it is left open. Raises: UsageError."""
    names = [draft.gocdb_name for draft in drafted if draft.gocdb_name is not None]
    texts = {name.text for name in names}
    if site and texts and site not in texts:
        known = ", ".join(sorted(map(shown, texts)))
        raise UsageError(f"--site {site}: no target has this gocdb_name; there are: {known}")
    try:
        only_sgas = bool(drafted) and all(draft.block.name.startswith(SGAS) for draft in drafted)
        return site_of(values, sheet, names, site, only_sgas=only_sgas)
    except ByHand as reason:
        sheet.leave_open(0, "site", "EXAMPLE-SITE")
        sheet.hand(f"site: {reason}")
        sheet.missing.append("site")
        return ""


def _add_remarks(conf: ArcConf, sheet: Sheet, drafted: list[Draft]) -> None:
    """What nobody asked for, of accounting's blocks only."""
    if JURA not in conf.blocks:
        old = "grid-manager" in conf.blocks
        why = "this is of ARC 5, which is not read" if old else "ARC publishes nothing here"
        sheet.hand(f"no block [arex/jura]: {why}")
    if drafted and all(draft.obstacles for draft in drafted):
        sheet.hand("no target could be carried over")
    elif not drafted:
        sheet.hand("no target: [arex/jura/apel:NAME] or [arex/jura/sgas:NAME]")
    for block in conf.under(JURA):
        _report_unknown(block, sheet)


def _report_unknown(block: ArcBlock, sheet: Sheet) -> None:
    known = _known(block)
    if known is None:
        what = f"[{shown(block.name)}]: publisher keeps no archive and has no such part"
        sheet.lost(what, block.place)
        return
    for option in block.options:
        if option.key not in known:
            advice = _ADVICE.get(option.key, "unknown here")
            sheet.lost(f"[{shown(block.name)}] {shown(option.key)}: {advice}", option.place)


def _known(block: ArcBlock) -> frozenset[str] | None:
    if block.name == JURA:
        return _JURA_KEYS
    if block.name.startswith(APEL):
        return _APEL_KEYS
    return _EITHER if block.name.startswith(SGAS) else None


def _write_lists(sheet: Sheet) -> None:
    for heading, entries in (
        ("Needs a hand:", sheet.by_hand),
        ("Of arc.conf, without a counterpart:", sheet.unmatched),
    ):
        sheet.blank()
        title = heading if entries else f"{heading} nothing."
        sheet.say(0, title)
        sheet.lines += [f"#   - {entry}" for entry in dict.fromkeys(entries)]
