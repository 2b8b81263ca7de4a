"""`config from-arc --update`, targets that became comments, and sites of SGAS alone."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from publisher.cli import main
from publisher.config.from_arc import commented_targets, update_page
from publisher.model.errors import UsageError
from tests.support.arc_pages import NAMES, apel, loaded, page_of, sample, stopped

AFTER = stopped({"arex/jura/apel:egi": (1_791_000_000, 1_791_000_000)})


@pytest.mark.parametrize("name", NAMES)
def test_a_page_that_nobody_changed_becomes_the_new_one(name: str) -> None:
    page = sample(name)
    assert update_page(page.text, page).text == page.text
    other = apel("urbatchsize=7", takeover=AFTER)
    assert update_page(page.text, other) == (other.text, [])


def test_what_was_changed_stays_and_the_rest_is_new(tmp_path: Path) -> None:
    made = apel("apel_messages=urs")
    changed = made.text.replace("topic: gLite-APEL", "topic: another").replace(
        "\nrecords:", "\nmetrics:\n  textfile: /var/lib/node_exporter/publisher.prom  # ours\n\nrecords:"
    )
    assert changed.count("topic: another") == changed.count("# ours") == 1
    updated = update_page(changed, apel("apel_messages=urs\nurbatchsize=7", takeover=AFTER))
    settings = loaded(replace(made, text=updated.text), tmp_path)
    (target,) = settings.targets
    assert (target.batch_records, str(target.start)[:4]) == (7, "2026")
    assert "topic: another" in updated.text
    assert "# ours" in updated.text
    again = update_page(updated.text, apel("apel_messages=urs\nurbatchsize=7", takeover=AFTER))
    assert again.text == updated.text


def test_what_both_changed_stays_and_is_told() -> None:
    changed = apel("urbatchsize=7").text.replace("batch_records: 7", "batch_records: 9")
    updated = update_page(changed, apel("urbatchsize=8"))
    assert "batch_records: 9" in updated.text
    assert any("batch_records: 8" in line for line in updated.kept)


def test_a_line_that_was_taken_out_does_not_come_back() -> None:
    made = apel("urbatchsize=7").text
    line = next(line for line in made.splitlines() if "batch_records" in line)
    assert "batch_records" not in update_page(made.replace(f"{line}\n", ""), apel("urbatchsize=7")).text


def test_a_file_of_somebody_else_is_refused() -> None:
    with pytest.raises(UsageError, match="was not made by"):
        update_page("site: EXAMPLE-SITE\n", apel())


def test_the_command_writes_the_file_and_keeps_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf, file = tmp_path / "arc.conf", tmp_path / "publisher.yaml"
    text = "[common]\n[arex]\ncontroldir=/nonexistent\n[arex/jura]\n[arex/jura/apel:egi]\ntargeturl=https://msg.example.org\ngocdb_name=SITE\n"
    conf.write_text(text)
    words = ["--config", str(file), "config", "from-arc", str(conf)]
    assert main.run([*words, "--update"]) == 64
    missing = f"{file}: No such file or directory; `config from-arc` without --update prints a new one"
    assert missing in capsys.readouterr().err
    assert main.run(words) == 0
    file.write_text(capsys.readouterr().out.replace("topic: gLite-APEL", "topic: another"))
    file.chmod(0o640)
    before = file.read_text()
    conf.write_text(text + "urbatchsize=7\n")
    kept = file.with_name("publisher.yaml.old")
    kept.mkdir()
    (kept / file.name).mkdir()
    assert main.run([*words, "--update"]) == 64
    assert "; run it as a user who may write there, such as root" in capsys.readouterr().err
    (kept / file.name).rmdir()
    kept.rmdir()
    with file.open() as reader:  # nobody meets a file that is written in part
        assert main.run([*words, "--update"]) == 0
        assert reader.read() == before
    printed = capsys.readouterr().out
    assert "+    batch_records: 7" in printed
    assert "topic" not in printed
    assert "batch_records: 7" in file.read_text()
    assert "topic: another" in file.read_text()
    assert (file.stat().st_mode & 0o777, Path(f"{file}.old").read_text()) == (0o640, before)


def test_a_file_that_cannot_be_replaced_says_who_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory belongs to who runs this, and the file to another."""
    conf, file = tmp_path / "arc.conf", tmp_path / "publisher.yaml"
    page = "[common]\n[arex]\ncontroldir=/nonexistent\n[arex/jura]\n[arex/jura/apel:egi]\ntargeturl=https://msg.example.org\ngocdb_name=SITE\n"
    conf.write_text(page)
    words = ["--config", str(file), "config", "from-arc", str(conf)]
    assert main.run(words) == 0
    file.write_text(before := capsys.readouterr().out)
    conf.write_text(f"{page}urbatchsize=7\n")

    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refused)
    assert main.run([*words, "--update"]) == 64
    advice = f"{file} cannot be written: Operation not permitted; run it as a user who may write there, such as root"
    assert advice in capsys.readouterr().err
    assert file.read_text() == before


def test_targets_that_became_comments_are_named_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = sample("several_sites.conf")
    found = commented_targets(page.text)
    assert [name for name, _ in found] == [target.name for target in page.targets if target.obstacles]
    assert found
    loaded(page, tmp_path)
    main.run(["--config", str(tmp_path / "publisher.yaml"), "config", "check"])
    told = capsys.readouterr().err
    for name, block in found:
        assert f"target {name}, of [{block}], is commented out, so nothing is sent to it" in told
    path = tmp_path / "publisher.yaml"
    path.write_text(re.sub(r"^site: .*$", "site:", path.read_text(), flags=re.MULTILINE))
    main.run(["--config", str(path), "config", "check"])
    told = capsys.readouterr().err
    assert "site: missing" in told
    assert all(f"target {name}, of [{block}], is commented out" in told for name, block in found)


def test_a_site_of_sgas_alone_needs_no_name(tmp_path: Path) -> None:
    text = "[common]\n{}[arex]\ncontroldir=/srv\n[arex/jura]\n[arex/jura/sgas:neic]\ntargeturl=https://sgas.example.org:6143\n"
    for common, name in (("hostname=ce01.example.org\n", "ce01.example.org"), ("", "this-site")):
        page = page_of(text.format(common))
        assert page.missing == ()
        assert loaded(page, tmp_path).site == name
    assert page_of(text.format("") + "[arex/jura/apel:egi]\ntargeturl=https://msg.example.org\n").missing


@pytest.mark.parametrize("option", ["--update", "--look-for-lost"])
def test_an_arc_conf_that_publishes_no_more_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the targets would go out of the configuration that has just replaced them."""
    conf, file = tmp_path / "arc.conf", tmp_path / "publisher.yaml"
    blocks = "[arex/jura]\n[arex/jura/apel:egi]\ntargeturl=https://msg.example.org\ngocdb_name=SITE\n"
    conf.write_text(f"[common]\n[arex]\ncontroldir=/nonexistent\n{blocks}")
    words = ["--config", str(file), "config", "from-arc", str(conf)]
    assert main.run(words) == 0
    made = capsys.readouterr().out
    file.write_text(made)
    conf.write_text(conf.read_text().replace(blocks, ""))
    assert main.run([*words, option]) == 64
    assert "use a copy from before they were removed" in capsys.readouterr().err
    assert file.read_text() == made
