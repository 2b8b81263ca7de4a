"""`config from-arc`: what an arc.conf becomes, where publishing goes on, and what ARC's publisher has passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.model.errors import ConfigError, UsageError
from publisher.policy.records import KeyStyle, StartTime
from tests.support.arc_pages import APEL, NAMES, apel, keys, loaded, page_of, sample
from tests.support.strategies import examples

# The samples


def test_there_are_samples_of_both_generations() -> None:
    assert len(NAMES) >= 7


@pytest.mark.parametrize("name", NAMES)
def test_what_is_made_of_a_sample_loads(name: str, tmp_path: Path) -> None:
    page = sample(name)
    assert page.missing == ()
    settings = loaded(page, tmp_path)
    assert settings.records.key_style is KeyStyle.JURA
    assert settings.records.start_time is StartTime.RUN
    assert settings.targets


@pytest.mark.parametrize("name", NAMES)
def test_every_line_with_a_value_of_arc_conf_tells_its_origin(name: str) -> None:
    """All but the headings of blocks and what does not depend on the file at all."""
    fixed = re.compile(r" *(- )?(type: (arex|ams|sgas)|key_style: jura|start_time: run|format: ogf-ur|[a-z_]+:)$")
    lines = [line for line in sample(name).text.splitlines() if line and not line.lstrip().startswith("#")]
    bare = [line for line in lines if not re.search(r"  # .", line) and not fixed.fullmatch(line)]
    assert bare == []
    assert sum("# from [" in line for line in lines) >= 2


def test_the_key_is_the_copy_that_the_units_hand_over() -> None:
    """A-REX's own publisher ran as root; the user of our units cannot read the key itself."""
    unit = (Path(__file__).parents[2] / "conf" / "publisher.service").read_text()
    handed = re.search(r"^LoadCredential=([^:]+):(.+)$", unit, re.MULTILINE)
    assert handed
    name, original = handed.groups()
    page = sample("arc6_summaries.conf")
    assert (
        f"  key: $CREDENTIALS_DIRECTORY/{name}  # systemd's copy of {original}, from [common] x509_host_key\n"
        in page.text
    )
    assert "LoadCredential" not in "".join(page.by_hand)


def test_an_arc_6_site(tmp_path: Path) -> None:
    settings = loaded(sample("arc6_summaries.conf"), tmp_path)
    (target,) = settings.targets
    assert settings.site == "EXAMPLE-SITE"
    assert (target.name, target.type, target.format, target.sync) == ("egi", "ams", "apel-summary-0.2", True)
    assert sorted(target.vos or ()) == ["atlas", "cms"]
    assert [(rule.queue, rule.benchmarks[0].kind, rule.benchmarks[0].text) for rule in settings.records.benchmark] == [
        ("grid", "HEPSPEC", "11.2"),
        ("grid-new", "HEPSPEC", "14.8"),
        ("*", "HEPSPEC", "10.4"),
    ]


def test_an_arc_7_site(tmp_path: Path) -> None:
    page = sample("arc7_v04.conf")
    settings = loaded(page, tmp_path)
    (target,) = settings.targets
    assert (target.format, target.every_s, target.records.default_vo) == ("apel-summary-0.4", 86_000, "")
    assert settings.credentials.ca is None
    assert settings.records.default_vo == "nobody.example.org"
    assert [(rule.field, rule.pattern, rule.vo) for rule in settings.records.vo_rules] == [
        ("issuer", "https://atlas-auth.cern.ch", "atlas"),
        ("issuer", "https://atlas-auth.cern.ch/", "atlas"),
        ("user", "/DC=org/DC=example/CN=Local O'Neil [[]staff]", "local.example.org"),
        ("user", "/DC=org/DC=example/CN=Another Local", "local.example.org"),
    ]
    assert target.records.vo_rules == ()
    assert "authgroup 'by-plugin'" in " ".join(page.by_hand)
    assert keys(page)["targets"]["egi-v04"]["proxy"] == "http://proxy.example.org:3128"


