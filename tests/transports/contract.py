"""What every transport must keep: a test class to inherit from."""

import logging
import random
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

import pytest

from publisher.model.errors import CredentialError
from publisher.model.message import Message
from publisher.transports.base import Environment, Receipt, Step, Transport, Verdict


class TransportWorld(ABC):
    """A transport, live, and the service that it delivers to, which the test can make misbehave."""

    transport: Transport
    secrets: tuple[str, ...] = ()
    stop_asked: bool = False
    """When set, every wait ends at once with the request to stop."""

    def __init__(self, now: datetime | None = None) -> None:
        self.now = self.wall = now or datetime.now(UTC)
        self.environment: dict[str, str] = {}
        self.skipped_s = 0.0
        self.waits: list[float] = []
        """What the transport has waited so far, in seconds; nothing really waits."""

    def surroundings(self, *, signed: bool) -> Environment:
        """Waits take no time: the clock skips it."""
        return Environment(
            environment=self.environment,
            now=lambda: self.wall,
            clock=lambda: time.monotonic() + self.skipped_s,
            chance=random.Random(7).random,
            wait=self._wait,
            signed=lambda _: signed,
        )

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.skipped_s += seconds
        return self.stop_asked

    @abstractmethod
    def message(self, number: int, size: int = 1000) -> Message:
        """A deliverable message of exactly this many bytes of payload."""

    @abstractmethod
    def received(self) -> list[bytes]:
        """The payloads that the service has taken, in order, as its receiver reads them."""

    @abstractmethod
    def requests(self) -> int:
        """How many requests to take a message have reached the service."""

    @abstractmethod
    def lose_answers(self) -> None:
        """From now on messages are taken and the answers are lost."""

    @abstractmethod
    def lose_answer(self) -> None:
        """The next message is taken and its answer is lost."""

    @abstractmethod
    def turn_away(self) -> None:
        """From now on the service knows us, but we have no right to deliver."""

    @abstractmethod
    def refuse_message(self) -> None:
        """The next message is refused for what it is."""

    @abstractmethod
    def be_busy(self) -> None:
        """The next request is not carried out; the service asks for patience."""

    @abstractmethod
    def vanish(self) -> None:
        """From now on nothing listens where the service was."""


def well_formed(receipt: Receipt, world: TransportWorld) -> Receipt:
    """What holds for every receipt."""
    assert len(receipt.reason) <= 500
    assert receipt.reason.isprintable()
    assert not any(secret in repr(receipt) for secret in world.secrets)
    if receipt.verdict is Verdict.DELIVERED:
        assert (receipt.exit_status, receipt.doubt) == (0, False)
    else:
        assert receipt.reason
        assert receipt.exit_status in (65, 75, 76, 77, 78)
        assert receipt.remote_id == ""
    return receipt


def well_formed_steps(steps: tuple[Step, ...], world: TransportWorld) -> tuple[Step, ...]:
    """What holds for every pre-flight check."""
    assert steps
    assert all(step.exit_status == 0 for step in steps[:-1]), "it ends with the first trouble"
    for step in steps:
        assert step.name
        assert 0 < len(step.answer) <= 500
        assert step.answer.isprintable()
        assert step.exit_status in (0, 75, 76, 77, 78)
    assert not any(secret in repr(steps) for secret in world.secrets)
    return steps


class PreflightContract:
    """What a pre-flight check of a service on the net keeps. Inherit, and give a fixture `world`."""

    def test_all_is_well_and_the_next_message_is_the_first(self, world: TransportWorld) -> None:
        steps = well_formed_steps(world.transport.preflight(), world)
        assert [step.exit_status for step in steps] == [0] * len(steps)
        assert len({step.name for step in steps}) == len(steps) > 1
        message = world.message(1)
        assert world.transport.deliver(message, world.now).verdict is Verdict.DELIVERED
        assert world.received()[-1] == message.payload

    def test_a_missing_right_is_told_before_the_first_message(self, world: TransportWorld) -> None:
        world.turn_away()
        last = well_formed_steps(world.transport.preflight(), world)[-1]
        assert last.exit_status == 77
        assert last.name.startswith("right to ")

    def test_a_service_that_is_away_is_told(self, world: TransportWorld) -> None:
        world.vanish()
        (only,) = well_formed_steps(world.transport.preflight(), world)
        assert only.exit_status == 75
        assert world.waits == []

    def test_trouble_that_has_passed_leaves_no_trace(self, world: TransportWorld) -> None:
        world.be_busy()
        world.transport.preflight()
        steps = well_formed_steps(world.transport.preflight(), world)
        assert steps[-1].exit_status == 0


