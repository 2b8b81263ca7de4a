"""Messages as files: whole or not at all, once for each id, and so that ssmsend or a person can read them."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.formats import receiver_of
from publisher.ledger.sql.parts.outbox import SqlOutbox
from publisher.model.errors import ConfigError, CredentialError
from publisher.model.message import Message, MessageId, message_of
from publisher.transports.base import Credentials, Environment, Transport, Verdict
from publisher.transports.spool import Layout, Options
from publisher.transports.spool.transport import create
from tests.arex_databases import generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI, Credential
from tests.support.sites import SiteUnderTest, told, truth
from tests.support.strict_apel import read_car
from tests.support.strict_sgas import read_ur

NOW = datetime.now(UTC).replace(microsecond=0)
MADE_AT = datetime(2026, 3, 5, 14, 0, 7, tzinfo=UTC)
SYNC = b"APEL-sync-message: v0.1\nSite: EXAMPLE-SITE\nSubmitHost: ce01\nNumberOfJobs: 7\nMonth: 3\nYear: 2026\n%%\n"


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


def spool(path: Path, host: Credential | None = None, **options: Any) -> Transport:
    missing = Path("/nonexistent")
    return create(
        Options(path=path, **({} if host else {"sign": False}) | options),
        Credentials(
            certificate=host.certificate if host else missing,
            key=host.key if host else missing,
            ca=Path("/nonexistent"),
        ),
        Environment(
            environment={},
            now=lambda: NOW,
            clock=lambda: 0.0,
            chance=lambda: 0.0,
            wait=lambda _: False,
            signed=lambda form: receiver_of(form).signed,
        ),
    )


def message(payload: bytes = SYNC, *, made_at: datetime = MADE_AT, name: str = "", form: str = "car") -> Message:
    made = message_of(payload, "hand_over", form, 1, made_at)
    return made._replace(id=MessageId(name)) if name else made


def everything(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def taken_by_ssmsend_from_a_directory(path: Path) -> list[tuple[str, str]]:
    """Id and text of all messages, as SSM 4.0.0 reads a plain directory: everything in it, in order of its mtime."""
    names = sorted(os.listdir(path), key=lambda name: os.path.getmtime(path / name))
    return [(name, (path / name).read_text()) for name in names]


def taken_by_ssmsend_from_a_queue(path: Path) -> Iterator[tuple[str, bytes]]:
    """The same from a dirq queue, locked by a hard link, removed as python-dirq's QueueSimple does."""
    for directory in sorted(name for name in os.listdir(path) if re.fullmatch(r"[0-9a-f]{8}", name)):
        for name in sorted(name for name in os.listdir(path / directory) if re.fullmatch(r"[0-9a-f]{14}", name)):
            element = path / directory / name
            os.link(element, f"{element}.lck")
            content = Path(f"{element}.lck").read_bytes()
            element.unlink()
            Path(f"{element}.lck").unlink()
            yield f"{directory}/{name}", content


def test_a_flat_directory_holds_signed_messages_and_nothing_else(tmp_path: Path, pki: PKI, host: Credential) -> None:
    path = tmp_path / "outgoing"
    transport = spool(path, host)
    receipt = transport.deliver(message(), NOW)
    assert receipt.verdict is Verdict.DELIVERED
    assert receipt.bytes_sent == (path / receipt.remote_id).stat().st_size
    ((name, text),) = taken_by_ssmsend_from_a_directory(path)
    assert name == receipt.remote_id == message().id.replace("/", "-")
    receiver = Receiver.create(pki.ca_directory, allowed=[host.subject])
    assert receiver.open(text).text.encode() == SYNC


def test_unsigned_messages_are_what_ssmsend_signs_and_need_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "outgoing"
    assert spool(path, sign=False).deliver(message(), NOW).verdict is Verdict.DELIVERED
    ((_, text),) = taken_by_ssmsend_from_a_directory(path)
    assert text.encode() == SYNC


