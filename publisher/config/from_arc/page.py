"""The page, and what all targets share: site, source, credentials, what is published about jobs.

Each line has its origin behind it, and two lists are at the end. The lines are written by hand and
not by a YAML library, because comments are half of what they are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from publisher.config.from_arc.reader import JURA, ArcBlock, ArcValue, ArcValues, ByHand
from publisher.config.settings import check_site
from publisher.model.errors import Unfit
from publisher.model.rates import Benchmark, make_benchmark
from publisher.model.text import shown

# Plain in YAML everywhere; everything else is quoted.
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_QUEUE: Final = "queue:"
_GLOB: Final = re.compile(r"([*?\[])")
_NO_SITE: Final = "this-site"  # of targets that are told none
_TOKEN_FIELDS: Final = 5  # authtokens: subject issuer audience scope group
_POLICIES: Final = ("grid", "system", "any")
# As in conf/publisher.service: LoadCredential=hostkey.pem:/etc/grid-security/hostkey.pem
_HANDED_KEY: Final = "$CREDENTIALS_DIRECTORY/hostkey.pem"
_LOADED_KEY: Final = "/etc/grid-security/hostkey.pem"


def scalar(text: str) -> str:
    """The text as one YAML scalar. It must be printable."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return "'" + text.replace("'", "''") + "'"


def _at(place: str, what: str) -> str:
    return f"{place}: {what}" if place else what


def flow(texts: Sequence[str]) -> str:
    return f"[{', '.join(scalar(text) for text in texts)}]"


def origin_of(given: ArcValue) -> str:
    """The comment behind a line."""
    return given.origin if given.repeated == 1 else f"{given.origin}, the first of {given.repeated}"


@dataclass(slots=True)
class Sheet:
    """Lines in order, and notes on them. Without the keys in `missing` it is no configuration."""

    lines: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def put(self, indent: int, key: str, value: str, comment: str = "") -> None:
        """One `key: value  # comment`; the value is YAML already."""
        text = f"{'  ' * indent}{key}: {value}".rstrip()
        if comment:
            text += f"  # {comment}"
        self.lines.append(text)

    def say(self, indent: int, *texts: str) -> None:
        self.lines += [f"{'  ' * indent}# {text}".rstrip() for text in texts]

    def leave_open(
        self, indent: int, key: str, example: str, why: str = "see the list at the end"
    ) -> None:
        """A key that is not written; a comment is in its place."""
        self.lines.append(f"{'  ' * indent}#{key}: {example}".rstrip() + f"  # {why}")

    def blank(self) -> None:
        self.lines.append("")

    def hand(self, what: str, place: str = "") -> None:
        self.by_hand.append(_at(place, what))

    def lost(self, what: str, place: str = "") -> None:
        self.unmatched.append(_at(place, what))

    def attempt(self, where: str, place: str, question: Callable[[], None]) -> bool:
        """Write what the question writes; when a value needs a hand, say which and why."""
        try:
            question()
        except ByHand as reason:
            self.hand(f"{shown(where)} {reason}", place)
            return False
        return True


def site_of(
    values: ArcValues,
    sheet: Sheet,
    names: Sequence[ArcValue],
    chosen: str,
    *,
    only_sgas: bool = False,
) -> str:
    """Write `site`: the one of the command line, or the first gocdb_name. Returns it, or ''."""
    if text := chosen or (names[0].text if names else ""):
        _write_named_site(sheet, names, text)
        return text
    domain = values.first("infosys/glue2", "admindomain_name")
    if domain is not None and not check_site(domain.text):
        comment = f"{origin_of(domain)}: check that it is the name in GOCDB"
        sheet.put(0, "site", scalar(domain.text), comment)
        why = "because no target has a gocdb_name: check it"
        sheet.hand(f"site is taken from [infosys/glue2] admindomain_name, {why}")
        return domain.text
    if only_sgas:
        host = values.first("common", "hostname")
        text = _NO_SITE if host is None or check_site(host.text) else host.text
        sheet.put(0, "site", scalar(text), "no part of what SGAS is sent; any name will do")
        return text
    advice = "write the site's name as in GOCDB, or ask again with --site NAME"
    raise ByHand(f"no target has a gocdb_name; {advice}")


def _write_named_site(sheet: Sheet, names: Sequence[ArcValue], text: str) -> None:
    if problem := check_site(text):
        raise ByHand(f"{shown(names[0].origin) if names else 'site'}: {problem}")
    origin = next((origin_of(name) for name in names if name.text == text), "from the command line")
    sheet.put(0, "site", scalar(text), origin)


def write_source(values: ArcValues, sheet: Sheet) -> str:
    """Returns the control directory, '' when it stays open."""
    sheet.lines.append("source:")
    sheet.put(1, "type", "arex")
    found: list[str] = []

    def control_dir() -> None:
        found.append(_write_path(values, sheet, "control_dir", "arex", "controldir").text)

    if not sheet.attempt("[arex] controldir", "", control_dir):
        sheet.leave_open(1, "control_dir", "/var/spool/arc/jobstatus")
        sheet.missing.append("source.control_dir")
    return "".join(found)


