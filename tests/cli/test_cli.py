"""The command line itself: exit statuses, what stands on which stream, manners on a terminal, and words mistyped."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher import __version__
from publisher.cli.commands import COMMANDS as REGISTERED
from publisher.cli.commands import EXAMPLES, Command, Context, Group, status
from publisher.cli.parser import parser, usages, verbosity
from publisher.model.errors import UsageError
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.command_line import commands, plain_runs
from tests.support.forks import Child, publisher
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 6, START, END))
WINDOW = ("--from", "2026-10", "--to", "2026-10")
NEED_MORE = ("import ", "receiver delivered", "receiver deleted")  # files, and a ledger that was lost
COMMANDS = {
    **{path: words for path, words in plain_runs(JOBS[0].job_id).items() if not path.startswith(NEED_MORE)},
    "publish --dry-run": ("publish", "--dry-run"),
    "republish": ("republish", "--yes", *WINDOW),
    "sync": ("sync", "--target", "egi"),
    "sync --check": ("sync", "--check"),
    "quarantine release": ("quarantine", "release", "--all"),
    "quarantine drop": ("quarantine", "drop", "--all"),
    "source retire": ("source", "retire", "accounting.db"),
    "state copy": ("state", "copy", "--to", "copy.db"),
    "state backup": ("state", "backup", "backup.db"),
    "charge": ("charge", "--stored", *WINDOW),
}
LEVELS = {"debug", "info", "warning", "error", "critical"}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, monkeypatch: pytest.MonkeyPatch) -> SiteUnderTest:
    """Five jobs, one of which will be set aside."""
    monkeypatch.chdir(tmp_path)
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    with made.arex() as arex:
        arex.write_all(JOBS)
        arex.connection.execute("UPDATE AAR SET UsedWalltime = -1 WHERE JobID = ?", (JOBS[1].job_id,))
    return made


def run(*words: str) -> Run:
    """Run `publisher` as a program of its own, far from any terminal."""
    child = Child(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=PATIENCE_S)
    return Run(status=child.wait(), out=out, err=err)


def said(*words: str) -> str:
    """What is said of a wrong command line."""
    with pytest.raises(UsageError) as error:
        parser().parse_args(words)
    return str(error.value)


# What is typed


@pytest.mark.parametrize("words", [(), ("help",), ("--help",), ("-q",)])
@pytest.mark.slow
def test_without_a_command_the_help_is_printed(words: tuple[str, ...]) -> None:
    run_ = run(*words)
    assert (run_.status, run_.err) == (0, "")
    assert run_.out == run("--help").out
    assert run_.out.startswith("usage: publisher ")


def test_help_lists_every_command_in_its_group() -> None:
    commands_, _, questions = run("--help").out.partition("\ncommands:\n")[2].partition("\nquestions:\n")
    groups = re.split(r"^  (?=\S)", commands_, flags=re.MULTILINE)[1:]
    listed = {group.partition(":\n")[0]: re.findall(r"^    (\S+)  +\S", group, re.MULTILINE) for group in groups}
    assert list(listed) == [str(group) for group in Group]
    shown = [one for one in REGISTERED if not one.is_hidden]
    assert listed == {group: [one.name for one in shown if one.group is group] for group in Group}
    everything = {path.split()[0] for path in commands()}
    assert {name for names in listed.values() for name in names} == everything - {"complete"}
    assert set(re.findall(r"  publisher (\S+)", questions)) <= everything


@pytest.mark.parametrize("words", [("publish",), ("quarantine",), ("quarantine", "release"), ("config", "from-arc")])
def test_help_of_a_command_or_an_action(words: tuple[str, ...]) -> None:
    run_ = run("help", *words)
    assert (run_.status, run_.err) == (0, "")
    assert run_.out == run(*words, "--help").out
    assert run_.out.startswith(f"usage: publisher {' '.join(words)} ")


@pytest.mark.parametrize(
    ("words", "told"),
    [("publsh", "did you mean publish?"), ("quarantine relase", "did you mean release?"), ("status now", "'now'")],
)
def test_help_of_what_there_is_not(words: str, told: str) -> None:
    run_ = run("help", *words.split())
    assert (run_.status, run_.out) == (64, "")
    assert told in run_.err


def test_the_version() -> None:
    run_ = run("--version")
    assert (run_.status, run_.out, run_.err) == (0, f"publisher {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("publsh", "publish"),
        ("-q statsu", "status"),
        ("quarantine relase 1", "release"),
        ("config exmple", "example"),
        ("publish --tagret egi", "--target"),
        ("publish --tagret=egi", "--target"),
        ("quarantine release --jsn 1", "--json"),
        ("--confg /x status", "--config"),
        ("--log-format jsn status", "json"),
        ("republish --form 2026-03 --to 2026-03", "--from"),
    ],
)
def test_a_mistyped_word_is_told_with_what_was_meant(typed: str, meant: str) -> None:
    assert f"did you mean {meant}?" in said(*typed.split())


def test_a_typo_is_answered_with_the_nearest_command_first() -> None:
    first, *rest = run("publsh").err.splitlines()
    assert first == "publisher: publisher has no 'publsh': did you mean publish?"
    assert "quarantine" not in "".join(rest)
    first, *rest = run("sed").err.splitlines()
    assert first == "publisher: publisher has no 'sed': `publisher --help` lists what there is"
    assert "`publisher republish --dry-run` plans a window of time" in run("plan", "--from", "2026-09").err
    first, *_ = run("metrics").err.splitlines()
    assert first.endswith("each round writes them, where `metrics.textfile` is set in publisher.yaml")
    assert "quarantine" not in "".join(rest)


@pytest.mark.slow
def test_each_help_ends_with_examples_that_can_be_typed() -> None:
    for name, lines in EXAMPLES.items():
        shown = run(*name.split(), "--help").out
        for line in lines:
            assert f"  publisher {line}\n" in shown
            assert line.startswith(name)
            parser().parse_args(line.split())
    hidden = {one.name for one in REGISTERED if one.is_hidden}
    assert set(usages(parser())) - hidden == set(EXAMPLES)


def test_complete_is_for_shells() -> None:
    assert " complete " not in run("--help").out
    assert run("complete", "--help").status == 0


def test_the_configuration_may_be_named_in_short(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    for words in (("-c", str(missing), "status"), ("status", "-c", str(missing))):
        assert str(missing) in run(*words).err


@pytest.mark.parametrize("options", ["-v", "-vv", "-q", "--quiet", "--log-format json", "--config other.yaml"])
@pytest.mark.parametrize(
    "typed", ["publish {} --dry-run {}", "{} status {}", "quarantine {} release {} 1", "job info J {}"]
)
def test_an_option_of_every_command_stands_before_it_or_after_it(typed: str, options: str) -> None:
    """And in every place means the same."""
    expected = parser().parse_args(f"{options} {typed.replace('{}', '')}".split())
    for place in range(typed.count("{}")):
        pieces = [options if at == place else "" for at in range(typed.count("{}"))]
        found = parser().parse_args(typed.format(*pieces).split())
        assert verbosity(found) == verbosity(expected)
        for name in ("config", "quiet", "log_format", "command"):
            assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("typed", ["-v status -v", "-v job -v info J", "job -vv info J", "job info -v J -v"])
def test_each_verbose_counts_wherever_it_stands(typed: str) -> None:
    assert verbosity(parser().parse_args(typed.split())) == 2


def test_what_is_said_last_of_a_configuration_counts(site: SiteUnderTest) -> None:
    site.save()
    assert run("--config", "/absent.yaml", "status", "--config", str(site.path)).status == 0
    assert run("--config", str(site.path), "status", "--config", "/absent.yaml").status == 78


def test_a_log_format_after_the_command_is_that_of_its_log(site: SiteUnderTest) -> None:
    done = site.run("status", "--target", "nordic", "--log-format", "json")
    (line,) = [json.loads(line) for line in done.err.splitlines()]
    assert (done.status, line["level"]) == (64, "error")


@pytest.mark.parametrize("one", REGISTERED, ids=lambda one: one.name)
def test_every_command_says_where_the_options_of_all_are_explained(one: Command) -> None:
    below = parser().below()[one.name]
    below.load()
    assert "Options common to all commands: publisher --help" in below.format_help()


@pytest.mark.parametrize(
    "typed", ["publish --xyzzy", "publish 7", "xyzzy", "xyzzy --json", "publish --limit 0", "quarantine list 3"]
)
def test_what_resembles_nothing_is_refused_without_a_guess(typed: str) -> None:
    told = said(*typed.split())
    assert "did you mean" not in told
    assert "usage: publisher" in told


def test_abbreviations_are_not_taken() -> None:
    """`--dry` would come to mean something else with a new option, in a script that nobody looks at."""
    assert "did you mean --dry-run?" in said("publish", "--dry")


def test_a_wrong_command_line_ends_with_64() -> None:
    run_ = run("publish", "--tagret", "egi")
    assert (run_.status, run_.out) == (64, "")
    assert all(line.startswith("publisher: ") for line in run_.err.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ("release", "--json", "1"),
        ("release", "1", "--json"),
        ("drop", "--target", "egi", "1", "--json"),
        ("release", "--target", "egi", "--json", "1", JOBS[1].job_id),
        ("drop", "--json", "--all"),
    ],
)
def test_options_stand_before_or_after_the_jobs(site: SiteUnderTest, words: tuple[str, ...]) -> None:
    assert site.publish().status == 65
    done = site.run("quarantine", *words)
    assert done.status == 0, done.err
    assert done.json["changed"] == 1


@pytest.mark.parametrize("words", [("release",), ("drop", "--json"), ("release", "--all", "1")])
def test_release_and_drop_take_jobs_or_all(site: SiteUnderTest, words: tuple[str, ...]) -> None:
    done = site.run("quarantine", *words)
    assert (done.status, done.out) == (64, "")
    assert "--all" in done.err


# Where the configuration is


def test_a_missing_configuration_says_where_it_looked(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.yaml"
    done = run("--config", str(path), "status")
    assert (done.status, done.out) == (78, "")
    assert str(path) in done.err
    assert "Traceback" not in done.err


# What stands on which stream


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_all_that_stands_on_standard_output(
    site: SiteUnderTest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "source retire":
        site.arex(1).close()
    site.publish()
    if name == "source retire":
        site.database(1).unlink()
        monkeypatch.chdir(site.database(1).parent)
    done = site.run("-v", *COMMANDS[name], "--json")
    assert done.status in (0, 65) or name == "doctor", done.err
    assert isinstance(done.json, dict)
    assert done.out.startswith("{")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_log_in_json_is_json_line_by_line(site: SiteUnderTest, name: str) -> None:
    done = site.run("-v", "--log-format", "json", *COMMANDS[name])
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert {line["level"] for line in lines} <= LEVELS
    assert lines or name not in ("publish", "republish")


def test_an_error_is_a_json_line_too(site: SiteUnderTest) -> None:
    done = site.run("--log-format", "json", "status", "--target", "nordic")
    (line,) = [json.loads(line) for line in done.err.splitlines()]
    assert (done.status, line["level"]) == (64, "error")
    assert "nordic" in line["message"]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_tables_on_standard_error_and_no_colours_in_pipes(
    site: SiteUnderTest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    done = site.run("-q", *COMMANDS[name])
    assert "\x1b" not in done.out + done.err
    assert "\r" not in done.err


@pytest.mark.parametrize(("fault", "status", "level"), [(None, 77, "ERROR"), (Fault.status(503), 75, "WARNING")])
def test_trouble_with_a_target_is_logged_when_output_is_dropped(
    site: SiteUnderTest, fault: Fault | None, status: int, level: str
) -> None:
    """`publisher -q publish >/dev/null` in cron must not fail in silence."""
    site.config["targets"]["egi"]["attempts"] = 1
    with site.arex() as arex:
        arex.connection.execute("DELETE FROM AAR WHERE JobID = ?", (JOBS[1].job_id,))
    if fault is None:
        site.config["credentials"]["key"] = str(site.folder / "absent.pem")
    else:
        site.fake.faults.push(fault)
    done = site.run("-q", "publish")
    assert done.status == status, done.err
    lines = [line for line in done.err.splitlines() if f"{level} target egi: " in line]
    assert lines
    assert "Traceback" not in done.err


def test_a_job_in_totals_has_their_message_in_its_trace(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    site.publish()
    (sent,) = site.run("trace", "--json", JOBS[0].job_id).json["deliveries"]
    (message,) = site.fake.messages()
    assert (sent["state"], sent["format"], sent["local_id"]) == ("sent", "apel-summary-0.4", JOBS[0].local_job_id)
    assert sent["message_id"] == message.attributes["empaid"]


# Bugs


@pytest.mark.parametrize(("options", "shown"), [((), False), (("-v",), False), (("-vv",), True)])
def test_a_bug_shows_its_traceback_only_when_asked_for(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], shown: bool
) -> None:
    def broken(arguments: argparse.Namespace, context: Context) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(status, "run", broken)
    done = site.run(*options, "status")
    assert (done.status, done.out) == (70, "")
    assert ("Traceback" in done.err) is shown
    assert "ZeroDivisionError: planted" in done.err
    assert "-vv" in done.err


# Output that goes nowhere


@pytest.mark.parametrize("name", ["status", "stats", "publish"])
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_a_full_disk_under_the_output_is_no_bug(site: SiteUnderTest, name: str, both: bool) -> None:
    """As of `publisher publish >>log 2>&1`. With no place left to say so, the exit status still does."""
    site.save()
    with Path("/dev/full").open("w") as full:
        stderr = full if both else subprocess.PIPE
        done = Child("--config", site.path, name, stdout=full, stderr=stderr)
        _, err = done.communicate(timeout=PATIENCE_S)
    assert done.returncode == 74
    if not both:
        assert "cannot print the result: No space left on device" in err
        assert "bug" not in err
    if name == "publish":
        assert site.publish().json["targets"]["egi"]["outcome"] == "nothing", "what was done is not undone"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_output_that_is_closed_is_no_bug(site: SiteUnderTest, closed: str) -> None:
    """As some cron daemons and init scripts start programs."""
    site.save()
    command = f'exec "$@" {closed}'
    words = [sys.executable, "-c", "from publisher.cli.main import main; main()", "--config", str(site.path), "publish"]
    done = subprocess.run(["sh", "-c", command, "sh", *words], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 65, done.stderr  # one job is set aside
    assert b"bug" not in done.stderr
    assert len(site.fake.messages()) == 1


# ^C


@pytest.mark.parametrize(
    ("name", "told"), [("publish", "the next run continues"), ("republish", "the same command continues from here")]
)
def test_control_c_says_where_it_goes_on(site: SiteUnderTest, name: str, told: str) -> None:
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    child = publisher(site, *COMMANDS[name])
    try:
        site.fake.wait_for_messages(1)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, err
    assert f"interrupted; nothing is lost, {told}" in err
    assert "Traceback" not in err


# Terminals


def on_a_terminal(site: SiteUnderTest, *words: str, answer: bytes = b"", **environment: str) -> tuple[int, str]:
    """Run a command on a pseudo-terminal: its status and all that it wrote there."""
    site.save()
    terminal, inside = os.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    child = Child(
        *("--config", site.path, *words),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=inherited | {"TERM": "xterm-256color", "COLUMNS": "120"} | environment,
    )
    os.close(inside)
    try:
        os.write(terminal, answer)
        written = b"".join(_read(terminal))
        return child.wait(timeout=PATIENCE_S), site.bare(written.decode())
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def _read(terminal: int) -> Iterator[bytes]:
    """Until the last writer has left, which Linux tells as an error."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            return
        if not piece:
            return
        yield piece