def test_a_queue_is_one_of_python_dirq(tmp_path: Path) -> None:
    path = tmp_path / "outgoing"
    transport = spool(path, layout=Layout.DIRQ, sign=False)
    payloads = [b"%b%d\n" % (SYNC, number) for number in range(3)]
    names = [
        transport.deliver(message(payload, made_at=MADE_AT + timedelta(seconds=40 * number)), NOW).remote_id
        for number, payload in enumerate(payloads)
    ]
    second = int(MADE_AT.timestamp())
    assert names[0].startswith(f"{second - second % 60:08x}/{second:08x}")
    assert len({name[:8] for name in names}) == 2, "a directory a minute"
    assert list(taken_by_ssmsend_from_a_queue(path)) == list(zip(names, payloads, strict=True))
    assert everything(path) == []


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("sign", [True, False])
def test_a_message_that_comes_again_is_one_file(tmp_path: Path, host: Credential, layout: Layout, sign: bool) -> None:
    path = tmp_path / "outgoing"
    transport = spool(path, host, layout=layout, sign=sign)
    first = transport.deliver(message(), NOW)
    before = (path / first.remote_id).stat()
    again = spool(path, host, layout=layout, sign=sign).deliver(message(), NOW)
    assert again == first
    assert everything(path) == [first.remote_id]
    assert (path / first.remote_id).stat().st_ino == before.st_ino, "whoever reads it is not disturbed"


def test_messages_whose_names_would_meet_in_a_queue_are_two_files(tmp_path: Path) -> None:
    """A queue's names hold 24 bits of the id."""
    path = tmp_path / "outgoing"
    transport = spool(path, layout=Layout.DIRQ, sign=False)
    names = [transport.deliver(message(b"%d\n" % number, name="same-id"), NOW).remote_id for number in range(16)]
    assert len(set(names)) == 16
    assert {content for _, content in taken_by_ssmsend_from_a_queue(path)} == {b"%d\n" % number for number in range(16)}


def test_a_half_written_file_of_a_crash_is_never_a_message(tmp_path: Path) -> None:
    path = tmp_path / "outgoing"
    transport = spool(path, sign=False)
    transport.deliver(message(), NOW)
    (staging,) = (found for found in tmp_path.iterdir() if found != path)
    (staging / "hand_over.tmp").write_bytes(b"half a mess")
    assert len(taken_by_ssmsend_from_a_directory(path)) == 1
    other = message(SYNC + b"2\n")
    assert transport.deliver(other, NOW).verdict is Verdict.DELIVERED
    assert [text.encode() for _, text in taken_by_ssmsend_from_a_directory(path)] == [SYNC, other.payload]
    assert everything(staging) == []


def test_a_file_that_somebody_damaged_is_written_again(tmp_path: Path) -> None:
    transport = spool(tmp_path / "outgoing", sign=False)
    name = transport.deliver(message(), NOW).remote_id
    (tmp_path / "outgoing" / name).write_bytes(b"")
    assert transport.deliver(message(), NOW).remote_id == name
    assert (tmp_path / "outgoing" / name).read_bytes() == SYNC


@pytest.mark.parametrize("layout", Layout)
def test_files_are_closed_to_others(tmp_path: Path, layout: Layout) -> None:
    path = tmp_path / "outgoing"
    name = spool(path, layout=layout).deliver(message(), NOW).remote_id
    assert (path / name).stat().st_mode & 0o777 == 0o600
    assert {directory.stat().st_mode & 0o777 for directory in (path, (path / name).parent)} == {0o700}


def test_ids_lead_nowhere_else(tmp_path: Path) -> None:
    transport = spool(tmp_path / "outgoing")
    for name in ("../../etc/passwd", "..", ".", "/etc/passwd", "-rf"):
        receipt = transport.deliver(message(name=name), NOW)
        assert (tmp_path / "outgoing" / receipt.remote_id).parent == tmp_path / "outgoing"
    assert len(everything(tmp_path / "outgoing")) == 5