def write_credentials(values: ArcValues, sheet: Sheet) -> None:
    sheet.lines.append("credentials:")
    for key, option, example, write in (
        ("certificate", "x509_host_cert", "/etc/grid-security/hostcert.pem", _write_certificate),
        ("key", "x509_host_key", _HANDED_KEY, _write_key),
        ("ca", "x509_cert_dir", "/etc/grid-security/certificates", _write_ca),
    ):
        if not sheet.attempt(f"[{JURA}] {option}", "", partial(write, values, sheet)):
            sheet.leave_open(1, key, example)


def _write_path(values: ArcValues, sheet: Sheet, key: str, block: str, option: str) -> ArcValue:
    given = _path(values, block, option)
    sheet.put(1, key, scalar(given.text), origin_of(given))
    return given


def _write_certificate(values: ArcValues, sheet: Sheet) -> None:
    _write_path(values, sheet, "certificate", JURA, "x509_host_cert")


def _write_key(values: ArcValues, sheet: Sheet) -> None:
    """Jura-ng ran as root; our units run as a user who cannot read the key and is handed a copy."""
    given = _path(values, JURA, "x509_host_key")
    sheet.put(1, "key", _HANDED_KEY, f"systemd's copy of {shown(given.text)}, {origin_of(given)}")
    if given.text != _LOADED_KEY:
        sheet.hand(
            f"the units hand over a copy of {_LOADED_KEY}: `systemctl edit publisher.service` "
            "(and publisher-run.service), and write below [Service] "
            f"LoadCredential=hostkey.pem:{shown(given.text)}",
            given.place,
        )


def _write_ca(values: ArcValues, sheet: Sheet) -> None:
    policy = values.first(JURA, "x509_cert_policy")
    if policy is None or policy.text not in _POLICIES:
        known = ", ".join(_POLICIES)
        raise ByHand(f"x509_cert_policy is none of {known}; write a directory, or system")
    if policy.text == "system":
        sheet.put(1, "ca", "system", origin_of(policy))
        return
    directory = values.first(JURA, "x509_cert_dir")
    if directory is not None and not directory.text:
        why = "ARC's publisher then checked no certificate at all"
        raise ByHand(f"is empty: {why}; write the directory of trusted CAs")
    _write_path(values, sheet, "ca", JURA, "x509_cert_dir")
    if policy.text == "any":
        sheet.hand(
            "x509_cert_policy = any trusts the grid's CAs and the system's; publisher trusts one "
            "set: write `ca: system` when a service's certificate comes from a public CA",
            policy.place,
        )


def write_records(values: ArcValues, sheet: Sheet) -> None:
    """The `records` block, for all targets. `VoDefaults` writes the VOs of jobs without one."""
    sheet.lines.append("records:")
    sheet.say(
        1,
        "Receivers know the jobs of this site by jura-ng's spelling; "
        "another one would count months twice.",
    )
    sheet.put(1, "key_style", "jura")
    sheet.say(
        1,
        "StartTime: jura-ng published the submission (`start_time: submission` does so too). "
        "It is in no key of a",
        "receiver, so the true start of the run can be published from now on "
        "without counting anything twice.",
    )
    sheet.put(1, "start_time", "run")
    _write_benchmarks(values, sheet)
    groups: list[ArcValue] = []
    sheet.attempt(f"[{JURA}] vo_group", "", lambda: groups.extend(values.all(JURA, "vo_group")))
    if groups:
        listed = ", ".join(scalar(group.text) for group in groups if group.text)
        sheet.put(1, "vo_group", f"[{listed}]", origin_of(groups[0]))


def _write_benchmarks(values: ArcValues, sheet: Sheet) -> None:
    rules: list[str] = []
    lrms = values.conf.blocks.get("lrms")
    for block in (*values.conf.under(_QUEUE), *((lrms,) if lrms else ())):
        where = f"[{shown(block.name)}] benchmark"
        sheet.attempt(where, block.place, partial(_add_benchmark, values, block, rules))
    if not rules:
        example = "{type: HEPscore23, value: 11.5}"
        sheet.leave_open(1, "benchmark", example, "arc.conf has none, see the list at the end")
        sheet.hand(
            "no benchmark in [lrms] or [queue:...]: A-REX writes HEPSPEC 1.0 into its jobs, which "
            "then count for next to nothing; set one there, for the jobs to come, and here, "
            "for those without"
        )
        return
    sheet.say(
        1,
        "For jobs that carry none; A-REX writes these values into its jobs itself. "
        "The first rule that matches counts.",
        "Until the month of `jura_until` is over, such jobs go to APEL with HEPSPEC 1.0, "
        "as jura-ng sent them.",
    )
    sheet.lines.append("  benchmark:")
    sheet.lines += rules


def _add_benchmark(values: ArcValues, block: ArcBlock, rules: list[str]) -> None:
    given = values.first(block.name, "benchmark")
    if given is None:
        return
    benchmark = _benchmark(given.text)
    name = block.name.removeprefix(_QUEUE)
    queue = f"queue: {scalar(_literally(name))}, " if block.name != "lrms" else ""
    rule = f"{{{queue}type: {benchmark.kind}, value: {benchmark.text}}}"
    rules.append(f"    - {rule}  # {origin_of(given)}")