def test_every_option(tmp_path: Path) -> None:
    page = sample("every_option.conf")
    settings = loaded(page, tmp_path)
    nordic, jobs, totals = settings.targets
    assert settings.site == "EVERY-OPTION"  # two references away
    assert str(settings.credentials.key) == "$CREDENTIALS_DIRECTORY/hostkey.pem"
    assert "LoadCredential=hostkey.pem:/etc/arc/accounting-key.pem" in "\n".join(page.by_hand)
    assert str(settings.credentials.ca) == "/etc/arc/ca"
    assert settings.records.vo_group == ("/theory", "/theory/local")
    assert [rule.queue for rule in settings.records.benchmark] == ["a[*]b", "*"]
    assert (nordic.type, nordic.format, nordic.batch_records, nordic.every_s) == ("sgas", "ogf-ur", 0, 7200)
    assert (nordic.records.localid_prefix, jobs.records.localid_prefix) == ("ce1-", "")
    assert (jobs.format, jobs.batch_records, jobs.every_s) == ("car", 1000, 43_200)
    assert jobs.records.default_vo == "theory#https://issuer.example.org"
    assert (totals.format, totals.batch_records, totals.records.default_vo) == ("apel-summary-0.4", 500, "")
    written = keys(page)["targets"]
    assert written["nordic"]["url"] == "https://sgas.example.org:6143/sgas/ur"
    assert (written["jobs"]["url"], written["jobs"]["project"]) == (
        "https://msg-devel.argo.grnet.gr:443",
        "accounting-test",
    )
    assert all(target["proxy"] == "http://proxy.example.org:3128" for target in written.values())
    told = "\n".join(page.without_counterpart)
    assert all(word in told for word in ("logfile", "loglevel", "archiving"))
    assert "every_option.conf:44" in "\n".join(line for line in page.by_hand if "urbatchsize" in line)


def test_sgas_and_apel_of_one_name_stay_two_targets(tmp_path: Path) -> None:
    settings = loaded(sample("sgas_and_apel.conf"), tmp_path)
    assert [(target.name, target.type, target.every_s) for target in settings.targets] == [
        ("neic", "sgas", 7200),
        ("apel-neic", "ams", 86_000),
    ]
    assert settings.targets[0].records.localid_prefix == "abisko:"


@pytest.mark.parametrize(
    ("one", "two", "live", "said"),
    [
        ("vofilter=atlas", "vofilter=cms", ["one", "two"], "none are sent"),
        ("vofilter=atlas", "", ["one"], "would replace some of those that target one sends"),
        ("apel_messages=urs", "apel_messages=urs", ["one", "two"], "none are sent"),
        ("vofilter=atlas", "topic=other", ["one", "two"], ""),
    ],
)
def test_targets_of_one_topic_do_not_replace_what_the_other_sent(
    one: str, two: str, live: list[str], said: str, tmp_path: Path
) -> None:
    common = "targeturl=https://msg.argo.grnet.gr\ngocdb_name=EXAMPLE-SITE\n"
    blocks = (f"[arex/jura/apel:one]\n{common}{one}\n", f"[arex/jura/apel:two]\n{common}{two}\n")
    page = page_of("[common]\n[arex]\n[arex/jura]\n" + "".join(blocks))
    found = loaded(page, tmp_path).targets
    assert [target.name for target in found] == live
    assert any(target.sync for target in found) == (said != "none are sent")
    assert said in " ".join(page.by_hand)


def test_a_site_without_gocdb_name_takes_the_domain_and_says_so(tmp_path: Path) -> None:
    page = sample("sgas_only.conf")
    assert loaded(page, tmp_path).site == "CLIMATE-SITE"
    assert any("check it" in line for line in page.by_hand)


@pytest.mark.parametrize(("asked", "live"), [("", ["north"]), ("NORTH", ["north"]), ("SOUTH", ["south"])])
def test_of_several_sites_one_is_live(asked: str, live: list[str], tmp_path: Path) -> None:
    page = sample("several_sites.conf", site=asked)
    settings = loaded(page, tmp_path)
    assert settings.site == live[0].upper()
    told = "\n".join(page.by_hand)
    assert "--site" in told
    assert "message brokers" in told
    # `both` would send jobs where `north` sends summaries, but is of NORTH: with --site SOUTH it is another site's.
    assert [target.name for target in settings.targets] == live


def test_a_site_that_no_target_has_is_refused() -> None:
    with pytest.raises(UsageError, match="NORTH, SOUTH"):
        sample("several_sites.conf", site="WEST")


