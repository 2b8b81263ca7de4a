"""The targets: `[arex/jura/apel:NAME]` and `[arex/jura/sgas:NAME]` as our blocks, and their start.

A target that cannot be carried over is written as a comment, so that nothing is sent to the wrong
place or under the wrong site's name by a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

from publisher.config.from_arc.page import Sheet, VoDefaults, flow, origin_of, scalar
from publisher.config.from_arc.publishing_state import ArcProgress, TakeoverStart, begin
from publisher.config.from_arc.reader import JURA, ArcBlock, ArcValue, ArcValues, ByHand
from publisher.config.schema import https_problem
from publisher.formats import JURA_APEL_FORMATS, JURA_SGAS_FORMAT, is_summary_format
from publisher.model.text import shown
from publisher.model.time import iso_epoch
from publisher.transports import JURA_TRANSPORTS

APEL: Final = f"{JURA}/apel:"
SGAS: Final = f"{JURA}/sgas:"
_NAME_LETTERS: Final = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_AMS_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")  # what AMS takes for projects and topics
_SEVERAL_VOS: Final = re.compile(r"[\w.-]+(?:\s*[,;\s]\s*[\w.-]+)+", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_MOST_RECORDS: Final = 100_000
_LONGEST_S: Final = 366 * 86_400
_PROCESS_S: Final = 3600  # A-REX starts its publisher no more often
_APEL_S: Final = 86_000  # ARC's urdelivery_frequency for APEL
_DEFAULT_S: Final = {True: 86_400, False: 3600}  # ours, for summaries and for jobs


@dataclass(slots=True, kw_only=True)
class Draft:
    """One target. `obstacles` turn it into a comment; at a `destination` formats must not mix."""

    block: ArcBlock
    name: str
    lines: Sheet
    format: str = ""
    gocdb_name: ArcValue | None = None
    begin: TakeoverStart | None = None
    period_s: int = 0
    vos: tuple[str, ...] = ()
    destination: tuple[str, ...] = ()
    obstacles: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ARC's name for the receiver."""
        return _kind(self.block)[0]

    @property
    def apel(self) -> bool:
        return self.block.name.startswith(APEL)

    @property
    def summary(self) -> bool:
        return is_summary_format(self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """The content of publishing.db; None where there is none. `where` names it."""

    stopped: Mapping[str, ArcProgress] | None
    where: str
    now: datetime


def drafts(
    values: ArcValues, sheet: Sheet, vo_defaults: VoDefaults, takeover: Takeover
) -> list[Draft]:
    """Every target of the file, in its order."""
    used: set[str] = set()
    made = []
    for block in values.conf.under(f"{JURA}/"):
        if block.name.startswith((APEL, SGAS)):
            name = _name(block, used, sheet)
            draft = Draft(block=block, name=name, lines=Sheet())
            _fill(draft, values, vo_defaults, takeover)
            made.append(draft)
    return made


def refuse(drafted: Sequence[Draft], site: str) -> None:
    """Targets of another site, and those whose format would be counted twice beside another's."""
    live: list[Draft] = []
    for draft in drafted:
        there = draft.destination
        beside = [one for one in live if there and one.destination == there]
        draft.obstacles += _obstacles(draft, site, beside)
        if not draft.obstacles:
            _leave_counts_out(beside, draft)
            live.append(draft)


def _obstacles(draft: Draft, site: str, beside: Sequence[Draft]) -> Iterator[str]:
    name = draft.gocdb_name.text if draft.gocdb_name else site
    if site and name != site:
        yield (
            f"its gocdb_name is {shown(name)}, and this configuration is for {shown(site)}: "
            f"a target has no site of its own. Ask again with --site {shown(name)}, "
            "for a second configuration with another `state`"
        )
    for other in [one for one in beside if one.format != draft.format][:1]:
        yield (
            f"{draft.format} would go where target {other.name} sends {other.format}, "
            "and APEL counts such jobs twice; keep one of them"
        )
    for other in [one for one in beside if _replaces(draft, one)][:1]:
        yield (
            f"its totals would replace some of those that target {other.name} sends "
            "to the same topic; make them one, with the vos of both"
        )


def _replaces(draft: Draft, other: Draft) -> bool:
    """Whether its totals replace some of the other's. No list of VOs stands for all of them."""
    return draft.summary and not (draft.vos and other.vos and set(draft.vos).isdisjoint(other.vos))


def _leave_counts_out(others: Sequence[Draft], draft: Draft) -> None:
    """Of targets of one topic, the counts of each would replace those of the others there."""
    if not others:
        return
    for one in (*others, draft):
        lines = one.lines.lines
        one.lines.lines = [line for line in lines if not line.lstrip().startswith("sync:")]
    names = ", ".join(one.name for one in (*others, draft))
    draft.lines.by_hand.append(
        f"targets {names} go to one topic, where the counts of each would replace those of the "
        "others, so none are sent; make them one target, with the vos of all, and sync: true"
    )


def write_targets(drafted: Sequence[Draft], sheet: Sheet) -> None:
    """Write them out; the ones that cannot be used as comments."""
    sheet.lines.append("targets:")
    for draft in drafted:
        mark = "#" if draft.obstacles else ""
        sheet.lines += [
            line if not mark or line.lstrip().startswith("#") else f"{mark}{line}"
            for line in (f"  {draft.name}:  # [{shown(draft.block.name)}]", *draft.lines.lines)
        ]
        for obstacle in draft.obstacles:
            what = f"target {draft.name} is written as a comment: {obstacle}"
            sheet.hand(what, draft.block.place)
        if not draft.obstacles:
            sheet.by_hand += draft.lines.by_hand
        sheet.unmatched += draft.lines.unmatched
    if all(draft.obstacles for draft in drafted):
        sheet.missing.append("targets")


def _kind(block: ArcBlock) -> tuple[str, str]:
    """The two parts of `apel:NAME`."""
    kind, _, name = block.name.removeprefix(f"{JURA}/").partition(":")
    return kind, name


def _name(block: ArcBlock, used: set[str], sheet: Sheet) -> str:
    """ARC's name in our letters, and unique: SGAS and APEL may have one each of the same name."""
    kind, theirs = _kind(block)
    name = _NAME_LETTERS.sub("-", theirs).lstrip("._-")[:64] or kind
    while name in used:
        name = f"{kind}-{name}"
    used.add(name)
    if name != theirs:
        sheet.hand(f"[{shown(block.name)}] is called {name} here", block.place)
    return name


def _fill(draft: Draft, values: ArcValues, vo_defaults: VoDefaults, takeover: Takeover) -> None:
    name, lines = draft.block.name, draft.lines
    lines.put(2, "type", JURA_TRANSPORTS[draft.kind])
    if draft.apel:
        _must(draft, "targeturl", lambda: _write_ams_url(draft, values))
        _must(draft, "project", lambda: _write_ams_name(draft, values, "project", "accounting"))
        _must(draft, "topic", lambda: _write_ams_name(draft, values, "topic", "gLite-APEL"))
        _must(draft, "apel_messages", lambda: _write_format(draft, values))
        lines.put(2, "sync", "true", "jura-ng sent the counts at each round")
        _must(draft, "gocdb_name", lambda: _find_site(draft, values))
    else:
        _must(draft, "targeturl", lambda: _write_sgas_url(draft, values))
        draft.format = JURA_SGAS_FORMAT
        lines.put(2, "format", draft.format)
    _may(draft, "urdelivery_frequency", lambda: _write_every(draft, values))
    _must(draft, "vofilter", lambda: _write_vos(draft, values, vo_defaults))
    _may(draft, "urbatchsize", lambda: _write_batch(draft, values))
    if values.conf.all(name, "localid_prefix"):
        _must(draft, "localid_prefix", lambda: _write_prefix(draft, values))
    _may(draft, "http_proxy", lambda: _write_proxy(draft, values))
    if draft.summary and vo_defaults:
        vo_defaults.keep_out(lines, 2)
    _write_start(draft, takeover)


def _must(draft: Draft, key: str, question: Callable[[], None]) -> None:
    """A key without which the target would be another one."""
    try:
        question()
    except ByHand as reason:
        draft.obstacles.append(f"{key} {reason}")
        draft.lines.leave_open(2, key, "")


def _may(draft: Draft, key: str, question: Callable[[], None]) -> None:
    draft.lines.attempt(f"[{draft.block.name}] {key}", draft.block.place, question)


def _needed(draft: Draft, values: ArcValues, key: str) -> ArcValue:
    given = values.first(draft.block.name, key)
    if given is None or not given.text:
        raise ByHand("is not set")
    return given


def _find_site(draft: Draft, values: ArcValues) -> None:
    draft.gocdb_name = _needed(draft, values, "gocdb_name")


def _write_ams_url(draft: Draft, values: ArcValues) -> None:
    """Host and port. The path was never used: jura-ng made its own, of project and topic."""
    given, parts = _target_url(draft, values)
    url = f"https://{parts.netloc}"
    draft.lines.put(2, "url", scalar(url), origin_of(given))
    draft.destination = (url.lower().removesuffix(":443"),)


def _write_sgas_url(draft: Draft, values: ArcValues) -> None:
    """As it is: ours too takes the service or the insert URL below it, and adds /ur."""
    given, parts = _target_url(draft, values)
    draft.lines.put(2, "url", scalar(f"https://{parts.netloc}{parts.path}"), origin_of(given))
    if not parts.path.strip("/"):
        what = "targeturl has no path; publisher then takes /sgas"
        draft.lines.hand(f"[{shown(draft.block.name)}] {what}", given.place)


def _target_url(draft: Draft, values: ArcValues) -> tuple[ArcValue, SplitResult]:
    given = _needed(draft, values, "targeturl")
    url = given.text
    if "?" in url or "#" in url:
        where = "https://HOST[:PORT][/PATH]"
        raise ByHand(
            f"has a query or a fragment, which is not repeated here; records go to {where}"
        )
    if problem := https_problem(url):  # it quotes no address with a password in it
        subject = "it " if "@" in url else ""
        raise ByHand(f"cannot be used: {subject}{problem}")
    if not url.isascii() or any(letter in url for letter in "\\\"'<>^`{|}"):
        raise ByHand("is not an address")
    return given, urlsplit(url)


def _write_ams_name(draft: Draft, values: ArcValues, key: str, default: str) -> None:
    given = values.first(draft.block.name, key)
    text = given.text if given else default
    if text.startswith("/queue/"):
        what = "of the message brokers that AMS has replaced; AMS's topic is gLite-APEL"
        raise ByHand(f"is {shown(text)}, {what}")
    if not _AMS_NAME.fullmatch(text):
        raise ByHand(f"is {shown(text)!r}, and AMS takes letters, digits, _ and -")
    origin = origin_of(given) if given else "ARC's default"
    draft.lines.put(2, key, scalar(text), origin)
    draft.destination += (text,)


def _write_format(draft: Draft, values: ArcValues) -> None:
    given = values.first(draft.block.name, "apel_messages")
    text = given.text if given else "summaries"
    if text not in JURA_APEL_FORMATS:
        raise ByHand(f"is {shown(text)!r}, and ARC knows {', '.join(JURA_APEL_FORMATS)}")
    draft.format = JURA_APEL_FORMATS[text]
    default = "ARC's default of apel_messages: summaries"
    comment = f"{origin_of(given)} = {text}" if given else default
    draft.lines.put(2, "format", draft.format, comment)


def _write_vos(draft: Draft, values: ArcValues, vo_defaults: VoDefaults) -> None:
    given = values.all(draft.block.name, "vofilter")
    if any(not one.text for one in given):
        raise ByHand("has an empty value, which would let no job pass")
    if not given:
        return
    several = next((one for one in given if _SEVERAL_VOS.fullmatch(one.text)), None)
    if several is not None:
        raise ByHand(
            f"is {shown(several.text)!r}, which ARC takes for the name of one VO, so that it sends "
            "no job of either: where several VOs are meant, give each a line of its own"
        )
    draft.vos = tuple(dict.fromkeys(one.text for one in given))
    draft.lines.put(2, "vos", flow(draft.vos), given[0].origin)
    assigned = {vo_defaults.default.text.partition("#")[0]} if vo_defaults.default else set()
    assigned |= {vo for _, _, vo, _ in vo_defaults.rules}
    if not draft.summary and assigned & set(draft.vos):
        draft.lines.hand(
            f"[{shown(draft.block.name)}] vofilter: publisher lets jobs pass by the VO that "
            "vomsless_vo gives them, jura-ng only by one of their own",
            given[0].place,
        )


def _write_batch(draft: Draft, values: ArcValues) -> None:
    given = values.first(draft.block.name, "urbatchsize")
    if given is None:
        return
    if not _COUNT.fullmatch(given.text) or int(given.text) > _MOST_RECORDS:
        what = f"no count from 0 to {_MOST_RECORDS}; the default holds"
        raise ByHand(f"is {shown(given.text)!r}, {what}")
    unlimited = "" if int(given.text) else ", no limit but the size of a message"
    draft.lines.put(2, "batch_records", str(int(given.text)), origin_of(given) + unlimited)


def _write_prefix(draft: Draft, values: ArcValues) -> None:
    given = values.first(draft.block.name, "localid_prefix")
    if given is None or not given.text:
        return
    if draft.apel:
        what = f"[{shown(draft.block.name)}] localid_prefix: ARC used it for SGAS only"
        draft.lines.lost(what, given.place)
        return
    draft.lines.put(2, "localid_prefix", scalar(given.text), origin_of(given))


def _write_every(draft: Draft, values: ArcValues) -> None:
    """The longer of the target's own period and that in which A-REX started its publisher."""
    process = values.first(JURA, "urdelivery_frequency")
    own = values.first(draft.block.name, "urdelivery_frequency")
    default = _APEL_S if draft.apel else 0
    # By default it is ARC's, so that what follows has a period whatever was written.
    draft.period_s = max(default, _PROCESS_S)
    process_s = max(_seconds(process, 0), _PROCESS_S)
    draft.period_s = max(_seconds(own, default), process_s)
    frequency = process if process is not None and draft.period_s == process_s else own
    if frequency is None and draft.period_s == _APEL_S and draft.summary:
        return  # a day is our default too, less the minutes that ARC took off it
    if draft.period_s != _DEFAULT_S[draft.summary]:
        comment = origin_of(frequency) if frequency else "ARC's default of urdelivery_frequency"
        draft.lines.put(2, "every", f"{draft.period_s}s", comment)


def _seconds(given: ArcValue | None, default: int) -> int:
    if given is None:
        return default
    if not _COUNT.fullmatch(given.text) or int(given.text) > _LONGEST_S:
        what = "no number of seconds within a year; the default of `every` holds"
        raise ByHand(f"is {shown(given.text)!r}, {what}")
    return int(given.text)


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = parts.scheme == "http" and not parts.path
    return has_host and is_plain and url.isascii() and " " not in url


def _write_proxy(draft: Draft, values: ArcValues) -> None:
    given = values.first(JURA, "http_proxy")
    if given is None or not given.text:
        return
    if "@" in given.text:
        advice = "give the service HTTPS_PROXY in an EnvironmentFile of mode 600"
        raise ByHand(f"holds a password, which is not copied; {advice}")
    url = (given.text if "://" in given.text else f"http://{given.text}").removesuffix("/")
    if not _is_proxy(url):
        raise ByHand(f"is {shown(given.text)!r}, and a proxy here is http://HOST:PORT")
    comment = f"{origin_of(given)}; remove it if the service is reached without"
    draft.lines.put(2, "proxy", scalar(url), comment)


def _write_start(draft: Draft, takeover: Takeover) -> None:
    lines = draft.lines
    if draft.format:
        lines.put(2, "jura_format", draft.format, "what jura-ng sent")
    if takeover.stopped is None:
        lines.leave_open(2, "start", "month", f"no publishing.db at {shown(takeover.where)}")
        return
    stopped = takeover.stopped.get(draft.block.name)
    draft.begin = begin(stopped, summary=draft.summary, now=takeover.now)
    if draft.begin.trouble:
        lines.hand(f"[{shown(draft.block.name)}] start: {draft.begin.trouble}", draft.block.place)
    if draft.begin.at is None:
        lines.leave_open(2, "start", "month", draft.begin.why or "see the list at the end")
    else:
        lines.put(2, "start", draft.begin.text(summary=draft.summary), draft.begin.why)
    if draft.begin.last_end is not None:
        comment = "so that what jura-ng left and lost is looked for; see publisher.yaml(5)"
        lines.put(2, "jura_until", iso_epoch(draft.begin.last_end), comment)