def _benchmark(text: str) -> Benchmark:
    kind, _, value = text.replace(":", " ", 1).strip().partition(" ")
    try:
        return make_benchmark(kind, value)
    except Unfit as unfit:
        raise ByHand(f"is left out: {shown(unfit.reason)}") from unfit


def _literally(name: str) -> str:
    """The name as a shell pattern that matches nothing else."""
    return _GLOB.sub(r"[\1]", _printable(name))


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ByHand("has a name with characters that cannot be seen")
    return text


def _path(values: ArcValues, block: str, key: str) -> ArcValue:
    given = values.first(block, key)
    if given is None or not given.text.startswith("/") or "$" in given.text:
        raise ByHand("is not a full path")
    return given


class VoDefaults:
    """VOs of jobs without one (vomsless_vo): `VO[#ISSUER]`, and with an authgroup in front."""

    def __init__(self, values: ArcValues, sheet: Sheet) -> None:
        self.default: ArcValue | None = None
        self.rules: list[tuple[str, str, str, str]] = []  # field, pattern, VO, origin
        self._values = values
        self._sheet = sheet
        key = "vomsless_vo"
        found: list[ArcValue] = []
        sheet.attempt(f"[{JURA}] {key}", "", lambda: found.extend(values.all(JURA, key)))
        for given in found:
            where = given.origin.removeprefix("from ")
            sheet.attempt(where, given.place, partial(self._add, given))

    def __bool__(self) -> bool:
        return bool(self.default or self.rules)

    def write(self, indent: int) -> None:
        sheet = self._sheet
        if self.default is not None:
            sheet.put(indent, "default_vo", scalar(self.default.text), origin_of(self.default))
        if self.rules:
            sheet.lines.append(f"{'  ' * indent}vo_rules:")
            for field, pattern, vo, origin in self.rules:
                rule = f"{{field: {field}, pattern: {scalar(pattern)}, vo: {scalar(vo)}}}"
                sheet.lines.append(f"{'  ' * (indent + 1)}- {rule}  # {origin}")

    def keep_out(self, lines: Sheet, indent: int) -> None:
        """In a target that must not use them."""
        if self.default is not None:
            lines.put(indent, "default_vo", "''", "jura-ng used vomsless_vo for job records only")
        if self.rules:
            lines.put(indent, "vo_rules", "[]", "jura-ng used vomsless_vo for job records only")

    def _add(self, given: ArcValue) -> None:
        words = given.text.split()
        vo, mark, issuer = (words[-1] if words else "").partition("#")
        if len(words) not in (1, 2) or not vo or "#" in issuer or (mark and not issuer):
            raise ByHand("is neither VO[#ISSUER] nor AUTHGROUP VO[#ISSUER]")
        if len(words) == 2:
            self._add_group(given, words[0], vo, issuer)
        elif self.default is None:
            self.default = given
        else:
            why = "every job without a VO already has the first"
            raise ByHand(f"is in addition to another default VO, and {why}")

    def _add_group(self, given: ArcValue, group: str, vo: str, issuer: str) -> None:
        """A job's row does not tell which authgroup its user was in: only what names users."""
        origin = f"{origin_of(given)}, through [authgroup:{shown(group)}]"
        rules = [(field, pattern, vo, origin) for field, pattern in self._members(group)]
        if issuer:
            what = f"the issuer {shown(issuer)!r}; a VO rule names the VO only"
            self._sheet.lost(f"[{JURA}] vomsless_vo: {what}", given.place)
        self.rules += rules

    def _members(self, group: str) -> list[tuple[str, str]]:
        """Who is in a group, where only names decide it: the fields and patterns of VO rules."""
        found: list[tuple[str, str]] = []
        block = self._values.conf.blocks.get(f"authgroup:{group}")
        for key in dict.fromkeys(option.key for option in block.options) if block else ():
            for member in self._values.all(f"authgroup:{group}", key):
                rules = _member(key, member.text)
                if not rules:
                    raise _group_unknown(group)
                found += rules
        if not found:
            raise _group_unknown(group)
        return found


def _member(key: str, text: str) -> list[tuple[str, str]]:
    words = text.split()
    if key == "subject" and text.startswith("/"):
        return [("user", _literally(text))]
    others = [words[0], *words[2:]] if words else []
    if key == "authtokens" and others == ["*"] * (_TOKEN_FIELDS - 1):
        issuer = words[1].rstrip("/")
        if issuer == "*":
            return [("issuer", "*")]
        # Users are stored as issuer/subject, and issuers end in a slash of their own or do not.
        return [("issuer", _literally(issuer)), ("issuer", _literally(f"{issuer}/"))]
    return []


def _group_unknown(group: str) -> ByHand:
    return ByHand(
        f"depends on authgroup {shown(group)!r}, and a job's row does not show who was in it; "
        "write vo_rules by user, issuer, local_user or queue"
    )
