"""The configuration: read, refused with every problem at once, and shown."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import publisher.config.settings
from publisher.config import Settings, load, one_off_target, show
from publisher.config.schema import Problems, keys_of
from publisher.config.settings import DEFAULT_STATE
from publisher.config.yaml_file import MAX_BYTES, parse_tree
from publisher.model.errors import ConfigError
from publisher.model.time import StartKind, StartRule, Window
from publisher.policy.identity import IdentityMode
from publisher.policy.records import KeyStyle, StartTime
from publisher.policy.target import Target
from publisher.sources import importer_plugin
from publisher.transports import transport_plugin
from tests.config.config_plugins import STAND_INS, AmsOptions, ArexOptions, SpoolOptions
from tests.support.strategies import examples

SMALL = """\
site: EXAMPLE-SITE
source:
  type: arex
  control_dir: /var/spool/arc/jobstatus
targets:
  egi:
    type: ams
    url: https://msg.example.org
    format: car
"""
# A file whose line 11 is the first that a test adds, under the target.
TARGET_INDENT = "    "

Write = Callable[..., Settings]


@pytest.fixture
def read(tmp_path: Path) -> Write:
    def reader(content: str | bytes, environment: Mapping[str, str] = {}) -> Settings:
        path = tmp_path / "publisher.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, environment, host_name="ce.example.org", registered=STAND_INS)

    return reader


def target_with(read: Write, *lines: str) -> Target:
    return read(SMALL + "".join(f"{TARGET_INDENT}{line}\n" for line in lines)).targets[0]


def problems(read: Write, content: str | bytes) -> list[str]:
    """The problems without the file's directory."""
    with pytest.raises(ConfigError) as caught:
        read(content)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [re.sub(r"^\S*/(?=publisher\.yaml)", "", line) for line in caught.value.problems]


def target_problems(read: Write, *lines: str) -> list[str]:
    return problems(read, SMALL + "".join(f"{TARGET_INDENT}{line}\n" for line in lines))


def test_a_small_file_gets_the_contracts_defaults(read: Write, tmp_path: Path) -> None:
    found = read(SMALL)
    assert found.path == tmp_path / "publisher.yaml"
    assert found.site == "EXAMPLE-SITE"
    assert found.source.options == ArexOptions(control_dir=Path("/var/spool/arc/jobstatus"))
    assert Path("/var/lib/publisher/publishing.db") == DEFAULT_STATE
    assert found.state == publisher.config.settings.DEFAULT_STATE  # which no test may use as it is
    assert found.credentials.certificate == Path("/etc/grid-security/hostcert.pem")
    assert found.credentials.key == Path("/etc/grid-security/hostkey.pem")
    assert found.credentials.ca == Path("/etc/grid-security/certificates")
    (egi,) = found.targets
    assert (egi.name, egi.type, egi.format) == ("egi", "ams", "car")
    assert egi.options == AmsOptions(url="https://msg.example.org")
    assert egi.start == StartRule(kind=StartKind.MONTH)
    assert (egi.sync, egi.shadow) == (False, False)
    assert (egi.every_s, egi.batch_records, egi.vos, egi.exclude_vos) == (3600, 500, None, frozenset())
    assert egi.selection(Window()).statuses == {"completed", "failed"}
    assert (egi.policy.site, egi.policy.host_name, egi.policy.infrastructure) == (
        "EXAMPLE-SITE",
        "ce.example.org",
        "grid",
    )
    assert egi.policy.key_style is KeyStyle.APEL
    assert egi.policy.start_time is StartTime.RUN
    assert egi.policy.benchmarks.rules == ()


def test_defaults_that_depend_on_what_is_sent(read: Write) -> None:
    summaries = read(SMALL.replace("car", "apel-summary-0.4")).targets[0]
    assert summaries.every_s == 24 * 3600
    sgas = read(SMALL.replace("ams", "sgas").replace("car", "ogf-ur")).targets[0]
    assert (sgas.batch_records, sgas.every_s) == (50, 3600)