def test_a_hostile_file_gives_a_good_page_without_its_secrets(tmp_path: Path) -> None:
    page = sample("hostile.conf")
    settings = loaded(page, tmp_path)
    assert "secret" not in page.text
    assert all(line.isprintable() for line in page.text.splitlines())
    (target,) = settings.targets
    assert sorted(target.vos or ()) == ["a, b: {c} #d", "it''s", "no", "☃"]
    assert str(page.control_dir) == "/srv/a 'b' #c: [d], {e}"
    told = "\n".join(page.by_hand)
    for word in (
        "$EXEC",
        "HTTPS_PROXY",
        "checked no certificate",
        "urbatchsize",
        "often",
        "not https",
        "vo_group",
    ):
        assert word in told, word


# Single rules


@pytest.mark.parametrize(
    ("messages", "format_name"),
    [
        ("urs", "car"),
        ("summaries", "apel-summary-0.2"),
        ("summaries-v04", "apel-summary-0.4"),
        ("", "apel-summary-0.2"),
    ],
)
def test_apel_messages(messages: str, format_name: str) -> None:
    page = apel(f"apel_messages = {messages}" if messages else "")
    target = keys(page)["targets"]["egi"]
    assert (target["format"], target["sync"]) == (format_name, True)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("apel_messages = both", "apel_messages is 'both'"),
        ("apel_messages = $EXEC{cat /etc/mode}", "apel_messages holds"),
        ("topic = /queue/global.accounting.cpu.central", "message brokers"),
        ("project = a/b", "project is 'a/b'"),
        ("vofilter =", "vofilter has an empty value"),
        ("vofilter = $EVAL{x}", "vofilter holds"),
        ("vofilter = atlas,cms", "vofilter is 'atlas,cms', which ARC takes for the name of one VO"),
        ("vofilter = atlas, cms", "give each a line of its own"),
        ("vofilter = atlas cms", "give each a line of its own"),
        ("vofilter = alice\nvofilter = atlas;cms", "vofilter is 'atlas;cms'"),
    ],
)
def test_a_target_that_cannot_be_carried_over_is_a_comment(target: str, reason: str) -> None:
    page = apel(target)
    assert keys(page)["targets"] is None
    assert page.missing == ("targets",)
    assert any(reason in line and "comment" in line for line in page.by_hand)
    assert "\n#  egi:" in page.text


@pytest.mark.parametrize(
    ("own", "process", "summary", "every"),
    [
        ("", "", True, None),
        ("", "", False, "86000s"),
        ("86400", "", True, None),
        ("600", "", False, None),  # A-REX starts its publisher once an hour
        ("7200", "", True, "7200s"),
        ("7200", "10800", True, "10800s"),
        ("7200", "60", False, "7200s"),
        ("never", "", True, None),
        ("-1", "", True, None),
        ("99999999999999999999", "", True, None),
    ],
)
def test_how_often(own: str, process: str, summary: bool, every: str | None) -> None:
    target = "apel_messages = summaries\n" if summary else "apel_messages = urs\n"
    target += f"urdelivery_frequency = {own}" if own else ""
    page = apel(target, f"urdelivery_frequency = {process}" if process else "")
    assert keys(page)["targets"]["egi"].get("every") == every


@pytest.mark.parametrize(
    ("size", "records"),
    [("0", 0), ("007", 7), ("500", 500), ("100000", 100_000), ("100001", None), ("-5", None), ("x", None)],
)
def test_batch_sizes(size: str, records: int | None) -> None:
    page = apel(f"urbatchsize = {size}")
    assert keys(page)["targets"]["egi"].get("batch_records") == records
    assert any("urbatchsize" in line for line in page.by_hand) == (records is None)


@pytest.mark.parametrize(
    ("proxy", "found"),
    [
        ("proxy.example.org:3128", "http://proxy.example.org:3128"),
        ("http://proxy.example.org:3128/", "http://proxy.example.org:3128"),
        ("https://proxy.example.org", None),
        ("socks5://proxy.example.org", None),
        ("http://me:secret@proxy.example.org", None),
        ("http://[", None),
        ("http://", None),
    ],
)
def test_proxies(proxy: str, found: str | None) -> None:
    page = page_of(f"[common]\nhttp_proxy = {proxy}\n" + APEL.format(jura="", target=""))
    assert keys(page)["targets"]["egi"].get("proxy") == found
    assert any("http_proxy" in line for line in page.by_hand) == (found is None)
    assert "secret" not in page.text