class TransportContract:
    """Inherit, and give a fixture `world`."""

    def deliver(self, world: TransportWorld, number: int = 1, size: int = 1000) -> tuple[Message, Receipt]:
        message = world.message(number, size)
        return message, well_formed(world.transport.deliver(message, world.now), world)

    def test_a_delivered_message_has_arrived_once(self, world: TransportWorld) -> None:
        message, receipt = self.deliver(world)
        assert receipt.verdict is Verdict.DELIVERED
        assert receipt.attempts == 1
        assert receipt.bytes_sent >= len(message.payload)
        assert world.received() == [message.payload]
        assert world.waits == []

    def test_messages_arrive_in_order_one_a_request(self, world: TransportWorld) -> None:
        sent = []
        for number in range(5):
            message, receipt = self.deliver(world, number)
            assert receipt.verdict is Verdict.DELIVERED
            sent.append(message.payload)
        assert world.received() == sent
        assert world.requests() == 5

    def test_the_largest_payload_fits(self, world: TransportWorld) -> None:
        limit = world.transport.payload_limit()
        message, receipt = self.deliver(world, size=limit)
        assert receipt.verdict is Verdict.DELIVERED
        assert world.received() == [message.payload]
        assert world.transport.payload_limit() == limit

    def test_a_lost_answer_is_met_with_the_same_message(self, world: TransportWorld) -> None:
        self.deliver(world, 0)
        world.lose_answer()
        message, receipt = self.deliver(world, 1)
        assert receipt.verdict is Verdict.DELIVERED
        assert world.received()[1:] == [message.payload] * 2

    def test_answers_that_stay_away_leave_doubt(self, world: TransportWorld) -> None:
        world.lose_answers()
        message, receipt = self.deliver(world)
        assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.IN_DOUBT, 75, True)
        assert set(world.received()) == {message.payload}
        assert receipt.attempts == len(world.waits) + 1

    def test_a_service_that_is_away_is_for_later(self, world: TransportWorld) -> None:
        world.vanish()
        _, receipt = self.deliver(world)
        assert (receipt.verdict, receipt.exit_status, receipt.doubt) == (Verdict.RETRY_LATER, 75, False)
        assert receipt.bytes_sent == 0
        assert len(world.waits) == receipt.attempts - 1 > 0

    def test_doubt_outlives_a_service_that_vanishes(self, world: TransportWorld) -> None:
        world.lose_answers()
        world.stop_asked = True
        _, receipt = self.deliver(world)
        assert receipt.verdict is Verdict.IN_DOUBT

    def test_a_stop_ends_the_waiting(self, world: TransportWorld) -> None:
        world.vanish()
        world.stop_asked = True
        _, receipt = self.deliver(world)
        assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.RETRY_LATER, 1, 1)

    def test_a_busy_service_is_asked_again(self, world: TransportWorld) -> None:
        world.be_busy()
        message, receipt = self.deliver(world)
        assert (receipt.verdict, receipt.attempts, len(world.waits)) == (Verdict.DELIVERED, 2, 1)
        assert world.received() == [message.payload]

    def test_no_right_to_deliver_stops_the_target(self, world: TransportWorld) -> None:
        world.turn_away()
        _, receipt = self.deliver(world)
        assert (receipt.verdict, receipt.exit_status) == (Verdict.STOP_TARGET, 77)
        assert world.waits == []
        assert world.received() == []

    def test_a_refused_message_does_not_stop_its_neighbours(self, world: TransportWorld) -> None:
        world.refuse_message()
        _, receipt = self.deliver(world, 1)
        assert (receipt.verdict, receipt.exit_status) == (Verdict.REFUSED, 76)
        message, receipt = self.deliver(world, 2)
        assert receipt.verdict is Verdict.DELIVERED
        assert world.received() == [message.payload]

    def test_an_ended_certificate_sends_nothing(self, world: TransportWorld) -> None:
        with pytest.raises(CredentialError, match="expired"):
            world.transport.deliver(world.message(1), world.now + timedelta(days=10_000))
        assert world.requests() == 0

    def test_it_can_be_closed_more_than_once(self, world: TransportWorld) -> None:
        self.deliver(world)
        world.transport.close()
        world.transport.close()

    def test_logs_hold_no_secrets(self, world: TransportWorld, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            self.deliver(world, 1)
            world.be_busy()
            self.deliver(world, 2)
            world.turn_away()
            self.deliver(world, 3)
        assert any(line.name == "publisher.transports" for line in caplog.records)
        assert not any(secret in caplog.text for secret in world.secrets)