def test_ten_mistakes_are_ten_lines_in_the_order_of_the_file(read: Write) -> None:
    content = """\
site: EXAMPLE SITE
sorce: {type: arex}
source:
  type: arex
  controldir: /var/spool/arc/jobstatus
  databases: [/a.db]
  page_rows: many
records:
  statuses: [completed, finished]
  benchmark: {type: HEPspec06, value: 11.5}
  key_style: [jura]
targets:
  egi:
    type: ams
    url: http://msg.example.org
    format: apel-sumary-0.4
    every: daily
    every: 24h
    batch_records: -1
  -bad:
    type: spool
"""
    found = problems(read, content)
    assert [re.match(r"publisher\.yaml:(\d+): (\S+): ", line).groups() for line in found] == [  # type: ignore[union-attr]  # None fails the test just as well
        ("1", "site"),
        ("2", "sorce"),
        ("5", "source.controldir"),
        ("7", "source.page_rows"),
        ("9", "records.statuses"),
        ("10", "records.benchmark"),
        ("11", "records.key_style"),
        ("15", "targets.egi.url"),
        ("16", "targets.egi.format"),
        ("17", "targets.egi.every"),
        ("18", "targets.egi.every"),
        ("19", "targets.egi.batch_records"),
        ("20", "targets.-bad"),
        ("20", "targets.-bad.path"),
        ("20", "targets.-bad.format"),
    ]
    told = "\n".join(found)
    for advice in (
        "unknown key; did you mean 'source'?",
        "unknown key; did you mean 'control_dir'?",
        "'many' is not a whole number; write digits only",
        "'finished' is not a status of a finished job; valid here: completed, failed, aborted",
        "'apel-sumary-0.4' is not known; did you mean 'apel-summary-0.4'?",
        "not https",
        "'daily' is not a length of time; write 90s, 30m, 24h or 7d",
        "given twice; it is already on line 17",
        "0 means no limit on the count, as in ARC's urbatchsize",
        "missing; write what is sent, such as apel-summary-0.4",
    ):
        assert advice in told


@pytest.mark.parametrize("libyaml", [True, False])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "publisher.yaml: empty; `publisher config example`"),
        (b"# only words\n", "publisher.yaml: empty"),
        (b"- site\n", "publisher.yaml:1: not a mapping"),
        (b"\n\njust words\n", "publisher.yaml:3: not a mapping"),
        (b"site: A\nx: \xff\n", "publisher.yaml:2: byte 0xff is not UTF-8; save it as UTF-8"),
        (b"site: A\nsource: {\n", "publisher.yaml:3: not valid YAML: "),
        (b"site: A\n\tsource: x\n", "publisher.yaml:2: not valid YAML: found character '\\t'"),
        (b"site: A\n---\nsite: B\n", "publisher.yaml:2: not valid YAML: but found another document"),
        (b"site: A\nx: \x01\n", "publisher.yaml:2: character U+0001 is not allowed in YAML"),
        (b"a: &a [x]\nb: *a\n", "publisher.yaml:2: aliases (*name) are not used here; write the value out"),
        (b"a:\n b: " + b"[" * 1000, "publisher.yaml:2: nested more than 20 levels deep"),
        (b"#" * (MAX_BYTES + 1), f"publisher.yaml: larger than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_clear_problem(
    read: Write, content: bytes, said: str, libyaml: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml, "__with_libyaml__", libyaml and yaml.__with_libyaml__)
    (only,) = problems(read, content)
    assert only.startswith(said)


