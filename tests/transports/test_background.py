"""Work on a thread of its own: what comes of it comes to whoever asks, and to nobody else."""

from __future__ import annotations

import signal
import sys
import threading
import time
from functools import partial
from operator import truediv
from weakref import ref

import pytest

from publisher.transports.base import BackgroundTask, BackgroundThread
from tests.support.patience import PATIENCE_S


def test_a_result_is_waited_for() -> None:
    assert BackgroundTask(lambda: sum(range(1_000_000))).result() == 499_999_500_000


def test_work_that_takes_too_long_is_waited_for_no_longer() -> None:
    go_on = threading.Event()
    begun = BackgroundTask(go_on.wait)
    with pytest.raises(TimeoutError):
        begun.result(0.01)
    go_on.set()
    assert begun.result(PATIENCE_S), "it went on all the same"


def test_a_thread_does_one_piece_after_the_other_until_it_is_closed() -> None:
    thread: BackgroundThread[float] = BackgroundThread()
    for number in (1, 0, 2):
        thread.begin(partial(truediv, 2, number))
        if number:
            assert thread.result(PATIENCE_S) == 2 / number
        else:
            with pytest.raises(ZeroDivisionError):
                thread.result(PATIENCE_S)
    thread.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_nothing_of_the_work_is_kept_while_the_next_is_waited_for() -> None:
    class Payload:
        pass

    thread: BackgroundThread[None] = BackgroundThread()
    payload = Payload()
    kept = ref(payload)
    thread.begin(partial(print, payload, end=""))
    thread.result(PATIENCE_S)
    del payload
    given_up = time.monotonic() + PATIENCE_S
    while kept() is not None and time.monotonic() < given_up:
        time.sleep(0.01)  # the thread has given its result, and is about to wait
    assert kept() is None
    thread.close()


@pytest.mark.parametrize("error", [ValueError("a"), KeyError("b"), SystemExit(3)], ids=repr)
def test_what_the_work_raises_is_raised_where_its_result_is_asked_for(
    error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    begun = BackgroundTask(work)
    with pytest.raises(type(error)) as raised:
        begun.result(PATIENCE_S)
    assert raised.value is error
    assert capfd.readouterr().err == "", "no traceback for the user"


def test_a_signal_that_another_thread_gets_is_heard_while_the_main_one_waits() -> None:
    heard, main = threading.Event(), threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())

    def work() -> bool:
        while sys._current_frames()[main].f_code.co_name != "result":
            time.sleep(0.01)  # until the main thread waits
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return heard.wait(PATIENCE_S)

    try:
        assert BackgroundTask(work).result()
    finally:
        signal.signal(signal.SIGUSR1, before)