COLOUR = re.compile(r"\x1b\[[\d;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])\b[\d;]*m")


def test_a_terminal_gets_a_drawn_table_and_no_colours_where_none_are_wanted(site: SiteUnderTest) -> None:
    status, written = on_a_terminal(site, "status", NO_COLOR="1")
    assert status == 0
    assert "━" in written or "─" in written
    assert not COLOUR.search(written)


def test_doctor_shows_on_a_terminal_what_it_waits_for(site: SiteUnderTest) -> None:
    _, written = on_a_terminal(site, "doctor")
    assert re.search(r"\rlooking at [^\r]*the services", written)
    assert "looking at" not in written.rpartition("\r\x1b[K")[2], "and leaves the terminal as it was"
    assert "looking at" not in on_a_terminal(site, "-q", "doctor")[1]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_terminal_is_too_narrow_for_a_whole_value(site: SiteUnderTest, width: int) -> None:
    """A time or the command that mends a difference is of no use when its end is missing."""
    assert site.publish().status == 65
    wanted = re.findall(r"\S+Z\b", site.run("status").out)
    assert len(wanted) == 3
    _, written = on_a_terminal(site, "status", COLUMNS=str(width))
    assert all(time in written for time in wanted)
    assert "…" not in written
    drawn = sum(line.startswith("┏") for line in written.splitlines())
    assert drawn == {40: 0, 80: 1, 120: 1, 200: 2}[width]  # that of the sources is the narrower one
    if width >= 80:
        lines = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("answer", "sent"), [(b"n\n", 0), (b"\n", 0), (b"y\n", 1)])