def test_a_file_that_is_not_there_or_not_readable(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "no.yaml", "no such file; `publisher config example`"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"{path}: {said}")):
            load(path, {}, host_name="ce", registered=STAND_INS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("site: EXAMPLE-SITE\n", "", "publisher.yaml:1: site: missing; write the site's name as in GOCDB"),
        ("EXAMPLE-SITE", "null", "publisher.yaml:1: site: missing; write the site's name"),
        ("EXAMPLE-SITE", "[A]", "publisher.yaml:1: site: is a list; it must be one text"),
        ("EXAMPLE-SITE", "!!python/name:os.system A", "the tag 'python/name:os.system' is not used here"),
        ("EXAMPLE-SITE", '"A\\0B"', "publisher.yaml:1: site: holds the character U+0000, which cannot be seen"),
        ("EXAMPLE-SITE", "EXAMPLE\u00a0SITE", "publisher.yaml:1: site: holds the character U+00A0"),
        ("EXAMPLE-SITE", "SITÉ", "publisher.yaml:1: site: 'SITÉ' is not a site name"),
        ("EXAMPLE-SITE", "S" * 256, "publisher.yaml:1: site: 'SSSS"),
        ("site:", "? [a]\n: b\nsite:", "publisher.yaml:1: a key must be a plain word"),
        ("type: arex", "type: arecs", "source.type: 'arecs' is not known; did you mean 'arex'?"),
        ("  type: arex\n", "", "publisher.yaml:2: source.type: missing; write the kind of accounting database"),
        ("  control_dir: /var/spool/arc/jobstatus\n", "", "publisher.yaml:2: source: needs control_dir, or databases"),
        ("/var/spool", "$HOME/spool", "only $CREDENTIALS_DIRECTORY/NAME is filled in"),
        ("targets:", "credentials: 5\ntargets:", "publisher.yaml:5: credentials: is not a mapping"),
        ("targets:", "credentials: {cert: /a}\ntargets:", "credentials.cert: unknown key; did you mean 'certificate'?"),
        ("targets:", "records: [a]\ntargets:", "publisher.yaml:5: records: is not a mapping"),
        ("    type: ams\n", "", "publisher.yaml:6: targets.egi.type: missing; write the kind of service"),
        ("type: ams", "type: [ams]", "publisher.yaml:7: targets.egi.type: is a list; it must be one text"),
        ("    url: https://msg.example.org\n", "", "publisher.yaml:6: targets.egi.url: missing; write the address"),
        ("https://msg.example.org", "https://me:secret@msg.example.org", "holds a user or password; the certificate"),
        ("https://msg.example.org", "https://msg.example.org/?key=1", "has a query or fragment"),
        ("https://msg.example.org", "https://msg.example.org:port", "is not an address"),
        ("https://msg.example.org", "https://[::1", "is not an address"),
        ("https://msg.example.org", "https://me:secret@msg.example.org:port", "url: holds a user or password"),
        ("https://msg.example.org", "https://", "names no host"),
        ("  egi:\n", "  egi bad:\n", "publisher.yaml:6: targets.egi bad: a target's name is letters"),
    ],
)
def test_one_mistake_is_one_problem(read: Write, old: str, new: str, said: str) -> None:
    assert old in SMALL
    found = problems(read, SMALL.replace(old, new, 1))
    assert len(found) == 1, found
    assert said in found[0]


def test_a_missing_block_and_an_empty_one(read: Write) -> None:
    assert [line.split(";")[0] for line in problems(read, "site: A\ntargets: {}\n")] == [
        "publisher.yaml:1: source: missing",
        "publisher.yaml:2: targets: holds no target",
    ]
    assert problems(read, SMALL.split("targets:")[0]) == ["publisher.yaml:1: targets: missing; say where records go"]