def test_usage_records_stay_as_they_are(tmp_path: Path, host: Credential) -> None:
    payload = '<UsageRecords name="Åsa"/>\n'.encode()
    name = spool(tmp_path / "outgoing", host).deliver(message(payload, form="ogf-ur"), NOW).remote_id
    assert (tmp_path / "outgoing" / name).read_bytes() == payload


@pytest.mark.parametrize("sign", [True, False])
def test_what_would_stop_apel_s_receiver_is_not_written(tmp_path: Path, host: Credential, sign: bool) -> None:
    receipt = spool(tmp_path / "outgoing", host, sign=sign).deliver(message("é\n".encode()), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.REFUSED, 65)
    assert not (tmp_path / "outgoing").exists()


@pytest.mark.parametrize("sign", [True, False])
def test_the_largest_payload_is_written_and_a_larger_one_is_not(tmp_path: Path, host: Credential, sign: bool) -> None:
    transport = spool(tmp_path / "outgoing", host, sign=sign, batch_bytes=20_000)
    limit = transport.payload_limit()
    largest = (b"x" * 63 + b"\n") * (limit // 64)
    receipt = transport.deliver(message(largest), NOW)
    assert receipt.verdict is Verdict.DELIVERED
    assert receipt.bytes_sent * 4 / 3 <= 20_000
    assert transport.deliver(message(b"x" * limit + b"\n"), NOW).verdict is Verdict.TOO_LARGE
    assert len(everything(tmp_path / "outgoing")) == 1


def test_a_missing_directory_above_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "not mounted" / "outgoing"
    receipt = spool(path).deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert str(path) in receipt.reason
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "outgoing").write_text("")
    receipt = spool(tmp_path / "outgoing").deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)


@pytest.mark.parametrize("layout", Layout)
def test_a_directory_that_will_be_made_is_no_trouble(tmp_path: Path, layout: Layout) -> None:
    (step,) = spool(tmp_path / "outgoing", layout=layout).preflight()
    assert step.exit_status == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize(("layout", "at"), [(Layout.FLAT, "outgoing.new"), (Layout.DIRQ, "queue/.new")])
