"""Delivery to SGAS, against the stand-in over mutual TLS: every answer and every fault of both generations."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from publisher.model.errors import ConfigError, CredentialError
from publisher.model.message import Message, message_of
from publisher.transports import sgas, transport_plugin
from publisher.transports.base import BackgroundTask, Credentials, Receipt, Verdict
from publisher.transports.credentials.host_certificate import in_domain, subject_names
from publisher.transports.sgas.transport import SMALLEST_LIMIT, SgasTransport, create
from tests.fake_sgas import CONNECT, Act, FakeSGAS, Fault, bad_gateway, gateway_timeout, unavailable
from tests.fake_sgas.authz import nginx_dn
from tests.fake_sgas.documents import document, global_id, numbered, record, record_id
from tests.fake_sgas.failures import Generation, Twisted, nginx_page
from tests.support.daemons import until
from tests.support.patience import FOR_EVER_S
from tests.support.pki import PKI, Credential, parse_slash_dn
from tests.support.ports import reserved_port
from tests.transports.contract import PreflightContract, TransportContract, TransportWorld, well_formed

pytestmark = pytest.mark.some(2, of="generation")

NOW = datetime.now(UTC)


class SgasWorld(TransportWorld):
    """The stand-in, a host that may insert, and a transport whose waits take no time."""

    def __init__(self, fake: FakeSGAS, pki: PKI, host: Credential, **options: Any) -> None:
        super().__init__(NOW)
        self.fake, self.pki, self.host = fake, pki, host
        fake.allow(host)
        self._options: dict[str, Any] = {"url": fake.url, "read_timeout_s": 60, **options}
        self.transport: SgasTransport = self.make(host)

    def make(self, host: Credential, **options: Any) -> SgasTransport:
        return self.make_of(sgas.Options(**{**self._options, **options}), host)

    def make_of(self, options: object, host: Credential) -> SgasTransport:
        return create(
            options,
            Credentials(certificate=host.certificate, key=host.key, ca=self.pki.ca_directory),
            self.surroundings(signed=False),
        )

    def message(self, number: int, size: int = 1000) -> Message:
        """One small record, blanks around it up to the size."""
        head = b'<UsageRecords xmlns="http://schema.ogf.org/urf/2003/09/urf" xmlns:u="http://schema.ogf.org/urf/2003/09/urf">'
        body = (
            f'<JobUsageRecord><RecordIdentity u:recordId="{record_id(number)}" u:createTime="2026-11-20T10:00:00Z"/>'
            f"<JobIdentity><GlobalJobId>{global_id(number)}</GlobalJobId></JobIdentity>"
            "<MachineName>ce.example.org</MachineName></JobUsageRecord>"
        ).encode()
        return made(b"".join((head, body, b"</UsageRecords>")).ljust(size))

    def received(self) -> list[bytes]:
        return [
            request.body
            for request in self.fake.requests.inserts
            if request.status == 200 or (request.fault is not None and request.fault.act is Act.LOSE_ANSWER)
        ]

    def requests(self) -> int:
        return len(self.fake.requests.inserts)

    def lose_answer(self) -> None:
        self.fake.faults.push(Fault.store_then_close())

    def lose_answers(self) -> None:
        self.fake.faults.always(Fault.store_then_close())

    def turn_away(self) -> None:
        self.fake.authz.lines.clear()

    def refuse_message(self) -> None:
        self.fake.faults.push(Fault.status(500, b"value too long for type character varying(200)"))

    def be_busy(self) -> None:
        self.fake.faults.push(unavailable())

    def vanish(self) -> None:
        self.fake.__exit__(None, None, None)

    def send(self, payload: bytes) -> Receipt:
        return well_formed(self.transport.deliver(made(payload), NOW), self)

    def ids(self) -> dict[str, str]:
        """What is stored: row ids by GlobalJobId."""
        return {row.global_job_id or "": str(row.id) for row in self.fake.rows.values()}


def made(payload: bytes) -> Message:
    return message_of(payload, "nordic", "ogf-ur", 1, NOW)


@pytest.fixture(scope="module")
def host(pki: PKI) -> Credential:
    return pki.host()


@pytest.fixture(params=["H", "R"])
def generation(request: pytest.FixtureRequest) -> Generation:
    return "H" if request.param == "H" else "R"


@pytest.fixture
def world(pki: PKI, host: Credential, generation: Generation) -> Iterator[SgasWorld]:
    with reserved_port() as port, FakeSGAS(pki, port=port, generation=generation) as fake:
        alive = SgasWorld(fake, pki, host)
        yield alive
        alive.transport.close()


class TestContract(TransportContract):
    """SGAS keeps what every transport must keep."""


class TestPreflight(PreflightContract):
    """SGAS tells of trouble before a message is sent."""


# What goes over the wire


def test_a_request_is_what_sgas_expects(world: SgasWorld) -> None:
    payload = numbered([1, 2])
    receipt = world.send(payload)
    assert (receipt.verdict, receipt.bytes_sent) == (Verdict.DELIVERED, len(payload))
    assert receipt.remote_ids == {global_id(1): "1", global_id(2): "2"} == world.ids()
    (request,) = world.fake.requests
    assert (request.method, request.target, request.body) == ("POST", "/sgas/ur", payload)
    assert request.header("content-type") == "text/xml; charset=utf-8"
    assert request.header("content-encoding") == ""
    assert request.header("accept-encoding") == "identity"
    assert request.header("x-forwarded-for") == ""  # it would change what the server notes as our host
    assert world.fake.rows[record_id(1)].global_user_name == "/DC=org/DC=example/CN=Åsa Öberg"


def test_one_connection_carries_a_run_also_past_errors(world: SgasWorld) -> None:
    for number in range(3):
        assert world.send(numbered([number])).verdict is Verdict.DELIVERED
    assert world.send(document([record(9, extra="<urf:EndTime/>")])).verdict is Verdict.REFUSED
    assert world.send(numbered([4])).verdict is Verdict.DELIVERED
    assert world.fake.requests.connections == 1


def test_nothing_is_asked_before_the_first_message(world: SgasWorld) -> None:
    assert len(world.fake.requests) == world.fake.requests.connections == 0


@pytest.mark.parametrize("suffix", ["", "/", "/ur", "/ur/"])
def test_operators_write_either_url(world: SgasWorld, suffix: str) -> None:
    transport = world.make(world.host, url=world.fake.url + suffix)
    assert transport.deliver(made(numbered([1])), NOW).verdict is Verdict.DELIVERED
    transport.close()
    assert [request.target for request in world.fake.requests] == ["/sgas/ur"]


def test_a_url_without_a_path_means_the_usual_one(world: SgasWorld) -> None:
    transport = world.make(world.host, url=f"https://localhost:{world.fake.port}")
    assert transport.deliver(made(numbered([1])), NOW).verdict is Verdict.DELIVERED
    transport.close()


def test_the_service_list_is_asked_when_nothing_is_at_the_usual_address(pki: PKI, host: Credential) -> None:
    with FakeSGAS(pki, base="/accounting", insert="jobs") as fake:
        world = SgasWorld(fake, pki, host)
        assert [world.send(numbered([number])).verdict for number in range(2)] == [Verdict.DELIVERED] * 2
        world.transport.close()
        targets = [request.target for request in fake.requests]
        assert targets == ["/accounting/ur", "/accounting", "/accounting/jobs", "/accounting/jobs"]


def test_doubt_about_the_usual_address_stays_at_the_other_one(pki: PKI, host: Credential) -> None:
    """A kept connection died under the first try, which may have been stored."""
    with FakeSGAS(pki, base="/accounting", insert="jobs") as fake:
        world = SgasWorld(fake, pki, host)
        world.transport._session.exchange("GET", "/accounting")
        refused = Fault.status(500, b"value too long for type character varying(200)")
        fake.faults.push(Fault.close_before_read(), route="")
        fake.faults.push(refused)
        receipt = world.send(numbered([1]))
        world.transport.close()
    assert (receipt.verdict, receipt.doubt) == (Verdict.REFUSED, True)


def test_a_wrong_url_stops_the_target_and_asks_once(world: SgasWorld) -> None:
    transport = world.make(world.host, url=world.fake.url.replace("/sgas", "/saga"))
    for _ in range(2):
        receipt = well_formed(transport.deliver(made(numbered([1])), NOW), world)
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 78)
        assert "`url`" in receipt.reason
    transport.close()
    assert [request.target for request in world.fake.requests] == ["/saga/ur", "/saga", "/saga/ur"]


# Duplicates and rewritten ids


def test_everything_sent_twice_is_there_once(world: SgasWorld) -> None:
    batches = [numbered(range(start, start + 50)) for start in (0, 50)]
    first = [world.send(batch) for batch in batches]
    again = [world.send(batch) for batch in batches]
    assert [receipt.remote_ids for receipt in again] == [receipt.remote_ids for receipt in first]
    assert set(world.fake.rows) == {record_id(number) for number in range(100)}


def test_copies_in_a_batch_collapse(world: SgasWorld) -> None:
    receipt = world.send(document([record(1), record(1), record(2)]))
    assert receipt.verdict is Verdict.DELIVERED
    assert receipt.remote_ids == world.ids()
    assert len(receipt.remote_ids) == 2


def test_a_rewritten_record_is_known_under_its_job(world: SgasWorld) -> None:
    receipt = world.send(document([record(1, local_id="/a"), record(2), record(3, local_id="x" * 121)]))
    assert receipt.verdict is Verdict.DELIVERED
    assert set(world.fake.rows) == {global_id(1), record_id(2), global_id(3)}
    assert receipt.remote_ids == world.ids()
    assert "2 of 3 records under other ids" in receipt.reason


# Faults: what was sent is there, once, and the receipt says what became of it

PASSING = {
    "dropped before storing": Fault.drop_without_storing(),
    "dropped after storing": Fault.store_then_close(),
    "closed before the body": Fault.close_before_read(),
    "closed in the body": Fault.close_after_bytes(5_000),
    "reset": Fault.reset(),
    "502": bad_gateway(),
    "502 after storing": bad_gateway(stored=True),
    "503": unavailable(),
    "504 with the commit behind it": gateway_timeout(),
    "empty 500 of a balancer": Fault.status(500),
    "nginx without room": Fault.status(500, nginx_page(500)),
    "database full of clients": Fault.status(500, b"FATAL:  sorry, too many clients already"),
    "200 of a portal": Fault.status(200, b"<html><body>Please log in</body></html>"),
    "200 of a gateway": Fault.status(200, b'{"status":"ok"}'),
    "200 of a gateway, stored": Fault.status(200, b'{"error":"maintenance"}', handled=True),
    "200 cut short": Fault.body(200, b'{"ur-', length=5000, handled=True),
    "200 that is not JSON, stored": Fault.status(200, b"OK", handled=True),
    "429": Fault.status(429),
    "garbage": Fault.raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "kept connection"])
@pytest.mark.some(2)
def test_a_passing_fault_leaves_every_row_once(world: SgasWorld, fault: Fault, warm: bool) -> None:
    if warm:
        world.send(numbered([0]))
    world.fake.faults.push(fault)
    receipt = world.send(numbered(range(1, 51)))
    assert receipt.verdict is Verdict.DELIVERED
    assert set(world.fake.rows) - {record_id(0)} == {record_id(number) for number in range(1, 51)}
    assert dict(receipt.remote_ids) == {name: row for name, row in world.ids().items() if name != global_id(0)}
    bodies = [request.body for request in world.fake.requests.inserts if len(request.body) > 10_000]
    assert set(bodies) == {numbered(range(1, 51))}, "the same bytes each time"
    assert world.fake.faults.pending == 0


LASTING = {
    "dropped before storing": (Fault.drop_without_storing(), Verdict.IN_DOUBT, False),
    "dropped after storing": (Fault.store_then_close(), Verdict.IN_DOUBT, True),
    "502": (bad_gateway(), Verdict.IN_DOUBT, False),
    "503": (unavailable(), Verdict.RETRY_LATER, False),
    "504": (gateway_timeout(), Verdict.IN_DOUBT, True),
    "standby": (Fault.status(500, b"could not make a writable connection"), Verdict.RETRY_LATER, False),
    "gateway": (Fault.status(200, b'{"status":"ok"}'), Verdict.IN_DOUBT, False),
    "portal": (Fault.status(200, b"<html>Please log in</html>"), Verdict.IN_DOUBT, False),
}


@pytest.mark.parametrize(("fault", "verdict", "stored"), LASTING.values(), ids=LASTING)
def test_a_lasting_fault_ends_patience_and_the_next_round_mends_it(
    world: SgasWorld, fault: Fault, verdict: Verdict, stored: bool
) -> None:
    world.fake.faults.always(fault)
    receipt = world.send(numbered([1]))
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (verdict, 75, 5)
    assert receipt.doubt is (verdict is Verdict.IN_DOUBT)
    assert len(world.waits) == 4
    assert bool(world.fake.rows) is stored
    world.fake.faults.clear()
    assert world.send(numbered([1])).remote_ids == world.ids()
    assert len(world.fake.rows) == 1


def test_doubt_outlives_a_clear_refusal_later(world: SgasWorld) -> None:
    world.fake.faults.push(gateway_timeout())
    world.fake.faults.always(unavailable())
    receipt = world.send(numbered([1]))
    assert (receipt.verdict, receipt.doubt) == (Verdict.IN_DOUBT, True)


def test_retry_after_is_heeded_and_the_budget_kept(world: SgasWorld) -> None:
    world.fake.faults.push(unavailable(retry_after_s=120))
    assert world.send(numbered([1])).verdict is Verdict.DELIVERED
    assert world.waits == [120]
    world.fake.faults.always(unavailable(retry_after_s=300))
    assert world.send(numbered([2])).verdict is Verdict.RETRY_LATER
    assert 120 + 300 <= sum(world.waits) <= 600


@pytest.mark.slow
def test_a_slow_answer_is_waited_for_and_a_slower_one_is_in_doubt(world: SgasWorld) -> None:
    world.fake.faults.push(Fault.delay(0.3))
    assert world.send(numbered([1])).attempts == 1
    transport = world.make(world.host, read_timeout_s=3, attempts=1)
    world.fake.faults.push(Fault.delay(FOR_EVER_S))
    receipt = well_formed(transport.deliver(made(numbered([2])), NOW), world)
    transport.close()
    assert (receipt.verdict, receipt.doubt) == (Verdict.IN_DOUBT, True)
    until(lambda: set(world.fake.rows) == {record_id(1), record_id(2)}, lambda: "the server finishes regardless")


def test_an_answer_that_drips_for_ever_is_cut_off(world: SgasWorld) -> None:
    transport = world.make(world.host, attempt_timeout_s=120, attempts=1)
    world.fake.faults.push(Fault.drip(seconds=FOR_EVER_S))
    delivering = BackgroundTask(lambda: transport.deliver(made(numbered([1])), NOW))
    assert world.fake.requests.wait_for(1)
    world.skipped_s += 120
    receipt = delivering.result()
    transport.close()
    assert receipt.verdict is Verdict.IN_DOUBT


def test_connections_that_are_refused_or_cut(world: SgasWorld) -> None:
    world.fake.faults.push(Fault.reset(), route=CONNECT)
    assert world.send(numbered([1])).attempts == 2
    world.fake.drop_connections()
    assert world.send(numbered([2])).verdict is Verdict.DELIVERED
    world.fake.faults.push(Fault.close_keepalive())
    assert world.send(numbered([3])).attempts == 1
    assert world.send(numbered([4])).verdict is Verdict.DELIVERED
    assert len(world.fake.rows) == 4


def test_a_restart_of_the_database(world: SgasWorld, generation: Generation) -> None:
    world.send(numbered([1]))
    world.fake.restart_database()
    receipt = world.send(numbered([2, 3]))
    assert receipt.verdict is Verdict.DELIVERED
    if generation == "H":  # stored, but the answer is null
        assert (receipt.attempts, dict(receipt.remote_ids)) == (1, {})
    else:  # not stored, and the next POST works
        assert (receipt.attempts, set(receipt.remote_ids)) == (2, {global_id(2), global_id(3)})
    assert set(world.fake.rows) == {record_id(1), record_id(2), record_id(3)}


def test_a_database_that_is_down_is_for_later(world: SgasWorld) -> None:
    world.fake.database.down = True
    receipt = world.send(numbered([1]))
    assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
    world.fake.database.down = False
    assert world.send(numbered([1])).verdict is Verdict.DELIVERED


@pytest.mark.some(2)
@pytest.mark.slow
def test_a_walk_over_faults_leaves_every_row_once(world: SgasWorld) -> None:
    chance = random.Random(20261120)
    faults = [*PASSING.values(), Fault.none(), Fault.close_keepalive()]
    waiting = [numbered(range(start, start + 10)) for start in range(0, 200, 10)]
    while waiting:
        world.fake.faults.push(*chance.choices(faults, k=chance.randrange(7)))
        if chance.random() < 0.2:
            world.fake.restart_database()
        if chance.random() < 0.2:
            world.fake.drop_connections()
        transport = world.make(world.host, attempts=3)
        if transport.deliver(made(waiting[0]), NOW).verdict is Verdict.DELIVERED:
            waiting.pop(0)
        transport.close()
        world.skipped_s = 0.0
    assert set(world.fake.rows) == {record_id(number) for number in range(200)}


# Refusals


def bisect(world: SgasWorld, numbers: Iterable[int], bad: dict[int, bytes]) -> dict[int, Receipt]:
    """What dispatch does: halves of what is refused, down to single records; the receipts of those."""
    queue, culprits = [list(numbers)], {}
    while queue:
        part = queue.pop(0)
        receipt = world.send(document(bad.get(number, record(number)) for number in part))
        if receipt.verdict is Verdict.REFUSED and len(part) > 1:
            queue = [part[: len(part) // 2], part[len(part) // 2 :], *queue]
        elif receipt.verdict is not Verdict.DELIVERED:
            culprits[part[0]] = receipt
    return culprits


def test_one_poisonous_record_is_found_with_the_servers_words(world: SgasWorld) -> None:
    poison = record(33, extra=f"<urf:Queue>{'q' * 201}</urf:Queue>")
    (found,) = bisect(world, range(64), {33: poison}).values()
    assert (found.verdict, found.exit_status, found.certain) == (Verdict.REFUSED, 76, True)
    assert "value too long for type character varying(200)" in found.reason
    assert set(world.fake.rows) == {record_id(number) for number in range(64) if number != 33}
    assert world.requests() <= 1 + 2 * 6


@pytest.mark.parametrize("twisted", ["old", "new"])
def test_a_crash_of_the_parser_tells_as_much_as_twisted_lets_it(
    pki: PKI, host: Credential, generation: Generation, twisted: Twisted
) -> None:
    with FakeSGAS(pki, generation=generation, twisted=twisted) as fake:
        world = SgasWorld(fake, pki, host)
        (found,) = bisect(world, range(8), {5: record(5, extra="<urf:EndTime/>")}).values()
        world.transport.close()
        assert (found.verdict, found.certain) == (Verdict.REFUSED, twisted == "old")
        assert ("TypeError: expected string" if twisted == "old" else "Processing Failed") in found.reason
        assert len(fake.rows) == 7


def test_a_replacement_that_its_children_forbid_is_the_records_fault(world: SgasWorld) -> None:
    world.send(document([record(1, extra="<arc:RuntimeEnvironment>PYTHON</arc:RuntimeEnvironment>")]))
    receipt = world.send(document([record(1, other_global_id="gsiftp://other")]))
    assert (receipt.verdict, receipt.certain) == (Verdict.REFUSED, True)
    assert "foreign key" in receipt.reason


# Size


def test_the_limit_of_the_server_shrinks_ours(world: SgasWorld) -> None:
    assert world.transport.payload_limit() == 2_000_000
    world.fake.set_limit(300_000)
    receipt = world.send(numbered(range(300)))
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (Verdict.TOO_LARGE, 76, 1)
    assert world.transport.payload_limit() == len(numbered(range(300))) // 2
    for half in (range(150), range(150, 300)):
        assert world.send(numbered(half)).verdict is Verdict.DELIVERED
    assert len(world.fake.rows) == 300


def test_a_learnt_limit_never_condemns_a_small_record(world: SgasWorld) -> None:
    world.fake.set_limit(1_000)
    assert world.send(numbered([1])).verdict is Verdict.TOO_LARGE
    assert world.transport.payload_limit() == SMALLEST_LIMIT


def test_a_message_over_the_configured_limit_is_not_sent(world: SgasWorld) -> None:
    receipt = world.send(numbered([1]).ljust(2_000_001))
    assert (receipt.verdict, receipt.attempts, receipt.bytes_sent) == (Verdict.TOO_LARGE, 0, 0)
    assert "batch_bytes" in receipt.reason
    assert world.requests() == 0


def test_nginx_has_the_last_word_on_size(world: SgasWorld) -> None:
    transport = world.make(world.host, batch_bytes=4_000_000)
    receipt = well_formed(transport.deliver(made(numbered([1]).ljust(3_500_000)), NOW), world)
    transport.close()
    assert (receipt.verdict, receipt.doubt) == (Verdict.TOO_LARGE, False)


# Rights


def both_dns(world: SgasWorld) -> tuple[str, str]:
    name = world.host.x509.subject
    return nginx_dn(name, "comma"), nginx_dn(name, "slash")


def no_right(world: SgasWorld) -> None:
    world.turn_away()
    world.fake.allow(world.host, "insert")


def other_machine(world: SgasWorld) -> None:
    world.turn_away()
    world.fake.allow(world.host, "jobinsert:machine_name=elsewhere.org")


@pytest.mark.parametrize(("trouble", "verdict"), [(no_right, Verdict.STOP_TARGET), (other_machine, Verdict.REFUSED)])
def test_a_missing_right_names_what_the_administrator_of_sgas_needs(
    trouble: Callable[[SgasWorld], None], verdict: Verdict, world: SgasWorld
) -> None:
    trouble(world)
    receipt = world.send(document([record(1, machine="grid.other.net")]))
    assert (receipt.verdict, receipt.exit_status, receipt.attempts) == (verdict, 77, 1)
    assert receipt.refused_by == (("grid.other.net",) if verdict is Verdict.REFUSED else ())
    assert receipt.certain is (verdict is not Verdict.REFUSED), "whether the target is at fault, other machines tell"
    for words in (*both_dns(world), "grid.other.net", "jobinsert"):
        assert words in receipt.reason
    assert not world.fake.rows


def test_a_common_name_that_is_no_host_stops_the_target(pki: PKI) -> None:
    robot = pki.host("robot", subject="/DC=org/CN=Robot Publisher")
    with FakeSGAS(pki) as fake:
        world = SgasWorld(fake, pki, robot)
        receipt = world.send(numbered([1]))
        world.transport.close()
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
        assert "Extracted FQDN is not an FQDN" in receipt.reason
        assert 'the CN of "CN=Robot Publisher,DC=org" is not a full host name' in receipt.reason
        assert "must allow" not in receipt.reason, "no right would help"


@pytest.mark.parametrize("right", ["jobinsert", "jobinsert:all"])
def test_a_name_that_a_legacy_nginx_hands_on_with_a_backslash(pki: PKI, generation: Generation, right: str) -> None:
    host = pki.host("ce.example.org", subject="/DC=org/CN=host/ce.example.org")
    with FakeSGAS(pki, generation=generation, spelling="slash") as fake:
        world = SgasWorld(fake, pki, host)
        world.turn_away()
        reason = world.send(numbered([1])).reason
        assert '"/DC=org/CN=host\\/ce.example.org"' in reason, "as this server spells it, and compares it"
        fake.allow(host, right)
        receipt = world.send(numbered([1]))
        world.transport.close()
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
        for words in (
            '"/DC=org/CN=host\\/ce.example.org"',
            "a certificate whose DN ends in CN=ce.example.org",
            "no right",
        ):
            assert words in receipt.reason


def test_certificates_that_nginx_does_not_take(world: SgasWorld, pki: PKI) -> None:
    for stranger in (pki.other_ca_host(), pki.revoked_host()):
        transport = world.make(stranger)
        receipt = well_formed(transport.deliver(made(numbered([1])), NOW), world)
        transport.close()
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
        assert "The SSL certificate error" in receipt.reason
        assert stranger.subject in receipt.reason


@pytest.mark.parametrize("which", ["other_ca_server", "wrong_name_server", "expired_server"])
def test_a_server_that_cannot_be_trusted_gets_nothing(pki: PKI, host: Credential, which: str) -> None:
    with FakeSGAS(pki, server=getattr(pki, which)()) as fake:
        world = SgasWorld(fake, pki, host)
        receipt = world.send(numbered([1]))
        world.transport.close()
        assert (receipt.verdict, receipt.exit_status, receipt.bytes_sent) == (Verdict.STOP_TARGET, 77, 0)
        assert len(fake.requests) == 0


def test_a_redirect_is_not_followed(world: SgasWorld) -> None:
    world.fake.faults.push(Fault.redirect(f"{world.fake.url}/ur"))
    receipt = world.send(numbered([1]))
    assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 78)
    assert world.requests() == 1


# Pre-flight


def test_the_preflight_proves_the_right_and_stores_nothing(world: SgasWorld) -> None:
    steps = world.transport.preflight()
    assert [(step.name, step.exit_status) for step in steps] == [
        ("certificate", 0),
        ("services", 0),
        ("right to insert", 0),
    ]
    assert all(dn in steps[0].answer for dn in both_dns(world))
    assert "Registration" in steps[1].answer
    assert not world.fake.rows


def no_list(world: SgasWorld) -> None:
    world.fake.faults.always(Fault.status(200, b"<html><title>Welcome</title></html>"), route="services")


def no_registration(world: SgasWorld) -> None:
    listing = b"<services><service><name>View</name><href>https://x/view</href></service></services>"
    world.fake.faults.always(Fault.status(200, listing), route="services")


def away(world: SgasWorld) -> None:
    world.vanish()


@pytest.mark.parametrize(
    ("trouble", "step", "exit_status", "words"),
    [
        (away, "services", 75, "cannot connect"),
        (no_list, "services", 78, "Welcome"),
        (no_registration, "services", 78, "View"),
        (no_right, "right to insert", 77, "jobinsert"),
    ],
)
def test_the_preflight_names_the_first_trouble(
    trouble: Callable[[SgasWorld], None], step: str, exit_status: int, words: str, world: SgasWorld
) -> None:
    trouble(world)
    last = world.transport.preflight()[-1]
    assert (last.name, last.exit_status) == (step, exit_status)
    assert words in last.answer


@pytest.mark.parametrize("twisted", ["old", "new"])
def test_the_preflight_finds_an_unusable_common_name(pki: PKI, twisted: Twisted) -> None:
    robot = pki.host("robot", subject="/DC=org/CN=Robot Publisher")
    with FakeSGAS(pki, twisted=twisted) as fake:
        world = SgasWorld(fake, pki, robot)
        last = world.transport.preflight()[-1]
        world.transport.close()
        assert (last.name, last.exit_status) == ("right to insert", 77)
        assert "CN=Robot Publisher,DC=org" in last.answer
        assert "get a certificate whose CN is that of this host" in last.answer


def test_the_preflight_with_a_certificate_that_is_not_taken(world: SgasWorld, pki: PKI) -> None:
    transport = world.make(pki.revoked_host())
    (only,) = transport.preflight()
    transport.close()
    assert (only.name, only.exit_status) == ("certificate", 77)


# Options and credentials


def test_the_plug_in_is_registered_and_loads_nothing_heavy() -> None:
    assert transport_plugin("sgas").Options is sgas.Options
    code = (
        "import sys; from publisher.transports import transport_plugin; transport_plugin('sgas'); "
        "print([name for name in ('requests', 'cryptography', 'lxml') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "http://sgas.example.org/sgas"}, "https"),
        ({"url": "https://sgas.example.org/sgas?x=1"}, "query"),
        ({"url": "https://user@sgas.example.org/sgas"}, "user"),
        ({"url": "https://[::1/sgas"}, "URL"),
        ({"batch_bytes": 100}, "batch_bytes"),
        ({"attempts": 0}, "attempts"),
        ({"read_timeout_s": 0}, "read_timeout_s"),
        ({"retry_budget_s": -1}, "retry_budget_s"),
        ({"proxy": "socks5://localhost:1"}, "proxy"),
    ],
)
def test_options_that_cannot_work(world: SgasWorld, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        world.make(world.host, **options)


def test_options_of_another_transport_are_a_bug(world: SgasWorld) -> None:
    with pytest.raises(TypeError):
        world.make_of(object(), world.host)


def test_credentials_are_looked_at_before_anything_is_sent(world: SgasWorld, pki: PKI) -> None:
    for expired in (pki.expired_host(), pki.not_yet_valid_host()):
        with pytest.raises(CredentialError):
            world.make(expired)
    with pytest.raises(CredentialError, match="does not belong"):
        world.make(replace(world.host, key=pki.host("b.example.org", key="ec").key))
    opened = pki.host("open.example.org")
    opened.key.chmod(0o640)
    with pytest.raises(CredentialError, match="open to others"):
        world.make(opened)
    world.make(opened, allow_open_key=True).close()
    world.environment["CREDENTIALS_DIRECTORY"] = str(opened.key.parent)
    world.make(opened).close()


def test_warnings_begin_thirty_days_before_the_end(world: SgasWorld, pki: PKI) -> None:
    transport = world.make(pki.host("long.example.org", days=60))
    assert transport.warnings(NOW) == []
    (text,) = transport.warnings(NOW + timedelta(days=58.5))
    assert "expires in 1 day," in text
    assert "/CN=long.example.org" in text
    transport.close()


@pytest.mark.parametrize(
    "subject",
    [
        "/DC=org/DC=example/CN=ce.example.org",
        "/C=SE/O=Åbo, Akademi + Co/OU= #x /CN=ce.example.org",
        '/C=SE/O=a"b<c>d;e\\f/CN=x',
        "/DC=org/CN=host/ce.example.org",
        "/C=SE/CN=ce.example.org/emailAddress=a@example.org",
    ],
)
def test_our_spellings_are_those_of_nginx(subject: str) -> None:
    name = parse_slash_dn(subject)
    assert subject_names(name).comma == nginx_dn(name, "comma")
    assert subject_names(name).slash == nginx_dn(name, "slash")


@pytest.mark.parametrize(
    ("machine", "host", "covered"),
    [
        ("ce01.example.org", "ce.example.org", True),
        ("example.org", "ce.example.org", True),
        ("a.b.example.org.", "ce.example.org", True),
        ("ce01.other.org", "ce.example.org", False),
        ("CE01.EXAMPLE.ORG", "ce.example.org", False),
        ("org", "ce.example.org", False),
        ("ce01.example.org", "org", True),
        ("ce01.example.org", "", False),
    ],
)
def test_a_machine_is_covered_by_the_last_two_labels_of_the_host(machine: str, host: str, covered: bool) -> None:
    assert in_domain(machine, host) is covered


@pytest.mark.parametrize(
    ("subject", "host"),
    [
        ("/DC=org/CN=ce.example.org", "ce.example.org"),
        ("/DC=org/CN=host/ce.example.org", "ce.example.org"),
        ("/C=SE/CN=ce.example.org/emailAddress=a@example.org", "ce.example.org"),
        ("/C=SE/O=A, CN=no/CN=ce.example.org", "ce.example.org"),
        ("/DC=org/O=Site", ""),
    ],
)
def test_the_host_that_a_certificate_is_for(subject: str, host: str) -> None:
    assert subject_names(parse_slash_dn(subject)).host == host