def test_a_wrong_type_does_not_hide_the_other_mistakes(read: Write) -> None:
    found = problems(read, SMALL.replace("type: ams", "type: amss") + "    topik: x\n    attempts: few\n")
    assert [line.split(": ")[1] for line in found] == ["targets.egi.type", "targets.egi.topik", "targets.egi.attempts"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["vos: [atlas, cms]", "exclude_vos: [cms]"], ":11: targets.egi.exclude_vos: cms is in vos too"),
        (["vos: []"], "vos: is empty, so no job would be published"),
        (["vos: atlas"], "vos: is not a list; write it in brackets"),
        (["vos: [[atlas]]"], "vos[1]: is a list; it must be one text"),
        (["statuses: []"], "statuses: is empty"),
        (["statuses: [in-progress]"], "'in-progress' is not a status of a finished job"),
        (["batch_records: 100001"], "100001 is not between 1 and 100000"),
        (["single_months: -1"], "single_months"),
        (["single_months: 1201"], "1201 is not between 1 and 1200; 0 means that no record is purged"),
        (["batch_records: 010"], "'010' is not a whole number"),
        (["batch_records: 1e3"], "'1e3' is not a whole number"),
        (["every: 0"], "must be between 1s and 366d"),
        (["every: 1.5"], "not a whole number of seconds"),
        (["cron: 0 25 * * *"], "cron: '0 25 * * *': '25' is not a valid hour"),
        (["cron: [0, 3]"], "cron: is a list; it must be five fields as in crontab"),
        (["every: 1h", "cron: 0 3 * * *"], ":11: targets.egi.cron: cannot be combined with every"),
        (["jitter: 2d"], "jitter: must be between 0 and 1d"),
        (["start: tomorrow"], "'tomorrow' is not a time"),
        (["start: 2026-02-30"], "is not in the calendar"),
        (["sync: maybe"], "'maybe' is neither true nor false"),
        (["records: {identity: plain}"], "unknown key; write its keys directly under the target"),
        (["infrastructure: local"], ":10: targets.egi.infrastructure: infrastructure: local needs batch_server"),
        (["infrastructure: cloud"], "'cloud' is not known; valid here: grid, local"),
        (["default_vo: my vo"], "'my vo' is neither VO nor VO#ISSUER"),
        (["machine_name: ce_1"], "'ce_1' is not a full host name"),
        (['localid_prefix: "a\\nSite: x"'], "which cannot be seen"),
        (["localid_prefix: ' ce1-'"], "it becomes part of a key"),
        (["benchmark: HEPscore23:11.5"], "write {type: HEPscore23, value: 11.5}"),
        (["benchmark: {type: HEPscore23}"], "needs both type and value"),
        (["benchmark: {queue: a}"], "needs either type and value, or a list of them under benchmarks"),
        (["benchmark: {type: HEPscore23, value: 0}"], "is not between 0.001"),
        (["benchmark: {type: HEPscore23, value: '12,26'}"], "is not a number"),
        (["benchmark: {type: HEPscore23, value: 1, from: 2026-03, until: 2026-02}"], "from must be before until"),
        (["benchmark: {type: HEPscore23, value: 1, from: last-month}"], "is not a time"),
        (
            ["benchmark: {benchmarks: [{type: HEPSPEC, value: 1}, {type: hepspec, value: 2}]}"],
            "two values of one type",
        ),
        (["vo_rules: [{field: que, vo: atlas}]"], "'que' is not a field of a job; did you mean 'queue'?"),
        (["vo_rules: [{field: queue}]"], "vo_rules[1].vo: missing; write the VO"),
        (["vo_rules: [{field: queue, vo: atlas, group: atlas}]"], "must begin with a slash"),
        (["identity: pseudonyme"], "did you mean 'pseudonym'?"),
        (["identity: pseudonym"], "pseudonyms need a secret"),
        (["identity: {secret_file: /x}"], "identity.mode: missing; write plain, withheld or pseudonym"),
        (["identity: {mode: pseudonym, secret_file: /no/such/file}"], "cannot be read: No such file"),
        (["identity: {mode: pseudonym, secret_file: /x, period: week}"], "'week' is not known"),
    ],
)
def test_one_mistake_in_a_target_is_one_problem(read: Write, lines: list[str], said: str) -> None:
    found = target_problems(read, *lines)
    assert len(found) == 1, found
    assert said in found[0]
    assert found[0].startswith(f"publisher.yaml:{9 + len(lines)}: targets.egi.")


def test_summaries_do_not_begin_inside_a_month(read: Write) -> None:
    summaries = SMALL.replace("car", "apel-summary-0.4")
    for start in ("now", "2026-03-05", "2026-03-01T00:00:01"):
        (only,) = problems(read, f"{summaries}    start: {start}\n")
        assert only.startswith("publisher.yaml:10: targets.egi.start: would begin inside a month")
        assert read(f"{SMALL}    start: {start}\n").targets
    for start in ("month", "all", "2026-03", "2026-03-01", "2026-03-01T00:00Z"):
        assert read(f"{summaries}    start: {start}\n").targets
    (only,) = problems(read, SMALL.replace("car", "apel-normalised-summary-0.4") + "    start: now\n")
    assert "inside a month" in only


OTHER = """\
  other:
    type: ams
    url: https://MSG.example.org:443/
    format: apel-summary-0.4
"""


def test_two_formats_to_one_topic_are_an_error(read: Write) -> None:
    (only,) = problems(read, SMALL + OTHER)
    assert only.startswith("publisher.yaml:13: targets.other.format: apel-summary-0.4 would go to the same url")
    assert "car of target egi" in only


