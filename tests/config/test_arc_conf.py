"""Reading arc.conf: what stands in it, what it refers to, and files that mean harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from publisher.config.from_arc.page import flow, scalar
from publisher.config.from_arc.reader import MAX_BYTES, ArcValues, ByHand, parse_arc_conf, read_arc_conf
from publisher.model.errors import ConfigError
from publisher.model.text import shown
from tests.support.patience import bounded


def values(text: str) -> ArcValues:
    return ArcValues(parse_arc_conf(text.encode("utf-8", "surrogateescape"), "arc.conf"))


def first(text: str, block: str, key: str) -> str | None:
    found = values(text).first(block, key)
    return found.text if found else None


# Syntax


def test_blocks_with_and_without_blanks_are_one_and_the_same() -> None:
    conf = parse_arc_conf(b"[arex/jura/apel: egi]\na = 1\n  [ arex/jura/apel:egi ]  \nb=2\r\n[lrms]\n", "arc.conf")
    assert list(conf.blocks) == ["arex/jura/apel:egi", "lrms"]
    options = conf.blocks["arex/jura/apel:egi"].options
    assert [(option.key, option.text, option.line) for option in options] == [("a", "1", 2), ("b", "2", 4)]


def test_repeated_keys_are_several_values_in_order() -> None:
    found = values("[q]\nvofilter = b\nother = x\nvofilter = a\nvofilter = b\n").all("q", "vofilter")
    assert [(one.text, one.place) for one in found] == [("b", "arc.conf:2"), ("a", "arc.conf:4"), ("b", "arc.conf:5")]


def test_comments_begin_a_line_and_nothing_else_is_one() -> None:
    conf = parse_arc_conf(b"# [not]\n\n[a]\n#k = 1\n  # k = 2\nk = v # part of it\n", "arc.conf")
    assert [option.text for option in conf.all("a", "k")] == ["v # part of it"]


@pytest.mark.parametrize(
    ("written", "read"),
    [('"quoted"', "quoted"), ("'quoted'", "quoted"), ('"half', '"half'), ('"', '"'), ("a=b", "a=b")],
)
def test_quotes_around_a_value_are_no_part_of_it(written: str, read: str) -> None:
    assert first(f"[a]\nk = {written}\n", "a", "k") == read


def test_a_byte_order_mark_and_latin_1_comments_do_not_matter() -> None:
    conf = parse_arc_conf(b"\xef\xbb\xbf[a]\n# Universit\xe4t\nk = v\n", "arc.conf")
    assert conf.all("a", "k")[0].text == "v"


def test_every_problem_is_told_with_its_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arc_conf(b"early = 1\n[a\n[]\n[: name]\n[a:]\n[a]\nno equals sign\n= value\nk = v\n", "/etc/arc.conf")
    lines = [problem.split(": ", 1)[0] for problem in caught.value.problems]
    assert lines == [f"/etc/arc.conf:{number}" for number in (1, 2, 3, 4, 5, 7, 8)]
    assert "'early' stands before the first [block]" in caught.value.problems[0]


def test_what_is_no_arc_conf_is_told_in_a_few_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arc_conf(b"nonsense\n" * 100_000, "arc.conf")
    assert len(caught.value.problems) == 51


def test_an_option_may_stand_without_equals_sign() -> None:
    """ARC reads it as one with an empty value, and has such lines in its own samples."""
    conf = parse_arc_conf(b"[authgroup: everyone]\nall\n[mapping]\n  mapped_unixid \nk = v\n", "arc.conf")
    assert [(option.key, option.text) for option in conf.all("authgroup:everyone", "all")] == [("all", "")]
    assert [option.key for option in conf.blocks["mapping"].options] == ["mapped_unixid", "k"]


# Files


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_files_of_arc_conf_d_are_read_after_it_in_the_order_of_their_names(tmp_path: Path) -> None:
    path = written(tmp_path / "arc.conf", "[lrms]\nbenchmark = HEPSPEC 10\n[queue: a]\nk = 1\n")
    folder = tmp_path / "arc.conf.d"
    written(folder / "20-more.conf", "[queue:a]\nk = 3\n[arex/jura]\n")
    written(folder / "10-first.conf", "# comment\n[queue:a]\nk = 2\n")
    written(folder / "sub" / "00.conf", "[queue:a]\nk = 4\n")
    for ignored in ("10-first.conf~", "notes.txt", "conf"):
        written(folder / ignored, "no [arc.conf at all\n")
    (folder / "sub" / "up").symlink_to(folder)

    conf = read_arc_conf(path)

    assert [option.text for option in conf.all("queue:a", "k")] == ["1", "2", "3", "4"]
    assert list(conf.blocks) == ["lrms", "queue:a", "arex/jura"]
    assert conf.blocks["arex/jura"].place == f"{folder}/20-more.conf:3"
    assert [Path(file).name for file in conf.additional] == ["10-first.conf", "20-more.conf", "00.conf"]


def test_the_order_of_arc_conf_d_is_not_that_of_the_directory(tmp_path: Path) -> None:
    path = written(tmp_path / "arc.conf", "[common]\n")
    names = [f"{number * 7 % 20:02}.conf" for number in range(20)]
    for name in names:
        written(tmp_path / "arc.conf.d" / name, f"[queue:a]\nk = {name[:2]}\n")
    assert [option.text for option in read_arc_conf(path).all("queue:a", "k")] == sorted(name[:2] for name in names)


def test_a_problem_in_arc_conf_d_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "arc.conf", "[common]\n")
    bad = written(tmp_path / "arc.conf.d" / "jura.conf", "[arex/jura]\nnot an option\n")
    with pytest.raises(ConfigError, match=f"{bad}:2: 'not an option' is neither"):
        read_arc_conf(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf: no such file; .*/etc/arc\.conf"):
        read_arc_conf(tmp_path / "nowhere.conf")


def test_a_directory_and_a_pipe_are_refused_and_do_not_hold_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match=r"regular file|Is a directory"):
            read_arc_conf(path)


def test_a_binary_file_and_a_giant_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"arc\.conf:2: holds a zero byte"):
        parse_arc_conf(b"[a]\n\0\n", "arc.conf")
    with pytest.raises(ConfigError, match="larger than"):
        parse_arc_conf(b"#" * (MAX_BYTES + 1), "arc.conf")
    with pytest.raises(ConfigError, match=r"arc\.conf:2: longer than"):
        parse_arc_conf(b"[a]\nk = " + b"v" * 100_000, "arc.conf")


# References, defaults, inheritance


@pytest.mark.parametrize(
    "written",
    ["$VAR{other}", "$VAR{[a]other}", "$VAR{[ a ] other}", "$VAR{[b: c]there}", "$VAR{[b:c]back}", "$VAR{$VAR{which}}"],
)
def test_references_lead_to_other_values(written: str) -> None:
    text = f"[a]\nother = found\nwhich = other\nk = <{written}>\n[b:c]\nthere = found\nback = $VAR{{[a]other}}\n"
    assert first(text, "a", "k") == "<found>"


def test_a_reference_inside_its_block_stays_in_that_block() -> None:
    text = "[a]\nname = mine\nk = $VAR{[b]k}\n[b]\nname = theirs\nk = $VAR{name}\n"
    assert first(text, "a", "k") == "theirs"


def test_a_reference_to_a_default() -> None:
    assert first("[a]\nk = $VAR{[arex]controldir}/x\n", "a", "k") == "/var/spool/arc/jobstatus/x"


@pytest.mark.parametrize(
    "text",
    [
        "[a]\nk = $VAR{k}\n",
        "[a]\nk = $VAR{[a]k}\n",
        "[a]\nk = 1$VAR{[b]k}\n[b]\nk = $VAR{[c]k}\n[c]\nk = $VAR{[a]k}\n",
    ],
)
def test_a_circle_of_references_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^arc\.conf:\d: references in a circle: \[a\] k -> .*\[a\] k$"):
        first(text, "a", "k")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("$EXEC{hostname -f}", "never runs"),
        ("$EVAL{1 + 1}", "never runs"),
        ("$VAR{[b]runs}", "never runs"),
        ("$VAR{$EXEC{id}}", "never runs"),
        ("$VAR{nothing}", "not set"),
        ("$VAR{[c]nothing}", "not set"),
        ("$VAR{}", "a reference is"),
        ("$VAR{two words}", "a reference is"),
        ("$VAR{[a]k", "closing brace"),
        ("bell\a", "cannot be seen"),
        ("v" * 5000, "longer than"),
    ],
)
def test_a_value_that_is_not_told_needs_a_hand(written: str, reason: str) -> None:
    with pytest.raises(ByHand, match=reason):
        first(f"[a]\nx = {written}\n[b]\nruns = $EXEC{{id}}\n", "a", "x")


def test_nothing_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for command in (f"$EXEC{{touch {trace}}}", f"$EVAL{{open('{trace}', 'w')}}"):
        with pytest.raises(ByHand):
            first(f"[a]\nk = {command}\n", "a", "k")
    assert not trace.exists()


def test_references_that_unfold_without_end_stop_at_once() -> None:
    with bounded():
        doubling = (
            "[a]\n" + "".join(f"k{n} = $VAR{{k{n + 1}}}$VAR{{k{n + 1}}}\n" for n in range(30)) + "k30 = xxxxxxxx\n"
        )
        nested = "[a]\nk = " + "$VAR{" * 10_000 + "}" * 10_000 + "\n"
        many = "[a]\ne =\nk = " + "$VAR{e}" * 5_000 + "\n"
        chain = "[a]\n" + "".join(f"k{n} = $VAR{{k{n + 1}}}\n" for n in range(200)) + "k200 = x\n"
        for text, key in ((doubling, "k0"), (nested, "k"), (many, "k"), (chain, "k0")):
            with pytest.raises((ConfigError, ByHand), match=r"more references|longer than"):
                first(text, "a", key)


def test_credentials_and_proxy_come_from_common_unless_jura_has_its_own() -> None:
    text = "[common]\nx509_host_key = /c/key\nhttp_proxy = p:1\nhostname = h\n[arex/jura]\nx509_host_cert = /j/cert\n"
    asked = values(text)
    found = {
        key: asked.first("arex/jura", key) for key in ("x509_host_cert", "x509_host_key", "x509_cert_dir", "http_proxy")
    }
    assert {key: (one.text, one.origin) for key, one in found.items() if one} == {
        "x509_host_cert": ("/j/cert", "from [arex/jura] x509_host_cert"),
        "x509_host_key": ("/c/key", "from [common] x509_host_key"),
        "x509_cert_dir": ("/etc/grid-security/certificates", "ARC's default of [common] x509_cert_dir"),
        "http_proxy": ("p:1", "from [common] http_proxy"),
    }
    assert asked.first("arex/jura", "hostname") is None


# Whatever stands in it


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_with_a_line(content: bytes) -> None:
    try:
        conf = parse_arc_conf(content, "arc.conf")
    except ConfigError as error:
        problems = error.problems
    else:
        problems = ()
        assert all(block.name.strip() for block in conf.blocks.values())
    assert all(problem.startswith("arc.conf") and problem.isprintable() for problem in problems)


@given(st.text(st.sampled_from("$VARXECL{}[]: ak\n=#"), max_size=120))
def test_any_references_end(text: str) -> None:
    try:
        asked = values(f"[a]\nk = x\n{text}\n")
    except ConfigError:
        return
    for block in asked.conf.blocks.values():
        for option in block.options:
            try:
                found = asked.first(block.name, option.key)
            except (ByHand, ConfigError):
                continue
            assert found is not None
            assert len(found.text) <= 8192


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=40).filter(str.isprintable))
def test_any_printable_text_survives_as_yaml(text: str) -> None:
    assert yaml.safe_load(f"k: {scalar(text)}  # comment") == {"k": text}
    assert yaml.safe_load(f"k: {{a: {scalar(text)}, b: c}}") == {"k": {"a": text, "b": "c"}}
    assert yaml.safe_load(f"k: {flow([text, 'x'])}") == {"k": [text, "x"]}


@given(st.text(max_size=200))
def test_what_is_shown_is_one_short_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 800