@pytest.mark.parametrize("planted", ["link", "directory"])
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o775), (0, 0o1775), (65534, 0o755), (65534, 0o700)])
def test_what_another_user_has_put_in_the_way_is_not_followed(
    tmp_path: Path, layout: Layout, at: str, planted: str, owner: int, mode: int
) -> None:
    """Whether others may write beside the directory, or own where it is."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    spool_at = tmp_path / "spool"
    spool_at.mkdir()
    root, way = spool_at / at.partition("/")[0].removesuffix(".new"), spool_at / at
    way.parent.mkdir(exist_ok=True)
    if planted == "link":
        way.symlink_to(elsewhere)
    else:
        way.mkdir()
    os.chown(way, 65534, 65534, follow_symlinks=False)
    os.chown(way.parent, owner, owner)
    way.parent.chmod(mode)
    receipt = spool(root, layout=layout).deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert "of another user" in receipt.reason
    assert everything(elsewhere) == []
    (step,) = spool(root, layout=layout).preflight()
    assert step.exit_status == 74
    assert "of another user" in step.answer
    os.chown(way.parent, 0, 0)
    way.parent.chmod(0o755)
    os.chown(way, 0, 0, follow_symlinks=False)
    assert spool(root, layout=layout).deliver(message(), NOW).verdict is Verdict.DELIVERED


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
@pytest.mark.parametrize("name", ["outgoing", "outgoing.new"])
def test_no_message_is_put_where_everybody_may_write(tmp_path: Path, name: str, mode: int) -> None:
    open_to_all = tmp_path / name
    open_to_all.mkdir()
    open_to_all.chmod(mode)
    receipt = spool(tmp_path / "outgoing").deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert "everybody may write there" in receipt.reason
    assert everything(open_to_all) == []
    (step,) = spool(tmp_path / "outgoing").preflight()
    assert step.exit_status == 74
    assert "everybody may write there" in step.answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("planted", ["a link in the way", "the file as a link", "a half file as a link"])
def test_a_link_does_not_lead_a_message_elsewhere(tmp_path: Path, planted: str) -> None:
    precious, way = tmp_path / "precious", tmp_path / "user" / "outgoing"
    precious.mkdir()
    (precious / "file").write_bytes(SYNC)
    way.parent.mkdir()
    made = message()
    if planted == "a link in the way":
        way.symlink_to(precious)
        os.chown(way, 65534, 65534, follow_symlinks=False)
        os.chown(way.parent, 65534, 65534)
    else:
        for folder in (way, way.with_name("outgoing.new")):
            folder.mkdir()
        name = re.sub(r"[^A-Za-z0-9_-]", "-", made.id)
        place = way / name if planted == "the file as a link" else way.with_name("outgoing.new") / f"{made.target}.tmp"
        place.symlink_to(precious / "file")
        os.chown(place, 65534, 65534, follow_symlinks=False)
    receipt = spool(way).deliver(made, NOW)
    assert everything(precious) == ["file"]
    assert (precious / "file").read_bytes() == SYNC
    if planted == "a link in the way":
        assert "of another user" in receipt.reason
    else:
        assert receipt.verdict is Verdict.DELIVERED
        assert not (way / receipt.remote_id).is_symlink()


@pytest.mark.parametrize("layout", Layout)
def test_a_full_disk_leaves_no_message(tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    transport = spool(tmp_path / "outgoing", layout=layout)
    transport.deliver(message(), NOW)
    taken = everything(tmp_path / "outgoing")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        receipt = transport.deliver(message(SYNC + b"2\n"), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert "No space left" in receipt.reason
    assert [name for name in everything(tmp_path / "outgoing") if not name.startswith(".new/")] == taken
    assert transport.deliver(message(SYNC + b"2\n"), NOW).verdict is Verdict.DELIVERED


def test_a_mount_point_is_no_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made beside it cannot be moved into it."""

    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    transport = spool(tmp_path / "outgoing")
    with monkeypatch.context() as patch:
        for name in ("link", "rename", "replace"):
            patch.setattr(os, name, elsewhere)
        receipt = transport.deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert "must be on one file system: write a directory below it as `path`" in receipt.reason
    assert transport.preflight()[0].exit_status == 0
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "outgoing")
    (step,) = transport.preflight()
    assert (step.exit_status, "must be on one file system" in step.answer) == (74, True)


def test_a_closed_directory_is_told(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write anywhere")
    path = tmp_path / "outgoing"
    path.mkdir(mode=0o500)
    receipt = spool(path, layout=Layout.DIRQ).deliver(message(), NOW)
    assert (receipt.verdict, receipt.exit_status) == (Verdict.RETRY_LATER, 74)
    assert "Permission denied" in receipt.reason


def test_an_ended_certificate_writes_nothing(tmp_path: Path, host: Credential) -> None:
    with pytest.raises(CredentialError, match="expired"):
        spool(tmp_path / "outgoing", host).deliver(message(), NOW + timedelta(days=10_000))
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_signs_warns_unless_it_is_meant(tmp_path: Path, host: Credential) -> None:
    def warnings(**options: Any) -> list[str]:
        return spool(tmp_path, host, **options).warnings(NOW)

    assert "sign: false" in warnings(layout=Layout.DIRQ)[-1]
    for other in (warnings(layout=Layout.DIRQ, sign=True), warnings(layout=Layout.DIRQ, sign=False), warnings()):
        assert not any("sign: false" in warning for warning in other)


def test_a_certificate_that_ends_soon_is_told(tmp_path: Path, pki: PKI) -> None:
    short = pki.host("short.example.org", days=10)
    assert any("expires in" in warning for warning in spool(tmp_path, short).warnings(NOW))
    assert spool(tmp_path, sign=False).warnings(NOW) == []


def test_whether_files_can_be_put_there_is_asked_without_making_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps = {
        path: spool(tmp_path / path).preflight()[0].exit_status for path in ("outgoing", "missing/outgoing", "file")
    }
    assert steps == {"outgoing": 0, "missing/outgoing": 74, "file": 74}
    assert os.listdir(tmp_path) == ["file"]


def test_a_size_that_cannot_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_bytes"):
        spool(tmp_path, batch_bytes=1)


# Through the command line


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"] = {
        "hand_over": {"type": "spool", "path": "outgoing", "format": "car", "start": "all", "batch_records": 40}
    }
    return made