@pytest.mark.parametrize("apart", ["topic: other", "project: other", "shadow: true"])
def test_two_formats_that_do_not_meet_are_fine(read: Write, apart: str) -> None:
    assert len(read(f"{SMALL}{OTHER}    {apart}\n").targets) == 2
    assert len(read(SMALL + OTHER.replace("apel-summary-0.4", "car")).targets) == 2


SAME = OTHER.replace("apel-summary-0.4", "{0}")


@pytest.mark.parametrize(
    ("form", "vos", "others", "said"),
    [
        ("car", "sync: true", "vos: [cms]", "counts that one target sends"),
        ("car", "vos: [atlas]", "sync: true", "counts that one target sends"),
        ("car", "localid_prefix: a-", "localid_prefix: b-", "one that both want would count twice"),
        ("car", "vos: [atlas, cms]", "vos: [atlas]\n    identity: withheld", "one that both want would count twice"),
        ("car", "vos: [atlas]\n    localid_prefix: a-", "vos: [cms]\n    localid_prefix: b-", ""),
        ("car", "statuses: [completed]\n    localid_prefix: a-", "statuses: [failed]\n    localid_prefix: b-", ""),
        ("car", "vos: [atlas, cms]", "vos: [atlas]", ""),
        ("car", "vos: [atlas, cms]", "vos: [atlas]\n    start_time: submission", ""),
        ("apel-summary-0.4", "vos: [atlas]", "vos: [cms, atlas]", "replace some of them"),
        ("apel-summary-0.4", "vos: [atlas]", "exclude_vos: [cms]", "replace some of them"),
        ("apel-summary-0.4", "statuses: [completed]", "statuses: [failed]", "replace some of them"),
        ("apel-summary-0.4", "vos: [atlas]", "vos: [cms]", ""),
        ("apel-summary-0.4", "exclude_vos: [cms]", "vos: [cms]", ""),
        ("car", "statuses: [completed]", "statuses: [failed]", ""),
    ],
)
def test_targets_of_one_topic_do_not_replace_what_the_other_sent(
    read: Write, form: str, vos: str, others: str, said: str
) -> None:
    content = f"{SMALL.replace('car', form)}    {vos}\n{SAME.format(form)}    {others}\n"
    if not said:
        assert len(read(content).targets) == 2
        return
    (only,) = problems(read, content)
    assert "targets.other: its " in only
    assert said in only


def test_sync_is_for_apel(read: Write) -> None:
    (only,) = problems(read, SMALL.replace("ams", "sgas").replace("car", "ogf-ur") + "    sync: true\n")
    assert only == "publisher.yaml:10: targets.egi.sync: SGAS, which reads ogf-ur, takes no sync counts"


def test_a_target_wins_over_records_and_null_sets_it_aside(read: Write) -> None:
    content = """\
records: {key_style: jura, default_vo: ops, vo_group: [a, b], localid_prefix: 007, start_time: submission}
"""
    target = read(
        content + SMALL + "    key_style: apel\n    default_vo:\n    vo_group: []\n    statuses: [aborted]\n"
    ).targets[0]
    assert target.policy.key_style is KeyStyle.APEL
    assert target.policy.default_vo == ""
    assert target.policy.vo_groups == ()
    assert target.policy.localid_prefix == "007"
    assert target.policy.start_time is StartTime.SUBMISSION
    assert target.selection(Window()).statuses == {"aborted"}


def test_words_that_yaml_takes_for_something_else_stay_words(read: Write) -> None:
    target = target_with(read, "vos: [no, 12:30, 0x10, 1_000, ~x, 2026-03-05]", "topic: on")
    assert target.vos == frozenset({"no", "12:30", "0x10", "1_000", "~x", "2026-03-05"})
    assert isinstance(target.options, AmsOptions)
    assert target.options.topic == "on"


def test_a_timetable_in_crontabs_notation(read: Write) -> None:
    target = target_with(read, 'cron: "0 3 * * mon"', "jitter: 10m")
    assert (str(target.cron), target.jitter_s, target.timetable) == ("0 3 * * mon", 600, "cron 0 3 * * mon")
    tuesday = datetime(2026, 11, 3, tzinfo=UTC)
    assert target.due_after(tuesday) == datetime(2026, 11, 9, 3, tzinfo=UTC)
    assert target_with(read, "every: 6h").due_after(tuesday) == datetime(2026, 11, 3, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604800), ("1w", 604800)]
)
def test_lengths_of_time(read: Write, written: str, seconds: int) -> None:
    target = target_with(read, f"every: {written}", f"read_timeout_s: {written}")
    assert target.every_s == seconds
    assert isinstance(target.options, AmsOptions)
    assert target.options.read_timeout_s == seconds