@pytest.mark.parametrize(
    ("text", "ca"),
    [
        ("x509_cert_policy = grid", "/etc/grid-security/certificates"),
        ("x509_cert_policy = system", "system"),
        ("x509_cert_policy = any", "/etc/grid-security/certificates"),
        ("x509_cert_dir = /opt/ca", "/opt/ca"),
        ("x509_cert_policy = some", None),
        ("x509_cert_dir =", None),
    ],
)
def test_trusted_cas(text: str, ca: str | None) -> None:
    page = page_of(f"[common]\n{text}\n" + APEL.format(jura="", target=""))
    assert keys(page)["credentials"].get("ca") == ca


def test_a_default_vo_is_for_job_records_only() -> None:
    """jura-ng never used it in summaries: there it would make new rows beside those of a month that is under way."""
    jura = "vomsless_vo = theory#https://issuer.example.org"
    assert keys(apel("apel_messages = summaries", jura))["targets"]["egi"]["default_vo"] == ""
    assert "default_vo" not in keys(apel("apel_messages = urs", jura))["targets"]["egi"]
    assert keys(apel("", jura))["records"]["default_vo"] == "theory#https://issuer.example.org"


@pytest.mark.parametrize("text", ["", "#", "vo#", "#issuer", "a b c", "group vo#", "unknown-group vo", "vo#a#b"])
def test_a_vomsless_vo_that_cannot_be_carried_over(text: str) -> None:
    page = apel("", f"vomsless_vo = {text}")
    assert not {"default_vo", "vo_rules"} & set(keys(page)["records"])
    assert any("vomsless_vo" in line for line in page.by_hand)


def test_without_targets_or_jura_it_is_no_configuration() -> None:
    page = page_of("[common]\n[arex]\ncontroldir = $EXEC{echo /x}\n")
    assert set(page.missing) == {"site", "source.control_dir", "targets"}
    assert any("ARC publishes nothing" in line for line in page.by_hand)


def test_an_unknown_option_is_told_with_its_line() -> None:
    page = apel("benchmark_value = 2.5\nfoo = bar")
    assert any(line.startswith("arc.conf:9: ") and "foo" in line for line in page.without_counterpart)


_KEYS = st.sampled_from(
    [
        *("targeturl", "topic", "project", "gocdb_name", "apel_messages", "vofilter", "urbatchsize", "localid_prefix"),
        *("urdelivery_frequency", "vomsless_vo", "vo_group", "x509_host_cert", "x509_host_key", "x509_cert_dir"),
        *("x509_cert_policy", "http_proxy", "controldir", "benchmark", "subject", "authtokens", "admindomain_name"),
    ]
)
_VALUES = st.one_of(
    st.text(max_size=30).map(lambda text: text.replace("\n", " ")),
    st.sampled_from(
        [
            *(
                "https://msg.example.org",
                "https://h:99999/",
                "https://[::1]/",
                "https://[",
                "http://",
                "urs",
                "summaries",
            ),
            *(
                "0",
                "-1",
                "SITE",
                "yes",
                "a#b",
                "g a",
                "HEPSPEC 1",
                "HEPSPEC 1e400",
                "/path",
                "$VAR{[common]x}",
                "$EXEC{x}",
            ),
            *("any", "null", "~", "'", '"', "{", "- a", "* https://issuer.example.org * * *", "/CN=a [b]"),
        ]
    ),
)
_BLOCKS = st.sampled_from(
    [
        *(
            "common",
            "arex",
            "arex/jura",
            "arex/jura/apel:a",
            "arex/jura/apel: b",
            "arex/jura/apel:egi",
            "arex/jura/sgas:a",
        ),
        *(
            "arex/jura/sgas:ø",
            "lrms",
            "queue:a*",
            "queue: {",
            "queue:\x7f",
            "authgroup:g",
            "arex/jura/x",
            "infosys/glue2",
        ),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))
@given(st.lists(st.tuples(_BLOCKS, st.lists(st.tuples(_KEYS, _VALUES), max_size=6)), max_size=8))
def test_whatever_stands_in_it_the_page_loads_or_says_what_is_missing(
    tmp_path: Path, blocks: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    text = "".join(f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in options) for name, options in blocks)
    # Values that come first count: what was good before is so no more, or still is.
    try:
        page = page_of(text + APEL.format(jura="", target=""))
    except ConfigError:
        return
    assert all(line.isprintable() for line in page.text.split("\n"))
    if not page.missing:
        loaded(page, tmp_path)