def test_republish_asks_on_a_terminal(site: SiteUnderTest, answer: bytes, sent: int) -> None:
    status, written = on_a_terminal(site, "republish", *WINDOW, answer=answer)
    assert "2026-10-01 to 2026-10-31" in written
    assert "Send this?" in written
    assert len(site.fake.messages("accounting", "gLite-APEL")) == sent
    assert status in (0, 65)


def test_a_round_that_sets_many_aside_fits_a_screen(site: SiteUnderTest) -> None:
    """Three jobs are named, and how to list the others; on a pipe more are."""
    with site.arex() as arex:
        arex.write_all(list(generate(2, 200, START, END)))
        arex.connection.execute("UPDATE AAR SET UsedWalltime = -1")
    status, written = on_a_terminal(site, "publish")
    lines = re.sub(r"[^\n]*\r(?!\n)", "", written).splitlines()
    assert status == 65
    assert len(lines) <= 24, written
    assert sum(" set aside: " in line for line in lines) == 3
    assert any("`publisher quarantine list` shows why" in line for line in lines)
    assert site.run("quarantine", "list").out.count("\n") > 200


def test_sync_check_of_many_differences_fits_a_screen(site: SiteUnderTest) -> None:
    """The months that differ, the rows of most jobs, and what prints all."""
    months = [datetime(2025, month, 1, tzinfo=UTC) for month in range(1, 13)]
    with site.arex() as arex:
        for number, month in enumerate(months, 1):
            arex.write_all(list(generate(100 + number, 10 * number, month, month + timedelta(days=27))))
    check = ("sync", "--check", "--months", "all")
    status, written = on_a_terminal(site, *check, COLUMNS=str(100 + len(f"-c {site.path} ")))
    lines = re.sub(r"[^\n]*\r(?!\n)", "", written).splitlines()
    assert status == 65
    assert len(lines) <= 24, written
    rows = [row for row in site.run(*check, "--json").json["rows"] if row["repairs"]]
    named = [line for line in lines if "publisher publish --force" in line]
    most = sorted((row["pending"] for row in rows), reverse=True)[: len(named)]
    assert [int(re.findall(r"(\d+) not delivered", line)[0]) for line in named] == most
    assert f"{len(rows) - len(named)} more rows differ; --as csv prints all {len(rows)} rows" in lines
    assert site.run(*check, "--as", "csv").out.count("\n") == len(rows) + 1
    assert site.run(*check).out.count("not delivered") == len(rows), "nothing is folded on a pipe"