def test_types_of_options(read: Write, tmp_path: Path) -> None:
    content = SMALL.replace("ams", "spool").replace("url: https://msg.example.org", "path: out\n    layout: dirq")
    options = read(content).targets[0].options
    assert options == SpoolOptions(path=tmp_path / "out", layout=SpoolOptions.__annotations__["layout"]("dirq"))
    source = read(SMALL.replace("control_dir: /var/spool/arc/jobstatus", "databases: [/a*.db]\n  unescape: no"))
    assert source.source.options == ArexOptions(databases=("/a*.db",), unescape=False)
    target = target_with(read, "connect_timeout_s: 0.5s", "attempts: 7", "auth_url: https://a:8443")
    assert target.options == AmsOptions(
        url="https://msg.example.org", connect_timeout_s=0.5, attempts=7, auth_url="https://a:8443"
    )


def test_zero_records_is_no_limit(read: Write) -> None:
    assert target_with(read, "batch_records: 0").batch_records == 0
    assert target_with(read, "batch_records: 1").batch_records == 1


def test_benchmark_rules_in_order_with_dates_and_patterns(read: Write) -> None:
    target = target_with(
        read,
        "benchmark:",
        "  - {type: hepspec, value: 9.80, queue: 'old*', until: 2026-06}",
        "  - {type: HEPSPEC, value: 10, until: 2026-07-15T12:00}",
        "  - from: 2026-07",
        "    benchmarks: [{type: HEPscore23, value: 11.5}, {type: Si2k, value: 2500}]",
    )
    first, second, third = target.policy.benchmarks.rules
    assert (first.queue, first.endpoint, first.host) == ("old*", "*", "*")
    assert (first.benchmarks[0].kind, first.benchmarks[0].value) == ("HEPSPEC", Decimal("9.8"))
    assert str(first.window) == "until 2026-06-30"
    assert first.origin == "targets.egi.benchmark, rule 1"
    assert str(second.window) == "before 2026-07-15T12:00:00Z"
    assert str(third.window) == "from 2026-07-01 on"
    assert [benchmark.kind for benchmark in third.benchmarks] == ["HEPscore23", "Si2k"]
    single = read("records: {benchmark: {type: HEPscore23, value: 11.5}}\n" + SMALL).targets[0].policy.benchmarks.rules
    assert [rule.origin for rule in single] == ["records.benchmark"]


@pytest.mark.parametrize("role", ["production", "Role=production", "/Role=production"])
def test_vo_rules_spell_roles_as_apel_derives_them(read: Write, role: str) -> None:
    (rule,) = target_with(
        read, f"vo_rules: [{{field: any, vo: atlas, group: /atlas, role: {role}, override: true}}]"
    ).policy.vo_rules
    assert (rule.field, rule.pattern, rule.vo, rule.group, rule.role, rule.override) == (
        "any", "*", "atlas", "/atlas", "Role=production", True,
    )  # fmt: skip


def test_pseudonyms_take_their_secret_from_a_file_and_never_show_it(read: Write, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"correct horse battery staple\n")
    (tmp_path / "secret").chmod(0o600)
    content = "records: {identity: {mode: pseudonym, secret_file: secret, period: quarter}}\n" + SMALL
    found = read(content)
    identity = found.targets[0].policy.identity
    assert (identity.mode, identity.secret, identity.period) == (
        IdentityMode.PSEUDONYM,
        b"correct horse battery staple",
        "quarter",
    )
    assert "horse" not in repr(found)
    assert "horse" not in show(found)
    assert f"secret_file: {tmp_path / 'secret'}" in show(found)
    (tmp_path / "secret").write_bytes(b"short horse")
    (only,) = problems(read, content)
    assert "must hold 16 to 4096 bytes" in only
    assert "horse" not in only
    (tmp_path / "secret").chmod(0o604)
    (only,) = problems(read, content)
    assert "may be read by everybody; chmod 600 it" in only