START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def fill(site: SiteUnderTest, count: int = 100, seed: int = 1) -> list[Any]:
    batch = list(generate(seed, count, START, END))
    site.fill(*batch)
    return batch


def test_every_job_is_in_one_signed_file(site: SiteUnderTest) -> None:
    batch = fill(site)
    run = site.publish()
    assert run.status == 0, run.err
    assert run.json["targets"]["hand_over"]["records"] == 100
    receiver = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject])
    texts = [text for _, text in taken_by_ssmsend_from_a_directory(site.folder / "outgoing")]
    rows = [row for text in texts for row in read_car(receiver.open(text).text.encode(), datetime.now(UTC))]
    assert Counter(map(told, rows)) == Counter(map(truth, batch))
    assert site.publish().json["targets"]["hand_over"]["outcome"] == "nothing"
    traced = site.run("trace", "--json", batch[0].job_id).json["deliveries"]
    assert (site.folder / "outgoing" / traced[0]["remote_id"]).exists()


def test_ssmsend_s_queue_brings_every_job_to_apel(site: SiteUnderTest) -> None:
    site.config["targets"]["hand_over"] |= {"layout": "dirq", "sign": False}
    site.config["credentials"] |= {"certificate": "/nonexistent", "key": "/nonexistent"}
    batch = fill(site)
    run = site.publish()
    assert run.status == 0, run.err
    contents = [content for _, content in taken_by_ssmsend_from_a_queue(site.folder / "outgoing")]
    rows = [row for content in contents for row in read_car(content, datetime.now(UTC))]
    assert Counter(map(told, rows)) == Counter(map(truth, batch))


def test_usage_records_can_be_looked_at(site: SiteUnderTest) -> None:
    site.config["targets"]["hand_over"]["format"] = "ogf-ur"
    fill(site, 5)
    assert site.publish().status == 0
    ((_, text),) = taken_by_ssmsend_from_a_directory(site.folder / "outgoing")
    assert len(read_ur(text.encode())) == 5


def test_a_directory_that_cannot_be_made_is_tried_again_next_time(site: SiteUnderTest) -> None:
    site.config["targets"]["hand_over"]["path"] = "mount/outgoing"
    fill(site, 5)
    run = site.publish()
    assert (run.status, run.json["targets"]["hand_over"]["outcome"]) == (74, "deferred")
    assert site.run("status", "--json").json["targets"]["hand_over"]["delivered"] == 0
    (site.folder / "mount").mkdir()
    assert site.publish().json["targets"]["hand_over"]["records"] == 5
    assert len(taken_by_ssmsend_from_a_directory(site.folder / "mount" / "outgoing")) == 1


def test_a_rehearsal_writes_no_file(site: SiteUnderTest) -> None:
    fill(site, 5)
    assert site.publish("--dry-run").json["targets"]["hand_over"]["records"] == 5
    assert not (site.folder / "outgoing").exists()


def test_two_formats_into_one_directory_are_refused(site: SiteUnderTest) -> None:
    site.config["targets"]["other"] = site.config["targets"]["hand_over"] | {"format": "apel-summary-0.2"}
    run = site.run("config", "check")
    assert run.status == 78
    assert "directory" in run.err


def test_a_record_that_was_settled_by_nobody_is_written_once(
    site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the file and its receipt."""
    fill(site, 5)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqlOutbox, "sent", crash)
        assert site.publish().status == 130
    assert len(everything(site.folder / "outgoing")) == 1
    assert site.publish().json["targets"]["hand_over"]["records"] == 5
    assert len(everything(site.folder / "outgoing")) == 1