def test_credentials_of_systemd(read: Write, tmp_path: Path) -> None:
    content = (
        "credentials: {key: $CREDENTIALS_DIRECTORY/key.pem, certificate: '${CREDENTIALS_DIRECTORY}/c', ca: system}\n"
    )
    inside = read(content + SMALL, {"CREDENTIALS_DIRECTORY": "/run/credentials/publisher.service"}).credentials
    assert inside.key == Path("/run/credentials/publisher.service/key.pem")
    assert inside.certificate == Path("/run/credentials/publisher.service/c")
    assert inside.ca is None
    # In a shell the file is still right; what needs the key fails by the name that is written.
    assert read(content + SMALL).credentials.key == Path("$CREDENTIALS_DIRECTORY/key.pem")
    assert "key: $CREDENTIALS_DIRECTORY/key.pem" in show(read(content + SMALL))
    for outside in ("$CREDENTIALS_DIRECTORY/../shadow", "$CREDENTIALS_DIRECTORY"):
        (only,) = problems(read, f"credentials: {{key: {outside}}}\n" + SMALL)
        assert "only $CREDENTIALS_DIRECTORY/NAME is filled in" in only
    assert read("credentials: {ca: cas}\n" + SMALL).credentials.ca == tmp_path / "cas"


def test_a_start_date_is_utc(read: Write) -> None:
    assert target_with(read, "start: 2026-03-05T14:00Z").start.since == datetime(2026, 3, 5, 14, tzinfo=UTC)
    assert target_with(read, "start: all").start.kind is StartKind.ALL


FULL = """\
site: S
source: {type: arex, databases: [/a.db], hold_off_s: 90}
records:
  benchmark: [{queue: q, from: 2026-01, type: HEPscore23, value: 11.5}]
  vo_rules: [{field: user, pattern: "*/CN=Ø*", vo: x, role: pilot}]
  identity: withheld
targets:
  egi:
    type: ams
    url: https://msg.example.org
    format: car
    batch_records: 0
    vos: [b, a]
    start: 2026-02-03
    every: 36h
    key_style: jura
    benchmark: {type: HEPSPEC, value: 10}
    connect_timeout_s: 2.5
  nordic: {type: sgas, url: https://sgas.example.org/sgas, format: ogf-ur, exclude_vos: [ops]}
"""


def same(found: Settings) -> Settings:
    """Without what depends on the way it was written: a single benchmark rule is shown as a list of one."""

    def rules(records: Any) -> Any:
        return replace(records, benchmark=tuple(replace(rule, origin="") for rule in records.benchmark))

    targets = tuple(replace(target, records=rules(target.records), policy=target.policy) for target in found.targets)
    policies = [
        replace(
            target,
            policy=replace(
                target.policy, benchmarks=target.policy.benchmarks._replace(rules=rules(target.records).benchmark)
            ),
        )
        for target in targets
    ]
    return found._replace(records=rules(found.records), targets=tuple(policies))


@pytest.mark.parametrize("content", [SMALL, FULL])
def test_what_is_shown_reads_back_to_the_same_settings(read: Write, content: str) -> None:
    found = read(content)
    shown = show(found)
    assert same(read(shown)) == same(found)
    assert show(read(shown)) == shown
    tree = yaml.safe_load(shown)
    assert tree["credentials"]["ca"] == "/etc/grid-security/certificates"
    assert tree["targets"]["egi"]["topic"] == "gLite-APEL"


@pytest.mark.parametrize(
    ("options", "before", "behind"),
    [
        (transport_plugin("ams").Options, "batch_bytes", "connect_timeout_s"),
        (importer_plugin("slurm").Options, "time_zone", "exclude_users"),
    ],
)
def test_keys_that_all_plug_ins_share_come_last(options: type, before: str, behind: str) -> None:
    keys = list(keys_of(options))
    assert keys[0] in ("url", "cluster")
    assert keys.index(before) < keys.index(behind)


def test_under_a_target_only_what_differs_from_records_is_shown(read: Write) -> None:
    egi = yaml.safe_load(show(read(FULL)))["targets"]["egi"]
    assert egi["key_style"] == "jura"
    assert egi["benchmark"] == [{"benchmarks": [{"type": "HEPSPEC", "value": "10"}]}]
    assert egi["every"] == "36h"
    assert not {"identity", "vo_rules", "statuses"} & egi.keys()


def test_a_proxys_password_is_not_shown(read: Write) -> None:
    shown = show(read(SMALL + "    proxy: http://me:hunter2@proxy:3128\n"))
    assert "hunter2" not in shown
    assert "http://***@proxy:3128" in shown


def test_a_target_of_the_command_line_obeys_the_rules_of_the_file(read: Write) -> None:
    found = read("records: {key_style: jura}\n" + SMALL)

    def once(keys: dict[str, str], site: str | None = None) -> Target:
        return one_off_target(found, "once", keys, site=site, host_name="ce", registered=STAND_INS)

    target = once({"type": "ams", "url": "https://a", "topic": "t", "format": "car"}, site="OTHER")
    assert isinstance(target.options, AmsOptions)
    assert (target.options.topic, target.policy.site, target.policy.key_style) == ("t", "OTHER", KeyStyle.JURA)
    with pytest.raises(ConfigError) as caught:
        once({"type": "ams", "url": "http://a", "format": "carr"}, site="a b")
    assert [line.split(": ")[:2] for line in caught.value.problems] == [
        ["command line", "site"],
        ["command line", "format"],
        ["command line", "url"],
    ]


# What an administrator's slip, or a broken disk, may leave in the file.
SCRAPS = st.one_of(
    st.sampled_from(
        ["", "null", "~", "[]", "{}", "&a x", "*a", "!!binary x", "- a", "a: b", "'", '"\\ud800"', "\t", "1e999"]
    ),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*AmsOptions.__annotations__, "site", "source", "records", "targets", "credentials", "type"]
            )
            | st.text(max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BLOCKS = ("site", "source", "state", "credentials", "records", "targets")
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))


def only_config_errors(read: Write, content: bytes) -> None:
    try:
        found = read(content)
    except ConfigError as error:
        told = error.problems
    else:
        assert same(read(show(found))) == same(found)
        return
    assert told
    assert all(line.isprintable() for line in told), told


@FUZZ
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_by_name(read: Write, content: bytes) -> None:
    only_config_errors(read, content)


@FUZZ
@given(tree=st.dictionaries(st.sampled_from(BLOCKS), TREES, max_size=6))
def test_arbitrary_trees_are_refused_by_name(read: Write, tree: dict[str, Any]) -> None:
    only_config_errors(read, yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@st.composite
def broken_lines(draw: st.DrawFn) -> bytes:
    lines, scrap = FULL.splitlines(), draw(SCRAPS)
    at = draw(st.integers(0, len(lines) - 1))
    key, colon, _ = lines[at].partition(":")
    broken = [f"{key}{colon} {scrap}", f"{scrap}{colon} x", scrap, lines[at] + scrap]
    lines[at] = draw(st.sampled_from(broken))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@FUZZ
@given(content=broken_lines())
def test_a_broken_line_is_refused_by_name(read: Write, content: bytes) -> None:
    only_config_errors(read, content)


@FUZZ
@given(content=broken_lines())
def test_a_file_is_the_same_with_libyaml_and_without(content: bytes) -> None:
    found, alone = Problems("publisher.yaml"), Problems("publisher.yaml")
    tree = parse_tree(content, found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        slowly = parse_tree(content, alone)
    if slowly is not None or tree is None:  # libyaml takes some tabs that the loader in Python refuses
        assert (tree, found.lines()) == (slowly, alone.lines())


def test_numbers_are_bounded(read: Write) -> None:
    for number in ("9" * 19, "9" * 5000, "-" + "9" * 19, str(math.inf), ".nan"):
        assert len(target_problems(read, f"attempts: {number}", f"connect_timeout_s: {number}")) == 2


@pytest.mark.parametrize("keys", [3_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_file_that_is_wrong_throughout_is_told_in_a_hundred_lines(tmp_path: Path, keys: int) -> None:
    path = tmp_path / "publisher.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(keys)))
    with pytest.raises(ConfigError) as caught:
        load(path, {}, host_name="ce")
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert lines[-1] == f"and {len(caught.value.problems) - 100} more problems; mend these first"
